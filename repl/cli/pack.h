/* pack.h - the files that `aerie pack` writes beside the pack: a report in the shape of an engine's
 * bug form, and one step's plans as JSON. Main thread only. */
#pragma once

#include "repl/cli/cli.h"

/* The session that is packed, and the step in question. */
struct pack_job {
    struct cli *c;
    struct hdb *d;
    const struct session_row *row;
    enum pack_level level;
    const char *path; /* of the pack */
    int turn, step;
    const char *chosen; /* how the step was chosen, for people */
    struct hdb_past past;
    struct buf about;   /* of the session's latest run */
    struct turn_row user, reply; /* of the turn; reply.n == 0: it has none */
    struct step_row at;          /* the step; turn == 0: it is not in the log */
};

/* pack_issue.c. The index of an engine's form by its name: "sglang", "vllm", "llama.cpp"; -1 and
 * *e. */
int issue_form(const char *name, struct err *e);
/* Appends the report. control: a sentence on the result of a run without drafting. */
void issue_report(const struct pack_job *j, int form, const char *control, struct buf *out);

/* pack_run.c. Computes the session again up to the step, and appends its plans as one JSON
 * object (history/pack/PACK.md). False and *e: the model is not here, ids are missing, or the step
 * was not reached. */
bool run_plan(struct pack_job *j, struct buf *out, struct err *e);
/* Appends a sentence: whether the turn has the same ids without drafting, or why that was not
 * run. */
void run_control(struct pack_job *j, struct buf *out);
