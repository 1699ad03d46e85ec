/* reply_events.c - see reply_events.h. */
#include "engine/remote/reply_events.h"

#include <math.h>

enum { MOST_STEPS = 1 << 15 }; /* of a reply, in the log: its writer takes half a second for them */

enum stop_reason reply_stop(const struct incoming *in)
{
    return in->stopped                   ? STOP_CANCEL
           : in->failed                  ? STOP_FAULT
           : in->finish == FINISH_LENGTH ? STOP_MAX
           : in->finish == FINISH_ABORT  ? STOP_FAULT
                                         : STOP_END;
}

int reply_count(int64_t v)
{
    return v < 0 ? 0 : v > INT32_MAX ? INT32_MAX : (int)v;
}

struct token_fact *reply_facts(const struct incoming *in, int first, int n)
{
    struct token_fact *fact = n ? xcalloc((size_t)n, sizeof *fact) : NULL;
    for (int i = 0; i < n; i++) {
        const struct answer_token *k = &in->token[first + i];
        fact[i] =
            (struct token_fact){.logp = k->logp, .rival_logp = k->rival_logp, .rival = k->rival};
    }
    return fact;
}

void reply_ids(const struct incoming *in, struct ids *out)
{
    if (in->reply.n)
        ids_cat(out, in->reply.v, in->reply.n);
    else
        for (int i = 0; in->ids && i < in->n_token; i++)
            ids_add(out, in->token[i].id);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Posts one step. event.tokens gets only ids that the server sent: tokens without ids are not
 * posted. */
static void post_step(struct talk *talk, const struct incoming *in, int step, int first, int n,
                      const struct step_rec *rec)
{
    struct event ev = talk_event(talk, EV_STEP);
    ev.step = step;
    ev.rec = *rec;
    ev.rec.bonus = -1;
    ev.rec.margin = NAN;
    if (in->ids && n) {
        ev.facts = reply_facts(in, first, n);
        for (int i = 0; i < n; i++)
            ids_add(&ev.tokens, in->token[first + i].id);
        if (rec->source == STEP_REPORTED && n > rec->accepted)
            ev.rec.bonus = in->token[first + n - 1].id;
    }
    if (n) { /* the margin is NAN if one of the two is not reported */
        const struct answer_token *last = &in->token[first + n - 1];
        ev.rec.margin = last->logp - last->rival_logp;
        ev.tops = xcalloc(1, sizeof *ev.tops);
        tops_slice(ev.tops, &in->tops, first, n);
    }
    talk_post(talk, &ev);
}

/* Microseconds from sending the request until a piece came. */
static uint64_t arrived(const struct incoming *in, const struct piece *p)
{
    return p->ns > in->call.ns_begin ? (p->ns - in->call.ns_begin) / 1000 : 0;
}

/* The context's length before the step that yields token `at` of the reply: the token before it is
 * not in the context yet, because its own pass is the step (see struct step_rec). */
static int pos_before(const struct incoming *in, int at)
{
    return max_int(0, reply_count(in->count.prompt) + at - 1);
}

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

/* Posts the steps that the server lists with their accepted drafts: step i yields accepted[i] + 1
 * tokens, the last step perhaps fewer, because the reply ended at an accepted token; servers may
 * count accepted drafts behind the end. The `lead` tokens before them come from the prompt's
 * pass. */
static int post_server_steps(struct talk *talk, const struct incoming *in, int lead,
                             struct draft_sums *sums)
{
    int at = lead, step = 0, piece = 0;
    if (lead)
        post_step(talk, in, ++step, 0, lead,
                  &(struct step_rec){.kind = STEP_DECODE,
                                     .pos0 = pos_before(in, 0),
                                     .source = STEP_PIECE,
                                     .us_arrived = arrived(in, &in->piece[0])});
    for (int i = 0; i < in->accepted.n && at < in->n_token && step < MOST_STEPS; i++) {
        int n = min_int(in->accepted.v[i] + 1, in->n_token - at);
        while (piece < in->n_piece - 1 && in->piece[piece].first + in->piece[piece].n < at + n)
            piece++;
        int accepted = min_int(in->accepted.v[i], n);
        int drafted = max_int(accepted, i < in->drafted.n ? in->drafted.v[i] : 0);
        struct step_rec rec = {.kind = drafted ? STEP_SPEC : STEP_DECODE,
                               .pos0 = pos_before(in, at),
                               .rows = drafted + 1,
                               .drafted = drafted,
                               .accepted = accepted,
                               .source = STEP_REPORTED,
                               .us_arrived = arrived(in, &in->piece[piece])};
        post_step(talk, in, ++step, at, n, &rec);
        draft_sums_add(sums, &rec, drafted);
        at += n;
    }
    return step;
}

/* Posts the pieces of the stream as steps. A piece need not be a step of the server, so nothing is
 * reported about drafts. */
static int post_pieces(struct talk *talk, const struct incoming *in)
{
    int n = min_int(in->n_piece, MOST_STEPS);
    for (int i = 0; i < n; i++) {
        const struct piece *p = &in->piece[i];
        post_step(talk, in, i + 1, p->first, p->n,
                  &(struct step_rec){.kind = STEP_DECODE,
                                     .pos0 = pos_before(in, p->first),
                                     .source = STEP_PIECE,
                                     .us_arrived = arrived(in, p)});
    }
    return n;
}

int reply_post_steps(struct talk *talk, const struct incoming *in, struct draft_sums *sums)
{
    int lead = in->accepted.n && in->ids && in->n_piece ? server_steps_lead(in) : -1;
    return lead >= 0 ? post_server_steps(talk, in, lead, sums) : post_pieces(talk, in);
}
