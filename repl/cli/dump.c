/* dump.c - `aerie dump PATH`: holds what another engine recorded of its passes against aerie's
 * pass over the same checkpoint (engine/tools/dump.h), or FlashInfer's records against attention in
 * double precision (engine/tools/flashinfer.h). */
#include "engine/tools/dump.h"
#include "engine/tools/flashinfer.h"
#include "repl/cli/cli.h"

enum { SHOWN = 8 }; /* modules that differ, in text */

/* Catches signals only after the model is loaded: before, Ctrl-C ends the process at once. */
static void begin(void *arg)
{
    cli_stop_open(arg, &(struct err){0});
}

static void say_source(const struct dump_report *r, const struct printer *to)
{
    const struct dump_sequences *s = &r->s;
    print_add(to, ST_BOLD, "%s{engine}", r->d.engine);
    print_add(to, ST_TEXT, ": %d{files} file%s, %d{passes} pass%s, %d{requests} request%s, "
              "%ld{rows} rows aligned", r->d.files, plural(r->d.files), r->d.n,
              r->d.n == 1 ? "" : "es", s->n, plural(s->n), s->rows);
    print_add(to, ST_TEXT, r->d.ranks > 1 ? "; the first of %d{ranks} ranks" : "\f%d{ranks}",
              r->d.ranks);
    print_end(to);
    if (to->json || s->missing) {
        print_add(to, ST_WARN, "%ld{missing} rows not compared: %s{why_missing}", s->missing,
                  s->first_missing);
        print_end(to);
    }
    if (to->json || s->unclear) {
        print_add(to, ST_WARN, "%ld{unclear} rows not compared: they fit several requests, or are "
                  "nodes of a tree", s->unclear);
        print_end(to);
    }
    if (to->json || s->no_ids) {
        print_add(to, ST_WARN, "%d{without_ids} passes without input_ids and positions", s->no_ids);
        print_end(to);
    }
    if (to->json || r->d.refused) {
        print_add(to, ST_WARN, "%d{refused} files not read: %s{why_refused}", r->d.refused,
                  r->d.why);
        print_end(to);
    }
}

static void say_modules(const struct dump_report *r, const struct printer *to)
{
    int near = 0, far = 0, shown = 0;
    print_open(to, "modules", '[');
    for (int i = 0; i < r->n; i++) {
        const struct dump_module *m = &r->module[i];
        const char *word = m->far ? "differs" : m->near ? "near" : "agrees";
        near += !m->far && m->near;
        far += m->far > 0;
        if (to->json || (m->far && i != r->first && shown++ < SHOWN))
            print_line(to, ST_DIM, "  %s{verdict}  %s{module}\f%d{layer}%ld{rows}%ld{near}%ld{far}"
                       "%g{error:4}%g{band:4}%d{pass}%d{row}%d{position}\f  %g of pass %d, "
                       "position %d; %ld of %ld rows", word, m->name, m->layer, (long)m->rows,
                       (long)m->near, (long)m->far, m->worst, m->band, m->pass, m->row,
                       m->position, m->worst, m->pass, m->position, (long)m->far, (long)m->rows);
    }
    print_close(to, ']');
    if (shown > SHOWN)
        print_note(to, ST_DIM, "  and %d more", shown - SHOWN);
    print_add(to, ST_TEXT, "%d{compared} module%s compared: %d{agree} agree, %d{near} near, "
              "%d{differ} differ\f%s{type}\f of %s; relative L2 error of a row at most "
              "%g{tolerance}",
              r->n, plural(r->n), r->n - near - far, near, far, r->type, r->type, r->tol);
    print_add(to, ST_TEXT, r->noisy ? ", or %d{noise_runs} runs with its roundings come as far"
                                    : "\f%d{noise_runs}", r->noisy ? DUMP_NOISE : 0);
    print_end(to);
}

/* The first module whose inputs agree and whose output does not. */
static void say_first(const struct dump_report *r, const struct printer *to)
{
    const struct dump_module *m = r->first >= 0 ? &r->module[r->first] : NULL;
    const struct dump_module *good = r->last_good >= 0 ? &r->module[r->last_good] : NULL;
    if (m) {
        print_add(to, ST_BAD, "first    %s{first}: relative L2 error %g{first_error:4} in pass "
                  "%d{first_pass}, row %d{first_row}, position %d{first_position}; "
                  "%g{first_band:4} in runs with noise", m->name, m->worst, m->pass, m->row,
                  m->position, m->band);
        print_end(to);
        if (good)
            print_add(to, ST_TEXT, "before   %s{before} agrees (at most %g{before_error:4})",
                      good->name, good->worst);
        else
            print_add(to, ST_TEXT, "before   nothing was compared that agrees: its input may "
                      "differ already, or the weights do");
        print_end(to);
    }
}

