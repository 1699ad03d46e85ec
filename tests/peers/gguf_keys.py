#!/usr/bin/env python3
"""Keys of a GGUF's metadata, absent and with other values, in aerie and in llama.cpp.

    mkdir FOLDER && build/release-cpu/tests/test_gguf_models --write FOLDER
    gguf_keys.py FOLDER [--aerie PROGRAM] [NAME...]

In each file (or those of the names), one thing is changed at a time: keys of ropes, windows, soft-caps and experts are
left out, changed, or added. Both programs answer a prompt greedily, as in gguf_families.py. What may come out: the same
ids and log probabilities, or one of the two refuses the file. Other numbers are a fault, but for EXPECTED. Files that
llama.cpp does not load or computes otherwise as they are, are passed over. Exit 1 if there is a fault. Needs xllamacpp.
"""
import argparse
import pathlib
import struct
import sys
import tempfile

import gguf_families as families

WIDTH = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, F32, BOOL, TEXT, LIST = 4, 6, 7, 8, 9
YARN = [("rope.scaling.type", TEXT, b"yarn"), ("rope.scaling.factor", F32, 2.0)]
CHANGES = [
    [("rope.scaling.factor", F32, 2.0)], [("rope.scale_linear", F32, 2.0)], [("rope.scaling.attn_factor", F32, 1.5)],
    [("rope.scaling.type", TEXT, b"linear"), ("rope.scaling.factor", F32, 2.0)], YARN,
    YARN + [("rope.scaling.original_context_length", U32, 16)], YARN + [("rope.scaling.yarn_ext_factor", F32, 0.5)],
    [("rope.scaling.yarn_log_multiplier", F32, 0.3)],
    [("rope.freq_base", F32, 777.0)], [("rope.freq_base_swa", F32, 777.0)], [("rope.dimension_count", U32, 4)],
    [("rope.dimension_count_swa", U32, 4)], [("attention.causal", BOOL, False)], [("attention.scale", F32, 0.3)],
    [("attention.sliding_window", U32, 3)], [("attention.sliding_window_pattern", U32, 2)], [("logit_scale", F32, 0.5)],
    [("final_logit_softcapping", F32, 3.0)], [("attn_logit_softcapping", F32, 2.0)], [("expert_weights_scale", F32, 1.7)],
    [("expert_weights_norm", BOOL, False)], [("expert_gating_func", U32, 1)], [("expert_used_count", U32, 1)],
    [("embedding_scale", F32, 2.0)], [("residual_scale", F32, 0.5)], [("attention.layer_norm_rms_epsilon", F32, 0.05)],
]
DROPS = ("rope", "softcapping", "expert_weights", "gating", "sliding", "key_length", "scale")
CAP = "without the key it caps logits at 30; the config's default is none"
OWN = "its rope does not read them"
EXPECTED = {  # of a file, or of all: what is changed, and why the numbers differ
    ("gemma4", "-final_logit_softcapping"): CAP, ("muse", "-final_logit_softcapping"): CAP,
    ("gemma4", "-rope.freq_base"): "aerie has the published theta",
    ("gptoss", "rope.freq_base"): "it rounds YaRN's limits, the published model does not",
    ("gptoss", "-rope.freq_base"): "it rounds YaRN's limits, the published model does not",
    ("gptoss", "-rope.scaling.original_context_length"): "it rounds YaRN's limits, the published model does not",
    ("gptoss", "rope.scaling.type"): "it rounds YaRN's limits, the published model does not",
    ("afmoe", "attention.sliding_window_pattern"): "every fourth layer of its afmoe has no rope, here each full one",
    ("phi3", "-rope.scaling.attn_factor"): "aerie has the config's default",
    ("phi3", "attention.sliding_window"): "its phi3 has no window",
    ("llama", "attention.sliding_window"): "its llama has no window",
    ("muse", "rope.scaling.type"): OWN, ("muse", "rope.scaling.factor"): OWN, ("muse", "rope.scale_linear"): OWN,
    ("olmo3", "rope.freq_base_swa"): OWN, ("mimo", "expert_weights_scale"): "its mimo2 does not read it",
}


def metadata(data):
    """Key to type and value; where tensors' entries begin."""
    at = 24

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", data, at)
        at += 8 + n
        return data[at - n:at]

    def value(kind):
        nonlocal at
        if kind == TEXT:
            return text()
        if kind == LIST:
            of, n = struct.unpack_from("<IQ", data, at)
            at += 12
            return of, [value(of) for _ in range(n)]
        at += struct.calcsize(WIDTH[kind])
        return struct.unpack_from("<" + WIDTH[kind], data, at - struct.calcsize(WIDTH[kind]))[0]

    keys = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        name = text().decode()
        kind, = struct.unpack_from("<I", data, at)
        at += 4
        keys[name] = (kind, value(kind))
    return keys, at


def infos_end(data, at):
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    return at


def packed(kind, v):
    if kind == TEXT:
        return struct.pack("<Q", len(v)) + v
    if kind == LIST:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(packed(v[0], x) for x in v[1])
    return struct.pack("<" + WIDTH[kind], v)


def rewrite(data, keys, at, path):
    end = infos_end(data, at)
    head = data[:16] + struct.pack("<Q", len(keys))
    head += b"".join(packed(TEXT, k.encode()) + struct.pack("<I", t) + packed(t, v) for k, (t, v) in keys.items())
    head += data[at:end]
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data[-(-end // 32) * 32:])


def ask(aerie, path):
    """What both say: "equal", "refused", or how they differ."""
    try:
        ours, theirs = families.ask_both(aerie, path)
    except SystemExit:
        return "refused"
    said, same = families.compare(ours, theirs)
    return "equal" if same else "refused" if isinstance(theirs, str) else said


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("names", nargs="*")
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    a = p.parse_intermixed_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        one = pathlib.Path(folder) / "a.gguf"
        for path in sorted(a.folder.glob("*.gguf")):
            if (a.names and path.stem not in a.names) or ask(a.aerie, path) != "equal":
                continue
            data = path.read_bytes()
            keys, at = metadata(data)
            arch = keys["general.architecture"][1].decode() + "."
            drops = [k for k in keys if k.startswith(arch) and any(d in k for d in DROPS)]
            count = {"equal": 0, "refused": 0}
            for change in CHANGES + [[("-" + k[len(arch):], 0, None)] for k in drops]:
                new = dict(keys)
                for k, kind, v in change:
                    if k[0] == "-":
                        del new[arch + k[1:]]
                    else:
                        new[arch + k] = (kind, v)
                rewrite(data, new, at, one)
                said = ask(a.aerie, one)
                if said in count:
                    count[said] += 1
                    continue
                why = EXPECTED.get((path.stem.split("-")[0], change[0][0]))
                bad += why is None
                print(f"{path.stem:18} {' '.join(k if k[0] == '-' else f'{k}={v}' for k, _, v in change)}: {said}"
                      f"{f' ({why})' if why else ''}", flush=True)
            print(f"{path.stem:18} {count['equal']} equal, {count['refused']} refused", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
