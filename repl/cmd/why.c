/* why.c - /why: why a drafted node was accepted or rejected, in words and numbers.
 *
 * The rule (kernels/tree_rules.h): after a row the target makes its own choice, the best token
 * (greedy) or one drawn with the row's uniform; the child that holds this token is accepted. The
 * draft's probability q of a node decides only whether the tree has the node. */
#include <math.h>

#include "kernels/window.h"
#include "repl/cmd/cmd.h"
#include "repl/cmd/views.h"

enum { CELLS = 20, NEAR = 4 /* tokens */, CHANGES = 8 };

/* The facts of one node of a step. */
struct why {
    const struct step_view *v;
    int node, parent, depth, pos; /* parent -1: the root */
    int rank, siblings;           /* by the draft's probability, from 1 */
    int wrong;                    /* the first ancestor that was not accepted; -1: all were
                                     accepted */
    int32_t choice, rival;        /* after the parent; -1: not known */
    float choice_p, rival_p;      /* NAN: not known */
    float p, u;                   /* u NAN: greedy, or not on the path */
    bool forced;                  /* the choice was given by hand */
    bool ended;                   /* the reply ended above this node: nothing was chosen here */
    int window_first, W, P;
};

/* ---- facts ----------------------------------------------------------------------------------- */

/* The index of a row on the accepted path (the root: 0); -1: the row is not on the path. */
static int place_on_path(const struct tree *t, int row)
{
    int n = 0;
    if (row && t->fate[row] != FATE_ACCEPTED)
        return -1;
    for (int i = row; i > 0; i = t->parent[i])
        n++;
    return n;
}

/* The token that the target chose after row `row` of the tree. */
static void choice_of(const struct step_view *v, int row, struct why *w)
{
    int k = place_on_path(&v->tree, row);
    w->choice = w->rival = -1;
    w->choice_p = w->rival_p = NAN;
    w->ended = v->n_token > 0 && k >= v->n_token;
    if (k < 0 || k >= v->n_token)
        return;
    w->choice = v->token[k];
    w->choice_p = expf(v->fact[k].logp);
    w->rival = v->fact[k].rival;
    w->rival_p = expf(v->fact[k].rival_logp);
    w->forced = k < v->rec.forced;
}

static void look_at(struct app *a, const struct step_view *v, int node, struct why *w)
{
    const struct backend_info *info = backend_info(a->backend);
    const struct tree *t = &v->tree;
    CHECK(node >= 0 && node < TREE_MAX);
    *w = (struct why){.v = v, .node = node, .wrong = -1, .W = info->window,
                      .P = max_int(1, info->page_size)};
    w->parent = node ? t->parent[node] : -1;
    w->depth = node ? t->depth[node] : 0;
    w->pos = v->rec.pos0 + w->depth;
    w->p = node ? t->p[node] : NAN;
    w->u = w->parent >= 0 ? t->u[w->parent] : NAN;
    w->window_first = window_first(w->pos, w->W);
    choice_of(v, max_int(0, w->parent), w);
    if (node > 0)
        w->rank = tree_rank(t, node, &w->siblings);
    for (int i = w->parent; i > 0; i = t->parent[i])
        if (t->fate[i] != FATE_ACCEPTED)
            w->wrong = i;
}

/* The node that explains a step best: the draft's best guess at the end of the path, else the last
 * accepted node; 0: there is no drafted node. Nodes after the end of the reply are ignored. */
static int telling_node(const struct step_view *v)
{
    const struct tree *t = &v->tree;
    int best = 0, last = 0;
    for (int i = 1; i < t->n; i++) {
        if (v->n_token && place_on_path(t, t->parent[i]) >= v->n_token)
            continue;
        if (t->fate[i] == FATE_ACCEPTED)
            last = i;
        if (t->fate[i] == FATE_REJECTED && t->fate[t->parent[i]] == FATE_ACCEPTED &&
            (best == 0 || t->depth[i] > t->depth[best] ||
             (t->depth[i] == t->depth[best] && t->q[i] > t->q[best])))
            best = i;
    }
    return best && t->depth[best] > t->depth[last] ? best : last ? last : best;
}

