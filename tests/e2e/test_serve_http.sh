#!/bin/bash
# aerie serve with the bundled model, by curl and by aerie itself: every endpoint, streams, log probabilities of
# prompts, clients at once, drafting on and off, the log and its replay, signals.
# AERIE_SERVE_REQUESTS: how many requests the clients at once send in all (40).
. "$(dirname "$0")/kit.sh"
servers='' one='' one_pid='' two='' two_pid='' trees='' trees_pid='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME FLAGS...: sets NAME to the address and NAME_pid
    local name=$1 pid; shift; rm -f "$T/$name.log"
    "$AERIE" serve --port 0 "$@" >"$T/$name.log" 2>"$T/$name.err" &
    pid=$!; servers="$servers $pid"
    until_ok wrote "$T/$name.log" $pid
    declare -g "$name=$(sed -n '1s,.*\(http://[^ ]*\)/v1 .*,\1,p' "$T/$name.log")" "${name}_pid=$pid"
}
ask() { # PATH BODY [CURL FLAGS]: $T/out is the answer, $status its status
    local path=$1 body=$2; shift 2
    status=$(curl -sN -m 60 -o "$T/out" -w '%{http_code}' -H 'Content-Type: application/json' ${body:+-d "$body"} "$@" "$at$path")
}
get() { # PATH...: values of the answer's JSON, a line each
    local path; for path; do sqlite3 :memory: "SELECT json_extract(readfile('$T/out'), '$path')"; done
}
# What must not differ between two runs of a request.
bare() { sed 's/"id":"[^"]*"/"id":""/; s/"created":[0-9]*/"created":0/; s/"cached_tokens":[0-9]*//; s/"metrics":.*//' "$1"; }
deltas() { # of a stream in $T/out: the text
    sed -n 's/^data: {/{/p' "$T/out" >"$T/chunks"
    sqlite3 :memory: "CREATE TABLE c(j)" ".mode ascii" ".separator \"\\001\" \"\\n\"" ".import $T/chunks c" ".separator \"\" \"\"" \
        "SELECT ifnull(json_extract(j, '\$.choices[0].delta.content'), ifnull(json_extract(j, '\$.choices[0].text'), '')) FROM c ORDER BY rowid" | tr -d '\036'
}
question='"messages":[{"role":"user","content":"What is a KV cache?"}]'
said="The KV cache stores the keys and values of earlier tokens so that they need not be computed again."

serve one -v
at=$one
[ -n "$one" ] && grep -q '^nestling at http://127.0.0.1:[0-9]*/v1 (context 4096, 8 at once)' "$T/one.log"
result "serve prints its address, on this machine alone" $?
"$AERIE" serve --port "${one##*:}" -n >"$T/out" 2>"$T/err"; [ $? = 2 ] && grep -q "^aerie: cannot listen at 127.0.0.1, port ${one##*:}: .*; --port N names another port, 0 any that is free$" "$T/err"
result "a port that is in use is refused with the way out" $?
ask /v1/models ''; [ "$(get '$.data[0].id' '$.data[0].max_model_len' | tr '\n' ' ')" = "nestling 4096 " ]
result "GET /v1/models" $?
ask /health ''; [ "$status" = 200 ] && ask /ping '' && [ "$status" = 200 ] && ask /version '' && [ "$(get '$.version')" = "$("$AERIE" -V | cut -d' ' -f2)" ]
result "GET /health, /ping, /version" $?
ask /server_info ''; [ "$(get '$.drafting' '$.window' '$.page_size' | tr '\n' ' ')" = "1 64 16 " ]
result "GET /server_info" $?
ask /tokenize '{"prompt":"Hello, world","add_special_tokens":false,"return_token_strs":true}'
ids=$(get '$.tokens'); [ "$(get '$.token_strs')" = '["Hello",",","\u0120world"]' ] &&
    [ "$(echo -n "Hello, world" | "$AERIE" tokenize | tr ' ' ,)" = "$(tr -d '[]' <<<"$ids")" ]
result "POST /tokenize gives the ids of aerie tokenize" $?
ask /detokenize "{\"tokens\":$ids}"; [ "$(get '$.prompt')" = "Hello, world" ]
result "POST /detokenize gives the text back" $?

