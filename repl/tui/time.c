/* time.c - the time axis of the screen: the timeline and the tokens behind the words, from the
 * engine's events; and the address, which every pane and the transcript show. See tui.h. */
#include "repl/tui/tui.h"

/* ---- from events ---- */

/* A piece of the running turn's text, in the order of arrival. */
struct arrived {
    enum entry_kind kind;
    int token;      /* number in the reply of the token that produced it; -1: not known */
    size_t from, n; /* in the text of all pieces */
    size_t at;      /* in the entry's text */
};

void time_free(struct tui *t)
{
    timeline_free(&t->time.line);
    align_free(&t->time.align);
    FREE(t->time.token, t->time.piece);
    t->time = (struct time_axis){0};
}

static void begin_turn(struct time_axis *a, int turn)
{
    align_free(&a->align);
    a->turn = turn;
    a->n_token = a->n_piece = a->n_marked = 0;
    a->bytes = a->shown[0] = a->shown[1] = 0;
}

static void add_piece(struct time_axis *a, enum entry_kind kind, int token, size_t n)
{
    size_t *at = &a->shown[kind == ENTRY_THINK];
    *APPEND(a->piece, a->n_piece) = (struct arrived){kind, token, a->bytes, n, *at};
    *at += n;
    a->bytes += n;
}

static void add_text(struct time_axis *a, const struct event *ev)
{
    enum entry_kind kind = ev->channel == 0 ? ENTRY_REPLY : ENTRY_THINK;
    for (int i = 0; i < ev->ends.n; i++) {
        int n = ev->ends.v[i] - (i ? ev->ends.v[i - 1] : 0);
        if (n > 0)
            add_piece(a, kind, ev->first + i, (size_t)n);
    }
    if (ev->ends.n == 0 && ev->text.n) {
        add_piece(a, kind, -1, ev->text.n);
        align_text(&a->align, ev->text.p, ev->text.n);
    }
}

/* Adds the tokens of a step, each drafted and accepted at a depth, or the target's own. */
static void add_tokens(struct time_axis *a, const struct event *ev)
{
    const struct step_rec *r = &ev->rec;
    int at = r->pos0 + (r->kind == STEP_PREFILL ? r->rows : 1);
    for (int i = 0; i < ev->tokens.n; i++) {
        bool spec = r->kind == STEP_SPEC && r->drafted > 0, drafted = spec && i < r->accepted;
        *APPEND(a->token, a->n_token) = (struct token_mark){
            .step = ev->step, .nth = i, .id = ev->tokens.v[i], .position = at + i,
            .depth = (uint8_t)(drafted ? i + 1 : 0), .bonus = spec && !drafted};
    }
}

/* Marks bytes [from, to) of the text of all pieces, which begin in *p. */
static void mark(struct tui *t, const struct arrived *p, int token, size_t from, size_t to)
{
    struct token_mark m = t->time.token[token];
    m.from = (int)(p->at + from - p->from);
    m.to = (int)(p->at + (to < p->from + p->n ? to : p->from + p->n) - p->from);
    words_mark(&t->talk, t->time.turn, p->kind, m);
}

static void mark_known(struct tui *t)
{
    struct time_axis *a = &t->time;
    for (; a->n_marked < a->n_piece; a->n_marked++) {
        const struct arrived *p = &a->piece[a->n_marked];
        if (p->token < 0 || p->token >= a->n_token)
            break;
        mark(t, p, p->token, p->from, p->from + p->n);
    }
}

static void mark_found(void *arg, int token, size_t from, size_t to)
{
    struct tui *t = arg;
    int i = t->time.n_piece - 1;
    while (i > 0 && t->time.piece[i].from > from)
        i--;
    mark(t, &t->time.piece[i], token, from, to);
}

/* At the end of a reply whose events do not name the tokens of their text. */
static void mark_others(struct tui *t)
{
    struct time_axis *a = &t->time;
    for (int i = 0; a->align.text.n && i < a->n_token; i++) {
        size_t n;
        const char *p = backend_token(t->app->backend, a->token[i].id, &n);
        align_token(&a->align, p, n);
    }
    align_run(&a->align, mark_found, t);
    align_free(&a->align);
}

static int page_marks(const struct event *ev)
{
    int marks = 0;
    FOR_EACH(const struct page_event, p, ev->pages, ev->n_pages) {
        if (page_left_window(p) && p->holder == HOLDER_SESSION)
            marks |= MARK_WINDOW;
        else if (p->op == PAGE_FREE && p->holder != HOLDER_SESSION)
            marks |= MARK_EVICT;
    }
    return marks;
}

static uint8_t byte_of(int v)
{
    return (uint8_t)max_int(0, min_int(v, 255));
}

/* Whether a breakpoint caused the pause, and not a requested step. */
static bool at_breakpoint(struct tui *t)
{
    struct debug_view v;
    t->app->backend->debug->view(t->app->backend, &v);
    return v.broke;
}

/* The steps and tokens of a session that was resumed, from the log. */
static void load_past(struct tui *t)
{
    struct event ev;
    struct backend *b = app_past_events(t->app);
    while (b && backend_next(b, &ev)) {
        if (ev.kind != EV_SESSION)
            time_event(t, &ev);
        event_free(&ev);
    }
}

