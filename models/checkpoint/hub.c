/* hub.c - see hub.h.
 *
 * The cache has a folder for each model: models--ORG--NAME/refs/REVISION holds a commit,
 * snapshots/COMMIT/ its files, most of them links into blobs/. A snapshot has only the files that
 * were fetched.
 */
#include "models/checkpoint/hub.h"

#include "kernels/ascii.h"
#include "models/checkpoint/json.h"

#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 4096, COMMIT = 40 };

/* ---- names ---- */

/* Copies an organisation's or model's name from *s, which moves behind it. */
static bool take_part(const char **s, char *to)
{
    const char *p = *s;
    while (ascii_alnum(*p) || (*p && strchr("-_.", *p)))
        p++;
    size_t n = (size_t)(p - *s);
    if (!n || n > HUB_PART || !(ascii_alnum(**s) || **s == '_') || p[-1] == '.' || p[-1] == '-')
        return false;
    memcpy(to, *s, n);
    to[n] = '\0';
    *s = p;
    return !strstr(to, "..") && !strstr(to, "--");
}

bool hub_stays_below(const char *s)
{
    for (; s; s = strchr(s, '/'), s = s ? s + 1 : NULL)
        if (s[0] == '/' || !s[0] || !strcmp(s, ".") || !strncmp(s, "./", 2) || !strcmp(s, "..") ||
            !strncmp(s, "../", 3))
            return false;
    return true;
}

bool hub_read_name(const char *s, struct hub_name *n)
{
    *n = (struct hub_name){.all = s};
    if (!take_part(&s, n->org) || *s++ != '/' || !take_part(&s, n->repo))
        return false;
    size_t revision = *s == '@' ? strcspn(s + 1, ":") : 0;
    const char *file = *s == '@' ? s + 1 + revision : s;
    if ((*s == '@' && !revision) || (*file && *file != ':') || (*file == ':' && !file[1]))
        return false;
    if (revision)
        n->revision = xasprintf("%.*s", (int)revision, s + 1);
    if (*file)
        n->file = xstrdup(file + 1);
    if (hub_stays_below(n->revision) && hub_stays_below(n->file))
        return true;
    hub_name_free(n);
    return false;
}

void hub_name_free(struct hub_name *n)
{
    FREE(n->revision, n->file);
    n->revision = n->file = NULL;
}

bool hub_is_commit(const char *s)
{
    return strlen(s) == COMMIT && strspn(s, "0123456789abcdef") == COMMIT;
}

/* ---- where the cache is ---- */

static const char *variable(const char *name)
{
    const char *s = getenv(name);
    return s && *s ? s : NULL;
}

/* s with a leading ~ and $NAME or ${NAME} replaced. */
static char *expanded(const char *s)
{
    struct buf out = {0};
    const char *home = variable("HOME");
    if (s[0] == '~' && (!s[1] || s[1] == '/') && home) {
        buf_str(&out, home);
        s++;
    }
    for (; *s; s++) {
        bool brace = s[0] == '$' && s[1] == '{';
        const char *from = s + 1 + brace, *end = from;
        while (ascii_alnum(*end) || *end == '_')
            end++;
        FREED(free_at) char *name = *s == '$' && end > from && (!brace || *end == '}')
                                        ? xasprintf("%.*s", (int)(end - from), from) : NULL;
        const char *value = name ? getenv(name) : NULL;
        if (!value) {
            buf_char(&out, *s);
            continue;
        }
        buf_str(&out, value);
        s = end - !brace;
    }
    return out.p ? out.p : xstrdup("");
}

