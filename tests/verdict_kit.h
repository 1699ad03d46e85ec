/* verdict_kit.h - sessions in memory for tests of verdicts, and seeded faults of every kind. A
 * fault records when it struck, which rules may name it, and in which layer and operation it first
 * changes the target's numbers.
 */
#pragma once

#include "tests/chance.h"
#include "tests/serve_kit.h"

#include <math.h>

#include "repl/compare/verdict.h"

#define KIT static __attribute__((unused))

/* ---- seeds ----------------------------------------------------------------------------------- */

/* ---- faults ---------------------------------------------------------------------------------- */

enum strike {
    S_SWA_PAGE,     /* a page of a sliding layer's table */
    S_FULL_PAGE,    /* a page of a full layer's table */
    S_SWA_LO,       /* an extent begins one key late */
    S_SWA_WIDER,    /* a window one key wider */
    S_FULL_LO,      /* a full layer's extent begins at the second key */
    S_SWA_HI,       /* an extent ends one key early */
    S_NO_WINDOW,    /* a sliding row reads from the beginning of what is held */
    S_POSITION,     /* a row's position is one later */
    S_TOKEN,        /* a row's token is another one */
    S_SIBLING,      /* a node sees its sibling in place of itself */
    S_NODE_LESS,    /* a node does not see itself */
    S_WRITE,        /* a row's cell is written elsewhere */
    S_KV_LEN,       /* a length that no kernel reads */
    S_DRAFT_EXTENT, /* the draft's extend ends one key early */
    S_DRAFT_NODE,   /* a draft row does not see itself */
    S_MAP,          /* the map leads to another sliding-window page */
    S_FREE_LIST,    /* two free pages change places */
    S_KEY_CELL,     /* a key of a cell that a row reads */
    S_VALUE_CELL,   /* a value */
    S_MARK,         /* the mark of a cell (which token it should hold) */
    S_WEIGHT,       /* one bit of a weight */
    S_SAMPLER,      /* the second best token is chosen */
    S_CAPTURE,      /* the drafter reads another captured row */
    S_DRAFT_CELL,   /* a key in the draft's pool */
    N_STRIKES,
    S_NONE = N_STRIKES
};

KIT const char *strike_name(enum strike s)
{
    static const char *const name[] = {
        "swa page", "full page", "swa lo + 1", "window + 1", "full lo + 1", "swa hi - 1",
        "no window",
        "position + 1", "token", "sibling seen", "node less", "write slot", "kv_len",
        "draft extent",
        "draft node less", "map", "free list", "key cell", "value cell", "mark", "weight bit",
        "sampler", "captured row", "draft cell", "none"};
    return name[s];
}

/* A fault and its effect, which the code that causes it fills in. */
struct fault {
    enum strike kind;
    uint64_t seed;
    int after;  /* strikes in the first suitable pass with a prefix of at least this many cells */
    /* results */
    bool struck;
    int turn, step;  /* in which step */
    int layer;       /* -1: the target's numbers stay right, or which layer is not known */
    enum probe_point at;
    const char *rule; /* rules that may name it, "I4 I10"; "": none can */
    bool may_be_silent; /* it need not change any result */
};

/* The one fault of the engine that is open; its hooks run on the engine's thread. */
KIT struct {
    struct fault f;
    struct engine *g;
    struct kernels table, head_table;
    const struct kernels *base;
    int32_t undo_page, undo_to; /* S_MAP: restored after the next pass is planned */
    bool arm_sampler, arm_capture, arm_draft_cell;
} live;

KIT int sliding_layer(bool sliding)
{
    const struct model *m = &live.g->loaded.model;
    for (int l = 0; l < m->cfg.n_layer; l++)
        if ((m->layer[l].window > 0) == sliding)
            return l;
    return -1;
}

KIT void strikes(int layer, enum probe_point at, const char *rule)
{
    live.f.struck = true;
    live.f.turn = live.g->shared.turn;
    live.f.step = live.g->shared.step + 1;
    live.f.layer = layer;
    live.f.at = at;
    live.f.rule = rule;
}

