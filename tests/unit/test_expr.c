/* Conditions of breakpoints: every operator and name, what is refused and where, and random
 * conditions against a second evaluation that walks the tree from which their text was made. */
#include "engine/thread/expr.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {"foo", " bar", "\"", "\\", "\n", "", "fo"};
enum { N_WORDS = sizeof words / sizeof *words };

static const char *word_of(void *arg, int32_t id, size_t *n)
{
    (void)arg;
    *n = strlen(words[id % N_WORDS]);
    return words[id % N_WORDS];
}

static const int32_t emitted[] = {1, 0, 13};
static struct tree tree;

/* Step 9.214: 3 of 5 nodes accepted; no margin is known. */
static struct step_facts example(void)
{
    static const int32_t choice[] = {7, 8, 99, 10, 0, 0};
    int path[TREE_MAX], held;
    struct step_facts s = {.turn = 9, .step = 214, .tree = &tree, .token = emitted, .n_token = 3,
                           .text = word_of};
    for (int i = 0; i < N_FACTS; i++)
        s.fact[i] = i;
    s.fact[FACT_MARGIN] = NAN;
    s.fact[FACT_ACCEPTED] = 0;
    s.fact[FACT_SWA_FREE] = 7;
    tree_init(&tree, 5);
    tree_add(&tree, 0, 7, 0.95f, -0.05f); /* 1 accepted */
    tree_add(&tree, 0, 6, 0.05f, -3.0f);  /* 2 rejected */
    tree_add(&tree, 1, 8, 0.5f, -0.7f);   /* 3 accepted */
    tree_add(&tree, 3, 10, 0.25f, -2.1f); /* 4 accepted, depth 3 */
    tree_add(&tree, 4, 1, 0.97f, -2.2f);  /* 5 */
    int32_t at[TREE_MAX] = {0};
    memcpy(at, choice, sizeof choice);
    at[3] = 10;
    at[1] = 8;
    at[4] = 1000;
    tree_accept(&tree, at, &(struct tree_ends){.max_nodes = TREE_MAX}, path, &held);
    return s;
}

static bool holds(const char *text, const struct step_facts *s, int *node, int *token)
{
    struct expr x;
    struct err e = {0};
    if (!expr_parse(&x, text, &e))
        fail_msg("%s", e.msg);
    return expr_holds(&x, s, node, token);
}

static void assert_prints(const char *text, size_t n, const char *expect)
{
    struct expr x;
    struct err e = {0};
    struct step_facts s = example();
    char out[VALUE_BYTES];
    assert_true(n <= sizeof out && expr_parse(&x, text, &e));
    expr_print(&x, &s, out, n);
    assert_string_equal(out, expect);
}

static void test_values_are_printed(void **state)
{
    (void)state;
    assert_prints("pool.swa.free * 1.5", VALUE_BYTES, "10.5");
    assert_prints("margin", VALUE_BYTES, "unknown");
    assert_prints("step", VALUE_BYTES, "9.214");
    assert_prints("accepted==0", VALUE_BYTES, "1");
    assert_prints("node.q", VALUE_BYTES, "0.95 0.05 0.5 0.25 0.97"); /* of each node */
    assert_prints("node.q", 20, "0.95 0.05 0.5 .."); /* as many as fit */
    assert_prints("token", VALUE_BYTES, "\" bar\" \"foo\" \"fo\"");
    for (size_t n = 1; n < 40; n++) { /* always ended, never beyond n */
        char out[41];
        struct expr x;
        struct step_facts s = example();
        memset(out, '#', sizeof out);
        assert_true(expr_parse(&x, "node.q", NULL));
        expr_print(&x, &s, out, n);
        assert_true(strlen(out) < n && out[n] == '#');
    }
}

