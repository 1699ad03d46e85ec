#!/usr/bin/env python3
"""Makes small random draft heads over the target folders, with reference tensors beside them.

  python3 tests/golden/make_draft.py [NAME...]             writes the fixtures, tests/golden/NAME/
  python3 tests/golden/make_draft.py --vary N --out DIR [--seed S] TARGET...
                                                           writes N random heads for each target
  aerie golden TARGET --draft HEAD                         compares one

The reference is the plain float32 torch below, written from the papers and from what the published
heads' own programs compute; of a frozen-KV assistant, the target's K and V come from transformers.
The target's prompt, states and greedy tokens are read from its golden.safetensors.

Of an EAGLE3 or P-EAGLE head: input_ids [L], next_token [1], fused_hidden [L, n H] (the captured boundaries),
prefill.draft_hidden [L, h] (before the final norm), prefill.draft_logits [L, draft vocab], and for
each tree tree_{nodes}_{depth}_{topk}.{draft_tokens, position_ids, tree_mask, retrieve_indices};
depth counts forwards after the first top-k. Of a P-EAGLE head also block.hidden and block.logits
of all masks behind the prompt, and the trees are of these. Of an assistant: last_hidden, first_token, position,
and draft_logits, draft_hidden, draft_tokens of five steps. Of a DFlash draft: input_ids, next_token
and fused_hidden as of EAGLE3, block.hidden [B, h] (before the final norm), block.logits [B - 1,
draft vocab] of the rows behind the first, and the trees; where transformers has the same arithmetic
(MuseGlimmerAssistantModel: full layers, no causal ones), both are compared before they are written.
Of a DSpark or DFlash 2 draft block.logits [guesses, draft vocab] are those before the token of the
row before counts, and block.scores [guesses] the sums of log probabilities along the greedy chain;
they, too, are compared with the package speculators (its DSparkDraftModel and DFlash2DraftModel).
"""
import argparse
import glob
import json
import os
import random

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.gemma4 import modeling_gemma4 as gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified as unified
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = os.path.dirname(os.path.abspath(__file__))
TREES = [(8, 3, 2), (16, 4, 4), (60, 5, 8)]

# What a head may be; a case names what differs.
#   names    layers. (speculators), midlayer. (SafeAILab, one layer), midlayer.N. (ModelOpt), model.
#   depths   of a P-EAGLE head; unsaid: its config does not say how many (then 16, or the window)
#   ids      nested (layer outputs: boundary - 1), top (boundaries), none (2, n/2, n-3)
PLAIN = dict(hidden=None, heads=4, kv=2, head_dim=10, ffn=40, layers=1, draft_vocab=77, eps=1e-5,
             rope=dict(rope_type="default", rope_theta=1e4), window=0, names="midlayer.",
             embed=False, head=True, before_residual=False, norm_output=False, input_norm=False,
             fc_norm=False, bias=False, qk_norm=False, speculators=False, ids="nested",
             capture=None, depths=0, unsaid=False)
# of DSpark and DFlash 2 drafts; anchor: the block's first row guesses, too
EDGES = dict(edges=None, anchor=False, rank=0, choices=0, taps=0, group=0, times=1.0, cap=0.0,
             causal_swa=True, confidence=False)
YARN = dict(rope_type="yarn", rope_theta=1.5e5, factor=32.0, original_max_position_embeddings=16,
            beta_fast=32.0, beta_slow=1.0, truncate=False)

# name: (seed, target, what differs from PLAIN)
CASES = {
    "eagle3-redhat-b": (700, "olmo3-b", dict(
        names="layers.", speculators=True, before_residual=True, input_norm=True, embed=True,
        ids="top", capture=[1, 2, 3], heads=3, kv=1, head_dim=16)),
    "eagle3-nvidia-b": (701, "gptoss-plain-b", dict(
        draft_vocab=None, head=False, window=5, rope=YARN, capture=[1, 2, 3], ffn=56)),
    "eagle3-deep-b": (702, "qwen3-b", dict(
        hidden=40, layers=3, names="midlayer.N.", embed=True, fc_norm=True, norm_output=True,
        bias=True, capture=[0, 1, 2], ids="top", heads=5, kv=5, head_dim=8)),
    "peagle-b": (703, "llama-b", dict(
        depths=7, layers=2, names="layers.", embed=True, heads=6, kv=2, head_dim=8, ffn=24,
        draft_vocab=70, capture=[0, 1, 2], ids="top", bias=True)),
    "peagle-swa-b": (704, "gemma3-b", dict(
        depths=5, speculators=True, names="layers.", window=5, embed=True, before_residual=True,
        fc_norm=True, ids="top", capture=[0, 2, 3], hidden=24, draft_vocab=None, head=True,
        heads=3, kv=3, ffn=28, unsaid=True)),
    "dflash-b": (703, "qwen3-b", dict(
        dflash=True, block=6, layers=2, capture=[1, 2], heads=6, kv=2, ffn=56, names="layers.",
        draft_vocab=None, head=False)),
    "dflash-swa-b": (704, "gemma3-b", dict(
        dflash=True, block=9, layers=3, capture=[1, 2, 3], heads=4, kv=4, head_dim=12, window=11,
        sliding=[0, 2], draft_vocab=90, speculators=True, rope=YARN, names="layers.")),
    "dspark-b": (707, "qwen3-b", dict(
        dflash=True, edges="vanilla", anchor=True, rank=20, block=6, layers=2, capture=[0, 1, 2],
        heads=4, kv=2, ffn=40, names="layers.", draft_vocab=None, embed=True, head=True,
        confidence=True)),
    "dspark-gated-b": (708, "gemma3-b", dict(
        dflash=True, edges="gated", anchor=True, rank=12, block=7, layers=2, capture=[1, 2],
        heads=4, kv=1, head_dim=12, ffn=36, window=96, sliding=[1], draft_vocab=90,
        speculators=True, names="layers.", confidence=True)),
    "dflash2-b": (709, "qwen3-b", dict(
        dflash=True, edges="best", rank=24, choices=9, taps=2, group=8, times=0.75, cap=2.5,
        block=8, layers=2, capture=[1, 2], heads=4, kv=2, ffn=40, names="layers.",
        draft_vocab=None, head=False, window=96, sliding=[0], causal_swa=False)),
    "dflash2-swa-b": (710, "gemma3-b", dict(
        dflash=True, edges="best", anchor=True, rank=10, choices=5, taps=3, group=4, block=5,
        layers=2, capture=[1, 3], heads=3, kv=3, ffn=28, window=96, sliding=[1], draft_vocab=None,
        head=False, speculators=True, names="layers.", causal_swa=False)),
    "assistant-moe-b": (703, "gemma4-moe-b", dict(assistant=True)),
    "assistant-unified-b": (704, "gemma4-unified-b", dict(assistant=True)),
}


