/* test_malformed.c - every broken checkpoint is refused by name, in one line, within bounds.
 *
 * Each row of the table takes a good checkpoint (the folders of tests/golden/), breaks one thing,
 * and loads it in a child process whose address space may grow by the files' size and little more.
 * The message must name the file and the thing that is wrong.
 */
#include "tests/ckpt.h"

#include "kernels/sanitizers.h"
#include "models/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMITED = !HAS_ASAN }; /* an address sanitizer reserves terabytes, so there is no limit to
                                 set there */

enum { SLACK = 24 << 20 }; /* of address space: the allocator's arenas, a thread's stack */

/* ---- the table ---- */

enum base { G3, OSS, G4, EAGLE, ASSIST, N_BASE };

static const struct {
    const char *dir;
    const char *target; /* of a draft */
} bases[N_BASE] = {
    [G3] = {"tests/golden/gemma3-a", NULL},
    [OSS] = {"tests/golden/gptoss-a", NULL},
    [G4] = {"tests/golden/gemma4-a", NULL},
    [EAGLE] = {"tests/golden/eagle3-gptoss-a", "tests/golden/gptoss-a"},
    [ASSIST] = {"tests/golden/gemma4-a-assistant", "tests/golden/gemma4-a"},
};

enum edit {
    NOTHING,  /* the control: it loads */
    CONFIG,   /* config key a = JSON text b, or removed */
    CONF_RAW, /* config.json is text b */
    ENTRY,    /* header field b of tensor a = JSON text c, or removed */
    HEADER,   /* the whole header is text b */
    META,     /* header key a = JSON text b */
    LENGTH,   /* the header length is b */
    CUT,      /* the file keeps b bytes (negative: all but so many) */
    GROW,     /* b more bytes follow */
    DROP,     /* tensor a is left out */
    RENAME,   /* tensor a is called b */
    EXTRA,    /* one more tensor a */
    RETYPE,   /* tensor a has type b and bytes to match */
    RESHAPE,  /* tensor a has shape b and bytes to match */
    VALUES,   /* tensor a holds 64-bit values b, c, ... at its beginning */
    INDEX,    /* two shards; the index says that tensor a lies in b */
    SHARDS,   /* two shards and: "gone", "unindexed", "cut", "twice", "unnamed", "stray"; or no
                 shards, but an empty file of this name */
    FILE_IS,  /* file a holds text b; NULL: it is not there; "DIR": it is a folder */
};

struct row {
    const char *name;
    enum base base;
    enum edit edit;
    const char *a, *b, *c;
    const char *file, *says; /* what the message must hold */
};

#define Q0 "model.layers.0.self_attn.q_proj.weight"
#define DEEP8 "[[[[[[[["
#define DEEP64 DEEP8 DEEP8 DEEP8 DEEP8 DEEP8 DEEP8 DEEP8 DEEP8
#define DEEP512 DEEP64 DEEP64 DEEP64 DEEP64 DEEP64 DEEP64 DEEP64 DEEP64
#define DEEP4096 DEEP512 DEEP512 DEEP512 DEEP512 DEEP512 DEEP512 DEEP512 DEEP512

#define ST "model.safetensors"
#define CJ "config.json"

