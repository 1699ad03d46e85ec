/* scaled.h - matrices stored as codes and scales, as FP8, FP4 and integer checkpoints hold them.
 *
 * Element (i, j) of a matrix of `rows` x `cols` has a code and shares a scale with the elements of
 * its block: the scale at (i / block_rows, j / block_cols) of the matrix of scales. One scale for
 * all, one a row, one for 128 x 128 and one for 16 inputs of a row are the same rule with other
 * blocks; blocks at the edges may be short. A matrix may have one further number, `outer`, for all
 * its scales.
 *
 * The law of scaled weights. In float32, each operation rounded to nearest, ties to even, in this
 * order: code x scale, then times `outer`, or divided by it (`divide`). The number is rounded once
 * more, to bf16, and everywhere the weight is used it is that bf16 number: a scaled matrix computes
 * bit for bit what the bf16 matrix with these numbers computes. The first product is exact for
 * codes of FP4 with E4M3 or power-of-two scales, so that NVFP4 is rounded once before it is rounded
 * to bf16; with a scale of bf16 it is exact for all codes. Applying `outer` to sums instead is not
 * done.
 *
 * (OCP 8-bit Floating Point Specification, E4M3; OCP Microscaling Formats, E2M1 and E8M0.)
 */
#pragma once

#include "kernels/base.h"

enum code {
    CODE_E4M3, /* a byte */
    CODE_E2M1, /* four bits: byte j of a row holds elements 2 j (low) and 2 j + 1 */
    CODE_I8,   /* a byte, two's complement */
    CODE_U8,   /* a byte, less 128 */
    CODE_U4,   /* four bits in the order of CODE_E2M1, less 8 */
};

enum scale_type { SCALE_F32, SCALE_F16, SCALE_BF16, SCALE_E4M3, SCALE_E8M0 };

struct scaled {
    enum code code;
    enum scale_type type;
    int64_t rows, cols, block_rows, block_cols;
    size_t code_bytes; /* of a row of codes, padding included */
    float outer;       /* 1: none */
    bool divide;
    bool exact;        /* all scales are numbers of scaled_block_scale() */
};

/* Bytes that n codes take, without padding; of a scale; of a row of scales. */
size_t scaled_code_bytes(enum code c, int64_t n);
size_t scale_size(enum scale_type t);
size_t scaled_scale_bytes(const struct scaled *s);

float scale_value(enum scale_type t, const void *p);

/* Unpacks one row: s->cols bf16 numbers. codes: the row's; scales: those of its row of blocks.
 * False: a number is not finite, because a code or a scale is not, or because it is too large for
 * bf16; scaled_fault() tells which. */
bool scaled_row(const struct scaled *s, const uint8_t *codes, const void *scales, uint16_t *out);

/* The packed type (packed.h) whose blocks the rows can become, with the same numbers by the law:
 * E4M3 for its codes, Q8_0 and Q4_0 for integers, if the scales are exact and each is one of whole
 * blocks; E2M1 for NVFP4 and MXFP4 in whole blocks. DT_NONE: none. */
enum dtype scaled_packs_as(const struct scaled *s);
/* The type of the scales in these blocks: SCALE_BF16 of E4M3, SCALE_F16 of integers, else the type
 * that they have. */
enum scale_type scaled_block_scale(const struct scaled *s);
/* As scaled_row(), but makes blocks of scaled_packs_as(). */
bool scaled_blocks(const struct scaled *s, const uint8_t *codes, const void *scales, uint8_t *out);
/* Makes an `outer` that divides one that multiplies, of E2M1, with the same bf16 numbers. False: no
 * such float32 was found (nearly always there is one), and *s is unchanged. */
bool scaled_multiply(struct scaled *s);

/* Why scaled_row() or scaled_blocks() failed, for people: "the weight at [3, 5] is NaN".
 * *of_scale: the scales are at fault. row: for the message. */
void scaled_fault(const struct scaled *s, int64_t row, const uint8_t *codes, const void *scales,
                  bool *of_scale, char *why, size_t n);
