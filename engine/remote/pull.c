/* pull.c - see pull.h.
 *
 * The hub lists a revision's files with their sizes and checksums: SHA-256 of large files, which is
 * also the file's name in blobs/, and git's SHA-1 of small ones. A file comes into
 * blobs/CHECKSUM.aerie.incomplete, is checked, gets its name, and then a link in the snapshot. What
 * makes a snapshot a model comes behind everything else, and the revision's name is written last: a
 * process may be killed at any moment, and hub_find() finds the whole model, or none. Files that it
 * leaves have fixed names, so that the next one goes on with them or replaces them.
 */
#include "engine/remote/pull.h"

#include "engine/remote/http.h"
#include "engine/remote/sha1.h"
#include "kernels/ascii.h"
#include "kernels/json_read.h"
#include "models/checkpoint/hub.h"
#include "models/checkpoint/json.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MAX_LISTED = 100000, MAX_PATH = 512, REDIRECTS = 5, ATTEMPTS = 5, WAIT_S = 60 };

static const char default_endpoint[] = "https://huggingface.co";

/* A file of the revision. */
struct listed {
    char *path;
    uint64_t size;
    char sum[65]; /* 64 digits: SHA-256; 40: git's SHA-1 */
    bool wanted;
};

struct pull {
    const struct pull_opts *o;
    struct hub_name name;
    char *endpoint, *token; /* token NULL: none */
    char *host;             /* the endpoint without a path */
    struct http *hub;
    char *model; /* folder in the cache */
    char commit[41];
    struct listed *file;
    int n_file;
};

/* ---- small things ---- */

static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "stopped; aerie pull goes on where this ended");
}

static bool failed(struct err *e, const char *what, const char *path)
{
    return err_set(e, ERR_MODEL, "cannot %s %s: %s", what, show_path(path).s, strerror(errno));
}

static bool is_on(const char *variable)
{
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char *s = getenv(variable);
    for (int i = 0; s && i < 4; i++)
        if (ascii_same(s, words[i]))
            return true;
    return false;
}

/* Makes the folders above a path. */
static bool make_above(const char *path, struct err *e)
{
    char *p = xstrdup(path);
    bool ok = true;
    for (char *at = p + 1; ok && (at = strchr(at, '/')); at++) {
        *at = '\0';
        ok = mkdir(p, 0777) == 0 || errno == EEXIST || failed(e, "make", p);
        *at = '/';
    }
    free(p);
    return ok;
}

/* s with all but letters, digits, "-_.~" and perhaps slashes as %NN. */
static void put_encoded(struct buf *out, const char *s, bool slashes)
{
    for (; *s; s++) {
        if (ascii_alnum(*s) || strchr("-_.~", *s) || (slashes && *s == '/'))
            buf_char(out, *s);
        else
            buf_printf(out, "%%%02X", (unsigned char)*s);
    }
}

/* Seconds until the hub wants to be asked again; false: stopped. */
static bool wait_for(const struct pull *p, int seconds)
{
    for (int i = 0; i < seconds * 20 && !stop_asked(p->o->stop); i++)
        usleep(50000);
    return !stop_asked(p->o->stop);
}

/* Splits an address into what http_open() takes and the path; NULL: there is no path. */
static char *base_of(const char *url, const char **path)
{
    const char *host = strstr(url, "://"), *slash = host ? strchr(host + 3, '/') : NULL;
    if (!slash)
        return NULL;
    *path = slash;
    return xasprintf("%.*s", (int)(slash - url), url);
}

/* ---- the environment ---- */

/* The first line of a file, trimmed; NULL: there is none. */
static char *first_line(const char *path)
{
    struct buf b = {0};
    char *line = NULL;
    if (!file_missing(path) && buf_read_file(&b, path, 64 << 10, NULL) && b.n) {
        size_t n = strcspn(b.p, "\r\n"), from = 0;
        while (from < n && ascii_space(b.p[from]))
            from++;
        while (n > from && ascii_space(b.p[n - 1]))
            n--;
        line = n > from ? xasprintf("%.*s", (int)(n - from), b.p + from) : NULL;
    }
    buf_free(&b);
    return line;
}

