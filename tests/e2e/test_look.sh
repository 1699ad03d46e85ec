#!/bin/bash
# /why, /tokens, /top, /layers, /attn and the groupings of /accept, in lines and in JSON: on the bundled
# model, and on a reference checkpoint with sinks and experts.
. "$(dirname "$0")/kit.sh"
# Feeds the lines to a chat; leaves $T/out and $T/err.
chat() { # options -- lines
    local o=(); while [ "$1" != -- ]; do o+=("$1"); shift; done; shift
    printf '%s\n' "$@" | timeout "${TEST_LIMIT:-250}" "$AERIE" --plain --seed 1 "${o[@]}" >"$T/out" 2>"$T/err"
}
fox="Tell me a story about a fox."
wide=("/set draft.topk 3" "/set draft.nodes 12" "/set max_tokens 90")

# ---- /why ----
chat -- "${wide[@]}" "Tell me a story about a dog." /why
like '^WHY  step 1\.[0-9]+  node [0-9]+ ".*" at [0-9]+  rejected$'; result "/why shows the newest rejection" $?
like '^target   p 0\.[0-9]+ \(p/q [0-9.]+\); it chose ".*", p 0\.[0-9]+: margin [0-9.]+ nats'; result "with what the target chose, and the margin" $?
has 'rule     greedy: the child that holds the target'"'"'s best token is accepted'; result "with the rule" $?
chat -- "${wide[@]}" "$fox" "/why 1.3.2" "/why 1.3.9" "/why 1.1" "/why 1.3.40" "/why 7.1" "/tree 1.3" "/why x" "/why 4294967297.3"
like '^WHY  step 1\.3  node 2 ".*" at 25  accepted$' && like '^target   p 0\.[0-9]+ .*; rival ".*", p 0\.[0-9]+: margin [0-9.]+ nats'
result "an accepted node has a rival" $?
like '^capture  boundaries 2,4,5 of the target, last at position [0-9]+: 1 level on, where the head reads its own output$'; result "it says how far the captured states are" $?
like '^window   sliding layers see (every token up to|[0-9]+-)' && like '^page     cell [0-9]+ of 16 in page [0-9]+' && like '^pages    '
result "and the window, the page and what pages changed" $?
has "step 1.1 was a prompt chunk: nothing was drafted or judged" err; result "a prompt chunk is refused" $?
has "step 1.3 has no node 40: its nodes are 0 to 11" err; result "so is a node that is not there" $?
has "there is no step 7.1 yet" err && has 'a step is written TURN.STEP, for example 9.214, or STEP of this turn, not "x"' err; result "and a step" $?
has 'not "4294967297.3"' err; result "a turn beyond an int is not another turn" $?
chat --json -- "${wide[@]}" "$fox" "/why 1.3.9"
like '^\{"command":"why","result":\{"turn":1,"step":3,"node":9,"parent":[0-9]+,"depth":[0-9]+,"position":28,.*"fate":"accepted","q":[0-9.e-]+,"p":[0-9.e-]+,"rank":[0-9]+,"guesses":[0-9]+,"rule":"greedy","u":null,"first_wrong":null,"choice":\{"token":[0-9]+,"text":".*","p":[0-9.e-]+\},"rival":'
result "the same in JSON" $?
chat -- "${wide[@]}" "/set temperature 0.9" "$fox" /why "/set spec off" Hello. "/why 2.3"
like '^rule     sampled: the target drew with u 0\.[0-9]{4}; '; result "a sampled one shows the uniform" $?
like '^WHY  step 2\.3  the root ' && like '^target   after it the target chose '; result "a step that drafted nothing shows what was chosen" $?
chat -- "${wide[@]}" "$fox" "/tree 1.3" "/why 1.3.6" # its parent was rejected
if like '^rule     a node counts only below accepted ones; the first that was not is node [0-9]+ '; then r=0; else r=1; fi
result "a node below a rejected one names the first wrong ancestor" $r

chat -- "${wide[@]}" Thanks. /tree "/why 1.2.6" "/why 1.2.8"
like '^WHY  step 1\.2  node 6 "<end_of_turn>" at [0-9]+  accepted$' && like '^WHY  step 1\.2  node 8 ".*" at [0-9]+  not judged: the reply ended above it$'
result "nodes below the end of a reply were not judged" $?

