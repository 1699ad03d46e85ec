#!/bin/bash
# A DFlash draft of the bundled model, with random weights: replies equal plain ones, and every view of a draft knows blocks.
. "$(dirname "$0")/kit.sh"

# Matrices take their bytes from the bundled model, each of them made one of four, so that every two are a bf16 of 0.01 to 0.1.
mkdir "$T/draft"
tensors() {
    echo "fc.weight 256 768"; echo "hidden_norm.weight 256"; echo "norm.weight 256"
    for i in 0 1; do
        for m in "q_proj 256 256" "k_proj 128 256" "v_proj 128 256" "o_proj 256 256" "q_norm 64" "k_norm 64"; do echo "layers.$i.self_attn.${m/ /.weight }"; done
        for m in "gate_proj 320 256" "up_proj 320 256" "down_proj 256 320"; do echo "layers.$i.mlp.${m/ /.weight }"; done
        echo "layers.$i.input_layernorm.weight 256"; echo "layers.$i.post_attention_layernorm.weight 256"
    done
}
header=$(tensors | awk '{ n = 2 * $2 * (NF > 2 ? $3 : 1); s = $2 (NF > 2 ? "," $3 : "")
    printf "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%d,%d]}", (NR > 1 ? "," : "{"), $1, s, at, at + n; at += n } END { print "}" }')
{
    # shellcheck disable=SC2059
    printf "$(printf '\\x%02x' $((${#header} & 255)) $((${#header} >> 8)) 0 0 0 0 0 0)"; printf '%s' "$header"
    at=100001
    while read -r _ rows columns; do
        if [ -n "$columns" ]; then
            tail -c +$at models/nestling/target/model.safetensors | head -c $((2 * rows * columns)) | LC_ALL=C tr '\000-\377' '[\074*64][\075*64][\274*64][\275*64]'
            at=$((at + 2 * rows * columns))
        else
            head -c $((2 * rows)) /dev/zero | LC_ALL=C tr '\000' '\077'
        fi
    done < <(tensors)
} >"$T/draft/model.safetensors"
echo '{"architectures":["DFlashDraftModel"],"model_type":"qwen3","hidden_size":256,"intermediate_size":320,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"vocab_size":4096,"rms_norm_eps":1e-6,"rope_theta":1e6,
    "max_position_embeddings":4096,"block_size":8,"num_target_layers":8,"hidden_act":"silu","tie_word_embeddings":false,
    "dflash_config":{"mask_token_id":3,"target_layer_ids":[1,4,7]}}' >"$T/draft/config.json"
block=(--draft "$T/draft" -p draft.shape=7-2-12)
has() { grep -qE -- "$1" "$T/out"; }

run run --draft "$T/draft" -p max_tokens=40 "Tell me a story about a fox."; cp "$T/out" "$T/drafted"
run run -p spec=off -p max_tokens=40 "Tell me a story about a fox."; cmp -s "$T/out" "$T/drafted" && [ -s "$T/out" ]
result "a reply drafted in blocks is the plain one" $?
lines "Tell me a story about a fox." /tree "/plan block" /why /accept /check /memory | feed --plain "${block[@]}" -p max_tokens=20
[ $rc = 0 ] && has '^block: 1 request\(s\), 8 row\(s\)'; result "/plan shows the block pass" $?
has 'tokens [0-9]+ 3 3 3 3 3 3 3$'; result "its rows are the pending token and masks" $?
[ "$(grep -cE '^ +row [0-7] +keys \[0, [0-9]+\) \+ slots [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+  writes draft slot' "$T/out")" = 8 ]
result "every row sees the whole block" $?
has 'draft-1 ' || has 'rejected'; result "/tree and /why speak of its nodes" $?
lines "What is a page table?" "And a window?" | feed --plain "${block[@]}" -p max_tokens=24 -p temperature=0.8
[ $rc = 0 ]; run replay last --check; [ $rc = 0 ] && has '^equal'; result "a sampled session replays bit for bit" $?
run show last; has '^draft +.*/draft  [0-9a-f]{12}$' && [ "$(sql 'select count(*) from step where draft_digest<>0')" -gt 20 ]
result "the log names the draft and keeps its trees" $?
lines /phase "Tell me a story about a hen." /phase /phase /tree /phase /phase /rstep /phase /finish |
    feed --plain "${block[@]}" -p max_tokens=16
[ $rc = 0 ]; result "the debugger steps through its phases" $?
run --draft "$T/draft" --eagle-capture 1,2 --plain; grep -q "2 captured states (given by the user), but fc.weight takes 3" "$T/err" "$T/out"
result "a wrong list of layers is named" $?
plan
