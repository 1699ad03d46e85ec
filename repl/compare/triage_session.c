/* triage_session.c - gathers the facts of a saved session for its triage: the counts of its steps,
 * and what the same head does again on the same tokens, on an engine of its own. See triage.h. */
#include "repl/compare/triage.h"

#include <math.h>

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
    struct kept_text {
        struct ids ids;
        int32_t *guess; /* (ids.n) the logged guesses; NULL: a text of triage's own */
        bool *skip;     /* (ids.n) not a token of a reply, or not of the sample */
    } *kept;            /* (n_text) what the texts point to */
    int n_text;
    struct buf spelt; /* of token_of() */
    int checked, held; /* of the run with the checker: tokens computed; of its last turn */
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
    return buf_text(&g->spelt);
}

static void count_steps(struct gathering *g)
{
    struct accepted *a = &g->t->log;
    FOR_EACH(const struct act, x, g->script.act, g->script.n) {
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
        FREED(free_at) char *value = facts_value(lines, name);
        size_t at = strlen(out);
        if (value && strcmp(value, "off") != 0 && !seen[b])
            snprintf(out + at, room - at, "%s%d %s", at ? ", " : "", bug_at((enum bug)b)->number,
                     value);
        seen[b] |= value != NULL;
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
    FOR_EACH(const struct act, a, g->script.act, g->script.n) {
        const char *lines = is_ours(g, a) ? a->user.sampling : NULL;
        if (!lines)
            continue;
        if (settings_parse(&set, lines, &none))
            t->temperature = set.temperature;
        t->steered |= facts_steered(lines);
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
    FREED(free_at) char *v = facts_value(about, name);
    if (v && strcmp(v, "fp8") == 0)
        snprintf(out, room, "%s", v);
}

static void read_about(struct gathering *g)
{
    const char *about = g->opened->about;
    struct triage *t = g->t;
    copy_fact(about, "kv", t->cells, sizeof t->cells);
    copy_fact(about, "draft_weights", t->weights, sizeof t->weights);
    if (!t->weights[0])
        copy_fact(about, "weights", t->weights, sizeof t->weights);
    FREED(free_at) char *raw = facts_value(about, "raw");
    t->raw = raw && strcmp(raw, "0") != 0;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* What the session's draft guessed for each token of the reply, where its steps are logged. */
static void read_guesses(const struct act *a, const struct ids *ids, int32_t *guess)
{
    FOR_EACH(const struct step_row, r, a->step, a->n_step) {
        int root = r->rec.pos0;
        if (r->tree && r->tree->n > 1 && root >= 0 && root + 1 < ids->n &&
            r->tree->token[0] == ids->v[root])
            guess[root + 1] = r->tree->token[1];
    }
}

/* Adds a text, whose ids are taken over. of_session: its replies are marked later. */
static void add_text(struct gathering *g, struct ids *ids, int first, bool of_session)
{
    int i = g->n_text++;
    size_t n = (size_t)g->n_text, each = (size_t)ids->n;
    g->text = xrealloc(g->text, n, sizeof *g->text);
    g->kept = xrealloc(g->kept, n, sizeof *g->kept);
    struct kept_text *k = &g->kept[i];
    *k = (struct kept_text){.ids = *ids};
    if (of_session) {
        k->guess = xcalloc(each, sizeof *k->guess);
        k->skip = xcalloc(each, sizeof *k->skip);
        memset(k->guess, 0xFF, each * sizeof *k->guess); /* -1 */
        memset(k->skip, true, each * sizeof *k->skip);
    } else {
        g->t->reply_tokens += ids->n - first;
    }
    g->text[i] = (struct redraft_text){.id = ids->v, .n = ids->n, .first = first, .skip = k->skip,
                                       .guess = k->guess};
    *ids = (struct ids){0};
}

/* The text that begins with these ids; -1: there is none. */
static int continues(const struct gathering *g, const struct ids *ids)
{
    for (int i = 0; i < g->n_text; i++)
        if (g->kept[i].ids.n >= ids->n &&
            memcmp(g->kept[i].ids.v, ids->v, (size_t)ids->n * sizeof *ids->v) == 0)
            return i;
    return -1;
}

/* Marks the reply of a turn in the text that begins with the turn's ids. */
static void mark_reply(struct gathering *g, int at, const struct act *a, const struct ids *ids)
{
    struct kept_text *k = &g->kept[at];
    int first = max_int(a->user.tokens.n, 2);
    for (int i = first; i < ids->n; i++) {
        g->t->reply_tokens += k->skip[i];
        k->skip[i] = false;
    }
    g->text[at].first = min_int(g->text[at].first, first);
    g->t->replies++;
    read_guesses(a, ids, k->guess);
}

/* If the texts that fit have more tokens of replies than are scored, leaves as many as are, evenly
 * spread: the contexts before them are of all lengths. */
static void thin_out(struct gathering *g)
{
    int all = 0, seen = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0, rows = 0; i < g->n_text; i++) {
            struct kept_text *k = &g->kept[i];
            int n = min_int(k->ids.n, REDRAFT_CONTEXT - rows);
            rows += n;
            for (int x = 0; x < n; x++) {
                if (k->skip[x])
                    continue;
                all += pass == 0;
                if (pass == 0 || all <= REDRAFT_TOKENS)
                    continue;
                int64_t at = mul64(seen++, REDRAFT_TOKENS);
                k->skip[x] = at / all == (at + REDRAFT_TOKENS) / all;
            }
        }
}

/* The latest turns first: their contexts are the longest, and hold the earlier turns, which are run
 * once with them. */
static void read_texts(struct gathering *g)
{
    for (int i = g->script.n - 1; i >= 0; i--) {
        const struct act *a = &g->script.act[i];
        struct ids ids = {0};
        if (!is_ours(g, a) || a->user.tokens.n < 2 || a->reply.tokens.n < 2)
            continue;
        ids_cat(&ids, a->user.tokens.v, a->user.tokens.n);
        ids_cat(&ids, a->reply.tokens.v, a->reply.tokens.n);
        int at = continues(g, &ids);
        if (at < 0) {
            struct ids text = {0};
            ids_cat(&text, ids.v, ids.n);
            at = g->n_text;
            add_text(g, &text, text.n, true);
        }
        mark_reply(g, at, a, &ids);
        ids_free(&ids);
    }
    thin_out(g);
}

static bool ids_fit(const struct gathering *g)
{
    for (int x = 0; x < g->n_text; x++)
        for (int i = 0; i < g->text[x].n; i++)
            if (g->text[x].id[i] < 0 || g->text[x].id[i] >= g->l.model.cfg.vocab)
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

static void progress(const struct gathering *g, const char *what, int done, int total)
{
    if (g->a->progress)
        g->a->progress(g->a->progress_arg, what, (uint64_t)done, (uint64_t)total);
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
 * sampled or had penalties, how many first guesses are right in greedy replies, without penalties,
 * to prompts that are. */
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
    bool ok = true, asks = t->other_prompts || t->temperature > 0 || t->steered;
    for (int i = 0; i < n && ok && asks; i++) {
        progress(g, "replies", i, n);
        is_rendered(g, message[i], &text[i]);
        FREED(ids_free) struct ids asked = {0};
        ids_cat(&asked, text[i].v, text[i].n);
        ok = asked.n && redraft_answer(&g->l, &asked, ANSWER, g->a->stop, &text[i], e);
        ask[i] = (struct redraft_text){.id = text[i].v, .n = text[i].n, .first = asked.n};
    }
    if (ok && asks) {
        struct undone *u = t->other_prompts ? &t->format : &t->greedy;
        struct redraft_opts o = ask_of(g);
        FREED(free_at) struct redraft *re = xcalloc(1, sizeof *re);
        o.text = ask;
        o.n_text = n;
        o.which = REDRAFT_AS_IS;
        ok = redraft_run(&o, re, e);
        *u = (struct undone){.known = ok && re->tokens, .hits = re->r[0].hits,
                             .tokens = re->tokens, .what = "greedy replies to the same messages"};
        if (t->other_prompts)
            snprintf(u->what, sizeof u->what, "greedy replies to prompts in the %s format",
                     t->format_name);
    }
    for (int i = 0; i < ANSWERS; i++)
        ids_free(&text[i]);
    return ok;
}

/* Whether only what could not be measured is missing: the model did not fit the device, or no text
 * could be measured. False: stopped, a rule was violated, or the device failed. */
static bool goes_on(const struct gathering *g, const struct err *e)
{
    return (e->kind == ERR_NEGATIVE || e->kind == ERR_MODEL) && !stop_asked(g->a->stop) &&
           (!g->loaded || g->l.dev.k->sync(g->l.dev.d, NULL));
}

/* The same without quantized cells and draft weights, if that fits the device. */
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
        return goes_on(g, e);
    struct redraft_opts ask = ask_of(g);
    ask.which = REDRAFT_AS_IS;
    FREED(free_at) struct redraft *re = xcalloc(1, sizeof *re);
    bool ok = redraft_run(&ask, re, e);
    t->plain = (struct undone){.known = ok && re->tokens,
                               .hits = re->r[0].hits,
                               .tokens = re->tokens,
                               .what = "cells and weights as the files have them"};
    return ok || goes_on(g, e);
}

/* A turn of the run with the checker ended: the run ends with REDRAFT_CONTEXT computed tokens. */
static bool checked_turn(void *arg, const struct act *a, const struct event *)
{
    struct gathering *g = arg;
    int before = a->user.tokens.n < g->held ? 0 : g->held; /* a prompt goes on after a reply */
    g->checked += a->user.tokens.n - before + a->reply.tokens.n;
    g->held = a->user.tokens.n + a->reply.tokens.n;
    progress(g, "checker", min_int(g->checked, REDRAFT_CONTEXT), REDRAFT_CONTEXT);
    return g->checked < REDRAFT_CONTEXT && !stop_asked(g->a->stop);
}

/* Runs the session again with the strict checker, where something is wrong that the head alone does
 * not show. */
static void find_rule(struct gathering *g)
{
    struct triage *t = g->t;
    FREED(run_facts_free) struct run_facts f = {0};
    struct err none;
    int same = t->re.tokens ? t->re.r[0].same : 0;
    bool other = t->re.logged && (t->re.logged - same) * 100 > LOST * t->re.logged;
    bool silent = t->drafting && t->drafter[0] && t->log.drafts.cycles == 0;
    if (t->rule[0] || facts_served(g->opened->about) || (!other && !silent && !t->faults[0]))
        return;
    struct diff_side side = {.script = &g->script, .how = g->a->how, .ended = checked_turn,
                             .arg = g};
    struct run_ask ask = {.strict = true};
    unload(g); /* a GPU may not hold the weights twice */
    if (!side_run(&side, &ask, &f, &none))
        return;
    progress_end(g);
    if (f.rule[0]) {
        snprintf(t->rule, sizeof t->rule, "%.250s", f.rule);
        t->rule_number = f.at.rule;
        t->rule_again = true;
    }
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
    FREED(free_at) struct triage_verdict *v = xcalloc(1, sizeof *v);
    triage_judge(t, v);
    return v->is == TRIAGE_CAUSE;
}

/* The head runs over greedy replies of the target to messages from the n-th on, too, until `want`
 * tokens are scored. *own: texts of the session. */
static bool measure_until(struct gathering *g, int want, int *n, int own, struct err *e)
{
    struct triage *t = g->t;
    int tokens = t->re.tokens;
    bool ok = true;
    for (; ok && tokens < want && redraft_message(*n); ++*n) {
        struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)redraft_message(*n)};
        FREED(ids_free) struct ids prompt = {0}, text = {0};
        progress(g, "replies", tokens, want);
        ok = chat_render(g->l.chat, &m, 1, &prompt, e);
        ids_cat(&text, prompt.v, prompt.n);
        ok = ok && redraft_answer(&g->l, &prompt, ANSWER, g->a->stop, &text, e);
        tokens += text.n - prompt.n;
        if (ok && text.n > prompt.n)
            add_text(g, &text, prompt.n, false);
    }
    struct redraft_opts o = ask_of(g);
    char constant[sizeof t->re.constant];
    memcpy(constant, t->re.constant, sizeof constant);
    o.uploaded = true;
    ok = ok && redraft_run(&o, &t->re, e);
    progress_end(g);
    memcpy(t->re.constant, constant, sizeof constant);
    t->more = max_int(0, t->re.texts - own);
    return ok;
}

