/* hunt_log.c - see hunt_log.h. */
#include "repl/cli/hunt_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "repl/cli/hunt.h"
#include "repl/compare/facts.h"

struct hunt_log {
    struct history *h;
    char id[SESSION_ID];
    int turn;
};

static struct event event(const struct hunt_log *l, enum event_kind kind)
{
    struct event ev = {.kind = kind, .ns = clock_ns(), .turn = l->turn};
    memcpy(ev.session, l->id, sizeof ev.session);
    return ev;
}

static void post(struct hunt_log *l, struct event *ev)
{
    evq_put(history_queue(l->h), ev);
}

static void post_text(struct hunt_log *l, enum event_kind kind, const char *text)
{
    struct event ev = event(l, kind);
    ev.fault = ERR_MODEL;
    buf_str(&ev.text, text);
    post(l, &ev);
}

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
    l->h = h;
    return l;
}

void hunt_log_begin(struct hunt_log *l, const char *title)
{
    session_new_id(l->id);
    l->turn = 0;
    struct event ev = event(l, EV_SESSION);
    ev.beside = true;
    post(l, &ev);
    ev = event(l, EV_OP);
    ev.op = OP_OPEN;
    buf_str(&ev.text, "temperature=0\n");
    post(l, &ev);
    post_text(l, EV_NOTICE, title);
}

static void post_step(struct hunt_log *l, const struct ids_ask *a)
{
    struct event ev = event(l, EV_STEP);
    int n = a->reply.n;
    ev.step = 1;
    ev.facts = xcalloc((size_t)n, sizeof *ev.facts);
    ids_cat(&ev.tokens, a->reply.v, n);
    for (int i = 0; i < n; i++)
        ev.facts[i] = (struct token_fact){.logp = a->logp[i],
                                          .rival_logp = a->logp[i] - a->margin[i], .rival = -1};
    ev.rec = (struct step_rec){.kind = STEP_DECODE, .bonus = -1, .pos0 = a->prompt.n,
                               .margin = a->margin[n - 1], .source = STEP_PIECE};
    post(l, &ev);
}

static void post_end(struct hunt_log *l, const struct ids_ask *a)
{
    struct event ev = event(l, EV_TURN_END);
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
    post(l, &ev);
}

void hunt_log_ask(struct hunt_log *l, const char *note, const struct ids_ask *a)
{
    if (a->prompt.n == 0)
        return;
    l->turn++;
    struct event ev = event(l, EV_TURN_BEGIN);
    buf_str(&ev.text, note);
    ids_cat(&ev.tokens, a->prompt.v, a->prompt.n);
    ev.n_tokens = a->prompt.n;
    ev.n_reused = a->cached > 0 ? (int)a->cached : 0;
    post(l, &ev);
    if (a->done && a->reply.n)
        post_step(l, a);
    else if (a->why.kind)
        post_text(l, EV_FAULT, a->why.msg);
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
    return l->id;
}

bool hunt_log_close(struct hunt_log *l, struct err *e)
{
    enum { MS = 10000 };
    struct history_left left;
    if (!l)
        return true;
    bool ok = history_finish(l->h, MS, &left);
    ok = ok || history_join(l->h, &left);
    history_close(l->h);
    free(l);
    return ok || err_set(e, ERR_DB, "the last requests are not in the log: %.189s", left.why);
}
