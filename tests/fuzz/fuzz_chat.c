/* Chat formats: messages become a prompt in which no text forges a marker, and a reply's ids, in
 * any order, become text. The input is messages, each a byte that says who speaks and text up to a
 * NUL; the last byte chooses the format. Every input is read as ids of a reply, too. */
#include "tests/fuzz/chats.h"

const int fuzz_inputs = 2500;

enum { MESSAGES = 9 };

static struct tokenizer *bytes; /* fuzz_bytes() */

static int specials(const struct ids *a)
{
    int n = 0;
    for (int i = 0; i < a->n; i++) {
        CHECK(a->v[i] >= 0 && a->v[i] < FUZZ_VOCAB);
        n += tok_is_special(bytes, a->v[i]);
    }
    return n;
}

/* Cuts the input into messages; returns how many. plain: with texts that hold nothing special. */
static int cut(const uint8_t *data, size_t n, bool plain, struct message m[MESSAGES])
{
    int k = 0;
    for (size_t at = 0; at < n && k < MESSAGES;) {
        unsigned who = data[at++];
        const uint8_t *nul = memchr(data + at, 0, n - at);
        size_t len = nul ? (size_t)(nul - data) - at : n - at;
        struct message *x = &m[k];
        *x = (struct message){.role = k == 0 && who % 4 == 0 ? ROLE_SYSTEM : who % 2 ? ROLE_USER
                              : ROLE_ASSISTANT};
        x->text = plain ? xstrdup(len ? "x" : "") : fuzz_string(data + at, len);
        for (size_t i = 0; x->role == ROLE_ASSISTANT && who & 64 && i < len; i++)
            ids_add(&x->ids, plain ? 'x' : data[at + i] % 128 + (who & 128 ? 200 : 0));
        k++;
        at += len + 1;
    }
    return k;
}

static void free_messages(struct message *m, int n)
{
    for (int i = 0; i < n; i++) {
        free(m[i].text);
        ids_free(&m[i].ids);
    }
}

/* White space around a text is trimmed in some formats: such a text may be as good as empty. */
static bool has_only_marked_texts(const struct message *m, int n)
{
    for (int i = 0; i < n; i++)
        if (m[i].ids.n || (m[i].text[0] && (unsigned char)m[i].text[0] <= ' '))
            return false;
    return true;
}

static void render(const struct chat *c, const uint8_t *data, size_t n)
{
    static struct ids out, plain;
    struct message m[MESSAGES], p[MESSAGES];
    struct err e = {0};
    int k = cut(data, n, false, m), count;
    out.n = plain.n = 0;
    bool ok = chat_render(c, m, k, &out, &e);
    if (!ok) {
        fuzz_message(&e);
        CHECK(out.n == 0);
    }
    count = specials(&out);
    CHECK(cut(data, n, true, p) == k);
    if (has_only_marked_texts(m, k) && strcmp(chat_name(c), "raw") != 0) {
        bool same = chat_render(c, p, k, &plain, &e);
        CHECK(same == ok && specials(&plain) == count);
    }
    free_messages(m, k);
    free_messages(p, k);
}

/* The text consists of spans of its tokens, in order. */
static void check_spans(const struct ids *ids, const struct buf *text, int first,
                        const struct ids *ends)
{
    size_t at = 0, len;
    CHECK(ends->n ? first >= 0 && first + ends->n <= ids->n : text->n == 0);
    for (int i = 0; i < ends->n; i++) {
        const char *p = tok_bytes(bytes, ids->v[first + i], &len);
        size_t own = (size_t)ends->v[i] - at;
        CHECK((size_t)ends->v[i] >= at && own <= len &&
              (!own || memmem(p, len, text->p + at, own)));
        at += own;
    }
    CHECK(at == text->n);
}

static void read_reply(const struct chat *c, const uint8_t *data, size_t n)
{
    static struct buf out;
    static struct ids ids, ends, spans;
    struct chat_reader r;
    enum channel channel;
    size_t room = 0, before;
    int first = 0;
    buf_clear(&out);
    ids.n = ends.n = spans.n = 0;
    chat_reader_init(&r, c);
    r.ends = &ends;
    for (size_t i = 0; i < n; i++) {
        int id = data[i] >= 0xE0 ? 256 + (data[i] - 0xE0) : data[i] == 0xDF ? 300 : data[i] == 0xDE
                     ? 301 : data[i];
        size_t len;
        room += tok_bytes(bytes, id, &len) ? len : 0;
        ids_add(&ids, id);
        before = out.n;
        chat_reader_push(&r, id, &out, &channel);
        CHECK((int)channel >= CHAN_FINAL && (int)channel <= CHAN_COMMENTARY);
        if (out.n > before)
            chat_reader_spans(&r, before, out.n - before, &first, &spans);
    }
    before = out.n;
    chat_reader_end(&r, &out);
    if (out.n > before)
        chat_reader_spans(&r, before, out.n - before, &first, &spans);
    CHECK(out.n <= room);
    check_spans(&ids, &out, first, &spans);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct chat *c = fuzz_chat_of(fuzz_choice(data, &n) % FUZZ_FAMILIES);
    bytes = fuzz_bytes();
    render(c, data, n);
    read_reply(c, data, n);
    return 0;
}
