/* out.c - output functions of subcommands, and functions that open the log. See cli.h. */
#include "repl/cli/cli.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "kernels/utf8.h"
#include "repl/compare/rerun.h"
#include "repl/process/interrupt.h"

static struct {
    struct buf text;
    int error;  /* of the first write that failed */
    int lines;  /* 1: a terminal; 0: not; -1: not known yet */
} printed = {.lines = -1};

bool out_flush(void)
{
    if (!printed.error && printed.text.n &&
        !interrupt_write(STDOUT_FILENO, printed.text.p, printed.text.n))
        printed.error = errno;
    buf_clear(&printed.text);
    errno = printed.error;
    return !printed.error;
}

static void out_written(void)
{
    enum { MOST = 64 << 10 };
    if (printed.lines < 0)
        printed.lines = isatty(STDOUT_FILENO);
    if (printed.text.n >= MOST ||
        (printed.lines && printed.text.n && printed.text.p[printed.text.n - 1] == '\n'))
        out_flush();
}

void out_bytes(const char *bytes, size_t n)
{
    if (printed.error)
        return;
    buf_add(&printed.text, bytes, n);
    out_written();
}

void out_printf(const char *fmt, ...)
{
    FREED(buf_free) struct buf text = {0};
    if (printed.error)
        return;
    WITH_ARGS(ap, fmt, buf_vprintf(&text, fmt, ap));
    text_sanitise(&printed.text, buf_text(&text), text.n, true);
    out_written();
}

int cli_fail(const struct err *e)
{
    out_flush(); /* so that earlier output precedes the error */
    err_print("%s", e->msg[0] ? e->msg : "it failed without saying why");
    return e->kind ? (int)e->kind : ERR_USAGE;
}

void cli_complain(void *, const char *line)
{
    FREED(buf_free) struct buf clean = {0};
    cli_progress_end();
    text_sanitise(&clean, line, strlen(line), false);
    err_print("%s", buf_text(&clean));
}

/* Colours on standard output? */
static bool cli_color(const struct cli *c)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    if (c->opt.color)
        return c->opt.color == 1;
    return isatty(STDOUT_FILENO) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

int cli_width(void)
{
    struct winsize w;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 20)
        return w.ws_col;
    return 0;
}

void cli_print(const struct cli *c, struct sheet *s)
{
    FREED(buf_free) struct buf b = {0};
    FREED(sheet_free) struct sheet rows = {.ascii = s->ascii};
    sheet_append_wrapped(&rows, s, cli_width());
    sheet_to_text(&rows, cli_color(c), &b);
    if (b.n)
        out_bytes(b.p, b.n);
    sheet_clear(s);
}

void cli_print_text(const struct cli *c, const struct buf *text)
{
    FREED(sheet_free) struct sheet s = {.ascii = c->opt.ascii};
    sheet_lines(&s, ST_TEXT, buf_text(text), text->n);
    cli_print(c, &s);
}

void cli_json(struct buf *b)
{
    buf_char(b, '\n');
    out_bytes(b->p, b->n);
    buf_clear(b);
}

static struct {
    const struct cli *c;
    struct sheet sheet;
    struct buf json;
    struct printer to;
    char bracket;
} answer;

const struct printer *cli_answer(const struct cli *c, char bracket)
{
    sheet_free(&answer.sheet); /* what a command that failed left there */
    buf_free(&answer.json);
    answer.c = c;
    answer.sheet.ascii = c->opt.ascii;
    answer.to = (struct printer){&answer.sheet, c->opt.json ? &answer.json : NULL};
    answer.bracket = bracket;
    if (bracket)
        print_open(&answer.to, NULL, bracket);
    return &answer.to;
}

void cli_answer_end(void)
{
    if (answer.bracket)
        print_close(&answer.to, answer.bracket == '{' ? '}' : ']');
    if (answer.to.json)
        cli_json(&answer.json);
    else
        cli_print(answer.c, &answer.sheet);
    sheet_free(&answer.sheet);
    buf_free(&answer.json);
}

int cli_line(FILE *f, int number, struct buf *line, struct err *e)
{
    enum { MOST = 16 << 20 };
    int c;
    buf_clear(line);
    while ((c = getc_unlocked(f)) != EOF && c != '\n' && line->n <= MOST)
        buf_char(line, (char)c);
    if (ferror(f))
        err_set(e, ERR_USAGE, "cannot be read: %s", strerror(errno));
    else if (line->n > MOST)
        err_set(e, ERR_USAGE, "the line is longer than %d MiB; expected a line of JSON",
                MOST >> 20);
    else {
        bool some = c == '\n' || line->n > 0;
        if (number == 1)
            utf8_drop_mark(line);
        return some;
    }
    return -1;
}

char *cli_db_path(const struct cli *c)
{
    return c->opt.db ? xstrdup(c->opt.db) : history_default_path();
}

struct hdb *cli_open_db(const struct cli *c, struct err *e)
{
    FREED(free_at) char *path = cli_db_path(c);
    struct hdb *d = hdb_open(path, e);
    if (d && hdb_warning(d)[0] && !c->opt.quiet)
        err_print("%s", hdb_warning(d));
    return d;
}

bool cli_names_file(const char *name)
{
    return strpbrk(name, "/.") != NULL;
}

