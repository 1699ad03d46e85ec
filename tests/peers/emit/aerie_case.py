"""Writes cases for `aerie check` (history/pack/CASE.md) from the attention metadata of SGLang, vLLM and FlashInfer.

Functions for tests of these engines; none of them imports an engine. Arguments are the engine's own objects, or anything
with the same attributes; tensors are read by tolist(). For pytest:

    from aerie_case import aerie_case            # a fixture: hands out a writer, keeps the cases of failed tests

    def test_verify(aerie_case):
        aerie_case(sglang(metadata, batch, mode="verify", draft_tokens=4, window_left=3))
        ...

The files go to the folder that AERIE_CASES names (default: cases), one for each call, named by test and call.
"""
import json
import os
import re

try:
    import pytest
except ImportError:  # the functions need no pytest
    pytest = None


def ints(values):
    """A list of Python's integers of a tensor, an array or a list, nested or not; None stays."""
    if values is None:
        return None
    if hasattr(values, "tolist"):
        values = values.tolist()
    return [ints(v) if isinstance(v, (list, tuple)) or hasattr(v, "tolist") else int(v) for v in values]


def without_none(case):
    return {k: v for k, v in case.items() if v is not None}


def requests_of(prefix, q_len, kv_len=None):
    kv_len = kv_len or [None] * len(prefix)
    return [without_none({"prefix_len": p, "q_len": q, "kv_len": kv}) for p, q, kv in zip(prefix, q_len, kv_len)]


def starts_to_lengths(starts):
    return [b - a for a, b in zip(starts, starts[1:])]


