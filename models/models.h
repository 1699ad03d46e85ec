/* models.h - checkpoint folders on disk turned into named, checked tensors.
 *
 * A Hugging Face folder (config.json, *.safetensors with or without an index) is loaded into a
 * struct model (the target) or a struct draft. Families differ only in the switches below and in
 * their tensor-name tables (models/families/); no code outside this folder asks for a family. A
 * config value that is not supported is refused by name; so is a tensor that is missing,
 * superfluous, or of the wrong type or shape. Nothing here computes with weights: they keep the
 * type and layout of the file, and models_quantize() only marks those that a device quantizes to
 * FP8. All functions run on the thread that calls them and share no state.
 */
#pragma once

#include "kernels/base.h"

/* MAX_EOS: end tokens that a checkpoint names; MAX_STOP: with those of a chat format and a GGUF. */
enum { MAX_EOS = 32, MAX_STOP = MAX_EOS + 8, MAX_ROPE = 2, MAX_CAPTURE = 8, MAX_BLOCK = 17,
       MAX_CHOICES = 16, MAX_TAPS = 8 };

/* Where weights lie after loading. All bytes are read once then, for the digest. */
enum file_use {
    READ_COPY, /* in memory of their own */
    READ_MAP,  /* in the files, which are mapped (kernels/mapped.h); only tensors that are not
                  aligned to their element are copied. Nothing may write to weights then */
    READ_HEADERS, /* nowhere: only the headers of the files are read. Tensors have type, shape and
                     size, but no data, and there is no digest */
    READ_AUTO, /* mapped if the files have 64 MB or more and can be trusted not to change
                  (mapped_trusted()), copied otherwise */
};

/* How a checkpoint is loaded. */
struct loading {
    /* Progress: `done` of `total` bytes of `what` ("model", "draft") are read. Called on the
     * loading thread; NULL: it is not reported. */
    void (*report)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *arg;
    enum file_use use;
    bool (*stop)(void *arg); /* asked as often as progress is reported: whether loading shall end,
                                with ERR_USAGE; NULL: it goes on */
};

/* ---- rope ------------------------------------------------------------------------------------ */

enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_YARN,
    ROPE_LLAMA3,
    ROPE_PROPORTIONAL,
    ROPE_LONG, /* longrope: two lists of factors, one for contexts beyond original_max */
};
enum { MAX_FACTORS = 512 };

/* One table of rotation frequencies (formulas: Hugging Face modeling_rope_utils.py). */
struct rope {
    enum rope_kind kind;
    double theta, factor;
    double original_max, beta_fast, beta_slow; /* yarn; longrope: original_max */
    float factors[2][MAX_FACTORS]; /* longrope: short ones, long ones; each of a pair */
    int n_factor;
    bool beyond; /* longrope: the long ones are in use */
    double low_freq_factor, high_freq_factor;  /* llama3 */
    double mscale, mscale_all_dim;             /* yarn; 0: absent */
    double attention_factor;                   /* as given; 0: absent. longrope: always given */
    double partial;                            /* partial_rotary_factor; 1: all */
    double temper; /* struct layer's, as the config of the rope says it; 0: none */
    bool truncate;
    /* derived by rope_init() */
    int head_dim, rot, half; /* rot dimensions of a head are rotated, as half = rot / 2 pairs */
    float *inv_freq;         /* (half) */
    float cs_factor;         /* multiplies cos and sin */
};

/* Fills the derived fields for heads of head_dim. The rope owns inv_freq until rope_free(). False
 * and *e (ERR_MODEL) if the number of rotated dimensions is below 2 or odd. */
bool rope_init(struct rope *r, int head_dim, struct err *e);
void rope_free(struct rope *r);
/* Longrope has two tables: chooses that of a context of so many tokens, before the first pass. (The
 * references choose by the longest position of a pass, so that cells in the cache may be of the
 * other table; here all cells of a model are of one.) */
void rope_for_context(struct rope *r, int context);

/* ---- one transformer layer: switches and weights --------------------------------------------- */