/* A row of the plan that reads keys through pages of the table, from the last; -1: none. */
KIT int reading_row(const struct plan *p, const struct table *t, int least)
{
    for (int r = p->n_rows - 1; r >= 0; r--)
        if (t->used && t->hi[r] - t->lo[r] >= least)
            return r;
    return -1;
}

KIT void strike_page(struct plan *p, const struct kv *kv, enum table_id id)
{
    struct table *t = &p->table[id];
    int r = reading_row(p, t, 2 * kv->page_size + 1), other;
    if (r < 0)
        return;
    int first = t->lo[r] / kv->page_size + 1, last = (t->hi[r] - 1) / kv->page_size;
    int32_t *page = &t->pages[first + below(last - first + 1)];
    for (other = 1; other < kv->pool[table_pool(id)].total; other++)
        if (other != *page && kv->pool[table_pool(id)].ref[other])
            break;
    if (other == kv->pool[table_pool(id)].total)
        return;
    *page = other;
    strikes(sliding_layer(id == TABLE_SWA), PROBE_ATTN, "I4 I5 I10 I15");
}

KIT void strike_extent(struct plan *p, enum table_id id, enum strike kind)
{
    struct table *t = &p->table[id];
    int r = reading_row(p, t, 3);
    if (r < 0)
        return;
    if (kind == S_SWA_WIDER || kind == S_NO_WINDOW) {
        if (t->lo[r] == 0)
            return;
        t->lo[r] = kind == S_SWA_WIDER ? t->lo[r] - 1 : max_int(0, t->lo[r] - 8);
        if (live.g->own.ses.lane.seq.swa_lo > t->lo[r])
            t->lo[r] = live.g->own.ses.lane.seq.swa_lo;
        if (t->lo[r] >= window_first(p->pos[r], t->window))
            return;
    } else if (kind == S_SWA_HI) {
        t->hi[r]--;
    } else {
        t->lo[r]++;
    }
    strikes(sliding_layer(id == TABLE_SWA), PROBE_ATTN, "I12 I9");
}

/* A node of a tree that is not the root, with its table row. */
KIT void strike_node(struct plan *p, enum table_id id, const struct plan_req *q, enum strike kind)
{
    struct table *t = &p->table[id];
    bool draft = id == TABLE_DRAFT;
    for (int r = p->n_rows - 1; r > 0 && t->used; r--) {
        int32_t *own = &t->expand[r * t->expand_w + t->n_expand[r] - 1];
        if (t->n_expand[r] < 2)
            continue;
        if (kind == S_NODE_LESS || kind == S_DRAFT_NODE) {
            t->n_expand[r]--;
        } else {
            if (!q->tree || r < 2)
                continue;
            *own = t->write[r - 1];
        }
        strikes(draft ? -1 : sliding_layer(id == TABLE_SWA), PROBE_ATTN, "I12 I13 I18 I4 I7");
        live.f.may_be_silent = draft; /* the drafter's guesses may stay the same */
        return;
    }
}

KIT void strike_write(struct plan *p, const struct kv *kv, const struct plan_req *q)
{
    struct table *t = &p->table[TABLE_SWA];
    int r = p->n_rows - 1;
    if (!t->used || r < 1 || t->n_expand[r] < 1)
        return;
    t->write[r] = kv_swa_slot(kv, kv_full_slot(kv, q->seq, q->seq->committed - 2)).v;
    strikes(sliding_layer(true), PROBE_ATTN, "I4");
}

