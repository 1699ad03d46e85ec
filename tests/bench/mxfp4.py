#!/usr/bin/env python3
"""What dense layers lose in MXFP4, beside bf16 and FP8: greedy replies of the bundled model to held-out prompts.

  python3 models/nestling/train/make_corpus.py --eval DIR        the prompts
  python3 tests/bench/mxfp4.py AERIE DIR/prompts.jsonl [N]       AERIE: the program; N: prompts (300), evenly spread

A copy of the model has every projection of its layers rounded to MXFP4 (OCP MX 1.0: blocks of 32 along k, the scale
2^(floor(log2(largest)) - 2), elements to the nearest E2M1, ties to even) and stored as bf16, which holds these numbers
exactly. The embedding, which is also the head, stays as it is. Prompts are those whose reply is checked word by word.
"""
import array, json, math, os, shutil, struct, subprocess, sys, tempfile

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def nearest(x):
    """The E2M1 number nearest to x >= 0; of two equally near ones that with an even code."""
    best = min(range(8), key=lambda i: (abs(E2M1[i] - x), i % 2))
    return E2M1[best]


def rounded(block):
    largest = max(abs(x) for x in block)
    if largest == 0:
        return block
    scale = 2.0 ** (math.frexp(largest)[1] - 1 - 2)
    return [math.copysign(nearest(min(abs(x) / scale, 6)) * scale, x) for x in block]


def floats(raw):
    words = array.array("H", raw)
    return array.array("f", struct.pack("<%dI" % len(words), *(w << 16 for w in words)))


def bf16(values):
    return array.array("H", (w >> 16 for w in array.array("I", array.array("f", values).tobytes()))).tobytes()


def round_model(src, dst):
    """Writes the rounded copy; returns the relative RMS error of what was rounded."""
    shutil.copytree(src, dst)
    name = os.path.join(dst, "model.safetensors")
    os.chmod(name, 0o644)
    error = size = 0.0
    with open(name, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        for key, t in json.loads(f.read(n)).items():
            if not key.endswith("_proj.weight"):
                continue
            assert t["dtype"] == "BF16" and t["shape"][1] % 32 == 0, key
            begin, end = t["data_offsets"]
            f.seek(8 + n + begin)
            x, y = floats(f.read(end - begin)), []
            for i in range(0, len(x), 32):
                y += rounded(x[i:i + 32])
            error += sum((a - b) ** 2 for a, b in zip(x, y))
            size += sum(a * a for a in x)
            f.seek(8 + n + begin)
            f.write(bf16(y))
    return math.sqrt(error / size)


def replies(aerie, prompts, flags):
    out = []
    for p in prompts:
        r = subprocess.run([aerie, "run", "--device", "cpu", "-q", "--no-log", "-p", "temperature=0", *flags, "--",
                            p["messages"][0]["content"]], capture_output=True, text=True, check=True)
        out.append(r.stdout.strip())
    return out


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as f:
        prompts = [p for p in map(json.loads, f) if p["check"] == ["exact"] and len(p["messages"]) == 1]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    prompts = prompts[::max(1, len(prompts) // n)][:n]
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/nestling/target")
    with tempfile.TemporaryDirectory() as tmp:
        error = round_model(here, os.path.join(tmp, "target"))
        print("MXFP4: relative RMS error of the projections %.3f" % error)
        ways = {"bf16": [], "FP8": ["--weights", "fp8"], "MXFP4": ["-m", os.path.join(tmp, "target")]}
        first = None
        for name, flags in ways.items():
            got = replies(sys.argv[1], prompts, flags)
            first = first or got
            right = sum(g == p["reply"].strip() for g, p in zip(got, prompts))
            same = sum(a == b for a, b in zip(got, first))
            print("%-6s %d of %d replies right, %d as in bf16" % (name, right, len(prompts), same))


main()
