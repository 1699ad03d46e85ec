/* chat.c - chooses a format, and renders conversations by its row of the table. */
#include "models/chat/parts.h"
#include "kernels/json_read.h"
#include "models/checkpoint/gguf.h"

#include <jansson.h>
#include <time.h>
#include <unistd.h>

/* ---- an earlier reply ---- */

/* Appends a reply's ids without gemma-4's thoughts, closed or not, and without the stop token. */
static void put_reply_ids(struct render *r, const struct ids *ids)
{
    const struct chat *c = r->c;
    int n = ids->n, from = 0;
    for (int i = 0; i < c->n_stop; i++)
        if (n == ids->n && ids->v[n - 1] == c->stop[i])
            n--;
    if (c->format->think != THINK_CHANNEL) {
        put_ids(r, ids->v, n);
        return;
    }
    while (from < n) {
        int open = from, close;
        while (open < n && ids->v[open] != c->mark[MARK_CHANNEL])
            open++;
        put_ids(r, ids->v + from, open - from);
        for (close = open; close < n && ids->v[close] != c->mark[MARK_CHANNEL_END];)
            close++;
        from = close + 1;
    }
}

/* Whether the reply has a closed thought in tags; *text is set to the answer behind it. */
static bool answer_after_thought(const struct chat *c, const struct ids *ids, struct buf *text)
{
    static const char close[] = "</think>";
    int n = ids->n;
    while (n && tok_is_special(c->tok, ids->v[n - 1]) && ids->v[n - 1] != tok_find(c->tok, close))
        n--;
    tok_decode(c->tok, ids->v, n, text);
    char *at = NULL;
    for (char *p = text->p; p && (p = memmem(p, text->n - (size_t)(p - text->p), close, 8)); p++)
        at = p;
    if (!at)
        return false;
    for (at += 8; *at == '\n';)
        at++;
    text->n -= (size_t)(at - text->p);
    memmove(text->p, at, text->n + 1);
    return true;
}

static const char *no_thought(const struct chat *c)
{
    return c->format->no_thought ? c->format->no_thought : "<think>\n\n</think>\n\n";
}

/* Appends a reply's content. Generated ids are used verbatim, so that they are found in the KV
 * cache; closed thoughts are omitted. */
static void put_reply(struct render *r, const struct message *m)
{
    const struct chat *c = r->c;
    FREED(buf_free) struct buf answer = {0};
    if (c->format->back == THOUGHT_ALWAYS || (c->format->back == THOUGHT_IF_OFF && r->quiet))
        put_str(r, no_thought(c));
    if (!m->ids.n) {
        put_text(r, m->text ? m->text : "", m->text ? strlen(m->text) : 0);
    } else if (c->format->think == THINK_TAGS && answer_after_thought(c, &m->ids, &answer)) {
        put_text(r, answer.p, answer.n);
    } else {
        if (c->open_thought)
            put_str(r, c->open_thought);
        put_reply_ids(r, &m->ids);
    }
}

/* ---- a conversation in turns ---- */

static void system_turn(struct render *r, const struct message *m)
{
    const struct chat *c = r->c;
    const int32_t mark = c->think_mark;
    bool think = r->style->think == THINK && mark >= 0;
    bool tags = r->style->tools && (c->tools == TOOLS_TAGS || c->tools == TOOLS_GEMMA4);
    if (!m && !c->system_default && !c->date_lines && !think && !tags)
        return;
    begin_message(r, ROLE_SYSTEM);
    if (think) {
        put_ids(r, &mark, 1);
        put_str(r, "\n");
    }
    if (r->style->tools && c->tools == TOOLS_LLAMA)
        put_str(r, "Environment: ipython\n");
    if (c->date_lines) {
        put_str(r, "Cutting Knowledge Date: December 2023\nToday Date: ");
        put_date(r, c->date, c->whole_month ? 0 : 3);
        put_str(r, "\n\n");
    }
    if (m)
        put_text(r, m->text, strlen(m->text));
    if (m && c->system_suffix)
        put_str(r, c->system_suffix);
    if (!m && c->system_default)
        put_str(r, c->system_default);
    if (tags) {
        put_str(r, c->tools == TOOLS_TAGS && (m || c->system_default) ? "\n\n" : "");
        put_tools(r);
    }
    end_message(r, ROLE_SYSTEM);
}

/* A reply that calls functions, with the n results behind it, within one turn: its text comes last.
 * The turn stays open for the answer, unless there is a text. */
