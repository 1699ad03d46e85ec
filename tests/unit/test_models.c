/* test_models.c - checkpoints become the right switches and the right tensors.
 *
 * The golden folders are bound tensor by tensor; variants of them, rewritten on the spot, cover
 * shards, prefixes, spellings and every dialect of EAGLE3 heads. Numbers come from published
 * formulas, computed here or quoted in double precision.
 */
#include "tests/ckpt.h"

#include "models/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#define G3 "tests/golden/gemma3-a"
#define OSS "tests/golden/gptoss-a"
#define G4 "tests/golden/gemma4-a"
#define EAGLE "tests/golden/eagle3-gptoss-a"
#define ASSIST "tests/golden/gemma4-a-assistant"
#define ST "model.safetensors"

/* ---- helpers ---- */

static struct model load(const char *dir)
{
    struct model m;
    struct err e = {0};
    if (!model_load(&m, dir, NULL, &e))
        fail_msg("%s", e.msg);
    return m;
}

static struct model load_ck(const struct ck *c, int shards)
{
    char *dir = ck_temp();
    ck_save(c, dir, shards);
    struct model m = load(dir);
    ck_remove(dir);
    free(dir);
    return m;
}

static struct draft load_draft(const struct ck *c, const struct model *target, const char *capture)
{
    struct draft d;
    struct err e = {0};
    char *dir = ck_temp();
    ck_save(c, dir, 1);
    if (!draft_load(&d, dir, target, capture, NULL, &e))
        fail_msg("%s", e.msg);
    ck_remove(dir);
    free(dir);
    return d;
}

/* The tensor is the one of that name in the file, byte for byte, with those dimensions. */
static void assert_tensor(struct safetensors *s, const struct tensor *t, const char *name, int d0,
                          int d1, int d2, int d3)
{
    const int dim[4] = {d0, d1, d2, d3};
    struct err e = {0};
    const struct tensor *f = st_find(s, name);
    if (!f)
        fail_msg("%s is not in the file", name);
    int rank = 0;
    while (rank < 4 && dim[rank])
        rank++;
    if (!t->data || strcmp(t->name, name) || t->n_dim != rank || t->bytes != f->bytes)
        fail_msg("%s is bound to %s", name, t->data ? t->name : "nothing");
    for (int i = 0; i < rank; i++)
        assert_int_equal(t->dim[i], dim[i]);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    char *bytes = xmalloc(f->bytes);
    assert_true(st_read(s, f, bytes, &e));
    assert_memory_equal(bytes, t->data, f->bytes);
    free(bytes);
}

struct row { /* one tensor of a layer */
    size_t at;
    const char *name;
    int dim[4];
};
#define ROW(member, name, ...) {offsetof(struct layer, member), name, {__VA_ARGS__}}

static int assert_layer(struct safetensors *s, struct layer *l, const char *prefix,
                        const struct row *row, int n)
{
    for (int i = 0; i < n; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, row[i].name);
        assert_tensor(s, (struct tensor *)((char *)l + row[i].at), name, row[i].dim[0],
                      row[i].dim[1], row[i].dim[2], row[i].dim[3]);
    }
    int all, there = 0;
    struct tensor *t = layer_tensors(l, &all);
    for (int i = 0; i < all; i++)
        there += t[i].data != NULL;
    assert_int_equal(there, n); /* and no other */
    return n;
}

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

static struct safetensors *open_dir(const char *dir)
{
    struct err e = {0};
    struct safetensors *s = st_open(dir, &e);
    if (!s)
        fail_msg("%s", e.msg);
    return s;
}

/* ---- the golden folders, tensor by tensor ---- */

static void test_gemma3_binds_every_tensor(void **state)
{
    (void)state;
    static const struct row rows[] = {
        ROW(in_norm, "input_layernorm.weight", 64),
        ROW(attn_norm, "post_attention_layernorm.weight", 64),
        ROW(ffn_in_norm, "pre_feedforward_layernorm.weight", 64),
        ROW(ffn_norm, "post_feedforward_layernorm.weight", 64),
        ROW(wq, "self_attn.q_proj.weight", 64, 64),
        ROW(wk, "self_attn.k_proj.weight", 32, 64),
        ROW(wv, "self_attn.v_proj.weight", 32, 64),
        ROW(wo, "self_attn.o_proj.weight", 64, 64),
        ROW(q_norm, "self_attn.q_norm.weight", 16),
        ROW(k_norm, "self_attn.k_norm.weight", 16),
        ROW(gate, "mlp.gate_proj.weight", 128, 64),
        ROW(up, "mlp.up_proj.weight", 128, 64),
        ROW(down, "mlp.down_proj.weight", 64, 128),
    };
    struct model m = load(G3);
    struct safetensors *s = open_dir(G3);
    int bound = 2;
    assert_tensor(s, &m.embed, "model.embed_tokens.weight", 600, 64, 0, 0);
    assert_tensor(s, &m.norm, "model.norm.weight", 64, 0, 0, 0);
    for (int i = 0; i < 8; i++) {
        char prefix[32];
        struct layer *l = &m.layer[i];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        bound += assert_layer(s, l, prefix, rows, LEN(rows));
        assert_true(l->n_head == 4 && l->n_kv == 2 && l->head_dim == 16 && l->ffn == 128);
        assert_int_equal(l->window, i == 5 ? 0 : 8); /* pattern 6 */
        assert_int_equal(l->rope_id, i == 5 ? 1 : 0);
        assert_int_equal(l->kv_src, i);
    }
    assert_int_equal(bound, st_count(s));
    const struct config *g = &m.cfg;
    assert_string_equal(g->family, "gemma3");
    assert_true(g->hidden == 64 && g->n_layer == 8 && g->vocab == 600 && g->max_pos == 32768);
    assert_true(g->norm == NORM_RMS1P && g->place == PLACE_SANDWICH && g->act == ACT_GELU_TANH);
    assert_true(g->qk_norm && !g->qk_norm_whole && !g->qkv_bias && !g->o_bias && !g->sinks);
    assert_true(g->tied && m.head.data == m.embed.data && !g->v_norm && g->moe == MOE_NONE);
    assert_true(g->attn_scale == 0.25f && g->embed_scale == 8 && g->eps == 1e-6f);
    assert_true(g->attn_softcap == 0 && g->final_softcap == 0 && g->window == 8 && g->ple == 0);
    assert_true(g->n_rope == 2 && g->rope[0].theta == 1e4 && g->rope[1].theta == 1e6);
    assert_true(g->n_stop == 2 && g->stop[0] == 1 && g->stop[1] == 106);
    assert_true(g->bos == 2 && g->pad == 0);
    st_close(s);
    model_free(&m);
}

