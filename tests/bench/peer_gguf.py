#!/usr/bin/env python3
"""aerie and llama.cpp in turn on the same GGUF and threads: tokens a second of a prompt and of decoding.

    peer_gguf.py FILE.gguf [--aerie PROGRAM] [--server LLAMA_SERVER] [--device cpu|cuda] [--threads N] [--rounds N] [--words N,...]
                 [--decode N] [--log FILE]

FILE: one of your own, or of peer_cpu.sh, or written by tests/peers/synthetic.py. llama.cpp is LLAMA_SERVER, or else the one in the
PyPI package xllamacpp, which must be installed for this Python (CPU only). Both are asked over HTTP; llama.cpp tells its own
timings, aerie's are taken here (peer_cpu.py). --device cuda: both on the GPU, a server of llama.cpp by what it was built for. Each
round starts each of them once, in turn; a number is the median of both asks of all rounds. --words: of each long prompt; decoding
follows a short one.
"""
import argparse
import os
import pathlib
import statistics
import tempfile

from peer_cpu import Server, llama_server, text


def prompts(words, r):
    return [*(text(n, r) for n in words), f"{r} Tell me a long story about a fox and a bear."]


def ask(argv, env, a):
    """Tokens a second of each prompt and of decoding, twice; of llama.cpp as the server tells them."""
    log = open(a.log, "a+") if a.log else tempfile.TemporaryFile("w+")
    server = Server(argv, env, log)
    try:
        server.wait()
        out = []
        for r in range(2):
            *long, short = prompts(a.words, r)
            got = []
            for prompt in long:
                begin, at, usage = server.ask(prompt, 1)
                got.append(usage.get("prompt_per_second") or usage["prompt_tokens"] / (at[0] - begin))
            _, at, usage = server.ask(short, a.decode)
            got.append(usage.get("predicted_per_second") or (usage["completion_tokens"] - 1) / (at[-1] - at[0]))
            out.append(tuple(got))
        return out
    finally:
        server.end()


def aerie(a):
    return ask([a.aerie, "serve", "-m", a.gguf, "--model-name", "m", "--device", a.device, "--no-spec", "--lanes", "1",
                "--context", str(a.context), "--threads", str(a.threads), "--no-log"], os.environ, a)


def peer(a):
    start, beside = llama_server(a.server)
    where = ["-ngl", "99"] if a.device == "cuda" else ["-ngl", "0", "--device", "none"]
    return ask([*start, "-m", a.gguf, "-t", str(a.threads), "-c", str(a.context), "-np", "1", "--no-webui", *where],
               os.environ | beside, a)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf")
    p.add_argument("--aerie", default=str(pathlib.Path(__file__).resolve().parents[2] / "build/release-cpu/aerie"))
    p.add_argument("--server")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--words", type=lambda x: [int(n) for n in x.split(",")], default=[440])
    p.add_argument("--context", type=int, default=4096)
    p.add_argument("--decode", type=int, default=96)
    p.add_argument("--sides", type=lambda x: x.split(","), default=["aerie", "llama.cpp"], help="aerie,llama.cpp (default) or one of them")
    p.add_argument("--log", help="a file for what both servers print (default: nowhere)")
    a = p.parse_args()
    got = {side: [] for side in a.sides}
    for r in range(a.rounds):
        for side in list(got)[::1 if r % 2 == 0 else -1]:
            got[side] += (aerie if side == "aerie" else peer)(a)
    for side, x in got.items():
        for what, v in zip([f"prompt of {n} words" for n in a.words] + ["decode"], zip(*x)):
            print(f"{side:10} {what:20} {statistics.median(v):9.1f} tokens/s  ({min(v):.1f} to {max(v):.1f})")


main()
