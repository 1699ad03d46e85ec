/* parts.h - the parts of a tokenizer; internal to models/tokenizer/.
 *
 * Encoding runs in the order of the reference: the text is split at raw added tokens; the text
 * between them is normalised, then split at normalised added tokens; the text between those is
 * split into pieces by the pre-tokenizer's steps, and each piece is one word for bpe_word(). A
 * struct tokenizer is read-only after tok_open(); a call writes to its own struct tok_work.
 */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/tokenizer.h"

enum {
    MAX_STEPS = 32,
    MAX_TEXT = 1 << 30,  /* bytes of a text at any stage, so that offsets fit 32 bits */
    BASE_TEXT = 1 << 26, /* a text may become this many bytes, */
    GROWTH = 16,         /* plus this many per byte of it (Unicode normal forms reach 11) */
};

/* ---- patterns: a literal string or a regular expression ------------------------------------ */

struct pattern {
    char *literal; /* NULL: a regular expression */
    size_t n;
    pcre2_code *re;
};

/* Matching state of one call; zero it to start, matcher_free() at the end. Its address must not
 * change in between. */
struct matcher {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    struct buf subject; /* the copy of replace_new_chars() */
    /* units of work (regex.c) of all matches: done, allowed, and done at the next check for a
     * stop */
    uint64_t spent, allowed, next_check;
    size_t at;               /* position of the last item tried */
    const struct stop *stop; /* ends matching; NULL: nothing stops it */
};
void matcher_free(struct matcher *f);

/* A span of a text; consecutive spans cover the text without gaps. */
struct text_span {
    uint32_t off, len;
    bool match;
};
struct spans {
    struct text_span *v;
    size_t n, cap;
};
void spans_add(struct spans *a, size_t off, size_t len, bool match);

/* Copies a literal, or compiles an expression (`regex`) in Oniguruma's Ruby syntax, as
 * tokenizer.json has it. False and *e (ERR_MODEL) for an unsupported expression. pattern_free()
 * frees. */
bool pattern_open(struct pattern *p, bool regex, const char *s, size_t n, struct err *e);
void pattern_free(struct pattern *p);
/* Appends spans that cover s: the matches, empty ones included, and the text between them. False
 * and *e: ERR_MODEL if an expression needs more work than f->allowed (a fixed amount plus an amount
 * for each byte of each text), or if a match ends before it begins or begins before its search;
 * ERR_NEGATIVE if f->stop asks to stop. */
bool pattern_spans(const struct pattern *p, struct matcher *f, const char *s, size_t n,
                   struct spans *out, struct err *e);
/* The text for pattern_spans() of an expression: s, or a copy of the same length in which
 * characters that PCRE2's Unicode tables may not know are replaced (unicode.c). The copy is f's,
 * and valid until the next call with f. */
const char *replace_new_chars(struct matcher *f, const char *s, size_t n);
uint32_t replacement_char(uint32_t c); /* the character that c is replaced by, or c */
/* Translates an expression from Oniguruma's Ruby syntax to PCRE2's, appending to out. False and *e
 * (ERR_MODEL) for invalid UTF-8, a construct that PCRE2 does not have, and a construct that no
 * published tokenizer uses. */
bool onig_to_pcre(const char *s, size_t n, struct buf *out, struct err *e);

/* ---- steps -------------------------------------------------------------------------------- */

struct norm_step {
    enum { NORMALIZE_FORM, NORMALIZE_REPLACE, NORMALIZE_PREPEND } kind;
    int form; /* utf8proc options */
    struct pattern pattern;
    struct buf content;
};

/* What a split does with its matches ("behavior" in tokenizer.json): each is a piece of its own, is
 * removed, is joined to the previous or next piece; or neighbouring matches are one piece. */
enum split_how { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };

struct pre_step {
    enum { PRE_SPLIT, PRE_REPLACE, PRE_PREFIX, PRE_BYTES } kind;
    struct pattern pattern; /* split, replace */
    enum split_how how;
    bool invert;
    struct buf content; /* replace: the replacement; prefix: put before pieces that lack it */
    bool first_only;    /* prefix: only before the piece at the very start of the text */
};

