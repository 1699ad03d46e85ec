/* upkeep.c - see upkeep.h. Endpoints: vLLM 0.26 (POST /reset_prefix_cache in development mode),
 * SGLang of late 2026 (POST /flush_cache), llama-server b11434 (POST /slots/N?action=erase with
 * --slot-save-path). */
#include "engine/remote/upkeep_own.h"

#include <jansson.h>
#include <unistd.h>

#include "engine/remote/metrics.h"
#include "kernels/json_read.h"
#include "kernels/lines.h"

struct upkeep *upkeep_open(const struct server_opts *opts, const char *model, struct err *e)
{
    struct upkeep *upkeep = xcalloc(1, sizeof *upkeep);
    if (server_http(&upkeep->http, opts, e)) {
        if (server_probe(&upkeep->server, upkeep->http, model, e)) {
            upkeep->name = xasprintf("%s%s%s", server_kind_name(upkeep->server.kind),
                                     upkeep->server.version[0] ? " " : "", upkeep->server.version);
            return upkeep;
        }
        server_free(&upkeep->server);
        http_close(upkeep->http);
    }
    free(upkeep);
    return NULL;
}

void upkeep_close(struct upkeep *upkeep)
{
    if (!upkeep)
        return;
    server_free(&upkeep->server);
    http_close(upkeep->http);
    FREE(upkeep->name, upkeep);
}

const char *upkeep_server(const struct upkeep *upkeep)
{
    return upkeep->name;
}

const char *upkeep_model(const struct upkeep *upkeep)
{
    return upkeep->server.model;
}

int upkeep_context(const struct upkeep *upkeep)
{
    return upkeep->server.context;
}

bool upkeep_exact(const struct upkeep *upkeep)
{
    return upkeep->server.kind == SERVER_AERIE;
}

const char *upkeep_url(const struct upkeep *upkeep)
{
    return http_url(upkeep->http);
}

bool upkeep_fact(const struct upkeep *upkeep, const char *name, char *out, size_t room)
{
    struct line v = line_value(upkeep->server.facts.p, name);
    bool quoted = v.n >= 2 && v.p[0] == '"';
    if (v.p)
        snprintf(out, room, "%.*s", (int)(v.n - (quoted ? 2 : 0)), v.p + quoted);
    return v.p != NULL;
}

int upkeep_number(const struct upkeep *upkeep, const char *const *names)
{
    char text[32], *end;
    for (; *names; names++) {
        if (!upkeep_fact(upkeep, *names, text, sizeof text))
            continue;
        long v = strtol(text, &end, 10);
        if (end > text && !*end && v >= 0 && v <= INT32_MAX)
            return (int)v;
    }
    return 0;
}

bool upkeep_call(struct upkeep *upkeep, struct http_call *call, const struct stop *stop,
                 struct err *e)
{
    for (int attempt = 0;; attempt++) {
        int wait = -1;
        if (http_call(upkeep->http, call, stop, e))
            return true;
        if (!call->failed)
            wait = http_retry_ms(call, attempt);
        if (wait < 0)
            return false;
        for (uint64_t end = clock_ns() + (uint64_t)wait * 1000000; clock_ns() < end;) {
            if (stop_asked(stop))
                return err_set(e, ERR_NEGATIVE, "stopped");
            usleep(20000);
        }
    }
}

/* ---- the prefix cache ------------------------------------------------------------------------ */

static bool post(struct upkeep *upkeep, const char *path)
{
    struct http_call call = {.method = "POST", .path = path, .body = "{}"};
    bool ok = http_call(upkeep->http, &call, NULL, NULL);
    buf_free(&call.answer);
    return ok;
}

static int count_slots(struct upkeep *upkeep)
{
    struct http_call call = {.method = "GET", .path = "/slots"};
    int n = 0;
    if (http_call(upkeep->http, &call, NULL, NULL)) {
        FREED(json_decrefp) json_t *all = json_parse(call.answer.p, call.answer.n, 0, NULL);
        n = json_is_array(all) ? (int)json_array_size(all) : 0;
    }
    buf_free(&call.answer);
    return n;
}

