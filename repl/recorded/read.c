/* read.c - reads a session from the log into the arrays of a recording. */
#include <math.h>

#include "repl/recorded/parts.h"

enum { KEY_STEPS = 256, KEY_BYTES = 64 << 10 }; /* changes between two whole page tables, at most */

/* ---- steps ----------------------------------------------------------------------------------- */

static void add_tree(struct recorded *r, const struct tree *t, struct rec_step *s)
{
    s->node = r->n_node;
    if (!t || t->n < 2)
        return;
    s->n_node = t->n;
    s->deepest = (uint8_t)tree_depth(t);
    for (int i = 0; i < t->n; i++)
        *APPEND(r->node, r->n_node) = tree_node(t, i);
}

static void add_tokens(struct recorded *r, const struct step_row *row, struct rec_step *s)
{
    s->token = r->token.n;
    s->n_token = min_int(row->tokens.n, TREE_MAX);
    s->has_facts = row->facts != NULL;
    for (int i = 0; i < s->n_token; i++) {
        MAKE_ROOM(r->fact, r->token.n);
        r->fact[r->token.n] = row->facts ? row->facts[i] : (struct token_fact){NAN, NAN, -1};
        ids_add(&r->token, row->tokens.v[i]);
    }
}

/* How many pages of a packed step left the window. */
static uint32_t count_window(const struct buf *b)
{
    uint32_t window = 0;
    const uint8_t *p = (const uint8_t *)b->p, *end = p + b->n;
    struct context_lengths l;
    int runs;
    if (!page_unpack_head(&p, end, &l, &runs, NULL))
        return 0;
    for (int i = 0; i < runs; i++) {
        struct page_run run;
        if (!page_unpack_run(&p, &run, NULL))
            return window;
        window += page_left_window(&run.first) ? (uint32_t)run.n : 0;
    }
    return window;
}

static void add_key(struct recorded *r, int step)
{
    struct rec_key *k = APPEND(r->key, r->n_key);
    *k = (struct rec_key){.step = step, .at = r->keys.n};
    page_history_pack(&r->fold, &r->keys);
    k->n = r->keys.n - k->at;
}

/* Applies the page events, and keeps a whole page table now and then. After missing or damaged
 * events the tables are unknown until the pools are emptied. */
static void add_pages(struct recorded *r, const struct buf *packed, struct rec_step *s,
                      bool *known, size_t *since)
{
    int i = r->n_step;
    s->pages = r->pages.n;
    if (!*known)
        page_history_free(&r->fold);
    bool before = *known;
    *known = packed->n > 0 && page_history_apply(&r->fold, packed->p, packed->n, NULL);
    s->paged = *known;
    for (int p = 0; p < N_POOLS; p++)
        s->held.n[p] = *known && r->fold.pool[p].total ? r->fold.pool[p].used : -1;
    if (!*known)
        return;
    r->any_pages = true;
    buf_add(&r->pages, packed->p, packed->n);
    s->window = count_window(packed);
    *since += packed->n;
    const struct rec_key *last = r->n_key ? &r->key[r->n_key - 1] : NULL;
    size_t most = last && last->n > KEY_BYTES ? last->n : KEY_BYTES;
    if (!before || !last || i - last->step >= KEY_STEPS || *since > most) {
        add_key(r, i);
        *since = 0;
    }
}

struct paging {
    bool known;
    size_t since;
};

static void add_step(struct recorded *r, const struct step_row *row, struct paging *p)
{
    MAKE_ROOM(r->step, r->n_step + 1);
    struct rec_step *s = &r->step[r->n_step];
    *s = (struct rec_step){.rec = row->rec, .turn = row->turn, .step = row->n,
                           .tops = tops_copy(row->tops)};
    add_tree(r, row->tree, s);
    add_tokens(r, row, s);
    add_pages(r, &row->pages, s, &p->known, &p->since);
    r->n_step++;
    r->step[r->n_step] = (struct rec_step){.pages = r->pages.n};
}

/* ---- turns and operations -------------------------------------------------------------------- */

static char *take_text(char **s)
{
    char *got = *s ? *s : xstrdup("");
    *s = NULL;
    return got;
}

static void add_turn(struct recorded *r, struct act *a, struct paging *p)
{
    struct rec_turn *t = APPEND(r->turn, r->n_turn);
    *t = (struct rec_turn){
        .n = a->user.n, .first = r->n_step, .n_step = a->n_step, .n_prompt = a->user.tokens.n,
        .n_reused = a->user.n_reused, .n_drafted = a->reply.n_drafted,
        .n_accepted = a->reply.n_accepted, .reply = a->reply.tokens, .regen = a->user.regen,
        .reuse = a->user.reuse, .seed = a->user.seed, .us_prefill = a->reply.us_prefill,
        .us_decode = a->reply.us_decode, .user_n = a->user.text_n, .text_n = a->reply.text_n,
        .user = take_text(&a->user.text), .text = take_text(&a->reply.text),
        .settings = take_text(&a->user.sampling),
        .stop = a->reply.stop == STOP_OPEN ? STOP_CRASHED : a->reply.stop,
        .fault = a->fault, .fault_step = a->fault_step, .rule = a->rule};
    a->fault = NULL;
    a->reply.tokens = (struct ids){0};
    t->served = a->reply.served;
    a->reply.served = NULL;
    contexts_begin(&r->contexts, t->n, a->user.tokens.v, a->user.tokens.n);
    int at = a->user.tokens.n;
    if (a->n_step == 0) /* a log without steps */
        contexts_add(&r->contexts, at, t->reply.v, t->reply.n);
    for (int i = 0; i < a->n_step; i++) {
        add_step(r, &a->step[i], p);
        contexts_add(&r->contexts, at, a->step[i].tokens.v, a->step[i].tokens.n);
        at += a->step[i].tokens.n;
    }
}

