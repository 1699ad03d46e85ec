/* jobs.c - see jobs.h. */
#include "engine/thread/jobs.h"

#include "engine/thread/internal.h"

/* ---- what the checker sees ------------------------------------------------------------------- */

int jobs_seqs(const struct jobs *js, const struct seq **out, int *states)
{
    int n = 0, head = js->head && js->n_state ? 1 : 0;
    if (head)
        out[n++] = &js->state[0].seq;
    for (int k = 0; k < js->n_live; k++)
        out[n++] = &js->lane[k].seq;
    *states = n;
    for (int k = head; k < js->n_state; k++)
        out[n++] = &js->state[k].seq;
    return n;
}

int shared_seqs(const struct engine_shared *s, const struct seq *out[MAX_SEQS])
{
    int n = session_seqs(s->ses, out, 2 * MAX_POINTS + 1), states;
    if (s->jobs)
        n += jobs_seqs(s->jobs, out + n, &states);
    if (s->scratch)
        out[n++] = s->scratch;
    return n;
}

bool engine_sweep(struct engine *engine, struct err *e)
{
    const struct seq *seqs[MAX_SEQS];
    struct checker *c = &engine->own.runtime.pass.check;
    if (c->level < CHECK_STRICT)
        return true;
    bool ok = check_sweep(&engine->own.runtime.kv, seqs, shared_seqs(&engine->shared, seqs), e);
    shared_lock(&engine->shared);
    c->violations += !ok;
    shared_unlock(&engine->shared);
    return ok;
}

static void share(struct engine *engine, const struct jobs *js)
{
    LOCKED(&engine->shared.mu);
    engine->shared.jobs = js;
}

void jobs_open(struct jobs *js)
{
    CHECK(!js->order);
    js->order = xcalloc(1, sizeof *js->order);
    kv_save_order(&js->r->kv, js->order);
    js->r->kv.log.keep = false; /* no turn reports the jobs' page events */
    shared_lock(&js->g->shared);
    runtime_set(js->r, js->set);
    shared_unlock(&js->g->shared);
    share(js->g, js);
}

