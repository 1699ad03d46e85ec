/* turn.c - one turn on the engine's thread: prompt, cycles, events. */

#include "engine/thread/internal.h"
#include "engine/past/room.h"
#include "engine/run/device.h"
#include "kernels/text.h"

/* ---- one turn -------------------------------------------------------------------------------- */

struct turn {
    struct chat_reader reader;
    struct buf text; /* of the final channel */
    struct ids ends; /* the reader's */
    int first;       /* index in lane.tok of the first generated token */
    const struct request *rq; /* given tokens, and where a replay stops the turn */
    int n_drafted, n_accepted, n_steps;
    int chunk; /* most tokens of a prompt's pass */
    uint64_t prefill_ns, decode_ns;
    uint64_t since; /* active() when the step before ended: its time is counted up to there */
    struct back back;
    enum stop_reason reason;
};

/* How a turn continues after a part of it: with the next step, with an earlier one, or not at
 * all. */
struct course {
    enum { GOES_ON, GOES_BACK, ENDS } way;
    enum stop_reason reason; /* ENDS */
};
static const struct course goes_on = {.way = GOES_ON}, goes_back = {.way = GOES_BACK};

static struct course ends(enum stop_reason reason)
{
    return (struct course){ENDS, reason};
}

/* Nanoseconds of a clock that stands while the debugger pauses the turn or runs steps of it
 * again. */
static uint64_t active(const struct engine *engine)
{
    return clock_ns() - engine->own.paused_ns;
}

static int generated(const struct engine *engine, const struct turn *t)
{
    return engine->own.ses.lane.tok.n - t->first;
}

/* Counts a committed step for the views. */
static void count_step(struct engine *engine, struct turn *t, const struct step_rec *rec, int n_new,
                       const struct step_pages *pages)
{
    struct chat_view *s = &engine->shared.stats;
    struct turn_count *now = &engine->shared.count;
    shared_lock(&engine->shared);
    engine->shared.step++;
    s->us_draft += rec->us_draft;
    s->us_commit += rec->us_commit;
    s->us_check += rec->us_check;
    *(rec->kind == STEP_PREFILL ? &s->us_prefill : &s->us_verify) += rec->us_verify;
    s->generated += (uint64_t)n_new;
    now->generated += (uint64_t)n_new;
    const struct lane *lane = &engine->own.ses.lane;
    int deepest = tree_depth(&lane->tree);
    draft_sums_add(&s->drafts, rec, deepest);
    draft_sums_add(&now->drafts, rec, deepest);
    if (rec->kind != STEP_PREFILL)
        now->decode_ns = t->decode_ns;
    if (engine->shared.set.auto_shape)
        shapes_view(engine, &s->auto_shape);
    struct pages_held held;
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool *p = &engine->shared.pass->kv->pool[i];
        held.n[i] = p->total ? p->total - GUARD_PAGES - p->n_free : -1;
    }
    ring_push(&engine->shared.ring, engine->shared.turn, engine->shared.step, rec, &lane->tree,
              lane->tok.v + lane->tok.n - n_new, lane->fact, n_new, &held);
    const struct buf *tape = pages->whole.n ? &pages->whole : &pages->change;
    tape_add(&engine->shared.pages, engine->shared.turn, engine->shared.step, tape, &pages->change);
    contexts_add(&engine->shared.contexts, lane->tok.n - n_new, lane->tok.v + lane->tok.n - n_new,
                 n_new);
    shared_unlock(&engine->shared);
    t->n_drafted += rec->drafted;
    t->n_accepted += rec->accepted;
    t->n_steps++;
}

static void post_step(struct engine *engine, struct turn *t)
{
    struct lane *lane = &engine->own.ses.lane;
    struct step_pages pages;
    engine_take_pages(engine, &pages);
    count_step(engine, t, &lane->rec, lane->n_new, &pages);
    buf_free(&pages.change);
    buf_free(&pages.whole);
    const int32_t *tok = lane->tok.v + lane->tok.n - lane->n_new;
    engine_post_tokens(engine, &t->reader, tok, lane->n_new, &t->text, NULL);
    struct event ev = engine_event(engine, EV_STEP);
    ev.rec = lane->rec;
    ids_cat(&ev.tokens, tok, lane->n_new);
    ev.facts = facts_copy(lane->fact, lane->n_new);
    if (lane->tree.n > 1)
        ev.tree = xcopy(&lane->tree, 1, sizeof lane->tree);
    ev.pages = pages.ev;
    ev.n_pages = pages.n;
    ev.lengths = pages.lengths;
    engine_post(engine, &ev);
}

