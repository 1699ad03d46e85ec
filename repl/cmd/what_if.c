/* what_if.c - /what-if: the next step of the paused turn computed twice, shown side by side.
 *
 * The engine's thread computes the step and posts EV_WHAT_IF. */
#include <math.h>

#include "engine/what_if.h"
#include "repl/cmd/cmd.h"

bool cmd_what_if(struct cmd_call *c)
{
    struct app *a = c->app;
    if (!cmd_needs(c, VIEW_DEBUG))
        return false;
    if (!a->backend->debug->what_if)
        return err_set(c->e, ERR_USAGE, "/what-if needs an engine: a recording computes nothing");
    if (!a->backend->debug->what_if(a->backend, c->rest, c->e))
        return false;
    a->n_what_if++;
    print_line(&c->to, ST_TEXT, "\f%s{asked}", c->rest);
    return true;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int same_tokens(const struct what_if *w)
{
    int i = 0, n = min_int(w->side[0].n_token, w->side[1].n_token);
    while (i < n && w->side[0].token[i] == w->side[1].token[i])
        i++;
    return i;
}

/* A fact of one side. */
struct fact {
    const char *name, *key; /* of the row and of the member; key NULL: no member */
    enum { COUNT, DIGEST, REAL } kind;
    int64_t n;
    double real; /* NAN: not known */
};
enum { N_FACTS = 8, PAGE_FACT = 6 };

static void facts_of(const struct what_if_side *s, struct fact f[N_FACTS])
{
    const struct step_rec *r = &s->rec;
    f[0] = (struct fact){"drafted nodes", "drafted", COUNT, r->drafted, 0};
    f[1] = (struct fact){"accepted", "accepted", COUNT, r->accepted, 0};
    f[2] = (struct fact){"new tokens", NULL, COUNT, s->n_token, 0};
    f[3] = (struct fact){"last margin", "margin", REAL, 0, s->failed ? NAN : (double)r->margin};
    f[4] = (struct fact){"draft", "draft_digest", DIGEST, (int64_t)r->draft_digest, 0};
    f[5] = (struct fact){"logits", "logit_digest", DIGEST, (int64_t)r->logit_digest, 0};
    f[PAGE_FACT] = (struct fact){"page tables", "page_digest", DIGEST, (int64_t)r->page_digest, 0};
    f[7] = (struct fact){"microseconds", "us", COUNT,
                         (int64_t)r->us_draft + r->us_verify + r->us_commit, 0};
}

static void row(const struct printer *to, const char *name, const char *x, const char *y)
{
    print_note(to, ST_TEXT, "%-16s %-22s %s", name, x, y);
}

static const char *cell(const struct fact *f, bool failed, char out[24])
{
    if (f->kind == REAL ? isnan(f->real) : f->kind == DIGEST ? f->n == 0 : failed)
        return "-";
    if (f->kind == REAL)
        snprintf(out, 24, "%.4f", f->real);
    else
        snprintf(out, 24, f->kind == DIGEST ? "%016llx" : "%lld", (long long)f->n);
    return out;
}

static void fact_row(const struct what_if *w, const struct fact *x, const struct fact *y,
                     const struct printer *to)
{
    char a[24], b[24];
    row(to, x->name, cell(x, w->side[0].failed, a),
        x->kind == DIGEST && x->n == y->n ? "equal" : cell(y, w->side[1].failed, b));
}

static void side_json(struct app *a, const struct what_if_side *s, const struct fact f[N_FACTS],
                      const struct printer *to)
{
    struct buf *json = to->json;
    for (int i = 0; i < N_FACTS && !s->failed; i++) {
        if (!f[i].key || (f[i].kind == REAL && isnan(f[i].real)))
            continue;
        jput_key(json, f[i].key);
        if (f[i].kind == REAL)
            jput_real(json, f[i].real);
        else if (f[i].kind == DIGEST)
            jput_digest(json, (uint64_t)f[i].n);
        else
            jput_int(json, f[i].n);
    }
    if (s->failed)
        jput_kstr(json, "fault", s->why);
    else
        print_tokens(a, "", s->token, s->n_token, to);
}

static void compare(struct app *a, const struct what_if *w, const struct printer *to)
{
    struct fact f[2][N_FACTS];
    bool paged = w->side[0].rec.fused == w->side[1].rec.fused;
    facts_of(&w->side[0], f[0]);
    facts_of(&w->side[1], f[1]);
    for (int s = 0; to->json && s < 2; s++) {
        PRINT_IN(to, s ? "changed" : "as_it_is", '{');
        side_json(a, &w->side[s], f[s], to);
    }
    for (int i = 0; i < N_FACTS; i++)
        if (i == PAGE_FACT && w->other_pools)
            row(to, f[0][i].name, "-", "of other pools");
        else if (i != PAGE_FACT || paged)
            fact_row(w, &f[0][i], &f[1][i], to);
    for (int s = 0; !to->json && s < 2; s++)
        if (!w->side[s].failed)
            print_tokens(a, s ? "  changed        " : "tokens, as it is ", w->side[s].token,
                         w->side[s].n_token, to);
    for (int s = 0; s < 2; s++)
        if (w->side[s].failed)
            print_note(to, ST_BAD, "%s: %s", s ? w->change : "as it is", w->side[s].why);
}

static void verdict(const struct what_if *w, const struct printer *to)
{
    const struct what_if_side *x = &w->side[0], *y = &w->side[1];
    int same = same_tokens(w);
    if (x->failed || y->failed)
        return;
    if (same < x->n_token && same < y->n_token)
        print_note(to, ST_WARN, "the tokens differ from token %d of the step on", same + 1);
    else
        print_note(to, ST_GOOD, "the %d token%s that both emit are the same", same, plural(same));
}

static void write_answer(struct app *a, const void *arg, const struct printer *to)
{
    const struct what_if *w = arg;
    print_open(to, NULL, '{');
    print_facts(to, ST_HEAD, "\f%s{what_if}\fstep %d{turn}.%d{step}, computed twice and dropped",
                w->change, w->turn, w->step);
    print_facts(to, w->same ? ST_WARN : ST_TEXT, "%s%s{was}\f%d{same_settings?}%d{same_tokens}"
                "%d{other_pools?}", w->same ? "nothing was changed: the turn has " : "as it is: ",
                w->was, w->same, same_tokens(w), w->other_pools);
    row(to, "", "as it is", w->change);
    compare(a, w, to);
    verdict(w, to);
    print_close(to, '}');
    if (w->other_pools)
        print_note(to, ST_DIM, "the changed step ran on pools of its own, after the %d tokens of "
                   "the context; %.0f ms in all", w->n_context, w->ms);
}

void app_show_what_if(struct app *a, const struct event *ev)
{
    const struct what_if *w = ev->what_if;
    a->n_what_if -= a->n_what_if > 0;
    if (!w) {
        struct err e = {0};
        err_set(&e, ERR_USAGE, "%s", ev->text.p ? ev->text.p : "there is no step to compare");
        app_error(a, &e);
        return;
    }
    app_print(a, write_answer, w);
}
