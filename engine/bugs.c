/* bugs.c - see bugs.h. */
#include "engine/bugs.h"

static const struct bug_info infos[N_BUGS] = {
    [BUG_SWA_UNTRANSLATED] =
        {24617,
         "swa-untranslated",
         {"on"},
         4,
         "tables of sliding layers in tree verification",
         "prefix and tree tables held full-pool slots while the layers read the sliding-window "
         "pool: wrong keys without a message, an illegal access when full slots exceeded the "
         "smaller pool",
         "one page whose full and swa numbers differ, a tree with two siblings",
         {.window = true, .draft = NEED_DRAFT, .topk = 2, .nodes = 3}},
    [BUG_DRAFT_EXPAND_OVERFLOW] =
        {27360,
         "draft-expand-overflow",
         {"on"},
         7,
         "the tree part of a draft level's table",
         "each branch's row was written with as many columns as there are steps, in a table with "
         "as many columns as the level is deep: the excess overwrote the next row, that of the "
         "last row the memory after the table; NaN, a low acceptance or a crash much later",
         "page size 2, topk 2, 4 steps",
         {.draft = NEED_EAGLE3, .topk = 2, .steps = 3, .nodes = 3, .page_size = 2}},
    [BUG_SWA_EXTEND_WINDOW] =
        {26513,
         "swa-extend-window",
         {"on"},
         12,
         "extend with a cached prefix, as two parts combined by log-sum-exp",
         "neither part applied the window, and the prefix part also covered the new tokens: rows "
         "read keys twice, future keys and keys before their window; wrong tokens, no message",
         "prefix 1, two new tokens, or more new tokens than the window holds",
         {.window = true}},
    [BUG_DRAFT_EXTEND_EXTENT] =
        {26512,
         "draft-extend-extent",
         {"prefix-only", "counted-twice"},
         9,
         "the extent of the draft's extend",
         "the extent was the prefix alone, so new rows did not read their own keys; the first fix "
         "added the new tokens to a length that already included them; worse drafts, the same text",
         "a prompt of two tokens",
         {.draft = NEED_EAGLE3}},
    [BUG_FROZEN_STALE_POOL] =
        {26966,
         "frozen-kv-stale-pool",
         {"cached-at-start", "ask-the-allocator", "dummy-pool"},
         11,
         "the pool for which a drafter's tables are built",
         "the pool was looked up once, before the drafter was given the target's pool; the "
         "opposite rule gave a drafter with a pool of its own the target's map; a low acceptance, "
         "and a crash when the pool was more than 85 % full",
         "one sliding layer in a frozen-KV drafter (ask-the-allocator: any EAGLE3 head)",
         {.window = true, .draft = NEED_FROZEN}},
    [BUG_SWA_MASK_OFFSET] =
        {9279,
         "swa-mask-offset",
         {"on"},
         12,
         "the window of a prompt chunk's rows inside the cached prefix",
         "the window was counted from the start of the cut prefix and so excluded no key of it: "
         "the later rows of a chunk read keys before their window; a benchmark score fell by four "
         "points",
         "a prefix as long as the window, two new tokens",
         {.window = true}},
    [BUG_PAGE_NOT_LOC] =
        {16267,
         "page-not-loc",
         {"on"},
         4,
         "translation of a page table",
         "page numbers were translated by the map as if they were slots; right at page size 1 only",
         "page size 2, one page",
         {.window = true, .page_size = 2}},
    [BUG_SWA_LEAK_PAGE] =
        {27789,
         "swa-leak-page",
         {"on"},
         3,
         "releasing the pages of rejected tree nodes",
         "the sliding-window page of a rolled-back column was never freed, until the pool was "
         "full of pages without an owner",
         "page size 2, a tree wider than the rest of the page",
         {.window = true, .draft = NEED_DRAFT, .page_size = 2}},
    [BUG_PUBLISH_BEFORE_WRITE] =
        {41838,
         "publish-before-write",
         {"on"},
         10,
         "sharing a prefix with a later request",
         "a block was offered for reuse when it was allocated, not when it was written: a request "
         "that continued from it read the previous contents",
         "page size 2, a fork at an odd length of a prompt that is not done",
         {.page_size = 2}},
    [BUG_DRAFT_POOL_SMALL] =
        {17630,
         "draft-pool-small",
         {"on"},
         14,
         "the capacity of the draft's pool",
         "the draft's pool had the size of the sliding-window pool, but its ids came from the "
         "full pool: stores past the pool's end (in aerie: the draft's pool runs out of pages "
         "while the target's pools have free ones)",
         "any hybrid model with an EAGLE3 head",
         {.window = true, .draft = NEED_EAGLE3}},
    [BUG_TREE_WINDOW_BY_INDEX] =
        {39287,
         "tree-window-by-index",
         {"by-index", "mask-width"},
         12,
         "the window and the mask of a tree node",
         "the window was counted from the node's index in the tree instead of its depth, so that "
         "siblings read different keys; and rows of the mask were as wide as the whole prefix and "
         "the tree, while the kernel, which had only gathered the window, read them as narrower "
         "ones: nodes saw their siblings",
         "a prefix as long as the window (mask-width: longer by one), a root with two children",
         {.window = true, .draft = NEED_DRAFT, .topk = 2, .nodes = 3}},
    [BUG_VERIFY_FROM_ZERO] =
        {39160,
         "verify-from-zero",
         {"on"},
         12,
         "the sliding keys that tree verification gathers",
         "as many keys as the window holds were gathered, but from the first cell of the prefix "
         "on, because the verify path passed no start: right while the prefix fits the window, "
         "then the acceptance and the text fell",
         "a prefix as long as the window, a root with two children",
         {.window = true, .draft = NEED_DRAFT}},
    [BUG_PREFIX_ONE_BLOCK] =
        {22819,
         "prefix-one-block",
         {"on"},
         12,
         "a cached prefix of exactly one block",
         "requests whose cached prefix was exactly one block answered wrongly, ten of ten; the "
         "cause was not found (here: the length of the last page is the prefix modulo the page "
         "size, so a prefix of one whole page counts as empty)",
         "page size 2, a prefix of 2, one new token",
         {.window = false}},
    [BUG_DRAFT_GROUP_ZERO] =
        {50170,
         "draft-group-zero",
         {"on"},
         4,
         "the slots that a draft's layers write",
         "the draft's layers read through the block table of their own group, but wrote to slots "
         "computed from the table of group 0, the target's: an acceptance of 0.3 % instead of "
         "27 %, the same text",
         "another sequence that holds pages of the target only, then one new token",
         {.draft = NEED_EAGLE3}},
    [BUG_WINDOW_OF_GROUP] =
        {51756,
         "window-of-group",
         {"on"},
         12,
         "the window of full layers",
         "the window was taken from the group of layers, so full layers that share a group with "
         "sliding ones lost the keys before it: right up to the window, then the model forgot",
         "a prefix as long as the window, two new tokens",
         {.window = true}},
    [BUG_BLOCK_LEFT_BOUND] =
        {35208,
         "block-left-bound",
         {"on"},
         12,
         "the window of the rows of a verified block",
         "one left bound, the first row's, was used for all rows of the block: row j read j keys "
         "before its window; a lower acceptance, no message",
         "a prefix as long as the window, a root with two children",
         {.window = true, .draft = NEED_DRAFT, .nodes = 2}},
    [BUG_WINDOW_FREED_EARLY] =
        {47728,
         "window-freed-early",
         {"on"},
         5,
         "releasing the pages behind the window",
         "pages were released against the scheduled length, drafted tokens included: once drafts "
         "were rejected, the window of the next token reached into pages that were gone, and it "
         "read the null block",
         "page size 1, a prefix as long as the window, a rejected draft",
         {.window = true, .draft = NEED_DRAFT}},
    [BUG_REUSE_LAST_WINDOW] =
        {10875,
         "reuse-last-window",
         {"on"},
         5,
         "the length of a reused prefix over several kinds of layers",
         "the reused length was set for each window in turn and the last one won, where the least "
         "one counts: sliding layers continued from cells that they no longer held",
         "a prompt that shares its beginning with a longer one, by more than the window",
         {.window = true}},
    [BUG_ACCEPTED_INDEX] =
        {50021,
         "accepted-index",
         {"on"},
         19,
         "the row of the last accepted token",
         "the row was looked up at the number of accepted drafts less one; with none accepted that "
         "is -1, the last row of the tree: a crash, or another token's state and cells went on",
         "one step whose drafts are all rejected",
         {.draft = NEED_DRAFT, .nodes = 2}},
    [BUG_BIGRAM_LENGTH] =
        {34823,
         "bigram-length",
         {"on"},
         20,
         "the length of a shared prefix under a drafter",
         "keys of the prefix cache were pairs of tokens, one fewer than tokens, but their number "
         "was compared with lengths in tokens (there: window pages were freed twice; here: a fork "
         "takes over one cell of the draft too many, computed with the other prompt's next token)",
         "two prompts that differ in their last token",
         {.draft = NEED_EAGLE3}},
};

