/* facts.c - see facts.h. */
#include "repl/compare/facts.h"

#include <link.h>

#include "engine/settings.h"
#include "kernels/json.h"
#include "kernels/lines.h"

char *facts_value(const char *lines, const char *name)
{
    struct line value = line_value(lines, name);
    return value.p ? line_copy(value) : NULL;
}

char *facts_draft(const char *lines)
{
    char *hash = facts_value(lines, "draft_sha");
    FREED(free_at) char *dir = facts_value(lines, "draft_dir");
    if (!hash || *hash || !dir || strcmp(dir, "ngram") != 0)
        return hash;
    free(hash);
    return xstrdup(dir);
}

bool facts_steered(const char *lines)
{
    static const char *const names[] = {"presence_penalty", "frequency_penalty",
                                        "repetition_penalty", "logit_bias"};
    struct settings set;
    struct penalties p;
    settings_init(&set);
    for (size_t i = 0; i < LEN(names); i++) {
        FREED(free_at) char *value = facts_value(lines, names[i]);
        if (value)
            settings_set(&set, names[i], value, NULL);
    }
    settings_penalties(&set, &p);
    return penalties_any(&p);
}

bool facts_served(const char *about)
{
    char *backend = facts_value(about, "backend"), *kind = facts_value(about, "server_kind");
    bool served = kind || (backend && strcmp(backend, "remote") == 0);
    FREE(backend, kind);
    return served;
}

bool facts_same_tokens(const char *about, const char *tokenizer_sha)
{
    FREED(free_at) char *was = facts_value(about, "tokenizer_sha");
    return !was || !*was || strcmp(was, tokenizer_sha) == 0;
}

static void add_fact(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s%s %s", out->n ? ", " : "", name, value);
}

void facts_settings(const char *lines, struct buf *out)
{
    static const char *const always[] = {"seed", "temperature", "check"};
    struct settings usual;
    settings_init(&usual);
    for (size_t i = 0; i < LEN(always); i++) {
        FREED(free_at) char *v = facts_value(lines, always[i]);
        if (v)
            add_fact(out, always[i], v);
    }
    for (int i = 0; i < settings_count(); i++) {
        const char *name = settings_at(i)->name;
        FREED(buf_free) struct buf normal = {0};
        FREED(free_at) char *v = facts_value(lines, name);
        settings_get(&usual, name, &normal);
        if (v && !ANY(k, LEN(always), !strcmp(name, always[k])) && strcmp(v, normal.p) != 0)
            add_fact(out, name, v);
    }
}

/* Calls fn with the name and the value of every line. */
static void each_line(const char *lines, void (*fn)(const char *name, const char *value, void *arg),
                      void *arg)
{
    FOR_LINES(l, lines) {
        struct line name = line_name(l);
        if (name.n == l.n)
            continue;
        FREED(free_at) char *left = line_copy(name);
        FREED(free_at) char *right = line_copy(line_at(l.p + name.n + 1));
        fn(left, right, arg);
    }
}

struct diff {
    const char *before; /* the lines to compare with */
    struct buf *out;
};

static void add_change(const char *name, const char *value, void *arg)
{
    struct diff *d = arg;
    bool is_fault = strncmp(name, "bug.", 4) == 0;
    FREED(free_at) char *was = facts_value(d->before, name);
    bool same = was ? strcmp(was, value) == 0 : is_fault && strcmp(value, "off") == 0;
    FREED(free_at) char *label = is_fault ? xasprintf("fault %s", name + 4) : xstrdup(name);
    if (!same)
        add_fact(d->out, label, value);
}

/* A fault that `lines` do not name is off. */
static void add_gone(const char *name, const char *value, void *arg)
{
    struct diff *d = arg;
    FREED(free_at) char *now = facts_value(d->before, name);
    if (!now && strncmp(name, "bug.", 4) == 0 && strcmp(value, "off") != 0)
        buf_printf(d->out, "%sfault %s off", d->out->n ? ", " : "", name + 4);
}

void facts_changes(const char *before, const char *lines, struct buf *out)
{
    struct diff d = {before, out}, gone = {lines, out};
    each_line(lines, add_change, &d);
    each_line(before, add_gone, &gone);
}

