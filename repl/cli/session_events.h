/* session_events.h - a session that a command writes into a log itself: what it imports, or what it
 * asked of a server. One thread. */
#pragma once

#include "history/history.h"

struct session_events {
    struct history *log;
    char id[SESSION_ID];
    int turn; /* of the events */
};

/* Begins a session of its own in the same log: a new id, turn 0. Nothing is posted yet. */
void session_events_begin(struct session_events *s);
/* An event of the session's turn, now. */
struct event session_event(const struct session_events *s, enum event_kind kind);
/* Gives the event to the log, which takes it over. */
void session_put(struct session_events *s, struct event *ev);
/* Of a text (NULL: an empty one), which is a fault of the model where it is a fault. */
void session_put_text(struct session_events *s, enum event_kind kind, enum op_kind op,
                      const char *text);
