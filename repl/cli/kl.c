/* kl.c - `aerie kl URL|local [FILE]`: replies are decoded, greedy and of a fixed length; then
 * prompt and reply together are read as one prompt, and the log probabilities of the reply's tokens
 * are compared (repl/compare/kl.h).
 *
 * Without FILE the prompts are made up, with lengths around the page and the window. With FILE they
 * are its prompts as plain text, without a chat format. */
#include "repl/cli/kl.h"

#include <math.h>

#include "kernels/sort.h"
#include "repl/app/prompts.h"
#include "repl/cli/cli.h"
#include "repl/compare/made_text.h"
#include "repl/process/open.h"

enum { USUAL_TOKENS = 64, MOST_PROMPTS = 4096 };

struct kl_run {
    struct cli *c;
    struct kl_source from;
    struct stop stop;
    struct kl kl;
    struct ids *prompt; /* (n) */
    int n, most;        /* most: tokens of a reply */
};

/* ---- a server as a source -------------------------------------------------------------------- */

static bool server_text(struct kl_source *s, const char *text, struct ids *out, struct err *e)
{
    return ids_of_text(s->u, text, out, s->stop, e);
}

static bool server_ask(struct kl_source *s, struct ids_ask *a, struct err *e)
{
    char name[64], how[200];
    snprintf(name, sizeof name, "kl-%llx", (unsigned long long)clock_ns());
    if (!ids_has_arenas(s->u))
        upkeep_reset_cache(s->u, how);
    a->arena = name;
    a->cold = true;
    ids_ask_all(s->u, a, 1, s->stop, NULL, NULL);
    a->arena = NULL;
    if (!a->done)
        *e = a->why;
    return a->done;
}

static bool server_score(struct kl_source *s, const struct ids *ids, int from, float *logp,
                         struct err *e)
{
    return ids_score(s->u, ids, from, logp, s->stop, e);
}

void kl_of_server(struct kl_source *s)
{
    s->score = server_score;
}

static void server_close(struct kl_source *s)
{
    upkeep_close(s->u);
}

