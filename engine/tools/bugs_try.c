/* bugs_try.c - see bugs_try.h. */
#include "engine/tools/bugs_try.h"

#include <math.h>

#include "engine/cycle/fit.h"
#include "engine/thread/load.h"
#include "kernels/json.h"

/* ---- a run: a runtime, a lane, and the results of its passes --------------------------------- */

struct stage {
    struct runtime r;
    struct kernels spy; /* the device's kernel table, with attn replaced by count_attn() */
    struct lane lane;
    int W;          /* window of the sliding layers */
    float *out;     /* (n, width) results */
    int n, width;
    int expected_first;
    enum bug bug;
    int variant;
    char scene[160];
};

/* The kernel table that count_attn() calls, and the number of calls. A thread runs one stage at a
 * time. */
static _Thread_local struct {
    const struct kernels *table;
    int n;
} counted;

static void count_attn(struct kdev *d, const struct k_attn *a)
{
    counted.n++;
    counted.table->attn(d, a);
}

static void keep_rows(struct stage *st, const float *rows, int n, int width)
{
    CHECK(st->n == 0 || st->width == width);
    st->width = width;
    st->out = xrealloc(st->out, (size_t)(st->n + n) * (size_t)width, sizeof *st->out);
    memcpy(st->out + (size_t)st->n * (size_t)width, rows, (size_t)n * (size_t)width * sizeof *rows);
    st->n += n;
}

static void keep_buf(struct stage *st, kbuf b, int n, int width)
{
    FREED(free_at) float *rows = xmalloc((size_t)n * (size_t)width * sizeof *rows);
    st->r.dev.k->get(st->r.dev.d, rows, b, (size_t)n * (size_t)width * sizeof *rows);
    keep_rows(st, rows, n, width);
}

/* Extends the lane's prompt to n tokens; no token repeats within a window. */
static void tokens(struct stage *st, int n)
{
    int V = st->r.model->cfg.vocab;
    for (int i = st->lane.tok.n; i < n; i++)
        ids_add(&st->lane.tok, 3 + (i * 37 + i / 7) % (V - 3));
}

/* Runs the prompt to `upto` in chunks; the drafter follows when asked. */
static bool run_to(struct stage *st, int upto, int chunk, bool draft, struct err *e)
{
    while (st->lane.seq.committed < upto)
        if (!lane_extend(&st->r, &st->lane, min_int(upto, st->lane.seq.committed + chunk), false,
                         draft, 2, e))
            return false;
    return true;
}

__attribute__((format(printf, 2, 3)))
static void note(struct stage *st, const char *fmt, ...)
{
    PRINT_ARGS(st->scene, fmt);
}

/* One pass of the target over a sequence's new cells, which are then rolled back. The logits of its
 * rows from `first` on are results. */
static bool target_pass(struct stage *st, struct seq *seq, enum plan_mode mode,
                        struct plan_req req, int first, struct err *e)
{
    struct runtime *rt = &st->r;
    int vocab = rt->model->cfg.vocab;
    size_t wide = (size_t)vocab * sizeof(float);
    req.seq = seq;
    bool ok = kv_reserve(&rt->kv, seq, seq->committed + req.n, e) &&
              pass_prepare(&rt->pass, mode, &req, 1, e);
    if (ok) {
        net_forward(&rt->net, &rt->pass.plan[mode], &rt->pass.kp, NULL);
        net_logits(&rt->net, req.n, (kbuf){0}, rt->logits);
        keep_buf(st, kbuf_at(rt->logits, (size_t)first * wide, (size_t)(req.n - first) * wide),
                 req.n - first, vocab);
    }
    kv_rollback(&rt->kv, seq);
    return ok;
}

/* ---- scenes: the smallest inputs ------------------------------------------------------------- */

/* A prefix of so many windows and `more` tokens, then so many rows: see scenes[]. */
struct prefix {
    int windows, more, rows;
};
static struct prefix prefix_of(enum bug b);

