/* test_phases.c - a cycle phase by phase: the bits of lane_step(), stepped or fused; and an
 * abandoned cycle leaves the lanes, the pools and the lists of free pages as they were.
 *
 * Two runtimes over the mock model run the same lanes: one with lane_step(), the other phase by
 * phase, with cycles in between that are abandoned after some phase or fail in one. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/chance.h"
#include "tests/mock.h"

enum { MOST = 3 }; /* lanes */

struct world {
    struct runtime r;
    struct lane lane[MOST], *live[MOST];
};

struct setup {
    int P, window, lanes;
    int drafter; /* 0 none, 1, 2 EAGLE3 (2: with a window), 3 frozen KV, 4 n-gram */
    struct tree_shape shape;
    bool forks, hot; /* later lanes are forks of the first one; tokens are sampled */
    bool late;       /* the drafter has not seen the prompt */
    bool fuse;       /* lane_step() runs cycles of one lane fused */
};

/* ---- what can go wrong in a phase ------------------------------------------------------------ */

enum failure { FAIL_NOTHING, FAIL_STOP, FAIL_SAMPLE, FAIL_SYNC, FAIL_POOL, N_FAILURES };
static enum failure failing;

static void spy_sample(struct kdev *d, const struct k_sample *a)
{
    static const int32_t none = -1;
    kernels_cpu.sample(d, a);
    if (failing == FAIL_SAMPLE)
        kernels_cpu.put(d, a->ids, &none, sizeof none);
}

static bool spy_sync(struct kdev *d, struct err *e)
{
    if (failing == FAIL_SYNC)
        return err_set(e, ERR_MODEL, "the device is lost");
    return kernels_cpu.sync(d, e);
}

/* ---- what a lane and the pools hold ---------------------------------------------------------- */

#define ADD(out, v) buf_add(out, &(v), sizeof(v))

static void add_tree(struct buf *out, const struct tree *t)
{
    size_t n = (size_t)t->n;
    ADD(out, t->n);
    buf_add(out, t->token, n * sizeof *t->token);
    buf_add(out, t->parent, n);
    buf_add(out, t->fate, n);
    buf_add(out, t->score, n * sizeof *t->score);
    buf_add(out, t->q, n * sizeof *t->q);
    buf_add(out, t->p, n * sizeof *t->p);
    buf_add(out, t->u, n * sizeof *t->u);
}

/* All but times and, unless `pages`, what depends on page numbers. */
static void add_lane(struct buf *out, const struct lane *l, bool pages)
{
    const struct step_rec *c = &l->rec;
    int numbers[] = {(int)c->kind, c->pos0, c->rows, c->drafted, c->accepted, c->bonus, l->n_new,
                     l->stopped, l->slot, l->guess.n, l->seq.committed, l->seq.drafted,
                     l->seq.swa_lo};
    uint64_t digests[] = {c->draws, c->draft_digest, c->logit_digest, pages ? c->page_digest : 0,
                          l->draws, l->seq.tail};
    ADD(out, numbers);
    ADD(out, digests);
    buf_add(out, l->tok.v, (size_t)l->tok.n * sizeof *l->tok.v);
    buf_add(out, l->fact, (size_t)l->n_new * sizeof *l->fact);
    ADD(out, c->margin);
    buf_add(out, l->guess.token, (size_t)l->guess.n * sizeof *l->guess.token);
    buf_add(out, l->guess.logp, (size_t)l->guess.n * sizeof *l->guess.logp);
    add_tree(out, &l->tree);
}

static void add_pools(struct buf *out, const struct world *s, int n)
{
    const struct kv *kv = &s->r.kv;
    for (int i = 0; i < n; i++) {
        const struct seq *q = &s->lane[i].seq;
        buf_add(out, q->col, (size_t)q->n_col * sizeof *q->col);
        buf_add(out, q->dcol, (size_t)q->n_dcol * sizeof *q->dcol);
    }
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool *pool = &kv->pool[p];
        ADD(out, pool->n_owned);
        ADD(out, pool->n_refs);
        ADD(out, kv->held[p]);
        if (!pool->total)
            continue;
        buf_add(out, pool->ref, (size_t)pool->total * sizeof *pool->ref);
        if (n == 1) /* a batch takes pages of the draft's pool and gives them back in turn */
            buf_add(out, pool->free, (size_t)pool->n_free * sizeof *pool->free);
    }
    buf_add(out, kv->swa_of, (size_t)kv->pool[POOL_FULL].total * sizeof *kv->swa_of);
}

