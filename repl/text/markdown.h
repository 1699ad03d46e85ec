/* markdown.h - Markdown as wrapped, styled rows.
 *
 * md4c parses the text. A reply that is still streaming is rendered in two parts: the complete
 * blocks, which later text cannot change, once; and the incomplete block at its end, repeatedly. */
#pragma once

#include "repl/text/sheet.h"

/* Appends text as rows of at most `width` cells. Line breaks in a paragraph are kept. The rows'
 * spans say which bytes of the text they show; marks, bars and link targets show none. */
void markdown_render(const char *text, size_t n, int width, struct sheet *out);
/* The same for an incomplete block: a last line that holds only markup is not shown yet, and
 * unclosed emphasis and code are closed, so that rows do not change back and forth. */
void markdown_render_open(const char *text, size_t n, int width, struct sheet *out);
/* Bytes of the first block of text, if it is complete, i.e. if its rows do not depend on later
 * text. 0: the block may still grow. Takes time linear in the block. */
size_t markdown_block(const char *text, size_t n);

/* For markdown.c: appends to out the text of an incomplete block as markdown_render_open() shows
 * it; returns how many of its bytes are the writer's. */
size_t markdown_closed(const char *text, size_t n, struct buf *out);
/* Copies text and escapes each reference definition ("[1]: http://x"), so that it is shown as text.
 * Markdown hides definitions, but the links that refer to them may be in blocks rendered before, so
 * their targets would never be shown. */
void markdown_definitions(const char *text, size_t n, struct buf *out);
