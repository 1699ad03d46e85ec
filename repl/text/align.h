/* align.h - which bytes of a reply's text each of its tokens produced.
 *
 * A reply's text is that of its tokens, except that some tokens show nothing (stop tokens, the marks
 * and headers of channels), that leading blanks may be removed, and that the end of a token may be
 * held back until the next one completes a character. Tokens and text arrive in pieces, a step's text
 * before its tokens; align_run() settles what can be settled. Depends on nothing but base.h.
 */
#ifndef AERIE_ALIGN_H
#define AERIE_ALIGN_H

#include "kernels/base.h"

struct align {
    struct buf text;  /* visible text that no token is known for yet */
    size_t settled;   /* bytes of the reply's text before it */
    struct buf bytes; /* of the tokens that wait, one after the other */
    struct ids size;  /* bytes of each of them */
    int first;        /* number of the first of them in the reply */
    int misses;       /* runs since the last one that settled something */
    size_t shown;     /* bytes of the first one that are settled already */
};

void align_free(struct align *a); /* also empties it */
void align_text(struct align *a, const char *p, size_t n);
void align_token(struct align *a, const char *p, size_t n);
/* Settles the waiting text: tell() gets each token that produced some of it, in order, with its bytes
 * [from, to) of the reply's text; a token that a character was completed for later is reported again,
 * with its further bytes. Of several readings the one is taken in which the tokens that show nothing
 * come first. Nothing happens while the text fits no run of the tokens; last: then the reading that
 * explains most of the text is taken. */
void align_run(struct align *a, bool last, void (*tell)(void *arg, int token, size_t from, size_t to),
               void *arg);

#endif
