/* tui.c - the full screen: one loop over keys, engine events and signals.
 *
 * Only draw() draws, at most FRAME_HZ times a second and only after a change; an idle screen sleeps
 * in poll(). While text streams, events are read in batches every DRAIN_MS, not one by one, so that
 * the screen takes little time from the engine. */
#include "repl/cmd/commands.h"
#include "repl/tui/tui.h"
#include "repl/process/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum { FRAME_HZ = 30, DRAIN_MS = 10, VIEW_MS = 100, BUSY_MS = 50, HINT_MS = 4000, ANSWER_MS = 1000,
       PREFILL_MS = 150, BATCH = 2048 };

static const uint64_t MS = 1000000;

/* ---- short messages ---- */

void tui_hint(struct tui *t, const char *fmt, ...)
{
    PRINT_ARGS(t->hint, fmt);
    t->hint_until = clock_ns() + HINT_MS * MS;
    t->hint_busy = false;
    t->dirty = true;
}

void tui_hint_end(struct tui *t)
{
    t->dirty |= t->hint_until > 0;
    t->hint_until = 0;
}

void tui_note(struct tui *t, enum style st, const char *fmt, ...)
{
    char text[1024];
    PRINT_ARGS(text, fmt);
    FREED(sheet_free) struct sheet s = {.ascii = t->app->ascii};
    say_text(&s, st, text);
    transcript_sheet(&t->talk, ENTRY_NOTE, &s);
    t->dirty = true;
}

/* ---- the face ---- */

static struct tui *of(struct app *a)
{
    return a->face.state;
}

/* An answer taller than the screen says how to come to its first line. */
static void face_show(struct app *a, struct sheet *s)
{
    struct tui *t = of(a);
    bool cut = s->n_row > frame_talk_height(&t->frame, t->w, t->h);
    transcript_sheet(&t->talk, ENTRY_SHEET, s);
    if (cut)
        tui_hint(t, "PgUp scrolls back to where this begins");
    t->dirty = true;
}

static void face_notice(struct app *a, struct sheet *s)
{
    transcript_sheet(&of(a)->talk, ENTRY_NOTE, s);
    of(a)->dirty = true;
}

static void face_error(struct app *a, const struct err *e)
{
    tui_note(of(a), ST_BAD, "%s", e->msg);
}

static void face_clear(struct app *a)
{
    transcript_clear(&of(a)->talk);
    word_forget(of(a));
}

static void face_retract(struct app *a, int turn)
{
    transcript_retract(&of(a)->talk, turn);
    word_forget(of(a));
}

static void face_edit(struct app *a, const char *text)
{
    input_set(&of(a)->input, text, strlen(text));
    of(a)->focus = FOCUS_INPUT;
}

static bool face_copy(struct app *, const char *text, size_t n, struct err *e)
{
    return term_copy(text, n) ||
           err_set(e, ERR_USAGE, "terminals take at most %d bytes into their clipboard, this has "
                                 "%zu; /export writes a file", TERM_COPY_MAX, n);
}

static void face_replay_turn(struct app *a, const struct turn_row *r, const char *gone)
{
    struct transcript *talk = &of(a)->talk;
    const char *text = r->text ? r->text : "";
    if (r->is_user) {
        transcript_user(talk, r->n, text, r->text_n);
        return;
    }
    transcript_append(talk, r->n, ENTRY_REPLY, text, r->text_n);
    transcript_end(talk, r->n);
    if (r->stop != STOP_OPEN && r->stop != STOP_END)
        tui_note(of(a), ST_DIM, "stopped: %s", stop_name(r->stop));
    if (*gone)
        tui_note(of(a), ST_DIM, "turn %d: %s", r->n, gone);
}

/* ---- events ---- */

static bool is_notable(const struct reuse_view *r)
{
    return reuse_is_notable(&r->why, r->n_prompt, r->n_reused);
}