/* A root with two children behind the prefix. */
static bool verify_fork(struct stage *st, struct err *e)
{
    const struct prefix p = prefix_of(st->bug);
    int prefix = p.windows * st->W + p.more;
    struct tree t;
    tokens(st, prefix + 1);
    if (!run_to(st, prefix, 3, false, e))
        return false;
    tree_init(&t, 5);
    tree_add(&t, 0, 7, 0.5f, -1);
    tree_add(&t, 0, 9, 0.4f, -2);
    note(st, "page size %d, prefix %d, verify a root with two children", st->r.kv.page_size,
         prefix);
    return target_pass(st, &st->lane.seq, PLAN_VERIFY,
                       (struct plan_req){.n = t.n, .token = t.token, .tree = &t}, 0, e);
}

/* 39287: the second child's index is one more than its depth (mask-width: the kernel reads the root
 * row's mask one column early, so the root sees its first child). 35208: both children read the key
 * before their window, which the root may still see. */
static bool scene_by_index(struct stage *st, struct err *e)
{
    st->expected_first = st->bug == BUG_BLOCK_LEFT_BOUND ? 1 : st->variant == 2 ? 0 : 2;
    return verify_fork(st, e);
}

static bool extend_rows(struct stage *st, struct err *e)
{
    const struct prefix p = prefix_of(st->bug);
    int prefix = p.windows * st->W + p.more, n = p.rows;
    tokens(st, prefix + n);
    if (!run_to(st, prefix, 64, false, e))
        return false;
    note(st, "page size %d, prefix %d, extend by %d tokens%s", st->r.kv.page_size, prefix, n,
         st->r.pass.opts.parts == 2 ? " in two parts" : "");
    return target_pass(st, &st->lane.seq, PLAN_EXTEND,
                       (struct plan_req){.n = n, .token = st->lane.tok.v + prefix}, 0, e);
}

/* 26513: with one cached cell, the first new row already reads keys after its own. */
static bool scene_extend_window(struct stage *st, struct err *e)
{
    st->r.parts = st->r.pass.opts.parts = 2;
    return net_two_parts(&st->r.net, e) && extend_rows(st, e);
}

/* 27360: the first level of a draft, whose rows are written with the columns of three levels: the
 * second column of row 0 is the first of row 1. */
static bool scene_expand_overflow(struct stage *st, struct err *e)
{
    enum { TOPK = 2, LEVELS = 3 };
    struct runtime *rt = &st->r;
    struct head *d = rt->drafter->head;
    struct draft_row row[TOPK];
    int32_t from[TOPK], prefix = 3;
    tokens(st, prefix + 1);
    if (!run_to(st, prefix, prefix, true, e))
        return false;
    int base = st->lane.seq.drafted;
    if (!kv_reserve_draft(&rt->kv, &st->lane.seq, base, base + LEVELS * TOPK, e))
        return false;
    for (int k = 0; k < TOPK; k++) {
        row[k] = (struct draft_row){.depth = 1, .cell = base + k, .up = -1, .n_seen = 1};
        row[k].seen[0] = base + k;
        from[k] = st->lane.slot - 1;
    }
    note(st, "page size %d, topk %d, %d steps: level 2 of the draft after %d tokens",
         rt->kv.page_size, TOPK, LEVELS + 1, prefix);
    struct plan_req req = {.seq = &st->lane.seq, .n = TOPK, .token = st->lane.guess.token,
                           .draft = row, .levels = LEVELS, .topk = TOPK};
    bool ok = pass_prepare(&rt->pass, PLAN_DRAFT, &req, 1, e);
    if (ok) {
        d->ops->level(d, &rt->pass.kp, TOPK, d->root, head_rows(d, from, TOPK));
        keep_buf(st, d->logits, TOPK, d->w->draft_vocab);
    }
    kv_rollback(&rt->kv, &st->lane.seq);
    return ok;
}

/* 26512: the draft's extend over a prompt of two tokens. */
static bool scene_extend_extent(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    tokens(st, 3);
    note(st, "page size %d, the draft's extend over a prompt of 2 tokens", rt->kv.page_size);
    if (!run_to(st, 2, 2, true, e))
        return false;
    struct head *d = rt->drafter->head;
    keep_buf(st, d->out, 2, d->state_n);
    return true;
}

