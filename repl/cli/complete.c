/* complete.c - `aerie --complete WORD...`: what a shell may put in place of the last word, a line
 * each, with a tab and a help text behind it. A line ":files", ":dirs" or ":sessions" stands for
 * names that the shell finds itself; one that ends with "=" is a name that a value follows. The
 * three scripts in repl/share ask this, so no name of a command, a flag or a setting is written
 * there. */
#include "repl/cli/flags.h"

static void offer(const char *before, const char *word, const char *help)
{
    FREED(free_at) char *line = xasprintf("%s%s%s%s\n", before, word, *help ? "\t" : "", help);
    out_bytes(line, strlen(line)); /* out_printf() would replace the tab */
}

/* The words of a range: "on | off", "auto|cpu|cuda", "DIR|ngram". Names in capitals are of no word
 * but of a kind. */
static void offer_range(const char *before, const char *range)
{
    for (size_t n; *range; range += n, range += strspn(range, " |")) {
        n = strcspn(range, " |");
        FREED(free_at) char *word = xasprintf("%.*s", (int)n, range);
        if (word[0] >= 'a' && word[0] <= 'z' && !strchr(word, ','))
            offer(before, word, "");
        else if (strcmp(word, "DIR") == 0)
            out_printf(":dirs\n");
        else if (strcmp(word, "ID") == 0)
            out_printf(":sessions\n");
        else if (word_index("FILE|KEYFILE|PATH", word) >= 0)
            out_printf(":files\n");
    }
}

static void offer_row(const char *before, const struct option *o)
{
    char text[24];
    offer_range(before, o->kind == OPT_FLAG ? "on|off" : o->range);
    for (double v = o->min; o->kind == OPT_POW2 && v <= o->max; v *= 2) {
        snprintf(text, sizeof text, "%.0f", v);
        offer(before, text, "");
    }
}

/* NAME=VALUE of -p, or, with `opening`, of --with. */
static void offer_change(const char *word, bool opening)
{
    const char *eq = strchr(word, '=');
    FREED(free_at) char *name = xasprintf("%.*s=", (int)(eq ? eq - word : 0), word);
    for (int i = 0; i < settings_count() + opts_count(); i++) {
        bool setting = i < settings_count();
        const struct option *o = setting ? settings_at(i) : opts_at(i - settings_count());
        size_t n = strlen(o->name);
        if (!setting && !(opening && o->change))
            continue;
        if (!eq)
            offer(o->name, "=", o->help);
        else if (strncmp(name, o->name, n) == 0 && name[n] == '=')
            offer_row(name, o);
    }
    if (eq && strncmp(name, "bug.", 4) == 0)
        offer_range(name, "on|off");
    else if (!eq && opening)
        offer("bug.", "", "a historical fault");
}

static void offer_value(const struct flag *f, const char *before, const char *word)
{
    if (f->act == F_PARAM || (f->act == F_TEXTS && strncmp(arg_of(f), "NAME=", 5) == 0))
        offer_change(word, f->act == F_TEXTS);
    else if (f->set && f->act == F_VALUE)
        offer_range(before, f->set);
    else
        offer_row(before, row_of(f));
}

/* n: the words of the command before this one. */
static void offer_words(const struct command *cmd, int n)
{
    struct help_word w;
    bool listed = cmd->word && n < cmd->max - 1;
    for (int i = 0; listed && cmd->word(i, &w); i++) {
        w.name[strcspn(w.name, " ")] = '\0';
        offer("", w.name, w.help);
    }
    if (strncmp(cmd->args, "ID", 2) == 0 || strncmp(cmd->args, "A ", 2) == 0)
        out_printf(":sessions\n");
    else if (!listed && (strstr(cmd->args, "FILE") || strncmp(cmd->args, "DIR", 3) == 0))
        out_printf(":files\n");
}

/* The flag of a word that takes an argument, with the argument inside it (*inside) or behind it. */
static const struct flag *valued(const char *word, int where, const char **inside)
{
    bool is_long = word[0] == '-' && word[1] == '-';
    size_t n = is_long ? strcspn(word + 2, "=") : 0;
    const char *name = is_long ? word + 2 : "";
    char letter = is_long || word[0] != '-' ? '\0' : word[1];
    *inside = is_long && name[n] == '=' ? name + n + 1 : letter && word[2] ? word + 2 : NULL;
    if (!n && !letter)
        return NULL;
    const struct flag *f = find_flag(name, n, letter, where);
    if (!f)
        f = find_flag(name, n, letter, IN_ALL & ~IN_LOGS);
    return f && arg_of(f) ? f : NULL;
}

int cli_complete(const struct command *commands, int n_commands, int n, char **word)
{
    const struct command *cmd = NULL;
    const struct flag *open = NULL; /* takes the next word */
    const char *last = n > 0 ? word[n - 1] : "", *inside;
    int n_words = 0;
    for (int i = 0; i + 1 < n; i++) {
        const struct flag *f = open ? NULL : valued(word[i], cmd ? cmd->bit : IN_TALK, &inside);
        bool is_word = !open && word[i][0] != '-';
        open = f && !inside ? f : NULL;
        n_words += is_word && cmd;
        for (int k = 0; k < n_commands && is_word && !cmd; k++)
            cmd = strcmp(commands[k].name, word[i]) == 0 ? &commands[k] : NULL;
    }
    int bit = cmd ? cmd->bit : IN_CHAT;
    const struct flag *f = open ? NULL : valued(last, bit, &inside);
    if (open) {
        offer_value(open, "", last);
    } else if (f && inside && last[1] == '-') {
        FREED(free_at) char *before = xasprintf("%.*s", (int)(inside - last), last);
        offer_value(f, before, inside);
    } else if (last[0] == '-') {
        for (int i = 0; i < n_flags; i++)
            if (flags[i].where & bit)
                offer("--", flags[i].row.name, row_of(&flags[i])->help);
    } else if (cmd && cmd->bit != IN_HELP) {
        offer_words(cmd, n_words);
    } else if (!n_words) {
        for (int i = 0; i < n_commands; i++)
            offer("", commands[i].name, commands[i].help);
    }
    return out_flush() ? 0 : 2;
}
