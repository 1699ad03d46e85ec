/* cmd.c - the command table, lookup of names, running, completion, the table as text, /help. No
 * command calls this file.
 *
 * Every command stands in `table` and nowhere else; help, completion, the table in repl/README.md
 * and commands.json come from it.
 */
#include <string.h>

#include "kernels/idioms.h"
#include "repl/cmd/cmd.h"
#include "repl/cmd/help_text.h"

#include "kernels/ascii.h"

static const struct cmd table[] = {
    {"help", "?", "[WORDS]", "chat",
     "lists the commands, explains one or a topic, or searches all help and the manual",
     "/help why are drafts rejected", CMD_BUSY_OK | CMD_REST, cmd_help, complete_help},
    {"set", "show", "[NAME VALUE]", "chat", "shows the settings, or changes one",
     "/set temperature 0.7", CMD_BUSY_OK, cmd_set, complete_set},
    {"system", NULL, "[TEXT]", "chat", "shows or sets the system prompt of this session",
     "/system Answer in one sentence.", CMD_BUSY_OK | CMD_REST, cmd_system, NULL},
    {"read", NULL, "FILE", "chat", "puts the text of a file into the next message",
     "/read notes.txt", CMD_BUSY_OK, cmd_read, complete_file},
    {"drop", NULL, "[FILE]", "chat", "takes the files of /read out of the next message again",
     "/drop notes.txt", CMD_BUSY_OK, cmd_drop, complete_drop},
    {"regen", "retry", "", "chat", "throws away the last reply and generates it again", "/regen", 0,
     cmd_regen, NULL},
    {"n", NULL, "COUNT TEXT", "chat",
     "shows several replies to a question, computed in one batch over shared pages",
     "/n 4 Tell me a joke", CMD_REST, cmd_several, NULL},
    {"undo", NULL, "", "chat", "removes the last turn from the context", "/undo", 0, cmd_undo,
     NULL},
    {"forget", NULL, "[N]", "chat",
     "leaves the oldest N turns out of the context, or as many as a refused message needs",
     "/forget 3", 0, cmd_forget, NULL},
    {"clear", NULL, "", "chat", "starts a fresh context and clears the screen", "/clear", 0,
     cmd_clear, NULL},
    {"copy", NULL, "[reply|message|code] [N]", "chat",
     "copies a reply, a message or a code block to the terminal's clipboard", "/copy code",
     CMD_BUSY_OK, cmd_copy, NULL},
    {"edit", NULL, "[TURN]", "chat",
     "puts an earlier message back into the input and forks the session before it",
     "/edit 3", 0, cmd_edit, NULL},
    {"model", NULL, "[NAME]", "chat",
     "lists the models that are here, or goes on with another one in a new session",
     "/model gemma-3-270m-it", 0, cmd_model, complete_model},
    {"draft", NULL, "[NAME|DIR|ngram|none]", "chat",
     "lists the drafters of the model with their acceptance, or switches to one", "/draft ngram", 0,
     cmd_draft, complete_draft},
    {"preset", NULL, "[NAME|save NAME|delete NAME]", "chat",
     "lists saved sets of settings, takes one over, saves or deletes one",
     "/preset save exact", CMD_BUSY_OK, cmd_preset, complete_preset},
    {"bye", "quit exit q", "", "chat", "leaves aerie; the session stays saved", "/bye", CMD_BUSY_OK,
     cmd_bye, NULL},

    {"sessions", NULL, "[N | WORDS]", "session", "lists the saved sessions, newest first, "
                                                 "or those with words", "/sessions fox",
     CMD_BUSY_OK, cmd_sessions, NULL},
    {"search", NULL, "QUERY", "session", "searches the text of all sessions", "/search page table",
     CMD_BUSY_OK | CMD_REST, cmd_search, NULL},
    {"resume", "load", "ID", "session", "continues a saved session: its number, id or last",
     "/resume 12", 0, cmd_resume, complete_session},
    {"fork", NULL, "[TURN|ID]", "session", "copies this session up to a turn, or another session",
     "/fork 3", 0, cmd_fork, complete_session},
    {"title", NULL, "TEXT", "session", "gives the session a title", "/title window tests",
     CMD_BUSY_OK | CMD_REST, cmd_title, NULL},
    {"export", "save", "[md|jsonl] [FILE]", "session",
     "writes the session to a Markdown or JSON Lines file", "/export md chat.md", CMD_BUSY_OK,
     cmd_export, NULL},
    {"private", NULL, "", "session", "stops logging, so nothing more of this session is saved",
     "/private", 0, cmd_private, NULL},

    {"stats", NULL, "", "inspect", "shows speed, acceptance length and pool use", "/stats",
     CMD_BUSY_OK, cmd_stats, NULL},
    {"accept", NULL, "[depth|turn|context|window|page|kind|drafter]", "inspect",
     "shows how many drafted tokens were accepted: by depth, turn, place, kind or drafter",
     "/accept kind", CMD_BUSY_OK, cmd_accept, NULL},
    {"timing", NULL, "", "inspect", "shows how long draft, verify and commit took", "/timing",
     CMD_BUSY_OK, cmd_timing, NULL},
    {"at", NULL, "[T.S|live]", "inspect",
     "shows a step of the past in all panes and commands, or the newest again", "/at 9.214",
     CMD_BUSY_OK, cmd_address, NULL},
    {"layout", NULL, "[NAME]", "inspect", "opens the panes of a layout: chat, pages, debug or wide",
     "/layout debug", CMD_BUSY_OK, cmd_layout, complete_layout},
    {"screenshot", NULL, "[pages|tree|steps|pool|word|why] FILE", "inspect",
     "writes the screen, or a pane, to a new .svg, .png or .screen.txt file",
     "/screenshot tree tree.svg", CMD_BUSY_OK, cmd_screenshot, NULL},
    {"tree", NULL, "[T.S]", "inspect",
     "draws the draft tree of a step, with accepted and rejected nodes", "/tree 9.214", CMD_BUSY_OK,
     cmd_tree, NULL},
    {"pages", NULL, "[full|swa|draft]", "inspect", "draws the page map of a pool", "/pages swa",
     CMD_BUSY_OK, cmd_pages, NULL},
    {"page", NULL, "N [full|swa|draft]", "inspect",
     "tells the life of one page: who took it, shared it and freed it", "/page 118 swa",
     CMD_BUSY_OK, cmd_page, NULL},
    {"map", NULL, "POS", "inspect", "shows which slot and page of each pool hold a token, "
                                    "by its position",
     "/map 3071", CMD_BUSY_OK, cmd_map, NULL},
    {"pool", NULL, "", "inspect",
     "shows the ledger of each pool: total, used, free, evictable and protected", "/pool",
     CMD_BUSY_OK, cmd_pool, NULL},
    {"memory", NULL, "", "inspect",
     "shows what weights, pools and buffers take of the memory, in bytes", "/memory", CMD_BUSY_OK,
     cmd_memory, NULL},
    {"gauges", NULL, "[N]", "inspect",
     "draws pools, acceptance and speed step by step; a server's metrics over time", "/gauges",
     CMD_BUSY_OK, cmd_gauges, NULL},
    {"blocks", NULL, "[N]", "inspect",
     "shows which blocks a server's prefix cache holds, as its KV events say", "/blocks",
     CMD_BUSY_OK, cmd_blocks, NULL},
    {"why", NULL, "[T.S[.NODE]]", "inspect",
     "tells why a drafted token was accepted or rejected",
     "/why 9.214.2", CMD_BUSY_OK, cmd_why, NULL},
    {"tokens", NULL, "[FROM [TO]]", "inspect",
     "lists tokens of the context with their steps, fates, pages and rivals", "/tokens 100 120",
     CMD_BUSY_OK, cmd_tokens, NULL},
    {"top", NULL, "[ROW|T.S[.ROW]]", "inspect",
     "shows the best tokens of target and draft after a row of a step", "/top 9.214", CMD_BUSY_OK,
     cmd_top, NULL},
    {"layers", NULL, "[T.S[.ROW]]", "inspect",
     "runs a step again and shows, layer by layer, what a row of it read and added",
     "/layers 9.214", CMD_BUSY_OK, cmd_layers, NULL},
    {"attn", NULL, "[T.S[.ROW]] LAYER", "inspect",
     "shows which positions and pages a row of a step read most in a layer", "/attn 9.214.3 5",
     CMD_BUSY_OK, cmd_attn, NULL},
    {"plan", NULL, "[MODE]", "inspect",
     "shows the plan of the last forward pass: rows, positions and slots", "/plan verify",
     CMD_BUSY_OK, cmd_plan, NULL},
    {"check", NULL, "", "inspect",
     "checks pools and sequences now, and tells of plans refused or unchecked", "/check",
     CMD_BUSY_OK, cmd_check, NULL},
    {"bug", NULL, "[NUMBER|NAME [on|off]]", "inspect",
     "lists historical faults, or switches one on or off", "/bug 24617 on", 0, cmd_bug,
     complete_bug},
    {"calibrate", NULL, "", "inspect",
     "scores on text which layers the draft head was trained to read", "/calibrate", 0,
     cmd_calibrate, NULL},
    {"triage", NULL, "", "inspect", "says why drafts are accepted or rejected, with the evidence",
     "/triage", 0, cmd_triage, NULL},
    {"sql", NULL, "QUERY", "inspect", "runs a read-only SQL query on the log; /help views",
     "/sql select count(*) from step", CMD_BUSY_OK | CMD_REST, cmd_sql, NULL},

    {"break", NULL, "[EXPR [if EXPR]]", "debug",
     "pauses turns after each step at which a condition holds",
     "/break accept==0 && drafted>0", CMD_BUSY_OK | CMD_REST, cmd_break, complete_condition},
    {"watch", NULL, "EXPR", "debug", "pauses turns after each step that changes a value",
     "/watch pool.swa.free", CMD_BUSY_OK | CMD_REST, cmd_watch, complete_condition},
    {"breaks", NULL, "", "debug", "lists breakpoints and watches", "/breaks", CMD_BUSY_OK,
     cmd_breaks, NULL},
    {"delete", NULL, "[N]", "debug", "removes a breakpoint or watch, or all of them", "/delete 1",
     CMD_BUSY_OK, cmd_delete, NULL},
    {"display", NULL, "[EXPR]", "debug", "shows a value at each pause, or lists what is shown",
     "/display node.q", CMD_BUSY_OK | CMD_REST, cmd_display, complete_condition},
    {"undisplay", NULL, "[N]", "debug", "shows a value no more, or none at all", "/undisplay 1",
     CMD_BUSY_OK, cmd_undisplay, NULL},
    {"step", NULL, "[N]", "debug", "runs N steps of the turn and pauses it again", "/step",
     CMD_BUSY_OK | CMD_REPEATS, cmd_step, NULL},
    {"phase", NULL, "", "debug",
     "runs one phase of a step: draft, verify, accept, commit or follow", "/phase",
     CMD_BUSY_OK | CMD_REPEATS, cmd_phase, NULL},
    {"next", NULL, "", "debug", "runs to the end of the turn; the next one pauses where it begins",
     "/next", CMD_BUSY_OK | CMD_REPEATS, cmd_next, NULL},
    {"finish", NULL, "", "debug", "runs to the end of the turn, past breakpoints", "/finish",
     CMD_BUSY_OK | CMD_REPEATS, cmd_finish, NULL},
    {"continue", NULL, "", "debug", "runs on until a breakpoint holds", "/continue",
     CMD_BUSY_OK | CMD_REPEATS, cmd_continue, NULL},
    {"until", NULL, "EXPR", "debug", "runs on until a condition holds, once",
     "/until node.depth>=3 && !node.accepted", CMD_BUSY_OK | CMD_REST, cmd_until,
     complete_condition},
    {"rstep", NULL, "[N]", "debug", "takes the paused turn N steps back; the bits stay the same",
     "/rstep", CMD_BUSY_OK | CMD_REPEATS, cmd_rstep, NULL},
    {"goto", NULL, "TURN.STEP", "debug",
     "takes the paused turn to where it stood after a step; .0: where it begins", "/goto 9.214",
     CMD_BUSY_OK, cmd_goto, NULL},
    {"force", NULL, "\"TEXT\"|#ID|off", "debug", "commits the next token by hand",
     "/force \" the\"", CMD_BUSY_OK | CMD_REST, cmd_force, NULL},
    {"what-if", NULL, "NAME=VALUE...", "debug",
     "computes the next step as it is and with a change, and drops both", "/what-if draft.topk=8",
     CMD_BUSY_OK | CMD_REST, cmd_what_if, NULL},
    {"where", NULL, "", "debug", "tells where the turn is paused, and why", "/where", CMD_BUSY_OK,
     cmd_where, NULL},

    {"diff", NULL, "ID", "compare", "finds the first difference to another session's log",
     "/diff last", CMD_BUSY_OK, cmd_diff, complete_session},
    {"diverge", NULL, "[ID | NAME=VALUE...]", "compare",
     "runs a comparison again and judges the difference",
     "/diverge page_size=1", 0, cmd_diverge, complete_session},
};
enum { N_CMD = sizeof table / sizeof *table, MAX_WORDS = 32 };