/* Whether the turn ends with its given tokens, and has emitted them all. */
static bool gave_all(const struct engine *engine, const struct turn *t)
{
    return t->rq->only_given && t->rq->given.n > 0 && engine->own.ses.lane.n_given == 0;
}

/* Whether a replay has reached the place where the log's turn was stopped. */
static bool at_replays_stop(const struct engine *engine, const struct turn *t)
{
    const struct request *rq = t->rq;
    return (rq->stop_after_step && engine->shared.step >= rq->stop_after_step) ||
           (rq->stop_after_token && generated(engine, t) >= rq->stop_after_token);
}

/* Whether the user stops the turn, or stopped it here in the log of a replay. A turn that has gone
 * back first runs the steps that were posted. */
static bool stopped_by_user(struct engine *engine, const struct turn *t)
{
    if (back_silent(engine, &t->back))
        return false;
    return stop_asked(&engine->stop) || (at_replays_stop(engine, t) && !t->rq->stop_inside) ||
           gave_all(engine, t);
}

static bool in_prompt(const struct engine *engine, const struct turn *t)
{
    return engine->own.ses.lane.seq.committed < t->first;
}

/* Before a step: whether the turn has ended. */
static struct course finished(struct engine *engine, const struct turn *t)
{
    const struct lane *lane = &engine->own.ses.lane;
    bool prompt = in_prompt(engine, t);
    if (!prompt && lane->stopped)
        return ends(STOP_END);
    if (!prompt && engine->shared.set.max_tokens > 0 &&
        generated(engine, t) >= engine->shared.set.max_tokens) return ends(STOP_MAX);
    if (!prompt && lane->tok.n >= engine->own.runtime.context)
        return ends(STOP_CONTEXT);
    return stopped_by_user(engine, t) ? ends(STOP_CANCEL) : goes_on;
}

/* After step number `step` has failed. A fault that occurs again after going back is not posted
 * twice. */
static struct course failed(struct engine *engine, struct turn *t, int step, const struct err *e)
{
    if (debug_back_asked(engine))
        return goes_back;
    if (e->kind == ERR_NEGATIVE && undo_wanted(engine)) {
        undo_step(engine);
        return ends(STOP_CANCEL);
    }
    if (e->kind == ERR_NEGATIVE) {
        /* a pool has no free page: earlier turns hold them, or historical fault 27789 has leaked
         * them */
        FREED(free_at) char *line = xasprintf("%s%s", e->msg, engine->own.ses.turn == 1 ? ""
                                              : "; /forget N leaves out the "
                                              "oldest N turns, /clear empties the pools");
        engine_notice(engine, line);
        return ends(STOP_KV_FULL);
    }
    if (e->kind != ERR_INVARIANT || t->back.fault_step != step)
        engine_fault(engine, step, e);
    t->back.fault_step = step;
    debug_step_failed(engine, step);
    if (debug_back_asked(engine) && !engine->own.lost)
        return goes_back;
    return ends(engine->own.lost ? STOP_DEVICE : STOP_FAULT);
}

/* After a committed step: posts it or, if it is silent, compares it with its first run; then runs
 * the checker and the debugger. */
static struct course step_done(struct engine *engine, struct turn *t, uint64_t began)
{
    struct err e = {0};
    bool silent = back_silent(engine, &t->back), ok = true;
    if (silent) {
        ok = back_compare(engine, &e);
        engine->own.paused_ns += clock_ns() - began;
    } else {
        post_step(engine, t);
    }
    if (!ok || !engine_sweep(engine, &e))
        return failed(engine, t, engine->shared.step, &e);
    back_step_done(engine, &t->back, t->chunk);
    debug_step_done(engine);
    return debug_back_asked(engine) ? goes_back : goes_on;
}

/* A cancel does not end a silent step of a turn that has gone back: see stopped_by_user(). */
static void begin_step(struct engine *engine, const struct turn *t)
{
    struct runtime *rt = &engine->own.runtime;
    bool stoppable = !rt->dev.k->queued && !back_silent(engine, &t->back) && undo_possible(engine);
    rt->net.stop = stoppable ? &engine->stop : NULL; /* see worker.c */
    probe_step_begins(engine);
    plans_step_begins(engine);
    engine->own.force.silent = back_silent(engine, &t->back);
    force_step_begins(engine, generated(engine, t));
}

