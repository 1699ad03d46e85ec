#!/bin/bash
# What the commands and the screen show of a session with a server: servers that make up their replies and metrics
# (tests/play_stream.c), of every kind that reports something of its own.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
servers='' vllm='' llama='' openai='' sglang='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; M kill-server; }
serve() { # NAME [ARGS]: a server of this kind, its address in the variable of the name
    local file=$T/$1.log kind=${1//_/-}; local name=$1; shift
    "$BUILD/tests/play_stream" "$kind" 120 "${@:-0}" 60 >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $!
    local url; url=$(head -n 1 "$file")
    declare -g "$name=$url"
}
is() { grep -qE -- "$1" "$T/out"; }
chat() { # URL LINES...
    local url=$1; shift
    lines "$@" | feed chat --plain --no-log --remote "$url"
    cat "$T/err" >>"$T/out"
}
json() { local url=$1; shift; lines "$@" | feed chat --json --no-log --remote "$url"; }
serve vllm; serve sglang; serve sglang_old; serve llama; serve openai

# 60 tokens: one of the prompt, then 18 steps of 5 drafts
chat "$vllm/v1" hello again /accept "/accept turn" /why /top /tokens /timing /steps
has "ACCEPT  cycles 36   drafted 180   accepted" && is "^ +5 +36 " && has "by turn, of this session" && is "^ +2 +18 +90 "
result "vLLM with drafts by step: depth table and turns, at an address that ends in /v1" $?
is 'WHY  step 2.19 of vLLM 0.29.0, [0-9] of 5 drafts accepted' && is '; rival "[^"]*" p 0.0743, margin 2.5 nats'
result "/why names the rival that the server named by its text" $?
is '^ +2.19 +10[0-9][0-9] ".*accepted draft 1 of 5' && is 'TOP  step 2.19'
result "/tokens and /top" $?
is '^queue +0.75 +0.75 +0.75 ' && is '^first, server +12.5' && is 'between pieces.*[0-9] tokens a piece'
result "/timing: queue, first token, gaps" $?
is '^ +2\.19 +spec +[0-9]+ +[0-9]+/5 +[1-9][0-9]*\.[0-9] "' && has 'as the server lists its steps; ms since the request'
result "/steps: when each came, not how long it took" $?
for kind in sglang sglang_old; do
    chat "${!kind}" hello /accept "/accept context" /timing /pool
    is '^ +1 +60 +90 +[0-9]+ +18 +0.[0-9]+ +3.33$' && has "tokens/step = completion_tokens / spec_verify_ct"
    result "$kind: accepted drafts by reply, with the server's formula" $?
    has "/accept: SGLang 0.5.9 tells no drafts by step, only by reply" && is '^queue +2.00'
    result "$kind: what is not reported is said" $?
    is '^full +[0-9]+ of 40000 tokens used, [0-9]+ evictable' && is '^swa +[0-9]+ of 8000 tokens used'
    result "$kind: the pools apart" $?
done
chat "$llama" hello /accept /pool /plan /check /bug
is '^ +1 +60 +90 +[0-9]+ +- +0.[0-9]+ ' && has "derived: llama-server does not count its steps" && has "slots     "
result "llama-server: by reply, and its slots" $?
has "/plan: llama-server b11434 reports no plans of its passes; no server does" && has "/check: llama-server b11434"
result "what no server reports is said by the command" $?
for at in "$vllm" "$sglang" "$llama"; do
    chat "$at" /pool
    is '^(blocks|full|slots) +[0-9]+(.[0-9]%| of) ' || break
done
result "an open server has been read: /pool as the first line shows its pools" $?
chat "$openai" hello /accept /pool /gauges /timing /stats /tokens
has "/accept: the OpenAI API says nothing about drafts" && has "/pool: " && has "/gauges: this server has no /metrics" &&
    has "TIMING  1 reply of an OpenAI-compatible server" && has "sent no ids of its tokens"
result "a server that reports little: times measured here, reasons for the rest" $?

json "$vllm" hello /stats /accept /timing /gauges /pool /top
has '"trouble":null,"latest":{"turn":1,"prompt":17,"cached":16,"tokens":60,' && has '"queue_ms":0.75' &&
    has '"depth":1,"cycles":18,"drafted":18,"accepted":' && has '"between_pieces_ms":{"n":18,'
result "--json: /stats, /accept, /timing" $?
has '"every_ms":1000,"readings":' && has '"gauges":{"blocks":{"about":"share' && has '[{"pool":"blocks","page_size":16,' &&
    has '"evictable":null' && has '"top":[{"token":'
result "--json: /gauges, /pool, /top" $?
json "$sglang" hello /accept
has '"rate":"spec_num_correct_drafts / ' && has '"replies":[{"turn":1,"tokens":60,"drafted":90,'
result "--json: /accept by reply has the formulas" $?
lines "/set gauge.ms 0" /set | feed chat --json --no-log --remote "$vllm"; has '"name":"gauge.ms","value":"0"'
result "gauge.ms can be set" $?

run doctor --remote "$sglang"
has "serves made, context 4096" && is 'pools: full [0-9]+ of 40000 tokens, swa [0-9]+ of 8000 tokens' &&
    has 'speculative_algorithm="EAGLE3"'
result "doctor: context, pools and launch facts" $?
run doctor --remote "$vllm" --json
has "launch arguments: vLLM tells its launch arguments only with VLLM_SERVER_DEV_MODE=1" && has "only with --enable-per-request-metrics"
result "doctor --json names the flags that would make the server report more" $?
kill "${servers##* }"; wait "${servers##* }" 2>/dev/null
run run --remote "$openai" hello
[ $rc = 3 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "(is the server running, and is the port right?)" "$T/err"
result "a wrong port: one line with a hint" $?

# ---- the screen ----
open_screen 200 60 --no-log -p gauge.ms=100 --remote "$sglang"
check "the status line names the server, its model and its pools" wait_for "SGLang"
check "pools in the status line" wait_for "swa "
text hello; key Enter; wait_for "old pages."
key F5; check "the Pool pane draws pools and queue over time" wait_for "waiting"
check "the Pool pane: accepted drafts by reply, and the formula" wait_for "completion_tokens / spec_verify_ct"
key F5; key F3; check "the Tree pane says why it is empty" wait_for "SGLang 0.5.9 reports no draft trees"
key F3; key F2; check "the Pages pane, too" wait_for "reports no page tables"
key F2; key F4; check "the Steps pane: pieces of the stream" wait_for "pieces of the stream"
key F4; key F7; check "the Why pane: what was sent of the tokens" wait_for "draft: not reported"
open_screen 100 30 --no-log --remote "$vllm"
text hello; key Enter; wait_for "old pages."
key F4; check "steps of a server that lists them" wait_for "spec "
key F4; key F6; check "the Word pane: draft and rival" wait_for "accepted at depth"
read -r first _ <<<"$servers"; kill "$first" 2>/dev/null
check "a server that is gone shows in the status line" wait_for "cannot reach"
plan
