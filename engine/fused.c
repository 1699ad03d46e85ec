/* fused.c - see fused.h. */
#include "engine/fused.h"

#include "engine/bugs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 8, BEST = 8 /* logits of a row that are digested */ };
enum { STAMP_BEGIN, STAMP_GROWN, STAMP_ACCEPTED, N_STAMPS };

/* What a recorded run depends on besides buffers. */
struct run_key {
    int steps, topk, nodes; /* steps 0: plain */
    int slot;               /* of the drafter; steps > 0 */
    int cols;               /* of its page tables */
    struct sampling how;
};

struct run {
    struct run_key key;
    struct kgraph *graph; /* NULL: not recorded yet */
    uint64_t used;        /* clock of the last use, 0: free */
};

/* Where everything of a run lies, in words of i32 and f32 (kernels.h says what each is). The first
 * part is the inbox's image; from the verify plan's rows on it is the outbox's. */
struct io {
    kbuf root, prefix, drafted, state, limit, force, stop, draws;
    kbuf guess, guess_logp;             /* (topk) of the root */
    kbuf cells, full, swa;              /* slots of the draft's scratch cells, of the tree's rows */
    kbuf plan_draft, plan_extend, plan_verify;
    size_t in, out0;                    /* bytes of the inbox; where the outbox begins */
    kbuf n, parent, parent0, logp, score, u;
    kbuf choice, chance, node_logp;     /* (nodes); the last of all but the root */
    kbuf best, best_logp;               /* (nodes, BEST) */
    kbuf n_path, path, last, src[2], dst[2];
    kbuf next, next_logp;               /* (topk) guesses after the new root, draft ids */
    kbuf time[N_STAMPS];                /* (2) words of nanoseconds */
    struct k_tree tree;
    size_t end;
};

struct fused {
    struct plan draft, extend, verify; /* as sent; plain decoding uses the pass's own */
    kbuf mem;
    struct run run[MAX_RUNS];
    uint64_t clock;
};

/* One cycle on its way. */
struct trip {
    struct rig *r;
    struct fused *f;
    struct lane *l;
    struct run_key key;
    int nodes, scratch, levels; /* rows of verify; draft cells of all levels; plans of levels */
    struct plan *verify;        /* the plan that was sent */
    struct io io;
    char *in;
    const char *out;
};

static void forget_runs(struct rig *r)
{
    for (int i = 0; i < MAX_RUNS; i++) {
        if (r->fused->run[i].graph)
            r->dev.k->forget(r->dev.d, r->fused->run[i].graph);
        r->fused->run[i] = (struct run){0};
    }
}

void fused_close(struct rig *r)
{
    if (!r->fused)
        return;
    forget_runs(r);
    r->dev.k->release(r->dev.d, r->fused->mem);
    plan_free(&r->fused->draft);
    plan_free(&r->fused->extend);
    plan_free(&r->fused->verify);
    free(r->fused);
    r->fused = NULL;
}

/* Candidates that a shape grows. */
static int candidates(int steps, int topk)
{
    return topk + (steps - 1) * topk * topk;
}

bool fused_fits(const struct rig *r, const struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape)
{
    if (!r->fuse || bugs_any())
        return false;
    if (!shape)
        return true;
    int depth = min_int(r->context - l->tok.n - 1, lim->max_new - 1);
    return r->drafter && drafter_owns_kv(r->drafter) && shape->nodes > 1 && depth >= shape->steps &&
           shape->topk <= r->drafter->w->draft_vocab && l->guess.n == shape->topk &&
           lane_can_follow(r, l);
}

/* ---- plans, as they are before anything is drafted ------------------------------------------- */

/* A tree over the same rows: the first ones a chain as deep as the shape, the rest under the root. */
static void stand_in(struct tree *t, int32_t root, int nodes, int steps)
{
    tree_init(t, root);
    for (int i = 1; i < nodes; i++)
        tree_add(t, i <= steps ? i - 1 : 0, 0, 1, 0);
}

/* All levels in one plan: row (level - 2) * topk + k. Every row follows the first of each level
 * before its own. */
static void stand_in_rows(struct trip *t, struct draft_row *row, int base)
{
    int K = t->key.topk;
    for (int i = 0; i < t->scratch; i++) {
        int depth = i / K + 1;
        row[i] = (struct draft_row){.depth = depth, .cell = base + i, .n_seen = depth,
                                    .up = depth > 1 ? (depth - 2) * K : -1};
        for (int at = 0; at < depth - 1; at++)
            row[i].seen[at] = base + at * K;
        row[i].seen[depth - 1] = base + i;
    }
}

