/* chat.h - a conversation rendered to token ids as a family was trained, and replies read back.
 *
 * The whole conversation is rendered anew for each turn; the engine finds what its cache already
 * holds. User text never becomes a special token (except in raw mode, where the text is all there
 * is). Any thread; after it is set up a struct chat does not change.
 */
#ifndef AERIE_CHAT_H
#define AERIE_CHAT_H

#include "models/models.h"
#include "models/tokenizer/tokenizer.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };
enum channel { CHAN_FINAL, CHAN_ANALYSIS, CHAN_COMMENTARY };

struct message {
    enum role role;
    char *text;     /* as typed, or the reply's final text */
    struct ids ids; /* a reply's generated ids, stop token included, used verbatim where the family
                       resends them; empty: encode text. One that does not end in the format's own
                       end token was interrupted, and gets it. */
};

struct chat;

/* Chooses the format by the config's family and the folder's files; `raw` is none at all: the
 * texts as they are, special tokens in them matched, after the bos that the tokenizer adds.
 * A *warning (may be NULL) is set to a line to show, e.g. an unknown template, or left NULL; it
 * lives as long as the chat. NULL and *e on failure. Both m and t must outlive the chat. */
struct chat *chat_open(const struct model *m, const struct tokenizer *t, bool raw,
                       const char **warning, struct err *e);
void chat_close(struct chat *c);
const char *chat_name(const struct chat *c); /* "gemma", "harmony", "chatml", "raw", ... */

/* What the system message of some formats says; ignored by the others. To be set before the first
 * rendering, if at all: the date as "YYYY-MM-DD" (today, as of chat_open()), the reasoning effort
 * as "low", "medium" (the default) or "high". */
bool chat_set_date(struct chat *c, const char *date, struct err *e);
bool chat_set_reasoning(struct chat *c, const char *level, struct err *e);

/* Appends the ids that ask for the next reply: bos, all messages, and the reply's opening. At most
 * one system message, the first. On failure *out is as before. */
bool chat_render(const struct chat *c, const struct message *m, int n, struct ids *out,
                 struct err *e);
/* Ids that end a reply: the format's own, then the config's. Returns how many. */
int chat_stops(const struct chat *c, int32_t out[MAX_STOP]);

/* Reads a reply token by token: what to show, and in which channel. */
struct chat_reader {
    const struct chat *chat;
    struct tok_stream utf8;
    enum channel channel;
    int state;
    struct buf head; /* text held back: a message header, or what may be the start of a tag */
};
void chat_reader_init(struct chat_reader *r, const struct chat *c);
/* Appends the visible text of one more token to out and sets *channel to the channel of that text;
 * stop and format tokens add nothing. */
void chat_reader_push(struct chat_reader *r, int id, struct buf *out, enum channel *channel);
/* Appends what is still held back, in r->channel, and frees. */
void chat_reader_end(struct chat_reader *r, struct buf *out);

#endif
