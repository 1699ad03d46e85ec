/* bpe.c - vocabulary and merge tables, and the merge loop of one word.
 *
 * The word is a doubly linked list of symbols; the possible merges are in a heap ordered by (rank,
 * position). A heap entry becomes stale when one of its two symbols is merged with its other
 * neighbour. It is detected when it is popped: the pair at its position then merges into another
 * token or into none. So a word of n characters costs O(n log n).
 */
#include "models/tokenizer/bpe.h"

/* ---- strings of ids ---- */

void bpe_name(struct bpe *b, int id, const char *s, size_t n)
{
    CHECK(id >= 0 && b->text.n + n < UINT32_MAX);
    if (id >= b->cap_token) {
        int was = b->cap_token;
        RESERVE(b->token, id + 1, b->cap_token);
        memset(b->token + was, 0, (size_t)(b->cap_token - was) * sizeof *b->token);
    }
    b->n_token = max_int(b->n_token, id + 1);
    b->token[id] = (struct bpe_token){(uint32_t)b->text.n, (uint32_t)n, true, false};
    buf_add(&b->text, s, n);
}

/* The hash slot that holds s, or the free slot where s would be inserted. */
static uint32_t slot_of(const struct bpe *b, const char *s, size_t n)
{
    uint32_t i = (uint32_t)hash64(s, n, 0) & (b->n_slot - 1);
    for (; b->slot[i]; i = (i + 1) & (b->n_slot - 1)) {
        const struct bpe_token *t = &b->token[b->slot[i] - 1];
        if (t->len == n && memcmp(b->text.p + t->off, s, n) == 0)
            break;
    }
    return i;
}

static void grow_slots(struct bpe *b)
{
    uint32_t *old = b->slot, n_old = b->n_slot;
    b->n_slot = n_old ? 2 * n_old : 1024;
    b->slot = xcalloc(b->n_slot, sizeof *b->slot);
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i]) {
            const struct bpe_token *t = &b->token[old[i] - 1];
            b->slot[slot_of(b, b->text.p + t->off, t->len)] = old[i];
        }
    free(old);
}

bool bpe_add(struct bpe *b, int id, const char *s, size_t n)
{
    if (2 * (b->n_vocab + 1) > b->n_slot)
        grow_slots(b);
    uint32_t at = slot_of(b, s, n);
    if (b->slot[at])
        return false;
    bpe_name(b, id, s, n);
    b->slot[at] = (uint32_t)id + 1;
    b->n_vocab++;
    return true;
}

int bpe_find(const struct bpe *b, const char *s, size_t n)
{
    return b->n_slot ? (int)b->slot[slot_of(b, s, n)] - 1 : BPE_NONE;
}

/* ---- merges ---- */

static const uint64_t no_pair = UINT64_MAX;

static struct bpe_merge *merge_slot(const struct bpe *b, uint64_t key)
{
    uint32_t i = (uint32_t)mix64(key) & (b->n_merge_slot - 1);
    while (b->merge[i].key != key && b->merge[i].key != no_pair)
        i = (i + 1) & (b->n_merge_slot - 1);
    return &b->merge[i];
}

static void grow_merges(struct bpe *b)
{
    FREED(free_at) struct bpe_merge *old = b->merge;
    uint32_t n_old = b->n_merge_slot;
    b->n_merge_slot = n_old ? 2 * n_old : 1024;
    b->merge = xrealloc(NULL, b->n_merge_slot, sizeof *b->merge);
    for (uint32_t i = 0; i < b->n_merge_slot; i++)
        b->merge[i].key = no_pair;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].key != no_pair)
            *merge_slot(b, old[i].key) = old[i];
}

static uint64_t pair_key(int left, int right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void bpe_add_merge(struct bpe *b, int left, int right, uint32_t rank, int id)
{
    if (2 * (b->n_merge + 1) > b->n_merge_slot)
        grow_merges(b);
    struct bpe_merge *m = merge_slot(b, pair_key(left, right));
    b->n_merge += m->key == no_pair;
    *m = (struct bpe_merge){pair_key(left, right), rank, id};
}

/* The merge of two neighbours, or NULL. With `plain`, no merge into a special token. */
static const struct bpe_merge *find_merge(const struct bpe *b, int left, int right, bool plain)
{
    if (!b->n_merge_slot)
        return NULL;
    const struct bpe_merge *m = merge_slot(b, pair_key(left, right));
    if (m->key == no_pair || (plain && b->token[m->id].special))
        return NULL;
    return m;
}

void bpe_seal(struct bpe *b)
{
    for (int c = 0; c < 256; c++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)c);
        b->byte_id[c] = bpe_find(b, name, (size_t)n);
    }
    for (unsigned c = 0; c < BPE_DIRECT; c++) {
        char s[2] = {(char)c, 0};
        if (c >= 0x80) {
            s[0] = (char)(0xC0 | c >> 6);
            s[1] = (char)(0x80 | (c & 63));
        }
        b->direct_id[c] = bpe_find(b, s, c < 0x80 ? 1 : 2);
    }
}

void bpe_free(struct bpe *b)
{
    buf_free(&b->text);
    FREE(b->token, b->slot, b->merge);
    *b = (struct bpe){0};
}

/* ---- the word as symbols ---- */