struct needs_list {
    struct buf *out;
    bool unmet_only;
    int n;
};

/* Appends "NEED", and " (now NOW)" if the need is not met. */
static void add_need(struct needs_list *l, bool met, const char *need, const char *now)
{
    if (met && l->unmet_only)
        return;
    buf_printf(l->out, "%s%s", l->n++ ? ", " : "", need);
    if (!met && now)
        buf_printf(l->out, " (now %s)", now);
}

static void add_least(struct needs_list *l, const char *name, int least, const int *now)
{
    char need[48], is[16] = "";
    if (!least)
        return;
    snprintf(need, sizeof need, "%s %d", name, least);
    if (now)
        snprintf(is, sizeof is, "%d", *now);
    add_need(l, now ? *now >= least : !l->unmet_only, need, now ? is : NULL);
}

bool bug_needs(enum bug b, int variant, const struct bug_facts *f, bool unmet_only,
               struct buf *out)
{
    static const char *const draft_name[] = {[NEED_DRAFT] = "a drafter",
                                             [NEED_EAGLE3] = "an EAGLE3 head",
                                             [NEED_FROZEN] = "a frozen-KV drafter",
                                             [NEED_BLOCK] = "a draft that guesses blocks"};
    const struct bug_needs *n = &infos[b].needs;
    struct needs_list l = {out, unmet_only, 0};
    enum bug_draft draft = b == BUG_FROZEN_STALE_POOL && variant == 2 ? NEED_EAGLE3 : n->draft;
    if (n->window)
        add_need(&l, !f || f->window, "sliding-window layers", "none");
    if (draft) {
        bool met = !f || (draft == NEED_DRAFT ? f->draft != NEED_NONE : f->draft == draft);
        add_need(&l, met, draft_name[draft], f && f->draft ? draft_name[f->draft] : "none");
        if (f && !f->spec)
            add_need(&l, false, "spec on", "off");
    }
    add_least(&l, "draft.topk", n->topk, f ? &f->topk : NULL);
    add_least(&l, "draft.steps", n->steps, f ? &f->steps : NULL);
    add_least(&l, "draft.nodes", n->nodes, f ? &f->nodes : NULL);
    add_least(&l, "--page-size", n->page_size, f ? &f->page_size : NULL);
    return l.n > 0;
}

