#!/usr/bin/env python3
"""Products of many rows on this machine's CPU: aerie's linear() beside the sgemm of oneDNN, MKL and OpenBLAS, in one table.

    peer_products.py [--threads N] [--rounds N] [--calls N] [--isa avx2|avx512] [--tree NAME=DIR]... [--venv DIR] [SHAPE...]

SHAPE: OUTxINxROWS:TYPE, TYPE the type of aerie's weights, as bf16 or Q4_0; without one: those of results-cpu.md, "Prompts beside
the best library". The libraries multiply the same weights in float32. They come from PyPI (onednn-cpu-gomp, mkl, and numpy for
its OpenBLAS; 1.2 GB unpacked), are installed into --venv (default: $TMPDIR/peer-products), which is kept, and are left out where
pip has none.

Each round runs each of them once, in a process of its own; a number is the best of --calls calls of all rounds, in GFLOP/s:
processor time with one thread (so other programs disturb little), the clock with several (so nothing else should run).
of best: aerie's number divided by the best library's; of peak: divided by that of a loop of independent multiply-adds.
--isa avx2: all of them without instructions of 512 bits. --tree: a checkout whose aerie takes part, this one by default; give it
several times, as in --tree old=../old --tree new=., to compare builds. A wrong result ends the run. x86-64; needs what `make`
needs, and Python with venv.
"""
import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
LIBRARIES = {  # name in the table: package, file below the virtual environment
    "oneDNN": ("onednn-cpu-gomp", "lib/libdnnl.so.?"),
    "MKL": ("mkl", "lib/libmkl_rt.so.?"),
    "OpenBLAS": ("numpy", "lib/python*/site-packages/numpy.libs/libscipy_openblas*.so"),
}
BF16 = "1024x640 2048x640 640x2048 1024x1152 6912x1152 1152x6912 2048x2560 10240x2560 2560x10240".split()  # gemma-3 270m, 1b, 4b
SHAPES = [f"{s}x{rows}:bf16" for s in BF16 for rows in (64, 256, 512)] + [
    "6912x1152x256:Q4_0", "1152x6912x256:Q4_0", "10240x2560x256:Q4_K", "2560x10240x256:Q4_K"]


def install(venv):
    """The libraries that there are: their files by name, and a line about each package."""
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    files = {}
    for name, (package, pattern) in LIBRARIES.items():
        if not list(venv.glob(pattern)):
            subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package])
        found = sorted(venv.glob(pattern))
        if found:
            files[name] = str(found[0])
        else:
            print(f"{name} is left out: pip did not install {package}", file=sys.stderr)
    listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], stdout=subprocess.PIPE, text=True,
                            check=True).stdout
    packages = {LIBRARIES[name][0] for name in files}
    return files, [line.replace("==", " ") for line in listed.split() if line.partition("==")[0].replace("_", "-") in packages]


def build(tree, program):
    """Links peer_products.c with the kernels of a checkout, with the flags of its build for the CPU."""
    at = "build/release-cpu"
    subprocess.run(["make", "-s", "-C", tree, "CUDA=0", "TOLD=1", f"{at}/lib.a"], check=True)
    compiler, *flags = shlex.split((tree / at / "c.flags").read_text())
    link = shlex.split((tree / at / "link.flags").read_text())[1:]
    subprocess.run([compiler, *flags, HERE.with_suffix(".c"), f"{at}/lib.a", *link, "-ldl", "-o", program], cwd=tree, check=True)


def environment(a):
    threads = {f"{x}_NUM_THREADS": str(a.threads) for x in ("OMP", "MKL", "OPENBLAS")}
    narrow = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
    paths = f"{a.venv}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return os.environ | threads | (narrow if a.isa == "avx2" else {}) | {"MKL_DYNAMIC": "FALSE", "LD_LIBRARY_PATH": paths}


def run(program, what, a):
    """What the program says of the machine, and its numbers by shape ("peak" alone of the peak)."""
    argv = [program, what, str(a.threads), str(a.calls), a.isa, *([] if what == "peak" else a.shapes)]
    out = subprocess.run(argv, env=environment(a), stdout=subprocess.PIPE, text=True)
    if out.returncode:
        raise SystemExit(f"peer_products: {what} ended with status {out.returncode}")
    about, *lines = out.stdout.splitlines()
    return about, {shape: float(number) for shape, number in map(str.split, lines)}


def table(shapes, trees, libraries, best):
    """best: for each name the best number of each shape."""
    heads = [x for t in trees for x in (t, "of best", "of peak")] + list(libraries)
    print(f"{'out x in x rows: weights':24}" + "".join(f"{x:>10}" for x in heads))
    for shape in shapes:
        top = max((best[x][shape] for x in libraries), default=None)
        row = []
        for t in trees:
            n = best[t][shape]
            row += [f"{n:.1f}", f"{n / top:.2f}" if top else "-", f"{n / best['peak']['peak']:.2f}"]
        print(f"{shape:24}" + "".join(f"{x:>10}" for x in row + [f"{best[x][shape]:.1f}" for x in libraries]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shapes", nargs="*", metavar="SHAPE")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--calls", type=int, default=4)
    p.add_argument("--isa", choices=("avx2", "avx512"), default="")
    p.add_argument("--tree", action="append", type=lambda x: x.split("=", 1), metavar="NAME=DIR")
    p.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "peer-products")
    a = p.parse_args()
    a.shapes, a.venv = a.shapes or SHAPES, a.venv.absolute()
    trees = {name: pathlib.Path(at).resolve() for name, at in a.tree or [("aerie", HERE.parents[2])]}
    libraries, packages = install(a.venv)
    with tempfile.TemporaryDirectory() as work:
        programs = {}
        for name, at in trees.items():
            programs[name] = f"{work}/{len(programs)}"
            build(at, programs[name])
        any_program = next(iter(programs.values()))
        sides = {name: (program, "aerie") for name, program in programs.items()}
        sides |= {name: (any_program, file) for name, file in libraries.items()} | {"peak": (any_program, "peak")}
        best = {name: {} for name in sides}
        for r in range(a.rounds):
            for name in list(sides)[::1 if r % 2 == 0 else -1]:
                about, numbers = run(*sides[name], a)
                best[name] |= {k: max(v, best[name].get(k, 0)) for k, v in numbers.items()}
    print(f"{about}; {', '.join(packages) or 'no library'}; GFLOP/s, the best of {a.rounds} rounds of {a.calls} calls; "
          f"peak {best['peak']['peak']:.1f}")
    table(a.shapes, trees, libraries, best)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(f"peer_products: {e}")
