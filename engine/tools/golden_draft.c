/* golden_draft.c - the tensors of a draft with a head against its own reference: EAGLE3's states,
 * logits and trees, blocks of DFlash and P-EAGLE and their trees, an assistant's recurrent steps.
 * See golden_run.h. */
#include "engine/tools/golden_run.h"

#include "engine/draft/head.h"

/* ---- EAGLE3 ---------------------------------------------------------------------------------- */

/* The last row's state after the head's final norm. */
static void fed_back(struct golden *golden, struct runtime *rt, float *out)
{
    const struct config *c = &golden->l.draft.cfg;
    int H = c->hidden;
    struct k_normalize norm = {.rows = 1, .n = H, .src_stride = H, .dst_stride = H, .scale = 1,
                               .src = rt->drafter->head->out,
                               .dst = rt->drafter->head->inputs,
                               .norm = {c->norm, &golden->l.draft.norm, c->eps}};
    rt->dev.k->normalize(rt->dev.d, &norm);
    rt->dev.k->get(rt->dev.d, out, rt->drafter->head->inputs, (size_t)H * 4);
}

/* Extends the draft over the reference's own fused states, row by row; compares both outputs. */
static bool check_prefill(struct golden *golden, struct runtime *rt, struct lane *lane,
                          struct safetensors *st, struct guess *guess, struct err *e)
{
    int L = lane->tok.n - 1, wide = head_tap_floats(rt->drafter->head),
        V = head_vocab(rt->drafter->head);
    int H = golden->l.draft.cfg.hidden, spare = head_spare_row(rt->drafter->head);
    const int64_t of_fused[] = {L, wide}, of_hidden[] = {L, H}, of_logits[] = {L, V};
    FREED(free_at) float *fused = golden_tensor(st, "fused_hidden", DT_F32, 2, of_fused, e);
    FREED(free_at) float *hidden = fused ? golden_tensor(st, "prefill.draft_hidden", DT_F32, 2,
                                                         of_hidden, e) : NULL;
    FREED(free_at) float *want = hidden ? golden_tensor(st, "prefill.draft_logits", DT_F32, 2,
                                                        of_logits, e) : NULL;
    FREED(free_at) float *states = xmalloc((size_t)L * (size_t)H * 4);
    FREED(free_at) float *logits = xmalloc((size_t)L * (size_t)V * 4);
    FREED(free_at) float *fed = xmalloc((size_t)L * (size_t)H * 4);
    bool ok = want != NULL;
    for (int i = 0; i < L && ok; i++) {
        struct plan_req req = {.seq = &lane->seq, .n = 1, .token = lane->tok.v + i + 1,
                               .draft_from = i};
        head_put_tap(rt->drafter->head, spare, fused + (size_t)i * (size_t)wide);
        ok = golden_goes_on(golden, e) && kv_reserve_draft(&rt->kv, &lane->seq, i, i + 1, e) &&
             pass_prepare(&rt->pass, PLAN_DRAFT_EXTEND, &req, 1, e);
        if (!ok)
            break;
        head_extend(rt->drafter->head, &rt->pass, &(int32_t){spare}, &(int32_t){0}, MAX_TOPK,
                    guess);
        head_logits(rt->drafter->head, 0, logits + (size_t)i * (size_t)V);
        head_states(rt->drafter->head, 1, states + (size_t)i * (size_t)H);
        fed_back(golden, rt, fed + (size_t)i * (size_t)H);
        kv_commit_draft(&rt->kv, &lane->seq, i + 1);
    }
    if (ok) {
        /* with norm_output a reference may hold the state before or after the final norm */
        struct error raw = compare(states, hidden, L, (size_t)H);
        struct error norm = compare(fed, hidden, L, (size_t)H);
        bool normed = golden->l.draft.norm_output && norm.rel < raw.rel;
        check_error(&golden->rep, "draft states", "draft states", normed ? norm : raw,
                    normed ? ", after the final norm" : "");
        check_error(&golden->rep, "draft logits", "draft logits",
                    compare(logits, want, L, (size_t)V), "");
    }
    return ok;
}

