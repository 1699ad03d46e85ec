/* views.h - what commands and panes show of an engine's state. Main thread only. */
#pragma once

#include "engine/backend.h"
#include "repl/text/print.h"

struct app;
struct status;

/* Parts of the page map, for /pages and the Pages pane (views_pages.c). Positions of a cell:
 * [first, first + n). */
int32_t page_in(const struct page_view *p, enum pool_id pool); /* 0: none */
int map_page_size(const struct page_table *t);    /* tokens, at least 1 */
int map_held(const struct page_table *t);         /* positions that pages are held for */
/* Tokens a cell: the smallest power of two with which the held positions fit `cells` cells, but at
 * most a page. */
int map_unit(const struct page_table *t, int cells);
void map_cell(const struct page_table *t, enum pool_id pool, int first, int n, struct sheet *out);
/* Both: a line, or two if one of `width` cells is too short; width 0: no limit. */
void map_scale(const struct page_table *t, int unit, int width, struct sheet *out);
void map_legend(const struct page_table *t, int width, struct sheet *out);
/* Two lines: the pages and slots of a position, and the window. Where a pool has no page for the
 * position, the line says "released" or "not written yet". */
void map_translation(const struct page_table *t, int pos, struct sheet *out);
void view_pages(const struct page_table *t, const char *which, int width, struct sheet *out);
/* Appends a bar of `cells` cells, filled to `share`, to an eighth of a cell unless ASCII. */
void view_bar(struct sheet *out, enum style st, double share, int cells);
/* Appends a token between quotes, cut to `cells` (0: whole); its id when the backend (NULL: none)
 * knows no text for it. */
void view_token(struct sheet *out, enum style st, struct backend *b, int32_t id, int cells);
/* The same for people only; and with the members "token" and "text". */
void note_token(const struct printer *to, enum style st, struct backend *b, int32_t id, int cells);
void print_token(const struct printer *to, enum style st, struct backend *b, int32_t id, int cells);
/* b: for the text of tokens, NULL: ids are shown. bonus: the token that the target sampled at the
 * end of the accepted path; -1: unknown. width: cells of a line, tokens are cut to fit; 0: no
 * limit. */
void view_tree(struct backend *b, const struct tree *t, int turn, int step, int32_t bonus,
               int width, struct sheet *out);
/* Appends the tokens of a step to the last line, as many as fit `width` cells (0: all); of a server
 * that sends no ids, their texts. (steps.c) */
void view_step_tokens(struct app *a, const struct step_view *v, int width, struct sheet *out);
bool pool_sums(const struct pool_view *p); /* whether its ledger sums up */
void view_pool(const struct pool_view pool[N_POOLS], int width, const struct printer *to);
/* In JSON members of the object that is open. */
void view_stats(const struct status *s, const struct backend_info *i, const struct printer *to);
/* "142 checked, 7 unchecked, 0 violations": of plans. */
void add_checks(const struct check_view *c, const struct printer *to);
/* served: of a server, which tells how many tokens each step drafted, but not their depths in a
 * tree. The table then ends at the greatest depth that was accepted. */
void view_accept(const struct chat_view *v, bool served, int width, const struct printer *to);

/* Writes why a node of a step was accepted or rejected, as /why does; turn 0: the latest step that
 * drafted; node -1: the node that /why would choose. False and *e: there is no such step or
 * node. */
bool view_why(struct app *a, int turn, int step, int node, const struct printer *to, struct err *e);
