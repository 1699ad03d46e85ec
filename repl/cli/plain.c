/* plain.c - the plain mode: reads and prints lines, without escape sequences; and `aerie run`.
 *
 * Replies and results go to standard output, everything else to standard error. Under --json every
 * line of standard output is one JSON object. The next line is read when the engine is idle, so a
 * script's lines are answered in order. Signals come through repl/process/interrupt.h: every wait
 * in this file, for a line or for a reply, also ends with a signal. */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "repl/app/report.h"
#include "repl/cli/cli.h"
#include "repl/cmd/commands.h"
#include "repl/process/interrupt.h"
#include "repl/process/reader.h"

struct plain {
    bool once;               /* aerie run: nothing but the reply on standard output */
    bool terminal;           /* lines are typed, not read from a pipe or a script */
    bool sanitise, think, verbose;
    bool mid_line;           /* the printed part of the reply does not end with a line break */
    bool broken;             /* writing to standard output failed */
    bool lost;               /* the device has failed and cannot be used any more */
    bool answered;           /* a turn ended since the last message */
    uint64_t paused;         /* number of the latest pause that was shown */
    bool interrupted;        /* by Ctrl-C, since the last line */
    int terminated;          /* the signal that ends the program, or 0 */
    enum stop_reason reason; /* of the turn that ended last */
    struct reuse_view reuse; /* of the running turn */
    struct ids forgot; /* numbers of the turns that left the context to make room, for --json */
    struct buf tail;   /* unsanitised bytes of the reply's last character and its marks */
    struct buf text;   /* of the reply, to be written after the last waiting event was handled */
    struct buf thought;      /* reasoning, for --json */
};

static struct plain *plain_of(const struct app *a)
{
    return a->face.state;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Without SA_RESTART, so that a signal interrupts a write to a pipe that nobody reads. */
static void catch_signals(struct app *a)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct err e;
    if (!interrupt_open(caught, 3, false, NULL, &e))
        app_error(a, &e);
}