# ---- /tokens ----
chat -- "${wide[@]}" "$fox" /tokens "/tokens 10 30" "/tokens 30 10" "/tokens 9999"
[ "$(grep -cE '^ +[0-9]+ +[0-9]+ .* 1\.[0-9]+ (accepted [1-5]|bonus|target)' "$T/out")" -ge 32 ] ; result "/tokens lists steps and fates" $?
like '^ +10 +[0-9]+ ".*" +prompt +1 +(-|[0-9]+) +1'; result "prompt tokens with their pages" $?
has 'the last position is a number from 30 to' err && has 'the first position is a number from 0 to' err; result "wrong ranges are refused" $?
sed -n 's/^ *\([0-9]*\) .* 1\.[0-9]* *\(accepted\|bonus\|target\).*/\1/p' "$T/out" >"$T/pos" # each position once in each list
[ "$(sort -n "$T/pos" | uniq -c | awk '$1 > 2' | wc -l)" = 0 ]; result "no position is listed twice" $?
chat --json -- "${wide[@]}" "$fox" "/tokens 18 21"
like '"result":\[\{"position":18,"token":[0-9]+,"text":"\\n","fate":"prompt","full":2,"swa":[0-9nul]+,"draft":2\},\{"position":19,"token":[0-9]+,"text":"In","fate":"target","turn":1,"step":1,"depth":0,"p":0\.[0-9]+,"rival":[0-9]+,"rival_p":0\.[0-9]+,'
result "the same in JSON" $?

# ---- /steps ----
chat -- "${wide[@]}" "$fox" /steps "/steps 2" "/steps 0" "/at 1.3" /steps
[ "$(grep -cE '^ +1\.[0-9]+  (prefill|spec   ) +[0-9]+ +([0-9]+/[0-9]+ +)?[0-9]+\.[0-9] ".*"$' "$T/out")" -ge 16 ]; result "/steps has a line a step" $?
like '^STEPS  the latest 2 of [0-9]+, of this session$' && like '^STEPS  3 of 3, up to step 1\.3 of this session' && has 'the number of steps is a number from 1 to 1000' err
result "the latest ones, up to the step of /at" $?
chat --json -- "${wide[@]}" "$fox" "/steps 1"; like '^\{"command":"steps","result":\[\{"turn":1,"step":[0-9]+,"kind":"spec","position":[0-9]+,"accepted":[0-9]+,"drafted":[0-9]+,"us_draft":[0-9]+,"us_verify":[0-9]+,"us_commit":[0-9]+,"tokens":\[\{"token":[0-9]+,"text":'
result "the same in JSON" $?

# ---- /top, /layers, /attn ----
chat -- "${wide[@]}" "$fox" /top "/top 0" "/top 1.3.5" /layers "/layers 1.3.2" "/attn 1.4 3" "/attn 1.15.1 5" "/layers 1.99" "/layers 1.3.30" "/attn 99" "/attn" /stats
[ "$(grep -c '^TOP  what follows step 1\.' "$T/out")" = 3 ] && like '^ 1 ".*" +0\.[0-9]{4} +".*" +0\.[0-9]{4}  (accepted|rejected)'
result "/top shows target and draft beside each other" $?
[ "$(grep -c 'the logits are those recorded$' "$T/out")" = 7 ] && ! has "differ from those recorded"; result "steps computed again have the recorded logits" $?
[ "$(grep -cE '^    [0-7] (sliding|full   ) +[0-9.]+ +[0-9.]+ +[0-9.]+ ' "$T/out")" = 16 ]; result "/layers has a line a layer" $?
like '^ATTN  step 1\.4  row [0-9]+ of 12  ".*" at [0-9]+  layer 3, full, 4 heads over 2 of K and V$'; result "/attn names row, layer and heads" $?
[ "$(grep -cE '^sum of p v over these keys reproduces the layer.s output to [1-9]e-0[6-9] of its largest value$' "$T/out")" = 2 ]
result "its weights reproduce the output" $?
has "there is no step 1.99 yet: 1." err && has "step 1.3 has no row 30: its rows are 0 to 11" err &&
    has 'the layer is a number from 0 to 7, not "99"' err && has "/attn takes a step (and a row) and a layer" err
result "what is not there is refused in one line" $?
chat --json -- "${wide[@]}" "$fox" "/top 1.3.5" "/layers 1.3" "/attn 1.3 7" "/bug 24617 on" "/top 1.3"
like '^\{"top":\{"turn":1,"step":3,"row":5,.*"again":true,"shared_tokens":[0-9]+,"same_logits":true,"target":\[\{"token":[0-9]+,"text":".*","p":0\.[0-9]+\},.*"draft":\[\{"token":' &&
    [ "$(grep -o '"layer":[0-9]*,"kind"' "$T/out" | wc -l)" = 9 ] && like '"heads":\[\{"tree":[0-9.e-]+,"within":[0-9.e-]+,"beyond":[0-9.e-]+,"sink":0,'
