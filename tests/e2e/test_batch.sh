#!/bin/bash
# aerie run --batch: results in order, each the reply of its solo run, whatever the lanes and pools.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d) || exit 2
trap 'rm -rf "$T"' EXIT
export XDG_DATA_HOME=$T XDG_CONFIG_HOME=$T XDG_STATE_HOME=$T
mkdir "$T/aerie"; echo "device = cpu" >"$T/aerie/config" # no word about the device
n=0
result() { # text, status
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; else echo "not ok $n - $1"; fi
}

grep -v '^#' tests/prompts.txt | cut -f2 | awk 'length($0) < 140 && !/["\\]/' | awk 'NR % 5 == 0' |
    head -n 24 >"$T/prompts"
sed 's/.*/{"prompt":"&"}/' "$T/prompts" >"$T/in"
batch() { "$AERIE" run -q -p max_tokens=48 --batch "$T/in" "$@"; }

batch >"$T/eight"; result "a batch ends well" $?
[ "$(wc -l <"$T/eight")" = 24 ]; result "one line a prompt" $?
sed 's/^{"index":\([0-9]*\),.*/\1/' "$T/eight" | cmp -s - <(seq 0 23); result "in their order" $?
batch --lanes 1 | cmp -s - "$T/eight"; result "one lane says the same" $?
batch --lanes 3 --page-size 1 | cmp -s - "$T/eight"; result "so do three, at page size 1" $?
batch --no-spec | cmp -s - "$T/eight"; result "so do eight without drafts" $?
batch --lanes 6 --full-pages 24 --swa-pages 60 | cmp -s - "$T/eight"
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
printf '{"prompt":"Hello!"}\n{"text":1}\n' >"$T/in"
batch 2>"$T/err"; [ $? = 2 ] && grep -q 'line 2: expected {"prompt"' "$T/err"
result "a bad line is named" $?
: >"$T/in"; [ -z "$(batch)" ]; result "no prompt is no result" $?
printf '{"prompt":"What is a page table?"}\n{"prompt":"Hello!"}\n' >"$T/in"
batch --bug 16267 2>"$T/err" >/dev/null; [ $? = 5 ] && grep -q 'I4 ' "$T/err"
result "a violated rule stops the batch" $?

# ---- /n: several replies to one question, and nothing else changes ----
say() { printf '%s\n' "$@" | "$AERIE" --plain 2>&1; }
say '/n 4 Tell me a story about Mia the fox.' >"$T/four"
[ "$(grep -cE '^aerie: [1-4] \([0-9]+ tokens, end\): ' "$T/four")" = 4 ] &&
    grep -qE '; [1-9][0-9]* pages? of the question shared' "$T/four"
result "/n 4 shows four replies over shared pages" $?
[ "$(grep -E '^aerie: [1-4] \(' "$T/four" | sed 's/^aerie: . ([^)]*): //' | sort -u | wc -l)" = 4 ]
result "each of its own seed" $?
say 'My name is Nora.' '/n 3 Hello!' 'What is my name?' >"$T/with"
say 'My name is Nora.' 'What is my name?' | cmp -s - <(grep -vE '^aerie: |replies in one batch' "$T/with")
result "the conversation does not notice" $?
"$AERIE" replay last --check >/dev/null && "$AERIE" logs -n 2 --json >/dev/null
result "and replays" $?
say '/n 0 x' | grep -q '/n takes a number' && say '/n 4' | grep -q '/n takes a number'
result "bad counts are errors" $?
say '/bug 16267 on' '/n 2 Hello!' '/bug 16267 off' 'Hello!' >"$T/out"
grep -q '^aerie: I4 ' "$T/out" && tail -n 1 "$T/out" | grep -qv '^aerie'
result "a violated rule ends it, and the chat goes on" $?
echo "1..$n"