static bool has_rejection(const struct step_view *v)
{
    int i = telling_node(v);
    return i > 0 && v->tree.fate[i] == FATE_REJECTED;
}

/* The newest step whose path ended because the draft was wrong. */
static bool newest_rejection(struct app *a, struct step_view *v, struct err *e)
{
    if (app_paused_step(a, v) && has_rejection(v))
        return true;
    FREED(free_at) struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    bool found = false;
    for (int i = n - 1; i >= 0 && !found; i--)
        found = step[i].rec.drafted > step[i].rec.accepted &&
                a->backend->steps->of_step(a->backend, step[i].turn, step[i].step, v) &&
                has_rejection(v);
    if (!found)
        err_set(e, ERR_NEGATIVE, n ? "no step in memory ended at a rejected node"
                                   : "there is no step yet: send a message first");
    return found;
}

/* ---- pages that changed hands ---------------------------------------------------------------- */

struct change {
    enum pool_id pool;
    int32_t page;
    int column;
    bool taken; /* else released */
};

/* Adds the pages that one table has and the other has not. */
static int differ(const struct page_table *in, const struct page_table *other, bool taken,
                  struct change *out, int n)
{
    for (int c = 0; c < in->n_page; c++)
        for (int p = 0; p < N_POOLS; p++) {
            int32_t page = page_in(&in->page[c], (enum pool_id)p);
            int32_t there = c < other->n_page ? page_in(&other->page[c], (enum pool_id)p) : 0;
            if (page && page != there && n < CHANGES)
                out[n++] = (struct change){(enum pool_id)p, page, c, taken};
        }
    return n;
}