void facts_computed(const char *about, struct buf *out)
{
    static const struct {
        const char *name, *text, *usual; /* NULL: always shown */
    } fact[] = {
        {"imported_line", ", line %s", NULL}, {"server", " (%s)", ""},
        {"precision", "; %s activations", NULL}, {"kv", ", %s cells", NULL},
        {"page_size", "; page size %s", NULL},   {"context", "; context %s", NULL},
        {"rows", "; at most %s rows a pass", ""}, {"capture", "; capture %s", ""},
        {"weights", "; weights %s", "stored"},   {"draft_weights", "; draft weights %s", "stored"},
        {"raw", "; raw %s", "0"},                {"version", "; aerie %s", NULL},
        {"flags", ", %s", ""},
    };
    FREED(free_at) char *device = facts_value(about, "device");
    FREED(free_at) char *url = facts_value(about, "server_url");
    buf_str(out, url && *url ? url : device && *device ? device : url ? "a server"
            : "an unknown device");
    for (size_t i = 0; i < LEN(fact); i++) {
        FREED(free_at) char *v = facts_value(about, fact[i].name);
        if (v && *v && (!fact[i].usual || strcmp(v, fact[i].usual) != 0)) {
            const char *at = strstr(fact[i].text, "%s");
            buf_printf(out, "%.*s%s%s", (int)(at - fact[i].text), fact[i].text, v, at + 2);
        }
    }
}

static void add_json(const char *name, const char *value, void *arg)
{
    jput_kstr(arg, name, value);
}

void facts_json(const char *lines, struct buf *json)
{
    JPUT_IN(json, '{');
    each_line(lines, add_json, json);
}

/* ---- packs ---- */

void facts_pack(const struct pack_about *a, struct buf *out)
{
    static const char *const kept[] = {"with text", "no text, token ids kept",
                                       "no text, no token ids"};
    buf_printf(out, "%s; %d turn%s, %d step%s", kept[a->level], a->turns, plural(a->turns),
               a->steps, plural(a->steps));
    if (a->trees[0])
        buf_printf(out, "; trees of %s", a->trees);
    buf_printf(out, "; seal %.12s", a->seal);
}

void facts_pack_json(const struct pack_about *a, struct buf *json)
{
    if (!a) {
        jput_null(json);
        return;
    }
    jput_record(json, "%s{session}%s{keeps}%d{turns}%d{steps}%s{trees}%s{made_by}%s{seal}"
                "%lu{bytes}", a->session, pack_level_name(a->level), a->turns, a->steps, a->trees,
                a->made_by, a->seal, a->bytes);
}

/* ---- the build and the engine ---- */

/* dl_iterate_phdr() calls this for the program itself first. */
static int find_id(struct dl_phdr_info *info, size_t, void *arg)
{
    char *out = arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        const char *at = (const char *)(info->dlpi_addr + h->p_vaddr), *end = at + h->p_memsz;
        while (h->p_type == PT_NOTE && end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const void *)at;
            const unsigned char *id = (const unsigned char *)at + sizeof *note +
                                      ((note->n_namesz + 3) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz >= 6)
                hex_digits(out, id, 6); /* out is zeroed */
            at = (const char *)id + ((note->n_descsz + 3) & ~3u);
        }
    }
    return 1;
}

const char *facts_build(void)
{
    static char text[96];
    char id[16] = "";
    if (text[0])
        return text;
    dl_iterate_phdr(find_id, id);
#ifdef __clang__
    snprintf(text, sizeof text, "clang %s%s%s", __clang_version__, id[0] ? ", build " : "", id);
#else
    snprintf(text, sizeof text, "gcc %s%s%s", __VERSION__, id[0] ? ", build " : "", id);
#endif
    return text;
}

void facts_models(const struct backend_info *i, struct buf *out)
{
    buf_printf(out, "model_sha=%s\ntokenizer_sha=%s\ndraft_sha=%s\n", i->model_sha,
               i->tokenizer_sha, i->draft_sha);
    if (i->draft_kind && strcmp(i->draft_kind, "ngram") == 0) /* which has no hash */
        buf_str(out, "draft_dir=ngram\n");
}

