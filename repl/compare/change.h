/* change.h - "NAME=VALUE": one change of the options with which an engine is opened.
 *
 * NAME is a setting, "bug.NUMBER" or "bug.NAME", or an option of opening (engine/opts.h): a flag of
 * the command line without its dashes, with _ for -. Plain data; any thread. */
#pragma once

#include "engine/opts.h"

/* Makes the change in *o. Texts of *o then point into `text`, which must outlive it. False and *e
 * (ERR_USAGE), *o unchanged: there is no such name, or the value cannot be. */
bool change_apply(struct engine_opts *o, const char *text, struct err *e);
/* Whether `a` and `b` differ in more than settings and faults, so that each needs an engine of its
 * own. */
bool change_reopens(const struct engine_opts *a, const struct engine_opts *b);
/* Appends the settings and faults of `to` that differ from those of `from`, as "name=value" lines:
 * each is the text of an RQ_SET. */
void change_lines(const struct engine_opts *from, const struct engine_opts *to, struct buf *lines);
