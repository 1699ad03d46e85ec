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
    const struct pull_opts *opts;
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
    FREED(free_at) char *p = xstrdup(path);
    bool ok = true;
    for (char *at = p + 1; ok && (at = strchr(at, '/')); at++) {
        *at = '\0';
        ok = mkdir(p, 0777) == 0 || errno == EEXIST || failed(e, "make", p);
        *at = '/';
    }
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
static bool wait_for(const struct pull *pull, int seconds)
{
    for (int i = 0; i < seconds * 20 && !stop_asked(pull->opts->stop); i++)
        usleep(50000);
    return !stop_asked(pull->opts->stop);
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
    FREED(buf_free) struct buf b = {0};
    char *line = NULL;
    if (!file_missing(path) && buf_read_file(&b, path, 64 << 10, NULL) && b.n) {
        size_t n = strcspn(b.p, "\r\n"), from = 0;
        while (from < n && ascii_space(b.p[from]))
            from++;
        while (n > from && ascii_space(b.p[n - 1]))
            n--;
        line = n > from ? xasprintf("%.*s", (int)(n - from), b.p + from) : NULL;
    }
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
    FREED(free_at) char *cache = home && *home ? xstrdup(home) : NULL;
    if (!cache) {
        const char *xdg = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
        cache = xdg && *xdg ? xasprintf("%s/huggingface", xdg)
                            : xasprintf("%s/.cache/huggingface", user ? user : "");
    }
    FREED(free_at) char *file = xasprintf("%s/token", cache);
    return first_line(file);
}

