/* test_keep.c - kept states: a lane that goes back and runs again computes the same bits, whatever
 * it and its neighbours wrote in between.
 *
 * Over the mock model, where a key read from a cell that was overwritten gives another number. A
 * lane runs beside checkpoints of it; states are kept on the way, and gone back to at random. What
 * each step left (record, tokens, tree, guess, page tables, pools, free lists, marks) was noted at
 * the first run, and every step that runs again is compared with its note. */
#include "engine/cycle/keep.h"
#include "tests/chance.h"
#include "tests/mock.h"

enum { STEPS = 60, KEPT = 5, POINTS = 2 };

struct world {
    struct runtime r;
    struct lane lane, point[POINTS];
    int n_point, at; /* at: steps run */
    struct buf note[STEPS + 1]; /* after step i; empty: not run yet */
    struct step_limits lim[STEPS];
    int shape[STEPS]; /* of the step: one of those in step() */
    struct kept kept[KEPT];
    int kept_at[KEPT], n_kept;
};

#define ADD(out, v) buf_add(out, &(v), sizeof(v))

static void add_lane(struct buf *out, const struct lane *l)
{
    const struct tree *t = &l->tree;
    size_t n = (size_t)t->n;
    buf_add(out, &l->rec, offsetof(struct step_rec, us_draft));
    int numbers[] = {l->behind, l->rec.forced, l->rec.fused, l->n_new, l->stopped, l->slot,
                     l->guess.n, l->seq.committed, l->seq.drafted, l->seq.swa_lo, l->seq.draft_lo,
                     l->tok.n, t->n};
    ADD(out, numbers);
    ADD(out, l->draws);
    ADD(out, l->seq.tail);
    buf_add(out, l->tok.v, (size_t)l->tok.n * sizeof *l->tok.v);
    buf_add(out, l->guess.token, (size_t)l->guess.n * sizeof *l->guess.token);
    buf_add(out, l->guess.logp, (size_t)l->guess.n * sizeof *l->guess.logp);
    buf_add(out, t->token, n * sizeof *t->token);
    buf_add(out, t->parent, n);
    buf_add(out, t->fate, n);
    buf_add(out, t->q, n * sizeof *t->q);
    buf_add(out, t->p, n * sizeof *t->p);
    buf_add(out, t->u, n * sizeof *t->u);
    buf_add(out, l->seq.col, (size_t)l->seq.n_col * sizeof *l->seq.col);
    buf_add(out, l->seq.dcol, (size_t)l->seq.n_dcol * sizeof *l->seq.dcol);
}

static struct buf everything(const struct world *w)
{
    const struct kv *kv = &w->r.kv;
    struct buf out = {0};
    add_lane(&out, &w->lane);
    ADD(&out, w->r.slots);
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool *pool = &kv->pool[p];
        if (!pool->total)
            continue;
        ADD(&out, pool->n_owned);
        ADD(&out, kv->held[p]);
        buf_add(&out, pool->ref, (size_t)pool->total * sizeof *pool->ref);
        buf_add(&out, pool->free, (size_t)pool->n_free * sizeof *pool->free);
        if (p != POOL_DRAFT)
            buf_add(&out, kv->mark[p],
                    ((size_t)pool->total << kv->shift) * sizeof *kv->mark[p]);
    }
    buf_add(&out, kv->swa_of, (size_t)kv->pool[POOL_FULL].total * sizeof *kv->swa_of);
    ADD(&out, kv->log.n_since);
    return out;
}

static int behind;

/* Shapes of steps: plain without the drafter, plain with the drafter behind, a small tree, the
 * usual. */
static void step(struct world *w, const struct tree_shape *shape, int config)
{
    struct lane *l = &w->lane;
    struct err e = {0};
    int i = w->at++;
    static const struct tree_shape later = {.nodes = 1}, small = {2, 1, 3};
    const struct tree_shape *of[] = {NULL, &later, &small, shape};
    must(lane_step(&w->r, &l, &w->lim[i], 1, of[w->shape[i]], &e), &e);
    behind += l->behind;
    struct buf now = everything(w), *note = &w->note[i + 1];
    if (note->n && (note->n != now.n || memcmp(note->p, now.p, now.n)))
        fail_msg("configuration %d: step %d run again differs", config, i);
    buf_free(note);
    *note = now;
}

static void keep(struct world *w)
{
    struct kept *k = &w->kept[w->n_kept];
    keep_state(k, &w->r, &w->lane);
    assert_true(k->bytes > sizeof *k);
    w->kept_at[w->n_kept++] = w->at;
}

static int back_steps, pages_kept, pages_lost, draft_lost;

