/* history_kit.h - functions of the session log's tests: a scratch folder, synthetic turns with
 * values in every field, and posting them as the engine does.
 */
#pragma once

#include "history/history.h"
#include "tests/chance.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIT static __attribute__((unused))

static char scratch[96];  /* this test's folder */
static char db_path[128]; /* in a folder that does not exist yet */

KIT int scratch_begin(void **state)
{
    (void)state;
#ifndef MEASURES_SQLITE
    /* SQLite then takes no lock to count its memory: a tenth of the time of these tests */
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
#endif
    FREED(free_at) char *folder = scratch_folder();
    CHECK(strlen(folder) < sizeof scratch);
    strcpy(scratch, folder);
    snprintf(db_path, sizeof db_path, "%s/data/aerie/sessions.db", scratch);
    return 0;
}

KIT int scratch_end(void **state)
{
    (void)state;
    scratch_drop(scratch);
    return 0;
}

/* Changes the log as another program would: the schema's triggers run and its constraints are
 * checked. */
KIT void change_log(const char *sql)
{
    sqlite3 *s;
    char *why = NULL;
    assert_int_equal(sqlite3_open(db_path, &s), SQLITE_OK);
    sqlite3_exec(s, sql, NULL, NULL, &why);
    if (why)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(s);
}

