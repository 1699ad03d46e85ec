/* chat.c - the commands of the chat itself: settings, system prompt, files, the last turn. */
#include <dirent.h>
#include <sys/stat.h>

#include "kernels/utf8.h"
#include "kernels/text.h"
#include "repl/cmd/cmd.h"

/* ---- /set ------------------------------------------------------------------------------------ */

static const char *setting_name(int i)
{
    return settings_at(i)->name;
}

static int setting_index(const char *name)
{
    return settings_named(name) ? settings_index(name) : -1;
}

/* A setting in full; a setting of the screen looks the same. */
static void show_setting(const struct settings *s, int i, const struct printer *to)
{
    const struct option *x = settings_at(i);
    FREED(buf_free) struct buf value = {0};
    settings_get(s, x->name, &value);
    setting_row(x->name, value.p, x->range, x->help, "", to);
}

static void settings_show(struct app *a, int first, int n, const struct printer *to)
{
    struct settings s;
    app_settings(a, &s);
    PRINT_IN(to, NULL, '[');
    for (int i = first; i < first + n; i++)
        show_setting(&s, i, to);
    if (n > 1)
        screen_settings(a, to);
}

static bool unknown_setting(const char *name, struct err *e)
{
    FREED(buf_free) struct buf near = {0};
    nearest_names(name, setting_name, settings_count(), "", &near);
    if (near.n)
        err_set(e, ERR_USAGE, "there is no setting %.40s; did you mean %s? (/set lists all)", name,
                near.p);
    else
        err_set(e, ERR_USAGE, "there is no setting %.40s; /set lists all of them", name);
    return false;
}

static bool set_one(struct cmd_call *c, const char *name, const char *value)
{
    struct app *a = c->app;
    if (is_screen_setting(name))
        return screen_setting(a, name, value, &c->to, c->e);
    if (strcmp(name, "num_predict") == 0) /* ollama's name for max_tokens */
        name = "max_tokens";
    int i = setting_index(name);
    if (i < 0)
        return unknown_setting(name, c->e);
    struct settings s;
    app_settings(a, &s);
    if (!settings_set(&s, name, value, c->e) ||
        !settings_fit(&s, backend_info(a->backend)->vocab, c->e))
        return false;
    FREED(buf_free) struct buf line = {0};
    buf_printf(&line, "%s=%s", name, value);
    const char *when = backend_busy(a->backend) ? " from the next reply on" : "";
    bool ok = app_request(a, RQ_SET, line.p, c->e);
    buf_clear(&line);
    settings_get(&s, name, &line);
    if (ok)
        print_line(&c->to, ST_TEXT, "%s{name} = %s{value}%s\f%s{range}%s{help}", name, line.p, when,
                   settings_at(i)->range, settings_at(i)->help);
    return ok;
}

/* The spellings of `ollama run`: "verbose", "quiet", "think", "nothink", "parameter NAME VALUE". */
static bool set_like_ollama(int *argc, char ***argv, const char **name, const char **value)
{
    static const char *const word[][3] = {{"verbose", "verbose", "on"}, {"quiet", "verbose", "off"},
                                          {"think", "think", "on"}, {"nothink", "think", "off"}};
    if (*argc > 1 && strcmp((*argv)[0], "parameter") == 0) {
        --*argc;
        ++*argv;
    }
    for (size_t i = 0; *argc == 1 && i < LEN(word); i++)
        if (strcmp((*argv)[0], word[i][0]) == 0) {
            *name = word[i][1];
            *value = word[i][2];
            return true;
        }
    return false;
}

bool cmd_set(struct cmd_call *c)
{
    const char *name, *value;
    if (c->argc == 0) {
        settings_show(c->app, 0, settings_count(), &c->to);
        return true;
    }
    if (strcmp(c->argv[0], "system") == 0 &&
        c->argc > 1) { /* as in ollama; the text is used as typed */
        FREED(free_at) char *text = xstrdup(c->rest + strlen("system"));
        char *word = text + strspn(text, " \t");
        struct cmd_call system = *c;
        system.argc = 1;
        system.argv = &word;
        return cmd_system(&system);
    }
    if (set_like_ollama(&c->argc, &c->argv, &name, &value))
        return set_one(c, name, value);
    char *eq = c->argc == 1 ? strchr(c->argv[0], '=') : NULL;
    if (eq) {
        *eq = '\0';
        return set_one(c, c->argv[0], eq + 1);
    }
    if (c->argc == 3 && strcmp(c->argv[1], "=") == 0)
        return set_one(c, c->argv[0], c->argv[2]);
    if (c->argc == 2)
        return set_one(c, c->argv[0], c->argv[1]);
    if (c->argc > 2)
        return arg_expected(c, "takes a name and one value");
    if (is_screen_setting(c->argv[0]))
        return screen_setting(c->app, c->argv[0], NULL, &c->to, c->e);
    int i = setting_index(c->argv[0]);
    if (i < 0)
        return unknown_setting(c->argv[0], c->e);
    settings_show(c->app, i, 1, &c->to);
    return true;
}

