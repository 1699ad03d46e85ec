/* bpe.h - byte-pair encoding of one word by a vocabulary and ranked merges.
 *
 * Internal to models/tokenizer/. The vocabulary maps strings to ids and back. A merge replaces two
 * neighbouring ids by a third; the merge of the lowest rank comes first, the leftmost of equal
 * ones. After bpe_seal() a struct bpe does not change: any thread may read it, each with its own
 * struct bpe_work.
 */
#pragma once

#include "kernels/utf8.h"

enum { CHECK_EVERY = 1 << 16 }; /* bytes, characters, pieces or merges between two calls of
                                   stop_asked() */
/* Whether to stop, asked in every CHECK_EVERY-th of a loop's rounds. */
static inline bool stops_at(const struct stop *stop, size_t round)
{
    return round % CHECK_EVERY == CHECK_EVERY - 1 && stop_asked(stop);
}
enum { BPE_NONE = -1, BPE_DIRECT = 384 /* characters whose token is found without hashing */ };

struct bpe {
    /* strings of the ids, in the model's vocabulary or added beside it */
    struct buf text;
    struct bpe_token {
        uint32_t off, len; /* in text */
        bool used, special;
    } *token;
    int n_token, cap_token; /* highest id + 1 */
    /* the model's own vocabulary: string -> id, open addressing, id + 1 in a slot */
    uint32_t *slot;
    uint32_t n_slot; /* a power of two, at least twice the entries */
    uint32_t n_vocab;
    /* pair -> rank and joined id, open addressing; key UINT64_MAX: free */
    struct bpe_merge {
        uint64_t key; /* left << 32 | right */
        uint32_t rank;
        int32_t id;
    } *merge;
    uint32_t n_merge_slot, n_merge;
    /* switches of the file */
    bool ignore_merges; /* a whole word that is a token is that token */
    bool byte_fallback; /* an unknown character becomes its bytes' tokens */
    bool fuse_unk;
    int unk;                       /* id of unknown characters; BPE_NONE: they are dropped */
    int32_t byte_id[256];          /* "<0xNN>" tokens or BPE_NONE */
    int32_t direct_id[BPE_DIRECT]; /* by code point */
};

/* Sets the string of id (>= 0) without adding it to the vocabulary. Memory grows with the highest
 * id, so the caller bounds it. */
void bpe_name(struct bpe *b, int id, const char *s, size_t n);
/* Adds a string to the vocabulary; false if it is there already. */
bool bpe_add(struct bpe *b, int id, const char *s, size_t n);
int bpe_find(const struct bpe *b, const char *s, size_t n); /* BPE_NONE: not in the vocabulary */
/* Adds the merge of left and right into id; a later merge of the same pair replaces an earlier. */
void bpe_add_merge(struct bpe *b, int left, int right, uint32_t rank, int id);
void bpe_seal(struct bpe *b); /* fills the direct tables; call once after the last entry */
void bpe_free(struct bpe *b);

/* Scratch memory of one encoding; zero it to start, bpe_work_free() at the end. */
struct bpe_work {
    struct bpe_symbol {
        int32_t id, prev, next; /* neighbours by index; id BPE_NONE: merged into the left one */
    } *sym;
    struct bpe_step {
        uint64_t key; /* rank << 32 | index: the heap's order */
        int32_t id;
    } *heap;
    size_t n_sym, cap_sym, n_heap, cap_heap;
    const struct stop *stop; /* NULL: nothing stops it */
};
void bpe_work_free(struct bpe_work *w);

/* Appends the ids of one word of valid UTF-8, at most 2^30 bytes, in O(n log n). With `plain` no id
 * is a special token's, except the unknown token's. False if encoding was stopped (w->stop);
 * nothing is appended then. */
bool bpe_word(const struct bpe *b, const char *s, size_t n, bool plain, struct bpe_work *w,
              struct ids *out);
