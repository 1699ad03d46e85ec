/* report.c - events of a batch and of a calibration as text and as JSON. See repl.h. */
#include <stdio.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/repl.h"

/* ---- batches --------------------------------------------------------------------------------- */

static void add_text(struct sheet *out, enum style st, const struct buf *text)
{
    for (size_t at = 0, n; at < text->n; at += n + 1) {
        const char *line = text->p + at, *end = memchr(line, '\n', text->n - at);
        n = end ? (size_t)(end - line) : text->n - at;
        sheet_addn(out, st, line, n);
        sheet_line(out);
    }
}

void report_reply_head(const struct event *ev, struct sheet *out)
{
    int n = ev->batch.n_tokens;
    sheet_printf(out, ST_DIM, "reply %d of %d", ev->batch.index + 1, ev->batch.count);
    if (ev->kind == EV_BATCH_REPLY && !ev->batch.refused)
        sheet_printf(out, ST_DIM, " (%d token%s, %s)", n, plural(n), stop_name(ev->reason));
    sheet_line(out);
}

static void reply_json(const struct event *ev, struct buf *out)
{
    const struct batch_rec *r = &ev->batch;
    jput_fields(out, "%d{index}%d{prompt_tokens}%d{reused_tokens}%d{tokens}%d{steps}%d{drafted}"
                "%d{accepted}%s{reason}", r->index, r->n_prompt, r->n_reused, r->n_tokens,
                ev->n_steps, ev->n_drafted, ev->n_accepted, stop_name(ev->reason));
    jput_key(out, r->refused ? "error" : "reply");
    jput_strn(out, ev->text.p ? ev->text.p : "", ev->text.n);
}

static void end_json(const struct event *ev, struct buf *out)
{
    const struct batch_rec *r = &ev->batch;
    jput_fields(out, "%d{replies}%d{of}%d{computed_tokens}%d{shared_pages}%d{tokens}%d{steps}"
                "%d{drafted}%d{accepted}%lu{us}%s{reason}", r->n_done, r->count, r->n_computed,
                r->n_shared, r->n_tokens, ev->n_steps, ev->n_drafted, ev->n_accepted, ev->us_decode,
                stop_name(ev->reason));
}

static void end_text(const struct event *ev, struct sheet *out)
{
    const struct batch_rec *r = &ev->batch;
    sheet_printf(out, ST_DIM, "%d of %d repl%s complete in one batch; %d prompt token%s computed, "
                              "%d page%s shared",
                 r->n_done, r->count, r->count == 1 ? "y" : "ies", r->n_computed,
                 plural(r->n_computed), r->n_shared, plural(r->n_shared));
    if (ev->reason != STOP_END)
        sheet_printf(out, ST_DIM, "; stopped: %s", stop_name(ev->reason));
    sheet_line(out);
}

/* ---- calibration ----------------------------------------------------------------------------- */

/* "2,4,5" */
static const char *boundaries(const struct calibration *c, int row, char out[96])
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < c->n_capture && n < 96; i++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%d", i ? "," : "", c->row[row].boundary[i]);
    return out;
}

void report_calibration(const struct calibration *c, struct buf *out)
{
    char a[96], b[96];
    buf_printf(out, "the head's first guess against the target's choice, %d token%s%s\n", c->tokens,
               plural(c->tokens), c->stopped ? "; stopped before all were scored" : "");
    for (int r = 0; r < c->n_row; r++)
        buf_printf(out, "  %-14s %5.1f %%  %s%s\n", boundaries(c, r, a),
                   c->tokens ? 100.0 * c->row[r].agree / c->tokens : 0, r ? "" : "configured: ",
                   c->row[r].reading);
    boundaries(c, c->best, a);
    if (!c->certain && c->rival >= 0 && c->tokens > 0)
        buf_printf(out, "too close to call between boundaries %s and %s\n", a,
                   boundaries(c, c->rival, b));
    else if (!c->certain)
        buf_printf(out, "nothing to choose from\n");
    else if (c->best == 0)
        buf_printf(out, "the head was trained for boundaries %s, as configured\n", a);
    else
        buf_printf(out, "the head was trained for boundaries %s, not %s: use --eagle-capture %s\n",
                   a, boundaries(c, 0, b), a);
}

