/* regex.c - matching of patterns, with a limit on the work.
 *
 * The text is valid UTF-8 here, so PCRE2 does not check it again. A match runs in the JIT with its
 * small default stack; if that overflows, with a large stack; if that overflows too, in the
 * interpreter on the heap. All three give the same result.
 *
 * Each expression is compiled with a callout before every item. The callout counts one unit of work
 * for the item and one for each byte between the item's position and the previous one. So all work
 * is counted: a lookaround that reads to the end of the text at every character as well as
 * backtracking. Published tokenizers need 2 to 7 units per byte. The callout also checks whether
 * encoding was stopped. It costs about 20 ms per megabyte of text.
 */
#include "models/tokenizer/parts.h"

#include <pthread.h>

/* ---- memory: a match that fails for want of memory would be taken for a slow pattern ---- */

static void *pcre_malloc(PCRE2_SIZE n, void *)
{
    return xmalloc(n);
}

static void pcre_free(void *p, void *)
{
    free(p);
}

static pcre2_general_context *memory;

static void make_memory(void)
{
    memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
}

static pcre2_general_context *claimed(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_memory);
    return memory;
}

/* ---- compiling ---- */

static bool compile(struct pattern *p, const char *s, size_t n, struct err *e)
{
    enum {
        OPTIONS =
            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT
    };
    FREED(buf_free) struct buf text = {0};
    if (!onig_to_pcre(s, n, &text, e))
        return false;
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *c = pcre2_compile_context_create(claimed());
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c, 200); /* onig_to_pcre() allows 64 and adds a few */
    p->re = pcre2_compile((PCRE2_SPTR)(buf_text(&text)), text.n, OPTIONS, &code, &at, c);
    pcre2_compile_context_free(c);
    if (!p->re) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return err_set(e, ERR_MODEL, "regular expression: %s", why);
    }
    pcre2_jit_compile(p->re, PCRE2_JIT_COMPLETE); /* if it fails, the interpreter is used */
    return true;
}

bool pattern_open(struct pattern *p, bool regex, const char *s, size_t n, struct err *e)
{
    enum { MAX_PATTERN = 1 << 16 };
    *p = (struct pattern){0};
    if (n == 0 || n > MAX_PATTERN)
        return err_set(e, ERR_MODEL, "a pattern of %zu bytes; expected 1 to %d", n, MAX_PATTERN);
    if (regex)
        return compile(p, s, n, e);
    p->literal = xmalloc(n);
    memcpy(p->literal, s, n);
    p->n = n;
    return true;
}

void pattern_free(struct pattern *p)
{
    free(p->literal);
    pcre2_code_free(p->re);
    *p = (struct pattern){0};
}

/* ---- matching ---- */

void matcher_free(struct matcher *f)
{
    pcre2_match_data_free(f->match);
    pcre2_match_context_free(f->limits);
    pcre2_jit_stack_free(f->stack);
    buf_free(&f->subject);
    *f = (struct matcher){0};
}

enum {
    WORK_BASE = 1 << 27, /* units that any text may take: about a quarter of a second */
    WORK_PER_BYTE = 64,
    WORK_CHECK = 1 << 20, /* units between two calls of stop_asked() */
    HEAP_KIB = 512 << 10,
    BIG_STACK = 64 << 20,
};

/* The callout before each item of an expression. */
static int count_work(pcre2_callout_block *b, void *arg)
{
    struct matcher *f = arg;
    size_t at = b->current_position;
    f->spent += 1 + (at > f->at ? at - f->at : f->at - at);
    f->at = at;
    if (f->spent <= f->next_check)
        return 0;
    f->next_check = f->spent + WORK_CHECK;
    if (f->spent > f->allowed)
        return PCRE2_ERROR_MATCHLIMIT;
    return stop_asked(f->stop) ? PCRE2_ERROR_CALLOUT : 0;
}

static void matcher_ready(struct matcher *f)
{
    if (f->match)
        return;
    f->match = pcre2_match_data_create(1, claimed()); /* the offsets of the whole match only */
    f->limits = pcre2_match_context_create(claimed());
    pcre2_set_heap_limit(f->limits, HEAP_KIB);
    pcre2_set_callout(f->limits, count_work, f);
    f->allowed = WORK_BASE;
}

/* One match at or after `from`: 1, 0 when there is none, negative on an error. */
static int match_once(const struct pattern *p, struct matcher *f, const char *s, size_t n,
                      size_t from)
{
    PCRE2_SPTR text = (PCRE2_SPTR)s;
    f->at = from;
    int rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK, f->match, f->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !f->stack) {
        f->stack = pcre2_jit_stack_create(1 << 16, BIG_STACK, claimed());
        pcre2_jit_stack_assign(f->limits, NULL, f->stack);
        rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK, f->match, f->limits);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, f->match,
                         f->limits);
    return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
}

static bool match_failed(int rc, size_t n, struct err *e)
{
    if (rc == PCRE2_ERROR_CALLOUT)
        return was_stopped(e);
    return err_set(e, ERR_MODEL,
                   "the tokenizer's regular expression gives up on a text of %zu "
                   "bytes (%d); expected work in proportion to the text",
                   n, rc);
}

void spans_add(struct spans *a, size_t off, size_t len, bool match)
{
    RESERVE(a->v, a->n + 1, a->cap);
    a->v[a->n++] = (struct text_span){(uint32_t)off, (uint32_t)len, match};
}

static bool literal_spans(const struct pattern *p, const struct stop *stop, const char *s, size_t n,
                          struct spans *out)
{
    size_t done = 0;
    const char *hit;
    for (size_t k = 0; (hit = memmem(s + done, n - done, p->literal, p->n)); k++) {
        if (stops_at(stop, k))
            return false;
        size_t at = (size_t)(hit - s);
        if (at > done)
            spans_add(out, done, at - done, false);
        spans_add(out, at, p->n, true);
        done = at + p->n;
    }
    if (done < n || n == 0)
        spans_add(out, done, n - done, false);
    return true;
}

bool pattern_spans(const struct pattern *p, struct matcher *f, const char *s, size_t n,
                   struct spans *out, struct err *e)
{
    if (p->literal || n == 0) {
        if (n == 0)
            spans_add(out, 0, 0, false);
        else if (!literal_spans(p, f->stop, s, n, out))
            return was_stopped(e);
        return true;
    }
    matcher_ready(f);
    f->allowed += (uint64_t)WORK_PER_BYTE * n;
    pcre2_set_match_limit(f->limits, (uint32_t)(f->allowed > UINT32_MAX ? UINT32_MAX : f->allowed));
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(f->match);
    size_t done = 0, from = 0, last = SIZE_MAX; /* last: end of the last match */
    while (from <= n) {
        int rc = match_once(p, f, s, n, from);
        if (rc < 0)
            return match_failed(rc, n, e);
        if (!rc)
            break;
        size_t a = ov[0], b = ov[1];
        if (a < from || b < a || b > n)
            return err_set(e, ERR_MODEL,
                           "the tokenizer's regular expression matches bytes %zu to "
                           "%zu, searched from byte %zu of %zu",
                           a, b, from, n);
        if (a == b && b == last) { /* an empty match directly behind a match is ignored */
            from += from < n ? utf8_len(s + from) : 1;
            continue;
        }
        if (a > done)
            spans_add(out, done, a - done, false);
        spans_add(out, a, b - a, true);
        done = from = last = b;
    }
    if (done < n)
        spans_add(out, done, n - done, false);
    return true;
}
