/* palette.c - Ctrl-P: commands, settings, help topics, layouts, sessions and steps in one list that
 * some of their letters narrow. What was used last is first. Enter runs a line that is complete and
 * puts one that takes more onto the input line; Esc leaves everything as it was.
 *
 * The names are those that completion offers, so the palette knows whatever a command's completion
 * knows; only the steps come from the timeline. */
#include "repl/cmd/commands.h"
#include "repl/text/fuzzy.h"
#include "repl/tui/tui.h"

enum { HEADING = 2 /* rows above the list */, WHOLE_ROWS = 3 /* below it */, KIND_CELLS = 9,
       NAME_MOST = 30, RECENT = 64 };

/* Where names come from: what completion offers behind `line`. */
static const struct kind {
    const char *name, *line;
    bool whole; /* line and name are a complete command; else the command's own arguments say so */
} kinds[] = {
    {"command", "/", false}, {"setting", "/set ", false}, {"help", "/help ", true},
    {"layout", "/layout ", true}, {"session", "/resume ", true}, {"step", "/at ", true},
};
enum { KIND_COMMAND, KIND_SETTING, KIND_HELP, KIND_LAYOUT, KIND_SESSION, KIND_STEP, N_KINDS };

struct item {
    int kind;
    char *name, *help; /* help: may be NULL */
    int used;          /* number of the line of the input history that used it last, from 1; 0:
                          none */
    int score;
};

struct palette {
    struct tui *t;
    struct item *item; /* (n) */
    int n;
    int *shown, n_shown; /* those that fit the query, the best first */
    struct picker pick;
    int adding; /* the kind of the items that are added */
};

static const char footer[] = "type some letters; arrows choose, Enter takes it, Esc closes";

/* ---- the items ---- */

/* The newest line of the input history that begins with the item's line. */
static int used_last(const struct recall *r, const char *line)
{
    size_t n = strlen(line);
    for (int i = r->n; i > 0; i--)
        if (strncmp(r->line[i - 1], line, n) == 0 && strchr(" ", r->line[i - 1][n]))
            return i;
    return 0;
}

/* The help topics are those names of /help that are neither a command nor a setting. */
static bool is_topic(const struct palette *p, const char *name)
{
    FOR_EACH(const struct item, x, p->item, p->n) {
        const char *known = x->kind == KIND_COMMAND ? x->name + 1 : x->name;
        if (x->kind <= KIND_SETTING && strcmp(known, name) == 0)
            return false;
    }
    return true;
}

static void add_entry(void *arg, const char *name, const char *help)
{
    struct palette *p = arg;
    if (p->adding == KIND_HELP && !is_topic(p, name))
        return;
    char *line = xasprintf("%s%s", p->adding == KIND_COMMAND ? "" : kinds[p->adding].line, name);
    *APPEND(p->item, p->n) = (struct item){.kind = p->adding, .name = xstrdup(name),
                                           .help = help ? xstrdup(help) : NULL,
                                           .used = used_last(&p->t->recall, line)};
    free(line);
}

static void add_steps(struct palette *p)
{
    const struct timeline *l = &p->t->time.line;
    char name[32], help[64];
    p->adding = KIND_STEP;
    for (int i = l->n - 1; i >= 0; i--) {
        const struct moment *m = &l->at[i];
        snprintf(name, sizeof name, "%d.%d", m->turn, m->step);
        if (m->kind == STEP_SPEC)
            snprintf(help, sizeof help, "%s, %d of %d drafted tokens accepted%s",
                     step_kind_name((enum step_kind)m->kind), m->accepted, m->drafted,
                     m->marks & MARK_FAULT ? ", then a fault" : "");
        else
            snprintf(help, sizeof help, "%s",
                     m->piece ? "piece of a stream" : step_kind_name((enum step_kind)m->kind));
        add_entry(p, name, help);
    }
}

