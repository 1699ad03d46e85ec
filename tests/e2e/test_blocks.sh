#!/bin/bash
# The bundled block drafter: replies equal plain ones, drafts are accepted, and every view of a draft knows blocks. The same
# of a P-EAGLE head, which is the bundled EAGLE3 head with a mask that was not trained.
. "$(dirname "$0")/kit.sh"

block=(--draft models/nestling/block -p draft.shape=7-2-12)

run run -m models/nestling/target "${block[@]}" -p max_tokens=80 "Tell me a story about a fox."; cp "$T/out" "$T/drafted"
run run -p spec=off -p max_tokens=80 "Tell me a story about a fox."; cmp -s "$T/out" "$T/drafted" && [ -s "$T/out" ]
result "a reply drafted in blocks is the plain one" $?
run doctor -m models/nestling/target; like 'draft +models/nestling/draft:' && like 'not used: models/nestling/block'
result "the EAGLE3 head beside the model stays the default" $?
lines /draft "/draft block" "Tell me a story about a fox." "What is a page table?" /accept /draft | feed --plain -p draft.shape=7-1-8
[ $rc = 0 ] && like '^\* draft +eagle3' && like '^  block +dflash' && like '^\* block +dflash'; result "/draft lists and loads the block drafter" $?
mal=$(sed -nE 's/^MAL ([0-9.]+) = .*/\1/p' "$T/out")
awk -v m="$mal" 'BEGIN { exit !(m > 1.5) }'; result "more than 1.5 tokens a cycle: $mal" $?
lines "Tell me a story about a hen." /tree "/plan block" /why /accept /check /memory | feed --plain "${block[@]}" -p max_tokens=20
[ $rc = 0 ] && like '^block: 1 request\(s\), 8 row\(s\)'; result "/plan shows the block pass" $?
like 'tokens [0-9]+ 4 4 4 4 4 4 4$'; result "its rows are the pending token and masks" $?
[ "$(grep -cE '^ +row [0-7] +keys \[0, [0-9]+\) \+ slots [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+  writes draft slot' "$T/out")" = 8 ]
result "every row sees the whole block" $?
like 'draft-1 ' || like 'rejected'; result "/tree and /why speak of its nodes" $?
lines "Tell me a story about a fox." "/why 1.2.3" | feed --plain "${block[@]}" -p draft.shape=7-1-8 -p max_tokens=30
like 'row 3 of the block, which sees masks, not the 2 guesses before it'; result "/why knows that a row of a block sees masks" $?
lines "What is a page table?" "And a window?" | feed --plain "${block[@]}" -p max_tokens=24 -p temperature=0.8
[ $rc = 0 ]; run replay last --check; [ $rc = 0 ] && like '^equal'; result "a sampled session replays bit for bit" $?
run show last; like '^draft +.*/block  [0-9a-f]{12}$' && [ "$(sql 'select count(*) from step where draft_digest<>0')" -gt 3 ]
result "the log names the draft and keeps its trees" $?
lines /phase "Tell me a story about a hen." /phase /phase /tree /phase /phase /rstep /phase /finish |
    feed --plain "${block[@]}" -p max_tokens=16
[ $rc = 0 ]; result "the debugger steps through its phases" $?
run --draft models/nestling/block --eagle-capture 1,2 --plain; grep -q "2 captured states (given by the user), but fc.weight takes 4" "$T/err" "$T/out"
result "a wrong list of layers is named" $?

# a second file with mask_hidden beside the head's own
head=$T/parallel one=model-00001-of-00002.safetensors two=model-00002-of-00002.safetensors
mkdir "$head"; cp models/nestling/draft/model.safetensors "$head/$one"
json='{"mask_hidden":{"dtype":"BF16","shape":[1,768],"data_offsets":[0,1536]}}'
{ printf '%b\0\0\0\0\0\0\0%s' "\\x$(printf %02x ${#json})" "$json"; tail -c 1536 models/nestling/draft/model.safetensors; } >"$head/$two"
names=$(head -c 4000 "$head/$one" | grep -aoE '"[a-z0-9_.]+":\{"dtype"' | sed "s/:.*/:\"$one\",/")
printf '{"weight_map":{%s"mask_hidden":"%s"}}' "$names" "$two" >"$head/model.safetensors.index.json"
sed 's/"vocab_size": 4096/"vocab_size": 4096, "ptd_token_id": 4, "num_depths": 6/' models/nestling/draft/config.json >"$head/config.json"
run run --draft "$head" -p draft.shape=5-2-12 -p max_tokens=80 "Tell me a story about a fox."; cmp -s "$T/out" "$T/drafted"
result "a reply drafted with masks is the plain one" $?
lines "Tell me a story about a fox." /tree "/plan block" "/why 1.2.3" /accept /check /draft |
    feed --plain --draft "$head" -p draft.shape=5-2-12 -p max_tokens=20
[ $rc = 0 ] && like 'plans: [0-9]+ checked, 0 violations' && like '^\* parallel +peagle'; result "its plans keep every rule" $?
like '^  tokens( 4)+$' && like '^ +row 0 +keys \[0, [0-9]+\) \+ slots [0-9]+  writes draft slot'; result "a mask sees the masks before it" $?
like 'mask 1 behind it, which sees the masks before, not the guess'; result "/why knows masks" $?
like '^ +1 +[0-9]+ +[1-9]' && like '^ +3 +[1-9]'; result "/accept counts by depth, and depth 1 is accepted" $?
run replay last --check; [ $rc = 0 ] && like '^equal'; result "its session replays bit for bit" $?
plan
