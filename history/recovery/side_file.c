/* side_file.c - keeps turns that could not be stored when the log was closed in a file beside the
 * log.
 *
 * The file PATH.unsaved-WRITER (0600) holds the waiting events, the cursor before them, and a
 * checksum; it is written under a temporary name, synced and renamed. The next start applies the
 * events as the writer would have, in one transaction that also adds the writer to `taken`, and
 * then removes the file. A file whose writer is in `taken` is removed without being applied. So
 * each event is stored exactly once, whenever either process is killed.
 */
#include "engine/fault.h"
#include "history/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20, SUM = 32, BUSY_MS = 500 };
static const char magic[] = "aerie unsaved 5\n";

/* ---- values: one function for each type both writes and reads ---- */

/* Writes to `out`, or, if out is NULL, reads from p. ok becomes false at the first invalid
 * value. */
struct io {
    struct buf *out;
    const char *p;
    size_t left;
    bool ok;
};

static void io_bytes(struct io *io, void *p, size_t n)
{
    if (io->out) {
        buf_add(io->out, p, n);
        return;
    }
    io->ok = io->ok && n <= io->left;
    if (!io->ok) {
        memset(p, 0, n);
        return;
    }
    memcpy(p, io->p, n);
    io->p += n;
    io->left -= n;
}

/* An integer of any type that lies between lo and hi. */
#define IO_INT(io, field, lo, hi)                                                                  \
    do {                                                                                           \
        int64_t v_ = (int64_t)(field);                                                             \
        io_bytes(io, &v_, sizeof v_);                                                              \
        (io)->ok = (io)->ok && v_ >= (lo) && v_ <= (hi);                                           \
        (field) = (__typeof__(field))((io)->ok ? v_ : (lo));                                       \
    } while (0)
#define IO_ANY(io, field) IO_INT(io, field, INT64_MIN, INT64_MAX)

/* A length, then as many bytes. A buffer that is read is NUL-terminated. */
static void io_buf(struct io *io, struct buf *b)
{
    uint64_t n = b->n;
    IO_INT(io, n, 0, MAX_FILE);
    if (io->out) {
        buf_add(io->out, b->p, b->n);
    } else if (io->ok && n <= io->left) {
        buf_add(b, io->p, n);
        io->p += n;
        io->left -= n;
    } else {
        io->ok = false;
    }
}

static void io_str(struct io *io, const char **s)
{
    struct buf b = {0};
    if (io->out)
        buf_str(&b, *s);
    io_buf(io, &b);
    if (!io->out)
        *s = xstrdup(b.p ? b.p : "");
    buf_free(&b);
}

static void io_ids(struct io *io, struct ids *a)
{
    struct buf b = {0};
    if (io->out)
        buf_add(&b, a->v, (size_t)a->n * sizeof *a->v);
    io_buf(io, &b);
    for (size_t i = 0; !io->out && i + 4 <= b.n; i += 4) {
        int32_t id;
        memcpy(&id, b.p + i, sizeof id);
        ids_add(a, id);
    }
    buf_free(&b);
}

static void io_tree(struct io *io, struct tree **t)
{
    struct buf b = {0};
    if (io->out && *t)
        tree_pack(*t, &b);
    io_buf(io, &b);
    if (!io->out && io->ok && b.n) {
        *t = xmalloc(sizeof **t);
        io->ok = tree_unpack(*t, b.p, b.n, NULL);
    }
    buf_free(&b);
}

static void io_pages(struct io *io, struct event *ev)
{
    IO_INT(io, ev->n_pages, 0, 1 << 24);
    if (!io->out && ev->n_pages)
        ev->pages = xcalloc((size_t)ev->n_pages, sizeof *ev->pages);
    for (int i = 0; io->ok && i < ev->n_pages; i++) {
        IO_INT(io, ev->pages[i].pool, 0, N_POOLS - 1);
        IO_INT(io, ev->pages[i].op, 0, LAST_PAGE_OP);
        IO_INT(io, ev->pages[i].holder, 0, LAST_PAGE_HOLDER);
        IO_INT(io, ev->pages[i].page, INT32_MIN, INT32_MAX);
        IO_INT(io, ev->pages[i].column, INT32_MIN, INT32_MAX);
        IO_INT(io, ev->pages[i].refs, INT32_MIN, INT32_MAX);
    }
}

