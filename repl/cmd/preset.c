/* preset.c - /preset: saves the settings under a name, and takes them over again.
 *
 * A preset is applied by the requests of /set, one for each setting that differs, so that the log
 * and a replay have them. */

#include "repl/app/presets.h"
#include "kernels/lines.h"
#include "repl/cmd/cmd.h"
#include "repl/compare/facts.h"

/* What the program chooses for the device, and for whether a person is there, is in no preset. */
static bool is_chosen(const char *name)
{
    return !strcmp(name, "chunk") || !strcmp(name, "forget");
}

/* The settings as lines, without those that the program chooses. */
static void lines_of(const struct settings *s, struct buf *out)
{
    FREED(buf_free) struct buf all = {0};
    settings_print(s, &all);
    FOR_LINES(l, all.p) {
        FREED(free_at) char *word = line_copy(line_name(l));
        if (!is_chosen(word))
            buf_printf(out, "%.*s\n", (int)l.n, l.p);
    }
}

static void say_lines(const char *name, const char *lines, const struct printer *to)
{
    FREED(buf_free) struct buf text = {0};
    facts_settings(lines, &text);
    print_line(to, ST_TEXT, "  %-12s{name}  %s{settings}", name, buf_text(&text));
}

static void list(const struct printer *to)
{
    char **name;
    int n = presets_list(&name);
    print_open(to, NULL, '[');
    if (n)
        print_note(to, ST_HEAD, "PRESETS");
    for (int i = 0; i < n; i++) {
        FREED(buf_free) struct buf lines = {0};
        struct err e;
        if (preset_read(name[i], &lines, &e))
            say_lines(name[i], lines.p, to);
        else
            print_line(to, ST_BAD, "  %-12s{name}  %s{error}", name[i], e.msg);
        free(name[i]);
    }
    free(name);
    print_close(to, ']');
    print_note(to, ST_DIM, n ? "/preset NAME takes one over, /preset save NAME saves the present "
                               "settings"
                             : "there is no preset; /preset save NAME saves the present settings");
}

static bool save(struct cmd_call *c, const char *name)
{
    struct settings now;
    FREED(buf_free) struct buf lines = {0};
    bool replaced;
    app_settings(c->app, &now);
    lines_of(&now, &lines);
    bool ok = preset_write(name, lines.p, &replaced, c->e);
    if (ok)
        print_line(&c->to, ST_TEXT, "preset %s{saved}%s\f%d{replaced?}", name,
                   replaced ? " replaced" : " saved", replaced);
    return ok;
}

/* Sends the settings that differ; appends them to *changed, for people. */
static bool send_differing(struct app *a, const struct settings *now, const struct settings *want,
                           struct buf *changed, struct err *e)
{
    struct settings have = *now;
    for (int i = 0; i < settings_count(); i++) {
        const char *name = settings_at(i)->name;
        FREED(buf_free) struct buf is = {0}, to = {0};
        settings_get(&have, name, &is);
        settings_get(want, name, &to);
        if (!strcmp(buf_text(&is), buf_text(&to)))
            continue;
        FREED(free_at) char *line = xasprintf("%s=%s", name, buf_text(&to));
        if (!settings_set(&have, name, buf_text(&to), e) || !app_request(a, RQ_SET, line, e))
            return false;
        buf_printf(changed, "%s%s %s", changed->n ? ", " : "", name, to.n ? to.p : "-");
    }
    return true;
}

static bool apply_preset(struct cmd_call *c, const char *name)
{
    struct settings now, want;
    FREED(buf_free) struct buf lines = {0}, changed = {0};
    app_settings(c->app, &now);
    want = now;
    bool ok = preset_read(name, &lines, c->e) &&
              ((settings_parse(&want, lines.p, c->e) &&
                settings_fit(&want, backend_info(c->app->backend)->vocab, c->e)) ||
               err_prefix(c->e, "preset %s", name));
    ok = ok && (send_differing(c->app, &now, &want, &changed, c->e) ||
                err_prefix(c->e, "preset %s%s%s", name, changed.n ? ", after " : "",
                           buf_text(&changed)));
    if (ok)
        print_line(&c->to, ST_TEXT, "preset %s{preset}: %s{changed}", name,
                   changed.n ? changed.p : "the settings are these already");
    return ok;
}

bool cmd_preset(struct cmd_call *c)
{
    bool saves = c->argc == 2 && !strcmp(c->argv[0], "save");
    bool deletes = c->argc == 2 && !strcmp(c->argv[0], "delete");
    if (c->argc == 0) {
        list(&c->to);
        return true;
    }
    if ((c->argc == 2 && !saves && !deletes) || c->argc > 2 ||
        (c->argc == 1 && (!strcmp(c->argv[0], "save") || !strcmp(c->argv[0], "delete"))))
        return arg_expected(c, "takes a name, save NAME or delete NAME");
    if (c->argc == 1)
        return apply_preset(c, c->argv[0]);
    if (c->app->opt.readonly)
        return err_set(c->e, ERR_USAGE, "/preset %s writes, which --readonly and a replay forbid",
                       c->argv[0]);
    if (saves)
        return save(c, c->argv[1]);
    if (!preset_delete(c->argv[1], c->e))
        return false;
    print_line(&c->to, ST_TEXT, "preset %s{deleted} deleted", c->argv[1]);
    return true;
}

void complete_preset(struct app *, const char *before, const char *word, cmd_add_fn *add,
                     void *arg)
{
    char **name;
    int n = presets_list(&name);
    if (!*before)
        complete_words("save|delete", word, add, arg);
    for (int i = 0; i < n; i++) {
        if (strncmp(name[i], word, strlen(word)) == 0)
            add(arg, name[i], NULL);
        free(name[i]);
    }
    free(name);
}
