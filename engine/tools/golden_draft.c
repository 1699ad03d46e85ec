/* golden_draft.c - the tensors of a draft with a head against its own reference: EAGLE3's states,
 * logits and trees, blocks of DFlash and P-EAGLE and their trees, an assistant's recurrent steps.
 * See golden_run.h. */
#include "engine/tools/golden_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/draft/head.h"

/* ---- EAGLE3 ---------------------------------------------------------------------------------- */

/* The last row's state after the head's final norm. */
static void fed_back(struct golden *b, struct runtime *r, float *out)
{
    const struct config *c = &b->l.draft.cfg;
    int H = c->hidden;
    struct k_normalize norm = {.rows = 1, .n = H, .src_stride = H, .dst_stride = H, .scale = 1,
                               .src = r->drafter->head->ops->output(r->drafter->head),
                               .dst = r->drafter->head->inputs,
                               .norm = {c->norm, &b->l.draft.norm, c->eps}};
    r->dev.k->normalize(r->dev.d, &norm);
    r->dev.k->get(r->dev.d, out, r->drafter->head->inputs, (size_t)H * 4);
}

/* Extends the draft over the reference's own fused states, row by row; compares both outputs. */
static bool check_prefill(struct golden *b, struct runtime *r, struct lane *l,
                          struct safetensors *st, struct guess *guess, struct err *e)
{
    int L = l->tok.n - 1, wide = head_tap_floats(r->drafter->head),
        V = head_vocab(r->drafter->head);
    int H = b->l.draft.cfg.hidden, spare = head_spare_row(r->drafter->head);
    float *fused = golden_tensor(st, "fused_hidden", DT_F32, 2, (int64_t[]){L, wide}, e);
    float *hidden = fused ? golden_tensor(st, "prefill.draft_hidden", DT_F32, 2, (int64_t[]){L, H},
                                          e)
                          : NULL;
    float *want = hidden ? golden_tensor(st, "prefill.draft_logits", DT_F32, 2, (int64_t[]){L, V},
                                         e)
                         : NULL;
    float *states = xmalloc((size_t)L * (size_t)H * 4),
          *logits = xmalloc((size_t)L * (size_t)V * 4);
    float *fed = xmalloc((size_t)L * (size_t)H * 4);
    bool ok = want != NULL;
    for (int i = 0; i < L && ok; i++) {
        struct plan_req req = {.seq = &l->seq, .n = 1, .token = l->tok.v + i + 1, .draft_from = i};
        head_put_tap(r->drafter->head, spare, fused + (size_t)i * (size_t)wide);
        ok = golden_goes_on(b, e) && kv_reserve_draft(&r->kv, &l->seq, i, i + 1, e) &&
             pass_prepare(&r->pass, PLAN_DRAFT_EXTEND, &req, 1, e);
        if (!ok)
            break;
        head_extend(r->drafter->head, &r->pass, &(int32_t){spare}, &(int32_t){0}, MAX_TOPK, guess);
        head_logits(r->drafter->head, 0, logits + (size_t)i * (size_t)V);
        head_states(r->drafter->head, 1, states + (size_t)i * (size_t)H);
        fed_back(b, r, fed + (size_t)i * (size_t)H);
        kv_commit_draft(&r->kv, &l->seq, i + 1);
    }
    if (ok) {
        /* with norm_output a reference may hold the state before or after the final norm */
        struct error raw = compare(states, hidden, L, (size_t)H);
        struct error norm = compare(fed, hidden, L, (size_t)H);
        bool normed = b->l.draft.norm_output && norm.rel < raw.rel;
        check_error(&b->rep, "draft states", "draft states", normed ? norm : raw,
                    normed ? ", after the final norm" : "");
        check_error(&b->rep, "draft logits", "draft logits",
                    compare(logits, want, L, (size_t)V), "");
    }
    free(fused);
    free(hidden);
    free(want);
    free(states);
    free(logits);
    free(fed);
    return ok;
}

/* The target's own captured states, against the reference's. */
static bool check_fused(struct golden *b, struct runtime *r, struct safetensors *st, struct err *e)
{
    const struct taps *t = drafter_taps(r->drafter);
    int L = b->ref.n;
    size_t n = (size_t)L * (size_t)t->stride;
    float *want = golden_tensor(st, "fused_hidden", DT_F32, 2, (int64_t[]){L, t->stride}, e);
    float *got = xmalloc(n * 4);
    bool ok = want && golden_prompt(b, r, L, NULL, t, got, e);
    if (ok)
        check_error(&b->rep, "captured states", "captured states",
                    compare(got, want, L, (size_t)t->stride), "");
    free(want);
    free(got);
    return ok;
}

