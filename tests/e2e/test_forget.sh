#!/bin/bash
# A context that is full, from outside: what scripts and JSON are told, what a resumed session holds, and that
# sessions in which turns left the context replay equal, also those of logs without such operations.
. "$(dirname "$0")/kit.sh"
words() { for ((i = 0; i < $1; i++)); do printf 'This is line %d. ' $i; done; }
chat() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain --context 512 -p max_tokens=12 "$@" >"$T/out" 2>"$T/err"; rc=$?; }
last() { "$AERIE" logs -n 1 --json | sed 's/^{"id":"\([^"]*\)".*/\1/'; }
equal() { timeout "${TEST_LIMIT:-250}" "$AERIE" replay --check "$(last)" >"$T/out" 2>"$T/err" && grep -q '^equal' "$T/out"; result "$1" $?; }
shopt -s lastpipe
A="$(words 11)"; B="$(words 22)"; LONG="$(words 150)"

lines "$A" "$A" "$A" "$A" "$B" "Say hello." | chat
[ $rc = 0 ] && [ "$(grep -c 'leaving out' "$T/err")" -ge 1 ] && grep -m 1 'leaving out' "$T/err" |
    grep -q '^aerie: leaving out turns 1-3 ([0-9]* tokens): the context was full, [0-9]* of 512 free now; /set forget ask'
result "a script is told on standard error which turns leave, and what is free then" $?
equal "and replays"
lines "What is a page?" | chat --session "$(last)" --json
p=$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$T/out"); [ $rc = 0 ] && [ "$p" -lt 450 ] && ! grep -q 'leaving' "$T/err"
result "a resumed session is without them ($p tokens)" $?
equal "and replays, too"

lines "$A" "$A" "$A" "$A" "$B" | chat --json
tail -n 1 "$T/out" | grep -q '"forgotten":\[1,2,3\]'; result "--json lists them" $?
lines "My name is Ada." "Say hello." "$LONG" "What is my name?" | chat
[ $rc = 2 ] && grep -q '^aerie: the message needs [0-9]* tokens' "$T/err" && ! grep -q 'leaving' "$T/err" && grep -q 'Ada' "$T/out"
result "a message that cannot fit is refused and costs nothing" $?
equal "and replays"

lines "$A" "$A" "$A" "$A" "$B" "/at 1.1" "/forget" "/at" "What is a page?" "/undo" "/forget 1" "Say hello." | chat -p forget=ask
[ $rc = 2 ] && grep -q '^aerie: not sent, nothing has changed: .*; /forget leaves out turns 1-3 ([0-9]* tokens) and sends it' "$T/err" &&
    grep -q '^aerie: leaving out turns 1-3 ' "$T/err" && grep -q '^aerie: leaving out turn 4 ' "$T/err"
result "with forget=ask it is refused, and /forget sends it" $?
grep -q '^live: at the newest step, 6\.' "$T/out"; result "and shows the present" $?
equal "and replays"
{ for _ in {1..30}; do words 2; echo; done; lines "/undo" "$A" "/regen" "/fork 4" "$A" "Say hello."; } | chat --json
again=$(sed -n 's/.*"prompt_tokens":\([0-9]*\),"reused_tokens":\([0-9]*\),.*/\1 \2/p' "$T/out" | awk '{ n += $1 > 2 * $2 && NR > 1 } END { print n }')
[ $rc = 0 ] && [ "$(grep -c '"forgotten":\[[0-9]' "$T/out")" -le 6 ] && [ "$again" -le 6 ]
result "a long chat computes few prompts again ($again)" $?
equal "and replays, with /undo, /regen and /fork in it"
lines "$A" "$A" "/forget 1" "/fork" "Say hello." "/fork 1" "What is a page?" | chat
[ $rc = 0 ]; result "a fork goes back to what was left out" $?
equal "and replays"
lines "$A" "$A" "$A" "$A" "$B" | chat -p forget=never; [ $rc = 2 ] && ! grep -q 'leaving' "$T/err"; result "forget=never keeps all" $?
lines "/forget" | chat; [ $rc = 2 ] && grep -q 'no message was refused' "$T/err"; result "nothing to send again" $?
lines "Hello!" "/forget 3" | chat; [ $rc = 2 ] && grep -q 'from 1 to 1' "$T/err"; result "more turns than there are" $?

