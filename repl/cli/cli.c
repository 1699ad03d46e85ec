/* cli.c - the subcommands; reads flags and the config file, writes --help. See cli.h.
 *
 * Flags may precede or follow the command; a short flag with another meaning in a command (logs -q,
 * -n, -m) has that meaning only after the command's name. The config file is read first, so flags
 * win. */
#include "repl/cli/flags.h"

#include "engine/bugs.h"
#include "kernels/text.h"
#include "models/checkpoint/hub.h"
#include "repl/cmd/cmd.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static const struct command commands[] = {
    {"chat", "", "talk with the model (also without a command)", IN_CHAT, .run = cli_chat, 0, 0},
    {"run", "[PROMPT...]", "answer one prompt (- or none: standard input)", IN_RUN, .run = cli_run,
     0, 1 << 20},
    {"serve", "[--port N] [--api-key-file FILE]",
     "serve the model to OpenAI clients on this machine", IN_SERVE, .run = cli_serve, 0, 0},
    {"logs", "[-q WORDS] [-n N] [-m MODEL]", "list saved sessions, newest first", IN_LOGS,
     .run = cli_logs, 0, 0},
    {"stats", "[-n N]", "acceptance of drafts across the saved sessions", IN_STATS,
     .run = cli_stats, 0, 0},
    {"show", "ID[:TURN[.STEP]]", "print a session, a turn or one step", IN_SHOW, .run = cli_show, 1,
     1},
    {"replay", "ID [--check] [--with X=Y...]", "play a saved session, or run it again", IN_REPLAY,
     .run = cli_replay, 1, 64},
    {"parity", "FILE [--a NAME=VALUE] [--b NAME=VALUE]",
     "compute prompts twice, drafting or not; compare ids", IN_PARITY, .run = cli_parity, 1, 1},
    {"kl", "URL|local [FILE]", "log probabilities at decode against a prompt's", IN_KL,
     .run = cli_kl, 1, 2},
    {"probe", "URL [--minutes N] [-o FILE]", "find replies of a server that depend on others",
     IN_PROBE, .run = cli_probe, 1, 1},
    {"triage", "ID|URL", "say why drafts are accepted or rejected", IN_TRIAGE,
     .run = cli_triage, 1, 1},
    {"diff", "A B | A --with X=Y...", "find the first difference of two runs, and judge it",
     IN_DIFF, .run = cli_diff, 1, 64},
    {"export", "ID [--format F] [-o FILE]", "write a session as JSON lines or Markdown", IN_EXPORT,
     .run = cli_export, 1, 1},
    {"import", "FILE...", "take requests and replies of servers into the log", IN_IMPORT,
     .run = cli_import, 1, 64},
    {"pack", "ID [--steps A..B] [-o FILE]", "write a session to one file that others can open",
     IN_PACK, .run = cli_pack, 1, 1},
    {"db", "ACTION [FILE|QUERY|ID]", "care for the session database", IN_DB, .run = cli_db, 1, 2,
     .title = "ACTION is one of", .word = cli_db_action},
    {"tokenize", "[-m DIR] [FILE]", "print the token ids of a text", IN_TOKENIZE,
     .run = cli_tokenize, 0, 1},
    {"pull", "ORG/NAME[@REVISION][:QUANT]", "fetch a model from the Hugging Face hub", IN_PULL,
     .run = cli_pull, 1, 1},
    {"fit", "[MODEL] [--context N]", "say what a model takes of the memory, and what fits", IN_FIT,
     .run = cli_fit, 0, 1},
    {"golden", "DIR [--draft DIR]", "compare the engine with reference tensors", IN_GOLDEN,
     .run = cli_golden, 1, 1},
    {"dump", "PATH [-m MODEL]", "hold another engine's dump against aerie's pass", IN_DUMP,
     .run = cli_dump, 1, 1},
    {"bench", "[NAME...] [--synthetic MODEL]", "measure speed against memory bandwidth", IN_BENCH,
     .run = cli_bench, 0, 64, .word = cli_bench_name,
     .title = "NAME begins the name of a line, or is a pattern for it; lines begin with"},
    {"check", "FILE... [-o FILE]", "judge an attention step of any engine", IN_CHECK,
     .run = cli_check, 1, 64},
    {"bugs", "[--try NUMBER]", "list historical engine faults, or try one out", IN_BUGS,
     .run = cli_bugs, 0, 0},
    {"doctor", "", "say what was found on this machine", IN_DOCTOR, .run = cli_doctor, 0, 0},
    {"help", "[COMMAND|WORDS...]", "this text, a command's flags, a topic, or a search",
     IN_HELP, .run = cli_help, 0, 64},
};
enum { N_COMMANDS = LEN(commands) };