result "the same in JSON" $?
like '^\{"top":.*"same_logits":true,.*,"refused":"I4 verify swa table row ' && [ "$(grep -c '"refused"' "$T/out")" = 1 ]; result "with the rule that a fault would violate" $?
chat -- "${wide[@]}" "$fox" "/bug 24617 on" "/layers 1.3" "/bug 24617 off" "/layers 1.3" "/set logit_bias 5:1,4096:1"
[ "$(grep -cE '^    [0-7] (sliding|full   ) ' "$T/out")" = 16 ] && [ "$(grep -c 'the logits are those recorded$' "$T/out")" = 2 ] &&
    has 'this is the pass without the historical faults that are on; with them the checker refuses it:' && [ "$(grep -c '^I4 verify swa table row ' "$T/out")" = 1 ]
result "with a fault on, the layers without it, then the rule" $?
like '^aerie: logit_bias: 4096 is no token: the vocabulary has 4096 tokens, 0 to 4095$' err; result "a bias of no token is refused" $?
# a session with probes has the steps of one without
chat -- "${wide[@]}" "$fox" "What is a page table?"; "$AERIE" show last --json | grep -o '"logit_digest":"[0-9a-f]*"\|"page_digest":"[0-9a-f]*"' >"$T/a"
chat -- "${wide[@]}" "$fox" /layers "/top 1.2" "/attn 1.5 3" "What is a page table?"; "$AERIE" show last --json | grep -o '"logit_digest":"[0-9a-f]*"\|"page_digest":"[0-9a-f]*"' >"$T/b"
[ -s "$T/a" ] && cmp -s "$T/a" "$T/b" && timeout "${TEST_LIMIT:-250}" "$AERIE" replay last --check >"$T/out" 2>"$T/err"; result "probes leave no trace in the session's digests, and it replays" $?
chat -- /phase "$fox" /phase /phase /top /phase "/layers 1.1" /top /tree /finish
has "TOP  what follows step 1.1" && has "LAYERS  step 1.1" && has "will be accepted" && has "TOP  what follows step 1.2" && like '^TREE +step 1\.2 +drafted 5 +accepted [1-5]' && has "no logits are recorded to compare with" && ! has "is computed again when"; result "a paused turn is looked into, too" $?

# steps of an earlier process come from the log
graphs() { sed -n '/^GAUGES/,/^at step/p' "$T/out" | grep -E '^(full|swa|draft|tokens/s|MAL) ' >"$1"; }
chat -- "${wide[@]}" "$fox" "What is a page table?" "/layers 1.3" "/top 2.2" "/at 1.9" /gauges; graphs "$T/gauges"; grep -E '^(LAYERS|TOP|  ?[ 0-9]|layer)' "$T/out" >"$T/a"
chat -c -- "/layers 1.3" "/top 2.2" "/why 1.3" "/accept kind" "/accept turn" "/at 1.9" /gauges; grep -E '^(LAYERS|TOP|  ?[ 0-9]|layer)' "$T/out" >"$T/b"
head -n "$(wc -l <"$T/a")" "$T/b" | cmp -s "$T/a" - && [ "$(grep -c 'the logits are those recorded$' "$T/out")" = 2 ]
result "a resumed session computes its logged steps again, with the same numbers" $?
like '^ACCEPT +by turn, up to step 2\.[0-9]+ of this session, from the log$' && like '^ +words +[1-9]' && like '^WHY  step 1\.3 '; result "and counts and explains them" $?
graphs "$T/logged"; [ "$(wc -l <"$T/logged")" = 8 ] && cmp -s "$T/gauges" "$T/logged" && like '^at step 1\.9, over 9 steps up to step 1\.9 of this session, from the log'
result "/gauges draws pools, speed and acceptance up to a past step, from memory as from the log" $?