/* True if they are equal. */
static bool check_tree(struct golden *b, const struct tree *t, const char *prefix,
                       struct safetensors *st, struct err *e)
{
    char name[96], what[160];
    int64_t n = -1;
    snprintf(name, sizeof name, "%s.draft_tokens", prefix);
    int32_t *tok = golden_tensor(st, name, DT_I32, 1, &n, e);
    int want = tok ? (int)st_find(st, name)->dim[0] : 0;
    snprintf(name, sizeof name, "%s.position_ids", prefix);
    int32_t *pos = tok ? golden_tensor(st, name, DT_I32, 1, (int64_t[]){want}, e) : NULL;
    snprintf(name, sizeof name, "%s.tree_mask", prefix);
    uint8_t *mask = pos ? golden_tensor(st, name, DT_U8, 2, (int64_t[]){want, want}, e) : NULL;
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
    enum verdict v = mask ? verdict_at(&b->rep, prefix, off < 0 ? want : off, want) : FAIL;
    report_line(&b->rep, v, prefix, what);
    free(tok);
    free(pos);
    free(mask);
    return v == OK;
}

/* Leaves, as paths from the root: retrieve_indices rows in any order. */
static void check_leaves(struct golden *b, const struct tree *t, const char *prefix,
                         struct safetensors *st, struct err *e)
{
    char name[96], what[96];
    int64_t dims[2] = {-1, -1};
    snprintf(name, sizeof name, "%s.retrieve_indices", prefix);
    const struct tensor *info = st_find(st, name);
    if (!info)
        return;
    int32_t *idx = golden_tensor(st, name, DT_I32, 2, dims, e);
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
    check_line(&b->rep, idx && leaves == rows && matched == rows, name, what);
    free(idx);
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
static bool check_trees(struct golden *b, struct runtime *r, struct lane *l, struct safetensors *st,
                        const struct guess *guess, struct err *e)
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
            check_line(&b->rep, false, prefix, "no shape of this engine's trees");
            continue;
        }
        struct tree_shape shape = {depth + 1, topk, nodes};
        g.n = topk;
        tree_init(&t, l->tok.v[l->tok.n - 1]);
        struct drafting d = {&l->seq, &g, 0, depth + 1, &t, l->tok.v, l->tok.n};
        l->seq.committed = l->seq.drafted; /* only the draft runs here */
        ok = golden_goes_on(b, e) && drafter_grow(r->drafter, &r->pass, &d, 1, &shape, e);
        l->seq.committed = 0;
        if (ok) {
            if (check_tree(b, &t, prefix, st, e))
                check_leaves(b, &t, prefix, st, e);
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
    free(a->first);
    free(a->tokens);
    free(a->last);
    free(a->logits);
    free(a->hidden);
}

/* One pass of the head from row *from of some states, or from row 0 of its inputs. */
static bool assistant_pass(struct runtime *r, struct lane *l, int32_t token, kbuf states, kbuf from,
                           struct err *e)
{
    struct plan_req req = {.seq = &l->seq, .n = 1, .token = &token};
    if (!pass_prepare(&r->pass, PLAN_FROZEN, &req, 1, e))
        return false;
    r->drafter->head->ops->level(r->drafter->head, &r->pass.kp, 1, states, from);
    return true;
}

/* Each step starts from the reference's state and token, so errors do not accumulate over steps. */
static bool assistant_forced(struct golden *b, struct runtime *r, struct lane *l,
                             const struct assistant *a, struct err *e)
{
    int V = head_vocab(r->drafter->head), H = b->l.model.cfg.hidden;
    float *logits = xmalloc((size_t)V * 4), *state = xmalloc((size_t)H * 4);
    bool ok = true;
    for (int s = 0; s < a->steps && ok; s++) {
        const float *from = s ? a->hidden + (size_t)(s - 1) * (size_t)H : a->last;
        char name[48];
        b->l.dev.k->put(b->l.dev.d, r->drafter->head->inputs, from, (size_t)H * 4);
        ok = golden_goes_on(b, e) &&
             assistant_pass(r, l, s ? a->tokens[s - 1] : a->first[0], (kbuf){0}, (kbuf){0}, e);
        if (!ok)
            break;
        head_logits(r->drafter->head, 0, logits);
        head_states(r->drafter->head, 1, state);
        snprintf(name, sizeof name, "step %d logits", s + 1);
        check_error(&b->rep, name, name,
                    compare(logits, a->logits + (size_t)s * (size_t)V, 1, (size_t)V), "");
        snprintf(name, sizeof name, "step %d state", s + 1);
        check_error(&b->rep, name, name,
                    compare(state, a->hidden + (size_t)s * (size_t)H, 1, (size_t)H), "");
    }
    free(logits);
    free(state);
    return ok;
}

