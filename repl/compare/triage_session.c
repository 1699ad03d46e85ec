/* triage_session.c - gathers the facts of a saved session for its triage: the counts of its steps,
 * and what the same head does again on the same tokens, on an engine of its own. See triage.h. */
#include "repl/compare/triage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/thread/load.h"
#include "repl/compare/facts.h"
#include "repl/compare/side.h"

enum { CHAIN = 5, ANSWER = 96, ANSWERS = 3, LOST = 3, ENOUGH = 192, RIGHT = 92 };

struct gathering {
    const struct triage_ask *a;
    struct triage *t;
    struct script script;
    const struct act *opened; /* the last OP_OPEN or OP_RESUME */
    struct logged_engine how;
    struct loaded l;
    bool loaded;
    struct redraft_text *text; /* (n_text) */
    struct ids *ids;           /* (n_text) the texts' tokens; */
    int32_t **guess;           /* (n_text) and the logged guesses */
    int n_text;
    struct buf spelt; /* of token_of() */
};

/* Whether the act is a turn of the run that is explained: the last one, with its drafter. */
static bool is_ours(const struct gathering *g, const struct act *a)
{
    return a->is_turn && strcmp(a->about ? a->about : "", g->opened->about) == 0;
}

/* ---- counts ---------------------------------------------------------------------------------- */

static const char *token_of(void *arg, int32_t id, size_t *n)
{
    struct gathering *g = arg;
    const char *p = g->loaded ? tok_bytes(g->l.tok, id, n) : NULL;
    if (p)
        return p;
    buf_clear(&g->spelt);
    hdb_token_text(g->a->db, g->a->session, id, &g->spelt);
    *n = g->spelt.n;
    return g->spelt.n ? g->spelt.p : "";
}

