/* The views over hand-made copies of the engine's state: exact text, in Unicode and ASCII. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/bugs.h"
#include "repl/cmd/views.h"
#include "repl/repl.h"

/* ---- comparing ---- */

static struct sheet sheet;

static void begin(bool ascii)
{
    sheet_free(&sheet);
    sheet = (struct sheet){.ascii = ascii};
}

static void assert_shows(const char *expect)
{
    struct buf text = {0};
    sheet_to_text(&sheet, false, &text);
    if (strcmp(text.p ? text.p : "", expect) != 0)
        fail_msg("got:\n%s\nexpected:\n%s", text.p ? text.p : "", expect);
    buf_free(&text);
}

static void assert_has(const char *part)
{
    struct buf text = {0};
    sheet_to_text(&sheet, false, &text);
    if (!strstr(text.p ? text.p : "", part))
        fail_msg("got:\n%s\nwithout: %s", text.p ? text.p : "", part);
    buf_free(&text);
}

/* No line is wider than the view was asked for, none ends in blanks; ASCII views hold ASCII. */
static void assert_fits(int width)
{
    for (int i = 0; i < sheet.n_row; i++) {
        const struct buf *t = &sheet.row[i].text;
        if (text_width(t->p ? t->p : "", t->n) > width)
            fail_msg("wider than %d: %s", width, t->p);
        if (t->n && t->p[t->n - 1] == ' ')
            fail_msg("blank at the end: \"%s\"", t->p);
        for (size_t k = 0; sheet.ascii && k < t->n; k++)
            assert_true(t->p[k] >= ' ' && t->p[k] < 127);
    }
}

/* ---- a tree ---- */

/* root - 11 - 13, 14; root - 12 - 15: 11 accepted, then the target drew something else. */
static struct tree small_tree(void)
{
    struct tree t;
    tree_init(&t, 10);
    tree_add(&t, 0, 11, 0.61f, -0.5f);
    tree_add(&t, 0, 12, 0.20f, -1.6f);
    tree_add(&t, 1, 13, 0.58f, -1.0f);
    tree_add(&t, 1, 14, 0.11f, -2.7f);
    tree_add(&t, 2, 15, 1.00f, -1.6f);
    t.p[1] = 0.83f;
    t.p[2] = 0.001f;
    t.p[3] = 0.07f;
    t.p[4] = 0.0f;
    t.u[0] = 0.25f;
    t.u[1] = 0.714f;
    t.fate[0] = t.fate[1] = FATE_ACCEPTED;
    t.fate[2] = t.fate[3] = t.fate[4] = FATE_REJECTED;
    t.fate[5] = FATE_CUT;
    return t;
}

static void test_tree_shows_fates_and_probabilities(void **state)
{
    (void)state;
    struct tree t = small_tree();
    begin(false);
    view_tree(NULL, &t, 9, 214, 77, 0, &sheet);
    assert_shows("TREE   step 9.214   drafted 5   accepted 1   bonus #77\n"
                 "● #10      ✓  root: the last sampled token\n"
                 "├─● #11    q .61   p .83   ✓  then u 0.714\n"
                 "│ ├─○ #13  q .58   p .07   ✗  target drew #77\n"
                 "│ └─○ #14  q .11   p 0     ✗  target drew #77\n"
                 "└─○ #12    q .20   p <.01  ✗  sibling accepted first\n"
                 "  └─○ #15  q 1.0   p -     –  parent rejected\n"
                 "q: the draft's probability, p: the target's at temperature 1\n");
    assert_fits(80);
}

static void test_tree_in_ascii_says_the_same(void **state)
{
    (void)state;
    struct tree t = small_tree();
    begin(true);
    view_tree(NULL, &t, 1, 2, -1, 0, &sheet);
    assert_shows("TREE   step 1.2   drafted 5   accepted 1\n"
                 "* #10      ok  root: the last sampled token\n"
                 "|-* #11    q .61   p .83   ok  then u 0.714\n"
                 "| |-o #13  q .58   p .07   x  target drew another\n"
                 "| `-o #14  q .11   p 0     x  target drew another\n"
                 "`-o #12    q .20   p <.01  x  sibling accepted first\n"
                 "  `-o #15  q 1.0   p -     -  parent rejected\n"
                 "q: the draft's probability, p: the target's at temperature 1\n");
    assert_fits(80);
}

