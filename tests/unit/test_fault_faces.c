/* test_fault_faces.c - a device that fails and stays lost, as users see it: plain mode, batches,
 * replays, the full screen. Each face runs in a process of its own, so that exit codes, standard
 * error and the terminal are those of real use. */
#include "engine/thread/session.h"
#include "tests/scratch.h"
#include "tests/spy_kit.h"

/* ---- faces ----------------------------------------------------------------------------------- */

static char *folder, *db; /* of the test at hand */

static void new_db(void)
{
    folder = scratch_folder();
    db = xasprintf("%s/sessions.db", folder);
}

static void drop_db(void)
{
    scratch_remove(folder);
    free(db);
}

static struct options options(void)
{
    return (struct options){.engine = spy_opts(), .level = LOG_STEPS, .db = db, .color = 2};
}

/* In the child: runs a face on an app whose device fails at the `waits`-th wait after it is open
 * (-1: never). */
static int with_app(struct options *o, int waits, int (*face)(struct app *a))
{
    struct err e = {0};
    struct app *a = xcalloc(1, sizeof *a);
    if (!app_open(a, o, &e))
        return cli_fail(&e);
    while (backend_busy(a->backend))
        usleep(1000);
    spy.waits = waits;
    int rc = face(a);
    app_close(a);
    free(a);
    return rc;
}

static int face_run(struct app *a) { return run_once(a, "count to twenty"); }

struct shown {
    int rc;
    struct buf out, err;
};

static void shown_free(struct shown *s)
{
    buf_free(&s->out);
    buf_free(&s->err);
    *s = (struct shown){0};
}

static void read_all(int fd, struct buf *out)
{
    char part[4096];
    ssize_t n;
    buf_str(out, "");
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
        buf_add(out, part, n > 0 ? (size_t)n : 0);
    close(fd);
}

/* Runs `child` with `input` on standard input and keeps what it prints. */
static void in_child(int (*child)(void), const char *input, struct shown *s)
{
    int in[2], out[2], err[2], status;
    assert_true(pipe(in) == 0 && pipe(out) == 0 && pipe(err) == 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1), dup2(err[1], 2);
        close(in[1]), close(out[0]), close(err[0]);
        int rc = child();
        out_flush(); /* as main() does */
        fflush(NULL);
        _exit(rc);
    }
    close(in[0]), close(out[1]), close(err[1]);
    assert_int_equal(write(in[1], input, strlen(input)), strlen(input));
    close(in[1]);
    read_all(out[0], &s->out); /* neither is long enough to fill the other pipe */
    read_all(err[0], &s->err);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    s->rc = WEXITSTATUS(status);
}

static int lines_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += *s == '\n';
    return n;
}

static int child_once(void)
{
    struct options o = options();
    return with_app(&o, 4, face_run);
}

static int child_once_json(void)
{
    struct options o = options();
    o.json = true;
    return with_app(&o, 4, face_run);
}

static int child_plain(void)
{
    struct options o = options();
    o.plain = true;
    return with_app(&o, 4, plain_run);
}

static bool one_turn(const struct turn_row *r, void *arg)
{
    struct buf *b = arg;
    if (!r->is_user)
        buf_printf(b, "%s|%.*s", stop_name(r->stop), (int)r->text_n, r->text);
    return true;
}

/* The replies of the newest session as the log has them. */
static void logged(struct buf *out)
{
    struct err e = {0};
    struct session_row row = {0};
    int turns = 0, bad = 0;
    struct hdb *h = hdb_open(db, &e);
    must(h != NULL, &e);
    must(hdb_find(h, "last", &row, &e), &e);
    assert_true(hdb_turns(h, row.id, 0, one_turn, out, &e) > 0);
    must(hdb_verify(h, "", &turns, &bad, NULL, &e), &e);
    assert_int_equal(bad, 0);
    session_row_free(&row);
    hdb_close(h);
}

