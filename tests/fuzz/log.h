/* log.h - a session log that the bundled model wrote, for the targets that damage it, and
 * everything that reads a log or a pack.
 *
 * An input is a list of edits of six bytes: what, table, column, row, value, more. Cells are edited
 * by SQL, so that a row stays a row; bytes of a file (fuzz_database.c, fuzz_pack.c) are edited in
 * place. */
#pragma once

#include "tests/fuzz/fuzz.h"
#include "tests/serve_kit.h"

#include "repl/recorded/recorded.h"
#include "repl/repl.h"

#include <limits.h>
#include <sqlite3.h>

/* ---- the log --------------------------------------------------------------------------------- */

static const char log_id[] = "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    log_child[] = "01ARZ3NDEKTSV4RRFFQ69G5FAW",
                  log_served[] = "01ARZ3NDEKTSV4RRFFQ69G5FAX";

static const char *log_text(void *arg, int32_t id, size_t *n)
{
    return backend_token(arg, id, n);
}

static void log_ask(struct backend *g, struct brought *b, enum request_kind kind,
                    const char *session, const char *text)
{
    struct err e;
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL,
                         .next_turn = kind == RQ_FORK ? 4 : 1};
    memcpy(rq.session, session ? session : "", session ? SESSION_ID : 1);
    must(backend_submit(g, &rq, &e), &e);
    brought_clear(b);
    settle(g, b);
}

static struct event log_event(enum event_kind kind, int turn, const char *text)
{
    struct event ev = {.kind = kind, .turn = turn, .ns = clock_ns()};
    memcpy(ev.session, log_served, SESSION_ID);
    buf_str(&ev.text, text);
    return ev;
}

static void log_post(struct history *h, struct event ev)
{
    CHECK(evq_put(history_queue(h), &ev));
}

/* A session as of a server, with all that one may report of a reply. */
static void log_write_served(struct history *h)
{
    enum { STEPS = 3 };
    struct served *s = served_new();
    struct event end = log_event(EV_TURN_END, 1, "An owl is a bird.");
    log_post(h, log_event(EV_SESSION, 0, ""));
    log_post(h, log_event(EV_OP, 0, "temperature=0\nseed=1\n")); /* OP_OPEN */
    struct event begin = log_event(EV_TURN_BEGIN, 1, "What is an owl?");
    ids_cat(&begin.tokens, (int32_t[]){5, 6, 7}, begin.n_tokens = 3);
    log_post(h, begin);
    for (int i = 1; i <= STEPS; i++) {
        struct event step = log_event(EV_STEP, 1, "");
        step.step = i;
        step.rec = (struct step_rec){.kind = STEP_SPEC, .pos0 = 3 + i, .rows = 3, .drafted = 2,
                                     .accepted = 1, .margin = 0.5f,
                                     .source = i % 2 ? STEP_REPORTED : STEP_PIECE,
                                     .us_arrived = 1000u * (unsigned)i};
        ids_cat(&step.tokens, (int32_t[]){10 * i, 10 * i + 1}, 2);
        ids_cat(&end.tokens, step.tokens.v, 2);
        step.tops = xcalloc(1, sizeof *step.tops);
        for (int k = 0; k < 2; k++) {
            tops_add(step.tops, k, 10 * i + k, -0.5f, " owl", 4);
            tops_add(step.tops, k, -1, -1.5f, "\xFF", 1);
        }
        log_post(h, step);
    }
    s->prompt = 3;
    s->generated = s->cached = 2;
    s->ms_queue = s->ms_first = s->ms_before = s->ms_after = 1.5;
    s->reply_ids = s->prompt_ids = true;
    snprintf(s->finish, sizeof s->finish, "stop");
    s->metric = xcalloc(1, sizeof *s->metric);
    s->metric[s->n_metric++] = (struct served_metric){xstrdup("vllm:num_requests_running"),
                                                      xstrdup("engine=\"0\""), 1, 2};
    end.served = s;
    end.n_tokens = end.tokens.n;
    end.n_steps = STEPS;
    end.n_drafted = 2 * STEPS;
    end.n_accepted = STEPS;
    log_post(h, end);
}

