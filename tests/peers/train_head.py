#!/usr/bin/env python3
"""Trains an EAGLE3 head for a chat model of the llama family, on text that the model writes itself.

    train_head.py FOLDER OUT [--seconds N] [--write-seconds N]

The data: the model continues its own chat template, first the question of a user, then its reply (sampled); so no corpus is
needed, and the head learns what the model says. The training: at each of several steps the head gets its own output instead
of the target's states, as it will when it drafts (EAGLE-3, arXiv 2503.01840, section 3.2). The target is frozen.

FOLDER is a model folder (smollm2.py --folder writes one from a GGUF file). OUT gets config.json and model.safetensors. One GPU; needs
torch and transformers. What a head is worth is then measured with `aerie parity` and `aerie run --draft OUT`.
"""
import argparse
import json
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

STEPS = 5          # unrolled steps of training
LENGTH = 384       # tokens of a conversation
QUESTION = 64      # most tokens of a question
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- what the model writes ----

@torch.no_grad()
def continued(model, ids, mask, most, stop, temperature):
    """Samples up to `most` tokens after left-padded ids [B, T]. Returns [B, <= most], padded with `stop` behind a row's end."""
    cache, out, step = DynamicCache(), [], ids
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    while len(out) < most and not done.all():
        at = mask.long().cumsum(-1)[:, -step.shape[1]:].sub(1).clamp(min=0)
        r = model(step, attention_mask=mask, position_ids=at, past_key_values=cache, logits_to_keep=1)
        p = (r.logits[:, -1].float() / temperature).softmax(-1)
        step = torch.where(done, stop, torch.multinomial(p, 1)[:, 0])[:, None]
        done |= step[:, 0] == stop
        out.append(step)
        mask = torch.cat([mask, torch.ones_like(step)], 1)
    return torch.cat(out, 1)


def padded_left(rows, pad):
    most = max(map(len, rows))
    ids = torch.full((len(rows), most), pad, device=DEVICE)
    mask = torch.zeros_like(ids)
    for i, r in enumerate(rows):
        ids[i, most - len(r):] = torch.tensor(r, device=DEVICE)
        mask[i, most - len(r):] = 1
    return ids, mask


def before(row, stop):
    return row[:row.index(stop)] if stop in row else row


def conversations(model, tok, batch, stop):
    """Lists (ids, index of the reply's first token) of conversations that the model has with itself."""
    text = tok.apply_chat_template([{"role": "user", "content": "\0"}], tokenize=False, add_generation_prompt=True)
    head, tail = (tok(t, add_special_tokens=False).input_ids for t in text.split("\0"))
    ids, mask = padded_left([head] * batch, stop)
    asked = [before(q, stop) for q in continued(model, ids, mask, QUESTION, stop, 1.0).tolist()]
    asked = [head + q + tail for q in asked if 3 < len(q) < QUESTION]
    if not asked:
        return []
    ids, mask = padded_left(asked, stop)
    replies = continued(model, ids, mask, LENGTH - ids.shape[1], stop, 0.6).tolist()
    found = [(q + before(r, stop) + [stop], len(q)) for q, r in zip(asked, replies)]
    return [(c[:LENGTH], at) for c, at in found]


def written(model, tok, batch, seconds, stop):
    t0, out = time.time(), []
    while not out or time.time() - t0 < seconds:
        out += conversations(model, tok, batch, stop)
    n = sum(len(c) - at for c, at in out)
    print(f"wrote {len(out)} conversations, {n / 1e6:.2f} M tokens of replies, {time.time() - t0:.0f} s", flush=True)
    ids = torch.full((len(out), LENGTH), stop)
    reply = torch.zeros(len(out), LENGTH, dtype=torch.bool)
    for i, (c, at) in enumerate(out):
        ids[i, :len(c)] = torch.tensor(c)
        reply[i, at:len(c)] = True
    return ids.to(DEVICE), reply.to(DEVICE)


# ---- the head ----

def rms(x, w, eps):
    return F.rms_norm(x, (x.shape[-1],), w.to(x.dtype), eps)


