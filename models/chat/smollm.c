/* smollm.c - SmolLM 3's system turn: the date, how the reply is to think, and instructions, which
 * are the caller's or a default that depends on whether it thinks.
 */
#include "models/chat/parts.h"

/* Removes every occurrence of a word. */
static void cut_word(struct buf *b, const char *word)
{
    size_t n = strlen(word);
    for (char *at; (at = strstr(b->p, word)); b->n -= n)
        memmove(at, at + n, strlen(at + n) + 1);
}

static void cut_white_end(struct buf *b)
{
    size_t n = b->n;
    const char *s = trimmed(b->p, &n);
    b->n = n ? (size_t)(s - b->p) + n : 0;
    b->p[b->n] = '\0';
}

/* /think and /no_think in the caller's text switch thinking; /system_override makes the text the
 * whole turn. */
void smollm_system(struct render *r, const struct message *m)
{
    const struct chat *c = r->c;
    FREED(buf_free) struct buf text = {0};
    buf_str(&text, m ? m->text : "");
    bool whole = strstr(text.p, "/system_override") != NULL;
    if (strstr(text.p, "/no_think") || strstr(text.p, "/think"))
        r->quiet = strstr(text.p, "/no_think") != NULL;
    cut_word(&text, "/no_think");
    cut_word(&text, "/think");
    if (whole)
        cut_word(&text, "/system_override");
    cut_white_end(&text);
    begin_message(r, ROLE_SYSTEM);
    if (!whole) {
        put_str(r, "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: ");
        put_date(r, c->date, 0);
        put_str(r, r->quiet ? "\nReasoning Mode: /no_think\n\n" : "\nReasoning Mode: /think\n\n");
        put_str(r, "## Custom Instructions\n\n");
    }
    put_str(r, text.n || whole ? text.p : r->quiet ? c->system_quiet : c->system_default);
    if (!whole)
        put_str(r, "\n\n");
    if (whole || !c->open_system)
        end_message(r, ROLE_SYSTEM);
}
