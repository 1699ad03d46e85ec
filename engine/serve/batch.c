/* batch.c - several replies at once, outside the conversation: the chat's /n (RQ_SEVERAL) and
 * `aerie run --batch` (RQ_BATCH).
 *
 * Every reply is a lane of the conversation's runtime. What all prompts begin with is the head: a
 * fork of the conversation's newest state that fits (its pages are shared, nothing of it is
 * computed again), extended by what else the prompts have in common; lanes fork the head. A lane's
 * tokens are those of its solo run, because a row does not depend on its neighbours.
 *
 * A prompt is admitted when the pools have the pages for it and for one more cycle of every lane;
 * else it waits for a lane to end. When a pool is short all the same, the youngest lane gives its
 * pages back and is computed again later. A prompt that cannot fit even alone is refused, the
 * others go on. Checkpoints of the conversation are not given up for a batch.
 *
 * In the end the pools are as before, the order of their free pages included, so that a replay,
 * which knows nothing of batches, finds the same pages. The engine's thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/internal.h"

enum job_state { JOB_WAITS, JOB_LIVE, JOB_DONE };

struct job {
    enum job_state state;
    struct ids prompt, tok; /* tok: the prompt and what was generated, while there is no lane */
    uint64_t seed, draws;
    struct chat_reader reader;
    bool reading;    /* the reader is open */
    struct buf text; /* of the final channel, or why the prompt was refused */
    int n_read;      /* tokens of the reply that the reader has taken */
    struct batch_rec rec;
    int n_steps, n_drafted, n_accepted;
    struct token_fact *fact; /* (n_fact) of the generated tokens */
    int n_fact, cap_fact;
    enum stop_reason reason;
};

struct batch {
    struct engine *g;
    struct runtime *r;
    const struct settings *set;
    struct sampling how;
    int most; /* tokens of a reply, 0: as many as the context holds */
    struct job *job; /* (n) */
    int n;
    int n_reported; /* jobs [0, n_reported) have had their EV_BATCH_REPLY */
    struct lane head;
    struct lane lane[BATCH_LANES];
    int at[BATCH_LANES]; /* job of each lane; oldest first */
    int n_live, lanes;   /* lanes now, and at most */
    bool crowded; /* a lane found too few pages: none is admitted before one has ended */
    int n_computed, n_shared; /* prompt tokens; pages of the head as it was */
    uint64_t ns;
};

/* ---- what the checker sees ------------------------------------------------------------------- */

