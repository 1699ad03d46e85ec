"""Writes the tokenizer fixtures with Hugging Face tokenizers 0.23 (not needed to run the tests).

    python3 make.py GOLDEN     GOLDEN: a folder with NAME/tokenizer.json and NAME/cases.jsonl

NAME.json is a tokenizer.json without its vocabulary and merges, NAME.merges its merges, a line each:
the vocabulary of these files is the byte alphabet in the file's order and then what each merge joins,
so the test puts the file together again. cl100k, o200kpat and qwenpat share one list of merges.
spm.json holds the ids of gemmastyle's texts by scores. variants.json holds small tokenizers that use every
option the loader knows, with texts, ids (special tokens matched, and not) and decoded text.
"""
import json
import random
import shutil
import sys

from tokenizers import Tokenizer

NO_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TEXTS = [
    "", "Hello, world!", "hello the  the\n\n\tThe", "<mask>  x <mask>", "a <mask>b _<mask>_", "AABABC ABCD",
    "<a> <a <a>>", "ab\u0301e\u0301\u00e9", "\u2581\u2581\u2581 \u2581", "12 123 1234567 '\u00b2\u00bd \u2167 \u4e00",
    "\ufb01n \u2460 \uff21 \u00bd", "x \n y \n", "don't I'LL we'Ve it'\u017f", "\u65e5\u672c\u8a9e \u3072\u3089",
    "\U0001f600 \u202eabc\u202c \u200b\ufeff", "\u0000\u0001\u007f\u0085\u00a0\u2028\u3000x",
    "\u1c89\u1c8a \u0897 a\U000105c0b \U00010d40", "a\u180eb \u180e", "l\u03330\u0333 \u24b6\u24b7", "ooll aaabab x",
    "q\u0307\u0323 \u1e9b\u0323 \uac00\u11a8 \u1100\u1161", "  lead and trail  ", "A", " ", "\n\n\r\n\n",
]
REGEX = [r"\s+", r"\p{N}{1,3}+", r"\s*", r"(?=A)", r"(?<=\s)\S", r"^", r"\w+|[^\w\s]+", r"\b", r"[[:punct:]]",
         r"[^\r\n\p{L}\p{N}]?+\p{L}++|\s++$|\s*[\r\n]|\s+(?!\S)|\s", r"(?i)the", r"\h", r"x{,2}", r"(o|l)\1",
         r"(?m:e.)", r"[\u3040-\u30ff]+|[\w.]+", r"\X"]
HOW = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def vocab():
    alphabet = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 324))]
    merges = "h e|l l|he ll|hell o|t h|th e|\u0120 the|\u0120 \u0120|a b|\u2581 the|\u2581 \u2581|A B|1 2|\u0120 x".split("|")
    extra = ["\u2581", "\u65e5", "\u00e9", "<unk>", "a b"]
    tokens = alphabet + [e for e in extra if e not in alphabet] + [m.replace(" ", "") for m in merges]
    return {t: i for i, t in enumerate(tokens)}, [m.split(" ") for m in merges]


def split(pattern, how="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": how, "invert": invert}


def level(space=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}


def meta(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}


