/* pull.h - fetches a model from the Hugging Face hub into the cache that its libraries share.
 *
 * Only this file's functions use the network for a model. What comes is checked against the hub's
 * checksums before it gets its name in the cache; a fetch that was cut off goes on where it ended.
 */
#pragma once

#include "kernels/base.h"

struct pull_opts {
    const char *name; /* as of hub.h */
    const struct stop *stop;
    /* `done` of `total` bytes of `what` are there; or NULL */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *arg;
};

/* Fetches what is missing of the model. The environment says from where (HF_ENDPOINT), whether
 * (HF_HUB_OFFLINE), with which token (HF_TOKEN, HF_TOKEN_PATH, HF_HOME/token) and to where (hub.h).
 * *path is then what hub_find() gives; the caller frees it. False and *e: ERR_USAGE for a name or
 * an environment that forbids it, ERR_NEGATIVE if stopped, else ERR_MODEL. */
bool hub_pull(const struct pull_opts *opts, char **path, struct err *e);
