/* parity.c - `aerie parity FILE`: computes the same prompts twice and compares the replies token
 * for token.
 *
 * The prompts are computed in chunks, several at once (RQ_BATCH). If the sides differ only in
 * settings and faults, one engine computes each chunk with the settings of a and then of b. If a
 * side is a server, both sides are open, and each chunk is computed by a and then by b. Otherwise
 * the engine of b is opened after that of a was closed, and the facts of a's replies that the
 * comparison needs are kept in an unnamed file. Memory does not grow with the number of prompts.
 * Ctrl-C ends the run with the verdict on the prompts compared so far. */
#include "repl/cli/parity.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "repl/compare/change.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"
#include "repl/app/prompts.h"

struct run {
    struct parity all;
    struct prompts file;
    FILE *kept;       /* outcomes of a, if the engines are open one after the other; else NULL */
    int open;         /* side of the engine that is open; -1: none */
    int done, to_do;  /* replies, for the progress */
    /* the batch that is running */
    struct parity_reply *into;
    int n_into;
    const struct prompt *asked;
};

static void complain(void *arg, const char *line)
{
    (void)arg;
    struct buf clean = {0};
    cli_progress_end();
    text_sanitise(&clean, line, strlen(line), false, NULL);
    err_print("%s", clean.n ? clean.p : "");
    buf_free(&clean);
}

void parity_reply_free(struct parity_reply *o)
{
    ids_free(&o->ids);
    ids_free(&o->prompt);
    free(o->text);
    free(o->logp);
    free(o->margin);
    *o = (struct parity_reply){0};
}

/* ---- a batch --------------------------------------------------------------------------------- */

static bool complete(enum stop_reason r)
{
    return r == STOP_END || r == STOP_MAX || r == STOP_CONTEXT || r == STOP_KV_FULL;
}

/* A server may report a rival's log probability without its id. */
static void take_numbers(struct parity_reply *o, const struct event *ev, bool server)
{
    int n = ev->facts ? ev->tokens.n : 0;
    o->logp = n ? xcalloc((size_t)n, sizeof *o->logp) : NULL;
    o->margin = n ? xcalloc((size_t)n, sizeof *o->margin) : NULL;
    for (int i = 0; i < n; i++) {
        const struct token_fact *f = &ev->facts[i];
        o->logp[i] = f->logp;
        o->margin[i] = f->rival < 0 && !server ? NAN : f->logp - f->rival_logp;
    }
}

static void take_reply(struct run *r, struct event *ev)
{
    if (!r->into || ev->batch.index >= r->n_into)
        return;
    struct parity_reply *o = &r->into[ev->batch.index];
    o->reason = ev->reason;
    o->refused = ev->batch.refused;
    o->there = o->refused || complete(ev->reason);
    o->n_prompt = ev->batch.n_prompt;
    o->n_spec = ev->batch.n_spec;
    o->n_steps = ev->n_steps;
    o->n_drafted = ev->n_drafted;
    o->n_accepted = ev->n_accepted;
    o->n_tokens = ev->batch.n_tokens;
    r->all.side[r->open].replied += ev->batch.n_tokens;
    if (ev->drafts)
        draft_report_join(&r->all.side[r->open].drafts_of, ev->drafts);
    ids_cat(&o->ids, ev->tokens.v, ev->tokens.n);
    if (r->all.servers) {
        ids_cat(&o->prompt, ev->prompt.v, ev->prompt.n);
        o->text = xstrdup(ev->text.n ? ev->text.p : "");
    }
    take_numbers(o, ev, r->all.side[r->open].word != NULL);
    if (o->refused)
        snprintf(o->why, sizeof o->why, "%s", ev->text.n ? ev->text.p : "");
    else if (r->asked[ev->batch.index].answer)
        number_find(ev->text.n ? ev->text.p : "", o->answer);
    r->done++;
    if (!r->all.c->opt.quiet)
        cli_progress(NULL, "replies", (uint64_t)r->done, (uint64_t)r->to_do);
}

static void take_event(struct run *r, struct event *ev)
{
    const char *text = ev->text.n ? ev->text.p : "";
    if (ev->kind == EV_BATCH_REPLY)
        take_reply(r, ev);
    else if (ev->kind == EV_NOTICE && !r->all.c->opt.quiet)
        complain(NULL, text);
    else if (ev->kind == EV_FAULT) {
        char *line = xasprintf("%c: %s", r->all.side[r->open].name, text);
        complain(NULL, line);
        free(line);
        r->all.fault = ev->fault;
        r->all.fault_side = r->all.side[r->open].name;
    }
    event_free(ev);
}

