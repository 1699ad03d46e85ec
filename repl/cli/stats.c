/* stats.c - `aerie stats`: how many drafted tokens were accepted across the saved sessions, by
 * model and by session. */
#include "repl/cli/cli.h"

#include "kernels/json.h"

/* Sums of the steps that drafted, session by session. */
#define SUMS                                                                                       \
    "(SELECT t.session_id AS sid, count(*) AS c, sum(s.drafted) AS d, sum(s.accepted) AS a"        \
    " FROM step s JOIN turn t ON t.id = s.turn_id WHERE s.drafted > 0 GROUP BY sid) x"             \
    " JOIN v_session e ON e.session = x.sid"
/* Texts have two digits, JSON has numbers. */
#define TEXT(x) "printf('%.2f', " x ")"
#define NUMBER(x) "round(" x ", 9)"
#define RATES(c, d, a, as)                                                                         \
    ", " c " AS cycles, " d " AS drafted, " a " AS accepted,"                                      \
    " " as("1.0 * " a " / " d) " AS rate, " as("1 + 1.0 * " a " / " c) " AS MAL"
/* The end of a long path, which fits a terminal of 80 columns. */
#define END(x) "CASE WHEN length(" x ") > 31 THEN '...' || substr(" x ", -28) ELSE " x " END"
#define WHOLE(x) x
#define BY_MODEL(as, name)                                                                         \
    "SELECT count(*) AS sessions" RATES("sum(c)", "sum(d)", "sum(a)", as)                          \
    ", " name("coalesce(e.model, '?')") " AS model FROM " SUMS " GROUP BY e.model"                 \
    " ORDER BY sum(c) DESC"
#define BY_SESSION(as)                                                                             \
    "SELECT e.number, e.turns" RATES("c", "d", "a", as)                                            \
    ", substr(coalesce(e.title, ''), 1, 40) AS title FROM " SUMS " ORDER BY e.updated_ms DESC"

static const char *const by_model[] = {BY_MODEL(TEXT, END), BY_MODEL(NUMBER, WHOLE)};
static const char *const by_session[] = {BY_SESSION(TEXT), BY_SESSION(NUMBER)};

/* As text, rows are truncated to the terminal's width, not wrapped. */
static bool part(struct hdb *d, const char *query, int most, const char *name,
                 const struct printer *to, struct err *e)
{
    FREED(buf_free) struct buf text = {0};
    bool ok = hdb_sql(d, query, to->json != NULL, most, &text, e);
    if (ok && to->json)
        jput_key(to->json, name);
    FREED(sheet_free) struct sheet rows = {.ascii = to->out->ascii};
    if (ok && !to->json) {
        say_text(&rows, ST_TEXT, text.p);
        sheet_cut(&rows, cli_width());
        sheet_append_wrapped(to->out, &rows, 0);
    } else if (ok) {
        print_ready(to, text.p);
    }
    return ok;
}

int cli_stats(struct cli *c)
{
    enum { MODELS = 1000 };
    struct err e = {0};
    FREED(hdb_close_at) struct hdb *d = cli_open_db(c, &e);
    if (!d)
        return cli_fail(&e);
    const struct printer *to = cli_answer(c, '{');
    bool ok = part(d, by_model[to->json != NULL], MODELS, "models", to, &e);
    if (ok)
        print_text(to, ST_TEXT, "\n");
    ok = ok && part(d, by_session[to->json != NULL], c->limit, "sessions", to, &e);
    if (ok)
        print_text(to, ST_TEXT, "\ncycles: steps that drafted; rate = accepted/drafted; "
                   "MAL = 1 + accepted/cycles\n");
    cli_answer_end();
    return ok ? 0 : cli_fail(&e);
}