static void collect(struct palette *p)
{
    for (p->adding = 0; p->adding < KIND_STEP; p->adding++)
        cmd_complete(p->t->app, kinds[p->adding].line, add_entry, p);
    add_steps(p);
    p->shown = xcalloc((size_t)max_int(p->n, 1), sizeof *p->shown);
}

/* ---- narrowing ---- */

static int by_score(const void *a, const void *b, void *arg)
{
    const struct palette *p = arg;
    const int i = *(const int *)a, k = *(const int *)b;
    const struct item *x = &p->item[i], *y = &p->item[k];
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->used != y->used)
        return x->used > y->used ? -1 : 1;
    return (i > k) - (i < k);
}

/* What one of the latest RECENT lines of the input used comes before names that fit a little
 * better: the newest is worth eight letters. */
static void narrow(struct palette *p)
{
    const char *query = buf_text(&p->pick.query);
    p->n_shown = p->pick.at = p->pick.top = 0;
    for (int i = 0; i < p->n; i++) {
        struct item *x = &p->item[i];
        x->score = fuzzy_match(query, x->name, x->help, NULL);
        if (x->score < 0)
            continue;
        if (x->used)
            x->score += max_int(RECENT - (p->t->recall.n - x->used), 0) * FUZZY_POINT * 8 / RECENT;
        p->shown[p->n_shown++] = i;
    }
    qsort_r(p->shown, (size_t)p->n_shown, sizeof *p->shown, by_score, p);
}

/* ---- drawing ---- */

/* The name with the letters of the query marked, in `cells` cells. */
static void add_name(const struct palette *p, const struct item *x, bool here, int cells,
                     struct sheet *out)
{
    bool hit[FUZZY_NAME];
    size_t n = strlen(x->name);
    fuzzy_match(buf_text(&p->pick.query), x->name, x->help, hit);
    if (text_width(x->name, n) > cells) {
        list_cut(out, here ? ST_BOLD : ST_TEXT, x->name, cells);
        return;
    }
    for (size_t from = 0, to; from < n; from = to) {
        bool on = from < FUZZY_NAME && hit[from];
        for (to = from + 1; to < n && (to < FUZZY_NAME && hit[to]) == on;)
            to++;
        sheet_addn(out, on ? ST_KEY : here ? ST_BOLD : ST_TEXT, x->name + from, to - from);
    }
}

static void add_row(const struct palette *p, int i, int name_cells, int w, struct sheet *out)
{
    const struct item *x = &p->item[p->shown[i]];
    const struct cmd *c = x->kind == KIND_COMMAND ? cmd_find(x->name + 1, NULL) : NULL;
    bool here = i == p->pick.at;
    sheet_add(out, ST_KEY, here ? (out->ascii ? "> " : "▸ ") : "  ");
    sheet_printf(out, ST_DIM, "%-*s", KIND_CELLS, kinds[x->kind].name);
    add_name(p, x, here, name_cells, out);
    int left = name_cells - text_width(x->name, strlen(x->name)) - 1;
    if (c && *c->args && (int)strlen(c->args) <= left)
        sheet_printf(out, ST_LABEL, " %s", c->args);
    sheet_tab(out, 2 + KIND_CELLS + name_cells + 1);
    list_cut(out, here ? ST_TEXT : ST_DIM, x->help ? x->help : "",
             max_int(w - 3 - KIND_CELLS - name_cells, 4));
    sheet_line(out);
}

/* What the chosen item does, whole, below the list, whose rows cut it. */
static void add_whole(const struct palette *p, int w, struct sheet *out)
{
    const struct item *x = &p->item[p->shown[p->pick.at]];
    for (int i = p->n_shown; i < p->pick.rows; i++)
        sheet_line(out);
    sheet_line(out);
    FREED(sheet_free) struct sheet text = {.ascii = out->ascii};
    say_line(&text, ST_TEXT, "%s", x->help ? x->help : "");
    sheet_append_wrapped(out, &text, w);
}

