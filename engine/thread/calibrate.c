/* calibrate.c - see calibrate.h. */
#include "engine/thread/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/thread/load.h"
#include "engine/thread/redraft.h"

_Static_assert((int)CALIB_CAPTURES == (int)MAX_CAPTURE, "a reading lists all captured layers");

enum { TEXT_MAX = 512, REPLY_MAX = 96 };

struct scorer {
    const struct calib_opts *o;
    struct runtime runtime;
    struct calibration *c;
    uint8_t hit[CALIB_ROWS][CALIB_TOKENS];
};

/* ---- the readings ---------------------------------------------------------------------------- */

static void add_reading(struct scorer *s, const char *name, const int *boundary)
{
    struct calibration *c = s->c;
    size_t bytes = (size_t)c->n_capture * sizeof *boundary;
    for (int i = 0; i < c->n_capture; i++)
        if (boundary[i] < 0 || boundary[i] > s->o->l->model.cfg.n_layer)
            return;
    for (int r = 0; r < c->n_row; r++)
        if (memcmp(c->row[r].boundary, boundary, bytes) == 0)
            return;
    CHECK(c->n_row < CALIB_ROWS);
    int row = c->n_row++;
    snprintf(c->row[row].reading, sizeof c->row[row].reading, "%s", name);
    memcpy(c->row[row].boundary, boundary, bytes);
}

static void list_readings(struct scorer *s)
{
    const struct draft *d = &s->o->l->draft;
    int n = s->o->l->model.cfg.n_layer, low[MAX_CAPTURE], high[MAX_CAPTURE];
    s->c->n_capture = d->n_capture;
    for (int i = 0; i < d->n_capture; i++) {
        low[i] = d->capture[i] - 1;
        high[i] = d->capture[i] + 1;
    }
    add_reading(s, d->capture_from, d->capture);
    add_reading(s, "one layer lower", low);
    add_reading(s, "one layer higher", high);
    if (d->n_capture == 3)
        add_reading(s, "default (2, n/2, n-3)", (const int[]){2, n / 2, n - 3});
}

/* ---- scoring a text -------------------------------------------------------------------------- */

static bool cancelled(const struct scorer *s, struct err *e)
{
    return stop_asked(s->o->stop) && !err_set(e, ERR_NEGATIVE, "the calibration was stopped");
}

/* Runs the target over the whole text: captured states stay on the device, and choice[i] is the
 * target's greedy choice after token i. */
static bool run_target(struct scorer *s, struct lane *l, int32_t *choice, struct err *e)
{
    struct runtime *r = &s->runtime;
    const struct kernels *k = r->dev.k;
    int n = l->tok.n;
    struct plan_req req = {.seq = &l->seq, .n = n, .token = l->tok.v};
    if (!kv_reserve(&r->kv, &l->seq, n, e) || !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e))
        return false;
    if (!net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp, drafter_taps(r->drafter)))
        return !cancelled(s, e);
    runtime_choices(r, n, choice);
    kv_commit(&r->kv, &l->seq, n);
    return k->sync(r->dev.d, e);
}

/* Runs the head over slots [from, upto), which pair state i with token i + 1; *guess: its first
 * guess after the last one. seq has the draft's cells alone. */
static bool run_head(struct scorer *s, struct seq *seq, const struct ids *tok, int from, int upto,
                     int32_t *guess, struct err *e)
{
    struct runtime *r = &s->runtime;
    struct guess g = {0};
    struct tree t;
    int32_t rows[TEXT_MAX];
    struct plan_req req = {.seq = seq, .n = upto - from, .token = tok->v + from + 1,
                           .draft_from = from};
    struct drafting d = {seq, &g, 0, 1, &t, tok->v, upto + 1};
    seq->committed = upto;
    tree_init(&t, tok->v[upto]);
    for (int i = from; i < upto; i++)
        rows[i - from] = i;
    if (!kv_reserve_draft(&r->kv, seq, from, upto, e) ||
        !pass_prepare(&r->pass, PLAN_DRAFT_EXTEND, &req, 1, e))
        return false;
    head_extend(r->drafter->head, &r->pass, rows, &(int32_t){0}, 1, &g);
    kv_commit_draft(&r->kv, seq, upto);
    if (!drafter_grow(r->drafter, &r->pass, &d, 1, &(struct tree_shape){1, 1, 2}, e))
        return false;
    *guess = t.n > 1 ? t.token[1] : -1;
    return true;
}

/* Scores one reading on one text from slot `first` on. *n: tokens scored. */
static bool score(struct scorer *s, int row, const struct ids *text, int first, int at, int *n,
                  struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct seq seq = {0};
    int32_t choice[TEXT_MAX], guess;
    ids_cat(&l.tok, text->v, text->n);
    memcpy(s->runtime.drafter->head->taps.boundary, s->c->row[row].boundary,
           sizeof s->c->row[row].boundary);
    bool ok = run_target(s, &l, choice, e) &&
              (first == 0 || run_head(s, &seq, &l.tok, 0, first, &guess, e));
    *n = 0;
    for (int i = first; ok && i + 1 < text->n && at + *n < CALIB_TOKENS; i++) {
        ok = !cancelled(s, e) && run_head(s, &seq, &l.tok, i, i + 1, &guess, e);
        s->hit[row][at + (*n)++] = ok && guess == choice[i + 1];
    }
    kv_drop(&s->runtime.kv, &seq);
    lane_free(&s->runtime, &l);
    return ok;
}