static void begin_session(struct tui *t, const struct event *ev)
{
    struct timeline *line = &t->time.line;
    if (ev->parent[0] && ev->fork_turn > 0 && !t->app->resumed)
        timeline_cut(line, ev->fork_turn);
    else
        timeline_free(line);
    load_past(t);
    bool tail = t->talk.tail;
    time_changed(t);
    if (tail) /* the answer of the command that began the session is there */
        transcript_to_tail(&t->talk);
}

void time_event(struct tui *t, const struct event *ev)
{
    struct time_axis *a = &t->time;
    switch (ev->kind) {
    case EV_SESSION: begin_session(t, ev); break;
    case EV_TURN_BEGIN: begin_turn(a, ev->turn); break;
    case EV_TEXT:
        if (ev->turn != a->turn)
            begin_turn(a, ev->turn);
        add_text(a, ev);
        break;
    case EV_STEP:
        timeline_add(&a->line, (struct moment){
            .turn = ev->turn, .step = ev->step, .kind = (uint8_t)ev->rec.kind,
                .drafted = byte_of(ev->rec.drafted),
            .accepted = byte_of(ev->rec.accepted), .n_token = byte_of(ev->tokens.n),
                .marks = (uint8_t)page_marks(ev), .piece = ev->rec.source == STEP_PIECE});
        if (ev->turn != a->turn)
            begin_turn(a, ev->turn);
        add_tokens(a, ev);
        mark_known(t);
        break;
    case EV_TURN_END:
        mark_known(t);
        mark_others(t);
        if (ev->reason == STOP_FAULT)
            timeline_mark(&a->line, ev->turn, max_int(ev->n_steps, 1), MARK_FAULT);
        break;
    case EV_PAUSE:
        if (backend_has(t->app->backend, VIEW_DEBUG) && at_breakpoint(t))
            timeline_mark(&a->line, ev->turn, ev->step, MARK_PAUSE);
        break;
    case EV_FAULT: timeline_mark(&a->line, ev->turn, max_int(ev->step, 1), MARK_FAULT); break;
    default: break;
    }
}

/* ---- the address ---- */

int time_index(const struct tui *t)
{
    const struct timeline *l = &t->time.line;
    return t->app->at.turn ? timeline_find(l, t->app->at.turn, t->app->at.step) : l->n - 1;
}

/* Brings the words of the address into view. */
static void follow(struct tui *t)
{
    struct word w;
    struct address at;
    struct layout l;
    tui_layout(t, t->n_open, &l); /* not of the frame: there may be none yet */
    int height = max_int(l.talk.h, 2);
    if (!app_address(t->app, &at.turn, &at.step))
        transcript_to_tail(&t->talk);
    else if (words_of_step(&t->talk, at.turn, at.step, &w))
        transcript_show(&t->talk, w.entry, w.row, t->talk.hide, height);
}

void time_changed(struct tui *t)
{
    t->talk.at_turn = t->app->at.turn;
    t->talk.at_step = t->app->at.step;
    t->time.seen = t->app->at;
    app_seek(t->app);
    follow(t);
    t->view_old = t->dirty = true;
    t->view_ns = 0; /* panes are drawn at once, also while a reply runs */
}

void time_seen(struct tui *t)
{
    if (t->app->at.turn != t->time.seen.turn || t->app->at.step != t->time.seen.step)
        time_changed(t);
}

void time_go(struct tui *t, int index)
{
    const struct timeline *l = &t->time.line;
    if (index < 0 || index >= l->n)
        t->app->at = (struct address){0};
    else
        t->app->at = (struct address){l->at[index].turn, l->at[index].step};
    time_changed(t);
}

bool time_key(struct tui *t, const struct key *k)
{
    const struct timeline *l = &t->time.line;
    int letter = k->code == K_CHAR && !k->ctrl && !k->alt ? (int)k->cp : 0, at = time_index(t);
    bool live = t->app->at.turn == 0;
    if (!letter || !strchr("[]{}.", letter))
        return false;
    if (l->n == 0) {
        tui_hint(t, "there is no step yet: send a message first");
        return true;
    }
    switch (letter) {
    case '[': time_go(t, max_int(live ? at : at - 1, 0)); break;
    case ']': time_go(t, live ? -1 : at + 1); break; /* behind the newest: now */
    case '{': time_go(t, timeline_turn(l, live ? l->n : at, -1)); break;
    case '}': time_go(t, live || timeline_turn(l, at, 1) == at ? -1
                      : timeline_turn(l, at, 1)); break;
    default: time_go(t, -1); break;
    }
    return true;
}

bool time_line_key(struct tui *t, const struct key *k)
{
    static const struct { enum key_code code; char same; } keys[] = {
        {K_LEFT, '['}, {K_RIGHT, ']'}, {K_UP, '{'}, {K_DOWN, '}'}, {K_PGUP, '{'}, {K_PGDN, '}'}};
    struct key as = *k;
    for (size_t i = 0; i < LEN(keys); i++)
        if (k->code == keys[i].code)
            as = (struct key){.code = K_CHAR, .cp = (uint32_t)keys[i].same};
    if (k->code == K_ENTER)
        t->focus = FOCUS_INPUT;
    else if (k->code == K_HOME || k->code == K_END)
        time_go(t, k->code == K_HOME ? 0 : t->time.line.n - 1);
    else
        return time_key(t, &as);
    return true;
}
