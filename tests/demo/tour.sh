#!/bin/bash
# The README's five things to try and the first three of repl/README.md (switch.sh is the fourth), typed literally and in
# order, in one session of a real terminal; what each step promises is on the screen. What is typed is read from these pages:
# a command, message or key that the step does not name is a failure, and so is one that it names and nobody typed.
#   tests/demo/tour.sh [AERIE]            at 80x24, 120x40 and 200x60 at once
#   SIZE="80 24" tests/demo/tour.sh       at one size; one line of TAP for each promise
here=$(cd "$(dirname "$0")" && pwd)
export AERIE; AERIE=$(realpath "${1:-${AERIE:-$here/../../build/aerie}}")
command -v tmux >/dev/null || { echo "tmux is not installed"; exit 0; }
if [ -z "${SIZE:-}" ]; then
    out=$(mktemp -d) || exit 2
    trap 'rm -rf "$out"' EXIT
    for size in "80 24" "120 40" "200 60"; do SIZE=$size "$here/tour.sh" >"$out/$size" 2>&1 & jobs+=($!); done
    bad=0; for job in "${jobs[@]}"; do wait "$job" || bad=1; done
    for f in "$out"/*; do echo "== ${f##*/}"; cat "$f"; done
    exit $bad
fi
# shellcheck source=tests/e2e/kit.sh
. "$here/../e2e/kit.sh"
clean() { M kill-server; until_ok no_server; cd /; }
pages=("$PWD/README.md" "$PWD/repl/README.md")
mkdir "$T/build" && ln -s "$AERIE" "$T/build/aerie" && cd "$T" || exit 2

