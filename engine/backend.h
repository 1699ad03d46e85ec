/* backend.h - an engine as the program sees it: requests in, events out, views of its state.
 *
 * struct backend is all that repl/ knows of an engine. The local engine (engine.h) is one backend;
 * a server can be another. Every backend has the operations of struct backend_ops. The other views
 * come in groups that a backend may lack: the group's pointer is then NULL, and lacks[] says why in
 * one line for people. A caller tests the pointer first, so that facts which an engine does not
 * report are never shown as empty or zero.
 *
 * Threads: everything may be called from any one thread at a time (the main thread),
 * backend_cancel() from anywhere, including a signal handler. Views are copies, taken at the
 * latest step boundary; no call waits for a device or a network. */
#pragma once

#include "engine/bugs.h"
#include "engine/event.h"
#include "engine/fault.h"
#include "engine/job.h"
#include "engine/probe.h"
#include "engine/settings.h"
#include "models/models.h"

struct backend;

enum { SCREEN_QUEUE = 4096 }; /* events that wait for the screen */

/* ---- requests: done in order, answered by events --------------------------------------------- */

enum request_kind {
    RQ_SAY,    /* text: a user message; answers it. If it does not fit the context, the setting
                  `forget` decides; make_room: as `oldest` */
    RQ_REGEN,  /* generates the last reply again; a sampled one uses new random numbers, so it
                  differs */
    RQ_UNDO,   /* removes the last user message and its reply from the context */
    RQ_FORGET, /* turns: to be removed from the context */
    RQ_NEW,    /* session: its id; empty pools, settings kept, system prompt kept unless text */
    RQ_SYSTEM, /* text */
    RQ_FORMAT, /* text: what the replies that follow must be, a JSON object as of grammar_open()
                  (models/grammar/grammar.h); with "form": "text" in it, the reply has no chat
                  format around it. "": any text */
    RQ_SET,    /* text: "name=value" */
    RQ_FORK,   /* session: the child's id; past: the turns that it begins with; next_turn; draws.
                  The context goes on under the child's id, the parent's pages stay shared */
    RQ_RESUME, /* session: its id; past: its turns; next_turn; draws; text: its system prompt;
                  settings: those to begin with, or NULL. Pools are emptied */
    RQ_SEVERAL, /* text: a question; count replies to it at once, with the seeds seed, seed + 1,
                   ..., at temperature 0.8 if the settings are greedy; answered by EV_BATCH_BEGIN,
                   then EV_BATCH_TEXT and EV_BATCH_REPLY, then EV_BATCH_END, or by EV_NOTICE if the
                   question does not fit. The conversation does not change */
    RQ_BATCH,   /* prompts: count questions, each to the conversation as it is now; answered
                   likewise. A prompt that does not fit is refused, the others go on */
    RQ_PROBE,     /* probe: runs a step with taps; answered by EV_PROBE. See struct probe_ops */
    RQ_WHAT_IF,   /* text: "NAME=VALUE" words; answered by EV_WHAT_IF. See debug_ops.what_if */
    RQ_CALIBRATE, /* scores the readings of the draft's captures; answered by EV_CALIBRATION, or by
                     EV_NOTICE if there is nothing to score */
};

/* One finished turn given back to the engine by RQ_RESUME and RQ_FORK. */
struct past_turn {
    int turn;   /* its number */
    char *user, *reply;
    struct ids ids; /* the reply's generated ids */
};
/* Appends a turn with copies of the texts (reply NULL: ""); returns it, without ids. */
struct past_turn *past_add(struct past_turn **past, int *n, int turn, const char *user,
                           const char *reply);
void past_turn_free(struct past_turn *turn); /* what it owns */
void past_free(struct past_turn *past, int n);

/* From this step on, trees have this shape; steps 0: nothing is drafted. */
struct shape_change {
    int step;
    int steps, topk, nodes;
};

/* When a turn without any step was cancelled: before its prompt was encoded (RQ_SAY), or after. */
enum stop_before { STOP_BEFORE_PROMPT = -2, STOP_BEFORE_STEPS = -1 };

