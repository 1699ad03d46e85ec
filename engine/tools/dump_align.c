/* dump_align.c - which rows of a dump's passes belong to which request; see dump.h. */
#include "engine/tools/dump.h"

#include "engine/tools/torch_file.h"

enum { MOST_ROWS = 1 << 22, MOST_POSITION = 1 << 24, MOST_SEQUENCES = 1 << 16 };

/* What a pass says of its rows. */
struct facts {
    int64_t *id, *pos, *len, *pool; /* owned; len, pool: (n_len), (n_pool) of the requests */
    int64_t n, n_pos, n_len, n_pool;
};

static bool ends(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0 && (n == k || s[n - k - 1] == '.');
}

/* The file that was opened last: the vectors of a pass are mostly in one. */
struct last_file {
    const char *path;
    struct torch_file *f;
};

static struct torch_file *open_again(struct last_file *l, const char *path, struct err *e)
{
    if (l->f && strcmp(l->path, path) == 0)
        return l->f;
    torch_close(l->f);
    *l = (struct last_file){path, torch_open(path, e)};
    return l->f;
}

/* A vector of whole numbers of the pass; *n 0: it has none of this name. */
static bool vector(const struct dump_pass *p, struct last_file *last, const char *name,
                   int64_t **out, int64_t *n, struct err *e)
{
    const struct dump_item *it = NULL;
    for (int i = 0; i < p->n && !it; i++)
        if (ends(p->item[i].name, name))
            it = &p->item[i];
    if (!it)
        return true;
    struct torch_file *f = open_again(last, it->file, e);
    if (!f)
        return false;
    const struct torch_entry *t = torch_find(f, it->entry);
    bool ok = (t && t->count <= MOST_ROWS) ||
              err_set(e, ERR_USAGE, "pass %d: %s has more than %d numbers", p->number, name,
                      (int)MOST_ROWS);
    if (ok) {
        *out = xcalloc((size_t)t->count + 1, sizeof **out);
        ok = torch_wholes(f, t, *out, e);
        *n = t->count;
    }
    return ok;
}

static bool read_facts(const struct dump_pass *p, struct facts *f, struct err *e)
{
    *f = (struct facts){0};
    struct last_file l = {0};
    bool ok = vector(p, &l, "input_ids", &f->id, &f->n, e) &&
              vector(p, &l, "positions", &f->pos, &f->n_pos, e) &&
              vector(p, &l, "seq_lens", &f->len, &f->n_len, e) &&
              vector(p, &l, "req_pool_indices", &f->pool, &f->n_pool, e);
    torch_close(l.f);
    return ok;
}

