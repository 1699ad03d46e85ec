/* pair.c - see pair.h. */
#include "models/draft/pair.h"

#include "kernels/ascii.h"
#include "models/checkpoint/gguf.h"
#include "models/checkpoint/hub.h"
#include "models/checkpoint/json.h"
#include "models/models.h"

#include <sys/stat.h>

enum { MOST_ENTRIES = 4096, CARD = 16 << 10, SAYS = 4, NAME = 160 };

/* ---- names ---- */

/* Words that say how a model is stored, or that it is a draft, and not which one it is. Of a name
 * such as Q4_K_M only the beginning is compared. */
static bool is_aside(const char *word, size_t n)
{
    static const char *const words[] = {
        "eagle3", "eagle", "peagle", "dflash", "assistant", "speculator", "speculators", "draft",
        "drafter",
        "mtp", "head", "target", "gguf", "bf16", "fp16", "f16", "f32", "fp8", "nvfp4", "mxfp4",
        "int4", "int8", "w4a16", "w8a8", "w8a16", "dynamic", "block", "qat"};
    for (size_t i = 0; i < LEN(words); i++)
        if (strlen(words[i]) == n && ascii_same_n(word, words[i], n))
            return true;
    size_t q = n && (word[0] | 32) == 'i' ? 1 : 0; /* q4_0, iq4_nl */
    return n > q + 1 && (word[q] | 32) == 'q' && word[q + 1] >= '1' && word[q + 1] <= '8';
}

/* The words of a path's or a repository's last part that say which model it is, joined by '-'. */
static void bare(const char *name, char out[NAME])
{
    size_t end = strlen(name), at, n = 0;
    while (end > 1 && name[end - 1] == '/')
        end--;
    for (at = end; at && name[at - 1] != '/';)
        at--;
    while (at < end) {
        size_t word = at;
        while (word < end && !strchr("-. ", name[word]))
            word++;
        if (word > at && !is_aside(name + at, word - at) && n + (word - at) + 1 < NAME) {
            n += (size_t)snprintf(out + n, NAME - n, "%s%.*s", n ? "-" : "", (int)(word - at),
                                  name + at);
        }
        at = word + 1;
    }
    out[n] = '\0';
}

static bool same_model(const char *a, const char *b)
{
    char x[NAME], y[NAME];
    bare(a, x);
    bare(b, y);
    return ascii_same(x, y);
}

static bool is_nameless(const char *name)
{
    char x[NAME];
    bare(name, x);
    return !x[0];
}

/* The name of a path: of the repository in the hub's cache, else the path's last part. */
static char *name_of(const char *path)
{
    char *title = hub_title_in_cache(path);
    if (title) {
        title[strcspn(title, ":")] = '\0';
        return title;
    }
    const char *slash = strrchr(path, '/');
    return xstrdup(slash && slash[1] ? slash + 1 : path);
}

/* ---- what a checkpoint says of itself ---- */

struct says {
    bool draft;       /* it is one */
    char kind[64];    /* of a draft: its architecture, for people */
    char *target[SAYS]; /* names or paths of the target */
    int n;
};

static void says_free(struct says *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->target[i]);
    *s = (struct says){0};
}

static void add_target(struct says *s, const char *name, size_t n)
{
    if (n && s->n < SAYS)
        s->target[s->n++] = xasprintf("%.*s", (int)(n < 1024 ? n : 1024), name);
}

static bool has_word(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (ascii_contains(s, *words))
            return true;
    return false;
}

static void read_config(const json_t *top, struct says *s)
{
    static const char *const classes[] = {"eagle3", "peagle", "dflash", "dspark",
                                          "speculator", "draftmodel", "gemma4assistant",
                                          "gemma4unifiedassistant", NULL};
    static const char *const keys[] = {"speculators_config", "speculators_model_type",
                                       "eagle_config", "dflash_config", "dspark_config",
                                       "markov_rank", "draft_vocab_size", "truncated_vocab_size"};
    const char *type = json_string_value(json_object_get(top, "model_type"));
    const char *class = json_string_value(json_array_get(json_object_get(top, "architectures"),
                                                         0));
    const json_t *verifier = json_object_get(json_object_get(top, "speculators_config"),
                                             "verifier");
    const char *target = json_string_value(json_object_get(verifier, "name_or_path"));
    s->draft = (class && has_word(class, classes)) ||
               (type && (!strcmp(type, "gemma4_assistant") ||
                         !strcmp(type, "gemma4_unified_assistant")));
    for (size_t i = 0; i < LEN(keys); i++)
        s->draft |= json_object_get(top, keys[i]) != NULL;
    snprintf(s->kind, sizeof s->kind, "%.60s", show(class ? class : type ? type : "a draft").s);
    if (target)
        add_target(s, target, strlen(target));
}

