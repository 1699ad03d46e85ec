/* import.c - `aerie import FILE...`: stores recorded requests to servers and their replies
 * (engine/remote/records.h) as sessions of the log, one for each record.
 *
 * A record is imported completely or not at all, and once: a line that the log already has from a
 * file of this name, with the same request, is passed over. So a killed import is continued by
 * repeating it. Facts that a file does not have stay "not reported". A line with only a request
 * waits for the line with its reply (the same custom_id), in this file or in a later one. Of a
 * server's log with lines of kv_canary (engine/tools/canary.h) the violations become one session
 * with page maps. */
#include <errno.h>
#include <limits.h>
#include <math.h>

#include "engine/remote/records.h"
#include "engine/tools/canary.h"
#include "kernels/json_read.h"
#include "kernels/utf8.h"
#include "repl/cli/cli.h"
#include "repl/cli/session_events.h"
#include "repl/compare/facts.h"
#include "repl/process/interrupt.h"

enum { LINE_BYTES = 16 << 20, MOST_RECORDS = 100000, COMPLAINTS = 20, PIECE = 32 };
static const size_t most_waiting = (size_t)512 << 20; /* bytes of requests that wait */

enum { ORIGIN = 33 };

/* Where a record is from. */
struct origin {
    const char *file;
    int line;
    char sum[ORIGIN]; /* of these two, the line and its request's line, as hexadecimal digits */
};

struct import_waiting {
    struct record r;
    struct origin from;
};

struct import {
    struct cli *c;
    struct history *log;
    struct import_waiting *wait; /* requests without a reply so far */
    int n_wait;
    size_t wait_bytes;
    int n, bad, no_reply; /* sessions, lines that were no record, sessions without a reply */
    int again;            /* records that the log had already */
    char (*known)[ORIGIN]; /* (n_known) of the log's sessions, sorted */
    int n_known;
    char first[SESSION_ID], last[SESSION_ID];
    struct err fault; /* ends the import */
    struct stop stop;
};

static void complain(struct import *m, const char *file, int line, const char *why)
{
    if (m->bad++ >= COMPLAINTS)
        return;
    FREED(free_at) char *text = xasprintf("%s line %d: %s", file, line, why);
    cli_complain(NULL, text);
}

/* ---- what the log has already ---------------------------------------------------------------- */

