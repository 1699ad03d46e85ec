/* model.c - loads a target's folder: config, family, tensors. */
#include "models/families/families.h"
#include "models/checkpoint/gguf.h"
#include "models/checkpoint/safetensors.h"

#include <errno.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the family ---- */

static const struct family *const families[] = {
    &family_gpt_oss, &family_gemma3, &family_gemma4, &family_gemma2,
    &family_olmo3,   &family_qwen3,  &family_llama,  &family_mistral,
    &family_ministral, &family_gemma3_mm, &family_gemma4_unified, &family_ministral3,
    &family_olmo2, &family_smollm3, &family_exaone4, &family_phi3, &family_qwen3_moe,
    &family_mellum, &family_granite_swa, &family_granitemoe_swa, &family_cohere2,
    &family_afmoe, &family_laguna, &family_muse_glimmer, &family_mimo_v2,
    &family_llama4, &family_step3p5, &family_qwen2,
};

/* Types of multimodal folders whose text models are of several families: that of text_config
 * decides. */
static bool wraps(const char *type)
{
    return !strcmp(type, "mistral3") || !strcmp(type, "exaone4_5");
}

static const struct family *find_family(const struct conf *top)
{
    struct conf text = *top, *c = &text;
    FREED(buf_free) struct buf known = {0};
    if (wraps(conf_str(top, "model_type", "")) && !conf_enter(top, "text_config", c))
        return conf_refuse(top, "text_config", "is missing"), NULL;
    const char *type = conf_str(c, "model_type", NULL);
    for (size_t i = 0; i < LEN(families); i++)
        for (const char *const *t = families[i]->types; *t; t++) {
            if (type && !strcmp(type, *t))
                return families[i];
            buf_printf(&known, "%s%s", known.n ? ", " : "", *t);
        }
    if (type)
        conf_refuse(c, "model_type", "\"%.60s\" is not supported, expected one of %s",
                    show(type).s, known.p);
    else
        conf_refuse(c, "model_type", "is missing");
    return NULL;
}

/* Sets a->c to the text model's object. */
static bool enter_text(struct arch *a, const struct family *f)
{
    a->c = a->top;
    const char *type = conf_str(&a->top, "model_type", "");
    if (((f->outer && !strcmp(type, f->outer)) || wraps(type)) &&
        !conf_enter(&a->top, "text_config", &a->c))
        return conf_refuse(&a->top, "text_config", "is missing");
    a->c.keys = f->keys;
    return true;
}

/* Whether the checkpoint has a head, below whatever prefix. */
static bool has_head(const struct safetensors *st)
{
    return ANY(i, st_count(st), fnmatch("*lm_head.weight", st_at(st, i)->name, 0) == 0);
}

bool arch_family(struct arch *a, const struct family *f)
{
    struct config *g = a->cfg;
    if (!arch_block(a, &f->sizes, f->place, f->quantized))
        return false;
    g->n_rope = f->rope[1].type ? 2 : 1;
    for (int i = 0; i < g->n_rope; i++)
        arch_rope(&a->c, g, &f->rope[i], &g->rope[i]);
    if (f->configure)
        f->configure(a);
    bool sliding_first = !strcmp(f->rope[0].type ? f->rope[0].type : "", "sliding_attention");
    if (f->rope[1].type)
        arch_rope_ids(a, sliding_first, !sliding_first);
    return conf_ok(&a->c);
}

/* Finds the family and fills *g and *layer from the config. st NULL: there is no checkpoint. Frees
 * root, which may be NULL (*e is set then). */
static bool configure(json_t *root, const char *path, const struct safetensors *st,
                      struct config *g,
                      struct layer **layer, const struct family **family, struct err *e)
{
    if (!root)
        return false;
    struct conf_file file = {.path = path, .e = e};
    struct arch a = {.top = {.obj = root, .file = &file}, .n_tensor = st ? st_count(st) : 1 << 20,
                     .has_head = st && has_head(st), .cfg = g};
    *family = find_family(&a.top);
    bool ok = *family && enter_text(&a, *family);
    if (ok && (*family)->respell)
        (*family)->respell(a.c.obj == root ? root : json_object_get(root, "text_config"));
    if (ok) {
        snprintf(g->family, sizeof g->family, "%s", (*family)->name);
        ok = arch_family(&a, *family);
        *layer = a.layer;
    }
    if (ok) {
        arch_refuse_unused(&a);
        arch_tokens(&a.top, g);
        a.c.keys = NULL;
        if (a.c.obj != a.top.obj)
            arch_tokens(&a.c, g);
        ok = conf_ok(&a.c);
    }
    json_decref(root);
    return ok && arch_init_ropes(g, *layer, path, e);
}

