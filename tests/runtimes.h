/* runtimes.h - what engine tests share: runtimes over the fixtures, prompts, greedy runs. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cycle/cycle.h"
#include "engine/run/device.h"
#include "models/chat/chat.h"

/* A target, perhaps a head, and a runtime on the CPU. */
struct bed {
    struct device dev;
    struct model m;
    struct draft d;
    bool has_draft;
    struct tokenizer *tok;
    struct chat *chat;
    struct runtime r;
};

static inline void must(bool ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

/* False: there is no such device here. precision: as of device_open(). */
static inline bool bed_device(struct bed *b, const char *device, const char *precision)
{
    struct err e = {0};
    *b = (struct bed){0};
    if (device_open(&b->dev, device, 2, precision, &e))
        return true;
    print_message("# no %s: %s\n", device, e.msg);
    return false;
}

static inline void bed_load(struct bed *b, const char *target, const char *draft)
{
    struct err e = {0};
    must(model_load(&b->m, target, NULL, &e), &e);
    if (draft) {
        must(draft_load(&b->d, draft, &b->m, NULL, NULL, &e), &e);
        b->has_draft = true;
    }
}

static inline void bed_models(struct bed *b, const char *target, const char *draft)
{
    assert_true(bed_device(b, "cpu", NULL));
    bed_load(b, target, draft);
}

static inline void bed_runtime(struct bed *b, const struct runtime_shape *shape)
{
    struct err e = {0};
    must(runtime_open(&b->r, b->dev, &b->m, b->has_draft ? &b->d : NULL, shape, &e), &e);
}

static inline void bed_chat(struct bed *b, const char *target)
{
    struct err e = {0};
    b->tok = tok_open(target, &e);
    must(b->tok != NULL, &e);
    b->chat = chat_open(&b->m, b->tok, false, NULL, &e);
    must(b->chat != NULL, &e);
}

/* Switches one historical fault of a runtime; variant 0: off. */
static inline void runtime_bug(struct runtime *r, enum bug b, int variant)
{
    struct bugs on = r->bugs;
    bug_switch(&on, b, variant);
    runtime_set_bugs(r, &on);
}

static inline void bed_stop(struct bed *b)
{
    b->r.n_stop = chat_stops(b->chat, b->r.stop);
}

static inline void bed_close(struct bed *b)
{
    runtime_close(&b->r);
    chat_close(b->chat);
    tok_close(b->tok);
    draft_free(&b->d);
    model_free(&b->m);
    device_close(&b->dev);
}

/* Runs the prompt already in l->tok, keeping the drafter in step when a shape is given. */
static inline void lane_prompt(struct runtime *r, struct lane *l, int chunk,
                               const struct tree_shape *s)
{
    struct err e = {0};
    int n = l->tok.n;
    while (l->seq.committed < n) {
        int upto = min_int(l->seq.committed + chunk, n);
        must(lane_extend(r, l, upto, upto == n, s != NULL, s ? s->topk : 1, &e), &e);
    }
}

/* Up to max more tokens, or to the end of the reply; returns cycles run. */
static inline int lane_run(struct runtime *r, struct lane *l, int max, const struct tree_shape *s)
{
    struct err e = {0};
    int cycles = 0, end = l->tok.n + max;
    while (!l->stopped && l->tok.n < end && l->tok.n < r->context) {
        struct step_limits lim = {end - l->tok.n};
        must(lane_step(r, &l, &lim, 1, s, &e), &e);
        cycles++;
    }
    return cycles;
}

static inline void chat_prompt(struct bed *b, const char *text, struct ids *out)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    out->n = 0;
    must(chat_render(b->chat, &m, 1, out, &e), &e);
}

/* Calls fn for each line of tests/prompts.txt. */
static inline int each_prompt(void (*fn)(int i, const char *kind, const char *text, void *arg),
                              void *arg)
{
    FILE *f = fopen("tests/prompts.txt", "r");
    char line[8192];
    int n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t');
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || !tab)
            continue;
        *tab = '\0';
        fn(n++, line, tab + 1, arg);
    }
    fclose(f);
    return n;
}