static const struct row rows[] = {
    /* the container */
    {"an empty file", G3, CUT, 0, "0", 0, ST, "the file is empty"},
    {"a pointer of Git LFS", G3, FILE_IS, ST, "version https://git-lfs.github.com/spec/v1\n"
     "oid sha256:00\nsize 9\n", 0, ST, "git lfs pull"},
    {"a config that is one", G3, FILE_IS, CJ, "version https://git-lfs.github.com/spec/v1\n", 0, CJ,
     "git lfs pull"},
    {"a web page", G3, FILE_IS, ST, "<!DOCTYPE html>\n<html>Not found</html>", 0, ST, "a web page"},
    {"a file of seven bytes", G3, CUT, 0, "7", 0, ST, "too few"},
    {"a header cut off", G3, CUT, 0, "500", 0, ST, "header claims"},
    {"data cut off by a byte", G3, CUT, 0, "-1", 0, ST, "its end is missing"},
    {"data cut off at a page", G3, CUT, 0, "65536", 0, ST, "bytes of"},
    {"a byte too many", G3, GROW, 0, "1", 0, ST, "its tensors end at"},
    {"a page too many", G3, GROW, 0, "4096", 0, ST, "its tensors end at"},
    {"header length 0", G3, LENGTH, 0, "0", 0, ST, "header claims 0"},
    {"header length 1", G3, LENGTH, 0, "1", 0, ST, "header claims 1"},
    {"header length beyond the file", G3, LENGTH, 0, "99999999", 0, ST, "header claims 99999999"},
    {"header length beyond the limit", G3, LENGTH, 0, "100000001", 0, ST, "header claims"},
    {"header length 2^63", G3, LENGTH, 0, "9223372036854775808", 0, ST, "9223372036854775808"},
    {"header length 2^64-1", G3, LENGTH, 0, "18446744073709551615", 0, ST, "18446744073709551615"},
    {"header length one short", G3, LENGTH, 0, "-1", 0, ST, "not valid JSON"},
    {"a header that is a list", G3, HEADER, 0, "[1, 2]", 0, ST, "header is not a JSON object"},
    {"a header after a space", G3, HEADER, 0, " {}", 0, ST, "header is not a JSON object"},
    {"a header padded with newlines", G3, HEADER, 0, "{}\n\n", 0, ST, "header is not"},
    {"a header with text after it", G3, HEADER, 0, "{} {}", 0, ST, "not valid JSON"},
    {"a header cut within a string", G3, HEADER, 0, "{\"abc}", 0, ST, "not valid JSON"},
    {"a header that is not UTF-8", G3, HEADER, 0, "{\"x\xff\": 1}", 0, ST, "not valid JSON"},
    {"a duplicate tensor", G3, HEADER, 0,
     "{\"twin\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"twin\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, ST, "twin"},
    {"a depth bomb", G3, HEADER, 0, "{\"bomb\":" DEEP4096 "}", 0, ST, "bomb"},
    {"metadata that is a number", G3, META, "__metadata__", "1", 0, ST, "__metadata__"},
    {"metadata that holds a number", G3, META, "__metadata__", "{\"when\": 1}", 0, ST, "when"},
    {"an entry that is a list", G3, META, Q0, "[]", 0, ST, Q0},
    {"a tensor without a name", G3, META, "", "{}", 0, ST, "name is empty"},
    {"a name with an escape", G3, META, "a\033[2Jb", "{}", 0, ST, "a?[2Jb"},

    /* one entry */
    {"no dtype", G3, ENTRY, Q0, "dtype", 0, ST, Q0},
    {"an unknown dtype", G3, ENTRY, Q0, "dtype", "\"BF17\"", ST, "BF17"},
    {"a dtype that is a number", G3, ENTRY, Q0, "dtype", "16", ST, Q0},
    {"no shape", G3, ENTRY, Q0, "shape", 0, ST, Q0},
    {"a shape that is a number", G3, ENTRY, Q0, "shape", "4096", ST, Q0},
    {"a negative dimension", G3, ENTRY, Q0, "shape", "[-64, -64]", ST, Q0},
    {"a fractional dimension", G3, ENTRY, Q0, "shape", "[64.5, 64]", ST, Q0},
    {"a shape too small for its data", G3, ENTRY, Q0, "shape", "[64, 63]", ST, Q0},
    {"a shape whose product overflows", G3, ENTRY, Q0, "shape", "[4294967296, 4294967296]", ST,
     "overflows"},
    {"a shape whose bytes overflow", G3, ENTRY, Q0, "shape", "[9223372036854775807]", ST,
     "overflows"},
    {"a shape beyond 64 bits", G3, ENTRY, Q0, "shape", "[99999999999999999999]", ST, Q0},
    {"a dimension of 1e400", G3, ENTRY, Q0, "shape", "[1e400]", ST, "shape"},
    {"no offsets", G3, ENTRY, Q0, "data_offsets", 0, ST, Q0},
    {"one offset", G3, ENTRY, Q0, "data_offsets", "[0]", ST, Q0},
    {"three offsets", G3, ENTRY, Q0, "data_offsets", "[0, 1, 2]", ST, Q0},
    {"offsets the wrong way round", G3, ENTRY, Q0, "data_offsets", "[8192, 0]", ST, Q0},
    {"a negative offset", G3, ENTRY, Q0, "data_offsets", "[-8192, 0]", ST, Q0},
    {"offsets beyond the file", G3, ENTRY, Q0, "data_offsets", "[900000, 908192]", ST, Q0},
    {"offsets that overlap another", G3, ENTRY, Q0, "data_offsets", "[0, 8192]", ST, "overlap"},
    {"offsets that leave a hole", G3, ENTRY, "model.norm.weight", "data_offsets", "[0, 128]", ST,
     "tensor model"},
    {"an unknown field", G3, ENTRY, Q0, "colour", "1", ST, "colour"},

    /* shards */
    {"an index that leads out", G3, INDEX, Q0, "../x.safetensors", 0, "index.json",
     "../x.safetensors"},
    {"an index with an absolute path", G3, INDEX, Q0, "/etc/x.safetensors", 0, "index.json", Q0},
    {"an index with a backslash", G3, INDEX, Q0, "..\\x.safetensors", 0, "index.json", Q0},
    {"an index that names a folder", G3, INDEX, Q0, "..", 0, "index.json", Q0},
    {"an index that names a pickle", G3, INDEX, Q0, "pytorch_model.bin", 0, "index.json", Q0},
    {"an index that names the other shard", G3, INDEX, "model.norm.weight",
     "model-00000-of-00001.safetensors", 0, "index.json", "model.norm.weight"},
    {"an index with a tensor that is not there", G3, INDEX, "model.ghost",
     "model-00000-of-00001.safetensors", 0, "index.json", "model.ghost"},
    {"a shard that is missing", G3, SHARDS, 0, "gone", 0, "model-00001-of-00001.safetensors",
     "cannot open"},
    {"shards without an index", G3, SHARDS, 0, "unindexed", 0, "model-00000-of-00001.safetensors",
     "fetch the index"},
    {"an adapter alone", G3, SHARDS, 0, "adapter_model.safetensors", 0,
     "adapter_model.safetensors", "base model"},
    {"Mistral's layout alone", G3, SHARDS, 0, "consolidated.00.safetensors", 0,
     "consolidated.00.safetensors", "own layout"},
    {"another file alone", G3, SHARDS, 0, "weights.safetensors", 0, "weights.safetensors",
     "fetch the index"},
    {"pickles alone", G3, SHARDS, 0, "pytorch_model-00001-of-00002.bin", 0,
     "pytorch_model-00001-of-00002.bin", "pickle"},
    {"a shard cut off", G3, SHARDS, 0, "cut", 0, "model-00001-of-00001.safetensors", "its end"},
    {"a tensor in two shards", G3, SHARDS, 0, "twice", 0, "model-0000", "is also in"},
    {"a tensor that the index does not name", G3, SHARDS, 0, "unnamed", 0, "index.json",
     "does not name"},
    {"an index without a map", G3, FILE_IS, ST ".index.json", "{\"metadata\": {}}", 0,
     "index.json", "weight_map"},
    {"an index with an empty map", G3, FILE_IS, ST ".index.json", "{\"weight_map\": {}}", 0,
     "index.json", "weight_map"},
    {"an index that maps to a number", G3, FILE_IS, ST ".index.json",
     "{\"weight_map\": {\"a\": 1}}", 0, "index.json", "a into"},
    {"an index that is not JSON", G3, FILE_IS, ST ".index.json", "{,}", 0, "index.json",
     "not valid JSON"},

    /* files */
    {"no weights", G3, FILE_IS, ST, 0, 0, "model.safetensors", "has neither"},
    {"weights that are a folder", G3, FILE_IS, ST, "DIR", 0, ST, "not a regular file"},
    {"no config", G3, FILE_IS, CJ, 0, 0, CJ, "cannot open"},
    {"a config that is a folder", G3, FILE_IS, CJ, "DIR", 0, CJ, "folder"},
    {"a broken generation config", G3, FILE_IS, "generation_config.json", "{\"top_p\": 2}", 0,
     "generation_config.json", "top_p"},
    {"a generation config that is a list", G3, FILE_IS, "generation_config.json", "[]", 0,
     "generation_config.json", "not a JSON object"},

    /* tensors */
    {"a tensor missing", G3, DROP, Q0, 0, 0, ST, Q0},
    {"the embedding missing", G3, DROP, "model.embed_tokens.weight", 0, 0, ST,
     "model.embed_tokens.weight"},
    {"the final norm missing", G3, DROP, "model.norm.weight", 0, 0, ST, "model.norm.weight"},
    {"the head missing", OSS, DROP, "lm_head.weight", 0, 0, ST, "lm_head.weight"},
    {"sinks missing", OSS, DROP, "model.layers.3.self_attn.sinks", 0, 0, ST,
     "model.layers.3.self_attn.sinks"},
    {"scales missing", OSS, DROP, "model.layers.2.mlp.experts.down_proj_scales", 0, 0, ST,
     "model.layers.2.mlp.experts.down_proj_scales"},
    {"a tensor misspelt", G3, RENAME, Q0, "model.layers.0.self_attn.quack.weight", 0, ST, Q0},
    {"a tensor too many", G3, EXTRA, "model.layers.0.mlp.gate_proj.bias", 0, 0, ST,
     "model.layers.0.mlp.gate_proj.bias"},
    {"a layer too many", G3, EXTRA, "model.layers.8.input_layernorm.weight", 0, 0, ST,
     "model.layers.8.input_layernorm.weight"},
    {"a norm of integers", G3, RETYPE, "model.norm.weight", "I16", 0, ST, "model.norm.weight"},
    {"a weight of 8-bit floats", G3, RETYPE, Q0, "F8_E4M3", 0, ST, "F8_E4M3"},
    {"a weight of doubles", G3, RETYPE, Q0, "F64", 0, ST, "F64"},
    {"blocks that are floats", OSS, RETYPE, "model.layers.0.mlp.experts.gate_up_proj_blocks",
     "BF16", 0, ST, "model.layers.0.mlp.experts.gate_up_proj_blocks"},
    {"a weight transposed", G3, RESHAPE, "model.layers.0.mlp.down_proj.weight", "[128, 64]", 0, ST,
     "model.layers.0.mlp.down_proj.weight"},
    {"a weight of rank 1", G3, RESHAPE, Q0, "[4096]", 0, ST, Q0},
    {"a weight of rank 5", G3, RESHAPE, Q0, "[64, 64, 1, 1, 1]", 0, ST, Q0},
    {"a norm of rank 0", G3, RESHAPE, "model.norm.weight", "[]", 0, ST, "model.norm.weight"},
    {"an embedding too short", G3, RESHAPE, "model.embed_tokens.weight", "[599, 64]", 0, ST,
     "vocab_size"},
    {"one norm of another width", G3, RESHAPE, "model.layers.7.self_attn.q_norm.weight", "[8]", 0,
     ST, "model.layers.7.self_attn.q_norm.weight"},
    {"experts of another count", OSS, RESHAPE, "model.layers.1.mlp.router.weight", "[7, 64]", 0, ST,
     "model.layers.1.mlp.router.weight"},
    {"a tied head that differs", G3, EXTRA, "lm_head.weight", 0, 0, ST, "lm_head.weight"},
    {"per-layer embeddings missing", G4, DROP, "model.embed_tokens_per_layer.weight", 0, 0, ST,
     "model.embed_tokens_per_layer.weight"},
    {"a V projection on a layer that uses K", G4, CONFIG, "attention_k_eq_v", "true", 0, ST,
     "v_proj"},

    /* the config's syntax */
    {"a config that is a list", G3, CONF_RAW, 0, "[]", 0, CJ, "not a JSON object"},
    {"an empty config", G3, CONF_RAW, 0, "", 0, CJ, "the file is empty"},
    {"a config with a duplicate key", G3, CONF_RAW, 0, "{\"hidden_size\": 1, \"hidden_size\": 2}",
     0, CJ, "hidden_size"},
    {"a config with NaN", G3, CONF_RAW, 0, "{\"rms_norm_eps\": NaN}", 0, CJ, "rms_norm_eps"},
    {"a config with 1e400", G3, CONF_RAW, 0, "{\"rope_theta\": 1e400}", 0, CJ, "rope_theta"},
    {"a config with 2^64", G3, CONF_RAW, 0,
     "{\"model_type\": \"gemma3_text\", \"vocab_size\": 18446744073709551616}", 0, CJ,
     "vocab_size is 1.8446744073709552e+19, expected an integer"},
    {"a config with a leading zero", G3, CONF_RAW, 0, "{\"vocab_size\": 0600}", 0, CJ,
     "vocab_size"},
    {"a config that goes on", G3, CONF_RAW, 0, "{} x", 0, CJ, "not valid JSON"},
    {"a config too deep", G3, CONF_RAW, 0, "{\"deep\": " DEEP4096 "}", 0, CJ, "deep"},

    /* its values */
    {"no model type", G3, CONFIG, "model_type", 0, 0, CJ, "model_type"},
    {"an unknown model type", G3, CONFIG, "model_type", "\"gemma9\"", 0, CJ, "gemma9"},
    {"a model type with control codes", G3, CONFIG, "model_type", "\"a\\u001b]0;x\\nb\"", 0, CJ,
     "a?]0;x?b"},
    {"a model type that is a number", G3, CONFIG, "model_type", "3", 0, CJ, "model_type"},
    {"an unknown activation", G3, CONFIG, "hidden_activation", "\"relu\"", 0, CJ, "relu"},
    {"hidden_size 0", G3, CONFIG, "hidden_size", "0", 0, CJ, "hidden_size is 0"},
    {"hidden_size -1", G3, CONFIG, "hidden_size", "-1", 0, CJ, "hidden_size is -1"},
    {"hidden_size 2^31", G3, CONFIG, "hidden_size", "2147483648", 0, CJ,
     "hidden_size is 2147483648"},
    {"hidden_size 2^63-1", G3, CONFIG, "hidden_size", "9223372036854775807", 0, CJ, "hidden_size"},
    {"hidden_size a fraction", G3, CONFIG, "hidden_size", "64.5", 0, CJ, "hidden_size"},
    {"hidden_size a string", G3, CONFIG, "hidden_size", "\"64\"", 0, CJ, "hidden_size"},
    {"a hidden_size that the tensors lack", G3, CONFIG, "hidden_size", "128", 0, ST,
     "128 (hidden_size)"},
    {"vocab_size 0", G3, CONFIG, "vocab_size", "0", 0, CJ, "vocab_size"},
    {"a vocab_size beyond the embedding", G3, CONFIG, "vocab_size", "601", 0, ST,
     "601 (vocab_size)"},
    {"no layers", G3, CONFIG, "num_hidden_layers", "0", 0, CJ, "num_hidden_layers"},
    {"a million layers", G3, CONFIG, "num_hidden_layers", "1000000", 0, CJ, "num_hidden_layers"},
    {"more layers than tensors", G3, CONFIG, "num_hidden_layers", "1000", 0, CJ,
     "num_hidden_layers is 1000"},
    {"fewer layers than there are", G3, CONFIG, "num_hidden_layers", "7", 0, ST, "model.layers.7."},
    {"head_dim 0", G3, CONFIG, "head_dim", "0", 0, CJ, "head_dim"},
    {"head_dim odd", G3, CONFIG, "head_dim", "15", 0, CJ, "head_dim is 15"},
    {"head_dim a real number", G3, CONFIG, "head_dim", "16.0", 0, CJ,
     "head_dim is 16.0, expected an integer"},
    {"head_dim that the tensors lack", G3, CONFIG, "head_dim", "32", 0, ST, "q_proj"},
    {"heads that do not divide hidden_size", EAGLE, CONFIG, "head_dim", 0, "heads 7", CJ,
     "num_attention_heads"},
    {"no heads", G3, CONFIG, "num_attention_heads", "0", 0, CJ, "num_attention_heads"},
    {"no KV heads", G3, CONFIG, "num_key_value_heads", "0", 0, CJ, "num_key_value_heads"},
    {"KV heads that do not divide", G3, CONFIG, "num_key_value_heads", "3", 0, CJ,
     "num_key_value_heads is 3"},
    {"intermediate_size 0", G3, CONFIG, "intermediate_size", "0", 0, CJ, "intermediate_size"},
    {"intermediate_size 2^31-1", G3, CONFIG, "intermediate_size", "2147483647", 0, CJ,
     "intermediate_size"},
    {"max positions 0", G3, CONFIG, "max_position_embeddings", "0", 0, CJ,
     "max_position_embeddings"},
    {"eps 0", G3, CONFIG, "rms_norm_eps", "0", 0, CJ, "rms_norm_eps"},
    {"eps negative", G3, CONFIG, "rms_norm_eps", "-1e-6", 0, CJ, "rms_norm_eps"},
    {"attention scale 0", G3, CONFIG, "query_pre_attn_scalar", "0", 0, CJ, "query_pre_attn_scalar"},
    {"window 0", G3, CONFIG, "sliding_window", "0", 0, CJ, "sliding_window"},
    {"window negative", G3, CONFIG, "sliding_window", "-8", 0, CJ, "sliding_window"},
    {"windows that differ between layers", G3, CONFIG, "sliding_window", "[8, 16]", 0, CJ,
     "sliding_window"},
    {"pattern 0", G3, CONFIG, "sliding_window_pattern", "0", 0, CJ, "sliding_window_pattern"},
    {"layer types too few", OSS, CONFIG, "layer_types", "[\"full_attention\"]", 0, CJ,
     "layer_types has 1"},
    {"an unknown layer type", OSS, CONFIG, "layer_types",
     "[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
     "\"full_attention\",\"chunked_attention\"]", 0, CJ, "chunked_attention"},
    {"layer types that are numbers", OSS, CONFIG, "layer_types", "[1,0,1,0,1,0]", 0, CJ,
     "layer_types"},
    {"a bidirectional model", G3, CONFIG, "use_bidirectional_attention", "true", 0, CJ,
     "use_bidirectional_attention"},
    {"too many stop tokens", G3, CONFIG, "eos_token_id",
     "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33]",
     0, CJ, "eos_token_id"},
    {"a stop token that is a string", G3, CONFIG, "eos_token_id", "\"</s>\"", 0, CJ,
     "eos_token_id"},
    {"an unknown rope type", OSS, CONFIG, "rope_scaling.rope_type", "\"longrope\"", 0, CJ,
     "longrope"},
    {"an unknown rope type in the new spelling", G4, CONFIG,
     "rope_parameters.full_attention.rope_type", "\"dynamic\"", 0, CJ, "dynamic"},
    {"rope theta 0", OSS, CONFIG, "rope_scaling.rope_theta", "0", 0, CJ, "rope_theta"},
    {"rope theta negative", G3, CONFIG, "rope_local_base_freq", "-1", 0, CJ,
     "rope_local_base_freq"},
    {"rope factor 0", OSS, CONFIG, "rope_scaling.factor", "0", 0, CJ, "factor"},
    {"linear rope without a factor", G3, CONFIG, "rope_scaling", "{\"rope_type\": \"linear\"}", 0,
     CJ, "factor"},
    {"rope scaling that is a list", G3, CONFIG, "rope_scaling", "[1]", 0, CJ, "rope_scaling"},
    {"partial rotary beyond 1", G4, CONFIG, "rope_parameters.full_attention.partial_rotary_factor",
     "1.5", 0, CJ, "partial_rotary_factor"},
    {"rope betas the wrong way round", OSS, CONFIG, "rope_scaling.beta_fast", "0.5", 0, CJ,
     "beta_fast"},
    {"a quantisation we cannot read", OSS, CONFIG, "quantization_config.quant_method", "\"gptq\"",
     0, CJ, "gptq"},
    {"quantised where it cannot be", G3, CONFIG, "quantization_config",
     "{\"quant_method\": \"mxfp4\"}", 0, CJ, "quant_method"},
    {"no experts", OSS, CONFIG, "num_local_experts", "0", 0, CJ, "num_local_experts"},
    {"more chosen experts than there are", OSS, CONFIG, "num_experts_per_tok", "9", 0, CJ,
     "num_experts_per_tok"},
    {"another swiglu alpha", OSS, CONFIG, "swiglu_alpha", "1.5", 0, CJ, "swiglu_alpha"},
    {"every layer shares its KV", G4, CONFIG, "num_kv_shared_layers", "9", 0, CJ,
     "num_kv_shared_layers"},
    {"more shared layers than layers", G4, CONFIG, "num_kv_shared_layers", "13", 0, CJ,
     "num_kv_shared_layers"},
    {"experts without a count", G4, CONFIG, "enable_moe_block", "true", 0, CJ, "num_experts"},

    /* EAGLE3 heads */
    {"a head for another width", EAGLE, CONFIG, "target_hidden_size", "128", 0, CJ,
     "target_hidden_size"},
    {"a head for another vocabulary", EAGLE, CONFIG, "vocab_size", "500", 0, CJ, "vocab_size"},
    {"a draft vocabulary above the target's", EAGLE, CONFIG, "draft_vocab_size", "513", 0, CJ,
     "draft_vocab_size"},
    {"a draft vocabulary unlike the head", EAGLE, CONFIG, "draft_vocab_size", "128", 0, ST,
     "lm_head.weight"},
    {"captures beyond the target", EAGLE, CONFIG, "eagle_config.eagle_aux_hidden_state_layer_ids",
     "[1, 2, 7]", 0, CJ, "out of range"},
    {"too few captures", EAGLE, CONFIG, "eagle_config.eagle_aux_hidden_state_layer_ids", "[1, 2]",
     0, CJ, "captured states"},
    {"captures that are strings", EAGLE, CONFIG, "eagle_config.eagle_aux_hidden_state_layer_ids",
     "[\"1\"]", 0, CJ, "eagle_aux_hidden_state_layer_ids"},
    {"no captured states at all", EAGLE, CONFIG, "eagle_config.use_aux_hidden_state", "false", 0,
     CJ, "use_aux_hidden_state"},
    {"parallel drafting", EAGLE, CONFIG, "eagle_config.parallel_draft_step", "2", 0, CJ,
     "parallel_draft_step"},
    {"a norm before fc that is not there", EAGLE, CONFIG, "norm_before_fc", "true", 0, CJ,
     "norm_before_fc"},
    {"a speculators file without norm_before_residual", EAGLE, CONFIG, "speculators_model_type",
     "\"eagle3\"", 0, CJ, "norm_before_residual"},
    {"no fc", EAGLE, DROP, "fc.weight", 0, 0, ST, "fc.weight"},
    {"fc of another width", EAGLE, RESHAPE, "fc.weight", "[64, 190]", 0, ST, "fc.weight"},
    {"no d2t", EAGLE, DROP, "d2t", 0, 0, ST, "d2t"},
    {"no head of its own", EAGLE, DROP, "lm_head.weight", 0, 0, CJ, "lm_head.weight"},
    {"no hidden norm", EAGLE, DROP, "midlayer.hidden_norm.weight", 0, 0, ST,
     "midlayer.hidden_norm.weight"},
    {"q of the target's width", EAGLE, RESHAPE, "midlayer.self_attn.q_proj.weight", "[64, 64]", 0,
     ST, "midlayer.self_attn.q_proj.weight"},
    {"d2t of floats", EAGLE, RETYPE, "d2t", "F32", 0, ST, "d2t"},
    {"d2t too short", EAGLE, RESHAPE, "d2t", "[159]", 0, ST, "d2t"},
    {"d2t out of range", EAGLE, VALUES, "d2t", "1000000000000", 0, ST, "d2t"},
    {"d2t negative", EAGLE, VALUES, "d2t", "-1", 0, ST, "d2t"},
    {"d2t that maps twice", EAGLE, VALUES, "d2t", "500", "499", ST, "as it does an earlier"},
    {"t2d that disagrees", EAGLE, VALUES, "t2d", "0", 0, ST, "t2d"},
    {"t2d too short", EAGLE, RESHAPE, "t2d", "[511]", 0, ST, "t2d"},
    {"a head with a stranger", EAGLE, EXTRA, "midlayer.mlp.router.weight", 0, 0, ST,
     "midlayer.mlp.router.weight"},
    {"only pickled weights", EAGLE, FILE_IS, "pytorch_model.bin", "PK", "no weights",
     "pytorch_model.bin", "convert"},

    /* frozen-KV assistants */
    {"an assistant without text_config", ASSIST, CONFIG, "text_config", 0, 0, CJ, "text_config"},
    {"an assistant for another width", ASSIST, CONFIG, "backbone_hidden_size", "96", 0, CJ,
     "backbone_hidden_size"},
    {"an assistant for another vocabulary", ASSIST, CONFIG, "text_config.vocab_size", "580", 0, CJ,
     "vocab_size"},
    {"an assistant with other KV heads", ASSIST, CONFIG, "text_config.num_key_value_heads", "4", 0,
     CJ, "num_key_value_heads"},
    {"an assistant with other head widths", ASSIST, CONFIG, "text_config.global_head_dim", "64", 0,
     CJ, "head_dim"},
    {"an assistant with KV of its own", ASSIST, CONFIG, "text_config.num_kv_shared_layers", "2", 0,
     CJ, "num_kv_shared_layers"},
    {"an assistant with per-layer embeddings", ASSIST, CONFIG,
     "text_config.hidden_size_per_layer_input", "16", 0, CJ, "per_layer_input"},
    {"centroids that do not divide", ASSIST, CONFIG, "num_centroids", "21", 0, CJ, "num_centroids"},
    {"more kept centroids than there are", ASSIST, CONFIG, "centroid_intermediate_top_k", "21", 0,
     CJ, "centroid_intermediate_top_k"},
    {"an order with a token twice", ASSIST, VALUES, "masked_embedding.token_ordering", "7", "7", ST,
     "token_ordering"},
    {"an order with a token out of range", ASSIST, VALUES, "masked_embedding.token_ordering", "600",
     0, ST, "token_ordering"},
    {"no order", ASSIST, DROP, "masked_embedding.token_ordering", 0, 0, ST, "token_ordering"},
    {"no projection", ASSIST, DROP, "pre_projection.weight", 0, 0, ST, "pre_projection.weight"},

    /* the controls */
    {"gemma-3 unchanged", G3, NOTHING, 0, 0, 0, NULL, NULL},
    {"gpt-oss unchanged", OSS, NOTHING, 0, 0, 0, NULL, NULL},
    {"gemma-4 unchanged", G4, NOTHING, 0, 0, 0, NULL, NULL},
    {"the EAGLE3 head unchanged", EAGLE, NOTHING, 0, 0, 0, NULL, NULL},
    {"the assistant unchanged", ASSIST, NOTHING, 0, 0, 0, NULL, NULL},
};

