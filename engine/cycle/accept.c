/* accept.c - see accept.h. */
#include "engine/cycle/accept.h"

#include "engine/cycle/steer.h"

#include <math.h>

/* ---- the walk and its outcome ---------------------------------------------------------------- */

static bool bad_token(struct err *e)
{
    return err_set(e, ERR_INVARIANT, "the model's output is not a number; the turn was stopped");
}

/* held: a drafted node holds the last new token, which then counts as accepted. */
static struct outcome outcome_of(const struct lane *l, enum step_kind kind, int rows, int n_cells,
                                 int n_new, int32_t last, bool held)
{
    uint64_t draws = l->draws + (l->how.temperature > 0 ? (uint64_t)n_new : 0);
    bool tree = kind != STEP_PREFILL;
    return (struct outcome){
        .rec = {.kind = kind, .pos0 = l->seq.committed, .rows = rows,
                .drafted = tree ? rows - 1 : 0, .accepted = tree ? n_new - !held : 0,
                .bonus = held ? -1 : last, .draws = draws, .margin = NAN,
                .forced = min_int(n_new, l->n_given)},
        .n_cells = n_cells, .n_new = n_new, .draws = draws, .draft_cells = -1};
}

int accept_limit(const struct runtime *r, const struct lane *l, int max_new)
{
    return max_int(1, min_int(max_new, r->context - l->tok.n));
}

/* The token that the row at this depth emits: the given token, or the target's choice. */
static int32_t emitted(const struct lane *l, int depth, int32_t choice)
{
    return depth < l->n_given ? l->given[depth] : choice;
}

/* Walks the tree with the target's choices: sets the fates of its nodes, the path, the emitted
 * tokens (choice) and the record of *out. Returns the length of the path; 0: a choice is no
 * token. */
static int judge(const struct runtime *r, const struct lane *l, struct tree *tree, int max_new,
                 const int32_t *chosen, int32_t choice[TREE_MAX], int path[TREE_MAX],
                 struct outcome *out)
{
    for (int i = 0; i < tree->n; i++) {
        if (chosen[i] < 0)
            return 0;
        choice[i] = emitted(l, tree->depth[i], chosen[i]);
    }
    struct tree_ends ends = {.max_nodes = accept_limit(r, l, max_new), .force = l->force,
                             .stop = r->stop, .n_stop = l->run_on ? 0 : r->n_stop};
    int held, n = tree_accept(tree, choice, &ends, path, &held);
    CHECK(n <= MAX_STEPS + 1);
    *out = outcome_of(l, tree->n > 1 ? STEP_SPEC : STEP_DECODE, tree->n, n, n, choice[path[n - 1]],
                      held >= 0);
    return n;
}

bool accept_tree(struct runtime *r, const struct lane *l, struct tree *tree, int max_new,
                 const int32_t *chosen, const float *u, struct outcome *out, struct err *e)
{
    int path[TREE_MAX], offset[MAX_STEPS + 1];
    int32_t choice[TREE_MAX];
    bool sampled = l->how.temperature > 0;
    int n = judge(r, l, tree, max_new, chosen, choice, path, out);
    if (n == 0)
        return bad_token(e);
    for (int i = 0; i < n; i++) {
        out->path[i] = path[i];
        out->token[i] = tree_emitted(tree->token, choice, path, n, i);
        offset[i] = tree->depth[path[i]];
        if (sampled)
            tree->u[path[i]] = u[path[i]];
    }
    if (r->hook.accepted && tree->n > 1)
        r->hook.accepted(tree, out);
    pass_lock(&r->pass);
    bool ok = check_draws(&r->pass.check, l->draws, out->draws, offset, n, sampled, e) &&
              check_accepted(&r->pass.check, tree, out->path, out->n_cells, e);
    pass_unlock(&r->pass);
    return ok;
}

bool accept_prompt(const struct lane *l, int n_cells, bool last, const int32_t *choice,
                   struct outcome *out, struct err *e)
{
    *out = outcome_of(l, STEP_PREFILL, n_cells, n_cells, last,
                      last ? emitted(l, 0, *choice) : -1, false);
    out->token[0] = out->rec.bonus;
    return !last || *choice >= 0 || bad_token(e);
}