static void note_reuse(struct tui *t)
{
    FREED(buf_free) struct buf text = {0};
    reuse_text(&t->reuse.why, t->reuse.n_prompt, t->reuse.n_reused, &text);
    if (text.n)
        tui_note(t, ST_DIM, "%.900s", text.p);
}

/* Up brings the message back whose turn did not begin. */
static void refuse(struct tui *t)
{
    const struct buf *asked = &t->app->asked;
    free(t->refused);
    t->refused = asked->n ? xasprintf("%.*s", (int)asked->n, asked->p) : NULL;
}

static void end_turn(struct tui *t, const struct event *ev)
{
    const char *dot = t->app->ascii ? " | " : " · ";
    transcript_end(&t->talk, ev->turn);
    t->total = 0;
    if (ev->reason == STOP_CANCEL)
        tui_note(t, ST_DIM, "stopped; what is written is kept");
    else if (ev->reason == STOP_CONTEXT && ev->n_tokens == 0)
        refuse(t); /* the notice before this event gave reason and remedy */
    else if (ev->reason == STOP_CONTEXT)
        tui_note(t, ST_WARN, "stopped: the context is full; /forget N leaves out the oldest N "
                             "turns, /clear begins anew");
    else if (ev->reason != STOP_END)
        tui_note(t, ST_WARN, "stopped: %s", stop_name(ev->reason));
    if (t->have_view && t->now.chat.settings.verbose)
        tui_note(t, ST_DIM, "%d token%s%s%.1f t/s%s%d step%s, %d of %d drafted accepted%s"
                 "prompt %d (%d reused) in %.0f ms", ev->n_tokens,
                 plural(ev->n_tokens), dot, reply_tok_s(ev->n_tokens, ev->us_decode), dot,
                 ev->n_steps, plural(ev->n_steps),
                 ev->n_accepted, ev->n_drafted, dot, t->reuse.n_prompt, t->reuse.n_reused,
                 (double)ev->us_prefill / 1e3);
    if (t->have_view && t->now.chat.settings.verbose && !is_notable(&t->reuse))
        note_reuse(t);
}

static void fault(struct tui *t, const struct event *ev)
{
    FREED(buf_free) struct buf next = {0};
    tui_note(t, ST_BAD, "%.900s", ev->text.p ? ev->text.p : "a fault");
    app_fault_next(t->app, &ev->at, &next);
    if (next.n)
        tui_note(t, ST_TEXT, "look: %s", next.p);
    if (!ev->lost || t->last_words.n)
        return;
    app_last_words(t->app, ev, &t->last_words);
    t->exit_code = ev->fault;
    t->quit = true;
}

static void note_op(struct tui *t, const struct event *ev)
{
    FREED(buf_free) struct buf line = {0};
    if (ev->op != OP_FORCE)
        return;
    app_forced_line(t->app, ev, &line);
    tui_note(t, ST_DIM, "%.900s", buf_text(&line));
}

/* The reply goes on after a pause: what was asked meanwhile stays above its text. */
static void go_on(struct tui *t, int turn)
{
    transcript_go_on(&t->talk, turn);
    if (t->word.w)
        t->word.entry = t->talk.cursor;
    t->was_paused = false;
}

