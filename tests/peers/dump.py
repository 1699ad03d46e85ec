#!/usr/bin/env python3
"""Holds `aerie dump` against files that torch wrote of transformers' passes, family by family.

    python3 tests/peers/dump.py --aerie build/release-cpu/aerie [FOLDER...]

Each folder (those of tests/golden without one) is run by transformers in float32 over a prompt and two more tokens, with a hook
at every module; each pass becomes a PassNNNNN.pt as SGLang's tensor dump writes them: a file is written when the model's root
ends, so the root's output and the logits are in the file of the next pass. Every module that aerie compares must agree. Then one module's output is spoilt in one pass, and it must be the one that is named. Needs torch and transformers.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

PASSES = (66, 1, 1, 1)
# a window of 1: transformers keeps the last window - 1 keys by [-window + 1:], which is all of them
KNOWN = {"gemma2-c"}


def first_tensor(value):
    if isinstance(value, torch.Tensor):
        return value
    return next((t for t in value if isinstance(t, torch.Tensor)), None) if isinstance(value, (tuple, list)) else None


def passes(folder):
    """What each pass recorded: {name: tensor}."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocab = model.config.get_text_config().vocab_size
    ids = torch.randint(5, vocab - 5, (1, sum(PASSES)), generator=torch.Generator().manual_seed(1))
    now = {}

    def hook(name):
        def keep(_module, _inputs, output):
            t = first_tensor(output)
            if t is not None:
                now[name] = (t[0] if t.dim() == 3 else t).clone()
        return keep

    for name, module in model.named_modules():
        if name and name != "model" and not name.endswith("rotary_emb") and name != "lm_head":
            module.register_forward_hook(hook(name))
    done, past, at = [], None, 0
    with torch.no_grad():
        for n in PASSES:
            now.clear()
            out = model(ids[:, at:at + n], past_key_values=past, use_cache=True)
            past = out.past_key_values
            done.append(dict(now) | {
                "model.forward_batch_info.input_ids": ids[0, at:at + n],
                "model.forward_batch_info.positions": torch.arange(at, at + n),
                "model.forward_batch_info.seq_lens": torch.tensor([at + n]),
                "logits_processor": out.logits[0, -1:]})
            at += n
    return done


def dump(aerie, folder, done):
    with tempfile.TemporaryDirectory() as temp:
        there = Path(temp) / "TP0_PP0_Rank0_pid1"
        there.mkdir()
        after = {}
        for i, one in enumerate(done):
            torch.save(after | {name: t for name, t in one.items() if name != "logits_processor"}, there / f"Pass{i:05d}.pt")
            after = {"model": one["logits_processor"], "logits_processor": one["logits_processor"]}
        run = subprocess.run([aerie, "dump", temp, "-m", folder, "--device", "cpu", "--json", "-q"], capture_output=True, text=True)
        return json.loads(run.stdout) if run.returncode in (0, 1) and run.stdout else {"error": run.stderr.strip()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--aerie", default="build/release-cpu/aerie")
    parser.add_argument("folder", nargs="*")
    args = parser.parse_args()
    golden = Path(__file__).resolve().parent.parent / "golden"
    folders = args.folder or sorted(str(p.parent) for p in golden.glob("*/golden.safetensors") if (p.parent / "config.json").exists())
    chance, bad = random.Random(1), 0
    for folder in folders:
        try:
            done = passes(folder)
        except Exception as why:  # a draft, or a family that this transformers does not have
            print(f"{os.path.basename(folder):24} skipped: {str(why).splitlines()[0][:80]}")
            continue
        whole = dump(args.aerie, folder, done)
        if "error" in whole:
            print(f"{os.path.basename(folder):24} refused: {whole['error'][:120]}")
            bad += 1
            continue
        names = [m["module"] for m in whole["modules"] if m["verdict"] == "agrees"]
        at, name = chance.randrange(len(PASSES) - 1), chance.choice(names)
        done[at][name] = done[at][name] * 1.2
        named = dump(args.aerie, folder, done)
        ok = whole["differ"] == 0 and named.get("first") == name and named.get("first_pass") == at
        bad += not ok and os.path.basename(folder) not in KNOWN
        print(f"{os.path.basename(folder):24} {whole['compared']:3} modules, {whole['differ']} differ; spoilt {name} in pass {at}: "
              f"named {named.get('first')} in pass {named.get('first_pass')}{'' if ok else '  WRONG'}", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
