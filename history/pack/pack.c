/* pack.c - writes a pack: the rows of a session and of those that it was forked from, without text.
 *
 * Nothing is removed from a copy of the log: the pack is a fresh database, and what it must not
 * hold is never inserted. A table is copied only if it has a rule below, which classifies every
 * column; a column that no rule names is emptied. So a column that is added to the schema stays out
 * of packs until a rule says what it holds (tests/unit/test_packs.c requires that). */
#include "history/columns.h"
#include "kernels/sort.h"

#include <limits.h>

/* ---- what a pack keeps ---- */

/* The rows of a session up to the cut, an `order` (struct turn_row). ?1: session, ?2: cut. */
#define RUNS "SELECT id FROM run WHERE session_id=?1 AND coalesce(link,0)<?2"
#define TURNS "SELECT id FROM turn WHERE session_id=?1 AND coalesce(link,0)<?2"
#define STEPS "SELECT id FROM step WHERE turn_id IN (" TURNS ")"

#define TOKENIZERS                                                                                 \
    "sha IN (SELECT tokenizer_sha FROM model WHERE id IN (SELECT target_id FROM run WHERE id IN (" \
    RUNS ")))"

/* The names of a step's columns that are facts, that are ids. */
#define STEP_FACT(name, type, sql, member, keep, ...) NAME_IF_FACT_##keep(name)
#define STEP_IDS(name, type, sql, member, keep, ...) NAME_IF_IDS_##keep(name)
#define NAME_IF_FACT_FACT(name) " " #name
#define NAME_IF_FACT_IDS(name)
#define NAME_IF_IDS_FACT(name)
#define NAME_IF_IDS_IDS(name) " " #name
#define NAME(name, ...) " " #name

static const struct pack_rule rules[] = {
    {.table = "build", .where = "id IN (SELECT build_id FROM run WHERE id IN (" RUNS "))",
     .facts = "id version device flags"},
    {.table = "model", .where = "id IN (SELECT target_id FROM run WHERE id IN (" RUNS ") UNION"
                                " SELECT draft_id FROM run WHERE id IN (" RUNS "))",
     .facts = "id role weights_sha tokenizer_sha", .paths = "dir"},
    {.table = "server", .where = "id IN (SELECT server_id FROM run WHERE id IN (" RUNS "))",
     .facts = "id kind version", .paths = "model facts", .text = "url"},
    {.table = "session", .where = "id=?1 AND ?2 NOT NULL",
     .facts = "id parent fork_turn created_ms updated_ms last_run links number", .text = "title",
     .never = "chain seal pinned"},
    {.table = "run", .where = "id IN (" RUNS ")",
     .facts = "id session_id build_id target_id draft_id config ended created_ms link server_id",
     .never = "writer sum"},
    {.table = "turn", .where = "id IN (" TURNS ")",
     .facts = "id session_id run_id n role shared regen seed sampling draws0 n_reused stop draws1 "
              "n_steps n_drafted n_accepted us_prefill us_decode created_ms link change "
              "change_turn held same limited gone_from gone_to",
     .ids = "tokens", .text = "text", .never = "sum"},
    {.table = "turn_part", .where = "turn_id IN (" TURNS ")", .facts = "turn_id k channel",
     .text = "text"},
    {.table = "step", .where = "id IN (" STEPS ")",
     .facts = "id turn_id n" STEP_COLUMNS(STEP_FACT), .ids = "" STEP_COLUMNS(STEP_IDS)},
    {.table = "tree", .where = "step_id IN (" STEPS ")", .facts = "step_id", .ids = "nodes",
     .slice = "step_id"},
    {.table = "pages", .where = "step_id IN (" STEPS ")", .facts = "step_id events"},
    {.table = "served", .where = "turn_id IN (" TURNS ")",
     .facts = "turn_id" SERVED_COLUMNS(NAME) SERVED_TIMES(NAME),
     .ids = "tokens"},
    {.table = "metric", .where = "turn_id IN (" TURNS ")", .facts = "turn_id name before after",
     .paths = "labels"},
    {.table = "top", .where = "step_id IN (" STEPS ")", .facts = "step_id k rank logp",
     .ids = "token",
     .text = "text"},
    {.table = "event", .where = "session_id=?1 AND coalesce(link,0)<?2",
     .facts = "id session_id turn step kind op created_ms link", .text = "text", .never = "sum"},
    {.table = "tokenizer", .where = TOKENIZERS, .facts = "id sha", .never = "texts sum"},
    /* must be last: only ids in the rows copied before are kept; the log has texts for other
     * sessions, too */
    {.table = "token", .where = "tokenizer IN (SELECT id FROM tokenizer WHERE " TOKENIZERS ")",
     .facts = "tokenizer id", .text = "text", .of_id = "id"},
};
enum { N_RULES = LEN(rules) };

