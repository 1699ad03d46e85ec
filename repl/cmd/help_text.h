/* help_text.h - the texts of /help: topics, and the paragraphs of the manual page.
 *
 * repl/share/help_text.awk writes their source when the program is built, from repl/share/:
 * topics.txt, examples.txt (what the examples print, kept true by tests/demo/topics.sh) and
 * aerie.1. Constants for any thread. */
#pragma once

struct topic {
    const char *name, *title;
    const char *text;    /* lines */
    const char *example; /* lines: commands and what they print; "": none */
};
extern const struct topic help_topics[];
extern const int help_n_topic;

struct man_part {
    const char *section, *tag; /* tag: the flag or command that the paragraph is about, or "" */
    const char *text;          /* a line a sentence */
};
extern const struct man_part help_manual[];
extern const int help_n_manual;
