/* inspect.c - the commands that show internal state: pools, pages, trees, plans, times, the log's
 * SQL.
 *
 * They read copies (views of backend.h, rows of the log), so they may run while a reply is
 * generated.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"
#include "repl/app/gauges.h"
#include "repl/app/served.h"

static const char *const pools[N_POOLS] = {"full", "swa", "draft"};

/* ---- /stats, /pool --------------------------------------------------------------------------- */

/* A count that only some backends know; -1: not known. */
static int64_t known(bool is, uint64_t n)
{
    return is ? (int64_t)n : -1;
}

/* The facts of the latest reply that the server reported. */
static void served_stats(struct app *a, const struct printer *to)
{
    struct served_replies r;
    served_replies_read(&r, app_served(a));
    if (to->json)
        served_stats_json(&r, to->json);
    else
        view_served_stats(&r, to->out);
    served_replies_free(&r);
}

/* With draft.shape = auto: the chosen shape, and the shapes among which it was chosen. */
static void shape_json(const struct chat_view *v, struct buf *json)
{
    char name[16];
    const struct auto_view *a = &v->auto_shape;
    if (!v->settings.auto_shape || a->n == 0)
        return;
    jput_kopen(json, "auto", '{');
    jput_fields(json, "%s{shape}%s{why}%lu{changes}", view_shape(&a->at[a->now], name),
                a->logged ? "as the log says" : a->why, a->switches);
    jput_kopen(json, "shapes", '[');
    for (int k = 0; k < a->n; k++) {
        jput_record(json, "%s{shape}%d{steps}%g{ms}%g{tokens}", view_shape(&a->at[k], name),
                    a->at[k].runs, a->at[k].ms > 0 ? a->at[k].ms : NAN, a->at[k].tokens);
    }
    jput_close(json, ']');
    jput_close(json, '}');
}

static void stats_json(struct app *a, const struct status *s, const struct backend_info *i,
                       struct buf *json)
{
    const struct chat_view *v = &s->chat;
    bool accept = s->has[VIEW_ACCEPT], steps = s->has[VIEW_STEPS] && !s->has[VIEW_SERVED],
        checked = s->has[VIEW_CHECK];
    jput_open(json, '{');
    jput_fields(json, "%s{session}%d{turn}%d{step}%d{context}%d{committed:-1}%d{capacity:-1}"
                "%g{tok_s}%g{turn_mal}%g{session_mal}%ld{cycles:-1}%ld{drafted:-1}"
                "%ld{accepted:-1}%lu{generated}%lu{us_prefill}%ld{us_draft:-1}%ld{us_verify:-1}"
                "%ld{us_commit:-1}%ld{us_check:-1}%lu{prompt_tokens}%lu{reused_tokens}", v->session,
                v->turn, v->step, v->length, max_int(v->committed, -1),
                v->capacity > 0 ? v->capacity : -1, v->tok_s,
                accept && v->turn_mal > 0 ? v->turn_mal : NAN,
                accept && v->session_mal > 0 ? v->session_mal : NAN,
                known(accept, v->drafts.cycles), known(accept, v->drafts.drafted),
                known(accept, v->drafts.accepted), v->generated, v->us_prefill,
                known(steps, v->us_draft), known(steps, v->us_verify), known(steps, v->us_commit),
                known(steps, v->us_check), v->prompt_tokens, v->reused_tokens);
    report_reuse(&v->reuse, json);
    jput_fields(json,
                "%ld{checks:-1}%ld{unchecked:-1}%ld{violations:-1}%d{spec?}%s{spec_off}%s{drafter}",
                known(checked, s->check.checks), known(checked, s->check.unchecked),
                known(checked, s->check.violations), !i->draft_off && v->settings.spec,
                i->draft_off ? i->draft_off : v->settings.spec ? NULL : "/set spec", i->draft_kind);
    shape_json(v, json);
    jput_fields(json,
                "%s{family}%s{device}%s{stored}%s{served_inputs}%d{window:-1}%d{page_size:-1}",
                i->family, i->device, i->stored, i->served_inputs,
                i->n_layer > 0 ? i->window : -1, i->page_size > 0 ? i->page_size : -1);
    if (s->has[VIEW_SERVED]) {
        jput_fields(json, "%s{model}%s{trouble}", i->model_dir, v->trouble[0] ? v->trouble : NULL);
        jput_key(json, "latest");
        served_stats(a, &(struct printer){NULL, json});
    }
    jput_close(json, '}');
}