struct request {
    enum request_kind kind;
    char *text;
    char session[SESSION_ID];
    char parent[SESSION_ID]; /* RQ_RESUME: the session whose conversation a new session continues;
                                "": its own */
    char *settings;         /* RQ_RESUME: "name=value" lines */
    struct past_turn *past; /* RQ_RESUME, RQ_FORK: the conversation from now on, oldest first */
    int n_past, next_turn;
    struct ids turns;    /* RQ_FORGET: numbers of turns */
    uint64_t draws;      /* RQ_RESUME, RQ_FORK: uniforms drawn before */
    int count;           /* RQ_SEVERAL: 1 .. 16; RQ_BATCH: prompts */
    char **prompts;      /* RQ_BATCH */
    /* RQ_SAY, RQ_REGEN, for a replay: where the turn is cancelled; 0: not there */
    int stop_after_step;  /* after this step, or an enum stop_before */
    int stop_after_token; /* when the reply has this many tokens: no step adds more */
    bool stop_inside;     /* not there but inside the step that follows, before its commit, so that
                             a fault which stopped the turn there in the log is found again */
    struct ids prompt;   /* RQ_SAY, RQ_REGEN: all token ids of the prompt. The conversation is not
                            rendered then, so its texts may be missing. Empty: it is rendered */
    struct ids given;    /* RQ_SAY, RQ_REGEN: the tokens that the reply begins with, emitted in
                            place of those that the target chooses (engine/cycle/lane.h) */
    bool only_given;     /* the turn is cancelled after the last token of `given`; no effect if
                            there is none */
    struct forced_token *force; /* (n_force) RQ_SAY, RQ_REGEN: for a replay, from OP_FORCE */
    int n_force;
    struct shape_change *shape; /* (n_shape) RQ_SAY, RQ_REGEN: for a replay, from OP_SHAPE, by step;
                                   with draft.shape = auto */
    int n_shape;
    bool run_on;         /* RQ_SAY, RQ_REGEN: the model's end tokens do not end the reply */
    bool make_room;      /* RQ_SAY */
    struct probe_ask probe; /* RQ_PROBE */
    uint64_t number;     /* backend_submit() writes it */
};

void request_free(struct request *rq); /* what it owns; zeroes it */

/* ---- what every backend has ------------------------------------------------------------------ */

/* Facts of the open backend; constant while it lives. NULL, "" and 0: not known or not there. */
struct backend_info {
    const char *model_dir, *draft_dir; /* draft_dir NULL: no draft */
    const char *family, *device, *chat;
    const char *stored; /* how the model's file or folder stores its weights, for people; NULL: as
                           they are */
    const char *served_inputs; /* how a server that this model was made for quantizes the inputs of
                                  matrices, which are not quantized here; NULL: not known */
    const char *draft_kind; /* "eagle3", "dspark", "ngram" ...; NULL: no draft */
    bool draft_block; /* it guesses the rows of a block in one pass */
    const char *draft_about; /* the same for people: "an EAGLE3 head"; NULL: no draft */
    enum draft_kv draft_kv; /* whose KV the draft's layers read */
    const char *draft_off; /* why there is no drafting, or NULL */
    const char *shared_kv; /* which layers have no KV cells of their own and whose they read; NULL:
                              all have their own */
    int context, page_size, window, n_layer, n_swa_layer, vocab;
    char date[11]; /* that the chat format was given */
    char model_sha[65], draft_sha[65], tokenizer_sha[65];
    int n_pages[N_POOLS]; /* 0: the pool does not exist */
    struct need need;     /* of memory; zeros: not known */
    /* further facts that decide the bits of a reply, as values of engine_opts */
    const char *backend;       /* "cpu", "cuda" */
    const char *precision, *kv; /* of activations and of cells: "f32", "bf16"; of cells also
                                   "fp8" */
    char capture[128];         /* boundaries that an EAGLE3 head reads: "2,4,5"; "" without one */
    int rows;                  /* most prompt tokens of one pass */
    const char *passed;        /* why "auto" chose the CPU although the build has CUDA; or NULL */
    /* the server that computes; NULL: none. url: without user, password and query; facts: a JSON
     * object of what it reported of its launch */
    const char *server_kind, *server_version, *server_url, *server_facts;
    const char *served_models; /* the names of all models that it serves, one a line; NULL: none */
    const char *recording;     /* name of the saved session that is shown, in which nothing is
                                  computed; NULL: this backend computes */
};