struct layer {
    /* switches */
    int window;  /* 0: full attention; else W keys, self included: visible iff 0 <= q - k < W */
    int rope_id; /* index of config.rope; -1: none (NoPE) */
    int n_head, n_kv, head_dim, ffn;
    int kv_src; /* the layer whose K and V are read: its own index, or the owner's if K and V are
                   shared; in a frozen-KV draft a layer of the target */
    bool v_from_k; /* V is the K projection, normalised; there is no wv (gemma-4) */
    bool is_moe;
    bool qk_plain; /* q and k are normalised per head, without weights */
    float temper, temper_period; /* queries at position p are multiplied by 1 + temper ln(1 +
                                    floor((p + temper_from) / temper_period)) after rotation;
                                    temper 0: they are not */
    int temper_from;
    float expert_limit, dense_limit; /* of SILU clamped (ACT_SILU_CLAMP); 0: not clamped */

    /* weights; data == NULL where the family has none. Norms are (hidden) unless noted. From here
     * to the end of the struct there are tensors only (layer_tensors() relies on it). */
    struct tensor in_norm;              /* before attention (pre, sandwich) */
    struct tensor attn_norm;            /* after attention, before the residual add */
    struct tensor ffn_in_norm;          /* before the MLP */
    struct tensor ffn_norm;             /* after the MLP, before the residual add */
    struct tensor wq, wk, wv, wo;       /* (n_head * head_dim, in), (n_kv * head_dim, in) x 2,
                                           (hidden, n_head * head_dim) */
    struct tensor bq, bk, bv, bo;
    struct tensor q_norm, k_norm;       /* (head_dim), or whole projected rows with qk_norm_whole */
    struct tensor wgate;                /* (n_head * head_dim, in), or (n_head, in): of the output
                                           of attention */
    struct tensor sinks;                /* (n_head) */
    struct tensor gate, up, down;       /* (ffn, hidden) x 2, (hidden, ffn) */
    /* mixture of experts */
    struct tensor router, router_b;     /* (E, hidden), (E) */
    struct tensor choice_b;             /* (E), for the choice of experts only */
    struct tensor router_in;            /* (hidden), gemma-4's router.scale */
    struct tensor expert_scale;         /* (E), gemma-4's per_expert_scale */
    struct tensor gate_up, gate_up_s, gate_up_b, down_e, down_s, down_b; /* see k_moe */
    struct tensor ffn_norm_1, ffn_in_norm_2, ffn_norm_2; /* gemma-4's dense + MoE */
    /* gemma-4 */
    struct tensor ple_gate, ple_proj, ple_norm; /* (P, hidden), (hidden, P), (hidden) */
    struct tensor layer_scalar;                 /* (1) */
    /* EAGLE3, first layer only */
    struct tensor hidden_norm;
    /* DFlash 2, around attention and around the MLP: coefficients of the convolution of their
     * input, then of their output (k_conv) */
    struct tensor attn_conv, mlp_conv; /* (2 taps, hidden) */
    struct tensor attn_by, mlp_by;     /* (2 taps * hidden / group, hidden): what the row adds */
};

/* The layer's tensors as an array of *n, those without data included. */
static inline struct tensor *layer_tensors(struct layer *l, int *n)
{
    _Static_assert((sizeof(struct layer) - offsetof(struct layer, in_norm)) %
                   sizeof(struct tensor) == 0, "a struct layer ends in tensors");
    *n = (int)((sizeof *l - offsetof(struct layer, in_norm)) / sizeof(struct tensor));
    return &l->in_norm;
}

enum norm_place {
    PLACE_PRE,
    PLACE_POST,
    PLACE_SANDWICH,
    PLACE_PARALLEL, /* attention and a dense MLP read the same norm of x: in_norm */
};
enum moe_kind {
    MOE_NONE,
    MOE_ALONE,  /* experts in place of the dense MLP, or with a shared one beside them */
    MOE_GEMMA4, /* experts beside it, with norms of their own */
};
/* As k_moe's layouts. */
enum expert_store { STORE_MXFP4, STORE_IN_OUT, STORE_HALVES, STORE_IN_OUT_HALVES };

/* ---- the switches of a whole model ----------------------------------------------------------- */