static void test_no_tree_yet(void **state)
{
    (void)state;
    struct tree t = {0};
    begin(false);
    view_tree(NULL, &t, 0, 0, -1, 0, &sheet);
    assert_shows("TREE   no step has drafted yet\n");
}

/* Every node has one line; a node's line comes after its parent's, indented two cells more. */
static void test_random_trees_show_every_node_under_its_parent(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        struct tree t;
        tree_init(&t, 1000);
        int n = 1 + (int)((seed = mix64(seed)) % (TREE_MAX - 1));
        while (t.n < n) {
            seed = mix64(seed);
            tree_add(&t, (int)(seed % (uint64_t)t.n), 1000 + t.n, 0.5f, -1);
        }
        begin(round % 2);
        view_tree(NULL, &t, 1, 1, -1, 0, &sheet);
        assert_int_equal(sheet.n_row, n + 2);
        int line[TREE_MAX], indent[TREE_MAX];
        for (int i = 0; i < n; i++) {
            char name[16];
            snprintf(name, sizeof name, " #%d ", 1000 + i);
            line[i] = -1;
            for (int r = 1; r <= n; r++) {
                const char *at = strstr(sheet.row[r].text.p, name);
                if (!at)
                    continue;
                assert_int_equal(line[i], -1);
                line[i] = r;
                indent[i] = text_width(sheet.row[r].text.p, (size_t)(at - sheet.row[r].text.p));
            }
            assert_true(line[i] > 0);
            if (i > 0) {
                assert_true(line[i] > line[t.parent[i]]);
                assert_int_equal(indent[i], indent[t.parent[i]] + 2);
            }
        }
    }
}

/* ---- pools and pages ---- */

/* Pages of 16 tokens, 10 of them committed (150 tokens), one more reserved for a tree; W = 64. */
struct world {
    struct page_table t;
    struct page_view page[11];
    uint16_t refs[N_POOLS][40];
    uint8_t mine[N_POOLS][40];
};

static void hold(struct world *w, enum pool_id pool, int column, int page, int refs)
{
    int32_t *at[] = {&w->page[column].full, &w->page[column].swa, &w->page[column].draft};
    *at[pool] = page;
    w->refs[pool][page] = (uint16_t)refs;
    w->mine[pool][page] = 1;
    *(refs > 1 ? &w->t.pool[pool].protected_ : &w->t.pool[pool].used) += 1;
    w->t.pool[pool].free--;
}

static struct world *new_world(void)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct page_table *t = &w->t;
    *t = (struct page_table){.turn = 9, .step = 214, .length = 151, .committed = 150,
                              .capacity = 4096, .window = 64, .window_lo = 80, .draft_length = 149,
                              .page = w->page, .n_page = 11};
    for (int i = 0; i < N_POOLS; i++) {
        t->pool[i] = (struct pool_view){.exists = true, .page_size = 16, .total = 40, .reserved = 1,
                                        .free = 39};
        t->refs[i] = w->refs[i];
        t->mine[i] = w->mine[i];
    }
    for (int c = 0; c < 11; c++) {
        hold(w, POOL_FULL, c, c < 6 ? c + 1 : c + 4, c < 3 ? 2 : 1);
        if (c >= 4) /* column 4 (64-79) lies left of the window [87,150] but is not released yet */
            hold(w, POOL_SWA, c, c + 3, 1);
        if (c < 10)
            hold(w, POOL_DRAFT, c, c + 1, 1);
    }
    w->refs[POOL_SWA][30] = 1; /* a checkpoint's */
    t->pool[POOL_SWA].evictable++;
    t->pool[POOL_SWA].free--;
    return w;
}