static void test_examples(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool holds;
        int node, token;
    } c[] = {
        {"accept==0", true, -1, -1},
        {"accepted == 0 && pool.swa.free<8", true, -1, -1},
        {"token==\"foo\"", true, -1, 1},
        {"token==\" bar\" and token.id==1", true, -1, 0},
        {"token==\" bar\" and token.id==0", false, 0, 0},
        {"token==\"f\"", false, 0, 0},
        {"token > \"f\" && token < \"foo\"", true, -1, 2},
        {"step==9.214", true, -1, -1},
        {"step==9.2140", false, 0, 0}, /* step 2140 */
        {"step>9.99 && step<10.1", true, -1, -1},
        {"step==214", true, -1, -1},
        {"214.0==step", true, -1, -1}, /* there is no step 0: a number */
        {"step==9.214 && turn==0", true, -1, -1},
        {"node.depth>=3 && node.q>0.9 && !node.accepted", true, 5, -1},
        {"node.depth>=3 && node.accepted", true, 4, -1},
        {"node.rank==2", true, 2, -1},
        {"node.token==\"foo\" && node.accepted", true, 1, -1},
        {"node.q>0.9 && node.rejected && node.depth==1", false, 0, 0},
        {"node.id==token.id", true, 5, 0},
        {"node.p>0", false, 0, 0},
        {"!(node.p>0)", false, 0, 0}, /* unknown, and so is its negation */
        {"margin<0.01", false, 0, 0},
        {"!(margin<0.01)", false, 0, 0},
        {"margin<0.01 || accept==0", true, -1, -1},
        {"margin<0.01 && accept==0", false, 0, 0},
        {"1/0==1/0", false, 0, 0},
        {"-2*-3==6 && 7%4==3 && 1-2-3==-4 && 2+3*4==14 && (2+3)*4==20 && 8/4/2==1", true, -1, -1},
        {"not accept and not(drafted<0)", true, -1, -1},
    };
    struct step_facts s = example();
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int node = 0, token = 0;
        if (holds(c[i].text, &s, &node, &token) != c[i].holds)
            fail_msg("%s", c[i].text);
        assert_int_equal(node, c[i].node);
        assert_int_equal(token, c[i].token);
    }
    s.tree = NULL;
    assert_false(holds("node.depth>=0", &s, NULL, NULL));
    assert_true(holds("accepted==0", &s, NULL, NULL));
}

