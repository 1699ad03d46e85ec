#!/usr/bin/env python3
"""Tiny GGUF files of every architecture, in aerie and in llama.cpp.

    mkdir FOLDER && build/release-cpu/tests/test_gguf_models --write FOLDER
    gguf_families.py FOLDER [--aerie PROGRAM]

The test writes the files that it holds against their folders: random weights, in float32. Both programs answer a prompt
of ids greedily, up to the token that ends a text; log probabilities of the chosen tokens are compared up to the first that
differs. If that token comes at once, the next prompt is taken. llama.cpp computes in float32, with a float32 cache and
without fused attention.

EXPECTED says which files llama.cpp computes otherwise or does not load, and why; most have odd shapes on purpose, which no
published model has. Exit 1 if another one differs, or if one of these does not. Needs xllamacpp.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

PROMPTS, LENGTH, TOKENS, RIVALS, MARGIN, EOS = 4, 24, 24, 5, 0.002, 2

GELU = "its GELU is a table of float16 numbers"
DENSE = "it has no dense layer behind one with experts"
OLLAMA = "a file of ollama"
EXPECTED = {
    "mistral-b": "its llama has no window",
    "gemma4-a": GELU,
    "gemma4-ple-b": GELU,
    "gemma4-unified-b": "it shares the K and V of other layers",
    "gptoss-mxfp4-b": "it rounds inputs of MXFP4 matrices to 8 bits",
    "olmo2-b": "it has no biases there",
    "qwen3moe-c": DENSE,
    "exaone4-b": "its o_proj is square",
    "cohere2-b": "it has no biases there",
    "phi3-b": "its phi3 has no window",
    "phi3-b.2": "its phi3 has no window",
    "afmoe-b": "every fourth layer of its afmoe has no rope, here every third",
    "laguna-c": DENSE,
    "mellum-b": DENSE,
    "gemma3-a.2": OLLAMA,
    "gemma3-mm-b": OLLAMA,
    "gptoss-mxfp4-b.2": OLLAMA,
    "olmo3-b": OLLAMA,
    "mimo-b.2": "layers that predict further tokens must be whole",
}


def ids(prompt):
    return [5 + 7 * (i + prompt) % 90 for i in range(LENGTH)]


def llama(path, prompt):
    """In a process of its own: llama.cpp ends it where it asserts."""
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup = path, 128, 1, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    x = xllamacpp.Server(p).handle_completions({"prompt": ids(prompt), "max_tokens": TOKENS, "temperature": 0,
                                                "cache_prompt": False, "logprobs": RIVALS})
    x = x if isinstance(x, dict) else json.loads(x)
    told = x["choices"][0]["logprobs"]["content"]
    print("@" + json.dumps([[t["id"], t["logprob"]] for t in told]), flush=True)


def ask_llama(path, prompt):
    p = subprocess.run([sys.executable, __file__, str(path), "--llama", str(prompt)], capture_output=True, text=True)
    for line in p.stdout.splitlines():
        if line.startswith("@"):
            return json.loads(line[1:])
    said = [x for x in p.stderr.splitlines() if re.search(r"error|assert|missing|wrong|expected", x, re.I)]
    return (said or ["does not answer"])[0]


def ask_aerie(aerie, path, prompt):
    p = subprocess.Popen([aerie, "serve", "-n", "--port", "0", "--context", "128", "--raw", "-m", str(path)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = []
        for line in p.stdout:
            said.append(line.strip())
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                break
        else:
            raise SystemExit(f"{path}: {said}")
        body = {"prompt": ids(prompt), "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True, "logprobs": RIVALS,
                "ignore_eos": True}
        q = urllib.request.Request(found[0] + "/v1/completions", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        with urllib.request.urlopen(q) as answer:
            got = json.load(answer)["choices"][0]
        told = list(zip(got["token_ids"], got["logprobs"]["token_logprobs"]))
        return told[:next((n for n, (i, _) in enumerate(told) if i == EOS), len(told))]
    finally:
        p.terminate()
        p.wait()


def ask_both(aerie, path):
    """What both answer to the first prompt whose answer does not end at once."""
    for prompt in range(PROMPTS):
        ours = ask_aerie(aerie, path, prompt)
        if ours:
            break
    return ours, ask_llama(path, prompt)


def compare(ours, theirs):
    """What is to be said, and whether they agree."""
    if isinstance(theirs, str):
        said = re.sub(r"^.*(loading model: |/src/)|, got .*", "", theirs)
        return f"llama.cpp: {said[:110]}", False
    off, n = 0.0, 0
    for (i, x), (k, y) in zip(ours, theirs):
        if i != k:
            break
        off, n = max(off, abs(x - y)), n + 1
    same = n == len(ours) > 0
    return f"{n} of {len(ours)} ids equal; log probabilities differ by at most {off:.6f}", same and off <= MARGIN


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--llama", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.llama is not None:
        return llama(str(a.folder), a.llama)
    bad = 0
    for path in sorted(a.folder.glob("*.gguf")):
        said, same = compare(*ask_both(a.aerie, path))
        why = EXPECTED.get(path.stem)
        bad += same == (why is not None)
        print(f"{path.stem:24} {said}{f' ({why})' if why else ''}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
