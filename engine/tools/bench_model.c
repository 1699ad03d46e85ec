/* bench_model.c - lanes of any length; see bench_model.h. */
#include "engine/tools/bench_model.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

static void add_tokens(struct bench *b, struct subject *s, struct lane *lane, int n)
{
    while (lane->tok.n < n)
        ids_add(&lane->tok, (int32_t)(bench_random(b) % (uint64_t)s->l.model.cfg.vocab));
}

bool bench_pretend(struct bench *b, struct subject *s, struct lane *lane, int n, struct err *e)
{
    struct runtime *rt = &s->runtime;
    *lane = (struct lane){.tap_row = -1};
    add_tokens(b, s, lane, n + 1);
    for (int upto; lane->seq.committed < n;) {
        int from = lane->seq.committed;
        upto = min_int(from + rt->max_rows, n);
        struct plan_req req = {.seq = &lane->seq, .n = upto - from, .token = lane->tok.v + from};
        if (!kv_reserve(&rt->kv, &lane->seq, upto, e) ||
            !pass_prepare(&rt->pass, PLAN_EXTEND, &req, 1, e))
            return false;
        kv_commit(&rt->kv, &lane->seq, upto);
        kv_release_window(&rt->kv, &lane->seq);
    }
    return true;
}

bool bench_prompted(struct bench *b, struct subject *s, struct lane *lane, int n, int topk,
                    struct err *e)
{
    *lane = (struct lane){.tap_row = -1};
    add_tokens(b, s, lane, n);
    while (lane->seq.committed < n) {
        int upto = min_int(lane->seq.committed + s->chunk, n);
        if (!lane_extend(&s->runtime, lane, upto, upto == n, topk > 0, max_int(topk, 1), e))
            return false;
    }
    return true;
}

void bench_describe(char *out, size_t room, const struct subject *s, int n, double hit)
{
    size_t at = (size_t)snprintf(out, room, "%d cells, %s", n,
                                 s->runtime.net.cells[0].type == KV_FP8    ? "fp8"
                                 : s->runtime.net.cells[0].type == KV_BF16 ? "bf16"
                                                                           : "f32");
    const char *cut = models_quant_text(&s->quant);
    if (cut)
        at += (size_t)snprintf(out + at, room - at, ", %s", cut);
    if (hit > 0)
        snprintf(out + at, room - at, ", %.1f experts a layer", hit);
}

const char *bench_length(char out[16], int n)
{
    bool k = n >= 1024 && n % 1024 == 0;
    snprintf(out, 16, k ? "%dk" : "%d", k ? n / 1024 : n);
    return out;
}
