#!/bin/bash
# Runs of servers compared with runs of this engine and with each other: aerie parity, against servers that play back
# recorded answers of the bundled model, whole and with one thing changed.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
servers=
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME KIND [KEY [WORD...]]: sets the variable NAME to the address
    local name=$1 kind=$2 file=$T/$1.log url; shift 2
    rm -f "$file"
    "$BUILD/tests/play_server" "$kind" 300 "$@" >"$file" 2>&1 &
    servers="$servers $!"
    until [ -s "$file" ]; do sleep 0.01; done
    url=$(head -n 1 "$file")
    declare -g "$name=$url"
}
has() { grep -qE -- "$1" "$T/out"; }
lines "What is a KV cache?" >"$T/kv"
lines "What is a page table?" >"$T/pages"
lines "What is a KV cache?" "What is a KV cache?" "What is a KV cache?" >"$T/three"
serve vllm vllm - reset drafts
serve llama llama -
parity() { run parity "$@" --lanes 2; }

# ---- a server against this engine ----
parity "$T/kv" --a "remote:$vllm" --b local
[ $rc = 0 ] && has '^equal: 1 of 1 prompt compared, 0 differ$' && [ ! -s "$T/err" ]
result "a server and the local engine give the same ids" $?
has '^a  remote:http.* \(vLLM 0\.26\.0, nestling\): 21 tokens, 3 of 5 drafted tokens accepted, by its metrics before and after' &&
    has '^b  local: 21 tokens in [0-9]+ steps, [1-9][0-9]* of them drafted'
result "with the proof that both drafted" $?
has 'prefix cache emptied before each part \(/reset_prefix_cache\)' && grep -q '^POST /reset_prefix_cache' "$T/vllm.log"
result "the server's prefix cache is emptied" $?
has '^log probabilities of 21 equal tokens: differ by at most 0\.000[0-9]+ \(prompt 1\)$'; result "log probabilities are compared" $?
parity "$T/three" --a local --b "remote:$vllm" --json
[ $rc = 0 ] && [ "$(wc -l <"$T/out")" = 4 ] &&
    tail -n 1 "$T/out" | grep -q '"verdict":"equal","prompts":3,"compared":3,.*"drafting_proved":true,"compared_by_text":0,"prompts_differ":0,"prompts_unknown":0,"log_probabilities":63,.*"metrics":{"drafts":3,"drafted":15,"accepted":9}'
result "as JSON" $?
parity "$T/three" --a "remote:$vllm" --b "remote:$vllm" --control
[ $rc = 0 ] && [ "$(grep -c 'control: 3 replies computed twice, 0 differ from the first time' "$T/out")" = 2 ] && has '^equal: 3 of 3'
result "--control computes both sides twice" $?

# ---- what the comparison must find: each server has one error ----
finds() { # TITLE PATTERN WORD: the server's answer is changed so
    local title=$1 pattern=$2; shift 2
    serve changed vllm - "$@"
    parity "$T/kv" --a "remote:$changed" --b local
    has "$pattern"; result "found: $title" $?
}
finds "one id" 'prompt 1 \(line 1\) differs at position 17, token 1 of the reply: ".*" \(325\) with a, ".*" \(324\) with b; margin [0-9.]+ with a, [0-9.]+ with b$' \
    '"token_ids":[324]=>"token_ids":[325]'
[ $rc = 1 ]; result "a difference is status 1" $?
finds "a log probability shifted by a tenth" '^log probabilities of 21 equal tokens: differ by at most 0\.1' '-0.00011586471373448148=>-0.10011586'
finds "a token dropped" "differs at byte 1 of the reply's text: .*a side told no ids|differs at position 17, token 1" \
    '"delta":{"content":"The"},"logprobs":{"content":[=>"delta":{"content":""},"logprobs":null,"old":{"content":[' '"token_ids":[324]=>"token_ids":[]'
finds "another prompt" 'prompt 1 \(line 1\) is another prompt on each side: at position 1 id 7 with a, id 4 with b; the replies are equal$' \
    '"prompt_token_ids":[2,4,=>"prompt_token_ids":[2,7,'
finds "a prompt with an id more" 'at position 17 id 9 with a, the end \(17 ids\) with b' '2895,333,204]=>2895,333,204,9]'
finds "no end" '1 reply cut at a limit' 'stop_reason":5=>stop_reason":null' '"finish_reason":"stop"=>"finish_reason":"length"'

# ---- servers that tell less ----
parity "$T/pages" --a "remote:$llama" --b local
[ $rc = 0 ] && has '^equal text: 1 of 1' && has '^1 reply was compared by text only: a side told no ids$' && has 'ids of 1 prompt were not compared' &&
    has '15 of 15 drafted tokens accepted, as its replies report'
result "a server that tells some ids: the texts are compared, and nothing is claimed about ids" $?
serve listed llama - chat=chat
parity "$T/pages" --a "remote:$listed" --b local
[ $rc = 0 ] && has '^equal: 1 of 1' && ! has 'compared by text' && has 'no side reported|drafted'
result "a server that leaves out the id of the end" $?
has 'prefix cache not emptied: llama-server erases slots only with --slots and --slot-save-path'; result "a cache that cannot be emptied is said" $?
parity "$T/pages" --a "remote:$llama" --b "remote:$vllm"
[ $rc = 1 ] && has "differs at byte 5 of the reply's text: \"page table.*\" with a, \"KV cache.*\" with b; a side told no ids"
result "two servers" $?

# ---- answers ----
lines '{"question": "What is a KV cache?", "answer": "#### 12"}' '{"question": "What is a KV cache?", "answer": "#### 7"}' >"$T/q"
serve right vllm - 'keys=>12 keys'
parity "$T/q" --a "remote:$right" --b "remote:$vllm"
has '^answers: 1 of 2 right with a, 0 with b; 2 differ; 1 right only with a, 0 right only with b$'; result "flips of answers are counted" $?

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
refuse 'neither a nor b is a server' --control
plan
