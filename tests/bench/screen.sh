#!/bin/bash
# screen.sh - what the full screen costs while a server streams: processor time of the program in a terminal less that of
# `aerie run --json` over the same stream, as a share of one core.
#   BUILD=build/release-cpu tests/bench/screen.sh [RATE [TOKENS [WIDTHxHEIGHT [KEYS]]]]
# RATE: tokens a second (600); TOKENS of the reply (6000); size of the terminal (120x40); KEYS: opens panes, as
# "F4 F5". Prints one line of JSON. Needs tmux. Nothing here gates a test.
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build/release-cpu} RATE=${1:-600} TOKENS=${2:-6000} SIZE=${3:-120x40} KEYS=${4-}
T=$(mktemp -d) || exit 2
socket=aerie-bench-$$
trap 'tmux -L $socket kill-server 2>/dev/null; kill $server 2>/dev/null; rm -rf "$T"' EXIT
export XDG_DATA_HOME=$T/data XDG_CONFIG_HOME=$T/config XDG_STATE_HOME=$T/state HOME=$T LC_ALL=C.UTF-8
unset TMUX NO_COLOR
"$BUILD/tests/play_stream" vllm 600 "$RATE" "$TOKENS" >"$T/server" & server=$!
until [ -s "$T/server" ]; do sleep 0.01; done
url=$(head -n 1 "$T/server")
tick=$(getconf CLK_TCK)
ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f12,13 | tr ' ' '+' | bc; } # user + system
now() { date +%s%N; }

# without a screen
begin=$(now)
"$BUILD/aerie" run --json --no-log --remote "$url" hello >"$T/out" & plain=$!
cpu=0
while t=$(ticks $plain) && [ "$t" ]; do cpu=$t; sleep 0.02; done
wait $plain
plain_s=$(echo "scale=3; ($(now) - $begin) / 1000000000" | bc); plain_cpu=$cpu

# with one
tmux -L $socket -f /dev/null new-session -d -x "${SIZE%x*}" -y "${SIZE#*x}" \
    "env TERM=screen-256color $BUILD/aerie --no-log --remote $url"
shown() { tmux -L $socket capture-pane -p | grep -qE "$1"; }
until shown 'ctx '; do sleep 0.05; done
for k in $KEYS; do tmux -L $socket send-keys "$k"; done
pid=$(tmux -L $socket display -p '#{pane_pid}')
sleep 1
first=$(ticks "$pid"); begin=$(now)
tmux -L $socket send-keys "hello" Enter
length=$(awk -v n=$((TOKENS + 17)) 'BEGIN { printf n < 1000 ? "%d" : n < 9950 ? "%.1fk" : "%.0fk", n < 1000 ? n : n / 1000 }')
end=$((SECONDS + TOKENS * 3 / RATE + 20))
until shown "ctx ${length}[/ ]"; do
    [ $SECONDS -lt $end ] || { echo "screen.sh: the reply did not end" >&2; exit 1; }
    sleep 0.1
done
screen_s=$(echo "scale=3; ($(now) - $begin) / 1000000000" | bc)
screen_cpu=$(($(ticks "$pid") - first))
awk -v rate="$RATE" -v tokens="$TOKENS" -v size="$SIZE" -v keys="$KEYS" -v tick="$tick" -v pc="$plain_cpu" -v ps="$plain_s" \
    -v sc="$screen_cpu" -v ss="$screen_s" 'BEGIN {
    printf "{\"tokens_s\":%.0f,\"tokens\":%d,\"terminal\":\"%s\",\"panes\":\"%s\",\"plain_core_pct\":%.2f,\"screen_core_pct\":%.2f,\"screen_less_plain_pct\":%.2f}\n",
        tokens / ss, tokens, size, keys, 100 * pc / tick / ps, 100 * sc / tick / ss, 100 * (sc / tick - pc / tick) / ss }'