int cmd_count(void)
{
    return N_CMD;
}

const struct cmd *cmd_at(int i)
{
    CHECK(i >= 0 && i < N_CMD);
    return &table[i];
}

static const char *cmd_name(int i)
{
    return table[i].name;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static bool unknown_command(const char *name, struct err *e)
{
    FREED(buf_free) struct buf near = {0};
    if (!*name)
        return err_set(e, ERR_USAGE, "/ begins a command, such as /tree; /help lists all");
    nearest_names(name, cmd_name, N_CMD, "/", &near);
    if (near.n)
        err_set(e, ERR_USAGE, "there is no command /%.40s; did you mean %s? (/help lists all)",
                name, near.p);
    else
        err_set(e, ERR_USAGE, "there is no command /%.40s; /help lists all, // sends a slash",
                name);
    return false;
}

/* Whether a name is one of a command's other names. */
static bool is_alias(const struct cmd *c, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = c->alias; p && *p && n; p += strspn(p, " ")) {
        if (strncmp(p, name, n) == 0 && (!p[n] || p[n] == ' '))
            return true;
        p += strcspn(p, " ");
    }
    return false;
}

const struct cmd *cmd_find(const char *name, struct err *e)
{
    const char *fits[N_CMD];
    int n = 0;
    const struct cmd *only = NULL;
    for (int i = 0; i < N_CMD; i++) {
        if (strcmp(table[i].name, name) == 0 || is_alias(&table[i], name))
            return &table[i];
        if (*name && strncmp(table[i].name, name, strlen(name)) == 0) {
            fits[n++] = table[i].name;
            only = &table[i];
        }
    }
    if (n == 1)
        return only;
    if (n == 0) {
        unknown_command(name, e);
        return NULL;
    }
    FREED(buf_free) struct buf list = {0};
    join_or(&list, fits, n, "/");
    err_set(e, ERR_USAGE, "/%.40s could be %s", name, list.p);
    return NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Writes {"command":..., "result":...}, with "error" and "code" when it failed. */
static void answer_json(struct app *a, const char *name, const struct buf *result, bool ok,
                        const struct err *e)
{
    FREED(buf_free) struct buf line = {0};
    jput_open(&line, '{');
    jput_kstr(&line, "command", name);
    if (!ok)
        jput_fields(&line, "%s{error}%d{code}", e->msg, e->kind);
    if (result->n) {
        jput_key(&line, "result");
        jput_raw(&line, result->p);
    }
    jput_close(&line, '}');
    a->face.json(a, line.p);
}

static bool run_found(struct app *a, const struct cmd *c, const char *rest, struct sheet *out,
                      struct buf *json, struct err *e)
{
    if (!(c->flags & CMD_BUSY_OK) && a->backend && backend_busy(a->backend))
        return err_set(e, ERR_USAGE, "/%s waits for the reply to end; Ctrl-C stops it", c->name);
    char *word[MAX_WORDS];
    int n = 0;
    if (!(c->flags & CMD_REST))
        n = words_split(rest, word, MAX_WORDS, e);
    else if (*rest)
        word[n++] = xstrdup(rest);
    if (n < 0)
        return false;
    struct cmd_call call = {a, c, n, word, rest, {out, json}, e};
    bool ok = !*c->args && n > 0
                  ? err_set(e, ERR_USAGE, "/%s takes nothing after its name", c->name)
                  : c->run(&call);
    words_free(word, n);
    return ok;
}

bool cmd_run(struct app *a, const char *line, struct err *e)
{
    struct err none = {0};
    e = e ? e : &none;
    char name[64];
    size_t n = strcspn(line, " \t\r\n");
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), line);
    FREED(free_at) char *rest = xstrdup(line + n + strspn(line + n, " \t\r\n"));
    for (size_t end = strlen(rest); end > 0 && ascii_space(rest[end - 1]); end--)
        rest[end - 1] = '\0';

    FREED(buf_free) struct buf json = {0};
    FREED(sheet_free) struct sheet out = {.ascii = a->ascii};
    bool as_json = a->opt.json && a->face.json;
    const struct cmd *c = cmd_find(name, e);
    bool ok = c && run_found(a, c, rest, &out, as_json ? &json : NULL, e);
    if (as_json)
        answer_json(a, c ? c->name : name, &json, ok, e);
    else if (out.n_row && a->face.show)
        a->face.show(a, &out);
    return ok;
}