static void test_page_map(void **state)
{
    (void)state;
    struct world *w = new_world();
    begin(false);
    view_pages(&w->t, NULL, 30, &sheet);
    assert_shows("PAGES turn 9 step 214    full 11/39  swa 7/39  draft 10/39\n"
                 "one cell: 8 tokens of a page's 16\n"
                 "context 151/4096\n"
                 "full  ███████████████████.dd..\n"
                 "swa   --------▒▒▓▓▓▓▓▓▓▓▓.dd..\n"
                 "draft ███████████████████.....\n"
                 "pos   0               128\n"
                 "█ read ▓ window ▒ held d draft\n"
                 "- released . free\n"
                 "pos 149 → logical 9:5 → full 13 → swa 12  ok\n"
                 "window [87,149]\n");
    free(w);
}

static void test_page_map_in_ascii_has_the_same_cells(void **state)
{
    (void)state;
    struct world *w = new_world();
    begin(true);
    view_pages(&w->t, NULL, 80, &sheet);
    assert_has("one cell: 4 tokens of a page's 16; context 151/4096\n");
    assert_has("\nfull  ######################################..dddd..");
    assert_has("\nswa   ----------------=====+++++++++++++++++..dddd..");
    assert_has("# read   + window   = held   d draft   - released   . free\n");
    assert_has("pos 149 -> logical 9:5 -> full 13 -> swa 12  ok\nwindow [87,149]\n");
    assert_fits(80);
    free(w);
}

/* A long context on a short line: a cell shows its busiest page, so the window never vanishes. */
static void test_a_long_page_map_is_compressed(void **state)
{
    (void)state;
    enum { N = 2048 };
    struct page_table t = {.committed = N * 16, .length = N * 16, .capacity = N * 16,
                            .window = 128,
                            .n_page = N, .page = xcalloc(N, sizeof(struct page_view))};
    for (int i = 0; i < 2; i++)
        t.pool[i] = (struct pool_view){.exists = true, .page_size = 16, .total = 4096,
                                       .reserved = 1};
    for (int c = 0; c < N; c++) {
        t.page[c].full = c + 1;
        t.page[c].swa = c >= N - 8 ? c - N + 9 : 0;
    }
    begin(true);
    view_pages(&t, "", 80, &sheet);
    assert_fits(80);
    assert_has("one cell: 28 pages of 16 tokens; context 32768/32768\n");
    /* 28 pages a cell: the last 8 pages lie in cells 72 (2016-2043) and 73 */
    assert_has(
        "\nswa   ------------------------------------------------------------------------++\n");
    assert_has("\ndraft none: model and drafter do not need it\n");
    free(t.page);
}

static void test_window_edge_is_exact(void **state)
{
    (void)state;
    /* W keys, the query's own included: the query at c sees [c - W + 1, c]. */
    struct world *w = new_world();
    w->t.committed =
        144; /* the next query sees [81,144]: column 5 (80-95) is in, column 4 is not */
    w->t.window = 64;
    begin(true);
    view_pages(&w->t, NULL, 17, &sheet); /* a page a cell: 11 of them */
    assert_has("\nswa   ----=++++dd\n");
    w->t.committed = 142; /* [79,142]: the last key of column 4 is in */
    begin(true);
    view_pages(&w->t, NULL, 17, &sheet);
    assert_has("\nswa   ----+++++d");
    w->t.committed = 143; /* [80,143]: it is not */
    begin(true);
    view_pages(&w->t, NULL, 17, &sheet);
    assert_has("\nswa   ----=++++d");
    free(w);
}

/* A short conversation in a large pool fills a line; the scale says how. */
static void test_the_map_scales_to_what_is_held(void **state)
{
    (void)state;
    struct world *w = new_world();
    for (int held = 1; held <= 11; held++) {
        w->t.n_page = held;
        w->t.length = w->t.committed = w->t.draft_length = 16 * held;
        for (int cells = 8; cells <= 200; cells++) {
            int unit = map_unit(&w->t, cells);
            assert_true(unit >= 1 && unit <= 16 && (unit & (unit - 1)) == 0);
            if (unit < 16) /* it fits, and more than half of the line shows it */
                assert_true(unit * cells >= 16 * held);
            if (unit > 1)
                assert_true(unit / 2 * cells < 16 * held);
        }
    }
    free(w);
}

