/* tokens.h - tokenizers for targets of fuzzing, and what must hold for every tokenizer. */
#pragma once

#include "models/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static const char *const fuzz_markers[] = {
    "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|channel>",
    "<channel|>",
    "<|tool_response>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>",
    "<|call|>",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
};
enum { FUZZ_MARKERS = sizeof fuzz_markers / sizeof *fuzz_markers };

/* The vocabulary of a byte-level tokenizer, "!":33 and so on: byte b has the id b. */
KIT void fuzz_byte_vocab(struct buf *out)
{
    buf_char(out, '{');
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
        struct buf c = {0};
        buf_utf8(&c, plain ? b : other++);
        buf_printf(out, "%s\"%s%s\":%u", b ? "," : "", b == '"' || b == '\\' ? "\\" : "", c.p, b);
        buf_free(&c);
    }
    buf_char(out, '}');
}

/* tokenizer.json of bytes and the markers of all chat formats; pre: JSON of more pre_tokenizers. */
KIT void fuzz_tokenizer_json(const char *pre, struct buf *out)
{
    static const char level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    buf_str(out, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":");
    fuzz_byte_vocab(out);
    buf_str(out, "},\"added_tokens\":[");
    for (int i = 0; i < FUZZ_MARKERS; i++)
        buf_printf(out, "{\"id\":%d,\"content\":\"%s\",\"special\":true},", 256 + i,
                   fuzz_markers[i]);
    buf_str(out, "{\"id\":300,\"content\":\"<think>\",\"special\":false},");
    buf_printf(out, "{\"id\":301,\"content\":\"</think>\",\"special\":false}],\"decoder\":%s,",
               level);
    buf_printf(out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s%s%s]}}", pre,
               *pre ? "," : "", level);
}

/* Decoding token by token gives what decoding all at once gives. */
KIT void fuzz_decode(const struct tokenizer *t, const struct ids *ids, struct buf *out)
{
    static struct buf piecewise;
    struct tok_stream s = {0};
    buf_clear(out);
    buf_clear(&piecewise);
    tok_decode(t, ids->v, ids->n, out);
    for (int i = 0; i < ids->n; i++)
        tok_stream_push(&s, t, ids->v[i], &piecewise);
    tok_stream_flush(&s, &piecewise);
    CHECK(piecewise.n == out->n && (!out->n || memcmp(piecewise.p, out->p, out->n) == 0));
}

/* Encodes and checks the ids; false: refused. */
KIT bool fuzz_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     struct ids *ids)
{
    struct err e = {0};
    ids->n = 0;
    if (!tok_encode(t, text, n, flags, ids, &e)) {
        fuzz_message(&e);
        CHECK(ids->n == 0);
        return false;
    }
    for (int i = 0; i < ids->n; i++)
        CHECK(ids->v[i] >= 0 && ids->v[i] < tok_vocab(t));
    return true;
}
