/* probe_pass.h - taps in a forward pass (engine/probe.h describes the result).
 *
 * While net.probe is set, net_forward() calls the functions below between its operations. They only
 * read: rows of activation buffers and KV cells are copied to the host, and the attention operation
 * runs once more into a buffer of the probe, because its own output may be packed. So the pass
 * computes the same bits. Attention shares are computed on the host from a row's query and the keys
 * of the row's plan. Not inside a recorded graph; requests of one sequence only. Engine thread. */
#pragma once

#include "engine/probe.h"
#include "engine/run/forward.h"

struct probe_pass {
    struct probe *out; /* the caller's */
    int row;           /* requested: the row of shares and keys; -1: the pass's last */
    int key_layer;     /* requested: see struct probe */
    /* of the running pass */
    const struct plan *plan;
    const struct k_plan *kp;
    kbuf o, lse, bare; /* (PROBE_ROWS, widest), (PROBE_ROWS, heads): bare: without sinks */
    kbuf chosen;
};

/* Allocates the device buffers for probing passes of *n. False: out of memory. */
bool probe_open(struct probe_pass *x, struct net *n, struct err *e);
void probe_close(struct probe_pass *x, struct net *n);

/* Called by net_forward(), in this order: begin, then in each layer the residual, attention (after
 * q, k and v are there), output (of a pass in two parts), residual, experts, residual; then the
 * last boundary. Without n->probe they do nothing. */
void probe_begin(struct net *n, const struct plan *p, const struct k_plan *kp);
void probe_residual(struct net *n, int l, enum probe_point at);
void probe_attention(struct net *n, int l);
void probe_output(struct net *n, int l);
void probe_experts(struct net *n, int l);
/* Keeps the best tokens of pass rows [first, first + rows), whose logits are rows [0, rows). ids,
 * logp: (rows, PROBE_BEST) scratch on the device. */
void probe_logits(struct net *n, int first, int rows, kbuf logits, kbuf ids, kbuf logp);
