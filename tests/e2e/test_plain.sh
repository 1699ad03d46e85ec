#!/bin/bash
# The plain mode against the real program and the bundled model: chat, every command as text and as
# JSON, how lines are read, exit codes, signals, and that no escape byte ever comes out.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }
# Feeds standard input to a chat; leaves $rc, $T/out and $T/err.
chat() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain "$@" >"$T/out" 2>"$T/err"; rc=$?; cat "$T/out" "$T/err" >>"$T/all"; }
once() { timeout "${TEST_LIMIT:-250}" "$AERIE" run "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; cat "$T/out" "$T/err" >>"$T/all"; }
mock() { [ -n "$MOCK" ]; } # over a backend without optional views: test_plain_mock.sh

# ---- a reply ----
once hello; [ $rc = 0 ] && [ ! -s "$T/err" ] && [ "$(wc -l <"$T/out")" = 1 ] && [ "$(wc -c <"$T/out")" -gt 5 ]
result "run prints one reply, ended by a line end, and nothing else" $?
cp "$T/out" "$T/hello"
lines hello | chat; [ $rc = 0 ] && cmp -s "$T/out" "$T/hello"; result "a pipe gets the same reply and no prompt" $?
printf 'hello' | chat; cmp -s "$T/out" "$T/hello"; result "a last line needs no line end" $?
printf 'hello\r\n' | chat; cmp -s "$T/out" "$T/hello"; result "CRLF lines are lines" $?
printf '\xEF\xBB\xBFhello\n' >"$T/marked"; chat <"$T/marked"; cmp -s "$T/out" "$T/hello" && once -f "$T/marked" && cmp -s "$T/out" "$T/hello"
result "a byte order mark is no part of a text" $?
once --no-spec hello; cmp -s "$T/out" "$T/hello"; result "the same reply without drafting" $?
printf 'hello' | timeout "${TEST_LIMIT:-250}" "$AERIE" run >"$T/out" 2>"$T/err"; cmp -s "$T/out" "$T/hello"
result "run takes the prompt from a pipe" $?
printf 'hello' | timeout "${TEST_LIMIT:-250}" "$AERIE" run - >"$T/out" 2>"$T/err"; cmp -s "$T/out" "$T/hello"
result "run takes the prompt from -" $?
printf 'lo' | timeout "${TEST_LIMIT:-250}" "$AERIE" run --json -n -f - "hel" >"$T/out" 2>"$T/err"; p=$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$T/out")
printf 'hello' | timeout "${TEST_LIMIT:-250}" "$AERIE" run -f - >"$T/out" 2>"$T/err"; cmp -s "$T/out" "$T/hello" && { mock || [ "$p" -gt 10 ]; }
result "and its rest from -f -" $?
p=$("$AERIE" run --json -n "hel" 2>"$T/err" | sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p'); q=$("$AERIE" run --json -n -f - "hel" 2>"$T/err" </dev/null | sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p')
[ -n "$p" ] && [ "$p" = "$q" ]; result "an empty rest changes nothing" $?
once -p max_tokens=3 "tell me a story"; [ $rc = 0 ] && [ "$(cat "$T/err")" = "aerie: stopped: max_tokens" ]
result "a reply that did not end says why, on standard error" $?
once -q -p max_tokens=3 "tell me a story"; [ $rc = 0 ] && [ ! -s "$T/err" ]; result "-q keeps notices away" $?
once --json -p max_tokens=3 hello
[ "$(wc -l <"$T/out")" = 1 ] && grep -q '"turn":1,"text":".*"stop":"max_tokens".*"tokens":3,' "$T/out"
result "run --json gives one object" $?
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$T/out"; }
awk -v n="$(field tokens)" -v us="$(field us_decode)" -v s="$(field tok_s)" 'BEGIN {
    w = (n - 1) * 1e6 / us; exit !(n == 3 && s > 0.999 * w && s < 1.001 * w) }'
result "its speed is that of the tokens after the first, which the prompt yields" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" run "tell me a story" 2>"$T/err" | head -c 1 >"$T/out"; [ "$(wc -c <"$T/out")" = 1 ] && [ ! -s "$T/err" ]
result "a closed pipe ends the reply without a word" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" run hello >/dev/full 2>"$T/err"; [ $? = 2 ] && grep -q 'aerie: cannot write' "$T/err"
result "a full disk is an error" $?

mock || { lines hello /export "/diff 1" "/copy message 9" /title /triage | chat --no-log
[ "$(grep -c 'nothing of this session is saved: the log is off' "$T/err")" = 4 ]; result "without a log, commands that read it say so" $?; }

