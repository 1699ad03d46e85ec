/* backend.c - see backend.h. */
#include "engine/backend.h"

struct past_turn *past_add(struct past_turn **past, int *n, int turn, const char *user,
                           const char *reply)
{
    struct past_turn *t = APPEND(*past, *n);
    *t = (struct past_turn){turn, xstrdup(user), xstrdup(reply ? reply : ""), {0}};
    return t;
}

void past_turn_free(struct past_turn *turn)
{
    FREE(turn->user, turn->reply);
    ids_free(&turn->ids);
}

void past_free(struct past_turn *past, int n)
{
    for (int i = 0; i < n; i++)
        past_turn_free(&past[i]);
    free(past);
}

void request_free(struct request *rq)
{
    FREE(rq->text, rq->settings);
    ids_free(&rq->prompt);
    ids_free(&rq->given);
    ids_free(&rq->turns);
    probe_past_free(rq->probe.past);
    FREE(rq->force, rq->shape);
    for (int i = 0; rq->prompts && i < rq->count; i++)
        free(rq->prompts[i]);
    free(rq->prompts);
    past_free(rq->past, rq->n_past);
    *rq = (struct request){0};
}

void page_table_free(struct page_table *t)
{
    for (int i = 0; i < N_POOLS; i++)
        FREE(t->refs[i], t->mine[i]);
    free(t->page);
    *t = (struct page_table){0};
}

const char *step_phase_name(enum step_phase p)
{
    static const char *const name[] = {"", "draft", "verify", "accept", "commit"};
    return name[p];
}
