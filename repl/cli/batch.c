/* batch.c - `aerie run --batch FILE`: many prompts in one batch, a JSON line of result each. Ctrl-C
 * ends it: complete replies and those cut short are printed, and the exit code is 130. */
#include "repl/app/report.h"
#include "repl/process/open.h"
#include "repl/cli/cli.h"

#include <errno.h>
#include <signal.h>

#include <jansson.h>

#include "kernels/json_read.h"
#include "repl/process/interrupt.h"

struct batch_prompts {
    char **v;
    int n;
};

static bool take_line(struct batch_prompts *p, const char *line, size_t n, struct err *e)
{
    json_error_t why;
    json_auto_t *v = json_parse(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    json_t *text = json_is_string(v) ? v : json_object_get(v, "prompt");
    bool ok = json_is_string(text);
    if (!v)
        err_set(e, ERR_USAGE, "%s", why.text);
    else if (!ok)
        err_set(e, ERR_USAGE, "expected {\"prompt\": \"...\"}");
    if (ok)
        *APPEND(p->v, p->n) = xstrdup(json_string_value(text));
    return ok;
}

static bool read_prompts(struct batch_prompts *p, const char *name, struct err *e)
{
    enum { MOST = 1000000 };
    FREED(buf_free) struct buf line = {0};
    bool ok = true;
    int got = 1;
    FILE *f = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    if (!f)
        return err_set(e, ERR_USAGE, "cannot open %s: %s", name, strerror(errno));
    for (int number = 1; ok && (got = cli_line(f, number, &line, e)); number++) {
        ok = got > 0 && (p->n < MOST || err_set(e, ERR_USAGE, "more than %d prompts", MOST));
        if (ok && strspn(buf_text(&line), " \t\r") != line.n)
            ok = take_line(p, line.p, line.n, e);
        if (!ok)
            err_prefix(e, "%s line %d", name, number);
    }
    if (f != stdin)
        fclose(f);
    return ok;
}

/* ---- the batch ------------------------------------------------------------------------------- */

struct listener {
    struct backend *g;
    bool quiet;
    int rc;     /* from the events: a prompt was refused, a rule violated, the device lost */
    int signal; /* that ended the batch, or 0 */
};

/* Flushed after each reply. */
static void print_reply(struct listener *l, const struct event *ev)
{
    FREED(buf_free) struct buf line = {0};
    report_event(ev, &(struct printer){NULL, &line});
    cli_json(&line);
    if (ev->batch.refused)
        l->rc = max_int(l->rc, ERR_NEGATIVE);
    if (!out_flush()) { /* the reader closed the pipe: cancel the rest */
        l->rc = max_int(l->rc, ERR_USAGE);
        backend_cancel(l->g);
    }
}

static void take_event(void *arg, struct event *ev)
{
    struct listener *l = arg;
    const char *text = buf_text(&ev->text);
    switch (ev->kind) {
    case EV_BATCH_REPLY: print_reply(l, ev); break;
    case EV_NOTICE:
        if (!l->quiet)
            cli_complain(NULL, text);
        break;
    case EV_FAULT:
        cli_complain(NULL, text);
        l->rc = max_int(l->rc, (int)ev->fault);
        break;
    default: break;
    }
    event_free(ev);
}

/* Submits the prompts, which it takes over. */
static bool submit(struct cli *c, struct backend *g, struct batch_prompts *p, struct err *e)
{
    struct request system = {.kind = RQ_SYSTEM};
    struct request batch = {.kind = RQ_BATCH, .count = p->n, .prompts = p->v};
    *p = (struct batch_prompts){0};
    if (c->opt.system)
        system.text = xstrdup(c->opt.system);
    return (!c->opt.system || backend_submit(g, &system, e)) && backend_submit(g, &batch, e);
}

static int answer_prompts(struct cli *c, struct batch_prompts *p)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct err e = {0};
    struct listener l = {.quiet = c->opt.quiet};
    c->opt.engine.lanes = c->lanes ? c->lanes : 8;
    c->opt.engine.progress = c->opt.quiet ? NULL : cli_progress;
    l.g = open_backend(&c->opt.engine, &e);
    cli_progress_end();
    bool ok = l.g && settings_fit(&c->opt.engine.settings, backend_info(l.g)->vocab, &e) &&
              interrupt_open(caught, 3, false, NULL, &e) && submit(c, l.g, p, &e);
    if (ok) {
        const char *passed = backend_info(l.g)->passed;
        FREED(free_at) char *line = passed ? xasprintf("computing on the CPU: %s", passed) : NULL;
        if (line && !l.quiet)
            cli_complain(NULL, line);
        cli_listen(l.g, &l.signal, take_event, &l); /* replies that are finished are printed */
    }
    backend_close(l.g);
    interrupt_close();
    return !ok ? cli_fail(&e) : l.signal ? 128 + l.signal : l.rc;
}

int cli_batch(struct cli *c)
{
    struct err e = {0};
    struct batch_prompts p = {0};
    bool ok = true;
    if (c->n_word || c->opt.file)
        ok = err_set(&e, ERR_USAGE, "--batch takes its prompts from the file alone");
    if (ok && !c->opt.engine.model && !c->opt.engine.server.url)
        ok = err_set(&e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR");
    ok = ok && read_prompts(&p, c->batch, &e);
    int rc = !ok ? cli_fail(&e) : p.n ? answer_prompts(c, &p) : 0;
    for (int i = 0; i < p.n; i++)
        free(p.v[i]);
    free(p.v);
    return rc;
}
