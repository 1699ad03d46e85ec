/* accept.c - /accept: how many drafted tokens were accepted, by depth, turn, context length,
 * distance from the window edge, place in a page, kind of token, and drafter.
 *
 * Definitions (those of vLLM): rate = accepted / drafted; MAL = 1 + accepted / cycles; at depth d:
 * cycles that accepted a token at that depth / cycles. What is accepted, and what a cycle is, says
 * struct step_rec (engine/event.h). Every table names its denominators. */
#include <limits.h>

#include "models/checkpoint/hub.h"
#include "repl/cmd/cmd.h"
#include "repl/app/drafters.h"
#include "repl/app/served.h"
#include "repl/cmd/views.h"
#include "repl/compare/accepted.h"

enum grouping { BY_DEPTH, BY_TURN, BY_CONTEXT, BY_WINDOW, BY_PAGE, BY_KIND, BY_DRAFTER };
static const char *const grouping[] = {"depth", "turn", "context", "window", "page", "kind",
                                       "drafter"};
enum { N_GROUPINGS = LEN(grouping) };

enum { MAX_GROUPS = 4096, DEPTHS = 16, DEPTH_CELLS = 5 };

/* Sums over the cycles of a turn, or of a range of context lengths, distances, ... */
struct group {
    int first, last;
    int window; /* of the draft, BY_CONTEXT only; 0: none */
    struct draft_sums drafts;
};

struct grouped {
    struct app *app;
    enum grouping by;
    struct drafters drafters; /* BY_DRAFTER; a group's `first` is an index of these */
    int page_size, window;
    struct group *v; /* (n) by `first`, then by `window` */
    int n;
    bool windowed; /* a draft had a window */
    int deepest;
    struct accepted kinds; /* BY_KIND */
};

/* ---- by numbers ------------------------------------------------------------------------------ */

/* Ranges double in length: 0-63, 64-127, 128-255, ... */
static void context_range(int pos, int *first, int *last)
{
    *first = 0;
    *last = 63;
    while (pos > *last) {
        *first = *last + 1;
        *last = 2 * *last + 1;
    }
}

/* The context's length less W: below 0 the window still holds every token. */
static void window_range(int distance, int *first, int *last)
{
    static const int from[] = {INT_MIN, -256, -64, -16, 0, 16, 64, 256, 1024};
    enum { N = LEN(from) };
    int i = N - 1;
    while (distance < from[i])
        i--;
    *first = from[i];
    *last = i + 1 < N ? from[i + 1] - 1 : INT_MAX;
}

static void range_of(const struct grouped *g, const struct step_view *s, int *first, int *last)
{
    int pos = s->rec.pos0, W = g->window, each = max_int(1, g->page_size / 16);
    *first = *last = g->by == BY_DRAFTER ? drafter_of(&g->drafters, s->turn) : s->turn;
    if (g->by == BY_CONTEXT)
        context_range(pos, first, last);
    if (g->by == BY_WINDOW)
        window_range(pos - W, first, last);
    if (g->by == BY_PAGE) {
        *first = pos % g->page_size / each * each;
        *last = *first + each - 1;
    }
}

static void add_cycle(struct grouped *g, const struct step_view *s)
{
    const struct step_rec *r = &s->rec;
    int first, last, i = 0, window = g->by == BY_CONTEXT ? r->draft_window : 0;
    if (!r->drafted)
        return;
    range_of(g, s, &first, &last);
    while (i < g->n &&
           (g->v[i].first < first || (g->v[i].first == first && g->v[i].window < window)))
        i++;
    g->windowed |= window > 0;
    if (i == g->n || g->v[i].first != first || g->v[i].window != window) {
        if (g->n == MAX_GROUPS)
            return;
        MAKE_ROOM(g->v, g->n);
        memmove(g->v + i + 1, g->v + i, (size_t)(g->n - i) * sizeof *g->v);
        g->v[i] = (struct group){.first = first, .last = last, .window = window};
        g->n++;
    }
    draft_sums_add(&g->v[i].drafts, r, r->accepted);
    g->deepest = max_int(g->deepest, min_int(r->accepted, DEPTHS));
}

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    return backend_token(((struct app *)arg)->backend, id, n);
}

static void add_kinds(struct grouped *g, const struct step_view *s)
{
    struct accepted_step step = {.turn = s->turn, .rec = &s->rec, .tree = &s->tree,
                                 .token = s->token, .n = s->n_token};
    accepted_add(&g->kinds, &step, text_of, g->app);
}

