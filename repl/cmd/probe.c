/* probe.c - /layers, /attn and /top: one step run with taps.
 *
 * The engine's thread computes the step again after its present work and posts EV_PROBE, for which
 * both faces call app_show_probe(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/window.h"
#include "repl/cmd/cmd.h"

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
    if (c->argc > 1)
        return arg_expected(c, "takes at most one step, or a step and a row");
    return (c->argc == 0 || arg_step(c->app, c->argv[0], &x.turn, &x.step, &x.row, c->e)) &&
           ask(c, PROBE_LAYERS, &x);
}

bool cmd_attn(struct cmd_call *c)
{
    struct probe_ask x = {.row = -1};
    long layer;
    if (c->argc < 1 || c->argc > 2)
        return arg_expected(c, "takes a step (and a row) and a layer");
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
    if (c->argc > 1)
        return arg_expected(c, "takes at most a row, or a step and a row");
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

static void add_row_name(struct app *a, const struct probe *p, struct sheet *out)
{
    int r = kept(p, p->share_row);
    sheet_printf(out, ST_TEXT, "step %d.%d  row %d of %d  ", p->turn, p->step, p->share_row,
                 p->n_rows);
    view_token(out, ST_TEXT, a->backend, p->token[r], TOKEN_CELLS);
    sheet_printf(out, ST_TEXT, " at %d", p->pos[r]);
}

/* Writes whether the probe computed the logits that the step had. */
static void say_again(const struct probe *p, struct sheet *out)
{
    if (!p->again)
        return;
    sheet_printf(out, ST_DIM, "computed again: %d of %d context tokens were still held; ",
                 p->n_shared, p->pos0);
    if (!p->has_digest)
        sheet_add(out, ST_DIM, "no logits are recorded to compare with");
    else if (p->same)
        sheet_add(out, ST_GOOD, "the logits are those recorded");
    else
        sheet_add(out, ST_WARN, "the logits differ from those recorded, so this is not what "
                                "happened");
    sheet_line(out);
}

