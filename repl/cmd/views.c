/* views.c - the draft tree, the pool ledger, statistics and acceptance, as lines of text.
 *
 * Each view is a pure function of a copy (struct status, struct tree): the commands, the panes and
 * the tests call the same one. Everything that a colour shows is also shown by a character or a
 * word. */
#include <math.h>

#include "repl/app/report.h"
#include "repl/cmd/views.h"
#include "repl/compare/accepted.h"
#include "repl/repl.h"

enum { TOKEN_CELLS = 20, BAR_CELLS = 24 };

/* A count that only some backends know; -1: not known. */
static int64_t known(bool is, uint64_t n)
{
    return is ? (int64_t)n : -1;
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

void view_token(struct sheet *out, enum style st, struct backend *b, int32_t id, int cells)
{
    size_t n = 0;
    const char *s = b ? backend_token(b, id, &n) : "";
    if (n == 0) {
        sheet_printf(out, st, "#%d", (int)id);
        return;
    }
    sheet_quote(out, st, s, n, cells);
}

void note_token(const struct printer *to, enum style st, struct backend *b, int32_t id, int cells)
{
    if (!to->json)
        view_token(to->out, st, b, id, cells);
}

void print_token(const struct printer *to, enum style st, struct backend *b, int32_t id, int cells)
{
    size_t n;
    const char *text = backend_token(b, id, &n);
    print_add(to, st, "\f%d{token}%.*s{text}", id, (int)n, text);
    note_token(to, st, b, id, cells);
}

static int token_cells(struct backend *b, int32_t id, int cells, bool ascii)
{
    FREED(sheet_free) struct sheet one = {.ascii = ascii};
    view_token(&one, ST_TEXT, b, id, cells);
    return sheet_width(&one);
}

/* Appends "NAME .61", "NAME 1.0", "NAME <.01" for what would round to .00, "NAME -" for NAN. */
static void view_probability(struct sheet *out, enum style st, const char *name, float v)
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
    say_line(out, ST_DIM, "%s", narrow ? "" : " at temperature 1");
    if (d->room >= WORDS)
        return;
    say_line(out, ST_DIM, "%s", out->ascii ? "ok accepted  x rejected  - not reached"
                                      : "✓ accepted  ✗ rejected  – not reached");
}

void view_tree(struct backend *b, const struct tree *t, int turn, int step, int32_t bonus,
               int width, struct sheet *out)
{
    if (t->n == 0) {
        say_line(out, ST_DIM, "TREE   no step has drafted yet");
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
        int used = sheet_row_width(&out->row[out->n_row - 1]);
        sheet_printf(out, ST_TEXT, "%sbonus ", gap);
        view_token(out, ST_TEXT, b, bonus,
                  width ? max_int(min_int(width - used - 11, TOKEN_CELLS), 4) : TOKEN_CELLS);
    }
    sheet_line(out);
    add_subtree(&d, 0);
    tree_legend(&d, width);
}

/* ---- the pool ledger ------------------------------------------------------------------------- */

static int pool_sum(const struct pool_view *p)
{
    return p->free + p->used + p->evictable + p->protected_;
}

bool pool_sums(const struct pool_view *p)
{
    return pool_sum(p) == p->total - p->reserved;
}

static void ledger_sum(const char *name, const struct pool_view *p, const struct printer *to)
{
    int all = p->total - p->reserved, sum = pool_sum(p);
    print_add(to, ST_LABEL, "%-6s \v%d + %d + %d + %d = %d", name, p->free, p->used, p->evictable,
              p->protected_, sum);
    if (sum == all)
        print_note(to, ST_GOOD, " = %d - %d  %s", p->total, p->reserved, to->out->ascii ? "ok"
                   : "✓");
    else
        print_note(to, ST_BAD, ", but %d - %d = %d: %s by %+d pages", p->total, p->reserved, all,
                   to->out->ascii ? "WRONG" : "✗ wrong", sum - all);
}

static void show_pool(const struct pool_view *p, const char *name, int width,
                      const struct printer *to)
{
    enum { SHARE_FROM = 54 }; /* cells of a line with the share and no bar */
    int cells = min_int(BAR_CELLS, width - SHARE_FROM - 2);
    int held = p->used + p->protected_, all = p->total - p->reserved;
    double share = ratio((uint64_t)held, (uint64_t)all);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_LABEL, "%-6s{pool} \v\f%d{exists?}%d{page_size}%d{total}%d{reserved}%d{used}"
              "%d{protected}%d{evictable}%d{free}%d{sums?}", name, p->exists, p->page_size,
              p->total, p->reserved, p->used, p->protected_, p->evictable, p->free, pool_sums(p));
    if (!p->exists) {
        print_note(to, ST_DIM, "none: model and drafter do not need it");
    } else {
        print_add(to, ST_TEXT, "%6d %6d %9d %9d %6d", p->total, p->used, p->protected_,
                  p->evictable, p->free);
        if (width >= SHARE_FROM)
            print_add(to, ST_TEXT, "  ");
        if (cells >= 4 && !to->json)
            view_bar(to->out, share > 0.9 ? ST_WARN : ST_HOT, share, cells);
        if (width >= SHARE_FROM)
            print_add(to, ST_TEXT, " %3.0f%%", 100 * share);
        print_end(to);
    }
}