/* The target's own captured states, against the reference's. */
static bool check_fused(struct golden *golden, struct runtime *rt, struct safetensors *st,
                        struct err *e)
{
    const struct taps *t = drafter_taps(rt->drafter);
    int L = golden->ref.n;
    size_t n = (size_t)L * (size_t)t->stride;
    FREED(free_at) float *want = golden_tensor(st, "fused_hidden", DT_F32, 2,
                                               (int64_t[]){L, t->stride}, e);
    FREED(free_at) float *got = xmalloc(n * 4);
    bool ok = want && golden_prompt(golden, rt, L, NULL, t, got, e);
    if (ok)
        check_error(&golden->rep, "captured states", "captured states",
                    compare(got, want, L, (size_t)t->stride), "");
    return ok;
}

/* True if they are equal. */
static bool check_tree(struct golden *golden, const struct tree *t, const char *prefix,
                       struct safetensors *st, struct err *e)
{
    char name[96], what[160];
    int64_t n = -1;
    snprintf(name, sizeof name, "%s.draft_tokens", prefix);
    FREED(free_at) int32_t *tok = golden_tensor(st, name, DT_I32, 1, &n, e);
    int want = tok ? (int)st_find(st, name)->dim[0] : 0;
    snprintf(name, sizeof name, "%s.position_ids", prefix);
    FREED(free_at) int32_t *pos = tok ? golden_tensor(st, name, DT_I32, 1, (int64_t[]){want}, e)
                                      : NULL;
    snprintf(name, sizeof name, "%s.tree_mask", prefix);
    const int64_t square[] = {want, want};
    FREED(free_at) uint8_t *mask = pos ? golden_tensor(st, name, DT_U8, 2, square, e) : NULL;
    int off = t->n == want ? -1 : min_int(t->n, want);
    const char *field = "nodes";
    for (int i = 0; mask && i < t->n && i < want && off < 0; i++) {
        if (tok[i] != t->token[i])
            off = i, field = "token";
        else if (pos[i] != t->depth[i])
            off = i, field = "position";
        for (int j = 0; j < want && off < 0; j++)
            if (mask[i * want + j] != (t->anc[i] >> j & 1))
                off = i, field = "mask";
    }
    if (off < 0)
        snprintf(what, sizeof what, "%d nodes: tokens, positions and mask equal", want);
    else
        snprintf(what, sizeof what, "%s of node %d differs (%d nodes, expected %d)", field, off,
                 t->n, want);
    enum verdict v = mask ? verdict_at(&golden->rep, prefix, off < 0 ? want : off, want) : FAIL;
    report_line(&golden->rep, v, prefix, what);
    return v == OK;
}

/* Leaves, as paths from the root: retrieve_indices rows in any order. */
static void check_leaves(struct golden *golden, const struct tree *t, const char *prefix,
                         struct safetensors *st, struct err *e)
{
    char name[96], what[96];
    int64_t dims[2] = {-1, -1};
    snprintf(name, sizeof name, "%s.retrieve_indices", prefix);
    const struct tensor *info = st_find(st, name);
    if (!info)
        return;
    FREED(free_at) int32_t *idx = golden_tensor(st, name, DT_I32, 2, dims, e);
    int leaves = 0, matched = 0, rows = (int)info->dim[0], cols = (int)info->dim[1];
    for (int i = 0; idx && i < t->n; i++) {
        bool leaf = true;
        for (int j = i + 1; j < t->n; j++)
            leaf = leaf && t->parent[j] != i;
        if (!leaf)
            continue;
        leaves++;
        for (int r = 0; r < rows; r++) {
            int node = i;
            bool same = t->depth[i] < cols;
            for (int c = 0; c < cols && same; c++)
                same = (idx[r * cols + c] == -1) == (c > t->depth[i]);
            for (int c = t->depth[i]; c >= 0 && same; c--, node = t->parent[node])
                same = idx[r * cols + c] == node;
            matched += same;
        }
    }
    snprintf(what, sizeof what, "%d of %d leaf paths equal", matched, rows);
    snprintf(name, sizeof name, "  %s leaves", prefix);
    check_line(&golden->rep, idx && leaves == rows && matched == rows, name, what);
}