bool cmd_stats(struct cmd_call *c)
{
    struct app *a = c->app;
    struct status s;
    app_look(a, &s);
    if (c->to.json) {
        stats_json(a, &s, backend_info(a->backend), c->to.json);
        return true;
    }
    view_stats(&s, backend_info(a->backend), c->to.out);
    if (s.has[VIEW_SERVED])
        served_stats(a, &c->to);
    else
        say_drafters(a, &c->to);
    sheet_printf(c->to.out, ST_LABEL, "%-8s  ", "status");
    app_status(a, &s, 0, c->to.out);
    return true;
}

/* A pool according to a server's metrics; null: not reported. */
static void server_pool_json(const struct pool_view *p, const char *name, bool evictable,
                             struct buf *json)
{
    jput_record(json, "%s{pool}%d{page_size}%d{total}%d{used}%d{evictable:-1}%d{free}", name,
                p->page_size, p->total, p->used, evictable ? p->evictable : -1, p->free);
}

static void server_pools_json(const struct gauge_series *s, const struct pool_view pool[N_POOLS],
                              struct buf *json)
{
    jput_open(json, '[');
    for (int i = 0; i < N_POOLS; i++)
        if (pool[i].exists)
            server_pool_json(&pool[i], gauge_name(&s->view, (enum gauge)i), !s->view.unit, json);
    jput_close(json, ']');
}

/* /pool and /gauges with a server; most: readings listed in JSON, 0: only the pools. */
static void server_pools(struct cmd_call *c, int most)
{
    struct backend *b = c->app->backend;
    struct gauge_series s;
    struct pool_view pool[N_POOLS] = {0};
    gauge_series_read(&s, b);
    if (backend_has(b, VIEW_POOLS))
        b->pools->ledger(b, pool);
    say_now(c);
    print_note(&c->to, ST_HEAD, "%s", most ? "GAUGES" : "POOL");
    if (c->to.json && most)
        gauges_json(&s, most, c->to.json);
    else if (c->to.json)
        server_pools_json(&s, pool, c->to.json);
    else
        view_gauges(&s, pool, view_width(c->app), c->to.out);
    gauge_series_free(&s);
}

/* /gauges of computed steps: pools, acceptance and speed step by step. */
static bool local_gauges(struct cmd_call *c, int most)
{
    struct gauge_series s;
    struct pool_view pool[N_POOLS];
    if (!app_pools(c->app, pool, c->e))
        return false;
    gauge_series_steps(&s, c->app, true);
    if (c->to.json) {
        gauges_json(&s, most, c->to.json);
    } else {
        print_note(&c->to, ST_HEAD, "GAUGES");
        view_gauges(&s, pool, view_width(c->app), c->to.out);
    }
    gauge_series_free(&s);
    return true;
}

bool cmd_gauges(struct cmd_call *c)
{
    long most = 60;
    if (c->argc > 1)
        return arg_expected(c, "takes at most one number");
    if (c->argc == 1 && !arg_int(c->argv[0], "the number of readings", 1, GAUGES_KEPT, &most, c->e))
        return false;
    struct backend *b = c->app->backend;
    if (!backend_has(b, VIEW_GAUGES) && backend_has(b, VIEW_STEPS) && backend_has(b, VIEW_POOLS))
        return local_gauges(c, (int)most);
    if (!cmd_needs(c, VIEW_GAUGES))
        return false;
    server_pools(c, (int)most);
    return true;
}

static void show_pool(const struct pool_view *p, const char *name, const struct printer *to)
{
    print_line(to, ST_TEXT, "\f%s{pool}%d{exists?}%d{page_size}%d{total}%d{reserved}%d{used}"
                "%d{protected}%d{evictable}%d{free}%d{sums?}", name, p->exists, p->page_size,
                p->total, p->reserved, p->used, p->protected_, p->evictable, p->free,
                p->free + p->used + p->evictable + p->protected_ == p->total - p->reserved);
}

