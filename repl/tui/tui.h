/* tui.h - the state of the full screen, shared by the files of repl/tui. Main thread only. */
#pragma once

#include "repl/text/align.h"
#include "repl/tui/frame.h"
#include "repl/repl.h"
#include "repl/tui/term.h"

enum pane_kind { PANE_PAGES, PANE_TREE, PANE_STEPS, PANE_POOL, PANE_WORD, PANE_WHY, N_PANE_KINDS };

struct tui;

/* Rows that cover the screen: the help, the session browser. There is one at a time; its owner
 * fills the functions, each of which may be NULL except write. */
struct overlay {
    struct pane pane;   /* the first row is the title; zeroed and freed by tui_overlay_*() */
    const char *footer; /* a line about the keys, in the place of the status */
    /* Writes pane.rows for w cells and h rows; called when the overlay opens, after its keys and
     * after a resize. */
    void (*write)(struct tui *t, struct overlay *o, int w, int h);
    /* False: the key closes the overlay. NULL: tui_overlay_scroll(). */
    bool (*key)(struct tui *t, struct overlay *o, const struct key *k);
    void (*click)(struct tui *t, struct overlay *o, int row); /* row of pane.rows */
    void (*close)(struct tui *t, struct overlay *o);          /* frees state */
    void *state;
};

/* The steps of the session, and the tokens and the text of the running turn: see time.c. */
struct time_axis {
    struct timeline line;
    struct align align;       /* its text whose tokens no event names */
    int turn;                 /* the turn of the tokens and the text below */
    struct token_mark *token; /* (n_token) its tokens, without their bytes */
    int n_token;
    struct arrived *piece;    /* (n_piece) where its text is in the transcript */
    int n_piece, n_marked; /* n_marked: pieces whose token has its mark */
    size_t bytes, shown[2];   /* bytes of its text; of these, in the reply and in the reasoning */
    struct address seen;      /* the app's address when the screen was drawn last */
};

/* A search in what is shown: see finder.c. */
struct finder {
    bool on, typing;
    struct pane *pane; /* NULL: in the transcript */
    struct find text;
    struct buf line;   /* what the rule says */
    int entry, from;   /* where the search begins: a row of the pane, or of an entry */
    bool tail;         /* the view when it began */
    int top, top_row;
};

struct tui {
    struct app *app;
    struct finder find;
    struct time_axis time;
    bool scrubbing; /* the left button is held down since a click on the timeline */
    int layout;     /* chosen last, -1: none */
    bool keep_layout; /* its file is written */
    struct transcript talk;
    struct recall recall;
    struct input input;
    struct keys keys;
    bool keys_left; /* a signal came before all keys that were read were handled */
    struct grid grid;
    struct frame frame; /* rebuilt before each drawing */
    int w, h;

    struct pane pane[N_PANE_KINDS];
    enum pane_kind open[MAX_PANES]; /* panes that are open, the newest last */
    char *stepped;                  /* the latest command that Enter repeats; NULL: none */
    bool single_keys;               /* letters step a paused turn, while the input is empty */
    int n_open, focus;              /* focus: index into open, or a value of enum focus */
    int side, weight[N_PANE_KINDS]; /* how panes share the screen: see struct shape */
    struct word word; /* the word under the cursor; w == 0: there is no cursor */
    int steps_first;  /* index of the first step that the Steps pane shows */
    int page_at;     /* position under the cursor of the Pages pane, -1: the newest */
    int page_cells, page_unit, page_rows; /* of the Pages pane's map when drawn last: cells per row,
                                             tokens per cell, rows of the screen per row */
    char page_session[SESSION_ID]; /* session of page_at */
    struct overlay over;
    bool over_on;

    struct status now; /* the status that is drawn */
    bool have_view, view_old; /* old: there were events since the view was copied */
    uint64_t view_ns;
    struct {
        struct sheet rows;     /* of the Pool pane: written again when a reply has ended */
        struct step_range of;  /* what they show */
        struct address at;
        int turn, width;
    } served;
    int gauge_ms;      /* interval between copies of a server's metrics; 0: there are none */
    uint64_t gauge_ns; /* when they were copied last */
    struct sheet status;