KIT void write_bytes(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

static const struct history_about about = {.version = "0.1.0",
                                           .device = "cpu avx2",
                                           .flags = "-O2",
                                           .model_dir = "models/nestling/target",
                                           .model_sha = "aa11",
                                           .draft_dir = "models/nestling/draft",
                                           .draft_sha = "bb22",
                                           .tokenizer_sha = "cc33",
                                           .config = "page_size=16\ncontext=512\n"};

KIT struct history *log_open(enum log_level level)
{
    struct err e = {0};
    struct history *h = history_open(db_path, level, &about, &e);
    if (!h)
        print_error("%s\n", e.msg);
    assert_non_null(h);
    return h;
}

/* A vocabulary: "t7"; every ninth text is no UTF-8, every tenth empty. */
KIT const char *text_of(void *arg, int32_t id, size_t *n)
{
    static char text[16];
    (void)arg;
    snprintf(text, sizeof text, id % 9 ? "t%d" : "\xff%d", id);
    *n = id % 10 ? strlen(text) : 0;
    return text;
}

KIT void describe_texts(struct history *h)
{
    history_describe(h, &about, &(struct history_texts){250000, text_of, NULL});
}

KIT struct hdb *read_open(void)
{
    struct err e = {0};
    struct hdb *d = hdb_open(db_path, &e);
    if (!d)
        print_error("%s\n", e.msg);
    assert_non_null(d);
    return d;
}

KIT void post(struct history *h, struct event *ev)
{
    ev->ns = clock_ns();
    assert_true(evq_put(history_queue(h), ev));
}

KIT struct event event_of(enum event_kind kind, const char *session, int turn, const char *text)
{
    struct event ev = {.kind = kind, .turn = turn};
    memcpy(ev.session, session, strnlen(session, sizeof ev.session - 1));
    if (text)
        buf_str(&ev.text, text);
    return ev;
}

KIT void post_session(struct history *h, const char *id, const char *parent, int fork_turn)
{
    struct event ev = event_of(EV_SESSION, id, 0, NULL);
    memcpy(ev.parent, parent, strnlen(parent, sizeof ev.parent - 1));
    ev.fork_turn = fork_turn;
    post(h, &ev);
}

KIT void post_op(struct history *h, const char *id, enum op_kind op, int turn, const char *text)
{
    struct event ev = event_of(EV_OP, id, turn, text);
    ev.op = op;
    post(h, &ev);
}

/* ---- made-up turns ---- */

enum { MAX_STEPS = 12 };

struct made_turn {
    struct event begin, end, step[MAX_STEPS];
    int n_steps;
};

/* Text with everything a chat may hold: words, line ends, controls, CJK, bytes that are no UTF-8.
 */
KIT void random_text(struct buf *b, int words)
{
    static const char *const word[] = {"page",
                                       "window",
                                       "Falke",
                                       "\xE9\xB7\xB9\xE3\x81\xAE",
                                       "\n",
                                       "naïve",
                                       "\x1b[31m",
                                       "\xff\xfe",
                                       "\"quoted\"",
                                       "\\",
                                       "tree",
                                       "\xE2\x80\xAE",
                                       "\xF0\x9F\xA6\x85",
                                       "\r",
                                       "\x01"};
    for (int i = 0; i < words; i++) {
        buf_str(b, i ? " " : "");
        buf_str(b, word[roll(sizeof word / sizeof *word)]);
    }
    if (words > 3 && roll(4) == 0)
        buf_add(b, "\0", 1); /* a NUL inside the text */
    buf_str(b, "end");
}

KIT void random_ids(struct ids *a, int n)
{
    for (int i = 0; i < n; i++)
        ids_add(a, (int32_t)roll(250000));
}

KIT struct tree *random_tree(int n)
{
    struct tree *t = xmalloc(sizeof *t);
    tree_init(t, (int32_t)roll(1000));
    while (t->n < n) {
        int parent = (int)roll((uint64_t)t->n);
        int i = tree_add(t, parent, (int32_t)roll(1000), (float)roll(1000) / 1000, -(float)roll(9));
        t->p[i] = (float)roll(1000) / 1000;
    }
    int32_t choice[TREE_MAX];
    for (int i = 0; i < n; i++)
        choice[i] = (int32_t)roll(1000);
    int path[TREE_MAX], held;
    tree_accept(t, choice, &(struct tree_ends){.max_nodes = TREE_MAX}, path, &held);
    return t;
}

KIT struct event random_step(const char *session, int turn, int n)
{
    struct event ev = event_of(EV_STEP, session, turn, NULL);
    ev.step = n;
    bool spec = n > 1 && roll(2);
    ev.rec = (struct step_rec){.kind = n == 1 ? STEP_PREFILL
                                       : spec ? STEP_SPEC
                                              : STEP_DECODE,
                               .pos0 = (int)roll(4096),
                               .rows = 1 + (int)roll(64),
                               .bonus = (int32_t)roll(1000),
                               .draws = roll(1u << 30),
                               .page_digest = mix64(roll(99)),
                               .draft_digest = mix64(roll(99)),
                               .logit_digest = mix64(roll(99)),
                               .us_draft = (uint32_t)roll(5000),
                               .us_verify = (uint32_t)mix64(roll(9)),
                               .us_commit = 7,
                               .us_check = 1,
                               .margin = roll(4) ? (float)roll(1000) / 64 : NAN,
                               .forced = (int)roll(3),
                               .fused = roll(2)};
    if (spec) {
        ev.tree = random_tree(2 + (int)roll(TREE_MAX - 2));
        ev.rec.drafted = ev.tree->n - 1;
        ev.rec.accepted = 1;
    }
    random_ids(&ev.tokens, 1 + (int)roll(5));
    ev.facts = xcalloc((size_t)ev.tokens.n, sizeof *ev.facts);
    for (int i = 0; i < ev.tokens.n; i++)
        ev.facts[i] = (struct token_fact){roll(8) ? -(float)roll(1u << 20) / 7 : NAN,
                                          -(float)roll(1u << 20) / 7,
                                          roll(8) ? (int32_t)roll(250000) : -1};
    ev.lengths = (struct context_lengths){(int32_t)roll(9999), (int32_t)roll(9999),
                                          (int32_t)roll(9999), (int32_t)roll(9999)};
    ev.n_pages = (int)roll(9);
    if (ev.n_pages) {
        ev.pages = xcalloc((size_t)ev.n_pages, sizeof *ev.pages);
        for (int i = 0; i < ev.n_pages; i++)
            ev.pages[i] = (struct page_event){.pool = (uint8_t)roll(N_POOLS),
                                              .op = (uint8_t)roll(LAST_PAGE_OP + 1),
                                              .holder = (uint8_t)roll(LAST_PAGE_HOLDER + 1),
                                              .page = (int32_t)roll(99),
                                              .column = (int32_t)roll(99) - 1,
                                              .refs = 1};
        for (int i = 1; i < ev.n_pages; i++) /* runs, up and down */
            if (roll(3)) {
                int d = roll(2) ? 1 : -1;
                ev.pages[i] = ev.pages[i - 1];
                ev.pages[i].page = max_int(0, ev.pages[i].page + d);
                ev.pages[i].column = max_int(-1, ev.pages[i].column + d);
            }
    }
    return ev;
}

/* The turn's prompt continues *context, which afterwards holds prompt and reply. */
KIT void make_turn(struct made_turn *t, const char *session, int n, struct ids *context)
{
    *t = (struct made_turn){.begin = event_of(EV_TURN_BEGIN, session, n, NULL),
                            .end = event_of(EV_TURN_END, session, n, NULL),
                            .n_steps = 1 + (int)roll(MAX_STEPS - 1)};
    random_text(&t->begin.text, (int)roll(30));
    random_text(&t->end.text, (int)roll(60));
    random_ids(context, (int)roll(20));
    ids_cat(&t->begin.tokens, context->v, context->n);
    t->begin.n_reused = (int)roll(100);
    if (roll(4)) /* else as for a refused message, or from another backend */
        t->begin.reuse = (struct reuse){(enum reuse_change)(1 + roll(CHANGE_FORMAT)),
                                        (enum reuse_limit)roll(LIMIT_STATE + 1), (int)roll(9999),
                                        (int)roll(9999), (int)roll(9), (int)roll(9999),
                                        (int)roll(9999)};
    t->begin.seed = (int64_t)mix64(roll(1000));
    for (int i = 0; i < t->n_steps; i++) {
        t->step[i] = random_step(session, n, i + 1);
        ids_cat(&t->end.tokens, t->step[i].tokens.v, t->step[i].tokens.n);
        t->end.n_drafted += t->step[i].rec.drafted;
        t->end.n_accepted += t->step[i].rec.accepted;
    }
    ids_cat(context, t->end.tokens.v, t->end.tokens.n);
    t->end.n_steps = t->n_steps;
    t->end.reason = (enum stop_reason)roll(STOP_CRASHED);
    t->end.us_prefill = roll(1000000);
    t->end.us_decode = roll(1000000);
}

/* As of a server: what it reported, and the best tokens of a step. */
KIT void make_served(struct made_turn *t)
{
    struct served *s = t->end.served = served_new();
    s->prompt = (int64_t)roll(1000);
    s->cached = roll(2) ? (int64_t)roll(100) : -1;
    s->ms_queue = roll(2) ? (double)roll(1000) / 8 : NAN;
    snprintf(s->finish, sizeof s->finish, "word %d", (int)roll(100));
    s->reply_ids = roll(2);
    s->n_metric = (int)roll(4);
    s->metric = xcalloc((size_t)s->n_metric + 1, sizeof *s->metric);
    for (int i = 0; i < s->n_metric; i++)
        s->metric[i] = (struct served_metric){xasprintf("vllm:m%d", i), xstrdup("a=\"1\""),
                                              (double)roll(9), roll(2) ? (double)roll(9) : NAN};
    if (roll(2))
        random_ids(&t->end.prompt, 1 + (int)roll(5));
    struct event *step = &t->step[0];
    step->rec.source = roll(2) ? STEP_PIECE : STEP_REPORTED;
    step->rec.us_arrived = 1 + roll(1 << 30);
    step->tops = xcalloc(1, sizeof *step->tops);
    for (int k = 0; k < step->tokens.n; k++)
        for (int r = 0; r < 1 + (int)roll(3); r++)
            tops_add(step->tops, k, roll(2) ? (int32_t)roll(1000) : -1,
                     roll(4) ? -1 - (float)roll(9) : NAN,
                     roll(4) ? roll(2) ? "text" : "\xff\0x" : NULL, 3);
}

KIT void post_copy(struct history *h, const struct event *src)
{
    struct event ev;
    event_copy(&ev, src);
    post(h, &ev);
}

/* Posts the first `steps` steps of a turn, with a piece of the reply's text after each, and with
 * `end` the end of the turn. */
KIT void post_turn(struct history *h, const struct made_turn *t, int steps, bool end)
{
    post_copy(h, &t->begin);
    size_t sent = 0;
    for (int i = 0; i < steps; i++) {
        post_copy(h, &t->step[i]);
        size_t upto = t->end.text.n * (size_t)(i + 1) / (size_t)t->n_steps;
        struct event ev = event_of(EV_TEXT, t->begin.session, t->begin.turn, NULL);
        buf_add(&ev.text, t->end.text.p + sent, upto - sent);
        sent = upto;
        post(h, &ev);
    }
    if (end)
        post_copy(h, &t->end);
}

KIT void free_turn(struct made_turn *t)
{
    event_free(&t->begin);
    event_free(&t->end);
    for (int i = 0; i < t->n_steps; i++)
        event_free(&t->step[i]);
}

/* Writes one session of n random turns. */
KIT void write_session(struct history *h, const char *id, int n)
{
    struct ids context = {0};
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\nseed=1\n");
    for (int i = 1; i <= n; i++) {
        struct made_turn t;
        make_turn(&t, id, i, &context);
        post_turn(h, &t, t.n_steps, true);
        free_turn(&t);
    }
    ids_free(&context);
}

/* One random turn that shares nothing with the turns before it. */
KIT void one_turn(struct history *h, const char *id, int n, bool regen)
{
    struct ids context = {0};
    struct made_turn t;
    make_turn(&t, id, n, &context);
    t.begin.regen = regen;
    post_turn(h, &t, t.n_steps, true);
    free_turn(&t);
    ids_free(&context);
}

/* ---- reading, in short ---- */

/* The only value of a query, as the JSON that hdb_sql() prints. */
KIT char *sql_value(struct hdb *d, const char *sql)
{
    struct buf out = {0};
    struct err e = {0};
    if (!hdb_sql(d, sql, true, 10, &out, &e))
        fail_msg("%s: %s", sql, e.msg);
    char *p = strstr(out.p, "\":");
    p = strstr(p + 2, "\":");
    char *v = xstrdup(p ? p + 2 : "");
    v[strcspn(v, "}")] = '\0';
    buf_free(&out);
    return v;
}

KIT long long sql_int(struct hdb *d, const char *sql)
{
    char *v = sql_value(d, sql);
    long long n = atoll(*v == '"' ? v + 1 : v);
    free(v);
    return n;
}

/* The number that a query of a log has as its only value. */
KIT long long count(const char *path, const char *sql)
{
    struct err e = {0};
    struct hdb *d = hdb_open(path, &e);
    if (!d)
        fail_msg("%s", e.msg);
    long long n = sql_int(d, sql);
    hdb_close(d);
    return n;
}

KIT long long sessions(const char *path)
{
    return count(path, "SELECT count(*) AS n FROM session");
}

KIT bool count_session(const struct session_row *r, void *arg)
{
    (void)r;
    ++*(int *)arg;
    return true;
}

KIT void sound(const char *path)
{
    struct buf report = {0};
    struct err e = {0};
    if (!history_check(path, &report, &e))
        fail_msg("%s: %s\n%s", path, e.msg, report.p);
    buf_free(&report);
}

KIT int verify_bad(struct hdb *d, int *turns)
{
    int bad = -1;
    struct err e = {0};
    return hdb_verify(d, "", turns, &bad, NULL, &e) ? bad : 1;
}

/* ---- waiting and looking around ---- */

KIT void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

KIT bool wait_until_acked(struct history *h, uint64_t turns, int ms)
{
    for (; ms > 0; ms -= 5) {
        struct history_status s;
        history_status(h, &s);
        if (s.acked_turns >= turns)
            return true;
        sleep_ms(5);
    }
    return false;
}

/* Prunes the sessions that are older than so many days. How many were removed, -1: an error. */
KIT int prune_older(const char *path, int days, struct err *e)
{
    struct pruned out;
    const struct prune_rule rule = {.older_than = days, .keep = -1, .to_bytes = -1};
    return history_prune(path, &rule, &out, NULL, e) ? out.sessions : -1;
}

/* Damaged databases that were set aside in the scratch folder. */
KIT int count_aside(void)
{
    char cmd[200];
    snprintf(cmd, sizeof cmd, "find %s -name '*.corrupt-*[0-9]' | wc -l", scratch);
    FILE *f = popen(cmd, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}
