/* verdict.c - see verdict.h. verdict_text.c writes the report. */
#include "repl/compare/judge.h"

#include <math.h>

#include "engine/tools/noise_backend.h"
#include "repl/compare/facts.h"

/* A row is called more than rounding beyond this multiple of the largest distance among NOISE_LEAST
 * or more noise runs. */
#define FAR_ROW 4

static bool run_side(struct judge *j, int side, const struct run_ask *ask, struct run_facts *f,
                     const char *what)
{
    struct err e;
    return judge_run(j, side, ask, f, what, &e);
}

static const struct trace_turn *turn_of(const struct trace *t, int n)
{
    for (int i = t->n - 1; i >= 0; i--)
        if (t->turn[i].n == n)
            return &t->turn[i];
    return NULL;
}

/* ---- the checker ----------------------------------------------------------------------------- */

/* Runs both sides again with the strict checker. */
static void check_sides(struct judge *j)
{
    uint64_t checks = 0;
    for (int side = 0; side < 2; side++) {
        struct run_ask ask = {.strict = true, .row = -1, .layer = -1};
        FREED(run_facts_free) struct run_facts f = {0};
        if (run_side(j, side, &ask, &f, "with the checker"))
            judge_rule(j, side, &f, side ? j->ask->names.b : j->ask->names.a);
        checks += f.checks;
    }
    judge_checked(j, "on either side", checks);
}

/* ---- exact: every bit must agree ------------------------------------------------------------- */

/* Maps the rows of two probes onto each other: all rows, or those of one token. */
static bool map_rows(const struct run_facts *a, const struct run_facts *b, int turn, int token,
                     struct row_map *m)
{
    int at_a = 0, at_b = 0;
    if (token < 0)
        return rows_all(a->probe, b->probe, m);
    const struct step_row *x = trace_token(turn_of(&a->trace, turn), token, &at_a);
    const struct step_row *y = trace_token(turn_of(&b->trace, turn), token, &at_b);
    m->n = 1;
    m->a[0] = x ? row_of_token(a->probe, x, at_a) : -1;
    m->b[0] = y ? row_of_token(b->probe, y, at_b) : -1;
    return m->a[0] >= 0 && m->b[0] >= 0;
}

/* Reports the first key whose position differs, or, if pages are numbered alike, whose slot
 * differs. A pass in two parts lists no keys, so nothing can be said about it. */
static void say_keys(struct judge *j, const struct probe *a, const struct probe *b)
{
    int i = 0, k = 0, row = j->r->place.row, n = min_int(a->n_key, b->n_key);
    const struct diff_names *in = &j->ask->names;
    if (n == 0)
        return;
    while (i < n && a->key_pos[i] == b->key_pos[i])
        i++;
    while (k < n && (a->key_slot[k] == b->key_slot[k] || j->r->conditions.may & MAY_NUMBER))
        k++;
    if (i < n)
        report_say(j->r, "row %d reads other positions there: key %d is of position %d %s, %d %s",
                   row, i, a->key_pos[i], in->a, b->key_pos[i], in->b);
    else if (a->n_key != b->n_key)
        report_say(j->r, "row %d reads %d positions %s, %d %s", row, a->n_key, in->a, b->n_key,
                   in->b);
    else if (k < n)
        report_say(j->r, "row %d reads position %d from slot %d %s, from slot %d %s", row,
                   a->key_pos[k], a->key_slot[k], in->a, b->key_slot[k], in->b);
    else
        report_say(
            j->r, "row %d reads the same %d positions on both sides: their cells hold other values",
            row, n);
}

/* Compares the keys that the found row reads in its layer on both sides. */
static void compare_keys(struct judge *j, int turn, const int step[2])
{
    struct report *r = j->r;
    struct run_facts f[2];
    bool ok = true;
    for (int side = 0; side < 2; side++) {
        struct run_ask ask = {.turn = turn, .step = step[side], .probe = true,
                              .layer = r->place.layer,
                              .row = side ? r->place.row_b : r->place.row};
        ok = run_side(j, side, &ask, &f[side], "with taps") && f[side].probe && ok;
    }
    if (ok && f[0].probe->key_layer >= 0 && f[1].probe->key_layer >= 0)
        say_keys(j, f[0].probe, f[1].probe);
    for (int side = 0; side < 2; side++)
        run_facts_free(&f[side]);
}

/* Runs both sides up to a step with taps and looks for the first difference of any size. A pass
 * with more rows than a probe keeps is looked through in parts. */