def rms(x, w, eps):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def turn(x, cos, sin):
    """Rotates pairs (i, i + half) of x (rows, heads, head_dim); cos, sin are (rows, head_dim)."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def attend(q, k, v, visible, scale):
    """q (rows, heads, d), k and v (cells, kv, d), visible (rows, cells) -> (rows, heads d)."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    s = torch.einsum("rhd,chd->hrc", q, k) * scale
    p = s.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hrc,chd->rhd", p, v).flatten(1)


class Target:
    def __init__(self, path):
        with open(path + "/config.json") as f:
            self.config = json.load(f)
        text = self.config.get("text_config", self.config)
        self.n, self.hidden = text["num_hidden_layers"], text["hidden_size"]
        rooted = "gemma" in text["model_type"] or text.get("mup_enabled")
        self.scale = self.hidden ** 0.5 if rooted else text.get("embedding_multiplier", 1.0)
        self.path, self.golden = path, load_file(path + "/golden.safetensors")
        w = {}
        for file in sorted(glob.glob(path + "/model*.safetensors")):
            w.update(load_file(file))
        self.embed = next(t for k, t in w.items() if k.endswith("embed_tokens.weight")).float()
        self.head = next((t.float() for k, t in w.items() if k.endswith("lm_head.weight")),
                         self.embed)
        self.ids, self.next = self.golden["input_ids"].long(), self.golden["greedy_ids"][:1].long()


# ---- EAGLE3 --------------------------------------------------------------------------------------

def eagle3_weights(s, t, g):
    """name -> tensor, in bf16; layer i's names begin with i."""
    h, wide = s["hidden"] or t.hidden, len(s["capture"]) * t.hidden
    vocab = s["draft_vocab"] or len(t.embed)
    w = {"fc.weight": (h, wide), "norm.weight": (h,)}
    if s["head"]:
        w["lm_head.weight"] = (vocab, h)
    if s["embed"]:
        w["embed_tokens.weight"] = (len(t.embed), h)
    if s["input_norm"]:
        w["input_norm.weight"] = (wide,)
    if s["fc_norm"]:
        w.update({f"fc_norm.{i}.weight": (t.hidden,) for i in range(len(s["capture"]))})
    if s["depths"]:
        w["mask_hidden"] = (1, 1, wide) if s["speculators"] else (1, wide)
    for i in range(s["layers"]):
        out = {"q_proj": s["heads"] * s["head_dim"], "k_proj": s["kv"] * s["head_dim"],
               "v_proj": s["kv"] * s["head_dim"]}
        for p, n in out.items():
            w[f"{i}.self_attn.{p}.weight"] = (n, h if i else 2 * h)
            if s["bias"]:
                w[f"{i}.self_attn.{p}.bias"] = (n,)
            if s["qk_norm"] and p != "v_proj":
                w[f"{i}.self_attn.{p[0]}_norm.weight"] = (s["head_dim"],)
        w[f"{i}.self_attn.o_proj.weight"] = (h, out["q_proj"])
        w[f"{i}.mlp.gate_proj.weight"] = w[f"{i}.mlp.up_proj.weight"] = (s["ffn"], h)
        w[f"{i}.mlp.down_proj.weight"] = (h, s["ffn"])
        norms = ["input_layernorm", "post_attention_layernorm", "hidden_norm"][:2 if i else 3]
        w.update({f"{i}.{n}.weight": (h,) for n in norms})

    def draw(name, shape):
        r = torch.randn(shape, generator=g)
        if "norm" in name:
            return (1 + 0.2 * r).bfloat16()
        if name == "mask_hidden":
            return r.bfloat16()
        return (0.3 * r if len(shape) == 1 else r * shape[-1] ** -0.5).bfloat16()
    return {k: draw(k, shape) for k, shape in w.items()}


class Eagle3:
    """The head over a growing list of cells, each with a position."""

    def __init__(self, s, t, w, d2t):
        self.s, self.d2t = s, d2t
        self.w = {k: v.float() for k, v in w.items()}
        self.embed = self.w.get("embed_tokens.weight", t.embed)
        self.head = self.w.get("lm_head.weight", t.head)
        config = transformers.LlamaConfig(
            hidden_size=s["heads"] * s["head_dim"], num_attention_heads=s["heads"],
            head_dim=s["head_dim"], max_position_embeddings=4096, rope_parameters=dict(s["rope"]))
        self.rotary = LlamaRotaryEmbedding(config)
        self.cells = [(torch.zeros(0), torch.zeros(0))] * s["layers"]
        self.pos = torch.zeros(0, dtype=torch.long)

    def norm(self, x, name):
        w = self.w.get(name + ".weight")
        return x if w is None else rms(x, w, self.s["eps"])

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def fuse(self, states):
        parts = [self.norm(x, f"fc_norm.{i}") for i, x in enumerate(states)]
        return self.linear(self.norm(torch.cat(parts, -1), "input_norm"), "fc")

    def attention(self, z, i, visible):
        rows = len(z)
        q, k, v = (self.linear(z, f"{i}.self_attn.{p}_proj").view(rows, -1, self.s["head_dim"])
                   for p in "qkv")
        cos, sin = (x[0] for x in self.rotary(z, self.pos[None, -rows:]))
        q = turn(self.norm(q, f"{i}.self_attn.q_norm"), cos, sin)
        k = turn(self.norm(k, f"{i}.self_attn.k_norm"), cos, sin)
        old_k, old_v = self.cells[i]
        self.cells[i] = (torch.cat([old_k.view(-1, *k.shape[1:]), k]),
                         torch.cat([old_v.view(-1, *v.shape[1:]), v]))
        o = attend(q, *self.cells[i], visible, self.s["head_dim"] ** -0.5)
        return self.linear(o, f"{i}.self_attn.o_proj")

    def forward(self, token, g, pos, visible):
        """New cells at pos; visible (rows, cells) includes them. -> states before the last norm."""
        self.pos = torch.cat([self.pos, pos])
        if self.s["window"]:
            visible = visible & (pos[:, None] - self.pos[None] < self.s["window"])
        normed = self.norm(g, "0.hidden_norm")
        z = torch.cat([self.norm(self.embed[token], "0.input_layernorm"), normed], -1)
        x = normed if self.s["before_residual"] else g
        for i in range(self.s["layers"]):
            if i > 0:
                z = self.norm(x, f"{i}.input_layernorm")
            x = x + self.attention(z, i, visible)
            y = self.norm(x, f"{i}.post_attention_layernorm")
            y = F.silu(self.linear(y, f"{i}.mlp.gate_proj")) * self.linear(y, f"{i}.mlp.up_proj")
            x = x + self.linear(y, f"{i}.mlp.down_proj")
        return x

    def logits(self, x):
        return F.linear(self.norm(x, "norm"), self.head)

    def target_id(self, ids):
        return ids if self.d2t is None else ids + self.d2t[ids]

    def fed_back(self, x):
        return self.norm(x, "norm") if self.s["norm_output"] else x


