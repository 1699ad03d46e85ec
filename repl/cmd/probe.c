/* probe.c - /layers, /attn and /top: one step run with taps.
 *
 * The engine's thread computes the step again after its present work and posts EV_PROBE, for which
 * both faces call app_show_probe(). */
#include <limits.h>
#include <math.h>

#include "repl/cmd/cmd.h"
#include "repl/cmd/views.h"

enum { TOKEN_CELLS = 18, BAR = 20, TOP_POSITIONS = 10, TOP_PAGES = 6, HEADS = 16, HEAD_TOP = 3 };

/* ---- asking ---------------------------------------------------------------------------------- */

static const char *const name_of[] = {"layers", "attn", "top"};

/* Requests a probe of the step at the address; turn 0: the step of /at, else the newest. */
static bool ask(struct cmd_call *c, enum probe_view what, struct probe_ask *x)
{
    struct app *a = c->app;
    struct err *e = c->e;
    struct step_view v;
    struct probe_want *w = &a->want[a->n_want];
    if (!cmd_needs(c, VIEW_PROBE) || !cmd_needs(c, VIEW_TREES))
        return false;
    if (a->n_want == MAX_WANTS)
        return err_set(e, ERR_USAGE, "%d steps are waiting to be computed already", MAX_WANTS);
    if (x->turn == 0 && !app_newest_step(a, &v, e))
        return false;
    if (x->turn == 0) {
        x->turn = v.turn;
        x->step = v.step;
    }
    if (!app_paused_in(a, x->turn, x->step, &v) &&
        !a->backend->steps->of_step(a->backend, x->turn, x->step, &v)) {
        if (!app_find_step(a, x->turn, x->step, &v, e))
            return false;
        x->past = app_logged_step(a, x->turn, x->step, e);
        if (!x->past)
            return false;
    }
    bool busy = backend_busy(a->backend) && !app_paused(a);
    if (!a->backend->probe->ask(a->backend, x, e))
        return false;
    *w = (struct probe_want){what, x->turn, x->step};
    a->n_want++;
    if (busy)
        print_note(&c->to, ST_DIM, "step %d.%d is computed again when the engine is free", x->turn,
                   x->step);
    char step[32];
    snprintf(step, sizeof step, "%d.%d", x->turn, x->step);
    print_line(&c->to, ST_TEXT, "\f%s{asked}", step);
    return true;
}

bool cmd_layers(struct cmd_call *c)
{
    struct probe_ask x = {.row = -1, .layer = -1};
    return (c->argc == 0 || arg_step(c->app, c->argv[0], &x.turn, &x.step, &x.row, c->e)) &&
           ask(c, PROBE_LAYERS, &x);
}

bool cmd_attn(struct cmd_call *c)
{
    struct probe_ask x = {.row = -1};
    long layer;
    if (c->argc == 2 && !arg_step(c->app, c->argv[0], &x.turn, &x.step, &x.row, c->e))
        return false;
    if (!cmd_needs(c, VIEW_PROBE) ||
        !arg_int(c->argv[c->argc - 1], "the layer", 0, backend_info(c->app->backend)->n_layer - 1,
                 &layer, c->e))
        return false;
    x.layer = (int)layer;
    return ask(c, PROBE_KEYS, &x);
}

bool cmd_top(struct cmd_call *c)
{
    struct app *a = c->app;
    struct probe_ask x = {.row = -1, .layer = -1};
    long row;
    if (c->argc == 1 && !strchr(c->argv[0], '.')) {
        if (!arg_int(c->argv[0], "the row", 0, PROBE_ROWS - 1, &row, c->e))
            return false;
        x.row = (int)row;
    } else if (c->argc == 1 && !arg_step(a, c->argv[0], &x.turn, &x.step, &x.row, c->e)) {
        return false;
    }
    if (backend_has(a->backend, VIEW_SERVED))
        return served_top(a, x.turn, x.step, x.row, &c->to, c->e);
    return ask(c, PROBE_TOP, &x);
}

/* ---- what all three begin with --------------------------------------------------------------- */

static int kept(const struct probe *p, int row)
{
    return row - p->row0;
}