static void take_event(struct tui *t, const struct event *ev)
{
    app_event(t->app, ev);
    switch (ev->kind) {
    case EV_TURN_BEGIN:
        transcript_user(&t->talk, ev->turn, buf_text(&ev->text), ev->text.n);
        t->turn_ns = clock_ns();
        t->was_paused = false;
        t->reuse = (struct reuse_view){ev->reuse, ev->n_tokens, ev->n_reused};
        if (is_notable(&t->reuse))
            note_reuse(t); /* explains the wait */
        break;
    case EV_PREFILL:
        t->done = ev->done;
        t->total = ev->done < ev->total ? ev->total : 0;
        break;
    case EV_TEXT:
        if (t->was_paused)
            go_on(t, ev->turn);
        transcript_append(&t->talk, ev->turn, ev->channel == 0 ? ENTRY_REPLY : ENTRY_THINK,
                          buf_text(&ev->text), ev->text.n);
        t->total = 0;
        break;
    case EV_TURN_END: end_turn(t, ev); break;
    case EV_NOTICE: tui_note(t, ST_DIM, "%.900s", buf_text(&ev->text)); break;
    case EV_FAULT: fault(t, ev); break;
    case EV_PAUSE:
        t->was_paused = true;
        app_show_pause(t->app);
        break;
    case EV_PROBE: app_show_probe(t->app, ev); break;
    case EV_WHAT_IF: app_show_what_if(t->app, ev); break;
    case EV_JOB_BEGIN: case EV_JOB_STEP: case EV_JOB_END: break; /* `aerie serve` only */
    case EV_OP: note_op(t, ev); break;
    default: replies_event(t, ev); break;
    }
    time_event(t, ev);
    t->view_old = true;
}

/* Handles the events in the engine's queue. If there were any, the next batch is read DRAIN_MS
 * later. */
static void drain(struct tui *t)
{
    struct event ev;
    int n = 0;
    uint64_t now = clock_ns();
    if (now < t->drain_ns)
        return;
    while (n < BATCH && app_next(t->app, &ev)) {
        take_event(t, &ev);
        event_free(&ev);
        n++;
    }
    if (n > 0) {
        t->dirty = true;
        t->drain_ns = now + DRAIN_MS * MS;
    }
}

/* ---- the user's messages and commands ---- */

static void queue(struct tui *t, char *text)
{
    bool message = text[0] != '/' || text[1] == '/'; /* takes the attached files along */
    struct attached none = {0};
    app_attached(t->app);
    MAKE_ROOM(t->queued_files, t->n_queued);
    t->queued_files[t->n_queued] = message ? t->app->attached : none;
    if (message)
        t->app->attached = none;
    *APPEND(t->queued, t->n_queued) = text;
}

/* Attaches the files of a queued message again, before those attached since. */
static void attach_again(struct app *a, struct attached *files)
{
    if (files->n == 0) {
        free(files->file);
        return;
    }
    for (int i = 0; i < a->attached.n; i++)
        *APPEND(files->file, files->n) = a->attached.file[i];
    free(a->attached.file);
    a->attached = *files;
}

char *tui_unqueue(struct tui *t)
{
    t->n_queued--;
    attach_again(t->app, &t->queued_files[t->n_queued]);
    return t->queued[t->n_queued];
}

void tui_work(struct tui *t, bool on)
{
    term_interruptible(on);
    t->spent |= !on && interrupt_waits();
}

/* Runs a command. It is shown as typed, above its result; a pane that covers both is closed. */
static const struct cmd *named(const char *text)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 1, " \t\n"), text + 1);
    return cmd_find(name, NULL);
}

static void note_stepped(struct tui *t, const char *text)
{
    const struct cmd *c = named(text);
    set_text(&t->stepped, c && (c->flags & CMD_REPEATS) ? text : NULL);
}

static void run_now(struct tui *t, const char *text)
{
    struct err e = {0};
    bool command = text[0] == '/' && text[1] != '/';
    if (!command && t->app->at.turn)
        time_go(t, -1); /* a message continues the present: show it */
    if (command) {
        struct layout l;
        note_stepped(t, text);
        transcript_user(&t->talk, 0, text, strlen(text));
        tui_layout(t, t->n_open, &l);
        while (l.pane_only && t->n_open > 0)
            tui_pane_close(t, 0);
    }
    t->app->face.width = t->talk.width;
    tui_work(t, true);
    DROP(t->refused);
    if (!app_input(t->app, text, &e)) {
        app_error(t->app, &e);
        t->refused = command ? NULL : xstrdup(text);
    }
    tui_work(t, false);
    const struct cmd *c = command ? named(text) : NULL;
    if (!c || !(c->flags & CMD_SEEKS))
        time_seen(t);
    transcript_to_tail(&t->talk);
    t->view_old = t->dirty = true;
}

