/* served.c - see served.h. What a server did not report is a dash in a table, and null in JSON. */
#include "repl/app/served.h"

#include <math.h>

#include "kernels/sort.h"
#include "repl/repl.h"

enum { ROWS = 12 /* replies that a table shows */ };

/* ---- numbers --------------------------------------------------------------------------------- */

void served_replies_read(struct served_replies *r, struct backend *b)
{
    *r = (struct served_replies){.kind = backend_info(b)->server_kind, .rate = b->served->rate,
                                 .length = b->served->length,
                                 .at = xmalloc(SERVED_KEPT * sizeof *r->at),
                                 .step = xmalloc(STEPS_KEPT * sizeof *r->step)};
    r->n = b->served->turns(b, r->at, SERVED_KEPT);
    if (b->steps)
        r->n_step = b->steps->latest(b, r->step, STEPS_KEPT);
}

void served_replies_free(struct served_replies *r)
{
    FREE(r->at, r->step);
    *r = (struct served_replies){0};
}

struct spread spread_of(double *v, int n)
{
    if (n == 0)
        return (struct spread){NAN, NAN, NAN, 0};
    sort_up(v, n);
    int median = (n + 1) / 2, p99 = (int)ceil(0.99 * n);
    return (struct spread){v[median - 1], v[max_int(p99, 1) - 1], v[n - 1], n};
}

int served_gaps(const struct served_replies *r, double **out, double *tokens)
{
    double *v = xmalloc(((size_t)r->n_step + 1) * sizeof *v), all = 0;
    int n = 0;
    for (int i = 1; i < r->n_step; i++) {
        const struct step_info *a = &r->step[i - 1], *b = &r->step[i];
        if (a->turn != b->turn || b->rec.us_arrived < a->rec.us_arrived)
            continue;
        v[n++] = (double)(b->rec.us_arrived - a->rec.us_arrived) / 1e3;
        all += b->n_token;
    }
    *out = v;
    *tokens = n && all > 0 ? all / n : NAN;
    return n;
}

static double tokens_s(const struct served_turn *t)
{
    double v = reply_tok_s(t->n_tokens, t->us_decode);
    return v > 0 ? v : NAN;
}

/* One number for each reply. */
enum column { C_FIRST, C_QUEUE, C_SERVER_FIRST, C_PROMPT, C_DECODE, C_SPEED, N_COLUMNS };
static const struct {
    const char *name, *key, *about;
} column[N_COLUMNS] = {
    [C_FIRST] = {"first token", "first_ms", "ms after sending, measured here"},
    [C_QUEUE] = {"queue", "queue_ms", "ms in the server's queue, as it reports"},
    [C_SERVER_FIRST] = {"first, server", "server_first_ms",
                        "ms to the first token, as the server reports"},
    [C_PROMPT] = {"prompt", "prompt_ms", "ms for the prompt, as the server reports"},
    [C_DECODE] = {"decode", "decode_ms", "ms for the tokens after it, as the server reports"},
    [C_SPEED] = {"tokens/s", "tokens_s", "after the first, measured here"},
};

static double value_of(const struct served_turn *t, enum column c)
{
    switch (c) {
    case C_FIRST: return t->us_first ? (double)t->us_first / 1e3 : NAN;
    case C_QUEUE: return t->served.ms_queue;
    case C_SERVER_FIRST: return t->served.ms_first;
    case C_PROMPT: return t->served.ms_prompt;
    case C_DECODE: return t->served.ms_decode;
    default: return tokens_s(t);
    }
}

static struct spread column_spread(const struct served_replies *r, enum column c)
{
    FREED(free_at) double *v = xmalloc(((size_t)r->n + 1) * sizeof *v);
    int n = 0;
    for (int i = 0; i < r->n; i++)
        if (!isnan(value_of(&r->at[i], c)))
            v[n++] = value_of(&r->at[i], c);
    return spread_of(v, n);
}

static struct spread gap_spread(const struct served_replies *r, double *tokens)
{
    FREED(free_at) double *v = NULL;
    int n = served_gaps(r, &v, tokens);
    return spread_of(v, n);
}

/* ---- what is shown --------------------------------------------------------------------------- */

static void number(double v, char out[24])
{
    if (isnan(v))
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, "%.*f", v < 10 ? 2 : v < 1000 ? 1 : 0, v);
}

static void show_spread(const char *key, const char *name, const struct spread *s,
                        const char *about, const struct printer *to)
{
    char a[24], b[24], c[24];
    if (!s->n && !to->json)
        return;
    number(s->median, a);
    number(s->p99, b);
    number(s->max, c);
    PRINT_IN(to, key, '{');
    print_add(to, ST_LABEL, "%-14s\v\f%d{n}%g{median}%g{p99}%g{max}\f %9s %9s %9s  ", name, s->n,
              s->median, s->p99, s->max, a, b, c);
    print_note(to, ST_DIM, "%s", about);
}

static void show_column(const struct served_replies *r, enum column c, const struct printer *to)
{
    struct spread s = column_spread(r, c);
    show_spread(column[c].key, column[c].name, &s, column[c].about, to);
}