/* ---- tensors ---- */

/* Prefixes of tensor names: text models as published, and the text part of multimodal folders. */
static const struct prefix prefixes[] = {
    {"model.", ""},
    {"language_model.model.", "language_model."},
    {"model.language_model.", ""},
    {"", ""},
};

/* Tensors that are not loaded: buffers that older exports saved, and parts beside the text
 * model. */
static const char *const ignored[] = {
    "*rotary_emb.inv_freq",
    "*vision_tower.*", "*vision_model.*", "*multi_modal_projector.*", "*embed_vision.*",
    "*audio_tower.*", "*embed_audio.*", "*vision_embedder.*", "*visual.*", "*vision_adapter.*",
    "*vision_projection.*", "*vit_large_projector.*",
    "v.*", "mm.*", "a.*",   /* image and sound parts within a GGUF */
    "mtp.*", "model.mtp.*", /* layers that predict further tokens */
    NULL,
};

static const struct tensor_spec embed_specs[] = {
    {SPEC(model, embed, "embed_tokens.weight", X_VOCAB, X_HIDDEN)}, {0},
};
/* Of tied weights safetensors.torch.save_model() keeps the name that comes first. */
static const struct tensor_spec tied_specs[] = {
    {SPEC(model, embed, "lm_head.weight", X_VOCAB, X_HIDDEN)}, {0},
};
static const struct tensor_spec trunk_specs[] = {
    {SPEC(model, norm, "norm.weight", X_HIDDEN)},
    {SPEC(model, ple_embed, "embed_tokens_per_layer.weight", X_PLE_VOCAB, X_PLE_ALL),
     .when = IF_PLE},
    {SPEC(model, ple_model_proj, "per_layer_model_projection.weight", X_PLE_ALL, X_HIDDEN),
     .when = IF_PLE},
    {SPEC(model, ple_proj_norm, "per_layer_projection_norm.weight", X_PLE), .when = IF_PLE},
    {0},
};
static const struct tensor_spec head_specs[] = {
    {SPEC(model, head, "lm_head.weight", X_VOCAB, X_HIDDEN), .when = IF_UNTIED},
    {0},
};

static const struct prefix *find_prefix(const struct binder *b)
{
    static const char *const names[] = {"embed_tokens.weight", "norm.weight"};
    for (size_t k = 0; k < LEN(names); k++)
        for (size_t i = 0; i < LEN(prefixes); i++)
            if (binder_find(b, (const char *const[]){prefixes[i].trunk, NULL}, names[k]))
                return &prefixes[i];
    return &prefixes[0]; /* binding will name the missing tensor */
}

/* Binds the embedding, which a tied model's checkpoint may have as its head alone. */
static bool bind_embed(struct model *m, struct binder *b, const char *const root[],
                       const char *const head[])
{
    bool alone = m->cfg.tied && !binder_find(b, root, "embed_tokens.weight") &&
                 binder_find(b, head, "lm_head.weight");
    return binder_bind(b, alone ? tied_specs : embed_specs, alone ? head : root, m, NULL, 0);
}

static bool has_halves(const struct config *g)
{
    return g->store == STORE_HALVES || g->store == STORE_IN_OUT_HALVES;
}

/* gpt-oss experts are stored as MXFP4, as bf16, or as other types of a GGUF; the tensors' names
 * tell which, and the config (the store that it sets) must allow MXFP4. */
static bool find_expert_store(const struct binder *b, const char *trunk, const char *dir,
                              struct config *g)
{
    if (g->moe != MOE_ALONE || has_halves(g))
        return true;
    const char *const prefix[] = {trunk, NULL};
    bool plain = binder_find(b, prefix, "layers.0.mlp.experts.gate_up_proj");
    bool blocks = binder_find(b, prefix, "layers.0.mlp.experts.gate_up_proj_blocks");
    if (binder_find(b, prefix, "layers.0.mlp.experts.gate_up_proj.weight")) {
        g->store = STORE_HALVES;
        return true;
    }
    if (!plain && blocks && g->store != STORE_MXFP4)
        return err_set(b->e, ERR_MODEL, "%s/config.json: quantization_config is missing, expected "
                       "mxfp4, in which the experts are stored", show_path(dir).s);
    g->store = plain ? STORE_IN_OUT : STORE_MXFP4;
    if (!plain && (g->hidden % 32 || g->expert_ffn % 32))
        return err_file(b->e, st_path(b->st, NULL),
                        "%s is %d, expected a multiple of 32, the width of an MXFP4 block",
                        g->hidden % 32 ? "hidden_size" : "intermediate_size",
                        g->hidden % 32 ? g->hidden : g->expert_ffn);
    return true;
}

