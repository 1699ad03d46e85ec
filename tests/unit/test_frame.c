/* test_frame.c - the screen as text (repl/tui/frame.c): layouts, whole screens, hostile state.
 *
 * The expected screens are tests/screens/NAME.txt; SCREENS=write ./test_frame writes them anew, to
 * be read and judged before they are committed. */
#include "kernels/utf8.h"
#include "repl/tui/font.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* A screen's whole state. */
struct screen {
    struct transcript talk;
    struct input input;
    struct sheet status;
    struct pane pane[2], help;
    struct frame f;
    struct grid g;
};

static void line(struct sheet *s, enum style st, const char *text)
{
    sheet_add(s, st, text);
    sheet_line(s);
}

static void screen_init(struct screen *s)
{
    memset(s, 0, sizeof *s);
    transcript_init(&s->talk, false);
    input_init(&s->input, NULL);
    s->status = (struct sheet){0};
    line(&s->status, ST_TEXT, "ctx 12/4.1k · MAL 2.6 · REC");
    for (int i = 0; i < 2; i++) {
        s->pane[i].head = 1;
        s->pane[i].scroll_to = -1;
        line(&s->pane[i].rows, ST_HEAD, i ? "TREE" : "PAGES");
        for (int k = 0; k < 30; k++) {
            sheet_printf(&s->pane[i].rows, ST_TEXT, "row %d", k);
            sheet_line(&s->pane[i].rows);
        }
    }
    s->help = (struct pane){.head = 1, .scroll_to = -1};
    line(&s->help.rows, ST_HEAD, "HELP");
    s->f = (struct frame){.talk = &s->talk, .input = &s->input, .status = &s->status, .focus = -1,
                          .chosen = -1};
}

static void screen_free(struct screen *s)
{
    transcript_free(&s->talk);
    input_free(&s->input);
    sheet_free(&s->status);
    sheet_free(&s->pane[0].rows);
    sheet_free(&s->pane[1].rows);
    sheet_free(&s->help.rows);
    grid_free(&s->g);
}

/* The grid's characters, one line a row, trailing blanks dropped. */
static void grid_to_text(const struct grid *g, struct buf *out)
{
    for (int y = 0; y < g->h; y++) {
        for (int x = 0; x < g->w; x++)
            for (int k = 0; k <= CELL_MARKS && g->cell[y * g->w + x].cp[k]; k++)
                buf_utf8(out, g->cell[y * g->w + x].cp[k]);
        while (out->n > 0 && out->p[out->n - 1] == ' ')
            out->n--;
        buf_char(out, '\n');
    }
}

/* ---- long texts ---- */

static int looks, enough;

static bool stops_after_enough(void)
{
    return ++looks > enough;
}

static size_t bytes_shown(const struct transcript *t)
{
    size_t n = 0;
    for (int i = 0; i < t->entry[0].rows.n_row; i++)
        for (size_t k = 0; k < t->entry[0].rows.row[i].text.n; k++)
            n += t->entry[0].rows.row[i].text.p[k] == 'w';
    return n;
}

/* A layout that is stopped goes on later, and shows all; a block that is too long for Markdown is
 * plain text. */
static void test_a_long_reply_is_laid_out_in_parts(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct transcript t;
        struct transcript_line line[20];
        struct buf text = {0};
        size_t words = 0;
        for (; text.n < (k == 2 ? 1300000 : 300000); words++) /* k: blocks; lines; one paragraph */
            buf_str(&text, k == 0 ? "a **w** word\n\n" : k == 1 ? "a w\n" : "**w** ");
        transcript_init(&t, false);
        t.stop = stops_after_enough;
        transcript_append(&t, 1, k == 1 ? ENTRY_USER : ENTRY_REPLY, text.p, text.n);
        t.raw = k == 1;
        transcript_end(&t, 1);
        enough = looks = 0;
        transcript_view(&t, 80, 20, line);
        size_t first = bytes_shown(&t);
        assert_true(first > 0 && first < words);
        for (int y = 0; y < 20; y++) /* rows stay where they are while it is stopped */
            assert_true(!line[y].row ||
                        (line[y].row >= t.entry[0].rows.row &&
                         line[y].row < t.entry[0].rows.row + t.entry[0].rows.n_row));
        enough = 1 << 30;
        transcript_view(&t, 80, 20, line);
        assert_int_equal(bytes_shown(&t), k == 0 ? 2 * words : words);
        transcript_free(&t);
        buf_free(&text);
    }
}