/* 50170: pages of the full and the draft pool have different numbers, because another lane, without
 * a draft, holds some of the full pool. */
static bool scene_group_zero(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    struct lane other = {.tap_row = -1};
    tokens(st, 3);
    ids_cat(&other.tok, st->lane.tok.v, 3);
    note(st, "page size %d, the draft's extend over a prompt of 2 tokens, beside a sequence "
             "without a draft", rt->kv.page_size);
    bool ok = lane_extend(rt, &other, 2, false, false, 2, e) && run_to(st, 2, 2, true, e);
    struct head *d = rt->drafter->head;
    if (ok)
        keep_buf(st, d->out, 2, d->state_n);
    lane_free(rt, &other);
    return ok;
}

/* 26966: a frozen drafter's pass (variant ask-the-allocator: an EAGLE3 head's extend) at a length
 * at which full and swa page numbers differ. */
static bool scene_stale_pool(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    bool frozen = !drafter_owns_kv(rt->drafter);
    int prefix = 3 * st->W + 1, n = 2;
    tokens(st, prefix + n + !frozen); /* a head's slot needs the token after it */
    if (!run_to(st, prefix, 3, !frozen, e))
        return false;
    note(st, "page size %d, %s after %d tokens", rt->kv.page_size,
         frozen ? "a frozen-KV guess" : "the draft's extend", prefix);
    bool ok = lane_extend(rt, &st->lane, prefix + n, frozen, true, 2, e);
    if (ok)
        keep_buf(st, rt->drafter->head->logits, 1, head_vocab(rt->drafter->head));
    return ok;
}

/* The prompt's first `upto` tokens, and the token after them. */
static bool begin_reply(struct stage *st, int upto, struct err *e)
{
    tokens(st, upto);
    return run_to(st, upto - 1, 3, true, e) &&
           lane_extend(&st->r, &st->lane, upto, true, true, 2, e);
}

static const struct tree_shape reply_shape = {3, 2, 6};

static bool reply_step(struct stage *st, struct err *e)
{
    struct lane *lane = &st->lane;
    return lane_step(&st->r, &lane, &(struct step_limits){16}, 1, &reply_shape, e);
}

/* 47728: steps after a prompt as long as the window. A result row is a step's last token. */
static bool scene_freed_early(struct stage *st, struct err *e)
{
    note(st, "page size %d, four steps of a reply after %d tokens", st->r.kv.page_size, st->W);
    if (!begin_reply(st, st->W, e))
        return false;
    for (int i = 0; i < 4; i++) {
        if (!reply_step(st, e))
            return false;
        float token = (float)st->lane.tok.v[st->lane.tok.n - 1];
        keep_rows(st, &token, 1, 1);
    }
    return true;
}

/* 50021: the logits after each of some steps; the first one that accepts nothing does the
 * damage. */
static bool scene_accepted_index(struct stage *st, struct err *e)
{
    struct lane *lane = &st->lane;
    note(st, "page size %d, six steps of a reply after 3 tokens; rows: the logits after each",
         st->r.kv.page_size);
    if (!begin_reply(st, 3, e))
        return false;
    for (int i = 0; i < 6; i++) {
        if (!reply_step(st, e))
            return false;
        if (lane->rec.accepted == 0)
            st->expected_first = min_int(st->expected_first, i);
        const struct plan_req req = {.n = 1, .token = lane->tok.v + lane->seq.committed};
        if (!target_pass(st, &lane->seq, PLAN_DECODE, req, 0, e))
            return false;
    }
    return true;
}

/* A lane begins with what it shares with the stage's, as jobs do, and runs the rest of a prompt of
 * `all` tokens, of which those from `same` on differ. */