static void test_gpt_oss_binds_every_tensor(void **state)
{
    (void)state;
    static const struct row rows[] = {
        ROW(in_norm, "input_layernorm.weight", 64),
        ROW(ffn_in_norm, "post_attention_layernorm.weight", 64),
        ROW(wq, "self_attn.q_proj.weight", 64, 64),
        ROW(wk, "self_attn.k_proj.weight", 32, 64),
        ROW(wv, "self_attn.v_proj.weight", 32, 64),
        ROW(wo, "self_attn.o_proj.weight", 64, 64),
        ROW(bq, "self_attn.q_proj.bias", 64),
        ROW(bk, "self_attn.k_proj.bias", 32),
        ROW(bv, "self_attn.v_proj.bias", 32),
        ROW(bo, "self_attn.o_proj.bias", 64),
        ROW(sinks, "self_attn.sinks", 4),
        ROW(router, "mlp.router.weight", 8, 64),
        ROW(router_b, "mlp.router.bias", 8),
        ROW(gate_up, "mlp.experts.gate_up_proj_blocks", 8, 128, 2, 16),
        ROW(gate_up_s, "mlp.experts.gate_up_proj_scales", 8, 128, 2),
        ROW(gate_up_b, "mlp.experts.gate_up_proj_bias", 8, 128),
        ROW(down_e, "mlp.experts.down_proj_blocks", 8, 64, 2, 16),
        ROW(down_s, "mlp.experts.down_proj_scales", 8, 64, 2),
        ROW(down_b, "mlp.experts.down_proj_bias", 8, 64),
    };
    struct model m = load(OSS);
    struct safetensors *s = open_dir(OSS);
    int bound = 3;
    assert_tensor(s, &m.embed, "model.embed_tokens.weight", 512, 64, 0, 0);
    assert_tensor(s, &m.head, "lm_head.weight", 512, 64, 0, 0);
    assert_tensor(s, &m.norm, "model.norm.weight", 64, 0, 0, 0);
    for (int i = 0; i < 6; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        bound += assert_layer(s, &m.layer[i], prefix, rows, LEN(rows));
        assert_int_equal(m.layer[i].window, i % 2 ? 0 : 8);
        assert_true(m.layer[i].is_moe && m.layer[i].rope_id == 0);
        assert_int_equal(m.layer[i].gate_up.type, DT_U8);
    }
    assert_int_equal(bound, st_count(s));
    const struct config *g = &m.cfg;
    assert_true(g->norm == NORM_RMS && g->place == PLACE_PRE && g->act == ACT_SWIGLU_CLAMP);
    assert_true(g->sinks && g->qkv_bias && g->o_bias && !g->qk_norm && !g->tied);
    assert_true(g->moe == MOE_GPTOSS && g->store == STORE_MXFP4 && g->n_expert == 8);
    assert_true(g->top_k == 2 && g->expert_ffn == 64 && g->swiglu_limit == 7);
    assert_true(g->attn_scale == 0.25f && g->embed_scale == 1 && g->eps == 1e-5f);
    assert_true(g->n_rope == 1 && g->rope[0].kind == ROPE_YARN && g->rope[0].theta == 150000);
    st_close(s);
    model_free(&m);
}

static void test_gemma4_binds_every_tensor(void **state)
{
    (void)state;
    static const struct row shared[] = {
        ROW(in_norm, "input_layernorm.weight", 64),
        ROW(attn_norm, "post_attention_layernorm.weight", 64),
        ROW(ffn_in_norm, "pre_feedforward_layernorm.weight", 64),
        ROW(ffn_norm, "post_feedforward_layernorm.weight", 64),
        ROW(ple_gate, "per_layer_input_gate.weight", 16, 64),
        ROW(ple_proj, "per_layer_projection.weight", 64, 16),
        ROW(ple_norm, "post_per_layer_input_norm.weight", 64),
        ROW(layer_scalar, "layer_scalar", 1),
    };
    struct model m = load(G4);
    struct safetensors *s = open_dir(G4);
    int bound = 5;
    assert_tensor(s, &m.embed, "model.embed_tokens.weight", 600, 64, 0, 0);
    assert_tensor(s, &m.norm, "model.norm.weight", 64, 0, 0, 0);
    assert_tensor(s, &m.ple_embed, "model.embed_tokens_per_layer.weight", 600, 192, 0, 0);
    assert_tensor(s, &m.ple_model_proj, "model.per_layer_model_projection.weight", 192, 64, 0, 0);
    assert_tensor(s, &m.ple_proj_norm, "model.per_layer_projection_norm.weight", 16, 0, 0, 0);
    for (int i = 0; i < 12; i++) {
        bool full = i % 6 == 5, own = i < 6;
        int d = full ? 32 : 16, ffn = own ? 96 : 192;
        struct row rows[32];
        int n = LEN(shared);
        memcpy(rows, shared, sizeof shared);
        rows[n++] = (struct row)ROW(wq, "self_attn.q_proj.weight", 4 * d, 64);
        rows[n++] = (struct row)ROW(wo, "self_attn.o_proj.weight", 64, 4 * d);
        rows[n++] = (struct row)ROW(q_norm, "self_attn.q_norm.weight", d);
        rows[n++] = (struct row)ROW(gate, "mlp.gate_proj.weight", ffn, 64);
        rows[n++] = (struct row)ROW(up, "mlp.up_proj.weight", ffn, 64);
        rows[n++] = (struct row)ROW(down, "mlp.down_proj.weight", 64, ffn);
        if (own) {
            rows[n++] = (struct row)ROW(wk, "self_attn.k_proj.weight", 2 * d, 64);
            rows[n++] = (struct row)ROW(wv, "self_attn.v_proj.weight", 2 * d, 64);
            rows[n++] = (struct row)ROW(k_norm, "self_attn.k_norm.weight", d);
        }
        char prefix[32];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        bound += assert_layer(s, &m.layer[i], prefix, rows, n);
        assert_int_equal(m.layer[i].kv_src, own ? i : full ? 5 : 4);
        assert_int_equal(model_kv_owner(&m, i), m.layer[i].kv_src);
        assert_int_equal(m.layer[i].window, full ? 0 : 8);
        assert_int_equal(m.layer[i].rope_id, full);
        assert_int_equal(m.layer[i].head_dim, d);
        assert_int_equal(m.layer[i].ffn, ffn);
    }
    assert_int_equal(bound, st_count(s));
    const struct config *g = &m.cfg;
    assert_true(g->norm == NORM_RMS && g->place == PLACE_SANDWICH && g->v_norm && g->qk_norm);
    assert_true(g->attn_scale == 1 && g->final_softcap == 30 && g->attn_softcap == 0);
    assert_true(g->ple == 16 && g->ple_vocab == 600 && g->tied && g->embed_scale == 8);
    /* proportional: the first quarter of 32 dimensions turns, as pairs (i, i + 16) */
    const struct rope *r = &g->rope[1];
    assert_true(r->kind == ROPE_PROPORTIONAL && r->rot == 32 && r->half == 16);
    for (int i = 0; i < 16; i++)
        assert_true(fabs(r->inv_freq[i] - (i < 4 ? pow(1e6, -2.0 * i / 32) : 0)) < 1e-7);
    assert_true(g->rope[0].rot == 16 && g->rope[0].theta == 1e4);
    st_close(s);
    model_free(&m);
}

static void test_eagle3_binds_every_tensor(void **state)
{
    (void)state;
    static const struct row rows[] = {
        ROW(in_norm, "input_layernorm.weight", 64),
        ROW(hidden_norm, "hidden_norm.weight", 64),
        ROW(ffn_in_norm, "post_attention_layernorm.weight", 64),
        ROW(wq, "self_attn.q_proj.weight", 64, 128),
        ROW(wk, "self_attn.k_proj.weight", 32, 128),
        ROW(wv, "self_attn.v_proj.weight", 32, 128),
        ROW(wo, "self_attn.o_proj.weight", 64, 64),
        ROW(gate, "mlp.gate_proj.weight", 128, 64),
        ROW(up, "mlp.up_proj.weight", 128, 64),
        ROW(down, "mlp.down_proj.weight", 64, 128),
    };
    struct model m = load(OSS);
    struct draft d;
    struct err e = {0};
    assert_true(draft_load(&d, EAGLE, &m, NULL, NULL, &e));
    struct safetensors *s = open_dir(EAGLE);
    int bound = 3 + 2 + assert_layer(s, &d.layer[0], "midlayer.", rows, LEN(rows)); /* + d2t, t2d */
    assert_tensor(s, &d.fc, "fc.weight", 64, 192, 0, 0);
    assert_tensor(s, &d.norm, "norm.weight", 64, 0, 0, 0);
    assert_tensor(s, &d.head, "lm_head.weight", 160, 64, 0, 0);
    assert_int_equal(bound, st_count(s));
    assert_true(!d.embed.data && !d.input_norm.data && !d.fc_b.data && !d.fc_norm[0].data);
    assert_true(!strcmp(d.kind, "eagle3") && d.target_hidden == 64 && d.draft_vocab == 160);
    assert_true(d.cfg.vocab == 512 && d.cfg.hidden == 64 && d.cfg.n_layer == 1);
    assert_true(!d.norm_before_residual && !d.norm_output && !d.note[0]);
    assert_true(d.n_capture == 3 && d.capture[0] == 2 && d.capture[1] == 3 && d.capture[2] == 3);
    assert_true(d.cfg.rope[0].kind == ROPE_DEFAULT && d.cfg.rope[0].theta == 1e4);
    int64_t off[160];
    uint8_t mark[512], seen[512] = {0};
    assert_true(st_read(s, st_find(s, "d2t"), off, &e) && st_read(s, st_find(s, "t2d"), mark, &e));
    for (int i = 0; i < 160; i++) {
        assert_int_equal(d.d2t[i], i + off[i]);
        seen[d.d2t[i]] = 1;
    }
    assert_memory_equal(seen, mark, 512);
    st_close(s);
    draft_free(&d);
    model_free(&m);
}

