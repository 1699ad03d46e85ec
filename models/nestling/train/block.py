"""The block drafter: parameters and checkpoint layout (DFlash, arXiv 2602.06036, as z-lab publishes it).

One pass guesses the BLOCK - 1 tokens after the anchor, the last committed token. Its rows stand at the positions of the anchor and
of the guesses; row 0 has the anchor's embedding, the others that of MASK. Keys and values of all earlier positions come from states
captured in the target; the rows of a block see all of them and each other. Embedding and output layer are the target's."""
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from model import Config, rms, rotate

BLOCK = 8
MASK = 4  # <start_of_turn>: no reply has it
LAYERS = 3
FFN = 384
THETA = 1e4
EPS = 1e-6
CAPTURE = [2, 4, 5, 8]  # boundaries: outputs of layers 1, 3, 4, 7
TRUNK = {"fc": "fc.weight", "n_context": "hidden_norm.weight", "norm": "norm.weight"}
NAMES = {"q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight",
         "n_q": "self_attn.q_norm.weight", "n_k": "self_attn.k_norm.weight", "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight",
         "down": "mlp.down_proj.weight", "n_in": "input_layernorm.weight", "n_post": "post_attention_layernorm.weight"}
WEIGHTS = tuple(NAMES)
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def mat(o, i, scale=0.7):
    return nn.Parameter(torch.randn(o, i) * (scale / i ** 0.5))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, hd = c.hidden, c.head_dim
        self.q, self.k, self.v = mat(c.heads * hd, d), mat(c.kv_heads * hd, d), mat(c.kv_heads * hd, d)
        self.o = mat(d, c.heads * hd)
        self.gate, self.up, self.down = mat(FFN, d), mat(FFN, d), mat(d, FFN)
        self.n_in, self.n_post = (nn.Parameter(torch.ones(d)) for _ in range(2))
        self.n_q, self.n_k = (nn.Parameter(torch.ones(hd)) for _ in range(2))

    def weights(self):
        return tuple(getattr(self, k) for k in WEIGHTS)


def heads(x, w, n):
    B, L, _ = x.shape
    return F.linear(x, w.to(x.dtype)).view(B, L, n, Config.head_dim).transpose(1, 2)


def norm(x, w):
    return rms(x, w, EPS, gemma=False)


def attend(q, k, v, mask):
    """mask: a block mask, or, where flex attention has no gradients, a matrix of which keys are seen"""
    if torch.is_tensor(mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def run_layer(x, c, rope, context_rope, mask, weights):
    """One layer over the rows x [B, Q, d] of all blocks, whose keys are those of the context c [B, L, d] and of the rows.
    rope, context_rope: cosines and sines [B, 1, rows, hd]. A plain function of its weights, so that all layers share one compiled
    version."""
    t, n = x.dtype, Config.kv_heads
    wq, wk, wv, wo, n_q, n_k, gate, up, down, n_in, n_post = weights
    y = norm(x, n_in)
    q = rotate(norm(heads(y, wq, Config.heads), n_q), *rope)
    k = torch.cat([rotate(norm(heads(c, wk, n), n_k), *context_rope), rotate(norm(heads(y, wk, n), n_k), *rope)], 2)
    v = torch.cat([heads(c, wv, n), heads(y, wv, n)], 2)
    a = attend(q, k, v, mask)
    x = x + F.linear(a.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1), wo.to(t))
    y = norm(x, n_post)
    return x + F.linear(F.silu(F.linear(y, gate.to(t))) * F.linear(y, up.to(t)), down.to(t))


class BlockDraft(nn.Module):
    def __init__(self, c=Config):
        super().__init__()
        self.fc = mat(c.hidden, len(CAPTURE) * c.hidden)
        self.n_context, self.norm = (nn.Parameter(torch.ones(c.hidden)) for _ in range(2))
        self.layers = nn.ModuleList(Layer(c) for _ in range(LAYERS))

    def matrices(self):
        return [self.fc] + [getattr(l, k) for l in self.layers for k in MATRICES]

    def context(self, fused):
        """captured states of all positions -> what every layer makes keys and values of"""
        return norm(F.linear(fused, self.fc.to(fused.dtype)), self.n_context)


def config(c=Config):
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "attention_bias": False, "block_size": BLOCK, "bos_token_id": 2,
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [b - 1 for b in CAPTURE]}, "eos_token_id": 1, "head_dim": c.head_dim,
            "hidden_act": "silu", "hidden_size": c.hidden, "initializer_range": 0.02, "intermediate_size": FFN,
            "layer_types": ["full_attention"] * LAYERS, "max_position_embeddings": c.max_pos, "num_attention_heads": c.heads,
            "num_hidden_layers": LAYERS, "num_key_value_heads": c.kv_heads, "num_target_layers": c.layers, "pad_token_id": 0,
            "rms_norm_eps": EPS, "rope_scaling": None, "rope_theta": THETA, "sliding_window": None, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": c.vocab}


def tensors(net):
    """The parameters by their names in the file"""
    named = {n: getattr(net, k) for k, n in TRUNK.items()}
    for i, l in enumerate(net.layers):
        named.update({f"layers.{i}.{n}": getattr(l, k) for k, n in NAMES.items()})
    return named


def save(net, out):
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    sd = {n: p.detach().to(torch.bfloat16).cpu().contiguous() for n, p in tensors(net).items()}
    save_file(sd, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config(), f, indent=2)
        f.write("\n")


def load(path):
    from safetensors.torch import load_file
    sd = load_file(os.path.join(path, "model.safetensors"))
    net = BlockDraft()
    with torch.no_grad():
        for n, p in tensors(net).items():
            p.copy_(sd[n])
    return net