void facts_config(const struct engine_opts *o, const struct backend_info *i, struct buf *out)
{
    if (o->server.url) { /* the server decides everything else */
        buf_printf(out, "backend=remote\nserver=%s\ncontext=%d\n", i ? i->family : "",
                   i ? i->context : 0);
        return;
    }
    struct engine_opts open = *o;
    open.date = i ? i->date : NULL;
    open.device = i ? i->backend : NULL;
    open.precision = open.device ? i->precision : NULL;
    open.kv = open.device ? i->kv : NULL;
    open.rows = open.device ? i->rows : 0;
    if (i) {
        open.page_size = i->page_size;
        open.context = i->context;
        open.full_pages = i->n_pages[POOL_FULL];
        open.swa_pages = i->n_pages[POOL_SWA];
        open.capture = i->capture;
    }
    opts_print(&open, out);
}

struct compare {
    const char *log, *now;
    struct facts_diff *out;
};

static void compare_line(const char *name, const char *log, void *arg)
{
    static const char *const unbound[] = {"version", "device", "flags", "model_dir", "draft_dir",
                                          "server_kind", "server_version", "server_url",
                                          "server_facts"};
    static const struct hash_of {
        const char *name, *model;
    } hashes[] = {{"model_sha", "model"}, {"tokenizer_sha", "tokenizer"},
    {"draft_sha", "draft model"}};
    struct compare *c = arg;
    if (ROW_NAMED(unbound, name))
        return;
    bool draft = strcmp(name, "draft_sha") == 0;
    char *was = draft ? facts_draft(c->log) : xstrdup(log);
    char *now = draft ? facts_draft(c->now) : facts_value(c->now, name);
    const struct hash_of *hash = ROW_NAMED(hashes, name);
    const char *model = hash ? hash->model : NULL;
    if (!now || strcmp(was, now) == 0 || (!model && !*was)) {
        FREE(was, now);
        return;
    }
    struct facts_diff *d = c->out;
    *APPEND(d->at, d->n) = (struct fact_diff){xstrdup(name), was, now, model};
}

void facts_compare(const char *log, const char *now, struct facts_diff *out)
{
    struct compare c = {log, now, out};
    *out = (struct facts_diff){0};
    each_line(log, compare_line, &c);
}

void facts_diff_free(struct facts_diff *d)
{
    for (int i = 0; i < d->n; i++)
        FREE(d->at[i].name, d->at[i].log, d->at[i].now);
    free(d->at);
    *d = (struct facts_diff){0};
}

bool facts_same_models(const struct facts_diff *d)
{
    return ALL(i, d->n, !d->at[i].model);
}

void facts_diff_print(const struct facts_diff *d, struct buf *out)
{
    for (int i = 0; i < d->n; i++) {
        const struct fact_diff *f = &d->at[i];
        const char *gap = i ? "; " : "", *log = *f->log ? f->log : "none";
        const char *now = *f->now ? f->now : "none";
        if (f->model)
            buf_printf(out, "%sanother %s (%.12s, here %.12s)", gap, f->model, log, now);
        else
            buf_printf(out, "%s%s %s, here %s", gap, f->name, log, now);
    }
}

bool facts_unmet_needs(const struct backend_info *i, const struct settings *s, enum bug b,
                       int variant, struct buf *out)
{
    static const enum bug_draft draft[] = {[DRAFT_KV_NONE] = NEED_DRAFT,
                                           [DRAFT_KV_OWN] = NEED_EAGLE3,
                                           [DRAFT_KV_TARGET] = NEED_FROZEN};
    struct bug_facts f = {.window = i->n_swa_layer > 0, .spec = s->spec,
                          .draft = !i->draft_kind ? NEED_NONE : i->draft_block ? NEED_BLOCK
                                   : draft[i->draft_kv],
                          .topk = s->topk, .steps = s->steps, .nodes = s->nodes,
                          .page_size = i->page_size};
    return bug_needs(b, variant, &f, true, out);
}
