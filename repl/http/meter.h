/* meter.h - the answer of GET /metrics: counters and histograms over all requests, in the
 * Prometheus text format with the names and buckets of vLLM 0.26, and the pools under aerie's own
 * names. Main thread. */
#pragma once

#include "engine/backend.h"
#include "repl/http/task.h"

enum { METER_BUCKETS = 24 };
struct histogram {
    uint64_t count[METER_BUCKETS]; /* of each bucket alone */
    uint64_t n;
    double sum;
};

struct meter {
    uint64_t prompt, cached, generated;
    struct draft_sums drafts;
    uint64_t finished[5];        /* enum finish */
    uint64_t refused;            /* requests answered with an error */
    struct histogram first, between, whole, wait, prefill, decode, n_prompt, n_generated;
};

void meter_begin(struct meter *m, const struct reply *r);
/* 0: the first step */
void meter_step(struct meter *m, const struct event *ev, uint64_t ns_before);
void meter_end(struct meter *m, const struct task *t, const struct reply *r,
               const struct event *ev);
/* Appends the page. */
void meter_text(const struct meter *m, const char *model, int running, int waiting,
                struct backend *b, struct buf *out);
