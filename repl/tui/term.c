/* term.c - see term.h. */
#include "repl/tui/term.h"
#include "kernels/mapped.h"
#include "repl/process/interrupt.h"

#include <curses.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";
/* buttons, the wheel, and motion with a button; in SGR coordinates */
static const char mouse_on[] = "\033[?1002h\033[?1006h", mouse_off[] = "\033[?1006l\033[?1002l";

static struct {
    SCREEN *screen;
    volatile sig_atomic_t up;   /* the terminal is in curses' mode */
    volatile sig_atomic_t working; /* no keys and no signals are read: see term_interruptible() */
    volatile sig_atomic_t mute; /* the terminal accepts no output: standard output is /dev/null */
    struct termios saved;       /* the modes before term_open() */
    char restore[256];          /* the bytes that restore the terminal, for signal handlers */
    size_t n_restore;
    struct sigaction old[NSIG];
    void *crash_stack;
    struct grid shown;          /* the grid on the screen; w == 0: unknown */
    attr_t attr[2][N_STYLES];   /* [1]: on the background of a popup */
    short pair[2][N_STYLES];
    bool colors;                /* colours are used */
    enum theme theme;
    bool mouse;                 /* the mouse is reported */
    uint64_t asked_ns;          /* when the background was asked for; 0: no answer is due */
} term;

static const int handled[] = {SIGWINCH, SIGTERM, SIGHUP, SIGINT, SIGTSTP, SIGCONT};
static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGQUIT};
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

/* ---- restoring from a signal handler, without curses ---- */

static void add_capability(const char *name)
{
    char id[8];
    snprintf(id, sizeof id, "%s", name);
    const char *s = tigetstr(id);
    for (; s && s != (char *)-1 && *s && term.n_restore + 1 < sizeof term.restore; s++) {
        if (s[0] == '$' && s[1] == '<' && strchr(s, '>')) /* padding for old hardware */
            s = strchr(s, '>');
        else
            term.restore[term.n_restore++] = *s;
    }
}

static void make_restore(void)
{
    term.n_restore = (size_t)snprintf(term.restore, sizeof term.restore, "%s%s", mouse_off,
                                      paste_off);
    add_capability("sgr0");
    add_capability("op");
    add_capability("cnorm");
    add_capability("rmcup");
}

static bool takes_output(int fd, int ms)
{
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    return poll(&out, 1, ms) == 1;
}

/* Sets the line settings that the program found; an interrupted or failed call is tried again.
 * Async-signal-safe. */
static void restore_lines(void)
{
    for (int i = 0; i < 3 && tcsetattr(STDIN_FILENO, TCSANOW, &term.saved) != 0; i++)
        ;
}

/* Restores the terminal, unless it accepts no output. Async-signal-safe. */
static void restore_now(void)
{
    if (!term.up)
        return;
    term.up = 0;
    int fd = term.mute ? STDIN_FILENO : STDOUT_FILENO; /* usually both are the terminal, open for
                                                          reading and writing */
    if (takes_output(fd, 100)) {
        ssize_t ignored = write(fd, term.restore, term.n_restore);
        (void)ignored;
    }
    restore_lines();
}

/* ---- signals ---- */

/* Called first in the signal handler. Curses writes whole screens and retries for ever: on a
 * terminal that accepts no output it would never return to the loop that handles signals. Before
 * the program ends, output that the terminal has not accepted for a while is redirected to
 * /dev/null, where the interrupted write continues. */
static bool before_signal(int sig)
{
    enum { PATIENCE_MS = 300 };
    bool suspends = sig == SIGTSTP && term.up;
    if (!suspends && sig != SIGTERM && sig != SIGHUP)
        return false;
    bool still = !term.mute && !takes_output(STDOUT_FILENO, PATIENCE_MS);
    if (suspends && (still || term.working)) {
        restore_now();
        kill(getpid(), SIGSTOP); /* when the process continues, a SIGCONT waits in the pipe */
        return true;
    }
    int fd = still ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        term.mute = dup2(fd, STDOUT_FILENO) >= 0;
        close(fd);
    }
    return false;
}

/* After SIGCONT, while a command runs: sets the terminal's modes again and redraws the screen. */
static void show_again(void)
{
    if (!term.working || isendwin()) /* isendwin(): another program has the terminal */
        return;
    term_take();
    term_interruptible(true);
}

/* Handles a fatal signal: restores the terminal, then lets the default action happen. */
static void crash(int sig, siginfo_t *info, void *)
{
    if (mapped_fault(sig, info))
        return;
    restore_now();
    sigaction(sig, &term.old[sig], NULL);
    /* sent by a process: raise it again; a fault occurs again when the handler returns */
    if (info->si_code <= 0)
        raise(sig);
}