static char *draw(struct screen *s, int w, int h)
{
    struct buf b = {0};
    grid_resize(&s->g, w, h);
    frame_draw(&s->f, &s->g);
    grid_to_text(&s->g, &b);
    return b.p;
}

static void assert_screen(struct screen *s, int w, int h, const char *name)
{
    char path[256], *mode = getenv("SCREENS"), *t = draw(s, w, h);
    struct buf want = {0};
    snprintf(path, sizeof path, "tests/screens/%s.txt", name);
    if (mode && strcmp(mode, "write") == 0) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(t, f);
        fclose(f);
    }
    assert_true(buf_read_file(&want, path, 1 << 20, NULL));
    assert_string_equal(t, want.p);
    buf_free(&want);
    free(t);
}

static void chat(struct screen *s)
{
    static const char md[] =
        "A **page** holds\n\n- slots\n- more slots that need a second row to be "
        "shown\n\n```c\nint page = slot / page_size;\n```";
    transcript_user(&s->talk, 1, "What is a page?", 15);
    transcript_append(&s->talk, 1, ENTRY_THINK, "hm\nwell", 7);
    transcript_append(&s->talk, 1, ENTRY_REPLY, md, sizeof md - 1);
    transcript_end(&s->talk, 1);
}

static void type(struct screen *s, const char *text)
{
    input_set(&s->input, text, strlen(text));
}

/* ---- whole screens ---- */

static void test_a_chat(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    assert_screen(&s, 60, 12, "empty");
    chat(&s);
    assert_screen(&s, 60, 18, "chat");
    assert_int_equal(s.g.x, 2);
    assert_int_equal(s.g.y, 16);
    transcript_set_think(&s.talk, true);
    assert_screen(&s, 60, 20, "thinking");
    transcript_set_raw(&s.talk, true);
    assert_screen(&s, 60, 20, "raw");
    sheet_clear(&s.status); /* a long status gives up its marks before its last word */
    for (int i = 0; i < 12; i++) {
        sheet_add(&s.status, ST_TEXT, "word");
        sheet_add(&s.status, ST_DIM, " · ");
    }
    line(&s.status, ST_GOOD, "REC");
    transcript_clear(&s.talk);
    struct buf b = {0};
    for (int i = 0; i < 50; i++)
        buf_printf(&b, "line %d\n", i);
    transcript_user(&s.talk, 1, b.p, b.n);
    transcript_set_raw(&s.talk, false);
    assert_screen(&s, 66, 20, "long-message");
    buf_free(&b);
    screen_free(&s);
}

static void test_while_a_reply_runs(void **state)
{
    (void)state;
    struct screen s;
    char *queued[] = {"next question\nwith more", "/bye"};
    screen_init(&s);
    chat(&s);
    s.f.busy = true;
    s.f.queued = queued;
    s.f.n_queued = 2;
    assert_screen(&s, 60, 16, "queued");
    s.f.n_queued = 0;
    s.f.done = 300;
    s.f.total = 1200;
    s.f.hint = "stopping; Ctrl-C again quits";
    assert_screen(&s, 80, 12, "reading");
    screen_free(&s);
}

/* Whether the screen shows all words of a text, in their order. */
static bool shows_words(struct screen *s, int w, int h, const char *text)
{
    char *all = draw(s, w, h), *copy = xstrdup(text), *at = all;
    for (char *word = strtok(copy, " "); word && at; word = strtok(NULL, " "))
        at = strstr(at, word) ? strstr(at, word) + strlen(word) : NULL;
    free(all);
    free(copy);
    return at != NULL;
}