enum { N_ROW = sizeof rows / sizeof *rows };

/* ---- breaking ---- */

/* Writes the file with another header text; the data stay. */
static void save_header(const struct ck *c, const char *dir, const char *text, size_t claim)
{
    struct buf b = ck_file(c, 0, c->n, text, strlen(text));
    for (int i = 0; i < 8; i++)
        b.p[i] = (char)(claim >> (8 * i));
    ck_write(dir, ST, b.p, b.n);
    buf_free(&b);
}

/* Header text in which "@@" stands for raw text that no JSON writer would produce. */
static void save_json(const struct ck *c, const char *dir, json_t *head, const char *raw)
{
    char *text = json_dumps(head, JSON_COMPACT);
    char *hole = raw ? strstr(text, "\"@@\"") : NULL;
    char *full = hole ? xasprintf("%.*s%s%s", (int)(hole - text), text, raw, hole + 4)
                      : xstrdup(text);
    save_header(c, dir, full, strlen(full));
    free(full);
    free(text);
    json_decref(head);
}

static void edit_header(const struct ck *c, const char *dir, const struct row *r)
{
    json_t *head = ck_header(c, 0, c->n);
    if (r->edit == META) {
        json_object_set_new(head, r->a, json_string("@@"));
        save_json(c, dir, head, r->b);
        return;
    }
    json_t *entry = json_object_get(head, r->a);
    if (r->c)
        json_object_set_new(entry, r->b, json_string("@@"));
    else
        json_object_del(entry, r->b);
    save_json(c, dir, head, r->c);
}

