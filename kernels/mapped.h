/* mapped.h - files that are read through mappings although other processes may write to them.
 *
 * If a file is truncated while it is mapped, reading after its new end raises SIGBUS. The
 * handler of this file puts zeros there, so that the computation goes on, and notes the loss;
 * mapped_check() reports the loss, and any other change of a mapped file's size or time. Code that
 * computes with mapped data calls mapped_check() before it uses the results, and drops them if it
 * fails.
 *
 * All functions may be called from several threads at once.
 */
#pragma once

#include "kernels/base.h"

#include <signal.h>

struct mapped;

/* Maps a whole regular file, which must not be empty, for reading. The descriptor stays the
 * caller's; path is for messages, and printable. NULL and *e (ERR_MODEL): the system refuses. The
 * caller ends it with mapped_close(). Calls mapped_catch(). */
struct mapped *mapped_open(int fd, const char *path, struct err *e);
void mapped_close(struct mapped *m); /* NULL is allowed */
const char *mapped_base(const struct mapped *m);
size_t mapped_size(const struct mapped *m);

/* True while no mapped file has changed since it was mapped; otherwise *e (ERR_MODEL) names the
 * file and what happened. One fstat() for each file: less than a microsecond. */
bool mapped_check(struct err *e);

/* Whether a file can be trusted not to change while it is mapped: it lies on a file system of this
 * machine, only its owner and group may write to it, and it was not written to within the last two
 * seconds. Otherwise *why is the reason, a constant text. */
bool mapped_trusted(int fd, const char **why);

/* Installs the handler of SIGBUS, once a process; a handler that was installed before gets the
 * signals that no mapping raised. Handlers that are installed later call mapped_fault() first. */
void mapped_catch(void);
/* For handlers: true if the signal was raised by reading a mapping of this file and reading can be
 * tried again. Async-signal-safe. */
bool mapped_fault(int sig, const siginfo_t *info);
