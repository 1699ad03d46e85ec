/* test_signal_states.c - signals in every state of the program, on each of its faces.
 *
 * A row of states[] says how the program is started and brought into a state; a row of trials[]
 * which signals it then receives. The test checks that SIGTERM, SIGHUP and SIGINT end the program
 * with the status that shells expect, or that the chat goes on if it should after Ctrl-C; that
 * SIGTSTP stops it with the terminal restored and SIGCONT redraws the screen; that resizes and
 * SIGPIPE change nothing; that a hang-up ends it; and afterwards, that the terminal has its former
 * modes, no process of the group is left, and the log is intact and has the expected replies.
 * States that would not end by themselves are made with a model that takes minutes, a server that
 * does not answer, a pipe that nobody reads, or a lock on the log.
 *
 *   AERIE_SIGNALS=all       every state with every trial, and a table of reaction times (minutes)
 *   AERIE_SIGNALS=NAME      only states whose name contains it, with every trial
 *   AERIE_SIGNALS_DELAY=MS  the signals come this much later, at another moment of the state
 *
 * Without these, each state gets the signals that do not end it, then SIGTERM, and one other trial.
 */
#include "history/history.h"
#include "tests/signals_kit.h"

#include <sys/mman.h>

enum face { SCREEN, LINES, SCRIPT, ONCE }; /* full screen; --plain on a terminal; --plain on pipes;
                                              one command */
static const char *const face_name[] = {"screen", "lines", "script", "once"};

enum trial { TERM, HUP, INT, HANG_UP, TWICE, READER, N_TRIALS };
static const char *const trial_name[] = {"TERM", "HUP", "INT", "hang-up", "TERM twice",
                                         "reader gone"};

struct place { /* where a case runs */
    char *dir, *db;
    pid_t server;
    int port;
    sqlite3 *lock;
};

struct state {
    const char *name;
    enum face face;
    const char *argv;    /* words; SLOW, DIR, URL, BIG, PROMPTS stand for a path or an address;
                            SLOW is computed by one thread, so that waiting costs less */
    const char *first;   /* what it prints when `keys` may be typed */
    const char *keys;    /* typed then */
    const char *ready;   /* what it prints when the state is reached, after `keys`; or: */
    bool (*reached)(struct child *c, struct place *p);
    void (*before)(struct child *c, struct place *p); /* called before `keys` are typed */
    int rest_ms;         /* later than that, by so much */
    enum { NO_LOG, BIG_LOG, SLOW_LOG } log; /* the log that it finds */
    int replies;         /* the log must have so many that have ended */
    bool deaf;           /* nobody reads what it prints */
    bool slow_server, dumb_server;
    bool stays;          /* Ctrl-C ends what runs, and the chat goes on */
    int int_code;        /* the exit code after Ctrl-C, where it is not 130 */
    bool by_itself;      /* may end before the signal comes: a state that cannot be prolonged */
    bool elsewhere;      /* another program has the terminal: nothing is drawn after SIGCONT */
    bool rare;           /* only with AERIE_SIGNALS */
};

/* ---- states: how one is recognised ----------------------------------------------------------- */

static bool maps_the_model(struct child *c, struct place *p)
{
    (void)p;
    return has_open(c->pid, "/slow/model.safetensors");
}

static bool runs_a_query(struct child *c, struct place *p)
{
    (void)p;
    return in_group(c->pid, "aerie-query");
}

static bool runs_an_editor(struct child *c, struct place *p)
{
    (void)p;
    return in_group(c->pid, "sleep");
}

static bool has_begun_a_turn(struct child *c, struct place *p)
{
    (void)c;
    return db_number(p->db, "SELECT count(*) FROM turn WHERE role='user'") > 0;
}

static bool has_opened_the_log(struct child *c, struct place *p)
{
    (void)c;
    return db_number(p->db, "SELECT count(*) FROM sqlite_master") > 0;
}

/* It runs, and ignores SIGXFSZ, which is one of the first things that it does. */
static bool is_at_work(struct child *c, struct place *p)
{
    char path[64], line[256];
    unsigned long long ignored = 0;
    (void)p;
    snprintf(path, sizeof path, "/proc/%d/status", (int)c->pid);
    FILE *f = in_group(c->pid, "aerie") ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "SigIgn: %llx", &ignored) == 1)
            break;
    if (f)
        fclose(f);
    return ignored >> (SIGXFSZ - 1) & 1;
}

