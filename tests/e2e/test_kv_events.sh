#!/bin/bash
# aerie --remote --kv-events against a server that publishes recorded KV events and loses one of them: doctor,
# /blocks in plain, JSON and the full screen.
. "$(dirname "$0")/kit.sh"
BUILD=${BUILD:-$(dirname "$(readlink -f "$AERIE")")}
server='' screen=''
clean() { [ -z "$server" ] || kill $server 2>/dev/null; [ -z "$screen" ] || tmux -L "$screen" kill-server 2>/dev/null; }
run doctor --json
if grep -q "this build cannot read KV events" "$T/out"; then
    run run --remote http://127.0.0.1:1 --kv-events tcp://127.0.0.1:1 hello
    [ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "this build cannot read KV events: libzmq" "$T/err"
    result "a build without libzmq says so" $?
    plan
    exit
fi
result "doctor says what reads KV events" "$(grep -q 'libzmq [0-9.]* reads them' "$T/out"; echo $?)"
serve() { # starts a server: its address in $url, that of its events in $events
    [ -z "$server" ] || kill $server
    : >"$T/server"
    "$BUILD/tests/play_server" vllm 120 - kv >"$T/server" 2>&1 &
    server=$!
    both() { [ "$(wc -l <"$T/server")" -ge 2 ]; }; until_ok both
    url=$(sed -n 1p "$T/server") events=$(sed -n 2p "$T/server")
}
serve
run doctor --remote "$url" --kv-events "$events"
[ $rc = 0 ] && has "KV events: tcp://127.0.0.1:" && has "connected; 0 batches came"
result "doctor connects" $?
serve
lines "What is a KV cache?" /blocks | feed chat --plain --remote "$url" --kv-events "$events"
has "BLOCKS  blocks, reconstructed from events" && has "0 sliding_window 64 " && has "2 full_attention " &&
    [ "$(grep -c "  2 blocks of 16$" "$T/out")" = 3 ] && has "4 copies, session 2 of 2, 0 removed" &&
    has "16-31     16638375076199159622 in groups 0 1 2"
result "/blocks: groups, and the session's blocks" $?
has "of them asked for again" && has "exact: no batch is missing"
result "/blocks: what was lost was asked for again" $?
serve
lines "What is a KV cache?" /blocks | feed chat --json --remote "$url" --kv-events "$events"
has '"kind":"full_attention"' && has '"window":64' && has '"missed":0' && has '"held":[0,1,2]' && has '"exact":true'
result "/blocks in JSON" $?
serve
run run --remote "$url" --kv-events nonsense hello
[ $rc = 2 ] && grep -qx 'aerie: "nonsense" is no address of KV events; expected tcp://HOST:PORT' "$T/err"
result "a wrong address: one line" $?
lines /blocks | feed chat --plain --remote "$url"
grep -q "/blocks: no KV events are read: --kv-events names their address" "$T/err"
result "/blocks without --kv-events: why not" $?

screen=aerie-kv-$$
tmux -L "$screen" -f /dev/null new-session -d -x 120 -y 40 "$AERIE --remote $url --kv-events $events"
shown() { for _ in $(seq $((${TEST_WAIT:-60} * 10))); do tmux -L "$screen" capture-pane -p >"$T/out"; grep -qF -- "$1" "$T/out" && return 0; sleep 0.1; done; return 1; }
shown "ctx" && tmux -L "$screen" send-keys "What is a KV cache?" Enter && shown "The KV cache stores the keys" &&
    tmux -L "$screen" send-keys F5 && shown "blocks, reconstructed from events" && shown "full_attention"
result "the Pool pane shows them" $?
tmux -L "$screen" send-keys "/bye" Enter
plan
