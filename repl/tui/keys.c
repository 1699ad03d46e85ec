/* keys.c - see keys.h. */
#include "repl/tui/keys.h"
#include "kernels/ascii.h"
#include "kernels/utf8.h"

enum { ESC = 0x1B, SEQUENCE_MAX = 64, WAIT_ESC = 25, WAIT_PASTE_END = 50, WAIT_PASTE = 3000,
       WAIT_ANSWER = 250, ANSWER_MAX = 48 };

static const char paste_begin[] = "\033[200~", paste_end[] = "\033[201~";
enum { BRACKET = sizeof paste_end - 1 };

void keys_free(struct keys *k)
{
    buf_free(&k->in);
    buf_free(&k->paste);
    *k = (struct keys){0};
}

void keys_feed(struct keys *k, const char *bytes, size_t n)
{
    if (k->at == k->in.n) {
        buf_clear(&k->in);
        k->at = 0;
    }
    buf_add(&k->in, bytes, n);
}

/* ---- the terminal's answers ---- */

/* Length of an answer "ESC ] 11;rgb:RRRR/GGGG/BBBB" with BEL or ESC \ at its end. 0: incomplete;
 * SIZE_MAX: not an answer. */
static size_t answer_length(const char *p, size_t n)
{
    static const char head[] = "\033]11;";
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (i < sizeof head - 1) {
            if (c != (unsigned char)head[i])
                return SIZE_MAX;
        } else if (c == 7) {
            return i + 1;
        } else if (c == ESC) {
            return i + 1 == n ? 0 : p[i + 1] == '\\' ? i + 2 : i;
        } else if (!strchr("0123456789abcdefABCDEFrg:/", c) || i > ANSWER_MAX) {
            return i;
        }
    }
    return 0;
}

static int hex_digit(char c)
{
    char small = ascii_lower(c);
    return ascii_digit(c) ? c - '0' : small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

/* Reads a component of a colour, 1 to 4 hexadecimal digits, as 8 bits. */
static bool read_component(const char **p, const char *end, uint32_t *out)
{
    uint32_t v = 0, most = 0;
    for (; *p < end && most < 0xFFFF; ++*p) {
        int digit = hex_digit(**p);
        if (digit < 0)
            break;
        v = v << 4 | (uint32_t)digit;
        most = most << 4 | 15;
    }
    if (most == 0)
        return false;
    *out = v * 255 / most;
    return true;
}

static struct key answer_key(const char *p, size_t n)
{
    const char *end = p + n, *at = memmem(p, n, ":", 1);
    uint32_t rgb = 0, part;
    for (int i = 0; i < 3; i++) {
        if (!at || at == end || (i && *at != '/') || (at++, !read_component(&at, end, &part)))
            return (struct key){0};
        rgb = rgb << 8 | part;
    }
    return (struct key){.code = K_BACKGROUND, .cp = rgb};
}

int keys_wait(const struct keys *k)
{
    if (k->state == PASTE_OPEN)
        return WAIT_PASTE;
    if (k->state == PASTE_ENDED)
        return WAIT_PASTE_END;
    if (k->at == k->in.n)
        return -1;
    size_t n = k->in.n - k->at;
    if (answer_length(k->in.p + k->at, n) != 0)
        return WAIT_ESC;
    return n > 2 ? -1 : k->answer_due ? WAIT_ANSWER : WAIT_ESC; /* Esc and Alt-] are keys, too */
}

/* ---- pastes ---- */

/* Length of the paste bracket at the end of p, 0 if none. It begins with ESC [, with C1 CSI in
 * UTF-8, or with the byte 0x9B. */
static size_t bracket_at_end(const char *p, size_t n)
{
    static const char *const forms[] = {"\033[201~",    "\033[200~", "\xC2\x9B""201~",
                                        "\xC2\x9B""200~", "\x9B""201~", "\x9B""200~"};
    if (n == 0 || p[n - 1] != '~')
        return 0;
    for (size_t i = 0; i < LEN(forms); i++) {
        size_t k = strlen(forms[i]);
        if (n >= k && memcmp(p + n - k, forms[i], k) == 0)
            return k;
    }
    return 0;
}

size_t paste_strip(char *text, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        text[out++] = text[i];
        out -= bracket_at_end(text, out);
    }
    return out;
}

