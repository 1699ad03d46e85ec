/* engine.h - the engine as the rest of the program sees it.
 *
 * engine_open() loads the models and starts one thread that owns the device, the pools and the
 * sessions. Callers submit requests, read events, and look at copies (views); they never touch
 * engine state. Everything here may be called from any one thread at a time (the main thread),
 * engine_cancel() from anywhere including a signal handler.
 */
#ifndef AERIE_ENGINE_H
#define AERIE_ENGINE_H

#include "engine/bugs.h"
#include "engine/event.h"
#include "engine/fault.h"
#include "engine/settings.h"
#include "models/models.h"

struct engine;

struct engine_opts {
    const char *model, *draft; /* folders; draft NULL: none */
    const char *device;        /* "cpu", "cuda", "auto" */
    const char *capture;       /* --eagle-capture, or NULL */
    bool require_draft;        /* a draft that does not fit is an error, not a notice */
    bool raw;                  /* no chat format */
    const char *date;          /* "YYYY-MM-DD" for formats whose prompt names it; NULL: today */
    const struct kernels *backend; /* a kernel table to use whatever `device` says; NULL: none */
    int threads;               /* CPU threads, 0: all cores */
    const char *precision;     /* as of device_open() */
    struct quant_opts quant;       /* weights in FP8 */
    int page_size;             /* 1..64, power of two; 0: 16 */
    int context;               /* longest context in tokens, 0: the model's, within reason and
                                  what the device's memory holds */
    int full_pages, swa_pages; /* pool sizes, 0: what the context needs */
    int rows;                  /* most prompt tokens of one pass; 0: what settings.chunk asks for */
    int lanes;                 /* replies that a batch may compute at once: pools and buffers are
                                  sized for as many conversations; 0: 1 */
    struct settings settings;  /* to start with */
    struct bugs bugs;          /* the same of historical faults */
    bool attended;             /* a person is at the terminal: `forget` defaults to ask */
    struct evq *log;           /* the log's queue, or NULL; the caller owns it */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *progress_arg; /* called on the thread that called engine_open() */
    void (*notice)(void *arg, const char *line); /* engine_load(): a line for people; or NULL. An
                                  engine posts such lines as EV_NOTICE instead */
    void *notice_arg;
    /* Makes target and draft up instead of reading folders (benchmarks); or NULL */
    bool (*make)(void *arg, struct model *m, struct draft *d, struct err *e);
    void *make_arg;
};

/* Loads and starts. On failure NULL and *e (ERR_MODEL). */
struct engine *engine_open(const struct engine_opts *o, struct err *e);
/* Cancels what runs, drops what waits, joins and frees. NULL is fine. */
void engine_close(struct engine *g);

/* What was loaded; constant while the engine lives. */
struct engine_info {
    const char *model_dir, *draft_dir; /* draft_dir NULL: no draft */
    const char *family, *device, *chat;
    const char *draft_kind; /* "eagle3", "frozen-kv"; NULL: no draft */
    enum draft_kv draft_kv; /* whose KV the draft's layers read */
    const char *draft_off; /* why there is no drafting, or NULL */
    const char *shared_kv; /* which layers own no slots and whose they read; NULL: all own theirs */
    int context, page_size, window, n_layer, n_swa_layer, vocab;
    uint64_t weight_bytes;
    char date[11]; /* that the chat format was given */
    char model_sha[65], draft_sha[65], tokenizer_sha[65];
    int n_pages[N_POOLS]; /* 0: the pool does not exist */
    /* what else decides the bits of a reply, as engine_opts takes it back */
    const char *backend;       /* "cpu", "cuda" */
    const char *precision, *kv; /* of activations and of cells: "f32", "bf16" */
    char capture[128];         /* boundaries that an EAGLE3 head reads: "2,4,5"; "" without one */
    int rows;                  /* most prompt tokens of one pass */
    const char *passed;        /* why "auto" chose the CPU although the build has CUDA; or NULL */
};
const struct engine_info *engine_info(const struct engine *g);
/* Text of one token id, raw bytes; "" when it has none. Lives as long as the engine. */
const char *engine_token(const struct engine *g, int32_t id, size_t *n);

