#!/bin/bash
# A fork begins with the turns that the log holds up to its turn, whatever has left the context since;
# it replays equal, and can itself be resumed and forked.
. "$(dirname "$0")/kit.sh"
chat() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain -p max_tokens=30 "$@" >"$T/out" 2>"$T/err"; rc=$?; }
last() { tail -n 1 "$T/out"; }
equal() { timeout "${TEST_LIMIT:-250}" "$AERIE" replay --check "${1:-last}" >"$T/out" 2>"$T/err"; }
many() { for ((i = 0; i < $1; i++)); do echo "Tell me a short story."; done; }

# ---- turns that the context has lost ----
{ lines "My name is Ada."; many 6; lines "/fork 2" "What is my name?"; } | chat --context 200
[ "$(last)" = "Your name is Ada." ]; result "after turns were left out, /fork 2 begins with turns 1 and 2" $?
! grep -q 'nothing to undo' "$T/err"; result "nothing is undone for it" $?
fork=$("$AERIE" logs -n 1 --json | cut -c8-33)
[ "$(sql "select fork_turn from session where id='$fork'")" = 2 ] &&
    [ "$(sql "select text from event where op='fork' and session_id='$fork'")" = "1 2" ]
result "the log says after which turn, and which turns" $?
[ "$(sql "select min(n) from turn where session_id='$fork'")" = 3 ]; result "its own turns count on from there" $?
equal; result "it replays equal" $?
lines "What is my name?" | chat --session "$fork" --context 200; [ "$(last)" = "Your name is Ada." ]
result "and can be resumed" $?
lines "/fork 1" "/undo" "What is my name?" | chat --session "$fork"
last | grep -q 'not told'; result "and forked at a turn of its parent" $?
equal; result "which replays equal, too" $?

# ---- turns that were undone or answered again ----
lines "My name is Ada." "hello" "/undo" "/undo" "hi" "/fork 1" "What is my name?" | chat
[ "$(last)" = "Your name is Ada." ]; result "a turn undone later is in the fork" $?
equal; result "and the fork replays equal" $?
lines "My name is Ada." "hello" "/undo" "/undo" "/fork 0" "What is my name?" | chat
last | grep -q 'not told'; result "/fork 0 begins with nothing" $?
equal; result "and replays equal" $?
lines "hello" "My name is Ada." "/undo" "/undo" "My name is Bo." "/regen" "/fork 4" "/fork" "What is my name?" | chat
[ "$(last)" = "Your name is Bo." ]; result "a fork of a fork, after undos beyond its turn" $?
lines "What is my name?" | chat -c; [ "$(last)" = "Your name is Bo." ]; result "resumed" $?
equal; result "and replayed" $?

# ---- show, export and /tree of a fork ----
lines "My name is Ada." "hello" "hello" "/fork 2" "What is my name?" "/tree 3.99" "/tree 4.1" | chat -p seed=9
fork=$("$AERIE" logs -n 1 --json | cut -c8-33); parent=$(sql "select parent from session where id='$fork'"); called='#'$(sql "select number from session where id='$parent'")
grep -q '^aerie: there is no step 4.1 yet: 3.[0-9]* is the newest$' "$T/err" &&
    grep -q '^aerie: there is no step 3.99 yet: 3.[0-9]* is the newest$' "$T/err"; result "/tree of a step that is not: one clear line" $?
show() { "$AERIE" show "$@" >"$T/out" 2>"$T/err"; rc=$?; }
show "$fork"
[ "$(grep -c "^turn [12]  inherited from $called\$" "$T/out")" = 2 ] && grep -q '^turn 3$' "$T/out" &&
    [ "$(grep -c '^turn ' "$T/out")" = 3 ] && grep -q '^My name is Ada' "$T/out"
result "show prints the inherited turns, and whose they are" $?
grep -q "^fork  *of $called after turn 2\$" "$T/out"; result "and after which turn the fork is" $?
grep -q '^settings: seed 9, temperature 0, check on, max_tokens 30' "$T/out" && grep -q '^model .*nestling/target  [0-9a-f]\{12\}$' "$T/out" &&
    grep -q '^computed  *cpu' "$T/out"; result "seed, temperature, checker, model and device" $?
show "$fork:1.2"; grep -q 'digests .*pages' "$T/out"; result "a step of an inherited turn" $?
show "$fork:3.1"; grep -q 'digests .*pages' "$T/out"; result "a step of its own" $?
show "$fork:4"; [ $rc = 1 ] && grep -q "has no turn 4; its newest is turn 3" "$T/err"; result "a turn that is not" $?
show "$fork:1.77"; [ $rc = 1 ] && grep -q "turn 1 of session #[0-9]* has no step 77; its newest is step" "$T/err"; result "a step that is not" $?
show "$fork" --json; grep -q '"turn":1,"role":"user","session":"'"$parent"'","inherited":true' "$T/out" &&
    grep -q '"turn":3,"role":"user","session":"'"$fork"'","inherited":false' "$T/out" && grep -q '"seed":"9"' "$T/out"