bool app_input(struct app *a, const char *line, struct err *e)
{
    if (line[0] != '/')
        return app_send(a, line, e);
    if (line[1] == '/')
        return app_send(a, line + 1, e);
    bool ok = cmd_run(a, line + 1, e);
    app_attached(a); /* the command may have changed the session */
    return ok;
}

/* ---- completion ------------------------------------------------------------------------------ */

/* The argument of a command at the place behind `before`: of "N [full|swa|draft]" the second one is
 * "[full|swa|draft]". "": it takes no more. */
static const char *argument_at(const char *args, const char *before)
{
    for (const char *p = before; *p && *args; p += strspn(p, " ")) {
        p += strcspn(p, " ");
        args += strcspn(args, " ");
        args += strspn(args, " |");
    }
    return args;
}

/* Offers the words among the alternatives of an argument. */
static void complete_choices(const char *args, const char *word, cmd_add_fn *add, void *arg)
{
    char list[128];
    args += strspn(args, "[");
    snprintf(list, sizeof list, "%.*s", (int)strcspn(args, " ]"), args);
    complete_words(list, word, add, arg);
}

void cmd_complete(struct app *a, const char *line, cmd_add_fn *add, void *arg)
{
    if (line[0] != '/' || line[1] == '/')
        return;
    size_t n = strcspn(line, " ");
    char name[64];
    if (!line[n]) {
        for (int i = 0; i < N_CMD; i++) {
            snprintf(name, sizeof name, "/%s", table[i].name);
            if (strncmp(name, line, n) == 0)
                add(arg, name, table[i].help);
        }
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n - 1 : sizeof name - 1), line + 1);
    const struct cmd *c = cmd_find(name, NULL);
    const char *word = strrchr(line, ' ') + 1;
    n += strspn(line + n, " ");
    char *before = xasprintf("%.*s", word > line + n ? (int)(word - line - (ptrdiff_t)n) : 0,
                             line + n);
    const char *args = c ? argument_at(c->args, before) : "";
    if (c && c->complete && (*args || (c->flags & CMD_REST)))
        c->complete(a, before, word, add, arg);
    else if (c && !c->complete)
        complete_choices(args, word, add, arg);
    free(before);
}

