/* actions.c - handles keys: those of the screen first, then the focused pane's, then the
 * editor's. */
#include "repl/cmd/commands.h"
#include "repl/text/fuzzy.h"
#include "repl/tui/tui.h"

enum { TWICE_MS = 1000 };

/* A character that a person types as part of a message. */
static bool is_text(const struct key *k)
{
    return k->code == K_CHAR && !k->ctrl && !k->alt;
}

/* ---- Ctrl-C ---- */

/* Moves queued messages back into the editor, so that they are not sent after a stop. */
static void unqueue(struct tui *t)
{
    FREED(buf_free) struct buf all = {0}, b = {0};
    buf_add(&all, t->input.text.p, t->input.text.n);
    while (t->n_queued > 0) { /* the newest first */
        FREED(free_at) char *text = tui_unqueue(t);
        buf_clear(&b);
        buf_str(&b, text);
        buf_char(&b, '\n');
        buf_add(&b, all.p, all.n);
        buf_clear(&all);
        buf_add(&all, b.p, b.n);
    }
    while (all.n > 0 && all.p[all.n - 1] == '\n')
        all.n--;
    input_set(&t->input, buf_text(&all), all.n);
}

void tui_stop(struct tui *t)
{
    uint64_t now = clock_ns();
    bool again = t->stop_ns > 0 && now - t->stop_ns < TWICE_MS * (uint64_t)1000000;
    t->stop_ns = t->busy ? now : 0;
    if (again) { /* even if the first Ctrl-C has stopped the reply by now */
        t->quit = true;
        t->exit_code = 130;
    } else if (t->busy) {
        backend_cancel(t->app->backend);
        if (t->n_queued > 0)
            unqueue(t);
        tui_hint(t, "stopping; Ctrl-C again quits");
        t->hint_busy = true;
    } else if (t->input.text.n > 0) {
        free(input_take(&t->input, !t->app->private_)); /* Up shows it again */
    } else {
        tui_hint(t, "Ctrl-D or /bye quits");
    }
    t->dirty = true;
}

/* ---- completion ---- */

void tui_choices_clear(struct tui *t)
{
    for (int i = 0; i < t->n_choice; i++)
        FREE(t->choice[i].text, t->choice[i].help);
    t->n_choice = 0;
    t->chosen = -1;
}

static void add_choice(void *arg, const char *s, const char *help)
{
    struct tui *t = arg;
    for (int i = 0; i < t->n_choice; i++)
        if (strcmp(t->choice[i].text, s) == 0)
            return;
    *APPEND(t->choice, t->n_choice) = (struct choice){
        .text = xstrdup(s), .help = help ? xasprintf("%.*s", (int)strcspn(help, "\n"), help)
                                         : NULL};
}