/* The shape that draft.shape = auto chose, and its measurements. */
struct auto_view_shape {
    int steps, topk, nodes, runs; /* runs: steps that had this shape */
    double ms, tokens;            /* of a step: its time, 0: not measured; the tokens that it is
                                     expected to yield */
};
struct auto_view {
    int n;           /* shapes to choose from; 0: nothing was chosen yet */
    int now;         /* of the next step */
    const char *why; /* constant */
    bool logged;     /* the turn is a replay's: the log has chosen */
    uint64_t switches;
    struct auto_view_shape at[9];
};

/* The chat in numbers. Counters are of the session. */
struct chat_view {
    char session[SESSION_ID];
    int turn, step;
    bool busy;
    int length, capacity; /* context tokens, those included that the next prompt computes again
                             after turns have left; and the most there can be (0: not known) */
    int committed;        /* context tokens with KV; -1: not known */
    struct settings settings;
    double tok_s; /* of the running or last reply */
    uint64_t generated, prompt_tokens, reused_tokens;
    struct reuse_view {
        struct reuse why; /* change CHANGE_UNKNOWN: not known */
        int n_prompt, n_reused;
    } reuse; /* of the latest turn */
    uint64_t us_prefill;
    /* with VIEW_STEPS: decode time by phase */
    uint64_t us_draft, us_verify, us_commit, us_check;
    /* with VIEW_ACCEPT: sums over the session's cycles, and the mean acceptance length of the
     * latest turn and of the session; 0: nothing was drafted */
    struct draft_sums drafts;
    double turn_mal, session_mal;
    struct auto_view auto_shape;
    char trouble[200]; /* what is wrong with a server's connection; "": nothing, as far as known */
};

struct backend_ops {
    void (*close)(struct backend *b);
    bool (*submit)(struct backend *b, struct request *rq, struct err *e);
    void (*cancel)(struct backend *b);
    bool (*busy)(struct backend *b);
    bool (*next)(struct backend *b, struct event *ev); /* of a backend without `screen`; NULL:
                                                          nothing ever happens */
    const char *(*token)(struct backend *b, int32_t id, size_t *n);
    void (*chat)(struct backend *b, struct chat_view *v);
    bool (*fits)(struct backend *b, const char *text, struct err *e); /* NULL: every text fits */
    void (*said)(struct backend *b, struct request *rq); /* NULL: nothing can be said to it */
};

/* ---- groups of views that a backend may lack ------------------------------------------------- */

/* Whether drafted tokens were accepted: the fields of chat_view, no functions of its own. */

/* The latest committed steps of the session, whatever is logged: a bounded memory. */
enum { STEPS_KEPT = 16384 }; /* there are never more */
/* How many pages of each pool had references after a step. */
struct pages_held {
    int32_t n[N_POOLS]; /* -1: not known, or there is no such pool */
};
struct step_info {
    int turn, step;
    struct step_rec rec;
    int n_token; /* tokens that it appended: struct step_view has them */
    struct pages_held held;
};
struct step_range {
    uint64_t n; /* steps in memory: all of the session from the first on; 0: none */
    int first_turn, first_step, last_turn, last_step;
};
struct step_view {
    int turn, step;
    struct step_rec rec;
    struct tree tree; /* n == 0: the step drafted nothing, or there is no VIEW_TREES; scores are not
                         kept */
    struct pages_held held;
    int n_token;      /* tokens that the step appended; 0: none, or not known */
    int32_t token[TREE_MAX];
    struct token_fact fact[TREE_MAX];
};
struct steps_ops {
    /* The latest ones, oldest first; at most max. Returns how many. */
    int (*latest)(struct backend *b, struct step_info *out, int max);
    void (*range)(struct backend *b, struct step_range *r);
    /* false: not held */
    bool (*of_step)(struct backend *b, int turn, int step, struct step_view *v);
};

/* Draft trees: those of step_view. */
struct trees_ops {
    bool (*latest)(struct backend *b, struct step_view *v); /* false: no step has drafted */
};

