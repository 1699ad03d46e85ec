#!/bin/bash
# Runs of servers compared with runs of this engine and with each other: aerie parity, against servers that play back
# recorded answers of the bundled model, whole and with one thing changed.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
servers='' vllm='' changed='' llama='' listed='' right='' locked='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME KIND [KEY [WORD...]]: sets the variable NAME to the address
    local name=$1 kind=$2 file=$T/$1.log url; shift 2
    rm -f "$file"
    "$BUILD/tests/play_server" "$kind" 300 "$@" >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $!
    url=$(head -n 1 "$file")
    declare -g "$name=$url"
}
lines "What is a KV cache?" >"$T/kv"
lines "What is a page table?" >"$T/pages"
lines "What is a KV cache?" "What is a KV cache?" "What is a KV cache?" >"$T/three"
serve vllm vllm - reset drafts
serve llama llama -
parity() { run parity "$@" --lanes 2; }

# ---- a server against this engine ----
parity "$T/kv" --a "remote:$vllm" --b local
[ $rc = 0 ] && like '^equal: 1 of 1 prompt compared, 0 differ$' && [ ! -s "$T/err" ]
result "a server and the local engine give the same ids" $?
like '^a  remote:http.* \(vLLM 0\.26\.0, nestling\): 21 tokens, 3 of 5 drafted tokens accepted, by its metrics before and after' &&
    like '^b  local: 21 tokens in [0-9]+ steps, [1-9][0-9]* of them drafted'
result "with the proof that both drafted" $?
like 'prefix cache emptied before each part \(/reset_prefix_cache\)' && grep -q '^POST /reset_prefix_cache' "$T/vllm.log"
result "the server's prefix cache is emptied" $?
like '^log probabilities of 21 equal tokens: differ by at most (0\.000[0-9]+|[0-9.]+e-05) \(prompt 1\)$'; result "log probabilities are compared" $?
parity "$T/three" --a local --b "remote:$vllm" --json
[ $rc = 0 ] && [ "$(wc -l <"$T/out")" = 4 ] &&
    tail -n 1 "$T/out" | grep -q '"verdict":"equal","prompts":3,"compared":3,.*"drafting_proved":true,"compared_by_text":0,"prompts_differ":0,"prompts_unknown":0,"log_probabilities":63,.*"metrics":{"drafts":3,"drafted":15,"accepted":9}'
result "as JSON" $?
parity "$T/three" --a "remote:$vllm" --b "remote:$vllm" --control
[ $rc = 0 ] && [ "$(grep -c 'control: 3 replies computed twice, 0 differ from the first time' "$T/out")" = 2 ] && like '^equal: 3 of 3'
result "--control computes both sides twice" $?

# ---- what the comparison must find: each server has one error ----
finds() { # TITLE PATTERN WORD: the server's answer is changed so
    local title=$1 pattern=$2; shift 2
    serve changed vllm - "$@"
    parity "$T/kv" --a "remote:$changed" --b local
    like "$pattern"; result "found: $title" $?
}
finds "one id" 'prompt 1 \(line 1\) differs at position 17, token 1 of the reply: ".*" \(325\) with a, ".*" \(324\) with b; margin [0-9.]+ with a, [0-9.]+ with b$' \
    '"token_ids":[324]=>"token_ids":[325]'
[ $rc = 1 ]; result "a difference is status 1" $?
finds "a log probability shifted by a tenth" '^log probabilities of 21 equal tokens: differ by at most 0\.099' '-0.00011586471373448148=>-0.10011586'
finds "a token dropped" "differs at byte 1 of the reply's text: .*a side reported no ids|differs at position 17, token 1" \
    '"delta":{"content":"The"},"logprobs":{"content":[=>"delta":{"content":""},"logprobs":null,"old":{"content":[' '"token_ids":[324]=>"token_ids":[]'
finds "another prompt" 'prompt 1 \(line 1\) is another prompt on each side: at position 1 id 7 with a, id 4 with b; the replies are equal$' \
    '"prompt_token_ids":[2,4,=>"prompt_token_ids":[2,7,'
finds "a prompt with an id more" 'at position 17 id 9 with a, the end \(17 ids\) with b' '2895,333,204]=>2895,333,204,9]'
finds "no end" '1 reply cut at a limit' 'stop_reason":5=>stop_reason":null' '"finish_reason":"stop"=>"finish_reason":"length"'

