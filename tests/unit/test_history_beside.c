/* Several sessions at once in one writer's queue, as requests of clients: their events alternate at
 * random beside a conversation, and nothing of any is lost or mixed up, whatever happens to the
 * process or the disk. */
#include "tests/history_kit.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { STREAMS = 6, SESSIONS = 6, TURNS = STREAMS * SESSIONS };

/* A turn of one session; that of stream 0 is a conversation of SESSIONS turns. */
struct one {
    char id[SESSION_ID];
    char settings[32];
    struct made_turn t;
    bool seen;
    bool late; /* its prompt's ids came with the reply */
};

struct stream {
    struct event ev[SESSIONS * (4 + 2 * MAX_STEPS)];
    int n, at;
};

struct play {
    struct one one[TURNS];
    struct stream stream[STREAMS];
    int n_posted; /* turn ends among the events so far */
};

static void add(struct stream *s, const struct event *ev)
{
    event_copy(&s->ev[s->n++], ev);
}

static void add_new(struct stream *s, struct event ev)
{
    s->ev[s->n++] = ev;
}

static void add_turn(struct stream *s, struct one *o)
{
    add(s, &o->t.begin);
    size_t sent = 0;
    for (int i = 0; i < o->t.n_steps; i++) {
        add(s, &o->t.step[i]);
        size_t upto = o->t.end.text.n * (size_t)(i + 1) / (size_t)o->t.n_steps;
        struct event ev = event_of(EV_TEXT, o->id, o->t.begin.turn, NULL);
        buf_add(&ev.text, o->t.end.text.p + sent, upto - sent);
        sent = upto;
        add_new(s, ev);
    }
    add(s, &o->t.end);
}

static void add_session(struct stream *s, const struct one *o, bool beside)
{
    struct event ev = event_of(EV_SESSION, o->id, 0, NULL);
    ev.beside = beside;
    add_new(s, ev);
    ev = event_of(EV_OP, o->id, 0, o->settings);
    ev.op = OP_OPEN;
    add_new(s, ev);
}

static struct play *make_play(void)
{
    struct play *p = xcalloc(1, sizeof *p);
    struct ids context = {0};
    for (int i = 0; i < TURNS; i++) {
        struct one *o = &p->one[i];
        int stream = i % STREAMS, n = i / STREAMS;
        bool conversation = stream == 0;
        if (conversation && n > 0)
            memcpy(o->id, p->one[0].id, SESSION_ID);
        else
            session_new_id(o->id);
        snprintf(o->settings, sizeof o->settings, "seed=%d\n", conversation ? 0 : i);
        struct ids fresh = {0};
        make_turn(&o->t, o->id, conversation ? n + 1 : 1, conversation ? &context : &fresh);
        ids_free(&fresh);
        if (roll(2))
            make_served(&o->t);
        if (!conversation || n == 0)
            add_session(&p->stream[stream], o, !conversation);
        add_turn(&p->stream[stream], o);
    }
    ids_free(&context);
    return p;
}

static void free_play(struct play *p)
{
    for (int i = 0; i < TURNS; i++)
        free_turn(&p->one[i].t);
    for (int i = 0; i < STREAMS; i++)
        for (int k = p->stream[i].at; k < p->stream[i].n; k++)
            event_free(&p->stream[i].ev[k]);
    free(p);
}

/* Posts the next n events; which stream goes on is random, but a session begins in one piece.
 * Returns false when all are posted. */
static bool post_some(struct history *h, struct play *p, int n)
{
    while (n-- > 0) {
        int left = 0, i;
        for (i = 0; i < STREAMS; i++)
            left += p->stream[i].at < p->stream[i].n;
        if (left == 0)
            return false;
        do
            i = (int)roll(STREAMS);
        while (p->stream[i].at == p->stream[i].n);
        struct stream *s = &p->stream[i];
        enum event_kind kind;
        do {
            kind = s->ev[s->at].kind;
            p->n_posted += kind == EV_TURN_END;
            post(h, &s->ev[s->at++]);
        } while (kind == EV_SESSION || kind == EV_OP);
    }
    return true;
}

/* ---- what the log holds ---- */

static struct one *find_one(struct play *p, const char *id, int turn)
{
    for (int i = 0; i < TURNS; i++)
        if (strcmp(p->one[i].id, id) == 0 && p->one[i].t.begin.turn == turn)
            return &p->one[i];
    fail_msg("no turn %d of %s was posted", turn, id);
    return NULL;
}

