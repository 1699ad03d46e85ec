/* serve.c - `aerie serve`: opens log and engine as the chat does, and serves requests until a
 * signal comes. The first one ends running replies, the second the program. */
#include "repl/cli/cli.h"

#include <arpa/inet.h>
#include <signal.h>

#include "models/checkpoint/hub.h"
#include "repl/process/interrupt.h"
#include "repl/process/isolate.h"
#include "repl/http/serve.h"

static bool is_loopback(const char *host)
{
    struct in_addr a4;
    struct in6_addr a6;
    if (inet_pton(AF_INET, host, &a4) == 1)
        return ntohl(a4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &a6) == 1 && IN6_IS_ADDR_LOOPBACK(&a6);
}

/* The key in the file's first line; the caller frees. */
static bool read_key(const char *path, char **out, struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    *out = NULL;
    if (!path)
        return true;
    if (!buf_read_file(&b, path, 64 << 10, e))
        return err_prefix(e, "--api-key-file");
    size_t n = strcspn(buf_text(&b), "\r\n");
    if (n)
        *out = xasprintf("%.*s", (int)n, b.p);
    return n > 0 || err_set(e, ERR_USAGE, "--api-key-file: %s: the first line is empty; "
                                          "expected the key", path);
}

static bool given(const struct options *o, const char *setting)
{
    return o->given >> settings_index(setting) & 1;
}

#define NAME "abcdefghijklmnopqrstuvwxyz0123456789.-"

/* Whether a browser could send this as a page's origin: SCHEME://HOST[:PORT], in small letters. */
static bool is_origin(const char *s)
{
    size_t scheme = strspn(s, NAME "+");
    if (!scheme || strncmp(s + scheme, "://", 3) != 0)
        return false;
    s += scheme + 3;
    size_t host = *s == '[' ? strcspn(s, "]") + 1 : strspn(s, NAME);
    if (!host || host > strlen(s) || strspn(s, NAME "[]:") != strlen(s))
        return false;
    s += host;
    return !*s || (*s == ':' && s[1] && !s[1 + strspn(s + 1, "0123456789")]);
}

/* OpenAI's defaults, unless the command line names other values. */
static struct serve_opts serve_options(const struct cli *c, const char *model, const char *key)
{
    const struct options *o = &c->opt;
    const struct settings *s = &o->engine.settings;
    return (struct serve_opts){
        .host = c->host ? c->host : "127.0.0.1",
        .port = c->port,
        .key = key,
        .model = model,
        .temperature = given(o, "temperature") ? (float)s->temperature : 1,
        .top_p = given(o, "top_p") ? (float)s->top_p : 1,
        .top_k = given(o, "top_k") ? s->top_k : 0,
        .min_p = given(o, "min_p") ? (float)s->min_p : 0,
        .seeded = given(o, "seed"),
        .seed = (uint64_t)s->seed,
        .lanes = o->engine.lanes,
        .cors = c->cors,
    };
}

static void say(void *, const char *line)
{
    FREED(buf_free) struct buf clean = {0};
    text_sanitise(&clean, line, strlen(line), false);
    out_printf("%s\n", buf_text(&clean));
    out_flush();
}

static void say_address(const struct serve_opts *o, const struct serve *s,
                        const struct backend_info *i)
{
    bool six = strchr(o->host, ':') != NULL;
    char *line = xasprintf("%s at http://%s%s%s:%d/v1 (context %d, %d at once%s); Ctrl-C ends",
                           o->model,
                           six ? "[" : "", o->host, six ? "]" : "", serve_port(s), i->context,
                           o->lanes, o->key ? ", with a key" : "");
    say(NULL, line);
    free(line);
}

/* Prints a line when the log begins to fail, and when it works again. */
static void watch_log(struct history *h, char last[256])
{
    static enum log_room room;
    struct history_status now;
    if (!h)
        return;
    history_status(h, &now);
    if (strcmp(now.error, last) != 0)
        err_print("%s%s", now.error[0] ? "not saved: " : "the log is saved again", now.error);
    snprintf(last, 256, "%s", now.error);
    if (now.room_left > room)
        err_print("%s", now.limit);
    room = now.room_left;
}

/* Serves until a signal comes, or until the device is lost; returns the exit code. */
static int serve_until_signal(struct serve *s)
{
    enum { PATIENCE_MS = 1500, LOG_MS = 1000 };
    char log[256] = "";
    bool ending = false;
    int rc = 0;
    uint64_t until = 0, look = 0;
    while (!ending || (!serve_idle(s) && clock_ns() < until)) {
        int second = 0;
        serve_step(s, ending ? 50 : LOG_MS, interrupt_fd());
        if (clock_ns() >= look) {
            watch_log(s->history, log);
            look = clock_ns() + (uint64_t)LOG_MS * 1000000;
        }
        for (int got; (got = interrupt_next()) != 0;) {
            second = ending ? got : 0;
            rc = 128 + got;
        }
        if (second)
            break;
        if (!ending && (rc || s->lost)) {
            ending = true;
            until = clock_ns() + (uint64_t)PATIENCE_MS * 1000000;
            serve_end(s);
        }
    }
    return rc ? rc : ERR_MODEL;
}

static int serve(struct app *a, const struct serve_opts *o, struct err *e)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    if (a->log_error[0]) { /* nothing could be acknowledged */
        return FAILED(e->kind, e, ERR_DB, "%.300s; --no-log serves without a log", a->log_error);
    }
    signal(SIGPIPE, SIG_IGN);
    struct serve *s = serve_open(a->backend, a->history, o, e);
    if (!s)
        return e->kind;
    if (interrupt_open(caught, 3, false, NULL, e)) {
        isolate_from_network();
        say_address(o, s, backend_info(a->backend));
        a->exit_code = serve_until_signal(s);
    } else {
        a->exit_code = e->kind;
    }
    serve_close(s);
    interrupt_leave();
    return a->exit_code;
}

static bool check_flags(const struct cli *c, struct err *e)
{
    if (!c->opt.engine.model)
        return err_set(e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR");
    if (c->host && !is_loopback(c->host) && !c->key_file)
        return err_set(e, ERR_USAGE, "--host %.80s can be reached from other machines; expected "
                                     "--api-key-file FILE, too: the key that clients "
                                     "must send", c->host);
    if (c->cors && !is_origin(c->cors))
        return err_set(e, ERR_USAGE, "--cors cannot be \"%.80s\"; expected an origin as browsers "
                       "send it, such as http://localhost:3000", c->cors);
    return true;
}

int cli_serve(struct cli *c)
{
    struct err e = {0};
    FREED(free_at) struct app *a = xcalloc(1, sizeof *a);
    char *key = NULL, *name = NULL;
    int rc;
    c->opt.engine.lanes = c->lanes ? c->lanes : 8;
    c->opt.served = true;
    if (!c->opt.quiet)
        c->opt.engine.progress = cli_progress;
    bool ok = check_flags(c, &e) && read_key(c->key_file, &key, &e) && app_open(a, &c->opt, &e);
    cli_progress_end();
    if (ok) {
        name = c->name ? xstrdup(c->name) : hub_title(c->opt.engine.model);
        struct serve_opts o = serve_options(c, name, key);
        o.told = c->opt.verbose ? say : NULL;
        rc = serve(a, &o, &e);
        bool stored = app_close(a);
        if (e.kind)
            rc = cli_fail(&e);
        else if (!stored && rc <= ERR_USAGE)
            rc = ERR_DB;
    } else {
        rc = cli_fail(&e);
    }
    FREE(key, name);
    return rc;
}