static void same(struct buf *a, struct buf *b, int config, const char *what)
{
    if (a->n != b->n || memcmp(a->p, b->p, a->n))
        fail_msg("configuration %d: %s", config, what);
    buf_free(a);
    buf_free(b);
}

/* ---- cycles that come to nothing ------------------------------------------------------------- */

static struct buf everything(const struct world *s, const struct setup *u)
{
    struct buf out = {0};
    for (int i = 0; i < u->lanes; i++)
        add_lane(&out, &s->lane[i], true);
    ADD(&out, s->r.slots);
    if (!u->forks) /* a lane keeps the copies of pages that it shared */
        add_pools(&out, s, u->lanes);
    return out;
}

static uint64_t failed[N_FAILURES], abandoned[CYCLE_ABANDONED], fused, refused;

static bool run_phase(struct cycle *c, struct err *e)
{
    return c->phase == CYCLE_BEGUN     ? cycle_draft(c, e)
           : c->phase == CYCLE_DRAFTED ? cycle_verify(c, e)
                                       : cycle_accept(c, e);
}

static void abandon_one(struct world *s, const struct setup *u, const struct step_limits *lim,
                        const struct tree_shape *shape, int config)
{
    static struct cycle c;
    struct stop stop = {.cancelled = 1};
    struct seq hog = {0};
    struct err e = {0};
    int phases = below(4), pages = kv_left(&s->r.kv, POOL_FULL);
    bool ok = true;
    failing = below(2) ? FAIL_NOTHING : (enum failure)below(N_FAILURES);
    if (s->r.kv.has_swa)
        pages = min_int(pages, kv_left(&s->r.kv, POOL_SWA));
    if (failing == FAIL_POOL)
        must(kv_reserve(&s->r.kv, &hog, pages * u->P, &e), &e);
    struct buf was = everything(s, u);
    s->r.net.stop = failing == FAIL_STOP ? &stop : NULL;
    cycle_begin(&c, &s->r, s->live, lim, u->lanes, shape);
    for (int i = 0; i < phases && ok; i++)
        ok = run_phase(&c, &e);
    assert_true(ok || failing != FAIL_NOTHING);
    assert_true(ok || e.kind != ERR_NONE);
    if (ok)
        abandoned[c.phase]++;
    else
        failed[failing]++;
    cycle_abandon(&c);
    assert_int_equal(c.phase, CYCLE_ABANDONED);
    struct buf is = everything(s, u);
    same(&is, &was, config, "an abandoned cycle has left a trace");
    failing = FAIL_NOTHING;
    s->r.net.stop = NULL;
    kv_drop(&s->r.kv, &hog);
}

/* ---- the same lanes twice -------------------------------------------------------------------- */

static void open_side(struct world *s, struct mock *m, const struct setup *u)
{
    struct err e = {0};
    struct runtime_shape shape = {.page_size = u->P, .context = MOCK_MAX, .lanes = 2 * MOST};
    must(runtime_open(&s->r, mock_device(m), &m->m, u->drafter ? &m->d : NULL, &shape, &e), &e);
}

static void prompt_lane(struct world *s, struct lane *l, const struct setup *u, int chunk)
{
    lane_prompt(&s->r, l, chunk, u->drafter && !u->late ? &u->shape : NULL);
    lane_park(&s->r, l);
}

static void start(struct world *s, const struct setup *u, const struct ids *tok, int chunk)
{
    for (int i = 0; i < u->lanes; i++) {
        struct lane *l = s->live[i] = &s->lane[i];
        if (u->forks && i > 0) {
            lane_fork(&s->r, &s->lane[0], l);
            l->seed = 8;
            continue;
        }
        *l = (struct lane){.tap_row = -1, .seed = 7,
                           .how = {.temperature = u->hot ? 0.7f : 0, .top_p = 1}};
        ids_cat(&l->tok, tok[i].v, tok[i].n);
        prompt_lane(s, l, u, chunk);
    }
}

/* Other tokens in place of the pending one, as in a chat's next turn: from the lane's captured
 * states the drafter computes its last cell again. */
static void another_turn(struct world *s, const struct setup *u, const struct ids *more, int chunk)
{
    s->lane[0].tok.n--;
    ids_cat(&s->lane[0].tok, more->v, more->n);
    prompt_lane(s, &s->lane[0], u, chunk);
}

/* A prompt chunk whose follow is refused, with other tokens in place of the pending one; the lane's
 * own pending token comes back. Only EAGLE3 follows with cells of its own. */
