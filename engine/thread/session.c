/* session.c - see session.h. */
#include "engine/thread/session.h"

#include "engine/past/room.h"
#include "engine/thread/load.h"

void session_init(struct session *s, struct runtime *runtime, const struct chat *chat,
                  const struct settings *set)
{
    *s = (struct session){.runtime = runtime, .chat = chat, .set = set, .lane.tap_row = -1,
                          .held.change = CHANGE_NONE};
    s->system = xstrdup("");
}

static void message_free(struct message *m)
{
    free(m->text);
    ids_free(&m->ids);
}

static void drop_held(struct session *s)
{
    ids_free(&s->held.tok);
    free(s->held.system);
    s->held = (struct held){.change = CHANGE_NONE};
}

/* Empties the live lane. */
static void empty_lane(struct session *s)
{
    lane_free(s->runtime, &s->lane);
    s->expected = 0;
}

static void drop_states(struct session *s)
{
    drop_held(s);
    pass_lock(&s->runtime->pass);
    while (s->n_point)
        lane_free(s->runtime, &s->point[--s->n_point].lane);
    while (s->n_idle)
        lane_free(s->runtime, &s->idle[--s->n_idle]);
    empty_lane(s);
    pass_unlock(&s->runtime->pass);
}

void session_free(struct session *s)
{
    drop_states(s);
    while (s->n_msg)
        message_free(&s->msg[--s->n_msg]);
    FREE(s->msg, s->turn_of, s->system);
    *s = (struct session){0};
}

void session_reset(struct session *s, const char *id)
{
    drop_states(s);
    pass_lock(&s->runtime->pass);
    kv_reset(&s->runtime->kv);
    while (s->n_msg)
        message_free(&s->msg[--s->n_msg]);
    s->turn = 0;
    s->draws = 0;
    memcpy(s->id, id, sizeof s->id);
    pass_unlock(&s->runtime->pass);
}

void session_add(struct session *s, enum role role, int turn, const char *text, const int32_t *ids,
                 int n)
{
    struct message m = {.role = role, .text = xstrdup(text)};
    ids_cat(&m.ids, ids, n);
    MAKE_ROOM(s->turn_of, s->n_msg);
    s->turn_of[s->n_msg] = turn;
    *APPEND(s->msg, s->n_msg) = m;
}

void session_set_system(struct session *s, const char *text)
{
    set_text(&s->system, text);
}

/* ---- going back ------------------------------------------------------------------------------ */

/* Notes that messages from number msg on have changed or were removed. Only the first change is
 * kept: the next prompt differs from there on. */
static void note_change(struct session *s, enum reuse_change why, int turn, int msg)
{
    struct held *h = &s->held;
    if (h->change == CHANGE_NONE || msg < h->msg) {
        h->change = why;
        h->turn = turn;
        h->msg = msg;
    }
    while (h->n_gone && h->gone[h->n_gone - 1].n_msg > msg)
        h->n_gone--;
}

static void drop_point(struct session *s, int i)
{
    lane_free(s->runtime, &s->point[i].lane);
    CUT(s->point, s->n_point, i);
}

/* Drops the oldest checkpoint, although the conversation could go back to it. */
static void give_up_point(struct session *s)
{
    struct held *h = &s->held;
    if (h->n_gone == MAX_POINTS)
        CUT(h->gone, h->n_gone, 0);
    h->gone[h->n_gone++] = (struct given_up){s->point[0].lane.seq.committed, s->point[0].n_msg};
    drop_point(s, 0);
    s->given_up++;
}

static void restore(struct session *s, struct lane *from)
{
    empty_lane(s);
    lane_fork_as(s->runtime, from, &s->lane, HOLDER_SESSION);
}

/* Frees the checkpoints behind the end of the conversation and restores the one at its end. */
static void restore_end(struct session *s)
{
    for (int i = s->n_point - 1; i >= 0; i--)
        if (s->point[i].n_msg > s->n_msg)
            drop_point(s, i);
    struct point *p = s->n_point ? &s->point[s->n_point - 1] : NULL;
    if (p && p->turn_end && p->n_msg == s->n_msg)
        restore(s, &p->lane);
    else
        empty_lane(s);
}

