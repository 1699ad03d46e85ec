/* recorded.c - see recorded.h: the present, events. */
#include <unistd.h>

#include "engine/fault.h"
#include "repl/compare/facts.h"
#include "repl/recorded/parts.h"

/* ---- finding --------------------------------------------------------------------------------- */

/* The first step that is not before the address. */
static int first_from(const struct recorded *r, int turn, int step)
{
    const struct rec_step *s = r->step;
    return FIRST_NOT(i, r->n_step, s[i].turn < turn || (s[i].turn == turn && s[i].step < step));
}

int recorded_find(const struct recorded *r, int turn, int step)
{
    int i = first_from(r, turn, step);
    return i < r->n_step && r->step[i].turn == turn && r->step[i].step == step ? i : -1;
}

const struct rec_turn *recorded_turn(const struct recorded *r, int n)
{
    int at = FIRST_NOT(i, r->n_turn, r->turn[i].n < n);
    return at < r->n_turn && r->turn[at].n == n ? &r->turn[at] : NULL;
}

void recorded_tree(const struct recorded *r, const struct rec_step *s, struct tree *t)
{
    *t = (struct tree){0};
    for (int i = 0; i < s->n_node; i++)
        tree_put(t, &r->node[s->node + i], 0);
}

/* The last whole page table not after the step; NULL: there is none. */
static const struct rec_key *key_before(const struct recorded *r, int step)
{
    int n = FIRST_NOT(i, r->n_key, r->key[i].step <= step);
    return n ? &r->key[n - 1] : NULL;
}

const struct page_history *recorded_fold(struct recorded *r, int step)
{
    if (step < 0 || step >= r->n_step || !r->step[step].paged)
        return NULL;
    const struct rec_key *k = key_before(r, step);
    CHECK(k);
    bool ok = true;
    if (r->fold_at < k->step || r->fold_at > step) {
        ok = page_history_apply(&r->fold, r->keys.p + k->at, k->n, NULL);
        r->fold_at = k->step;
    }
    size_t from = r->step[r->fold_at + 1].pages, to = r->step[step + 1].pages;
    ok = ok && page_history_apply(&r->fold, r->pages.p + from, to - from, NULL);
    CHECK(ok); /* it succeeded with the same events when the log was read */
    r->fold_at = step;
    return &r->fold;
}

/* ---- the present ----------------------------------------------------------------------------- */

void recorded_place(struct recorded *r, int at, int turn, int step)
{
    r->at = at;
    r->at_turn = turn;
    r->at_step = step;
}

static void place_at_end(struct recorded *r)
{
    const struct rec_turn *last = r->n_turn ? &r->turn[r->n_turn - 1] : NULL;
    bool stepped = last && last->n_step > 0;
    recorded_place(r, r->n_step - 1, last ? last->n : 0, stepped ? r->step[r->n_step - 1].step : 0);
}

