/* test_ngram.c - the n-gram drafter: its trees against a brute-force matcher, and that decoding
 * with it yields what plain decoding yields, with every family of models. */
#include "tests/chance.h"
#include "tests/runtimes.h"

#include <math.h>

#define NESTLING "models/nestling/target"

/* ---- the brute-force matcher ----------------------------------------------------------------- */

enum { CONTEXT = 96, LONGEST = 5, MATCHES = 32, MOST = 1 + MATCHES * MAX_STEPS };

struct place {
    int length, at;
    int32_t next[MAX_STEPS]; /* its continuation */
};

/* A path from the root, written as the first place whose continuation begins with it. */
struct path {
    int place, depth, tree; /* tree: node of the expected tree; -1: none */
    float q, score;
};

struct oracle {
    struct place place[CONTEXT];
    int n_place;
    struct path path[MOST];
    int n_path;
};

static bool same_tokens(const int32_t *a, const int32_t *b, int n)
{
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static int longer_then_later(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->length != y->length ? y->length - x->length : y->at - x->at;
}

static void find_places(struct oracle *o, const int32_t *token, int n)
{
    o->n_place = 0;
    for (int at = 1; at < n; at++) {
        struct place p = {.at = at};
        for (int m = 1; m <= LONGEST && m <= at; m++)
            if (same_tokens(token + at - m, token + n - m, m))
                p.length = m;
        int32_t text[CONTEXT + MAX_STEPS]; /* the context and the continuation behind it */
        memcpy(text, token, (size_t)n * sizeof *token);
        for (int d = 0; d < MAX_STEPS; d++)
            text[n + d] = p.next[d] = text[at + d];
        if (p.length)
            o->place[o->n_place++] = p;
    }
    qsort(o->place, (size_t)o->n_place, sizeof *o->place, longer_then_later);
    o->n_place = min_int(o->n_place, MATCHES);
}

/* How many places of a length begin with the first `depth` tokens of place p. */
static int count(const struct oracle *o, int length, int p, int depth)
{
    int n = 0;
    for (int i = 0; i < o->n_place; i++)
        n += o->place[i].length == length &&
             same_tokens(o->place[i].next, o->place[p].next, depth);
    return n;
}

/* Of the node `depth` tokens into place p. */
static float probability(const struct oracle *o, int p, int depth)
{
    float q = 0, rest = 1;
    for (int m = LONGEST; m > 0; m--) {
        int known = min_int(m + depth - 1, LONGEST), power = 1;
        for (int i = 1; i < known; i++)
            power *= 3;
        float escape = 8.0f / (float)power, c = (float)count(o, m, p, depth - 1);
        q += rest / (c + escape) * (float)count(o, m, p, depth);
        rest = rest / (c + escape) * escape;
    }
    return q;
}

static int find_path(const struct oracle *o, int p, int depth)
{
    for (int i = 0; i < o->n_path; i++)
        if (o->path[i].depth == depth &&
            same_tokens(o->place[o->path[i].place].next, o->place[p].next, depth))
            return i;
    return -1;
}

static void find_paths(struct oracle *o, int deepest)
{
    o->n_path = 0;
    o->path[o->n_path++] = (struct path){.score = 1};
    for (int p = 0; p < o->n_place; p++)
        for (int d = 1; d <= deepest; d++)
            if (find_path(o, p, d) < 0) {
                struct path x = {.place = p, .depth = d, .tree = -1, .q = probability(o, p, d)};
                x.score = o->path[find_path(o, p, d - 1)].score * x.q;
                o->path[o->n_path++] = x;
            }
}

static void expected_tree(struct oracle *o, const struct tree_shape *s, struct tree *t)
{
    while (t->n < s->nodes) {
        struct path *best = NULL;
        int best_parent = 0;
        for (int i = 1; i < o->n_path; i++) {
            struct path *x = &o->path[i];
            int up = o->path[find_path(o, x->place, x->depth - 1)].tree, wide = 0;
            for (int k = 1; k < t->n; k++)
                wide += t->depth[k] == x->depth;
            if (x->tree < 0 && up >= 0 && wide < s->topk && x->score >= 0.2f &&
                (!best || x->score > best->score)) {
                best = x;
                best_parent = up;
            }
        }
        if (!best)
            break;
        best->tree = tree_add(t, best_parent, o->place[best->place].next[best->depth - 1], best->q,
                              logf(best->score));
    }
}

static void test_trees_are_those_of_a_brute_force_matcher(void **state)
{
    (void)state;
    enum { CASES = 4000 };
    static struct oracle o;
    struct err e = {0};
    struct draft w;
    int full = 0, empty = 0, branched = 0, deep = 0;
    must(drafter_load(&w, "ngram", NULL, NULL, NULL, &e), &e);
    struct drafter *d = drafter_open(&(struct drafter_setup){.w = &w}, &e);
    must(d != NULL, &e);
    for (int i = 0; i < CASES; i++) {
        int32_t token[CONTEXT];
        int n = 2 + below(CONTEXT - 1), alphabet = 1 + below(i % 2 ? 4 : 24),
            period = 1 + below(40);
        bool periodic = below(3) == 0;
        for (int k = 0; k < n; k++)
            token[k] = periodic && k >= period && below(12) ? token[k - period] : below(alphabet);
        struct tree_shape s = {1 + below(MAX_STEPS), 1 + below(6), 2 + below(63)};
        struct tree got, want;
        struct drafting lane = {.max_depth = 1 + below(20), .tree = &got, .token = token,
                                .n_token = n};
        int deepest = min_int(s.steps, lane.max_depth);
        tree_init(&got, token[n - 1]);
        tree_init(&want, token[n - 1]);
        assert_true(d->ops->ready(d, &lane));
        must(drafter_grow(d, NULL, &lane, 1, &s, &e), &e);
        must(tree_ok(&got, &e), &e);
        find_places(&o, token, n);
        find_paths(&o, deepest);
        expected_tree(&o, &s, &want);
        assert_int_equal(got.n, want.n);
        for (int k = 1; k < got.n; k++) {
            assert_int_equal(got.parent[k], want.parent[k]);
            assert_int_equal(got.token[k], want.token[k]);
            assert_true(got.q[k] == want.q[k] && got.q[k] > 0 && got.q[k] < 1);
            assert_true(got.score[k] == want.score[k]);
        }
        full += got.n == s.nodes;
        empty += got.n == 1;
        branched += got.n - 1 > tree_depth(&got);
        deep += tree_depth(&got) > 4;
    }
    assert_true(full > CASES / 20 && empty > CASES / 40 && branched > CASES / 20 &&
                deep > CASES / 20);
    drafter_close(d);
    draft_free(&w);
}

/* ---- what a drafter's name means ------------------------------------------------------------- */

static void test_a_name_is_a_drafter_and_a_path_is_a_folder(void **state)
{
    (void)state;
    struct err e = {0};
    struct draft w;
    must(drafter_load(&w, "ngram", NULL, NULL, NULL, &e), &e);
    assert_string_equal(w.kind, "ngram");
    assert_int_equal(drafter_kv_of(&w), DRAFT_KV_NONE);
    assert_true(w.bytes == 0 && drafter_ops_of(&w)->weightless);
    draft_free(&w);
    struct bed b;
    bed_models(&b, NESTLING, NULL);
    assert_false(drafter_load(&w, "./ngram", &b.m, NULL, NULL, &e));
    assert_non_null(strstr(e.msg, "./ngram"));
    assert_false(drafter_load(&w, "eagle3", &b.m, NULL, NULL, &e)); /* needs a folder */
    assert_int_equal(e.kind, ERR_MODEL);
    bed_close(&b);
}

/* ---- decoding -------------------------------------------------------------------------------- */

static void bed_ngram(struct bed *b, const char *target)
{
    struct err e = {0};
    bed_models(b, target, NULL);
    must(drafter_load(&b->d, "ngram", &b->m, NULL, NULL, &e), &e);
    b->has_draft = true;
}

/* Continues the prompt by n tokens; returns how many drafted tokens were accepted. */
static int run(struct runtime *r, const struct ids *prompt, float temperature, int n,
               const struct tree_shape *s, struct lane *l)
{
    int accepted = 0, end = prompt->n + n;
    struct err e = {0};
    *l = (struct lane){.tap_row = -1, .seed = 7, .how = {temperature, 0, 1, 0}};
    ids_cat(&l->tok, prompt->v, prompt->n);
    lane_prompt(r, l, 33, s);
    while (!l->stopped && l->tok.n < end) {
        must(lane_step(r, &l, &(struct step_limits){end - l->tok.n}, 1, s, &e), &e);
        accepted += l->rec.accepted;
        assert_true(l->tree.n == 0 || tree_ok(&l->tree, &e));
    }
    return accepted;
}

/* Plain decoding and drafting say the same; the uniforms drawn are the same, too. */
static int compare(struct runtime *r, const struct ids *prompt, float temperature, int n,
                   const struct tree_shape *s)
{
    struct lane plain, l;
    run(r, prompt, temperature, n, NULL, &plain);
    int accepted = run(r, prompt, temperature, n, s, &l);
    assert_int_equal(l.tok.n, plain.tok.n);
    assert_memory_equal(l.tok.v, plain.tok.v, (size_t)l.tok.n * sizeof *l.tok.v);
    assert_int_equal(l.seq.committed, plain.seq.committed);
    assert_int_equal(l.draws, plain.draws);
    lane_free(r, &plain);
    lane_free(r, &l);
    return accepted;
}

static const struct tree_shape shapes[] = {{5, 1, 6}, {3, 4, 12}, {16, 8, 64}};
static const int page_sizes[] = {1, 16, 64};

struct parity {
    struct bed b[3]; /* one a page size */
    int accepted[2]; /* greedy, sampled */
};

static void parity_one(int i, const char *kind, const char *text, void *arg)
{
    struct parity *p = arg;
    struct bed *b = &p->b[i / 12 % 3];
    const struct tree_shape *s = &shapes[i / 36 % 3];
    struct ids prompt = {0}, again = {0};
    struct lane l;
    (void)kind;
    if (i % 12)
        return;
    chat_prompt(b, text, &prompt);
    p->accepted[0] += compare(&b->r, &prompt, 0, 40, s);
    run(&b->r, &prompt, 0, 40, NULL, &l); /* the question, its answer, the question again */
    ids_cat(&again, l.tok.v, l.tok.n);
    ids_cat(&again, prompt.v, prompt.n);
    p->accepted[1] += compare(&b->r, &again, 0.8f, 24, s);
    lane_free(&b->r, &l);
    ids_free(&prompt);
    ids_free(&again);
}

static void test_drafting_equals_plain_decoding(void **state)
{
    (void)state;
    struct parity p = {0};
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        bed_ngram(&p.b[i], NESTLING);
        bed_chat(&p.b[i], NESTLING);
        bed_runtime(&p.b[i], &(struct runtime_shape){
                                 .page_size = page_sizes[i], .context = 2048, .lanes = 3});
        bed_stop(&p.b[i]);
    }
    each_prompt(parity_one, &p);
    print_message("%d greedy, %d sampled drafted tokens accepted\n", p.accepted[0], p.accepted[1]);
    assert_true(p.accepted[0] > 10 && p.accepted[1] > 60);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p.b[i].r.pass.check.violations, 0);
        must(kv_check(&p.b[i].r.kv, NULL, 0, &e), &e);
        bed_close(&p.b[i]);
    }
}