static void say_skipped(const struct dump_report *r, const struct printer *to)
{
    print_open(to, "not_compared", '[');
    struct buf names = {0};
    for (int i = 0; i < r->n_skipped; i++) {
        if (to->json)
            jput_str(to->json, r->skipped[i]);
        else if (i < SHOWN)
            buf_printf(&names, "%s%s", i ? ", " : "", r->skipped[i]);
    }
    print_close(to, ']');
    if (names.n)
        print_note(to, ST_DIM, "not compared, because aerie keeps no such numbers: %s%s", names.p,
                   r->n_skipped > SHOWN ? ", ..." : "");
    buf_free(&names);
}

static void report(const struct cli *c, const struct dump_report *r)
{
    struct cli_answer a;
    cli_answer_open(&a, c);
    print_open(&a.to, NULL, '{');
    say_source(r, &a.to);
    say_modules(r, &a.to);
    say_first(r, &a.to);
    say_skipped(r, &a.to);
    if (r->first < 0)
        print_note(&a.to, ST_GOOD, "no module differs");
    print_close(&a.to, '}');
    cli_answer_close(&a);
}

/* ---- FlashInfer ------------------------------------------------------------------------------ */

static void say_call(const struct fi_run *x, const struct printer *to)
{
    bool bad = x->verdict == FI_DIFFERS || x->verdict == FI_BROKEN;
    print_open(to, NULL, '{');
    print_add(to, bad ? ST_BAD : x->verdict == FI_AGREES ? ST_TEXT : ST_WARN,
              "%s{call} %s{verdict}\f%d{requests}%d{rows}%d{window:0}", x->name,
              fi_word(x->verdict), x->requests, x->rows, x->window);
    if (x->verdict == FI_AGREES || x->verdict == FI_DIFFERS)
        print_add(to, ST_TEXT, ": relative L2 error %g{error:4} in request %d{request}, "
                               "row %d{row}, "
                  "position %d{position}", x->worst, x->request, x->row, x->position);
    if (x->why[0])
        print_add(to, ST_TEXT, ": %s{why}", x->why);
    if (x->like)
        print_add(to, ST_BAD, "; the result is that %s{like}", x->like);
    print_end(to);
    print_close(to, '}');
}

static void report_calls(const struct cli *c, const struct fi_report *r)
{
    struct cli_answer a;
    int count[5] = {0}, shown = 0;
    cli_answer_open(&a, c);
    print_open(&a.to, NULL, '{');
    print_open(&a.to, "calls", '[');
    for (int i = 0; i < r->n; i++) {
        count[r->v[i].verdict]++;
        if (a.to.json || r->n <= SHOWN || (r->v[i].verdict != FI_AGREES && shown++ < SHOWN))
            say_call(&r->v[i], &a.to);
    }
    print_close(&a.to, ']');
    print_add(&a.to, ST_BOLD, "FlashInfer: %d{records} records, %d{other} of other functions; "
              "%d{compared} calls: %d{agree} agree, %d{differ} differ, %d{broken} with broken "
              "tables, %d{no_output} without output, %d{skipped} not compared", r->records,
              r->other, r->n,
              count[FI_AGREES], count[FI_DIFFERS], count[FI_BROKEN], count[FI_NO_OUTPUT],
              count[FI_SKIPPED]);
    print_end(&a.to);
    print_close(&a.to, '}');
    cli_answer_close(&a);
}

static int dump_calls(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.running = 1};
    struct fi_report r;
    if (!cli_stop_open(&stop, &e))
        return cli_fail(&e);
    bool ok = fi_compare(c->word[0], &stop, &r, &e);
    int signal = cli_stop_close(0);
    if (r.n > 0 && !signal)
        report_calls(c, &r);
    fi_free(&r);
    return signal ? signal : ok ? 0 : cli_fail(&e);
}

int cli_dump(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.running = 1};
    struct dump_report r;
    if (fi_is(c->word[0]))
        return dump_calls(c);
    struct dump_opts o = {.engine = c->opt.engine, .path = c->word[0], .stop = &stop,
                          .begin = begin, .arg = &stop,
                          .progress = c->opt.quiet ? NULL : cli_progress};
    if (!o.engine.model)
        return cli_fail(&(struct err){ERR_MODEL, "no model: the bundled one is not installed; "
                                                 "expected -m DIR", {0}});
    bool ok = dump_compare(&o, &r, &e);
    cli_progress_end();
    int signal = cli_stop_close(0);
    if (r.n > 0 && !signal)
        report(c, &r);
    dump_report_free(&r);
    return signal ? signal : ok ? 0 : cli_fail(&e);
}