/* Writes a log with three sessions, one of them forked, one of a server, to a new file. */
static void log_write(const char *path)
{
    struct err e;
    struct brought b = {0};
    struct engine_opts o = serve_opts();
    struct history_about about = {.version = "0", .device = "cpu", .flags = "",
                                  .model_dir = "/nowhere", .model_sha = "a",
                                  .draft_dir = "", .draft_sha = "", .tokenizer_sha = "t",
                                  .config = "page_size=4\ncontext=256\n"};
    struct history *h = history_open(path, LOG_TREE, &about, &e);
    must(h != NULL, &e);
    o.page_size = 4;
    o.context = 256;
    o.settings.max_tokens = 8;
    o.log = history_queue(h);
    struct backend *g = serve_open(&o);
    struct history_texts texts = {backend_info(g)->vocab, log_text, g};
    history_describe(h, &about, &texts);
    log_ask(g, &b, RQ_NEW, log_id, NULL);
    log_ask(g, &b, RQ_SYSTEM, NULL, "Answer in one sentence.");
    log_ask(g, &b, RQ_SAY, NULL, "count to nine");
    log_ask(g, &b, RQ_SAY, NULL, "What is an owl?");
    log_ask(g, &b, RQ_REGEN, NULL, NULL);
    log_ask(g, &b, RQ_UNDO, NULL, NULL);
    log_ask(g, &b, RQ_SET, NULL, "spec=off");
    log_ask(g, &b, RQ_FORK, log_child, NULL);
    log_ask(g, &b, RQ_SAY, NULL, "Hello!");
    brought_free(&b);
    backend_close(g);
    about.server = "vLLM";
    about.server_version = "0.26.0";
    about.server_url = "http://host:8000";
    about.server_facts = "max_model_len=1024\n";
    history_describe(h, &about, NULL);
    log_write_served(h);
    history_close(h);
}

/* ---- SQLite's memory ------------------------------------------------------------------------- */

/* SQLite allocates some ten thousand times for an input, and an address sanitizer needs most of the
 * time for that. SQLite itself is not what is tested, so it gets blocks of powers of two that are
 * kept. */
static void *log_kept[40];

static int log_class(int n)
{
    int c = 5;
    while (n + 16 > 1 << c)
        c++;
    return c;
}

static void *log_malloc(int n)
{
    int c = log_class(n);
    void **p = log_kept[c];
    if (p)
        log_kept[c] = *p;
    else if (!(p = malloc((size_t)1 << c)))
        return NULL;
    *(int64_t *)p = c;
    return (char *)p + 16;
}

static int log_size(void *p)
{
    return p ? (1 << *(int64_t *)((char *)p - 16)) - 16 : 0;
}

static void log_free(void *p)
{
    void **block = (void **)((char *)p - 16);
    int64_t c = *(int64_t *)block;
    *block = log_kept[c];
    log_kept[c] = block;
}

static void *log_realloc(void *p, int n)
{
    int old = log_size(p);
    if (n <= old)
        return p;
    void *q = log_malloc(n);
    if (q) {
        memcpy(q, p, (size_t)old);
        log_free(p);
    }
    return q;
}

static int log_round(int n) { return (1 << log_class(n)) - 16; }
static int log_start(void *arg) { return (void)arg, SQLITE_OK; }
static void log_end(void *arg) { (void)arg; }

