#!/bin/bash
# Sessions with a server in the log: every fact is the one that the recorded server sent (tests/exchanges), in SQL, show,
# export, packs and reports; what it did not send is absent; and such sessions go on here and there.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
servers='' vllm='' llama='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME KIND: sets the variable NAME to the address
    local file=$T/$1.log
    "$BUILD/tests/play_server" "$2" 120 >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $!
    declare -g "$1=$(head -n 1 "$file")"
}
is() { local got; got=$(sql "$2"); [ "$got" = "$1" ] || { echo "$got" >"$T/out"; false; }; }
serve vllm vllm; serve llama llama
user=${vllm/http:\/\//http://me:sk-hidden@}
run run --remote "$user" "What is a KV cache?"; [ $rc = 0 ]
result "a session with vLLM" $?
run run --remote "$llama" "What is a page table?"; [ $rc = 0 ]
result "a session with llama-server" $?

# ---- the server ----
is "vLLM|0.26.0|$vllm/|nestling" "SELECT server, server_version, url, model FROM v_session WHERE number=1"
result "kind, version, address without user and password, model" $?
is "llama-server" "SELECT server FROM v_session WHERE number=2"; result "another kind" $?
is "16|1814801|0.3" "SELECT group_concat(value,'|') FROM (SELECT value FROM v_launch WHERE server='vLLM' AND name IN
    ('cache_config.block_size','cache_config.num_gpu_blocks','cache_config.gpu_memory_utilization') ORDER BY name='cache_config.gpu_memory_utilization', name)"
result "its cache as the labels of cache_config_info say" $?
! grep -raqE "sk-hidden" "$T/data"; result "the password is nowhere" $?

# ---- a turn ----
is "17|21|0|stop|1|1|||" "SELECT server_prompt, server_generated, server_cached, finish, prompt_ids, reply_ids, drafted, accepted,
    ms_queue FROM v_turn WHERE number=1"
result "vLLM: usage, finish, ids; drafts and queue time are not reported" $?
is "17|19|0|stop|0|0|15|15|31.241|106.117" "SELECT server_prompt, server_generated, server_cached, finish, prompt_ids, reply_ids, drafted,
    accepted, ms_prompt, ms_decode FROM v_turn WHERE number=2"
result "llama-server: usage and timings; its ids are not those of all tokens" $?
is "1331.0|1331.0" "SELECT before, after FROM v_metric m JOIN session s ON s.id=m.session WHERE s.number=1 AND name='vllm:generation_tokens_total'"
result "metrics before and after" $?
is "198.0" "SELECT after FROM v_metric WHERE name='vllm:spec_decode_num_accepted_tokens_per_pos_total' AND labels='engine=\"0\",position=\"0\"'"
result "with their labels, without the model's name" $?
is "0" "SELECT count(*) FROM v_metric WHERE name LIKE '%\\_bucket' ESCAPE '\\' OR name LIKE '%\\_created' ESCAPE '\\' OR labels LIKE '%model_name%' OR name LIKE 'process%'"
result "no histogram buckets, nothing of the process" $?
is "2" "SELECT count(*) FROM served WHERE ms_before >= 0 AND ms_after >= 0"; result "of when they are" $?

# ---- steps ----
is "piece|5|21|1" "SELECT group_concat(DISTINCT source), count(*), sum(new_tokens), count(*)=count(us_arrived) AND sum(drafted) IS NULL AND
    sum(rows) IS NULL FROM v_step v JOIN session s ON s.id=v.session WHERE s.number=1"
result "five pieces; no drafts are claimed" $?
is "1" "SELECT min(coalesce(us_since,0)) >= 0 AND max(us_arrived) >= min(us_arrived) FROM v_step"; result "they arrive in order" $?
is "The|A|Without|It" "SELECT group_concat(text,'|') FROM (SELECT text FROM v_top v JOIN session s ON s.id=v.session WHERE s.number=1 AND step=1 AND k=0 ORDER BY rank)"
result "four best tokens of the first row" $?
is "324||" "SELECT group_concat(coalesce(token,''),'|') FROM (SELECT token FROM v_top v JOIN session s ON s.id=v.session WHERE s.number=1 AND step=1
    AND k=0 AND rank<3 ORDER BY rank)"
result "the id of the token; of the others vLLM names none" $?
is "84" "SELECT count(*) FROM v_top v JOIN session s ON s.id=v.session WHERE s.number=1"; result "of all 21 tokens" $?
is " KV|1163| page" "SELECT text, token, rival_text FROM v_token v JOIN session s ON s.id=v.session WHERE s.number=1 AND step=2 AND k=0"
result "texts as the server sent them" $?
is "18|0" "SELECT count(*), sum(new_tokens) FROM v_step v JOIN session s ON s.id=v.session WHERE s.number=2"
result "llama-server: pieces with their times, without ids" $?
is "324|622" "SELECT group_concat(token,'|') FROM (SELECT token FROM v_top v JOIN session s ON s.id=v.session WHERE s.number=2 AND step=1 ORDER BY rank)"
result "its best tokens have ids" $?

# ---- reading ----
run show 1; has "computed   $vllm/ (vLLM 0.26.0)" && has "[server: prompt 17, generated 21, cached 0, finish stop, 67 metrics]" && has "21 ids from the server"
result "show" $?
run show 2; has "no ids from the server, 15 of 15 drafted accepted" && has "prompt in 31.2 ms, reply in 106.1 ms"
result "show: another server" $?
run show 1:1.2; has 'piece of the stream' && has '" KV"  id 1163' && has 'or " page"' && ! has "digests"
result "show of a piece: its best tokens, no digests" $?
run show 1 --json; has '"source":"piece"' && has '"server":{"prompt":17,"generated":21,"cached":0,"finish":"stop"' && has '"server_kind":"vLLM"'
result "show --json" $?
run export 1 --format jsonl; has '"type":"served"' && has '"type":"top"' && has '"type":"metric"' && has '"type":"server"'
result "export: every record" $?
run export 2 --format md; has "What is a page table?"; result "export as Markdown" $?
run logs -q "page table"; has "What is a page table?"; result "search" $?
run db check; result "the log is whole" $rc

