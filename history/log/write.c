/* write.c - stores one engine event as rows.
 *
 * All functions run on the writer's thread inside its transaction and change only the database and
 * the cursor. After a rollback the caller restores the old cursor and may apply the same events
 * again.
 */
#include "engine/fault.h"
#include "history/columns.h"
#include "kernels/lines.h"
#include "kernels/text.h"
#include "kernels/utf8.h"

enum { TITLE_BYTES = 80 };

/* ---- times ---- */

/* The wall-clock time at which the event was posted; it may be written much later. The difference
 * between the two clocks varies by a millisecond, so a time slightly before the previous event's is
 * replaced by that. */
static int64_t event_ms(struct writer *w, const struct event *ev)
{
    enum { WAVER_MS = 100 };
    int64_t ms = clock_unix_ms() - (int64_t)((clock_ns() - ev->ns) / 1000000);
    if (ms < w->newest_ms && w->newest_ms - ms < WAVER_MS)
        ms = w->newest_ms;
    ms = ms < 0 ? 0 : ms; /* a clock that is not set starts at 0 */
    return w->newest_ms = ms;
}

/* ---- settings in force ---- */

/* Puts "name=value" in place of the line with that name, or at the end. */
static void set_line(struct buf *lines, const char *set)
{
    const char *eq = strchr(set, '=');
    size_t name = eq ? (size_t)(eq - set) + 1 : strlen(set);
    struct buf out = {0};
    bool found = false;
    FOR_LINES(l, lines->p) {
        bool same = l.n >= name && strncmp(l.p, set, name) == 0;
        found |= same;
        buf_printf(&out, "%.*s\n", same ? (int)strlen(set) : (int)l.n, same ? set : l.p);
    }
    if (!found)
        buf_printf(&out, "%s\n", set);
    buf_free(lines);
    *lines = out;
}

static bool is_line_of(const char *set, const char *name)
{
    size_t n = strlen(name);
    return strncmp(set, name, n) == 0 && set[n] == '=';
}

void settings_set_line(struct buf *lines, const char *set)
{
    static const char *const part[] = {"draft.steps", "draft.topk", "draft.nodes"};
    static const char shape[] = "draft.shape";
    set_line(lines, set);
    if (is_line_of(set, shape) && strcmp(set + sizeof shape, "auto") != 0) {
        const char *at = set + sizeof shape;
        for (int i = 0; i < 3; i++) {
            size_t n = strcspn(at, "-");
            FREED(free_at) char *line = xasprintf("%s=%.*s", part[i], (int)n, at);
            set_line(lines, line);
            at += n + (at[n] == '-');
        }
    } else if (ANY(i, 3, is_line_of(set, part[i]))) {
        FREED(buf_free) struct buf line = {0};
        for (int i = 0; i < 3; i++) {
            struct line v = line_value(lines->p, part[i]);
            if (!v.p)
                return;
            buf_printf(&line, "%s%c%.*s", i ? "" : shape, i ? '-' : '=', (int)v.n, v.p);
        }
        set_line(lines, line.p);
    }
}

static void settings_follow(struct cursor *c, const struct event *ev)
{
    if (ev->op == OP_OPEN || ev->op == OP_RESUME) {
        buf_clear(&c->settings);
        buf_add(&c->settings, ev->text.p, ev->text.n);
    } else if (ev->op == OP_SET && ev->text.n) {
        settings_set_line(&c->settings, ev->text.p);
    }
}

/* ---- sessions and runs ---- */

/* Notes that this transaction changes the session, before its first change. */
static int touch(struct writer *w)
{
    struct cursor *c = &w->cur;
    bool first = !c->touched;
    c->touched = true;
    return first && c->stored ? chain_touch(&w->db, c->session) : SQLITE_OK;
}

