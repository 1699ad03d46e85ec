/* layouts.c - layouts by name, the sizes of panes, and the file that keeps them. See tui.h.
 *
 * The file has a line for the layout chosen last ("layout debug"), one for the share of the panes
 * ("side 52") and one for each pane whose height was changed ("rows pages 12"). It is written when
 * one of them changes; unknown lines are ignored. */
#include "repl/tui/tui.h"

#include "kernels/lines.h"

static const char *const pane_name[N_PANE_KINDS] = {
    [PANE_PAGES] = "pages", [PANE_TREE] = "tree", [PANE_STEPS] = "steps", [PANE_POOL] = "pool",
    [PANE_WORD] = "word", [PANE_WHY] = "why"};
_Static_assert(LEN(pane_name) == PANE_WHY + 1 && N_PANE_KINDS == PANE_WHY + 1,
               "a new pane needs a name here");

static const struct {
    const char *name;
    int n, side; /* side 0: as it is */
    enum pane_kind pane[MAX_PANES];
} layouts[] = {
    {"chat", 0, 0, {0}},
    {"pages", 1, 0, {PANE_PAGES}},
    {"debug", 3, 0, {PANE_TREE, PANE_STEPS, PANE_WORD}},
    {"wide", 3, 58, {PANE_PAGES, PANE_TREE, PANE_STEPS}},
};
enum { N_LAYOUT = LEN(layouts) };

static void save(struct tui *t)
{
    FREED(free_at) char *path = t->keep_layout ? recall_path("layout") : NULL;
    FREED(buf_free) struct buf b = {0};
    if (!path)
        return;
    if (t->layout >= 0)
        buf_printf(&b, "layout %s\n", layouts[t->layout].name);
    if (t->side > 0)
        buf_printf(&b, "side %d\n", t->side);
    for (int i = 0; i < N_PANE_KINDS; i++)
        if (t->weight[i] > 0)
            buf_printf(&b, "rows %s %d\n", pane_name[i], t->weight[i]);
    file_replace(path, b.p, b.n); /* that the layout cannot be stored is not an error */
}

static void apply_layout(struct tui *t, int i)
{
    t->layout = i;
    t->n_open = 0;
    t->focus = FOCUS_INPUT;
    if (layouts[i].side > 0)
        t->side = layouts[i].side;
    else if (t->side == layouts[N_LAYOUT - 1].side)
        t->side = 0;
    for (int k = 0; k < layouts[i].n; k++) {
        t->open[t->n_open++] = layouts[i].pane[k];
        t->pane[layouts[i].pane[k]].top = 0;
    }
    t->dirty = t->view_old = true;
}

bool layout_set(struct app *a, const char *name, struct err *e)
{
    struct tui *t = a->face.state;
    for (int i = 0; i < N_LAYOUT; i++)
        if (strcmp(layouts[i].name, name) == 0) {
            apply_layout(t, i);
            save(t);
            return true;
        }
    return err_set(e, ERR_USAGE, "there is no layout %.40s", name);
}

/* The rest of a line that begins with `word`; NULL: it does not. */
static const char *after(const char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 ? line + n : NULL;
}

static void read_line(struct tui *t, const char *line)
{
    int n;
    const char *at;
    if ((at = after(line, "layout "))) {
        for (int i = 0; i < N_LAYOUT; i++)
            if (strcmp(layouts[i].name, at) == 0)
                apply_layout(t, i);
        struct layout l;
        tui_layout(t, t->n_open, &l);
        if (l.pane_only) /* the panes would hide the new chat */
            t->n_open = 0;
    } else if ((at = after(line, "side "))) {
        if (int_at(&at, &n))
            t->side = max_int(SIDE_MIN, min_int(n, SIDE_MAX));
    } else if ((line = after(line, "rows "))) {
        for (int i = 0; i < N_PANE_KINDS; i++)
            if ((at = after(line, pane_name[i])) && *at++ == ' ' && int_at(&at, &n))
                t->weight[i] = max_int(1, min_int(n, 100));
    }
}

void layout_read(struct tui *t, bool keep)
{
    enum { FILE_MAX = 4096 };
    FREED(buf_free) struct buf b = {0};
    FREED(free_at) char *path = recall_path("layout");
    t->layout = -1;
    t->keep_layout = keep;
    if (path && buf_read_file(&b, path, FILE_MAX, NULL))
        FOR_LINES(l, b.p) {
            FREED(free_at) char *line = line_copy(l);
            read_line(t, line);
        }
}

bool layout_key(struct tui *t, const struct key *k)
{
    int letter = k->code == K_CHAR && !k->ctrl && !k->alt ? (int)k->cp : 0;
    if (!letter || !strchr("+=-<>", letter))
        return false;
    int *rows = &t->weight[t->open[t->focus]], side = t->side > 0 ? t->side : SIDE_DEFAULT;
    if (letter == '<' || letter == '>')
        t->side = max_int(SIDE_MIN, min_int(side + (letter == '<' ? 4 : -4), SIDE_MAX));
    else
        *rows = max_int(2, min_int((*rows > 0 ? *rows : WEIGHT_DEFAULT) + (letter == '-' ? -2 : 2),
                                   60));
    save(t);
    return true;
}