/* ---- requests: done in order, answered by events --------------------------------------------- */

enum request_kind {
    RQ_SAY,    /* text: a user message; answers it. Where it does not fit the context, the setting
                  `forget` says what happens; make_room: as with `oldest` */
    RQ_REGEN,  /* the last reply again; a sampled one draws on, so it differs */
    RQ_UNDO,   /* the last user message and its reply leave the context */
    RQ_FORGET, /* text: numbers of turns, "2 3 4", that leave the context */
    RQ_NEW,    /* session: its id; empty pools, settings kept, system prompt kept unless text */
    RQ_SYSTEM, /* text */
    RQ_SET,    /* text: "name=value" */
    RQ_FORK,   /* session: the child's id; past: the turns that it begins with; next_turn; draws. The
                  context goes on under the child's id, the parent's pages stay shared */
    RQ_RESUME, /* session: its id; past: its turns; next_turn; draws; text: its system prompt;
                  settings: those to begin with, or NULL. Pools are emptied */
    RQ_SEVERAL, /* text: a question; count replies to it at once, answered by EV_NOTICE lines; the
                   conversation stays as it is */
    RQ_CALIBRATE, /* scores the readings of the draft's captures; answered by EV_NOTICE lines */
};

/* One finished turn given back to the engine by RQ_RESUME and RQ_FORK. */
struct past_turn {
    int turn;   /* its number */
    char *user, *reply;
    struct ids ids; /* the reply's generated ids */
};

struct request {
    enum request_kind kind;
    char *text;
    char session[SESSION_ID];
    char parent[SESSION_ID]; /* RQ_RESUME: whose conversation a new session takes up; "": its own */
    char *settings;         /* RQ_RESUME: "name=value" lines */
    struct past_turn *past; /* RQ_RESUME, RQ_FORK: the conversation from now on, oldest first */
    int n_past, next_turn;
    uint64_t draws;      /* RQ_RESUME, RQ_FORK: uniforms drawn before */
    int count;           /* RQ_SEVERAL: 1 .. 16 */
    int stop_after_step; /* replay: cancel the turn after this step; 0: do not, -1: before the
                            first */
    bool make_room;      /* RQ_SAY */
    uint64_t number;     /* engine_submit() writes it */
};

/* Takes ownership of the request's pointers, also on failure (queue of 64 full). */
bool engine_submit(struct engine *g, struct request *rq, struct err *e);
/* Ends, within 200 ms, every request submitted before this call and no later one: the running turn
 * keeps what it has said, turns and replies that wait in the queue end before their first step.
 * Requests that compute nothing (settings, undo, ...) are carried out all the same.
 * Async-signal-safe. */
void engine_cancel(struct engine *g);
bool engine_busy(struct engine *g);   /* a request is waiting or running */

/* The screen's queue. */
int engine_fd(struct engine *g);                     /* readable while events wait */
bool engine_next(struct engine *g, struct event *ev); /* the caller frees with event_free() */
bool engine_wait(struct engine *g, struct event *ev, int ms);
void engine_rest(struct engine *g, int ms); /* lets a batch gather: evq_rest() */

/* ---- views: copies taken at the last step boundary; never wait for the device ---------------- */

struct pool_view {
    bool exists;
    int page_size, total, reserved; /* pages; reserved: guard and dump pages */
    int used, free, evictable,
        protected_;   /* free + used + evictable + protected == total - reserved:
        used: of the current session; protected: shared with another; evictable: held only by
        checkpoints or by idle sessions */
    uint16_t *refs;   /* (total) references of each page */
    uint8_t *mine;    /* (total) 1: in the current session's table */
};

/* One logical page of the current session. Page 0 means: none. */
struct page_view {
    int32_t full, swa, draft;
    int16_t full_refs, swa_refs, draft_refs;
};

struct depth_stat {
    uint64_t drafted, accepted; /* cycles that had a node at this depth; that accepted one */
};

