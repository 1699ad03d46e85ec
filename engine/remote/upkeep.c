/* upkeep.c - see upkeep.h. Endpoints: vLLM 0.26 (POST /reset_prefix_cache in development mode),
 * SGLang of late 2026 (POST /flush_cache), llama-server b11434 (POST /slots/N?action=erase with
 * --slot-save-path). */
#include "engine/remote/upkeep_own.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remote/metrics.h"
#include "kernels/json_read.h"

struct upkeep *upkeep_open(const struct server_opts *o, const char *model, struct err *e)
{
    struct upkeep *u = xcalloc(1, sizeof *u);
    if (server_http(&u->http, o, e)) {
        if (server_probe(&u->server, u->http, model, NULL, e)) {
            u->name = xasprintf("%s%s%s", server_kind_name(u->server.kind),
                                u->server.version[0] ? " " : "", u->server.version);
            return u;
        }
        server_free(&u->server);
        http_close(u->http);
    }
    free(u);
    return NULL;
}

void upkeep_close(struct upkeep *u)
{
    if (!u)
        return;
    server_free(&u->server);
    http_close(u->http);
    free(u->name);
    free(u);
}

const char *upkeep_server(const struct upkeep *u)
{
    return u->name;
}

const char *upkeep_model(const struct upkeep *u)
{
    return u->server.model;
}

int upkeep_context(const struct upkeep *u)
{
    return u->server.context;
}

bool upkeep_exact(const struct upkeep *u)
{
    return u->server.kind == SERVER_AERIE;
}

const char *upkeep_url(const struct upkeep *u)
{
    return http_url(u->http);
}

bool upkeep_fact(const struct upkeep *u, const char *name, char *out, size_t room)
{
    size_t n = strlen(name);
    for (const char *p = u->server.facts.p; p && *p; p += strcspn(p, "\n"), p += *p == '\n') {
        if (strncmp(p, name, n) != 0 || p[n] != '=')
            continue;
        const char *v = p + n + 1;
        size_t len = strcspn(v, "\n");
        bool quoted = len >= 2 && v[0] == '"';
        snprintf(out, room, "%.*s", (int)(len - (quoted ? 2 : 0)), v + quoted);
        return true;
    }
    return false;
}

int upkeep_number(const struct upkeep *u, const char *const *names)
{
    char text[32], *end;
    for (; *names; names++) {
        if (!upkeep_fact(u, *names, text, sizeof text))
            continue;
        long v = strtol(text, &end, 10);
        if (end > text && !*end && v >= 0 && v <= INT32_MAX)
            return (int)v;
    }
    return 0;
}

/* ---- the prefix cache ------------------------------------------------------------------------ */

static bool post(struct upkeep *u, const char *path)
{
    struct http_call c = {.method = "POST", .path = path, .body = "{}"};
    bool ok = http_call(u->http, &c, NULL, NULL);
    buf_free(&c.answer);
    return ok;
}

static int count_slots(struct upkeep *u)
{
    struct http_call c = {.method = "GET", .path = "/slots"};
    int n = 0;
    if (http_call(u->http, &c, NULL, NULL)) {
        json_t *all = json_parse(c.answer.p, c.answer.n, 0, NULL);
        n = json_is_array(all) ? (int)json_array_size(all) : 0;
        json_decref(all);
    }
    buf_free(&c.answer);
    return n;
}

static bool erase_slots(struct upkeep *u)
{
    enum { MOST = 1024 };
    int n = count_slots(u);
    bool ok = n > 0 && n <= MOST;
    for (int i = 0; ok && i < n; i++) {
        char path[64];
        snprintf(path, sizeof path, "/slots/%d?action=erase", i);
        ok = post(u, path);
    }
    return ok;
}

const char *upkeep_reset_path(const struct upkeep *u)
{
    static const char *const path[N_SERVERS] = {[SERVER_VLLM] = "/reset_prefix_cache",
                                                [SERVER_SGLANG] = "/flush_cache",
                                                [SERVER_AERIE] = "/reset_prefix_cache"};
    return path[u->server.kind];
}

bool upkeep_reset_cache(struct upkeep *u, char how[200])
{
    static const struct {
        const char *path, *cannot;
    } by_kind[N_SERVERS] = {
        [SERVER_OPENAI] = {NULL, "the OpenAI API has no request for that"},
        [SERVER_VLLM] = {"/reset_prefix_cache",
                         "vLLM takes /reset_prefix_cache only with VLLM_SERVER_DEV_MODE=1"},
        [SERVER_SGLANG] = {"/flush_cache", "SGLang refuses /flush_cache while requests run"},
        [SERVER_LLAMA] = {"/slots/N?action=erase",
                          "llama-server erases slots only with --slots and --slot-save-path"},
        [SERVER_OLLAMA] = {NULL, "ollama has no request for that"},
        [SERVER_AERIE] = {"/reset_prefix_cache", "this server refuses /reset_prefix_cache"},
    };
    enum server_kind k = u->server.kind;
    bool ok = by_kind[k].path && (k == SERVER_LLAMA ? erase_slots(u) : post(u, by_kind[k].path));
    if (ok)
        snprintf(how, 200, "prefix cache emptied before each part (%s)", by_kind[k].path);
    else
        snprintf(how, 200, "prefix cache not emptied: %s", by_kind[k].cannot);
    return ok;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static int64_t total(const struct metrics *m, const char *name, const char *position)
{
    double v;
    return metrics_value(m, name, position ? "position" : NULL, position, METRICS_SUM, &v, NULL) &&
                   v >= 0 && v < 1e15
               ? (int64_t)v
               : -1;
}

/* Counts of the positions from 0 on, as vLLM labels them, up to the first that is not reported. */
static void by_depth(const struct metrics *m, struct draft_totals *out)
{
    for (int d = 0; d < METERED_DEPTHS; d++) {
        char position[12];
        snprintf(position, sizeof position, "%d", d);
        int64_t n = total(m, "spec_decode_num_accepted_tokens_per_pos_total", position);
        if (n < 0)
            return;
        out->at[out->depths++] = n;
    }
}

bool drafts_read(const char *page, size_t n, struct draft_totals *out)
{
    struct metrics m;
    double length;
    *out = (struct draft_totals){.drafts = -1, .drafted = -1, .accepted = -1};
    if (!metrics_read(&m, page, n, NULL))
        return false;
    out->drafts = total(&m, "spec_decode_num_drafts_total", NULL);
    out->drafted = total(&m, "spec_decode_num_draft_tokens_total", NULL);
    out->accepted = total(&m, "spec_decode_num_accepted_tokens_total", NULL);
    by_depth(&m, out);
    if (metrics_value(&m, "spec_accept_length", NULL, NULL, METRICS_MAX, &length, NULL) &&
        length >= 1 && length < 1000)
        out->length = length;
    metrics_free(&m);
    return true;
}

void upkeep_drafts(struct upkeep *u, struct draft_totals *out)
{
    struct http_call c = {.method = "GET", .path = "/metrics"};
    bool got = u->server.answers[REPORT_METRICS] && http_call(u->http, &c, NULL, NULL);
    drafts_read(got && c.answer.p ? c.answer.p : "", got ? c.answer.n : 0, out);
    buf_free(&c.answer);
}