static bool bind_model(struct model *m, struct binder *b, const struct family *f)
{
    const struct prefix *p = find_prefix(b);
    const char *const root[] = {p->trunk, NULL}, *const head[] = {p->head, NULL};
    if (!find_expert_store(b, p->trunk, m->dir, &m->cfg) || !bind_embed(m, b, root, head) ||
        !binder_bind(b, trunk_specs, root, m, NULL, 0) ||
        !binder_bind(b, head_specs, head, m, NULL, 0))
        return false;
    for (int i = 0; i < m->cfg.n_layer; i++) {
        char name[80];
        snprintf(name, sizeof name, "%slayers.%d.", p->trunk, i);
        const char *const layer[] = {name, NULL};
        if (!binder_bind(b, f->layer, layer, &m->layer[i], &m->layer[i], i))
            return false;
    }
    return true;
}

/* Some exports of a tied model contain the head as a second copy of the embedding. compare: whether
 * the copy must be equal. */
static bool use_tied_copy(struct binder *b, bool compare)
{
    const struct prefix *p = find_prefix(b);
    const char *const root[] = {p->trunk, NULL}, *const of_head[] = {p->head, NULL};
    const struct tensor *head = binder_find(b, of_head, "lm_head.weight");
    const struct tensor *embed = binder_find(b, root, "embed_tokens.weight");
    if (!b->cfg->tied || !head || !embed)
        return true;
    if (compare)
        return binder_use_copy(b, head, embed);
    binder_mark_used(b, head);
    return true;
}

/* ---- loading ---- */

/* Reads the config; the path in messages and the text are the caller's. */
static bool read_config(struct model *m, struct safetensors *st, const struct family **f,
                        char **path, struct buf *text, struct err *e)
{
    *path = st_config(st, text, e);
    return *path &&
           configure(json_read(text->p, text->n, JSON_DEPTH, *path, e), *path, st, &m->cfg,
                     &m->layer, f, e) &&
           (gguf_is(m->dir) || generation_read(m->dir, &m->cfg, e));
}

/* The line for people about the folder: of its files, and of generation_config.json. */
static char *note_of(const struct safetensors *st, const struct config *g)
{
    if (!g->n_suppressed)
        return st->note ? xstrdup(st->note) : NULL;
    return xasprintf("%s%s%s/generation_config.json: replies may have the %d token%s of "
                     "suppress_tokens, unless a logit_bias keeps them out",
                     st->note ? st->note : "", st->note ? "; " : "", show_path(st->dir).s,
                     g->n_suppressed, g->n_suppressed == 1 ? "" : "s");
}

static bool load_into(struct model *m, const struct loading *p, struct err *e)
{
    const struct family *f;
    FREED(buf_free) struct buf config = {0};
    FREED(free_at) char *path = NULL;
    struct safetensors *st = st_open(m->dir, e);
    if (!st || !read_config(m, st, &f, &path, &config, e)) {
        st_close(st);
        return false;
    }
    m->note = note_of(st, &m->cfg);
    m->about = st->about ? xstrdup(st->about) : NULL;
    m->served_inputs = st->inputs;
    struct binder b;
    binder_open(&b, st, &m->cfg, e);
    bool whole = !p || p->use != READ_HEADERS;
    bool ok = use_tied_copy(&b, whole) && bind_model(m, &b, f) &&
              binder_refuse_unused(&b, ignored) &&
              binder_load(&b, "model", &config, &m->store, &m->bytes, m->sha, p);
    binder_close(&b);
    if (ok && m->cfg.tied)
        m->head = m->embed;
    return ok;
}

/* *e says what a file is that is no model. Returns false. */
static bool no_model(const char *path, struct err *e)
{
    char head[64];
    int fd = file_open_regular(path, NULL);
    ptrdiff_t n = fd >= 0 ? pread_fully(fd, head, sizeof head, 0) : -1;
    if (fd >= 0)
        close(fd);
    if (n < 0 || !err_mistaken(e, path, head, (size_t)n))
        err_file(e, path,
                 "neither a folder with config.json and model.safetensors nor a GGUF file");
    return false;
}

/* Sets *e for a path that stat() failed on, errno says why; false. */
static bool not_there(const char *path, struct err *e)
{
    if (errno == ENOENT && !strchr(path, '/'))
        return err_set(e, ERR_MODEL, "%s: there is no such file or folder; aerie pull ORG/NAME "
                       "fetches a model of the Hugging Face hub", show_path(path).s);
    return err_set(e, ERR_MODEL, "cannot open %s: %s", show_path(path).s, strerror(errno));
}