static void paste_add(struct keys *k, const char *p, size_t n)
{
    size_t room = PASTE_MAX - k->paste.n;
    if (n > room) {
        n = room;
        k->cut = true;
    }
    buf_add(&k->paste, p, n);
}

static bool paste_done(struct keys *k, struct key *out)
{
    k->state = PASTE_NO;
    buf_add(&k->paste, "", 0);
    size_t n = paste_strip(k->paste.p, k->paste.n);
    *out = (struct key){.code = K_PASTE, .text = k->paste.p, .n = n, .cut = k->cut};
    return true;
}

/* Reads the text of a paste, up to the end bracket. */
static bool paste_body(struct keys *k, bool timeout, struct key *out)
{
    const char *p = k->in.p + k->at;
    size_t n = k->in.n - k->at;
    const char *end = memmem(p, n, paste_end, BRACKET);
    if (end) {
        paste_add(k, p, (size_t)(end - p));
        k->at += (size_t)(end - p) + BRACKET;
        k->state = PASTE_ENDED;
        return false;
    }
    /* the last bytes may be the beginning of the end bracket */
    size_t keep = timeout ? 0 : (n < BRACKET - 1 ? n : BRACKET - 1);
    paste_add(k, p, n - keep);
    k->at += n - keep;
    return timeout ? paste_done(k, out) : false;
}

/* Reads on behind an end bracket: if another one follows without a begin bracket, the first was
 * part of the pasted text. */
static bool paste_after(struct keys *k, bool timeout, struct key *out, bool *again)
{
    const char *p = k->in.p + k->at;
    size_t n = k->in.n - k->at;
    const char *end = memmem(p, n, paste_end, BRACKET);
    const char *begin = memmem(p, n, paste_begin, BRACKET);
    *again = false;
    if (end && (!begin || end < begin)) {
        paste_add(k, p, (size_t)(end - p));
        k->at += (size_t)(end - p) + BRACKET;
        *again = true;
        return false;
    }
    return timeout || begin ? paste_done(k, out) : false;
}

/* ---- sequences ---- */

static enum key_code tilde_key(int n)
{
    static const uint8_t map[] = {
        [1] = K_HOME, [2] = K_INSERT, [3] = K_DELETE, [4] = K_END, [5] = K_PGUP, [6] = K_PGDN,
        [7] = K_HOME, [8] = K_END, [11] = K_F1, [12] = K_F2, [13] = K_F3, [14] = K_F4,
        [15] = K_F5, [17] = K_F6, [18] = K_F7, [19] = K_F8, [20] = K_F9, [21] = K_F10,
        [23] = K_F11, [24] = K_F12,
    };
    return n > 0 && n < (int)sizeof map ? map[n] : K_NONE;
}

static enum key_code letter_key(char c)
{
    static const uint8_t map[128] = {
        ['A'] = K_UP, ['B'] = K_DOWN, ['C'] = K_RIGHT, ['D'] = K_LEFT, ['H'] = K_HOME,
        ['F'] = K_END, ['P'] = K_F1, ['Q'] = K_F2, ['R'] = K_F3, ['S'] = K_F4, ['M'] = K_ENTER,
    };
    return c >= 0 ? map[(int)c] : K_NONE; /* 7 bits */
}

