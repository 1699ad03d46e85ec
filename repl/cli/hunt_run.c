/* hunt_run.c - sends the requests of a case and compares the judged replies: see hunt.h. */
#include <limits.h>
#include <math.h>
#include <unistd.h>

#include "repl/cli/kl.h"
#include "repl/cli/hunt.h"
#include "repl/compare/made_text.h"

enum { SCORED_BY_TOKEN = 12, CONTROLS_BY_TOKEN = 3, MOST_CONTROLS = 20000 };

/* ---- texts ----------------------------------------------------------------------------------- */

/* At least n tokens of the text of a number. NULL and *e. */
static const struct ids *text_of(struct hunt *p, int number, int n, struct err *e)
{
    struct hunt_text *t = NULL;
    for (int i = 0; i < p->n_text && !t; i++)
        if (p->text[i].number == number)
            t = &p->text[i];
    if (t && t->ids.n >= n)
        return &t->ids;
    if (!t) {
        t = APPEND(p->text, p->n_text);
        *t = (struct hunt_text){.number = number};
    }
    FREED(buf_free) struct buf words = {0};
    t->ids.n = 0;
    made_text(p->seed * UINT64_C(1000003) + (uint64_t)number, n, &words);
    bool ok = ids_of_text(p->u, words.p, &t->ids, &p->stop, e);
    if (ok && t->ids.n < n)
        ok = err_set(e, ERR_MODEL, "the server's /tokenize makes %d tokens of more than %d words",
                     t->ids.n, n);
    return ok ? &t->ids : NULL;
}

static bool add_text(struct hunt *p, int number, int n, struct ids *out, struct err *e)
{
    const struct ids *t = n > 0 ? text_of(p, number, n, e) : NULL;
    if (t)
        ids_cat(out, t->v, n);
    return t || n <= 0;
}