/* Handles events until every request is done; a signal cancels them. */
static void listen(struct run *r)
{
    struct event ev;
    for (bool busy = true; busy;) {
        /* asked before the queue is read, so that the queue has all its events */
        busy = backend_busy(r->all.g);
        for (int sig; (sig = interrupt_next()) != 0;)
            r->all.signal = sig;
        /* in each round: a cancel ends only requests submitted before it */
        if (busy && r->all.signal)
            backend_cancel(r->all.g);
        while (busy ? backend_wait(r->all.g, &ev, 50) : backend_next(r->all.g, &ev)) {
            take_event(r, &ev);
            if (interrupt_waits())
                break;
        }
    }
}

static bool over(const struct run *r)
{
    return r->all.signal || r->all.fault;
}

static bool send(struct run *r, struct request *rq, struct err *e)
{
    session_new_id(rq->session);
    if (!backend_submit(r->all.g, rq, e))
        return false;
    listen(r);
    return true;
}

/* Empties the engine and gives it the conversation before a prompt. */
static bool set_past(struct run *r, const struct prompt *p, struct err *e)
{
    const char *system = p->system ? p->system : r->all.c->opt.system;
    struct request rq = {.kind = p->n_past ? RQ_RESUME : RQ_NEW,
                         .text = xstrdup(system ? system : ""),
                         .next_turn = p->n_past + 1};
    rq.past = xcalloc((size_t)p->n_past + 1, sizeof *rq.past);
    for (int i = 0; i < p->n_past; i++)
        rq.past[rq.n_past++] = (struct past_turn){.turn = p->past[i].turn,
                                                  .user = xstrdup(p->past[i].user),
                                                  .reply = xstrdup(p->past[i].reply)};
    return send(r, &rq, e);
}

/* Computes n prompts that come after the same conversation. */
static bool batch(struct run *r, const struct prompt *p, int n, struct parity_reply *out,
                  struct err *e)
{
    struct request rq = {.kind = RQ_BATCH, .count = n};
    rq.prompts = xcalloc((size_t)n, sizeof *rq.prompts);
    for (int i = 0; i < n; i++)
        rq.prompts[i] = xstrdup(p[i].text);
    r->into = out;
    r->n_into = n;
    r->asked = p;
    uint64_t began = clock_ns();
    bool ok = send(r, &rq, e);
    r->all.side[r->open].ns += clock_ns() - began;
    r->into = NULL;
    return ok;
}

static bool compute(struct run *r, const struct prompt *p, int n, struct parity_reply *out,
                    struct err *e)
{
    bool ok = true;
    for (int at = 0, k; ok && at < n && !over(r); at += k) {
        for (k = 1; at + k < n && prompt_same_past(&p[at], &p[at + k]);)
            k++;
        ok = set_past(r, &p[at], e) && (over(r) || batch(r, p + at, k, out + at, e));
    }
    return ok;
}

/* ---- engines --------------------------------------------------------------------------------- */

static void note_idle_bugs(struct run *r, const struct side *s)
{
    for (int b = 0; b < N_BUGS; b++) {
        struct buf needs = {0};
        int on = bug_on(&s->opts.bugs, (enum bug)b);
        if (on && facts_unmet_needs(backend_info(r->all.g), &s->opts.settings, (enum bug)b, on,
                                    &needs)) {
            char *line = xasprintf("%c: fault %d is on, but cannot fire; it needs %s", s->name,
                                   bug_at((enum bug)b)->number, needs.p);
            complain(NULL, line);
            free(line);
        }
        buf_free(&needs);
    }
}

static bool open_engine(struct run *r, int side, struct err *e)
{
    struct parity *p = &r->all;
    backend_close(p->g);
    p->g = side_open(p, side, complain, e);
    return p->g != NULL;
}

/* If one of the sides is a server, each side has a backend of its own: opens it and makes it the
 * current one. */
static bool use_own(struct run *r, int side, struct err *e)
{
    struct parity *p = &r->all;
    if (!p->own[side])
        p->own[side] = side_open(p, side, complain, e);
    p->g = p->own[side];
    r->open = side;
    return p->g != NULL;
}

