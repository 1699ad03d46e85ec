/* flags.h - the tables of subcommands and flags: a flag is a row of options (engine/settings.h), or
 * names one of engine/opts.h, and the commands that take it. --help, the manual's check and the
 * completions are written from these tables. */
#pragma once

#include "repl/cli/cli.h"

enum {
    IN_CHAT = 1, IN_RUN = 2, IN_LOGS = 4, IN_SHOW = 8, IN_REPLAY = 16, IN_EXPORT = 32, IN_DB = 64,
    IN_DOCTOR = 128, IN_TOKENIZE = 256, IN_GOLDEN = 512, IN_HELP = 1024,
    IN_BUGS = 2048, IN_BENCH = 4096, IN_PACK = 1 << 20, IN_PARITY = 8192,
    IN_DIFF = 1 << 21,
    IN_SERVE = 1 << 23,
    IN_IMPORT = 1 << 25,
    IN_FIT = 1 << 26,
    IN_PULL = 1 << 27,
    IN_KL = 1 << 22,
    IN_PROBE = 1 << 24,
    IN_CHECK = 1 << 28,
    IN_DUMP = 1 << 29,
    IN_TRIAGE = 1 << 30,
    IN_STATS = 1 << 14,
    IN_ALL = 16383 | IN_PACK | IN_DIFF | IN_SERVE | IN_IMPORT | IN_FIT | IN_PULL | IN_KL |
             IN_PROBE | IN_CHECK | IN_DUMP | IN_TRIAGE | IN_STATS,
    IN_TALK = IN_CHAT | IN_RUN,
    IN_ENGINE = IN_TALK | IN_PARITY | IN_SERVE | IN_KL, /* takes everything that decides the bits of
                                                   a reply */
    IN_MODEL = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_DOCTOR | IN_PACK | IN_TRIAGE,
    IN_LOG = IN_TALK | IN_SERVE | IN_LOGS | IN_SHOW | IN_REPLAY | IN_EXPORT | IN_DB | IN_DOCTOR |
             IN_PACK | IN_DIFF | IN_IMPORT | IN_PROBE | IN_TRIAGE | IN_STATS,
};

struct command {
    const char *name, *args, *help;
    int bit;
    cli_fn *run;
    int min, max; /* words */
    const char *title; /* of the list of words that the command takes */
    bool (*word)(int i, struct help_word *w); /* the i-th of them; NULL: they are not listed */
};

/* What a flag does. */
enum flag_act {
    F_VALUE,  /* stores its value at row.at of struct cli; without argument: true */
    F_ENGINE, /* an option of opening (engine/opts.h), whose row this is; row.name alone is given */
    F_CONST,  /* the int at row.at becomes row.usual */
    F_SET,    /* a setting: `set` is its name, and "name=value" when the flag takes no argument */
    F_PARAM,  /* "name=value" */
    F_TEXTS,  /* struct texts at row.at: one more */
    F_BUG,    /* a historical fault, on from the start */
    F_HELP, F_VERSION,
};

struct flag {
    struct option row; /* range: as --help shows its argument; "": it takes none */
    int where;         /* commands that take it */
    char letter;
    enum flag_act act;
    const char *set;   /* of F_VALUE: words that completion offers, beside those of the range */
    const char *group; /* the heading that begins with it */
};
extern const struct flag flags[];
extern const int n_flags;

/* The flag of a letter or, if that is 0, of n bytes of a name, among those of `where`; NULL:
 * none. */
const struct flag *find_flag(const char *name, size_t n, char letter, int where);
/* The row of a flag's value, its range and help. */
const struct option *row_of(const struct flag *f);
/* What --help shows as the flag's argument; NULL: it takes none. */
const char *arg_of(const struct flag *f);

/* complete.c: prints what completes the last of n words after "aerie". The exit code. */
int cli_complete(const struct command *commands, int n_commands, int n, char **word);

/* ---- cli.c ---- */

/* The kinds of command lines. */
enum cli_task { CLI_RUN, CLI_HELP, CLI_VERSION };
/* Reads words and flags, and for CLI_RUN the config file, into *c. *cmd: the command that is to
 * run, or to be explained; NULL: CLI_HELP of no command. False and *e (ERR_USAGE). In either case
 * the caller frees what c owns with cli_free(); argv, which is reordered, must outlive c. */
bool cli_read(struct cli *c, int argc, char **argv, const struct command **cmd, enum cli_task *task,
              struct err *e);
void cli_free(struct cli *c);

/* Whether a command (its bit), whose words are there, asks a server instead of computing here: -m
 * then is the server's name of a model. */
bool cli_asks_server(const struct cli *c, int command);
