/* case_read.c - a case as JSON, both ways; see case.h. */

#include "engine/tools/case.h"
#include "kernels/json.h"
#include "kernels/json_read.h"

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
    struct err *e;
    const char *where; /* of the object that is read: "requests", "groups" */
    int i;             /* its index; -1: the case itself */
};

static bool refuse(const struct reader *r, const char *key, const char *expected)
{
    if (r->i < 0)
        return err_set(r->e, ERR_USAGE, "\"%.40s\": expected %s", key, expected);
    return err_set(r->e, ERR_USAGE, "%s[%d], \"%.40s\": expected %s", r->where, r->i, key,
                   expected);
}

/* A whole number of [least, most]; without the key *out stays. */
static bool take_int(const struct reader *r, const json_t *o, const char *key, int64_t least,
                     int64_t most, int *out)
{
    const json_t *v = json_object_get(o, key);
    char expected[80];
    if (!v || json_is_null(v))
        return true;
    if (json_is_integer(v) && json_integer_value(v) >= least && json_integer_value(v) <= most) {
        *out = (int)json_integer_value(v);
        return true;
    }
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)least,
             (long long)most);
    return refuse(r, key, expected);
}

/* A name; characters that are not printable ASCII become '?'. */
static bool take_name(const struct reader *r, const json_t *o, const char *key, char *out,
                      size_t size)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return true;
    if (!json_is_string(v))
        return refuse(r, key, "a string");
    snprintf(out, size, "%s", json_string_value(v));
    for (char *s = out; *s; s++)
        if (*s < ' ' || *s > '~')
            *s = '?';
    return true;
}

static bool ints_of(const struct reader *r, const json_t *v, const char *key, int64_t most,
                    struct case_ints *out)
{
    size_t i;
    json_t *one;
    if (!v || json_is_null(v))
        return true;
    if (!json_is_array(v) || json_array_size(v) > (size_t)most)
        return refuse(r, key, "an array of whole numbers, no longer than its rows or cells");
    out->given = true;
    out->n = (int)json_array_size(v);
    out->v = xcalloc((size_t)out->n + 1, sizeof *out->v);
    json_array_foreach(v, i, one) {
        bool flag = json_is_boolean(one);
        if (!flag && (!json_is_integer(one) || json_integer_value(one) < INT32_MIN ||
                      json_integer_value(one) > INT32_MAX))
            return refuse(r, key, "whole numbers of 32 bits");
        out->v[i] = flag ? json_is_true(one) : (int32_t)json_integer_value(one);
    }
    return true;
}

enum { MOST_IDS = 1 << 22 }; /* in one array */

/* An array with one entry a row or request, or none at all. */
static bool take_ints(const struct reader *r, const json_t *o, const char *key, int n,
                      struct case_ints *out)
{
    char expected[80];
    if (!ints_of(r, json_object_get(o, key), key, MOST_IDS, out))
        return false;
    if (!out->given || out->n == n || (out->n == 0 && n > 0)) {
        out->given = out->n > 0 || (out->given && n == 0);
        return true;
    }
    snprintf(expected, sizeof expected, "%d numbers, one for each, not %d", n, out->n);
    return refuse(r, key, expected);
}

/* n < 0: any number of arrays. */
static bool take_lists(const struct reader *r, const json_t *o, const char *key, int n,
                       struct case_lists *out)
{
    const json_t *v = json_object_get(o, key);
    size_t i;
    json_t *one;
    char expected[80];
    if (!v || json_is_null(v))
        return true;
    snprintf(expected, sizeof expected, "an array of %d arrays, one for each", n);
    if (!json_is_array(v) || json_array_size(v) > MOST_IDS ||
        (n >= 0 && json_array_size(v) != (size_t)n))
        return refuse(r, key, n < 0 ? "an array of arrays" : expected);
    out->given = true;
    out->n = (int)json_array_size(v);
    out->v = xcalloc((size_t)out->n + 1, sizeof *out->v);
    json_array_foreach(v, i, one)
        if (!json_is_array(one) || !ints_of(r, one, key, MOST_IDS, &out->v[i]))
            return json_is_array(one) ? false : refuse(r, key, "arrays in the array");
    return true;
}

