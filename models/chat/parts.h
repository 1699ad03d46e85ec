/* parts.h - the table of chat formats; internal to models/chat/.
 *
 * Markers are the special tokens of a format, looked up by their text in chat_open(). Text between
 * two markers is collected and encoded at once, as the tokenizer would encode the rendered
 * template.
 */
#pragma once

#include "kernels/json_read.h"
#include "models/chat/chat.h"

enum { MAX_MARK = 17, MAX_KNOWN = 4 };

/* Where a format puts the system message. */
enum system_place {
    SYSTEM_TURN, /* a turn of its own */
    SYSTEM_PREPEND, /* before the first user text, separated by an empty line */
};

/* How a reply's thoughts (chain of thought) are separated from its answer. */
enum think_kind {
    THINK_NONE,
    THINK_TAGS,    /* <think> ... </think>, as tokens or as plain text */
    THINK_CHANNEL, /* gemma-4: <|channel>thought\n ... <channel|> */
    THINK_HARMONY, /* messages of their own, whose header names the channel "analysis" */
};

/* How functions are described and called. */
enum tools_kind {
    TOOLS_NONE,
    TOOLS_TAGS,    /* in the system turn; <tool_call>\n{"name": ..., "arguments":
                      ...}\n</tool_call> */
    TOOLS_LLAMA,   /* in the first user message; {"name": ..., "parameters": ...} */
    TOOLS_GEMMA,   /* the same call, perhaps in a ```json block; in the words of Google's guide to
                      function calling with gemma-2 and 3, whose templates have no functions */
    TOOLS_GEMMA4,  /* tokens of their own, in the system turn and the model's: gemma4.c */
    TOOLS_HARMONY, /* in the developer message; messages of their own */
};

/* Whether replies that are sent back begin with the empty thought. */
enum thought_back { THOUGHT_NEVER, THOUGHT_IF_OFF, THOUGHT_ALWAYS };

/* Indices into a format's markers; NULL in the table: the format has no such marker. */
enum mark {
    MARK_BOS,
    MARK_OPEN,  /* begins a turn, before its role */
    MARK_MID,   /* between role and text */
    MARK_CLOSE, /* ends a turn, and a reply (harmony: a message) */
    MARK_CHANNEL,
    MARK_CHANNEL_END,
    /* formats with a marker for each role */
    MARK_USER = MARK_OPEN,
    MARK_USER_END = MARK_MID,
    MARK_ASSISTANT = MARK_MID,
    MARK_SYSTEM = MARK_CHANNEL,
    MARK_SYSTEM_END = MARK_CHANNEL_END,
    MARK_CALL = MARK_CHANNEL_END + 2, /* harmony's <|call|> */
    MARK_STOP = MARK_CHANNEL_END + 1, /* further tokens that end a reply; those not in the
                                         vocabulary are ignored */
    MARK_STOP_LAST = MARK_STOP + 3,
    /* gemma-4's; a vocabulary without them has no tools */
    MARK_TOOL,
    MARK_TOOL_END,
    MARK_TOOL_CALL,
    MARK_TOOL_CALL_END,
    MARK_TOOL_RESPONSE_END,
    MARK_QUOTE,
    MARK_TOOL_RESPONSE = MARK_STOP + 1, /* ends a reply that calls */
};

struct render;

struct format {
    const char *name;
    const char *family[4]; /* struct config's names */
    const char *mark[MAX_MARK];
    const char *role[3];        /* by enum role; NULL: role_names */
    const char *before, *after; /* text after the role (and MARK_MID), and after MARK_CLOSE; NULL:
                                   none */
    /* by enum role: all that surrounds a message, in which the format's markers are matched; NULL:
       MARK_OPEN, role, MARK_MID, before; MARK_CLOSE, after */
    const char *begin[3], *end[3];
    enum system_place system;
    enum think_kind think;
    const char *effort;  /* the reasoning effort that the system message names; NULL: none */
    bool switches;       /* without a template: struct chat's */
    /* THINK_TAGS: */
    const char *switch_text; /* in a template with the switch; NULL: "enable_thinking is false" */
    const char *no_thought;  /* the empty thought that begins a reply without thoughts; NULL:
                                "<think>\n\n</think>\n\n" */
    const char *thought;     /* begins a reply that thinks, or NULL */
    bool quiet;              /* as ever, replies do not think */
    enum thought_back back;
    /* renders the system turn and sets render's quiet; NULL: system_turn() */
    void (*system_turn)(struct render *r, const struct message *m);
    enum tools_kind tools;
    bool alternate;      /* user and assistant messages must alternate */
    bool later_system;   /* a system message that is not the first is a turn like others */
    bool trim;           /* white space around texts is removed */
    bool template_texts; /* default system prompts are read from the template in the folder */
    const char *system_default, *system_suffix; /* without a template; NULL: none */
    /* renders the messages; NULL: turn_conversation() */
    bool (*conversation)(struct render *r, const struct message *m, int n);
    const char *known[MAX_KNOWN]; /* SHA-256 of the templates with which this row was compared */
};

