/* pickle.h - what a pickle of tensors says, read as data: nothing is imported, called or executed.
 *
 * A pickle is a program for a stack machine whose opcodes may import and call anything. Here the
 * opcodes that torch.save() writes for numbers, texts, lists, dicts and tensors build values;
 * every other opcode, and every class or function but those of tensors, is refused with its name
 * and its offset. Sizes are bounded before memory is taken. Any thread.
 */
#pragma once

#include "kernels/base.h"

enum {
    PICKLE_BYTES = 16 << 20,
    PICKLE_VALUES = 1 << 20,
};

enum pickle_kind {
    PK_NONE, PK_BOOL, PK_INT, PK_FLOAT, PK_TEXT,
    PK_LIST,    /* a list or a tuple */
    PK_DICT,    /* key, value, key, value, ... */
    PK_GLOBAL,  /* the name of a class or function: "torch FloatStorage" */
    PK_STORAGE, /* class, key, number of elements */
    PK_TENSOR,  /* storage, first element, sizes, strides, and a dtype (PK_GLOBAL) or PK_NONE */
};

struct pickle_value {
    enum pickle_kind kind;
    int64_t i; /* of PK_INT and PK_BOOL */
    double f;
    const char *s; /* of PK_TEXT and PK_GLOBAL: n bytes of the pickle */
    size_t n;
    int *item; /* (n_item) indices of values; owned */
    int n_item;
};

struct pickle {
    struct pickle_value *v;
    int n;
    int root;
};

/* Reads the n bytes of a pickle, which must stay as long as *p. False and *e (ERR_USAGE): one line;
 * *p is empty then. */
bool pickle_read(struct pickle *p, const uint8_t *bytes, size_t n, struct err *e);
void pickle_free(struct pickle *p);
/* Item k of a value; a value of PK_NONE if there is none. */
const struct pickle_value *pickle_item(const struct pickle *p, const struct pickle_value *v, int k);
bool pickle_is(const struct pickle_value *v, const char *text); /* a text or a name that equals
                                                                   it */