static void test_what_is_wrong_is_named_with_its_column(void **state)
{
    (void)state;
    static const char *const c[][2] = {
        {"", "ends at column 1; expected a name, a number"},
        {"accept=0", "\"=0\" at column 7; expected =="},
        {"accept==", "ends at column 9; expected a name"},
        {"pool.swa.fre<8", "\"pool.swa.fre\" at column 1; expected a name such as"},
        {"(accept==0", "ends at column 11; expected a closing parenthesis"},
        {"accept==0)", "\")\" at column 10; expected an operator"},
        {"1<2<3", "\"<3\" at column 4; expected an operator"},
        {"token==\"foo", "ends at column 12; expected a closing quote"},
        {"token==\"\\x\"", "expected \\n, \\t"},
        {"step==9.2.3", "\"9.2.3\" at column 7; expected a number"},
        {"margin<1e3", "expected a number"},
        {"1234567890123456>0", "at most 15 digits"},
        {"accept == 0 & drafted", "\"&\" at column 13; expected an operator"},
        {"((((((((((((((((((((((((((1))))))))))))))))))))))))))", "nested more than 24 deep"},
        {"!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!1", "nested more than 24 deep"},
        {"------------------------------1", "nested more than 24 deep"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct expr x;
        struct err e = {0};
        assert_false(expr_parse(&x, c[i][0], &e));
        assert_int_equal(e.kind, ERR_USAGE);
        if (!strstr(e.msg, c[i][1]))
            fail_msg("%s: not \"%s\"", e.msg, c[i][1]);
    }
    struct expr x;
    struct err e = {0};
    char longest[EXPR_TEXT + 2];
    memset(longest, ' ', sizeof longest);
    memcpy(longest, "1", 1);
    longest[EXPR_TEXT + 1] = '\0';
    assert_false(expr_parse(&x, longest, &e));
    longest[EXPR_TEXT] = '\0';
    assert_true(expr_parse(&x, longest, &e));
    for (int i = 0; i < EXPR_TEXT; i++)
        longest[i] = i % 2 ? '+' : '1';
    longest[EXPR_TEXT - 1] = ' ';
    assert_false(expr_parse(&x, longest, &e));
    assert_non_null(strstr(e.msg, "more than 96 operations"));
}

/* ---- a second evaluation --------------------------------------------------------------------- */

static const struct step_facts *facts;

/* Writes a random condition and gives its value for node and token `at`; NAN: unknown. */
static double random_value(struct buf *b, int depth, int level);

static double known(double v)
{
    return isfinite(v) ? v : (double)NAN;
}

static double leaf(struct buf *b)
{
    static const enum fact fact[] = {FACT_TURN, FACT_POS, FACT_MARGIN, FACT_SWA_FREE};
    static const char *const name[] = {"turn", "pos", "margin", "pool.swa.free"};
    int i = below(6);
    if (i < 4) {
        buf_str(b, name[i]);
        return facts->fact[fact[i]];
    }
    int n = below(10);
    buf_printf(b, i == 4 ? "%d" : "%d.5", n);
    return i == 4 ? n : n + 0.5;
}

static double both(const char *sign, double x, double y)
{
    switch (*sign) {
    case '|': return x == x && x ? 1 : y == y && y ? 1 : x + y != x + y ? (double)NAN : 0;
    case '&': return x == 0 || y == 0 ? 0 : x + y != x + y ? (double)NAN : 1;
    case '+': return known(x + y);
    case '-': return known(x - y);
    case '*': return known(x * y);
    case '/': return known(x / y);
    case '%': return known(fmod(x, y));
    }
    if (isnan(x) || isnan(y))
        return NAN;
    return !strcmp(sign, "==") ? x == y : !strcmp(sign, "!=") ? x != y
         : !strcmp(sign, "<=") ? x <= y : !strcmp(sign, ">=") ? x >= y
         : *sign == '<' ? x < y : x > y;
}

/* level: how tightly the value must bind; 0 `||` ... 5 a primary. */
static double random_value(struct buf *b, int depth, int level)
{
    static const struct { const char *sign; int left, right; } op[] = {
        {"||", 0, 1}, {"&&", 1, 2}, {"==", 4, 4}, {"!=", 4, 4}, {"<=", 4, 4}, {"<", 4, 4},
        {">", 4, 4}, {">=", 4, 4}, {"+", 4, 5}, {"-", 4, 5}, {"*", 5, 6}, {"/", 5, 6}, {"%", 5, 6}};
    static const int own[] = {0, 1, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5};
    int i = below(16);
    if (depth == 0)
        return leaf(b);
    if (i == 13 && level <= 2) {
        buf_str(b, below(2) ? "!" : " not ");
        double v = random_value(b, depth - 1, 2);
        return isnan(v) ? (double)NAN : v == 0;
    }
    if (i >= 13) {
        buf_str(b, "- ");
        return -random_value(b, depth - 1, 6);
    }
    bool parens = own[i] < level;
    buf_str(b, parens ? "(" : below(2) ? " " : "");
    double x = random_value(b, depth - 1, op[i].left);
    buf_str(b, below(2) ? " " : "");
    buf_str(b, op[i].sign);
    buf_str(b, below(2) ? " " : "");
    double y = random_value(b, depth - 1, op[i].right);
    buf_str(b, parens ? ")" : "");
    return both(op[i].sign, x, y);
}

static void test_random_conditions(void **state)
{
    (void)state;
    struct step_facts s = example();
    facts = &s;
    int long_ones = 0, truths = 0;
    for (int i = 0; i < 50000; i++) {
        struct buf b = {0};
        struct expr x;
        struct err e = {0};
        double v = random_value(&b, 1 + below(4), 0);
        if (b.n > EXPR_TEXT) {
            long_ones++;
        } else {
            if (!expr_parse(&x, b.p, &e))
                fail_msg("%s", e.msg);
            bool expected = !isnan(v) && v != 0;
            if (expr_holds(&x, &s, NULL, NULL) != expected)
                fail_msg("%s: %g", b.p, v);
            truths += expected;
        }
        buf_free(&b);
    }
    assert_true(long_ones < 5000 && truths > 5000 && truths < 45000);
}

static void test_random_bytes_are_refused_or_run(void **state)
{
    (void)state;
    static const char *const piece[] = {"accept", "node.q", "token", "step", "9.214", "\"", "(",
                                        ")", "!", "=",
                                        "==", "&&", "||", "-", "%", "\\", " ", ".", "1", "not",
                                        "\xff", "<"};
    struct step_facts s = example();
    int taken = 0;
    for (int i = 0; i < 200000; i++) {
        char text[EXPR_TEXT + 20] = "";
        struct expr x;
        struct err e = {0};
        for (int k = 1 + below(12); k > 0; k--)
            strcat(text, piece[below(sizeof piece / sizeof *piece)]);
        if (expr_parse(&x, text, &e)) {
            expr_holds(&x, &s, NULL, NULL);
            taken++;
        } else {
            assert_true(e.msg[0] && !strchr(e.msg, '\n'));
        }
    }
    assert_true(taken > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_printed),
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_what_is_wrong_is_named_with_its_column),
        cmocka_unit_test(test_random_conditions),
        cmocka_unit_test(test_random_bytes_are_refused_or_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
