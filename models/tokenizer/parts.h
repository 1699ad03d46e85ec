/* parts.h - what a tokenizer is made of; only models/tokenizer*.c include this.
 *
 * Encoding runs in this order, as in the reference: raw added tokens are cut out of the text, the
 * rest is normalised, normalised added tokens are cut out, the rest is split into pieces by the
 * pre-tokenizer's steps, and each piece is one word for bpe_word().
 * Everything here is read-only after tok_open(); what a call needs to write is in struct tok_work.
 */
#ifndef AERIE_TOKENIZER_PARTS_H
#define AERIE_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdatomic.h>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/tokenizer.h"

enum {
    MAX_STEPS = 32,
    MAX_TEXT = 1 << 30,  /* bytes of a text at any stage, so that offsets fit 32 bits */
    BASE_TEXT = 1 << 26, /* of a short text, */
    GROWTH = 16,         /* and for each byte of a long one: normal forms reach 11 */
};

/* ---- patterns: a literal string or a regular expression ------------------------------------ */

struct pattern {
    char *literal; /* NULL: a regular expression */
    size_t n;
    pcre2_code *re;
};

/* Matching memory of one call; zero it to start. Its address must not change while it is in use. */
struct finder {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    struct buf subject; /* the text as the splitter is shown it, when that differs */
    /* work: bytes passed over and items tried, of all matches of this finder */
    uint64_t spent, allowed, look;
    size_t at;               /* of the last item tried */
    const struct stop *stop; /* matching ends when it is asked to; NULL: nothing stops it */
};
void finder_free(struct finder *f);

/* A stretch of a text; consecutive spans tile it. */
struct span {
    uint32_t off, len;
    bool match;
};
struct spans {
    struct span *v;
    size_t n, cap;
};
void spans_add(struct spans *a, size_t off, size_t len, bool match);

/* The expression is in Oniguruma's Ruby syntax, as tokenizer.json has it. */
bool pattern_open(struct pattern *p, bool regex, const char *s, size_t n, struct err *e);
void pattern_free(struct pattern *p);
/* Appends spans that tile s: the matches, empty ones too, and what lies between. Fails with
 * ERR_MODEL when an expression needs more work than f->allowed, a fixed amount plus an amount for each byte
 * of each text, or matches what is no stretch of the text; with ERR_NEGATIVE when *f->stop is true. */
bool pattern_spans(const struct pattern *p, struct finder *f, const char *s, size_t n,
                   struct spans *out, struct err *e);
/* s as it is to be given to pattern_spans() of an expression: s itself, or a copy in f of the same
 * length in which some characters are replaced. It lives until the next call. */
const char *as_matcher_sees(struct finder *f, const char *s, size_t n);
uint32_t stand_in_for(uint32_t c); /* the character that c is replaced by, or c */
/* Rewrites an expression from Oniguruma's Ruby syntax to PCRE2's; refuses what has no equal and what
 * published tokenizers do not use. n bytes of valid UTF-8, else refused. */
bool onig_to_pcre(const char *s, size_t n, struct buf *out, struct err *e);

/* ---- steps -------------------------------------------------------------------------------- */

struct norm_step {
    enum { NORMALIZE_FORM, NORMALIZE_REPLACE, NORMALIZE_PREPEND } kind;
    int form; /* utf8proc options */
    struct pattern pattern;
    struct buf content;
};

/* What happens to the matches of a split. */
enum split_how { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };

struct pre_step {
    enum { PRE_SPLIT, PRE_REPLACE, PRE_PREFIX, PRE_BYTES } kind;
    struct pattern pattern; /* split, replace */
    enum split_how how;
    bool invert;
    struct buf content; /* replace: by this; prefix: put this before pieces that lack it */
    bool first_only;    /* prefix: only the piece at the very start of the text */
};

/* Pieces of a text, in order; bytes between them are gone. */
struct pieces {
    struct buf text;
    struct spans span;
    bool at_start; /* the first piece begins where the whole text begins */
};
void pieces_free(struct pieces *p);

/* ---- added tokens ------------------------------------------------------------------------- */

struct added {
    uint32_t off, len; /* in added_set.text */
    int id, order;     /* order: the earlier of two equal texts wins */
    bool single_word, lstrip, rstrip;
};
struct added_set {
    struct buf text;
    struct added *v; /* sorted by text, then order */
    int n, cap;
    int first[257]; /* v[first[c]..first[c+1]) begin with byte c */
};
/* A cut of a text: an added token, or text between (id -1). */
struct cut {
    size_t off, len;
    int id;
};
struct cuts {
    struct cut *v;
    size_t n, cap;
};
void added_set_add(struct added_set *a, struct added x, const char *s, size_t n);
void added_set_seal(struct added_set *a);
void added_set_free(struct added_set *a);
/* Appends cuts that cover s. With `plain` special tokens are left in the text. */
void added_cut(const struct added_set *a, const struct bpe *b, const char *s, size_t n, bool plain,
               struct cuts *out);

/* ---- the tokenizer ------------------------------------------------------------------------ */

struct tokenizer {
    struct bpe bpe;
    struct added_set raw, normalized;
    struct added_set all; /* by text, for tok_find(): the first of equals */
    struct norm_step norm[MAX_STEPS];
    struct pre_step pre[MAX_STEPS];
    int n_norm, n_pre;

    struct buf plain; /* what the ids decode to, one after another */
    struct plain {
        uint32_t off, len;
    } *decoded,     /* (bpe.n_token) */
        *decoded_first; /* the same at the start of a text; NULL: no difference */
    int bos; /* put before a text by the post_processor; -1: none */
    /* at the start of a whole decoded text, up to strip_max of this character are left out */
    char strip[5];
    int strip_max;
};

/* Reads tokenizer.json into a zeroed *t; on failure tok_close() still applies. */
bool tokenizer_load(struct tokenizer *t, const char *path, struct err *e);

/* ---- one call's memory -------------------------------------------------------------------- */

struct tok_work {
    struct bpe_work bpe;
    struct finder find;
    struct spans span, group;
    struct pieces in, out;
    struct buf text, swap;
    struct cuts raw, norm;
    size_t
        most; /* bytes that a text may become at any stage, and all normalised stretches together */
    size_t made; /* bytes of normalised text so far, of all stretches */
};
static inline bool must_stop(const struct tok_work *w)
{
    return stop_asked(w->find.stop);
}
bool was_stopped(struct err *e); /* sets *e and returns false */
void tok_work_free(struct tok_work *w);

/* Sets w->most for a text of n bytes: no published tokenizer makes more of it. */
static inline void work_bound(struct tok_work *w, size_t n)
{
    w->most = n < (MAX_TEXT - BASE_TEXT) / GROWTH ? BASE_TEXT + GROWTH * n : MAX_TEXT;
}

/* w->text := s normalised; ERR_MODEL when it, or all that w normalised, is more than w->most. */
bool normalize(const struct tokenizer *t, const char *s, size_t n, struct tok_work *w,
               struct err *e);
/* w->in := the pieces of s. */
bool pre_tokenize(const struct tokenizer *t, const char *s, size_t n, bool at_start,
                  struct tok_work *w, struct err *e);

bool utf8_check(const char *s, size_t n); /* all of it is valid UTF-8 */

/* The character that stands for a byte in byte-level text (GPT-2's table): two-way. */
uint32_t byte_to_char(uint8_t b);
int char_to_byte(uint32_t c); /* -1: no byte has it */

#endif