static void test_assistant_binds_every_tensor(void **state)
{
    (void)state;
    struct model m = load(G4);
    struct draft d;
    struct err e = {0};
    assert_true(draft_load(&d, ASSIST, &m, NULL, NULL, &e));
    struct safetensors *s = open_dir(ASSIST);
    int bound = 6; /* with token_ordering */
    assert_tensor(s, &d.embed, "model.embed_tokens.weight", 600, 32, 0, 0);
    assert_tensor(s, &d.norm, "model.norm.weight", 32, 0, 0, 0);
    assert_tensor(s, &d.pre_proj, "pre_projection.weight", 32, 128, 0, 0);
    assert_tensor(s, &d.post_proj, "post_projection.weight", 64, 32, 0, 0);
    assert_tensor(s, &d.centroids, "masked_embedding.centroids.weight", 20, 32, 0, 0);
    for (int i = 0; i < 4; i++) {
        int dim = i == 3 ? 32 : 16;
        const struct row rows[] = {
            ROW(in_norm, "input_layernorm.weight", 32),
            ROW(attn_norm, "post_attention_layernorm.weight", 32),
            ROW(ffn_in_norm, "pre_feedforward_layernorm.weight", 32),
            ROW(ffn_norm, "post_feedforward_layernorm.weight", 32),
            ROW(wq, "self_attn.q_proj.weight", 4 * dim, 32),
            ROW(wo, "self_attn.o_proj.weight", 32, 4 * dim),
            ROW(q_norm, "self_attn.q_norm.weight", dim),
            ROW(gate, "mlp.gate_proj.weight", 64, 32),
            ROW(up, "mlp.up_proj.weight", 64, 32),
            ROW(down, "mlp.down_proj.weight", 32, 64),
            ROW(layer_scalar, "layer_scalar", 1),
        };
        char prefix[32];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        bound += assert_layer(s, &d.layer[i], prefix, rows, LEN(rows));
        assert_int_equal(d.layer[i].kv_src, i == 3 ? 5 : 4);
    }
    assert_int_equal(bound, st_count(s));
    assert_true(!strcmp(d.kind, "frozen-kv") && d.kv_full == 5 && d.kv_swa == 4 && d.target_hidden == 64);
    assert_true(d.n_centroid == 20 && d.centroid_top == 4 && d.draft_vocab == 600 && d.cfg.tied);
    assert_true(d.head.data == d.embed.data && d.cfg.final_softcap == 0 && d.n_capture == 0);
    int64_t order[600];
    assert_true(st_read(s, st_find(s, "masked_embedding.token_ordering"), order, &e));
    for (int i = 0; i < 600; i++)
        assert_int_equal(d.token_order[i], order[i]);
    st_close(s);
    draft_free(&d);
    model_free(&m);
}

static void test_the_bundled_model_loads_with_its_draft(void **state)
{
    (void)state;
    struct model m = load("models/nestling/target");
    struct draft d;
    struct err e = {0};
    assert_true(draft_load(&d, "models/nestling/draft", &m, NULL, NULL, &e));
    assert_true(m.cfg.window == 64 && m.cfg.n_layer == 8 && m.cfg.vocab == 4096);
    for (int i = 0; i < 8; i++)
        assert_int_equal(m.layer[i].window, i % 4 == 3 ? 0 : 64);
    assert_true(m.cfg.sampling.given && m.cfg.sampling.temperature == 0);
    assert_true(m.cfg.n_stop == 2 && m.cfg.stop[0] == 1 && m.cfg.stop[1] == 5);
    assert_true(d.capture[0] == 2 && d.capture[1] == 4 && d.capture[2] == 5);
    assert_int_equal(d.draft_vocab, 2048);
    draft_free(&d);
    model_free(&m);
}

/* ---- memory, digest, iteration ---- */

struct seen {
    uint64_t bytes;
    int n, stop_at;
    const void *data[512];
};

static bool see(struct tensor *t, void *arg, struct err *e)
{
    struct seen *s = arg;
    if (s->n == s->stop_at)
        return err_set(e, ERR_MODEL, "enough");
    for (int i = 0; i < s->n; i++)
        assert_ptr_not_equal(s->data[i], t->data);
    s->data[s->n++] = t->data;
    s->bytes += t->bytes;
    return true;
}

static void test_each_visits_every_tensor_once(void **state)
{
    (void)state;
    static const char *const dirs[] = {G3, OSS, G4};
    for (int i = 0; i < 3; i++) {
        struct model m = load(dirs[i]);
        struct safetensors *s = open_dir(dirs[i]);
        struct seen seen = {.stop_at = -1};
        struct err e = {0};
        assert_true(model_each(&m, see, &seen, &e));
        assert_int_equal(seen.n, st_count(s));
        assert_int_equal(seen.bytes, m.bytes);
        seen = (struct seen){.stop_at = 3};
        assert_false(model_each(&m, see, &seen, &e));
        assert_int_equal(seen.n, 3);
        st_close(s);
        model_free(&m);
    }
    struct model m = load(G4);
    struct draft d;
    struct err e = {0};
    struct seen seen = {.stop_at = -1};
    assert_true(draft_load(&d, ASSIST, &m, NULL, NULL, &e));
    assert_true(draft_each(&d, see, &seen, &e));
    assert_int_equal(seen.bytes, d.bytes);
    draft_free(&d);
    model_free(&m);
}

static bool move_away(struct tensor *t, void *arg, struct err *e)
{
    (void)e;
    t->data = (char *)arg + 1; /* a device's address: never read */
    return true;
}

static void test_a_tied_head_follows_its_embedding_to_a_device(void **state)
{
    (void)state;
    struct model m = load(G3);
    struct err e = {0};
    char device;
    assert_true(model_each(&m, move_away, &device, &e));
    assert_ptr_equal(m.embed.data, &device + 1);
    assert_ptr_equal(m.head.data, &device + 1);
    model_free(&m);
}

struct reports {
    uint64_t last, gap, total;
    int n;
};

static void report(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct reports *r = arg;
    assert_string_equal(what, "model");
    assert_true(done >= r->last && done <= total);
    r->last = done, r->total = total;
    r->n++;
}

static void test_progress_ends_with_all_bytes(void **state)
{
    (void)state;
    struct reports r = {0};
    struct progress p = {report, &r};
    struct model m;
    struct err e = {0};
    assert_true(model_load(&m, "models/nestling/target", &p, &e));
    assert_true(r.n > 1 && r.last == m.bytes && r.total == m.bytes);
    model_free(&m);
}

static void test_shards_hold_the_same_model(void **state)
{
    (void)state;
    struct ck c = ck_load(OSS, ST);
    struct model one = load_ck(&c, 1);
    for (int shards = 2; shards <= 7; shards += 5) {
        struct model m = load_ck(&c, shards);
        assert_string_equal(m.sha, one.sha);
        const struct tensor *a = &m.layer[3].down_e, *b = &one.layer[3].down_e;
        assert_memory_equal(a->data, b->data, a->bytes);
        model_free(&m);
    }
    model_free(&one);
    ck_free(&c);
}

static void test_sha_sees_every_kind_of_change(void **state)
{
    (void)state;
    struct ck c = ck_load(G3, ST);
    struct model m = load_ck(&c, 1);
    char was[65];
    memcpy(was, m.sha, 65);
    assert_int_equal(strlen(was), 64);
    model_free(&m);
    uint64_t seed = 3;
    for (int i = 0; i < 40; i++) { /* one bit of one weight */
        seed = mix64(seed);
        struct ck_tensor *t = &c.t[seed % (uint64_t)c.n];
        size_t at = (seed >> 8) % t->n;
        t->data[at] ^= (char)(1 << (seed >> 60 & 7));
        m = load_ck(&c, 1);
        assert_string_not_equal(m.sha, was);
        model_free(&m);
        t->data[at] ^= (char)(1 << (seed >> 60 & 7));
    }
    ck_set(&c, "rope_theta", json_integer(1000001));
    m = load_ck(&c, 1);
    assert_string_not_equal(m.sha, was);
    model_free(&m);
    ck_free(&c);
}

