/* trace.h - the results of one run of a session, turn by turn and step by step: from the log, or
 * from the events of an engine that runs the session again. Main thread only. */
#pragma once

#include "engine/backend.h"
#include "repl/compare/script.h"

struct trace_turn {
    int n;                  /* the turn's number */
    char *user, *text;      /* the message, and the reply's text */
    bool no_text, no_ids;   /* of a pack without text: these are "", and prompt and reply are all
                               that is known of them; of one without ids these are not, either */
    struct ids prompt, reply;
    int64_t n_prompt, n_reply; /* tokens as a server counted them; -1: not reported */
    char *settings;         /* "name=value" lines in force, faults included */
    char *about;            /* facts of the run that computed it */
    enum stop_reason stop;  /* STOP_OPEN: the end is not known */
    bool forced;            /* the reply's tokens were given: replies are compared by position,
                               their ends not at all */
    int n_reused;           /* tokens of the prompt */
    bool evicted;           /* not more of them, because a checkpoint was dropped for its pages */
    bool cut;               /* the turn was cut short: its end cannot be compared */
    struct step_row *step;  /* (n_step) owned */
    int n_step;
    char fault[256];        /* the violated rule or failure that ended the turn; "": none */
    int rule;               /* of `fault`; 0: it is no violated rule */
    int fault_step;
};

struct trace {
    struct trace_turn *turn;
    int n;
};

/* Reads the turns from the log, without a parent's turns after the fork. */
void trace_script(struct trace *t, const struct script *s);
/* An operation of the script: a parent's turns after the fork are no part of the session. */
void trace_op(struct trace *t, const struct act *a);
/* Adds a turn of the log. */
void trace_act(struct trace *t, const struct act *a);
/* Adds a turn, whose results trace_event() then records. */
void trace_begin(struct trace *t, int n, const char *settings, const char *about);
/* Records EV_TURN_BEGIN, EV_STEP, EV_FAULT and EV_TURN_END of the latest turn. */
void trace_event(struct trace *t, const struct event *ev);
void trace_clear(struct trace *t);
void trace_free(struct trace *t);

/* The step (index into turn->step) that emitted token i of the reply, and the token's index among
 * those of the step; -1: none did. */
int trace_step_of(const struct trace_turn *t, int i, int *at);
/* That step, or NULL; t may be NULL. */
const struct step_row *trace_token(const struct trace_turn *t, int i, int *at);
/* What the logits said of the token; NULL: not known. *step (may be NULL): the step's number, 0:
 * none. */
const struct token_fact *trace_fact(const struct trace_turn *t, int i, int *step);
/* Tokens that the steps emitted. */
int trace_emitted(const struct trace_turn *t);
/* Adds the drafted and accepted tokens of all steps. */
void trace_drafts(const struct trace *t, struct draft_sums *s);
/* Whether any turn was computed by a server. */
bool trace_served(const struct trace *t);
