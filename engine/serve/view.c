/* view.c - copies of engine state for the screen and the commands. Runs on the caller's thread: of the
 * state that changes, this file reads struct engine_shared only, under its lock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/internal.h"

/* The state to copy; shared_unlock() gives it back. */
static const struct engine_shared *look(struct engine *g)
{
    shared_lock(&g->shared);
    return &g->shared;
}

/* ---- pools and pages ------------------------------------------------------------------------- */

static int32_t column_page(const struct seq *s, enum pool_id p, int c)
{
    return p == POOL_DRAFT ? s->dcol[c].v : p == POOL_SWA ? s->col[c].swa.v : s->col[c].full.v;
}

/* Who holds each page: bit 0 the current session, bit 1 an idle one. Checkpoints set nothing. */
static void mark_holders(const struct seq *s, enum pool_id p, uint8_t bit, uint8_t *held)
{
    int n = p == POOL_DRAFT ? s->n_dcol : s->n_col;
    for (int c = 0; c < n; c++)
        held[column_page(s, p, c)] |= bit;
}

/* used: only the current session's own; protected: the session's, and also held by a fork;
 * evictable: held by checkpoints or idle sessions only. */
static void view_pool(const struct engine_shared *s, enum pool_id id, struct pool_view *v)
{
    const struct pages *p = &s->pass->kv->pool[id];
    *v = (struct pool_view){.exists = p->total > 0};
    if (!v->exists)
        return;
    v->page_size = s->pass->kv->page_size;
    v->total = p->total;
    v->reserved = GUARD_PAGES;
    v->free = p->n_free;
    v->refs = xcalloc((size_t)p->total, sizeof *v->refs);
    v->mine = xcalloc((size_t)p->total, 1);
    memcpy(v->refs, p->ref, (size_t)p->total * sizeof *v->refs);
    mark_holders(&s->ses->lane.seq, id, 1, v->mine);
    for (int i = 0; i < s->ses->n_idle; i++)
        mark_holders(&s->ses->idle[i].seq, id, 2, v->mine);
    for (int i = GUARD_PAGES; i < p->total; i++) {
        if (p->ref[i])
            ++*(v->mine[i] == 3 ? &v->protected_ : v->mine[i] & 1 ? &v->used : &v->evictable);
        v->mine[i] &= 1;
    }
}

static void view_pages(const struct engine_shared *sh, struct engine_view *v)
{
    const struct seq *s = &sh->ses->lane.seq;
    const struct kv *kv = sh->pass->kv;
    v->n_page = max_int(s->n_col, s->n_dcol);
    v->page = xcalloc((size_t)v->n_page + 1, sizeof *v->page);
    for (int c = 0; c < v->n_page; c++) {
        struct page_view *p = &v->page[c];
        if (c < s->n_col) {
            p->full = s->col[c].full.v;
            p->swa = s->col[c].swa.v;
            p->full_refs = (int16_t)kv->pool[POOL_FULL].ref[p->full];
            p->swa_refs = p->swa ? (int16_t)kv->pool[POOL_SWA].ref[p->swa] : 0;
        }
        if (c < s->n_dcol) {
            p->draft = s->dcol[c].v;
            p->draft_refs = (int16_t)kv->pool[POOL_DRAFT].ref[p->draft];
        }
    }
}

void engine_view(struct engine *g, struct engine_view *v)
{
    bool busy = engine_busy(g);
    const struct engine_shared *s = look(g);
    const struct lane *l = &s->ses->lane;
    const struct turn_count *now = &s->count;
    *v = s->stats;
    memcpy(v->session, s->ses->id, sizeof v->session);
    v->turn = s->turn;
    v->step = s->step;
    v->busy = busy;
    v->spec = s->set.spec && g->loaded.has_draft;
    v->length = l->tok.n;
    v->committed = l->seq.committed;
    v->capacity = g->info.context;
    v->window = g->loaded.model.cfg.window;
    v->window_lo = l->seq.swa_lo;
    v->draft_length = l->seq.drafted;
    v->settings = s->set;
    v->bugs = *s->bugs;
    const struct ring_entry *drafted = ring_drafted(&s->ring);
    if (drafted) {
        ring_tree(&s->ring, drafted, &v->tree);
        v->tree_turn = drafted->turn;
        v->tree_step = drafted->step;
        v->tree_bonus = drafted->rec.bonus;
    }
    v->n_steps = s->ring.end - s->ring.first;
    if (v->n_steps) {
        v->first_turn = ring_at(&s->ring, 0)->turn;
        v->first_step = ring_at(&s->ring, 0)->step;
        v->last_turn = ring_at(&s->ring, v->n_steps - 1)->turn;
        v->last_step = ring_at(&s->ring, v->n_steps - 1)->step;
    }
    for (int p = 0; p < N_POOLS; p++)
        view_pool(s, (enum pool_id)p, &v->pool[p]);
    view_pages(s, v);
    v->session_mal = v->cycles ? 1 + (double)v->accepted / (double)v->cycles : 0;
    v->turn_mal = now->cycles ? 1 + (double)now->accepted / (double)now->cycles : 0;
    v->tok_s = reply_tok_s((int64_t)now->generated, now->decode_ns / 1000);
    v->checks = s->pass->check.checks;
    v->unchecked = s->pass->check.unchecked;
    v->violations = s->pass->check.violations;
    v->violation = s->violation;
    v->violated_now = s->violation.text[0] && s->violation.turn == s->turn &&
                      !memcmp(s->violation.session, s->ses->id, sizeof s->ses->id);
    shared_unlock(&g->shared);
}