bool cmd_pool(struct cmd_call *c)
{
    struct app *a = c->app;
    struct pool_view pool[N_POOLS];
    if (backend_has(a->backend, VIEW_GAUGES) && !(c->to.json && !cmd_needs(c, VIEW_POOLS))) {
        server_pools(c, 0);
        return true;
    }
    if (!cmd_needs(c, VIEW_POOLS) || !app_pools(a, pool, c->e))
        return false;
    const char *wrong = NULL;
    print_open(&c->to, NULL, '[');
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &pool[i];
        if (p->exists && p->free + p->used + p->evictable + p->protected_ != p->total - p->reserved)
            wrong = pools[i];
        show_pool(p, pools[i], &c->to);
    }
    print_close(&c->to, ']');
    if (!c->to.json)
        view_pool(pool, view_width(a), c->to.out);
    return !wrong ||
           err_set(c->e, ERR_INVARIANT, "the ledger of the %s pool does not sum up", wrong);
}

bool cmd_memory(struct cmd_call *c)
{
    const struct backend_info *i = backend_info(c->app->backend);
    if (!need_sum(&i->need))
        return err_set(c->e, ERR_NEGATIVE, "/memory: %s", i->server_url
                       ? "the server does not report what its weights and buffers take"
                       : "nothing is computed here, so nothing is held");
    print_open(&c->to, NULL, '{');
    print_add(&c->to, ST_DIM, "%s{device}, a context of %d{context} tokens", i->device, i->context);
    print_end(&c->to);
    report_need(&c->to, &i->need);
    print_close(&c->to, '}');
    return true;
}

/* ---- /pages, /page, /map --------------------------------------------------------------------- */

static void refs_json(const struct page_table *t, int pool, struct buf *json)
{
    int total = t->pool[pool].total;
    jput_open(json, '{');
    jput_kint(json, "total", total);
    jput_kopen(json, "refs", '[');
    for (int i = 0; i < total; i++)
        jput_int(json, t->refs[pool][i]);
    jput_close(json, ']');
    jput_kopen(json, "mine", '[');
    for (int i = 0; i < total; i++)
        if (t->mine[pool][i])
            jput_int(json, i);
    jput_close(json, ']');
    jput_close(json, '}');
}

static void map_json(const struct page_table *t, const struct backend_info *info, struct buf *json)
{
    jput_open(json, '{');
    jput_fields(json, "%d{page_size}%d{committed}%d{window}%d{window_lo}%s{shared_kv}",
                t->pool[POOL_FULL].page_size, t->committed, t->window, t->window_lo,
                info->shared_kv);
    jput_kopen(json, "pages", '[');
    for (int c = 0; c < t->n_page; c++) {
        const struct page_view *p = &t->page[c];
        jput_record(json, "%d{logical}%d{full:0}%d{swa:0}%d{draft:0}%d{full_refs}%d{swa_refs}"
                    "%d{draft_refs}", c, p->full, p->swa, p->draft, p->full_refs, p->swa_refs,
                    p->draft_refs);
    }
    jput_close(json, ']');
    jput_close(json, '}');
}

bool cmd_pages(struct cmd_call *c)
{
    int pool = -1;
    if (c->argc > 1)
        return arg_expected(c, "takes at most one pool: full, swa or draft");
    if (c->argc == 1 && (pool = arg_choice(c->argv[0], "the pool", pools, N_POOLS, c->e)) < 0)
        return false;
    if (!cmd_needs(c, VIEW_PAGES))
        return false;
    struct page_table t;
    if (!app_table(c->app, &t, c->e))
        return false;
    const struct backend_info *info = backend_info(c->app->backend);
    if (!c->to.json)
        view_pages(&t, pool < 0 ? NULL : pools[pool], view_width(c->app), c->to.out);
    else if (pool < 0)
        map_json(&t, info, c->to.json);
    else
        refs_json(&t, pool, c->to.json);
    if (info->shared_kv)
        print_note(&c->to, ST_DIM, "no slots of their own: %s", info->shared_kv);
    page_table_free(&t);
    return true;
}