/* A message is never cut, however narrow the screen is. */
static void test_messages_are_whole(void **state)
{
    (void)state;
    static const int width[] = {40, 59, 80, 100, 120};
    struct screen s;
    screen_init(&s);
    chat(&s);
    for (int i = 0; i < 600; i++) {
        struct buf b = {0};
        int w = width[i % 5], room = i % 3 == 1 && w >= 100 ? 40 : w,
            n = below(room * 3);
        for (int k = 0; (int)b.n < n; k++)
            buf_printf(&b, "%s%c%.*d", k ? " " : "", 'a' + below(26), 1 + below(9), k);
        s.f.overlay = i % 3 == 2 ? &s.help : NULL; /* its footer */
        s.f.footer = s.f.overlay ? b.p : NULL;
        s.f.hint = s.f.overlay || !b.n ? NULL : b.p;
        s.f.n_pane = i % 3 == 1; /* beside the rule on a wide screen */
        s.f.pane[0] = &s.pane[0];
        assert_true(!b.n || shows_words(&s, w, 24, b.p));
        buf_free(&b);
    }
    screen_free(&s);
}

static void test_matches_are_marked(void **state)
{
    (void)state;
    struct screen s;
    struct find find = {.at = 1};
    screen_init(&s);
    chat(&s);
    transcript_user(&s.talk, 2, "a text whose words stand in two rows of the screen", 49);
    free(draw(&s, 60, 18));
    buf_str(&find.pattern, "Page");
    for (int i = 0; i < s.talk.n; i++)
        find_rows(&find, i, s.talk.entry[i].rows.row, 0, s.talk.entry[i].rows.n_row);
    int n = 0, now = 0;
    s.f.find = &find;
    s.f.find_line = "find: page";
    assert_screen(&s, 60, 18, "found");
    for (int i = 0; i < 60 * 18; i++) {
        n += (s.g.cell[i].flags & CELL_UNDERLINE) != 0;
        now += (s.g.cell[i].flags & CELL_REVERSE) != 0;
    }
    assert_true(find.n > 1);
    assert_int_equal(now, 4); /* without colours, too */
    assert_true(n >= 4 && n % 4 == 0);
    find_free(&find);
    screen_free(&s);
}

/* Text that was wrapped is found where it was broken. */
static void test_a_match_goes_on_in_the_next_row(void **state)
{
    (void)state;
    struct sheet rows = {0}, text = {0};
    struct find f = {.at = 0};
    line(&text, ST_TEXT, "one two three four five six seven");
    sheet_append_wrapped(&rows, &text, 13);
    buf_str(&f.pattern, "three FOUR");
    find_rows(&f, 7, rows.row, 0, rows.n_row);
    assert_int_equal(f.n, 1);
    assert_int_equal(f.n_piece, 2);
    assert_int_equal(find_here(&f, 7, 0, 8), 2);
    assert_int_equal(find_here(&f, 7, 0, 7), 0);
    assert_int_equal(find_here(&f, 7, 1, 3), 2);
    assert_int_equal(find_here(&f, 7, 1, 4), 0);
    assert_int_equal(find_here(&f, 6, 0, 8), 0);
    find_clear(&f);
    buf_clear(&f.pattern);
    buf_str(&f.pattern, "e");
    find_rows(&f, 7, rows.row, 1, rows.n_row);
    find_rows(&f, 9, rows.row, 0, 1);
    assert_int_equal(f.n, 6); /* five, two of seven; one, two of three */
    assert_int_equal(find_after(&f, 8, 0), 3);
    assert_int_equal(find_before(&f, 8, 0), 2);
    assert_int_equal(find_before(&f, 7, 0), -1);
    assert_int_equal(find_after(&f, 9, 1), -1);
    assert_int_equal(find_match(&f, 5)->entry, 9);
    assert_null(find_match(&f, 6));
    find_free(&f);
    sheet_free(&rows);
    sheet_free(&text);
}

static void test_scrolled_back(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    chat(&s);
    chat(&s);
    free(draw(&s, 60, 12));
    transcript_scroll(&s.talk, -8, 9);
    assert_screen(&s, 60, 12, "scrolled");
    transcript_user(&s.talk, 2, "one more", 8);
    assert_screen(&s, 60, 12, "scrolled-new");
    s.f.focus = FOCUS_WORDS; /* one row says both, also where a pane is above it */
    char *t = draw(&s, 80, 12), *keys = strstr(t, "arrows by word"), *below = strstr(t, "below ");
    assert_true(keys && below && keys < below && !memchr(keys, '\n', (size_t)(below - keys)));
    free(t);
    screen_free(&s);
}