static void put_called_turn(struct render *r, const struct message *m, int n)
{
    size_t len = m->text ? strlen(m->text) : 0;
    put_calls(r, m);
    put_results(r, m + 1, n);
    put_text(r, m->text ? m->text : "", len);
    trimmed(m->text ? m->text : "", &len);
    if (n == 0)
        put_mark(r, MARK_TOOL_RESPONSE);
    else if (len)
        end_message(r, ROLE_ASSISTANT);
}

static bool turn_conversation(struct render *r, const struct message *m, int n)
{
    const struct chat *c = r->c;
    const struct format *f = c->format;
    const struct message *system = m[0].role == ROLE_SYSTEM ? m : NULL;
    r->quiet = r->style->think == THINK_NOT || (r->style->think == THINK_AS_EVER && f->quiet);
    put_mark(r, MARK_BOS);
    if (f->system == SYSTEM_TURN)
        (f->system_turn ? f->system_turn : system_turn)(r, system);
    bool told = !r->style->tools || (c->tools != TOOLS_LLAMA && c->tools != TOOLS_GEMMA);
    bool one_turn = c->tools == TOOLS_GEMMA4; /* calls, results and the answer */
    enum role before = ROLE_USER; /* of the last message that is no result */
    bool called = false;          /* it called functions, within its turn */
    for (int i = system ? 1 : 0; i < n; i++) {
        int results = 0;
        while (i + results < n && m[i + results].role == ROLE_TOOL)
            results++;
        if (results) {
            put_results(r, m + i, results);
            i += results - 1;
            continue;
        }
        if (!one_turn || m[i].role != ROLE_ASSISTANT || before != ROLE_ASSISTANT)
            begin_message(r, m[i].role);
        before = m[i].role;
        called = one_turn && m[i].calls;
        if (called) {
            while (i + results + 1 < n && m[i + results + 1].role == ROLE_TOOL)
                results++;
            put_called_turn(r, m + i, results);
            i += results;
            continue;
        }
        if (system && f->system == SYSTEM_PREPEND && i == 1) {
            put_text(r, system->text, strlen(system->text));
            put_str(r, "\n\n");
        }
        if (!told && m[i].role == ROLE_USER)
            put_tools(r);
        told |= m[i].role == ROLE_USER;
        if (m[i].role == ROLE_ASSISTANT)
            put_reply(r, &m[i]);
        if (m[i].role == ROLE_ASSISTANT)
            put_calls(r, &m[i]);
        else
            put_text(r, m[i].text, strlen(m[i].text));
        end_message(r, m[i].role);
    }
    if (called)
        return true;
    begin_message(r, ROLE_ASSISTANT);
    if (c->open_thought)
        put_str(r, c->open_thought);
    if (f->think == THINK_TAGS && (r->quiet || f->thought))
        put_str(r, r->quiet ? no_thought(c) : f->thought);
    if (c->empty_thought && r->style->think != THINK) {
        put_mark(r, MARK_CHANNEL);
        put_str(r, "thought\n");
        put_mark(r, MARK_CHANNEL_END);
    }
    return true;
}

/* Raw mode: the texts one after another, special tokens in them matched. */
static bool raw_conversation(struct render *r, const struct message *m, int n)
{
    const struct chat *c = r->c;
    int bos = tok_bos(c->tok);
    for (int i = 0; i < n && !r->failed; i++) {
        const char *s = m[i].text ? m[i].text : "";
        if (m[i].ids.n)
            put_reply_ids(r, &m[i].ids);
        else
            r->failed = !tok_encode(c->tok, s, strlen(s), TOK_SPECIAL | (i ? TOK_INNER : 0),
                                    r->out, r->e);
        if (i == 0 && bos >= 0 && !r->failed && !(r->out->n && r->out->v[0] == bos)) {
            ids_add(r->out, bos);
            memmove(r->out->v + 1, r->out->v, (size_t)(r->out->n - 1) * sizeof *r->out->v);
            r->out->v[0] = bos;
        }
    }
    return true;
}

/* ---- rendering ---- */

bool chat_later_system(const struct chat *c)
{
    return c->format == &chat_raw || c->format->later_system;
}

bool chat_fits(const struct chat *c, const char *what, const struct message *m, int n, int context,
               struct err *e)
{
    bool raw = c->format == &chat_raw;
    size_t most = tok_most_bytes(c->tok, context, raw ? TOK_SPECIAL : 0), all = 0;
    for (int i = 0; i < n; i++) {
        size_t len = m[i].text && !m[i].ids.n ? strlen(m[i].text) : 0;
        if (len && c->format->trim)
            trimmed(m[i].text, &len);
        all += len;
    }
    return all <= most ||
           err_set(e, ERR_USAGE, "%s: %zu bytes; the context of %d tokens holds at most %zu",
                   what, all, context, most);
}