static int model_id(struct db *d, const char *role, const char *dir, const char *sha,
                    const char *tokenizer, int64_t *id)
{
    return db_do(d, "INSERT OR IGNORE INTO model(role, dir, weights_sha, tokenizer_sha)"
                 " VALUES(?,?,?,?)", "ssss", role, dir, sha, tokenizer) ?:
           head_add_inserted(d, "model") ?:
           db_int(d, id, 0, "SELECT id FROM model WHERE role=? AND dir=? AND weights_sha=? AND"
                  " tokenizer_sha=?", "ssss", role, dir, sha, tokenizer);
}

static int build_id(struct db *d, const struct history_about *a, int64_t *id)
{
    return db_do(d, "INSERT OR IGNORE INTO build(version, device, flags) VALUES(?,?,?)", "sss",
                 a->version, a->device, a->flags) ?:
           head_add_inserted(d, "build") ?:
           db_int(d, id, 0, "SELECT id FROM build WHERE version=? AND device=? AND"
                  " flags=?", "sss", a->version, a->device, a->flags);
}

/* *id: 0 where this process computes. */
static int server_id(struct db *d, const struct history_about *a, int64_t *id)
{
    *id = 0;
    if (!*a->server)
        return SQLITE_OK;
    int rc = db_int(d, id, 0, "SELECT id FROM server WHERE kind=? AND version=? AND url=? AND "
                    "model=? AND facts=?", "sssss", a->server, a->server_version, a->server_url,
                    a->model_dir, a->server_facts);
    if (rc || *id)
        return rc;
    rc = db_do(d, "INSERT INTO server(kind, version, url, model, facts) VALUES(?,?,?,?,?)", "sssss",
               a->server, a->server_version, a->server_url, a->model_dir, a->server_facts);
    *id = sqlite3_last_insert_rowid(d->h);
    return rc ?: head_add_row(d, "server", *id);
}

static int insert_run(struct writer *w, int64_t ms)
{
    struct db *d = &w->db;
    const struct history_about *a = &w->about;
    const char *session = w->cur.session;
    int64_t build, target, draft = 0, server = 0;
    int rc = build_id(d, a, &build) ?:
             model_id(d, "target", a->model_dir, a->model_sha, a->tokenizer_sha, &target) ?:
             (*a->draft_dir ? model_id(d, "draft", a->draft_dir, a->draft_sha, "", &draft)
                            : SQLITE_OK) ?:
             server_id(d, a, &server) ?:
             db_do(d, "INSERT INTO run(session_id, build_id, target_id, draft_id, config, writer,"
                   " created_ms, server_id) VALUES(?,?,?,nullif(?,0),?,?,?,nullif(?,0))",
                   "siiisiii", session, build, target, draft, a->config, w->live.id, ms, server);
    if (rc)
        return rc;
    w->cur.run = sqlite3_last_insert_rowid(d->h);
    return chain_add(d, session, LINK_RUN, w->cur.run) ?:
           session_lock_row(d, &w->live, session) ?:
           db_do(d, "UPDATE session SET last_run=?, updated_ms=? WHERE id=?", "iis",
                 w->cur.run, ms, session);
}

/* Gives the session a number for people, unless it has one: with its first turn, or as a fork,
 * because a session without a turn is not kept. */
int number_session(struct writer *w)
{
    const char *id = w->cur.session;
    int rc = db_do(&w->db, "UPDATE session SET number=1+max((SELECT coalesce(max(number),0) FROM"
                   " session), coalesce((SELECT last_number FROM roll WHERE id=1),0))"
                   " WHERE id=? AND number IS NULL", "s", id);
    if (rc || !sqlite3_changes(w->db.h))
        return rc;
    return db_do(&w->db, "UPDATE roll SET last_number=max(last_number,"
                 " (SELECT number FROM session WHERE id=?)) WHERE id=1", "s", id) ?:
           head_state(&w->db);
}