static void end_step(struct engine *engine, bool ok)
{
    probe_step_ended(engine, ok);
    plans_step_ended(engine);
    force_step_ended(engine, ok);
}

/* Runs one prompt chunk. If a pool is short, checkpoints are dropped first, then the chunk gets
 * smaller. */
static bool extend(struct engine *engine, int *chunk, struct err *e)
{
    struct lane *lane = &engine->own.ses.lane;
    if (engine->shared.step > 0 && lane->seq.committed + *chunk >= lane->tok.n)
        session_mark(&engine->own.ses, false); /* so that /regen need not run the earlier chunks
                                                  again */
    for (;;) {
        if (!undo_possible(engine))
            engine->own.runtime.net.stop = NULL;
        int upto = min_int(lane->seq.committed + *chunk, lane->tok.n);
        bool last = upto == lane->tok.n;
        if (lane_extend(&engine->own.runtime, lane, upto, last, engine->shared.set.spec,
                        engine->shared.set.topk, e))
            return true;
        if (e->kind != ERR_NEGATIVE || undo_wanted(engine))
            return false;
        if (session_reclaim(&engine->own.ses))
            continue;
        if (*chunk <= 1)
            return false;
        *chunk = *chunk / 2;
    }
}

static void post_progress(struct engine *engine, const struct turn *t)
{
    struct event ev = engine_event(engine, EV_PREFILL);
    ev.done = engine->own.ses.lane.seq.committed;
    ev.total = t->first;
    engine_post(engine, &ev);
}

/* After a phase: pauses if the debugger asks for it. False: the user stopped the paused turn. */
static bool phase_done(struct engine *engine, struct cycle *c, struct err *e)
{
    return debug_phase_done(engine, c) || (!undo_possible(engine) && !debug_back_asked(engine)) ||
           err_set(e, ERR_NEGATIVE, "the step was stopped");
}

/* After verify, the same; a probe that ran in the pause has used the logits, which accept reads. */
static bool verify_done(struct engine *engine, struct cycle *c, struct err *e)
{
    engine->own.probed = false;
    return phase_done(engine, c, e) && (!engine->own.probed || cycle_verify_again(c, e));
}

/* One cycle, at once or phase by phase. stop: the turn is cancelled before the cycle's commit. */
static bool run_cycle(struct engine *engine, const struct turn *t, const struct step_limits *lim,
                      const struct tree_shape *shape, bool stop, struct err *e)
{
    struct lane *lane = &engine->own.ses.lane;
    struct cycle c;
    bool by_phase = debug_by_phase(&engine->debug) && !stop_asked(&engine->stop);
    if (!by_phase && !engine->plans.running && !stop)
        return lane_step(&engine->own.runtime, &lane, lim, 1, shape, e);
    if (!lane_ready_for(&engine->own.runtime, lane, shape, e))
        return false;
    cycle_begin(&c, &engine->own.runtime, &lane, lim, 1, shape);
    bool ok = cycle_draft(&c, e) && phase_done(engine, &c, e) && cycle_verify(&c, e) &&
              verify_done(engine, &c, e);
    force_step_begins(engine, generated(engine, t));
    ok = ok && cycle_accept(&c, e);
    if (ok && stop)
        stop_up_to(&engine->stop, engine->stop.running);
    ok = ok && phase_done(engine, &c, e);
    if (!ok) {
        cycle_abandon(&c);
        return false;
    }
    cycle_commit(&c);
    debug_phase_done(engine, &c);
    cycle_follow(&c);
    return true;
}

/* One cycle, of the shape and with the limits that the turn has now. */
static bool generate(struct engine *engine, const struct turn *t, struct err *e)
{
    const struct settings *set = &engine->shared.set;
    int left = set->max_tokens > 0 ? set->max_tokens - generated(engine, t) : INT32_MAX;
    int given = t->rq->only_given && t->rq->given.n ? engine->own.ses.lane.n_given : INT32_MAX;
    bool stop = at_replays_stop(engine, t) && !back_silent(engine, &t->back);
    int until = t->rq->stop_after_token && !stop ? t->rq->stop_after_token - generated(engine, t)
                                                 : INT32_MAX;
    int forced = force_room(engine, generated(engine, t));
    struct step_limits lim = {min_int(min_int(min_int(left, given), until), forced)};
    struct tree_shape room;
    return run_cycle(engine, t, &lim, shapes_next(engine, &room), stop, e);
}

