/* report.c - events of a batch and of a calibration as text and as JSON. See repl.h. */

#include "kernels/json.h"
#include "repl/app/report.h"

/* ---- batches --------------------------------------------------------------------------------- */

static void print_reply(const struct event *ev, const struct printer *to)
{
    const struct batch_rec *r = &ev->batch;
    print_add(to, ST_DIM, "\f%d{index}\freply %d of %d", r->index, r->index + 1, r->count);
    print_facts(to, ST_DIM, r->refused
                    ? "\f%d{prompt_tokens}%d{reused_tokens}%d{tokens}%s%s"
                    : "\f%d{prompt_tokens}%d{reused_tokens}\f (%d{tokens} token%s, %s)",
                r->n_prompt, r->n_reused, r->n_tokens, plural(r->n_tokens), stop_name(ev->reason));
    print_add(to, ST_TEXT, "\f%d{steps}%d{drafted}%d{accepted}%s{reason}", ev->n_steps,
              ev->n_drafted, ev->n_accepted, stop_name(ev->reason));
    print_body(to, r->refused ? ST_BAD : ST_TEXT, r->refused ? "error" : "reply", &ev->text);
}

static void print_batch(const struct event *ev, const struct printer *to)
{
    const struct batch_rec *r = &ev->batch;
    print_add(to, ST_DIM, "%d{replies} of %d{of} repl%s complete in one batch; %d{computed_tokens} "
              "prompt token%s computed, %d{shared_pages} page%s shared", r->n_done, r->count,
              r->count == 1 ? "y" : "ies", r->n_computed, plural(r->n_computed), r->n_shared,
              plural(r->n_shared));
    print_add(to, ST_DIM, "\f%d{tokens}%d{steps}%d{drafted}%d{accepted}%lu{us}", r->n_tokens,
              ev->n_steps, ev->n_drafted, ev->n_accepted, ev->us_decode);
    print_add(to, ST_DIM, ev->reason != STOP_END ? "; stopped: %s{reason}" : "\f%s{reason}",
              stop_name(ev->reason));
    print_end(to);
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

void report_calibration(const struct calibration *c, const struct printer *to)
{
    char a[96], b[96];
    print_note(to, ST_TEXT, "the head's first guess against the target's choice, %d token%s%s",
               c->tokens, plural(c->tokens), c->stopped ? "; stopped before all were scored" : "");
    print_open(to, "calibration", '[');
    for (int r = 0; r < c->n_row; r++) {
        PRINT_IN(to, NULL, '{');
        print_str(to, "reading", c->row[r].reading);
        print_ints(to, "boundaries", c->row[r].boundary, c->n_capture);
        print_facts(to, ST_TEXT,
                    "  %-14s %5.1f %%  %s%s\f%d{agree}%d{configured?}%d{best?}",
                    boundaries(c, r, a), c->tokens ? 100.0 * c->row[r].agree / c->tokens : 0,
                    r ? "" : "configured: ", c->row[r].reading, c->row[r].agree, r == 0,
                    r == c->best);
    }
    print_close(to, ']');
    print_add(to, ST_TEXT, "\f%d{tokens}%d{certain?}%d{stopped?}", c->tokens, c->certain,
              c->stopped);
    boundaries(c, c->best, a);
    if (!c->certain && c->rival >= 0 && c->tokens > 0)
        print_note(to, ST_TEXT, "too close to call between boundaries %s and %s", a,
                   boundaries(c, c->rival, b));
    else if (!c->certain)
        print_note(to, ST_TEXT, "nothing to choose from");
    else if (c->best == 0)
        print_note(to, ST_TEXT, "the head was trained for boundaries %s, as configured", a);
    else
        print_note(to, ST_TEXT, "the head was trained for boundaries %s, not %s: use "
                   "--eagle-capture %s", a, boundaries(c, 0, b), a);
}

/* ---- reuse ----------------------------------------------------------------------------------- */

void report_reuse(const struct reuse_view *r, struct buf *json)
{
    const struct reuse *w = &r->why;
    FREED(buf_free) struct buf text = {0};
    jput_key(json, "reuse");
    if (w->change == CHANGE_UNKNOWN) {
        jput_null(json);
        return;
    }
    reuse_text(w, r->n_prompt, r->n_reused, &text);
    JPUT_IN(json, '{');
    jput_kstr(json, "change", reuse_change_name(w->change));
    if (w->turn)
        jput_kint(json, "turn", w->turn);
    jput_fields(json, "%d{held}%d{same}%s{limited}", w->held, w->same,
                w->limit == LIMIT_NONE ? NULL : reuse_limit_name(w->limit));
    if (w->limit != LIMIT_NONE)
        jput_fields(json, "%d{from}%d{to}", w->from, w->to);
    jput_fields(json, "%d{again}%s{text}", reuse_again(w, r->n_prompt, r->n_reused), text.p);
}

/* ---- events ---------------------------------------------------------------------------------- */

bool report_event(const struct event *ev, const struct printer *to)
{
    bool reply = ev->kind == EV_BATCH_REPLY, end = ev->kind == EV_BATCH_END;
    if (!reply && !end && !(ev->kind == EV_CALIBRATION && ev->calibration))
        return false;
    PRINT_IN(to, NULL, '{');
    if (reply)
        print_reply(ev, to);
    else if (end)
        print_batch(ev, to);
    else
        report_calibration(ev->calibration, to);
    return true;
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
    for (size_t i = 0; i < LEN(row); i++)
        if (row[i].bytes)
            print_note(to, ST_TEXT, "%-20s%12s", row[i].name, size_text(row[i].bytes).s);
}

const char *report_shape(const struct auto_view_shape *x, char out[16])
{
    if (x->steps)
        snprintf(out, 16, "%d-%d-%d", x->steps, x->topk, x->nodes);
    else
        snprintf(out, 16, "plain");
    return out;
}