void session_rewind(struct session *s, int n, enum reuse_change why)
{
    int left = max_int(0, s->n_msg - n);
    if (left < s->n_msg)
        note_change(s, why, s->turn_of[s->n_msg - 1], left);
    pass_lock(&s->runtime->pass);
    while (s->n_msg > left)
        message_free(&s->msg[--s->n_msg]);
    restore_end(s);
    pass_unlock(&s->runtime->pass);
}

/* Restores the newest checkpoint if it is a turn's end, else empties the live lane. */
static void restore_newest(struct session *s)
{
    struct point *p = s->n_point ? &s->point[s->n_point - 1] : NULL;
    if (p && p->turn_end)
        restore(s, &p->lane);
    else
        empty_lane(s);
}

struct replaced session_take_messages(struct session *s)
{
    pass_lock(&s->runtime->pass);
    struct replaced old = {s->msg, s->n_msg};
    free(s->turn_of);
    s->msg = NULL;
    s->turn_of = NULL;
    s->n_msg = 0;
    pass_unlock(&s->runtime->pass);
    return old;
}

/* A reply is its ids: its text may be missing (RQ_FORK of a session without text). */
static bool message_equal(const struct message *a, const struct message *b)
{
    bool by_ids = a->role == ROLE_ASSISTANT && a->ids.n > 0;
    return a->role == b->role && (by_ids || strcmp(a->text, b->text) == 0) &&
           a->ids.n == b->ids.n &&
           (a->ids.n == 0 || memcmp(a->ids.v, b->ids.v, (size_t)a->ids.n * sizeof *a->ids.v) == 0);
}

void session_fit_states(struct session *s, struct replaced *old)
{
    int same = 0;
    while (same < old->n_msg && same < s->n_msg && message_equal(&old->msg[same], &s->msg[same]))
        same++;
    if (same < old->n_msg)
        note_change(s, CHANGE_FORK, same ? s->turn_of[same - 1] : 0, same);
    pass_lock(&s->runtime->pass);
    while (s->n_point && s->point[s->n_point - 1].n_msg > same)
        drop_point(s, s->n_point - 1);
    if (same < old->n_msg || same < s->n_msg)
        restore_newest(s);
    pass_unlock(&s->runtime->pass);
    while (old->n_msg)
        message_free(&old->msg[--old->n_msg]);
    DROP(old->msg);
}

void session_unsay(struct session *s)
{
    if (s->n_msg)
        note_change(s, CHANGE_SILENT, s->turn_of[s->n_msg - 1], s->n_msg - 1);
    pass_lock(&s->runtime->pass);
    if (s->n_msg)
        message_free(&s->msg[--s->n_msg]);
    for (int i = s->n_point - 1; i >= 0; i--)
        if (s->point[i].n_msg > s->n_msg)
            drop_point(s, i);
    pass_unlock(&s->runtime->pass);
}

void session_fork(struct session *s, const char *child)
{
    lane_park(s->runtime, &s->lane);
    pass_lock(&s->runtime->pass);
    if (s->n_idle == MAX_POINTS) {
        lane_free(s->runtime, &s->idle[0]);
        CUT(s->idle, s->n_idle, 0);
    }
    lane_fork_as(s->runtime, &s->lane, &s->idle[s->n_idle++], HOLDER_IDLE);
    memcpy(s->id, child, sizeof s->id);
    pass_unlock(&s->runtime->pass);
}

void session_mark(struct session *s, bool turn_end)
{
    if (s->lane.seq.committed == 0)
        return;
    lane_park(s->runtime, &s->lane);
    pass_lock(&s->runtime->pass);
    if (s->n_point == MAX_POINTS)
        give_up_point(s);
    struct point *p = &s->point[s->n_point++];
    p->n_msg = s->n_msg;
    p->turn_end = turn_end;
    lane_fork(s->runtime, &s->lane, &p->lane);
    pass_unlock(&s->runtime->pass);
}

bool session_reclaim(struct session *s)
{
    bool any = s->n_point || s->n_idle;
    pass_lock(&s->runtime->pass);
    if (s->n_point) {
        give_up_point(s);
    } else if (s->n_idle) {
        lane_free(s->runtime, &s->idle[0]);
        CUT(s->idle, s->n_idle, 0);
        s->given_up++;
    }
    pass_unlock(&s->runtime->pass);
    return any;
}

