/* act.c - the actions of a soak's user, chosen by the user's random numbers. */
#include "tests/soak/soak.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define ONE_OF(u, a) (a)[roll(&(u)->rng, COUNT(a))]

static const char *const message[] = {
    "Hello!", "What are you?", "My dog is called Rex.", "What is my dog called?",
    "Tell me a story about a fox.",
    "Count to thirty.", "Count to two hundred.", "What is a page table?", "Spell window.",
    "Sort 9 4 7 1.",
    "Say hello to Ada.", "How does drafting work?", "Tell me a story.", "What is 7 + 5?",
    "And then?",
    "\xf0\x9f\xa6\x8a \xe6\xbc\xa2\xe5\xad\x97 \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d e\xcc\x81\xcc\x82 "
    "\xe2\x80\x8b?",
    "the the the the the the the the the the the the the the the the the the the the the the the "
    "the the the the the",
    "The secret code is 66878. Remember it.", "What is the secret code?",
    "window window page page slot slot draft",
};

static const char *const setting[] = {
    "temperature 0.8", "temperature 0", "top_k 20", "top_k 0", "top_p 0.9", "top_p 1", "min_p 0.05",
    "min_p 0", "seed 7",
    "seed 12345", "max_tokens 20", "max_tokens 200", "max_tokens 60", "spec off", "spec on",
    "draft.steps 3", "draft.topk 4",
    "draft.topk 1", "draft.nodes 16", "draft.nodes 6", "draft.shape 5-1-6", "draft.shape 4-2-12",
    "chunk 7", "chunk 64",
    "chunk 256", "check strict", "check on", "forget oldest", "graph off", "graph on",
};

/* Commands that show something and do not change the session. */
static const char *const look[] = {
    "/stats", "/timing", "/accept", "/accept kind", "/accept window", "/tree", "/pages",
    "/pages swa", "/pages draft", "/page 3",
    "/page 2 swa", "/map 20", "/pool", "/check", "/why", "/tokens", "/tokens 1 30", "/top",
    "/layers", "/attn 3", "/attn 5",
    "/plan", "/plan verify", "/at 1.1", "/at live", "/set", "/bug", "/help", "/help tree",
    "/sessions 5", "/sessions fox",
    "/search page", "/search window table", "/sql select count(*) from step",
    "/sql select * from v_session limit 3",
    "/sql select * from v_token limit 20", "/where", "/diff last", "/system", "/nosuch",
    "/set nosuch 1", "/tree x", "/page -1", "/sql delete from turn", "/resume 999999",
};

static const char *const fault[] = {"24617", "27360", "26513", "26512", "26966", "9279", "16267",
                                    "27789", "41838", "17630", "39287", "39160", "22819", "50170",
                                    "51756", "35208", "47728", "10875", "50021", "34823"};

static void say(struct user *u, const char *line)
{
    user_line(u, line);
    if (u->screen)
        user_settle(u); /* lines of the plain mode are answered in order without waiting */
}

