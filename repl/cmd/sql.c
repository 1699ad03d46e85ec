/* sql.c - a query typed by a user, run in a process of its own.
 *
 * SQLite checks its limits only between two VM instructions, and one instruction can last for
 * hours. So the query runs in a child process that is killed on Ctrl-C, on SIGTERM, and when its
 * time is over. The child is forked by the monitor (repl/process/monitor.h), which has no database
 * open: a copy of this process would inherit SQLite's locks.
 *
 * Request: "JSON MAX_ROWS\n", the query. Answer: "KIND\n" (enum err_kind), then the result or the
 * error's message. Which log is queried is not part of the request: the monitor knows it from
 * before the isolation. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "history/history.h"
#include "kernels/sanitizers.h"
#include "repl/cmd/sql.h"
#include "repl/process/interrupt.h"
#include "repl/process/isolate.h"
#include "repl/process/monitor.h"

enum {
    CHILD_MS = 5000,             /* the child's own limit is 2 s; the rest is for its start */
    CHILD_CPU_S = 4,
    ANSWER_BYTES = 64 << 20,
};

/* ---- the parent ---- */

/* A descriptor from which the child reads the request; -1 and *e. */
static int request(const char *query, bool json, int max_rows, struct err *e)
{
    struct buf b = {0};
    buf_printf(&b, "%d %d\n%s", json, max_rows, query);
    int fd = memfd_create("query", MFD_CLOEXEC);
    bool ok = fd >= 0 && write_fully(fd, b.p, b.n) && lseek(fd, 0, SEEK_SET) == 0;
    buf_free(&b);
    if (ok)
        return fd;
    err_set(e, ERR_USAGE, "cannot pass the query on: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Reads the answer to its end; false and *e when the child has to be killed. */
static bool read_answer(int fd, struct buf *answer, struct err *e)
{
    static char part[65536];
    uint64_t until = clock_ns() + CHILD_MS * UINT64_C(1000000);
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN},
                              {.fd = interrupt_fd(), .events = POLLIN}};
        uint64_t now = clock_ns();
        if (interrupt_waits())
            return err_set(e, ERR_USAGE, "the query was interrupted");
        if (now >= until)
            return err_set(e, ERR_USAGE, "the query took longer than 2 s and was stopped");
        /* another signal, such as a resize, stays in the pipe and would end each poll(): poll in
         * slices */
        if (poll(p, 2, (int)((until - now) / 1000000) + 1) > 0 && !p[0].revents &&
            !interrupt_waits())
            poll(p, 1, 50);
        if (!p[0].revents)
            continue;
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || answer->n + (size_t)n > ANSWER_BYTES)
            return err_set(e, ERR_USAGE, "the query's answer cannot be read: %s",
                           n < 0 ? strerror(errno) : "it is larger than 64 MiB");
        if (n == 0)
            return true;
        buf_add(answer, part, (size_t)n);
    }
}

static bool take_answer(const struct buf *answer, int status, struct buf *out, struct err *e)
{
    const char *nl = answer->n ? memchr(answer->p, '\n', answer->n) : NULL;
    const char *at = answer->p;
    int kind = ERR_USAGE;
    if (nl)
        int_at(&at, &kind);
    int killed = !nl && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    /* the limit of processor time: the kernel sends one of these */
    if (killed == SIGXCPU || killed == SIGKILL)
        return err_set(e, ERR_USAGE, "the query took longer than 2 s and was stopped");
    /* sent by the terminal to both processes */
    if (killed == SIGINT || killed == SIGTERM || killed == SIGHUP)
        return err_set(e, ERR_USAGE, "the query was interrupted");
    if (!nl)
        return err_set(e, ERR_USAGE, "the query's process ended without an answer (status %d)",
                       status);
    if (kind != ERR_NONE)
        return err_set(e, (enum err_kind)kind, "%s", nl + 1);
    buf_add(out, nl + 1, answer->n - (size_t)(nl + 1 - answer->p));
    return true;
}

bool sql_run(const char *query, bool json, int max_rows, struct buf *out, struct err *e)
{
    int end[2], status = 0;
    FREED(buf_free) struct buf answer = {0};
    int in = request(query, json, max_rows, e);
    if (in < 0)
        return false;
    if (pipe2(end, O_CLOEXEC) != 0) {
        close(in);
        return err_set(e, ERR_USAGE, "cannot make a pipe for the query: %s", strerror(errno));
    }
    bool ok = monitor_query(in, end[1]) ||
              err_set(e, ERR_USAGE, "cannot start the query's process: %s", strerror(errno));
    close(in);
    close(end[1]);
    if (ok) {
        ok = read_answer(end[0], &answer, e);
        status = monitor_query_end(!ok);
        ok = ok && take_answer(&answer, status, out, e);
    }
    close(end[0]);
    return ok;
}

/* ---- the child ---- */

static void limit(int what, rlim_t most)
{
    struct rlimit l = {most, most};
    setrlimit(what, &l);
}

static void answer_all(const char *kind, const char *text, size_t n)
{
    if (write_fully(STDOUT_FILENO, kind, strlen(kind)))
        write_fully(STDOUT_FILENO, text, n);
}

/* A query writes only the shared-memory index of the write-ahead log, beside the database. */
static bool isolate_query(const char *db, struct err *e)
{
    FREED(free_at) char *folder = path_folder(db);
    const char *const name[] = {folder};
    struct isolated got;
    isolate(&(struct isolation){name, 1, NETWORK_NEVER}, &got);
    return !got.failed || err_set(e, ERR_USAGE, "cannot isolate the query's process: %s",
                                  got.writes ? got.programs_why_not : got.writes_why_not);
}

/* Runs the query of a request; false and *e. */
static bool answer_query(const char *log, const struct buf *asked, struct buf *out, struct err *e)
{
    const char *query = asked->p;
    int json = 0, max_rows = 0;
    CHECK(int_at(&query, &json) && *query++ == ' ' && int_at(&query, &max_rows) &&
          *query++ == '\n');
    FREED(hdb_close_at) struct hdb *d = hdb_open(log, e);
    return d && hdb_sql(d, query, json, max_rows, out, e);
}

int sql_child(const char *log)
{
    FREED(buf_free) struct buf b = {0};
    FREED(buf_free) struct buf out = {0};
    struct err e = {0};
    char part[4096], kind[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit(RLIMIT_CPU, CHILD_CPU_S);
    limit(RLIMIT_CORE, 0);
#if !HAS_ASAN && !HAS_TSAN /* shadow memory needs more */
    limit(RLIMIT_AS, (rlim_t)2 << 30);
#endif
    bool ok = isolate_query(log, &e);
    buf_str(&b, "");
    for (ssize_t n; ok && (n = read(STDIN_FILENO, part, sizeof part)) > 0;)
        buf_add(&b, part, (size_t)n);
    ok = ok && answer_query(log, &b, &out, &e);
    snprintf(kind, sizeof kind, "%d\n", ok ? ERR_NONE : (int)e.kind);
    answer_all(kind, ok ? buf_text(&out) : e.msg, ok ? out.n : strlen(e.msg));
    return 0;
}