/* Builds and checks one plan under the pass's lock. */
static bool plan_one(struct trip *t, struct plan *p, enum plan_mode mode,
                     const struct plan_req *req, int cols, struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct plan_opts o = ps->opts;
    o.cols = cols;
    plan_build(p, ps->kv, mode, req, 1, &o);
    ps->digest = mix64(ps->digest ^ p->digest);
    return check_plan(&ps->check, p, ps->kv, req, e);
}

/* Columns of a cycle's plans: every one is built, hashed, checked and sent in each cycle, so there
 * are no more than the length needs, but for its doubling, at which runs are recorded anew. */
static int columns(const struct rig *r, const struct lane *l)
{
    int scratch = TREE_MAX + MAX_STEPS * MAX_TOPK, n = 64;
    while (n * r->kv.page_size < l->tok.n + scratch)
        n *= 2;
    return min_int(n, div_up(r->context + scratch, r->kv.page_size));
}

static bool plan_plain(struct trip *t, struct err *e)
{
    struct plan_req req = {.seq = &t->l->seq, .n = 1, .token = t->l->tok.v + t->l->seq.committed};
    t->verify = &t->r->pass.plan[PLAN_DECODE];
    t->r->pass.last = PLAN_DECODE;
    return plan_one(t, t->verify, PLAN_DECODE, &req, t->key.cols, e);
}

static bool plan_drafting(struct trip *t, struct err *e)
{
    struct seq *s = &t->l->seq;
    int cols = t->key.cols, after = t->key.steps + 1;
    struct tree tree;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t none[MAX_STEPS * MAX_TOPK] = {0};
    stand_in(&tree, t->l->tok.v[t->l->tok.n - 1], t->nodes, t->key.steps);
    stand_in_rows(t, row, s->drafted);
    struct plan_req draft = {.seq = s, .n = t->scratch, .token = none, .draft = row,
                             .levels = t->key.steps - 1, .topk = t->key.topk};
    struct plan_req verify = {.seq = s, .n = t->nodes, .token = tree.token, .tree = &tree};
    struct plan_req extend = {.seq = s, .n = after, .token = none, .draft_from = s->drafted,
                              .ahead = after};
    t->verify = &t->f->verify;
    return (t->scratch == 0 || plan_one(t, &t->f->draft, PLAN_DRAFT, &draft, cols, e)) &&
           plan_one(t, t->verify, PLAN_VERIFY, &verify, cols, e) &&
           plan_one(t, &t->f->extend, PLAN_DRAFT_EXTEND, &extend, cols, e);
}

/* Reserves every cell of the cycle, in both directions of the draft's pool: the levels' scratch
 * cells are written over by the rows that follow the accepted path. */
static bool reserve(struct trip *t, struct err *e)
{
    struct kv *kv = &t->r->kv;
    struct seq *s = &t->l->seq;
    int ahead = max_int(t->scratch, t->key.steps + 1);
    return kv_reserve(kv, s, s->committed + t->nodes, e) &&
           (!t->key.steps || kv_reserve_draft(kv, s, s->drafted, s->drafted + ahead, e));
}

/* ---- where things lie ------------------------------------------------------------------------ */

static kbuf place(struct trip *t, size_t words)
{
    size_t at = t->io.end, bytes = words * 4;
    t->io.end = (at + bytes + 15) & ~(size_t)15;
    return t->f->mem.n >= t->io.end ? kbuf_at(t->f->mem, at, bytes) : (kbuf){0};
}

static void place_in(struct trip *t)
{
    struct io *io = &t->io;
    size_t S = (size_t)t->key.steps, K = (size_t)t->key.topk;
    io->root = place(t, 1);
    io->prefix = place(t, 1);
    io->drafted = place(t, 1);
    io->state = place(t, 1);
    io->limit = place(t, 1);
    io->force = place(t, 1);
    io->stop = place(t, MAX_STOP);
    io->draws = place(t, S + 1);
    io->guess = place(t, K);
    io->guess_logp = place(t, K);
    io->cells = place(t, (size_t)t->scratch);
    io->full = place(t, (size_t)t->nodes);
    io->swa = place(t, (size_t)t->nodes);
    if (S) {
        io->plan_draft = place(t, t->scratch ? (size_t)t->f->draft.n_mem : 0);
        io->plan_extend = place(t, (size_t)t->f->extend.n_mem);
    }
    /* the verify plan's rows are the outbox's first part: 16 bytes on the dot */
    size_t pad = (size_t)(-t->verify->row_words) & 3;
    place(t, 0);
    size_t at = t->io.end + pad * 4, bytes = (size_t)t->verify->n_mem * 4;
    t->io.end = (at + bytes + 15) & ~(size_t)15;
    io->plan_verify = t->f->mem.n >= t->io.end ? kbuf_at(t->f->mem, at, bytes) : (kbuf){0};
    io->in = t->io.end;
    io->out0 = at + (size_t)t->verify->row_words * 4;
}

