#!/bin/bash
# Which tool finds which historical fault: a line for each fault (`aerie bugs`) and variant. It is switched on in the bundled
# model, and each tool is run as its user would: nothing knows which fault it is, but diff, which is told to switch it off.
#   tests/bench/bugs.sh FILE [FAULT[=VARIANT]...]     all of them: half an hour of one processor. FILE gets a line for each:
#                                                     NAME TOOL RESULT SECONDS WHAT, apart by tabs; "make docs" reads it
#   tests/bench/bugs.sh --table FILE                  the table of a file, in Markdown
# RESULT: found, missed, or none where the tool does not apply. SECONDS: processor time (user and system) of the tool, of
# the server, too, where there is one; the session that is looked at is not counted. Variables: AERIE the program, TOOLS some of
# the tools, JOBS how many faults are tried side by side.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}

# ---- the table ----
if [ "$1" = --table ]; then
    awk -F '\t' 'BEGIN {
        n = split("checker diff probe kl triage case", tool, " ")
        printf "| fault |"; for (i = 1; i <= n; i++) printf " %s |", tool[i]
        printf "\n|---|"; for (i = 1; i <= n; i++) printf "---|"; print ""
    }
    { if (!($1 in seen)) { seen[$1] = 1; name[++rows] = $1 }
      text = $3 == "found" ? $5 ", " $4 " s" : $3 == "missed" ? "no: " $5 ", " $4 " s" : "- " $5
      cell[$1, $2] = text; got[$2] += $3 == "found"; asked[$2] += $3 != "none" }
    END {
        for (r = 1; r <= rows; r++) {
            printf "| %s |", name[r]
            for (i = 1; i <= n; i++) printf " %s |", cell[name[r], tool[i]]
            print ""
        }
        printf "| found, of those it applies to |"
        for (i = 1; i <= n; i++) printf " %d of %d |", got[tool[i]], asked[tool[i]]
        print ""
    }' "$2"
    exit
fi

out=$1; shift
[ -n "$out" ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
: >"$out" || exit 2
T=$(mktemp -d "${TMPDIR:-/tmp}/aerie-bugs-XXXXXX") || exit 2
server=
clean() { [ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$T"; }
trap clean EXIT
export LC_ALL=C.UTF-8 TERM=dumb NO_COLOR=1
unset NO_GPU VISUAL EDITOR TMUX
TIMEFORMAT='%U %S'

# ---- what is run ----
faults() { # all faults with their variants, as the program lists them
    "$AERIE" bugs | awk '/^[0-9]+ / { if (n && !v) print n; n = $1; v = 0 } $1 == "variant" { print n "=" $2; v = 1 } END { if (!v) print n }'
}
# Beside a tree of 16 nodes: settings without which a fault changes nothing (`aerie bugs` says so for each).
flags() {
    flag=(--threads 1 -p draft.topk=4 -p draft.nodes=16 -p temperature=0 -p chunk=32)
    case $1 in
    27789*) flag+=(--page-size 2) ;;
    47728*) flag+=(--page-size 1) ;;
    17630*) flag+=(--swa-pages 16) ;; # fewer than the full pool has
    22819*) flag+=(-p chunk=16) ;; # a chunk of one page
    esac
}
# A conversation that crosses the window, rewinds and goes on.
story='A secret code hides here. In a cave full of echoes everyone knew Mei. She was shy, but she had no friends yet.'
story+=' One evening she decided to find the end of the rainbow. She packed a box with three locks and a'
talk() {
    printf '%s\n' '/set max_tokens 96' "$story lamp, and went to the hills." /undo "$story rope, and went to the sea." \
        'Tell me a story about a fox.' 'And one about an owl.' 'What is a page table?'
}
place() { # NAME: a folder for the files of one session
    export HOME=$T/$1 XDG_DATA_HOME=$T/$1 XDG_CONFIG_HOME=$T/$1 XDG_STATE_HOME=$T/$1
    mkdir -p "$HOME/aerie"; printf 'device = cpu\nload = map\n' >"$HOME/aerie/config"
}
session() { # NAME CHECK FAULT: that conversation
    place "$1"
    talk | "$AERIE" --plain -q --check "$2" --bug "$3" "${flag[@]}" >"$T/said" 2>"$T/told"
}
took() { # COMMAND...: sets seconds to its processor time, rc to its status
    { time "$@" >"$T/got" 2>"$T/told"; } 2>"$T/time"; rc=$?
    seconds=$(awk '{ printf "%.2f", $1 + $2 }' "$T/time")
}
line() { # TOOL RESULT WHAT
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$1" "$2" "$seconds" "$3" | tee -a "$out"
}
in_json() { grep -oE "\"$1\":(\"[^\"]*\"|[-0-9.e+]+)" "$T/got" | head -n 1 | sed -E 's/^[^:]*://; s/^"//; s/"$//'; } # KEY

