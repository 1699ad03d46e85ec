/* kl.h - where the replies of `aerie kl` come from: a server, or the engine of this process. Main
 * thread only. */
#pragma once

#include "engine/remote/by_ids.h"
#include "repl/compare/kl.h"

#define KL_USUAL 2e-3 /* mean k3 that SGLang's own test allows a model with sliding layers */

struct cli;

struct kl_source {
    /* Appends the ids of a text. */
    bool (*text)(struct kl_source *s, const char *text, struct ids *out, struct err *e);
    /* Decodes a reply, alone and cold. */
    bool (*ask)(struct kl_source *s, struct ids_ask *a, struct err *e);
    /* logp[i], from <= i < ids->n: of token i, read as a part of a prompt. */
    bool (*score)(struct kl_source *s, const struct ids *ids, int from, float *logp, struct err *e);
    void (*close)(struct kl_source *s);
    char *name;                /* for people; owned */
    int page, window, context; /* 0: not known */
    bool exact;                /* its rows promise the same bits in both passes */
    bool by_token;             /* score() asks once for each token */
    int64_t drafted;
    const struct stop *stop;
    struct upkeep *u;          /* of a server */
    struct backend *b;         /* of this process */
    uint64_t id;               /* of the job that runs */
};

/* Give a source with a server (u) or a backend (b) of the caller's its score(). */
void kl_of_server(struct kl_source *s);
void kl_of_backend(struct kl_source *s);

/* kl_local.c: the engine that the command line names. False and *e; s->close() may be set. */
bool kl_local(struct kl_source *s, const struct cli *c, struct err *e);