char *hub_cache(void)
{
    static const struct {
        const char *name, *below;
    } from[] = {{"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "/hub"},
                {"XDG_CACHE_HOME", "/huggingface/hub"}};
    for (size_t i = 0; i < LEN(from); i++) {
        const char *s = variable(from[i].name);
        if (!s)
            continue;
        FREED(free_at) char *path = expanded(s);
        return xasprintf("%s%s", path, from[i].below);
    }
    return expanded("~/.cache/huggingface/hub");
}

/* ---- the files of a snapshot ---- */

void hub_paths_add(struct hub_paths *l, char *path)
{
    *APPEND(l->path, l->n) = path;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hub_paths_sort(struct hub_paths *l)
{
    if (l->n)
        qsort(l->path, (size_t)l->n, sizeof *l->path, by_path);
}

void hub_paths_free(struct hub_paths *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->path[i]);
    free(l->path);
}

/* Whether a file is a part of a GGUF, but not the first. */
static bool is_later_part(const char *path)
{
    size_t n = strlen(path);
    const char *tail = n > 20 ? path + n - 20 : ""; /* -00002-of-00003.gguf */
    return tail[0] == '-' && !strncmp(tail + 6, "-of-", 4) && strncmp(tail, "-00001", 6) != 0;
}

bool hub_is_gguf(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return ends_with(name, ".gguf") && !ascii_contains(name, "mmproj") && !is_later_part(path);
}

/* Adds the GGUF files with weights of a folder and of those in it. */
static void add_files(struct hub_paths *f, const char *root, const char *below, int depth)
{
    FREED(free_at) char *folder = xasprintf("%s/%s", root, below);
    FREED(folder_close) DIR *d = opendir(folder);
    for (struct dirent *x; d && f->n < MAX_FILES && (x = readdir(d));) {
        if (x->d_name[0] == '.')
            continue;
        FREED(free_at) char *path = xasprintf("%s%s%s", below, *below ? "/" : "", x->d_name);
        if (hub_is_gguf(path))
            hub_paths_add(f, xstrdup(path));
        else if (depth && !strchr(x->d_name, '.'))
            add_files(f, root, path, depth - 1);
    }
}

/* The GGUF files of a snapshot: paths below the snapshot, ascending. */
static struct hub_paths list_ggufs(const char *root)
{
    struct hub_paths f = {0};
    add_files(&f, root, "", 2);
    hub_paths_sort(&f);
    return f;
}

/* The first file whose path has the quantization's name before a point or a dash; NULL: none. */
static const char *of_quant(char *const *path, int n_path, const char *quant)
{
    size_t n = strlen(quant);
    for (int i = 0; i < n_path; i++)
        for (const char *p = path[i]; strlen(p) > n; p++)
            if (ascii_same_n(p, quant, n) && (p[n] == '.' || p[n] == '-'))
                return path[i];
    return NULL;
}

const char *hub_choose(const char *quant, char *const *path, int n)
{
    static const char *const usual[] = {"Q4_K_M", "Q8_0"};
    if (quant)
        return of_quant(path, n, quant);
    for (int i = 0; i < 2; i++)
        if (of_quant(path, n, usual[i]))
            return of_quant(path, n, usual[i]);
    return n ? path[0] : NULL;
}

/* ---- one snapshot ---- */

/* What there is of a file: itself, a link whose target is missing, or nothing. */
static bool is_there(const char *root, const char *file, bool *link)
{
    struct stat st;
    FREED(free_at) char *path = xasprintf("%s/%s", root, file);
    bool there = stat(path, &st) == 0;
    *link = !there && lstat(path, &st) == 0;
    return there;
}

static bool partial(const struct hub_name *n, const char *root, const char *file, bool link,
                    struct err *e)
{
    return err_set(e, ERR_MODEL, "%s: the snapshot %s is not complete: %s %s (aerie pull fetches "
                   "what is missing)", n->all, show_path(root).s, show(file).s,
                   link ? "is a link to a file that is not there" : "is missing");
}

/* Checks that each file of the weights that the index names is there. */
static bool check_index(const struct hub_name *n, const char *root, struct err *e)
{
    static const char index[] = "model.safetensors.index.json";
    FREED(free_at) char *path = xasprintf("%s/%s", root, index);
    bool absent = false, link;
    FREED(json_decrefp) json_t *top = json_open(path, &absent, e);
    json_t *file;
    const char *tensor;
    if (!top)
        return absent;
    json_object_foreach(json_object_get(top, "weight_map"), tensor, file)
        if (json_is_string(file) && !is_there(root, json_string_value(file), &link))
            return partial(n, root, json_string_value(file), link, e);
    return true;
}

/* Whether the snapshot is a folder with config.json and weights, the files of which are there. */
static bool is_folder(const char *root)
{
    bool link;
    return is_there(root, "config.json", &link) &&
           (is_there(root, "model.safetensors", &link) || link ||
            is_there(root, "model.safetensors.index.json", &link) || link ||
            is_there(root, "pytorch_model.bin", &link));
}

static bool check_folder(const struct hub_name *n, const char *root, struct err *e)
{
    static const char *const need[] = {"config.json", "model.safetensors"};
    bool link;
    for (int i = 0; i < 2; i++)
        if (!is_there(root, need[i], &link) && (i == 0 || link))
            return partial(n, root, need[i], link, e);
    return check_index(n, root, e);
}

static void list(const struct hub_paths *f, struct buf *out)
{
    for (int i = 0; i < f->n && out->n < 300; i++)
        buf_printf(out, "%s%s", i ? ", " : "", show(f->path[i]).s);
    buf_str(out, f->n ? "" : "no GGUF file");
}

/* What the name means in the snapshot at `root`. */
static char *in_snapshot(const struct hub_name *n, const char *root, struct err *e)
{
    bool link, whole = n->file && ends_with(n->file, ".gguf");
    if (!n->file && is_folder(root))
        return check_folder(n, root, e) ? xstrdup(root) : NULL;
    FREED(hub_paths_free) struct hub_paths f = list_ggufs(root);
    FREED(buf_free) struct buf there = {0};
    const char *file = whole ? n->file : hub_choose(n->file, f.path, f.n);
    if (file && is_there(root, file, &link))
        return xasprintf("%s/%s", root, file);
    if (file) {
        partial(n, root, file, link, e);
    } else if (n->file) {
        list(&f, &there);
        err_set(e, ERR_MODEL, "%s: the snapshot %s has no %s; it has %s", n->all, show_path(root).s,
                show(n->file).s, there.p);
    } else if (check_folder(n, root, e)) {
        partial(n, root, "model.safetensors", false, e);
    }
    return NULL;
}

/* ---- one model ---- */

/* The only snapshot of a model of which no branch is known; NULL: none, or several. */
static char *only_snapshot(const char *model)
{
    FREED(free_at) char *folder = xasprintf("%s/snapshots", model);
    FREED(folder_close) DIR *d = opendir(folder);
    char *only = NULL;
    int n = 0;
    for (struct dirent *x; d && (x = readdir(d));)
        if (hub_is_commit(x->d_name) && n++ == 0)
            only = xstrdup(x->d_name);
    if (n == 1)
        return only;
    free(only);
    return NULL;
}

/* The commit that a name's revision is in the cache; NULL and *e: it is not known there. */
static char *commit_of(const struct hub_name *n, const char *model, struct err *e)
{
    const char *revision = n->revision ? n->revision : "main";
    if (hub_is_commit(revision))
        return xstrdup(revision);
    FREED(buf_free) struct buf b = {0};
    FREED(free_at) char *path = xasprintf("%s/refs/%s", model, revision);
    if (file_missing(path)) {
        char *commit = n->revision ? NULL : only_snapshot(model);
        if (!commit)
            err_set(e, ERR_MODEL, "%s: the cache knows no revision %s: there is no %s", n->all,
                    show(revision).s, show_path(path).s);
        return commit;
    }
    if (!buf_read_file(&b, path, 4096, e))
        return NULL;
    while (b.n && ascii_space(b.p[b.n - 1]))
        b.p[--b.n] = '\0';
    if (b.n && hub_is_commit(b.p))
        return xstrdup(b.p);
    return FAILED(NULL, e, ERR_MODEL, "%s: %s: expected a commit of 40 hexadecimal digits", n->all,
                  show_path(path).s);
}

/* A model of the cache that has the same name but for capitals; NULL: none. */
static char *other_case(const char *cache, const char *folder)
{
    FREED(folder_close) DIR *d = opendir(cache);
    for (struct dirent *x; d && (x = readdir(d));)
        if (ascii_same(x->d_name, folder) && strcmp(x->d_name, folder) != 0)
            return xstrdup(x->d_name);
    return NULL;
}

static bool not_cached(const struct hub_name *n, const char *cache, const char *folder,
                       struct err *e)
{
    FREED(free_at) char *other = other_case(cache, folder);
    return err_set(e, ERR_MODEL, "%s: there is no such file or folder, and %s has no %s%s%s%s",
                   n->all, show_path(cache).s, folder, other ? ", only " : "; aerie pull ",
                   other ? other : n->all, other ? "" : " fetches it");
}

static char *in_cache(const struct hub_name *n, struct err *e)
{
    FREED(free_at) char *cache = hub_cache();
    FREED(free_at) char *folder = xasprintf("models--%s--%s", n->org, n->repo);
    FREED(free_at) char *model = xasprintf("%s/%s", cache, folder);
    if (file_missing(model))
        return not_cached(n, cache, folder, e), NULL;
    FREED(free_at) char *commit = commit_of(n, model, e);
    if (!commit)
        return NULL;
    FREED(free_at) char *root = xasprintf("%s/snapshots/%s", model, commit);
    if (!file_missing(root))
        return in_snapshot(n, root, e);
    return FAILED(NULL, e, ERR_MODEL, "%s: the revision is commit %s, which was not fetched: there "
                  "is no %s", n->all, commit, show_path(root).s);
}

/* What a path means: the only GGUF in a folder that has no other weights, else itself. */
static char *in_folder(const char *path, struct err *e)
{
    if (is_folder(path))
        return xstrdup(path);
    FREED(hub_paths_free) struct hub_paths f = list_ggufs(path);
    if (f.n <= 1)
        return f.n ? xasprintf("%s/%s", path, f.path[0]) : xstrdup(path);
    FREED(buf_free) struct buf there = {0};
    list(&f, &there);
    err_file(e, path, "has %d GGUF files, expected the path of one of them: %s", f.n, there.p);
    return NULL;
}

char *hub_find(const char *name, struct err *e)
{
    FREED(hub_name_free) struct hub_name n = {0};
    if (!file_missing(name))
        return in_folder(name, e);
    return hub_read_name(name, &n) ? in_cache(&n, e) : xstrdup(name);
}

/* ---- titles ---- */

char *hub_title_in_cache(const char *path)
{
    static const char models[] = "/models--", snapshots[] = "/snapshots/";
    const char *at = strstr(path, models), *end = at ? strstr(at, snapshots) : NULL;
    const char *org = at ? at + sizeof models - 1 : NULL, *gap = org ? strstr(org, "--") : NULL;
    if (!end || !gap || gap > end || memchr(org, '/', (size_t)(end - org)))
        return NULL;
    const char *file = strchr(end + sizeof snapshots - 1, '/');
    bool named = file && file[1];
    return xasprintf("%.*s/%.*s%s%s", (int)(gap - org), org, (int)(end - gap - 2), gap + 2,
                     named ? ":" : "", named ? file + 1 : "");
}

char *hub_title(const char *path)
{
    static const char target[] = "/target";
    char *title = hub_title_in_cache(path);
    if (title)
        return title;
    size_t n = strlen(path), last = sizeof target - 1, at;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n > last && !strncmp(path + n - last, target, last))
        n -= last;
    for (at = n; at && path[at - 1] != '/';)
        at--;
    return xasprintf("%.*s", (int)(n - at), path + at);
}