def sglang(metadata, req_to_token, req_pool_indices, mode="decode", page_size=1, window_left=-1, full_to_swa=None,
           out_cache_loc=None, swa_out_cache_loc=None, custom_mask=None, draft_tokens=None, positions=None,
           version="", backend="fa3"):
    """A step of SGLang: its FlashAttentionMetadata (cache_seqlens_int32, cu_seqlens_q, page_table, swa_page_table) and the
    batch that it was made for. In verification with a tree (custom_mask given) cache_seqlens excludes the nodes, whose
    slots lie behind the prefix in req_to_token; without one it includes them. Tables are those of pages; at page size 1 a page is a slot.
    """
    q_len = starts_to_lengths(ints(metadata.cu_seqlens_q))
    lengths = ints(metadata.cache_seqlens_int32)
    tree = custom_mask is not None
    prefix = lengths if tree else [n - q for n, q in zip(lengths, q_len)]
    if draft_tokens is not None and any(q != draft_tokens for q in q_len):
        raise ValueError(f"{q_len} rows, but {draft_tokens} draft tokens")
    rows = [ints(req_to_token[i]) for i in ints(req_pool_indices)]
    held = [row[:p + q] for row, p, q in zip(rows, prefix, q_len)]
    write = ints(out_cache_loc)
    groups = [without_none({"name": "full", "space": "full", "unit": "slot", "page_size": page_size, "tables": held,
                            "write": write})]
    if page_size > 1 or not tree:
        table = ints(metadata.page_table)
        pages = [t[:-(-(p + q) // page_size)] for t, p, q in zip(table, prefix, q_len)]
        if page_size > 1:
            groups[0].update(unit="page", tables=pages)
    swa = getattr(metadata, "swa_page_table", None)
    if window_left >= 0:
        group = {"name": "swa", "space": "swa", "window": window_left + 1, "page_size": page_size,
                 "unit": "page" if page_size > 1 else "slot", "write": ints(swa_out_cache_loc)}
        if swa is not None:
            group["tables"] = [t[:-(-(p + q) // page_size)] for t, p, q in zip(ints(swa), prefix, q_len)]
        else:
            to_swa = ints(full_to_swa)
            group["tables"] = [[to_swa[s] for s in row] for row in held]
            group["unit"] = "slot"
        groups.append(without_none(group))
    return without_none({
        "aerie_case": 1, "engine": "sglang", "version": version, "backend": backend, "mode": mode,
        "requests": requests_of(prefix, q_len), "row_starts": ints(metadata.cu_seqlens_q), "positions": ints(positions),
        "mask": ints(custom_mask), "groups": groups, "full_to_swa": ints(full_to_swa)})


def vllm(metadata, groups, mode="decode", positions=None, version="", backend=""):
    """A step of vLLM: groups is a list of (name, metadata of the group, spec) in the order of kv_cache_groups; metadata has
    query_start_loc, seq_lens, block_table_tensor and slot_mapping (CommonAttentionMetadata), spec block_size and, for sliding
    layers, sliding_window. metadata is that of any group: lengths are the same. A name that ends with "draft" is a drafter's.
    """
    starts = ints(metadata.query_start_loc)
    q_len, kv_len = starts_to_lengths(starts), ints(metadata.seq_lens)
    prefix = [kv - q for kv, q in zip(kv_len, q_len)]
    out = []
    for name, m, spec in groups:
        block, window = int(spec.block_size), getattr(spec, "sliding_window", None)
        table = [t[:-(-kv // block)] for t, kv in zip(ints(m.block_table_tensor), kv_len)]
        out.append({"name": name, "space": "draft" if name.endswith("draft") else "swa" if window else "full",
                    "page_size": block, "window": int(window or 0), "unit": "page", "null": 0, "tables": table,
                    "write": ints(m.slot_mapping)[:starts[-1]]})
    return without_none({
        "aerie_case": 1, "engine": "vllm", "version": version, "backend": backend, "mode": mode,
        "requests": requests_of(prefix, q_len, kv_len), "row_starts": starts, "positions": ints(positions), "groups": out})


def flashinfer(qo_indptr, kv_indptr, kv_indices, last_page_len, page_size, window_left=-1, custom_mask=None, causal=True,
               space="full", write=None, version="", mode=None):
    """The arguments of plan() of BatchPrefillWithPagedKVCacheWrapper, or of BatchDecodeWithPagedKVCacheWrapper with
    qo_indptr None. Only causal attention, or a custom mask, can be judged."""
    kv_indptr, pages, last = ints(kv_indptr), ints(kv_indices), ints(last_page_len)
    if not causal and custom_mask is None:
        raise ValueError("attention that is not causal has no window and no order of rows to check")
    n = len(kv_indptr) - 1
    starts = list(range(n + 1)) if qo_indptr is None else ints(qo_indptr)
    q_len = starts_to_lengths(starts)
    kv_len = [max(0, (b - a - 1) * page_size + k) for a, b, k in zip(kv_indptr, kv_indptr[1:], last)]
    group = {"name": space, "space": space, "page_size": page_size, "unit": "page", "null": -1,
             "window": window_left + 1 if window_left >= 0 else 0,
             "tables": [pages[a:b] for a, b in zip(kv_indptr, kv_indptr[1:])], "write": ints(write)}
    if mode is None:
        mode = "decode" if qo_indptr is None else "extend" if custom_mask is None else "verify"
    return without_none({
        "aerie_case": 1, "engine": "flashinfer", "version": version, "mode": mode,
        "requests": requests_of([kv - q for kv, q in zip(kv_len, q_len)], q_len, kv_len), "row_starts": starts,
        "mask": ints(custom_mask), "groups": [without_none(group)]})


def write(case, path):
    with open(path, "w", encoding="ascii") as f:
        json.dump(case, f)
        f.write("\n")


if pytest:
    @pytest.fixture
    def aerie_case(request):
        """Keeps each case that the test hands it in a file."""
        folder, count = os.environ.get("AERIE_CASES", "cases"), 0
        os.makedirs(folder, exist_ok=True)

        def keep(case):
            nonlocal count
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", request.node.name)
            path = os.path.join(folder, f"{name}-{count}.json")
            write(case, path)
            count += 1
            return path

        return keep