static bool share(struct stage *st, int same, int all, bool draft, struct lane *lane, struct err *e)
{
    struct runtime *rt = &st->r;
    struct ids prompt = {0};
    ids_cat(&prompt, st->lane.tok.v, same);
    for (int i = same; i < all; i++)
        ids_add(&prompt, st->lane.tok.v[i] == 3 ? 4 : 3);
    lane_park(rt, &st->lane);
    *lane = (struct lane){.tap_row = -1};
    int n = lane_shared(rt, &st->lane, &prompt, draft);
    if (n > 0)
        lane_fork_at(rt, &st->lane, n, draft, lane, HOLDER_POINT);
    lane->tok.n = 0;
    ids_cat(&lane->tok, prompt.v, prompt.n);
    ids_free(&prompt);
    note(st, "page size %d, a prompt of %d tokens, %d of which another sequence has",
         rt->kv.page_size, all, same);
    bool ok = true;
    while (ok && lane->seq.committed < same)
        ok = lane_extend(rt, lane, min_int(same, lane->seq.committed + 32), false, draft, 2, e);
    return ok;
}

/* 10875: the common tokens, a window and a page, end more than a window before the other
 * sequence. */
static bool scene_last_window(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    int same = st->W + rt->kv.page_size, n = 2;
    struct lane lane;
    tokens(st, 3 * st->W);
    if (!run_to(st, 3 * st->W, 3, false, e) || !share(st, same, same + n, false, &lane, e))
        return false;
    const struct plan_req req = {.n = n, .token = lane.tok.v + same};
    bool ok = target_pass(st, &lane.seq, PLAN_EXTEND, req, 0, e);
    lane_free(rt, &lane);
    return ok;
}

/* 34823: the draft's guess after a prompt whose last token differs. */
static bool scene_bigram(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    struct lane lane;
    int same = 4;
    tokens(st, same + 3);
    bool ok = run_to(st, same + 2, 3, true, e) && share(st, same, same + 1, true, &lane, e);
    if (!ok)
        return false;
    ok = lane_extend(rt, &lane, same + 1, true, true, 2, e);
    if (ok)
        keep_buf(st, rt->drafter->head->logits, 1, head_vocab(rt->drafter->head));
    lane_free(rt, &lane);
    return ok;
}

/* 27789: cycles whose rejected nodes reach into a new page. A result row is the number of swa pages
 * in use. */
static bool scene_leak(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    struct lane *lane = &st->lane;
    tokens(st, 3);
    note(st, "page size %d, four cycles of plain steps and rejected trees; rows: swa pages in use",
         rt->kv.page_size);
    if (!run_to(st, 2, 2, false, e))
        return false;
    for (int i = 0; i < 4; i++) {
        struct tree t;
        tree_init(&t, 5);
        for (int k = 0; k < 3; k++)
            tree_add(&t, 0, 7 + k, 0.3f, -1);
        struct plan_req req = {.seq = &lane->seq, .n = t.n, .token = t.token, .tree = &t};
        bool ok = kv_reserve(&rt->kv, &lane->seq, lane->seq.committed + t.n, e) &&
                  pass_prepare(&rt->pass, PLAN_VERIFY, &req, 1, e);
        if (ok)
            net_forward(&rt->net, &rt->pass.plan[PLAN_VERIFY], &rt->pass.kp, NULL);
        kv_rollback(&rt->kv, &lane->seq);
        if (!ok)
            return false;
        float used = (float)pool_used(&rt->kv.pool[POOL_SWA]);
        keep_rows(st, &used, 1, 1);
    }
    return true;
}

/* 41838: a fork in the middle of a prompt, which then runs the rest of the prompt. */
static bool scene_publish(struct stage *st, struct err *e)
{
    struct lane fork = {0};
    struct runtime *rt = &st->r;
    int half = 3, all = 9;
    tokens(st, all);
    if (!run_to(st, half, half, false, e))
        return false;
    note(st, "page size %d, a fork at %d of %d prompt tokens runs the rest", rt->kv.page_size, half,
         all);
    lane_park(rt, &st->lane);
    lane_fork(rt, &st->lane, &fork);
    int from = fork.seq.committed;
    /* only the row of prompt token half + 1 is compared: both runs compute it */
    const struct plan_req req = {.n = 2, .token = fork.tok.v + from};
    bool ok = target_pass(st, &fork.seq, PLAN_EXTEND, req, half + 1 - from, e);
    lane_free(rt, &fork);
    return ok;
}

