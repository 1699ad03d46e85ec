/* redraft_score.c - runs a head over known states in one reading, and counts. See redraft.h. */
#include "engine/thread/redraft_parts.h"

#include <math.h>

enum { CHAIN_EVERY = 3, LOOK_EVERY = 128, CLEARLY = 4 };

void redraft_progress(const struct scorer *scorer, const char *what, int done, int total)
{
    if (scorer->o->progress)
        scorer->o->progress(scorer->o->progress_arg, what, (uint64_t)done, (uint64_t)total);
}

bool redraft_stopped(const struct stop *stop, struct err *e)
{
    return stop_asked(stop) && !err_set(e, ERR_NEGATIVE, "the measurement was stopped");
}

size_t redraft_row_bytes(const struct scorer *scorer)
{
    return (size_t)scorer->n_kept * (size_t)scorer->o->l->draft.target_hidden * sizeof(float);
}

/* ---- the head -------------------------------------------------------------------------------- */

static int kept_at(const struct scorer *scorer, int boundary)
{
    for (int i = 0; i < scorer->n_kept; i++)
        if (scorer->kept[i] == boundary)
            return i;
    return -1;
}

/* Puts the states of slots [from, from + rows) where the head reads captured states. */
static void put_states(struct scorer *scorer, const struct trial *t,
                       const struct scored_text *scored, int from, int rows)
{
    struct head *h = scorer->r.drafter->head;
    const struct kernels *k = scorer->r.dev.k;
    int H = scorer->as_is.target_hidden, wide = scorer->n_kept * H;
    for (int i = 0; i < scorer->as_is.n_capture; i++) {
        int b = kept_at(scorer, t->capture[i]), first = from + t->state_shift,
            skip = max_int(0, -first);
        size_t at = (size_t)(scored->at + first + skip) * redraft_row_bytes(scorer) +
                    (size_t)mul64(b, H) * 4;
        size_t to = ((size_t)mul64(skip, h->taps.stride) + (size_t)mul64(i, H)) * 4;
        k->rows(scorer->r.dev.d, &(struct k_rows){
            .rows = rows - skip, .n = H, .src_stride = wide, .dst_stride = h->taps.stride,
            .src = kbuf_at(scorer->states, at, scorer->states.n - at),
            .dst = kbuf_at(h->taps.dst, to, h->taps.dst.n - to)});
        if (skip) /* there is no state before the first one */
            k->rows(scorer->r.dev.d, &(struct k_rows){
                .rows = skip, .n = H, .src_stride = wide, .dst_stride = h->taps.stride,
                .src = kbuf_at(scorer->states,
                               (size_t)scored->at * redraft_row_bytes(scorer) +
                               (size_t)mul64(b, H) * 4, (size_t)H * 4),
                .dst = kbuf_at(h->taps.dst, (size_t)mul64(i, H) * 4,
                               h->taps.dst.n - (size_t)mul64(i, H) * 4)});
    }
}

/* Plans the head's pass over slots [from, upto). */
static bool plan_head(struct scorer *scorer, const struct trial *t,
                      const struct scored_text *scored,
                      struct seq *seq, int from, int upto, struct err *e)
{
    struct runtime *rt = &scorer->r;
    struct plan_req req = {.seq = seq, .n = upto - from,
                           .token = scored->t->id + from + t->token_shift,
                           .draft_from = from};
    seq->committed = upto;
    if (!kv_reserve_draft(&rt->kv, seq, from, upto, e) ||
        !pass_prepare(&rt->pass, PLAN_DRAFT_EXTEND, &req, 1, e))
        return false;
    put_states(scorer, t, scored, from, upto - from);
    return true;
}

/* Runs the head over slots [from, upto); ids: (scored ones of them, k) the best guesses of each,
 * ids of the head's own vocabulary. k 0: no guesses. */
static bool run_head(struct scorer *scorer, const struct trial *t, const struct scored_text *x,
                     struct seq *seq, int from, int upto, int k, int32_t *ids, struct err *e)
{
    struct runtime *rt = &scorer->r;
    struct head *h = rt->drafter->head;
    int32_t row[REDRAFT_ROWS], scored[REDRAFT_ROWS] = {0};
    int rows = upto - from, n = 0;
    if (!plan_head(scorer, t, x, seq, from, upto, e))
        return false;
    for (int i = 0; i < rows; i++) {
        row[i] = i;
        if (k && redraft_scored(x->t, from + i + 2))
            scored[n++] = i;
    }
    rt->dev.k->put(rt->dev.d, scorer->last, scored, (size_t)max_int(n, 1) * sizeof *scored);
    h->ops->extend(h, &rt->pass.kp, rows, head_rows(h, row, rows), scorer->last, max_int(n, 1),
                   h->state);
    if (n) {
        head_topk(h, n, k, h->ids, h->logp);
        rt->dev.k->get(rt->dev.d, ids, h->ids, (size_t)mul64(n, k) * sizeof *ids);
    }
    kv_commit_draft(&rt->kv, seq, upto);
    return true;
}