static const char *command_name(int i)
{
    return commands[i].name;
}

static const struct command *find_command(const char *name)
{
    return ROW_NAMED(commands, name);
}

/* ---- flags ---- */

/* name: of the flag as it was typed, "-n" or "--limit"; for messages, here and below. */
static bool take_value(const struct flag *f, const char *name, void *in, const char *value,
                       struct err *e)
{
    const struct option *row = row_of(f);
    if (row->kind == OPT_NAME) { /* opts_check() looks at the word that is left in the end */
        *(const char **)((char *)in + row->at) = value;
        return true;
    }
    bool may_be_empty = strcmp(row->range, "TEXT") == 0 || strcmp(row->range, "WORDS") == 0;
    if (row->kind == OPT_TEXT && value && !*value && !may_be_empty)
        return err_set(e, ERR_USAGE, "%s cannot be empty; expected %s", name, row->range);
    if (option_read(row, in, value ? value : "on"))
        return true;
    if (row->kind == OPT_WORD)
        return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected %s", name, value,
                       row->range);
    return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected a %s from %.0f to %.0f", name,
                   value, row->kind == OPT_POW2 ? "power of two" : "number", row->min, row->max);
}

static bool take_param(struct cli *c, const char *flag, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    if (!eq)
        return err_set(e, ERR_USAGE, "%s \"%.80s\": expected NAME=VALUE", flag, text);
    FREED(free_at) char *name = xasprintf("%.*s", (int)(eq - text), text);
    bool ok = settings_set(&c->opt.engine.settings, name, eq + 1, e);
    if (ok)
        c->opt.given |= 1u << settings_index(name);
    return ok;
}

/* A historical fault as "24617", or one of its variants as "26966=dummy-pool". */
static bool take_bug(struct cli *c, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    const int length = (int)(eq ? eq - text : (ptrdiff_t)strlen(text));
    FREED(free_at) char *which = xasprintf("%.*s", length, text);
    return bug_set(&c->opt.engine.bugs, which, eq ? eq + 1 : "on", e);
}

static bool take_text(struct texts *t, const char *name, const char *value, struct err *e)
{
    if (t->n == MAX_TEXTS)
        return err_set(e, ERR_USAGE, "more than %d times %s", MAX_TEXTS, name);
    t->v[t->n++] = value;
    return true;
}

/* Acts on one flag; value is NULL when it takes none. */
static bool take_flag(struct cli *c, const struct flag *f, const char *name, const char *value,
                      struct err *e)
{
    void *at = (char *)c + f->row.at;
    CHECK(value || !arg_of(f));
    switch (f->act) {
    case F_VALUE: return take_value(f, name, c, value, e);
    case F_ENGINE: return take_value(f, name, &c->opt.engine, value, e);
    case F_CONST: *(int *)at = (int)f->row.usual; return true;
    case F_SET:
        if (!value)
            return take_param(c, name, f->set, e);
        c->opt.given |= 1u << settings_index(f->set);
        return settings_set(&c->opt.engine.settings, f->set, value, e);
    case F_PARAM:
        CHECK(value);
        return take_param(c, name, value, e);
    case F_TEXTS: return take_text(at, name, value, e);
    case F_BUG:
        CHECK(value);
        return take_bug(c, value, e);
    case F_HELP:
    case F_VERSION: return true; /* handled by parse() */
    }
    return false;
}

