/* redraft.c - see redraft.h: the target's passes, the files of the head, and a whole run. */
#include "engine/thread/redraft_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATES_BYTES = 512 << 20 };

bool redraft_can(const struct loaded *l, const char **why)
{
    *why = NULL;
    if (!l->has_draft)
        *why = "a session without a draft";
    else if (l->draft.bytes == 0)
        *why = "a drafter without weights";
    else if (l->draft.n_capture == 0)
        *why = "a drafter that reads no captured states";
    else if (l->draft.block)
        *why = "a drafter that guesses blocks";
    return !*why;
}

/* ---- the target ------------------------------------------------------------------------------ */

/* The boundaries in [1, n_layer] and the configured ones; where memory is short, those beside the
 * configured ones only. */
static void choose_kept(struct scorer *s, bool all)
{
    const struct draft *d = &s->o->l->draft;
    int n = s->o->l->model.cfg.n_layer;
    s->n_kept = 0;
    for (int b = 0; b <= n && s->n_kept < REDRAFT_KEPT; b++) {
        bool near = all && b > 0;
        for (int i = 0; i < d->n_capture; i++)
            near |= b == d->capture[i] || (b >= d->capture[i] - 1 && b <= d->capture[i] + 1);
        near |= b == 2 || b == n / 2 || b == n - 3;
        if (near)
            s->kept[s->n_kept++] = b;
    }
}

/* Runs the target over rows [from, from + rows) of a text; their states are kept. */
static bool run_chunk(struct scorer *s, const struct scored_text *t, struct seq *seq, int from,
                      int rows, struct err *e)
{
    struct runtime *r = &s->r;
    size_t H = (size_t)s->o->l->draft.target_hidden;
    struct plan_req req = {.seq = seq, .n = rows, .token = t->t->id + from};
    if (!kv_reserve(&r->kv, seq, from + rows, e) ||
        !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e))
        return false;
    for (int b = 0; b < s->n_kept; b += MAX_CAPTURE) {
        size_t at = (size_t)(t->at + from) * redraft_row_bytes(s) + (size_t)b * H * sizeof(float);
        struct taps taps = {.n = min_int(MAX_CAPTURE, s->n_kept - b),
                            .stride = s->n_kept * (int)H,
                            .dst = kbuf_at(s->states, at, s->states.n - at)};
        memcpy(taps.boundary, s->kept + b, (size_t)taps.n * sizeof *taps.boundary);
        if (!net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, &taps))
            return !redraft_stopped(s->o->stop, e);
    }
    return true;
}

static bool run_target(struct scorer *s, struct scored_text *t, struct err *e)
{
    struct seq seq = {0};
    bool ok = true;
    for (int at = 0, rows; at < t->n && ok; at += rows) {
        rows = min_int(REDRAFT_ROWS, t->n - at);
        redraft_progress(s, "target", t->at + at, s->out->rows);
        ok = !redraft_stopped(s->o->stop, e) && run_chunk(s, t, &seq, at, rows, e);
        if (ok) {
            runtime_choices(&s->r, rows, t->choice + at);
            kv_commit(&s->r.kv, &seq, at + rows);
            kv_release_window(&s->r.kv, &seq);
        }
    }
    kv_drop(&s->r.kv, &seq);
    return ok && s->r.dev.k->sync(s->r.dev.d, e);
}

/* ---- facts of the head's files --------------------------------------------------------------- */

/* Whether every element of a small tensor, in host memory, is the same; then the text of it is
 * appended. */
static void look_constant(struct redraft *out, const struct tensor *t)
{
    size_t each = dtype_size(t->type), at = strlen(out->constant);
    const unsigned char *v = t->data;
    if (!v || !each || t->bytes < 2 * each || t->bytes > 1 << 20)
        return;
    for (size_t i = each; i < t->bytes; i += each)
        if (memcmp(v, v + i, each) != 0)
            return;
    uint16_t half;
    float value;
    memcpy(&half, v, sizeof half);
    memcpy(&value, v, each == 4 ? sizeof value : sizeof half);
    if (t->type == DT_BF16)
        value = bf16_to_f32(half);
    if (t->type == DT_F16)
        value = f16_to_f32(half);
    snprintf(out->constant + at, sizeof out->constant - at, "%s%s (all %g)", at ? ", " : "",
             t->name, (double)value);
}