static void count_steps(struct gathering *g)
{
    struct accepted *a = &g->t->log;
    for (int i = 0; i < g->script.n; i++) {
        const struct act *x = &g->script.act[i];
        for (int k = 0; is_ours(g, x) && k < x->n_step; k++) {
            const struct step_row *r = &x->step[k];
            struct accepted_step s = {.turn = x->user.n, .rec = &r->rec, .tree = r->tree,
                                      .token = r->tokens.v, .fact = r->facts, .n = r->tokens.n};
            g->t->per_depth |= r->rec.drafted > 0;
            accepted_add(a, &s, token_of, g);
        }
        if (is_ours(g, x) && x->fault && x->rule) {
            snprintf(g->t->rule, sizeof g->t->rule, "%.250s", x->fault);
            g->t->rule_number = x->rule;
        }
    }
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Adds the faults that the lines switch on. */
static void read_faults(const char *lines, bool seen[N_BUGS], char *out, size_t room)
{
    for (int b = 0; b < N_BUGS; b++) {
        char name[32];
        snprintf(name, sizeof name, "bug.%d", bug_at((enum bug)b)->number);
        char *value = facts_value(lines, name);
        size_t at = strlen(out);
        if (value && strcmp(value, "off") != 0 && !seen[b])
            snprintf(out + at, room - at, "%s%d %s", at ? ", " : "", bug_at((enum bug)b)->number,
                     value);
        seen[b] |= value != NULL;
        free(value);
    }
}

/* The settings of the last turn, and the faults that were on in any. */
static void read_settings(struct gathering *g)
{
    struct triage *t = g->t;
    struct settings set;
    struct err none;
    bool seen[N_BUGS] = {0};
    settings_init(&set);
    for (int i = 0; i < g->script.n; i++) {
        const struct act *a = &g->script.act[i];
        const char *lines = is_ours(g, a) ? a->user.sampling : NULL;
        if (lines && settings_parse(&set, lines, &none))
            t->temperature = set.temperature;
        if (lines)
            read_faults(lines, seen, t->faults, sizeof t->faults);
    }
    t->drafting = set.spec;
    t->steps = set.steps;
    t->topk = set.topk;
    t->nodes = set.nodes;
    t->sees = set.draft_window;
}

static void copy_fact(const char *about, const char *name, char *out, size_t room)
{
    char *v = facts_value(about, name);
    if (v && strcmp(v, "fp8") == 0)
        snprintf(out, room, "%s", v);
    free(v);
}

static void read_about(struct gathering *g)
{
    const char *about = g->opened->about;
    struct triage *t = g->t;
    copy_fact(about, "kv", t->cells, sizeof t->cells);
    copy_fact(about, "draft_weights", t->weights, sizeof t->weights);
    if (!t->weights[0])
        copy_fact(about, "weights", t->weights, sizeof t->weights);
    char *raw = facts_value(about, "raw");
    t->raw = raw && strcmp(raw, "0") != 0;
    free(raw);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* What the session's draft guessed for each token of the text, where its steps are logged. */
static void read_guesses(const struct act *a, const struct ids *ids, int32_t *guess)
{
    for (int i = 0; i < ids->n; i++)
        guess[i] = -1;
    for (int k = 0; k < a->n_step; k++) {
        const struct step_row *r = &a->step[k];
        int root = r->rec.pos0;
        if (r->tree && r->tree->n > 1 && root >= 0 && root + 1 < ids->n &&
            r->tree->token[0] == ids->v[root])
            guess[root + 1] = r->tree->token[1];
    }
}

/* Adds a text, whose ids are taken over; a: the turn that it is; NULL: none of the session. */
static void add_text(struct gathering *g, struct ids *ids, int first, const struct act *a)
{
    int i = g->n_text++;
    size_t n = (size_t)g->n_text;
    g->text = xrealloc(g->text, n, sizeof *g->text);
    g->ids = xrealloc(g->ids, n, sizeof *g->ids);
    g->guess = xrealloc(g->guess, n, sizeof *g->guess);
    g->ids[i] = *ids;
    g->guess[i] = a ? xcalloc((size_t)ids->n + 1, sizeof **g->guess) : NULL;
    if (a)
        read_guesses(a, ids, g->guess[i]);
    g->text[i] = (struct redraft_text){.id = ids->v, .n = ids->n, .first = first,
                                       .guess = g->guess[i]};
    *ids = (struct ids){0};
}

/* The latest turns first: their contexts are the longest. */
static void read_texts(struct gathering *g)
{
    for (int i = g->script.n - 1; i >= 0; i--) {
        const struct act *a = &g->script.act[i];
        struct ids ids = {0};
        if (!is_ours(g, a) || a->user.tokens.n < 2 || a->reply.tokens.n < 2)
            continue;
        ids_cat(&ids, a->user.tokens.v, a->user.tokens.n);
        ids_cat(&ids, a->reply.tokens.v, a->reply.tokens.n);
        add_text(g, &ids, a->user.tokens.n, a);
    }
}

static bool ids_fit(const struct gathering *g)
{
    for (int x = 0; x < g->n_text; x++)
        for (int i = 0; i < g->ids[x].n; i++)
            if (g->ids[x].v[i] < 0 || g->ids[x].v[i] >= g->l.model.cfg.vocab)
                return false;
    return true;
}

/* ---- measured again -------------------------------------------------------------------------- */

static struct redraft_opts ask_of(struct gathering *g)
{
    return (struct redraft_opts){.l = &g->l, .text = g->text, .n_text = g->n_text, .chain = CHAIN,
                                 .sees = g->t->sees, .stop = g->a->stop,
                                 .progress = g->a->progress, .progress_arg = g->a->progress_arg};
}

static void progress_end(const struct gathering *g)
{
    if (g->a->progress_end)
        g->a->progress_end();
}

static bool load(struct gathering *g, const struct engine_opts *o, struct err *e)
{
    g->loaded = engine_load(&g->l, o, LOAD_DEVICE | LOAD_TEXT, e);
    progress_end(g);
    return g->loaded;
}

static void unload(struct gathering *g)
{
    if (g->loaded)
        engine_unload(&g->l);
    g->loaded = false;
}

/* Loads the model with its own chat format, if the session had none. False and *e. */
static bool own_format(struct gathering *g, const struct engine_opts *as, struct err *e)
{
    struct engine_opts o = *as;
    if (!o.raw)
        return true;
    unload(g);
    o.raw = false;
    return load(g, &o, e);
}

/* Whether the first message, rendered in the model's own format, is the logged prompt. */
static bool is_rendered(struct gathering *g, const struct act *a, struct ids *prompt)
{
    struct message m = {.role = ROLE_USER, .text = a->user.text};
    struct err none;
    return chat_render(g->l.chat, &m, 1, prompt, &none) && a->user.tokens.n &&
           ids_equal(prompt, &a->user.tokens);
}

/* The first messages of a session without a system prompt; how many. */
static int first_messages(const struct gathering *g, const struct act *out[ANSWERS])
{
    int n = 0;
    for (int i = 0; i < g->script.n && n < ANSWERS; i++) {
        const struct act *a = &g->script.act[i];
        if (!a->is_turn && a->op == OP_SYSTEM)
            break;
        if (is_ours(g, a) && a->user.text && a->user.text[0])
            out[n++] = a;
    }
    return n;
}

/* Whether the session's first prompt is in the model's own chat format; if not, or if replies were
 * sampled, how many first guesses are right in greedy replies to prompts that are. */
static bool measure_format(struct gathering *g, const struct engine_opts *as, struct err *e)
{
    struct triage *t = g->t;
    const struct act *message[ANSWERS];
    struct ids text[ANSWERS] = {{0}}, prompt = {0};
    struct redraft_text ask[ANSWERS];
    int n = first_messages(g, message);
    if (n == 0 || !own_format(g, as, e))
        return n == 0;
    snprintf(t->format_name, sizeof t->format_name, "%s", chat_name(g->l.chat));
    t->prompts = 1;
    t->other_prompts = !is_rendered(g, message[0], &prompt);
    ids_free(&prompt);
    bool ok = true, asks = t->other_prompts || t->temperature > 0;
    for (int i = 0; i < n && ok && asks; i++) {
        is_rendered(g, message[i], &text[i]);
        struct ids asked = {0};
        ids_cat(&asked, text[i].v, text[i].n);
        ok = asked.n && redraft_answer(&g->l, &asked, ANSWER, g->a->stop, &text[i], e);
        ask[i] = (struct redraft_text){.id = text[i].v, .n = text[i].n, .first = asked.n};
        ids_free(&asked);
    }
    if (ok && asks) {
        struct undone *u = t->other_prompts ? &t->format : &t->greedy;
        struct redraft_opts o = ask_of(g);
        struct redraft *re = xcalloc(1, sizeof *re);
        o.text = ask;
        o.n_text = n;
        o.which = REDRAFT_AS_IS;
        ok = redraft_run(&o, re, e);
        *u = (struct undone){.known = ok && re->tokens, .hits = re->r[0].hits,
                             .tokens = re->tokens, .what = "greedy replies to the same messages"};
        if (t->other_prompts)
            snprintf(u->what, sizeof u->what, "greedy replies to prompts in the %s format",
                     t->format_name);
        free(re);
    }
    for (int i = 0; i < ANSWERS; i++)
        ids_free(&text[i]);
    return ok;
}

/* The same without quantized cells and draft weights. */
static bool measure_plain(struct gathering *g, const struct engine_opts *as, struct err *e)
{
    struct triage *t = g->t;
    struct engine_opts o = *as;
    if (!t->cells[0] && !t->weights[0])
        return true;
    unload(g);
    o.kv = NULL;
    o.quant = (struct quant_opts){0};
    if (!load(g, &o, e))
        return false;
    struct redraft_opts ask = ask_of(g);
    ask.which = REDRAFT_AS_IS;
    struct redraft *re = xcalloc(1, sizeof *re);
    bool ok = redraft_run(&ask, re, e);
    t->plain = (struct undone){.known = ok && re->tokens,
                               .hits = re->r[0].hits,
                               .tokens = re->tokens,
                               .what = "cells and weights as the files have "
                                       "them"};
    free(re);
    return ok;
}

/* Runs the session again with the strict checker, where something is wrong that the head alone does
 * not show. */
static void find_rule(struct gathering *g)
{
    struct triage *t = g->t;
    struct run_facts f;
    struct err none;
    int same = t->re.tokens ? t->re.r[0].same : 0;
    bool other = t->re.logged && (t->re.logged - same) * 100 > LOST * t->re.logged;
    bool silent = t->drafting && t->drafter[0] && t->log.drafts.cycles == 0;
    if (t->rule[0] || facts_served(g->opened->about) || (!other && !silent && !t->faults[0]))
        return;
    struct diff_side side = {.script = &g->script, .how = g->a->how};
    struct run_ask ask = {.strict = true};
    if (!side_run(&side, &ask, &f, &none))
        return;
    progress_end(g);
    if (f.rule[0]) {
        snprintf(t->rule, sizeof t->rule, "%.250s", f.rule);
        t->rule_number = f.at.rule;
        t->rule_again = true;
    }
    run_facts_free(&f);
}

static void name_models(struct gathering *g)
{
    struct triage *t = g->t;
    const struct loaded *l = &g->l;
    size_t at = (size_t)snprintf(t->who, sizeof t->who, "%s, %d layers; %s", l->model.cfg.family,
                                 l->model.cfg.n_layer, l->has_draft ? l->draft.kind : "no draft");
    for (int i = 0; l->has_draft && i < l->draft.n_capture && at < sizeof t->who; i++)
        at += (size_t)snprintf(t->who + at, sizeof t->who - at, "%s%d", i ? "," : ", boundaries ",
                               l->draft.capture[i]);
    snprintf(t->drafter, sizeof t->drafter, "%s", l->has_draft ? l->draft.kind : "");
    t->log.window = l->model.cfg.window;
}

/* Whether what was measured names a cause already. */
static bool is_explained(const struct triage *t)
{
    struct triage_verdict *v = xcalloc(1, sizeof *v);
    triage_judge(t, v);
    bool yes = v->is == TRIAGE_CAUSE;
    free(v);
    return yes;
}

/* If the session is short, the head not nearly always right and nothing clear yet, the head runs
 * over greedy replies of the target to other messages, too. */
static bool measure_more(struct gathering *g, struct err *e)
{
    struct triage *t = g->t;
    int tokens = t->re.tokens, n = 0;
    bool ok = true;
    if (tokens >= ENOUGH || t->re.r[0].hits * 100 >= RIGHT * tokens || g->how.opts.raw ||
        is_explained(t))
        return true;
    for (; ok && tokens < ENOUGH && redraft_message(n); n++) {
        struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)redraft_message(n)};
        struct ids prompt = {0}, text = {0};
        ok = chat_render(g->l.chat, &m, 1, &prompt, e);
        ids_cat(&text, prompt.v, prompt.n);
        ok = ok && redraft_answer(&g->l, &prompt, ANSWER, g->a->stop, &text, e);
        tokens += text.n - prompt.n;
        if (ok)
            add_text(g, &text, prompt.n, NULL);
        ids_free(&text);
        ids_free(&prompt);
    }
    struct redraft_opts o = ask_of(g);
    char constant[sizeof t->re.constant];
    memcpy(constant, t->re.constant, sizeof constant);
    o.uploaded = true;
    ok = ok && redraft_run(&o, &t->re, e);
    progress_end(g);
    memcpy(t->re.constant, constant, sizeof constant);
    t->more = t->re.tokens > 0 ? n : 0;
    return ok;
}