/* 17630: a prompt longer than the swa pool. A result row is the first guess after a chunk. */
static bool scene_pool_small(struct stage *st, struct err *e)
{
    struct runtime *rt = &st->r;
    int n = rt->kv.pool[POOL_SWA].total * rt->kv.page_size + 2;
    tokens(st, n + 1);
    note(st, "page size %d, a prompt of %d tokens, %d pages in the swa pool", rt->kv.page_size, n,
         rt->kv.pool[POOL_SWA].total);
    while (st->lane.seq.committed < n) {
        if (!run_to(st, min_int(n, st->lane.seq.committed + 8), 8, true, e))
            return false;
        float token = (float)st->lane.guess.token[0];
        keep_rows(st, &token, 1, 1);
    }
    return true;
}

static const struct {
    bool (*run)(struct stage *st, struct err *e);
    int page_size;
    enum { ANY, SOME, EAGLE, FROZEN } draft;
    struct prefix prefix; /* of verify_fork() and extend_rows() */
    int expected_first;
} scenes[N_BUGS] = {
    /* the prefix spans two windows, so that swa pages have been released and taken again */
    [BUG_SWA_UNTRANSLATED] = {verify_fork, 1, ANY, .prefix = {2, 2, 0}},
    [BUG_DRAFT_EXPAND_OVERFLOW] = {scene_expand_overflow, 2, EAGLE, .expected_first = 1},
    [BUG_SWA_EXTEND_WINDOW] = {scene_extend_window, 4, ANY, .prefix = {0, 1, 2}},
    [BUG_DRAFT_EXTEND_EXTENT] = {scene_extend_extent, 4, .draft = EAGLE},
    [BUG_FROZEN_STALE_POOL] = {scene_stale_pool, 1, .draft = FROZEN},
    /* the window of the second row begins after the first cell of the prefix */
    [BUG_SWA_MASK_OFFSET] = {extend_rows, 1, ANY, {1, 0, 2}, 1},
    /* one page; at page size 2 its number, taken as a slot, lies in page 0 */
    [BUG_PAGE_NOT_LOC] = {extend_rows, 2, ANY, .prefix = {0, 0, 2}},
    [BUG_SWA_LEAK_PAGE] = {scene_leak, 2, .draft = ANY},
    [BUG_PUBLISH_BEFORE_WRITE] = {scene_publish, 2, .draft = ANY},
    [BUG_DRAFT_POOL_SMALL] = {scene_pool_small, 2, EAGLE, .expected_first = INT32_MAX},
    [BUG_TREE_WINDOW_BY_INDEX] = {scene_by_index, 1, ANY, .prefix = {1, 0, 0}},
    /* the first length at which the last keys of the prefix are not the first ones */
    [BUG_VERIFY_FROM_ZERO] = {verify_fork, 4, ANY, .prefix = {1, 0, 0}},
    /* the only cached page is full */
    [BUG_PREFIX_ONE_BLOCK] = {extend_rows, 2, ANY, .prefix = {0, 2, 1}},
    [BUG_DRAFT_GROUP_ZERO] = {scene_group_zero, 4, .draft = EAGLE},
    /* the first key lies before the window of the first new row */
    [BUG_WINDOW_OF_GROUP] = {extend_rows, 4, ANY, .prefix = {1, 0, 2}},
    [BUG_BLOCK_LEFT_BOUND] = {scene_by_index, 4, ANY, .prefix = {1, 0, 0}},
    [BUG_WINDOW_FREED_EARLY] = {scene_freed_early, 1, SOME, .expected_first = INT32_MAX},
    [BUG_REUSE_LAST_WINDOW] = {scene_last_window, 4, .draft = ANY},
    [BUG_ACCEPTED_INDEX] = {scene_accepted_index, 4, SOME, .expected_first = INT32_MAX},
    [BUG_BIGRAM_LENGTH] = {scene_bigram, 4, .draft = EAGLE},
};

static struct prefix prefix_of(enum bug b)
{
    return scenes[b].prefix;
}

/* ---- three runs ------------------------------------------------------------------------------ */