# ---- replies
run run -n "What is a KV cache?"; cp "$T/out" "$T/alone"
ask /v1/chat/completions "{$question,\"temperature\":0}"
[ "$(get '$.choices[0].message.content')" = "$(cat "$T/alone")" ] && [ "$(get '$.choices[0].finish_reason' '$.usage.completion_tokens' '$.metrics.speculative_decoding.num_draft_tokens' | tr '\n' ' ')" = "stop 21 20 " ]
result "a chat's reply is that of aerie run" $?
run run -n -p temperature=0.8 --seed 5 -p max_tokens=40 "Tell me a story"
ask /v1/chat/completions '{"messages":[{"role":"user","content":"Tell me a story"}],"temperature":0.8,"seed":5,"max_tokens":40}'
[ "$(get '$.choices[0].message.content')" = "$(cat "$T/out.run" 2>/dev/null || "$AERIE" run -n -p temperature=0.8 --seed 5 -p max_tokens=40 "Tell me a story" 2>/dev/null)" ]
result "a sampled one with the same seed, too" $?
run run -n --raw -p max_tokens=12 "A page table"; cp "$T/out" "$T/alone"
ask /v1/completions '{"prompt":"A page table","temperature":0,"max_tokens":12}'
[ "$(get '$.choices[0].text')" = "$(cat "$T/alone")" ]
result "a completion is that of aerie run --raw" $?
ask /v1/chat/completions "{$question,\"temperature\":0,\"stream\":true,\"return_token_ids\":true,\"stream_options\":{\"include_usage\":true}}"
[ "$(deltas)" = "$said" ] && [ "$(tail -n 2 "$T/out" | head -n 1)" = "data: [DONE]" ] && grep -q '"choices":\[\],"usage":{"prompt_tokens":17,"total_tokens":38' "$T/out"
result "a stream has the same text, and usage at its end" $?
ask /v1/chat/completions "{$question,\"temperature\":0,\"stop\":[\" values\"],\"return_token_ids\":true}"
[ "$(get '$.choices[0].message.content' '$.choices[0].stop_reason' '$.choices[0].token_ids' | tr '\n' '|')" = "The KV cache stores the keys and| values|[324,1163,1066,2275,269,914,294,1165]|" ]
result "a stop text ends the reply, also within a drafted step" $?
ask /v1/completions '{"prompt":[[2,4,516,267],"What is",[2,4]],"temperature":0,"max_tokens":3,"n":2}'
[ "$(get '$.choices[#-1].index' '$.choices[0].text')" = "5
$(get '$.choices[1].text')" ]
result "several prompts, of ids and of text, several replies" $?

# ---- log probabilities
ask /v1/chat/completions "{$question,\"temperature\":0,\"max_tokens\":9,\"logprobs\":true,\"top_logprobs\":3,\"return_token_ids\":true}"
get '$.choices[0].logprobs.content[3].token' '$.choices[0].logprobs.content[3].bytes' | tr '\n' '|' | grep -qF ' stores|[32,115,116,111,114,101,115]|'
[ $? = 0 ] && [ "$(get '$.choices[0].logprobs.content[3].top_logprobs[0].token' '$.choices[0].logprobs.content[#-1].top_logprobs[2].token' | wc -l)" = 2 ]
result "chat log probabilities have tokens, bytes and the best others" $?
ids=$(get '$.choices[0].token_ids'); given=$(get '$.prompt_token_ids')
sqlite3 :memory: "SELECT json_extract(value, '\$.logprob') FROM json_each(readfile('$T/out'), '\$.choices[0].logprobs.content')" >"$T/generated"
ask /v1/completions "{\"prompt\":[$(tr -d '[]' <<<"$given,$ids")],\"max_tokens\":0,\"echo\":true,\"logprobs\":2}"
sqlite3 :memory: "SELECT value FROM json_each(readfile('$T/out'), '\$.choices[0].logprobs.token_logprobs') WHERE key >= 17" >"$T/echoed"
[ "$(wc -l <"$T/echoed")" = 9 ] && cmp -s "$T/generated" "$T/echoed"
result "echoed log probabilities are those that the tokens had when they were generated" $?
[ "$(get '$.choices[0].logprobs.text_offset[2]' '$.choices[0].logprobs.tokens[1]' | tr '\n' ' ')" = "20 <start_of_turn> " ] && get '$.choices[0].text' | grep -q '^<bos><start_of_turn>user'
result "echo has the prompt's text, tokens and offsets" $?
ask /v1/completions "{\"prompt\":[$(tr -d '[]' <<<"$given,$ids")],\"max_tokens\":0,\"echo\":true,\"logprobs\":2}"
sqlite3 :memory: "SELECT value FROM json_each(readfile('$T/out'), '\$.choices[0].logprobs.token_logprobs') WHERE key >= 17" | cmp -s "$T/generated" -
result "the same again, when the KV of the prompt is held" $?

# ---- replies of a form
schema='{"type":"object","properties":{"text":{"type":"string","maxLength":40},"n":{"type":"integer","minimum":3,"maximum":12}},"required":["text","n"]}'
form="\"temperature\":0.8,\"seed\":4,\"max_tokens\":200,\"presence_penalty\":0.5,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":$schema}}"
ask /v1/chat/completions "{$question,$form}"; get '$.choices[0].message.content' >"$T/value"; formed=$(get '$.id'); formed=${formed#chatcmpl-}
[ "$(sqlite3 :memory: "SELECT json_extract(j, '\$.n') BETWEEN 3 AND 12 AND length(json_extract(j, '\$.text')) <= 40 FROM (SELECT readfile('$T/value') AS j)") $(get '$.choices[0].finish_reason')" = "1 stop" ]
result "a reply follows its JSON schema" $?
ask /v1/chat/completions "{$question,$form,\"stream\":true}"; [ "$(deltas)" = "$(cat "$T/value")" ]
result "its stream, too" $?
ask /v1/responses "{\"input\":\"What is a KV cache?\",\"temperature\":0}"
[ "$(get '$.output[0].content[0].text' '$.status')" = "$said
completed" ] && [ "$(get '$.usage.output_tokens')" = 21 ]
result "POST /v1/responses gives the reply of a chat" $?
ask /v1/responses "{\"input\":\"What is a KV cache?\",\"temperature\":0,\"stream\":true}"
[ "$(grep -c '^event: response.output_text.delta' "$T/out")" -gt 3 ] && [ "$(sed -n 's/^event: //p' "$T/out" | sed '1p;$!d' | tr '\n' ' ')" = "response.created response.completed " ]
result "and its events" $?

# ---- errors
ask /v1/chat/completions "{$question,\"tools\":[{}]}"; [ "$status" = 400 ] && [ "$(get '$.error.param' '$.error.code' | tr '\n' ' ')" = "tools 400 " ]
result "what is not supported is refused by its name" $?
ask /v1/chat/completions "{$question,\"model\":\"nope\"}"; [ "$status" = 404 ] && ask /v1/nothing '{}' && [ "$status" = 404 ] &&
    [[ "$(get '$.error.message')" == "there is no /v1/nothing; expected one of "*"/v1/chat/completions, "*"/v1/models, "*"/metrics, "* ]] &&
    ask /chat/completions '{}' && [ "$(get '$.error.message')" = "there is no /chat/completions; expected /v1/chat/completions: a base URL ends in /v1" ] && ask /v1/completions '' && [ "$status" = 405 ]
result "unknown models and paths, wrong methods" $?
head -c 34000000 /dev/zero | tr '\0' ' ' >"$T/long"
status=$(curl -s -m 60 -o "$T/out" -w '%{http_code}' -H 'Content-Type: application/json' -H 'Expect:' --data-binary @"$T/long" "$at/v1/completions" 2>"$T/err"); [ "$status" = 413 ]
result "a body that is too long" $?
run serve --host 0.0.0.0 --port 0; [ $rc = 2 ] && grep -q 'expected --api-key-file' "$T/err"
result "an address that others reach needs a key" $?
echo notes >"$T/notes.txt"; run serve --port 0 --db "$T/notes.txt"; [ $rc = 4 ] && grep -q 'notes.txt is no session log.*--no-log serves without a log' "$T/err" && [ ! -s "$T/out" ]
result "a log that cannot be used is no log to acknowledge replies with" $?
run serve --port 0 --cors 'http://a/b'; [ $rc = 2 ] && grep -q 'expected an origin' "$T/err"
result "--cors takes an origin" $?

# ---- at once, with drafting and without
many=${AERIE_SERVE_REQUESTS:-40}
body() { # I: request number I of twenty
    local kind=$(($1 % 20)) words=(page window cache slot draft token story river fox night)
    local word=${words[$((kind % 10))]}
    if [ $kind -lt 10 ]; then echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me about the $word.\"}],\"temperature\":0,\"max_tokens\":24,\"logprobs\":true,\"top_logprobs\":2}"
    else echo "{\"prompt\":\"<start_of_turn>user\\nA $word\",\"temperature\":0.9,\"seed\":$kind,\"max_tokens\":24,\"return_token_ids\":true}"; fi
}
path() { [ $(($1 % 20)) -lt 10 ] && echo /v1/chat/completions || echo /v1/completions; }
for ((i = 0; i < 20; i++)); do ask "$(path $i)" "$(body $i)"; bare "$T/out" >"$T/alone.$i"; done
serve two --no-spec --no-log
at=$two; different=
for ((i = 0; i < 20; i++)); do ask "$(path $i)" "$(body $i)"; bare "$T/out" | cmp -s - "$T/alone.$i" || different="$different $i"; done
[ -z "$different" ]
result "replies without drafting are the same, byte for byte" $?
kill $two_pid; wait $two_pid; [ $? = 143 ]
result "SIGTERM ends the server" $?
serve trees --no-log -p draft.steps=3 -p draft.topk=3 -p draft.nodes=12
lines "What is a KV cache?" /accept | feed chat -n --plain --remote "$trees"
has 'the server tells no depths' && like '^ {4}1 +[1-9]' && ! like '^ {4}[4-9] +[0-9]'; result "over a server that drafts trees /accept ends at the deepest token that was accepted" $?
at=$trees; ask /metrics ''; has 'position="2"' && ! has 'position="3"'; result "and its metrics have the depths of its trees" $?
kill $trees_pid
at=$one
client() { # K: every eighth request
    local i
    for ((i = $1; i < many; i += 8)); do
        curl -s -m 60 -o "$T/at.$i" -H 'Content-Type: application/json' -d "$(body $i)" "$at$(path $i)"
        bare "$T/at.$i" | cmp -s - "$T/alone.$((i % 20))" || echo "$i" >>"$T/different"
        rm -f "$T/at.$i"
    done
}
pids=; for k in 0 1 2 3 4 5 6 7; do client $k & pids="$pids $!"; done; wait $pids
[ ! -e "$T/different" ]
result "8 clients at once: no reply differs from one alone ($many requests)" $?

# ---- aerie as the client
run doctor --remote "$one"; grep -q "aerie .* serves nestling" "$T/out" && grep -q "accepted drafts by step: reported" "$T/out"
result "aerie doctor --remote knows the server" $?
run run --db "$T/client.db" --remote "$one" "What is a KV cache?"; [ $rc = 0 ] && [ "$(cat "$T/out")" = "$said" ]
result "aerie run --remote" $?
run show --db "$T/client.db" last --json
grep -qF '"tokens":[2,4,516,267,204,371,291,263,1163,1066,36,5,204,4,2895,333,204]' "$T/out" && grep -qF '"tokens":[324,1163,1066,2275,' "$T/out"
result "its log has the ids of prompt and reply" $?
lines "What is a KV cache?" /pool /accept | feed chat -n --plain --remote "$one"
grep -q '^swa  *[0-9]* of [0-9]* tokens used' "$T/out" && grep -q 'cycles 4   drafted 20   accepted 17' "$T/out"
result "pools, full and window apart, and acceptance are shown" $?
ask /metrics ''
grep -q '^vllm:spec_decode_num_accepted_tokens_per_pos_total{.*position="4"' "$T/out" && grep -q '^aerie:swa_total_tokens{' "$T/out" && grep -q '^vllm:prefix_cache_queries_total' "$T/out"
result "GET /metrics has vLLM's names and the pools" $?
ask /reset_prefix_cache '' -X POST; [ "$status" = 200 ] && [ "$(get '$.success')" = 1 ]
result "POST /reset_prefix_cache" $?
grep -q '^POST /v1/chat/completions 200, 17 + 21 tokens, [0-9]* ms$' "$T/one.log" && grep -q '^POST /v1/chat/completions 400, [0-9]* ms: [^ ]' "$T/one.log"
result "-v prints a line for each request, with the reason of a refusal" $?

# ---- a client that leaves, and the end
curl -sN -m 60 -H 'Content-Type: application/json' -d '{"messages":[{"role":"user","content":"Tell me a long story"}],"ignore_eos":true,"stream":true}' "$one/v1/chat/completions" >"$T/left" &
pid=$!; until_ok test -s "$T/left"; kill $pid; wait $pid 2>/dev/null
idle() { ask /load '' && [ "$(get '$.server_load')" = 0 ]; }
until_ok idle; result "a client that leaves ends its reply" $?
curl -sN -m 60 -H 'Content-Type: application/json' -d '{"messages":[{"role":"user","content":"Tell me a long story"}],"ignore_eos":true,"stream":true}' "$one/v1/chat/completions" >"$T/ended" &
pid=$!; until_ok test -s "$T/ended"
kill -INT $one_pid; wait $one_pid; rc=$?; wait $pid
[ $rc = 130 ] && grep -q '"finish_reason":"abort"' "$T/ended" && grep -q '^data: \[DONE\]' "$T/ended"
result "Ctrl-C ends running replies, then the server" $?

# ---- the log
count=$(sql "SELECT count(*) FROM session")
[ "$count" -ge $((many + 30)) ] && [ "$(sql "SELECT count(*) FROM turn WHERE stop = 'crashed' OR (role = 'reply' AND stop = '')")" = 0 ]
result "every request is a session ($count)" $?
run logs -q story; [ $rc = 0 ] && grep -q "Tell me about the story" "$T/out"
result "aerie logs finds them" $?
different=; for s in "$formed" 2 5 9 $((count - 10)); do run replay "$s" --check; [ $rc = 0 ] || different="$different $s"; done
[ -z "$different" ]
result "replay --check of served sessions:$different" $?
run db check; [ $rc = 0 ]
result "the log is whole" $?

# ---- kill -9: what was acknowledged is in the log, with its text
kills=${SERVE_KILLS:-3}; [ "${AERIE_TEST_LONG:-0}" = 0 ] || kills=${SERVE_KILLS:-40}
acknowledged() { # K: a file for each reply of which this client was told the end
    local i stream=(false true); for ((i = 0; ; i++)); do
        curl -sN -m 60 -o "$T/part.$1" -H 'Content-Type: application/json' -d "{$question,\"temperature\":0,\"stream\":${stream[i % 2]}}" \
            "$at/v1/chat/completions" || return
        mv "$T/part.$1" "$T/ack.$round.$1.$i"
    done
}
DB=$T/killed.db; XDG_DATA_HOME=$T/killed
for ((round = 0; round < kills; round++)); do
    flags=(--db "$DB" --model-name fox); [ $round != 1 ] || flags+=(--no-sandbox)
    serve one "${flags[@]}"; at=$one; pids=
    [ $round -gt 1 ] || given_up[round]=$(grep -E '^(NoNewPrivs|Seccomp)' "/proc/$one_pid/status")
    if [ $round = 0 ]; then # nothing can be stored, so nothing may be acknowledged
        ask /v1/models ''; named=$(get '$.data[0].id')
        mkfifo "$T/lock"; sqlite3 -bail "$DB" <"$T/lock" >"$T/locked" & locker=$!
        exec 9>"$T/lock"; lines '.timeout 2000' 'begin immediate;' '.print locked' >&9; until_ok test -s "$T/locked"
    fi
    for k in 0 1 2 3; do acknowledged $k & pids="$pids $!"; done
    enough() { [ "$(find "$T" -name 'ack.*' | wc -l)" -ge $((6 * round)) ]; }; until_ok enough
    sleep 0.$((RANDOM % 4)); kill -9 $one_pid; wait $one_pid $pids 2>/dev/null
    [ $round != 0 ] || { exec 9>&-; wait $locker; }
done
ls "$T"/ack.* 2>/dev/null | while read -r file; do grep -o '"id":"chatcmpl-[0-9A-Z]*"' "$file" | head -n 1 | cut -c16-41; done >"$T/ids"
printf 'CREATE TEMP TABLE ack(id);\n.import "%s" ack\n%s\n' "$T/ids" "SELECT count(*), count(*) - count(t.reply) FROM ack \
    LEFT JOIN v_turn t ON t.session = ack.id AND t.reply = '$said' AND t.stop = 'end'" | sqlite3 "$DB" >"$T/out"
read -r count missing < <(tr '|' ' ' <"$T/out")
[ "${count:-0}" -gt 10 ] && [ "$missing" = 0 ]
result "$kills kills: of $count acknowledged replies $missing are not in the log" $?
[ "$named" = fox ]
result "serve --model-name: clients see the name" $?
run doctor
if grep -q 'no programs, no network' "$T/out"; then [ "${given_up[0]}" != "${given_up[1]}" ]; result "--no-sandbox turns the isolation off" $?
else result "--no-sandbox # SKIP this machine cannot isolate" 0; fi
plan