static void add_symbol(struct bpe_work *w, int id)
{
    RESERVE(w->sym, w->n_sym + 1, w->cap_sym);
    int at = (int)w->n_sym++;
    w->sym[at] = (struct bpe_symbol){id, at - 1, at + 1};
}

static int char_id(const struct bpe *b, const char *s, size_t n, bool plain)
{
    uint32_t c = utf8_at(s);
    int id = c < BPE_DIRECT ? b->direct_id[c] : bpe_find(b, s, n);
    return id >= 0 && plain && b->token[id].special ? BPE_NONE : id;
}

/* Whether every byte of a character has a "<0xNN>" token. */
static bool has_bytes(const struct bpe *b, const char *s, size_t n)
{
    return !ANY(i, n, b->byte_id[(uint8_t)s[i]] < 0);
}

/* Sets w->sym to one symbol per character. As in the reference, an unknown token (`unk`) is added
 * only before the next known character or at the end, so it comes after byte tokens in between.
 * False: encoding was stopped. */
static bool split_word(const struct bpe *b, const char *s, size_t n, bool plain,
                       struct bpe_work *w)
{
    bool unk = false;
    size_t round = 0;
    w->n_sym = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (stops_at(w->stop, round++))
            return false;
        len = utf8_len(s + i);
        int id = char_id(b, s + i, len, plain);
        if (id >= 0) {
            if (unk)
                add_symbol(w, b->unk);
            unk = false;
            add_symbol(w, id);
        } else if (b->byte_fallback && has_bytes(b, s + i, len)) {
            for (size_t k = 0; k < len; k++)
                add_symbol(w, b->byte_id[(uint8_t)s[i + k]]);
        } else if (b->unk >= 0) {
            if (unk && !b->fuse_unk)
                add_symbol(w, b->unk);
            unk = true;
        }
    }
    if (unk)
        add_symbol(w, b->unk);
    if (w->n_sym)
        w->sym[w->n_sym - 1].next = BPE_NONE;
    return true;
}

/* ---- the heap ---- */

static void sift_down(struct bpe_step *h, size_t n, size_t i)
{
    struct bpe_step x = h[i];
    for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && h[kid + 1].key < h[kid].key)
            kid++;
        if (x.key <= h[kid].key)
            break;
        h[i] = h[kid];
    }
    h[i] = x;
}

static void heap_push(struct bpe_work *w, uint32_t rank, int at, int id)
{
    RESERVE(w->heap, w->n_heap + 1, w->cap_heap);
    struct bpe_step x = {(uint64_t)rank << 32 | (uint32_t)at, id};
    size_t i = w->n_heap++;
    for (size_t up; i && x.key < w->heap[up = (i - 1) / 2].key; i = up)
        w->heap[i] = w->heap[up];
    w->heap[i] = x;
}

static struct bpe_step heap_pop(struct bpe_work *w)
{
    struct bpe_step top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap)
        sift_down(w->heap, w->n_heap, 0);
    return top;
}

/* ---- the merge loop ---- */

/* Pushes the merge of the symbol `left` with its right neighbour, if there is one. */
static void push_merge(const struct bpe *b, bool plain, struct bpe_work *w, int left)
{
    int right = left < 0 ? BPE_NONE : w->sym[left].next;
    if (right < 0)
        return;
    const struct bpe_merge *m = find_merge(b, w->sym[left].id, w->sym[right].id, plain);
    if (m)
        heap_push(w, m->rank, left, m->id);
}

/* Merges w->sym until no merge is possible. False: encoding was stopped. */
static bool merge_word(const struct bpe *b, bool plain, struct bpe_work *w)
{
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_sym; i++) {
        if (stops_at(w->stop, i))
            return false;
        push_merge(b, plain, w, (int)i);
    }
    for (size_t k = 0; w->n_heap; k++) {
        if (stops_at(w->stop, k))
            return false;
        struct bpe_step s = heap_pop(w);
        int at = (int)(uint32_t)s.key, right = w->sym[at].next;
        if (w->sym[at].id < 0 || right < 0)
            continue;
        const struct bpe_merge *m = find_merge(b, w->sym[at].id, w->sym[right].id, plain);
        if (!m || m->id != s.id)
            continue;
        w->sym[at].id = s.id;
        w->sym[at].next = w->sym[right].next;
        w->sym[right].id = BPE_NONE;
        if (w->sym[right].next >= 0)
            w->sym[w->sym[right].next].prev = at;
        push_merge(b, plain, w, w->sym[at].prev);
        push_merge(b, plain, w, at);
    }
    return true;
}

bool bpe_word(const struct bpe *b, const char *s, size_t n, bool plain, struct bpe_work *w,
              struct ids *out)
{
    CHECK(n <= 1u << 30);
    if (b->ignore_merges) {
        int id = bpe_find(b, s, n);
        if (id >= 0 && !(plain && b->token[id].special)) {
            ids_add(out, id);
            return true;
        }
    }
    if (!split_word(b, s, n, plain, w))
        return false;
    if (!w->n_sym)
        return true;
    if (!merge_word(b, plain, w))
        return false;
    for (int i = 0; i >= 0; i = w->sym[i].next)
        ids_add(out, w->sym[i].id);
    return true;
}

void bpe_work_free(struct bpe_work *w)
{
    FREE(w->sym, w->heap);
    *w = (struct bpe_work){0};
}
