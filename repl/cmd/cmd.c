/* cmd.c - the command table, lookup of names, running, completion, the table as text, /help. No
 * command calls this file.
 *
 * Every command stands in `table` and nowhere else; help, completion, the table in repl/README.md
 * and commands.json come from it. */

#include "repl/cmd/cmd.h"
#include "repl/cmd/help_text.h"

#include "kernels/ascii.h"

static const struct cmd table[] = {
    {"help", "[WORDS]", "chat", cmd_help, "/help why are drafts rejected",
     .help = "lists the commands, explains one or a topic, or searches all help and the manual",
     .flags = CMD_REST, .complete = complete_help, .alias = "?"},
    {"set", "[NAME VALUE]", "chat", cmd_set, "/set temperature 0.7",
     .help = "shows the settings, or changes one", .complete = complete_set, .alias = "show"},
    {"system", "[TEXT]", "chat", cmd_system, "/system Answer in one sentence.", .flags = CMD_REST,
     .help = "shows or sets the system prompt of this session"},
    {"read", "FILE", "chat", cmd_read, "/read notes.txt", .complete = complete_file,
     .help = "puts the text of a file into the next message", .takes = {1, 1, "takes one file"}},
    {"drop", "[FILE]", "chat", cmd_drop, "/drop notes.txt", .complete = complete_drop,
     .help = "takes the files of /read out of the next message again",
     .takes = {0, 1, "takes at most one file of the next message"}},
    {"regen", "", "chat", cmd_regen, "/regen", .flags = CMD_WAITS, .alias = "retry",
     .help = "throws away the last reply and generates it again"},
    {"n", "COUNT TEXT", "chat", cmd_several, "/n 4 Tell me a joke", .flags = CMD_WAITS | CMD_REST,
     .help = "shows several replies to a question, computed in one batch over shared pages"},
    {"undo", "", "chat", cmd_undo, "/undo", .flags = CMD_WAITS,
     .help = "removes the last turn from the context"},
    {"forget", "[N]", "chat", cmd_forget, "/forget 3", .flags = CMD_WAITS,
     .help = "leaves the oldest N turns out of the context, or as many as a refused message needs"},
    {"clear", "", "chat", cmd_clear, "/clear", .flags = CMD_WAITS,
     .help = "starts a fresh context and clears the screen"},
    {"copy", "[reply|message|code] [N]", "chat", cmd_copy, "/copy code",
     .help = "copies a reply, a message or a code block to the terminal's clipboard",
     .takes = {0, 2, "takes reply, message or code, and a number"}},
    {"edit", "[TURN]", "chat", cmd_edit, "/edit 3", .flags = CMD_WAITS,
     .help = "puts an earlier message back into the input and forks the session before it",
     .takes = {0, 1, "takes at most one turn"}},
    {"model", "[NAME]", "chat", cmd_model, "/model gemma-3-270m-it",
     .help = "lists the models that are here, or goes on with another one in a new session",
     .flags = CMD_WAITS, .complete = complete_model, .takes = {0, 1, "takes at most one model"}},
    {"draft", "[NAME|DIR|ngram|none]", "chat", cmd_draft, "/draft ngram",
     .help = "lists the drafters of the model with their acceptance, or switches to one",
     .flags = CMD_WAITS, .complete = complete_draft, .takes = {0, 1, "takes at most one drafter"}},
    {"preset", "[NAME|save NAME|delete NAME]", "chat", cmd_preset, "/preset save exact",
     .help = "lists saved sets of settings, takes one over, saves or deletes one",
     .complete = complete_preset},
    {"bye", "", "chat", cmd_bye, "/bye", .alias = "quit exit q",
     .help = "leaves aerie; the session stays saved"},

    {"sessions", "[N | WORDS]", "session", cmd_sessions, "/sessions fox",
     .help = "lists the saved sessions, newest first, or those with words"},
    {"search", "QUERY", "session", cmd_search, "/search page table", .flags = CMD_REST,
     .help = "searches the text of all sessions", .takes = {1, 1, "takes words to look for"}},
    {"resume", "ID", "session", cmd_resume, "/resume 12",
     .help = "continues a saved session: its number, id or last", .flags = CMD_WAITS,
     .complete = complete_session, .alias = "load",
     .takes = {1, 1, "takes a session's number, the beginning of its id, or \"last\""}},
    {"fork", "[TURN|ID]", "session", cmd_fork, "/fork 3",
     .help = "copies this session up to a turn, or another session", .flags = CMD_WAITS,
     .complete = complete_session, .takes = {0, 1, "takes at most one turn or session"}},
    {"title", "[TEXT]", "session", cmd_title, "/title window tests", .flags = CMD_REST,
     .help = "shows the session's title, or gives it one"},
    {"export", "[md|jsonl] [FILE]", "session", cmd_export, "/export md chat.md", .alias = "save",
     .help = "writes the session to a new Markdown (.md) or JSON Lines (.jsonl) file",
     .takes = {0, 2, "takes a format (md or jsonl) and a new file"}},
    {"private", "", "session", cmd_private, "/private", .flags = CMD_WAITS,
     .help = "stops logging, so nothing more of this session is saved"},

    {"stats", "", "inspect", cmd_stats, "/stats",
     .help = "shows speed, acceptance length and pool use"},
    {"accept", "[depth|turn|context|window|page|kind|drafter]", "inspect", cmd_accept,
     "/accept kind", .takes = {0, 1, "takes at most one grouping"},
     .help = "shows how many drafted tokens were accepted: by depth, turn, place, kind or drafter"},
    {"timing", "", "inspect", cmd_timing, "/timing",
     .help = "shows how long draft, verify and commit took"},
    {"at", "[T.S|live]", "inspect", cmd_address, "/at 9.214", .flags = CMD_SEEKS,
     .help = "shows a step of the past in all panes and commands, or the newest again",
     .takes = {0, 1, "takes one step such as 9.214, or live"}},
    {"layout", "[NAME]", "inspect", cmd_layout, "/layout debug", .complete = complete_layout,
     .help = "opens the panes of a layout: chat, pages, debug or wide",
     .takes = {0, 1, "takes one name"}},
    {"screenshot", "[pages|tree|steps|pool|word|why] FILE", "inspect", cmd_screenshot,
     "/screenshot tree tree.svg",
     .help = "writes the screen, or a pane, to a new .svg, .png or .screen.txt file",
     .takes = {1, 2, "takes a new file, and before it the name of a pane if it is one"}},
    {"tree", "[T.S]", "inspect", cmd_tree, "/tree 9.214", .takes = {0, 1, "takes at most one step"},
     .help = "draws the draft tree of a step, with accepted and rejected nodes"},
    {"pages", "[full|swa|draft]", "inspect", cmd_pages, "/pages swa",
     .help = "draws the page map of a pool",
     .takes = {0, 1, "takes at most one pool: full, swa or draft"}},
    {"page", "N [full|swa|draft]", "inspect", cmd_page, "/page 118 swa",
     .help = "tells the life of one page: who took it, shared it and freed it",
     .takes = {1, 2, "takes a page number and a pool (full if none is named)"}},
    {"map", "POS", "inspect", cmd_map, "/map 3071", .takes = {1, 1, "takes a position"},
     .help = "shows which slot and page of each pool hold a token, by its position"},
    {"pool", "", "inspect", cmd_pool, "/pool",
     .help = "shows the ledger of each pool: total, used, free, evictable and protected"},
    {"memory", "", "inspect", cmd_memory, "/memory",
     .help = "shows what weights, pools and buffers take of the memory, in bytes"},
    {"gauges", "[N]", "inspect", cmd_gauges, "/gauges",
     .help = "draws pools, acceptance and speed step by step; a server's metrics over time"},
    {"blocks", "[N]", "inspect", cmd_blocks, "/blocks",
     .help = "shows which blocks a server's prefix cache holds, as its KV events say"},
    {"why", "[T.S[.NODE]]", "inspect", cmd_why, "/why 9.214.2",
     .help = "tells why a drafted token was accepted or rejected",
     .takes = {0, 1, "takes at most one step, or a step and a node"}},
    {"steps", "[N]", "inspect", cmd_steps, "/steps 40",
     .help = "lists the latest steps: kind, drafts, time and tokens"},
    {"tokens", "[FROM [TO]]", "inspect", cmd_tokens, "/tokens 100 120",
     .help = "lists tokens of the context with their steps, fates, pages and rivals",
     .takes = {0, 2, "takes a first and a last position"}},
    {"top", "[ROW|T.S[.ROW]]", "inspect", cmd_top, "/top 9.214",
     .help = "shows the best tokens of target and draft after a row of a step",
     .takes = {0, 1, "takes at most a row, or a step and a row"}},
    {"layers", "[T.S[.ROW]]", "inspect", cmd_layers, "/layers 9.214",
     .help = "runs a step again and shows, layer by layer, what a row of it read and added",
     .takes = {0, 1, "takes at most one step, or a step and a row"}},
    {"attn", "[T.S[.ROW]] LAYER", "inspect", cmd_attn, "/attn 9.214.3 5",
     .help = "shows which positions and pages a row of a step read most in a layer",
     .takes = {1, 2, "takes a step (and a row) and a layer"}},
    {"plan", "[MODE]", "inspect", cmd_plan, "/plan verify",
     .help = "shows the plan of the last forward pass: rows, positions and slots",
     .takes = {0, 1, "takes at most one mode"}},
    {"check", "", "inspect", cmd_check, "/check",
     .help = "checks pools and sequences now, and tells of plans refused or unchecked"},
    {"bug", "[NUMBER|NAME [on|off]]", "inspect", cmd_bug, "/bug 24617 on",
     .help = "lists historical faults, or switches one on or off", .flags = CMD_WAITS,
     .complete = complete_bug, .takes = {0, 2, "takes a number or name, and on or off"}},
    {"calibrate", "", "inspect", cmd_calibrate, "/calibrate", .flags = CMD_WAITS,
     .help = "scores on text which layers the draft head was trained to read"},
    {"triage", "", "inspect", cmd_triage, "/triage", .flags = CMD_WAITS,
     .help = "says why drafts are accepted or rejected, with the evidence"},
    {"sql", "QUERY", "inspect", cmd_sql, "/sql select count(*) from step", .flags = CMD_REST,
     .help = "runs a read-only SQL query on the log; /help views",
     .takes = {1, 1, "takes a SELECT statement"}},

    {"break", "[EXPR [if EXPR]]", "debug", cmd_break, "/break accept==0 && drafted>0",
     .help = "pauses turns after each step at which a condition holds", .flags = CMD_REST,
     .complete = complete_condition},
    {"watch", "EXPR", "debug", cmd_watch, "/watch pool.swa.free",
     .help = "pauses turns after each step that changes a value", .flags = CMD_REST,
     .complete = complete_condition, .takes = {1, 1, "takes an expression"}},
    {"breaks", "", "debug", cmd_breaks, "/breaks", .help = "lists breakpoints and watches"},
    {"delete", "[N]", "debug", cmd_delete, "/delete 1",
     .help = "removes a breakpoint or watch, or all of them"},
    {"display", "[EXPR]", "debug", cmd_display, "/display node.q",
     .help = "shows a value at each pause, or lists what is shown", .flags = CMD_REST,
     .complete = complete_condition},
    {"undisplay", "[N]", "debug", cmd_undisplay, "/undisplay 1",
     .help = "shows a value no more, or none at all"},
    {"step", "[N]", "debug", cmd_step, "/step", .flags = CMD_REPEATS,
     .help = "runs N steps of the turn and pauses it again"},
    {"phase", "", "debug", cmd_phase, "/phase", .flags = CMD_REPEATS,
     .help = "runs one phase of a step: draft, verify, accept, commit or follow"},
    {"next", "", "debug", cmd_next, "/next", .flags = CMD_REPEATS,
     .help = "runs to the end of the turn; the next one pauses where it begins"},
    {"finish", "", "debug", cmd_finish, "/finish", .flags = CMD_REPEATS,
     .help = "runs to the end of the turn, past breakpoints"},
    {"continue", "", "debug", cmd_continue, "/continue", .flags = CMD_REPEATS,
     .help = "runs on until a breakpoint holds"},
    {"until", "EXPR", "debug", cmd_until, "/until node.depth>=3 && !node.accepted",
     .help = "runs on until a condition holds, once", .flags = CMD_REST,
     .complete = complete_condition, .takes = {1, 1, "takes a condition"}},
    {"rstep", "[N]", "debug", cmd_rstep, "/rstep", .flags = CMD_REPEATS,
     .help = "takes the paused turn N steps back; the bits stay the same"},
    {"goto", "TURN.STEP", "debug", cmd_goto, "/goto 9.214",
     .help = "takes the paused turn to where it stood after a step; .0: where it begins",
     .takes = {1, 1, "takes a step such as 9.214"}},
    {"force", "\"TEXT\"|#ID|off", "debug", cmd_force, "/force \" the\"", .flags = CMD_REST,
     .help = "commits the next token by hand"},
    {"what-if", "NAME=VALUE...", "debug", cmd_what_if, "/what-if draft.topk=8", .flags = CMD_REST,
     .help = "computes the next step as it is and with a change, and drops both",
     .takes = {1, 1, "takes one change of a setting or more"}},
    {"where", "", "debug", cmd_where, "/where", .help = "tells where the turn is paused, and why"},

    {"diff", "ID", "compare", cmd_diff, "/diff last", .complete = complete_session,
     .help = "finds the first difference to another session's log",
     .takes = {1, 1, "takes a session"}},
    {"diverge", "[ID | NAME=VALUE...]", "compare", cmd_diverge, "/diverge page_size=1",
     .help = "runs a comparison again and judges the difference", .flags = CMD_WAITS,
     .complete = complete_session},
};
enum { N_CMD = LEN(table), MAX_WORDS = 32 };

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
    if (settings_index(name) >= 0 || is_screen_setting(name))
        return err_set(e, ERR_USAGE, "%s is a setting: /set %s VALUE changes it", name, name);
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
    return FAILED(NULL, e, ERR_USAGE, "/%.40s could be %s", name, list.p);
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
    if ((c->flags & CMD_WAITS) && a->backend && backend_busy(a->backend))
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
              : c->takes.text && (n < c->takes.least || n > c->takes.most)
                  ? arg_expected(&call, c->takes.text)
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
    FOR_EACH(const struct cmd, c, table, N_CMD) {
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
    PRINT_IN(to, key, '[');
    for (int i = 0; i < N_CMD; i++) {
        const struct cmd *c = &table[i];
        char name[64];
        snprintf(name, sizeof name, "/%s", c->name);
        if (i == 0 || strcmp(c->group, table[i - 1].group) != 0)
            print_note(to, ST_HEAD, "%s", group_title(c->group));
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_KEY, "  %s{name}", name);
        if (c->alias)
            print_add(to, ST_TEXT, "\f%s{alias}", c->alias);
        print_add(to, ST_LABEL, " %s{args}", c->args);
        if (strlen(c->name) + strlen(c->args) > 22)
            print_end(to);
        print_tab(to, 27);
        print_facts(to, ST_TEXT, "\f%s{group}\f%s{help}\f%s{example}", c->group, c->help,
                    c->example);
    }
}

/* width: cells of the screen, which wraps lines; 0: the list of topics is wrapped here. */
static void list_help(int width, const struct printer *to)
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
    sheet_append_wrapped(to->out, &topics, width ? 0 : HELP_CELLS);
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
    return FAILED(false, e, ERR_NEGATIVE, "there is no help on \"%.40s\"%s%s; %s lists what there "
                  "is", name, near.n ? "; did you mean " : "", buf_text(&near),
                  a ? "/help" : "aerie help");
}

bool cmd_help(struct cmd_call *call)
{
    if (call->argc > 0)
        return cmd_help_on(call->app, call->argv[0], &call->to, call->e);
    list_help(call->app->face.width, &call->to);
    return true;
}

void complete_help(struct app *, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    for (int i = 0; i < n_names() && !*before; i++)
        if (strncmp(any_name(i), word, strlen(word)) == 0)
            add(arg, any_name(i), any_help(i));
}