const struct pack_rule *pack_rule(int i)
{
    return i < N_RULES ? &rules[i] : NULL;
}

bool pack_names(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (strcspn(p, " ") == n && memcmp(p, name, n) == 0)
            return true;
    return false;
}

/* ---- one value ---- */

/* What becomes of a value. */
enum fate_of_value { KEEP, EMPTY, NAME_ONLY, NO_NAMES, NO_IDS };

/* Whether a row of `event` is an operation. */
static bool is_op(sqlite3_stmt *st)
{
    for (int i = 0; i < sqlite3_column_count(st); i++)
        if (!strcmp(sqlite3_column_name(st, i), "kind")) {
            const char *s = (const char *)sqlite3_column_text(st, i);
            return s && !strcmp(s, "op");
        }
    return false;
}

/* An operation's text holds settings and numbers, except that of a system prompt; a fault's text is
 * the message of the checker or the device. Notices quote replies. */
static bool is_technical(sqlite3_stmt *st, enum pack_level level)
{
    bool op = false, fault = false, prompt = false;
    for (int i = 0; i < sqlite3_column_count(st); i++) {
        const char *name = sqlite3_column_name(st, i),
            *s = (const char *)sqlite3_column_text(st, i);
        if (s && !strcmp(name, "kind")) {
            op = !strcmp(s, "op");
            fault = !strcmp(s, "fault");
        } else if (s && !strcmp(name, "op")) {
            prompt = !strcmp(s, op_name(OP_SYSTEM)) || !strcmp(s, op_name(OP_FORMAT)) ||
                     (level == PACK_SHAPE && !strcmp(s, op_name(OP_FORCE))); /* a token's id */
        }
    }
    return fault || (op && !prompt);
}

/* The text of a server's fault may quote its address or the request; the device of a log of an
 * earlier version may be the address. */
static bool is_of_server(const struct pack_rule *r, sqlite3_stmt *st, int i, bool served)
{
    if (!strcmp(r->table, "build") && !strcmp(sqlite3_column_name(st, i), "device")) {
        const char *s = (const char *)sqlite3_column_text(st, i);
        return s && strstr(s, "://");
    }
    return served && !strcmp(r->table, "event") && !strcmp(sqlite3_column_name(st, i), "text") &&
           !is_op(st);
}

static enum fate_of_value judge(const struct pack_rule *r, sqlite3_stmt *st, int i,
                                enum pack_level level, bool served)
{
    const char *name = sqlite3_column_name(st, i);
    if (level != PACK_TEXT && is_of_server(r, st, i, served))
        return EMPTY;
    if (pack_names(r->facts, name))
        return KEEP;
    if (pack_names(r->paths, name))
        return level == PACK_TEXT ? KEEP : !strcmp(name, "facts") ? NO_NAMES : NAME_ONLY;
    if (pack_names(r->ids, name))
        return level == PACK_SHAPE ? NO_IDS : KEEP;
    if (pack_names(r->text, name) && !strcmp(r->table, "event") && is_technical(st, level))
        return KEEP;
    return pack_names(r->text, name) && level == PACK_TEXT ? KEEP : EMPTY;
}

static int bind_empty(sqlite3_stmt *to, int at, int type)
{
    switch (type) {
    case SQLITE_NULL: return sqlite3_bind_null(to, at);
    case SQLITE_TEXT: return sqlite3_bind_text(to, at, "", 0, SQLITE_STATIC);
    case SQLITE_BLOB: return sqlite3_bind_zeroblob(to, at, 0);
    default: return sqlite3_bind_int64(to, at, 0);
    }
}

