/* served.c - what servers reported of a recording's replies, from the log. */
#include <math.h>

#include "repl/recorded/parts.h"

/* Mean tokens of a verifying step, as the kinds of servers define it: struct served_ops. */
static double mean_length(const struct recorded *r, const struct served *s)
{
    bool sglang = r->base.info.server_kind && strcmp(r->base.info.server_kind, "SGLang") == 0;
    if (s->verifies <= 0 || (sglang ? s->generated : s->accepted) < 0)
        return NAN;
    return sglang ? (double)s->generated / (double)s->verifies
                  : 1 + (double)s->accepted / (double)s->verifies;
}

static int turns(struct backend *b, struct served_turn *out, int max)
{
    const struct recorded *r = recorded_of(b);
    int n = 0, from = 0;
    for (int i = 0; i < r->n_turn && r->turn[i].n <= r->at_turn; i++)
        n += r->turn[i].served != NULL;
    from = max_int(0, n - max);
    n = 0;
    for (int i = 0; i < r->n_turn && r->turn[i].n <= r->at_turn; i++) {
        const struct rec_turn *t = &r->turn[i];
        if (!t->served || from-- > 0)
            continue;
        struct served_turn *o = &out[n++];
        *o = (struct served_turn){.turn = t->n, .reason = t->stop,
                                  .us_first = t->us_prefill,
                                  .us_decode = t->us_decode, .served = *t->served};
        o->n_tokens = t->served->generated >= 0 ? (int)t->served->generated : t->reply.n;
        o->served.metric = NULL;
        o->served.n_metric = 0;
        o->length = mean_length(r, t->served);
    }
    return n;
}

static struct tops *tops(struct backend *b, int turn, int step)
{
    const struct recorded *r = recorded_of(b);
    int i = recorded_find(r, turn, step);
    return i < 0 ? NULL : tops_copy(r->step[i].tops);
}

void recorded_served(struct recorded *r)
{
    static const struct served_ops ops = {.turns = turns, .tops = tops,
                                          .rate = "accepted / drafted, as the server counts them",
                                          .length = "1 + accepted / verifying steps"};
    static const struct served_ops of_sglang = {
        .turns = turns, .tops = tops, .rate = "accepted / drafted, as the server counts them",
        .length = "completion_tokens / spec_verify_ct"};
    struct backend *b = &r->base;
    bool any = false, counted = false, stepped = false;
    for (int i = 0; i < r->n_turn; i++) {
        any |= r->turn[i].served != NULL;
        counted |= r->turn[i].served && r->turn[i].served->drafted >= 0;
    }
    for (int i = 0; i < r->n_step; i++)
        stepped |= r->step[i].rec.source != STEP_PIECE;
    bool here = false;
    for (int i = 0; i < r->n_step; i++)
        here |= r->step[i].rec.source == STEP_COMPUTED;
    b->lacks[VIEW_SERVED] = any ? NULL : "this session was computed here, not by a server";
    if (!any)
        return;
    b->served = r->base.info.server_kind && strcmp(r->base.info.server_kind, "SGLang") == 0
                    ? &of_sglang : &ops;
    if (!counted && !stepped)
        b->lacks[VIEW_ACCEPT] = "the server did not report accepted drafts";
    if (!here && r->n_node == 0)
        b->lacks[VIEW_TREES] = "no server reports draft trees";
    if (!here && !r->any_pages)
        b->lacks[VIEW_POOLS] = b->lacks[VIEW_PAGES] = "no server reports page tables";
}
