/* expr.c - see expr.h. A recursive-descent parser emits operations in postfix order; a stack
 * machine runs them. */
#include "engine/thread/expr.h"

#include <math.h>

#include "kernels/ascii.h"

/* ---- names ----------------------------------------------------------------------------------- */

enum { NODE_DEPTH = N_FACTS, NODE_RANK, NODE_Q, NODE_P, NODE_U, NODE_SCORE, NODE_ID, NODE_TOKEN,
       NODE_ACCEPTED, NODE_REJECTED, NODE_CUT, TOKEN_TEXT, TOKEN_ID, NAME_STEP, NAME_COUNT };

static const struct {
    const char *name, *meaning;
    int id;
} names[] = {
    {"turn", "number of the turn", FACT_TURN},
    {"step", "address of the step, as in step==9.214; with a whole number: the step in its turn",
     NAME_STEP},
    {"pos", "tokens in the context before the step", FACT_POS},
    {"rows", "rows of the target's pass", FACT_ROWS},
    {"prefill", "1 while the prompt is computed", FACT_PREFILL},
    {"drafted", "nodes of the draft tree, without its root", FACT_DRAFTED},
    {"accepted", "drafted nodes that the target accepted; unknown if none was drafted",
     FACT_ACCEPTED},
    {"accept", "the same", FACT_ACCEPTED},
    {"new", "tokens that the step added", FACT_NEW},
    {"bonus", "id of the token sampled at the end of the step", FACT_BONUS},
    {"margin", "best logit minus the second best where that token was sampled", FACT_MARGIN},
    {"token", "text of an emitted token", TOKEN_TEXT},
    {"token.id", "id of an emitted token", TOKEN_ID},
    {"length", "tokens in the context after the step", FACT_LENGTH},
    {"fault", "1 when a rule was violated", FACT_FAULT},
    {"page_wrap", "1 when the step wrote the first slot of a page", FACT_PAGE_WRAP},
    {"window_release", "pages that left the sliding window", FACT_WINDOW_RELEASE},
    {"pool.full.free", "free pages of the full-attention pool", FACT_FULL_FREE},
    {"pool.full.used", "pages in use there", FACT_FULL_USED},
    {"pool.swa.free", "free pages of the sliding-window pool", FACT_SWA_FREE},
    {"pool.swa.used", "pages in use there", FACT_SWA_USED},
    {"pool.draft.free", "free pages of the draft pool", FACT_DRAFT_FREE},
    {"pool.draft.used", "pages in use there", FACT_DRAFT_USED},
    {"us.draft", "microseconds of drafting", FACT_US_DRAFT},
    {"us.verify", "microseconds of the target's pass", FACT_US_VERIFY},
    {"us.commit", "microseconds of commit and follow", FACT_US_COMMIT},
    {"us.check", "microseconds of the checker", FACT_US_CHECK},
    {"node.depth", "depth of a drafted node, 1 under the root", NODE_DEPTH},
    {"node.rank", "rank among its siblings by the draft's probability, from 1", NODE_RANK},
    {"node.q", "the draft's probability of the node after its parent", NODE_Q},
    {"node.p", "the target's, at temperature 1", NODE_P},
    {"node.u", "the uniform number drawn at the node", NODE_U},
    {"node.score", "sum of the draft's log probabilities on the path to the node", NODE_SCORE},
    {"node.id", "token id of the node", NODE_ID},
    {"node.token", "text of the node's token", NODE_TOKEN},
    {"node.accepted", "1 when the target accepted the node", NODE_ACCEPTED},
    {"node.rejected", "1 when the target chose otherwise at its parent", NODE_REJECTED},
    {"node.cut", "1 when an ancestor was rejected, or the step's length ended before the node",
     NODE_CUT},
};

enum { N_NAMES = LEN(names) };

const char *expr_name(int i, const char **meaning)
{
    if (i < 0 || i >= N_NAMES)
        return NULL;
    if (meaning)
        *meaning = names[i].meaning;
    return names[i].name;
}

/* ---- parsing --------------------------------------------------------------------------------- */

enum op { OP_NUMBER, OP_STRING, OP_NAME, OP_OR, OP_AND, OP_NOT, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT,
          OP_GE, OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MOD, OP_NEG };

struct parser {
    struct expr *x;
    const char *at;
    int depth, strings;
    struct err *e;
};

static bool parse_or(struct parser *p);

static void skip_blanks(struct parser *p)
{
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
}