void complete_set(struct app *, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    char name[40];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(before, " "), before);
    complete_screen_setting(name, word, add, arg);
    for (int i = 0; i < settings_count(); i++)
        if (*name && strcmp(setting_name(i), name) == 0)
            complete_words(settings_at(i)->range, word, add, arg);
        else if (!*name && strncmp(setting_name(i), word, strlen(word)) == 0)
            add(arg, setting_name(i), settings_at(i)->help);
}

/* ---- /system, /read -------------------------------------------------------------------------- */

bool cmd_system(struct cmd_call *c)
{
    struct app *a = c->app;
    if (c->argc > 0) {
        const char *text = strcmp(c->argv[0], "\"\"") == 0 ? "" : c->argv[0];
        if (!backend_fits(a->backend, text, c->e) || !app_request(a, RQ_SYSTEM, text, c->e))
            return false;
        set_text(&a->system, *text ? text : NULL);
    }
    if (c->argc > 0)
        print_note(&c->to, ST_TEXT,
                   a->system ? "system prompt set; it holds from the next message on"
                             : "system prompt removed");
    else if (a->system)
        print_text(&c->to, ST_TEXT, a->system);
    else
        print_note(&c->to, ST_DIM,
                   "no system prompt; /system TEXT sets one, /system \"\" removes it");
    print_line(&c->to, ST_TEXT, "\f%s{system}", a->system ? a->system : "");
    return true;
}

/* Whether a path names the open log. Reading it with open() and close() would drop SQLite's locks
 * (history/log/file.c). */
static bool is_the_log(const struct app *a, const char *path)
{
    struct stat log, file;
    return a->db_path && stat(a->db_path, &log) == 0 && stat(path, &file) == 0 &&
           log.st_dev == file.st_dev && log.st_ino == file.st_ino;
}

bool cmd_read(struct cmd_call *c)
{
    struct app *a = c->app;
    enum { MAX_FILE = 4 << 20 };
    FREED(buf_free) struct buf text = {0};
    if (is_the_log(a, c->argv[0]))
        return err_set(c->e, ERR_USAGE,
                       "%s is the session log; expected a text, as /export writes it", c->argv[0]);
    if (!buf_read_file(&text, c->argv[0], MAX_FILE, c->e))
        return false;
    const char *nul = text.n ? memchr(text.p, 0, text.n) : NULL;
    if (nul)
        return err_set(c->e, ERR_USAGE, "%s is no text: it has a NUL byte at %zu", c->argv[0],
                       (size_t)(nul - text.p));
    utf8_drop_mark(&text);
    if (text.n == 0)
        return err_set(c->e, ERR_USAGE, "%s is empty", c->argv[0]);
    size_t n = text.n;
    if (a->backend && !backend_fits(a->backend, text.p, c->e))
        return false;
    app_attach(a, c->argv[0], &text);
    print_line(&c->to, ST_TEXT, "%s{file}: %zu{bytes} bytes go in front of the next message; /drop "
               "takes them out", c->argv[0], n);
    return true;
}

