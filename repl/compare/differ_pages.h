/* differ_pages.h - compares the page tables of two runs whose pages are numbered differently by
 * their meaning: which positions are held in which pool, and that no two positions share a slot.
 * Main thread only. */
#pragma once

#include "engine/past/page_history.h"
#include "repl/compare/trace.h"

/* The names of the runs in messages: "in the log", "now". */
struct diff_names {
    const char *a, *b;
};

/* The tables of both sides after the steps so far; {0} at the beginning. */
struct page_meaning {
    struct page_history h[2];
    bool draft_window[2]; /* draft.window was set: pages of the draft pool before it may be gone */
    bool unknown; /* there was a step without page events: no comparison from there on */
};

/* A turn begins, with these lines of settings on each side. */
void pages_turn(struct page_meaning *m, const char *a, const char *b);
/* Applies the page events of the same step of both sides. True: the tables differ in meaning; `why`
 * says how. */
bool pages_differ(struct page_meaning *m, const struct step_row *a, const struct step_row *b,
                  const struct diff_names *in, char *why, size_t n);
/* Applies the page events of the steps of a turn from index `from` on, which are not compared. */
void pages_follow(struct page_meaning *m, const struct trace_turn *a, const struct trace_turn *b,
                  int from);
void page_meaning_free(struct page_meaning *m);