/* How full each pool is. */
struct pool_view {
    bool exists;
    int page_size, total, reserved; /* pages; reserved: guard and dump pages */
    int used, free, evictable,
        protected_; /* free + used + evictable + protected == total - reserved:
        used: of the current session, or of a batch or jobs that run; protected: shared by the
        session with another or with the batch; evictable: held only by checkpoints, by idle
        sessions or by resident states of jobs */
};
struct pools_ops {
    void (*ledger)(struct backend *b, struct pool_view pool[N_POOLS]);
};

/* The metrics of a server over time, read beside the conversation every `gauge.ms`. */
enum gauge {
    GAUGE_POOL,                            /* + enum pool_id: share of the pool that is held, 0 ..
                                              1 */
    GAUGE_RUNNING = GAUGE_POOL + N_POOLS,  /* requests that are computed, of all clients */
    GAUGE_WAITING,                         /* requests in the server's queue */
    GAUGE_HITS,    /* share of the prompt tokens looked up in the prefix cache that were there */
    GAUGE_TOKENS,  /* generated tokens a second, of all clients */
    GAUGE_MAL,     /* mean acceptance length of all clients: 1 + accepted / cycles */
    N_GAUGES
};
enum { GAUGES_KEPT = 3600 }; /* there are never more */
struct gauge_sample {
    uint64_t ns;       /* clock_ns() when the server was asked */
    float v[N_GAUGES]; /* NAN: not reported, or (HITS, TOKENS, MAL) nothing happened since the
                          reading before */
};
struct gauges_view {
    const char *unit;        /* constant: the first pool's name where that is not the full pool
                                alone: "blocks", "slots"; NULL: "full" */
    const char *about;       /* constant, one line: the source of the numbers and what they do not
                                include */
    int ms;                  /* between two readings; 0: the metrics are not read */
    uint64_t n_read, n_failed;
    char fault[200];         /* why the latest reading failed; "": it did not */
    bool reported[N_GAUGES]; /* some reading had it */
    double hits, queries;    /* tokens of the prefix cache since the server's start, -1: not
                                reported */
};
struct gauges_ops {
    void (*view)(struct backend *b, struct gauges_view *v);
    /* The latest ones, oldest first; at most max. Returns how many. */
    int (*samples)(struct backend *b, struct gauge_sample *out, int max);
};

/* A server's reports of its replies, and times measured here. */
struct served_turn {
    int turn;
    enum stop_reason reason;
    int n_tokens;                 /* generated, as far as known */
    uint64_t us_first, us_decode; /* from sending the request until the first token arrived, 0: none
                                     did; from the first token until the last */
    double length; /* mean tokens of a verifying step, by served_ops.length; NAN: not reported */
    struct served served; /* without its metrics */
};
enum { SERVED_KEPT = 1024 };
struct served_ops {
    /* The latest replies of the session, oldest first; at most max. Returns how many. */
    int (*turns)(struct backend *b, struct served_turn *out, int max);
    /* The best tokens of a step's rows as the server sent them, freed by tops_free(); NULL: not
     * held. */
    struct tops *(*tops)(struct backend *b, int turn, int step);
    /* The formulas of this server's counts, in its own field names: "num_accepted / num_draft";
     * NULL: it counts no drafts. length NULL: it does not count its steps. */
    const char *rate, *length;
};