# ---- the tools ----
# A fault in a drafter's tables changes drafts alone: the target decides each token, so no reply of a server has a trace of it.
drafts_alone() { case $1 in 27360 | 26512* | 26966* | 50170 | 17630 | 34823) true ;; *) false ;; esac; }
rule_in() { grep -ohE '\bI[0-9]+ [a-z].*' "$@" | head -n 1; }
# Rules about pools, tokens, random numbers and results, which no case holds (history/pack/CASE.md).
beyond_a_step() { case $1 in I1 | I2 | I3 | I14 | I15 | I16 | I17 | I19 | I20) true ;; *) false ;; esac; }

checker() {
    local rule
    place on
    took session on on "$name"; rule=$(rule_in "$T/told"); where=$rule
    [ -z "$rule" ] || { line checker found "${rule%% *} in a chat"; return; }
    # requests that begin alike, computed together
    for end in lamp rope hat; do printf '{"prompt":"%s %s"}\n' "$story" "$end"; done >"$T/prompts"
    took "$AERIE" run --batch "$T/prompts" --lanes 2 --no-log --check on --bug "$name" "${flag[@]}"; rule=$(rule_in "$T/told")
    [ -z "$rule" ] || { line checker found "${rule%% *} in a batch"; return; }
    # requests to a server, some of which begin as earlier ones do
    took watched; rule=$(rule_in "$T/got")
    [ -z "$rule" ] || { line checker found "${rule%% *} in a server"; return; }
    local model=()
    case $name in 26966=cached-at-start | 26966=dummy-pool) model=(-m tests/golden/gemma4-a --draft tests/golden/gemma4-a-assistant) ;; esac
    took "$AERIE" bugs --try "${name%=*}" "${model[@]}"
    rule=$(awk -v want="${name#*=}" '/^[0-9]+ /{ mine = want ~ /^[0-9]/ || index($0, "(" want ")") } mine && $1 == "checker" { print $2; exit }' "$T/got")
    if [ -n "$rule" ]; then line checker found "$rule by its smallest input"; else line checker missed "no rule"; fi
}

unreached() { # why the chat has no trace of a fault
    case $name in
    26966=cached-at-start | 26966=dummy-pool) echo 'needs a frozen drafter' ;;
    10875 | 34823 | 41838) echo 'acts between sequences' ;;
    *) echo 'the chat does not reach it' ;;
    esac
}
# The session that the tools below look at was recorded without the checker.
differ() {
    took "$AERIE" diff last --json --with "bug.${name%=*}=off"
    if [ $rc = 0 ]; then
        if [ -n "$where" ]; then line diff missed "equal"; else line diff none "$(unreached)"; fi
    elif [ "$(in_json verdict)" != bug ]; then
        line diff missed "verdict $(in_json verdict)"
    else
        differs=$(in_json turn).$(in_json step)
        line diff found "step $differs: $(in_json class)"
    fi
}

attention_step() { # the plan of the first step that breaks a rule, or else of the first that differs
    local at rule spent=0
    took "$AERIE" replay last --with check=strict
    at=$(grep -ohE 'rule violated at step [0-9.]+[0-9]' "$T/got" "$T/told" | head -n 1); at=${at##* }
    rule=$(rule_in "$T/got" "$T/told"); rule=${rule%% *}
    if [ -z "$at" ]; then line case none "$(unreached)"; return; fi
    if beyond_a_step "$rule"; then line case none "$rule is not about a step's tables"; return; fi
    for at in "$at" $differs; do
        "$AERIE" pack last --plan "$at" -o "$HOME/$at.aerie" >"$T/packed" 2>&1
        took "$AERIE" check "$HOME/$at-$at.json"
        spent=$(awk -v a="$spent" -v b="$seconds" 'BEGIN { printf "%.2f", a + b }'); seconds=$spent
        rule=$(rule_in "$T/got" "$T/told")
        [ -z "$rule" ] || { line case found "${rule%% *} at step $at"; return; }
    done
    if grep -q '^no rule is violated' "$T/got"; then line case missed "no rule at step $at"
    else line case missed "$(head -qn 1 "$T/told" "$T/packed" | tr '\n' ' ' | cut -c1-80)"; fi
}

triage() {
    local first rule
    took "$AERIE" triage last
    first=$(sed -n 's/^ 1 //p' "$T/got" | head -n 1); rule=$(sed -nE 's/^ .*the checker: (I[0-9]+) .*/\1/p' "$T/got" | head -n 1)
    if [ -n "$rule" ]; then
        case $first in *'pages of another pool'*) first='wrong pages' ;; 'captured states'*) first='wrong states' ;; esac
        line triage found "$rule: ${first% (*}"
    elif drafts_alone "$name"; then
        [ -n "$where" ] || { line triage none "$(unreached)"; return; }
        line triage missed "$(grep -oE '^verdict +.*|nothing was drafted.*' "$T/got" "$T/told" -h | head -n 1 | cut -c1-70)"
    else
        line triage none "not about drafts"
    fi
}

