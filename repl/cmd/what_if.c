/* what_if.c - /what-if: the next step of the paused turn computed twice, shown side by side.
 *
 * The engine's thread computes the step and posts EV_WHAT_IF. */
#include <math.h>
#include <stdio.h>

#include "engine/what_if.h"
#include "repl/cmd/cmd.h"

bool cmd_what_if(struct cmd_call *c)
{
    struct app *a = c->app;
    if (c->argc < 1)
        return arg_expected(c, "takes changes such as draft.topk=8");
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

static void row(struct sheet *out, const char *name, const char *x, const char *y)
{
    say_line(out, ST_TEXT, "%-16s %-22s %s", name, x, y);
}

static void number_row(struct sheet *out, const char *name, const struct what_if *w, int x, int y)
{
    char a[16], b[16];
    snprintf(a, sizeof a, "%d", x);
    snprintf(b, sizeof b, "%d", y);
    row(out, name, w->side[0].failed ? "-" : a, w->side[1].failed ? "-" : b);
}

static void digest_row(struct sheet *out, const char *name, uint64_t x, uint64_t y)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%016llx", (unsigned long long)x);
    snprintf(b, sizeof b, "%016llx", (unsigned long long)y);
    row(out, name, x ? a : "-", x == y ? "equal" : y ? b : "-");
}

static void print_margin(char *out, size_t n, const struct what_if_side *s)
{
    if (s->failed || isnan(s->rec.margin))
        snprintf(out, n, "-");
    else
        snprintf(out, n, "%.4f", (double)s->rec.margin);
}

static void compared(struct app *a, const struct what_if *w, struct sheet *out)
{
    const struct step_rec *x = &w->side[0].rec, *y = &w->side[1].rec;
    struct buf tokens = {0};
    char m[2][24];
    print_margin(m[0], sizeof m[0], &w->side[0]);
    print_margin(m[1], sizeof m[1], &w->side[1]);
    number_row(out, "drafted nodes", w, x->drafted, y->drafted);
    number_row(out, "accepted", w, x->accepted, y->accepted);
    number_row(out, "new tokens", w, w->side[0].n_token, w->side[1].n_token);
    row(out, "last margin", m[0], m[1]);
    digest_row(out, "draft", x->draft_digest, y->draft_digest);
    digest_row(out, "logits", x->logit_digest, y->logit_digest);
    if (w->other_pools)
        row(out, "page tables", "-", "of other pools");
    else if (x->fused == y->fused)
        digest_row(out, "page tables", x->page_digest, y->page_digest);
    number_row(out, "microseconds", w, (int)(x->us_draft + x->us_verify + x->us_commit),
               (int)(y->us_draft + y->us_verify + y->us_commit));
    for (int s = 0; s < 2; s++) {
        buf_clear(&tokens);
        tokens_text(a, w->side[s].token, w->side[s].n_token, &tokens);
        if (!w->side[s].failed)
            say_line(out, ST_TEXT, "%-16s %s", s ? "  changed" : "tokens, as it is",
                     tokens.p ? tokens.p : "");
    }
    buf_free(&tokens);
}

static void verdict(const struct what_if *w, struct sheet *out)
{
    const struct what_if_side *x = &w->side[0], *y = &w->side[1];
    int same = same_tokens(w);
    if (x->failed || y->failed)
        return;
    if (same < x->n_token && same < y->n_token)
        say_line(out, ST_WARN, "the tokens differ from token %d of the step on", same + 1);
    else
        say_line(out, ST_GOOD, "the %d token%s that both emit are the same", same, plural(same));
}

static void show_text(struct app *a, const struct what_if *w, struct sheet *out)
{
    say_line(out, ST_HEAD, "step %d.%d, computed twice and dropped", w->turn, w->step);
    if (w->same)
        say_line(out, ST_WARN, "nothing was changed: the turn has %s", w->was);
    else
        say_line(out, ST_TEXT, "as it is: %s", w->was);
    row(out, "", "as it is", w->change);
    compared(a, w, out);
    for (int s = 0; s < 2; s++)
        if (w->side[s].failed)
            say_line(out, ST_BAD, "%s: %s", s ? w->change : "as it is", w->side[s].why);
    verdict(w, out);
    if (w->other_pools)
        say_line(out, ST_DIM, "the changed step ran on pools of its own, after the %d tokens of "
                 "the context; %.0f ms in all", w->n_context, w->ms);
}

static void side_json(struct app *a, const char *key, const struct what_if_side *s,
                      const struct printer *to)
{
    const struct step_rec *r = &s->rec;
    print_open(to, key, '{');
    if (s->failed) {
        jput_kstr(to->json, "fault", s->why);
    } else {
        jput_fields(to->json, "%d{drafted}%d{accepted}", r->drafted, r->accepted);
        if (!isnan(r->margin))
            jput_kreal(to->json, "margin", (double)r->margin);
        jput_fields(to->json, "%016lx{draft_digest}%016lx{logit_digest}%016lx{page_digest}%ld{us}",
                    r->draft_digest, r->logit_digest, r->page_digest,
                    (int64_t)r->us_draft + r->us_verify + r->us_commit);
        tokens_json(a, s->token, s->n_token, to);
    }
    print_close(to, '}');
}

static void show_json(struct app *a, const struct what_if *w, const struct printer *to)
{
    print_open(to, NULL, '{');
    jput_fields(to->json,
                "%s{what_if}%d{turn}%d{step}%s{was}%d{same_settings?}%d{same_tokens}"
                "%d{other_pools?}",
                w->change, w->turn, w->step, w->was, w->same, same_tokens(w), w->other_pools);
    side_json(a, "as_it_is", &w->side[0], to);
    side_json(a, "changed", &w->side[1], to);
    print_close(to, '}');
}

static void write_answer(struct app *a, const void *arg, const struct printer *to)
{
    if (to->json)
        show_json(a, arg, to);
    else
        show_text(a, arg, to->out);
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
