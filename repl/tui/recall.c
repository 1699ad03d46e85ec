/* recall.c - see recall.h. */
#include "repl/tui/recall.h"

#include "kernels/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 64 << 20 };

/* Creates the folders above path (0700). */
static void make_folders(char *path)
{
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(path, 0700);
            *p = '/';
        }
}

char *recall_path(const char *name)
{
    char *path = xdg_path("XDG_STATE_HOME", ".local/state", name);
    if (path)
        make_folders(path);
    return path;
}

/* ---- the file format: one entry per line ---- */

static void escape_line(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' || p[i] == '\n')
            buf_char(out, '\\');
        buf_char(out, p[i] == '\n' ? 'n' : p[i]);
    }
    buf_char(out, '\n');
}

/* Decodes in place; returns the new length. */
static size_t unescape_line(char *p, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n)
            p[out++] = p[++i] == 'n' ? '\n' : p[i];
        else
            p[out++] = p[i];
    }
    return out;
}

/* ---- the list ---- */

static void drop(struct recall *r, int i)
{
    free(r->line[i]);
    CUT(r->line, r->n, i);
}

static bool push_line(struct recall *r, const char *p, size_t n)
{
    if (n == 0 || n > RECALL_ENTRY || p[0] == ' ' || memchr(p, '\0', n))
        return false;
    for (int i = r->n - 1; i >= 0; i--)
        if (strlen(r->line[i]) == n && memcmp(r->line[i], p, n) == 0)
            drop(r, i);
    if (r->n == RECALL_MAX)
        drop(r, 0);
    char *s = xmalloc(n + 1);
    memcpy(s, p, n);
    s[n] = '\0';
    *APPEND(r->line, r->n) = s;
    return true;
}

static void rewrite(const struct recall *r)
{
    FREED(buf_free) struct buf b = {0};
    for (int i = 0; i < r->n; i++)
        escape_line(&b, r->line[i], strlen(r->line[i]));
    file_replace(r->path, b.p, b.n); /* a list that cannot be stored is not an error */
}

void recall_open(struct recall *r, char *path)
{
    *r = (struct recall){.path = path};
    FREED(buf_free) struct buf b = {0};
    struct stat st;
    /* only a regular file: reading a FIFO could block forever */
    if (!path || lstat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        !buf_read_file(&b, path, FILE_MAX, NULL))
        return;
    int lines = 0;
    for (size_t i = 0; i < b.n; lines++) {
        char *nl = memchr(b.p + i, '\n', b.n - i);
        size_t k = nl ? (size_t)(nl - b.p) - i : b.n - i;
        push_line(r, b.p + i, unescape_line(b.p + i, k));
        i += k + 1;
    }
    file_make_private(path);
    if (lines >= 2 * RECALL_MAX)
        rewrite(r);
}

void recall_close(struct recall *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->line[i]);
    FREE(r->line, r->path);
    *r = (struct recall){0};
}

void recall_add(struct recall *r, const char *text, size_t n)
{
    if (!push_line(r, text, n) || !r->path)
        return;
    int how = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = file_open(r->path, how, 0600);
    if (fd < 0)
        return; /* a missing history is not an error */
    FREED(buf_free) struct buf b = {0};
    escape_line(&b, text, n);
    write_fully(fd, b.p, b.n);
    close(fd);
}

int recall_search(const struct recall *r, const char *pattern, int before)
{
    for (int i = min_int(before, r->n) - 1; i >= 0; i--)
        if (strstr(r->line[i], pattern))
            return i;
    return -1;
}
