/* triage.c - `aerie triage ID|URL`: acceptance explained. See repl/compare/triage.h. */
#include "repl/cli/triage.h"

#include "repl/cli/flags.h"
#include "repl/compare/rerun.h"

static bool of_session(struct cli *c, struct triage *t, const struct stop *stop, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    FREED(hdb_close_at) struct hdb *d = cli_open_session(c, c->word[0], &row, e);
    struct triage_ask ask = {.db = d, .session = row.id, .name = c->word[0],
                             .how = cli_rerun(c), .stop = stop,
                             .progress = c->opt.quiet ? NULL : cli_progress,
                             .progress_end = cli_progress_end};
    return d && triage_session(&ask, t, e);
}

int cli_triage(struct cli *c)
{
    struct err e = {0};
    struct stop stop;
    FREED(free_at) struct triage *t = xcalloc(1, sizeof *t);
    FREED(free_at) struct triage_verdict *v = xcalloc(1, sizeof *v);
    bool asks = cli_asks_server(c, IN_TRIAGE);
    bool ok = cli_stop_open(&stop, &e) &&
              (asks ? triage_server(c, t, &stop, &e) : of_session(c, t, &stop, &e));
    if (ok) {
        triage_judge(t, v);
        const struct printer *to = cli_answer(c, 0);
        triage_print(t, v, to);
        cli_answer_end();
    }
    int rc = !ok ? cli_fail(&e) : v->is == TRIAGE_HEALTHY || v->is == TRIAGE_TOO_FEW
                                      ? 0 : ERR_NEGATIVE;
    accepted_free(&t->log);
    return cli_stop_close(rc);
}