static bool take_requests(struct attn_case *c, const json_t *doc, struct err *e)
{
    struct reader whole = {e, "", -1};
    const json_t *all = json_object_get(doc, "requests");
    size_t n = json_array_size(all);
    int64_t rows = 0;
    if (!json_is_array(all) || n > CASE_REQUESTS)
        return refuse(&whole, "requests", "an array of at most 1024 requests");
    c->request = xcalloc(n + 1, sizeof *c->request);
    c->n_request = (int)n;
    for (size_t i = 0; i < n; i++) {
        struct case_request *q = &c->request[i];
        const json_t *o = json_array_get(all, i);
        struct reader r = {e, "requests", (int)i};
        if (!json_is_object(o))
            return refuse(&r, "prefix_len", "an object with prefix_len and q_len");
        q->prefix_len = q->q_len = q->kv_len = q->pool_row = -1;
        if (!take_int(&r, o, "prefix_len", 0, 1 << 30, &q->prefix_len) ||
            !take_int(&r, o, "q_len", 0, CASE_ROWS, &q->q_len) ||
            !take_int(&r, o, "kv_len", 0, INT32_MAX, &q->kv_len) ||
            !take_int(&r, o, "pool_row", 0, INT32_MAX, &q->pool_row))
            return false;
        if (q->prefix_len < 0 || q->q_len < 0)
            return refuse(&r, q->prefix_len < 0 ? "prefix_len" : "q_len", "a whole number");
        if (q->kv_len < 0)
            q->kv_len = q->prefix_len + (c->mode == PLAN_FROZEN ? 0 : q->q_len);
        q->row0 = (int)rows;
        rows += q->q_len;
        if (rows > CASE_ROWS)
            return refuse(&r, "q_len", "at most 65536 rows in all");
    }
    c->n_row = (int)rows;
    return true;
}

static bool take_pool(const struct reader *r, const json_t *o, const char *key, enum pool_id *out)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (!json_object_get(o, key))
        return true;
    for (enum pool_id p = 0; s && p < N_POOLS; p++)
        if (!strcmp(s, pool_name(p))) {
            *out = p;
            return true;
        }
    return refuse(r, key, "full, swa or draft");
}

static const char *const part_name[] = {"whole", "prefix", "new"};

static bool take_choice(const struct reader *r, const json_t *o, const char *key,
                        const char *const *names, int n, const char *expected, int *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return true;
    for (int i = 0; i < n && json_is_string(v); i++)
        if (!strcmp(json_string_value(v), names[i])) {
            *out = i;
            return true;
        }
    return refuse(r, key, expected);
}

static bool take_group(struct attn_case *c, const json_t *o, int i, struct err *e)
{
    static const char *const unit[] = {"page", "slot"};
    struct reader r = {e, "groups", i};
    struct case_group *g = &c->group[c->n_group++];
    int slots = 0, part = PART_WHOLE;
    *g = (struct case_group){.page_size = 1};
    if (!json_is_object(o))
        return refuse(&r, "tables", "an object with tables");
    if (!take_name(&r, o, "name", g->name, sizeof g->name) ||
        !take_pool(&r, o, "space", &g->space))
        return false;
    g->reads = g->space;
    if (!g->name[0])
        snprintf(g->name, sizeof g->name, "%s", pool_name(g->space));
    bool ok = take_pool(&r, o, "reads", &g->reads) &&
              take_int(&r, o, "page_size", 1, 65536, &g->page_size);
    g->pool_page_size = g->page_size;
    return ok && take_int(&r, o, "pool_page_size", 1, 65536, &g->pool_page_size) &&
           take_int(&r, o, "window", -(1 << 30), 1 << 30, &g->window) &&
           (g->layer_window = g->window, true) &&
           take_int(&r, o, "layer_window", -(1 << 30), 1 << 30, &g->layer_window) &&
           take_int(&r, o, "null", INT32_MIN, INT32_MAX, &g->null) &&
           take_int(&r, o, "pool_pages", 0, 1 << 30, &g->pool_pages) &&
           take_choice(&r, o, "unit", unit, 2, "page or slot", &slots) &&
           take_choice(&r, o, "part", part_name, 3, "whole, prefix or new", &part) &&
           (g->slots = slots, g->part = (enum case_part)part, true) &&
           take_lists(&r, o, "tables", c->n_request, &g->tables) &&
           (g->tables.given || refuse(&r, "tables", "an array for each request")) &&
           take_lists(&r, o, "held", c->n_request, &g->held) &&
           take_ints(&r, o, "kv_start", c->n_request, &g->start) &&
           take_ints(&r, o, "write", c->n_row, &g->write) &&
           take_ints(&r, o, "lo", c->n_row, &g->lo) && take_ints(&r, o, "hi", c->n_row, &g->hi) &&
           take_lists(&r, o, "expand", c->n_row, &g->expand) &&
           ints_of(&r, json_object_get(o, "layers"), "layers", 4096, &g->layers);
}

