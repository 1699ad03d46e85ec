/* rows.h - a tensor that is made, row by row, of one or two tensors of a file which holds the same
 * weights in another order or another format.
 *
 * Reading such a tensor reads the rows it needs and converts them; nothing is kept. Any thread.
 */
#pragma once

#include "models/checkpoint/scaled.h"

/* Which row of which source row r is. */
enum row_order {
    ROWS_SAME, /* row r of the only source */
    ROWS_HALVES, /* each `group` rows of the source are pairs: 0, h, 1, h + 1, ... with h = group /
                    2 */
    ROWS_PAIRS,   /* rows of two sources in turn */
    ROWS_STACKED, /* `group` rows of the first source, as many of the second, and so on */
};

enum row_make {
    MAKE_SAME,   /* the bytes of the source */
    MAKE_TYPE,   /* its numbers as bf16 or f32, rounded once */
    MAKE_LESS_1, /* its numbers less 1, as f32 */
    MAKE_CODES,  /* of MXFP4 blocks: the codes, two neighbours in a byte, the first one low */
    MAKE_SCALES, /* of MXFP4 blocks: the scales */
    MAKE_SCALED, /* bf16 from codes, the first source, and their scales, the second: scaled.h */
    MAKE_BLOCKS, /* blocks of a packed type from the same: scaled_packs_as() */
    MAKE_OUTER,  /* E2M1 of blocks of NVFP4 and the numbers that multiply them: row_outer */
};

/* Numbers in float32, in a file, which multiply the weights of a source by the law of scaled
 * weights (scaled.h): each those of so many rows. MAKE_TYPE and MAKE_OUTER read them. */
struct row_outer {
    int file;
    uint64_t at;
    int64_t rows;            /* 0: there are none */
    const char *name, *path; /* as in row_source */
};

struct rows {
    struct row_source {
        int file;
        uint64_t at;
        enum dtype type;
        const char *name, *path; /* for messages; outlive this struct */
        struct row_outer outer;
    } from[2];
    int n_from;
    enum row_order order;
    enum row_make make;
    enum dtype to; /* of MAKE_TYPE and MAKE_BLOCKS */
    int64_t group; /* see row_order */
    struct scaled scaled; /* of MAKE_SCALED and MAKE_BLOCKS */
    int64_t elems; /* of a row of each source. ROWS_SAME: of a piece that is converted at once, any
                       divisor of the whole that whole blocks have */
    size_t bytes;  /* of a row of the tensor; rows_bytes() */
};

/* Bytes of a row of the tensor. */
size_t rows_bytes(const struct rows *r);

struct safetensors;
/* Reads bytes [from, from + n) of the tensor, whose sources are in the files of s. False and *e:
 * reading failed, or a number is not finite. */
bool rows_read(const struct safetensors *s, const struct rows *r, size_t from, size_t n, void *dst,
               struct err *e);
/* The file and the bytes that rows_read() reads first for byte `from`, about. */
uint64_t rows_place(const struct rows *r, size_t from, int *file);