/* Changes 8 numbers in the cell of a position that row r reads in layer l. */
KIT void strike_cell(struct plan *p, const struct kv *kv, const struct plan_req *q, bool key)
{
    const struct model *m = &live.g->loaded.model;
    int l = below(m->cfg.n_layer);
    bool sliding = m->layer[l].window > 0;
    const struct table *t = &p->table[target_table(sliding)];
    int r = reading_row(p, t, 4);
    if (r < 0)
        return;
    int cell = t->lo[r] + 1 + below(t->hi[r] - t->lo[r] - 2);
    full_slot full = kv_full_slot(kv, q->seq, cell);
    int32_t slot = sliding ? kv_swa_slot(kv, full).v : full.v;
    const struct k_cells *c = &live.g->own.runtime.net.cells[l];
    int wide = c->n_kv * c->head_dim;
    char *x = (char *)(key ? c->k.p : c->v.p) + (size_t)(slot * wide) * kv_type_size(c->type);
    for (int i = 0; i < wide; i++)
        if (c->type == KV_F32)
            ((float *)x)[i] += 0.5f;
        else
            ((uint16_t *)x)[i] ^= 0x80; /* doubles or halves it */
    strikes(l, PROBE_ATTN, "");
}

/* Changes the mark of a cell, which only the strict checker reads. */
KIT void strike_mark(const struct kv *kv, const struct plan_req *q)
{
    if (q->seq->committed < 8)
        return;
    int cell = q->seq->committed / 2;
    kv->mark[POOL_FULL][kv_full_slot(kv, q->seq, cell).v].token ^= 1;
    strikes(-1, PROBE_ATTN, "I15");
    live.f.may_be_silent = true;
}

KIT void strike_map(struct kv *kv, const struct plan_req *q)
{
    const struct seq *s = q->seq;
    int first = s->swa_lo / kv->page_size, last = (s->committed - 1) / kv->page_size;
    if (last - first < 2)
        return;
    int32_t a = s->col[last - 1].full.v, b = s->col[last].full.v;
    live.undo_page = a;
    live.undo_to = kv->swa_of[a];
    kv->swa_of[a] = kv->swa_of[b];
    strikes(sliding_layer(true), PROBE_ATTN, "I4 I15 I10");
    live.f.step++; /* the plan is built already: the next step's plan follows the map */
}

KIT void strike_free_list(struct kv *kv)
{
    struct pool *pool = &kv->pool[POOL_FULL];
    if (pool->n_free < 2)
        return;
    int32_t top = pool->free[pool->n_free - 1];
    pool->free[pool->n_free - 1] = pool->free[pool->n_free - 2];
    pool->free[pool->n_free - 2] = top;
    strikes(-1, PROBE_ATTN, "");
}

KIT bool is_target(enum plan_mode m)
{
    return m == PLAN_EXTEND || m == PLAN_DECODE || m == PLAN_VERIFY;
}

