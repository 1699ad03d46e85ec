/* reader.c - see reader.h. */
#include "repl/process/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/utf8.h"
#include "repl/process/interrupt.h"

/* Reads more bytes into r->in, at most READER_MOST ahead of `at`, or sets r->eof: GOT_LINE either
 * way. */
static enum got reader_more(struct reader *r, struct err *e)
{
    static char part[65536];
    struct pollfd fd[2] = {{.fd = r->fd, .events = POLLIN},
                           {.fd = interrupt_fd(), .events = POLLIN}};
    for (;;) {
        if (poll(fd, 2, -1) < 0 && errno != EINTR) {
            err_set(e, ERR_USAGE, "cannot wait for the input: %s", strerror(errno));
            r->eof = true;
            return GOT_ERROR;
        }
        if (interrupt_waits())
            return GOT_SIGNAL;
        ssize_t n = fd[0].revents ? read(r->fd, part, sizeof part) : -1;
        if (n < 0 && (!fd[0].revents || errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0 || r->in.n - r->at > READER_MOST) {
            err_set(e, ERR_USAGE, n < 0 ? "cannot read the input: %s" : "the input is too long%s",
                    n < 0 ? strerror(errno) : "; expected at most 64 MiB");
            r->eof = true;
            r->at = r->in.n;
            return GOT_ERROR;
        }
        if (r->at == r->in.n)
            r->at = r->in.n = 0;
        buf_add(&r->in, part, (size_t)n);
        r->eof = n == 0;
        return GOT_LINE;
    }
}

enum got reader_line(struct reader *r, struct buf *out, struct err *e)
{
    for (;;) {
        const char *from = r->in.p ? r->in.p + r->at : "";
        size_t have = r->in.n - r->at;
        const char *nl = have > r->looked ? memchr(from + r->looked, '\n', have - r->looked) : NULL;
        if (nl || (r->eof && have)) {
            size_t n = nl ? (size_t)(nl - from) : have;
            size_t mark = r->begun ? 0 : utf8_mark(from, n);
            r->at += n + (nl != NULL);
            r->looked = 0;
            r->begun = true;
            from += mark;
            n -= mark;
            if (memchr(from, '\0', n))
                return FAILED(GOT_ERROR, e, ERR_USAGE, "a line of the input has a NUL byte; "
                              "expected text");
            buf_add(out, from, n && from[n - 1] == '\r' ? n - 1 : n);
            buf_str(out, "");
            return GOT_LINE;
        }
        r->looked = have;
        if (r->eof)
            return GOT_END;
        enum got g = reader_more(r, e);
        if (g != GOT_LINE)
            return g;
    }
}

bool reader_hung_up(const struct reader *r)
{
    struct pollfd in = {.fd = r->fd};
    return poll(&in, 1, 0) == 1 && (in.revents & POLLHUP);
}

int reader_open(const char *path, const char *what, struct err *e)
{
    struct stat st;
    int fd = file_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return FAILED(-1, e, ERR_USAGE, "cannot open %s: %s", path, strerror(errno));
    bool known = fstat(fd, &st) == 0;
    if (known && (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)))
        return fd;
    err_set(e, ERR_USAGE, "cannot read the %s %s: %s", what, path,
            known ? "expected a regular file or a pipe" : strerror(errno));
    close(fd);
    return -1;
}

bool reader_all(struct buf *out, struct err *e)
{
    struct reader r = {.fd = STDIN_FILENO};
    const size_t from = out->n;
    enum got g;
    while ((g = reader_line(&r, out, e)) == GOT_LINE && out->n <= READER_MOST)
        buf_char(out, '\n');
    buf_free(&r.in);
    if (g == GOT_LINE)
        return err_set(e, ERR_USAGE, "the input is too long; expected at most %d MiB",
                       READER_MOST >> 20);
    if (out->n > from)
        out->p[--out->n] = '\0';
    return g == GOT_END || (g == GOT_SIGNAL && err_set(e, ERR_USAGE, "interrupted"));
}

bool reader_file(const char *path, struct buf *out, struct err *e)
{
    struct reader r = {.fd = reader_open(path, "file", e)};
    enum got g = GOT_LINE;
    if (r.fd < 0)
        return false;
    if (!file_fits(r.fd, path, READER_MOST, e)) {
        close(r.fd);
        return false;
    }
    while (g == GOT_LINE && !r.eof)
        g = reader_more(&r, e);
    close(r.fd);
    bool ok = g == GOT_LINE || (g == GOT_SIGNAL && err_set(e, ERR_USAGE, "interrupted"));
    if (ok && r.in.n && memchr(r.in.p, '\0', r.in.n))
        ok = err_set(e, ERR_USAGE, "%s is no text: it has a NUL byte", path);
    while (ok && r.in.n && r.in.p[r.in.n - 1] == '\n')
        r.in.p[--r.in.n] = '\0';
    size_t mark = ok && r.in.n ? utf8_mark(r.in.p, r.in.n) : 0;
    if (ok && r.in.n > mark) {
        buf_str(out, out->n ? "\n\n" : "");
        buf_add(out, r.in.p + mark, r.in.n - mark);
    }
    buf_free(&r.in);
    return ok;
}
