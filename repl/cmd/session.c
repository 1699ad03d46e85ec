/* session.c - the commands of the session log: list, search, resume, fork, name, export. */
#include <unistd.h>

#include "history/evidence/hazards.h"
#include "kernels/ascii.h"
#include "kernels/when.h"
#include "repl/cmd/cmd.h"
#include "repl/process/interrupt.h"
#include "repl/app/sessions.h"

/* Appends text cut to `cells` cells; line breaks and runs of blanks become one blank. */
static void add_cut(struct sheet *out, enum style st, const char *text, int cells)
{
    FREED(buf_free) struct buf flat = {0}, clean = {0};
    buf_str(&flat, "");
    for (const char *p = text; *p; p++)
        if (!strchr(" \t\r\n", *p))
            buf_char(&flat, *p);
        else if (flat.n && flat.p[flat.n - 1] != ' ')
            buf_char(&flat, ' ');
    text_sanitise(&clean, flat.p, flat.n, false);
    int used;
    size_t n = text_fit(buf_text(&clean), clean.n, cells, &used);
    if (n < clean.n)
        n = text_fit(clean.p, clean.n, cells - 1, &used);
    sheet_addn(out, st, buf_text(&clean), n);
    if (n < clean.n)
        sheet_add(out, st, out->ascii ? "~" : "…");
}

static bool need_log(const struct app *a, const char *what, struct err *e)
{
    if (a->opt.readonly)
        return err_set(e, ERR_USAGE, "%s writes, which --readonly and a replay forbid", what);
    if (a->private_)
        return err_set(e, ERR_USAGE, "%s needs the log, and this session is private", what);
    if (!a->history)
        return err_set(e, ERR_DB, "%s needs the log, and it is %s%s", what,
                       a->log_error[0] ? "not open: " : "off", a->log_error);
    return true;
}

/* ---- /sessions, /search ---------------------------------------------------------------------- */

struct session_listing {
    struct app *app;
    struct hdb *db;
    const struct printer *to;
};

static void list_session(struct session_listing *l, struct session_list *all, int row)
{
    const struct session_row *r = &all->row[row];
    const char *title = session_list_title(all, l->db, row);
    const struct printer *to = l->to;
    FREED(buf_free) struct buf hazards = {0};
    char when[20];
    bool current = strcmp(r->id, l->app->session) == 0;
    hdb_hazards(l->db, r->id, false,
                to->json         ? "; "
                : to->out->ascii ? " | "
                                 : " · ", &hazards, NULL);
    int room = view_width(l->app) - 30 - (hazards.n ? text_width(hazards.p, hazards.n) + 2 : 0);
    when_text(r->updated_ms, when);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_GOOD, "\f%s{id}\f%s", r->id, current ? "*" : " ");
    print_add(to, ST_KEY, "%5d{number} ", r->number);
    print_add(to, ST_DIM, "%-16s\v%5d \f%s{parent}%d{fork_turn}%d{turns}%ld{created_ms}"
              "%ld{updated_ms}%s{title}%s{model}", when, r->n_turns,
              r->parent[0] ? r->parent : NULL, r->fork_turn, r->n_turns, r->created_ms,
              r->updated_ms, r->title, r->model);
    if (!to->json)
        add_cut(to->out, ST_TEXT, title, max_int(room, 8));
    print_add(to, ST_BAD, hazards.n ? "  %s{hazards}" : "\f%s{hazards}", hazards.p);
    print_add(to, ST_TEXT, "\f%d{current?}", current);
    print_end(to);
}

/* Shows the first n sessions that pass a filter; returns how many pass, or -1 and *e. */
static int list_filtered(struct session_listing *l, struct hdb *d, const char *filter, int n,
                         struct err *e)
{
    FREED(session_list_free) struct session_list all = {0};
    bool ok = session_list_open(&all, d, e) && session_list_filter(&all, d, filter, e);
    int found = ok ? all.n_shown : -1;
    for (int i = 0; i < found && i < n; i++)
        list_session(l, &all, all.shown[i]);
    if (*filter && found > n)
        print_note(l->to, ST_DIM, " %d more fit", found - n);
    return found;
}

bool cmd_sessions(struct cmd_call *c)
{
    long n = 20;
    bool filter = c->argc > 1 || (c->argc == 1 && c->argv[0][strspn(c->argv[0], "0123456789")]);
    if (c->argc == 1 && !filter &&
        !arg_int(c->argv[0], "how many sessions to list", 1, 100000, &n, c->e))
        return false;
    struct hdb *d = app_hdb(c->app, c->e);
    if (!d)
        return false;
    struct session_listing l = {c->app, d, &c->to};
    print_open(&c->to, NULL, '[');
    print_note(&c->to, ST_HEAD, " %5s %-16s %5s %s", "no.", "last used", "turns", "title");
    int found = list_filtered(&l, d, filter ? c->rest : "", (int)n, c->e);
    print_close(&c->to, ']');
    if (found == 0)
        print_note(&c->to, ST_DIM, filter ? " no session fits" : " no session is saved yet");
    return found >= 0;
}

