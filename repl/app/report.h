/* report.h - answers of an engine that several places show, in words or as JSON. Main thread
 * only. */
#pragma once

#include "engine/backend.h"
#include "repl/text/print.h"

/* EV_BATCH_REPLY, EV_BATCH_END and EV_CALIBRATION; false: the event is another one. */
bool report_event(const struct event *ev, const struct printer *to);
/* Why a prompt was computed again, as the member "reuse" of a JSON object; null where it is not
 * known. */
void report_reuse(const struct reuse_view *r, struct buf *json);
/* Memory as rows of a table: weights, draft, pools, other buffers, all; as JSON members of the
 * object that is open. */
void report_need(const struct printer *to, const struct need *n);
/* A size for people: "1.9 GiB". */
struct size_text {
    char s[16];
};
struct size_text size_text(uint64_t bytes);
/* The table and the verdict; as JSON members of the object that is open. */
void report_calibration(const struct calibration *c, const struct printer *to);
/* "5-1-6" or "plain"; returns out. */
const char *report_shape(const struct auto_view_shape *x, char out[16]);