static void sayf(struct user *u, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void sayf(struct user *u, const char *fmt, ...)
{
    char line[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    say(u, line);
}

static void chat(struct user *u) { say(u, ONE_OF(u, message)); }
static void looks(struct user *u) { say(u, ONE_OF(u, look)); }
static void sets(struct user *u) { sayf(u, "/set %s", ONE_OF(u, setting)); }

static void changes_session(struct user *u)
{
    switch (roll(&u->rng, 9)) {
    case 0: say(u, "/undo"); break;
    case 1: say(u, "/regen"); break;
    case 2: sayf(u, "/forget %d", 1 + roll(&u->rng, 3)); break;
    case 3: say(u, "/clear"); break;
    case 4: sayf(u, "/title soak %d", roll(&u->rng, 1000)); break;
    case 5: sayf(u, "/system Answer in %d words.", 1 + roll(&u->rng, 9)); break;
    case 6: sayf(u, "/n %d %s", 2 + roll(&u->rng, 3), ONE_OF(u, message)); break;
    case 7: sayf(u, "/export %s soak-%s-%ld", roll(&u->rng, 2) ? "md" : "jsonl", u->name,
                 atomic_fetch_add(&soak.exports, 1)); break;
    default: sayf(u, "/read note.txt"); break;
    }
}

static void forks(struct user *u)
{
    atomic_fetch_add(&soak.forks, 1);
    switch (roll(&u->rng, 4)) {
    case 0: say(u, "/fork"); break;
    case 1: sayf(u, "/fork %d", 1 + roll(&u->rng, 4)); break;
    case 2: sayf(u, "/fork last"); break;
    default: sayf(u, "/resume %d", 1 + roll(&u->rng, 60)); break;
    }
    chat(u);
}

/* Stops replies with Ctrl-C at random moments; on the screen only. */
static void cancels(struct user *u)
{
    if (!u->screen)
        return;
    for (int i = 1 + roll(&u->rng, 4); i > 0; i--) {
        atomic_fetch_add(&soak.cancels, 1);
        user_line(u, "Count to two hundred.");
        user_pump(u, roll(&u->rng, 120));
        user_send(u, "\x03", 1);
    }
    user_settle(u);
}

static void resizes(struct user *u)
{
    if (!u->screen)
        return;
    if (roll(&u->rng, 2))
        user_line(u, "Tell me a story.");
    for (int i = 5 + roll(&u->rng, 40); i > 0; i--) {
        bool tiny = roll(&u->rng, 6) == 0;
        user_resize(u, 1 + roll(&u->rng, tiny ? 12 : 280), 1 + roll(&u->rng, tiny ? 5 : 90));
        user_pump(u, roll(&u->rng, 6));
    }
    user_resize(u, 120, 45);
    user_settle(u);
}

/* Returns the focus to the input line, whatever pane or overlay has it. */
static void back_to_input(struct user *u)
{
    for (int i = 0; i < 8 && u->pid; i++) {
        user_pump(u, 60); /* an Esc is a key of its own if no byte follows for a while */
        user_send(u, "\x1b[201~\x15zqzq", 11);
        user_settle(u);
        if (strstr(user_screen(u), "\xe2\x80\xba zqzq")) {
            user_send(u, "\x15", 1);
            user_settle(u);
            return;
        }
        user_send(u, i % 2 ? "\x03" : "\x1b", 1);
        user_settle(u);
    }
    if (u->pid)
        failed(u->name, "the keys do not come back to the input line: %.1500s", user_screen(u));
}

static void presses_keys(struct user *u)
{
    static const char *const key[] = {
        "\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~", "\x1b[18~", "\x1b[19~", /* F1 .. F8 */
        "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[5~", "\x1b[6~", "\x1b[1~", "\x1b[4~",
        "\x1b[3~", "\t", "\x1b",
        "\x18t", "\x18[", "\x18]", "\x18.", "\x18r", "\x18" "c", "\x18o", "\x18s", "\x18"
            "d", "\x0c", "\x14", "\x12", "\x07", "\n",
        "a", "h", "j", "k", "l", "g", "G", "+", "-", "<", ">", "[", "]", "{", "}", "w", "b", "n",
        "m", "y", "\x7f", "\x01", "\x05",
        "\x0b", "\x17", "\xc3\xa9", "\xe2\x82", "\x1b[<0;10;10M", "\x1b[<0;10;10m",
        "\x1b[<64;20;12M", "\x1b[<65;20;12M",
        "\x1b[200~pasted\ntext\x1b[201~", "\x1b[200~\x1b[31m\x07", "\x1b[201~",
    };
    if (!u->screen)
        return;
    struct buf sent = {0};
    for (int i = 20 + roll(&u->rng, 60); i > 0; i--) {
        const char *k = ONE_OF(u, key);
        atomic_fetch_add(&soak.keys, 1);
        for (const char *c = k; *c; c++)
            buf_printf(&sent, (unsigned char)*c > ' ' && (unsigned char)*c < 0x7f ? "%c"
                       : "\\x%02x", (unsigned char)*c);
        buf_char(&sent, ' ');
        user_send(u, k, strlen(k));
        user_pump(u, roll(&u->rng, 5));
    }
    note(u->name, "keys %s", sent.p);
    buf_free(&sent);
    back_to_input(u);
    say(u, "/layout chat");
    say(u, "/at live");
}

static void opens_panes(struct user *u)
{
    static const char *const layout[] = {"/layout debug", "/layout wide", "/layout pages",
                                         "/layout chat"};
    if (!u->screen)
        return;
    say(u, ONE_OF(u, layout));
    chat(u);
    say(u, "/layout chat");
}

/* Pauses a turn, inspects it, steps back, changes it, and runs it to its end. */
static void debugs(struct user *u)
{
    static const char *const condition[] = {"accept==0", "accept>=3", "drafted>0",
                                            "pool.swa.free<100"};
    static const char *const move[] = {"/step", "/step 3", "/phase", "/phase", "/phase", "/rstep",
                                       "/rstep 2", "/where", "/tree", "/why",
                                       "/what-if draft.topk=4", "/what-if temperature=1", "/pool",
                                       "/check", "/plan", "/continue",
                                       "/force \" cat\"", "/force off", "/until accept==0",
                                       "/layers"};
    if (roll(&u->rng, 2))
        sayf(u, "/break %s", ONE_OF(u, condition));
    else
        say(u, roll(&u->rng, 2) ? "/phase" : "/step");
    chat(u);
    for (int i = 2 + roll(&u->rng, 8); i > 0; i--)
        say(u, ONE_OF(u, move));
    say(u, "/delete");
    say(u, "/force off");
    say(u, "/finish");
    say(u, "/continue");
}

/* Switches a historical fault on for a few turns. */
static void turns_with_fault(struct user *u, const char *f)
{
    atomic_fetch_add(&soak.faults, 1);
    user_settle(u);
    u->fault_on = true;
    sayf(u, "/bug %s on", f);
    if (roll(&u->rng, 2))
        say(u, "/set draft.topk 4");
    for (int i = 1 + roll(&u->rng, 3); i > 0; i--)
        chat(u);
    sayf(u, "/bug %s off", f);
    say(u, "/clear"); /* empties the pools: the fault's damage stays in them until then */
    user_settle(u);
    u->fault_on = false;
}

static void meets_fault(struct user *u)
{
    turns_with_fault(u, ONE_OF(u, fault));
}

static const struct act {
    void (*run)(struct user *u);
    int weight;
} act[] = {
    {chat, 30}, {looks, 25}, {sets, 10}, {changes_session, 12}, {forks, 5}, {cancels, 4},
    {resizes, 3}, {presses_keys, 3},
    {opens_panes, 3}, {debugs, 4}, {meets_fault, 2},
};

static void acts(struct user *u)
{
    int sum = 0, at = 0;
    for (int i = 0; i < COUNT(act); i++)
        sum += act[i].weight;
    for (int r = roll(&u->rng, sum); r >= act[at].weight; at++)
        r -= act[at].weight;
    act[at].run(u);
}

/* For a run that leaks pages on purpose: a historical fault that leaks them, with the checker off
 * so that turns go on. */
static void leak_pages(struct user *u)
{
    say(u, "/bug 27789 on");
    say(u, "/set check off");
    say(u, "/set draft.shape 4-2-12");
}

/* Brings the program into the state in which samples are comparable: no turn, no pause, an empty
 * context and screen. Checks ledgers and rules before and after the context is emptied. */
static void rests(struct user *u)
{
    static const char *const first[] = {"/delete", "/force off", "/finish", "/at live",
                                        "/bug 27789 off"};
    static const char *const line[] = {"/drop", "/set temperature 0", "/set top_k 0",
                                       "/set top_p 1",
                                       "/set min_p 0", "/set max_tokens 0", "/set spec on",
                                       "/set draft.shape 5-1-6", "/set chunk 256",
                                       "/set check on", "/system", "/clear"};
    for (int i = 0; i < COUNT(first) && u->pid; i++)
        say(u, first[i]);
    user_settle(u);
    if (u->pid)
        user_inspect(u);
    for (int i = 0; i < COUNT(line) && u->pid; i++)
        say(u, line[i]);
    user_settle(u);
    if (u->pid)
        user_inspect(u);
    if (u->pid)
        say(u, "/clear");
    if (u->pid && strcmp(soak.leak, "pages") == 0)
        leak_pages(u);
    user_settle(u);
}

/* Sends a prompt of more tokens than a pass has rows, after which the kernels' working buffers have
 * their final size. */
static void has_widest_pass(struct user *u)
{
    struct buf text = {0};
    say(u, "/set chunk 256");
    for (int i = 0; i < 70; i++)
        buf_str(&text, "window page slot draft ");
    say(u, text.p);
    buf_free(&text);
    say(u, "/clear");
}

/* Before the first sample: uses everything that is opened on first use (such as connections for
 * reading the log), and fills buffers that are never shrunk (such as the ring of steps), so that
 * they do not count as growth. */
static void warms_up(struct user *u)
{
    say(u, message[0]);
    for (int i = 0; i < COUNT(look) && u->pid; i++)
        say(u, look[i]);
    say(u, "/title a title");
    for (int i = 0; i < 12 && u->pid; i++) {
        say(u, i % 3 ? "Count to two hundred." : "Tell me a story.");
        user_settle(u);
    }
    say(u, "/n 4 Tell me a story.");
    say(u, "/clear");
    turns_with_fault(u, "26513"); /* its passes need additional buffers */
    has_widest_pass(u);
}

void *user_main(void *arg)
{
    struct user *u = arg;
    warms_up(u);
    for (;;) {
        for (int i = 1 + roll(&u->rng, 3); i > 0 && u->pid; i--)
            acts(u);
        user_settle(u);
        if (!atomic_load(&soak.resting) && u->pid)
            continue;
        rests(u);
        pthread_barrier_wait(&soak.rest);
        pthread_barrier_wait(&soak.go);
        if (atomic_load(&soak.stop))
            return NULL;
    }
}
