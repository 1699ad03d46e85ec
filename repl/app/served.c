/* served.c - see served.h. What a server did not report is a dash in a table, and null in JSON. */
#include "repl/app/served.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/json.h"
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
    free(r->at);
    free(r->step);
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
    double *v = xmalloc(((size_t)r->n + 1) * sizeof *v);
    int n = 0;
    for (int i = 0; i < r->n; i++)
        if (!isnan(value_of(&r->at[i], c)))
            v[n++] = value_of(&r->at[i], c);
    struct spread s = spread_of(v, n);
    free(v);
    return s;
}

static struct spread gap_spread(const struct served_replies *r, double *tokens)
{
    double *v;
    int n = served_gaps(r, &v, tokens);
    struct spread s = spread_of(v, n);
    free(v);
    return s;
}

/* ---- as text --------------------------------------------------------------------------------- */

static void number(double v, char out[24])
{
    if (isnan(v))
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, "%.*f", v < 10 ? 2 : v < 1000 ? 1 : 0, v);
}

static void spread_line(struct sheet *out, const char *name, const struct spread *s,
                        const char *about)
{
    char a[24], b[24], c[24];
    number(s->median, a);
    number(s->p99, b);
    number(s->max, c);
    sheet_printf(out, ST_LABEL, "%-14s", name);
    sheet_printf(out, ST_TEXT, " %9s %9s %9s  ", a, b, c);
    sheet_add(out, ST_DIM, about);
    sheet_line(out);
}

static void count_text(int64_t n, char out[24])
{
    if (n < 0)
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, "%lld", (long long)n);
}

static void reply_rows(const struct served_replies *r, struct sheet *out)
{
    sheet_printf(out, ST_HEAD, "%5s %7s %7s %7s %9s %9s %9s  %s", "turn", "prompt", "cached",
                 "tokens", "first ms", "queue ms", "tokens/s", "end");
    sheet_line(out);
    for (int i = max_int(0, r->n - ROWS); i < r->n; i++) {
        const struct served_turn *t = &r->at[i];
        char n[3][24], v[3][24];
        count_text(t->served.prompt, n[0]);
        count_text(t->served.cached, n[1]);
        count_text(t->n_tokens, n[2]);
        number(value_of(t, C_FIRST), v[0]);
        number(t->served.ms_queue, v[1]);
        number(tokens_s(t), v[2]);
        sheet_printf(out, ST_TEXT, "%5d %7s %7s %7s %9s %9s %9s  ", t->turn, n[0], n[1], n[2], v[0],
                     v[1], v[2]);
        bool fine = t->reason == STOP_END || t->reason == STOP_MAX;
        sheet_add(out, fine ? ST_DIM : ST_WARN, t->served.finish[0] && fine ? t->served.finish
                  : stop_name(t->reason));
        sheet_line(out);
    }
}

void view_served_timing(const struct served_replies *r, int width, struct sheet *out)
{
    double tokens;
    char about[80];
    (void)width;
    sheet_add(out, ST_HEAD, "TIMING");
    sheet_printf(out, ST_TEXT, "  %d repl%s of %s", r->n, r->n == 1 ? "y" : "ies", r->kind ? r->kind
                 : "the server");
    sheet_line(out);
    if (r->n == 0) {
        sheet_add(out, ST_DIM, "no reply in this process yet; aerie show prints those of the log");
        sheet_line(out);
        return;
    }
    sheet_printf(out, ST_HEAD, "%-14s %9s %9s %9s", "", "median", "p99", "max");
    sheet_line(out);
    for (int c = 0; c < N_COLUMNS; c++) {
        struct spread s = column_spread(r, (enum column)c);
        if (s.n && c != C_SPEED)
            spread_line(out, column[c].name, &s, column[c].about);
    }
    struct spread gaps = gap_spread(r, &tokens), speed = column_spread(r, C_SPEED);
    snprintf(about, sizeof about, isnan(tokens) ? "ms, measured here"
                                                : "ms, measured here; %.2f tokens a piece", tokens);
    if (gaps.n)
        spread_line(out, "between pieces", &gaps, about);
    if (speed.n)
        spread_line(out, column[C_SPEED].name, &speed, column[C_SPEED].about);
    reply_rows(r, out);
    if (r->n > ROWS) {
        sheet_printf(out, ST_DIM, "the latest %d of %d replies", ROWS, r->n);
        sheet_line(out);
    }
}

static double ratio(int64_t part, int64_t whole)
{
    return part >= 0 && whole > 0 ? (double)part / (double)whole : NAN;
}

/* Whether a reply has a number of drafts at all. */
static bool drafted(const struct served_turn *t)
{
    return t->served.drafted >= 0;
}