KIT void on_built(const struct bugs *on, struct plan *p, const struct kv *kv_,
                  const struct plan_req *req)
{
    struct kv *kv = (struct kv *)(uintptr_t)kv_;
    struct fault *f = &live.f;
    bool target = is_target(p->mode);
    (void)on;
    if (live.undo_page && target) {
        kv->swa_of[live.undo_page] = live.undo_to;
        live.undo_page = 0;
    }
    if (f->struck || f->kind == S_NONE || p->n_req != 1 || p->n_rows == 0 ||
        req[0].seq->committed < f->after || req[0].seq != &live.g->own.ses.lane.seq)
        return;
    dice = f->seed;
    switch (f->kind) {
    case S_SWA_PAGE: if (target) strike_page(p, kv, TABLE_SWA); break;
    case S_FULL_PAGE: if (target) strike_page(p, kv, TABLE_FULL); break;
    case S_SWA_LO: case S_SWA_WIDER: case S_SWA_HI: case S_NO_WINDOW:
        if (target) strike_extent(p, TABLE_SWA, f->kind);
        break;
    case S_FULL_LO: if (target) strike_extent(p, TABLE_FULL, f->kind); break;
    case S_POSITION:
        if (target) {
            p->pos[p->n_rows - 1]++;
            strikes(0, PROBE_Q, "I9 I13");
        }
        break;
    case S_TOKEN:
        if (target) {
            p->token[p->n_rows - 1] ^= 1;
            strikes(0, PROBE_IN, "I9");
        }
        break;
    case S_SIBLING: case S_NODE_LESS:
        if (p->mode == PLAN_VERIFY) strike_node(p, TABLE_FULL, req, f->kind);
        break;
    case S_DRAFT_NODE: if (p->mode == PLAN_DRAFT) strike_node(p, TABLE_DRAFT, req, f->kind); break;
    case S_WRITE: if (p->mode == PLAN_VERIFY) strike_write(p, kv, req); break;
    case S_KV_LEN:
        if (target) {
            p->kv_len[0]++;
            strikes(-1, PROBE_ATTN, "I9");
        }
        break;
    case S_DRAFT_EXTENT:
        if (p->mode == PLAN_DRAFT_EXTEND &&
            p->table[TABLE_DRAFT].hi[0] - p->table[TABLE_DRAFT].lo[0] > 2) {
            p->table[TABLE_DRAFT].hi[0]--;
            strikes(-1, PROBE_ATTN, "I12 I9");
        }
        break;
    case S_MAP: if (p->mode == PLAN_DRAFT_EXTEND && kv->has_swa) strike_map(kv, req); break;
    case S_FREE_LIST: if (p->mode == PLAN_DRAFT_EXTEND) strike_free_list(kv); break;
    case S_KEY_CELL: case S_VALUE_CELL:
        if (p->mode != PLAN_EXTEND && target) strike_cell(p, kv, req, f->kind == S_KEY_CELL);
        break;
    case S_MARK: if (p->mode == PLAN_DRAFT_EXTEND) strike_mark(kv, req); break;
    case S_SAMPLER: live.arm_sampler = target && p->mode != PLAN_EXTEND; break;
    case S_CAPTURE: live.arm_capture = p->mode == PLAN_DRAFT_EXTEND && p->n_rows > 1; break;
    case S_DRAFT_CELL: live.arm_draft_cell = p->mode == PLAN_DRAFT; break;
    case S_WEIGHT: case N_STRIKES: break;
    }
}

/* Makes the first row choose its second best token. */
KIT void second_best(struct kdev *d, const struct k_sample *a)
{
    live.base->sample(d, a);
    if (!live.arm_sampler || live.f.struck)
        return;
    const float *x = a->logits.p;
    int32_t *id = a->ids.p;
    int best = id[0], second = -1;
    for (int i = 0; i < a->n; i++)
        if (i != best && (second < 0 || x[i] > x[second]) &&
            !(a->mask.p && ((uint8_t *)a->mask.p)[i])) second = i;
    id[0] = second;
    strikes(-1, PROBE_ATTN, "");
}

/* The drafter's extend reads the captured states of the row before. */
KIT void other_capture(struct kdev *d, const struct k_gather *a)
{
    int32_t *idx = a->n_parts > 1 ? a->part[0].idx.p : NULL;
    if (live.arm_capture && !live.f.struck && idx && a->rows > 1) {
        idx[a->rows - 1] = idx[a->rows - 2];
        strikes(-1, PROBE_ATTN, "");
        live.f.step++; /* its guesses are the next step's draft */
        live.f.may_be_silent = true;
    }
    live.base->gather(d, a);
}

/* A key of the draft's pool that the first row reads. */
KIT void other_draft_cell(struct kdev *d, const struct k_attn *a)
{
    const struct k_table *t = a->table;
    const int32_t *lo = t->lo.p, *hi = t->hi.p, *pages = t->pages.p;
    if (live.arm_draft_cell && !live.f.struck && hi[0] - lo[0] > 2 && a->cells.type == KV_F32) {
        int cell = (lo[0] + hi[0]) / 2, wide = a->cells.n_kv * a->cells.head_dim;
        int slot = pages[cell / t->page_size] * t->page_size + cell % t->page_size;
        for (int i = 0; i < wide; i++)
            ((float *)a->cells.k.p)[slot * wide + i] += 2;
        strikes(-1, PROBE_ATTN, "");
        live.f.may_be_silent = true;
    }
    live.base->attn(d, a);
}