/* The rows of a pass of the head: so many have room for their logits. */
static int most_rows(const struct scorer *scorer)
{
    const struct head *h = scorer->r.drafter->head;
    size_t room = h->logits.n / sizeof(float) / (size_t)h->w->draft_vocab;
    return min_int(min_int(h->max_heads, h->max_rows), room < REDRAFT_ROWS ? (int)room
                   : REDRAFT_ROWS);
}

/* Of a guess of run_head() or run_block(). */
static int32_t target_id(const struct draft *d, int32_t id)
{
    return d->d2t && draft_guesses_next(d) ? d->d2t[id] : id;
}

/* Runs the slots [from, root), those before them being run, and grows a chain of `depth` guesses
 * after token `root`; the tokens of *tree are ids of the target. */
static bool grow(struct scorer *scorer, const struct trial *t, const struct scored_text *scored,
                 struct seq *seq, int from, int root, int depth, struct tree *tree, struct err *e)
{
    struct runtime *rt = &scorer->r;
    struct guess g = {0};
    int32_t row[REDRAFT_ROWS];
    tree_init(tree, scored->t->id[root]);
    struct drafting lane = {seq, &g, 0, depth, tree, scored->t->id, root + 1};
    for (int i = from; i < root; i++)
        row[i - from] = i - from;
    if (!plan_head(scorer, t, scored, seq, from, root, e))
        return false;
    head_extend(rt->drafter->head, &rt->pass, row, &(int32_t){0}, 1, &g);
    kv_commit_draft(&rt->kv, seq, root);
    return drafter_grow(rt->drafter, &rt->pass, &lane, 1, &(struct tree_shape){depth, 1, depth + 1},
                        e);
}

/* As run_head() with one slot and k 1, of a head whose guesses begin in a block. */
static bool run_block(struct scorer *scorer, const struct trial *t,
                      const struct scored_text *scored,
                      struct seq *seq, int slot, int32_t *id, struct err *e)
{
    struct tree tree;
    bool ok = grow(scorer, t, scored, seq, slot, slot + 1, 1, &tree, e);
    *id = ok && tree.n > 1 ? tree.token[1] : -1;
    return ok;
}

/* ---- a trial over all texts ------------------------------------------------------------------ */

/* Takes the k guesses of a row: the i-th scored token, which is token `at` of its text. False: no
 * more are wanted. */
typedef bool take_fn(void *arg, const struct scored_text *x, int at, int i, const int32_t *ids,
                     int k);

static void begin_trial(struct scorer *scorer, const struct trial *t)
{
    struct draft *d = &scorer->o->l->draft;
    *d = t->d;
    d->layer = scorer->layers; /* the drafter's own pointer stays */
    memcpy(scorer->layers, t->layer, (size_t)d->cfg.n_layer * sizeof *scorer->layers);
    memcpy(scorer->r.drafter->head->taps.boundary, t->capture, sizeof t->capture);
    scorer->r.kv.draft_window = t->sees;
    scorer->r.pass.opts.draft_window = draft_window(d);
    scorer->r.pass.opts.draft_full = false;
    for (int l = 0; l < d->cfg.n_layer; l++)
        scorer->r.pass.opts.draft_full |= d->layer[l].window == 0;
}

static void end_trial(struct scorer *scorer, const struct layer *layers)
{
    CHECK(layers); /* a head has one layer at least: xcopy() of none is NULL */
    scorer->o->l->draft = scorer->as_is;
    memcpy(scorer->layers, layers, (size_t)scorer->as_is.cfg.n_layer * sizeof *layers);
}

/* Runs the trial over the first `most` scored tokens; k guesses a token. */
static bool each_guess(struct scorer *scorer, const struct trial *t, int k, int most, take_fn *take,
                       void *arg, struct err *e)
{
    FREED(free_at) struct layer *layers = xcopy(scorer->layers, (size_t)scorer->as_is.cfg.n_layer,
                                                sizeof *scorer->layers);
    begin_trial(scorer, t);
    bool next = draft_guesses_next(&t->d);
    int rows = next ? most_rows(scorer) : 1, done = 0;
    FREED(free_at) int32_t *ids = xmalloc((size_t)mul64(REDRAFT_ROWS, k) * sizeof *ids);
    bool ok = rows > 0, more = true;
    for (int x = 0; x < scorer->n_text && ok && more && done < most; x++) {
        const struct scored_text *c = &scorer->text[x];
        struct seq seq = {0};
        int slots = c->n - 2; /* slot i guesses token i + 2 */
        for (int at = 0, n; at < slots && ok && more && done < most; at += n) {
            n = min_int(rows, slots - at);
            redraft_progress(scorer, "readings", scorer->part, scorer->parts);
            ok = !redraft_stopped(scorer->o->stop, e) &&
                 (next ? run_head(scorer, t, c, &seq, at, at + n, k, ids, e)
                       : run_block(scorer, t, c, &seq, at, ids, e));
            for (int i = 0, j = 0; i < n && ok && more && done < most; i++)
                if (redraft_scored(c->t, at + i + 2))
                    more = take(arg, c, at + i + 2, done++, ids + mul64(j++, k), k);
        }
        kv_drop(&scorer->r.kv, &seq);
    }
    end_trial(scorer, layers);
    return ok;
}