static void free_facts(struct facts *f)
{
    FREE(f->id, f->pos, f->len, f->pool);
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct dump_sequence *new_sequence(struct dump_sequences *s, int64_t key)
{
    struct dump_sequence *q = APPEND(s->v, s->n);
    *q = (struct dump_sequence){.key = key};
    return q;
}

/* Whether a sequence has rows in this pass already. */
static bool in_pass(const struct dump_sequence *q, int pass)
{
    return q->n > 0 && q->rows[q->n - 1].pass == pass;
}

/* The request that rows from `position` on continue: of the same row of the engine's pool, or, if
 * that is not known, the only one that is exactly so long, or the only one that is at least so
 * long (drafted tokens were rejected). NULL: there is none, or *unclear. */
static struct dump_sequence *continued(struct dump_sequences *s, int pass, int position,
                                       int64_t key, bool *unclear)
{
    struct dump_sequence *exact = NULL, *longer = NULL;
    int n_exact = 0, n_longer = 0;
    for (int i = s->n - 1; i >= 0; i--) {
        struct dump_sequence *q = &s->v[i];
        if (key >= 0 && q->key == key) { /* the latest of that row */
            *unclear = in_pass(q, pass);
            return q->length >= position && !*unclear ? q : NULL;
        }
        if (key >= 0 || in_pass(q, pass))
            continue;
        n_exact += q->length == position;
        n_longer += q->length >= position;
        exact = q->length == position ? q : exact;
        longer = q->length >= position ? q : longer;
    }
    *unclear = key < 0 && (n_exact > 1 || (n_exact == 0 && n_longer > 1));
    return *unclear ? NULL : n_exact ? exact : longer;
}

static void add_rows(struct dump_sequence *q, struct dump_rows r, const int64_t *id)
{
    r.token = xcalloc((size_t)r.n + 1, sizeof *r.token);
    for (int i = 0; i < r.n; i++)
        r.token[i] = (int32_t)id[i];
    *APPEND(q->rows, q->n) = r;
    q->length = r.position + r.n;
}

/* Gives rows [r.row, r.row + r.n) to their request. */
static bool place_rows(struct dump_sequences *s, struct dump_rows r, int number,
                       const struct facts *f, struct err *e)
{
    int64_t key = r.request < f->n_pool ? f->pool[r.request] : -1;
    bool unclear = false;
    struct dump_sequence *q = NULL;
    if (r.position == 0 && s->n == MOST_SEQUENCES)
        return err_set(e, ERR_USAGE, "more than %d requests", (int)MOST_SEQUENCES);
    q = r.position == 0 ? new_sequence(s, key) : continued(s, r.pass, r.position, key, &unclear);
    if (!q) {
        *(unclear ? &s->unclear : &s->missing) += r.n;
        if (!unclear && !s->first_missing[0])
            snprintf(s->first_missing, sizeof s->first_missing,
                     "pass %d begins at position %d: tokens 0 to %d are not in the dump", number,
                     r.position, r.position - 1);
        return true;
    }
    add_rows(q, r, f->id + r.row);
    s->rows += r.n;
    s->longest = max_int(s->longest, q->length);
    return true;
}

static bool check_numbers(struct dump_sequences *s, int number, const struct facts *f,
                          struct err *e)
{
    for (int64_t i = 0; i < f->n; i++) {
        if (f->id[i] < 0 || f->id[i] > INT32_MAX || f->pos[i] < 0 || f->pos[i] > MOST_POSITION)
            return err_set(e, ERR_USAGE, "pass %d, row %d: id %lld at position %lld", number,
                           (int)i, (long long)f->id[i], (long long)f->pos[i]);
        if (f->id[i] > s->most_token)
            s->most_token = (int32_t)f->id[i];
    }
    return true;
}

/* Cuts a pass into the rows of its requests: where positions do not follow each other, and behind
 * a request's last token. */
static bool cut(struct dump_sequences *s, int pass, int number, const struct facts *f,
                struct err *e)
{
    int request = 0;
    bool ok = check_numbers(s, number, f, e);
    for (int64_t at = 0, n; ok && at < f->n; at += n, request++) {
        for (n = 1; at + n < f->n && f->pos[at + n] == f->pos[at + n - 1] + 1; n++)
            if (request + 1 < f->n_len && f->pos[at + n - 1] == f->len[request] - 1)
                break;
        ok = place_rows(s, (struct dump_rows){.pass = pass, .row = (int)at, .n = (int)n,
                                              .request = request, .position = (int)f->pos[at]},
                        number, f, e);
    }
    return ok;
}

bool dump_align(const struct dump *d, struct dump_sequences *s, struct err *e)
{
    bool ok = true;
    *s = (struct dump_sequences){0};
    for (int i = 0; ok && i < d->n; i++) {
        struct facts f;
        ok = read_facts(&d->pass[i], &f, e);
        if (ok && (f.n == 0 || f.n_pos == 0))
            s->no_ids++;
        else if (ok && f.n_pos != f.n)
            ok = err_set(e, ERR_USAGE, "pass %d has %lld input ids and %lld positions",
                         d->pass[i].number, (long long)f.n, (long long)f.n_pos);
        else
            ok = ok && cut(s, i, d->pass[i].number, &f, e);
        free_facts(&f);
    }
    if (ok && s->no_ids == d->n)
        ok = err_set(e, ERR_USAGE, "no pass has both input_ids and positions, by which rows are "
                     "aligned: record them, too");
    if (!ok)
        dump_sequences_free(s);
    return ok;
}

void dump_sequences_free(struct dump_sequences *s)
{
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < s->v[i].n; k++)
            free(s->v[i].rows[k].token);
        free(s->v[i].rows);
    }
    free(s->v);
    *s = (struct dump_sequences){0};
}