/* Stores the session's row, unless it exists, and a row for this process's run. */
int store_session(struct writer *w, const struct event *ev)
{
    struct db *d = &w->db;
    struct cursor *c = &w->cur;
    if (c->stored)
        return SQLITE_OK;
    int64_t ms = event_ms(w, ev), draws;
    const char *parent = *c->parent ? c->parent : NULL;
    int rc = db_do(d, "INSERT OR IGNORE INTO session(id, parent, fork_turn, title, created_ms,"
                   " updated_ms) VALUES(?1,?2,?3,(SELECT title FROM session WHERE id=?2),?4,?4)",
                   "ssii", c->session, parent, (int64_t)c->fork_turn, ms) ?:
             (sqlite3_changes(d->h) ? SQLITE_OK : chain_touch(d, c->session)) ?:
             (parent ? number_session(w) : SQLITE_OK) ?:
             insert_run(w, ms);
    if (!rc) /* a resumed session continues the count of random draws (or its parent's) */
        rc = db_int(d, &draws, (int64_t)c->draws, "WITH RECURSIVE up(id, upto) AS"
                    " (VALUES(?, 1 << 31) UNION ALL SELECT parent, fork_turn FROM session"
                    "  JOIN up USING(id) WHERE parent NOT NULL)"
                    " SELECT draws1 FROM turn JOIN up ON session_id = up.id AND n <= upto"
                    " WHERE role='reply' ORDER BY n DESC LIMIT 1", "s", c->session);
    if (rc)
        return rc;
    c->draws = (uint64_t)draws;
    c->seq_n = -1;
    c->stored = true;
    return SQLITE_OK;
}

/* The text and ids of an open turn that were stored so far. */
static int read_parts(struct db *d, int64_t reply, struct buf *text, struct ids *tokens)
{
    sqlite3_stmt *st = db_cached(
        d, "SELECT text FROM turn_part WHERE turn_id=? AND channel=0 ORDER BY k", "i", reply);
    int rc;
    while (db_row(d, st, &rc)) {
        const void *p = sqlite3_column_text(st, 0);
        buf_add(text, p, (size_t)sqlite3_column_bytes(st, 0));
    }
    if (rc)
        return rc;
    st = db_cached(d, "SELECT tokens FROM step WHERE turn_id=? ORDER BY n", "i", reply);
    while (db_row(d, st, &rc))
        col_ids(st, 0, tokens);
    return rc;
}

static int session_of(struct db *d, int64_t turn, char out[SESSION_ID])
{
    sqlite3_stmt *st = db_cached(d, "SELECT session_id FROM turn WHERE id=?", "i", turn);
    int rc;
    bool some = db_row(d, st, &rc);
    if (some)
        col_id(st, 0, out);
    sqlite3_reset(st);
    return some ? SQLITE_OK : rc ?: SQLITE_CORRUPT;
}

int recover_turn(struct db *d, int64_t reply)
{
    FREED(buf_free) struct buf text = {0};
    FREED(ids_free) struct ids tokens = {0};
    char session[SESSION_ID];
    return session_of(d, reply, session) ?:
           read_parts(d, reply, &text, &tokens) ?:
           db_do(d, "UPDATE turn SET text=?2, tokens=?3, stop=?4,"
                 " (n_steps, n_drafted, n_accepted, us_decode, draws1) = (SELECT count(*),"
                 "  total(drafted), total(accepted), total(us_draft + us_verify + us_commit),"
                 "  coalesce(max(draws), turn.draws1) FROM step WHERE turn_id = ?1) WHERE id=?1",
                 "itbs", reply, text.p, text.n, tokens.v, (size_t)tokens.n * sizeof *tokens.v,
                 stop_name(STOP_CRASHED)) ?:
           turn_index(d, reply, "", text.p, text.n) ?:
           db_do(d, "DELETE FROM turn_part WHERE turn_id=? AND channel=0", "i", reply) ?:
           chain_add(d, session, LINK_TURN, reply);
}