static void io_session(struct io *io, char id[SESSION_ID])
{
    io_bytes(io, id, SESSION_ID);
    id[SESSION_ID - 1] = '\0';
}

static void io_float(struct io *io, float *f)
{
    io_bytes(io, f, sizeof *f);
}

/* The facts of the event's tokens; call it after io_ids() of the tokens. */
static void io_facts(struct io *io, struct event *ev)
{
    int n = ev->facts ? ev->tokens.n : 0;
    IO_INT(io, n, 0, ev->tokens.n);
    if (!io->out && io->ok && n == ev->tokens.n && n > 0)
        ev->facts = xcalloc((size_t)n, sizeof *ev->facts);
    for (int i = 0; ev->facts && i < n; i++) {
        io_float(io, &ev->facts[i].logp);
        IO_INT(io, ev->facts[i].rival, INT32_MIN, INT32_MAX);
        io_float(io, &ev->facts[i].rival_logp);
    }
}

static void io_reuse(struct io *io, struct reuse *r)
{
    IO_INT(io, r->change, 0, CHANGE_FORMAT);
    IO_INT(io, r->limit, 0, LIMIT_STATE);
    IO_INT(io, r->held, 0, INT32_MAX / 2);
    IO_INT(io, r->same, 0, INT32_MAX / 2);
    IO_INT(io, r->turn, 0, INT32_MAX / 2);
    IO_INT(io, r->from, 0, INT32_MAX / 2);
    IO_INT(io, r->to, 0, INT32_MAX / 2);
}

static void io_step(struct io *io, struct step_rec *r)
{
    IO_INT(io, r->kind, 0, STEP_SPEC);
    IO_INT(io, r->pos0, INT32_MIN, INT32_MAX);
    IO_INT(io, r->rows, INT32_MIN, INT32_MAX);
    IO_INT(io, r->drafted, INT32_MIN, INT32_MAX);
    IO_INT(io, r->accepted, INT32_MIN, INT32_MAX);
    IO_INT(io, r->bonus, INT32_MIN, INT32_MAX);
    IO_ANY(io, r->draws);
    IO_ANY(io, r->page_digest);
    IO_ANY(io, r->draft_digest);
    IO_ANY(io, r->logit_digest);
    IO_INT(io, r->us_draft, 0, UINT32_MAX);
    IO_INT(io, r->us_verify, 0, UINT32_MAX);
    IO_INT(io, r->us_commit, 0, UINT32_MAX);
    IO_INT(io, r->us_check, 0, UINT32_MAX);
    io_float(io, &r->margin);
    IO_INT(io, r->forced, 0, INT32_MAX);
    IO_INT(io, r->fused, 0, 1);
    IO_INT(io, r->source, 0, STEP_PIECE);
    IO_ANY(io, r->us_arrived);
}

static void io_double(struct io *io, double *v)
{
    io_bytes(io, v, sizeof *v);
}

static void io_tops(struct io *io, struct event *ev)
{
    int n = ev->tops ? ev->tops->n : 0;
    IO_INT(io, n, 0, 1 << 24);
    if (!io->out && n)
        ev->tops = xcalloc(1, sizeof *ev->tops);
    for (int i = 0; io->ok && i < n; i++) {
        struct top x = io->out ? ev->tops->at[i] : (struct top){0};
        struct buf text = {0};
        int has = x.text != NULL;
        IO_INT(io, x.k, 0, INT32_MAX);
        IO_INT(io, x.id, -1, INT32_MAX);
        io_float(io, &x.logp);
        IO_INT(io, has, 0, 1);
        if (io->out && has)
            buf_add(&text, x.text, (size_t)x.n);
        io_buf(io, &text);
        if (!io->out && io->ok)
            tops_add(ev->tops, x.k, x.id, x.logp, has ? text.p ? text.p : "" : NULL, text.n);
        buf_free(&text);
    }
}