/* "tree_60_5_10.draft_tokens" */
static bool tree_name(const char *s, int *nodes, int *depth, int *topk)
{
    int *const out[] = {nodes, depth, topk};
    if (strncmp(s, "tree", 4) != 0)
        return false;
    s += 4;
    for (int i = 0; i < 3; i++)
        if (*s++ != '_' || !int_at(&s, out[i]))
            return false;
    return strcmp(s, ".draft_tokens") == 0;
}

/* Every tensor group tree_{nodes}_{depth}_{topk}; depth counts forwards after the first top-k. */
static bool check_trees(struct golden *golden, struct runtime *rt, struct lane *lane,
                        struct safetensors *st, const struct guess *guess, struct err *e)
{
    bool ok = true;
    for (int i = 0; i < st_count(st) && ok; i++) {
        int nodes = 0, depth = 0, topk = 0;
        if (!tree_name(st_at(st, i)->name, &nodes, &depth, &topk))
            continue;
        struct tree t;
        struct guess g = *guess;
        char prefix[64];
        snprintf(prefix, sizeof prefix, "tree_%d_%d_%d", nodes, depth, topk);
        if (nodes < 1 || nodes > TREE_MAX || topk < 1 || topk > g.n || depth < 0 ||
            depth >= MAX_STEPS) {
            check_line(&golden->rep, false, prefix, "no shape of this engine's trees");
            continue;
        }
        struct tree_shape shape = {depth + 1, topk, nodes};
        g.n = topk;
        tree_init(&t, lane->tok.v[lane->tok.n - 1]);
        struct drafting d = {&lane->seq, &g, 0, depth + 1, &t, lane->tok.v, lane->tok.n};
        lane->seq.committed = lane->seq.drafted; /* only the draft runs here */
        ok = golden_goes_on(golden, e) && drafter_grow(rt->drafter, &rt->pass, &d, 1, &shape, e);
        lane->seq.committed = 0;
        if (ok) {
            if (check_tree(golden, &t, prefix, st, e))
                check_leaves(golden, &t, prefix, st, e);
        }
    }
    return ok;
}

/* ---- an assistant's recurrent steps ---- */

struct assistant {
    int steps;
    int32_t *first, *tokens; /* (1), (steps) */
    float *last, *logits, *hidden; /* (H), (steps, V), (steps, H) */
};

static bool assistant_read(struct assistant *a, struct safetensors *st, int V, int H, struct err *e)
{
    *a = (struct assistant){.first = golden_tensor(st, "first_token", DT_I32, 1, (int64_t[]){1},
                                                   e)};
    a->tokens = a->first ? golden_tensor(st, "draft_tokens", DT_I32, 1, (int64_t[]){-1}, e) : NULL;
    a->steps = a->tokens ? (int)st_find(st, "draft_tokens")->dim[0] : 0;
    if (a->tokens)
        a->last = golden_tensor(st, "last_hidden", DT_F32, 1, (int64_t[]){H}, e);
    if (a->last)
        a->logits = golden_tensor(st, "draft_logits", DT_F32, 2, (int64_t[]){a->steps, V}, e);
    if (a->logits)
        a->hidden = golden_tensor(st, "draft_hidden", DT_F32, 2, (int64_t[]){a->steps, H}, e);
    return a->hidden != NULL;
}

static void assistant_free(struct assistant *a)
{
    FREE(a->first, a->tokens, a->last, a->logits, a->hidden);
}

/* One pass of the head from row *from of some states, or from row 0 of its inputs. */
static bool assistant_pass(struct runtime *rt, struct lane *lane, int32_t token, kbuf states,
                           kbuf from, struct err *e)
{
    struct plan_req req = {.seq = &lane->seq, .n = 1, .token = &token};
    if (!pass_prepare(&rt->pass, PLAN_FROZEN, &req, 1, e))
        return false;
    rt->drafter->head->ops->level(rt->drafter->head, &rt->pass.kp, 1, states, from);
    return true;
}