static void place_out(struct trip *t)
{
    struct io *io = &t->io;
    size_t N = (size_t)t->nodes, S = (size_t)t->key.steps, K = (size_t)t->key.topk;
    size_t most = S ? (size_t)candidates(t->key.steps, t->key.topk) : 0;
    io->choice = place(t, N);
    io->chance = place(t, N);
    io->best = place(t, N * BEST);
    io->best_logp = place(t, N * BEST);
    if (!S)
        return;
    kbuf *rows[] = {&io->parent, &io->parent0, &io->logp, &io->score, &io->u, &io->node_logp};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = place(t, N);
    kbuf *one[] = {&io->n, &io->n_path, &io->last};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        *one[i] = place(t, 1);
    kbuf *steps[] = {&io->path, &io->src[0], &io->src[1], &io->dst[0], &io->dst[1]};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        *steps[i] = place(t, S + 1);
    for (int i = 0; i < N_STAMPS; i++)
        io->time[i] = place(t, 2);
    io->next = place(t, K);
    io->next_logp = place(t, K);
    io->tree = (struct k_tree){.topk = t->key.topk, .steps = t->key.steps, .nodes = t->nodes};
    kbuf *all[] = {&io->tree.token, &io->tree.parent, &io->tree.logp, &io->tree.score,
                   &io->tree.cell};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = place(t, most);
    io->tree.front = place(t, S * K);
}

static void place_all(struct trip *t)
{
    t->io = (struct io){0};
    place_in(t);
    place_out(t);
}

/* Lays everything out, with more memory if it takes more. */
static bool lay_out(struct trip *t, struct err *e)
{
    struct rig *r = t->r;
    place_all(t);
    if (t->io.end > t->f->mem.n) {
        forget_runs(r);
        r->dev.k->release(r->dev.d, t->f->mem);
        t->f->mem = r->dev.k->alloc(r->dev.d, t->io.end * 2, "cycle", e);
        if (!t->f->mem.p)
            return false;
        place_all(t);
    }
    t->in = r->dev.k->inbox(r->dev.d, t->io.in);
    return t->in != NULL || (r->dev.k->sync(r->dev.d, e) &&
                             err_set(e, ERR_MODEL, "the context is too long for one cycle's plan"));
}

/* ---- the inbox ------------------------------------------------------------------------------- */

static void *in_at(struct trip *t, kbuf b)
{
    return t->in + ((char *)b.p - (char *)t->f->mem.p);
}

static void put_int(struct trip *t, kbuf b, int32_t v)
{
    memcpy(in_at(t, b), &v, sizeof v);
}

static void put_plan(struct trip *t, kbuf b, const struct plan *p)
{
    memcpy(in_at(t, b), p->mem, (size_t)p->n_mem * sizeof *p->mem);
}

static void put_draft(struct trip *t)
{
    const struct lane *l = t->l;
    int32_t *cells = in_at(t, t->io.cells), *full = in_at(t, t->io.full);
    int32_t *swa = in_at(t, t->io.swa);
    const struct kv *kv = &t->r->kv;
    memcpy(in_at(t, t->io.guess), l->guess.token, (size_t)t->key.topk * 4);
    memcpy(in_at(t, t->io.guess_logp), l->guess.logp, (size_t)t->key.topk * 4);
    for (int i = 0; i < t->scratch; i++)
        cells[i] = kv_draft_slot(kv, &l->seq, l->seq.drafted + i).v;
    for (int i = 0; i < t->nodes; i++) {
        full_slot s = kv_full_slot(kv, &l->seq, l->seq.committed + i);
        full[i] = s.v;
        swa[i] = kv->has_swa ? kv_swa_slot(kv, s).v : 0;
    }
    if (t->scratch)
        put_plan(t, t->io.plan_draft, &t->f->draft);
    put_plan(t, t->io.plan_extend, &t->f->extend);
}