static void io_metrics(struct io *io, struct served *s)
{
    int n = s->n_metric;
    IO_INT(io, n, 0, 1 << 16);
    if (!io->out && n) {
        s->metric = xcalloc((size_t)n, sizeof *s->metric);
        s->n_metric = n;
    }
    for (int i = 0; i < s->n_metric; i++) {
        const char *name = s->metric[i].name, *labels = s->metric[i].labels;
        io_str(io, &name);
        io_str(io, &labels);
        s->metric[i].name = (char *)name;
        s->metric[i].labels = (char *)labels;
        io_double(io, &s->metric[i].before);
        io_double(io, &s->metric[i].after);
    }
}

static void io_served(struct io *io, struct event *ev)
{
    int has = ev->served != NULL;
    IO_INT(io, has, 0, 1);
    if (!has)
        return;
    if (!io->out)
        ev->served = served_new();
    struct served *s = ev->served;
    int64_t *count[] = {&s->prompt, &s->generated, &s->cached, &s->drafted, &s->accepted, &s->verifies};
    double *ms[] = {&s->ms_queue, &s->ms_first, &s->ms_prompt, &s->ms_decode, &s->ms_before, &s->ms_after};
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        IO_INT(io, *count[i], -1, INT64_MAX);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        io_double(io, ms[i]);
    io_bytes(io, s->finish, sizeof s->finish);
    s->finish[sizeof s->finish - 1] = '\0';
    IO_INT(io, s->prompt_ids, 0, 1);
    IO_INT(io, s->reply_ids, 0, 1);
    io_metrics(io, s);
}

/* *ms is the event's wall-clock time: ev->ns is a monotonic time of this boot only. */
static void io_event(struct io *io, struct event *ev, int64_t *ms)
{
    IO_INT(io, ev->kind, 0, EV_FAULT);
    IO_ANY(io, *ms);
    io_session(io, ev->session);
    io_session(io, ev->parent);
    IO_INT(io, ev->turn, 0, INT32_MAX / 2);
    IO_INT(io, ev->step, 0, INT32_MAX / 2);
    IO_INT(io, ev->fork_turn, 0, INT32_MAX / 2);
    IO_INT(io, ev->beside, 0, 1);
    IO_INT(io, ev->op, 0, op_last());
    IO_INT(io, ev->channel, 0, INT32_MAX);
    IO_INT(io, ev->regen, 0, 1);
    IO_ANY(io, ev->seed);
    IO_INT(io, ev->n_reused, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->reason, 0, STOP_CRASHED);
    IO_INT(io, ev->n_drafted, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->n_accepted, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->n_steps, INT32_MIN, INT32_MAX);
    IO_ANY(io, ev->us_prefill);
    IO_ANY(io, ev->us_decode);
    io_step(io, &ev->rec);
    IO_INT(io, ev->at.rule, 0, N_RULES - 1);
    io_buf(io, &ev->text);
    io_ids(io, &ev->tokens);
    io_tree(io, &ev->tree);
    io_pages(io, ev);
    IO_INT(io, ev->lengths.length, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->lengths.committed, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->lengths.drafted, INT32_MIN, INT32_MAX);
    IO_INT(io, ev->lengths.window_lo, INT32_MIN, INT32_MAX);
    io_facts(io, ev);
    io_reuse(io, &ev->reuse);
    io_ids(io, &ev->prompt);
    io_tops(io, ev);
    io_served(io, ev);
}

