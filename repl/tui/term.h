/* term.h - the terminal: the only place that knows curses.
 *
 * Whatever ends the program, the terminal is restored: on term_close(), in die() through its hook,
 * on fatal signals by an async-signal-safe handler, on suspension. Signals that the program has to
 * act on arrive through repl/interrupt.h. Main thread only; one terminal a process.
 */
#ifndef AERIE_TERM_H
#define AERIE_TERM_H

#include "repl/tui/frame.h"
#include "repl/tui/theme.h"

bool term_open(bool color, struct err *e);
void term_close(void); /* nothing happens when it is not open */

/* Draws in the colours of a theme (not THEME_AUTO) from the next term_draw() on. */
void term_theme(enum theme theme);
/* Asks the terminal for its background (OSC 11); the answer comes as the key K_BACKGROUND, if ever.
 * False: it is not asked. The answer does not outlive us: term_close() and term_release() await it. */
bool term_ask_background(void);
void term_answered(void); /* the answer came */

void term_size(int *w, int *h); /* asks the terminal; at least 1x1 */
/* Shows the grid; only rows that differ from the last one are sent. */
void term_draw(const struct grid *g);
void term_redraw(void); /* the next term_draw() paints everything */
/* Bytes from the terminal, 0 when there are none now, -1 when it is gone. */
ptrdiff_t term_read(char *p, size_t n);

/* While on, Ctrl-C is a SIGINT instead of a key: for work that reads no keys meanwhile. */
void term_interruptible(bool on);

/* Gives the terminal to somebody else (an editor, the shell) and takes it back. */
void term_release(void);
void term_take(void);
/* Stops the process (with its group, as the terminal's own Ctrl-Z would if `group`) until it is
 * continued. */
void term_suspend(bool group);

#endif