/* Page 0 is the guard: never where a position lies. */
static void test_a_released_position_says_so(void **state)
{
    (void)state;
    struct world *w = new_world();
    begin(false);
    map_translation(&w->t, 3, &sheet);
    assert_shows("pos 3 → logical 0:3 → full 1  ok\nswa released: behind the window [87,149]\n");
    begin(false);
    map_translation(&w->t, 400, &sheet);
    assert_shows("pos 400 → logical 25:0  not written yet\nwindow [87,149]\n");
    w->page[9].swa = 0;
    begin(false);
    map_translation(&w->t, 149, &sheet);
    assert_shows("pos 149 → logical 9:5 → full 13  swa MISSING\nwindow [87,149]\n");
    free(w);
}

/* The cell that a violation names is marked in its pool. */
static void test_a_violation_is_marked_on_the_map(void **state)
{
    (void)state;
    struct world *w = new_world();
    w->t.violated = true;
    w->t.at = fault_at(4);
    w->t.at.pool = POOL_SWA, w->t.at.row = 0, w->t.at.cell = 90;
    begin(true);
    view_pages(&w->t, NULL, 80, &sheet);
    assert_has("\nfull  ######################################..dddd..");
    assert_has("\nswa   ----------------=====+!+++++++++++++++..dddd..");
    w->t.violated = false;
    begin(true);
    view_pages(&w->t, NULL, 80, &sheet);
    assert_has("\nswa   ----------------=====+++++++++++++++++..dddd..");
    free(w);
}

static void test_one_pool_page_by_page(void **state)
{
    (void)state;
    struct world *w = new_world();
    begin(false);
    view_pages(&w->t, "swa", 80, &sheet);
    assert_shows(
        "POOL swa  40 pages of 16 tokens: 7 used, 0 protected, 1 evictable, 31 free\n"
        "     0  X......███████................▒.........\n"
        "        X guard  █ ours alone  ▓ ours, shared  ▒ another's or a checkpoint's  . free\n"
        "logical page → swa page:  4-10→7-13\n");
    begin(true);
    view_pages(&w->t, "full", 80, &sheet);
    assert_shows(
        "POOL full  40 pages of 16 tokens: 8 used, 3 protected, 0 evictable, 28 free\n"
        "     0  X+++###...#####.........................\n"
        "        X guard  # ours alone  + ours, shared  = another's or a checkpoint's  . free\n"
        "logical page -> full page:  0-5->1-6  6-10->10-14\n");
    free(w);
}

static void test_ledger_sums(void **state)
{
    (void)state;
    struct world *w = new_world();
    w->t.pool[POOL_DRAFT].exists = false;
    begin(true);
    view_pool(w->t.pool, 80, ON_SHEET(&sheet));
    assert_shows("POOL    total   used protected evictable   free\n"
                 "full       40      8         3         0     28  #######.................  28%\n"
                 "swa        40      7         0         1     31  ####....................  18%\n"
                 "draft  none: model and drafter do not need it\n"
                 "       free + used + evictable + protected = total - reserved\n"
                 "full   28 + 8 + 0 + 3 = 39 = 40 - 1  ok\n"
                 "swa    31 + 7 + 1 + 0 = 39 = 40 - 1  ok\n"
                 "pages of 16 tokens; used: this session's own; protected: shared with another; "
                 "evictable: held by checkpoints or idle sessions; reserved: guard pages\n");
    free(w);
}

static void test_a_leak_is_named_with_its_size(void **state)
{
    (void)state;
    struct world *w = new_world();
    w->t.pool[POOL_SWA].free -= 2;
    begin(false);
    view_pool(w->t.pool, 80, ON_SHEET(&sheet));
    assert_has("swa    29 + 7 + 1 + 0 = 37, but 40 - 1 = 39: ✗ wrong by -2 pages\n");
    assert_has("full   28 + 8 + 0 + 3 = 39 = 40 - 1  ✓\n");
    free(w);
}