static void add_act(struct recorded *r, struct act *a, struct paging *p)
{
    struct rec_act *x = APPEND(r->act, r->n_act);
    *x = (struct rec_act){.turn = a->is_turn ? r->n_turn : -1, .op = a->op, .op_turn = a->turn,
                          .op_turns = a->turns, .op_forced = a->forced};
    a->turns = (struct ids){0};
    if (a->is_turn)
        add_turn(r, a, p);
    else
        x->op_text = take_text(&a->text);
}

/* ---- forks ----------------------------------------------------------------------------------- */

static bool is_unchanged(const struct act *fork, int turn)
{
    return turn > fork->turn || turns_have(&fork->turns, turn);
}

/* Whether an operation before a fork removed no turn that the fork lacks, too. */
static bool is_undone_by(const struct act *a, const struct act *fork)
{
    if (a->op == OP_UNDO)
        return is_unchanged(fork, a->turn);
    return a->op == OP_FORGET &&
           !ANY(i, a->turns.n, !is_unchanged(fork, a->turns.v[i]));
}

/* Leaves out of the script what a fork did not inherit: its parent's later turns, and operations
 * that removed turns from the parent's context which the fork has. A fork's first step has a whole
 * page table. */
static void leave_out(struct script *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct act fork = s->act[i];
        int kept = 0;
        for (int k = 0; !fork.is_turn && fork.op == OP_FORK && k < i; k++) {
            struct act *a = &s->act[k];
            if (a->is_turn ? a->user.n > fork.turn : is_undone_by(a, &fork))
                act_free(a);
            else
                s->act[kept++] = *a;
        }
        if (fork.is_turn || fork.op != OP_FORK)
            continue;
        memmove(s->act + kept, s->act + i, (size_t)(s->n - i) * sizeof *s->act);
        s->n -= i - kept;
        i = kept;
    }
}

/* Turn numbers ascend, and so do the numbers of a turn's steps: the arrays are searched by them. */
static bool check_order(const struct script *s, const char *session, struct err *e)
{
    int last = 0;
    FOR_EACH(const struct act, a, s->act, s->n) {
        if (!a->is_turn)
            continue;
        if (a->user.n <= last)
            return err_set(e, ERR_DB, "session %s: turn %d stands after turn %d", session,
                           a->user.n, last);
        last = a->user.n;
        for (int k = 0, step = 0; k < a->n_step; k++) {
            if (a->step[k].n <= step)
                return err_set(e, ERR_DB, "session %s: step %d.%d stands after step %d.%d", session,
                               last, a->step[k].n, last, step);
            step = a->step[k].n;
        }
    }
    return true;
}

static bool add_text(int32_t id, const char *text, size_t n, void *arg)
{
    struct recorded *r = arg;
    *APPEND(r->text, r->n_text) = (struct rec_text){id, (uint32_t)n, r->texts.n};
    buf_add(&r->texts, text, n);
    return true;
}

bool recorded_read(struct recorded *r, struct hdb *d, const char *session, struct err *e)
{
    FREED(script_free) struct script s = {0};
    struct paging p = {0};
    struct buf about = {0};
    if (!hdb_about(d, session, &about, e) || !script_read(&s, d, session, e)) {
        buf_free(&about);
        return false;
    }
    r->about = about.p ? about.p : xstrdup("");
    leave_out(&s);
    bool ok = check_order(&s, session, e) && hdb_token_texts(d, session, add_text, r, e) >= 0;
    for (int i = 0; ok && i < s.n; i++)
        add_act(r, &s.act[i], &p);
    MAKE_ROOM(r->step, r->n_step);
    r->fold_at = p.known ? r->n_step - 1 : -1;
    return ok;
}

void recorded_free(struct recorded *r)
{
    FOR_EACH(struct rec_turn, t, r->turn, r->n_turn) {
        ids_free(&t->reply);
        FREE(t->user, t->text, t->settings, t->fault);
        served_free(t->served);
    }
    for (int i = 0; i < r->n_step; i++)
        tops_free(r->step[i].tops);
    FOR_EACH(struct rec_act, a, r->act, r->n_act) {
        free(a->op_text);
        ids_free(&a->op_turns);
    }
    contexts_free(&r->contexts);
    page_history_free(&r->fold);
    ids_free(&r->token);
    buf_free(&r->pages);
    buf_free(&r->keys);
    buf_free(&r->texts);
    FREE(r->text, r->about, r->act, r->turn, r->step, r->fact, r->node, r->key);
}
