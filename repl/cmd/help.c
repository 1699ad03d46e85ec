/* help.c - what /help says about one command, one setting, or a topic. cmd.c has /help itself. */
#include <string.h>

#include "repl/cmd/cmd.h"

static const struct topic topics[] = {
    {"keys", "keys of the full screen",
     "Enter          sends the message; while a reply runs it queues the next one\n"
     "Ctrl-J         starts a new line in the message (so does Alt-Enter)\n"
     "Up, Down       earlier messages; Ctrl-R searches them\n"
     "Tab            completes a command, a setting, a session or a file, also from some letters\n"
     "Ctrl-P         finds commands, settings, topics, sessions and steps by some letters;\n"
     "               Enter takes what is marked\n"
     "Ctrl-F         finds a text in what is shown: Enter, then n and N go to the next match and\n"
     "               the one before (in a pane and in this help so does /)\n"
     "Ctrl-C         stops the reply and keeps what is written so far\n"
     "Ctrl-D         leaves aerie when the input line is empty\n"
     "Ctrl-G         opens the message in your editor\n"
     "Ctrl-T         shows or hides the reasoning of the model\n"
     "Ctrl-X r       switches between raw and rendered text; Ctrl-X c tints words\n"
     "Ctrl-X t       a cursor on the words of the reply; Ctrl-X o to the next part\n"
     "Ctrl-X [       the step before, in all panes; Ctrl-X ] the step after, Ctrl-X . the newest\n"
     "Ctrl-X s       single keys: s p n f c w step a paused turn (/step, /phase, ...);\n"
     "               S steps back (/rstep), N goes to where the turn begins (/goto 0)\n"
     "Enter          on an empty line, while a turn is paused: the last /step, /phase ... again\n"
     "Ctrl-X y       copies to the terminal's clipboard what has the arrows: a pane, the ids of\n"
     "               a word's tokens, else the newest reply (so does /copy)\n"
     "Ctrl-L         draws the screen again\n"
     "F1             opens this help\n"
     "F2 F3 F4       pages, tree and steps beside the chat; F5 pool, F6 word, F7 why\n"
     "F8             the saved sessions: type to filter; Enter resumes; arrows go to the\n"
     "               list, where f forks and c compares two\n"
     "Ctrl-X d       takes the last file of /read out of the message again\n"
     "Esc            moves the arrow keys into the pane beside the chat, and back. Wherever the\n"
     "               arrows are, a letter or a digit goes to the message\n"},
    {"panes", "what the panes show",
     "pages (F2)     where the session's logical pages lie in the full, swa and draft pool\n"
     "tree  (F3)     the draft tree of a step, with its accepted path\n"
     "steps (F4)     the steps around the one that is shown, with their tokens\n"
     "pool  (F5)     the ledger of each pool, and whether it sums up\n"
     "word  (F6)     the tokens of the word under the cursor: pages, probabilities, rivals\n"
     "why   (F7)     why the draft of the step was accepted or rejected, in numbers\n"
     "Commands print the same in plain mode: /pages, /tree, /pool, /map, /why.\n"
     "In a pane (Esc): ? lists its keys, / finds a text in it, arrows move, Home and End\n"
     "jump, + - change its height, < > the width of all, Tab goes to the next part; the key\n"
     "that opened it closes it.\n"
     "/layout NAME opens several; /help time has the keys of time.\n"},
    {"layers", "what /layers, /attn and /top show of a step that is run again",
     "A past step is computed again on a scratch copy of its context: cells that the session\n"
     "still holds are shared, the others are computed from the tokens. The line below the title\n"
     "says how many, and whether the logits are those recorded; if not, a setting, a fault or\n"
     "the device's sums have changed. The session stays as it is, its pages included.\n"
     "row            of the step's pass: a node of its tree (0: the root); without a row the last\n"
     "               accepted one, of a prompt chunk the last token\n"
     "norm           of the residual stream that enters the layer\n"
     "+attn +mlp     the size of what attention and MLP add, over that norm\n"
     "tree           share of attention on cells that this pass writes: ancestors and itself\n"
     "in W, old      on committed tokens at most W keys back, and on those before\n"
     "sink           on the learned sink (gpt-oss); 1st: on the first token, in W or old\n"
     "experts        those that the router chose\n"},
    {"time", "keys of time, in panes, on words and on the timeline",
     "[ ]            the step before, and the step after; behind the last one: now\n"
     "{ }            the turn before, and the turn after\n"
     "Home End       the first step, and the last one, when the timeline has the keys\n"
     ".              back to now\n"
     "Everything on the screen but the newest step (LIVE) and the log (REC) is of the step that\n"
     "is shown (AT); /plan, /check and /gauges know only now, and say so. A resumed session\n"
     "shows its newest step, as the log has it; the next message goes on from there.\n"
     "The line above the input is the timeline: one cell a step, or as many as\n"
     "it says at its end. Its height is the number of drafted tokens that were\n"
     "accepted; a dot: nothing was drafted; underlined: pages left the window; a\n"
     "bar: a turn begins; a circle: a breakpoint; a diamond: checkpoints gave up\n"
     "pages; a cross: a fault (--ascii: | * e !). A click or a drag goes there;\n"
     "/set timeline off hides it.\n"
     "On words (Ctrl-X t): arrows move by word and by row, [ ] by step, Enter shows\n"
     "the facts; /tree, /why and the panes are those of the word's step.\n"},
    {"words", "the words aerie uses",
     "slot           one token's cell in a pool; a page is page_size slots\n"
     "full, swa      the pool of the full-attention layers, and that of the sliding-window\n"
     "               layers; both number their slots, and only the full-to-swa map joins them\n"
     "window W       a query at q sees the keys k with 0 <= q - k < W: W keys, itself included\n"
     "committed      tokens that can no longer be rolled back\n"
     "step           one cycle: draft, verify, accept, commit; 9.214 is step 214 of turn 9\n"
     "accepted       a drafted token that the target chose, too, and that the reply got;\n"
     "               a drafted token that ends the reply counts\n"
     "bonus          the target's own token after the accepted ones; a cycle whose last\n"
     "               token was drafted has none\n"
     "MAL            mean acceptance length = 1 + accepted/cycles, as vLLM counts it;\n"
     "               cycles: steps that drafted\n"
     "plan           all that one forward pass needs besides weights; checked before it runs\n"},
    {"servers", "what is shown of a session with a server (--remote URL)",
     "Only what the server reports; everything else says why it is not there, and\n"
     "aerie doctor --remote URL names the server's flags that would add to it.\n"
     "/pool /gauges F5  its metrics over time, read every gauge.ms (0: never): pools,\n"
     "               requests that run and wait, hits of the prefix cache\n"
     "/accept        by depth where it lists its steps, else reply by reply, with the\n"
     "               server's own definition beside the numbers\n"
     "/timing        first token, queue, prompt, between pieces: median, p99, greatest\n"
     "/why /top /tokens F4 F6 F7  tokens with probabilities and rivals as it sent them\n"
     "/stats         all of it in short; the status line says when it does not answer\n"
     "Draft trees, page tables, plans, checks and the debugger: local engine only.\n"},
    {"context", "when the context is full",
     "The whole conversation is computed for each message. 512 tokens, or an eighth of a\n"
     "context below 4096, are kept free for the reply where that is possible. When a message\n"
     "and what is before it no longer fit, the setting `forget` says what happens:\n"
     "ask            nothing is sent or changed; /forget leaves out the turns that were named\n"
     "               and sends the message (the default at a terminal)\n"
     "oldest         a notice names the turns and their tokens, then they leave (the default\n"
     "               where nobody can answer: scripts, pipes, `aerie run`)\n"
     "never          the message is refused\n"
     "Oldest turns leave first. A turn of more than a quarter of the context, such as a text\n"
     "that the questions are about, stays until nothing else is left. A message that is too\n"
     "long by itself is refused and changes nothing. Turns that left stay in the log;\n"
     "/fork N goes back to a conversation that still has them.\n"},
    {"status", "the status line",
     "ctx 92/4.1k    tokens in the context, and how many fit\n"
     "full 2% ...    the share of each pool that is held\n"
     "MAL 5.2        mean acceptance length: 1 + accepted drafted tokens a cycle\n"
     "1402 t/s       the speed of the last reply\n"
     "step 3.5       the last step: step 5 of turn 3\n"
     "REC            the session is recorded: /resume, /search and `aerie replay` find it\n"
     "log 93% full   close to --max-size, or over it: aerie db prune makes room\n"
     "NOT SAVED      the log refuses what is said, and why; no log: nothing is recorded\n"},
    {"safety", "what may reach your terminal",
     "Nothing from the model, a file or the log reaches the terminal as it is: control, bidi\n"
     "and invisible characters are shown as escapes such as <U+202E>, in the full screen and\n"
     "in plain lines alike. Only `--sanitize never` into a pipe or file lets bytes through.\n"
     "Pasted text never becomes a special token of the model.\n"
     "Sessions are files of your own (0600, in a 0700 folder); -n saves nothing, /private\n"
     "stops saving, --readonly forbids every change of files and sessions.\n"},
    {"files", "where things are",
     "$XDG_DATA_HOME/aerie/sessions.db   the saved sessions (default ~/.local/share)\n"
     "$XDG_CONFIG_HOME/aerie/config      settings, a name=value line each (~/.config)\n"
     "$XDG_STATE_HOME/aerie/history      the lines you typed (~/.local/state)\n"
     "$XDG_STATE_HOME/aerie/layout       which panes were open, and their sizes\n"},
    {"exit", "exit codes",
     "0              all went well\n"
     "1              the answer is no: nothing found, a replay differs\n"
     "2              wrong usage, or any other error\n"
     "3              the model or the device is not available, or the device failed\n"
     "4              the session database\n"
     "5              a checker rule was violated in this session\n"
     "129, 130, 143  the terminal went away, Ctrl-C, a termination signal\n"
     "A script goes on after a failing command; its exit code is the highest that occurred.\n"},
    {"views", "what /sql can ask the log (man aerie, THE DATABASE, has examples)",
     "v_turn         a turn: prompt, tokens reused and what stopped the reuse, times\n"
     "v_step         a step: kind, position, rows, drafted, accepted, margin, digests\n"
     "v_token        a generated token: text, log probability, the rival that it beat\n"
     "v_node         a node of a draft tree: depth, rank, fate, q, p, u, text\n"
     "v_prompt       a token of a prompt, and whether it was reused\n"
     "v_page         a page that changed hands: pool, operation, page, holder\n"
     "v_settings     a setting of a turn\n"
     "v_session      a session: number, title, model, the server that computed it\n"
     "v_launch       what a server reported of its launch: name, value\n"
     "v_top          a best token of a row, as a server sent it: rank, text, log probability\n"
     "v_metric       a server's metric: before a reply, after it, change\n"
     "session        number, id, title; every view has session (its id) and turn\n"
     "/sql select turn, step, text, rival_text from v_token where logp - rival_logp < 0.1\n"},
    {"conditions", "conditions of /break, /until and /watch",
     "A comparison of facts of one step, such as  accept==0 && pool.swa.free<8\n"
     "Operators, loosest first:  ||  &&  !  == != < <= > >=  + -  * / %  and parentheses;\n"
     "or, and, not are the same in words. Texts stand in quotes: token==\"foo\". A step's\n"
     "address is TURN.STEP: step==9.214. A condition that names node.* holds when it holds for\n"
     "one drafted node, one that names token for one token that the step added. What is not\n"
     "known of a step (the margin of a prompt chunk; of a step that drafted nothing how many\n"
     "nodes were accepted) makes a comparison false, and also its negation.\n"
     "/break A if B is /break (A) && (B).\n"},
    {"back", "going back in a paused turn",
     "/rstep goes N steps back, /goto T.S to where the turn stood after step S (T.0: where it\n"
     "begins), also forward again. The steps on the way run again, silently, and each one is\n"
     "compared with its first run: page tables, draft, logits, tokens. One that differs ends the\n"
     "turn with a fault. All views show the earlier state; the status line says PAUSED 9.3 (of\n"
     "9.7). What was said stays: until the turn is at its newest step again nothing can be\n"
     "forced, and Ctrl-C ends the turn where it was. The states behind this are kept where the\n"
     "turn begins and, while it is stepped or a breakpoint exists, every few steps; they are\n"
     "lost where a pool was short. aerie replay ID --goto T.S reaches any step of a session.\n"
     "/force \" the\" commits one token by hand: the log says so, a replay repeats it.\n"
     "/what-if draft.topk=8 runs the next step as it is and changed, shows both and drops both:\n"
     "draft.*, spec, temperature and the other sampling settings, seed, check, bug.NAME,\n"
     "page_size and window. For the last two, and where a head must guess anew, the context is\n"
     "computed again on pools of their own. /goto 9.2 first to ask about step 9.3.\n"},
    {"input", "how lines are read",
     "A line that begins with / is a command; // sends a literal slash. Commands may be cut\n"
     "short while that is unambiguous: /tr is /tree. \"two words\" is one argument, \\\" a quote.\n"
     "In plain mode a line that ends in \\ goes on in the next, and a message between \"\"\" and\n"
     "\"\"\" may have many lines. With --json every line of output is one JSON object.\n"},
};
enum { N_TOPIC = sizeof topics / sizeof *topics };