/* Which logical page of the session the page is; -1: none. */
static int column_of(const struct page_table *t, int pool, int page)
{
    for (int c = 0; c < t->n_page; c++)
        if (page > 0 && page_in(&t->page[c], (enum pool_id)pool) == page)
            return c;
    return -1;
}

static void show_change(const struct page_change *c, int size, const struct printer *to)
{
    static const char *const word[] = {
        [PAGE_TAKE] = "taken from the free list",
        [PAGE_SHARE] = "shared with one more holder",
        [PAGE_DROP] = "given back by one holder",
        [PAGE_FREE] = "free again",
        [PAGE_WINDOW] = "released: it left the window",
        [PAGE_RESET] = "the pool was emptied",
        [PAGE_HOLD] = "held where this session was forked",
    };
    const struct page_event *p = &c->event;
    int first = (int)p->column * size;
    char at[24] = "now";
    if (c->turn)
        snprintf(at, sizeof at, "%d.%d", c->turn, c->step);
    print_open(to, NULL, '{');
    print_add(to, ST_DIM, "\f%d{turn:-1}%d{step:-1}\f%8s  ", c->turn > 0 ? c->turn : -1,
              c->turn > 0 ? c->step : -1, at);
    print_add(to, ST_KEY, "%-7s{op}", page_op_name((enum page_op)p->op));
    print_add(to, ST_TEXT, "%s", p->op < sizeof word / sizeof *word ? word[p->op] : "");
    if (p->column >= 0)
        print_add(to, ST_TEXT, ", logical page %d{logical} (positions %d-%d)", (int)p->column,
                  first, first + size - 1);
    else
        print_add(to, ST_TEXT, "\f%d{logical}", (int)p->column);
    print_add(to, ST_DIM, "; %d{refs} reference%s", (int)p->refs, plural((int)p->refs));
    print_end(to);
    print_close(to, '}');
}

static void show_page(const struct page_table *t, int pool, int page,
                      const struct page_change *change, int n, const struct printer *to)
{
    int size = t->pool[pool].page_size, refs = t->refs[pool][page],
        column = column_of(t, pool, page);
    print_add(to, ST_HEAD, "PAGE %d of the %s pool", page, pools[pool]);
    print_note(to, ST_TEXT, "  slots %d-%d, %d reference%s", page * size, (page + 1) * size - 1,
               refs, plural(refs));
    if (page == 0)
        print_note(to, ST_TEXT, "the guard page: filled with NaN, never written, never live");
    else if (column >= 0)
        print_note(to, ST_TEXT, "this session's logical page %d: positions %d-%d", column,
                   column * size, (column + 1) * size - 1);
    else
        print_note(to, ST_TEXT, refs ? "held outside this session's table"
                                     : "free: nothing is stored in it");
    print_open(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{pool}%d{page}%d{refs}%d{logical:-1}", pools[pool], page, refs,
              column);
    print_open(to, "events", '[');
    for (int i = 0; i < n; i++)
        show_change(&change[i], size, to);
    print_close(to, ']');
    print_close(to, '}');
    if (n == 0)
        print_note(to, ST_DIM,
                   "no events: it was never handed out, or too long ago to be remembered");
}

bool cmd_page(struct cmd_call *c)
{
    enum { MAX_EVENTS = 64 };
    struct page_change change[MAX_EVENTS];
    int pool = POOL_FULL;
    long page = 0;
    if (c->argc < 1 || c->argc > 2)
        return arg_expected(c, "takes a page number and a pool (full if none is named)");
    if (c->argc == 2 && (pool = arg_choice(c->argv[1], "the pool", pools, N_POOLS, c->e)) < 0)
        return false;
    if (!cmd_needs(c, VIEW_PAGES))
        return false;
    struct page_table t;
    if (!app_table(c->app, &t, c->e))
        return false;
    bool ok =
        t.pool[pool].exists || err_set(c->e, ERR_USAGE, "this model has no %s pool", pools[pool]);
    ok = ok && arg_int(c->argv[0], "the page", 0, t.pool[pool].total - 1, &page, c->e);
    if (ok) {
        int n = app_page_changes(c->app, (enum pool_id)pool, (int)page, change, MAX_EVENTS);
        show_page(&t, pool, (int)page, change, n, &c->to);
    }
    page_table_free(&t);
    return ok;
}