/* The last component of a path: the folders above it name a person's machine. */
static int bind_last_name(sqlite3_stmt *to, int at, sqlite3_stmt *from, int i)
{
    const char *path = (const char *)sqlite3_column_text(from, i);
    const char *slash = path ? strrchr(path, '/') : NULL;
    return sqlite3_bind_text(to, at, slash ? slash + 1 : path, -1, SQLITE_TRANSIENT);
}

/* The launch facts of a server without names of its machine or folders: a path keeps its last
 * component, an address is removed; numbers, flags and plain words stay. */
static bool plain_launch(sqlite3 *h, const char *facts, struct buf *out)
{
    static const char sql[] =
        "SELECT json_group_object(key, CASE WHEN type = 'true' THEN json('true') WHEN type = "
        "'false' THEN json('false') WHEN type <> 'text' THEN value WHEN value LIKE '%://%' OR "
        "instr(value, '@') OR value GLOB '*[0-9].*[0-9].*[0-9].[0-9]*' OR instr(value, '::') OR "
        "lower(key) GLOB '*host*' OR lower(key) GLOB '*url*' OR lower(key) GLOB '*addr*' OR "
        "lower(key) GLOB '*_ip' OR lower(key) IN ('user', 'username', 'ip') THEN '' ELSE "
        "replace(value, rtrim(value, replace(value, '/', '')), '') END) FROM json_each(?)";
    sqlite3_stmt *st = NULL;
    bool ok = sqlite3_prepare_v2(h, sql, -1, &st, NULL) == SQLITE_OK &&
              sqlite3_bind_text(st, 1, facts, -1, SQLITE_TRANSIENT) == SQLITE_OK &&
              sqlite3_step(st) == SQLITE_ROW;
    if (ok)
        buf_add(out, sqlite3_column_text(st, 0), (size_t)sqlite3_column_bytes(st, 0));
    sqlite3_finalize(st);
    return ok;
}

bool hdb_plain_launch(struct hdb *h, const char *facts, struct buf *out)
{
    return plain_launch(h->db.h, facts, out);
}

static int bind_launch(sqlite3_stmt *to, int at, sqlite3_stmt *from, int i)
{
    FREED(buf_free) struct buf plain = {0};
    if (!plain_launch(sqlite3_db_handle(from), (const char *)sqlite3_column_text(from, i), &plain))
        buf_str(&plain, "{}");
    return sqlite3_bind_text(to, at, plain.p, -1, SQLITE_TRANSIENT);
}

/* Binds a tree with all tokens -1; its shape, fates and probabilities stay. */
static int bind_bare_tree(sqlite3_stmt *to, int at, const void *p, int n)
{
    struct tree t;
    FREED(buf_free) struct buf packed = {0};
    if (!tree_unpack(&t, p, (size_t)n, NULL))
        return sqlite3_bind_zeroblob(to, at, 0);
    for (int i = 0; i < t.n; i++)
        t.token[i] = -1;
    tree_pack(&t, &packed);
    return sqlite3_bind_blob64(to, at, packed.p, packed.n, SQLITE_TRANSIENT);
}

/* Binds as many ids as there are, each -1; -1 for a single id; 0 for a digest. */
static int bind_no_ids(sqlite3_stmt *to, int at, sqlite3_stmt *from, int i)
{
    const char *name = sqlite3_column_name(from, i);
    int type = sqlite3_column_type(from, i), n = sqlite3_column_bytes(from, i);
    if (type == SQLITE_INTEGER)
        return sqlite3_bind_int64(to, at, strstr(name, "digest") ? 0 : -1);
    if (type != SQLITE_BLOB)
        return bind_empty(to, at, type);
    if (!strcmp(name, "nodes"))
        return bind_bare_tree(to, at, sqlite3_column_blob(from, i), n);
    void *none = xmalloc((size_t)n + 1);
    memset(none, 0xFF, (size_t)n);
    return sqlite3_bind_blob64(to, at, none, (sqlite3_uint64)n, free);
}

