#!/bin/bash
# One recorded run of aerie over a real server, a file for each part, and what is measured there.
#   tests/bench/remote.sh LOGS URL [URL2]
# URL2: a second server of the same model, computed in another way (with drafts, on more GPUs). aerie serve,
# vLLM, SGLang or llama-server; the local engine computes the same model (MODEL) beside them, on each of DEVICES.
# Environment: AERIE (build/release-cpu/aerie), MODEL (the bundled model), DEVICES ("cpu"), NAME (the model's name
# on the server), KV_EVENTS (address of its KV events), N (24 prompts), PAIRS (30), LIMIT (120 seconds a part),
# PARTS (all): words of doctor chat cancel metrics events batch diff parity overhead screen
cd "$(dirname "$0")/../.." || exit 2
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
logs=$1 url=$2 url2=$3
devices=${DEVICES:-cpu} aerie=${AERIE:-build/release-cpu/aerie} name=${NAME:+-m $NAME} local=${MODEL:+-m $MODEL}
parts=${PARTS:-doctor chat cancel metrics events batch diff parity overhead screen}
mkdir -p "$logs"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export XDG_DATA_HOME=$home XDG_CONFIG_HOME=$home XDG_STATE_HOME=$home LC_ALL=C.UTF-8

wants() { [[ " $parts " == *" $1 "* ]]; }

# part FILE COMMAND...: the command, its output and its exit status, appended to a file of the logs.
part() {
    local file=$logs/$1.txt start=$SECONDS rc; shift
    echo "\$ $*" >>"$file"
    timeout "${LIMIT:-120}" "$@" >>"$file" 2>&1 </dev/null
    rc=$?
    echo "[exit $rc, $((SECONDS - start)) s]" >>"$file"
    echo "$(basename "$file" .txt): ${*:1:4} ...: exit $rc, $((SECONDS - start)) s"
}

# say FILE URL LINE...: a chat in lines; prints the number of its session.
say() {
    local file=$logs/$1.txt at=$2; shift 2
    printf '$ aerie chat --plain --remote %s\n' "$at" >>"$file"
    printf '%s\n' "$@" | sed 's/^/> /' >>"$file"
    printf '%s\n' "$@" | timeout "${LIMIT:-120}" $aerie chat --plain --remote "$at" $name $events -p temperature=0 >>"$file" 2>&1
    echo "[exit $?]" >>"$file"
    newest
}
newest() { $aerie logs -n 1 --json | sed -E 's/.*"number":([0-9]+).*/\1/' | head -n 1; }
gauges() { curl -s --max-time 5 "$1/metrics" | grep -E '^(vllm|sglang|llamacpp|aerie):' | grep -vE '_bucket|_created' || echo "no metrics"; }

events=
[ -n "$KV_EVENTS" ] && events="--kv-events $KV_EVENTS"
story="Tell me a long story about a fox and a bear."
three=("My dog is called Rex." "What is my dog called?" "What is a page table?")

if wants doctor; then
    for at in $url $url2; do
        part doctor $aerie doctor --remote "$at" $name
        part doctor $aerie doctor --remote "$at" $name --json
    done
fi
if wants chat; then
    for at in $url $url2; do
        number=$(say chat "$at" "${three[@]}" /regen "$story" /stats /pool /gauges /timing /accept "/accept turn" /tokens /top \
            /undo /fork "/set temperature 0.8" "/set draft.nodes 3" "$story" /regen "/n 3 Tell me a joke." "/system Answer in one sentence." \
            "What is a KV cache?" /sessions /tree /plan)
        part chat $aerie show "$number"
        part chat $aerie show "$number" --json
        part chat $aerie export "$number" --format md
        part chat $aerie logs -q fox
        part chat $aerie pack "$number" --issue vllm -o "$home/pack-$number"
    done
fi
if wants cancel; then
    for at in $url $url2; do
        gauges "$at" >"$home/before"
        part cancel python3 tests/bench/cancel.py $aerie run --remote "$at" $name -p temperature=0 "$story"
        sleep 1
        part cancel $aerie show last
        gauges "$at" | diff "$home/before" - | grep '^[<>]' | grep -E 'running|waiting|success|abort|cancel|generation_tokens_total' >>"$logs/cancel.txt"
    done
fi
if wants metrics; then
    for at in $url $url2; do
        gauges "$at" >"$home/before"
        part metrics $aerie run --remote "$at" $name -p temperature=0 --json "$story"
        part metrics $aerie show last --json
        gauges "$at" | diff "$home/before" - | grep '^[<>]' >>"$logs/metrics.txt"
    done
fi
if wants events && [ -n "$events" ]; then
    say events "$url" "${three[@]}" "$story" /blocks /gauges "$story" /blocks "/blocks 0" >/dev/null
fi
grep -v '^#' tests/prompts.txt | awk -F'\t' 'NR % 11 == 2 {gsub(/"/, "\\\"", $2); print "{\"prompt\":\"" $2 "\"}"}' | head -n "${N:-24}" >"$logs/prompts.jsonl"
if wants batch; then
    i=0
    for at in $url $url2; do
        i=$((i + 1))
        part replies-$i $aerie run --remote "$at" $name -p temperature=0 --batch "$logs/prompts.jsonl"
    done
fi
if wants diff; then
    remote=$(say diff "$url" "${three[@]}")
    [ -z "$url2" ] || other=$(say diff "$url2" "${three[@]}")
    for device in $devices; do
        printf '%s\n' "${three[@]}" | $aerie chat --plain $local --device "$device" -p temperature=0 >>"$logs/diff.txt" 2>&1
        mine=$(newest)
        part diff $aerie diff "$mine" "$remote" $local --device "$device"
        part diff $aerie diff "$remote" --forced $local --device "$device"
        [ -z "$url2" ] || part diff $aerie diff "$mine" "$other" $local --device "$device"
    done
    [ -z "$url2" ] || part diff $aerie diff "$remote" "$other" $local --device "${devices%% *}"
fi
if wants parity; then
    one=remote:$url${NAME:+,model=$NAME}
    for device in $devices; do
        part parity $aerie parity "$logs/prompts.jsonl" --a "$one" --b local $local --device "$device" --control
        [ -z "$url2" ] || part parity $aerie parity "$logs/prompts.jsonl" --a "remote:$url2${NAME:+,model=$NAME}" --b local $local --device "$device"
    done
    [ -z "$url2" ] || part parity $aerie parity "$logs/prompts.jsonl" --a "$one" --b "remote:$url2${NAME:+,model=$NAME}" --control
fi
if wants overhead; then
    for at in $url $url2; do
        part overhead python3 tests/bench/overhead.py "$at" --aerie "$aerie" $name --pairs "${PAIRS:-30}" --prompt "$story"
    done
fi
if wants screen; then
    for at in $url $url2; do
        part screen python3 tests/bench/screens.py "$logs/screen-$(basename "$at" | tr -c '0-9a-z\n' _)" $aerie --remote "$at" $name $events -p temperature=0
    done
fi
