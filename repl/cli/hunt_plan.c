/* hunt_plan.c - the cases of `aerie probe`: see hunt.h.
 *
 * A round has each kind once; with the rounds, lengths and texts change. Lengths are those at which
 * pages, windows and draft trees begin, end and are crossed. */

#include "repl/cli/hunt.h"

enum { REPLY = 24 };

/* ---- lengths --------------------------------------------------------------------------------- */

static void add_length(struct hunt *p, int n)
{
    bool no = n < 3 || (p->context && n > p->context / 2) || p->n_length == HUNT_LENGTHS;
    for (int i = 0; i < p->n_length; i++)
        no |= p->length[i] == n;
    if (!no)
        p->length[p->n_length++] = n;
}

static void add_around(struct hunt *p, int n)
{
    for (int by = -1; by <= 1; by++)
        add_length(p, n + by);
}

void hunt_lengths(struct hunt *p)
{
    int page = max_int(p->page, 2);
    if (p->window) { /* the most likely ones come first */
        add_length(p, p->window + page + 3);
        add_length(p, 1 + p->window);
    }
    add_length(p, 2 * page + 3);
    add_around(p, page);
    add_around(p, 2 * page);
    if (p->window) {
        add_around(p, p->window);
        add_around(p, p->window + page);
        add_around(p, 2 * p->window);
    }
    add_around(p, p->depth ? 1 + p->depth : 5);
    for (int by = 2; by < page && by < 16; by++) /* every residue of the page */
        add_length(p, 3 * page + by);
    add_around(p, 512); /* limits of graphs */
    for (int n = 1024; n <= 65536; n *= 2)
        add_around(p, n);
    CHECK(p->n_length > 0);
}

/* ---- building a case ------------------------------------------------------------------------- */

struct maker {
    const struct hunt *p;
    struct hunt_case *c;
    int round, text; /* text: the first number of this case's own texts */
    int group;
};

static int length(const struct maker *m, int i)
{
    return m->p->length[(m->round + i) % m->p->n_length];
}

/* Replies end around a step of a draft, too. */
static int reply(const struct maker *m)
{
    int k = m->p->depth ? m->p->depth : 4;
    return m->round % 4 == 3 ? 1 + k + m->round % 3 : REPLY;
}

static struct hunt_ask *add_ask(struct maker *m, int text, int n, bool judged)
{
    struct hunt_case *c = m->c;
    CHECK(c->n < HUNT_ASKS);
    struct hunt_ask *a = &c->ask[c->n++];
    *a = (struct hunt_ask){.text = m->text + text, .n = n, .follows = -1, .most = reply(m),
                            .group = m->group++, .judged = judged};
    if (m->p->context && a->n + a->most + 2 > m->p->context)
        a->n = max_int(2, m->p->context - a->most - 2);
    return a;
}

/* The next asks are sent at once with the last one. */
static struct hunt_ask *beside(struct maker *m, int text, int n, bool judged)
{
    struct hunt_ask *a = add_ask(m, text, n, judged);
    a->group = a[-1].group;
    m->group--;
    return a;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* The same request between others: one with half of its prompt, a long one without. */
static void make_aba(struct maker *m)
{
    int n = length(m, 0);
    add_ask(m, 0, n, false);
    struct hunt_ask *b = add_ask(m, 0, n + 5, false);
    b->fork = max_int(1, n / 2);
    b->other = m->text + 1;
    add_ask(m, 2, 3 * n + 7, false);
    add_ask(m, 0, n, true);
}

/* The same prompt twice, then one that is a token longer: found in the cache, whole and in part. */
static void make_warm(struct maker *m)
{
    int n = length(m, 0);
    add_ask(m, 0, n, false);
    add_ask(m, 0, n, true);
    add_ask(m, 0, n + 1 + m->round % 3, true);
    add_ask(m, 0, max_int(2, n - 1), true);
}

/* Prompts that share a prefix of a length around a page. */
static void make_prefix(struct maker *m)
{
    int n = length(m, 1), page = max_int(m->p->page, 2);
    int shared = max_int(1, n - 1 - m->round % (page + 2));
    add_ask(m, 0, n, false);
    for (int i = 1; i <= 3; i++) {
        struct hunt_ask *a = add_ask(m, 0, n + 2 * i, true);
        a->fork = max_int(1, shared - (i == 3 ? page : i - 1));
        a->other = m->text + i;
    }
    /* whole pages and no token more, also where a drafter reuses one token less */
    int whole = page * (1 + m->round % 3);
    add_ask(m, 4, whole + 4, false)->most = 2;
    for (int i = 0; i < 2; i++) {
        struct hunt_ask *a = add_ask(m, 4, whole + 5, true);
        a->fork = whole + i;
        a->other = m->text + 5 + i;
    }
}

/* The next message of a conversation: the reply's own cells are found in the cache. */
static void make_turns(struct maker *m)
{
    int n = length(m, 0);
    add_ask(m, 0, n, false);
    struct hunt_ask *a = add_ask(m, 1, 5 + m->round % 4, true);
    a->follows = 0;
    a = add_ask(m, 2, 3, true);
    a->follows = 1;
}

/* Resent until the cache no longer holds it; then the same prefix once more. */
static void make_pressure(struct maker *m)
{
    int most = m->p->context ? m->p->context - REPLY - 2 : 4096;
    int pool = m->p->pool ? m->p->pool : 8 * most, n = length(m, 0);
    int fill = most < 2048 ? most : 2048, count = pool / fill + 2;
    add_ask(m, 0, n, false);
    add_ask(m, 0, n, true);
    for (int i = 0; i < count && i < 28; i++)
        add_ask(m, 2 + i, fill, false)->most = 2;
    add_ask(m, 0, n, true);
    add_ask(m, 0, n + 3, true);
}

static void make_neighbours(struct maker *m)
{
    int many = max_int(2, min_int(m->p->lanes ? m->p->lanes : 8, 8));
    add_ask(m, 0, length(m, 0), true);
    for (int i = 1; i < many; i++)
        beside(m, i, length(m, 3 * i), true);
}

/* The same prompts at once in the opposite order, of which some are in the cache. */
static void make_permuted(struct maker *m)
{
    int many = max_int(2, min_int(m->p->lanes ? m->p->lanes : 4, 4));
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < many; i++) {
            int k = pass ? many - 1 - i : i;
            if (i == 0)
                add_ask(m, k, length(m, k), pass == 1);
            else
                beside(m, k, length(m, k), pass == 1);
        }
}