/* Which page holds what: the session's page table and the pages of each pool. */
struct page_view {
    int32_t full, swa, draft; /* of one logical page of the session; page 0 means: none */
    int16_t full_refs, swa_refs, draft_refs;
};
struct page_table {
    char session[SESSION_ID];
    int turn, step;
    int length, committed, capacity; /* context tokens, those with KV, the most there can be */
    int window;                      /* W: keys a sliding layer sees, the query's own included */
    int window_lo;                   /* first position whose sliding-window KV is still held */
    int draft_length;                /* slots filled in the draft's pool */
    struct page_view *page;          /* (n_page) */
    int n_page;
    struct pool_view pool[N_POOLS];
    uint16_t *refs[N_POOLS]; /* (total) references of each page */
    uint8_t *mine[N_POOLS];  /* (total) 1: in the session's table */
    bool violated;           /* the turn shown ended with a violated rule */
    struct violation at;     /* the rule and its place */
};
/* Where one position lies; slot 0: nowhere (released or not written). */
struct pos_view {
    int position, full_slot, swa_slot, draft_slot;
    bool in_window, committed;
    int32_t token;
};
/* A page event, and the step that carries it; 0.0: the step is still to come. */
struct page_change {
    int turn, step;
    struct page_event event;
};
struct pages_ops {
    void (*table)(struct backend *b, struct page_table *t); /* freed by page_table_free() */
    bool (*position)(struct backend *b, int position, struct pos_view *v, struct err *e);
    /* The table as it was after a step of the session. False and *e: ERR_NEGATIVE if the backend
     * does not hold the step (the log may), and *t is empty. */
    bool (*table_at)(struct backend *b, int turn, int step, struct page_table *t, struct err *e);
    bool (*position_at)(struct backend *b, int turn, int step, int position, struct pos_view *v,
                        struct err *e);
    /* The latest changes of one page up to step T.S ((0, 0): now), oldest first, at most max; none
     * are older than the last emptying of the pool. Returns how many. *whole false: the backend
     * does not hold those before them (the log may). */
    int (*events)(struct backend *b, int turn, int step, enum pool_id pool, int page,
                  struct page_change *out, int max, bool *whole);
};
void page_table_free(struct page_table *t);

/* The plan of the last forward pass. */
struct plan_ops {
    /* Of a mode ("" = the last of all) as text or JSON, appended. */
    bool (*text)(struct backend *b, const char *mode, bool json, struct buf *out, struct err *e);
    /* Names a future step of any session; its plans are kept when it runs. */
    void (*keep)(struct backend *b, int turn, int step);
    /* Appends the plans of this step's passes, in order, as a JSON array of the objects that text()
     * returns. If the step failed, the last one may be the refused plan. False: the step has not
     * run. */
    bool (*kept)(struct backend *b, struct buf *out);
};

/* A checker of plans, pools and sequences. */
struct violated {
    char session[SESSION_ID];
    int turn, step;      /* the step during or after which it occurred; step 0: outside a step */
    char text[256];      /* the checker's message; "": there was none */
    struct violation at;
};
struct check_view {
    /* of the session: plans checked before their launch, plans launched unchecked because the
     * checker was off, rules violated */
    uint64_t checks, unchecked, violations;
    struct violated violation; /* the latest of the process */
    bool violated_now;          /* the present turn ended with it */
};
enum rule_state {
    RULE_HOLDS,    /* checked now, in all pools and sequences */
    RULE_VIOLATED, /* checked now, and violated */
    RULE_OF_PLANS, /* a rule about plans, which are checked before their launch */
};
enum { MAX_RULES = 24 };
struct check_report {
    struct {
        const char *text; /* "I4  map, inverse, ..." */
        enum rule_state state;
    } rule[MAX_RULES];
    int n_rule;
    int n_seq;       /* sequences looked at */
    char fault[256]; /* what is wrong now; "": nothing */
    enum check_level level;
    struct check_view counts;
};
struct check_ops {
    void (*counts)(struct backend *b, struct check_view *v);
    /* Checks every pool and sequence now. False and *e (ERR_INVARIANT): a rule is violated. The
     * report is filled in either way. */
    bool (*sweep)(struct backend *b, struct check_report *r, struct err *e);
};

/* Historical faults that can be switched on with RQ_SET "bug.NUMBER=...". */
struct faults_ops {
    void (*on)(struct backend *b, struct bugs *on);
};