static void test_every_plain_face_ends_with_one_line_and_exit_code_3(void **state)
{
    (void)state;
    int (*const child[])(void) = {child_once, child_plain, child_once_json};
    for (size_t i = 0; i < sizeof child / sizeof *child; i++) {
        struct shown s = {0};
        struct buf log = {0};
        new_db();
        new_spy(i % 2);
        in_child(child[i], "count to twenty\nHello!\n", &s);
        assert_int_equal(s.rc, 3);
        assert_int_equal(lines_of(s.err.p), 1);
        assert_non_null(strstr(s.err.p, "aerie: the device failed: " STICKY));
        assert_non_null(strstr(s.err.p, "aerie --session "));
        if (i == 2)
            assert_non_null(strstr(s.out.p, "\"stop\":\"device_failed\""));
        logged(&log);
        assert_int_equal(strncmp(log.p, "device_failed|", 14), 0);
        assert_null(strstr(log.p + 14, "|")); /* the second line was not sent any more */
        char *said = log.p + 14;
        assert_true(strlen(said) > 3);
        assert_non_null(strstr(s.out.p, said));
        shown_free(&s);
        buf_free(&log);
        drop_db();
    }
}

/* ---- many prompts, and a replay -------------------------------------------------------------- */

/* Runs prompts in a batch, one lane at a time. False: loading or the batch failed (*a: why). */
static bool run_batch(const struct engine_opts *asked, const char *const *prompts, int n,
                      struct answer *a)
{
    struct engine_opts o = *asked;
    struct err e = {0};
    struct request rq = {.kind = RQ_BATCH, .count = n,
                         .prompts = xcalloc((size_t)n, sizeof *rq.prompts)};
    answer_free(a);
    o.lanes = 1;
    for (int i = 0; i < n; i++)
        rq.prompts[i] = xstrdup(prompts[i]);
    struct backend *g = engine_open(&o, &e);
    if (g) {
        submit_and_take(g, &rq, a);
    } else {
        a->fault = e.kind;
        buf_str(&a->faults, e.msg);
        for (int i = 0; i < n; i++)
            free(rq.prompts[i]);
        free(rq.prompts);
    }
    backend_close(g);
    return g && a->n_fault == 0;
}

static void test_a_batch_keeps_the_results_it_has_told(void **state)
{
    (void)state;
    static const char *const prompts[] = {"Hello!", "Hello!", "count to twenty"};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    assert_true(run_batch(&o, prompts, 3, &a));
    assert_int_equal(a.n_reply, 3);
    int n = 0;
    for (int waits = 0, most = 0;; waits += 3, n++) {
        new_spy(false);
        spy.waits = waits;
        if (run_batch(&o, prompts, 3, &a))
            break; /* it never waited so often */
        assert_int_equal(a.fault, ERR_MODEL);
        assert_non_null(strstr(a.faults.p, STICKY));
        assert_true(a.n_reply >= most && a.n_reply < 3);
        most = a.n_reply;
    }
    assert_true(n > 3 && spy.waits >= 0 && a.n_reply == 3);
    answer_free(&a);
}

static int n_recorded;

static bool count_record(struct kdev *d)
{
    (void)d;
    n_recorded++;
    return false;
}

static void test_a_batch_records_cycles_unless_graphs_are_off(void **state)
{
    (void)state;
    static const char *const prompts[] = {"Hello!", "Hello!", "Hello!"};
    for (int graph = 0; graph < 2; graph++) {
        struct answer a = {0};
        new_spy(true);
        spy.k.graph_begin = count_record;
        struct engine_opts o = spy_opts();
        o.settings.graph = graph;
        n_recorded = 0;
        assert_true(run_batch(&o, prompts, 3, &a));
        assert_int_equal(a.n_reply, 3);
        answer_free(&a);
        assert_true(graph ? n_recorded > 0 : n_recorded == 0);
    }
}

static int replay_waits; /* of the child's device */

static int child_replay(void)
{
    char *word[] = {(char *)"last"};
    struct cli c = {.opt = options(), .word = word, .n_word = 1, .check = true};
    spy.waits = replay_waits;
    return cli_replay(&c);
}

