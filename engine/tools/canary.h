/* canary.h - SGLang's kv_canary lines in a server's log.
 *
 * kv_canary keeps a record beside each cell of a KV pool: token, position, and a hash chained over
 * all tokens before it. A line says where a record was not what the request's tokens say:
 *
 *   kv_canary violation: launch_tag=TAIL_K_SWA fail_reason=write_position slot_idx=53504
 *   position=512 stored_token=1299 expected_token=1299 stored_chain_hash=0x... expected_aux=0x...
 *
 * (one line; other text may stand before and behind). launch_tag names when (HEAD: before the
 * forward pass, TAIL: after it, SWEEP: a walk over all cells), the half (K or V) and the pool. Of a
 * verify_ reason `position` is the record's own, and expected_aux the hash that it should hold; of
 * a write_ reason `position` is the one that is written, and expected_aux the position that should
 * be. A line of another form is counted as damaged. No state; any thread. */
#pragma once

#include "engine/cache/page_event.h"

enum { CANARY_LINES = 1 << 16, CANARY_REASONS = 6 };

enum canary_reason { /* bits, as SGLang numbers them */
    CANARY_CHAIN = 1, CANARY_POSITION = 2, CANARY_REAL_KV = 4, CANARY_WRITE_TOKEN = 8,
    CANARY_WRITE_POSITION = 16, CANARY_TOKEN = 32,
};

struct canary_line {
    char tag[16];      /* "TAIL_K_SWA" */
    enum pool_id pool; /* POOL_FULL or POOL_SWA */
    int reasons;
    int64_t slot, position, stored_token, expected_token; /* expected_token -1: not checked */
    uint64_t stored_hash, expected_aux;
    int64_t line; /* of the file, from 1 */
};

struct canary {
    struct canary_line *v;
    int n;
    int64_t total;   /* lines found; those beyond CANARY_LINES are not kept */
    int damaged;
    bool overflowed; /* "ring_overflow=True": the server dropped lines */
    int64_t lines;   /* of the file */
};

/* Whether the file is a text with such a line within its first bytes, or a log at all: a regular
 * file that is no archive. */
bool canary_is(const char *path);
/* False and *e (ERR_USAGE): the file cannot be read, or has no such line. stop may be NULL. */
bool canary_read(struct canary *c, const char *path, const struct stop *stop, struct err *e);
/* The same of one line of text; false: it holds no violation, or *damaged. */
bool canary_take(const char *text, size_t n, struct canary_line *out, bool *damaged);
void canary_free(struct canary *c);

/* Appends "verify_position+verify_token". */
void canary_reasons(int bits, struct buf *out);
/* Which rule of the checker (engine/plan/check.h) a violation is nearest to, and what that means: a
 * constant text. */
const char *canary_means(const struct canary_line *l);
/* The hash of the record behind a cell with these. */
uint64_t canary_next(uint64_t hash, int64_t token, int64_t position);
/* How many lines from `i` on are of cells whose records, as they are stored, continue each other:
 * a piece of one chain. 1: the next does not. */
int canary_piece(const struct canary *c, int i);
