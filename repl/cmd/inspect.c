/* inspect.c - the commands that show internal state: pools, pages, trees, plans, times, the log's
 * SQL.
 *
 * They read copies (views of backend.h, rows of the log), so they may run while a reply is
 * generated. */

#include "repl/cmd/cmd.h"
#include "repl/app/gauges.h"
#include "repl/app/report.h"
#include "repl/app/served.h"
#include "repl/cmd/sql.h"
#include "repl/cmd/views.h"

static const char *const pools[N_POOLS] = {"full", "swa", "draft"};

/* ---- /stats, /pool --------------------------------------------------------------------------- */

bool cmd_stats(struct cmd_call *c)
{
    struct app *a = c->app;
    struct status s;
    app_look(a, &s);
    print_open(&c->to, NULL, '{');
    view_stats(&s, backend_info(a->backend), &c->to);
    if (s.has[VIEW_SERVED]) {
        FREED(served_replies_free) struct served_replies r = {0};
        served_replies_read(&r, app_served(a));
        served_latest(&r, &c->to);
    } else {
        say_drafters(a, &c->to);
    }
    print_close(&c->to, '}');
    print_add(&c->to, ST_LABEL, "%-8s  ", "status");
    app_status(a, &s, 0, c->to.out);
    return true;
}

/* /pool and /gauges with a server; most: readings listed in JSON, 0: only the pools. */
static void server_pools(struct cmd_call *c, int most)
{
    struct backend *b = c->app->backend;
    FREED(gauge_series_free) struct gauge_series s = {0};
    struct pool_view pool[N_POOLS] = {0};
    gauge_series_read(&s, b);
    if (backend_has(b, VIEW_POOLS))
        b->pools->ledger(b, pool);
    say_now(c);
    print_note(&c->to, ST_HEAD, "%s", most ? "GAUGES" : "POOL");
    if (!c->to.json || most == 0)
        gauge_pools(&s, pool, &c->to);
    if (!c->to.json || most > 0)
        view_gauges(&s, most, view_width(c->app), &c->to);
}

/* /gauges of computed steps: pools, acceptance and speed step by step. */
static bool local_gauges(struct cmd_call *c, int most)
{
    FREED(gauge_series_free) struct gauge_series s = {0};
    struct pool_view pool[N_POOLS];
    if (!app_pools(c->app, pool, c->e))
        return false;
    gauge_series_steps(&s, c->app, true);
    print_note(&c->to, ST_HEAD, "GAUGES");
    if (!c->to.json)
        gauge_pools(&s, pool, &c->to);
    view_gauges(&s, most, view_width(c->app), &c->to);
    return true;
}

bool cmd_gauges(struct cmd_call *c)
{
    long most = 60;
    if (!arg_number(c, "the number of readings", 1, GAUGES_KEPT, &most))
        return false;
    struct backend *b = c->app->backend;
    if (!backend_has(b, VIEW_GAUGES) && backend_has(b, VIEW_STEPS) && backend_has(b, VIEW_POOLS))
        return local_gauges(c, (int)most);
    if (!cmd_needs(c, VIEW_GAUGES))
        return false;
    server_pools(c, (int)most);
    return true;
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
    view_pool(pool, view_width(a), &c->to);
    for (int i = 0; i < N_POOLS; i++)
        if (pool[i].exists && !pool_sums(&pool[i]))
            wrong = pools[i];
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
    PRINT_IN(&c->to, NULL, '{');
    print_facts(&c->to, ST_DIM, "%s{device}, a context of %d{context} tokens", i->device,
                i->context);
    report_need(&c->to, &i->need);
    return true;
}

/* ---- /pages, /page, /map --------------------------------------------------------------------- */

static void refs_json(const struct page_table *t, int pool, struct buf *json)
{
    int total = t->pool[pool].total;
    JPUT_IN(json, '{');
    jput_kint(json, "total", total);
    jput_kopen(json, "refs", '[');
    for (int i = 0; i < total; i++)
        jput_int(json, t->refs[pool][i]);
    jput_close(json, ']');
    JPUT_KIN(json, "mine", '[');
    for (int i = 0; i < total; i++)
        if (t->mine[pool][i])
            jput_int(json, i);
}