/* A large tensor is read in parts by several threads; every byte arrives where it belongs. */
static void test_large_tensors_arrive_whole(void **state)
{
    (void)state;
    enum { VOCAB = 300007, HIDDEN = 64 }; /* 38 MB: many parts, none of them aligned */
    struct ck c = ck_load(G3, ST);
    struct ck_tensor *t = ck_find(&c, "model.embed_tokens.weight");
    char shape[32];
    snprintf(shape, sizeof shape, "[%d, %d]", VOCAB, HIDDEN);
    ck_reshape(&c, t->name, NULL, shape);
    for (size_t i = 0; i + 8 <= t->n; i += 8) {
        uint64_t x = mix64(i);
        memcpy(t->data + i, &x, 8);
    }
    ck_set(&c, "vocab_size", json_integer(VOCAB));
    struct model m = load_ck(&c, 1);
    assert_int_equal(m.embed.bytes, t->n);
    assert_memory_equal(m.embed.data, t->data, t->n);
    model_free(&m);
    ck_free(&c);
}

/* ---- the other families, by their switches ---- */

static void test_families_differ_in_their_switches(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *family;
        enum norm_kind norm;
        enum norm_place place;
        enum act_kind act;
        bool qk_norm, whole, bias, tied;
        const char *windows, *ropes; /* a digit a layer */
        enum rope_kind rope[2];
        float embed_scale, attn_softcap, final_softcap;
    } want[] = {
        {"gemma2-b", "gemma2", NORM_RMS1P, PLACE_SANDWICH, ACT_GELU_TANH, 0, 0, 0, 1, "5050",
         "0000", {ROPE_DEFAULT}, 6.9282032f, 50, 30},
        {"gemma3-b", "gemma3", NORM_RMS1P, PLACE_SANDWICH, ACT_GELU_TANH, 1, 0, 0, 1, "7070",
         "0101", {ROPE_DEFAULT, ROPE_LINEAR}, 6.9282032f, 0, 0},
        {"gemma4-moe-b", "gemma4", NORM_RMS, PLACE_SANDWICH, ACT_GELU_TANH, 1, 0, 0, 1, "5550",
         "0001", {ROPE_DEFAULT, ROPE_PROPORTIONAL}, 6.9282032f, 0, 30},
        {"gptoss-plain-b", "gpt_oss", NORM_RMS, PLACE_PRE, ACT_SWIGLU_CLAMP, 0, 0, 1, 0, "5050",
         "0000", {ROPE_YARN}, 1, 0, 0},
        {"olmo3-b", "olmo3", NORM_RMS, PLACE_POST, ACT_SILU, 1, 1, 0, 0, "5550", "0001",
         {ROPE_DEFAULT, ROPE_YARN}, 1, 0, 0},
        {"qwen3-b", "qwen3", NORM_RMS, PLACE_PRE, ACT_SILU, 1, 0, 0, 0, "000", "000",
         {ROPE_DEFAULT}, 1, 0, 0},
        {"llama-b", "llama", NORM_RMS, PLACE_PRE, ACT_SILU, 0, 0, 1, 0, "000", "000",
         {ROPE_LLAMA3}, 1, 0, 0},
        {"mistral-b", "mistral", NORM_RMS, PLACE_PRE, ACT_SILU, 0, 0, 0, 0, "666", "000",
         {ROPE_DEFAULT}, 1, 0, 0},
    };
    for (int i = 0; i < LEN(want); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "tests/golden/%s", want[i].dir);
        struct model m = load(dir);
        struct safetensors *s = open_dir(dir);
        const struct config *g = &m.cfg;
        print_message("# %s\n", want[i].dir);
        assert_string_equal(g->family, want[i].family);
        assert_true(g->norm == want[i].norm && g->place == want[i].place && g->act == want[i].act);
        assert_true(g->qk_norm == want[i].qk_norm && g->qk_norm_whole == want[i].whole);
        assert_true(g->qkv_bias == want[i].bias && g->o_bias == want[i].bias);
        assert_true(g->tied == want[i].tied && g->embed_scale == want[i].embed_scale);
        assert_true(g->attn_softcap == want[i].attn_softcap);
        assert_true(g->final_softcap == want[i].final_softcap);
        assert_int_equal(g->n_layer, strlen(want[i].windows));
        for (int l = 0; l < g->n_layer; l++) {
            assert_int_equal(m.layer[l].window, want[i].windows[l] - '0');
            assert_int_equal(m.layer[l].rope_id, want[i].ropes[l] - '0');
            assert_int_equal(g->rope[m.layer[l].rope_id].head_dim, m.layer[l].head_dim);
        }
        for (int r = 0; r < g->n_rope; r++)
            assert_int_equal(g->rope[r].kind, want[i].rope[r]);
        struct seen seen = {.stop_at = -1};
        struct err e = {0};
        assert_true(model_each(&m, see, &seen, &e));
        assert_int_equal(seen.n, st_count(s)); /* nothing left over, nothing twice */
        st_close(s);
        model_free(&m);
    }
}

static void test_gemma4_moe_layers_have_both_kinds_of_mlp(void **state)
{
    (void)state;
    struct model m = load("tests/golden/gemma4-moe-b");
    const struct config *g = &m.cfg;
    assert_true(g->moe == MOE_GEMMA4 && g->store == STORE_HALVES && g->n_expert == 5);
    assert_true(g->top_k == 2 && g->expert_ffn == 12 && g->ple == 0);
    const struct layer *l = &m.layer[3];
    assert_true(l->is_moe && l->v_from_k && !l->wv.data && l->wk.data && l->n_kv == 3);
    assert_true(!m.layer[0].v_from_k && m.layer[0].wv.data && m.layer[0].n_kv == 2);
    assert_true(l->gate.data && l->gate_up.dim[1] == 24 && l->gate_up.dim[2] == 48);
    assert_true(l->down_e.dim[1] == 48 && l->down_e.dim[2] == 12 && l->router_in.data);
    assert_true(l->expert_scale.dim[0] == 5 && l->ffn_norm_1.data && l->ffn_norm_2.data);
    assert_true(l->ffn_in_norm_2.data && l->layer_scalar.data && !l->router_b.data);
    model_free(&m);
}

/* A header may list its tensors in any order. */
static void test_the_order_of_a_header_does_not_matter(void **state)
{
    (void)state;
    struct ck c = ck_load(OSS, ST);
    struct model one = load_ck(&c, 1);
    char *dir = ck_temp();
    json_t *head = ck_header(&c, 0, c.n), *turned = json_object();
    for (int i = c.n - 1; i >= 0; i--)
        json_object_set(turned, c.t[i].name, json_object_get(head, c.t[i].name));
    char *text = json_dumps(turned, JSON_COMPACT);
    struct buf b = ck_file(&c, 0, c.n, text, strlen(text));
    ck_save_config(&c, dir);
    ck_write(dir, ST, b.p, b.n);
    struct model m = load(dir);
    assert_string_equal(m.sha, one.sha);
    buf_free(&b);
    free(text);
    json_decref(head);
    json_decref(turned);
    ck_remove(dir);
    free(dir);
    model_free(&m);
    model_free(&one);
    ck_free(&c);
}

/* ---- rope ---- */

static struct rope rope_of(struct rope r, int head_dim)
{
    struct err e = {0};
    if (!rope_init(&r, head_dim, &e))
        fail_msg("%s", e.msg);
    return r;
}

static void assert_near(double x, double y, double relative)
{
    if (!(fabs(x - y) <= relative * fabs(y)))
        fail_msg("%.12g, expected %.12g", x, y);
}

/* Frequencies are computed in float32 in the reference's steps; this bounds what they add up to. */
#define FLOAT_STEPS 4e-7

