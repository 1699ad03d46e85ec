/* script.h - a saved session as the list of all requests that its engine carried out.
 *
 * script.c reads the list from the log, through the parents of a fork; rerun.h sends it to an
 * engine. Main thread only. */
#pragma once

#include "history/history.h"

/* A user message with its reply, or an operation. */
struct act {
    bool is_turn;
    char session[SESSION_ID]; /* the session in whose log it is */
    const char *about;        /* facts of its run; owned by the script */
    enum op_kind op; /* operations: as struct op_row */
    int turn;
    char *text;
    struct ids turns;
    struct forced_token forced;
    struct turn_row user, reply; /* reply.n == 0, stop == STOP_OPEN: there is none;
                                  text and tokens are complete, settings and snippets are left
                                  out */
    struct step_row *step;
    int n_step;
    char *fault; /* the violated rule or failure that stopped the turn; NULL: none did */
    int rule;    /* which rule; 0: none */
    int fault_step; /* the step that failed: reply.n_steps, or the one after it */
};

struct script {
    struct act *act; /* in the order they happened; without a turn that another process writes
                        now */
    int n;
    char **about; /* owned; the facts of each run that opened an engine */
    int n_about;
    bool no_text; /* a pack without text: messages have made-up texts, replies none */
    bool no_ids; /* a pack without ids: the session can be viewed, not computed again */
    bool by_ids; /* prompts are given to the engine as the logged ids, not as text: for packs
                    without text, and for requests to `aerie serve` */
    bool served; /* replies to clients, with other pages and chunks than those of a conversation */
};

/* Reads a session and the sessions that it was forked from. False and *e (ERR_DB): the log is
 * incomplete. */
bool script_read(struct script *s, struct hdb *d, const char *session, struct err *e);
void script_free(struct script *s);
void act_free(struct act *a); /* what it owns */
/* Whether the turn was cut short by a cancel, its device or a crash: its end cannot be compared. */
bool act_cut_short(const struct act *a);
/* Whether EV_FAULT names the rule whose violation stopped the turn in the log; its step may be
 * another. */
bool act_has_fault(const struct act *a, const struct event *ev);
/* Whether the message did not fit the context, so that the turn has no prompt. */
bool act_refused(const struct act *a);
