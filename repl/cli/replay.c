/* replay.c - `aerie replay`: runs a saved session again and compares the results with the log.
 *
 * Without changes, each step is compared with the log while it runs, in the order of cause and
 * effect: the page table, the draft, the logits, the tokens. The first difference ends the replay.
 * With changes (--with), repl/compare/differ.h decides from them which results must still be equal, and a
 * violated checker rule ends the replay with its name. Nothing is saved.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/cli/cli.h"
#include "repl/compare/differ.h"
#include "repl/compare/facts.h"
#include "repl/compare/rerun.h"
#include "repl/compare/verdict.h"

struct replay {
    struct cli *c;
    struct script script;
    struct rerun run;
    struct sheet sheet;
    struct trace log, now; /* with changes: turns of the log, and of this run */
    struct buf settings;   /* of the turn that runs */
    int next_step;
    int n_turns, n_steps; /* compared */
    bool text_only;       /* a turn without steps in the log was compared by its reply */
    bool ended;           /* the turn that runs */
    struct difference diff;
    struct conditions conditions;
    struct diff_counts counts;
    char fault[256]; /* with changes: the rule that the checker found violated; "": none */
    struct violation fault_at;
    int fault_turn, fault_step;
    struct check_view checks;
    char *other; /* other differences to that run (build, device), printed if the replay differs */
};

static const struct diff_names names = {"in the log", "now"};

static bool changed(const struct replay *r)
{
    return r->c->with.n > 0 || r->c->forced || r->script.served;
}

/* ---- as recorded: step by step --------------------------------------------------------------- */

/* Notes where the first difference lies, unless there is one already. */
static bool differs_at(struct replay *r, const struct act *a, int step)
{
    r->diff.turn = a->user.n;
    r->diff.step[0] = r->diff.step[1] = step;
    return true;
}

static void compare_ids(struct replay *r, const struct act *a, enum diff_class class, const struct ids *log,
                        const struct ids *now)
{
    if (!r->diff.class && differ_ids(log, now, class, &names, &r->diff))
        differs_at(r, a, 0);
}

static void set_difference(struct replay *r, const struct act *a, int step, enum diff_class class,
                           const char *why)
{
    if (r->diff.class)
        return;
    r->diff.class = class;
    snprintf(r->diff.why, sizeof r->diff.why, "%s", why);
    differs_at(r, a, step);
}

static void compare_step(struct replay *r, const struct act *a, const struct event *ev)
{
    struct step_row now = {.turn = ev->turn, .n = ev->step, .rec = ev->rec, .tokens = ev->tokens,
                           .tree = ev->tree};
    if (!a->n_step) {
        r->text_only |= a->reply.n_steps > 0;
    } else if (r->next_step < a->n_step) {
        const struct step_row *log = &a->step[r->next_step++];
        if (!r->diff.class && differ_step(log, &now, true, &names, &r->diff))
            differs_at(r, a, log->n);
        r->n_steps++;
    } else if (!act_cut_short(a)) {
        set_difference(r, a, ev->step, DIFF_SAMPLER, "the log has no such step");
    }
}

