/* upkeep_own.h - the connections and the facts of an upkeep, for the files that send its requests:
 * upkeep.c and by_ids.c. */
#pragma once

#include "engine/remote/server.h"
#include "engine/remote/upkeep.h"

struct upkeep {
    struct http *http;
    struct server server;
    char *name;
    uint64_t n_asked; /* names of arenas given so far */
};

/* http_call(), which sends a request again that the server refused before any work. */
bool upkeep_call(struct upkeep *upkeep, struct http_call *call, const struct stop *stop,
                 struct err *e);