static bool missing(const struct model *m, const struct draft *draft, enum bug b, int variant,
                    struct bug_outcome *o)
{
    int need = scenes[b].draft;
    if (b == BUG_FROZEN_STALE_POOL && variant == 2)
        need = EAGLE;
    const char *what = !m->cfg.window ? "a model with sliding-window layers"
                       : need == SOME && !draft ? "a drafter (--draft DIR)"
                       : need == EAGLE &&
                               (!draft || drafter_kv_of(draft) != DRAFT_KV_OWN || draft->block)
                           ? "an EAGLE3 head (--draft DIR)"
                       : need == FROZEN && drafter_kv_of(draft) != DRAFT_KV_TARGET
                           ? "a frozen-KV drafter (--draft DIR)"
                           : NULL;
    if (what)
        snprintf(o->needs, sizeof o->needs, "%s", what);
    return what != NULL;
}

/* One run of the scene on a fresh runtime, with the stage's fault on or off. */
static bool play(struct stage *st, struct device dev, struct model *m, struct draft *draft,
                 bool on, enum check_level level, struct err *e)
{
    struct bugs bugs = {0};
    int P = scenes[st->bug].page_size, W = m->cfg.window;
    st->spy = *dev.k;
    st->spy.attn = count_attn;
    counted.table = dev.k;
    counted.n = 0;
    bug_switch(&bugs, st->bug, on ? st->variant : 0);
    struct runtime_shape shape = {.page_size = P, .context = 8 * W + 256, .max_rows = 64,
                                  .bugs = &bugs,
                                  .swa_pages = 2 * div_up(W, P) + div_up(TREE_MAX, P) + 8};
    dev.k = &st->spy;
    if (!fit_shape(dev, m, draft, &shape, e) || !runtime_open(&st->r, dev, m, draft, &shape, e))
        return false;
    st->W = W;
    st->expected_first = scenes[st->bug].expected_first;
    st->lane = (struct lane){.tap_row = -1};
    st->r.pass.check.level = level;
    bool ok = scenes[st->bug].run(st, e) && st->r.dev.k->sync(st->r.dev.d, e);
    lane_free(&st->r, &st->lane);
    runtime_close(&st->r);
    return ok;
}

static void compare(const struct stage *ref, const struct stage *bad, struct bug_outcome *o)
{
    o->rows = min_int(ref->n, bad->n);
    for (int r = 0; r < o->rows; r++) {
        const float *a = ref->out + (size_t)r * (size_t)ref->width;
        const float *b = bad->out + (size_t)r * (size_t)ref->width;
        bool nan = false, differs = false;
        float most = 0;
        for (int i = 0; i < ref->width; i++) {
            nan |= b[i] != b[i];
            differs |= !(a[i] == b[i]);
            most = fmaxf(most, fabsf(a[i] - b[i]));
        }
        if (differs && o->first < 0)
            o->first = r;
        o->wrong += differs;
        o->nan += nan;
        if (!nan)
            o->worst = fmaxf(o->worst, most);
    }
}

bool bug_try(struct device dev, struct model *m, struct draft *draft, enum bug b, int variant,
             struct bug_outcome *o, struct err *e)
{
    struct stage st[3];
    struct err why = {0};
    *o = (struct bug_outcome){.first = -1};
    if (missing(m, draft, b, variant, o))
        return true;
    for (int i = 0; i < 3; i++)
        st[i] = (struct stage){.bug = b, .variant = variant};
    bool ok = play(&st[0], dev, m, draft, false, CHECK_ON, e);
    int launches = counted.n;
    if (ok) {
        if (!play(&st[1], dev, m, draft, true, CHECK_ON, &why))
            snprintf(o->caught, sizeof o->caught, "%s", why.msg);
        o->prevented = launches - counted.n;
        o->rule_right = why.kind == ERR_INVARIANT && fault_is_of(&why.at, bug_rule(b, variant));
        why = (struct err){0};
        if (!play(&st[2], dev, m, draft, true, CHECK_OFF, &why))
            snprintf(o->stopped, sizeof o->stopped, "%.250s", why.msg);
        compare(&st[0], &st[2], o);
        o->expected_first = st[0].expected_first;
        snprintf(o->scene, sizeof o->scene, "%s", st[0].scene);
    }
    for (int i = 0; i < 3; i++)
        free(st[i].out);
    return ok;
}