static void refused_turn(struct world *s, const struct setup *u, const struct ids *more)
{
    struct lane *l = &s->lane[0];
    struct err e = {0};
    int n = l->tok.n;
    int32_t pending = l->tok.v[n - 1];
    if ((u->drafter != 1 && u->drafter != 2) || !lane_can_follow(&s->r, l))
        return;
    l->tok.n--;
    ids_cat(&l->tok, more->v, more->n);
    runtime_bug(&s->r, BUG_DRAFT_EXTEND_EXTENT, 2);
    assert_false(lane_extend(&s->r, l, l->tok.n, true, true, u->shape.topk, &e));
    assert_int_equal(e.kind, ERR_INVARIANT);
    runtime_bug(&s->r, BUG_DRAFT_EXTEND_EXTENT, 0);
    l->tok.n = n;
    l->tok.v[n - 1] = pending;
    refused++;
}

static uint64_t improbable; /* tokens that were not among the best of their rows */

/* The facts of an accepted cycle that is not committed yet, against the logits on the device. */
static void check_facts(struct world *s, const struct cycle_lane *x)
{
    const struct outcome *o = &x->out;
    for (int i = 0; i < o->n_new; i++) {
        size_t row = (size_t)outcome_row(o, i);
        float z[MOCK_V];
        double sum = 0;
        int rival = o->token[i] == 0, better = 0;
        s->r.dev.k->get(s->r.dev.d, z, kbuf_at(s->r.logits, row * sizeof z, sizeof z), sizeof z);
        for (int v = 0; v < MOCK_V; v++) {
            sum += exp((double)z[v]);
            better += z[v] > z[o->token[i]];
            if (v != o->token[i] && z[v] > z[rival])
                rival = v;
        }
        improbable += better >= DIGEST_BEST;
        assert_int_equal(o->fact[i].rival, rival);
        assert_true(fabs((double)o->fact[i].logp - ((double)z[o->token[i]] - log(sum))) < 2e-6);
        assert_true(fabs((double)o->fact[i].rival_logp - ((double)z[rival] - log(sum))) < 2e-6);
    }
}

static void step_both(struct world *a, struct world *b, const struct setup *u, int config)
{
    struct step_limits lim[MOST];
    struct err e = {0};
    struct buf x = {0}, y = {0};
    static struct cycle c;
    const struct tree_shape *shape = u->drafter && below(8) ? &u->shape : NULL;
    for (int i = 0; i < u->lanes; i++)
        lim[i].max_new = below(6) ? 40 : 1 + below(4);
    must(lane_step(&a->r, a->live, lim, u->lanes, shape, &e), &e);
    for (int n = below(3); n > 0; n--)
        abandon_one(b, u, lim, shape, config);
    cycle_begin(&c, &b->r, b->live, lim, u->lanes, shape);
    must(cycle_draft(&c, &e) && cycle_verify(&c, &e) && cycle_accept(&c, &e), &e);
    for (int i = 0; i < u->lanes; i++)
        check_facts(b, &c.lane[i]);
    cycle_commit(&c);
    cycle_follow(&c);
    for (int i = 0; i < u->lanes; i++) {
        add_lane(&x, &a->lane[i], u->lanes == 1 && !u->fuse);
        add_lane(&y, &b->lane[i], u->lanes == 1 && !u->fuse);
    }
    same(&y, &x, config, "the phases differ from lane_step()");
}

static void one_configuration(struct mock *m, int config)
{
    static const int page_sizes[] = {1, 4, 16, 64};
    static struct world a, b;
    struct ids tok[MOST] = {{0}}, more = {0};
    const struct seq *seqs[MOST];
    struct err e = {0};
    struct setup u = {.P = page_sizes[below(4)], .window = 1 + below(20), .lanes = 1 + below(2),
                      .drafter = below(5), .shape = {1 + below(5), 1 + below(4), 2 + below(20)},
                      .hot = below(2), .late = below(4) == 0, .fuse = below(2)};
    u.lanes += u.lanes == 2 && below(2);
    u.forks = u.lanes > 1 && below(2);
    m->m.cfg.window = m->layer[0].window = m->layer[2].window = u.window;
    if (u.drafter == 3)
        mock_frozen(m);
    else if (u.drafter == 4)
        m->d = (struct draft){.kind = "ngram"};
    else
        mock_eagle(m, u.drafter == 2 ? 7 : 0);
    open_side(&a, m, &u);
    open_side(&b, m, &u);
    a.r.fuse = u.fuse;
    for (int i = 0; i < u.lanes; i++)
        for (int n = 2 + below(30); n > 0; n--)
            ids_add(&tok[i], below(MOCK_V));
    for (int n = 1 + below(5); n > 0; n--)
        ids_add(&more, below(MOCK_V));
    int chunk = 1 + below(20);
    start(&a, &u, tok, chunk);
    start(&b, &u, tok, chunk);
    for (int k = 0; k < 8 && a.lane[0].tok.n < 90; k++) {
        if (below(3) == 0)
            refused_turn(&b, &u, &more);
        step_both(&a, &b, &u, config);
        if (below(4) == 0) {
            abandon_one(&b, &u, (const struct step_limits[MOST]){{9}, {9}, {9}},
                        u.drafter ? &u.shape : NULL, config);
            another_turn(&a, &u, &more, chunk);
            another_turn(&b, &u, &more, chunk);
        }
    }
    for (int i = 0; i < u.lanes; i++)
        seqs[i] = &b.lane[i].seq;
    must(check_sweep(&b.r.kv, seqs, u.lanes, &e), &e);
    for (int i = 0; i < u.lanes; i++) {
        lane_free(&a.r, &a.lane[i]);
        lane_free(&b.r, &b.lane[i]);
        ids_free(&tok[i]);
    }
    ids_free(&more);
    fused += a.r.n_fused;
    runtime_close(&a.r);
    runtime_close(&b.r);
}

