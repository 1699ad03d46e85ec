/* backend.c - see backend.h. */
#include "engine/backend.h"

#include <stdlib.h>

void page_table_free(struct page_table *t)
{
    for (int i = 0; i < N_POOLS; i++) {
        free(t->refs[i]);
        free(t->mine[i]);
    }
    free(t->page);
    *t = (struct page_table){0};
}