static void put_all(struct trip *t, const struct step_limits *lim)
{
    const struct rig *r = t->r;
    const struct lane *l = t->l;
    put_int(t, t->io.root, l->tok.v[l->tok.n - 1]);
    put_int(t, t->io.prefix, l->seq.committed);
    put_int(t, t->io.drafted, l->seq.drafted);
    put_int(t, t->io.state, t->key.slot);
    put_int(t, t->io.limit, max_int(1, min_int(lim->max_new, r->context - l->tok.n)));
    put_int(t, t->io.force, l->force);
    memcpy(in_at(t, t->io.stop), r->stop, sizeof r->stop);
    float *draws = in_at(t, t->io.draws);
    for (int i = 0; i <= t->key.steps; i++)
        draws[i] = l->how.temperature > 0 ? uniform(l->seed, l->draws + (uint64_t)i) : 0;
    if (t->key.steps)
        put_draft(t);
    put_plan(t, t->io.plan_verify, t->verify);
}

/* ---- the run --------------------------------------------------------------------------------- */

static struct k_reach reach_of(const struct k_table *t, int window, kbuf slots)
{
    return (struct k_reach){.window = window, .expand_w = t->expand_w, .slots = slots, .lo = t->lo,
                            .hi = t->hi, .n_expand = t->n_expand, .expand = t->expand};
}

/* Level 1 is known; each further one runs the front of the one before. */
static void run_levels(struct trip *t)
{
    struct rig *r = t->r;
    struct drafter *d = r->drafter;
    int K = t->key.topk;
    struct k_plan all = {0};
    struct k_spread s = {.t = &t->io.tree, .ids = t->io.guess, .logp = t->io.guess_logp,
                         .prefix = t->io.drafted, .root = t->io.state, .from = d->idx};
    if (t->scratch)
        all = plan_view(&t->f->draft, t->io.plan_draft);
    for (s.level = 1; s.level <= t->key.steps; s.level++) {
        struct k_plan kp = {0};
        s.n_reach = 0;
        if (s.level < t->key.steps) {
            kp = plan_rows(&all, (s.level - 1) * K, K);
            s.token = kp.token;
            if (t->f->draft.use_draft)
                s.reach[s.n_reach++] = reach_of(&kp.draft, 0, t->io.cells);
            if (t->f->draft.use_draft_win)
                s.reach[s.n_reach++] =
                    reach_of(&kp.draft_win, t->f->draft.draft_win.t.window, t->io.cells);
        }
        r->dev.k->spread(r->dev.d, &s);
        if (s.level == t->key.steps)
            break;
        drafter_gather(d, s.level == 1 ? d->root : d->state, d->idx, K, d->state_n, d->inputs);
        d->ops->level(d, &kp, K, d->inputs);
        drafter_topk(d, K, K, d->ids, d->logp);
        s.ids = d->ids;
        s.logp = d->logp;
        s.d2t = d->d2t;
    }
}

static void run_keep(struct trip *t, const struct k_plan *kp)
{
    struct io *io = &t->io;
    struct k_keep a = {.t = &io->tree, .root = io->root, .prefix = io->prefix, .draws = io->draws,
                       .n = io->n, .token = kp->token, .pos = kp->pos, .parent = io->parent,
                       .parent0 = io->parent0, .logp = io->logp, .score = io->score, .u = io->u};
    a.reach[a.n_reach++] = reach_of(&kp->full, 0, io->full);
    if (t->verify->use_swa)
        a.reach[a.n_reach++] = reach_of(&kp->swa, t->verify->swa.t.window, io->swa);
    t->r->dev.k->keep(t->r->dev.d, &a);
}

/* Draws at every row, and what the log wants to know of the logits. */
static void run_draws(struct trip *t, const struct k_plan *kp)
{
    struct rig *r = t->r;
    struct io *io = &t->io;
    int V = r->m->cfg.vocab, N = t->nodes;
    r->dev.k->sample(r->dev.d, &(struct k_sample){
        .rows = N, .n = V, .logits = r->logits, .mask = r->mask, .how = t->key.how,
        .u = t->key.steps ? io->u : io->draws, .ids = io->choice, .p = io->chance});
    r->dev.k->topk(r->dev.d, &(struct k_topk){.rows = N, .n = V, .k = min_int(BEST, V),
                                              .logits = r->logits, .ids = io->best,
                                              .logp = io->best_logp});
    if (N == 1)
        return;
    size_t bytes = (size_t)(N - 1) * 4;
    r->dev.k->logp(r->dev.d, &(struct k_logp){
        .pairs = N - 1, .n = V, .rows = N, .logits = r->logits,
        .row = kbuf_at(io->parent0, 4, bytes), .id = kbuf_at(kp->token, 4, bytes),
        .logp = io->node_logp});
}