/* Ends the run of w->cur. Deletes a session without a turn, unless `keep`. */
static int end_run(struct writer *w, bool keep)
{
    struct cursor *c = &w->cur;
    if (!c->stored)
        return SQLITE_OK;
    int rc = touch(w) ?:
             (c->reply && !w->aside ? recover_turn(&w->db, c->reply) : SQLITE_OK) ?:
             db_do(&w->db, "UPDATE run SET ended=1 WHERE id=?", "i", c->run) ?:
             session_unlock(&w->db, &w->live, c->session) ?:
             chain_seal(&w->db, c->session);
    int gone;
    if (!rc && !keep && !w->aside) /* deletes a session without any turn */
        rc = chain_delete(&w->db, db_cached(&w->db, "DELETE FROM session WHERE id=?1 AND"
                   " parent IS NULL AND NOT EXISTS(SELECT 1 FROM turn WHERE session_id = ?1)"
                   " AND NOT EXISTS(SELECT 1 FROM session WHERE parent = ?1) RETURNING id", "s",
                   c->session), &gone);
    c->reply = 0;
    c->stored = c->touched = false;
    return rc;
}

static int end_bare_run(struct writer *w)
{
    return end_run(w, false);
}

int write_end_all(struct writer *w)
{
    return cursors_each(w, end_bare_run);
}

/* Makes the event's session the one of w->cur. A session beside the others (event.beside) gets a
 * further cursor; any other replaces the conversation's session. */
static int begin_session(struct writer *w, const struct event *ev, enum log_level level)
{
    struct cursor *c = &w->cur;
    bool open = cursors_switch(w, ev->session);
    int rc = open ? end_run(w, false) : SQLITE_OK;
    if (!rc && open && c->beside)
        cursor_free(c);
    if (!rc && ev->beside) {
        if (strcmp(c->session, ev->session) != 0)
            cursors_park(w);
    } else if (!rc) {
        cursors_conversation(w);
        rc = end_run(w, *ev->parent != '\0');
    }
    if (rc)
        return rc;
    c->beside = ev->beside;
    c->touched = true;
    memcpy(c->session, ev->session, sizeof c->session);
    memcpy(c->parent, ev->parent, sizeof c->parent);
    c->fork_turn = ev->fork_turn;
    c->shift = 0;
    if (!*ev->parent) {
        buf_clear(&c->settings);
        c->draws = 0;
    }
    return level == LOG_OFF ? SQLITE_OK : store_session(w, ev);
}

/* ---- turns ---- */

/* Sets the title to the first non-empty line, truncated at a character, unless the session has
 * one. */
static int set_title(struct writer *w, const struct event *ev)
{
    const char *s = buf_text(&ev->text);
    s += strspn(s, " \t\r\n");
    size_t n = strcspn(s, "\r\n");
    if (!n)
        return SQLITE_OK;
    if (n > TITLE_BYTES)
        for (n = TITLE_BYTES; n && ((unsigned char)s[n] & 0xC0) == 0x80;)
            n--;
    return db_do(&w->db, "UPDATE session SET title=? WHERE id=? AND title IS NULL", "ts", s, n,
                 w->cur.session);
}

static int shared_prefix(const struct ids *a, const struct ids *b)
{
    int n = min_int(a->n, b->n), i = 0;
    while (i < n && a->v[i] == b->v[i])
        i++;
    return i;
}

/* Sets c->n, the turn's number in the log: the engine's number plus c->shift. If another process
 * wrote into the same session, the shift is increased so that no two turns share a number. */
int assign_turn_number(struct writer *w, const struct event *ev, int64_t *last)
{
    struct cursor *c = &w->cur;
    int rc = db_int(&w->db, last, 0, "SELECT max(n) FROM turn WHERE session_id=?", "s", c->session);
    if (!rc && (*last < 0 || *last >= LOG_MAX || ev->turn < 0 || ev->turn >= LOG_MAX - c->shift))
        rc = SQLITE_MISMATCH; /* a damaged row: no valid number is left */
    if (rc)
        return rc;
    c->n = ev->turn + c->shift;
    if (c->n <= *last) {
        c->shift += (int)*last + 1 - c->n;
        c->n = (int)*last + 1;
    }
    return SQLITE_OK;
}

