/* upkeep_own.h - the connections and the facts of an upkeep, for the files that send its requests:
 * upkeep.c and by_ids.c. */
#ifndef AERIE_UPKEEP_OWN_H
#define AERIE_UPKEEP_OWN_H

#include "engine/remote/server.h"
#include "engine/remote/upkeep.h"

struct upkeep {
    struct http *http;
    struct server server;
    char *name;
    uint64_t n_asked; /* names of arenas given so far */
};

#endif
