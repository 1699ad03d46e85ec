/* batch.c - see batch.h. */
#include "engine/serve/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/load.h"

enum { BATCH_LANES = 32 };

struct job {
    struct ids prompt, tok; /* tok: the prompt and what was generated, while the lane is away */
    uint64_t draws;
    bool done;
    struct buf text;
    int n_tokens, n_computed;
    enum stop_reason reason;
    char error[256];
};

struct batch {
    const struct engine_opts *o;
    struct loaded l;
    struct rig r;
    struct job *job; /* (n) */
    int n, next, told;
    struct lane head; /* what all prompts begin with */
    struct lane lane[BATCH_LANES];
    int at[BATCH_LANES], n_live, lanes; /* at: the job of each lane; oldest first */
    bool crowded; /* a lane found too few pages: nobody joins before one has ended */
};

/* ---- opening --------------------------------------------------------------------------------- */

static int chunk_of(const struct batch *b)
{
    return min_int(load_chunk(&b->l, &b->o->settings), b->r.max_rows);
}

static bool load(struct batch *b, struct err *e)
{
    struct engine_opts o = *b->o;
    o.lanes = b->lanes + 1;
    return engine_load(&b->l, &o, LOAD_DEVICE | LOAD_TEXT, e) && engine_rig(&b->r, &b->l, &o, e);
}

static bool render(struct batch *b, struct job *j, const char *prompt, const char *system,
                   struct err *e)
{
    struct message m[2] = {{.role = ROLE_SYSTEM, .text = (char *)(uintptr_t)system},
                           {.role = ROLE_USER, .text = (char *)(uintptr_t)prompt}};
    bool with = system && system[0];
    if (!chat_render(b->l.chat, with ? m : m + 1, 1 + with, &j->prompt, e))
        return false;
    ids_cat(&j->tok, j->prompt.v, j->prompt.n);
    if (j->prompt.n >= b->r.context) {
        snprintf(j->error, sizeof j->error, "the prompt needs %d tokens, the context holds %d",
                 j->prompt.n + 1, b->r.context);
        j->reason = STOP_CONTEXT;
        j->done = true;
    }
    return true;
}