static bool may_run_now(const char *text)
{
    if (text[0] != '/' || text[1] == '/')
        return false;
    const struct cmd *c = named(text);
    return !c || !(c->flags & CMD_WAITS); /* an unknown command fails at once */
}

void tui_submit(struct tui *t, char *text)
{
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\n", text[n - 1]))
        text[--n] = '\0';
    bool any = n > 0 || app_attached(t->app) > 0;
    if (any && t->busy && !may_run_now(text)) {
        queue(t, text);
        t->dirty = true;
        return;
    }
    if (any)
        run_now(t, text);
    t->busy = backend_busy(t->app->backend);
    free(text);
}

static void send_queued(struct tui *t)
{
    t->busy = backend_busy(t->app->backend);
    while (!t->busy && t->n_queued > 0 && !t->app->quit) {
        char *text = t->queued[0];
        struct attached since = t->app->attached;
        t->app->attached = t->queued_files[0];
        t->n_queued--;
        memmove(t->queued, t->queued + 1, (size_t)t->n_queued * sizeof *t->queued);
        memmove(t->queued_files, t->queued_files + 1,
                (size_t)t->n_queued * sizeof *t->queued_files);
        tui_submit(t, text);
        attach_again(t->app, &since); /* files attached since belong to the next message */
    }
}

/* ---- drawing ---- */

static void update_view(struct tui *t, uint64_t now)
{
    if (!t->view_old && t->have_view)
        return;
    if (t->have_view && t->busy && now - t->view_ns < VIEW_MS * MS)
        return;
    app_look(t->app, &t->now);
    t->now.single_keys = t->single_keys;
    if (t->now.chat.settings.think != t->think || !t->have_view) {
        t->think = t->now.chat.settings.think;
        transcript_set_think(&t->talk, t->think);
    }
    t->have_view = true;
    t->view_old = t->busy; /* so that the view is copied once more after the end of a reply */
    t->view_ns = now;
    sheet_clear(&t->status);
    app_status(t->app, &t->now, t->w - 2, &t->status);
    tui_panes_update(t);
}

/* The theme of the settings; else by COLORFGBG or the terminal's answer; else dark. */
enum theme tui_theme(const struct tui *t)
{
    enum theme said = (enum theme)t->app->opt.theme;
    if (said == THEME_AUTO && t->background_known)
        said = theme_of_color(t->background);
    if (said == THEME_AUTO)
        said = theme_of_variable(getenv("COLORFGBG"));
    return said == THEME_AUTO ? THEME_DARK : said;
}

/* What may have changed between a frame and a command that draws it again: lists and texts that
 * it borrows. */
static void frame_borrows(struct tui *t)
{
    struct frame *f = &t->frame;
    f->queued = t->queued, f->n_queued = t->n_queued;
    f->choice = t->choice, f->n_choice = t->n_choice, f->chosen = t->chosen;
    f->overlay = t->over_on ? &t->over.pane : NULL;
    f->footer = t->over_on ? t->over.footer : NULL;
    f->find = t->find.on ? &t->find.text : NULL;
    f->find_line = t->find.on ? t->find.line.p : NULL;
}

