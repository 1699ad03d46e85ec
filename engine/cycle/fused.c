/* fused.c - see fused.h. */
#include "engine/cycle/fused.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 8, BEST = 8 /* logits of a row that are digested */ };
enum { TIME_BEGIN, TIME_GROWN, TIME_READ, N_TIMES };

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
 * part is the inbox's image, the last one the outbox's; the plans whose rows the device fills in
 * lie in both. */
struct io {
    kbuf root, prefix, drafted, state, limit, force, stop, draws;
    kbuf guess, guess_logp;             /* (topk) of the root */
    kbuf cells, full, swa;              /* slots of the draft's scratch cells, of the tree's rows */
    kbuf plan_extend, plan_draft, plan_verify;
    size_t in, out0, out1;              /* bytes of the inbox; where the outbox begins and ends */
    kbuf n, parent, parent0, logp, score, u;
    kbuf choice, chance, node_logp;     /* (nodes); the last of all but the root */
    kbuf best, best_logp;               /* (nodes, BEST) */
    kbuf n_path, path, last, src[2], dst[2];
    kbuf next, next_logp;               /* (topk) guesses after the new root, draft ids */
    kbuf time[N_TIMES];                 /* (2) words of nanoseconds */
    struct k_tree tree;
    size_t end;
};

struct fused {
    struct page_list list; /* the pages of all plans */
    enum check_level checked; /* how strictly those columns were looked at that have not changed */
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
    int nodes, scratch; /* rows of verify; draft cells of all levels */
    struct plan *draft, *verify, *extend; /* the pass's own; NULL: the shape has none */
    struct io io;
    char *in;
    const char *out;
};

static void forget_runs(struct rig *r)
{
    for (int i = 0; i < MAX_RUNS; i++) {
        if (r->fused->run[i].graph)
            r->dev.k->graph_free(r->dev.d, r->fused->run[i].graph);
        r->fused->run[i] = (struct run){0};
    }
}

void fused_close(struct rig *r)
{
    if (!r->fused)
        return;
    forget_runs(r);
    r->dev.k->release(r->dev.d, r->fused->mem);
    list_close(&r->fused->list, r->dev.k, r->dev.d);
    free(r->fused);
    r->fused = NULL;
}

enum { SCRATCH = TREE_MAX + MAX_STEPS * MAX_TOPK }; /* cells of a cycle, in any pool, at most */

static int most_columns(const struct rig *r)
{
    return div_up(r->context + SCRATCH, r->kv.page_size);
}

static bool fused_open(struct rig *r, struct err *e)
{
    r->fused = xcalloc(1, sizeof *r->fused);
    bool ok = list_open(&r->fused->list, r->dev.k, r->dev.d, most_columns(r), e);
    if (!ok)
        fused_close(r);
    return ok;
}

/* Candidates that a shape grows. */
static int candidates(int steps, int topk)
{
    return topk + (steps - 1) * topk * topk;
}

bool fused_fits(const struct rig *r, const struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape)
{
    if (!r->fuse || bugs_any(&r->bugs))
        return false;
    if (!shape)
        return true;
    int depth = min_int(r->context - l->tok.n - 1, lim->max_new - 1);
    return r->drafter && drafter_owns_kv(r->drafter) && shape->nodes > 1 && depth >= shape->steps &&
           shape->topk <= drafter_vocab(r->drafter) && l->guess.n == shape->topk &&
           lane_can_follow(r, l);
}

/* ---- plans, as they are before anything is drafted ------------------------------------------- */

static struct plan *plan_of(struct trip *t, enum plan_mode mode)
{
    return &t->r->pass.plan[mode];
}

/* Builds and checks one plan under the pass's lock. */
static bool plan_one(struct trip *t, enum plan_mode mode, const struct plan_req *req, int width,
                     struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct plan_opts o = ps->opts;
    o.cols = t->key.cols;
    o.width = width;
    o.list = &t->f->list;
    ps->last = mode;
    plan_build(plan_of(t, mode), ps->kv, mode, req, 1, &o);
    return check_plan(&ps->check, plan_of(t, mode), ps->kv, req, e);
}