static int store_reuse(struct writer *w, const struct reuse *r, int64_t row)
{
    if (r->change == CHANGE_UNKNOWN)
        return SQLITE_OK;
    return db_do(&w->db, "UPDATE turn SET change=?, change_turn=?, held=?, same=?, limited=?,"
                 " gone_from=?, gone_to=? WHERE id=?", "siiisiii", reuse_change_name(r->change),
                 (int64_t)(r->turn ? r->turn + w->cur.shift : 0), (int64_t)r->held,
                 (int64_t)r->same, reuse_limit_name(r->limit), (int64_t)r->from, (int64_t)r->to,
                 row);
}

static int store_texts(struct writer *w, const int32_t *id, int n)
{
    return texts_store(&w->db, &w->texts, w->about.tokenizer_sha ? w->about.tokenizer_sha : "", id,
                       n);
}

static int insert_user(struct writer *w, const struct event *ev, int64_t ms)
{
    struct cursor *c = &w->cur;
    int shared = w->aside ? 0 : shared_prefix(&ev->tokens, &c->seq);
    int rc = db_do(&w->db, "INSERT INTO turn(session_id, run_id, n, role, text, shared, tokens,"
                   " regen, seed, sampling, draws0, n_reused, created_ms)"
                   " VALUES(?,?,?,'user',?,?,?,?,?,?,?,?,?)", "siitibiitiii", c->session, c->run,
                   (int64_t)c->n, ev->text.p, ev->text.n, (int64_t)shared, ev->tokens.v + shared,
                   (size_t)(ev->tokens.n - shared) * sizeof *ev->tokens.v, (int64_t)ev->regen,
                   ev->seed, c->settings.p, c->settings.n, (int64_t)c->draws,
                   (int64_t)ev->n_reused, ms);
    int64_t row = sqlite3_last_insert_rowid(w->db.h);
    return rc ?:
           turn_index(&w->db, row, NULL, ev->text.p, ev->text.n) ?:
           store_reuse(w, &ev->reuse, row) ?:
           store_texts(w, ev->tokens.v, ev->tokens.n) ?:
           chain_add(&w->db, c->session, LINK_TURN, row);
}

/* Inserts an empty row for the reply; write_turn_end() fills it. */
int insert_reply(struct writer *w, int64_t ms)
{
    struct cursor *c = &w->cur;
    int rc = db_do(&w->db, "INSERT INTO turn(session_id, run_id, n, role, text, tokens, stop,"
                   " draws1, created_ms) VALUES(?,?,?,'reply','',x'','',?,?)", "siiii", c->session,
                   c->run, (int64_t)c->n, (int64_t)c->draws, ms);
    c->reply = sqlite3_last_insert_rowid(w->db.h);
    return rc ?: turn_index(&w->db, c->reply, NULL, "", 0);
}

static int write_turn_begin(struct writer *w, const struct event *ev)
{
    struct cursor *c = &w->cur;
    int64_t last = 0, ms = event_ms(w, ev);
    int rc = store_session(w, ev) ?: number_session(w);
    if (!rc && c->reply && !w->aside) /* the previous turn has no EV_TURN_END */
        rc = recover_turn(&w->db, c->reply);
    c->reply = c->n_parts = c->text_channel = 0;
    buf_clear(&c->text);
    rc = rc ?:
         assign_turn_number(w, ev, &last) ?:
         (c->seq_n != last ? sequence_load(&w->db, c->session, (int)last, &c->seq) : SQLITE_OK) ?:
         insert_user(w, ev, ms) ?:
         insert_reply(w, ms);
    if (rc)
        return rc;
    c->seq.n = 0;
    ids_cat(&c->seq, ev->tokens.v, ev->tokens.n);
    c->seq_n = c->n;
    return set_title(w, ev) ?:
           db_do(&w->db, "UPDATE session SET updated_ms=? WHERE id=?", "is", ms, c->session);
}