struct config {
    char family[32]; /* shown to people, and chooses the chat format; no arithmetic depends on it */
    int hidden, n_layer, vocab;
    int max_pos;
    enum norm_kind norm;
    enum norm_place place;
    float eps;
    bool qk_norm, qk_norm_whole;
    bool v_norm; /* weightless norm of V */
    bool qkv_bias, o_bias, sinks;
    float attn_scale, attn_softcap, final_softcap;
    float embed_scale; /* rounded as the family rounds it */
    float residual_scale; /* of what attention and MLP add, before its norm */
    float logit_scale;
    float value_scale;  /* of what attention hands to Wo */
    int v_head_dim;     /* numbers of a head's values in the files, padded with zeros to head_dim
                           where they are loaded; 0: head_dim */
    float post_eps;     /* of norms after attention and MLP; 0: eps */
    enum norm_kind final_norm; /* before the head; NORM_NONE: norm */
    bool embed_norm;       /* the embedding is normalised, without weights */
    enum gate_kind gate;   /* of the output of attention, by wgate */
    bool gate_by_head;     /* one number a head, not one an element */
    enum act_kind act;
    float swiglu_limit;
    bool tied; /* the head is the embedding */
    int n_expert, top_k, expert_ffn;
    enum router_kind router;
    float router_cap;  /* soft-cap of the router's logits; 0: none */
    float route_scale; /* of the experts' weights */
    bool weigh_input;  /* weights multiply the experts' inputs */
    enum moe_kind moe;
    enum expert_store store;
    int window; /* W of all sliding layers (a model with several values is refused); 0: none */
    bool chunked; /* these layers see the chunk of W keys that the query is in */
    int ple;    /* width of a per-layer embedding; 0: none */
    int ple_vocab;
    struct rope rope[MAX_ROPE];
    int n_rope;
    bool rope_adjacent; /* the files' heads rotate the pairs (2i, 2i + 1): their rows are loaded in
                           another order, so that the pairs are (i, i + half) as everywhere */
    int stop[MAX_EOS]; /* eos ids of config and generation_config, without duplicates */
    int n_stop;
    int bos, pad; /* -1: none */
    struct sampling_defaults {
        bool given;
        float temperature, top_p, min_p; /* temperature 0: greedy */
        int top_k;
    } sampling; /* generation_config.json */
    int n_suppressed; /* tokens that it lets a reply never have, which aerie does not heed */
};

/* ---- target ---------------------------------------------------------------------------------- */

struct model {
    struct config cfg;
    struct layer *layer; /* (n_layer) */
    struct tensor embed; /* (vocab, hidden) */
    struct tensor norm;  /* (hidden) */
    struct tensor head;  /* (vocab, hidden); shares embed's data when tied */
    struct tensor ple_embed, ple_model_proj, ple_proj_norm; /* gemma-4 */
    char *dir;
    char *note;        /* a line for people about an unusual folder, or NULL */
    char *about;       /* what a GGUF file or a quantized folder is, for people: types and how many
                          matrices; NULL: another folder */
    const char *served_inputs; /* how a server quantizes the inputs of matrices, for people, a
                          constant text; NULL: not known */
    char *names;       /* memory of the tensors' names in model_shaped(), else NULL */
    uint64_t bytes;    /* of weights in memory */
    char sha[65];      /* hex SHA-256 over config.json and, by name, each tensor's name, type, shape
                          and 64-bit content digest; the same however the tensors are sharded */
    struct store *store; /* owns the memory and the names */
};

/* Loads a folder or a GGUF file. On failure *m is zeroed and *e names file, tensor and rule (kind
 * ERR_MODEL). how may be NULL: READ_COPY. The caller frees *m with model_free(), which also accepts
 * a zeroed model. */
bool model_load(struct model *m, const char *dir, const struct loading *how, struct err *e);
void model_free(struct model *m);
/* Whether READ_AUTO maps the files of a folder. Otherwise *why is the reason, a constant text, and
 * "they" are the weights. */
bool model_mappable(const char *dir, const char **why);
/* Calls fn once for every tensor that the model has: one with data or, without a checkpoint, with a
 * size. Stops and returns false when fn does. Used to upload weights to a device: if fn replaces
 * t->data, the host memory of the old data is returned to the system at once. A tied head is
 * skipped; it is set to its embedding afterwards. */
bool model_each(struct model *m, bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg,
                struct err *e);
/* Whether a tensor in host memory holds a NaN or an infinity; false of a packed one, which is not
 * looked at. */
bool tensor_is_odd(const struct tensor *t);
/* The first weight of which is_odd(t, arg) is true, or NULL: there is none, or `stop` was asked
 * for. Takes as long as reading all weights. */
const struct tensor *model_odd_weight(const struct model *m,
                                      bool (*is_odd)(const struct tensor *t, void *arg), void *arg,
                                      const struct stop *stop);