static bool add_known(const char *config, void *arg)
{
    struct import *m = arg;
    FREED(free_at) char *sum = facts_value(config, "record");
    if (sum && strlen(sum) == ORIGIN - 1)
        memcpy(APPEND(m->known, m->n_known), sum, ORIGIN);
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static bool read_known(struct import *m, struct err *e)
{
    FREED(hdb_close_at) struct hdb *d = cli_open_db(m->c, e);
    bool ok = d && hdb_configs(d, "record", add_known, m, e) >= 0;
    if (m->n_known)
        qsort(m->known, (size_t)m->n_known, sizeof *m->known, by_text);
    return ok;
}

static bool is_known(struct import *m, const struct origin *from)
{
    bool known = m->n_known && bsearch(from->sum, m->known, (size_t)m->n_known, sizeof *m->known,
                                       by_text);
    m->again += known;
    return known;
}

/* request: the sum of the request's line, or "". */
static struct origin origin_of(const char *file, int line, const char *text, size_t n,
                               const char *request)
{
    struct origin from = {.file = file, .line = line};
    char hex[65];
    struct sha256 s;
    FREED(free_at) char *begin = xasprintf("%s\n%d\n%s\n", file, line, request);
    sha256_init(&s);
    sha256_add(&s, begin, strlen(begin));
    sha256_add(&s, text, n);
    sha256_end_hex(&s, hex);
    snprintf(from.sum, sizeof from.sum, "%.*s", ORIGIN - 1, hex);
    return from;
}

/* ---- a record becomes a session -------------------------------------------------------------- */

static void begin_turn(struct session_events *s, const char *user, const struct ids *prompt,
                       const struct record *r)
{
    s->turn++;
    struct event ev = session_event(s, EV_TURN_BEGIN);
    buf_str(&ev.text, user);
    if (prompt)
        ids_cat(&ev.tokens, prompt->v, prompt->n);
    ev.n_tokens = prompt && prompt->n ? prompt->n
                  : r && r->count.prompt > 0 ? (int)r->count.prompt : 0;
    ev.n_reused = r && r->count.cached > 0 ? (int)r->count.cached : 0;
    session_put(s, &ev);
}

static void post_past(struct session_events *s, const struct past_turn *p)
{
    begin_turn(s, p->user, NULL, NULL);
    struct event ev = session_event(s, EV_TURN_END);
    ev.reason = STOP_END;
    ev.n_tokens = 1; /* the number is unknown, but not 0 */
    ev.served = served_new();
    buf_str(&ev.text, p->reply);
    session_put(s, &ev);
}

/* Posts tokens [first, first + n) of the reply as one step. drafted < 0: a piece. */
static void post_step(struct session_events *s, const struct record *r, int step, int first, int n,
                      int drafted, int accepted)
{
    struct event ev = session_event(s, EV_STEP);
    const struct answer_token *last = &r->token[first + n - 1];
    ev.step = step;
    ev.facts = xcalloc((size_t)n, sizeof *ev.facts);
    for (int i = 0; i < n; i++) {
        const struct answer_token *t = &r->token[first + i];
        ids_add(&ev.tokens, t->id);
        ev.facts[i] =
            (struct token_fact){.logp = t->logp, .rival_logp = t->rival_logp, .rival = t->rival};
    }
    ev.rec = (struct step_rec){
        .kind = drafted > 0 ? STEP_SPEC : STEP_DECODE,
        .bonus = -1,
        .pos0 = (r->prompt.n ? r->prompt.n : (int)fmax(0, (double)r->count.prompt)) + first,
        .margin = last->logp - last->rival_logp,
        .source = STEP_PIECE};
    if (drafted >= 0) {
        ev.rec.source = STEP_REPORTED;
        ev.rec.rows = drafted + 1;
        ev.rec.drafted = drafted;
        ev.rec.accepted = accepted;
        ev.rec.bonus = n > accepted ? last->id : -1;
    }
    session_put(s, &ev);
}

/* Posts the steps of the server if the record has them (the first token comes from the prompt's
 * pass), else pieces of a fixed length. */
static int post_steps(struct session_events *s, const struct record *r)
{
    int n = 0, at = 0;
    bool known = r->accepted.n > 0 && r->n_token > 0;
    if (known) {
        post_step(s, r, ++n, 0, 1, 0, 0);
        at = 1;
    }
    for (int i = 0; known && i < r->accepted.n && at < r->n_token; i++) {
        int k = min_int(r->accepted.v[i] + 1, r->n_token - at);
        int accepted = min_int(r->accepted.v[i], k); /* servers may count behind the end */
        post_step(s, r, ++n, at, k, max_int(accepted, i < r->drafted.n ? r->drafted.v[i] : 0),
                  accepted);
        at += k;
    }
    for (; at < r->n_token; at += min_int(PIECE, r->n_token - at))
        post_step(s, r, ++n, at, min_int(PIECE, r->n_token - at), -1, 0);
    return n;
}

static struct served *served_of(const struct record *r)
{
    struct served *s = answer_served(&r->count);
    s->prompt_ids = r->prompt.n > 0;
    s->reply_ids = r->n_token > 0;
    snprintf(s->finish, sizeof s->finish, "%s", r->finish);
    return s;
}

static void post_reply(struct session_events *s, const struct record *r)
{
    struct event ev;
    if (r->thought && *r->thought) {
        ev = session_event(s, EV_TEXT);
        ev.channel = 1;
        buf_str(&ev.text, r->thought);
        session_put(s, &ev);
    }
    int n = post_steps(s, r);
    if (r->error || !r->reply)
        session_put_text(s, EV_FAULT, OP_OPEN,
                  r->error ? r->error : "the file has no reply to this request");
    ev = session_event(s, EV_TURN_END);
    ev.reason = r->reason;
    ev.n_steps = n;
    ev.n_tokens = r->count.generated >= 0 ? (int)r->count.generated
                  : r->n_token        ? r->n_token
                                      : r->answer && *r->answer;
    ev.n_drafted = r->count.drafted > 0 ? (int)r->count.drafted : 0;
    ev.n_accepted = r->count.accepted > 0 ? (int)r->count.accepted : 0;
    ev.served = served_of(r);
    buf_str(&ev.text, r->answer ? r->answer : "");
    for (int i = 0; i < r->n_token; i++)
        ids_add(&ev.tokens, r->token[i].id);
    session_put(s, &ev);
}

static void post_notes(struct session_events *s, const struct record *r,
                       const struct origin *from)
{
    FREED(buf_free) struct buf note = {0};
    buf_printf(&note, "imported from %s line %d", from->file, from->line);
    if (r->name)
        buf_printf(&note, ", \"%s\"", r->name);
    if (!r->request)
        buf_str(&note, "; the request is not in the file");
    if (r->choices > 1)
        buf_printf(&note, "; %d choices, this is the first", r->choices);
    if (r->joined)
        buf_printf(&note, "; %d message%s joined with others of the same side", r->joined,
                   plural(r->joined));
    if (r->left_out)
        buf_printf(&note, "; %d part%s of messages that are no text left out", r->left_out,
                   plural(r->left_out));
    session_put_text(s, EV_NOTICE, OP_OPEN, note.p);
}

/* The facts of the session's origin for the log. more: further facts, lines "name=value". */
static void describe(struct import *m, const struct record *r, const struct origin *from,
                     const char *more)
{
    char when[32] = "";
    FREED(buf_free) struct buf config = {0};
    FREED(free_at) char *url = xasprintf("%s, imported", from->file); /* a row of `server` a file */
    if (r->created > 0 && r->created < 1e11)
        snprintf(when, sizeof when, "%.0f", r->created);
    buf_printf(&config, "backend=remote\nserver=%s\nimported=%s\nimported_line=%d\nrecord=%s\n"
               "raw=%d\n", r->server, from->file, from->line, from->sum, r->raw);
    if (when[0])
        buf_printf(&config, "created=%s\n", when);
    buf_str(&config, more);
    for (char *p = config.p; p && *p; p++) /* a name of a file or a server is one line */
        if ((unsigned char)*p < ' ' && *p != '\n')
            *p = '?';
    struct history_about about = {.version = AERIE_VERSION,
                                  .device = "",
                                  .flags = facts_build(),
                                  .model_dir = r->model,
                                  .model_sha = "",
                                  .draft_sha = "",
                                  .tokenizer_sha = "",
                                  .config = config.p,
                                  .server = r->server[0] ? r->server
                                                         : "a server that the file does not name",
                                  .server_version = "",
                                  .server_url = url,
                                  .server_facts = "{}"};
    history_describe(m->log, &about, NULL);
}

static void one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ')
            *s = '?';
}