static void go_back(struct world *w, int which, int config)
{
    const struct kept *k = &w->kept[which];
    for (int p = 0; p < N_POOLS; p++) {
        for (int i = 0; i < k->of[p].n; i++)
            *(p == POOL_DRAFT ? &draft_lost : &pages_lost) +=
                w->r.kv.pool[p].ref[k->of[p].page[i]] == 0;
        pages_kept += k->of[p].n;
    }
    back_steps += w->at - w->kept_at[which];
    keep_restore(k, &w->r, &w->lane);
    w->at = w->kept_at[which];
    while (w->n_kept > which + 1) /* later states end */
        keep_free(&w->kept[--w->n_kept]);
    struct buf now = everything(w);
    if (w->note[w->at].n && (now.n != w->note[w->at].n || memcmp(now.p, w->note[w->at].p, now.n)))
        fail_msg("configuration %d: the state after step %d is another one", config, w->at);
    buf_free(&now);
}

static void one_configuration(struct mock *m, int config, uint64_t *fused)
{
    static const int page_sizes[] = {1, 4, 16, 64};
    static struct world w;
    struct err e = {0};
    struct tree_shape shape = {1 + below(5), 1 + below(4), 2 + below(20)};
    int drafter = below(5), window = 1 + below(20), P = page_sizes[below(4)], chunk = 1 + below(20);
    m->m.cfg.window = m->layer[0].window = m->layer[2].window = window;
    if (drafter == 3)
        mock_frozen(m);
    else if (drafter == 4)
        m->d = (struct draft){.kind = "ngram"};
    else
        mock_eagle(m, drafter == 2 ? 7 : 0);
    memset(&w, 0, sizeof w);
    must(runtime_open(&w.r, mock_device(m), &m->m, drafter ? &m->d : NULL,
                      &(struct runtime_shape){.page_size = P, .context = MOCK_MAX,
                                              .lanes = 1 + POINTS}, &e), &e);
    w.r.fuse = below(2);
    w.r.kv.draft_window = drafter == 1 || drafter == 2 ? below(2) * (1 + below(20)) : 0;
    w.lane = (struct lane){.tap_row = -1, .seed = 7, .guesses = below(2) ? 4 : 0,
                           .how = {.temperature = below(2) ? 0.7f : 0, .top_p = 1}};
    for (int n = 2 + below(30); n > 0; n--)
        ids_add(&w.lane.tok, below(MOCK_V));
    lane_prompt(&w.r, &w.lane, chunk, drafter ? &shape : NULL);
    for (int i = 0; i < STEPS; i++) {
        w.lim[i].max_new = below(6) ? 40 : 1 + below(4);
        w.shape[i] = !drafter || below(24) == 0 ? 0 : below(3) ? 3 : 1 + below(2);
        if (drafter && i > 0 && w.shape[i - 1] == 1 && below(2))
            w.shape[i] = 1;
    }
    for (int left = 150; left > 0 && w.at < STEPS && w.lane.tok.n < 120; left--) {
        if (w.n_kept == 0 && w.n_point < POINTS && below(3) == 0) { /* a checkpoint */
            lane_park(&w.r, &w.lane);
            lane_fork(&w.r, &w.lane, &w.point[w.n_point++]);
            buf_free(&w.note[w.at]);
            continue;
        }
        if (w.n_kept < KEPT && below(4) == 0)
            keep(&w);
        else if (w.n_kept && below(8) == 0)
            go_back(&w, below(w.n_kept), config);
        step(&w, drafter ? &shape : NULL, config);
        if (below(20) == 0) /* a state that is not needed any more */
            for (; w.n_kept > 1; w.n_kept--)
                keep_free(&w.kept[w.n_kept - 1]);
    }
    const struct seq *seqs[1 + POINTS] = {&w.lane.seq};
    for (int i = 0; i < w.n_point; i++)
        seqs[1 + i] = &w.point[i].seq;
    must(check_sweep(&w.r.kv, seqs, 1 + w.n_point, &e), &e);
    *fused += w.r.n_fused;
    lane_free(&w.r, &w.lane);
    for (int i = 0; i < w.n_point; i++)
        lane_free(&w.r, &w.point[i]);
    for (int i = 0; i < w.n_kept; i++)
        keep_free(&w.kept[i]);
    for (int i = 0; i <= STEPS; i++)
        buf_free(&w.note[i]);
    runtime_close(&w.r);
}

static void test_a_lane_that_goes_back_computes_the_same_bits(void **state)
{
    (void)state;
    enum { CONFIGS = 400 };
    struct mock m;
    uint64_t fused = 0;
    mock_open(&m, 5);
    dice = 20;
    for (int i = 0; i < CONFIGS; i++)
        one_configuration(&m, i, &fused);
    print_message("# %d cells that a drafter was behind\n", behind);
    print_message("# %d steps gone back, %d pages put back, %d of them had been released, and %d "
                  "of the draft; %llu fused cycles\n", back_steps, pages_kept, pages_lost,
                  draft_lost, (unsigned long long)fused);
    assert_true(back_steps > 5000 && pages_lost > 1000 && draft_lost > 300 && fused > 3000 &&
                behind > 3000);
    mock_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lane_that_goes_back_computes_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