struct chat {
    const struct format *format;
    const struct tokenizer *tok;
    int mark[MAX_MARK]; /* ids, -1: none */
    enum tools_kind tools; /* the format's, or TOOLS_NONE if the vocabulary lacks its tokens */
    int32_t stop[MAX_STOP];
    int n_stop;
    int vocab;       /* rows of the model's embedding; 0: unknown */
    char *template;  /* the template in the model's folder or GGUF, or NULL */
    char *system_default, *system_suffix;
    bool date_lines;    /* llama-3.1 and later begin the system turn with two dates */
    const char *open_thought; /* "<think>", perhaps with a newline, at the end of the prompt; NULL:
                                 none */
    bool empty_thought; /* the prompt ends in an empty thought (gemma-4) */
    bool switches;      /* the template has the variable enable_thinking */
    bool tight;         /* there are no newlines around texts (phi-4-mini) */
    bool open_system;   /* nothing ends the system turn (smollm-3's first templates) */
    char *system_quiet; /* the default system text of a conversation without thoughts */
    int think_mark;     /* the id of gemma-4's <|think|>, which switches thinking on; -1: none */
    char date[11];      /* YYYY-MM-DD */
    bool whole_month;   /* date_lines name it with all letters of the month */
    char warning[400];
};

/* State of one rendering. After the first failure nothing more is encoded. */
struct render {
    const struct chat *c;
    const struct chat_style *style;
    struct buf text; /* text since the last marker, not yet encoded */
    struct ids *out;
    struct err *e;
    bool failed;
    bool quiet;   /* the reply is not to think */
    bool eats;    /* the last marker includes the white space behind it */
};
void encode_text(struct render *r);                       /* the text since the last marker */
void put_text(struct render *r, const char *s, size_t n); /* a message's text, trimmed if needed */
void put_str(struct render *r, const char *s); /* text of the format itself; NULL: none */
void put_format(struct render *r, const char *fmt, ...) /* the same, by a form of printf */
    __attribute__((format(printf, 2, 3)));
void put_json(struct render *r, const json_t *v, size_t flags); /* as json_written() has it */
void put_json_text(struct render *r, const char *s);            /* a string of JSON */
void put_arguments(struct render *r, const json_t *v);    /* of a call in struct message */
void put_mark(struct render *r, enum mark m);             /* nothing if the format has none */
void begin_turn(struct render *r, const char *role); /* MARK_OPEN, role, MARK_MID, before */
void begin_message(struct render *r, enum role role);
void end_message(struct render *r, enum role role);
void put_ids(struct render *r, const int32_t *v, int n);  /* generated ids, verbatim */

/* Length of the longest suffix of b that is a proper prefix of the tag. */
static inline size_t partial_tag(const struct buf *b, const char *tag)
{
    size_t n = strlen(tag) - 1;
    for (n = n < b->n ? n : b->n; n; n--)
        if (memcmp(b->p + b->n - n, tag, n) == 0)
            break;
    return n;
}

/* s without white space at both ends; *n is reduced. */
const char *trimmed(const char *s, size_t *n);

/* Sets the fields of c in which variants of a format differ (default texts, thoughts, dates) from
 * the template, if the model has one. */
void chat_read_template(struct chat *c, const struct model *m);

/* "2025-06-28" as "28 June 2025", or with `letters` 3 as "28 Jun 2025". */
void put_date(struct render *r, const char *date, int letters);

/* tools.c: what the system turn, or the first user message, says of functions; the calls of a
 * reply; the results of n calls, as a turn. */
void put_tools(struct render *r);
void put_calls(struct render *r, const struct message *m);
void put_results(struct render *r, const struct message *m, int n);
void put_namespace(struct render *r); /* harmony's */

/* gemma4.c: the same of its format. */
bool gemma4_has_tools(const struct chat *c); /* whether the vocabulary has its tokens */
void gemma4_declare(struct render *r);
void gemma4_calls(struct render *r, const struct message *m);
void gemma4_responses(struct render *r, const struct message *m, int n);
/* The text of a token that is part of a call; NULL: it is none. */
const char *gemma4_spelled(const struct chat *c, int id);
/* The text between a call's two tokens as {"name": NAME, "arguments": OBJECT}, which the caller
 * frees; NULL: it is no call. */
json_t *gemma4_call(const char *p, size_t n);

void smollm_system(struct render *r, const struct message *m);

bool harmony_conversation(struct render *r, const struct message *m, int n);
void harmony_push(struct chat_reader *r, int id, struct buf *out);
void harmony_end(struct chat_reader *r, struct buf *out);

/* "system", "user", "assistant", "tool": by enum role. */
extern const char *const role_names[];
/* What a format without begin[role] calls the role. */
static inline const char *role_of(const struct format *f, enum role role)
{
    return f->role[role] ? f->role[role] : role_names[role];
}

/* Row 0 is the fallback (ChatML); the last row has no name. */
extern const struct format chat_formats[];
extern const struct format chat_raw;
