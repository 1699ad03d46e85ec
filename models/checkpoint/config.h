/* config.h - reading config.json into a struct config: functions that the family files share.
 *
 * A family's configure() gets a struct arch: the JSON object that describes the text model, and the
 * structs to fill. Sizes are checked before memory of that size is allocated. The first error is
 * kept in the conf (keys.h), which arch_family() tests at the end. Functions that return nothing
 * report errors that way.
 */
#pragma once

#include "models/checkpoint/keys.h"
#include "models/models.h"

struct arch {
    struct conf top; /* the whole file */
    struct conf c;   /* the text model's object: text_config in a multimodal folder, else top.
                        Readers see the keys of the family's table */
    int n_tensor;    /* tensors of the checkpoint: an upper bound of the number of layers */
    bool has_head;   /* one of them is named lm_head.weight */
    struct config *cfg;
    struct layer *layer; /* (cfg->n_layer), owned by the caller, also after an error */
};

/* A family's defaults for absent keys; 0: the key is required. (head_dim 0: hidden / heads. kv 0:
 * equal to heads.) */
struct sizes {
    int hidden, ffn, layers, heads, kv, head_dim, vocab, max_pos;
    double eps;
};

/* The block of most families: reads the sizes and allocates the layers, each with full attention,
 * rope 0, its own K and V and no experts. Sets attn_scale to head_dim^-1/2, the other scales to 1,
 * both qkv_bias and o_bias to attention_bias; RMS norms at `place`, hidden_act (silu), a head of
 * its own unless tied. Refuses a quantization_config whose method is neither `quantized`, which may
 * be NULL, nor one whose matrices the reader of tensors makes (coded.h). False on error. */
bool arch_block(struct arch *a, const struct sizes *dflt, enum norm_place place,
                const char *quantized);

/* The list at key, with an entry for each layer; NULL: it is absent. Refuses a list of another
 * length, or, with `more`, of a smaller one. */
const json_t *arch_list(const struct arch *a, const char *key, bool more);
/* Whether entry i of the list at key is `yes`. Refuses what is neither `no` nor `yes`. */
bool arch_word(const struct arch *a, const char *key, int i, const char *no, const char *yes);

/* Reads layer_types; if absent, layer i is full iff (i + 1) % period == 0 (period 1: all are full,
 * 0: none is). Sets the window of the sliding layers to sliding_window; `window` is its default, 0:
 * the key is required if any layer is a sliding one. */
void arch_windows(struct arch *a, int period, int window);

/* The same; if layer_types is absent, layer i is full iff i % period == first % period. */
void arch_windows_from(struct arch *a, int period, int first, int window);

/* Reads no_rope_layers: the layers whose entry is 0 have no rope; without the list every
 * no_rope_layer_interval-th (4). The others have rope 0. */
void arch_no_rope(struct arch *a);

/* A mixture of experts in place of the dense MLP of some layers: the number of experts from key
 * `count`, of a token's from num_experts_per_tok, and their width from moe_intermediate_size; n, k
 * and ffn are the defaults. ffn 0: intermediate_size is their width. */
void arch_experts(struct arch *a, const char *count, int n, int k, int ffn);
/* Reads mlp_layer_types: which layers have experts; if absent, or no key of the family's, all but
 * the first `dense`. */
void arch_mlp_types(struct arch *a, int dense);
/* Layers with experts have a shared MLP of that width, too. (Otherwise ffn says nothing.) */
void arch_shared(struct arch *a, int ffn);

/* The activation that `key` names (`dflt` if absent). Refuses an unknown one. */
enum act_kind arch_act(const struct conf *c, const char *key, const char *dflt);

/* A tanh soft-cap: 0 (none) if the key is null, `dflt` if it is absent. */
float arch_softcap(const struct conf *c, const char *key, double dflt);

/* Whether the head is the embedding: tie_word_embeddings, `dflt` if absent. In a multimodal folder
 * the key beside text_config says so, and if absent whether the checkpoint has a head. */
bool arch_tied(const struct arch *a, bool dflt);

/* ---- rope ---- */

/* Where a family's configs keep the rope of a layer type. Newer configs have rope_parameters: one
 * object, or one object per layer type; older ones have a theta key beside rope_scaling. */
struct rope_spelling {
    const char *type;  /* key of this layer type in rope_parameters; NULL: there is one rope */
    const char *theta; /* older configs: key of theta, e.g. "rope_theta"; NULL: none */
    bool scaled;       /* rope_scaling applies to this layer type */
    bool partial;      /* partial_rotary_factor leaves dimensions of a head unrotated */
    double share;      /* the factor of a rope of type default that has none; 0: 1 */
    bool tempers;      /* llama_4_scaling_beta is a key of the rope (struct rope, `temper`) */
    bool is_long;      /* types are default and longrope, which su and yarn mean, too */
    struct rope dflt;  /* the rope of a config that has neither object */
};

#define ROPE_PLAIN(theta_)                                                                         \
    ROPE_PART(theta_, 1)
/* One that turns a part of a head. */
#define ROPE_PART(theta_, partial_)                                                                \
    {.kind = ROPE_DEFAULT, .theta = (theta_), .factor = 1, .partial = (partial_), .truncate = true}
/* The spelling of most families with one rope. */
#define ROPE_OLD(theta_) {.theta = "rope_theta", .scaled = true, .dflt = ROPE_PLAIN(theta_)}

/* Fills r from the config, except for the fields that rope_init() derives. Refuses what the
 * reference would ignore: keys that a rope of its type does not use, and one spelling beside
 * another that says something else. */
void arch_rope(const struct conf *c, const struct config *cfg, const struct rope_spelling *s,
               struct rope *r);

/* Gives full layers the rope table `full` and sliding ones `sliding`; -1: no rope. After
 * arch_windows(). */
void arch_rope_ids(struct arch *a, int full, int sliding);

/* Calls rope_init() for each table with the head_dim of the layers that use it. `path` names the
 * file in messages. False and *e (ERR_MODEL) if those layers differ in head_dim. */
bool arch_init_ropes(struct config *cfg, const struct layer *layer, const char *path,
                     struct err *e);

/* Reads the eos, bos and pad ids of a config. */
void arch_tokens(const struct conf *c, struct config *cfg);
/* The same from DIR/generation_config.json, and the sampling defaults there. A file that does not
 * exist is no error. */
bool generation_read(const char *dir, struct config *cfg, struct err *e);