static double norm(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* |a - b| */
static double distance(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* "LAYERS  step 3.2  row 0 of 4  " the" at 17": the row of which the answer tells. */
static void add_row(struct app *a, const char *title, const char *what, const struct probe *p,
                    const struct printer *to)
{
    int r = kept(p, p->share_row);
    print_add(to, ST_HEAD, "%s\v  %sstep %d{turn}.%d{step}  row %d{row} of %d{rows}  ", title,
              what, p->turn, p->step, p->share_row, p->n_rows);
    print_token(to, ST_TEXT, a->backend, p->token[r], TOKEN_CELLS);
    print_add(to, ST_TEXT, " at %d{position}", p->pos[r]);
}

/* Ends the line of the row; writes whether the probe computed the logits that the step had. */
static void say_again(const struct probe *p, const struct printer *to)
{
    print_end(to);
    print_add(to, ST_DIM, p->again ? "computed again: \f%d{again?}\f%d{shared_tokens} of %d "
                                     "context tokens were still held; "
                                   : "\f%d{again?}%d{shared_tokens}%d", p->again, p->n_shared,
              p->pos0);
    if (!p->has_digest)
        print_none(to, "same_logits");
    else
        print_add(to, ST_TEXT, "\f%d{same_logits?}", p->same);
    if (!p->again)
        return;
    if (!p->has_digest)
        print_note(to, ST_DIM, "no logits are recorded to compare with");
    else if (p->same)
        print_note(to, ST_GOOD, "the logits are those recorded");
    else
        print_note(to, ST_WARN, "the logits differ from those recorded, so this is not what "
                   "happened");
}

/* The mean over the heads. */
static struct attn_share mean_share(const struct probe_layer *w)
{
    struct attn_share m = {0};
    for (int h = 0; w->share && h < w->n_head; h++) {
        const struct attn_share *s = &w->share[h];
        m.sink += s->sink / (float)w->n_head;
        m.within += s->within / (float)w->n_head;
        m.beyond += s->beyond / (float)w->n_head;
        m.tree += s->tree / (float)w->n_head;
        m.first += s->first / (float)w->n_head;
    }
    return m;
}

/* ---- /layers --------------------------------------------------------------------------------- */

/* "  .08"; "    -" for an unknown value */
static void add_share(const struct printer *to, float v, bool there)
{
    if (!there)
        print_add(to, ST_DIM, " %4s", "-");
    else if (v >= 0.995f)
        print_add(to, ST_TEXT, " %4s", "1.0");
    else if (v > 0 && v < 0.005f)
        print_add(to, ST_TEXT, " %4s", "<.01");
    else
        print_add(to, ST_TEXT, "  .%02d", (int)lroundf(v * 100));
}

/* The parts of the attention of a layer or of one head; s NULL: not known. */
static void add_shares(const struct attn_share *s, bool window, bool sinks, bool first,
                       const struct printer *to)
{
    static const struct attn_share none;
    const struct attn_share *v = s ? s : &none;
    if (s)
        print_add(to, ST_TEXT, "\f%g{tree}%g{within}%g{beyond}%g{sink}%g{first}", s->tree,
                  s->within, s->beyond, s->sink, s->first);
    add_share(to, v->tree, s);
    add_share(to, v->within, s);
    add_share(to, v->beyond, s && !window);
    if (sinks)
        add_share(to, v->sink, s);
    if (first)
        add_share(to, v->first, s);
}

/* A bar of `cells` cells, divided in the proportions of the attention. */
static void add_parts(struct sheet *out, const struct attn_share *s, int cells)
{
    static const struct {
        const char *utf8, *ascii;
        enum style st;
    } part[] = {{"█", "#", ST_HOT}, {"▓", "+", ST_WARM}, {"▒", "=", ST_COOL}, {"░", ".", ST_COLD}};
    const float share[] = {s->tree, s->within, s->beyond, s->sink};
    double upto = 0;
    int at = 0;
    for (int i = 0; i < 4; i++) {
        upto += (double)share[i] * cells;
        for (; at < (int)lround(upto) && at < cells; at++)
            sheet_add(out, part[i].st, out->ascii ? part[i].ascii : part[i].utf8);
    }
}

static void add_experts(const struct probe *p, const struct probe_layer *w,
                        const struct printer *to)
{
    if (!w->expert)
        return;
    const int32_t *id = w->expert + mul64(kept(p, p->share_row), p->top_k);
    print_ints(to, "experts", id, p->top_k);
    for (int i = 0; i < p->top_k; i++)
        print_add(to, ST_TEXT, "%s%d", i ? "," : "  ", id[i]);
}

/* Columns of /layers beside those that it always has. */
struct layer_columns {
    bool gap; /* a cell between +mlp and tree */
    bool sinks, first, experts;
    int bar; /* cells; 0: none */
};

static void show_layer(const struct probe *p, int l, const struct layer_columns *c,
                       const struct printer *to)
{
    const struct probe_layer *w = &p->layer[l];
    const float *in = probe_row(p, l, PROBE_IN, p->share_row);
    const float *mid = probe_row(p, l, PROBE_MID, p->share_row);
    const float *end = probe_row(p, l, PROBE_OUT, p->share_row);
    struct attn_share s = mean_share(w);
    double size = norm(in, p->hidden), attn = distance(mid, in, p->hidden);
    double mlp = distance(end, mid, p->hidden), least = fmax(size, 1e-30);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%5d{layer} %-7s{kind} \f%d{cells_of}\f%7.4g{norm}\f%g{attn}%g{mlp}\f "
              "%5.2f %5.2f%s", l, w->window ? "sliding" : "full", w->kv_src, size, attn, mlp,
              attn / least, mlp / least, c->gap ? " " : "");
    add_shares(w->share ? &s : NULL, w->window, c->sinks, c->first, to);
    print_add(to, ST_TEXT, "%s", c->bar ? "  " : "");
    if (c->bar && !to->json)
        add_parts(to->out, &s, c->bar);
    if (c->experts)
        add_experts(p, w, to);
    if (w->kv_src != l)
        print_add(to, ST_DIM, "  cells of %d", w->kv_src);
    print_end(to);
}

/* Whether `cells` more of a line's `room` are there, which are then taken. */
static bool takes(int *room, int cells)
{
    bool fits = *room >= cells;
    *room -= fits ? cells : 0;
    return fits;
}

/* The columns that fit a line of `width` cells. JSON has all. */
static struct layer_columns layer_columns(const struct probe *p, int width, bool json)
{
    enum { ALWAYS = 48, SHARE = 5 };
    int room = json ? INT_MAX : width - ALWAYS, by_expert = 2 + 3 * p->top_k;
    bool sinks = ANY(l, p->n_layer, mean_share(&p->layer[l]).sink > 0);
    bool experts = ANY(l, p->n_layer, p->layer[l].expert != NULL);
    struct layer_columns c = {.gap = takes(&room, 1)};
    c.sinks = sinks && takes(&room, SHARE);
    c.first = takes(&room, SHARE);
    c.experts = experts && takes(&room, by_expert);
    c.bar = room - 2 < 4 ? 0 : min_int(room - 2, BAR);
    return c;
}

static void name_left_out(const struct layer_columns *all, const struct layer_columns *c,
                          const struct printer *to)
{
    const struct {
        bool gone;
        const char *name;
    } v[] = {{all->sinks && !c->sinks, "sink"},
             {all->first && !c->first, "1st"},
             {all->experts && !c->experts, "experts"}};
    FREED(buf_free) struct buf names = {0};
    for (size_t i = 0; i < LEN(v); i++)
        if (v[i].gone)
            buf_printf(&names, "%s%s", names.n ? ", " : "", v[i].name);
    if (names.n)
        print_note(to, ST_DIM, "left out for want of room: %s", names.p);
}

static void show_layers(struct app *a, const struct probe *p, const struct printer *to)
{
    struct layer_columns all = layer_columns(p, 0, true);
    struct layer_columns c = layer_columns(p, view_width(a), to->json);
    add_row(a, "LAYERS", "", p, to);
    say_again(p, to);
    print_note(to, ST_HEAD, "%5s %-7s %7s %5s %5s%s %4s %4s %4s%s%s%s%-*.*s%s", "layer",
               "kind", "norm", "+attn", "+mlp", c.gap ? " " : "", "tree", "in W", "old",
               c.sinks ? " sink" : "", c.first ? "  1st" : "", c.bar ? "  " : "", c.bar, c.bar,
               "attention", c.experts ? "  experts" : "");
    print_open(to, "layers", '[');
    for (int l = 0; l < p->n_layer; l++)
        show_layer(p, l, &c, to);
    print_close(to, ']');
    print_facts(to, ST_TEXT, "%5s %-7s %7.4g{output_norm}", "", "output",
                norm(probe_row(p, p->n_layer, PROBE_IN, p->share_row), p->hidden));
    print_note(to, ST_DIM, "norm: of the residual stream that enters the layer; +attn, +mlp: size "
               "of what is added, over that norm");
    print_facts(to, ST_DIM, p->window
                    ? "attention, mean of the heads: tree: cells of this pass; in W: committed, at "
                      "most %d{window} keys back; old: before them%s%s"
                    : "attention, mean of the heads: tree: cells of this pass; in W: all that are "
                      "committed, for no layer has a window\f%d{window}\f%s%s",
                p->window, c.sinks ? "; sink: learned" : "",
                c.first ? "; 1st: the first token, in one of these" : "");
    name_left_out(&all, &c, to);
}

/* ---- /attn ----------------------------------------------------------------------------------- */

/* How much of a row's attention goes to one position, or to one page. */
struct probe_part {
    int at;      /* index of the key; logical page */
    double mass; /* mean over the heads, or one head's */
};

static int by_mass(const void *x, const void *y)
{
    const struct probe_part *a = x, *b = y;
    return a->mass < b->mass ? 1 : a->mass > b->mass ? -1 : a->at - b->at;
}

/* The keys of one head (-1: the mean of all), most read first. The caller frees them. */
static struct probe_part *sorted_keys(const struct probe *p, int head)
{
    int n_head = p->layer[p->key_layer].n_head;
    struct probe_part *k = xcalloc((size_t)p->n_key + 1, sizeof *k);
    for (int i = 0; i < p->n_key; i++) {
        k[i].at = i;
        for (int h = 0; h < n_head; h++)
            if (head < 0 || h == head)
                k[i].mass += (double)p->key_p[(size_t)h * (size_t)p->n_key + (size_t)i] /
                             (head < 0 ? n_head : 1);
    }
    qsort(k, (size_t)p->n_key, sizeof *k, by_mass);
    return k;
}

/* The logical pages that the row reads, most read first; returns how many. */
static int sorted_pages(const struct probe *p, struct probe_part **out)
{
    int n_head = p->layer[p->key_layer].n_head, P = max_int(1, p->page_size), n = 0;
    struct probe_part *k = xcalloc((size_t)p->n_key + 1, sizeof *k);
    for (int i = 0; i < p->n_key; i++) {
        int page = p->key_pos[i] / P;
        if (n == 0 || k[n - 1].at != page)
            k[n++].at = page;
        for (int h = 0; h < n_head; h++)
            k[n - 1].mass += (double)p->key_p[(size_t)h * (size_t)p->n_key + (size_t)i] / n_head;
    }
    qsort(k, (size_t)n, sizeof *k, by_mass);
    *out = k;
    return n;
}

/* The pages that held a logical page after the step; 0: none, or not known. */
static void pages_at(struct app *a, const struct probe *p, int page, int32_t *full, int32_t *swa)
{
    FREED(page_table_free) struct page_table t = {0};
    struct err e;
    *full = *swa = 0;
    if (!backend_has(a->backend, VIEW_PAGES) || !app_table_at(a, p->turn, p->step, &t, &e))
        return;
    if (page < t.n_page) {
        *full = t.page[page].full;
        *swa = t.page[page].swa;
    }
}

/* shown: as a line, too. */
static void show_key(struct app *a, const struct probe *p, const struct probe_part *k, bool shown,
                     const struct printer *to)
{
    int pos = p->key_pos[k->at];
    if (!shown && !to->json)
        return;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%7d{position} \f%d{page}\f%6.3f{mean}  %-4s{place}  ", pos,
              pos / max_int(1, p->page_size), k->mass,
              pos >= p->pos0 ? "tree" : pos >= p->key_window_lo ? "in W" : "old");
    print_token(to, ST_TEXT, a->backend, p->key_token[k->at], TOKEN_CELLS);
    print_tab(to, 22 + TOKEN_CELLS);
    if (!to->json)
        view_bar(to->out, ST_HOT, k->mass, min_int(BAR, view_width(a) - 22 - TOKEN_CELLS));
    print_end(to);
}

