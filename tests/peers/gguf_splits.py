#!/usr/bin/env python3
"""How the pre-tokenizers of GGUF files split text, in aerie and in llama.cpp.

    gguf_splits.py GGUF [--aerie PROGRAM] [--texts FILE...] [--as NAME=OTHER]

The vocabulary and merges of a byte-level GGUF are written again for every name of tokenizer.ggml.pre that both know, with
a model of one tiny layer. Compared are the ids of lines of the texts (default: this repository's documents) and of texts
with numbers, scripts, blanks and line ends. Exit 1 if any differ but those of EXPECTED, where aerie's ids are those of
tokenizer.json. --as: llama.cpp reads NAME where aerie reads OTHER. Needs gguf and xllamacpp.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["llama-bpe", "dbrx", "smaug-bpe", "qwen2", "gpt-4o", "tekken", "smollm", "refact", "exaone", "mellum2", "command-r",
         "gpt-2", "olmo", "exaone4", "mellum", "laguna", "deepseek-v3", "deepseek-r1-qwen", "llama4",
         "deepseek-coder", "seed-coder", "afmoe"]
NFC = "it does not normalize"
EXPECTED = {"qwen2": NFC, "deepseek-r1-qwen": NFC, "command-r": NFC,
            "afmoe": "it splits blanks before a number otherwise, joins scripts, and splits Thai words",
            "laguna": "it splits before a line feed, not before the carriage return"}
HARD = ["Don't WE'LL they'Re I'm", "1234567 12 3.14159 1,000,000", "x1y22z333", "\n\n\n a\n \n b\r\nc\r\n\r\nd", "\t\tif (a)\n\t\t\treturn;",
        "你好，世界！123", "привет МИР ёлка", "e\u0301te\u0301 ete\u0301", "สวัสดีครับ 2567", "한국어 문장 입니다", "مرحبا ١٢٣", "🦊🦊 a🦊b",
        "foo_bar::baz->qux();//ok", "    trailing   ", "HTTPServer camelCase ABCdef", "a  b   c    d", "''''\"\"\"```", "٣٤٥ Ⅷ ½ x²", "---====///\n//",
        "Ünïcödé Straße", "x\u200by\u00a0z", "100km/h 5GHz", "\u3000全角 ＡＢＣ１２３"]


def write(path, source, pre):
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(1), w.add_context_length(64), w.add_embedding_length(8), w.add_feed_forward_length(8)
    w.add_head_count(1), w.add_head_count_kv(1), w.add_layer_norm_rms_eps(1e-5), w.add_rope_dimension_count(8)
    for key in ("model", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id"):
        f = source.fields[f"tokenizer.ggml.{key}"]
        w.add_key_value(f.name, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None)
    w.add_tokenizer_pre(pre), w.add_add_bos_token(False)
    n = len(source.fields["tokenizer.ggml.tokens"].contents())
    w.add_tensor("token_embd.weight", np.zeros((n, 8), np.float32)), w.add_tensor("output_norm.weight", np.ones(8, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        w.add_tensor(f"blk.0.{name}.weight", np.ones(8, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{name}.weight", np.zeros((8, 8), np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def llama(path):
    """In a process of its own: a line of ids for each text on standard input."""
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup = path, 64, 1, False
    server = xllamacpp.Server(p)
    address = server.listening_address
    for line in sys.stdin:
        body = json.dumps({"content": json.loads(line), "add_special": False, "parse_special": False}).encode()
        with urllib.request.urlopen(urllib.request.Request(address + "/tokenize", body, {"Content-Type": "application/json"})) as a:
            print("@" + json.dumps(json.load(a)["tokens"]), flush=True)


def ids_of_llama(path, texts):
    p = subprocess.run([sys.executable, __file__, str(path), "--llama"], input="".join(json.dumps(t) + "\n" for t in texts),
                       capture_output=True, text=True)
    return [json.loads(x[1:]) for x in p.stdout.splitlines() if x.startswith("@")]


def ids_of_aerie(aerie, path, texts):
    p = subprocess.run([aerie, "tokenize", "-m", str(path), "--jsonl"],
                       input="".join(json.dumps({"text": t}) + "\n" for t in texts), capture_output=True, text=True)
    if p.returncode:
        return p.stderr.strip()
    return [json.loads(x)["ids"] for x in p.stdout.splitlines()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf", type=pathlib.Path)
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--texts", type=pathlib.Path, nargs="*", default=[ROOT / "README.md", ROOT / "engine/WORKING.md"])
    p.add_argument("--as", dest="other", action="append", default=[])
    p.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.llama:
        return llama(str(a.gguf))
    r, lines = random.Random(5), [x for f in a.texts for x in f.read_text().splitlines() if x]
    texts = HARD + ["\n".join(lines)] + r.sample(lines, min(60, len(lines)))
    for _ in range(60):
        texts.append("".join(r.choice("aB1 \n\r\t'.,éЖ你あ한٣😀_-/") for _ in range(24)))
    pairs = [tuple(x.split("=")) for x in a.other] or [(n, n) for n in NAMES]
    source, bad = gguf.GGUFReader(str(a.gguf)), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, own in pairs:
            theirs, ours = pathlib.Path(folder) / "a.gguf", pathlib.Path(folder) / "b.gguf"
            write(theirs, source, name), write(ours, source, own)
            x, y = ids_of_aerie(a.aerie, ours, texts), ids_of_llama(theirs, texts)
            if isinstance(x, str) or len(y) != len(texts):
                print(f"{name:12} {x if isinstance(x, str) else 'llama.cpp does not answer'}")
                bad += 1
                continue
            off = [t for t, i, k in zip(texts, x, y) if i != k]
            why = EXPECTED.get(name)
            bad += bool(off) != bool(why)
            print(f"{name:12} {len(texts) - len(off)} of {len(texts)} texts have equal ids{f' ({why})' if why else ''}"
                  f"{f', not {off[0]!r:.60}' if off else ''}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
