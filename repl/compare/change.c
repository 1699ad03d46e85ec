/* change.c - see change.h. */
#include "repl/compare/change.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    C_TEXT, /* a path or a name; "none": none */
    C_WORD, /* one of the words of `words` */
    C_INT,  /* lo .. hi */
    C_POW2, /* the same, and a power of two */
    C_BOOL, /* on | off */
};

#define AT(field) offsetof(struct engine_opts, field)

static const struct option {
    const char *name;
    enum kind kind;
    size_t at;
    int lo, hi;
    const char *words;
} options[] = {
    {"model", C_TEXT, AT(model), 0, 0, NULL},
    {"draft", C_TEXT, AT(draft), 0, 0, NULL},
    {"eagle_capture", C_TEXT, AT(capture), 0, 0, NULL},
    {"device", C_WORD, AT(device), 0, 0, "auto|cpu|cuda"},
    {"precision", C_WORD, AT(precision), 0, 0, "bf16|f32"},
    {"kv", C_WORD, AT(kv), 0, 0, "auto|fp8"},
    {"weights", C_WORD, AT(quant.weights), 0, 0, "stored|fp8"},
    {"draft_weights", C_WORD, AT(quant.draft_weights), 0, 0, "stored|fp8"},
    {"threads", C_INT, AT(threads), 1, 1024, NULL},
    {"raw", C_BOOL, AT(raw), 0, 0, NULL},
    {"context", C_INT, AT(context), 16, 1 << 24, NULL},
    {"page_size", C_POW2, AT(page_size), 1, 64, NULL},
    {"full_pages", C_INT, AT(full_pages), 3, 1 << 28, NULL},
    {"swa_pages", C_INT, AT(swa_pages), 3, 1 << 28, NULL},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static const struct option *find(const char *name, size_t n)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

static bool is_word(const char *words, const char *value)
{
    size_t n = strlen(value);
    for (const char *w = words; *w;) {
        size_t here = strcspn(w, "|");
        if (here == n && memcmp(w, value, n) == 0)
            return true;
        w += here + (w[here] == '|');
    }
    return false;
}

static bool take_int(int *out, const struct option *o, const char *value)
{
    char *end;
    errno = 0;
    long v = strtol(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || v < o->lo || v > o->hi ||
        (o->kind == C_POW2 && (v & (v - 1))))
        return false;
    *out = (int)v;
    return true;
}

static bool take_option(struct engine_opts *all, const struct option *o, const char *value,
                        struct err *e)
{
    void *at = (char *)all + o->at;
    switch (o->kind) {
    case C_TEXT:
        *(const char **)at = strcmp(value, "none") == 0 ? NULL : value;
        return *value || err_set(e, ERR_USAGE, "%s cannot be empty", o->name);
    case C_WORD:
        *(const char **)at = value;
        return is_word(o->words, value) || err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected %s",
                                                   o->name, value, o->words);
    case C_BOOL:
        *(bool *)at = strcmp(value, "on") == 0;
        return is_word("on|off", value) ||
               err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected on or off", o->name, value);
    case C_INT:
    case C_POW2: break;
    }
    return take_int(at, o, value) ||
           err_set(e, ERR_USAGE, "%s cannot be \"%.80s\"; expected a %s from %d to %d", o->name, value,
                   o->kind == C_POW2 ? "power of two" : "number", o->lo, o->hi);
}

static bool unknown(const char *name, struct err *e)
{
    struct buf all = {0};
    for (int i = 0; i < N_OPTIONS; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", options[i].name);
    err_set(e, ERR_USAGE, "\"%.64s\" cannot be changed; expected a setting (aerie help run lists them), "
            "bug.NUMBER, or one of %s", name, all.p);
    buf_free(&all);
    return false;
}

bool change_apply(struct engine_opts *o, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    if (!eq || eq == text)
        return err_set(e, ERR_USAGE, "\"%.80s\": expected NAME=VALUE", text);
    struct engine_opts new = *o;
    char *name = xasprintf("%.*s", (int)(eq - text), text);
    const struct option *option = find(name, strlen(name));
    bool ok = strncmp(name, "bug.", 4) == 0   ? bug_set(&new.bugs, name + 4, eq + 1, e)
              : option                        ? take_option(&new, option, eq + 1, e)
              : settings_index(name) >= 0     ? settings_set(&new.settings, name, eq + 1, e)
                                              : unknown(name, e);
    free(name);
    if (ok)
        *o = new;
    return ok;
}

/* ---- two sets of options --------------------------------------------------------------------- */

static bool same_option(const struct engine_opts *a, const struct engine_opts *b,
                        const struct option *o)
{
    const void *x = (const char *)a + o->at, *y = (const char *)b + o->at;
    if (o->kind == C_BOOL)
        return *(const bool *)x == *(const bool *)y;
    if (o->kind == C_INT || o->kind == C_POW2)
        return *(const int *)x == *(const int *)y;
    const char *s = *(const char *const *)x, *t = *(const char *const *)y;
    return s == t || (s && t && strcmp(s, t) == 0);
}

bool change_reopens(const struct engine_opts *a, const struct engine_opts *b)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (!same_option(a, b, &options[i]))
            return true;
    return a->rows != b->rows;
}

void change_lines(const struct engine_opts *from, const struct engine_opts *to, struct buf *lines)
{
    struct buf a = {0}, b = {0};
    for (int i = 0; i < settings_count(); i++) {
        const char *name = settings_at(i)->name;
        buf_clear(&a);
        buf_clear(&b);
        settings_get(&from->settings, name, &a);
        settings_get(&to->settings, name, &b);
        if (strcmp(a.p, b.p) != 0)
            buf_printf(lines, "%s=%s\n", name, b.p);
    }
    for (int i = 0; i < N_BUGS; i++)
        if (bug_on(&from->bugs, (enum bug)i) != bug_on(&to->bugs, (enum bug)i))
            buf_printf(lines, "bug.%d=%s\n", bug_at((enum bug)i)->number,
                       bug_state_name((enum bug)i, bug_on(&to->bugs, (enum bug)i)));
    buf_free(&a);
    buf_free(&b);
}
