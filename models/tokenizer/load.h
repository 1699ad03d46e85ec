/* load.h - the entries of a tokenizer, checked one by one; internal to models/tokenizer/.
 *
 * tokenizer.json (load.c) and the metadata of a GGUF (gguf.c) are read into the same struct
 * tokenizer by the functions below. Order: tokens, merges, bpe_seal(), the steps of steps.h, added
 * tokens, load_added_done(), the decoder. False and *l->e (ERR_MODEL) on failure: the message names
 * the file and the place.
 */
#pragma once

#include "models/checkpoint/json.h"
#include "models/tokenizer/steps.h"

struct load {
    struct tokenizer *t;
    const char *path;                   /* for messages */
    const char *tokens, *merges, *more; /* the file's names of its tokens, merges, added tokens */
    struct err *e;
    struct buf file; /* tokenizer.json */
    int64_t max_id;
    bool *added; /* (max_id + 1) whether an added token has the id */
    struct tok_work work; /* of the normalizer; bounds the normalised text of all added tokens */
};

/* Allocates l->added and sets the bound of l->work for a file with n bytes of text. l->max_id must
 * be set. load_close() frees. */
void load_open(struct load *l, size_t n);
void load_close(struct load *l);

/* A string of the file for an error message: its beginning, without control characters. */
struct shown shown_str(struct pull_str x);

/* Adds a token to the vocabulary. */
bool load_entry(struct load *l, struct pull_str s, int64_t id);
/* Splits "a b", the text of merge number `at`, into *a and *b. */
bool load_pair(struct load *l, int64_t at, struct pull_str *a, struct pull_str *b);
/* Adds merge number `at`, of two tokens of the vocabulary; *joined is scratch memory. */
bool load_merge(struct load *l, int64_t at, struct pull_str a, struct pull_str b,
                struct buf *joined);

/* A token that is matched in the text before the merges. */
struct added_entry {
    struct pull_str content;
    int64_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};
/* Adds entry number `at`. The normalizer must be loaded: it is applied to tokens with
 * "normalized". */
bool load_added_token(struct load *l, const struct added_entry *a, int64_t at);
void load_added_done(struct load *l);

/* Reads a GGUF's tokenizer into a zeroed *t. False and *e (ERR_MODEL); tok_close() frees *t then,
 * too. */
bool tokenizer_load_gguf(struct tokenizer *t, const char *path, struct err *e);
/* As tok_digest() of a GGUF. */
bool tokenizer_digest_gguf(const char *path, char hex[65], struct err *e);