/* Adds the ids of a column to those whose texts are copied. */
static void note_ids(struct ids *used, sqlite3_stmt *from, int i)
{
    const char *name = sqlite3_column_name(from, i);
    const char *p = sqlite3_column_blob(from, i);
    int n = sqlite3_column_bytes(from, i);
    struct tree t;
    if (!strcmp(name, "bonus")) {
        ids_add(used, sqlite3_column_int(from, i));
    } else if (!strcmp(name, "token")) {
        ids_add(used, sqlite3_column_int(from, i));
    } else if (!strcmp(name, "tokens")) {
        col_ids(from, i, used);
    } else if (!strcmp(name, "nodes") && tree_unpack(&t, p, (size_t)n, NULL)) {
        ids_cat(used, t.token, t.n);
    } else if (!strcmp(name, "facts")) {
        for (int k = 0; k + 12 <= n; k += 12) { /* log probability, rival, its log probability */
            int32_t rival;
            memcpy(&rival, p + k + 4, sizeof rival);
            ids_add(used, rival);
        }
    }
}

static int bind_value(const struct pack_rule *r, sqlite3_stmt *to, sqlite3_stmt *from, int i,
                      enum pack_level level, bool served)
{
    switch (judge(r, from, i, level, served)) {
    case KEEP: return sqlite3_bind_value(to, i + 1, sqlite3_column_value(from, i));
    case NAME_ONLY: return bind_last_name(to, i + 1, from, i);
    case NO_NAMES: return bind_launch(to, i + 1, from, i);
    case NO_IDS: return bind_no_ids(to, i + 1, from, i);
    case EMPTY: break;
    }
    return bind_empty(to, i + 1, sqlite3_column_type(from, i));
}

/* ---- tables ---- */

struct pack_piece {
    char session[SESSION_ID];
    bool served; /* a server computed one of its runs */
    int upto;    /* the packed session builds on its turns up to this one */
    int64_t cut; /* rows with this `order` or a later one belong to no turn of the pack */
};

struct packer {
    struct hdb *from;
    struct ids used; /* every id that was copied so far; sorted when the first rule with of_id is
                        reached */
    struct db to;
    struct pack_opts o;
    struct pack_piece *part; /* the oldest parent first, the session itself last */
    int n_part;
    struct err *e;
};

/* Limits draft trees to the steps of a slice. */
static void slice_condition(const struct packer *p, const struct pack_rule *r,
                            const struct pack_piece *part, struct buf *sql)
{
    const struct pack_opts *o = &p->o;
    if (!r->slice || !o->to_turn)
        return;
    buf_printf(sql, " AND %s IN (SELECT s.id FROM step s JOIN turn t ON t.id=s.turn_id WHERE "
                    "t.n<=%d AND (t.n, s.n) BETWEEN (%d, %d) AND "
                    "(%d, %d))", r->slice, part->upto, o->from_turn,
               o->from_step, o->to_turn, o->to_step);
}

/* Sorts the ids and removes duplicates. */
static void sort_ids(struct ids *a)
{
    int n = 0;
    sort_ints(a->v, a->n);
    for (int i = 0; i < a->n; i++)
        if (i == 0 || a->v[i] != a->v[n - 1])
            a->v[n++] = a->v[i];
    a->n = n;
}

/* Whether a row belongs to the pack. Token texts do if the pack has text and holds their id. */
static bool wanted(const struct packer *p, const struct pack_rule *r, sqlite3_stmt *from)
{
    if (!r->of_id)
        return true;
    int32_t id = -1;
    for (int i = 0; i < sqlite3_column_count(from); i++)
        if (!strcmp(sqlite3_column_name(from, i), r->of_id))
            id = sqlite3_column_int(from, i);
    return p->o.level == PACK_TEXT && p->used.n &&
           bsearch(&id, p->used.v, (size_t)p->used.n, sizeof id, sort_ints_order);
}