class Head(nn.Module):
    """One layer of attention and MLP over [embedding of the next token; state]; state 0 is fc(three states of the target)."""

    def __init__(self, c, embed, norm, ids):
        super().__init__()
        d, hd = c.hidden_size, c.hidden_size // c.num_attention_heads
        self.c, self.hd, self.eps = c, hd, c.rms_norm_eps
        self.register_buffer("ids", ids)

        def matrix(o, i):
            return nn.Parameter(torch.randn(o, i, device=DEVICE) * (0.7 / i ** 0.5))

        self.fc = matrix(d, 3 * d)
        self.q, self.k, self.v = (matrix(n * hd, 2 * d) for n in (c.num_attention_heads, *[c.num_key_value_heads] * 2))
        self.o, self.down = matrix(d, c.num_attention_heads * hd), matrix(d, c.intermediate_size)
        self.gate, self.up = matrix(c.intermediate_size, d), matrix(c.intermediate_size, d)
        self.n_in, self.n_hidden, self.n_post = (nn.Parameter(torch.ones(d, device=DEVICE)) for _ in range(3))
        self.norm = nn.Parameter(norm.float().clone())
        self.head = nn.Parameter(embed[ids].float().clone())  # begins as the target's own
        with torch.no_grad():
            self.fc.mul_(0.3)
            self.fc[:, -d:] += torch.eye(d, device=DEVICE)

    def rotated(self, x, at):
        f = self.c.rope_parameters["rope_theta"] ** -(torch.arange(0, self.hd, 2, device=x.device) / self.hd)
        a = at[:, None].float() * f
        cos, sin = (torch.cat([t, t], -1).to(x.dtype) for t in (a.cos(), a.sin()))
        half = self.hd // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def heads(self, z, w, at):
        x = F.linear(z, w.to(z.dtype)).unflatten(-1, (-1, self.hd)).transpose(1, 2)
        return x if at is None else self.rotated(x, at)

    def keys(self, e, g, at):
        """e, g [B, L, d] -> rotated q, k and v [B, heads, L, hd], k and v repeated to q's heads."""
        z = torch.cat([rms(e, self.n_in, self.eps), rms(g, self.n_hidden, self.eps)], -1)
        q, k, v = self.heads(z, self.q, at), self.heads(z, self.k, at), self.heads(z, self.v, None)
        n = q.shape[1] // k.shape[1]
        return q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)

    def finish(self, g, a):
        t = g.dtype
        x = g + F.linear(a.transpose(1, 2).flatten(2), self.o.to(t))
        y = rms(x, self.n_post, self.eps)
        return x + F.linear(F.silu(F.linear(y, self.gate.to(t))) * F.linear(y, self.up.to(t)), self.down.to(t))

    def logits(self, x):
        return F.linear(rms(x, self.norm, self.eps), self.head.to(x.dtype)).float()


def attended(q, first, later):
    """first: k, v of the text, causal. later: k, v of the query's own drafts, one a step: a query sees its own alone."""
    k0, v0 = first
    s = q @ k0.transpose(2, 3) * q.shape[-1] ** -0.5
    n = s.shape[-1]
    s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    own = [(q * k).sum(-1, keepdim=True) * q.shape[-1] ** -0.5 for k, _ in later]
    p = torch.cat([s, *own], -1).float().softmax(-1).to(q.dtype)
    return p[..., :n] @ v0 + sum(p[..., n + j, None] * v for j, (_, v) in enumerate(later))


def ahead(x, n):
    """x[:, i] <- x[:, i + n], zero at the end."""
    return torch.cat([x[:, n:], torch.zeros_like(x[:, :n])], 1)


# ---- training ----

@torch.no_grad()
def seen(model, ids, aux, rows):
    """Three states of every position [B, L, 3d], and the target's distribution over the head's vocabulary."""
    r = model.model(ids, output_hidden_states=True)
    logits = model.lm_head(r.last_hidden_state)
    return torch.cat([r.hidden_states[i + 1] for i in aux], -1), logits[..., rows].float().softmax(-1), logits.argmax(-1)


