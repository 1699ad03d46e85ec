/* browser.c - F8: the saved sessions on the whole screen, narrowed while the user types, with a
 * preview of the selected one: beside the list from a width of 110 cells, else below.
 *
 * Typed text goes to the filter until an arrow moves into the list; there, letters act. The footer
 * says which of the two holds. */
#include "kernels/when.h"
#include "repl/tui/tui.h"

#include "repl/app/sessions.h"
#include "repl/cmd/commands.h"

enum { WIDE = 110, NARROW = 60, PREVIEW_BYTES = 16384, HEADING = 3 }; /* narrow: without counts;
                                                               HEADING: rows above the list */

struct browser {
    struct hdb *db;
    struct session_list list;
    struct picker pick;    /* the filter, and the place in list.shown */
    bool in_list;          /* f, c, r and / act; else they are typed into the filter, as all others
                              always are */
    int number_w;          /* digits of the highest number, at least 3 */
    char marked[SESSION_ID]; /* the session marked for a comparison; "": none */
    int marked_row;
    char said[200];        /* a message in the place of the column heads; "": none */
    struct sheet preview;  /* wrapped */
    int preview_row, preview_width; /* the row of the list that it shows (-1: none), and its
                                       width */
};

static const char filter_keys[] = "type to filter; Enter resumes; arrows go to the list; "
"Esc closes";
static const char list_keys[] = "Enter resumes, f forks, c marks and compares, r replays, "
"/ filters, Esc closes";

/* Row of the list under the cursor; -1: none. */
static int selected(const struct browser *b)
{
    return b->pick.at < b->list.n_shown ? b->list.shown[b->pick.at] : -1;
}

/* ---- the preview ----------------------------------------------------------------------------- */

struct preview {
    struct sheet *out;
    const char *filter; /* turns before the first match are left out; NULL: none are */
    int skipped;
    size_t left; /* bytes that still may be shown */
};

static bool add_turn(const struct turn_row *r, void *arg)
{
    struct preview *p = arg;
    const char *text = r->text ? r->text : "";
    if (p->filter && !filter_touches(p->filter, text)) {
        p->skipped++;
        return true;
    }
    if (p->filter && p->skipped)
        say_line(p->out, ST_DIM, "(from turn %d, the first with these words)", r->n);
    p->filter = NULL;
    size_t n = strlen(text) < p->left ? strlen(text) : p->left;
    p->left -= n;
    if (r->is_user)
        sheet_line(p->out);
    sheet_lines(p->out, r->is_user ? ST_USER : ST_TEXT, text, n);
    return p->left > 0;
}

static void add_head(struct browser *b, int row, struct sheet *out)
{
    const struct session_row *r = &b->list.row[row];
    const struct session_sums *s = session_list_sums(&b->list, b->db, row);
    const char *title = session_list_title(&b->list, b->db, row);
    say_line(out, ST_BOLD, "%s", *title ? title : "(no title)");
    sheet_printf(out, ST_DIM, "%s, %lld tokens in %lld steps", r->id, (long long)s->tokens,
                 (long long)s->steps);
    if (s->drafted)
        sheet_printf(out, ST_DIM, ", %lld of %lld drafted tokens accepted", (long long)s->accepted,
                     (long long)s->drafted);
    sheet_line(out);
    if (r->model && *r->model)
        sheet_printf(out, ST_DIM, "%s", r->model);
    sheet_line(out);
    if (r->parent[0])
        say_line(out, ST_DIM, "forked after turn %d of %s", r->fork_turn, r->parent);
}

static void make_preview(struct browser *b, int width)
{
    int row = selected(b);
    struct err e = {0};
    if (row == b->preview_row && width == b->preview_width)
        return;
    sheet_clear(&b->preview);
    b->preview_row = row;
    b->preview_width = width;
    if (row < 0)
        return;
    FREED(sheet_free) struct sheet text = {.ascii = b->preview.ascii};
    add_head(b, row, &text);
    struct preview p = {.out = &text, .filter = b->pick.query.n ? b->pick.query.p : NULL,
                        .left = PREVIEW_BYTES};
    int n = hdb_turns(b->db, b->list.row[row].id, 0, add_turn, &p, &e);
    if (n > 0 && p.filter) { /* no turn has the words, but the title */
        p = (struct preview){.out = &text, .left = PREVIEW_BYTES};
        n = hdb_turns(b->db, b->list.row[row].id, 0, add_turn, &p, &e);
    }
    if (n < 0)
        say_line(&text, ST_BAD, "%s", e.msg);
    sheet_append_wrapped(&b->preview, &text, width);
}

/* ---- the list -------------------------------------------------------------------------------- */