# ---- every command, as text: what it prints ----
session() { # the lines that all commands are tried on
    lines hello "/help" "/?" "/help tree" "/help temperature" "/help words" "/set" "/set temperature" \
        "/set temperature 0" "/system" "/system Be brief." "/read $T/note" "/drop" "/stats" "/accept" \
        "/accept turn" "/accept context" "/timing" "/tree" "/pages" "/pages swa" "/page 1 swa" "/map 3" \
        "/pool" "/plan" "/check" "/sql select count(*) as n from turn" "/sessions" "/search hello" \
        "/title my title" "/export md $T/x.md" "/undo" "what is a page?" "/regen" "/fork" "/resume last" \
        "/clear" "/private" "/bye" "not reached"
}
echo "some text" >"$T/note"
lacking="accept|timing|tree|pages|page|map|pool|plan|check" # commands of views
n_lacking=$(session | grep -cE "^/($lacking)( |\$)")
session | chat
if mock; then
    [ $rc = 1 ] && [ "$(grep -cE "^aerie: /($lacking): this backend " "$T/err")" = "$n_lacking" ] &&
        [ "$(wc -l <"$T/err")" = "$n_lacking" ]
    result "each command of a view that is lacking says why in one line, and the script goes on" $?
else
    [ $rc = 0 ] && ! grep -v 'the temperature is 0: ' "$T/err"; result "a script of all commands ends with 0 and no complaint" $?
fi
shows() { grep -qE -- "$1" "$T/out"; result "shows: $1" $?; }
shows '^  /tree \[T\.S\] '; shows '^/tree \[T\.S\]$'; shows 'likeliest token'; shows '^MAL +mean acceptance'
shows '^draft\.steps +5 +1 \.\. 16'; shows '^temperature = 0$'; shows '^no system prompt'
shows '^system prompt set'; shows 'note: 10 bytes'; shows '^speed +[0-9.]+ tokens/s'
mock || { shows 'MAL [0-9.]+ = 1 \+ [0-9]+/[0-9]+'; shows '^spec, [0-9]+ steps'; shows '^TREE   step 1\.[0-9]+'
shows '● .* ✓'; shows '^PAGES turn 1 step [0-9]+ '; shows '^swa   ▓'; shows '^POOL swa'
shows '^PAGE 1 of the swa pool'; shows ' take +taken from the free list'; shows '^POSITION 3 '
shows '^full   slot [0-9]+ = page [0-9]+, offset 3'; shows '= [0-9]+ - 1  ✓$'; shows '^ok +I1 '
shows '^now: the pools and their sequences keep every rule'; }
shows '\[hello\]'; shows '^title: my title'; shows "^wrote $T/x.md"
shows '^turn 1 left the context'; shows 'goes on from turn'; shows 'resumed: [0-9]+ turn'
shows '^new session '; shows '^nothing more is saved'
[ -s "$T/x.md" ] && [ "$(stat -c %a "$T/x.md")" = 600 ]; result "an export is a private file" $?
[ "$(stat -c %a "$T/data/aerie/sessions.db")" = 600 ]; result "the log is a private file" $?

# ---- and as JSON: one object a line, pure ASCII ----
rm -f "$T/x.md"
session | chat --json
if mock; then [ $rc = 1 ] && [ "$(wc -l <"$T/err")" = "$n_lacking" ]; else [ $rc = 0 ] && ! grep -v 'the temperature is 0: ' "$T/err"; fi
result "the same script with --json" $?
want=$(session | wc -l) # /regen answers twice, the line after /bye not at all
[ "$(wc -l <"$T/out")" = "$want" ]; result "$want answers: one for each line, two for /regen" $?
! LC_ALL=C grep -q '[^ -~]' "$T/out"; result "JSON is ASCII" $?
if command -v sqlite3 >/dev/null; then
    v=$(sqlite3 :memory: 'create table t(l)' '.mode ascii' '.separator "\037" "\n"' ".import $T/out t" \
        'select count(*) || "/" || sum(json_valid(l)) || "/" || sum(json_type(l) = "object") from t' 2>&1)
    [ "$v" = "$want/$want/$want" ]; result "every line is a valid JSON object ($v)" $?
else
    echo "ok $((n += 1)) - JSON is valid # SKIP no sqlite3"
fi
for c in help set system read drop regen undo clear bye sessions search resume fork title export private \
    stats accept timing tree pages page map pool plan check sql; do
    how=result; mock && [[ $c =~ ^($lacking)$ ]] && how=error
    grep -q "^{\"command\":\"$c\",\"$how\":" "$T/out" || { echo "# no answer of /$c"; false; }
