#!/bin/bash
# Pausing and stepping turns as a user does it: lines in plain mode, JSON, keys of the full screen.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }
script() { printf '%s\n' "$@" >"$T/script"; }
run() { timeout "${TEST_LIMIT:-250}" "$AERIE" --script "$T/script" "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
question="Count to nine."

# ---- lines ----
script "$question"; run --no-log; plain=$(cat "$T/out")
script /phase "$question" /phase /phase /where /tree /phase /phase /phase /continue; run --no-log
[ $rc = 0 ] && [ "$(grep -c '^paused: ' "$T/out")" = 7 ]; result "/phase pauses at the turn's beginning and after each phase; /where tells again" $?
grep -q '^paused: step 1.2 after draft: [0-9]* nodes drafted$' "$T/out" && grep -q 'not verified' "$T/out"
result "/tree draws the drafted tree before it is verified" $?
[ "$(grep -vE '^(paused|/phase|tokens|TREE|q:|[○├└│ ]|the next)' "$T/out" | tr -d '\n')" = "$plain" ]
result "the reply is that of a turn that runs through" $?
script "/break accepted<3 && drafted>0" "/break token==\"5\" if accepted>0" "/watch length" "$question" /delete /continue; run --no-log
[ $rc = 0 ] && grep -q '^breakpoint 2: (token=="5") && (accepted>0)$' "$T/out" && grep -q 'watch 3: length was' "$T/out"
result "breakpoints, an if, and a watch" $?
script "$question" "/break acept==0" "/until 1<" "/delete 7" /finish; run --no-log
[ $rc = 2 ] && grep -q '"acept" at column 1; expected a name' "$T/err" && grep -q 'ends at column 3; expected' "$T/err" &&
    grep -q 'no breakpoint 7' "$T/err" && grep -q 'no turn is paused' "$T/err" && [ "$(wc -l <"$T/err")" = 4 ]
result "what is wrong is said in a line each, with the place" $?
script /step "$question" "/until pool.full.free>0"; run --no-log
[ $rc = 0 ] && [ "$(grep -v '^paused\|^/phase\|^tokens\|^the next' "$T/out" | tr -d '\n')" = "$plain" ]
result "a script that ends while a turn is paused gets the rest of the reply" $?
script "/break accepted>=2" "$question" /breaks /where /continue; run --no-log --json
grep -q '"number":1,"kind":"break","condition":"accepted>=2","hits":0' "$T/out" && grep -q '{"paused":true,"turn":1,"step":' "$T/out" &&
    grep -q '"hits":1' "$T/out" && grep -q '"stop":"end"' "$T/out" && ! grep -vq '^[{[]' "$T/out"
result "--json: a pause, breakpoints and the place are objects" $?
script "/help conditions"; run --no-log; grep -q 'pool.swa.free *free pages of the sliding-window pool' "$T/out"; result "/help conditions lists the names" $?

timeout "${TEST_LIMIT:-250}" "$AERIE" run --no-log --break "accept<4" --break 'token=="5" if accepted>0' "$question" >"$T/out" 2>"$T/err"
[ $? = 0 ] && [ "$(cat "$T/out")" = "$plain" ] && grep -q '^aerie: after step 1.3: breakpoint 2: ' "$T/err" && grep -q '1.6: breakpoint 1: accept<4$' "$T/err"
result "run --break says where the conditions hold; steps that drafted nothing accept nothing" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" run --no-log --break "acept<4" "$question" >"$T/out" 2>"$T/err"; [ $? = 2 ] && grep -q '^aerie: --break: condition .*expected a name' "$T/err"
result "run --break refuses a wrong condition" $?
script "$question" /breaks /continue; run --no-log --break "accepted<3"; grep -q '^paused: after step 1.6: breakpoint 1: accepted<3$' "$T/out"
result "chat --break pauses" $?

# ---- back, and by hand ----
script /step "$question" "/step 5" "/rstep 2" /where "/force \" the\"" "/goto 1.0" "/goto 9.1" "/goto 1.77" "/goto 5" /continue; run --no-log
grep -q '^paused: after step 1.3 (of 1.5)$' "$T/out" && grep -q '^paused: turn 1 begins (of 1.5)$' "$T/out" &&
    [ "$(grep -v '^paused\|^/phase\|^tokens\|^the next' "$T/out" | tr -d '\n')" = "$plain" ]
result "/rstep and /goto go back and forward, and the reply is that of a turn that runs through" $?
[ $rc = 2 ] && grep -q 'the turn has gone back, and what was said stays as it is: /goto 1.5 first' "$T/err" &&
    grep -q 'turn 9 is not the one that is paused (1); aerie replay ID --goto 9.1' "$T/err" &&
    grep -q 'step 1.77: expected 1.0 to 1.5' "$T/err" && [ "$(wc -l <"$T/err")" = 3 ]
result "where a turn cannot go, and that nothing is forced behind the newest step, is said in a line each" $?
script "/goto 1.3" /rstep "$question" "/force #1" "/force two words" "/force \"two words\"" "/force #999999" /force; run --no-log
[ $rc = 2 ] && [ "$(grep -c 'no turn is paused; aerie replay ID --goto' "$T/err")" = 2 ] && grep -q '#1 is special' "$T/err" &&
    grep -q 'tokens (#.*): expected one' "$T/err" && grep -q '#999999: expected 0 to' "$T/err" && [ "$(wc -l <"$T/err")" = 7 ]
result "/force refuses special ids, several tokens and unknown ids" $?
script /step "$question" "/step 5" "/goto 1.2" "/force off" /where /continue; run --no-log --json
grep -q '"command":"goto","result":{"turn":1,"step":2}' "$T/out" && grep -q '"paused":true,"turn":1,"step":2,"phase":"","why":"after step 1.2 (of 1.5)","first":0,"last":5' "$T/out"
result "--json: the place that a turn goes back to" $?

# ---- what if ----
script /step "$question" "/what-if spec=off" "/step 4" "/what-if draft.nodes=3" "/what-if page_size=1" "/what-if bug.26512=on" "/what-if page_size=16 bug.26512=off" "/what-if chunk=3" /continue; run --no-log
[ $rc = 2 ] && grep -q '^drafted nodes *5 *2$' "$T/out" && grep -q 'ran on pools of its own, after the [0-9]* tokens' "$T/out" &&
    grep -q '^logits *[0-9a-f]* *equal$' "$T/out" && grep -q '^bug.26512=on: I9 ' "$T/out" && grep -q 'the next step is a chunk of the prompt' "$T/err" &&
    grep -q '^aerie: chunk: expected draft.topk' "$T/err" && [ "$(wc -l <"$T/err")" = 2 ]
result "/what-if shows the next step as it is and changed" $?
grep -q '^as it is: draft.nodes=6$' "$T/out" && grep -q '^nothing was changed: the turn has page_size=16 bug.26512=off$' "$T/out" && [ "$(grep -c '^nothing was' "$T/out")" = 1 ]
result "and what the turn has, and that equal settings are no change" $?
script /step "$question" "/step 5" "/what-if spec=off" /continue; run --no-log --json
grep -q '^{"what_if":"spec=off","turn":1,"step":6,"was":"spec=on","same_settings":false,"same_tokens":1,' "$T/out"; result "--json: the comparison is an object" $?

# ---- the log ----
script "/force \" Once\"" "/break step==1.4" "$question" "/force \" the\"" "/rstep 2" "/goto 1.4" /continue "Who are you?"; run
ID=$("$AERIE" logs --json | sed 's/.*"id":"\([^"]*\).*/\1/' | head -1)
[ "$(grep -c 'begins with #.* by hand' "$T/err")" = 2 ] && grep -q '^ *Once' "$T/out"
result "forced tokens begin their step, and a line says so" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" replay "$ID" --check >"$T/out" 2>"$T/err"; result "a replay repeats forced tokens bit for bit" $?
script /where "/rstep 2" "/tree" "/goto 1.4" "/what-if page_size=1" /continue
timeout "${TEST_LIMIT:-250}" "$AERIE" replay "$ID" --goto 1.4 --script "$T/script" >"$T/out" 2>"$T/err"
[ $? = 0 ] && grep -q '^paused: after step 1.4$' "$T/out" && grep -q '^paused: after step 1.2 (of 1.4)$' "$T/out" && grep -q 'tree of step 1.2\|TREE.*1\.2' "$T/out"
result "replay --goto runs a saved session again and hands the chat over, paused after the step" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" replay "$ID" --goto 1.77 --plain >"$T/out" 2>"$T/err" </dev/null; [ $? = 2 ] && grep -q '^aerie: --goto 1.77: the session has no such step$' "$T/err"
result "replay --goto says that there is no such step" $?
script "/break accepted<4" "$question" /phase /phase /phase /continue /delete /continue "Who are you?"; run
ID=$("$AERIE" logs --json | sed 's/.*"id":"\([^"]*\).*/\1/' | head -1)
timeout "${TEST_LIMIT:-250}" "$AERIE" replay "$ID" --check >"$T/out" 2>"$T/err"; result "a session that was stepped replays bit for bit" $?

# ---- the full screen ----
if command -v tmux >/dev/null; then
    line() { text "$1"; key Enter; }
    for size in 80x24 200x60; do
        open_screen "${size%x*}" "${size#*x}" --no-log; line /phase; wait_for 'the next turn pauses'; line "$question"; wait_for 'PAUSED 1.0'
        result "$size: the status line says that the turn is paused" $?
        key C-x s; wait_for '[s p n f c w S N]'; result "$size: Ctrl-X s: the keys are shown" $?
        key p; wait_for 'after step 1.1' && key p && wait_for 'after draft'; result "$size: p runs a phase" $?
        line "/step 3"; wait_for 'after step 1.4' && key S && wait_for 'PAUSED 1.3 (of 1.4)' && key N && wait_for 'PAUSED 1.0 (of 1.4)'
        result "$size: S goes a step back, N to where the turn begins" $?
        key x y; wait_for '› xy'; result "$size: other keys type" $?
        key C-u; key c; wait_gone 'PAUSED' && wait_for '8, 9.'; result "$size: c lets the turn run" $?
        screen | sed '/^──/,$d' | grep -v '^ *$' | tail -n 1 >"$T/out"; grep -q '8, 9\.' "$T/out"
        result "$size: and its reply stands below what was asked meanwhile" $?
        line /bye
    done
else
    echo "ok $((n += 1)) - the full screen # SKIP tmux is not installed"
fi
plan