static bool add_step(const struct step_view *s, void *arg)
{
    struct grouped *g = arg;
    if (g->by == BY_KIND)
        add_kinds(g, s);
    else
        add_cycle(g, s);
    return true;
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void name_of(const struct grouped *g, const struct group *p, char out[40])
{
    if (g->by == BY_DRAFTER) {
        FREED(free_at) char *title = hub_title(g->drafters.v[p->first].name);
        snprintf(out, 40, "%.39s", title);
    } else if (g->by == BY_WINDOW && p->first == INT_MIN)
        snprintf(out, 40, "below -256");
    else if (g->by == BY_WINDOW && p->last == INT_MAX)
        snprintf(out, 40, "from %+d", p->first);
    else if (g->by == BY_WINDOW)
        snprintf(out, 40, "%+d to %+d", p->first, p->last);
    else if (p->first == p->last)
        snprintf(out, 40, "%d", p->first);
    else
        snprintf(out, 40, "%d-%d", p->first, p->last);
}

static void groups_foot(const struct grouped *g, int depths, const struct printer *to)
{
    if (g->n == 0) {
        print_note(to, ST_DIM, "nothing drafted yet");
        return;
    }
    if (g->by == BY_WINDOW)
        print_note(to, ST_DIM, "rows: length of the context before the cycle, less the window of "
                   "%d: from 0 on tokens are out of it", g->window);
    if (g->windowed)
        print_note(to, ST_DIM, "sees: the newest positions that the draft saw (draft.window)");
    if (g->by == BY_PAGE)
        print_note(to, ST_DIM,
                   "rows: place in its page of %d of the first position that the cycle writes",
                   g->page_size);
    print_note(to, ST_DIM, "rate = accepted/drafted; MAL = 1 + accepted/cycles");
    if (depths)
        print_note(to, ST_DIM,
                   "d1, d2, ...: cycles that accepted a token at that depth / cycles of the row");
}

/* Cells of the columns that fit a line; `depths` columns of depths. */
struct group_columns {
    int name, cycles, drafted, accepted, rate, mal; /* accepted 0: left out of text */
    int depths;
};

static struct group_columns group_columns(const struct grouped *g, int width, bool json)
{
    static const struct group_columns wide = {13, 8, 8, 9, 6, 6, 0};
    static const struct group_columns narrow = {11, 6, 7, 8, 5, 6, 0};
    enum { WIDE = 55, NARROW = 48, WINDOW = 9 };
    int room = width - (g->windowed ? WINDOW : 0);
    struct group_columns c = json || room >= WIDE ? wide : narrow;
    c.depths = max_int(0, min_int(g->deepest, (room - WIDE) / DEPTH_CELLS));
    if (!json && room < NARROW)
        c.accepted = 0;
    return c;
}

static void show_group(const struct grouped *g, const struct group *p,
                       const struct group_columns *c, const struct printer *to)
{
    const struct draft_sums *s = &p->drafts;
    char name[40];
    name_of(g, p, name);
    PRINT_IN(to, NULL, '{');
    if (g->by == BY_DRAFTER)
        print_add(to, ST_TEXT, "\f%s{drafter}", g->drafters.v[p->first].name);
    else if (g->by == BY_TURN)
        print_add(to, ST_TEXT, "\f%d{turn}", p->first);
    else
        print_add(to, ST_TEXT, "\f%d{from:-2147483648}%d{to:2147483647}", p->first, p->last);
    print_add(to, ST_TEXT, "%*s", c->name, name);
    if (g->by == BY_CONTEXT)
        print_add(to, ST_TEXT, "\f%d{draft_window}", p->window);
    if (g->windowed && p->window)
        print_add(to, ST_TEXT, " %8d", p->window);
    else if (g->windowed)
        print_add(to, ST_TEXT, " %8s", "all");
    print_add(to, ST_TEXT, " %*lu{cycles} %*lu{drafted}", c->cycles, s->cycles, c->drafted,
              s->drafted);
    print_add(to, ST_TEXT, c->accepted ? " %*lu{accepted}" : "\f%*lu{accepted}", c->accepted,
              s->accepted);
    print_add(to, ST_TEXT, " %*.2f{rate} %*.2f{mal}", c->rate, ratio(s->accepted, s->drafted),
              c->mal, draft_sums_mal(s));
    for (int d = 1; d <= c->depths; d++)
        print_add(to, ST_TEXT, " %*.2f", DEPTH_CELLS - 1, ratio(s->depth[d].accepted, s->cycles));
    print_end(to);
    PRINT_IN(to, "accepted_at", '[');
    for (int d = 1; d <= g->deepest; d++)
        print_int(to, NULL, (int64_t)s->depth[d].accepted);
}

static void show_groups(const struct grouped *g, const char *source, int width,
                        const struct printer *to)
{
    struct group_columns c = group_columns(g, width, to->json);
    print_add(to, ST_HEAD, "ACCEPT");
    print_note(to, ST_TEXT, "  by %s, %s", grouping[g->by], source);
    print_add(to, ST_HEAD, "%*s", c.name, grouping[g->by]);
    if (g->windowed)
        print_add(to, ST_HEAD, " %8s", "sees");
    print_add(to, ST_HEAD, " %*s %*s", c.cycles, "cycles", c.drafted, "drafted");
    if (c.accepted)
        print_add(to, ST_HEAD, " %*s", c.accepted, "accepted");
    print_add(to, ST_HEAD, " %*s %*s", c.rate, "rate", c.mal, "MAL");
    for (int d = 1; d <= c.depths; d++)
        print_add(to, ST_HEAD, " %*s%d", d < 10 ? DEPTH_CELLS - 2 : DEPTH_CELLS - 3, "d", d);
    print_end(to);
    print_open(to, NULL, '[');
    for (int i = 0; i < g->n; i++)
        show_group(g, &g->v[i], &c, to);
    print_close(to, ']');
    if (!c.accepted)
        print_note(to, ST_DIM, "left out for want of room: accepted");
    groups_foot(g, c.depths, to);
}

static void show_kind(const char *name, const struct kind_count *k, bool bonus,
                      const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%11s{kind} %7lu{drafted} %8lu{accepted} %5.2f{rate} ", name,
              k->drafted, k->accepted, ratio(k->accepted, k->drafted));
    print_add(to, ST_TEXT, bonus ? " %7lu{emitted} %5lu{bonus}" : "%7lu{emitted}\f%lu{bonus}",
              k->emitted, k->bonus);
    print_add(to, ST_TEXT, " %5.2f", ratio(k->emitted - k->bonus, k->emitted));
    print_end(to);
}

