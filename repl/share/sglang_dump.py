"""Writes a request dump of SGLang as JSON lines, which `aerie import` reads:

    python3 sglang_dump.py crash_dump_2026-01-31_14-05-00.pkl | aerie import -

SGLang pickles a dump with --crash-dump-folder (or --dump-requests-folder): {"server_args": ..., "requests":
[(request, reply, created, finished), ...]}, older versions the list alone. A pickle can run any code of
whoever wrote it, so nothing is imported and nothing is called here: every class of the file becomes a plain
record of its fields. Neither SGLang nor torch is needed.
"""
import argparse
import collections
import json
import math
import os
import pickle
import sys

MOST_BYTES = 2 << 30
MOST_DEPTH = 40


class Record:
    """Stands for an object of any class: keeps its fields, does nothing."""

    def __new__(cls, *_args, **_kw):
        return object.__new__(cls)

    def __init__(self, *_args, **_kw):
        pass

    def __setstate__(self, state):
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update((k, v) for k, v in part.items() if isinstance(k, str))

    def append(self, _item):
        pass

    def extend(self, _items):
        pass

    def add(self, _item):
        pass

    def __setitem__(self, _key, _item):
        pass

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


def reconstruct(cls, _base, _state):
    return cls() if isinstance(cls, type) and issubclass(cls, Record) else Record()


PLAIN = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "tuple"): tuple,
    ("builtins", "object"): Record,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "deque"): collections.deque,
    ("copyreg", "_reconstructor"): reconstruct,
    ("copy_reg", "_reconstructor"): reconstruct,
}


class Reader(pickle.Unpickler):
    def __init__(self, file):
        super().__init__(file)
        self.seen = {}

    def find_class(self, module, name):
        key = (module, name)
        if key not in PLAIN and key not in self.seen:
            self.seen[key] = type("Record", (Record,), {})
        return PLAIN.get(key) or self.seen[key]

    def persistent_load(self, _pid):
        return None


def plain(v, depth=0):
    """The value as JSON has it; None for what JSON cannot hold."""
    if v is None or isinstance(v, (bool, str)):
        return v
    if isinstance(v, int):
        return v if -(1 << 62) < v < 1 << 62 else None
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if depth == MOST_DEPTH:
        return None
    if isinstance(v, (list, tuple, collections.deque)):
        return [plain(x, depth + 1) for x in v]
    if isinstance(v, dict):
        return {k: plain(x, depth + 1) for k, x in v.items() if isinstance(k, str)}
    if isinstance(v, Record):
        return {k: plain(x, depth + 1) for k, x in vars(v).items()}
    return None


def fields(v, names):
    d = vars(v) if isinstance(v, Record) else v if isinstance(v, dict) else {}
    return {n: plain(d[n]) for n in names if d.get(n) is not None}


def line_of(entry, server):
    if not isinstance(entry, (list, tuple)) or len(entry) < 2:
        raise ValueError("expected (request, reply, created, finished)")
    request = fields(entry[0], ("text", "input_ids", "sampling_params", "stream", "lora_path"))
    request.update(server)
    reply = entry[1][-1] if isinstance(entry[1], list) and entry[1] else entry[1]
    out = {"server": "SGLang", "request": request}
    out.update(fields(entry[0], ("rid",)))
    if isinstance(reply, dict) and reply:
        out["response"] = plain(reply)
    for name, at in (("created_time", 2), ("finish_time", 3)):
        if len(entry) > at and isinstance(entry[at], (int, float)):
            out[name] = plain(float(entry[at]))
    return json.dumps(out, allow_nan=False)


def convert(file, out):
    """Returns how many requests were written, and how many could not be."""
    dump = Reader(file).load()
    server, requests = {}, dump
    if isinstance(dump, dict):
        requests = dump.get("requests")
        args = fields(dump.get("server_args"), ("model_path", "served_model_name"))
        model = args.get("served_model_name") or args.get("model_path")
        server = {"model": model} if isinstance(model, str) else {}
    if not isinstance(requests, (list, tuple, collections.deque)):
        raise ValueError("no list of requests in the file")
    bad = 0
    for i, entry in enumerate(requests):
        try:
            print(line_of(entry, server), file=out)
        except (ValueError, TypeError, RecursionError) as why:
            print(f"sglang_dump: request {i + 1}: {why}", file=sys.stderr)
            bad += 1
    return len(requests) - bad, bad


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    args.add_argument("file", help="the .pkl file that SGLang wrote")
    name = args.parse_args().file
    try:
        if os.path.getsize(name) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
        with open(name, "rb") as file:
            n, bad = convert(file, sys.stdout)
    except BrokenPipeError:
        return 1
    except Exception as why:  # a hostile pickle may raise anything
        print(f"sglang_dump: {name}: {type(why).__name__}: {why}", file=sys.stderr)
        return 2
    print(f"sglang_dump: {n} request{'' if n == 1 else 's'} written", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
