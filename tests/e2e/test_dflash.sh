#!/bin/bash
# A DFlash draft of the bundled model, with random weights: replies equal plain ones, and every view of a draft knows blocks.
. "$(dirname "$0")/kit.sh"

python3 - "$T/draft" <<'PY' || exit 2
import json, os, random, struct, sys
H, F, heads, kv, d, ids = 256, 320, 4, 2, 64, [1, 4, 7]
r, w = random.Random(3), {"fc.weight": (H, len(ids) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
for i in range(2):
    a, m = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
    w |= {a + "q_proj.weight": (heads * d, H), a + "k_proj.weight": (kv * d, H), a + "v_proj.weight": (kv * d, H),
          a + "o_proj.weight": (H, heads * d), a + "q_norm.weight": (d,), a + "k_norm.weight": (d,),
          m + "gate_proj.weight": (F, H), m + "up_proj.weight": (F, H), m + "down_proj.weight": (H, F),
          f"layers.{i}.input_layernorm.weight": (H,), f"layers.{i}.post_attention_layernorm.weight": (H,)}
data, header = b"", {}
for name, shape in w.items():
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    one = struct.pack("<H", 0x3f80) * n if len(shape) == 1 else b"".join(
        struct.pack("<f", r.gauss(0, shape[1] ** -0.5))[2:] for _ in range(n))
    header[name] = dict(dtype="BF16", shape=list(shape), data_offsets=[len(data), len(data) + len(one)])
    data += one
text = json.dumps(header).encode()
os.mkdir(sys.argv[1])
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump(dict(
    architectures=["DFlashDraftModel"], model_type="qwen3", hidden_size=H, intermediate_size=F, num_hidden_layers=2,
    num_attention_heads=heads, num_key_value_heads=kv, head_dim=d, vocab_size=4096, rms_norm_eps=1e-6, rope_theta=1e6,
    max_position_embeddings=4096, block_size=8, num_target_layers=8, hidden_act="silu", tie_word_embeddings=False,
    dflash_config=dict(mask_token_id=3, target_layer_ids=ids)), open(sys.argv[1] + "/config.json", "w"))
PY
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
