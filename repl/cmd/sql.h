/* sql.h - a query typed by a user, run in a process of its own.
 *
 * SQLite's limits hold between two of its steps only, and one step can last for hours. So the query
 * runs in a child that can be killed: on Ctrl-C, on SIGTERM, and when its time is over. The child is
 * forked by the monitor (repl/monitor.h), which has no database open: a copy of this process would
 * inherit SQLite's locks.
 */
#ifndef AERIE_SQL_H
#define AERIE_SQL_H

#include "kernels/base.h"

/* sql_run(), which asks for a query: repl/repl.h. */
/* For monitor_start(): the query's process. Request on standard input, answer on standard output. */
int sql_child(void);

#endif