void engine_view_free(struct engine_view *v)
{
    for (int p = 0; p < N_POOLS; p++) {
        free(v->pool[p].refs);
        free(v->pool[p].mine);
    }
    free(v->page);
    memset(v, 0, sizeof *v);
}

/* ---- single facts ---------------------------------------------------------------------------- */

bool engine_position(struct engine *g, int position, struct pos_view *v, struct err *e)
{
    const struct engine_shared *s = look(g);
    const struct kv *kv = s->pass->kv;
    const struct lane *l = &s->ses->lane;
    int n = l->tok.n;
    bool ok = position >= 0 && position < n;
    if (ok) {
        int c = position / kv->page_size;
        *v = (struct pos_view){.position = position, .token = l->tok.v[position],
                               .committed = position < l->seq.committed};
        if (c < l->seq.n_col) {
            full_slot f = kv_full_slot(kv, &l->seq, position);
            v->full_slot = f.v;
            v->swa_slot = l->seq.col[c].swa.v ? kv_swa_slot(kv, f).v : 0;
        }
        if (c < l->seq.n_dcol)
            v->draft_slot = kv_draft_slot(kv, &l->seq, position).v;
        v->in_window = position >= window_first(l->seq.committed, kv->window);
    }
    shared_unlock(&g->shared);
    return ok || (n == 0 ? err_set(e, ERR_USAGE, "the context is empty: send a message first")
                         : err_set(e, ERR_USAGE, "position %d: expected 0 to %d", position, n - 1));
}

int engine_page_events(struct engine *g, enum pool_id pool, int page, struct page_event *out,
                       uint64_t *seq, int max)
{
    const struct engine_shared *s = look(g);
    const struct page_log *log = &s->pass->kv->log;
    uint64_t from = log->seq > PAGE_LOG ? log->seq - PAGE_LOG : 0;
    int n = 0;
    for (uint64_t i = log->seq; i > from && n < max; i--) {
        const struct page_event *ev = &log->ev[(i - 1) % PAGE_LOG];
        if (ev->pool == pool && ev->page == page) {
            out[n] = *ev;
            seq[n++] = i - 1;
        }
    }
    shared_unlock(&g->shared);
    for (int i = 0; i < n / 2; i++) {
        struct page_event ev = out[i];
        uint64_t number = seq[i];
        out[i] = out[n - 1 - i];
        seq[i] = seq[n - 1 - i];
        out[n - 1 - i] = ev;
        seq[n - 1 - i] = number;
    }
    return n;
}

bool engine_step(struct engine *g, int turn, int step, struct step_view *v)
{
    const struct engine_shared *s = look(g);
    const struct ring_entry *e = ring_find(&s->ring, turn, step);
    if (e) {
        *v = (struct step_view){.turn = turn, .step = step, .rec = e->rec};
        ring_tree(&s->ring, e, &v->tree);
    }
    shared_unlock(&g->shared);
    return e != NULL;
}

int engine_steps(struct engine *g, struct step_info *out, int max)
{
    const struct engine_shared *s = look(g);
    uint64_t held = s->ring.end - s->ring.first;
    int n = held < (uint64_t)max ? (int)held : max;
    for (int i = 0; i < n; i++) {
        const struct ring_entry *e = ring_at(&s->ring, held - (uint64_t)(n - i));
        out[i] = (struct step_info){e->turn, e->step, e->rec};
    }
    shared_unlock(&g->shared);
    return n;
}

bool engine_check(struct engine *g, struct check_report *r, struct err *e)
{
    const struct seq *seqs[2 * MAX_POINTS + 1];
    struct err why = {0};
    *r = (struct check_report){.n_rule = check_rule_count()};
    CHECK(r->n_rule <= MAX_RULES);
    const struct engine_shared *s = look(g);
    const struct checker *c = &s->pass->check;
    r->n_seq = session_seqs(s->ses, seqs, 2 * MAX_POINTS + 1);
    bool ok = check_sweep(s->pass->kv, seqs, r->n_seq, &why);
    r->level = (enum check_level)s->set.check;
    r->checks = c->checks;
    r->unchecked = c->unchecked;
    r->violations = c->violations;
    r->violation = s->violation;
    shared_unlock(&g->shared);
    for (int i = 0; i < r->n_rule; i++) {
        r->rule[i].text = check_rule(i);
        r->rule[i].state = !ok && check_names(why.msg, i) ? RULE_VIOLATED
                           : check_rule_swept(i)          ? RULE_HOLDS
                                                          : RULE_OF_PLANS;
    }
    snprintf(r->fault, sizeof r->fault, "%.250s", why.msg);
    return ok || err_set(e, ERR_INVARIANT, "%s", why.msg);
}

bool engine_plan_text(struct engine *g, const char *mode, bool json, struct buf *out, struct err *e)
{
    const struct engine_shared *s = look(g);
    const struct pass *ps = s->pass;
    int which = ps->last;
    if (mode && mode[0]) {
        for (which = 0; which < N_MODES; which++)
            if (!strcmp(mode, plan_mode_name((enum plan_mode)which)))
                break;
        if (which == N_MODES)
            err_set(e, ERR_USAGE, "unknown plan '%s': expected extend, decode, verify, draft, "
                                  "draft-extend or frozen", mode);
    } else if (which == N_MODES) {
        err_set(e, ERR_USAGE, "there is no plan yet: send a message first");
    }
    bool ok = which < N_MODES;
    if (ok && !ps->plan[which].mem)
        ok =
            err_set(e, ERR_USAGE, "no %s plan was made yet", plan_mode_name((enum plan_mode)which));
    if (ok)
        plan_print(&ps->plan[which], json, out);
    shared_unlock(&g->shared);
    return ok;
}
