/* reader.h - reads lines from a descriptor; a signal ends the wait.
 *
 * Input may be a terminal, a file or a pipe. While a reader waits it also waits for the signals of
 * repl/process/interrupt.h. Main thread. */
#pragma once

#include "kernels/base.h"

enum { READER_MOST = 64 << 20 }; /* bytes of a line */

struct reader {
    int fd;        /* the caller closes it */
    struct buf in; /* bytes read; the caller frees it */
    size_t at;     /* the first byte that was not returned in a line yet */
    size_t looked; /* bytes from there on in which there is no line break */
    bool eof, begun; /* begun: a line was returned */
};

enum got {
    GOT_LINE,
    GOT_END,    /* of the input */
    GOT_SIGNAL, /* a signal came first and still waits */
    GOT_ERROR,  /* *e says what */
};

/* Opens a regular file or a pipe without blocking; `what` names it in errors. -1 and *e. */
int reader_open(const char *path, const char *what, struct err *e);
/* At the end of a terminal's input: whether the terminal has hung up (not Ctrl-D). */
bool reader_hung_up(const struct reader *r);
/* The next line without its end (\n or \r\n), the first one also without a byte order mark,
 * appended to `out`. A NUL byte in it is an error. */
enum got reader_line(struct reader *r, struct buf *out, struct err *e);
/* Appends all of standard input, at most READER_MOST bytes, without its last line end. False and *e
 * (ERR_USAGE): too long, a NUL byte, or a signal came. */
bool reader_all(struct buf *out, struct err *e);
/* Appends a file's text, after an empty line if there is text already, without a byte order mark
 * and the line breaks at its end. False and *e (ERR_USAGE): too long, no text, or a signal came. */
bool reader_file(const char *path, struct buf *out, struct err *e);