/* ---- the config file ---- */

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        n--;
    s[n] = '\0';
    return s;
}

/* Checks the value of a config line that only other commands take, without applying it. */
static bool check_only(const struct cli *c, const struct flag *f, const char *name,
                       const char *value, struct err *e)
{
    struct cli unused = *c;
    return take_flag(&unused, f, name, value, e);
}

/* "draft" in the config file: with on or off the setting spec, with any other value the flag
 * --draft. */
static bool is_setting(const char *name, const char *value)
{
    return settings_named(name) ||
           (settings_index(name) >= 0 && (!strcmp(value, "on") || !strcmp(value, "off")));
}

/* One "name = value": a setting or a long flag. It is applied to the commands that take it on the
 * command line (a setting: those that take -p), and to no other. A flag without argument takes on
 * or off. */
static bool config_line(struct cli *c, char *line, int where, struct err *e)
{
    char *eq = strchr(line, '=');
    if (!eq)
        return err_set(e, ERR_USAGE, "expected name = value, not \"%.80s\"", line);
    *eq = '\0';
    char *name = trim(line), *value = trim(eq + 1);
    if (is_setting(name, value)) {
        struct settings unused = c->opt.engine.settings;
        bool takes = find_flag("param", 5, 0, where) != NULL;
        return settings_set(takes ? &c->opt.engine.settings : &unused, name, value, e);
    }
    size_t n = strlen(name);
    /* a name may be a flag of two commands */
    const struct flag *f = find_flag(name, n, 0, where & ~IN_LOGS);
    if (!f)
        f = find_flag(name, n, 0, IN_ALL & ~IN_LOGS);
    if (!f || f->act == F_HELP || f->act == F_VERSION || f->act == F_PARAM ||
        (f->act == F_TEXTS && !(f->where & IN_TALK)))
        return err_set(e, ERR_USAGE, "\"%.80s\" is neither a setting nor a flag; aerie help lists "
                                     "both", name);
    if (!arg_of(f)) {
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected on or off", name, value);
        return strcmp(value, "off") == 0 || !(f->where & where) ||
               take_flag(c, f, name, NULL, e);
    }
    return f->where & where ? take_flag(c, f, name, value, e) : check_only(c, f, name, value, e);
}

static bool read_config(struct cli *c, int where, struct err *e)
{
    c->config_path = xdg_path("XDG_CONFIG_HOME", ".config", "config");
    if (!c->config_path || file_missing(c->config_path))
        return true;
    if (!buf_read_file(&c->config, c->config_path, 1 << 20, e))
        return false;
    if (c->config.n && strlen(c->config.p) != c->config.n)
        return err_set(e, ERR_USAGE, "%s has a NUL byte, expected a text in UTF-8",
                       c->config_path);
    int number = 0;
    char *line = c->config.p;
    while (line && *line) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        number++;
        line = trim(line);
        if (*line && *line != '#' && !config_line(c, line, where, e))
            return err_prefix(e, "%s:%d", c->config_path, number);
        line = end;
    }
    c->opt.given = 0; /* the command line overrides the settings of a resumed session */
    return true;
}

/* ---- --help ---- */

static void help_line(const char *left, const char *text)
{
    if (strlen(left) > 25)
        out_printf("  %s\n%28s%s\n", left, "", text);
    else
        out_printf("  %-25s %s\n", left, text);
}

/* Of "parity, kl: prompts": the length of the names and the colon, 0 if a name is no command's.
 * *of_cmd: whether cmd is one of them. */
static size_t names_before(const char *part, size_t n, const struct command *cmd, bool *of_cmd)
{
    const char *colon = memmem(part, n, ": ", 2);
    *of_cmd = false;
    for (const char *name = part; colon; name += strcspn(name, ",:") + 2) {
        size_t k = strcspn(name, ",:");
        FREED(free_at) char *one = xasprintf("%.*s", (int)k, name);
        const struct command *named = find_command(one);
        if (!named)
            return 0;
        *of_cmd |= named == cmd;
        if (name[k] == ':')
            return (size_t)(colon + 2 - part);
    }
    return 0;
}

