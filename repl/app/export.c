/* export.c - a session as Markdown, for people. JSON lines, for machines, are history/log/export.c.
 *
 * Text passes the same sanitiser as everything that reaches a terminal (repl/text/text.c), except
 * that tabs stay tabs, because users copy code out of the file. */
#include <limits.h>

#include "history/evidence/hazards.h"
#include "kernels/ascii.h"
#include "kernels/when.h"
#include "repl/compare/facts.h"
#include "repl/repl.h"

static void export_piece(void *arg, enum text_piece, const char *s, size_t n, const char *,
                         size_t)
{
    buf_add(arg, s, n);
}

static void add_text(struct buf *b, const char *s, size_t n)
{
    text_scan(s, n, export_piece, b);
}

/* Appends text with its line breaks replaced: the line must stay one line. */
static void add_line(struct buf *b, const char *s)
{
    text_sanitise(b, s ? s : "", s ? strlen(s) : 0, false);
}

static void add_named(struct buf *b, const char *name, const char *text)
{
    if (!text || !*text)
        return;
    buf_printf(b, "- %s: ", name);
    add_line(b, text);
    buf_char(b, '\n');
}

static void markdown_head(struct buf *b, const struct session_row *row, const char *about,
                          const struct hdb_past *p, const struct pack_about *packed)
{
    char when[20];
    FREED(buf_free) struct buf computed = {0}, pack = {0};
    FREED(free_at) char *draft = facts_value(about, "draft_dir");
    when_text(row->created_ms, when);
    facts_computed(about, &computed);
    buf_str(b, "# ");
    add_line(b, row->title && *row->title ? row->title : "Session");
    buf_printf(b, "\n\n- session: %s, begun %s\n", row->id, when);
    if (row->parent[0])
        buf_printf(b, "- fork: of %s after turn %d\n", row->parent, row->fork_turn);
    if (packed)
        facts_pack(packed, &pack);
    add_named(b, "pack", pack.p);
    add_named(b, "model", row->model);
    add_named(b, "draft", draft && *draft ? draft : "none");
    add_named(b, "computed", computed.p);
    add_named(b, "system", p->system);
}

/* Which turns ran with a fault switched on or without the checker. */
static bool hazards(struct buf *b, struct hdb *d, const char *session, struct err *e)
{
    FREED(buf_free) struct buf all = {0};
    bool ok = hdb_hazards(d, session, true, " · ", &all, e);
    if (all.n)
        buf_printf(b, "\n**%s**\n", all.p);
    return ok;
}

/* All settings for the first turn, then changes only; hazards for every turn. */
static void settings(struct buf *b, const char *before, const char *lines)
{
    FREED(buf_free) struct buf text = {0}, danger = {0};
    if (before)
        facts_changes(before, lines, &text);
    else
        facts_settings(lines, &text);
    hazards_of_settings(lines, " · ", &danger);
    if (text.n) {
        buf_printf(b, "\n*%s: ", before ? "now" : "settings");
        add_line(b, text.p);
        buf_str(b, "*\n");
    }
    if (danger.n) {
        buf_str(b, "\n**");
        add_line(b, danger.p);
        buf_str(b, "**\n");
    }
}

/* Why a reply ended, in words. */
static const char *end_of_reply(enum stop_reason stop)
{
    static const char *const text[] = {[STOP_END] = "complete",
                                       [STOP_MAX] = "ended at max_tokens",
                                       [STOP_CONTEXT] = "ended where the context was full",
                                       [STOP_CANCEL] = "stopped by the user",
                                       [STOP_KV_FULL] = "ended where a KV pool was full",
                                       [STOP_FAULT] = "ended by a fault",
                                       [STOP_DEVICE] = "ended by a failure of the device",
                                       [STOP_CRASHED] = "cut off by the end of the program",
                                       [STOP_OPEN] = "still running"};
    return text[stop];
}

static void turn(struct buf *b, const struct past_pair *t, const char *before)
{
    const struct turn_row *u = &t->user, *r = &t->reply;
    const char *word = past_mark(t->state);
    char mark[40] = "";
    if (*word)
        snprintf(mark, sizeof mark, " (%s)", word);
    buf_printf(b, "\n## %d. You%s%s\n", u->n, u->regen ? " (again)" : "", mark);
    if (t->inherited)
        buf_printf(b, "\n*inherited from %s*\n", u->session);
    settings(b, before, u->sampling);
    buf_char(b, '\n');
    add_text(b, u->text, u->text_n);
    buf_char(b, '\n');
    if (!r->n)
        return;
    buf_printf(b, "\n## %d. Reply%s\n\n", r->n, mark);
    add_text(b, r->text, r->text_n);
    buf_str(b, "\n\n*");
    add_line(b, end_of_reply(r->stop));
    buf_printf(b, "; %d token%s in %d step%s, %d of %d drafted tokens accepted*\n", r->tokens.n,
               plural(r->tokens.n), r->n_steps, plural(r->n_steps), r->n_accepted, r->n_drafted);
}

const char *export_format_of(const char *file)
{
    return !file                       ? NULL
           : ends_with(file, ".md")    ? "md"
           : ends_with(file, ".jsonl") ? "jsonl"
                                       : NULL;
}

bool export_markdown(struct hdb *d, const char *session, const char *path, struct err *e)
{
    FREED(session_row_free) struct session_row row = {0};
    FREED(hdb_past_free) struct hdb_past p = {0};
    FREED(buf_free) struct buf about = {0}, text = {0};
    bool ok = hdb_find(d, session, &row, e) && hdb_about(d, row.id, &about, e) &&
              hdb_past(d, row.id, INT_MAX, &p, e);
    if (ok)
        markdown_head(&text, &row, about.p, &p, hdb_packed(d));
    ok = ok && hazards(&text, d, row.id, e);
    for (int i = 0; ok && i < p.n; i++)
        turn(&text, &p.turn[i], i ? p.turn[i - 1].user.sampling : NULL);
    ok = ok && hdb_save(path, text.p, text.n, e);
    return ok;
}