static char *find_token(void)
{
    const char *own = getenv("HF_TOKEN"), *path = getenv("HF_TOKEN_PATH"),
               *home = getenv("HF_HOME");
    if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return NULL;
    if (own && *own)
        return xstrdup(own);
    if (path && *path)
        return first_line(path);
    char *cache = home && *home ? xstrdup(home) : NULL;
    if (!cache) {
        const char *xdg = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
        cache = xdg && *xdg ? xasprintf("%s/huggingface", xdg)
                            : xasprintf("%s/.cache/huggingface", user ? user : "");
    }
    char *file = xasprintf("%s/token", cache), *token = first_line(file);
    free(file);
    free(cache);
    return token;
}

static bool open_pull(struct pull *p, struct err *e)
{
    const char *endpoint = getenv("HF_ENDPOINT");
    if (!hub_read_name(p->o->name, &p->name))
        return err_set(e, ERR_USAGE,
                       "\"%.100s\" names no model of the hub; expected ORG/NAME, perhaps "
                       "with @REVISION and :QUANT or :FILE.gguf",
                       show(p->o->name).s);
    if (is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"))
        return err_set(e, ERR_USAGE,
                       "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: nothing is "
                       "fetched");
    p->endpoint = xstrdup(endpoint && *endpoint ? endpoint : default_endpoint);
    for (size_t n = strlen(p->endpoint); n && p->endpoint[n - 1] == '/';)
        p->endpoint[--n] = '\0';
    p->host = base_of(p->endpoint, &endpoint);
    if (!p->host)
        p->host = xstrdup(p->endpoint);
    p->token = find_token();
    char *cache = hub_cache();
    p->model = xasprintf("%s/models--%s--%s", cache, p->name.org, p->name.repo);
    free(cache);
    const struct http_opts o = {
        .url = p->endpoint, .key = p->token, .first_ms = 60000, .silence_ms = 60000};
    if (!http_open(&p->hub, &o, e))
        return err_prefix(e, "HF_ENDPOINT");
    const char *unsafe = p->token ? http_warning(p->hub) : NULL;
    return !unsafe ||
           err_set(e, ERR_USAGE, "%s: the token would travel unencrypted", http_url(p->hub));
}

static void close_pull(struct pull *p)
{
    http_close(p->hub);
    for (int i = 0; i < p->n_file; i++)
        free(p->file[i].path);
    free(p->file);
    free(p->model);
    free(p->endpoint);
    free(p->host);
    free(p->token);
    hub_name_free(&p->name);
}

/* ---- the list of files ---- */

static bool refused(const struct pull *p, const struct http_call *c, struct err *e)
{
    const char *revision = p->name.revision ? p->name.revision : "main";
    const char *token = p->token ? "" : "; a token in HF_TOKEN may help";
    if (c->status == 401)
        return err_set(e, ERR_MODEL,
                       "%s/%s: the hub shows no such model: it is absent, private, or "
                       "its licence was not accepted%s",
                       p->name.org, p->name.repo, token);
    if (c->status == 403)
        return err_set(e, ERR_MODEL,
                       "%s/%s: the hub refuses: accept the licence on the model's page, or "
                       "give the token the right to read it%s",
                       p->name.org, p->name.repo, token);
    if (c->status == 404)
        return err_set(e, ERR_MODEL, "%s/%s: the hub has no such model, or no revision %s of it",
                       p->name.org, p->name.repo, show(revision).s);
    return http_refused(c, e);
}

/* Asks the hub, again after the time that it wants. */
static bool ask(struct pull *p, struct http_call *c, struct err *e)
{
    for (int i = 0;; i++) {
        if (http_call(p->hub, c, p->o->stop, e))
            return true;
        if (stop_asked(p->o->stop))
            return stopped(e);
        bool again = (c->failed && !c->unsent) || c->status == 429 || c->status / 100 == 5;
        if (!again || i == ATTEMPTS - 1)
            return c->failed ? false : refused(p, c, e);
        if (!wait_for(p, min_int(c->retry_s >= 0 ? c->retry_s : 1, WAIT_S)))
            return stopped(e);
    }
}

static bool is_sum(const char *s, size_t digits)
{
    return s && strlen(s) == digits && strspn(s, "0123456789abcdef") == digits;
}

static bool is_plain_path(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return false;
    return strlen(s) <= MAX_PATH && hub_stays_below(s);
}

/* One entry of "siblings". */
static bool read_listed(json_t *x, struct listed *f)
{
    json_t *lfs = json_object_get(x, "lfs"), *size = json_object_get(x, "size");
    const char *path = json_string_value(json_object_get(x, "rfilename"));
    const char *sha = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(x, "blobId"));
    if (json_is_object(lfs) && json_is_integer(json_object_get(lfs, "size")))
        size = json_object_get(lfs, "size");
    if (!path || !is_plain_path(path) || !json_is_integer(size) || json_integer_value(size) < 0)
        return false;
    bool large = json_is_object(lfs);
    if (large ? !is_sum(sha, 64) : !is_sum(blob, 40))
        return false;
    *f = (struct listed){.path = xstrdup(path), .size = (uint64_t)json_integer_value(size)};
    snprintf(f->sum, sizeof f->sum, "%s", large ? sha : blob);
    return true;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->path, ((const struct listed *)b)->path);
}