/* What the text of a flag says to one command: its parts between "; " that name no commands, and
 * those that name this one, without the names. */
static void help_for(const struct command *cmd, const char *text, struct buf *out)
{
    for (const char *part = text, *end; *part; part = *end ? end + 2 : end) {
        bool of_cmd;
        end = strstr(part, "; ");
        end = end ? end : part + strlen(part);
        size_t names = names_before(part, (size_t)(end - part), cmd, &of_cmd);
        if (names && !of_cmd)
            continue;
        buf_str(out, out->n ? "; " : "");
        buf_add(out, part + names, (size_t)(end - part) - names);
    }
}

/* One line for each word. */
static void help_words(const struct command *cmd)
{
    struct help_word w;
    if (!cmd->word)
        return;
    out_printf("%s:\n", cmd->title);
    for (int i = 0; cmd->word(i, &w); i++)
        help_line(w.name, w.help);
    out_printf("\n");
}

/* The words alone, in lines of at most 80 columns. */
static void list_words(const struct command *cmd)
{
    struct help_word w;
    FREED(buf_free) struct buf line = {0};
    for (int i = 0; cmd->word && cmd->word(i, &w); i++) {
        if (line.n && line.n + strlen(w.name) > 49) {
            out_printf("%28s%s,\n", "", line.p);
            buf_clear(&line);
        }
        buf_printf(&line, "%s%s", line.n ? ", " : "", w.name);
    }
    if (line.n)
        out_printf("%28s%s\n", "", line.p);
}

/* The line of a flag as a command takes it; cmd NULL: whatever the command. letter 0: none. */
static void help_flag(const struct flag *f, const struct command *cmd, char letter)
{
    const struct option *row = row_of(f);
    const char short_form[] = {'-', letter, ',', ' ', '\0'};
    FREED(free_at) char *left = xasprintf("%s--%s%s%s", letter ? short_form : "    ", f->row.name,
                                          *row->range ? " " : "", row->range);
    FREED(buf_free) struct buf text = {0};
    if (cmd)
        help_for(cmd, row->help, &text);
    help_line(left, cmd ? buf_text(&text) : row->help);
}

/* Prints a line for each flag of a command; NULL: of all, with the groups' headings. */
static void help_flags(const struct command *cmd)
{
    bool all = !cmd;
    int where = all ? IN_ALL : cmd->bit;
    FOR_EACH(const struct flag, f, flags, n_flags) {
        if (all && f->group)
            out_printf("\n%s:\n", f->group);
        if (!(f->where & where))
            continue;
        bool lettered = f->letter && (all || find_flag("", 0, f->letter, where) == f);
        help_flag(f, cmd, lettered ? f->letter : '\0');
    }
}

/* Prints the flags of this name, unless it is a setting's or a topic's. Whether there are any. */
static bool help_flags_named(const char *name)
{
    FREED(sheet_free) struct sheet topic = {0};
    bool any = false;
    if (settings_index(name) >= 0 || help_topic(name, &(struct printer){&topic, NULL}))
        return false;
    FOR_EACH(const struct flag, f, flags, n_flags) {
        if (strcmp(f->row.name, name) != 0)
            continue;
        help_flag(f, NULL, f->letter);
        any = true;
    }
    return any;
}

static void help_settings(void)
{
    out_printf("\nSettings, for -p, /set and the config file:\n");
    for (int i = 0; i < settings_count(); i++) {
        const struct option *s = settings_at(i);
        FREED(free_at) char *left = xasprintf("%s %s", s->name, s->range);
        help_line(left, s->help);
    }
}

