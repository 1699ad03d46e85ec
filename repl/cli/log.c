/* log.c - `aerie logs`, `export` and `db`: the session log as a whole. `show` is show.c. */
#include "kernels/when.h"
#include "repl/cli/cli.h"
#include "repl/cmd/sql.h"

#include <unistd.h>

#include "history/evidence/hazards.h"

/* ---- logs ---- */

struct log_listing {
    const struct cli *c;
    struct hdb *db;
    int width;
};

/* Appends a title, cut to what a line has room for. */
static void add_title(const char *text, int width, struct sheet *s)
{
    FREED(buf_free) struct buf title = {0};
    text_sanitise(&title, text ? text : "", text ? strlen(text) : 0, false);
    int used, room = width ? max_int(width - 37, 10) : 1 << 20;
    size_t fit = title.n ? text_fit(title.p, title.n, room, &used) : 0;
    bool cut = fit < title.n;
    sheet_addn(s, ST_TEXT, buf_text(&title), cut ? text_fit(title.p, fit, room - 1, &used)
                                                       : fit);
    sheet_add(s, ST_DIM, cut ? s->ascii ? "~" : "…" : "");
}

static bool list_session(const struct session_row *r, void *arg)
{
    const struct log_listing *l = arg;
    FREED(buf_free) struct buf hazards = {0};
    char when[20];
    bool fork = r->parent[0];
    const struct printer *to = cli_answer(l->c, '{');
    when_text(r->updated_ms, when);
    hdb_hazards(l->db, r->id, false, to->json ? "; " : to->out->ascii ? " | " : " · ", &hazards,
                NULL);
    print_add(to, ST_KEY, "\f%s{id}\f%5d{number}\f%s{parent}", r->id, r->number,
              r->parent[0] ? r->parent : NULL);
    if (fork)
        print_int(to, "fork_turn", r->fork_turn);
    print_add(to, ST_DIM, "\f%s{title}%s{model}\f  %s %3d{turns} %s  \f%ld{created_ms}"
              "%ld{updated_ms}%d{ended?}", r->title, r->model, when, r->n_turns,
              r->n_turns == 1 ? "turn " : "turns", r->created_ms, r->updated_ms, r->ended);
    if (!to->json)
        add_title(r->title, l->width, to->out);
    print_add(to, ST_DIM, "%s", fork ? "  (fork)" : "");
    print_add(to, ST_BAD, hazards.n ? "  %s{hazards}" : "\f%s{hazards}", hazards.p);
    print_end(to);
    cli_answer_end();
    return true;
}

int cli_logs(struct cli *c)
{
    struct err e = {0};
    FREED(free_at) char *path = cli_db_path(c);
    struct log_listing l = {.c = c, .width = cli_width()};
    FREED(hdb_close_at) struct hdb *d = NULL;
    int n = 0;
    if (c->opt.db || !file_missing(path)) { /* that there is no log yet is not an error */
        l.db = d = cli_open_db(c, &e);
        n = d ? hdb_sessions(d, c->query, c->model_filter, c->limit, list_session, &l, &e) : -1;
    }
    if (n == 0 && !c->opt.quiet)
        err_print("no session%s", c->query || c->model_filter ? " matches" : " yet");
    if (n < 0)
        return cli_fail(&e);
    return n == 0 && (c->query || c->model_filter) ? ERR_NEGATIVE : 0;
}

/* ---- export ---- */

int cli_export(struct cli *c)
{
    struct err e = {0};
    FREED(session_row_free) struct session_row row = {0};
    const char *of_file = export_format_of(c->out);
    const char *format = c->format ? c->format : of_file ? of_file : "jsonl";
    if (strcmp(format, "jsonl") != 0 && strcmp(format, "md") != 0) {
        err_set(&e, ERR_USAGE, "--format cannot be \"%.80s\"; expected jsonl or md", format);
        return cli_fail(&e);
    }
    FREED(hdb_close_at) struct hdb *d = cli_open_session(c, c->word[0], &row, &e);
    bool ok = d && (strcmp(format, "md") == 0 ? export_markdown
                                              : hdb_export)(d, row.id, c->out ? c->out : "-", &e);
    return ok ? 0 : cli_fail(&e);
}

/* ---- db ---- */

static int db_show_path(const struct cli *c, const char *path, struct err *)
{
    const struct printer *to = cli_answer(c, 0);
    print_line(to, ST_TEXT, "%s{path}", path); /* --json has the exact bytes */
    cli_answer_end();
    return 0;
}

static int db_check(const struct cli *c, const char *path, struct err *e)
{
    FREED(buf_free) struct buf report = {0};
    bool ok = history_check_head(path, c->head, &report, e);
    const struct printer *to = cli_answer(c, 0);
    print_text(to, ST_TEXT, buf_text(&report));
    print_line(to, ST_TEXT, "\f%s{path}%d{ok?}%s{report}", path, ok, buf_text(&report));
    cli_answer_end();
    return ok ? 0 : cli_fail(e);
}

static int prune(const struct cli *c, const char *path, const struct prune_rule *rule,
                 struct err *e)
{
    struct pruned gone;
    FREED(buf_free) struct buf report = {0};
    if (!history_prune(path, rule, &gone, &report, e))
        return cli_fail(e);
    const struct printer *to = cli_answer(c, 0);
    if (rule->dry)
        print_text(to, ST_TEXT, buf_text(&report));
    print_line(to, ST_TEXT, "%d{sessions} session%s %sremoved\f%d{turns}%ld{bytes}%d{removed?}",
               gone.sessions, plural(gone.sessions), rule->dry ? "would be " : "", gone.turns,
               gone.bytes, !rule->dry);
    cli_answer_end();
    return 0;
}

