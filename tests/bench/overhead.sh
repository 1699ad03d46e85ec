#!/bin/bash
# The rows of tests/bench/remote.md about the client's overhead: made-up streams of fixed speeds, aerie serve, and the
# servers named in the arguments (NAME=URL), one after the other.
#   tests/bench/overhead.sh [NAME=URL...]        PAIRS: of each row (40); BUILD (build/release-cpu)
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD:-build/release-cpu} pairs=${PAIRS:-40}
log=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$log"' EXIT
row() { python3 tests/bench/overhead.py "$2" --aerie "$build/aerie" --name "$1" --pairs "$pairs" ${3:+--tokens $3} 2>"$log/err" || tail -1 "$log/err"; }
stream() { # RATE TOKENS FIRST_MS
    "$build/tests/play_stream" vllm 900 "$@" >"$log/$1" &
    pids="$pids $!"
    until [ -s "$log/$1" ]; do sleep 0.05; done
    row "stream of $1 tokens/s, first after $3 ms" "$(head -n 1 "$log/$1")" "$2"
}
echo "| server | pairs | first text, ms: curl | aerie | difference (IQR) | | last text, ms: curl | aerie | difference (IQR) | | processor time, ms: curl | aerie |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
stream 500 200 20
stream 1000 400 20
stream 2000 800 20
stream 5000 1000 20
XDG_DATA_HOME=$log XDG_CONFIG_HOME=$log XDG_STATE_HOME=$log "$build/aerie" serve --port 0 -n --threads 1 >"$log/serve" 2>&1 &
pids="$pids $!"
until grep -qs http "$log/serve"; do sleep 0.05; done
row "aerie serve, bundled model, 1 thread" "$(grep -oE 'http://[0-9.:]+' "$log/serve")" 200
for s in "$@"; do
    row "${s%%=*}" "${s#*=}" 200
done
