/* views.c - the draft tree, the pool ledger, statistics and acceptance, as lines of text.
 *
 * Each view is a pure function of a copy (struct status, struct tree): the commands, the panes and
 * the tests call the same one. Everything that a colour shows is also shown by a character or a
 * word.
 */
#include <math.h>
#include <stdio.h>

#include "repl/repl.h"

enum { TOKEN_CELLS = 20, BAR_CELLS = 24 };

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

void view_bar(struct sheet *out, enum style st, double share, int cells)
{
    static const char *const eighth[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double at = fmin(fmax(share, 0), 1) * cells;
    int whole = out->ascii ? (int)lround(at) : (int)at;
    int part = out->ascii ? 0 : (int)((at - whole) * 8);
    for (int i = 0; i < whole; i++)
        sheet_add(out, st, out->ascii ? "#" : "█");
    sheet_add(out, st, eighth[part]);
    for (int i = whole + (part > 0); i < cells; i++)
        sheet_add(out, ST_DIM, out->ascii ? "." : "░");
}

/* ---- the draft tree -------------------------------------------------------------------------- */

void view_token(struct sheet *out, enum style st, struct backend *b, int32_t id,
                      int cells)
{
    size_t n = 0;
    const char *s = b ? backend_token(b, id, &n) : "";
    if (n == 0) {
        sheet_printf(out, st, "#%d", (int)id);
        return;
    }
    sheet_quote(out, st, s, n, cells);
}

static int token_cells(struct backend *b, int32_t id, int cells, bool ascii)
{
    struct sheet one;
    sheet_init(&one, ascii);
    view_token(&one, ST_TEXT, b, id, cells);
    int w = one.n_row ? text_width(one.row[0].text.p, one.row[0].text.n) : 0;
    sheet_free(&one);
    return w;
}

void view_probability(struct sheet *out, enum style st, const char *name, float v)
{
    char text[16];
    if (isnan(v))
        snprintf(text, sizeof text, "-");
    else if (v >= 0.995f)
        snprintf(text, sizeof text, "1.0");
    else if (v < 0.005f)
        snprintf(text, sizeof text, v > 0 ? "<.01" : "0");
    else
        snprintf(text, sizeof text, ".%02d", (int)lround(v * 100.0));
    sheet_printf(out, ST_LABEL, "%s ", name);
    sheet_printf(out, st, "%-5s", text);
}

static bool has_later_sibling(const struct tree *t, int node)
{
    for (int i = node + 1; i < t->n; i++)
        if (t->parent[i] == t->parent[node])
            return true;
    return false;
}

static int accepted_child(const struct tree *t, int node)
{
    for (int i = node + 1; i < t->n; i++)
        if (t->parent[i] == node && t->fate[i] == FATE_ACCEPTED)
            return i;
    return -1;
}

/* The lines of all ancestors, then the branch to the node itself. */
static void add_branches(struct sheet *out, const struct tree *t, int node)
{
    int path[TREE_MAX], n = 0;
    for (int i = node; i > 0; i = t->parent[i])
        path[n++] = i;
    while (n-- > 1)
        sheet_add(out, ST_DIM, !has_later_sibling(t, path[n]) ? "  " : out->ascii ? "| " : "│ ");
    if (node > 0 && has_later_sibling(t, node))
        sheet_add(out, ST_DIM, out->ascii ? "|-" : "├─");
    else if (node > 0)
        sheet_add(out, ST_DIM, out->ascii ? "`-" : "└─");
}

/* How a tree is drawn. */
struct drawing {
    struct sheet *out;
    struct backend *backend; /* or NULL */
    const struct tree *t;
    int32_t bonus;
    int column; /* where probabilities begin */
    int cells;  /* of a token at most */
    int room;   /* cells for the words behind a node's sign; fewer than WORDS: signs only */
};

enum { WORDS = 22 /* cells of the longest */, BESIDE = 22 /* gap, q, p and the sign */ };

/* Appends the fate of a node in words. */
static void add_reason(const struct drawing *d, int node)
{
    const struct tree *t = d->t;
    struct sheet *out = d->out;
    enum fate fate = (enum fate)t->fate[node];
    if (node == 0) {
        sheet_add(out, ST_DIM, d->room >= WORDS ? "  root: the last sampled token" : "  root");
    } else if (d->room < WORDS) {
        return;
    } else if (fate == FATE_ACCEPTED && !isnan(t->u[node])) {
        sheet_printf(out, ST_DIM, "  then u %.3f", (double)t->u[node]);
    } else if (fate == FATE_REJECTED && accepted_child(t, t->parent[node]) >= 0) {
        sheet_add(out, ST_DIM, "  sibling accepted first");
    } else if (fate == FATE_REJECTED && d->bonus >= 0) {
        sheet_add(out, ST_DIM, "  target drew ");
        view_token(out, ST_TEXT, d->backend, d->bonus, min_int(TOKEN_CELLS, d->room - 14));
    } else if (fate == FATE_REJECTED) {
        sheet_add(out, ST_DIM, "  target drew another");
    } else if (fate == FATE_CUT) {
        bool ended = t->fate[t->parent[node]] == FATE_ACCEPTED;
        sheet_add(out, ST_DIM, ended ? "  reply ended above" : "  parent rejected");
    } else if (fate == FATE_NONE) {
        sheet_add(out, ST_DIM, "  not verified");
    }
}

static void add_node(const struct drawing *d, int node)
{
    static const struct {
        enum style st;
        const char *utf8, *ascii;
    } sign[] = {[FATE_NONE] = {ST_DIM, "?", "?"},
                [FATE_ACCEPTED] = {ST_GOOD, "✓", "ok"},
                [FATE_REJECTED] = {ST_BAD, "✗", "x"},
                [FATE_CUT] = {ST_DIM, "–", "-"}};
    const struct tree *t = d->t;
    struct sheet *out = d->out;
    CHECK(node >= 0 && node < TREE_MAX);
    int fate = t->fate[node] & 3;
    bool in = fate == FATE_ACCEPTED;
    add_branches(out, t, node);
    sheet_add(out, in ? ST_GOOD : ST_DIM, out->ascii ? (in ? "* " : "o ") : in ? "● " : "○ ");
    view_token(out, in ? ST_TEXT : ST_DIM, d->backend, t->token[node], d->cells);
    sheet_tab(out, d->column);
    if (node) {
        view_probability(out, ST_DRAFT, "q", t->q[node]);
        sheet_add(out, ST_TEXT, " ");
        view_probability(out, ST_TEXT, "p", t->p[node]);
        sheet_add(out, ST_TEXT, " ");
    }
    sheet_add(out, sign[fate].st, out->ascii ? sign[fate].ascii : sign[fate].utf8);
    add_reason(d, node);
    sheet_line(out);
}

/* Depth first, so that siblings stay together under their parent. */
static void add_subtree(const struct drawing *d, int node)
{
    add_node(d, node);
    for (int i = node + 1; i < d->t->n; i++)
        if (d->t->parent[i] == node)
            add_subtree(d, i);
}

static void tree_legend(const struct drawing *d, int width)
{
    struct sheet *out = d->out;
    bool narrow = width && width < 60;
    sheet_add(out, ST_DIM, "q: the draft's probability, p: the target's");
    sheet_add(out, ST_DIM, narrow ? "" : " at temperature 1");
    sheet_line(out);
    if (d->room >= WORDS)
        return;
    sheet_add(out, ST_DIM, out->ascii ? "ok accepted  x rejected  - not reached"
                                      : "✓ accepted  ✗ rejected  – not reached");
    sheet_line(out);
}

void view_tree(struct backend *b, const struct tree *t, int turn, int step, int32_t bonus,
               int width, struct sheet *out)
{
    if (t->n == 0) {
        sheet_add(out, ST_DIM, "TREE   no step has drafted yet");
        sheet_line(out);
        return;
    }
    struct drawing d = {.out = out, .backend = b, .t = t, .bonus = bonus, .cells = TOKEN_CELLS};
    int room = width - 2 * tree_depth(t) - 2 - BESIDE;
    if (width)
        d.cells = max_int(min_int(room, TOKEN_CELLS), 4);
    for (int i = 0; i < t->n; i++) {
        int token = token_cells(b, t->token[i], d.cells, out->ascii);
        d.column = max_int(d.column, 2 * t->depth[i] + 4 + token);
    }
    d.room = width ? width - d.column - 18 - (out->ascii ? 2 : 1) - 2 : 1 << 20;
    sheet_add(out, ST_HEAD, "TREE");
    const char *gap = width && width < 70 ? "  " : "   ";
    sheet_printf(out, ST_TEXT, "%sstep %d.%d%sdrafted %d%saccepted %d", gap, turn, step, gap,
                 t->n - 1, gap, tree_accepted(t));
    if (bonus >= 0) {
        int used = text_width(out->row[out->n_row - 1].text.p, out->row[out->n_row - 1].text.n);
        sheet_printf(out, ST_TEXT, "%sbonus ", gap);
        view_token(out, ST_TEXT, b, bonus,
                  width ? max_int(min_int(width - used - 11, TOKEN_CELLS), 4) : TOKEN_CELLS);
    }
    sheet_line(out);
    add_subtree(&d, 0);
    tree_legend(&d, width);
}

/* ---- the pool ledger ------------------------------------------------------------------------- */

static void add_ledger_sum(struct sheet *out, const char *name, const struct pool_view *p)
{
    int sum = p->free + p->used + p->evictable + p->protected_, all = p->total - p->reserved;
    sheet_printf(out, ST_LABEL, "%-6s ", name);
    sheet_printf(out, ST_TEXT, "%d + %d + %d + %d = %d", p->free, p->used, p->evictable,
                 p->protected_, sum);
    if (sum == all)
        sheet_printf(out, ST_GOOD, " = %d - %d  %s", p->total, p->reserved,
                     out->ascii ? "ok" : "✓");
    else
        sheet_printf(out, ST_BAD, ", but %d - %d = %d: %s by %+d pages", p->total, p->reserved, all,
                     out->ascii ? "WRONG" : "✗ wrong", sum - all);
    sheet_line(out);
}

void view_pool(const struct pool_view pool[N_POOLS], int width, struct sheet *out)
{
    int cells = min_int(BAR_CELLS, width - 56);
    sheet_printf(out, ST_HEAD, "%-6s %6s %6s %9s %9s %6s", "POOL", "total", "used", "protected",
                 "evictable", "free");
    sheet_line(out);
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &pool[i];
        sheet_printf(out, ST_LABEL, "%-6s ", pool_name((enum pool_id)i));
        if (!p->exists) {
            sheet_add(out, ST_DIM, "none: this model does not need it");
            sheet_line(out);
            continue;
        }
        double share = ratio(p->used + p->protected_, p->total - p->reserved);
        sheet_printf(out, ST_TEXT, "%6d %6d %9d %9d %6d", p->total, p->used, p->protected_,
                     p->evictable, p->free);
        sheet_add(out, ST_TEXT, "  ");
        if (cells >= 4)
            view_bar(out, share > 0.9 ? ST_WARN : ST_HOT, share, cells);
        sheet_printf(out, ST_TEXT, " %3.0f%%", 100 * share);
        sheet_line(out);
    }
    sheet_add(out, ST_LABEL, "       free + used + evictable + protected = total - reserved");
    sheet_line(out);
    for (int i = 0; i < N_POOLS; i++)
        if (pool[i].exists)
            add_ledger_sum(out, pool_name((enum pool_id)i), &pool[i]);
    sheet_printf(out, ST_DIM,
                 "pages of %d tokens; used: this session's own; protected: shared with another;",
                 pool[POOL_FULL].page_size);
    sheet_line(out);
    sheet_add(out, ST_DIM,
              "evictable: held by checkpoints or idle sessions; reserved: guard pages");
    sheet_line(out);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* "412 us", "3.1 ms", "2.45 s" */
static void add_time(struct sheet *out, const char *name, uint64_t us)
{
    sheet_printf(out, ST_DIM, "  %s ", name);
    if (us < 1000)
        sheet_printf(out, ST_TEXT, "%llu us", (unsigned long long)us);
    else if (us < 1000000)
        sheet_printf(out, ST_TEXT, "%.1f ms", (double)us / 1e3);
    else
        sheet_printf(out, ST_TEXT, "%.2f s", (double)us / 1e6);
}

static void begin_line(struct sheet *out, const char *label)
{
    sheet_printf(out, ST_LABEL, "%-8s", label);
}

static void stats_speed(const struct status *s, struct sheet *out)
{
    const struct chat_view *v = &s->chat;
    begin_line(out, "speed");
    sheet_printf(out, ST_TEXT, "  %.1f tokens/s in the %s reply; %llu tokens generated", v->tok_s,
                 v->busy ? "running" : "last", (unsigned long long)v->generated);
    sheet_line(out);
    if (!s->has[VIEW_ACCEPT])
        return;
    begin_line(out, "MAL");
    if (v->drafts.cycles == 0 && v->drafts.drafted > 0)
        sheet_add(out, ST_TEXT, "  the server does not count its steps: /accept");
    else if (v->drafts.cycles > 0 && v->turn_mal > 0)
        sheet_printf(out, ST_TEXT, "  %.2f last turn, %.2f session", v->turn_mal, v->session_mal);
    else if (v->drafts.cycles > 0)
        sheet_printf(out, ST_TEXT, "  %.2f session; the last turn drafted nothing", v->session_mal);
    else
        sheet_add(out, ST_TEXT, "  nothing drafted yet");
    sheet_add(out, ST_DIM, "   (MAL = 1 + accepted/cycles)");
    sheet_line(out);
    begin_line(out, "draft");
    sheet_printf(out, ST_TEXT, "  %llu drafted, %llu accepted (%.1f%%)",
                 (unsigned long long)v->drafts.drafted,
                 (unsigned long long)v->drafts.accepted,
                 100 * ratio((double)v->drafts.accepted, (double)v->drafts.drafted));
    if (v->drafts.cycles || !v->drafts.drafted)
        sheet_printf(out, ST_TEXT, " in %llu cycles", (unsigned long long)v->drafts.cycles);
    sheet_line(out);
}

void add_checks(const struct check_view *c, struct sheet *out)
{
    sheet_printf(out, ST_TEXT, "%llu checked", (unsigned long long)c->checks);
    if (c->unchecked)
        sheet_printf(out, ST_WARN, ", %llu unchecked", (unsigned long long)c->unchecked);
    sheet_printf(out, c->violations ? ST_BAD : ST_GOOD, ", %llu violation%s",
                 (unsigned long long)c->violations, c->violations == 1 ? "" : "s");
}

static void stats_phases(const struct chat_view *v, struct sheet *out)
{
    uint64_t step_us = v->us_draft + v->us_verify + v->us_commit;
    add_time(out, "draft", v->us_draft);
    add_time(out, "verify", v->us_verify);
    add_time(out, "commit", v->us_commit);
    add_time(out, "check", v->us_check);
    if (step_us > 0)
        sheet_printf(out, ST_DIM, " (%.2f%%)", 100 * ratio((double)v->us_check, (double)step_us));
}

static void stats_time(const struct status *s, struct sheet *out)
{
    const struct chat_view *v = &s->chat;
    begin_line(out, "time");
    add_time(out, s->has[VIEW_SERVED] ? "to first tokens" : "prefill", v->us_prefill);
    if (s->has[VIEW_STEPS] && !s->has[VIEW_SERVED])
        stats_phases(v, out);
    sheet_line(out);
    begin_line(out, "prompt");
    sheet_printf(out, ST_TEXT, "  %llu tokens, %llu of them reused from the cache (%.1f%%)",
                 (unsigned long long)v->prompt_tokens, (unsigned long long)v->reused_tokens,
                 100 * ratio((double)v->reused_tokens, (double)v->prompt_tokens));
    sheet_line(out);
    struct buf text = {0};
    reuse_text(&v->reuse.why, v->reuse.n_prompt, v->reuse.n_reused, &text);
    if (text.n) {
        begin_line(out, "");
        sheet_printf(out, ST_DIM, "  the latest: %s", text.p);
        sheet_line(out);
    }
    buf_free(&text);
}

static void stats_checks(const struct check_view *c, struct sheet *out)
{
    begin_line(out, "plans");
    sheet_add(out, ST_TEXT, "  ");
    add_checks(c, out);
    if (c->violations && c->violation.text[0])
        sheet_printf(out, ST_BAD, "; step %d.%d: %s", c->violation.turn, c->violation.step,
                     c->violation.text);
    sheet_line(out);
}

/* Omits facts that the backend does not know. */
static void stats_model(const struct chat_view *v, const struct backend_info *i, struct sheet *out)
{
    begin_line(out, "context");
    sheet_printf(out, ST_TEXT, "  %d", v->length);
    if (v->capacity)
        sheet_printf(out, ST_TEXT, " of %d", v->capacity);
    sheet_add(out, ST_TEXT, " tokens");
    if (v->committed >= 0)
        sheet_printf(out, ST_TEXT, ", %d with KV", v->committed);
    sheet_line(out);
    begin_line(out, "model");
    sheet_printf(out, ST_TEXT, "  %s", i->family ? i->family : "unknown");
    if (i->n_layer && i->n_swa_layer)
        sheet_printf(out, ST_TEXT, ", %d layers (%d sliding, window %d)", i->n_layer,
                     i->n_swa_layer, i->window);
    else if (i->n_layer)
        sheet_printf(out, ST_TEXT, ", %d layers, no window", i->n_layer);
    if (i->page_size)
        sheet_printf(out, ST_TEXT, ", pages of %d", i->page_size);
    if (i->device)
        sheet_printf(out, ST_TEXT, ", on %s", i->device);
    sheet_line(out);
}

static void stats_shape(const struct settings *set, const struct backend_info *i, struct sheet *out)
{
    sheet_printf(out, ST_TEXT, "  on%s%s: ", i->draft_about ? ", " : "", i->draft_about
                 ? i->draft_about : "");
    if (set->auto_shape)
        sheet_add(out, ST_TEXT, "shape auto");
    else
        sheet_printf(out, ST_TEXT, "%d steps, top %d, %d nodes", set->steps, set->topk, set->nodes);
}

const char *view_shape(const struct auto_view_shape *x, char out[16])
{
    if (x->steps)
        snprintf(out, 16, "%d-%d-%d", x->steps, x->topk, x->nodes);
    else
        snprintf(out, 16, "plain");
    return out;
}

/* The shape that draft.shape = auto chose, and those among which it chose. */
static void stats_auto(const struct auto_view *v, struct sheet *out)
{
    char name[16];
    if (v->n == 0)
        return;
    begin_line(out, "auto");
    sheet_printf(out, ST_TEXT, "  %s: %s; %llu change%s", view_shape(&v->at[v->now], name),
                 v->logged ? "as the log says" : v->why, (unsigned long long)v->switches,
                 v->switches == 1 ? "" : "s");
    sheet_line(out);
    for (int k = 0; k < v->n; k++) {
        const struct auto_view_shape *x = &v->at[k];
        if (x->runs == 0)
            continue;
        begin_line(out, "");
        sheet_printf(out, k == v->now ? ST_TEXT : ST_DIM, "  %-7s%6d steps", view_shape(x, name),
                     x->runs);
        if (x->ms > 0)
            sheet_printf(out, k == v->now ? ST_TEXT : ST_DIM,
                         "  %8.3f ms  %5.2f tokens expected  %8.0f tokens/s",
                         x->ms, x->tokens, x->tokens / x->ms * 1e3);
        sheet_line(out);
    }
}

static void stats_draft(const struct settings *set, const struct backend_info *i, struct sheet *out)
{
    begin_line(out, "spec");
    if (i->draft_off)
        sheet_printf(out, ST_WARN, "  off: %s", i->draft_off);
    else if (!set->spec)
        sheet_add(out, ST_WARN, "  off: switched off by /set spec");
    else
        stats_shape(set, i, out);
    sheet_line(out);
}

void view_stats(const struct status *s, const struct backend_info *i, struct sheet *out)
{
    const struct chat_view *v = &s->chat;
    sheet_add(out, ST_HEAD, "STATS");
    sheet_printf(out, ST_TEXT, "     session %s   ", v->session);
    if (s->has[VIEW_STEPS])
        sheet_printf(out, ST_TEXT, "step %d.%d", v->turn, v->step);
    else
        sheet_printf(out, ST_TEXT, "turn %d", v->turn);
    sheet_line(out);
    stats_speed(s, out);
    stats_time(s, out);
    if (s->has[VIEW_CHECK])
        stats_checks(&s->check, out);
    stats_model(v, i, out);
    if (s->has[VIEW_ACCEPT] && !s->has[VIEW_SERVED])
        stats_draft(&v->settings, i, out);
    if (s->has[VIEW_ACCEPT] && v->settings.spec && v->settings.auto_shape)
        stats_auto(&v->auto_shape, out);
    if (v->trouble[0]) {
        begin_line(out, "server");
        sheet_printf(out, ST_BAD, "  %s", v->trouble);
        sheet_line(out);
    }
}

/* ---- acceptance by depth --------------------------------------------------------------------- */

void view_accept(const struct chat_view *v, int width, struct sheet *out)
{
    int cells = min_int(BAR_CELLS, width - 47);
    sheet_add(out, ST_HEAD, "ACCEPT");
    sheet_printf(out, ST_TEXT, "  cycles %llu   drafted %llu   accepted %llu   rate %.2f",
                 (unsigned long long)v->drafts.cycles, (unsigned long long)v->drafts.drafted,
                 (unsigned long long)v->drafts.accepted,
                 ratio((double)v->drafts.accepted, (double)v->drafts.drafted));
    sheet_line(out);
    if (v->drafts.cycles == 0) {
        sheet_add(out, ST_DIM, "nothing drafted yet");
        sheet_line(out);
        return;
    }
    sheet_printf(out, ST_TEXT, "MAL %.2f = 1 + %llu/%llu",
                 draft_sums_mal(&v->drafts), (unsigned long long)v->drafts.accepted,
                 (unsigned long long)v->drafts.cycles);
    sheet_add(out, ST_DIM, "  (1 + accepted/cycles)");
    sheet_line(out);
    sheet_printf(out, ST_HEAD, "%5s %9s %9s %9s %9s", "depth", "drafted", "accepted", "of cycles",
                 "of parent");
    sheet_line(out);
    uint64_t parent = v->drafts.cycles;
    for (int d = 1; d < TREE_MAX && v->drafts.depth[d].drafted > 0; d++) {
        const struct depth_stat *s = &v->drafts.depth[d];
        double share = ratio((double)s->accepted, (double)v->drafts.cycles);
        sheet_printf(out, ST_TEXT, "%5d %9llu %9llu %9.2f %9.2f  ", d,
                     (unsigned long long)s->drafted, (unsigned long long)s->accepted, share,
                     ratio((double)s->accepted, (double)parent));
        if (cells >= 4)
            view_bar(out, ST_GOOD, share, cells);
        sheet_line(out);
        parent = s->accepted;
    }
    sheet_add(out, ST_DIM,
              "rate = accepted/drafted; of cycles: accepted at that depth / all cycles");
    sheet_line(out);
    sheet_add(out, ST_DIM,
              "drafted: cycles with a node there; of parent: where the depth above was accepted");
    sheet_line(out);
}