/* Length of the common prefix of all candidates. */
static size_t common_prefix(const struct tui *t)
{
    const char *first = t->choice[0].text;
    size_t n = strlen(first);
    for (int i = 1; i < t->n_choice; i++)
        for (size_t k = 0; k < n; k++)
            if (t->choice[i].text[k] != first[k])
                n = k;
    while (n > 0 && ((unsigned char)first[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static void accept_choice(struct tui *t, int i)
{
    FREED(buf_free) struct buf b = {0};
    buf_str(&b, t->choice[i].text);
    if (b.n == 0 || b.p[b.n - 1] != '/') /* within a folder completion continues */
        buf_char(&b, ' ');
    input_replace(&t->input, t->choice_from, b.p);
    tui_choices_clear(t);
}

static int by_fit(const void *a, const void *b, void *word)
{
    const struct choice *x = a, *y = b;
    int i = fuzzy_match(word, x->text, NULL, NULL), k = fuzzy_match(word, y->text, NULL, NULL);
    return i != k ? k - i : strcmp(x->text, y->text);
}

/* No candidate begins with the word: offers those that have its letters, the best first. In a path
 * the letters are those of its last part. False: there are none. */
static bool complete_by_letters(struct tui *t, struct buf *line)
{
    size_t from = t->choice_from, kept = 0;
    char *slash = memrchr(line->p + from, '/', line->n - from);
    size_t cut = slash ? (size_t)(slash + 1 - line->p) : from;
    FREED(free_at) char *word = xstrdup(line->p + from);
    line->p[cut] = '\0';
    cmd_complete(t->app, line->p, add_choice, t);
    for (int i = 0; i < t->n_choice; i++) {
        struct choice c = t->choice[i];
        if (fuzzy_match(word, c.text, NULL, NULL) >= 0) {
            t->choice[kept++] = c;
        } else {
            FREE(c.text, c.help);
        }
    }
    t->n_choice = (int)kept;
    if (kept > 0)
        qsort_r(t->choice, kept, sizeof *t->choice, by_fit, word);
    return kept > 0;
}

static void complete(struct tui *t)
{
    FREED(buf_free) struct buf line = {0};
    tui_choices_clear(t);
    buf_add(&line, t->input.text.p, t->input.cursor);
    t->choice_from = 0;
    for (size_t i = 0; i < line.n; i++)
        if (line.p[i] == ' ')
            t->choice_from = i + 1;
    tui_work(t, true);
    cmd_complete(t->app, line.p, add_choice, t);
    bool letters = t->n_choice == 0 && line.n > t->choice_from && line.p[0] == '/' &&
                   complete_by_letters(t, &line);
    tui_work(t, false);
    if (letters && t->n_choice > 1) {
        t->chosen = 0; /* the best one: Enter takes it */
    } else if (t->n_choice == 1) {
        accept_choice(t, 0);
    } else if (t->n_choice > 1) {
        size_t n = common_prefix(t);
        if (n > line.n - t->choice_from) {
            FREED(free_at) char *head = xasprintf("%.*s", (int)n, t->choice[0].text);
            input_replace(&t->input, t->choice_from, head);
        }
    } else if (line.n > 0 && line.p[0] == '/') {
        tui_hint(t, "nothing to complete");
    }
}

/* Handles a key while the list is open. False: the key closed the list and is then handled as
 * usual. */
static bool choices_key(struct tui *t, const struct key *k)
{
    int by = 0;
    if (k->code == K_TAB || k->code == K_DOWN || key_is_ctrl(k, 'n'))
        by = k->shift ? -1 : 1;
    else if (k->code == K_UP || key_is_ctrl(k, 'p'))
        by = -1;
    if (by != 0) {
        int from = t->chosen < 0 && by < 0 ? 0 : t->chosen;
        t->chosen = (from + by + t->n_choice) % t->n_choice;
        return true;
    }
    if (k->code == K_ENTER && t->chosen >= 0) {
        accept_choice(t, t->chosen);
        return true;
    }
    tui_choices_clear(t);
    return k->code == K_ESC || key_is_ctrl(k, 'g');
}

/* ---- keys that work everywhere ---- */

static int page_height(const struct tui *t)
{
    return max_int(frame_talk_height(&t->frame, t->w, t->h), 2);
}

static void scroll(struct tui *t, int rows)
{
    transcript_scroll(&t->talk, rows, page_height(t));
}

static void toggle_think(struct tui *t)
{
    transcript_set_think(&t->talk, !t->talk.think);
    tui_hint(t, t->talk.think ? "thinking is shown" : "thinking is folded");
}

static bool screen_key(struct tui *t, const struct key *k)
{
    switch (k->code) {
    case K_F1: tui_help_open(t); return true;
    case K_F8: tui_browser_open(t); return true;
    default: break;
    }
    if (key_is_ctrl(k, 'p')) {
        tui_palette_open(t);
        return true;
    }
    if (tui_pane_open_key(t, k->code))
        return true;
    if (key_is_ctrl(k, 'l'))
        term_redraw();
    else if (key_is_ctrl(k, 't'))
        toggle_think(t);
    else if (key_is_ctrl(k, 'z'))
        term_suspend(true);
    else
        return false;
    if (key_is_ctrl(k, 'z'))
        term_size(&t->w, &t->h);
    return true;
}

static bool scroll_key(struct tui *t, const struct key *k)
{
    bool empty = t->input.text.n == 0;
    if (k->code == K_PGUP)
        scroll(t, -max_int(page_height(t) - 2, 1));
    else if (k->code == K_PGDN)
        scroll(t, max_int(page_height(t) - 2, 1));
    else if (k->code == K_UP && (k->shift || k->ctrl))
        scroll(t, -1);
    else if (k->code == K_DOWN && (k->shift || k->ctrl))
        scroll(t, 1);
    else if (k->code == K_HOME && empty)
        transcript_to_head(&t->talk);
    else if (k->code == K_END && empty)
        transcript_to_tail(&t->talk);
    else
        return false;
    return true;
}

/* Moves the focus to the next part of the screen: the panes, the words, the timeline, the input. */
static void next_focus(struct tui *t)
{
    if (t->focus >= -1 && t->focus + 1 < t->n_open) {
        t->focus++;
        return;
    }
    if (t->focus >= FOCUS_INPUT && t->talk.n > 0 && word_begin(t)) {
        tui_hint_end(t);
        return;
    }
    tui_hint_end(t);
    t->focus = t->focus != FOCUS_TIME && t->time.line.n > 0 ? FOCUS_TIME : FOCUS_INPUT;
}

/* Handles the keys of the part of the screen that has the focus; false: another key. Letters and
 * digits are never keys of such a part: they are the beginning of a message. */
static bool focus_key(struct tui *t, const struct key *k)
{
    if (k->code == K_ESC)
        t->focus = FOCUS_INPUT;
    else if (k->code == K_TAB)
        next_focus(t);
    else if (t->focus >= 0)
        return tui_pane_key(t, k);
    else if (t->focus == FOCUS_WORDS)
        return word_key(t, k);
    else
        return time_line_key(t, k);
    return true;
}

/* ---- the editor's results ---- */

static void take_back(struct tui *t)
{
    struct key up = {.code = K_UP}, x;
    if (t->n_queued > 0) {
        FREED(free_at) char *text = tui_unqueue(t);
        input_set(&t->input, text, strlen(text));
    } else if (t->refused) {
        input_set(&t->input, t->refused, strlen(t->refused));
        DROP(t->refused);
    } else if (t->recall.n > 0) { /* no message is queued: show the history */
        input_set(&t->input, " ", 1);
        input_key(&t->input, &up, &x);
        buf_clear(&t->input.draft);
    }
}

static void edit_outside(struct tui *t)
{
    struct err e = {0};
    if (!tui_edit(&t->input, &e))
        tui_note(t, ST_BAD, "%s", e.msg);
    term_size(&t->w, &t->h);
}

/* Copies what has the focus: the rows of a pane, the token ids of the word under the cursor, else
 * the newest reply. */
static void copy_focused(struct tui *t)
{
    FREED(buf_free) struct buf text = {0};
    struct err e = {0};
    if (t->focus >= 0)
        sheet_to_text(&t->pane[t->open[t->focus]].rows, false, &text);
    else if (t->focus == FOCUS_WORDS)
        word_ids(t, &text);
    if (!text.n)
        tui_submit(t, xstrdup("/copy"));
    else if (t->app->face.copy(t->app, text.p, text.n, &e))
        tui_hint(t, "%s copied to the terminal's clipboard", t->focus >= 0 ? "the pane" : text.p);
    else
        tui_hint(t, "%s", e.msg);
}

static void after_ctrl_x(struct tui *t, const struct key *x)
{
    if (x->code != K_CHAR) {
        return;
    } else if (x->cp == 'r') {
        transcript_set_raw(&t->talk, !t->talk.raw);
        tui_hint(t, t->talk.raw ? "replies as they came" : "replies rendered");
    } else if (x->cp == 'o') {
        next_focus(t);
    } else if (x->cp == 't') {
        word_begin(t);
    } else if (x->cp == 'y') {
        copy_focused(t);
    } else if (x->cp == '[' || x->cp == ']' || x->cp == '.') {
        if (time_key(t, &(struct key){.code = K_CHAR, .cp = x->cp}) && t->time.line.n > 0)
            t->focus = t->app->at.turn ? FOCUS_TIME : FOCUS_INPUT;
    } else if (x->cp == 'c') {
        t->app->opt.tint = !t->app->opt.tint;
        tui_hint(t, t->app->opt.tint ? "words are tinted: bonus, drafted at depth 1, 2, 3 and more"
                                     : "words are not tinted");
    } else if (x->cp == 's') {
        t->single_keys = !t->single_keys;
        t->view_old = true;
        tui_hint(t, t->single_keys ? "single keys: s step, p phase, n next, f finish, c continue, "
                                     "w where; any other key types; Ctrl-X s ends this"
                                   : "single keys are off");
    } else if (x->cp == 'd' && app_attached(t->app) > 0) {
        int last = t->app->attached.n - 1;
        tui_hint(t, "%.100s is not in the message any more", t->app->attached.file[last].name);
        app_drop(t->app, last);
    } else {
        tui_hint(t, "Ctrl-X: t words, [ ] time, o next part, y copies, c tints, r raw text, "
                    "s single keys, Ctrl-E editor, d drops a file");
    }
}

/* With single keys on, and while the input is empty, a letter steps a paused turn. False: another
 * key. */
static bool single_key(struct tui *t, const struct key *k)
{
    static const struct { char key; const char *command; } keys[] = {
        {'s', "/step"}, {'p', "/phase"}, {'n', "/next"}, {'f', "/finish"}, {'c', "/continue"},
        {'w', "/where"},
        {'S', "/rstep"}, {'N', "/goto 0"}};
    if (!t->single_keys || k->code != K_CHAR || k->ctrl || k->alt || t->input.text.n ||
        t->input.searching || t->input.after_x || !app_paused(t->app))
        return false;
    for (size_t i = 0; i < LEN(keys); i++)
        if (k->cp == (uint32_t)keys[i].key) {
            tui_submit(t, xstrdup(keys[i].command));
            return true;
        }
    return false;
}

static void editor_key(struct tui *t, const struct key *k)
{
    struct key x;
    bool enter = k->code == K_ENTER && !k->alt && !k->shift && !k->ctrl;
    if (enter && t->input.text.n == 0 && !t->input.searching && app_attached(t->app) > 0) {
        tui_submit(t, xstrdup("")); /* files without text are a message, too */
        return;
    }
    if (enter && t->input.text.n == 0 && !t->input.searching && t->stepped &&
        app_paused(t->app)) {
        tui_submit(t, xstrdup(t->stepped));
        return;
    }
    switch (input_key(&t->input, k, &x)) {
    case IN_SEND: tui_submit(t, input_take(&t->input, !t->app->private_)); break;
    case IN_EDITOR: edit_outside(t); break;
    case IN_COMPLETE: complete(t); break;
    case IN_EOF: t->quit = true; break;
    case IN_STOP: tui_stop(t); break;
    case IN_RECALL_QUEUED: take_back(t); break;
    case IN_FULL: tui_hint(t, "a message holds at most 1 MiB; the rest was dropped"); break;
    case IN_OTHER:
        if (x.code != K_NONE)
            after_ctrl_x(t, &x);
        else if (k->code == K_ESC && t->n_open > 0)
            t->focus = t->n_open - 1;
        break;
    default: break;
    }
}

/* Whether a key begins a search: Ctrl-F, or / in a pane. In the help / begins a command. */
static bool finds(const struct tui *t, const struct key *k)
{
    bool in_pane = t->over_on ? !t->over.key : t->focus >= 0;
    if (t->input.after_x || t->input.searching || t->n_choice > 0 || (t->over_on && !in_pane))
        return false;
    return key_is_ctrl(k, 'f') || (!t->over_on && in_pane && is_text(k) && k->cp == '/');
}

void tui_key(struct tui *t, const struct key *k)
{
    t->dirty = true;
    if (k->code == K_BACKGROUND) { /* the terminal's answer, not a key press */
        t->background = k->cp;
        t->background_known = true;
        term_answered();
        return;
    }
    if (k->code == K_MOUSE) {
        if (k->mouse == MOUSE_PRESS)
            tui_choices_clear(t);
        if (t->app->opt.mouse == 0)
            tui_mouse(t, k);
        return;
    }
    tui_hint_end(t);
    if (!key_is_ctrl(k, 'c'))
        t->stop_ns = 0;
    if (finder_key(t, k))
        return;
    if (finds(t, k)) {
        finder_begin(t);
        return;
    }
    if (t->over_on && !key_is_ctrl(k, 'l') && !key_is_ctrl(k, 'z') &&
        (tui_overlay_key(t, k) || !is_text(k)))
        return;
    if (t->n_choice > 0 && choices_key(t, k))
        return;
    bool bare = !t->input.after_x && !t->input.searching;
    if ((bare || key_is_ctrl(k, 'z')) && screen_key(t, k))
        return;
    if (t->focus != FOCUS_INPUT && !t->input.after_x) {
        if (focus_key(t, k))
            return;
        if (!key_is_ctrl(k, 'x') && !key_is_ctrl(k, 'c') && k->code != K_PGUP && k->code != K_PGDN)
            t->focus = FOCUS_INPUT; /* text, a paste or a key of the editor is meant for the
                                       message */
    }
    if (!t->input.searching && !t->input.after_x && scroll_key(t, k))
        return;
    if (!single_key(t, k))
        editor_key(t, k);
}