/* {"row": 3, "group": "swa", "keys": [...]}: what a kernel reads in all. */
static bool take_claims(struct attn_case *c, const json_t *doc, struct err *e)
{
    const json_t *all = json_object_get(doc, "claim");
    struct reader whole = {e, "", -1};
    if (all && !json_is_array(all))
        return refuse(&whole, "claim", "an array");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *o = json_array_get(all, i);
        struct reader r = {e, "claim", (int)i};
        const char *name = json_string_value(json_object_get(o, "group"));
        struct case_group *g = NULL;
        int row = -1;
        for (int k = 0; k < c->n_group && name; k++)
            if (!strcmp(c->group[k].name, name))
                g = &c->group[k];
        if (!g)
            return refuse(&r, "group", "the name of a group");
        if (!take_int(&r, o, "row", 0, c->n_row - 1, &row) || row < 0)
            return row < 0 && !e->msg[0] ? refuse(&r, "row", "a row") : false;
        if (!g->claim.given) {
            g->claim = (struct case_lists){xcalloc((size_t)c->n_row + 1, sizeof *g->claim.v),
                                           c->n_row, true};
        }
        if (g->claim.v[row].given)
            return refuse(&r, "row", "each row of a group once");
        if (!ints_of(&r, json_object_get(o, "keys"), "keys", MOST_IDS, &g->claim.v[row]))
            return false;
    }
    return true;
}

/* An array of swa slots, one for each full slot, or of pairs. */
static bool take_map(struct attn_case *c, const json_t *doc, struct err *e)
{
    struct reader r = {e, "", -1};
    const json_t *v = json_object_get(doc, "full_to_swa");
    struct case_ints dense = {0};
    if (!json_is_array(v) || json_is_array(json_array_get(v, 0))) {
        if (!take_lists(&r, doc, "full_to_swa", -1, &c->map))
            return false;
        for (int i = 0; i < c->map.n; i++)
            if (c->map.v[i].n != 2)
                return refuse(&r, "full_to_swa", "pairs, or a number for each full slot");
        return true;
    }
    if (!ints_of(&r, v, "full_to_swa", MOST_IDS, &dense)) {
        free(dense.v);
        return false;
    }
    c->map = (struct case_lists){xcalloc((size_t)dense.n + 1, sizeof *c->map.v), 0, true};
    for (int i = 0; i < dense.n; i++)
        if (dense.v[i] > 0) {
            struct case_ints *p = &c->map.v[c->map.n++];
            *p = (struct case_ints){xcalloc(2, sizeof *p->v), 2, true};
            p->v[0] = i;
            p->v[1] = dense.v[i];
        }
    free(dense.v);
    return true;
}

static bool take_tree(struct attn_case *c, const json_t *doc, struct err *e)
{
    struct reader r = {e, "", -1};
    int64_t mask = 0;
    if (!take_ints(&r, doc, "row_starts", c->n_request + 1, &c->row_start) ||
        !take_ints(&r, doc, "positions", c->n_row, &c->position) ||
        !take_ints(&r, doc, "parents", c->n_row, &c->parent) ||
        !take_ints(&r, doc, "cells", c->n_row, &c->cell) ||
        !take_lists(&r, doc, "seen", c->n_row, &c->seen) ||
        !ints_of(&r, json_object_get(doc, "mask"), "mask", MOST_IDS, &c->mask))
        return false;
    for (int b = 0; b < c->n_request; b++) {
        int64_t q = c->request[b].q_len;
        c->request[b].mask0 = mask;
        mask += q * (c->request[b].prefix_len + q);
        if (case_has_tree(c) && q > CASE_TREE) {
            struct reader at = {e, "requests", b};
            return refuse(&at, "q_len", "at most 1024 rows of a tree");
        }
    }
    return !c->mask.given || c->mask.n == mask ||
           refuse(&r, "mask", "q_len * (prefix_len + q_len) numbers of each request");
}

