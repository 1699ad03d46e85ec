/* tokenizer.h - a text to and from token ids, by a tokenizer.json (byte-pair encoding) or a GGUF.
 *
 * The ids equal those of Hugging Face tokenizers for byte-level (GPT-2, cl100k, o200k, Qwen) and
 * byte-fallback (Gemma) files. A tokenizer does not change after tok_open() and may be used from
 * any thread. Text is bytes; each longest invalid UTF-8 sequence is encoded as one U+FFFD.
 */
#pragma once

#include "kernels/base.h"

struct tokenizer;

enum { TOK_FILE_BYTES = 256 << 20 }; /* of a tokenizer.json, at most; the largest published ones
                                        have 40 MB */

/* Opens dir/tokenizer.json (dir may also name the file), or the tokenizer in a GGUF. NULL and *e
 * (ERR_MODEL) on failure. */
struct tokenizer *tok_open(const char *dir, struct err *e);
void tok_close(struct tokenizer *t);
/* Sets hex to the SHA-256 of what tok_open() reads there: of the tokenizer.json, or of the keys of
 * a GGUF that decide ids, so that the files of one model in several quantizations have the same.
 * There is no such file: "". False and *e: it cannot be read. */
bool tok_digest(const char *dir, char hex[65], struct err *e);

enum {
    TOK_SPECIAL = 1, /* match special tokens in the text; without the flag, text never becomes one.
                        Added tokens that are not special match in either case. */
    TOK_INNER = 2,   /* the text follows other text: the first word gets no prefix space */
};

/* Appends the ids of n bytes of text, at most 256 MiB; *out is unchanged on failure. No bos or eos
 * is added: the file's post_processor, truncation and padding are not applied. ERR_USAGE: the text
 * is too long. ERR_MODEL: normalised, it exceeds 64 MiB plus 16 times its size, or matching needs
 * work out of proportion to it. ERR_NEGATIVE: encoding was stopped. */
bool tok_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                struct ids *out, struct err *e);

/* A text of more bytes has more than n tokens. SIZE_MAX where there is no such limit: the tokenizer
 * drops text, or has a regular expression that may. */
size_t tok_most_bytes(const struct tokenizer *t, int n, unsigned flags);

/* From now on tok_encode() on the calling thread ends with ERR_NEGATIVE well within a second after
 * stop_asked(stop) becomes true. NULL, the state of a new thread: nothing stops it. The caller
 * keeps *stop alive until the next call. */
void tok_stop_on(const struct stop *stop);

int tok_vocab(const struct tokenizer *t);                    /* highest id + 1 */
int tok_find(const struct tokenizer *t, const char *string); /* id of an exact token, or -1 */
/* The id that the file's post_processor, or the GGUF's metadata, puts before a text, or -1. */
int tok_bos(const struct tokenizer *t);
bool tok_is_special(const struct tokenizer *t, int id);
/* Whether the token, where a text has it, includes the white space behind it. */
bool tok_eats_white(const struct tokenizer *t, int id);
/* The decoded bytes of an id, possibly an incomplete UTF-8 sequence; NULL if the id has no string.
 * A special token's are its text. Valid as long as the tokenizer. */
const char *tok_bytes(const struct tokenizer *t, int id, size_t *n);
/* Appends the decoded text of n ids to out, that of special tokens included. Ids without a string
 * are skipped, invalid bytes are kept. The result equals that of a tok_stream. */
void tok_decode(const struct tokenizer *t, const int32_t *ids, int n, struct buf *out);

/* Streaming decode: an incomplete UTF-8 sequence is held back until its remaining bytes arrive.
 * Zero it to start. */
struct tok_stream {
    char held[8];
    int n_held;
    int stripped; /* leading characters dropped so far, where the decoder strips a text's start */
    bool pushed;  /* a token was pushed */
    bool begun;   /* text was appended */
};
/* Appends to out the bytes that id completes. Returns how many bytes id has. */
size_t tok_stream_push(struct tok_stream *s, const struct tokenizer *t, int id, struct buf *out);
/* Appends the bytes held back and resets the stream. */
void tok_stream_flush(struct tok_stream *s, struct buf *out);
