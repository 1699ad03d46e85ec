/* doctor.c - `aerie doctor`: one line for each thing that the program needs, with a hint if
 * something is wrong. Changes nothing. */
#include "repl/app/report.h"
#include "repl/process/open.h"
#include "repl/cli/cli.h"

#include <errno.h>
#include <langinfo.h>
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/thread/calibrate.h"
#include "engine/thread/load.h"
#include "models/models.h"
#include "repl/process/isolate.h"
#include "models/tokenizer/tokenizer.h"

enum verdict { V_OK, V_WARN, V_FAIL };

struct doctor {
    const struct cli *c;
    const struct printer *to;
    int rc;     /* of the first failure */
    int signal; /* exit code of the signal that stopped a check, or 0 */
};

__attribute__((format(printf, 6, 7)))
static void report(struct doctor *d, enum verdict v, int rc, const char *what, const char *hint,
                   const char *fmt, ...)
{
    static const char *const name[] = {"ok", "warn", "fail"};
    static const enum style style[] = {ST_GOOD, ST_WARN, ST_BAD};
    char text[1024];
    PRINT_ARGS(text, fmt);
    if (v == V_FAIL && !d->rc)
        d->rc = rc;
    const struct printer *to = d->to;
    print_add(to, style[v], "%-5s", name[v]);
    print_add(to, ST_LABEL, "%-10s ", what);
    print_note(to, ST_TEXT, "%s", text);
    if (hint)
        print_note(to, ST_DIM, "     %-10s %s", "", hint);
    print_line(to, ST_TEXT, "\f%s{check}%s{status}%s{text}%s{hint}", what, name[v], text, hint);
}

/* ---- machine ---- */

static void features(struct buf *b)
{
#if defined(__x86_64__)
#define SLOW "no AVX2: the model will be slow here"
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        buf_str(b, ", avx2 fma");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        buf_str(b, " avx512");
#else
#define SLOW "vector code is for x86-64 with AVX2 only: the model will be slow here"
    (void)b;
#endif
}

static void tell_device(void *arg, bool ok, const char *line)
{
    report(arg, ok ? V_OK : V_WARN, 0, "device", ok ? NULL : "the chat computes on the CPU", "%s",
           line);
}

static void check_isolation(struct doctor *d)
{
    struct isolated can;
    isolation_probe(&can);
    if (d->c->no_sandbox) {
        report(d, V_WARN, 0, "isolation", "the config file says no-sandbox = on",
               "off: the chat could write anywhere, run programs and use the network");
        return;
    }
    report(d, can.writes && can.programs ? V_OK : V_WARN, 0, "isolation", NULL, "%s; %s",
           can.writes ? "writes confined to aerie's folders (Landlock)" : can.writes_why_not,
           can.programs ? "no programs, no network but for servers and pull (seccomp)"
                        : can.programs_why_not);
}

static void check_machine(struct doctor *d)
{
    FREED(buf_free) struct buf b = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 0x1p30;
    features(&b);
    bool wide = b.n > 0;
    report(d, wide ? V_OK : V_WARN, 0, "cpu", wide ? NULL : SLOW,
           "%ld core%s, %.1f GiB memory%s", cores, cores == 1 ? "" : "s", gib, wide ? b.p : "");
    list_devices(tell_device, d);
    check_isolation(d);
}

/* ---- terminal ---- */

static void check_terminal(struct doctor *d)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR"), *set = nl_langinfo(CODESET);
    struct winsize w = {0};
    bool utf8 = strcmp(set, "UTF-8") == 0, tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!utf8)
        report(d, V_WARN, 0, "locale", "set LC_ALL=C.UTF-8, or use --ascii",
               "characters are %s, not UTF-8", set);
    if (!tty) {
        report(d, V_OK, 0, "terminal", NULL, "none on standard input and output: plain mode");
        return;
    }
    if (!term || !*term || strcmp(term, "dumb") == 0) {
        report(d, V_WARN, 0, "terminal", "set TERM to what your terminal is for the full screen",
               "TERM is \"%s\": plain mode", term ? term : "");
        return;
    }
    char size[32] = "size unknown";
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col)
        snprintf(size, sizeof size, "%dx%d", w.ws_col, w.ws_row);
    bool small = w.ws_col && (w.ws_col < 40 || w.ws_row < 10);
    report(d, small ? V_WARN : V_OK, 0, "terminal", small ? "the full screen wants 40x10" : NULL,
           "%s, %s, %s%s", term, size, set, no && *no ? ", NO_COLOR is set: no colours" : "");
}

/* ---- files ---- */

static void check_config(struct doctor *d)
{
    const struct cli *c = d->c;
    if (c->config_error.kind)
        report(d, V_FAIL, ERR_USAGE, "config", "mend or remove the line", "%s",
               c->config_error.msg);
    else if (c->config.p)
        report(d, V_OK, 0, "config", NULL, "%s", c->config_path);
    else
        report(d, V_OK, 0, "config", NULL, "%s is not there: defaults",
               c->config_path ? c->config_path : "no home folder: the config file");
}