/* Columns of a cycle's tables: grids follow from them, so there are no more than the length needs,
 * but for its doubling, at which runs are recorded anew. */
static int columns(const struct rig *r, const struct lane *l)
{
    int n = 64;
    while (n * r->kv.page_size < l->tok.n + SCRATCH)
        n *= 2;
    return min_int(n, most_columns(r));
}

static bool plan_plain(struct trip *t, struct err *e)
{
    struct plan_req req = {.seq = &t->l->seq, .n = 1, .token = t->l->tok.v + t->l->seq.committed};
    t->verify = plan_of(t, PLAN_DECODE);
    return plan_one(t, PLAN_DECODE, &req, 0, e);
}

/* All levels in one plan: row (level - 2) * topk + k. Nothing is known of them but where they
 * write: every row stands behind no ancestor but itself. */
static bool plan_levels(struct trip *t, struct err *e)
{
    struct seq *s = &t->l->seq;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t none[MAX_STEPS * MAX_TOPK] = {0};
    struct plan_req req = {.seq = s, .n = t->scratch, .token = none, .draft = row,
                           .levels = t->key.steps - 1, .topk = t->key.topk};
    for (int i = 0; i < t->scratch; i++) {
        row[i].depth = i / t->key.topk + 1;
        row[i].cell = row[i].seen[0] = s->drafted + i;
        row[i].up = -1;
        row[i].n_seen = 1;
    }
    t->draft = plan_of(t, PLAN_DRAFT);
    return plan_one(t, PLAN_DRAFT, &req, t->key.steps - 1, e);
}

/* The tree is its root, and as many rows as it may grow to. */
static bool plan_drafting(struct trip *t, struct err *e)
{
    struct seq *s = &t->l->seq;
    int after = t->key.steps + 1;
    int32_t none[MAX_STEPS + 1] = {0};
    struct plan_req verify = {.seq = s, .n = t->nodes, .tree = &t->l->tree};
    struct plan_req extend = {.seq = s, .n = after, .token = none, .draft_from = s->drafted,
                              .ahead = after};
    tree_init(&t->l->tree, t->l->tok.v[t->l->tok.n - 1]);
    t->verify = plan_of(t, PLAN_VERIFY);
    t->extend = plan_of(t, PLAN_DRAFT_EXTEND);
    return (t->scratch == 0 || plan_levels(t, e)) &&
           plan_one(t, PLAN_DRAFT_EXTEND, &extend, 0, e) &&
           plan_one(t, PLAN_VERIFY, &verify, min_int(t->key.steps + 1, t->nodes), e);
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
    if (S)
        io->plan_extend = place(t, (size_t)t->extend->n_mem);
    io->out0 = io->end;
    if (t->draft)
        io->plan_draft = place(t, (size_t)t->draft->n_mem);
    io->plan_verify = place(t, (size_t)t->verify->n_mem);
    io->in = io->end;
}