const struct topic *topic_at(int i)
{
    return i < N_TOPIC ? &topics[i] : NULL;
}

/* ---- one thing ------------------------------------------------------------------------------- */

void help_command(const struct cmd *c, const struct printer *to)
{
    print_open(to, NULL, '{');
    print_add(to, ST_KEY, "/%s{command}", c->name);
    print_add(to, ST_LABEL, " %s{args}", c->args);
    print_end(to);
    print_add(to, ST_TEXT, "  %s{help}", c->help);
    print_end(to);
    if (c->alias)
        print_note(to, ST_TEXT, "  other names: %s", c->alias);
    print_add(to, ST_TEXT, "  for example: %s{example}", c->example);
    print_end(to);
    if (!(c->flags & CMD_BUSY_OK))
        print_note(to, ST_DIM, "  waits until no reply is running");
    print_close(to, '}');
}

bool help_setting(const char *name, const struct printer *to)
{
    for (int i = 0; i < settings_count(); i++) {
        const struct option *s = settings_at(i);
        if (strcmp(s->name, name) != 0)
            continue;
        print_note(to, ST_KEY, "%s", s->name);
        print_note(to, ST_TEXT, "  %s", s->help);
        print_note(to, ST_TEXT, "  values: %s; /set %s VALUE changes it", s->range, s->name);
        print_line(to, ST_TEXT, "\f%s{setting}%s{range}%s{help}", s->name, s->range, s->help);
        return true;
    }
    return false;
}

/* The names that conditions may use, under the topic of that name. */
static void list_names(struct app *a, const struct printer *to)
{
    const char *name, *meaning;
    if (!a->backend || !backend_has(a->backend, VIEW_DEBUG))
        return;
    print_open(to, "names", '{');
    for (int i = 0; (name = a->backend->debug->name(i, &meaning)) != NULL; i++)
        print_named(to, name, meaning, 20);
    print_close(to, '}');
}

bool help_topic(struct app *a, const char *name, const struct printer *to)
{
    for (int i = 0; i < N_TOPIC; i++) {
        if (strncmp(topics[i].name, name, strlen(name)) != 0)
            continue;
        print_note(to, ST_HEAD, "%s", topics[i].title);
        print_text(to, ST_TEXT, topics[i].text);
        print_open(to, NULL, '{');
        print_add(to, ST_TEXT, "\f%s{topic}%s{text}", topics[i].name, topics[i].text);
        if (strcmp(topics[i].name, "conditions") == 0)
            list_names(a, to);
        print_close(to, '}');
        return true;
    }
    return false;
}