static struct hdb *open_pack_file(const char *path, struct err *e)
{
    if (access(path, F_OK) != 0)
        return FAILED(NULL, e, ERR_NEGATIVE, "%s: %s; expected a file of aerie pack, or a "
                      "session's id", path, strerror(errno));
    struct hdb *d = hdb_open(path, e);
    if (!d || hdb_packed(d))
        return d;
    hdb_close(d);
    return FAILED(NULL, e, ERR_USAGE, "%s is a session log, no pack; expected --db %s and a "
                  "session's id", path, path);
}

struct hdb *cli_open_session(const struct cli *c, const char *name, struct session_row *row,
                             struct err *e)
{
    bool file = cli_names_file(name);
    struct hdb *d = file ? open_pack_file(name, e) : cli_open_db(c, e);
    if (d && hdb_find(d, file ? "last" : name, row, e))
        return d;
    hdb_close(d);
    return NULL;
}

/* ---- stopping ---- */

bool cli_stop_open(struct stop *s, struct err *e)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    *s = (struct stop){.submitted = 1, .running = 1};
    if (!interrupt_open(caught, 3, false, NULL, e))
        return false;
    interrupt_cancels(s);
    return true;
}

void cli_stop_begin(void *stop)
{
    cli_stop_open(stop, &(struct err){0});
}

int cli_stop_close(int rc)
{
    for (int sig; (sig = interrupt_next()) != 0;)
        rc = 128 + sig;
    interrupt_close();
    return rc;
}

void cli_listen(struct backend *g, int *signal, void (*take)(void *arg, struct event *ev),
                void *arg)
{
    struct event ev;
    for (bool busy = true; busy;) {
        busy = backend_busy(g); /* asked before the queue is read, so that it has all events */
        for (int sig; (sig = interrupt_next()) != 0;)
            *signal = sig;
        if (busy && *signal) /* in each round: a cancel ends only requests submitted before it */
            backend_cancel(g);
        while (busy ? backend_wait(g, &ev, 50) : backend_next(g, &ev)) {
            take(arg, &ev);
            if (interrupt_waits())
                break;
        }
    }
}

/* ---- progress ---- */

static int status_cells; /* of the status on the line; 0: none is shown */

void cli_status(const char *text)
{
    FREED(buf_free) struct buf line = {0}, clean = {0};
    int cells;
    text_sanitise(&clean, text, strlen(text), false);
    size_t fit = text_fit(clean.p, clean.n, 70, &cells);
    buf_printf(&line, "\r%.*s%*s", (int)fit, clean.p, max_int(status_cells - cells, 0), "");
    write_fully(STDERR_FILENO, line.p, line.n);
    status_cells = max_int(status_cells, cells);
}

void cli_status_end(void)
{
    FREED(buf_free) struct buf line = {0};
    if (!status_cells)
        return;
    buf_printf(&line, "\r%*s\r", status_cells, "");
    write_fully(STDERR_FILENO, line.p, line.n);
    status_cells = 0;
}

static struct {
    uint64_t start, last;
} bar;

void cli_progress_end(void)
{
    cli_status_end();
    memset(&bar, 0, sizeof bar);
}

/* Shows no progress in the first third of a second. */
void cli_progress(void *, const char *what, uint64_t done, uint64_t total)
{
    uint64_t now = clock_ns();
    if (!bar.start)
        bar.start = now;
    if (now - bar.start < 300000000u || now - bar.last < 50000000u || !isatty(STDERR_FILENO))
        return;
    bar.last = now;
    FREED(buf_free) struct buf name = {0}, line = {0};
    text_sanitise(&name, what, strlen(what), false);
    int fit = (int)text_fit(name.p, name.n, 40, NULL);
    int part = total ? (int)((double)done / (double)total * 20) : 0;
    part = part > 20 ? 20 : part;
    buf_printf(&line, "%.*s [%.*s%.*s] %3d%%", fit, name.p, part, "####################", 20 - part,
               "....................", part * 5);
    cli_status(line.p);
}

struct rerun_how cli_rerun(const struct cli *c)
{
    struct rerun_how how = {.engine = c->opt.engine, .model_given = c->model_given,
                            .draft_given = c->draft_given, .with = c->with.v, .n_with = c->with.n,
                            .forced = c->forced};
    how.engine.progress = c->opt.quiet ? NULL : cli_progress;
    return how;
}

/* ---- a GPU that is not used ---- */

static bool file_begins(const char *path, const char *with)
{
    FREED(buf_free) struct buf text = {0};
    struct err e;
    return buf_read_file(&text, path, 1 << 16, &e) && !strncmp(buf_text(&text), with, strlen(with));
}

/* Whether there is an NVIDIA GPU, with a driver or without: by its driver's files, those of WSL
 * included, or as a display (class 03) of NVIDIA's (10de) on the PCI bus. */
static bool has_gpu(void)
{
    glob_t found = {0};
    bool has = access("/proc/driver/nvidia/version", F_OK) == 0 ||
               access("/usr/lib/wsl/lib/libcuda.so.1", F_OK) == 0;
    if (!has && glob("/sys/bus/pci/devices/*", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !has; i++) {
            FREED(free_at) char *vendor = xasprintf("%s/vendor", found.gl_pathv[i]);
            FREED(free_at) char *class = xasprintf("%s/class", found.gl_pathv[i]);
            has = file_begins(vendor, "0x10de") && file_begins(class, "0x03");
        }
    globfree(&found);
    return has;
}

void cli_tell_of_gpu(const struct app *a)
{
    const char *why = a->backend ? backend_info(a->backend)->passed : NULL;
    if (why && !a->opt.quiet && has_gpu())
        err_print("computing on the CPU: %s", why);
}
