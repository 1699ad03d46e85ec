/* cli.c - flags, the config file, --help, and the table of subcommands. See cli.h.
 *
 * Flags may precede or follow the command; a short flag with another meaning in a command (logs -q,
 * -n, -m) has that meaning only after the command's name. The config file is read first, so flags
 * win.
 */
#include "repl/cli/cli.h"

#include "engine/bugs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- commands ---- */

enum {
    IN_CHAT = 1, IN_RUN = 2, IN_LOGS = 4, IN_SHOW = 8, IN_REPLAY = 16, IN_EXPORT = 32, IN_DB = 64,
    IN_DOCTOR = 128, IN_TOKENIZE = 256, IN_GOLDEN = 512, IN_HELP = 1024,
    IN_BUGS = 2048, IN_BENCH = 4096, IN_PACK = 1 << 20, IN_PARITY = 8192,
    IN_DIFF = 1 << 21,
    IN_ALL = 16383 | IN_PACK | IN_DIFF,
    IN_TALK = IN_CHAT | IN_RUN,
    IN_ENGINE = IN_TALK | IN_PARITY, /* takes everything that decides the bits of a reply */
    IN_MODEL = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_DOCTOR | IN_PACK,
    IN_LOG = IN_TALK | IN_LOGS | IN_SHOW | IN_REPLAY | IN_EXPORT | IN_DB | IN_DOCTOR | IN_PACK | IN_DIFF,
};

static int help(struct cli *c);

