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
 * Experts in FP8 stay FP8 (DT_E4M3) if all of a folder's can: scaled_makes_e4m3(). All other
 * matrices become bf16.
 *
 * Scales of inputs and of a KV cache do not concern weights. They are read, counted and not used.
 */
#ifndef AERIE_MODELS_CODED_H
#define AERIE_MODELS_CODED_H

#include "models/checkpoint/scaled.h"
#include "models/models.h"

struct coded_part { /* a tensor of the files */
    const struct tensor *t;
    const char *type, *path; /* type as in the header; path of its file */
    bool hidden;             /* set by coded_find(): codes or scales of a matrix, or a scale that
                                is not used; the binder does not see the tensor */
};

struct coded_files {
    struct coded_part *part; /* (n) by name */
    int n;
    /* Reads the whole of a tensor. False and *e: it failed. */
    bool (*read)(const void *arg, const struct tensor *t, void *dst, struct err *e);
    const void *arg;
};

struct coded_matrix {
    const struct tensor *code, *scale; /* tensors of the files */
    struct tensor t; /* what they make: bf16, or of experts blocks of E4M3, [rows, cols]; its name
                        is owned by the struct coded */
    struct scaled scaled;
};

struct coded {
    struct coded_matrix *m;
    int n;
    const char *inputs; /* how a server quantizes the inputs of matrices, for people; constant */
    char *about, *note; /* for people: what the folder is; contradictions. NULL: nothing */
};

/* Reads a folder's quantization_config and finds its matrices. v->n is 0 and v->about NULL if it
 * has none, or one that the family reads (mxfp4). False and *e: it is not supported, or tensors
 * contradict it or each other. Either way the caller calls coded_free(). */
bool coded_find(const struct coded_files *in, const char *dir, struct coded *v, struct err *e);
void coded_free(struct coded *v);

#endif