void view_pool(const struct pool_view pool[N_POOLS], int width, const struct printer *to)
{
    print_note(to, ST_HEAD, "%-6s %6s %6s %9s %9s %6s", "POOL", "total", "used", "protected",
               "evictable", "free");
    print_open(to, NULL, '[');
    for (int i = 0; i < N_POOLS; i++)
        show_pool(&pool[i], pool_name((enum pool_id)i), width, to);
    print_close(to, ']');
    print_note(to, ST_LABEL, "       free + used + evictable + protected = total - reserved");
    for (int i = 0; i < N_POOLS; i++)
        if (pool[i].exists)
            ledger_sum(pool_name((enum pool_id)i), &pool[i], to);
    print_note(to, ST_DIM, "pages of %d tokens; used: this session's own; protected: shared with "
               "another; evictable: held by checkpoints or idle sessions; reserved: guard pages",
               pool[POOL_FULL].page_size);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* "412 us", "3.1 ms", "2.45 s" */
static void add_time(const struct printer *to, const char *name, uint64_t us)
{
    print_add(to, ST_DIM, "  %s ", name);
    if (us < 1000)
        print_add(to, ST_TEXT, "%lu us", us);
    else if (us < 1000000)
        print_add(to, ST_TEXT, "%.1f ms", (double)us / 1e3);
    else
        print_add(to, ST_TEXT, "%.2f s", (double)us / 1e6);
}

static double percent(uint64_t part, uint64_t whole)
{
    return 100 * ratio(part, whole);
}

static void stats_mal(const struct draft_sums *d, double turn, double session,
                      const struct printer *to)
{
    print_add(to, ST_LABEL, "%-8s\v  ", "MAL");
    if (d->cycles == 0)
        print_add(to, ST_TEXT, d->drafted ? "the server does not count its steps: /accept"
                                          : "nothing drafted yet");
    else if (isnan(turn))
        print_add(to, ST_TEXT, "%.2f session; the last turn drafted nothing", session);
    else
        print_add(to, ST_TEXT, "%.2f last turn, %.2f session", turn, session);
    print_note(to, ST_DIM, "   (MAL = 1 + accepted/cycles)");
}

static void stats_speed(const struct status *s, const struct printer *to)
{
    const struct chat_view *v = &s->chat;
    const struct draft_sums *d = &v->drafts;
    bool is = s->has[VIEW_ACCEPT];
    double turn = is && v->turn_mal > 0 ? v->turn_mal : NAN;
    double session = is && v->session_mal > 0 ? v->session_mal : NAN;
    print_facts(to, ST_LABEL, "%-8s\v  %.1f{tok_s} tokens/s in the %s reply; %lu{generated} tokens "
                "generated", "speed", v->tok_s, v->busy ? "running" : "last", v->generated);
    print_add(to, ST_TEXT, "\f%g{turn_mal}%g{session_mal}%ld{cycles:-1}%ld{drafted:-1}"
              "%ld{accepted:-1}", turn, session, known(is, d->cycles), known(is, d->drafted),
              known(is, d->accepted));
    if (!is)
        return;
    stats_mal(d, turn, session, to);
    print_add(to, ST_LABEL, "%-8s\v  %lu drafted, %lu accepted (%.1f%%)", "draft", d->drafted,
              d->accepted, percent(d->accepted, d->drafted));
    if (d->cycles || !d->drafted)
        print_add(to, ST_TEXT, " in %lu cycles", d->cycles);
    print_end(to);
}

void add_checks(const struct check_view *c, const struct printer *to)
{
    print_add(to, ST_TEXT, "%lu checked", c->checks);
    if (c->unchecked)
        print_add(to, ST_WARN, ", %lu unchecked", c->unchecked);
    print_add(to, c->violations ? ST_BAD : ST_GOOD, ", %lu violation%s", c->violations,
              plural((long)c->violations));
}

static void stats_phases(const struct chat_view *v, const struct printer *to)
{
    uint64_t step_us = v->us_draft + v->us_verify + v->us_commit;
    add_time(to, "draft", v->us_draft);
    add_time(to, "verify", v->us_verify);
    add_time(to, "commit", v->us_commit);
    add_time(to, "check", v->us_check);
    if (step_us > 0)
        print_add(to, ST_DIM, " (%.2f%%)", percent(v->us_check, step_us));
}

static void stats_time(const struct status *s, const struct printer *to)
{
    const struct chat_view *v = &s->chat;
    FREED(buf_free) struct buf text = {0};
    bool is = s->has[VIEW_STEPS] && !s->has[VIEW_SERVED];
    print_add(to, ST_LABEL, "%-8s\f%lu{us_prefill}%ld{us_draft:-1}%ld{us_verify:-1}"
              "%ld{us_commit:-1}%ld{us_check:-1}", "time", v->us_prefill, known(is, v->us_draft),
              known(is, v->us_verify), known(is, v->us_commit), known(is, v->us_check));
    add_time(to, s->has[VIEW_SERVED] ? "to first tokens" : "prefill", v->us_prefill);
    if (is)
        stats_phases(v, to);
    print_end(to);
    print_facts(to, ST_LABEL, "%-8s\v  %lu{prompt_tokens} tokens, %lu{reused_tokens} of them "
                "reused from the cache (%.1f%%)", "prompt", v->prompt_tokens, v->reused_tokens,
                percent(v->reused_tokens, v->prompt_tokens));
    reuse_text(&v->reuse.why, v->reuse.n_prompt, v->reuse.n_reused, &text);
    if (text.n)
        print_note(to, ST_DIM, "%-8s  the latest: %s", "", text.p);
    if (to->json)
        report_reuse(&v->reuse, to->json);
}

static void stats_checks(const struct check_view *c, bool is, const struct printer *to)
{
    print_add(to, ST_TEXT, "\f%ld{checks:-1}%ld{unchecked:-1}%ld{violations:-1}",
              known(is, c->checks), known(is, c->unchecked), known(is, c->violations));
    if (!is)
        return;
    print_add(to, ST_LABEL, "%-8s\v  ", "plans");
    add_checks(c, to);
    if (c->violations && c->violation.text[0])
        print_add(to, ST_BAD, "; step %d.%d: %s", c->violation.turn, c->violation.step,
                  c->violation.text);
    print_end(to);
}

/* Omits facts that the backend does not know. */
static void stats_model(const struct chat_view *v, const struct backend_info *i,
                        const struct printer *to)
{
    print_add(to, ST_LABEL, "%-8s\v  %d{context}", "context", v->length);
    print_add(to, ST_TEXT, v->capacity > 0 ? " of %d{capacity:-1} tokens"
                                           : " tokens\f%d{capacity:-1}",
              v->capacity > 0 ? v->capacity : -1);
    print_add(to, ST_TEXT, v->committed >= 0 ? ", %d{committed:-1} with KV" : "\f%d{committed:-1}",
              max_int(v->committed, -1));
    print_end(to);
    print_add(to, ST_LABEL, "%-8s\v  %s\f%s{family}%s{device}%s{stored}%s{served_inputs}"
              "%d{window:-1}%d{page_size:-1}", "model", i->family ? i->family : "unknown",
              i->family, i->device, i->stored, i->served_inputs, i->n_layer > 0 ? i->window : -1,
              i->page_size > 0 ? i->page_size : -1);
    if (i->n_layer && i->n_swa_layer)
        print_add(to, ST_TEXT, ", %d layers (%d sliding, window %d)", i->n_layer, i->n_swa_layer,
                  i->window);
    else if (i->n_layer)
        print_add(to, ST_TEXT, ", %d layers, no window", i->n_layer);
    if (i->page_size)
        print_add(to, ST_TEXT, ", pages of %d", i->page_size);
    if (i->device)
        print_add(to, ST_TEXT, ", on %s", i->device);
    print_end(to);
}

static void stats_draft(const struct settings *set, const struct backend_info *i, bool is,
                        const struct printer *to)
{
    const char *off = i->draft_off ? i->draft_off : set->spec ? NULL : "/set spec";
    print_add(to, ST_TEXT, "\f%d{spec?}%s{spec_off}%s{drafter}", !i->draft_off && set->spec, off,
              i->draft_kind);
    if (!is)
        return;
    print_add(to, ST_LABEL, "%-8s", "spec");
    if (off)
        print_note(to, ST_WARN, "  off: %s%s", i->draft_off ? "" : "switched off by ", off);
    else if (set->auto_shape)
        print_note(to, ST_TEXT, "  on%s%s: shape auto", i->draft_about ? ", " : "",
                   i->draft_about ? i->draft_about : "");
    else
        print_note(to, ST_TEXT, "  on%s%s: %d steps, top %d, %d nodes", i->draft_about ? ", " : "",
                   i->draft_about ? i->draft_about : "", set->steps, set->topk, set->nodes);
}

static void show_shape(const struct auto_view_shape *x, bool now, const struct printer *to)
{
    char name[16];
    enum style st = now ? ST_TEXT : ST_DIM;
    PRINT_IN(to, NULL, '{');
    print_add(to, st, x->runs ? "%-8s  %-7s{shape}%6d{steps} steps" : "\f%s%s{shape}%d{steps}", "",
              report_shape(x, name), x->runs);
    print_add(to, st, x->runs && x->ms > 0
                  ? "  %8.3f{ms} ms  %5.2f{tokens} tokens expected  %8.0f tokens/s"
                  : "\f%f{ms}%f{tokens}%f", x->ms > 0 ? x->ms : NAN, x->tokens,
              x->tokens / x->ms * 1e3);
    if (x->runs)
        print_end(to);
}

/* The shape that draft.shape = auto chose, and those among which it chose. */
static void stats_auto(const struct auto_view *v, const struct printer *to)
{
    char name[16];
    PRINT_IN(to, "auto", '{');
    print_facts(to, ST_LABEL, "%-8s\v  %s{shape}: %s{why}; %lu{changes} change%s", "auto",
                report_shape(&v->at[v->now], name), v->logged ? "as the log says" : v->why,
                v->switches, plural((long)v->switches));
    PRINT_IN(to, "shapes", '[');
    for (int k = 0; k < v->n; k++)
        show_shape(&v->at[k], k == v->now, to);
}

void view_stats(const struct status *s, const struct backend_info *i, const struct printer *to)
{
    const struct chat_view *v = &s->chat;
    print_facts(to, ST_HEAD, s->has[VIEW_STEPS]
                    ? "STATS\v     session %s{session}   step %d{turn}.%d{step}"
                    : "STATS\v     session %s{session}   turn %d{turn}\f%d{step}",
            v->session, v->turn, v->step);
    stats_speed(s, to);
    stats_time(s, to);
    stats_checks(&s->check, s->has[VIEW_CHECK], to);
    stats_model(v, i, to);
    stats_draft(&v->settings, i, s->has[VIEW_ACCEPT] && !s->has[VIEW_SERVED], to);
    if (v->settings.auto_shape && v->auto_shape.n &&
        (to->json || (s->has[VIEW_ACCEPT] && v->settings.spec)))
        stats_auto(&v->auto_shape, to);
    if (s->has[VIEW_SERVED])
        print_add(to, ST_TEXT, "\f%s{model}%s{trouble}", i->model_dir,
                  v->trouble[0] ? v->trouble : NULL);
    if (v->trouble[0])
        print_note(to, ST_LABEL, "%-8s\v  %s", "server", v->trouble);
}

/* ---- acceptance by depth --------------------------------------------------------------------- */

void view_accept(const struct chat_view *v, bool served, int width, const struct printer *to)
{
    const struct draft_sums *s = &v->drafts;
    uint64_t parent = s->cycles;
    int cells = min_int(BAR_CELLS, width - 47);
    print_note(to, ST_HEAD, "ACCEPT\v  cycles %lu   drafted %lu   accepted %lu   rate %.2f",
               s->cycles, s->drafted, s->accepted, percent(s->accepted, s->drafted) / 100);
    if (s->cycles == 0) {
        print_note(to, ST_DIM, "nothing drafted yet");
    } else {
        print_add(to, ST_TEXT, "MAL %.2f = 1 + %lu/%lu", draft_sums_mal(s), s->accepted, s->cycles);
        print_note(to, ST_DIM, "  (1 + accepted/cycles)");
        print_note(to, ST_HEAD, "%5s %9s %9s %9s %9s", "depth", "drafted", "accepted", "of cycles",
                   "of parent");
    }
    print_open(to, NULL, '[');
    for (int d = 1; d < TREE_MAX && s->depth[d].drafted > 0; d++) {
        uint64_t accepted = s->depth[d].accepted;
        if (served && d > 1 && accepted == 0)
            break;
        double share = ratio(accepted, s->cycles);
        print_open(to, NULL, '{');
        print_add(to, ST_TEXT, "%5d{depth}\f%lu{cycles}\f %9lu{drafted} %9lu{accepted} %9.2f %9.2f "
                               " ",
                  d, s->cycles, s->depth[d].drafted, accepted, share, ratio(accepted, parent));
        if (cells >= 4 && !to->json)
            view_bar(to->out, ST_GOOD, share, cells);
        print_end(to);
        print_close(to, '}');
        parent = accepted;
    }
    print_close(to, ']');
    if (s->cycles == 0)
        return;
    print_note(to, ST_DIM,
               "rate = accepted/drafted; of cycles: accepted at that depth / all cycles");
    if (served)
        print_note(to, ST_DIM, "drafted: cycles with so many drafted tokens or more; the server "
                   "tells no depths");
    print_note(to, ST_DIM, served
                   ? "of parent: where the depth above was accepted; none was accepted deeper"
                   : "drafted: cycles with a node there; of parent: where the depth above was "
                     "accepted");
}
