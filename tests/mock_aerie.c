/* mock_aerie.c - the program over a backend without a model, without pages, without any optional
 * view: what tests/e2e/test_*_mock.sh run. It takes the place of repl/process/open.c at link time.
 *
 * A reply is a function of the conversation: its last message, how many messages there are, and a
 * digest of all of them, so that two replies are equal exactly when their contexts were. At a
 * temperature of 1 or more a reply never ends by itself. Words that begin a message ask for more:
 * "notice": an EV_NOTICE before the reply; "fault", "lost": the reply fails, for once or for good.
 * Replies come a word at a time, have no token ids, and no steps are reported. /draft ngram opens
 * the backend again, and Ctrl-C is pressed as it ends.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/remote/talk.h"
#include "repl/process/open.h"
#include "repl/repl.h"

static uint64_t mix_text(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = mix64(h ^ (unsigned char)*s);
    return mix64(h + 1);
}

/* The reply to the last message in the present context. */
static char *reply_text(const struct talk *t)
{
    const char *text = t->said[t->n_said - 1].user;
    uint64_t h = mix_text(7, t->system ? t->system : "");
    for (int i = 0; i < t->n_said - 1; i++)
        h = mix_text(mix_text(h, t->said[i].user), t->said[i].reply);
    int n = (int)strcspn(text, "\n");
    return xasprintf("You said %.*s; with it there are %d messages, and their digest is %08x.",
                     n < 200 ? n : 200, text, 2 * t->n_said - 1, (unsigned)mix_text(h, text));
}

static void publish(struct talk *t, const struct talk_reply *r, uint64_t first_ns)
{
    pthread_mutex_lock(&t->mu);
    t->view.generated++;
    t->view.length = talk_words(t) + r->n_tokens;
    t->view.tok_s = reply_tok_s(r->n_tokens, (clock_ns() - first_ns) / 1000);
    pthread_mutex_unlock(&t->mu);
}

static enum stop_reason stream(struct talk *t, struct talk_reply *r, const char *reply,
                               bool endless)
{
    uint64_t first = clock_ns();
    for (const char *at = reply;;) {
        size_t n = strcspn(at, " ");
        n += at[n] == ' ';
        if (stop_asked(&t->stop))
            return STOP_CANCEL;
        if (t->view.settings.max_tokens && r->n_tokens == t->view.settings.max_tokens)
            return STOP_MAX;
        if (n == 0 && !endless)
            return STOP_END;
        talk_text(t, r, 0, n ? at : "more ", n ? n : 5);
        r->n_tokens++;
        r->us_decode = (clock_ns() - first) / 1000;
        publish(t, r, first);
        usleep(200);
        at += n;
        if (endless)
            usleep(3000);
    }
}

static void answer(struct talk *t, bool regen, struct talk_reply *out)
{
    const char *text = t->said[t->n_said - 1].user;
    bool fault = strncmp(text, "fault", 5) == 0, lost = strncmp(text, "lost", 4) == 0;
    char *reply = reply_text(t);
    struct ids none = {0};
    talk_turn_begins(t, regen, &none, talk_words(t));
    if (strncmp(text, "notice", 6) == 0)
        talk_notice(t, "the server is busy; waiting");
    out->why = fault || lost
                   ? talk_fault(t, lost ? "the server is gone" : "the server answered 500", lost)
                   : stream(t, out, reply, t->view.settings.temperature >= 1);
    free(reply);
}

/* Why the mock refuses a request; NULL: it does not. */
static const char *refuses(struct talk *t, const struct request *rq)
{
    (void)t;
    switch (rq->kind) {
    case RQ_SAY: case RQ_REGEN: case RQ_UNDO: case RQ_FORGET: case RQ_SYSTEM: case RQ_NEW:
    case RQ_RESUME: case RQ_FORK: return NULL;
    case RQ_SET:
        return strncmp(rq->text, "draft.nodes=", 12) ? NULL
                                                     : "this backend has no setting draft.nodes";
    case RQ_CALIBRATE: return "this backend has no draft head to calibrate";
    default: return "this backend computes no batches";
    }
}

static void closed(struct talk *t)
{
    (void)t;
}

struct backend *open_backend(const struct engine_opts *o, struct err *e)
{
    static const struct talk_hooks hooks = {.refuses = refuses, .answer = answer, .closed = closed};
    struct talk *t = xcalloc(1, sizeof *t);
    t->hooks = &hooks;
    t->base = (struct backend){.lacks = {
        [VIEW_ACCEPT] = "this backend does not tell which drafted tokens were accepted",
        [VIEW_STEPS] = "this backend does not tell its steps",
        [VIEW_TREES] = "this backend does not tell its draft trees",
        [VIEW_POOLS] = "this backend does not tell how full its pools are",
        [VIEW_SERVED] = "this backend reports no times of its own",
        [VIEW_GAUGES] = "this backend has no metrics",
        [VIEW_PAGES] = "this backend does not tell which pages hold a token",
        [VIEW_PLAN] = "this backend does not tell its plans",
        [VIEW_CHECK] = "this backend has no checker",
        [VIEW_FAULTS] = "this backend has no historical faults",
        [VIEW_DEBUG] = "this backend cannot pause its turns",
        [VIEW_PROBE] = "this backend cannot run a step with taps",
        [VIEW_JOBS] = "this backend takes no jobs",
        [VIEW_BLOCKS] = "this backend sends no KV events",
    }};
    t->view.settings = o->settings;
    t->base.info.model_dir = getenv("MOCK_MODEL"); /* for /draft */
    if (talk_open(t, o->log, e))
        return &t->base;
    free(t);
    return NULL;
}

enum reopened reopen_backend(struct backend **b, const struct engine_opts *now,
                             const struct engine_opts *o, struct err *e)
{
    (void)now;
    struct backend *other = o->draft && !strcmp(o->draft, "ngram") ? open_backend(o, e) : NULL;
    if (!other) {
        err_set(e, ERR_USAGE, "this backend has one model and no drafter");
        return REOPEN_KEPT;
    }
    backend_close(*b);
    *b = other;
    raise(SIGINT); /* a Ctrl-C that comes too late to stop the opening */
    return REOPEN_DONE;
}

const char *kv_events_about(bool *built)
{
    *built = false;
    return "this backend reads no KV events";
}

void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    tell(arg, true, "mock");
}

bool look_at_server(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                    void *arg, struct err *e)
{
    (void)o, (void)tell, (void)arg;
    return err_set(e, ERR_MODEL, "the mock knows no servers");
}
