/* kept.c - see kept.h. */
#include "engine/remote/kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void kept_open(struct remote_kept *k)
{
    *k = (struct remote_kept){0};
    pthread_mutex_init(&k->mu, NULL);
    ring_open(&k->ring);
    k->tops = xcalloc(TOPS_KEPT, sizeof *k->tops);
    k->turn = xcalloc(SERVED_KEPT, sizeof *k->turn);
}

static void drop_tops(struct remote_kept *k)
{
    for (int i = 0; i < TOPS_KEPT; i++) {
        tops_free(k->tops[i].tops);
        k->tops[i] = (struct kept_tops){0};
    }
    k->n_tops = 0;
}

void kept_close(struct remote_kept *k)
{
    drop_tops(k);
    ring_close(&k->ring);
    for (int i = 0; i < k->n_text; i++)
        free(k->text[i].p);
    free(k->text);
    free(k->tops);
    free(k->turn);
    pthread_mutex_destroy(&k->mu);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A fork keeps what its parent's turns left; any other session begins empty. */
static void begin_session(struct remote_kept *k, const struct event *ev)
{
    uint64_t n = 0;
    if (ev->fork_turn > 0 && strcmp(ev->parent, k->session) == 0) {
        ring_cut(&k->ring, ev->fork_turn);
        for (n = k->n_turn; n > 0 && k->turn[(n - 1) % SERVED_KEPT].turn > ev->fork_turn; n--)
            ;
    } else {
        ring_clear(&k->ring);
        drop_tops(k);
    }
    k->n_turn = n;
    memcpy(k->session, ev->session, sizeof k->session);
}

static void learn(struct remote_kept *k, int32_t id, const char *text, int n)
{
    if (id < 0 || id >= TEXT_IDS || !text || n == 0)
        return;
    if (id >= k->n_text) {
        int room = max_int(id + 1, 2 * k->n_text);
        k->text = xrealloc(k->text, (size_t)room, sizeof *k->text);
        memset(k->text + k->n_text, 0, (size_t)(room - k->n_text) * sizeof *k->text);
        k->n_text = room;
    }
    if (!k->text[id].p) {
        k->text[id].p = xmalloc((size_t)n + 1);
        memcpy(k->text[id].p, text, (size_t)n);
        k->text[id].p[n] = '\0';
        k->text[id].n = (size_t)n;
    }
}

static void add_tops(struct remote_kept *k, const struct event *ev)
{
    const struct tops *t = ev->tops;
    if (!t || !t->n)
        return;
    for (int i = 0; i < t->n; i++)
        learn(k, t->at[i].id, t->at[i].text, t->at[i].n);
    struct kept_tops *at = &k->tops[k->n_tops++ % TOPS_KEPT];
    tops_free(at->tops);
    *at = (struct kept_tops){ev->turn, ev->step, tops_copy(t)};
}

static void add_step(struct remote_kept *k, const struct event *ev)
{
    struct token_fact none[TREE_MAX];
    int n = min_int(ev->tokens.n, TREE_MAX);
    for (int i = 0; i < n && !ev->facts; i++)
        none[i] = (struct token_fact){.logp = NAN, .rival_logp = NAN, .rival = -1};
    static const struct pages_held unknown = {{-1, -1, -1}};
    ring_push(&k->ring, ev->turn, ev->step, &ev->rec, NULL, ev->tokens.v, ev->facts ? ev->facts
              : none, n, &unknown);
    add_tops(k, ev);
}

static void add_turn(struct remote_kept *k, const struct event *ev)
{
    struct served_turn *t = &k->turn[k->n_turn++ % SERVED_KEPT];
    *t = (struct served_turn){.turn = ev->turn, .reason = ev->reason, .n_tokens = ev->n_tokens,
                              .us_first = ev->us_prefill, .us_decode = ev->us_decode,
                              .length = NAN};
    struct served *s = ev->served ? NULL : served_new();
    t->served = ev->served ? *ev->served : *s;
    t->served.metric = NULL;
    t->served.n_metric = 0;
    t->length = k->length ? k->length(&t->served) : NAN;
    served_free(s);
}

void kept_event(struct remote_kept *k, const struct event *ev)
{
    pthread_mutex_lock(&k->mu);
    if (ev->kind == EV_SESSION)
        begin_session(k, ev);
    else if (ev->kind == EV_STEP)
        add_step(k, ev);
    else if (ev->kind == EV_TURN_END)
        add_turn(k, ev);
    pthread_mutex_unlock(&k->mu);
}

/* ---- views ----------------------------------------------------------------------------------- */

void kept_range(struct remote_kept *k, struct step_range *out)
{
    pthread_mutex_lock(&k->mu);
    ring_range(&k->ring, out);
    pthread_mutex_unlock(&k->mu);
}

int kept_steps(struct remote_kept *k, struct step_info *out, int max)
{
    pthread_mutex_lock(&k->mu);
    int n = ring_latest(&k->ring, out, max);
    pthread_mutex_unlock(&k->mu);
    return n;
}

bool kept_step(struct remote_kept *k, int turn, int step, struct step_view *out)
{
    pthread_mutex_lock(&k->mu);
    const struct ring_entry *e = ring_find(&k->ring, turn, step);
    if (e)
        ring_view(&k->ring, e, out);
    pthread_mutex_unlock(&k->mu);
    return e != NULL;
}

int kept_turns(struct remote_kept *k, struct served_turn *out, int max)
{
    pthread_mutex_lock(&k->mu);
    uint64_t held = k->n_turn < SERVED_KEPT ? k->n_turn : SERVED_KEPT;
    int n = min_int(max, (int)held);
    for (int i = 0; i < n; i++)
        out[i] = k->turn[(k->n_turn - (uint64_t)(n - i)) % SERVED_KEPT];
    pthread_mutex_unlock(&k->mu);
    return n;
}

struct tops *kept_tops(struct remote_kept *k, int turn, int step)
{
    struct tops *out = NULL;
    pthread_mutex_lock(&k->mu);
    for (int i = 0; i < TOPS_KEPT && !out; i++)
        if (k->tops[i].tops && k->tops[i].turn == turn && k->tops[i].step == step)
            out = tops_copy(k->tops[i].tops);
    pthread_mutex_unlock(&k->mu);
    return out;
}

const char *kept_token(struct remote_kept *k, int32_t id, size_t *n)
{
    const char *p = NULL;
    *n = 0;
    pthread_mutex_lock(&k->mu);
    if (id >= 0 && id < k->n_text && (p = k->text[id].p))
        *n = k->text[id].n;
    pthread_mutex_unlock(&k->mu);
    return p ? p : "";
}