static void test_the_input_grows(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    type(&s, "one\ntwo\n\tthree is a line that is longer than the sixty cells of this screen");
    assert_screen(&s, 60, 18, "input");
    assert_int_equal(s.g.y, 16);
    type(&s, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12");
    s.input.pasted_lines = 34;
    assert_screen(&s, 60, 18, "input-tall");
    s.input.cursor = 0;
    assert_screen(&s, 60, 18, "input-tall-top");
    type(&s, "a\033[2J\r\u202Eb\u4E2D\u6587 e\u0301 \xFF");
    assert_screen(&s, 60, 12, "input-hostile");
    screen_free(&s);
}

static void test_completion_and_search(void **state)
{
    (void)state;
    struct screen s;
    struct choice choice[] = {{"/page", "tells the life of one page"}, {"/pages", "draws the map"},
                              {"/pool", "shows the ledger of each pool: total, used, free, "
                                        "evictable"},
                              {"/q1", NULL}, {"/q2", NULL}, {"/q3", NULL}, {"/q4", NULL},
                              {"/q5", NULL}, {"/q6", NULL}, {"/q7", NULL}};
    screen_init(&s);
    chat(&s);
    type(&s, "/p");
    s.f.choice = choice;
    s.f.n_choice = 3;
    s.f.chosen = 1;
    assert_screen(&s, 60, 16, "completion");
    int reversed = 0, popup = 0; /* the chosen one is marked without colour */
    for (int i = 0; i < 60 * 16; i++) {
        reversed += (s.g.cell[i].flags & CELL_REVERSE) != 0;
        popup += (s.g.cell[i].flags & CELL_POPUP) != 0;
    }
    assert_true(reversed >= 8 && reversed < 60);
    assert_int_equal(popup, 58 * 5); /* its own background, frame included */
    s.f.n_choice = 10;
    s.f.chosen = 9;
    assert_screen(&s, 60, 16, "completion-long");
    s.f.n_choice = 0;
    s.input.searching = true;
    buf_str(&s.input.pattern, "pag");
    s.input.match = 0;
    assert_screen(&s, 60, 12, "search");
    screen_free(&s);
}

static void test_panes(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    chat(&s);
    s.f.pane[0] = &s.pane[0];
    s.f.pane[1] = &s.pane[1];
    s.f.n_pane = 1;
    assert_screen(&s, 100, 18, "pane-beside");
    assert_screen(&s, 80, 18, "pane-alone");
    s.f.n_pane = 2;
    s.pane[1].scroll_to = 30;
    s.f.focus = 1;
    assert_screen(&s, 160, 22, "panes-two");
    assert_screen(&s, 80, 18, "panes-two-alone"); /* the one with the focus */
    s.f.n_pane = 0;
    s.f.focus = -1;
    s.f.overlay = &s.help;
    s.f.footer = "arrows and PgUp/PgDn scroll, any other key closes";
    assert_screen(&s, 80, 12, "help");
    screen_free(&s);
}

/* A low pane gives rows of its head, from the lowest on, to the rows that it must show; a click
 * hits what is drawn. */
static void test_a_low_pane_shows_what_matters(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    struct pane *p = s.f.pane[0] = &s.pane[0];
    s.f.n_pane = 1;
    for (int h = 10; h <= 20; h++) {
        *p = (struct pane){.rows = p->rows, .head = 8, .least = 4, .scroll_to = 11};
        grid_resize(&s.g, 80, h);
        frame_draw(&s.f, &s.g);
        FREED(buf_free) struct buf text = {0};
        grid_to_text(&s.g, &text);
        assert_non_null(strstr(text.p, "PAGES"));
        for (int k = 7; k < 11; k++) { /* sheet rows 8 to 11 */
            FREED(free_at) char *row = xasprintf("\nrow %d", k);
            assert_non_null(strstr(text.p, row));
        }
        assert_int_equal(p->still, min_int(8, h - 3 - 4)); /* 3: below the pane */
        for (int y = 0; y < p->still + 4; y++)
            assert_int_equal(frame_hit(&s.f, 80, h, 0, y).row,
                             y < p->still ? y : 8 + y - p->still);
    }
    screen_free(&s);
}

/* What is too long says so at its end, and warnings stay. */
static void test_what_is_cut_ends_in_a_mark(void **state)
{
    (void)state;
    struct screen s;
    char *queued[] = {"a message that waits and that is much longer than the screen is wide, "
                      "really"};
    screen_init(&s);
    transcript_user(&s.talk, 1, "hello", 5);
    s.f.pane[0] = &s.pane[0];
    s.f.n_pane = 1;
    sheet_truncate(&s.pane[0].rows, 1);
    line(&s.pane[0].rows, ST_TEXT, "a row of the pane that has more cells than the pane of this "
                                   "screen has");
    line(&s.pane[0].rows, ST_TEXT, "blanks at the end of a row are not cut                         "
                                   "           ");
    s.f.queued = queued;
    s.f.n_queued = 1;
    s.f.hint = "a hint that is longer than the rule above the input of a narrow screen, "
    "and stays whole";
    s.f.attached = "one-long-file-name.txt 1.2 kB, another-long-file-name.c 34.5 kB, third 3 B";
    sheet_clear(&s.status);
    sheet_add(&s.status, ST_TEXT, "ctx 1.2k/4.1k");
    static const char *const part[] = {"full 20% swa 40%", "MAL 5.2", "1402 t/s", "step 13.105",
                                       "more of this"};
    for (int i = 0; i < 5; i++) {
        sheet_add(&s.status, ST_DIM, " · ");
        sheet_add(&s.status, ST_TEXT, part[i]);
    }
    sheet_add(&s.status, ST_DIM, " · ");
    sheet_add(&s.status, ST_BAD, "BUG 24617");
    sheet_add(&s.status, ST_DIM, " · ");
    line(&s.status, ST_GOOD, "REC");
    assert_screen(&s, 100, 14, "cut");
    s.f.n_pane = 0;
    assert_screen(&s, 44, 14, "cut-narrow");
    s.f.ascii = s.talk.ascii = true;
    char *t = draw(&s, 44, 14);
    assert_non_null(strstr(t, "~"));
    assert_null(strstr(t, "…"));
    free(t);
    screen_free(&s);
}

static void test_attachments_stand_above_the_message(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    s.f.attached = "notes.txt 1.2 kB";
    assert_screen(&s, 60, 12, "attached");
    assert_int_equal(s.g.y, 10);
    type(&s, "what is this?");
    s.f.ascii = true;
    char *t = draw(&s, 60, 12);
    assert_non_null(strstr(t, "+ notes.txt 1.2 kB  Ctrl-X d drops\n> what is this?"));
    free(t);
    screen_free(&s);
}

/* Which part has the keys is seen without colours: a reversed title, and no cursor in the
 * message. */
static void test_the_focus_is_seen(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    chat(&s);
    s.f.pane[0] = &s.pane[0];
    s.f.n_pane = 1;
    for (int w = 80; w <= 120; w += 40)
        for (s.f.focus = -1; s.f.focus < 1; s.f.focus++) {
            int reversed = 0;
            char *t = draw(&s, w, 18);
            for (int i = 0; i < w * 18; i++)
                reversed += (s.g.cell[i].flags & CELL_REVERSE) != 0;
            assert_int_equal(reversed > 20, s.f.focus == 0);
            assert_int_equal(s.g.x < 0, s.f.focus == 0);
            assert_int_equal(strstr(t, "Esc or typing returns") != NULL, s.f.focus == 0);
            assert_int_equal(strstr(t, "has the keys") != NULL, s.f.focus == 0);
            free(t);
        }
    screen_free(&s);
}

static void show(struct screen *s, const char *text)
{
    struct sheet rows = {0};
    line(&rows, ST_TEXT, text);
    transcript_sheet(&s->talk, ENTRY_SHEET, &rows);
    sheet_free(&rows);
}

/* After a pause a reply goes on below the commands that were run meanwhile; the cursor and a window
 * that was scrolled back stay on their entries. */
static void test_a_reply_goes_on_below_what_was_shown_meanwhile(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    transcript_user(&s.talk, 1, "go", 2);
    transcript_append(&s.talk, 1, ENTRY_REPLY, "the reply", 9);
    show(&s, "a tree");
    show(&s, "a page");
    s.talk.cursor = 1;
    transcript_go_on(&s.talk, 1);
    transcript_append(&s.talk, 1, ENTRY_REPLY, " goes on", 8);
    assert_int_equal(s.talk.cursor, 3);
    char *t = draw(&s, 80, 18);
    assert_true(strstr(t, "a tree") < strstr(t, "a page"));
    assert_true(strstr(t, "a page") < strstr(t, "the reply goes on"));
    free(t);
    s.talk.tail = false;
    s.talk.top = 2; /* "a page" */
    show(&s, "a pool");
    transcript_go_on(&s.talk, 1);
    transcript_append(&s.talk, 1, ENTRY_REPLY, ", and on", 8);
    assert_string_equal(s.talk.entry[4].text.p, "the reply goes on, and on");
    assert_int_equal(s.talk.top, 2);
    transcript_end(&s.talk, 1);
    show(&s, "the last word");
    transcript_go_on(&s.talk, 1);
    assert_string_equal(s.talk.entry[4].text.p, "the reply goes on, and on");
    screen_free(&s);
}

static void test_ascii(void **state)
{
    (void)state;
    struct screen s;
    screen_init(&s);
    s.talk.ascii = s.f.ascii = true;
    chat(&s);
    s.f.pane[0] = &s.pane[0];
    s.f.n_pane = 1;
    sheet_clear(&s.status);
    line(&s.status, ST_TEXT, "ctx 12/4.1k | REC");
    char *t = draw(&s, 100, 20);
    for (char *p = t; *p; p++)
        assert_true((unsigned char)*p < 0x80);
    free(t);
    assert_screen(&s, 100, 20, "ascii");
    screen_free(&s);
}

/* ---- layout ---- */

static bool apart(struct rect a, struct rect b)
{
    return a.w == 0 || a.h == 0 || b.w == 0 || b.h == 0 || a.x + a.w <= b.x || b.x + b.w <= a.x ||
           a.y + a.h <= b.y || b.y + b.h <= a.y;
}

static void assert_layout(int w, int h, const struct shape *s)
{
    struct layout l;
    frame_layout(w, h, s, &l);
    assert_int_equal(l.too_small, w < MIN_WIDTH || h < MIN_HEIGHT);
    if (l.too_small)
        return;
    struct rect r[5 + MAX_PANES] = {l.talk, l.rule, l.time, l.input, l.status};
    int rows = 0;
    memcpy(r + 5, l.pane, sizeof l.pane);
    for (int i = 0; i < 5 + MAX_PANES; i++) {
        assert_true(r[i].x >= 0 && r[i].y >= 0);
        assert_true(r[i].x + r[i].w <= w && r[i].y + r[i].h <= h);
        for (int k = 0; k < i; k++)
            assert_true(apart(r[i], r[k]));
    }
    assert_true(l.input.h >= 1 && l.input.h <= max_int(h / 3, 1));
    assert_true(l.n_pane <= s->n_pane && (l.n_pane > 0) == (s->n_pane > 0));
    assert_int_equal(l.pane_only, s->n_pane > 0 && w < 100 && !s->words);
    assert_int_equal(l.below, s->n_pane > 0 && w < 100 && s->words);
    assert_int_equal(l.time.h, s->time && h >= 16);
    assert_true(l.pane_only || l.talk.h >= (l.below ? 2 : 4));
    assert_true(l.pane_only || l.talk.w >= 40);
    /* they fill their column, and each has room for some rows */
    for (int i = 0; i < l.n_pane; i++) {
        assert_true(l.pane[i].h >= 2 && l.pane[i].w >= (w < 100 ? w : 24));
        assert_true(l.n_pane == 1 || l.pane[i].h >= 4);
        rows += l.pane[i].h;
    }
    if (l.n_pane > 0)
        assert_int_equal(rows, l.below ? l.rule.y - l.talk.h : l.rule.y);
}

static void test_parts_never_overlap_nor_leave_the_screen(void **state)
{
    (void)state;
    for (int w = 1; w <= 240; w += 1 + w / 40)
        for (int h = 1; h <= 80; h++)
            for (int panes = 0; panes <= MAX_PANES; panes++)
                for (int rows = 1; rows < 40; rows += 6) {
                    struct shape s = {.n_pane = panes, .input_rows = rows, .time = rows & 2,
                                      .words = h & 1,
                                      .side = below(4) ? below(120) : 0};
                    for (int i = 0; i < MAX_PANES; i++)
                        s.weight[i] = below(3) ? below(40) : 0;
                    assert_layout(w, h, &s);
                }
}

/* ---- anything, at any size ---- */

static void assert_cells_are_safe(const struct grid *g)
{
    for (int i = 0; i < g->w * g->h; i++) {
        const struct cell *c = &g->cell[i];
        assert_true(c->width <= 2);
        if (c->width == 2)
            assert_true((i + 1) % g->w != 0 && g->cell[i + 1].width == 0);
        if (c->width == 0)
            assert_true(i % g->w != 0 && g->cell[i - 1].width == 2);
        for (int k = 0; k <= CELL_MARKS && c->cp[k]; k++) {
            utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c->cp[k]);
            assert_true(cat != UTF8PROC_CATEGORY_CC && cat != UTF8PROC_CATEGORY_CF &&
                        cat != UTF8PROC_CATEGORY_CN && cat != UTF8PROC_CATEGORY_CS &&
                        cat != UTF8PROC_CATEGORY_ZL && cat != UTF8PROC_CATEGORY_ZP);
            assert_int_equal(text_cp_width(c->cp[k]) > 0, k == 0);
        }
    }
}

