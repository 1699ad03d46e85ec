#!/bin/bash
# The bundled block drafter: replies equal plain ones, drafts are accepted, and every view of a draft knows blocks.
. "$(dirname "$0")/kit.sh"

block=(--draft models/nestling/block -p draft.shape=7-2-12)
has() { grep -qE -- "$1" "$T/out"; }

run run -m models/nestling/target "${block[@]}" -p max_tokens=80 "Tell me a story about a fox."; cp "$T/out" "$T/drafted"
run run -p spec=off -p max_tokens=80 "Tell me a story about a fox."; cmp -s "$T/out" "$T/drafted" && [ -s "$T/out" ]
result "a reply drafted in blocks is the plain one" $?
run doctor -m models/nestling/target; has 'draft +models/nestling/draft:' && has 'not used: models/nestling/block'
result "the EAGLE3 head beside the model stays the default" $?
lines /draft "/draft block" "Tell me a story about a fox." "What is a page table?" /accept /draft | feed --plain -p draft.shape=7-1-8
[ $rc = 0 ] && has '^\* draft +eagle3' && has '^  block +dflash' && has '^\* block +dflash'; result "/draft lists and loads the block drafter" $?
mal=$(sed -nE 's/^MAL ([0-9.]+) = .*/\1/p' "$T/out")
awk -v m="$mal" 'BEGIN { exit !(m > 1.5) }'; result "more than 1.5 tokens a cycle: $mal" $?
lines "Tell me a story about a fox." /tree "/plan block" /why /accept /check /memory | feed --plain "${block[@]}" -p max_tokens=20
[ $rc = 0 ] && has '^block: 1 request\(s\), 8 row\(s\)'; result "/plan shows the block pass" $?
has 'tokens [0-9]+ 4 4 4 4 4 4 4$'; result "its rows are the pending token and masks" $?
[ "$(grep -cE '^ +row [0-7] +keys \[0, [0-9]+\) \+ slots [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+  writes draft slot' "$T/out")" = 8 ]
result "every row sees the whole block" $?
has 'draft-1 ' || has 'rejected'; result "/tree and /why speak of its nodes" $?
lines "Tell me a story about a fox." "/why 1.2.3" | feed --plain "${block[@]}" -p draft.shape=7-1-8 -p max_tokens=30
has 'row 3 of the block, which sees masks, not the 2 guesses before it'; result "/why knows that a row of a block sees masks" $?
lines "What is a page table?" "And a window?" | feed --plain "${block[@]}" -p max_tokens=24 -p temperature=0.8
[ $rc = 0 ]; run replay last --check; [ $rc = 0 ] && has '^equal'; result "a sampled session replays bit for bit" $?
run show last; has '^draft +.*/block  [0-9a-f]{12}$' && [ "$(sql 'select count(*) from step where draft_digest<>0')" -gt 3 ]
result "the log names the draft and keeps its trees" $?
lines /phase "Tell me a story about a hen." /phase /phase /tree /phase /phase /rstep /phase /finish |
    feed --plain "${block[@]}" -p max_tokens=16
[ $rc = 0 ]; result "the debugger steps through its phases" $?
run --draft models/nestling/block --eagle-capture 1,2 --plain; grep -q "2 captured states (given by the user), but fc.weight takes 4" "$T/err" "$T/out"
result "a wrong list of layers is named" $?
plan
