/* sql.h - a query of the user on the log, in a process of its own. Main thread only. */
#pragma once

#include "kernels/base.h"

/* As hdb_sql(), in a process of its own that can be killed: text or JSON of at most max_rows rows
 * of a query on the log or pack that monitor_start() was given. False and *e: also when the query
 * was interrupted or took too long. */
bool sql_run(const char *query, bool json, int max_rows, struct buf *out, struct err *e);
/* For monitor_start(): the query's process. Request on standard input, answer on standard
 * output. */
int sql_child(const char *log);