static int digits(int n)
{
    int k = 1;
    while (n >= 10) {
        n /= 10;
        k++;
    }
    return k;
}

static void add_when(struct sheet *out, int64_t ms)
{
    char text[20];
    when_text(ms, text);
    sheet_printf(out, ST_DIM, "%-16s ", text);
}

static void add_row(struct tui *t, struct browser *b, int i, int number_w, int width,
                    struct sheet *out)
{
    int row = b->list.shown[i], used = number_w + (width < NARROW ? 20 : 43);
    const struct session_row *r = &b->list.row[row];
    const struct session_sums *s = session_list_sums(&b->list, b->db, row);
    bool marked = strcmp(r->id, b->marked) == 0, now = strcmp(r->id, t->app->session) == 0;
    sheet_add(out, ST_KEY, i == b->pick.at ? (out->ascii ? ">" : "▸") : " ");
    sheet_add(out, marked ? ST_WARN : ST_GOOD, marked ? "c" : now ? "*" : " ");
    sheet_printf(out, i == b->pick.at ? ST_KEY : ST_TEXT, "%*d ", number_w,
                 session_list_number(&b->list, row));
    add_when(out, r->updated_ms);
    if (width >= NARROW)
        sheet_printf(out, ST_TEXT, "%5d %7lld ", r->n_turns, (long long)s->tokens);
    if (width >= NARROW && s->drafted)
        sheet_printf(out, ST_TEXT, "%5.0f %%  ", 100.0 * (double)s->accepted / (double)s->drafted);
    else if (width >= NARROW)
        sheet_add(out, ST_DIM, "      -  ");
    list_cut(out, i == b->pick.at ? ST_BOLD : ST_TEXT, session_list_title(&b->list, b->db, row),
            max_int(width - used, 4));
}

static void add_preview_row(const struct browser *b, int i, struct sheet *out)
{
    if (i < b->preview.n_row)
        sheet_add_row(out, &b->preview.row[i], 0, (int)b->preview.row[i].text.n);
}

static void write_heads(struct browser *b, int number_w, int width, struct sheet *out)
{
    say_line(out, ST_HEAD, "SESSIONS  %d of %d", b->list.n_shown, b->list.n);
    sheet_add(out, ST_LABEL, "filter ");
    list_cut(out, ST_USER, buf_text(&b->pick.query), max_int(width - 10, 8));
    if (!b->in_list)
        sheet_add(out, ST_KEY, out->ascii ? "_" : "▏");
    sheet_line(out);
    if (b->said[0])
        list_cut(out, ST_WARN, b->said, width);
    else
        sheet_printf(out, ST_DIM, "%*s %-16s%s title", number_w + 2, "no.", "last used",
                     width < NARROW ? "" : " turns  tokens accepted");
    sheet_line(out);
}