static bool has_filled_the_pipe(struct child *c, struct place *p)
{
    int n = 0;
    (void)p;
    return ioctl(c->tty >= 0 ? c->tty : c->out, FIONREAD, &n) == 0 &&
           n > (c->tty >= 0 ? 2000 : 30000);
}

/* Another process has the log's write lock. */
static void lock_the_log(struct child *c, struct place *p)
{
    (void)c;
    CHECK(sqlite3_open(p->db, &p->lock) == SQLITE_OK && sqlite3_busy_timeout(p->lock, 5000) ==
          SQLITE_OK);
    CHECK(sqlite3_exec(p->lock, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK);
}

#define STUCK "/sql select instr(hex(zeroblob(2900000)), hex(zeroblob(1450000))||'1'), instr(hex(zeroblob(2900000)), hex(zeroblob(1450000))||'1')"
#define F1 "\033OP"
#define F8 "\033[19~"

static const struct state states[] = {
    {"prompt", SCREEN, "", "ctx ", NULL, "ctx ", .stays = true},
    {"prompt", LINES, "--plain", ">>> ", NULL, ">>> ", .stays = true},
    {"prompt", SCRIPT, "--plain", NULL, "/set verbose\n", .ready = "verbose = "},
    {"loading", SCREEN, "-m SLOW", .reached = maps_the_model},
    {"loading", LINES, "--plain -m SLOW", .reached = maps_the_model, .rare = true},
    {"loading", SCRIPT, "--plain -m SLOW", .reached = maps_the_model, .rare = true},
    {"loading", ONCE, "run -m SLOW hi", .reached = maps_the_model, .rare = true},
    {"prefill", SCREEN, "-m SLOW --threads 2", "ctx ", "/read DIR/text\rhi\r",
     .reached = has_begun_a_turn,
     .rest_ms = 100, .stays = true, .replies = 1},
    {"prefill", LINES, "--plain -m SLOW", ">>> ", "/read DIR/text\nhi\n",
     .reached = has_begun_a_turn, .rest_ms = 100, .stays = true, .replies = 1, .rare = true},
    {"prefill", SCRIPT, "--plain -m SLOW", NULL, "/read DIR/text\nhi\n",
     .reached = has_begun_a_turn, .rest_ms = 100, .replies = 1},
    {"prefill", ONCE, "run -m SLOW -f DIR/text hi", .reached = has_begun_a_turn, .rest_ms = 100,
     .replies = 1, .rare = true},
    {"decode", SCREEN, "-m SLOW --threads 2", "ctx ", "hi\r", "more more", .stays = true,
     .replies = 1},
    {"decode", LINES, "--plain -m SLOW", ">>> ", "hi\n", "more more", .stays = true, .replies = 1},
    {"decode", SCRIPT, "--plain -m SLOW", NULL, "hi\n", "more more", .replies = 1},
    {"decode", ONCE, "run -m SLOW hi", .ready = "more more", .replies = 1},
    {"decode of 4 replies", SCREEN, "-m SLOW", "ctx ", "/n 4 hi\r", "in one batch", .rest_ms = 500,
     .stays = true, .rare = true},
    {"decode, JSON", SCRIPT, "--json -m SLOW", NULL, "hi\n", .reached = has_begun_a_turn,
     .rest_ms = 300, .replies = 1, .rare = true},
    {"paused", SCREEN, "-m SLOW", "ctx ", "/phase\rhi\r", "PAUSED", .stays = true, .replies = 1},
    {"paused", LINES, "--plain -m SLOW", ">>> ", "/phase\nhi\n", "(paused)", .stays = true,
     .replies = 1, .rare = true},
    {"sql", SCREEN, "", "ctx ", STUCK "\r", .reached = runs_a_query, .stays = true},
    {"sql", LINES, "--plain", ">>> ", STUCK "\n", .reached = runs_a_query, .stays = true,
     .rare = true},
    {"sql", SCRIPT, "--plain", NULL, "hello\n" STUCK "\n", .reached = runs_a_query, .replies = 1,
     .rare = true},
    {"db sql", ONCE, "db sql STUCK", .reached = runs_a_query, .log = BIG_LOG},
    {"search, log locked", SCREEN, "", "ctx ", "hello\r/search fox\r", "fox\"",
     .before = lock_the_log, .rest_ms = 300, .stays = true, .rare = true},
    {"exit, log locked", SCRIPT, "--plain", NULL, "hello\n/bye\n", "waiting up to",
     .before = lock_the_log, .int_code = 4, .rare = true},
    {"browser", SCREEN, "", "ctx ", F8, "last used", .log = BIG_LOG, .stays = true},
    {"help", SCREEN, "", "ctx ", F1, "Ctrl-G", .stays = true, .rare = true},
    {"earlier lines", SCREEN, "", "ctx ", "hello\r\x12he", "hello", .stays = true, .rare = true},
    {"editor", SCREEN, "", "ctx ", "hello\x07", .reached = runs_an_editor, .stays = true,
     .elsewhere = true},
    {"calibrate", SCREEN, "", "ctx ", "/calibrate\r", "scoring", .stays = true, .rare = true},
    {"recording", SCREEN, "replay last", "RECORDING", NULL, "RECORDING", .log = SLOW_LOG,
     .stays = true},
    {"recording", SCRIPT, "replay last --plain", NULL, "/where\n", "1.", .log = SLOW_LOG,
     .rare = true},
    {"terminal stands still", SCREEN, "-m SLOW", "ctx ", "hi\r", .reached = has_filled_the_pipe,
     .rest_ms = 300, .deaf = true, .stays = true, .replies = 1},
    {"output unread", SCRIPT, "--plain -m SLOW", NULL,
     "/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n/help\n", .reached = has_filled_the_pipe, .rest_ms = 500, .deaf = true, .rare = true},
    {"replay", ONCE, "replay last --check -m SLOW", .reached = maps_the_model, .rest_ms = 500,
     .log = SLOW_LOG},
    {"diff", ONCE, "diff last --with page_size=4 -m SLOW", .reached = maps_the_model,
     .rest_ms = 500, .log = SLOW_LOG, .rare = true},
    {"diverge", SCREEN, "-c -m SLOW", "ctx ", "/diverge page_size=4\r", .rest_ms = 400,
     .log = SLOW_LOG, .stays = true},
    {"diverge", SCRIPT, "-c --plain -m SLOW", NULL, "/diverge page_size=4\n", .rest_ms = 400,
     .log = SLOW_LOG, .rare = true},
    {"parity", ONCE, "parity PROMPTS -m SLOW --draft ngram", .reached = maps_the_model,
     .rest_ms = 500},
    {"batch", ONCE, "run --batch PROMPTS -m SLOW", .reached = maps_the_model, .rest_ms = 500},
    {"export, output unread", ONCE, "export last", .reached = has_filled_the_pipe, .log = BIG_LOG,
     .deaf = true},
    {"show, output unread", ONCE, "show last", .reached = has_filled_the_pipe, .log = BIG_LOG,
     .deaf = true, .rare = true},
    {"export", ONCE, "export last -o DIR/data/aerie/x.jsonl", .reached = is_at_work, .rest_ms = 50,
     .log = BIG_LOG, .by_itself = true, .rare = true},
    {"export as Markdown", ONCE, "export last --format md -o DIR/data/aerie/x.md",
     .reached = is_at_work, .rest_ms = 50, .log = BIG_LOG, .by_itself = true, .rare = true},
    {"export", SCREEN, "-c -m SLOW", "ctx ", "/export jsonl DIR/data/aerie/x.jsonl\r",
     .rest_ms = 20, .log = BIG_LOG, .stays = true, .rare = true},
    {"pack", ONCE, "pack last -o DIR/data/aerie/x.aerie", .reached = is_at_work, .rest_ms = 50,
     .log = BIG_LOG, .by_itself = true},
    {"search", ONCE, "logs -q fox", .reached = is_at_work, .log = BIG_LOG, .by_itself = true,
     .rare = true},
    {"db check", ONCE, "db check", .reached = is_at_work, .rest_ms = 50, .log = BIG_LOG,
     .by_itself = true, .rare = true},
    {"db backup", ONCE, "db backup DIR/data/aerie/copy.db", .reached = is_at_work, .rest_ms = 50,
     .log = BIG_LOG, .by_itself = true, .rare = true},
    {"db repair", ONCE, "db repair DIR/data/aerie/copy.db", .reached = is_at_work, .rest_ms = 50,
     .log = BIG_LOG, .by_itself = true, .rare = true},
    {"db vacuum", ONCE, "db vacuum", .reached = is_at_work, .rest_ms = 20, .log = BIG_LOG,
     .by_itself = true, .rare = true},
    {"db prune", ONCE, "db prune --keep 0", .reached = is_at_work, .rest_ms = 20, .log = BIG_LOG,
     .by_itself = true, .rare = true},
    {"import of a pipe", ONCE, "import -", .reached = has_opened_the_log, .rest_ms = 100},
    {"import of a file", ONCE, "import BIG", .reached = has_opened_the_log, .by_itself = true,
     .rare = true},
    {"run, prompt from a pipe", ONCE, "run -", .reached = has_opened_the_log, .rest_ms = 100},
    {"tokenize of a pipe", ONCE, "tokenize", .reached = is_at_work, .rest_ms = 200, .rare = true},
    {"serve", ONCE, "serve --port 0", .ready = "at http://"},
    {"server that does not answer", SCREEN, "--remote URL", .reached = is_at_work, .rest_ms = 300,
     .dumb_server = true, .rare = true},
    {"server that does not answer", ONCE, "run --remote URL hi", .reached = is_at_work,
     .rest_ms = 300, .dumb_server = true},
    {"server computes", SCREEN, "--remote URL", "slow", "hi\r", .reached = has_begun_a_turn,
     .rest_ms = 100, .slow_server = true, .stays = true, .replies = 1},
    {"server computes", SCRIPT, "--plain --remote URL", NULL, "hi\n", .reached = has_begun_a_turn,
     .rest_ms = 100, .slow_server = true, .replies = 1, .rare = true},
    {"server computes", ONCE, "run --remote URL hi", .reached = has_begun_a_turn, .rest_ms = 100,
     .slow_server = true, .replies = 1, .rare = true},
    {"doctor", ONCE, "doctor --remote URL", .reached = is_at_work, .rest_ms = 300,
     .dumb_server = true, .rare = true},
    {"bugs", ONCE, "bugs --try 24617", .reached = is_at_work, .rest_ms = 100, .by_itself = true,
     .rare = true},
    {"golden", ONCE, "golden tests/golden/nestling", .reached = is_at_work, .rest_ms = 300,
     .by_itself = true, .rare = true},
};
enum { N_STATES = sizeof states / sizeof *states };

/* ---- places ---------------------------------------------------------------------------------- */

static char *top;        /* folder of the slow model, the logs, and a folder for each case */
static const char *aerie;
static bool every;
static int delay_ms;

static struct place *open_place(const struct state *s, int number)
{
    struct place *p = xcalloc(1, sizeof *p);
    p->dir = xasprintf("%s/%d", top, number);
    char *data = xasprintf("%s/data", p->dir), *folder = xasprintf("%s/data/aerie", p->dir);
    p->db = xasprintf("%s/sessions.db", folder);
    CHECK(mkdir(p->dir, 0700) == 0 && mkdir(data, 0700) == 0 && mkdir(folder, 0700) == 0);
    if (s->log) {
        char *from = xasprintf("%s/%s.db", top, s->log == BIG_LOG ? "big" : "slow");
        copy_file(from, p->db);
        free(from);
    }
    char *text = xasprintf("%s/text", p->dir), *from = xasprintf("%s/text", top);
    copy_file(from, text);
    free(text);
    free(from);
    if (s->slow_server || s->dumb_server)
        p->server = start_server(s->dumb_server, &p->port);
    setenv("XDG_DATA_HOME", data, 1);
    free(data);
    free(folder);
    data = xasprintf("%s/state", p->dir);
    setenv("XDG_STATE_HOME", data, 1);
    setenv("HOME", p->dir, 1);
    free(data);
    return p;
}

static void close_place(struct place *p)
{
    if (p->server > 0) {
        kill(p->server, SIGKILL);
        waitpid(p->server, NULL, 0);
    }
    sqlite3_close(p->lock);
    remove_tree(p->dir);
    free(p->dir);
    free(p->db);
    free(p);
}

/* Replaces the words that stand for paths. The caller frees. */
static char *expand(const char *text, const struct place *p)
{
    struct buf b = {0};
    while (*text) {
        if (strncmp(text, "SLOW", 4) == 0 && ++text)
            buf_printf(&b, "%s/slow --threads 1", top), text += 3;
        else if (strncmp(text, "DIR", 3) == 0)
            buf_str(&b, p->dir), text += 3;
        else if (strncmp(text, "URL", 3) == 0)
            buf_printf(&b, "http://127.0.0.1:%d", p->port), text += 3;
        else if (strncmp(text, "BIG", 3) == 0)
            buf_printf(&b, "%s/big.jsonl", top), text += 3;
        else if (strncmp(text, "PROMPTS", 7) == 0)
            buf_printf(&b, "%s/prompts.jsonl", top), text += 7;
        else
            buf_char(&b, *text++);
    }
    buf_str(&b, "");
    return b.p;
}

static void resize(struct child *c, int w, int h)
{
    struct winsize size = {.ws_row = (unsigned short)h, .ws_col = (unsigned short)w};
    if (c->tty >= 0)
        ioctl(c->tty, TIOCSWINSZ, &size); /* sends SIGWINCH */
    else
        kill(c->pid, SIGWINCH);
}

static void start_state(const struct state *s, struct child *c, struct place *p)
{
    const char *argv[16] = {aerie};
    int n = 1;
    char *words = expand(s->argv, p), *next;
    for (char *w = strtok_r(words, " ", &next); w; w = strtok_r(NULL, " ", &next))
        argv[n++] = strcmp(w, "STUCK") == 0 ? STUCK + 5 : w;
    CHECK(n < 16);
    start_child(c, argv, s->face == SCREEN || s->face == LINES);
    free(words);
}

/* Brings the program into the state; false: it was not reached. */
static bool reach(const struct state *s, struct child *c, struct place *p)
{
    start_state(s, c, p);
    if (s->first && !AWAIT(c, c->gone || printed(c, 0, s->first)))
        return false;
    if (s->before) {
        if (s->face == SCRIPT && !AWAIT(c, c->gone || has_opened_the_log(c, p)))
            return false;
        s->before(c, p);
    }
    size_t from = s->keys ? c->text.n : 0;
    if (s->deaf)
        c->deaf = true;
    if (s->keys) {
        char *keys = expand(s->keys, p);
        for (char *line = keys, *end; *line; line = end) { /* a line at a time, as one types */
            end = line + strcspn(line, "\r\n");
            end += *end != '\0';
            char keep = *end;
            *end = '\0';
            type_keys(c, line);
            *end = keep;
            for (uint64_t t0 = clock_ns(); keep && s->face == SCREEN && ms_since(t0) < 150;)
                pump(c);
        }
        free(keys);
    }
    if (s->ready && !AWAIT(c, c->gone || printed(c, from, s->ready)))
        return false;
    if (s->reached && !AWAIT(c, c->gone || s->reached(c, p)))
        return false;
    /* whole screens, until a write blocks */
    for (int i = 0; s->deaf && c->tty >= 0 && i < 60; i++) {
        resize(c, COLUMNS - i % 2, ROWS);
        pump(c);
        poll(NULL, 0, 10);
    }
    for (uint64_t t0 = clock_ns(); ms_since(t0) < s->rest_ms + delay_ms;)
        pump(c);
    return !c->gone || s->by_itself;
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* One line of what went wrong; the first wins. */
static char *wrong;

static bool need(bool held, const char *fmt, ...)
{
    va_list ap;
    if (held || wrong)
        return held;
    va_start(ap, fmt);
    char line[512];
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    wrong = xstrdup(line);
    return false;
}

static bool same_modes(const struct child *c)
{
    struct termios now;
    return tcgetattr(c->slave, &now) == 0 && now.c_lflag == c->before.c_lflag &&
           now.c_iflag == c->before.c_iflag && now.c_oflag == c->before.c_oflag;
}

static size_t last_of(const struct child *c, const char *text)
{
    size_t at = 0;
    for (const char *p = c->text.p;
         p && (p = memmem(p, c->text.n - (size_t)(p - c->text.p), text, strlen(text))); p++)
        at = (size_t)(p - c->text.p) + 1;
    return at;
}

/* The screen was left: its modes, the alternate screen, pasting. */
static void needs_terminal_back(const struct state *s, struct child *c, const char *when)
{
    if (c->tty < 0)
        return;
    for (int i = 0; i < 5 && !s->deaf; i++) /* what is still on its way */
        pump(c);
    need(same_modes(c), "%s the terminal has other modes than before", when);
    if (s->face == SCREEN && !s->deaf) {
        need(last_of(c, "\033[?1049h") <= last_of(c, "\033[?1049l"),
             "%s the alternate screen is still shown", when);
        need(last_of(c, "\033[?2004h") <= last_of(c, "\033[?2004l"),
             "%s pastes are still bracketed", when);
        need(last_of(c, "\033[?1002h") <= last_of(c, "\033[?1002l"),
             "%s the mouse is still reported", when);
        need(last_of(c, "\033[?25l") <= last_of(c, "\033[?25h"), "%s the cursor is hidden", when);
    }
}

static void needs_sound_log(const struct state *s, struct place *p)
{
    struct buf report = {0};
    struct err e = {0};
    sqlite3_close(p->lock);
    p->lock = NULL;
    if (access(p->db, F_OK) != 0 || db_number(p->db, "PRAGMA user_version") == 0) /* or ended before it was made */
        return;
    if (s->log != BIG_LOG || every) {
        need(history_check_head(p->db, NULL, &report, &e), "the log is damaged: %s",
             report.p ? report.p : e.msg);
        buf_free(&report);
    }
    long n = db_number(p->db, "SELECT count(*) FROM turn WHERE role='reply' AND stop<>''");
    need(s->replies == 0 || n >= s->replies, "the log has %ld replies that ended, expected %d", n,
         s->replies);
}

/* The program ends, with a status that says which signal it was. */
static double needs_end(const struct state *s, struct child *c, int sig, uint64_t t0)
{
    bool ended = AWAIT(c, c->gone);
    double ms = ms_since(t0);
    need(ended, "it did not end within %d s", hang_ms() / 1000);
    int status = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 128 + WTERMSIG(c->status);
    int expected = sig == SIGINT && s->int_code ? s->int_code : 128 + sig;
    if (ended && !(s->by_itself && status == 0))
        need(status == expected, "it ended with %d, expected %d", status, expected);
    return ms;
}

/* ---- trials ---------------------------------------------------------------------------------- */

struct outcome {
    double ms;            /* until it ended, or until Ctrl-C had its effect */
    double stop, back;    /* until it was stopped; until it was drawn again */
    bool skipped, early;  /* early: the state was over before the signal came */
    char wrong[512];
};

/* Commands that store nothing end with their reader, by SIGPIPE. */
static bool only_prints(const struct state *s)
{
    static const char *const command[] = {"db ", "export ", "show ", "pack ", "logs ", "tokenize",
                                          "bugs "};
    for (size_t i = 0; i < sizeof command / sizeof *command; i++)
        if (s->face == ONCE && strncmp(s->argv, command[i], strlen(command[i])) == 0)
            return true;
    return false;
}

/* Signals that must change nothing, before one that ends the program. */
static void harmless(const struct state *s, struct child *c, struct outcome *o)
{
    for (int i = 0; i < 40 && !c->gone; i++) {
        resize(c, 20 + i * 37 % 150, 3 + i * 13 % 50);
        if (i % 4 == 0)
            pump(c);
    }
    resize(c, COLUMNS, ROWS);
    if (!only_prints(s))
        kill(c->pid, SIGPIPE);
    pump(c);
    need(!c->gone || s->by_itself, "resizes or SIGPIPE ended it");
    if (c->gone)
        return;
    uint64_t t0 = clock_ns();
    kill(c->pid, SIGTSTP);
    need(AWAIT(c, c->stopped || c->gone), "SIGTSTP did not stop it");
    o->stop = ms_since(t0);
    if (c->gone)
        return;
    needs_terminal_back(s, c, "while it is stopped");
    if (c->tty >= 0)
        tcsetpgrp(c->slave, c->pid);
    size_t from = c->text.n;
    t0 = clock_ns();
    kill(c->pid, SIGCONT);
    need(AWAIT(c, !c->stopped || c->gone), "SIGCONT did not continue it");
    if (s->face == SCREEN && !s->deaf && !s->elsewhere && last_of(c, "\033[?1049l") > 0)
        need(AWAIT(c, c->gone || printed(c, from, "\033[?1049h")),
             "the screen was not drawn again");
    need(s->face != SCREEN || s->reached != runs_a_query || runs_a_query(c, NULL) || c->gone,
         "the screen was drawn when the query had ended");
    o->back = ms_since(t0);
    need(!c->gone || s->by_itself, "it ended when it was continued");
}

/* Ctrl-C, as the terminal sends it: to all of the group. A chat that goes on is ended by
 * SIGTERM. */
static void interrupt(const struct state *s, struct child *c, struct outcome *o)
{
    uint64_t t0 = clock_ns();
    kill(-c->pid, SIGINT);
    if (!s->stays) {
        o->ms = needs_end(s, c, SIGINT, t0);
        return;
    }
    for (uint64_t t1 = clock_ns(); ms_since(t1) < 700;)
        pump(c);
    need(!c->gone, "Ctrl-C ended the chat");
    t0 = clock_ns();
    kill(c->pid, SIGTERM);
    o->ms = needs_end(s, c, SIGTERM, t0);
}

static void run_trial(const struct state *s, enum trial t, struct child *c, struct outcome *o)
{
    uint64_t t0;
    switch (t) {
    case TERM:
        harmless(s, c, o);
        t0 = clock_ns();
        kill(c->pid, SIGTERM);
        o->ms = needs_end(s, c, SIGTERM, t0);
        break;
    case HUP:
        t0 = clock_ns();
        kill(-c->pid, SIGHUP);
        o->ms = needs_end(s, c, SIGHUP, t0);
        break;
    case INT: interrupt(s, c, o); break;
    case HANG_UP: /* the window is closed: the shell sends SIGHUP to its jobs; some terminals
                     do, too */
        t0 = clock_ns();
        shut(&c->in);
        shut(&c->tty);
        for (int i = 0; i < 3 && !c->gone; i++) {
            kill(-c->pid, SIGHUP);
            kill(-c->pid, SIGCONT);
            for (uint64_t t1 = clock_ns(); ms_since(t1) < 15 && !c->gone;)
                pump(c);
        }
        o->ms = needs_end(s, c, SIGHUP, t0);
        break;
    case TWICE: /* the second one must do no harm if the first is already obeyed */
        t0 = clock_ns();
        kill(c->pid, SIGTERM);
        for (uint64_t t1 = clock_ns(); ms_since(t1) < 40 && !c->gone;)
            pump(c);
        kill(c->pid, SIGTERM);
        o->ms = needs_end(s, c, SIGTERM, t0);
        break;
    case READER: /* `| head -1`: quiet, and with the status of other tools; a chat says that not all
                    was written */
        t0 = clock_ns();
        buf_clear(&c->text);
        shut(&c->out);
        c->deaf = false;
        need(AWAIT(c, c->gone), "it did not end");
        o->ms = ms_since(t0);
        for (int i = 0; i < 5; i++)
            pump(c);
        need(c->text.n == 0, "it said: %s", c->text.p);
        need(only_prints(s) ? WIFSIGNALED(c->status) && WTERMSIG(c->status) == SIGPIPE
                            : WIFEXITED(c->status) && WEXITSTATUS(c->status) == 2,
                            "it ended with %x", c->status);
        break;
    default: break;
    }
}

static bool applies(const struct state *s, enum trial t)
{
    bool terminal = s->face == SCREEN || s->face == LINES;
    if (t == READER)
        return s->deaf && !terminal;
    /* no Ctrl-C comes from a terminal that stands still */
    return t == HANG_UP ? terminal : t != INT || !terminal || !s->deaf;
}

static void run_case(const struct state *s, enum trial t, int number, struct outcome *o)
{
    struct child c;
    struct place *p = open_place(s, number);
    wrong = NULL;
    bool reached = reach(s, &c, p);
    need(reached, "the state was not reached%s", c.gone ? ": it ended" : "");
    o->early = c.gone;
    if (reached && !c.gone) {
        run_trial(s, t, &c, o);
        need(AWAIT(&c, alone(&c)), "a process of its group is left");
        if (t != HANG_UP)
            needs_terminal_back(s, &c, "at the end");
        needs_sound_log(s, p);
    }
    if (wrong) {
        snprintf(o->wrong, sizeof o->wrong, "%s", wrong);
        free(wrong);
    }
    end_child(&c);
    close_place(p);
}

/* ---- fixtures -------------------------------------------------------------------------------- */

/* Runs the program to its end, with the log `name`.db. */
static void make_log(const char *name, const char *a, const char *b, const char *c, const char *d,
                     const char *f)
{
    char *db = xasprintf("%s/%s.db", top, name);
    const char *argv[] = {aerie, a, "-q", "--db", db, b, c, d, f, NULL};
    struct child k;
    if (strcmp(a, "import") == 0)
        argv[2] = "--db", argv[3] = db, argv[4] = b, argv[5] = NULL;
    start_child(&k, argv, false);
    shut(&k.in);
    if (!AWAIT(&k, k.gone) || k.status != 0)
        die("the log %s could not be made: %s", name, k.text.p ? k.text.p : "");
    end_child(&k);
    free(db);
}

static void make_fixtures(void)
{
    struct buf b = {0};
    char *slow = xasprintf("%s/slow", top), *big = xasprintf("%s/big.jsonl", top);
    make_slow_model(slow);
    buf_str(&b, "{\"messages\":[");
    for (int i = 0; i < 1500; i++)
        buf_printf(&b, "{\"role\":\"user\",\"content\":\"%d: what does a fox keep in its window of "
                       "%d pages?\"},"
                   "{\"role\":\"assistant\",\"content\":\"%d: sleep, for the most part; "
                   "and another line of text to fill pages, so that an export takes a while\"},", i,
                   i, i);
    buf_str(&b,
            "{\"role\":\"user\",\"content\":\"and?\"}],\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"no\"}}]}\n");
    write_new(top, "big.jsonl", &b);
    buf_clear(&b);
    for (int i = 0; i < 64; i++)
        buf_printf(&b, "{\"prompt\":\"hello %d\"}\n", i);
    write_new(top, "prompts.jsonl", &b);
    buf_clear(&b);
    for (int i = 0; i < 8000; i++)
        buf_str(&b, "a fox ");
    write_new(top, "text", &b);
    buf_free(&b);
    make_log("big", "import", big, NULL, NULL, NULL);
    char *model = xasprintf("--model=%s", slow);
    make_log("slow", "run", model, "-p", "max_tokens=40", "hi");
    free(model);
    free(slow);
    free(big);
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct job {
    const struct state *s;
    enum trial t;
    struct outcome o;
};

static int choose(struct job *job)
{
    const char *only = getenv("AERIE_SIGNALS");
    bool all = only && strcmp(only, "all") == 0;
    int n = 0;
    every = only;
    for (int i = 0; i < N_STATES; i++)
        for (int t = 0, also = states[i].deaf ? READER : 1 + i % (READER - 1); t < N_TRIALS; t++) {
            const struct state *s = &states[i];
            bool wanted = all || (only && strstr(s->name, only)) ||
                          (!only && !s->rare &&
                           (t == TERM || t == also || (t == HUP && !applies(s, (enum trial)also))));
            if (wanted && applies(s, (enum trial)t))
                job[n++] = (struct job){.s = s, .t = (enum trial)t};
        }
    return n;
}

/* A worker takes the next job that nobody has taken. */
static void work(struct job *job, int n, _Atomic int *next)
{
    setsid();
    signal(SIGHUP, SIG_IGN); /* a closed terminal tells its session's leader */
    signal(SIGTTOU, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    for (int i; (i = (*next)++) < n;)
        run_case(job[i].s, job[i].t, i, &job[i].o);
    _exit(0);
}

static void set_environment(void)
{
    char *config = xasprintf("%s/config", top), *folder = xasprintf("%s/config/aerie", top),
         *file = xasprintf("%s/config/aerie/config", top);
    static const char device[] = "device = cpu\nload = map\n";
    CHECK(mkdir(config, 0700) == 0 && mkdir(folder, 0700) == 0);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write_fully(fd, device, sizeof device - 1) && close(fd) == 0);
    setenv("XDG_CONFIG_HOME", config, 1);
    setenv("TERM", "xterm-256color", 1);
    setenv("COLORFGBG", "15;0", 1); /* the terminal is not asked for its background: nobody would
                                       answer */
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("EDITOR", "sleep 60; :", 1);
    unsetenv("VISUAL");
    free(config);
    free(folder);
    free(file);
}

int main(void)
{
    enum { WORKERS = 4, MOST = N_STATES * N_TRIALS };
    struct shared {
        _Atomic int next;
        struct job job[MOST];
    } *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *tmp = getenv("TMPDIR"), *built = getenv("AERIE"),
        *later = getenv("AERIE_SIGNALS_DELAY");
    int bad = 0;
    top = xasprintf("%s/aerie-signals-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    CHECK(all != MAP_FAILED && mkdtemp(top));
    aerie = built ? built : "build/aerie";
    delay_ms = later ? atoi(later) : 0;
    set_environment();
    make_fixtures();
    int n = choose(all->job);
    for (int i = 0; i < WORKERS; i++)
        if (fork() == 0)
            work(all->job, n, &all->next);
    while (wait(NULL) > 0)
        ;
    double worst = 0, worst_stop = 0, worst_back = 0;
    for (int i = 0; i < n; i++) {
        struct job *j = &all->job[i];
        printf("%s %d - %s (%s): %s", j->o.wrong[0] ? "not ok" : "ok", i + 1, j->s->name,
               face_name[j->s->face], trial_name[j->t]);
        if (every)
            printf(j->o.early ? " [over before]" : " [%.0f ms; stopped %.1f, back %.1f]", j->o.ms,
                   j->o.stop, j->o.back);
        printf("\n");
        if (j->o.wrong[0])
            printf("# %s\n", j->o.wrong);
        bad += j->o.wrong[0] != '\0';
        worst = j->o.ms > worst ? j->o.ms : worst;
        worst_stop = j->o.stop > worst_stop ? j->o.stop : worst_stop;
        worst_back = j->o.back > worst_back ? j->o.back : worst_back;
    }
    printf("# %d cases; the latest end after %.0f ms, stop after %.0f ms, screen drawn again after "
           "%.0f ms\n", n, worst, worst_stop, worst_back);
    printf("1..%d\n", n);
    remove_tree(top);
    return bad > 0;
}
