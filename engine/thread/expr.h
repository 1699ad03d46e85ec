/* expr.h - conditions over one step: what breakpoints and watches test.
 *
 *   accepted==0            pool.swa.free<8 && drafted>0     token=="foo"      step==9.214
 *   margin<0.01            window_release             node.depth>=3 && node.q>0.9 && !node.accepted
 *
 * Grammar, loosest binding first: `||` (or), `&&` (and), `!` (not), one comparison == != < <= > >=,
 * + and -, * / and %, unary -, then numbers, "strings", names and parentheses. Values are numbers
 * (truth is 1 or 0), texts, and step addresses TURN.STEP. A number stands for "true" unless it is
 * 0.
 *
 * Unknown values: a fact that the step does not have (margin of a prompt chunk, accepted nodes of a
 * step that drafted none, a target's probability that was not computed, a division by zero) is
 * unknown. A comparison with an unknown value is false, and so is its negation by `!`: !x is true
 * only if x is known and false.
 *
 * Rows: a condition that names node.* holds when it holds for at least one drafted node of the
 * step's tree; one that names token or token.id, if it holds for at least one token that the step
 * emitted. All node.* names of a condition mean the same node, all token names the same token.
 *
 * Pure: no allocation, no state besides the struct; a compiled condition may be copied and used on
 * any thread. Costs of a test are bounded by EXPR_OPS * nodes * tokens.
 */
#pragma once

#include "engine/backend.h"

enum {
    EXPR_OPS = 96,    /* operations of a compiled condition at most */
    EXPR_DEPTH = 24,  /* nesting at most */
    EXPR_TEXT = CONDITION_BYTES, /* of a condition's text, and of all its strings together */
};

/* Facts of a step that are numbers; expr_name() gives their spelling. */
enum fact {
    FACT_TURN, FACT_POS, FACT_ROWS, FACT_DRAFTED, FACT_ACCEPTED, FACT_NEW, FACT_BONUS,
    FACT_MARGIN, FACT_LENGTH, FACT_FAULT, FACT_PAGE_WRAP, FACT_WINDOW_RELEASE,
    FACT_PREFILL, FACT_US_DRAFT, FACT_US_VERIFY, FACT_US_COMMIT, FACT_US_CHECK,
    FACT_FULL_FREE, FACT_FULL_USED, FACT_SWA_FREE, FACT_SWA_USED, FACT_DRAFT_FREE,
    FACT_DRAFT_USED,
    N_FACTS
};

/* One step as a condition sees it. The caller owns what the pointers point to. */
struct step_facts {
    int turn, step;
    double fact[N_FACTS];    /* NAN: unknown */
    const struct tree *tree; /* NULL or n == 1: nothing was drafted */
    const int32_t *token;    /* (n_token) emitted ids */
    int n_token;
    /* The bytes of an id, *n of them; they stay until the next call. */
    const char *(*text)(void *arg, int32_t id, size_t *n);
    void *text_arg;
};

struct expr {
    struct expr_op {
        uint8_t op;      /* private to expr.c */
        uint8_t name;    /* of a fact, node or token name */
        uint16_t at, n;  /* a string's bytes in `strings` */
        int turn, step;  /* an address literal; step 0: the literal is no address */
        double number;
    } op[EXPR_OPS];
    int n_op;
    bool nodes, tokens; /* names node.*, token* */
    char text[EXPR_TEXT + 1];
    char strings[EXPR_TEXT + 1];
};

/* The facts that a step's record tells. n_new: tokens that it emitted; cells: those that it
 * committed. */
void expr_record_facts(const struct step_rec *rec, int n_new, int cells, int page_size,
                       double fact[N_FACTS]);
/* Compiles a condition. False and *e (ERR_USAGE) names the first place that is wrong and what was
 * expected there; *expr is undefined then. */
bool expr_parse(struct expr *expr, const char *text, struct err *e);
/* As above, and refuses a condition that names no fact: all steps would have the same answer. */
bool expr_parse_condition(struct expr *expr, const char *text, struct err *e);
/* Whether the condition holds for the step. node, token: where not NULL, receive the indices of the
 * first node and emitted token for which it does; -1: the condition names none. */
bool expr_holds(const struct expr *expr, const struct step_facts *s, int *node, int *token);
/* The value of a condition that names neither node.* nor token: a number, of a text 1 or 0 (empty);
 * NAN: unknown. */
double expr_value(const struct expr *expr, const struct step_facts *s);
/* Writes the value for people: a number, a text in quotes, "unknown"; one for each drafted node or
 * emitted token if the expression names them, as many as fit, then "..". */
void expr_print(const struct expr *expr, const struct step_facts *s, char *out, size_t n);
/* The i-th name with its meaning, for help and completion; NULL after the last. */
const char *expr_name(int i, const char **meaning);