static int child_healthy(void)
{
    struct options o = options();
    return with_app(&o, -1, face_run);
}

/* Runs a child without input and expects its exit status. */
static void expect_status(int (*child)(void), int rc)
{
    struct shown s = {0};
    in_child(child, "", &s);
    assert_int_equal(s.rc, rc);
    shown_free(&s);
}

/* Replays the last session on a device that does not fail. The session must be equal, and the
 * output must begin with `begin`; session: which one it is, for the message of a failure. */
static void expect_equal_replay(const char *session, const char *begin)
{
    struct shown s = {0};
    replay_waits = -1;
    in_child(child_replay, "", &s);
    assert_string_equal(s.err.p, "");
    if (strncmp(s.out.p, begin, strlen(begin)) != 0)
        fail_msg("%s: %s", session, s.out.p);
    assert_int_equal(s.rc, 0);
    shown_free(&s);
}

static void test_a_replay_tells_a_lost_device_from_a_difference(void **state)
{
    (void)state;
    struct shown s = {0};
    new_db();
    new_spy(false);
    expect_status(child_healthy, 0);
    replay_waits = 5;
    in_child(child_replay, "", &s);
    assert_int_equal(s.rc, 3);
    assert_int_equal(lines_of(s.err.p), 1);
    assert_non_null(strstr(s.err.p, STICKY));
    shown_free(&s);
    expect_status(child_once, 3);
    expect_equal_replay("cut short by its device", "equal: 1 turn,");
    drop_db();
}

/* Submits a message, as a face does. */
static void tell(struct app *a, const char *text)
{
    struct request rq = {.kind = RQ_SAY, .text = xstrdup(text)};
    memcpy(rq.session, a->session, sizeof rq.session);
    CHECK(backend_submit(a->backend, &rq, NULL));
}

static void until_idle(struct app *a)
{
    for (bool busy = true; busy;) {
        struct event ev;
        busy = backend_busy(a->backend);
        while (backend_wait(a->backend, &ev, busy ? 2 : 0))
            event_free(&ev);
    }
}

/* A Ctrl-C within the second turn, when the third one's message waits to be encoded. */
static int face_stopped(struct app *a)
{
    tell(a, "Hello!");
    until_idle(a);
    spy.engine = a->backend;
    spy.k.attn = spy_attn;
    spy.cancel_at = 60;
    tell(a, "count to twenty");
    tell(a, "What is a page table?");
    until_idle(a);
    tell(a, "What are you?");
    until_idle(a);
    return 0;
}

static int child_stopped(void)
{
    struct options o = options();
    return with_app(&o, -1, face_stopped);
}

static void test_a_turn_that_was_stopped_before_it_had_a_prompt_replays_equal(void **state)
{
    (void)state;
    struct buf turns = {0};
    struct err e = {0};
    new_db();
    new_spy(false);
    expect_status(child_stopped, 0);
    struct hdb *d = hdb_open(db, &e);
    assert_non_null(d);
    assert_true(hdb_sql(d, "SELECT group_concat(r.stop || ' ' || (r.n_steps > 0) || ' ' || "
                           "(u.shared + length(u.tokens) > 0)) AS stops FROM turn r JOIN turn u ON "
                           "u.n = r.n AND u.role = 'user' WHERE r.role = 'reply'", true, 10, &turns,
                           &e));
    if (!strstr(turns.p, "\"end 1 1,cancel 1 1,cancel 0 0,end 1 1\""))
        fail_msg("%s", turns.p);
    hdb_close(d);
    expect_equal_replay("stopped while a message waits", "equal: 4 turns,");
    buf_free(&turns);
    drop_db();
}

static int cancel_attn; /* the user stops the prompt after this many attention operations */
static int n_hello;     /* turns before that prompt */

/* n_hello turns, then a prompt of several chunks that is stopped, and the same prompt again, which
 * is not. */