/* Before the weights are uploaded. */
static void look_at_norms(const struct draft *d, struct redraft *out)
{
    look_constant(out, &d->norm);
    look_constant(out, &d->input_norm);
    for (int i = 0; i < d->n_capture; i++)
        look_constant(out, &d->fc_norm[i]);
    for (int l = 0; l < d->cfg.n_layer; l++) {
        look_constant(out, &d->layer[l].in_norm);
        look_constant(out, &d->layer[l].hidden_norm);
        look_constant(out, &d->layer[l].ffn_in_norm);
    }
}

static double cosine(const float *a, const float *b, int n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static bool embed_rows(struct scorer *s, const struct tensor *table, int from, int step, int rows,
                       float *out, struct err *e)
{
    struct runtime *r = &s->r;
    const struct kernels *k = r->dev.k;
    int H = s->as_is.cfg.hidden;
    int32_t id[REDRAFT_ROWS];
    size_t bytes = (size_t)mul64(rows, H) * sizeof(float);
    for (int i = 0; i < rows; i++)
        id[i] = from + i * step;
    kbuf ids = k->alloc(r->dev.d, sizeof id, "ids", e);
    kbuf dst = k->alloc(r->dev.d, bytes, "embeddings", e);
    bool ok = ids.p && dst.p;
    if (ok) {
        k->put(r->dev.d, ids, id, (size_t)rows * sizeof *id);
        k->embed(r->dev.d, &(struct k_embed){.rows = rows, .n = H, .ids = ids, .table = table,
                                             .scale = 1, .dst = dst, .dst_stride = H});
        k->get(r->dev.d, out, dst, bytes);
    }
    k->release(r->dev.d, ids);
    k->release(r->dev.d, dst);
    return ok;
}

/* How alike the head's own embedding is to the target's, by ids and beside them. */
static bool compare_embeddings(struct scorer *s, struct err *e)
{
    enum { SAMPLE = 48, WORK = 64 << 20 };
    struct redraft *out = s->out;
    const struct tensor *mine = &s->as_is.embed, *its = &s->o->l->model.embed;
    int H = s->as_is.cfg.hidden, V = s->o->l->model.cfg.vocab, n = min_int(SAMPLE, V);
    out->embed_alike = out->embed_other = NAN;
    out->has_embed = mine->data != NULL;
    if (!mine->data || H != s->o->l->model.cfg.hidden)
        return true;
    float *a = xmalloc((size_t)mul64(REDRAFT_ROWS, H) * sizeof *a),
          *b = xmalloc((size_t)mul64(REDRAFT_ROWS, H) * sizeof *b);
    int step = max_int(1, V / n);
    bool ok = embed_rows(s, mine, 0, step, n, a, e) && embed_rows(s, its, 0, step, n, b, e);
    double sum = 0, best[SAMPLE] = {0}, others = 0;
    for (int i = 0; i < n && ok; i++)
        sum += cosine(a + mul64(i, H), b + mul64(i, H), H);
    out->embed_alike = ok ? sum / n : NAN;
    bool search = ok && out->embed_alike < 0.5 && mul64(V, H) <= WORK;
    for (int from = 0, rows; from < V && search; from += rows) {
        rows = min_int(REDRAFT_ROWS, V - from);
        ok = search = embed_rows(s, its, from, 1, rows, b, e);
        for (int i = 0; i < n && ok; i++)
            for (int r = 0; r < rows; r++)
                if (from + r != i * step)
                    best[i] = fmax(best[i], cosine(a + mul64(i, H), b + mul64(r, H), H));
    }
    for (int i = 0; i < n; i++)
        others += best[i];
    if (search)
        out->embed_other = others / n;
    free(a);
    free(b);
    return ok;
}

/* Compares the tokenizer in the head's folder, if there is one, with the target's, id by id. */
static void compare_tokenizers(struct scorer *s)
{
    const struct loaded *l = s->o->l;
    char *path = xasprintf("%s/tokenizer.json", l->draft.dir ? l->draft.dir : "");
    struct err none;
    struct tokenizer *t = l->tok && access(path, R_OK) == 0 ? tok_open(path, &none) : NULL;
    int n = t ? min_int(tok_vocab(t), tok_vocab(l->tok)) : 0, other = 0, first = -1;
    for (int i = 0; i < n; i++) {
        size_t a, b;
        const char *x = tok_bytes(t, i, &a), *y = tok_bytes(l->tok, i, &b);
        if ((!x && !y) || (x && y && a == b && memcmp(x, y, a) == 0))
            continue;
        other++;
        first = first < 0 ? i : first;
    }
    if (other)
        snprintf(s->out->of_tokenizer, sizeof s->out->of_tokenizer,
                 "%d of %d ids have another text in the head's tokenizer.json, the first is %d",
                 other, n, first);
    tok_close(t);
    free(path);
}

static bool read_files(struct scorer *s, struct err *e)
{
    const struct draft *d = &s->as_is;
    s->out->max_pos = d->cfg.max_pos;
    s->out->window = draft_window(d);
    compare_tokenizers(s);
    return compare_embeddings(s, e);
}

/* ---- replies --------------------------------------------------------------------------------- */

const char *redraft_message(int i)
{
    static const char *const message[] = {
        "Tell me a short story about a lighthouse and a small bird.",
        "What is speculative decoding, and why is it fast?",
        "Give me three tips for writing clear instructions.",
        "Who are you, and what can you do?",
        "Explain what a page table is to someone who has never seen one.",
        "How do I bake bread at home?",
    };
    return i >= 0 && i < (int)(sizeof message / sizeof *message) ? message[i] : NULL;
}

bool redraft_answer(struct loaded *l, const struct ids *prompt, int most, const struct stop *stop,
                    struct ids *reply, struct err *e)
{
    struct lane lane = {.tap_row = -1}, *lp = &lane;
    struct step_limits one = {1};
    struct runtime r;
    struct runtime_shape shape = {.page_size = 16, .kv = l->dev.kv, .max_rows = REDRAFT_ROWS,
                                  .context = min_int(prompt->n + most + 16, l->model.cfg.max_pos)};
    if (prompt->n + 16 > shape.context)
        return err_set(e, ERR_NEGATIVE, "the prompt of %d tokens leaves no room", prompt->n);
    if (!loaded_runtime(&r, l, &shape, e))
        return false;
    r.net.stop = r.dev.k->queued ? NULL : stop;
    ids_cat(&lane.tok, prompt->v, prompt->n);
    bool ok = true;
    for (int at = 0; at < prompt->n && ok;) {
        int n = min_int(REDRAFT_ROWS, prompt->n - at);
        at += n;
        ok = !redraft_stopped(stop, e) && lane_extend(&r, &lane, n, at == prompt->n, false, 1, e);
    }
    while (ok && !lane.stopped && lane.tok.n < min_int(prompt->n + most, shape.context - 2))
        ok = !redraft_stopped(stop, e) && lane_step(&r, &lp, &one, 1, NULL, e);
    ok = ok && !redraft_stopped(stop, e); /* what a stopped pass chose is no token */
    if (ok)
        ids_cat(reply, lane.tok.v + prompt->n, lane.tok.n - prompt->n);
    lane_free(&r, &lane);
    runtime_close(&r);
    return ok;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Takes the texts that fit, as many scored tokens as are wanted. *rows: their tokens. */
static void take_texts(struct scorer *s, int *rows)
{
    const struct redraft_opts *o = s->o;
    int context = min_int(REDRAFT_CONTEXT, o->l->model.cfg.max_pos);
    s->text = xcalloc((size_t)o->n_text + 1, sizeof *s->text);
    *rows = 0;
    for (int i = 0; i < o->n_text && s->tokens < REDRAFT_TOKENS; i++) {
        const struct redraft_text *t = &o->text[i];
        int most = min_int(t->n, min_int(context, REDRAFT_CONTEXT - *rows)), n = 0, scored = 0;
        for (int k = 0; k < most && s->tokens + scored < REDRAFT_TOKENS; k++)
            if (redraft_scored(t, k)) {
                n = k + 1;
                scored++;
            }
        if (!scored)
            continue;
        struct scored_text *x = &s->text[s->n_text++];
        *x = (struct scored_text){.t = t, .at = *rows, .n = n,
                                  .choice = xcalloc((size_t)n, sizeof *x->choice)};
        s->tokens += scored;
        *rows += n;
        s->out->longest = max_int(s->out->longest, n);
    }
    s->out->tokens = s->tokens;
    s->out->texts = s->n_text;
    s->out->rows = *rows;
}

static bool open_scorer(struct scorer *s, struct err *e)
{
    const struct redraft_opts *o = s->o;
    int rows;
    take_texts(s, &rows);
    if (s->tokens == 0)
        return err_set(e, ERR_NEGATIVE, "no reply of the session can be measured again");
    choose_kept(s, o->which == REDRAFT_ALL);
    if ((size_t)rows * redraft_row_bytes(s) > STATES_BYTES)
        choose_kept(s, false);
    struct runtime_shape shape = {.page_size = 16, .kv = o->l->dev.kv, .max_rows = REDRAFT_ROWS,
                                  .context = min_int(s->out->longest + 32,
                                                     o->l->model.cfg.max_pos)};
    if (o->which == REDRAFT_ALL && !o->uploaded)
        look_at_norms(&o->l->draft, s->out);
    if (!loaded_runtime(&s->r, o->l, &shape, e))
        return false;
    const struct kernels *k = s->r.dev.k;
    s->r.net.stop = k->queued ? NULL : o->stop;
    s->as_is = o->l->draft;
    s->layers = o->l->draft.layer;
    s->states = k->alloc(s->r.dev.d, (size_t)rows * redraft_row_bytes(s), "captured states", e);
    s->last = k->alloc(s->r.dev.d, REDRAFT_ROWS * sizeof(int32_t), "rows", e);
    return s->states.p && s->last.p;
}

static bool measure(struct scorer *s, struct err *e)
{
    bool ok = s->o->which != REDRAFT_ALL || read_files(s, e);
    for (int i = 0; i < s->n_text && ok; i++)
        ok = run_target(s, &s->text[i], e);
    return ok && redraft_try_all(s, e);
}

static void close_scorer(struct scorer *s)
{
    if (s->r.dev.k) {
        s->r.dev.k->release(s->r.dev.d, s->states);
        s->r.dev.k->release(s->r.dev.d, s->last);
        runtime_close(&s->r);
    }
    for (int i = 0; i < s->n_text; i++)
        free(s->text[i].choice);
    for (int i = 0; i < READINGS; i++) {
        free(s->hit[i]);
        free(s->same[i]);
    }
    free(s->text);
    free(s->chain);
}

/* Finds the reading with the most hits, and compares the others with it. */
static void compare_with_best(struct scorer *s)
{
    struct redraft *out = s->out;
    for (int i = 1; i < out->n; i++)
        if (out->r[i].hits > out->r[out->best].hits)
            out->best = i;
    for (int i = 0; i < out->n; i++)
        for (int x = 0; x < s->tokens; x++) {
            out->r[i].ahead += s->hit[i][x] > s->hit[out->best][x];
            out->r[i].behind += s->hit[i][x] < s->hit[out->best][x];
        }
}

bool redraft_run(const struct redraft_opts *o, struct redraft *out, struct err *e)
{
    const char *why;
    *out = (struct redraft){.chain_steps = o->chain};
    if (!redraft_can(o->l, &why) && o->which != REDRAFT_LAYERS)
        return err_set(e, ERR_NEGATIVE, "%s cannot be measured again", why);
    struct scorer *s = xcalloc(1, sizeof *s);
    *s = (struct scorer){.o = o, .out = out};
    bool ok = open_scorer(s, e) && measure(s, e);
    out->stopped = !ok && stop_asked(o->stop);
    compare_with_best(s);
    close_scorer(s);
    free(s);
    if (!ok && !out->stopped)
        out->tokens = 0; /* nothing was measured */
    return ok || out->stopped;
}
