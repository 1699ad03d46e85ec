/* jobs.c - begins and cancels the jobs of requests, and states facts of the server. See serve.h. */
#include "repl/http/serve.h"

#include "kernels/json.h"
#include "repl/compare/facts.h"

static uint64_t draw(struct serve *s)
{
    return s->random = mix64(s->random ^ clock_ns());
}

static void keep_task(struct serve *s, struct task *t)
{
    *APPEND(s->task, s->n_task) = t;
}

void serve_drop(struct serve *s, struct task *t)
{
    int i = 0;
    while (s->task[i] != t)
        i++;
    memmove(s->task + i, s->task + i + 1, (size_t)(s->n_task - i - 1) * sizeof *s->task);
    s->n_task--;
    task_free(t);
}

void serve_cancel(struct serve *s, struct task *t)
{
    t->cancelled = true;
    for (int i = 0; i < t->n_job; i++)
        if (t->job[i].started && !t->job[i].ended)
            s->b->jobs->cancel(s->b, t->job[i].id);
}

static bool start_job(struct serve *s, struct task *t, struct reply_job *j, struct err *e)
{
    const struct ask *a = &t->ask;
    struct job_ask ask = {.id = ++s->last_id, .temperature = (float)a->set.temperature,
                          .top_p = (float)a->set.top_p, .min_p = (float)a->set.min_p,
                          .top_k = a->set.top_k,
                          .seed = job_seed(a, j->reply.index), .most = a->most, .run_on = a->run_on,
                          .top = max_int(a->top, 0), .prompt_top = a->prompt_top};
    settings_penalties(&a->set, &ask.penalties);
    ask.format = a->format ? xstrdup(a->format) : NULL;
    ids_cat(&ask.prompt, j->reply.prompt->v, j->reply.prompt->n);
    j->id = ask.id;
    j->started = s->b->jobs->start(s->b, &ask, e);
    ids_free(&ask.prompt);
    free(ask.format); /* NULL where the backend took it over */
    return j->started;
}

/* The jobs from `from` on do not run. */
static void end_rest(struct task *t, int from)
{
    for (int i = from; i < t->n_job; i++) {
        t->n_settled += !t->job[i].settled;
        t->job[i].ended = t->job[i].settled = true;
    }
}

bool serve_refuses(const struct serve *s, struct refusal *r)
{
    if (s->lost)
        refuse(r, 500, NULL, "the device is lost, and the server ends: %s", s->why_lost);
    else if (s->ending)
        refuse(r, 503, NULL, "the server ends");
    return s->lost || s->ending;
}

struct task *serve_begin(struct serve *s, struct ask *a, const char *name, void *call,
                         struct refusal *r)
{
    struct err e = {0};
    if (s->lost || s->ending) {
        ask_free(a);
        serve_refuses(s, r);
        return NULL;
    }
    if (a->seed_is != SEED_GIVEN)
        a->seed = a->seed_is == SEED_NONE && s->opt.seeded ? s->opt.seed : draw(s) & INT32_MAX;
    struct task *t = task_new(a, &s->of, s->print);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->call = call;
    keep_task(s, t);
    for (int i = 0; i < t->n_job; i++) {
        session_new_id(t->job[i].session);
        if (start_job(s, t, &t->job[i], &e))
            continue;
        serve_cancel(s, t);
        end_rest(t, i);
        refuse(r, e.kind == ERR_NEGATIVE ? 503 : 400, NULL, "%s", e.msg);
        serve_release(s, t);
        return NULL;
    }
    return t;
}

void serve_release(struct serve *s, struct task *t)
{
    t->call = NULL;
    if (task_done(t))
        serve_drop(s, t);
    else
        serve_cancel(s, t);
}

static void serve_counts(const struct serve *s, int *running, int *waiting)
{
    *running = *waiting = 0;
    for (int i = 0; i < s->n_task; i++)
        for (int k = 0; k < s->task[i]->n_job; k++) {
            const struct reply_job *j = &s->task[i]->job[k];
            *running += j->begun && !j->ended;
            *waiting += j->started && !j->begun && !j->ended;
        }
}

void serve_facts(const struct serve *s, struct buf *out)
{
    const struct backend_info *i = backend_info(s->b);
    jput_record(out, "%s{server}%s{version}%s{build}%s{model}%s{model_sha}%s{tokenizer_sha}"
                "%s{family}%s{chat_format}%s{draft}%s{draft_sha}%d{drafting?}%d{draft_steps}"
                "%s{device}%s{backend}%s{precision}%s{kv}%d{context}%d{page_size}%d{window}"
                "%d{full_pages}%d{swa_pages}%d{draft_pages}%d{lanes}", "aerie", AERIE_VERSION,
                facts_build(), s->opt.model, i->model_sha, i->tokenizer_sha, i->family, i->chat,
                i->draft_kind, i->draft_dir ? i->draft_sha : NULL,
                i->draft_kind && s->settings.spec, s->settings.steps, i->device, i->backend,
                i->precision, i->kv, i->context, i->page_size, i->window, i->n_pages[POOL_FULL],
                i->n_pages[POOL_SWA], i->n_pages[POOL_DRAFT], s->opt.lanes);
}

void serve_model(const struct serve *s, struct buf *b)
{
    JPUT_IN(b, '{');
    jput_fields(b, "%s{id}%s{object}%ld{created}%s{owned_by}%s{root}%d{parent:0}%d{max_model_len}",
                s->opt.model, "model", s->since, "aerie", s->opt.model, 0, s->of.context);
    jput_key(b, "permission");
    jput_raw(b, "[]");
}

void serve_models(const struct serve *s, struct buf *out)
{
    JPUT_IN(out, '{');
    jput_kstr(out, "object", "list");
    JPUT_KIN(out, "data", '[');
    serve_model(s, out);
}

void serve_load(const struct serve *s, struct buf *out)
{
    int running, waiting;
    serve_counts(s, &running, &waiting);
    buf_printf(out, "{\"server_load\":%d}", running + waiting);
}

void serve_metrics(const struct serve *s, struct buf *out)
{
    int running, waiting;
    serve_counts(s, &running, &waiting);
    meter_text(&s->meter, s->opt.model, running, waiting, s->b, out);
}

bool serve_reset(struct serve *s)
{
    int running, waiting;
    struct request rq = {.kind = RQ_NEW};
    serve_counts(s, &running, &waiting);
    if (running + waiting)
        return false;
    session_new_id(rq.session);
    return backend_submit(s->b, &rq, NULL);
}
