/* reuse.c - see reuse.h. */
#include "engine/past/reuse.h"

/* Recomputing fewer tokens than this is not reported: half a prompt chunk, which takes well below a
 * second. */
enum { NOTABLE = 256 };

static const char *const change_names[] = {"",     "none",  "first",  "emptied", "system", "undo",
                                           "regen", "forget", "silent", "fork",    "format"};
static const char *const limit_names[] = {"", "window", "evicted", "draft", "state"};
enum {
    N_CHANGES = LEN(change_names),
    N_LIMITS = LEN(limit_names),
};
_Static_assert((int)N_CHANGES == CHANGE_FORMAT + 1 && (int)N_LIMITS == LIMIT_STATE + 1,
               "every fact has a name");

const char *reuse_change_name(enum reuse_change c)
{
    return (unsigned)c < N_CHANGES ? change_names[c] : "?";
}

const char *reuse_limit_name(enum reuse_limit l)
{
    return (unsigned)l < N_LIMITS ? limit_names[l] : "?";
}

static int index_of(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

bool reuse_change_parse(const char *name, enum reuse_change *out)
{
    int i = index_of(change_names, N_CHANGES, name);
    if (i >= 0)
        *out = (enum reuse_change)i;
    return i >= 0;
}

bool reuse_limit_parse(const char *name, enum reuse_limit *out)
{
    int i = index_of(limit_names, N_LIMITS, name);
    if (i >= 0)
        *out = (enum reuse_limit)i;
    return i >= 0;
}

int reuse_again(const struct reuse *r, int n_prompt, int n_reused)
{
    int had = 0;
    switch (r->change) {
    case CHANGE_UNKNOWN: case CHANGE_FIRST: break;
    case CHANGE_EMPTIED: had = n_prompt; break;
    case CHANGE_SYSTEM: case CHANGE_FORGET: case CHANGE_FORMAT:
        had = min_int(r->held, n_prompt);
        break;
    case CHANGE_NONE: case CHANGE_UNDO: case CHANGE_REGEN: case CHANGE_SILENT: case CHANGE_FORK:
        had = r->same;
        break;
    }
    return max_int(0, had - n_reused);
}

bool reuse_is_notable(const struct reuse *r, int n_prompt, int n_reused)
{
    return reuse_again(r, n_prompt, n_reused) >= NOTABLE;
}

/* "9,716" */
static struct count_text { char s[16]; } counted(int n)
{
    struct count_text out = {{0}};
    char digits[12];
    int len = snprintf(digits, sizeof digits, "%d", n);
    for (int i = 0, at = 0; i < len; i++) {
        out.s[at++] = digits[i];
        if (i + 1 < len && (len - i) % 3 == 1)
            out.s[at++] = ',';
    }
    return out;
}

static void put_change(const struct reuse *r, struct buf *out)
{
    switch (r->change) {
    case CHANGE_UNKNOWN: case CHANGE_NONE: break;
    case CHANGE_FIRST: buf_str(out, "the session's first turn"); break;
    case CHANGE_EMPTIED:
        buf_str(out, "the pools were empty: the session was resumed, or its model or draft "
                     "switched");
        break;
    case CHANGE_SYSTEM:
        buf_printf(out, "the system prompt changed at token %s", counted(r->same).s);
        break;
    case CHANGE_UNDO: buf_printf(out, "turn %d was undone", r->turn); break;
    case CHANGE_REGEN: buf_printf(out, "the reply of turn %d is generated again", r->turn); break;
    case CHANGE_FORGET: buf_printf(out, "turn %d left the context", r->turn); break;
    case CHANGE_SILENT: buf_printf(out, "turn %d ended without a reply", r->turn); break;
    case CHANGE_FORK: buf_printf(out, "the conversation was cut after turn %d", r->turn); break;
    case CHANGE_FORMAT:
        buf_printf(out, "the chat format renders an earlier message differently from token %s on",
                   counted(r->same).s);
        break;
    }
}

static void put_limit(const struct reuse *r, struct buf *out)
{
    const struct count_text from = counted(r->from), to = counted(r->to);
    switch (r->limit) {
    case LIMIT_NONE: break;
    case LIMIT_WINDOW: buf_printf(out, "window pages of %s-%s were gone", from.s, to.s); break;
    case LIMIT_EVICTED: buf_printf(out, "the checkpoint at token %s was evicted", to.s); break;
    case LIMIT_DRAFT:
        buf_printf(out, "the draft has no cells of the %s tokens held", to.s);
        break;
    case LIMIT_STATE:
        buf_printf(out, "no checkpoint lies between tokens %s and %s", from.s, to.s);
        break;
    }
}

void reuse_text(const struct reuse *r, int n_prompt, int n_reused, struct buf *out)
{
    if (r->change == CHANGE_UNKNOWN)
        return;
    buf_printf(out, "reused %s of %s prompt tokens: ", counted(n_reused).s, counted(n_prompt).s);
    put_change(r, out);
    if (r->change == CHANGE_NONE && r->limit == LIMIT_NONE)
        buf_str(out, "all that were held");
    if (r->change != CHANGE_NONE && r->limit != LIMIT_NONE)
        buf_str(out, "; ");
    put_limit(r, out);
}