# ---- what the pages say ----
step() { # N: the text of step N, and what of it is typed: commands, messages and shell commands between backquotes
    [ ${#left[@]} = 0 ] || { printf '%s\n' "${left[@]}" >"$T/out"; result "step $at: everything in it was typed" 1; }
    at=$1; left=()
    words=$(awk -v n="$1." '/^## /{on = /things to try/} on && $1 ~ /^[1-8][.]$/ {mine = $1 == n} on && mine && !/^$/ {print} /^$/{mine = 0}' "${pages[@]}" | tr -s ' \n' ' ')
    while read -r word; do case $word in /*|[A-Z]*[.?]|build/aerie*) left+=("$word") ;; esac; done < <(grep -o '`[^`]*`' <<<"$words" | tr -d '`' | awk '!seen[$0]++')
}
named() { grep -qF -- "$1" <<<"$words" || { echo "step $at does not say: $1" >"$T/out"; result "step $at: $1" 1; return 1; }; }
enter() { # TEXT: types it, if the step names it
    named "\`$1\`" || return
    local rest=() w; for w in "${left[@]}"; do [ "$w" = "$1" ] || rest+=("$w"); done; left=("${rest[@]}")
    text "$1"; key Enter
}
press() { named "$1" && shift && key "$@"; } # NAME KEY...
quiet() { # the screen has stopped changing
    local a b=; while a=$(screen); [ "$a" != "$b" ]; do b=$a; sleep 0.15; done
}
like() { screen | grep -qE -- "$1"; }
bar() { screen | tail -n 1 | sed 's/ [·|]//g'; }
state() { bar | grep -qE -- "$1"; }
await() { until_ok state "$1"; }
row() { screen | sed 's/.*│ //' | grep -E "^ *$1 +[^ ]+$" | tail -n 1 | awk '{ print $2 }'; } # of the map

# ---- the tour ----
set -- $SIZE
M new-session -d -x "$1" -y "$2" "exec env TERM=screen-256color HISTFILE= PS1='\$ ' bash --norc --noprofile"
until_ok eval 'screen | grep -q "[$]"'; text build/aerie; key Enter; wait_for 'message, or /help'

step 1
enter "My dog is called Rex."; await ' step 1\.'; quiet
check "1: the status line counts context, pools, MAL and speed" state '^ ?ctx [0-9]+/4\.1k full [0-9]+% swa [0-9]+% draft [0-9]+% MAL [0-9.]+ [0-9]+ t/s step 1\.[0-9]+ REC'
enter "What is my dog called?"; await ' step 2\.'; quiet; check "1: the reply remembers" like 'dog is called Rex'

step 2
press F2 F2; wait_for PAGES; quiet
check "2: the map has three pools" test -n "$(row full)" -a -n "$(row swa)" -a -n "$(row draft)"
check "2: nothing is released yet" eval '[[ $(row swa) != *-* ]]'
enter "Tell me a story about a fox."; await ' step 3\.'; quiet
check "2: swa releases pages, full keeps them" eval 'until_ok eval "[[ \$(row swa) == -* ]]" && [[ $(row full) != *-* ]]'
press F2 F2; wait_gone PAGES; check "2: again: close" hides PAGES
enter "/map 20"; wait_for 'POSITION 20'; quiet
check "2: where token 20 lives" eval 'like "^ +full +slot [0-9]+ = page" && like "^ +swa +released" && like "^ +draft +slot"'

step 3
check "3: a cell for each step" eval 'screen | grep "◷" | grep -qE "│.*│.*│.* [0-9]+ steps"'
newest=$(bar | grep -oE '3\.[0-9]+'); live=$(bar | grep -oE 'ctx [0-9]+')
press 'Ctrl-X [' C-x '['; await " AT $newest LIVE $newest "
key '['; key '['; key '['; await ' AT 3\.[0-9]+ '; quiet; then=$(bar | grep -oE 'AT 3\.[0-9]+'); there=$(bar | grep -oE 'ctx [0-9]+/.* MAL [^ ]+')
logged=$(printf '/at %s\n/stats\n' "${then#AT }" | build/aerie replay last --plain 2>/dev/null | sed -n 's/ ·//g; s/^status.*\(ctx .* MAL [^ ]*\) .*/\1/p')
check "3: the status line is of that step" test "$there" = "$logged" -a "${there%%/*}" != "$live"
check "3: its words are highlighted" eval 'screen -e | grep -qP "\x1b\[([0-9]+;)*4(;[0-9]+)*m"'
press 'Ctrl-X ]' C-x ']'; check "3: and back" until_ok eval '! state " $then " && state " AT 3\."'
press 'Ctrl-X t' C-x t; wait_for 'the words have the keys'; press Enter Enter; wait_for 'WORD '; quiet
check "3: a word's tokens, probabilities, pages, the second-best token" eval 'like "position [0-9]+" && like "p (0|1)\.[0-9]" && like "beat|likelier" && like "pages|full [0-9]"'
press 'Ctrl-X .' C-x .; check "3: now" until_ok eval '! state " AT " && state " step 3\."'

step 4
enter /why; wait_for 'WHY '; quiet; check "4: the last rejected token, in words and numbers" eval 'like "WHY +step 3\.[0-9]+ .* rejected" && like "draft +q 0\." && like "it chose"'
enter /layers; wait_for 'attention, mean of the heads'; quiet
check "4: what each layer read, inside the window and beyond" eval '[ "$(screen | grep -cE "^ +[0-7] (sliding|full) ")" = 8 ] && like "in W +old"'
enter "/attn 3"; wait_for "reproduces the layer's output"; quiet; check "4: the pages that layer 3 read most" like 'page +mean +positions'
enter "/accept window"; wait_for 'rate = accepted'; quiet; check "4: where drafts are rejected" like '[-+][0-9]+ to [-+][0-9]+ +[0-9]+ +[0-9]+ +[0-9]+'

step 5
enter "/set draft.topk 4"; enter "/set draft.nodes 16"; enter "/bug 24617 on"; wait_for '24617 swa-untranslated is on'
check "5: nothing keeps the fault from firing" hides 'cannot fire now'
enter "Tell me a story about an owl."; wait_for 'stopped: fault'; quiet
check "5: rule, table, row and slot" like 'I4 verify swa table row [0-9]+: .*slot [0-9]+'
check "5: the status line warns" state 'BUG 24617'
enter "/bug 24617 off"; wait_for 'is off'; quiet; check "5: and ends" eval '! state "BUG"'

step 6
enter /phase; wait_for 'the next turn pauses'; enter "Tell me a story about a hen."
check "6: the turn pauses where it begins" await 'PAUSED 5\.0'
enter /phase; await 'PAUSED 5\.1'; enter /phase; await 'PAUSED 5\.2 draft'
enter /tree; wait_for 'TREE'; quiet; check "6: the tree before it is verified" eval 'like "TREE +step 5\.2" && like "not verified|\?" && ! like "✓ *$"'
tree() { screen | tac | sed '/TREE  /q' | grep -qE -- "$1"; } # the newest one
enter /phase; await 'PAUSED 5\.2 verify'; enter /tree; check "6: after verify: what will be accepted" until_ok tree 'p [.01][0-9.]+ +✓'
check "6: and nothing is left unverified" eval '! tree "not verified"'
enter /phase; await 'PAUSED 5\.2 accept'; enter /phase; await 'PAUSED 5\.2 commit'; enter /step; check "6: /step runs to the end of the step" await 'PAUSED 5\.2 ctx'
enter "/what-if draft.topk=2"; wait_for 'computed twice and dropped'; quiet
check "6: the next step both ways, side by side" eval 'like "as it is: draft.topk=4" && hides "nothing was changed" && like "drafted nodes +[0-9]+ +[0-9]+"'
enter '/force " cat"'; check "6: a token by hand" wait_for 'the next token will be'
enter /rstep; check "6: a step back" await 'PAUSED 5\.1 \(of 5\.2\)'
enter "/break accept==0"; wait_for 'breakpoint 1'
press 'Ctrl-X s' C-x s; check "6: Ctrl-X s: single letters" await '\[s p n f c w S N\]'; key C-x s
for _ in $(seq 40); do enter /continue; quiet; state PAUSED || break; done
check "6: /continue runs on to the end" eval '! state PAUSED && state " step 5\."'
check "6: the reply is on the screen, below what was asked" eval 'screen | sed "/^─/,\$d; s/│.*//; s/ *\$//" | grep -v "^ *\$" | tail -n 1 | grep -qE "^  [A-Za-z].*[.!?\"]\$"'

step 7
sh_run() { # COMMAND: in the shell, its status on the screen
    named "\`$1\`" || return
    local rest=() w; for w in "${left[@]}"; do [ "$w" = "$1" ] || rest+=("$w"); done; left=("${rest[@]}")
    runs=$((runs + 1)) # its line differs from the one before, which is on the screen until the shell clears it
    text "clear; $1 >$T/said 2>&1; echo \"left $runs: \$?\""; key Enter; until_ok like "^left $runs: [0-9]"
}
ended() { like "^left $runs: 0"; }
enter /bye; until_ok eval '! state " REC"'
sh_run "build/aerie logs"; check "7: the session is listed" eval 'ended && grep -q "My dog is called Rex" "$T/said"'
sh_run "build/aerie show last"; check "7: and printed" eval 'ended && grep -q "story about a hen" "$T/said"'
sh_run "build/aerie replay last --check"; cp "$T/said" "$T/out"; check "7: every step gives the same" ended
text clear; key Enter; enter "build/aerie replay last"; check "7: the recording, without a model" await 'RECORDING 5\.'
text /bye; key Enter; until_ok eval '! state RECORDING'

step 8
sh_run "build/aerie diff last --with page_size=4"; check "8: other pages are no bug" eval 'ended && ! grep -qi "verdict.*bug" "$T/said"'
sh_run "build/aerie bugs --try 24617"; check "8: the damage" grep -qiE 'I4|24617' "$T/said"
step end
plan
