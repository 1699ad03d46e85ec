/* redraft_readings.c - what can be changed about a head, one thing at a time. See redraft.h. */
#include "engine/thread/redraft_parts.h"

static void trial_open(struct trial *t, const struct scorer *scorer, enum reading_of of,
                       const char *what)
{
    size_t bytes = (size_t)scorer->as_is.cfg.n_layer * sizeof *t->layer;
    *t = (struct trial){.of = of, .token_shift = 1, .d = scorer->as_is, .layer = xmalloc(bytes)};
    snprintf(t->what, sizeof t->what, "%s", what);
    memcpy(t->layer, scorer->layers, bytes);
    memcpy(t->capture, scorer->as_is.capture, sizeof t->capture);
    t->sees = scorer->o->sees;
}

static void trial_close(struct trial *t)
{
    if (t->own_rope)
        rope_free(&t->d.cfg.rope[0]);
    if (t->own_ids)
        free(t->d.d2t);
    free(t->layer);
}

static int gain(const struct scorer *scorer, const struct trial *t)
{
    return scorer->out->r[t->reading].won - scorer->out->r[t->reading].lost;
}

/* Keeps the trial if it is one of those that gained most, and closes it or the one it replaces. */
static void keep_close(struct scorer *scorer, struct trial *t)
{
    int at = scorer->n_close;
    while (at > 0 && gain(scorer, &scorer->close[at - 1]) < gain(scorer, t))
        at--;
    if (gain(scorer, t) <= 0 || at == REDRAFT_CLOSE) {
        trial_close(t);
        return;
    }
    if (scorer->n_close == REDRAFT_CLOSE)
        trial_close(&scorer->close[--scorer->n_close]);
    memmove(scorer->close + at + 1, scorer->close + at,
            (size_t)(scorer->n_close - at) * sizeof *scorer->close);
    scorer->close[at] = *t;
    scorer->n_close++;
}

/* Scores the trial, and closes it or keeps it. */
static bool score(struct scorer *scorer, struct trial *t, struct err *e)
{
    bool ok = redraft_score(scorer, t, e);
    if (ok && scorer->out->n > 1)
        keep_close(scorer, t);
    else
        trial_close(t);
    return ok;
}