/* Appends a snippet, in which \x01 and \x02 enclose matches. */
static void add_snippet(struct sheet *out, const char *s)
{
    bool hit = false;
    sheet_add(out, ST_TEXT, "    ");
    while (*s) {
        size_t n = strcspn(s, "\x01\x02\n\r\t");
        sheet_addn(out, hit ? ST_BOLD : ST_TEXT, s, n);
        s += n;
        if (*s == '\x01' || *s == '\x02')
            sheet_add(out, ST_BOLD, *s == '\x01' ? "[" : "]");
        else if (*s)
            sheet_add(out, ST_TEXT, " ");
        hit = *s == '\x01' || (hit && *s != '\x02');
        s += *s != '\0';
    }
    sheet_line(out);
}

static bool list_hit(const struct turn_row *r, void *arg)
{
    struct session_listing *l = arg;
    const struct printer *to = l->to;
    const char *snippet = r->snippet ? r->snippet : "";
    char name[SESSION_ID], when[20];
    hdb_name(l->db, r->session, name);
    when_text(r->created_ms, when);
    print_open(to, NULL, '{');
    print_add(to, ST_KEY, "%s \f%s{session}", name, r->session);
    print_add(to, ST_LABEL, "turn %d{turn}, %s%s  ", r->n, r->is_user ? "you" : "reply",
              r->undone ? ", undone" : "");
    print_facts(to, ST_DIM, "%-16s\f%s{role}%d{undone?}%.*s{text}%s{snippet}", when,
                r->is_user ? "user" : "reply", r->undone, (int)r->text_n, r->text ? r->text : "",
                snippet);
    print_close(to, '}');
    if (!to->json)
        add_snippet(to->out, snippet);
    return true;
}

bool cmd_search(struct cmd_call *c)
{
    enum { SHOW = 20 };
    struct hdb *d = app_hdb(c->app, c->e);
    if (!d)
        return false;
    struct session_listing l = {c->app, d, &c->to};
    print_open(&c->to, NULL, '[');
    int found = hdb_search(d, c->rest, SHOW, list_hit, &l, c->e);
    print_close(&c->to, ']');
    if (found == 0)
        return err_set(c->e, ERR_NEGATIVE, "nothing found for \"%.200s\"", c->rest);
    if (found == SHOW)
        print_note(&c->to, ST_DIM, "the best %d are shown; more words narrow the search", SHOW);
    return found > 0;
}

/* ---- /resume, /fork -------------------------------------------------------------------------- */

/* Reports the open session, and after a fork its parent. A new session gets its number when its
 * first row is stored. */
static void report_session(struct app *a, const char *parent, int turn, const struct printer *to)
{
    char name[SESSION_ID];
    struct hdb *d = app_hdb(a, NULL);
    snprintf(name, sizeof name, "%s", parent ? parent : a->session);
    if (d)
        hdb_name(d, parent ? parent : a->session, name);
    char at[40] = "";
    if (a->at.turn)
        snprintf(at, sizeof at, ", shown as after step %d.%d", a->at.turn, a->at.step);
    if (parent)
        print_note(to, ST_DIM, "a new session goes on from turn %d of %s", turn, name);
    else
        print_note(to, ST_DIM, "session %s resumed: %d turn%s in the context%s", name, a->turns.n,
                   plural(a->turns.n), at);
    const char *digits = name + 1;
    int number;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{session}", a->session);
    print_str(to, "parent", parent);
    if (*name == '#' && int_at(&digits, &number))
        print_add(to, ST_TEXT, parent ? "\f%d{parent_number}" : "\f%d{number}", number);
    if (parent)
        print_add(to, ST_TEXT, "\f%d{fork_turn}", turn);
    print_add(to, ST_TEXT, "\f%d{turns}", a->turns.n);
}

/* Shows the past turns of the session that was resumed or copied, and reports it. */
static bool show_opened(struct cmd_call *c, const char *parent)
{
    struct app *a = c->app;
    if (a->face.clear)
        a->face.clear(a);
    if (!app_show_past(a, c->e))
        return false;
    report_session(a, parent, a->turn, &c->to);
    app_tell(a);
    return true;
}

bool cmd_resume(struct cmd_call *c)
{
    return app_resume(c->app, c->argv[0], c->e) && show_opened(c, NULL);
}

/* Continues a copy of a session, which may be open in another process. */
static bool fork_of(struct cmd_call *c, const char *id)
{
    char parent[SESSION_ID];
    return app_fork_of(c->app, id, parent, c->e) && show_opened(c, parent);
}

struct id_list {
    const char *word;
    cmd_add_fn *add;
    void *arg;
};

static void offer_id(struct id_list *l, const struct session_row *r, const char *title)
{
    char number[16];
    size_t n = strlen(l->word);
    snprintf(number, sizeof number, "#%d", r->number);
    if (r->number > 0 && strncmp(number, l->word, n) == 0)
        l->add(l->arg, number, title);
    else if (r->number > 0 && n > 0 && strncmp(number + 1, l->word, n) == 0)
        l->add(l->arg, number + 1, title);
    else if (n > 0 && strncmp(r->id, l->word, n) == 0)
        l->add(l->arg, r->id, title);
}