/* base_model of the YAML between two lines of "---" at the beginning of a model card: a name behind
 * the colon, or a list of them, one a line. */
static void read_card(const char *folder, struct says *s)
{
    static const char key[] = "base_model:";
    FREED(free_at) char *path = xasprintf("%s/README.md", folder);
    char line[1024];
    FILE *f = fopen(path, "r");
    bool listed = false, first = true;
    for (long left = CARD; f && left > 0 && fgets(line, sizeof line, f); first = false) {
        left -= (long)strlen(line);
        bool edge = !strncmp(line, "---", 3);
        if (edge != first)
            break;
        const char *p = line;
        if (!strncmp(line, key, sizeof key - 1)) {
            p += sizeof key - 1;
            listed = true;
        } else if (listed && strspn(line, " ") != strcspn(line, "-")) {
            listed = false;
        }
        p += strspn(p, " \t-\"'");
        if (listed)
            add_target(s, p, strcspn(p, " \t\"'#\r\n"));
    }
    if (f)
        fclose(f);
}

static void add_text(const struct gguf *g, const char *key, struct says *s)
{
    struct gguf_text t = {NULL, 0};
    if (gguf_string(g, key, &t, &(struct err){0}) && t.p && !memchr(t.p, '\0', t.n))
        add_target(s, t.p, t.n);
}

static bool read_gguf(const char *path, struct says *s)
{
    static const char *const drafts[] = {"eagle3", "dflash", "gemma4-assistant"};
    struct gguf *g = gguf_open(path, &(struct err){0});
    struct gguf_text arch = {"", 0};
    if (!g)
        return false;
    gguf_string(g, "general.architecture", &arch, &(struct err){0});
    for (size_t i = 0; i < LEN(drafts); i++)
        if (arch.n == strlen(drafts[i]) && !memcmp(arch.p, drafts[i], arch.n)) {
            s->draft = true;
            snprintf(s->kind, sizeof s->kind, "%s", drafts[i]);
        }
    add_text(g, "general.base_model.0.repo_url", s);
    add_text(g, "general.base_model.0.name", s);
    gguf_close(g);
    return true;
}

/* Fills *s, which says_free() frees. False: there is no checkpoint at the path, or it cannot be
 * read. */
static bool ask(const char *path, struct says *s)
{
    *s = (struct says){0};
    if (gguf_is(path))
        return read_gguf(path, s);
    bool absent = false;
    FREED(free_at) char *config = xasprintf("%s/config.json", path);
    FREED(json_decrefp) json_t *top = json_open(config, &absent, &(struct err){0});
    if (!top)
        return false;
    read_config(top, s);
    if (s->draft && !s->n)
        read_card(path, s);
    return true;
}

static bool is_target(const char *path)
{
    FREED(says_free) struct says s;
    return ask(path, &s) && !s.draft;
}

/* ---- folders ---- */

/* What lies in a folder, in ascending order, but for hidden entries. */
static struct hub_paths list(const char *folder)
{
    struct hub_paths l = {0};
    FREED(folder_close) DIR *d = opendir(folder);
    for (struct dirent *x; d && l.n < MOST_ENTRIES && (x = readdir(d));) {
        if (x->d_name[0] == '.')
            continue;
        hub_paths_add(&l, xasprintf("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/",
                                    x->d_name));
    }
    hub_paths_sort(&l);
    return l;
}