done; result "every command answers in JSON" $?
lines "/bogus" "/map" "//" | chat --json
[ $rc = 2 ] && [ "$(grep -c '"error":".*","code":2' "$T/out")" = 2 ] && [ "$(wc -l <"$T/err")" = 2 ]
result "errors are answered in JSON too, and told on standard error" $?

# ---- errors: one line, and the exit code ----
fails() { # STATUS PATTERN LINE...
    local want=$1 pattern=$2; shift 2
    lines "$@" | chat
    [ $rc = "$want" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q '^aerie: ' "$T/err" && grep -qE -- "$pattern" "$T/err"
    result "$1: $pattern" $?
}
fails 2 'did you mean /tree' "/tere"
fails 2 'could be /pages or /page' "/pa"
fails 2 'there is no setting temprature; did you mean temperature' "/set temprature 1"
fails 2 'temperature.*0 \.\. 100' "/set temperature hot"
mock || fails 2 'the model.s chat format, gemma, has no reasoning effort' "/set effort high"
mock || { run run -p effort=low hello; [ $rc = 2 ] && grep -q 'has no reasoning effort' "$T/err"; result "nor is it opened with one" $?; }
mock || fails 2 'the position is a number' hello "/map -1"
mock || fails 2 'the context is empty' "/map 1"
mock || fails 2 'the page is a number from 0' "/page 99999"
fails 2 'no turn to take back' "/undo"
fails 2 'there is no reply' "/regen"
fails 1 'nothing found for "zebrafish"' "/search zebrafish"
fails 1 'no session' "/resume 00000000000000000000000000"
fails 2 'nosuchfile' "/read $T/nosuchfile"
fails 2 "is the session log" hello "/read $XDG_DATA_HOME/aerie/sessions.db"
fails 2 'exists' hello "/export md $T/note"
lines /title hello "/export $T/named.jsonl" | chat; [ -s "$T/named.jsonl" ] && [ "$(head -n 1 "$T/out")" = "this session has no title yet; /title TEXT gives it one" ]
result "/title without one says so, /export FILE takes the format in which it ends" $?
if ! mock; then
    lines hello "/at 1.1" /clear /at hello "/at 1.1" /fork /at | chat -p max_tokens=1
    [ "$(grep -c '^live: at the newest step' "$T/out")" = 2 ]; result "/clear and /fork leave the step that /at chose in the old session" $?
fi
fails 2 'only reading' "/sql delete from turn"
fails 2 'turn 7 is not|from 0 to' hello "/fork 7"
fails 2 'quote' '/read "x'
if mock; then # what a backend does not do is refused by name, and nothing changes
    fails 1 'this backend has no setting draft.nodes' "/set draft.nodes 8"
    lines "/set draft.nodes" | chat; grep -q '^draft.nodes *6 ' "$T/out"; result "a setting that was refused is as before" $?
    fails 1 'this backend computes no batches' "/n 2 hello"
    fails 1 'this backend has no draft head' "/calibrate"
    fails 1 'this backend has no historical faults' "/bug 24617 on"
    lines "notice me" | chat; [ $rc = 0 ] && grep -q '^aerie: the server is busy' "$T/err"; result "a notice is a line" $?
    lines hello "fault" hello | chat
    [ $rc = 3 ] && grep -q '^aerie: the server answered 500$' "$T/err" && [ "$(grep -c 'You said hello' "$T/out")" = 2 ]
    result "after a failed reply the chat goes on" $?
    lines hello "lost" hello | chat
    [ $rc = 3 ] && grep -q '^aerie: the server is gone; aerie --session .* goes on' "$T/err" && [ "$(grep -c 'You said' "$T/out")" = 1 ]
    result "a backend that is gone ends the chat, and says how to go on" $?
    lines "And then?" | chat -c; grep -q 'with it there are 3 messages' "$T/out"; result "which keeps what was said" $?
fi
lines "/search zebrafish" "/bogus" "/search zebrafish" hello | chat
[ $rc = 2 ] && cmp -s "$T/out" "$T/hello"; result "a script goes on after failures; the highest code stays" $?
lines hello >"$T/s"; timeout "${TEST_LIMIT:-250}" "$AERIE" --script "$T/s" >"$T/out" 2>"$T/err" </dev/null; cmp -s "$T/out" "$T/hello"
result "--script reads a file" $?
chat --script "$T/nosuch" </dev/null; [ $rc = 2 ] && grep -q "cannot open" "$T/err"; result "a missing script" $?

# ---- how lines are read ----
told() { # NAME EXPECTED-USER-MESSAGE: what the log holds as the first message of the latest session
    timeout "${TEST_LIMIT:-250}" "$AERIE" show last --json >"$T/show" 2>/dev/null
    grep -qF -- "$2" "$T/show"; result "$1" $?
}
printf 'one\\\ntwo\\\nthree\n' | chat -p max_tokens=1; told 'a \ at the end joins lines' 'one\ntwo\nthree'
printf '"""first\n  second\n"""\n' | chat -p max_tokens=1; told 'a """ block keeps its lines' 'first\n  second"'
printf '"""/help"""\n' | chat -p max_tokens=1; told 'a """ block is never a command' '"/help"'
lines '//etc/hosts' | chat -p max_tokens=1; told '// sends a slash' '"/etc/hosts"'
lines 'C:\\' | chat -p max_tokens=1; told 'two backslashes join nothing' 'C:\\\\'
lines "/read $T/note" "and this?" | chat -p max_tokens=1; told '/read goes in front' 'some text\n\nand this?'
lines "/read $T/note" "/drop" "just this" | chat -p max_tokens=1; told '/drop takes it out' '"just this"'
for how in "/clear" "/fork" "/resume last"; do
    lines hello "/read $T/note" "$how" "and this?" | chat -p max_tokens=1
    [ $rc = 0 ] && grep -q 'attached in another session' "$T/err"; rc=$?
    [ "$how" != "/resume last" ] || rc=0 # the same session
    told "an attachment does not travel with $how" "$([ "$how" = "/resume last" ] && echo 'some text' || echo '"and this?"')"
    [ $rc = 0 ]; result "and $how says so" $?
done
printf '/system """You are\nbrief."""\n/system\n' | chat; grep -q '^You are$' "$T/out" && grep -q '^brief.$' "$T/out"
result 'a command takes a """ block' $?
printf '"""open\n' | chat; [ $rc = 2 ] && grep -q 'ended inside """' "$T/err"; result 'an open """ is an error' $?
printf 'a\0b\nhello\n' | chat; [ $rc = 2 ] && grep -q 'NUL byte' "$T/err" && cmp -s "$T/out" "$T/hello"; result "a NUL byte is refused" $?
printf '\n   \n\n' | chat; [ $rc = 0 ] && [ ! -s "$T/out" ]; result "empty lines are nothing" $?

# ---- the context: undo, regen, fork and resume say what the same words said before ----
lines "My name is Ada." "What is my name?" | chat; sed -n 2p "$T/out" >"$T/second"
lines "My name is Ada." "hello" "/undo" "What is my name?" | chat; tail -n 1 "$T/out" | cmp -s - "$T/second"
result "after /undo the context is as before" $?
lines "My name is Ada." "What is my name?" "/regen" | chat; tail -n 1 "$T/out" | cmp -s - "$T/second"
result "/regen repeats a greedy reply" $?
mock || { [ "$(grep -c 'the temperature is 0: the same prompt gives the same reply, bit for bit; /set temperature' "$T/err")" = 1 ]; result "and says so" $?; }
lines "What is my name?" "/set temperature 0.9" "/regen" | chat -n; [ $rc = 0 ] && ! grep -q 'bit for bit' "$T/err"; result "not of a sampled one" $?
lines "My name is Ada." "hello" "hello" "/fork 1" "What is my name?" | chat; tail -n 1 "$T/out" | cmp -s - "$T/second"
result "/fork 1 goes on from turn 1" $?
lines "/undo" "What is my name?" | chat -c; tail -n 1 "$T/out" | cmp -s - "$T/second"
result "a fork can be resumed, and its turn undone" $?
lines "My name is Ada." "hello" "/undo" | chat; lines "What is my name?" | chat -c; cmp -s "$T/out" "$T/second"
result "a resumed session knows what was undone" $?
lines "My name is Ada." "hello" "/regen" "/undo" "What is my name?" | chat; tail -n 1 "$T/out" | cmp -s - "$T/second"
lines "/undo" "What is my name?" | chat -c; tail -n 1 "$T/out" | cmp -s - "$T/second"
result "and what was generated again" $?
lines "My name is Ada." | chat; lines "hello" "/resume last" "/clear" "/resume last" "What is my name?" | chat -c
[ $rc = 0 ]; result "sessions can be resumed within a session" $?
id=$(lines "My name is Ada." "/sessions 1" | "$AERIE" --plain | sed -n 's/^\* *\([0-9]*\) .*/\1/p')
lines "/resume $id" "What is my name?" | chat; tail -n 1 "$T/out" | cmp -s - "$T/second"; result "/resume ID" $?

# ---- settings ----
lines "/set parameter temperature 0.7" "/set num_predict 5" "/set verbose" "/set nothink" "/set top_k = 40" \
    "/set min_p=0.1" "/set" | chat
grep -q '^temperature *0.7 ' "$T/out" && grep -q '^max_tokens *5 ' "$T/out" && grep -q '^verbose *on ' "$T/out" &&
    grep -q '^think *off ' "$T/out" && grep -q '^top_k *40 ' "$T/out" && grep -q '^min_p *0.1 ' "$T/out"
result "every spelling of /set" $?
lines "/set verbose" hello | chat; grep -qE '^aerie: [0-9]+ tokens at [0-9.]+ t/s' "$T/err" && tail -n 1 "$T/out" | cmp -s - "$T/hello"
result "verbose tells the speed on standard error" $?
mock || { lines "/set spec off" hello "/stats" | chat; grep -q 'spec off (/set spec)' "$T/out"; result "drafting off says so" $?; }

# ---- what is saved ----
rm -rf "$T/data"; lines hello | chat -n; [ ! -e "$T/data" ]; result "-n leaves no file" $?
lines hello /private "a secret zebra" | chat; lines "/search zebra" | chat; [ $rc = 1 ]; result "/private saves nothing more" $?
mkdir -p "$T/data/aerie/x.db"; lines hello "/stats" | chat --db "$T/data/aerie/x.db"
[ $rc = 4 ] && grep -q 'NOT SAVED' "$T/err" && grep -q 'NOT SAVED' "$T/out" && head -n 1 "$T/out" | cmp -s - "$T/hello"
result "a log that cannot be opened is a notice, the chat goes on, and the status is 4 at its end" $?

# ---- signals ----
forever="-p temperature=100 -p max_tokens=0 -n"
: >"$T/out" # or a signal meets the shell that has not become aerie yet, and its trap
"$AERIE" run $forever "hello" >"$T/out" 2>"$T/err" & p=$!
for _ in $(seq $((${TEST_WAIT:-60} * 20))); do [ -s "$T/out" ] && break; sleep 0.05; done
kill -INT $p; wait $p; rc=$?
[ $rc = 130 ] && grep -q 'stopped: ' "$T/err" && [ -s "$T/out" ]; result "Ctrl-C stops a reply; run ends with 130 ($rc)" $?
cat "$T/out" >>"$T/all"
lines hello "/bogus" hello >"$T/s"
mkfifo "$T/fifo"; exec 9<>"$T/fifo"; cat "$T/s" >&9
: >"$T/out"
"$AERIE" --plain -n <"$T/fifo" >"$T/out" 2>"$T/err" & p=$!
for _ in $(seq $((${TEST_WAIT:-60} * 20))); do [ "$(wc -l <"$T/out")" = 2 ] && break; sleep 0.05; done
kill -TERM $p; wait $p; rc=$?; exec 9>&-
[ $rc = 143 ]; result "SIGTERM ends an idle chat with 143 ($rc)" $?

# ---- typed lines ----
if command -v tmux >/dev/null; then
    shows() { screen -S -200 >"$T/out"; like "$1"; } # a pattern
    finds() { screen | awk "$1 END { exit !found }"; } # a program of awk that sets found
    : >"$T/err"
    M new-session -d -x 80 -y 24 "$AERIE --plain $forever; echo status \$?; sleep 20"
    wait_for '^>>>'; result "a terminal gets a prompt" $?
    key hello Enter; until_ok finds '/^>>> hello/ { on = 1; next } on && NF { found = 1 }'; key C-c; wait_for 'stopped: '; result "Ctrl-C stops the reply" $?
    key '/when' Enter; wait_for 'there is no command /when'; result "and the chat goes on" $?
    key C-c; wait_for 'Ctrl-D or /bye leaves'; result "Ctrl-C at the prompt is a hint" $?
    key 'a\' Enter; wait_for '^\.\.\.'; result "a line that goes on has its own prompt" $?
    key C-c; until_ok finds 'NF { found = /^>>>/ }'; key /bye Enter; wait_for '^status 0$'; result "typed mistakes do not count: status 0" $?
else
    echo "ok $((n += 1)) - typed lines # SKIP no tmux"
fi

! LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$T/all"; result "no control byte in anything that was printed" $?
plan