static void edit_length(const struct ck *c, const char *dir, const char *n)
{
    json_t *head = ck_header(c, 0, c->n);
    char *text = json_dumps(head, JSON_COMPACT);
    save_header(c, dir, text, *n == '-' ? strlen(text) - strtoull(n + 1, NULL, 10)
                                        : strtoull(n, NULL, 10));
    free(text);
    json_decref(head);
}

static void edit_size(const char *dir, long by, bool grow)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/" ST, dir);
    CHECK(stat(path, &st) == 0);
    CHECK(truncate(path, grow || by < 0 ? st.st_size + by : by) == 0);
}

static void edit_shards(struct ck *c, const char *dir, const char *how)
{
    static const char *const second = "model-00001-of-00001.safetensors";
    char path[512];
    ck_save(c, dir, 2);
    snprintf(path, sizeof path, "%s/%s", dir, second);
    if (!strcmp(how, "gone"))
        CHECK(unlink(path) == 0);
    if (!strcmp(how, "unindexed")) {
        snprintf(path, sizeof path, "%s/" ST ".index.json", dir);
        CHECK(unlink(path) == 0);
    }
    if (strchr(how, '.')) {
        static const char *const own[] = {ST ".index.json", "model-00000-of-00001.safetensors",
                                          "model-00001-of-00001.safetensors"};
        for (size_t i = 0; i < LEN(own); i++) {
            snprintf(path, sizeof path, "%s/%s", dir, own[i]);
            CHECK(unlink(path) == 0);
        }
        snprintf(path, sizeof path, "%s/%s", dir, how);
        FILE *f = fopen(path, "w");
        CHECK(f && fclose(f) == 0);
    }
    if (!strcmp(how, "cut"))
        CHECK(truncate(path, 20000) == 0);
    if (!strcmp(how, "twice")) /* the second shard holds a tensor of the first as well */
        ck_save_file(c, dir, second, c->n / 2 - 1, c->n);
    if (!strcmp(how, "unnamed")) {
        ck_add(c, "model.stranger", "U8", json_pack("[i]", 4), NULL, 4);
        ck_save_file(c, dir, second, (c->n - 1) / 2, c->n);
    }
}

