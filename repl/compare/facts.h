/* facts.h - describes what computed a session: settings, checker, historical faults, device and
 * models, from the "name=value" lines of the log. Main thread only. */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"
#include "history/history.h"

/* `lines` are "name=value" lines: of hdb_about(), of turn_row.sampling, of OP_OPEN. */

/* The value of a name; NULL when there is none. The caller frees. */
char *facts_value(const char *lines, const char *name);
/* The draft: the hash of its weights, or "ngram", which has none; "": no draft. NULL: not known.
 * The caller frees. */
char *facts_draft(const char *lines);
/* Whether penalties or biases changed the logits that a turn's tokens were chosen from. The log
 * probabilities are those of the unchanged logits, and do not say which token is chosen then. */
bool facts_steered(const char *lines);
/* Whether a run was computed by a server, or by another program whose records were imported. */
bool facts_served(const char *about);
/* Whether a run's token ids are those of a tokenizer with this digest; true where it is not
 * known. */
bool facts_same_tokens(const char *about, const char *tokenizer_sha);
/* "seed 1, temperature 0, check on" and every setting that is not the default. */
void facts_settings(const char *lines, struct buf *out);
/* Appends the differences from the lines `before`: "temperature 0.7, check off, fault 24617 on". */
void facts_changes(const char *before, const char *lines, struct buf *out);
/* "cpu, 2 threads, AVX-512; f32 activations, f32 cells; page size 16; context 4096 ...". */
void facts_computed(const char *about, struct buf *out);

/* Appends the open models' hashes as "name=value" lines, as the log has them. */
void facts_models(const struct backend_info *i, struct buf *out);
/* Appends as "name=value" lines what a replay opens its engine with; i NULL: from the options
 * alone. */
void facts_config(const struct engine_opts *o, const struct backend_info *i, struct buf *out);
/* The compiler and the build's id: "gcc 12.2.0, build 3fa9c01b2d4e". Constant. */
const char *facts_build(void);
/* The facts that differ and decide the bits of a reply. */
struct facts_diff {
    struct fact_diff {
        char *name, *log, *now;
        const char *model; /* "model", "tokenizer", "draft model": of a hash of one; else NULL */
    } *at;
    int n;
};
/* Not compared: lines that only one side has, and version, device and flags, which need not change
 * bits. Free *out by facts_diff_free(). */
void facts_compare(const char *log, const char *now, struct facts_diff *out);
void facts_diff_free(struct facts_diff *d);
bool facts_same_models(const struct facts_diff *d);
/* "page_size 4, here 16; another draft model (ngram, here none)" */
void facts_diff_print(const struct facts_diff *d, struct buf *out);
/* "no text, token ids kept; 12 turns, 340 steps; trees of 9.3..9.40; seal 3fa9c01b2d4e". */
void facts_pack(const struct pack_about *a, struct buf *out);
/* The description of an open pack as a JSON object; null for a log. */
void facts_pack_json(const struct pack_about *a, struct buf *json);
/* Appends why a fault cannot fire with the open model under these settings. False: it can. */
bool facts_unmet_needs(const struct backend_info *i, const struct settings *s, enum bug b,
                       int variant, struct buf *out);
/* The lines as a JSON object of strings. */
void facts_json(const char *lines, struct buf *json);
