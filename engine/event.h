/* event.h - events: what the engine reports to its consumers, and the queues that carry them.
 *
 * The engine thread posts; each consumer (the screen, the log) owns one bounded queue and gets its
 * own copy. An event belongs to the thread that holds it; a queue locks itself, and any thread may
 * use it. A full queue holds the engine at a step boundary: nothing is dropped. Turn numbers of a
 * session only grow: an undone or regenerated turn keeps its number in the log. */
#pragma once

#include "engine/cache/page_event.h"
#include "engine/cache/tree.h"
#include "engine/past/reuse.h"
#include "engine/served.h"

enum { SESSION_ID = 27 }; /* a ULID as text, with its NUL */

enum event_kind {
    EV_SESSION,    /* a session begins, is resumed, or becomes a fork's child. A session of the
                      conversation ends the one before it. A session beside it (`beside`) ends no
                      other, its events may alternate with others', and it ends with its first
                      turn */
    EV_OP,         /* an operation that changes the results of later turns: see enum op_kind */
    EV_TURN_BEGIN, /* a user message was taken; the prompt is known */
    EV_PREFILL,    /* progress of the prompt */
    EV_TEXT,       /* reply text to show, in a channel */
    EV_STEP,       /* one cycle is committed */
    EV_TURN_END,   /* the reply is complete, stopped or failed */
    EV_NOTICE,     /* a line for people */
    EV_FAULT,      /* a checker rule or the device failed; a turn ends with STOP_FAULT or, when
                      the device is lost, STOP_DEVICE */
    EV_BATCH_BEGIN, /* several replies are computed at once, outside the conversation */
    EV_BATCH_TEXT,  /* a piece of one of them, in a channel */
    EV_BATCH_REPLY, /* one of them is complete, was stopped, or was refused; in their order */
    EV_BATCH_END,   /* no more replies of the batch follow */
    EV_CALIBRATION, /* the readings of a draft's captured layers were scored */
    EV_PAUSE,       /* the debugger holds the turn: its step and text say where and why; no log
                       keeps it */
    EV_PROBE,       /* a step was run with taps (engine/probe.h); on the screen's queue only */
    EV_WHAT_IF,     /* a step was computed twice (engine/what_if.h); on the screen's queue only */
    EV_JOB_BEGIN,   /* a job's prompt is computed (engine/job.h); on the screen's queue only, ... */
    EV_JOB_STEP,    /* ... as are its steps ... */
    EV_JOB_END,     /* ... and its end */
};

enum step_kind { STEP_PREFILL, STEP_DECODE, STEP_SPEC };
const char *step_kind_name(enum step_kind k); /* "prefill", ... */

enum step_source {
    STEP_COMPUTED, /* by this program's engine */
    STEP_REPORTED, /* a server's own step, as it reported its steps */
    STEP_PIECE,    /* one piece of a server's stream. Its steps are not known, so rows, drafted and
                      accepted are 0 */
};
const char *step_source_name(enum step_source s); /* "computed", "server", "piece" */
const char *fate_name(int fate);              /* of a tree's node: "none", "accepted", ... */

enum stop_reason {
    STOP_END,       /* the model ended its reply */
    STOP_MAX,       /* max_tokens */
    STOP_CONTEXT,   /* the context is full */
    STOP_CANCEL,    /* the user stopped it */
    STOP_KV_FULL,   /* a pool is full */
    STOP_FAULT,     /* a rule was violated, or memory ran out; the session goes on */
    STOP_DEVICE,    /* the device failed for good; the engine answers nothing more */
    STOP_CRASHED,   /* never posted: found in the log of a killed process */
    STOP_OPEN,      /* never posted: in the log, the reply has not ended */
};
const char *stop_name(enum stop_reason r); /* "end", "max_tokens", ...; STOP_OPEN: "" */