/* One bit of one weight, from the first pass on. */
KIT void strike_weight(struct engine *g)
{
    static const struct { size_t at; enum probe_point point; } of[] = {
        {offsetof(struct layer, wq), PROBE_Q}, {offsetof(struct layer, wk), PROBE_K},
        {offsetof(struct layer, wv), PROBE_V}, {offsetof(struct layer, wo), PROBE_MID},
        {offsetof(struct layer, gate), PROBE_OUT}, {offsetof(struct layer, up), PROBE_OUT},
        {offsetof(struct layer, down), PROBE_OUT}, {offsetof(struct layer, in_norm), PROBE_Q},
        {offsetof(struct layer, attn_norm), PROBE_MID},
        {offsetof(struct layer, ffn_norm), PROBE_OUT}};
    dice = live.f.seed;
    int l = below(g->loaded.model.cfg.n_layer), k = below((int)(sizeof of / sizeof *of));
    struct tensor *t = (struct tensor *)((char *)&g->loaded.model.layer[l] + of[k].at);
    assert_int_equal(t->type, DT_BF16);
    uint16_t *w = t->data;
    /* mantissa's upper bits, exponent's lower */
    w[below((int)(t->bytes / 2))] ^= (uint16_t)(1u << (5 + below(8)));
    strikes(l, of[k].point, "");
    live.f.turn = live.f.step = 1;
}

/* side.opened: puts the fault `arg` into the engine. */
KIT bool put_fault(void *arg, struct backend *b, const char *about, const char *now, struct err *e)
{
    (void)about, (void)now, (void)e;
    struct engine *g = engine_of(b);
    struct runtime *r = &g->own.runtime;
    live.f = *(struct fault *)arg;
    live.f.struck = live.f.may_be_silent = false;
    live.f.rule = "";
    live.f.layer = -1;
    live.g = g;
    live.undo_page = 0;
    live.arm_sampler = live.arm_capture = live.arm_draft_cell = false;
    live.base = r->dev.k;
    live.table = *live.base;
    live.table.sample = second_best;
    live.head_table = *live.base;
    live.head_table.gather = other_capture;
    live.head_table.attn = other_draft_cell;
    r->pass.opts.hook = (struct plan_hooks){.on = &r->bugs, .built = on_built};
    r->dev.k = &live.table;
    if (r->drafter && r->drafter->head)
        r->drafter->head->dev.k = &live.head_table;
    if (live.f.kind == S_WEIGHT)
        strike_weight(g);
    return true;
}

/* ---- sessions in memory ---------------------------------------------------------------------- */

/* How a session is computed. */
struct scene {
    int page_size, topk, steps, nodes;
    bool spec;
    double temperature;
    int seed, chunk, max_tokens;
    const char *question[3]; /* NULL ends the list */
};

KIT void add_act(struct script *s, struct act a)
{
    s->act = xrealloc(s->act, (size_t)s->n + 1, sizeof *s->act);
    a.about = s->about[0];
    s->act[s->n++] = a;
}

/* The requests of a session, without results. */
KIT void script_make(struct script *s, const struct scene *c)
{
    struct settings set;
    struct buf lines = {0};
    *s = (struct script){.about = xcalloc(1, sizeof *s->about), .n_about = 1};
    s->about[0] = xasprintf("model_dir=" NESTLING "\ndraft_dir=" NESTLING_DRAFT "\nbackend=cpu\n"
                            "precision=f32\nkv=f32\npage_size=%d\ncontext=768\n", c->page_size);
    settings_init(&set);
    set.temperature = c->temperature;
    set.seed = c->seed;
    set.spec = c->spec;
    set.topk = c->topk;
    set.steps = c->steps;
    set.nodes = c->nodes;
    set.chunk = c->chunk;
    set.max_tokens = c->max_tokens;
    set.check = CHECK_OFF;
    settings_print(&set, &lines);
    add_act(s, (struct act){.op = OP_OPEN, .text = xstrdup(lines.p)});
    for (int i = 0; i < 3 && c->question[i]; i++) {
        struct act a = {.is_turn = true};
        a.user = (struct turn_row){.n = i + 1, .is_user = true, .text = xstrdup(c->question[i]),
                                   .text_n = strlen(c->question[i]), .sampling = xstrdup(lines.p)};
        a.reply.n = i + 1;
        a.reply.stop = STOP_END;
        add_act(s, a);
    }
    buf_free(&lines);
}

