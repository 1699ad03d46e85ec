/* screen.c - commands for the screen and for the step that it shows: settings of the screen,
 * /layout and /at. */
#include <stddef.h>
#include <unistd.h>

#include "kernels/ascii.h"
#include "repl/cmd/cmd.h"

/* ---- settings of the screen, which are not part of a session --------------------------------- */

static const struct screen_setting {
    const char *name;
    const char *word[3]; /* the first is the default */
    int n;
    const char *range, *help, *more;
    size_t at; /* in struct options: an int, the number of the word */
} settings[] = {
    {"theme", {"auto", "dark", "light"}, 3, "auto | dark | light", "colours of the full screen",
     "; auto asks the terminal", offsetof(struct options, theme)},
    {"tint", {"off", "on"}, 2, "off | on", "tints words by acceptance: bonus, drafted at depth 1, "
                                           "2, 3 and more",
     "", offsetof(struct options, tint)},
    {"timeline", {"on", "off"}, 2, "on | off", "a line above the input, one cell a step: "
                                               "tokens accepted, and marks",
     "", offsetof(struct options, timeline)},
    {"mouse", {"on", "off"}, 2, "on | off", "the full screen takes clicks and the wheel",
     "; Shift selects text as ever", offsetof(struct options, mouse)},
};
enum { N_SETTING = LEN(settings) };

static const struct screen_setting *setting_find(const char *name)
{
    return ROW_NAMED(settings, name);
}

static int *value_of(struct app *a, const struct screen_setting *s)
{
    return (int *)((char *)&a->opt + s->at);
}

bool is_screen_setting(const char *name)
{
    return setting_find(name) != NULL;
}

void setting_row(const char *name, const char *value, const char *range, const char *help,
                 const char *more, const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_KEY, "%-18s{name}", name);
    print_add(to, ST_TEXT, " %-8s{value} ", value);
    print_facts(to, ST_DIM, "%s{range}", range);
    print_facts(to, ST_TEXT, "                   %s{help}%s", help, more);
}

bool screen_setting(struct app *a, const char *name, const char *value, const struct printer *to,
                    struct err *e)
{
    const struct screen_setting *s = setting_find(name);
    CHECK(s);
    FREED(free_at) char *what = xasprintf("the %s", name);
    int v = value ? arg_choice(value, what, s->word, s->n, e) : *value_of(a, s);
    if (v < 0)
        return false;
    *value_of(a, s) = v;
    if (value)
        print_line(to, ST_TEXT, "%s{name} = %s{value}\f%s{range}%s{help}", name, s->word[v],
                   s->range, s->help);
    else
        setting_row(name, s->word[v], s->range, s->help, s->more, to);
    return true;
}

void screen_settings(struct app *a, const struct printer *to)
{
    for (int i = 0; i < N_SETTING; i++)
        screen_setting(a, settings[i].name, NULL, to, NULL);
}

void complete_screen_setting(const char *name, const char *word, cmd_add_fn *add, void *arg)
{
    for (int i = 0; i < N_SETTING; i++)
        if (*name && strcmp(settings[i].name, name) == 0)
            complete_words(settings[i].range, word, add, arg);
        else if (!*name && strncmp(settings[i].name, word, strlen(word)) == 0)
            add(arg, settings[i].name, settings[i].help);
}

/* ---- /layout --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *help;
} layouts[] = {
    {"chat", "the conversation alone"},
    {"pages", "the page map beside it"},
    {"debug", "tree, steps and the word under the cursor"},
    {"wide", "pages over tree over steps, in more than half of the screen"},
};
enum { N_LAYOUT = LEN(layouts) };

bool cmd_layout(struct cmd_call *c)
{
    const char *word[N_LAYOUT];
    for (int i = 0; i < N_LAYOUT; i++)
        word[i] = layouts[i].name;
    int i = c->argc ? arg_choice(c->argv[0], "the layout", word, N_LAYOUT, c->e) : 0;
    if (i < 0)
        return false;
    if (c->argc)
        return c->app->face.layout
                   ? c->app->face.layout(c->app, layouts[i].name, c->e)
                   : err_set(c->e, ERR_NEGATIVE, "/layout: only the full screen has panes");
    PRINT_IN(&c->to, NULL, '[');
    for (i = 0; i < N_LAYOUT; i++) {
        PRINT_IN(&c->to, NULL, '{');
        print_add(&c->to, ST_KEY, "  %-8s{name}", layouts[i].name);
        print_facts(&c->to, ST_TEXT, "%s{help}", layouts[i].help);
    }
    return true;
}

void complete_layout(struct app *, const char *, const char *word, cmd_add_fn *add,
                     void *arg)
{
    for (int i = 0; i < N_LAYOUT; i++)
        if (strncmp(layouts[i].name, word, strlen(word)) == 0)
            add(arg, layouts[i].name, layouts[i].help);
}

/* ---- /screenshot ----------------------------------------------------------------------------- */