static void edit_index(const struct ck *c, const char *dir, const char *tensor, const char *file)
{
    ck_save(c, dir, 2);
    struct buf b = ck_read(dir, ST ".index.json");
    json_t *index = json_loadb(b.p, b.n, 0, NULL);
    json_object_set_new(json_object_get(index, "weight_map"), tensor, json_string(file));
    char *text = json_dumps(index, 0);
    ck_write_text(dir, ST ".index.json", text);
    free(text);
    json_decref(index);
    buf_free(&b);
}

static void edit_file(const char *dir, const struct row *r)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, r->a);
    if (!r->b || !strcmp(r->b, "DIR"))
        CHECK(unlink(path) == 0);
    if (r->b && !strcmp(r->b, "DIR"))
        CHECK(mkdir(path, 0700) == 0);
    else if (r->b)
        ck_write_text(dir, r->a, r->b);
    if (r->c) { /* "no weights" */
        snprintf(path, sizeof path, "%s/" ST, dir);
        CHECK(unlink(path) == 0);
    }
}

static void edit_values(struct ck *c, const char *name, const char *b, const char *more)
{
    const char *v[] = {b, more};
    struct ck_tensor *t = ck_find(c, name);
    if (!strcmp(t->dtype, "BOOL")) { /* turn every mark over */
        for (size_t i = 0; i < t->n; i++)
            t->data[i] = !t->data[i];
        return;
    }
    for (int i = 0; i < 2 && v[i]; i++) {
        int64_t x = strtoll(v[i], NULL, 10);
        memcpy(t->data + 8 * i, &x, 8);
    }
}