lines "Say hello." "My name is Ada." "/forget 1" | chat; id=$(last)
"$AERIE" show "$id" >"$T/out"; [ "$(grep '^turn ' "$T/out")" = "turn 1  (left out of the context)
turn 2" ]; result "show marks a turn that left the context" $?
"$AERIE" show --json "$id" >"$T/out"; grep -q '"turn":1,"role":"user".*"left_out":true.*"turn":2,"role":"user".*"left_out":false' "$T/out"
result "--json, too" $?
"$AERIE" export "$id" --format md -o - >"$T/out"; grep -q '^## 1. You (left out of the context)$' "$T/out" && grep -q '^## 2. You$' "$T/out"
result "and the Markdown" $?
lines "/resume $id" | chat; [ $rc = 0 ] && [ "$(grep -c '^>>> ' "$T/out")" = 2 ] && [ "$(grep '^>>> \|^\[left' "$T/out")" = ">>> Say hello.
[left out of the context]
>>> My name is Ada." ]; result "/resume shows it, marked" $?
lines "/fork $id" | chat; [ $rc = 0 ] && [ "$(grep -c '^\[left out of the context\]$' "$T/out")" = 1 ]; result "a fork, too" $?

# a server's context: tokens are estimated from those that it counted
server=''; clean() { [ -z "$server" ] || kill "$server" 2>/dev/null; }
"$AERIE" serve --port 0 --context 512 --no-log >"$T/serve" 2>&1 & server=$!
until_ok wrote "$T/serve" $server http://
URL=$(grep -o 'http://[0-9.:]*' "$T/serve" | head -n 1)
there() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain -p max_tokens=12 --remote "$URL" "$@" >"$T/out" 2>"$T/err"; rc=$?; }
for _ in {1..9}; do echo "$A"; done | there
[ $rc = 0 ] && [ "$(grep -c '^aerie: leaving out turns 1-[23]: the context was full, about [0-9]* of 512 free now; ' "$T/err")" = 1 ] &&
    ! grep -q 'answers 400' "$T/err"; result "turns leave before the server refuses" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" replay --forced last >"$T/out" 2>&1 && grep -q '^forced  *[1-9]' "$T/out"; result "and its tokens are replayed" $?
lines "$A" "$A" "$A" "$A" "$B" "/forget" "/forget 1" | there -p forget=ask
[ $rc = 2 ] && grep -q '^aerie: not sent, nothing has changed: .* about [0-9]* of 512 tokens; /forget leaves out turns 1-[23] and sends it' "$T/err" &&
    grep -q '^aerie: leaving out turns 1-[23]: ' "$T/err" && grep -q '^aerie: leaving out turn [34]$' "$T/err"
result "with forget=ask the message is refused, and /forget sends it" $?
lines "$A" "$A" "$A" "$A" "$B" "/forget" | there -p forget=never
[ $rc = 2 ] && [ "$(grep -c 'answers 400: .*; if its context is full, /forget leaves out' "$T/err")" = 1 ] &&
    grep -q '^aerie: leaving out turns 1-[23]: ' "$T/err"; result "a refusal of the server names the way out" $?
lines "$A" "$A" "$LONG" "/forget" "/forget 2" | there
[ $rc = 3 ] && [ "$(grep -c 'answers 400' "$T/err")" = 1 ] && grep -q 'no message was refused' "$T/err" && [ "$(grep 'leaving out' "$T/err")" = "aerie: leaving out turns 1-2" ]
result "a message that cannot fit costs no turns" $?

# pages that nobody gives back
stories() { for ((i = 0; i < 9; i++)); do echo "Tell me a story."; done; }
{ lines "/set max_tokens 60" "/set check off" "/set draft.shape 4-2-12" "/bug 27789 on"; stories
  lines "/bug 27789 off" "Say hello." "/clear" "Say hello."; } | chat --swa-pages 12
tail -n 1 "$T/out" | grep -q "^Hello! " && [ "$(grep 'short of pages' "$T/err" | tail -n 1)" = \
    "aerie: the swa pool is short of pages: 1 needed, 0 free; /forget N leaves out the oldest N turns, /clear empties the pools" ]
result "after fault 27789 a message names the way out, and that way is one" $?

plan