static void catch_signals(void)
{
    enum { STACK = 64 << 10 };
    struct sigaction sa;
    term.crash_stack = xmalloc(STACK);
    sigaltstack(&(stack_t){.ss_sp = term.crash_stack, .ss_size = STACK}, NULL);
    sa = (struct sigaction){.sa_sigaction = crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&sa.sa_mask);
    for (int i = 0; i < COUNT(fatal); i++)
        sigaction(fatal[i], &sa, &term.old[fatal[i]]);
    sa = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &sa, &term.old[SIGPIPE]);
}

static void release_signals(void)
{
    if (!term.crash_stack)
        return;
    for (int i = 0; i < COUNT(fatal); i++)
        sigaction(fatal[i], &term.old[fatal[i]], NULL);
    sigaction(SIGPIPE, &term.old[SIGPIPE], NULL);
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    DROP(term.crash_stack);
}

static void send_now(const char *s);

/* Resets the modes that later programs do not expect. */
static void modes_on(void)
{
    send_now(paste_on);
    if (term.mouse)
        send_now(mouse_on);
}

static void modes_off(void)
{
    if (term.mouse)
        send_now(mouse_off);
    send_now(paste_off);
}

void term_mouse(bool on)
{
    if (on == term.mouse)
        return;
    term.mouse = on;
    send_now(on ? mouse_on : mouse_off);
}

/* Tries a failed write again: it must succeed, because otherwise later programs find wrong
 * modes. */
static void send_now(const char *s)
{
    size_t n = strlen(s);
    for (int failed = 0; n > 0 && failed < 3;) {
        ssize_t k = write(STDOUT_FILENO, s, n);
        if (k <= 0) {
            failed += k == 0 || errno != EINTR;
            continue;
        }
        s += k;
        n -= (size_t)k;
    }
}

/* ---- colours: styles to attributes and colour pairs ---- */

static attr_t attributes(unsigned attr)
{
    return (attr & LOOK_BOLD ? A_BOLD : 0) | (attr & LOOK_DIM ? A_DIM : 0) |
           (attr & LOOK_ITALIC ? A_ITALIC : 0) | (attr & LOOK_UNDERLINE ? A_UNDERLINE : 0) |
           (attr & LOOK_REVERSE ? A_REVERSE : 0);
}

static void make_looks(enum theme theme)
{
    int colors = term.colors ? COLORS : 0;
    for (int popup = 0; popup < 2; popup++)
        for (int i = 0; i < N_STYLES; i++) {
            struct look l = theme_look(theme, colors, (enum style)i, popup);
            short pair = (short)(1 + i + popup * N_STYLES);
            bool have = (l.fg >= 0 || l.bg >= 0) && init_pair(pair, l.fg, l.bg) == OK;
            term.attr[popup][i] = attributes(l.attr);
            term.pair[popup][i] = have ? pair : 0;
        }
}

void term_theme(enum theme theme)
{
    if (theme == term.theme)
        return;
    term.theme = theme;
    make_looks(theme);
    term_redraw();
}

bool term_ask_background(void)
{
    const char *name = getenv("TERM");
    /* these consoles do not answer, and some print the request */
    if (!term.colors || !name || strcmp(name, "linux") == 0 || strncmp(name, "vt", 2) == 0)
        return false;
    send_now("\033]11;?\033\\");
    term.asked_ns = clock_ns();
    return true;
}

bool term_copy(const char *text, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FREED(buf_free) struct buf b = {0};
    if (n > TERM_COPY_MAX)
        return false;
    buf_str(&b, "\033]52;c;");
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = 0;
        int have = n - i < 3 ? (int)(n - i) : 3;
        for (int k = 0; k < 3; k++)
            v = v << 8 | (k < have ? (unsigned char)text[i + (size_t)k] : 0);
        for (int k = 0; k < 4; k++)
            buf_char(&b, k <= have ? digit[v >> (18 - 6 * k) & 63] : '=');
    }
    buf_str(&b, "\033\\");
    send_now(b.p);
    return true;
}

void term_answered(void)
{
    term.asked_ns = 0;
}

/* Waits a moment for a pending answer and drops it, so that it does not reach the next program that
 * reads the terminal. */
static void await_answer(void)
{
    enum { ANSWER_MS = 300 };
    char part[256];
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (term.asked_ns == 0 || clock_ns() - term.asked_ns > ANSWER_MS * UINT64_C(1000000))
        return;
    term.asked_ns = 0;
    if (poll(&in, 1, ANSWER_MS) == 1) {
        ssize_t ignored = read(STDIN_FILENO, part, sizeof part);
        (void)ignored;
    }
}