static int write_pending_text(struct writer *w)
{
    struct cursor *c = &w->cur;
    if (!c->reply || !c->text.n)
        return SQLITE_OK;
    int rc = db_do(&w->db, "INSERT INTO turn_part(turn_id, k, channel, text) VALUES(?,?,?,?)",
                   "iiit", c->reply, (int64_t)c->n_parts, (int64_t)c->text_channel, c->text.p,
                   c->text.n);
    c->n_parts++;
    buf_clear(&c->text);
    return rc;
}

static int commit_session(struct writer *w)
{
    if (!w->cur.touched)
        return SQLITE_OK;
    w->cur.touched = false;
    int rc = write_pending_text(w);
    return rc || !w->cur.stored ? rc : chain_seal(&w->db, w->cur.session);
}

int write_commit(struct writer *w)
{
    return (w->texts.fresh.n ? head_add_row(&w->db, "tokenizer", w->texts.tokenizer) : SQLITE_OK) ?:
           cursors_each(w, commit_session);
}

static int write_text(struct writer *w, const struct event *ev)
{
    struct cursor *c = &w->cur;
    int rc = ev->channel == c->text_channel ? SQLITE_OK : write_pending_text(w);
    c->text_channel = ev->channel;
    buf_add(&c->text, ev->text.p, ev->text.n);
    return rc;
}

static int store_tree(struct writer *w, const struct event *ev, int64_t step)
{
    FREED(buf_free) struct buf packed = {0};
    tree_pack(ev->tree, &packed);
    int rc = db_do(&w->db, "INSERT INTO tree(step_id, nodes) VALUES(?,?)", "ib", step, packed.p,
                   packed.n);
    return rc ?: store_texts(w, ev->tree->token, ev->tree->n);
}

static int write_pages(struct writer *w, const struct event *ev, int64_t step)
{
    FREED(buf_free) struct buf packed = {0};
    page_pack(&ev->lengths, ev->pages, ev->n_pages, &packed);
    return db_do(&w->db, "INSERT INTO pages(step_id, events) VALUES(?,?)", "ib", step, packed.p,
                 packed.n);
}

/* The best tokens of a step as a server reported them. */
static int store_tops(struct writer *w, const struct tops *t, int64_t step)
{
    int rc = SQLITE_OK;
    for (int i = 0, k = -1, rank = 0; !rc && t && i < t->n; i++) {
        const struct top *x = &t->at[i];
        rank = x->k == k ? rank + 1 : 0;
        k = x->k;
        bool utf8 = x->text && utf8_check(x->text, (size_t)x->n) &&
                    !memchr(x->text, 0, (size_t)x->n);
        rc = db_do(&w->db, "INSERT OR IGNORE INTO top(step_id, k, rank, token, logp, text)"
                   " VALUES(?,?,?,nullif(?,-1),?,?)",
                   !x->text ? "iiiidn" : utf8 ? "iiiidt" : "iiiidb", step, (int64_t)k,
                   (int64_t)rank, (int64_t)x->id, (double)x->logp, x->text, (size_t)x->n);
    }
    return rc;
}

static int insert_step(struct writer *w, const struct event *ev, bool facts)
{
    static struct token_fact none; /* of no tokens the facts are known */
    struct step_row r = {.rec = ev->rec, .tokens = ev->tokens};
    if (facts)
        r.facts = ev->tokens.n ? ev->facts : &none;
    sqlite3_stmt *st = db_cached(&w->db, "INSERT INTO step(turn_id, n" STEP_COLUMNS(COLUMN_NAME)
                                 ") VALUES(?,?" STEP_COLUMNS(COLUMN_MARK) ")",
                                 "ii" STEP_COLUMNS(COLUMN_NULL), w->cur.reply, (int64_t)ev->step);
    return db_run(&w->db, st, st ? columns_bind(st, 3, step_columns, N_STEP_COLUMNS, &r) : 0);
}