/* Each step starts from the reference's state and token, so errors do not accumulate over steps. */
static bool assistant_forced(struct golden *golden, struct runtime *rt, struct lane *lane,
                             const struct assistant *a, struct err *e)
{
    int V = head_vocab(rt->drafter->head), H = golden->l.model.cfg.hidden;
    FREED(free_at) float *logits = xmalloc((size_t)V * 4), *state = xmalloc((size_t)H * 4);
    bool ok = true;
    for (int s = 0; s < a->steps && ok; s++) {
        const float *from = s ? a->hidden + (size_t)(s - 1) * (size_t)H : a->last;
        char name[48];
        golden->l.dev.k->put(golden->l.dev.d, rt->drafter->head->inputs, from, (size_t)H * 4);
        ok = golden_goes_on(golden, e) &&
             assistant_pass(rt, lane, s ? a->tokens[s - 1] : a->first[0], (kbuf){0}, (kbuf){0}, e);
        if (!ok)
            break;
        head_logits(rt->drafter->head, 0, logits);
        head_states(rt->drafter->head, 1, state);
        snprintf(name, sizeof name, "step %d logits", s + 1);
        check_error(&golden->rep, name, name,
                    compare(logits, a->logits + (size_t)s * (size_t)V, 1, (size_t)V), "");
        snprintf(name, sizeof name, "step %d state", s + 1);
        check_error(&golden->rep, name, name,
                    compare(state, a->hidden + (size_t)s * (size_t)H, 1, (size_t)H), "");
    }
    return ok;
}

/* All steps on the engine's own states, beginning with the target's last one. */
static bool assistant_free_run(struct golden *golden, struct runtime *rt, struct lane *lane,
                               const struct assistant *a, struct err *e)
{
    struct guess guess;
    int32_t *got = xcalloc((size_t)a->steps + 1, sizeof *got), token = a->first[0];
    const int32_t last = golden->ref.n - 1, row = 0;
    struct plan_req req = {.seq = &lane->seq, .n = 1, .token = &token};
    bool ok = pass_prepare(&rt->pass, PLAN_FROZEN, &req, 1, e);
    for (int s = 0; s < a->steps && ok; s++) {
        if (s == 0) {
            head_extend(rt->drafter->head, &rt->pass, &last, &row, 1, &guess);
        } else {
            ok = assistant_pass(rt, lane, token, rt->drafter->head->state,
                                head_rows(rt->drafter->head, &row, 1), e);
        }
        FREED(free_at) float *logits = xmalloc((size_t)head_vocab(rt->drafter->head) * 4);
        head_logits(rt->drafter->head, 0, logits);
        token = 0;
        for (int i = 1; i < head_vocab(rt->drafter->head); i++)
            if (logits[i] > logits[token])
                token = i;
        got[s] = token;
    }
    if (ok)
        check_ids(&golden->rep, "all steps, own states", "steps", got, a->steps, a->tokens,
                  a->steps, NULL, 0);
    free(got);
    return ok;
}

static bool check_assistant(struct golden *golden, struct runtime *rt, struct safetensors *st,
                            struct err *e)
{
    struct lane lane = {.tap_row = -1};
    FREED(assistant_free) struct assistant a;
    int L = golden->ref.n;
    bool ok = assistant_read(&a, st, head_vocab(rt->drafter->head), golden->l.model.cfg.hidden, e);
    ids_cat(&lane.tok, golden->ref.ids, L);
    struct plan_req req = {.seq = &lane.seq, .n = L, .token = lane.tok.v};
    ok = ok && kv_reserve(&rt->kv, &lane.seq, L, e) &&
         pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e) &&
         golden_forward(rt, drafter_taps(rt->drafter), e);
    if (ok) {
        kv_commit(&rt->kv, &lane.seq, L);
        kv_release_window(&rt->kv, &lane.seq);
        ok = assistant_free_run(golden, rt, &lane, &a, e) &&
             assistant_forced(golden, rt, &lane, &a, e);
    }
    lane_free(rt, &lane);
    return ok;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Makes cells of the reference's own fused states, as many at once as `chunk`. */
