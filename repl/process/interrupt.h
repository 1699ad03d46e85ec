/* interrupt.h - Ctrl-C and termination signals, for the full screen and the plain mode alike.
 *
 * The handler writes each signal into a pipe. Code that sleeps polls the pipe beside its input, so
 * that no signal is lost between a check and the sleep; long work asks interrupt_waits(). A SIGINT,
 * SIGTERM or SIGHUP that comes half a second or more after one that still waits means that the
 * program is stuck: the handler restores the terminal and ends the process with 128 + signal. One
 * instance per process; everything but the handler runs on the main thread. */
#pragma once

#include "kernels/base.h"

/* Catches n signals. restart: system calls go on after a handler (SA_RESTART). restore: called in
 * the handler of a stuck program, async-signal-safe; or NULL. */
bool interrupt_open(const int *sig, int n, bool restart, void (*restore)(void), struct err *e);
/* Sets a function that the handler calls on the main thread with each signal before it is put into
 * the pipe, for actions that cannot wait until the pipe is read. It must be async-signal-safe; if
 * it returns true, the signal is not put into the pipe. NULL: none. Returns the function set
 * before. interrupt_close() and interrupt_leave() remove it. */
typedef bool interrupt_first_fn(int sig);
interrupt_first_fn *interrupt_first(interrupt_first_fn *first);
/* Until interrupt_close() or interrupt_leave(), the first interrupt_waits() after a SIGCONT calls
 * continued() on the main thread: the screen must be redrawn before the running work is done and
 * the pipe is read. NULL: nothing is called. */
void interrupt_continued(void (*continued)(void));
/* Until interrupt_close(), SIGINT, SIGTERM and SIGHUP also set *s. */
void interrupt_cancels(struct stop *s);
void interrupt_close(void); /* restores the former handlers; does nothing if not open */
/* For a program that ends, instead of interrupt_close(): of signals that come from now on, SIGINT,
 * SIGTERM and SIGHUP end the process at once with 128 + signal, but not within the first half
 * second, because terminals, shells and service managers send several. Does nothing if not open. */
void interrupt_leave(void);

int interrupt_fd(void);   /* polls readable while a signal waits; -1: not open */
int interrupt_next(void); /* removes and returns the oldest waiting signal; 0: none */
/* Whether SIGINT, SIGTERM or SIGHUP waits, so that the running work should end. */
bool interrupt_waits(void);
/* The same, and nothing else: continued() is not called. Any thread. */
bool interrupt_asked(void);
/* Writes all bytes to a descriptor that may block, such as a pipe that nobody reads. False and
 * errno: they could not be written; EINTR: one of these signals waits. */
bool interrupt_write(int fd, const char *bytes, size_t n);