static void show_head(struct app *a, const struct probe *p, int h, const struct printer *to)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    FREED(free_at) struct probe_part *k = sorted_keys(p, h);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%7d", h);
    add_shares(&w->share[h], w->window, w->share[0].sink > 0, false, to);
    int wide = view_width(a), top = to->json || wide >= 96 ? HEAD_TOP : wide < 72 ? 1 : 2;
    for (int i = 0; i < top && i < p->n_key; i++) {
        print_add(to, ST_TEXT, "  %d ", p->key_pos[k[i].at]);
        note_token(to, ST_TEXT, a->backend, p->key_token[k[i].at], 10);
        print_add(to, ST_DIM, " %.2f", k[i].mass);
    }
    print_end(to);
}

/* For people only. */
static void show_read_pages(struct app *a, const struct probe *p, const struct printer *to)
{
    FREED(free_at) struct probe_part *page = NULL;
    int n_page = sorted_pages(p, &page), P = max_int(1, p->page_size);
    print_note(to, ST_HEAD, "%7s %6s  %-13s %6s %6s", "page", "mean", "positions", "full", "swa");
    for (int i = 0; i < TOP_PAGES && i < n_page; i++) {
        char range[32];
        int32_t full, swa;
        pages_at(a, p, page[i].at, &full, &swa);
        snprintf(range, sizeof range, "%d-%d", page[i].at * P, page[i].at * P + P - 1);
        print_note(to, ST_TEXT, "%7d %6.3f  %-13s %6d{full:0} %6d{swa:0}", page[i].at,
                   page[i].mass, range, full, swa);
    }
}