/* Checks that only the first message is the system's, unless the format has turns of later ones,
 * that it is not alone if it is part of the user's, and that user and assistant alternate if the
 * format requires it. */
static bool check_order(const struct chat *c, const struct message *m, int n, struct err *e)
{
    bool needs_user = c->format->alternate || c->format->system == SYSTEM_PREPEND;
    if (n == 0 || (n == 1 && m[0].role == ROLE_SYSTEM && needs_user))
        return err_set(e, ERR_USAGE, "there is no message to reply to");
    int first = m[0].role == ROLE_SYSTEM, turns = 0;
    for (int i = 0; i < n; i++) {
        if (m[i].role != ROLE_ASSISTANT && !m[i].text)
            return err_set(e, ERR_USAGE, "message %d has no text", i + 1);
        if (i && m[i].role == ROLE_SYSTEM && !c->format->later_system)
            return err_set(e, ERR_USAGE, "message %d: in the %s format a system message must be "
                           "the first", i + 1, c->format->name);
        if ((m[i].role == ROLE_TOOL || m[i].calls) && c->tools == TOOLS_NONE)
            return err_set(e, ERR_USAGE, "message %d: the model's chat format, %s, has no tools",
                           i + 1, c->format->name);
        enum role want = turns % 2 ? ROLE_ASSISTANT : ROLE_USER;
        bool result = m[i].role == ROLE_TOOL && i && m[i - 1].role != ROLE_USER;
        bool another = result && m[i - 1].role == ROLE_TOOL; /* of the same turn */
        turns += i >= first && !another;
        if (another || (result && want == ROLE_USER))
            continue; /* results are the user's turn */
        if (c->format->alternate && i >= first && m[i].role != want)
            return err_set(e, ERR_USAGE, "message %d is of role %s; the %s format expects %s here",
                           i + 1, role_names[m[i].role], c->format->name, role_names[want]);
    }
    return true;
}

static bool check_ids(const struct chat *c, const struct ids *ids, struct err *e)
{
    for (int i = 0; c->vocab && i < ids->n; i++)
        if (ids->v[i] < 0 || ids->v[i] >= c->vocab)
            return err_set(e, ERR_MODEL, "token %d is outside of the model's vocabulary of %d",
                           ids->v[i], c->vocab);
    return true;
}

bool chat_render(const struct chat *c, const struct message *m, int n, struct ids *out,
                 struct err *e)
{
    return chat_render_in(c, &(struct chat_style){0}, m, n, out, e);
}

bool chat_render_in(const struct chat *c, const struct chat_style *s, const struct message *m,
                    int n, struct ids *out, struct err *e)
{
    FREED(ids_free) struct ids ids = {0};
    struct render r = {.c = c, .style = s, .out = &ids, .e = e};
    bool raw = c->format == &chat_raw;
    if (!raw && !check_order(c, m, n, e))
        return false;
    bool (*conversation)(struct render *, const struct message *, int) =
        raw ? raw_conversation : c->format->conversation ? c->format->conversation
                                                         : turn_conversation;
    bool ok = conversation(&r, m, n);
    encode_text(&r);
    ok = ok && !r.failed && check_ids(c, &ids, e);
    if (ok)
        ids_cat(out, ids.v, ids.n);
    buf_free(&r.text);
    return ok;
}

/* ---- styles ---- */

static bool is_effort(const char *s)
{
    return !strcmp(s, "low") || !strcmp(s, "medium") || !strcmp(s, "high");
}

void chat_style_effort(struct chat_style *s, const char *effort)
{
    bool none = effort && !strcmp(effort, "none");
    s->effort = none ? NULL : effort;
    if (none)
        s->think = THINK_NOT;
}

bool chat_has_style(const struct chat *c, const struct chat_style *s, struct err *e)
{
    const struct format *f = c->format;
    if (s->tools && c->tools == TOOLS_NONE)
        return err_set(e, ERR_USAGE, "the model's chat format, %s, has no tools", f->name);
    bool always = f->think == THINK_HARMONY;
    bool never = f->think == THINK_NONE || f->think == THINK_CHANNEL;
    if (s->effort && !f->effort)
        return err_set(e, ERR_USAGE, "the model's chat format, %s, has no reasoning effort",
                       f->name);
    if (s->effort && !is_effort(s->effort))
        return err_set(e, ERR_USAGE, "the reasoning effort \"%.40s\" is not known; expected low, "
                       "medium or high", s->effort);
    if (s->think == THINK_AS_EVER || c->switches || (s->think == THINK ? always : never))
        return true;
    return err_set(e, ERR_USAGE, "the model's chat template, of the %s format, does not switch "
                   "thinking on and off", f->name);
}