static void test_yarn_of_gpt_oss(void **state)
{
    (void)state;
    static const struct { int i; double inv; } want[] = {
        {0, 1}, {1, 0.6890443058881632}, {8, 0.050813274815461475}, {9, 0.03170569618466377},
        {12, 0.006794959489732219}, {16, 4.5648391922324086e-4}, {17, 1.29318701245e-4},
        {18, 3.83088123737534e-5}, {31, 3.02351142811921e-7},
    };
    struct rope r = rope_of((struct rope){.kind = ROPE_YARN, .theta = 150000, .factor = 32,
                                          .original_max = 4096, .beta_fast = 32, .beta_slow = 1,
                                          .partial = 1, .truncate = false}, 64);
    assert_true(r.rot == 64 && r.half == 32);
    for (int i = 0; i < LEN(want); i++)
        assert_near(r.inv_freq[want[i].i], want[i].inv, FLOAT_STEPS);
    assert_near(r.cs_factor, 1.3465735902799727, 1e-7);
    rope_free(&r);
}

static void test_yarn_options(void **state)
{
    (void)state;
    struct rope base = {.kind = ROPE_YARN, .theta = 5e5, .factor = 8, .original_max = 8192,
                        .beta_fast = 32, .beta_slow = 1, .partial = 1, .truncate = true};
    /* OLMo 3: 18.08 and 34.98 become 18 and 35 */
    struct rope r = rope_of(base, 128);
    assert_near(r.inv_freq[18], pow(5e5, -36.0 / 128), FLOAT_STEPS);
    assert_near(r.inv_freq[35], pow(5e5, -70.0 / 128) / 8, FLOAT_STEPS);
    double ramp = (26 - 18.0) / (35 - 18), plain = pow(5e5, -52.0 / 128);
    assert_near(r.inv_freq[26], plain / 8 * ramp + plain * (1 - ramp), FLOAT_STEPS);
    assert_near(r.cs_factor, 1.2079441541679836, FLOAT_STEPS);
    rope_free(&r);
    base.attention_factor = 0.75; /* explicit wins */
    base.mscale = 2, base.mscale_all_dim = 1;
    r = rope_of(base, 128);
    assert_near(r.cs_factor, 0.75, FLOAT_STEPS);
    rope_free(&r);
    base.attention_factor = 0; /* then the ratio of the two */
    r = rope_of(base, 128);
    assert_near(r.cs_factor, (0.2 * log(8) + 1) / (0.1 * log(8) + 1), FLOAT_STEPS);
    rope_free(&r);
    base.mscale_all_dim = 0; /* one alone counts for nothing */
    base.factor = 1;
    r = rope_of(base, 128);
    assert_near(r.cs_factor, 1, FLOAT_STEPS);
    rope_free(&r);
}

static void test_linear_llama3_and_partial(void **state)
{
    (void)state;
    struct rope r = rope_of((struct rope){.kind = ROPE_LINEAR, .theta = 1e6, .factor = 8,
                                          .partial = 1}, 256);
    for (int i = 0; i < 128; i++)
        assert_near(r.inv_freq[i], pow(1e6, -2.0 * i / 256) / 8, FLOAT_STEPS);
    assert_true(r.cs_factor == 1);
    rope_free(&r);
    r = rope_of((struct rope){.kind = ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low_freq_factor = 1,
                              .high_freq_factor = 4, .original_max = 8192, .partial = 1}, 128);
    for (int i = 0; i < 64; i++) {
        double inv = pow(5e5, -2.0 * i / 128), wave = 2 * M_PI / inv, s = (8192 / wave - 1) / 3;
        double want = wave < 2048 ? inv : wave > 8192 ? inv / 8 : (1 - s) * inv / 8 + s * inv;
        assert_near(r.inv_freq[i], want, FLOAT_STEPS);
    }
    rope_free(&r);
    r = rope_of((struct rope){.kind = ROPE_DEFAULT, .theta = 1e4, .partial = 0.5}, 64);
    assert_true(r.rot == 32 && r.half == 16);
    assert_near(r.inv_freq[3], pow(1e4, -6.0 / 32), FLOAT_STEPS);
    rope_free(&r);
    struct err e = {0};
    struct rope odd = {.kind = ROPE_DEFAULT, .theta = 1e4, .partial = 0.334};
    assert_false(rope_init(&odd, 64, &e)); /* 21 dimensions */
    assert_null(odd.inv_freq);
}

/* Values of transformers 5.23 on torch 2.15: equal, or the next float where its pow() rounds
 * otherwise. Frequencies rounded only at the end would turn a head of width 10 by 0.002 radians
 * more or less at position 10,000. */
static void test_frequencies_are_those_of_the_reference(void **state)
{
    (void)state;
    static const struct {
        struct rope rope;
        int head_dim, from;
        float inv[12];
    } want[] = {
        {{.kind = ROPE_YARN, .theta = 150000, .factor = 32, .original_max = 4096, .beta_fast = 32,
          .beta_slow = 1, .partial = 1}, 10, 0,
         {0x1.p+0f, 0x1.79b206p-4f, 0x1.1c2904p-8f, 0x1.9b11bep-16f,
          0x1.2f3d8p-19f}},
        {{.kind = ROPE_YARN, .theta = 150000, .factor = 32, .original_max = 4096, .beta_fast = 32,
          .beta_slow = 1, .partial = 1}, 64, 8,
         {0x1.a04328p-5f, 0x1.03bbaap-5f, 0x1.3cc8dep-6f, 0x1.7bd928p-7f,
          0x1.bd508p-8f, 0x1.f9fc28p-9f, 0x1.127006p-9f, 0x1.13eefp-10f,
          0x1.dea878p-12f, 0x1.0f3372p-13f, 0x1.415b8cp-15f, 0x1.badbf8p-16f}},
        {{.kind = ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low_freq_factor = 1,
          .high_freq_factor = 4, .original_max = 8192, .partial = 1}, 128, 26,
         {0x1.3d2804p-8f, 0x1.025c6ap-8f, 0x1.a4ee4p-9f, 0x1.1bfa0cp-9f,
          0x1.67a23ap-10f, 0x1.c12f3cp-11f, 0x1.132ba4p-11f, 0x1.47e21p-12f,
          0x1.765ba4p-13f, 0x1.90d10cp-14f, 0x1.46831ap-14f, 0x1.09fb7ep-14f}},
        {{.kind = ROPE_YARN, .theta = 5e5, .factor = 8, .original_max = 8192, .beta_fast = 32,
          .beta_slow = 1, .partial = 1, .truncate = true}, 128, 20,
         {0x1.e6ca9p-7f, 0x1.75cbb4p-7f, 0x1.1df734p-7f, 0x1.b3b51cp-8f,
          0x1.4a55dep-8f, 0x1.f21d96p-9f, 0x1.752006p-9f, 0x1.155bacp-9f,
          0x1.988ce4p-10f, 0x1.29838cp-10f, 0x1.ab35f2p-11f, 0x1.2d2a5p-11f}},
        {{.kind = ROPE_PROPORTIONAL, .theta = 1e6, .factor = 1, .partial = 0.25}, 24, 0,
         {0x1.p+0f, 0x1.43d136p-2f, 0x1.999998p-4f, 0,
          0, 0, 0, 0,
          0, 0, 0, 0}},
    };
    for (int k = 0; k < LEN(want); k++) {
        struct rope r = rope_of(want[k].rope, want[k].head_dim);
        for (int i = 0; i < 12 && want[k].from + i < r.half; i++)
            assert_near(r.inv_freq[want[k].from + i], want[k].inv[i], 1.2e-7);
        rope_free(&r);
    }
}

/* Both spellings of the same rope give the same frequencies. */
static void test_rope_spellings_agree(void **state)
{
    (void)state;
    struct ck c = ck_load(G3, ST);
    ck_set_text(&c, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 8.0}");
    struct model old = load_ck(&c, 1);
    ck_set(&c, "rope_scaling", NULL);
    ck_set(&c, "rope_theta", NULL);
    ck_set(&c, "rope_local_base_freq", NULL);
    ck_set_text(&c, "rope_parameters",
                "{\"full_attention\":"
                " {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 1e6},"
                " \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}");
    struct model new = load_ck(&c, 1);
    for (int r = 0; r < 2; r++)
        assert_memory_equal(old.cfg.rope[r].inv_freq, new.cfg.rope[r].inv_freq, 8 * sizeof(float));
    assert_near(old.cfg.rope[1].inv_freq[1], pow(1e6, -0.125) / 8, FLOAT_STEPS);
    assert_near(old.cfg.rope[0].inv_freq[1], pow(1e4, -0.125), FLOAT_STEPS); /* never scaled */
    model_free(&old);
    model_free(&new);
    ck_free(&c);

    c = ck_load(OSS, ST);
    old = load_ck(&c, 1);
    ck_set(&c, "rope_parameters", json_incref(json_object_get(c.config, "rope_scaling")));
    ck_set(&c, "rope_scaling", NULL);
    ck_set(&c, "rope_theta", NULL);
    new = load_ck(&c, 1);
    assert_memory_equal(old.cfg.rope[0].inv_freq, new.cfg.rope[0].inv_freq, 8 * sizeof(float));
    assert_true(old.cfg.rope[0].cs_factor == new.cfg.rope[0].cs_factor);
    model_free(&old);
    model_free(&new);
    ck_free(&c);
}