# ---- servers that tell less ----
parity "$T/pages" --a "remote:$llama" --b local
[ $rc = 0 ] && like '^equal text: 1 of 1' && like '^1 reply was compared by text only: a side reported no ids$' && like 'ids of 1 prompt were not compared' &&
    like '15 of 15 drafted tokens accepted, as its replies report'
result "a server that tells some ids: the texts are compared, and nothing is claimed about ids" $?
serve listed llama - chat=chat
parity "$T/pages" --a "remote:$listed" --b local
[ $rc = 0 ] && like '^equal: 1 of 1' && ! like 'compared by text' && like 'no side reported|drafted'
result "a server that leaves out the id of the end" $?
like 'prefix cache not emptied: llama-server erases slots only with --slots and --slot-save-path'; result "a cache that cannot be emptied is said" $?
parity "$T/pages" --a "remote:$llama" --b "remote:$vllm"
[ $rc = 1 ] && like "differs at byte 5 of the reply's text: \"page table.*\" with a, \"KV cache.*\" with b; a side reported no ids"
result "two servers" $?

# ---- logged sessions: aerie diff, aerie replay --forced ----
# The recorded servers ran an earlier checkpoint of the bundled model: the same tokens here, by other margins.
id_of() { "$AERIE" logs --json | head -n 1 | sed 's/^{"id":"\([^"]*\)".*/\1/'; }
ask() { run run "$@" "What is a KV cache?"; id=$(id_of); }
diff_() { # TITLE STATUS PATTERN... -- ARGS
    local title=$1 want=$2 ok=0 p patterns=(); shift 2
    while [ "$1" != -- ]; do patterns+=("$1"); shift; done
    shift
    run "$@"
    [ $rc = "$want" ] || { ok=1; echo "# status $rc, expected $want"; }
    for p in "${patterns[@]}"; do like "$p" || { ok=1; echo "# no line matches /$p/"; }; done
    result "$title" $ok
}
ask; here=$id
ask --remote "$vllm"; there=$id
diff_ "diff: the numbers of another checkpoint lie beyond the band, and are called no bug" 1 'differs +nowhere: 1 turn, 21 tokens by position' \
    'verdict +differs by more than the band' 'log p +21 tokens: they differ by at most (0\.000|[0-9.]+e-05)' 'computed by aerie .* \| vLLM 0\.26\.0' \
    'does not report its weights or its precision' 'no rule is violated on the local side' 'noise band: [0-9]+ runs of a with noise of' -- diff "$here" "$there"
diff_ "diff: two servers" 0 'verdict +equal$' 'log p +21 tokens: equal' -- diff "$there" "$there"
diff_ "diff: only the logs" 0 'verdict +equal tokens' -- diff "$there" "$here" --log-only
diff_ "diff --forced" 1 'forced +21 tokens given to the local engine, which would choose another at 0' 'verdict +differs by more than the band' -- diff "$there" --forced
diff_ "replay --forced" 0 'forced +21 tokens given .* another at 0' 'verdict +equal tokens' -- replay "$there" --forced
diff_ "replay --forced --json" 0 '"verdict":"equal tokens","equal":true,.*"given":21,"chosen_otherwise":0,"log_probabilities":21,.*"median":[0-9.e-]+,"sampled":false' -- \
    replay "$there" --forced --json
changed() { serve changed vllm - "$@"; ask --remote "$changed"; }
changed '"token_ids":[324]=>"token_ids":[325]'
diff_ "diff: one id" 1 'first at step 1\.1: logits: token 0 is 324 in a, 325 in b' 'margin +[0-9.]+ for token 324 in a, 10 for token 325 in b; the band is' \
    'verdict +differs by more than the band' 'where the choices part, the margin moved by' -- diff "$here" "$id"
diff_ "diff --forced: one id" 1 'token 0 is 325 in a, 324 would be chosen in b' 'which would choose another at [1-9]' -- diff "$id" --forced
diff_ "replay --forced: one id" 1 'token 0 is 325 in the log, 324 would be chosen here' -- replay "$id" --forced
changed '"token_ids":[324]=>"token_ids":[325]' '-0.00011586471373448148=>-20.5'
diff_ "replay --forced: one id that its own log does not prefer" 1 'first at step 1\.1: tokens: token 0 is 325 in the log, 324 would be chosen here' \
    "- token 0 is not the best by its own log's numbers, either" 'verdict +open' -- replay "$id" --forced
