/* help.c - what /help and `aerie help` say about a command, a setting or a topic. cmd.c has the
 * list of all commands, find.c the search, help_text.h the topics. */

#include "repl/cmd/cmd.h"
#include "repl/cmd/help_text.h"

static void say_command(const struct cmd *c, const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_KEY, "/%s{command}", c->name);
    print_facts(to, ST_LABEL, " %s{args}", c->args);
    print_facts(to, ST_TEXT, "  %s{help}", c->help);
    if (c->alias)
        print_note(to, ST_TEXT, "  other names: %s", c->alias);
    print_facts(to, ST_TEXT, "  for example: %s{example}", c->example);
    if (c->flags & CMD_WAITS)
        print_note(to, ST_DIM, "  waits until no reply is running");
}

static void say_setting(const struct option *s, const struct printer *to)
{
    print_note(to, ST_KEY, "%s", s->name);
    print_note(to, ST_TEXT, "  %s", s->help);
    print_note(to, ST_TEXT, "  values: %s; /set %s VALUE changes it", s->range, s->name);
    print_line(to, ST_TEXT, "\f%s{setting}%s{range}%s{help}", s->name, s->range, s->help);
}

/* The names that conditions may use, under the topic of that name. */
static void list_names(struct app *a, const struct printer *to)
{
    const char *name, *meaning;
    if (!a || !a->backend || !backend_has(a->backend, VIEW_DEBUG))
        return;
    PRINT_IN(to, "names", '{');
    for (int i = 0; (name = a->backend->debug->name(i, &meaning)) != NULL; i++) {
        print_str(to, name, meaning);
        print_note(to, ST_KEY, "  %-17s \v%s", name, meaning);
    }
}

static const struct topic *find_topic(const char *name, bool whole)
{
    for (int i = 0; i < help_n_topic; i++)
        if (strncmp(help_topics[i].name, name, strlen(name)) == 0 &&
            (!whole || !help_topics[i].name[strlen(name)]))
            return &help_topics[i];
    return NULL;
}

/* Paragraphs, a line each. A chat's terminal and the shell's command wrap them; a pipe has lines of
 * HELP_CELLS. */
static void say_paragraphs(struct app *a, const char *text, const struct printer *to)
{
    if (to->json)
        return;
    FREED(sheet_free) struct sheet lines = {.ascii = to->out->ascii};
    say_text(&lines, ST_TEXT, text);
    sheet_append_wrapped(to->out, &lines, !a || a->face.width ? 0 : HELP_CELLS);
}

static void say_topic(struct app *a, const struct topic *t, const struct printer *to)
{
    print_note(to, ST_HEAD, "%s", t->title);
    say_paragraphs(a, t->text, to);
    if (*t->example) {
        print_note(to, ST_DIM, "For example:");
        print_text(to, ST_CODE, t->example);
    }
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{topic}%s{text}%s{example}", t->name, t->text, t->example);
    if (strcmp(t->name, "conditions") == 0)
        list_names(a, to);
}

bool help_topic(const char *name, const struct printer *to)
{
    const struct topic *t = find_topic(name, true);
    if (t)
        say_topic(NULL, t, to);
    return t != NULL;
}

/* ---- what has exactly this name, what begins with it --------------------------------------- */

/* "check" is a command, a setting and a topic. JSON has one answer: the first. */
static bool say_exact(const struct help_on *on, const struct printer *to)
{
    const struct option *s = settings_named(on->name);
    const struct topic *t = find_topic(on->name, true);
    bool command = on->named && (strcmp(on->named->name, on->name) == 0 ||
                                 (on->is_alias && !s && !t));
    if (command)
        say_command(on->named, to);
    if (s && (!to->json || !command))
        say_setting(s, to);
    if (t && (!to->json || (!command && !s)))
        say_topic(on->app, t, to);
    return command || s || t;
}

static bool say_beginning(const struct help_on *on, const struct printer *to)
{
    const struct topic *t = *on->name ? find_topic(on->name, false) : NULL;
    if (t)
        say_topic(on->app, t, to);
    else if (on->named)
        say_command(on->named, to);
    return t || on->named;
}

bool help_answer(const struct help_on *on, const struct printer *to)
{
    return (!strchr(on->name, ' ') && (say_exact(on, to) || say_beginning(on, to))) ||
           help_find(on, to);
}