static void save_broken(const struct row *r, const char *dir)
{
    struct ck c = ck_load(bases[r->base].dir, ST);
    if (r->edit == CONFIG)
        ck_set_text(&c, r->a, r->b);
    if (r->edit == CONFIG && r->c) /* "heads 7": no head_dim and seven heads */
        ck_set_text(&c, "num_attention_heads", "7");
    if (r->edit == DROP)
        ck_drop(&c, r->a);
    if (r->edit == RENAME)
        ck_rename(&c, r->a, r->b);
    if (r->edit == EXTRA)
        ck_add(&c, r->a, "BF16", json_pack("[i]", 4), NULL, 8);
    if (r->edit == RETYPE)
        ck_reshape(&c, r->a, r->b, NULL);
    if (r->edit == RESHAPE)
        ck_reshape(&c, r->a, NULL, r->b);
    if (r->edit == VALUES)
        edit_values(&c, r->a, r->b, r->c);
    if (r->edit == SHARDS)
        edit_shards(&c, dir, r->b);
    else if (r->edit == INDEX)
        edit_index(&c, dir, r->a, r->b);
    else /* a single file would come before an index */
        ck_save(&c, dir, r->edit == FILE_IS && !strcmp(r->a, ST ".index.json") ? 2 : 1);
    if (r->edit == CONF_RAW)
        ck_write_text(dir, CJ, r->b);
    if (r->edit == ENTRY || r->edit == META)
        edit_header(&c, dir, r);
    if (r->edit == HEADER)
        save_header(&c, dir, r->b, strlen(r->b));
    if (r->edit == LENGTH)
        edit_length(&c, dir, r->b);
    if (r->edit == CUT || r->edit == GROW)
        edit_size(dir, strtol(r->b, NULL, 10), r->edit == GROW);
    if (r->edit == FILE_IS)
        edit_file(dir, r);
    ck_free(&c);
}