static bool take_case(struct attn_case *c, const json_t *doc, struct err *e)
{
    struct reader r = {e, "", -1};
    const json_t *groups = json_object_get(doc, "groups");
    const char *mode = json_string_value(json_object_get(doc, "mode"));
    int version = 0;
    if (!json_is_object(doc))
        return err_set(e, ERR_USAGE, "expected a JSON object");
    if (!take_int(&r, doc, "aerie_case", 1, 1, &version))
        return false;
    if (!version)
        return refuse(&r, "aerie_case", "1: this is no case");
    int m = 0;
    while (mode && m < N_MODES && strcmp(mode, plan_mode_name((enum plan_mode)m)) != 0)
        m++;
    if (!mode || m == N_MODES || m == PLAN_BLOCK)
        return refuse(&r, "mode", "extend, decode, verify, draft, draft-extend or frozen");
    c->mode = (enum plan_mode)m;
    if (!take_name(&r, doc, "engine", c->engine, sizeof c->engine) ||
        !take_name(&r, doc, "version", c->version, sizeof c->version) ||
        !take_name(&r, doc, "backend", c->backend, sizeof c->backend) ||
        !take_requests(c, doc, e) || !take_tree(c, doc, e) || !take_map(c, doc, e))
        return false;
    if (!json_is_array(groups) || json_array_size(groups) < 1 ||
        json_array_size(groups) > CASE_GROUPS)
        return refuse(&r, "groups", "an array of 1 to 16 groups of layers");
    for (size_t i = 0; i < json_array_size(groups); i++)
        if (!take_group(c, json_array_get(groups, i), (int)i, e))
            return false;
    return take_claims(c, doc, e);
}

static json_t *parse(const char *text, size_t n, struct err *e)
{
    json_error_t why = {0};
    json_t *doc = json_parse(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!doc) {
        for (char *s = why.text; *s; s++)
            if (*s < ' ' || *s > '~')
                *s = '?';
        err_set(e, ERR_USAGE, "no JSON: line %d: %.150s", why.line, why.text);
    }
    return doc;
}

static bool read_doc(struct attn_case *c, const json_t *doc, struct err *e)
{
    struct err mine = {0};
    *c = (struct attn_case){0};
    bool ok = take_case(c, doc, &mine);
    if (!ok) {
        case_free(c);
        if (e)
            *e = mine;
    }
    return ok;
}

bool case_read(struct attn_case *c, const char *text, size_t n, struct err *e)
{
    json_t *doc = parse(text, n, e);
    *c = (struct attn_case){0};
    bool ok = doc && read_doc(c, doc, e);
    json_decref(doc);
    return ok;
}

int case_each(const char *text, size_t n, bool (*fn)(struct attn_case *c, int i, void *arg),
              void *arg, struct err *e)
{
    FREED(json_decrefp) json_t *doc = parse(text, n, e);
    const json_t *plans = json_object_get(doc, "plans");
    bool one = !json_is_integer(json_object_get(doc, "aerie_plan")), ok = doc != NULL;
    int count = 0, all = one ? 1 : (int)json_array_size(plans);
    for (int i = 0; i < all && ok; i++) {
        struct attn_case c;
        const json_t *o = one ? doc : json_object_get(json_array_get(plans, (size_t)i), "case");
        if (!o) /* a plan of a block */
            continue;
        ok = read_doc(&c, o, e);
        if (!ok && !one)
            err_prefix(e, "plans[%d], \"case\"", i);
        bool more = ok && fn(&c, i, arg);
        if (ok)
            case_free(&c);
        count += ok;
        if (!more)
            break;
    }
    return ok ? count : -1;
}

void case_ints_free(struct case_ints *a)
{
    free(a->v);
    *a = (struct case_ints){0};
}

void case_lists_free(struct case_lists *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->v[i].v);
    free(l->v);
    *l = (struct case_lists){0};
}

void case_group_free(struct case_group *g)
{
    struct case_lists *const lists[] = {&g->tables, &g->held, &g->expand, &g->claim};
    struct case_ints *const ints[] = {&g->start, &g->write, &g->lo, &g->hi, &g->layers};
    for (size_t k = 0; k < LEN(lists); k++)
        case_lists_free(lists[k]);
    for (size_t k = 0; k < LEN(ints); k++)
        case_ints_free(ints[k]);
}