static bool find_place(struct judge *j, int turn, const int step[2], int token)
{
    struct report *r = j->r;
    struct row_map m;
    int n_rows = 1;
    bool found = false, ok = true;
    for (int row = token >= 0 ? -1 : 0; ok && !found && row < n_rows; row += PROBE_ROWS) {
        struct run_facts f[2];
        for (int side = 0; side < 2; side++) {
            struct run_ask ask = {.turn = turn, .step = step[side], .probe = true, .row = row,
                                  .layer = -1};
            ok = run_side(j, side, &ask, &f[side], "with taps") && f[side].probe && ok;
        }
        ok = ok && map_rows(&f[0], &f[1], turn, token, &m);
        if (ok) {
            locate(f[0].probe, f[1].probe, &m, NULL, 1, &r->place);
            found = r->place.found;
            n_rows = row < 0 ? 0 : f[0].probe->n_rows;
        }
        for (int side = 0; side < 2; side++)
            run_facts_free(&f[side]);
    }
    if (!found)
        return false;
    r->turn = turn;
    r->step[0] = step[0];
    r->step[1] = step[1];
    r->token = token;
    if (r->place.at == PROBE_ATTN)
        compare_keys(j, turn, step);
    return true;
}

/* If the first difference of the logs does not change the target's numbers: runs both sides to the
 * end and looks for the first token whose log probabilities differ. */
static void find_reach(struct judge *j)
{
    struct run_facts f[2];
    bool ok = true;
    for (int side = 0; side < 2; side++) {
        struct run_ask ask = {.row = -1, .layer = -1};
        ok = run_side(j, side, &ask, &f[side], "to the end") && ok;
    }
    struct difference d;
    struct conditions c;
    struct diff_counts n;
    if (ok) {
        differ_traces(&f[0].trace, &f[1].trace, DIFF_BY_POSITION, &j->ask->names, &d, &c, &n);
        if (d.class == DIFF_LOGITS && d.token >= 0)
            find_place(j, d.turn, d.step, d.token);
        else if (f[0].rule[0] || f[1].rule[0])
            report_say(j->r, "the checker kept a pass from running; with check=off the replay "
                             "shows what it computes");
        else if (!d.class)
            report_say(j->r,
                       "the tokens and their log probabilities are equal to the end: %d tokens",
                       n.tokens);
        conditions_free(&c);
    }
    for (int side = 0; side < 2; side++)
        run_facts_free(&f[side]);
}

/* Whether a side, run again, computes the values of its log up to the step. */
static bool repeats(struct judge *j, int side, int turn, int step)
{
    const struct trace *log = side ? j->ask->log_b : j->ask->log_a;
    struct run_ask ask = {.turn = turn, .step = step, .row = -1, .layer = -1};
    FREED(run_facts_free) struct run_facts f = {0};
    struct difference d = {0};
    struct conditions c = {0};
    struct diff_counts n;
    const char *name = j->ask->who[side];
    if (!log)
        return true;
    bool ok = run_side(j, side, &ask, &f, "once more");
    if (ok) {
        struct trace head = *log;
        head.n = min_int(head.n, f.trace.n);
        struct diff_names in = {"in the log", "run again"};
        differ_traces(&head, &f.trace, DIFF_BY_CONDITIONS, &in, &d, &c, &n);
        if (d.class) {
            report_say(j->r, "run again, %s differs from its own log at step %d.%d: %s: %.200s",
                       name, d.turn, max_int(d.step[0], d.step[1]), diff_class_name(d.class),
                       d.why);
            if (c.may & MAY_BUILD)
                report_say(j->r, "that log was computed by another build or device");
        } else {
            report_say(j->r, "run again, %s computes the same bits up to step %d.%d", name, turn,
                       step);
        }
        conditions_free(&c);
    }
    return ok && !d.class;
}

/* The verdict from the class of the first difference, if every bit must agree. */
static enum verdict exact_verdict(const struct report *r, bool two_logs)
{
    unsigned may = r->conditions.may;
    switch (r->diff.class) {
    case DIFF_NONE: return VERDICT_EQUAL;
    case DIFF_SAMPLER: return may & MAY_SAMPLE ? VERDICT_PURPOSE : VERDICT_BUG;
    case DIFF_PROMPT:
        return may & (MAY_PROMPT | MAY_END | MAY_SAMPLE) ? VERDICT_PURPOSE
               : two_logs                                ? VERDICT_OTHER
                                                         : VERDICT_BUG;
    case DIFF_MESSAGE: return two_logs ? VERDICT_OTHER : VERDICT_BUG;
    case DIFF_REPLY: return may & (MAY_END | MAY_SAMPLE) ? VERDICT_PURPOSE : VERDICT_BUG;
    default: return VERDICT_BUG;
    }
}

