#!/bin/bash
# A saved session runs again with things changed: what must stay equal does, and what differs is named.
. "$(dirname "$0")/kit.sh"
session() { # FLAGS: questions on standard input
    "$AERIE" --plain --quiet --log-level tree --check off -p max_tokens=76 "$@" --script /dev/stdin >/dev/null 2>"$T/err" </dev/stdin
}
# TITLE STATUS PATTERN ARGUMENTS...: the status and a line of the output
says() {
    local title=$1 want=$2 pattern=$3; shift 3
    timeout "${TEST_LIMIT:-250}" "$AERIE" "$@" >"$T/out" 2>&1
    local rc=$?
    [ $rc = "$want" ] && grep -qE -- "$pattern" "$T/out"
    local ok=$?
    [ $ok = 0 ] || { echo "# status $rc, expected $want, and /$pattern/ in:"; sed 's/^/# /' "$T/out" | head -n 12; }
    result "$title" $ok
}
printf '%s\n' 'Tell me a short story.' 'What are you?' | session -p draft.topk=4 -p draft.nodes=16
result "a session without the checker" $?

# ---- replay --with: what may not change ----
with() { # TITLE STATUS PATTERN CHANGE...
    local title=$1 status=$2 pattern=$3; shift 3
    says "replay: $title" "$status" "$pattern" replay last --with "$@"
}
equal='^equal: 2 turns, [0-9]+ tokens'
with "the checker, after the fact" 0 "$equal, step by step" check=strict
grep -qE '^checker: [0-9]+ plans checked, no rule violated' "$T/out"; result "plans were checked" $?
with "another page size" 0 "$equal, step by step" page_size=4
grep -q '^changed: page_size 16 | 4, full_pages 326 | 1106, swa_pages 134 | 434' "$T/out"
result "the change is named, and pools of the usual size have the usual size again" $?
with "other trees" 0 "$equal by position" draft.topk=1 draft.nodes=3
with "no drafting" 0 "$equal by position" spec=off
with "another drafter" 0 "$equal by position" draft=ngram
with "prompt chunks" 0 "$equal by position" chunk=5
says "replay: several flags" 0 "$equal by position" replay last --with chunk=3 --with page_size=1 draft.steps=2
says "replay: forced" 0 "$equal by position" replay last --forced
says "replay: forced with other weights" 0 "$equal by position" replay last --forced --with weights=fp8
with "other weights" 1 '^differs at step [0-9.]+( \([0-9.]+ now\))?: logits: token' weights=fp8
with "another temperature" 1 '^differs at step 1\.[0-9]+( \(1\.[0-9]+ now\))?: tokens: token' temperature=0.8

# ---- faults: the rule, and the first difference ----
rule() { # NUMBER STEP RULE
    with "$1 with the checker names $3" 5 "^rule violated at step $2: $3 " "bug.$1=on" check=strict
}
rule 24617 1.14 I4
rule 27360 1.2 I7
rule 26513 2.1 I12
rule 26512 1.1 I9
rule 9279 2.1 I12
rule 16267 1.1 I4
rule 27789 1.2 I3
rule 17630 1.1 I14
rule 39287 1.9 I12
with "a fault without the checker differs" 1 '^differs at step 1\.9: page table' bug.tree-window-by-index=on
with "no number" 1 '^differs at step 1\.14: logits: the model.s output is not a number' bug.24617=on

# ---- what cannot be ----
with "an unknown name" 2 '"page_siz" cannot be changed; expected' page_siz=4
with "a wrong value" 2 'page_size cannot be "3"' page_size=3
says "replay: a second word" 2 'replay takes one session' replay last another
"$AERIE" replay last --with bug.24617=on check=strict --json >"$T/out"
grep -q '"violation":{"turn":1,"step":14,"text":"I4 [^"]*","rule":"I4","plan":"verify","pool":"swa","row":[0-9]*,' "$T/out"; result "a violation as JSON" $?
grep -q '{"name":"bug.24617","log":"off","now":"on","may_change":"anything"}' "$T/out"; result "changes as JSON" $?