static const struct command {
    const char *name, *args, *help;
    int bit;
    int (*run)(struct cli *c);
    int min, max; /* words */
} commands[] = {
    {"chat", "", "talk with the model (also without a command)", IN_CHAT, cli_chat, 0, 0},
    {"run", "[PROMPT...]", "answer one prompt (- or none: standard input)", IN_RUN, cli_run, 0,
     1 << 20},
    {"logs", "[-q WORDS] [-n N] [-m MODEL]", "list saved sessions, newest first", IN_LOGS, cli_logs,
     0, 0},
    {"show", "ID[:TURN[.STEP]]", "print a session, a turn or one step", IN_SHOW, cli_show, 1, 1},
    {"replay", "ID [--check] [--with X=Y...]", "play a saved session, or run it again", IN_REPLAY,
     cli_replay, 1, 64},
    {"parity", "FILE [--a NAME=VALUE] [--b NAME=VALUE]",
     "compute prompts twice, drafting or not; compare ids", IN_PARITY, cli_parity, 1, 1},
    {"diff", "A B | A --with X=Y...", "find the first difference of two runs, and judge it", IN_DIFF, cli_diff,
     1, 64},
    {"export", "ID [--format F] [-o FILE]", "write a session as JSON lines or Markdown", IN_EXPORT,
     cli_export, 1, 1},
    {"pack", "ID [--steps A..B] [-o FILE]", "write a session to one file that others can open", IN_PACK,
     cli_pack, 1, 1},
    {"db", "path | check | backup FILE | sql QUERY | prune", "care for the session database", IN_DB, cli_db, 1,
     2},
    {"tokenize", "[-m DIR] [FILE]", "print the token ids of a text", IN_TOKENIZE, cli_tokenize, 0,
     1},
    {"golden", "DIR [--draft DIR]", "compare the engine with reference tensors", IN_GOLDEN,
     cli_golden, 1, 1},
    {"bench", "[NAME...] [--synthetic MODEL]", "measure speed against memory bandwidth", IN_BENCH,
     cli_bench, 0, 64},
    {"bugs", "[--try NUMBER]", "list historical engine faults, or try one out", IN_BUGS, cli_bugs,
     0, 0},
    {"doctor", "", "say what was found on this machine", IN_DOCTOR, cli_doctor, 0, 0},
    {"help", "[COMMAND]", "this text, or the flags of one command", IN_HELP, help, 0, 1},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* ---- flags ---- */

enum kind {
    F_ON,    /* bool at `at` becomes true */
    F_CONST, /* int at `at` becomes lo */
    F_TEXT,  /* const char * at `at` */
    F_INT,   /* int at `at`, lo .. hi */
    F_POW2,  /* the same, and a power of two */
    F_WORD,  /* int at `at`: the index of the word in `words` */
    F_SET,   /* a setting: `words` is its name, and "name=value" when the flag takes no argument */
    F_PARAM, /* "name=value" */
    F_TEXTS, /* struct texts at `at`: one more */
    F_BUG,   /* a historical fault, on from the start */
    F_HELP, F_VERSION,
};

#define AT(field) offsetof(struct cli, field)

static const struct flag {
    const char *name;
    char letter;
    const char *arg; /* NULL: takes none */
    int where;       /* commands that take it */
    enum kind kind;
    size_t at;
    int lo, hi;
    const char *words;
    const char *group, *help;
} flags[] = {
    /* flags of single commands come first: after the command their letters take precedence */
    {"query", 'q', "WORDS", IN_LOGS, F_TEXT, AT(query), 0, 0, NULL, "Commands' own",
     "logs: sessions in which these words occur"},
    {"limit", 'n', "N", IN_LOGS, F_INT, AT(limit), 1, 1000000, NULL, NULL,
     "logs: at most N sessions (20)"},
    {"model", 'm', "NAME", IN_LOGS, F_TEXT, AT(model_filter), 0, 0, NULL, NULL,
     "logs: sessions with this model"},
    {"limit", 'n', "N", IN_PARITY, F_INT, AT(most), 1, 1000000, NULL, NULL,
     "parity: the first N prompts of the file"},
    {"a", 0, "NAME=VALUE", IN_PARITY, F_TEXTS, AT(a), 0, 0, NULL, NULL,
     "parity: how one side is computed (spec=on)"},
    {"b", 0, "NAME=VALUE", IN_PARITY, F_TEXTS, AT(b), 0, 0, NULL, NULL,
     "parity: how the other is (spec=off); both repeatable"},
    {"check", 0, NULL, IN_REPLAY, F_ON, AT(check), 0, 0, NULL, NULL,
     "replay: run it again and compare; -v shows the turns"},
    {"with", 0, "NAME=VALUE...", IN_REPLAY | IN_DIFF, F_TEXTS, AT(with), 0, 0, NULL, NULL,
     "replay, diff: change a setting, a fault or an option"},
    {"log-only", 0, NULL, IN_DIFF, F_ON, AT(log_only), 0, 0, NULL, NULL,
     "diff: compare the logs of A and B, and run no model"},
    {"goto", 0, "T.S", IN_REPLAY, F_TEXT, AT(goto_step), 0, 0, NULL, NULL,
     "replay: run again to this step, and pause there"},
    {"forced", 0, NULL, IN_REPLAY, F_ON, AT(forced), 0, 0, NULL, NULL,
     "replay: commit the recorded tokens, compare logits"},
    {"format", 0, "jsonl|md", IN_EXPORT, F_TEXT, AT(format), 0, 0, NULL, NULL,
     "export: JSON lines (default) or Markdown"},
    {"output", 'o', "FILE", IN_EXPORT | IN_PACK, F_TEXT, AT(out), 0, 0, NULL, NULL,
     "export: not to standard output; pack: the file"},
    {"steps", 0, "A..B", IN_PACK, F_TEXT, AT(steps), 0, 0, NULL, NULL,
     "pack: trees of TURN.STEP..TURN.STEP, no later turn"},
    {"with-text", 0, NULL, IN_PACK, F_ON, AT(with_text), 0, 0, NULL, NULL,
     "pack: keep messages, replies and titles"},
    {"plan", 0, "T.S", IN_PACK, F_TEXT, AT(plan), 0, 0, NULL, NULL,
     "pack: also page tables and tree of step T.S as JSON"},
    {"issue", 0, "ENGINE", IN_PACK, F_TEXT, AT(issue), 0, 0, NULL, NULL,
     "pack: also a report for sglang, vllm or llama.cpp"},
    {"no-ids", 0, NULL, IN_PACK, F_ON, AT(no_ids), 0, 0, NULL, NULL,
     "pack: leave token ids out, too"},
    {"older-than", 0, "DAYS", IN_DB, F_INT, AT(older_than), 0, 100000, NULL, NULL,
     "db prune: remove sessions not used for DAYS"},
    {"special", 0, NULL, IN_TOKENIZE, F_ON, AT(special), 0, 0, NULL, NULL,
     "tokenize: match special tokens in the text"},
    {"jsonl", 0, NULL, IN_TOKENIZE, F_ON, AT(jsonl), 0, 0, NULL, NULL,
     "tokenize: {\"text\":..} a line in, {\"ids\":[..]} out"},

    {"try", 0, "NUMBER|NAME", IN_BUGS, F_TEXT, AT(attempt), 0, 0, NULL, NULL,
     "bugs: run the input that shows it, checked and not"},
    {"synthetic", 0, "MODEL", IN_BENCH, F_TEXT, AT(synthetic), 0, 0, NULL, NULL,
     "bench: a published model with made-up weights"},
    {"cublas", 0, "FILE", IN_BENCH, F_TEXT, AT(cublas), 0, 0, NULL, NULL,
     "bench: measure prompts against this cuBLASLt"},
    {"short", 0, NULL, IN_BENCH, F_ON, AT(brief), 0, 0, NULL, NULL,
     "bench: fewer lines and repetitions"},
    {"model", 'm', "DIR", IN_MODEL | IN_TOKENIZE | IN_BUGS | IN_BENCH, F_TEXT, AT(opt.engine.model),
     0, 0, NULL, "Model", "checkpoint folder (default: the bundled model)"},
    {"draft", 0, "DIR|ngram", IN_MODEL | IN_GOLDEN | IN_BUGS | IN_BENCH, F_TEXT,
     AT(opt.engine.draft), 0, 0, NULL, NULL, "draft model's folder; ngram: context lookup"},
    {"require-draft", 0, NULL, IN_TALK, F_ON, AT(opt.engine.require_draft), 0, 0, NULL, NULL,
     "fail when the draft does not fit the model"},
    {"eagle-capture", 0, "LIST", IN_ENGINE | IN_GOLDEN, F_TEXT, AT(opt.engine.capture), 0, 0, NULL,
     NULL, "layer boundaries that an EAGLE3 head reads: 2,4,5"},
    {"device", 0, "auto|cpu|cuda", IN_MODEL | IN_GOLDEN | IN_BENCH, F_TEXT, AT(opt.engine.device),
     0, 0, NULL, NULL, "where to compute (auto: CUDA if there is a GPU)"},
    {"precision", 0, "bf16|f32", IN_MODEL | IN_GOLDEN | IN_BENCH, F_TEXT, AT(opt.engine.precision),
     0, 0, NULL, NULL, "CUDA: type of activations and KV cells (bf16)"},
    {"weights", 0, "stored|fp8", IN_ENGINE | IN_REPLAY | IN_DIFF | IN_BENCH, F_TEXT,
     AT(opt.engine.quant.weights), 0, 0, NULL, NULL,
     "fp8: quantize bf16 matrices to 8 bits on loading"},
    {"draft-weights", 0, "stored|fp8", IN_ENGINE | IN_REPLAY | IN_DIFF | IN_BENCH, F_TEXT,
     AT(opt.engine.quant.draft_weights), 0, 0, NULL, NULL,
     "the same for the draft model (default: --weights)"},
    {"threads", 0, "N", IN_ENGINE | IN_REPLAY | IN_DIFF | IN_PACK | IN_GOLDEN | IN_BENCH, F_INT, AT(opt.engine.threads),
     1, 1024, NULL, NULL, "CPU threads (default: all cores)"},
    {"raw", 0, NULL, IN_ENGINE, F_ON, AT(opt.engine.raw), 0, 0, NULL, NULL,
     "no chat format: continue the text as it stands"},

    {"remote", 0, "URL", IN_TALK | IN_DOCTOR, F_TEXT, AT(opt.engine.server.url), 0, 0, NULL, "Server",
     "chat with a server: SGLang, vLLM, llama-server, ..."},
    {"api-key-file", 0, "FILE", IN_TALK | IN_DOCTOR, F_TEXT, AT(opt.engine.server.key_file), 0, 0,
     NULL, NULL, "the key for the server, in the file's first line"},
    {"header", 0, "NAME:VALUE", IN_TALK | IN_DOCTOR, F_TEXTS, AT(header), 0, 0, NULL, NULL,
     "send this header to the server, too; repeatable"},

    {"break", 0, "EXPR", IN_TALK, F_TEXTS, AT(breaks), 0, 0, NULL, "Debugger",
     "pause after steps where this holds; repeatable"},

    {"param", 'p', "NAME=VALUE", IN_ENGINE, F_PARAM, 0, 0, 0, NULL, "Reply",
     "set any setting (list below); repeatable"},
    {"system", 's', "TEXT", IN_ENGINE, F_TEXT, AT(opt.system), 0, 0, NULL, NULL, "system prompt"},
    {"seed", 0, "N", IN_ENGINE, F_SET, 0, 0, 0, "seed", NULL, "where the random numbers start"},
    {"check", 0, "off|on|strict", IN_ENGINE, F_SET, 0, 0, 0, "check", NULL,
     "how much is checked before each pass (default on)"},
    {"bug", 0, "NUMBER|NAME", IN_ENGINE, F_BUG, 0, 0, 0, NULL, NULL,
     "switch a historical fault on (aerie bugs lists them)"},
    {"no-spec", 0, NULL, IN_TALK, F_SET, 0, 0, 0, "spec=off", NULL,
     "decode without speculative drafting"},
    {"no-graph", 0, NULL, IN_ENGINE, F_SET, 0, 0, 0, "graph=off", NULL,
     "CUDA: launch kernel by kernel, no CUDA graphs"},
    {"file", 'f', "FILE", IN_RUN, F_TEXT, AT(opt.file), 0, 0, NULL, NULL,
     "put a file's text behind the prompt"},
    {"batch", 0, "FILE", IN_RUN, F_TEXT, AT(batch), 0, 0, NULL, NULL,
     "many prompts: {\"prompt\":..} a line in, a result out"},
    {"lanes", 0, "N", IN_RUN | IN_PARITY, F_INT, AT(lanes), 1, 32, NULL, NULL,
     "batch, parity: prompts computed at once (default 8)"},

    {"context", 0, "N", IN_ENGINE, F_INT, AT(opt.engine.context), 16, 1 << 24, NULL, "Memory",
     "longest context in tokens"},
    {"page-size", 0, "N", IN_ENGINE, F_POW2, AT(opt.engine.page_size), 1, 64, NULL, NULL,
     "tokens a page: 1, 2, 4 .. 64 (default 16)"},
    {"full-pages", 0, "N", IN_ENGINE, F_INT, AT(opt.engine.full_pages), 3, 1 << 28, NULL, NULL,
     "pages of the full pool (default: enough)"},
    {"swa-pages", 0, "N", IN_ENGINE, F_INT, AT(opt.engine.swa_pages), 3, 1 << 28, NULL, NULL,
     "pages of the sliding-window pool (default: enough)"},

    {"continue", 'c', NULL, IN_TALK, F_ON, AT(opt.resume_last), 0, 0, NULL, "Session",
     "continue the latest session"},
    {"session", 0, "ID", IN_TALK, F_TEXT, AT(opt.session), 0, 0, NULL, NULL,
     "continue this session: a number (aerie logs), an id"},
    {"fork", 0, NULL, IN_TALK, F_ON, AT(opt.fork), 0, 0, NULL, NULL,
     "with -c or --session: continue a copy of it"},
    {"log-level", 0, "off|text|steps|tree|full", IN_TALK, F_WORD, AT(opt.level), 0, 0,
     "off|text|steps|tree|full", NULL, "how much is saved (default tree)"},
    {"no-log", 'n', NULL, IN_TALK, F_CONST, AT(opt.level), LOG_OFF, 0, NULL, NULL, "save nothing"},
    {"db", 0, "PATH", IN_LOG, F_TEXT, AT(opt.db), 0, 0, NULL, NULL,
     "the session database (default: below)"},

    {"plain", 0, NULL, IN_CHAT | IN_REPLAY, F_ON, AT(opt.plain), 0, 0, NULL, "Screen",
     "plain lines instead of the full screen"},
    {"tui", 0, NULL, IN_CHAT | IN_REPLAY, F_ON, AT(opt.tui), 0, 0, NULL, NULL, "full screen, or an error"},
    {"script", 0, "FILE", IN_CHAT | IN_REPLAY, F_TEXT, AT(opt.script), 0, 0, NULL, NULL,
     "read lines from a file; implies --plain"},
    {"json", 0, NULL,
     IN_ENGINE | IN_LOGS | IN_SHOW | IN_REPLAY | IN_DIFF | IN_DB | IN_DOCTOR | IN_GOLDEN | IN_BUGS | IN_BENCH |
         IN_PACK,
     F_ON, AT(opt.json), 0, 0, NULL, NULL, "JSON for machines; chat: implies --plain"},
    {"ascii", 0, NULL, IN_ALL, F_ON, AT(opt.ascii), 0, 0, NULL, NULL,
     "no line or block characters"},
    {"color", 0, "auto|always|never", IN_ALL, F_WORD, AT(opt.color), 0, 0, "auto|always|never",
     NULL, "colours on standard output"},
    {"theme", 0, "auto|dark|light", IN_CHAT | IN_REPLAY, F_WORD, AT(opt.theme), 0, 0, "auto|dark|light", NULL,
     "colours of the full screen (auto asks the terminal)"},
    {"no-mouse", 0, NULL, IN_CHAT | IN_REPLAY, F_CONST, AT(opt.mouse), 1, 0, NULL, NULL,
     "the full screen takes no clicks"},
    {"readonly", 0, NULL, IN_CHAT, F_ON, AT(opt.readonly), 0, 0, NULL, NULL,
     "save nothing, and refuse every command that writes"},
    {"sanitize", 0, "auto|always|never", IN_TALK, F_WORD, AT(opt.sanitize), 0, 0,
     "auto|always|never", NULL, "escape control characters when piped"},
    {"quiet", 'q', NULL, IN_ALL, F_ON, AT(opt.quiet), 0, 0, NULL, NULL,
     "no notices on standard error"},
    {"verbose", 'v', NULL, IN_TALK | IN_DOCTOR | IN_REPLAY, F_ON, AT(opt.verbose), 0, 0, NULL, NULL,
     "a line of statistics after each reply"},
    {"help", 'h', NULL, IN_ALL, F_HELP, 0, 0, 0, NULL, NULL, "this text"},
    {"version", 'V', NULL, IN_ALL, F_VERSION, 0, 0, 0, NULL, NULL, "the version"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static const struct flag *find_flag(const char *name, size_t n, char letter, int where)
{
    for (int i = 0; i < N_FLAGS; i++)
        if ((flags[i].where & where) &&
            (letter ? flags[i].letter == letter
                    : strlen(flags[i].name) == n && memcmp(flags[i].name, name, n) == 0))
            return &flags[i];
    return NULL;
}

static bool bad_value(const struct flag *f, const char *value, struct err *e)
{
    if (f->kind == F_INT || f->kind == F_POW2)
        return err_set(e, ERR_USAGE, "--%s cannot be \"%.80s\"; expected a %s from %d to %d",
                       f->name, value, f->kind == F_POW2 ? "power of two" : "number", f->lo, f->hi);
    return err_set(e, ERR_USAGE, "--%s cannot be \"%.80s\"; expected %s", f->name, value, f->arg);
}

static bool take_int(int *at, const struct flag *f, const char *value, struct err *e)
{
    char *end;
    errno = 0;
    long v = strtol(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || v < f->lo || v > f->hi ||
        (f->kind == F_POW2 && (v & (v - 1))))
        return bad_value(f, value, e);
    *at = (int)v;
    return true;
}

static bool set_choice(int *at, const struct flag *f, const char *value, struct err *e)
{
    const char *w = f->words;
    for (int i = 0; *w; i++) {
        size_t n = strcspn(w, "|");
        if (strlen(value) == n && memcmp(w, value, n) == 0) {
            *at = i;
            return true;
        }
        w += n + (w[n] == '|');
    }
    return bad_value(f, value, e);
}

static bool take_param(struct cli *c, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    if (!eq)
        return err_set(e, ERR_USAGE, "-p \"%.80s\": expected NAME=VALUE", text);
    char *name = xasprintf("%.*s", (int)(eq - text), text);
    bool ok = settings_set(&c->opt.engine.settings, name, eq + 1, e);
    if (ok)
        c->opt.given |= 1u << settings_index(name);
    free(name);
    return ok;
}

static bool take_text(struct texts *t, const struct flag *f, const char *value, struct err *e)
{
    if (t->n == MAX_TEXTS)
        return err_set(e, ERR_USAGE, "more than %d times --%s", MAX_TEXTS, f->name);
    t->v[t->n++] = value;
    return true;
}

/* Acts on one flag; value is NULL when it takes none. */
static bool take_flag(struct cli *c, const struct flag *f, const char *value, struct err *e)
{
    void *at = (char *)c + f->at;
    switch (f->kind) {
    case F_ON: *(bool *)at = true; return true;
    case F_CONST: *(int *)at = f->lo; return true;
    case F_TEXT: *(const char **)at = value; return true;
    case F_INT:
    case F_POW2: return take_int(at, f, value, e);
    case F_WORD: return set_choice(at, f, value, e);
    case F_PARAM: return take_param(c, value, e);
    case F_TEXTS: return take_text(at, f, value, e);
    case F_BUG: return bug_set(&c->opt.engine.bugs, value, "on", e);
    case F_SET:
        if (!value)
            return take_param(c, f->words, e);
        c->opt.given |= 1u << settings_index(f->words);
        return settings_set(&c->opt.engine.settings, f->words, value, e);
    case F_HELP:
    case F_VERSION: break; /* handled by parse() */
    }
    return true;
}

/* ---- the config file ---- */

static char *config_path(void)
{
    const char *dir = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (dir && dir[0] == '/')
        return xasprintf("%s/aerie/config", dir);
    return home && home[0] == '/' ? xasprintf("%s/.config/aerie/config", home) : NULL;
}

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
static bool check_only(const struct cli *c, const struct flag *f, const char *value, struct err *e)
{
    struct cli unused = *c;
    return take_flag(&unused, f, value, e);
}

/* "draft" in the config file: with on or off the setting spec, with any other value the flag
 * --draft. */
static bool is_setting(const char *name, const char *value)
{
    int i = settings_index(name);
    return i >= 0 && (strcmp(settings_at(i)->name, name) == 0 || strcmp(value, "on") == 0 ||
                      strcmp(value, "off") == 0);
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
    const struct flag *f = find_flag(name, n, 0, IN_ALL & ~IN_LOGS);
    if (!f || f->kind == F_HELP || f->kind == F_VERSION || f->kind == F_PARAM ||
        f->kind == F_TEXTS)
        return err_set(e, ERR_USAGE, "\"%.80s\" is neither a setting nor a flag; aerie help lists "
                       "both", name);
    if (!f->arg) {
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            return err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected on or off", name, value);
        return strcmp(value, "off") == 0 || !(f->where & where) || take_flag(c, f, NULL, e);
    }
    return f->where & where ? take_flag(c, f, value, e) : check_only(c, f, value, e);
}

static bool read_config(struct cli *c, int where, struct err *e)
{
    c->config_path = config_path();
    if (!c->config_path || access(c->config_path, F_OK) != 0)
        return true;
    if (!buf_read_file(&c->config, c->config_path, 1 << 20, e))
        return false;
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
        printf("  %s\n%28s%s\n", left, "", text);
    else
        printf("  %-25s %s\n", left, text);
}

/* Prints a line for each flag of the commands in `where`; all: with the groups' headings. */
static void help_flags(int where, bool all)
{
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];
        if (all && f->group)
            printf("\n%s:\n", f->group);
        if (!(f->where & where))
            continue;
        char left[80];
        char letter[6] = "    ";
        if (f->letter && (all || find_flag(NULL, 0, f->letter, where) == f))
            snprintf(letter, sizeof letter, "-%c, ", f->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, f->name, f->arg ? " " : "",
                 f->arg ? f->arg : "");
        help_line(left, f->help);
    }
}

static void help_settings(void)
{
    printf("\nSettings, for -p, /set and the config file:\n");
    for (int i = 0; i < settings_count(); i++) {
        const struct setting *s = settings_at(i);
        char left[80];
        snprintf(left, sizeof left, "%s %s", s->name, s->range);
        help_line(left, s->help);
    }
}

static int help_all(void)
{
    printf("aerie " AERIE_VERSION " - chat with a local hybrid sliding-window model, and look "
           "inside\n\nusage: aerie [COMMAND] [FLAGS]\n\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].args);
        help_line(left, commands[i].help);
    }
    help_flags(IN_ALL, true);
    help_settings();
    printf("\nFiles: $XDG_CONFIG_HOME/aerie/config (name = value lines of settings and flags),\n"
           "$XDG_DATA_HOME/aerie/sessions.db. Exit codes: 0 ok, 1 the answer is no, 2 usage\n"
           "or another error, 3 model or device, 4 database, 5 a checker rule was violated,\n"
           "130 interrupted, 143 terminated. In the chat, /help lists its commands.\n");
    return 0;
}

static int help_command(const struct command *cmd)
{
    printf("usage: aerie %s%s%s [FLAGS]\n\n%s\n\n", cmd->name, *cmd->args ? " " : "", cmd->args,
           cmd->help);
    help_flags(cmd->bit, false);
    if (find_flag("param", 5, 0, cmd->bit))
        help_settings();
    return 0;
}

/* The chat's commands as the README shows them. */
static int help_table(void)
{
    struct buf b = {0};
    cmd_table_markdown(&b);
    fputs(b.p, stdout);
    buf_free(&b);
    return 0;
}

static int help(struct cli *c)
{
    if (!c->n_word)
        return help_all();
    if (!strcmp(c->word[0], "commands"))
        return help_table();
    const struct command *cmd = find_command(c->word[0]);
    struct err e;
    if (!cmd) {
        err_set(&e, ERR_USAGE, "there is no command \"%.80s\"; aerie help lists them", c->word[0]);
        return cli_fail(&e);
    }
    return help_command(cmd);
}

/* ---- parsing ---- */

struct parse {
    const struct command *cmd; /* NULL: none named yet */
    bool named;                /* false: cmd is chat by default */
    struct seen {
        const struct flag *flag;
        const char *value;
    } *seen; /* in order; acted on once the command is known and the config file read */
    int n_seen;
    bool help, version;
};

static bool unknown_flag(const char *arg, struct err *e)
{
    return err_set(e, ERR_USAGE, "unknown flag \"%.80s\"; aerie help lists them", arg);
}

/* One flag and, if it takes one, its argument: `inline_value` or the next word. */
static bool record_flag(struct parse *p, const struct flag *f, const char *shown,
                        const char *inline_value, char **argv, int *i, struct err *e)
{
    if (!f)
        return unknown_flag(shown, e);
    const char *value = NULL;
    if (f->arg) {
        value = inline_value ? inline_value : argv[*i + 1];
        if (!value)
            return err_set(e, ERR_USAGE, "%.80s needs an argument: %s", shown, f->arg);
        *i += !inline_value;
    } else if (inline_value) {
        return err_set(e, ERR_USAGE, "--%s takes no argument", f->name);
    }
    p->help |= f->kind == F_HELP;
    p->version |= f->kind == F_VERSION;
    p->seen = xrealloc(p->seen, (size_t)p->n_seen + 1, sizeof *p->seen);
    p->seen[p->n_seen++] = (struct seen){f, value};
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
        const struct flag *f = find_flag(NULL, 0, *at, where);
        char shown[3] = {'-', *at, '\0'};
        if (!f || (f->arg && at[1]))
            return record_flag(p, f, shown, f ? at + 1 : NULL, argv, i, e);
        if (f->arg) /* the last letter: its argument is the next word */
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
                               : find_flag(NULL, 0, arg[1], bit) != NULL;
    return takes ? bit : p->cmd ? IN_ALL : IN_ALL & ~IN_LOGS;
}

static bool no_command(const char *name, struct err *e)
{
    for (int i = 0; i < cmd_count(); i++)
        if (strcmp(cmd_at(i)->name, name) == 0)
            return err_set(e, ERR_USAGE, "%s is a command of the chat, /%s; aerie help lists those of the shell%s", name,
                           name, strcmp(name, "search") == 0 ? ", such as aerie logs -q WORDS" : "");
    return err_set(e, ERR_USAGE, "there is no command \"%.80s\"; aerie help lists them, and aerie run \"...\" "
                   "answers a prompt", name);
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
        if (!(f->where & p->cmd->bit)) /* before the command: the name may be one of its own */
            f = find_flag(f->name, strlen(f->name), 0, p->cmd->bit);
        if (!f)
            return err_set(e, ERR_USAGE, "aerie %s does not take --%s; see aerie help %s",
                           p->cmd->name, p->seen[i].flag->name, p->cmd->name);
        if (!take_flag(c, f, p->seen[i].value, e))
            return false;
    }
    return true;
}