static bool erase_slots(struct upkeep *upkeep)
{
    enum { MOST = 1024 };
    int n = count_slots(upkeep);
    bool ok = n > 0 && n <= MOST;
    for (int i = 0; ok && i < n; i++) {
        char path[64];
        snprintf(path, sizeof path, "/slots/%d?action=erase", i);
        ok = post(upkeep, path);
    }
    return ok;
}

const char *upkeep_reset_path(const struct upkeep *upkeep)
{
    static const char *const path[N_SERVERS] = {[SERVER_VLLM] = "/reset_prefix_cache",
                                                [SERVER_SGLANG] = "/flush_cache",
                                                [SERVER_AERIE] = "/reset_prefix_cache"};
    return path[upkeep->server.kind];
}

bool upkeep_reset_cache(struct upkeep *upkeep, char how[200])
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
    enum server_kind k = upkeep->server.kind;
    bool ok = by_kind[k].path &&
              (k == SERVER_LLAMA ? erase_slots(upkeep) : post(upkeep, by_kind[k].path));
    if (ok)
        snprintf(how, 200, "prefix cache emptied before each part (%s)", by_kind[k].path);
    else
        snprintf(how, 200, "prefix cache not emptied: %s", by_kind[k].cannot);
    return ok;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static int64_t total(const struct metrics *metrics, const char *name, const char *position)
{
    double v;
    return metrics_value(metrics, name, position ? "position" : NULL, position, METRICS_SUM, &v,
                         NULL) &&
                   v >= 0 && v < 1e15
               ? (int64_t)v
               : -1;
}

/* Counts of the positions from 0 on, as vLLM labels them, up to the first that is not reported. */
static void by_depth(const struct metrics *metrics, struct draft_totals *out)
{
    for (int d = 0; d < METERED_DEPTHS; d++) {
        char position[12];
        snprintf(position, sizeof position, "%d", d);
        int64_t n = total(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position);
        if (n < 0)
            return;
        out->at[out->depths++] = n;
    }
}

bool drafts_read(const char *page, size_t n, struct draft_totals *out)
{
    FREED(metrics_free) struct metrics metrics = {0};
    double length;
    *out = (struct draft_totals){.drafts = -1, .drafted = -1, .accepted = -1};
    if (!metrics_read(&metrics, page, n, NULL))
        return false;
    out->drafts = total(&metrics, "spec_decode_num_drafts_total", NULL);
    out->drafted = total(&metrics, "spec_decode_num_draft_tokens_total", NULL);
    out->accepted = total(&metrics, "spec_decode_num_accepted_tokens_total", NULL);
    by_depth(&metrics, out);
    if (metrics_value(&metrics, "spec_accept_length", NULL, NULL, METRICS_MAX, &length, NULL) &&
        length >= 1 && length < 1000)
        out->length = length;
    return true;
}

void upkeep_drafts(struct upkeep *upkeep, struct draft_totals *out)
{
    struct http_call call = {.method = "GET", .path = "/metrics"};
    bool got = upkeep->server.answers[REPORT_METRICS] && http_call(upkeep->http, &call, NULL, NULL);
    drafts_read(got ? buf_text(&call.answer) : "", got ? call.answer.n : 0, out);
    buf_free(&call.answer);
}

bool upkeep_chat(struct upkeep *upkeep, const char *message, int most, const struct stop *stop,
                 struct err *e)
{
    struct said said = {"user", message};
    struct settings set;
    FREED(buf_free) struct buf body = {0};
    settings_init(&set);
    set.temperature = 0;
    set.max_tokens = most;
    struct http_call call = {.method = "POST"};
    call.path = server_ask(&upkeep->server, &said, 1, &set, -1, &body);
    call.body = body.p;
    bool ok = upkeep_call(upkeep, &call, stop, e);
    buf_free(&call.answer);
    return ok;
}