/* Prompt chunks before the last have no logits, so a difference in the last chunk's logits may have
 * begun in any of them. Searches them if both sides have the same chunks. */
static bool find_in_chunks(struct judge *j, int turn, const int step[2])
{
    const struct trace_turn *a = turn_of(j->t[0], turn), *b = turn_of(j->t[1], turn);
    bool same = step[0] == step[1] && a && b && a->n_step >= step[0] &&
                j->r->diff.class == DIFF_LOGITS;
    for (int i = 0; same && i < step[0] - 1; i++) {
        const int at[2] = {i + 1, i + 1};
        if (a->step[i].rec.kind != STEP_PREFILL || b->n_step <= i ||
            b->step[i].rec.rows != a->step[i].rec.rows)
            return false;
        if (find_place(j, turn, at, -1))
            return true;
    }
    return false;
}

/* Whether two logs begin with other prompts, which no change explains: no reply comes before. */
static bool other_prompts(const struct judge *j)
{
    const struct report *r = j->r;
    return r->diff.class == DIFF_PROMPT && r->diff.index == 0 && j->ask->log_b &&
           !(r->conditions.may & MAY_PROMPT) && j->t[0]->turn[0].prompt.n &&
           j->t[1]->turn[0].prompt.n;
}

static void judge_exact(struct judge *j)
{
    struct report *r = j->r;
    const struct difference *d = &r->diff;
    int step[2] = {d->step[0] ? d->step[0] : d->step[1], d->step[1] ? d->step[1] : d->step[0]};
    bool cause = d->class >= DIFF_PAGES && d->class <= DIFF_SAMPLER;
    r->verdict = other_prompts(j) ? VERDICT_OTHER : exact_verdict(r, j->ask->log_b != NULL);
    if (r->verdict == VERDICT_PURPOSE || !cause || j->ask->log_only || !step[0])
        return;
    bool same = repeats(j, 0, d->turn, step[0]);
    same = repeats(j, 1, d->turn, step[1]) && same;
    bool there = same && (d->class == DIFF_PAGES || d->class == DIFF_LOGITS) &&
                 (find_in_chunks(j, d->turn, step) || find_place(j, d->turn, step, d->token));
    if (same && !there && (d->class == DIFF_PAGES || d->class == DIFF_DRAFT))
        find_reach(j);
    if (same && !there && d->class == DIFF_LOGITS)
        report_say(j->r, "computed again with taps, the rows of that step are equal");
    check_sides(j);
}

/* ---- rounding: the band ---------------------------------------------------------------------- */

static bool has_value(const struct buf *about, const char *name, const char *value)
{
    FREED(free_at) char *v = facts_value(about->p, name);
    return v && strcmp(v, value) == 0;
}

/* The rounding size of the side with the coarser precision. */
static float noise_size(const struct buf *a, const struct buf *b)
{
    const struct buf *about[] = {a, b};
    float size = NOISE_F32;
    for (int i = 0; i < 2; i++) {
        if (has_value(about[i], "precision", "bf16") || has_value(about[i], "kv", "bf16"))
            size = fmaxf(size, NOISE_BF16);
        if (has_value(a, "weights", "fp8") != has_value(b, "weights", "fp8") ||
            has_value(a, "kv", "fp8") != has_value(b, "kv", "fp8"))
            size = fmaxf(size, NOISE_FP8);
    }
    return size;
}

/* Measures the bands of one token's row: the first side with noise against the first side without.
 * *plain: the first side without drafting, with taps at the token. */
static bool tap_bands(struct judge *j, int turn, int token, float size, int runs,
                      struct run_facts *plain)
{
    struct run_facts once;
    struct run_ask ask = {.turn = turn, .forced = j->t[0], .plain = true, .row = -1, .layer = -1};
    bool ok = run_side(j, 0, &ask, &once, "without drafting");
    int at = 0;
    const struct step_row *s = ok ? trace_token(turn_of(&once.trace, turn), token, &at) : NULL;
    int step = s ? s->n : 0;
    run_facts_free(&once);
    ask.step = step;
    ask.probe = true;
    *plain = (struct run_facts){0};
    if (!step || !run_side(j, 0, &ask, plain, "with taps") || !plain->probe)
        return false;
    for (int k = 0; k < runs; k++) {
        FREED(run_facts_free) struct run_facts f = {0};
        struct row_map m;
        ask.noise = size;
        ask.seed = (uint64_t)k + 1;
        if (run_side(j, 0, &ask, &f, "with noise and taps") && f.probe &&
            map_rows(plain, &f, turn, token, &m))
            bands_add(&j->bands, plain->probe, f.probe, &m);
    }
    return j->bands.at != NULL;
}

