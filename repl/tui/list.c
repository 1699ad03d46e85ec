/* list.c - lists on the whole screen that narrow while the user types: the line that is typed, the
 * place in the list, names cut to their column. The session browser and the palette use it. See
 * tui.h. */
#include "repl/tui/tui.h"

enum { MOST = 200 }; /* bytes of the typed line */

static void erase(struct buf *q)
{
    bool tail = true;
    while (q->n && tail) {
        tail = ((unsigned char)q->p[q->n - 1] & 0xC0) == 0x80;
        q->p[--q->n] = '\0';
    }
}

bool list_type(struct buf *q, const struct key *k)
{
    if (k->code == K_CHAR && !k->ctrl && !k->alt && q->n < MOST)
        buf_utf8(q, k->cp);
    else if (k->code == K_PASTE)
        for (size_t i = 0; i < k->n && q->n < MOST; i++)
            buf_char(q, (unsigned char)k->text[i] < ' ' ? ' ' : k->text[i]);
    else if (k->code == K_BACKSPACE)
        erase(q);
    else if (key_is_ctrl(k, 'u'))
        buf_clear(q);
    else
        return false;
    return true;
}

void list_keep(struct picker *p, int n)
{
    p->at = min_int(max_int(p->at, 0), max_int(n - 1, 0));
    p->top = min_int(p->top, p->at);
    p->top = max_int(max_int(p->top, p->at - p->rows + 1), 0);
}

bool list_move(struct picker *p, int n, const struct key *k)
{
    switch (k->code) {
    case K_UP: p->at--; break;
    case K_DOWN: p->at++; break;
    case K_PGUP: p->at -= p->rows; break;
    case K_PGDN: p->at += p->rows; break;
    case K_HOME: p->at = 0; break;
    case K_END: p->at = n; break;
    default: return false;
    }
    list_keep(p, n);
    return true;
}

void list_cut(struct sheet *out, enum style st, const char *text, int cells)
{
    FREED(buf_free) struct buf clean = {0};
    int used;
    text_sanitise(&clean, text, strcspn(text, "\r\n"), false);
    size_t n = text_fit(buf_text(&clean), clean.n, cells, &used);
    bool cut = n < clean.n;
    if (cut)
        n = text_fit(clean.p, clean.n, max_int(cells - 1, 0), &used);
    sheet_addn(out, st, buf_text(&clean), n);
    if (cut)
        sheet_add(out, st, out->ascii ? "~" : "…");
}
