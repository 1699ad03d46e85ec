/* settings.h - the settings that /set, -p and the config file change, and the rows that options are
 * declared by.
 *
 * An option of the engine is one row: its name, kind, range, default, help, place in a struct, what
 * another value may change in a session's results, and how the log names it. A setting is a row of
 * settings.c and a field of struct settings; /set, -p, the config file, the log, a resumed session
 * and --help read the rows. An option of opening is a row of opts.c and a field of struct
 * engine_opts (opts.h), which stays as it is while the engine is open; --with, the key of an open
 * engine, the facts in the log, their reading for a replay and --help read those rows.
 *
 * Both have the same rows, so one function reads a value (option_read) and one prints it
 * (option_print). Nothing else lists options: whoever needs all of them walks the rows, and whoever
 * treats one of them in its own way uses the field.
 *
 * Plain data: any thread may hold its own copy; the engine takes a new one between turns. */
#pragma once

#include "kernels/base.h"

enum check_level { CHECK_OFF, CHECK_ON, CHECK_STRICT };
const char *check_level_name(enum check_level l); /* "off", "on", "strict" */

/* What to do if a message and the conversation before it do not fit the context. */
enum forget {
    FORGET_AUTO,   /* ask if engine_opts.attended, else oldest; engine_open() resolves it */
    FORGET_ASK,    /* the message is refused and nothing changes, until /forget lets turns leave */
    FORGET_OLDEST, /* the oldest turns leave, and a notice says so before */
    FORGET_NEVER,  /* the message is refused */
};

/* How much a reply should reason, where the model's chat template has a variable for that. */
enum effort { EFFORT_AUTO, EFFORT_NONE, EFFORT_LOW, EFFORT_MEDIUM, EFFORT_HIGH };
/* "none", "low", ... as APIs call them; EFFORT_AUTO: NULL, the template's own default holds. */
const char *effort_name(enum effort f);

/* Added to the logits of single tokens before a token is chosen; ids are distinct. */
enum { MOST_BIAS = 300 };
struct logit_bias {
    int n;
    int32_t id[MOST_BIAS];
    float by[MOST_BIAS];
};

struct settings {
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    double top_p, min_p;
    /* What struct penalties says, in doubles. */
    double presence_penalty, frequency_penalty, repetition_penalty;
    struct logit_bias logit_bias;
    int64_t seed;
    int max_tokens; /* of one reply; 0: up to the context's end */
    bool spec;      /* draft at all */
    int steps;      /* greatest depth of the draft tree */
    int topk;       /* children kept a level */
    int nodes;      /* nodes verified at once, root included */
    int draft_window; /* newest positions that a draft model with cells of its own sees; 0: all */
    bool auto_shape; /* a conversation's steps choose their shape from measurements instead */
    int chunk;      /* prompt tokens a prefill pass; 0: what suits the device, which an engine
                       then writes here */
    int check;      /* enum check_level */
    int forget;     /* enum forget */
    int ring;       /* megabytes of page tables of past steps (engine/past/page_history.h) */
    int gauge_ms;   /* milliseconds between two readings of a server's metrics; 0: they are not
                       read */
    bool graph;     /* record the cycle once and replay it, where the device can */
    bool verbose;   /* a statistics line after each reply */
    int effort;     /* enum effort */
    bool think;     /* show the reasoning channel */
};

/* What another value of an option, or of another fact of a run, may change in the results by its
 * nature. 0: no bit, so that runs which differ in it must be equal. */
enum {
    MAY_NUMBER = 1,  /* which pages hold a position */
    MAY_STEP = 2,    /* how the work is cut into steps: drafted trees, prompt chunks */
    MAY_ROUND = 4,   /* the last bits of every number */
    MAY_LOGITS = 8,  /* the numbers: other weights */
    MAY_SAMPLE = 16, /* which token is chosen from equal logits */
    MAY_PROMPT = 32, /* the tokens of a message */
    MAY_END = 64,    /* where a reply ends */
    MAY_FAULT = 128, /* anything: a historical fault is on in one run only */
    MAY_BUILD = 256, /* the last bits of every number; builds and machines usually agree, so such
                        runs are compared bit by bit nevertheless */
};