const struct bug_info *bug_at(enum bug b)
{
    return &infos[b];
}

int bug_rule(enum bug b, int variant)
{
    bool mask = b == BUG_TREE_WINDOW_BY_INDEX && variant == 2;
    return mask ? 18 : infos[b].rule;
}

int bug_variants(enum bug b)
{
    int n = 1;
    while (n < 3 && infos[b].variant[n])
        n++;
    return n;
}

void bug_switch(struct bugs *s, enum bug b, int variant)
{
    CHECK(b < N_BUGS && variant >= 0 && variant <= bug_variants(b));
    s->variant[b] = (unsigned char)variant;
}

bool bugs_any(const struct bugs *s)
{
    return ANY(b, N_BUGS, bug_on(s, (enum bug)b));
}

const char *bug_state_name(enum bug b, int variant)
{
    return variant ? infos[b].variant[variant - 1] : "off";
}

bool bug_find(const char *which, enum bug *out, struct err *e)
{
    char *end;
    long number = strtol(which, &end, 10);
    for (int b = 0; b < N_BUGS; b++)
        if (!strcmp(which, infos[b].name) || (end != which && !*end && number == infos[b].number)) {
            *out = (enum bug)b;
            return true;
        }
    char list[400] = "";
    for (int b = 0; b < N_BUGS; b++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%d", b ? ", " : "", infos[b].number);
    }
    return err_set(e, ERR_USAGE, "unknown bug '%.60s': expected a name or one of %s", which, list);
}

bool bug_parse(enum bug b, const char *value, int *variant, struct err *e)
{
    int n = bug_variants(b), state = !strcmp(value, "off") ? 0 : !strcmp(value, "on") ? 1 : -1;
    for (int i = 0; i < n && state < 0; i++)
        if (!strcmp(value, infos[b].variant[i]) || (value[0] == '1' + i && !value[1]))
            state = i + 1;
    if (state < 0) {
        FREED(buf_free) struct buf list = {0};
        const int words = n > 1 ? 2 + n : 2; /* a single variant is `on` */
        for (int i = 0; i < words; i++)
            buf_or(&list, i, words, i == 0 ? "on" : i == 1 ? "off" : infos[b].variant[i - 2]);
        return err_set(e, ERR_USAGE, "bug %d: expected %s, not '%.60s'", infos[b].number,
                       list.p, value);
    }
    *variant = state;
    return true;
}

bool bug_set(struct bugs *s, const char *which, const char *value, struct err *e)
{
    enum bug b;
    int variant;
    if (!bug_find(which, &b, e) || !bug_parse(b, value, &variant, e))
        return false;
    bug_switch(s, b, variant);
    return true;
}
