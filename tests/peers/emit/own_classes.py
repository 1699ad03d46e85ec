#!/usr/bin/env python3
"""own_classes.py AERIE [WHEEL...] - tries aerie_case.py on metadata of SGLang, vLLM and FlashInfer, and checks the cases.

With wheels of sglang, vllm or flashinfer-python the metadata are objects of a class with exactly the fields that the
package's own class has, whose source is read from the wheel without importing it (that needs torch and a GPU); a name that
aerie_case.py uses and the class lacks ends the script. Without a wheel the fields are those recorded here. Each step is
written twice, right and with one known fault; `aerie check` must find nothing, and the rule of the fault.
"""
import ast
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from types import SimpleNamespace

import aerie_case as emit

RECORDED = {
    "FlashAttentionMetadata": ("sglang", ["cache_seqlens_int32", "max_seq_len_q", "max_seq_len_k", "cu_seqlens_q",
                                          "cu_seqlens_k", "window_size", "page_table", "swa_page_table"]),
    "CommonAttentionMetadata": ("vllm", ["query_start_loc", "query_start_loc_cpu", "seq_lens", "num_reqs",
                                         "num_actual_tokens", "max_query_len", "max_seq_len", "block_table_tensor",
                                         "slot_mapping", "causal"]),
    "SlidingWindowSpec": ("vllm", ["block_size", "num_kv_heads", "head_size", "dtype", "sliding_window"]),
}
PLAN = ["qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "page_size", "custom_mask", "causal",
        "window_left"]


def sources(wheel):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if name.endswith(".py"):
                yield name, z.read(name).decode("utf-8", "replace")


def classes_of(wheels):
    """Field names of each class that a wheel has, with those of its bases; and FlashInfer's plan arguments."""
    found, plan = {}, None
    for wheel in wheels:
        trees = {}
        for name, text in sources(wheel):
            if any(f"class {c}" in text for c in (*RECORDED, "AttentionSpec", "KVCacheSpec")):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.ClassDef):  # of several classes of one name the one with most in it
                        trees[node.name] = max(trees.get(node.name, node), node, key=lambda c: len(c.body))
            if "class BatchPrefillWithPagedKVCacheWrapper" in text and "flashinfer/prefill" in name:
                wrapper = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef) and
                               n.name == "BatchPrefillWithPagedKVCacheWrapper")
                plan = [a.arg for f in wrapper.body if isinstance(f, ast.FunctionDef) and f.name == "plan"
                        for a in f.args.args + f.args.kwonlyargs]

        def fields(node):
            own = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
            own += [f.name for f in node.body if isinstance(f, ast.FunctionDef) and f.decorator_list]
            bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in trees]
            return [x for b in bases for x in fields(trees[b])] + own

        for c in RECORDED:
            if c in trees and os.path.basename(wheel).startswith(RECORDED[c][0]):
                found[c] = fields(trees[c])
    return found, plan


def make(fields, name, **values):
    """An object of a class with these fields, and no others, that holds the values."""
    missing = [v for v in values if v not in fields]
    if missing:
        sys.exit(f"{name} has no {', '.join(missing)}; it has {', '.join(fields)}")
    cls = dataclasses.make_dataclass(name, [(f, object, None) for f in dict.fromkeys(fields)])
    return cls(**values)


def sglang_step(make_one, fault):
    """EAGLE3 with topk > 1: window 4, prefixes 6 and 3, trees of 4. Fault 24617: full slots in the swa table."""
    rows = [[11, 12, 13, 14, 15, 16, 21, 22, 23, 24], [31, 32, 33, 41, 42, 43, 44]]
    to_swa = [0] * 48
    for full, swa in zip([14, 15, 16, 21, 22, 23, 24, 31, 32, 33, 41, 42, 43, 44],
                         [5, 6, 7, 8, 9, 10, 11, 2, 3, 4, 12, 13, 14, 15]):
        to_swa[full] = swa
    mask = []
    for prefix, parents in ((6, [-1, 0, 0, 1]), (3, [-1, 0, 1, 0])):
        for j in range(4):
            seen, at = set(), j
            while at >= 0:
                seen.add(at)
                at = parents[at]
            mask += [1] * prefix + [int(k in seen) for k in range(4)]
    m = make_one("FlashAttentionMetadata", cache_seqlens_int32=[6, 3], cu_seqlens_q=[0, 4, 8], page_table=rows,
                 swa_page_table=[[s if fault else to_swa[s] for s in r] for r in rows])
    return emit.sglang(m, rows, [0, 1], mode="verify", window_left=3, full_to_swa=to_swa, custom_mask=mask,
                       draft_tokens=4, out_cache_loc=rows[0][6:] + rows[1][3:],
                       swa_out_cache_loc=[8, 9, 10, 11, 12, 13, 14, 15], positions=[6, 7, 7, 8, 3, 4, 5, 4])


def vllm_step(make_one, fault):
    """Block 4, 11 tokens computed, 3 rows; a sliding group and a drafter's. Fault 50170: the drafter's slots are group 0's."""
    def group(table, slots):
        return make_one("CommonAttentionMetadata", query_start_loc=[0, 3], seq_lens=[14], block_table_tensor=[table],
                        slot_mapping=slots)
    full, window = SimpleNamespace(block_size=4), make_one("SlidingWindowSpec", block_size=4, sliding_window=6)
    first = group([3, 7, 9, 14], [39, 56, 57])
    return emit.vllm(first, [("0", first, full), ("1", group([0, 21, 22, 23], [91, 92, 93]), window),
                             ("2 draft", group([30, 31, 32, 33], [39, 56, 57] if fault else [131, 132, 133]), full)],
                     mode="extend", positions=[11, 12, 13])


def flashinfer_step(plan, fault):
    """Two requests; with the fault the last page has prefix % page_size cells, which is none of a full one."""
    missing = [a for a in PLAN if a not in plan]
    if missing:
        sys.exit(f"plan() has no {', '.join(missing)}")
    case = emit.flashinfer([0, 1, 3], [0, 2, 5], [4, 6, 1, 2, 3], [4, 3], 4, write=[27, 13, 14])
    if fault:
        case["requests"][0]["kv_len"] = 4
    return case


def check(aerie, folder, name, case, rule):
    path = os.path.join(folder, name + ".json")
    emit.write(case, path)
    run = subprocess.run([aerie, "check", "--json", path], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 5):
        sys.exit(f"{name}: {run.stderr}")
    rules = sorted({v["rule"] for v in json.loads(run.stdout)[0]["violations"]})
    print(f"{name}: {' '.join(rules) or 'no rule is violated'}")
    if (rule in rules) if rule else not rules:
        return
    sys.exit(f"{name}: expected {rule or 'nothing'}")


def main(aerie, *wheels):
    own, plan = classes_of(wheels)
    for c, (package, fields) in RECORDED.items():
        print(f"{package} {c}: {len(own[c])} fields of its own class" if c in own else f"{package} {c}: recorded fields")
    print("flashinfer plan(): its own arguments" if plan else "flashinfer plan(): recorded arguments")

    def make_one(name, **values):
        return make(own.get(name, RECORDED[name][1]), name, **values)

    with tempfile.TemporaryDirectory() as folder:
        for fault in (False, True):
            say = "-fault" if fault else ""
            check(aerie, folder, "sglang" + say, sglang_step(make_one, fault), "I4" if fault else None)
            check(aerie, folder, "vllm" + say, vllm_step(make_one, fault), "I4" if fault else None)
            check(aerie, folder, "flashinfer" + say, flashinfer_step(plan or PLAN, fault), "I9" if fault else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
