/* synthetic.c - see synthetic.h. The configs hold what the published config.json files do, as far
 * as it decides a shape or a switch; the families' own readers turn them into models. */
#include "engine/tools/synthetic.h"

#include "kernels/ascii.h"
#include "kernels/packed.h"

#define GPT_OSS(hidden, layers, experts, heads, kv, vocab)                                         \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":" #hidden ",\"intermediate_size\":" #hidden ","   \
    "\"num_hidden_layers\":" #layers ",\"num_local_experts\":" #experts ","                        \
    "\"num_experts_per_tok\":4,\"num_attention_heads\":" #heads ","                                \
    "\"num_key_value_heads\":" #kv ",\"head_dim\":64,\"vocab_size\":" #vocab ","                   \
    "\"max_position_embeddings\":131072,"                                                          \
    "\"sliding_window\":128,\"rope_theta\":150000,\"rope_scaling\":{\"rope_type\":\"yarn\","       \
    "\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,\"truncate\":false,"                           \
    "\"original_max_position_embeddings\":4096},\"eos_token_id\":200002}"

#define GEMMA_3(hidden, ffn, layers, heads, kv, head_dim, window, scalar, max, vocab, more)        \
    "{\"model_type\":\"gemma3_text\",\"hidden_size\":" #hidden ",\"intermediate_size\":" #ffn ","  \
    "\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads ","                        \
    "\"num_key_value_heads\":" #kv ",\"head_dim\":" #head_dim ",\"sliding_window\":" #window ","   \
    "\"query_pre_attn_scalar\":" #scalar ",\"max_position_embeddings\":" #max ","                  \
    "\"vocab_size\":" #vocab more ",\"eos_token_id\":1}"

#define LINEAR_8 ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}"

/* Without per-layer embeddings; full layers use K as V. */
#define GEMMA_4(hidden, ffn, layers, heads, kv, full_kv, more)                                     \
    "{\"model_type\":\"gemma4_text\",\"hidden_size\":" #hidden ",\"intermediate_size\":" #ffn ","  \
    "\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads ","                        \
    "\"num_key_value_heads\":" #kv ",\"num_global_key_value_heads\":" #full_kv ","                 \
    "\"attention_k_eq_v\":true,\"head_dim\":256,\"global_head_dim\":512,"                          \
    "\"sliding_window\":1024,\"hidden_size_per_layer_input\":0,"                                  \
    "\"final_logit_softcapping\":30,\"vocab_size\":262144,"                                       \
    "\"max_position_embeddings\":262144" more ",\"eos_token_id\":1}"

#define EXPERTS_8_OF_128(width)                                                                    \
    ",\"enable_moe_block\":true,\"num_experts\":128,\"top_k_experts\":8,"                          \
    "\"moe_intermediate_size\":" #width

static const struct {
    const char *name, *brief;
    int draft_ffn; /* 0: as wide as the target's */
    const char *config;
} known[] = {
    {"gpt-oss-20b", "20b", 17280, GPT_OSS(2880, 24, 32, 64, 8, 201088)},
    {"gpt-oss-120b", "120b", 17280, GPT_OSS(2880, 36, 128, 64, 8, 201088)},
    {"gemma-3-270m", "g270m", 0, GEMMA_3(640, 2048, 18, 4, 1, 256, 512, 256, 32768, 262144, "")},
    {"gemma-3-1b", "g1b", 0, GEMMA_3(1152, 6912, 26, 4, 1, 256, 512, 256, 32768, 262144, "")},
    {"gemma-3-4b", "g4b", 0,
     GEMMA_3(2560, 10240, 34, 8, 4, 256, 1024, 256, 131072, 262208, LINEAR_8)},
    {"gemma-3-27b", "g27b", 0,
     GEMMA_3(5376, 21504, 62, 32, 16, 128, 1024, 168, 131072, 262208, LINEAR_8)},
    {"gemma-4-E4B", "gE4b", 0,
     "{\"model_type\":\"gemma4_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
     "\"num_hidden_layers\":42,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"head_dim\":256,\"global_head_dim\":512,\"sliding_window\":512,"
     "\"num_kv_shared_layers\":18,\"hidden_size_per_layer_input\":256,"
     "\"final_logit_softcapping\":30,\"vocab_size\":262144,"
     "\"max_position_embeddings\":131072,\"eos_token_id\":1}"},
    {"gemma-4-31B", "g31b", 0, GEMMA_4(5376, 21504, 60, 32, 16, 4, "")},
    {"gemma-4-26B-A4B", "g26b", 0, GEMMA_4(2816, 2112, 30, 16, 8, 2, EXPERTS_8_OF_128(704))},
    {"qwen3-30b-a3b", "q30b", 0,
     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"intermediate_size\":6144,"
     "\"num_hidden_layers\":48,\"num_attention_heads\":32,\"num_key_value_heads\":4,"
     "\"head_dim\":128,\"num_experts\":128,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"rope_theta\":1000000,"
     "\"vocab_size\":151936,\"tie_word_embeddings\":false,"
     "\"max_position_embeddings\":262144,\"eos_token_id\":151645}"},
    /* not published: the layers and experts of gpt-oss, so narrow that a processor runs them */
    {"small-moe-32", "m32", 512, GPT_OSS(128, 24, 32, 4, 2, 2048)},
    {"small-moe-128", "m128", 512, GPT_OSS(128, 36, 128, 4, 2, 2048)},
};
enum { N_KNOWN = LEN(known), DRAFT_VOCAB = 32000 };

