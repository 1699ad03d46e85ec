/* diff.c - /diff and /diverge: compare this session with another one, or with its own replay with
 * changes. /diff only reads the logs; /diverge runs both sides again, on engines of its own, and
 * gives a verdict. */

#include "repl/cmd/cmd.h"
#include "repl/compare/verdict.h"

/* One session of the log. */
struct logged_session {
    char id[SESSION_ID];
    struct script script;
    struct trace log;
};

static void logged_free(struct logged_session *l)
{
    script_free(&l->script);
    trace_free(&l->log);
}

static bool read_logged(struct app *a, const char *name, struct logged_session *l, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    struct hdb *d = app_hdb(a, e);
    bool ok = d && hdb_find(d, name, &row, e) && script_read(&l->script, d, row.id, e);
    if (ok) {
        memcpy(l->id, row.id, sizeof l->id);
        trace_script(&l->log, &l->script);
    }
    return ok;
}

static struct diff_side side_of(const struct app *a, const struct script *s, char *const *with,
                                int n)
{
    struct diff_side x = {.script = s};
    x.how.engine.device = a->opt.engine.device;
    x.how.engine.threads = a->opt.engine.threads;
    x.how.with = (const char *const *)with;
    x.how.n_with = n;
    return x;
}

static bool show(struct cmd_call *c, const struct verdict_ask *ask, const char *id,
                 const char *other)
{
    FREED(report_free) struct report r = {0};
    bool ok = verdict_find(ask, &r, c->e);
    if (ok) {
        PRINT_IN(&c->to, NULL, '{');
        print_add(&c->to, ST_TEXT, "\f%s{a}%s{b}", id, other);
        verdict_print(&r, &c->to);
    }
    return ok;
}

/* argv: another session (n == 0), or n changes of this one's replay. */
static bool compare(struct cmd_call *c, char **argv, int n, bool log_only)
{
    struct app *a = c->app;
    struct logged_session mine = {.id = ""}, other = {.id = ""};
    bool two = n == 0 && argv[0];
    if (!a->session[0] || a->turn == 0)
        return err_set(c->e, ERR_USAGE, "this session has no turn yet");
    bool ok = app_own_log(a, c->e) &&
        read_logged(a, a->session, &mine, c->e) && (!two || read_logged(a, argv[0], &other, c->e));
    if (ok) {
        struct verdict_ask ask = {
            .a = side_of(a, &mine.script, NULL, 0),
            .b = side_of(a, two ? &other.script : &mine.script, argv, n),
            .log_a = &mine.log, .log_b = two ? &other.log : NULL, .log_only = log_only,
            .names = {"here", two ? "there" : "in the replay"},
            .who = {"this session", two ? "the other one" : "its replay"}};
        ok = show(c, &ask, mine.id, two ? other.id : mine.id);
    }
    logged_free(&mine);
    logged_free(&other);
    return ok;
}

bool cmd_diff(struct cmd_call *c)
{
    return compare(c, c->argv, 0, true);
}

bool cmd_diverge(struct cmd_call *c)
{
    int n = 0;
    char *none[] = {NULL};
    while (n < c->argc && strchr(c->argv[n], '='))
        n++;
    if (n < c->argc && c->argc > 1)
        return arg_expected(c, "takes a session, or changes NAME=VALUE");
    return compare(c, c->argc ? c->argv : none, n, false);
}