static void show_kinds(const struct grouped *g, const char *source, int width,
                       const struct printer *to)
{
    enum { WIDE = 55 };
    bool bonus = to->json || width >= WIDE; /* has a column, and a gap before "emitted" */
    print_add(to, ST_HEAD, "ACCEPT");
    print_note(to, ST_TEXT, "  by kind of token, %s", source);
    print_note(to, ST_HEAD, "%11s %7s %8s %5s %s%7s %s%5s", "kind", "drafted", "accepted", "rate",
               bonus ? " " : "", "emitted", bonus ? "bonus " : "", "share");
    print_open(to, NULL, '[');
    for (int i = 0; i < N_KINDS; i++) {
        const struct kind_count *k = &g->kinds.kind[i];
        if (to->json || k->drafted + k->emitted)
            show_kind(token_kind_name[i], k, bonus, to);
    }
    print_close(to, ']');
    if (!bonus)
        print_note(to, ST_DIM, "left out for want of room: bonus");
    print_note(to, ST_DIM,
               "rate = accepted/drafted, of drafted tokens of the kind; code: between ``` and ```");
    print_note(to, ST_DIM, "share = (emitted - bonus)/emitted: tokens of replies that a draft "
               "held; bonus: those that the target added");
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool by_steps(struct cmd_call *c, enum grouping by)
{
    struct app *a = c->app;
    const struct backend_info *info = backend_info(a->backend);
    struct grouped g = {.app = a, .by = by, .page_size = max_int(1, info->page_size),
                        .window = info->window};
    char source[STEP_SOURCE];
    if (!cmd_needs(c, VIEW_STEPS))
        return false;
    if (by == BY_WINDOW && info->window == 0)
        return err_set(c->e, ERR_NEGATIVE,
                       "this model has no sliding layers, so there is no window edge");
    if (by == BY_DRAFTER)
        drafters_read(&g.drafters, a);
    app_each_step(a, by == BY_KIND, add_step, &g, source);
    if (by == BY_KIND)
        show_kinds(&g, source, view_width(a), &c->to);
    else
        show_groups(&g, source, view_width(a), &c->to);
    free(g.v);
    drafters_free(&g.drafters);
    accepted_free(&g.kinds);
    return true;
}

void say_drafters(struct app *a, const struct printer *to)
{
    FREED(drafters_free) struct drafters d = {0};
    if (to->json || backend_info(a->backend)->server_url)
        return;
    drafters_read(&d, a);
    if (d.n > 1)
        print_note(to, ST_DIM, "of the session's %d drafters together; /accept drafter counts each",
                   d.n);
}

/* For a server that does not report drafts by step. */
static bool by_replies(struct cmd_call *c, int how)
{
    struct app *a = c->app;
    FREED(served_replies_free) struct served_replies r = {0};
    if (c->argc && how != BY_TURN)
        return err_set(c->e, ERR_NEGATIVE, "/accept: %s tells no drafts by step, only by reply: "
                       "/accept turn", backend_info(a->backend)->family);
    served_replies_read(&r, app_served(a));
    served_accept(&r, &c->to);
    return true;
}

bool cmd_accept(struct cmd_call *c)
{
    struct app *a = c->app;
    int how = BY_DEPTH;
    if (c->argc == 1 && (how = arg_choice(c->argv[0], "the grouping", grouping, N_GROUPINGS,
                                       c->e)) < 0)
        return false;
    if (!cmd_needs(c, VIEW_ACCEPT))
        return false;
    struct chat_view v;
    app_chat(a, &v);
    if (backend_has(a->backend, VIEW_SERVED) && v.drafts.depth[1].drafted == 0)
        return by_replies(c, how);
    if (how != BY_DEPTH)
        return by_steps(c, (enum grouping)how);
    view_accept(&v, backend_has(a->backend, VIEW_SERVED), view_width(a), &c->to);
    say_drafters(a, &c->to);
    return true;
}