/* What the host reads, then what stays on the device. */
static void place_out(struct trip *t)
{
    struct io *io = &t->io;
    size_t N = (size_t)t->nodes, S = (size_t)t->key.steps, K = (size_t)t->key.topk;
    size_t most = S ? (size_t)candidates(t->key.steps, t->key.topk) : 0;
    io->choice = place(t, N);
    io->best = place(t, N * BEST);
    io->best_logp = place(t, N * BEST);
    if (S) {
        kbuf *rows[] = {&io->parent, &io->logp, &io->score, &io->u, &io->node_logp};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            *rows[i] = place(t, N);
        kbuf *one[] = {&io->n, &io->n_path, &io->time[0], &io->time[1], &io->time[2]};
        for (size_t i = 0; i < sizeof one / sizeof *one; i++)
            *one[i] = place(t, 2);
        io->path = place(t, S + 1);
        io->next = place(t, K);
        io->next_logp = place(t, K);
        io->tree = (struct k_tree){.topk = t->key.topk, .steps = t->key.steps, .nodes = t->nodes};
        io->tree.front = place(t, S * K);
        io->tree.parent = place(t, most);
        io->tree.token = place(t, most);
        io->tree.cell = place(t, most);
    }
    io->out1 = io->end;
    io->chance = place(t, N);
    if (!S)
        return;
    kbuf *steps[] = {&io->src[0], &io->src[1], &io->dst[0], &io->dst[1]};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        *steps[i] = place(t, S + 1);
    io->parent0 = place(t, N);
    io->last = place(t, 1);
    io->tree.logp = place(t, most);
    io->tree.score = place(t, most);
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
        /* rests of tables that no cycle writes come back with what it does write */
        r->dev.k->fill(r->dev.d, t->f->mem, 0);
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
    if (t->draft)
        put_plan(t, t->io.plan_draft, t->draft);
    put_plan(t, t->io.plan_extend, t->extend);
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
    struct head *d = r->drafter->head;
    int K = t->key.topk;
    struct k_plan all = {0};
    struct k_topk best;
    struct k_grow s = {.t = &t->io.tree, .ids = t->io.guess, .logp = t->io.guess_logp,
                         .prefix = t->io.drafted, .root = t->io.state, .from = d->idx,
                         .time = t->io.time[TIME_BEGIN]};
    if (t->draft)
        all = plan_view(t->draft, t->io.plan_draft);
    for (s.level = 1; s.level <= t->key.steps; s.level++) {
        struct k_plan kp = {0};
        s.n_reach = 0;
        if (s.level < t->key.steps) {
            kp = plan_rows(&all, (s.level - 1) * K, K);
            s.token = kp.token;
            for (int i = TABLE_DRAFT; i < N_TABLES; i++)
                if (t->draft->table[i].used)
                    s.reach[s.n_reach++] =
                        reach_of(&kp.table[i], t->draft->table[i].window, t->io.cells);
        }
        r->dev.k->grow(r->dev.d, &s);
        if (s.level == t->key.steps)
            break;
        d->ops->level(d, &kp, K, s.level == 1 ? d->root : d->state, d->idx);
        best = head_best(d, K, K, d->ids, d->logp);
        s.topk = &best;
        s.ids = d->ids;
        s.logp = d->logp;
        s.d2t = d->d2t;
        s.time = (kbuf){0};
    }
}

static void run_select(struct trip *t, const struct k_plan *kp)
{
    struct io *io = &t->io;
    struct k_select a = {.t = &io->tree, .root = io->root, .prefix = io->prefix, .draws = io->draws,
                       .n = io->n, .token = kp->token, .pos = kp->pos, .parent = io->parent,
                       .parent0 = io->parent0, .logp = io->logp, .score = io->score, .u = io->u,
                       .time = io->time[TIME_GROWN]};
    const struct table *swa = &t->verify->table[TABLE_SWA];
    a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_FULL], 0, io->full);
    if (swa->used)
        a.reach[a.n_reach++] = reach_of(&kp->table[TABLE_SWA], swa->window, io->swa);
    t->r->dev.k->select(t->r->dev.d, &a);
}

/* Draws at every row, and what the log wants to know of the logits. */
static void run_draws(struct trip *t, const struct k_plan *kp)
{
    struct rig *r = t->r;
    struct io *io = &t->io;
    int V = r->m->cfg.vocab, N = t->nodes;
    size_t bytes = (size_t)(N - 1) * 4;
    struct k_sample draws = {
        .rows = N, .n = V, .logits = r->logits, .mask = r->mask, .how = t->key.how,
        .u = t->key.steps ? io->u : io->draws, .ids = io->choice, .p = io->chance};
    struct k_topk best = {.rows = N, .n = V, .k = min_int(BEST, V), .logits = r->logits,
                          .ids = io->best, .logp = io->best_logp};
    struct k_read read = {.sample = &draws, .topk = &best};
    struct k_logp nodes;
    if (N > 1) {
        nodes = (struct k_logp){.pairs = N - 1, .n = V, .rows = N, .logits = r->logits,
                                .row = kbuf_at(io->parent0, 4, bytes),
                                .id = kbuf_at(kp->token, 4, bytes), .logp = io->node_logp};
        read.logp = &nodes;
    }
    r->dev.k->read(r->dev.d, &read);
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
        .last = io->last, .src = {io->src[0], io->src[1]}, .dst = {io->dst[0], io->dst[1]},
        .time = io->time[TIME_READ]};
    r->dev.k->accept(r->dev.d, &a);
    if (!r->kv.has_swa)
        a.src[POOL_SWA] = (kbuf){0};
    net_move(&r->net, t->key.steps + 1, a.src, a.dst);
}