static void show_attn(struct app *a, const struct probe *p, const struct printer *to)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    struct attn_share s = mean_share(w);
    FREED(free_at) struct probe_part *key = sorted_keys(p, -1);
    add_row(a, "ATTN", "", p, to);
    print_add(to, ST_TEXT, "  layer %d{layer}, %s{kind}, %d heads over %d of K and V", p->key_layer,
              w->window ? "sliding" : "full", w->n_head, w->n_kv);
    say_again(p, to);
    print_add(to, ST_TEXT, "%d keys: tree %.3f  in W %.3f  old %.3f  sink %.3f  first token %.3f  ",
              p->n_key, (double)s.tree, (double)s.within, (double)s.beyond, (double)s.sink,
              (double)s.first);
    if (!to->json)
        add_parts(to->out, &s, BAR);
    print_end(to);
    print_note(to, ST_HEAD, "%7s %6s  %-4s  %s", "pos", "mean", "", "token");
    print_open(to, "keys", '[');
    for (int i = 0; i < p->n_key && i < 64; i++)
        show_key(a, p, &key[i], i < TOP_POSITIONS, to);
    print_close(to, ']');
    if (!to->json)
        show_read_pages(a, p, to);
    print_note(to, ST_HEAD, "%7s %4s %4s %4s%s  most read", "head", "tree", "in W", "old",
               w->share[0].sink > 0 ? " sink" : "");
    print_open(to, "heads", '[');
    for (int h = 0; h < (to->json ? w->n_head : min_int(w->n_head, HEADS)); h++)
        show_head(a, p, h, to);
    print_close(to, ']');
    if (w->n_head > HEADS)
        print_note(to, ST_DIM, "%d more heads: --json lists all", w->n_head - HEADS);
    print_facts(to, ST_DIM, "sum of p v over these keys reproduces the layer's output to "
                "%.1g{error} of its largest value", (double)p->key_error);
}

