/* redraft.c - see redraft.h: the target's passes, the files of the head, and a whole run. */
#include "engine/thread/redraft_parts.h"

#include <math.h>
#include <unistd.h>

enum { STATES_BYTES = 512 << 20 };

bool redraft_can(const struct loaded *loaded, const char **why)
{
    *why = NULL;
    if (!loaded->has_draft)
        *why = "a session without a draft";
    else if (loaded->draft.bytes == 0)
        *why = "a drafter without weights";
    else if (loaded->draft.n_capture == 0)
        *why = "a drafter that reads no captured states";
    else if (loaded->draft.block)
        *why = "a drafter that guesses blocks";
    return !*why;
}

/* ---- the target ------------------------------------------------------------------------------ */

/* The boundaries in [1, n_layer] and the configured ones; where memory is short, those beside the
 * configured ones only. */
static void choose_kept(struct scorer *scorer, bool all)
{
    const struct draft *d = &scorer->o->l->draft;
    int n = scorer->o->l->model.cfg.n_layer;
    scorer->n_kept = 0;
    for (int b = 0; b <= n && scorer->n_kept < REDRAFT_KEPT; b++) {
        bool near = all && b > 0;
        for (int i = 0; i < d->n_capture; i++)
            near |= b == d->capture[i] || (b >= d->capture[i] - 1 && b <= d->capture[i] + 1);
        near |= b == 2 || b == n / 2 || b == n - 3;
        if (near)
            scorer->kept[scorer->n_kept++] = b;
    }
}

/* Runs the target over rows [from, from + rows) of a text; their states are kept. */
static bool run_chunk(struct scorer *scorer, const struct scored_text *t, struct seq *seq, int from,
                      int rows, struct err *e)
{
    struct runtime *rt = &scorer->r;
    size_t H = (size_t)scorer->o->l->draft.target_hidden;
    struct plan_req req = {.seq = seq, .n = rows, .token = t->t->id + from};
    if (!kv_reserve(&rt->kv, seq, from + rows, e) ||
        !pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e))
        return false;
    for (int b = 0; b < scorer->n_kept; b += MAX_CAPTURE) {
        size_t at = (size_t)(t->at + from) * redraft_row_bytes(scorer) + (size_t)b * H *
                    sizeof(float);
        struct taps taps = {.n = min_int(MAX_CAPTURE, scorer->n_kept - b),
                            .stride = scorer->n_kept * (int)H,
                            .dst = kbuf_at(scorer->states, at, scorer->states.n - at)};
        memcpy(taps.boundary, scorer->kept + b, (size_t)taps.n * sizeof *taps.boundary);
        if (!net_forward(&rt->net, &rt->pass.plan[PLAN_EXTEND], &rt->pass.kp, &taps))
            return !redraft_stopped(scorer->o->stop, e);
    }
    return true;
}