/* ---- loading in a child ---- */

struct outcome {
    int status; /* waitpid's */
    bool loaded;
    struct err e;
};

static uint64_t folder_bytes(const char *dir)
{
    uint64_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        struct stat st;
        snprintf(path, sizeof path, "%s/%.200s", dir, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
            n += (uint64_t)st.st_size;
    }
    closedir(d);
    return n;
}

static uint64_t address_space(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void limit_memory(uint64_t more)
{
    uint64_t n = address_space() + more;
    if (LIMITED)
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){n, n}) == 0);
}

static bool load_one(enum base base, const char *dir, struct err *e)
{
    struct model m;
    struct draft d;
    const char *target = bases[base].target;
    if (!target) {
        limit_memory(folder_bytes(dir) + SLACK);
        bool ok = model_load(&m, dir, NULL, e);
        CHECK(ok || (!m.layer && !m.store && !m.dir));
        model_free(&m);
        return ok;
    }
    CHECK(model_load(&m, target, NULL, e));
    limit_memory(folder_bytes(dir) + SLACK);
    bool ok = draft_load(&d, dir, &m, NULL, NULL, e);
    CHECK(ok || (!d.layer && !d.store && !d.dir && !d.d2t));
    draft_free(&d);
    model_free(&m);
    return ok;
}

static struct outcome load_apart(enum base base, const char *dir)
{
    int fd[2];
    struct outcome out = {0};
    CHECK(pipe(fd) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct outcome o = {0};
        o.loaded = load_one(base, dir, &o.e);
        _exit(write(fd[1], &o, sizeof o) == (ssize_t)sizeof o ? 0 : 1);
    }
    close(fd[1]);
    ssize_t got = read(fd[0], &out, sizeof out);
    close(fd[0]);
    CHECK(waitpid(pid, &out.status, 0) == pid);
    if (got != (ssize_t)sizeof out)
        snprintf(out.e.msg, sizeof out.e.msg, "(the child died)");
    return out;
}

static void test_row(void **state)
{
    const struct row *r = *state;
    char *dir = scratch_folder();
    save_broken(r, dir);
    struct outcome o = load_apart(r->base, dir);
    char *tail = strrchr(dir, '/');
    bool right = o.status == 0 && o.loaded == !r->says;
    if (r->says)
        right &= o.e.kind == ERR_MODEL && strstr(o.e.msg, r->says) && strstr(o.e.msg, r->file) &&
                 strstr(o.e.msg, tail) && !strpbrk(o.e.msg, "\n\r\033");
    if (!right)
        print_message("# %s: status %d, loaded %d, kind %d, \"%s\", expected \"%s\" and \"%s\"\n",
                      r->name, o.status, o.loaded, o.e.kind, o.e.msg, r->file ? r->file : "",
                      r->says ? r->says : "");
    scratch_remove(dir);
    assert_true(right);
}

/* ---- what a table cannot say ---- */

/* Every byte of a small file's length and header, changed in several ways: an answer, never a
 * crash, and what opens can be read to the end. */