/* The first layer at which the row of a token lies beyond the band. */
static void place_beyond(struct judge *j, int turn, int token, float size,
                         const struct trace *forced_b)
{
    struct report *r = j->r;
    FREED(run_facts_free) struct run_facts plain = {0}, other = {0};
    struct row_map m;
    int at = 0;
    const struct step_row *s = trace_token(turn_of(forced_b, turn), token, &at);
    j->bands.least = size / 4; /* `size` is the size of four roundings */
    bool ok = s && tap_bands(j, turn, token, size, NOISE_LEAST, &plain);
    if (!s)
        plain = (struct run_facts){0};
    struct run_ask ask = {.turn = turn,
                          .step = s ? s->n : 0,
                          .forced = j->t[0],
                          .probe = true,
                          .row = -1,
                          .layer = -1};
    ok = ok && run_side(j, 1, &ask, &other, "with taps") && other.probe &&
         map_rows(&plain, &other, turn, token, &m);
    if (ok) {
        locate(plain.probe, other.probe, &m, &j->bands, FAR_ROW, &r->place);
        r->turn = turn;
        r->token = token;
        r->step[0] = r->diff.step[0];
        r->step[1] = s->n;
        int x;
        const struct step_row *mine = trace_token(turn_of(j->t[0], turn), token, &x);
        r->step[0] = mine ? mine->n : 0;
    }
}

/* The margins at the first token that differs. */
static void note_margins(struct judge *j, const struct trace *base)
{
    struct report *r = j->r;
    const struct difference *d = &r->diff;
    int at_a = 0, at_b = 0;
    const struct step_row *s =
        d->token >= 0 ? trace_token(turn_of(base, d->turn), d->token, &at_a) : NULL;
    const struct step_row *t = s ? trace_token(turn_of(j->t[1], d->turn), d->token, &at_b) : NULL;
    if (!s || !t || !s->facts || s->tokens.v[at_a] == t->tokens.v[at_b])
        return;
    r->has_margin = true;
    r->chosen[0] = s->tokens.v[at_a];
    r->chosen[1] = t->tokens.v[at_b];
    r->margins[0] = margin_of(&s->facts[at_a]);
    r->margins[1] = margin_of(t->facts ? &t->facts[at_b] : NULL);
}