static void io_cursor(struct io *io, struct cursor *c)
{
    io_session(io, c->session);
    io_session(io, c->parent);
    IO_INT(io, c->fork_turn, 0, INT32_MAX / 2);
    IO_INT(io, c->stored, 0, 1);
    IO_ANY(io, c->run);
    IO_INT(io, c->shift, 0, INT32_MAX / 2);
    io_buf(io, &c->settings);
    IO_ANY(io, c->draws);
    IO_ANY(io, c->reply);
    IO_INT(io, c->n, 0, INT32_MAX / 2);
    IO_INT(io, c->n_parts, 0, INT32_MAX / 2);
    io_buf(io, &c->text);
    IO_INT(io, c->text_channel, 0, INT32_MAX);
    io_ids(io, &c->seq);
    IO_INT(io, c->seq_n, -1, INT32_MAX / 2);
    IO_INT(io, c->beside, 0, 1);
}

static void io_cursors(struct io *io, struct writer *w)
{
    int n = w->n_parked;
    io_cursor(io, &w->cur);
    IO_INT(io, n, 0, 1 << 20);
    if (!io->out && n) { /* room for a power of two, as cursors.c grows the array */
        int room = 1;
        while (room < n)
            room *= 2;
        w->parked = xcalloc((size_t)room, sizeof *w->parked);
        w->n_parked = n;
    }
    for (int i = 0; i < w->n_parked; i++)
        io_cursor(io, &w->parked[i]);
}

static void io_about(struct io *io, struct history_about *a)
{
    const char **s = (const char **)a;
    for (size_t i = 0; i < sizeof *a / sizeof *s; i++)
        io_str(io, &s[i]);
}

/* ---- writing ---- */

char *side_file_name(const char *path, int64_t writer)
{
    return xasprintf("%s.unsaved-%016llx", path, (unsigned long long)writer);
}

static void add_checksum(struct buf *b)
{
    uint8_t sum[SUM];
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, b->p, b->n);
    sha256_end(&s, sum);
    buf_add(b, sum, sizeof sum);
}

static void pack(struct writer *w, const struct waiting *wait, int n, struct buf *out)
{
    struct io io = {.out = out, .ok = true};
    buf_str(out, magic);
    IO_ANY(&io, w->live.id);
    io_about(&io, &w->about);
    io_cursors(&io, w);
    int marks = 0;
    for (int i = 0; i < n; i++)
        marks += wait[i].ev.kind > EV_FAULT; /* EV_MARK of history_flush() */
    int stored = n - marks;
    IO_ANY(&io, stored);
    for (int i = 0; i < n; i++) {
        struct event ev = wait[i].ev; /* a shallow copy, only read */
        if (ev.kind > EV_FAULT)
            continue;
        enum log_level level = wait[i].level;
        int64_t ms = clock_unix_ms() - (int64_t)((clock_ns() - ev.ns) / 1000000);
        IO_ANY(&io, level);
        io_event(&io, &ev, &ms);
    }
    add_checksum(out);
}

static bool write_whole(const char *name, const struct buf *b, struct err *e)
{
    int fd = file_create(name, e);
    if (fd < 0)
        return false;
    size_t at = 0;
    ssize_t n = 1;
    while (at < b->n && ((n = write(fd, b->p + at, b->n - at)) > 0 || errno == EINTR))
        at += n > 0 ? (size_t)n : 0;
    bool ok = (at == b->n && fsync(fd) == 0) ||
              err_set(e, ERR_DB, "cannot write %s: %s", name, strerror(errno));
    close(fd);
    return ok;
}

bool side_file_write(struct writer *w, const struct waiting *wait, int n, struct err *e)
{
    char *name = side_file_name(w->db.path, w->live.id), *temp = xasprintf("%s.part", name);
    struct buf b = {0};
    pack(w, wait, n, &b);
    unlink(temp);
    bool ok = write_whole(temp, &b, e) &&
              (rename(temp, name) == 0 ||
               err_set(e, ERR_DB, "cannot write %s: %s", name, strerror(errno)));
    if (ok)
        file_sync_folder(name);
    else
        unlink(temp);
    buf_free(&b);
    free(temp);
    free(name);
    return ok;
}