static int face_stopped_in_chunk(struct app *a)
{
    static const char *const question = "What is a page table, and what does a cache of keys and "
    "values hold?";
    static const char *const set[] = {"chunk=7", "max_tokens=2"};
    for (int i = 0; i < 2; i++) {
        struct request rq = {.kind = RQ_SET, .text = xstrdup(set[i])};
        memcpy(rq.session, a->session, sizeof rq.session);
        CHECK(backend_submit(a->backend, &rq, NULL));
    }
    for (int i = 0; i < n_hello; i++) {
        tell(a, "Hello!");
        until_idle(a);
    }
    spy.engine = a->backend;
    spy.k.attn = spy_attn;
    for (int i = 0; i < 2; i++) {
        spy.cancel_at = i ? 0 : cancel_attn;
        tell(a, question);
        until_idle(a);
    }
    return 0;
}

static int child_stopped_in_chunk(void)
{
    struct options o = options();
    return with_app(&o, -1, face_stopped_in_chunk);
}

/* Stops a prompt after cancel_attn attention operations; the session must replay equal. Sets the
 * steps and the reply's tokens of the stopped turn. */
static void stop_in_chunk(int *steps, int *tokens)
{
    char stopped[64];
    struct buf n = {0};
    struct err e = {0};
    new_db();
    new_spy(false);
    expect_status(child_stopped_in_chunk, 0);
    struct hdb *d = hdb_open(db, &e);
    assert_non_null(d);
    char *sql = xasprintf("SELECT 'stop ' || n_steps || ' ' || (length(tokens) / 4) AS n FROM turn"
                          " WHERE role = 'reply' AND n = %d AND stop = 'cancel'", n_hello + 1);
    assert_true(hdb_sql(d, sql, true, 1, &n, &e));
    free(sql);
    const char *at = strstr(n.p, "stop ");
    if (!at || sscanf(at, "stop %d %d", steps, tokens) != 2)
        fail_msg("%s", n.p);
    hdb_close(d);
    snprintf(stopped, sizeof stopped, "stopped after attention %d", cancel_attn);
    expect_equal_replay(stopped, "equal: ");
    buf_free(&n);
    drop_db();
}

/* Stops within each chunk of a prompt and between chunks. The last stop comes after a checkpoint
 * was made and the page that it shares was copied. */
static void test_a_turn_that_was_stopped_within_a_chunk_replays_equal(void **state)
{
    (void)state;
    int steps, tokens, stopped = 0;
    n_hello = 1;
    for (cancel_attn = 1; cancel_attn < 44; cancel_attn += 5) {
        stop_in_chunk(&steps, &tokens);
        assert_int_equal(tokens, 0);
        stopped |= 1 << steps;
    }
    assert_true(stopped == 31);
}

/* Where the last chunk's checkpoint takes the place of another one, which is gone for good, the
 * chunk is not stopped. */
static void test_a_chunk_that_gave_up_a_checkpoint_runs_to_its_end(void **state)
{
    (void)state;
    int steps, tokens;
    n_hello = MAX_POINTS / 2; /* each of them makes two */
    cancel_attn = 40;
    stop_in_chunk(&steps, &tokens);
    assert_true(steps == 5 && tokens == 1);
}

/* ---- the full screen ------------------------------------------------------------------------- */

/* Reads the terminal until `until` appears, the child is gone or 20 s have passed. */
static bool see(int fd, struct buf *out, const char *until)
{
    uint64_t end = clock_ns() + 20000000000u;
    buf_str(out, "");
    while (clock_ns() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char part[4096];
        ssize_t n = poll(&p, 1, 100) > 0 ? read(fd, part, sizeof part) : 0;
        if (n < 0)
            return strstr(out->p, until) != NULL;
        for (ssize_t i = 0; i < n; i++)
            if (part[i]) /* a screen holds no NUL, and strstr() stops at one */
                buf_add(out, &part[i], 1);
        if (n > 0 && strstr(out->p, until))
            return true;
    }
    return false;
}

