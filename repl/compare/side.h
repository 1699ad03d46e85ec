/* side.h - runs one side of a comparison again and keeps what it computed as a trace. Main thread
 * only. */
#pragma once

#include "engine/probe.h"
#include "repl/compare/rerun.h"
#include "repl/compare/trace.h"

/* One side: a session, and how it is run again. */
struct diff_side {
    const struct script *script;
    struct rerun_how how; /* without turn, step, hold */
    /* NULL members are not called. `opened` as in struct rerun_calls. */
    bool (*opened)(void *arg, struct backend *b, const char *about, const char *now, struct err *e);
    void (*turn)(void *arg, const struct act *a); /* a turn is about to be sent */
    /* A turn ended: its results are the latest of the run's trace. False: the run ends. */
    bool (*ended)(void *arg, const struct act *a, const struct event *ev);
    void *arg;
};

/* What one more run of a side is to do. */
struct run_ask {
    int turn, step;             /* the run ends there; 0, 0: at the end */
    bool probe;                 /* with taps at this step, ... */
    int row, layer;             /* ... see struct probe_ask */
    bool strict;                /* the checker checks everything */
    bool plain;                 /* without drafting */
    const struct trace *forced; /* the replies are given these tokens; NULL: the side chooses */
    float noise;                /* size of the noise (noise_backend.h); 0: none */
    uint64_t seed;
};

/* What the run brought. */
struct run_facts {
    struct trace trace;
    struct buf about;     /* facts of its engine */
    struct probe *probe;  /* NULL: none */
    char no_probe[160];   /* why */
    uint64_t checks;      /* plans checked */
    char rule[256];       /* the violated rule that ended it, which the log does not have in that
                             turn; "": none */
    struct violation at;  /* the same as fields */
    int rule_turn, rule_step;
};

/* Runs a side again. False and *e: it cannot be run here. The caller ends with run_facts_free(). */
bool side_run(const struct diff_side *s, const struct run_ask *ask, struct run_facts *f,
              struct err *e);
void run_facts_free(struct run_facts *f);