/* ---- the table as text ----------------------------------------------------------------------- */

void cmd_table_markdown(struct buf *out)
{
    buf_str(out, "| command | what it does | example |\n|---|---|---|\n");
    for (int i = 0; i < N_CMD; i++) {
        const struct cmd *c = &table[i];
        buf_printf(out, "| `/%s%s", c->name, *c->args ? " " : "");
        for (const char *p = c->args; *p; p++)
            buf_printf(out, "%s%c", *p == '|' ? "\\" : "", *p);
        buf_printf(out, "` | %s | `%s` |\n", c->help, c->example);
    }
}

/* ---- /help --------------------------------------------------------------------------------- */

static const struct group_name {
    const char *name, *title;
} groups[] = {
    {"chat", "Chat"},
    {"session", "Sessions"},
    {"inspect", "Look inside"},
    {"debug", "Pause and step"},
    {"compare", "Compare runs"},
};

static const char *group_title(const char *name)
{
    const struct group_name *g = ROW_NAMED(groups, name);
    CHECK(g);
    return g->title;
}

void cmd_table(const char *key, const struct printer *to)
{
    print_open(to, key, '[');
    for (int i = 0; i < N_CMD; i++) {
        const struct cmd *c = &table[i];
        char name[64];
        snprintf(name, sizeof name, "/%s", c->name);
        if (i == 0 || strcmp(c->group, table[i - 1].group) != 0)
            print_note(to, ST_HEAD, "%s", group_title(c->group));
        print_open(to, NULL, '{');
        print_add(to, ST_KEY, "  %s{name}", name);
        if (c->alias)
            print_add(to, ST_TEXT, "\f%s{alias}", c->alias);
        print_add(to, ST_LABEL, " %s{args}", c->args);
        if (strlen(c->name) + strlen(c->args) > 22)
            print_end(to);
        print_tab(to, 27);
        print_facts(to, ST_TEXT, "\f%s{group}\f%s{help}\f%s{example}", c->group, c->help,
                    c->example);
        print_close(to, '}');
    }
    print_close(to, ']');
}

