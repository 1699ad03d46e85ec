/* coded_config.h - the quantization_config of a folder: what it names, refuses and ignores. */
#pragma once

#include "kernels/base.h"

#include <jansson.h>

enum coded_kind { KIND_FP8, KIND_MXFP8, KIND_NVFP4, KIND_MXFP4, KIND_INT8, KIND_INT4, N_KIND };

struct coded_config {
    bool found;         /* the folder has a quantization_config */
    char method[32];    /* "": it is not read here */
    char *path;         /* of the file that has it, or of config.json */
    bool kind[N_KIND];  /* formats that it names */
    int block[2];       /* rows and columns of FP8 blocks; 0: none named */
    const char *inputs; /* how a server quantizes the inputs of matrices, for people */
    json_t *modules;    /* keys: names of modules that are not quantized */
    char **pattern;     /* the same as patterns, compiled */
    int n_pattern;
    int64_t steps;      /* left for comparing names with patterns; below 0: answers are not known */
    bool all_linear; /* every module that is not left out is quantized, so far as is understood */
};

/* What a kind is called. */
const char *coded_kind_name(enum coded_kind k);

/* Whether checkpoints of a quant_method are read here. */
bool coded_method(const char *method);

/* The quant_method of a quantization_config, or that of a writer that names none: "modelopt",
 * "mlx"; "?": unknown. For as long as c. */
struct conf;
const char *coded_method_of(const struct conf *c);

/* Reads DIR/config.json, or DIR/hf_quant_config.json if the first has no quantization_config. False
 * and *e: not supported, with what to fetch instead. Either way the caller calls
 * coded_config_free(). */
bool coded_config_read(const char *dir, struct coded_config *q, struct err *e);
void coded_config_free(struct coded_config *q);

/* Whether the config says that the module of that name is not quantized. Names are compared below
 * whatever prefix a text model has. */
bool coded_ignores(struct coded_config *q, const char *module);