/* ---- variants of targets ---- */

/* Puts every config key below text_config and every tensor below another prefix. */
static struct ck wrapped(const char *dir, const char *type, const char *prefix)
{
    struct ck c = ck_load(dir, ST);
    json_t *text = c.config;
    c.config = json_pack("{s:s, s:o}", "model_type", type, "text_config", text);
    for (int i = 0; i < c.n; i++) {
        char *name = xasprintf("%s%s", prefix, c.t[i].name + strlen("model."));
        free(c.t[i].name);
        c.t[i].name = name;
    }
    return c;
}

static void test_multimodal_folders_give_their_text_model(void **state)
{
    (void)state;
    static const char *const prefix[] = {"language_model.model.", "model.language_model.", ""};
    for (int i = 0; i < 3; i++) {
        struct ck c = wrapped(G3, "gemma3", prefix[i]);
        ck_add(&c, "vision_tower.encoder.layers.0.mlp.fc1.weight", "BF16", json_pack("[ii]", 2, 2),
               NULL, 8);
        ck_add(&c, "model.vision_tower.patch.weight", "F32", json_pack("[iiiii]", 1, 1, 1, 1, 2),
               NULL, 8);
        ck_add(&c, "multi_modal_projector.mm_soft_emb_norm.weight", "BF16", json_pack("[i]", 2),
               NULL, 4);
        struct model m = load_ck(&c, 1 + i);
        assert_string_equal(m.cfg.family, "gemma3");
        assert_int_equal(m.bytes, 671360); /* the text model alone */
        model_free(&m);
        ck_free(&c);
    }
    struct ck c = wrapped(G4, "gemma4", "model.language_model.");
    struct model m = load_ck(&c, 3);
    assert_string_equal(m.cfg.family, "gemma4");
    assert_int_equal(m.layer[11].kv_src, 5);
    model_free(&m);
    ck_free(&c);
}

/* gemma-3 4b leaves nearly everything out; what the class assumes shows in what is expected. */
static void test_silent_gemma3_configs_mean_the_class_defaults(void **state)
{
    (void)state;
    static const struct { const char *key, *expected; } silent[] = {
        {"vocab_size", "262208 (vocab_size)"},
        {"hidden_size", "2304 (hidden_size)"},
        {"head_dim", "1024 (heads x head_dim)"},
        {"intermediate_size", "9216 (intermediate_size)"},
        {"num_attention_heads", "128 (heads x head_dim)"},
        {"num_key_value_heads", "64 (kv heads x head_dim)"},
    };
    for (int i = 0; i < LEN(silent); i++) {
        struct ck c = ck_load(G3, ST);
        struct model m;
        struct err e = {0};
        char *dir = ck_temp();
        ck_set(&c, silent[i].key, NULL);
        ck_save(&c, dir, 1);
        assert_false(model_load(&m, dir, NULL, &e));
        if (!strstr(e.msg, silent[i].expected))
            fail_msg("%s: %s", silent[i].key, e.msg);
        ck_remove(dir);
        free(dir);
        ck_free(&c);
    }
    struct ck c = ck_load(G3, ST);
    static const char *const rest[] = {
        "sliding_window", "rope_theta", "rope_local_base_freq", "rope_scaling", "rms_norm_eps",
        "hidden_activation", "tie_word_embeddings", "sliding_window_pattern", "bos_token_id",
        "max_position_embeddings", "query_pre_attn_scalar", "final_logit_softcapping",
    };
    for (int i = 0; i < LEN(rest); i++)
        ck_set(&c, rest[i], NULL);
    struct model m = load_ck(&c, 1);
    assert_true(m.cfg.window == 4096 && m.cfg.max_pos == 131072 && m.cfg.tied);
    assert_true(m.layer[4].window == 4096 && m.layer[5].window == 0 && m.layer[6].window == 4096);
    assert_true(m.cfg.attn_scale == 0.0625f && m.cfg.eps == 1e-6f && m.cfg.act == ACT_GELU_TANH);
    assert_true(m.cfg.rope[0].theta == 1e4 && m.cfg.rope[1].theta == 1e6 && m.cfg.bos == -1);
    model_free(&m);
    ck_free(&c);
}

static void test_a_second_copy_of_a_tied_head_is_accepted(void **state)
{
    (void)state;
    struct ck c = ck_load(G3, ST);
    const struct ck_tensor *t = ck_find(&c, "model.embed_tokens.weight");
    ck_add(&c, "lm_head.weight", "BF16", json_deep_copy(t->shape), t->data, t->n);
    struct model m = load_ck(&c, 1);
    assert_ptr_equal(m.head.data, m.embed.data);
    model_free(&m);
    ck_free(&c);
}

static void test_stop_ids_join_and_drop_what_is_out_of_range(void **state)
{
    (void)state;
    struct ck c = wrapped(G3, "gemma3", "model.");
    char *dir = ck_temp();
    ck_set_text(&c, "eos_token_id", "[1, 7, 600]"); /* 600: past the vocabulary */
    ck_set_text(&c, "text_config.pad_token_id", "-1");
    ck_save(&c, dir, 1);
    ck_write_text(dir, "generation_config.json",
                  "{\"eos_token_id\": [7, 9], \"do_sample\": true, \"top_k\": 64,"
                  " \"top_p\": 0.95}");
    struct model m = load(dir);
    const struct config *g = &m.cfg;
    assert_int_equal(g->n_stop, 4);
    assert_true(g->stop[0] == 1 && g->stop[1] == 7 && g->stop[2] == 106 && g->stop[3] == 9);
    assert_true(g->pad == -1 && g->bos == 2);
    assert_true(g->sampling.given && g->sampling.temperature == 1 && g->sampling.top_k == 64);
    assert_true(g->sampling.top_p == 0.95f && g->sampling.min_p == 0);
    model_free(&m);
    ck_remove(dir);
    free(dir);
    ck_free(&c);
}

/* gpt-oss with plain experts, stored [in, out] with gate and up interleaved. */
static void test_plain_experts_of_gpt_oss(void **state)
{
    (void)state;
    struct ck c = ck_load(OSS, ST);
    ck_set(&c, "quantization_config", NULL);
    for (int i = 0; i < 6; i++) {
        static const char *const part[] = {"gate_up_proj", "down_proj"};
        for (int k = 0; k < 2; k++) {
            char name[96], to[96];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_scales", i, part[k]);
            ck_drop(&c, name);
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_blocks", i, part[k]);
            snprintf(to, sizeof to, "model.layers.%d.mlp.experts.%s", i, part[k]);
            ck_rename(&c, name, to);
            ck_reshape(&c, to, "BF16", k ? "[8, 64, 64]" : "[8, 64, 128]");
        }
    }
    struct model m = load_ck(&c, 1);
    assert_int_equal(m.cfg.store, STORE_IN_OUT);
    assert_true(m.layer[2].gate_up.type == DT_BF16 && m.layer[2].gate_up.dim[2] == 128);
    assert_true(m.layer[2].down_e.n_dim == 3 && !m.layer[2].down_s.data);
    model_free(&m);
    ck_free(&c);
}