static bool extend_block(struct golden *golden, struct runtime *rt, struct lane *lane,
                         const float *fused, int chunk, struct guess *guess, struct err *e)
{
    struct head *h = rt->drafter->head;
    int L = lane->tok.n - 1, wide = head_tap_floats(h);
    int32_t row[HEAD_BACKLOG];
    bool ok = true;
    CHECK(chunk <= HEAD_BACKLOG);
    for (int i = 0, n; i < L && ok; i += n) {
        n = min_int(chunk, L - i);
        struct plan_req req = {.seq = &lane->seq, .n = n, .token = lane->tok.v + i + 1,
                               .draft_from = i};
        for (int k = 0; k < n; k++) {
            row[k] = head_backlog_row(h, k);
            head_put_tap(h, row[k], fused + mul64(i + k, wide));
        }
        ok = golden_goes_on(golden, e) && kv_reserve_draft(&rt->kv, &lane->seq, i, i + n, e) &&
             pass_prepare(&rt->pass, PLAN_DRAFT_EXTEND, &req, 1, e);
        if (ok)
            head_extend(h, &rt->pass, row, &(int32_t){0}, MAX_TOPK, guess);
        if (ok)
            kv_commit_draft(&rt->kv, &lane->seq, i + n);
    }
    return ok;
}

/* The block over these cells: its rows' states, the logits of those that guess, and the scores of
 * the chain. */
static bool run_block(struct golden *golden, struct runtime *rt, struct lane *lane,
                      const struct guess *guess, float *states, float *logits, float *scores,
                      struct err *e)
{
    struct head *h = rt->drafter->head;
    int V = head_vocab(h), depth = draft_block_reach(h->w);
    struct tree_shape shape = {depth, 1, depth + 1};
    struct tree t;
    tree_init(&t, lane->tok.v[lane->tok.n - 1]);
    struct drafting d = {&lane->seq, guess, 0, depth, &t, lane->tok.v, lane->tok.n};
    lane->seq.committed = lane->seq.drafted; /* only the draft runs here */
    bool ok = golden_goes_on(golden, e) && drafter_grow(rt->drafter, &rt->pass, &d, 1, &shape, e);
    lane->seq.committed = 0;
    for (int i = 0; i < draft_block_guesses(h->w) && ok; i++)
        head_logits(h, i, logits + mul64(i, V));
    if (ok) {
        head_states(h, h->w->block, states);
        for (int i = 0; i < draft_block_guesses(h->w); i++)
            scores[i] = i + 1 < t.n ? t.score[i + 1] : NAN;
    }
    return ok;
}

/* Of a draft whose guesses depend on the token before: the scores of the greedy chain. */
static bool check_scores(struct golden *golden, struct safetensors *st, const float *scores,
                         struct err *e)
{
    int n = draft_block_guesses(&golden->l.draft);
    float *want = golden->l.draft.edges
                      ? golden_tensor(st, "block.scores", DT_F32, 1, (int64_t[]){n}, e) : NULL;
    if (want)
        check_error(&golden->rep, "block scores", "block scores",
                    compare(scores, want, 1, (size_t)n), "");
    free(want);
    return want || !golden->l.draft.edges;
}