static bool score_all(struct scorer *s, const struct ids *text, int first, struct err *e)
{
    int n = 0;
    for (int r = 0; r < s->c->n_row; r++)
        if (!score(s, r, text, first, s->c->tokens, &n, e))
            return false;
    s->c->tokens += n;
    return true;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* The target's own greedy answer to a prompt, both in *text. */
static bool answer(struct scorer *s, const struct chat *chat, const char *prompt,
                   struct ids *text, int *first, struct err *e)
{
    struct lane l = {.tap_row = -1}, *lp = &l;
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)prompt};
    struct step_limits one = {1};
    bool ok = chat_render(chat, &m, 1, &l.tok, e);
    int n = l.tok.n;
    if (ok && n + REPLY_MAX > s->runtime.context)
        ok = err_set(e, ERR_NEGATIVE, "the context of %d tokens is too short to score anything",
                     s->runtime.context);
    ok = ok && lane_extend(&s->runtime, &l, n, true, false, 1, e);
    while (ok && !l.stopped && l.tok.n < n + REPLY_MAX)
        ok = !cancelled(s, e) && lane_step(&s->runtime, &lp, &one, 1, NULL, e);
    if (ok)
        ids_cat(text, l.tok.v, l.tok.n);
    *first = max_int(0, n - 2); /* its guess is the reply's first token */
    lane_free(&s->runtime, &l);
    return ok;
}

static bool score_answers(struct scorer *s, const struct chat *chat, struct err *e)
{
    bool ok = true;
    for (int i = 0; redraft_message(i) && ok; i++) {
        struct ids text = {0};
        int first;
        if (s->c->tokens == CALIB_TOKENS)
            break;
        ok = answer(s, chat, redraft_message(i), &text, &first, e) && score_all(s, &text, first, e);
        ids_free(&text);
    }
    return ok;
}

static bool score_texts(struct scorer *s, struct err *e)
{
    const struct calib_opts *o = s->o;
    if (o->text && o->n_text > CALIB_TOKENS) {
        struct ids text = {0};
        ids_cat(&text, o->text, min_int(o->n_text, min_int(TEXT_MAX, s->runtime.context)));
        bool ok = score_all(s, &text, max_int(0, text.n - 1 - CALIB_TOKENS), e);
        ids_free(&text);
        return ok;
    }
    return score_answers(s, o->l->chat, e);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void judge_readings(struct scorer *s)
{
    struct calibration *c = s->c;
    for (int r = 0; r < c->n_row; r++)
        for (int i = 0; i < c->tokens; i++)
            c->row[r].agree += s->hit[r][i];
    for (int r = 1; r < c->n_row; r++)
        if (c->row[r].agree > c->row[c->best].agree)
            c->best = r;
    c->rival = -1;
    c->certain = c->tokens > 0 && c->row[c->best].agree > 0;
    for (int r = 0; r < c->n_row; r++) {
        int won = 0, lost = 0;
        if (r == c->best)
            continue;
        if (c->rival < 0 || c->row[r].agree > c->row[c->rival].agree)
            c->rival = r;
        for (int i = 0; i < c->tokens; i++) {
            won += s->hit[c->best][i] > s->hit[r][i];
            lost += s->hit[c->best][i] < s->hit[r][i];
        }
        c->certain &= won - lost > 2 * sqrt(won + lost);
    }
}

bool calibrate_run(const struct calib_opts *o, struct calibration *out, struct err *e)
{
    *out = (struct calibration){.rival = -1};
    if (!o->l->has_draft)
        return err_set(e, ERR_USAGE, "%s", o->l->draft_off);
    if (o->l->draft.n_capture == 0)
        return err_set(e, ERR_NEGATIVE, "this drafter has no captured layers to calibrate");
    struct scorer *s = xcalloc(1, sizeof *s);
    *s = (struct scorer){.o = o, .c = out};
    list_readings(s);
    struct runtime_shape shape = {.page_size = 16, .kv = o->l->dev.kv, .max_rows = TEXT_MAX,
                                  .context = min_int(o->l->model.cfg.max_pos, TEXT_MAX),
                                  .bugs = o->bugs};
    bool ok = loaded_runtime(&s->runtime, o->l, &shape, e);
    if (ok) {
        s->runtime.net.stop = s->runtime.dev.k->queued ? NULL : o->stop;
        ok = score_texts(s, e);
        runtime_close(&s->runtime);
    }
    out->stopped = !ok && stop_asked(o->stop);
    ok |= out->stopped;
    if (ok)
        judge_readings(s);
    free(s);
    return ok;
}