    char *refused; /* the latest line, if it was a message that was not sent; Up brings it back */
    char **queued; /* messages and commands that wait for the reply's end */
    struct attached *queued_files; /* the files attached to each */
    int n_queued;
    struct choice *choice; /* completion candidates; the word they replace begins at choice_from */
    int n_choice, chosen;
    size_t choice_from;

    char hint[1024];
    uint64_t hint_until; /* ns; 0: none */
    bool hint_busy;      /* the hint is about the running reply and ends with it */
    struct buf files;    /* text of the attachments in the input line */
    uint32_t background; /* of the terminal, 0xRRGGBB, if background_known */
    bool background_known;
    uint64_t stop_ns;    /* when Ctrl-C was pressed last */
    bool spent;          /* the pending SIGINT has already ended a command: ignore it */
    int done, total;     /* prefill */
    struct replies {
        struct buf *text; /* (n) text that waits to be shown */
        int n, done;      /* replies of the batch; replies that are complete on the screen */
        int headed;       /* replies whose heading is on the screen */
    } replies;
    uint64_t turn_ns;    /* when the running turn began */
    bool was_paused;     /* the turn has paused since its latest text */
    struct reuse_view reuse; /* of the running turn */
    bool think; /* last seen value of the setting */

    bool busy, dirty;
    uint64_t frame_ns;  /* of the last drawing */
    uint64_t drain_ns;  /* the engine's events are not read before this time */
    uint64_t asked_ns;  /* when the terminal was asked for its background (keys.answer_due) */
    bool quit, lost;    /* lost: the terminal has hung up, nothing is drawn any more */
    struct buf last_words; /* printed on standard error after the screen is restored */
    int exit_code;
};

