/* tokenizer.h - tokenizer.json (byte-pair encoding) to and from token ids.
 *
 * Equal to Hugging Face tokenizers for byte-level (GPT-2, cl100k, o200k, Qwen) and byte-fallback
 * (Gemma) files. A tokenizer never changes after tok_open() and may be used from any thread.
 * Text is bytes; what is not UTF-8 is encoded as U+FFFD, once for each longest broken sequence.
 */
#ifndef AERIE_TOKENIZER_H
#define AERIE_TOKENIZER_H

#include "kernels/base.h"

struct tokenizer;

/* Opens dir/tokenizer.json (dir may also name the file). NULL and *e (ERR_MODEL) on failure. */
struct tokenizer *tok_open(const char *dir, struct err *e);
void tok_close(struct tokenizer *t);

enum {
    TOK_SPECIAL = 1, /* match special tokens in the text; without it pasted text never becomes one.
                        Added tokens that are not special match in either case. */
    TOK_INNER = 2,   /* the text stands behind other text: no prefix for the very first word */
};

/* Appends the ids of n bytes of text; *out is as before on failure. No bos or eos is added: the
 * file's post_processor, truncation and padding are for other uses. At most 256 MiB.
 * ERR_MODEL: the file's steps make more of the text than 64 MiB and 16 times its size, or match
 * with more work than is in proportion to the text. ERR_NEGATIVE: encoding was stopped. */
bool tok_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                struct ids *out, struct err *e);

/* Encoding on the calling thread ends, well within a second, once stop_asked(stop). NULL, as at the
 * start of a thread: nothing stops it. *stop stays the caller's. */
void tok_stop_on(const struct stop *stop);

int tok_vocab(const struct tokenizer *t);                    /* highest id + 1 */
int tok_find(const struct tokenizer *t, const char *string); /* id of an exact token, or -1 */
/* The id that the file's post_processor puts before a text, or -1. */
int tok_bos(const struct tokenizer *t);
bool tok_is_special(const struct tokenizer *t, int id);
/* The bytes that id stands for when decoded (may be part of a UTF-8 sequence); NULL when the id
 * has no string. Special tokens give their text. Lives as long as the tokenizer. */
const char *tok_bytes(const struct tokenizer *t, int id, size_t *n);
/* Decodes a whole run, appending to out: specials kept or left out. Ids without a string give
 * nothing, invalid bytes stay as they are. Equal to a stream of the same ids. */
void tok_decode(const struct tokenizer *t, const int32_t *ids, int n, bool keep_special,
                struct buf *out);

/* Streaming decode: holds back an incomplete UTF-8 sequence until the rest comes. */
struct tok_stream {
    char held[8];
    int n_held;
    int stripped; /* leading spaces left out where the decoder says so */
    bool pushed;  /* a token has come */
    bool begun;   /* text has been appended */
};
/* Appends to out the bytes that are now complete. Zero a tok_stream to start. */
void tok_stream_push(struct tok_stream *s, const struct tokenizer *t, int id, struct buf *out);
void tok_stream_flush(struct tok_stream *s, struct buf *out); /* what is left, as it is */

#endif