enum op_kind {
    OP_OPEN,   /* the engine starts a session with empty pools; text: settings lines */
    OP_SET,    /* text: "name=value" */
    OP_SYSTEM, /* text: the new system prompt, may be empty */
    OP_UNDO,   /* the last turn leaves the context; turn: which */
    OP_RESUME, /* pools were emptied, the session goes on; text: settings lines */
    OP_FORK,   /* the child's first: the parent up to `turn` became this session; turns: those that
                  it begins with */
    OP_FORGET, /* turns leave the context, because it is full or the user said so; turns: which */
    OP_FORCE,  /* the user chose a token, in the turn that runs; forced */
    OP_SHAPE,  /* draft.shape = auto chose: in the turn that runs, the trees from this step on have
                  this shape; text: "STEP STEPS-TOPK-NODES", steps 0: nothing is drafted */
    OP_FORMAT, /* what later replies must be; text: as of RQ_FORMAT */
};
const char *op_name(enum op_kind k); /* "open", "set", ... */
bool turns_have(const struct ids *turns, int turn);

/* The step begins with this token, chosen by hand. */
struct forced_token {
    int step; /* 0: the step that begins after the reply's first `after` tokens */
    int32_t token;
    int after;
};

/* The target's log probabilities for one emitted token, at temperature 1 and without any filter. */
struct token_fact {
    float logp;       /* log probability of the token; NAN: not known */
    float rival_logp; /* the same of the rival */
    int32_t rival;    /* the best other token of that row; -1: there is none */
};

/* One committed cycle. `tokens` are the ids it added to the reply: first the accepted drafted ones,
 * then the bonus. accept.c decides the counts; everything that shows or sums them reads them
 * here. */
struct step_rec {
    enum step_kind kind;
    int pos0;     /* context length before the step */
    int rows;     /* rows of the target's pass */
    int drafted;  /* tree nodes without the root */
    int accepted; /* of them: those whose tokens the step added to the reply, a stop token
                     included */
    int32_t bonus; /* the last token of the step, if no drafted node held it; -1: there is none,
                      because the reply ended at an accepted token, or the prompt chunk is not the
                      last */
    uint64_t draws;     /* uniforms drawn since the session's start, after the step */
    uint64_t page_digest, draft_digest, logit_digest;
    uint32_t us_draft, us_verify, us_commit, us_check; /* microseconds */
    float margin; /* the best log probability less the second best in the row of the last token;
                     NAN: no token was chosen, or not known */
    enum step_source source;
    uint64_t us_arrived; /* microseconds from sending the request until the step's last token
                            arrived; 0 for computed steps */
    int forced; /* how many of its first tokens were given, not chosen by the target */
    bool fused; /* the cycle ran fused (engine/cycle/fused.h). Its plans have spare rows, so its
                   page digest differs from that of the same step in a stepped cycle; nothing else
                   differs */
    int draft_window; /* the newest positions that a draft with cells of its own saw; 0: all, or
                         nothing was drafted */
};

/* How many tokens a step added to the reply; not for pieces of a stream. */
static inline int step_emits(const struct step_rec *r)
{
    return r->accepted + (r->bonus >= 0);
}

/* Sums over cycles: the steps that drafted. Plain steps, prompt chunks and pieces of a stream are
 * no cycles. */
struct draft_sums {
    uint64_t cycles, drafted, accepted;
    struct depth_stat {
        uint64_t drafted, accepted; /* cycles that had a node at this depth; that accepted one */
    } depth[TREE_MAX];
};
/* Adds a step. deepest: the greatest depth of its tree; of a chain, r->drafted. */
void draft_sums_add(struct draft_sums *s, const struct step_rec *r, int deepest);
void draft_sums_join(struct draft_sums *s, const struct draft_sums *more); /* adds other sums */

/* The cycles of replies, all in all and by length of the context before the cycle: range 0 has 0 to
 * 63 tokens, range k 2^(k + 5) and more, up to twice as many. Times: microseconds of these cycles,
 * which a batch's replies share. */
enum { DRAFT_RANGES = 16 };
struct draft_report {
    struct draft_sums all;
    struct draft_range {
        uint64_t cycles, drafted, accepted;
    } range[DRAFT_RANGES];
    uint64_t us_draft, us_verify;
};
void draft_report_add(struct draft_report *r, const struct step_rec *rec, int deepest);
void draft_report_join(struct draft_report *r, const struct draft_report *more);
/* The first context length of a range, and the range of a length. */
static inline int draft_range_first(int k)
{
    return k ? 32 << k : 0;
}
static inline int draft_range_of(int n)
{
    int k = 0;
    while (k + 1 < DRAFT_RANGES && n >= draft_range_first(k + 1))
        k++;
    return k;
}
/* The mean acceptance length as vLLM and llama.cpp define it: 1 + accepted / cycles. 0: no
 * cycle. */
