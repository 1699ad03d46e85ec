/* chats.h - chat formats over a vocabulary of bytes and markers, for targets of fuzzing. */
#pragma once

#include "models/chat/chat.h"
#include "tests/fuzz/tokens.h"

static const char *const fuzz_family[] = {"qwen3", "smollm3", "olmo3", "gemma3", "gemma4",
                                          "gpt_oss", "llama", "?", "raw"};
enum { FUZZ_FAMILIES = sizeof fuzz_family / sizeof *fuzz_family, FUZZ_VOCAB = 302 };

/* Byte b has the id b, the markers follow. Lives to the end of the process, as the chats do. */
KIT struct tokenizer *fuzz_bytes(void)
{
    static struct tokenizer *bytes;
    if (!bytes) {
        static struct fuzz_file file;
        struct buf json = {0};
        struct err e = {0};
        fuzz_tokenizer_json("", &json);
        if (!(bytes = tok_open(fuzz_file(&file, json.p, json.n), &e)))
            die("%s", e.msg);
        buf_free(&json);
    }
    return bytes;
}

KIT struct chat *fuzz_chat_of(unsigned which)
{
    static struct chat *chat[FUZZ_FAMILIES];
    static struct model m[FUZZ_FAMILIES]; /* outlive the chats */
    if (!chat[which]) {
        struct err e = {0};
        const char *family = fuzz_family[which];
        snprintf(m[which].cfg.family, sizeof m[which].cfg.family, "%s", family);
        m[which].cfg.bos = m[which].cfg.pad = -1;
        m[which].cfg.vocab = FUZZ_VOCAB;
        bool raw = !strcmp(family, "raw");
        if (!(chat[which] = chat_open(&m[which], fuzz_bytes(), raw, NULL, &e)))
            die("%s", e.msg);
        CHECK(chat_set_date(chat[which], "2026-01-31", &e));
    }
    return chat[which];
}