static void draw(struct tui *t, uint64_t now)
{
    struct frame *f = &t->frame;
    buf_clear(&t->files);
    if (app_attached(t->app) > 0)
        app_attached_text(t->app, &t->files);
    term_theme(tui_theme(t));
    bool reading = t->busy && t->total > 0 && now - t->turn_ns > PREFILL_MS * MS;
    time_seen(t);
    t->talk.tint = t->app->opt.tint;
    term_mouse(t->app->opt.mouse == 0);
    update_view(t, now);
    timeline_fit(&t->time.line, frame_time_cells(t->w));
    finder_update(t);
    *f = (struct frame){
        .ascii = t->app->ascii, .talk = &t->talk, .input = &t->input, .busy = t->busy,
            .paused = t->busy && t->now.pause.on,
        .status = &t->status, .n_pane = t->n_open, .focus = t->focus, .side = t->side,
            .time = tui_shows_time(t) ? &t->time.line : NULL,
        .time_at = t->app->at.turn ? time_index(t) : -1,
        .hint = t->hint_until > now ? t->hint : NULL, .done = t->done,
        .total = reading ? t->total : 0, .attached = t->files.n ? t->files.p : NULL,
        .find_in = t->find.pane,
    };
    frame_borrows(t);
    for (int i = 0; i < t->n_open; i++) {
        f->pane[i] = &t->pane[t->open[i]];
        f->weight[i] = t->weight[t->open[i]];
    }
    grid_resize(&t->grid, t->w, t->h);
    frame_draw(f, &t->grid);
    term_draw(&t->grid);
    t->frame_ns = now;
    t->dirty = false;
}

/* While long work runs: draws the last frame again, with a line about it. The backend is not asked
 * for anything. */
static void face_progress(struct app *a, const char *what, uint64_t done, uint64_t total)
{
    struct tui *t = a->face.state;
    uint64_t now = clock_ns();
    if (!what) {
        tui_hint_end(t);
        return;
    }
    if (now - t->frame_ns < BUSY_MS * MS)
        return;
    tui_hint(t, "%s: %d%%; Ctrl-C stops", what,
             (int)(total ? (double)done / (double)total * 100 : 0));
    t->frame.hint = t->hint;
    frame_borrows(t);
    frame_draw(&t->frame, &t->grid);
    term_draw(&t->grid);
    t->frame_ns = now;
}

static void resized(struct tui *t)
{
    term_size(&t->w, &t->h);
    t->dirty = t->view_old = true;
    if (t->have_view)
        tui_panes_update(t);
    tui_overlay_write(t);
}

/* ---- signals and keys ---- */

static void take_signals(struct tui *t)
{
    int sig;
    while ((sig = interrupt_next()) != 0) {
        switch (sig) {
        case SIGWINCH: resized(t); break;
        case SIGINT:
            if (!t->spent)
                tui_stop(t);
            t->spent = false;
            break;
        case SIGTSTP:
            term_suspend(false);
            resized(t);
            break;
        case SIGCONT: /* after a SIGSTOP the terminal may have the shell's modes */
            if (t->quit) /* after SIGHUP: the terminal has hung up */
                break;
            term_take();
            resized(t);
            break;
        case SIGHUP:
        case SIGTERM:
            t->exit_code = 128 + sig;
            t->quit = true;
            t->lost |= sig == SIGHUP;
            break;
        default: break;
        }
    }
}

/* Handles the keys that were read, until a signal comes: the others wait. */
static void handle_keys(struct tui *t, bool timeout)
{
    struct key k;
    t->keys_left = true;
    while (!interrupt_asked())
        if (!(t->keys_left = keys_next(&t->keys, timeout, &k)))
            return;
        else
            tui_key(t, &k);
}

/* A terminal may send without end. */
static void take_keys(struct tui *t, bool ready)
{
    static char part[65536];
    bool any = t->keys_left;
    if (any)
        handle_keys(t, false);
    for (ptrdiff_t n; ready && !interrupt_asked() && (n = term_read(part, sizeof part)) != 0;
         any = true) {
        if (n < 0) { /* hung up */
            t->quit = t->lost = true;
            t->exit_code = 128 + SIGHUP;
            return;
        }
        keys_feed(&t->keys, part, (size_t)n);
        handle_keys(t, false);
    }
    if (!any)
        handle_keys(t, true);
}

/* ---- the loop ---- */