/* Pausing the decode loop. */
enum run_until {
    RUN_ON,     /* until a condition holds */
    RUN_PHASE,  /* to the next phase boundary */
    RUN_STEP,   /* so many steps; asked for between turns: to the beginning of the next turn */
    RUN_FINISH, /* to the end of the turn, past all conditions */
    RUN_TURN,   /* the same, and the next turn pauses where it begins */
    RUN_BACK,   /* back to the step that was asked for with debug_ops.back, never with run */
};
enum { MAX_BREAKS = 16, CONDITION_BYTES = 256, VALUE_BYTES = 96 };
enum break_kind {
    BREAK_IF,      /* pauses if the expression holds */
    BREAK_WATCH,   /* pauses if its value changes */
    BREAK_DISPLAY, /* never pauses: its value is shown at each pause */
};
struct debug_break {
    int number;
    enum break_kind kind;
    uint64_t hits; /* pauses that it caused */
    char text[CONDITION_BYTES + 1];
    char value[VALUE_BYTES]; /* of BREAK_DISPLAY where the turn is paused; "": not paused */
};
enum step_phase { WHOLE_STEP, PHASE_DRAFT, PHASE_VERIFY, PHASE_ACCEPT, PHASE_COMMIT };
const char *step_phase_name(enum step_phase p); /* "", "draft", "verify", "accept", "commit" */
struct debug_view {
    enum run_until until; /* the latest request */
    bool paused;
    uint64_t pauses; /* so far */
    int turn, step; /* where: in this step, or after it */
    int first, last; /* the turn can go to the state after any step from `first` (0: its beginning)
                        to `last`, its newest step; first > last: it cannot go back. last > step: it
                        has gone back */
    enum step_phase phase; /* just completed; WHOLE_STEP at step 0: nothing of the turn yet */
    char why[400];
    bool broke; /* a breakpoint or a watch holds there */
    struct tree tree; /* the step's, as far as it is known; n == 0: it drafted nothing */
    bool verified;    /* paused after verify, accept or commit: the target has run over the tree, so
                         the tree has p and fates, and the step can be probed */
    struct step_rec rec; /* if verified: the step's record so far, without times and digests; before
                            accept what accept will find */
    int32_t token[TREE_MAX];
    int n_token; /* tokens that the step appends; 0: not known before accept */
    int32_t forced; /* the token that will be emitted next, by hand; -1: none */
    struct debug_break at[MAX_BREAKS];
    int n_break;
};
struct debug_ops {
    void (*view)(struct backend *b, struct debug_view *v);
    /* Continues a paused turn, or sets where the running or the next one pauses. steps: with
     * RUN_STEP, >= 1. condition: as in expr.h, for one pause, or NULL. False: the condition is
     * invalid. */
    bool (*run)(struct backend *b, enum run_until until, int steps, const char *condition,
                struct err *e);
    /* Moves the paused turn to its state after one of its steps (0: before the first), earlier or,
     * up to debug_view.last, later, and pauses there. Steps are computed again with the same bits;
     * nothing is posted twice. False: no turn is paused, it is another turn, or no state before the
     * step is kept. */
    bool (*back)(struct backend *b, int turn, int step, struct err *e);
    /* Forces the next token to be emitted: in the paused turn, else in the next one. text: the text
     * of one token, or NULL: the token is *id, -1: cancels a forced token. *id receives the token.
     * False: the turn runs or has gone back, or the token cannot occur in a reply's text. NULL: the
     * backend computes nothing. */
    bool (*force)(struct backend *b, const char *text, int32_t *id, struct err *e);
    /* Computes the next step of the paused turn twice, as it is and with changes ("NAME=VALUE"
     * words), and drops both; answered by EV_WHAT_IF. False: a change is wrong, or no turn is
     * paused between two steps. NULL: the backend computes nothing. */
    bool (*what_if)(struct backend *b, const char *changes, struct err *e);
    /* Adds a breakpoint, a watch or a display and returns its number; 0: the expression is invalid,
     * or there are too many. */
    int (*add)(struct backend *b, const char *expr, enum break_kind kind, struct err *e);
    /* number 0: all that pause, -1: all displays. False: there is none of the number. */
    bool (*remove)(struct backend *b, int number, struct err *e);
    /* The i-th name that conditions may use, and its meaning; NULL after the last. */
    const char *(*name)(int i, const char **meaning);
};

/* One step with taps. */
struct probe_ops {
    /* Requests the taps of a step: of a past one, which is computed again on a scratch sequence, or
     * (armed) of a future one. The answer is an event EV_PROBE with the probe or the reason why
     * there is none; for an armed step it follows that step. At most one step is armed. False: the
     * step is not in memory and ask->past is NULL, or the queue is full. */
    bool (*ask)(struct backend *b, const struct probe_ask *ask, struct err *e);
};

