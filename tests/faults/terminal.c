/* terminal.c - see terminal.h. */
#include "tests/faults/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What is typed: each line once the screen has been quiet for a while. */
static const char *const typed[] = {"hello\r", "/bye\r", "\003", "\003"};
enum { N_TYPED = 4, QUIET_MS = 500, PATIENCE_MS = 2500, COLUMNS = 100, ROWS = 30 };

int terminal_open(int *slave, struct termios *before)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    *slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
    CHECK(*slave >= 0 && ioctl(*slave, TIOCSWINSZ, &size) == 0 && tcgetattr(*slave, before) == 0);
    return master;
}

static bool has_ended(pid_t tracer)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)tracer, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

void terminal_play(int master, pid_t tracer, int slower, struct buf *shown)
{
    int step = 0;
    bool early = false; /* a key was pressed when curses had set up the terminal, before the first
                           frame */
    uint64_t typed_at = clock_ns(), seen_at = 0;
    char part[4096];
    for (bool ended = false; !ended;) {
        ended = has_ended(tracer); /* asked before its last output is read below */
        struct pollfd p = {.fd = master, .events = POLLIN};
        while (poll(&p, 1, ended ? 0 : 20) == 1 && (p.revents & POLLIN)) {
            ssize_t n = read(master, part, sizeof part);
            if (n <= 0)
                break;
            buf_add(shown, part, (size_t)n);
            seen_at = clock_ns();
            buf_str(shown, "");
            if (!early && strstr(shown->p, "\033[?2004h"))
                early = write(master, "\033[5~", 4) == 4; /* Page Up */
        }
        uint64_t now = clock_ns(), ms = (uint64_t)slower * 1000000, patience = PATIENCE_MS * ms,
            quiet = QUIET_MS * ms;
        bool answered = seen_at > typed_at && now - seen_at > quiet;
        if (now - typed_at > patience || (step < 2 && answered)) {
            if (write(master, typed[step], strlen(typed[step])) < 0)
                break;
            /* again: input that was typed before the screen was set up is lost */
            step = step + 1 < N_TYPED ? step + 1 : 1;
            typed_at = now;
        }
    }
    buf_str(shown, "");
}

/* Whether, of the sequences `on` and `off`, the last one sent is `off`, or none was sent. */
static bool ends_with(const char *shown, const char *on, const char *off)
{
    const char *last_on = NULL, *last_off = NULL;
    for (const char *p = shown; (p = strstr(p, on)); p++)
        last_on = p;
    for (const char *p = shown; (p = strstr(p, off)); p++)
        last_off = p;
    return !last_on || (last_off && last_off > last_on);
}

bool terminal_restored(const struct buf *shown, const struct termios *a, const struct termios *b,
                       char why[200])
{
    static const char *const mode[][3] = {{"\033[?1049h", "\033[?1049l", "the other screen"},
                                          {"\033[?2004h", "\033[?2004l", "bracketed paste"},
                                          {"\033[?1000h", "\033[?1000l", "the mouse"},
                                          {"\033[?25l", "\033[?25h", "a hidden cursor"}};
    if (a->c_iflag != b->c_iflag || a->c_oflag != b->c_oflag || a->c_lflag != b->c_lflag ||
        memcmp(a->c_cc, b->c_cc, sizeof a->c_cc) != 0) {
        snprintf(why, 200, "the terminal's line settings were not restored");
        return false;
    }
    for (size_t i = 0; i < sizeof mode / sizeof *mode; i++)
        if (!ends_with(shown->n ? shown->p : "", mode[i][0], mode[i][1])) {
            snprintf(why, 200, "%s was left on", mode[i][2]);
            return false;
        }
    return true;
}
