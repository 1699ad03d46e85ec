#!/usr/bin/env python3
"""aerie and llama.cpp in turn on the same GGUF and threads: tokens a second of a prompt and of decoding.

    peer_gguf.py FILE.gguf [--aerie PROGRAM] [--threads N] [--rounds N] [--decode N]

llama.cpp is the one in the PyPI package xllamacpp, which must be importable, and tells its own timings; aerie is asked over
HTTP, and time is taken here (peer_cpu.py). Each round starts each of them once, in turn; a number is the median of both asks
of all rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from peer_cpu import Server, text

def prompts(r):
    return text(440, r), f"{r} Tell me a long story about a fox and a bear."


def llama(path, threads, decode):
    """In a process of its own: prints a line of two numbers for each ask."""
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup = path, 4096, 1, False
    p.cpuparams.n_threads = threads
    server = xllamacpp.Server(p)
    for r in range(2):
        got = []
        for prompt, n, key in zip(prompts(r), (1, decode), ("prompt_per_second", "predicted_per_second")):
            x = server.handle_completions({"prompt": prompt, "max_tokens": n, "temperature": 0, "cache_prompt": False,
                                           "ignore_eos": True})
            got.append((x if isinstance(x, dict) else json.loads(x))["timings"][key])
        print("@", *got, flush=True)


def aerie(program, path, threads, decode):
    server = Server([program, "serve", "-m", path, "--model-name", "m", "--device", "cpu", "--no-spec", "--lanes", "1",
                     "--context", "4096", "--threads", str(threads), "--no-log"], os.environ, subprocess.DEVNULL)
    try:
        server.wait()
        out = []
        for r in range(2):
            long, short = prompts(r)
            begin, at, usage = server.ask(long, 1)
            prompt = usage["prompt_tokens"] / (at[0] - begin)
            _, at, usage = server.ask(short, decode)
            out.append((prompt, (usage["completion_tokens"] - 1) / (at[-1] - at[0])))
        return out
    finally:
        server.end()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf")
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--decode", type=int, default=96)
    p.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.llama:
        return llama(a.gguf, a.threads, a.decode)
    got = {"aerie": [], "llama.cpp": []}
    for _ in range(a.rounds):
        got["aerie"] += aerie(a.aerie, a.gguf, a.threads, a.decode)
        told = subprocess.run([sys.executable, __file__, a.gguf, "--threads", str(a.threads),
                               "--decode", str(a.decode), "--llama"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        got["llama.cpp"] += [tuple(map(float, x.split()[1:])) for x in told.splitlines() if x.startswith("@ ")]
    for side, x in got.items():
        for what, v in zip(("prompt", "decode"), zip(*x)):
            print(f"{side:10} {what}  {statistics.median(v):7.1f} tokens/s  ({min(v):.1f} to {max(v):.1f})")


main()