static int db_prune(const struct cli *c, const char *path, struct err *e)
{
    const struct prune_rule rule = {.older_than = c->older_than < 0 ? ANY_AGE : c->older_than,
                                    .keep = c->keep,
                                    .to_bytes = c->to_size < 0 ? -1 : c->to_size * INT64_C(1000000),
                                    .dry = c->dry_run};
    if (rule.older_than == ANY_AGE && rule.keep < 0 && rule.to_bytes < 0) {
        err_set(e, ERR_USAGE, "db prune: expected --older-than DAYS, --keep N or --to-size MB");
        return cli_fail(e);
    }
    return prune(c, path, &rule, e);
}

static int db_backup(const struct cli *c, const char *path, struct err *e)
{
    return history_backup(path, c->word[1], e) ? 0 : cli_fail(e);
}

static int db_vacuum(const struct cli *c, const char *path, struct err *e)
{
    int64_t before, after;
    if (!history_vacuum(path, &before, &after, e))
        return cli_fail(e);
    if (!c->opt.quiet)
        out_printf("%.1f MB, was %.1f MB\n", (double)after / 1e6, (double)before / 1e6);
    return 0;
}

static int db_repair(const struct cli *c, const char *path, struct err *e)
{
    FREED(buf_free) struct buf report = {0};
    int lost = 0;
    bool ok = history_repair(path, c->word[1], &report, &lost, e);
    cli_print_text(c, &report);
    return ok ? 0 : cli_fail(e);
}

/* The session that the second word names. */
static bool find_session(const struct cli *c, const char *path, struct session_row *row,
                         struct err *e)
{
    FREED(hdb_close_at) struct hdb *d = hdb_open(path, e);
    return d && hdb_find(d, c->word[1], row, e);
}

static int db_remove(const struct cli *c, const char *path, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    if (!find_session(c, path, &row, e))
        return cli_fail(e);
    const struct prune_rule rule = {.older_than = ANY_AGE, .keep = -1, .to_bytes = -1,
                                    .only = row.id, .dry = c->dry_run};
    return prune(c, path, &rule, e);
}

static int db_pin(const struct cli *c, const char *path, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    bool ok = find_session(c, path, &row, e);
    ok = ok && history_pin(path, row.id, strcmp(c->word[0], "pin") == 0, e);
    return ok ? 0 : cli_fail(e);
}

/* The monitor knows the path. */
static int db_sql(const struct cli *c, const char *, struct err *e)
{
    enum { MAX_ROWS = 10000 };
    FREED(buf_free) struct buf text = {0};
    struct stop stop;
    bool ok = cli_stop_open(&stop, e) && sql_run(c->word[1], c->opt.json, MAX_ROWS, &text, e);
    int rc = cli_stop_close(0);
    if (ok && c->opt.json)
        cli_json(&text);
    else if (ok)
        cli_print_text(c, &text);
    return rc ? rc : ok ? 0 : cli_fail(e);
}

/* The commands of `aerie db`. word: what must follow; NULL: nothing may. file: it names a file that
 * the command makes. */
static const struct action {
    const char *name, *arg, *word, *help;
    int (*run)(const struct cli *c, const char *path, struct err *e);
    bool file;
} actions[] = {
    {"path", "", NULL, "print where the database is", db_show_path, false},
    {"check", "", NULL, "look for damage, and for changes since it was sealed", db_check, false},
    {"repair", " FILE", "the name of a new FILE", "write what is sound to a new file", db_repair,
     true},
    {"backup", " FILE", "the name of a new FILE", "copy the database, also while it is in use",
     db_backup, true},
    {"sql", " QUERY", "a QUERY, such as \"select * from v_step limit 5\"", "run a read-only query",
     db_sql, false},
    {"prune", "", NULL, "remove old sessions; --older-than, --keep, --to-size", db_prune, false},
    {"remove", " ID", "the ID of a session", "remove this session", db_remove, false},
    {"vacuum", "", NULL, "give the space of removed sessions back", db_vacuum, false},
    {"pin", " ID", "the ID of a session", "never remove this session", db_pin, false},
    {"unpin", " ID", "the ID of a session", "it may be removed again", db_pin, false},
};
enum { N_ACTIONS = LEN(actions) };

bool cli_db_action(int i, struct help_word *w)
{
    if (i >= N_ACTIONS)
        return false;
    snprintf(w->name, sizeof w->name, "%s%s", actions[i].name, actions[i].arg);
    w->help = actions[i].help;
    return true;
}

static const struct action *find_action(const char *name, struct err *e)
{
    const struct action *found = ROW_NAMED(actions, name);
    if (found)
        return found;
    FREED(buf_free) struct buf all = {0};
    for (int i = 0; i < N_ACTIONS; i++)
        buf_or(&all, i, N_ACTIONS, actions[i].name);
    return FAILED(NULL, e, ERR_USAGE, "db cannot \"%.40s\"; expected %s", name, all.p);
}

bool cli_db_makes_file(const char *action)
{
    const struct action *x = find_action(action, NULL);
    return x && x->file;
}

int cli_db(struct cli *c)
{
    struct err e = {0};
    FREED(free_at) char *path = cli_db_path(c);
    const struct action *x = find_action(c->word[0], &e);
    bool ok = x;
    if (ok && !x->word && c->n_word == 2)
        ok = err_set(&e, ERR_USAGE, "db %.40s takes nothing behind it", x->name);
    else if (ok && x->word && c->n_word < 2)
        ok = err_set(&e, ERR_USAGE, "db %s: expected %s", x->name, x->word);
    else if (ok && x->run != db_show_path && file_missing(path))
        ok = err_set(&e, ERR_DB, "%s does not exist: nothing has been saved yet", path);
    return ok ? x->run(c, path, &e) : cli_fail(&e);
}
