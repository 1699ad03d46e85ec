/* kept.c - see kept.h. */
#include "engine/remote/kept.h"

#include <math.h>

void kept_open(struct remote_kept *kept)
{
    *kept = (struct remote_kept){0};
    pthread_mutex_init(&kept->mu, NULL);
    ring_open(&kept->ring);
    kept->tops = xcalloc(TOPS_KEPT, sizeof *kept->tops);
    kept->turn = xcalloc(SERVED_KEPT, sizeof *kept->turn);
}

static void drop_tops(struct remote_kept *kept)
{
    for (int i = 0; i < TOPS_KEPT; i++) {
        tops_free(kept->tops[i].tops);
        kept->tops[i] = (struct kept_tops){0};
    }
    kept->n_tops = 0;
}

void kept_close(struct remote_kept *kept)
{
    drop_tops(kept);
    ring_close(&kept->ring);
    for (int i = 0; i < kept->n_text; i++)
        free(kept->text[i].p);
    FREE(kept->text, kept->tops, kept->turn);
    pthread_mutex_destroy(&kept->mu);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A fork keeps what its parent's turns left; any other session begins empty. */
static void begin_session(struct remote_kept *kept, const struct event *ev)
{
    uint64_t n = 0;
    if (ev->fork_turn > 0 && strcmp(ev->parent, kept->session) == 0) {
        ring_cut(&kept->ring, ev->fork_turn);
        for (n = kept->n_turn; n > 0 && kept->turn[(n - 1) % SERVED_KEPT].turn > ev->fork_turn; n--)
            ;
    } else {
        ring_clear(&kept->ring);
        drop_tops(kept);
    }
    kept->n_turn = n;
    memcpy(kept->session, ev->session, sizeof kept->session);
}

static void learn(struct remote_kept *kept, int32_t id, const char *text, int n)
{
    if (id < 0 || id >= TEXT_IDS || !text || n == 0)
        return;
    if (id >= kept->n_text) {
        int was = kept->n_text;
        RESERVE(kept->text, id + 1, kept->n_text);
        memset(kept->text + was, 0, (size_t)(kept->n_text - was) * sizeof *kept->text);
    }
    if (!kept->text[id].p) {
        kept->text[id].p = xmalloc((size_t)n + 1);
        memcpy(kept->text[id].p, text, (size_t)n);
        kept->text[id].p[n] = '\0';
        kept->text[id].n = (size_t)n;
    }
}

static void add_tops(struct remote_kept *kept, const struct event *ev)
{
    const struct tops *t = ev->tops;
    if (!t || !t->n)
        return;
    for (int i = 0; i < t->n; i++)
        learn(kept, t->at[i].id, t->at[i].text, t->at[i].n);
    struct kept_tops *at = &kept->tops[kept->n_tops++ % TOPS_KEPT];
    tops_free(at->tops);
    *at = (struct kept_tops){ev->turn, ev->step, tops_copy(t)};
}

static void add_step(struct remote_kept *kept, const struct event *ev)
{
    struct token_fact none[TREE_MAX];
    int n = min_int(ev->tokens.n, TREE_MAX);
    for (int i = 0; i < n && !ev->facts; i++)
        none[i] = (struct token_fact){.logp = NAN, .rival_logp = NAN, .rival = -1};
    static const struct pages_held unknown = {{-1, -1, -1}};
    ring_push(&kept->ring, ev->turn, ev->step, &ev->rec, NULL, ev->tokens.v, ev->facts ? ev->facts
              : none, n, &unknown);
    add_tops(kept, ev);
}

static void add_turn(struct remote_kept *kept, const struct event *ev)
{
    struct served_turn *t = &kept->turn[kept->n_turn++ % SERVED_KEPT];
    *t = (struct served_turn){.turn = ev->turn, .reason = ev->reason, .n_tokens = ev->n_tokens,
                              .us_first = ev->us_prefill, .us_decode = ev->us_decode,
                              .length = NAN};
    struct served *served = ev->served ? NULL : served_new();
    t->served = ev->served ? *ev->served : *served;
    t->served.metric = NULL;
    t->served.n_metric = 0;
    t->length = kept->length ? kept->length(&t->served) : NAN;
    served_free(served);
}

void kept_event(struct remote_kept *kept, const struct event *ev)
{
    LOCKED(&kept->mu);
    if (ev->kind == EV_SESSION)
        begin_session(kept, ev);
    else if (ev->kind == EV_STEP)
        add_step(kept, ev);
    else if (ev->kind == EV_TURN_END)
        add_turn(kept, ev);
}

/* ---- views ----------------------------------------------------------------------------------- */

void kept_range(struct remote_kept *kept, struct step_range *out)
{
    LOCKED(&kept->mu);
    ring_range(&kept->ring, out);
}

int kept_steps(struct remote_kept *kept, struct step_info *out, int max)
{
    LOCKED(&kept->mu);
    return ring_latest(&kept->ring, out, max);
}

bool kept_step(struct remote_kept *kept, int turn, int step, struct step_view *out)
{
    LOCKED(&kept->mu);
    const struct ring_entry *e = ring_find(&kept->ring, turn, step);
    if (e)
        ring_view(&kept->ring, e, out);
    return e != NULL;
}

int kept_turns(struct remote_kept *kept, struct served_turn *out, int max)
{
    LOCKED(&kept->mu);
    uint64_t held = kept->n_turn < SERVED_KEPT ? kept->n_turn : SERVED_KEPT;
    int n = min_int(max, (int)held);
    for (int i = 0; i < n; i++)
        out[i] = kept->turn[(kept->n_turn - (uint64_t)(n - i)) % SERVED_KEPT];
    return n;
}

struct tops *kept_tops(struct remote_kept *kept, int turn, int step)
{
    struct tops *out = NULL;
    LOCKED(&kept->mu);
    for (int i = 0; i < TOPS_KEPT && !out; i++)
        if (kept->tops[i].tops && kept->tops[i].turn == turn && kept->tops[i].step == step)
            out = tops_copy(kept->tops[i].tops);
    return out;
}

const char *kept_token(struct remote_kept *kept, int32_t id, size_t *n)
{
    const char *p = NULL;
    *n = 0;
    LOCKED(&kept->mu);
    if (id >= 0 && id < kept->n_text && (p = kept->text[id].p))
        *n = kept->text[id].n;
    return p ? p : "";
}