static void test_every_family_drafts_as_it_decodes(void **state)
{
    (void)state;
    static const char *const family[] = {"gemma2-b", "gemma3-a", "gemma4-a", "gemma4-ple-b",
                                         "gptoss-a", "gptoss-mxfp4-b", "llama-b", "olmo3-b"};
    int accepted = 0;
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        struct bed b;
        struct ids prompt = {0};
        char *dir = xasprintf("tests/golden/%s", family[i]);
        bed_ngram(&b, dir);
        bed_runtime(&b, &(struct runtime_shape){.page_size = page_sizes[i % 3], .context = 256});
        for (int k = 0; k < 40; k++)
            ids_add(&prompt, k < 13 ? below(b.m.cfg.vocab) : prompt.v[k - 13]);
        accepted += compare(&b.r, &prompt, 0, 60, &shapes[1]);
        accepted += compare(&b.r, &prompt, 1, 60, &shapes[2]);
        assert_int_equal(b.r.pass.check.violations, 0);
        ids_free(&prompt);
        free(dir);
        bed_close(&b);
    }
    assert_true(accepted > 20);
}

/* Without a match the cycle is plain decoding, which is fused where cycles are; else it is
 * stepped. */
static void test_cycles_without_a_match_are_fused(void **state)
{
    (void)state;
    struct bed b;
    struct ids prompt = {0};
    struct err e = {0};
    uint64_t digest[2] = {0}, alone = 0;
    struct lane l[2];
    bed_ngram(&b, NESTLING);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512, .lanes = 3});
    chat_prompt(&b, "Count from 1 to 30.", &prompt);
    for (int fuse = 0; fuse < 2; fuse++) {
        struct lane *x = &l[fuse];
        *x = (struct lane){.tap_row = -1};
        ids_cat(&x->tok, prompt.v, prompt.n);
        lane_prompt(&b.r, x, 64, &shapes[1]);
        b.r.fuse = fuse;
        while (x->tok.n < prompt.n + 60) {
            must(lane_step(&b.r, &x, &(struct step_limits){100}, 1, &shapes[1], &e), &e);
            digest[fuse] = mix64(digest[fuse] ^ x->rec.logit_digest ^ x->rec.draft_digest);
            alone += fuse && x->rec.drafted == 0;
        }
    }
    assert_int_equal(l[0].tok.n, l[1].tok.n);
    assert_memory_equal(l[0].tok.v, l[1].tok.v, (size_t)l[0].tok.n * sizeof *l[0].tok.v);
    assert_true(digest[0] == digest[1]);
    assert_true(alone > 5 && b.r.n_fused == alone);
    for (int i = 0; i < 2; i++)
        lane_free(&b.r, &l[i]);
    ids_free(&prompt);
    bed_close(&b);
}