void session_cut_points(struct session *s, int n)
{
    pass_lock(&s->runtime->pass);
    while (s->n_point > n) {
        struct lane *lane = &s->point[--s->n_point].lane;
        FREE(lane->seq.col, lane->seq.dcol);
        ids_free(&lane->tok);
        free(lane->tap);
    }
    pass_unlock(&s->runtime->pass);
}

int session_seqs(const struct session *s, const struct seq **out, int max)
{
    int n = 0;
    out[n++] = &s->lane.seq;
    for (int i = 0; i < s->n_point && n < max; i++)
        out[n++] = &s->point[i].lane.seq;
    for (int i = 0; i < s->n_idle && n < max; i++)
        out[n++] = &s->idle[i].seq;
    return n;
}

/* ---- preparing a turn ------------------------------------------------------------------------ */

static bool put_prompt(const struct session *s, const struct message *m, int n, struct ids *out,
                       struct err *e)
{
    struct chat_style style = load_style(s->set);
    return chat_has_style(s->chat, &style, e) &&
           chat_render_in(s->chat, &style, m, n, out, e);
}

/* Renders the messages that are not `gone` (NULL: all), and `text` as one more question. */
static bool render(const struct session *s, const bool *gone, const char *text, struct ids *out,
                   struct err *e)
{
    int n = 0, context = s->runtime->context;
    struct message question = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    struct message system = {.role = ROLE_SYSTEM, .text = s->system};
    if (!chat_fits(s->chat, "the message", &question, 1, context, e) ||
        !chat_fits(s->chat, "the system prompt", &system, 1, context, e))
        return false;
    FREED(free_at) struct message *all = xcalloc((size_t)s->n_msg + 2, sizeof *all);
    if (s->system[0])
        all[n++] = system;
    for (int i = 0; i < s->n_msg; i++)
        if (!gone || !gone[i])
            all[n++] = s->msg[i];
    if (text)
        all[n++] = question;
    return put_prompt(s, all, n, out, e);
}

bool session_render(const struct session *s, const char *text, struct ids *out, struct err *e)
{
    return render(s, NULL, text, out, e);
}

bool session_render_again(const struct session *s, struct ids *out, struct err *e)
{
    FREED(free_at) bool *gone = xcalloc((size_t)s->n_msg + 1, sizeof *gone);
    gone[max_int(0, s->n_msg - 1)] = true;
    return render(s, gone, NULL, out, e);
}

static bool message_too_long(const struct session *s, int n, struct err *e)
{
    return err_set(e, ERR_USAGE,
                   "the message needs %d tokens with its surroundings, the context holds %d", n + 1,
                   s->runtime->context);
}

/* ---- room for a message ---------------------------------------------------------------------- */

/* A question and its reply. */
struct exchange {
    int first, n; /* messages */
    int turn;     /* of its reply: /regen gives the new reply a turn number of its own */
    int tokens;   /* approximate: rendered alone */
};

static int exchanges_of(const struct session *s, struct exchange *exchange)
{
    int n = 0;
    for (int i = 0; i < s->n_msg; i++) {
        if (i == 0 || s->msg[i].role == ROLE_USER)
            exchange[n++] = (struct exchange){.first = i};
        exchange[n - 1].n++;
        exchange[n - 1].turn = s->turn_of[i];
    }
    return n;
}

/* Token count of each exchange: rendered before an empty question, minus that question. */
static bool measure(const struct session *s, struct exchange *exchange, int n, struct err *e)
{
    struct message empty = {.role = ROLE_USER, .text = (char *)(uintptr_t)""};
    FREED(free_at) struct message *part = xcalloc((size_t)s->n_msg + 1, sizeof *part);
    FREED(ids_free) struct ids ids = {0};
    bool ok = put_prompt(s, &empty, 1, &ids, e);
    int frame = ids.n;
    for (int i = 0; i < n && ok; i++) {
        memcpy(part, s->msg + exchange[i].first, (size_t)exchange[i].n * sizeof *part);
        part[exchange[i].n] = empty;
        ids.n = 0;
        ok = put_prompt(s, part, exchange[i].n + 1, &ids, e);
        exchange[i].tokens = max_int(1, ids.n - frame);
    }
    return ok;
}

static void leave_out(const struct exchange *exchange, bool *gone)
{
    for (int i = 0; i < exchange->n; i++)
        gone[exchange->first + i] = true;
}