static void again_json(struct app *a, const struct probe *p, struct buf *json)
{
    int r = kept(p, p->share_row);
    size_t n;
    const char *text = backend_token(a->backend, p->token[r], &n);
    jput_fields(json, "%d{turn}%d{step}%d{row}%d{rows}%d{token}%.*s{text}%d{position}%d{again?}"
                "%d{shared_tokens}", p->turn, p->step, p->share_row, p->n_rows, p->token[r],
                (int)n, text, p->pos[r], p->again, p->n_shared);
    jput_key(json, "same_logits");
    if (p->has_digest)
        jput_bool(json, p->same);
    else
        jput_null(json);
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

static void share_json(const struct attn_share *s, struct buf *json)
{
    jput_fields(json, "%g{tree}%g{within}%g{beyond}%g{sink}%g{first}", s->tree, s->within,
                s->beyond, s->sink, s->first);
}

/* ---- /layers --------------------------------------------------------------------------------- */

/* "  .08"; "    -" for an unknown value */
static void add_share(struct sheet *out, float v, bool there)
{
    if (!there)
        sheet_printf(out, ST_DIM, " %4s", "-");
    else if (v >= 0.995f)
        sheet_printf(out, ST_TEXT, " %4s", "1.0");
    else if (v > 0 && v < 0.005f)
        sheet_printf(out, ST_TEXT, " %4s", "<.01");
    else
        sheet_printf(out, ST_TEXT, "  .%02d", (int)lroundf(v * 100));
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

static void add_experts(const struct probe *p, const struct probe_layer *w, struct sheet *out)
{
    const int32_t *id = w->expert ? w->expert + mul64(kept(p, p->share_row), p->top_k) : NULL;
    for (int i = 0; id && i < p->top_k; i++)
        sheet_printf(out, ST_TEXT, "%s%d", i ? "," : "  ", id[i]);
}

static void layer_line(const struct probe *p, int l, bool sinks, int bar, struct sheet *out)
{
    const struct probe_layer *w = &p->layer[l];
    const float *in = probe_row(p, l, PROBE_IN, p->share_row);
    const float *mid = probe_row(p, l, PROBE_MID, p->share_row);
    const float *end = probe_row(p, l, PROBE_OUT, p->share_row);
    struct attn_share s = mean_share(w);
    double size = norm(in, p->hidden);
    sheet_printf(out, ST_TEXT, "%5d %-7s %7.4g %5.2f %5.2f ", l, w->window ? "sliding" : "full",
                 size, distance(mid, in, p->hidden) / fmax(size, 1e-30),
                 distance(end, mid, p->hidden) / fmax(size, 1e-30));
    add_share(out, s.tree, w->share);
    add_share(out, s.within, w->share);
    add_share(out, s.beyond, w->share && !w->window);
    if (sinks)
        add_share(out, s.sink, w->share);
    add_share(out, s.first, w->share);
    if (bar) {
        sheet_add(out, ST_TEXT, "  ");
        add_parts(out, &s, bar);
    }
    add_experts(p, w, out);
    if (w->kv_src != l)
        sheet_printf(out, ST_DIM, "  cells of %d", w->kv_src);
    sheet_line(out);
}

static bool has_sinks(const struct probe *p)
{
    bool any = false;
    for (int l = 0; l < p->n_layer; l++)
        any |= mean_share(&p->layer[l]).sink > 0;
    return any;
}

static void layers_text(struct app *a, const struct probe *p, struct sheet *out)
{
    bool sinks = has_sinks(p), experts = false;
    for (int l = 0; l < p->n_layer; l++)
        experts |= p->layer[l].expert != NULL;
    int room = view_width(a) - 56 - 5 * sinks - (experts ? 2 + 3 * p->top_k : 0);
    int bar = room < 4 ? 0 : min_int(room, BAR);
    sheet_add(out, ST_HEAD, "LAYERS");
    sheet_add(out, ST_TEXT, "  ");
    add_row_name(a, p, out);
    sheet_line(out);
    say_again(p, out);
    say_line(out, ST_HEAD, "%5s %-7s %7s %5s %5s  %4s %4s %4s%s %4s%s%-*.*s%s", "layer", "kind",
             "norm",
             "+attn", "+mlp", "tree", "in W", "old", sinks ? " sink" : "", "1st", bar ? "  " : "",
             bar, bar, "attention", experts ? "  experts" : "");
    for (int l = 0; l < p->n_layer; l++)
        layer_line(p, l, sinks, bar, out);
    say_line(out, ST_TEXT, "%5s %-7s %7.4g", "", "output",
             norm(probe_row(p, p->n_layer, PROBE_IN, p->share_row), p->hidden));
    say_line(out, ST_DIM, "norm: of the residual stream that enters the layer; +attn, +mlp: size "
                          "of what is added, over that norm");
    sheet_printf(out, ST_DIM, "attention, mean of the heads: tree: cells of this pass; in W: "
                              "committed, at most %d keys back; old: before them%s; 1st: the first "
                              "token, in one of these",
                 p->window, sinks ? "; sink: learned" : "");
    sheet_line(out);
}

static void layers_json(struct app *a, const struct probe *p, struct buf *json)
{
    again_json(a, p, json);
    jput_kint(json, "window", p->window);
    jput_kopen(json, "layers", '[');
    for (int l = 0; l < p->n_layer; l++) {
        const struct probe_layer *w = &p->layer[l];
        const float *in = probe_row(p, l, PROBE_IN, p->share_row);
        const float *mid = probe_row(p, l, PROBE_MID, p->share_row);
        const float *end = probe_row(p, l, PROBE_OUT, p->share_row);
        struct attn_share s = mean_share(w);
        jput_open(json, '{');
        jput_fields(json, "%d{layer}%s{kind}%d{cells_of}%g{norm}%g{attn}%g{mlp}", l,
                    w->window ? "sliding" : "full", w->kv_src, norm(in, p->hidden),
                    distance(mid, in, p->hidden), distance(end, mid, p->hidden));
        if (w->share)
            share_json(&s, json);
        if (w->expert) {
            jput_key(json, "experts");
            jput_ints(json, w->expert + mul64(kept(p, p->share_row), p->top_k), p->top_k);
        }
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_kreal(json, "output_norm",
               norm(probe_row(p, p->n_layer, PROBE_IN, p->share_row), p->hidden));
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
    struct page_table t;
    struct err e;
    *full = *swa = 0;
    if (!backend_has(a->backend, VIEW_PAGES) || !app_table_at(a, p->turn, p->step, &t, &e))
        return;
    if (page < t.n_page) {
        *full = t.page[page].full;
        *swa = t.page[page].swa;
    }
    page_table_free(&t);
}

static void add_page(struct sheet *out, int32_t page)
{
    if (page)
        sheet_printf(out, ST_TEXT, " %6d", page);
    else
        sheet_printf(out, ST_DIM, " %6s", "-");
}

static const char *place_of(const struct probe *p, int pos)
{
    return pos >= p->pos0 ? "tree" : pos >= p->key_window_lo ? "in W" : "old";
}

static void add_key(struct app *a, const struct probe *p, int i, double mass, struct sheet *out)
{
    sheet_printf(out, ST_TEXT, "%7d %6.3f  %-4s  ", p->key_pos[i], mass,
                 place_of(p, p->key_pos[i]));
    int column = 22 + TOKEN_CELLS;
    view_token(out, ST_TEXT, a->backend, p->key_token[i], TOKEN_CELLS);
    sheet_tab(out, column);
    view_bar(out, ST_HOT, mass, BAR);
    sheet_line(out);
}

static void attn_heads(struct app *a, const struct probe *p, struct sheet *out)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    say_line(out, ST_HEAD, "%7s %4s %4s %4s%s  most read", "head", "tree", "in W", "old",
             w->share[0].sink > 0 ? " sink" : "");
    for (int h = 0; h < w->n_head && h < HEADS; h++) {
        struct probe_part *k = sorted_keys(p, h);
        sheet_printf(out, ST_TEXT, "%7d", h);
        add_share(out, w->share[h].tree, true);
        add_share(out, w->share[h].within, true);
        add_share(out, w->share[h].beyond, !w->window);
        if (w->share[0].sink > 0)
            add_share(out, w->share[h].sink, true);
        for (int i = 0; i < HEAD_TOP && i < p->n_key; i++) {
            sheet_printf(out, ST_TEXT, "  %d ", p->key_pos[k[i].at]);
            view_token(out, ST_TEXT, a->backend, p->key_token[k[i].at], 10);
            sheet_printf(out, ST_DIM, " %.2f", k[i].mass);
        }
        sheet_line(out);
        free(k);
    }
    if (w->n_head > HEADS)
        say_line(out, ST_DIM, "%d more heads: --json lists all", w->n_head - HEADS);
}

static void attn_text(struct app *a, const struct probe *p, struct sheet *out)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    struct attn_share s = mean_share(w);
    struct probe_part *key = sorted_keys(p, -1), *page;
    int n_page = sorted_pages(p, &page), P = max_int(1, p->page_size);
    sheet_add(out, ST_HEAD, "ATTN");
    sheet_add(out, ST_TEXT, "  ");
    add_row_name(a, p, out);
    sheet_printf(out, ST_TEXT, "  layer %d, %s, %d heads over %d of K and V", p->key_layer,
                 w->window ? "sliding" : "full", w->n_head, w->n_kv);
    sheet_line(out);
    say_again(p, out);
    sheet_printf(out, ST_TEXT, "%d keys: tree %.3f  in W %.3f  old %.3f  sink %.3f  first token "
                               "%.3f  ",
                 p->n_key, (double)s.tree, (double)s.within, (double)s.beyond, (double)s.sink,
                 (double)s.first);
    add_parts(out, &s, BAR);
    sheet_line(out);
    say_line(out, ST_HEAD, "%7s %6s  %-4s  %s", "pos", "mean", "", "token");
    for (int i = 0; i < TOP_POSITIONS && i < p->n_key; i++)
        add_key(a, p, key[i].at, key[i].mass, out);
    say_line(out, ST_HEAD, "%7s %6s  %-13s %6s %6s", "page", "mean", "positions", "full", "swa");
    for (int i = 0; i < TOP_PAGES && i < n_page; i++) {
        char range[32];
        int32_t full, swa;
        pages_at(a, p, page[i].at, &full, &swa);
        snprintf(range, sizeof range, "%d-%d", page[i].at * P, page[i].at * P + P - 1);
        sheet_printf(out, ST_TEXT, "%7d %6.3f  %-13s", page[i].at, page[i].mass, range);
        add_page(out, full);
        add_page(out, swa);
        sheet_line(out);
    }
    attn_heads(a, p, out);
    say_line(out, ST_DIM, "sum of p v over these keys reproduces the layer's output to %.1g of its "
                          "largest value", (double)p->key_error);
    free(key);
    free(page);
}

static void attn_json(struct app *a, const struct probe *p, struct buf *json)
{
    const struct probe_layer *w = &p->layer[p->key_layer];
    struct probe_part *key = sorted_keys(p, -1);
    again_json(a, p, json);
    jput_fields(json, "%d{layer}%s{kind}%g{error}", p->key_layer, w->window ? "sliding" : "full",
                p->key_error);
    jput_kopen(json, "heads", '[');
    for (int h = 0; h < w->n_head; h++) {
        jput_open(json, '{');
        share_json(&w->share[h], json);
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_kopen(json, "keys", '[');
    for (int i = 0; i < p->n_key && i < 64; i++) {
        int k = key[i].at;
        size_t n;
        const char *text = backend_token(a->backend, p->key_token[k], &n);
        jput_record(json, "%d{position}%d{page}%d{token}%.*s{text}%s{place}%g{mean}", p->key_pos[k],
                    p->key_pos[k] / max_int(1, p->page_size), p->key_token[k], (int)n, text,
                    place_of(p, p->key_pos[k]), key[i].mass);
    }
    jput_close(json, ']');
    free(key);
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

static void top_text(struct app *a, const struct probe *p, const struct step_view *v,
                     struct sheet *out)
{
    static const char *const fate[] = {"", "accepted", "rejected", "cut"};
    int r = kept(p, p->share_row), child[TREE_MAX], n = guesses_of(&v->tree, p->share_row, child);
    enum { DRAFT = 36 };
    sheet_add(out, ST_HEAD, "TOP");
    sheet_add(out, ST_TEXT, "  what follows ");
    add_row_name(a, p, out);
    sheet_line(out);
    say_again(p, out);
    if (p->best[r][0] < 0) {
        say_line(out, ST_DIM, "the logits of this row were not computed: a prompt chunk needs "
                              "those of its last row only");
        return;
    }
    sheet_printf(out, ST_HEAD, "   %-*s %6s", TOKEN_CELLS + 2, "target", "p");
    sheet_tab(out, DRAFT);
    sheet_printf(out, ST_HEAD, "%-*s %6s", TOKEN_CELLS + 2, "draft", "q");
    sheet_line(out);
    for (int i = 0; i < PROBE_BEST || i < n; i++) {
        if (i < PROBE_BEST && p->best[r][i] >= 0) {
            sheet_printf(out, ST_DIM, "%2d ", i + 1);
            view_token(out, ST_TEXT, a->backend, p->best[r][i], TOKEN_CELLS);
            sheet_tab(out, TOKEN_CELLS + 5);
            sheet_printf(out, ST_TEXT, " %6.4f", exp((double)p->best_logp[r][i]));
        }
        sheet_tab(out, DRAFT);
        if (i < n) {
            int c = child[i], f = v->tree.fate[c] & 3;
            view_token(out, ST_DRAFT, a->backend, v->tree.token[c], TOKEN_CELLS);
            sheet_tab(out, DRAFT + TOKEN_CELLS + 2);
            sheet_printf(out, ST_DRAFT, " %6.4f", (double)v->tree.q[c]);
            sheet_printf(out, f == FATE_ACCEPTED ? ST_GOOD : ST_DIM, "  %s", fate[f]);
        }
        sheet_line(out);
    }
    say_line(out, ST_DIM, n ? "p: of the target at temperature 1; q: of the draft, "
                              "for the guesses that its "
             "tree kept" : "p: of the target at temperature 1; nothing was drafted after this row");
}

static void top_json(struct app *a, const struct probe *p, const struct step_view *v,
                     struct buf *json)
{
    int r = kept(p, p->share_row), child[TREE_MAX], n = guesses_of(&v->tree, p->share_row, child);
    again_json(a, p, json);
    for (int side = 0; side < 2; side++) {
        jput_key(json, side ? "draft" : "target");
        jput_open(json, '[');
        for (int i = 0; i < (side ? n : PROBE_BEST) && (side || p->best[r][i] >= 0); i++) {
            int32_t id = side ? v->tree.token[child[i]] : p->best[r][i];
            size_t len;
            const char *text = backend_token(a->backend, id, &len);
            jput_open(json, '{');
            jput_fields(json, "%d{token}%.*s{text}", id, (int)len, text);
            if (side) {
                jput_fields(json, "%g{q}%d{node}%s{fate}", v->tree.q[child[i]], child[i],
                            fate_name(v->tree.fate[child[i]]));
            } else {
                jput_kreal(json, "p", exp((double)p->best_logp[r][i]));
            }
            jput_close(json, '}');
        }
        jput_close(json, ']');
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

struct probed {
    enum probe_view what;
    const struct probe *p;
    const struct step_view *v;
};

static void write_json(struct app *a, const struct probed *x, struct buf *json)
{
    jput_open(json, '{');
    jput_kopen(json, name_of[x->what], '{');
    if (x->what == PROBE_LAYERS)
        layers_json(a, x->p, json);
    else if (x->what == PROBE_KEYS)
        attn_json(a, x->p, json);
    else
        top_json(a, x->p, x->v, json);
    jput_close(json, '}');
    jput_close(json, '}');
}

static void write_probe(struct app *a, const void *arg, const struct printer *to)
{
    const struct probed *x = arg;
    if (to->json)
        write_json(a, x, to->json);
    else if (x->what == PROBE_LAYERS)
        layers_text(a, x->p, to->out);
    else if (x->what == PROBE_KEYS)
        attn_text(a, x->p, to->out);
    else
        top_text(a, x->p, x->v, to->out);
}

static void answer_error(struct app *a, const char *why)
{
    struct err e = {0};
    err_set(&e, ERR_NEGATIVE, "%s", why);
    app_error(a, &e);
    if (!a->face.json || !a->opt.json)
        return;
    struct buf json = {0};
    jput_record(&json, "%s{error}%d{code}", e.msg, e.kind);
    a->face.json(a, json.p);
    buf_free(&json);
}

void app_show_probe(struct app *a, const struct event *ev)
{
    struct step_view v;
    const struct probe *p = ev->probe;
    if (a->n_want == 0)
        return;
    struct probe_want w = a->want[0];
    memmove(a->want, a->want + 1, (size_t)--a->n_want * sizeof *a->want);
    if (!p) {
        answer_error(a, ev->text.p ? ev->text.p : "the step was not computed");
        return;
    }
    if (!app_find_step(a, p->turn, p->step, &v, NULL))
        v = (struct step_view){0};
    app_print(a, write_probe, &(struct probed){w.what, p, &v});
}