/* Several lanes in one cycle, of which some find no match; a fork goes on as its origin does. */
static void test_lanes_and_forks_draft_alike(void **state)
{
    (void)state;
    enum { LANES = 4, TOKENS = 40 };
    struct bed b;
    struct lane plain[LANES], lane[LANES], fork = {.tap_row = -1}, *live[LANES + 1];
    struct step_limits lim[LANES + 1];
    struct err e = {0};
    struct ids prompt = {0};
    bed_ngram(&b, NESTLING);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = 512, .lanes = LANES + 2});
    for (int i = 0; i < LANES; i++) {
        static const char *const text[] = {"Count from 1 to 30.", "hi", "What is a page table?",
                                           "Show the powers of two to 2^12."};
        chat_prompt(&b, text[i], &prompt);
        run(&b.r, &prompt, 0, TOKENS, NULL, &plain[i]);
        lane[i] = (struct lane){.tap_row = -1};
        ids_cat(&lane[i].tok, prompt.v, prompt.n);
        lane_prompt(&b.r, &lane[i], 64, &shapes[1]);
        live[i] = &lane[i];
    }
    for (int cycle = 0;; cycle++) {
        int n = 0;
        if (cycle == 3) {
            lane_park(&b.r, &lane[0]);
            lane_fork(&b.r, &lane[0], &fork);
        }
        for (int i = 0; i < LANES + (cycle >= 3); i++) {
            struct lane *l = i < LANES ? &lane[i] : &fork;
            int left = plain[i % LANES].tok.n - l->tok.n;
            if (left > 0) {
                live[n] = l;
                lim[n++].max_new = left;
            }
        }
        if (n == 0)
            break;
        must(lane_step(&b.r, live, lim, n, &shapes[1], &e), &e);
    }
    for (int i = 0; i <= LANES; i++) {
        struct lane *l = i < LANES ? &lane[i] : &fork, *p = &plain[i % LANES];
        assert_int_equal(l->tok.n, p->tok.n);
        assert_memory_equal(l->tok.v, p->tok.v, (size_t)l->tok.n * sizeof *l->tok.v);
        lane_free(&b.r, l);
        if (i < LANES)
            continue;
        for (int k = 0; k < LANES; k++)
            lane_free(&b.r, &plain[k]);
    }
    must(kv_check(&b.r.kv, NULL, 0, &e), &e);
    ids_free(&prompt);
    bed_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees_are_those_of_a_brute_force_matcher),
        cmocka_unit_test(test_a_name_is_a_drafter_and_a_path_is_a_folder),
        cmocka_unit_test(test_drafting_equals_plain_decoding),
        cmocka_unit_test(test_every_family_drafts_as_it_decodes),
        cmocka_unit_test(test_cycles_without_a_match_are_fused),
        cmocka_unit_test(test_lanes_and_forks_draft_alike),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
