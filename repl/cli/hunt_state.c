/* hunt_state.c - the file of `aerie probe --state FILE`: see hunt.h. */
#include "repl/cli/hunt.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "kernels/json.h"
#include "kernels/json_read.h"

struct hunt_state {
    int fd, next;
    const char *path;
};

enum { MOST_CASES = 100000000, STATE_BYTES = 64 << 20 };

/* What has to be the same in each call. */
static void put_head(const struct hunt *p, struct buf *b)
{
    jput_record(b, "%s{server}%s{model}%s{url}%ld{seed}%d{page}%d{window}%d{drafts}%d{context}"
                "%d{pool}%d{lanes}%d{exact}", upkeep_server(p->u), upkeep_model(p->u),
                upkeep_url(p->u), (int64_t)p->seed, p->page, p->window, p->depth, p->context,
                p->pool, p->lanes, p->exact);
}

static bool number_of(const json_t *o, const char *name, int *out)
{
    const json_t *v = json_object_get(o, name);
    bool ok = json_is_integer(v) && json_integer_value(v) >= 0 &&
              json_integer_value(v) <= MOST_CASES;
    *out = ok ? (int)json_integer_value(v) : 0;
    return ok;
}

bool hunt_state_read(const char *text, size_t n, struct hunt *p, int *next, struct err *e)
{
    *next = 0;
    for (size_t at = 0, line = 2; at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        if (!end)
            break; /* a call was ended while it wrote the line */
        int number, asked, found;
        json_t *o = json_parse(text + at, (size_t)(end - text) - at, 0, NULL);
        bool ok = number_of(o, "case", &number) && number_of(o, "requests", &asked) &&
                  number_of(o, "found", &found);
        json_decref(o);
        if (!ok)
            return err_set(e, ERR_USAGE, "line %zu: expected {\"case\":N,\"requests\":N,"
                           "\"found\":N}", line);
        *next = max_int(*next, number + 1);
        p->n_before++;
        p->asked_before = min_int(asked, MOST_CASES - p->asked_before) + p->asked_before;
        p->found_before = min_int(found, MOST_CASES - p->found_before) + p->found_before;
        at = (size_t)(end - text) + 1;
    }
    return true;
}

static bool write_line(struct hunt_state *s, const struct buf *b, struct err *e)
{
    return write_fully(s->fd, b->p, b->n) ||
           err_set(e, ERR_USAGE, "cannot write to %s: %s", s->path, strerror(errno));
}

/* A new file gets the head; an old one is compared with it and read. */
static bool begin_file(struct hunt_state *s, struct hunt *p, const struct buf *old, struct err *e)
{
    FREED(buf_free) struct buf head = {0};
    put_head(p, &head);
    buf_char(&head, '\n');
    bool ok = true;
    if (old->n == 0)
        ok = write_line(s, &head, e);
    else if (old->n < head.n || memcmp(old->p, head.p, head.n) != 0)
        ok = err_set(e, ERR_USAGE, "%s is not of this server, model and --shape; its first line "
                     "should be %.300s", s->path, head.p);
    else
        ok = hunt_state_read(old->p + head.n, old->n - head.n, p, &s->next, e) ||
             err_prefix(e, "%s", s->path);
    if (ok && old->n > 0 && old->p[old->n - 1] != '\n')
        ok = write_fully(s->fd, "\n", 1);
    return ok;
}

struct hunt_state *hunt_state_open(const char *path, struct hunt *p, struct err *e)
{
    struct hunt_state *s = xcalloc(1, sizeof *s);
    FREED(buf_free) struct buf old = {0};
    s->path = path;
    s->fd = -1;
    bool ok = file_missing(path) || buf_read_file(&old, path, STATE_BYTES, e);
    if (ok)
        s->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (ok && s->fd < 0)
        ok = err_set(e, ERR_USAGE, "cannot open %s: %s", path, strerror(errno));
    if (ok && begin_file(s, p, &old, e))
        return s;
    hunt_state_close(s);
    return NULL;
}

int hunt_state_next(const struct hunt_state *s)
{
    return s->next;
}

bool hunt_state_add(struct hunt_state *s, int number, const struct hunt *p, int found,
                    struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    jput_record(&b, "%d{case}%d{requests}%d{found}", number, p->n_asked - p->asked_noted,
                p->n_found - found);
    buf_char(&b, '\n');
    return write_line(s, &b, e);
}

void hunt_state_close(struct hunt_state *s)
{
    if (s && s->fd >= 0)
        close(s->fd);
    free(s);
}
