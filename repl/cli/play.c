/* play.c - `aerie replay` without --check: a saved session in the full screen or in plain mode,
 * where every view shows every step, without a model. */

#include "repl/cli/cli.h"

int cli_play(struct cli *c)
{
    struct err e = {0};
    FREED(session_row_free) struct session_row row = {0};
    if (c->n_word != 1)
        err_set(&e, ERR_USAGE, "replay takes one session; not \"%.80s\", too", c->word[1]);
    if (c->n_word != 1 || !cli_choose_face(c, &e))
        return cli_fail(&e);
    struct hdb *d = cli_open_session(c, c->word[0], &row, &e);
    FREED(free_at) struct app *a = xcalloc(1, sizeof *a);
    int rc;
    if (d && app_open_recorded(a, &c->opt, d, &row, cli_names_file(c->word[0]), &e)) {
        rc = a->exit_code = c->opt.tui ? tui_run(a) : plain_run(a);
        app_close(a);
    } else {
        rc = cli_fail(&e);
    }
    return rc;
}
