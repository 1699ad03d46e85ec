#!/bin/bash
# /pages says which layers own no slots, and whose they read.
. "$(dirname "$0")/kit.sh"
pages() { printf '/pages\n' | "$AERIE" --plain --device cpu --raw "$@" >"$T/out" 2>&1; }

# the reference checkpoint has no tokenizer; two letters are enough here
mkdir "$T/model"
cp tests/golden/gemma4-a/config.json tests/golden/gemma4-a/model.safetensors "$T/model"
cat >"$T/model/tokenizer.json" <<'JSON'
{"added_tokens": [], "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel"},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
JSON
shared='layers 6-10 read layer 4 (swa); layer 11 reads layer 5 (full)'

pages -m "$T/model" && grep -qxF "no slots of their own: $shared" "$T/out"
result "shared-KV layers are listed with their owners" $?
pages -m "$T/model" --draft tests/golden/gemma4-a-assistant &&
    grep -qF "$shared; the draft's full layers read layer 5; the draft's sliding layers read layer 4" "$T/out"
result "so are a frozen-KV draft's" $?
pages -m "$T/model" --json && grep -qF "\"shared_kv\":\"$shared\"" "$T/out"
result "and in JSON" $?
pages && ! grep -q 'no slots' "$T/out"
result "a model whose layers all own their slots has no such line" $?
plan