/* ---- opening and closing ---- */

/* Whether the terminal is in raw mode. If not, sets the mode without curses, which ignores most
 * failures to set modes. */
static bool check_raw(void)
{
    struct termios t;
    for (int i = 0; i < 3; i++) {
        if (tcgetattr(STDIN_FILENO, &t) != 0)
            continue;
        if (!(t.c_iflag & (ICRNL | INLCR | IGNCR)) && !(t.c_lflag & (ICANON | ECHO | ISIG)))
            return true;
        t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | BRKINT | PARMRK);
        t.c_oflag &= ~(tcflag_t)ONLCR;
        t.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ECHONL | ISIG | IEXTEN);
        t.c_cc[VMIN] = 1;
        t.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
        def_prog_mode();
    }
    return false;
}

static bool raw_mode(void)
{
    raw();
    noecho();
    nonl();
    nodelay(stdscr, TRUE);
    scrollok(stdscr, FALSE);
    leaveok(stdscr, FALSE);
    intrflush(stdscr, FALSE);
    typeahead(-1);
    return check_raw();
}

/* Makes sure that there is some memory for curses, which does not check all of its small
 * allocations: without it the program ends here with a message. The freed memory stays with the
 * process. */
static void claim_memory(void)
{
    free(xmalloc(64 << 10));
}

/* Curses ignores a terminfo file that cannot be read, and then finds no entry: a failure is tried
 * again. */
enum { TRIES = 3 };

bool term_known(void)
{
    int status;
    claim_memory();
    for (int i = 0; i < TRIES; i++)
        if (setupterm(NULL, STDOUT_FILENO, &status) == OK) {
            del_curterm(set_curterm(NULL));
            return true;
        }
    return false;
}

static SCREEN *new_screen(void)
{
    SCREEN *s = NULL;
    claim_memory();
    for (int i = 0; i < TRIES && !s; i++) {
        errno = 0;
        s = newterm(NULL, stdout, stdin);
    }
    return s;
}

bool term_open(bool color, struct err *e)
{
    const char *name = getenv("TERM");
    if (tcgetattr(STDIN_FILENO, &term.saved) != 0)
        return err_set(e, ERR_USAGE, "standard input is not a terminal: %s", strerror(errno));
    /* Before newterm(), which does not replace handlers that are set: its own handlers end the
     * program without storing anything, and it would ignore SIGTSTP while it draws. */
    if (!interrupt_open(handled, COUNT(handled), true, restore_now, e))
        return false;
    set_escdelay(25);
    term.screen = new_screen();
    if (!term.screen) {
        int why = errno;
        interrupt_close();
        if (why && why != ENOENT && why != ENOTTY && why != EACCES)
            return err_set(e, ERR_USAGE, "cannot open the terminal \"%s\": %s", name ? name : "",
                           strerror(why));
        return err_set(e, ERR_USAGE, "the terminal \"%s\" is unknown; expected a TERM with a "
                       "terminfo entry, or --plain", name ? name : "");
    }
    make_restore();
    term.up = 1;
    die_hook(restore_now);
    catch_signals();
    interrupt_first(before_signal);
    interrupt_continued(show_again);
    if (!raw_mode()) {
        err_set(e, ERR_USAGE, "cannot set the terminal's mode: %s", strerror(errno));
        term_close();
        return false;
    }
    term.colors = color && has_colors() && start_color() == OK && use_default_colors() == OK;
    term.asked_ns = 0;
    term.mouse = false;
    term.theme = THEME_DARK;
    make_looks(THEME_DARK);
    refresh();
    modes_on();
    return true;
}

/* Curses does not report that its last write failed. */
static void leave_screen(void)
{
    modes_off();
    if (!exit_ca_mode) { /* what was drawn stays there; the shell's prompt needs an empty row */
        move(LINES - 1, 0);
        clrtoeol();
        refresh();
    }
    errno = 0;
    endwin();
    if (errno)
        send_now(term.restore);
    restore_lines();
}

void term_close(void)
{
    if (!term.screen)
        return;
    if (term.mute)
        restore_now();
    if (term.up) {
        await_answer();
        leave_screen();
    }
    term.up = 0;
    die_hook(NULL);
    interrupt_leave();
    release_signals();
    delscreen(term.screen);
    term.screen = NULL;
    grid_free(&term.shown);
}

void term_release(void)
{
    await_answer();
    leave_screen();
    term.up = 0;
}

