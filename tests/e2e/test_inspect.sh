#!/bin/bash
# What the program says about violations, historical faults, the checker that is off, and past steps:
# in a chat of lines and of the log, against the bundled model.
. "$(dirname "$0")/kit.sh"
# Feeds standard input to a chat; leaves $rc, $T/out and $T/err.
chat() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain --seed 1 "$@" >"$T/out" 2>"$T/err"; rc=$?; }
cli() { timeout "${TEST_LIMIT:-250}" "$AERIE" "$@" >"$T/out" 2>"$T/err"; rc=$?; }
dragons="Tell me a story about a dog called Rex and dragons."

# ---- violations, new and old ----
lines "/set draft.topk 2" "/bug 24617 on" "$dragons" /check /stats | chat; cp "$T/err" "$T/err1"
[ $rc = 5 ] && has "I4 verify swa table row" err; result "a violation of the session that ends is exit code 5" $?
has "look: /plan verify, " err && has "/check" err; result "a violation names the next commands" $?
[ "$(grep -c FAIL "$T/out")" = 0 ] && has "now: the pools and their sequences keep every rule"
result "/check does not call an old violation wrong now" $?
grep -qE "^old: step 1\.[0-9]+: I4 verify swa" "$T/out"; result "/check lists an old violation with its step" $?
grep -qE "^plans +[0-9]+ checked, 1 violation; step 1\.[0-9]+: I4 verify" "$T/out"; result "/stats names the step of a violation" $?
grep -q "^status .*BUG 24617 · ctx" "$T/out"; result "the status line begins with the switch" $?
lines "/set draft.topk 2" "/bug 24617 on" "$dragons" "/clear" "/bug 24617 off" hello /check | chat
[ $rc = 0 ] && grep -qE "^old: step 1\.[0-9]+ of session [0-9A-Z]{26}: I4" "$T/out"
result "a new session does not end with an earlier one's violation" $?
lines "$dragons" /check | chat --bug 16267 --page-size 16 --json
[ $rc = 5 ] && grep -qE '"ok":true,.*"latest":\{"session":"[0-9A-Z]+","turn":1,"step":[1-9]' "$T/out"
result "/check under --json names the step, too" $?

# ---- unchecked plans ----
lines hello /check /stats | chat --check off
grep -qE "^plans: 0 checked, [1-9][0-9]* unchecked, 0 violations" "$T/out" && has "the checker is off: plans are launched unchecked"
result "with the checker off /check counts the plans that went unchecked" $?
grep -qE "^plans +0 checked, [1-9][0-9]* unchecked" "$T/out" && grep -qE "^status .*CHECK OFF · [0-9]+ unchecked · ctx" "$T/out"
result "with the checker off so do /stats and the status line" $?
grep -q "^off   I12" "$T/out" && grep -q "^ok    I1 " "$T/out"; result "rules that nothing watches are not called ok" $?

# ---- what a switch needs ----
lines "/bug 24617 on" "$dragons" | chat
[ $rc = 0 ] && has "cannot fire now; needs draft.topk 2 (now 1)"; result "a tree fault at topk 1 says that it needs topk 2" $?
lines "/stats" | chat --bug 24617; [ $rc = 0 ] && [ "$(grep -c '^aerie: 24617 swa-untranslated is on, but cannot fire now; needs draft.topk 2 (now 1)$' "$T/err")" = 1 ]
result "--bug says so at the start" $?
run_bug() { timeout "${TEST_LIMIT:-250}" "$AERIE" run -n --bug 24617 "$@" "Say hello." >"$T/out" 2>"$T/err"; }
run_bug; grep -q 'cannot fire now; needs draft.topk 2 (now 1)$' "$T/err"; result "aerie run, too" $?
run_bug -q; [ ! -s "$T/err" ]; result "-q does not" $?
run_bug -p draft.topk=2 -p draft.nodes=3; ! grep -q 'cannot fire' "$T/err"; result "nor what can fire" $?
lines "/set draft.topk 2" "/bug 24617 on" | chat; ! has "cannot fire"; result "what can fire says nothing" $?
lines "/bug 24617" | chat; [ "$(grep -oE '^(24617 [a-z-]+ is off|cannot fire now|where|what was wrong|smallest input)' "$T/out" | tr '\n' ';')" = "24617 swa-untranslated is off;cannot fire now;where;what was wrong;smallest input;" ]
result "/bug N tells a fault's story" $?
lines "/bug 27360 on" "$dragons" | chat -p draft.topk=2 -p draft.steps=2
[ $rc = 0 ] && has "needs draft.steps 3 (now 2)"; result "27360 is silent at two steps, and says so" $?
lines "/bug 27360 on" "$dragons" | chat -p draft.topk=2 -p draft.steps=3 -p draft.nodes=6
[ $rc = 5 ] && ! has "cannot fire"; result "and fires at three" $?
cli bugs; [ "$(grep -c '^  needs    .' "$T/out")" = "$(grep -c '^[0-9]' "$T/out")" ] && has "draft.topk 2 (now 1)"; result "aerie bugs says what each switch needs" $?