/* The prompt of an ask whose case has been sent so far; `sent` has the asks before it. */
static bool prompt_of(struct hunt *p, const struct hunt_ask *q, const struct ids_ask *sent,
                      struct ids *out, struct err *e)
{
    int own = q->fork ? min_int(q->fork, q->n) : q->n;
    if (q->follows >= 0) {
        ids_cat(out, sent[q->follows].prompt.v, sent[q->follows].prompt.n);
        ids_cat(out, sent[q->follows].reply.v, sent[q->follows].reply.n);
    }
    return add_text(p, q->text, own, out, e) && add_text(p, q->other, q->n - own, out, e);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Ends a run whose time has been over for a minute: within it a case that was found is noted. */
static void progress(void *arg)
{
    struct hunt *p = arg;
    if (p->until && clock_ns() >= p->until + UINT64_C(60000000000))
        stop_all(&p->stop);
}

/* A name that no request before had; where the server does not keep names apart, its cache is
 * emptied instead. A server may refuse that while it still ends a request that was cancelled. */
static void new_arena(struct hunt *p, char name[64])
{
    enum { TRIES = 60 };
    char how[200];
    bool reset = false;
    snprintf(name, 64, "probe-%llx-%d", (unsigned long long)p->begin, ++p->n_arena);
    if (ids_has_arenas(p->u) || p->no_reset)
        return;
    for (int i = 0; i < TRIES && !reset && !stop_asked(&p->stop); i++) {
        if (i)
            usleep(50000);
        reset = upkeep_reset_cache(p->u, how);
    }
    p->no_reset = !reset;
}

static bool answered(struct hunt *p, const struct ids_ask *a, int n, struct err *e)
{
    if (stop_asked(&p->stop))
        return err_set(e, ERR_NEGATIVE, "stopped");
    for (int i = 0; i < n; i++)
        if (a[i].unreachable) {
            *e = a[i].why;
            p->gone = true;
            return false;
        }
    return true;
}

/* Sends [from, to) of the case at once. */
static bool send_group(struct hunt *p, const struct hunt_case *c, int from, int to,
                       const char *arena, struct ids_ask *a, struct err *e)
{
    for (int i = from; i < to; i++) {
        const struct hunt_ask *q = &c->ask[i];
        a[i].most = q->most;
        a[i].arena = arena;
        a[i].after_ms = q->after_ms;
        a[i].cancel_ms = q->cancel_ms;
        if (!prompt_of(p, q, a, &a[i].prompt, e))
            return false;
    }
    ids_ask_all(p->u, a + from, to - from, &p->stop, progress, p);
    p->n_asked += to - from;
    return answered(p, a + from, to - from, e);
}

static bool send_case(struct hunt *p, const struct hunt_case *c, struct ids_ask *a, struct err *e)
{
    char arena[64];
    bool ok = true;
    new_arena(p, arena);
    for (int i = 0, to; ok && i < c->n; i = to) {
        for (to = i + 1; to < c->n && to - i < IDS_AT_ONCE &&
                         c->ask[to].group == c->ask[i].group;)
            to++;
        ok = send_group(p, c, i, to, arena, a, e);
    }
    for (int i = 0; i < c->n; i++)
        a[i].arena = NULL;
    return ok;
}

static void free_asks(struct ids_ask *a, int n)
{
    for (int i = 0; i < n; i++) {
        ids_ask_free(&a[i]);
        ids_free(&a[i].prompt);
    }
    free(a);
}

/* ---- controls -------------------------------------------------------------------------------- */

static bool send_alone(struct hunt *p, struct ids_ask *a, struct err *e)
{
    enum { TRIES = 3 };
    char arena[64];
    a->cold = true;
    for (int i = 0; i < TRIES && (i == 0 || a->cached > 0) && !stop_asked(&p->stop); i++) {
        new_arena(p, arena);
        a->arena = arena;
        ids_ask_all(p->u, a, 1, &p->stop, progress, p);
        a->arena = NULL;
        p->n_asked++;
    }
    p->n_warm += a->cached > 0;
    if (p->log)
        hunt_log_ask(p->log, "alone and cold", a);
    return answered(p, a, 1, e);
}

/* Reads prompt and reply of a control as one prompt. */
static bool score(struct hunt *p, struct hunt_control *k, struct err *e)
{
    const struct ids_ask *a = &k->a;
    FREED(kl_free) struct kl kl = {0};
    FREED(ids_free) struct ids both = {0};
    int n = ids_scores_at_once(p->u) ? a->reply.n : min_int(a->reply.n, SCORED_BY_TOKEN);
    k->scored = true;
    ids_cat(&both, a->prompt.v, a->prompt.n);
    ids_cat(&both, a->reply.v, n);
    FREED(free_at) float *logp = xcalloc((size_t)both.n, sizeof *logp);
    bool ok = ids_score(p->u, &both, a->prompt.n, logp, &p->stop, e);
    p->n_asked += ids_scores_at_once(p->u) ? 1 : n;
    if (ok) {
        kl_add(&kl, &(struct kl_reply){.n_prompt = a->prompt.n, .n = n, .decoded = a->logp,
                                       .read = logp + a->prompt.n});
        p->n_compared += kl.part[KL_ALL].n;
        k->read = kl.part[KL_ALL].n ? kl.part[KL_ALL].most : NAN;
        k->k3 = kl_mean(&kl.part[KL_ALL]);
        k->read_token = kl.most_token - 1;
        if (k->k3 <= KL_USUAL && k->read > p->rounding)
            p->rounding = k->read;
    } else if (!stop_asked(&p->stop)) {
        *e = (struct err){0}; /* a server that cannot read a prompt so is compared without */
        ok = true;
    }
    return ok;
}

static bool wants_score(const struct hunt *p, const struct hunt_control *k)
{
    return k->a.done && !k->scored &&
           (ids_scores_at_once(p->u) || p->n_control <= CONTROLS_BY_TOKEN);
}

static void drop_controls(struct hunt *p)
{
    for (int i = 0; i < p->n_control; i++) {
        ids_ask_free(&p->control[i].a);
        ids_free(&p->control[i].a.prompt);
    }
    p->n_control = 0;
}

/* The control of a prompt, sent if it has not been. NULL and *e. */
static struct hunt_control *control_of(struct hunt *p, const struct ids *prompt, int most,
                                       struct err *e)
{
    for (int i = p->n_control; i-- > 0;)
        if (p->control[i].a.most == most && ids_equal(&p->control[i].a.prompt, prompt))
            return &p->control[i];
    if (p->n_control == MOST_CONTROLS)
        drop_controls(p); /* only the order of requests depends on them */
    struct hunt_control *k = APPEND(p->control, p->n_control);
    *k = (struct hunt_control){.n_run = 1, .unstable = INT_MAX, .read = NAN};
    k->a.most = most;
    ids_cat(&k->a.prompt, prompt->v, prompt->n);
    return send_alone(p, &k->a, e) ? k : NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The first difference of two replies to one prompt. */
static void compare(const struct ids_ask *was, const struct ids_ask *is, struct hunt_diff *d)
{
    int n = min_int(was->reply.n, is->reply.n), first = -1, i = 0;
    d->by = 0;
    d->blind = 0;
    for (; i < n && was->reply.v[i] == is->reply.v[i]; i++) {
        double by = fabs((double)was->logp[i] - (double)is->logp[i]);
        d->blind += isnan(by);
        if (by > 0 && first < 0)
            first = i;
        d->by = by > d->by ? by : d->by;
    }
    d->compared = i;
    bool parts = i < was->reply.n || i < is->reply.n;
    d->how = parts ? DIFF_IDS : first >= 0 ? DIFF_LOGP : DIFF_NONE;
    d->token = parts ? i : first;
    d->position = was->prompt.n + d->token;
    d->was = d->how && d->token < was->reply.n ? was->reply.v[d->token] : -1;
    d->is = d->how && d->token < is->reply.n ? is->reply.v[d->token] : -1;
    d->margin = d->how && d->token < was->reply.n ? (double)was->margin[d->token] : NAN;
}

/* Sends a control once more and notes its noise. */
static bool control_again(struct hunt *p, struct hunt_control *k, struct err *e)
{
    struct hunt_diff d;
    FREED(ids_ask_free) struct ids_ask a = {.prompt = k->a.prompt, .most = k->a.most};
    bool ok = send_alone(p, &a, e);
    k->n_run++;
    if (ok && a.done && k->a.done) {
        compare(&k->a, &a, &d);
        k->noise = fmax(k->noise, d.by);
        if (d.how == DIFF_IDS)
            k->unstable = min_int(k->unstable, d.token);
    }
    return ok;
}

enum explained { COUNTS, BY_NOISE, BY_ROUNDING, BY_NEIGHBOURS };

/* Whether something harmless explains a difference from the control. */
static enum explained explain(const struct hunt *p, const struct hunt_control *k,
                              const struct hunt_diff *d, bool beside)
{
    const double times = 4;
    if (d->how == DIFF_FAILED)
        return COUNTS;
    if (d->how == DIFF_IDS && d->token >= k->unstable)
        return BY_NOISE;
    double most = d->how == DIFF_IDS && d->margin > d->by ? d->margin : d->by;
    if (most <= times * k->noise)
        return BY_NOISE;
    if (p->exact)
        return COUNTS;
    return most <= times * p->rounding        ? BY_ROUNDING
           : beside && most <= HUNT_KERNELS ? BY_NEIGHBOURS
                                              : COUNTS;
}

static void count_diff(struct hunt *p, enum explained by, const struct hunt_diff *d)
{
    double most = d->how == DIFF_IDS && d->margin > d->by ? d->margin : d->by;
    p->n_noise += by == BY_NOISE;
    p->n_rounding += by == BY_ROUNDING;
    p->n_beside += by == BY_NEIGHBOURS;
    if (by == BY_NEIGHBOURS)
        p->beside = fmax(p->beside, most);
}

/* Compares the reply of one ask with its control; *d stays DIFF_NONE where nothing counts. */
static bool judge(struct hunt *p, const struct hunt_case *c, int ask, const struct ids_ask *a,
                  struct hunt_diff *d, struct err *e)
{
    struct hunt_diff x = {.ask = ask, .token = -1, .was = -1, .is = -1};
    struct hunt_control *k = control_of(p, &a->prompt, a->most, e);
    if (!k)
        return false;
    if (!k->a.done && k->a.status / 100 == 4) { /* too long, perhaps */
        if (p->n_refused++ == 0)
            snprintf(p->refused, sizeof p->refused, "%.199s", k->a.why.msg);
        return true;
    }
    if (!k->a.done || !a->done) {
        x.how = DIFF_FAILED;
        snprintf(x.why, sizeof x.why, "%s%.160s", k->a.done ? "" : "alone, too: ",
                 k->a.done ? a->why.msg : k->a.why.msg);
    } else {
        compare(&k->a, a, &x);
        p->n_compared += x.compared;
        p->n_blind += x.blind;
    }
    if (x.how == DIFF_NONE)
        return true;
    while (k->n_run < (p->quick ? 1 : 3))
        if (!control_again(p, k, e))
            return false;
    enum explained by = explain(p, k, &x, hunt_beside(c, ask));
    if (!p->quick)
        count_diff(p, by, &x);
    if (by == COUNTS)
        *d = x;
    return true;
}

static bool judge_read(struct hunt *p, int ask, const struct ids_ask *a, struct hunt_diff *d,
                       struct err *e)
{
    struct hunt_control *k = control_of(p, &a->prompt, a->most, e);
    bool ok = k && (!wants_score(p, k) || score(p, k, e));
    if (!ok || !(k->scored && (p->exact ? k->read > 0 : k->k3 > KL_USUAL)))
        return ok;
    *d = (struct hunt_diff){.how = DIFF_READ, .ask = ask, .token = k->read_token,
                             .position = k->a.prompt.n + k->read_token, .by = k->read,
                             .was = k->a.reply.v[k->read_token], .is = -1,
                             .margin = (double)k->a.margin[k->read_token]};
    return true;
}

bool hunt_run(struct hunt *p, const struct hunt_case *c, struct hunt_diff *d, struct err *e)
{
    struct ids_ask *a = xcalloc((size_t)c->n, sizeof *a);
    bool ok = true;
    *d = (struct hunt_diff){.how = DIFF_NONE};
    if (c->read)
        ok = prompt_of(p, &c->ask[0], a, &a[0].prompt, e);
    else
        ok = send_case(p, c, a, e);
    if (p->log && !c->read)
        hunt_log_case(p->log, c, a);
    for (int i = 0; ok && i < c->n && d->how == DIFF_NONE; i++) {
        a[i].most = c->ask[i].most;
        if (c->ask[i].judged)
            ok = c->read ? judge_read(p, i, &a[i], d, e) : judge(p, c, i, &a[i], d, e);
    }
    for (int i = 0; ok && !c->read && !p->quick && i < c->n && d->how == DIFF_NONE; i++)
        if (c->ask[i].judged && c->ask[i].follows < 0)
            ok = judge_read(p, i, &a[i], d, e);
    free_asks(a, c->n);
    return ok;
}

bool hunt_capture(struct hunt *p, struct hunt_found *f, struct err *e)
{
    struct ids_ask *a = xcalloc((size_t)f->c.n, sizeof *a);
    struct hunt_control *k = NULL;
    int judged = f->d.ask;
    bool ok = f->c.read ? prompt_of(p, &f->c.ask[0], a, &a[0].prompt, e)
                        : send_case(p, &f->c, a, e);
    k = ok ? control_of(p, &a[judged].prompt, f->c.ask[judged].most, e) : NULL;
    while (ok && k && k->n_run < 3)
        ok = control_again(p, k, e);
    if (ok && k) {
        for (int i = 0; i < f->c.n; i++)
            ids_cat(&f->prompt[i], a[i].prompt.v, a[i].prompt.n);
        ids_cat(&f->reply, a[judged].reply.v, a[judged].reply.n);
        ids_cat(&f->control, k->a.reply.v, k->a.reply.n);
        f->control_runs = k->n_run;
        f->noise = k->noise;
    }
    free_asks(a, f->c.n);
    return ok && k;
}

void hunt_free(struct hunt *p)
{
    FOR_EACH(struct hunt_found, f, p->found, p->n_kept) {
        for (int k = 0; k < f->c.n; k++)
            ids_free(&f->prompt[k]);
        ids_free(&f->reply);
        ids_free(&f->control);
    }
    drop_controls(p);
    free(p->control);
    for (int i = 0; i < p->n_text; i++)
        ids_free(&p->text[i].ids);
    free(p->text);
}