static bool run_target(struct scorer *scorer, struct scored_text *t, struct err *e)
{
    struct seq seq = {0};
    bool ok = true;
    for (int at = 0, rows; at < t->n && ok; at += rows) {
        rows = min_int(REDRAFT_ROWS, t->n - at);
        redraft_progress(scorer, "target", t->at + at, scorer->out->rows);
        ok = !redraft_stopped(scorer->o->stop, e) && run_chunk(scorer, t, &seq, at, rows, e);
        if (ok) {
            runtime_choices(&scorer->r, rows, t->choice + at);
            kv_commit(&scorer->r.kv, &seq, at + rows);
            kv_release_window(&scorer->r.kv, &seq);
        }
    }
    kv_drop(&scorer->r.kv, &seq);
    return ok && scorer->r.dev.k->sync(scorer->r.dev.d, e);
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

static bool embed_rows(struct scorer *scorer, const struct tensor *table, int from, int step,
                       int rows, float *out, struct err *e)
{
    struct runtime *rt = &scorer->r;
    const struct kernels *k = rt->dev.k;
    int H = scorer->as_is.cfg.hidden;
    int32_t id[REDRAFT_ROWS];
    size_t bytes = (size_t)mul64(rows, H) * sizeof(float);
    for (int i = 0; i < rows; i++)
        id[i] = from + i * step;
    kbuf ids = k->alloc(rt->dev.d, sizeof id, "ids", e);
    kbuf dst = k->alloc(rt->dev.d, bytes, "embeddings", e);
    bool ok = ids.p && dst.p;
    if (ok) {
        k->put(rt->dev.d, ids, id, (size_t)rows * sizeof *id);
        k->embed(rt->dev.d, &(struct k_embed){.rows = rows, .n = H, .ids = ids, .table = table,
                                              .scale = 1, .dst = dst, .dst_stride = H});
        k->get(rt->dev.d, out, dst, bytes);
    }
    k->release(rt->dev.d, ids);
    k->release(rt->dev.d, dst);
    return ok;
}

/* How alike the head's own embedding is to the target's, by ids and beside them. */
static bool compare_embeddings(struct scorer *scorer, struct err *e)
{
    enum { SAMPLE = 48, WORK = 64 << 20 };
    struct redraft *out = scorer->out;
    const struct tensor *mine = &scorer->as_is.embed, *its = &scorer->o->l->model.embed;
    int H = scorer->as_is.cfg.hidden, V = scorer->o->l->model.cfg.vocab, n = min_int(SAMPLE, V);
    out->embed_alike = out->embed_other = NAN;
    out->has_embed = mine->data != NULL;
    if (!mine->data || H != scorer->o->l->model.cfg.hidden)
        return true;
    float *a = xmalloc((size_t)mul64(REDRAFT_ROWS, H) * sizeof *a),
          *b = xmalloc((size_t)mul64(REDRAFT_ROWS, H) * sizeof *b);
    int step = max_int(1, V / n);
    bool ok = embed_rows(scorer, mine, 0, step, n, a, e) &&
              embed_rows(scorer, its, 0, step, n, b, e);
    double sum = 0, best[SAMPLE] = {0}, others = 0;
    for (int i = 0; i < n && ok; i++)
        sum += cosine(a + mul64(i, H), b + mul64(i, H), H);
    out->embed_alike = ok ? sum / n : NAN;
    bool search = ok && out->embed_alike < 0.5 && mul64(V, H) <= WORK;
    for (int from = 0, rows; from < V && search; from += rows) {
        rows = min_int(REDRAFT_ROWS, V - from);
        ok = search = embed_rows(scorer, its, from, 1, rows, b, e);
        for (int i = 0; i < n && ok; i++)
            for (int r = 0; r < rows; r++)
                if (from + r != i * step)
                    best[i] = fmax(best[i], cosine(a + mul64(i, H), b + mul64(r, H), H));
    }
    for (int i = 0; i < n; i++)
        others += best[i];
    if (search)
        out->embed_other = others / n;
    FREE(a, b);
    return ok;
}

/* Compares the tokenizer in the head's folder, if there is one, with the target's, id by id. */
static void compare_tokenizers(struct scorer *scorer)
{
    const struct loaded *loaded = scorer->o->l;
    char *path = xasprintf("%s/tokenizer.json", loaded->draft.dir ? loaded->draft.dir : "");
    struct err none;
    struct tokenizer *t = loaded->tok && access(path, R_OK) == 0 ? tok_open(path, &none) : NULL;
    int n = t ? min_int(tok_vocab(t), tok_vocab(loaded->tok)) : 0, other = 0, first = -1;
    for (int i = 0; i < n; i++) {
        size_t a, b;
        const char *x = tok_bytes(t, i, &a), *y = tok_bytes(loaded->tok, i, &b);
        if ((!x && !y) || (x && y && a == b && memcmp(x, y, a) == 0))
            continue;
        other++;
        first = first < 0 ? i : first;
    }
    if (other)
        snprintf(scorer->out->of_tokenizer, sizeof scorer->out->of_tokenizer,
                 "%d of %d ids have another text in the head's tokenizer.json, the first is %d",
                 other, n, first);
    tok_close(t);
    free(path);
}

static bool read_files(struct scorer *scorer, struct err *e)
{
    const struct draft *d = &scorer->as_is;
    scorer->out->max_pos = d->cfg.max_pos;
    scorer->out->window = draft_window(d);
    compare_tokenizers(scorer);
    return compare_embeddings(scorer, e);
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
    return i >= 0 && i < (int)(LEN(message)) ? message[i] : NULL;
}

bool redraft_answer(struct loaded *loaded, const struct ids *prompt, int most,
                    const struct stop *stop, struct ids *reply, struct err *e)
{
    struct lane lane = {.tap_row = -1}, *lp = &lane;
    struct step_limits one = {1};
    struct runtime rt;
    struct runtime_shape shape = {.page_size = 16, .kv = loaded->dev.kv, .max_rows = REDRAFT_ROWS,
                                  .context = min_int(prompt->n + most + 16,
                                                     loaded->model.cfg.max_pos)};
    if (prompt->n + 16 > shape.context)
        return err_set(e, ERR_NEGATIVE, "the prompt of %d tokens leaves no room", prompt->n);
    if (!loaded_runtime(&rt, loaded, &shape, e))
        return false;
    rt.net.stop = rt.dev.k->queued ? NULL : stop;
    ids_cat(&lane.tok, prompt->v, prompt->n);
    bool ok = true;
    for (int at = 0; at < prompt->n && ok;) {
        at = min_int(at + REDRAFT_ROWS, prompt->n);
        ok = !redraft_stopped(stop, e) && lane_extend(&rt, &lane, at, at == prompt->n, false, 1, e);
    }
    while (ok && !lane.stopped && lane.tok.n < min_int(prompt->n + most, shape.context - 2))
        ok = !redraft_stopped(stop, e) && lane_step(&rt, &lp, &one, 1, NULL, e);
    ok = ok && !redraft_stopped(stop, e); /* what a stopped pass chose is no token */
    if (ok)
        ids_cat(reply, lane.tok.v + prompt->n, lane.tok.n - prompt->n);
    lane_free(&rt, &lane);
    runtime_close(&rt);
    return ok;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Takes the texts that fit, as many scored tokens as are wanted. *rows: their tokens. */
static void take_texts(struct scorer *scorer, int *rows)
{
    const struct redraft_opts *o = scorer->o;
    int context = min_int(REDRAFT_CONTEXT, o->l->model.cfg.max_pos);
    scorer->text = xcalloc((size_t)o->n_text + 1, sizeof *scorer->text);
    *rows = 0;
    for (int i = 0; i < o->n_text && scorer->tokens < REDRAFT_TOKENS; i++) {
        const struct redraft_text *t = &o->text[i];
        int most = min_int(t->n, min_int(context, REDRAFT_CONTEXT - *rows)), n = 0, scored = 0;
        for (int k = 0; k < most && scorer->tokens + scored < REDRAFT_TOKENS; k++)
            if (redraft_scored(t, k)) {
                n = k + 1;
                scored++;
            }
        if (!scored)
            continue;
        struct scored_text *x = &scorer->text[scorer->n_text++];
        *x = (struct scored_text){.t = t, .at = *rows, .n = n,
                                  .choice = xcalloc((size_t)n, sizeof *x->choice)};
        scorer->tokens += scored;
        *rows += n;
        scorer->out->longest = max_int(scorer->out->longest, n);
    }
    scorer->out->tokens = scorer->tokens;
    scorer->out->texts = scorer->n_text;
    scorer->out->rows = *rows;
}

static bool open_scorer(struct scorer *scorer, struct err *e)
{
    const struct redraft_opts *o = scorer->o;
    int rows;
    take_texts(scorer, &rows);
    if (scorer->tokens == 0)
        return err_set(e, ERR_NEGATIVE, "no reply of the session can be measured again");
    choose_kept(scorer, o->which == REDRAFT_ALL);
    if ((size_t)rows * redraft_row_bytes(scorer) > STATES_BYTES)
        choose_kept(scorer, false);
    struct runtime_shape shape = {.page_size = 16, .kv = o->l->dev.kv, .max_rows = REDRAFT_ROWS,
                                  .context = min_int(scorer->out->longest + 32,
                                                     o->l->model.cfg.max_pos)};
    if (o->which == REDRAFT_ALL && !o->uploaded)
        look_at_norms(&o->l->draft, scorer->out);
    if (!loaded_runtime(&scorer->r, o->l, &shape, e))
        return false;
    const struct kernels *k = scorer->r.dev.k;
    scorer->r.net.stop = k->queued ? NULL : o->stop;
    scorer->as_is = o->l->draft;
    scorer->layers = o->l->draft.layer;
    scorer->states = k->alloc(scorer->r.dev.d, (size_t)rows * redraft_row_bytes(scorer),
                              "captured states", e);
    scorer->last = k->alloc(scorer->r.dev.d, REDRAFT_ROWS * sizeof(int32_t), "rows", e);
    return scorer->states.p && scorer->last.p;
}

static bool measure(struct scorer *scorer, struct err *e)
{
    bool ok = scorer->o->which != REDRAFT_ALL || read_files(scorer, e);
    for (int i = 0; i < scorer->n_text && ok; i++)
        ok = run_target(scorer, &scorer->text[i], e);
    return ok && redraft_try_all(scorer, e);
}

static void close_scorer(struct scorer *scorer)
{
    if (scorer->r.dev.k) {
        scorer->r.dev.k->release(scorer->r.dev.d, scorer->states);
        scorer->r.dev.k->release(scorer->r.dev.d, scorer->last);
        runtime_close(&scorer->r);
    }
    for (int i = 0; i < scorer->n_text; i++)
        free(scorer->text[i].choice);
    for (int i = 0; i < READINGS; i++)
        FREE(scorer->hit[i], scorer->same[i]);
    FREE(scorer->text, scorer->chain);
}

/* Finds the reading with the most hits, and compares the others with it. */
static void compare_with_best(struct scorer *scorer)
{
    struct redraft *out = scorer->out;
    for (int i = 1; i < out->n; i++)
        if (out->r[i].hits > out->r[out->best].hits)
            out->best = i;
    for (int i = 0; i < out->n; i++)
        for (int x = 0; x < scorer->tokens; x++) {
            out->r[i].ahead += scorer->hit[i][x] > scorer->hit[out->best][x];
            out->r[i].behind += scorer->hit[i][x] < scorer->hit[out->best][x];
        }
}

bool redraft_run(const struct redraft_opts *o, struct redraft *out, struct err *e)
{
    const char *why;
    *out = (struct redraft){.chain_steps = o->chain};
    if (!redraft_can(o->l, &why) && o->which != REDRAFT_LAYERS)
        return err_set(e, ERR_NEGATIVE, "%s cannot be measured again", why);
    struct scorer *scorer = xcalloc(1, sizeof *scorer);
    *scorer = (struct scorer){.o = o, .out = out};
    bool ok = open_scorer(scorer, e) && measure(scorer, e);
    out->stopped = !ok && stop_asked(o->stop);
    compare_with_best(scorer);
    close_scorer(scorer);
    free(scorer);
    if (!ok && !out->stopped)
        out->tokens = 0; /* nothing was measured */
    return ok || out->stopped;
}