static bool read_list(struct pull *p, const struct buf *text, struct err *e)
{
    json_t *top = json_read(text->p ? text->p : "", text->n, JSON_DEPTH, "the hub's answer", e);
    json_t *list = json_object_get(top, "siblings"), *x;
    const char *commit = json_string_value(json_object_get(top, "sha"));
    size_t i, n = json_array_size(list);
    bool ok = top && ((commit && hub_is_commit(commit) && n && n <= MAX_LISTED) ||
                      err_set(e, ERR_MODEL, "the hub's answer has no commit or no files"));
    if (ok) {
        memcpy(p->commit, commit, sizeof p->commit);
        p->file = xcalloc(n, sizeof *p->file);
        for (i = 0; ok && i < n; i++) {
            x = json_array_get(list, i);
            ok = read_listed(x, &p->file[p->n_file++]) ||
                 err_set(e, ERR_MODEL, "the hub's answer: siblings[%zu]: expected a path, a size "
                         "and a checksum", i);
        }
        qsort(p->file, (size_t)p->n_file, sizeof *p->file, by_path);
    }
    json_decref(top);
    return ok;
}

static bool get_list(struct pull *p, struct err *e)
{
    struct buf path = {0};
    struct http_call c = {.method = "GET"};
    buf_printf(&path, "/api/models/%s/%s/revision/", p->name.org, p->name.repo);
    put_encoded(&path, p->name.revision ? p->name.revision : "main", false);
    buf_str(&path, "?blobs=true");
    c.path = path.p;
    bool ok = ask(p, &c, e) && read_list(p, &c.answer, e);
    buf_free(&c.answer);
    buf_free(&path);
    return ok;
}

static struct listed *find(struct pull *p, const char *path)
{
    struct listed key = {.path = (char *)(uintptr_t)path};
    return p->n_file ? bsearch(&key, p->file, (size_t)p->n_file, sizeof *p->file, by_path) : NULL;
}

/* ---- checksums ---- */

/* Computes the checksum of a whole file, of the kind that the hub's list has for it. */
static bool sum_of(const struct pull *p, int fd, const struct listed *f, char out[65],
                   struct err *e)
{
    enum { PART = 1 << 20 };
    struct sha256 a;
    struct sha1 b = SHA1_START;
    bool large = strlen(f->sum) == 64;
    char *part = xmalloc(PART), head[40] = "";
    ptrdiff_t n;
    sha256_init(&a);
    int k = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->size);
    sha1_add(&b, head, (size_t)k + 1);
    for (uint64_t at = 0; (n = pread_fully(fd, part, PART, at)) > 0; at += (uint64_t)n) {
        if (stop_asked(p->o->stop)) {
            free(part);
            return stopped(e);
        }
        if (large)
            sha256_add(&a, part, (size_t)n);
        else
            sha1_add(&b, part, (size_t)n);
    }
    free(part);
    if (n < 0)
        return failed(e, "read", f->path);
    if (large)
        sha256_end_hex(&a, out);
    else
        sha1_end_hex(&b, out);
    return true;
}

