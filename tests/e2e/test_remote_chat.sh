#!/bin/bash
# aerie --remote against servers that play back recorded answers (tests/play_server.c): doctor, run, a batch,
# the plain chat, the log, and the full screen.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
servers='' vllm='' llama='' locked='' cut='' two='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; M kill-server; }
serve() { # NAME KIND [KEY [WORD...]]: sets the variable NAME to the address
    local file=$T/$1.log
    "$BUILD/tests/play_server" "$2" 120 "${@:3}" >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $!
    local url; url=$(head -n 1 "$file")
    declare -g "$1=$url"
}
said="The KV cache stores the keys and values of earlier tokens so that they need not be computed again."
serve vllm vllm; serve llama llama; serve locked vllm sk-secret-7
serve cut vllm - '"finish_reason":"stop"=>"finish_reason":null' 'data: [DONE]=>'

run doctor --remote "$vllm"
[ $rc = 0 ] && has "vLLM 0.26.0 at $vllm/ serves nestling, context 4096" && has "accepted drafts by step: vLLM reports drafts by step only with"
result "doctor says what the server is and what it does not report" $?
run doctor --remote "$llama" --json
has '"llama-server' && has 'llama-server does not say how it tokenized a chat'
result "doctor --json: another kind of server" $?

run run --remote "$vllm" "What is a KV cache?"
[ $rc = 0 ] && [ "$(cat "$T/out")" = "$said" ] && [ ! -s "$T/err" ]
result "run prints the reply" $?
run run --db "$T/cut.db" --remote "$cut" "What is a KV cache?"
[ $rc = 3 ] && [ "$(cat "$T/out")" = "$said" ] && grep -q "the server's stream ended without an end of the reply" "$T/err"
result "run of a reply that was cut prints what there is, says so and ends with status 3" $?
run run --remote "$vllm" --json "What is a KV cache?"
[ $rc = 0 ] && has '"tokens":21' && has '"prompt_tokens":17'
result "run --json counts as the server does" $?
run show last --json
has '"tokens":[2,4,516,267,204,371,291,263,1163,1066,36,5,204,4,2895,333,204]' && has '"tokens":[324,1163,1066,'
result "the log holds the ids of prompt and reply as the server sent them" $?
run show last
has "computed   $vllm/ (vLLM 0.26.0)" && ! has "(null)"
result "show says which server computed it" $?
[ "$(sql "SELECT count(*) FROM v_token WHERE logp IS NOT NULL AND rival_logp IS NOT NULL")" = 42 ]
result "log probabilities are in the log" $?
run export last --format md; has "$said"
result "export works" $?
run logs -q "keys"; has "What is a KV cache?"
result "search finds it" $?

serve two vllm - '"data":[{=>"data":[{"id":"org/tinker","max_model_len":512},{'
lines "What is a KV cache?" /model "/model org/tinker" "/model none" /draft "And again?" /model | feed chat --plain -q --remote "$two" -m nestling
[ "$(grep -cF "$said" "$T/out")" = 2 ] && has "* nestling" && has "* org/tinker" && has "the session before is saved"
result "/model chooses among the server's models and goes on in a new session" $?
grep -q 'no model "none"; it serves org/tinker, nestling' "$T/err" && grep -q 'the server chooses its drafter' "$T/err"; result "a model that it does not serve is refused" $?
[ "$(sql "select m.dir || ' ' || (s.parent is not null) from session s join run r on r.session_id=s.id join model m on m.id=r.target_id order by r.id desc limit 1")" = "org/tinker 1" ]
result "the log has the model of each session" $?
run run --remote "$two" -m org/tinker "What is a KV cache?"
[ $rc = 0 ] && [ "$(cat "$T/out")" = "$said" ]; result "-m is the server's name of a model, not one of the hub's cache" $?

lines '{"prompt":"a"}' '{"prompt":"b"}' '{"prompt":"c"}' >"$T/batch"
run run --batch "$T/batch" --remote "$vllm"
[ $rc = 0 ] && [ "$(grep -cF "$said" "$T/out")" = 3 ]
result "run --batch sends all prompts" $?

lines "What is a KV cache?" /stats /accept /pool /tree /plan "/set draft.nodes 3" "/set temperature 0.5" /regen /undo \
    "/n 2 hello" /fork "again" | feed chat --plain --remote "$vllm"
[ $rc -le 2 ] && [ "$(grep -cF "$said" "$T/out")" -ge 4 ]
result "the chat: messages, /regen, /undo, /n, /fork" $?
grep -q "/tree: vLLM 0.26.0 reports no draft trees; no server does" "$T/err" && grep -q "vLLM has no setting draft.nodes" "$T/err" &&
    grep -q "/plan: vLLM 0.26.0 reports no plans of its passes" "$T/err"
result "what a server does not report is said, with the reason" $?

run run --remote "$locked" hello
[ $rc = 3 ] && grep -qx "aerie: the server answers 401 (a key is needed, or another one): Unauthorized" "$T/err"
result "without the key: one line" $?
echo sk-secret-7 >"$T/key"
run run --remote "$locked" --api-key-file "$T/key" hello
[ $rc = 0 ] && has "$said"
result "with the key" $?
! grep -raq "sk-secret-7" "$T/data" "$T/out" "$T/err"
result "the key is in no file of ours" $?
run run --remote http://127.0.0.1:1 hello
[ $rc = 3 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "cannot reach http://127.0.0.1:1/" "$T/err"
result "a server that is not there: one line" $?
echo "remote = $vllm" >>"$XDG_CONFIG_HOME/aerie/config"
run run hello; has "$said"
result "remote = URL in the config file" $?
sed -i '$d' "$XDG_CONFIG_HOME/aerie/config"
cp "$XDG_CONFIG_HOME/aerie/config" "$T/kept"
lines "remote = $locked/v1" "api-key-file = $T/key" "header = X-Trace: 1" "header = X-Who: me" "gauge.ms = 0" >>"$XDG_CONFIG_HOME/aerie/config"
run run hello; [ $rc = 0 ] && has "$said" && run doctor && has "vLLM 0.26.0 at $locked/ serves nestling"
result "the key's file and headers in the config file" $?
mv "$T/kept" "$XDG_CONFIG_HOME/aerie/config"

open_screen 100 30 --remote "$vllm"
text "What is a KV cache?"; key Enter; wait_for "The KV cache stores the keys"
result "the full screen shows the reply" $?
text /bye; key Enter; until_ok no_server
plan
