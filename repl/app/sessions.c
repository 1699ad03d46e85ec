/* sessions.c - see sessions.h. */
#include "repl/app/sessions.h"

#include "kernels/ascii.h"

static bool add_row(const struct session_row *r, void *arg)
{
    struct session_list *l = arg;
    struct session_row *to = APPEND(l->row, l->n);
    *to = *r;
    to->title = r->title ? xstrdup(r->title) : NULL;
    to->model = r->model ? xstrdup(r->model) : NULL;
    return true;
}

static void show_all(struct session_list *l)
{
    for (l->n_shown = 0; l->n_shown < l->n; l->n_shown++)
        l->shown[l->n_shown] = l->n_shown;
}

/* ---- which session a turn belongs to --------------------------------------------------------- */

struct owners {
    struct session_list *list;
    int *by_id; /* (n) rows in the order of ids */
    int at;     /* the place in by_id of the session read last */
};

static int compare_rows(const void *a, const void *b, void *arg)
{
    const struct session_list *l = arg;
    return strcmp(l->row[*(const int *)a].id, l->row[*(const int *)b].id);
}

/* The sessions are read in the order of ids, like by_id. */
static bool add_owner(int64_t turn, const char *session, void *arg)
{
    struct owners *o = arg;
    struct session_list *l = o->list;
    while (o->at < l->n && strcmp(l->row[o->by_id[o->at]].id, session) < 0)
        o->at++;
    if (o->at == l->n || strcmp(l->row[o->by_id[o->at]].id, session) != 0)
        return true; /* a session that began after the list was read */
    *APPEND(l->owner, l->n_owner) = (struct turn_owner){turn, o->by_id[o->at]};
    return true;
}

static int by_turn(const void *a, const void *b)
{
    int64_t x = ((const struct turn_owner *)a)->turn, y = ((const struct turn_owner *)b)->turn;
    return (x > y) - (x < y);
}

static bool read_owners(struct session_list *l, struct hdb *d, struct err *e)
{
    struct owners o = {.list = l, .by_id = xcalloc((size_t)l->n + 1, sizeof *o.by_id)};
    for (int i = 0; i < l->n; i++)
        o.by_id[i] = i;
    qsort_r(o.by_id, (size_t)l->n, sizeof *o.by_id, compare_rows, l);
    bool ok = hdb_turn_ids(d, add_owner, &o, e) >= 0;
    if (l->n_owner)
        qsort(l->owner, (size_t)l->n_owner, sizeof *l->owner, by_turn);
    free(o.by_id);
    return ok;
}

/* ---- titles -------------------------------------------------------------------------------- */

static int by_title(const void *a, const void *b, void *arg)
{
    const struct session_list *l = arg;
    const char *x = l->row[*(const int *)a].title, *y = l->row[*(const int *)b].title;
    return strcmp(x ? x : "", y ? y : "");
}

static void find_twins(struct session_list *l)
{
    FREED(free_at) int *order = xcalloc((size_t)l->n + 1, sizeof *order);
    for (int i = 0; i < l->n; i++)
        order[i] = i;
    qsort_r(order, (size_t)l->n, sizeof *order, by_title, l);
    for (int i = 1; i < l->n; i++)
        if (by_title(&order[i - 1], &order[i], l) == 0)
            l->twin[order[i - 1]] = l->twin[order[i]] = true;
}

struct said_next {
    const char *title;
    char *text;
};

/* The first line of the first message that the title does not show already. */
static bool said_next(const struct turn_row *r, void *arg)
{
    struct said_next *s = arg;
    const char *text = r->text ? r->text : "";
    text += strspn(text, " \t\r\n");
    size_t n = strcspn(text, "\r\n");
    if (!r->is_user || n == 0 || (n >= strlen(s->title) && strncmp(text, s->title,
        strlen(s->title)) == 0))
        return true;
    s->text = xasprintf("%.*s", (int)n, text);
    return false;
}