static int help_all(void)
{
    out_printf("aerie " AERIE_VERSION " - chat with a local hybrid sliding-window model, and look "
           "inside\n\nusage: aerie [COMMAND] [FLAGS]\n\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        FREED(free_at) char *left = xasprintf("%s %s", commands[i].name, commands[i].args);
        help_line(left, commands[i].help);
        list_words(&commands[i]);
    }
    help_flags(NULL);
    help_settings();
    out_printf("\nFiles: $XDG_CONFIG_HOME/aerie/config (name = value lines of settings and "
               "flags),\n"
           "$XDG_DATA_HOME/aerie/sessions.db. Exit codes: 0 ok, 1 the answer is no, 2 usage\n"
           "or another error, 3 model or device, 4 database, 5 a checker rule was violated,\n"
           "129 hung up, 130 interrupted, 143 terminated. /help lists the chat's commands.\n");
    return 0;
}

static int help_command(const struct command *cmd)
{
    out_printf("usage: aerie %s%s%s [FLAGS]\n\n%s\n\n", cmd->name, *cmd->args ? " " : "", cmd->args,
           cmd->help);
    help_words(cmd);
    help_flags(cmd);
    if (find_flag("param", 5, 0, cmd->bit))
        help_settings();
    return 0;
}

/* The chat's commands as repl/README.md shows them. */
static int help_table(void)
{
    FREED(buf_free) struct buf b = {0};
    cmd_table_markdown(&b);
    out_bytes(b.p, b.n);
    return 0;
}

/* Prints help wrapped to the terminal, in a pipe to HELP_CELLS. */
static void print_help(const struct cli *c, const struct sheet *s)
{
    FREED(sheet_free) struct sheet rows = {.ascii = s->ascii};
    sheet_append_wrapped(&rows, s, cli_width() ? 0 : HELP_CELLS);
    cli_print(c, &rows);
}

/* A topic, a command of the chat, a setting, or a search, as /help has it; a flag before it. */
static int help_words_of(struct cli *c)
{
    struct err e = {0};
    FREED(buf_free) struct buf words = {0};
    for (int i = 0; i < c->n_word; i++)
        buf_printf(&words, "%s%s", i ? " " : "", c->word[i]);
    FREED(sheet_free) struct sheet out = {.ascii = c->opt.ascii};
    bool flag = c->n_word == 1 && help_flags_named(words.p);
    bool ok = cmd_help_on(NULL, words.p, &(struct printer){&out, NULL}, &e) || flag;
    print_help(c, &out);
    return ok ? 0 : cli_fail(&e);
}

int cli_help(struct cli *c)
{
    if (!c->n_word)
        return help_all();
    if (!strcmp(c->word[0], "commands"))
        return help_table();
    const struct command *cmd = c->n_word == 1 ? find_command(c->word[0]) : NULL;
    if (!cmd)
        return help_words_of(c);
    help_command(cmd);
    FREED(sheet_free) struct sheet topic = {.ascii = c->opt.ascii};
    if (help_topic(cmd->name, &(struct printer){&topic, NULL}))
        out_printf("\n");
    print_help(c, &topic);
    return 0;
}

/* ---- parsing ---- */

struct parse {
    const struct command *cmd; /* NULL: none named yet */
    bool named;                /* false: cmd is chat by default */
    struct seen {
        const struct flag *flag;
        const char *value;
        char letter; /* by which it was given; 0: by its name */
    } *seen; /* in order; acted on once the command is known and the config file read */
    int n_seen;
    bool help, version;
};

static const char *flag_name(int i)
{
    return flags[i].row.name;
}

static bool unknown_flag(const char *arg, struct err *e)
{
    FREED(buf_free) struct buf near = {0};
    if (strncmp(arg, "--", 2) == 0)
        nearest_names(arg + 2, flag_name, n_flags, "--", &near);
    return err_set(e, ERR_USAGE, "unknown flag \"%.80s\"; %s%s%saerie help lists them", arg,
                   near.n ? "did you mean " : "", buf_text(&near), near.n ? "? " : "");
}

