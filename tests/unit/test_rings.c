/* test_rings.c - the barrier protocols of the GPU kernels' rings, by exhaustive search. Each
 * protocol is a few roles that wait at mbarriers, arrive at them, write and read stages
 * (kernels/cuda/base/ring.cuh). The search runs every order in which the roles' actions and the
 * arrivals of asynchronous copies can happen, and finds every state in which all roles wait for
 * ever, every read of a stage that does not hold the wanted item, and every write of a stage that
 * is still read or still being copied to. Wrong variants of the protocols show that it does.
 */
#include "kernels/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BARRIERS = 8, MAX_CELLS = 12, MAX_ROLES = 5, MAX_CODE = 160 };

/* ---- programs -------------------------------------------------------------------------------- */

/* Actions of a role; a, b: see there. */
enum what {
    WAIT,   /* until the phase of barrier a with parity b is complete */
    ARRIVE, /* at barrier a */
    EXPECT, /* arrives at barrier a and announces a copy */
    COPY,   /* starts a copy of item b to the cell `cell`, which completes at barrier a */
    WRITE,  /* writes item b to cell a */
    READ,   /* begins to read cell a, which must hold item b */
    DONE,   /* ends the reading of cell a */
};
struct action {
    enum what what;
    int a, b, cell;
};
struct role {
    struct action code[MAX_CODE];
    int n;
};
struct protocol {
    struct role role[MAX_ROLES];
    int n_roles, n_barriers, n_cells;
    int arrivals[MAX_BARRIERS]; /* that complete a phase */
};

static void act(struct role *r, enum what what, int a, int b, int cell)
{
    assert_true(r->n < MAX_CODE);
    r->code[r->n++] = (struct action){what, a, b, cell};
}

/* ---- the search ------------------------------------------------------------------------------ */

/* A state; compared as bytes. */
struct state {
    uint8_t pc[MAX_ROLES];
    struct {
        uint8_t phase, pending, copies; /* arrivals that are missing; announced copies under way */
    } barrier[MAX_BARRIERS];
    struct {
        uint8_t item, readers, to; /* to: 1 + the barrier of the copy under way; 0: none */
        uint8_t coming;
    } cell[MAX_CELLS];
};

enum verdict { SOUND, DEADLOCK, WRONG_READ, WRONG_WRITE };

static struct search {
    struct state *seen; /* open addressing; pc[0] 255: empty */
    size_t n, cap, *work, n_work, cap_work;
} S;

static size_t find(const struct state *s)
{
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ ((const uint8_t *)s)[i]) * 0x100000001b3u;
    size_t at = (size_t)mix64(h) & (S.cap - 1);
    while (S.seen[at].pc[0] != 255 && memcmp(&S.seen[at], s, sizeof *s) != 0)
        at = (at + 1) & (S.cap - 1);
    return at;
}

static void visit(const struct state *s)
{
    size_t at = find(s);
    if (S.seen[at].pc[0] != 255)
        return;
    assert_true(++S.n < S.cap / 2);
    S.seen[at] = *s;
    if (S.n_work == S.cap_work)
        S.work = xrealloc(S.work, S.cap_work = S.cap_work * 2 + 1024, sizeof *S.work);
    S.work[S.n_work++] = at;
}

static void complete(const struct protocol *p, struct state *s, int b)
{
    if (s->barrier[b].pending || s->barrier[b].copies)
        return;
    s->barrier[b].phase ^= 1;
    s->barrier[b].pending = (uint8_t)p->arrivals[b];
}

