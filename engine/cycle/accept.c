/* accept.c - see accept.h. */
#include "engine/cycle/accept.h"

#include "engine/cycle/steer.h"
#include "engine/run/device.h"

#include <math.h>

/* ---- the walk and its outcome ---------------------------------------------------------------- */

/* *e says that there is no token to choose, and which weights are the cause, if they are. */
static bool bad_token(struct runtime *rt, struct err *e)
{
    if (!rt->weights_seen)
        rt->odd_weight =
            model_odd_weight(rt->model, device_tensor_is_odd, &rt->dev, rt->net.stop);
    rt->weights_seen = true;
    if (!rt->odd_weight)
        return err_set(e, ERR_INVARIANT, "the model's output is not a number; "
                                         "the turn was stopped");
    return err_set(e, ERR_INVARIANT, "the model's output is not a number; the turn was stopped: "
                   "%.160s has a weight that is not a finite number", rt->odd_weight->name);
}

/* held: a drafted node holds the last new token, which then counts as accepted. */
static struct outcome outcome_of(const struct lane *lane, enum step_kind kind, int rows,
                                 int n_cells, int n_new, int32_t last, bool held)
{
    uint64_t draws = lane->draws + (lane->how.temperature > 0 ? (uint64_t)n_new : 0);
    bool tree = kind != STEP_PREFILL;
    return (struct outcome){
        .rec = {.kind = kind, .pos0 = lane->seq.committed, .rows = rows,
                .drafted = tree ? rows - 1 : 0, .accepted = tree ? n_new - !held : 0,
                .bonus = held ? -1 : last, .draws = draws, .margin = NAN,
                .forced = min_int(n_new, lane->n_given)},
        .n_cells = n_cells, .n_new = n_new, .draws = draws, .draft_cells = -1};
}

int accept_limit(const struct runtime *rt, const struct lane *lane, int max_new)
{
    return max_int(1, min_int(max_new, rt->context - lane->tok.n));
}

/* The token that the row at this depth emits: the given token, or the target's choice. */
static int32_t emitted(const struct lane *lane, int depth, int32_t choice)
{
    return depth < lane->n_given ? lane->given[depth] : choice;
}

/* Walks the tree with the target's choices: sets the fates of its nodes, the path, the emitted
 * tokens (choice) and the record of *out. Returns the length of the path; 0: a choice is no
 * token. */
static int judge(const struct runtime *rt, const struct lane *lane, struct tree *tree, int max_new,
                 const int32_t *chosen, int32_t choice[TREE_MAX], int path[TREE_MAX],
                 struct outcome *out)
{
    for (int i = 0; i < tree->n; i++) {
        if (chosen[i] < 0)
            return 0;
        choice[i] = emitted(lane, tree->depth[i], chosen[i]);
    }
    struct tree_ends ends = {.max_nodes = accept_limit(rt, lane, max_new), .force = lane->force,
                             .stop = rt->stop, .n_stop = lane->run_on ? 0 : rt->n_stop};
    int held, n = tree_accept(tree, choice, &ends, path, &held);
    CHECK(n <= MAX_STEPS + 1);
    *out = outcome_of(lane, tree->n > 1 ? STEP_SPEC : STEP_DECODE, tree->n, n, n,
                      choice[path[n - 1]], held >= 0);
    return n;
}

bool accept_tree(struct runtime *rt, const struct lane *lane, struct tree *tree, int max_new,
                 const int32_t *chosen, const float *u, struct outcome *out, struct err *e)
{
    int path[TREE_MAX], offset[MAX_STEPS + 1];
    int32_t choice[TREE_MAX];
    bool sampled = lane->how.temperature > 0;
    int n = judge(rt, lane, tree, max_new, chosen, choice, path, out);
    if (n == 0)
        return bad_token(rt, e);
    for (int i = 0; i < n; i++) {
        out->path[i] = path[i];
        out->token[i] = tree_emitted(tree->token, choice, path, n, i);
        offset[i] = tree->depth[path[i]];
        if (sampled)
            tree->u[path[i]] = u[path[i]];
    }
    if (rt->hook.accepted && tree->n > 1)
        rt->hook.accepted(tree, out);
    pass_lock(&rt->pass);
    bool ok = check_draws(&rt->pass.check, lane->draws, out->draws, offset, n, sampled, e) &&
              check_accepted(&rt->pass.check, tree, out->path, out->n_cells, e);
    pass_unlock(&rt->pass);
    return ok;
}

