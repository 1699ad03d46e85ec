/* parity.c - `aerie parity FILE`: computes the same prompts on several sides and compares the
 * replies token for token.
 *
 * The prompts are computed in chunks, several at once (RQ_BATCH). If the sides differ only in
 * settings and faults, one engine computes each chunk with the settings of a, then of b, and so on.
 * If a side is a server, all sides are open, and each chunk is computed by one after the other.
 * Otherwise the engine of a side is opened after that of the side before was closed, and the facts
 * of the earlier replies that the comparison needs are kept in unnamed files. Memory does not grow
 * with the number of prompts. Ctrl-C ends the run with the verdict on the prompts compared so
 * far. */
#include "repl/cli/kl.h"
#include "kernels/lines.h"
#include "repl/cli/parity.h"

#include <errno.h>
#include <math.h>
#include <signal.h>

#include "repl/compare/change.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"
#include "repl/app/prompts.h"

struct run {
    struct parity all;
    struct prompts file;
    FILE *kept[MAX_SIDES]; /* outcomes of a side, if the engines are open one after the other */
    bool in_turn;     /* they are */
    struct stop stop; /* of readings of replies (--kl): set by signals */
    int open;         /* side of the engine that is open; -1: none */
    int done, to_do;  /* replies, for the progress */
    /* the batch that is running */
    struct parity_reply *into;
    int n_into;
    const struct prompt *asked;
};

static void parity_reply_free(struct parity_reply *o)
{
    ids_free(&o->ids);
    ids_free(&o->prompt);
    FREE(o->text, o->logp, o->margin);
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
    if (r->all.servers || r->all.c->kl)
        ids_cat(&o->prompt, ev->prompt.v, ev->prompt.n);
    if (r->all.servers)
        o->text = xstrdup(buf_text(&ev->text));
    take_numbers(o, ev, r->all.side[r->open].word != NULL);
    if (o->refused)
        snprintf(o->why, sizeof o->why, "%s", buf_text(&ev->text));
    else if (r->asked[ev->batch.index].answer)
        number_find(buf_text(&ev->text), o->answer);
    r->done++;
    if (!r->all.c->opt.quiet)
        cli_progress(NULL, "replies", (uint64_t)r->done, (uint64_t)r->to_do);
}

static void take_event(void *arg, struct event *ev)
{
    struct run *r = arg;
    const char *text = buf_text(&ev->text);
    if (ev->kind == EV_BATCH_REPLY)
        take_reply(r, ev);
    else if (ev->kind == EV_NOTICE && !r->all.c->opt.quiet)
        cli_complain(NULL, text);
    else if (ev->kind == EV_FAULT) {
        FREED(free_at) char *line = xasprintf("%c: %s", r->all.side[r->open].name, text);
        cli_complain(NULL, line);
        r->all.fault = ev->fault;
        r->all.fault_side = r->all.side[r->open].name;
    }
    event_free(ev);
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
    cli_listen(r->all.g, &r->all.signal, take_event, r);
    return true;
}

/* Empties the engine and gives it the conversation before a prompt. */
static bool set_past(struct run *r, const struct prompt *p, struct err *e)
{
    const char *system = p->system ? p->system : r->all.c->opt.system;
    struct request rq = {.kind = p->n_past ? RQ_RESUME : RQ_NEW,
                         .text = xstrdup(system ? system : ""),
                         .next_turn = p->n_past + 1};
    for (int i = 0; i < p->n_past; i++)
        past_add(&rq.past, &rq.n_past, p->past[i].turn, p->past[i].user, p->past[i].reply);
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
        FREED(buf_free) struct buf needs = {0};
        int on = bug_on(&s->opts.bugs, (enum bug)b);
        if (on && facts_unmet_needs(backend_info(r->all.g), &s->opts.settings, (enum bug)b, on,
                                    &needs)) {
            char *line = xasprintf("%c: fault %d is on, but cannot fire; it needs %s", s->name,
                                   bug_at((enum bug)b)->number, needs.p);
            cli_complain(NULL, line);
            free(line);
        }
    }
}

static bool open_engine(struct run *r, int side, struct err *e)
{
    struct parity *p = &r->all;
    backend_close(p->g);
    p->g = side_open(p, side, cli_complain, e);
    return p->g != NULL;
}

/* If one of the sides is a server, each side has a backend of its own: opens it and makes it the
 * current one. */
static bool use_own(struct run *r, int side, struct err *e)
{
    struct parity *p = &r->all;
    if (!p->own[side])
        p->own[side] = side_open(p, side, cli_complain, e);
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
    if (first || r->in_turn) {
        ok = open_engine(r, side, e);
        for (int i = 0; ok && !p->c->opt.quiet && i < p->n_side; i++)
            if (i == side || !r->in_turn)
                note_idle_bugs(r, &p->side[i]);
    } else {
        FREED(buf_free) struct buf lines = {0};
        change_lines(&p->side[r->open].opts, &p->side[side].opts, &lines);
        FOR_LINES(l, lines.p) {
            struct request rq = {.kind = RQ_SET, .text = line_copy(l)};
            if (!(ok = send(r, &rq, e)))
                break;
        }
    }
    r->open = side;
    return ok;
}

