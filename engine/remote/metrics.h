/* metrics.h - reads metrics in the Prometheus text format, as SGLang, vLLM and llama-server report
 * them at /metrics.
 *
 * A page is parsed into samples. A server with several ranks or engines reports one sample for
 * each; the caller chooses how they are combined. Pure functions; a struct belongs to one thread.
 */
#pragma once

#include "kernels/base.h"

enum { METRICS_MOST = 20000 }; /* samples of a page */

struct metric {
    const char *name;   /* without a prefix such as "vllm:" or "sglang_" */
    const char *prefix; /* "vllm", "sglang", "llamacpp", or "" */
    const char *labels; /* "le=\"0.5\",engine=\"0\"", as received, or "" */
    double value;
};

struct metrics {
    struct metric *at; /* (n) in the page's order */
    int n;
    int n_bad; /* lines that are no samples */
    char *text; /* owned: the page, cut into strings */
};

/* Reads a page of n bytes. False and *e (ERR_MODEL): more than METRICS_MOST samples. Lines that
 * cannot be read are counted and left out. The caller frees. */
bool metrics_read(struct metrics *metrics, const char *page, size_t n, struct err *e);
void metrics_free(struct metrics *metrics);

/* The value of a label of a sample, unescaped: false where it has no such label. */
bool metric_label(const struct metric *metric, const char *label, struct buf *out);

/* The next label of a set: its beginning, as received, and *n, its bytes; *at, at first
 * metric->labels, is set behind it. NULL: there is none. */
const char *metric_pair(const char **at, size_t *n);

enum metrics_join { METRICS_SUM, METRICS_MAX };
/* The combined value of all samples of a name (if label is not NULL: of those with label=value).
 * False: there is none, and *out is unchanged. *count (or NULL): their number. */
bool metrics_value(const struct metrics *metrics, const char *name, const char *label,
                   const char *value, enum metrics_join join, double *out, int *count);
