/* log.c - `aerie logs`, `export` and `db`: the session log as a whole. `show` is show.c. */
#include "repl/cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "history/hazards.h"
#include "kernels/json.h"

/* ---- logs ---- */

struct listing {
    const struct cli *c;
    struct hdb *db;
    struct sheet sheet;
    struct buf json;
    int width;
};

static bool session_json(const struct session_row *r, void *arg)
{
    struct listing *l = arg;
    struct buf *b = &l->json;
    jput_open(b, '{');
    jput_kstr(b, "id", r->id);
    jput_kint(b, "number", r->number);
    jput_kstr(b, "parent", r->parent[0] ? r->parent : NULL);
    if (r->parent[0])
        jput_kint(b, "fork_turn", r->fork_turn);
    jput_kstr(b, "title", r->title);
    jput_kstr(b, "model", r->model);
    jput_kint(b, "turns", r->n_turns);
    jput_kint(b, "created_ms", r->created_ms);
    jput_kint(b, "updated_ms", r->updated_ms);
    jput_kbool(b, "ended", r->ended);
    struct buf hazards = {0};
    hdb_hazards(l->db, r->id, false, "; ", &hazards, NULL);
    jput_kstr(b, "hazards", hazards.p);
    buf_free(&hazards);
    jput_close(b, '}');
    cli_json(b);
    return true;
}

static bool list_line(const struct session_row *r, void *arg)
{
    struct listing *l = arg;
    struct sheet *s = &l->sheet;
    char when[20];
    cli_when(r->updated_ms, when);
    sheet_printf(s, ST_KEY, "%5d", r->number);
    sheet_printf(s, ST_DIM, "  %s %3d %s  ", when, r->n_turns, r->n_turns == 1 ? "turn " : "turns");
    struct buf title = {0};
    text_sanitise(&title, r->title ? r->title : "", r->title ? strlen(r->title) : 0, false, NULL);
    int used, room = l->width ? max_int(l->width - 37, 10) : 1 << 20;
    size_t fit = title.n ? text_fit(title.p, title.n, room, &used) : 0;
    bool cut = fit < title.n;
    sheet_addn(s, ST_TEXT, title.n ? title.p : "", cut ? text_fit(title.p, fit, room - 1, &used) : fit);
    sheet_add(s, ST_DIM, cut ? s->ascii ? "~" : "…" : "");
    if (r->parent[0])
        sheet_printf(s, ST_DIM, "  (fork)");
    struct buf hazards = {0};
    hdb_hazards(l->db, r->id, false, s->ascii ? " | " : " · ", &hazards, NULL);
    if (hazards.n)
        sheet_printf(s, ST_BAD, "  %s", hazards.p);
    buf_free(&hazards);
    sheet_line(s);
    buf_free(&title);
    cli_print(l->c, s);
    return true;
}

int cli_logs(struct cli *c)
{
    struct err e = {0};
    char *path = cli_db_path(c);
    struct listing l = {.c = c, .width = cli_width()};
    struct hdb *d = NULL;
    int n = 0;
    sheet_init(&l.sheet, c->opt.ascii);
    if (c->opt.db || access(path, F_OK) == 0) { /* no log yet is no error */
        l.db = d = cli_open_db(c, &e);
        n = d ? hdb_sessions(d, c->query, c->model_filter, c->limit,
                             c->opt.json ? session_json : list_line, &l, &e)
              : -1;
    }
    hdb_close(d);
    if (n == 0 && !c->opt.quiet)
        fprintf(stderr, "aerie: no session%s\n", c->query || c->model_filter ? " matches" : " yet");
    sheet_free(&l.sheet);
    buf_free(&l.json);
    free(path);
    if (n < 0)
        return cli_fail(&e);
    return n == 0 && (c->query || c->model_filter) ? ERR_NEGATIVE : 0;
}

/* ---- export ---- */