/* ---- outcomes that wait ---------------------------------------------------------------------- */

static bool put_values(FILE *f, const void *v, size_t size, int n)
{
    return n == 0 || !v || fwrite(v, size, (size_t)n, f) == (size_t)n;
}

static bool keep_outcome(struct run *r, int side, const struct parity_reply *o, int n,
                         struct err *e)
{
    FILE *f = r->kept[side];
    bool ok = true;
    for (int i = 0; ok && i < n; i++)
        ok = put_values(f, &o[i], sizeof o[i], 1) &&
             put_values(f, o[i].ids.v, sizeof *o[i].ids.v, o[i].ids.n) &&
             put_values(f, o[i].logp, sizeof *o[i].logp, o[i].ids.n) &&
             put_values(f, o[i].margin, sizeof *o[i].margin, o[i].ids.n);
    return ok || err_set(e, ERR_USAGE, "cannot keep the replies of %c in a file: %s",
                         r->all.side[side].name, strerror(errno));
}

static bool get(FILE *f, void *v, size_t size, int n)
{
    return n == 0 || fread(v, size, (size_t)n, f) == (size_t)n;
}

static bool take_back(struct run *r, int side, struct parity_reply *o, int n, struct err *e)
{
    FILE *f = r->kept[side];
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = get(f, &o[i], sizeof o[i], 1);
        struct ids ids = {0};
        ids.n = ids.cap = ok ? o[i].ids.n : 0;
        ids.v = ids.n ? xcalloc((size_t)ids.n, sizeof *ids.v) : NULL;
        ok = ok && get(f, ids.v, sizeof *ids.v, ids.n);
        bool known =
            ok && o[i].logp != NULL; /* tests whether there were values: the pointer itself is
                                        stale */
        o[i].ids = ids;
        o[i].prompt = (struct ids){0};
        o[i].logp = known ? xcalloc((size_t)ids.n + 1, sizeof *o[i].logp) : NULL;
        o[i].margin = known ? xcalloc((size_t)ids.n + 1, sizeof *o[i].margin) : NULL;
        ok = ok && (!known || (get(f, o[i].logp, sizeof *o[i].logp, ids.n) &&
                               get(f, o[i].margin, sizeof *o[i].margin, ids.n)));
    }
    return ok || err_set(e, ERR_USAGE, "cannot read the kept replies of %c: %s",
                         r->all.side[side].name, strerror(errno));
}

/* ---- replies read as prompts (--kl) ---------------------------------------------------------- */

/* Reads each reply behind its prompt as one prompt, and adds how far its log probabilities are from
 * those at decode. */