/* Replies to clients' prompts, beside the conversation; see job.h. */
struct chat;
struct jobs_ops {
    /* Takes over *ask and zeroes it. False and *e: too many jobs wait (ERR_NEGATIVE), or a value is
     * out of its range (ERR_USAGE). */
    bool (*start)(struct backend *b, struct job_ask *ask, struct err *e);
    /* The job ends at the next step boundary, with STOP_CANCEL; unknown ids are ignored. */
    void (*cancel)(struct backend *b, uint64_t id);
    /* The model's chat format and tokenizer: constant, for any thread. */
    const struct chat *(*chat)(struct backend *b);
    const struct tokenizer *(*tokenizer)(struct backend *b);
};

/* Blocks of a server's prefix cache, reconstructed from its KV events: the blocks that it has
 * reported as stored and not as removed. Hashes, token ids and names are as the server sent them. A
 * block is identified by its hash; its physical page is not known. */
enum { BLOCK_GROUPS = 16, BLOCK_HASH_TEXT = 72, BLOCK_SAMPLES_KEPT = 900 };
struct block_group { /* blocks of one kind of layers */
    int rank;         /* of data parallelism */
    int index;        /* the server's number of the group; -1: not reported */
    char kind[32];    /* "full_attention", "sliding_window"; "": not reported */
    char medium[24];  /* "GPU", "CPU_PINNED"; "": not reported */
    int window;       /* tokens that these layers see; 0: all, or not reported */
    int block_size;   /* tokens */
    int64_t blocks;   /* different hashes that are stored now */
    int64_t copies;   /* stored blocks, equal ones counted separately */
    uint64_t stored, removed; /* since the events began */
    int n_session;    /* blocks of the session (blocks_ops.session) that are stored now */
};
struct blocks_view {
    char about[160];   /* one line: "blocks, reconstructed from events", and what they leave out */
    char source[128];  /* the address from which the events come */
    bool connected;
    bool whole;        /* the counts are exact: no batch is missing since the server's cache was
                          empty */
    uint64_t batches, events; /* received */
    uint64_t replayed; /* batches among them that came from the replay address */
    uint64_t before;   /* batches published before the first one received: the cache was not empty
                          then */
    uint64_t missed;   /* batches after it that never came */
    uint64_t unknown;  /* removals of blocks that were not known to be stored */
    uint64_t refused;  /* batches or events that could not be read */
    char wrong[160];   /* what was wrong with the first one refused */
    uint64_t ns;       /* clock_ns() of the latest batch; 0: none has come */
    int n_session;     /* blocks of the session that have been seen, its first ones */
    int n_group;
    struct block_group group[BLOCK_GROUPS];
};
/* How many blocks each group held, after the last batch of a second in which one came. */
struct block_sample {
    uint64_t ns; /* clock_ns() */
    int n_group;
    int32_t blocks[BLOCK_GROUPS];
};
/* A block with positions of the session's latest prompt and reply: its token ids, and those of all
 * blocks before it, are those of the prompt and reply as the server sent them. */
struct session_block {
    int position, n_token; /* [position, position + n_token) */
    char hash[BLOCK_HASH_TEXT]; /* a decimal number, or bytes in hexadecimal */
    uint32_t held; /* bit g: group g stores the block now */
};
struct blocks_ops {
    void (*view)(struct backend *b, struct blocks_view *v);
    /* The latest samples, oldest first; at most max. Returns how many. */
    int (*samples)(struct backend *b, struct block_sample *out, int max);
    /* The session's blocks from its first position on; at most max. Returns how many. */
    int (*session)(struct backend *b, struct session_block *out, int max);
};

enum backend_view {
    VIEW_ACCEPT,
    VIEW_STEPS,
    VIEW_TREES,
    VIEW_POOLS,
    VIEW_GAUGES,
    VIEW_SERVED,
    VIEW_PAGES,
    VIEW_PLAN,
    VIEW_CHECK,
    VIEW_FAULTS,
    VIEW_DEBUG,
    VIEW_PROBE,
    VIEW_JOBS,
    VIEW_BLOCKS,
    N_VIEWS
};

/* The first member of each implementation. Constant while the backend lives, except VIEW_ACCEPT,
 * which a server's backend may gain in a call of backend_chat(), because only a server's answers
 * show whether it reports drafts. */