static bool count_session(const struct session_row *, void *arg)
{
    ++*(int *)arg;
    return true;
}

/* Whether the nearest folder above a file that exists takes new entries; errno says why not. */
static bool can_be_made(const char *path)
{
    char *slash;
    FREED(free_at) char *folder = xstrdup(path);
    int why = ENOENT;
    while (why == ENOENT && (slash = strrchr(folder, '/'))) {
        slash[slash == folder] = '\0'; /* "/" stays */
        why = access(folder, W_OK | X_OK) == 0 ? 0 : errno;
        if (slash == folder)
            break;
    }
    errno = why;
    return !why;
}

static void check_database(struct doctor *d)
{
    struct err e = {0};
    struct stat st;
    FREED(free_at) char *path = cli_db_path(d->c);
    if (stat(path, &st) != 0) {
        if (errno != ENOENT)
            report(d, V_FAIL, ERR_DB, "database", "sessions cannot be saved",
                   "%s cannot be reached: %s", path, strerror(errno));
        else if (!can_be_made(path))
            report(d, V_FAIL, ERR_DB, "database", "sessions cannot be saved; --db or XDG_DATA_HOME "
                   "names another place", "%s cannot be made: %s", path, strerror(errno));
        else
            report(d, V_OK, 0, "database", NULL, "%s is not there yet", path);
        return;
    }
    FREED(hdb_close_at) struct hdb *h = hdb_open(path, &e);
    FREED(buf_free) struct buf lines = {0};
    int sessions = 0, turns = 0, bad = 0;
    bool ok = h && hdb_sessions(h, NULL, NULL, INT_MAX, count_session, &sessions, &e) >= 0 &&
              hdb_verify(h, "", &turns, &bad, &lines, &e);
    if (!ok)
        report(d, V_FAIL, ERR_DB, "database", "aerie db check says more; --db names another file",
               "%s", e.msg);
    else if (bad)
        report(d, V_FAIL, ERR_DB, "database", "aerie db check names the turns",
               "%s: %d of %d turns are not what was written", path, bad, turns);
    else
        report(d, V_OK, 0, "database", NULL,
               "%s, %.1f MiB, %d session%s, checksums of %d turn%s ok", path,
               (double)st.st_size / 0x1p20, sessions, plural(sessions), turns, plural(turns));
    if (st.st_mode & 077)
        report(d, V_WARN, 0, "database", "chmod 600 closes it", "others may read %s", path);
}

/* ---- models ---- */

/* On which of the target's states the head was trained; only for a head given with --draft. */
static void check_captures(struct doctor *d, struct loaded *l)
{
    struct err e = {0};
    struct calibration c;
    struct stop stop;
    const struct calib_opts o = {.l = l, .stop = &stop};
    bool ok = cli_stop_open(&stop, &e) && calibrate_run(&o, &c, &e);
    d->signal = cli_stop_close(0);
    if (!ok) {
        report(d, V_WARN, 0, "captures", NULL, "%s", e.msg);
        return;
    }
    FREED(sheet_free) struct sheet lines = {0};
    report_calibration(&c, ON_SHEET(&lines));
    for (int i = 0; i < lines.n_row; i++)
        report(d, i + 1 < lines.n_row || (c.certain && c.best == 0) ? V_OK : V_WARN, 0, "captures",
               NULL, "%s", lines.row[i].text.p);
}

/* What generation_config.json samples with, as flags: aerie's own default is greedy. */
static void report_sampling(struct doctor *d, const char *what, const struct sampling_defaults *s)
{
    FREED(buf_free) struct buf flags = {0};
    if (!s->given || s->temperature <= 0)
        return;
    buf_printf(&flags, "-p temperature=%g", (double)s->temperature);
    if (s->top_k > 0)
        buf_printf(&flags, " -p top_k=%d", s->top_k);
    if (s->top_p < 1)
        buf_printf(&flags, " -p top_p=%g", (double)s->top_p);
    if (s->min_p > 0)
        buf_printf(&flags, " -p min_p=%g", (double)s->min_p);
    report(d, V_OK, 0, what, NULL, "generation_config.json samples with %s", flags.p);
}

static void report_model(struct doctor *d, const char *what, const char *dir,
                         const struct loaded *l)
{
    const struct config *g = &l->model.cfg;
    char window[32] = "no window";
    if (g->window)
        snprintf(window, sizeof window, "window %d", g->window);
    report(d, V_OK, 0, what, NULL, "%s: %s, %d layers, %.1f MiB, %s, %d tokens", dir, g->family,
           g->n_layer, (double)l->model.bytes / 0x1p20, window, tok_vocab(l->tok));
    if (l->model.about)
        report(d, V_OK, 0, what, NULL, "%s", l->model.about);
    report_sampling(d, what, &g->sampling);
    if (l->model.note)
        report(d, V_WARN, 0, what, NULL, "%s", l->model.note);
    if (l->has_draft && l->draft.note)
        report(d, V_WARN, 0, "draft", NULL, "%s", l->draft.note);
}

