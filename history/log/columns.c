/* columns.c - the values of the columns of history/columns.h: to SQLite, from SQLite, as JSON. */
#include "history/columns.h"
#include "kernels/json.h"

#include <math.h>

#define STEP_ROW(name, type, sql, member, keep, part, view)                                        \
    {#name, TYPE_##type, PART_##part, offsetof(struct step_row, member)},
const struct column step_columns[] = {STEP_COLUMNS(STEP_ROW)};

#define SERVED_ROW(name, type, sql) {#name, TYPE_##type, PART_SHAPE, offsetof(struct served, name)},
const struct column served_columns[] = {SERVED_COLUMNS(SERVED_ROW) SERVED_TIMES(SERVED_ROW)};

/* ---- the facts of tokens ---- */

enum { FACT_BYTES = 12 };

bool token_facts_unpack(const void *p, size_t bytes, int n, struct token_fact **out)
{
    *out = NULL;
    if (bytes != (size_t)n * FACT_BYTES)
        return false;
    if (n)
        *out = xcalloc((size_t)n, sizeof **out);
    for (int i = 0; i < n; i++) {
        const char *at = (const char *)p + mul64(i, FACT_BYTES);
        memcpy(&(*out)[i].logp, at, 4);
        memcpy(&(*out)[i].rival, at + 4, 4);
        memcpy(&(*out)[i].rival_logp, at + 8, 4);
    }
    return true;
}

/* ---- to SQLite ---- */

static int bind_text(sqlite3_stmt *st, int at, const char *s) /* NULL: null */
{
    return sqlite3_bind_text(st, at, s, -1, SQLITE_STATIC);
}

static int bind_facts(sqlite3_stmt *st, int at, const struct step_row *r)
{
    FREED(buf_free) struct buf packed = {0};
    if (!r->facts)
        return sqlite3_bind_null(st, at);
    for (const struct token_fact *f = r->facts; f < r->facts + r->tokens.n; f++) {
        buf_add(&packed, &f->logp, 4);
        buf_add(&packed, &f->rival, 4);
        buf_add(&packed, &f->rival_logp, 4);
    }
    return sqlite3_bind_blob64(st, at, buf_text(&packed), packed.n, SQLITE_TRANSIENT);
}

static int bind_unless(sqlite3_stmt *st, int at, bool null, int64_t v)
{
    return null ? sqlite3_bind_null(st, at) : sqlite3_bind_int64(st, at, v);
}

static int bind_column(sqlite3_stmt *st, int at, enum column_type type, const void *v,
                       const void *row)
{
    const struct step_row *r = row; /* where the type is one of a step */
    switch (type) {
    case TYPE_COUNT: return sqlite3_bind_int64(st, at, *(const int *)v);
    case TYPE_TOKEN: return sqlite3_bind_int64(st, at, *(const int32_t *)v);
    case TYPE_U32: return sqlite3_bind_int64(st, at, *(const uint32_t *)v);
    case TYPE_U64: case TYPE_DIGEST: return sqlite3_bind_int64(st, at, *(const int64_t *)v);
    case TYPE_FLOAT: return sqlite3_bind_double(st, at, (double)*(const float *)v);
    case TYPE_FLAG: return sqlite3_bind_int64(st, at, *(const bool *)v);
    case TYPE_TOLD: return bind_unless(st, at, *(const int64_t *)v == -1, *(const int64_t *)v);
    case TYPE_DOUBLE: return sqlite3_bind_double(st, at, *(const double *)v);
    case TYPE_WORD: return bind_text(st, at, v);
    case TYPE_KIND: return bind_text(st, at, step_kind_name(r->rec.kind));
    case TYPE_SOURCE:
        return bind_text(st, at, r->rec.source ? step_source_name(r->rec.source) : NULL);
    case TYPE_ARRIVED: return bind_unless(st, at, !r->rec.source, *(const int64_t *)v);
    case TYPE_TOKENS:
        return sqlite3_bind_blob64(st, at, r->tokens.n ? (const void *)r->tokens.v : "",
                                   (size_t)r->tokens.n * sizeof *r->tokens.v, SQLITE_STATIC);
    case TYPE_FACTS: return bind_facts(st, at, r);
    }
    CHECK(false);
}

int columns_bind(sqlite3_stmt *st, int at, const struct column *c, int n, const void *row)
{
    int rc = SQLITE_OK;
    for (int i = 0; !rc && i < n; i++)
        rc = bind_column(st, at + i, c[i].type, (const char *)row + c[i].at, row);
    return rc;
}

/* ---- from SQLite ---- */

static const char *read_column(sqlite3_stmt *st, int i, enum column_type type, void *v, void *row,
                               bool *fits)
{
    struct step_row *r = row; /* where the type is one of a step */
    bool null = sqlite3_column_type(st, i) == SQLITE_NULL;
    const char *text = type == TYPE_KIND || type == TYPE_SOURCE || type == TYPE_WORD
                           ? (const char *)sqlite3_column_text(st, i) : NULL;
    switch (type) {
    case TYPE_COUNT: *(int *)v = col_int(st, i, 0, fits); break;
    case TYPE_TOKEN: *(int32_t *)v = col_int(st, i, -1, fits); break;
    case TYPE_U32: *(uint32_t *)v = (uint32_t)sqlite3_column_int64(st, i); break;
    case TYPE_U64: case TYPE_DIGEST: case TYPE_ARRIVED:
        *(uint64_t *)v = (uint64_t)sqlite3_column_int64(st, i);
        break;
    case TYPE_FLOAT: *(float *)v = null ? NAN : (float)sqlite3_column_double(st, i); break;
    case TYPE_FLAG: *(bool *)v = sqlite3_column_int(st, i) == 1; break;
    case TYPE_TOLD: *(int64_t *)v = null ? -1 : sqlite3_column_int64(st, i); break;
    case TYPE_DOUBLE: *(double *)v = null ? NAN : sqlite3_column_double(st, i); break;
    case TYPE_WORD: snprintf(v, sizeof ((struct served *)0)->finish, "%s", text ? text : ""); break;
    case TYPE_KIND:
        for (r->rec.kind = 0; text && r->rec.kind <= STEP_SPEC; r->rec.kind++)
            if (strcmp(text, step_kind_name(r->rec.kind)) == 0)
                return NULL;
        return " has an unknown kind";
    case TYPE_SOURCE: /* what another program wrote is STEP_COMPUTED */
        for (enum step_source k = STEP_REPORTED; text && k <= STEP_PIECE; k++)
            if (strcmp(text, step_source_name(k)) == 0)
                r->rec.source = k;
        break;
    case TYPE_TOKENS: col_ids(st, i, &r->tokens); break;
    case TYPE_FACTS:
        if (!null && !token_facts_unpack(sqlite3_column_blob(st, i),
                                         (size_t)sqlite3_column_bytes(st, i), r->tokens.n,
                                         &r->facts))
            return ": the facts of its tokens are damaged";
        break;
    }
    return NULL;
}

const char *columns_read(sqlite3_stmt *st, int at, const struct column *c, int n, void *row,
                         bool *fits)
{
    const char *bad = NULL;
    for (int i = 0; !bad && i < n; i++)
        bad = read_column(st, at + i, c[i].type, (char *)row + c[i].at, row, fits);
    return bad;
}

/* ---- as JSON ---- */

void fact_json(const struct token_fact *f, struct buf *b)
{
    JPUT_IN(b, '{');
    jput_kreal(b, "logp", (double)f->logp);
    if (f->rival >= 0)
        jput_fields(b, "%d{rival}%g{rival_logp}", f->rival, f->rival_logp);
}

/* What a server did not report is left out, and so is what a step does not have. */
static void column_json(const struct column *c, const void *row, struct buf *b)
{
    const void *v = (const char *)row + c->at;
    const struct step_row *r = row; /* where the type is one of a step */
    switch (c->type) {
    case TYPE_COUNT: jput_kint(b, c->name, *(const int *)v); break;
    case TYPE_TOKEN:
        jput_key(b, c->name);
        *(const int32_t *)v == -1 ? jput_null(b) : jput_int(b, *(const int32_t *)v);
        break;
    case TYPE_U32: jput_kint(b, c->name, *(const uint32_t *)v); break;
    case TYPE_U64: jput_kint(b, c->name, *(const int64_t *)v); break;
    case TYPE_DIGEST: jput_key(b, c->name), jput_digest(b, *(const uint64_t *)v); break;
    case TYPE_FLOAT: jput_kreal(b, c->name, (double)*(const float *)v); break;
    case TYPE_FLAG: jput_kbool(b, c->name, *(const bool *)v); break;
    case TYPE_TOLD:
        if (*(const int64_t *)v >= 0)
            jput_kint(b, c->name, *(const int64_t *)v);
        break;
    case TYPE_DOUBLE:
        if (!isnan(*(const double *)v))
            jput_kreal(b, c->name, *(const double *)v);
        break;
    case TYPE_WORD: jput_kstr(b, c->name, *(const char *)v ? v : NULL); break;
    case TYPE_KIND: jput_kstr(b, c->name, step_kind_name(r->rec.kind)); break;
    case TYPE_SOURCE: jput_kstr(b, c->name, step_source_name(r->rec.source)); break;
    case TYPE_ARRIVED:
        if (r->rec.source != STEP_COMPUTED)
            jput_kint(b, c->name, *(const int64_t *)v);
        break;
    case TYPE_TOKENS: jput_kints(b, c->name, r->tokens.v, r->tokens.n); break;
    case TYPE_FACTS:
        if (r->facts)
            jput_kopen(b, c->name, '[');
        for (int i = 0; r->facts && i < r->tokens.n; i++)
            fact_json(&r->facts[i], b);
        if (r->facts)
            jput_close(b, ']');
        break;
    }
}

void step_row_json(const struct step_row *r, struct buf *b)
{
    for (enum column_part part = 0; part < N_PARTS; part++)
        for (int i = 0; i < N_STEP_COLUMNS; i++)
            if (step_columns[i].part == part)
                column_json(&step_columns[i], r, b);
}

void served_report_json(const struct served *s, struct buf *b)
{
    for (int i = 0; i < N_SERVED_COLUMNS; i++)
        column_json(&served_columns[i], s, b);
}