/* ---- choosing a format ---- */

/* The first marker that the format needs and the tokenizer lacks, or NULL. */
static const char *missing_marker(const struct format *f, const struct tokenizer *t)
{
    for (int i = 0; i < MARK_STOP; i++)
        if (f->mark[i] && tok_find(t, f->mark[i]) < 0)
            return f->mark[i];
    return NULL;
}

/* The family's format whose markers the tokenizer has; else its last one, or NULL: it has none. */
static const struct format *format_of_family(const char *family, const struct tokenizer *t)
{
    const struct format *found = NULL;
    for (const struct format *f = chat_formats; f->name; f++)
        for (int i = 0; i < 4 && f->family[i]; i++)
            if (strcmp(f->family[i], family) == 0 && (!found || missing_marker(found, t)))
                found = f;
    return found;
}

static bool choose_format(struct chat *c, const struct model *m, struct err *e)
{
    const struct format *f = format_of_family(m->cfg.family, c->tok);
    const char *missing = f ? missing_marker(f, c->tok) : NULL;
    c->format = f;
    if (f && !missing)
        return true;
    if (missing_marker(chat_formats, c->tok)) {
        if (f)
            return err_set(e, ERR_MODEL, "the %s chat format needs the token %s, which the "
                           "tokenizer does not have (raw mode needs none)", f->name, missing);
        return err_set(e, ERR_MODEL, "no chat format is known for family \"%s\", and the tokenizer "
                       "lacks ChatML's %s (raw mode needs none)", m->cfg.family,
                       missing_marker(chat_formats, c->tok));
    }
    c->format = chat_formats;
    snprintf(c->warning, sizeof c->warning, "no chat format of its own for this %s model; using "
             "ChatML, which its tokenizer has", m->cfg.family);
    return true;
}

static void add_stop(struct chat *c, int id)
{
    for (int i = 0; i < c->n_stop; i++)
        if (c->stop[i] == id)
            return;
    if (id >= 0 && c->n_stop < MAX_STOP)
        c->stop[c->n_stop++] = id;
}

/* Looks up the ids of the markers and of the stop tokens. Harmony's MARK_CLOSE ends a message, not
 * a reply. */
static void find_markers(struct chat *c, const struct model *m)
{
    for (int i = 0; i < MAX_MARK; i++)
        c->mark[i] = c->format->mark[i] ? tok_find(c->tok, c->format->mark[i]) : -1;
    if (c->format->think != THINK_HARMONY)
        add_stop(c, c->mark[MARK_CLOSE]);
    for (int i = MARK_STOP; i <= MARK_STOP_LAST; i++)
        add_stop(c, c->mark[i]);
    for (int i = 0; i < m->cfg.n_stop; i++)
        add_stop(c, m->cfg.stop[i]);
    c->tools = c->format->tools;
    if (c->tools == TOOLS_GEMMA4 && !gemma4_has_tools(c))
        c->tools = TOOLS_NONE;
    c->think_mark = c->format->think == THINK_CHANNEL ? tok_find(c->tok, "<|think|>") : -1;
}

/* ---- the template of the model ---- */

/* Reads a file that need not be there. False and *e: it is there and cannot be read. */
static bool read_if_there(const char *path, size_t max, struct buf *out, bool *there, struct err *e)
{
    *there = !file_missing(path);
    if (!*there || buf_read_file(out, path, max, e))
        return true;
    if (e)
        e->kind = ERR_MODEL;
    return false;
}

/* Reads "chat_template" of a JSON file: a string, or the entry named "default" of a list. */
static bool template_in(const char *dir, const char *file, char **out, struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    json_error_t why;
    FREED(free_at) char *path = xasprintf("%s/%s", dir, file);
    bool there;
    if (!read_if_there(path, 64 << 20, &b, &there, e) || !there)
        return !there;
    FREED(json_decrefp) json_t *top = json_parse_wide(b.p, b.n, &why);
    if (!top)
        return err_set(e, ERR_MODEL, "%s: line %d: %.100s", path, why.line, why.text);
    json_t *t = json_object_get(top, "chat_template"), *item;
    size_t i;
    if (json_is_array(t))
        json_array_foreach(t, i, item) {
            const char *name = json_string_value(json_object_get(item, "name"));
            if (name && strcmp(name, "default") == 0)
                t = json_object_get(item, "template");
        }
    if (json_is_string(t))
        *out = xstrdup(json_string_value(t));
    return true;
}

