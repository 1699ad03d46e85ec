/* settings.h - the settings that /set, -p and the config file change, as one table of names, ranges
 * and help.
 *
 * Plain data: any thread may hold its own copy; the engine takes a new one between turns. */
#ifndef AERIE_SETTINGS_H
#define AERIE_SETTINGS_H

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

struct settings {
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    double top_p, min_p;
    int64_t seed;
    int max_tokens; /* of one reply; 0: up to the context's end */
    bool spec;      /* draft at all */
    int steps;      /* greatest depth of the draft tree */
    int topk;       /* children kept a level */
    int nodes;      /* nodes verified at once, root included */
    bool auto_shape; /* a conversation's steps choose their shape from measurements instead */
    int chunk;      /* prompt tokens a prefill pass; 0: what suits the device, which an engine
                       then writes here */
    int check;      /* enum check_level */
    int forget;     /* enum forget */
    int ring;       /* megabytes of page tables of past steps (engine/past/page_history.h) */
    int gauge_ms;   /* milliseconds between two readings of a server's metrics; 0: they are not read */
    bool graph;     /* record the cycle once and replay it, where the device can */
    bool verbose;   /* a statistics line after each reply */
    bool think;     /* show the reasoning channel */
};

struct setting {
    const char *name;  /* "temperature", "draft.steps" */
    const char *range; /* "0 .. 100", "on | off": for help and for errors */
    const char *help;
};

void settings_init(struct settings *s); /* the program's defaults */
int settings_count(void);
const struct setting *settings_at(int i);
int settings_index(const char *name); /* -1: none is called that */
/* Sets one value from text. On a bad name or value *s is untouched and *e says what was
 * expected. */
bool settings_set(struct settings *s, const char *name, const char *value, struct err *e);
/* The value as text that settings_set() takes back; false for an unknown name. */
bool settings_get(const struct settings *s, const char *name, struct buf *out);
/* All values as "name=value" lines in table order: for the log, and read back by settings_parse. */
void settings_print(const struct settings *s, struct buf *out);
bool settings_parse(struct settings *s, const char *lines, struct err *e);

#endif