int side_file_note_stored(struct db *d, int64_t writer)
{
    int rc = db_do(d, "INSERT OR IGNORE INTO taken(id) VALUES(?)", "b", &writer, sizeof writer);
    return rc ? rc : head_state(d);
}

void side_file_remove(const char *path, int64_t writer)
{
    char *name = side_file_name(path, writer);
    if (unlink(name) == 0)
        file_sync_folder(name);
    free(name);
}

bool side_file_exists(const char *path, int64_t writer)
{
    char *name = side_file_name(path, writer);
    bool there = !file_missing(name);
    free(name);
    return there;
}

/* ---- storing side files ---- */

/* Whether a file begins with this version's line and ends with the checksum of its content. */
static bool file_is_whole(const struct buf *b)
{
    if (b->n < sizeof magic - 1 + SUM || memcmp(b->p, magic, sizeof magic - 1) != 0)
        return false;
    uint8_t sum[SUM];
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, b->p, b->n - SUM);
    sha256_end(&s, sum);
    return memcmp(sum, b->p + b->n - SUM, SUM) == 0;
}

/* Updates the cursor for changes since the file was written: the session may have been pruned, the
 * reply closed. */
static int refresh_cursor(struct writer *w)
{
    struct db *d = &w->db;
    struct cursor *c = &w->cur;
    int64_t there = 0, open = 0;
    int rc = db_int(d, &there, 0, "SELECT count(*) FROM run WHERE id=? AND session_id=?", "is",
                    c->run, c->session);
    if (!rc)
        rc = db_int(d, &open, 0, "SELECT count(*) FROM turn WHERE id=? AND stop=''", "i", c->reply);
    c->stored = c->stored && there;
    c->reply = c->stored && open ? c->reply : 0;
    return rc;
}

/* Applies all events inside the caller's transaction. */
static int apply_events(struct writer *w, struct io *io, int *turns)
{
    int n = 0, rc = cursors_each(w, refresh_cursor);
    IO_INT(io, n, 0, INT32_MAX);
    for (int i = 0; !rc && i < n && io->ok; i++) {
        struct event ev = {0};
        enum log_level level = LOG_OFF;
        int64_t ms = 0;
        bool end = false;
        IO_INT(io, level, LOG_OFF, LOG_TREE);
        io_event(io, &ev, &ms);
        ev.ns = clock_ns() - (uint64_t)(clock_unix_ms() - ms) * 1000000u;
        if (io->ok)
            rc = write_event(w, &ev, level, &end);
        *turns += end;
        event_free(&ev);
    }
    if (!rc && !io->ok)
        rc = SQLITE_MISMATCH; /* written by another version of aerie */
    if (!rc)
        rc = write_commit(w);
    return rc ? rc : write_end_all(w);
}

/* Stores a file's events in one transaction, unless they were stored before. *turns counts
 * replies. */
static bool store_once(struct writer *w, struct io *io, int *turns, struct err *e)
{
    struct db *d = &w->db;
    int64_t done = 0;
    int rc = db_do(d, "BEGIN IMMEDIATE", "");
    if (!rc)
        rc = db_int(d, &done, 0, "SELECT count(*) FROM taken WHERE id=?", "b", &w->live.id,
                    sizeof w->live.id);
    if (!rc && !done)
        rc = apply_events(w, io, turns);
    if (!rc && !done)
        rc = side_file_note_stored(d, w->live.id);
    if (!rc)
        rc = db_do(d, "COMMIT", "");
    return rc == SQLITE_OK || db_fail(d, e, "cannot store the events of its side file");
}