static void test_phases_give_the_bits_of_a_step_and_abandoned_cycles_leave_none(void **state)
{
    (void)state;
    enum { CONFIGS = 2500 };
    struct mock m;
    mock_open(&m, 5);
    m.k.sample = spy_sample;
    m.k.sync = spy_sync;
    dice = 16;
    for (int i = 0; i < CONFIGS; i++)
        one_configuration(&m, i);
    for (int p = CYCLE_BEGUN; p <= CYCLE_ACCEPTED; p++)
        assert_true(abandoned[p] > 100);
    for (int i = FAIL_STOP; i < N_FAILURES; i++)
        assert_true(failed[i] > 20);
    print_message("# abandoned after begin %llu, draft %llu, verify %llu, accept %llu; failed: "
                  "stop %llu, sample %llu, sync %llu, pool %llu\n",
                  (unsigned long long)abandoned[0],
                  (unsigned long long)abandoned[1], (unsigned long long)abandoned[2],
                  (unsigned long long)abandoned[3], (unsigned long long)failed[FAIL_STOP],
                  (unsigned long long)failed[FAIL_SAMPLE], (unsigned long long)failed[FAIL_SYNC],
                  (unsigned long long)failed[FAIL_POOL]);
    print_message("# %llu steps were fused, %llu tokens improbable\n", (unsigned long long)fused,
                  (unsigned long long)improbable);
    assert_true(improbable > 20);
    assert_true(fused > 1000 && refused > 500);
    mock_close(&m);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void out_of_order(struct cycle *c, int which)
{
    struct err e = {0};
    switch (which) {
    case 0: cycle_verify(c, &e); break;
    case 1: cycle_accept(c, &e); break;
    case 2: cycle_commit(c); break;
    case 3: cycle_follow(c); break;
    case 4: must(cycle_draft(c, &e), &e), cycle_draft(c, &e); break;
    case 5: must(cycle_draft(c, &e) && cycle_verify(c, &e), &e), cycle_commit(c); break;
    case 6:
        must(cycle_draft(c, &e) && cycle_verify(c, &e) && cycle_accept(c, &e), &e);
        cycle_commit(c), cycle_abandon(c);
        break;
    case 7: cycle_abandon(c), cycle_draft(c, &e); break;
    case 8: c->rt->net.stop = &(struct stop){.cancelled = 1}, cycle_draft(c, &e);
        cycle_verify(c, &e), cycle_accept(c, &e);
        break;
    }
}

static void test_phases_out_of_order_end_the_program(void **state)
{
    (void)state;
    static struct cycle c;
    static struct world s;
    struct mock m;
    struct ids tok[1] = {{0}};
    struct setup u = {.P = 4, .window = 5, .lanes = 1, .drafter = 1, .shape = {2, 2, 4}};
    mock_open(&m, 5);
    mock_eagle(&m, 0);
    open_side(&s, &m, &u);
    for (int i = 0; i < 9; i++)
        ids_add(&tok[0], i);
    start(&s, &u, tok, 9);
    for (int which = 0; which < 9; which++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(0);
            cycle_begin(&c, &s.r, s.live, &(struct step_limits){9}, 1, &u.shape);
            out_of_order(&c, which);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            fail_msg("case %d was not noticed", which);
    }
    lane_free(&s.r, &s.lane[0]);
    ids_free(&tok[0]);
    runtime_close(&s.r);
    mock_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases_give_the_bits_of_a_step_and_abandoned_cycles_leave_none),
        cmocka_unit_test(test_phases_out_of_order_end_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
