/* session_events.c - see session_events.h. */
#include "repl/cli/session_events.h"

void session_events_begin(struct session_events *s)
{
    session_new_id(s->id);
    s->turn = 0;
}

struct event session_event(const struct session_events *s, enum event_kind kind)
{
    struct event ev = {.kind = kind, .ns = clock_ns(), .turn = s->turn};
    memcpy(ev.session, s->id, sizeof ev.session);
    return ev;
}

void session_put(struct session_events *s, struct event *ev)
{
    evq_put(history_queue(s->log), ev);
}

void session_put_text(struct session_events *s, enum event_kind kind, enum op_kind op,
                      const char *text)
{
    struct event ev = session_event(s, kind);
    ev.op = op;
    ev.fault = ERR_MODEL;
    buf_str(&ev.text, text ? text : "");
    session_put(s, &ev);
}