struct backend {
    const struct backend_ops *ops;
    struct backend_info info;
    struct evq *screen; /* the events that its thread posts; NULL: ops->next() makes them */
    int fd;             /* without `screen`: readable while ops->next() has events; -1: never */
    const struct steps_ops *steps;
    const struct trees_ops *trees;
    const struct pools_ops *pools;
    const struct gauges_ops *gauges;
    const struct served_ops *served;
    const struct pages_ops *pages;
    const struct plan_ops *plan;
    const struct check_ops *check;
    const struct faults_ops *faults;
    const struct debug_ops *debug;
    const struct probe_ops *probe;
    const struct jobs_ops *jobs;
    const struct blocks_ops *blocks;
    /* Why the backend lacks a view: "this server does not report ..."; NULL: it has the view */
    const char *lacks[N_VIEWS];
};

/* What came of opening a backend again with other options (repl/process/open.h). The session is
 * empty after REOPEN_DONE and REOPEN_EMPTIED: the next request must be RQ_NEW or RQ_RESUME. */
enum reopened {
    REOPEN_DONE,
    REOPEN_KEPT,    /* it failed: nothing has changed */
    REOPEN_EMPTIED, /* it failed: the backend has the options that it had, and empty pools */
    REOPEN_FAILED,  /* it failed: there is no backend any more */
};

/* ---- calls ----------------------------------------------------------------------------------- */

/* Cancels the running request, drops those that wait, joins the thread and frees the backend. NULL
 * is allowed. */
static inline void backend_close(struct backend *b)
{
    if (b)
        b->ops->close(b);
}

static inline const struct backend_info *backend_info(struct backend *b)
{
    return &b->info;
}

static inline bool backend_has(const struct backend *b, enum backend_view v)
{
    return !b->lacks[v];
}

/* Takes ownership of the request's pointers, also on failure: the queue of 64 is full, or this
 * backend does not do such a request. */
static inline bool backend_submit(struct backend *b, struct request *rq, struct err *e)
{
    return b->ops->submit(b, rq, e);
}

/* Whether the context can hold a message with this text, judged by its bytes alone, before it is
 * logged and encoded. False and *e (ERR_USAGE). */
static inline bool backend_fits(struct backend *b, const char *text, struct err *e)
{
    return !b->ops->fits || b->ops->fits(b, text, e);
}

/* The conversation of an idle backend as the request by which another one goes on with it:
 * RQ_RESUME with the turns in the context, the system prompt and the session's id. Settings are not
 * in it. The caller frees *rq. */
static inline void backend_said(struct backend *b, struct request *rq)
{
    *rq = (struct request){.kind = RQ_RESUME, .next_turn = 1};
    if (b->ops->said)
        b->ops->said(b, rq);
}

/* Ends, within 200 ms, every request submitted before this call and no later one. The running turn
 * keeps its tokens; turns and replies that wait in the queue end before their first step. Requests
 * that compute nothing (settings, undo, ...) are carried out nevertheless. Async-signal-safe. */
static inline void backend_cancel(struct backend *b)
{
    b->ops->cancel(b);
}

static inline bool backend_busy(struct backend *b) /* a request is waiting or running */
{
    return b->ops->busy(b);
}

/* The screen's queue of events. backend_fd(): a descriptor that is readable while events wait.
 * backend_next(): the next event, if there is one, which the caller frees with event_free().
 * backend_wait(): the same, waiting at most ms. backend_rest(): sleeps while a batch of events
 * gathers (evq_rest()). */
static inline int backend_fd(struct backend *b)
{
    return b->screen ? evq_fd(b->screen) : b->fd;
}

static inline bool backend_next(struct backend *b, struct event *ev)
{
    return b->screen ? evq_get(b->screen, ev) : b->ops->next && b->ops->next(b, ev);
}

static inline bool backend_wait(struct backend *b, struct event *ev, int ms)
{
    return b->screen ? evq_wait(b->screen, ev, ms) : backend_next(b, ev);
}

static inline void backend_rest(struct backend *b, int ms)
{
    if (b->screen)
        evq_rest(b->screen, SCREEN_QUEUE / 4, ms);
}

/* Text of one token id, raw bytes; "" when it has none or the backend does not know it. Lives as
 * long as the backend. */
static inline const char *backend_token(struct backend *b, int32_t id, size_t *n)
{
    return b->ops->token(b, id, n);
}

static inline void backend_chat(struct backend *b, struct chat_view *v)
{
    b->ops->chat(b, v);
}