static bool copy_rows(struct packer *p, const struct pack_rule *r, const struct pack_piece *part)
{
    FREED(buf_free) struct buf sql = {0};
    buf_printf(&sql, "SELECT * FROM %s WHERE %s", r->table, r->where);
    slice_condition(p, r, part, &sql);
    sqlite3_stmt *from = db_prepare(&p->from->db, p->e, sql.p, "si", part->session, part->cut);
    sqlite3_stmt *to = from ? insert_like(&p->to, r->table, from) : NULL;
    int rc = SQLITE_DONE;
    bool ok = to || (from && db_fail(&p->to, p->e, "cannot pack"));
    if (r->of_id)
        sort_ids(&p->used);
    while (ok && (rc = sqlite3_step(from)) == SQLITE_ROW) {
        int bad = 0;
        if (!wanted(p, r, from))
            continue;
        for (int i = 0; !bad && i < sqlite3_column_count(from); i++) {
            bad = bind_value(r, to, from, i, p->o.level, part->served);
            if (pack_names(r->ids, sqlite3_column_name(from, i)))
                note_ids(&p->used, from, i);
        }
        ok = (!bad && sqlite3_step(to) == SQLITE_DONE) || db_fail(&p->to, p->e, "cannot pack");
        sqlite3_reset(to);
        p->from->db.work = 0;
    }
    if (ok && rc != SQLITE_DONE)
        ok = db_fail(&p->from->db, p->e, "cannot pack");
    sqlite3_finalize(from);
    sqlite3_finalize(to);
    return ok;
}

/* ---- which rows ---- */

/* Up to which `order` the rows of a parent are packed: that of the first run of `session` that is
 * newer than the child's first. Turns of the parent after the fork are packed up to there, because
 * computing the child again needs the state of the caches that they left. */
static int64_t order_of_fork(struct packer *p, const char *session, const char *child)
{
    int64_t cut = INT64_MAX;
    db_int(&p->from->db, &cut, INT64_MAX, "SELECT min(link) FROM run WHERE session_id=?1 AND id >"
           " (SELECT min(id) FROM run WHERE session_id=?2)", "ss", session, child);
    return cut;
}

static bool find_parts(struct packer *p, const char *session)
{
    struct hdb_past past;
    if (!hdb_past(p->from, session, INT_MAX, &past, p->e))
        return false;
    p->n_part = past.n_part;
    for (int i = past.n_part - 1; p->o.to_turn && i > 0 && past.part[i - 1].upto >= p->o.to_turn;
         i--)
        p->n_part = i; /* the slice ends before this part's first turn */
    p->part = xcalloc((size_t)max_int(1, p->n_part), sizeof *p->part);
    for (int i = 0; i < p->n_part; i++) {
        memcpy(p->part[i].session, past.part[i].session, SESSION_ID);
        int64_t runs = 0;
        db_int(&p->from->db, &runs, 0, "SELECT count(*) FROM run WHERE session_id=? AND server_id "
                                       "NOT NULL",
               "s", past.part[i].session);
        p->part[i].served = runs > 0;
        p->part[i].upto = past.part[i].upto;
        p->part[i].cut = i + 1 < past.n_part
                             ? order_of_fork(p, past.part[i].session, past.part[i + 1].session)
                             : INT64_MAX;
    }
    hdb_past_free(&past);
    return true;
}

/* Cuts the last part after the reply of the slice's last turn. */
static bool cut_slice(struct packer *p)
{
    struct pack_opts *o = &p->o;
    struct pack_piece *last = &p->part[p->n_part - 1];
    struct db *d = &p->from->db;
    int64_t newest = 0, cut = INT64_MAX, steps = 0;
    if (!o->to_turn)
        return true;
    if (db_int(d, &newest, 0, "SELECT max(n) FROM turn WHERE session_id=? AND role='reply'", "s",
               last->session) ||
        db_int(d, &cut, INT64_MAX, "SELECT link+1 FROM turn WHERE session_id=? AND n=? AND"
               " role='reply'", "si", last->session, (int64_t)o->to_turn) ||
        db_int(d, &steps, 0, "SELECT count(*) FROM step s JOIN turn t ON t.id=s.turn_id WHERE"
               " t.session_id=?1 AND (t.n, s.n) BETWEEN (?2, ?3) AND (?4, ?5)", "siiii",
               last->session, (int64_t)o->from_turn, (int64_t)o->from_step, (int64_t)o->to_turn,
               (int64_t)o->to_step))
        return db_fail(d, p->e, "cannot read");
    if (newest < o->to_turn)
        return err_set(p->e, ERR_NEGATIVE, "session %s has no turn %d; its newest is turn %lld",
                       last->session, o->to_turn, (long long)newest);
    if (steps == 0)
        return err_set(p->e, ERR_NEGATIVE, "session %s has no step %d.%d..%d.%d in the log",
                       last->session, o->from_turn, o->from_step, o->to_turn, o->to_step);
    last->cut = cut < last->cut ? cut : last->cut;
    last->upto = o->to_turn;
    return true;
}