# ---- /accept ----
chat -- "${wide[@]}" "$fox" "Write a table with the numbers from 1 to 20." "/accept window" "/accept page" "/accept kind" "/accept turn" "/accept colour"
like '^ +-64 to -17 +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+ ' && has "less the window of 64"; result "/accept window" $?
[ "$(grep -c '^rate = accepted/drafted; MAL = 1 + accepted/cycles$' "$T/out")" = 3 ]; result "tables name their denominators" $?
like '^ +digits +[0-9]+ +[0-9]+ +0\.[0-9]+ ' && has "rate = accepted/drafted, of drafted tokens of the kind"; result "/accept kind" $?
has 'the grouping is depth, turn, context, window, page, kind or drafter, not "colour"' err; result "another grouping is refused" $?
# the groupings add up to the same sums
sums() { awk -v by="$1" '$1 == "ACCEPT" {on = $3 == by ","} on && NF > 5 && $NF ~ /^[0-9.]+$/ {c = 0; for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+$/ && $(i + 1) ~ /^[0-9]+$/ && $(i + 2) ~ /^[0-9]+$/ && $(i + 3) ~ /\./) c = i; if (c) {a += $c; d += $(c + 1); e += $(c + 2)}} END {print a, d, e}' "$T/out"; }
all=$(sums turn); [ "$all" != "0 0 0" ] && [ "$(sums window)" = "$all" ] && [ "$(sums page)" = "$all" ]; result "all groupings count the same cycles ($all)" $?
chat -- "${wide[@]}" Hello. "Who are you?" "/accept turn" "/accept kind"
kinds=$(awk '$1 == "ACCEPT" {on = /by kind/} on && NF == 7 && $2 ~ /^[0-9]+$/ {d += $2; e += $3; b += $6; m += $5} END {print d, e, e + b == m}' "$T/out")
[ "$kinds" = "$(sums turn | cut -d' ' -f2-) 1" ]; result "kinds add up to the same tokens, each accepted or a bonus ($kinds)" $?
chat --json -- "${wide[@]}" "$fox" "/accept kind" "/accept window"
like '"result":\[\{"kind":"code","drafted":0,' && like '"from":null,"to":-257|"from":-64,"to":-17'; result "in JSON, too" $?

# ---- a model with sinks and experts ----
mkdir "$T/model"; cp tests/golden/gptoss-a/config.json tests/golden/gptoss-a/model.safetensors "$T/model"
{
    printf '{"added_tokens": [], "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel"},\n'
    printf ' "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},\n "model": {"type": "BPE", "vocab": {'
    i=3; for c in a b c d e f g h i j k l m n o p q r s t u v w x y z; do printf '%s"%s": %d' "${sep-}" $c $i; sep=', '; i=$((i + 1)); done
    printf '}, "merges": []}}\n'
} >"$T/model/tokenizer.json"
chat -m "$T/model" --draft tests/golden/eagle3-gptoss-a --raw -- "/set max_tokens 12" "/set draft.topk 2" "/set draft.nodes 6" hello "/layers 1.3" "/attn 1.3 1"
like '^layer kind +norm +\+attn +\+mlp +tree in W +old sink +1st +attention +experts$' &&
    [ "$(grep -cE '^    [0-5] (sliding|full   ) .*  [0-7],[0-7]$' "$T/out")" = 6 ]
result "layers show sinks and experts" $?
like '^sum of p v over these keys reproduces' && has "the logits are those recorded"; result "and attention with sinks adds up" $?
cp tests/golden/llama-b/config.json tests/golden/llama-b/model.safetensors "$T/model"
chat -m "$T/model" --raw -- "/set max_tokens 3" hello /layers; has "in W: all that are committed, for no layer has a window; 1st: the first token" && ! has "keys back"; result "without a window none is spoken of" $?

# ---- a backend without an engine that runs steps ----
"$BUILD/tests/mock_aerie" --help >/dev/null 2>&1 && {
    printf '%s\n' hello /layers /why /top "/attn 1" /tokens "/accept kind" | timeout "${TEST_LIMIT:-250}" "$BUILD/tests/mock_aerie" --plain -n >"$T/out" 2>"$T/err"
    has "/layers: this backend cannot run a step with taps" err && has "/why: this backend does not tell its draft trees" err && has "/tokens: this backend" err
    result "a backend that lacks it says so" $?
}
# ---- on the full screen, small and large ----
clean() { M kill-server; }
shows() { screen >"$T/out"; like "$1"; } # a pattern
line() { text "$1"; key Enter; }
for size in "80 24" "200 60"; do
    command -v tmux >/dev/null || break
    M kill-server; until_ok no_server
    M new-session -d -x ${size% *} -y ${size#* } "exec $AERIE --seed 1"
    wait_for '^ ctx ' && line "/set draft.topk 3" && wait_for '^ *draft.topk = 3' && line "$fox" && wait_for 'felt alone again'
    result "the story comes to its end, on $size" $?
    key F7; wait_for 'WHY  step 1\.[0-9]+  node [0-9]+ "'; result "F7 shows why, on $size" $?
    key F7; line "/at 1.4"; wait_for 'AT 1\.4'; key F7; wait_for 'WHY  step 1\.4  node'; result "the pane follows the address, on $size" $?
    key F7; line /top; wait_for 'TOP  what follows step 1\.4'; result "so does /top, on $size" $?
    line "/layers 1.4"; wait_for '^ +7 full ' && wait_for '1st: the'; result "/layers fits, on $size" $?
    line /bye
done

plan
