/* facts.h - what a session was computed with, as people read it: settings, checker, historical
 * faults, device, models, taken from the lines that the log keeps. Main thread only.
 */
#ifndef AERIE_FACTS_H
#define AERIE_FACTS_H

#include "engine/backend.h"
#include "engine/opts.h"

/* `lines` are "name=value" lines: of hdb_about(), of turn_row.sampling, of OP_OPEN. */

/* The value of a name; NULL when there is none. The caller frees. */
char *facts_value(const char *lines, const char *name);
/* "seed 1, temperature 0, check on" and every setting that is not the default. */
void facts_settings(const char *lines, struct buf *out);
/* What differs from the lines before: "temperature 0.7, check off, fault 24617 on"; nothing where
 * nothing does. */
void facts_changes(const char *before, const char *lines, struct buf *out);
/* "cpu, 2 threads, AVX-512; f32 activations, f32 cells; page size 16; context 4096 ...". */
void facts_computed(const char *about, struct buf *out);

/* What replay needs of an open engine (info NULL: of the options alone), as "name=value" lines. */
void facts_config(const struct engine_opts *o, const struct backend_info *i, struct buf *out);
/* The compiler and the build's id: "gcc 12.2.0, build 3fa9c01b2d4e". Constant. */
const char *facts_build(void);
/* What decides the bits and is another in `now` than in `log`: "page_size 4, here 16". Lines that one
 * of them lacks are not compared, nor are version, device and flags, which need not matter. */
void facts_compare(const char *log, const char *now, struct buf *out);
/* The lines as a JSON object of strings. */
void facts_json(const char *lines, struct buf *json);

#endif