/* A prompt that begins while another with the same prefix is being computed. */
static void make_shared(struct maker *m)
{
    int n = 2 * length(m, 0) + 9;
    add_ask(m, 0, n, true);
    for (int i = 1; i <= 3; i++) {
        struct hunt_ask *a = beside(m, 0, n + i, true);
        a->fork = max_int(1, n - 2 * i - m->round % 3);
        a->other = m->text + i;
        a->after_ms = i * (2 + m->round % 5 * 4);
    }
}

/* A client that leaves in the middle of its prompt or its reply; then the same prompt, and others
 * in the place of what it held. */
static void make_cancel(struct maker *m)
{
    int n = 4 * length(m, 0) + 5;
    struct hunt_ask *a = add_ask(m, 0, n, false);
    a->cancel_ms = 4 + 9 * (m->round % 5);
    a->most = 4 * REPLY;
    add_ask(m, 0, n, true);
    a = add_ask(m, 1, length(m, 1), false);
    a->cancel_ms = 30 + 15 * (m->round % 3);
    a->most = 4 * REPLY;
    beside(m, 2, length(m, 2), true);
    add_ask(m, 1, length(m, 1), true);
}

/* A reply that crosses the window, alone in the cache and beside others. */
static void make_long(struct maker *m)
{
    int w = m->p->window ? m->p->window : 128, n = max_int(8, w / 2 + m->round % 7);
    int most = w + 2 * max_int(m->p->page, 2) + 5;
    most = m->p->context ? min_int(most, m->p->context / 2) : most;
    add_ask(m, 1, length(m, 1), false);
    add_ask(m, 0, n, true)->most = most;
    beside(m, 2, length(m, 2), true)->most = most;
}

static const struct {
    const char *name;
    void (*make)(struct maker *m);
} kinds[] = {
    {"A-B-A", make_aba},           {"cold and warm", make_warm},
    {"shared prefix", make_prefix}, {"next turn", make_turns},
    {"neighbours", make_neighbours}, {"begun together", make_shared},
    {"long reply", make_long},     {"cancelled", make_cancel},
    {"permuted", make_permuted},   {"pressure", make_pressure},
};

bool hunt_beside(const struct hunt_case *c, int i)
{
    int group = c->ask[i].group;
    return (i > 0 && c->ask[i - 1].group == group) ||
           (i + 1 < c->n && c->ask[i + 1].group == group);
}

int hunt_kinds(void)
{
    return LEN(kinds);
}

void hunt_plan(const struct hunt *p, int number, struct hunt_case *c)
{
    int n = hunt_kinds(), kind = number % n;
    struct maker m = {.p = p, .c = c, .round = number / n, .text = number * HUNT_ASKS};
    *c = (struct hunt_case){.kind = kinds[kind].name};
    kinds[kind].make(&m);
}
