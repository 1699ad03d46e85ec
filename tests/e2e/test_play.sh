#!/bin/bash
# aerie replay ID without --check: a saved session is played from its log alone, without a model. Every view shows every
# step, the commands of the debugger move through it, in lines and as JSON, from a log and from a pack.
. "$(dirname "$0")/kit.sh"

# ---- what is seen live, step by step, is what the recording shows ----
lines /step "Count to nine." /step /pages /step /pages /tree "/step 2" "/map 20" /tree /finish "Tell me about the sky." /undo "Hello!" |
    feed --plain -p draft.topk=2 -p draft.nodes=12 --page-size 4; cp "$T/out" "$T/live"
[ $rc = 0 ]; result "a session is stepped and saved" $?
sqlite3 "$DB" "update model set dir = '/nowhere'" # a recording opens no model
blocks() { sed -n '/^PAGES/,/^window/p; /^TREE/,/^q: /p; /^position/,/^draft/p' "$1"; } # what the views printed
lines "/goto 1.1" /pages "/goto 1.2" /pages /tree "/step 2" "/map 20" /tree | feed replay last; cp "$T/out" "$T/played"
[ $rc = 0 ] && grep -q '^after step 1.4$' "$T/out"; result "/goto and /step move to a step" $?
[ "$(blocks "$T/live" | grep -c '^PAGES\|^TREE')" = 4 ] && diff <(blocks "$T/live") <(blocks "$T/played") >"$T/out"
result "trees and pages are those that the engine showed there" $?
lines /where "/rstep" /where "/goto 1.0" /where /step /next /finish "/goto 9.9" "/goto 1.999" | feed replay last
[ $rc = 1 ] && grep -q '^turn 1 begins$' "$T/out" && grep -q '^after step 1.1$' "$T/out" && grep -q '^turn 2 begins$' "$T/out" &&
    grep -q 'no turn 9: its turns are 1 to 3' "$T/err" && grep -q 'no step 1.999: turn 1 has' "$T/err"
result "backwards, to where a turn begins, to the turn's end; what is not there is said in a line" $?
lines "/goto 1.0" "/until accepted>=2 && drafted>0" /where /stats "/break node.depth>=2 && !node.accepted" /continue /breaks | feed replay last
[ $rc = 0 ] && grep -q 'accepted>=2 && drafted>0$' "$T/out" && grep -q 'breakpoint 1: .*(node' "$T/out" && grep -q '(1 time)' "$T/out"
result "/until and /break search the recorded steps" $?
lines hello /plan "/set temperature=1" /undo /check /new | feed replay last
[ $rc -le 2 ] && [ "$(grep -c 'this is a recording: nothing is computed in it. aerie --session 1 goes on with it' "$T/err")" -ge 3 ] &&
    [ "$(grep -c 'a recorded session has no engine' "$T/err")" = 2 ] && ! grep -q 'left the context' "$T/out"; result "what needs an engine is refused and says how to go on" $?
lines "/title x" "/export md x.md" | feed replay last; [ "$(grep -c 'which --readonly and a replay forbid' "$T/err")" = 2 ]; result "and what writes, with the reason" $?
lines "/goto 1.2" /tree /pages /pool /stats /where "/map 3" | feed replay last --json
[ $rc = 0 ] && ! grep -vq '^{' "$T/out" && grep -q '"paused":true,"turn":1,"step":2' "$T/out" && grep -q '"command":"pages"' "$T/out"
result "--json: an object a line" $?
before=$(sqlite3 "$DB" "select count(*) from turn"); lines /goto\ 1.1 /bye | feed replay last; [ "$before" = "$(sqlite3 "$DB" "select count(*) from turn")" ]
result "nothing is saved" $?

lines "/at 1.2" /tree /where "/at live" /where | feed replay last
[ $rc = 0 ] && grep -q '^TREE *step 1.2' "$T/out" && [ "$(grep -c '^after step' "$T/out")" = 2 ] && grep -q '^after step 1.2$' "$T/out"
result "/at moves, too" $?