void view_served_accept(const struct served_replies *r, int width, struct sheet *out)
{
    int64_t all = 0, good = 0;
    int n = 0;
    (void)width;
    for (int i = 0; i < r->n; i++)
        if (drafted(&r->at[i])) {
            all += r->at[i].served.drafted;
            good += max_int(0, (int)r->at[i].served.accepted);
            n++;
        }
    sheet_add(out, ST_HEAD, "ACCEPT");
    sheet_printf(out, ST_TEXT, "  by reply, as %s counts: %lld drafted, %lld accepted",
                 r->kind ? r->kind : "the server", (long long)all, (long long)good);
    sheet_line(out);
    if (n == 0) {
        sheet_add(out, ST_DIM, r->n ? "no reply said anything about drafts" : "no reply yet");
        sheet_line(out);
        return;
    }
    sheet_printf(out, ST_HEAD, "%5s %8s %8s %9s %8s %6s %12s", "turn", "tokens", "drafted",
                 "accepted", "steps", "rate", "tokens/step");
    sheet_line(out);
    for (int i = 0, k = 0; i < r->n; i++) {
        const struct served_turn *t = &r->at[i];
        char c[4][24], rate[24], length[24];
        if (!drafted(t) || k++ < n - ROWS)
            continue;
        count_text(t->n_tokens, c[0]);
        count_text(t->served.drafted, c[1]);
        count_text(t->served.accepted, c[2]);
        count_text(t->served.verifies, c[3]);
        number(ratio(t->served.accepted, t->served.drafted), rate);
        number(t->length, length);
        sheet_printf(out, ST_TEXT, "%5d %8s %8s %9s %8s %6s %12s", t->turn, c[0], c[1], c[2], c[3],
                     rate, length);
        sheet_line(out);
    }
    if (r->rate) {
        sheet_printf(out, ST_DIM, "rate = %s", r->rate);
        sheet_line(out);
    }
    sheet_printf(out, ST_DIM, r->length ? "tokens/step = %s"
                                        : "tokens/step: %s does not count its steps",
                 r->length ? r->length : r->kind ? r->kind : "the server");
    sheet_line(out);
}

static void stats_line(struct sheet *out, const char *label)
{
    sheet_printf(out, ST_LABEL, "%-8s", label);
    sheet_add(out, ST_TEXT, "  ");
}

void view_served_stats(const struct served_replies *r, struct sheet *out)
{
    const struct served_turn *t = r->n ? &r->at[r->n - 1] : NULL;
    char first[24], queue[24], prompt[24], cached[24];
    if (!t)
        return;
    number(value_of(t, C_FIRST), first);
    number(t->served.ms_queue, queue);
    count_text(t->served.prompt, prompt);
    count_text(t->served.cached, cached);
    stats_line(out, "latest");
    sheet_printf(out, ST_TEXT, "first token after %s ms", first);
    if (!isnan(t->served.ms_queue))
        sheet_printf(out, ST_TEXT, ", %s ms of them in the queue", queue);
    if (t->served.prompt >= 0)
        sheet_printf(out, ST_TEXT, "; prompt %s tokens, %s of them in the server's cache", prompt,
                     cached);
    sheet_line(out);
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static void put_spread(struct buf *json, const char *key, const struct spread *s)
{
    jput_key(json, key);
    jput_record(json, "%d{n}%g{median}%g{p99}%g{max}", s->n, s->median, s->p99, s->max);
}

static void put_reply(struct buf *json, const struct served_turn *t)
{
    jput_open(json, '{');
    jput_fields(json, "%d{turn}%ld{prompt:-1}%ld{cached:-1}%d{tokens}", t->turn, t->served.prompt,
                t->served.cached, t->n_tokens);
    for (int c = 0; c < N_COLUMNS; c++)
        jput_kreal(json, column[c].key, value_of(t, (enum column)c));
    jput_fields(json, "%s{finish}%s{end}", t->served.finish[0] ? t->served.finish : NULL,
                stop_name(t->reason));
    jput_close(json, '}');
}

void served_timing_json(const struct served_replies *r, struct buf *json)
{
    double tokens;
    struct spread gaps = gap_spread(r, &tokens);
    jput_open(json, '{');
    for (int c = 0; c < N_COLUMNS; c++) {
        struct spread s = column_spread(r, (enum column)c);
        put_spread(json, column[c].key, &s);
    }
    put_spread(json, "between_pieces_ms", &gaps);
    jput_kreal(json, "tokens_a_piece", tokens);
    jput_kopen(json, "replies", '[');
    for (int i = 0; i < r->n; i++)
        put_reply(json, &r->at[i]);
    jput_close(json, ']');
    jput_close(json, '}');
}

void served_accept_json(const struct served_replies *r, struct buf *json)
{
    jput_open(json, '{');
    jput_fields(json, "%s{server}%s{rate}%s{tokens_a_step}", r->kind, r->rate, r->length);
    jput_kopen(json, "replies", '[');
    for (int i = 0; i < r->n; i++) {
        const struct served_turn *t = &r->at[i];
        jput_record(json, "%d{turn}%d{tokens}%ld{drafted:-1}%ld{accepted:-1}%ld{steps:-1}%g{rate}"
                    "%g{tokens_a_step}", t->turn, t->n_tokens, t->served.drafted,
                    t->served.accepted, t->served.verifies,
                    ratio(t->served.accepted, t->served.drafted), t->length);
    }
    jput_close(json, ']');
    jput_close(json, '}');
}

void served_stats_json(const struct served_replies *r, struct buf *json)
{
    if (r->n)
        put_reply(json, &r->at[r->n - 1]);
    else
        jput_null(json);
}
