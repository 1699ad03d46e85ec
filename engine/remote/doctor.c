/* doctor.c - everything that a server reports, for `aerie doctor --remote`: see remote.h. */

#include "engine/remote/blocks.h"
#include "engine/remote/gauges.h"
#include "engine/remote/remote.h"
#include "engine/remote/server.h"
#include "kernels/lines.h"

enum { LINE = 100 };

struct teller {
    void (*tell)(void *arg, bool ok, const char *line);
    void *arg;
};

/* The pools according to its metrics: "full 30 of 100 tokens, swa ...". */
static void tell_pools(const struct server *server, struct teller *teller)
{
    static const char *const name[N_POOLS] = {"full", "swa", "draft"};
    struct gauge_page page;
    FREED(buf_free) struct buf line = {0};
    gauge_page_init(&page);
    if (!server->page.n || !gauges_read(server->kind, server->page.p, server->page.n, &page) ||
        !page.about) return;
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *v = &page.pool[i];
        if (v->exists)
            buf_printf(&line, "%s%s %d of %d %s", line.n ? ", " : "pools: ", i == 0 && page.unit
                       ? page.unit : name[i], v->used,
                       v->total, v->page_size > 1 ? "blocks" : "tokens");
    }
    if (line.n)
        teller->tell(teller->arg, true, line.p);
    buf_clear(&line);
    buf_printf(&line, "pools: %s", page.about);
    teller->tell(teller->arg, true, line.p);
}

/* Its launch arguments and other facts that it reported, several to a line. */
static void tell_facts(const struct server *server, struct teller *teller)
{
    FREED(buf_free) struct buf line = {0};
    FOR_LINES(l, server->facts.p) {
        if (line.n && line.n + l.n + 2 > LINE) {
            teller->tell(teller->arg, true, line.p);
            buf_clear(&line);
        }
        buf_printf(&line, "%s%.*s", line.n ? ", " : "facts: ", (int)l.n, l.p);
    }
    if (line.n)
        teller->tell(teller->arg, true, line.p);
}

static void tell_reports(const struct server *server, struct teller *teller)
{
    char line[400];
    for (int i = 0; i < N_REPORTS; i++) {
        const char *why = server_lacks(server, (enum report)i);
        snprintf(line, sizeof line, "%s: %s", report_name((enum report)i), why ? why : "reported");
        teller->tell(teller->arg, !why, line);
    }
}

const char *remote_kv_events(bool *built)
{
    return kv_socket_about(built);
}

bool remote_doctor(const struct engine_opts *opts,
                   void (*tell)(void *arg, bool ok, const char *line), void *arg, struct err *e)
{
    struct http *http = NULL;
    struct server server = {0};
    struct teller teller = {tell, arg};
    char line[500];
    if (!server_http(&http, &opts->server, e))
        return false;
    bool ok = server_probe(&server, http, opts->model, e);
    if (ok) {
        int n = snprintf(line, sizeof line, "%s%s%s at %s serves %s", server_kind_name(server.kind),
                         server.version[0] ? " " : "", server.version, http_url(http),
                         server.model);
        if (server.context)
            snprintf(line + n, sizeof line - (size_t)n, ", context %d", server.context);
        else
            snprintf(line + n, sizeof line - (size_t)n, "; context not reported");
        tell(arg, true, line);
        if (http_warning(http))
            tell(arg, false, http_warning(http));
        tell_reports(&server, &teller);
        tell_pools(&server, &teller);
        tell_facts(&server, &teller);
        blocks_doctor(opts->server.kv_events, 1000, tell, arg);
    }
    server_free(&server);
    http_close(http);
    return ok;
}