static void close_batch(struct batch *b)
{
    for (int i = 0; i < b->n_live; i++)
        lane_free(&b->r, &b->lane[i]);
    if (b->r.dev.k)
        lane_free(&b->r, &b->head);
    for (int i = 0; i < b->n; i++) {
        ids_free(&b->job[i].prompt);
        ids_free(&b->job[i].tok);
        buf_free(&b->job[i].text);
    }
    free(b->job);
    rig_close(&b->r);
    engine_unload(&b->l);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static bool drafting(const struct batch *b)
{
    return b->l.has_draft && b->o->settings.spec;
}

static bool extend(struct batch *b, struct lane *l, int upto, bool sample, struct err *e)
{
    int chunk = chunk_of(b);
    while (l->seq.committed < upto) {
        int to = min_int(upto, l->seq.committed + chunk);
        bool last = sample && to == l->tok.n;
        if (!lane_extend(&b->r, l, to, last, drafting(b), b->o->settings.topk, e))
            return false;
    }
    return true;
}

/* Computes what all prompts begin with, when that is worth a page. */
static bool share_head(struct batch *b, struct err *e)
{
    int n = INT32_MAX;
    for (int i = 0; i < b->n; i++) {
        const struct ids *p = &b->job[i].prompt, *q = &b->job[0].prompt;
        int same = 0;
        while (same < min_int(p->n, q->n) - 1 && p->v[same] == q->v[same])
            same++;
        n = min_int(n, same);
    }
    b->head = (struct lane){.tap_row = -1};
    if (b->n < 2 || n < b->r.kv.page_size)
        return true;
    ids_cat(&b->head.tok, b->job[0].prompt.v, b->job[0].prompt.n);
    bool ok = extend(b, &b->head, n, false, e);
    lane_park(&b->r, &b->head);
    return ok;
}

/* Whether the pools hold the pages of a prompt, and those of one more cycle of every lane. */
static bool has_room(const struct batch *b, const struct job *j)
{
    const struct kv *kv = &b->r.kv;
    const struct settings *s = &b->o->settings;
    int P = kv->page_size, chunk = chunk_of(b);
    int cells = max_int(s->nodes, s->steps * s->topk + 1);
    int ahead = (b->n_live + 1) * (div_up(cells, P) + 1);
    int full = div_up(j->tok.n, P) - b->head.seq.committed / P + ahead;
    int swa = min_int(full, div_up(kv->window + chunk, P) + 1 + ahead);
    return kv_left(kv, POOL_FULL) >= full && (!kv->has_swa || kv_left(kv, POOL_SWA) >= swa) &&
           (!kv->has_draft || kv_left(kv, POOL_DRAFT) >= full);
}

/* A lane for job i, at the end of its batch. False without a message: no room yet. */
static bool join(struct batch *b, int i, struct err *e)
{
    struct job *j = &b->job[i];
    const struct settings *s = &b->o->settings;
    struct lane *l = &b->lane[b->n_live];
    if (b->head.seq.committed)
        lane_fork(&b->r, &b->head, l);
    else
        *l = (struct lane){.tap_row = -1};
    l->tok.n = 0;
    ids_cat(&l->tok, j->tok.v, j->tok.n);
    l->how = (struct sampling){(float)s->temperature, s->top_k, (float)s->top_p, (float)s->min_p};
    l->seed = (uint64_t)s->seed;
    l->draws = j->draws;
    int from = l->seq.committed;
    bool ok = extend(b, l, l->tok.n, true, e);
    j->n_computed += l->seq.committed - from;
    if (!ok) {
        lane_free(&b->r, l);
        return false;
    }
    lane_park(&b->r, l);
    b->at[b->n_live++] = i;
    return true;
}

static void leave(struct batch *b, int k)
{
    lane_free(&b->r, &b->lane[k]);
    memmove(&b->lane[k], &b->lane[k + 1], (size_t)(b->n_live - k - 1) * sizeof *b->lane);
    memmove(&b->at[k], &b->at[k + 1], (size_t)(b->n_live - k - 1) * sizeof *b->at);
    b->n_live--;
}

/* The youngest lane gives its pages back and waits for its turn again. */
static void step_aside(struct batch *b)
{
    struct lane *l = &b->lane[b->n_live - 1];
    struct job *j = &b->job[b->at[b->n_live - 1]];
    j->tok.n = 0;
    ids_cat(&j->tok, l->tok.v, l->tok.n);
    j->draws = l->draws;
    leave(b, b->n_live - 1);
    b->crowded = true;
}

static int left(const struct batch *b, const struct lane *l, const struct job *j)
{
    int most = b->o->settings.max_tokens;
    return most > 0 ? most - (l->tok.n - j->prompt.n) : INT32_MAX;
}

/* The final channel of the tokens behind the prompt. */
static void read_reply(const struct chat *chat, const struct ids *tok, int n_prompt,
                       struct buf *out)
{
    struct chat_reader reader;
    chat_reader_init(&reader, chat);
    for (int i = n_prompt; i < tok->n; i++) {
        struct buf piece = {0};
        enum channel ch = CHAN_FINAL;
        chat_reader_push(&reader, tok->v[i], &piece, &ch);
        if (piece.n && ch == CHAN_FINAL)
            buf_add(out, piece.p, piece.n);
        buf_free(&piece);
    }
    chat_reader_end(&reader, out);
}

static void finish(struct batch *b, struct job *j, const struct lane *l, enum stop_reason why)
{
    read_reply(b->l.chat, &l->tok, j->prompt.n, &j->text);
    j->n_tokens = l->tok.n - j->prompt.n;
    j->reason = why;
    j->done = true;
}

/* Lanes that have ended leave the batch. */
static void collect(struct batch *b)
{
    for (int k = b->n_live - 1; k >= 0; k--) {
        struct lane *l = &b->lane[k];
        struct job *j = &b->job[b->at[k]];
        int why = l->stopped                    ? (int)STOP_END
                  : left(b, l, j) <= 0          ? (int)STOP_MAX
                  : l->tok.n >= b->r.context    ? (int)STOP_CONTEXT
                                                : -1;
        if (why >= 0) {
            finish(b, j, l, (enum stop_reason)why);
            leave(b, k);
            b->crowded = false;
        }
    }
}

/* Waiting jobs take free lanes, in order, while there is room. A pool that turns out to be short
 * makes them wait for a lane to end: no prompt is run again in every cycle. */
static bool admit(struct batch *b, struct err *e)
{
    for (int i = b->told; i < b->n && b->n_live < b->lanes && !b->crowded; i++) {
        bool live = b->job[i].done;
        for (int k = 0; k < b->n_live; k++)
            live |= b->at[k] == i;
        if (live)
            continue;
        if (b->n_live > 0 && !has_room(b, &b->job[i]))
            return true;
        if (join(b, i, e))
            continue;
        if (e->kind != ERR_NEGATIVE)
            return false;
        if (b->n_live > 0) {
            b->crowded = true;
            return true;
        }
        if (b->head.seq.committed) { /* the shared head is the last thing that can be given up */
            lane_free(&b->r, &b->head);
            i--;
            continue;
        }
        snprintf(b->job[i].error, sizeof b->job[i].error, "%.250s", e->msg);
        b->job[i].reason = STOP_KV_FULL;
        b->job[i].done = true;
    }
    return true;
}

static bool step(struct batch *b, struct err *e)
{
    struct lane *live[BATCH_LANES];
    struct step_limits lim[BATCH_LANES];
    const struct settings *s = &b->o->settings;
    struct tree_shape shape = {s->steps, s->topk, s->nodes};
    for (int k = 0; k < b->n_live; k++) {
        live[k] = &b->lane[k];
        lim[k].max_new = left(b, live[k], &b->job[b->at[k]]);
    }
    if (b->n_live == 0 || lane_step(&b->r, live, lim, b->n_live, drafting(b) ? &shape : NULL, e))
        return true;
    if (e->kind != ERR_NEGATIVE)
        return false;
    if (b->n_live > 1) {
        step_aside(b);
    } else if (b->head.seq.committed) {
        lane_free(&b->r, &b->head);
    } else {
        finish(b, &b->job[b->at[0]], &b->lane[0], STOP_KV_FULL);
        leave(b, 0);
    }
    return true;
}

static void tell_done(struct batch *b, void (*tell)(void *arg, const struct batch_result *r),
                      void *arg)
{
    for (; b->told < b->n && b->job[b->told].done; b->told++) {
        const struct job *j = &b->job[b->told];
        tell(arg, &(struct batch_result){.index = b->told, .text = j->text.p ? j->text.p : "",
                                         .n_prompt = j->prompt.n, .n_tokens = j->n_tokens,
                                         .n_computed = j->n_computed, .reason = j->reason,
                                         .error = j->error[0] ? j->error : NULL});
    }
}

bool batch_run(const struct engine_opts *o, const char *const *prompt, int n, int lanes,
               const char *system, void (*tell)(void *arg, const struct batch_result *r), void *arg,
               struct err *e)
{
    struct batch *b = xcalloc(1, sizeof *b);
    CHECK(lanes >= 1 && lanes <= BATCH_LANES);
    b->o = o;
    b->lanes = lanes;
    b->n = n;
    b->job = xcalloc((size_t)max_int(1, n), sizeof *b->job);
    bool ok = load(b, e);
    for (int i = 0; i < n && ok; i++)
        ok = render(b, &b->job[i], prompt[i], system, e);
    ok = ok && (share_head(b, e) || e->kind == ERR_NEGATIVE);
    while (ok && b->told < n) {
        ok = admit(b, e);
        collect(b);
        ok = ok && step(b, e);
        collect(b);
        tell_done(b, tell, arg);
    }
    close_batch(b);
    free(b);
    return ok;
}

/* ---- several replies to one prompt ----------------------------------------------------------- */

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the replies were stopped");
}