/* ---- tui.c ---- */
/* Shows a short message in the rule until the next key, or for some seconds. */
void tui_hint(struct tui *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tui_hint_end(struct tui *t);
/* Removes the message queued last and attaches its files again; NULL: none. The caller frees. */
char *tui_unqueue(struct tui *t);
/* Runs a command, sends a message, or queues either; takes ownership of text. */
void tui_submit(struct tui *t, char *text);
/* Call with on = true before and false after work that reads no keys (a command, a completion), so
 * that Ctrl-C interrupts it. */
void tui_work(struct tui *t, bool on);
void tui_note(struct tui *t, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

enum theme tui_theme(const struct tui *t); /* in use: dark or light */

/* ---- greeting.c ---- */
/* Names program and model; first: nothing was ever typed here, so the keys are named, too. */
void tui_greet(struct tui *t, bool first);

/* ---- actions.c ---- */
void tui_key(struct tui *t, const struct key *k);
void tui_stop(struct tui *t); /* Ctrl-C, from the keyboard or as a signal */
void tui_choices_clear(struct tui *t);

/* ---- replies.c ---- */
/* Handles an event of a batch or a calibration; ignores others. */
void replies_event(struct tui *t, const struct event *ev);
void replies_free(struct tui *t);

/* ---- pane.c ---- */
void tui_panes_init(struct tui *t);
void tui_panes_free(struct tui *t);
/* Opens or closes the pane of a key; false: the key (enum key_code) belongs to no pane. */
bool tui_pane_open_key(struct tui *t, int code);
void tui_pane_close(struct tui *t, int index);
bool tui_shows_time(const struct tui *t);
/* The layout of this screen with so many panes. */
void tui_layout(const struct tui *t, int n_pane, struct layout *l);
/* Writes the rows of the open panes from the current view. */
void tui_panes_update(struct tui *t);
/* Draws all rows of a pane, open or not. False and *e: there is no pane of this name. */
bool tui_pane_draw(struct tui *t, const char *name, struct grid *g, struct err *e);
bool tui_pane_key(struct tui *t, const struct key *k); /* false: the key is not the pane's */

/* ---- time.c ---- */
void time_free(struct tui *t);
/* Takes a step, its tokens and their text from an event; call after the transcript has its text. */
void time_event(struct tui *t, const struct event *ev);
/* Shows the step of this index of the timeline; outside of it: now. */
void time_go(struct tui *t, int index);
void time_changed(struct tui *t); /* the app's address has changed */
void time_seen(struct tui *t);    /* the same, if it is not the one that is shown */
/* The keys of the time axis, [ ] { } and the dot, which work unless the input has the focus. */
bool time_key(struct tui *t, const struct key *k);
bool time_line_key(struct tui *t, const struct key *k); /* the same keys and the arrows, if the
                                                           timeline has the focus */
int time_index(const struct tui *t); /* of the step that is shown; -1: there is none */

/* ---- overlay.c ---- */
/* Opens an overlay in the place of the one that is open, if any. */
void tui_overlay_open(struct tui *t, const struct overlay *o);
void tui_overlay_close(struct tui *t); /* does nothing if none is open */
void tui_overlay_write(struct tui *t); /* writes its rows again */
/* Scrolls by arrows, PgUp, PgDn, Home and End; false: another key. */
bool tui_overlay_scroll(struct tui *t, struct overlay *o, const struct key *k);
bool tui_overlay_key(struct tui *t, const struct key *k); /* false: the key has closed the
                                                             overlay */
void tui_help_open(struct tui *t);

/* ---- list.c ---- */
/* A list that a typed line narrows: the line, the selected row, the first row drawn, and the rows
 * drawn last. The owner frees query. */
struct picker {
    struct buf query;
    int at, top, rows;
};
bool list_type(struct buf *line, const struct key *k);        /* false: the key types nothing */
bool list_move(struct picker *p, int n, const struct key *k); /* n: rows; false: another key */
void list_keep(struct picker *p, int n); /* moves `at` into the list and `top` so that it is seen */
/* Appends one line's worth of text in at most `cells` cells. */
void list_cut(struct sheet *out, enum style st, const char *text, int cells);

/* ---- finder.c ---- */
void finder_begin(struct tui *t); /* in the pane that has the keys, else in the transcript */
void finder_end(struct tui *t);
void finder_update(struct tui *t); /* before drawing: the matches in what is shown now */
bool finder_key(struct tui *t, const struct key *k); /* false: the key is not the finder's */

/* ---- shot.c ---- */
/* face.shot: the screen, or all rows of a pane, as a picture. */
bool tui_shot(struct app *a, const char *pane, enum picture kind, struct buf *out, struct err *e);

/* ---- palette.c ---- */
void tui_palette_open(struct tui *t);

/* ---- steps.c ---- */
void tui_steps_write(struct tui *t, struct pane *p, int width);

/* ---- word.c ---- */
void tui_word_write(struct tui *t, struct pane *p, int width);
/* Moves the focus to the cursor on the words. False: there is no word. */
bool word_begin(struct tui *t);
/* Appends the ids of the tokens of the word under the cursor, with blanks between them. */
void word_ids(const struct tui *t, struct buf *out);
bool word_key(struct tui *t, const struct key *k); /* false: the key is not the cursor's */
void word_click(struct tui *t, int entry, int row, int x);
void word_forget(struct tui *t); /* entries were removed: there is no cursor any more */
/* ---- browser.c ---- */
void tui_browser_open(struct tui *t); /* the saved sessions */

/* ---- pages.c ---- */
void tui_pages_write(struct tui *t, struct pane *p, int width);
void tui_pages_move(struct tui *t, int cells, int rows);
void tui_pages_click(struct tui *t, int row, int x); /* row: below the head */

/* ---- mouse.c ---- */
void tui_mouse(struct tui *t, const struct key *k);

/* ---- layouts.c ---- */
void layout_read(struct tui *t, bool keep); /* from the file; keep: changes are written to it */
bool layout_set(struct app *a, const char *name, struct err *e);
bool layout_key(struct tui *t, const struct key *k); /* + - < > in a pane; false: another key */

/* ---- edit.c ---- */
/* Opens the text in the user's editor. False and *e on failure; the text is unchanged then. */
bool tui_edit(struct input *in, struct err *e);