/* All steps on the engine's own states, beginning with the target's last one. */
static bool assistant_free_run(struct golden *b, struct runtime *r, struct lane *l,
                               const struct assistant *a, struct err *e)
{
    struct guess guess;
    int32_t *got = xcalloc((size_t)a->steps + 1, sizeof *got), token = a->first[0];
    const int32_t last = b->ref.n - 1, row = 0;
    struct plan_req req = {.seq = &l->seq, .n = 1, .token = &token};
    bool ok = pass_prepare(&r->pass, PLAN_FROZEN, &req, 1, e);
    for (int s = 0; s < a->steps && ok; s++) {
        if (s == 0) {
            head_extend(r->drafter->head, &r->pass, &last, &row, 1, &guess);
        } else {
            ok = assistant_pass(r, l, token, r->drafter->head->state,
                                head_rows(r->drafter->head, &row, 1), e);
        }
        float *logits = xmalloc((size_t)head_vocab(r->drafter->head) * 4);
        head_logits(r->drafter->head, 0, logits);
        token = 0;
        for (int i = 1; i < head_vocab(r->drafter->head); i++)
            if (logits[i] > logits[token])
                token = i;
        got[s] = token;
        free(logits);
    }
    if (ok)
        check_ids(&b->rep, "all steps, own states", "steps", got, a->steps, a->tokens, a->steps,
                  NULL, 0);
    free(got);
    return ok;
}

static bool check_assistant(struct golden *b, struct runtime *r, struct safetensors *st,
                            struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct assistant a;
    int L = b->ref.n;
    bool ok = assistant_read(&a, st, head_vocab(r->drafter->head), b->l.model.cfg.hidden, e);
    ids_cat(&l.tok, b->ref.ids, L);
    struct plan_req req = {.seq = &l.seq, .n = L, .token = l.tok.v};
    ok = ok && kv_reserve(&r->kv, &l.seq, L, e) &&
         pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e) &&
         golden_forward(r, drafter_taps(r->drafter), e);
    if (ok) {
        kv_commit(&r->kv, &l.seq, L);
        kv_release_window(&r->kv, &l.seq);
        ok = assistant_free_run(b, r, &l, &a, e) && assistant_forced(b, r, &l, &a, e);
    }
    lane_free(r, &l);
    assistant_free(&a);
    return ok;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Makes cells of the reference's own fused states, as many at once as `chunk`. */
static bool extend_block(struct golden *b, struct runtime *r, struct lane *l, const float *fused,
                         int chunk, struct guess *guess, struct err *e)
{
    struct head *h = r->drafter->head;
    int L = l->tok.n - 1, wide = head_tap_floats(h);
    int32_t row[HEAD_BACKLOG];
    bool ok = true;
    CHECK(chunk <= HEAD_BACKLOG);
    for (int i = 0, n; i < L && ok; i += n) {
        n = min_int(chunk, L - i);
        struct plan_req req = {.seq = &l->seq, .n = n, .token = l->tok.v + i + 1, .draft_from = i};
        for (int k = 0; k < n; k++) {
            row[k] = head_backlog_row(h, k);
            head_put_tap(h, row[k], fused + mul64(i + k, wide));
        }
        ok = golden_goes_on(b, e) && kv_reserve_draft(&r->kv, &l->seq, i, i + n, e) &&
             pass_prepare(&r->pass, PLAN_DRAFT_EXTEND, &req, 1, e);
        if (ok)
            head_extend(h, &r->pass, row, &(int32_t){0}, MAX_TOPK, guess);
        if (ok)
            kv_commit_draft(&r->kv, &l->seq, i + n);
    }
    return ok;
}

/* The rows of a block that guess. */
static int block_guesses(const struct draft *w)
{
    return draft_block_reach(w) + 1 - (w->block_depth > 1 ? w->block_depth : 1);
}