/* ---- one file ---- */

struct coming {
    const struct pull *p;
    const struct listed *f;
    const struct http_call *call;
    int fd;
    uint64_t at;   /* bytes in the file */
    bool begun;    /* this answer's first bytes came */
    bool hopeless; /* the answer was refused here: another one would be no better */
    bool away;     /* the last answer came from another host */
};

/* The first bytes of an answer say whether it goes on or begins anew. */
static bool take_part(struct coming *c, const void *bytes, size_t n, struct err *e)
{
    const struct http_call *q = c->call;
    if (!c->begun && q->from && q->first != (int64_t)q->from) {
        if (q->first >= 0)
            return err_set(e, ERR_MODEL, "the server's answer begins at byte %lld; expected %llu",
                           (long long)q->first, (unsigned long long)q->from);
        if (ftruncate(c->fd, 0) != 0)
            return failed(e, "write", c->f->path);
        c->at = 0;
    }
    c->begun = true;
    if (n > c->f->size - c->at)
        return err_set(e, ERR_MODEL, "%s is longer than the %llu bytes of the hub's list",
                       show(c->f->path).s, (unsigned long long)c->f->size);
    if (lseek(c->fd, (off_t)c->at, SEEK_SET) < 0 || !write_fully(c->fd, bytes, n))
        return failed(e, "write", c->f->path);
    c->at += n;
    if (c->p->o->progress)
        c->p->o->progress(c->p->o->arg, c->f->path, c->at, c->f->size);
    return true;
}

static bool take(void *arg, const void *bytes, size_t n, struct err *e)
{
    struct coming *c = arg;
    c->hopeless = !take_part(c, bytes, n, e);
    return !c->hopeless;
}

/* Opens what a redirect names: *other NULL: the hub itself. Another host gets no token. */
static bool follow(const struct pull *p, const char *moved, struct http **other, struct buf *path,
                   bool *away, struct err *e)
{
    const char *rest = moved;
    char *base = moved[0] == '/' ? xstrdup(p->host) : base_of(moved, &rest);
    struct http_opts o = {.url = base, .first_ms = 60000, .silence_ms = 60000};
    http_close(*other);
    *other = NULL;
    bool ok = base || err_set(e, ERR_MODEL, "the hub redirects to \"%.80s\"", show(moved).s);
    *away = ok && strcmp(base, p->host) != 0;
    o.key = *away ? NULL : p->token;
    if (ok && strcmp(base, p->endpoint) != 0)
        ok = http_open(other, &o, e);
    buf_clear(path);
    buf_str(path, rest);
    free(base);
    return ok;
}

/* One answer for the rest of the file, behind redirects. */
static bool get_once(struct coming *x, struct http_call *c, struct err *e)
{
    const struct pull *p = x->p;
    struct buf path = {0};
    struct http *other = NULL;
    bool ok = false;
    buf_printf(&path, "/%s/%s/resolve/%s/", p->name.org, p->name.repo, p->commit);
    put_encoded(&path, x->f->path, true);
    x->away = false;
    for (int i = 0; i <= REDIRECTS; i++) {
        *c = (struct http_call){.method = "GET",
                                .path = path.p,
                                .from = x->at,
                                .as_stored = true,
                                .most = INT64_MAX,
                                .bytes = take,
                                .arg = x, /* take() counts */
                                .answer = c->answer};
        x->call = c;
        x->begun = false;
        ok = http_call(other ? other : p->hub, c, p->o->stop, e);
        if (ok || c->failed || c->status / 100 != 3 || !c->moved[0])
            break;
        if (i == REDIRECTS)
            x->hopeless = !err_set(e, ERR_MODEL, "more than %d redirects", REDIRECTS);
        else if (!follow(p, c->moved, &other, &path, &x->away, e))
            x->hopeless = true;
        if (x->hopeless)
            break;
    }
    http_close(other);
    buf_free(&path);
    return ok;
}

