/* fault.c - see fault.h. */
#include "engine/fault.h"

#include "kernels/json.h"

const char *plan_mode_name(enum plan_mode m)
{
    static const char *const name[N_MODES] = {"extend", "decode", "verify", "draft",
                                              "draft-extend", "frozen", "block"};
    return m < N_MODES ? name[m] : "?";
}

static const char *const rules[N_RULES] = {"", "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9",
                                           "I10", "I11", "I12", "I13", "I14", "I15", "I16", "I17",
                                           "I18", "I19", "I20"};

const char *fault_rule(int rule)
{
    CHECK(rule >= 0 && rule < N_RULES);
    return rules[rule];
}

int fault_rule_of(const char *name)
{
    int i = N_RULES - 1;
    while (i > 0 && strcmp(rules[i], name) != 0)
        i--;
    return i;
}

struct violation fault_at(int rule)
{
    return (struct violation){.rule = rule, .mode = -1, .pool = -1, .sequence = -1, .row = -1,
                              .request = -1, .column = -1, .cell = -1, .page = -1};
}

static void add_part(struct buf *out, const char *name, int v)
{
    if (v >= 0)
        buf_printf(out, " %s %d", name, v);
}

/* "I4 verify swa table row 0: ". A cell or a page stands in the sentence, unless nothing else says
 * where it is. */
static void print_head(const struct violation *at, struct buf *out)
{
    buf_str(out, fault_rule(at->rule));
    size_t n = out->n;
    if (at->mode >= 0)
        buf_printf(out, " %s", plan_mode_name((enum plan_mode)at->mode));
    if (at->pool >= 0)
        buf_printf(out, " %s", pool_name((enum pool_id)at->pool));
    if (at->table)
        buf_str(out, at->prefix ? " prefix table" : " table");
    add_part(out, "sequence", at->sequence);
    if (at->row >= 0)
        add_part(out, "row", at->row);
    else
        add_part(out, "request", at->request);
    add_part(out, "column", at->column);
    if (at->row < 0 && at->column < 0)
        add_part(out, "cell", at->cell);
    buf_str(out, out->n > n ? ": " : " ");
}

bool fault_set(struct err *e, struct violation at, const char *sentence, ...)
{
    if (!e)
        return false;
    char text[sizeof e->msg];
    FREED(buf_free) struct buf head = {0};
    PRINT_ARGS(text, sentence);
    print_head(&at, &head);
    err_set(e, ERR_INVARIANT, "%s%.*s", head.p, (int)(sizeof e->msg - 1 - head.n), text);
    e->at = at;
    return false;
}

enum { FILLED = 17 }; /* the rule about plans that the device filled in */

bool fault_filled(struct err *e)
{
    e->at.filled = true;
    return err_prefix(e, "%s what the device filled in", fault_rule(FILLED));
}

static int outer_rule(const struct violation *at)
{
    return at->filled ? FILLED : at->rule;
}

bool fault_is_of(const struct violation *at, int rule)
{
    return outer_rule(at) == rule;
}

void fault_place_print(const struct violation *at, struct buf *out)
{
    const struct {
        const char *name;
        int v;
    } part[] = {{"row", at->row}, {"column", at->column}, {"page", at->page},
                {"position", at->cell}};
    buf_str(out, fault_rule(outer_rule(at)));
    if (at->mode >= 0)
        buf_printf(out, " %s", plan_mode_name((enum plan_mode)at->mode));
    if (at->pool >= 0)
        buf_printf(out, "%s%s", at->mode >= 0 ? ", " : " ", pool_name((enum pool_id)at->pool));
    for (size_t i = 0; i < LEN(part); i++)
        if (part[i].v >= 0)
            buf_printf(out, ", %s %d", part[i].name, part[i].v);
}

void fault_json(const struct violation *at, struct buf *out)
{
    const struct {
        const char *name;
        int v;
    } part[] = {{"row", at->row}, {"request", at->request}, {"column", at->column},
                {"position", at->cell}, {"page", at->page}};
    jput_kstr(out, "rule", fault_rule(outer_rule(at)));
    if (at->mode >= 0)
        jput_kstr(out, "plan", plan_mode_name((enum plan_mode)at->mode));
    if (at->pool >= 0)
        jput_kstr(out, "pool", pool_name((enum pool_id)at->pool));
    for (size_t i = 0; i < LEN(part); i++)
        if (part[i].v >= 0)
            jput_kint(out, part[i].name, part[i].v);
    if (at->compared)
        jput_fields(out, "%ld{found}%ld{expected}", at->found, at->expected);
}

int fault_place_column(const struct violation *at, int page_size)
{
    if (at->row >= 0 && at->cell < 0) /* its column is one of the row's own cells, not a page */
        return -1;
    return at->row < 0 && at->column >= 0 ? at->column
           : at->cell >= 0                ? at->cell / max_int(page_size, 1)
                                          : -1;
}
