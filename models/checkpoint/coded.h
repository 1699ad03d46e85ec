/* coded.h - folders of quantized safetensors as inference servers load them: which matrices are
 * stored as codes and scales, and what their quantization_config says.
 *
 * Formats: compressed-tensors FP8 (a scale a tensor, a row, or a block), INT8, NVFP4, MXFP4 and
 * pack-quantized INT4 and INT8, symmetric; modelopt FP8 and NVFP4; fp8 (weight_scale_inv). The
 * tensors' names, types and shapes decide how a matrix is read (scaled.h). The config decides what
 * is refused, and is compared with the tensors: a format that the config does not name is refused;
 * a quantized matrix that the config ignores, or one that is not quantized though the config says
 * so, gives a notice.
 *
 * A matrix stays packed if blocks of a packed type have the same numbers (scaled_packs_as()): FP8
 * as E4M3, FP4 as E2M1, INT8 as Q8_0, INT4 as Q4_0. The experts of a folder stay so if all can, as
 * one type. All others become bf16, and so do those that the model reads otherwise than as a matrix
 * of a product (st_as_bf16()).
 *
 * Scales of inputs and of a KV cache do not concern weights. They are read, counted and not used.
 */
#pragma once

#include "models/checkpoint/safetensors.h"

struct coded_matrix {
    struct st_entry *code, *scale; /* tensors of the files */
    struct tensor t; /* what they make: bf16 or blocks of a packed type, [rows, cols]; its name is
                        owned by the struct coded */
    struct scaled scaled;
};

struct coded {
    struct coded_matrix *m;
    int n;
    const char *inputs; /* how a server quantizes the inputs of matrices, for people; constant */
    char *about, *note; /* for people: what the folder is; contradictions. NULL: nothing */
};

/* Reads a folder's quantization_config, finds its matrices among the tensors that s has by name,
 * and marks those that are hidden. v->n is 0 and v->about NULL if it has none, or one that the
 * family reads (mxfp4). False and *e: it is not supported, or tensors contradict it or each other.
 * Either way the caller calls coded_free(). */
bool coded_find(struct safetensors *s, struct coded *v, struct err *e);
void coded_free(struct coded *v);