void term_take(void)
{
    if (!term.up && !isendwin()) /* restore_now() has restored the terminal without curses */
        endwin();
    term.up = 1;
    reset_prog_mode();
    raw_mode();
    term_redraw();
    refresh();
    modes_on();
}

void term_interruptible(bool on)
{
    struct termios t;
    term.working = on;
    if (!term.up || tcgetattr(STDIN_FILENO, &t) != 0)
        return;
    if (on) {
        t.c_lflag |= ISIG | NOFLSH;
        t.c_cc[VINTR] = 3;
        t.c_cc[VSUSP] = 26;
        t.c_cc[VQUIT] = _POSIX_VDISABLE;
    } else {
        t.c_lflag &= ~(tcflag_t)ISIG;
    }
    tcsetattr(STDIN_FILENO, TCSANOW, &t);
}

void term_suspend(bool group)
{
    struct sigaction stop = {.sa_handler = SIG_DFL}, old;
    term_release();
    sigaction(SIGTSTP, &stop, &old);
    kill(group ? 0 : getpid(), SIGTSTP);
    sigaction(SIGTSTP, &old, NULL); /* continued */
    term_take();
}

/* ---- drawing ---- */

void term_size(int *w, int *h)
{
    struct winsize ws;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0 && ws.ws_row > 0;
    *w = known ? min_int(ws.ws_col, 1000) : 80;
    *h = known ? min_int(ws.ws_row, 500) : 24;
    if (*w != COLS || *h != LINES) {
        resizeterm(*h, *w);
        term_redraw();
    }
}

void term_redraw(void)
{
    term.shown.w = 0;
    clearok(curscr, TRUE);
}

/* Converts a cell for curses. If curses assumes another width, it gets a placeholder of the right
 * width, so that the rest of the row stays in place. */
static void to_wide(const struct cell *c, wchar_t out[2 + CELL_MARKS])
{
    int n = 0;
    wchar_t base = (wchar_t)c->cp[0];
    if (base < 0x20 || base == 0x7F || (base > 0x7F && wcwidth(base) != c->width)) {
        out[0] = wcwidth(0xFFFD) == 1 ? 0xFFFD : L'?';
        out[1] = 0;
        return;
    }
    out[n++] = base;
    for (int i = 1; i <= CELL_MARKS && c->cp[i]; i++)
        if (wcwidth((wchar_t)c->cp[i]) == 0)
            out[n++] = (wchar_t)c->cp[i];
    out[n] = 0;
}

static void draw_row(const struct grid *g, int y)
{
    for (int x = 0; x < g->w; x++) {
        const struct cell *c = &g->cell[mul64(y, g->w) + x];
        wchar_t wide[2 + CELL_MARKS];
        cchar_t cc;
        if (c->width == 0)
            continue;
        to_wide(c, wide);
        bool popup = c->flags & CELL_POPUP;
        attr_t a = term.attr[popup][c->style];
        if (c->flags & CELL_REVERSE)
            a ^= A_REVERSE;
        a |= (c->flags & CELL_UNDERLINE ? A_UNDERLINE : 0) | (c->flags & CELL_BOLD ? A_BOLD : 0);
        if (c->width == 2) /* the placeholder has width 1, its right half is blank */
            mvaddch(y, x + 1, ' ');
        if (setcchar(&cc, wide, a, term.pair[popup][c->style], NULL) == OK)
            mvadd_wch(y, x, &cc);
    }
}

static bool same_row(const struct grid *a, const struct grid *b, int y)
{
    size_t n = (size_t)a->w;
    return memcmp(a->cell + (size_t)y * n, b->cell + (size_t)y * n, n * sizeof *a->cell) == 0;
}

void term_draw(const struct grid *g)
{
    bool known = term.shown.w == g->w && term.shown.h == g->h;
    for (int y = 0; y < g->h && y < LINES; y++)
        if (!known || !same_row(g, &term.shown, y))
            draw_row(g, y);
    if (!known)
        grid_resize(&term.shown, g->w, g->h);
    memcpy(term.shown.cell, g->cell, (size_t)g->w * (size_t)g->h * sizeof *g->cell);
    curs_set(g->x >= 0);
    if (g->x >= 0)
        move(g->y, g->x);
    refresh();
}

ptrdiff_t term_read(char *p, size_t n)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    int some;
    do
        some = poll(&fd, 1, 0);
    while (some < 0 && errno == EINTR);
    if (some <= 0)
        return 0;
    ssize_t k;
    do /* EINTR: the caller would take 0 bytes for the end of a key sequence */
        k = read(STDIN_FILENO, p, n);
    while (k < 0 && errno == EINTR);
    if (k < 0 && errno == EAGAIN)
        return 0;
    return k > 0 ? k : -1;
}
