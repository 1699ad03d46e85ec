/* triage_server.c - `aerie triage URL`: the draft counters of a server, and with -n what they count
 * during chats, which are judged in place of whatever it was asked before, and during requests of
 * three kinds. */
#include "repl/cli/triage.h"

#include <math.h>

#include "engine/remote/by_ids.h"
#include "repl/compare/made_text.h"

enum { CHAT = 128, REPLY = 48, SHORT = 24, LONG = 2048 };

static void count_drafts(const struct draft_totals *n, struct draft_sums *s)
{
    s->cycles = n->drafts > 0 ? (uint64_t)n->drafts : 0;
    s->drafted = n->drafted > 0 ? (uint64_t)n->drafted : 0;
    s->accepted = n->accepted > 0 ? (uint64_t)n->accepted : 0;
    for (int i = 0; i < n->depths; i++) {
        s->depth[i + 1].accepted = (uint64_t)n->at[i];
        s->depth[i + 1].drafted = s->cycles; /* servers do not count drafts by position */
    }
}

/* Facts of the launch that bear on acceptance. */
static void read_launch(struct upkeep *u, struct triage *t)
{
    static const char *const name[] = {
        "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
        "speculative_num_draft_tokens", "speculative_draft_window_size", "kv_cache_dtype",
        "cache_config.cache_dtype", "quantization", "draft", "kv", "attention_backend"};
    char value[64];
    size_t n = 0;
    for (size_t i = 0; i < LEN(name) && n < sizeof t->launch; i++)
        if (upkeep_fact(u, name[i], value, sizeof value) && value[0] && strcmp(value, "null") != 0)
            n += (size_t)snprintf(t->launch + n, sizeof t->launch - n, "%s%s %.40s", n ? ", " : "",
                                  name[i], value);
    if (upkeep_fact(u, "kv_cache_dtype", value, sizeof value) ||
        upkeep_fact(u, "cache_config.cache_dtype", value, sizeof value) ||
        upkeep_fact(u, "kv", value, sizeof value))
        if (strncmp(value, "fp8", 3) == 0)
            snprintf(t->cells, sizeof t->cells, "%.30s", value);
    t->context = upkeep_context(u);
}

/* What the counters rose by since `from`; false and *e: not known, or the server was restarted. */
static bool rise(struct upkeep *u, const struct draft_totals *from, struct draft_totals *by,
                 struct err *e)
{
    upkeep_drafts(u, by);
    bool ok = from->drafts >= 0 && by->drafts >= from->drafts && by->drafted >= from->drafted &&
              by->accepted >= from->accepted && by->depths > 0 && by->depths >= from->depths;
    by->drafts -= from->drafts;
    by->drafted -= from->drafted;
    by->accepted -= from->accepted;
    for (int i = 0; ok && i < from->depths; i++)
        ok = (by->at[i] -= from->at[i]) >= 0;
    return ok || err_set(e, ERR_NEGATIVE, "the server's draft counters cannot be compared");
}

/* Sends the chats; *by: what was drafted for them. */
static bool run_chats(struct upkeep *u, const struct stop *stop, struct draft_totals *by,
                      struct err *e)
{
    struct draft_totals before;
    bool ok = true;
    upkeep_drafts(u, &before);
    for (int i = 0; ok && redraft_message(i); i++)
        ok = upkeep_chat(u, redraft_message(i), CHAT, stop, e);
    return ok && rise(u, &before, by, e);
}

/* Sends n requests one after the other; how: 0 short and cold, 1 the same again, 2 long. */
static bool run_arm(struct upkeep *u, unsigned long long salt, int how, int n, int context,
                    const struct stop *stop, struct some_drafts *d, struct err *e)
{
    struct draft_totals before, by;
    int length = how < 2 ? SHORT : context ? context / 2 < LONG ? context / 2 : LONG : LONG / 2;
    bool ok = true;
    upkeep_drafts(u, &before);
    for (int i = 0; i < n && ok; i++) {
        char arena[48];
        FREED(buf_free) struct buf text = {0};
        struct ids_ask a = {.most = REPLY, .cold = how != 1, .arena = arena};
        snprintf(arena, sizeof arena, "triage-%llx-%d", salt, i);
        made_text((uint64_t)i + (how < 2 ? 1 : 100), length, &text);
        ok = ids_of_text(u, text.p, &a.prompt, stop, e);
        a.prompt.n = ok ? min_int(a.prompt.n, length) : 0;
        if (ok) {
            ids_ask_all(u, &a, 1, stop, NULL, NULL);
            ok = a.done || (*e = a.why, false);
        }
        ids_ask_free(&a);
        ids_free(&a.prompt);
    }
    if (!ok || !rise(u, &before, &by, e))
        return false;
    *d = (struct some_drafts){.cycles = (uint64_t)by.drafts, .drafted = (uint64_t)by.drafted,
                              .accepted = (uint64_t)by.accepted, .first = (uint64_t)by.at[0]};
    return true;
}

/* Sends the requests; *chats: what was drafted for the chats. */
static bool run_arms(struct cli *c, struct upkeep *u, struct triage *t, const struct stop *stop,
                     struct draft_totals *chats, struct err *e)
{
    static const char *const name[TRIAGE_ARMS] = {"short prompts, cold", "the same again",
                                                  "long prompts, cold"};
    unsigned long long salt = clock_ns(); /* what was asked before is not warm */
    if (!run_chats(u, stop, chats, e) || !ids_can_ask(u, e))
        return false;
    t->chats = true;
    t->temperature = 0;
    for (int i = 0; i < TRIAGE_ARMS; i++) {
        if (!c->opt.quiet)
            cli_progress(NULL, "requests", (uint64_t)i, TRIAGE_ARMS);
        if (!run_arm(u, salt, i, c->most, t->context, stop, &t->arm[i].drafts, e))
            return false;
        t->arm[i].name = name[i];
    }
    cli_progress_end();
    return true;
}

bool triage_server(struct cli *c, struct triage *t, const struct stop *stop, struct err *e)
{
    struct draft_totals n;
    c->opt.engine.server.url = c->word[0];
    struct upkeep *u = upkeep_open(&c->opt.engine.server,
                                   c->model_given ? c->opt.engine.model : NULL, e);
    if (!u)
        return false;
    t->server = true;
    t->temperature = NAN;
    snprintf(t->name, sizeof t->name, "%.60s", upkeep_url(u));
    snprintf(t->of, sizeof t->of, "%.150s", upkeep_url(u));
    snprintf(t->who, sizeof t->who, "%.60s, %.90s", upkeep_server(u), upkeep_model(u));
    read_launch(u, t);
    upkeep_drafts(u, &n);
    bool ok = !c->most || n.drafts < 0 || run_arms(c, u, t, stop, &n, e);
    count_drafts(&n, &t->log.drafts);
    t->per_depth = n.depths > 0;
    t->length = n.drafts > 0 ? 0 : n.length;
    if (ok && n.drafts <= 0 && t->length == 0)
        ok = err_set(e, ERR_NEGATIVE, n.drafts == 0
                     ? "%s has drafted nothing yet: chat with it, or -n 4 sends requests"
                     : "%s reports no drafts: no spec_decode counters and no spec_accept_length at "
                       "/metrics", t->of);
    upkeep_close(u);
    return ok;
}
