/* hunt.c - `aerie probe URL`: see hunt.h. Ctrl-C ends it with the report of what was found. */
#include "repl/cli/hunt.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { ROUNDS = 3, REPEATS = 3, OF_A_KIND = 1 };

/* ---- what is known of the server ------------------------------------------------------------- */

static void learn(struct hunt *p)
{
    static const char *const page[] = {"page_size", "cache_config.block_size", NULL};
    static const char *const window[] = {"window", "sliding_window", "sliding_window_size", NULL};
    static const char *const depth[] = {"draft_steps", "speculative_num_steps", NULL};
    static const char *const pages[] = {"full_pages", "cache_config.num_gpu_blocks", NULL};
    static const char *const tokens[] = {"max_total_num_tokens", "max_total_tokens", NULL};
    static const char *const lanes[] = {"lanes", "max_num_seqs", "total_slots",
                                        "max_running_requests", NULL};
    p->page = upkeep_number(p->u, page);
    p->window = upkeep_number(p->u, window);
    p->depth = upkeep_number(p->u, depth);
    p->lanes = upkeep_number(p->u, lanes);
    p->context = upkeep_context(p->u);
    p->pool = upkeep_number(p->u, tokens);
    int64_t pool = (int64_t)upkeep_number(p->u, pages) * p->page;
    if (!p->pool && pool < INT32_MAX)
        p->pool = (int)pool;
    p->exact = upkeep_exact(p->u);
}

static bool take_shape(struct hunt *p, const struct texts *t, struct err *e)
{
    int seed = 1, exact = p->exact;
    const struct { const char *name; int *at; int most; } known[] = {
        {"page", &p->page, 65536},     {"window", &p->window, 1 << 20},
        {"drafts", &p->depth, 64},     {"context", &p->context, 1 << 24},
        {"pool", &p->pool, 1 << 28},   {"lanes", &p->lanes, 4096},
        {"seed", &seed, 1 << 24},      {"exact", &exact, 1}};
    for (int i = 0; i < t->n; i++) {
        const char *eq = strchr(t->v[i], '=');
        size_t n = eq ? (size_t)(eq - t->v[i]) : 0, k = 0;
        const size_t N = LEN(known);
        while (k < N && !(n == strlen(known[k].name) && !strncmp(known[k].name, t->v[i], n)))
            k++;
        if (k == N)
            return err_set(e, ERR_USAGE, "--shape \"%.60s\": expected page, window, drafts, "
                           "context, pool, lanes, seed or exact=N", t->v[i]);
        char *end;
        errno = 0;
        long v = strtol(eq + 1, &end, 10);
        if (end == eq + 1 || *end || errno || v < 0 || v > known[k].most)
            return err_set(e, ERR_USAGE, "--shape %s cannot be \"%.40s\"; expected a number from 0 "
                                         "to %d", known[k].name, eq + 1, known[k].most);
        *known[k].at = (int)v;
    }
    p->seed = (uint64_t)seed;
    p->exact = exact;
    return true;
}

/* ---- the run --------------------------------------------------------------------------------- */

static double seconds(const struct hunt *p)
{
    return (double)(clock_ns() - p->begin) / 1e9;
}

static void tell_progress(struct hunt *p, const struct hunt_case *c)
{
    char line[160];
    if (p->c->opt.quiet || !isatty(STDERR_FILENO))
        return;
    int s = (int)seconds(p);
    snprintf(line, sizeof line, "case %d: %s; %d requests, %d found, %d:%02d%s", p->n_case + 1,
             c->kind, p->n_asked, p->n_found, s / 60, s % 60,
             p->c->minutes ? "" : "; Ctrl-C ends it");
    cli_status(line);
}

static int found_of(const struct hunt *p, const char *kind, bool read)
{
    int n = 0;
    for (int i = 0; i < p->n_kept; i++)
        n += p->found[i].c.read == read && (read || !strcmp(p->found[i].c.kind, kind));
    return n;
}

/* The case of a reply that differs from itself as a prompt: this one request. */
static void reduce_to_read(struct hunt_found *f)
{
    struct hunt_ask a = f->c.ask[f->d.ask];
    a.group = a.after_ms = a.cancel_ms = 0;
    f->c = (struct hunt_case){.kind = "decode and prompt", .ask = {a}, .n = 1, .read = true};
    f->d.ask = 0;
}

static bool repeat(struct hunt *p, struct hunt_found *f, struct err *e)
{
    bool ok = true;
    struct hunt_diff d;
    f->n_repeat = f->n_differ = 1;
    p->quick = true;
    for (int i = 1; ok && i < REPEATS && !f->c.read; i++) {
        ok = hunt_run(p, &f->c, &d, e);
        f->n_repeat += ok;
        f->n_differ += ok && d.how != DIFF_NONE;
    }
    p->quick = false;
    return ok;
}