/* One flag and, if it takes one, its argument: `inline_value` or the next word. shown: as typed. */
static bool record_flag(struct parse *p, const struct flag *f, const char *shown,
                        const char *inline_value, char **argv, int *i, struct err *e)
{
    if (!f)
        return unknown_flag(shown, e);
    const char *value = NULL;
    if (arg_of(f)) {
        value = inline_value ? inline_value : argv[*i + 1];
        if (!value)
            return err_set(e, ERR_USAGE, "%.80s needs an argument: %s", shown, arg_of(f));
        *i += !inline_value;
    } else if (inline_value) {
        return err_set(e, ERR_USAGE, "--%s takes no argument", f->row.name);
    }
    p->help |= f->act == F_HELP;
    p->version |= f->act == F_VERSION;
    *APPEND(p->seen, p->n_seen) = (struct seen){f, value, shown[1] == '-' ? '\0' : shown[1]};
    return true;
}

static bool see_long(struct parse *p, char **argv, int *i, int where, struct err *e)
{
    const char *name = argv[*i] + 2, *eq = strchr(name, '=');
    const struct flag *f = find_flag(name, eq ? (size_t)(eq - name) : strlen(name), 0, where);
    return record_flag(p, f, argv[*i], eq ? eq + 1 : NULL, argv, i, e);
}

static bool see_letters(struct parse *p, char **argv, int *i, int where, struct err *e)
{
    for (const char *at = argv[*i] + 1; *at; at++) {
        const struct flag *f = find_flag("", 0, *at, where);
        char shown[3] = {'-', *at, '\0'};
        if (!f || (arg_of(f) && at[1]))
            return record_flag(p, f, shown, f ? at + 1 : NULL, argv, i, e);
        if (arg_of(f)) /* the last letter: its argument is the next word */
            return record_flag(p, f, shown, NULL, argv, i, e);
        if (!record_flag(p, f, shown, NULL, argv, i, e))
            return false;
    }
    return true;
}

/* Finds a flag among those of the command (of chat, if none is named yet), else among all:
 * apply_flags() reports a flag that the command does not take. */
static int scope(const struct parse *p, const char *arg)
{
    int bit = p->cmd ? p->cmd->bit : IN_TALK;
    const char *name = arg + 1 + (arg[1] == '-');
    bool takes = arg[1] == '-' ? find_flag(name, strcspn(name, "="), 0, bit) != NULL
                               : find_flag("", 0, arg[1], bit) != NULL;
    return takes ? bit : p->cmd ? IN_ALL : IN_ALL & ~IN_LOGS;
}

static bool no_command(const char *name, struct err *e)
{
    for (int i = 0; i < cmd_count(); i++)
        if (strcmp(cmd_at(i)->name, name) == 0)
            return err_set(e, ERR_USAGE, "%s is a command of the chat, /%s; aerie help lists those "
                                         "of the shell%s", name,
                           name, strcmp(name, "search") == 0 ? ", such as aerie logs -q WORDS"
                           : "");
    FREED(buf_free) struct buf near = {0};
    nearest_names(name, command_name, N_COMMANDS, "aerie ", &near);
    return err_set(e, ERR_USAGE, "there is no command \"%.80s\"; %s%s%saerie help lists them, and "
                   "aerie run \"...\" answers a prompt", name, near.n ? "did you mean " : "",
                   buf_text(&near), near.n ? "? " : "");
}

static bool parse_words(struct parse *p, struct cli *c, int argc, char **argv, struct err *e)
{
    bool only_words = false;
    c->word = argv; /* words move to the front of argv: there is always room */
    int n = 0;
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (only_words || arg[0] != '-' || !arg[1]) {
            if (p->cmd)
                c->word[n++] = arg;
            else if (!(p->cmd = find_command(arg)))
                return no_command(arg, e);
        } else if (strcmp(arg, "--") == 0) {
            only_words = true;
        } else if (!(arg[1] == '-' ? see_long : see_letters)(p, argv, &i, scope(p, arg), e)) {
            return false;
        }
    }
    c->n_word = n;
    p->named = p->cmd != NULL;
    if (!p->cmd)
        p->cmd = find_command("chat");
    return true;
}