/* Whether a cycle that has failed is run once more: it was stopped between two phases while posted
 * steps run again, which come first, or there are pages again. */
static bool again(struct engine *engine, const struct turn *t, const struct err *e)
{
    if (e->kind != ERR_NEGATIVE)
        return false;
    return (stop_asked(&engine->stop) && back_silent(engine, &t->back)) ||
           (!undo_wanted(engine) && !debug_back_asked(engine) && session_reclaim(&engine->own.ses));
}

/* One step: a chunk of the prompt, or a cycle. */
static struct course run_step(struct engine *engine, struct turn *t)
{
    bool prompt = in_prompt(engine, t), ok, usual;
    struct err e = {0};
    uint64_t began, was_paused;
    undo_begin(engine);
    do {
        began = clock_ns();
        was_paused = engine->own.paused_ns;
        begin_step(engine, t);
        usual = !prompt && !engine->own.probing && !back_silent(engine, &t->back);
        ok = prompt ? extend(engine, &t->chunk, &e) : generate(engine, t, &e);
        end_step(engine, ok);
    } while (!ok && !prompt && again(engine, t, &e));
    if (!ok)
        return failed(engine, t, engine->shared.step + 1, &e);
    if (usual && engine->own.paused_ns == was_paused)
        shapes_measure(engine, clock_ns() - began);
    if (!back_silent(engine, &t->back)) {
        *(prompt ? &t->prefill_ns : &t->decode_ns) += active(engine) - t->since;
        t->since = active(engine);
        if (prompt)
            post_progress(engine, t);
    }
    struct course o = step_done(engine, t, began);
    if (prompt && !in_prompt(engine, t))
        t->since = active(engine);
    return o;
}

/* All steps of the turn, some of them perhaps more than once. */
static enum stop_reason run_steps(struct engine *engine, struct turn *t)
{
    struct course o = debug_back_asked(engine) ? goes_back : goes_on;
    t->since = active(engine);
    while (o.way != ENDS) {
        if (o.way == GOES_BACK) {
            back_go(engine, &t->back, &t->chunk);
            t->since = active(engine);
            o = debug_back_asked(engine) ? goes_back : goes_on;
        } else if ((o = finished(engine, t)).way == GOES_ON) {
            o = run_step(engine, t);
        }
    }
    return o.reason;
}

/* Posts EV_TURN_BEGIN. prompt: empty if the turn is refused before its prompt is rendered. */
static void post_turn_begin(struct engine *engine, bool regen, const char *text,
                            const struct ids *prompt, int reused, const struct reuse *why)
{
    struct event ev = engine_event(engine, EV_TURN_BEGIN);
    buf_str(&ev.text, text);
    ids_cat(&ev.tokens, prompt->v, prompt->n);
    ev.n_tokens = ev.tokens.n;
    ev.n_reused = reused;
    ev.reuse = *why;
    ev.seed = engine->shared.set.seed;
    ev.regen = regen;
    engine_post(engine, &ev);
}

static void end(struct engine *engine, struct turn *t)
{
    struct lane *lane = &engine->own.ses.lane;
    struct event ev = engine_event(engine, EV_TURN_END);
    ev.reason = t->reason;
    buf_add(&ev.text, t->text.p, t->text.n);
    ids_cat(&ev.tokens, lane->tok.v + t->first, generated(engine, t));
    ev.n_tokens = ev.tokens.n;
    ev.n_drafted = t->n_drafted;
    ev.n_accepted = t->n_accepted;
    ev.n_steps = t->n_steps;
    ev.us_prefill = t->prefill_ns / 1000;
    ev.us_decode = t->decode_ns / 1000;
    engine_post(engine, &ev);
}

/* The next turn's number; steps and counters begin anew. */
static void number_turn(struct engine *engine)
{
    LOCKED(&engine->shared.mu);
    engine->shared.turn = ++engine->own.ses.turn;
    engine->shared.step = 0;
    engine->shared.count = (struct turn_count){0};
}