/* The key of a control byte: Enter, Tab, ..., or Ctrl with a letter. */
static struct key control_key(unsigned char c)
{
    switch (c) {
    case '\r': return (struct key){.code = K_ENTER};
    case '\t': return (struct key){.code = K_TAB};
    case 0x08:
    case 0x7F: return (struct key){.code = K_BACKSPACE};
    case ESC: return (struct key){.code = K_ESC};
    default: return (struct key){.code = K_CHAR, .ctrl = true,
                                 .cp = c >= 1 && c <= 26 ? 'a' + c - 1u : '@' + (uint32_t)c};
    }
}

/* The key of a code point sent by the Kitty protocol or modifyOtherKeys. */
static struct key coded_key(int cp, bool ctrl)
{
    if (cp == 13 || cp == 9 || cp == 27 || cp == 127 || cp == 8)
        return control_key((unsigned char)cp);
    if (cp < 32)
        return (struct key){0};
    struct key k = {.code = K_CHAR, .cp = (uint32_t)cp};
    if (ctrl && k.cp >= 'A' && k.cp <= 'Z')
        k.cp += 'a' - 'A';
    return k;
}

/* The key of a report ESC [ < BUTTON ; X ; Y followed by M (pressed, moved) or m (released). Other
 * buttons than the left one are no key. */
static struct key mouse_key(const char *p, size_t n)
{
    enum { MODIFIERS = 4 | 8 | 16, MOTION = 32, WHEEL = 64 };
    int arg[3] = {0}, i = 0;
    for (size_t k = 3; k + 1 < n; k++) {
        if (p[k] == ';' && i < 2)
            i++;
        else if (p[k] >= '0' && p[k] <= '9')
            arg[i] = min_int(arg[i] * 10 + p[k] - '0', 0xFFFF);
        else
            return (struct key){0};
    }
    int button = arg[0] & ~MODIFIERS;
    struct key k = {.code = K_MOUSE, .x = arg[1] - 1, .y = arg[2] - 1};
    if (i != 2 || k.x < 0 || k.y < 0 || (p[n - 1] != 'M' && p[n - 1] != 'm'))
        return (struct key){0};
    if (button == WHEEL || button == WHEEL + 1)
        k.mouse = button == WHEEL ? MOUSE_WHEEL_UP : MOUSE_WHEEL_DOWN;
    else if ((button & ~MOTION) == 0)
        k.mouse = p[n - 1] == 'm' ? MOUSE_RELEASE : button & MOTION ? MOUSE_DRAG : MOUSE_PRESS;
    else
        k.code = K_NONE;
    return k;
}

/* The key of a sequence ESC [ PARAMETERS FINAL. */
static struct key csi_key(const char *p, size_t n)
{
    int arg[4] = {0}, n_arg = 0;
    char final = p[n - 1];
    if (p[2] == '<')
        return mouse_key(p, n);
    for (size_t i = 2; i + 1 < n && n_arg < 4; i++) {
        if (p[i] >= '0' && p[i] <= '9')
            arg[n_arg] = min_int(arg[n_arg] * 10 + p[i] - '0', 0x10FFFF);
        else if (p[i] == ';')
            n_arg++;
        else
            break;
    }
    int mods = arg[1] > 0 ? arg[1] - 1 : 0;
    struct key k = {0};
    if (final == '~' && arg[0] == 27)
        k = coded_key(arg[2], mods & 4);
    else if (final == '~')
        k.code = tilde_key(arg[0]);
    else if (final == 'u')
        k = coded_key(arg[0], mods & 4);
    else if (final == 'Z')
        k = (struct key){.code = K_TAB, .shift = true};
    else if (n == 4 && p[2] == '[' && final >= 'A' && final <= 'E')
        k.code = (enum key_code)(K_F1 + (final - 'A')); /* the Linux console */
    else
        k.code = letter_key(final);
    k.shift |= (mods & 1) != 0;
    k.alt |= (mods & 2) != 0;
    k.ctrl |= (mods & 4) != 0;
    return k;
}