/* Runs the prompt but for its last token, which every continuation runs for itself. */
static bool several_prompt(const struct several *o, struct rig *r, struct lane *l, struct err *e)
{
    int upto = o->prompt->n - 1, chunk = min_int(o->set->chunk, r->max_rows);
    ids_cat(&l->tok, o->prompt->v, o->prompt->n);
    while (l->seq.committed < upto) {
        if (stop_asked(o->stop))
            return stopped(e);
        if (!lane_extend(r, l, min_int(upto, l->seq.committed + chunk), false, o->l->has_draft,
                         o->set->topk, e))
            return false;
    }
    lane_park(r, l);
    return true;
}

static bool several_steps(const struct several *o, struct rig *r, struct lane *lane, struct err *e)
{
    struct tree_shape shape = {o->set->steps, o->set->topk, o->set->nodes};
    int end = o->set->max_tokens > 0 ? o->prompt->n + o->set->max_tokens : r->context;
    for (;;) {
        struct lane *live[BATCH_LANES];
        struct step_limits lim[BATCH_LANES];
        int n = 0;
        for (int i = 0; i < o->n; i++)
            if (!lane[i].stopped && lane[i].tok.n < min_int(end, r->context)) {
                lim[n].max_new = end - lane[i].tok.n;
                live[n++] = &lane[i];
            }
        if (n == 0)
            return true;
        if (stop_asked(o->stop))
            return stopped(e);
        if (!lane_step(r, live, lim, n, o->l->has_draft && o->set->spec ? &shape : NULL, e))
            return false;
    }
}