/* Takes the waiting signals from the pipe. */
static void record_signals(struct plain *p)
{
    for (int sig; (sig = interrupt_next()) != 0;) {
        if (sig == SIGINT)
            p->interrupted = true;
        else
            p->terminated = sig;
    }
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Writing to standard output failed: ends the chat. */
static void write_failed(struct app *a, int error)
{
    plain_of(a)->broken = true;
    if (error != EPIPE && error != EINTR) /* without a message if the reader has closed the pipe */
        err_print("cannot write to standard output: %s", strerror(error));
    a->exit_code = max_int(a->exit_code, ERR_USAGE);
    a->quit = true;
    backend_cancel(a->backend);
}

static void write_bytes(struct app *a, const char *bytes, size_t n)
{
    if (!plain_of(a)->broken && !interrupt_write(STDOUT_FILENO, bytes, n))
        write_failed(a, errno);
}

static void write_text(struct app *a)
{
    struct buf *text = &plain_of(a)->text;
    write_bytes(a, text->p, text->n);
    buf_clear(text);
}

static void write_out(struct app *a, const char *bytes, size_t n)
{
    write_text(a);
    write_bytes(a, bytes, n);
}

/* Prints "aerie: text", sanitised, on standard error. */
static void print_notice(struct app *a, const char *text)
{
    struct plain *p = plain_of(a);
    FREED(buf_free) struct buf clean = {0};
    write_text(a);
    if (p->mid_line && !p->once && !a->opt.json) {
        write_out(a, "\n", 1);
        p->mid_line = false;
    }
    text_sanitise(&clean, text, strlen(text), false);
    err_print("%s", buf_text(&clean));
}

static void print_forced(struct app *a, const struct event *ev)
{
    FREED(buf_free) struct buf line = {0};
    app_forced_line(a, ev, &line);
    print_notice(a, buf_text(&line));
}

/* Failures decide the exit code, but not in a chat at a terminal, where the user has seen them. */
static void count_failure(struct app *a, int code)
{
    if (code == ERR_INVARIANT)
        a->violated = true;
    else if (!plain_of(a)->terminal || plain_of(a)->lost)
        a->exit_code = max_int(a->exit_code, code);
}

static void plain_show(struct app *a, struct sheet *s)
{
    FREED(buf_free) struct buf text = {0};
    FREED(sheet_free) struct sheet rows = {.ascii = s->ascii};
    sheet_append_wrapped(&rows, s, a->face.width);
    sheet_to_text(&rows, a->opt.color == 1, &text);
    write_out(a, text.p, text.n);
}

static void plain_json(struct app *a, const char *text)
{
    write_out(a, text, strlen(text));
    write_out(a, "\n", 1);
}

static void plain_notice(struct app *a, struct sheet *s)
{
    for (int i = 0; i < s->n_row && !a->opt.quiet; i++)
        print_notice(a, buf_text(&s->row[i].text));
}

static void plain_progress(struct app *a, const char *what, uint64_t done, uint64_t total)
{
    if (!what)
        cli_progress_end();
    else if (!a->opt.quiet)
        cli_progress(NULL, what, done, total);
}

static void plain_error(struct app *a, const struct err *e)
{
    print_notice(a, e->msg);
    count_failure(a, e->kind);
}

static void plain_clear(struct app *) {} /* printed lines cannot be taken back */

static void plain_past(struct app *a, const struct turn_row *r, const char *gone)
{
    FREED(buf_free) struct buf clean = {0};
    if (r->is_user)
        buf_str(&clean, ">>> ");
    text_sanitise(&clean, r->text ? r->text : "", r->text_n, true);
    if (clean.n == 0 || clean.p[clean.n - 1] != '\n')
        buf_char(&clean, '\n');
    if (!r->is_user && r->stop != STOP_OPEN && r->stop != STOP_END)
        buf_printf(&clean, "[stopped: %s]\n", stop_name(r->stop));
    if (!r->is_user && *gone)
        buf_printf(&clean, "[%s]\n", gone);
    write_out(a, clean.p, clean.n);
}

/* ---- a reply --------------------------------------------------------------------------------- */

static void show_text(struct app *a, const struct event *ev)
{
    struct plain *p = plain_of(a);
    FREED(buf_free) struct buf clean = {0};
    bool final = ev->channel == 0;
    if (ev->text.n == 0)
        return;
    if (a->opt.json) {
        if (!final)
            buf_add(&p->thought, ev->text.p, ev->text.n);
        return; /* the whole text comes with the end of the turn */
    }
    if (!final) { /* reasoning goes to standard error */
        write_text(a);
        text_sanitise(&clean, ev->text.p, ev->text.n, true);
        if (p->think && !a->opt.quiet && clean.n)
            write_fully(STDERR_FILENO, clean.p, clean.n);
    } else if (p->sanitise) {
        text_sanitise_next(&p->tail, ev->text.p, ev->text.n, &p->text);
    } else {
        buf_add(&p->text, ev->text.p, ev->text.n);
    }
    if (final)
        p->mid_line = ev->text.p[ev->text.n - 1] != '\n';
}

static void forgot_json(struct plain *p, struct buf *line)
{
    if (p->forgot.n == 0)
        return;
    jput_key(line, "forgotten");
    jput_ints(line, p->forgot.v, p->forgot.n);
    p->forgot.n = 0;
}

static void reply_json(struct app *a, const struct event *ev)
{
    struct plain *p = plain_of(a);
    FREED(buf_free) struct buf line = {0};
    jput_open(&line, '{');
    jput_fields(&line, "%s{session}%d{turn}%.*s{text}", ev->session, ev->turn,
                (int)ev->text.n, buf_text(&ev->text));
    if (p->thought.n) {
        jput_key(&line, "analysis");
        jput_strn(&line, p->thought.p, p->thought.n);
    }
    jput_kstr(&line, "stop", stop_name(ev->reason));
    forgot_json(p, &line);
    jput_fields(&line, "%d{prompt_tokens}%d{reused_tokens}", p->reuse.n_prompt, p->reuse.n_reused);
    report_reuse(&p->reuse, &line);
    jput_fields(&line, "%d{tokens}%d{steps}%d{drafted}%d{accepted}%lu{us_prefill}%lu{us_decode}"
                "%g{tok_s}", ev->n_tokens, ev->n_steps, ev->n_drafted, ev->n_accepted,
                ev->us_prefill, ev->us_decode, reply_tok_s(ev->n_tokens, ev->us_decode));
    jput_close(&line, '}');
    plain_json(a, line.p);
}

static void end_reply(struct app *a, const struct event *ev)
{
    struct plain *p = plain_of(a);
    char text[160], saving[256];
    /* a prompt that did not fit: a notice said so */
    const bool refused = ev->reason == STOP_CONTEXT && ev->n_tokens == 0;
    p->answered = true;
    p->reason = ev->reason;
    if (a->opt.json && a->history)
        history_flush(a->history, 5000); /* stores the reply before it is printed */
    if (app_saving_changed(a, saving)) /* also under --quiet */
        print_notice(a, saving);
    if (a->opt.json) {
        reply_json(a, ev);
    } else if (p->mid_line || (ev->text.n == 0 && !refused))
        write_out(a, "\n", 1);
    p->mid_line = false;
    p->tail.n = 0;
    if (p->verbose && !a->opt.quiet) {
        snprintf(text, sizeof text, "%d token%s at %.1f t/s; prompt %d (%d reused) in %.0f ms; "
                 "%d of %d drafted accepted", ev->n_tokens, plural(ev->n_tokens),
                 reply_tok_s(ev->n_tokens, ev->us_decode),
                 p->reuse.n_prompt, p->reuse.n_reused, (double)ev->us_prefill / 1e3,
                 ev->n_accepted, ev->n_drafted);
        print_notice(a, text);
        FREED(buf_free) struct buf why = {0};
        reuse_text(&p->reuse.why, p->reuse.n_prompt, p->reuse.n_reused, &why);
        if (why.n)
            print_notice(a, why.p);
    }
    bool fault = ev->reason == STOP_FAULT || ev->reason == STOP_DEVICE; /* EV_FAULT counted it */
    bool failed = fault || ev->reason == STOP_KV_FULL || refused;
    bool told = ev->reason == STOP_END || ev->reason == STOP_DEVICE || (a->opt.quiet && !failed) ||
                (refused && !a->opt.quiet) || p->broken;
    if (!told) {
        snprintf(text, sizeof text, "stopped: %s", stop_name(ev->reason));
        print_notice(a, text);
    }
    if (failed && !fault)
        count_failure(a, ERR_USAGE);
}

/* After a violated rule the chat goes on; if the device is lost, the chat ends. */
static void show_fault(struct app *a, const struct event *ev)
{
    struct plain *p = plain_of(a);
    FREED(buf_free) struct buf line = {0};
    if (p->lost) /* the fault was printed already */
        return;
    p->lost = ev->lost;
    if (p->lost)
        app_last_words(a, ev, &line);
    else
        buf_str(&line, ev->text.p ? ev->text.p : "a fault without a text");
    print_notice(a, line.p);
    buf_clear(&line);
    app_fault_next(a, &ev->at, &line);
    if (line.n && !a->opt.quiet && !p->once) {
        FREED(free_at) char *next = xasprintf("look: %s", line.p);
        print_notice(a, next);
    }
    if (!app_recording(a)) /* a fault of a recording happened in another process: no failure of this
                              one */
        count_failure(a, ev->fault);
    a->quit |= p->lost;
}

static void begin_reply(struct app *a, const struct event *ev)
{
    struct plain *p = plain_of(a);
    struct settings now;
    app_settings(a, &now);
    p->think = now.think;
    p->verbose = now.verbose;
    p->reuse = (struct reuse_view){ev->reuse, ev->n_tokens, ev->n_reused};
    p->mid_line = false;
    p->tail.n = p->thought.n = 0;
}

/* Results of a batch or a calibration on standard output; a batch's closing line on standard
 * error. */
static void show_report(struct app *a, const struct event *ev)
{
    FREED(buf_free) struct buf json = {0};
    FREED(sheet_free) struct sheet s = {.ascii = a->ascii};
    if (!report_event(ev, &(struct printer){&s, a->opt.json ? &json : NULL}))
        return;
    if (a->opt.json)
        plain_json(a, json.p);
    else
        (ev->kind == EV_BATCH_END ? plain_notice : plain_show)(a, &s);
}

/* `aerie run --break`: nobody can step the turn, so a line says where it would pause. */
static void pass_pause(struct app *a)
{
    struct debug_view v;
    struct err e;
    a->backend->debug->view(a->backend, &v);
    if (!a->opt.quiet)
        print_notice(a, v.why);
    a->backend->debug->run(a->backend, RUN_ON, 1, NULL, &e);
}

/* When the debugger pauses the turn: ends the printed line, so that the prompt can be shown. */
static void show_pause(struct app *a)
{
    if (plain_of(a)->once) {
        pass_pause(a);
        return;
    }
    struct plain *p = plain_of(a);
    if (p->mid_line && !a->opt.json)
        write_out(a, "\n", 1);
    p->mid_line = false;
    p->paused = app_show_pause(a);
}

static void handle_event(struct app *a, struct event *ev)
{
    app_event(a, ev);
    switch (ev->kind) {
    case EV_TURN_BEGIN: begin_reply(a, ev); break;
    case EV_TEXT: show_text(a, ev); break;
    case EV_TURN_END: end_reply(a, ev); break;
    case EV_NOTICE:
        if (!a->opt.quiet)
            print_notice(a, buf_text(&ev->text));
        break;
    case EV_FAULT: show_fault(a, ev); break;
    case EV_PAUSE: show_pause(a); break;
    case EV_PROBE: app_show_probe(a, ev); break;
    case EV_WHAT_IF: app_show_what_if(a, ev); break;
    case EV_JOB_BEGIN: case EV_JOB_STEP: case EV_JOB_END: break; /* `aerie serve` only */
    case EV_OP:
        if (ev->op == OP_FORGET)
            ids_cat(&plain_of(a)->forgot, ev->turns.v, ev->turns.n);
        if (ev->op == OP_FORCE && !a->opt.quiet)
            print_forced(a, ev);
        break;
    default: show_report(a, ev); break;
    }
    event_free(ev);
}

/* Handles events until every request is done, or until a turn is paused, the pause was shown, and
 * all requested probes are answered. Whether the engine is busy is asked before the queue is read,
 * so that the queue has all events of an idle engine. While text streams, events are handled in
 * batches of 10 ms; an event after another kind, such as a turn's first text, is handled at
 * once. */
static void wait_idle(struct app *a)
{
    enum { AT_ONCE = 1024 }; /* events between two looks at signals: a server can send without
                                end */
    struct event ev;
    for (bool waited = false;;) {
        bool busy = backend_busy(a->backend), any = false, streams = false;
        if (busy && interrupt_waits()) /* in each round: a cancel ends only earlier requests */
            backend_cancel(a->backend);
        for (int i = 0; waited || (i < AT_ONCE && app_next(a, &ev)); waited = false, i++) {
            streams = ev.kind == EV_TEXT || ev.kind == EV_STEP || ev.kind == EV_BATCH_TEXT;
            handle_event(a, &ev);
            any = true;
        }
        write_text(a);
        bool paused = a->n_want == 0 && a->n_what_if == 0 && app_paused(a) &&
                      app_paused(a) == plain_of(a)->paused;
        if (!any && (!busy || paused))
            break;
        if (streams && busy)
            backend_rest(a->backend, 10);
        else if (!any)
            waited = backend_wait(a->backend, &ev, 50);
    }
}

/* ---- input ----------------------------------------------------------------------------------- */

static void prompt(struct app *a, const char *text)
{
    if (!plain_of(a)->terminal)
        return;
    write_fully(isatty(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO, text, strlen(text));
}

static bool continues(const struct buf *b)
{
    size_t n = 0;
    while (n < b->n && b->p[b->n - 1 - n] == '\\')
        n++;
    return n % 2 == 1;
}

static void drop_last(struct buf *b, size_t n)
{
    b->n -= n;
    b->p[b->n] = '\0';
}

/* Reads lines until one ends with """. `text` begins with the text behind the opening """. */
static enum got read_block(struct app *a, struct reader *r, struct buf *text, struct err *e)
{
    for (size_t from = 0;;) {
        size_t end = text->n;
        while (end > from && strchr(" \t", text->p[end - 1]))
            end--;
        if (end >= from + 3 && memcmp(text->p + end - 3, "\"\"\"", 3) == 0) {
            drop_last(text, text->n - end + 3);
            if (text->n && text->p[text->n - 1] == '\n')
                drop_last(text, 1);
            return GOT_LINE;
        }
        buf_char(text, '\n');
        from = text->n;
        prompt(a, "... ");
        enum got g = reader_line(r, text, e);
        if (g == GOT_END)
            return FAILED(GOT_ERROR, e, ERR_USAGE, "the input ended inside \"\"\"; a line that "
                          "ends with \"\"\" closes it");
        if (g != GOT_LINE)
            return g;
    }
}

/* Reads one message or command: a line, lines joined by \, or a """ block. A block is never a
 * command: its leading slash is doubled, as app_input() expects. */
static enum got read_message(struct app *a, struct reader *r, struct buf *out, struct err *e)
{
    FREED(buf_free) struct buf line = {0};
    enum got g = reader_line(r, &line, e);
    while (g == GOT_LINE && continues(&line)) {
        line.p[line.n - 1] = '\n';
        prompt(a, "... ");
        g = reader_line(r, &line, e);
        if (g == GOT_END) {
            drop_last(&line, 1);
            g = GOT_LINE;
            break;
        }
    }
    char *open = g == GOT_LINE ? strstr(line.p, "\"\"\"") : NULL;
    bool command = g == GOT_LINE && line.p[0] == '/';
    if (open && (open == line.p || command)) {
        FREED(buf_free) struct buf text = {0};
        buf_str(&text, open + 3);
        g = read_block(a, r, &text, e);
        if (command)
            buf_add(out, line.p, (size_t)(open - line.p));
        else if (text.p[0] == '/')
            buf_char(out, '/');
        buf_add(out, text.p, text.n);
    } else if (g == GOT_LINE) {
        buf_str(out, line.p);
    }
    return g;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void error_json(struct app *a, const struct err *e)
{
    FREED(buf_free) struct buf line = {0};
    jput_record(&line, "%s{error}%d{code}", e->msg, e->kind);
    plain_json(a, line.p);
}

static void run_line(struct app *a, const char *line)
{
    struct err e = {0};
    if (line[strspn(line, " \t\n")] == '\0' && app_attached(a) == 0)
        return;
    a->face.width = cli_width(); /* the terminal may have another size by now */
    bool ok = app_input(a, line, &e), command = line[0] == '/' && line[1] != '/';
    if (!ok) {
        if (a->opt.json && !command) /* a command has printed its error as JSON */
            error_json(a, &e);
        app_error(a, &e);
    }
    wait_idle(a);
}

/* Acts on the signals that came. waiting: no line was read. True: stop reading. */
static bool handle_signals(struct app *a, bool waiting)
{
    struct plain *p = plain_of(a);
    record_signals(p);
    bool interrupted = p->interrupted;
    p->interrupted = false;
    if (p->terminated || (interrupted && !p->terminal)) { /* an interrupt ends a script */
        a->exit_code = 128 + (p->terminated ? p->terminated : SIGINT);
        return true;
    }
    if (interrupted && waiting && app_paused(a)) { /* ends the paused turn, as a running one */
        backend_cancel(a->backend);
        wait_idle(a);
    } else if (interrupted && waiting) {
        prompt(a, "\n");
        print_notice(a, "Ctrl-D or /bye leaves");
    }
    return false;
}

/* Prints the names of attached files or that a turn is paused, then ">>> ". */
static void prompt_message(struct app *a)
{
    FREED(buf_free) struct buf names = {0}, clean = {0};
    if (app_attached(a) > 0) {
        app_attached_text(a, &names);
        buf_char(&clean, '[');
        text_sanitise(&clean, names.p, names.n, false);
        buf_str(&clean, "] ");
    }
    if (app_recording(a)) {
        struct chat_view v;
        backend_chat(a->backend, &v);
        buf_printf(&clean, "(%d.%d) >>> ", v.turn, v.step);
    } else {
        buf_str(&clean, app_paused(a) ? "(paused) >>> " : ">>> ");
    }
    prompt(a, clean.p);
}

static void read_all(struct app *a, struct reader *r)
{
    while (!a->quit) {
        FREED(buf_free) struct buf line = {0};
        struct err e = {0};
        prompt_message(a);
        enum got g = read_message(a, r, &line, &e);
        if (g == GOT_LINE)
            run_line(a, buf_text(&line));
        if (g == GOT_ERROR)
            app_error(a, &e);
        if (g == GOT_END && plain_of(a)->terminal && reader_hung_up(r))
            a->exit_code = 128 + SIGHUP;
        else if (g == GOT_END)
            prompt(a, "\n");
        if (handle_signals(a, g == GOT_SIGNAL) || g == GOT_END)
            break;
    }
}

/* If a script ends while a turn is paused, lets the turn run to its end. */
static void finish_paused(struct app *a)
{
    struct err e;
    if (plain_of(a)->terminal || app_recording(a) || a->quit || plain_of(a)->terminated ||
        !app_paused(a) || !a->backend->debug->run(a->backend, RUN_FINISH, 1, NULL, &e))
        return;
    wait_idle(a);
}

static void plain_begin(struct app *a, struct plain *p)
{
    bool out_terminal = isatty(STDOUT_FILENO);
    p->sanitise = a->opt.sanitize != 2 || out_terminal;
    a->face = (struct face){
        .show = plain_show,
        .json = a->opt.json ? plain_json : NULL,
        .clear = plain_clear,
        .replay_turn = a->opt.json ? NULL : plain_past,
        .notice = plain_notice,
        .error = plain_error,
        .progress = plain_progress,
        .state = p,
        .width = cli_width(),
    };
    catch_signals(a);
    if (a->opt.sanitize == 2 && out_terminal && !a->opt.quiet)
        print_notice(a,
                     "--sanitize never holds for pipes and files only: a terminal stays protected");
    if (a->log_error[0]) { /* also under --quiet: no message will be stored */
        char line[300];
        snprintf(line, sizeof line, "NOT SAVED: %s", a->log_error);
        print_notice(a, line);
    }
    app_tell(a);
}

static int plain_end(struct app *a, struct plain *p)
{
    record_signals(p);
    if (p->terminated) /* perhaps while text was written, before a line was read */
        a->exit_code = 128 + p->terminated;
    buf_free(&p->tail);
    buf_free(&p->text);
    buf_free(&p->thought);
    ids_free(&p->forgot);
    interrupt_leave();
    a->face = (struct face){0};
    return app_exit_code(a);
}

/* The events of a recording's past are not shown: the commands show any step of it. */
static void welcome_recording(struct app *a, struct plain *p)
{
    struct event ev;
    struct step_range held = {0};
    struct chat_view v;
    while (backend_next(a->backend, &ev)) {
        app_event(a, &ev);
        event_free(&ev);
    }
    if (!p->terminal || a->opt.json || a->opt.quiet)
        return;
    backend_chat(a->backend, &v);
    if (a->backend->steps)
        a->backend->steps->range(a->backend, &held);
    err_note("a recording of session %s: %d turn%s, %llu step%s; /goto %d.1, /step, /rstep and "
             "/until move in it, /help lists the commands",
             backend_info(a->backend)->recording, v.turn, plural(v.turn),
             (unsigned long long)held.n, plural((long long)held.n), max_int(1, held.first_turn));
}

/* The same of a session that was run again (aerie replay --goto). */
static void skip_early(struct app *a)
{
    struct event ev;
    while (a->early_next < a->n_early && app_next(a, &ev)) {
        app_event(a, &ev);
        event_free(&ev);
    }
}

static void welcome(struct app *a, struct plain *p)
{
    const struct backend_info *i = backend_info(a->backend);
    struct err e = {0};
    if (app_recording(a)) {
        welcome_recording(a, p);
        return;
    }
    if (!p->terminal || a->opt.json) {
        cli_tell_of_gpu(a);
        return;
    }
    if (!a->opt.quiet)
        err_note("aerie %s, %s on %s; /help lists the commands", AERIE_VERSION,
                 i->family ? i->family : "an unnamed model",
                 i->device ? i->device : "an unknown device");
    if (!a->opt.quiet && i->passed)
        err_note("computing on the CPU: %s", i->passed);
    if (a->turn && !app_show_past(a, &e))
        app_error(a, &e);
}

int plain_run(struct app *a)
{
    struct plain p = {0};
    struct reader r = {.fd = STDIN_FILENO};
    const char *script = a->opt.script && strcmp(a->opt.script, "-") != 0 ? a->opt.script : NULL;
    p.terminal = !script && isatty(STDIN_FILENO);
    plain_begin(a, &p);
    struct err e = {0};
    if (script && (r.fd = reader_open(script, "script", &e)) < 0) {
        app_error(a, &e);
        return plain_end(a, &p);
    }
    if (!app_recording(a)) {
        skip_early(a);
        wait_idle(a);
    }
    welcome(a, &p);
    read_all(a, &r);
    finish_paused(a);
    if (script)
        close(r.fd);
    buf_free(&r.in);
    return plain_end(a, &p);
}

/* ---- aerie run ------------------------------------------------------------------------------- */

static bool read_whole_prompt(struct app *a, const char *given, struct buf *out, struct err *e)
{
    const char *file = a->opt.file && strcmp(a->opt.file, "-") != 0 ? a->opt.file : NULL;
    bool piped = a->opt.file && !file; /* -f - */
    bool from_stdin = given ? strcmp(given, "-") == 0 : piped || !isatty(STDIN_FILENO);
    if (!from_stdin && !given && !file)
        return err_set(e, ERR_USAGE, "no prompt, for example: aerie run \"count to ten\"");
    if (from_stdin && !reader_all(out, e))
        return false;
    if (!from_stdin && given)
        buf_str(out, given);
    FREED(buf_free) struct buf in = {0};
    if (!from_stdin && piped && !reader_all(&in, e))
        return false;
    if (in.n) {
        buf_str(out, out->n ? "\n\n" : "");
        buf_add(out, in.p, in.n);
    }
    return !file || reader_file(file, out, e);
}

static int once_code(const struct app *a, const struct plain *p)
{
    if (p->terminated)
        return 128 + p->terminated;
    if (p->broken || !p->answered)
        return max_int(app_exit_code(a), ERR_USAGE);
    return p->reason == STOP_CANCEL ? 128 + SIGINT : a->exit_code;
}

int run_once(struct app *a, const char *given)
{
    struct plain p = {.once = true};
    FREED(buf_free) struct buf text = {0};
    struct err e = {0};
    plain_begin(a, &p);
    cli_tell_of_gpu(a);
    if (read_whole_prompt(a, given, &text, &e) && app_send(a, buf_text(&text), &e)) {
        wait_idle(a);
        record_signals(&p);
        a->exit_code = once_code(a, &p);
    } else {
        if (a->opt.json)
            error_json(a, &e);
        app_error(a, &e);
        record_signals(&p);
        if (p.interrupted || p.terminated)
            a->exit_code = 128 + (p.terminated ? p.terminated : SIGINT);
    }
    return plain_end(a, &p);
}