/* Runs the role's next action, if it does not wait. */
static enum verdict step(const struct protocol *p, const struct state *from, int r, bool *moved)
{
    struct state s = *from;
    const struct action *a = &p->role[r].code[s.pc[r]];
    *moved = false;
    if (a->what == WAIT && s.barrier[a->a].phase == a->b)
        return SOUND;
    if (a->what == ARRIVE || a->what == EXPECT) {
        s.barrier[a->a].copies = (uint8_t)(s.barrier[a->a].copies + (a->what == EXPECT));
        s.barrier[a->a].pending--;
        complete(p, &s, a->a);
    } else if (a->what == COPY) {
        if (s.cell[a->cell].readers || s.cell[a->cell].to)
            return WRONG_WRITE;
        s.cell[a->cell].to = (uint8_t)(a->a + 1), s.cell[a->cell].coming = (uint8_t)a->b;
        s.cell[a->cell].item = 0;
    } else if (a->what == WRITE) {
        if (s.cell[a->a].readers || s.cell[a->a].to)
            return WRONG_WRITE;
        s.cell[a->a].item = (uint8_t)a->b;
    } else if (a->what == READ) {
        if (s.cell[a->a].item != a->b)
            return WRONG_READ;
        s.cell[a->a].readers++;
    } else if (a->what == DONE) {
        s.cell[a->a].readers--;
    }
    s.pc[r]++;
    *moved = true;
    visit(&s);
    return SOUND;
}

/* The copy to cell c arrives. */
static bool deliver(const struct protocol *p, const struct state *from, int c)
{
    struct state s = *from;
    if (!s.cell[c].to)
        return false;
    const int b = s.cell[c].to - 1;
    s.cell[c].item = s.cell[c].coming, s.cell[c].to = s.cell[c].coming = 0;
    s.barrier[b].copies--;
    complete(p, &s, b);
    visit(&s);
    return true;
}

static enum verdict search(const struct protocol *p, size_t *states)
{
    struct state first;
    enum verdict v = SOUND;
    memset(&first, 0, sizeof first);
    for (int b = 0; b < p->n_barriers; b++)
        first.barrier[b].pending = (uint8_t)p->arrivals[b];
    S.cap = (size_t)1 << 18, S.n = S.n_work = 0;
    S.seen = xmalloc(S.cap * sizeof *S.seen);
    memset(S.seen, 255, S.cap * sizeof *S.seen);
    visit(&first);
    while (S.n_work && v == SOUND) {
        const struct state s = S.seen[S.work[--S.n_work]];
        bool any = false, moved, over = true;
        for (int r = 0; r < p->n_roles && v == SOUND; r++)
            if (s.pc[r] < p->role[r].n) {
                over = false;
                v = step(p, &s, r, &moved);
                any |= moved;
            }
        for (int c = 0; c < p->n_cells; c++)
            any |= deliver(p, &s, c);
        if (v == SOUND && !any && !over)
            v = DEADLOCK;
    }
    *states = S.n;
    free(S.seen), free(S.work);
    S = (struct search){0};
    return v;
}

/* ---- the protocols of the kernels ------------------------------------------------------------ */

/* A position in a ring, as in ring.cuh. */
struct pos {
    int slot, phase;
};
static void advance(struct pos *p, int stages)
{
    if (++p->slot == stages)
        p->slot = 0, p->phase ^= 1;
}

/* What is done differently; 0: nothing. */
enum fault { NO_FAULT, NO_WAIT_FOR_EMPTY, WRONG_PARITY, EARLY_RELEASE, ONE_ARRIVAL_LESS };

/* How a ring is used. early: stages that the producer fills without waiting (prefill, verify,
 * decode);
 * late: a consumer releases a stage only when it has begun with the next (prefill); window: the
 * producer has at most so many copies under way (decode), 0: no limit. */
struct use {
    int stages, consumers, items, early, window;
    bool late;
};