static void compare_end(struct replay *r, const struct act *a, const struct event *ev)
{
    char why[128];
    r->n_turns++;
    if (r->next_step < a->n_step) {
        snprintf(why, sizeof why, "the turn is over now (%s), not in the log", stop_name(ev->reason));
        set_difference(r, a, a->step[r->next_step].n, DIFF_SAMPLER, why);
    }
    compare_ids(r, a, DIFF_REPLY, &a->reply.tokens, &ev->tokens);
    if (!act_cut_short(a) && strcmp(a->reply.stop, stop_name(ev->reason)) != 0) {
        snprintf(why, sizeof why, "it ended with %s in the log, with %s now", a->reply.stop,
                 stop_name(ev->reason));
        set_difference(r, a, 0, DIFF_REPLY, why);
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

static bool shows(const struct replay *r)
{
    return r->c->opt.verbose && !r->c->opt.json && !changed(r);
}

static void show_user(struct replay *r, const struct act *a)
{
    if (!shows(r))
        return;
    sheet_printf(&r->sheet, ST_HEAD, "turn %d%s", a->user.n, a->user.regen ? "  (again)" : "");
    sheet_line(&r->sheet);
    cli_text(&r->sheet, ST_USER, a->user.text, a->user.text_n);
    cli_print(r->c, &r->sheet);
    out_flush();
}

static void show_reply(struct replay *r, const struct event *ev)
{
    if (!shows(r))
        return;
    cli_text(&r->sheet, ST_TEXT, ev->text.p ? ev->text.p : "", ev->text.n);
    sheet_printf(&r->sheet, r->diff.class ? ST_BAD : ST_GOOD, "[%s, %d step%s: %s]",
                 stop_name(ev->reason), ev->n_steps, plural(ev->n_steps), r->diff.class ? "differs" : "equal");
    sheet_line(&r->sheet);
    sheet_line(&r->sheet);
    cli_print(r->c, &r->sheet);
    out_flush();
}

/* ---- the run --------------------------------------------------------------------------------- */

/* A replay needs the same models; --check without -v needs everything that decides the bits. */
static bool strict(const struct cli *c)
{
    return c->check && !c->opt.verbose;
}

static bool compare_engine(struct replay *r, struct backend *b, const char *about, const char *now, struct err *e)
{
    const char *off = backend_info(b)->draft_off;
    struct facts_diff d;
    struct buf differs = {0};
    facts_compare(about, now, &d);
    facts_diff_print(&d, &differs);
    bool same = d.n == 0, models = facts_same_models(&d);
    facts_diff_free(&d);
    if (!models)
        err_set(e, ERR_USAGE, "the session was made with %s%s%s", differs.p, off ? "; drafting is off here: " : "",
                off ? off : "");
    else if (!same && strict(r->c))
        err_set(e, ERR_USAGE, "cannot check: the session was made with %s", differs.p);
    else if (!same && !r->c->opt.quiet)
        err_print("the session was made with %s: its digests may differ",
                differs.p);
    buf_free(&differs);
    return models && (same || !strict(r->c));
}

/* Notes a different build or device in r->other: they need not change a bit, but are the likely
 * reason if the replay differs. */
static void note_build(struct replay *r, struct backend *b, const char *about)
{
    char *flags = facts_value(about, "flags"), *device = facts_value(about, "device");
    const char *now = backend_info(b)->device;
    free(r->other);
    r->other = NULL;
    if ((flags && *flags && strcmp(flags, facts_build()) != 0) || (device && now && strcmp(device, now) != 0))
        r->other = xasprintf("computed by %s on %s; here %s on %s", flags && *flags ? flags : "an older aerie",
                             device ? device : "an unknown device", facts_build(), now);
    free(flags);
    free(device);
}

static bool on_opened(void *arg, struct backend *b, const char *about, const char *now, struct err *e)
{
    struct replay *r = arg;
    cli_progress_end();
    note_build(r, b, about);
    return r->c->with.n > 0 || r->c->forced || compare_engine(r, b, about, now, e);
}

static void on_turn(void *arg, const struct act *a)
{
    struct replay *r = arg;
    r->next_step = 0;
    r->ended = false;
    if (changed(r)) {
        r->settings.n = 0;
        rerun_settings(r->c->with.v, r->c->with.n, a->user.sampling, &r->settings);
        trace_begin(&r->now, a->user.n, r->settings.p, r->run.now.p);
        r->now.turn[r->now.n - 1].forced = r->c->forced;
    }
    show_user(r, a);
}

/* With changes: the results are kept and compared at the end; a violated rule that did not stop the
 * turn in the log ends the run. */
static bool keep_event(struct replay *r, const struct act *a, const struct event *ev)
{
    trace_event(&r->now, ev);
    if (ev->kind != EV_FAULT || act_has_fault(a, ev))
        return true;
    if (r->fault[0] || !ev->at.rule)
        return false;
    snprintf(r->fault, sizeof r->fault, "%.250s", ev->text.p);
    r->fault_at = ev->at;
    r->fault_turn = ev->turn;
    r->fault_step = ev->step;
    return false;
}

static bool on_event(void *arg, const struct act *a, struct event *ev)
{
    struct replay *r = arg;
    if (!a)
        return true;
    if (changed(r))
        return keep_event(r, a, ev);
    if (ev->kind == EV_TURN_BEGIN && !act_refused(a))
        compare_ids(r, a, DIFF_PROMPT, &a->user.tokens, &ev->tokens);
    else if (ev->kind == EV_STEP)
        compare_step(r, a, ev);
    if (ev->kind == EV_TURN_END) {
        r->ended = true;
        compare_end(r, a, ev);
        show_reply(r, ev);
    }
    return !r->diff.class;
}

/* Checks that the steps in the log account for every token of the replies. */
static bool account(struct replay *r, struct hdb *d, const char *session, struct err *e)
{
    struct hdb_past p;
    if (!hdb_past(d, session, INT_MAX, &p, e))
        return false;
    bool ok = true;
    for (int i = 0; ok && !r->diff.class && i < p.n_part; i++) {
        int first = 0, bad = 0;
        ok = hdb_account(d, p.part[i].session, &first, &bad, NULL, e);
        if (bad && first <= p.part[i].upto) {
            r->diff = (struct difference){.class = DIFF_LOG, .turn = first};
            snprintf(r->diff.why, sizeof r->diff.why,
                     "the steps do not account for every token of the reply");
        }
    }
    hdb_past_free(&p);
    return ok;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void check_json(const struct replay *r)
{
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kbool(&b, "equal", !r->diff.class);
    jput_kint(&b, "turns", r->n_turns);
    jput_kint(&b, "steps", r->n_steps);
    jput_kstr(&b, "level", r->text_only ? "text" : "steps");
    if (r->diff.class) {
        jput_kint(&b, "turn", r->diff.turn);
        jput_kint(&b, "step", r->diff.step[0]);
        jput_kstr(&b, "what", diff_class_name(r->diff.class));
        jput_kstr(&b, "why", r->diff.why);
        jput_kstr(&b, "note", r->other);
    }
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static int verdict(const struct replay *r)
{
    const struct difference *d = &r->diff;
    const char *what = diff_class_name(d->class);
    if (r->c->opt.json)
        check_json(r);
    else if (d->class && d->step[0])
        out_printf("differs at step %d.%d: %s: %s\n", d->turn, d->step[0], what, d->why);
    else if (d->class)
        out_printf("differs in turn %d: %s: %s\n", d->turn, what, d->why);
    else
        out_printf("equal: %d turn%s, %d step%s%s\n", r->n_turns, plural(r->n_turns),
               r->n_steps, plural(r->n_steps),
               r->text_only ? " (where the log has no steps, only the replies were compared)" : "");
    if (d->class && r->other && !r->c->opt.json && !r->c->opt.quiet)
        err_print("the session was %s", r->other);
    return d->class ? ERR_NEGATIVE : 0;
}

/* ---- the verdict with changes ---------------------------------------------------------------- */

static void changes_json(const struct replay *r)
{
    const struct difference *d = &r->diff;
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kbool(&b, "equal", !d->class && !r->fault[0]);
    jput_kint(&b, "turns", r->counts.turns);
    jput_kint(&b, "steps", r->counts.steps);
    jput_kint(&b, "tokens", r->counts.tokens);
    jput_kbool(&b, "by_position", r->counts.by_position);
    jput_kbool(&b, "page_tables", r->counts.pages);
    if (r->counts.facts)
        jput_kreal(&b, "log_probability_differs_by", r->counts.most);
    jput_kint(&b, "checked", (int64_t)r->checks.checks);
    if (r->fault[0]) {
        jput_key(&b, "violation");
        jput_open(&b, '{');
        jput_kint(&b, "turn", r->fault_turn);
        jput_kint(&b, "step", r->fault_step);
        jput_kstr(&b, "text", r->fault);
        fault_json(&r->fault_at, &b);
        jput_close(&b, '}');
    }
    if (d->class) {
        jput_kint(&b, "turn", d->turn);
        jput_kint(&b, "step", d->step[0]);
        jput_kint(&b, "step_now", d->step[1]);
        if (d->token >= 0)
            jput_kint(&b, "token", d->token);
        jput_kstr(&b, "what", diff_class_name(d->class));
        jput_kstr(&b, "why", d->why);
    }
    conditions_json(&r->conditions, "log", "now", &b);
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static void difference_line(const struct difference *d)
{
    const char *what = diff_class_name(d->class);
    if (!d->step[0] && !d->step[1])
        out_printf("differs in turn %d: %s: %s\n", d->turn, what, d->why);
    else if (d->step[0] && d->step[1] && d->step[0] != d->step[1])
        out_printf("differs at step %d.%d (%d.%d now): %s: %s\n", d->turn, d->step[0], d->turn, d->step[1],
               what, d->why);
    else
        out_printf("differs at step %d.%d: %s: %s\n", d->turn, max_int(d->step[0], d->step[1]), what, d->why);
}

static void changes_text(const struct replay *r)
{
    struct buf with = {0};
    char most[96];
    snprintf(most, sizeof most, "they differ by at most %.3g (turn %d, token %d)", r->counts.most,
             r->counts.most_turn, r->counts.most_token);
    conditions_text(&r->conditions, r->diff.class ? ~0u : ~(unsigned)MAY_BUILD, &with);
    if (r->fault[0])
        out_printf("rule violated at step %d.%d: %s\n", r->fault_turn, r->fault_step, r->fault);
    if (r->diff.class && !(r->diff.class == DIFF_STOP && r->fault[0]))
        difference_line(&r->diff);
    else
        out_printf("equal%s: %d turn%s, %d token%s%s\n", r->fault[0] ? " until then" : "", r->counts.turns,
               plural(r->counts.turns), r->counts.tokens, plural(r->counts.tokens),
               r->counts.by_position ? " by position"
               : r->counts.meaning   ? ", step by step, page tables by the positions they hold"
                                     : ", step by step");
    if (r->counts.stop[0])
        out_printf("%s\n", r->counts.stop);
    if (with.n)
        out_printf("changed: %s\n", with.p);
    if (!r->diff.class && r->counts.facts)
        out_printf("log probabilities: %s\n", r->counts.most > 0 ? most : "equal");
    if (r->checks.checks)
        out_printf("checker: %llu plan%s checked%s\n", (unsigned long long)r->checks.checks,
               plural((int)r->checks.checks), r->fault[0] ? "" : ", no rule violated");
    buf_free(&with);
}

static int verdict_changed(struct replay *r)
{
    if (r->run.backend && backend_has(r->run.backend, VIEW_CHECK))
        r->run.backend->check->counts(r->run.backend, &r->checks);
    trace_script(&r->log, &r->script);
    if (r->fault[0] && r->now.n < r->log.n) /* turns after the violation did not run */
        trace_cut(&r->log, r->now.n);
    differ_traces(&r->log, &r->now, &names, &r->diff, &r->conditions, &r->counts);
    (r->c->opt.json ? changes_json : changes_text)(r);
    return r->fault[0] ? ERR_INVARIANT : r->diff.class ? ERR_NEGATIVE : 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool play(struct replay *r, struct err *e)
{
    struct cli *c = r->c;
    struct rerun_how how = {.engine = c->opt.engine, .model_given = c->model_given,
                            .draft_given = c->draft_given, .with = c->with.v, .n_with = c->with.n,
                            .refusal = strict(c) ? "cannot check: " : NULL, .forced = c->forced};
    how.engine.progress = c->opt.quiet ? NULL : cli_progress;
    struct rerun_calls on = {.opened = on_opened, .turn = on_turn, .event = on_event, .arg = r};
    bool ok = rerun_play(&r->run, &r->script, &how, &on, e);
    cli_progress_end();
    return ok;
}

/* "--with A=1 B=2": the words after the session belong to the changes. */
static bool take_words(struct cli *c, struct err *e)
{
    for (int i = 1; i < c->n_word; i++) {
        if (!c->with.n || !strchr(c->word[i], '='))
            return err_set(e, ERR_USAGE, "replay takes one session and, after --with, NAME=VALUE; not \"%.80s\"",
                           c->word[i]);
        if (c->with.n == MAX_TEXTS)
            return err_set(e, ERR_USAGE, "replay --with takes at most %d changes", MAX_TEXTS);
        c->with.v[c->with.n++] = c->word[i];
    }
    return true;
}

/* ---- a server's session ---------------------------------------------------------------------- */

/* --forced: the local engine is given the server's prompts and tokens. */
static bool play_served(struct replay *r, struct report *out, struct err *e)
{
    struct cli *c = r->c;
    if (!c->forced || c->check)
        return err_set(e, ERR_USAGE, "the session was computed by a server, so it cannot be computed again here; --forced "
                       "gives its tokens to the local engine");
    trace_script(&r->log, &r->script);
    struct verdict_ask ask = {.log_a = &r->log, .forced = true, .no_band = true, .names = {"in the log", "here"},
                              .who = {"the log", "the local engine"}};
    ask.b = (struct diff_side){.script = &r->script,
                               .how = {.engine = c->opt.engine, .model_given = c->model_given,
                                       .draft_given = c->draft_given, .with = c->with.v, .n_with = c->with.n}};
    ask.b.how.engine.progress = c->opt.quiet ? NULL : cli_progress;
    bool ok = verdict_find(&ask, out, e);
    cli_progress_end();
    return ok;
}

static int show_served(struct replay *r)
{
    struct report out = {0};
    struct err e;
    if (!play_served(r, &out, &e))
        return cli_fail(&e);
    int rc = out.rule[0] ? ERR_INVARIANT : out.diff.class && !out.sampled ? ERR_NEGATIVE : 0;
    if (r->c->opt.json) {
        struct buf b = {0};
        jput_open(&b, '{');
        verdict_json(&out, &b);
        jput_close(&b, '}');
        cli_json(&b);
        buf_free(&b);
    } else {
        verdict_text(&out, &r->sheet);
        cli_print(r->c, &r->sheet);
    }
    report_free(&out);
    return rc;
}

static bool is_served(const struct script *s)
{
    return s->n_about && facts_served(s->about[0]);
}

int cli_replay(struct cli *c)
{
    struct err e = {0};
    if (c->goto_step && c->check)
        return cli_fail((err_set(&e, ERR_USAGE, "--goto cannot go with --check"), &e));
    if (c->goto_step)
        return take_words(c, &e) ? cli_goto(c) : cli_fail(&e);
    if (!c->check && !c->with.n && !c->forced)
        return cli_play(c);
    struct replay r = {.c = c};
    struct session_row row = {0};
    sheet_init(&r.sheet, c->opt.ascii);
    struct hdb *d = take_words(c, &e) ? cli_open_session(c, c->word[0], &row, &e) : NULL;
    bool ok = d && script_read(&r.script, d, row.id, &e), served = ok && is_served(&r.script);
    ok = ok && (served || (play(&r, &e) && (r.diff.class || account(&r, d, row.id, &e))));
    int rc = !ok ? cli_fail(&e) : served ? show_served(&r) : changed(&r) ? verdict_changed(&r) : verdict(&r);
    rerun_close(&r.run);
    trace_free(&r.log);
    trace_free(&r.now);
    conditions_free(&r.conditions);
    buf_free(&r.settings);
    script_free(&r.script);
    session_row_free(&row);
    sheet_free(&r.sheet);
    hdb_close(d);
    free(r.other);
    return rc;
}
