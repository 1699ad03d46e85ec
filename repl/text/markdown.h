/* markdown.h - Markdown as wrapped, styled rows.
 *
 * Parsed by md4c. A reply that is still streaming is rendered in two parts: the head that later
 * text cannot change, once, and the open block at its end, again and again.
 */
#ifndef AERIE_MARKDOWN_H
#define AERIE_MARKDOWN_H

#include "repl/text/sheet.h"

/* Appends text as rows of at most `width` cells. Line breaks in a paragraph are kept. */
void markdown_render(const char *text, size_t n, int width, struct sheet *out);
/* The same for a block that is being written: a last line of nothing but markup is held back, and
 * emphasis and code that are not closed yet are closed, so that rows do not jump. */
void markdown_render_open(const char *text, size_t n, int width, struct sheet *out);
/* Bytes of the first block of text, if it is complete: rendered alone it gives its rows, whatever
 * follows. 0: the block may still grow. Linear in the block. */
size_t markdown_block(const char *text, size_t n);

/* Copies text with each definition of a reference ("[1]: http://x") made plain text: Markdown shows
 * none, and its links may stand in blocks that were rendered already, so a target could vanish. */
void markdown_definitions(const char *text, size_t n, struct buf *out);

#endif
