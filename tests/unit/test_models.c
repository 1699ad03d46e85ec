/* test_models.c - checkpoints become the right switches and the right tensors.
 *
 * The golden folders are bound tensor by tensor; the other families differ in their switches.
 */
#include "engine/run/device.h"
#include "tests/model_kit.h"

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
        bound += assert_layer(s, l, prefix, rows, COUNT(rows));
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
        bound += assert_layer(s, &m.layer[i], prefix, rows, COUNT(rows));
        assert_int_equal(m.layer[i].window, i % 2 ? 0 : 8);
        assert_true(m.layer[i].is_moe && m.layer[i].rope_id == 0);
        assert_int_equal(m.layer[i].gate_up.type, DT_U8);
    }
    assert_int_equal(bound, st_count(s));
    const struct config *g = &m.cfg;
    assert_true(g->norm == NORM_RMS && g->place == PLACE_PRE && g->act == ACT_SWIGLU_CLAMP);
    assert_true(g->sinks && g->qkv_bias && g->o_bias && !g->qk_norm && !g->tied);
    assert_true(g->moe == MOE_ALONE && g->store == STORE_MXFP4 && g->n_expert == 8);
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
        int n = COUNT(shared);
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
    int bound = 3 + 2 + assert_layer(s, &d.layer[0], "midlayer.", rows, COUNT(rows)); /* + d2t, t2d */
    assert_tensor(s, &d.fc, "fc.weight", 64, 192, 0, 0);
    assert_tensor(s, &d.norm, "norm.weight", 64, 0, 0, 0);
    assert_tensor(s, &d.head, "lm_head.weight", 160, 64, 0, 0);
    assert_int_equal(bound, st_count(s));
    assert_true(!d.embed.data && !d.input_norm.data && !d.fc_b.data && !d.fc_norm[0].data);
    assert_true(!strcmp(d.kind, "eagle3") && d.target_hidden == 64 && d.draft_vocab == 160);
    assert_true(d.cfg.vocab == 512 && d.cfg.hidden == 64 && d.cfg.n_layer == 1);
    assert_true(!d.norm_before_residual && !d.norm_output && !d.note);
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
        bound += assert_layer(s, &d.layer[i], prefix, rows, COUNT(rows));
        assert_int_equal(d.layer[i].kv_src, i == 3 ? 5 : 4);
    }
    assert_int_equal(bound, st_count(s));
    assert_true(!strcmp(d.kind, "frozen-kv") && d.kv_full == 5 && d.kv_swa == 4 &&
                d.target_hidden == 64);
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
    struct loading p = {.report = report, .arg = &r};
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

static void finds_odd_weights(struct device *dev)
{
    static const struct { const char *name; uint16_t bits; } odd[] = {
        {NULL, 0}, {"model.embed_tokens.weight", 0x7fc0}, {"model.norm.weight", 0xff80},
        {"model.layers.1.mlp.down_proj.weight", 0x7f80},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct ck c = ck_load(G3, ST);
        char *dir = scratch_folder();
        if (odd[i].name) {
            struct ck_tensor *t = ck_find(&c, odd[i].name);
            memcpy(t->data + t->n - 2, &odd[i].bits, 2);
        }
        ck_save(&c, dir, 1);
        struct model m;
        assert_true(model_load(&m, dir, NULL, NULL));
        assert_true(model_each(&m, device_upload, dev, NULL));
        const struct tensor *t = model_odd_weight(&m, device_tensor_is_odd, dev, NULL);
        assert_true(!t == !odd[i].name);
        if (t)
            assert_string_equal(t->name, odd[i].name);
        model_free(&m);
        scratch_remove(dir);
        ck_free(&c);
    }
    struct model m;
    struct draft d;
    assert_true(model_load(&m, "models/nestling/target", NULL, NULL));
    assert_true(draft_load(&d, "models/nestling/draft", &m, NULL, NULL, NULL));
    ((uint16_t *)(uintptr_t)d.layer[0].wv.data)[7] = 0x7f80;
    assert_true(draft_each(&d, device_upload, dev, NULL));
    assert_ptr_equal(draft_odd_weight(&d, device_tensor_is_odd, dev), &d.layer[0].wv);
    draft_free(&d);
    assert_true(draft_load(&d, "models/nestling/draft", &m, NULL, NULL, NULL));
    assert_true(draft_each(&d, device_upload, dev, NULL));
    assert_null(draft_odd_weight(&d, device_tensor_is_odd, dev));
    draft_free(&d);
    model_free(&m);
}

static bool holds_all(struct kdev *, const struct tensor *)
{
    return true;
}

static size_t padded(struct kdev *, const struct tensor *t)
{
    return t->bytes + 64;
}

/* A tensor of several parts that a device holds: weights at the ends of parts, and in the last
 * one. */
static void test_weights_are_read_back_in_parts(void **state)
{
    (void)state;
    enum { N = (33 << 20) / 2, PART = (16 << 20) / 2 };
    struct device dev;
    struct err e;
    assert_true(device_open(&dev, "cpu", 1, NULL, &e));
    struct kernels held = *dev.k;
    held.holds = holds_all, held.footprint = padded;
    dev.k = &held;
    uint16_t *w = xcalloc(N + 32, sizeof *w);
    struct tensor t = {.data = w, .type = DT_BF16, .n_dim = 1, .dim = {N}, .bytes = N * sizeof *w};
    assert_false(device_tensor_is_odd(&t, &dev));
    static const int at[] = {0, PART - 1, PART, 2 * PART, N - 1};
    for (int i = 0; i < COUNT(at); i++) {
        w[at[i]] = 0x7fc0;
        assert_true(device_tensor_is_odd(&t, &dev));
        t.quantize = true; /* codes: each may look like anything */
        assert_false(device_tensor_is_odd(&t, &dev));
        t.quantize = false, w[at[i]] = 0;
    }
    free(w);
    device_close(&dev);
}

/* In host memory; then in the layouts of a GPU, if there is one. */
static void test_a_weight_that_is_no_number_is_found(void **state)
{
    (void)state;
    static const char *const name[] = {"cpu", "cuda"};
    for (int i = 0; i < 2; i++) {
        struct device dev;
        struct err e;
        if (!device_open(&dev, name[i], 1, NULL, &e)) {
            assert_int_equal(i, 1);
            continue;
        }
        finds_odd_weights(&dev);
        device_close(&dev);
    }
}

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
    for (int i = 0; i < COUNT(want); i++) {
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
    char *dir = scratch_folder();
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
    scratch_remove(dir);
    model_free(&m);
    model_free(&one);
    ck_free(&c);
}

int main(int argc, char **argv)
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
        cmocka_unit_test(test_a_weight_that_is_no_number_is_found),
        cmocka_unit_test(test_weights_are_read_back_in_parts),
        cmocka_unit_test(test_families_differ_in_their_switches),
        cmocka_unit_test(test_gemma4_moe_layers_have_both_kinds_of_mlp),
        cmocka_unit_test(test_the_order_of_a_header_does_not_matter),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