/* More is measured if the head is not nearly always right and nothing is clear yet: of a short
 * session to as many tokens as say something, then to all that there are if some reading gains, but
 * on too few. */
static bool measure_more(struct gathering *g, struct err *e)
{
    struct triage *t = g->t;
    int n = 0, own = g->n_text;
    bool ok = true;
    for (int want = ENOUGH; ok && want <= REDRAFT_TOKENS; want += REDRAFT_TOKENS - ENOUGH) {
        bool open = t->re.tokens < ENOUGH || (want > ENOUGH && triage_is_open(t));
        if (open && t->re.tokens < want && redraft_message(n) && !g->how.opts.raw &&
            t->re.r[0].hits * 100 < RIGHT * t->re.tokens && !is_explained(t)) {
            const struct redraft was = t->re;
            ok = measure_until(g, want, &n, own, e);
            if (!ok && goes_on(g, e)) {
                t->re = was;
                return true;
            }
        }
    }
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
        if (can && g->how.opts.draft && g->l.draft_off)
            why = g->l.draft_off; /* the draft that was asked for */
        snprintf(t->no_re, sizeof t->no_re, "%.190s", !can ? e->msg : why ? why : "the session's "
                 "ids are those of another vocabulary");
        return true;
    }
    struct redraft_opts o = ask_of(g);
    bool ok = redraft_run(&o, &t->re, e);
    progress_end(g);
    if (!ok && goes_on(g, e)) {
        snprintf(t->no_re, sizeof t->no_re, "%.190s", e->msg);
        return true;
    }
    return ok && measure_more(g, e) &&
           (measure_format(g, &g->how.opts, e) || goes_on(g, e)) &&
           measure_plain(g, &g->how.opts, e);
}

static bool gather(struct gathering *g, struct err *e)
{
    const struct act *last = NULL; /* the run is that of the last turn */
    FOR_EACH(const struct act, a, g->script.act, g->script.n) {
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
        ids_free(&g.kept[i].ids);
        FREE(g.kept[i].guess, g.kept[i].skip);
    }
    FREE(g.text, g.kept);
    buf_free(&g.spelt);
    bool silent = t->drafting && t->drafter[0] && t->log.plain > 0; /* that is what is wrong */
    return ok && (t->log.drafts.cycles > 0 || silent ||
                  err_set(e, ERR_NEGATIVE, "%s: nothing was drafted, so there is no acceptance to "
                                           "explain", ask->name));
}