static void list_help(const struct printer *to)
{
    FREED(sheet_free) struct sheet topics = {.ascii = to->out->ascii};
    print_open(to, NULL, '{');
    cmd_table("commands", to);
    print_note(to, ST_DIM, "/help NAME explains a command, a setting or a topic, /help WORDS "
               "searches; topics:");
    print_open(to, "topics", '[');
    for (int i = 0; i < help_n_topic; i++) {
        sheet_printf(&topics, ST_DIM, "%s%s", i ? " " : "", help_topics[i].name);
        print_str(to, NULL, help_topics[i].name);
    }
    print_close(to, ']');
    print_close(to, '}');
    sheet_append_wrapped(to->out, &topics, 79);
}

/* All names that /help knows, one after the other: commands, topics, settings. */
static const char *any_name(int i)
{
    i -= N_CMD;
    return i < 0              ? table[N_CMD + i].name
           : i < help_n_topic ? help_topics[i].name
                              : settings_at(i - help_n_topic)->name;
}

static const char *any_help(int i)
{
    i -= N_CMD;
    return i < 0              ? table[N_CMD + i].help
           : i < help_n_topic ? help_topics[i].title
                              : settings_at(i - help_n_topic)->help;
}

static int n_names(void)
{
    return N_CMD + help_n_topic + settings_count();
}

bool cmd_help_on(struct app *a, const char *words, const struct printer *to, struct err *e)
{
    const char *name = words + (words[0] == '/');
    struct help_on on = {.app = a, .words = words, .name = name, .table = table, .n_table = N_CMD};
    on.named = *name ? cmd_find(name, NULL) : NULL;
    on.is_alias = on.named && is_alias(on.named, name);
    if (help_answer(&on, to))
        return true;
    FREED(buf_free) struct buf near = {0};
    nearest_names(name, any_name, n_names(), "", &near);
    err_set(e, ERR_NEGATIVE, "there is no help on \"%.40s\"%s%s; %s lists what there is", name,
            near.n ? "; did you mean " : "", near.n ? near.p : "", a ? "/help" : "aerie help");
    return false;
}

bool cmd_help(struct cmd_call *call)
{
    if (call->argc > 0)
        return cmd_help_on(call->app, call->argv[0], &call->to, call->e);
    list_help(&call->to);
    return true;
}

void complete_help(struct app *a, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    (void)a;
    for (int i = 0; i < n_names() && !*before; i++)
        if (strncmp(any_name(i), word, strlen(word)) == 0)
            add(arg, any_name(i), any_help(i));
}
