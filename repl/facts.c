/* facts.c - see facts.h. */
#include "repl/facts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/settings.h"
#include "repl/text/json.h"

char *facts_value(const char *lines, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = lines; at && *at; at = strchr(at, '\n'), at += at != NULL)
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return xasprintf("%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
    return NULL;
}

static void add(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s%s %s", out->n ? ", " : "", name, value);
}

void facts_settings(const char *lines, struct buf *out)
{
    static const char *const always[] = {"seed", "temperature", "check"};
    struct settings usual;
    settings_init(&usual);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        char *v = facts_value(lines, always[i]);
        if (v)
            add(out, always[i], v);
        free(v);
    }
    for (int i = 0; i < settings_count(); i++) {
        const char *name = settings_at(i)->name;
        struct buf normal = {0};
        char *v = facts_value(lines, name);
        settings_get(&usual, name, &normal);
        bool told = false;
        for (size_t k = 0; k < sizeof always / sizeof *always; k++)
            told |= strcmp(name, always[k]) == 0;
        if (v && !told && strcmp(v, normal.p) != 0)
            add(out, name, v);
        buf_free(&normal);
        free(v);
    }
}

/* Calls fn with the name and the value of every line. */
static void each_line(const char *lines, void (*fn)(const char *name, const char *value, void *arg),
                      void *arg)
{
    for (const char *p = lines ? lines : ""; *p;) {
        size_t n = strcspn(p, "\n"), name = strcspn(p, "=\n");
        if (name < n) {
            char *left = xasprintf("%.*s", (int)name, p);
            char *right = xasprintf("%.*s", (int)(n - name - 1), p + name + 1);
            fn(left, right, arg);
            free(left);
            free(right);
        }
        p += n + (p[n] == '\n');
    }
}

struct diff {
    const char *before;
    struct buf *out;
};

static void add_change(const char *name, const char *value, void *arg)
{
    struct diff *d = arg;
    bool is_fault = strncmp(name, "bug.", 4) == 0;
    char *was = facts_value(d->before, name);
    bool same = was ? strcmp(was, value) == 0 : is_fault && strcmp(value, "off") == 0;
    char *label = is_fault ? xasprintf("fault %s", name + 4) : xstrdup(name);
    if (!same)
        add(d->out, label, value);
    free(label);
    free(was);
}

void facts_changes(const char *before, const char *lines, struct buf *out)
{
    struct diff d = {before, out};
    each_line(lines, add_change, &d);
}

void facts_computed(const char *about, struct buf *out)
{
    static const struct {
        const char *name, *text, *usual; /* NULL: always told */
    } fact[] = {
        {"precision", "; %s activations", NULL}, {"kv", ", %s cells", NULL},
        {"page_size", "; page size %s", NULL},   {"context", "; context %s", NULL},
        {"rows", "; at most %s rows a pass", ""}, {"capture", "; capture %s", ""},
        {"weights", "; weights %s", "stored"},   {"draft_weights", "; draft weights %s", "stored"},
        {"raw", "; raw %s", "0"},                {"version", "; aerie %s", NULL},
        {"flags", ", %s", ""},
    };
    char *device = facts_value(about, "device");
    buf_str(out, device ? device : "an unknown device");
    free(device);
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++) {
        char *v = facts_value(about, fact[i].name);
        if (v && *v && (!fact[i].usual || strcmp(v, fact[i].usual) != 0)) {
            const char *at = strstr(fact[i].text, "%s");
            buf_printf(out, "%.*s%s%s", (int)(at - fact[i].text), fact[i].text, v, at + 2);
        }
        free(v);
    }
}

static void add_json(const char *name, const char *value, void *arg)
{
    jput_kstr(arg, name, value);
}

void facts_json(const char *lines, struct buf *json)
{
    jput_open(json, '{');
    each_line(lines, add_json, json);
    jput_close(json, '}');
}