/* Hub files of E2B carry K and V weights of layers that never use them. */
static void test_unused_kv_of_shared_layers_is_skipped(void **state)
{
    (void)state;
    struct ck c = ck_load(G4, ST);
    ck_add(&c, "model.layers.7.self_attn.k_proj.weight", "BF16", json_pack("[ii]", 32, 64), NULL,
           32 * 64 * 2);
    ck_add(&c, "model.layers.7.self_attn.v_proj.weight", "BF16", json_pack("[ii]", 32, 64), NULL,
           32 * 64 * 2);
    ck_add(&c, "model.layers.7.self_attn.k_norm.weight", "BF16", json_pack("[i]", 16), NULL, 32);
    struct model m = load_ck(&c, 1);
    assert_true(!m.layer[7].wk.data && m.layer[7].kv_src == 4);
    model_free(&m);
    ck_free(&c);
}

static void test_gemma4_forces_the_last_layer_full_and_reads_overrides(void **state)
{
    (void)state;
    struct ck c = ck_load(G4, ST);
    json_t *types = json_object_get(c.config, "layer_types");
    json_array_set_new(types, 11, json_string("sliding_attention"));
    ck_set(&c, "global_head_dim", NULL);
    ck_set_text(&c, "per_layer_config", "{\"5\": {\"head_dim\": 32}, \"11\": {\"head_dim\": 32}}");
    struct model m = load_ck(&c, 1);
    assert_true(m.layer[11].window == 0 && m.layer[11].head_dim == 32 && m.layer[11].kv_src == 5);
    model_free(&m);
    ck_free(&c);
}

/* ---- dialects of EAGLE3 heads ---- */

static void rename_all(struct ck *c, const char *from, const char *to)
{
    for (int i = 0; i < c->n; i++) {
        if (strncmp(c->t[i].name, from, strlen(from)))
            continue;
        char *name = xasprintf("%s%s", to, c->t[i].name + strlen(from));
        free(c->t[i].name);
        c->t[i].name = name;
    }
}

static void add_bf16(struct ck *c, const char *name, int d0, int d1)
{
    json_t *shape = d1 ? json_pack("[ii]", d0, d1) : json_pack("[i]", d0);
    ck_add(c, name, "BF16", shape, NULL, (size_t)d0 * (size_t)(d1 ? d1 : 1) * 2);
}

static void test_block_names_of_all_exporters(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } names[] = {
        {"midlayer.", "layers.0."},
        {"midlayer.", "midlayer.0."},
        {"midlayer.", "model.layers.0."},
        {"", "model."},
    };
    struct model m = load(OSS);
    for (int i = 0; i < LEN(names); i++) {
        struct ck c = ck_load(EAGLE, ST);
        rename_all(&c, names[i].from, names[i].to);
        struct draft d = load_draft(&c, &m, NULL);
        assert_true(d.layer[0].hidden_norm.data && d.layer[0].wq.dim[1] == 128 && d.d2t);
        draft_free(&d);
        ck_free(&c);
    }
    model_free(&m);
}

/* A speculators file: nested config, captures at the top, norms before fc, verifier copies. */
static struct ck speculators_head(void)
{
    struct ck c = ck_load(EAGLE, ST);
    rename_all(&c, "midlayer.", "layers.0.");
    json_t *block = c.config;
    json_object_del(block, "eagle_config");
    json_object_del(block, "draft_vocab_size");
    json_object_del(block, "target_hidden_size");
    c.config = json_pack("{s:s, s:i, s:b, s:b, s:[i,i,i], s:o}", "speculators_model_type", "eagle3",
                         "draft_vocab_size", 160, "norm_before_residual", 1, "norm_before_fc", 1,
                         "eagle_aux_hidden_state_layer_ids", 2, 3, 5, "transformer_layer_config",
                         block);
    add_bf16(&c, "input_norm.weight", 192, 0);
    add_bf16(&c, "embed_tokens.weight", 512, 64);
    add_bf16(&c, "verifier_norm.weight", 64, 0);
    return c;
}

static void test_speculators_heads(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = speculators_head();
    ck_set_text(&c, "transformer_layer_config.rope_scaling",
                "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"truncate\": false,"
                " \"original_max_position_embeddings\": 4096}");
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.norm_before_residual && !d.norm_output && d.input_norm.dim[0] == 192);
    assert_true(d.capture[0] == 2 && d.capture[1] == 3 && d.capture[2] == 5);
    assert_non_null(strstr(d.capture_from, "as written"));
    assert_true(d.embed.data && d.draft_vocab == 160 && d.cfg.rope[0].kind == ROPE_YARN);
    assert_true(d.cfg.rope[0].theta == 1e4); /* its own, not the target's 150000 */
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_norms_outputs_and_biases_of_newer_heads(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        add_bf16(&c, name, 64, 0);
    }
    ck_set(&c, "norm_output", json_true());
    ck_set(&c, "fc_norm", json_true());
    ck_set(&c, "attention_bias", json_true());
    add_bf16(&c, "midlayer.self_attn.q_proj.bias", 64, 0);
    add_bf16(&c, "midlayer.self_attn.k_proj.bias", 32, 0);
    add_bf16(&c, "midlayer.self_attn.v_proj.bias", 32, 0);
    add_bf16(&c, "fc.bias", 64, 0);
    struct draft d = load_draft(&c, &m, "1,2,6");
    assert_true(d.norm_output && d.fc_norm[0].data && d.fc_norm[2].dim[0] == 64 && d.fc_b.data);
    assert_true(d.cfg.qkv_bias && !d.cfg.o_bias && d.layer[0].bk.data && !d.layer[0].bo.data);
    assert_true(d.capture[0] == 1 && d.capture[1] == 2 && d.capture[2] == 6);
    assert_string_equal(d.capture_from, "given by the user");
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_windows_of_heads(void **state)
{
    (void)state;
    static const struct { const char *types, *use; int window; } cases[] = {
        {NULL, NULL, 0}, /* a window alone proves nothing */
        {NULL, "false", 0},
        {NULL, "true", 128},
        {"[\"sliding_attention\"]", NULL, 128},
        {"[\"full_attention\"]", NULL, 0},
    };
    struct model m = load(OSS);
    for (int i = 0; i < LEN(cases); i++) {
        struct ck c = ck_load(EAGLE, ST);
        ck_set(&c, "sliding_window", json_integer(128));
        if (cases[i].types)
            ck_set_text(&c, "layer_types", cases[i].types);
        if (cases[i].use)
            ck_set_text(&c, "use_sliding_window", cases[i].use);
        struct draft d = load_draft(&c, &m, NULL);
        assert_int_equal(d.layer[0].window, cases[i].window);
        assert_int_equal(d.cfg.window, cases[i].window);
        draft_free(&d);
        ck_free(&c);
    }
    model_free(&m);
}

/* Two blocks: only the first reads [embedding; hidden]. */
static void test_heads_of_several_layers(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    rename_all(&c, "midlayer.", "midlayer.0.");
    add_bf16(&c, "midlayer.1.input_layernorm.weight", 64, 0);
    add_bf16(&c, "midlayer.1.post_attention_layernorm.weight", 64, 0);
    add_bf16(&c, "midlayer.1.self_attn.q_proj.weight", 64, 64);
    add_bf16(&c, "midlayer.1.self_attn.k_proj.weight", 32, 64);
    add_bf16(&c, "midlayer.1.self_attn.v_proj.weight", 32, 64);
    add_bf16(&c, "midlayer.1.self_attn.o_proj.weight", 64, 64);
    add_bf16(&c, "midlayer.1.mlp.gate_proj.weight", 128, 64);
    add_bf16(&c, "midlayer.1.mlp.up_proj.weight", 128, 64);
    add_bf16(&c, "midlayer.1.mlp.down_proj.weight", 64, 128);
    ck_set(&c, "num_hidden_layers", json_integer(2));
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.cfg.n_layer == 2 && d.layer[0].wq.dim[1] == 128 && d.layer[1].wq.dim[1] == 64);
    assert_true(d.layer[0].hidden_norm.data && !d.layer[1].hidden_norm.data);
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_heads_without_a_vocabulary_of_their_own(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    ck_drop(&c, "d2t");
    ck_drop(&c, "t2d");
    ck_drop(&c, "lm_head.weight");
    ck_set(&c, "draft_vocab_size", json_null());
    struct draft d = load_draft(&c, &m, NULL); /* the target's head */
    assert_true(d.draft_vocab == 512 && !d.d2t && !d.head.data);
    draft_free(&d);
    add_bf16(&c, "lm_head.weight", 512, 64); /* its own, over all tokens */
    d = load_draft(&c, &m, NULL);
    assert_true(d.draft_vocab == 512 && !d.d2t && d.head.data);
    draft_free(&d);
    ck_add(&c, "d2t", "I64", json_pack("[i]", 512), NULL, 512 * 8); /* all offsets 0 */
    d = load_draft(&c, &m, NULL);
    assert_null(d.d2t);
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

static void test_an_unsorted_map_is_noted_not_refused(void **state)
{
    (void)state;
    struct model m = load(OSS);
    struct ck c = ck_load(EAGLE, ST);
    int64_t *off = (int64_t *)(void *)ck_find(&c, "d2t")->data;
    int64_t first = off[0], second = 1 + off[1];
    off[0] = second, off[1] = first - 1; /* draft ids 0 and 1 change places */
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.d2t[0] == second && d.d2t[1] == first);
    assert_non_null(strstr(d.note, "order"));
    draft_free(&d);
    ck_free(&c);
    model_free(&m);
}