static void several_tell(const struct several *o, const struct lane *lane, int i, int context,
                         void (*tell)(void *arg, const struct batch_result *r), void *arg)
{
    struct buf text = {0};
    int n = lane->tok.n - o->prompt->n, most = o->set->max_tokens;
    enum stop_reason why = lane->stopped            ? STOP_END
                           : most > 0 && n >= most  ? STOP_MAX
                           : lane->tok.n >= context ? STOP_CONTEXT
                                                    : STOP_CANCEL;
    read_reply(o->l->chat, &lane->tok, o->prompt->n, &text);
    tell(arg, &(struct batch_result){.index = i, .text = text.p ? text.p : "",
                                     .n_prompt = o->prompt->n, .n_tokens = n, .reason = why});
    buf_free(&text);
}

bool batch_several(const struct several *o, int *shared,
                   void (*tell)(void *arg, const struct batch_result *r), void *arg, struct err *e)
{
    struct rig r;
    struct rig_shape s = {.page_size = o->page_size, .context = o->context, .lanes = o->n + 1,
                          .kv = o->l->dev.kv, .bugs = o->bugs};
    struct lane head = {.tap_row = -1}, *lane = xcalloc((size_t)o->n, sizeof *lane);
    double temperature = o->set->temperature > 0 ? o->set->temperature : 0.8;
    CHECK(o->n >= 1 && o->n <= BATCH_LANES && o->prompt->n > 0 && o->prompt->n < o->context);
    if (!loaded_rig(&r, o->l, &s, e)) {
        free(lane);
        return false;
    }
    rig_set(&r, o->set);
    r.net.stop = r.dev.k->queued ? NULL : o->stop;
    bool ok = several_prompt(o, &r, &head, e);
    *shared = head.seq.n_col;
    for (int i = 0; i < o->n && ok; i++) {
        if (head.seq.committed)
            lane_fork(&r, &head, &lane[i]);
        else
            lane[i].tap_row = -1, ids_cat(&lane[i].tok, head.tok.v, head.tok.n);
        lane[i].how = (struct sampling){(float)temperature, o->set->top_k, (float)o->set->top_p,
                                        (float)o->set->min_p};
        lane[i].seed = (uint64_t)o->set->seed + (uint64_t)i;
        ok = stop_asked(o->stop)
                 ? stopped(e)
                 : lane_extend(&r, &lane[i], o->prompt->n, true, o->l->has_draft, o->set->topk, e);
        lane_park(&r, &lane[i]);
    }
    ok = ok && several_steps(o, &r, lane, e);
    bool kept = ok || (e->kind == ERR_NEGATIVE && stop_asked(o->stop));
    for (int i = 0; i < o->n; i++) {
        if (kept && lane[i].tok.n > o->prompt->n)
            several_tell(o, &lane[i], i, r.context, tell, arg);
        lane_free(&r, &lane[i]);
    }
    lane_free(&r, &head);
    rig_close(&r);
    free(lane);
    return ok;
}