static int ms_until(uint64_t when, uint64_t now)
{
    return when <= now ? 0 : (int)((when - now + MS - 1) / MS);
}

static void sooner(int *timeout, int ms)
{
    if (*timeout < 0 || ms < *timeout)
        *timeout = ms;
}

static uint64_t next_frame(const struct tui *t)
{
    return t->frame_ns + 1000 * MS / FRAME_HZ;
}

/* Milliseconds that poll() may sleep; -1: without limit. */
static int idle_time(const struct tui *t, uint64_t now)
{
    int timeout = t->keys_left ? 0 : keys_wait(&t->keys);
    if (t->dirty)
        sooner(&timeout, ms_until(next_frame(t), now));
    if (t->drain_ns > now)
        sooner(&timeout, ms_until(t->drain_ns, now));
    if (t->busy) /* no event is posted when the backend becomes idle: poll */
        sooner(&timeout, BUSY_MS);
    if (t->view_old) {
        uint64_t due = t->view_ns + VIEW_MS * MS, frame = next_frame(t);
        sooner(&timeout, ms_until(due > frame ? due : frame, now));
    }
    if (t->hint_until > 0)
        sooner(&timeout, ms_until(t->hint_until, now));
    if (t->gauge_ms)
        sooner(&timeout, ms_until(t->gauge_ns + (uint64_t)t->gauge_ms * MS, now));
    return timeout;
}

/* No event is posted when a server's metrics were read: copies the view as often as they are
 * read. */
static void watch_gauges(struct tui *t, uint64_t now)
{
    struct gauges_view v;
    if (!backend_has(t->app->backend, VIEW_GAUGES) ||
        (t->gauge_ms && now < t->gauge_ns + (uint64_t)t->gauge_ms * MS))
        return;
    t->app->backend->gauges->view(t->app->backend, &v);
    t->gauge_ms = max_int(v.ms ? v.ms : 1000, VIEW_MS);
    t->gauge_ns = now;
    t->view_old |= v.n_read + v.n_failed != t->now.gauge.n_read + t->now.gauge.n_failed;
}

/* Shows the whole message once when storing begins to fail or works again: the status line may cut
 * it. */
static void tell_saving(struct app *a)
{
    char line[256];
    bool was = a->unsaved[0] != '\0';
    if (app_saving_changed(a, line) && was != (a->unsaved[0] != '\0'))
        app_say(a, was ? ST_GOOD : ST_BAD, "%s", line);
}

static void handle_once(struct tui *t)
{
    uint64_t now = clock_ns();
    bool was_busy = t->busy;
    struct history_status log;
    struct pollfd fd[4] = {
        {.fd = STDIN_FILENO, .events = POLLIN},
        {.fd = interrupt_fd(), .events = POLLIN},
        {.fd = t->drain_ns > now ? -1 : backend_fd(t->app->backend), .events = POLLIN},
        {.fd = t->app->history ? history_fd(t->app->history) : -1, .events = POLLIN},
    };
    int n = poll(fd, 4, idle_time(t, now));
    if (n < 0 && errno != EINTR) {
        buf_printf(&t->last_words, "cannot wait for keys: %s", strerror(errno));
        t->exit_code = ERR_USAGE;
        t->quit = true;
    }
    take_signals(t);
    if (t->quit)
        return;
    bool keys = n > 0 && fd[0].revents != 0;
    if (n > 0 && fd[3].revents) { /* the log's status has changed: REC or NOT SAVED */
        history_status(t->app->history, &log);
        app_watch_log(t->app, &log);
        tell_saving(t->app);
        t->view_old = t->dirty = true;
    }
    if (keys || t->keys_left || keys_wait(&t->keys) >= 0)
        take_keys(t, keys);
    /* if the terminal does not answer, Esc no longer waits for it */
    if (now - t->asked_ns > ANSWER_MS * MS)
        t->keys.answer_due = false;
    drain(t);
    send_queued(t);
    now = clock_ns();
    watch_gauges(t, now);
    if (t->hint_until <= now || (t->hint_busy && !t->busy))
        tui_hint_end(t);
    if (was_busy != t->busy || (t->view_old && now - t->view_ns >= VIEW_MS * MS))
        t->dirty = true;
    if (t->dirty && now >= next_frame(t) && !t->lost)
        draw(t, now);
}