static void map_json(const struct page_table *t, const struct backend_info *info, struct buf *json)
{
    JPUT_IN(json, '{');
    jput_fields(json, "%d{page_size}%d{committed}%d{window}%d{window_lo}%s{shared_kv}",
                t->pool[POOL_FULL].page_size, t->committed, t->window, t->window_lo,
                info->shared_kv);
    JPUT_KIN(json, "pages", '[');
    for (int c = 0; c < t->n_page; c++) {
        const struct page_view *p = &t->page[c];
        jput_record(json, "%d{logical}%d{full:0}%d{swa:0}%d{draft:0}%d{full_refs}%d{swa_refs}"
                    "%d{draft_refs}", c, p->full, p->swa, p->draft, p->full_refs, p->swa_refs,
                    p->draft_refs);
    }
}

bool cmd_pages(struct cmd_call *c)
{
    int pool = -1;
    if (c->argc == 1 && (pool = arg_choice(c->argv[0], "the pool", pools, N_POOLS, c->e)) < 0)
        return false;
    FREED(page_table_free) struct page_table t = {0};
    if (!cmd_needs(c, VIEW_PAGES) || !app_table(c->app, &t, c->e))
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
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_DIM, "\f%d{turn:-1}%d{step:-1}\f%8s  ", c->turn > 0 ? c->turn : -1,
              c->turn > 0 ? c->step : -1, at);
    print_add(to, ST_KEY, "%-7s{op}", page_op_name((enum page_op)p->op));
    print_add(to, ST_TEXT, "%s", p->op < LEN(word) ? word[p->op] : "");
    if (p->column >= 0)
        print_add(to, ST_TEXT, ", logical page %d{logical} (positions %d-%d)", (int)p->column,
                  first, first + size - 1);
    else
        print_add(to, ST_TEXT, "\f%d{logical}", (int)p->column);
    print_facts(to, ST_DIM, "; %d{refs} reference%s", (int)p->refs, plural((int)p->refs));
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
    if (c->argc == 2 && (pool = arg_choice(c->argv[1], "the pool", pools, N_POOLS, c->e)) < 0)
        return false;
    FREED(page_table_free) struct page_table t = {0};
    if (!cmd_needs(c, VIEW_PAGES) || !app_table(c->app, &t, c->e))
        return false;
    bool ok =
        t.pool[pool].exists || err_set(c->e, ERR_USAGE, "this model has no %s pool", pools[pool]);
    ok = ok && arg_int(c->argv[0], "the page", 0, t.pool[pool].total - 1, &page, c->e);
    if (ok) {
        int n = app_page_changes(c->app, (enum pool_id)pool, (int)page, change, MAX_EVENTS);
        show_page(&t, pool, (int)page, change, n, &c->to);
    }
    return ok;
}

/* "full   slot 767   page 47, offset 15", or why there is none */
static void slot_line(const char *name, const struct pool_view *p, int slot, const char *none,
                      const struct printer *to)
{
    if (p->exists && slot > 0)
        print_note(to, ST_LABEL, "%-6s \vslot %d = page %d, offset %d", name, slot,
                   slot / p->page_size, slot % p->page_size);
    else if (p->exists) {
        print_add(to, ST_LABEL, "%-6s ", name);
        print_note(to, ST_DIM, "%s", none);
    }
}

static void show_position(struct app *a, const struct page_table *t, const struct pos_view *p,
                          const struct printer *to)
{
    int size = max_int(1, t->pool[POOL_FULL].page_size), w = backend_info(a->backend)->window;
    print_open(to, NULL, '{');
    print_add(to, ST_HEAD, "POSITION %d{position}\v  token %d{token} \f%d{full_slot:0}"
              "%d{swa_slot:0}%d{draft_slot:0}%d{page_size}%d{in_window?}%d{committed?}",
              p->position, p->token,
              p->full_slot, p->swa_slot, p->draft_slot, t->pool[POOL_FULL].page_size, p->in_window,
              p->committed);
    print_close(to, '}');
    note_token(to, ST_TEXT, a->backend, p->token, 40);
    print_note(to, ST_TEXT, "  logical page %d, offset %d%s", p->position / size,
               p->position % size, p->committed ? "" : "  (not committed yet)");
    slot_line("full", &t->pool[POOL_FULL], p->full_slot, "nothing written yet", to);
    slot_line("swa", &t->pool[POOL_SWA], p->swa_slot,
              p->committed ? "released: behind the window" : "nothing written yet", to);
    slot_line("draft", &t->pool[POOL_DRAFT], p->draft_slot, "nothing written yet", to);
    if (w == 0)
        return;
    print_note(to, ST_TEXT, "window W = %d: a query here sees the keys %d-%d in sliding layers, "
               "and queries up to %d see this key; it is %s the next query's window", w,
               max_int(0, p->position - w + 1), p->position, p->position + w - 1,
               p->in_window ? "inside" : "outside");
}

