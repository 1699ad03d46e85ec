/* keys.h - decodes a terminal's bytes into keys and pastes. Depends on no terminal and no clock.
 *
 * Decodes UTF-8, Alt as an ESC prefix, the sequences of xterm, VT220, rxvt, the Linux console, tmux
 * and the Kitty protocol's plain keys, and the mouse in SGR coordinates (xterm's mode 1006). A
 * bracketed paste is one key. Pasted text is never taken for typed keys: brackets within a paste
 * are removed until none is left, and if a paste contains its own end bracket, the bytes that
 * follow directly belong to the paste, too. */
#pragma once

#include "kernels/base.h"

enum key_code {
    K_NONE,
    K_CHAR, /* cp; with ctrl: the letter 'a'..'z' or one of "@[\\]^_" */
    K_ENTER, K_TAB, K_BACKSPACE, K_DELETE, K_INSERT, K_ESC,
    K_UP, K_DOWN, K_LEFT, K_RIGHT, K_HOME, K_END, K_PGUP, K_PGDN,
    K_F1, K_F2, K_F3, K_F4, K_F5, K_F6, K_F7, K_F8, K_F9, K_F10, K_F11, K_F12,
    K_BACKGROUND, /* the terminal's answer to OSC 11: cp is its background, 0xRRGGBB */
    K_MOUSE, /* mouse, x, y */
    K_PASTE, /* text, n; valid until the next call on the decoder */
};

enum mouse_act { MOUSE_PRESS, MOUSE_DRAG, MOUSE_RELEASE, MOUSE_WHEEL_UP, MOUSE_WHEEL_DOWN };

struct key {
    enum key_code code;
    uint32_t cp;
    bool ctrl, alt, shift;
    enum mouse_act mouse; /* of the left button, or the wheel */
    int x, y;             /* cell of the screen, from 0 */
    const char *text;
    size_t n;
    bool cut; /* the paste was longer than PASTE_MAX and was truncated */
};

/* Whether a key is Ctrl with a letter, or a letter alone. */
static inline bool key_is_ctrl(const struct key *k, uint32_t letter)
{
    return k->code == K_CHAR && k->ctrl && k->cp == letter;
}
static inline bool key_is_letter(const struct key *k, uint32_t letter)
{
    return k->code == K_CHAR && !k->ctrl && !k->alt && k->cp == letter;
}

enum { PASTE_MAX = 4 << 20 };

struct keys {
    struct buf in;
    size_t at;
    struct buf paste;
    bool cut;
    bool answer_due; /* OSC 11 was sent: set by the caller, cleared by its answer */
    enum { PASTE_NO, PASTE_OPEN, PASTE_ENDED } state;
};

void keys_free(struct keys *k);
void keys_feed(struct keys *k, const char *bytes, size_t n);
/* The next key. False: more bytes are needed. `timeout`: keys_wait() ms passed without input, so an
 * incomplete sequence is final: a single ESC, or the end of a paste. */
bool keys_next(struct keys *k, bool timeout, struct key *out);
/* How long to wait for more bytes before keys_next() with timeout, ms; -1: nothing is pending. */
int keys_wait(const struct keys *k);
/* Removes paste brackets from text, those that result from removals included. Returns the new
 * length. */
size_t paste_strip(char *text, size_t n);
