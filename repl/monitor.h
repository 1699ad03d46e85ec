/* monitor.h - the process outside of the isolation (isolate.h), for the few things that the isolated
 * process may not do itself.
 *
 * The monitor is forked before the first thread, and before the isolation. It reads no data of
 * models, logs or servers. It serves the requests below, with their limits, for the process that
 * started it, and ends with that process:
 *
 *   create   a new file: never an existing one, never through a symbolic link as the last
 *            component, and never one in a folder or with a name that begins with a dot
 *            (configuration, keys)
 *   keep     the file that the monitor created last is complete; a file that is not kept is removed
 *            when the program ends, however it ends
 *   discard  removes a file, only if it is the one that the monitor created last
 *   edit     runs $VISUAL or $EDITOR on a file; a signal that ends the program ends the editor, too
 *   query    runs the function given to monitor_start() in a process of its own
 *
 * Main thread only.
 */
#ifndef AERIE_MONITOR_H
#define AERIE_MONITOR_H

#include "kernels/base.h"

/* query: what a child runs for monitor_query(), with its request on standard input and its answer on
 * standard output; returns its exit code. False and *e: no process could be started. */
bool monitor_start(int (*query)(void), struct err *e);

/* A descriptor of a new, empty file, readable and writable, mode 0600; -1 and errno. */
int monitor_create(const char *path);
/* Keeps the file that monitor_create() made last, or removes it; false and errno. */
bool monitor_settle(const char *path, bool keep);
/* Runs the user's editor on a file, in the foreground of the terminal. If SIGINT, SIGTERM or SIGHUP waits
 * (repl/interrupt.h), the editor and the programs that it started get SIGHUP, and SIGKILL half a second later. Returns
 * its wait status, or -1 and errno: it could not be started. */
int monitor_edit(const char *path);
/* The command that monitor_edit() runs: $VISUAL, $EDITOR, or vi. */
const char *monitor_editor(void);
/* Starts a query: at most one at a time. The descriptors stay the caller's. False and errno. */
bool monitor_query(int in, int out);
/* Waits for the query's process; first kills it if `kill`. Returns its wait status. */
int monitor_query_end(bool kill);

#endif