/* Opens the engine of a side, or gives the open engine that side's settings. */
static bool use(struct run *r, int side, struct err *e)
{
    struct parity *p = &r->all;
    bool first = r->open < 0, ok = true;
    if (p->servers)
        return use_own(r, side, e);
    if (r->open == side)
        return true;
    if (first || r->kept) {
        ok = open_engine(r, side, e);
        if (ok && !p->c->opt.quiet)
            note_idle_bugs(r, &p->side[side]);
        if (ok && first && !r->kept && !p->c->opt.quiet)
            note_idle_bugs(r, &p->side[!side]);
    } else {
        struct buf lines = {0};
        change_lines(&p->side[r->open].opts, &p->side[side].opts, &lines);
        for (char *line = lines.p, *end; ok && line && *line; line = end + 1) {
            end = strchr(line, '\n');
            struct request rq = {.kind = RQ_SET,
                                 .text = xasprintf("%.*s", (int)(end - line), line)};
            ok = send(r, &rq, e);
        }
        buf_free(&lines);
    }
    r->open = side;
    return ok;
}

/* ---- outcomes that wait ---------------------------------------------------------------------- */

static bool put(struct run *r, const void *v, size_t size, int n)
{
    return n == 0 || !v || fwrite(v, size, (size_t)n, r->kept) == (size_t)n;
}

static bool keep(struct run *r, const struct parity_reply *o, int n, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < n; i++)
        ok = put(r, &o[i], sizeof o[i], 1) && put(r, o[i].ids.v, sizeof *o[i].ids.v, o[i].ids.n) &&
             put(r, o[i].logp, sizeof *o[i].logp, o[i].ids.n) &&
             put(r, o[i].margin, sizeof *o[i].margin, o[i].ids.n);
    return ok || err_set(e, ERR_USAGE, "cannot keep the replies of a in a file: %s",
                         strerror(errno));
}

static bool get(struct run *r, void *v, size_t size, int n)
{
    return n == 0 || fread(v, size, (size_t)n, r->kept) == (size_t)n;
}

static bool take_back(struct run *r, struct parity_reply *o, int n, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = get(r, &o[i], sizeof o[i], 1);
        struct ids ids = {0};
        ids.n = ids.cap = ok ? o[i].ids.n : 0;
        ids.v = ids.n ? xcalloc((size_t)ids.n, sizeof *ids.v) : NULL;
        ok = ok && get(r, ids.v, sizeof *ids.v, ids.n);
        bool known =
            ok && o[i].logp != NULL; /* tests whether there were values: the pointer itself is
                                        stale */
        o[i].ids = ids;
        o[i].logp = known ? xcalloc((size_t)ids.n + 1, sizeof *o[i].logp) : NULL;
        o[i].margin = known ? xcalloc((size_t)ids.n + 1, sizeof *o[i].margin) : NULL;
        ok = ok && (!known || (get(r, o[i].logp, sizeof *o[i].logp, ids.n) &&
                               get(r, o[i].margin, sizeof *o[i].margin, ids.n)));
    }
    return ok || err_set(e, ERR_USAGE, "cannot read the kept replies of a: %s", strerror(errno));
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void compare(struct run *r, const struct prompt *p, int n, int number,
                    struct parity_reply *const out[2])
{
    for (int i = 0; i < n; i++) {
        struct compared c = {.prompt = number + i, .line = p[i].line, .answer = p[i].answer,
                               .side = {&out[0][i], &out[1][i]}};
        if (!out[0][i].there || !out[1][i].there)
            continue;
        parity_compare(&c);
        parity_report(&r->all, &c);
    }
}

/* A control: computes the prompts once more on a server, and compares with the first time. */
static bool control(struct run *r, int side, const struct prompt *p, int n,
                    const struct parity_reply *first, struct err *e)
{
    struct side *s = &r->all.side[side];
    if (!s->opts.server.url || over(r))
        return true;
    struct parity_reply *again = xcalloc((size_t)n, sizeof *again);
    side_reset_cache(s);
    bool ok = use(r, side, e) && compute(r, p, n, again, e);
    for (int i = 0; i < n; i++) {
        struct compared c = {.side = {&first[i], &again[i]}};
        if (first[i].there && again[i].there) {
            parity_compare(&c);
            s->again++;
            s->again_differ += c.index >= 0 || c.prompt_index >= 0;
        }
        parity_reply_free(&again[i]);
    }
    free(again);
    return ok;
}

