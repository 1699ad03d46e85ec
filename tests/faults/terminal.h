/* terminal.h - a pseudo-terminal for the program's full screen, and what is typed there. */
#ifndef AERIE_TESTS_FAULTS_TERMINAL_H
#define AERIE_TESTS_FAULTS_TERMINAL_H

#include "kernels/base.h"

#include <sys/types.h>
#include <termios.h>

/* Its master; *before: its settings. The caller closes both ends. */
int terminal_open(int *slave, struct termios *before);
/* Types a message and the end of the session, each when the screen has been quiet for a while, `slower` times as long as
 * usual, until the tracer ends. Appends what the terminal was sent. */
void terminal_play(int master, pid_t tracer, int slower, struct buf *shown);
/* Whether the terminal is as the program found it; or `why` not. */
bool terminal_restored(const struct buf *shown, const struct termios *before, const struct termios *after, char why[200]);

#endif