int accept_moves(struct runtime *r, const struct lane *l, const struct outcome *out,
                 int32_t src[2][MAX_STEPS + 1], int32_t dst[2][MAX_STEPS + 1])
{
    struct kv *kv = &r->kv;
    int base = l->seq.committed, k = 0;
    pass_lock(&r->pass);
    for (int i = 0; i < out->n_cells; i++) {
        if (out->path[i] == i)
            continue;
        full_slot from = kv_full_slot(kv, &l->seq, base + out->path[i]);
        full_slot to = kv_full_slot(kv, &l->seq, base + i);
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
    pass_unlock(&r->pass);
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

/* Sets the log probabilities of tokens that are not among the best of their rows. Those of tree
 * nodes are known; for other tokens, which are rare, it waits for the device. */
static void complete_facts(struct runtime *r, struct outcome *o, const int32_t *row,
                           const float *node_logp)
{
    int32_t at[MAX_STEPS + 1], id[MAX_STEPS + 1], of[MAX_STEPS + 1], rows = 0;
    float logp[MAX_STEPS + 1];
    int n = 0;
    for (int i = 0; i < o->n_new; i++)
        if (isnan(o->fact[i].logp) && node_logp && i + 1 < o->n_cells) {
            o->fact[i].logp = node_logp[o->path[i + 1] - 1];
        } else if (isnan(o->fact[i].logp)) {
            at[n] = row[i];
            id[n] = o->token[i];
            of[n++] = i;
            rows = max_int(rows, row[i] + 1);
        }
    if (n == 0)
        return;
    r->dev.k->put(r->dev.d, r->row, at, (size_t)n * 4);
    r->dev.k->put(r->dev.d, r->idx, id, (size_t)n * 4);
    r->dev.k->logp(r->dev.d, &(struct k_logp){.pairs = n, .n = r->m->cfg.vocab, .rows = rows,
                                              .logits = r->logits, .row = r->row, .id = r->idx,
                                              .logp = r->logp});
    r->dev.k->get(r->dev.d, logp, r->logp, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        o->fact[of[i]].logp = logp[i];
}

uint64_t best_digest(const struct best_logits *b)
{
    size_t bytes = (size_t)mul64(b->rows, b->k) * 4;
    return hash64(b->logp, bytes, hash64(b->id, bytes, 0));
}

void outcome_set_logits(struct runtime *r, struct outcome *o, const struct best_logits *b,
                        const int32_t *row, const float *node_logp)
{
    if (b->rows == 0)
        return;
    const float *last = b->logp + mul64(b->rows - 1, b->k);
    CHECK(b->rows == o->n_new);
    o->rec.logit_digest = best_digest(b);
    o->rec.margin = b->k > 1 ? last[0] - last[1] : NAN;
    for (int i = 0; i < o->n_new; i++)
        o->fact[i] = fact_of(o->token[i], b->id + mul64(i, b->k), b->logp + mul64(i, b->k), b->k);
    complete_facts(r, o, row, node_logp);
}

/* ---- on the device, operation by operation --------------------------------------------------- */

/* Draws for n dense rows of logits with their uniforms. */
static void sample(struct runtime *r, const struct lane *l, kbuf logits, int n, const float *u,
                   int32_t *ids)
{
    r->dev.k->put(r->dev.d, r->u, u, (size_t)n * 4);
    r->dev.k->sample(r->dev.d, &(struct k_sample){.rows = n, .n = r->m->cfg.vocab,
                                                  .logits = logits, .mask = r->mask, .how = l->how,
                                                  .u = r->u, .ids = r->ids, .p = r->p});
    r->dev.k->get(r->dev.d, ids, r->ids, (size_t)n * 4);
}

/* Draws for rows [first, first + n) of the logits, which are those of the tree's nodes (t NULL: one
 * row, that of the last token): the uniform of a row depends on its depth. */
static void sample_rows(struct runtime *r, const struct lane *l, int first, int n,
                        const struct tree *t, int32_t *ids, float *u)
{
    size_t v = (size_t)r->m->cfg.vocab * 4;
    for (int i = 0; i < n; i++)
        u[i] = lane_uniform(l, t ? t->depth[i] : 0);
    if (!l->steer)
        sample(r, l, kbuf_at(r->logits, (size_t)first * v, (size_t)n * v), n, u, ids);
    for (int i = 0, some; l->steer && i < n; i += some) {
        some = min_int(n - i, STEER_ROWS);
        sample(r, l, steer_rows(r, l, t, i, first + i, some), some, u + i, ids + i);
    }
}

/* The k best of n dense rows of logits. */
static void topk_rows(struct runtime *r, kbuf logits, int n, int k, int32_t *id, float *logp)
{
    r->dev.k->topk(r->dev.d, &(struct k_topk){.rows = n, .n = r->m->cfg.vocab, .k = k,
                                              .logits = logits, .ids = r->ids, .logp = r->p});
    r->dev.k->get(r->dev.d, id, r->ids, (size_t)mul64(n, k) * 4);
    r->dev.k->get(r->dev.d, logp, r->p, (size_t)mul64(n, k) * 4);
}

/* As above, for n rows in any order, at most MAX_STEPS + 1. */
static void topk_of(struct runtime *r, const int32_t *row, int n, int k, int32_t *id, float *logp)
{
    int V = r->m->cfg.vocab;
    CHECK(n <= MAX_STEPS + 1);
    r->dev.k->put(r->dev.d, r->idx, row, (size_t)n * 4);
    r->dev.k->rows(r->dev.d, &(struct k_rows){.rows = n, .n = V, .src_stride = V, .dst_stride = V,
                                              .src = r->logits, .dst = r->path_logits,
                                              .idx = r->idx});
    topk_rows(r, r->path_logits, n, k, id, logp);
}

static void best_of_rows(struct runtime *r, const int32_t *row, int n, struct best_logits *b)
{
    b->rows = n;
    b->k = min_int(DIGEST_BEST, r->m->cfg.vocab);
    topk_of(r, row, n, b->k, b->id, b->logp);
}

/* The first k of the `of` best tokens of a row. */
static void put_best(struct job_token *out, int k, const int32_t *id, const float *logp, int of)
{
    for (int i = 0; i < k; i++)
        out[i] = i < of ? (struct job_token){id[i], logp[i]} : (struct job_token){-1, -INFINITY};
}

void lane_best(struct runtime *r, const struct lane *l, int k, struct job_token *out)
{
    int32_t id[(MAX_STEPS + 1) * JOB_TOP];
    float logp[(MAX_STEPS + 1) * JOB_TOP];
    int of = min_int(k, r->m->cfg.vocab);
    CHECK(k <= JOB_TOP);
    if (l->n_new == 0 || k == 0)
        return;
    topk_of(r, l->row, l->n_new, of, id, logp);
    for (int i = 0; i < l->n_new; i++)
        put_best(out + mul64(i, k), k, id + mul64(i, of), logp + mul64(i, of), of);
}

int score_rows(const struct runtime *r)
{
    return min_int(r->max_logits, TREE_MAX);
}

void score_prompt(struct runtime *r, const struct lane *l, int at, int n)
{
    const struct prompt_scores *s = l->scores;
    int32_t id[TREE_MAX * JOB_TOP], row[TREE_MAX];
    float best[TREE_MAX * JOB_TOP], logp[TREE_MAX];
    int V = r->m->cfg.vocab, k = min_int(max_int(DIGEST_BEST, s->k), V);
    size_t bytes = (size_t)n * 4;
    CHECK(n <= score_rows(r) && s->k <= JOB_TOP);
    for (int i = 0; i < n; i++)
        row[i] = i;
    r->dev.k->put(r->dev.d, r->row, row, bytes);
    r->dev.k->put(r->dev.d, r->idx, l->tok.v + at, bytes);
    r->dev.k->logp(r->dev.d, &(struct k_logp){.pairs = n, .n = V, .rows = n, .logits = r->logits,
                                              .row = r->row, .id = r->idx, .logp = r->logp});
    r->dev.k->get(r->dev.d, logp, r->logp, bytes);
    topk_rows(r, r->logits, n, k, id, best);
    for (int i = 0; i < n; i++) {
        s->fact[at + i] = fact_of(l->tok.v[at + i], id + mul64(i, k), best + mul64(i, k), k);
        s->fact[at + i].logp = logp[i];
        if (s->k)
            put_best(s->top + mul64(at + i, s->k), s->k, id + mul64(i, k), best + mul64(i, k), k);
    }
}

/* The target's log probability of every node after its parent, without the root; sets t->p for
 * display. */
static void node_probabilities(struct runtime *r, int first, struct tree *t, float logp[TREE_MAX])
{
    int32_t row[TREE_MAX], id[TREE_MAX];
    int n = t->n - 1;
    if (n <= 0)
        return;
    for (int i = 0; i < n; i++) {
        row[i] = first + t->parent[i + 1];
        id[i] = t->token[i + 1];
    }
    r->dev.k->put(r->dev.d, r->row, row, (size_t)n * 4);
    r->dev.k->put(r->dev.d, r->idx, id, (size_t)n * 4);
    r->dev.k->logp(r->dev.d, &(struct k_logp){.pairs = n, .n = r->m->cfg.vocab,
                                              .rows = first + t->n, .logits = r->logits,
                                              .row = r->row, .id = r->idx, .logp = r->logp});
    r->dev.k->get(r->dev.d, logp, r->logp, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        t->p[i + 1] = expf(logp[i]);
}

static void move_cells(struct runtime *r, const struct lane *l, const struct outcome *out)
{
    int32_t src[2][MAX_STEPS + 1], dst[2][MAX_STEPS + 1];
    int n = accept_moves(r, l, out, src, dst);
    for (int p = 0; p < (r->kv.has_swa ? 2 : 1) && n > 0; p++) {
        kbuf from[2] = {{0}}, to[2] = {{0}};
        r->dev.k->put(r->dev.d, r->pair_src, src[p], (size_t)n * 4);
        r->dev.k->put(r->dev.d, r->pair_dst, dst[p], (size_t)n * 4);
        from[p] = r->pair_src;
        to[p] = r->pair_dst;
        net_move(&r->net, n, from, to);
    }
}

bool accept_lane(struct runtime *r, const struct lane *l, int first, int max_new, struct tree *tree,
                 struct outcome *out, struct err *e)
{
    int32_t choice[TREE_MAX], row[MAX_STEPS + 1];
    float u[TREE_MAX], node_logp[TREE_MAX];
    struct best_logits best;
    sample_rows(r, l, first, tree->n, tree, choice, u);
    if (!r->dev.k->sync(r->dev.d, e)) /* after a failure the choices are zeros, not results */
        return false;
    if (!accept_tree(r, l, tree, max_new, choice, u, out, e))
        return false;
    out->first_row = first;
    for (int i = 0; i < out->n_cells; i++)
        row[i] = first + out->path[i];
    node_probabilities(r, first, tree, node_logp);
    best_of_rows(r, row, out->n_cells, &best);
    outcome_set_logits(r, out, &best, row, node_logp);
    move_cells(r, l, out);
    return true;
}

bool accept_peek(struct runtime *r, const struct lane *l, int first, int max_new, struct tree *tree,
                 struct step_rec *rec)
{
    int32_t chosen[TREE_MAX], choice[TREE_MAX];
    float u[TREE_MAX], node_logp[TREE_MAX];
    int path[TREE_MAX];
    struct outcome out;
    sample_rows(r, l, first, tree->n, tree, chosen, u);
    int n = r->dev.k->sync(r->dev.d, NULL)
                ? judge(r, l, tree, max_new, chosen, choice, path, &out) : 0;
    if (n == 0)
        return false;
    for (int i = 0; i < n && l->how.temperature > 0; i++)
        tree->u[path[i]] = u[path[i]];
    node_probabilities(r, first, tree, node_logp);
    *rec = out.rec;
    return true;
}

int32_t sample_prompt(struct runtime *r, const struct lane *l, struct best_logits *best)
{
    const int32_t row = 0;
    int32_t id = -1;
    float u = 0;
    sample_rows(r, l, 0, 1, NULL, &id, &u);
    best_of_rows(r, &row, 1, best);
    return id;
}