def loss_of(head, embed, ids, reply, states, p, best):
    """Mean loss of the unrolled steps (a later step weighs less), and how often each step's first choice is the target's."""
    g = F.linear(states, head.fc.to(states.dtype))
    at, total, agree, first, later = torch.arange(ids.shape[1], device=ids.device), 0.0, [], None, []
    for k in range(STEPS):
        q, kk, vv = head.keys(F.embedding(ahead(ids, 1 + k), embed), g, at + k)
        if k == 0:
            first = kk, vv
        else:
            later.append((kk, vv))
        g = head.finish(g, attended(q, first, later))
        lg = head.logits(g)
        ok = ahead(reply, 2 + k).float()
        n = ok.sum().clamp(min=1)
        total = total + 0.85 ** k * (-(ahead(p, 1 + k) * lg.log_softmax(-1)).sum(-1) * ok).sum() / n
        agree.append(((head.ids[lg.argmax(-1)] == ahead(best, 1 + k)).float() * ok).sum() / n)
    return total / sum(0.85 ** k for k in range(STEPS)), torch.stack(agree).detach()


def trained(model, head, ids, reply, aux, rows, seconds):
    embed = model.get_input_embeddings().weight
    opt = torch.optim.AdamW(head.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    t0, shown, step, since = time.time(), time.time(), 0, []
    while (t := (time.time() - t0) / seconds) < 1:
        pick = torch.randint(len(ids), (rows,), device=ids.device)
        states, p, best = seen(model, ids[pick], aux, head.ids)
        loss, agree = loss_of(head, embed, ids[pick], reply[pick], states, p, best)
        for group in opt.param_groups:
            group["lr"] = 1.5e-3 * min(1, (step + 1) / 100) * min(1, (1 - t) / 0.7)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        step += 1
        since.append(torch.cat([loss.detach()[None], agree]))
        if time.time() - shown > 10:
            shown, m = time.time(), torch.stack(since).mean(0).tolist()
            since = []
            print(f"{shown - t0:5.0f} s, step {step}: loss {m[0]:.3f}, agree " + " ".join(f"{a:.3f}" for a in m[1:]), flush=True)
    print(f"{step} steps of {rows} conversations, {time.time() - t0:.0f} s", flush=True)


def write(head, aux, out):
    c = head.c
    out.mkdir(parents=True, exist_ok=True)
    name = {"fc": "fc", "n_hidden": "midlayer.hidden_norm", "n_in": "midlayer.input_layernorm",
            "n_post": "midlayer.post_attention_layernorm", "norm": "norm", "head": "lm_head",
            **{k: f"midlayer.self_attn.{k}_proj" for k in "qkvo"}, **{k: f"midlayer.mlp.{k}_proj" for k in ("gate", "up", "down")}}
    tensors = {n + ".weight": getattr(head, k).detach().to(torch.bfloat16).cpu().contiguous() for k, n in name.items()}
    ids = head.ids.cpu()
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(c.vocab_size, dtype=torch.bool).scatter(0, ids, True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "hidden_size": c.hidden_size,
        "target_hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "num_hidden_layers": 1,
        "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.num_key_value_heads,
        "head_dim": head.hd, "vocab_size": c.vocab_size, "draft_vocab_size": len(ids), "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_parameters["rope_theta"], "max_position_embeddings": c.max_position_embeddings,
        "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": c.bos_token_id, "eos_token_id": c.eos_token_id,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": aux, "use_aux_hidden_state": True}, "torch_dtype": "bfloat16"},
        indent=1) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder")
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--seconds", type=float, default=180, help="of training")
    ap.add_argument("--write-seconds", type=float, default=90, help="in which the model writes the data")
    ap.add_argument("--batch", type=int, default=1024, help="conversations written at a time")
    ap.add_argument("--rows", type=int, default=48, help="conversations of a step")
    ap.add_argument("--vocabulary", type=int, default=8192, help="the head's: the most frequent tokens")
    a = ap.parse_args()
    torch.manual_seed(7)
    tok = AutoTokenizer.from_pretrained(a.folder)
    model = AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.bfloat16).to(DEVICE).eval().requires_grad_(False)
    c = model.config
    n = c.num_hidden_layers
    aux = [1, n // 2 - 1, n - 4]
    ids, reply = written(model, tok, a.batch, a.write_seconds, tok.eos_token_id)
    count = torch.bincount(ids[reply], minlength=c.vocab_size)
    rows = count.topk(a.vocabulary).indices.sort().values
    print(f"the head's vocabulary covers {count[rows].sum() / count.sum() * 100:.2f} % of the replies", flush=True)
    head = Head(c, model.get_input_embeddings().weight, model.model.norm.weight, rows)
    trained(model, head, ids, reply, aux, a.rows, a.seconds)
    write(head, aux, a.out)


if __name__ == "__main__":
    main()