static bool wrong(struct parser *p, const char *expected)
{
    int column = (int)(p->at - p->x->text) + 1, n = 0;
    while (ascii_alnum(p->at[n]) || p->at[n] == '_' || p->at[n] == '.') /* a name or a number */
        n++;
    n = n ? n : (int)strcspn(p->at, " \t");
    if (!*p->at)
        return err_set(p->e, ERR_USAGE, "condition \"%s\": ends at column %d; expected %s",
                       p->x->text, column, expected);
    return err_set(p->e, ERR_USAGE, "condition \"%s\": \"%.*s\" at column %d; expected %s",
                   p->x->text, n < 20 ? n : 20, p->at, column, expected);
}

static struct expr_op *emit(struct parser *p, enum op op)
{
    if (p->x->n_op == EXPR_OPS)
        return FAILED(NULL, p->e, ERR_USAGE, "condition \"%s\": more than %d operations",
                      p->x->text, EXPR_OPS);
    struct expr_op *o = &p->x->op[p->x->n_op++];
    *o = (struct expr_op){.op = (uint8_t)op};
    return o;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Takes the operator if it comes next. */
static bool take_operator(struct parser *p, const char *s)
{
    size_t n = strlen(s);
    skip_blanks(p);
    if (strncmp(p->at, s, n) != 0 ||
        (is_letter(*s) && (is_letter(p->at[n]) || is_digit(p->at[n]) || p->at[n] == '.')))
        return false;
    p->at += n;
    return true;
}

/* A literal TURN.STEP is both a fraction and an address; the comparison decides. Up to 15 digits a
 * quotient of two whole numbers is the nearest double, in any locale. */
static bool parse_number(struct parser *p)
{
    const char *s = p->at;
    int whole = 0, digits = 0;
    double all = 0, scale = 1;
    long part[2] = {0};
    for (; is_digit(*s) && whole < 16; s++, whole++) {
        all = all * 10 + (*s - '0');
        part[0] = part[0] * 10 + (*s - '0');
    }
    if (*s == '.')
        for (s++; is_digit(*s) && whole + digits < 16; s++, digits++, scale *= 10) {
            all = all * 10 + (*s - '0');
            part[1] = part[1] * 10 + (*s - '0');
        }
    if (whole + digits == 0 || whole + digits > 15 || is_digit(*s) || is_letter(*s) || *s == '.')
        return wrong(p, "a number such as 8 or 0.01, of at most 15 digits");
    struct expr_op *o = emit(p, OP_NUMBER);
    if (!o)
        return false;
    o->number = all / scale;
    if (whole && digits && whole <= 9 && digits <= 9)
        o->turn = (int)part[0], o->step = (int)part[1];
    p->at = s;
    return true;
}

static bool parse_string(struct parser *p)
{
    const char *s = p->at + 1;
    int first = p->strings;
    for (; *s && *s != '"'; s++) {
        char c = *s;
        if (c == '\\') {
            static const char from[] = "nt\\\"", to[] = "\n\t\\\"";
            const char *f = *++s ? strchr(from, *s) : NULL;
            if (!f) {
                p->at = s - 1;
                return wrong(p, "\\n, \\t, \\\\ or \\\" after a backslash");
            }
            c = to[f - from];
        }
        p->x->strings[p->strings++] = c; /* no longer than the text, so there is room */
    }
    if (!*s) {
        p->at = s;
        return wrong(p, "a closing quote");
    }
    struct expr_op *o = emit(p, OP_STRING);
    if (!o)
        return false;
    o->at = (uint16_t)first;
    o->n = (uint16_t)(p->strings - first);
    p->at = s + 1;
    return true;
}

static bool parse_name(struct parser *p)
{
    size_t n = 0;
    while (is_letter(p->at[n]) || is_digit(p->at[n]) || p->at[n] == '.')
        n++;
    for (int i = 0; i < N_NAMES; i++) {
        if (strlen(names[i].name) != n || strncmp(names[i].name, p->at, n) != 0)
            continue;
        struct expr_op *o = emit(p, OP_NAME);
        if (!o)
            return false;
        o->name = (uint8_t)names[i].id;
        p->x->nodes |= o->name >= NODE_DEPTH && o->name <= NODE_CUT;
        p->x->tokens |= o->name == TOKEN_TEXT || o->name == TOKEN_ID;
        p->at += n;
        return true;
    }
    return wrong(p, "a name such as accepted, margin, pool.swa.free or node.q (/help conditions "
                    "lists all)");
}

static bool parse_primary(struct parser *p)
{
    skip_blanks(p);
    if (take_operator(p, "("))
        return parse_or(p) &&
               (take_operator(p, ")") || wrong(p, "a closing parenthesis or an operator"));
    if (is_digit(*p->at) || *p->at == '.')
        return parse_number(p);
    if (*p->at == '"')
        return parse_string(p);
    if (is_letter(*p->at))
        return parse_name(p);
    return wrong(p, "a name, a number, a \"text\" or a parenthesis");
}

/* Limits nesting: every recursion passes here. */
static bool enter(struct parser *p)
{
    return ++p->depth <= EXPR_DEPTH ||
           err_set(p->e, ERR_USAGE, "condition \"%s\": nested more than %d deep", p->x->text,
                   EXPR_DEPTH);
}

static bool parse_unary(struct parser *p)
{
    if (!enter(p))
        return false;
    bool ok = take_operator(p, "-") ? parse_unary(p) && emit(p, OP_NEG) : parse_primary(p);
    p->depth--;
    return ok;
}

/* Binary operators by level: those of one bind less than those of the levels before. */
enum { PRODUCT, SUM, COMPARISON, AND, OR };
static const struct {
    const char *sign;
    enum op op;
    int level;
} binary[] = {
    {"*", OP_MUL, PRODUCT},     {"/", OP_DIV, PRODUCT},     {"%", OP_MOD, PRODUCT},
    {"+", OP_ADD, SUM},         {"-", OP_SUB, SUM},         {"==", OP_EQ, COMPARISON},
    {"!=", OP_NE, COMPARISON},  {"<=", OP_LE, COMPARISON},  {">=", OP_GE, COMPARISON},
    {"<", OP_LT, COMPARISON},   {">", OP_GT, COMPARISON},   {"&&", OP_AND, AND},
    {"and", OP_AND, AND},       {"||", OP_OR, OR},          {"or", OP_OR, OR},
};
enum { N_BINARY = LEN(binary) };

static bool parse_not(struct parser *p);
static bool parse_level(struct parser *p, int level);

static bool parse_below(struct parser *p, int level)
{
    return level == PRODUCT ? parse_unary(p) : level == AND ? parse_not(p)
                                                            : parse_level(p, level - 1);
}

/* Operands with the operators of the level between them, of comparisons one. */
static bool parse_level(struct parser *p, int level)
{
    if (!parse_below(p, level))
        return false;
    for (;;) {
        int i = 0;
        while (i < N_BINARY && (binary[i].level != level || !take_operator(p, binary[i].sign)))
            i++;
        if (i == N_BINARY)
            return level != COMPARISON || *p->at != '=' || wrong(p, "==");
        if (!parse_below(p, level) || !emit(p, binary[i].op))
            return false;
        if (level == COMPARISON)
            return true;
    }
}

static bool parse_not(struct parser *p)
{
    bool negated = false;
    skip_blanks(p);
    if (strncmp(p->at, "!=", 2) != 0)
        negated = take_operator(p, "!") || take_operator(p, "not");
    if (!negated)
        return parse_level(p, COMPARISON);
    bool ok = enter(p) && parse_not(p) && emit(p, OP_NOT);
    p->depth--;
    return ok;
}

static bool parse_or(struct parser *p)
{
    bool ok = enter(p) && parse_level(p, OR);
    p->depth--;
    return ok;
}

void expr_record_facts(const struct step_rec *rec, int n_new, int cells, int page_size,
                       double fact[N_FACTS])
{
    fact[FACT_POS] = rec->pos0;
    fact[FACT_ROWS] = rec->rows;
    fact[FACT_DRAFTED] = rec->drafted;
    fact[FACT_ACCEPTED] = rec->drafted ? rec->accepted : (double)NAN;
    fact[FACT_NEW] = n_new;
    fact[FACT_BONUS] = rec->bonus < 0 ? (double)NAN : rec->bonus;
    fact[FACT_MARGIN] = (double)rec->margin;
    fact[FACT_PAGE_WRAP] = div_up(rec->pos0, page_size) * page_size < rec->pos0 + cells;
    fact[FACT_PREFILL] = rec->kind == STEP_PREFILL;
    fact[FACT_US_DRAFT] = rec->us_draft;
    fact[FACT_US_VERIFY] = rec->us_verify;
    fact[FACT_US_COMMIT] = rec->us_commit;
    fact[FACT_US_CHECK] = rec->us_check;
}

bool expr_parse(struct expr *expr, const char *text, struct err *e)
{
    size_t n = strlen(text);
    *expr = (struct expr){0};
    if (n > EXPR_TEXT)
        return err_set(e, ERR_USAGE, "a condition of %zu bytes; at most %d are taken", n,
                       EXPR_TEXT);
    memcpy(expr->text, text, n);
    struct parser p = {.x = expr, .at = expr->text, .e = e};
    if (!parse_or(&p))
        return false;
    skip_blanks(&p);
    return !*p.at || wrong(&p, "an operator (== != < <= > >= && || + - * / %) or the end");
}

bool expr_parse_condition(struct expr *expr, const char *text, struct err *e)
{
    return expr_parse(expr, text, e) &&
           (ANY(i, expr->n_op, expr->op[i].op == OP_NAME) ||
            err_set(e, ERR_USAGE, "condition \"%s\": the same for each step; expected a fact of a "
                    "step, as in turn==5, step==5.2 or accepted<5", expr->text));
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A number, a text (s not NULL), or an address (step > 0; a literal TURN.STEP is also a number). An
 * unknown value is the number NAN. */
struct value {
    double number;
    const char *s;
    size_t n;
    int turn, step;
    bool address; /* the name `step` itself */
};

static struct value number(double v)
{
    return (struct value){.number = v};
}

static struct value text_of(const struct step_facts *s, int32_t id)
{
    struct value v = {.number = NAN};
    if (s->text)
        v.s = s->text(s->text_arg, id, &v.n);
    return v;
}

static struct value node_value(const struct step_facts *s, int name, int node)
{
    const struct tree *t = s->tree;
    switch (name) {
    case NODE_DEPTH: return number(t->depth[node]);
    case NODE_RANK: return number(tree_rank(t, node, &(int){0}));
    case NODE_Q: return number(t->q[node]);
    case NODE_P: return number(t->p[node]);
    case NODE_U: return number(t->u[node]);
    case NODE_SCORE: return number(t->score[node]);
    case NODE_ID: return number(t->token[node]);
    case NODE_TOKEN: return text_of(s, t->token[node]);
    case NODE_ACCEPTED: return number(t->fate[node] == FATE_ACCEPTED);
    case NODE_REJECTED: return number(t->fate[node] == FATE_REJECTED);
    case NODE_CUT: return number(t->fate[node] == FATE_CUT);
    }
    CHECK(false);
    return number(NAN);
}

static struct value name_value(const struct step_facts *s, int name, int node, int token)
{
    if (name < N_FACTS)
        return number(s->fact[name]);
    if (name == NAME_STEP)
        return (struct value){.number = s->step, .turn = s->turn, .step = s->step, .address = true};
    if (name == TOKEN_ID)
        return number(s->token[token]);
    if (name == TOKEN_TEXT)
        return text_of(s, s->token[token]);
    return node_value(s, name, node);
}

/* -1, 0, 1; 2: the two cannot be compared, because one is unknown or they are of two kinds. */
static int order(const struct value *a, const struct value *b)
{
    if (a->s || b->s) {
        if (!a->s || !b->s)
            return 2;
        size_t n = a->n < b->n ? a->n : b->n;
        int d = n ? memcmp(a->s, b->s, n) : 0;
        return d ? (d > 0) - (d < 0) : (a->n > b->n) - (a->n < b->n);
    }
    if ((a->address || b->address) && a->step > 0 && b->step > 0) {
        int d = a->turn != b->turn ? a->turn - b->turn : a->step - b->step;
        return (d > 0) - (d < 0);
    }
    if (isnan(a->number) || isnan(b->number))
        return 2;
    return (a->number > b->number) - (a->number < b->number);
}

static struct value compare(enum op op, const struct value *a, const struct value *b)
{
    int d = order(a, b);
    if (d == 2)
        return number(NAN);
    bool holds = op == OP_EQ   ? d == 0
                 : op == OP_NE ? d != 0
                 : op == OP_LT ? d < 0
                 : op == OP_LE ? d <= 0
                 : op == OP_GT ? d > 0
                               : d >= 0;
    return number(holds);
}

static double arithmetic(enum op op, double a, double b)
{
    double v = op == OP_ADD   ? a + b
               : op == OP_SUB ? a - b
               : op == OP_MUL ? a * b
               : b == 0       ? (double)NAN
               : op == OP_DIV ? a / b
                              : fmod(a, b);
    return isfinite(v) ? v : (double)NAN;
}

/* 1: true, 0: false, -1: unknown. A text is true unless it is empty. */
static int truth(const struct value *v)
{
    if (v->s)
        return v->n > 0;
    return isnan(v->number) ? -1 : v->number != 0;
}

/* False decides an `and`, true an `or`, whatever the other side is. */
static struct value combine(enum op op, int a, int b)
{
    int decides = op == OP_OR;
    if (a == decides || b == decides)
        return number(decides);
    return number(a < 0 || b < 0 ? (double)NAN : !decides);
}

static struct value apply_op(enum op op, const struct value *a, const struct value *b)
{
    if (op == OP_AND || op == OP_OR)
        return combine(op, truth(a), truth(b));
    if (op >= OP_EQ && op <= OP_GE)
        return compare(op, a, b);
    return number(a->s || b->s ? (double)NAN : arithmetic(op, a->number, b->number));
}

static struct value value_for(const struct expr *expr, const struct step_facts *s, int node,
                              int token)
{
    struct value stack[EXPR_OPS] = {{0}};
    int used = 0;
    FOR_EACH(const struct expr_op, o, expr->op, expr->n_op) {
        switch (o->op) {
        case OP_NUMBER:
            stack[used++] = (struct value){.number = o->number, .turn = o->turn, .step = o->step};
            break;
        case OP_STRING:
            stack[used++] = (struct value){.number = NAN, .s = expr->strings + o->at, .n = o->n};
            break;
        case OP_NAME:
            stack[used++] = name_value(s, o->name, node, token);
            break;
        case OP_NOT: {
            int t = truth(&stack[used - 1]);
            stack[used - 1] = number(t < 0 ? (double)NAN : !t);
            break;
        }
        case OP_NEG:
            stack[used - 1] = number(stack[used - 1].s ? (double)NAN : -stack[used - 1].number);
            break;
        default:
            used--;
            stack[used - 1] = apply_op((enum op)o->op, &stack[used - 1], &stack[used]);
        }
    }
    CHECK(used == 1);
    return stack[0];
}

static bool holds_for(const struct expr *expr, const struct step_facts *s, int node, int token)
{
    struct value v = value_for(expr, s, node, token);
    return truth(&v) == 1;
}

double expr_value(const struct expr *expr, const struct step_facts *s)
{
    CHECK(!expr->nodes && !expr->tokens);
    struct value v = value_for(expr, s, 0, 0);
    return v.s ? v.n > 0 : v.number;
}

bool expr_holds(const struct expr *expr, const struct step_facts *s, int *node, int *token)
{
    int nodes = expr->nodes ? (s->tree ? s->tree->n : 0) : 2, tokens = expr->tokens ? s->n_token
                : 1;
    for (int i = 1; i < nodes; i++) /* node 0 is the root, which was not drafted */
        for (int k = 0; k < tokens; k++)
            if (holds_for(expr, s, i, k)) {
                if (node)
                    *node = expr->nodes ? i : -1;
                if (token)
                    *token = expr->tokens ? k : -1;
                return true;
            }
    return false;
}

static void print_value(const struct value *v, char *out, size_t n)
{
    if (v->s)
        snprintf(out, n, "\"%.*s\"", (int)v->n, v->s);
    else if (v->address)
        snprintf(out, n, "%d.%d", v->turn, v->step);
    else if (isnan(v->number))
        snprintf(out, n, "unknown");
    else
        snprintf(out, n, "%.6g", v->number);
}

void expr_print(const struct expr *expr, const struct step_facts *s, char *out, size_t n)
{
    static const char more[] = " ..";
    int nodes = expr->nodes ? (s->tree ? s->tree->n : 0) : 2, tokens = expr->tokens ? s->n_token
                : 1;
    size_t used = 0;
    snprintf(out, n, "none");
    for (int i = 1; i < nodes; i++)
        for (int k = 0; k < tokens; k++) {
            char one[64];
            struct value v = value_for(expr, s, i, k);
            print_value(&v, one, sizeof one);
            size_t more_n = strlen(one) + (used > 0);
            if (used + more_n + sizeof more > n) {
                snprintf(out + used, n - used, "%s", more);
                return;
            }
            used += (size_t)snprintf(out + used, n - used, "%s%s", used ? " " : "", one);
        }
}