def grow(head, root, state, logits, base, nodes, depth, topk):
    """EAGLE-2's tree: the candidates in the order they were made, the best nodes - 1 kept."""
    cells, pos = list(head.cells), head.pos
    n0 = len(pos)
    top = logits.log_softmax(-1).topk(topk)
    cand = [dict(token=int(t), up=-1, depth=1, score=float(p))
            for t, p in zip(head.target_id(top.indices), top.values)]
    front, rows, states = list(range(topk)), [0] * topk, state[None]
    seen = {}  # candidate -> its cell
    for level in range(depth):
        visible = torch.zeros(topk, n0 + (level + 1) * topk, dtype=torch.bool)
        visible[:, :n0] = True
        for r, c in enumerate(front):
            seen[c] = n0 + level * topk + r
            while c >= 0:
                visible[r, seen[c]] = True
                c = cand[c]["up"]
        x = head.forward(torch.tensor([cand[c]["token"] for c in front]),
                         head.fed_back(states[rows]), torch.full((topk,), base + level), visible)
        top = head.logits(x).log_softmax(-1).topk(topk)
        first = len(cand)
        for r, c in enumerate(front):
            for t, p in zip(head.target_id(top.indices[r]), top.values[r]):
                cand.append(dict(token=int(t), up=c, depth=level + 2,
                                 score=cand[c]["score"] + float(p)))
        best = torch.tensor([c["score"] for c in cand[first:]]).topk(topk).indices.tolist()
        front, rows, states = [first + b for b in best], [b // topk for b in best], x
    head.cells, head.pos = cells, pos
    order = torch.tensor([c["score"] for c in cand], dtype=torch.float64).topk(nodes - 1).indices
    node = {c: i + 1 for i, c in enumerate(sorted(order.tolist()))}
    node[-1] = 0
    tree = [dict(token=root, up=None, depth=0)] + [
        dict(cand[c], up=node[cand[c]["up"]]) for c in sorted(node) if c >= 0]
    return tree


def tree_tensors(tree, prefix):
    n = len(tree)
    mask = torch.zeros(n, n, dtype=torch.uint8)
    paths = []
    for i in range(n):
        path, at = [], i
        while at is not None:
            path.append(at)
            at = tree[at]["up"]
        mask[i, path] = 1
        paths.append(path[::-1])
    leaves = [p for i, p in enumerate(paths) if not any(x["up"] == i for x in tree)]
    wide = max(map(len, leaves))
    return {f"{prefix}.draft_tokens": torch.tensor([x["token"] for x in tree]).int(),
            f"{prefix}.position_ids": torch.tensor([x["depth"] for x in tree]).int(),
            f"{prefix}.tree_mask": mask,
            f"{prefix}.retrieve_indices": torch.tensor(
                [p + [-1] * (wide - len(p)) for p in leaves]).int()}


def eagle3_config(s, t):
    inner = dict(model_type="llama", hidden_size=s["hidden"] or t.hidden, hidden_act="silu",
                 intermediate_size=s["ffn"], num_attention_heads=s["heads"],
                 num_key_value_heads=s["kv"], num_hidden_layers=s["layers"],
                 head_dim=s["head_dim"], rms_norm_eps=s["eps"], vocab_size=len(t.embed),
                 max_position_embeddings=4096, tie_word_embeddings=False,
                 attention_bias=s["bias"])
    r = dict(s["rope"])
    inner["rope_theta"] = r.pop("rope_theta")
    inner["rope_scaling"] = None if r["rope_type"] == "default" else r
    if s["window"]:
        inner.update(layer_types=["sliding_attention"] * s["layers"], sliding_window=s["window"])
    own = dict(draft_vocab_size=s["draft_vocab"], norm_before_residual=s["before_residual"],
               norm_output=s["norm_output"], target_hidden_size=t.hidden)
    own["norm_before_fc" if s["input_norm"] else "fc_norm"] = s["input_norm"] or s["fc_norm"]
    if s["ids"] == "top":
        own["eagle_aux_hidden_state_layer_ids"] = s["capture"]
    if s["ids"] == "nested":
        own["eagle_config"] = dict(
            eagle_aux_hidden_state_layer_ids=[b - 1 for b in s["capture"]],
            use_aux_hidden_state=True, use_input_layernorm_in_first_layer=True,
            use_last_layernorm=True, use_mtp_layernorm=False, next_layer_regular=True)
    kind, said = "peagle" if s["depths"] else "eagle3", s["depths"] and not s["unsaid"]
    if s["depths"]:
        own["mask_token_id" if s["speculators"] else "ptd_token_id"] = mask_of(t)
    if s["speculators"]:
        how = [dict(proposal_type="greedy", speculative_tokens=s["depths"])] if said else []
        return dict(own, architectures=["PEagleSpeculator" if s["depths"] else "Eagle3Speculator"],
                    speculators_model_type=kind, transformer_layer_config=inner,
                    target_hidden_size=None,
                    speculators_config=dict(algorithm=kind, proposal_methods=how))
    if said:
        own.update(parallel_drafting=True, num_depths=s["depths"])
    return dict(inner, architectures=["PEagleDraftModel" if s["depths"]
                                      else "LlamaForCausalLMEagle3"], **own)


def mask_of(t):
    return len(t.embed) - 3


def published(name, s):
    """A tensor's name in the file, from its name here."""
    if not name[0].isdigit():
        return name
    i, rest = name.split(".", 1)
    form = s["names"]
    if form == "midlayer.":
        return form + rest
    return (form.replace("N", i) if "N" in form else f"{form}{i}.") + rest


def make_eagle3(path, t, s, seed):
    g = torch.Generator().manual_seed(seed)
    w, vocab = eagle3_weights(s, t, g), len(t.embed)
    kept = torch.randperm(vocab, generator=g)[:s["draft_vocab"] or vocab].sort().values
    d2t = kept - torch.arange(len(kept)) if s["draft_vocab"] else None
    head, L = Eagle3(s, t, w, d2t), len(t.ids)
    states = [t.golden["hidden_states"][b] for b in s["capture"]]
    causal = torch.ones(L, L, dtype=torch.bool).tril()
    x = head.forward(torch.cat([t.ids[1:], t.next]), head.fuse(states), torch.arange(L), causal)
    out = {"input_ids": t.ids.int(), "next_token": t.next.int(),
           "fused_hidden": torch.cat(states, -1), "prefill.draft_hidden": x,
           "prefill.draft_logits": head.logits(x)}
    if s["depths"]:
        out.update(masks(head, s, t, x[-1:], L))
    for nodes, depth, topk in () if s["depths"] else TREES:
        tree = grow(head, int(t.next), x[-1], head.logits(x[-1]), L, nodes, depth, topk)
        out.update(tree_tensors(tree, f"tree_{nodes}_{depth}_{topk}"))
    w = {published(k, s): v for k, v in w.items()}
    if d2t is not None:
        w["d2t"] = d2t
        w["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, kept, True)
    write(path, eagle3_config(s, t), w, out)


# ---- P-EAGLE -------------------------------------------------------------------------------------

def masks(head, s, t, last, L):
    """The masks behind L true cells in one pass, and the trees: depth 1 is of the last true cell."""
    n = (min(s["window"] or 16, 16) if s["unsaid"] else s["depths"]) - 1
    wide = head.w["mask_hidden"].view(len(s["capture"]), 1, t.hidden)
    g = head.fuse([x.expand(n, -1) for x in wide])
    seen = torch.cat([torch.ones(n, L, dtype=torch.bool), torch.ones(n, n).bool().tril()], 1)
    x = head.forward(torch.full((n,), mask_of(t)), g, torch.arange(L, L + n), seen)
    out = {"block.hidden": x, "block.logits": head.logits(x)}
    logits = head.logits(torch.cat([last, x]))
    for nodes, depth, topk in [(n + 2, n, 1), (2, 0, 1)] + TREES:
        if depth <= n:
            tree = grow_block(head, int(t.next), logits, nodes, depth, topk)
            out.update(tree_tensors(tree, f"tree_{nodes}_{depth}_{topk}"))
    return out


# ---- DFlash --------------------------------------------------------------------------------------

def dflash_weights(s, t, g):
    """As eagle3_weights(), with a norm behind fc and plain layers."""
    s = dict(s, qk_norm=True)
    w = eagle3_weights(s, t, g)
    h, draw = s["hidden"] or t.hidden, torch.randn
    for p, n in (("q", s["heads"]), ("k", s["kv"]), ("v", s["kv"])):  # layer 0 reads h, not 2 h
        w[f"0.self_attn.{p}_proj.weight"] = (draw((n * s["head_dim"], h), generator=g) *
                                             h ** -0.5).bfloat16()
    w["hidden_norm.weight"] = w.pop("0.hidden_norm.weight")
    w.update(edge_weights(s, t, g))
    return w


def edge_weights(s, t, g):
    """What DSpark and DFlash 2 add."""
    h, r, vocab = s["hidden"] or t.hidden, s["rank"], len(t.embed)
    shapes = {}
    if s["edges"] in ("vanilla", "gated"):
        shapes = {"markov_head.markov_w1.weight": (vocab, r),
                  "markov_head.markov_w2.weight": (s["draft_vocab"] or vocab, r)}
    if s["edges"] == "gated":
        shapes.update({"markov_head.gate_proj.weight": (r, h + r),
                       "markov_head.gate_proj.bias": (r,)})
    if s["confidence"]:
        shapes.update({"confidence_head.proj.weight": (1, h + r),
                       "confidence_head.proj.bias": (1,)})
    if s["edges"] == "best":
        shapes = {"candidate_selector.predecessor_codebook": (vocab, r),
                  "candidate_selector.successor_codebook": (vocab, r),
                  "candidate_selector.hidden_projection.weight": (r, h)}
        for i in range(s["layers"]):
            for part in ("attention", "mlp"):
                shapes.update({
                    f"{i}.{part}_conv.base_kernel": (2, s["taps"], h),
                    f"{i}.{part}_conv.kernel_projection.weight":
                        (2 * s["taps"] * h // s["group"], h)})

    def draw(name, shape):
        x = torch.randn(shape, generator=g)
        if "base_kernel" in name:
            x = 0.3 * x
            x[:, 0] += 1
        elif "codebook" in name:
            x = 1.5 * x * shape[-1] ** -0.25
        elif "kernel_projection" in name:
            x = 0.3 * x * shape[-1] ** -0.5
        elif "markov_w1" not in name:
            x = x * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        return x.bfloat16()
    return {k: draw(k, shape) for k, shape in shapes.items()}


class DFlash(Eagle3):
    """A draft whose cells are made from the target's states, and one block over them."""

    def __init__(self, s, t, w, d2t):
        super().__init__(s, t, w, d2t)
        self.scale = 1.0 if s["embed"] else t.scale  # the target's embedding, as the target reads it

    def cells_of(self, z, i, pos):
        k, v = (self.linear(z, f"{i}.self_attn.{p}_proj").view(len(z), -1, self.s["head_dim"])
                for p in "kv")
        cos, sin = (x[0] for x in self.rotary(z, pos[None]))
        return turn(self.norm(k, f"{i}.self_attn.k_norm"), cos, sin), v

    def convolve(self, x, i, part, side, by):
        """x (rows, h); by (rows, 2, taps, groups): what each row adds to the coefficients."""
        base, out = self.w[f"{i}.{part}_conv.base_kernel"][side], torch.zeros_like(x)
        for tap in range(self.s["taps"]):
            before = torch.cat([torch.zeros_like(x[:tap]), x[:len(x) - tap]])
            more = by[:, side, tap].repeat_interleave(self.s["group"], 1)
            out = out + before * (base[tap] + more)
        return out

    def around(self, y, i, part, inner):
        """inner(y), between the convolutions of a DFlash 2 layer."""
        if not self.s["taps"]:
            return inner(y)
        by = self.linear(y, f"{i}.{part}_conv.kernel_projection")
        by = by.view(len(y), 2, self.s["taps"], -1)
        return self.convolve(inner(self.convolve(y, i, part, 0, by)), i, part, 1, by)

    def logits(self, x):
        y = super().logits(x) * self.s["times"]
        return self.s["cap"] * torch.tanh(y / self.s["cap"]) if self.s["cap"] else y

    def edges(self, x, logits, token):
        """Log probabilities after a parent: x, logits: the row's; of ids that are none -inf."""
        e = self.w.get("markov_head.markov_w1.weight")
        if e is not None:
            e = e[token]
            if self.s["edges"] == "gated":
                gate = self.linear(torch.cat([self.norm(x, "norm"), e]), "markov_head.gate_proj")
                e = torch.sigmoid(gate) * e
            return (logits + self.linear(e, "markov_head.markov_w2")).log_softmax(-1)
        s = "candidate_selector."
        e = self.w[s + "predecessor_codebook"][token] * self.linear(
            self.norm(x, "norm"), s + "hidden_projection")
        best, out = logits.topk(self.s["choices"]).indices, torch.full_like(logits, float("-inf"))
        out[best] = (logits[best] + self.w[s + "successor_codebook"][best] @ e).log_softmax(-1)
        return out

    def block(self, states, root, mask):
        """states: the captured ones of every position. -> states of the rows before the last norm."""
        P, B = len(states[0]), self.s["block"]
        c = self.norm(self.linear(torch.cat(states, -1), "fc"), "hidden_norm")
        pos, key = torch.arange(P, P + B), torch.arange(P + B)
        x = self.embed[[root] + [mask] * (B - 1)] * self.scale
        for i in range(self.s["layers"]):
            seen = torch.ones(B, P + B, dtype=torch.bool)
            if i in self.s.get("sliding", ()):
                apart = pos[:, None] - key[None]
                seen = apart < self.s["window"]
                seen &= (apart >= 0) | (not self.s["causal_swa"])

            def attention(y):
                k, v = (torch.cat(x) for x in zip(self.cells_of(c, i, torch.arange(P)),
                                                  self.cells_of(y, i, pos)))
                q = self.linear(y, f"{i}.self_attn.q_proj").view(B, -1, self.s["head_dim"])
                cos, sin = (z[0] for z in self.rotary(y, pos[None]))
                q = turn(self.norm(q, f"{i}.self_attn.q_norm"), cos, sin)
                o = attend(q, k, v, seen, self.s["head_dim"] ** -0.5)
                return self.linear(o, f"{i}.self_attn.o_proj")

            def mlp(y):
                gate = F.silu(self.linear(y, f"{i}.mlp.gate_proj"))
                return self.linear(gate * self.linear(y, f"{i}.mlp.up_proj"), f"{i}.mlp.down_proj")
            y = self.norm(x, f"{i}.input_layernorm")
            x = x + self.around(y, i, "attention", attention)
            y = self.norm(x, f"{i}.post_attention_layernorm")
            x = x + self.around(y, i, "mlp", mlp)
        return x


def dflash_of_transformers(s, t, head, w, states, root, mask):
    """The rows of the block after the last norm, by MuseGlimmerAssistantModel."""
    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=t.hidden, intermediate_size=s["ffn"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv"], head_dim=s["head_dim"],
        rms_norm_eps=s["eps"], rope_parameters=dict(s["rope"]), block_size=s["block"],
        layer_types=["full_attention"] * s["layers"], mask_token_id=mask,
        target_layer_ids=[b - 1 for b in s["capture"]], attn_implementation="eager")
    model = transformers.MuseGlimmerAssistantModel(config).eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight":
             "encoder.output_norm_enc.weight", "norm.weight": "norm.weight"}
    shared = ("embed_tokens.weight", "lm_head.weight")  # the caller's, of this model's
    model.load_state_dict({names.get(k, "layers." + k): v.float() for k, v in w.items()
                           if k not in shared})
    P, B = len(states[0]), s["block"]
    out = model(noise_embeds=(head.embed[[root] + [mask] * (B - 1)] * head.scale)[None],
                context_hidden_states=torch.cat(states, -1)[None],
                position_ids=torch.arange(P + B)[None])
    return out.last_hidden_state[0]


def speculators_config(s, t, mask):
    """Of DSpark or DFlash 2, by the package speculators."""
    from speculators.models.dflash2 import DFlash2SpeculatorConfig
    from speculators.models.dspark import DSparkSpeculatorConfig
    kinds = ["sliding_attention" if i in s.get("sliding", ()) else "full_attention"
             for i in range(s["layers"])]
    inner = transformers.Qwen3Config(
        hidden_size=t.hidden, intermediate_size=s["ffn"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv"], head_dim=s["head_dim"],
        rms_norm_eps=s["eps"], rope_parameters=dict(s["rope"]), layer_types=kinds,
        vocab_size=len(t.embed), max_position_embeddings=4096, attn_implementation="eager",
        use_sliding_window=bool(s["window"]), sliding_window=s["window"] or None)
    common = dict(transformer_layer_config=inner, draft_vocab_size=s["draft_vocab"] or len(t.embed),
                  block_size=s["block"], aux_hidden_state_layer_ids=s["capture"],
                  mask_token_id=mask, sample_from_anchor=s["anchor"],
                  sliding_window_non_causal=not s["causal_swa"])
    if s["edges"] == "best":
        return DFlash2SpeculatorConfig(
            **common, conv_kernel_size=s["taps"], conv_group_size=s["group"],
            selector_rank=s["rank"], selector_top_k=s["choices"])
    return DSparkSpeculatorConfig(**common, markov_rank=s["rank"], markov_head_type=s["edges"],
                                  enable_confidence_head=s["confidence"])


def chain_of_speculators(s, t, head, states, root, mask):
    """The states after the last norm, and the sums of log probabilities along the greedy chain.
    The block's anchor lies behind the prompt; what the model is given behind it is not seen."""
    from speculators.models.dflash2 import DFlash2DraftModel
    from speculators.models.dspark import DSparkDraftModel
    kind = DFlash2DraftModel if s["edges"] == "best" else DSparkDraftModel
    model = kind(speculators_config(s, t, mask)).eval().float()
    w = {"layers." + k if k[0].isdigit() else k: v for k, v in head.w.items()}
    w.update({"embed_tokens.weight": head.embed * head.scale, "lm_head.weight": head.head})
    missing, other = model.load_state_dict(w, strict=False)
    assert not other and all("verifier" in k or k in ("t2d", "d2t") for k in missing), missing
    P, B = len(t.ids), s["block"]
    n = P + 2 * B
    fused = torch.zeros(1, n, sum(x.shape[1] for x in states))
    fused[0, :P] = torch.cat(states, -1)
    ids, only = torch.zeros(1, n, dtype=torch.long), torch.zeros(1, n)
    ids[0, :P], ids[0, P], only[0, P] = t.ids, root, 1
    hidden, logits, *_ = model._backbone_forward(
        fused, ids, only, torch.zeros(1, n, t.hidden), torch.zeros(1, n, dtype=torch.long),
        max_anchors=1)
    token, sums = root, [0.0]
    for row in range(0 if s["anchor"] else 1, B):
        prev = torch.full((1, B), token)
        if s["edges"] == "best":
            y = logits * s["times"]
            y = s["cap"] * torch.tanh(y / s["cap"]) if s["cap"] else y
            ids, score = model.candidate_selector.select(y, hidden, prev)
            ids, p = ids[0, row], score[0, row].log_softmax(-1)
        else:
            bias = model.markov_head.block_bias(prev_token_ids=prev, hidden_states=hidden)
            p = (logits + bias)[0, row].log_softmax(-1)
            ids = head.target_id(torch.arange(len(p)))
        token = int(ids[p.argmax()])
        sums.append(sums[-1] + float(p.max()))
    return hidden[0], torch.tensor(sums[1:])


def grow_block(head, root, logits, nodes, depth, topk, x=None):
    """The tree over rows of logits, or with their states x after parents' tokens."""
    top = logits.log_softmax(-1).topk(topk)
    cand, front = [], [-1]
    for level in range(depth + 1):
        first = len(cand)
        for c in front:
            ids, values = top.indices[level], top.values[level]
            if x is not None:
                p = head.edges(x[level], logits[level], cand[c]["token"] if c >= 0 else root)
                values, ids = p.topk(topk)
                kept = values > float("-inf")
                values, ids = values[kept], ids[kept]
            for t, p in zip(head.target_id(ids), values):
                cand.append(dict(token=int(t), up=c, depth=level + 1,
                                 score=(cand[c]["score"] if c >= 0 else 0) + float(p)))
        scores = torch.tensor([c["score"] for c in cand[first:]])
        best = scores.topk(min(topk, len(scores))).indices.tolist()
        front = [first + b for b in best]
    nodes = min(nodes, len(cand) + 1)
    order = torch.tensor([c["score"] for c in cand], dtype=torch.float64).topk(nodes - 1).indices
    node = {c: i + 1 for i, c in enumerate(sorted(order.tolist()))}
    node[-1] = 0
    return [dict(token=root, up=None, depth=0)] + [
        dict(cand[c], up=node[cand[c]["up"]]) for c in sorted(node) if c >= 0]


def dflash_config(s, t, mask):
    kinds = ["sliding_attention" if i in s.get("sliding", ()) else "full_attention"
             for i in range(s["layers"])]
    c = eagle3_config(dict(s, ids=None, qk_norm=True), t)
    inner = c.get("transformer_layer_config", c)
    inner.update(model_type="qwen3", layer_types=kinds, sliding_window=s["window"] or None)
    if s["speculators"] and s["edges"]:
        c = speculators_config(s, t, mask).to_dict()
        c["transformer_layer_config"].pop("dtype", None)
        return c
    own = {k: v for k, v in inner.items() if not k.startswith(("norm_", "fc_norm", "draft_vocab"))}
    if s["speculators"]:
        return dict(architectures=["DFlashSpeculator"], speculators_model_type="dflash",
                    block_size=s["block"], mask_token_id=mask, draft_vocab_size=s["draft_vocab"],
                    aux_hidden_state_layer_ids=s["capture"], transformer_layer_config=own)
    own.pop("target_hidden_size", None)
    if s["edges"] in ("vanilla", "gated"):
        return dict(own, architectures=["Qwen3DSparkModel"], block_size=s["block"],
                    num_target_layers=t.n, mask_token_id=mask, num_anchors=512,
                    target_layer_ids=[b - 1 for b in s["capture"]], markov_rank=s["rank"],
                    markov_head_type=s["edges"], enable_confidence_head=s["confidence"],
                    confidence_head_with_markov=s["confidence"])
    if s["edges"]:
        return dict(own, architectures=["DFlash2DraftModel"], is_causal=False,
                    num_target_layers=t.n, dflash_config=dict(
                        block_size=s["block"], conv_group_size=s["group"],
                        conv_kernel_size=s["taps"], final_logit_softcapping=s["cap"] or None,
                        mask_token_id=mask, output_multiplier=s["times"], selector_rank=s["rank"],
                        selector_top_k=s["choices"],
                        target_layer_ids=[b - 1 for b in s["capture"]]))
    return dict(own, architectures=["DFlashDraftModel"], block_size=s["block"],
                num_target_layers=t.n, dflash_config=dict(
                    mask_token_id=mask, target_layer_ids=[b - 1 for b in s["capture"]]))


def make_dflash(path, t, s, seed):
    g = torch.Generator().manual_seed(seed)
    w, vocab, mask = dflash_weights(s, t, g), len(t.embed), mask_of(t)
    kept = torch.randperm(vocab, generator=g)[:s["draft_vocab"] or vocab].sort().values
    d2t = kept - torch.arange(len(kept)) if s["draft_vocab"] else None
    head, root = DFlash(s, t, w, d2t), int(t.next)
    states = [t.golden["hidden_states"][b] for b in s["capture"]]
    x = head.block(states, root, mask)
    if not s["window"] and not s["hidden"] and not s["edges"]:
        theirs = dflash_of_transformers(s, t, head, w, states, root, mask)
        assert (theirs - head.norm(x, "norm")).abs().max() < 1e-4, "transformers disagrees"
    rows = x[0 if s["anchor"] else 1:]
    logits, after = head.logits(rows), rows if s["edges"] else None
    out = {"input_ids": t.ids.int(), "next_token": t.next.int(),
           "fused_hidden": torch.cat(states, -1), "block.hidden": x, "block.logits": logits}
    if s["edges"]:
        theirs, sums = chain_of_speculators(s, t, head, states, root, mask)
        off = (theirs - head.norm(x, "norm")).abs().max()
        assert off < 1e-4, f"speculators disagrees by {off}"
        chain = grow_block(head, root, logits, len(rows) + 1, len(rows) - 1, 1, after)
        own = torch.tensor([c["score"] for c in chain[1:]])
        assert (own - sums).abs().max() < 1e-4, f"speculators disagrees: {own} {sums}"
        out["block.scores"] = sums.float()
    for nodes, depth, topk in [(len(rows) + 1, len(rows) - 1, 1)] + TREES:
        if depth < len(rows):
            tree = grow_block(head, root, logits, nodes, depth, topk, after)
            out.update(tree_tensors(tree, f"tree_{nodes}_{depth}_{topk}"))
    w = {published(k, s): v for k, v in w.items()}
    if d2t is not None:
        w["d2t"] = d2t
        w["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, kept, True)
    write(path, dflash_config(s, t, mask), w, out)


# ---- the frozen-KV assistant ---------------------------------------------------------------------

def target_kv(t):
    """The K and V that an assistant reads, by layer type, and the last state after the norm."""
    code, model = gemma4, None
    if t.config["model_type"] == "gemma4_unified":  # the text part of a multimodal folder
        code = unified
        config = transformers.Gemma4UnifiedTextConfig(**t.config["text_config"])
        config._attn_implementation = "eager"
        model = transformers.Gemma4UnifiedForCausalLM(config).eval()
        w = load_file(t.path + "/model.safetensors")
        model.load_state_dict({k.replace("language_model.", ""): v.float() for k, v in w.items()
                               if "language_model." in k}, strict=False)
        model.tie_weights()
    model = model or transformers.Gemma4ForCausalLM.from_pretrained(
        t.path, dtype=torch.float32, attn_implementation="eager").eval()
    kv, eager = {}, code.eager_attention_forward

    def record(module, query, key, value, *args, **kwargs):
        own = module.layer_idx < t.n - (model.config.num_kv_shared_layers or 0)
        if own:  # the last one of a type stays
            kv[module.layer_type] = (key[0].transpose(0, 1), value[0].transpose(0, 1))
        return eager(module, query, key, value, *args, **kwargs)
    code.eager_attention_forward = record
    out = model(input_ids=t.ids[None], use_cache=False, output_hidden_states=True)
    code.eager_attention_forward = eager
    assert torch.allclose(out.logits[0], t.golden["logits"], atol=1e-4)
    return kv, out.hidden_states[-1][0, -1], model.config


def assistant_config(t, target, s):
    kv, n = s["kv_heads"], len(s["types"])
    text = dict(model_type="gemma4_text", hidden_size=s["hidden"], intermediate_size=s["ffn"],
                layer_types=s["types"], num_hidden_layers=n, num_kv_shared_layers=n,
                num_attention_heads=s["heads"], num_key_value_heads=kv["sliding_attention"],
                num_global_key_value_heads=kv["full_attention"], attention_k_eq_v=True,
                head_dim=s["dims"]["sliding_attention"],
                global_head_dim=s["dims"]["full_attention"],
                hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, vocab_size=len(t.embed),
                rope_parameters=target.rope_parameters, sliding_window=target.sliding_window,
                hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
                enable_moe_block=False, use_double_wide_mlp=False, tie_word_embeddings=True)
    kind, more = "gemma4_assistant", dict(architectures=["Gemma4AssistantForCausalLM"])
    if t.config["model_type"] == "gemma4_unified":  # all layers share K and V by default
        kind, more = "gemma4_unified_assistant", {}
        text.update(model_type="gemma4_unified_text", num_kv_shared_layers=0)
        for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input",
                    "enable_moe_block"):
            del text[key]
    return dict(**more, model_type=kind,
                backbone_hidden_size=t.hidden, use_ordered_embeddings=s["centroids"] > 0,
                num_centroids=s["centroids"] or 2048, centroid_intermediate_top_k=s["top"],
                tie_word_embeddings=True, text_config=text)


def assistant_weights(t, s, g):
    h = s["hidden"]
    w = {"pre_projection.weight": (h, 2 * t.hidden), "post_projection.weight": (t.hidden, h),
         "model.embed_tokens.weight": (len(t.embed), h), "model.norm.weight": (h,)}
    for i, kind in enumerate(s["types"]):
        p, q = f"model.layers.{i}.", s["heads"] * s["dims"][kind]
        w.update({p + "self_attn.q_proj.weight": (q, h), p + "self_attn.o_proj.weight": (h, q),
                  p + "self_attn.q_norm.weight": (s["dims"][kind],), p + "layer_scalar": (1,),
                  p + "mlp.gate_proj.weight": (s["ffn"], h),
                  p + "mlp.up_proj.weight": (s["ffn"], h),
                  p + "mlp.down_proj.weight": (h, s["ffn"])})
        for n in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            w[f"{p}{n}_layernorm.weight"] = (h,)
    if s["centroids"]:
        w["masked_embedding.centroids.weight"] = (s["centroids"], h)

    def draw(name, shape):
        r = torch.randn(shape, generator=g)
        return (1 + 0.2 * r if len(shape) == 1 else r * shape[-1] ** -0.5).bfloat16()
    w = {k: draw(k, shape) for k, shape in w.items()}
    if s["centroids"]:
        w["masked_embedding.token_ordering"] = torch.randperm(len(t.embed), generator=g)
    return w


class Assistant:
    def __init__(self, t, s, w, kv, target):
        self.s, self.kv, self.window = s, kv, target.sliding_window
        self.w = {k: v if v.dtype == torch.long else v.float() for k, v in w.items()}
        self.rotary = gemma4.Gemma4TextRotaryEmbedding(target)

    def norm(self, x, name):
        return rms(x, self.w[name + ".weight"], 1e-6)

    def layer(self, x, i, kind, pos):
        p, dim = f"model.layers.{i}.", self.s["dims"][kind]
        y = self.norm(x, p + "input_layernorm")
        q = self.norm(F.linear(y, self.w[p + "self_attn.q_proj.weight"]).view(1, -1, dim),
                      p + "self_attn.q_norm")
        cos, sin = (c[0] for c in self.rotary(x[None], torch.tensor([[pos]]), kind))
        k, v = self.kv[kind]
        far = pos - torch.arange(len(k))
        # a frozen sliding layer sees one key further back than the target's
        seen = far <= self.window if kind == "sliding_attention" else far >= 0
        o = attend(turn(q, cos, sin), k, v, seen[None], 1)
        x = x + self.norm(F.linear(o, self.w[p + "self_attn.o_proj.weight"]),
                          p + "post_attention_layernorm")
        y = self.norm(x, p + "pre_feedforward_layernorm")
        y = F.gelu(F.linear(y, self.w[p + "mlp.gate_proj.weight"]), approximate="tanh") * \
            F.linear(y, self.w[p + "mlp.up_proj.weight"])
        x = x + self.norm(F.linear(y, self.w[p + "mlp.down_proj.weight"]),
                          p + "post_feedforward_layernorm")
        return x * self.w[p + "layer_scalar"]

    def logits(self, x):
        full = F.linear(x, self.w["model.embed_tokens.weight"])[0]
        if not self.s["centroids"]:
            return full
        top = F.linear(x, self.w["masked_embedding.centroids.weight"])[0].topk(self.s["top"])
        kept = self.w["masked_embedding.token_ordering"].view(self.s["centroids"], -1)[top.indices]
        out = torch.full_like(full, float(full[kept.flatten()].min()) - 1)
        out[kept.flatten()] = full[kept.flatten()]
        return out

    def step(self, embedded, state, pos):
        x = F.linear(torch.cat([embedded, state])[None], self.w["pre_projection.weight"])
        for i, kind in enumerate(self.s["types"]):
            x = self.layer(x, i, kind, pos)
        x = self.norm(x, "model.norm")
        return self.logits(x), F.linear(x, self.w["post_projection.weight"])[0]


def make_assistant(path, t, over, seed):
    g = torch.Generator().manual_seed(seed)
    kv, last, target = target_kv(t)
    kinds = ["sliding_attention", "full_attention"]
    s = dict(hidden=24, ffn=36, group=2, types=[kinds[0], kinds[0], kinds[1]], centroids=0, top=1)
    s.update(over)
    s.update(dims={k: kv[k][0].shape[2] for k in kinds},
             kv_heads={k: kv[k][0].shape[1] for k in kinds})
    s["heads"] = s["group"] * s["kv_heads"][kinds[0]] * s["kv_heads"][kinds[1]]
    w = assistant_weights(t, s, g)
    a, pos = Assistant(t, s, w, kv, target), len(t.ids) - 1
    out = {"input_ids": t.ids.int(), "last_hidden": last, "first_token": t.next.int(),
           "position": torch.tensor([pos]).int()}
    token, state, logits, hidden, tokens = int(t.next), last, [], [], []
    for _ in range(5):
        # float32 throughout: the embedding's factor is not rounded to bf16
        l, state = a.step(t.embed[token] * t.hidden ** 0.5, state, pos)
        token = int(l.argmax())
        logits.append(l), hidden.append(state), tokens.append(token)
    out.update(draft_logits=torch.stack(logits), draft_hidden=torch.stack(hidden),
               draft_tokens=torch.tensor(tokens).int())
    write(path, assistant_config(t, target, s), w, out)


# ---- everything ----------------------------------------------------------------------------------

def write(path, config, weights, golden):
    os.makedirs(path, exist_ok=True)
    with open(path + "/config.json", "w") as f:
        f.write(json.dumps(config, indent=2) + "\n")
    clean = {k: v.detach().contiguous() for k, v in golden.items()}
    save_file({k: v.contiguous() for k, v in weights.items()}, path + "/model.safetensors",
              metadata={"format": "pt"})
    save_file(clean, path + "/golden.safetensors")
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{path}: {size} bytes", flush=True)


def make(path, t, over, seed):
    over = dict(over)
    if over.pop("assistant", False):
        return make_assistant(path, t, over, seed)
    s = {**PLAIN, **EDGES, **over}
    s["capture"] = s["capture"] or [2, t.n // 2, t.n - 3]
    (make_dflash if s.pop("dflash", False) else make_eagle3)(path, t, s, seed)


def varied(t, r):
    if t.config["model_type"] == "gemma4_text" and t.config.get("layer_types") and \
            len(set(t.config["layer_types"])) == 2 and r.random() < 0.6:
        vocab = len(t.embed)
        n = r.choice([c for c in range(1, vocab // 2) if vocab % c == 0])
        kinds = ["sliding_attention", "full_attention"]
        return dict(assistant=True, hidden=r.choice([16, 24, 40]), ffn=r.choice([20, 36]),
                    group=r.choice([1, 2]), types=r.choices(kinds, k=r.randint(0, 3)) + kinds,
                    centroids=r.choice([0, n]), top=r.randint(1, min(n, 32)))
    own, kv = r.random() < 0.5, r.choice([1, 2, 3])
    layers = r.choice([1, 1, 2, 3])
    names = ["layers.", "midlayer.N.", "model.layers."] + (["midlayer."] if layers == 1 else [])
    boundary = sorted(r.choices(range(t.n), k=r.choice([3, 3, 2, 4])))
    ids = r.choice(["top"] if boundary[0] == 0 else ["top", "nested"])
    if t.n >= 5 and r.random() < 0.2:
        boundary, ids = None, "none"
    norm = r.choice(["input_norm", "fc_norm", None])
    draft_vocab = r.choice([60, 77, None])
    ropes = [dict(rope_type="default", rope_theta=1e4), YARN, dict(YARN, truncate=True, factor=4.0),
             dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=64)]
    return dict(hidden=r.choice([24, 40, 56]) if own else None, embed=own or r.random() < 0.3,
                head=own or draft_vocab is not None or r.random() < 0.5, draft_vocab=draft_vocab,
                kv=kv, heads=kv * r.choice([1, 2, 4]), head_dim=r.choice([8, 10, 24]),
                layers=layers,
                ffn=r.choice([20, 56, 100]), rope=r.choice(ropes),
                names=r.choice(names), before_residual=r.random() < 0.5,
                norm_output=r.random() < 0.5, input_norm=norm == "input_norm",
                fc_norm=norm == "fc_norm", bias=r.random() < 0.3, qk_norm=r.random() < 0.3,
                speculators=r.random() < 0.3, ids=ids, capture=boundary,
                **dict(dict(window=r.choice([0, 0, 1, 4, 9])), **parallel(r)))


def parallel(r):
    """Of every third head: it guesses in parallel."""
    if r.random() > 0.35:
        return {}
    return dict(depths=r.randint(2, 16), unsaid=r.random() < 0.3, window=r.choice([0, 0, 16, 21]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("names", nargs="*")
    p.add_argument("--vary", type=int, default=0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # the order of sums depends on it
    for target in a.names if a.vary else ():
        t, name = Target(target.rstrip("/")), os.path.basename(target.rstrip("/"))
        for s in range(a.seed, a.seed + a.vary):
            make(f"{a.out}/{name}+{s}", t, varied(t, random.Random(f"{name} {s}")), s)
    for name, (seed, target, over) in () if a.vary else CASES.items():
        if not a.names or name in a.names:
            make(os.path.join(HERE, name), Target(os.path.join(HERE, target)), over, seed)


if __name__ == "__main__":
    main()
