/* calibrate.c - see calibrate.h. */
#include "engine/thread/calibrate.h"

#include <math.h>

#include "engine/thread/load.h"
#include "engine/thread/redraft.h"

_Static_assert((int)CALIB_CAPTURES == (int)MAX_CAPTURE, "a reading lists all captured layers");

enum { TEXT_MAX = 512, REPLY_MAX = 96, TEXTS_MAX = 8 };

/* What is scored: a conversation, or greedy answers. */
struct texts {
    struct ids ids[TEXTS_MAX]; /* (n) */
    struct redraft_text text[TEXTS_MAX];
    int n, tokens; /* scored ones */
};

/* Adds a text, of which the tokens from `first` on are scored, as many as are still wanted. */
static void add_text(struct texts *texts, const int32_t *id, int n, int first)
{
    struct ids *ids = &texts->ids[texts->n];
    n = min_int(n, first + CALIB_TOKENS - texts->tokens);
    ids_cat(ids, id, n);
    texts->text[texts->n++] = (struct redraft_text){.id = ids->v, .n = n, .first = first};
    texts->tokens += n - first;
}

static bool add_answers(struct texts *texts, const struct calib_opts *o, struct err *e)
{
    bool ok = true;
    for (int i = 0; redraft_message(i) && ok && texts->tokens < CALIB_TOKENS; i++) {
        struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)redraft_message(i)};
        struct ids text = {0}, prompt = {0};
        ok = chat_render(o->l->chat, &m, 1, &prompt, e);
        ids_cat(&text, prompt.v, prompt.n);
        ok = ok && redraft_answer(o->l, &prompt, REPLY_MAX, o->stop, &text, e);
        if (ok && text.n > prompt.n)
            add_text(texts, text.v, text.n, prompt.n);
        ids_free(&text);
        ids_free(&prompt);
    }
    return ok;
}

static bool choose_texts(struct texts *texts, const struct calib_opts *o, struct err *e)
{
    if (o->n_text <= CALIB_TOKENS)
        return add_answers(texts, o, e);
    int n = min_int(o->n_text, min_int(TEXT_MAX, o->l->model.cfg.max_pos));
    add_text(texts, o->text, n, max_int(2, n - CALIB_TOKENS));
    return true;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static const char *reading_name(const struct draft *d, const struct reading *r)
{
    bool lower = true, higher = true;
    for (int i = 0; i < d->n_capture; i++) {
        lower &= r->boundary[i] == d->capture[i] - 1;
        higher &= r->boundary[i] == d->capture[i] + 1;
    }
    return r->of == READ_AS_IS ? d->capture_from
           : lower             ? "one layer lower"
           : higher            ? "one layer higher"
                               : "default (2, n/2, n-3)";
}

static void judge_readings(const struct draft *d, const struct redraft *re,
                           struct calibration *out)
{
    out->n_capture = d->n_capture;
    out->n_row = re->n;
    out->tokens = re->n ? re->tokens : 0;
    out->best = re->best;
    out->rival = -1;
    out->certain = out->tokens > 0 && re->r[re->best].hits > 0;
    CHECK(re->n <= CALIB_ROWS);
    for (int i = 0; i < re->n; i++) {
        const struct reading *r = &re->r[i];
        snprintf(out->row[i].reading, sizeof out->row[i].reading, "%s", reading_name(d, r));
        memcpy(out->row[i].boundary, r->boundary, sizeof r->boundary);
        out->row[i].agree = r->hits;
        if (i == re->best)
            continue;
        if (out->rival < 0 || r->hits > out->row[out->rival].agree)
            out->rival = i;
        out->certain &= r->behind - r->ahead > 2 * sqrt(r->behind + r->ahead);
    }
}

bool calibrate_run(const struct calib_opts *o, struct calibration *out, struct err *e)
{
    *out = (struct calibration){.rival = -1};
    if (!o->l->has_draft)
        return err_set(e, ERR_USAGE, "%s", o->l->draft_off);
    if (o->l->draft.n_capture == 0)
        return err_set(e, ERR_NEGATIVE, "this drafter has no captured layers to calibrate");
    struct texts texts = {0};
    FREED(free_at) struct redraft *re = xcalloc(1, sizeof *re);
    bool ok = choose_texts(&texts, o, e);
    struct redraft_opts ask = {.l = o->l, .text = texts.text, .n_text = texts.n,
                               .which = REDRAFT_LAYERS,
                               .stop = o->stop};
    ok = ok && redraft_run(&ask, re, e);
    out->stopped = re->stopped || (!ok && stop_asked(o->stop));
    if (ok || out->stopped)
        judge_readings(&o->l->draft, re, out);
    for (int i = 0; i < texts.n; i++)
        ids_free(&texts.ids[i]);
    return ok || out->stopped;
}
