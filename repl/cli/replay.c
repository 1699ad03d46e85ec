/* replay.c - `aerie replay`: runs a saved session again (repl/compare/side.h) and compares each
 * turn with the log when it ends (repl/compare/differ.h).
 *
 * Without changes, every bit must be equal, and the first difference ends the replay. With changes
 * (--with), they decide which results must still be equal, and a violated checker rule ends the
 * replay with its name. Nothing is saved. */
#include <limits.h>

#include "repl/cli/cli.h"
#include "repl/compare/differ.h"
#include "repl/compare/facts.h"
#include "repl/compare/script.h"
#include "repl/compare/verdict.h"

struct replay {
    struct cli *c;
    struct script script;
    struct trace log;     /* the turn that runs, from the log */
    struct run_facts now; /* the run; of the turns only the one that runs */
    struct comparison cmp;
    struct sheet sheet;
    int n_turns;
    struct draft_sums drafts[2]; /* in the log, now */
    char *other; /* other differences to that run (build, device), printed if the replay differs */
};

static const struct diff_names names = {"in the log", "now"};

static bool changed(const struct replay *r)
{
    return r->c->with.n > 0 || r->c->forced || r->script.served;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static bool shows(const struct replay *r)
{
    return r->c->opt.verbose && !r->c->opt.json && !changed(r);
}

static void show_user(void *arg, const struct act *a)
{
    struct replay *r = arg;
    if (!shows(r))
        return;
    say_line(&r->sheet, ST_HEAD, "turn %d%s", a->user.n, a->user.regen ? "  (again)" : "");
    sheet_lines(&r->sheet, ST_USER, a->user.text, a->user.text_n);
    cli_print(r->c, &r->sheet);
    out_flush();
}

static void show_reply(struct replay *r, const struct event *ev)
{
    if (!shows(r))
        return;
    sheet_lines(&r->sheet, ST_TEXT, buf_text(&ev->text), ev->text.n);
    say_line(&r->sheet, r->cmp.d.class ? ST_BAD : ST_GOOD, "[%s, %d step%s: %s]",
             stop_name(ev->reason), ev->n_steps, plural(ev->n_steps), r->cmp.d.class ? "differs"
             : "equal");
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

static bool compare_engine(struct replay *r, struct backend *b, const char *about, const char *now,
                           struct err *e)
{
    const char *off = backend_info(b)->draft_off;
    FREED(facts_diff_free) struct facts_diff d = {0};
    FREED(buf_free) struct buf differs = {0};
    facts_compare(about, now, &d);
    facts_diff_print(&d, &differs);
    bool same = d.n == 0, models = facts_same_models(&d);
    if (!models)
        err_set(e, ERR_USAGE, "the session was made with %s%s%s", differs.p,
                off ? "; drafting is off here: " : "", off ? off : "");
    else if (!same && strict(r->c))
        err_set(e, ERR_USAGE, "cannot check: the session was made with %s", differs.p);
    else if (!same && !r->c->opt.quiet)
        err_print("the session was made with %s: its digests may differ", differs.p);
    return models && (same || !strict(r->c));
}

/* Notes a different build or device in r->other: they need not change a bit, but are the likely
 * reason if the replay differs. */
static void note_build(struct replay *r, struct backend *b, const char *about)
{
    char *flags = facts_value(about, "flags"), *device = facts_value(about, "device");
    const char *now = backend_info(b)->device;
    DROP(r->other);
    if ((flags && *flags && strcmp(flags, facts_build()) != 0) ||
        (device && now && strcmp(device, now) != 0))
        r->other = xasprintf("computed by %s on %s; here %s on %s", flags && *flags ? flags
                             : "an older aerie",
                             device ? device : "an unknown device", facts_build(), now);
    FREE(flags, device);
}

static bool on_opened(void *arg, struct backend *b, const char *about, const char *now,
                      struct err *e)
{
    struct replay *r = arg;
    cli_progress_end();
    note_build(r, b, about);
    return r->c->with.n > 0 || r->c->forced || compare_engine(r, b, about, now, e);
}

/* The log contradicts itself in a turn. */
static void contradicts(struct replay *r, int turn, const char *why)
{
    r->cmp.d = (struct difference){.class = DIFF_LOG, .turn = turn};
    snprintf(r->cmp.d.why, sizeof r->cmp.d.why, "%s", why);
}

/* Whether the log has another text of a reply than its tokens give. A log of a server, or a pack
 * without text, has other texts or none. */
static bool other_text(const struct replay *r, const struct act *a, const struct event *ev)
{
    const char *text = a->reply.text, *now = buf_text(&ev->text);
    return !r->script.by_ids && !r->script.served && a->reply.n && !act_cut_short(a) && text &&
           strcmp(text, now) != 0;
}

/* As recorded, the first difference ends the run. With changes, the run goes on: a rule may be
 * violated later. */
static bool on_ended(void *arg, const struct act *a, const struct event *ev)
{
    struct replay *r = arg;
    trace_act(&r->log, a);
    comparison_turn(&r->cmp, r->log.turn, r->now.trace.turn);
    trace_drafts(&r->log, &r->drafts[0]);
    trace_drafts(&r->now.trace, &r->drafts[1]);
    trace_clear(&r->log);
    trace_clear(&r->now.trace);
    if (!changed(r) && !r->cmp.d.class && other_text(r, a, ev))
        contradicts(r, a->user.n, "the text in the log is not that of the reply's tokens");
    r->n_turns++;
    show_reply(r, ev);
    return changed(r) || !r->cmp.d.class;
}

/* Checks that the steps in the log account for every token of the replies. */
static bool account(struct replay *r, struct hdb *d, const char *session, struct err *e)
{
    FREED(hdb_past_free) struct hdb_past p = {0};
    if (!hdb_past(d, session, INT_MAX, &p, e))
        return false;
    bool ok = true;
    for (int i = 0; ok && !r->cmp.d.class && i < p.n_part; i++) {
        int first = 0, bad = 0;
        ok = hdb_account(d, p.part[i].session, &first, &bad, NULL, e);
        if (bad && first <= p.part[i].upto)
            contradicts(r, first, "the steps do not account for every token of the reply");
    }
    return ok;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Both runs cut the work into the same steps, or one of them has no such step. */
static int step_of(const struct difference *d)
{
    return max_int(d->step[0], d->step[1]);
}

static void difference_line(const struct difference *d, const struct printer *to)
{
    const char *what = diff_class_name(d->class);
    if (!step_of(d))
        print_note(to, ST_TEXT, "differs in turn %d: %s: %s", d->turn, what, d->why);
    else if (d->step[0] && d->step[1] && d->step[0] != d->step[1])
        print_note(to, ST_TEXT, "differs at step %d.%d (%d.%d now): %s: %s", d->turn, d->step[0],
                   d->turn, d->step[1], what, d->why);
    else
        print_note(to, ST_TEXT, "differs at step %d.%d: %s: %s", d->turn, step_of(d), what, d->why);
}

static void print_check(const struct replay *r, const struct printer *to)
{
    const struct difference *d = &r->cmp.d;
    const struct diff_counts *n = &r->cmp.n;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%d{equal?}%d{turns}%d{steps}%s{level}", !d->class, r->n_turns,
              n->steps + (d->step[0] && d->step[1]), n->text_only ? "text" : "steps");
    if (d->class) {
        print_add(to, ST_TEXT, "\f%d{turn}%d{step}%s{what}%s{why}%s{note}", d->turn, step_of(d),
                  diff_class_name(d->class), d->why, r->other);
        difference_line(d, to);
    } else {
        print_note(to, ST_TEXT, "equal: %d turn%s, %d step%s%s", r->n_turns, plural(r->n_turns),
                   n->steps, plural(n->steps), n->text_only ? " (where the log has no steps, only "
                                                              "the replies were compared)" : "");
    }
}

/* ---- the verdict with changes ---------------------------------------------------------------- */

/* Whether both runs drafted, and not with the same acceptance. */
static bool accepts_otherwise(const struct replay *r)
{
    const struct draft_sums *a = &r->drafts[0], *b = &r->drafts[1];
    return a->cycles && b->cycles && !r->now.rule[0] &&
           (a->cycles != b->cycles || a->accepted != b->accepted);
}

static void print_rule(const struct run_facts *now, const struct printer *to)
{
    if (!now->rule[0])
        return;
    PRINT_IN(to, "violation", '{');
    print_facts(to, ST_TEXT, "rule violated at step %d{turn}.%d{step}: %s{text}", now->rule_turn,
                now->rule_step, now->rule);
    if (to->json)
        fault_json(&now->at, to->json);
}

static void print_changes(const struct replay *r, const struct printer *to)
{
    const struct difference *d = &r->cmp.d;
    const struct diff_counts *n = &r->cmp.n;
    FREED(buf_free) struct buf with = {0};
    FREED(free_at) char *off = facts_value(buf_text(&r->now.about), "draft_off");
    bool rule = r->now.rule[0], equal = !d->class || (d->class == DIFF_STOP && rule);
    conditions_text(&r->cmp.all, d->class ? ~0u : ~(unsigned)MAY_BUILD, &with);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%d{equal?}%d{turns}%d{steps}%d{tokens}%d{by_position?}"
              "%d{page_tables?}", !d->class && !rule, n->turns, n->steps, n->tokens,
              n->by_position, n->pages);
    print_rule(&r->now, to);
    if (d->class)
        print_add(to, ST_TEXT, "\f%d{turn}%d{step}%d{step_now}", d->turn, d->step[0], d->step[1]);
    if (d->class && d->token >= 0)
        print_add(to, ST_TEXT, "\f%d{token}", d->token);
    if (d->class)
        print_add(to, ST_TEXT, "\f%s{what}%s{why}", diff_class_name(d->class), d->why);
    if (equal)
        print_note(to, ST_TEXT, "equal%s: %d turn%s, %d token%s%s", rule ? " until then" : "",
                   n->turns, plural(n->turns), n->tokens, plural(n->tokens),
                   n->by_position ? " by position"
                   : n->meaning   ? ", step by step, page tables by the positions they hold"
                                  : ", step by step");
    else
        difference_line(d, to);
    if (n->stop[0])
        print_note(to, ST_TEXT, "%s", n->stop);
    if (with.n)
        print_note(to, ST_TEXT, "changed: %s", with.p);
    if (off)
        print_facts(to, ST_TEXT, "drafting is off here: %s{draft_off}", off);
    if (accepts_otherwise(r))
        print_facts(to, ST_TEXT, "acceptance: length %.2f{length_in_the_log} in the log, "
                    "%.2f{length_now} now (1 + accepted/cycles)", draft_sums_mal(&r->drafts[0]),
                    draft_sums_mal(&r->drafts[1]));
    if (n->facts)
        print_add(to, ST_TEXT, "\f%g{log_probability_differs_by}", n->most);
    if (!d->class && n->facts)
        print_note(to, ST_TEXT, n->most > 0
                       ? "log probabilities: they differ by at most %.3g (turn %d, token %d)"
                       : "log probabilities: equal\f%f%d%d", n->most, n->most_turn, n->most_token);
    print_facts(to, ST_TEXT, r->now.checks ? "checker: %lu{checked} plan%s checked%s"
                                           : "\f%lu{checked}%s%s", r->now.checks,
                plural((int)r->now.checks), rule ? "" : ", no rule violated");
    conditions_list(&r->cmp.all, "log", "now", to);
}

static int verdict(const struct replay *r)
{
    const struct difference *d = &r->cmp.d;
    const struct printer *to = cli_answer(r->c, 0);
    (changed(r) ? print_changes : print_check)(r, to);
    cli_answer_end();
    if (!changed(r) && d->class && r->other && !r->c->opt.json && !r->c->opt.quiet)
        err_print("the session was %s", r->other);
    return changed(r) && r->now.rule[0] ? ERR_INVARIANT : d->class ? ERR_NEGATIVE : 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool play(struct replay *r, struct err *e)
{
    struct run_ask ask = {.row = -1, .layer = -1};
    struct diff_side s = {.script = &r->script, .how = cli_rerun(r->c), .opened = on_opened,
                          .turn = show_user, .ended = on_ended, .arg = r};
    s.how.refusal = strict(r->c) ? "cannot check: " : NULL;
    comparison_begin(&r->cmp, changed(r) ? DIFF_BY_CONDITIONS : DIFF_EXACTLY, &names);
    bool ok = side_run(&s, &ask, &r->now, e);
    cli_progress_end();
    return ok;
}

/* "--with A=1 B=2": the words after the session belong to the changes. */
static bool take_words(struct cli *c, struct err *e)
{
    for (int i = 1; i < c->n_word; i++) {
        if (!c->with.n || !strchr(c->word[i], '='))
            return err_set(e, ERR_USAGE, "replay takes one session and, after --with, NAME=VALUE; "
                                         "not \"%.80s\"", c->word[i]);
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
        return err_set(e, ERR_USAGE, "the session was computed by a server, "
                                     "so it cannot be computed again here; --forced "
                       "gives its tokens to the local engine");
    trace_script(&r->log, &r->script);
    struct verdict_ask ask = {.b = {.script = &r->script, .how = cli_rerun(c)}, .log_a = &r->log,
                              .forced = true, .no_band = true,
                              .names = {"in the log", "here"},
                              .who = {"the log", "the local engine"}};
    bool ok = verdict_find(&ask, out, e);
    cli_progress_end();
    return ok;
}

static int show_served(struct replay *r)
{
    FREED(report_free) struct report out = {0};
    struct err e;
    if (!play_served(r, &out, &e))
        return cli_fail(&e);
    const struct printer *to = cli_answer(r->c, '{');
    verdict_print(&out, to);
    cli_answer_end();
    return out.rule[0] ? ERR_INVARIANT : out.diff.class && !out.sampled ? ERR_NEGATIVE : 0;
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
    r.sheet = (struct sheet){.ascii = c->opt.ascii};
    FREED(hdb_close_at) struct hdb *d =
        take_words(c, &e) ? cli_open_session(c, c->word[0], &row, &e) : NULL;
    bool ok = d && script_read(&r.script, d, row.id, &e), served = ok && is_served(&r.script);
    ok = ok &&
         (served || (play(&r, &e) && (changed(&r) || r.cmp.d.class || account(&r, d, row.id, &e))));
    int rc = !ok ? cli_fail(&e) : served ? show_served(&r) : verdict(&r);
    comparison_free(&r.cmp);
    trace_free(&r.log);
    run_facts_free(&r.now);
    script_free(&r.script);
    session_row_free(&row);
    sheet_free(&r.sheet);
    free(r.other);
    return rc;
}