const char *session_list_title(struct session_list *l, struct hdb *d, int row)
{
    const char *own = l->row[row].title ? l->row[row].title : "";
    struct said_next s = {own, NULL};
    struct err e;
    if (!l->twin[row] || !*own)
        return own;
    if (!l->title[row]) {
        hdb_turns(d, l->row[row].id, 0, said_next, &s, &e);
        l->title[row] = s.text ? xasprintf("%s - %s", own, s.text) : xstrdup(own);
        free(s.text);
    }
    return l->title[row];
}

bool session_list_open(struct session_list *l, struct hdb *d, struct err *e)
{
    *l = (struct session_list){0};
    bool ok = hdb_sessions(d, NULL, NULL, 0, add_row, l, e) >= 0;
    l->sums = xcalloc((size_t)l->n + 1, sizeof *l->sums);
    l->summed = xcalloc((size_t)l->n + 1, sizeof *l->summed);
    l->title = xcalloc((size_t)l->n + 1, sizeof *l->title);
    l->twin = xcalloc((size_t)l->n + 1, sizeof *l->twin);
    find_twins(l);
    l->shown = xcalloc((size_t)l->n + 1, sizeof *l->shown);
    show_all(l);
    return ok && read_owners(l, d, e);
}

void session_list_free(struct session_list *l)
{
    for (int i = 0; i < l->n; i++) {
        session_row_free(&l->row[i]);
        free(l->title[i]);
    }
    FREE(l->title, l->twin, l->row, l->sums, l->summed, l->shown, l->owner);
    *l = (struct session_list){0};
}

/* ---- the filter ------------------------------------------------------------------------------ */

/* Calls fn with each word until it returns false; returns its last result. */
static bool each_word(const char *text, bool (*fn)(const char *word, const void *arg),
                      const void *arg)
{
    bool go = true;
    for (const char *at = text; go && *(at += strspn(at, " \t")); at += strcspn(at, " \t")) {
        FREED(free_at) char *word = xasprintf("%.*s", (int)strcspn(at, " \t"), at);
        go = fn(word, arg);
    }
    return go;
}

struct session_match {
    const struct session_row *row;
    int number;
};

static bool word_fits(const char *word, const void *arg)
{
    const struct session_match *c = arg;
    const struct session_row *r = c->row;
    const char *at = word + (word[0] == '#');
    int number;
    return (r->title && ascii_contains(r->title, word)) ||
           (r->model && ascii_contains(r->model, word)) ||
           ascii_same_n(r->id, word, strlen(word)) ||
           (int_at(&at, &number) && !*at && number == c->number);
}

static bool not_in(const char *word, const void *text)
{
    return !ascii_contains(text, word);
}

bool filter_touches(const char *filter, const char *text)
{
    return !each_word(filter, not_in, text);
}

struct hits {
    const struct session_list *list;
    bool *row; /* (n) it has a turn with the words */
};

static bool add_hit(int64_t turn, const char *, void *arg)
{
    struct hits *h = arg;
    struct turn_owner key = {turn, 0}, *o = NULL;
    if (h->list->n_owner)
        o = bsearch(&key, h->list->owner, (size_t)h->list->n_owner, sizeof key, by_turn);
    if (o)
        h->row[o->row] = true;
    return true;
}

bool session_list_filter(struct session_list *l, struct hdb *d, const char *filter, struct err *e)
{
    show_all(l);
    if (!filter[strspn(filter, " \t")])
        return true;
    struct hits h = {l, xcalloc((size_t)l->n + 1, sizeof *h.row)};
    bool ok = hdb_turns_with(d, filter, add_hit, &h, e) >= 0;
    l->n_shown = 0;
    for (int i = 0; i < l->n; i++)
        if (h.row[i] || each_word(filter, word_fits,
                                  &(struct session_match){&l->row[i], session_list_number(l, i)}))
            l->shown[l->n_shown++] = i;
    free(h.row);
    return ok;
}

int session_list_number(const struct session_list *l, int row)
{
    return l->row[row].number;
}

const struct session_sums *session_list_sums(struct session_list *l, struct hdb *d, int row)
{
    struct err e;
    if (!l->summed[row])
        hdb_session_sums(d, l->row[row].id, &l->sums[row], &e);
    l->summed[row] = true;
    return &l->sums[row];
}
