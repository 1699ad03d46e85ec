/* reuse.c - see reuse.h. */
#include "engine/past/reuse.h"

/* Recomputing fewer tokens than this is not reported: half a prompt chunk, which takes well below a
 * second. */
enum { NOTABLE = 256 };

static const char *const change_names[] = {"",     "none",  "first",  "emptied", "system", "undo",
                                           "regen", "forget", "silent", "fork",    "format"};
static const char *const limit_names[] = {"", "window", "evicted", "draft", "state"};
enum {
    N_CHANGES = sizeof change_names / sizeof *change_names,
    N_LIMITS = sizeof limit_names / sizeof *limit_names,
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
static void put_count(struct buf *out, int n)
{
    if (n >= 1000)
        put_count(out, n / 1000);
    buf_printf(out, n >= 1000 ? ",%03d" : "%d", n % 1000);
}

static void put_change(const struct reuse *r, struct buf *out)
{
    switch (r->change) {
    case CHANGE_UNKNOWN: case CHANGE_NONE: break;
    case CHANGE_FIRST: buf_str(out, "the session's first turn"); break;
    case CHANGE_EMPTIED:
        buf_str(out, "the pools were emptied when the session was resumed");
        break;
    case CHANGE_SYSTEM:
        buf_str(out, "the system prompt changed at token ");
        put_count(out, r->same);
        break;
    case CHANGE_UNDO: buf_printf(out, "turn %d was undone", r->turn); break;
    case CHANGE_REGEN: buf_printf(out, "the reply of turn %d is generated again", r->turn); break;
    case CHANGE_FORGET: buf_printf(out, "turn %d left the context", r->turn); break;
    case CHANGE_SILENT: buf_printf(out, "turn %d ended without a reply", r->turn); break;
    case CHANGE_FORK: buf_printf(out, "the conversation was cut after turn %d", r->turn); break;
    case CHANGE_FORMAT:
        buf_str(out, "the chat format renders an earlier message differently from token ");
        put_count(out, r->same);
        buf_str(out, " on");
        break;
    }
}

static void put_limit(const struct reuse *r, struct buf *out)
{
    switch (r->limit) {
    case LIMIT_NONE: return;
    case LIMIT_WINDOW:
        buf_str(out, "window pages of ");
        put_count(out, r->from);
        buf_str(out, "-");
        put_count(out, r->to);
        buf_str(out, " were gone");
        return;
    case LIMIT_EVICTED:
        buf_str(out, "the checkpoint at token ");
        put_count(out, r->to);
        buf_str(out, " was evicted");
        return;
    case LIMIT_DRAFT:
        buf_str(out, "the draft has no cells of the ");
        put_count(out, r->to);
        buf_str(out, " tokens held");
        return;
    case LIMIT_STATE:
        buf_str(out, "no checkpoint lies between tokens ");
        put_count(out, r->from);
        buf_str(out, " and ");
        put_count(out, r->to);
        return;
    }
}

void reuse_text(const struct reuse *r, int n_prompt, int n_reused, struct buf *out)
{
    if (r->change == CHANGE_UNKNOWN)
        return;
    buf_str(out, "reused ");
    put_count(out, n_reused);
    buf_str(out, " of ");
    put_count(out, n_prompt);
    buf_str(out, " prompt tokens: ");
    put_change(r, out);
    if (r->change == CHANGE_NONE && r->limit == LIMIT_NONE)
        buf_str(out, "all that were held");
    if (r->change != CHANGE_NONE && r->limit != LIMIT_NONE)
        buf_str(out, "; ");
    put_limit(r, out);
}