static void test_every_header_byte_may_change(void **state)
{
    (void)state;
    static const char head[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[13,13]},"
        "\"d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[13,21]}}   ";
    struct ck none = {0};
    struct buf good = ck_file(&none, 0, 0, head, sizeof head - 1);
    buf_add(&good, "123456789abcdefghijkl", 21);
    char *dir = scratch_folder();
    char path[512];
    snprintf(path, sizeof path, "%s/x", dir);
    uint64_t seed = 1;
    int opened = 0, refused = 0;
    for (size_t i = 0; i < 8 + sizeof head - 1; i++)
        for (int k = 0; k < 12; k++) {
            char was = good.p[i];
            seed = mix64(seed);
            good.p[i] = k < 8 ? (char)(was ^ (1 << k)) : "{}[],:\"0-\\ 9"[seed % 12];
            ck_write(dir, "x", good.p, good.n);
            good.p[i] = was;
            struct err e = {0};
            struct safetensors *s = st_open(path, &e);
            s ? opened++ : refused++;
            assert_true(s || (e.kind == ERR_MODEL && strstr(e.msg, "/x") && !strchr(e.msg, '\n')));
            for (int t = 0; s && t < st_count(s); t++) {
                char byte[64];
                assert_true(st_at(s, t)->bytes <= 21 && st_read(s, st_at(s, t), byte, &e));
            }
            st_close(s);
        }
    /* names, metadata and padding may change; structure may not */
    assert_true(opened > 20 && refused > 1000);
    buf_free(&good);
    scratch_remove(dir);
}

/* Random bytes of a config: it loads or is refused, whatever they say. */
static void test_random_config_bytes_are_answered(void **state)
{
    (void)state;
    char *dir = scratch_folder();
    uint64_t seed = 2;
    int loaded = 0;
    struct ck c = ck_load(bases[G3].dir, ST);
    ck_save(&c, dir, 1);
    struct buf good = ck_read(dir, CJ);
    for (int round = 0; round < 300; round++) {
        struct buf b = {0};
        buf_add(&b, good.p, good.n);
        for (int k = 0; k <= round % 3; k++) {
            seed = mix64(seed);
            b.p[seed % b.n] = "0123456789-.eE{}[]\":,xtfn "[seed / b.n % 26];
        }
        ck_write(dir, CJ, b.p, b.n);
        struct model m;
        struct err e = {0};
        bool ok = model_load(&m, dir, NULL, &e);
        loaded += ok;
        assert_true(ok || (e.kind == ERR_MODEL && !strchr(e.msg, '\n')));
        model_free(&m);
        buf_free(&b);
    }
    assert_true(loaded > 0 && loaded < 300);
    buf_free(&good);
    ck_free(&c);
    scratch_remove(dir);
}

static void test_a_file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    char *dir = scratch_folder();
    char path[512], data[8192 * 2];
    struct ck c = ck_load(bases[G3].dir, ST);
    struct err e = {0};
    ck_save(&c, dir, 1);
    snprintf(path, sizeof path, "%s/" ST, dir);
    struct safetensors *s = st_open(dir, &e);
    assert_non_null(s);
    const struct tensor *t = st_find(s, Q0);
    assert_true(t && t->bytes <= sizeof data && st_read(s, t, data, &e));
    assert_int_equal(truncate(path, 20000), 0);
    assert_false(st_read(s, t, data, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_non_null(strstr(e.msg, "shrink"));
    assert_non_null(strstr(e.msg, Q0));
    st_close(s);
    ck_free(&c);
    scratch_remove(dir);
}

static void test_a_pipe_is_not_waited_for(void **state)
{
    (void)state;
    char *dir = scratch_folder();
    char path[512];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/" ST, dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(st_open(dir, &e));
    assert_non_null(strstr(e.msg, "not a regular file"));
    scratch_remove(dir);
}

static void test_a_folder_that_is_not_there(void **state)
{
    (void)state;
    struct model m;
    struct err e = {0};
    assert_false(model_load(&m, "/nonexistent/folder", NULL, &e));
    assert_true(e.kind == ERR_MODEL && strstr(e.msg, "/nonexistent/folder"));
    assert_false(model_load(&m, "tests/run.sh", NULL, &e));
    assert_true(e.kind == ERR_MODEL && strstr(e.msg, "neither a folder"));
}

static void test_bad_captures_of_the_user(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "2", "2,3", "2,3,x", "2,3,", ",2,3", "2,3,7", "-1,2,3",
                                      "2 3 4", "2,3,99999999999999999999", "1,1,1,1,1,1,1,1,1"};
    struct model m;
    struct err e = {0};
    assert_true(model_load(&m, bases[EAGLE].target, NULL, &e));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct draft d;
        assert_false(draft_load(&d, bases[EAGLE].dir, &m, bad[i], NULL, &e));
        assert_true(e.kind == ERR_MODEL || e.kind == ERR_USAGE);
    }
    struct draft d;
    assert_true(draft_load(&d, bases[EAGLE].dir, &m, "0,3,6", NULL, &e));
    assert_true(d.capture[0] == 0 && d.capture[1] == 3 && d.capture[2] == 6);
    draft_free(&d);
    model_free(&m);
}

int main(void)
{
    static const struct CMUnitTest more[] = {
        cmocka_unit_test(test_every_header_byte_may_change),
        cmocka_unit_test(test_random_config_bytes_are_answered),
        cmocka_unit_test(test_a_file_that_shrinks_is_an_error),
        cmocka_unit_test(test_a_pipe_is_not_waited_for),
        cmocka_unit_test(test_a_folder_that_is_not_there),
        cmocka_unit_test(test_bad_captures_of_the_user),
    };
    enum { N_MORE = sizeof more / sizeof *more };
    struct CMUnitTest tests[N_ROW + N_MORE];
    for (int i = 0; i < N_ROW; i++)
        tests[i] = (struct CMUnitTest){rows[i].name, test_row, NULL, NULL, (void *)&rows[i]};
    memcpy(tests + N_ROW, more, sizeof more);
    return _cmocka_run_group_tests("malformed checkpoints", tests, N_ROW + N_MORE, NULL, NULL);
}