/* Ends a session: the next description is of the next one. */
static bool stored(struct import *m, const struct session_events *s)
{
    enum { MS = 30000 };
    memcpy(m->n ? m->last : m->first, s->id, sizeof s->id);
    memcpy(m->last, s->id, sizeof s->id);
    m->n++;
    if (history_flush_unless(m->log, MS, interrupt_waits))
        return true;
    if (interrupt_waits())
        return false;
    struct history_status st;
    history_status(m->log, &st);
    return err_set(&m->fault, ERR_DB, "the log does not take the sessions: %s%.189s",
                   st.error[0] ? "not saved: " : "no answer for 30 s", st.error);
}

static bool store(struct import *m, struct record *r, const struct origin *from)
{
    struct session_events s = {.log = m->log};
    if (is_known(m, from))
        return true;
    if (m->n == MOST_RECORDS)
        return err_set(&m->fault, ERR_USAGE, "more than %d records; the first %d are imported",
                       MOST_RECORDS, MOST_RECORDS);
    one_line(r->server);
    one_line(r->model);
    session_events_begin(&s);
    describe(m, r, from, "");
    session_put_text(&s, EV_SESSION, OP_OPEN, NULL);
    session_put_text(&s, EV_OP, OP_OPEN, r->settings.p);
    if (r->system)
        session_put_text(&s, EV_OP, OP_SYSTEM, r->system);
    post_notes(&s, r, from);
    for (int i = 0; i < r->n_past; i++)
        post_past(&s, &r->past[i]);
    begin_turn(&s, r->text ? r->text : "", &r->prompt, r);
    post_reply(&s, r);
    m->no_reply += !r->reply;
    return stored(m, &s);
}