static bool server_source(struct kl_source *s, const struct cli *c, struct err *e)
{
    static const char *const page[] = {"page_size", "cache_config.block_size", NULL};
    static const char *const window[] = {"window", "sliding_window", "sliding_window_size", NULL};
    s->ask = server_ask;
    s->score = server_score;
    s->text = server_text;
    s->close = server_close;
    s->u = upkeep_open(&c->opt.engine.server, c->model_given ? c->opt.engine.model : NULL, e);
    if (!s->u || !ids_can_ask(s->u, e))
        return false;
    s->page = upkeep_number(s->u, page);
    s->window = upkeep_number(s->u, window);
    s->context = upkeep_context(s->u);
    s->exact = upkeep_exact(s->u);
    s->by_token = !ids_scores_at_once(s->u);
    s->name = xasprintf("%s, %s at %s", upkeep_server(s->u), upkeep_model(s->u), upkeep_url(s->u));
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Adds a length, unless it is there or has no room. */
static void add_length(const struct kl_source *s, int length, int most, int out[16], int *n)
{
    bool again = length < 2 || (s->context && length + most + 1 > s->context);
    for (int k = 0; k < *n; k++)
        again |= out[k] == length;
    if (!again)
        out[(*n)++] = length;
}

/* Lengths at which pages and windows begin, end and are crossed. Their number. */
static int lengths(const struct kl_source *s, int most, int out[16])
{
    int page = s->page > 1 ? s->page : 16, window = s->window > 1 ? s->window : 4 * page, n = 0;
    add_length(s, 5, most, out, &n);
    for (int by = -1; by <= 1; by++) {
        add_length(s, page + by, most, out, &n);
        add_length(s, window + by, most, out, &n);
    }
    add_length(s, 3 * page, most, out, &n);
    add_length(s, window + page, most, out, &n);
    add_length(s, 2 * window + 3, most, out, &n);
    sort_ints(out, n);
    return n;
}

static bool add_prompt(struct kl_run *r, const char *text, int length, struct err *e)
{
    struct ids ids = {0};
    if (!r->from.text(&r->from, text, &ids, e)) {
        ids_free(&ids);
        return false;
    }
    if (length && ids.n > length)
        ids.n = length;
    *APPEND(r->prompt, r->n) = ids;
    return true;
}

static bool make_prompts(struct kl_run *r, struct err *e)
{
    int length[16] = {0}, n = lengths(&r->from, r->most, length);
    bool ok = n > 0 || err_set(e, ERR_USAGE, "the context of %d tokens has no room for a reply of "
                                             "%d", r->from.context, r->most);
    for (int i = 0; ok && i < n && !(r->c->most && i == r->c->most); i++) {
        FREED(buf_free) struct buf text = {0};
        made_text((uint64_t)i + 1, length[i], &text); /* a word is at least one token */
        ok = add_prompt(r, text.p, length[i], e);
    }
    return ok;
}

static bool read_prompts(struct kl_run *r, const char *file, struct err *e)
{
    struct prompts all;
    struct prompt p;
    int got = 0;
    if (!prompts_open(&all, file, r->c->most ? r->c->most : MOST_PROMPTS, cli_complain, e))
        return false;
    bool ok = true;
    while (ok && (got = prompts_next(&all, &p, e)) > 0) {
        ok = add_prompt(r, p.text, 0, e);
        if (!ok)
            err_prefix(e, "%s line %d", file, p.line);
        prompt_free(&p);
    }
    prompts_close(&all);
    return ok && got == 0;
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool one_reply(struct kl_run *r, const struct ids *prompt, struct err *e)
{
    FREED(ids_ask_free) struct ids_ask a = {.prompt = *prompt, .most = r->most};
    FREED(ids_free) struct ids both = {0};
    bool ok = r->from.ask(&r->from, &a, e);
    ids_cat(&both, prompt->v, prompt->n);
    ids_cat(&both, a.reply.v, a.reply.n);
    FREED(free_at) float *logp = xcalloc((size_t)both.n + 1, sizeof *logp);
    for (int i = 0; i < both.n; i++)
        logp[i] = NAN;
    ok = ok && r->from.score(&r->from, &both, prompt->n, logp, e);
    if (ok)
        kl_add(&r->kl, &(struct kl_reply){.n_prompt = prompt->n, .n = a.reply.n,
                                          .decoded = a.logp, .read = logp + prompt->n,
                                          .accepted = a.accepted});
    r->from.drafted += a.drafted > 0 ? a.drafted : 0;
    return ok;
}

static bool run(struct kl_run *r, struct err *e)
{
    const char *file = r->c->n_word > 1 ? r->c->word[1] : NULL;
    bool ok = file ? read_prompts(r, file, e) : make_prompts(r, e);
    for (int i = 0; ok && i < r->n && !stop_asked(&r->stop); i++) {
        if (!r->c->opt.quiet)
            cli_progress(NULL, "replies", (uint64_t)i, (uint64_t)r->n);
        ok = one_reply(r, &r->prompt[i], e);
    }
    cli_progress_end();
    return ok;
}

static int verdict(struct kl_run *r, const char **word)
{
    const struct kl_sum *s = &r->kl.part[KL_ALL];
    if (s->n == 0) {
        *word = "unknown";
        return ERR_USAGE;
    }
    bool large = r->from.exact ? s->most > 0 : kl_mean(s) > KL_USUAL;
    *word = s->most == 0 ? "zero" : large ? "too large" : "within the usual";
    return large ? ERR_NEGATIVE : 0;
}

static int report(struct kl_run *r)
{
    const char *word;
    int rc = verdict(r, &word);
    const struct printer *to = cli_answer(r->c, '{');
    print_facts(to, ST_BOLD, "%s{of}", r->from.name);
    print_add(to, ST_TEXT, "\f%d{tokens_of_a_reply}%d{window:0}%d{page:0}%ld{drafted}%s{read}",
              r->most, r->from.window, r->from.page, r->from.drafted,
              r->from.by_token ? "token by token" : "at once");
    kl_print(&r->kl, to);
    print_add(to, rc ? ST_BAD : ST_GOOD, "%s{verdict}", word);
    if (rc == ERR_USAGE)
        print_add(to, ST_TEXT, ": no token has both log probabilities");
    else if (r->from.exact)
        print_add(to, ST_TEXT, ": aerie's rows have the same bits at decode and in a prompt");
    else
        print_add(to, ST_TEXT, ": expected a mean k3 of at most %g{limit}", KL_USUAL);
    print_end(to);
    if (r->from.by_token)
        print_note(to, ST_DIM, "This server reports no log probabilities of a prompt: each "
                   "token was asked for on its own, cold.");
    cli_answer_end();
    return rc;
}

int cli_kl(struct cli *c)
{
    struct err e = {0};
    struct kl_run r = {.c = c, .most = c->opt.engine.settings.max_tokens};
    bool local = strcmp(c->word[0], "local") == 0;
    if (r.most == 0 || r.most > 65536)
        r.most = USUAL_TOKENS;
    r.from.stop = &r.stop;
    c->opt.engine.server.url = local ? NULL : c->word[0];
    bool ok = cli_stop_open(&r.stop, &e) &&
              (local ? kl_local(&r.from, c, &e) : server_source(&r.from, c, &e));
    r.kl.window = r.from.window;
    r.kl.block = r.from.page;
    ok = ok && run(&r, &e);
    int rc = ok && !stop_asked(&r.stop) ? report(&r) : ok ? 0 : cli_fail(&e);
    if (r.from.close)
        r.from.close(&r.from);
    free(r.from.name);
    for (int i = 0; i < r.n; i++)
        ids_free(&r.prompt[i]);
    free(r.prompt);
    kl_free(&r.kl);
    return cli_stop_close(rc);
}