/* ---- what is counted ------------------------------------------------------------------------- */

struct count {
    struct scorer *s;
    const struct draft *d;
    int reading;
    int32_t *draft_id, *choice; /* (tokens) as configured, for the map; or NULL */
    int hits;
};

static bool take_hit(void *arg, const struct scored_text *scored, int at, int, const int32_t *ids,
                     int)
{
    struct count *c = arg;
    c->hits += target_id(c->d, ids[0]) == scored->choice[at - 1];
    return true;
}

/* Whether a reading needs no more tokens: after so many it is clearly worse than as configured. The
 * readings of a stale engine are compared with the session's guesses as well. */
static bool is_lost(const struct scorer *scorer, const struct reading *r)
{
    int won = 0, lost = 0, n = r->tokens;
    const uint8_t *hit = scorer->hit[r - scorer->out->r];
    if (scorer->o->which != REDRAFT_ALL || n % LOOK_EVERY || r->of == READ_STALE ||
        r->of == READ_TOKEN) return false;
    for (int i = 0; i < n; i++) {
        won += hit[i] > scorer->hit[0][i];
        lost += hit[i] < scorer->hit[0][i];
    }
    return lost - won > CLEARLY * sqrt(lost + won);
}

static bool take_all(void *arg, const struct scored_text *scored, int at, int i, const int32_t *ids,
                     int k)
{
    struct count *c = arg;
    struct redraft *out = c->s->out;
    struct reading *r = &out->r[c->reading];
    int32_t guess = target_id(c->d, ids[0]), want = scored->choice[at - 1];
    int32_t logged = scored->t->guess ? scored->t->guess[at] : -1;
    bool hit = guess == want;
    c->s->hit[c->reading][i] = hit;
    c->s->same[c->reading][i] = logged < 0 ? 2 : guess == logged;
    r->tokens++;
    r->hits += hit;
    r->hits_at[draft_range_of(at)] += hit;
    r->same += logged >= 0 && guess == logged;
    if (c->reading)
        return !is_lost(c->s, r);
    int rank = 0;
    for (int j = k - 1; j >= 0; j--)
        rank = target_id(c->d, ids[j]) == want ? j + 1 : rank;
    out->rank[rank]++;
    out->tokens_at[draft_range_of(at)]++;
    out->logged += logged >= 0;
    c->draft_id[i] = ids[0];
    c->choice[i] = want;
    return true;
}

/* Whether the target's choices where the head guesses the same id say what that id means: each
 * token is predicted by the most frequent choice at the other tokens with its guess. */