/* The guide of the turn's reply. A format was compiled when it was set, so that an error here is
 * one of the vocabulary: the reply is then free, and a notice says so. */
static void open_guide(struct engine *engine, const struct ids *prompt)
{
    struct grammar *grammar = NULL;
    struct err e;
    if (engine->own.format && !constrain_compile(&engine->loaded, engine->own.format, prompt,
                                                 &grammar, &e))
        engine_notice(engine, e.msg);
    guide_close(engine->own.guide);
    engine->own.guide = constrain_guide(engine, grammar);
}

/* Begins the turn whose question is the last message: its settings, its prompt. */
static void open_turn(struct engine *engine, struct turn *t, const struct ids *prompt, bool regen)
{
    const struct settings *set = &engine->shared.set;
    struct session *s = &engine->own.ses;
    shared_lock(&engine->shared);
    runtime_set(&engine->own.runtime, set);
    shared_unlock(&engine->shared);
    struct reuse why = session_prepare(s, prompt, set->spec && engine->loaded.has_draft);
    s->lane.how = (struct sampling){(float)set->temperature, set->top_k, (float)set->top_p,
                                    (float)set->min_p};
    struct penalties p;
    open_guide(engine, prompt);
    settings_penalties(set, &p);
    s->lane.steer = steer_set(&engine->own.steer, &p, engine->own.guide, s->lane.tok.n);
    s->lane.seed = (uint64_t)set->seed;
    s->lane.run_on = t->rq->run_on;
    s->lane.given = t->rq->given.v;
    s->lane.n_given = t->rq->given.n;
    t->first = engine->own.first = s->lane.tok.n;
    shared_lock(&engine->shared);
    contexts_begin(&engine->shared.contexts, s->turn, s->lane.tok.v, s->lane.tok.n);
    engine->shared.stats.prompt_tokens += (uint64_t)s->lane.tok.n;
    engine->shared.stats.reused_tokens += (uint64_t)s->lane.seq.committed;
    engine->shared.stats.reuse = (struct reuse_view){why, s->lane.tok.n, s->lane.seq.committed};
    shared_unlock(&engine->shared);
    post_turn_begin(engine, regen, s->msg[s->n_msg - 1].text, &s->lane.tok, s->lane.seq.committed,
                    &why);
}

/* A draft whose output is no number gives no token, and replies only come slower. If a whole turn
 * had none, a notice names the weight that is the cause, once for each draft. */
static void tell_of_mute_draft(struct engine *engine, const struct turn *t)
{
    enum { ENOUGH = 4 }; /* steps */
    struct draft *d = &engine->loaded.draft;
    if (!engine->loaded.has_draft || !engine->shared.set.spec || t->n_drafted ||
        t->n_steps < ENOUGH || !d->store || engine->own.mute == d->store || engine->own.lost)
        return;
    engine->own.mute = d->store;
    const struct tensor *odd = draft_odd_weight(d, device_tensor_is_odd, &engine->loaded.dev);
    char what[300];
    if (!odd)
        return;
    snprintf(what, sizeof what, "the draft gave no token: its %.160s has a weight that is not a "
             "finite number", odd->name);
    engine_notice(engine, what);
}

/* Adds the reply to the conversation; a turn without a reply is removed from it. */
static void close_turn(struct engine *engine, struct turn *t, int n_reply)
{
    struct session *s = &engine->own.ses;
    s->draws = s->lane.draws;
    s->lane.run_on = false;
    s->lane.steer = NULL;
    s->lane.given = NULL;
    s->lane.n_given = 0;
    if (n_reply > 0) {
        session_add(s, ROLE_ASSISTANT, s->turn, buf_text(&t->text),
                    s->lane.tok.v + t->first, n_reply);
        if (!engine->own.lost)
            session_mark(s, true);
    }
    tell_of_mute_draft(engine, t);
    end(engine, t);
    session_hold(s);
    if (n_reply == 0 && (t->reason == STOP_FAULT || engine->own.lost))
        session_unsay(s); /* the pages stay, so that the user can inspect them */
    else if (n_reply == 0)
        session_rewind(s, 1, CHANGE_SILENT);
}