static bool same_double(double a, double b)
{
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

static void check_served(const struct served *a, const struct served *b)
{
    assert_int_equal(a != NULL, b != NULL);
    if (!a)
        return;
    assert_int_equal(a->prompt, b->prompt);
    assert_int_equal(a->cached, b->cached);
    assert_int_equal(a->verifies, -1);
    assert_true(same_double(a->ms_queue, b->ms_queue) && isnan(a->ms_first));
    assert_string_equal(a->finish, b->finish);
    assert_int_equal(a->reply_ids, b->reply_ids);
    assert_int_equal(a->n_metric, b->n_metric);
    for (int i = 0; i < a->n_metric; i++) {
        assert_string_equal(a->metric[i].name, b->metric[i].name);
        assert_string_equal(a->metric[i].labels, b->metric[i].labels);
        assert_true(same_double(a->metric[i].before, b->metric[i].before) &&
                    same_double(a->metric[i].after, b->metric[i].after));
    }
}

static bool check_turn_row(const struct turn_row *r, void *arg)
{
    struct one *o = find_one(arg, r->session, r->n);
    const struct event *ev = r->is_user ? &o->t.begin : &o->t.end;
    assert_string_equal(r->sampling, o->settings);
    if (!r->is_user && r->stop == STOP_CRASHED) {
        assert_true(r->text_n <= ev->text.n);
        assert_memory_equal(r->text, ev->text.p, r->text_n);
        assert_true(r->tokens.n <= ev->tokens.n);
        return true;
    }
    assert_int_equal(r->text_n, ev->text.n);
    assert_memory_equal(r->text, ev->text.p, ev->text.n);
    if (r->is_user) /* the prompt as it began, until the reply's end tells it */
        o->late = o->t.end.prompt.n && ids_equal(&r->tokens, &o->t.end.prompt);
    assert_true(o->late || ids_equal(&r->tokens, &ev->tokens));
    if (!r->is_user) {
        assert_int_equal(o->late, o->t.end.prompt.n > 0);
        assert_true(ids_equal(&r->tokens, &ev->tokens));
        assert_int_equal(r->stop, ev->reason);
        check_served(r->served, ev->served);
        o->seen = true;
    }
    return true;
}

static bool check_step_row(const struct step_row *r, void *arg)
{
    struct play *p = ((void **)arg)[0];
    const struct event *ev = &find_one(p, ((void **)arg)[1], r->turn)->t.step[r->n - 1];
    assert_true(ids_equal(&r->tokens, &ev->tokens));
    assert_int_equal(r->rec.logit_digest, ev->rec.logit_digest);
    assert_int_equal(r->rec.source, ev->rec.source);
    assert_int_equal(r->rec.us_arrived, ev->rec.us_arrived);
    assert_int_equal(r->tops ? r->tops->n : 0, ev->tops ? ev->tops->n : 0);
    for (int i = 0; ev->tops && i < ev->tops->n; i++) {
        const struct top *a = &r->tops->at[i], *b = &ev->tops->at[i];
        assert_true(a->k == b->k && a->id == b->id &&
                    same_double((double)a->logp, (double)b->logp));
        assert_int_equal(a->n, b->n);
        assert_true(b->text ? a->text && memcmp(a->text, b->text, (size_t)b->n) == 0 : !a->text);
    }
    return true;
}

/* Everything in the log is as it was posted; returns how many turns have ended. */
static int check_log(struct play *p)
{
    struct hdb *d = read_open();
    struct err e;
    struct buf report = {0};
    int seen = 0, turns;
    for (int i = 0; i < TURNS; i++) {
        void *arg[] = {p, p->one[i].id};
        if (i % STREAMS == 0 && i > 0)
            continue; /* the conversation again */
        assert_true(hdb_turns(d, p->one[i].id, 0, check_turn_row, p, &e) >= 0);
        assert_true(hdb_steps(d, p->one[i].id, 0, check_step_row, arg, &e) >= 0);
    }
    for (int i = 0; i < TURNS; i++)
        seen += p->one[i].seen;
    assert_int_equal(verify_bad(d, &turns), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM run WHERE ended=0"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM held"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop=''"),
                     0);
    assert_int_equal(sql_int(d, "SELECT count(*)-max(number) AS n FROM session"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM session s WHERE (SELECT count(*) FROM "
                                "run r WHERE r.session_id=s.id)<>1"), 0);
    hdb_close(d);
    if (!history_check(db_path, &report, &e))
        fail_msg("%s", report.p);
    buf_free(&report);
    return seen;
}

/* ---- tests ---- */

static void test_alternating_sessions_are_kept_apart(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct play *p = make_play();
        struct history *h = log_open(LOG_TREE);
        while (post_some(h, p, 1 + (int)roll(40)))
            if (roll(3) == 0)
                assert_true(history_flush(h, 60000));
        assert_true(history_flush(h, 60000));
        /* sessions whose turn has ended are closed while others go on */
        struct hdb *d = read_open();
        assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM held"), 1);
        hdb_close(d);
        history_close(h);
        assert_int_equal(check_log(p), TURNS);
        free_play(p);
        char cmd[200];
        snprintf(cmd, sizeof cmd, "rm -f %s*", db_path);
        assert_int_equal(system(cmd), 0);
    }
}

static void test_kill_9_loses_no_acknowledged_turn_of_any(void **state)
{
    (void)state;
    int crashed = 0;
    for (int round = 0; round < 12; round++) {
        struct play *p = make_play();
        int acks[2], acked = 0;
        char c = '+';
        assert_int_equal(pipe(acks), 0);
        int most = 20 + (int)roll(400);
        pid_t pid = fork();
        if (pid == 0) {
            struct err e;
            struct history *h = history_open(db_path, LOG_TREE, &about, &e);
            for (int n = 0; n < most && post_some(h, p, 10); n += 10)
                if (roll(2) && history_flush(h, 10000))
                    for (; acked < p->n_posted; acked++)
                        if (write(acks[1], &c, 1) != 1)
                            _exit(3);
            kill(getpid(), SIGKILL);
        }
        close(acks[1]);
        while (read(acks[0], &c, 1) == 1)
            acked++;
        close(acks[0]);
        waitpid(pid, NULL, 0);
        history_close(log_open(LOG_STEPS)); /* the next start */
        assert_true(check_log(p) >= acked);
        struct hdb *d = read_open();
        crashed += (int)sql_int(d, "SELECT count(*) AS n FROM turn WHERE stop='crashed'");
        hdb_close(d);
        free_play(p);
        char cmd[200];
        snprintf(cmd, sizeof cmd, "rm -f %s*", db_path);
        assert_int_equal(system(cmd), 0);
    }
    assert_true(crashed > 12); /* several open turns of one process */
}

/* The log is locked from some event on: everything goes to the side file, with the state of all
 * open sessions, and the next start stores it. */
static void test_a_side_file_holds_all_open_sessions(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct play *p = make_play();
        struct history *h = log_open(LOG_TREE);
        struct history_left left = {0};
        sqlite3 *other;
        post_some(h, p, 20 + (int)roll(200));
        assert_true(history_flush(h, 60000));
        assert_int_equal(sqlite3_open(db_path, &other), SQLITE_OK);
        assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
        while (post_some(h, p, 50))
            ;
        for (int i = 0; i < 100 && !left.kept[0]; i++)
            assert_false(history_finish(h, 100, &left));
        assert_true(left.kept[0] && left.turns > 0);
        history_close(h);
        sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL);
        sqlite3_close(other);
        history_close(log_open(LOG_STEPS));
        assert_int_equal(check_log(p), TURNS);
        free_play(p);
        char cmd[200];
        snprintf(cmd, sizeof cmd, "rm -f %s*", db_path);
        assert_int_equal(system(cmd), 0);
    }
}