/* The block over these cells: its rows' states, and the logits of those that guess. */
static bool run_block(struct golden *b, struct runtime *r, struct lane *l,
                      const struct guess *guess, float *states, float *logits, struct err *e)
{
    struct head *h = r->drafter->head;
    int V = head_vocab(h), depth = draft_block_reach(h->w);
    struct tree_shape shape = {depth, 1, depth + 1};
    struct tree t;
    tree_init(&t, l->tok.v[l->tok.n - 1]);
    struct drafting d = {&l->seq, guess, 0, depth, &t, l->tok.v, l->tok.n};
    l->seq.committed = l->seq.drafted; /* only the draft runs here */
    bool ok = golden_goes_on(b, e) && drafter_grow(r->drafter, &r->pass, &d, 1, &shape, e);
    l->seq.committed = 0;
    for (int i = 0; i < block_guesses(h->w) && ok; i++)
        head_logits(h, i, logits + mul64(i, V));
    if (ok)
        head_states(h, h->w->block, states);
    return ok;
}

/* In every chunking: one cell at once, some, all that the backlog holds. The bits are equal. */
static bool check_block(struct golden *b, struct runtime *r, struct lane *l, struct safetensors *st,
                        struct guess *guess, struct err *e)
{
    static const int chunks[] = {7, HEAD_BACKLOG, 1};
    int L = l->tok.n - 1, wide = head_tap_floats(r->drafter->head), B = b->l.draft.block;
    int V = head_vocab(r->drafter->head), H = b->l.draft.cfg.hidden;
    int G = block_guesses(&b->l.draft);
    size_t ns = (size_t)mul64(B, H) * 4, nl = (size_t)mul64(G, V) * 4;
    float *fused = golden_tensor(st, "fused_hidden", DT_F32, 2, (int64_t[]){L, wide}, e);
    float *hidden = fused ? golden_tensor(st, "block.hidden", DT_F32, 2, (int64_t[]){B, H}, e)
                          : NULL;
    float *want = hidden ? golden_tensor(st, "block.logits", DT_F32, 2, (int64_t[]){G, V}, e)
                         : NULL;
    float *states = xmalloc(2 * ns), *logits = xmalloc(2 * nl);
    bool ok = want != NULL, same = true;
    for (int i = 0; i < 3 && ok; i++) {
        float *s = states + (i ? mul64(B, H) : 0), *g = logits + (i ? mul64(G, V) : 0);
        l->seq.drafted = 0;
        ok = extend_block(b, r, l, fused, chunks[i], guess, e) &&
             run_block(b, r, l, guess, s, g, e);
        same = same && (i == 0 || (!memcmp(states, s, ns) && !memcmp(logits, g, nl)));
    }
    if (ok) {
        check_error(&b->rep, "block states", "block states", compare(states, hidden, B, (size_t)H),
                    "");
        check_error(&b->rep, "block logits", "block logits",
                    compare(logits, want, G, (size_t)V), "");
        check_line(&b->rep, same, "block chunks", same ? "bits equal" : "bits differ");
    }
    free(fused);
    free(hidden);
    free(want);
    free(states);
    free(logits);
    return ok;
}

/* ---- heads with KV of their own -------------------------------------------------------------- */

static bool check_own(struct golden *b, struct runtime *r, struct safetensors *st, struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct guess guess = {0};
    int32_t *ids = golden_tensor(st, "input_ids", DT_I32, 1, (int64_t[]){b->ref.n}, e);
    int32_t *next = ids ? golden_tensor(st, "next_token", DT_I32, 1, (int64_t[]){1}, e) : NULL;
    bool ok = next != NULL;
    if (ok) {
        bool same = !memcmp(ids, b->ref.ids, (size_t)b->ref.n * sizeof *ids) &&
                    next[0] == b->ref.greedy[0];
        check_line(&b->rep, same, "draft prompt", same ? "the target's own" : "not the target's");
        ids_cat(&l.tok, ids, b->ref.n);
        ids_add(&l.tok, next[0]);
        /* the lag rule counts committed tokens; here the reference stands in for the target */
        r->pass.check.level = CHECK_OFF;
        ok = check_fused(b, r, st, e) &&
             (!draft_guesses_next(&b->l.draft) ||
              check_prefill(b, r, &l, st, &guess, e)) &&
             (!b->l.draft.block || check_block(b, r, &l, st, &guess, e)) &&
             check_trees(b, r, &l, st, &guess, e);
        r->pass.check.level = CHECK_ON;
        lane_free(r, &l);
    }
    free(ids);
    free(next);
    return ok;
}

bool golden_head(struct golden *b, struct err *e)
{
    char *path = golden_path(b->o->engine.draft);
    struct safetensors *st = st_open(path, e);
    struct runtime r = {0};
    free(path);
    bool ok = st && golden_runtime(b, &r, 16, e) &&
              (drafter_owns_kv(r.drafter) ? check_own : check_assistant)(b, &r, st, e);
    runtime_close(&r);
    st_close(st);
    return ok;
}

