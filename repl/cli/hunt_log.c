/* hunt_log.c - the requests of `aerie probe` in the session log: see hunt.h. */
#include "repl/cli/hunt.h"

#include <math.h>

#include "engine/backend.h"
#include "repl/cli/session_events.h"
#include "repl/compare/facts.h"

struct hunt_log {
    struct session_events to;
};

struct hunt_log *hunt_log_open(const char *path, struct upkeep *u, struct err *e)
{
    char server[128], *space;
    snprintf(server, sizeof server, "%s", upkeep_server(u));
    space = strchr(server, ' ');
    if (space)
        *space++ = '\0';
    struct history_about about = {.version = AERIE_VERSION, .device = "", .flags = facts_build(),
                                  .model_dir = upkeep_model(u), .model_sha = "", .draft_sha = "",
                                  .tokenizer_sha = "", .config = "backend=remote\n",
                                  .server = server, .server_version = space ? space : "",
                                  .server_url = upkeep_url(u), .server_facts = "{}"};
    struct history *h = history_open(path, LOG_TREE, &about, e);
    if (!h)
        return NULL;
    struct hunt_log *l = xcalloc(1, sizeof *l);
    l->to.log = h;
    return l;
}

void hunt_log_begin(struct hunt_log *l, const char *title)
{
    session_events_begin(&l->to);
    struct event ev = session_event(&l->to, EV_SESSION);
    ev.beside = true;
    session_put(&l->to, &ev);
    ev = session_event(&l->to, EV_OP);
    ev.op = OP_OPEN;
    buf_str(&ev.text, "temperature=0\n");
    session_put(&l->to, &ev);
    session_put_text(&l->to, EV_NOTICE, OP_OPEN, title);
}

static void post_step(struct hunt_log *l, const struct ids_ask *a)
{
    struct event ev = session_event(&l->to, EV_STEP);
    int n = a->reply.n;
    ev.step = 1;
    ev.facts = xcalloc((size_t)n, sizeof *ev.facts);
    ids_cat(&ev.tokens, a->reply.v, n);
    for (int i = 0; i < n; i++)
        ev.facts[i] = (struct token_fact){.logp = a->logp[i],
                                          .rival_logp = a->logp[i] - a->margin[i], .rival = -1};
    ev.rec = (struct step_rec){.kind = STEP_DECODE, .bonus = -1, .pos0 = a->prompt.n,
                               .margin = a->margin[n - 1], .source = STEP_PIECE};
    session_put(&l->to, &ev);
}

static void post_end(struct hunt_log *l, const struct ids_ask *a)
{
    struct event ev = session_event(&l->to, EV_TURN_END);
    ev.reason = a->done ? STOP_MAX : a->cancelled ? STOP_CANCEL : STOP_FAULT;
    ev.n_steps = a->done;
    ev.us_decode = a->ns / 1000;
    ev.n_drafted = a->drafted > 0 ? (int)a->drafted : 0;
    ev.n_accepted = a->n_accepted > 0 ? (int)a->n_accepted : 0;
    ev.n_tokens = a->reply.n;
    ev.served = served_new();
    ev.served->cached = a->cached;
    ev.served->drafted = a->drafted;
    ev.served->accepted = a->n_accepted;
    ev.served->prompt = a->prompt.n;
    ev.served->generated = a->reply.n;
    ev.served->prompt_ids = true;
    ev.served->reply_ids = a->done;
    buf_str(&ev.text, "");
    ids_cat(&ev.tokens, a->reply.v, a->reply.n);
    session_put(&l->to, &ev);
}

void hunt_log_ask(struct hunt_log *l, const char *note, const struct ids_ask *a)
{
    if (a->prompt.n == 0)
        return;
    l->to.turn++;
    struct event ev = session_event(&l->to, EV_TURN_BEGIN);
    buf_str(&ev.text, note);
    ids_cat(&ev.tokens, a->prompt.v, a->prompt.n);
    ev.n_tokens = a->prompt.n;
    ev.n_reused = a->cached > 0 ? (int)a->cached : 0;
    session_put(&l->to, &ev);
    if (a->done && a->reply.n)
        post_step(l, a);
    else if (a->why.kind)
        session_put_text(&l->to, EV_FAULT, OP_OPEN, a->why.msg);
    post_end(l, a);
}

void hunt_log_case(struct hunt_log *l, const struct hunt_case *c, const struct ids_ask *a)
{
    char note[120];
    for (int i = 0; i < c->n; i++) {
        snprintf(note, sizeof note, "%s: request %d of %d%s%s", c->kind, i + 1, c->n,
                 i && c->ask[i].group == c->ask[i - 1].group ? ", beside the one before" : "",
                 c->ask[i].judged ? ", judged" : "");
        hunt_log_ask(l, note, &a[i]);
    }
}

const char *hunt_log_session(const struct hunt_log *l)
{
    return l->to.id;
}

bool hunt_log_close(struct hunt_log *l, struct err *e)
{
    enum { MS = 10000 };
    struct history_left left;
    if (!l)
        return true;
    bool ok = history_finish(l->to.log, MS, &left);
    ok = ok || history_join(l->to.log, &left);
    history_close(l->to.log);
    free(l);
    return ok || err_set(e, ERR_DB, "the last requests are not in the log: %.189s", left.why);
}