enum pass { PASS_BOTH, PASS_A, PASS_B };

/* Reads up to `most` prompts: their number, -1 and *e. */
static int read_chunk(struct run *r, struct prompt *p, int most, struct err *e)
{
    int n = 0, got = 1;
    while (n < most && (got = prompts_next(&r->file, &p[n], e)) > 0)
        n++;
    for (int i = 0; got < 0 && i < n; i++)
        prompt_free(&p[i]);
    return got < 0 ? -1 : n;
}

static bool chunk(struct run *r, enum pass pass, const struct prompt *p, int n, int number,
                  struct parity_reply *const out[2], struct err *e)
{
    struct side *s = r->all.side;
    side_reset_cache(&s[0]);
    bool ok = pass == PASS_B ? take_back(r, out[0], n, e)
                             : use(r, 0, e) && compute(r, p, n, out[0], e);
    if (ok && pass == PASS_A)
        return keep(r, out[0], n, e);
    if (!ok || over(r))
        return ok;
    side_reset_cache(&s[1]);
    ok = use(r, 1, e) && compute(r, p, n, out[1], e);
    compare(r, p, n, number, out);
    for (int side = 0; ok && r->all.c->control && side < 2; side++)
        ok = control(r, side, p, n, out[side], e);
    return ok;
}

static bool go(struct run *r, enum pass pass, int most, struct err *e)
{
    struct prompt *p = xcalloc((size_t)most, sizeof *p);
    struct parity_reply *out[2] = {xcalloc((size_t)most, sizeof **out),
                                   xcalloc((size_t)most, sizeof **out)};
    bool ok = true;
    for (int number = 1, n = 1; ok && n > 0 && !over(r); number += n) {
        n = read_chunk(r, p, most, e);
        ok = n >= 0 && (n == 0 || chunk(r, pass, p, n, number, out, e));
        for (int i = 0; i < n; i++) {
            prompt_free(&p[i]);
            parity_reply_free(&out[0][i]);
            parity_reply_free(&out[1][i]);
        }
    }
    free(p);
    free(out[0]);
    free(out[1]);
    return ok;
}

static bool compare_prompts(struct run *r, struct err *e)
{
    int lanes = r->all.side[0].opts.lanes, most = r->all.servers && lanes == 1 ? 1 : 4 * lanes;
    r->to_do =
        (2 +
         (r->all.c->control ? (r->all.side[0].word != NULL) + (r->all.side[1].word != NULL) : 0)) *
        r->file.n;
    if (r->all.servers) /* both are asked before the first prompt is */
        return use(r, 1, e) && use(r, 0, e) && go(r, PASS_BOTH, most, e);
    if (!change_reopens(&r->all.side[0].opts, &r->all.side[1].opts))
        return go(r, PASS_BOTH, most, e);
    r->kept = temporary_file();
    if (!r->kept)
        return err_set(e, ERR_USAGE, "cannot make a file for the replies of a: %s",
                       strerror(errno));
    if (!go(r, PASS_A, most, e) || over(r))
        return e->kind == ERR_NONE;
    prompts_rewind(&r->file);
    rewind(r->kept);
    return go(r, PASS_B, most, e);
}

/* ---- the command ----------------------------------------------------------------------------- */

int cli_parity(struct cli *c)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct err e = {0};
    struct run r = {.all.c = c, .open = -1};
    bool ok =
        sides_set(&r.all, &e) && prompts_open(&r.file, c->word[0], c->most, complain, NULL, &e);
    bool began = ok && interrupt_open(caught, 3, false, NULL, &e);
    r.all.n = r.file.n;
    ok = began && compare_prompts(&r, &e);
    cli_progress_end();
    for (int i = 0; began && i < 2; i++)
        side_meter(&r.all.side[i]);
    int rc = ok || r.all.compared ? parity_verdict(&r.all) : 0;
    if (!ok)
        rc = cli_fail(&e);
    if (!r.all.servers)
        backend_close(r.all.g);
    backend_close(r.all.own[0]);
    backend_close(r.all.own[1]);
    interrupt_close();
    prompts_close(&r.file);
    if (r.kept)
        fclose(r.kept);
    sides_free(&r.all);
    return rc;
}