# ---- danger in the log ----
lines hello "/bug 16267 on" "$dragons" "/set check off" hello hello "/set check on" "/bug 16267 off" hello | chat
cli show last
[ "$(grep -c "BUG 16267 in turns 2-4 · CHECK OFF in turns 3-4 (" "$T/out")" = 1 ] && grep -q "^turn 2  BUG 16267$" "$T/out" &&
    grep -q "^turn 4  BUG 16267 · CHECK OFF$" "$T/out" && grep -q "^turn 5$" "$T/out"
result "show says which turns ran under which switches" $?
cli logs -n 1; grep -q "BUG 16267 · CHECK OFF$" "$T/out"; result "logs marks the session" $?
cli export last --format md; has "**BUG 16267 in turns 2-4 · CHECK OFF in turns 3-4 (" && has "**BUG 16267 · CHECK OFF**"
result "the Markdown export says it at the top and at each turn" $?
cli export last --format jsonl; head -n 1 "$T/out" | grep -qF '"hazards":"BUG 16267 in turns 2-4; CHECK OFF in turns 3-4 ('
result "the JSON lines say it in their first record" $?
cli show last --json; has '"hazards":"BUG 16267; CHECK OFF"'; result "show --json says it for each turn" $?
id=$("$AERIE" logs -n 1 --json | sed 's/.*"id":"\([^"]*\)".*/\1/')
lines "/resume $id" "/fork" hello | chat; cli show last; has "BUG 16267 in turns 2-4"
result "a fork keeps the marks of the turns it stands on" $?
lines hello | chat; cli show last; ! grep -qE "BUG|CHECK" "$T/out" && cli logs -n 1 && ! grep -q BUG "$T/out"
result "a session without danger bears no mark" $?
# ---- steps ----
trees() { for i in $(seq 1 "$2"); do echo "/tree $1.$i"; done; }
{ lines "$dragons"; trees 1 40; lines hello; trees 2 3; lines "/tree 1.2" /undo "/tree 1.2" "/fork" "/tree 1.2" "/tree 2.2"; } | chat
steps=$(sed -n 's/.*there is no step 1\.\([0-9]*\) yet: 1\.\([0-9]*\) is.*/\2/p' "$T/err" | head -n 1)
[ "${steps:-0}" -ge 9 ] && ! has "log-level" err &&
    [ "$(grep -cE '^TREE   step 1\.' "$T/out")" -ge $((steps + 1)) ]; result "/tree draws every step of the live session" $?
[ "$(grep -cE '^aerie: step [12]\.1 did not draft, so it has no tree: it was a prefill step' "$T/err")" = 2 ]; result "but the prompt's, which says so" $?
[ "$(grep -c '^TREE   step 1\.2 ' "$T/out")" = 4 ]; result "after another turn, an undo and a fork, too" $?
has "there is no step 2.2 yet: 1.$steps is the newest" err; result "a fork has the steps of its context only" $?
lines "$dragons" "/tree 1.2" | chat --log-level off; grep -q '^TREE   step 1\.2 ' "$T/out"; result "nothing needs to be logged for it" $?
lines "$dragons" | chat --log-level steps; id=$("$AERIE" logs -n 1 --json | sed 's/.*"id":"\([^"]*\)".*/\1/')
lines "/tree 1.2" hello "/tree 1.2" "/tree 2.2" | chat --session "$id" --log-level steps
[ "$(grep -c 'step 1.2 was logged without its tree, and .*; --log-level tree keeps every tree' "$T/err")" = 2 ] &&
    grep -q '^TREE   step 2\.2 ' "$T/out"; result "a step of an earlier process says what would have kept its tree" $?
lines "/tree 1.1" | chat; has "there is no step yet: send a message first" err; result "an empty session says so" $?
lines hello /timing | chat; [ "$(grep -c 'steps, microseconds' "$T/out")" = 1 ] && grep -q '^spec, [0-9]* steps' "$T/out"
result "/timing reads the same steps" $?

lines hello "/plan nosuch" | chat; grep -q "unknown plan 'nosuch': expected extend, .* or block$" "$T/err"; result "the plans that there can be are listed" $?

# ---- pages ----
story="Tell me a story about a fox."
lines "$story" "$story" "/map 3" /pages "/plan verify" | chat
grep -q "^swa    released: behind the window" "$T/out" && ! grep -qE "(full|swa|draft) (page |slot )?0( |$)" "$T/out"
result "no position is said to lie in page 0" $?
grep -qE "request 0 pages - - " "$T/out"; result "/plan shows released columns as such" $?
lines "$story" "$story" "/map 3" /pages | chat --json
grep -q '"full_slot":[1-9][0-9]*,"swa_slot":null' "$T/out" && grep -q '"logical":0,"full":[1-9][0-9]*,"swa":null' "$T/out"
result "under --json a released page is null" $?

if command -v tmux >/dev/null; then
    clean() { M kill-server; }
    shows() { screen >"$T/out"; like "$1"; } # a pattern
    say() { text "$1"; key Enter; }
    M new-session -d -x 120 -y 40 "TERM=screen-256color $AERIE -p draft.topk=2"; wait_for 'ctx '
    say "$dragons"; wait_for 'step 1\.[0-9]+ .*REC'; key F2; wait_for 'PAGES 1\.'
    key Escape; wait_for 'the pane has the keys'; key Home; wait_for 'pos 0 → logical 0:0 → full [1-9]' && wait_for 'released: behind the window'
    result "the pane says that a position behind the window is released" $?
    key Right Right Right Escape; wait_for 'message, or /help'; say /clear; wait_for 'the context is empty'
    result "after /clear there is no position" $?
    say hello; wait_for 'pos [0-9]+ → .*ok'; result "and then the cursor follows the new context" $?
    size 100 80; say /layers; wait_for 'left out for want of room: 1st'
    for by in turn kind; do say "/accept $by"; done; say /pool; wait_for '✓.*│'
    [ "$(grep -cE '^ +[0-7] (sliding|full   ) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[.<0-9]+ +[.<0-9]+ +[-.<0-9]+ +│' "$T/out")" = 8 ] && shows 'rate +MAL │' && shows 'emitted share │' && shows '^  full +([0-9]+ +){5}│'
    result "tables beside a pane keep their rows whole at 100 columns" $?
    size 120 40
    say "/bug 24617 on"; wait_for '│ BUG 24617' && wait_for '^ BUG 24617 · ctx'
    result "the switch stands in the pane and in the status line" $?
    say /clear; wait_for 'the context is empty'; say "$dragons"; wait_for '│ [12]\.[0-9]+ violates I4 verify, swa, row [0-9]+, position [0-9]+' && wait_for '│ swa .*!'
    result "after a violation the pane names the row and marks the position" $?
    size 100 12; wait_for '│ +0 .*▼' && wait_for '│ full  █' && wait_for '│ swa .*!' && wait_for '│ draft █' && shows '│ [12]\.[0-9]+ violates'
    result "on a low screen it keeps the map" $?
    size 120 40
    say /clear; wait_for 'the context is empty' && ! shows 'violates'
    result "a new session's pane does not" $?
fi
plan