/* Stretches gpt-oss to n layers by repeating its own. */
static struct model deep_target(int n)
{
    struct ck c = ck_load(OSS, ST);
    for (int i = 6; i < n; i++)
        for (int k = 0, all = c.n; k < all; k++) {
            char from[32], name[128];
            snprintf(from, sizeof from, "model.layers.%d.", i % 2);
            if (strncmp(c.t[k].name, from, strlen(from)))
                continue;
            snprintf(name, sizeof name, "model.layers.%d.%s", i, c.t[k].name + strlen(from));
            ck_add(&c, name, c.t[k].dtype, json_deep_copy(c.t[k].shape), c.t[k].data, c.t[k].n);
        }
    ck_set(&c, "num_hidden_layers", json_integer(n));
    ck_set(&c, "layer_types", NULL);
    struct model m = load_ck(&c, 1);
    ck_free(&c);
    return m;
}

static void test_capture_conventions(void **state)
{
    (void)state;
    static const struct {
        int layers;
        const char *nested, *top;
        int want[3];
        const char *says;
    } cases[] = {
        {24, NULL, NULL, {2, 12, 21}, "default"},
        {36, NULL, NULL, {2, 18, 33}, "default"},
        {24, "[1, 11, 21]", NULL, {2, 12, 22}, "plus 1"}, /* SpecForge for the 20b */
        {36, "[1, 17, 33]", NULL, {2, 18, 34}, "plus 1"}, /* and for the 120b */
        {36, "[24, 30, 36]", NULL, {24, 30, 36}, "NVIDIA"},
        {36, "[1, 17, 32]", NULL, {1, 17, 32}, "NVIDIA"},
        {24, "[1, 17, 22]", NULL, {2, 18, 23}, "plus 1"},
        {24, NULL, "[2, 12, 21]", {2, 12, 21}, "as written"},
        {24, "[]", NULL, {2, 12, 21}, "default"},
        {24, "[1, 11, 20]", "[1, 11, 20]", {2, 12, 21}, "plus 1"}, /* copied to the top unchanged */
    };
    for (int i = 0; i < LEN(cases); i++) {
        struct model m = deep_target(cases[i].layers);
        struct ck c = ck_load(EAGLE, ST);
        ck_set(&c, "eagle_config", NULL);
        if (cases[i].nested)
            ck_set_text(&c, "eagle_config.eagle_aux_hidden_state_layer_ids", cases[i].nested);
        if (cases[i].top)
            ck_set_text(&c, "eagle_aux_hidden_state_layer_ids", cases[i].top);
        struct draft d = load_draft(&c, &m, NULL);
        for (int k = 0; k < 3; k++)
            assert_int_equal(d.capture[k], cases[i].want[k]);
        if (!strstr(d.capture_from, cases[i].says))
            fail_msg("case %d: %s", i, d.capture_from);
        draft_free(&d);
        ck_free(&c);
        model_free(&m);
    }
}

/* ---- assistants ---- */

/* Without sharing in the target, its last layers of each type own their cells themselves. */
static void test_an_assistant_attaches_to_the_last_owners(void **state)
{
    (void)state;
    struct ck t = ck_load(G4, ST);
    ck_set(&t, "num_kv_shared_layers", json_integer(0));
    ck_set(&t, "use_double_wide_mlp", json_false());
    for (int i = 6; i < 12; i++) {
        static const char *const more[] = {"self_attn.k_proj.weight", "self_attn.v_proj.weight"};
        int d = i == 11 ? 32 : 16;
        char name[96];
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, more[k]);
            add_bf16(&t, name, 2 * d, 64);
        }
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_norm.weight", i);
        add_bf16(&t, name, d, 0);
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.weight", i);
        ck_reshape(&t, name, NULL, "[96, 64]");
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", i);
        ck_reshape(&t, name, NULL, "[96, 64]");
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", i);
        ck_reshape(&t, name, NULL, "[64, 96]");
    }
    struct model m = load_ck(&t, 1);
    struct ck c = ck_load(ASSIST, ST);
    struct draft d = load_draft(&c, &m, NULL);
    assert_true(d.kv_full == 11 && d.kv_swa == 10 && d.layer[0].kv_src == 10);
    assert_int_equal(d.layer[3].kv_src, 11);
    draft_free(&d);
    ck_set(&c, "use_ordered_embeddings", json_false());
    ck_drop(&c, "masked_embedding.centroids.weight");
    ck_drop(&c, "masked_embedding.token_ordering");
    d = load_draft(&c, &m, NULL);
    assert_true(d.n_centroid == 0 && !d.token_order && !d.centroids.data);
    draft_free(&d);
    ck_free(&c);
    ck_free(&t);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma3_binds_every_tensor),
        cmocka_unit_test(test_gpt_oss_binds_every_tensor),
        cmocka_unit_test(test_gemma4_binds_every_tensor),
        cmocka_unit_test(test_eagle3_binds_every_tensor),
        cmocka_unit_test(test_assistant_binds_every_tensor),
        cmocka_unit_test(test_the_bundled_model_loads_with_its_draft),
        cmocka_unit_test(test_each_visits_every_tensor_once),
        cmocka_unit_test(test_a_tied_head_follows_its_embedding_to_a_device),
        cmocka_unit_test(test_progress_ends_with_all_bytes),
        cmocka_unit_test(test_shards_hold_the_same_model),
        cmocka_unit_test(test_sha_sees_every_kind_of_change),
        cmocka_unit_test(test_large_tensors_arrive_whole),
        cmocka_unit_test(test_families_differ_in_their_switches),
        cmocka_unit_test(test_gemma4_moe_layers_have_both_kinds_of_mlp),
        cmocka_unit_test(test_the_order_of_a_header_does_not_matter),
        cmocka_unit_test(test_yarn_of_gpt_oss),
        cmocka_unit_test(test_yarn_options),
        cmocka_unit_test(test_linear_llama3_and_partial),
        cmocka_unit_test(test_frequencies_are_those_of_the_reference),
        cmocka_unit_test(test_rope_spellings_agree),
        cmocka_unit_test(test_multimodal_folders_give_their_text_model),
        cmocka_unit_test(test_silent_gemma3_configs_mean_the_class_defaults),
        cmocka_unit_test(test_a_second_copy_of_a_tied_head_is_accepted),
        cmocka_unit_test(test_stop_ids_join_and_drop_what_is_out_of_range),
        cmocka_unit_test(test_plain_experts_of_gpt_oss),
        cmocka_unit_test(test_unused_kv_of_shared_layers_is_skipped),
        cmocka_unit_test(test_gemma4_forces_the_last_layer_full_and_reads_overrides),
        cmocka_unit_test(test_block_names_of_all_exporters),
        cmocka_unit_test(test_speculators_heads),
        cmocka_unit_test(test_norms_outputs_and_biases_of_newer_heads),
        cmocka_unit_test(test_windows_of_heads),
        cmocka_unit_test(test_heads_of_several_layers),
        cmocka_unit_test(test_heads_without_a_vocabulary_of_their_own),
        cmocka_unit_test(test_an_unsorted_map_is_noted_not_refused),
        cmocka_unit_test(test_capture_conventions),
        cmocka_unit_test(test_an_assistant_attaches_to_the_last_owners),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