/* A terminal, and a face behind it. */
struct stage {
    int master, slave, err;
    struct termios before;
    pid_t pid;
    struct buf screen;
};

static void stage_open(struct stage *s, const struct options *given, int waits,
                       int (*face)(struct app *a))
{
    struct winsize size = {.ws_row = 30, .ws_col = 100};
    int err[2];
    *s = (struct stage){0};
    assert_int_equal(openpty(&s->master, &s->slave, NULL, NULL, &size), 0);
    assert_int_equal(tcgetattr(s->slave, &s->before), 0);
    assert_int_equal(pipe(err), 0);
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        struct options o = *given;
        dup2(s->slave, 0), dup2(s->slave, 1), dup2(err[1], 2);
        close(s->master), close(err[0]);
        _exit(with_app(&o, waits, face));
    }
    close(err[1]);
    s->err = err[0];
}

/* The exit code; what came over standard error. */
static int stage_close(struct stage *s, struct buf *err)
{
    int status;
    struct termios after;
    read_all(s->err, err);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(tcgetattr(s->slave, &after), 0);
    assert_true(s->before.c_lflag == after.c_lflag && s->before.c_iflag == after.c_iflag &&
                s->before.c_oflag == after.c_oflag);
    close(s->master);
    close(s->slave);
    buf_free(&s->screen);
    return WEXITSTATUS(status);
}

static void type(struct stage *s, const char *keys)
{
    assert_int_equal(write(s->master, keys, strlen(keys)), strlen(keys));
}

/* The device fails while the full screen is up; both faces then take up the session. */
static void lose_the_screen(int waits)
{
    struct stage s;
    struct buf err = {0}, log = {0};
    struct options o = options();
    stage_open(&s, &o, waits, tui_run);
    assert_true(see(s.master, &s.screen, "/help"));
    type(&s, "count to twenty\r");
    assert_true(see(s.master, &s.screen, "\033[?1049l")); /* back from the other screen */
    assert_int_equal(stage_close(&s, &err), 3);
    assert_int_equal(lines_of(err.p), 1);
    assert_non_null(strstr(err.p, "aerie: the device failed: " STICKY));
    buf_free(&err);
    logged(&log);
    assert_int_equal(strncmp(log.p, "device_failed|", 14), 0);
    assert_true((strlen(log.p) > 14) == (waits > 0));
    buf_free(&log);
    int (*const face[])(struct app *a) = {tui_run, plain_run};
    o.resume_last = true;
    for (int i = 0; i < 2; i++) {
        stage_open(&s, &o, -1, face[i]);
        assert_true(see(s.master, &s.screen, "stopped: device_failed"));
        type(&s, "/bye\r");
        assert_int_equal(stage_close(&s, &err), 0);
        buf_free(&err);
    }
}

static void test_the_screen_is_restored_and_a_later_start_shows_the_failed_turn(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    for (int waits = 0; waits <= 4; waits += 4) { /* before the first word, and after a few */
        new_db();
        new_spy(true);
        lose_the_screen(waits);
        drop_db();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_plain_face_ends_with_one_line_and_exit_code_3),
        cmocka_unit_test(test_a_batch_keeps_the_results_it_has_told),
        cmocka_unit_test(test_a_batch_records_cycles_unless_graphs_are_off),
        cmocka_unit_test(test_a_replay_tells_a_lost_device_from_a_difference),
        cmocka_unit_test(test_a_turn_that_was_stopped_before_it_had_a_prompt_replays_equal),
        cmocka_unit_test(test_a_turn_that_was_stopped_within_a_chunk_replays_equal),
        cmocka_unit_test(test_a_chunk_that_gave_up_a_checkpoint_runs_to_its_end),
        cmocka_unit_test(test_the_screen_is_restored_and_a_later_start_shows_the_failed_turn),
    };
    char *state = scratch_folder();
    setenv("XDG_STATE_HOME", state, 1);
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(state);
    return bad;
}