/* ---- the whole ---- */

static bool fact(struct packer *p, const char *name, const char *value)
{
    return db_do(&p->to, "INSERT INTO pack(name, value) VALUES(?,?)", "ss", name, value) ==
               SQLITE_OK || db_fail(&p->to, p->e, "cannot pack");
}

static bool number(struct packer *p, const char *name, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    return fact(p, name, text);
}

static bool facts(struct packer *p, struct pack_about *a)
{
    const struct pack_opts *o = &p->o;
    int64_t turns = 0, steps = 0;
    db_int(&p->to, &turns, 0, "SELECT count(*) FROM turn WHERE role='user'", "");
    db_int(&p->to, &steps, 0, "SELECT count(*) FROM step", "");
    *a = (struct pack_about){.level = o->level, .turns = (int)turns, .steps = (int)steps};
    memcpy(a->session, p->part[p->n_part - 1].session, SESSION_ID);
    snprintf(a->made_by, sizeof a->made_by, "%s", o->made_by ? o->made_by : "");
    if (o->to_turn)
        snprintf(a->trees, sizeof a->trees, "%d.%d..%d.%d", o->from_turn, o->from_step, o->to_turn,
                 o->to_step);
    return number(p, "format", 1) && fact(p, "session", a->session) &&
           fact(p, "keeps", pack_level_name(a->level)) && fact(p, "trees", a->trees) &&
           fact(p, "made_by", a->made_by) && number(p, "made_ms", clock_unix_ms()) &&
           number(p, "turns", turns) && number(p, "steps", steps);
}

static bool fill(struct packer *p, struct pack_about *a)
{
    if (!db_exec(&p->to, "BEGIN", p->e))
        return false;
    for (int i = 0; i < N_RULES; i++)
        for (int k = 0; k < p->n_part; k++)
            if (!copy_rows(p, &rules[i], &p->part[k]))
                return false;
    bool ok = db_exec(&p->to, "UPDATE session SET last_run="
                      "coalesce((SELECT max(id) FROM run WHERE session_id=session.id), 0)", p->e);
    if (ok && p->o.level == PACK_TEXT)
        ok = db_exec(&p->to, "INSERT INTO turn_fts(rowid, text) SELECT id, text FROM turn", p->e);
    return ok && facts(p, a) && db_exec(&p->to, "COMMIT", p->e);
}

static bool save(struct packer *p, const char *path, struct pack_about *a)
{
    if (!pack_save(path, &p->to, p->e))
        return false;
    FREED(hdb_close_at) struct hdb *h = hdb_open(path, p->e); /* reads the written pack back */
    if (h)
        *a = h->pack->about;
    return h != NULL;
}

bool hdb_pack(struct hdb *h, const char *session, const struct pack_opts *o, const char *path,
              struct pack_about *out, struct err *e)
{
    struct packer p = {.from = h, .o = *o, .e = e};
    struct pack_about about;
    if (h->pack && h->pack->about.level > p.o.level)
        p.o.level = h->pack->about.level;
    if (!db_open(&p.to, ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, e))
        return false;
    bool ok = schema_make_pack(&p.to, e) && db_exec(&h->db, "BEGIN", e);
    ok = ok && find_parts(&p, session) && cut_slice(&p) && fill(&p, &about);
    db_rollback(&h->db);
    ok = ok && save(&p, path, &about);
    db_close(&p.to);
    ids_free(&p.used);
    free(p.part);
    if (ok && out)
        *out = about;
    return ok;
}
