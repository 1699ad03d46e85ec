/* parts.h - a chat format as a row of a table; only models/chat*.c include this.
 *
 * Markers are single tokens, found by their text when the chat is opened. Text between two markers
 * is gathered and encoded in one piece, because the tokenizer would see it as one piece.
 */
#ifndef AERIE_CHAT_PARTS_H
#define AERIE_CHAT_PARTS_H

#include "models/chat/chat.h"

#include <string.h>

enum { MAX_MARK = 10, MAX_KNOWN = 4 };

/* What becomes of the system message. */
enum system_way {
    SYSTEM_TURN, /* a turn of its own */
    SYSTEM_FOLD, /* before the first user text, with an empty line between */
};

/* How a reply's thoughts are told from its answer. */
enum think_way {
    THINK_NONE,
    THINK_TAGS,    /* <think> ... </think>, as tokens or as plain text */
    THINK_CHANNEL, /* gemma-4: <|channel>thought\n ... <channel|> */
    THINK_HARMONY, /* a message with a header of its own */
};

/* Indices into a format's marks; those that a format lacks are NULL there. */
enum mark {
    MARK_BOS,
    MARK_OPEN,  /* begins a turn, before its role */
    MARK_MID,   /* between role and text */
    MARK_CLOSE, /* ends a turn, and with it a reply */
    MARK_CHANNEL,
    MARK_CHANNEL_END,
    MARK_STOP, /* further ends of a reply; those not in the vocabulary are left out */
    MARK_STOP_LAST = MAX_MARK - 1,
};

struct render;

struct format {
    const char *name;
    const char *family[4]; /* struct config's names */
    const char *mark[MAX_MARK];
    const char *role[3];      /* by enum role */
    const char *before, *after; /* text after the role (and MARK_MID), and after MARK_CLOSE */
    enum system_way system;
    enum think_way think;
    bool alternate;      /* user and assistant must take turns */
    bool trim;           /* white space around texts goes */
    bool template_texts; /* default system prompts are looked up in the shipped template */
    const char *system_default, *system_suffix; /* without a template; NULL: none */
    bool (*conversation)(struct render *r, const struct message *m, int n); /* NULL: the usual */
    const char *known[MAX_KNOWN]; /* SHA-256 of templates that this row was checked against */
};

struct chat {
    const struct format *format;
    const struct tokenizer *tok;
    int mark[MAX_MARK]; /* ids, -1: none */
    int32_t stop[MAX_STOP];
    int n_stop;
    int vocab;       /* rows of the model's embedding; 0: not known */
    char *template;  /* as shipped, or NULL */
    char *system_default, *system_suffix;
    bool date_lines;    /* llama-3.1 and later begin the system turn with two dates */
    const char *open_thought; /* <think> and perhaps a newline, which end the reply's opening */
    bool empty_thought; /* the reply's opening ends in an empty thought (gemma-4) */
    char date[11];      /* YYYY-MM-DD */
    char reasoning[8];
    char warning[400];
};

/* A rendering under way; the first failure sticks. */
struct render {
    const struct chat *c;
    struct buf text; /* gathered since the last marker */
    struct ids *out;
    struct err *e;
    bool failed;
};
void put_text(struct render *r, const char *s, size_t n);
void put_str(struct render *r, const char *s);
void put_mark(struct render *r, enum mark m);
void put_ids(struct render *r, const int32_t *v, int n); /* as they are */

/* s without the white space around it; *n is changed. */
const char *trimmed(const char *s, size_t *n);

/* Fits the row to the shipped template, if there is one: default texts, thoughts, dates. */
void chat_read_template(struct chat *c, const struct model *m);

bool harmony_conversation(struct render *r, const struct message *m, int n);
void harmony_push(struct chat_reader *r, int id, struct buf *out);
void harmony_end(struct chat_reader *r, struct buf *out);

/* Row 0 is the fallback (ChatML); the last row has no name. */
extern const struct format chat_formats[];
extern const struct format chat_raw;

#endif