/* Reads the template in a GGUF, and the ids that end a reply there. (Older files have a wrong one
 * for the end of the text: the format's stop tokens stay.) */
static bool load_metadata(struct chat *c, const char *path, bool raw, struct err *e)
{
    static const char *const stop[] = {"eos", "eot", "eom"};
    struct gguf_text t = {0};
    struct gguf *g = gguf_open(path, e);
    bool ok = g && (raw || gguf_string(g, "tokenizer.chat_template", &t, e));
    if (ok && t.n)
        c->template = memcpy(xcalloc(t.n + 1, 1), t.p, t.n);
    for (int i = 0; ok && i < 3; i++) {
        int id;
        ok = gguf_token_id(g, stop[i], tok_vocab(c->tok), &id, e);
        add_stop(c, id);
    }
    gguf_close(g);
    return ok;
}

static bool load_template(struct chat *c, const char *dir, struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    FREED(free_at) char *path = xasprintf("%s/chat_template.jinja", dir);
    bool there;
    if (!read_if_there(path, 16 << 20, &b, &there, e))
        return false;
    if (there)
        c->template = xstrdup(buf_text(&b));
    if (!c->template && !template_in(dir, "tokenizer_config.json", &c->template, e))
        return false;
    return c->template || template_in(dir, "chat_template.json", &c->template, e);
}

static void compare_template(struct chat *c)
{
    char hex[65];
    sha256_hex(c->template, strlen(c->template), hex);
    for (int i = 0; i < MAX_KNOWN && c->format->known[i]; i++)
        if (strcmp(hex, c->format->known[i]) == 0) {
            c->warning[0] = '\0'; /* whatever the family: this is the template's format */
            return;
        }
    size_t n = strlen(c->warning);
    snprintf(c->warning + n, sizeof c->warning - n,
             "%sthe model's chat template (sha256 %.12s) is not one that the built-in %s format "
             "was compared with; if replies look odd, compare them", n ? "; " : "", hex,
             c->format->name);
}

/* ---- opening ---- */

struct chat *chat_open(const struct model *m, const struct tokenizer *t, bool raw,
                       const char **warning, struct err *e)
{
    struct chat *c = xcalloc(1, sizeof *c);
    time_t now = time(NULL);
    struct tm tm;
    c->tok = t;
    c->vocab = m->cfg.vocab;
    strftime(c->date, sizeof c->date, "%Y-%m-%d", localtime_r(&now, &tm));
    c->format = &chat_raw;
    bool gguf = m->dir && gguf_is(m->dir), ok = raw || choose_format(c, m, e);
    if (ok)
        find_markers(c, m);
    if (ok && m->dir && (gguf || !raw))
        ok = gguf ? load_metadata(c, m->dir, raw, e) : load_template(c, m->dir, e);
    if (!ok) {
        chat_close(c);
        return NULL;
    }
    if (!raw)
        chat_read_template(c, m);
    if (c->template)
        compare_template(c);
    if (warning)
        *warning = c->warning[0] ? c->warning : NULL;
    return c;
}

void chat_close(struct chat *c)
{
    if (!c)
        return;
    FREE(c->template, c->system_default, c->system_suffix, c->system_quiet, c);
}

bool chat_marks(const struct chat *c, struct chat_marks *out)
{
    *out = (struct chat_marks){c->mark[MARK_CHANNEL], c->mark[MARK_MID], c->mark[MARK_CLOSE],
                               c->mark[MARK_OPEN]};
    return c->format->think == THINK_HARMONY;
}

const char *chat_name(const struct chat *c)
{
    return c->format->name;
}

bool chat_set_date(struct chat *c, const char *date, struct err *e)
{
    struct tm tm = {0};
    const char *end = strlen(date) == 10 ? strptime(date, "%Y-%m-%d", &tm) : NULL;
    if (!end || *end)
        return err_set(e, ERR_USAGE, "\"%.32s\" is not a date; expected YYYY-MM-DD", date);
    memcpy(c->date, date, 11);
    return true;
}

const char *chat_date(const struct chat *c)
{
    return c->date;
}

int chat_stops(const struct chat *c, int32_t out[MAX_STOP])
{
    memcpy(out, c->stop, (size_t)c->n_stop * sizeof *out);
    return c->n_stop;
}