/* ---- /top ------------------------------------------------------------------------------------ */

/* The draft's guesses after a row: its children in the tree, most probable first; returns how
 * many. */
static int guesses_of(const struct tree *t, int row, int out[TREE_MAX])
{
    int n = 0;
    for (int i = row + 1; i < t->n; i++) {
        if (t->parent[i] != row)
            continue;
        int at = n++;
        for (; at > 0 && t->q[out[at - 1]] < t->q[i]; at--)
            out[at] = out[at - 1];
        out[at] = i;
    }
    return n;
}

/* Where the columns of the two lists stand: TOKEN_CELLS for the text of a token where the screen
 * has room for two. */
struct top_columns {
    int cells, draft; /* cells of a token's text; the column where the draft's guesses begin */
    bool fates;       /* fits behind a guess */
};

static struct top_columns top_columns(const struct app *a)
{
    enum { NUMBERS = 3 + 2 + 7 + 2 + 7, GAP = 6, FATE = 10, LEAST = 6 };
    int width = a->face.width ? a->face.width : INT_MAX;
    bool fates = width >= NUMBERS + GAP + FATE + 2 * LEAST;
    int gap = fates ? GAP : 2, rest = width - NUMBERS - gap - (fates ? FATE : 0);
    int cells = min_int(max_int(rest / 2, LEAST), TOKEN_CELLS);
    return (struct top_columns){cells, 3 + cells + 2 + 7 + gap, fates};
}

static void show_best(struct app *a, const struct probe *p, int r, int i, const struct printer *to)
{
    int cells = top_columns(a).cells;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_DIM, "%2d ", i + 1);
    print_token(to, ST_TEXT, a->backend, p->best[r][i], cells);
    print_tab(to, 3 + cells + 2);
    print_add(to, ST_TEXT, " %6.4f{p}", exp((double)p->best_logp[r][i]));
}