int cli_export(struct cli *c)
{
    struct err e = {0};
    struct session_row row = {0};
    const char *format = c->format ? c->format : "jsonl";
    if (strcmp(format, "jsonl") != 0 && strcmp(format, "md") != 0) {
        err_set(&e, ERR_USAGE, "--format cannot be \"%.80s\"; expected jsonl or md", format);
        return cli_fail(&e);
    }
    struct hdb *d = cli_open_session(c, c->word[0], &row, &e);
    bool ok = d &&
              (strcmp(format, "md") == 0 ? export_markdown : hdb_export)(d, row.id,
                                                                         c->out ? c->out : "-", &e);
    session_row_free(&row);
    hdb_close(d);
    return ok ? 0 : cli_fail(&e);
}

/* ---- db ---- */

static int db_show_path(const struct cli *c, const char *path)
{
    if (c->opt.json) {
        struct buf b = {0};
        jput_open(&b, '{');
        jput_kstr(&b, "path", path);
        jput_close(&b, '}');
        cli_json(&b);
        buf_free(&b);
    } else {
        printf("%s\n", path); /* unsanitised: the path is for scripts */
    }
    return 0;
}

static int db_check(const struct cli *c, const char *path)
{
    struct err e = {0};
    struct buf report = {0};
    bool ok = history_check(path, &report, &e);
    if (c->opt.json) {
        struct buf b = {0};
        jput_open(&b, '{');
        jput_kstr(&b, "path", path);
        jput_kbool(&b, "ok", ok);
        jput_kstr(&b, "report", report.n ? report.p : "");
        jput_close(&b, '}');
        cli_json(&b);
        buf_free(&b);
    } else {
        cli_print_text(c, &report);
    }
    buf_free(&report);
    return ok ? 0 : cli_fail(&e);
}

static int db_prune(const struct cli *c, const char *path, struct err *e)
{
    if (c->older_than < 0) {
        err_set(e, ERR_USAGE, "db prune: expected --older-than DAYS");
        return cli_fail(e);
    }
    int n = history_prune(path, c->older_than, e);
    if (n < 0)
        return cli_fail(e);
    printf("%d session%s removed\n", n, n == 1 ? "" : "s");
    return 0;
}

static int db_backup(const struct cli *c, const char *path, struct err *e)
{
    if (c->n_word < 2)
        err_set(e, ERR_USAGE, "db backup: expected the name of a new FILE");
    else if (history_backup(path, c->word[1], e))
        return 0;
    return cli_fail(e);
}

static int db_sql(const struct cli *c, const char *path, struct err *e)
{
    enum { MAX_ROWS = 10000 };
    struct buf text = {0};
    struct stop stop;
    if (c->n_word < 2) {
        err_set(e, ERR_USAGE, "db sql: expected a QUERY, such as \"select * from v_step limit 5\"");
        return cli_fail(e);
    }
    bool ok = cli_stop_open(&stop, e) && sql_run(path, c->word[1], c->opt.json, MAX_ROWS, &text, e);
    int rc = cli_stop_close(0);
    if (ok && c->opt.json)
        cli_json(&text);
    else if (ok)
        cli_print_text(c, &text);
    buf_free(&text);
    return rc ? rc : ok ? 0 : cli_fail(e);
}

int cli_db(struct cli *c)
{
    struct err e = {0};
    const char *what = c->word[0];
    char *path = cli_db_path(c);
    int rc;
    if (c->n_word == 2 && strcmp(what, "backup") != 0 && strcmp(what, "sql") != 0) {
        err_set(&e, ERR_USAGE, "db %.40s takes nothing behind it", what);
        rc = cli_fail(&e);
    } else if (strcmp(what, "path") == 0) {
        rc = db_show_path(c, path);
    } else if (access(path, F_OK) != 0) {
        err_set(&e, ERR_DB, "%s does not exist: nothing has been saved yet", path);
        rc = cli_fail(&e);
    } else if (strcmp(what, "check") == 0) {
        rc = db_check(c, path);
    } else if (strcmp(what, "backup") == 0) {
        rc = db_backup(c, path, &e);
    } else if (strcmp(what, "prune") == 0) {
        rc = db_prune(c, path, &e);
    } else if (strcmp(what, "sql") == 0) {
        rc = db_sql(c, path, &e);
    } else {
        err_set(&e, ERR_USAGE, "db cannot \"%.40s\"; expected path, check, backup, sql or prune", what);
        rc = cli_fail(&e);
    }
    free(path);
    return rc;
}