/* Pieces of a text, in order; bytes outside of them are dropped. */
struct pieces {
    struct buf text;
    struct spans span;
    bool at_start; /* the first piece begins where the whole text begins */
};

/* ---- added tokens ------------------------------------------------------------------------- */

struct added {
    uint32_t off, len; /* in added_set.text */
    int id, order;     /* order: the earlier of two equal texts wins */
    bool single_word, lstrip, rstrip;
};
struct added_set {
    struct buf text;
    struct added *v; /* sorted by text, then order */
    int n;
    int first[257]; /* v[first[c]..first[c+1]) begin with byte c */
};
/* A segment of a text: an added token, or text between added tokens (id -1). */
struct segment {
    size_t off, len;
    int id;
};
struct segments {
    struct segment *v;
    size_t n;
};
void added_set_add(struct added_set *a, struct added x, const char *s, size_t n);
void added_set_seal(struct added_set *a);
void added_set_free(struct added_set *a);
/* Appends segments that cover s. With `plain` special tokens are not matched. False: `stop` asked
 * for it. */
bool added_split(const struct added_set *a, const struct bpe *b, const char *s, size_t n,
                 bool plain, const struct stop *stop, struct segments *out);

/* ---- the tokenizer ------------------------------------------------------------------------ */

struct tokenizer {
    struct bpe bpe;
    struct added_set raw, normalized;
    struct added_set all; /* sorted by text, for tok_find() */
    struct norm_step norm[MAX_STEPS];
    struct pre_step pre[MAX_STEPS];
    int n_norm, n_pre;

    struct buf plain; /* the decoded texts of all ids, one after another */
    struct decoded_text {
        uint32_t off, len;
    } *decoded,     /* (bpe.n_token) */
        *decoded_first; /* the same at the start of a text; NULL: no difference */
    int bos; /* id that the post_processor puts before a text; -1: none */
    size_t most_bytes[2]; /* of text that a token can stand for; [1]: special tokens are not
                             matched; 0: no limit is known */
    /* at the start of a whole decoded text, up to strip_max of these characters are dropped */
    char strip[5];
    int strip_max;
};

/* Reads tokenizer.json into a zeroed *t. False and *e (ERR_MODEL) on failure; tok_close() frees *t
 * then, too. */
bool tokenizer_load(struct tokenizer *t, const char *path, struct err *e);
void tokenizer_find_limits(struct tokenizer *t); /* sets most_bytes, once all else is loaded */

/* ---- one call's memory -------------------------------------------------------------------- */

struct tok_work {
    struct bpe_work bpe;
    struct matcher find;
    struct spans span, group;
    struct pieces in, out;
    struct buf text, swap;
    struct segments raw, norm;
    size_t most; /* limit of a text's bytes at any stage, and of all normalised text together */
    size_t made; /* bytes of normalised text so far */
};
static inline bool must_stop(const struct tok_work *w)
{
    return stop_asked(w->find.stop);
}
/* The end of the part of a text of n bytes that begins at `from` and is done without asking. */
static inline size_t next_check(size_t from, size_t n)
{
    return n - from < CHECK_EVERY ? n : from + CHECK_EVERY;
}
static inline bool was_stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "encoding was stopped");
}
void tok_work_free(struct tok_work *w);

/* Sets w->most for a text of n bytes, beyond what the steps of published tokenizers produce. */
static inline void work_bound(struct tok_work *w, size_t n)
{
    w->most = n < (MAX_TEXT - BASE_TEXT) / GROWTH ? BASE_TEXT + GROWTH * n : MAX_TEXT;
}

/* Sets w->text to s normalised. ERR_MODEL if it, or all text that w normalised, exceeds w->most. */
bool normalize(const struct tokenizer *t, const char *s, size_t n, struct tok_work *w,
               struct err *e);
/* Sets w->in to the pieces of s. ERR_MODEL if their text exceeds w->most. */
bool pre_tokenize(const struct tokenizer *t, const char *s, size_t n, bool at_start,
                  struct tok_work *w, struct err *e);

/* The character that represents a byte in byte-level text (GPT-2's table), and its inverse. */
uint32_t byte_to_char(uint8_t b);
int char_to_byte(uint32_t c); /* -1: c represents no byte */