bool jobs_close(struct jobs *js, struct err *e)
{
    struct engine *engine = js->g;
    CHECK(js->order && js->n_live == 0);
    while (jobs_give_state(js))
        ;
    share(engine, NULL);
    shared_lock(&engine->shared);
    bool whole = kv_restore_order(&js->r->kv, js->order, e);
    shared_unlock(&engine->shared);
    DROP(js->order);
    js->r->kv.log.keep = true;
    js->crowded = false;
    if (!whole)
        engine_log_pages(engine);
    return whole;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

bool job_stopped(const struct jobs *js, const struct job *j)
{
    return j->cancelled || j->number <= atomic_load(&js->g->stop.cancelled);
}

bool jobs_draft(const struct jobs *js)
{
    return js->g->loaded.has_draft && js->set->spec;
}

void job_free(struct job *j)
{
    ids_free(&j->prompt);
    ids_free(&j->tok);
    grammar_close(j->grammar);
    guide_close(j->guide);
    buf_free(&j->why);
}

void job_refuse(struct job *j, enum stop_reason reason, const char *why)
{
    buf_clear(&j->why);
    buf_str(&j->why, why);
    j->refused = true;
    j->reason = reason;
    j->state = JOB_DONE;
}

bool job_fits_context(const struct jobs *js, struct job *j)
{
    int need = j->prompt.n + (j->most != 0);
    if (need <= js->r->context)
        return true;
    char *why = xasprintf("the prompt needs %d tokens, the context holds %d", need, js->r->context);
    job_refuse(j, STOP_CONTEXT, why);
    free(why);
    return false;
}

/* The lane of a job that runs; -1: it waits. */
static int lane_of(const struct jobs *js, const struct job *j)
{
    for (int k = 0; k < js->n_live; k++)
        if (js->of[k] == j)
            return k;
    return -1;
}

const struct ids *job_tokens(const struct jobs *js, const struct job *j)
{
    int k = lane_of(js, j);
    return k >= 0 && js->lane[k].tok.n > j->tok.n ? &js->lane[k].tok : &j->tok;
}

/* ---- resident states ------------------------------------------------------------------------- */

static void drop_state(struct jobs *js, int i)
{
    lane_free(js->r, &js->state[i]);
    CUT(js->state, js->n_state, i);
}

bool jobs_give_state(struct jobs *js)
{
    if (js->n_state == 0)
        return false;
    pass_lock(&js->r->pass);
    drop_state(js, 0);
    pass_unlock(&js->r->pass);
    return true;
}

/* Drops a state to free its pages; the head is dropped last. */
static bool give_up_state(struct jobs *js)
{
    return !js->head && jobs_give_state(js);
}

/* The state whose KV a job can begin with, and *n, the number of the job's tokens that the state
 * holds. -1: none. */
static int find_state(const struct jobs *js, const struct job *j, int *n)
{
    int best = -1;
    *n = 0;
    for (int i = 0; i < js->n_state && !(j->scores && !j->begun); i++) {
        const struct lane *lane = &js->state[i];
        int same = js->head ? lane->seq.committed
                            : lane_shared(js->r, lane, &j->tok, jobs_draft(js));
        if (same > *n) {
            best = i;
            *n = same;
        }
    }
    return best;
}

/* Whether every prompt that the older state serves is served as well by the new one. */
static bool covers(const struct jobs *js, const struct lane *new, const struct lane *old)
{
    int n = old->seq.committed, less = max_int(1, n - 1);
    const struct kv *kv = &js->r->kv;
    return n <= new->seq.committed && kv_can_fork_at(kv, &new->seq, less) &&
           kv_can_draft(kv, &new->seq, min_int(less, new->seq.drafted)) &&
           memcmp(old->tok.v, new->tok.v, (size_t)n * sizeof *old->tok.v) == 0;
}

/* Whether the end of a reply can begin a prompt: its cells are those of a prompt's pass
 * (jobs.h). */
static bool keeps_reply(const struct jobs *js)
{
    return !js->head && !js->r->dev.k->queued;
}

/* The newest state becomes a fork of a parked lane. */
static void add_state(struct jobs *js, struct lane *lane)
{
    if (js->head || lane->seq.committed == 0)
        return;
    pass_lock(&js->r->pass);
    for (int i = js->n_state - 1; i >= 0; i--)
        if (covers(js, lane, &js->state[i]))
            drop_state(js, i);
    if (js->n_state == JOB_STATES)
        drop_state(js, 0);
    struct lane *s = &js->state[js->n_state++];
    lane_fork_as(js->r, lane, s, HOLDER_BATCH);
    s->steer = NULL;          /* it is the job's */
    lane_give_slot(js->r, s); /* drafting goes on from the captured states */
    s->guess.n = 0;
    pass_unlock(&js->r->pass);
}

/* State i has been used: it becomes the newest one. */
static int touch_state(struct jobs *js, int i)
{
    struct lane lane = js->state[i];
    if (js->head)
        return i;
    memmove(&js->state[i], &js->state[i + 1], (size_t)(js->n_state - 1 - i) * sizeof lane);
    js->state[js->n_state - 1] = lane;
    return js->n_state - 1;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

bool jobs_extend(struct jobs *js, struct lane *lane, const struct job *j, int upto, bool last,
                 struct err *e)
{
    int chunk = min_int(js->set->chunk, js->r->max_rows);
    js->g->stop.running = j->number;
    while (lane->seq.committed < upto) {
        int from = lane->seq.committed, to = min_int(upto, from + chunk);
        bool ends = to == lane->tok.n, draft = jobs_draft(js) && (last || !ends);
        if (job_stopped(js, j))
            return err_set(e, ERR_NEGATIVE, "the job was stopped");
        if (!lane_extend(js->r, lane, to, last && ends, draft, js->set->topk, e)) {
            if (e->kind == ERR_NEGATIVE && !job_stopped(js, j) && give_up_state(js)) {
                *e = (struct err){0};
                continue;
            }
            return false;
        }
        js->n_computed += to - from;
        if (!engine_sweep(js->g, e))
            return false;
    }
    return true;
}

static void leave(struct jobs *js, int k)
{
    pass_lock(&js->r->pass);
    lane_free(js->r, &js->lane[k]);
    int n = js->n_live;
    CUT(js->lane, n, k);
    CUT(js->of, js->n_live, k);
    js->joins = js->joins && k != js->n_live;
    pass_unlock(&js->r->pass);
}

/* Copies the lane's tokens to its job, unless the lane is still recomputing tokens that the job
 * has. */
static void take_tokens(struct job *j, const struct lane *lane)
{
    if (lane->tok.n < j->tok.n || lane->n_given)
        return;
    j->tok.n = 0;
    ids_cat(&j->tok, lane->tok.v, lane->tok.n);
    j->draws = lane->draws;
}

/* Preempts lane k: frees its pages; its job waits and keeps its tokens. */
static void set_aside(struct jobs *js, int k)
{
    struct job *j = js->of[k];
    take_tokens(j, &js->lane[k]);
    j->state = JOB_WAITS;
    leave(js, k);
}

void jobs_end(struct jobs *js, struct job *j, enum stop_reason why)
{
    int k = lane_of(js, j);
    if (k >= 0) {
        struct lane *lane = &js->lane[k];
        take_tokens(j, lane);
        if (keeps_reply(js) && why <= STOP_CONTEXT)
            add_state(js, lane);
        leave(js, k);
        js->crowded = false;
    }
    j->reason = why;
    j->state = JOB_DONE;
    js->owner->ended(js, j);
}

/* Pages of the full pool (and of the draft's) that a job needs in addition to those of the state it
 * begins with. */
static int own_pages(const struct jobs *js, const struct job *j)
{
    int P = js->r->kv.page_size, n;
    find_state(js, j, &n);
    return div_up(j->tok.n, P) - n / P;
}

/* Whether the pools have the pages of a job, and those of one more cycle of every lane. */
static bool has_room(const struct jobs *js, const struct job *j)
{
    const struct kv *kv = &js->r->kv;
    int P = kv->page_size, chunk = min_int(js->set->chunk, js->r->max_rows);
    int cells = max_int(js->set->nodes, js->set->steps * js->set->topk + 1);
    int ahead = (js->n_live + 1) * (div_up(cells, P) + 1);
    int full = own_pages(js, j) + ahead;
    int swa = min_int(full, div_up(window_before(kv->window) + 1 + chunk, P) + 1 + ahead);
    return kv_left(kv, POOL_FULL) >= full && (!kv->has_swa || kv_left(kv, POOL_SWA) >= swa) &&
           (!kv->has_draft || kv_left(kv, POOL_DRAFT) >= full);
}

/* Ends a job for which there are too few pages although no other lane runs: with the tokens
 * generated so far, or, if there are none, as refused. */
static void end_short(struct jobs *js, struct job *j, const char *why)
{
    if (job_generated(j, &j->tok) > 0) {
        jobs_end(js, j, STOP_KV_FULL);
        return;
    }
    job_refuse(j, STOP_KV_FULL, why);
    js->owner->ended(js, j);
}

/* With no other lane: whether the pools can hold the job at all, before any of it is computed. */
static bool fits_alone(struct jobs *js, struct job *j)
{
    static const enum pool_id pool[] = {POOL_FULL, POOL_DRAFT};
    for (int i = 0; i < 2; i++) {
        if (!js->r->kv.pool[pool[i]].total)
            continue;
        while (own_pages(js, j) > kv_left(&js->r->kv, pool[i]) && give_up_state(js))
            ;
        if (own_pages(js, j) <= kv_left(&js->r->kv, pool[i]))
            continue;
        char *why = xasprintf("the prompt needs %d pages of the %s pool, %d are free",
                              own_pages(js, j), pool_name(pool[i]),
                              kv_left(&js->r->kv, pool[i]));
        end_short(js, j, why);
        free(why);
        return false;
    }
    return true;
}

/* The lane begins as a fork of the state that holds the most of the job's tokens. */
static void begin_lane(struct jobs *js, struct job *j)
{
    struct lane *lane = &js->lane[js->n_live];
    int n, from = find_state(js, j, &n);
    /* cycles recompute the generated tokens if a prompt's pass may round differently */
    int known = js->r->dev.k->queued ? j->prompt.n : j->tok.n;
    pass_lock(&js->r->pass);
    *lane = (struct lane){.tap_row = -1, .seq.holder = HOLDER_BATCH};
    if (from >= 0)
        lane_fork_at(js->r, &js->state[touch_state(js, from)], n, jobs_draft(js) && !js->head, lane,
                     HOLDER_BATCH);
    js->of[js->n_live++] = j;
    pass_unlock(&js->r->pass);
    lane->tok.n = 0;
    ids_cat(&lane->tok, j->tok.v, known);
    lane->given = j->tok.v + known;
    lane->n_given = j->tok.n - known;
    lane->how = j->how;
    if (j->grammar)
        j->guide = constrain_guide(js->g, j->grammar);
    j->grammar = NULL;
    lane->steer = steer_set(&j->steer, &j->penalties, j->guide, j->prompt.n);
    lane->seed = j->seed;
    lane->draws = lane->n_given ? 0 : j->draws;
    lane->run_on = j->run_on;
    lane->scores = j->begun ? NULL : j->scores;
    lane->stopped = false;
    if (!j->begun) {
        j->n_reused = n;
        j->ns_begin = clock_ns();
    }
}

/* Runs the prompt of the newest lane: a chunk of it if other clients wait for their next cycle,
 * else all of it. False: the job waits as before. */
static bool join(struct jobs *js, struct err *e)
{
    int k = js->n_live - 1, before = js->n_computed;
    struct lane *lane = &js->lane[k];
    struct job *j = js->of[k];
    int chunk = min_int(js->set->chunk, js->r->max_rows);
    int to = k > 0 && !js->head ? min_int(js->join_upto, lane->seq.committed + chunk)
                                : js->join_upto;
    bool silent = lane->n_given > 0, ok = jobs_extend(js, lane, j, to, j->most != 0, e);
    j->n_computed += js->n_computed - before;
    if (!ok) {
        set_aside(js, k);
        return false;
    }
    if (to < js->join_upto)
        return true;
    js->joins = false;
    lane_park(js->r, lane);
    if (!silent && lane->tok.n - (j->most != 0) == j->prompt.n)
        add_state(js, lane);
    j->state = JOB_LIVE;
    j->ns_begun = j->begun ? j->ns_begun : clock_ns();
    if (j->most == 0)
        js->owner->prompted(js, j);
    else if (!silent)
        js->owner->stepped(js, j, lane);
    j->begun = true;
    return true;
}

static int left(const struct job *j, const struct lane *lane)
{
    return lane->n_given ? lane->n_given : j->most - job_generated(j, &lane->tok);
}

/* Why a lane has ended; -1: it has not. */
static int ended(const struct jobs *js, int k)
{
    const struct lane *lane = &js->lane[k];
    return lane->stopped                     ? (int)STOP_END
           : left(js->of[k], lane) <= 0      ? (int)STOP_MAX
           : lane->tok.n >= js->r->context ? (int)STOP_CONTEXT
                                             : -1;
}

/* Lanes that have ended leave. */
static void collect(struct jobs *js)
{
    for (int k = js->n_live - 1 - js->joins; k >= 0; k--)
        if (ended(js, k) >= 0)
            jobs_end(js, js->of[k], (enum stop_reason)ended(js, k));
}

/* Goes on with the prompt of the newest lane. False with *retry: its job may try again at once;
 * without: no job is admitted in this round. */
static bool go_on(struct jobs *js, bool *retry, struct err *e)
{
    struct job *j = js->of[js->n_live - 1];
    *retry = false;
    if (join(js, e))
        return true;
    if (e->kind != ERR_NEGATIVE) {
        js->failed = j;
        return false;
    }
    bool stopped = job_stopped(js, j);
    if (!stopped && js->n_live > 0)
        js->crowded = true;
    else if (!stopped && js->n_state) /* the head, which is dropped last */
        *retry = jobs_give_state(js);
    else if (!stopped)
        end_short(js, j, e->msg);
    *e = (struct err){0};
    return j->state == JOB_DONE;
}

/* Admits a job to a lane. False: as of go_on(). */
static bool admit_one(struct jobs *js, struct job *j, bool *retry, struct err *e)
{
    *retry = false;
    while (js->n_live > 0 && !has_room(js, j))
        if (!give_up_state(js))
            return false;
    if (js->n_live == 0 && !fits_alone(js, j))
        return true;
    begin_lane(js, j);
    js->joins = true;
    js->join_upto = js->lane[js->n_live - 1].tok.n;
    return go_on(js, retry, e);
}

/* Waiting jobs take free lanes, in order, while there is room. The next one waits until the prompt
 * of the one before is computed. */
static bool admit(struct jobs *js, struct err *e)
{
    for (int i = 0; i < js->n && js->n_live < js->lanes && !js->crowded && !js->joins; i++) {
        bool retry;
        struct job *j = js->job[i];
        if (j->state != JOB_WAITS || job_stopped(js, j) || admit_one(js, j, &retry, e))
            continue;
        if (!retry)
            return e->kind == ERR_NONE;
        i--;
    }
    return true;
}

/* ---- cycles ---------------------------------------------------------------------------------- */

/* A pool is short in a cycle: drops a state, else preempts the youngest lane, else drops the head,
 * else ends the only reply. */
static void give_up_one(struct jobs *js)
{
    if (give_up_state(js))
        return;
    if (js->n_live > 1) {
        set_aside(js, js->n_live - 1);
        js->crowded = true;
    } else if (!jobs_give_state(js)) {
        jobs_end(js, js->of[0], STOP_KV_FULL);
    }
}

static void count_job(struct jobs *js, int k)
{
    const struct lane *lane = &js->lane[k];
    struct job *j = js->of[k];
    if (lane->tok.n <= j->tok.n) /* computed again */
        return;
    j->n_steps++;
    j->n_spec += lane->rec.drafted > 0;
    j->n_drafted += lane->rec.drafted;
    j->n_accepted += lane->rec.accepted;
    js->owner->stepped(js, j, lane);
    if (keeps_reply(js) && ended(js, k) >= 0)
        lane_park(js->r, &js->lane[k]); /* the next pass overwrites its captured states */
}

/* One cycle of lanes [at, at + n). *short_: a pool is short, or the pass was stopped. */
static bool step_some(struct jobs *js, int at, int n, const struct tree_shape *tree, bool *short_,
                      struct err *e)
{
    struct lane *live[JOB_LANES];
    struct step_limits lim[JOB_LANES];
    uint64_t newest = 0;
    bool stopped = true;
    for (int k = 0; k < n; k++) {
        const struct job *j = js->of[at + k];
        live[k] = &js->lane[at + k];
        lim[k].max_new = left(j, live[k]);
        newest = j->number > newest ? j->number : newest;
        stopped = stopped && job_stopped(js, j);
    }
    js->g->stop.running = newest;
    *short_ = stopped;
    if (stopped)
        return true;
    if (lane_step(js->r, live, lim, n, tree, e)) {
        for (int k = 0; k < n; k++)
            count_job(js, at + k);
        return engine_sweep(js->g, e);
    }
    *short_ = e->kind == ERR_NEGATIVE;
    if (*short_ && !stop_asked(&js->g->stop))
        give_up_one(js);
    if (*short_)
        *e = (struct err){0};
    return *short_;
}

/* One cycle of every lane, as many at once as the runtime's buffers hold. */
static bool step(struct jobs *js, struct err *e)
{
    struct tree_shape shape = {js->set->steps, js->set->topk, js->set->nodes};
    const struct tree_shape *tree = jobs_draft(js) ? &shape : NULL;
    int most = runtime_step_lanes(js->r, tree);
    bool short_ = false;
    for (int at = 0, n; at < js->n_live - js->joins && !short_; at += n) {
        n = min_int(most, js->n_live - js->joins - at);
        if (!step_some(js, at, n, tree, &short_, e))
            return false;
    }
    return true;
}

bool jobs_round(struct jobs *js, bool admits, struct err *e)
{
    js->failed = NULL;
    bool retry, ok = !js->joins || go_on(js, &retry, e) || e->kind == ERR_NONE;
    ok = ok && (!admits || admit(js, e));
    collect(js);
    ok = ok && step(js, e);
    collect(js);
    return ok;
}