static void write_palette(struct tui *, struct overlay *o, int w, int h)
{
    struct palette *p = o->state;
    struct sheet *out = &o->pane.rows;
    int name_cells = max_int(min_int(NAME_MOST, w / 3), 12);
    p->pick.rows = max_int(h - HEADING - WHOLE_ROWS, 1);
    list_keep(&p->pick, p->n_shown);
    say_line(out, ST_HEAD, "FIND A COMMAND  %d of %d", p->n_shown, p->n);
    sheet_add(out, ST_KEY, out->ascii ? "> " : "› ");
    list_cut(out, ST_USER, buf_text(&p->pick.query), max_int(w - 4, 8));
    sheet_add(out, ST_KEY, out->ascii ? "_" : "▏");
    if (!p->pick.query.n)
        sheet_add(out, ST_DIM, " letters of a command, a setting, a topic, a session, a step");
    sheet_line(out);
    for (int i = p->pick.top; i < min_int(p->pick.top + p->pick.rows, p->n_shown); i++)
        add_row(p, i, name_cells, w, out);
    if (p->n_shown == 0)
        say_line(out, ST_DIM, "  nothing has these letters in this order");
    else
        add_whole(p, w, out);
}

/* ---- keys ---- */

/* Whether Enter runs the line of an item as it is: it takes no argument, or it is a step of a
 * paused turn. */
static bool is_whole(const struct item *x)
{
    const struct cmd *c = x->kind == KIND_COMMAND ? cmd_find(x->name + 1, NULL) : NULL;
    return c ? !*c->args || (c->flags & CMD_REPEATS) : kinds[x->kind].whole;
}

static void take_entry(struct tui *t, struct palette *p)
{
    const struct item *x = &p->item[p->shown[p->pick.at]];
    bool whole = is_whole(x);
    char *line = xasprintf("%s%s%s", x->kind == KIND_COMMAND ? "" : kinds[x->kind].line, x->name,
                           whole ? "" : " ");
    tui_overlay_close(t);
    t->focus = FOCUS_INPUT;
    if (whole) {
        if (!t->app->private_)
            input_remember(&t->input, line, strlen(line));
        tui_submit(t, line);
        return;
    }
    if (t->input.text.n > 0)
        free(input_take(&t->input, !t->app->private_)); /* Up shows it again */
    input_set(&t->input, line, strlen(line));
    free(line);
}

static bool palette_key(struct tui *t, struct overlay *o, const struct key *k)
{
    struct palette *p = o->state;
    struct key move = *k;
    if (key_is_ctrl(k, 'n') || key_is_ctrl(k, 'p'))
        move.code = k->cp == 'n' ? K_DOWN : K_UP;
    else if (k->code == K_TAB)
        move.code = k->shift ? K_UP : K_DOWN;
    if (k->code == K_ESC || key_is_ctrl(k, 'c') || key_is_ctrl(k, 'g'))
        return false;
    if (k->code == K_ENTER && p->n_shown > 0) {
        take_entry(t, p);
        return true;
    }
    if (!list_move(&p->pick, p->n_shown, &move) && list_type(&p->pick.query, k))
        narrow(p);
    return true;
}

static void palette_click(struct tui *, struct overlay *o, int row)
{
    struct palette *p = o->state;
    int i = p->pick.top + row - HEADING;
    if (row >= HEADING && i < p->n_shown)
        p->pick.at = i;
}

static void palette_close(struct tui *, struct overlay *o)
{
    struct palette *p = o->state;
    for (int i = 0; i < p->n; i++)
        FREE(p->item[i].name, p->item[i].help);
    FREE(p->item, p->shown);
    buf_free(&p->pick.query);
    free(p);
}

void tui_palette_open(struct tui *t)
{
    struct palette *p = xcalloc(1, sizeof *p);
    p->t = t;
    tui_work(t, true);
    collect(p);
    tui_work(t, false);
    narrow(p);
    tui_overlay_open(t, &(struct overlay){.write = write_palette, .key = palette_key,
        .click = palette_click, .close = palette_close, .state = p, .footer = footer});
}