/* "full   slot 767   page 47, offset 15", or why there is none */
static void slot_line(const char *name, const struct pool_view *p, int slot, const char *none,
                      struct sheet *out)
{
    if (!p->exists)
        return;
    sheet_printf(out, ST_LABEL, "%-6s ", name);
    if (slot > 0)
        sheet_printf(out, ST_TEXT, "slot %d = page %d, offset %d", slot, slot / p->page_size,
                     slot % p->page_size);
    else
        sheet_add(out, ST_DIM, none);
    sheet_line(out);
}

static void map_text(struct app *a, const struct page_table *t, const struct pos_view *p,
                     struct sheet *out)
{
    int size = max_int(1, t->pool[POOL_FULL].page_size), w = backend_info(a->backend)->window;
    size_t n;
    const char *token = backend_token(a->backend, p->token, &n);
    sheet_printf(out, ST_HEAD, "POSITION %d", p->position);
    sheet_printf(out, ST_TEXT, "  token %d ", (int)p->token);
    sheet_quote(out, ST_TEXT, token, n, 40);
    sheet_printf(out, ST_TEXT, "  logical page %d, offset %d%s", p->position / size,
                 p->position % size, p->committed ? "" : "  (not committed yet)");
    sheet_line(out);
    slot_line("full", &t->pool[POOL_FULL], p->full_slot, "nothing written yet", out);
    slot_line("swa", &t->pool[POOL_SWA], p->swa_slot,
              p->committed ? "released: behind the window" : "nothing written yet",
              out);
    slot_line("draft", &t->pool[POOL_DRAFT], p->draft_slot, "nothing written yet", out);
    if (w > 0) {
        say_line(out, ST_TEXT, "window W = %d: a query here sees the keys %d-%d in sliding layers,",
                 w, max_int(0, p->position - w + 1), p->position);
        say_line(out, ST_TEXT,
                 "and queries up to %d see this key; it is %s the next query's window",
                 p->position + w - 1, p->in_window ? "inside" : "outside");
    }
}

bool cmd_map(struct cmd_call *c)
{
    long pos;
    if (c->argc != 1)
        return arg_expected(c, "takes a position");
    if (!cmd_needs(c, VIEW_PAGES))
        return false;
    struct page_table t;
    struct pos_view p = {0};
    if (!app_table(c->app, &t, c->e))
        return false;
    bool ok =
        t.length > 0 || err_set(c->e, ERR_USAGE, "the context is empty; send a message first");
    ok = ok && arg_int(c->argv[0], "the position", 0, t.length - 1, &pos, c->e) &&
         app_position(c->app, (int)pos, &p, c->e);
    if (ok && c->to.json)
        jput_record(c->to.json, "%d{position}%d{token}%d{full_slot:0}%d{swa_slot:0}%d{draft_slot:0}"
                    "%d{page_size}%d{in_window?}%d{committed?}", p.position, p.token, p.full_slot,
                    p.swa_slot, p.draft_slot, t.pool[POOL_FULL].page_size, p.in_window,
                    p.committed);
    else if (ok)
        map_text(c->app, &t, &p, c->to.out);
    page_table_free(&t);
    return ok;
}

/* ---- /plan, /check, /sql --------------------------------------------------------------------- */

bool cmd_plan(struct cmd_call *c)
{
    if (c->argc > 1)
        return arg_expected(c, "takes at most one mode");
    if (!cmd_needs(c, VIEW_PLAN))
        return false;
    struct buf text = {0};
    bool ok = c->app->backend->plan->text(c->app->backend, c->argc ? c->argv[0] : "",
                                          c->to.json != NULL, &text, c->e);
    if (ok) {
        say_now(c);
        print_ready(&c->to, ST_TEXT, text.p ? text.p : "");
    }
    buf_free(&text);
    return ok;
}