/* Whether asking again may help. What is here may not be the beginning of what is there (416), and
 * a signed address of another host expires (403). */
static bool may_ask_again(const struct coming *x, const struct http_call *c)
{
    return !x->hopeless && (c->failed || c->status == 416 || c->status == 429 ||
                            c->status / 100 == 5 || (c->status == 403 && x->away));
}

/* Fetches the rest of a file. An answer that is cut off is asked for again from there on. */
static bool get_rest(struct coming *x, struct err *e)
{
    struct http_call c = {0};
    int left = ATTEMPTS;
    while (x->at < x->f->size) {
        uint64_t before = x->at;
        bool ok = get_once(x, &c, e);
        left = x->at > before ? ATTEMPTS : left - 1;
        if (ok && x->at == x->f->size)
            break;
        if (ok)
            err_set(e, ERR_MODEL, "the server's answer ends at byte %llu of %llu",
                    (unsigned long long)x->at, (unsigned long long)x->f->size);
        else if (c.status == 404)
            err_set(e, ERR_MODEL, "the hub has no such file");
        else if (c.status == 401 || (c.status == 403 && !x->away))
            refused(x->p, &c, e);
        if (stop_asked(x->p->o->stop)) {
            stopped(e);
            break;
        }
        if (left <= 0 || !(ok || may_ask_again(x, &c)))
            break;
        if (c.status == 416 && ftruncate(x->fd, 0) != 0) {
            failed(e, "write", x->f->path);
            break;
        }
        x->at = c.status == 416 ? 0 : x->at;
        if (!wait_for(x->p, min_int(c.retry_s >= 0 ? c.retry_s : 1, WAIT_S))) {
            stopped(e);
            break;
        }
    }
    buf_free(&c.answer);
    return x->at == x->f->size;
}

/* Fetches a blob into its file and checks it. */
static bool fill(const struct pull *p, const struct listed *f, const char *part, int fd,
                 struct err *e)
{
    struct stat st;
    char sum[65];
    if (fstat(fd, &st) != 0)
        return failed(e, "read", part);
    struct coming x = {.p = p, .f = f, .fd = fd, .at = (uint64_t)st.st_size};
    if (x.at > f->size) {
        if (ftruncate(fd, 0) != 0)
            return failed(e, "write", part);
        x.at = 0;
    }
    if (!get_rest(&x, e))
        return err_prefix(e, "%s", show(f->path).s);
    if (fsync(fd) != 0)
        return failed(e, "write", part);
    if (!sum_of(p, fd, f, sum, e))
        return false;
    if (strcmp(sum, f->sum) == 0)
        return true;
    unlink(part);
    return err_set(e, ERR_MODEL,
                   "%s: what came has the checksum %.12s, expected %.12s: it was deleted",
                   show(f->path).s, sum, f->sum);
}