static void test_bars_use_eighths(void **state)
{
    (void)state;
    struct world *w = new_world();
    w->t.pool[POOL_FULL] = (struct pool_view){.exists = true, .page_size = 16, .total = 193,
                                              .reserved = 1, .used = 11, .free = 181};
    begin(false);
    view_pool(w->t.pool, 80, ON_SHEET(&sheet)); /* 11/192 of 24 cells: 1 and 3/8 */
    assert_has("  █▍░░░░░░░░░░░░░░░░░░░░░░   6%\n");
    w->t.pool[POOL_FULL].used = 192;
    w->t.pool[POOL_FULL].free = 0;
    begin(false);
    view_pool(w->t.pool, 80, ON_SHEET(&sheet));
    assert_has("  ████████████████████████ 100%\n");
    free(w);
}

/* ---- statistics and acceptance ---- */

static struct status busy_status(void)
{
    struct status s = {.chat = {.session = "01JABC", .turn = 9, .step = 214,
                            .drafts = {.cycles = 120, .drafted = 600, .accepted = 190},
                            .generated = 310, .tok_s = 71.26,
                            .turn_mal = 2.61, .session_mal = 2.58, .us_prefill = 120400,
                            .us_draft = 1200000, .us_verify = 2800000, .us_commit = 900,
                            .us_check = 12000, .prompt_tokens = 2000, .reused_tokens = 1500,
                            .length = 3071, .committed = 3070, .capacity = 4096},
                       .check = {.checks = 720}};
    settings_init(&s.chat.settings);
    for (int i = 0; i < N_VIEWS; i++)
        s.has[i] = i != VIEW_SERVED && i != VIEW_GAUGES && i != VIEW_BLOCKS; /* as the local
                                                                                engine */
    s.chat.drafts.depth[1] = (struct depth_stat){120, 96};
    s.chat.drafts.depth[2] = (struct depth_stat){120, 60};
    s.chat.drafts.depth[3] = (struct depth_stat){100, 34};
    return s;
}

static const struct backend_info info = {.family = "gemma3", .draft_about = "an EAGLE3 head",
                                         .device = "cpu", .n_layer = 8, .n_swa_layer = 6,
                                         .window = 64, .page_size = 16};

static void test_stats(void **state)
{
    (void)state;
    struct status s = busy_status();
    begin(false);
    view_stats(&s, &info, ON_SHEET(&sheet));
    assert_shows(
        "STATS     session 01JABC   step 9.214\n"
        "speed     71.3 tokens/s in the last reply; 310 tokens generated\n"
        "MAL       2.61 last turn, 2.58 session   (MAL = 1 + accepted/cycles)\n"
        "draft     600 drafted, 190 accepted (31.7%) in 120 cycles\n"
        "time      prefill 120.4 ms  draft 1.20 s  verify 2.80 s  commit 900 us  check 12.0 ms "
        "(0.30%)\n"
        "prompt    2000 tokens, 1500 of them reused from the cache (75.0%)\n"
        "plans     720 checked, 0 violations\n"
        "context   3071 of 4096 tokens, 3070 with KV\n"
        "model     gemma3, 8 layers (6 sliding, window 64), pages of 16, on cpu\n"
        "spec      on, an EAGLE3 head: 5 steps, top 1, 6 nodes\n");
}

static void test_stats_say_why_nothing_is_drafted(void **state)
{
    (void)state;
    struct status s = busy_status();
    struct backend_info i = info;
    s.chat.settings.spec = false;
    s.chat.drafts.cycles = s.chat.drafts.drafted = 0;
    s.check.violations = 2;
    s.check.unchecked = 9;
    s.check.violation = (struct violated){.turn = 3, .step = 7, .text = "I4 row 0 \x1b[31m"};
    begin(false);
    view_stats(&s, &i, ON_SHEET(&sheet));
    assert_has("spec      off: switched off by /set spec\n");
    assert_has("MAL       nothing drafted yet");
    assert_has("720 checked, 9 unchecked, 2 violations; step 3.7: I4 row 0 <U+001B>[31m\n");
    i.draft_off = "no head";
    begin(false);
    view_stats(&s, &i, ON_SHEET(&sheet));
    assert_has("spec      off: no head\n");
}

