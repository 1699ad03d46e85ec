#!/bin/bash
# aerie's probe, kl, parity and triage beside vLLM, or beside any server that aerie talks to, each twice: what only one of two
# runs sees is no finding.
#   tests/peers/vllm.sh LOGS URL [NAME]             a server that runs, NAME in what is printed; nobody else should use it
#   tests/peers/vllm.sh LOGS KIT [plain|eagle]...   starts vLLM with the bundled model, without and with its EAGLE3 head
#                                                   (five drafts a step), and stops it again
# LOGS gets a file for each run of a command, and NAME-summary with what is printed: seconds, status, and the lines that
# count, of both runs. Exit 1 if a command failed (what it finds is no failure), 2 if no server answered.
#
# KIT is a folder with kit/serve.sh, which takes OUTDIR plain|eagle, starts vLLM and runs the shell command in CLIENT with its
# port in PORT; or one with install.sh, which unpacks such a folder to AERIE_VLLM (LOGS/vllm). It needs a GPU, and what
# the kit says. A server by URL needs nothing but aerie.
# Variables: AERIE the program; MODEL a local folder of the server's model for parity (the bundled one; "" leaves parity out);
# CASES of probe (40); LIMIT seconds of one command (150); SHAPE flags of probe ("--shape window=64 --shape page=16");
# OPTIONS of the server behind those of the kit (on a GPU that others use: "--kv-cache-memory-bytes 4294967296", since vLLM
# else stops when somebody frees memory while it starts).
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
MODEL=${MODEL-$PWD/models/nestling/target}
[ $# -ge 2 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1" && logs=$(cd "$1" && pwd) || exit 2
where=$2; shift 2

# ---- one server ----
home=$(mktemp -d) || exit 2
trap 'rm -rf "$home"' EXIT
run_in_home() { env HOME="$home" XDG_DATA_HOME="$home" XDG_CONFIG_HOME="$home" XDG_STATE_HOME="$home" TERM=dumb NO_COLOR=1 LC_ALL=C.UTF-8 "$@"; }

# The line of a log that counts, without what differs from run to run by nature.
counts() { # NAME FILE
    case $1 in
    kl) grep -E '^(k3|zero)' "$2" | head -n 1 ;;
    probe) { grep -E '^[0-9]+\. [^:]*: ' "$2" | sed -E 's/^[0-9]+\. //; s/; margin.*//' | sort -u | head -n 4; grep -E '^(no difference|different)' "$2"; } | paste -sd '|' ;;
    parity) grep -E '^(equal|different|log probabilities)' "$2" | paste -sd '|' ;;
    triage) grep -E '^verdict|reports no drafts|nothing was drafted' "$2" | tr -s ' ' ;;
    esac
}
bad=0
tell() { echo "$1" | tee -a "$logs/$name-summary"; }
twice() { # SERVER COMMAND ARGUMENT...
    local server=$1 what=$2 i rc begun took line first=''; shift
    for i in 1 2; do
        begun=$SECONDS
        run_in_home timeout "${LIMIT:-150}" "$AERIE" "$@" >"$logs/$server-$what-$i.txt" 2>&1; rc=$?
        took=$((SECONDS - begun)) line=$(counts "$what" "$logs/$server-$what-$i.txt")
        [ -n "$line" ] || line=$(tail -n 1 "$logs/$server-$what-$i.txt")
        tell "$(printf '%-6s %-7s %d %4d s  status %d  %s' "$server" "$what" $i "$took" $rc "$line")"
        [ $rc -le 1 ] || bad=1
        [ $i = 1 ] || [ "$line" = "$first" ] || tell "$server $what: not the same twice"
        first=$line
    done
}
ask() { # SERVER URL
    local shape; read -ra shape <<<"${SHAPE---shape window=64 --shape page=16}"
    run_in_home "$AERIE" doctor --remote "$2" >"$logs/$1-doctor.txt" 2>&1 || { tell "$1: $(tail -n 1 "$logs/$1-doctor.txt")"; return 2; }
    tell "$1: $(grep -m 1 -E ' server ' "$logs/$1-doctor.txt" | tr -s ' ')"
    # first, while the counters are those of its own requests; a server that was started without a draft is not asked
    [ "$1" = plain ] || twice "$1" triage "$2" -n 8
    twice "$1" kl "$2"
    twice "$1" probe "$2" --no-log -n "${CASES:-40}" "${shape[@]}"
    if [ -n "$MODEL" ]; then
        printf '%s\n' 'What is a page table?' 'Tell me a story about a fox.' 'Count to ten.' 'Who are you?' \
            'How do I bake bread?' 'What is speculative decoding?' >"$home/prompts"
        twice "$1" parity "$home/prompts" --a "remote:$2" --b local -m "$MODEL" --device cpu -p max_tokens=40
    fi
    return $bad
}

case $where in
http://* | https://*) name=${1:-server}; : >"$logs/$name-summary"; ask "$name" "$where"; exit ;;
esac

# ---- vLLM from a kit ----
kit=$where
if [ ! -f "$kit/kit/serve.sh" ]; then
    [ -f "$kit/install.sh" ] || { echo "vllm.sh: $kit has neither kit/serve.sh nor install.sh" >&2; exit 2; }
    export AERIE_VLLM=${AERIE_VLLM:-$logs/vllm}
    bash "$kit/install.sh" "$kit" >"$logs/install.txt" 2>&1 || { tail -n 3 "$logs/install.txt" >&2; exit 2; }
    kit=$AERIE_VLLM
fi
[ $# -gt 0 ] || set -- plain eagle
rc=0
read -ra options <<<"${OPTIONS-}"
for mode in "$@"; do
    begun=$SECONDS
    # PORT is known to the shell that serve.sh starts
    CLIENT="$(printf '%q ' env "AERIE=$AERIE" "MODEL=$MODEL" tests/peers/vllm.sh "$logs")"'http://127.0.0.1:$PORT '"$mode" \
        CLIENT_LIMIT=${CLIENT_LIMIT:-900} bash "$kit/kit/serve.sh" "$logs" "$mode" \
        -- "${options[@]}" >"$logs/$mode-serve.txt" 2>&1 || rc=1
    cat "$logs/$mode-summary" 2>/dev/null
    echo "$mode: $((SECONDS - begun)) s, $(grep -m 1 -E '^(up|server died)' "$logs/$mode-serve.txt")"
done
exit $rc
