/* parts.h - what the files of recorded/ share: the recording in memory.
 *
 * Steps are numbered from 0 in the order they were computed, which is that of their addresses,
 * because turn numbers only grow. read.c fills the arrays; nothing changes them afterwards but
 * `breaks`, the present, and the cached fold. */
#pragma once

#include "engine/past/page_history.h"
#include "engine/thread/breaks.h"
#include "engine/thread/contexts.h"
#include "repl/recorded/recorded.h"
#include "repl/compare/script.h"

struct rec_step {
    struct step_rec rec;
    int turn, step;
    int token, n_token; /* in recorded.token */
    int node, n_node;   /* in recorded.node; 0: the step drafted nothing */
    size_t pages;       /* where its packed page events begin in recorded.pages; they end where
                           those of the next step begin */
    struct pages_held held;
    uint32_t window;    /* pages that left the window in this step */
    uint8_t deepest;    /* depth of its tree */
    bool paged;         /* the page table after this step is known */
    bool has_facts;
    struct tops *tops; /* owned; NULL: none are logged */
};

/* A whole page table, from which the tables of the next steps are computed. */
struct rec_key {
    int step; /* the state after this step */
    size_t at, n; /* packed, in recorded.keys */
};

/* The facts of a turn that its events and the chat's view need. */
struct rec_turn {
    int n;
    int first, n_step; /* its steps */
    int n_prompt, n_reused, n_drafted, n_accepted;
    struct ids reply;
    bool regen;
    struct reuse reuse;
    struct served *served; /* owned; NULL: computed here */
    int64_t seed;
    uint64_t us_prefill, us_decode;
    char *user, *text, *settings;
    enum stop_reason stop; /* STOP_CRASHED also if it was running when the log was read */
    char *fault;                         /* that stopped it; NULL: none did */
    int fault_step, rule;                /* rule: which it violated, 0: none */
    size_t user_n, text_n;
};

/* A turn or an operation, in the order in which they happened. */
struct rec_act {
    int turn; /* index of recorded.turn; -1: an operation */
    enum op_kind op;
    int op_turn;
    char *op_text;
    struct ids op_turns;
    struct forced_token op_forced;
};

struct recorded {
    struct backend base; /* first */
    char *about; /* "name=value" lines of the session's latest run */
    char *strings[16]; /* of base.info */
    int n_string;
    char session[SESSION_ID];
    char *name;
    bool file;

    struct rec_act *act;
    int n_act;
    struct rec_turn *turn;
    int n_turn;
    struct rec_step *step; /* (n_step), and one more whose `pages` is the end of the last */
    int n_step;
    struct ids token;
    struct token_fact *fact; /* (token.n) */
    struct tree_node *node;
    int n_node;
    struct buf pages, keys;
    struct rec_key *key;
    int n_key;
    bool any_pages;
    struct contexts contexts;
    struct buf texts;    /* of tokens, joined */
    struct rec_text { int32_t id; uint32_t n; size_t at; } *text; /* (n_text) ids ascend */
    int n_text;

    /* the present: after step number `at` (-1: before all), in turn at_turn */
    int at, at_turn, at_step; /* at_step 0: the beginning of the turn */
    struct page_history fold; /* the page table after step number fold_at; -1: of no step */
    int fold_at;
    struct chat_view chat; /* cached: at the present */
    bool counted;
    struct breaks breaks;
    uint64_t pauses;
    enum run_until until;
    char why[400];
    bool broke; /* a breakpoint or a watch asked for the pause */

    /* events: the next to be returned are those of act next_act, from part next_part on */
    int next_act, next_part;
    bool pause_waits;
};

/* read.c: fills everything up to the present. False and *e: the log is damaged; what was
 * filled is freed by recorded_free(). */
bool recorded_read(struct recorded *r, struct hdb *d, const char *session, struct err *e);
void recorded_free(struct recorded *r); /* what recorded_read() has filled */

/* Number of the step with this address; -1: there is none. */
int recorded_find(const struct recorded *r, int turn, int step);
/* The turn with this number; NULL: there is none. */
const struct rec_turn *recorded_turn(const struct recorded *r, int n);
/* The tree of a step; n == 0: it drafted nothing. */
void recorded_tree(const struct recorded *r, const struct rec_step *s, struct tree *t);
/* The pages after a step; NULL: they were not recorded. Valid until the next call. */
const struct page_history *recorded_fold(struct recorded *r, int step);
/* Moves the present. */
void recorded_place(struct recorded *r, int at, int turn, int step);
extern const struct backend_ops recorded_ops; /* recorded.c */
/* views.c, served.c, debug.c: the groups. */
void recorded_views(struct recorded *r);
void recorded_served(struct recorded *r); /* after recorded_views() */
extern const struct debug_ops recorded_debug;
/* Wakes the face, which then takes EV_PAUSE. */
void recorded_pause(struct recorded *r);