static void judge_rounding(struct judge *j)
{
    struct report *r = j->r;
    struct run_ask ask = {.row = -1, .layer = -1, .forced = j->t[0]};
    FREED(run_facts_free) struct run_facts a = {0}, b = {0};
    FREED(band_free) struct band x = {0};
    bool model = false;
    for (int i = 0; i < r->conditions.n; i++)
        model |= strcmp(r->conditions.at[i].name, "model_sha") == 0;
    if (model || (r->diff.class == DIFF_SAMPLER && r->conditions.may & MAY_SAMPLE) ||
        j->ask->log_only) {
        r->verdict = j->ask->log_only && !model ? VERDICT_OPEN : VERDICT_PURPOSE;
        return;
    }
    bool ok = run_side(j, 0, &ask, &a, "given its tokens");
    ok = run_side(j, 1, &ask, &b, "given the first side's tokens") && ok;
    r->verdict = VERDICT_OPEN;
    if (ok) {
        float size = noise_size(&a.about, &b.about);
        int far = -1;
        band_begin(&x, &a.trace);
        FREED(free_at) double *moved = xcalloc((size_t)x.n + 1, sizeof *moved);
        band_moves(&x, &b.trace, moved);
        struct band_ask band = {.given = j->t[0], .size = size, .moved = moved};
        note_margins(j, &a.trace);
        bool measured = judge_band(j, &x, &band, &far);
        int turn = far >= 0 ? x.at[far].turn : r->diff.turn;
        int token = far >= 0 ? x.at[far].token : r->diff.token;
        if (measured && token >= 0)
            place_beyond(j, turn, token, size, &b.trace);
        check_sides(j);
        bool beyond = far >= 0 || (r->place.found && !r->place.experts);
        r->verdict = !measured                        ? VERDICT_OPEN
                     : r->rule[0] || beyond           ? VERDICT_BUG
                     : r->conditions.may & MAY_LOGITS ? VERDICT_PURPOSE
                                                      : VERDICT_ROUNDING;
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Reports what the comparison of the logs found of turns that were stopped. */
static void say_stops(struct judge *j)
{
    struct report *r = j->r;
    const struct difference *d = &r->diff;
    int side = d->step[0] ? 0 : 1;
    const struct trace *t = side ? j->t[1] : j->t[0];
    if (r->counts.stop[0])
        report_say(r, "%s", r->counts.stop);
    if (d->class != DIFF_STOP)
        return;
    const struct trace_turn *bad = &t->turn[d->index];
    if (r->rule[0] || !bad->rule)
        return;
    snprintf(r->rule, sizeof r->rule, "%s", bad->fault);
    r->rule_turn = bad->n;
    r->rule_step = bad->fault_step;
    r->rule_side = side;
}

static void say_other(struct report *r)
{
    if (r->diff.index > 0)
        report_say(r, "the turns before it are equal: %d turn%s, %d token%s", r->counts.turns,
                   plural(r->counts.turns), r->counts.tokens, plural(r->counts.tokens));
}

static bool read_second(struct judge *j, struct err *e)
{
    struct run_ask ask = {.row = -1, .layer = -1};
    FREED(run_facts_free) struct run_facts f = {0};
    if (j->t[1])
        return true;
    bool ok = judge_run(j, 1, &ask, &f, "with the changes", e);
    judge_rule(j, 1, &f, j->ask->names.b);
    FREED(free_at) char *off = facts_value(buf_text(&f.about), "draft_off");
    if (off)
        report_say(j->r, "drafting is off %s: %s", j->ask->names.b, off);
    j->now_b = f.trace;
    f.trace = (struct trace){0};
    j->t[1] = &j->now_b;
    return ok;
}

static bool judge_local(struct judge *j, struct err *e)
{
    struct report *r = j->r;
    if (!read_second(j, e))
        return false;
    differ_traces(j->t[0], j->t[1], DIFF_BY_CONDITIONS, &j->ask->names, &r->diff, &r->conditions,
                  &r->counts);
    bool rounds = r->conditions.may & (MAY_ROUND | MAY_LOGITS);
    bool other = r->diff.class == DIFF_PROMPT || r->diff.class == DIFF_MESSAGE ||
                 r->diff.class == DIFF_STOP;
    say_stops(j);
    if (r->no_ids && r->diff.class) { /* perhaps another prompt: no verdict about the numbers */
        r->verdict = VERDICT_OTHER;
        say_other(r);
        return true;
    }
    if ((r->diff.class && r->diff.class != DIFF_MESSAGE) || rounds)
        judge_conditions(j);
    if (other || !rounds)
        judge_exact(j);
    else
        judge_rounding(j);
    if (r->verdict == VERDICT_OTHER)
        say_other(r);
    return true;
}

bool verdict_find(const struct verdict_ask *ask, struct report *r, struct err *e)
{
    struct judge j = {
        .ask = ask, .r = r, .t = {ask->log_a, ask->log_b}, .side = {ask->a, ask->b}, .local = -1};
    bool served =
        ask->forced || trace_served(ask->log_a) || (ask->log_b && trace_served(ask->log_b));
    *r = (struct report){.token = -1, .margins = {NAN, NAN}};
    for (int i = 0; i < 2; i++)
        r->no_ids |= j.t[i] && ANY(k, j.t[i]->n, j.t[i]->turn[k].no_ids);
    for (int i = 0; i < 2; i++)
        if (!j.side[i].opened) /* an engine that the hook has changed must not be used again */
            j.side[i].how.keep = &j.engine;
    bool ok = (served ? judge_served : judge_local)(&j, e);
    if (ok && r->rule[0])
        r->verdict = VERDICT_BUG;
    for (int i = 0; ok && i < 2; i++) {
        r->side[i] = i ? ask->names.b : ask->names.a;
        if (j.t[i])
            trace_drafts(j.t[i], &r->drafts[i]);
    }
    rerun_engine_close(&j.engine);
    bands_free(&j.bands);
    trace_free(&j.now_b);
    run_facts_free(&j.base);
    free(j.logp);
    return ok;
}