serve() { # CHECK
    : >"$T/served"
    "$AERIE" serve --port 0 --no-log --lanes 2 --context 224 --check "$1" --bug "$name" "${flag[@]}" >"$T/served" 2>&1 &
    server=$!
    until grep -q 'http://' "$T/served"; do sleep 0.05; kill -0 "$server" 2>/dev/null || break; done
    url=$(grep -o 'http://[0-9.:]*' "$T/served" | head -n 1)
}
stop() { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; server=; }
watched() {
    serve on
    timeout 250 "$AERIE" probe "$url" -n 4 --json --no-log
    stop
}
# Cases one after the other until one is found, and made smaller.
hunt() {
    serve off
    rm -f "$T/state"
    for ((i = 1; i <= 20; i++)); do
        timeout 250 "$AERIE" probe "$url" -n $i --json --no-log --state "$T/state" >"$T/hunted" 2>"$T/hunt-told"; rc=$?
        cat "$T/hunted"
        [ $rc = 0 ] || break
    done
    stop
    return "$rc"
}
measure() { # log probabilities at decode and of a prompt
    serve off
    timeout 250 "$AERIE" kl "$url" --json 2>&1; rc=$?
    stop
    return "$rc"
}
# Faults that no request to a server can meet.
beyond_requests() { # TOOL
    local why
    if drafts_alone "$name"; then why='changes drafts alone'
    elif [ "$name" = 41838 ]; then why='a server shares finished prompts only'
    else return 1
    fi
    seconds=0; line "$1" none "$why"
}
probe() {
    beyond_requests probe && return
    took hunt
    cp "$T/hunted" "$T/got"
    if [ $rc = 1 ]; then
        local of=$(($(in_json requests_before) + $(grep -oE '"margin":.*' "$T/got" | grep -oE '"requests":[0-9]+' | head -n 1 | cut -d: -f2)))
        local what; what=$(in_json what); case $what in *fails*) what=fails ;; *instead*) what='another id' ;; *) what='log probabilities' ;; esac
        line probe found "$of requests, $(in_json kind): $what"
    else
        line probe missed "20 cases, $(in_json requests_before) requests"
    fi
}
kl() {
    beyond_requests kl && return
    took measure
    case $rc in
    0) line kl missed "zero in $(in_json tokens) tokens" ;;
    1) line kl found "$(printf 'k3 %.2g, largest %.2g' "$(in_json k3_mean)" "$(in_json largest)")" ;;
    *) line kl found "a request fails" ;;
    esac
}

# Several faults at once: each in a run of its own, whose lines are put in the order of the faults.
if [ "${JOBS:-1}" -gt 1 ]; then
    names=("$@"); [ $# -gt 0 ] || mapfile -t names < <(faults)
    at_once=$JOBS; export JOBS=1
    printf '%s\n' "${names[@]}" | xargs -P "$at_once" -I{} tests/bench/bugs.sh "$T/{}" {}
    for name in "${names[@]}"; do cat "$T/$name"; done >"$out"
    exit
fi

wanted() { case " ${TOOLS:-$1} " in *" $1 "*) true ;; *) false ;; esac; }
[ $# -gt 0 ] || mapfile -t all < <(faults)
for name in "$@" "${all[@]}"; do
    flags "$name"
    where='' differs=''
    wanted checker && checker
    place off; session off off "$name"
    wanted diff && differ
    wanted probe && probe
    wanted kl && kl
    place off
    wanted triage && triage
    wanted case && attention_step
    rm -rf "$T/on" "$T/off"
done