/* The changes of the page table in this step, at most CHANGES; -1: not known. */
static int page_changes(struct app *a, const struct step_view *v, struct change out[CHANGES])
{
    FREED(page_table_free) struct page_table before = {0}, after = {0};
    struct err e;
    int n = -1;
    if (!backend_has(a->backend, VIEW_PAGES) || v->step < 2 ||
        !app_table_at(a, v->turn, v->step - 1, &before, &e))
        return -1;
    if (app_table_at(a, v->turn, v->step, &after, &e)) {
        n = differ(&after, &before, true, out, 0);
        n = differ(&before, &after, false, out, n);
    }
    return n;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static void node_name(struct app *a, const struct tree *t, int node, const struct printer *to)
{
    print_add(to, ST_TEXT, node ? "node %d " : "the root ", node);
    note_token(to, ST_TEXT, a->backend, t->token[node], CELLS);
}

static const char *rule_name(const struct why *w)
{
    return w->wrong >= 0 ? "ancestor" : w->ended ? "ended" : w->forced ? "forced"
           : isnan(w->u) ? "greedy" : "sampled";
}

static void head_line(struct app *a, const struct why *w, const struct printer *to)
{
    static const struct {
        enum style st;
        const char *word;
    } fate[] = {{ST_DIM, "not verified"}, {ST_GOOD, "accepted"}, {ST_BAD, "rejected"},
                {ST_DIM, "cut: an ancestor was rejected"}};
    const struct tree *t = &w->v->tree;
    int f = t->fate[w->node] & 3;
    print_add(to, ST_HEAD,
              "WHY\v  step %d{turn}.%d{step}  \f%d{node}%d{parent}%d{depth}%d{position}",
              w->v->turn, w->v->step, w->node, w->parent, w->depth, w->pos);
    print_add(to, ST_TEXT, w->node ? "node %d " : "the root ", w->node);
    print_token(to, ST_TEXT, a->backend, t->token[w->node], CELLS);
    print_add(to, ST_TEXT, "\f%s{fate}", fate_name(t->fate[w->node]));
    if (w->node)
        print_add(to, ST_TEXT, "\f%g{q}%g{p}%d{rank}%d{guesses}%s{rule}%g{u}", t->q[w->node], w->p,
                  w->rank, w->siblings, rule_name(w), w->u);
    print_add(to, ST_TEXT, " at %d  \f%d{first_wrong:-1}", w->pos, w->wrong);
    if (w->node && w->ended)
        print_note(to, ST_DIM, "not judged: the reply ended above it");
    else if (w->node)
        print_note(to, fate[f].st, "%s", fate[f].word);
    else
        print_note(to, ST_DIM, "the last token of the step before; nobody drafted it here");
}

static void draft_line(struct app *a, const struct why *w, const struct printer *to)
{
    const struct tree *t = &w->v->tree;
    print_add(to, ST_LABEL, "%-8s ", "draft");
    print_add(to, ST_DRAFT, "q %.4f", (double)t->q[w->node]);
    print_add(to, ST_TEXT, ", rank %d of %d guess%s after ", w->rank, w->siblings,
              w->siblings == 1 ? "" : "es");
    node_name(a, t, w->parent, to);
    print_note(to, ST_TEXT, "; depth %d of %d", w->depth, tree_depth(t));
}

/* ": margin 0.58 nats, nearly a tie" of p over the other. */
static void add_margin(float p, float other, const struct printer *to)
{
    double nats = log((double)p) - log((double)other);
    bool tie = fabs(nats) < 0.05;
    if (isfinite(nats))
        print_add(to, tie ? ST_WARN : ST_TEXT, ": margin %.3g nats%s", nats,
                  tie ? ", nearly a tie" : "");
}

/* A token that the target had: a member; text: what stands before the token in the line, NULL if
 * the line says nothing of it. */
static void had(struct app *a, const char *key, const char *text, int32_t id, float p,
                const struct printer *to)
{
    if (id < 0) {
        print_none(to, key);
        return;
    }
    PRINT_IN(to, key, '{');
    if (to->json || text) {
        print_add(to, ST_TEXT, "%s", text ? text : "");
        print_token(to, ST_TEXT, a->backend, id, CELLS);
        print_add(to, ST_TEXT, ", p %.4f{p}", (double)p);
    }
}

static void target_line(struct app *a, const struct why *w, const struct printer *to)
{
    const struct tree *t = &w->v->tree;
    int32_t token = t->token[w->node], rival = w->choice >= 0 ? w->rival : -1;
    bool chosen = w->node && w->choice == token;
    bool rivals = rival >= 0 && (chosen || !w->node || rival != token);
    print_add(to, ST_LABEL, "%-8s ", "target");
    if (w->node && isnan(w->p))
        print_add(to, ST_DIM, "p is not known");
    else if (w->node)
        print_add(to, ST_TEXT, "p %.4f", (double)w->p);
    if (w->node && !isnan(w->p) && t->q[w->node] > 0)
        print_add(to, ST_DIM, " (p/q %.3g)", (double)(w->p / t->q[w->node]));
    had(a, "choice", chosen ? NULL : w->node ? "; it chose " : "after it the target chose ",
        w->choice, w->choice_p, to);
    if (w->choice >= 0 && !chosen && w->node)
        add_margin(w->choice_p, w->p, to);
    had(a, "rival", rivals ? "; rival " : NULL, w->rival, w->rival_p, to);
    if (rivals && (chosen || !w->node))
        add_margin(w->choice_p, w->rival_p, to);
    if (w->choice < 0)
        print_add(to, ST_DIM, w->wrong >= 0 || w->ended
                                  ? "; no choice was made here: the path had ended before"
                                  : "; what it chose is not known");
    print_end(to);
}

static void rule_line(struct app *a, const struct why *w, const struct printer *to)
{
    print_add(to, ST_LABEL, "%-8s ", "rule");
    if (w->wrong >= 0) {
        print_add(to, ST_TEXT, "a node counts only below accepted ones; the first that was not "
                               "is ");
        node_name(a, &w->v->tree, w->wrong, to);
        print_note(to, ST_TEXT, " (/why %d.%d.%d)", w->v->turn, w->v->step, w->wrong);
    } else if (w->ended) {
        print_note(to, ST_TEXT, "the reply ended above this node, so the node was not judged");
    } else if (w->forced) {
        print_note(to, ST_WARN, "the token was given by hand (/force); the target had no choice");
    } else if (isnan(w->u)) {
        print_note(to, ST_TEXT, "greedy: the child that holds the target's best token is accepted");
    } else {
        print_note(to, ST_TEXT, "sampled: the target drew with u %.4f; the child that holds the "
                   "drawn token is accepted", (double)w->u);
    }
}

static void capture_line(struct app *a, const struct why *w, const struct printer *to)
{
    const struct backend_info *info = backend_info(a->backend);
    int levels = w->depth - 1;
    if (!w->node || !info->draft_kind)
        return;
    print_add(to, ST_LABEL, "%-8s ", "capture");
    if (info->draft_kv != DRAFT_KV_OWN || !info->capture[0]) {
        print_note(to, ST_TEXT, "none: %s", info->draft_kv == DRAFT_KV_TARGET
                                                ? "the draft reads the target's own cells"
                                                : "the draft has no weights");
        return;
    }
    print_add(to, ST_TEXT, "boundaries %s of the target, last at position %d", info->capture,
              w->v->rec.pos0 - 1);
    if (!strcmp(info->draft_kind, "dspark"))
        print_add(to, ST_TEXT, ": depth %d of the block, which sees masks; q has the bias of the "
                  "token before", w->depth);
    else if (!strcmp(info->draft_kind, "dflash2"))
        print_add(to, ST_TEXT, ": depth %d of the block, which sees masks; q is among its best "
                  "alone, chosen by the token before", w->depth);
    else if (levels == 0)
        print_add(to, ST_TEXT, ": the head guessed from captured states");
    else if (!strcmp(info->draft_kind, "peagle"))
        print_add(to, ST_TEXT, ": mask %d behind it, which sees the masks before, not the guess%s",
                  levels, levels == 1 ? "" : "es");
    else if (!strcmp(info->draft_kind, "dflash"))
        print_add(to, ST_TEXT, ": row %d of the block, which sees masks, not the %d guess%s before "
                  "it", w->depth, levels, levels == 1 ? "" : "es");
    else
        print_add(to, ST_TEXT, ": %d level%s on, where the head reads its own output", levels,
                  plural(levels));
    if (w->depth == 1 && w->v->tree.fate[w->node] == FATE_REJECTED)
        print_add(to, ST_DIM, " (often so? /calibrate)");
    print_end(to);
}

static void window_line(const struct why *w, const struct printer *to)
{
    int past = w->pos + 1 - w->W; /* tokens that have left the window */
    if (!w->W)
        return;
    print_add(to, ST_LABEL, "%-8s ", "window");
    if (past <= 0)
        print_add(to, ST_TEXT, "sliding layers see every token up to %d; %d more fit W = %d",
                  w->pos, -past, w->W);
    else
        print_add(to, ST_TEXT, "sliding layers see %d-%d; %d token%s before that %s out of W = %d",
                  w->window_first, w->pos, past, plural(past), past == 1 ? "is" : "are", w->W);
    if (past > -NEAR && past <= NEAR)
        print_add(to, ST_WARN, "; near the edge");
    print_end(to);
}

static void page_line(const struct why *w, const struct printer *to)
{
    int page = w->pos / w->P, cell = w->pos % w->P, from = w->v->rec.pos0;
    print_add(to, ST_LABEL, "%-8s \vcell %d of %d in page %d (positions %d-%d)", "page",
              cell, w->P, page, page * w->P, page * w->P + w->P - 1);
    if (from / w->P != page)
        print_add(to, ST_WARN, "; a page boundary lies between the root and the node");
    else if (w->P > 2 * NEAR && (cell < NEAR || w->P - cell <= NEAR))
        print_add(to, ST_TEXT, "; %d from the boundary", cell < NEAR ? cell : w->P - cell);
    print_end(to);
}

static void changes_line(struct app *a, const struct why *w, const struct printer *to)
{
    struct change c[CHANGES];
    int n = page_changes(a, w->v, c);
    if (n < 0) {
        print_none(to, "pages");
        return;
    }
    print_add(to, ST_LABEL, "%-8s ", "pages");
    print_open(to, "pages", '[');
    for (int i = 0; i < n; i++) {
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT,
                  "%s%s %s{pool} page %d{page} (positions %d-%d)\f%d{column}%d{taken?}",
                  i ? ", " : "", c[i].taken ? "took" : "released", pool_name(c[i].pool), c[i].page,
                  c[i].column * w->P, c[i].column * w->P + w->P - 1, c[i].column, c[i].taken);
    }
    print_close(to, ']');
    print_note(to, n ? ST_TEXT : ST_DIM, n == CHANGES ? ", ..." : n ? " in this step"
               : "no page changed hands in this step");
}