/* In every chunking: one cell at once, some, all that the backlog holds. The bits are equal. */
static bool check_block(struct golden *golden, struct runtime *rt, struct lane *lane,
                        struct safetensors *st, struct guess *guess, struct err *e)
{
    static const int chunks[] = {7, HEAD_BACKLOG, 1};
    int L = lane->tok.n - 1, wide = head_tap_floats(rt->drafter->head), B = golden->l.draft.block;
    int V = head_vocab(rt->drafter->head), H = golden->l.draft.cfg.hidden;
    int G = draft_block_guesses(&golden->l.draft);
    size_t ns = (size_t)mul64(B, H) * 4, nl = (size_t)mul64(G, V) * 4;
    const int64_t of_fused[] = {L, wide}, of_hidden[] = {B, H}, of_logits[] = {G, V};
    FREED(free_at) float *fused = golden_tensor(st, "fused_hidden", DT_F32, 2, of_fused, e);
    FREED(free_at) float *hidden = fused ? golden_tensor(st, "block.hidden", DT_F32, 2, of_hidden,
                                                         e) : NULL;
    FREED(free_at) float *want = hidden ? golden_tensor(st, "block.logits", DT_F32, 2, of_logits,
                                                        e) : NULL;
    FREED(free_at) float *states = xmalloc(2 * ns), *logits = xmalloc(2 * nl);
    float scores[2][MAX_BLOCK] = {{0}};
    bool ok = want != NULL, same = true;
    for (int i = 0; i < 3 && ok; i++) {
        float *s = states + (i ? mul64(B, H) : 0), *g = logits + (i ? mul64(G, V) : 0);
        lane->seq.drafted = 0;
        ok = extend_block(golden, rt, lane, fused, chunks[i], guess, e) &&
             run_block(golden, rt, lane, guess, s, g, scores[i > 0], e);
        same = same && (i == 0 || (!memcmp(states, s, ns) && !memcmp(logits, g, nl) &&
                                   !memcmp(scores[0], scores[1], sizeof scores[0])));
    }
    ok = ok && check_scores(golden, st, scores[0], e);
    if (ok) {
        check_error(&golden->rep, "block states", "block states",
                    compare(states, hidden, B, (size_t)H), "");
        check_error(&golden->rep, "block logits", "block logits",
                    compare(logits, want, G, (size_t)V), "");
        check_line(&golden->rep, same, "block chunks", same ? "bits equal" : "bits differ");
    }
    return ok;
}

/* ---- heads with KV of their own -------------------------------------------------------------- */

static bool check_own(struct golden *golden, struct runtime *rt, struct safetensors *st,
                      struct err *e)
{
    struct lane lane = {.tap_row = -1};
    struct guess guess = {0};
    int32_t *ids = golden_tensor(st, "input_ids", DT_I32, 1, (int64_t[]){golden->ref.n}, e);
    int32_t *next = ids ? golden_tensor(st, "next_token", DT_I32, 1, (int64_t[]){1}, e) : NULL;
    bool ok = next != NULL;
    if (ok) {
        bool same = !memcmp(ids, golden->ref.ids, (size_t)golden->ref.n * sizeof *ids) &&
                    next[0] == golden->ref.greedy[0];
        check_line(&golden->rep, same, "draft prompt", same ? "the target's own"
                                                            : "not the target's");
        ids_cat(&lane.tok, ids, golden->ref.n);
        ids_add(&lane.tok, next[0]);
        /* the lag rule counts committed tokens; here the reference stands in for the target */
        rt->pass.check.level = CHECK_OFF;
        ok = check_fused(golden, rt, st, e) &&
             (!draft_guesses_next(&golden->l.draft) ||
              check_prefill(golden, rt, &lane, st, &guess, e)) &&
             (!golden->l.draft.block || check_block(golden, rt, &lane, st, &guess, e)) &&
             check_trees(golden, rt, &lane, st, &guess, e);
        rt->pass.check.level = CHECK_ON;
        lane_free(rt, &lane);
    }
    FREE(ids, next);
    return ok;
}

bool golden_head(struct golden *golden, struct err *e)
{
    char *path = golden_path(golden->o->engine.draft);
    struct safetensors *st = st_open(path, e);
    struct runtime rt = {0};
    free(path);
    bool ok = st && golden_runtime(golden, &rt, 16, e) &&
              (drafter_owns_kv(rt.drafter) ? check_own : check_assistant)(golden, &rt, st, e);
    runtime_close(&rt);
    st_close(st);
    return ok;
}