/* Looks closer at a difference. */
static bool take_found(struct hunt *p, const struct hunt_case *c, int number,
                       const struct hunt_diff *d, struct err *e)
{
    struct hunt_found *f = &p->found[min_int(p->n_kept, HUNT_KEPT - 1)];
    if (p->n_kept == HUNT_KEPT || found_of(p, c->kind, d->how == DIFF_READ) >= OF_A_KIND) {
        p->n_found++; /* counted only */
        return true;
    }
    *f = (struct hunt_found){.c = *c, .d = *d, .number = number, .n_before = c->n,
                              .requests = p->n_asked, .seconds = seconds(p)};
    if (p->log)
        memcpy(f->session, hunt_log_session(p->log), sizeof f->session);
    if (d->how == DIFF_READ)
        reduce_to_read(f);
    for (int i = 0; i < f->c.n; i++)
        f->c.ask[i].judged = i == f->d.ask;
    bool ok = repeat(p, f, e);
    if (ok && f->n_differ == 1 && !f->c.read) {
        p->n_once++;
        return true;
    }
    p->n_found++;
    p->n_kept++;
    return ok && hunt_shrink(p, f, e) && hunt_capture(p, f, e);
}

static bool one_case(struct hunt *p, int number, struct err *e)
{
    struct hunt_case c;
    struct hunt_diff d;
    char title[120];
    int kept = p->n_kept;
    hunt_plan(p, number, &c);
    tell_progress(p, &c);
    snprintf(title, sizeof title, "aerie probe, case %d: %s", number, c.kind);
    if (p->log)
        hunt_log_begin(p->log, title);
    bool ok = hunt_run(p, &c, &d, e);
    p->n_case += ok;
    if (ok && d.how != DIFF_NONE)
        ok = take_found(p, &c, number, &d, e);
    if (p->n_kept > kept && !p->c->opt.json) {
        cli_status_end();
        const struct printer *to = cli_answer(p->c, 0);
        hunt_print_found(p, kept, to);
        cli_answer_end();
        out_flush();
    }
    return ok;
}

static bool run(struct hunt *p, struct hunt_state *state, struct err *e)
{
    int number = state ? hunt_state_next(state) : 0;
    const int most = p->c->most ? p->c->most : ROUNDS * hunt_kinds();
    bool ok = true;
    if (p->c->minutes)
        p->until = p->begin + (uint64_t)p->c->minutes * UINT64_C(60000000000);
    while (ok && !stop_asked(&p->stop) && (p->until ? clock_ns() < p->until : number < most)) {
        int found = p->n_found;
        ok = one_case(p, number, e);
        if (ok && state)
            ok = hunt_state_add(state, number, p, found, e);
        p->asked_noted = p->n_asked;
        number++;
    }
    cli_status_end();
    return ok;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool write_report(struct hunt *p, const char *file, struct err *e)
{
    FREED(buf_free) struct buf text = {0};
    hunt_issue(p, p->c->issue ? p->c->issue : hunt_form(p), &text);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write_fully(fd, text.p, text.n);
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    return ok || err_set(e, ERR_USAGE, "cannot write %s: %s", file, strerror(why));
}

static int exit_status(struct hunt *p)
{
    const struct printer *to = cli_answer(p->c, '{');
    hunt_print_sum(p, to);
    if (p->c->opt.json) {
        PRINT_IN(to, "found", '[');
        for (int i = 0; i < p->n_kept; i++)
            hunt_print_found(p, i, to);
    }
    cli_answer_end();
    return p->n_found || (p->n_case && !p->n_compared) ? ERR_NEGATIVE : 0;
}

static bool open_all(struct hunt *p, struct hunt_state **state, struct err *e)
{
    struct cli *c = p->c;
    FREED(free_at) char *db = cli_db_path(c);
    c->opt.engine.server.url = c->word[0];
    p->u = upkeep_open(&c->opt.engine.server, c->model_given ? c->opt.engine.model : NULL, e);
    bool ok = p->u && ids_can_ask(p->u, e);
    if (ok)
        learn(p);
    ok = ok && take_shape(p, &c->shape, e);
    if (ok)
        hunt_lengths(p);
    if (ok && c->opt.level != LOG_OFF)
        ok = (p->log = hunt_log_open(db, p->u, e)) != NULL;
    if (ok && c->state)
        ok = (*state = hunt_state_open(c->state, p, e)) != NULL;
    return ok;
}

int cli_probe(struct cli *c)
{
    struct err e = {0};
    FREED(free_at) struct hunt *p = xcalloc(1, sizeof *p);
    struct hunt_state *state = NULL;
    p->c = c;
    p->begin = clock_ns();
    bool ok = cli_stop_open(&p->stop, &e) && open_all(p, &state, &e);
    bool began = ok;
    ok = ok && run(p, state, &e);
    int rc = began ? exit_status(p) : 0;
    struct err why = {0};
    if (began && c->out && !write_report(p, c->out, &why))
        rc = cli_fail(&why);
    if (!ok && !stop_asked(&p->stop))
        rc = cli_fail(&e);
    hunt_state_close(state);
    if (!hunt_log_close(p->log, &e))
        rc = cli_fail(&e);
    upkeep_close(p->u);
    hunt_free(p);
    return cli_stop_close(rc);
}