/* The model that the text of a config.json describes, without a checkpoint: every tensor has its
 * name, type (bf16; MXFP4 blocks where the family has them), shape and size, but no data. For
 * benchmarks: device_upload() lets the device generate random weights. False and *e as
 * model_load(). */
bool model_shaped(struct model *m, const char *config, struct err *e);
/* The layer whose KV cells layer l reads. */
static inline int model_kv_owner(const struct model *m, int l) { return m->layer[l].kv_src; }

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Whose KV cells the layers of a draft read. */
enum draft_kv {
    DRAFT_KV_NONE,   /* nobody's: there are no layers */
    DRAFT_KV_OWN,    /* their own, in the draft pool */
    DRAFT_KV_TARGET, /* the target's */
};

/* How the guesses of a block depend on the token before each. */
enum draft_edges {
    EDGES_NONE,  /* not at all: all nodes of a depth have the same children */
    EDGES_BIAS,  /* DSpark: logits + next e, e = prev[token] */
    EDGES_GATED, /* the same with sigmoid(edge [state; e] + edge_b) * e */
    EDGES_BEST,  /* DFlash 2: the `choices` best, and only they: logits + next (e * edge state) */
};

struct draft {
    const char *kind;  /* the drafter that runs it: a name in the table of engine/draft/drafter.c */
    struct config cfg; /* the draft's own switches, rope included; vocab is the target's */
    struct layer *layer;
    int target_hidden;
    int draft_vocab; /* rows of head */
    /* EAGLE3, P-EAGLE and DFlash */
    int capture[MAX_CAPTURE], n_capture; /* boundaries of the target: residual entering layer b */
    char capture_from[64];               /* where the list was found, as text for people */
    bool norm_before_residual, norm_output;
    struct tensor fc, fc_b;             /* (hidden, n_capture * target_hidden) */
    struct tensor input_norm;           /* (n_capture * target_hidden), before fc */
    struct tensor fc_norm[MAX_CAPTURE]; /* (target_hidden) each, before fc */
    struct tensor embed;                /* (vocab, hidden); without data the target's unscaled
                                           embedding is used */
    struct tensor norm, head;           /* (hidden), (draft_vocab, hidden); a head without data: the
                                           target's is used */
    int32_t *d2t;                       /* (draft_vocab) target id of each draft id; NULL: equal */
    /* DFlash and P-EAGLE */
    int block;       /* rows of a block, at most MAX_BLOCK; 0: the draft has no blocks */
    int block_depth; /* the depth that a block's first row guesses; each later row guesses one more.
                        0: that row is the pending token's own and guesses nothing (DFlash). 1: it
                        guesses (DSpark). 2: all rows are masks, and the pass over true cells has
                        guessed depth 1 (P-EAGLE) */
    int32_t mask;    /* the token of a block's other rows, an id of the target */
    enum draft_edges edges;
    int rank, choices;          /* of edges */
    struct tensor prev, next;   /* (vocab, rank), (draft_vocab, rank) */
    struct tensor edge, edge_b; /* (rank, hidden + rank), (rank); EDGES_BEST: (rank, hidden) */
    int taps, group;            /* of convolutions in the layers; taps 0: there are none */
    bool causal[2];  /* in full and in sliding layers: a row of a block sees the block up to itself
                        only */
    struct tensor context_norm; /* DFlash: (hidden), after fc */
    struct tensor mask_hidden;  /* P-EAGLE: (n_capture, target_hidden) in place of the states that
                                   a mask does not have */
    /* frozen-KV */
    struct tensor pre_proj, post_proj;  /* (hidden, 2 * target_hidden), (target_hidden, hidden) */
    struct tensor centroids;            /* (n_centroid, hidden) or absent */
    int32_t *token_order;               /* (vocab): the vocab / n_centroid ids of each centroid, one
                                           centroid after another */
    int n_centroid, centroid_top;
    int kv_full, kv_swa; /* target layers whose cells full and sliding draft layers read; -1: the
                            target has no layer of that type (nor has the draft) */

    char *note; /* a line for people about an unusual head or folder, or NULL */
    char *dir;
    char *names; /* as in struct model */
    uint64_t bytes;
    char sha[65];
    struct store *store;
};