/* Length of the escape sequence at p, 0 if it is incomplete. */
static size_t sequence_length(const char *p, size_t n)
{
    if (n < 2)
        return 0;
    if (p[1] == 'O')
        return n >= 3 ? 3 : 0;
    if (p[1] != '[')
        return 2;
    for (size_t i = 2; i < n && i < SEQUENCE_MAX; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '[' && i == 2)
            continue;
        if (c < 0x20 || c > 0x7E)
            return i; /* not a sequence: the bytes so far are dropped */
        if (c >= 0x40)
            return i + 1;
    }
    return n >= SEQUENCE_MAX ? SEQUENCE_MAX : 0;
}

static bool char_key(struct keys *k, const char *p, size_t n, bool timeout, struct key *out)
{
    unsigned char c = (unsigned char)p[0];
    if (c < 0x20 || c == 0x7F) {
        *out = control_key(c);
        k->at++;
        return true;
    }
    uint32_t cp;
    size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1, used;
    used = utf8_decode(p, n, &cp);
    if (n < want && used == n && cp == 0xFFFD && !timeout)
        return false;
    *out = (struct key){.code = K_CHAR, .cp = cp};
    k->at += used;
    return true;
}

static bool escape_key(struct keys *k, const char *p, size_t n, bool timeout, struct key *out)
{
    size_t used;
    bool alt = n > 2 && p[1] == ESC && (p[2] == '[' || p[2] == 'O'); /* Alt with an arrow */
    if (alt)
        p++, n--;
    if (n >= BRACKET && memcmp(p, paste_begin, BRACKET) == 0) {
        k->at += BRACKET + alt;
        k->state = PASTE_OPEN;
        k->cut = false;
        buf_clear(&k->paste);
        *out = (struct key){0};
        return true;
    }
    used = answer_length(p, n);
    if (used == 0 && n <= 2 && (timeout || !k->answer_due))
        used = SIZE_MAX;
    /* incomplete: even if the rest arrives late, it must not be taken for typed keys */
    if (used == 0)
        return false;
    if (used != SIZE_MAX) {
        *out = answer_key(p, used);
        k->answer_due = false;
        k->at += used + alt;
        return true;
    }
    used = sequence_length(p, n);
    if (used == 0 && !timeout)
        return false;
    if (used == 0 || (used == 2 && p[1] == ESC)) {
        *out = (struct key){.code = K_ESC};
        k->at += alt + (used == 0 && n > 1 && p[1] != '[' && p[1] != 'O' ? 1 : used ? 1 : n);
        return true;
    }
    k->at += used + alt;
    if (p[1] == '[' && used > 2) {
        *out = csi_key(p, used);
    } else if (p[1] == 'O' && used == 3) {
        *out = (struct key){.code = letter_key(p[2])};
    } else {
        k->at -= used - 1; /* Alt with a character: the character is decoded next */
        if (!char_key(k, p + 1, n - 1, timeout, out)) {
            k->at -= 1;
            return false;
        }
        alt = true;
    }
    out->alt |= alt;
    return true;
}

bool keys_next(struct keys *k, bool timeout, struct key *out)
{
    buf_add(&k->in, "", 0); /* in.p is not NULL */
    for (;;) {
        const char *p = k->in.p + k->at;
        size_t n = k->in.n - k->at;
        bool again = true;
        if (k->state == PASTE_OPEN && (paste_body(k, timeout, out) || k->state == PASTE_OPEN))
            return k->state == PASTE_NO;
        if (k->state == PASTE_ENDED) {
            while (again)
                if (paste_after(k, timeout, out, &again))
                    return true;
            return false;
        }
        if (n == 0)
            return false;
        p = k->in.p + k->at;
        n = k->in.n - k->at;
        bool got = (unsigned char)p[0] == ESC ? escape_key(k, p, n, timeout, out)
                                              : char_key(k, p, n, timeout, out);
        if (!got)
            return false;
        if (out->code != K_NONE)
            return true;
    }
}