static void row_json(const struct calibration *c, int r, struct buf *out)
{
    jput_open(out, '{');
    jput_kstr(out, "reading", c->row[r].reading);
    jput_kopen(out, "boundaries", '[');
    for (int i = 0; i < c->n_capture; i++)
        jput_int(out, c->row[r].boundary[i]);
    jput_close(out, ']');
    jput_fields(out, "%d{agree}%d{configured?}%d{best?}", c->row[r].agree, r == 0, r == c->best);
    jput_close(out, '}');
}

static void calibration_json(const struct calibration *c, struct buf *out)
{
    jput_kopen(out, "calibration", '[');
    for (int r = 0; r < c->n_row; r++)
        row_json(c, r, out);
    jput_close(out, ']');
    jput_fields(out, "%d{tokens}%d{certain?}%d{stopped?}", c->tokens, c->certain, c->stopped);
}

/* ---- reuse ----------------------------------------------------------------------------------- */

void report_reuse(const struct reuse_view *r, struct buf *json)
{
    const struct reuse *w = &r->why;
    struct buf text = {0};
    jput_key(json, "reuse");
    if (w->change == CHANGE_UNKNOWN) {
        jput_null(json);
        return;
    }
    reuse_text(w, r->n_prompt, r->n_reused, &text);
    jput_open(json, '{');
    jput_kstr(json, "change", reuse_change_name(w->change));
    if (w->turn)
        jput_kint(json, "turn", w->turn);
    jput_fields(json, "%d{held}%d{same}%s{limited}", w->held, w->same,
                w->limit == LIMIT_NONE ? NULL : reuse_limit_name(w->limit));
    if (w->limit != LIMIT_NONE)
        jput_fields(json, "%d{from}%d{to}", w->from, w->to);
    jput_fields(json, "%d{again}%s{text}", reuse_again(w, r->n_prompt, r->n_reused), text.p);
    jput_close(json, '}');
    buf_free(&text);
}

/* ---- events ---------------------------------------------------------------------------------- */

bool report_json(const struct event *ev, struct buf *out)
{
    bool reply = ev->kind == EV_BATCH_REPLY, end = ev->kind == EV_BATCH_END;
    bool calib = ev->kind == EV_CALIBRATION && ev->calibration;
    if (!reply && !end && !calib)
        return false;
    jput_open(out, '{');
    if (reply)
        reply_json(ev, out);
    else if (end)
        end_json(ev, out);
    else
        calibration_json(ev->calibration, out);
    jput_close(out, '}');
    return true;
}

bool report_text(const struct event *ev, struct sheet *out)
{
    struct buf text = {0};
    switch (ev->kind) {
    case EV_BATCH_REPLY:
        report_reply_head(ev, out);
        add_text(out, ev->batch.refused ? ST_BAD : ST_TEXT, &ev->text);
        return true;
    case EV_BATCH_END: end_text(ev, out); return true;
    case EV_CALIBRATION:
        report_calibration(ev->calibration, &text);
        add_text(out, ST_TEXT, &text);
        buf_free(&text);
        return true;
    default: return false;
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct size_text size_text(uint64_t bytes)
{
    struct size_text t;
    if (bytes < 10 << 10)
        snprintf(t.s, sizeof t.s, "%llu B", (unsigned long long)bytes);
    else if (bytes < 1 << 20)
        snprintf(t.s, sizeof t.s, "%.1f KiB", (double)bytes / 0x1p10);
    else if (bytes < 1 << 30)
        snprintf(t.s, sizeof t.s, "%.1f MiB", (double)bytes / 0x1p20);
    else
        snprintf(t.s, sizeof t.s, "%.1f GiB", (double)bytes / 0x1p30);
    return t;
}

void report_need(const struct printer *to, const struct need *n)
{
    const struct {
        const char *name;
        size_t bytes;
    } row[] = {{"weights", n->weights}, {"draft's weights", n->draft},
               {"KV, full layers", n->cells[POOL_FULL]}, {"KV, sliding layers", n->cells[POOL_SWA]},
               {"KV, draft", n->cells[POOL_DRAFT]}, {"scratch", n->work}, {"in all", need_sum(n)}};
    print_add(to, ST_TEXT, "\f%lu{weights}%lu{draft}%lu{full}%lu{swa}%lu{draft_kv}%lu{scratch}"
              "%lu{all}", row[0].bytes, row[1].bytes, row[2].bytes, row[3].bytes, row[4].bytes,
              row[5].bytes, row[6].bytes);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].bytes)
            print_note(to, ST_TEXT, "%-20s%12s", row[i].name, size_text(row[i].bytes).s);
}