enum option_kind {
    OPT_REAL,  /* double, min .. max */
    OPT_INT,   /* int, min .. max */
    OPT_POW2,  /* the same, and a power of two */
    OPT_I64,   /* int64_t, min .. max */
    OPT_BOOL,  /* bool; on or off, or other words for them */
    OPT_FLAG,  /* bool; on or off; the log has 1 or 0 */
    OPT_WORD,  /* int: which of the words of `range`, from 0 */
    OPT_NAME,  /* const char *: one of the words of `range` */
    OPT_TEXT,  /* const char *: a path or a name */
    OPT_PART,  /* int, min .. max: a part of the draft's shape (struct settings only) */
    OPT_SHAPE, /* all parts of the draft's shape, or auto (struct settings only) */
    OPT_BIAS,  /* struct logit_bias: "ID:BIAS,ID:BIAS", each bias min .. max; empty: none */
};

struct option {
    const char *name;  /* "temperature", "draft.steps"; of opening: "page_size" */
    const char *range; /* "0 .. 100", "on | off", "auto|cpu|cuda", "N": for help and for errors */
    const char *help;
    enum option_kind kind;
    size_t at;       /* of the field in struct settings or struct engine_opts */
    double min, max; /* numbers only; below 2^53, so that comparing in doubles is exact */
    double usual;    /* settings: the default of a number, of a bool, of a word's index */
    unsigned may;    /* MAY_*: what another value may change */
    /* settings */
    bool what_if; /* decides what a step computes: /what-if changes it */
    enum { HERE_ONLY, ANY_SERVER, NO_OPENAI } served; /* which servers have it: none, all, or all
                                                         but plain OpenAI servers */
    /* options of opening */
    bool change;       /* --with NAME=VALUE may change it */
    int line;          /* its place among the facts of a run in the log; 0: not among them */
    const char *log;   /* its name there; NULL: `name` */
    const char *unset; /* its value there if it was not given; NULL: then it has no line */
    bool follows; /* its value follows from other options or from the clock: a resumed session is
                     not told that it differs */
};

/* Which of the words of "a|b|c" or "a | b | c" the text is, from 0; -1: none. */
int word_index(const char *words, const char *text);
/* Writes the value into the struct of the row's field. False: the text is no value of the option;
 * nothing changed. A text is not copied. */
bool option_read(const struct option *o, void *in, const char *text);
/* Appends the value as text that option_read() takes back; a text that is NULL is empty. */
void option_print(const struct option *o, const void *in, struct buf *out);

/* What changes the logits before a token is chosen, in vLLM's order: the bias is added; the logit
 * of a token of the prompt or the reply is divided by `repetition` if positive, else multiplied by
 * it; for a token that the reply has n > 0 times, presence + n * frequency is subtracted. */
struct penalties {
    float presence, frequency; /* 0: none */
    float repetition;          /* > 0; 1: none, and 0, too */
    struct logit_bias bias;
};
bool penalties_any(const struct penalties *p); /* whether a logit changes at all */
void settings_penalties(const struct settings *s, struct penalties *out);

void settings_init(struct settings *s); /* the program's defaults */
int settings_count(void);
const struct option *settings_at(int i);
int settings_index(const char *name); /* -1: none is called that; "draft" is "spec" */
const struct option *settings_named(const char *name); /* exactly; NULL: none */
/* Sets one value from text. On a bad name or value *s is untouched and *e says what was
 * expected. */
bool settings_set(struct settings *s, const char *name, const char *value, struct err *e);
/* Whether the values fit a model with so many tokens; 0: not known, all fit. False: logit_bias
 * names a token beyond them, and *e says which. */
bool settings_fit(const struct settings *s, int vocab, struct err *e);
/* The value as text that settings_set() takes back; false for an unknown name. */
bool settings_get(const struct settings *s, const char *name, struct buf *out);
/* All values as "name=value" lines in table order: for the log, and read back by settings_parse. */
void settings_print(const struct settings *s, struct buf *out);
bool settings_parse(struct settings *s, const char *lines, struct err *e);
