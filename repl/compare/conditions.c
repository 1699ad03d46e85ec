/* conditions.c - see conditions.h. */
#include "repl/compare/conditions.h"

#include "kernels/lines.h"
#include "repl/compare/facts.h"

/* What another value of a fact may change: of an option as its row says. By the rules of kernels.h
 * a row does not depend on its neighbours, so neither page size nor chunks nor trees may change a
 * number. */
static unsigned nature_of(const char *name)
{
    static const struct nature {
        const char *name;
        unsigned may;
    } natures[] = {
        {"draft_sha", MAY_STEP},       {"flags", MAY_BUILD},
        {"device", MAY_BUILD},         {"model_sha", MAY_LOGITS},
        {"tokenizer_sha", MAY_PROMPT},
    };
    const struct option *o = opts_logged_as(name);
    const struct nature *nature = ROW_NAMED(natures, name);
    int setting = settings_index(name);
    if (strncmp(name, "bug.", 4) == 0)
        return MAY_FAULT;
    return nature ? nature->may : o ? o->may : setting >= 0 ? settings_at(setting)->may : 0;
}

/* Threads and instruction sets of a CPU change no bit (kernels.h). */
static bool same_device(const char *a, const char *b)
{
    return strcmp(a, b) == 0 || (strncmp(a, "cpu", 3) == 0 && strncmp(b, "cpu", 3) == 0);
}

static struct condition *condition_of(const struct conditions *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->at[i].name, name) == 0)
            return &c->at[i];
    return NULL;
}

void conditions_add(struct conditions *c, const char *name, const char *a, const char *b,
                    unsigned may)
{
    if (condition_of(c, name))
        return;
    struct condition *x = APPEND(c->at, c->n);
    *x = (struct condition){.a = xstrdup(a), .b = xstrdup(b), .may = may};
    snprintf(x->name, sizeof x->name, "%s", name);
    c->may |= x->may;
}

/* The draft's weights are loaded like the target's unless an option says otherwise. */
static char *value_of(const char *lines, const char *name)
{
    if (strcmp(name, "draft_sha") == 0)
        return facts_draft(lines);
    char *v = facts_value(lines, name);
    if (!v || *v || strcmp(name, "draft_weights") != 0)
        return v;
    free(v);
    return facts_value(lines, "weights");
}

/* A line that only one run has is not compared, with these exceptions: a fault that is not named is
 * off, an option without a value was not given, and a draft without weights has no hash. */
static void compare_lines(struct conditions *c, const char *a, const char *b, bool swapped)
{
    FOR_LINES(l, a) {
        FREED(free_at) char *name = line_copy(line_name(l));
        char *mine = value_of(a, name), *other = value_of(b, name);
        bool bug = strncmp(name, "bug.", 4) == 0, drafter = strcmp(name, "draft_sha") == 0;
        if (!other && bug)
            other = xstrdup("off");
        bool differs = mine && other && (bug || drafter || (*mine && *other)) &&
                       !(strcmp(name, "device") ? strcmp(mine, other) == 0
                                                : same_device(mine, other));
        if (differs)
            conditions_add(c, name, swapped ? other : mine, swapped ? mine : other,
                           nature_of(name));
        FREE(mine, other);
    }
}

/* A reply to a client was computed together with others, perhaps from KV that was resident: if one
 * of the runs or both were served, pages and chunks differ from those of a conversation. */
static void compare_served(struct conditions *c, const char *about_a, const char *about_b)
{
    const unsigned may = MAY_NUMBER | MAY_STEP;
    FREED(free_at) char *a = about_a ? facts_value(about_a, "served") : NULL,
                       *b = about_b ? facts_value(about_b, "served") : NULL;
    if (!a != !b)
        conditions_add(c, "served", a ? a : "no", b ? b : "no", may);
    else if (a)
        c->may |= may;
}

/* A pool of another number of pages of the same size was made larger or smaller, not only divided
 * otherwise: a reply may end where it is full, and less may be kept for the next one. */
static void compare_pools(struct conditions *c)
{
    static const char *const pools[] = {"full_pages", "swa_pages"};
    if (condition_of(c, "page_size"))
        return;
    for (size_t i = 0; i < LEN(pools); i++) {
        struct condition *pool = condition_of(c, pools[i]);
        if (pool)
            c->may |= pool->may |= MAY_STEP | MAY_END;
    }
}

void conditions_read(struct conditions *c, const char *about_a, const char *settings_a,
                     const char *about_b, const char *settings_b)
{
    compare_lines(c, about_a, about_b, false);
    compare_served(c, about_a, about_b);
    compare_lines(c, settings_a, settings_b, false);
    compare_lines(c, settings_b, settings_a, true); /* faults that only the second names */
    compare_pools(c);
}

void conditions_short(struct conditions *c, unsigned may)
{
    for (int i = 0; i < c->n; i++)
        if (c->at[i].may & (MAY_NUMBER | MAY_STEP))
            c->may |= c->at[i].may |= may;
}

void conditions_free(struct conditions *c)
{
    for (int i = 0; i < c->n; i++)
        FREE(c->at[i].a, c->at[i].b);
    free(c->at);
    *c = (struct conditions){0};
}

void conditions_text(const struct conditions *c, unsigned may, struct buf *out)
{
    for (int i = 0; i < c->n; i++)
        if (c->at[i].may & may) {
            const char *name = c->at[i].name, *hash = strstr(name, "_sha");
            bool draft = strncmp(name, "draft_", 6) == 0 || strcmp(name, "capture") == 0;
            const char *empty = draft ? "none" : "-"; /* of no draft; or not recorded */
            const char *a = *c->at[i].a ? c->at[i].a : empty;
            const char *b = *c->at[i].b ? c->at[i].b : empty;
            buf_printf(out, hash ? "%s%.*s %.12s | %.12s" : "%s%.*s %s | %s", out->n ? ", " : "",
                       hash ? (int)(hash - name) : (int)strlen(name), name, a, b);
        }
}

void may_text(unsigned may, struct buf *out)
{
    static const char *const text[] = {"page numbers", "trees and chunks", "rounding",
                                       "the logits", "the choice of tokens", "the prompt",
                                       "the end of a reply", "anything", "rounding"};
    size_t before = out->n;
    for (int i = 0; i < 9; i++)
        if (may & 1u << i)
            buf_printf(out, "%s%s", out->n > before ? ", " : "", text[i]);
}

void conditions_list(const struct conditions *c, const char *a, const char *b,
                     const struct printer *to)
{
    PRINT_IN(to, "changed", '[');
    for (int i = 0; i < c->n; i++) {
        FREED(buf_free) struct buf may = {0};
        may_text(c->at[i].may, &may);
        PRINT_IN(to, NULL, '{');
        print_str(to, "name", c->at[i].name);
        print_str(to, a, c->at[i].a);
        print_str(to, b, c->at[i].b);
        print_str(to, "may_change", may.p);
    }
}