static void check_json(const struct check_report *r, bool ok, struct buf *json)
{
    static const char *const state[] = {"holds", "violated", "of plans"};
    jput_open(json, '{');
    jput_fields(json, "%d{ok?}%s{wrong}%d{sequences}%s{level}%lu{plans_checked}"
                "%lu{plans_unchecked}%lu{violations}", ok, r->fault[0] ? r->fault : NULL, r->n_seq,
                check_level_name(r->level), r->counts.checks, r->counts.unchecked,
                r->counts.violations);
    jput_key(json, "latest");
    if (r->counts.violation.text[0]) {
        jput_open(json, '{');
        jput_fields(json, "%s{session}%d{turn}%d{step}%s{text}", r->counts.violation.session,
                    r->counts.violation.turn, r->counts.violation.step, r->counts.violation.text);
        fault_json(&r->counts.violation.at, json);
        jput_close(json, '}');
    } else {
        jput_null(json);
    }
    jput_kopen(json, "rules", '[');
    for (int i = 0; i < r->n_rule; i++)
        jput_record(json, "%s{rule}%s{state}", r->rule[i].text, state[r->rule[i].state]);
    jput_close(json, ']');
    jput_close(json, '}');
}

/* "step 3.2" of a violation, and its session when that is another one. */
static void violation_when(const struct violated *v, const char *session, struct sheet *out)
{
    if (v->step)
        sheet_printf(out, ST_TEXT, "step %d.%d", v->turn, v->step);
    else
        sheet_printf(out, ST_TEXT, "after turn %d", v->turn);
    if (strcmp(v->session, session) != 0)
        sheet_printf(out, ST_TEXT, " of session %s", v->session);
}

static void check_text(const struct app *a, const struct check_report *r, struct sheet *out)
{
    sheet_add(out, ST_HEAD, "CHECK");
    sheet_printf(out, ST_TEXT, "  now: every pool and %d sequence%s; before launch: each plan",
                 r->n_seq, r->n_seq == 1 ? "" : "s");
    sheet_line(out);
    for (int i = 0; i < r->n_rule; i++) {
        enum rule_state s = r->rule[i].state;
        bool off = s == RULE_OF_PLANS && r->level == CHECK_OFF;
        sheet_add(out, s == RULE_VIOLATED ? ST_BAD : off ? ST_WARN : s == RULE_HOLDS ? ST_GOOD
                  : ST_DIM,
                  s == RULE_VIOLATED ? "FAIL" : off ? "off " : s == RULE_HOLDS ? "ok  " : "plan");
        sheet_printf(out, ST_TEXT, "  %s", r->rule[i].text);
        sheet_line(out);
    }
    if (r->fault[0])
        say_line(out, ST_BAD, "wrong now: %s", r->fault);
    else
        say_line(out, ST_GOOD, "now: the pools and their sequences keep every rule");
    sheet_printf(out, ST_LABEL, "plans: ");
    add_checks(&r->counts, out);
    sheet_line(out);
    if (r->level == CHECK_OFF)
        say_line(out, ST_WARN, "the checker is off: plans are launched unchecked; /set check on");
    if (r->counts.violation.text[0]) {
        sheet_add(out, ST_LABEL, "old: ");
        violation_when(&r->counts.violation, a->session, out);
        sheet_printf(out, ST_TEXT, ": %s", r->counts.violation.text);
        sheet_line(out);
    }
}

bool cmd_check(struct cmd_call *c)
{
    struct check_report r;
    if (!cmd_needs(c, VIEW_CHECK))
        return false;
    bool ok = c->app->backend->check->sweep(c->app->backend, &r, c->e);
    say_now(c);
    if (c->to.json)
        check_json(&r, ok, c->to.json);
    else
        check_text(c->app, &r, c->to.out);
    return ok;
}

bool cmd_sql(struct cmd_call *c)
{
    enum { MAX_ROWS = 200 };
    if (c->argc == 0)
        return arg_expected(c, "takes a SELECT statement");
    struct buf text = {0};
    bool ok = app_hdb(c->app, c->e) && sql_run(c->rest, c->to.json != NULL, MAX_ROWS, &text, c->e);
    if (ok)
        print_ready(&c->to, ST_TEXT, text.n ? text.p : c->to.json ? "[]" : "");
    buf_free(&text);
    return ok;
}