static const char *const endings[] = {
    [PICTURE_TEXT] = ".txt", [PICTURE_SVG] = ".svg", [PICTURE_PNG] = ".png"};
enum { N_ENDING = LEN(endings) };

/* The path to write; the monitor creates text files of one ending only, which no program takes for
 * its settings as some do with names such as CMakeLists.txt. NULL and *e: it is there already. */
static char *new_path(const char *file, enum picture kind, struct err *e)
{
    static const char ending[] = ".screen.txt";
    char *path = kind != PICTURE_TEXT || ends_with(file, ending)
                     ? xstrdup(file)
                     : xasprintf("%.*s%s", (int)(strlen(file) - strlen(".txt")), file, ending);
    if (access(path, F_OK) != 0)
        return path;
    err_set(e, ERR_USAGE, "%s exists already; expected the name of a new file", path);
    free(path);
    return NULL;
}

bool cmd_screenshot(struct cmd_call *c)
{
    struct app *a = c->app;
    FREED(buf_free) struct buf out = {0};
    int kind = 0;
    const char *file = c->argv[c->argc - 1], *pane = c->argc == 2 ? c->argv[0] : NULL;
    while (kind < N_ENDING && !ends_with(file, endings[kind]))
        kind++;
    if (kind == N_ENDING)
        return err_set(c->e, ERR_USAGE, "%s: expected a file that ends in .svg, .png or .txt",
                       file);
    if (!a->face.shot)
        return err_set(c->e, ERR_NEGATIVE, "/screenshot: there is no screen; output of commands "
                                           "can be written to a file by the shell");
    if (a->opt.readonly)
        return err_set(c->e, ERR_USAGE, "/screenshot writes a file, which --readonly and a "
                       "replay forbid");
    FREED(free_at) char *path = new_path(file, (enum picture)kind, c->e);
    bool ok = path && a->face.shot(a, pane, (enum picture)kind, &out, c->e) &&
              hdb_save(path, out.p, out.n, c->e);
    if (ok)
        print_line(&c->to, ST_TEXT, "wrote %s{file}", path);
    return ok;
}

/* ---- /at ------------------------------------------------------------------------------------- */

static void show_address(struct app *a, const struct printer *to)
{
    struct chat_view v;
    backend_chat(a->backend, &v);
    if (app_recording(a))
        print_note(to, ST_TEXT, "at %d.%d of the recording; /at live goes to its end", v.turn,
                   v.step);
    else if (a->at.turn && v.step == 0 && a->resumed)
        print_note(to, ST_WARN, "at %d.%d, from the log: this process has computed no step of the "
                   "session yet", a->at.turn, a->at.step);
    else if (a->at.turn)
        print_note(to, ST_WARN, "at %d.%d; the newest step is %d.%d, /at live returns to it",
                   a->at.turn, a->at.step, v.turn, v.step);
    else
        print_note(to, ST_TEXT, "live: at the newest step, %d.%d", v.turn, v.step);
    print_line(to, ST_TEXT, "\f%d{live?}%d{turn}%d{step}%d{live_turn}%d{live_step}",
               a->at.turn == 0, a->at.turn ? a->at.turn : v.turn, a->at.turn ? a->at.step : v.step,
               v.turn, v.step);
}

bool cmd_address(struct cmd_call *c)
{
    struct app *a = c->app;
    struct step_view v;
    int turn, step;
    if (c->argc && strcmp(c->argv[0], "live") == 0) {
        a->at = (struct address){0};
    } else if (c->argc) {
        if (!cmd_needs(c, VIEW_STEPS) || !arg_step(a, c->argv[0], &turn, &step, NULL, c->e) ||
            !app_find_step(a, turn, step, &v, c->e))
            return false;
        if (app_paused_in(a, turn, step, &v))
            return err_set(c->e, ERR_NEGATIVE, "step %d.%d is not complete yet: without an address "
                           "everything shows it", turn, step);
        a->at = (struct address){turn, step};
    }
    app_seek(a);
    show_address(a, &c->to);
    return true;
}
