/* backend.c - see backend.h. */
#include "engine/backend.h"

void request_free(struct request *rq)
{
    FREE(rq->text, rq->settings);
    ids_free(&rq->prompt);
    ids_free(&rq->given);
    probe_past_free(rq->probe.past);
    FREE(rq->force, rq->shape);
    for (int i = 0; rq->prompts && i < rq->count; i++)
        free(rq->prompts[i]);
    free(rq->prompts);
    for (int i = 0; i < rq->n_past; i++) {
        FREE(rq->past[i].user, rq->past[i].reply);
        ids_free(&rq->past[i].ids);
    }
    free(rq->past);
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