# ---- diff: the first difference, its place, the verdict ----
diff_() { # TITLE STATUS PATTERN...: each matches a line
    local title=$1 want=$2; shift 2
    local patterns=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do patterns+=("$1"); shift; done
    shift
    timeout "${TEST_LIMIT:-250}" "$AERIE" diff "$@" >"$T/out" 2>&1
    local rc=$? ok=0 p
    [ $rc = "$want" ] || ok=1
    for p in "${patterns[@]}"; do grep -qE -- "$p" "$T/out" || { ok=1; echo "# no line matches /$p/"; }; done
    [ $ok = 0 ] || { echo "# status $rc, expected $want:"; sed 's/^/# /' "$T/out" | head -n 16; }
    result "diff: $title" $ok
}
first=$("$AERIE" logs --json | sed 's/^{"id":"\([^"]*\)".*/\1/' | head -n 1)
diff_ "a window by index" 1 'differs +first at step 1\.9: page table' 'verdict +bug' \
    'place +step 1\.9, layer 0 \(sliding\), attention: row 12' 'rule is violated in b at step 1\.9: I12' \
    'row 12 reads other positions there: key 0 is of position 0 in a, 1 in b' -- "$first" --with bug.39287=on
diff_ "untranslated pages" 1 'differs +first at step 1\.14: logits' 'verdict +bug' \
    'place +step 1\.14, layer 0 \(sliding\), attention: row 14.*no number' 'in b at step 1\.14: I4' \
    'from slot [0-9]+ in a, from slot' -- "$first" --with bug.24617=on
diff_ "a draft's fault leaves the text alone" 1 'first at step 1\.2: draft' 'verdict +bug' \
    'tokens and their log probabilities are equal to the end' 'step 1\.2: I7' -- "$first" --with bug.27360=on
diff_ "an extend without its window" 1 'first at step 1\.1: page table' 'verdict +bug' \
    'place +step 2\.1, layer 0 \(sliding\), attention' 'in b at step 2\.1: I12' -- "$first" --with bug.26513=on
grep -q 'reads .* positions' "$T/out"; [ $? = 1 ]; result "diff: a pass without keys says nothing of what it read" $?
diff_ "the extent of a draft" 1 'first at step 1\.1: page table' 'verdict +bug' \
    'tokens and their log probabilities are equal to the end' 'in b at step 1\.1: I9' -- "$first" --with bug.26512=on
diff_ "a window one key too wide" 1 'first at step 2\.1: page table' 'verdict +bug' 'reads other positions there: key 0' \
    'place +step 2\.1, layer 0 \(sliding\), attention: row 1' 'in b at step 2\.1: I12' -- "$first" --with bug.9279=on
diff_ "pages for slots" 1 'first at step 1\.1: logits' 'verdict +bug' 'place +step 1\.1, layer 0 \(sliding\), attention: row 0' \
    'in b at step 1\.1: I4' -- "$first" --with bug.16267=on
diff_ "a leaked page" 1 'first at step 1\.3: page table' 'verdict +bug' 'equal to the end' 'in b at step 1\.2: I3' \
    -- "$first" --with bug.27789=on
says "pools with leaked pages can be emptied" 0 '.' --plain --quiet --check off --bug 27789 -p draft.topk=4 -p draft.nodes=16 \
    --script <(printf '%s\n' 'Tell me a short story.' /clear hello)
diff_ "pages and trees" 0 'differs +nowhere: 2 turns' 'verdict +equal' -- "$first" --with page_size=1 draft.topk=1
diff_ "another temperature" 1 'verdict +changed on purpose' 'tokens: token' -- "$first" --with temperature=0.8
printf '%s\n' 'Tell me a short story.' | session -p max_tokens=40
diff_ "other weights" 1 'verdict +changed on purpose' '[0-9]+ runs of a with noise' 'margin +0\.' -- last --with weights=fp8

# ---- two sessions whose messages differ ----
printf '%s\n' 'Tell me a short story.' | session --page-size 4 -p draft.topk=2 -p draft.nodes=7
diff_ "a session that goes on" 1 '^a +#1  2 turns  Tell me' '^b +#5  1 turn ' 'first in turn 2: messages: there is no such turn in b' \
    'verdict +not comparable from turn 2 on: the messages differ' 'turns before it are equal: 1 turn, 76 tokens' -- "$first" last
printf '%s\n' 'Tell me a short story.' 'Who are you?' | session
diff_ "other messages" 1 'first in turn 2: messages: "What are you\?" in a, "Who are you\?" in b' \
    'verdict +not comparable from turn 2 on: the messages differ' -- "$first" last