bool recorded_seek(struct backend *b, int turn, int step, struct err *e)
{
    struct recorded *r = recorded_of(b);
    r->why[0] = '\0';
    r->broke = false;
    if (turn == 0 && step == 0) {
        place_at_end(r);
        return true;
    }
    const struct rec_turn *t = recorded_turn(r, turn);
    int at = step ? recorded_find(r, turn, step) : t ? t->first - 1 : -1;
    if (!t)
        return err_set(e, ERR_NEGATIVE, "the recording has no turn %d: its turns are %d to %d",
                       turn,
                       r->n_turn ? r->turn[0].n : 0, r->n_turn ? r->turn[r->n_turn - 1].n : 0);
    if (step && at < 0)
        return err_set(e, ERR_NEGATIVE, "the recording has no step %d.%d: turn %d has %d step%s",
                       turn, step, turn, t->n_step, plural(t->n_step));
    recorded_place(r, at, turn, step);
    return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void wake(struct recorded *r)
{
    uint64_t one = 1;
    ssize_t n = write(r->base.fd, &one, sizeof one);
    (void)n; /* the counter cannot be full */
}

static void sleep_again(struct recorded *r)
{
    uint64_t count;
    ssize_t n = read(r->base.fd, &count, sizeof count);
    (void)n; /* it was 0 already */
}

void recorded_pause(struct recorded *r)
{
    r->pauses++;
    r->pause_waits = true;
    wake(r);
}

static struct event new_event(const struct recorded *r, enum event_kind kind, int turn, int step)
{
    struct event ev = {.kind = kind, .turn = turn, .step = step};
    memcpy(ev.session, r->session, sizeof ev.session);
    return ev;
}

static void begin_event(const struct recorded *r, const struct rec_turn *t, struct event *ev)
{
    FREED(ids_free) struct ids all = {0};
    int n_prompt;
    *ev = new_event(r, EV_TURN_BEGIN, t->n, 0);
    buf_add(&ev->text, t->user, t->user_n);
    ev->n_tokens = t->n_prompt;
    if (contexts_of(&r->contexts, t->n, &all, &n_prompt))
        ids_cat(&ev->tokens, all.v, min_int(all.n, t->n_prompt));
    ev->n_reused = t->n_reused;
    ev->seed = t->seed;
    ev->regen = t->regen;
    ev->reuse = t->reuse;
}

static void step_event(const struct recorded *r, const struct rec_step *s, struct event *ev)
{
    *ev = new_event(r, EV_STEP, s->turn, s->step);
    ev->rec = s->rec;
    ev->tops = tops_copy(s->tops);
    ids_cat(&ev->tokens, r->token.v + s->token, s->n_token);
    if (s->has_facts && s->n_token) {
        size_t bytes = (size_t)s->n_token * sizeof *ev->facts;
        ev->facts = memcpy(xmalloc(bytes), r->fact + s->token, bytes);
    }
    if (s->n_node) {
        ev->tree = xmalloc(sizeof *ev->tree);
        recorded_tree(r, s, ev->tree);
    }
    if (s->paged)
        page_unpack(r->pages.p + s->pages, s[1].pages - s->pages, &ev->lengths, &ev->pages,
                    &ev->n_pages, NULL);
}

static void end_event(const struct recorded *r, const struct rec_turn *t, struct event *ev)
{
    *ev = new_event(r, EV_TURN_END, t->n, t->n_step);
    ev->reason = t->stop;
    buf_add(&ev->text, t->text, t->text_n);
    ids_cat(&ev->tokens, t->reply.v, t->reply.n);
    ev->n_tokens = t->reply.n;
    ev->n_drafted = t->n_drafted;
    ev->n_accepted = t->n_accepted;
    ev->n_steps = t->n_step;
    ev->us_prefill = t->us_prefill;
    ev->us_decode = t->us_decode;
    ev->served = served_copy(t->served);
    if (t->served && t->served->generated >= 0) /* the server's count, also if it sent no ids */
        ev->n_tokens = (int)t->served->generated;
}

static void fault_event(const struct recorded *r, const struct rec_turn *t, struct event *ev)
{
    *ev = new_event(r, EV_FAULT, t->n, t->fault_step);
    ev->fault = t->rule ? ERR_INVARIANT : ERR_MODEL;
    ev->at = fault_at(t->rule);
    buf_str(&ev->text, t->fault);
}

/* Posts the events of part `part` of a turn: beginning, steps, text, the fault that stopped it,
 * end. False: the turn has no such part. */
static bool turn_event(const struct recorded *r, const struct rec_turn *t, int part,
                       struct event *ev)
{
    if (part == 0)
        begin_event(r, t, ev);
    else if (part <= t->n_step)
        step_event(r, &r->step[t->first + part - 1], ev);
    else if (part == t->n_step + 1) {
        *ev = new_event(r, EV_TEXT, t->n, t->n_step);
        buf_add(&ev->text, t->text, t->text_n);
    } else if (part == t->n_step + 2 && t->fault)
        fault_event(r, t, ev);
    else if (part == t->n_step + 2 + (t->fault != NULL))
        end_event(r, t, ev);
    else
        return false;
    return true;
}

static bool next_event(struct recorded *r, struct event *ev)
{
    if (r->next_act < 0) {
        r->next_act = 0;
        *ev = new_event(r, EV_SESSION, 0, 0);
        return true;
    }
    while (r->next_act < r->n_act) {
        const struct rec_act *a = &r->act[r->next_act];
        int part = r->next_part++;
        if (a->turn >= 0 && turn_event(r, &r->turn[a->turn], part, ev))
            return true;
        if (a->turn < 0 && part == 0) {
            *ev = new_event(r, EV_OP, a->op_turn, 0);
            ev->op = a->op;
            buf_str(&ev->text, a->op_text);
            ids_cat(&ev->turns, a->op_turns.v, a->op_turns.n);
            ev->forced = a->op_forced;
            return true;
        }
        r->next_act++;
        r->next_part = 0;
    }
    return false;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static void close_recorded(struct backend *b)
{
    struct recorded *r = recorded_of(b);
    recorded_free(r);
    for (int i = 0; i < r->n_string; i++)
        free(r->strings[i]);
    free(r->name);
    if (r->base.fd >= 0)
        close(r->base.fd);
    free(r);
}

static bool refuse(struct backend *b, struct request *rq, struct err *e)
{
    const struct recorded *r = recorded_of(b);
    request_free(rq);
    if (r->file)
        return err_set(e, ERR_USAGE, "this is a recording: nothing is computed in it. Without the "
                                     "log of session %.26s it can be played and run again (aerie "
                                     "replay --check)", r->session);
    return err_set(e, ERR_USAGE, "this is a recording: nothing is computed in it. aerie --session "
                                 "%s goes on with it, aerie --session %s --fork "
                                 "with a copy", r->name, r->name);
}

static void cancel(struct backend *)
{
}

static bool never_busy(struct backend *)
{
    return false;
}

/* Only requests produce events. */
static bool next(struct backend *b, struct event *ev)
{
    struct recorded *r = recorded_of(b);
    if (next_event(r, ev))
        return true;
    if (r->pause_waits) {
        r->pause_waits = false;
        *ev = new_event(r, EV_PAUSE, r->at_turn, r->at_step);
        buf_str(&ev->text, r->why);
        return true;
    }
    sleep_again(r);
    return false;
}

static const char *token_text(struct backend *b, int32_t id, size_t *n)
{
    const struct recorded *r = recorded_of(b);
    int at = FIRST_NOT(i, r->n_text, r->text[i].id < id);
    const struct rec_text *t = at < r->n_text && r->text[at].id == id ? &r->text[at] : NULL;
    *n = t ? t->n : 0;
    return t ? r->texts.p + t->at : "";
}

/* The chat's view at the present: sums over all steps up to it. *turn: those of the present
 * turn. */
static void count_step(const struct recorded *r, const struct rec_step *s, struct chat_view *v,
                       struct draft_sums *turn)
{
    const struct step_rec *rec = &s->rec;
    v->generated += (uint64_t)s->n_token;
    v->us_draft += rec->us_draft;
    v->us_commit += rec->us_commit;
    v->us_check += rec->us_check;
    *(rec->kind == STEP_PREFILL ? &v->us_prefill : &v->us_verify) += rec->us_verify;
    int deepest = rec->source == STEP_REPORTED ? rec->drafted : s->deepest;
    draft_sums_add(&v->drafts, rec, deepest);
    if (s->turn == r->at_turn)
        draft_sums_add(turn, rec, deepest);
}

/* Tokens a second of the present turn up to the present. */
static double speed(const struct recorded *r, const struct rec_turn *t)
{
    int64_t tokens = 0;
    uint64_t us = 0;
    if (t->served) /* the times of the pieces, and the server's count if it sent no ids */
        return reply_tok_s(t->served->generated >= 0 ? t->served->generated : t->reply.n,
                           t->us_decode);
    for (int i = t->first; i <= r->at && i < t->first + t->n_step; i++) {
        const struct rec_step *s = &r->step[i];
        tokens += s->n_token;
        if (s->rec.kind != STEP_PREFILL)
            us += s->rec.us_draft + s->rec.us_verify + s->rec.us_commit;
    }
    return reply_tok_s(tokens, us);
}

/* Adds the servers' own counts of drafts, for turns whose steps have none, and the servers'
 * times. */
static void count_served(const struct recorded *r, struct chat_view *v)
{
    for (int i = 0; i < r->n_turn && r->turn[i].n <= r->at_turn; i++) {
        const struct rec_turn *t = &r->turn[i];
        const struct served *s = t->served;
        bool whole = s && (t->n < r->at_turn || r->at + 1 >= t->first + t->n_step);
        if (!whole)
            continue;
        v->us_prefill += t->us_prefill;
        if (t->reply.n == 0 && s->generated > 0)
            v->generated += (uint64_t)s->generated;
        bool stepped = false; /* the drafts of its steps were counted one by one */
        for (int k = 0; k < t->n_step; k++)
            stepped |= r->step[t->first + k].rec.source == STEP_REPORTED;
        if (s->drafted < 0 || stepped)
            continue;
        v->drafts.drafted += (uint64_t)s->drafted;
        v->drafts.accepted += s->accepted > 0 ? (uint64_t)s->accepted : 0;
        v->drafts.cycles += s->verifies > 0 ? (uint64_t)s->verifies : 0;
    }
}

/* Reads a line of the turn's settings; lines about faults, or of other versions, are ignored. */
static void read_settings(const char *lines, struct settings *set)
{
    settings_init(set);
    for (int i = 0; i < settings_count(); i++) {
        FREED(free_at) char *value = facts_value(lines, settings_at(i)->name);
        if (value)
            settings_set(set, settings_at(i)->name, value, NULL);
    }
}

static void count_chat(struct recorded *r, struct chat_view *v)
{
    struct draft_sums turn = {0};
    *v = (struct chat_view){.turn = r->at_turn, .step = r->at_step,
                            .capacity = r->base.info.context,
                            .committed = -1};
    memcpy(v->session, r->session, sizeof v->session);
    settings_init(&v->settings);
    for (int i = 0; i <= r->at; i++)
        count_step(r, &r->step[i], v, &turn);
    count_served(r, v);
    v->session_mal = draft_sums_mal(&v->drafts);
    v->turn_mal = draft_sums_mal(&turn);
    const struct rec_turn *t = recorded_turn(r, r->at_turn);
    if (!t)
        return;
    if (turn.cycles == 0 && t->served && t->served->verifies > 0 && t->served->accepted >= 0)
        v->turn_mal = 1 + (double)t->served->accepted / (double)t->served->verifies;
    read_settings(t->settings, &v->settings);
    v->tok_s = speed(r, t);
    v->reuse = (struct reuse_view){t->reuse, t->n_prompt, t->n_reused};
    const struct page_history *h = r->at_step ? recorded_fold(r, r->at) : NULL;
    v->length = t->n_prompt;
    for (int i = t->first; i <= r->at; i++)
        v->length += r->step[i].n_token;
    if (h)
        v->committed = h->lengths.committed;
    for (int i = 0; i < r->n_turn && r->turn[i].n <= r->at_turn; i++) {
        const struct served *told = r->turn[i].served;
        v->prompt_tokens += (uint64_t)(told && told->prompt >= 0 ? told->prompt
                                       : r->turn[i].n_prompt);
        v->reused_tokens += (uint64_t)(told && told->cached > 0 ? told->cached
                                       : r->turn[i].n_reused);
    }
}

/* Kept, because faces ask for it with every frame. */
static void chat(struct backend *b, struct chat_view *v)
{
    struct recorded *r = recorded_of(b);
    if (!r->counted || r->chat.turn != r->at_turn || r->chat.step != r->at_step) {
        count_chat(r, &r->chat);
        r->counted = true;
    }
    *v = r->chat;
}

const struct backend_ops recorded_ops = {
    .close = close_recorded, .submit = refuse, .cancel = cancel, .busy = never_busy, .next = next,
    .token = token_text, .chat = chat,
};

struct recorded *recorded_of(struct backend *b)
{
    CHECK(b && b->ops == &recorded_ops);
    return (struct recorded *)b;
}

void recorded_rewind(struct backend *b)
{
    struct recorded *r = recorded_of(b);
    r->next_act = -1;
    r->next_part = 0;
}
