/* edit.c - opens the message in the user's editor. */
#include "repl/tui/tui.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "repl/process/interrupt.h"
#include "repl/process/monitor.h"

/* Writes the text to a file that the monitor makes for the editor. */
static bool write_message(const struct input *in, struct err *e)
{
    int fd = monitor_message();
    if (fd < 0)
        return err_set(e, ERR_USAGE, "cannot make a file for the editor: %s", strerror(errno));
    bool ok = write_fully(fd, buf_text(&in->text), in->text.n) ||
              err_set(e, ERR_USAGE, "cannot write the file for the editor: %s", strerror(errno));
    close(fd);
    return ok;
}

/* In the signal handler: Ctrl-Z in the editor stops both. */
static bool stop_too(int sig)
{
    return sig == SIGTSTP && kill(getpid(), SIGSTOP) == 0;
}

/* Ctrl-C is for the editor. *text: see monitor_edit(). */
static bool run_editor(int *text, struct err *e)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old[2];
    sigaction(SIGINT, &ignore, &old[0]);
    sigaction(SIGQUIT, &ignore, &old[1]);
    interrupt_first_fn *before = interrupt_first(stop_too);
    int status = monitor_edit(text), why = errno;
    interrupt_first(before);
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGQUIT, &old[1], NULL);
    if (status == -1)
        return err_set(e, ERR_USAGE, "cannot start the editor: %s", strerror(why));
    return status == 0 ||
           err_set(e, ERR_USAGE, "the editor \"%s\" failed; the message is as it was",
                                  monitor_editor());
}

/* Takes over the descriptor; -1: there is no file. */
static bool insert_text(struct input *in, int text, struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    if (text < 0)
        return err_set(e, ERR_USAGE, "the editor removed its file; the message is as it was");
    if (!buf_read_open(&b, text, "the message", INPUT_MAX, e))
        return false;
    while (b.n > 0 && b.p[b.n - 1] == '\n') /* editors add a newline at the end */
        b.n--;
    input_set(in, buf_text(&b), b.n);
    return true;
}

bool tui_edit(struct input *in, struct err *e)
{
    int text = -1;
    if (!write_message(in, e))
        return false;
    term_release();
    bool ok = run_editor(&text, e);
    term_take();
    if (ok)
        return insert_text(in, text, e);
    if (text >= 0)
        close(text);
    return false;
}