changed '-0.00011586471373448148=>-0.50011586'
diff_ "diff: a log probability shifted" 0 'they differ by at most 0\.499[0-9]* \(turn 1, token 0\)' -- diff "$here" "$id" --log-only
changed '2895,333,204]=>2895,333,7]'
diff_ "diff: another prompt" 1 'first in turn 1: prompt: token 16 is 204 in a, 7 in b' 'verdict +not comparable: the prompts differ' -- diff "$here" "$id"
changed '"token_ids":[324]=>"token_ids":[999999]'
diff_ "--forced: an id of another vocabulary" 2 -- replay "$id" --forced
[ "$(wc -l <"$T/err")" = 1 ] && grep -q '^aerie: turn 1: id 999999 at position 0 of the reply is not in the vocabulary of this model' "$T/err"; result "in one line" $?
run run --remote "$llama" "What is a page table?"; id=$(id_of)
run run "What is a page table?"; here=$(id_of)
diff_ "diff: a server that reports no ids" 0 'nowhere: 1 turn, 0 tokens by position, texts where no ids are known' 'verdict +equal texts' \
    'a side reported no ids of 1 reply: the texts were compared' "prompts' ids are not known on both sides" -- diff "$here" "$id"
diff_ "--forced: no ids to give" 0 'verdict +open' 'so nothing was compared' 'reported no ids of 1 reply: nothing was given to the local engine' 'reported no ids of 1 prompt: rendered by the local chat template' -- replay "$id" --forced
run pack "$id" -o "$T/ids.aerie"
diff_ "diff: a pack that has neither text nor ids of a server" 0 'verdict +open' 'neither ids nor text of 1 reply are known' -- diff "$here" "$T/ids.aerie"
diff_ "--forced: the same" 0 'verdict +open' "the prompts' ids are not known" 'so nothing was compared' -- \
    replay "$T/ids.aerie" --forced -m models/nestling/target
diff_ "replay --check of a server's session" 2 -- replay "$id" --check
grep -q -- 'cannot be computed again here; --forced' "$T/err"; result "is refused" $?
diff_ "replay --goto of a server's session" 2 -- replay "$id" --goto 1.1 --script /dev/null
grep -q -- 'computed by a server, so it cannot be computed again here' "$T/err"; result "is refused, too" $?
diff_ "diff --forced of a local session" 2 -- diff "$here" --forced

# ---- answers ----
lines '{"question": "What is a KV cache?", "answer": "#### 12"}' '{"question": "What is a KV cache?", "answer": "#### 7"}' >"$T/q"
serve right vllm - 'keys=>12 keys'
parity "$T/q" --a "remote:$right" --b "remote:$vllm"
like '^answers: 1 of 2 right with a, 0 with b; 2 differ; 1 right only with a, 0 right only with b$'; result "flips of answers are counted" $?

# ---- keys, and what is refused ----
serve locked vllm sk-secret-9
echo sk-secret-9 >"$T/key"
parity "$T/kv" --a "remote:$locked" --b local; [ $rc = 3 ] && grep -q '^aerie: a: the server answers 401' "$T/err"; result "a key is missing" $?
parity "$T/kv" --a "remote:$locked,api_key_file=$T/key" --b local; [ $rc = 0 ]; result "a key of one side" $?
parity "$T/kv" --a "remote:$locked" --b "remote:$locked" --api-key-file "$T/key"; [ $rc = 0 ]; result "a key of both" $?
grep -raq sk-secret-9 "$T/data" "$T/out" "$T/err"; [ $? != 0 ]; result "the key is shown nowhere" $?
refuse() { # PATTERN ARGS...
    local pattern=$1; shift
    parity "$T/kv" "$@"; [ $rc != 0 ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -qE -- "$pattern" "$T/err"
    result "refused: $*" $?
}
refuse 'a: cannot reach' --a remote:http://127.0.0.1:1
refuse 'no model "other"; it serves nestling' --a "remote:$vllm,model=other"
refuse 'page_size" cannot be changed on a server' --a "remote:$vllm" --a page_size=4
refuse 'vLLM has no setting draft.topk' --a "remote:$vllm,draft.topk=3"
refuse 'is a second' --a "remote:$vllm" --a "remote:$llama"
refuse 'a server or local, not both' --a "remote:$vllm" --a local
refuse 'names no server' --a remote:
refuse 'no side is a server' --control
plan