/* Barriers: full 0 .., empty stages .. Cells are the stages. Role 0 produces. */
static struct protocol ring_of(const struct use *u, enum fault f)
{
    struct protocol p = {.n_roles = 1 + u->consumers, .n_barriers = 2 * u->stages,
                         .n_cells = u->stages};
    struct pos at = {0, 0}, behind = {0, 0};
    struct role *r = &p.role[0];
    for (int s = 0; s < u->stages; s++) {
        p.arrivals[s] = 1;
        p.arrivals[u->stages + s] = u->consumers - (f == ONE_ARRIVAL_LESS);
    }
    for (int i = 0; i < u->items; i++, advance(&at, u->stages)) {
        if (i >= u->early && f != NO_WAIT_FOR_EMPTY)
            act(r, WAIT, u->stages + at.slot, at.phase ^ (f == WRONG_PARITY ? 0 : 1), 0);
        if (u->window && i >= u->window) {
            act(r, WAIT, behind.slot, behind.phase, 0);
            advance(&behind, u->stages);
        }
        act(r, EXPECT, at.slot, 0, 0);
        act(r, COPY, at.slot, i + 1, at.slot);
    }
    for (int c = 1; c <= u->consumers; c++) {
        int last = -1;
        r = &p.role[c];
        at = (struct pos){0, 0};
        for (int i = 0; i < u->items; i++, advance(&at, u->stages)) {
            act(r, WAIT, at.slot, at.phase, 0);
            if (f == EARLY_RELEASE)
                act(r, ARRIVE, u->stages + at.slot, 0, 0);
            act(r, READ, at.slot, i + 1, 0);
            if (u->late && last >= 0) {
                act(r, DONE, last, 0, 0);
                act(r, ARRIVE, u->stages + last, 0, 0);
            }
            last = at.slot;
            if (!u->late) {
                act(r, DONE, at.slot, 0, 0);
                if (f != EARLY_RELEASE)
                    act(r, ARRIVE, u->stages + at.slot, 0, 0);
            }
        }
        if (u->late && last >= 0) {
            act(r, DONE, last, 0, 0);
            act(r, ARRIVE, u->stages + last, 0, 0);
        }
    }
    return p;
}

/* The experts' pipeline: a ring of weights whose units have `each` stages, a buffer of partial sums
 * between consumers and epilogue, and biases that come with a unit's first stage and have no
 * barrier of their own: `biases` cells, the number of which must keep a bias until the epilogue has
 * read it. Barriers: full, empty (stages each), sums full, sums empty. Cells: stages, sums,
 * biases. */
static struct protocol pipeline_of(int stages, int consumers, int units, int each, int biases)
{
    const int full = 0, empty = stages, sums_full = 2 * stages, sums_empty = sums_full + 1;
    const int sums = stages, bias = stages + consumers;
    struct protocol p = {.n_roles = 2 + consumers, .n_barriers = sums_empty + 1,
                         .n_cells = bias + biases};
    for (int s = 0; s < stages; s++)
        p.arrivals[full + s] = 1, p.arrivals[empty + s] = consumers;
    p.arrivals[sums_full] = consumers, p.arrivals[sums_empty] = 1;
    struct pos at = {0, 0};
    struct role *r = &p.role[0];
    for (int i = 0; i < units * each; i++, advance(&at, stages)) {
        act(r, WAIT, empty + at.slot, at.phase ^ 1, 0);
        act(r, EXPECT, full + at.slot, 0, 0);
        if (i % each == 0)
            act(r, WRITE, bias + i / each % biases, 100 + i / each, 0);
        act(r, COPY, full + at.slot, i + 1, at.slot);
    }
    for (int c = 0; c < consumers; c++) {
        struct pos turn = {0, 0};
        r = &p.role[1 + c];
        at = (struct pos){0, 0};
        for (int u = 0; u < units; u++, advance(&turn, 1)) {
            for (int i = 0; i < each; i++, advance(&at, stages)) {
                act(r, WAIT, full + at.slot, at.phase, 0);
                act(r, READ, at.slot, u * each + i + 1, 0);
                act(r, DONE, at.slot, 0, 0);
                act(r, ARRIVE, empty + at.slot, 0, 0);
            }
            act(r, WAIT, sums_empty, turn.phase ^ 1, 0);
            act(r, WRITE, sums + c, 50 + u, 0);
            act(r, ARRIVE, sums_full, 0, 0);
        }
    }
    r = &p.role[1 + consumers];
    struct pos turn = {0, 0};
    for (int u = 0; u < units; u++, advance(&turn, 1)) {
        act(r, WAIT, sums_full, turn.phase, 0);
        for (int c = 0; c < consumers; c++)
            act(r, READ, sums + c, 50 + u, 0), act(r, DONE, sums + c, 0, 0);
        act(r, READ, bias + u % biases, 100 + u, 0);
        act(r, DONE, bias + u % biases, 0, 0);
        act(r, ARRIVE, sums_empty, 0, 0);
    }
    return p;
}