double draft_sums_mal(const struct draft_sums *s);

/* Speed of a reply of n tokens: the prompt's pass yields the first, so the decode time is that of
 * the others. 0: too short to tell. */
static inline double reply_tok_s(int64_t n, uint64_t us_decode)
{
    return n > 1 && us_decode ? (double)(n - 1) * 1e6 / (double)us_decode : 0;
}

/* A batch of replies (BEGIN, END), or one of them (TEXT, REPLY). */
struct batch_rec {
    int index;      /* TEXT, REPLY: of the reply, from 0 */
    int count;      /* replies asked for */
    int n_prompt;   /* REPLY: tokens of its prompt, the conversation included */
    int n_reused;   /* BEGIN, REPLY: prompt tokens whose KV cells the conversation already held */
    int n_computed; /* REPLY: prompt tokens run for this reply alone; those of a reply that had to
                       give its pages back count again. END: all prompt tokens run, those included
                       that several replies share */
    int n_shared;   /* BEGIN, END: pages of the full pool that all replies share */
    int n_done;     /* END: replies that are complete: neither refused nor cut short */
    int n_tokens;   /* REPLY, END: tokens generated */
    int n_spec;     /* REPLY, END: steps that drafted */
    bool refused;   /* REPLY: the prompt cannot be computed; text says why */
};

/* The result of a calibration, which finds out on which of the target's states a draft was trained:
 * every plausible reading of its configuration, and how often its first guess was the target's own
 * choice. */
enum { CALIB_ROWS = 4, CALIB_TOKENS = 256, CALIB_CAPTURES = 8 };
struct calibration {
    struct {
        char reading[64];
        int boundary[CALIB_CAPTURES]; /* n_capture of them */
        int agree;                    /* of `tokens` */
    } row[CALIB_ROWS];                /* the first is the configured reading */
    int n_row, n_capture, tokens;
    int best;     /* row */
    int rival;    /* the row nearest to it; -1: there is one row only */
    bool certain; /* the best is ahead of every other by more than two standard errors of the paired
                     difference (McNemar) */
    bool stopped; /* before all texts were scored */
};

struct probe; /* engine/probe.h */
struct what_if; /* engine/what_if.h */
struct job_news; /* engine/job.h */

struct event {
    enum event_kind kind;
    uint64_t seq;             /* counts all events of the engine */
    uint64_t ns;              /* clock_ns() when posted */
    char session[SESSION_ID]; /* of which session */
    int turn, step;           /* 1-based; 0: none */