static bool store_side_file(const char *path, int64_t writer, const char *name, int *turns,
                      struct err *e)
{
    struct buf b;
    struct writer w = {.live = {.fd = -1, .id = writer}};
    int fd = file_open_beside(name, O_RDONLY, e);
    if (fd < 0 || !buf_read_open(&b, fd, name, MAX_FILE, e))
        return false;
    struct io io = {.p = b.p + sizeof magic - 1, .left = b.n - sizeof magic + 1 - SUM, .ok = true};
    int64_t id = 0;
    bool whole = file_is_whole(&b);
    if (whole) {
        IO_ANY(&io, id);
        io_about(&io, &w.about);
        io_cursors(&io, &w);
        whole = io.ok && id == writer;
    }
    bool ok = whole && open_existing(&w.db, path, SQLITE_OPEN_READWRITE, e);
    if (ok) {
        sqlite3_busy_timeout(w.db.h, BUSY_MS);
        ok = store_once(&w, &io, turns, e);
    }
    if (ok)
        side_file_remove(path, writer);
    if (!whole) {
        char *to;
        ok = file_rename_damaged(name, &to, e) &&
             err_set(e, ERR_DB, "%s is damaged, it is kept as %s", name, to);
        free(to);
    }
    db_close(&w.db);
    cursors_free(&w);
    about_free(&w.about);
    buf_free(&b);
    return ok;
}

/* Deletes the rows of `taken` whose side file no longer exists. */
static void drop_old_notes(struct db *d, const char *path)
{
    int64_t *old = NULL;
    size_t n = 0;
    sqlite3_stmt *st = db_prepare(d, NULL, "SELECT id FROM taken", "");
    while (st && sqlite3_step(st) == SQLITE_ROW) {
        int64_t writer = 0;
        if (sqlite3_column_bytes(st, 0) == sizeof writer)
            memcpy(&writer, sqlite3_column_blob(st, 0), sizeof writer);
        if (!side_file_exists(path, writer)) {
            old = xrealloc(old, n + 1, sizeof *old);
            old[n++] = writer;
        }
    }
    sqlite3_finalize(st);
    if (n && db_do(d, "BEGIN IMMEDIATE", "") == SQLITE_OK) {
        int rc = SQLITE_OK;
        for (size_t i = 0; !rc && i < n; i++)
            rc = db_do(d, "DELETE FROM taken WHERE id=?", "b", &old[i], sizeof old[i]);
        if (!rc)
            rc = head_state(d);
        if (!rc)
            db_do(d, "COMMIT", "");
        db_rollback(d);
    }
    free(old);
}

bool side_files_store(struct db *d, const struct live *l, int *turns, struct err *e)
{
    const char *slash = strrchr(d->path, '/'), *base = slash ? slash + 1 : d->path;
    char *folder = slash ? xasprintf("%.*s", (int)(slash - d->path) + 1, d->path) : xstrdup("./");
    char *start = xasprintf("%s.unsaved-", base);
    size_t n = strlen(start);
    DIR *dir = opendir(folder);
    bool ok = true;
    *turns = 0;
    for (struct dirent *f; dir && (f = readdir(dir));) {
        char *end;
        if (strncmp(f->d_name, start, n) != 0 || strlen(f->d_name) < n + 16)
            continue;
        int64_t writer = (int64_t)strtoull(f->d_name + n, &end, 16);
        bool part = strcmp(end, ".part") == 0; /* its process died before the file was complete */
        /* a live writer moves its events into the log itself */
        if ((*end && !part) || end != f->d_name + n + 16 || live_or_unknown(l, writer))
            continue;
        char *name = xasprintf("%s%s", folder, f->d_name);
        if (part)
            unlink(name);
        else
            ok &= store_side_file(d->path, writer, name, turns, e);
        free(name);
    }
    if (dir)
        closedir(dir);
    drop_old_notes(d, d->path);
    free(start);
    free(folder);
    return ok;
}
