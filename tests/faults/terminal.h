/* terminal.h - a pseudo-terminal for the program's full screen, and what is typed there. */
#pragma once

#include "kernels/base.h"

#include <sys/types.h>
#include <termios.h>

/* Opens a pseudo-terminal and returns its master; *before: its settings. The caller closes both
 * ends. */
int terminal_open(int *slave, struct termios *before);
/* Types a message and the command that ends the session, each when the screen has been quiet for a
 * while (`slower` times as long as usual), until the tracer ends. Appends the program's output to
 * *shown. */
void terminal_play(int master, pid_t tracer, int slower, struct buf *shown);
/* Whether the program has restored the terminal; `why`: what it has not restored. */
bool terminal_restored(const struct buf *shown, const struct termios *before,
                       const struct termios *after, char why[200]);