diff_ "the logs alone" 1 'first in turn 2: messages' 'verdict +not comparable from turn 2 on' -- "$first" last --log-only
printf '%s\n' 'What is 7 plus 5?' "$(printf 'Say \033[31mhello\033[0m to %060d' 7)" | session -p max_tokens=9
diff_ "unrelated sessions" 1 'first in turn 1: messages: "Tell me a short story\." in a, "What is 7 plus 5\?" in b' \
    'verdict +not comparable: the messages differ' -- "$first" last
grep -qE 'changed|[0-9A-Z]{26}' "$T/out"; [ $? = 1 ]; result "diff: nothing is said to be changed, and no id is printed" $?
"$AERIE" diff "$first" last --json >"$T/out"; [ $? = 1 ] &&
    grep -q '"a_number":1,.*"b_number":7,"verdict":"not comparable","reason":"the messages differ","equal":false,"turns":0,.*"turn":1,.*"class":"messages"' "$T/out"
result "diff: unrelated sessions as JSON" $?
printf '%s\n' 'What is 7 plus 5?' "$(printf 'Say \033[31mhello\033[0m to %060d' 8)" | session -p max_tokens=9
diff_ "a long message is shortened, and none prints an escape" 1 'messages: "Say  \[31mhello \[0m to 0+\.\.\." in a, "Say' -- last 7
LC_ALL=C grep -q $'\033' "$T/out"; [ $? = 1 ]; result "diff: no escape" $?
"$AERIE" diff "$first" --with bug.39287=on --json >"$T/out"
grep -q '"verdict":"bug",.*"place":{"turn":1,"step":9,"step_b":9,"layer":0,"kind":"sliding","operation":"attention","row":12' "$T/out"
result "diff: as JSON" $?
# ---- turns that a rule stopped: 24617 in a verify pass, 16267 in a prompt; the session goes on ----
printf '%s\n' 'Tell me a short story.' '/bug 24617 on' 'What is a page table?' '/bug 24617 off' 'What are you?' '/bug 16267 on' 'Say hello.' \
    '/bug 16267 off' 'Say hello.' | session --check on -p max_tokens=72 -p draft.topk=4 -p draft.nodes=16
[ "$(grep -c 'stopped: fault' "$T/err")" = 2 ]; result "two turns are stopped" $?
says "stopped turns replay" 0 '^equal: 5 turns, [0-9]+ steps$' replay last --check
up='differs +nowhere: 5 turns, 1[0-9]{2} tokens'; two='; 2 turns up to where they were stopped$'
both='turn 2 was stopped after the same 1 token on both sides: I4 verify swa table row 0'
diff_ "stopped turns, other pages" 0 "$up and every step$two" 'verdict +equal$' "$both" -- last --with page_size=4
diff_ "stopped turns, another seed" 0 "$up and every step$two" 'verdict +equal$' "$both" -- last --with seed=1
diff_ "stopped turns, prompt chunks" 0 "$up by position, equal log probabilities$two" 'verdict +equal$' "$both" -- last --with chunk=5
diff_ "stopped turns, no tree for the fault to spoil" 0 "$up by position, equal log probabilities$two" 'verdict +equal$' \
    'turn 2 was stopped in a only; the historical fault is on on both sides' -- last --with spec=off
says "stopped turns, pages that the fault cannot spoil" 0 '^equal: 5 turns, 1[0-9]{2} tokens, step by step' replay last --with page_size=1
diff_ "without the fault" 1 'first at step 2\.2: stop: I4 verify .* \(in a only\)' 'verdict +bug' 'bug\.24617 on \| off' -- last --with bug.24617=off
diff_ "without the other one" 1 'first at step 4\.1: stop: I4 extend .* \(in a only\)' 'verdict +bug' -- last --with bug.16267=off
says "replay without the fault" 1 '^differs at step 2\.2: stop: I4 verify .* \(in the log only\)' replay last --with bug.24617=off

# ---- faults that need a small page, a prompt in chunks, a full pool ----
printf '%s\n' 'Tell me a short story.' /regen 'What are you?' 'Tell me a story about Clara the owl.' |
    session -p max_tokens=40 -p chunk=5 -p draft.topk=2 -p draft.nodes=6 --page-size 2 --context 400 --swa-pages 60