static void defaults(struct cli *c)
{
    *c = (struct cli){.limit = 20, .older_than = -1};
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

/* The bundled model: a program in SOURCE/build/CONFIG has SOURCE's, an installed one in PREFIX/bin
 * has PREFIX's; else where this program was to be installed, last where it was built. */
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
    char *found = NULL;
    for (int i = 0; i < 4; i++) {
        char *config = xasprintf("%s/target/config.json", try[i]);
        if (!found && (i > 0 || built) && access(config, R_OK) == 0)
            found = try[i];
        else
            free(try[i]);
        free(config);
    }
    return found;
}

/* Checks flags against each other, and fills in the bundled models when none are named. */
static bool resolve_defaults(struct cli *c, struct err *e)
{
    struct engine_opts *o = &c->opt.engine;
    if (strcmp(o->device, "auto") != 0 && strcmp(o->device, "cpu") != 0 &&
        strcmp(o->device, "cuda") != 0)
        return err_set(e, ERR_USAGE, "--device cannot be \"%.80s\"; expected auto, cpu or cuda",
                       o->device);
    if (o->precision && strcmp(o->precision, "bf16") != 0 && strcmp(o->precision, "f32") != 0)
        return err_set(e, ERR_USAGE, "--precision cannot be \"%.80s\"; expected bf16 or f32",
                       o->precision);
    if (!models_quantize(NULL, NULL, &o->quant, e))
        return false;
    o->settings.verbose |= c->opt.verbose;
    if (c->opt.verbose)
        c->opt.given |= 1u << settings_index("verbose");
    o->server.header = c->header.v;
    o->server.n_header = c->header.n;
    c->model_given = o->model != NULL;
    c->draft_given = o->draft != NULL;
    c->bundled = o->server.url ? NULL : find_bundled();
    if (!c->bundled)
        return true;
    c->target = xasprintf("%s/target", c->bundled);
    c->draft = xasprintf("%s/draft", c->bundled);
    if (!c->model_given) {
        o->model = c->target;
        if (!c->draft_given)
            o->draft = c->draft;
    }
    return true;
}

int cli_main(int argc, char **argv)
{
    struct cli c;
    struct parse p = {0};
    struct err e = {0};
    int rc;
    defaults(&c);
    if (!parse_words(&p, &c, argc, argv, &e)) {
        rc = cli_fail(&e);
    } else if (p.version) {
        printf("aerie " AERIE_VERSION "\n");
        rc = 0;
    } else if (p.help) {
        rc = p.named ? help_command(p.cmd) : help_all();
    } else if ((!read_config(&c, p.cmd->bit, &c.config_error) && p.cmd->bit != IN_DOCTOR) ||
               !apply_flags(&c, &p, &e) || !check_words(p.cmd, c.n_word, &e) ||
               !resolve_defaults(&c, &e)) {
        rc = cli_fail(e.kind ? &e : &c.config_error);
    } else {
        rc = p.cmd->run(&c);
    }
    if (fflush(stdout) != 0 && errno != EPIPE) {
        err_set(&e, ERR_USAGE, "cannot write to standard output: %s", strerror(errno));
        rc = rc ? rc : cli_fail(&e);
    }
    free(p.seen);
    free(c.bundled);
    free(c.target);
    free(c.draft);
    free(c.config_path);
    buf_free(&c.config);
    return rc;
}
