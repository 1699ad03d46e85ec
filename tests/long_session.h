/* long_session.h - a session of any number of steps, written without a model: real pools make its
 * page events, everything else is made up. For tests and measurements of what reads long sessions.
 */
#pragma once

#include "engine/cache/kvcache.h"
#include "history/history.h"

#include <stdlib.h>
#include <string.h>

enum { LONG_PROMPT = 120, LONG_POINTS = 8 };

struct long_session {
    struct kv kv;
    struct seq live, point[LONG_POINTS];
    struct ids tok;
    int turns, steps, nodes; /* steps of a turn; nodes of a tree, the root included */
    int n_point, turn;
    void (*post)(void *arg, struct event *ev); /* takes the event's parts */
    void *arg;
    uint64_t dice;
};

static inline int long_roll(struct long_session *s, int n)
{
    s->dice = mix64(s->dice);
    return (int)(s->dice % (uint64_t)n);
}

static inline struct event long_event(enum event_kind kind, int turn, int step)
{
    struct event ev = {.kind = kind, .turn = turn, .step = step, .ns = clock_ns()};
    memcpy(ev.session, "01ARZ3NDEKTSV4RRFFQ69G5FAV", SESSION_ID);
    return ev;
}

static inline const struct seq *const *long_seqs(struct long_session *s, int *n)
{
    static const struct seq *all[LONG_POINTS + 1];
    all[0] = &s->live;
    for (int i = 0; i < s->n_point; i++)
        all[i + 1] = &s->point[i];
    *n = s->n_point + 1;
    return all;
}

static inline struct tree *long_tree(struct long_session *s, int accepted)
{
    struct tree *t = xmalloc(sizeof *t);
    tree_init(t, long_roll(s, 500));
    t->fate[0] = FATE_ACCEPTED;
    while (t->n < s->nodes) { /* a chain, and branches at its root */
        int parent = t->n <= 5 ? t->n - 1 : 0, i = tree_add(t, parent, long_roll(s, 500), 0.5f, -1);
        t->fate[i] = i <= accepted ? FATE_ACCEPTED : FATE_REJECTED;
        t->p[i] = 0.25f;
    }
    return t;
}

/* Cells that the step computes, and how many of them stay. */
static inline void long_step(struct long_session *s, int step, int cells, int keep, bool prompt)
{
    struct err e;
    struct seq *q = &s->live;
    struct event ev = long_event(EV_STEP, s->turn, step);
    ev.rec = (struct step_rec){.kind = prompt ? STEP_PREFILL : STEP_SPEC, .pos0 = q->committed,
                               .rows = cells,
                               .bonus = 7, .draws = (uint64_t)step, .us_draft = 100,
                               .us_verify = 900,
                               .us_commit = 50, .us_check = 3, .margin = 0.5f,
                               .page_digest = mix64((uint64_t)step),
                               .logit_digest = mix64(s->dice)};
    CHECK(kv_reserve(&s->kv, q, q->committed + cells, &e));
    if (!prompt) {
        ev.rec.drafted = s->nodes - 1;
        ev.rec.accepted = keep - 1;
        ev.tree = long_tree(s, keep - 1);
    }
    int n_new = prompt ? 1 : keep;
    ev.facts = xcalloc((size_t)n_new, sizeof *ev.facts);
    for (int i = 0; i < n_new; i++) {
        ids_add(&ev.tokens, long_roll(s, 500));
        ids_add(&s->tok, ev.tokens.v[i]);
        ev.facts[i] = (struct token_fact){-0.5f, -1.5f, 3};
    }
    CHECK(kv_reserve_draft(&s->kv, q, q->drafted, q->committed + keep, &e));
    kv_commit(&s->kv, q, q->committed + keep);
    kv_commit_draft(&s->kv, q, q->committed);
    kv_release_window(&s->kv, q);
    kv_rollback(&s->kv, q);
    s->kv.n_copy = 0;
    size_t bytes = (size_t)s->kv.log.n_since * sizeof *ev.pages;
    ev.n_pages = s->kv.log.n_since;
    ev.pages = bytes ? memcpy(xmalloc(bytes), s->kv.log.since, bytes) : NULL;
    ev.lengths = (struct context_lengths){s->tok.n, q->committed, q->drafted, q->swa_lo};
    s->kv.log.n_since = 0;
    s->post(s->arg, &ev);
}

static inline void long_turn(struct long_session *s)
{
    struct event ev = long_event(EV_TURN_BEGIN, ++s->turn, 0);
    kv_drop(&s->kv, &s->live);
    s->tok.n = 0;
    for (int i = 0; i < LONG_PROMPT; i++)
        ids_add(&s->tok, i % 97);
    buf_printf(&ev.text, "question number %d, about the %d owls", s->turn, s->turn % 7);
    ids_cat(&ev.tokens, s->tok.v, s->tok.n);
    ev.n_tokens = LONG_PROMPT;
    s->post(s->arg, &ev);
    long_step(s, 1, LONG_PROMPT, LONG_PROMPT, true);
    for (int i = 2; i <= s->steps; i++)
        long_step(s, i, s->nodes, 1 + long_roll(s, 4), false);
    if (s->n_point == LONG_POINTS) {
        kv_drop(&s->kv, &s->point[0]);
        memmove(s->point, s->point + 1, (LONG_POINTS - 1) * sizeof *s->point);
        s->n_point--;
    }
    s->point[s->n_point] = (struct seq){.holder = HOLDER_POINT};
    kv_fork(&s->kv, &s->live, &s->point[s->n_point++]);
    ev = long_event(EV_TURN_END, s->turn, s->steps);
    buf_printf(&ev.text, "answer number %d", s->turn);
    ids_cat(&ev.tokens, s->tok.v + LONG_PROMPT, s->tok.n - LONG_PROMPT);
    ev.n_tokens = ev.tokens.n;
    ev.n_steps = s->steps;
    s->post(s->arg, &ev);
}

/* Posts the whole session; post and arg, turns, steps and nodes are set, the rest is 0. */
static inline void long_write(struct long_session *s, int page_size)
{
    int cells = LONG_PROMPT + 4 * s->steps + 2 * TREE_MAX,
        pages = 2 * (LONG_POINTS + 2) * (cells / page_size + 2);
    int n;
    kv_init(&s->kv, &(struct kv_shape){.page_size = page_size, .window = 64, .full_pages = pages,
                                       .swa_pages = pages, .draft_pages = pages});
    s->kv.log.keep = true;
    const struct seq *const *all = long_seqs(s, &n);
    kv_log_state(&s->kv, all, n, 4096);
    struct event ev = long_event(EV_SESSION, 0, 0);
    s->post(s->arg, &ev);
    ev = long_event(EV_OP, 0, 0);
    ev.op = OP_OPEN;
    buf_str(&ev.text, "temperature=0\nspec=on\n");
    s->post(s->arg, &ev);
    for (int t = 0; t < s->turns; t++)
        long_turn(s);
    kv_drop(&s->kv, &s->live);
    while (s->n_point)
        kv_drop(&s->kv, &s->point[--s->n_point]);
    kv_free(&s->kv);
    ids_free(&s->tok);
}
