/* diff.c - `aerie diff A B`, `aerie diff A --with NAME=VALUE...` and, for a server's session,
 * `aerie diff A --forced`: the first difference of two runs, its place in the target, and the
 * verdict. Nothing is saved. */
#include <unistd.h>

#include "repl/cli/cli.h"
#include "repl/compare/verdict.h"

/* One named session. */
struct named {
    char name[SESSION_ID]; /* hdb_name(); of a pack "" */
    const char *file;      /* of a pack, as the user gave it; NULL: from the log */
    struct session_row row;
    struct script script;
    struct trace log;
};

static void named_free(struct named *n)
{
    session_row_free(&n->row);
    script_free(&n->script);
    trace_free(&n->log);
}

static bool read_named(const struct cli *c, const char *name, struct named *n, struct err *e)
{
    FREED(hdb_close_at) struct hdb *d = cli_open_session(c, name, &n->row, e);
    bool ok = d && script_read(&n->script, d, n->row.id, e);
    if (ok) {
        n->file = cli_names_file(name) ? name : NULL;
        hdb_name(d, n->row.id, n->name);
        trace_script(&n->log, &n->script);
    }
    return ok;
}

/* "A", perhaps "B", and after --with the changes: words with "=" belong to them. */
static bool take_words(struct cli *c, const char **b, struct err *e)
{
    *b = NULL;
    for (int i = 1; i < c->n_word; i++) {
        if (c->with.n && strchr(c->word[i], '=')) {
            if (c->with.n == MAX_TEXTS)
                return err_set(e, ERR_USAGE, "diff --with takes at most %d changes", MAX_TEXTS);
            c->with.v[c->with.n++] = c->word[i];
        } else if (*b) {
            return err_set(e, ERR_USAGE, "diff compares two sessions; \"%.80s\" is a third",
                           c->word[i]);
        } else {
            *b = c->word[i];
        }
    }
    if (!*b && !c->with.n && !c->forced)
        return err_set(e, ERR_USAGE, "diff compares two sessions, or one with its replay --with "
                       "NAME=VALUE, or a server's with the local engine --forced");
    if (*b && c->forced)
        return err_set(e, ERR_USAGE,
                       "diff --forced compares one session with the local engine; two are named");
    return !*b || !c->with.n ||
           err_set(e, ERR_USAGE, "diff --with changes the replay of one session; two are named");
}

static struct diff_side side_of(const struct cli *c, const struct named *n, bool changed)
{
    struct diff_side s = {.script = &n->script, .how = cli_rerun(c)};
    s.how.engine.progress = NULL;
    s.how.n_with = changed ? c->with.n : 0;
    return s;
}

static void title(const char *name, const struct named *n, const struct printer *to)
{
    print_add(to, ST_LABEL, "%-12s", name);
    print_add(to, ST_KEY, "%s\v  %d turn%s  ", n->file ? n->file : n->name, n->row.n_turns,
              plural(n->row.n_turns));
    print_note(to, ST_DIM, "%s", n->row.title ? n->row.title : "");
}

static void print_verdict(const struct cli *c, const struct named *a, const struct named *b,
                          const struct report *r)
{
    FREED(buf_free) struct buf with = {0};
    const struct session_row *second = b->row.id[0] ? &b->row : &a->row;
    const struct printer *to = cli_answer(c, '{');
    for (int i = 0; i < c->with.n; i++)
        buf_printf(&with, " %s", c->with.v[i]);
    print_add(to, ST_TEXT, "\f%s{a}%d{a_number}%s{b}%d{b_number}", a->row.id, a->row.number,
              second->id, second->number);
    title("a", a, to);
    if (c->forced)
        print_note(to, ST_LABEL, "%-12s\vthe local engine, given the prompts and tokens of a", "b");
    else if (c->with.n)
        print_note(to, ST_LABEL, "%-12s\vthe same with%s", "b", with.p);
    else
        title("b", b, to);
    verdict_print(r, to);
    cli_answer_end();
}

/* Shows the number of runs so far on standard error: a comparison takes some tens of runs. */
static void progress(void *arg, const char *what)
{
    int *runs = arg;
    FREED(free_at) char *line = xasprintf("run %d: %s", ++*runs, what);
    cli_status(line);
}

static int verdict_status(const struct report *r)
{
    bool found = r->diff.class || r->verdict == VERDICT_BUG || r->verdict == VERDICT_BEYOND;
    return r->verdict == VERDICT_EQUAL || !found ? 0 : ERR_NEGATIVE;
}

int cli_diff(struct cli *c)
{
    static const struct diff_names in = {"in a", "in b"};
    struct err e = {0};
    FREED(named_free) struct named a = {0}, b = {0};
    FREED(report_free) struct report r = {0};
    const char *second;
    int runs = 0;
    bool ok = take_words(c, &second, &e) && read_named(c, c->word[0], &a, &e) &&
              (!second || read_named(c, second, &b, &e));
    if (ok) {
        struct verdict_ask ask = {.a = side_of(c, &a, false),
                                  .b = side_of(c, second ? &b : &a, !second),
                                  .log_a = &a.log,
                                  .log_b = second ? &b.log : NULL,
                                  .log_only = c->log_only && second,
                                  .forced = c->forced,
                                  .names = in,
                                  .who = {"a", "b"},
                                  .arg = &runs};
        if (isatty(STDERR_FILENO) && !c->opt.quiet)
            ask.progress = progress;
        ok = verdict_find(&ask, &r, &e);
        if (ask.progress && runs)
            cli_status_end();
    }
    int rc = ok ? verdict_status(&r) : cli_fail(&e);
    if (ok)
        print_verdict(c, &a, &b, &r);
    return rc;
}