static void run_accept(struct trip *t, const struct k_plan *kp, kbuf emitted)
{
    struct rig *r = t->r;
    struct io *io = &t->io;
    struct k_accept a = {
        .nodes = t->nodes, .steps = t->key.steps, .n_stop = r->n_stop, .n = io->n,
        .token = kp->token, .parent = io->parent, .choice = io->choice, .limit = io->limit,
        .force = io->force, .stop = io->stop, .n_pools = r->kv.has_swa ? 2 : 1,
        .slots = {io->full, io->swa}, .n_path = io->n_path, .path = io->path, .emitted = emitted,
        .last = io->last, .src = {io->src[0], io->src[1]}, .dst = {io->dst[0], io->dst[1]}};
    r->dev.k->accept(r->dev.d, &a);
    net_move(&r->net, POOL_FULL, t->key.steps + 1, io->src[0], io->dst[0]);
    if (r->kv.has_swa)
        net_move(&r->net, POOL_SWA, t->key.steps + 1, io->src[1], io->dst[1]);
}

/* Everything between inbox and outbox. */
static void run_ops(struct trip *t)
{
    struct rig *r = t->r;
    struct drafter *d = r->drafter;
    struct k_plan kp = plan_view(t->verify, t->io.plan_verify);
    r->dev.k->take(r->dev.d, kbuf_at(t->f->mem, 0, t->io.in), t->io.in);
    if (t->key.steps) {
        r->dev.k->stamp(r->dev.d, t->io.time[STAMP_BEGIN]);
        run_levels(t);
        run_keep(t, &kp);
        r->dev.k->stamp(r->dev.d, t->io.time[STAMP_GROWN]);
    }
    net_forward(&r->net, t->verify, &kp, t->key.steps ? drafter_taps(d) : NULL);
    net_logits(&r->net, t->nodes, (kbuf){0}, r->logits, (kbuf){0});
    run_draws(t, &kp);
    if (t->key.steps) {
        struct k_plan after = plan_view(&t->f->extend, t->io.plan_extend);
        run_accept(t, &kp, after.token);
        r->dev.k->stamp(r->dev.d, t->io.time[STAMP_ACCEPTED]);
        d->ops->extend(d, &after, t->key.steps + 1, t->io.path, t->io.last, 1);
        drafter_keep_root(d, t->key.slot);
        drafter_topk(d, 1, t->key.topk, t->io.next, t->io.next_logp);
    }
    size_t out = t->io.end - t->io.out0;
    r->dev.k->give(r->dev.d, kbuf_at(t->f->mem, t->io.out0, out), out);
}

static bool same_key(const struct run_key *a, const struct run_key *b)
{
    return a->steps == b->steps && a->topk == b->topk && a->nodes == b->nodes &&
           a->slot == b->slot && a->cols == b->cols && a->how.temperature == b->how.temperature &&
           a->how.top_k == b->how.top_k && a->how.top_p == b->how.top_p &&
           a->how.min_p == b->how.min_p;
}

/* The run of this key; a new one takes the place of the one that was not used for longest. */
static struct run *find_run(struct rig *r, const struct run_key *key)
{
    struct run *run = r->fused->run, *old = run;
    for (int i = 0; i < MAX_RUNS; i++) {
        if (run[i].used && same_key(&run[i].key, key))
            return &run[i];
        if (run[i].used < old->used)
            old = &run[i];
    }
    r->dev.k->forget(r->dev.d, old->graph);
    *old = (struct run){.key = *key};
    return old;
}

/* The first run of a key is launched kernel by kernel, the second one is recorded. */
static bool launch(struct trip *t, struct err *e)
{
    const struct kernels *k = t->r->dev.k;
    struct kdev *d = t->r->dev.d;
    struct run *run = find_run(t->r, &t->key);
    bool known = run->used > 0;
    run->used = ++t->f->clock;
    if (t->r->record && known && !run->graph && k->record(d)) {
        run_ops(t);
        run->graph = k->recorded(d, e);
        if (!run->graph)
            return false;
    }
    bool replay = t->r->record && run->graph;
    if (replay)
        k->replay(d, run->graph);
    else
        run_ops(t);
    t->r->n_fused++;
    t->r->n_replayed += replay;
    return true;
}

