/* server_steps.c - see server_steps.h. */
#include "engine/remote/server_steps.h"

/* Whether the listed steps, after `lead` tokens, yield all tokens, and the last step at least
 * one. */
static bool adds_up(const struct incoming *in, int lead)
{
    int64_t at = lead;
    for (int i = 0; i < in->accepted.n; i++) {
        if (at >= in->n_token)
            return false;
        at += in->accepted.v[i] + 1;
    }
    return at >= in->n_token;
}

/* The number of pieces that end where a step ends. */
static int ends_met(const struct incoming *in, int lead)
{
    int64_t at = lead;
    int met = 0;
    for (int i = 0, piece = 0; i < in->accepted.n; i++) {
        at += in->accepted.v[i] + 1;
        while (piece < in->n_piece && in->piece[piece].first + in->piece[piece].n < at)
            piece++;
        met += piece < in->n_piece && in->piece[piece].first + in->piece[piece].n == at;
    }
    return met;
}

int server_steps_lead(const struct incoming *in)
{
    bool none = adds_up(in, 0), one = adds_up(in, 1);
    if (none && one)
        return ends_met(in, 0) > ends_met(in, 1) ? 0 : 1;
    return one ? 1 : none ? 0 : -1;
}