result "the same as JSON" $?
"$AERIE" export "$fork" --format md >"$T/out"; grep -q "^\*inherited from $parent\*\$" "$T/out" && grep -q 'My name is Ada' "$T/out"
result "exported as Markdown" $?
"$AERIE" export "$fork" >"$T/out"; [ "$(grep -c '"type":"turn"' "$T/out")" = 6 ]; result "exported as JSON lines" $?
lines hello 'Say """' "/tree 1.2" "/set spec off" "hi" "/tree 3.2" "/set temperature 0.5" "/set check off" "hi" | chat
grep -q 'TREE *step 1.2 ' "$T/out"; result "/tree draws any step of the live session, at the usual log level" $?
grep -q 'step 3.2 did not draft, so it has no tree' "$T/err"; result "or says that the step did not draft" $?
show last; grep -q '^now: temperature 0.5, check off$' "$T/out"; result "show prints settings where they change" $?

# ---- a fork at an earlier turn as a recording: its parent went on ----
looks=("/at 2.2" /pages "/pages swa" "/map 20" "/tokens 1 40" /tree "/at 1.2" "/pages draft")
lines "My name is Ada." hello "Tell me a story." "/fork 1" "What is my name?" "${looks[@]}" | chat
sed '1,/^Your name is/d; /^at \|^TOKENS/d' "$T/out" >"$T/live"
lines "${looks[@]}" | feed replay last --plain; [ $rc = 0 ] && sed '/^at \|^TOKENS/d' "$T/out" | diff "$T/live" - >"$T/differs"; result "the recording shows the same pages, tokens and tree" $?
lines "/at 3.1" | feed replay last --plain; grep -q 'no step 3.1 yet: 2.[0-9]* is the newest' "$T/err"; result "and has no later turn of the parent" $?
lines "My name is Ada." hello "/undo" "/undo" hi "/fork 1" "What is my name?" | chat
lines /stats "/page 2" | feed replay last --plain; [ $rc = 0 ]; result "an undo that the fork did not take over" $?

# ---- a session that another process is writing ----
begin() { # NAME FLAGS...: a process that reads lines from descriptor $to; $writer is its id
    mkfifo "$T/$1"; "$AERIE" --plain --quiet -p max_tokens=12 "${@:2}" <"$T/$1" >"$T/$1.out" 2>&1 &
    writer=$!; exec {to}>"$T/$1"
}
in_a_turn() { [ "$(sql "select count(*) from step join turn t on t.id=turn_id where t.stop=''")" = 3 ]; }
begin first -p temperature=0.8
lines hello "/step" "Tell me a story." "/step 3" >&"$to"; until_ok in_a_turn
first=$(sql "select max(number) from session")
lines "What are you?" | chat --session "$first" --fork; copy=$(sql "select max(number) from session")
[ "$(sql "select fork_turn from session where number=$copy")" = 1 ]; result "a copy of a session whose turn runs is one of the turns before" $?
equal "$copy"; result "it replays equal while the turn runs" $?
lines "/continue" "/system Answer in one word." "What is 7 + 5?" >&"$to"; exec {to}>&-; wait "$writer"
equal "$copy"; result "and when the turn has ended and the system prompt is another" $?
lines "And then?" | chat --session "$copy"; equal "$copy"; result "also when the copy was resumed then" $?
begin second; second=$to
begin first2 -p temperature=0.8
lines hello "/step" "Tell me a story." "/step 3" >&"$to"; until_ok in_a_turn
kill -9 "$writer"; wait "$writer" 2>"$T/err"; exec {to}>&-
first=$(sql "select max(number) from session")
lines "/resume $first" "Tell me a story." >&"$second"; exec {second}>&-; wait
[ "$(sql "select group_concat(stop) from turn where role='reply' and session_id=(select id from session where number=$first)")" = max_tokens,crashed,max_tokens ]
result "what a killed process left open is closed when another process takes the session up" $?
equal "$first"; result "and the session replays equal" $?
readings() { [ "$(find "/proc/$writer/fd" -lname '*eventfd*' | wc -l)" = "$1" ]; }
begin third --session "$first"
until_ok readings 3; lines "/at 1.1" /pages >&"$to"; until_ok readings 4
result "an earlier step is read from the log" $?
lines /clear hello >&"$to"; until_ok readings 3; result "and what was read goes with the session" $?
exec {to}>&-; wait

# ---- what cannot be forked ----
lines "hello" "/fork" | chat -n; grep -q '/fork needs the log' "$T/err"
result "without a log there is nothing to fork from" $?
lines "hello" "/private" "hello" "/fork" | chat; grep -q '/fork needs the log' "$T/err"; result "nor in private" $?
plan
