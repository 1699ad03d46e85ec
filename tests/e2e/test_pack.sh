#!/bin/bash
# Packs: a session as one file that opens without the model, holds no text unless asked, and notices every change.
. "$(dirname "$0")/kit.sh"
SOURCE=$PWD EXAMPLE=$PWD/tests/e2e/plan_example.py EMIT=$PWD/tests/peers/emit/own_classes.py MODELS=$PWD/models/nestling
# a model of its own, which is renamed below: the bundled one with another last weight
cp -r "$MODELS/target" "$T/model"; chmod -R u+w "$T/model"
weights=$(echo "$T"/model/*.safetensors); printf '\x3c' | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 1)) conv=notrunc status=none
aerie() { timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" "$@" 2>"$T/err" </dev/null; }
# refuse STATUS PATTERN ARGS...: one line on standard error, nothing on standard output
refuse() {
    local want=$1 pattern=$2 rc; shift 2
    aerie "$@" >"$T/out"; rc=$?
    [ $rc = "$want" ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -qE -- "$pattern" "$T/err"
    local ok=$?
    [ $ok = 0 ] || { echo "# status $rc, expected $want"; head -n 3 "$T/out" "$T/err" | sed 's/^/# /'; }
    result "refused: aerie $(printf '%s ' "$@" | sed "s,$T/,,g" | cut -c1-60)" $ok
}

# ---- a session of 40 turns (100 with AERIE_TEST_LONG=1), with everything a log can hold ----
if [ "${AERIE_TEST_LONG:-0}" = 0 ]; then last=40 middle=20 from=10 early=12 tries=40; else last=100 middle=50 from=40 early=30 tries=200; fi
{
    echo "/system You answer as a zookeeper called Bartholomew."
    echo "/set max_tokens 8"
    for ((i = 1; i <= last - 3; i++)); do
        case $((i % 6)) in
            0) echo "My favourite number is $i." ;; 1) echo "What is my favourite number?" ;;
            2) echo "Tell me about pelicans." ;; 3) echo "/regen" ;;
            4) echo "Name a marmalade flavour." ;; 5) echo "How do I see the page table?" ;;
        esac
    done
    echo "/set temperature 0.8"; echo "/set draft.topk 3"; echo "/set draft.nodes 12"; echo "/set max_tokens 60"
    echo "Tell me a story about a walrus."
    echo "/undo"; echo "Say hello to Bartholomew."; echo "/regen"
    echo "/title The walrus / confidential"
} >"$T/script"
timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" --plain --quiet -m "$T/model" --draft "$MODELS/draft" --script "$T/script" >"$T/chat" 2>&1
turns=$(aerie db sql "SELECT max(n) AS n FROM turn" --json | grep -oE '[0-9]+' | head -n 1)
[ "${turns:-0}" -ge $last ]; result "a session of $turns turns" $?
aerie show last >"$T/show"; aerie show last --json >"$T/show.json"
cp "$T/show.json" "$T/was.json"
cd "$T" || exit 2

# ---- the default: no text ----
aerie pack last >"$T/out"; rc=$?
FILE=$(cut -d: -f1 "$T/out" | head -n 1)
[ $rc = 0 ] && [[ $FILE =~ ^session-[0-9]+\.aerie$ ]] && [ "$(stat -c %a "$FILE")" = 600 ]
result "without text the file is named after the number, 0600" $?
refuse 2 "$FILE exists; -o FILE names another" pack last
aerie pack last --with-text >"$T/out"; [ $? = 0 ] && [ -f The-walrus-confidential.aerie ]
result "with text after the title" $?
TEXT=The-walrus-confidential.aerie
aerie pack last --no-ids -o shape.aerie --json | grep -q '^{"file":"shape.aerie",.*"keeps":"shape"'
result "without ids" $?

# Every word of messages and replies that a pack of another conversation does not have, and that is no name of a setting.
printf 'x\n' | timeout "${TEST_LIMIT:-250}" "$AERIE" --plain -q >/dev/null 2>&1
aerie pack last -o other.aerie >/dev/null
# and the words of every report, whatever it is of
for engine in sglang vllm llama.cpp; do aerie pack last --issue $engine -o other-$engine.aerie >/dev/null; done
ID=$(sed -n 's/^{"id":"\([^"]*\)".*/\1/p' "$T/show.json")
printable() { LC_ALL=C tr -cs '[:print:]' '\n' <"$1"; }
split() { tr -cs '[:alpha:]' '\n' | tr '[:upper:]' '[:lower:]' | awk 'length >= 4' | LC_ALL=C sort -u; }
{ cat "$T/chat"; sed 's,^/[a-z]* ,,' "$T/script"; } | split >"$T/words"
{ printable other.aerie; aerie help; echo target draft aerie; } | split >"$T/common"
cat other*-*.md | split >"$T/report-words"
LC_ALL=C comm -23 "$T/words" "$T/common" >"$T/secret"
awk 'length >= 6' "$T/secret" >"$T/long"
found() { { printable "$1" | split | LC_ALL=C comm -12 - "$T/secret"; LC_ALL=C grep -aoiFf "$T/long" "$1" | tr '[:upper:]' '[:lower:]'; } | sort -u; }
many=$(wc -l <"$T/secret")
for f in "$FILE" shape.aerie; do
    leaked=$(found "$f" | tr '\n' ' ')
    [ "$many" -gt 40 ] && grep -qx bartholomew "$T/long" && [ -z "$leaked" ]
    result "${f/$ID/ID} holds none of $many words of the conversation $leaked" $?
done
[ "$(found "$TEXT" | wc -l)" -ge $((many * 3 / 4)) ]; result "the pack with text holds them" $?
! grep -aqF "$T" "$FILE" && grep -aqF "$T" "$TEXT"; result "folders are text, too" $?

# ---- opened where there is no model ----
mkdir nowhere; cp "$AERIE" nowhere/aerie # no model beside this program
bare() { (cd nowhere && timeout -k 2 "${TEST_LIMIT:-250}" ./aerie "$@" 2>"$T/err" </dev/null); }
chmod 400 "$FILE" "$TEXT" shape.aerie; mv model gone; before=$(ls -A . nowhere | grep -E "aerie|:$" | cksum; stat -c '%Y %s %a' "$FILE" "$TEXT" shape.aerie)
missing=
for f in "$FILE" "$TEXT" shape.aerie; do
    for place in "" :1 :$middle :$last :$last.1 :$last.2; do
        bare show "../$f$place" >"$T/out" && [ -s "$T/out" ] || missing+=" show $f$place"
        bare show "../$f$place" --json >"$T/out" && grep -q '^{"id":' "$T/out" || missing+=" show --json $f$place"
    done
    for format in md jsonl; do bare export "../$f" --format $format >"$T/out" && [ -s "$T/out" ] || missing+=" export $format $f"; done
    bare --db "../$f" logs --json >"$T/out" && grep -q "$ID" "$T/out" || missing+=" logs $f"
    bare --db "../$f" db check >"$T/out" && grep -q 'the seal matches' "$T/out" || missing+=" db check $f"
    for view in v_step v_token v_node v_prompt v_settings v_turn "v_page WHERE turn = 2"; do
        bare --db "../$f" db sql "SELECT count(*) AS n FROM $view" --json >"$T/out" &&
            ! grep -q '"n":0}' "$T/out" || missing+=" $view $f"
    done
done
[ -z "$missing" ]; result "every view of it opens, without a model$missing" $?
# stepping through the recorded states
missing=
printf '%s\n' "/tree $last.2" '/pages' '/map 20' '/pool' '/stats' '/accept depth' "/at $middle.1" '/pages swa' '/timing' >"$T/look"
for f in "$FILE" "$TEXT" shape.aerie; do
    (cd nowhere && timeout -k 2 "${TEST_LIMIT:-250}" ./aerie replay "../$f" --plain <"$T/look" >"$T/out" 2>"$T/err") || missing+=" status $f"
    for p in "^TREE   step $last\\.2" '^PAGES ' '^POSITION 20' '^POOL ' '^STATS ' '^ACCEPT ' "at $middle\\.1" '^POOL swa'; do
        grep -qE -- "$p" "$T/out" || missing+=" '$p' $f"
    done
done
[ -z "$missing" ]; result "and every step of it, with replay$missing" $?
[ "$before" = "$(ls -A . nowhere | grep -E "aerie|:$" | cksum; stat -c '%Y %s %a' "$FILE" "$TEXT" shape.aerie)" ]
result "looking changes nothing, and leaves no file beside it" $?
strip() { sed -E 's/"pack":(null|\{[^}]*\}),//; s/"about":\{[^}]*\},//' "$1"; }
bare show "../$TEXT" --json >"$T/pack.json"
cmp -s <(strip "$T/pack.json") <(strip "$T/was.json"); result "with text it shows what the log shows" $?
bare show "../$FILE:$last.2" --json | tr -d '\n' | grep -oE '"(page_digest|draft_digest|logit_digest|drafted|accepted)":[^,]*' >"$T/a"
aerie show "$ID:$last.2" --json | tr -d '\n' | grep -oE '"(page_digest|draft_digest|logit_digest|drafted|accepted)":[^,]*' >"$T/b"
[ -s "$T/a" ] && cmp -s "$T/a" "$T/b"; result "a step has the log's digests" $?
bare show "../$TEXT" | grep -q walrus && ! bare show "../$FILE" | grep -q walrus
result "show says where text was left out" $?
for f in "$FILE" "$TEXT"; do
    bare replay "../$f" --check >"$T/out"; [ $? = 3 ] && grep -q -- 'not where it was; -m DIR names its folder' "$T/err"
    result "replay --check of ${f/$ID/ID} says that the model is missing" $?
done
mv gone model

# ---- computed again ----
for f in "$FILE" "$TEXT"; do
    aerie replay "$f" --check -m model --draft "$MODELS/draft" >"$T/out"; rc=$?
    [ $rc = 0 ] && grep -qE "^equal: $turns turns" "$T/out"
    ok=$?; [ $ok = 0 ] || head -n 3 "$T/out" "$T/err" | sed 's/^/# /'
    result "${f/$ID/ID} is equal when it is computed again" $ok
done
refuse 2 'holds no token ids' replay shape.aerie --check

# ---- slices ----
aerie pack "$ID" --steps $from.1..$middle.2 -o slice.aerie >/dev/null &&
    [ "$(aerie --db slice.aerie db sql "SELECT max(n) AS n FROM turn" --json | grep -oE '[0-9]+' | head -n 1)" = $middle ]
result "a slice ends with its turn" $?
[ "$(aerie --db slice.aerie db sql "SELECT min(turn) AS a, max(turn) AS b FROM v_node" --json | grep -oE '[0-9]+' | tr '\n' ' ')" != "1 $turns " ] &&
    aerie --db slice.aerie db sql "SELECT count(*) AS n FROM v_node WHERE turn NOT BETWEEN $from AND $middle" --json | grep -q '"n":0'
result "a slice has the trees of its steps" $?
aerie replay slice.aerie --check -m model --draft "$MODELS/draft" | grep -q "^equal: $middle turns"; result "a slice can be computed again" $?
refuse 1 'has no turn 900' pack "$ID" --steps 900.1 -o x.aerie
refuse 2 'expected A..B' pack "$ID" --steps 5.1..4.1 -o x.aerie
refuse 2 'expected it or --no-ids' pack "$ID" --with-text --no-ids -o x.aerie
refuse 1 'No such file or directory; expected a file of aerie pack' show ./missing.aerie
refuse 2 'is a session log, no pack' show "$T/data/aerie/sessions.db"
printf 'not a pack' >x.aerie; refuse 4 'x.aerie is no session log' show ./x.aerie; rm -f x.aerie

# ---- changed bytes ----
RANDOM=15
size=$(stat -c %s "$FILE"); noticed=0
cp "$FILE" flipped.aerie; chmod 600 flipped.aerie
for ((i = 0; i < tries; i++)); do
    at=$(((RANDOM * 32768 + RANDOM) % size))
    old=$(od -An -tu1 -j $at -N 1 flipped.aerie); new=$((old ^ (1 << (RANDOM % 8))))
    printf "\\x$(printf %x $new)" | dd of=flipped.aerie bs=1 seek=$at conv=notrunc status=none
    "$AERIE" show ./flipped.aerie:1 >"$T/out" 2>"$T/err" || { [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] && noticed=$((noticed + 1)); }
    printf "\\x$(printf %x $old)" | dd of=flipped.aerie bs=1 seek=$at conv=notrunc status=none
done
cmp -s "$FILE" flipped.aerie && [ $noticed = $tries ]; result "$noticed of $tries flipped bits are noticed" $?
sqlite3 flipped.aerie "DELETE FROM step WHERE id = 5"; refuse 4 'not as aerie pack wrote it|damaged pack' show ./flipped.aerie
rm -f flipped.aerie

# ---- a bug report ----
for engine in sglang vllm llama.cpp; do
    aerie pack "$ID" --issue $engine --steps $last.2 -o issue.aerie >"$T/out"; rc=$?; md=issue-$engine.md
    missing=
    for p in '^### ' 'Control run: the same prompt without drafting' '^\| 1 \| ' '^curl -s http' '"prompt":\[[0-9]+,' "Step $last\\.2 \(where" \
        'Output ids of the reference' 'model_sha' 'temperature 0\.8'; do
        grep -qE -- "$p" $md || missing+=" '$p'"
    done
    leaked=$(found $md | LC_ALL=C comm -23 - "$T/report-words" | tr '\n' ' ')
    [ $rc = 0 ] && [ -z "$missing$leaked" ]; result "a report for $engine$missing $leaked" $?
    rm -f issue*
done
aerie pack "$ID" --issue vllm --no-ids -o issue.aerie >/dev/null && ! grep -qE '\[[0-9]+,[0-9]+' issue-vllm.md
result "a report without ids" $?
rm -f issue*
refuse 2 'expected sglang, vllm or llama.cpp' pack "$ID" --issue trt -o x.aerie
# what else is pasted into reports: acceptance explained, and log probabilities of one's own prompts
sed -n 's/^Tell me \(.*\)/{"prompt":"Tell me \1"}/p' "$T/script" | tail -n 1 >prompts.jsonl
cat "$SOURCE"/repl/compare/triage*.c "$SOURCE"/engine/thread/redraft*.c "$SOURCE"/repl/cli/kl*.c | split | LC_ALL=C sort -u - "$T/report-words" >"$T/own-words"
# of a session of one turn: triage computes the whole of one many times
printf '%s\n' 'Tell me a story about a walrus.' '/title The walrus / confidential' >short
aerie --db short.db --plain --quiet -m model --draft "$MODELS/draft" -p max_tokens=40 --script short >"$T/out"
for what in "triage last --db short.db" "kl local prompts.jsonl"; do
    aerie $what --json -m model --draft "$MODELS/draft" >pasted.md; rc=$?
    leaked=$(found pasted.md | LC_ALL=C comm -23 - "$T/own-words" | tr '\n' ' ')
    [ $rc -le 1 ] && [ -s pasted.md ] && [ -z "$leaked" ]; result "no word of it is in what ${what%% *} says $leaked" $?
done

# ---- a step's plans ----
aerie pack "$ID" --plan $last.2 -o plan.aerie >"$T/out" && aerie pack "$ID" --plan $early.1 -o plan2.aerie >>"$T/out"
[ $? = 0 ] && grep -q '"mode":"verify"' plan-$last.2.json && grep -q '"equal":true' plan-$last.2.json && grep -q '"mode":"extend"' plan2-$early.1.json
result "the plans of a step" $?
aerie pack "$ID" --plan $last.2 --no-ids -o bare.aerie >/dev/null && tokens() { grep -oE '"token":(\[[^]]*\]|-?[0-9]+)' "$1"; } &&
    [ "$(tokens plan-$last.2.json | wc -l)" = "$(tokens bare-$last.2.json | wc -l)" ] && tokens plan-$last.2.json | grep -q '[2-9]' &&
    ! tokens bare-$last.2.json | sed 's/-1//g' | grep -q '[0-9]' && grep -q '"digest":"0000' bare-$last.2.json && ! grep -qE '"digest":"0*[1-9a-f]' bare-$last.2.json
result "and without ids, as the pack" $?
refuse 1 'has no step 999' pack "$ID" --plan $last.999 -o x.aerie
[ ! -e x.aerie ]; result "nothing is written when that fails" $?
# a step that computes with a wrong page table
printf '%s\n' "/set draft.topk 4" "/set draft.nodes 16" "Tell me a story about a fox." "/set check off" "/bug 24617 on" \
    "And now one about a cat, please." | timeout "${TEST_LIMIT:-250}" "$AERIE" --plain -q >/dev/null 2>&1
aerie pack last --plan 2.2 -o bug.aerie >/dev/null; result "the plan of a step with a fault" $?
# the same plans as cases
aerie check plan-$last.2.json plan2-$early.1.json >"$T/out"; [ $? = 0 ] && [ "$(grep -c '^no rule is violated' "$T/out")" -ge 2 ]; result "its plans are cases that no rule forbids" $?
aerie check bug-2.2.json -o small.json >"$T/out"; [ $? = 5 ] && grep -q '^I4 verify, group swa, row 0 of request 0: ' "$T/out" &&
    aerie check small.json >"$T/out2"; [ $? = 5 ] && grep -q '^I4 verify, group swa' "$T/out2" && [ "$(wc -c <small.json)" -lt 1000 ]
result "the case of a fault breaks its rule, and so does a small one" $?
echo '{"aerie_case":1,"mode":"verify","requests":[{"prefix_len":-3,"q_len":1}],"groups":[]}' >bad.json
refuse 2 'bad.json: requests\[0\], "prefix_len": expected a whole number from 0 to' check bad.json
python=$(for p in /usr/bin/python3 /usr/local/bin/python3; do [ -x $p ] && echo $p; done | head -n 1)
if [ -n "$python" ]; then
    $python "$EXAMPLE" plan-$last.2.json plan2-$early.1.json >"$T/out" 2>&1; rc=$?
    [ $rc = 0 ] && grep -q 'verify swa (12 rows)' "$T/out"
    ok=$?; [ $ok = 0 ] || sed 's/^/# /' "$T/out"
    result "the Python example reads them, and every rule holds" $ok
    $python "$EXAMPLE" bug-2.2.json >"$T/out" 2>&1; rc=$?
    [ $rc = 1 ] && grep -qE 'verify plan, swa table, row 0: (writes slot|reads slots)' "$T/out"
    ok=$?; [ $ok = 0 ] || sed 's/^/# /' "$T/out"
    result "and names the row of a wrong page table" $ok
    $python "$EMIT" "$AERIE" >"$T/out" 2>&1
    ok=$?; [ $ok = 0 ] || sed 's/^/# /' "$T/out"
    result "cases of metadata of SGLang, vLLM and FlashInfer" $ok
else
    for what in "the Python example" "and names a fault" "cases of metadata"; do n=$((n + 1)); echo "ok $n - $what # SKIP no python3"; done
fi
plan