static void learn_map(struct scorer *scorer, const struct count *c)
{
    struct redraft *out = scorer->out;
    for (int i = 0; i < scorer->tokens; i++) {
        int best = 0, others = 0;
        int32_t means = -1;
        for (int j = 0; j < scorer->tokens; j++) {
            int n = 0;
            if (j == i || c->draft_id[j] != c->draft_id[i])
                continue;
            others++;
            for (int m = 0; m < scorer->tokens; m++)
                n += m != i && c->draft_id[m] == c->draft_id[i] && c->choice[m] == c->choice[j];
            if (n > best) {
                best = n;
                means = c->choice[j];
            }
        }
        if (!others)
            continue;
        out->map_tokens++;
        out->map_hits += means == c->choice[i];
        out->map_as_is += scorer->hit[0][i];
    }
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* How many tokens of a chain grown after token `root` are accepted: the guesses until one is not
 * the target's choice, or the text goes on otherwise. */
static int chain_length(const struct scored_text *scored, const struct tree *t, int root)
{
    int n = 0;
    for (int i = 1; i < t->n && root + i < scored->n; i++) {
        if (t->token[i] != scored->choice[root + i - 1])
            break;
        n++;
        if (t->token[i] != scored->t->id[root + i])
            break;
    }
    return n;
}

/* A chain after token `root`, whose slots before it are all run up to `from`. */
static bool one_chain(struct scorer *scorer, const struct trial *t,
                      const struct scored_text *scored,
                      struct seq *seq, int from, int root, int *length, struct err *e)
{
    struct tree tree;
    bool ok = grow(scorer, t, scored, seq, from, root, scorer->o->chain, &tree, e);
    *length = ok ? chain_length(scored, &tree, root) : 0;
    return ok;
}

/* One scored token of `every` is the first guess of a chain. */
static bool text_chains(struct scorer *scorer, const struct trial *t, const struct scored_text *x,
                        int every, int *length, int *n, int most, struct err *e)
{
    struct seq seq = {0};
    int at = 0, scored = 0, chunk = most_rows(scorer);
    bool ok = true;
    for (int root = 1; ok && root + 1 < x->n && *n < most; root++) {
        if (!redraft_scored(x->t, root + 1) || scored++ % every)
            continue;
        /* what lies before, in passes of what a head takes at once */
        for (int to; ok && root - at > CHAIN_EVERY; at = to) {
            to = min_int(at + chunk, root - 1);
            ok = run_head(scorer, t, x, &seq, at, to, 0, NULL, e);
        }
        redraft_progress(scorer, "readings", scorer->part, scorer->parts);
        ok = ok && !redraft_stopped(scorer->o->stop, e) &&
             one_chain(scorer, t, x, &seq, at, root, &length[(*n)], e);
        *n += ok;
        at = root;
    }
    kv_drop(&scorer->r.kv, &seq);
    return ok;
}

bool redraft_chains(struct scorer *scorer, const struct trial *t, struct err *e)
{
    enum { MOST = 64 };
    struct reading *r = &scorer->out->r[t->reading];
    if (!scorer->o->chain || r->cycles)
        return true;
    int length[MOST], n = 0;
    FREED(free_at) struct layer *layers = xcopy(scorer->layers, (size_t)scorer->as_is.cfg.n_layer,
                                                sizeof *scorer->layers);
    begin_trial(scorer, t);
    bool ok = true;
    for (int x = 0; x < scorer->n_text && ok && n < MOST; x++)
        ok = text_chains(scorer, t, &scorer->text[x], max_int(CHAIN_EVERY, scorer->tokens / MOST),
                         length, &n, MOST, e);
    end_trial(scorer, layers);
    double sum = 0, square = 0;
    for (int i = 0; i < n && ok; i++) {
        double d = scorer->chain ? length[i] - scorer->chain[i] : 0;
        r->accepted += length[i];
        sum += d;
        square += d * d;
    }
    r->cycles = ok ? n : 0;
    if (n > 1) {
        r->longer = sum / n;
        r->error = sqrt((square - sum * sum / n) / (n - 1) / n);
    }
    if (!scorer->chain) {
        scorer->chain = xcalloc(MOST, sizeof *scorer->chain);
        memcpy(scorer->chain, length, (size_t)n * sizeof *length);
    }
    return ok;
}

int redraft_hits(struct scorer *scorer, const struct trial *t, int most, struct err *e)
{
    struct count c = {.s = scorer, .d = &t->d};
    return each_guess(scorer, t, 1, most, take_hit, &c, e) ? c.hits : -1;
}

bool redraft_score(struct scorer *scorer, struct trial *t, struct err *e)
{
    struct redraft *out = scorer->out;
    if (out->n == READINGS)
        return true;
    int i = t->reading = out->n;
    struct reading *r = &out->r[i];
    *r = (struct reading){.of = t->of, .n_boundary = scorer->as_is.n_capture, .sees = t->sees};
    memcpy(r->what, t->what, sizeof r->what);
    memcpy(r->boundary, t->capture, sizeof r->boundary);
    scorer->hit[i] = xcalloc((size_t)scorer->tokens, 1);
    scorer->same[i] = xcalloc((size_t)scorer->tokens, 1);
    struct count c = {.s = scorer, .d = &t->d, .reading = i};
    if (i == 0) {
        c.draft_id = xcalloc((size_t)scorer->tokens, sizeof *c.draft_id);
        c.choice = xcalloc((size_t)scorer->tokens, sizeof *c.choice);
    }
    bool ranks = !i && draft_guesses_next(&t->d);
    int k = ranks ? min_int(REDRAFT_RANKS, t->d.draft_vocab) : 1;
    bool ok = each_guess(scorer, t, k, scorer->tokens, take_all, &c, e);
    if (ok && i == 0)
        learn_map(scorer, &c);
    FREE(c.draft_id, c.choice);
    for (int x = 0; x < r->tokens && i && ok; x++) {
        r->won += scorer->hit[i][x] > scorer->hit[0][x];
        r->lost += scorer->hit[i][x] < scorer->hit[0][x];
        if (scorer->same[i][x] == 2)
            continue;
        r->same_won += scorer->same[i][x] > scorer->same[0][x];
        r->same_lost += scorer->same[i][x] < scorer->same[0][x];
    }
    if (ok && t->chain)
        ok = redraft_chains(scorer, t, e);
    out->n += ok;
    return ok;
}
