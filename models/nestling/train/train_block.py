#!/usr/bin/env python3
"""Trains the block drafter on the frozen target. The anchors of a row are drawn from its replies; a block learns the tokens that the
target itself would choose next, as far as the text is what the target would have written. Part of the data is written by the target
itself (greedy replies to prompts of the corpus).

  python3 train/train_block.py --shards data --count 60 --target target --out block --seconds 110"""
import argparse
import os
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask

import block as B
import model as M
from infer import Target
from optim import Both, schedule
from train_draft import kept, own_replies
from train_target import ROW, batches, shard_rows

GUESSES = B.BLOCK - 1


class Blocks:
    """The blocks of some packed rows: their anchors and the mask over the keys, those of the row and then those of the blocks. One
    object is reused for all batches of one shape, so that nothing is compiled again."""

    def __init__(self, rows, length, n):
        self.n, self.length = n, length
        self.anchor = torch.zeros(rows, n, dtype=torch.int32, device=M.DEVICE)  # ascending in a row
        self.first = torch.zeros_like(self.anchor)                             # where the anchor's chat begins
        anchor, first = self.anchor, self.first

        def sees(b, h, q, k):
            i = q // B.BLOCK
            context = (k >= first[b, i]) & (k < anchor[b, i])
            return torch.where(k < length, context, (k - length) // B.BLOCK == i)

        self.sees = sees

    def update(self, rep, start):
        """Draws the anchors: reply tokens that another one follows. Returns which blocks have one."""
        fit = rep & torch.cat([rep[:, 1:], torch.zeros_like(rep[:, :1])], 1)
        drawn = torch.rand(fit.shape, device=fit.device).masked_fill(~fit, -1).topk(self.n, 1).indices.sort(1).values
        self.anchor.copy_(drawn)
        self.first.copy_(start.gather(1, drawn))
        if M.DEVICE == "cpu":
            q, k = torch.arange(self.n * B.BLOCK)[:, None], torch.arange(self.length + self.n * B.BLOCK)
            self.mask = self.sees(torch.arange(len(rep))[:, None, None], 0, q, k)[:, None]
            return fit.gather(1, drawn)
        group = 128 // B.BLOCK
        lo, hi = self.first[:, ::group] // 128, self.anchor[:, group - 1::group] // 128
        count = hi - lo + 1
        i = torch.arange((self.length + self.n * B.BLOCK) // 128, dtype=torch.int32, device=lo.device)
        own = (self.length // 128 + torch.arange(lo.shape[1], dtype=torch.int32, device=lo.device))[None, :, None]
        index = torch.where(i < count[:, :, None], lo[:, :, None] + i, own)
        self.mask = BlockMask.from_kv_blocks((count + 1)[:, None].contiguous(), index[:, None].contiguous(), BLOCK_SIZE=128, mask_mod=self.sees)
        return fit.gather(1, drawn)


def wanted(anchor, has, tok, rep, top):
    """What the target would write after the anchors [B, n, GUESSES], and which of it the text supports: the text before is the same."""
    at = anchor.long()[:, :, None] + torch.arange(GUESSES, device=anchor.device)
    shape, flat = at.shape, at.clamp(max=tok.shape[1] - 2).flatten(1)
    take = lambda x, d: x.gather(1, flat + d).view(shape)
    want = take(top, 0)
    same = (take(tok, 1) == want).long()
    before = torch.cat([torch.ones_like(same[:, :, :1]), same[:, :, :-1].cumprod(2)], 2)
    return want, (before > 0) & take(rep, 1) & (at < tok.shape[1] - 1) & has[:, :, None]


def block_loss(x, w_norm, table, want, ok, weight):
    """Weighted cross-entropy of the guesses; by depth: how often one is right, and how often it is with all before it"""
    lg = F.linear(B.norm(x, w_norm), table.to(x.dtype)).float()
    ce = F.cross_entropy(lg.flatten(0, 2), want.flatten(), reduction="none").view(want.shape)
    w = ok.float() * weight
    hit = (lg.argmax(-1) == want) & ok
    n = ok.float().sum((0, 1)).clamp(min=1)
    first = ok[:, :, 0].float().sum().clamp(min=1)
    return (ce * w).sum() / w.sum().clamp(min=1), hit.float().sum((0, 1)) / n, hit.long().cumprod(2).float().sum((0, 1)) / first


class Frozen:
    """The target on packed rows: captured states and its first choices."""

    def __init__(self, path, dtype):
        self.net, self.dtype = M.from_hf(path).prepare(compile=M.DEVICE == "cuda"), dtype
        self.net.requires_grad_(False)

    @torch.no_grad()
    def __call__(self, tok, pack):
        h, taps = self.net(tok, pack, taps=B.CAPTURE, dtype=self.dtype)
        table = self.net.embed.to(h.dtype)
        return torch.cat(taps, -1), torch.cat([F.linear(c, table).argmax(-1) for c in h.split(2)])


def fresh(final):
    """A new drafter: its output norm is the target's, smaller at first, because all rows begin as the mask's embedding and would guess
    the mask."""
    net = B.BlockDraft().to(M.DEVICE)
    with torch.no_grad():
        net.norm.copy_(0.3 * (1 + final))
    return net


class Pass:
    """The drafter on a batch of packed rows, compiled on a GPU."""

    def __init__(self, net, frozen, rows, blocks):
        self.net, self.frozen = net, frozen
        self.pack = M.Packing(rows, ROW)
        self.blocks = Blocks(rows, ROW, blocks)
        self.cos, self.sin = M.rope_table(B.THETA, M.Config.max_pos + 64)
        ready = (lambda f: torch.compile(f, dynamic=False)) if M.DEVICE == "cuda" else (lambda f: f)
        self.run_layer, self.loss = ready(B.run_layer), ready(block_loss)
        self.weight = torch.exp(-torch.arange(GUESSES, device=M.DEVICE) / 4.0)

    def rope(self, pos):
        return self.cos[pos][:, None], self.sin[pos][:, None]

    def __call__(self, raw):
        tok, rep = (raw & M.TOKEN).long(), (raw & M.REPLY) > 0
        self.pack.update(tok)
        fused, top = self.frozen(tok, self.pack)
        has = self.blocks.update(rep, self.pack.start)
        anchor = self.blocks.anchor.long()
        ids = torch.full((*anchor.shape, B.BLOCK), B.MASK, device=raw.device)
        ids[:, :, 0] = tok.gather(1, anchor)
        pos = self.pack.pos.gather(1, anchor)[:, :, None] + torch.arange(B.BLOCK, device=raw.device)
        target = self.frozen.net
        x = F.embedding(ids.flatten(1), target.embed).to(fused.dtype) * target.scale
        c, rope, context_rope = self.net.context(fused), self.rope(pos.flatten(1)), self.rope(self.pack.pos)
        for l in self.net.layers:
            x = self.run_layer(x, c, rope, context_rope, self.blocks.mask, l.weights())
        x = x.view(*ids.shape, -1)[:, :, 1:]
        return self.loss(x, self.net.norm, target.embed, *wanted(anchor, has, tok, rep, top), self.weight)


def feed(shards, count, first, rows, own, stop):
    """Batches without end; every second one comes from the target's own replies."""
    fresh_rows = batches(shards, rows, first, count, stop)
    own = torch.from_numpy(own).to(M.DEVICE)
    while True:
        order = torch.randperm(len(own), device=M.DEVICE)
        for k in range(0, len(own) - rows + 1, rows):
            yield next(fresh_rows)[1]
            yield own[order[k:k + rows]]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", required=True)
    ap.add_argument("--count", type=int, default=60)
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--target", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--init", help="start from this drafter")
    ap.add_argument("--seconds", type=float, default=110, help="of training, once everything is compiled")
    ap.add_argument("--end", type=float, default=170, help="seconds after which the whole run ends at the latest")
    ap.add_argument("--own-docs", type=int, default=24576)
    ap.add_argument("--own", help="file of the target's own replies: read, or written if it is missing (.npy)")
    ap.add_argument("--own-seconds", type=float, default=30)
    ap.add_argument("--rows", type=int, default=8)
    ap.add_argument("--blocks", type=int, default=1024, help="blocks in a row of tokens")
    ap.add_argument("--lr-matrix", type=float, default=0.015)
    ap.add_argument("--lr-other", type=float, default=0.0015)
    ap.add_argument("--seed", type=int, default=3)
    a = ap.parse_args()
    begin = time.time()
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.cache_size_limit = 64
    stop = threading.Event()
    source = shard_rows(a.shards, a.first, a.count, stop)
    target = Target(a.target, dtype=torch.float32)
    own = kept(a.own, lambda: own_replies(target, np.concatenate([next(source)[1] for _ in range(max(1, a.own_docs // 2500))]), a.own_docs, 288, a.own_seconds))
    final = target.w["model.norm.weight"]
    del target
    net = B.load(a.init).to(M.DEVICE) if a.init else fresh(final)
    mats = net.matrices()
    others = [p for p in net.parameters() if all(p is not m for m in mats)]
    opt = Both(mats, others, a.lr_matrix, a.lr_other)
    run = Pass(net, Frozen(a.target, torch.bfloat16 if M.DEVICE == "cuda" else torch.float32), a.rows, a.blocks)
    step, t0, shown, got = 0, None, time.time(), []
    for raw in feed(a.shards, a.count, a.first, a.rows, own, stop):
        if step == 4:
            if M.DEVICE == "cuda":
                torch.cuda.synchronize()
            t0 = time.time()
            left = max(1, min(a.seconds, begin + a.end - t0))
            print(f"compiled after {t0 - begin:.1f} s", flush=True)
        t = (time.time() - t0) / left if t0 else 0.0
        if t >= 1:
            break
        loss, hit, chain = run(raw)
        loss.backward()
        opt.step(schedule(t, decay=0.6) if t0 else 0.002)
        got.append(torch.cat([loss.detach()[None], hit, chain]))
        step += 1
        if len(got) > 2 and M.DEVICE == "cuda":
            got[-3].sum().item()  # the host runs at most two steps ahead
        if time.time() - shown > 10:
            shown = time.time()
            v = torch.stack(got).mean(0).tolist()
            got = []
            print(f"t {shown - begin:6.1f} s  step {step}  loss {v[0]:.4f}  right " + " ".join(f"{x:.3f}" for x in v[1:1 + GUESSES])
                  + f"  length {1 + sum(v[1 + GUESSES:]):.3f}", flush=True)
            B.save(net, a.out)  # a run that is cut off leaves what it has learned
    stop.set()
    print(f"trained {step} steps of {a.rows * ROW} tokens and {a.rows * a.blocks} blocks, {time.time() - begin:.1f} s", flush=True)
    B.save(net, a.out)


if __name__ == "__main__":
    main()