/* Measures the chains of the readings that were kept. */
static bool chains_of_close(struct scorer *scorer, struct err *e)
{
    bool ok = true;
    for (int i = 0; i < scorer->n_close; i++) {
        ok = ok && redraft_chains(scorer, &scorer->close[i], e);
        trial_close(&scorer->close[i]);
    }
    scorer->n_close = 0;
    return ok;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void name_layers(struct trial *t, int n)
{
    size_t at = (size_t)snprintf(t->what, sizeof t->what, "boundaries ");
    for (int i = 0; i < n && at < sizeof t->what; i++)
        at += (size_t)snprintf(t->what + at, sizeof t->what - at, "%s%d", i ? "," : "",
                               t->capture[i]);
}

static bool try_layers(struct scorer *scorer, const int *boundary, struct err *e)
{
    struct trial t;
    int n = scorer->as_is.n_capture;
    bool all = true;
    for (int i = 0; i < n; i++)
        all &= ANY(k, scorer->n_kept, scorer->kept[k] == boundary[i]);
    trial_open(&t, scorer, READ_LAYERS, "");
    memcpy(t.capture, boundary, (size_t)n * sizeof *boundary);
    name_layers(&t, n);
    for (int i = 0; i < scorer->out->n; i++)
        all &= scorer->out->r[i].of != READ_LAYERS ||
               memcmp(scorer->out->r[i].boundary, t.capture, (size_t)n * sizeof *boundary) != 0;
    if (all && memcmp(t.capture, scorer->as_is.capture, sizeof t.capture) != 0)
        return score(scorer, &t, e);
    trial_close(&t);
    return true;
}

static bool try_usual_layers(struct scorer *scorer, struct err *e)
{
    const struct draft *d = &scorer->as_is;
    int n = scorer->o->l->model.cfg.n_layer, low[MAX_CAPTURE] = {0}, high[MAX_CAPTURE] = {0};
    for (int i = 0; i < d->n_capture; i++) {
        low[i] = d->capture[i] - 1;
        high[i] = d->capture[i] + 1;
    }
    const int usual[MAX_CAPTURE] = {2, n / 2, n - 3};
    return try_layers(scorer, low, e) && try_layers(scorer, high, e) &&
           (d->n_capture != 3 || try_layers(scorer, usual, e));
}

/* Changes one boundary after the other to the one with the most hits, until nothing is gained. */
static bool search_layers(struct scorer *scorer, struct err *e)
{
    enum { SWEEPS = 3, TOKENS = 96 };
    struct trial t;
    int n = scorer->as_is.n_capture;
    trial_open(&t, scorer, READ_LAYERS, "");
    int best = redraft_hits(scorer, &t, TOKENS, e), before = -1;
    for (int sweep = 0; sweep < SWEEPS && best > before && best >= 0; sweep++) {
        before = best;
        for (int i = 0; i < n; i++) {
            int keep = t.capture[i];
            for (int b = 0; b < scorer->n_kept; b++) {
                t.capture[i] = scorer->kept[b];
                int hits = scorer->kept[b] == keep ? -2 : redraft_hits(scorer, &t, TOKENS, e);
                if (hits == -1) {
                    trial_close(&t);
                    return false;
                }
                if (hits > best) {
                    best = hits;
                    keep = scorer->kept[b];
                }
            }
            t.capture[i] = keep;
        }
    }
    int found[MAX_CAPTURE];
    memcpy(found, t.capture, sizeof found);
    trial_close(&t);
    return best >= 0 && try_layers(scorer, found, e);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static bool try_norms(struct scorer *scorer, struct err *e)
{
    static const float eps[] = {1e-5f, 1e-6f};
    const struct draft *d = &scorer->as_is;
    struct trial t;
    bool ok = true;
    trial_open(&t, scorer, READ_NORM, d->norm_before_residual ? "norm_before_residual false"
                                                         : "norm_before_residual true");
    t.d.norm_before_residual = !d->norm_before_residual;
    ok = score(scorer, &t, e);
    trial_open(&t, scorer, READ_NORM, d->norm_output ? "norm_output false" : "norm_output true");
    t.d.norm_output = !d->norm_output;
    t.chain = true;
    ok = ok ? score(scorer, &t, e) : (trial_close(&t), false);
    bool plus = d->cfg.norm == NORM_RMS1P;
    trial_open(&t, scorer, READ_NORM, plus ? "norms x w in place of x (1 + w)"
                                      : "norms x (1 + w) in place of x w");
    t.d.cfg.norm = plus ? NORM_RMS : NORM_RMS1P;
    ok = ok ? score(scorer, &t, e) : (trial_close(&t), false);
    for (size_t i = 0; i < LEN(eps) && ok; i++) {
        if (eps[i] == d->cfg.eps)
            continue;
        trial_open(&t, scorer, READ_NORM, "");
        snprintf(t.what, sizeof t.what, "rms_norm_eps %g", (double)eps[i]);
        t.d.cfg.eps = eps[i];
        ok = score(scorer, &t, e);
    }
    trial_open(&t, scorer, READ_NORM, "input_layernorm and hidden_norm exchanged");
    t.layer[0].in_norm = scorer->layers[0].hidden_norm;
    t.layer[0].hidden_norm = scorer->layers[0].in_norm;
    ok = ok ? score(scorer, &t, e) : (trial_close(&t), false);
    if (ok && (d->input_norm.data || d->fc_norm[0].data)) {
        trial_open(&t, scorer, READ_NORM, "no norm before fc");
        t.d.input_norm = (struct tensor){0};
        memset(t.d.fc_norm, 0, sizeof t.d.fc_norm);
        ok = score(scorer, &t, e);
    }
    return ok;
}

/* ---- rope and window ------------------------------------------------------------------------- */

static bool try_rope(struct scorer *scorer, const struct rope *as, const char *what, struct err *e)
{
    struct trial t;
    struct err none;
    trial_open(&t, scorer, READ_ROPE, what);
    t.d.cfg.rope[0] = *as;
    t.d.cfg.rope[0].inv_freq = NULL;
    bool ok = rope_init(&t.d.cfg.rope[0], scorer->layers[0].head_dim, &none);
    t.own_rope = ok;
    if (ok && t.d.cfg.rope[0].half == scorer->as_is.cfg.rope[0].half)
        return score(scorer, &t, e);
    trial_close(&t);
    return true;
}

static bool same_rope(const struct rope *a, const struct rope *b)
{
    return a->half == b->half && a->cs_factor == b->cs_factor &&
           memcmp(a->inv_freq, b->inv_freq, (size_t)a->half * sizeof *a->inv_freq) == 0;
}

static const double usual_theta[] = {1e4, 1e5, 5e5, 1e6};
enum { USUAL_THETA = LEN(usual_theta) };

static bool is_usual(double theta)
{
    return ANY(i, USUAL_THETA, theta == usual_theta[i]);
}

static bool try_ropes(struct scorer *scorer, struct err *e)
{
    const struct rope *own = &scorer->as_is.cfg.rope[0];
    const struct config *c = &scorer->o->l->model.cfg;
    char what[80];
    bool ok = true;
    if (own->kind != ROPE_DEFAULT) {
        struct rope plain = *own;
        plain.kind = ROPE_DEFAULT;
        plain.factor = 1;
        snprintf(what, sizeof what, "rope_theta %g without scaling", own->theta);
        ok = try_rope(scorer, &plain, what, e);
    }
    for (int i = 0; i < USUAL_THETA && ok; i++) {
        struct rope plain = {.kind = ROPE_DEFAULT, .theta = usual_theta[i], .factor = 1,
                             .partial = 1,
                             .truncate = true};
        snprintf(what, sizeof what, "rope_theta %g", usual_theta[i]);
        if (own->kind != ROPE_DEFAULT || own->theta != usual_theta[i])
            ok = try_rope(scorer, &plain, what, e);
    }
    for (int i = 0; i < c->n_rope && ok; i++) {
        snprintf(what, sizeof what, "the target's rope, theta %g%s", c->rope[i].theta,
                 c->rope[i].kind == ROPE_DEFAULT ? "" : ", scaled");
        bool tried = c->rope[i].kind == ROPE_DEFAULT && is_usual(c->rope[i].theta);
        if (!same_rope(&c->rope[i], own) && !tried)
            ok = try_rope(scorer, &c->rope[i], what, e);
    }
    return ok;
}

static bool try_sees(struct scorer *scorer, int sees, struct err *e)
{
    struct trial t;
    bool same = sees == scorer->o->sees && !draft_window(&scorer->as_is);
    for (int i = 0; i < scorer->out->n; i++)
        same |= scorer->out->r[i].of == READ_WINDOW && scorer->out->r[i].sees == sees;
    if (same || sees >= scorer->out->longest)
        return true;
    trial_open(&t, scorer, READ_WINDOW, "all positions seen");
    if (sees)
        snprintf(t.what, sizeof t.what, "the newest %d positions seen", sees);
    for (int l = 0; l < scorer->as_is.cfg.n_layer; l++)
        t.layer[l].window = 0;
    t.sees = sees;
    t.chain = true;
    return score(scorer, &t, e);
}

static bool try_windows(struct scorer *scorer, struct err *e)
{
    int W = scorer->o->l->model.cfg.window;
    bool ok = (!scorer->o->sees && !draft_window(&scorer->as_is)) || try_sees(scorer, 0, e);
    ok = ok && (W < 8 || try_sees(scorer, W, e)) && (W < 8 || try_sees(scorer, 4 * W, e));
    if (ok && scorer->as_is.cfg.max_pos < scorer->out->longest)
        ok = try_sees(scorer, scorer->as_is.cfg.max_pos, e);
    for (int w = 256; w < scorer->out->longest && ok; w *= 2)
        ok = try_sees(scorer, w, e);
    return ok;
}

/* ---- embedding, ids, states ------------------------------------------------------------------ */

static bool try_tables(struct scorer *scorer, struct err *e)
{
    const struct draft *d = &scorer->as_is;
    const struct config *c = &scorer->o->l->model.cfg;
    struct trial t;
    bool ok = true;
    if (d->embed.data && d->cfg.hidden == c->hidden) {
        trial_open(&t, scorer, READ_EMBED, "the target's embedding");
        t.d.embed = (struct tensor){0};
        ok = score(scorer, &t, e);
    }
    if (ok && d->head.data && d->cfg.hidden == c->hidden) {
        trial_open(&t, scorer, READ_HEAD, "the target's output matrix");
        t.d.head = (struct tensor){0};
        t.d.draft_vocab = c->vocab;
        t.d.d2t = NULL;
        ok = score(scorer, &t, e);
    }
    return ok;
}

enum { ID_PLAIN, ID_AS_IDS, ID_UP, ID_DOWN, N_ID };

/* The target id that a draft id has in another reading of d2t; -1: none. */
static int32_t other_id(const struct draft *d, int how, int i, int vocab)
{
    int32_t own = d->d2t ? d->d2t[i] : i;
    int n = d->draft_vocab;
    int64_t id = how == ID_PLAIN    ? i
                 : how == ID_AS_IDS ? own - i
                 : how == ID_UP     ? (i + 1 < n ? (d->d2t ? d->d2t[i + 1] : i + 1) : own)
                                    : (i ? (d->d2t ? d->d2t[i - 1] : i - 1) : own);
    return id >= 0 && id < vocab ? (int32_t)id : 0;
}

static bool try_ids(struct scorer *scorer, struct err *e)
{
    static const char *const what[N_ID] = {"draft ids as they stand", "d2t as ids, not offsets",
                                           "draft ids one up", "draft ids one down"};
    const struct draft *d = &scorer->as_is;
    bool ok = true;
    for (int how = d->d2t ? ID_PLAIN : ID_UP; how < N_ID && ok; how++) {
        struct trial t;
        trial_open(&t, scorer, READ_IDS, what[how]);
        t.d.d2t = xcalloc((size_t)d->draft_vocab, sizeof *t.d.d2t);
        t.own_ids = true;
        for (int i = 0; i < d->draft_vocab; i++)
            t.d.d2t[i] = other_id(d, how, i, scorer->o->l->model.cfg.vocab);
        ok = score(scorer, &t, e);
    }
    return ok;
}

static bool try_states(struct scorer *scorer, struct err *e)
{
    struct trial t;
    trial_open(&t, scorer, READ_STALE, "the states of the position before");
    t.state_shift = -1;
    bool ok = score(scorer, &t, e);
    trial_open(&t, scorer, READ_TOKEN, "states beside their own token, not the next");
    t.token_shift = 0;
    ok = ok ? score(scorer, &t, e) : (trial_close(&t), false);
    return ok;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Whether the best reading so far hits most tokens. */
static bool restored(const struct redraft *r)
{
    int best = 0;
    for (int i = 0; i < r->n; i++)
        best = max_int(best, r->r[i].hits);
    return best * 100 >= r->tokens * 85;
}

bool redraft_try_all(struct scorer *scorer, struct err *e)
{
    struct trial t;
    trial_open(&t, scorer, READ_AS_IS, "as configured");
    t.chain = scorer->o->which == REDRAFT_ALL;
    bool (*const part[])(struct scorer *, struct err *) = {
        try_usual_layers, /* first: REDRAFT_LAYERS asks for no other */
        try_norms, try_ropes, try_windows, try_tables, try_ids, try_states};
    enum { N = LEN(part) };
    scorer->parts = N + 2;
    bool ok = score(scorer, &t, e);
    int n = scorer->o->which == REDRAFT_AS_IS ? 0 : scorer->o->which == REDRAFT_LAYERS ? 1 : N;
    for (int i = 0; i < n && ok; i++) {
        scorer->part = i + 1;
        ok = part[i](scorer, e);
    }
    scorer->part = N + 1;
    ok = ok && (n < N || restored(scorer->out) || search_layers(scorer, e));
    return chains_of_close(scorer, e) && ok;
}