/* A checker rule that was violated. */
struct violation {
    char session[SESSION_ID];
    int turn, step;        /* while which step was computed, or after it; step 0: outside a step */
    char text[256];        /* the checker's message; "": there was none */
    struct fault_place at; /* the same, read */
};

struct engine_view {
    char session[SESSION_ID];
    int turn, step;
    bool busy, spec;
    int length, committed, capacity; /* context tokens, those with KV, the most there can be */
    int window;                      /* W: keys a sliding layer sees, the query's own included */
    int window_lo;                   /* first position whose sliding-window KV is still held */
    int draft_length;                /* slots filled in the draft's pool */
    struct settings settings;
    struct bugs bugs; /* historical faults that are on in this engine */
    struct pool_view pool[N_POOLS];
    struct page_view *page; /* (n_page) */
    int n_page;
    struct tree tree; /* of the last cycle that drafted; n == 0: none */
    int tree_turn, tree_step;
    int32_t tree_bonus; /* the token sampled at the end of its path */
    uint64_t n_steps;   /* steps that engine_step() has: all of the session from this one on */
    int first_turn, first_step, last_turn, last_step;
    struct depth_stat depth[TREE_MAX];
    uint64_t cycles, drafted, accepted, generated; /* of the session */
    double tok_s;                                  /* of the running or last reply */
    double turn_mal,
        session_mal; /* mean acceptance length, bonus included: 1 + accepted / cycles */
    uint64_t us_draft, us_verify, us_commit, us_check, us_prefill; /* session totals */
    uint64_t prompt_tokens, reused_tokens;
    /* of the session: plans checked before their launch, plans launched unchecked because the
     * checker was off, rules violated */
    uint64_t checks, unchecked, violations;
    struct violation violation; /* the latest of the process */
    bool violated_now;          /* the turn shown here ended with it */
};

void engine_view(struct engine *g, struct engine_view *v);
void engine_view_free(struct engine_view *v);

/* One committed step of the session, from a bounded memory of the latest ones (at most 16,384
 * steps and 131,072 tree nodes), whatever is logged. */
struct step_view {
    int turn, step;
    struct step_rec rec;
    struct tree tree; /* n == 0: it drafted nothing; scores are not kept */
};
bool engine_step(struct engine *g, int turn, int step, struct step_view *v); /* false: not held */
/* The latest of them without trees, oldest first; at most max. Returns how many. */
struct step_info {
    int turn, step;
    struct step_rec rec;
};
enum { ENGINE_STEPS = 16384 }; /* there are never more */
int engine_steps(struct engine *g, struct step_info *out, int max);

/* Where one position lives; slot 0: nowhere (released or not written). */
struct pos_view {
    int position, full_slot, swa_slot, draft_slot;
    bool in_window, committed;
    int32_t token;
};
bool engine_position(struct engine *g, int position, struct pos_view *v, struct err *e);
/* The latest events of one page (at most max), oldest first; seq numbers count page events. */
int engine_page_events(struct engine *g, enum pool_id pool, int page, struct page_event *out,
                       uint64_t *seq, int max);
/* What the checker can say now. */
enum rule_state {
    RULE_HOLDS,    /* looked at now, in all pools and sequences */
    RULE_VIOLATED, /* the same */
    RULE_OF_PLANS, /* about plans: each plan is held against it before its launch */
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
    uint64_t checks, unchecked, violations; /* of the session */
    struct violation violation;             /* the latest of the process, however old */
};
/* Looks at every pool and sequence now. False and *e (ERR_INVARIANT): something is wrong now; the
 * report is filled in either way. */
bool engine_check(struct engine *g, struct check_report *r, struct err *e);
/* The last plan of a mode ("" = the last of all) as text or JSON. */
bool engine_plan_text(struct engine *g, const char *mode, bool json, struct buf *out,
                      struct err *e);

/* ---- tools without a running engine ---------------------------------------------------------- */

/* Each kind of device: whether this build can use it here, and what it is or why not. */
void engine_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg);

#endif