static void write_browser(struct tui *t, struct overlay *o, int w, int h)
{
    struct browser *b = o->state;
    struct sheet *out = &o->pane.rows;
    bool wide = w >= WIDE;
    int number_w = b->number_w;
    int list_w = wide ? min_int(w * 11 / 20, number_w + 95) : w, body = max_int(h - HEADING, 1);
    b->pick.rows = wide ? body : max_int(body / 2, 1);
    list_keep(&b->pick, b->list.n_shown);
    o->footer = b->in_list ? list_keys : filter_keys;
    write_heads(b, number_w, w, out);
    make_preview(b, wide ? w - list_w - 3 : w);
    for (int i = 0; i < b->pick.rows; i++) {
        if (b->pick.top + i < b->list.n_shown)
            add_row(t, b, b->pick.top + i, number_w, list_w, out);
        else if (i == 0)
            sheet_add(out, ST_DIM, b->list.n ? "  no session fits the filter"
                                             : "  no session is saved yet");
        if (wide) {
            sheet_tab(out, list_w + 1);
            sheet_add(out, ST_DIM, out->ascii ? "| " : "│ ");
            add_preview_row(b, i, out);
        }
        sheet_line(out);
    }
    if (wide)
        return;
    for (int k = 0; k < w; k++)
        sheet_add(out, ST_DIM, out->ascii ? "-" : "─");
    sheet_line(out);
    for (int i = 0; i < body - b->pick.rows - 1; i++) {
        add_preview_row(b, i, out);
        sheet_line(out);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void filter_now(struct tui *t, struct browser *b)
{
    struct err e = {0};
    b->pick.at = b->pick.top = 0;
    b->preview_row = -1;
    tui_work(t, true);
    if (!session_list_filter(&b->list, b->db, buf_text(&b->pick.query), &e))
        snprintf(b->said, sizeof b->said, "%.190s", e.msg);
    tui_work(t, false);
}

/* Closes the browser and runs a command; if there is no chat, shows what to type in a shell. */
static void leave_with(struct tui *t, const char *command, const char *line)
{
    char *text = xasprintf("/%s %s", command, line);
    bool there = cmd_find(command, NULL) != NULL;
    tui_overlay_close(t);
    if (there) {
        tui_submit(t, text);
        return;
    }
    tui_note(t, ST_DIM, "in a shell: aerie %s %s", command, line);
    free(text);
}

/* The name of a row's session in commands: its number if it has one, else its id. The caller
 * frees. */
static char *name_of(const struct browser *b, int row, const char *before)
{
    int number = session_list_number(&b->list, row);
    return number > 0 ? xasprintf("%s%d", before, number) : xstrdup(b->list.row[row].id);
}

static void compare(struct tui *t, struct browser *b, int row)
{
    const char *id = b->list.row[row].id;
    if (!b->marked[0] || strcmp(b->marked, id) == 0) {
        snprintf(b->said, sizeof b->said, b->marked[0] ? "not marked any more"
                 : "marked; c on another session compares the two");
        b->marked_row = row;
        memcpy(b->marked, b->marked[0] ? "" : id, b->marked[0] ? 1 : SESSION_ID);
        return;
    }
    FREED(free_at) char *one = name_of(b, b->marked_row, ""), *other = name_of(b, row, "");
    FREED(free_at) char *line = xasprintf("%s %s", one, other);
    leave_with(t, "diff", line);
}

static void act(struct tui *t, struct browser *b, uint32_t key)
{
    static const struct { uint32_t key; const char *command, *before; } acts[] = {
        {'\r', "resume", ""}, {'f', "fork", "#"}, {'r', "replay", ""}};
    int row = selected(b);
    if (key == '/') {
        b->in_list = false;
        return;
    }
    if (row < 0) {
        snprintf(b->said, sizeof b->said, "no session is selected");
        return;
    }
    for (size_t i = 0; i < LEN(acts); i++)
        if (key == acts[i].key) {
            FREED(free_at) char *name = name_of(b, row, acts[i].before);
            leave_with(t, acts[i].command, name);
            return;
        }
    compare(t, b, row);
}

/* The letters that act on the selected session. */
static bool is_list_key(uint32_t cp)
{
    return cp == 'f' || cp == 'c' || cp == 'r' || cp == '/';
}

static bool browser_key(struct tui *t, struct overlay *o, const struct key *k)
{
    struct browser *b = o->state;
    b->said[0] = '\0';
    bool typed = k->code == K_CHAR && !k->ctrl && !k->alt;
    if (k->code == K_ESC && b->pick.query.n && !b->in_list) {
        buf_clear(&b->pick.query);
        filter_now(t, b);
    }
    else if (k->code == K_ESC || k->code == K_F8 || key_is_ctrl(k, 'c'))
        return false;
    else if (k->code == K_ENTER)
        act(t, b, '\r');
    else if (list_move(&b->pick, b->list.n_shown, k))
        b->in_list = true;
    else if (k->code == K_TAB)
        b->in_list = !b->in_list;
    else if (typed && b->in_list && is_list_key(k->cp))
        act(t, b, k->cp);
    else if (list_type(&b->pick.query, k)) {
        b->in_list = false;
        filter_now(t, b);
    }
    return true;
}

static void browser_click(struct tui *t, struct overlay *o, int row)
{
    struct browser *b = o->state;
    int i = b->pick.top + row - HEADING;
    if (row < HEADING || row >= HEADING + b->pick.rows || i >= b->list.n_shown)
        return;
    b->pick.at = i;
    b->in_list = true;
    tui_overlay_write(t);
}

static void browser_close(struct tui *, struct overlay *o)
{
    FREED(free_at) struct browser *b = o->state;
    session_list_free(&b->list);
    buf_free(&b->pick.query);
    sheet_free(&b->preview);
}

void tui_browser_open(struct tui *t)
{
    struct err e = {0};
    struct browser *b = xcalloc(1, sizeof *b);
    b->preview = (struct sheet){.ascii = t->app->ascii};
    b->preview_row = -1;
    tui_work(t, true);
    b->db = app_hdb(t->app, &e);
    bool ok = b->db && session_list_open(&b->list, b->db, &e);
    tui_work(t, false);
    b->number_w = 3;
    for (int i = 0; ok && i < b->list.n; i++)
        b->number_w = max_int(b->number_w, digits(session_list_number(&b->list, i)));
    struct overlay o = {.write = write_browser, .key = browser_key, .click = browser_click,
                        .close = browser_close, .state = b};
    if (ok) {
        tui_overlay_open(t, &o);
    } else {
        browser_close(t, &o);
        tui_note(t, ST_BAD, "%s", e.msg);
    }
}
