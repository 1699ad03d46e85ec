/* kl_local.c - the engine of this process as the source of `aerie kl`: each reply and each reading
 * is a job (engine/job.h). */
#include "repl/cli/kl.h"

#include <math.h>

#include "models/tokenizer/tokenizer.h"
#include "repl/cli/cli.h"
#include "repl/process/open.h"

/* A job's results, filled in from its events. */
struct collected {
    struct ids_ask *a;    /* of a reply; or NULL */
    float *logp;          /* (n, from `from` on) of a prompt; or NULL */
    int from, n;
    bool ended;
    enum stop_reason reason;
    struct err why;
};

static bool local_text(struct kl_source *s, const char *text, struct ids *out, struct err *e)
{
    return tok_encode(s->b->jobs->tokenizer(s->b), text, strlen(text), 0, out, e);
}

static void take_step(struct ids_ask *a, const struct event *ev)
{
    size_t n = (size_t)a->reply.n + (size_t)ev->tokens.n;
    a->logp = xrealloc(a->logp, n, sizeof *a->logp);
    for (int i = 0; i < ev->tokens.n; i++)
        a->logp[a->reply.n + i] = ev->facts ? ev->facts[i].logp : NAN;
    ids_cat(&a->reply, ev->tokens.v, ev->tokens.n);
    if (ev->rec.kind != STEP_PREFILL)
        ids_add(&a->accepted, ev->rec.accepted);
    a->drafted += ev->rec.drafted;
}

static void take_event(struct collected *t, struct event *ev, uint64_t id)
{
    const char *text = buf_text(&ev->text);
    if (ev->kind == EV_FAULT)
        err_set(&t->why, ev->fault, "%s", text);
    if (!ev->job || ev->job->id != id)
        return;
    const struct token_fact *fact = ev->job->prompt_fact;
    if (ev->kind == EV_JOB_BEGIN && t->logp && fact)
        for (int i = t->from; i < t->n; i++)
            t->logp[i] = fact[i].logp;
    if (ev->kind == EV_JOB_STEP && t->a)
        take_step(t->a, ev);
    if (ev->kind != EV_JOB_END)
        return;
    t->ended = true;
    t->reason = ev->reason;
    if (*text && !t->why.kind)
        err_set(&t->why, ERR_MODEL, "%s", text);
}

static bool wait_job(struct kl_source *s, struct collected *t, struct err *e)
{
    struct event ev;
    while (!t->ended && !(t->why.kind && !backend_busy(s->b))) {
        if (stop_asked(s->stop))
            s->b->jobs->cancel(s->b, s->id);
        while (backend_wait(s->b, &ev, 50)) {
            take_event(t, &ev, s->id);
            event_free(&ev);
        }
    }
    if (t->why.kind)
        *e = t->why;
    return !t->why.kind && (t->reason != STOP_CANCEL || err_set(e, ERR_NEGATIVE, "stopped"));
}

static bool start(struct kl_source *s, const struct ids *prompt, int most, int prompt_top,
                  struct err *e)
{
    struct job_ask ask = {.id = ++s->id, .top_p = 1, .most = most, .run_on = true,
                          .prompt_top = prompt_top};
    ids_cat(&ask.prompt, prompt->v, prompt->n);
    return s->b->jobs->start(s->b, &ask, e);
}

static bool local_ask(struct kl_source *s, struct ids_ask *a, struct err *e)
{
    struct collected t = {.a = a};
    ids_ask_free(a);
    a->drafted = 0;
    a->done = start(s, &a->prompt, a->most, -1, e) && wait_job(s, &t, e);
    return a->done;
}

static bool local_score(struct kl_source *s, const struct ids *ids, int from, float *logp,
                        struct err *e)
{
    struct collected t = {.logp = logp, .from = from, .n = ids->n};
    return start(s, ids, 0, 0, e) && wait_job(s, &t, e);
}

void kl_of_backend(struct kl_source *s)
{
    s->score = local_score;
}

static void local_close(struct kl_source *s)
{
    backend_close(s->b);
}

bool kl_local(struct kl_source *s, const struct cli *c, struct err *e)
{
    struct engine_opts o = c->opt.engine;
    o.lanes = max_int(c->lanes, 1);
    o.progress = c->opt.quiet ? NULL : cli_progress;
    s->text = local_text;
    s->ask = local_ask;
    s->score = local_score;
    s->close = local_close;
    if (!o.model)
        return err_set(e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR");
    s->b = open_backend(&o, e);
    cli_progress_end();
    if (!s->b)
        return false;
    const struct backend_info *i = backend_info(s->b);
    s->exact = true;
    s->page = i->page_size;
    s->window = i->window;
    s->context = i->context;
    const char *off = o.draft && i->draft_off ? i->draft_off : NULL;
    s->name = xasprintf("local, %s on %s%s%s%s%s", c->opt.engine.model, i->device,
                        i->draft_kind ? ", draft " : "", i->draft_kind ? i->draft_kind : "",
                        off ? "; drafting is off: " : "", off ? off : "");
    return true;
}