/* ---- kv_canary ------------------------------------------------------------------------------- */

enum { MOST_VIOLATIONS = 4096, MOST_SLOT = 1 << 24 };

/* Whether the pages of a violation can be shown: page 0 is no cell's. */
static bool can_show(const struct canary_line *l, int size)
{
    return l->slot >= size && l->slot < MOST_SLOT && l->position >= 0 && l->position < MOST_SLOT;
}

/* What all violations need: the largest slot, and the tokens of a context with all positions. */
struct canary_room {
    int size; /* of a page */
    int64_t slot, context;
};

/* A step that a server reported, with pages: position pos0 in the pool of the page that it takes is
 * a violated cell (repl/recorded/views.c shows it). The first step empties the pools. */
static void post_violation(struct session_events *s, const struct canary_line *l, int step,
                           const struct canary_room *room, int64_t length)
{
    int size = room->size;
    struct event ev = session_event(s, EV_STEP);
    int n = 0;
    ev.pages = xcalloc(3, sizeof *ev.pages);
    for (uint8_t p = POOL_FULL; step == 1 && p <= POOL_SWA; p++)
        ev.pages[n++] = (struct page_event){.pool = p, .op = PAGE_RESET, .column = size,
                                            .page = (int32_t)(room->slot / size) + 1,
                                            .refs = p == POOL_FULL ? (int32_t)room->context : 0};
    ev.pages[n++] = (struct page_event){.pool = (uint8_t)l->pool, .op = PAGE_TAKE,
                                        .holder = HOLDER_SESSION, .page = (int32_t)(l->slot / size),
                                        .column = (int32_t)(l->position / size), .refs = 1};
    ev.n_pages = n;
    ev.lengths = (struct context_lengths){.length = (int32_t)length, .committed = (int32_t)length};
    ev.step = step;
    ev.rec = (struct step_rec){.kind = STEP_DECODE, .bonus = -1, .pos0 = (int)l->position,
                               .rows = 1, .margin = NAN, .source = STEP_REPORTED};
    session_put(s, &ev);
}

static struct canary_room room_of(const struct canary *k, int size)
{
    struct canary_room room = {.size = size};
    FOR_EACH(const struct canary_line, l, k->v, k->n)
        if (can_show(l, size)) {
            room.slot = l->slot > room.slot ? l->slot : room.slot;
            room.context = l->position >= room.context ? l->position + 1 : room.context;
        }
    return room;
}

/* A step for each violation; the text of each in the reply. */
static int post_violations(struct session_events *s, const struct canary *k,
                           const struct canary_room *room)
{
    int64_t length = 0;
    FREED(buf_free) struct buf text = {0};
    int n = 0, size = room->size;
    for (int i = 0; i < k->n && n < MOST_VIOLATIONS; i++) {
        const struct canary_line *l = &k->v[i];
        if (!can_show(l, size))
            continue;
        length = l->position + 1 > length ? l->position + 1 : length;
        post_violation(s, l, ++n, room, length);
        buf_printf(&text, "step %d: %s ", n, l->tag);
        canary_reasons(l->reasons, &text);
        buf_printf(&text, ", slot %lld (page %lld, cell %lld), position %lld, token %lld\n",
                   (long long)l->slot, (long long)(l->slot / size), (long long)(l->slot % size),
                   (long long)l->position, (long long)l->stored_token);
    }
    struct event ev = session_event(s, EV_TURN_END);
    ev.reason = STOP_END;
    ev.n_steps = n;
    ev.n_tokens = n;
    ev.served = served_new();
    buf_str(&ev.text, buf_text(&text));
    session_put(s, &ev);
    return n;
}