with "pools that were given a size hold as many tokens" 0 '^changed: page_size 2 \| 4, .*, swa_pages 60 \| 31$' page_size=4
with "unless they are given another one" 0 '^changed: page_size 2 \| 1, .*, swa_pages 60 \| 90$' page_size=1 swa_pages=90
diff_ "a cell that no pass has written" 1 'first at step 2\.1: page table' 'in b at step 1\.4: I10 ' 'verdict +bug' -- last --with bug.41838=on
diff_ "another pool's table" 1 'first at step 1\.5: page table' 'in b at step 1\.1: I11 ' 'verdict +bug' -- last --with bug.26966=2
diff_ "a draft pool too small" 1 'first at step [34]\.[0-9]+: ' 'in b at step 1\.1: I14 ' 'verdict +bug' -- last --with bug.17630=on

# ---- packs: without text the prompts are ids ----
"$AERIE" pack "$first" -o "$T/x.aerie" >/dev/null; result "a pack without text" $?
bundled=(-m models/nestling/target --draft models/nestling/draft)
says "replay: a pack" 0 '^equal: 2 turns' replay "$T/x.aerie" --check "${bundled[@]}"
diff_ "a pack and its session" 0 'verdict +equal' -- "$T/x.aerie" "$first" "${bundled[@]}"
diff_ "a pack and its changed replay" 1 'step 1\.9, layer 0 \(sliding\), attention: row 12' -- \
    "$T/x.aerie" --with bug.39287=on "${bundled[@]}"
diff_ "a pack with other prompts" 1 'first in turn 1: prompt: token [0-9]+ is [0-9]+ in a, [0-9]+ in b' \
    'verdict +not comparable: the prompts differ$' -- 7 "$T/x.aerie"
"$AERIE" pack "$first" --no-ids -o "$T/n.aerie" >/dev/null; result "a pack without token ids" $?
diff_ "it" 1 'first in turn 1: messages: not known in b, a pack without text and token ids' \
    'verdict +not comparable: a pack without text and token ids$' -- "$first" "$T/n.aerie"
"$AERIE" pack 7 --no-ids -o "$T/n7.aerie" >/dev/null
diff_ "and one of another session" 1 'verdict +not comparable: a pack without text and token ids$' -- "$T/n7.aerie" "$T/n.aerie"
diff_ "digests are in it" 0 'verdict +equal$' -- "$T/n.aerie" "$T/n.aerie"

# ---- the shape of the trees and its parts, which the chat has set ----
printf '%s\n' '/set draft.topk 4' 'Say hello.' | session -p max_tokens=20
diff_ "a shape against a part" 0 'accepted +[0-9]+ of [2-9][0-9] .* of 1[0-9] drafted tokens in b' -- last --with draft.shape=2-1-9
printf '%s\n' '/set draft.shape 2-4-9' 'Say hello.' | session -p max_tokens=20
diff_ "a part against a shape" 0 'accepted +[0-9]+ of [2-9][0-9] .* of 1[0-9] drafted tokens in b' -- last --with draft.topk=1
printf '%s\n' 'Tell me a short story.' | session -p draft.shape=auto
diff_ "shapes of auto, as it chose them then" 0 'differs +nowhere: 1 turn, [0-9]+ tokens and every step' 'verdict +equal' -- last --with draft.shape=auto

# ---- a token by hand keeps its place in the reply, and a fork without turns of its own ends there ----
printf '%s\n' /phase 'Tell me a short story.' '/step 4' '/force " cat"' '/step 2' '/force " dog"' /finish | session
for w in chunk=7 spec=off draft.nodes=3 draft=ngram draft.shape=7-1-8; do
    diff_ "tokens forced by hand, $w" 0 'differs +nowhere: 1 turn, [0-9]+ tokens by position' 'verdict +equal' -- last --with $w
done
printf '%s\n' 'What is my dog called?' 'Count to four.' | session --page-size 1 --swa-pages 20
diff_ "a reply that ended where a pool was full" 1 'differs +first in turn 2: prompt' 'verdict +changed on purpose' \
    'changed: spec on [|] off, which may change trees and chunks, the end of a reply' -- last --with spec=off
diff_ "and ends there again" 0 'differs +nowhere: 2 turns, .* and every step' -- last --with check=strict
printf '%s\n' 'Say hello.' 'Count to four.' 'Hello.' 'Count to six.' 'Say hello.' 'Count to ten.' '/fork 1' 'Hello.' |
    session --no-spec --page-size 64 --swa-pages 4 -p max_tokens=9
