/* doctor.c - everything that a server reports, for `aerie doctor --remote`: see remote.h. */
#include <stdio.h>
#include <string.h>

#include "engine/remote/blocks.h"
#include "engine/remote/gauges.h"
#include "engine/remote/remote.h"
#include "engine/remote/server.h"

enum { LINE = 100 };

struct teller {
    void (*tell)(void *arg, bool ok, const char *line);
    void *arg;
};

/* The pools according to its metrics: "full 30 of 100 tokens, swa ...". */
static void tell_pools(const struct server *s, struct teller *t)
{
    static const char *const name[N_POOLS] = {"full", "swa", "draft"};
    struct gauge_page p;
    struct buf line = {0};
    gauge_page_init(&p);
    if (!s->page.n || !gauges_read(s->kind, s->page.p, s->page.n, &p) || !p.about)
        return;
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *v = &p.pool[i];
        if (v->exists)
            buf_printf(&line, "%s%s %d of %d %s", line.n ? ", " : "pools: ", i == 0 && p.unit
                       ? p.unit : name[i], v->used,
                       v->total, v->page_size > 1 ? "blocks" : "tokens");
    }
    if (line.n)
        t->tell(t->arg, true, line.p);
    buf_clear(&line);
    buf_printf(&line, "pools: %s", p.about);
    t->tell(t->arg, true, line.p);
    buf_free(&line);
}

/* Its launch arguments and other facts that it reported, several to a line. */
static void tell_facts(const struct server *s, struct teller *t)
{
    struct buf line = {0};
    for (const char *p = s->facts.p; p && *p;) {
        size_t n = strcspn(p, "\n");
        if (line.n && line.n + n + 2 > LINE) {
            t->tell(t->arg, true, line.p);
            buf_clear(&line);
        }
        buf_printf(&line, "%s%.*s", line.n ? ", " : "facts: ", (int)n, p);
        p += n + (p[n] == '\n');
    }
    if (line.n)
        t->tell(t->arg, true, line.p);
    buf_free(&line);
}

static void tell_reports(const struct server *s, struct teller *t)
{
    char line[400];
    for (int i = 0; i < N_REPORTS; i++) {
        const char *why = server_lacks(s, (enum report)i);
        snprintf(line, sizeof line, "%s: %s", report_name((enum report)i), why ? why : "reported");
        t->tell(t->arg, !why, line);
    }
}

const char *remote_kv_events(bool *built)
{
    return kv_socket_about(built);
}

bool remote_doctor(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                   void *arg, struct err *e)
{
    struct http *h = NULL;
    struct server s = {0};
    struct teller t = {tell, arg};
    char line[500];
    if (!server_http(&h, &o->server, e))
        return false;
    bool ok = server_probe(&s, h, o->model, NULL, e);
    if (ok) {
        int n = snprintf(line, sizeof line, "%s%s%s at %s serves %s", server_kind_name(s.kind),
                         s.version[0] ? " " : "", s.version, http_url(h), s.model);
        if (s.context)
            snprintf(line + n, sizeof line - (size_t)n, ", context %d", s.context);
        else
            snprintf(line + n, sizeof line - (size_t)n, "; context not reported");
        tell(arg, true, line);
        if (http_warning(h))
            tell(arg, false, http_warning(h));
        tell_reports(&s, &t);
        tell_pools(&s, &t);
        tell_facts(&s, &t);
        blocks_doctor(o->server.kv_events, 1000, tell, arg);
    }
    server_free(&s);
    http_close(h);
    return ok;
}
