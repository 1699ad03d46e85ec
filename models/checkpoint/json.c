/* json.c - see json.h. */
#include "models/checkpoint/json.h"
#include "kernels/ascii.h"
#include "kernels/json_read.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- text for messages ---- */

static struct shown shown_bytes(const char *text, size_t n)
{
    struct shown out;
    size_t i;
    for (i = 0; i < n; i++)
        out.s[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    out.s[i] = '\0';
    return out;
}

struct shown show(const char *text)
{
    size_t n = strlen(text), room = sizeof(struct shown) - 4;
    if (n <= room)
        return shown_bytes(text, n);
    struct shown out = shown_bytes(text, room);
    memcpy(out.s + room, "...", 4);
    return out;
}

struct shown show_path(const char *path)
{
    size_t n = strlen(path), room = sizeof(struct shown) - 4;
    if (n <= room)
        return shown_bytes(path, n);
    struct shown out = shown_bytes(path + n - room, room);
    memcpy(out.s, "...", 3);
    return out;
}

bool name_is_plain(const char *name, size_t n)
{
    return n > 0 && !ANY(i, n, (unsigned char)name[i] < 0x20 || name[i] == 0x7f);
}

bool err_file(struct err *e, const char *path, const char *fmt, ...)
{
    char what[sizeof e->msg];
    PRINT_ARGS(what, fmt);
    return err_set(e, ERR_MODEL, "%s: %s", show_path(path).s, what);
}

static bool begins(const char *p, size_t n, const char *with)
{
    return n >= strlen(with) && ascii_same_n(p, with, strlen(with));
}

bool err_mistaken(struct err *e, const char *path, const void *bytes, size_t n)
{
    const char *p = bytes, *what = NULL;
    while (n && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++, n--;
    if (n == 0)
        what = "the file is empty";
    else if (begins(p, n, "version https://git-lfs"))
        what = "a pointer of Git LFS, not the file: git lfs pull in its folder fetches it";
    else if (begins(p, n, "<!doctype") || begins(p, n, "<html") || begins(p, n, "<?xml"))
        what = "a web page, not the file: it was not downloaded";
    if (what)
        err_file(e, path, "%s", what);
    return what;
}

/* ---- parsing ---- */

struct json_span {
    size_t at, n;
};

/* Result of a scan over the bytes before parsing: where the nesting exceeds its limit (the parser
 * is recursive, so depth is bounded before it runs), and the last key that begins before `stop`, in
 * the top object and at any depth, for messages. */
struct json_scan {
    size_t too_deep; /* n: nowhere */
    struct json_span top, key;
};

static struct json_scan scan_until(const char *p, size_t n, size_t stop, int max_depth)
{
    struct json_scan s = {.too_deep = n};
    int depth = 0;
    for (size_t i = 0; i < n && i < stop; i++) {
        if (p[i] == '"') {
            size_t from = ++i;
            while (i < n && p[i] != '"')
                i += p[i] == '\\' ? 2 : 1;
            size_t after = i + 1;
            while (after < n && strchr(" \t\r\n", p[after]) && p[after])
                after++;
            if (after < n && p[after] == ':')
                s.key = (struct json_span){from, i - from};
            if (depth == 1)
                s.top = s.key;
        } else if (p[i] == '{' || p[i] == '[') {
            if (++depth > max_depth) {
                s.too_deep = i;
                return s;
            }
        } else if (p[i] == '}' || p[i] == ']') {
            depth--;
        }
    }
    return s;
}

static struct shown shown_span(const char *bytes, struct json_span s)
{
    return shown_bytes(bytes + s.at, s.n < 120 ? s.n : 120);
}

static bool parse_error(const char *bytes, const struct json_scan *s, const char *file, int line,
                        const char *what, struct err *e)
{
    struct shown at = show_path(file), top = shown_span(bytes, s->top);
    err_set(e, ERR_MODEL, "%s: line %d is not valid JSON: %.100s", at.s, line, what);
    struct shown key = shown_span(bytes, s->key);
    size_t n = e ? strlen(e->msg) : 0;
    if (e && s->key.n && s->key.at != s->top.at)
        snprintf(e->msg + n, sizeof e->msg - n, ", at or after key \"%s\" of \"%s\"", key.s, top.s);
    else if (e && s->key.n)
        snprintf(e->msg + n, sizeof e->msg - n, ", at or after key \"%s\"", key.s);
    return false;
}

json_t *json_read(const char *bytes, size_t n, int max_depth, const char *file, struct err *e)
{
    if (err_mistaken(e, file, bytes, n))
        return NULL;
    struct json_scan s = scan_until(bytes, n, n, max_depth);
    if (s.too_deep < n) {
        char what[64];
        snprintf(what, sizeof what, "nested deeper than %d levels", max_depth);
        parse_error(bytes, &s, file, 1, what, e);
        return NULL;
    }
    json_error_t je;
    json_t *root = json_parse_wide(bytes, n, &je);
    if (!root && json_error_code(&je) == json_error_out_of_memory) {
        err_file(e, file, "line %d: %s", je.line, je.text);
        return NULL;
    }
    if (!root) {
        size_t stop = je.position > 0 ? (size_t)je.position : 0;
        s = scan_until(bytes, n, stop, max_depth);
        parse_error(bytes, &s, file, je.line, show(je.text).s, e);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        err_file(e, file, "not a JSON object");
        return NULL;
    }
    return root;
}

bool json_text(const char *path, size_t max, struct buf *out, struct err *e)
{
    if (buf_read_file(out, path, max, e))
        return true;
    if (e)
        e->kind = ERR_MODEL;
    return false;
}

json_t *json_open(const char *path, bool *absent, struct err *e)
{
    if (absent) {
        bool there = access(path, F_OK) == 0;
        *absent = !there && errno == ENOENT;
        if (!there && !*absent)
            err_set(e, ERR_MODEL, "cannot read %s: %s", path, strerror(errno));
        if (!there)
            return NULL;
    }
    FREED(buf_free) struct buf b = {0};
    return json_text(path, JSON_CONFIG, &b, e) ? json_read(b.p, b.n, JSON_DEPTH, path, e) : NULL;
}

bool open_regular(const char *path, int *fd, uint64_t *size, struct err *e)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe must not wait for its other end */
    *fd = file_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (*fd < 0)
        return err_set(e, ERR_MODEL, "cannot open %s: %s", show_path(path).s, strerror(errno));
    if (fstat(*fd, &st) != 0)
        return err_file(e, path, "cannot read: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_file(e, path, "not a regular file");
    *size = (uint64_t)st.st_size;
    return true;
}