/* What was found of drafts that nobody named: which one is used and where it lies, and why others
 * are not. */
static void report_found(struct doctor *d, bool used)
{
    const struct pairing *p = &d->c->pair;
    if (used && p->n)
        report(d, V_OK, 0, "draft", NULL, "%s", p->draft[0].from);
    for (int i = 1; i < p->n; i++)
        report(d, V_OK, 0, "draft", NULL, "not used: %s, %s%s%s", p->draft[i].path,
               p->draft[i].from, p->draft[i].why ? "; " : "; --draft uses it",
               p->draft[i].why ? p->draft[i].why : "");
    if (!p->n && !d->c->draft_given)
        report(d, V_OK, 0, "draft", NULL, "none was found in the model's folder, beside it or "
               "beside it in the hub's cache; --draft DIR names one");
}

/* Loads target and draft completely, as the chat does. asked: flags name one of them, else they are
 * the bundled ones. */
static void check_pair(struct doctor *d, bool asked, const char *target, const char *draft)
{
    const char *what = asked ? "model" : "bundled";
    struct err e = {0};
    struct loaded l;
    struct engine_opts o = d->c->opt.engine;
    o.model = target;
    o.draft = draft;
    o.require_draft = false;
    o.progress = d->c->opt.quiet ? NULL : cli_progress;
    bool calibrate = draft && d->c->draft_given && asked;
    bool ok = engine_load(&l, &o, LOAD_TEXT | (calibrate ? LOAD_DEVICE : 0), &e);
    cli_progress_end();
    if (!ok)
        report(d, V_FAIL, ERR_MODEL, what, NULL, "%s", e.msg);
    else
        report_model(d, what, target, &l);
    const char *why;
    if (ok && model_mappable(target, &why))
        report(d, V_OK, 0, "weights", NULL, "the CPU uses them in the mapped files");
    else if (ok)
        report(d, V_OK, 0, "weights", NULL, "the CPU copies them into memory: %s", why);
    if (ok && draft && !l.has_draft)
        report(d, V_WARN, 0, "draft", "the chat runs without drafting", "%s", l.draft_off);
    else if (ok && draft && l.draft.bytes == 0)
        report(d, V_OK, 0, "draft", NULL, "%s: a drafter without weights", l.draft.kind);
    else if (ok && draft)
        report(d, V_OK, 0, "draft", NULL, "%s: %.1f MiB", draft, (double)l.draft.bytes / 0x1p20);
    if (ok && d->c->model_given && asked)
        report_found(d, l.has_draft);
    if (calibrate && l.has_draft && l.draft.n_capture > 0)
        check_captures(d, &l);
    engine_unload(&l);
}

static void check_models(struct doctor *d)
{
    const struct cli *c = d->c;
    if (c->bundled)
        check_pair(d, false, c->target, c->draft);
    else
        report(d, c->model_given ? V_WARN : V_FAIL, ERR_MODEL, "bundled",
               "make install puts it beside the program; -m DIR names another",
               "the bundled model was not found");
    if (c->model_given)
        check_pair(d, true, c->opt.engine.model, c->opt.engine.draft);
    else if (c->draft_given && c->bundled)
        check_pair(d, true, c->target, c->opt.engine.draft);
}

static void server_line(void *arg, bool ok, const char *line)
{
    report(arg, ok ? V_OK : V_WARN, 0, "server", NULL, "%s", line);
}

static void check_kv_events(struct doctor *d)
{
    bool built;
    const char *about = kv_events_about(&built);
    report(d, V_OK, 0, "kv events", NULL, "%s%s", about, built ? " reads them (--kv-events)" : "");
}

static void check_server(struct doctor *d)
{
    struct err e;
    if (!look_at_server(&d->c->opt.engine, server_line, d, &e))
        report(d, V_FAIL, ERR_MODEL, "server", "no chat with it is possible", "%s", e.msg);
}

int cli_doctor(struct cli *c)
{
    struct doctor d = {.c = c, .to = cli_answer(c, '[')};
    report(&d, V_OK, 0, "aerie", NULL, AERIE_VERSION);
    check_machine(&d);
    check_terminal(&d);
    check_config(&d);
    check_database(&d);
    check_kv_events(&d);
    if (c->opt.engine.server.url)
        check_server(&d);
    else
        check_models(&d);
    d.rc = d.signal ? d.signal : d.rc;
    cli_answer_end();
    return d.rc;
}