    /* EV_SESSION: parent, fork_turn, beside. EV_OP: op, turn, and text, turns or forced.
     * EV_TURN_BEGIN: text = the user's message, system-side ids in tokens (the whole prompt),
     * n_reused of them from the cache, reuse, seed, regen. EV_PREFILL: done, total. EV_TEXT: text,
     * channel, first, ends. EV_STEP: rec, tokens, facts, tops, tree (if it drafted), pages,
     * lengths. EV_TURN_END: reason, text = the whole reply (final channel), tokens = generated ids,
     * n_drafted, n_accepted, n_steps, us_prefill, us_decode, served; prompt: its token ids, if the
     * server reported them with the reply. Of a server's reply us_prefill is the time from sending
     * the request to its first token. EV_NOTICE, EV_FAULT: text; EV_FAULT also fault, lost, and its
     * step is the one that failed (0: none did). EV_BATCH_*: batch; TEXT: text, channel; REPLY:
     * text = the whole reply (final channel) or why it was refused, tokens, facts, prompt, reason,
     * drafts, n_drafted, n_accepted, n_steps; END: reason (STOP_END: all are done), n_drafted,
     * n_accepted, n_steps, us_decode. EV_CALIBRATION: calibration. EV_PROBE, EV_WHAT_IF: probe,
     * what_if, or text = why there is none. EV_JOB_*: job; see struct job_news. */
    char parent[SESSION_ID];
    int fork_turn;
    bool beside;
    enum op_kind op;
    struct ids turns; /* owned; numbers of turns */
    struct forced_token forced;
    int channel; /* enum channel of models/chat/chat.h: 0 final, 1 analysis, 2 commentary */
    /* The tokens that produced the text: bytes [ends.v[i - 1], ends.v[i]) (i = 0: from 0) are of
     * the reply's token number first + i, counted from 0. A token whose last character needs later
     * tokens has bytes in the next event, too. ends.n 0: not known. The engine posts a text before
     * the step of its last token. */
    int first;
    struct ids ends; /* owned */
    bool regen;  /* the turn answers the previous user message again */
    int64_t seed;
    int n_tokens; /* EV_TURN_BEGIN: of the prompt; EV_TURN_END: generated, 0: the turn left nothing
                     in the context. tokens holds their ids, or nothing where a backend tells no
                     ids */
    int n_reused, done, total;
    struct reuse reuse;
    struct step_rec rec;
    enum stop_reason reason;
    int n_drafted, n_accepted, n_steps;
    uint64_t us_prefill, us_decode;
    enum err_kind fault; /* ERR_INVARIANT: a rule; ERR_MODEL: the device */
    struct violation at; /* FAULT: of the rule */
    bool lost;           /* with the device; the engine answers nothing more */
    struct batch_rec batch;

    struct buf text;         /* owned */
    struct ids tokens;       /* owned */
    struct ids prompt;       /* owned; n 0: not known */
    struct token_fact *facts; /* owned, one for each of `tokens`; NULL: not known */
    struct draft_report *drafts; /* owned; NULL: nothing was drafted, or not known. Not copied */
    struct tops *tops;       /* owned; NULL: no server reported any */
    struct served *served;   /* owned; NULL: the reply was computed here */
    struct tree *tree;       /* owned or NULL */
    struct page_event *pages; /* owned, n_pages: since the step before */
    int n_pages;
    struct context_lengths lengths;
    struct calibration *calibration; /* owned or NULL */
    struct probe *probe; /* owned or NULL; copies of the event have none */
    struct what_if *what_if; /* the same; one free() releases it */
    struct job_news *job; /* owned or NULL; copies of the event have none */
};

void event_free(struct event *ev);                          /* the owned parts; zeroes them */
void event_copy(struct event *dst, const struct event *src); /* deep */
/* A copy that the caller frees; NULL for none. */
struct token_fact *facts_copy(const struct token_fact *fact, int n);

/* Converts an event outside the conversation for the log: a reply of a batch and the result of a
 * calibration become EV_NOTICE lines. False: the log does not store it (progress, pieces). */
bool event_to_log(struct event *ev);

/* A bounded queue with a wake descriptor that polls readable while it holds events. */
struct evq;

struct evq *evq_new(int capacity); /* NULL and errno: no descriptor is left */
void evq_free(struct evq *q); /* frees what is left in it */
int evq_fd(const struct evq *q);
/* Takes ownership of ev's parts; waits while full. False (ev freed) once the queue is closed. */
bool evq_put(struct evq *q, struct event *ev);
/* Takes the event to the screen, and what the log keeps of it (event_to_log()) to the log; NULL:
 * there is none. */
void evq_post(struct evq *screen, struct evq *log, struct event *ev);
bool evq_get(struct evq *q, struct event *ev);          /* false: empty right now */
bool evq_wait(struct evq *q, struct event *ev, int ms); /* ms < 0: for ever; false: timeout or
                                                           closed and empty */
/* Sleeps for ms milliseconds, or until n events wait, or until an event comes that is neither text,
 * a step nor progress. Waking a consumer costs the engine more than posting an event, so a consumer
 * of many events takes them in batches. */
void evq_rest(struct evq *q, int n, int ms);
/* Ends a consumer's evq_rest() now, because no more events follow for a while. */
void evq_flush(struct evq *q);
void evq_close(struct evq *q); /* refuses further puts; gets return the remaining events. NULL is
                                  allowed */
bool evq_closed(struct evq *q); /* closed and empty */