bool cmd_drop(struct cmd_call *c)
{
    struct app *a = c->app;
    int n = app_attached(a), at = -1;
    FREED(buf_free) struct buf names = {0};
    if (n == 0)
        return err_set(c->e, ERR_USAGE,
                       "no file is attached to the next message; /read FILE adds one");
    for (int i = 0; c->argc == 1 && i < n; i++)
        if (strcmp(a->attached.file[i].name, c->argv[0]) == 0)
            at = i;
    app_attached_text(a, &names);
    if (c->argc == 1 && at < 0)
        return FAILED(false, c->e, ERR_USAGE, "%.100s is not attached; the next message has %.200s",
                      c->argv[0], names.p);
    print_note(&c->to, ST_TEXT, "not in the next message any more: %s",
               at < 0 ? names.p : c->argv[0]);
    print_open(&c->to, NULL, '[');
    for (int i = 0; i < n; i++)
        if (at < 0 || i == at)
            print_str(&c->to, NULL, a->attached.file[i].name);
    print_close(&c->to, ']');
    app_drop(a, at);
    return true;
}

void complete_drop(struct app *a, const char *, const char *word, cmd_add_fn *add, void *arg)
{
    for (int i = 0, n = app_attached(a); i < n; i++)
        if (strncmp(a->attached.file[i].name, word, strlen(word)) == 0)
            add(arg, a->attached.file[i].name, NULL);
}

/* Offers the entries of the folder that the word names; folders end in a slash. */
void complete_file(struct app *, const char *, const char *word, cmd_add_fn *add, void *arg)
{
    const char *slash = strrchr(word, '/'), *base = slash ? slash + 1 : word;
    FREED(free_at) char *folder = slash ? xasprintf("%.*s", (int)(slash - word + 1), word)
                                        : xstrdup("./");
    FREED(folder_close) DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (strncmp(f->d_name, base, strlen(base)) != 0 || (f->d_name[0] == '.' && *base != '.'))
            continue;
        FREED(free_at) char *s = xasprintf("%s%s%s", slash ? folder : "", f->d_name,
                                           f->d_type == DT_DIR ? "/" : "");
        add(arg, s, NULL);
    }
}

/* ---- the last turn --------------------------------------------------------------------------- */

bool cmd_regen(struct cmd_call *c)
{
    if (c->app->turns.n == 0)
        return err_set(c->e, ERR_USAGE,
                       "there is no reply to generate again; send a message first");
    print_line(&c->to, ST_TEXT, "\f%d{regenerates}", c->app->turns.v[c->app->turns.n - 1]);
    return app_request(c->app, RQ_REGEN, NULL, c->e);
}

bool cmd_undo(struct cmd_call *c)
{
    struct app *a = c->app;
    if (a->turns.n == 0)
        return err_set(c->e, ERR_USAGE, "there is no turn to take back");
    int turn = a->turns.v[a->turns.n - 1];
    if (!app_request(a, RQ_UNDO, NULL, c->e))
        return false;
    print_line(&c->to, ST_DIM, "turn %d{undone} left the context", turn);
    return true;
}

/* /forget without a number: sends the refused message again; the engine removes as many turns as
 * necessary. */
static bool send_refused(struct cmd_call *c)
{
    struct app *a = c->app;
    if (!a->refused)
        return err_set(c->e, ERR_USAGE, "no message was refused; /forget N leaves out the oldest N "
                       "turns of the context");
    struct request rq = {.kind = RQ_SAY, .text = xstrdup(a->asked.p), .make_room = true};
    print_line(&c->to, ST_TEXT, "\f%d{sent?}", true);
    return app_submit(a, &rq, c->e);
}

bool cmd_forget(struct cmd_call *c)
{
    struct app *a = c->app;
    long n;
    if (c->argc == 0)
        return send_refused(c);
    if (a->turns.n == 0)
        return err_set(c->e, ERR_USAGE, "the context holds no turn");
    if (!arg_number(c, "the number of turns", 1, a->turns.n, &n))
        return false;
    print_open(&c->to, NULL, '{');
    print_ints(&c->to, "forgotten", a->turns.v, (int)n);
    print_close(&c->to, '}');
    struct request rq = {.kind = RQ_FORGET};
    ids_cat(&rq.turns, a->turns.v, (int)n);
    return app_submit(a, &rq, c->e); /* a notice of the engine lists them and their tokens */
}

bool cmd_clear(struct cmd_call *c)
{
    struct app *a = c->app;
    if (!app_new_session(a, c->e))
        return false;
    if (a->face.clear)
        a->face.clear(a);
    print_line(&c->to, ST_DIM, "new session %s{session}", a->session);
    return true;
}

bool cmd_bye(struct cmd_call *c)
{
    c->app->quit = true;
    print_line(&c->to, ST_TEXT, "\f%s{session}", c->app->session);
    return true;
}