/* Answers the last message, which is part of the prompt. */
static void run_turn(struct engine *engine, const struct ids *prompt, const struct request *rq)
{
    struct turn t = {.rq = rq,
                     .chunk = min_int(engine->shared.set.chunk, engine->own.runtime.max_rows)};
    chat_reader_init(&t.reader, engine->loaded.chat);
    chat_reader_follow(&t.reader, prompt);
    t.reader.ends = &t.ends;
    open_turn(engine, &t, prompt, rq->kind == RQ_REGEN);
    force_turn_begins(engine, rq);
    shapes_turn_begins(engine, rq);
    back_begin(engine, &t.back, t.chunk);
    debug_turn_begins(engine);
    t.reason = run_steps(engine, &t);
    back_end(engine, &t.back);
    force_turn_ended(engine);
    shapes_turn_ended(engine);
    engine_post_held(engine, &t.reader, &t.text, NULL);
    debug_turn_ended(engine);
    probe_turn_ended(engine);
    close_turn(engine, &t, generated(engine, &t));
    buf_free(&t.text);
    ids_free(&t.ends);
}

/* ---- room for a message ---------------------------------------------------------------------- */

/* Takes turns of `tokens` tokens out of the context, in which `left` remain, after a notice and a
 * log entry. */
static void leave_out(struct engine *engine, const struct ids *turns, int tokens, int left,
                      const char *why)
{
    FREED(buf_free) struct buf b = {0};
    buf_str(&b, "leaving out ");
    room_print_turns(turns, &b);
    buf_printf(&b, " (%d token%s)%s", tokens, tokens == 1 ? "" : "s", why);
    engine_notice(engine, b.p);
    engine_post_turns(engine, OP_FORGET, turns, 0);
    session_forget(&engine->own.ses, turns, left);
}

/* Makes room for a message as the setting `forget` says, and renders the prompt. False: the message
 * is refused, nothing has changed, and *e says why. */
static bool find_room(struct engine *engine, const char *text, bool make_room, struct room *r,
                      struct err *e)
{
    int context = engine->own.runtime.context, policy = make_room ? FORGET_OLDEST
                  : engine->shared.set.forget;
    if (!session_room(&engine->own.ses, text, r, e))
        return false;
    if (r->turns.n == 0)
        return true;
    if (policy == FORGET_OLDEST) {
        FREED(free_at) char *why = xasprintf(": the context was full, %d of %d free now%s",
                                             context - r->prompt.n, context,
                                             make_room ? "" : "; /set forget ask asks first");
        leave_out(engine, &r->turns, r->n_all - r->prompt.n, r->prompt.n, why);
        return true;
    }
    bool tight = r->n_all + (policy == FORGET_ASK ? room_least(context) : 1) > context;
    if (tight) {
        struct buf b = {0};
        room_print_turns(&r->turns, &b);
        err_set(e, ERR_USAGE, "not sent, nothing has changed: with the message the context would "
                "hold %d of %d tokens; /forget leaves out %.200s (%d tokens) and sends it",
                r->n_all, context, b.p, r->n_all - r->prompt.n);
        buf_free(&b);
        return false;
    }
    r->prompt.n = 0; /* there is room for a short reply: no turn leaves */
    return session_render(&engine->own.ses, text, &r->prompt, e);
}

/* Posts a turn without prompt and reply, and a notice why; the conversation does not change. */
static void refuse(struct engine *engine, const char *text, enum stop_reason reason,
                   const char *why)
{
    struct turn t = {.first = engine->own.ses.lane.tok.n, .reason = reason};
    post_turn_begin(engine, false, text, &(struct ids){0}, 0, &(struct reuse){0});
    engine_notice(engine, why);
    end(engine, &t);
}

/* Refuses a message whose encoding the user stopped, or which does not fit the context. */
static void refuse_prompt(struct engine *engine, const char *text, const struct err *e)
{
    bool cancelled = e->kind == ERR_NEGATIVE && stop_asked(&engine->stop);
    refuse(engine, text, cancelled ? STOP_CANCEL : STOP_CONTEXT, e->msg);
}

static bool ids_exist(struct engine *engine, const struct ids *ids, const char *name)
{
    int vocab = engine->loaded.model.cfg.vocab;
    for (int i = 0; i < ids->n; i++)
        if (ids->v[i] < 0 || ids->v[i] >= vocab) {
            char *line = xasprintf("%s token %d is %d: expected 0 to %d", name, i, ids->v[i],
                                   vocab - 1);
            engine_notice(engine, line);
            free(line);
            return false;
        }
    return true;
}

