/* tokens_kit.h - the tokenizers of tests/tokenizers/, and the file from which a test opens one. */
#pragma once

#include "models/tokenizer/tokenizer.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define DATA "tests/tokenizers/"

static char *scratch; /* the test's folder */
static char *path;    /* of the tokenizer.json under test */

static inline int make_path(void **state)
{
    (void)state;
    scratch = scratch_folder();
    path = xasprintf("%s/tokenizer.json", scratch);
    return 0;
}

static inline int drop_path(void **state)
{
    (void)state;
    free(path);
    scratch_remove(scratch);
    return 0;
}

static inline void write_file(const void *p, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static inline struct tokenizer *open_json(const json_t *top)
{
    struct err e = {0};
    char *s = json_dumps(top, 0);
    write_file(s, strlen(s));
    free(s);
    struct tokenizer *t = tok_open(path, &e);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

static inline void read_text(const char *name, const char *suffix, struct buf *out)
{
    char file[96];
    struct err e;
    snprintf(file, sizeof file, DATA "%s%s", name, suffix);
    if (!buf_read_file(out, file, 8 << 20, &e))
        fail_msg("%s", e.msg);
}

/* NAME.json with its vocabulary put together again: the alphabet, then what each merge joins. */
static inline json_t *full_json(const char *name)
{
    struct buf text = {0}, lines = {0};
    read_text(name, ".json", &text);
    json_t *top = json_loadb(text.p, text.n, 0, NULL), *model = json_object_get(top, "model");
    const char *alphabet = json_string_value(json_object_get(model, "alphabet"));
    if (alphabet) {
        json_t *vocab = json_object(), *merges = json_array();
        read_text(strcmp(name, "gpt2") == 0 ? "gpt2" : "cl100k", ".merges", &lines);
        for (size_t n; *alphabet; alphabet += n) {
            n = (uint8_t)*alphabet < 0x80 ? 1 : 2;
            json_object_setn_new(vocab, alphabet, n, json_integer((int)json_object_size(vocab)));
        }
        for (char *p = strtok(lines.p, "\n"); p; p = strtok(NULL, "\n")) {
            char joined[1024];
            const char *gap = strchr(p, ' ');
            snprintf(joined, sizeof joined, "%.*s%s", (int)(gap - p), p, gap + 1);
            json_array_append_new(merges, json_string(p));
            json_object_set_new(vocab, joined, json_integer((int)json_object_size(vocab)));
        }
        json_object_set_new(model, "vocab", vocab);
        json_object_set_new(model, "merges", merges);
    }
    buf_free(&text);
    buf_free(&lines);
    return top;
}

static inline struct tokenizer *open_full(const char *name)
{
    json_t *top = full_json(name);
    struct tokenizer *t = open_json(top);
    json_decref(top);
    return t;
}