KIT void log_memory(void)
{
    static const sqlite3_mem_methods m = {log_malloc, log_free, log_realloc, log_size, log_round,
                                          log_start, log_end, NULL};
    if (sqlite3_shutdown() == SQLITE_OK)
        sqlite3_config(SQLITE_CONFIG_MALLOC, &m);
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

/* ---- edits ----------------------------------------------------------------------------------- */

enum { LOG_TABLES = 40, LOG_COLUMNS = 40 };

static struct log_base {
    sqlite3 *h;
    struct log_table {
        char name[40], key[80];
        int n_column, n_row;
        char column[LOG_COLUMNS][32];
        sqlite3_stmt *set[LOG_COLUMNS], *get[LOG_COLUMNS];
    } table[LOG_TABLES];
    int n_table;
} log_base;

static int log_number(sqlite3 *h, const char *sql)
{
    sqlite3_stmt *st = NULL;
    int v = -1;
    if (sqlite3_prepare_v2(h, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
        v = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return v;
}

/* Columns and key of a table; key: what names a row. */
static void log_columns(struct log_table *t)
{
    sqlite3_stmt *st;
    char *sql = sqlite3_mprintf("SELECT name, pk FROM pragma_table_info(%Q)", t->name);
    bool plain = false;
    CHECK(sqlite3_prepare_v2(log_base.h, sql, -1, &st, NULL) == SQLITE_OK);
    sqlite3_free(sql);
    struct buf key = {0};
    while (sqlite3_step(st) == SQLITE_ROW && t->n_column < LOG_COLUMNS) {
        const char *name = (const char *)sqlite3_column_text(st, 0);
        snprintf(t->column[t->n_column++], sizeof t->column[0], "%s", name);
        if (sqlite3_column_int(st, 1))
            buf_printf(&key, "%s\"%s\"", key.n ? "," : "", name);
    }
    sqlite3_finalize(st);
    sql = sqlite3_mprintf("SELECT rowid FROM \"%w\" LIMIT 1", t->name);
    plain = sqlite3_prepare_v2(log_base.h, sql, -1, &st, NULL) == SQLITE_OK;
    sqlite3_finalize(st);
    sqlite3_free(sql);
    snprintf(t->key, sizeof t->key, "%s", plain || !key.n ? "rowid" : key.p);
    buf_free(&key);
    sql = sqlite3_mprintf("SELECT count(*) FROM \"%w\"", t->name);
    t->n_row = log_number(log_base.h, sql);
    sqlite3_free(sql);
}

static void log_tables(void)
{
    sqlite3_stmt *st;
    CHECK(sqlite3_prepare_v2(log_base.h, "SELECT name FROM sqlite_master WHERE type = 'table' AND "
                                         "rootpage > 0"
                             " AND name NOT LIKE 'sqlite_%' ORDER BY name", -1, &st, NULL) ==
                             SQLITE_OK);
    while (sqlite3_step(st) == SQLITE_ROW && log_base.n_table < LOG_TABLES) {
        struct log_table *t = &log_base.table[log_base.n_table];
        snprintf(t->name, sizeof t->name, "%s", (const char *)sqlite3_column_text(st, 0));
        log_columns(t);
        log_base.n_table += t->n_row > 0;
        if (t->n_row <= 0)
            *t = (struct log_table){0};
    }
    sqlite3_finalize(st);
}

/* Reads a database into memory, where every input edits it and takes the edits back. h: the
 * connection to use, or NULL. */
static void log_load(const char *path, sqlite3 *h)
{
    struct buf b;
    struct err e;
    must(buf_read_file(&b, path, 64 << 20, &e), &e);
    unsigned char *copy = sqlite3_malloc64(b.n);
    log_base.h = h;
    CHECK(copy && (h || sqlite3_open(":memory:", &log_base.h) == SQLITE_OK));
    memcpy(copy, b.p, b.n);
    CHECK(sqlite3_deserialize(log_base.h, "main", copy, (sqlite3_int64)b.n, (sqlite3_int64)b.n,
                              SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_RESIZEABLE) ==
                              SQLITE_OK);
    CHECK(sqlite3_exec(log_base.h, "PRAGMA ignore_check_constraints=ON; PRAGMA foreign_keys=OFF;"
                       "PRAGMA journal_mode=MEMORY", NULL, NULL, NULL) == SQLITE_OK);
    /* the search index is edited, too */
    sqlite3_db_config(log_base.h, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    buf_free(&b);
    log_tables();
    CHECK(log_base.n_table > 6);
}

static sqlite3_stmt *log_statement(struct log_table *t, int column, bool set)
{
    sqlite3_stmt **st = set ? &t->set[column] : &t->get[column];
    if (*st)
        return *st;
    char *sql = set ? sqlite3_mprintf("UPDATE \"%w\" SET \"%w\" = ?1 WHERE (%s) = (SELECT %s FROM "
                                      "\"%w\" LIMIT 1 OFFSET ?2)",
                                      t->name, t->column[column], t->key, t->key, t->name)
                    : sqlite3_mprintf("SELECT \"%w\" FROM \"%w\" LIMIT 1 OFFSET ?1",
                                      t->column[column], t->name);
    int rc = sqlite3_prepare_v2(log_base.h, sql, -1, st, NULL);
    if (rc != SQLITE_OK)
        die("%s: %s", sql, sqlite3_errmsg(log_base.h));
    sqlite3_free(sql);
    return *st;
}

static void log_bind(sqlite3_stmt *st, unsigned what, unsigned value, unsigned more,
                     const void *old, int n_old)
{
    static const int64_t odd[] = {0, -1, 1, 2, 127, 255, 65535, INT32_MAX, (int64_t)INT32_MAX + 1,
                                  INT32_MIN, INT64_MAX,
                                  INT64_MIN, 1 << 20, INT32_MAX / 2, INT32_MAX / 2 + 1, -2,
                                  1000000000000};
    static const char *const text[] = {"", "\xFF\xFE", "\x1B[31m", "a\nb", "temperature=1e999\n",
                                       "last", "page_size=0\ncontext=-1\n",
                                       "01ARZ3NDEKTSV4RRFFQ69G5FAV", "bug.24617=on\n",
                                       "9999999999999999999"};
    enum { N_ODD = sizeof odd / sizeof *odd, N_TEXT = sizeof text / sizeof *text };
    uint8_t *copy = xmalloc((size_t)n_old + 256);
    size_t n = (size_t)n_old, at = n ? ((size_t)more * 256 + value) % n : 0;
    if (n)
        memcpy(copy, old, n);
    switch (what % 10) {
    case 0: sqlite3_bind_null(st, 1); break;
    case 1: sqlite3_bind_int64(st, 1, odd[value % N_ODD]); break;
    case 2: sqlite3_bind_int64(st, 1, (int64_t)value * 256 + more); break;
    case 3: sqlite3_bind_double(st, 1, value & 1 ? 1e308 * (double)value
                                                 : -(double)more / 3); break;
    case 4: sqlite3_bind_text(st, 1, text[value % N_TEXT], -1, SQLITE_STATIC); break;
    case 5: /* shorter */
        sqlite3_bind_blob(st, 1, copy, (int)(n ? at : 0), SQLITE_TRANSIENT);
        break;
    case 6: /* longer */
        memset(copy + n, (int)more, 256);
        sqlite3_bind_blob(st, 1, copy, (int)(n + value), SQLITE_TRANSIENT);
        break;
    case 7:
    case 8: /* a byte */
        if (n)
            copy[at] = (uint8_t)(what % 10 == 7 ? copy[at] ^ 1u << more % 8 : more * 37);
        sqlite3_bind_blob(st, 1, copy, (int)n, SQLITE_TRANSIENT);
        break;
    default: /* a byte, in text */
        if (n)
            copy[at] = (uint8_t)(value ^ more);
        sqlite3_bind_text(st, 1, (char *)copy, (int)n, SQLITE_TRANSIENT);
        break;
    }
    free(copy);
}

static void log_edit_cell(const uint8_t *e)
{
    struct log_table *t = &log_base.table[e[1] % log_base.n_table];
    int column = e[2] % t->n_column, row = (int)((unsigned)e[3] * 7) % t->n_row;
    if (e[0] % 32 == 31) {
        char *sql = sqlite3_mprintf("DELETE FROM \"%w\" WHERE (%s) = (SELECT %s FROM \"%w\" LIMIT "
                                    "1 OFFSET %d)", t->name, t->key, t->key, t->name, row);
        sqlite3_exec(log_base.h, sql, NULL, NULL, NULL);
        sqlite3_free(sql);
        return;
    }
    sqlite3_stmt *get = log_statement(t, column, false), *set = log_statement(t, column, true);
    /* of another row: a plausible value */
    sqlite3_bind_int(get, 1, e[0] & 64 ? (int)e[5] % t->n_row : row);
    if (sqlite3_step(get) == SQLITE_ROW) {
        if (e[0] & 64)
            sqlite3_bind_value(set, 1, sqlite3_column_value(get, 0));
        else
            log_bind(set, e[0], e[4], e[5], sqlite3_column_blob(get, 0),
                     sqlite3_column_bytes(get, 0));
        sqlite3_bind_int(set, 2, row);
    }
    sqlite3_reset(get);
    sqlite3_step(set); /* may fail: not null, unique */
    sqlite3_reset(set);
    sqlite3_clear_bindings(set);
}

enum { EDIT = 6, EDITS = 12 }; /* bytes of one; most of an input */

/* Begins a transaction and edits the cells; log_take_back() undoes it. */
static void log_edit(const uint8_t *data, size_t n)
{
    CHECK(sqlite3_exec(log_base.h, "BEGIN", NULL, NULL, NULL) == SQLITE_OK);
    for (size_t i = 0; i < EDITS && (i + 1) * EDIT <= n; i++)
        if (!(data[i * EDIT] & 128))
            log_edit_cell(data + i * EDIT);
}

KIT void log_take_back(void)
{
    if (!sqlite3_get_autocommit(log_base.h)) /* a reader that failed has taken it back already */
        CHECK(sqlite3_exec(log_base.h, "ROLLBACK", NULL, NULL, NULL) == SQLITE_OK);
}

/* The bytes of the database with the edits of an input; the caller frees (sqlite3_free). */
KIT unsigned char *log_edited(const uint8_t *data, size_t n, size_t *size)
{
    sqlite3_int64 bytes = 0;
    log_edit(data, n);
    unsigned char *out = sqlite3_serialize(log_base.h, "main", &bytes, 0);
    CHECK(out && bytes > 0);
    log_take_back();
    for (size_t i = 0; i < EDITS && (i + 1) * EDIT <= n; i++) {
        const uint8_t *e = data + i * EDIT;
        if (e[0] & 128)
            out[((size_t)e[1] << 24 | (size_t)e[2] << 16 | (size_t)e[3] << 8 | e[4]) %
                (size_t)bytes] = e[5];
    }
    *size = (size_t)bytes;
    return out;
}

/* ---- readers --------------------------------------------------------------------------------- */

struct looked {
    struct hdb *d;
    char id[SESSION_ID];
    int n;
};

static bool look_session(const struct session_row *r, void *arg)
{
    struct looked *l = arg;
    CHECK(r->title && r->model && memchr(r->id, '\0', sizeof r->id));
    if (l->n++ == 0)
        memcpy(l->id, r->id, sizeof l->id);
    return l->n < 20;
}

static bool look_turn(const struct turn_row *r, void *arg)
{
    struct looked *l = arg;
    CHECK(r->text && r->tokens.n >= 0 && r->n >= 0);
    return l->n++ < 200;
}

static bool look_step(const struct step_row *r, void *arg)
{
    struct looked *l = arg;
    static struct buf out;
    buf_clear(&out);
    if (r->tree) {
        CHECK(r->tree->n >= 0 && r->tree->n <= TREE_MAX);
        tree_json(r->tree, &out);
    }
    for (int i = 0; r->tops && i < r->tops->n; i++)
        CHECK(r->tops->at[i].k >= 0 && r->tops->at[i].k < SERVED_TOKENS &&
              (r->tops->at[i].text || !r->tops->at[i].n));
    for (int i = 0; r->facts && i < r->tokens.n; i++)
        fact_json(&r->facts[i], &out);
    return l->n++ < 400;
}

static bool look_op(const struct op_row *r, void *arg)
{
    struct looked *l = arg;
    CHECK(r->text && op_name(r->op));
    return l->n++ < 200;
}

static bool look_run(const struct run_row *r, void *arg)
{
    struct looked *l = arg;
    CHECK(r->about);
    return l->n++ < 50;
}

static bool look_text(int32_t id, const char *text, size_t n, void *arg)
{
    struct looked *l = arg;
    (void)id;
    CHECK(text || !n);
    return l->n++ < 300;
}

KIT void look_sql(struct hdb *d)
{
    static const char *const view[] = {"v_turn", "v_step", "v_token", "v_node", "v_settings",
                                       "v_page", "v_prompt"};
    static struct buf out;
    struct err e;
    for (size_t i = 0; i < sizeof view / sizeof *view; i++) {
        char sql[64];
        snprintf(sql, sizeof sql, "select * from %s", view[i]);
        buf_clear(&out);
        hdb_sql(d, sql, i % 2, 20, &out, &e);
    }
}

KIT void look_recorded(struct hdb *d, const char *id, bool whole)
{
    struct err e = {0};
    struct event ev;
    struct page_table t;
    struct chat_view chat;
    struct step_view v;
    struct pos_view pos;
    static struct step_info step[64];
    struct backend *b = recorded_open(d, id, "1", false, &e);
    if (!b && whole)
        die("%s", e.msg);
    if (!b) {
        fuzz_message(&e);
        return;
    }
    while (backend_next(b, &ev))
        event_free(&ev);
    int n = backend_has(b, VIEW_STEPS) ? b->steps->latest(b, step, 64) : 0;
    for (int i = 0; i < n; i += 1 + n / 5) {
        if (backend_has(b, VIEW_PAGES) && b->pages->table_at(b, step[i].turn, step[i].step, &t,
                                                             &e)) {
            b->pages->position_at(b, step[i].turn, step[i].step, t.length / 2, &pos, &e);
            page_table_free(&t);
        }
        b->steps->of_step(b, step[i].turn, step[i].step, &v);
        recorded_seek(b, step[i].turn, step[i].step, &e);
        backend_chat(b, &chat);
    }
    if (backend_has(b, VIEW_PAGES)) {
        b->pages->table(b, &t);
        page_table_free(&t);
    }
    if (backend_has(b, VIEW_TREES))
        b->trees->latest(b, &v);
    recorded_seek(b, 1, 0, &e);
    if (backend_has(b, VIEW_DEBUG)) {
        b->debug->add(b, "accepted==0 && drafted>0 || node.q>0.9", false, &e);
        b->debug->run(b, RUN_ON, 1, NULL, &e);
    }
    backend_close(b);
}

/* verify: check the chain, too, which needs a transaction of its own. */
KIT void look_rows(struct hdb *d, const char *id, bool verify, bool whole)
{
    struct looked l = {.d = d};
    struct err e;
    struct hdb_past past;
    struct session_sums sums;
    static struct buf report;
    int n, bad;
    buf_clear(&report);
    hdb_turns(d, id, 0, look_turn, &l, &e);
    hdb_steps(d, id, 0, look_step, &l, &e);
    hdb_ops(d, id, look_op, &l, &e);
    hdb_runs(d, id, look_run, &l, &e);
    hdb_token_texts(d, id, look_text, &l, &e);
    hdb_session_sums(d, id, &sums, &e);
    if (hdb_past(d, id, INT_MAX, &past, &e))
        hdb_past_free(&past);
    if (verify)
        CHECK((hdb_verify(d, id, &n, &bad, &report, &e) && !bad) || !whole || hdb_packed(d));
    hdb_account(d, id, &n, &bad, &report, &e);
}

KIT void look_lists(struct hdb *d)
{
    struct looked l = {.d = d};
    struct session_row row = {0};
    struct err e;
    if (hdb_find(d, "last", &row, &e))
        CHECK(row.id[0] && row.title);
    session_row_free(&row);
    hdb_sessions(d, NULL, NULL, 20, look_session, &l, &e);
    hdb_sessions(d, "owl", "no", 20, look_session, &l, &e);
    hdb_search(d, "owl OR nine", 10, look_turn, &l, &e);
}

KIT void look_exports(struct hdb *d, bool whole)
{
    struct err e;
    char out[128];
    snprintf(out, sizeof out, "%s/out", fuzz_folder());
    unlink(out);
    CHECK(hdb_export(d, log_child, out, &e) || !whole);
    unlink(out);
    CHECK(export_markdown(d, log_child, out, &e) || !whole);
    unlink(out);
    if (!hdb_packed(d))
        CHECK(hdb_pack(d, log_child, &(struct pack_opts){.made_by = "fuzz"}, out, NULL, &e) ||
              !whole);
    unlink(out);
}
