/* open.c - opens a recording: reads it, its facts and the groups of views that it can fill. */
#include <sys/eventfd.h>

#include "repl/compare/facts.h"
#include "repl/recorded/parts.h"

/* A value from the lines, which lives as long as the recording; NULL: none. */
static const char *fact(struct recorded *r, const char *name)
{
    char *value = facts_value(r->about, name);
    if (!value || !*value) {
        free(value);
        return NULL;
    }
    CHECK(r->n_string < (int)(sizeof r->strings / sizeof *r->strings));
    return r->strings[r->n_string++] = value;
}

static int number(const struct recorded *r, const char *name)
{
    FREED(free_at) char *value = facts_value(r->about, name);
    long n = value ? strtol(value, NULL, 10) : 0;
    return n > 0 && n < INT32_MAX ? (int)n : 0;
}

static void copy_fact(const struct recorded *r, const char *name, char *out, size_t size)
{
    FREED(free_at) char *value = facts_value(r->about, name);
    snprintf(out, size, "%s", value ? value : "");
}

static void fill_info(struct recorded *r)
{
    struct backend_info *i = &r->base.info;
    i->model_dir = fact(r, "model_dir");
    i->draft_dir = fact(r, "draft_dir");
    i->device = fact(r, "device");
    i->server_kind = fact(r, "server_kind");
    i->server_version = fact(r, "server_version");
    i->server_url = fact(r, "server_url");
    i->server_facts = fact(r, "server_facts");
    i->family = i->server_kind ? fact(r, "server") : NULL;
    i->backend = fact(r, "backend");
    i->precision = fact(r, "precision");
    i->kv = fact(r, "kv");
    i->recording = r->name;
    i->context = number(r, "context");
    i->page_size = min_int(number(r, "page_size"), 64); /* as the page events are checked */
    i->rows = number(r, "rows");
    copy_fact(r, "date", i->date, sizeof i->date);
    copy_fact(r, "capture", i->capture, sizeof i->capture);
    copy_fact(r, "model_sha", i->model_sha, sizeof i->model_sha);
    copy_fact(r, "draft_sha", i->draft_sha, sizeof i->draft_sha);
    copy_fact(r, "tokenizer_sha", i->tokenizer_sha, sizeof i->tokenizer_sha);
    for (int p = 0; p < N_POOLS; p++)
        i->n_pages[p] = r->fold.pool[p].total;
    i->window = r->fold.window;
}

struct backend *recorded_open(struct hdb *d, const char *session, const char *name, bool file,
                              struct err *e)
{
    struct recorded *r = xcalloc(1, sizeof *r);
    r->base.ops = &recorded_ops;
    r->name = xstrdup(name);
    r->file = file;
    r->next_act = -1;
    snprintf(r->session, sizeof r->session, "%s", session);
    r->base.fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    bool ok = r->base.fd >= 0 || err_set(e, ERR_USAGE, "cannot make a descriptor for events");
    if (!ok || !recorded_read(r, d, session, e)) {
        backend_close(&r->base);
        return NULL;
    }
    r->pauses = 1; /* to the debugger, a recording is always a paused turn */
    recorded_seek(&r->base, 0, 0, NULL);
    fill_info(r);
    recorded_views(r);
    recorded_served(r);
    return &r->base;
}