/* The corpus as everything a user, a model or a file can put on the screen. */
static void fill_hostile(struct screen *s, struct buf *in, char **queued)
{
    transcript_user(&s->talk, 1, in->p, in->n);
    transcript_append(&s->talk, 1, ENTRY_REPLY, in->p, in->n);
    input_set(&s->input, in->p, in->n);
    sheet_addn(&s->status, ST_TEXT, in->p, in->n);
    for (int i = 0; i < 2; i++) {
        sheet_addn(&s->pane[i].rows, ST_TEXT, in->p, in->n);
        sheet_line(&s->pane[i].rows);
        s->f.pane[i] = &s->pane[i];
    }
    queued[0] = in->p;
    s->f.hint = in->p;
}

static void test_hostile_state_at_any_size(void **state)
{
    (void)state;
    DIR *d = opendir("tests/corpus");
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512], *queued[1] = {""};
        struct choice choice[1];
        struct buf in = {0};
        struct screen s;
        snprintf(path, sizeof path, "tests/corpus/%s", f->d_name);
        if (f->d_name[0] == '.' || !buf_read_file(&in, path, 1 << 20, NULL))
            continue;
        screen_init(&s);
        s.f.queued = queued;
        fill_hostile(&s, &in, queued);
        choice[0] = (struct choice){in.p, in.p};
        s.f.attached = in.p;
        for (int i = 0; i < 60; i++) {
            s.f.n_pane = below(3);
            s.f.focus = s.f.n_pane ? below(s.f.n_pane + 1) - 1 : -1;
            s.f.n_queued = s.f.n_choice = below(2);
            s.f.choice = choice;
            s.f.total = below(4) ? 0 : 10;
            s.input.searching = below(5) == 0;
            s.f.overlay = below(6) ? NULL : &s.pane[0];
            free(draw(&s, 1 + below(200), 1 + below(60)));
            assert_cells_are_safe(&s.g);
            assert_true(s.g.x < s.g.w && s.g.y < s.g.h);
        }
        screen_free(&s);
        buf_free(&in);
    }
    closedir(d);
}

