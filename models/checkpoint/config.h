/* config.h - config.json turned into switches: what the family files share.
 *
 * A family's configure() reads a struct arch: the object that describes the text model, and what
 * is filled from it. Sizes are checked before anything is allocated by them. Errors stick to the
 * conf (json.h), so a configure() tests once, at its end.
 */
#ifndef AERIE_MODELS_CONFIG_H
#define AERIE_MODELS_CONFIG_H

#include "models/checkpoint/json.h"
#include "models/models.h"

struct arch {
    struct conf top; /* the whole file */
    struct conf c;   /* what describes the text model: text_config if there is one, else top */
    int n_tensor;    /* of the checkpoint: no model has more layers than tensors */
    struct config *cfg;
    struct layer *layer; /* (cfg->n_layer), owned by the caller, also after an error */
};

/* What a family assumes where the config is silent; 0: the key must be there. (head_dim 0: hidden
 * divided by heads. kv 0: as many as heads.) */
struct sizes {
    int hidden, ffn, layers, heads, kv, head_dim, vocab, max_pos;
    double eps;
};

/* Reads the sizes, allocates the layers, and sets each: full attention, rope 0, its own K and V,
 * no experts. Also attn_scale = head_dim^-1/2, embed_scale 1, biases by attention_bias, qkv_bias
 * and o_bias being the same. False on error. */
bool arch_sizes(struct arch *a, const struct sizes *dflt);

/* Reads layer_types, or without it makes layer i full iff (i + 1) % period == 0 (period 1: all
 * full, 0: none), and gives sliding layers the window. `window` is what a silent config means; 0:
 * it must be there when a layer slides. */
void arch_windows(struct arch *a, int period, int window);

/* Refuses an activation that is not known. `key` may be absent: `dflt`. */
enum act_kind arch_act(const struct conf *c, const char *key, const char *dflt);

/* A tanh soft-cap: 0 (none) for null, `dflt` where the key is absent. */
float arch_softcap(const struct conf *c, const char *key, double dflt);

/* Refuses attention that looks ahead. */
void arch_causal(const struct conf *c);

/* Refuses a quantisation other than `method` (NULL: any). */
void arch_quantization(struct arch *a, const char *method);

/* ---- rope ---- */

/* How a layer type's rope is spelled. Newer configs have rope_parameters, flat or one object for
 * each layer type; older ones a theta key beside rope_scaling. */
struct rope_spelling {
    const char *type;  /* key of this layer type in rope_parameters */
    const char *theta; /* older spelling: "rope_theta" */
    bool scaled;       /* rope_scaling and a flat rope_parameters hold for this layer type */
    struct rope dflt;  /* what a silent config means: kind, theta, partial, factor */
};

#define ROPE_PLAIN(theta_)                                                                         \
    {.kind = ROPE_DEFAULT, .theta = (theta_), .factor = 1, .partial = 1, .truncate = true}

/* Fills r, short of what rope_init() derives. */
void arch_rope(const struct conf *c, const struct config *cfg, const struct rope_spelling *s,
               struct rope *r);

/* rope_init() for each table, for the heads of the layers that use it. `path` is for messages. */
bool arch_init_ropes(struct config *cfg, const struct layer *layer, const char *path,
                     struct err *e);

/* Reads eos, bos and pad ids of a config, and of DIR/generation_config.json with its sampling. */
void arch_tokens(const struct conf *c, struct config *cfg);
bool generation_read(const char *dir, struct config *cfg, struct err *e);

#endif