# ---- a live session that was taken up: steps of the process before come from the log ----
lines "Count to nine." /pages | feed --plain; lines "/at 1.6" /pages "/map 20" "/at 1.2" /tree | feed --plain -c
[ $rc = 0 ] && grep -q '^PAGES turn 1 step 6' "$T/out" && grep -q '^POSITION 20' "$T/out" && grep -q '^TREE *step 1.2' "$T/out"
result "pages, positions and trees of earlier steps are read from the log" $?

# ---- a pack; a log without page events; no steps at all ----
run pack last -o "$T/session.aerie"; lines "/goto 1.2" /pages /tree hello | feed replay "$T/session.aerie"
[ $rc = 2 ] && grep -q '^after step 1.2$' "$T/out" && grep -q '^TREE *step 1.2' "$T/out" && grep -q 'run again' "$T/err"
result "a pack is played, too" $?
lines "Count to nine." | feed --plain --log-level steps; lines "/goto 1.2" /pages | feed replay last
[ $rc = 1 ] && grep -q 'has no page events' "$T/err"; result "without page events the page table is refused by name" $?
lines "Count to nine." | feed --plain --log-level text; lines /where /pages /tree | feed replay last
[ $rc = 1 ] && [ "$(grep -c 'has no steps: the log level was text' "$T/err")" -ge 2 ]; result "without steps, too" $?
run replay last --tui; [ $rc = 2 ] && grep -q 'not a terminal' "$T/err"; result "--tui without a terminal is refused" $?
run replay nowhere; [ $rc = 1 ]; result "a session that is not there" $?

# ---- the full screen ----
if command -v tmux >/dev/null; then
    clean() { M kill-server; }
    shows() { screen >"$T/out"; like "$1"; } # a pattern
    say() { text "$1"; key Enter; }
    lines "Count to nine." "Hello!" | feed --plain
    for size in 80x24 200x60; do
        M kill-server; until_ok no_server
        M new-session -d -x "${size%x*}" -y "${size#*x}" "TERM=screen-256color $AERIE replay last"
        wait_for 'RECORDING 2\.[0-9]' && wait_for 'Hello!'; result "$size: a recording opens at its end, with its transcript" $?
        say /goto\ 1.2; wait_for 'RECORDING 1\.2 ' && key F2 && wait_for 'PAGES 1\.2 '; result "$size: /goto moves panes and status line" $?
        key Escape; wait_for 'the pane has the keys'; key ']'; wait_for 'RECORDING 1\.3 ' && wait_for 'PAGES 1\.3 '; result "$size: keys step through time" $?
        key Escape; key F2; say hello; wait_for 'nothing is computed'; result "$size: a message is refused in words" $?
    done
    # a turn that a rule stopped: live, and played from the log
    stopped() { screen >"$T/out"; [ "$(grep '^◷' "$T/out" | grep -o '✗' | wc -l)" = 1 ] && grep -q 'I4 verify swa table row' "$T/out" && grep -q 'stopped: fault' "$T/out"; }
    M kill-server; until_ok no_server
    M new-session -d -x 120 -y 40 "TERM=screen-256color $AERIE --bug 24617 -p draft.topk=4 -p draft.nodes=16"
    wait_for 'BUG 24617'; say "Tell me a story about a fox."; wait_for 'stopped: fault'; until_ok stopped; result "a turn that a rule stops is marked" $?
    sed -n '/I4/p; /^◷/p' "$T/out" >"$T/live"; say /bye; until_ok no_server
    M new-session -d -x 120 -y 40 "TERM=screen-256color $AERIE replay last"
    wait_for 'RECORDING 1\.' && until_ok stopped && sed -n '/I4/p; /^◷/p' "$T/out" | cmp -s - "$T/live"; result "its recording has the rule and the mark, too" $?
else
    echo "ok $((n += 1)) - the full screen # SKIP no tmux"
fi
plan