/* The models of the hub's cache, each at the path that its name finds. */
static struct hub_paths list_cache(void)
{
    static const char before[] = "models--";
    FREED(free_at) char *cache = hub_cache();
    struct hub_paths all = list(cache), found = {0};
    for (int i = 0; i < all.n; i++) {
        const char *last = strrchr(all.path[i], '/') + 1;
        const char *org = !strncmp(last, before, sizeof before - 1) ? last + sizeof before - 1
                                                                    : "";
        const char *gap = strstr(org, "--");
        FREED(free_at) char *name = gap ? xasprintf("%.*s/%s", (int)(gap - org), org, gap + 2)
                                        : NULL;
        char *path = name ? hub_find(name, &(struct err){0}) : NULL;
        free(all.path[i]);
        if (path)
            all.path[found.n++] = path;
    }
    found.path = all.path;
    return found;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* ---- the drafts of a target ---- */

struct looking {
    struct pairing *p;
    const char *target; /* path */
};

enum rank { CARRIED, NAMES, DRAFT, CALLED }; /* in order of preference; DRAFT: called "draft" */

/* Adds a draft behind those of its rank or a better one. */
static void keep(struct pairing *p, enum rank rank, const char *path, char *from)
{
    int at = p->n;
    for (int i = 0; i < p->n; i++)
        if (same_file(p->draft[i].path, path)) {
            free(from);
            return;
        }
    MAKE_ROOM(p->draft, p->n);
    for (; at > 0 && p->draft[at - 1].rank > (int)rank; at--)
        p->draft[at] = p->draft[at - 1];
    p->draft[at] = (struct found_draft){.path = xstrdup(path), .from = from, .rank = (int)rank};
    p->n++;
}

/* Whether the draft means the model at `path`, by its words or, if it says nothing, by its name. */
static bool means(const struct says *s, const char *draft, const char *path)
{
    FREED(free_at) char *name = name_of(path), *own = name_of(draft);
    return s->n ? ANY(i, s->n, same_model(s->target[i], name) || same_file(s->target[i], path))
                : same_model(own, name);
}

static enum rank rank_of(const char *path, const struct says *s)
{
    FREED(free_at) char *name = name_of(path);
    return s->n ? NAMES : !strcmp(name, "draft") ? DRAFT : CALLED;
}

/* Keeps a draft that lies in the model's folder (carried), or one elsewhere that means the model:
 * `place` says where, for people. */
static void look(struct looking *l, const char *path, bool carried, const char *place)
{
    FREED(says_free) struct says s = {0};
    if (same_file(path, l->target) || !ask(path, &s))
        return;
    if (s.draft && (carried || means(&s, path, l->target)))
        keep(l->p, carried ? CARRIED : rank_of(path, &s), path,
             xasprintf("found %s%s", place, carried ? "" : s.n ? ": names it"
                                                               : ": by name"));
}

static void look_in(struct looking *l, struct hub_paths all, bool carried, const char *place)
{
    for (int i = 0; i < all.n; i++)
        look(l, all.path[i], carried, place);
    hub_paths_free(&all);
}

static void find_drafts(struct looking *l)
{
    bool folder = is_folder(l->target);
    FREED(free_at) char *title = hub_title_in_cache(l->target), *parent = path_folder(l->target);
    FREED(free_at) char *name = name_of(l->target);
    if (folder || title) /* beside a GGUF elsewhere, anything may lie */
        look_in(l, list(folder ? l->target : parent), true, "in the model's folder");
    if (!title)
        look_in(l, list(parent), false, "beside the model");
    else if (!is_nameless(name))
        look_in(l, list_cache(), false, "in the hub's cache");
}

/* Tries each draft if there are at least this many; those that fit come first. */
static void try_fit(struct pairing *p, const char *target, int least)
{
    struct model m = {0};
    struct loading headers = {.use = READ_HEADERS};
    if (p->n < least || !model_load(&m, target, &headers, &(struct err){0}))
        return;
    int fit = 0;
    for (int i = 0; i < p->n; i++) {
        struct draft d = {0};
        struct err why = {0};
        if (!draft_load(&d, p->draft[i].path, &m, NULL, &headers, &why)) {
            p->draft[i].why = xstrdup(why.msg);
            continue;
        }
        p->draft[i].kind = d.kind;
        draft_free(&d);
        struct found_draft good = p->draft[i];
        memmove(&p->draft[fit + 1], &p->draft[fit], (size_t)(i - fit) * sizeof good);
        p->draft[fit++] = good;
    }
    model_free(&m);
}

/* ---- the target of a draft ---- */

static char *first_meant(struct hub_paths all, const struct says *s, const char *draft)
{
    char *found = NULL;
    for (int i = 0; i < all.n && !found; i++)
        if (!same_file(all.path[i], draft) && means(s, draft, all.path[i]) &&
            is_target(all.path[i]))
            found = xstrdup(all.path[i]);
    hub_paths_free(&all);
    return found;
}

static char *find_target(const char *draft, const struct says *s)
{
    FREED(free_at) char *title = hub_title_in_cache(draft), *parent = path_folder(draft);
    if (!title && is_target(parent))
        return xstrdup(parent);
    char *found = title ? NULL : first_meant(list(parent), s, draft);
    for (int i = 0; i < s->n && !found; i++) { /* a path, or a name of the cache */
        found = hub_find(s->target[i], &(struct err){0});
        if (found && !is_target(found))
            DROP(found);
    }
    if (!found && (s->n || !is_nameless(draft)))
        found = first_meant(list_cache(), s, draft);
    return found;
}

static bool no_target(const char *draft, const struct says *s, struct err *e)
{
    FREED(hub_name_free) struct hub_name n = {0};
    FREED(free_at) char *cache = hub_cache();
    const char *target = s->n ? s->target[0] : NULL;
    bool hub = target && hub_read_name(target, &n);
    if (!target)
        return err_file(e, draft,
                        "is a draft (%s) that does not say for which model, and none of its name "
                        "lies beside it or in %s: expected -m MODEL --draft DRAFT",
                        s->kind, show_path(cache).s);
    return err_file(e, draft,
                    "is a draft (%s) for %s, which is neither beside it nor in %s%s%s%s: expected "
                    "-m MODEL --draft DRAFT",
                    s->kind, show(target).s, show_path(cache).s, hub ? " (aerie pull " : "",
                    hub ? target : "", hub ? " fetches it)" : "");
}

/* ---- both ---- */

static bool from_draft(const char *draft, const struct says *s, struct pairing *p, struct err *e)
{
    p->model = find_target(draft, s);
    if (!p->model)
        return no_target(draft, s, e);
    FREED(free_at) char *title = hub_title_in_cache(p->model);
    keep(p, NAMES, draft, xasprintf("it is a draft of %s", show_path(title ? title : p->model).s));
    return true;
}

bool pair_find(const char *path, struct pairing *p, struct err *e)
{
    FREED(says_free) struct says s;
    FREED(free_at) char *inner = xasprintf("%s/target", path);
    *p = (struct pairing){0};
    if (!ask(path, &s) && is_target(inner))
        p->model = xstrdup(inner);
    if (s.draft)
        return from_draft(path, &s, p, e);
    const char *target = p->model ? p->model : path;
    find_drafts(&(struct looking){p, target});
    try_fit(p, target, 2);
    return true;
}

void pair_drafts(const char *target, struct pairing *p)
{
    *p = (struct pairing){0};
    find_drafts(&(struct looking){p, target});
    try_fit(p, target, 1);
}

/* ---- all models ---- */

struct telling {
    void (*fn)(void *arg, const char *path, const char *from);
    void *arg;
};

static void tell_models(const struct telling *t, struct hub_paths all, const char *from)
{
    for (int i = 0; i < all.n; i++)
        if (is_target(all.path[i]))
            t->fn(t->arg, all.path[i], from);
    hub_paths_free(&all);
}

void pair_models(const char *path, void (*fn)(void *arg, const char *path, const char *from),
                 void *arg)
{
    struct telling t = {fn, arg};
    FREED(free_at) char *title = hub_title_in_cache(path), *parent = path_folder(path);
    if (is_folder(path)) /* GGUF files in it */
        tell_models(&t, list(path), "in the model's folder");
    if (!title || !is_folder(path))
        tell_models(&t, list(parent), "beside the model");
    tell_models(&t, list_cache(), "in the hub's cache");
}

void pair_free(struct pairing *p)
{
    for (int i = 0; i < p->n; i++)
        FREE(p->draft[i].path, p->draft[i].from, p->draft[i].why);
    FREE(p->draft, p->model);
    *p = (struct pairing){0};
}