bool accept_prompt(struct runtime *rt, const struct lane *lane, int n_cells, bool last,
                   const int32_t *choice, struct outcome *out, struct err *e)
{
    *out = outcome_of(lane, STEP_PREFILL, n_cells, n_cells, last,
                      last ? emitted(lane, 0, *choice) : -1, false);
    out->token[0] = out->rec.bonus;
    return !last || *choice >= 0 || bad_token(rt, e);
}

int accept_moves(struct runtime *rt, const struct lane *lane, const struct outcome *out,
                 int32_t src[2][MAX_STEPS + 1], int32_t dst[2][MAX_STEPS + 1])
{
    struct kv *kv = &rt->kv;
    int base = lane->seq.committed, k = 0;
    pass_lock(&rt->pass);
    for (int i = 0; i < out->n_cells; i++) {
        if (out->path[i] == i)
            continue;
        full_slot from = kv_full_slot(kv, &lane->seq, base + out->path[i]);
        full_slot to = kv_full_slot(kv, &lane->seq, base + i);
        src[POOL_FULL][k] = from.v;
        dst[POOL_FULL][k] = to.v;
        kv_moved(kv, POOL_FULL, from.v, to.v);
        if (kv->has_swa) {
            src[POOL_SWA][k] = kv_swa_slot(kv, from).v;
            dst[POOL_SWA][k] = kv_swa_slot(kv, to).v;
            kv_moved(kv, POOL_SWA, src[POOL_SWA][k], dst[POOL_SWA][k]);
        }
        k++;
    }
    pass_unlock(&rt->pass);
    return k;
}

/* The fact of a token from the k best of its row. */
static struct token_fact fact_of(int32_t token, const int32_t *id, const float *logp, int k)
{
    struct token_fact f = {.logp = NAN, .rival = -1, .rival_logp = NAN};
    int rival = id[0] == token;
    for (int i = 0; i < k; i++)
        if (id[i] == token)
            f.logp = logp[i];
    if (rival < k) {
        f.rival = id[rival];
        f.rival_logp = logp[rival];
    }
    return f;
}

/* The log probabilities of n tokens, token i after row[i] < rows of the logits. Waits for the
 * device. */
static void log_probabilities(struct runtime *rt, const int32_t *row, const int32_t *id, int n,
                              int rows, float *logp)
{
    size_t bytes = (size_t)n * 4;
    rt->dev.k->put(rt->dev.d, rt->row, row, bytes);
    rt->dev.k->put(rt->dev.d, rt->idx, id, bytes);
    rt->dev.k->logp(rt->dev.d, &(struct k_logp){.pairs = n, .n = rt->model->cfg.vocab, .rows = rows,
                                                .logits = rt->logits, .row = rt->row, .id = rt->idx,
                                                .logp = rt->logp});
    rt->dev.k->get(rt->dev.d, logp, rt->logp, bytes);
}

/* Sets the log probabilities of tokens that are not among the best of their rows. Those of tree
 * nodes are known; for other tokens, which are rare, it waits for the device. */
static void complete_facts(struct runtime *rt, struct outcome *out, const int32_t *row,
                           const float *node_logp)
{
    int32_t at[MAX_STEPS + 1], id[MAX_STEPS + 1], of[MAX_STEPS + 1], rows = 0;
    float logp[MAX_STEPS + 1];
    int n = 0;
    for (int i = 0; i < out->n_new; i++)
        if (isnan(out->fact[i].logp) && node_logp && i + 1 < out->n_cells) {
            out->fact[i].logp = node_logp[out->path[i + 1] - 1];
        } else if (isnan(out->fact[i].logp)) {
            at[n] = row[i];
            id[n] = out->token[i];
            of[n++] = i;
            rows = max_int(rows, row[i] + 1);
        }
    if (n == 0)
        return;
    log_probabilities(rt, at, id, n, rows, logp);
    for (int i = 0; i < n; i++)
        out->fact[of[i]].logp = logp[i];
}

uint64_t best_digest(const struct best_logits *best)
{
    size_t bytes = (size_t)mul64(best->rows, best->k) * 4;
    return hash64(best->logp, bytes, hash64(best->id, bytes, 0));
}

void outcome_set_logits(struct runtime *rt, struct outcome *out, const struct best_logits *best,
                        const int32_t *row, const float *node_logp)
{
    if (best->rows == 0)
        return;
    const float *last = best->logp + mul64(best->rows - 1, best->k);
    CHECK(best->rows == out->n_new);
    out->rec.logit_digest = best_digest(best);
    out->rec.margin = best->k > 1 ? last[0] - last[1] : NAN;
    for (int i = 0; i < out->n_new; i++)
        out->fact[i] = fact_of(out->token[i], best->id + mul64(i, best->k),
                               best->logp + mul64(i, best->k), best->k);
    complete_facts(rt, out, row, node_logp);
}