static bool check_words(const struct command *cmd, int n, struct err *e)
{
    if (n >= cmd->min && n <= cmd->max)
        return true;
    return err_set(e, ERR_USAGE, "%s: usage: aerie %s%s%s", n < cmd->min ? "something is missing" :
                   "too many words", cmd->name, *cmd->args ? " " : "", cmd->args);
}

static bool apply_flags(struct cli *c, const struct parse *p, struct err *e)
{
    for (int i = 0; i < p->n_seen; i++) {
        const struct flag *f = p->seen[i].flag;
        /* given before the command: the name may be a flag of the command */
        if (!(f->where & p->cmd->bit))
            f = find_flag(f->row.name, strlen(f->row.name), 0, p->cmd->bit);
        const char letter[] = {'-', p->seen[i].letter, '\0'};
        FREED(free_at) char *name = xasprintf("--%s", p->seen[i].flag->row.name);
        if (!f)
            return err_set(e, ERR_USAGE, letter[1] ? "aerie %s does not take %s (%s); see aerie "
                           "help %s" : "aerie %s does not take %s%s; see aerie help %s",
                           p->cmd->name, letter[1] ? letter : "", name, p->cmd->name);
        if (!take_flag(c, f, letter[1] ? letter : name, p->seen[i].value, e))
            return false;
    }
    return true;
}

static void defaults(struct cli *c)
{
    *c = (struct cli){.limit = 20, .older_than = -1, .keep = -1, .to_size = -1, .port = 8080};
    c->opt.level = LOG_TREE;
    c->opt.engine.device = "auto";
    settings_init(&c->opt.engine.settings);
}

/* Cuts the last component off a path and returns it, or "". */
static const char *cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return "";
    *slash = '\0';
    return slash + 1;
}

/* Finds the bundled model: in SOURCE for a program in SOURCE/build/CONFIG, in PREFIX for one in
 * PREFIX/bin; else in the folder of installation given at the build, at last in the folder in which
 * this program was built. */
static char *find_bundled(void)
{
    char prefix[4096], source[4096];
    ssize_t n = readlink("/proc/self/exe", prefix, sizeof prefix - 1);
    prefix[n > 0 ? n : 0] = '\0';
    cut_last(prefix);
    memcpy(source, prefix, sizeof source);
    cut_last(prefix);
    cut_last(source);
    bool built = strcmp(cut_last(source), "build") == 0;
    char *try[] = {xasprintf("%s/models/nestling", built ? source : ""),
                   xasprintf("%s/share/aerie/models/nestling", prefix),
                   xasprintf("%s/models/nestling", AERIE_SHARE),
                   xasprintf("%s/models/nestling", AERIE_SOURCE)};
    char *found = NULL, *maybe = NULL;
    for (int i = 0; i < 4; i++) {
        FREED(free_at) char *config = xasprintf("%s/target/config.json", try[i]);
        bool has = i == 0 ? built : i < 3 || AERIE_SOURCE[0] != 0;
        int error = access(config, R_OK) == 0 ? 0 : errno;
        bool unsure = error && error != ENOENT && error != ENOTDIR && error != EACCES;
        if (has && (!error ? !found : unsure && !maybe))
            *(error ? &maybe : &found) = try[i];
        else
            free(try[i]);
    }
    if (!found) /* not found: loading it reports why */
        return maybe;
    free(maybe);
    return found;
}

/* Replaces the name of a model in the hub's cache by its path, which *own then owns. */
static bool find_named(const char **model, char **own, struct err *e)
{
    if (!*model)
        return true;
    *model = *own = hub_find(*model, e);
    return *model != NULL;
}