static void show_why(struct app *a, const struct why *w, const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    head_line(a, w, to);
    if (w->node)
        draft_line(a, w, to);
    target_line(a, w, to);
    if (w->node)
        rule_line(a, w, to);
    print_add(to, ST_TEXT, "\f%d{window}%d{window_first}%d{page}%d{cell}%s{capture}", w->W,
              w->window_first, w->pos / w->P, w->pos % w->P, backend_info(a->backend)->capture);
    capture_line(a, w, to);
    window_line(w, to);
    page_line(w, to);
    changes_line(a, w, to);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* A step that drafted nothing is described by its only row, the root. */
static bool find_node(struct app *a, int turn, int step, int *node, struct step_view *v,
                      struct err *e)
{
    if (!app_find_step(a, turn, step, v, e))
        return false;
    if (v->rec.kind == STEP_PREFILL)
        return err_set(e, ERR_NEGATIVE, "step %d.%d was a prompt chunk: nothing was drafted or "
                                        "judged", turn, step);
    if (v->tree.n == 0) {
        struct step_view before;
        struct err none;
        bool known = step > 1 && app_find_step(a, turn, step - 1, &before, &none) && before.n_token;
        tree_init(&v->tree, known ? before.token[before.n_token - 1] : -1);
        v->tree.fate[0] = FATE_ACCEPTED;
    }
    if (*node < 0)
        *node = telling_node(v);
    return *node < v->tree.n ||
           err_set(e, ERR_USAGE, "step %d.%d has no node %d: its nodes are 0 to %d", turn, step,
                   *node, v->tree.n - 1);
}

bool view_why(struct app *a, int turn, int step, int node, const struct printer *to, struct err *e)
{
    struct step_view v;
    struct why w;
    if (backend_has(a->backend, VIEW_SERVED))
        return served_why(a, turn, step, to, e);
    if (!app_needs(a, "why", VIEW_TREES, e))
        return false;
    if (turn == 0) {
        if (!app_paused_step(a, &v) && !a->backend->trees->latest(a->backend, &v))
            return err_set(e, ERR_NEGATIVE, "no step has drafted yet");
        turn = v.turn;
        step = v.step;
    }
    if (!find_node(a, turn, step, &node, &v, e))
        return false;
    look_at(a, &v, node, &w);
    show_why(a, &w, to);
    return true;
}

bool cmd_why(struct cmd_call *c)
{
    struct app *a = c->app;
    struct step_view v;
    struct why w;
    int turn = 0, step = 0, node = -1;
    if (c->argc == 1 && !arg_step(a, c->argv[0], &turn, &step, &node, c->e))
        return false;
    if (backend_has(a->backend, VIEW_SERVED))
        return served_why(a, turn, step, &c->to, c->e);
    if (!cmd_needs(c, VIEW_TREES) || !cmd_needs(c, VIEW_STEPS))
        return false;
    if (c->argc == 0 && !app_address(a, &turn, &step)) {
        if (!newest_rejection(a, &v, c->e))
            return false;
        turn = v.turn;
        step = v.step;
    }
    if (!find_node(a, turn, step, &node, &v, c->e))
        return false;
    look_at(a, &v, node, &w);
    show_why(a, &w, &c->to);
    return true;
}
