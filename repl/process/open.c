/* open.c - see open.h. The only file of repl/ that includes the local engine (engine.h) and the
 * remote one: the others use backend.h alone. tests/mock_aerie.c replaces this file. */
#include "repl/process/open.h"

#include "engine/engine.h"
#include "engine/remote/remote.h"
#include "repl/process/isolate.h"

/* Whether opening the engine starts the GPU's driver, if there is one. */
static bool looks_for_gpu(const struct engine_opts *o)
{
    return !o->server.url && !o->backend && (!o->device || strcmp(o->device, "cpu") != 0);
}

/* The engine of another side may come later and start the driver then. */
struct backend *open_backend(const struct engine_opts *o, struct err *e)
{
    struct backend *b = o->server.url ? remote_open(o, e) : engine_open(o, e);
    if (looks_for_gpu(o))
        isolate_after_loading();
    return b;
}

/* ---- a backend without anything -------------------------------------------------------------- */

static struct err gone_why;

static void gone_close(struct backend *)
{
}

static bool gone_submit(struct backend *, struct request *rq, struct err *e)
{
    request_free(rq);
    *e = gone_why;
    return false;
}

static bool gone_busy(struct backend *)
{
    return false;
}

static const char *gone_token(struct backend *, int32_t, size_t *n)
{
    *n = 0;
    return "";
}

static void gone_chat(struct backend *, struct chat_view *v)
{
    *v = (struct chat_view){.committed = -1};
    settings_init(&v->settings);
}

static struct backend *gone_backend(const struct err *why)
{
    static const struct backend_ops ops = {
        .close = gone_close, .submit = gone_submit, .cancel = gone_close, .busy = gone_busy,
        .token = gone_token, .chat = gone_chat,
    };
    static struct backend gone = {.ops = &ops, .info = {.family = "no model"}, .fd = -1};
    gone_why = *why;
    for (int v = 0; v < N_VIEWS; v++)
        gone.lacks[v] = "no model is open";
    return &gone;
}

enum reopened reopen_backend(struct backend **b, const struct engine_opts *now,
                             const struct engine_opts *o, struct err *e)
{
    if (backend_info(*b)->server_url) {
        struct backend *other = remote_open(o, e);
        if (!other)
            return REOPEN_KEPT;
        backend_close(*b);
        *b = other;
        return REOPEN_DONE;
    }
    enum reopened got = engine_reopen(*b, now, o, e);
    if (got == REOPEN_FAILED) {
        backend_close(*b);
        *b = gone_backend(e);
    }
    return got;
}

void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    engine_devices(tell, arg);
}

const char *kv_events_about(bool *built)
{
    return remote_kv_events(built);
}

bool look_at_server(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                    void *arg, struct err *e)
{
    return remote_doctor(o, tell, arg, e);
}