static int write_step(struct writer *w, const struct event *ev, enum log_level level)
{
    bool tree = level >= LOG_TREE;
    int rc = insert_step(w, ev, tree);
    int64_t step = sqlite3_last_insert_rowid(w->db.h);
    if (!rc)
        rc = store_texts(w, ev->tokens.v, ev->tokens.n);
    for (int i = 0; !rc && tree && ev->facts && i < ev->tokens.n; i++)
        rc = store_texts(w, &ev->facts[i].rival, 1);
    if (!rc && tree && ev->tree)
        rc = store_tree(w, ev, step);
    if (!rc && tree)
        rc = store_tops(w, ev->tops, step);
    bool paged = ev->rec.source == STEP_COMPUTED || ev->n_pages;
    return !rc && tree && paged ? write_pages(w, ev, step) : rc;
}

static int store_served(struct writer *w, const struct event *ev)
{
    const struct served *s = ev->served;
    struct db *d = &w->db;
    int64_t reply = w->cur.reply;
    if (!s)
        return SQLITE_OK;
    sqlite3_stmt *st = db_cached(d, "INSERT INTO served(turn_id, tokens" SERVED_COLUMNS(COLUMN_NAME)
                                 SERVED_TIMES(COLUMN_NAME) ") VALUES(?,nullif(?,x'')"
                                 SERVED_COLUMNS(COLUMN_MARK) SERVED_TIMES(COLUMN_MARK) ")",
                                 "ib" SERVED_COLUMNS(COLUMN_NULL) SERVED_TIMES(COLUMN_NULL), reply,
                                 ev->prompt.v, (size_t)ev->prompt.n * sizeof *ev->prompt.v);
    int rc = db_run(d, st, st ? columns_bind(st, 3, served_columns, N_SERVED_COLUMNS, s) : 0);
    for (int i = 0; !rc && i < s->n_metric; i++)
        rc = db_do(d, "INSERT OR IGNORE INTO metric(turn_id, name, labels, before, after)"
                   " VALUES(?,?,?,?,?)", "issdd", reply, s->metric[i].name, s->metric[i].labels,
                   s->metric[i].before, s->metric[i].after);
    return rc;
}

static int write_turn_end(struct writer *w, const struct event *ev)
{
    struct cursor *c = &w->cur;
    struct db *d = &w->db;
    int rc = c->text_channel == 0 ? SQLITE_OK : write_pending_text(w);
    buf_clear(&c->text); /* pending text of the final channel: the event has the whole text */
    rc = rc ?:
         db_do(d, "DELETE FROM turn_part WHERE turn_id=? AND channel=0", "i", c->reply) ?:
         db_do(d, "UPDATE turn SET text=?, tokens=?, stop=?, draws1=?, n_steps=?, n_drafted=?,"
               " n_accepted=?, us_prefill=?, us_decode=? WHERE id=?", "tbsiiiiiii", ev->text.p,
               ev->text.n, ev->tokens.v, (size_t)ev->tokens.n * sizeof *ev->tokens.v,
               stop_name(ev->reason), (int64_t)c->draws, (int64_t)ev->n_steps,
               (int64_t)ev->n_drafted, (int64_t)ev->n_accepted, (int64_t)ev->us_prefill,
               (int64_t)ev->us_decode, c->reply) ?:
         turn_index(d, c->reply, "", ev->text.p, ev->text.n) ?:
         store_served(w, ev) ?:
         chain_add(d, c->session, LINK_TURN, c->reply) ?:
         db_do(d, "UPDATE session SET updated_ms=? WHERE id=?", "is", event_ms(w, ev),
               c->session);
    c->reply = 0;
    ids_cat(&c->seq, ev->tokens.v, ev->tokens.n);
    return rc;
}

