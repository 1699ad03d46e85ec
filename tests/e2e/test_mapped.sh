#!/bin/bash
# A checkpoint whose file is cut, or written to, while its weights are used in place: one line that names the file and
# what happened, no reply from other weights, no death by SIGBUS, and a terminal that is as it was.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }
model=$T/model
fresh() { rm -rf "$model"; cp -r models/nestling/target "$model"; touch -d '2020-01-01' "$model"/*; }
half() { truncate -s $(($(stat -c %s "$1") / 2)) "$1"; }
scribble() { printf x | dd of="$1" bs=1 seek=5000000 conv=notrunc status=none; }
# A chat in lines, whose standard input stays open; $p is its process.
start() {
    : >"$T/out"; : >"$T/err"; rm -f "$T/in"; mkfifo "$T/in"; exec 9<>"$T/in"
    "$AERIE" --plain -m "$model" --load "$1" -p temperature=0 -p max_tokens=40 <"$T/in" >"$T/out" 2>"$T/err" 9>&- & p=$!
}
say() { echo "$1" >&9; }
printed() { [ "$(tail -c 1 "$T/out" | wc -l)" = 1 ]; }
gone() { ! kill -0 "$p" 2>/dev/null; }
said() { grep -q "$1" "$T/out" "$T/err"; }
replies() { [ "$(sql "select count(*) from turn where role='reply' and stop is not null" 2>/dev/null)" = "$1" ]; }
leaves() { say /bye; wait "$p"; rc=$?; exec 9>&-; }

for change in half scribble; do
    fresh; rm -rf "$XDG_DATA_HOME"; start map; say "My dog is called Rex."; until_ok replies 1; until_ok printed
    result "$change: a reply while the file is whole" $?
    first=$(cat "$T/out"); $change "$model/model.safetensors"
    say "Tell me a story about a fox."; until_ok said 'model.safetensors was .* while its weights were in use'
    result "$change: the next message gets one line that names the file" $?
    until_ok gone; wait "$p"; rc=$?; exec 9>&-
    [ "$rc" = 3 ] && [ "$(sed '/^$/d' "$T/out")" = "$first" ]; result "$change: nothing is said, and the chat ends with status 3" $?
    run show last; [ "$rc" = 0 ] && said 'Rex'; result "$change: the turn before is in the log" $?
done

fresh; rm -rf "$XDG_DATA_HOME"; start copy; say "My dog is called Rex."; until_ok replies 1; half "$model/model.safetensors"
say "What is my dog called?"; until_ok replies 2; leaves
[ "$rc" = 0 ] && said 'Rex' && ! said 'in use'; result "a copy does not need the file" $?

fresh; scribble "$model/model.safetensors"; run run -n -m "$model" --load auto hello; [ "$rc" = 0 ]; result "a file written to a moment ago is copied" $?
run doctor; grep -qE '^ok +weights +the CPU copies them into memory: they are less than 64 MB' "$T/out"; result "doctor tells whether weights are copied" $?
run run --load twice hello; [ "$rc" = 2 ] && grep -q '^aerie: --load cannot be "twice"; expected auto, map or copy$' "$T/err"
result "another word is refused" $?

# A server: each request gets an error with its reason, whether it waits, is computed or comes later.
fresh; "$AERIE" serve -n --port 0 --lanes 2 -m "$model" --load map >"$T/served" 2>"$T/err" & p=$!
until_ok wrote "$T/served" $p
at=$(sed -n 's,.*\(http://[^ ]*\)/v1 .*,\1,p' "$T/served")
chat() { # NAME STREAM
    curl -sN -m 60 -o "$T/body.$1" -w '%{http_code}' -H 'Content-Type: application/json' "$at/v1/chat/completions" \
        -d '{"messages":[{"role":"user","content":"Tell me a story"}],"ignore_eos":true,"max_tokens":4000,"stream":'"$2"'}' >"$T/status.$1"
}
chat stream true & pids=$!
until_ok wrote "$T/body.stream" $pids '"content"'
for i in 1 2 3 4 5; do chat $i false & pids="$pids $!"; done # one is computed, four wait
six() { [ "$(curl -s "$at/load")" = '{"server_load":6}' ]; }; until_ok six
half "$model/model.safetensors"; wait $pids; wait "$p"; rc=$?
[ "$rc" = 3 ] && [ "$(cat "$T"/status.[0-9]*)" = 500500500500500 ] && ! grep -L '"error":{"message":".*model.safetensors was ' "$T"/body.[0-9]* | grep -q .
result "a server answers 500 with the reason to every request, and ends with status 3" $?
[ "$(cat "$T/status.stream")" = 200 ] && grep -q '^data: {"error":{"message":".*model.safetensors was ' "$T/body.stream" && ! grep -q 'DONE\|finish_reason":"' "$T/body.stream"
result "a stream that had begun ends with an error event, and without [DONE]" $?

fresh; export TERM=xterm-256color
M new-session -d -x 100 -y 30 "stty -a >$T/before; $AERIE chat --tui -m $model --load map -p temperature=0; status=\$?; stty -a >$T/after; echo status \$status; sleep 30"
wait_for 'ctx '; text "My dog is called Rex."; key Enter; wait_for ' t/s'; half "$model/model.safetensors"
text "What is my dog called?"; key Enter
check "the full screen shows the line" wait_for 'while its weights were in use'
text "/bye"; key Enter
check "and leaves with status 3" wait_for 'status 3'
cmp -s "$T/before" "$T/after"; result "the terminal is as it was" $?
plan