/* The greatest depth that one pass over a block guesses; 0: the draft has no blocks. */
static inline int draft_block_reach(const struct draft *d)
{
    return d->block ? d->block - 1 + d->block_depth : 0;
}
/* The depth of a block's first guess, which row draft_block_first() - block_depth makes. */
static inline int draft_block_first(const struct draft *d)
{
    return d->block_depth > 1 ? d->block_depth : 1;
}
/* Guesses of a block. */
static inline int draft_block_guesses(const struct draft *d)
{
    return d->block ? draft_block_reach(d) + 1 - draft_block_first(d) : 0;
}
/* Whether the draft's pass over true cells guesses depth 1. */
static inline bool draft_guesses_next(const struct draft *d)
{
    return !d->block || d->block_depth > 1;
}

/* Loads a draft for `target`. `capture` (boundaries, e.g. "2,4,5") overrides the config's list;
 * NULL: the config's. On failure *d is zeroed and *e (ERR_MODEL) says which value does not fit the
 * target; the caller decides whether that is fatal. how may be NULL: READ_COPY. */
bool draft_load(struct draft *d, const char *dir, const struct model *target, const char *capture,
                const struct loading *how, struct err *e);
void draft_free(struct draft *d);
/* An EAGLE3 head without a checkpoint (see model_shaped(); tensor names begin with "draft."): one
 * Llama layer with the target's hidden size and heads, an MLP `ffn` wide and a draft vocabulary of
 * `vocab` tokens. */
bool draft_shaped(struct draft *d, const struct model *target, int ffn, int vocab, struct err *e);
/* The same of a block draft, which has the target's embedding and head: five layers with MLPs three
 * hidden sizes wide and five captures, as drafts of Qwen3 have, and seven guesses a block. dspark:
 * with a bias of rank 256 by the token before. */
bool block_draft_shaped(struct draft *d, const struct model *target, bool dspark, struct err *e);
/* Whether the head is the embedding's tensor; also of headers, which have no data. */
static inline bool draft_tied(const struct draft *d)
{
    return d->head.bytes && d->head.data == d->embed.data && d->head.name == d->embed.name;
}
/* As model_odd_weight(). */
const struct tensor *draft_odd_weight(struct draft *d,
                                      bool (*is_odd)(const struct tensor *t, void *arg), void *arg);
/* As model_each(). */
bool draft_each(struct draft *d, bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg,
                struct err *e);

/* ---- weights in FP8 -------------------------------------------------------------------------- */

/* "stored" or "fp8". NULL: `weights` is "stored", `draft_weights` is the value of `weights`. */
struct quant_opts {
    const char *weights, *draft_weights;
};

/* Marks the matrices that upload() quantizes to FP8 (kernels/fp8.h): the bf16 matrices q, k, v, o
 * and the dense MLP of every layer, the head (and a tied embedding), the projections of an EAGLE3
 * head's inputs, and DSpark's product of a bias. Routers, experts and norms keep their type. m and
 * d may be NULL. ERR_MODEL if an option was given by name and the model has no matrix to
 * quantize. */
bool models_quantize(struct model *m, struct draft *d, const struct quant_opts *o, struct err *e);
/* Marks these matrices of both, or removes the marks (fp8 false); m and d may be NULL. Returns how
 * many matrices there are. */
int models_mark(struct model *m, struct draft *d, bool fp8);
/* Which weights are quantized, as text for people; NULL: none. */
const char *models_quant_text(const struct quant_opts *o);

/* ---- safetensors, for the golden files too --------------------------------------------------- */

/* A strict reader of one file or of an index with its shards: every rule of the format is checked
 * before any data is allocated, and no allocation exceeds the file. */
struct safetensors;

/* Opens a file, or the checkpoint of a model folder. NULL and *e (ERR_MODEL) on failure; the caller
 * closes. */
struct safetensors *st_open(const char *path, struct err *e);
void st_close(struct safetensors *s); /* NULL is allowed */
int st_count(const struct safetensors *s);
/* Name, type and shape of entry i (ordered by file and offset); t->data is NULL. n_dim is the
 * true rank; of a rank above 4 only the first four dimensions are kept. */
const struct tensor *st_at(const struct safetensors *s, int i);
const struct tensor *st_find(const struct safetensors *s, const char *name); /* NULL: none */
/* Reads one tensor that st_at() or st_find() returned into dst (t->bytes long). */
bool st_read(struct safetensors *s, const struct tensor *t, void *dst, struct err *e);