/* After any sequence of sizes the screen is what a fresh one of the last size shows. */
static void test_resizing_leaves_no_trace(void **state)
{
    (void)state;
    struct screen s, fresh;
    screen_init(&s);
    screen_init(&fresh);
    chat(&s);
    chat(&fresh);
    for (int i = 0; i < 1000; i++) {
        int w = 1 + below(180), h = 1 + below(60);
        s.f.n_pane = fresh.f.n_pane = below(2);
        s.f.pane[0] = &s.pane[0];
        fresh.f.pane[0] = &fresh.pane[0];
        fresh.pane[0].top = 0;
        s.pane[0].top = 0;
        char *a = draw(&s, w, h);
        for (int k = 0; k < fresh.talk.n; k++)
            fresh.talk.entry[k].width = 0; /* everything is laid out anew */
        char *b = draw(&fresh, w, h);
        assert_string_equal(a, b);
        free(a);
        free(b);
    }
    screen_free(&s);
    screen_free(&fresh);
}

/* The rows of a character's picture. */
static void draw_letter(const char *text, uint8_t width, uint16_t row[GLYPH_H])
{
    struct cell c = {.width = width};
    for (int n = 0; *text; n++) {
        assert_true(n < 1 + CELL_MARKS);
        c.cp[n] = utf8_at(text);
        text += utf8_len(text);
    }
    font_draw(&c, false, false, row);
}

