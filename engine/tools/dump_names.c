/* dump_names.c - see dump_names.h. */
#include "engine/tools/dump_names.h"

/* Where the norms lie that a name needs, as bits of enum norm_place. */
enum { PRE = 1 << PLACE_PRE, POST = 1 << PLACE_POST, SANDWICH = 1 << PLACE_SANDWICH,
       PARALLEL = 1 << PLACE_PARALLEL, ANY = PRE | POST | SANDWICH | PARALLEL };

static const struct module_name names[] = {
    {"embed_tokens", "", TAP_ENTRY, ANY, IN_MODEL},
    {"input_layernorm", "1", TAP_ENTRY, PRE | SANDWICH | PARALLEL, IN_LAYER},
    {"input_layernorm", "0", TAP_NORMED, PRE | SANDWICH | PARALLEL, IN_LAYER},
    {"input_layernorm", "", TAP_NORMED, PRE | SANDWICH | PARALLEL, IN_LAYER},
    {"self_attn.qkv_proj", "inputs.0", TAP_NORMED, PRE | SANDWICH | PARALLEL, IN_LAYER},
    {"self_attn.qkv_proj", "", TAP_V, ANY, LAST_COLUMNS},
    {"self_attn.qkv_proj", "0", TAP_V, ANY, LAST_COLUMNS},
    {"self_attn.v_proj", "", TAP_V, ANY, IN_LAYER},
    {"self_attn.attn", "inputs.0", TAP_Q, ANY, IN_LAYER},
    {"self_attn.attn", "inputs.1", TAP_K, ANY, IN_LAYER},
    {"self_attn.attn", "inputs.2", TAP_V, ANY, IN_LAYER},
    {"self_attn.attn", "", TAP_ATTN, ANY, IN_LAYER},
    {"self_attn.o_proj", "inputs.0", TAP_ATTN, ANY, IN_LAYER},
    {"self_attn.o_proj", "", TAP_ADDED, PRE, IN_LAYER},
    {"self_attn.o_proj", "0", TAP_ADDED, PRE, IN_LAYER},
    {"self_attn", "", TAP_ADDED, PRE, IN_LAYER},
    {"post_attention_layernorm", "", TAP_ADDED, POST | SANDWICH, IN_LAYER},
    {"post_attention_layernorm", "1", TAP_MIDDLE, PRE, IN_LAYER},
    {"pre_feedforward_layernorm", "1", TAP_MIDDLE, SANDWICH, IN_LAYER},
    {"post_attention_layernorm", "0", TAP_NORMED2, PRE, IN_LAYER},
    {"post_attention_layernorm", "", TAP_NORMED2, PRE, IN_LAYER},
    {"pre_feedforward_layernorm", "0", TAP_NORMED2, SANDWICH, IN_LAYER},
    {"pre_feedforward_layernorm", "", TAP_NORMED2, SANDWICH, IN_LAYER},
    {"mlp", "", TAP_FED, PRE, IN_LAYER},
    {"mlp", "0", TAP_FED, PRE, IN_LAYER},
    {"mlp.down_proj", "", TAP_FED, PRE, IN_LAYER},
    {"mlp.down_proj", "0", TAP_FED, PRE, IN_LAYER},
    {"block_sparse_moe", "", TAP_FED, PRE, IN_LAYER},
    {"post_feedforward_layernorm", "", TAP_FED, POST | SANDWICH, IN_LAYER},
    {"", "0+1", TAP_LEFT, ANY, IN_LAYER},
    {"", "", TAP_LEFT, ANY, IN_LAYER},
    {"norm", "1", TAP_LEFT, ANY, IN_MODEL},
    {"norm", "0", TAP_FINAL, ANY, IN_MODEL},
    {"norm", "", TAP_FINAL, ANY, IN_MODEL},
    {"logits_processor", "", TAP_LOGITS, ANY, IN_MODEL},
    {"logits_processor", "next_token_logits", TAP_LOGITS, ANY, IN_MODEL},
    {"next_token_logits", "", TAP_LOGITS, ANY, IN_MODEL},
};
enum { N_NAMES = LEN(names) };

void dump_name_parse(const char *name, struct dump_name *p)
{
    static const char prefix[] = "non_intrusive__", layers[] = "layers.";
    char rest[sizeof p->module];
    *p = (struct dump_name){.layer = -1};
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (const char *s = name; (s = strstr(s, layers)) != NULL; s++) {
        const char *digits = s + sizeof layers - 1;
        int layer;
        if ((s == name || s[-1] == '.') && int_at(&digits, &layer) && layer >= 0 &&
            (*digits == '.' || !*digits)) {
            p->layer = layer;
            name = digits + (*digits == '.');
            break;
        }
    }
    if (p->layer < 0 && strncmp(name, "model.", 6) == 0)
        name += 6;
    snprintf(rest, sizeof rest, "%s", name);
    char *cut = strstr(rest, "inputs."), *port = NULL;
    if (cut && (cut == rest || cut[-1] == '.')) {
        port = cut;
    } else if ((cut = strstr(rest, "output")) && (cut == rest || cut[-1] == '.') &&
               (cut[6] == '.' || !cut[6])) {
        port = cut[6] ? cut + 7 : cut + 6;
    } else {
        cut = strrchr(rest, '.');
        if (cut && cut[1] >= '0' && cut[1] <= '9' && !cut[2])
            port = ++cut;
        else
            cut = rest + strlen(rest);
    }
    snprintf(p->port, sizeof p->port, "%s", port ? port : "");
    if (cut > rest && cut[-1] == '.')
        cut--;
    *cut = '\0';
    snprintf(p->module, sizeof p->module, "%s", rest);
}

/* Whether aerie's tap has the module's numbers in this family. */
static bool has_tap(const struct model *model, const struct module_name *m, int layer)
{
    const struct config *c = &model->cfg;
    if (!(m->where >> c->place & 1) || (m->in ? layer < 0 || layer >= c->n_layer : layer >= 0))
        return false;
    const struct layer *w = &model->layer[m->in ? layer : 0];
    switch (m->tap) {
    case TAP_ENTRY: return m->in || (c->embed_scale == 1 && !c->embed_norm);
    case TAP_NORMED: return w->in_norm.data != NULL;
    case TAP_NORMED2: return w->ffn_in_norm.data != NULL && c->moe != MOE_GEMMA4;
    case TAP_K:
    case TAP_V:
        return w->kv_src == layer && !c->v_head_dim &&
               (strcmp(m->module, "self_attn.attn") == 0 || (!c->v_norm && !w->v_from_k));
    case TAP_ATTN:
        return !c->v_head_dim && (!w->wgate.data || strncmp(m->port, "inputs", 6) == 0);
    case TAP_ADDED: return m->where != PRE || (c->residual_scale == 1 && c->value_scale == 1);
    case TAP_FED:
        return m->where != PRE ||
               (c->residual_scale == 1 && !(strstr(m->module, "down_proj") && w->is_moe));
    default: return true;
    }
}

const struct module_name *dump_name_find(const struct model *model, const struct dump_name *p)
{
    for (int i = 0; i < N_NAMES; i++)
        if ((names[i].in != IN_MODEL) == (p->layer >= 0) && strcmp(names[i].module, p->module) ==
            0 && strcmp(names[i].port, p->port) == 0 && has_tap(model, &names[i], p->layer))
            return &names[i];
    return NULL;
}

int dump_name_order(const struct module_name *m)
{
    return (int)m->tap * 64 + (int)(m - names);
}