diff_ "a checkpoint that one run dropped for its pages" 0 'differs +nowhere: 2 turns, .* by position' 'verdict +equal' -- \
    last --with page_size=16 swa_pages=134
printf '%s\n' 'Say hello.' 'Count to nine.' |
    session --no-spec --page-size 1 --swa-pages 80 -p max_tokens=9 -s "$(printf 'A %.0s' {1..50})"
diff_ "a chunk that one run halved for want of pages" 0 'differs +nowhere: 2 turns, .* by position' 'verdict +equal' -- \
    last --with page_size=16 swa_pages=134
diff_ "and both halved, each into what its pages hold" 0 'differs +nowhere: 2 turns, .* by position' 'verdict +equal' -- \
    last --with page_size=16
printf '%s\n' 'Say hello.' 'Count to four.' '/fork 1' | session -p max_tokens=9
diff_ "a fork without turns of its own" 0 'differs +nowhere: 1 turn, ' 'verdict +equal' -- last --with page_size=4

printf '%s\n' 'Say hello.' '/set draft.window 8' 'Count to four.' | session -p max_tokens=9
diff_ "pages of the draft that its window has let go" 0 'differs +nowhere: 2 turns, ' 'verdict +equal' -- last --with page_size=4

diff_ "of two values of a setting, the last holds" 0 'differs +nowhere: 2 turns, .* by position' \
    'verdict +equal' -- last --with spec=on spec=off

# ---- another draft ----
diff_ "a draft that is not there" 3 '^aerie: no folder and no drafter is called "none-such"' -- last --with draft=none-such
diff_ "nor the one of --draft" 3 '^aerie: cannot open /none-such: ' -- last --draft /none-such --with page_size=4
diff_ "layers that the draft cannot read" 3 '^aerie: .*: boundary 99 \(given by the user\) is out of range' -- last --with eagle_capture=1,2,99
cp -rL models/nestling/draft "$T/draft"
printf '%s\n' 'Say hello.' | session -p max_tokens=9 --draft-weights fp8 --draft "$T/draft"
diff_ "n-grams have no precision" 0 'verdict +equal$' -- last --with draft=ngram
diff_ "unless one is asked for" 3 'no bf16 matrices' -- last --with draft=ngram draft_weights=fp8
sed -i 's/"hidden_size": 256/"hidden_size": 128/' "$T/draft/config.json"
why='/draft/config.json: the draft does not fit the target: hidden_size'
with "a draft that does not fit another model" 0 "^drafting is off here: .*$why" model=models/nestling/target
diff_ "why it does not" 0 'in b nothing was drafted' "- drafting is off in b: .*$why" -- last --with model=models/nestling/target
printf '%s\n' 'Count to four.' 'Say hello.' | session -p max_tokens=9
diff_ "a draft of another kind" 0 'accepted +[0-9]+ of [0-9]+ drafted tokens in a .*, [0-9]+ of [0-9]+ drafted tokens in b' 'verdict +equal' -- \
    last --with draft=models/nestling/block
printf '%s\n' 'Count to nine.' | session -c -p max_tokens=20
diff_ "a continued session keeps its settings with another draft" 0 'differs +nowhere: 3 turns, ' 'verdict +equal' -- \
    last --with draft=none

# ---- in the chat ----
says "/diverge: its own replay" 0 'verdict +equal' --plain --quiet -p max_tokens=20 --script <(printf '%s\n' 'Say hello.' /diverge)
says "/diverge: a change" 0 'differs +nowhere: 1 turn' --plain --quiet -p max_tokens=20 --script \
    <(printf '%s\n' 'Say hello.' '/diverge page_size=2 spec=off')
says "/diverge: a rule stops the replay" 0 'verdict +bug' --plain --quiet -p max_tokens=20 --script \
    <(printf '%s\n' 'Say hello.' '/diverge bug.26512=on')
says "/diff: another session" 0 'first in turn 1: messages: "Say hello\." here, "Tell me' --plain --quiet -p max_tokens=20 --script \
    <(printf '%s\n' 'Say hello.' "/diff $first")
says "/diff: nothing to compare with" 2 '/diff takes a session' --plain --quiet -p max_tokens=20 --script \
    <(printf '%s\n' 'Say hello.' /diff)
diff_ "one session" 2 'diff compares two sessions' -- "$first"
diff_ "three sessions" 2 'is a third' -- "$first" last last
plan