/* What a name asks for. */
struct wanted {
    int model;        /* of known[]; -1: there is no such model, type or draft */
    enum dtype type;  /* of its matrices: what follows a colon, or DT_BF16 */
    const char *draft; /* what follows a plus: "dflash" or "dspark"; or NULL: an EAGLE3 head */
};

/* The packed type whose name is the first n characters; DT_NONE: there is none. */
static enum dtype packed_named(const char *name, size_t n)
{
    char own[16];
    snprintf(own, sizeof own, "%.*s", (int)n, name);
    for (enum dtype t = DT_Q8_0; t <= DT_E2M1; t++)
        if (ascii_same(own, dtype_name(t)))
            return t;
    return DT_NONE;
}

static struct wanted find_model(const char *name, struct err *e)
{
    size_t n = strcspn(name, ":+"), end = strcspn(name, "+");
    struct wanted w = {-1, name[n] == ':' ? packed_named(name + n + 1, end - n - 1) : DT_BF16,
                       name[end] ? name + end + 1 : NULL};
    bool ok = w.type && (!w.draft || !strcmp(w.draft, "dflash") || !strcmp(w.draft, "dspark"));
    for (int i = 0; i < N_KNOWN && ok; i++)
        if (strlen(known[i].name) == n && !strncmp(known[i].name, name, n))
            w.model = i;
    if (w.model < 0)
        err_set(e, ERR_USAGE, "there is no synthetic model \"%.60s\"; expected one of "
                "gpt-oss-20b, gpt-oss-120b, gemma-3-270m, gemma-3-1b, gemma-3-4b, gemma-3-27b, "
                "gemma-4-E4B, gemma-4-31B, gemma-4-26B-A4B, qwen3-30b-a3b, small-moe-32, "
                "small-moe-128, maybe with a packed type, as in gemma-3-27b:Q4_0, or with a block "
                "draft, as in gpt-oss-20b+dflash or gemma-3-27b:Q4_0+dspark", name);
    return w;
}

/* ---- packed matrices ------------------------------------------------------------------------ */

struct packing {
    const struct model *m;
    enum dtype type;
    size_t saved; /* bytes */
};

/* The type that llama.cpp takes for rows of n elements which are no whole blocks of 256. */
static enum dtype type_of_rows(enum dtype t, int64_t n)
{
    if (n % packed_format(t)->elements == 0)
        return t;
    return t == DT_Q4_K ? DT_Q5_0 : t == DT_Q5_K ? DT_Q5_1 : t == DT_Q6_K ? DT_Q8_0 : t;
}

/* Turns a matrix of bf16, or experts, into one of a packed type, if its rows are whole blocks; of
 * E4M3 and E2M1, as FP8 and FP4 folders are, neither the embeddings nor the head. */
static bool pack_matrix(struct tensor *t, void *arg, struct err *)
{
    struct packing *p = arg;
    size_t before = t->bytes;
    const bool folder = p->type == DT_E4M3 || p->type == DT_E2M1, experts = t->n_dim == 3,
               matrix = t->n_dim == 2 &&
                        !(folder && (t == &p->m->embed || t == &p->m->head));
    if (t->type != DT_BF16 || t->by_row || !before || (!matrix && !experts))
        return true;
    const enum dtype type = type_of_rows(p->type, t->dim[t->n_dim - 1]);
    if (!dtype_bytes_fit(type, t->n_dim, t->dim, &t->bytes))
        return true;
    t->type = type;
    p->saved += before - t->bytes;
    return true;
}

/* Packs a model's matrices. */
static void pack(struct model *m, enum dtype type)
{
    struct packing p = {.m = m, .type = type};
    bool tied = m->cfg.tied;
    model_each(m, pack_matrix, &p, NULL);
    if (tied)
        m->head = m->embed;
    m->bytes -= p.saved;
}

bool synthetic_known(const char *name, struct err *e)
{
    return find_model(name, e).model >= 0;
}

bool synthetic_open(struct model *m, struct draft *d, const char *name, const char **brief,
                    struct err *e)
{
    static char own[40]; /* a program makes up one model */
    const struct wanted w = find_model(name, e);
    if (w.model < 0)
        return false;
    const bool packed = w.type != DT_BF16;
    snprintf(own, sizeof own, "%s%s%s%s%s", known[w.model].brief, packed ? "." : "",
             packed ? dtype_name(w.type) : "", w.draft ? "." : "", w.draft ? w.draft : "");
    *brief = own;
    if (!model_shaped(m, known[w.model].config, e))
        return false;
    if (packed)
        pack(m, w.type);
    int ffn = known[w.model].draft_ffn ? known[w.model].draft_ffn : m->layer[0].ffn;
    if (w.draft ? block_draft_shaped(d, m, !strcmp(w.draft, "dspark"), e)
                : draft_shaped(d, m, ffn, min_int(DRAFT_VOCAB, m->cfg.vocab), e))
        return true;
    model_free(m);
    return false;
}