static bool choose(const struct session *s, const char *text, bool *gone,
                   struct exchange *exchange, struct room *out, struct err *e)
{
    int n = exchanges_of(s, exchange), context = s->runtime->context;
    if (!measure(s, exchange, n, e))
        return false;
    FREED(free_at) int *tokens = xcalloc((size_t)n, sizeof *tokens);
    FREED(free_at) bool *leaves = xcalloc((size_t)n, sizeof *leaves);
    const struct room_turns turns = {tokens, leaves, n, context};
    for (int i = 0; i < n; i++)
        tokens[i] = exchange[i].tokens;
    room_choose(&turns, out->n_all);
    for (;;) { /* exchanges were measured one by one: the sum may be a few tokens off */
        out->prompt.n = 0;
        for (int i = 0; i < n; i++)
            if (leaves[i])
                leave_out(&exchange[i], gone);
        if (!render(s, gone, text, &out->prompt, e))
            return false;
        int least = room_has_short(&turns) ? room_reserve(context) : room_least(context);
        if (out->prompt.n + least <= context || !room_leave_one(&turns))
            break;
    }
    for (int i = 0; i < n; i++)
        if (leaves[i])
            ids_add(&out->turns, exchange[i].turn);
    return true;
}

void room_free(struct room *r)
{
    ids_free(&r->prompt);
    ids_free(&r->turns);
}

bool session_room(const struct session *s, const char *text, struct room *out, struct err *e)
{
    *out = (struct room){0};
    bool ok = render(s, NULL, text, &out->prompt, e);
    out->n_all = out->prompt.n;
    if (ok && out->n_all + room_reserve(s->runtime->context) > s->runtime->context && s->n_msg) {
        bool *gone = xcalloc((size_t)s->n_msg, sizeof *gone);
        struct exchange *exchange = xcalloc((size_t)s->n_msg, sizeof *exchange);
        ok = choose(s, text, gone, exchange, out, e);
        FREE(gone, exchange);
    }
    return ok && (out->prompt.n < s->runtime->context || message_too_long(s, out->prompt.n, e));
}

bool session_has_turn(const struct session *s, int turn)
{
    FREED(free_at) struct exchange *exchange = xcalloc((size_t)s->n_msg + 1, sizeof *exchange);
    bool found = false;
    for (int i = 0, n = exchanges_of(s, exchange); i < n; i++)
        found |= exchange[i].turn == turn;
    return found;
}

bool session_render_without(const struct session *s, const struct ids *turns, const char *text,
                            struct ids *out, struct err *e)
{
    FREED(free_at) struct exchange *exchange = xcalloc((size_t)s->n_msg + 1, sizeof *exchange);
    FREED(free_at) bool *gone = xcalloc((size_t)s->n_msg + 1, sizeof *gone);
    for (int i = 0, n = exchanges_of(s, exchange); i < n; i++)
        if (turns_have(turns, exchange[i].turn))
            leave_out(&exchange[i], gone);
    return render(s, gone, text, out, e);
}

int session_forget(struct session *s, const struct ids *turns, int left)
{
    FREED(free_at) struct exchange *exchange = xcalloc((size_t)s->n_msg + 1, sizeof *exchange);
    int n = exchanges_of(s, exchange), found = 0, kept = 0, first = s->n_msg, turn = 0;
    pass_lock(&s->runtime->pass);
    for (int i = 0; i < n; i++) {
        bool leaves = turns_have(turns, exchange[i].turn);
        found += leaves;
        if (leaves && exchange[i].first < first) {
            first = exchange[i].first;
            turn = exchange[i].turn;
        }
        for (int k = exchange[i].first; k < exchange[i].first + exchange[i].n; k++) {
            if (leaves) {
                message_free(&s->msg[k]);
                continue;
            }
            s->turn_of[kept] = s->turn_of[k];
            s->msg[kept++] = s->msg[k];
        }
    }
    if (found) {
        note_change(s, CHANGE_FORGET, turn, first);
        s->n_msg = kept;
        while (s->n_point && s->point[s->n_point - 1].n_msg > first)
            drop_point(s, s->n_point - 1);
        restore_newest(s);
        s->expected = kept ? left : 0;
    }
    pass_unlock(&s->runtime->pass);
    return found;
}