static void test_acceptance_by_depth(void **state)
{
    (void)state;
    struct status s = busy_status();
    begin(true);
    view_accept(&s.chat, false, 80, ON_SHEET(&sheet));
    assert_shows(
        "ACCEPT  cycles 120   drafted 600   accepted 190   rate 0.32\n"
        "MAL 2.58 = 1 + 190/120  (1 + accepted/cycles)\n"
        "depth   drafted  accepted of cycles of parent\n"
        "    1       120        96      0.80      0.80  ###################.....\n"
        "    2       120        60      0.50      0.62  ############............\n"
        "    3       100        34      0.28      0.57  #######.................\n"
        "rate = accepted/drafted; of cycles: accepted at that depth / all cycles\n"
        "drafted: cycles with a node there; of parent: where the depth above was accepted\n");
    assert_fits(80);
    for (int d = 4; d < 16; d++) /* a server drafts trees of 15 nodes in three depths */
        s.chat.drafts.depth[d] = (struct depth_stat){100, 0};
    begin(true);
    view_accept(&s.chat, true, 80, ON_SHEET(&sheet));
    assert_has("    3       100        34      0.28      0.57  #######.................\n"
               "rate = accepted/drafted; of cycles: accepted at that depth / all cycles\n"
               "drafted: cycles with so many drafted tokens or more; the server tells no depths\n"
               "of parent: where the depth above was accepted; none was accepted deeper\n");
    assert_fits(80);
    for (int d = 1; d < 4; d++)
        s.chat.drafts.depth[d].accepted = 0; /* the first depth is there, accepted or not */
    begin(true);
    view_accept(&s.chat, true, 80, ON_SHEET(&sheet));
    assert_has("    1       120         0      0.00      0.00  ........................\nrate");
    struct chat_view none = {0};
    begin(false);
    view_accept(&none, false, 80, ON_SHEET(&sheet));
    assert_has("nothing drafted yet\n");
}

/* ---- the status line ---- */

static void test_status_line(void **state)
{
    (void)state;
    struct status s = busy_status();
    s.pool[POOL_FULL] = (struct pool_view){.exists = true, .total = 101, .reserved = 1, .used = 40,
                                           .protected_ = 1, .evictable = 30, .free = 29};
    s.pool[POOL_SWA] = (struct pool_view){.exists = true, .total = 33, .reserved = 1, .used = 28,
                                          .free = 4};
    s.pool[POOL_DRAFT] = (struct pool_view){.exists = true, .total = 101, .reserved = 1, .used = 12,
                                            .free = 88};
    struct app *a = xcalloc(1, sizeof *a);
    begin(false);
    app_status(a, &s, 0, &sheet);
    assert_shows(
        "ctx 3.1k/4.1k · full 41% swa 88% draft 12% · MAL 2.6 · 71 t/s · step 9.214 · no log\n");
    s.chat.settings.spec = false;
    s.chat.length = 999;
    s.chat.capacity = 131072;
    s.chat.tok_s = 3.14;
    snprintf(a->log_error, sizeof a->log_error, "disk full");
    begin(true);
    app_status(a, &s, 0, &sheet);
    assert_shows("ctx 999/131k | full 41% swa 88% draft 12% | spec off (/set spec) | 3.1 t/s | "
                 "step 9.214 | NOT SAVED: disk full\n");
    s.chat.tok_s = 0; /* of a reply with one token */
    begin(true);
    app_status(a, &s, 0, &sheet);
    assert_has("| spec off (/set spec) | step 9.214 |");
    free(a);
}