/* A letter with an accent is the letter and, in rows that the letter leaves empty, the accent,
 * which is higher over a tall letter; composed or not is the same. What has no shape is a hollow
 * box. */
static void test_letters_with_accents_are_drawn(void **state)
{
    (void)state;
    static const struct { const char *whole, *parts, *letter; } cases[] = {
        {"é", "e\u0301", "e"}, {"É", "E\u0301", "E"}, {"ñ", "n\u0303", "n"},
        {"Ü", "U\u0308", "U"}, {"ç", "c\u0327", "c"}};
    uint16_t whole[GLYPH_H], parts[GLYPH_H], letter[GLYPH_H], box[GLYPH_H], half[GLYPH_H];
    int top[2] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int more = 0, first = GLYPH_H;
        draw_letter(cases[i].whole, 1, whole);
        draw_letter(cases[i].parts, 1, parts);
        draw_letter(cases[i].letter, 1, letter);
        assert_memory_equal(whole, parts, sizeof whole);
        for (int y = 0; y < GLYPH_H; y++) {
            assert_int_equal(whole[y] & letter[y], letter[y]);
            more += whole[y] != letter[y];
            first = whole[y] && y < first ? y : first;
        }
        assert_in_range(more, 2, 8);
        if (i < 2)
            top[i] = first;
    }
    assert_true(top[1] < top[0]); /* over E, and over e */
    draw_letter("漢", 1, box);
    assert_int_equal(box[4], box[5]);
    assert_int_equal(box[10], 3 << 1 | 3 << (GLYPH_W - 3)); /* two sides */
    draw_letter("漢", 2, half);
    assert_int_equal(half[10], 3 << 1); /* the left half of a wide one, ... */
    draw_letter("漢", 0, half);
    assert_int_equal(half[10], 3 << (GLYPH_W - 3)); /* ... and the right one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters_with_accents_are_drawn),
        cmocka_unit_test(test_a_chat),
        cmocka_unit_test(test_while_a_reply_runs),
        cmocka_unit_test(test_messages_are_whole),
        cmocka_unit_test(test_matches_are_marked),
        cmocka_unit_test(test_a_match_goes_on_in_the_next_row),
        cmocka_unit_test(test_scrolled_back),
        cmocka_unit_test(test_the_input_grows),
        cmocka_unit_test(test_completion_and_search),
        cmocka_unit_test(test_panes),
        cmocka_unit_test(test_a_low_pane_shows_what_matters),
        cmocka_unit_test(test_what_is_cut_ends_in_a_mark),
        cmocka_unit_test(test_attachments_stand_above_the_message),
        cmocka_unit_test(test_the_focus_is_seen),
        cmocka_unit_test(test_a_reply_goes_on_below_what_was_shown_meanwhile),
        cmocka_unit_test(test_ascii),
        cmocka_unit_test(test_parts_never_overlap_nor_leave_the_screen),
        cmocka_unit_test(test_hostile_state_at_any_size),
        cmocka_unit_test(test_resizing_leaves_no_trace),
        cmocka_unit_test(test_a_long_reply_is_laid_out_in_parts),
    };
    return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