static void show_guess(struct app *a, const struct tree *t, int node, const struct printer *to)
{
    static const char *const fate[] = {"", "accepted", "rejected", "cut"};
    struct top_columns at = top_columns(a);
    int f = t->fate[node] & 3;
    PRINT_IN(to, NULL, '{');
    print_token(to, ST_DRAFT, a->backend, t->token[node], at.cells);
    print_tab(to, at.draft + at.cells + 2);
    print_add(to, ST_DRAFT, " %6.4f{q}\f%d{node}%s{fate}", (double)t->q[node], node, fate_name(f));
    if (at.fates)
        print_add(to, f == FATE_ACCEPTED ? ST_GOOD : ST_DIM, "  %s", fate[f]);
}

static void show_top(struct app *a, const struct probe *p, const struct step_view *v,
                     const struct printer *to)
{
    const struct tree *t = &v->tree;
    struct top_columns at = top_columns(a);
    int r = kept(p, p->share_row), child[TREE_MAX], n = guesses_of(t, p->share_row, child),
        best = 0;
    while (best < PROBE_BEST && p->best[r][best] >= 0)
        best++;
    add_row(a, "TOP", "what follows ", p, to);
    say_again(p, to);
    if (best == 0)
        print_note(to, ST_DIM, "the logits of this row were not computed: a prompt chunk needs "
                   "those of its last row only");
    else
        print_note(to, ST_HEAD, "   %-*s %6s%*s%-*s %6s", at.cells + 2, "target", "p",
                   at.draft - at.cells - 12, "", at.cells + 2, "draft", "q");
    print_open(to, "target", '[');
    for (int i = 0; to->json && i < best; i++)
        show_best(a, p, r, i, to);
    print_close(to, ']');
    print_open(to, "draft", '[');
    for (int i = 0; to->json && i < n; i++)
        show_guess(a, t, child[i], to);
    print_close(to, ']');
    if (best == 0 || to->json)
        return;
    for (int i = 0; i < PROBE_BEST || i < n; i++) { /* one beside the other */
        if (i < best)
            show_best(a, p, r, i, to);
        print_tab(to, at.draft);
        if (i < n)
            show_guess(a, t, child[i], to);
        print_end(to);
    }
    print_note(to, ST_DIM, n ? "p: of the target at temperature 1; q: of the draft, "
                               "for the guesses that its tree kept"
                             : "p: of the target at temperature 1; nothing was drafted after this "
                               "row");
}

/* ---- the answer ------------------------------------------------------------------------------ */

struct probed {
    enum probe_view what;
    const struct probe *p;
    const struct step_view *v;
};

static void write_probe(struct app *a, const void *arg, const struct printer *to)
{
    const struct probed *x = arg;
    PRINT_IN(to, NULL, '{');
    PRINT_IN(to, name_of[x->what], '{');
    if (x->what == PROBE_LAYERS)
        show_layers(a, x->p, to);
    else if (x->what == PROBE_KEYS)
        show_attn(a, x->p, to);
    else
        show_top(a, x->p, x->v, to);
    if (!x->p->refused[0])
        return;
    print_note(to, ST_WARN, "this is the pass without the historical faults that are on; with them "
               "the checker refuses it:");
    print_facts(to, ST_BAD, "%s{refused}", x->p->refused);
}

static void answer_error(struct app *a, const char *why)
{
    struct err e = {0};
    err_set(&e, ERR_NEGATIVE, "%s", why);
    app_error(a, &e);
    if (!a->face.json || !a->opt.json)
        return;
    FREED(buf_free) struct buf json = {0};
    jput_record(&json, "%s{error}%d{code}", e.msg, e.kind);
    a->face.json(a, json.p);
}

void app_show_probe(struct app *a, const struct event *ev)
{
    struct step_view v;
    const struct probe *p = ev->probe;
    if (a->n_want == 0)
        return;
    struct probe_want w = a->want[0];
    CUT(a->want, a->n_want, 0);
    if (!p) {
        answer_error(a, ev->text.p ? ev->text.p : "the step was not computed");
        return;
    }
    if (!app_find_step(a, p->turn, p->step, &v, NULL))
        v = (struct step_view){0};
    app_print(a, write_probe, &(struct probed){w.what, p, &v});
}