/* ---- on the device, operation by operation --------------------------------------------------- */

/* Draws for n dense rows of logits with their uniforms. */
static void sample(struct runtime *rt, const struct lane *lane, kbuf logits, int n, const float *u,
                   int32_t *ids)
{
    rt->dev.k->put(rt->dev.d, rt->uniform, u, (size_t)n * 4);
    rt->dev.k->sample(rt->dev.d, &(struct k_sample){.rows = n, .n = rt->model->cfg.vocab,
                                                    .logits = logits, .mask = rt->mask,
                                                    .how = lane->how,
                                                    .u = rt->uniform, .ids = rt->ids,
                                                    .p = rt->prob});
    rt->dev.k->get(rt->dev.d, ids, rt->ids, (size_t)n * 4);
}

/* Draws for rows [first, first + n) of the logits, which are those of the tree's nodes (tree NULL:
 * one row, that of the last token): the uniform of a row depends on its depth. */
static void sample_rows(struct runtime *rt, const struct lane *lane, int first, int n,
                        const struct tree *tree, int32_t *ids, float *u)
{
    size_t v = (size_t)rt->model->cfg.vocab * 4;
    for (int i = 0; i < n; i++)
        u[i] = lane_uniform(lane, tree ? tree->depth[i] : 0);
    if (!lane->steer)
        sample(rt, lane, kbuf_at(rt->logits, (size_t)first * v, (size_t)n * v), n, u, ids);
    for (int i = 0, some; lane->steer && i < n; i += some) {
        some = min_int(n - i, STEER_ROWS);
        sample(rt, lane, steer_rows(rt, lane, tree, i, first + i, some), some, u + i, ids + i);
    }
}

/* The k best of n dense rows of logits. */
static void topk_rows(struct runtime *rt, kbuf logits, int n, int k, int32_t *id, float *logp)
{
    rt->dev.k->topk(rt->dev.d, &(struct k_topk){.rows = n, .n = rt->model->cfg.vocab, .k = k,
                                                .logits = logits, .ids = rt->ids,
                                                .logp = rt->prob});
    rt->dev.k->get(rt->dev.d, id, rt->ids, (size_t)mul64(n, k) * 4);
    rt->dev.k->get(rt->dev.d, logp, rt->prob, (size_t)mul64(n, k) * 4);
}

/* As above, for n rows in any order, at most MAX_STEPS + 1. */
static void topk_of(struct runtime *rt, const int32_t *row, int n, int k, int32_t *id, float *logp)
{
    int V = rt->model->cfg.vocab;
    CHECK(n <= MAX_STEPS + 1);
    rt->dev.k->put(rt->dev.d, rt->idx, row, (size_t)n * 4);
    rt->dev.k->rows(rt->dev.d, &(struct k_rows){.rows = n, .n = V, .src_stride = V, .dst_stride = V,
                                                .src = rt->logits, .dst = rt->path_logits,
                                                .idx = rt->idx});
    topk_rows(rt, rt->path_logits, n, k, id, logp);
}

static void best_of_rows(struct runtime *rt, const int32_t *row, int n, struct best_logits *best)
{
    best->rows = n;
    best->k = min_int(DIGEST_BEST, rt->model->cfg.vocab);
    topk_of(rt, row, n, best->k, best->id, best->logp);
}

/* The first k of the `of` best tokens of a row. */
static void put_best(struct job_token *out, int k, const int32_t *id, const float *logp, int of)
{
    for (int i = 0; i < k; i++)
        out[i] = i < of ? (struct job_token){id[i], logp[i]} : (struct job_token){-1, -INFINITY};
}

void lane_best(struct runtime *rt, const struct lane *lane, int k, struct job_token *out)
{
    int32_t id[(MAX_STEPS + 1) * JOB_TOP];
    float logp[(MAX_STEPS + 1) * JOB_TOP];
    int of = min_int(k, rt->model->cfg.vocab);
    CHECK(k <= JOB_TOP);
    if (lane->n_new == 0 || k == 0)
        return;
    topk_of(rt, lane->row, lane->n_new, of, id, logp);
    for (int i = 0; i < lane->n_new; i++)
        put_best(out + mul64(i, k), k, id + mul64(i, of), logp + mul64(i, of), of);
}