/* ---- the outbox ------------------------------------------------------------------------------ */

static const void *out_at(const struct trip *t, kbuf b)
{
    return t->out + ((char *)b.p - (char *)t->f->mem.p - t->io.out0);
}

static int32_t out_int(const struct trip *t, kbuf b)
{
    int32_t v;
    memcpy(&v, out_at(t, b), sizeof v);
    return v;
}

/* The row words of the verify plan as the device left them, seen through the plan that was sent. */
static const int32_t *device_rows(const struct trip *t)
{
    return (const int32_t *)(const void *)t->out;
}

static bool read_tree(struct trip *t, struct err *e)
{
    struct lane *l = t->l;
    const int32_t *parent = out_at(t, t->io.parent);
    const int32_t *token = device_rows(t) + (t->verify->token - t->verify->mem) -
                           t->verify->row_words;
    const float *logp = out_at(t, t->io.logp), *score = out_at(t, t->io.score);
    const float *p = out_at(t, t->io.node_logp);
    int n = out_int(t, t->io.n);
    tree_init(&l->tree, l->tok.v[l->tok.n - 1]);
    for (int i = 1; i < n; i++) {
        if (n > t->nodes || parent[i] < 0 || parent[i] >= i)
            return err_set(e, ERR_INVARIANT, "I13 the device's tree: node %d of %d has parent %d", i,
                           n, parent[i]);
        tree_add(&l->tree, parent[i], token[i], expf(logp[i]), score[i]);
        l->tree.p[i] = expf(p[i - 1]);
    }
    return n >= 1 || err_set(e, ERR_INVARIANT, "I13 the device's tree has %d nodes", n);
}

/* The levels as they were run, from the candidates. */
static int read_levels(struct trip *t, struct draft_row *row, int32_t *token, int base)
{
    const int32_t *front = out_at(t, t->io.tree.front), *tok = out_at(t, t->io.tree.token);
    const int32_t *parent = out_at(t, t->io.tree.parent), *cell = out_at(t, t->io.tree.cell);
    int n = 0;
    for (int i = 0; i < t->scratch; i++) {
        int depth = i / t->key.topk + 1;
        if (front[i] < 0)
            continue;
        struct draft_row *to = &row[n];
        *to = (struct draft_row){.depth = depth, .cell = base + i, .up = -1, .n_seen = depth};
        for (int c = front[i], at = depth - 1; at >= 0 && c >= 0; c = parent[c], at--)
            to->seen[at] = base + cell[c];
        for (int j = 0; j < n && depth > 1; j++)
            if (row[j].cell == to->seen[depth - 2])
                to->up = j;
        token[n++] = tok[front[i]];
    }
    return n;
}

/* The plans of what was grown, checked like any other, and against what the device filled in. */
static bool check_grown(struct trip *t, struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct seq *s = &t->l->seq;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t token[MAX_STEPS * MAX_TOPK];
    struct plan_req verify = {.seq = s, .n = t->l->tree.n, .token = t->l->tree.token,
                              .tree = &t->l->tree};
    struct plan_req draft = {.seq = s, .n = read_levels(t, row, token, s->drafted), .token = token,
                             .draft = row, .levels = t->key.steps - 1, .topk = t->key.topk};
    struct plan *p = &ps->plan[PLAN_VERIFY];
    bool ok = plan_one(t, p, PLAN_VERIFY, &verify, 0, e) &&
              check_filled(&ps->check, p, t->verify, device_rows(t), e) &&
              (draft.n == 0 || plan_one(t, &ps->plan[PLAN_DRAFT], PLAN_DRAFT, &draft, 0, e));
    ps->last = PLAN_VERIFY;
    if (ok)
        plan_mark(p, ps->kv, &verify);
    return ok;
}