static off_t wal_bytes(void)
{
    char name[160];
    struct stat st;
    snprintf(name, sizeof name, "%s-wal", db_path);
    return stat(name, &st) == 0 ? st.st_size : 0;
}

/* Files may not grow, again and again: transactions of several sessions are rolled back and applied
 * anew. */
static void test_a_full_disk_loses_nothing_of_any(void **state)
{
    (void)state;
    struct play *p = make_play();
    struct history *h = log_open(LOG_TREE);
    struct history_status s;
    struct rlimit limit, old;
    int failures = 0;
    getrlimit(RLIMIT_FSIZE, &old);
    post_some(h, p, 10);
    for (bool more = true; more;) {
        assert_true(history_flush(h, 60000));
        limit = old;
        limit.rlim_cur = (rlim_t)(wal_bytes() + (off_t)roll(20000));
        setrlimit(RLIMIT_FSIZE, &limit);
        more = post_some(h, p, 60);
        sleep_ms(130);
        history_status(h, &s);
        failures += s.error[0] != '\0';
        setrlimit(RLIMIT_FSIZE, &old);
    }
    assert_true(history_flush(h, 60000));
    history_close(h);
    assert_true(failures > 3);
    assert_int_equal(check_log(p), TURNS);
    free_play(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_alternating_sessions_are_kept_apart),
        TEST(test_kill_9_loses_no_acknowledged_turn_of_any),
        TEST(test_a_side_file_holds_all_open_sessions),
        TEST(test_a_full_disk_loses_nothing_of_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
