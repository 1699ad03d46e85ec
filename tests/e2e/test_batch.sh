#!/bin/bash
# aerie run --batch: results in order, each the reply of its solo run, whatever the lanes and pools.
. "$(dirname "$0")/kit.sh"

grep -v '^#' tests/prompts.txt | cut -f2 | awk 'length($0) < 140 && !/["\\]/' | awk 'NR % 5 == 0' |
    head -n 24 >"$T/prompts"
sed 's/.*/{"prompt":"&"}/' "$T/prompts" >"$T/in"
batch() { "$AERIE" run -q -p max_tokens=48 --batch "$T/in" "$@"; }
# results without what a run without drafts, or one that had to wait for pages, counts otherwise
same() { sed 's/"steps":[0-9]*,"drafted":[0-9]*,"accepted":[0-9]*,//'; }

batch >"$T/all"; result "a batch ends well" $?
grep -q '"steps":[1-9][0-9]*,"drafted":[1-9][0-9]*,"accepted":[1-9]' "$T/all"; result "with its acceptance" $?
same <"$T/all" >"$T/eight"
[ "$(wc -l <"$T/eight")" = 24 ]; result "one line a prompt" $?
sed 's/^{"index":\([0-9]*\),.*/\1/' "$T/eight" | cmp -s - <(seq 0 23); result "in their order" $?
batch --lanes 1 | same | cmp -s - "$T/eight"; result "one lane says the same" $?
batch --lanes 3 --page-size 1 | same | cmp -s - "$T/eight"; result "so do three, at page size 1" $?
batch --no-spec | same | cmp -s - "$T/eight"; result "so do eight without drafts" $?
batch --lanes 6 --full-pages 24 --swa-pages 60 | same | cmp -s - "$T/eight"
result "so do six in pools that cannot hold them at once" $?
bad=0; i=0
while IFS= read -r prompt && [ $i -lt 6 ]; do
    "$AERIE" run -n -q --sanitize never -p max_tokens=48 "$prompt" >"$T/solo" || bad=1
    i=$((i + 1))
    got=$(sed -n "${i}p" "$T/eight" | sed 's/.*"reply":"\(.*\)"}$/\1/; s/\\n/\n/g; s/\\"/"/g; s/\\\\/\\/g')
    [ "$got" = "$(cat "$T/solo")" ] || { echo "$prompt: $got"; bad=1; }
done <"$T/prompts"
result "each is its solo run" $bad

printf '%s\n' '{"prompt":"Hello!"}' "{\"prompt\":\"$(head -c 30000 /dev/zero | tr '\0' 'x')\"}" \
    '"What is a page?"' >"$T/in"
batch >"$T/out"; [ $? = 1 ] && sed -n 2p "$T/out" | grep -q '"reason":"context","error":"the prompt needs' &&
    sed -n 3p "$T/out" | grep -q '"index":2,.*"reply":"'
result "a prompt that is too long fails alone" $?
printf '\xEF\xBB\xBF{"prompt":"Hello!"}\n{"text":1}\n' >"$T/in"
batch 2>"$T/err"; [ $? = 2 ] && grep -q 'line 2: expected {"prompt"' "$T/err"
result "a bad line is named" $?
: >"$T/in"; [ -z "$(batch)" ]; result "no prompt is no result" $?
printf '{"prompt":"What is a page table?"}\n{"prompt":"Hello!"}\n' >"$T/in"
batch --bug 16267 2>"$T/err" >/dev/null; [ $? = 5 ] && grep -q 'I4 ' "$T/err"
result "a violated rule stops the batch" $?

# ---- /n: several replies to one question, and nothing else changes ----
say() { printf '%s\n' "$@" | "$AERIE" --plain 2>&1; }
said() { printf '%s\n' "$@" | "$AERIE" --plain 2>/dev/null; }
say '/n 4 Tell me a story about Mia the fox.' >"$T/four"
[ "$(grep -cE '^reply [1-4] of 4 \([0-9]+ tokens, end\)$' "$T/four")" = 4 ] &&
    grep -qE '^aerie: 4 of 4 replies complete in one batch; [0-9]+ prompt tokens computed, [1-9][0-9]* pages? shared$' "$T/four"
result "/n 4 shows four replies over shared pages" $?
printf '/n 4 Tell me a story about Mia the fox.\n' | "$AERIE" --json >"$T/json" 2>"$T/err"
[ ! -s "$T/err" ] && [ "$(wc -l <"$T/json")" = 6 ] && # the command, four replies, their sum
    [ "$(sed -n 2,5p "$T/json" | sed -n 's/^{"index":\([0-3]\),"prompt_tokens":[0-9]*,"reused_tokens":[0-9]*,"tokens":[1-9][0-9]*,"steps":[1-9][0-9]*,"drafted":[0-9]*,"accepted":[0-9]*,"reason":"end","reply":".*"}$/\1/p' | tr -d '\n')" = 0123 ] &&
    sed -n 6p "$T/json" | grep -qE '^\{"replies":4,"of":4,"computed_tokens":[0-9]+,"shared_pages":[1-9][0-9]*,"tokens":[0-9]+,"steps":[0-9]+,"drafted":[0-9]+,"accepted":[0-9]+,"us":[0-9]+,"reason":"end"\}$'