int shared_seqs(const struct engine_shared *s, const struct seq *out[MAX_SEQS])
{
    int n = session_seqs(s->ses, out, 2 * MAX_POINTS + 1);
    const struct batch *b = s->batch;
    if (b)
        out[n++] = &b->head.seq;
    for (int k = 0; b && k < b->n_live; k++)
        out[n++] = &b->lane[k].seq;
    if (s->scratch)
        out[n++] = s->scratch;
    return n;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool stopped(const struct batch *b)
{
    return stop_asked(&b->g->stop);
}

static bool drafting(const struct batch *b)
{
    return b->g->loaded.has_draft && b->set->spec;
}

static int generated(const struct job *j, const struct ids *tok)
{
    return tok->n - j->prompt.n;
}

/* Keeps what the target gave for the tokens that the lane's last pass appended. */
static void take_facts(struct job *j, const struct lane *l)
{
    if (j->n_fact + l->n_new > j->cap_fact) {
        j->cap_fact = 2 * j->cap_fact + l->n_new;
        j->fact = xrealloc(j->fact, (size_t)j->cap_fact, sizeof *j->fact);
    }
    for (int i = 0; i < l->n_new; i++)
        j->fact[j->n_fact++] = l->fact[i];
}

static void refuse(struct job *j, enum stop_reason why, const char *text)
{
    buf_clear(&j->text);
    buf_str(&j->text, text);
    j->rec.refused = true;
    j->reason = why;
    j->state = JOB_DONE;
}

static bool add_job(struct batch *b, int i, const char *question, struct err *e)
{
    struct job *j = &b->job[i];
    j->rec = (struct batch_rec){.index = i, .count = b->n};
    j->seed = (uint64_t)b->set->seed;
    if (!session_render(&b->g->own.ses, question, &j->prompt, e))
        return false;
    j->rec.n_prompt = j->prompt.n;
    if (j->prompt.n >= b->r->context) {
        char *why = xasprintf("the prompt needs %d tokens, the context holds %d", j->prompt.n + 1,
                              b->r->context);
        refuse(j, STOP_CONTEXT, why);
        free(why);
    }
    ids_cat(&j->tok, j->prompt.v, j->prompt.n);
    return true;
}

/* The reply's text up to the last token of *tok. */
static void read_text(struct batch *b, struct job *j, const struct ids *tok)
{
    if (!j->reading)
        chat_reader_init(&j->reader, b->g->loaded.chat);
    j->reading = true;
    int from = j->prompt.n + j->n_read;
    engine_post_tokens(b->g, &j->reader, tok->v + from, tok->n - from, &j->text, &j->rec);
    j->n_read = generated(j, tok);
}

static void finish(struct batch *b, struct job *j, const struct ids *tok, enum stop_reason why)
{
    read_text(b, j, tok);
    engine_post_held(b->g, &j->reader, &j->text, &j->rec);
    j->reading = false;
    j->rec.n_tokens = generated(j, tok);
    j->reason = why;
    j->state = JOB_DONE;
    if (tok != &j->tok) { /* the event shows the ids */
        j->tok.n = 0;
        ids_cat(&j->tok, tok->v, tok->n);
    }
}

static void report_job(struct batch *b, const struct job *j)
{
    struct event ev = engine_event(b->g, EV_BATCH_REPLY);
    ev.batch = j->rec;
    ev.reason = j->reason;
    buf_add(&ev.text, j->text.p, j->text.n);
    if (!j->rec.refused)
        ids_cat(&ev.tokens, j->tok.v + j->prompt.n, j->rec.n_tokens);
    if (!j->rec.refused && j->n_fact == j->rec.n_tokens)
        ev.facts = facts_copy(j->fact, j->n_fact);
    ids_cat(&ev.prompt, j->prompt.v, j->prompt.n);
    ev.n_steps = j->n_steps;
    ev.n_drafted = j->n_drafted;
    ev.n_accepted = j->n_accepted;
    engine_post(b->g, &ev);
}

/* In the order of the prompts: a reply waits for those before it. */
static void report_done(struct batch *b)
{
    for (; b->n_reported < b->n && b->job[b->n_reported].state == JOB_DONE; b->n_reported++)
        report_job(b, &b->job[b->n_reported]);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static bool extend(struct batch *b, struct lane *l, int upto, bool last, struct err *e)
{
    int chunk = min_int(b->set->chunk, b->r->max_rows);
    while (l->seq.committed < upto) {
        int from = l->seq.committed, to = min_int(upto, from + chunk);
        if (stopped(b))
            return err_set(e, ERR_NEGATIVE, "the batch was stopped");
        if (!lane_extend(b->r, l, to, last && to == l->tok.n, drafting(b), b->set->topk, e))
            return false;
        b->n_computed += to - from;
        if (!engine_sweep(b->g, e))
            return false;
    }
    return true;
}

static void free_lane(struct batch *b, struct lane *l)
{
    pass_lock(&b->r->pass);
    lane_free(b->r, l);
    pass_unlock(&b->r->pass);
}

/* Tokens that all prompts begin with, less each one's last; *first: a prompt. 0: there is none. */
static int common(const struct batch *b, const struct job **first)
{
    int n = 0;
    *first = NULL;
    for (int i = 0; i < b->n; i++) {
        const struct job *j = &b->job[i];
        if (j->state == JOB_DONE)
            continue;
        if (!*first)
            n = (*first = j)->prompt.n - 1;
        int same = 0;
        while (same < min_int(n, j->prompt.n - 1) && j->prompt.v[same] == (*first)->prompt.v[same])
            same++;
        n = same;
    }
    return n;
}

/* The head: the conversation's state, and what else all prompts have in common if that is a whole
 * prompt or worth a page. A pool that is short ends the head early. */
static bool share_head(struct batch *b, struct err *e)
{
    struct session *s = &b->g->own.ses;
    const struct job *first;
    int n = common(b, &first);
    if (!first)
        return true;
    struct lane *from = session_resident(s, &(struct ids){.v = first->prompt.v, .n = n + 1},
                                         drafting(b));
    if (from) {
        lane_park(b->r, from);
        pass_lock(&b->r->pass);
        lane_fork_as(b->r, from, &b->head, HOLDER_BATCH);
        pass_unlock(&b->r->pass);
    }
    int reused = b->head.seq.committed;
    for (int i = 0; i < b->n; i++)
        b->job[i].rec.n_reused = reused;
    b->head.tok.n = 0;
    ids_cat(&b->head.tok, first->prompt.v, first->prompt.n);
    bool ok = true;
    if (b->n > 1 && n > reused && (n + 1 == first->prompt.n || n >= b->r->kv.page_size))
        ok = extend(b, &b->head, n, false, e);
    lane_park(b->r, &b->head);
    if (ok || e->kind != ERR_NEGATIVE || stopped(b))
        return ok;
    *e = (struct err){0};
    return true;
}

/* Pages of the full pool (and of the draft's) that a prompt takes beside those of the head. */
static int own_pages(const struct batch *b, const struct job *j)
{
    int P = b->r->kv.page_size;
    return div_up(j->tok.n, P) - b->head.seq.committed / P;
}

/* Whether the pools have the pages of a prompt, and those of one more cycle of every lane. */
static bool has_room(const struct batch *b, const struct job *j)
{
    const struct kv *kv = &b->r->kv;
    int P = kv->page_size, chunk = min_int(b->set->chunk, b->r->max_rows);
    int cells = max_int(b->set->nodes, b->set->steps * b->set->topk + 1);
    int ahead = (b->n_live + 1) * (div_up(cells, P) + 1);
    int full = own_pages(b, j) + ahead;
    int swa = min_int(full, div_up(kv->window + chunk, P) + 1 + ahead);
    return kv_left(kv, POOL_FULL) >= full && (!kv->has_swa || kv_left(kv, POOL_SWA) >= swa) &&
           (!kv->has_draft || kv_left(kv, POOL_DRAFT) >= full);
}

/* A job for which there are too few pages although no other lane has any: it ends with what it has
 * said, or is refused. */
static void end_short(struct batch *b, struct job *j, const char *why)
{
    if (generated(j, &j->tok) > 0)
        finish(b, j, &j->tok, STOP_KV_FULL);
    else
        refuse(j, STOP_KV_FULL, why);
}

/* With no other lane: whether the pools can hold the prompt at all, before any of it is
 * computed. */
static bool fits_alone(struct batch *b, struct job *j)
{
    static const enum pool_id pool[] = {POOL_FULL, POOL_DRAFT};
    for (int i = 0; i < 2; i++) {
        int left = b->r->kv.pool[pool[i]].total ? kv_left(&b->r->kv, pool[i]) : INT32_MAX;
        if (own_pages(b, j) <= left)
            continue;
        char *why = xasprintf("the prompt needs %d pages of the %s pool, %d are free",
                              own_pages(b, j), pool_name(pool[i]), left);
        end_short(b, j, why);
        free(why);
        return false;
    }
    return true;
}

static void leave(struct batch *b, int k)
{
    pass_lock(&b->r->pass);
    lane_free(b->r, &b->lane[k]);
    memmove(&b->lane[k], &b->lane[k + 1], (size_t)(b->n_live - k - 1) * sizeof *b->lane);
    memmove(&b->at[k], &b->at[k + 1], (size_t)(b->n_live - k - 1) * sizeof *b->at);
    b->n_live--;
    pass_unlock(&b->r->pass);
}

/* Lane k gives its pages back; its job waits and keeps its tokens. */
static void set_aside(struct batch *b, int k)
{
    struct lane *l = &b->lane[k];
    struct job *j = &b->job[b->at[k]];
    j->tok.n = 0;
    ids_cat(&j->tok, l->tok.v, l->tok.n);
    j->draws = l->draws;
    j->state = JOB_WAITS;
    leave(b, k);
}

/* Runs a job's prompt in a lane of its own. False: the job waits as before. */
static bool join(struct batch *b, int i, struct err *e)
{
    struct job *j = &b->job[i];
    struct lane *l = &b->lane[b->n_live];
    pass_lock(&b->r->pass);
    *l = (struct lane){.tap_row = -1, .seq.holder = HOLDER_BATCH};
    if (b->head.seq.committed)
        lane_fork_as(b->r, &b->head, l, HOLDER_BATCH);
    b->at[b->n_live++] = i;
    pass_unlock(&b->r->pass);
    l->tok.n = 0;
    ids_cat(&l->tok, j->tok.v, j->tok.n);
    l->how = b->how;
    l->seed = j->seed;
    l->draws = j->draws;
    l->stopped = false;
    int before = b->n_computed;
    bool ok = extend(b, l, l->tok.n, true, e);
    j->rec.n_computed += b->n_computed - before;
    j->state = JOB_LIVE;
    if (ok)
        take_facts(j, l);
    if (ok)
        lane_park(b->r, l);
    else
        set_aside(b, b->n_live - 1);
    return ok;
}

static int left(const struct batch *b, const struct lane *l, const struct job *j)
{
    return b->most > 0 ? b->most - generated(j, &l->tok) : INT32_MAX;
}

/* Lanes that have ended leave the batch. */
static void collect(struct batch *b)
{
    for (int k = b->n_live - 1; k >= 0; k--) {
        struct lane *l = &b->lane[k];
        struct job *j = &b->job[b->at[k]];
        int why = l->stopped                  ? (int)STOP_END
                  : left(b, l, j) <= 0        ? (int)STOP_MAX
                  : l->tok.n >= b->r->context ? (int)STOP_CONTEXT
                                              : -1;
        if (why >= 0) {
            finish(b, j, &l->tok, (enum stop_reason)why);
            leave(b, k);
            b->crowded = false;
        }
    }
}

/* Makes job i a lane. False with *retry: the same job may try again; without: nobody else may
 * now. */
static bool admit_one(struct batch *b, int i, bool *retry, struct err *e)
{
    struct job *j = &b->job[i];
    *retry = false;
    if (b->n_live > 0 && !has_room(b, j))
        return false;
    if (b->n_live == 0 && !fits_alone(b, j))
        return true;
    if (join(b, i, e))
        return true;
    if (e->kind != ERR_NEGATIVE || stopped(b))
        return false;
    if (b->n_live > 0) {
        b->crowded = true;
    } else if (b->head.seq.committed) { /* the last thing that can be given up */
        free_lane(b, &b->head);
        *retry = true;
    } else {
        end_short(b, j, e->msg);
        *e = (struct err){0};
        return true;
    }
    *e = (struct err){0};
    return false;
}

/* Waiting jobs take free lanes, in order, while there is room. */
static bool admit(struct batch *b, struct err *e)
{
    for (int i = b->n_reported; i < b->n && b->n_live < b->lanes && !b->crowded; i++) {
        bool retry;
        if (b->job[i].state != JOB_WAITS || admit_one(b, i, &retry, e))
            continue;
        if (!retry)
            return e->kind == ERR_NONE;
        i--;
    }
    return true;
}

/* ---- cycles ---------------------------------------------------------------------------------- */

/* A pool is short in a cycle: the youngest lane waits, or the head goes, or the only reply ends. */
static void give_up_one(struct batch *b)
{
    if (b->n_live > 1) {
        set_aside(b, b->n_live - 1);
        b->crowded = true;
    } else if (b->head.seq.committed) {
        free_lane(b, &b->head);
    } else {
        finish(b, &b->job[b->at[0]], &b->lane[0].tok, STOP_KV_FULL);
        leave(b, 0);
    }
}

static void count(struct batch *b, int k)
{
    const struct lane *l = &b->lane[k];
    struct job *j = &b->job[b->at[k]];
    take_facts(j, l);
    j->n_steps++;
    j->rec.n_spec += l->rec.drafted > 0;
    j->n_drafted += l->rec.drafted;
    j->n_accepted += l->rec.accepted;
    read_text(b, j, &l->tok);
}

/* One cycle of every lane, as many at once as the runtime's buffers hold. */
static bool step(struct batch *b, struct err *e)
{
    struct tree_shape shape = {b->set->steps, b->set->topk, b->set->nodes};
    const struct tree_shape *tree = drafting(b) ? &shape : NULL;
    int most = runtime_step_lanes(b->r, tree);
    for (int at = 0, n; at < b->n_live; at += n) {
        struct lane *live[BATCH_LANES];
        struct step_limits lim[BATCH_LANES];
        n = min_int(most, b->n_live - at);
        for (int k = 0; k < n; k++) {
            live[k] = &b->lane[at + k];
            lim[k].max_new = left(b, live[k], &b->job[b->at[at + k]]);
        }
        if (stopped(b))
            return false;
        if (!lane_step(b->r, live, lim, n, tree, e)) {
            if (e->kind != ERR_NEGATIVE || stopped(b))
                return false;
            give_up_one(b);
            *e = (struct err){0};
            return true;
        }
        for (int k = 0; k < n; k++)
            count(b, at + k);
        if (!engine_sweep(b->g, e))
            return false;
    }
    return true;
}

static bool run(struct batch *b, struct err *e)
{
    uint64_t start = clock_ns();
    bool ok = share_head(b, e);
    b->n_shared = b->n > 1 ? b->head.seq.committed / b->r->kv.page_size : 0;
    struct event ev = engine_event(b->g, EV_BATCH_BEGIN);
    ev.batch = (struct batch_rec){.count = b->n, .n_reused = b->n ? b->job[0].rec.n_reused : 0,
                                  .n_shared = b->n_shared};
    engine_post(b->g, &ev);
    while (ok && b->n_reported < b->n && !stopped(b)) {
        ok = admit(b, e);
        collect(b);
        ok = ok && step(b, e);
        collect(b);
        report_done(b);
    }
    b->ns = clock_ns() - start;
    return ok && b->n_reported == b->n;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Posts EV_BATCH_REPLY for every reply that was not reported yet: for replies that were stopped with
 * the text generated so far, and for complete ones that waited for an earlier reply. */
static void report_rest(struct batch *b, enum stop_reason why)
{
    while (b->n_live > 0) {
        struct job *j = &b->job[b->at[0]];
        if (generated(j, &b->lane[0].tok) > 0)
            finish(b, j, &b->lane[0].tok, why);
        leave(b, 0);
    }
    for (; b->n_reported < b->n; b->n_reported++) {
        struct job *j = &b->job[b->n_reported];
        if (j->state == JOB_WAITS && generated(j, &j->tok) > 0)
            finish(b, j, &j->tok, why);
        if (j->state == JOB_DONE)
            report_job(b, j);
    }
}

static void post_end(struct batch *b, enum stop_reason why)
{
    struct event ev = engine_event(b->g, EV_BATCH_END);
    ev.reason = why;
    ev.batch.count = b->n;
    ev.batch.n_computed = b->n_computed;
    ev.batch.n_shared = b->n_shared;
    for (int i = 0; i < b->n; i++) {
        const struct job *j = &b->job[i];
        ev.batch.n_done += j->state == JOB_DONE && !j->rec.refused && j->reason <= STOP_CONTEXT;
        ev.batch.n_tokens += j->rec.n_tokens;
        ev.batch.n_spec += j->rec.n_spec;
        ev.n_steps += j->n_steps;
        ev.n_drafted += j->n_drafted;
        ev.n_accepted += j->n_accepted;
    }
    ev.us_decode = b->ns / 1000;
    engine_post(b->g, &ev);
}

static void free_jobs(struct batch *b)
{
    for (int i = 0; i < b->n; i++) {
        struct job *j = &b->job[i];
        if (j->reading)
            chat_reader_end(&j->reader, &j->text);
        ids_free(&j->prompt);
        ids_free(&j->tok);
        buf_free(&j->text);
        free(j->fact);
    }
    free(b->job);
}

static void share(struct engine *g, const struct batch *b)
{
    shared_lock(&g->shared);
    g->shared.batch = b;
    shared_unlock(&g->shared);
}

/* Runs the jobs, posts their results and the end, and leaves the pools as they were. */
static void serve(struct batch *b, bool ok, struct err *e)
{
    struct engine *g = b->g;
    struct kv_order order;
    kv_save_order(&b->r->kv, &order);
    b->r->kv.log.keep = false; /* no turn reports the batch's page events */
    share(g, b);
    ok = ok && run(b, e);
    enum stop_reason why = !ok && stopped(b) ? STOP_CANCEL : STOP_END;
    if (!ok && why == STOP_END) {
        engine_fail(g, e);
        why = g->own.lost ? STOP_DEVICE : STOP_FAULT;
    }
    report_rest(b, why);
    free_lane(b, &b->head);
    share(g, NULL);
    struct err leak;
    shared_lock(&g->shared);
    bool whole = kv_restore_order(&b->r->kv, &order, &leak);
    shared_unlock(&g->shared);
    b->r->kv.log.keep = true;
    if (!whole) {
        engine_log_pages(g);
        engine_fail(g, &leak);
        why = STOP_FAULT;
    }
    post_end(b, why);
}

static struct batch *open_batch(struct engine *g, int n)
{
    const struct settings *set = &g->shared.set;
    struct batch *b = xcalloc(1, sizeof *b);
    *b = (struct batch){.g = g, .r = &g->own.runtime, .set = set, .most = set->max_tokens, .n = n,
                        .head = {.tap_row = -1, .seq.holder = HOLDER_BATCH}};
    b->how = (struct sampling){(float)set->temperature, set->top_k, (float)set->top_p,
                               (float)set->min_p};
    b->job = xcalloc((size_t)max_int(1, n), sizeof *b->job);
    shared_lock(&g->shared);
    runtime_set(&g->own.runtime, set);
    shared_unlock(&g->shared);
    return b;
}

void engine_batch(struct engine *g, const struct request *rq)
{
    struct err e = {0};
    struct batch *b = open_batch(g, rq->count);
    bool ok = true;
    b->lanes = max_int(1, min_int(g->lanes, BATCH_LANES));
    for (int i = 0; i < b->n && ok && !stopped(b); i++)
        ok = add_job(b, i, rq->prompts[i], &e);
    serve(b, ok && !stopped(b), &e);
    free_jobs(b);
    free(b);
}

void engine_several(struct engine *g, const struct request *rq)
{
    struct err e = {0};
    struct batch *b = open_batch(g, rq->count);
    bool ok = true;
    CHECK(rq->count >= 1 && rq->count <= BATCH_LANES);
    b->lanes = b->n;
    if (b->most <= 0)
        b->most = 1024;
    if (b->how.temperature <= 0) /* greedy replies would all be the same */
        b->how.temperature = 0.8f;
    for (int i = 0; i < b->n && ok && !stopped(b); i++) {
        ok = add_job(b, i, rq->text ? rq->text : "", &e);
        b->job[i].seed += (uint64_t)i;
    }
    if (b->job[0].rec.refused) /* it is the same for all */
        engine_post_text(g, EV_NOTICE, b->job[0].text.p);
    else
        serve(b, ok && !stopped(b), &e);
    free_jobs(b);
    free(b);
}