void case_free(struct attn_case *c)
{
    for (int i = 0; i < c->n_group; i++)
        case_group_free(&c->group[i]);
    case_lists_free(&c->seen);
    case_lists_free(&c->map);
    FREE(c->row_start.v, c->position.v, c->parent.v, c->cell.v, c->mask.v, c->request);
    *c = (struct attn_case){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_ints(struct buf *out, const char *key, const struct case_ints *a)
{
    if (a->given)
        jput_kints(out, key, a->v, a->n);
}

static void put_lists(struct buf *out, const char *key, const struct case_lists *a)
{
    if (!a->given)
        return;
    JPUT_KIN(out, key, '[');
    for (int i = 0; i < a->n; i++)
        jput_ints(out, a->v[i].v, a->v[i].n);
}

static void put_group(struct buf *out, const struct case_group *g)
{
    JPUT_IN(out, '{');
    jput_fields(out, "%s{name}%s{space}%d{page_size}%d{window}%s{unit}%d{null}", g->name,
                pool_name(g->space), g->page_size, g->window, g->slots ? "slot" : "page", g->null);
    if (g->reads != g->space)
        jput_kstr(out, "reads", pool_name(g->reads));
    if (g->pool_page_size != g->page_size)
        jput_kint(out, "pool_page_size", g->pool_page_size);
    if (g->layer_window != g->window)
        jput_kint(out, "layer_window", g->layer_window);
    if (g->pool_pages)
        jput_kint(out, "pool_pages", g->pool_pages);
    if (g->part)
        jput_kstr(out, "part", part_name[g->part]);
    put_ints(out, "layers", &g->layers);
    put_ints(out, "kv_start", &g->start);
    put_lists(out, "tables", &g->tables);
    put_lists(out, "held", &g->held);
    put_ints(out, "lo", &g->lo);
    put_ints(out, "hi", &g->hi);
    put_lists(out, "expand", &g->expand);
    put_ints(out, "write", &g->write);
}

static void put_claims(struct buf *out, const struct attn_case *c)
{
    bool any = false;
    for (int i = 0; i < c->n_group; i++)
        for (int r = 0; r < c->group[i].claim.n; r++)
            if (c->group[i].claim.v[r].given) {
                if (!any)
                    jput_kopen(out, "claim", '[');
                any = true;
                JPUT_IN(out, '{');
                jput_fields(out, "%d{row}%s{group}", r, c->group[i].name);
                put_ints(out, "keys", &c->group[i].claim.v[r]);
            }
    if (any)
        jput_close(out, ']');
}

void case_json(const struct attn_case *c, struct buf *out)
{
    JPUT_IN(out, '{');
    jput_kint(out, "aerie_case", 1);
    for (int i = 0; i < 3; i++) {
        const char *const about[][2] = {
            {"engine", c->engine}, {"version", c->version}, {"backend", c->backend}};
        if (about[i][1][0])
            jput_kstr(out, about[i][0], about[i][1]);
    }
    jput_kstr(out, "mode", plan_mode_name(c->mode));
    jput_kopen(out, "requests", '[');
    for (int b = 0; b < c->n_request; b++) {
        const struct case_request *q = &c->request[b];
        JPUT_IN(out, '{');
        jput_fields(out, "%d{prefix_len}%d{q_len}", q->prefix_len, q->q_len);
        if (!case_kv_follows(c, b))
            jput_kint(out, "kv_len", q->kv_len);
        if (q->pool_row >= 0)
            jput_kint(out, "pool_row", q->pool_row);
    }
    jput_close(out, ']');
    put_ints(out, "row_starts", &c->row_start);
    put_ints(out, "positions", &c->position);
    put_ints(out, "parents", &c->parent);
    put_ints(out, "mask", &c->mask);
    put_ints(out, "cells", &c->cell);
    put_lists(out, "seen", &c->seen);
    jput_kopen(out, "groups", '[');
    for (int i = 0; i < c->n_group; i++)
        put_group(out, &c->group[i]);
    jput_close(out, ']');
    put_lists(out, "full_to_swa", &c->map);
    put_claims(out, c);
}