static struct origin origin_of_canary(const struct canary *k, const char *file)
{
    FREED(buf_free) struct buf all = {0};
    buf_printf(&all, "%lld\n", (long long)k->total);
    FOR_EACH(const struct canary_line, l, k->v, k->n)
        buf_printf(&all, "%s %u %d %lld %lld %lld\n", l->tag, (unsigned)l->reasons, (int)l->pool,
                   (long long)l->slot, (long long)l->position, (long long)l->stored_token);
    return origin_of(file, (int)(k->v[0].line < INT_MAX ? k->v[0].line : INT_MAX), all.p, all.n,
                     "");
}

/* Stores the violations of a server's log as one session, whose page map shows the pages that they
 * name. */
static bool store_canary(struct import *m, const struct canary *k, const char *file)
{
    struct session_events s = {.log = m->log};
    struct record r = {0};
    int size = max_int(1, m->c->opt.engine.page_size);
    const struct canary_room room = room_of(k, size);
    const struct origin from = origin_of_canary(k, file);
    if (is_known(m, &from))
        return true;
    char *facts = xasprintf("page_size=%d\ncontext=%lld\n", size, (long long)room.context);
    snprintf(r.server, sizeof r.server, "SGLang");
    session_events_begin(&s);
    describe(m, &r, &from, facts);
    free(facts);
    session_put_text(&s, EV_SESSION, OP_OPEN, NULL);
    session_put_text(&s, EV_OP, OP_OPEN, NULL);
    char *note = xasprintf("imported from %s: %lld violations of kv_canary; pages of %d; a step "
                           "for each, whose map shows the pages named so far", file,
                           (long long)k->total, size);
    session_put_text(&s, EV_NOTICE, OP_OPEN, note);
    free(note);
    begin_turn(&s, "kv_canary", NULL, NULL);
    int n = post_violations(&s, k, &room);
    if (n < k->n)
        err_print("%s: %d of %d violations have no page that a map can show", file, k->n - n, k->n);
    return stored(m, &s);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static size_t weight(const struct record *r)
{
    size_t n =
        sizeof *r + (r->text ? strlen(r->text) : 0) + (size_t)r->prompt.n * sizeof *r->prompt.v;
    for (int i = 0; i < r->n_past; i++)
        n += strlen(r->past[i].user) + strlen(r->past[i].reply) + sizeof *r->past;
    return n;
}

static void wait_for_reply(struct import *m, struct record *r, const struct origin *from)
{
    *APPEND(m->wait, m->n_wait) = (struct import_waiting){*r, *from};
    m->wait_bytes += weight(r);
    if (m->wait_bytes > most_waiting)
        err_set(&m->fault, ERR_USAGE, "%s line %d: requests of more than %zu MiB wait for their "
                "replies", from->file, from->line, most_waiting >> 20);
    *r = (struct record){0};
}

/* Finds the request of a reply, whose sum goes to `sum`. It searches from the oldest, which is a
 * match at once if both files have one order. */
static void find_request(struct import *m, struct record *r, char sum[ORIGIN])
{
    for (int i = 0; r->name && i < m->n_wait; i++)
        if (m->wait[i].r.name && strcmp(m->wait[i].r.name, r->name) == 0) {
            m->wait_bytes -= weight(&m->wait[i].r);
            record_join(r, &m->wait[i].r);
            memcpy(sum, m->wait[i].from.sum, ORIGIN);
            CUT(m->wait, m->n_wait, i);
            return;
        }
}

static void take_line(struct import *m, const char *file, int line, const struct buf *text)
{
    struct record r;
    struct err e;
    if (!record_read(&r, text->p, text->n, &e)) {
        if (!stop_asked(&m->stop))
            complain(m, file, line, e.msg);
        return;
    }
    char request[ORIGIN] = "";
    if (r.reply && !r.request)
        find_request(m, &r, request);
    const struct origin from = origin_of(file, line, text->p, text->n, request);
    if (r.request && !r.reply && r.name)
        wait_for_reply(m, &r, &from);
    else
        store(m, &r, &from);
    record_free(&r);
}

/* A line without its line break: 1; 0 at the end; -1: longer than LINE_BYTES, and skipped; -2: it
 * has a NUL byte, as a file of holes does, which may claim any size. A signal ends a line that does
 * not end. */
static int next_line(FILE *f, struct buf *line)
{
    enum { LOOK_BYTES = 1 << 16 };
    int c;
    uint64_t n = 0;
    buf_clear(line);
    while ((c = getc_unlocked(f)) != EOF && c != '\n') {
        if (++n % LOOK_BYTES == 0 && interrupt_waits())
            return 0;
        if (c == '\0')
            return -2;
        if (line->n <= LINE_BYTES)
            buf_char(line, (char)c);
    }
    return line->n > LINE_BYTES ? -1 : n > 0 || c == '\n';
}

static bool is_pickle(const struct buf *line)
{
    return line->n >= 2 && (unsigned char)line->p[0] == 0x80 && line->p[1] >= 2 && line->p[1] <= 5;
}

/* The first line of what aerie export writes (history/log/export.c). */
static bool is_export(const struct buf *line)
{
    static const char begin[] = "{\"aerie_export\":";
    return line->n >= strlen(begin) && memcmp(line->p, begin, strlen(begin)) == 0;
}

static bool read_file(struct import *m, const char *asked, struct err *e)
{
    const char *slash = strrchr(asked, '/'), *file = strcmp(asked, "-") == 0 ? "standard input"
                                                     : slash                 ? slash + 1
                                                                             : asked;
    bool piped = strcmp(asked, "-") == 0;
    struct canary canary;
    if (!piped && canary_is(asked) && canary_read(&canary, asked, &m->stop, &(struct err){0})) {
        store_canary(m, &canary, file);
        canary_free(&canary);
        *e = m->fault;
        return !m->fault.kind;
    }
    FILE *f = piped ? stdin : fopen(asked, "re");
    FREED(buf_free) struct buf line = {0};
    int got = 1;
    if (!f)
        return err_set(e, ERR_USAGE, "cannot open %s: %s", asked, strerror(errno));
    for (int n = 1; !m->fault.kind && !stop_asked(&m->stop) && (got = next_line(f, &line)) != 0;
         n++) {
        if (n == 1)
            utf8_drop_mark(&line);
        if (n == 1 && got != -1 && is_pickle(&line)) {
            err_set(&m->fault, ERR_USAGE, "%s is a Python pickle; expected JSON lines: python3 "
                    "%s/sglang_dump.py %s | aerie import -", asked, AERIE_SHARE, asked);
            break;
        }
        if (n == 1 && got == 1 && is_export(&line)) {
            err_set(&m->fault, ERR_USAGE, "%s is an export of aerie's log, which is for other "
                    "programs; expected records of a server (what another aerie opens is made by "
                    "aerie pack ID --with-text)", asked);
            break;
        }
        if (got == -2)
            err_set(&m->fault, ERR_USAGE, "%s line %d has a NUL byte; expected lines of JSON",
                    asked, n);
        else if (got < 0)
            complain(m, file, n, "longer than 16 MiB; expected a record a line");
        else if (strspn(buf_text(&line), " \t\r") < line.n)
            take_line(m, file, n, &line);
    }
    if (ferror(f) && !m->fault.kind)
        err_set(&m->fault, ERR_USAGE, "cannot read %s: %s", asked, strerror(errno));
    if (!piped)
        fclose(f);
    *e = m->fault;
    return !m->fault.kind;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void print_result(const struct import *m)
{
    const struct printer *to = cli_answer(m->c, '{');
    print_add(to, ST_TEXT, "%d{sessions} session%s imported", m->n, plural(m->n));
    print_add(to, ST_TEXT, m->no_reply ? ", %d{without_reply} without a reply"
                                          : "\f%d{without_reply}", m->no_reply);
    print_add(to, ST_TEXT, m->again ? ", %d{already} already in the log" : "\f%d{already}",
              m->again);
    print_add(to, ST_TEXT, m->bad ? "; %d{bad_lines} line%s left out" : "\f%d{bad_lines}%s",
              m->bad, plural(m->bad));
    print_add(to, ST_TEXT, "\f%s{first}%s{last}", m->n ? m->first : NULL, m->n ? m->last : NULL);
    print_end(to);
    cli_answer_end();
}

/* Reports the requests that have no reply in any file. */
static void store_rest(struct import *m)
{
    for (int i = 0; i < m->n_wait; i++) {
        if (!m->fault.kind && !stop_asked(&m->stop))
            store(m, &m->wait[i].r, &m->wait[i].from);
        record_free(&m->wait[i].r);
    }
    free(m->wait);
}

static bool close_log(struct import *m, struct err *e)
{
    /* SIGNAL_MS: the limit after a signal */
    enum { MOST_MS = 10000, SLICE_MS = 100, SIGNAL_MS = 700 };
    struct history_left left;
    bool ok = false;
    int left_ms = MOST_MS;
    for (; !ok && left_ms > 0; left_ms -= SLICE_MS) {
        if (interrupt_waits()) {
            history_hasten(m->log);
            left_ms = min_int(left_ms, SIGNAL_MS);
        }
        ok = history_finish(m->log, SLICE_MS, &left);
    }
    if (!ok && !left.failed)
        err_print("the last sessions are still being stored");
    ok = ok || history_join(m->log, &left);
    history_close(m->log);
    return ok || err_set(e, ERR_DB, "the last sessions are %s%.189s%s%.500s%s",
                         left.failed ? "not saved: " : "still being stored", left.why,
                         left.kept[0] ? "; kept in " : "", left.kept,
                         left.kept[0] ? ", the next start stores them" : "");
}

int cli_import(struct cli *c)
{
    struct import m = {.c = c};
    struct err e = {0};
    struct history_about none = {.version = AERIE_VERSION,
                                 .device = "",
                                 .flags = facts_build(),
                                 .model_dir = "",
                                 .model_sha = "",
                                 .draft_sha = "",
                                 .tokenizer_sha = "",
                                 .config = ""};
    FREED(free_at) char *path = cli_db_path(c);
    bool ok = cli_stop_open(&m.stop, &e);
    json_stop_on(&m.stop);
    m.log = ok ? history_open(path, LOG_TREE, &none, &e) : NULL;
    ok = m.log && read_known(&m, &e);
    if (ok)
        history_store_many(m.log);
    for (int i = 0; ok && i < c->n_word && !stop_asked(&m.stop); i++)
        ok = read_file(&m, c->word[i], &e);
    if (m.log) {
        store_rest(&m);
        if (ok && m.fault.kind)
            e = m.fault;
        ok = close_log(&m, &e) && ok && !m.fault.kind;
        if (m.bad > COMPLAINTS)
            err_print("%d more lines are no records", m.bad - COMPLAINTS);
        if (m.n || ok)
            print_result(&m);
    }
    free(m.known);
    int rc = !ok ? cli_fail(&e) : m.bad ? m.n || m.again ? ERR_NEGATIVE : ERR_USAGE : 0;
    json_stop_on(NULL);
    return cli_stop_close(rc);
}