/* A session that was run: its script with the results, and the results as a trace. */
struct recorded {
    struct script script;
    struct trace log;
    struct fault fault; /* as it struck */
};

/* How a session is computed otherwise. */
struct way {
    const struct kernels *table; /* NULL: the CPU's */
    bool bf16;                   /* cells */
    int threads;                 /* 0: test_threads() */
    /* without a fault; or NULL */
    bool (*opened)(void *arg, struct backend *b, const char *about, const char *now, struct err *e);
};

KIT struct diff_side test_side(const struct script *s, struct fault *f, const struct way *way)
{
    struct diff_side x = {.script = s};
    x.how.engine.threads = way && way->threads ? way->threads : test_threads();
    x.how.engine.precision = way && way->bf16 ? "bf16" : "f32";
    x.how.engine.backend = way ? way->table : NULL;
    /* a side is opened several times; a fault in a weight needs weights that can be written */
    x.how.engine.load = f && f->kind == S_WEIGHT ? "copy" : "map";
    x.opened = way ? way->opened : NULL;
    if (f) {
        x.opened = put_fault;
        x.arg = f;
    }
    return x;
}

/* Puts the results of a run into the script, as a log would hold them. */
KIT void keep_results(struct script *s, const struct trace *t)
{
    int k = 0;
    for (int i = 0; i < s->n; i++) {
        struct act *a = &s->act[i];
        if (!a->is_turn)
            continue;
        if (k == t->n) { /* the run ended before it */
            while (s->n > i)
                act_free(&s->act[--s->n]);
            break;
        }
        const struct trace_turn *x = &t->turn[k++];
        ids_cat(&a->user.tokens, x->prompt.v, x->prompt.n);
        ids_cat(&a->reply.tokens, x->reply.v, x->reply.n);
        a->reply.stop = x->fault[0] ? STOP_FAULT : x->stop;
        a->reply.n_steps = x->n_step;
        a->reply.text = xstrdup("");
        a->step = xcalloc((size_t)x->n_step + 1, sizeof *a->step);
        for (a->n_step = 0; a->n_step < x->n_step; a->n_step++)
            step_row_copy(&a->step[a->n_step], &x->step[a->n_step]);
    }
}

KIT void record(struct recorded *r, const struct scene *c, struct fault *f, const struct way *way)
{
    struct err e = {0};
    struct run_facts facts;
    struct run_ask ask = {.row = -1, .layer = -1};
    script_make(&r->script, c);
    struct diff_side s = test_side(&r->script, f, way);
    live.f.struck = false;
    must(side_run(&s, &ask, &facts, &e), &e);
    r->fault = f ? live.f : (struct fault){.kind = S_NONE};
    r->log = facts.trace;
    facts.trace = (struct trace){0};
    run_facts_free(&facts);
    keep_results(&r->script, &r->log);
}

KIT void recorded_free(struct recorded *r)
{
    trace_free(&r->log);
    script_free(&r->script);
}

/* The verdict on a clean session and a second one. */
KIT void judge(const struct recorded *a, const struct recorded *b, struct fault *f,
               const struct way *way, struct report *r)
{
    struct err e = {0};
    struct verdict_ask ask = {.a = test_side(&a->script, NULL, NULL),
                              .b = test_side(&b->script, f, way),
                              .log_a = &a->log, .log_b = &b->log, .names = {"in a", "in b"},
                              .who = {"a", "b"}};
    must(verdict_find(&ask, r, &e), &e);
}