/* Checks flags against each other, and fills in the bundled models when none are named. */
static bool resolve_defaults(struct cli *c, int where, struct err *e)
{
    struct engine_opts *o = &c->opt.engine;
    bool finds = where & (IN_ENGINE | IN_DOCTOR | IN_FIT);
    if (!opts_check(o, e))
        return false;
    o->settings.verbose |= c->opt.verbose;
    if (c->opt.verbose)
        c->opt.given |= 1u << settings_index("verbose");
    o->server.header = c->header.v;
    o->server.n_header = c->header.n;
    c->model_given = o->model != NULL;
    c->draft_given = o->draft != NULL;
    if (o->draft && !strcmp(o->draft, "none"))
        o->draft = NULL;
    bool here = !cli_asks_server(c, where);
    if ((here && !find_named(&o->model, &c->named[0], e)) ||
        !find_named(&o->draft, &c->named[1], e) ||
        (finds && here && c->model_given && !c->draft_given && !cli_find_pair(c, o->model, e)))
        return false;
    c->bundled = o->server.url ? NULL : find_bundled();
    if (!c->bundled)
        return true;
    c->target = xasprintf("%s/target", c->bundled);
    c->draft = xasprintf("%s/draft", c->bundled);
    c->opt.bundled = c->target;
    c->opt.bundled_draft = c->draft;
    if (!c->model_given) {
        o->model = c->target;
        if (!c->draft_given)
            o->draft = c->draft;
    }
    return true;
}

/* Acts on the config file and the flags, for a command that is to run. */
static bool apply_all(struct cli *c, const struct parse *p, struct err *e)
{
    CHECK(p->cmd); /* chat where none is named */
    if (!read_config(c, p->cmd->bit, &c->config_error) && p->cmd->bit != IN_DOCTOR) {
        *e = c->config_error;
        return false;
    }
    return apply_flags(c, p, e) && check_words(p->cmd, c->n_word, e) &&
           resolve_defaults(c, p->cmd->bit, e);
}

bool cli_read(struct cli *c, int argc, char **argv, const struct command **cmd, enum cli_task *task,
              struct err *e)
{
    struct parse p = {0};
    defaults(c);
    bool ok = parse_words(&p, c, argc, argv, e);
    *task = p.version ? CLI_VERSION : p.help ? CLI_HELP : CLI_RUN;
    if (ok && *task == CLI_RUN)
        ok = apply_all(c, &p, e);
    *cmd = p.named || *task == CLI_RUN ? p.cmd : NULL;
    free(p.seen);
    return ok;
}

void cli_free(struct cli *c)
{
    FREE(c->bundled, c->target, c->draft, c->named[0], c->named[1]);
    pair_free(&c->pair);
    free(c->config_path);
    buf_free(&c->config);
}

static int run_task(struct cli *c, const struct command *cmd, enum cli_task task)
{
    if (task == CLI_VERSION) {
        out_printf("aerie " AERIE_VERSION "\n");
        return 0;
    }
    if (task == CLI_HELP)
        return cmd ? help_command(cmd) : help_all();
    struct err e = {0};
#ifdef NOWAIT
    if (cmd->bit != IN_BENCH) {
        err_set(&e, ERR_USAGE, "aerie %s: this program was built with NOWAIT=1 and computes wrong "
                "results; expected `aerie bench`", cmd->name);
        return cli_fail(&e);
    }
#endif
    if (cmd->bit & (IN_LOGS | IN_STATS | IN_SHOW | IN_EXPORT | IN_PACK | IN_DB | IN_TOKENIZE |
                    IN_BUGS | IN_CHECK | IN_HELP))
        signal(SIGPIPE, SIG_DFL); /* commands that only print end with their reader, as cat does */
    return history_seal_with(c->opt.seal, &e) && cli_confine(c, cmd, &e) ? cmd->run(c)
           : cli_fail(&e);
}

int cli_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--complete") == 0)
        return cli_complete(commands, N_COMMANDS, argc - 2, argv + 2);
    FREED(cli_free) struct cli c;
    struct err e = {0};
    const struct command *cmd;
    enum cli_task task;
    int rc = cli_read(&c, argc, argv, &cmd, &task, &e) ? run_task(&c, cmd, task) : cli_fail(&e);
    if (!out_flush() && errno != EPIPE) {
        err_set(&e, ERR_USAGE, "cannot write to standard output: %s", strerror(errno));
        int code = cli_fail(&e);
        rc = rc ? rc : code;
    }
    return rc;
}