static bool open_pull(struct pull *pull, struct err *e)
{
    const char *endpoint = getenv("HF_ENDPOINT");
    if (!hub_read_name(pull->opts->name, &pull->name))
        return err_set(e, ERR_USAGE,
                       "\"%.100s\" names no model of the hub; expected ORG/NAME, perhaps "
                       "with @REVISION and :QUANT or :FILE.gguf",
                       show(pull->opts->name).s);
    if (is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"))
        return err_set(e, ERR_USAGE,
                       "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: nothing is fetched");
    pull->endpoint = xstrdup(endpoint && *endpoint ? endpoint : default_endpoint);
    for (size_t n = strlen(pull->endpoint); n && pull->endpoint[n - 1] == '/';)
        pull->endpoint[--n] = '\0';
    pull->host = base_of(pull->endpoint, &endpoint);
    if (!pull->host)
        pull->host = xstrdup(pull->endpoint);
    pull->token = find_token();
    char *cache = hub_cache();
    pull->model = xasprintf("%s/models--%s--%s", cache, pull->name.org, pull->name.repo);
    free(cache);
    const struct http_opts opts = {
        .url = pull->endpoint, .key = pull->token, .first_ms = 60000, .silence_ms = 60000};
    if (!http_open(&pull->hub, &opts, e))
        return err_prefix(e, "HF_ENDPOINT");
    const char *unsafe = pull->token ? http_warning(pull->hub) : NULL;
    return !unsafe ||
           err_set(e, ERR_USAGE, "%s: the token would travel unencrypted", http_url(pull->hub));
}

static void close_pull(struct pull *pull)
{
    http_close(pull->hub);
    for (int i = 0; i < pull->n_file; i++)
        free(pull->file[i].path);
    FREE(pull->file, pull->model, pull->endpoint, pull->host, pull->token);
    hub_name_free(&pull->name);
}

/* ---- the list of files ---- */

static bool refused(const struct pull *pull, const struct http_call *call, struct err *e)
{
    const char *revision = pull->name.revision ? pull->name.revision : "main";
    const char *token = pull->token ? "" : "; a token in HF_TOKEN may help";
    if (call->status == 401)
        return err_set(e, ERR_MODEL,
                       "%s/%s: the hub shows no such model: it is absent, private, or "
                       "its licence was not accepted%s",
                       pull->name.org, pull->name.repo, token);
    if (call->status == 403)
        return err_set(e, ERR_MODEL,
                       "%s/%s: the hub refuses: accept the licence on the model's page, or "
                       "give the token the right to read it%s",
                       pull->name.org, pull->name.repo, token);
    if (call->status == 404)
        return err_set(e, ERR_MODEL, "%s/%s: the hub has no such model, or no revision %s of it",
                       pull->name.org, pull->name.repo, show(revision).s);
    return http_refused(call, e);
}

/* Asks the hub, again after the time that it wants. */
static bool ask(struct pull *pull, struct http_call *call, struct err *e)
{
    for (int i = 0;; i++) {
        if (http_call(pull->hub, call, pull->opts->stop, e))
            return true;
        if (stop_asked(pull->opts->stop))
            return stopped(e);
        bool again = (call->failed && !call->unsent) || call->status == 429 ||
                     call->status / 100 == 5;
        if (!again || i == ATTEMPTS - 1)
            return call->failed ? false : refused(pull, call, e);
        if (!wait_for(pull, min_int(call->retry_s >= 0 ? call->retry_s : 1, WAIT_S)))
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
static bool read_listed(json_t *x, struct listed *file)
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
    *file = (struct listed){.path = xstrdup(path), .size = (uint64_t)json_integer_value(size)};
    snprintf(file->sum, sizeof file->sum, "%s", large ? sha : blob);
    return true;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->path, ((const struct listed *)b)->path);
}

static bool read_list(struct pull *pull, const struct buf *text, struct err *e)
{
    json_t *top = json_read(buf_text(text), text->n, JSON_DEPTH, "the hub's answer", e);
    json_t *list = json_object_get(top, "siblings"), *x;
    const char *commit = json_string_value(json_object_get(top, "sha"));
    size_t i, n = json_array_size(list);
    bool ok = top && ((commit && hub_is_commit(commit) && n && n <= MAX_LISTED) ||
                      err_set(e, ERR_MODEL, "the hub's answer has no commit or no files"));
    if (ok) {
        memcpy(pull->commit, commit, sizeof pull->commit);
        pull->file = xcalloc(n, sizeof *pull->file);
        for (i = 0; ok && i < n; i++) {
            x = json_array_get(list, i);
            ok = read_listed(x, &pull->file[pull->n_file++]) ||
                 err_set(e, ERR_MODEL, "the hub's answer: siblings[%zu]: expected a path, a size "
                         "and a checksum", i);
        }
        qsort(pull->file, (size_t)pull->n_file, sizeof *pull->file, by_path);
    }
    json_decref(top);
    return ok;
}

static bool get_list(struct pull *pull, struct err *e)
{
    FREED(buf_free) struct buf path = {0};
    struct http_call call = {.method = "GET"};
    buf_printf(&path, "/api/models/%s/%s/revision/", pull->name.org, pull->name.repo);
    put_encoded(&path, pull->name.revision ? pull->name.revision : "main", false);
    buf_str(&path, "?blobs=true");
    call.path = path.p;
    bool ok = ask(pull, &call, e) && read_list(pull, &call.answer, e);
    buf_free(&call.answer);
    return ok;
}

static struct listed *find_listed(struct pull *pull, const char *path)
{
    struct listed key = {.path = (char *)(uintptr_t)path};
    return pull->n_file ? bsearch(&key, pull->file, (size_t)pull->n_file, sizeof *pull->file,
                                  by_path) : NULL;
}

/* ---- checksums ---- */

/* Computes the checksum of a whole file, of the kind that the hub's list has for it. */
static bool sum_of(const struct pull *pull, int fd, const struct listed *file, char out[65],
                   struct err *e)
{
    enum { PART = 1 << 20 };
    struct sha256 a;
    struct sha1 b = SHA1_START;
    bool large = strlen(file->sum) == 64;
    FREED(free_at) char *part = xmalloc(PART);
    char head[40] = "";
    ptrdiff_t n;
    sha256_init(&a);
    int k = snprintf(head, sizeof head, "blob %llu", (unsigned long long)file->size);
    sha1_add(&b, head, (size_t)k + 1);
    for (uint64_t at = 0; (n = pread_fully(fd, part, PART, at)) > 0; at += (uint64_t)n) {
        if (stop_asked(pull->opts->stop))
            return stopped(e);
        if (large)
            sha256_add(&a, part, (size_t)n);
        else
            sha1_add(&b, part, (size_t)n);
    }
    if (n < 0)
        return failed(e, "read", file->path);
    if (large)
        sha256_end_hex(&a, out);
    else
        sha1_end_hex(&b, out);
    return true;
}

/* ---- one file ---- */

struct coming {
    const struct pull *pull;
    const struct listed *file;
    const struct http_call *call;
    int fd;
    uint64_t at;   /* bytes in the file */
    bool begun;    /* this answer's first bytes came */
    bool hopeless; /* the answer was refused here: another one would be no better */
    bool away;     /* the last answer came from another host */
};

/* The first bytes of an answer say whether it goes on or begins anew. */
static bool take_part(struct coming *coming, const void *bytes, size_t n, struct err *e)
{
    const struct http_call *call = coming->call;
    if (!coming->begun && call->from && call->first != (int64_t)call->from) {
        if (call->first >= 0)
            return err_set(e, ERR_MODEL, "the server's answer begins at byte %lld; expected %llu",
                           (long long)call->first, (unsigned long long)call->from);
        if (ftruncate(coming->fd, 0) != 0)
            return failed(e, "write", coming->file->path);
        coming->at = 0;
    }
    coming->begun = true;
    if (n > coming->file->size - coming->at)
        return err_set(e, ERR_MODEL, "%s is longer than the %llu bytes of the hub's list",
                       show(coming->file->path).s, (unsigned long long)coming->file->size);
    if (lseek(coming->fd, (off_t)coming->at, SEEK_SET) < 0 || !write_fully(coming->fd, bytes, n))
        return failed(e, "write", coming->file->path);
    coming->at += n;
    if (coming->pull->opts->progress)
        coming->pull->opts->progress(coming->pull->opts->arg, coming->file->path, coming->at,
                                     coming->file->size);
    return true;
}

static bool take_bytes(void *arg, const void *bytes, size_t n, struct err *e)
{
    struct coming *coming = arg;
    coming->hopeless = !take_part(coming, bytes, n, e);
    return !coming->hopeless;
}

/* Opens the host that a redirect names; *other stays NULL if that is the hub. Another host gets no
 * token. */
static bool follow(const struct pull *pull, const char *moved, struct http **other,
                   struct buf *path, bool *away, struct err *e)
{
    const char *rest = moved;
    FREED(free_at) char *base = moved[0] == '/' ? xstrdup(pull->host) : base_of(moved, &rest);
    struct http_opts opts = {.url = base, .first_ms = 60000, .silence_ms = 60000};
    http_close(*other);
    *other = NULL;
    bool ok = base || err_set(e, ERR_MODEL, "the hub redirects to \"%.80s\"", show(moved).s);
    *away = ok && strcmp(base, pull->host) != 0;
    opts.key = *away ? NULL : pull->token;
    if (ok && strcmp(base, pull->endpoint) != 0)
        ok = http_open(other, &opts, e);
    buf_clear(path);
    buf_str(path, rest);
    return ok;
}

/* One answer for the rest of the file, behind redirects. */
static bool get_once(struct coming *coming, struct http_call *call, struct err *e)
{
    const struct pull *pull = coming->pull;
    FREED(buf_free) struct buf path = {0};
    struct http *other = NULL;
    bool ok = false;
    buf_printf(&path, "/%s/%s/resolve/%s/", pull->name.org, pull->name.repo, pull->commit);
    put_encoded(&path, coming->file->path, true);
    coming->away = false;
    for (int i = 0; i <= REDIRECTS; i++) {
        *call = (struct http_call){
            .method = "GET", .path = path.p, .from = coming->at, .as_stored = true,
            .most = INT64_MAX, .bytes = take_bytes, .arg = coming, /* take_bytes() counts */
            .answer = call->answer};
        coming->call = call;
        coming->begun = false;
        ok = http_call(other ? other : pull->hub, call, pull->opts->stop, e);
        if (ok || call->failed || call->status / 100 != 3 || !call->moved[0])
            break;
        if (i == REDIRECTS)
            coming->hopeless = !err_set(e, ERR_MODEL, "more than %d redirects", REDIRECTS);
        else if (!follow(pull, call->moved, &other, &path, &coming->away, e))
            coming->hopeless = true;
        if (coming->hopeless)
            break;
    }
    http_close(other);
    return ok;
}

/* Whether the same request may succeed later. 416: the part on disk is not the beginning of the
 * hub's file; 403: a signed address of another host has expired. */
static bool may_ask_again(const struct coming *coming, const struct http_call *call)
{
    return !coming->hopeless && (call->failed || call->status == 416 || call->status == 429 ||
                                 call->status / 100 == 5 || (call->status == 403 && coming->away));
}

/* Fetches the rest of a file. An answer that is cut off is asked for again from there on. */
static bool get_rest(struct coming *coming, struct err *e)
{
    struct http_call call = {0};
    int left = ATTEMPTS;
    while (coming->at < coming->file->size) {
        uint64_t before = coming->at;
        bool ok = get_once(coming, &call, e);
        left = coming->at > before ? ATTEMPTS : left - 1;
        if (ok && coming->at == coming->file->size)
            break;
        if (ok)
            err_set(e, ERR_MODEL, "the server's answer ends at byte %llu of %llu",
                    (unsigned long long)coming->at, (unsigned long long)coming->file->size);
        else if (call.status == 404)
            err_set(e, ERR_MODEL, "the hub has no such file");
        else if (call.status == 401 || (call.status == 403 && !coming->away))
            refused(coming->pull, &call, e);
        if (stop_asked(coming->pull->opts->stop)) {
            stopped(e);
            break;
        }
        if (left <= 0 || !(ok || may_ask_again(coming, &call)))
            break;
        if (call.status == 416 && ftruncate(coming->fd, 0) != 0) {
            failed(e, "write", coming->file->path);
            break;
        }
        coming->at = call.status == 416 ? 0 : coming->at;
        if (!wait_for(coming->pull, min_int(call.retry_s >= 0 ? call.retry_s : 1, WAIT_S))) {
            stopped(e);
            break;
        }
    }
    buf_free(&call.answer);
    return coming->at == coming->file->size;
}

/* Fetches a blob into its file and checks it. */
static bool fill(const struct pull *pull, const struct listed *file, const char *part, int fd,
                 struct err *e)
{
    struct stat st;
    char sum[65];
    if (fstat(fd, &st) != 0)
        return failed(e, "read", part);
    struct coming coming = {.pull = pull, .file = file, .fd = fd, .at = (uint64_t)st.st_size};
    if (coming.at > file->size) {
        if (ftruncate(fd, 0) != 0)
            return failed(e, "write", part);
        coming.at = 0;
    }
    if (!get_rest(&coming, e))
        return err_prefix(e, "%s", show(file->path).s);
    if (fsync(fd) != 0)
        return failed(e, "write", part);
    if (!sum_of(pull, fd, file, sum, e))
        return false;
    if (strcmp(sum, file->sum) == 0)
        return true;
    unlink(part);
    return err_set(e, ERR_MODEL,
                   "%s: what came has the checksum %.12s, expected %.12s: it was deleted",
                   show(file->path).s, sum, file->sum);
}

/* The lock that the hub's libraries take, too; -1 and *e: another process has it. */
static int lock_blob(const struct pull *pull, const struct listed *file, struct err *e)
{
    const char *name = strrchr(pull->model, '/') + 1;
    char *path = xasprintf("%.*s.locks/%s/%s.lock", (int)(name - pull->model), pull->model, name,
                           file->sum);
    int fd = make_above(path, e) ? file_open(path, O_RDWR | O_CREAT, 0666) : -1;
    if (fd < 0)
        failed(e, "make", path);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        err_set(e, ERR_MODEL, "%s is being fetched by another process", show(file->path).s);
        close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

static bool has_blob(const char *blob, const struct listed *file)
{
    struct stat st;
    return stat(blob, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->size;
}

static bool get_blob(const struct pull *pull, const struct listed *file, const char *blob,
                     struct err *e)
{
    int lock = lock_blob(pull, file, e);
    if (lock < 0)
        return false;
    FREED(free_at) char *part = xasprintf("%s.aerie.incomplete", blob);
    bool ok = has_blob(blob, file); /* since then */
    int fd = ok || !make_above(part, e) ? -1 : file_open(part, O_RDWR | O_CREAT, 0666);
    if (!ok && fd < 0)
        failed(e, "make", part);
    if (fd >= 0) {
        ok = fill(pull, file, part, fd, e) &&
             (rename(part, blob) == 0 || failed(e, "rename", part));
        close(fd);
    }
    close(lock);
    return ok;
}

/* Makes a link under a temporary name and renames it. If another process was faster, its link is
 * the same. */
static bool put_link(const char *path, const char *to, struct err *e)
{
    FREED(free_at) char *temporary = xasprintf("%s.aerie.incomplete", path);
    unlink(temporary);
    return make_above(path, e) &&
           (symlink(to, temporary) == 0 || errno == EEXIST || failed(e, "make", temporary)) &&
           (rename(temporary, path) == 0 || (errno == ENOENT && !file_missing(path)) ||
            failed(e, "rename", temporary));
}

static bool get_file(const struct pull *pull, const struct listed *file, struct err *e)
{
    FREED(free_at) char *blob = xasprintf("%s/blobs/%s", pull->model, file->sum);
    FREED(free_at) char *path = xasprintf("%s/snapshots/%s/%s", pull->model, pull->commit,
                                          file->path);
    FREED(buf_free) struct buf to = {0};
    for (const char *s = file->path; (s = strchr(s, '/')); s++)
        buf_str(&to, "../");
    buf_printf(&to, "../../blobs/%s", file->sum);
    return (has_blob(blob, file) || get_blob(pull, file, blob, e)) && put_link(path, to.p, e);
}

/* ---- which files ---- */

static bool wants_file(struct pull *pull, const char *path)
{
    struct listed *file = find_listed(pull, path);
    if (file)
        file->wanted = true;
    return file != NULL;
}

/* Wants the GGUF that the name chooses, with all its parts. */
static bool want_gguf(struct pull *pull, struct err *e)
{
    const char *file = pull->name.file;
    if (file && ends_with(file, ".gguf")) {
        if (!find_listed(pull, file))
            return err_set(e, ERR_MODEL, "%s: the model has no %s", pull->name.all, show(file).s);
    } else {
        FREED(free_at) char **path = xcalloc((size_t)pull->n_file, sizeof *path);
        int found = 0;
        for (int i = 0; i < pull->n_file; i++)
            if (hub_is_gguf(pull->file[i].path))
                path[found++] = pull->file[i].path;
        const char *chosen = hub_choose(file, path, found);
        FREED(buf_free) struct buf list = {0};
        for (int i = 0; i < found && list.n < 300; i++)
            buf_printf(&list, "%s%s", i ? ", " : "", show(path[i]).s);
        if (!chosen)
            return err_set(e, ERR_MODEL, "%s: the model has no %s; it has %s", pull->name.all,
                           file ? show(file).s : "model.safetensors and no GGUF file",
                           found ? list.p : "no GGUF file");
        file = chosen;
    }
    wants_file(pull, file);
    size_t n = strlen(file);
    size_t stem = n > 20 && !strncmp(file + n - 20, "-00001-of-", 10) ? n - 20 : 0;
    for (int i = 0; stem && i < pull->n_file; i++) { /* PREFIX-00002-of-00003.gguf */
        const char *other = pull->file[i].path;
        if (strlen(other) == n && !strncmp(other, file, stem) &&
            !strcmp(other + stem + 6, file + stem + 6))
            pull->file[i].wanted = true;
    }
    return true;
}

/* Wants the files of weights that the index names; the index is there. */
static bool want_shards(struct pull *pull, const char *index, struct err *e)
{
    FREED(free_at) char *path = xasprintf("%s/snapshots/%s/%s", pull->model, pull->commit, index);
    json_t *top = json_open(path, NULL, e), *file;
    const char *tensor;
    bool ok = top != NULL;
    json_object_foreach(json_object_get(top, "weight_map"), tensor, file)
        if (ok && json_is_string(file) && !wants_file(pull, json_string_value(file)))
            ok = err_set(e, ERR_MODEL, "%s: %s names %s, which the model does not have",
                         pull->name.all, index, show(json_string_value(file)).s);
    json_decref(top);
    return ok;
}

static bool choose_files(struct pull *pull, struct err *e)
{
    static const char index[] = "model.safetensors.index.json";
    static const char *const beside[] = {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "chat_template.json", "special_tokens_map.json",
        "hf_quant_config.json"};
    bool whole = find_listed(pull, "model.safetensors") != NULL,
        shards = !whole && find_listed(pull, index);
    if (pull->name.file || (!whole && !shards && !find_listed(pull, "pytorch_model.bin")))
        return want_gguf(pull, e);
    for (size_t i = 0; i < LEN(beside); i++)
        wants_file(pull, beside[i]);
    if (!find_listed(pull, "tokenizer.json"))
        wants_file(pull, "README.md"); /* a draft's model card names its target (pair.h) */
    if (whole)
        return wants_file(pull, "model.safetensors");
    if (!shards)
        return wants_file(pull, "pytorch_model.bin"); /* of a draft head */
    wants_file(pull, index);
    return get_file(pull, find_listed(pull, index), e) && want_shards(pull, index, e);
}

/* Whether the disk has room for what is missing. */
static bool has_room(const struct pull *pull, struct err *e)
{
    struct statvfs v;
    uint64_t missing = 0;
    for (int i = 0; i < pull->n_file; i++) {
        FREED(free_at) char *blob = xasprintf("%s/blobs/%s", pull->model, pull->file[i].sum);
        if (pull->file[i].wanted && !has_blob(blob, &pull->file[i]))
            missing += pull->file[i].size;
    }
    FREED(free_at) char *probe = xasprintf("%s/blobs/x", pull->model);
    bool ok = make_above(probe, e);
    if (!ok || statvfs(pull->model, &v) != 0)
        return ok;
    uint64_t left = (uint64_t)v.f_bavail * v.f_frsize;
    return missing <= left ||
           err_set(e, ERR_MODEL, "%s: %.1f GiB are missing, and the disk has %.1f GiB free",
                   pull->name.all, (double)missing / 0x1p30, (double)left / 0x1p30);
}

/* ---- all of it ---- */

static bool write_ref(const struct pull *pull, struct err *e)
{
    const char *revision = pull->name.revision ? pull->name.revision : "main";
    if (hub_is_commit(revision))
        return true;
    FREED(free_at) char *path = xasprintf("%s/refs/%s", pull->model, revision);
    FREED(free_at) char *temporary = xasprintf("%s.aerie.incomplete", path);
    int fd = make_above(path, e) ? file_open(temporary, O_WRONLY | O_CREAT, 0666) : -1;
    bool ok = fd >= 0 && write_fully(fd, pull->commit, strlen(pull->commit)) && fsync(fd) == 0;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    ok = (ok && (rename(temporary, path) == 0 || (errno == ENOENT && !file_missing(path)))) ||
         failed(e, "write", path);
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
    for (size_t i = 0; i < LEN(ends); i++)
        if (ends_with(path, ends[i]))
            return WEIGHTS;
    return BESIDE;
}

static bool pull_all(struct pull *pull, struct err *e)
{
    if (!open_pull(pull, e) || !get_list(pull, e) || !choose_files(pull, e) || !has_room(pull, e))
        return false;
    for (int order = 0; order < N_ORDERS; order++)
        for (int i = 0; i < pull->n_file; i++)
            if (pull->file[i].wanted && (int)order_of(pull->file[i].path) == order &&
                !get_file(pull, &pull->file[i], e))
                return false;
    return write_ref(pull, e);
}

bool hub_pull(const struct pull_opts *opts, char **path, struct err *e)
{
    struct pull pull = {.opts = opts};
    bool ok = pull_all(&pull, e) && (*path = hub_find(opts->name, e));
    close_pull(&pull);
    return ok;
}