def seq(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


MARK = {"String": "\u2581"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FALLBACK = seq("decoders", replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"})
LLAMA = seq("decoders", replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP)


def settings():
    """What differs from the plain byte-level file, variant by variant."""
    for i, r in enumerate(REGEX):
        yield {"pre_tokenizer": seq("pretokenizers", split({"Regex": r}, HOW[i % 5], i % 3 == 1), level())}
    for how in HOW:
        for invert in (False, True):
            yield {"pre_tokenizer": seq("pretokenizers", split({"String": "l"}, how, invert), level())}
    for space in (False, True):
        yield {"pre_tokenizer": level(space, True)}
        yield {"pre_tokenizer": seq("pretokenizers", level(space, False), {"type": "Digits", "individual_digits": space})}
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            yield {"pre_tokenizer": meta(scheme, cut), "decoder": meta(scheme, cut), "unk": True, "byte_fallback": cut}
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield {"normalizer": {"type": form}, "pre_tokenizer": level(False, True)}
    yield {"normalizer": seq("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581")),
           "pre_tokenizer": None, "decoder": LLAMA, "unk": True, "fuse_unk": True, "byte_fallback": True}
    yield {"normalizer": replace({"String": " "}, "\u2581"), "pre_tokenizer": split({"String": " "}, "MergedWithPrevious"),
           "decoder": FALLBACK, "unk": True, "byte_fallback": True, "no_bytes": [0xF0, 0x0A]}
    yield {"normalizer": replace({"Regex": r"\s+"}, " "), "pre_tokenizer": None, "decoder": FALLBACK}
    yield {"pre_tokenizer": None, "decoder": FALLBACK, "unk": True, "fuse_unk": True}
    yield {"ignore_merges": True}
    for k in range(12):
        yield {"added": k, "normalizer": {"type": "NFC"} if k % 3 == 0 else None}


def added(seed, ids, first):
    rng = random.Random(seed)
    out = []
    for content in rng.sample(["<mask>", " the", "foo bar", "\n\n", "ABC", "<a", "<a>", "  ", " ", "o w", "e\u0301", "1"], 7):
        token = {k: rng.random() < 0.35 for k in NO_ADDED}
        own = ids.get(content)
        special = own is None and rng.random() < 0.4
        out.append({"id": first if own is None else own, "content": content, **token, "special": special})
        first += own is None
    return sorted(out, key=lambda a: a["id"])


def variant(s):
    ids, merges = vocab()
    if s.get("byte_fallback"):
        for b in range(256):
            if b not in s.get("no_bytes", []):
                ids[f"<0x{b:02X}>"] = len(ids)
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>" if s.get("unk") else None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": s.get("fuse_unk", False),
             "byte_fallback": s.get("byte_fallback", False), "ignore_merges": s.get("ignore_merges", False),
             "vocab": ids, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": added(s["added"], ids, len(ids)) if "added" in s else [],
            "normalizer": s.get("normalizer"), "pre_tokenizer": s.get("pre_tokenizer", level()),
            "post_processor": None, "decoder": s.get("decoder", level()), "model": model}


def run(file):
    t = Tokenizer.from_str(json.dumps(file))
    for text in TEXTS:
        t.encode_special_tokens = False
        ids = t.encode(text, add_special_tokens=False).ids
        decoded = t.decode(ids, skip_special_tokens=False)
        t.encode_special_tokens = True
        case = {"text": text, "ids": ids, "plain": t.encode(text, add_special_tokens=False).ids}
        if "\ufffd" not in decoded:
            case["decoded"] = decoded
        yield case


def write_lines(path, items):
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in items) + "\n]\n")


def ranked(ids, scores):
    """Merges of a SentencePiece vocabulary, as transformers makes them."""
    found = []
    for piece, i in ids.items():
        for k in range(1, len(piece)):
            left, right = piece[:k], piece[k:]
            if left in ids and right in ids:
                found.append((scores[i], k, len(right), left, right))
    found.sort(key=lambda m: m[:3], reverse=True)
    return [(m[3], m[4]) for m in found]


def sentencepiece():
    """Ids by gemmastyle's vocabulary as SentencePiece has it for Llama 2: with scores, in another order than the ids,
    and a space before the text."""
    file = json.load(open("gemmastyle.json"))
    ids = file["model"]["vocab"]
    added = {a["content"] for a in file["added_tokens"]}
    merges = ranked(ids, [-float(i * 7919 % 9001) for i in range(len(ids))])
    file["model"]["merges"] = [m for m in merges if not added & {m[0], m[1], m[0] + m[1]}]
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    file["normalizer"] = {"type": "Sequence", "normalizers": [prepend, file["normalizer"]]}
    file["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    t = Tokenizer.from_str(json.dumps(file))
    with open("gemmastyle.cases") as f:
        for text in (json.loads(line)["text"] for line in f):
            yield t.encode(text, add_special_tokens=False).ids


def main(golden):
    for name in ("gpt2", "cl100k", "o200kpat", "qwenpat"):
        file = json.load(open(f"{golden}/{name}/tokenizer.json"))
        model = file["model"]
        ids, merges = model.pop("vocab"), model.pop("merges")
        alphabet = [t for t, i in sorted(ids.items(), key=lambda x: x[1]) if len(t) == 1][:256]
        again = alphabet + [a + b for a, b in merges]
        assert {t: i for i, t in enumerate(again)} == {t: i for t, i in ids.items() if i < len(again)}
        model["alphabet"] = "".join(alphabet)
        json.dump(file, open(f"{name}.json", "w"), indent=1)
        if name in ("gpt2", "cl100k"):
            open(f"{name}.merges", "w").write("".join(f"{a} {b}\n" for a, b in merges))
    shutil.copy(f"{golden}/gemmastyle/tokenizer.json", "gemmastyle.json")
    for name in ("gpt2", "cl100k", "o200kpat", "qwenpat", "gemmastyle"):
        shutil.copy(f"{golden}/{name}/cases.jsonl", f"{name}.cases")
    write_lines("spm.json", sentencepiece())
    write_lines("variants.json", [{"file": f, "cases": list(run(f))} for f in map(variant, settings())])


main(sys.argv[1])