/* ---- the rest ---- */

/* The text of an event in the log; op_read() (query.c) reads it back. */
static void line_text(const struct event *ev, struct buf *out)
{
    const struct forced_token *f = &ev->forced;
    buf_str(out, buf_text(&ev->text));
    buf_ints(out, ev->turns.v, ev->turns.n); /* "1 2 4" */
    if (f->step)
        buf_printf(out, "%d %d", f->step, f->token);
}

static int write_line(struct writer *w, const struct event *ev, const char *kind)
{
    struct cursor *c = &w->cur;
    FREED(buf_free) struct buf text = {0};
    line_text(ev, &text);
    const char *op = ev->kind == EV_OP                       ? op_name(ev->op)
                     : ev->kind == EV_FAULT && ev->at.rule ? fault_rule(ev->at.rule)
                                                             : NULL;
    int turn = ev->turn ? ev->turn + c->shift : 0;
    return store_session(w, ev) ?:
           db_do(&w->db, "INSERT INTO event(session_id, turn, step, kind, op, text, created_ms)"
                 " VALUES(?,?,?,?,?,?,?)", "siisssi", c->session, (int64_t)turn,
                 (int64_t)ev->step, kind, op, text.p, event_ms(w, ev)) ?:
           chain_add(&w->db, c->session, LINK_EVENT, sqlite3_last_insert_rowid(w->db.h));
}

/* A session beside the others has ended with its turn. */
static int end_beside(struct writer *w)
{
    int rc = write_pending_text(w) ?: end_run(w, false);
    if (!rc)
        cursor_free(&w->cur);
    return rc;
}

int write_event(struct writer *w, const struct event *ev, enum log_level level, bool *ended)
{
    struct cursor *c = &w->cur;
    *ended = false;
    if (ev->kind == EV_SESSION)
        return begin_session(w, ev, level);
    if (!*ev->session)
        return SQLITE_OK; /* the event belongs to no session */
    if (!cursors_switch(w, ev->session)) {
        int begun = begin_session(w, ev, level);
        if (begun)
            return begun;
    }
    int rc = touch(w);
    if (rc)
        return rc;
    if (ev->kind == EV_OP)
        settings_follow(c, ev);
    if (ev->kind == EV_STEP)
        c->draws = ev->rec.draws;
    /* a turn that was begun is ended even if the level is LOG_OFF now */
    if (ev->kind == EV_TURN_END && (c->reply || c->beside)) {
        *ended = c->reply != 0;
        rc = c->reply ? write_turn_end(w, ev) : SQLITE_OK;
        return rc || !c->beside ? rc : end_beside(w);
    }
    if (level == LOG_OFF)
        return SQLITE_OK;
    switch (ev->kind) {
    case EV_TURN_BEGIN: return write_turn_begin(w, ev);
    case EV_TEXT: return c->reply ? write_text(w, ev) : SQLITE_OK;
    case EV_STEP: return c->reply && level >= LOG_STEPS ? write_step(w, ev, level) : SQLITE_OK;
    case EV_OP: return write_line(w, ev, "op");
    case EV_NOTICE: return write_line(w, ev, "notice");
    case EV_FAULT: return write_line(w, ev, "fault");
    case EV_SESSION: case EV_PREFILL: case EV_TURN_END: case EV_PAUSE: case EV_PROBE:
    case EV_WHAT_IF: case EV_JOB_BEGIN: case EV_JOB_STEP: case EV_JOB_END: break;
    case EV_BATCH_BEGIN: case EV_BATCH_TEXT: case EV_BATCH_REPLY: case EV_BATCH_END:
    case EV_CALIBRATION: break; /* event_to_log() has made notices of those that are kept */
    }
    return SQLITE_OK;
}

void about_free(struct history_about *a)
{
    char **s = (char **)a;
    for (size_t i = 0; i < sizeof *a / sizeof *s; i++)
        free(s[i]);
}
