/* pack_run.c - computes a session again for `aerie pack`: the plans of one step, and the control
 * run without drafting. Both need the model; see side.h. */

#include "kernels/json.h"
#include "repl/cli/pack.h"
#include "repl/compare/differ.h"
#include "repl/compare/facts.h"
#include "repl/compare/side.h"

struct watch {
    const struct pack_job *j;
    bool plans;            /* the step's plans are wanted */
    struct backend *b;
    struct backend_info info; /* its strings live as long as the backend */
    struct buf kept;          /* the plans; n 0: the step has not run */
    struct run_facts run;
};

/* The models must be those of the session; if anything else differs, the
 * report lists it. */
static bool on_opened(void *arg, struct backend *b, const char *about, const char *now,
                      struct err *e)
{
    struct watch *w = arg;
    FREED(facts_diff_free) struct facts_diff d = {0};
    FREED(buf_free) struct buf differs = {0};
    facts_compare(about, now, &d);
    facts_diff_print(&d, &differs);
    bool same = facts_same_models(&d);
    if (!same)
        err_set(e, ERR_USAGE, "the session was made with %s; -m and --draft name its models",
                differs.p);
    w->b = b;
    w->info = *backend_info(b);
    if (same && w->plans && !backend_has(b, VIEW_PLAN))
        same = err_set(e, ERR_USAGE, "no plan of a step: %s", b->lacks[VIEW_PLAN]);
    if (same && w->plans)
        b->plan->keep(b, w->j->turn, w->j->step);
    return same;
}

static bool on_ended(void *arg, const struct act *a, const struct event *)
{
    struct watch *w = arg;
    if (w->plans && a->user.n == w->j->turn) {
        w->kept.n = 0;
        w->b->plan->kept(w->b, &w->kept);
    }
    return true;
}

static bool rerun_pack(struct watch *w, const char *const *with, int n_with, struct err *e)
{
    const struct pack_job *j = w->j;
    FREED(script_free) struct script script = {0};
    struct cli *c = j->c;
    struct diff_side s = {.script = &script, .opened = on_opened, .ended = on_ended, .arg = w};
    struct run_ask ask = {.turn = j->turn, .step = w->plans ? j->step : 0, .row = -1, .layer = -1};
    s.how = cli_rerun(c);
    s.how.with = with;
    s.how.n_with = n_with;
    bool ok = script_read(&script, j->d, j->row->id, e);
    /* gives the logged prompt, which must not depend on the turns before it */
    script.by_ids |= !w->plans;
    ok = ok && side_run(&s, &ask, &w->run, e);
    cli_progress_end();
    return ok;
}

/* The turn as it was computed again; NULL: the run ended before it. */
static const struct trace_turn *turn_of(const struct watch *w)
{
    const struct trace *t = &w->run.trace;
    return t->n && t->turn[t->n - 1].n == w->j->turn ? &t->turn[t->n - 1] : NULL;
}

/* ---- plans ---- */

static void digest(struct buf *b, const char *key, uint64_t v)
{
    jput_key(b, key);
    jput_digest(b, v);
}

/* Sets every token of the plans to -1 and every digest, which covers tokens, to 0. */
static void hide_tokens(struct buf *plans)
{
    static const char tokens[] = "\"token\":[", digests[] = "\"digest\":\"";
    struct buf out = {0};
    for (char *p = plans->p; *p;) {
        bool ids = !strncmp(p, tokens, sizeof tokens - 1);
        if (!strncmp(p, digests, sizeof digests - 1))
            memset(p + sizeof digests - 1, '0', 16);
        if (!ids) {
            buf_char(&out, *p++);
            continue;
        }
        buf_str(&out, tokens);
        for (p += sizeof tokens - 1; *p != ']'; p += strcspn(p, ",]"), p += *p == ',')
            buf_str(&out, p[-1] == '[' ? "-1" : ",-1");
    }
    buf_free(plans);
    *plans = out;
}