/* Whether all tokens of a request are ids of the vocabulary; else a notice says so. */
static bool given_exist(struct engine *engine, const struct request *rq)
{
    return ids_exist(engine, &rq->prompt, "prompt") && ids_exist(engine, &rq->given, "given");
}

/* The request's own prompt, if it fits the context. */
static bool take_prompt(const struct engine *engine, const struct request *rq, struct ids *out,
                        struct err *e)
{
    ids_cat(out, rq->prompt.v, rq->prompt.n);
    return out->n < engine->own.runtime.context ||
           err_set(e, ERR_USAGE, "the prompt has %d tokens, the context holds %d", out->n,
                   engine->own.runtime.context);
}

void engine_say(struct engine *engine, const struct request *rq)
{
    const char *text = rq->text ? rq->text : "";
    struct room r = {0};
    struct err e = {0};
    if (!given_exist(engine, rq))
        return;
    if (rq->stop_after_step == STOP_BEFORE_PROMPT) {
        number_turn(engine);
        refuse(engine, text, STOP_CANCEL, "encoding was stopped");
        return;
    }
    number_turn(engine);
    if (rq->prompt.n ? take_prompt(engine, rq, &r.prompt, &e)
                     : find_room(engine, text, rq->make_room, &r, &e)) {
        int left = engine->own.runtime.context - r.prompt.n;
        session_add(&engine->own.ses, ROLE_USER, engine->own.ses.turn, text, NULL, 0);
        if (left < room_reserve(engine->own.runtime.context)) {
            char *line = xasprintf("the context is nearly full: %d of %d tokens are left for the "
                                   "reply; /forget N leaves out the oldest N turns", left,
                                   engine->own.runtime.context);
            engine_notice(engine, line);
            free(line);
        }
        run_turn(engine, &r.prompt, rq);
    } else {
        refuse_prompt(engine, text, &e);
    }
    room_free(&r);
}

/* Whether the prompt is the one that the last reply answered. */
static bool same_prompt(const struct engine *engine, const struct ids *prompt)
{
    const struct ids *now = &engine->own.ses.lane.tok;
    return prompt->n <= now->n &&
           memcmp(prompt->v, now->v, (size_t)prompt->n * sizeof *prompt->v) == 0;
}

void engine_regen(struct engine *engine, const struct request *rq)
{
    struct session *s = &engine->own.ses;
    FREED(ids_free) struct ids prompt = {0};
    struct err e = {0};
    if (!given_exist(engine, rq))
        return;
    if (s->n_msg < 2 || s->msg[s->n_msg - 1].role != ROLE_ASSISTANT) {
        engine_notice(engine, "there is no reply to generate again");
        return;
    }
    bool ok = (rq->prompt.n ? take_prompt(engine, rq, &prompt, &e)
                            : session_render_again(s, &prompt, &e)) &&
              (prompt.n < engine->own.runtime.context ||
               err_set(&e, ERR_USAGE,
                       "the reply stays: its question needs %d tokens with its "
                       "surroundings now, the context holds %d",
                       prompt.n + 1, engine->own.runtime.context));
    if (ok) {
        if (engine->shared.set.temperature <= 0 && same_prompt(engine, &prompt))
            engine_notice(engine, "the temperature is 0: the same prompt gives the "
                                                "same reply, bit for bit; /set temperature 0.8 "
                                                "draws another");
        session_rewind(s, 1, CHANGE_REGEN);
        number_turn(engine);
        run_turn(engine, &prompt, rq);
    } else {
        engine_notice(engine, e.msg);
    }
}

void engine_forget(struct engine *engine, const struct ids *turns)
{
    FREED(ids_free) struct ids leave = {0}, all = {0}, rest = {0};
    struct err e = {0};
    for (int i = 0; i < turns->n; i++)
        if (turns->v[i] > 0 && session_has_turn(&engine->own.ses, turns->v[i]))
            ids_add(&leave, turns->v[i]);
    if (leave.n == 0)
        engine_notice(engine, "the context holds none of these turns");
    else if (session_render(&engine->own.ses, "", &all, &e) &&
             session_render_without(&engine->own.ses, &leave, "", &rest, &e))
        leave_out(engine, &leave, all.n - rest.n, rest.n, "");
    else
        engine_notice(engine, e.msg);
}
