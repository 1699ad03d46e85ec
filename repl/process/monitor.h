/* monitor.h - the process outside of the isolation (isolate.h), for the few things that the
 * isolated process may not do itself.
 *
 * The monitor is forked before the first thread, and before the isolation. It reads no data of
 * models, logs or servers, and it does not trust the process that started it: it acts only on files
 * that it made itself, and follows no link on the way to the folder of a new one. It serves the
 * requests below, and ends with that process:
 *
 *   create   a new file whose name ends in .md, .jsonl, .svg, .png or .screen.txt, mode 0600:
 *            never an existing one, never below a folder or with a name that begins with a dot
 *            (configuration, keys), never in /proc, /sys or /dev
 *   keep     the file that the monitor created last is complete; a file that is not kept is removed
 *            by the next request to create one, or when the program ends, however it ends
 *   discard  removes the file that the monitor created last
 *   message  a new file in a folder of its own, mode 0700, for the editor
 *   edit     runs $VISUAL or $EDITOR on the message, by its absolute path, and removes the folder;
 *            a signal that ends the program ends the editor, too
 *   query    runs the function given to monitor_start() in a process of its own, for the log given
 *            there
 *
 * Main thread only. */
#pragma once

#include "kernels/base.h"

/* query: what a child runs for monitor_query(), with the path of the log, its request on standard
 * input and its answer on standard output; returns its exit code. log: NULL or copied. False and
 * *e: no process could be started. */
bool monitor_start(int (*query)(const char *log), const char *log, struct err *e);

/* A descriptor of a new, empty file, readable and writable, mode 0600; -1 and errno: EPERM if the
 * path is hidden, in /proc, /sys or /dev, or no name of an export; ELOOP if a folder on the way is
 * a link. */
int monitor_create(const char *path);
/* Keeps the file that monitor_create() made last, or removes it; false and errno. */
bool monitor_settle(const char *path, bool keep);
/* A descriptor of a new, empty message, for writing; -1 and errno. A message that was not edited
 * is removed. */
int monitor_message(void);
/* Runs the user's editor on the message, in the foreground of the terminal. If SIGINT, SIGTERM or
 * SIGHUP waits (repl/process/interrupt.h), the editor and the programs that it started get SIGHUP,
 * and SIGKILL half a second later. Returns its wait status, or -1 and errno: it could not be
 * started.
 * *text receives a descriptor of the edited message, for reading, or -1: the editor left none. */
int monitor_edit(int *text);
/* The command that monitor_edit() runs: $VISUAL, $EDITOR, or vi. */
const char *monitor_editor(void);
/* Starts a query: at most one at a time. The descriptors stay the caller's. False and errno. */
bool monitor_query(int in, int out);
/* Waits for the query's process; first kills it if `kill`. Returns its wait status. */
int monitor_query_end(bool kill);