/* Danger stands first, where no narrow screen cuts it off. */
static void test_status_line_begins_with_switches_of_danger(void **state)
{
    (void)state;
    struct status s = busy_status();
    struct app *a = xcalloc(1, sizeof *a);
    s.chat.settings.check = CHECK_OFF;
    begin(false);
    app_status(a, &s, 0, &sheet);
    assert_has("CHECK OFF · ctx 3.1k/4.1k · ");
    s.check.unchecked = 12;
    begin(false);
    app_status(a, &s, 0, &sheet);
    assert_has("CHECK OFF · 12 unchecked · ctx 3.1k/4.1k · ");
    s.check.unchecked = 0;
    bug_switch(&s.bugs, BUG_SWA_UNTRANSLATED, 1);
    bug_switch(&s.bugs, BUG_DRAFT_EXTEND_EXTENT, 2);
    begin(true);
    app_status(a, &s, 0, &sheet);
    assert_has("BUG 24617 | BUG 26512 counted-twice | CHECK OFF | ctx 3.1k/4.1k | ");
    for (int width = 40; width < 120; width++) { /* what does not fit goes, whole */
        begin(false);
        app_status(a, &s, width, &sheet);
        assert_has("BUG 24617 · BUG 26512 counted-twice");
        assert_has(width < 74 ? "BUG" : "no log\n");
    }
    s.bugs = (struct bugs){0};
    s.chat.settings.check = CHECK_ON;
    begin(false);
    app_status(a, &s, 30, &sheet);
    assert_shows("ctx 3.1k/4.1k · no log\n");
    begin(false);
    app_status(a, &s, 36, &sheet);
    assert_shows("ctx 3.1k/4.1k · step 9.214 · no log\n");
    free(a);
}

/* In a narrow pane tokens give way and signs stand for words; no line is wider. */
static void test_a_tree_fits_its_pane(void **state)
{
    (void)state;
    struct tree t = small_tree();
    begin(false);
    view_tree(NULL, &t, 9, 214, 77, 44, &sheet);
    sheet_cut(&sheet, 44);
    assert_has("├─● #11    q .61   p .83   ✓\n");
    assert_has("✓ accepted  ✗ rejected  – not reached\n");
    assert_fits(44);
    begin(false);
    view_tree(NULL, &t, 9, 214, 77, 60, &sheet);
    assert_has("├─● #11    q .61   p .83   ✓  then u 0.714\n");
    assert_fits(60);
}

static void test_cut_rows_say_so(void **state)
{
    (void)state;
    begin(false);
    sheet_add(&sheet, ST_BAD, "abc");
    sheet_add(&sheet, ST_TEXT, "defgh");
    sheet_line(&sheet);
    sheet_add(&sheet, ST_TEXT, "short");
    sheet_line(&sheet);
    sheet_cut(&sheet, 6);
    assert_shows("abcde…\nshort\n");
    sheet_cut(&sheet, 3);
    assert_shows("ab…\nsh…\n");
}

static int cleanup(void **state)
{
    (void)state;
    sheet_free(&sheet);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_shows_fates_and_probabilities),
        cmocka_unit_test(test_tree_in_ascii_says_the_same),
        cmocka_unit_test(test_no_tree_yet),
        cmocka_unit_test(test_random_trees_show_every_node_under_its_parent),
        cmocka_unit_test(test_page_map),
        cmocka_unit_test(test_page_map_in_ascii_has_the_same_cells),
        cmocka_unit_test(test_a_long_page_map_is_compressed),
        cmocka_unit_test(test_window_edge_is_exact),
        cmocka_unit_test(test_the_map_scales_to_what_is_held),
        cmocka_unit_test(test_a_released_position_says_so),
        cmocka_unit_test(test_a_violation_is_marked_on_the_map),
        cmocka_unit_test(test_one_pool_page_by_page),
        cmocka_unit_test(test_ledger_sums),
        cmocka_unit_test(test_a_leak_is_named_with_its_size),
        cmocka_unit_test(test_bars_use_eighths),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_stats_say_why_nothing_is_drafted),
        cmocka_unit_test(test_acceptance_by_depth),
        cmocka_unit_test(test_status_line),
        cmocka_unit_test(test_a_tree_fits_its_pane),
        cmocka_unit_test(test_cut_rows_say_so),
        cmocka_unit_test(test_status_line_begins_with_switches_of_danger),
    };
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