result "and as objects under --json" $?
[ "$(sed -n 2,5p "$T/json" | sed 's/.*"reply"://' | sort -u | wc -l)" = 4 ]
result "each of its own seed" $?
said 'My name is Nora.' '/n 3 Hello!' 'What is my name?' >"$T/with"
said 'My name is Nora.' 'What is my name?' | cmp -s - <(sed '/^3 replies in one batch/d; /^reply [1-3] of 3/,+1d' "$T/with")
result "the conversation does not notice" $?
"$AERIE" replay last --check >/dev/null && "$AERIE" logs -n 2 --json >/dev/null
result "and replays" $?
printf '/calibrate\n' | "$AERIE" --json 2>/dev/null | tail -n 1 | grep -qE '^\{"calibration":\[\{"reading":"[^"]*","boundaries":\[2,4,5\],"agree":[0-9]+,"configured":true,"best":true\},.*\],"tokens":[0-9]+,"certain":true,"stopped":false\}$'
result "/calibrate is one object under --json" $?
printf '%s\n' 'Hello!' '/n 2 Hello!' /calibrate | "$AERIE" --plain >"$T/said" 2>/dev/null
printf '%s\n' "/sql select text from event where kind = 'notice' order by id desc limit 3" |
    "$AERIE" --json >"$T/out" 2>/dev/null
[ "$(grep -oE 'reply [12] of 2 \([0-9]+ tokens?, end\): ' "$T/out" | wc -l)" = 2 ] &&
    grep -qE 'calibration: boundaries 2,4,5 agree at [0-9]+ of [0-9]+ tokens, certainly the best' "$T/out" &&
    "$AERIE" db check >/dev/null
result "the log keeps replies and calibration as notices" $?
say '/n 0 x' | grep -q '/n takes a number' && say '/n 4' | grep -q '/n takes a number'
result "bad counts are errors" $?
say '/bug 16267 on' '/n 2 Hello!' '/bug 16267 off' 'Hello!' >"$T/out"
grep -q '^aerie: I4 ' "$T/out" && tail -n 1 "$T/out" | grep -qv '^aerie'
result "a violated rule ends it, and the chat goes on" $?

# ---- Ctrl-C: what is finished is there, and the exit code tells ----
for i in $(seq 3000); do echo '"Tell me a story about a fox."'; done >"$T/in"
has_lines() { [ "$(wc -l <"$1")" -ge "$2" ]; } # a file, a number of lines
until_line() { until_ok has_lines "$@"; }
for sig in INT:130 TERM:143; do
    : >"$T/out"; "$AERIE" run -q -p max_tokens=48 --batch "$T/in" >"$T/out" 2>"$T/err" & pid=$!
    until_line "$T/out" 8; kill -"${sig%:*}" $pid; wait $pid
    [ $? = "${sig#*:}" ] && [ "$(wc -l <"$T/out")" -lt 3000 ] && [ ! -s "$T/err" ] &&
        [ "$(grep -cE '^\{"index":[0-9]+,.*"reason":"(end|max_tokens|cancel)","reply":".*"\}$' "$T/out")" = "$(wc -l <"$T/out")" ]
    result "SIG${sig%:*} ends a batch, its results are whole lines" $?
done
for what in '/n 16 Tell me a story.' /calibrate; do
    mkfifo "$T/fifo"; : >"$T/out"
    "$AERIE" --json -p temperature=100 -p max_tokens=0 <"$T/fifo" >"$T/out" 2>"$T/err" & pid=$!
    exec 9>"$T/fifo"; echo "$what" >&9
    until_line "$T/out" 1; kill -INT $pid; wait $pid
    [ $? = 130 ] && tail -n 1 "$T/out" | grep -qE '"reason":"cancel"\}$|"stopped":true\}$'
    result "Ctrl-C ends ${what%% *}, which says so" $?
    exec 9>&-; rm "$T/fifo"
done
"$AERIE" golden tests/golden/gptoss-a --draft tests/golden/eagle3-gptoss-a --json >"$T/out" 2>"$T/err" & pid=$!
caught $pid; kill -INT $pid; wait $pid
[ $? = 130 ] && [ ! -s "$T/err" ] && grep -qE '"failed":0,"stopped":true\}$' "$T/out"
result "Ctrl-C ends golden, which tells what was checked" $?
"$AERIE" doctor --draft models/nestling/draft >"$T/out" 2>"$T/err" & pid=$!
caught $pid; kill -INT $pid; wait $pid
[ $? = 130 ] && grep -q 'captures .*stopped before all were scored' "$T/out"
result "Ctrl-C ends the calibration of doctor, which tells what else it found" $?
: >"$T/out"; batch | head -n 2 >"$T/out"; [ "$(wc -l <"$T/out")" = 2 ]
result "nor does a batch go on when nobody reads" $?
plan