/* The path as the device walked it, and its tokens; the host walks the same way. */
static int read_path(struct trip *t, const struct step_limits *lim, int path[TREE_MAX],
                     int32_t *emitted, struct err *e)
{
    struct lane *l = t->l;
    const struct rig *r = t->r;
    const int32_t *choice = out_at(t, t->io.choice);
    const int32_t *walked = t->key.steps ? out_at(t, t->io.path) : NULL;
    int n = 1;
    path[0] = 0;
    for (int i = 0; i < l->tree.n; i++)
        if (choice[i] < 0) {
            err_set(e, ERR_INVARIANT,
                    "the model's output is not a number; the turn was stopped");
            return 0;
        }
    if (l->force) {
        n = out_int(t, t->io.n_path);
        for (int i = 0; i < n; i++)
            path[i] = walked[i];
    } else if (t->key.steps) {
        n = tree_accept(&l->tree, choice, max_int(1, min_int(lim->max_new, r->context - l->tok.n)),
                        path);
        for (int i = 0; i < n; i++)
            if (rig_stops(r, choice[path[i]]))
                n = i + 1;
        if (n != out_int(t, t->io.n_path) || memcmp(path, walked, (size_t)n * sizeof *path)) {
            err_set(e, ERR_INVARIANT, "I17 the device accepted %d rows of the tree, the host %d",
                    out_int(t, t->io.n_path), n);
            return 0;
        }
    }
    for (int i = 0; i < n; i++)
        emitted[i] = l->force && i + 1 < n ? l->tree.token[path[i + 1]] : choice[path[i]];
    return n;
}

static uint64_t digest_best(const struct trip *t, const int *path, int n)
{
    int k = min_int(BEST, t->r->m->cfg.vocab);
    const int32_t *best = out_at(t, t->io.best);
    const float *logp = out_at(t, t->io.best_logp);
    int32_t ids[(MAX_STEPS + 1) * BEST];
    float lp[(MAX_STEPS + 1) * BEST];
    for (int i = 0; i < n; i++) {
        memcpy(ids + i * k, best + path[i] * k, (size_t)k * 4);
        memcpy(lp + i * k, logp + path[i] * k, (size_t)k * 4);
    }
    return hash64(lp, (size_t)(n * k) * 4, hash64(ids, (size_t)(n * k) * 4, 0));
}

/* The marks of accepted cells go where the device moved the cells. */
static void move_marks(struct trip *t, const int *path, int n)
{
    struct kv *kv = &t->r->kv;
    const int32_t *full = in_at(t, t->io.full), *swa = in_at(t, t->io.swa);
    for (int i = 0; i < n; i++)
        if (path[i] != i) {
            kv_moved(kv, POOL_FULL, full[path[i]], full[i]);
            if (kv->has_swa)
                kv_moved(kv, POOL_SWA, swa[path[i]], swa[i]);
        }
}

static void next_guess(struct trip *t)
{
    struct guess *g = &t->l->guess;
    const int32_t *ids = out_at(t, t->io.next), *d2t = t->r->drafter->w->d2t;
    g->n = t->key.topk;
    for (int i = 0; i < g->n; i++)
        g->token[i] = d2t && ids[i] >= 0 ? d2t[ids[i]] : ids[i];
    memcpy(g->logp, out_at(t, t->io.next_logp), (size_t)g->n * sizeof *g->logp);
}

static bool settle(struct trip *t, const struct step_limits *lim, struct err *e)
{
    struct rig *r = t->r;
    struct lane *l = t->l;
    int path[TREE_MAX], offset[TREE_MAX];
    int32_t emitted[MAX_STEPS + 1];
    bool sampled = l->how.temperature > 0;
    const float *u = t->key.steps ? out_at(t, t->io.u) : in_at(t, t->io.draws);
    tree_init(&l->tree, l->tok.v[l->tok.n - 1]);
    if (t->key.steps && !read_tree(t, e))
        return false;
    int n = read_path(t, lim, path, emitted, e);
    if (n == 0)
        return false;
    if (t->key.steps && !check_grown(t, e))
        return false;
    uint64_t draws = l->draws + (sampled ? (uint64_t)n : 0);
    for (int i = 0; i < n; i++)
        offset[i] = l->tree.depth[path[i]];
    if (!check_draws(&r->pass.check, l->draws, draws, offset, n, sampled, e))
        return false;
    move_marks(t, path, t->key.steps ? n : 0);
    l->rec = (struct step_rec){.kind = l->tree.n > 1 ? STEP_SPEC : STEP_DECODE,
                               .pos0 = l->seq.committed, .rows = l->tree.n,
                               .drafted = l->tree.n - 1, .accepted = n - 1,
                               .bonus = emitted[n - 1],
                               .logit_digest = digest_best(t, path, n)};
    kv_commit(&r->kv, &l->seq, l->seq.committed + n);
    if (t->key.steps)
        kv_commit_draft(&r->kv, &l->seq, l->seq.committed);
    for (int i = 0; i < n; i++) {
        ids_add(&l->tok, emitted[i]);
        if (sampled)
            l->tree.u[path[i]] = u[path[i]];
    }
    kv_release_window(&r->kv, &l->seq);
    kv_rollback(&r->kv, &l->seq);
    l->n_new = n;
    l->draws = draws;
    l->stopped = rig_stops(r, l->rec.bonus);
    l->guess.n = 0;
    l->tap_row = -1;
    if (t->key.steps) {
        next_guess(t);
        l->tap_row = path[n - 1];
    }
    free(l->tap);
    l->tap = NULL;
    return true;
}