void score_prompt(struct runtime *rt, const struct lane *lane, int at, int n)
{
    const struct prompt_scores *scores = lane->scores;
    int32_t id[TREE_MAX * JOB_TOP], row[TREE_MAX];
    float best[TREE_MAX * JOB_TOP], logp[TREE_MAX];
    int k = min_int(max_int(DIGEST_BEST, scores->k), rt->model->cfg.vocab);
    CHECK(n > 0 && n <= TREE_MAX && scores->k <= JOB_TOP);
    for (int i = 0; i < n; i++)
        row[i] = i;
    log_probabilities(rt, row, lane->tok.v + at, n, n, logp);
    topk_rows(rt, rt->logits, n, k, id, best);
    for (int i = 0; i < n; i++) {
        scores->fact[at + i] = fact_of(lane->tok.v[at + i], id + mul64(i, k), best + mul64(i, k),
                                       k);
        scores->fact[at + i].logp = logp[i];
        if (scores->k)
            put_best(scores->top + mul64(at + i, scores->k), scores->k, id + mul64(i, k),
                     best + mul64(i, k), k);
    }
}

/* The target's log probability of every node after its parent, without the root; sets tree->p for
 * display. */
static void node_probabilities(struct runtime *rt, int first, struct tree *tree,
                               float logp[TREE_MAX])
{
    int32_t row[TREE_MAX], id[TREE_MAX];
    int n = tree->n - 1;
    if (n <= 0)
        return;
    for (int i = 0; i < n; i++) {
        row[i] = first + tree->parent[i + 1];
        id[i] = tree->token[i + 1];
    }
    log_probabilities(rt, row, id, n, first + tree->n, logp);
    for (int i = 0; i < n; i++)
        tree->p[i + 1] = expf(logp[i]);
}

static void move_cells(struct runtime *rt, const struct lane *lane, const struct outcome *out)
{
    int32_t src[2][MAX_STEPS + 1], dst[2][MAX_STEPS + 1];
    int n = accept_moves(rt, lane, out, src, dst);
    for (int p = 0; p < (rt->kv.has_swa ? 2 : 1) && n > 0; p++) {
        kbuf from[2] = {{0}}, to[2] = {{0}};
        rt->dev.k->put(rt->dev.d, rt->pair_src, src[p], (size_t)n * 4);
        rt->dev.k->put(rt->dev.d, rt->pair_dst, dst[p], (size_t)n * 4);
        from[p] = rt->pair_src;
        to[p] = rt->pair_dst;
        net_move(&rt->net, n, from, to);
    }
}

bool accept_lane(struct runtime *rt, const struct lane *lane, int first, int max_new,
                 struct tree *tree, struct outcome *out, struct err *e)
{
    int32_t choice[TREE_MAX], row[MAX_STEPS + 1];
    float u[TREE_MAX], node_logp[TREE_MAX];
    struct best_logits best;
    sample_rows(rt, lane, first, tree->n, tree, choice, u);
    if (!rt->dev.k->sync(rt->dev.d, e)) /* after a failure the choices are zeros, not results */
        return false;
    if (!accept_tree(rt, lane, tree, max_new, choice, u, out, e))
        return false;
    out->first_row = first;
    for (int i = 0; i < out->n_cells; i++)
        row[i] = first + out->path[i];
    node_probabilities(rt, first, tree, node_logp);
    best_of_rows(rt, row, out->n_cells, &best);
    outcome_set_logits(rt, out, &best, row, node_logp);
    move_cells(rt, lane, out);
    return true;
}

bool accept_peek(struct runtime *rt, const struct lane *lane, int first, int max_new,
                 struct tree *tree, struct step_rec *rec)
{
    int32_t chosen[TREE_MAX], choice[TREE_MAX];
    float u[TREE_MAX], node_logp[TREE_MAX];
    int path[TREE_MAX];
    struct outcome out;
    sample_rows(rt, lane, first, tree->n, tree, chosen, u);
    int n = rt->dev.k->sync(rt->dev.d, NULL)
                 ? judge(rt, lane, tree, max_new, chosen, choice, path, &out) : 0;
    if (n == 0)
        return false;
    for (int i = 0; i < n && lane->how.temperature > 0; i++)
        tree->u[path[i]] = u[path[i]];
    node_probabilities(rt, first, tree, node_logp);
    *rec = out.rec;
    return true;
}

int32_t sample_prompt(struct runtime *rt, const struct lane *lane, struct best_logits *best)
{
    const int32_t row = 0;
    int32_t id = -1;
    float u = 0;
    sample_rows(rt, lane, 0, 1, NULL, &id, &u);
    best_of_rows(rt, &row, 1, best);
    return id;
}