bool cmd_map(struct cmd_call *c)
{
    long pos;
    FREED(page_table_free) struct page_table t = {0};
    struct pos_view p = {0};
    if (!cmd_needs(c, VIEW_PAGES) || !app_table(c->app, &t, c->e))
        return false;
    bool ok =
        t.length > 0 || err_set(c->e, ERR_USAGE, "the context is empty: send a message first");
    ok = ok && arg_int(c->argv[0], "the position", 0, t.length - 1, &pos, c->e) &&
         app_position(c->app, (int)pos, &p, c->e);
    if (ok)
        show_position(c->app, &t, &p, &c->to);
    return ok;
}

/* ---- /plan, /check, /sql --------------------------------------------------------------------- */

bool cmd_plan(struct cmd_call *c)
{
    if (!cmd_needs(c, VIEW_PLAN))
        return false;
    FREED(buf_free) struct buf text = {0};
    bool ok = c->app->backend->plan->text(c->app->backend, c->argc ? c->argv[0] : "",
                                          c->to.json != NULL, &text, c->e);
    if (ok) {
        say_now(c);
        print_ready(&c->to, buf_text(&text));
    }
    return ok;
}

static void show_rule(const struct check_report *r, int i, const struct printer *to)
{
    static const char *const name[] = {"holds", "violated", "of plans"};
    enum rule_state s = r->rule[i].state;
    bool off = s == RULE_OF_PLANS && r->level == CHECK_OFF;
    PRINT_IN(to, NULL, '{');
    print_add(to, s == RULE_VIOLATED ? ST_BAD : off ? ST_WARN : s == RULE_HOLDS ? ST_GOOD : ST_DIM,
              "%s\v  \f%s{state}", s == RULE_VIOLATED ? "FAIL" : off ? "off "
              : s == RULE_HOLDS ? "ok  " : "plan", name[s]);
    print_facts(to, ST_TEXT, "%s{rule}", r->rule[i].text);
}

/* The latest violation: "step 3.2: ...", with its session when that is another one. */
static void show_violated(const struct violated *v, const char *session, const struct printer *to)
{
    if (!v->text[0]) {
        print_none(to, "latest");
        return;
    }
    PRINT_IN(to, "latest", '{');
    print_add(to, ST_LABEL, v->step ? "old: \v\f%s{session}\fstep %d{turn}.%d{step}"
                                    : "old: \v\f%s{session}\fafter turn %d{turn}\f%d{step}",
              v->session, v->turn, v->step);
    if (strcmp(v->session, session) != 0)
        print_add(to, ST_TEXT, " of session %s", v->session);
    print_facts(to, ST_TEXT, ": %s{text}", v->text);
    if (to->json)
        fault_json(&v->at, to->json);
}

static void show_check(const struct app *a, const struct check_report *r, bool ok,
                       const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_facts(to, ST_HEAD, "CHECK\v  now: every pool and %d{sequences} sequence%s; "
                "before launch: each plan\f%d{ok?}%s{level}", r->n_seq, plural(r->n_seq), ok,
                check_level_name(r->level));
    print_open(to, "rules", '[');
    for (int i = 0; i < r->n_rule; i++)
        show_rule(r, i, to);
    print_close(to, ']');
    print_facts(to, r->fault[0] ? ST_BAD : ST_GOOD, r->fault[0] ? "wrong now: %s{wrong}"
                    : "now: the pools and their sequences keep every rule\f%s{wrong}",
            r->fault[0] ? r->fault : NULL);
    print_add(to, ST_LABEL, "plans: \f%lu{plans_checked}%lu{plans_unchecked}%lu{violations}",
              r->counts.checks, r->counts.unchecked, r->counts.violations);
    add_checks(&r->counts, to);
    print_end(to);
    if (r->level == CHECK_OFF)
        print_note(to, ST_WARN, "the checker is off: plans are launched unchecked; /set check on");
    show_violated(&r->counts.violation, a->session, to);
}

bool cmd_check(struct cmd_call *c)
{
    struct check_report r;
    if (!cmd_needs(c, VIEW_CHECK))
        return false;
    bool ok = c->app->backend->check->sweep(c->app->backend, &r, c->e);
    say_now(c);
    show_check(c->app, &r, ok, &c->to);
    return ok;
}

bool cmd_sql(struct cmd_call *c)
{
    enum { MAX_ROWS = 200 };
    FREED(buf_free) struct buf text = {0};
    bool ok = app_hdb(c->app, c->e) && sql_run(c->rest, c->to.json != NULL, MAX_ROWS, &text, c->e);
    if (ok)
        print_ready(&c->to, text.n ? text.p : c->to.json ? "[]" : "");
    return ok;
}