/* Attention over heads of 256 (attention/tile.cu): pairs of warps share a row. In each tile of keys
 * the block meets, then a pair exchanges sums (where a segment ends), maxima and weights, each
 * behind the pair's own named barrier. A barrier of threads that wait is an mbarrier with a wait.
 * Barriers: block, then one a pair; cells: sums, maxima and weights of each warp. missing: the
 * exchange without its barrier; -1: none. */
enum { PAIRS = 2, EXCHANGES = 3 };
static void meet(struct role *r, int barrier, int *phase)
{
    act(r, ARRIVE, barrier, 0, 0);
    act(r, WAIT, barrier, *phase, 0);
    *phase ^= 1;
}
static struct protocol pairs_of(int tiles, int missing)
{
    struct protocol p = {.n_roles = 2 * PAIRS, .n_barriers = 1 + PAIRS,
                         .n_cells = 2 * PAIRS * EXCHANGES};
    p.arrivals[0] = 2 * PAIRS;
    for (int w = 0; w < 2 * PAIRS; w++) {
        struct role *r = &p.role[w];
        int block = 0, pair = 0;
        p.arrivals[1 + w / 2] = 2;
        /* behind the last tile there is only the end of a segment */
        for (int t = 0; t <= tiles; t++) {
            if (t < tiles)
                meet(r, 0, &block);
            for (int x = 0; x < (t < tiles ? (int)EXCHANGES : 1); x++) {
                act(r, WRITE, w * EXCHANGES + x, 1 + t, 0);
                if (x != missing)
                    meet(r, 1 + w / 2, &pair);
                act(r, READ, (w ^ 1) * EXCHANGES + x, 1 + t, 0);
                act(r, DONE, (w ^ 1) * EXCHANGES + x, 0, 0);
            }
        }
    }
    return p;
}

/* The rows of the experts (produce_rows() in moe/experts.cu): all lanes of a warp wait until a
 * stage is empty, and one of them fills it. Role 0 is that lane, role 1 the others, which need not
 * run together with it; they meet at __syncwarp(), an mbarrier with a wait here: before the stage
 * is filled, or (late) behind. Barriers: full, empty (stages each), the warp's. Cells are the
 * stages. */
