/* edit.c - opens the message in the user's editor. */
#include "repl/tui/tui.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Runs "EDITOR FILE" through the shell, because $EDITOR may hold options. */
static bool run_editor(const char *editor, const char *path, struct err *e)
{
    char *script = xasprintf("%s \"$1\"", editor);
    int status = 0;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old[2];
    sigaction(SIGINT, &ignore, &old[0]); /* Ctrl-C is for the editor */
    sigaction(SIGQUIT, &ignore, &old[1]);
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        execl("/bin/sh", "sh", "-c", script, "sh", path, (char *)NULL);
        _exit(127);
    }
    bool ok = pid > 0;
    while (ok && waitpid(pid, &status, 0) < 0)
        ok = errno == EINTR;
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGQUIT, &old[1], NULL);
    free(script);
    if (!ok)
        return err_set(e, ERR_USAGE, "cannot start the editor: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, ERR_USAGE, "the editor \"%s\" failed; the message is as it was", editor);
    return true;
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
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR"), *tmp = getenv("TMPDIR");
    const char *use = visual && *visual ? visual : editor && *editor ? editor : "vi";
    char *path = xasprintf("%s/aerie-XXXXXX.md", tmp && tmp[0] == '/' ? tmp : "/tmp");
    bool ok = write_file(in, path, e);
    if (ok) {
        term_release();
        ok = run_editor(use, path, e);
        term_take();
        ok = ok && insert_file(in, path, e);
        unlink(path);
    }
    free(path);
    return ok;
}
