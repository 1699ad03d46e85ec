/* tui.h - the state of the full screen, shared by the files tui*.c. Main thread only. */
#ifndef AERIE_TUI_H
#define AERIE_TUI_H

#include "repl/tui/frame.h"
#include "repl/repl.h"
#include "repl/tui/term.h"

enum pane_kind { PANE_PAGES, PANE_TREE, PANE_POOL, N_PANE_KINDS };

struct tui {
    struct app *app;
    struct transcript talk;
    struct recall recall;
    struct input input;
    struct keys keys;
    struct grid grid;
    struct frame frame; /* rebuilt before each drawing */
    int w, h;

    struct pane pane[N_PANE_KINDS];
    enum pane_kind open[MAX_PANES]; /* panes that are open, the newest last */
    int n_open, focus;              /* focus: index into open, -1: the input */
    int page_at;     /* position under the cursor of the Pages pane, -1: the newest */
    int page_cells, page_unit; /* cells in a row of its map and tokens in a cell, as drawn last */
    char page_session[SESSION_ID]; /* whose position it is */
    struct pane help;
    bool help_on;

    struct status now; /* as drawn */
    bool have_view, view_old; /* old: events came since it was taken */
    uint64_t view_ns;
    struct sheet status;

    char **queued; /* messages and commands that wait for the reply's end */
    struct attached *queued_files; /* what goes with each */
    int n_queued, cap_queued;
    struct choice *choice; /* completion candidates; the word they replace begins at choice_from */
    int n_choice, cap_choice, chosen;
    size_t choice_from;

    char hint[160];
    uint64_t hint_until; /* ns; 0: none */
    bool hint_busy;      /* the hint is about the running reply and ends with it */
    struct buf files;    /* the attachments as the input line shows them */
    uint32_t background; /* of the terminal, 0xRRGGBB, ... */
    bool background_known;
    uint64_t stop_ns;    /* of the last Ctrl-C */
    bool spent;          /* the SIGINT that waits has ended a command: it stops nothing more */
    int done, total;     /* prefill */
    struct replies {
        struct buf *text; /* (n) what waits to be shown */
        int n, done;      /* replies of the batch; those that are complete on the screen */
        int headed;       /* those whose heading is there */
    } replies;
    uint64_t turn_ns;    /* when the running turn began */
    int prompt_tokens, reused;
    bool think; /* as the setting was last seen */

    bool busy, dirty;
    uint64_t frame_ns;  /* of the last drawing */
    uint64_t drain_ns;  /* not before: events of the engine */
    uint64_t asked_ns;  /* the terminal was asked for its background: keys.answer_due */
    bool quit, lost;    /* lost: the terminal is gone, draw no more */
    struct buf last_words; /* for standard error, once the screen is restored */
    int exit_code;
};

/* ---- tui.c ---- */
/* A short message in the rule; it ends with the next key, or after some seconds. */
void tui_hint(struct tui *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tui_hint_end(struct tui *t);
char *tui_unqueue(struct tui *t); /* takes back what was queued last, its files attached again */
void tui_submit(struct tui *t, char *text); /* runs, sends or queues; takes text */
/* Around work that reads no keys (a command, a completion): Ctrl-C interrupts it. */
void tui_work(struct tui *t, bool on);
void tui_note(struct tui *t, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- actions.c ---- */
void tui_key(struct tui *t, const struct key *k);
void tui_stop(struct tui *t); /* Ctrl-C, from the keyboard or as a signal */
void tui_choices_clear(struct tui *t);

/* ---- replies.c ---- */
void replies_event(struct tui *t, const struct event *ev); /* of a batch or a calibration, else nothing */
void replies_free(struct tui *t);

/* ---- pane.c ---- */
void tui_panes_init(struct tui *t);
void tui_panes_free(struct tui *t);
/* Opens or closes the pane of a key; false: the key (enum key_code) belongs to no pane. */
bool tui_pane_open_key(struct tui *t, int code);
void tui_pane_close(struct tui *t, int index);
/* Writes the open panes anew from the view; width: cells of a pane. */
void tui_panes_update(struct tui *t);
bool tui_pane_key(struct tui *t, const struct key *k); /* false: the key is not the pane's */
void tui_help_open(struct tui *t);

/* ---- pages.c ---- */
void tui_pages_write(struct tui *t, struct pane *p, int width);
void tui_pages_move(struct tui *t, int cells, int rows);

/* ---- edit.c ---- */
/* Opens the text in the user's editor; false and *e when it failed, the text is untouched then. */
bool tui_edit(struct input *in, struct err *e);

#endif