bool model_load(struct model *m, const char *dir, const struct loading *p, struct err *e)
{
    struct stat st;
    *m = (struct model){0};
    if (stat(dir, &st))
        return not_there(dir, e);
    if (!S_ISDIR(st.st_mode) && !gguf_is(dir))
        return no_model(dir, e);
    m->dir = xstrdup(dir);
    bool ok = load_into(m, p, e);
    if (!ok)
        model_free(m);
    return ok;
}

bool model_mappable(const char *dir, const char **why)
{
    struct safetensors *st = st_open(dir, NULL);
    *why = "the files cannot be read";
    bool ok = st && st_mappable(st, why);
    st_close(st);
    return ok;
}

bool model_shaped(struct model *m, const char *config, struct err *e)
{
    static const char *const path = "config";
    const struct family *f;
    int64_t x[N_EXTENT] = {0};
    *m = (struct model){.dir = xstrdup(path)};
    json_t *root = json_read(config, strlen(config), JSON_DEPTH, path, e);
    if (!configure(root, path, NULL, &m->cfg, &m->layer, &f, e)) {
        model_free(m);
        return false;
    }
    if (m->cfg.moe == MOE_ALONE && !has_halves(&m->cfg))
        m->cfg.store = STORE_MXFP4; /* as published */
    struct namer names;
    namer_open(&names, m->cfg.n_layer);
    extents_of_config(x, &m->cfg);
    shape_tensors(embed_specs, &m->cfg, x, "model.", m, NULL, 0, &names);
    shape_tensors(trunk_specs, &m->cfg, x, "model.", m, NULL, 0, &names);
    shape_tensors(head_specs, &m->cfg, x, "", m, NULL, 0, &names);
    for (int i = 0; i < m->cfg.n_layer; i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        shape_tensors(f->layer, &m->cfg, x, prefix, &m->layer[i], &m->layer[i], i, &names);
    }
    m->names = names.all;
    m->bytes = names.bytes;
    return true;
}

void model_free(struct model *m)
{
    for (int i = 0; i < MAX_ROPE; i++)
        rope_free(&m->cfg.rope[i]);
    store_free(m->store);
    FREE(m->layer, m->dir, m->names, m->note, m->about);
    *m = (struct model){0};
}

/* ---- weights that are no numbers ---- */

bool tensor_is_odd(const struct tensor *t)
{
    const uint16_t *half = t->data;
    const uint32_t *word = t->data;
    uint32_t mask = t->type == DT_F32 ? 0x7f800000 : t->type == DT_BF16 ? 0x7f80 : 0x7c00;
    bool odd = false;
    if (!t->data || (t->type != DT_F32 && t->type != DT_BF16 && t->type != DT_F16))
        return false;
    for (size_t i = 0, n = t->bytes / dtype_size(t->type); i < n; i++)
        odd |= ((t->type == DT_F32 ? word[i] : half[i]) & mask) == mask;
    return odd;
}

const struct tensor *model_odd_weight(const struct model *m,
                                      bool (*is_odd)(const struct tensor *t, void *arg), void *arg,
                                      const struct stop *stop)
{
    const struct tensor *own[] = {&m->embed, &m->norm, &m->head, &m->ple_embed, &m->ple_model_proj,
                                  &m->ple_proj_norm};
    for (size_t i = 0; i < LEN(own); i++)
        if (is_odd(own[i], arg))
            return own[i];
    for (int i = 0; i < m->cfg.n_layer && !stop_asked(stop); i++) {
        int n;
        const struct tensor *t = layer_tensors(&m->layer[i], &n);
        for (int k = 0; k < n; k++)
            if (is_odd(&t[k], arg))
                return &t[k];
    }
    return NULL;
}

bool model_each(struct model *m, bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg,
                struct err *e)
{
    struct tensor *own[] = {&m->embed,          &m->norm,          m->cfg.tied ? NULL : &m->head,
                            &m->ple_embed, &m->ple_model_proj, &m->ple_proj_norm};
    for (size_t i = 0; i < LEN(own); i++)
        if (own[i] && !each_tensor(own[i], 1, m->store, fn, arg, e))
            return false;
    for (int i = 0; i < m->cfg.n_layer; i++) {
        int n;
        struct tensor *t = layer_tensors(&m->layer[i], &n);
        if (!each_tensor(t, n, m->store, fn, arg, e))
            return false;
    }
    if (m->cfg.tied)
        m->head = m->embed;
    return true;
}
