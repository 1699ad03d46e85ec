/* triage.h - shared by the files of `aerie triage`. Main thread only. */
#pragma once

#include "repl/cli/cli.h"
#include "repl/compare/triage.h"

/* triage_server.c: the counters of the server that the command names. False and *e: it cannot be
 * reached, or reports no drafts. */
bool triage_server(struct cli *c, struct triage *t, const struct stop *stop, struct err *e);