/* Everything between inbox and outbox. */
static void run_ops(struct trip *t)
{
    struct rig *r = t->r;
    struct k_plan kp = plan_view(t->verify, t->io.plan_verify);
    r->dev.k->take(r->dev.d, kbuf_at(t->f->mem, 0, t->io.in), t->io.in);
    if (t->key.steps) {
        run_levels(t);
        run_select(t, &kp);
    }
    net_forward(&r->net, t->verify, &kp, t->key.steps ? drafter_taps(r->drafter) : NULL);
    net_logits(&r->net, t->nodes, (kbuf){0}, r->logits, (kbuf){0});
    run_draws(t, &kp);
    if (t->key.steps) {
        struct k_plan after = plan_view(t->extend, t->io.plan_extend);
        struct head *d = r->drafter->head;
        run_accept(t, &kp, after.token);
        d->ops->extend(d, &after, t->key.steps + 1, t->io.path, t->io.last, 1,
                       head_root(d, t->key.slot));
        head_topk(d, 1, t->key.topk, t->io.next, t->io.next_logp);
    }
    size_t out = t->io.out1 - t->io.out0;
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
    r->dev.k->graph_free(r->dev.d, old->graph);
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
    if (t->r->record && known && !run->graph && k->graph_begin(d)) {
        run_ops(t);
        run->graph = k->graph_end(d, e);
        if (!run->graph)
            return false;
    }
    bool replay = t->r->record && run->graph;
    if (replay)
        k->graph_launch(d, run->graph);
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

/* A plan that was sent, as the device left it. */
static void read_plan(struct trip *t, struct plan *p, kbuf from)
{
    memcpy(p->mem, out_at(t, from), (size_t)p->n_mem * sizeof *p->mem);
}

static bool read_tree(struct trip *t, struct err *e)
{
    struct tree *tree = &t->l->tree;
    const int32_t *parent = out_at(t, t->io.parent);
    const float *logp = out_at(t, t->io.logp), *score = out_at(t, t->io.score);
    const float *p = out_at(t, t->io.node_logp);
    int n = out_int(t, t->io.n);
    if (n < 1 || n > t->nodes)
        return err_set(e, ERR_INVARIANT, "I13 the device's tree has %d nodes of %d", n, t->nodes);
    read_plan(t, t->verify, t->io.plan_verify);
    for (int i = 1; i < n; i++) {
        if (parent[i] < 0 || parent[i] >= i)
            return err_set(e, ERR_INVARIANT, "I13 the device's tree: node %d of %d has parent %d", i,
                           n, parent[i]);
        tree_add(tree, parent[i], t->verify->token[i], expf(logp[i]), score[i]);
        tree->p[i] = expf(p[i - 1]);
    }
    for (int i = 0; i < t->nodes; i++) /* the host's own: no kernel reads it */
        t->verify->up[i] = i < n ? tree->parent[i] : -1;
    return true;
}

/* A level's row without a candidate repeats the first one, but for its cell; without that one, it
 * stands behind nothing. */
static bool read_level_row(struct trip *t, int i, struct draft_row *row, int32_t *token,
                           struct err *e)
{
    const int32_t *front = out_at(t, t->io.tree.front), *tok = out_at(t, t->io.tree.token);
    const int32_t *parent = out_at(t, t->io.tree.parent), *cell = out_at(t, t->io.tree.cell);
    int K = t->key.topk, first = i - i % K, base = t->l->seq.drafted;
    int c = front[i] >= 0 ? front[i] : front[first], most = candidates(t->key.steps, K);
    row->depth = i / K + 1;
    row->cell = base + i;
    row->up = -1;
    row->n_seen = c < 0 ? 1 : row->depth;
    *token = c < 0 ? 0 : tok[min_int(c, most - 1)];
    for (int at = row->n_seen - 1, none = c < 0; at >= 0 && !none; at--) {
        if (c < 0 || c >= most || cell[c] < 0 || cell[c] >= t->scratch)
            return err_set(e, ERR_INVARIANT, "I13 the device's draft: row %d stands behind "
                           "candidate %d of %d", i, c, most);
        row->seen[at] = base + cell[c];
        if (at == row->n_seen - 2)
            row->up = cell[c];
        c = parent[c];
    }
    row->seen[row->n_seen - 1] = base + i;
    return true;
}

/* What the levels' rows were, from the candidates. */
static bool check_levels(struct trip *t, struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct draft_row row[MAX_STEPS * MAX_TOPK];
    int32_t token[MAX_STEPS * MAX_TOPK];
    struct plan_req req = {.seq = &t->l->seq, .n = t->scratch, .token = token, .draft = row,
                           .levels = t->key.steps - 1, .topk = t->key.topk};
    read_plan(t, t->draft, t->io.plan_draft);
    for (int i = 0; i < t->scratch; i++) {
        if (!read_level_row(t, i, &row[i], &token[i], e))
            return false;
        t->draft->up[i] = row[i].up;
    }
    return check_filled(&ps->check, t->draft, ps->kv, &req, e);
}

/* The plans as the device filled them in, checked like any other against what was grown. */
static bool check_grown(struct trip *t, struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct plan_req req = {.seq = &t->l->seq, .n = t->nodes, .tree = &t->l->tree};
    if (!check_filled(&ps->check, t->verify, ps->kv, &req, e) || (t->draft && !check_levels(t, e)))
        return false;
    plan_mark(t->verify, ps->kv, &req);
    return true;
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
    if (l->force && t->key.steps) {
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
        emitted[i] = walked && l->force && i + 1 < n ? l->tree.token[path[i + 1]] : choice[path[i]];
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
    const int32_t *ids = out_at(t, t->io.next), *d2t = t->r->drafter->head->w->d2t;
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
    if (!t->key.steps)
        tree_init(&l->tree, l->tok.v[l->tok.n - 1]);
    else if (!read_tree(t, e))
        return false;
    int n = read_path(t, lim, path, emitted, e);
    if (n == 0)
        return false;
    if (t->key.steps && !check_grown(t, e))
        return false;
    for (int i = 0; t->extend && i < n; i++)
        t->extend->token[i] = emitted[i]; /* as the device did */
    uint64_t draws = l->draws + (sampled ? (uint64_t)n : 0);
    for (int i = 0; i < n; i++)
        offset[i] = l->tree.depth[path[i]];
    if (!check_draws(&r->pass.check, l->draws, draws, offset, n, sampled, e))
        return false;
    move_marks(t, path, t->key.steps ? n : 0);
    struct outcome out = {
        .rec = {.kind = l->tree.n > 1 ? STEP_SPEC : STEP_DECODE, .pos0 = l->seq.committed,
                .rows = l->tree.n, .drafted = l->tree.n - 1, .accepted = n - 1,
                .bonus = emitted[n - 1], .logit_digest = digest_best(t, path, n)},
        .n_cells = n, .n_new = n, .draws = draws,
        .drafted = t->key.steps ? l->seq.committed + n : -1};
    memcpy(out.token, emitted, (size_t)n * sizeof *emitted);
    for (int i = 0; i < n && sampled; i++)
        l->tree.u[path[i]] = u[path[i]];
    lane_commit(r, l, &out);
    l->guess.n = 0;
    l->tap_row = -1;
    if (t->key.steps) {
        next_guess(t);
        l->tap_row = path[n - 1];
    }
    return true;
}

/* ---- a cycle --------------------------------------------------------------------------------- */

/* Plans, checks and uploads: everything that happens before the device is asked. */
static bool prepare(struct trip *t, const struct step_limits *lim, struct err *e)
{
    struct pass *ps = &t->r->pass;
    pass_lock(ps);
    if (t->f->checked < ps->check.level)
        list_forget(&t->f->list);
    t->f->checked = ps->check.level;
    bool ok = reserve(t, e) && (t->key.steps ? plan_drafting(t, e) : plan_plain(t, e));
    if (ok && !t->key.steps)
        plan_mark(t->verify, ps->kv,
                  &(struct plan_req){.seq = &t->l->seq, .n = 1,
                                     .token = t->l->tok.v + t->l->seq.committed});
    if (ok)
        list_settle(&t->f->list, ps->kv, &t->l->seq, SIDE_TARGET);
    if (ok && t->extend)
        list_settle(&t->f->list, ps->kv, &t->l->seq, SIDE_DRAFT);
    pass_unlock(ps);
    if (!ok || !lay_out(t, e))
        return false;
    pass_copies(ps);
    list_send(&t->f->list, t->r->dev.k, t->r->dev.d);
    put_all(t, lim);
    return true;
}

/* While the device works: the columns that the checks before the launch passed over, because they
 * were checked in an earlier cycle and nothing has touched them since, are looked at once more. */
static bool look_again(struct trip *t, struct err *e)
{
    struct pass *ps = &t->r->pass;
    struct plan_req req = {.seq = &t->l->seq};
    pass_lock(ps);
    bool ok = check_list(&ps->check, t->verify, ps->kv, &req, e) &&
              (!t->extend || check_list(&ps->check, t->extend, ps->kv, &req, e));
    if (!ok)
        list_forget(&t->f->list);
    pass_unlock(ps);
    return ok;
}

static uint64_t digest_plans(struct trip *t)
{
    const struct plan *p[] = {t->draft, t->verify, t->extend};
    for (int i = 0; i < 3; i++)
        if (p[i])
            t->r->pass.digest = mix64(t->r->pass.digest ^ plan_digest(p[i]));
    return t->r->pass.digest;
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
    uint64_t at[N_TIMES] = {0}, all = clock_ns() - t0, run = t2 - t1;
    rec->us_draft = 0;
    rec->us_verify = (uint32_t)(run / 1000);
    if (t->key.steps) {
        for (int i = 0; i < N_TIMES; i++)
            memcpy(&at[i], out_at(t, t->io.time[i]), sizeof at[i]);
        rec->us_draft = (uint32_t)((at[TIME_GROWN] - at[TIME_BEGIN]) / 1000);
        rec->us_verify = (uint32_t)((at[TIME_READ] - at[TIME_GROWN]) / 1000);
    }
    uint64_t rest = all / 1000, taken = rec->us_draft + rec->us_verify;
    rec->us_commit = (uint32_t)(rest > taken ? rest - taken : 0);
}

bool fused_step(struct rig *r, struct lane *l, const struct step_limits *lim,
                const struct tree_shape *shape, struct err *e)
{
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns, t2 = t0;
    if (!r->fused && !fused_open(r, e))
        return false;
    struct trip t = trip_of(r, l, shape);
    pass_begin_step(&r->pass);
    bool ok = prepare(&t, lim, e);
    uint64_t t1 = clock_ns();
    ok = ok && launch(&t, e);
    if (ok) {
        uint64_t launched = clock_ns();
        ok = look_again(&t, e);
        r->host.during = clock_ns() - launched;
        t.out = r->dev.k->outbox(r->dev.d); /* also if the cycle is lost: the device works on it */
        t2 = clock_ns();
        ok = ok && (t.out || r->dev.k->sync(r->dev.d, e));
    }
    pass_lock(&r->pass);
    ok = ok && settle(&t, lim, e);
    if (!ok)
        kv_rollback(&r->kv, &l->seq);
    pass_unlock(&r->pass);
    if (!ok)
        return false;
    l->rec.page_digest = digest_plans(&t);
    l->rec.draft_digest = l->tree.n > 1 ? tree_digest(&l->tree) : 0;
    l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    time_step(&t, t0, t1, t2);
    r->host.before = t1 - t0;
    r->host.after = clock_ns() - t2;
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
    r->dev.k->graph_launch(r->dev.d, last->graph);
    return true;
}