void complete_session(struct app *a, const char *, const char *word, cmd_add_fn *add,
                      void *arg)
{
    struct err e;
    struct hdb *d = app_hdb(a, &e);
    struct id_list l = {word, add, arg};
    if (strncmp("last", word, strlen(word)) == 0)
        add(arg, "last", "the session used last");
    FREED(session_list_free) struct session_list all = {0};
    if (d && session_list_open(&all, d, &e))
        for (int i = 0; i < min_int(all.n, 50); i++)
            offer_id(&l, &all.row[i], all.row[i].title ? session_list_title(&all, d, i) : NULL);
}

bool cmd_fork(struct cmd_call *c)
{
    struct app *a = c->app;
    int newest = a->turns.n ? a->turns.v[a->turns.n - 1] : 0;
    long turn = newest;
    char tail = c->argc == 1 ? c->argv[0][strspn(c->argv[0], "0123456789")] : '\0';
    if (tail == '#' || ascii_alpha(tail)) /* "#12" or an id; digits alone are a turn */
        return fork_of(c, c->argv[0]);
    if (c->argc == 1 &&
        !arg_int(c->argv[0], "the turn to fork at", 0, max_int(newest, a->turn), &turn, c->e))
        return false;
    char parent[SESSION_ID];
    memcpy(parent, a->session, sizeof parent);
    if (!need_log(a, "/fork", c->e) || !app_fork(a, (int)turn, c->e))
        return false;
    report_session(a, parent, (int)turn, &c->to);
    return true;
}

/* ---- /title, /export, /private --------------------------------------------------------------- */

static bool show_title(struct cmd_call *c)
{
    struct app *a = c->app;
    struct session_row row = {0};
    struct hdb *d = app_own_log(a, c->e);
    if (!d || !hdb_find(d, a->session, &row, c->e))
        return false;
    if (row.title && *row.title)
        print_note(&c->to, ST_TEXT, "title: %s", row.title);
    else
        print_note(&c->to, ST_TEXT, "this session has no title yet; /title TEXT gives it one");
    print_line(&c->to, ST_TEXT, "\f%s{session}%s{title}", a->session, row.title);
    session_row_free(&row);
    return true;
}

bool cmd_title(struct cmd_call *c)
{
    struct app *a = c->app;
    if (!need_log(a, "/title", c->e))
        return false;
    if (c->argc == 0)
        return show_title(c);
    history_flush_unless(a->history, 2000, interrupt_waits);
    if (!history_set_title(a->db_path, a->session, c->argv[0], c->e))
        return false;
    print_line(&c->to, ST_TEXT, "title: %s\f%s{session}%s{title}", c->rest, a->session, c->rest);
    return true;
}

/* The path of a new export. The monitor creates files with the ending of a format only
 * (repl/process/monitor.h). */
static char *export_path(const struct app *a, const char *file, const char *format)
{
    if (!file)
        return xasprintf("aerie-%s.%s", a->session, format);
    return export_format_of(file) ? xstrdup(file) : xasprintf("%s.%s", file, format);
}

bool cmd_export(struct cmd_call *c)
{
    struct app *a = c->app;
    static const char *const format[] = {"md", "jsonl"};
    const char *of_file = c->argc == 1 ? export_format_of(c->argv[0]) : NULL;
    const char *file = c->argc == 2 || of_file ? c->argv[c->argc - 1] : NULL;
    const char *named = of_file ? of_file : c->argc > 0 ? c->argv[0] : format[0];
    int f = arg_choice(named, "the format", format, 2, c->e);
    if (f < 0)
        return false;
    if (a->opt.readonly)
        return err_set(c->e, ERR_USAGE, "/export writes a file, which --readonly and a replay "
                       "forbid; `aerie export` writes one");
    if (file && strcmp(file, "-") == 0)
        return err_set(c->e, ERR_USAGE,
                       "/export takes a file; `aerie export` writes to standard output");
    struct hdb *d = app_own_log(a, c->e);
    FREED(free_at) char *path = export_path(a, file, format[f]);
    const char *there = file && access(file, F_OK) == 0 ? file
                        : access(path, F_OK) == 0       ? path
                                                        : NULL;
    bool ok = d && (!there || err_set(c->e, ERR_USAGE, "%s exists already; expected the name of a "
                                      "new file", there));
    ok = ok && (f == 0 ? export_markdown : hdb_export)(d, a->session, path, c->e);
    if (ok)
        print_line(&c->to, ST_TEXT, "wrote %s\f%s{format}%s{file}", path, format[f], path);
    return ok;
}

bool cmd_private(struct cmd_call *c)
{
    struct app *a = c->app;
    bool was = a->history != NULL;
    a->private_ = true;
    if (was) {
        history_flush_unless(a->history, 2000, interrupt_waits);
        history_level(a->history, LOG_OFF);
    }
    print_line(&c->to, ST_TEXT, "%s\f%d{private?}",
               was ? "nothing more is saved until aerie ends; what was said before stays in the log"
                   : "nothing was being saved anyway", true);
    return true;
}