static struct protocol rows_of(int stages, int consumers, int jobs, bool late)
{
    const int empty = stages, warp = 2 * stages;
    struct protocol p = {.n_roles = 2 + consumers, .n_barriers = warp + 1, .n_cells = stages};
    for (int s = 0; s < stages; s++)
        p.arrivals[s] = 1, p.arrivals[empty + s] = consumers;
    p.arrivals[warp] = 2;
    for (int lane = 0; lane < 2; lane++) {
        struct role *r = &p.role[lane];
        struct pos at = {0, 0};
        int met = 0;
        for (int i = 0; i < jobs; i++, advance(&at, stages)) {
            act(r, WAIT, empty + at.slot, at.phase ^ 1, 0);
            if (!late)
                meet(r, warp, &met);
            if (lane == 0) {
                act(r, EXPECT, at.slot, 0, 0);
                act(r, COPY, at.slot, i + 1, at.slot);
            }
            if (late)
                meet(r, warp, &met);
        }
    }
    for (int c = 0; c < consumers; c++) {
        struct role *r = &p.role[2 + c];
        struct pos at = {0, 0};
        for (int i = 0; i < jobs; i++, advance(&at, stages)) {
            act(r, WAIT, at.slot, at.phase, 0);
            act(r, READ, at.slot, i + 1, 0);
            act(r, DONE, at.slot, 0, 0);
            act(r, ARRIVE, empty + at.slot, 0, 0);
        }
    }
    return p;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_rings_are_sound(void **state)
{
    (void)state;
    size_t most = 0, states;
    for (int stages = 1; stages <= 3; stages++)
        for (int consumers = 1; consumers <= 2; consumers++)
            for (int early = 0; early <= stages; early += stages)
                for (int window = 0; window <= stages; window++)
                    for (int late = 0; late < 2; late++) {
                        /* a stage held until the next has begun needs a second stage */
                        if (late && stages == 1)
                            continue;
                        const struct use u = {stages, consumers, 2 * stages + 2, early, window,
                                              late};
                        const struct protocol p = ring_of(&u, NO_FAULT);
                        assert_int_equal(search(&p, &states), SOUND);
                        most = states > most ? states : most;
                    }
    assert_true(most > 1000); /* so many states: orders were searched */
}

static void test_the_search_finds_faults(void **state)
{
    (void)state;
    static const struct {
        enum fault fault;
        enum verdict found;
    } cases[] = {{NO_WAIT_FOR_EMPTY, WRONG_WRITE},
                 {EARLY_RELEASE, WRONG_WRITE},
                 {WRONG_PARITY, DEADLOCK},
                 {ONE_ARRIVAL_LESS, DEADLOCK}};
    const struct use u = {2, 2, 6, 0, 0, false};
    size_t states;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct protocol p = ring_of(&u, cases[i].fault);
        assert_int_equal(search(&p, &states), cases[i].found);
    }
    const struct use one = {1, 1, 4, 0, 0, true}; /* one stage cannot be held and filled */
    const struct protocol held = ring_of(&one, NO_FAULT);
    assert_int_equal(search(&held, &states), DEADLOCK);
}

/* experts_decode.cuh: a producer is at most as many units ahead of the epilogues as there are
 * stages, and two more whose sums are waiting; stages + 3 biases are enough, and stages + 1 are
 * not. */
static void test_biases_without_a_barrier_are_read_in_time(void **state)
{
    (void)state;
    size_t states;
    for (int stages = 1; stages <= 3; stages++) {
        const struct protocol enough = pipeline_of(stages, 1, stages + 4, 1, stages + 3);
        assert_int_equal(search(&enough, &states), SOUND);
        const struct protocol few = pipeline_of(stages, 1, stages + 4, 1, stages + 1);
        assert_true(search(&few, &states) != SOUND);
    }
    const struct protocol two = pipeline_of(2, 2, 4, 2, 5);
    assert_int_equal(search(&two, &states), SOUND);
}

static void test_pairs_of_warps_exchange_in_time(void **state)
{
    (void)state;
    size_t states;
    const struct protocol whole = pairs_of(2, -1);
    assert_int_equal(search(&whole, &states), SOUND);
    assert_true(states > 1000);
    for (int x = 0; x < EXCHANGES; x++) {
        const struct protocol less = pairs_of(2, x);
        assert_int_equal(search(&less, &states), WRONG_READ);
    }
}

static void test_lanes_that_wait_meet_before_one_of_them_fills_a_stage(void **state)
{
    (void)state;
    size_t states;
    for (int stages = 1; stages <= 3; stages++)
        for (int consumers = 1; consumers <= 2; consumers++) {
            const struct protocol met = rows_of(stages, consumers, 2 * stages + 2, false);
            assert_int_equal(search(&met, &states), SOUND);
            /* a lane misses a phase in which the stage was filled and released */
            const struct protocol late = rows_of(stages, consumers, 2 * stages + 2, true);
            assert_int_equal(search(&late, &states), DEADLOCK);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings_are_sound),
        cmocka_unit_test(test_the_search_finds_faults),
        cmocka_unit_test(test_biases_without_a_barrier_are_read_in_time),
        cmocka_unit_test(test_pairs_of_warps_exchange_in_time),
        cmocka_unit_test(test_lanes_that_wait_meet_before_one_of_them_fills_a_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