# ---- packs and reports ----
run pack 1 -o "$T/ids.aerie" --issue vllm; [ $rc = 0 ]; result "pack" $?
! grep -qaE "127\.0\.0\.1|KV cache|keys and|sk-" "$T/ids.aerie" "$T/ids-vllm.md"; result "without text: no address, no text" $?
[ "$(sqlite3 "$T/ids.aerie" "SELECT kind, version, url, model, json_extract(facts,'\$.\"cache_config.block_size\"') FROM server")" = "vLLM|0.26.0||nestling|16" ]
result "kind, version and plain facts of the launch stay" $?
[ "$(sqlite3 "$T/ids.aerie" "SELECT count(*), count(token), sum(length(text)) FROM top")" = "84|21|0" ]; result "ids and log probabilities, no texts" $?
cp "$T/ids-vllm.md" "$T/out"; has "[324,1163,1066,2275," && has '"prompt":[2,4,516,267,204,371,291,' && has "cache_config.block_size=16" && has "vLLM 0.26.0; recorded by aerie" &&
    has "The server reports no drafted tokens" && has "margin 10.000000" && has "finish stop"
result "the report: ids, launch, version, acceptance, margin" $?
run pack 2 -o "$T/llama.aerie" --issue llama.cpp; cp "$T/llama-llama.cpp.md" "$T/out"
has "counts 15 of 15 drafted tokens accepted" && has "reported no ids of its output"; result "the report of another server" $?
run pack 1 -o "$T/shape.aerie" --no-ids; [ "$(sqlite3 "$T/shape.aerie" "SELECT max(token), sum(length(text)) FROM top")" = "-1|0" ]
result "without ids" $?
run pack 1 -o "$T/text.aerie" --with-text; grep -qa "127.0.0.1" "$T/text.aerie" && run show "$T/text.aerie:1.2" && has '" KV"  id 1163'
result "with text: all of it" $?
run show "$T/ids.aerie"; has "vLLM 0.26.0" && has "(text left out)"; result "a pack is shown" $?
lines /stats "/why 1.2" | feed replay "$T/text.aerie" --plain; [ $rc = 0 ] && has "prompt    17 tokens" && has '" cache" #1066'; result "and played" $?

# ---- a server that lists its steps ----
"$BUILD/tests/play_stream" vllm 120 0 60 >"$T/stream.log" 2>&1 &
servers="$servers $!"
until_ok wrote "$T/stream.log" $!
run run --remote "$(head -n 1 "$T/stream.log")" hello; [ $rc = 0 ] && is "server|18|90|18" "SELECT source, count(*), sum(drafted), count(us_since) FROM v_step v JOIN session s ON s.id=v.session
    WHERE s.number=3 AND source='server'"
result "its steps are in the log as it listed them" $?
is "18|90|42|0.75|12.5" "SELECT server_verifies, drafted, accepted, ms_queue, ms_first FROM v_turn WHERE number=3"
result "with its counts and times" $?
echo /stats | feed replay 3 --plain; has "90 drafted, 4" && has "in 18 cycles"; result "the recording counts each step once" $?

# ---- again, and elsewhere ----
run replay 1 --check; [ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "was computed by a server, so it cannot be computed again here; --forced" "$T/err"
result "replay --check says what can be done" $?
lines /stats /timing /tree "/map 3" /accept "/at 1.2" /why | feed replay 1 --plain
has "21 tokens generated" && has "1 reply of vLLM" && has "5.00 tokens a piece" && has '" KV" #1163' &&
    grep -q "/tree: no server reports draft trees" "$T/err" && grep -q "/map: no server reports page tables" "$T/err" &&
    grep -q "/accept: the server did not report accepted drafts" "$T/err"
result "the recording is played; what the server did not report is said" $?
lines /stats /accept | feed replay 2 --plain; has "19 tokens generated" && has "15"; result "drafts as another server counted them" $?
echo "And now?" | feed chat --plain --session 1 --remote "$vllm"; [ $rc = 0 ] && ! grep -q "the turns so far" "$T/err"
result "the same server goes on without a word" $?
echo "And now?" | feed chat --plain --session 1 --remote "$llama"
[ $rc = 0 ] && grep -q "the turns so far are of vLLM 0.26.0 at $vllm/ (nestling); the next ones are of llama-server" "$T/err"
result "another server goes on, with a notice" $?
echo "And now?" | feed chat --plain --session 1
[ $rc = 0 ] && grep -q "the next ones are of .*, computed here, which gets their text" "$T/err"
result "a session with a server goes on here" $?
echo "And now?" | feed chat --plain --session 1 --remote "$vllm"; [ $rc = 0 ] && grep -q "computed here; the next ones are of vLLM" "$T/err"
result "and there again" $?
is "vLLM|vLLM|llama-server||vLLM" "SELECT group_concat(coalesce(server,''),'|') FROM (SELECT server FROM v_turn WHERE number=1 ORDER BY turn)"
result "each turn names what computed it" $?
run pack 1 -o "$T/mixed.aerie" --issue vllm; [ $rc = 0 ] && ! grep -qaE "127\.0\.0\.1" "$T/mixed.aerie" "$T/mixed-vllm.md"
result "a pack of all these" $?
run db check; result "the log is whole after all" $rc
plan