/* ---- as text --------------------------------------------------------------------------------- */

static void outcome_json(enum bug b, int variant, const struct bug_outcome *o, struct buf *out)
{
    const struct bug_info *i = bug_at(b);
    jput_record(out, "%d{number}%s{name}%s{variant}%s{rule}%s{needs}%s{scene}%s{caught}"
                "%s{stopped}%d{rule_right?}%d{rows}%d{wrong}%d{first}%d{nan}%g{worst}", i->number,
                i->name, i->variant[variant - 1], fault_rule(bug_rule(b, variant)), o->needs,
                o->scene, o->caught, o->stopped, o->rule_right, o->rows, o->wrong, o->first, o->nan,
                o->nan == o->wrong ? (double)NAN : (double)o->worst);
}

/* What the wrong rows hold: NaN has no distance from a number. */
static void wrong_text(const struct bug_outcome *o, struct buf *out)
{
    int numbers = o->wrong - o->nan;
    buf_printf(out, ", the first is row %d; ", o->first);
    if (numbers == 0)
        buf_str(out, o->nan == 1 ? "it holds NaN in place of numbers"
                                 : "all of them hold NaN in place of numbers");
    else if (o->nan)
        buf_printf(out, "%d hold%s NaN, the other%s off by up to %.3g", o->nan, o->nan == 1 ? "s"
                   : "", numbers == 1 ? " is" : "s are", (double)o->worst);
    else
        buf_printf(out, "%s off by up to %.3g", numbers == 1 ? "it is" : "they are",
                   (double)o->worst);
}

static void outcome_text(enum bug b, int variant, const struct bug_outcome *o, struct buf *out)
{
    const struct bug_info *i = bug_at(b);
    buf_printf(out, "%d %s", i->number, i->name);
    if (bug_variants(b) > 1)
        buf_printf(out, " (%s)", i->variant[variant - 1]);
    if (o->needs[0]) {
        buf_printf(out, "\n  not shown: it needs %s\n", o->needs);
        return;
    }
    buf_printf(out, "\n  input    %s\n", o->scene);
    buf_printf(out, "  checker  %s\n", o->caught[0] ? o->caught : "said nothing");
    buf_printf(out, "  without  ");
    if (o->rows)
        buf_printf(out, "%d of %d result rows wrong", o->wrong, o->rows);
    if (o->wrong)
        wrong_text(o, out);
    if (o->stopped[0])
        buf_printf(out, "%sthe run ended: %s", o->rows ? "; " : "", o->stopped);
    buf_printf(out, "\n");
}

bool bug_try_text(const char *model, const char *draft_dir, const char *which, bool json,
                  struct buf *out, struct err *e)
{
    enum bug b;
    struct loaded l;
    const struct engine_opts load = {.model = model, .draft = draft_dir, .device = "cpu",
                                     .require_draft = draft_dir != NULL};
    if (!bug_find(which, &b, e))
        return false;
    bool ok = engine_load(&l, &load, LOAD_DEVICE, e);
    if (json)
        jput_open(out, '[');
    for (int v = 1; v <= bug_variants(b) && ok; v++) {
        struct bug_outcome o;
        ok = bug_try(l.dev, &l.model, l.has_draft ? &l.draft : NULL, b, v, &o, e);
        if (ok && json)
            outcome_json(b, v, &o, out);
        else if (ok)
            outcome_text(b, v, &o, out);
        if (ok && !o.needs[0] && (!o.rule_right || !(o.wrong > 0 || o.stopped[0])))
            ok = err_set(e, ERR_NEGATIVE, "%d: %s", bug_at(b)->number,
                         o.rule_right ? "it did no damage here"
                                      : "the checker did not name its rule");
    }
    if (json)
        jput_close(out, ']');
    engine_unload(&l);
    return ok;
}
