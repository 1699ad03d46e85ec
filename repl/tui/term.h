/* term.h - the terminal; all code that uses curses.
 *
 * The terminal is restored however the program ends: by term_close(), by die() through its hook, on
 * fatal signals by an async-signal-safe handler, and on suspension. Other signals arrive through
 * repl/process/interrupt.h. Main thread only; one terminal per process. */
#pragma once

#include "repl/tui/frame.h"
#include "repl/tui/theme.h"

bool term_known(void); /* whether terminfo knows $TERM; before term_open() */
bool term_open(bool color, struct err *e);
void term_close(void); /* does nothing if the terminal is not open */

/* Draws in the colours of a theme (not THEME_AUTO) from the next term_draw() on. */
void term_theme(enum theme theme);
/* Sends text to the terminal's clipboard (OSC 52, in base64, so that no byte of it is a control);
 * whether the terminal takes it is not known. False: it is longer than terminals accept. */
enum { TERM_COPY_MAX = 74994 }; /* xterm's limit of 100,000 bytes, less what encloses them */
bool term_copy(const char *text, size_t n);
/* Asks the terminal for its background colour (OSC 11); the answer, if any, arrives as the key
 * K_BACKGROUND. False: the terminal was not asked. term_close() and term_release() wait for a
 * pending answer, so that no other program reads it. */
bool term_ask_background(void);
void term_answered(void); /* call when the answer has arrived */

/* Whether the terminal reports the mouse (as K_MOUSE); off at first. Off is restored on every way
 * out. */
void term_mouse(bool on);

void term_size(int *w, int *h); /* reads the terminal's size; at least 1x1 */
/* Shows the grid; only rows that differ from the previous grid are sent. */
void term_draw(const struct grid *g);
void term_redraw(void); /* the next term_draw() paints everything */
/* Reads bytes from the terminal; 0: none now, -1: the terminal has hung up. */
ptrdiff_t term_read(char *p, size_t n);

/* While on, Ctrl-C and Ctrl-Z are signals instead of keys, for work during which no keys are read
 * and nothing is drawn; SIGTSTP stops the process at once. */
void term_interruptible(bool on);

/* Restores the terminal for another program (an editor, the shell), and takes it over again. */
void term_release(void);
void term_take(void);
/* Stops the process until it is continued; `group`: its process group, as Ctrl-Z does. */
void term_suspend(bool group);