static bool read_replies(struct run *r, int side, const struct parity_reply *o, int n,
                         struct err *e)
{
    struct side *s = &r->all.side[side];
    struct kl_source from = {.stop = &r->stop, .u = s->upkeep, .b = r->all.g};
    bool ok = true;
    if (s->upkeep)
        kl_of_server(&from);
    else
        kl_of_backend(&from);
    for (int i = 0; ok && i < n && !over(r); i++) {
        FREED(ids_free) struct ids both = {0};
        if (!o[i].there || o[i].refused || !o[i].prompt.n || !o[i].ids.n || !o[i].logp)
            continue;
        ids_cat(&both, o[i].prompt.v, o[i].prompt.n);
        ids_cat(&both, o[i].ids.v, o[i].ids.n);
        FREED(free_at) float *logp = xmalloc((size_t)both.n * sizeof *logp);
        for (int k = 0; k < both.n; k++)
            logp[k] = NAN;
        ok = from.score(&from, &both, o[i].prompt.n, logp, e) ||
             err_prefix(e, "%c: --kl", s->name);
        if (ok)
            kl_add(&s->read, &(struct kl_reply){.n_prompt = o[i].prompt.n, .n = o[i].ids.n,
                                                .decoded = o[i].logp,
                                                .read = logp + o[i].prompt.n});
    }
    for (int sig; (sig = interrupt_next()) != 0;)
        r->all.signal = sig;
    return ok || r->all.signal;
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void compare(struct run *r, const struct prompt *p, int n, int number,
                    struct parity_reply *const out[MAX_SIDES])
{
    for (int i = 0; i < n; i++) {
        const struct parity_reply *all[MAX_SIDES];
        bool there = true;
        for (int k = 0; k < r->all.n_side; k++) {
            all[k] = &out[k][i];
            there = there && all[k]->there;
        }
        if (there)
            parity_report(&r->all, number + i, p[i].line, p[i].answer, all);
    }
}

/* A control: computes the prompts once more on a server, and compares with the first time. */
static bool control(struct run *r, int side, const struct prompt *p, int n,
                    const struct parity_reply *first, struct err *e)
{
    struct side *s = &r->all.side[side];
    if (!s->opts.server.url || over(r))
        return true;
    FREED(free_at) struct parity_reply *again = xcalloc((size_t)n, sizeof *again);
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
    return ok;
}

enum { ALL_SIDES = -1 };

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

/* One side's replies: computed, and, in turn with others, kept. */
static bool one_side(struct run *r, int side, const struct prompt *p, int n,
                     struct parity_reply *out, struct err *e)
{
    side_reset_cache(&r->all.side[side]);
    return use(r, side, e) && compute(r, p, n, out, e) &&
           (!r->all.c->kl || over(r) || read_replies(r, side, out, n, e));
}

/* only: the side that this run over the prompts computes; the last one compares with what was kept
 * of the others. */
static bool chunk(struct run *r, int only, const struct prompt *p, int n, int number,
                  struct parity_reply *const out[MAX_SIDES], struct err *e)
{
    int last = r->all.n_side - 1;
    bool ok = true;
    if (only >= 0 && only < last)
        return one_side(r, only, p, n, out[only], e) && keep_outcome(r, only, out[only], n, e);
    for (int side = 0; ok && side <= last && !over(r); side++)
        ok = only == last && side < last ? take_back(r, side, out[side], n, e)
                                         : one_side(r, side, p, n, out[side], e);
    if (!ok)
        return false;
    compare(r, p, n, number, out);
    for (int side = 0; ok && r->all.c->control && side <= last; side++)
        ok = control(r, side, p, n, out[side], e);
    return ok;
}

static bool run_from(struct run *r, int only, int most, struct err *e)
{
    FREED(free_at) struct prompt *p = xcalloc((size_t)most, sizeof *p);
    struct parity_reply *out[MAX_SIDES];
    int n_side = r->all.n_side;
    bool ok = true;
    for (int k = 0; k < n_side; k++)
        out[k] = xcalloc((size_t)most, sizeof *out[k]);
    for (int number = 1, n = 1; ok && n > 0 && !over(r); number += n) {
        n = read_chunk(r, p, most, e);
        ok = n >= 0 && (n == 0 || chunk(r, only, p, n, number, out, e));
        for (int i = 0; i < n; i++) {
            prompt_free(&p[i]);
            for (int k = 0; k < n_side; k++)
                parity_reply_free(&out[k][i]);
        }
    }
    for (int k = 0; k < n_side; k++)
        free(out[k]);
    return ok;
}

static bool any_reopens(const struct parity *p)
{
    bool any = false;
    for (int i = 1; i < p->n_side; i++)
        any |= change_reopens(&p->side[i - 1].opts, &p->side[i].opts);
    return any;
}

static bool compare_in_turn(struct run *r, int most, struct err *e)
{
    bool ok = true;
    r->in_turn = true;
    for (int k = 0; k + 1 < r->all.n_side; k++) {
        r->kept[k] = temporary_file();
        if (!r->kept[k])
            return err_set(e, ERR_USAGE, "cannot make a file for the replies of %c: %s",
                           r->all.side[k].name, strerror(errno));
    }
    for (int k = 0; ok && k < r->all.n_side && !over(r); k++) {
        if (k)
            prompts_rewind(&r->file);
        for (int i = 0; k + 1 == r->all.n_side && i < k; i++)
            rewind(r->kept[i]);
        ok = run_from(r, k, most, e);
    }
    return ok;
}

static bool compare_prompts(struct run *r, struct err *e)
{
    struct parity *p = &r->all;
    int lanes = p->side[0].opts.lanes, most = p->servers && lanes == 1 ? 1 : 4 * lanes, each = 0;
    bool ok = true;
    for (int i = 0; i < p->n_side; i++)
        each += 1 + (p->c->control && p->side[i].word);
    r->to_do = each * r->file.n;
    /* servers: all are asked before the first prompt is; a local engine first loads */
    for (int i = p->n_side - 1; ok && p->servers && i >= 0; i--)
        ok = use(r, i, e);
    if (!ok)
        return false;
    return p->servers || !any_reopens(p) ? run_from(r, ALL_SIDES, most, e)
                                         : compare_in_turn(r, most, e);
}

/* ---- the command ----------------------------------------------------------------------------- */

int cli_parity(struct cli *c)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct err e = {0};
    struct run r = {.all.c = c, .open = -1};
    bool ok =
        sides_set(&r.all, &e) && prompts_open(&r.file, c->word[0], c->most, cli_complain, &e);
    bool began = ok && interrupt_open(caught, 3, false, NULL, &e);
    r.stop.running = 1;
    if (began)
        interrupt_cancels(&r.stop);
    r.all.n = r.file.n;
    ok = began && compare_prompts(&r, &e);
    cli_progress_end();
    for (int i = 0; began && i < r.all.n_side; i++)
        side_meter(&r.all.side[i]);
    int rc = ok || r.all.compared ? parity_verdict(&r.all) : 0;
    if (!ok)
        rc = cli_fail(&e);
    if (!r.all.servers)
        backend_close(r.all.g);
    for (int i = 0; i < MAX_SIDES; i++)
        backend_close(r.all.own[i]);
    interrupt_close();
    prompts_close(&r.file);
    for (int i = 0; i < MAX_SIDES; i++)
        if (r.kept[i])
            fclose(r.kept[i]);
    sides_free(&r.all);
    return rc;
}