/* ---- a cycle --------------------------------------------------------------------------------- */

/* Plans, checks and uploads: everything that happens before the device is asked. */
static bool prepare(struct trip *t, const struct step_limits *lim, struct err *e)
{
    struct pass *ps = &t->r->pass;
    pass_lock(ps);
    bool ok = reserve(t, e) && (t->key.steps ? plan_drafting(t, e) : plan_plain(t, e));
    if (ok && !t->key.steps)
        plan_mark(t->verify, ps->kv,
                  &(struct plan_req){.seq = &t->l->seq, .n = 1,
                                     .token = t->l->tok.v + t->l->seq.committed});
    pass_unlock(ps);
    if (!ok || !lay_out(t, e))
        return false;
    pass_copies(ps);
    put_all(t, lim);
    return true;
}

static struct trip trip_of(struct rig *r, struct lane *l, const struct tree_shape *shape)
{
    struct trip t = {.r = r, .f = r->fused, .l = l, .nodes = 1, .key.how = l->how};
    t.key.cols = columns(r, l);
    if (!(l->how.temperature > 0)) /* greedy: the rest does not matter */
        t.key.how = (struct sampling){0};
    if (!shape)
        return t;
    t.key.steps = shape->steps;
    t.key.topk = shape->topk;
    t.key.nodes = t.nodes = min_int(shape->nodes, 1 + candidates(shape->steps, shape->topk));
    t.key.slot = l->slot - 1;
    t.scratch = (shape->steps - 1) * shape->topk;
    return t;
}

/* Splits the cycle's time: planned from t0, launched at t1, done at t2. The drafter's following counts
 * as commit, as on the stepped road. */
static void time_step(struct trip *t, uint64_t t0, uint64_t t1, uint64_t t2)
{
    struct step_rec *rec = &t->l->rec;
    uint64_t at[N_STAMPS] = {0}, all = clock_ns() - t0, run = t2 - t1;
    rec->us_draft = 0;
    rec->us_verify = (uint32_t)(run / 1000);
    if (t->key.steps) {
        for (int i = 0; i < N_STAMPS; i++)
            memcpy(&at[i], out_at(t, t->io.time[i]), sizeof at[i]);
        rec->us_draft = (uint32_t)((at[STAMP_GROWN] - at[STAMP_BEGIN]) / 1000);
        rec->us_verify = (uint32_t)((at[STAMP_ACCEPTED] - at[STAMP_GROWN]) / 1000);
    }
    uint64_t rest = all / 1000, taken = rec->us_draft + rec->us_verify;
    rec->us_commit = (uint32_t)(rest > taken ? rest - taken : 0);
}

bool fused_step(struct rig *r, struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape, struct err *e)
{
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns;
    if (!r->fused)
        r->fused = xcalloc(1, sizeof *r->fused);
    struct trip t = trip_of(r, l, shape);
    pass_begin_step(&r->pass);
    bool ok = prepare(&t, lim, e);
    uint64_t t1 = clock_ns();
    ok = ok && launch(&t, e);
    if (ok) {
        t.out = r->dev.k->outbox(r->dev.d);
        ok = t.out || r->dev.k->sync(r->dev.d, e);
    }
    uint64_t t2 = clock_ns();
    pass_lock(&r->pass);
    ok = ok && settle(&t, lim, e);
    if (!ok)
        kv_rollback(&r->kv, &l->seq);
    pass_unlock(&r->pass);
    if (!ok)
        return false;
    l->rec.page_digest = r->pass.digest;
    l->rec.draft_digest = l->tree.n > 1 ? tree_digest(&l->tree) : 0;
    l->rec.draws = l->draws;
    l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    time_step(&t, t0, t1, t2);
    return true;
}

bool fused_again(struct rig *r)
{
    const struct run *run = r->fused ? r->fused->run : NULL, *last = run;
    for (int i = 0; run && i < MAX_RUNS; i++)
        if (run[i].used > last->used)
            last = &run[i];
    if (!last || !last->graph || !r->record)
        return false;
    r->dev.k->replay(r->dev.d, last->graph);
    return true;
}