/* ---- continuing from a state ----------------------------------------------------------------- */

struct lane *session_resident(struct session *s, const struct ids *prompt, bool draft)
{
    struct lane *best = lane_continues(s->runtime, &s->lane, prompt, draft) ? &s->lane : NULL;
    for (int i = 0; i < s->n_point; i++)
        if (lane_continues(s->runtime, &s->point[i].lane, prompt, draft) &&
            (!best || s->point[i].lane.seq.committed > best->seq.committed))
            best = &s->point[i].lane;
    return best;
}

void session_hold(struct session *s)
{
    struct held *h = &s->held;
    const struct lane *lane = &s->lane;
    h->tok.n = 0;
    ids_cat(&h->tok, lane->tok.v, lane->tok.n);
    h->cells = lane->seq.committed;
    h->swa_lo = lane->seq.swa_lo;
    set_text(&h->system, s->system);
    h->change = CHANGE_NONE;
    h->turn = h->msg = 0;
}

/* A chat format puts fewer tokens than this between two messages. A smaller distance between the
 * end of a state and the first changed token of the prompt therefore counts as none. */
enum { FRAME_TOKENS = 16 };

/* Sets r->limit: why a prompt does not reuse all of its first `same` tokens, which are unchanged.
 * LIMIT_DRAFT: a state that cannot draft holds more of them. */
static void find_limit(const struct session *s, const struct ids *prompt, int reused,
                       struct reuse *r)
{
    int window = s->runtime->kv.window, first = window_first(r->same, window);
    int undrafted = lane_continues(s->runtime, &s->lane, prompt, false) ? s->lane.seq.committed : 0;
    for (int i = 0; i < s->n_point; i++)
        if (lane_continues(s->runtime, &s->point[i].lane, prompt, false))
            undrafted = max_int(undrafted, s->point[i].lane.seq.committed);
    if (undrafted > reused) {
        r->limit = LIMIT_DRAFT;
        r->to = undrafted;
        return;
    }
    for (int i = s->held.n_gone - 1; i >= 0; i--)
        if (s->held.gone[i].cells > reused && s->held.gone[i].cells <= r->same) {
            r->limit = LIMIT_EVICTED;
            r->to = s->held.gone[i].cells;
            return;
        }
    r->limit = s->held.swa_lo > first ? LIMIT_WINDOW : LIMIT_STATE;
    r->from = r->limit == LIMIT_WINDOW ? first : reused;
    r->to = r->limit == LIMIT_WINDOW ? min_int(s->held.swa_lo, r->same) - 1 : r->same;
}

/* Why a prompt reuses this many tokens. */
static struct reuse explain(const struct session *s, const struct ids *prompt, int reused)
{
    const struct held *h = &s->held;
    struct reuse r = {.change = CHANGE_NONE, .held = h->cells};
    int most = min_int(h->cells, prompt->n - 1);
    while (r.same < most && prompt->v[r.same] == h->tok.v[r.same])
        r.same++;
    if (h->cells == 0)
        r.change = s->n_msg > 1 ? CHANGE_EMPTIED : CHANGE_FIRST;
    else if (r.same < h->cells && strcmp(h->system, s->system) != 0)
        r.change = CHANGE_SYSTEM;
    else if (r.same < h->cells && h->change != CHANGE_NONE)
        r.change = h->change;
    else if (r.same < h->cells)
        r.change = CHANGE_FORMAT;
    if (r.change == h->change)
        r.turn = h->turn;
    if (reused + FRAME_TOKENS <= r.same || (reused < r.same && r.same == h->cells))
        find_limit(s, prompt, reused, &r);
    return r;
}

struct reuse session_prepare(struct session *s, const struct ids *prompt, bool draft)
{
    struct lane *best = session_resident(s, prompt, draft);
    struct reuse why = explain(s, prompt, best ? best->seq.committed : 0);
    pass_lock(&s->runtime->pass);
    if (!best)
        empty_lane(s);
    else if (best != &s->lane)
        restore(s, best);
    s->lane.tok.n = s->expected = 0;
    ids_cat(&s->lane.tok, prompt->v, prompt->n);
    s->lane.draws = s->draws;
    s->lane.stopped = false;
    pass_unlock(&s->runtime->pass);
    return why;
}
