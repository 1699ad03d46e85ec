/* gguf_model.h - a GGUF file as the checkpoint that it was made of: the tensors under their
 * published names, shapes and orders, and the config.json that says what the metadata say.
 *
 * gguf_tensors.c undoes what the converter did to tensors; gguf_config.c reads the metadata. What
 * an architecture of the format is, both read from one row of a table (struct gguf_arch).
 */
#pragma once

#include "models/checkpoint/gguf.h"
#include "models/checkpoint/rows.h"

#include <jansson.h>

/* How the folders of a family have experts, which are one tensor of all in a GGUF. */
enum gguf_experts {
    EXPERTS_TOGETHER, /* so, too; gate and up in one tensor if the row's names have that */
    EXPERTS_SINGLE,   /* mlp.experts.N.gate_proj and so on */
    EXPERTS_GPT_OSS,  /* rows of gate and up in turn, blocks and scales of MXFP4 apart; of other
                         types the rows of gate before those of up */
};

/* A tensor, of a layer or beside them, whose published name is the architecture's own; NULL: it is
 * no tensor of the model, but says something that the config has. */
struct gguf_name {
    const char *gguf, *published;
};

struct gguf_meta;
struct gguf_arch {
    const char *name; /* value of general.architecture; keys begin with it */
    bool paired;      /* q and k rows are paired as an interleaved rope rotates them; the published
                         order has two halves */
    bool plus_1;      /* norms are stored as w + 1 */
    bool last_norm_plain; /* but for the one before the head */
    bool sandwich;        /* ffn_norm is pre_feedforward_layernorm */
    bool by_layer;        /* attention.head_count differs between layers */
    bool layer_norm;      /* its epsilon has another key */
    bool draft; /* a drafter: embedding and head may be the target's */
    bool yarn;  /* where rope.scaling.type is absent; else there is no scaling then */
    double eps; /* of norms where the key is absent; 0: the key is needed */
    enum gguf_experts experts;
    const struct gguf_name *names; /* a row without gguf ends them; NULL: none */
    void (*config)(struct gguf_meta *m); /* fills the config */
};

/* The row of the file's architecture. NULL and *e: it is not supported, and *e says what the file
 * is. */
const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e);

/* A tensor under its published name. */
struct gguf_made {
    char name[96];
    struct tensor t;   /* name, type, shape, bytes */
    enum dtype source; /* type in the file */
    bool in_place;     /* its bytes lie in the file: rows.from[0] */
    struct rows rows;  /* how it is read; elems == 0: as it lies there */
};

/* Calls add() for each tensor of the model, in the order of the file. False and *e: what a tensor
 * became cannot be undone. */
bool gguf_tensors(const struct gguf *g, const struct gguf_arch *a,
                  void (*add)(void *arg, const struct gguf_made *t), void *arg, struct err *e);

/* Whether the file has experts of gpt-oss in another type than MXFP4, in which they are published.
 * The matrices of all its layers are read as such then. */
bool gguf_plain_experts(const struct gguf *g);

/* The number of the model's layers, and of all: those behind them predict further tokens. False and
 * *e: the metadata do not say. */
bool gguf_layers(const struct gguf *g, const struct gguf_arch *a, int *layers, int *blocks,
                 struct err *e);

/* The text of the config.json. Adds a line to *note about keys that were not understood. False and
 * *e: the metadata are incomplete or ask for what is not supported. */
bool gguf_config(const struct gguf *g, const struct gguf_arch *a, struct buf *out, struct buf *note,
                 struct err *e);

/* What the file is, for people: the types of its tensors and how many there are of each, without
 * the scales of NVFP4 matrices, and the label that it gives itself. */
void gguf_about(const struct gguf *g, struct buf *out);