static void begin_screen(struct tui *t, struct app *a)
{
    /* a chat that is not logged keeps no input history either */
    bool keep = a->opt.level != LOG_OFF && !a->opt.readonly;
    t->app = a;
    t->focus = FOCUS_INPUT;
    timeline_fit(&t->time.line, 80);
    t->page_at = -1;
    t->chosen = -1;
    char *path = keep ? recall_path("history") : NULL;
    bool first = path && access(path, F_OK) != 0;
    recall_open(&t->recall, path);
    input_init(&t->input, &t->recall);
    transcript_init(&t->talk, a->ascii);
    t->talk.stop = interrupt_asked;
    t->status = (struct sheet){.ascii = a->ascii};
    tui_panes_init(t);
    a->face = (struct face){
        .show = face_show, .clear = face_clear, .retract = face_retract, .notice = face_notice,
        .replay_turn = face_replay_turn, .error = face_error, .layout = layout_set,
        .edit = face_edit, .progress = face_progress,
        .copy = face_copy, .shot = tui_shot, .state = t,
    };
    tui_greet(t, first);
}

static void end(struct tui *t)
{
    for (int i = 0; i < t->n_queued; i++) {
        free(t->queued[i]);
        attached_free(&t->queued_files[i]);
    }
    FREE(t->queued, t->queued_files, t->stepped, t->refused);
    replies_free(t);
    finder_end(t);
    buf_free(&t->find.line);
    time_free(t);
    buf_free(&t->files);
    tui_choices_clear(t);
    free(t->choice);
    tui_overlay_close(t);
    tui_panes_free(t);
    sheet_free(&t->status);
    buf_free(&t->last_words);
    transcript_free(&t->talk);
    input_free(&t->input);
    recall_close(&t->recall);
    keys_free(&t->keys);
    grid_free(&t->grid);
    t->app->face = (struct face){0};
    free(t);
}

int tui_run(struct app *a)
{
    struct err e = {0};
    struct tui *t = xcalloc(1, sizeof *t);
    if (!term_open(a->color, &e)) {
        err_print("%s", e.msg);
        free(t);
        return e.kind;
    }
    begin_screen(t, a);
    t->keys.answer_due = theme_of_variable(getenv("COLORFGBG")) == THEME_AUTO &&
                         term_ask_background();
    t->asked_ns = clock_ns();
    resized(t);
    layout_read(t, a->opt.level != LOG_OFF && !a->opt.readonly);
    draw(t, clock_ns()); /* keys act on the frame that was drawn last */
    tui_work(t, true);
    if ((a->opt.session || a->opt.resume_last) && !app_show_past(a, &e))
        app_error(a, &e);
    app_tell(a);
    if (a->log_error[0])
        app_say(a, ST_BAD, "NOT SAVED: %s", a->log_error);
    if (backend_info(a->backend)->passed)
        app_say(a, ST_WARN, "computing on the CPU: %s", backend_info(a->backend)->passed);
    tui_work(t, false);
    t->view_old = true;
    while (!t->quit && !a->quit)
        handle_once(t);
    if (backend_busy(a->backend))
        backend_cancel(a->backend);
    term_close();
    if (t->last_words.n) {
        FREED(buf_free) struct buf clean = {0};
        text_sanitise(&clean, t->last_words.p, t->last_words.n, false);
        err_print("%s", clean.p);
    }
    int code = t->exit_code ? t->exit_code : app_exit_code(a);
    end(t);
    return code;
}