static void print_step(const struct pack_job *j, const struct step_row *s, struct buf *b)
{
    const struct step_rec *r = &s->rec;
    jput_fields(b, "%s{kind}%d{prefix}%d{rows}%d{drafted}%d{accepted}", step_kind_name(r->kind),
                r->pos0, r->rows, r->drafted, r->accepted);
    jput_key(b, "tokens");
    FREED(ids_free) struct ids ids = {0};
    ids_cat(&ids, s->tokens.v, s->tokens.n);
    for (int i = 0; i < ids.n && j->level == PACK_SHAPE; i++)
        ids.v[i] = -1;
    jput_ints(b, ids.v, ids.n);
    if (j->level != PACK_SHAPE)
        digest(b, "logit_digest", r->logit_digest);
    jput_kbool(b, "equal", j->at.turn && j->at.rec.logit_digest == r->logit_digest);
    jput_key(b, "tree");
    if (!s->tree) {
        jput_open(b, '[');
        jput_close(b, ']');
        return;
    }
    struct tree t = *s->tree;
    for (int i = 0; i < t.n && j->level == PACK_SHAPE; i++)
        t.token[i] = -1;
    tree_json(&t, b);
}

static void print_plans(struct watch *w, struct buf *b)
{
    const struct pack_job *j = w->j;
    const struct trace_turn *t = turn_of(w);
    const struct step_row *s = t && j->step <= t->n_step ? &t->step[j->step - 1] : NULL;
    static const char *const sha[] = {"model_sha", "draft_sha"};
    if (j->level == PACK_SHAPE)
        hide_tokens(&w->kept);
    jput_open(b, '{');
    jput_fields(b, "%d{aerie_plan}%s{made_by}%s{session}%d{turn}%d{step}", 1,
                "aerie " AERIE_VERSION, j->row->id, j->turn, j->step);
    for (int i = 0; i < 2; i++) {
        FREED(free_at) char *v = facts_value(j->about.p, sha[i]);
        jput_kstr(b, sha[i], v);
    }
    jput_fields(b, "%d{page_size}%d{window}%d{layers}%d{sliding_layers}", w->info.page_size,
                w->info.window, w->info.n_layer, w->info.n_swa_layer);
    if (s)
        print_step(j, s, b);
    else /* the step failed: nothing was committed */
        jput_kstr(b, "kind", NULL), jput_key(b, "tree"), jput_raw(b, "[]");
    jput_key(b, "plans");
    jput_raw(b, w->kept.p);
    jput_close(b, '}');
    buf_char(b, '\n');
}

bool run_plan(struct pack_job *j, struct buf *out, struct err *e)
{
    struct watch w = {.j = j, .plans = true};
    bool ok = rerun_pack(&w, NULL, 0, e);
    if (ok && !w.kept.n)
        ok = err_set(e, ERR_NEGATIVE, "turn %d has no step %d when it is computed again", j->turn,
                     j->step);
    if (ok)
        print_plans(&w, out);
    run_facts_free(&w.run);
    buf_free(&w.kept);
    return ok;
}

/* ---- the control run ---- */

static void compare(const struct pack_job *j, const struct ids *now, struct buf *out)
{
    const struct ids *log = &j->reply.tokens;
    int i = ids_differ_at(log, now);
    buf_printf(out, "the same prompt without drafting (`spec=off`): ");
    if (i < 0)
        buf_printf(out, "all %d ids are equal.", log->n);
    else if (i == min_int(log->n, now->n))
        buf_printf(out, "the first %d ids are equal, then one reply ends (%d ids with drafting, %d "
                        "without).", i, log->n, now->n);
    else if (j->level == PACK_SHAPE)
        buf_printf(out, "id %d of the reply differs.", i);
    else
        buf_printf(out, "id %d of the reply differs: %d with drafting, %d without.", i, log->v[i],
                   now->v[i]);
}

void run_control(struct pack_job *j, struct buf *out)
{
    static const char *const off[] = {"spec=off"};
    struct watch w = {.j = j};
    struct err e = {0};
    bool ran = !j->reply.served && rerun_pack(&w, off, 1, &e) && turn_of(&w);
    if (ran)
        compare(j, &turn_of(&w)->reply, out);
    else
        buf_printf(out, j->reply.served
                            ? "not run: a server computed the reply. Where the model is, `aerie "
                              "replay %s --forced` gives its tokens to the local engine."
                            : "not run on this machine. Where the model is, `aerie replay %s "
                              "--with spec=off` runs it.", j->path);
    if (!ran && e.msg[0] && !j->c->opt.quiet)
        err_print("no control run: %s", e.msg);
    run_facts_free(&w.run);
}
