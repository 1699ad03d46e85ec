/* check.c - `aerie check`: judges cases (engine/tools/case.h) by the rules, draws them, and makes a
 * failing one as small as it can. */
#include <errno.h>

#include "engine/tools/case.h"
#include "repl/cli/cli.h"

enum { SHOWN = 8 }; /* violations of a case */

struct check_job {
    struct cli *c;
    const struct printer *to;
    struct stop stop;
    const char *file;
    int n, failed;     /* cases */
    struct buf shrunk; /* the first failing case, made smaller */
};

static void name_rules(const struct case_verdict *v, const struct printer *to)
{
    FREED(buf_free) struct buf yes = {0};
    for (int i = 1; i < N_RULES; i++)
        if (v->checked >> i & 1)
            buf_printf(&yes, "%s%s", yes.n ? " " : "", fault_rule(i));
    print_facts(to, ST_DIM, "checked      %s{checked}", yes.p ? yes.p : "nothing");
    PRINT_IN(to, "not_checked", '[');
    for (int i = 1, k; i < N_RULES; i = k) {
        FREED(buf_free) struct buf no = {0};
        for (k = i; k < N_RULES && !(v->checked >> k & 1) && v->why[k] == v->why[i]; k++)
            buf_printf(&no, "%s%s", no.n ? " " : "", fault_rule(k));
        if (no.n)
            print_line(to, ST_DIM, "not checked  %s{rules}: needs %s{needs}", no.p, v->why[i]);
        k = max_int(k, i + 1);
    }
}

static void say_case(const struct check_job *j, const struct attn_case *c, int i)
{
    const struct printer *to = j->to;
    print_add(to, ST_TEXT, "%s{file}", j->file);
    if (i > 0)
        print_add(to, ST_TEXT, ", number %d{number}", i + 1);
    print_add(to, ST_TEXT, ": ");
    if (c->engine[0])
        print_add(to, ST_TEXT, "%s{engine}\f%s{version}%s{backend}\f%s%s%s%s, ", c->engine,
                  c->version, c->backend, c->version[0] ? " " : "", c->version,
                  c->backend[0] ? " " : "", c->backend);
    print_facts(to, ST_TEXT, "%s{mode}, %d{requests} request%s, %d{rows} row%s, "
              "%d{groups} group%s, %d{numbers} numbers", plan_mode_name(c->mode), c->n_request,
              plural(c->n_request),
              c->n_row, plural(c->n_row), c->n_group, plural(c->n_group), case_numbers(c));
}

static void say_violations(const struct check_job *j, const struct case_verdict *v)
{
    print_open(j->to, "violations", '[');
    for (int k = 0; k < v->n; k++) {
        const char *text = v->found[k].text;
        if (k < SHOWN || j->to->json)
            print_line(j->to, ST_BAD, "\f%s{rule}\f%s{text}", fault_rule(v->found[k].rule), text);
    }
    print_close(j->to, ']');
    if (v->n > SHOWN)
        print_note(j->to, ST_BAD, "... %d more%s", v->n - SHOWN,
                   v->n == CASE_FOUND ? " at least" : "");
    if (v->n == 0)
        print_note(j->to, ST_GOOD, "no rule is violated");
    for (int k = 0, rule = 0; k < v->n; k++)
        if (k < SHOWN && v->found[k].rule != rule) {
            rule = v->found[k].rule;
            print_note(j->to, ST_DIM, "  %s", case_rule(rule));
        }
}

/* The smallest case that still breaks the rule, and its picture. */
static void say_smallest(struct check_job *j, struct attn_case *c)
{
    struct case_verdict v;
    FREED(buf_free) struct buf picture = {0};
    int before = case_numbers(c), tried = case_shrink(c, &j->stop);
    case_judge(c, &v);
    print_open(j->to, "smallest", '{');
    print_facts(j->to, ST_TEXT, "smallest case that breaks %s{rule}: %d{numbers} of %d{of} "
              "numbers, %d{tried} tried", fault_rule(v.found[0].rule), case_numbers(c), before,
              tried);
    print_facts(j->to, ST_BAD, "%s{text}", v.found[0].text);
    case_draw(c, &picture);
    print_text(j->to, ST_TEXT, picture.p);
    print_close(j->to, '}');
    if (!j->shrunk.n) {
        case_json(c, &j->shrunk);
        buf_char(&j->shrunk, '\n');
    }
}

static bool check_one(struct attn_case *c, int i, void *arg)
{
    struct check_job *j = arg;
    struct case_verdict v;
    j->n++;
    print_open(j->to, NULL, '{');
    say_case(j, c, i);
    case_judge(c, &v);
    say_violations(j, &v);
    j->failed += v.n > 0;
    if (v.n == 0) {
        FREED(buf_free) struct buf picture = {0};
        case_draw(c, &picture);
        print_text(j->to, ST_TEXT, picture.p);
    } else {
        say_smallest(j, c);
    }
    name_rules(&v, j->to);
    print_close(j->to, '}');
    return !stop_asked(&j->stop);
}

static bool write_shrunk(const struct check_job *j, struct err *e)
{
    const struct cli *c = j->c;
    if (!c->out) {
        print_text(j->to, ST_TEXT, j->shrunk.p);
        return true;
    }
    FILE *f = fopen(c->out, "we");
    bool ok = f && fwrite(j->shrunk.p, 1, j->shrunk.n, f) == j->shrunk.n;
    int why = errno;
    if (f && fclose(f) != 0 && ok) {
        why = errno;
        ok = false;
    }
    return ok || err_set(e, ERR_USAGE, "cannot write %s: %s", c->out, strerror(why));
}

/* Whether the file is not a database, which the user may expect to be checked here. */
static bool is_no_log(const struct buf *text, const char *file, struct err *e)
{
    enum { MAGIC = sizeof "SQLite format 3" };
    return text->n < MAGIC || memcmp(text->p, "SQLite format 3", MAGIC) != 0 ||
           err_set(e, ERR_USAGE, "%s is a session log or a pack, expected attention steps in "
                   "JSON; aerie replay --check runs a session again", file);
}

int cli_check(struct cli *c)
{
    struct check_job j = {.c = c, .to = cli_answer(c, 0)};
    struct err e = {0};
    bool ok = cli_stop_open(&j.stop, &e);
    print_open(j.to, NULL, '[');
    for (int i = 0; i < c->n_word && ok && !stop_asked(&j.stop); i++) {
        FREED(buf_free) struct buf text = {0};
        j.file = c->word[i];
        ok = buf_read_file(&text, j.file, CASE_BYTES, &e) && is_no_log(&text, j.file, &e) &&
             (case_each(buf_text(&text), text.n, check_one, &j, &e) >= 0 ||
              err_prefix(&e, "%s", j.file));
    }
    print_close(j.to, ']');
    if (ok && j.failed)
        ok = write_shrunk(&j, &e);
    cli_answer_end();
    buf_free(&j.shrunk);
    return cli_stop_close(!ok ? cli_fail(&e) : j.failed ? ERR_INVARIANT : 0);
}