/* The members of a reply, which are also the row of a table. */
static void show_reply(const struct served_turn *t, const struct printer *to)
{
    char first[24], queue[24], speed[24];
    bool fine = t->reason == STOP_END || t->reason == STOP_MAX;
    number(value_of(t, C_FIRST), first);
    number(t->served.ms_queue, queue);
    number(tokens_s(t), speed);
    print_add(to, ST_TEXT, "%5d{turn} %7ld{prompt:-1} %7ld{cached:-1} %7d{tokens:-1} %9s %9s %9s  ",
              t->turn, t->served.prompt, t->served.cached, t->n_tokens, first, queue, speed);
    for (int c = 0; c < N_COLUMNS; c++)
        print_real(to, column[c].key, value_of(t, (enum column)c));
    print_add(to, fine ? ST_DIM : ST_WARN, "\f%s{finish}%s{end}\f%s",
              t->served.finish[0] ? t->served.finish : NULL, stop_name(t->reason),
              t->served.finish[0] && fine ? t->served.finish : stop_name(t->reason));
    print_end(to);
}

static const char *server_of(const struct served_replies *r)
{
    return r->kind ? r->kind : "the server";
}

void served_timing(const struct served_replies *r, const struct printer *to)
{
    double tokens;
    char about[80];
    struct spread gaps = gap_spread(r, &tokens);
    print_note(to, ST_HEAD, "TIMING\v  %d repl%s of %s", r->n, r->n == 1 ? "y" : "ies",
               server_of(r));
    if (r->n == 0)
        print_note(to, ST_DIM, "no reply in this process yet; aerie show prints those of the log");
    else
        print_note(to, ST_HEAD, "%-14s %9s %9s %9s", "", "median", "p99", "max");
    print_open(to, NULL, '{');
    for (int c = 0; c < C_SPEED; c++)
        show_column(r, (enum column)c, to);
    snprintf(about, sizeof about, isnan(tokens) ? "ms, measured here"
                                                : "ms, measured here; %.2f tokens a piece", tokens);
    show_spread("between_pieces_ms", "between pieces", &gaps, about, to);
    show_column(r, C_SPEED, to);
    print_real(to, "tokens_a_piece", tokens);
    if (r->n)
        print_note(to, ST_HEAD, "%5s %7s %7s %7s %9s %9s %9s  %s", "turn", "prompt", "cached",
                   "tokens", "first ms", "queue ms", "tokens/s", "end");
    print_open(to, "replies", '[');
    for (int i = to->json ? 0 : max_int(0, r->n - ROWS); i < r->n; i++) {
        PRINT_IN(to, NULL, '{');
        show_reply(&r->at[i], to);
    }
    print_close(to, ']');
    print_close(to, '}');
    if (r->n > ROWS)
        print_note(to, ST_DIM, "the latest %d of %d replies", ROWS, r->n);
}

static double ratio(int64_t part, int64_t whole)
{
    return part >= 0 && whole > 0 ? (double)part / (double)whole : NAN;
}

static void show_drafts(const struct served_turn *t, const struct printer *to)
{
    double rate = ratio(t->served.accepted, t->served.drafted);
    char rated[24], length[24];
    number(rate, rated);
    number(t->length, length);
    print_line(to, ST_TEXT, "%5d{turn} %8d{tokens:-1} %8ld{drafted:-1} %9ld{accepted:-1} "
               "%8ld{steps:-1}\f%g{rate}%g{tokens_a_step}\f %6s %12s", t->turn, t->n_tokens,
               t->served.drafted, t->served.accepted, t->served.verifies, rate, t->length, rated,
               length);
}

void served_accept(const struct served_replies *r, const struct printer *to)
{
    int64_t all = 0, good = 0;
    int n = 0, k = 0;
    for (int i = 0; i < r->n; i++)
        if (r->at[i].served.drafted >= 0) {
            all += r->at[i].served.drafted;
            good += max_int(0, (int)r->at[i].served.accepted);
            n++;
        }
    print_note(to, ST_HEAD, "ACCEPT\v  by reply, as %s counts: %ld drafted, %ld accepted",
               server_of(r), all, good);
    if (n == 0)
        print_note(to, ST_DIM, r->n ? "no reply said anything about drafts" : "no reply yet");
    else
        print_note(to, ST_HEAD, "%5s %8s %8s %9s %8s %6s %12s", "turn", "tokens", "drafted",
                   "accepted", "steps", "rate", "tokens/step");
    print_open(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{server}%s{rate}%s{tokens_a_step}", r->kind, r->rate, r->length);
    print_open(to, "replies", '[');
    for (int i = 0; i < r->n; i++)
        if (to->json || (r->at[i].served.drafted >= 0 && k++ >= n - ROWS))
            show_drafts(&r->at[i], to);
    print_close(to, ']');
    print_close(to, '}');
    if (n && r->rate)
        print_note(to, ST_DIM, "rate = %s", r->rate);
    if (n)
        print_note(to, ST_DIM, r->length ? "tokens/step = %s"
                                         : "tokens/step: %s does not count its steps",
                   r->length ? r->length : server_of(r));
}

void served_latest(const struct served_replies *r, const struct printer *to)
{
    const struct served_turn *t = r->n ? &r->at[r->n - 1] : NULL;
    char first[24], queue[24];
    if (!t) {
        print_none(to, "latest");
        return;
    }
    if (to->json) {
        print_open(to, "latest", '{');
        show_reply(t, to);
        print_close(to, '}');
        return;
    }
    number(value_of(t, C_FIRST), first);
    number(t->served.ms_queue, queue);
    print_add(to, ST_LABEL, "%-8s\v  first token after %s ms", "latest", first);
    if (!isnan(t->served.ms_queue))
        print_add(to, ST_TEXT, ", %s ms of them in the queue", queue);
    if (t->served.prompt >= 0)
        print_add(to, ST_TEXT, "; prompt %ld tokens, %ld{cached:-1} of them in the server's cache",
                  t->served.prompt, t->served.cached);
    print_end(to);
}