/* The lock that the hub's libraries take, too; -1 and *e: another process has it. */
static int lock_blob(const struct pull *p, const struct listed *f, struct err *e)
{
    const char *name = strrchr(p->model, '/') + 1;
    char *path = xasprintf("%.*s.locks/%s/%s.lock", (int)(name - p->model), p->model, name, f->sum);
    int fd = make_above(path, e) ? file_open(path, O_RDWR | O_CREAT, 0666) : -1;
    if (fd < 0)
        failed(e, "make", path);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        err_set(e, ERR_MODEL, "%s is being fetched by another process", show(f->path).s);
        close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

static bool has_blob(const char *blob, const struct listed *f)
{
    struct stat st;
    return stat(blob, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
}

static bool get_blob(const struct pull *p, const struct listed *f, const char *blob, struct err *e)
{
    int lock = lock_blob(p, f, e);
    if (lock < 0)
        return false;
    char *part = xasprintf("%s.aerie.incomplete", blob);
    bool ok = has_blob(blob, f); /* since then */
    int fd = ok || !make_above(part, e) ? -1 : file_open(part, O_RDWR | O_CREAT, 0666);
    if (!ok && fd < 0)
        failed(e, "make", part);
    if (fd >= 0) {
        ok = fill(p, f, part, fd, e) && (rename(part, blob) == 0 || failed(e, "rename", part));
        close(fd);
    }
    close(lock);
    free(part);
    return ok;
}

/* Gives a path its content by a temporary name, so that it is never half there. Another process
 * makes the same link. */
static bool put_link(const char *path, const char *to, struct err *e)
{
    char *temporary = xasprintf("%s.aerie.incomplete", path);
    unlink(temporary);
    bool ok = make_above(path, e) &&
              (symlink(to, temporary) == 0 || errno == EEXIST || failed(e, "make", temporary)) &&
              (rename(temporary, path) == 0 || (errno == ENOENT && !file_missing(path)) ||
               failed(e, "rename", temporary));
    free(temporary);
    return ok;
}

static bool get_file(const struct pull *p, const struct listed *f, struct err *e)
{
    char *blob = xasprintf("%s/blobs/%s", p->model, f->sum);
    char *path = xasprintf("%s/snapshots/%s/%s", p->model, p->commit, f->path);
    struct buf to = {0};
    for (const char *s = f->path; (s = strchr(s, '/')); s++)
        buf_str(&to, "../");
    buf_printf(&to, "../../blobs/%s", f->sum);
    bool ok = (has_blob(blob, f) || get_blob(p, f, blob, e)) && put_link(path, to.p, e);
    buf_free(&to);
    free(path);
    free(blob);
    return ok;
}

/* ---- which files ---- */

static bool want(struct pull *p, const char *path)
{
    struct listed *f = find(p, path);
    if (f)
        f->wanted = true;
    return f != NULL;
}

/* Wants the GGUF that the name chooses, with all its parts. */
static bool want_gguf(struct pull *p, struct err *e)
{
    const char *file = p->name.file;
    if (file && ends_with(file, ".gguf")) {
        if (!find(p, file))
            return err_set(e, ERR_MODEL, "%s: the model has no %s", p->name.all, show(file).s);
    } else {
        char **path = xcalloc((size_t)p->n_file, sizeof *path);
        int found = 0;
        for (int i = 0; i < p->n_file; i++)
            if (hub_is_gguf(p->file[i].path))
                path[found++] = p->file[i].path;
        const char *chosen = hub_choose(file, path, found);
        struct buf list = {0};
        for (int i = 0; i < found && list.n < 300; i++)
            buf_printf(&list, "%s%s", i ? ", " : "", show(path[i]).s);
        if (!chosen)
            err_set(e, ERR_MODEL, "%s: the model has no %s; it has %s", p->name.all,
                    file ? show(file).s : "model.safetensors and no GGUF file",
                    found ? list.p : "no GGUF file");
        buf_free(&list);
        free(path);
        if (!chosen)
            return false;
        file = chosen;
    }
    want(p, file);
    size_t n = strlen(file);
    size_t stem = n > 20 && !strncmp(file + n - 20, "-00001-of-", 10) ? n - 20 : 0;
    for (int i = 0; stem && i < p->n_file; i++) { /* PREFIX-00002-of-00003.gguf */
        const char *other = p->file[i].path;
        if (strlen(other) == n && !strncmp(other, file, stem) &&
            !strcmp(other + stem + 6, file + stem + 6))
            p->file[i].wanted = true;
    }
    return true;
}

/* Wants the files of weights that the index names; the index is there. */
static bool want_shards(struct pull *p, const char *index, struct err *e)
{
    char *path = xasprintf("%s/snapshots/%s/%s", p->model, p->commit, index);
    json_t *top = json_open(path, NULL, e), *file;
    const char *tensor;
    bool ok = top != NULL;
    json_object_foreach(json_object_get(top, "weight_map"), tensor,
                        file) if (ok && json_is_string(file) && !want(p, json_string_value(file)))
        ok = err_set(e, ERR_MODEL, "%s: %s names %s, which the model does not have", p->name.all,
                     index, show(json_string_value(file)).s);
    json_decref(top);
    free(path);
    return ok;
}

static bool choose_files(struct pull *p, struct err *e)
{
    static const char index[] = "model.safetensors.index.json";
    static const char *const beside[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "special_tokens_map.json",
                                         "hf_quant_config.json"};
    bool whole = find(p, "model.safetensors") != NULL, shards = !whole && find(p, index);
    if (p->name.file || (!whole && !shards && !find(p, "pytorch_model.bin")))
        return want_gguf(p, e);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        want(p, beside[i]);
    if (!find(p, "tokenizer.json"))
        want(p, "README.md"); /* a draft's model card names its target (pair.h) */
    if (whole)
        return want(p, "model.safetensors");
    if (!shards)
        return want(p, "pytorch_model.bin"); /* of a draft head */
    want(p, index);
    return get_file(p, find(p, index), e) && want_shards(p, index, e);
}

/* Whether the disk has room for what is missing. */
static bool has_room(const struct pull *p, struct err *e)
{
    struct statvfs v;
    uint64_t missing = 0;
    for (int i = 0; i < p->n_file; i++) {
        char *blob = xasprintf("%s/blobs/%s", p->model, p->file[i].sum);
        if (p->file[i].wanted && !has_blob(blob, &p->file[i]))
            missing += p->file[i].size;
        free(blob);
    }
    char *probe = xasprintf("%s/blobs/x", p->model);
    bool ok = make_above(probe, e);
    free(probe);
    if (!ok || statvfs(p->model, &v) != 0)
        return ok;
    uint64_t left = (uint64_t)v.f_bavail * v.f_frsize;
    return missing <= left ||
           err_set(e, ERR_MODEL, "%s: %.1f GiB are missing, and the disk has %.1f GiB free",
                   p->name.all, (double)missing / 0x1p30, (double)left / 0x1p30);
}

/* ---- all of it ---- */

static bool write_ref(const struct pull *p, struct err *e)
{
    const char *revision = p->name.revision ? p->name.revision : "main";
    if (hub_is_commit(revision))
        return true;
    char *path = xasprintf("%s/refs/%s", p->model, revision);
    char *temporary = xasprintf("%s.aerie.incomplete", path);
    int fd = make_above(path, e) ? file_open(temporary, O_WRONLY | O_CREAT, 0666) : -1;
    bool ok = fd >= 0 && write_fully(fd, p->commit, strlen(p->commit)) && fsync(fd) == 0;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    ok = (ok && (rename(temporary, path) == 0 || (errno == ENOENT && !file_missing(path)))) ||
         failed(e, "write", path);
    free(temporary);
    free(path);
    return ok;
}

/* The order in which files are fetched: weights after what tells how they are used, and a GGUF, or
 * its first part, by which the others are found, last. */
enum order { BESIDE, WEIGHTS, FOUND, N_ORDERS };

static enum order order_of(const char *path)
{
    static const char *const ends[] = {".safetensors", ".gguf", ".bin"};
    if (hub_is_gguf(path))
        return FOUND;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(path, ends[i]))
            return WEIGHTS;
    return BESIDE;
}

static bool pull_all(struct pull *p, struct err *e)
{
    if (!open_pull(p, e) || !get_list(p, e) || !choose_files(p, e) || !has_room(p, e))
        return false;
    for (int order = 0; order < N_ORDERS; order++)
        for (int i = 0; i < p->n_file; i++)
            if (p->file[i].wanted && (int)order_of(p->file[i].path) == order &&
                !get_file(p, &p->file[i], e))
                return false;
    return write_ref(p, e);
}

bool hub_pull(const struct pull_opts *o, char **path, struct err *e)
{
    struct pull p = {.o = o};
    bool ok = pull_all(&p, e) && (*path = hub_find(o->name, e));
    close_pull(&p);
    return ok;
}
