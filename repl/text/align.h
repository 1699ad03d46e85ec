/* align.h - which bytes of a reply's text each of its tokens produced, where its events do not say
 * so: replies of servers and of recordings. The engine's events say it (event.ends).
 *
 * A reply's text is that of its tokens, except that some tokens show nothing (stop tokens, the
 * marks and headers of channels), that leading blanks may be removed, and that the text may end
 * within a token. Depends on nothing but base.h. */
#pragma once

#include "kernels/base.h"

struct align {
    struct buf text;  /* visible text of the reply */
    struct buf bytes; /* of its tokens, one after the other */
    struct ids size;  /* bytes of each of them */
};

void align_free(struct align *a); /* also empties it */
void align_text(struct align *a, const char *p, size_t n);
void align_token(struct align *a, const char *p, size_t n);
/* tell() gets each token that produced some of the text, in order, with its bytes [from, to). Of
 * several readings the one is taken that explains most of the text, and of these the one in which
 * the tokens that show nothing come first. */
void align_run(struct align *a, void (*tell)(void *arg, int token, size_t from, size_t to),
               void *arg);
