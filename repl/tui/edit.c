/* edit.c - opens the message in the user's editor. */
#include "repl/tui/tui.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "repl/interrupt.h"
#include "repl/monitor.h"

/* Creates a temporary file with the text; path receives its name. */
static bool write_file(const struct input *in, char *path, struct err *e)
{
    int fd = mkostemps(path, 3, O_CLOEXEC); /* 0600 */
    if (fd < 0)
        return err_set(e, ERR_USAGE, "cannot make a file for the editor: %s", strerror(errno));
    ssize_t n = write(fd, in->text.p, in->text.n);
    if (close(fd) != 0 || n != (ssize_t)in->text.n) {
        unlink(path);
        return err_set(e, ERR_USAGE, "cannot write the file for the editor: %s", strerror(errno));
    }
    return true;
}

/* In the signal handler: Ctrl-Z in the editor stops both. */
static bool stop_too(int sig)
{
    return sig == SIGTSTP && kill(getpid(), SIGSTOP) == 0;
}

/* Ctrl-C is for the editor. */
static bool run_editor(const char *path, struct err *e)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old[2];
    sigaction(SIGINT, &ignore, &old[0]);
    sigaction(SIGQUIT, &ignore, &old[1]);
    interrupt_first_fn *before = interrupt_first(stop_too);
    int status = monitor_edit(path), why = errno;
    interrupt_first(before);
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGQUIT, &old[1], NULL);
    if (status == -1)
        return err_set(e, ERR_USAGE, "cannot start the editor: %s", strerror(why));
    return status == 0 || err_set(e, ERR_USAGE, "the editor \"%s\" failed; the message is as it was",
                                  monitor_editor());
}

static bool insert_file(struct input *in, const char *path, struct err *e)
{
    struct buf b = {0};
    if (!buf_read_file(&b, path, INPUT_MAX, e))
        return false;
    while (b.n > 0 && b.p[b.n - 1] == '\n') /* editors add a newline at the end */
        b.n--;
    input_set(in, b.p ? b.p : "", b.n);
    buf_free(&b);
    return true;
}

bool tui_edit(struct input *in, struct err *e)
{
    char *path = recall_path("message-XXXXXX.md");
    if (!path)
        return err_set(e, ERR_USAGE, "cannot make a file for the editor: there is no folder for it; expected "
                       "$HOME or $XDG_STATE_HOME");
    bool ok = write_file(in, path, e);
    if (ok) {
        term_release();
        ok = run_editor(path, e);
        term_take();
        ok = ok && insert_file(in, path, e);
        unlink(path);
    }
    free(path);
    return ok;
}