/* Fills t->re, or says in t->no_re why not. False: stopped, or the device failed. */
static bool measure(struct gathering *g, struct err *e)
{
    struct triage *t = g->t;
    const char *why = NULL;
    struct rerun_how how = g->a->how;
    bool can = rerun_options(&g->how, &how, g->opened, e);
    g->how.opts.require_draft = false;
    can = can && load(g, &g->how.opts, e);
    if (can)
        name_models(g);
    count_steps(g);
    if (!can || !redraft_can(&g->l, &why) || !ids_fit(g)) {
        snprintf(t->no_re, sizeof t->no_re, "%.190s", !can ? e->msg : why ? why : "the session's "
                 "ids are those of another vocabulary");
        return true;
    }
    struct redraft_opts o = ask_of(g);
    bool ok = redraft_run(&o, &t->re, e);
    progress_end(g);
    if (!ok && e->kind == ERR_NEGATIVE && !stop_asked(g->a->stop)) {
        snprintf(t->no_re, sizeof t->no_re, "%.190s", e->msg);
        return true;
    }
    return ok && measure_more(g, e) && measure_format(g, &g->how.opts, e) &&
           measure_plain(g, &g->how.opts, e);
}

static bool gather(struct gathering *g, struct err *e)
{
    const struct act *last = NULL; /* the run is that of the last turn */
    for (int i = 0; i < g->script.n; i++) {
        const struct act *a = &g->script.act[i];
        if (!a->is_turn && (a->op == OP_OPEN || a->op == OP_RESUME))
            last = a;
        if (a->is_turn || !g->opened)
            g->opened = last;
    }
    if (!g->opened)
        return err_set(e, ERR_DB, "the log does not say what computed the session");
    g->t->temperature = NAN;
    read_settings(g);
    read_about(g);
    read_texts(g);
    if (!measure(g, e))
        return false;
    find_rule(g);
    return !stop_asked(g->a->stop) || err_set(e, ERR_NEGATIVE, "stopped");
}

bool triage_session(const struct triage_ask *ask, struct triage *t, struct err *e)
{
    struct gathering g = {.a = ask, .t = t};
    snprintf(t->name, sizeof t->name, "%.60s", ask->name);
    snprintf(t->of, sizeof t->of, "session %.40s", ask->name); /* no title: reports are pasted */
    bool ok = script_read(&g.script, ask->db, ask->session, e) && gather(&g, e);
    unload(&g);
    rerun_options_free(&g.how);
    script_free(&g.script);
    for (int i = 0; i < g.n_text; i++) {
        ids_free(&g.ids[i]);
        free(g.guess[i]);
    }
    free(g.text);
    free(g.ids);
    free(g.guess);
    buf_free(&g.spelt);
    bool silent = t->drafting && t->drafter[0] && t->log.plain > 0; /* that is what is wrong */
    return ok && (t->log.drafts.cycles > 0 || silent ||
                  err_set(e, ERR_NEGATIVE, "%s: nothing was drafted, so there is no acceptance to "
                          "explain", ask->name));
}
