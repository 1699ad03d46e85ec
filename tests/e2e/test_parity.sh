#!/bin/bash
# aerie parity: prompts computed twice, ids compared; what differs is found, and equal is said only of what was compared.
. "$(dirname "$0")/kit.sh"

grep -v '^#' tests/prompts.txt | cut -f2 | head -n 40 >"$T/prompts"
few() { head -n "$1" "$T/prompts" >"$T/few"; }
parity() { run parity "$@" -p max_tokens=24; }

# ---- drafting on and off ----
few 12; parity "$T/few"; [ $rc = 0 ] && like '^equal: 12 of 12 prompts compared, 0 differ$' && [ ! -s "$T/err" ]
result "drafting on and off give the same ids" $?
like '^a  spec=on: [0-9]+ tokens in [0-9]+ steps, [1-9][0-9]* of them drafted, [1-9][0-9]* of [0-9]+ drafted tokens accepted' &&
    like '^b  spec=off: [0-9]+ tokens in [0-9]+ steps, none drafted'
result "with the proof that one side drafted" $?
parity "$T/few" --json; [ $rc = 0 ] && [ "$(wc -l <"$T/out")" = 13 ] &&
    [ "$(grep -c '^{"prompt":[0-9]*,"line":[0-9]*,"compared":true,"equal":true,"a":{"tokens":[0-9]*,.*},"b":{.*}}$' "$T/out")" = 12 ] &&
    tail -n 1 "$T/out" | grep -q '^{"verdict":"equal","prompts":12,"compared":12,"differ":0,"refused":0,"drafting_proved":true,'
result "as JSON: an object a prompt, and the sums" $?
parity "$T/prompts" --limit 3 --lanes 1; [ $rc = 0 ] && like '^equal: 3 of 3 prompts'; result "--limit" $?
parity - <"$T/few"; [ $rc = 2 ] && grep -q 'standard input holds no prompt' "$T/err"; result "no prompt is refused" $?
feed parity - -p max_tokens=9 <"$T/few"; [ $rc = 0 ] && like '^equal: 12 of 12'; result "prompts from a pipe" $?
run parity "$T/few" -p max_tokens=1; [ $rc = 2 ] && like '^no proof: 12 of 12 .*no step drafted'
result "a run in which no step drafted proves nothing" $?
parity "$T/few" --draft "$T/none"; [ $rc = 2 ] && grep -q '^aerie: drafting on and off cannot be compared: .*none' "$T/err"
result "nor does one without a draft" $?
parity "$T/few" -p temperature=0.8; [ $rc = 0 ]; result "sampled replies are compared, too" $?

# ---- other settings ----
parity "$T/few" --a page_size=1 --a draft.topk=4 --a draft.nodes=16 --b page_size=64 --b spec=off --arm page_size=4,draft.steps=2
[ $rc = 0 ] && like '^a  page_size=1, draft\.topk=4, draft\.nodes=16: .* drafted' && like '^b  page_size=64, spec=off: ' &&
    like '^c  page_size=4, draft\.steps=2: ' && like '^c +0 +0 +- +0$' && ! like 'alone in'
result "three engines, one after the other" $?
parity "$T/few" --kl --b draft=ngram; [ $rc = 0 ] && [ "$(grep -cE '^   kl of replies read as prompts: [1-9][0-9]* tokens with equal log' "$T/out")" = 2 ]
result "another drafter; replies read as prompts have equal log probabilities" $?
like '^drafts +a +b$' && like '^MAL +[1-6]\.[0-9]+ +([1-6]\.[0-9]+|-) ' && like '^depth 1 +[01]\.[0-9]+ ' &&
    like '^context 0-63 +[1-6]\.[0-9]+ ' && like '^draft passes +[0-9]+\.[0-9]+ ' && like '^tokens a second +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+ '
result "both drafters side by side: by depth, by context, times" $?
run parity "$T/few" --json --b draft.window=8 -p max_tokens=48; [ $rc = 0 ] &&
    tail -n 1 "$T/out" | awk '{
        n = split($0, side, "\"changes\":") # of a, of b
        for (i = 2; i <= n; i++) {
            match(side[i], /"accepted":[0-9]+/); accepted[i] = substr(side[i], RSTART + 11, RLENGTH - 11)
            match(side[i], /"accepted_at":\[[0-9,]*/); m = split(substr(side[i], RSTART + 15, RLENGTH - 15), at, ",")
            for (sum = 0; m; m--) sum += at[m]
            bad += sum != accepted[i]
        }
        exit !(n == 3 && !bad && accepted[2] > accepted[3])
    }'
result "a window of eight: the same ids, fewer drafted tokens accepted; the depths add up" $?
few 8; parity "$T/few" -p temperature=3 --b seed=2
[ $rc = 1 ] && like '^prompt [0-9]+ \(line [0-9]+\) differs at position [0-9]+, token [0-9]+ of the reply: ".*" \([0-9]+\) with a, ".*" \([0-9]+\) with b; margin -?[0-9.e-]+$' &&
    like '^different: 8 of 8 prompts compared, [1-9][0-9]* differ'
result "other random numbers differ, and it is said where" $?
[ "$(grep -c '^prompt ' "$T/out")" = "$(sed -n 's/^different: .* compared, \([0-9]*\) differs\{0,1\}$/\1/p' "$T/out")" ]
result "a line for each that differs" $?
# sampling makes close calls: a rounding of the weights shows
parity "$T/few" -p temperature=3 --b weights=fp8 --json
[ $rc = 1 ] && like '"equal":false,.*"first":\{"index":[0-9]+,"position":[0-9]+,"a":\{"token":[0-9]+,"text":".*"\},"b":\{.*\},"margin":-?[0-9.e-]+\}\}$' &&
    like '"kl_against_a":\{"tokens":[1-9][0-9]*,"equal":[0-9]+,"k3_mean":[0-9.e-]+,.*"tail":[0-9.e-]+,"largest":[0-9.e-]+\}'
result "weights of 8 bits differ, and by how much" $?
few 14; grep '^story' tests/prompts.txt | cut -f2 | head -n 6 >>"$T/few" # replies longer than the window
faulty() { run parity "$T/few" -p max_tokens=60 -p draft.topk=4 -p draft.nodes=16 --b bug.24617=on "$@"; }
faulty -p check=off --arm spec=off
[ $rc = 1 ] && like '^different: 20 of 20' && like '^b +[1-9][0-9]* +- +[1-9][0-9]* +[1-9][0-9]*$' &&
    like '^b stands alone in ([1-9][0-9]*) of \1 prompts? that differs?: bug.24617=on$'
result "a historical fault differs, with nothing else to notice it, and stands alone" $?
faulty
[ $rc = 5 ] && grep -q '^aerie: b: I4 ' "$T/err" && like '^incomplete: .*a fault of b ended the run'
result "with the checker on, the rule ends the run" $?
few 4; parity "$T/few" --b bug.24617=on; [ $rc = 0 ] && grep -q '^aerie: b: fault 24617 is on, but cannot fire; it needs draft.topk 2' "$T/err"
result "a fault that cannot fire is named" $?

# ---- answers ----
lines '{"question": "What is 7 plus 5?", "answer": "7 plus 5 is <<7+5=12>>12.\n#### 12"}' \
    '{"question": "What is 3 plus 4?", "answer": "#### 8"}' '{"prompt": "Hello!"}' \
    '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."}, {"role": "user", "content": "What is my name?"}]}' >"$T/q"
parity "$T/q"; [ $rc = 0 ] && like '^answers: 1 of 2 right with a, 1 with b; 0 differ$'; result "answers are extracted and scored on both sides" $?
parity "$T/q" --json; like '"line":1,.*"answer":"12","right":true\},"b"' && like '"line":2,.*"answer":"7","right":false' &&
    like '"graded":2,"answers_differ":0,.*"right":1\}\}$'
result "also as JSON" $?
solo=$(lines "My name is Ada." "What is my name?" | "$AERIE" -n -q --plain -p max_tokens=48 | tail -n 1)
[ -n "$solo" ] && [ "$(sed -n 4p "$T/out" | grep -o '"tokens":[0-9]*' | sort -u | wc -l)" = 1 ]; result "messages are a conversation ($solo)" $?

# ---- what is refused ----
lines '{"prompt": "x"}' '{"prompt": 1}' '' '{' >"$T/bad"
parity "$T/bad"; [ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 3 ] && grep -q 'bad line 2: expected a prompt, a question or messages' "$T/err" &&
    grep -q 'bad line 4: ' "$T/err" && tail -n 1 "$T/err" | grep -q '^aerie: 2 lines of .* cannot be used; nothing was computed'
result "each bad line is one clear line, before anything is computed" $?
refuse() { # PATTERN ARGS...
    local pattern=$1; shift
    run parity "$@"; [ $rc = 2 ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -qE -- "$pattern" "$T/err"
    result "refused: parity ${*:2}" $?
}
refuse 'something is missing'
refuse 'cannot open .*nowhere' "$T/nowhere"
refuse 'a and b are the same: spec=on' "$T/few" --a spec=on
refuse '^aerie: --b: "heat" cannot be changed; expected a setting .*page_size' "$T/few" --b heat=1
refuse '^aerie: --a: page_size cannot be "3"; expected a power of two' "$T/few" --a page_size=3
refuse '^aerie: --a: "spec": expected NAME=VALUE' "$T/few" --a spec
lines '{"prompt":"Hello!"}' "{\"prompt\":\"$(head -c 30000 /dev/zero | tr '\0' 'x')\"}" >"$T/long"
parity "$T/long"; [ $rc = 2 ] && like '^prompt 2 is refused: the prompt needs' && like '^incomplete: 1 of 2 prompts compared, 0 differ, 1 refused'
result "a prompt that is too long is not called equal" $?

# ---- Ctrl-C ----
for _ in $(seq 3000); do echo "Tell me a story about a fox."; done >"$T/many"
for sides in "" "--b page_size=4"; do
    : >"$T/out"; "$AERIE" parity "$T/many" --json -p max_tokens=12 $sides >"$T/out" 2>"$T/err" & pid=$!
    two() { [ "$(wc -l <"$T/out")" -ge 2 ]; }; [ -n "$sides" ] || until_ok two
    [ -z "$sides" ] || caught $pid
    kill -INT $pid; wait $pid
    [ $? = 130 ] && [ ! -s "$T/err" ] && tail -n 1 "$T/out" | grep -q "^{\"verdict\":\"incomplete\",\"prompts\":3000,\"compared\":$(($(wc -l <"$T/out") - 1)),\"differ\":0,"
    result "Ctrl-C ends it with what was compared${sides:+ (two engines)}" $?
done
# ---- kl: a row has the same bits at decode and in a prompt ----
numbers() { grep -oE "\"$1\":[^,}]*" "$T/out" | head -n 1 | cut -d: -f2; }
run kl local -n 5 -p max_tokens=48; [ $rc = 0 ] && like '^5 replies, 240 tokens: 240 with equal log probabilities$' && like '^difference  mean 0, 99 % at most 0, largest 0$' &&
    like '^zero: ' && [ "$(grep -cE '^  (past the window 64|first row of a block of 16|last row of the prompt|depth 2 of a step) +[1-9][0-9]* +0 +0$' "$T/out")" = 4 ] && [ ! -s "$T/err" ]
result "kl: 240 tokens decoded and read have equal log probabilities" $?
run kl local -n 3 --page-size 2 -p draft.topk=3 -p draft.nodes=12 -p chunk=7 --json; [ $rc = 0 ] && like '"verdict":"zero"' && [ "$(numbers largest)" = 0 ] && [ "$(numbers equal)" = 192 ]
result "kl: with other pages, trees and chunks, too" $?
run kl local "$T/few" -n 3 -p spec=off -p max_tokens=9; [ $rc = 0 ] && like '^3 replies, 27 tokens: 27 with equal'; result "kl: prompts of a file, without drafting" $?
run kl local "$T/few" -n 1 -p max_tokens=2 --draft "$T/none"; [ $rc = 0 ] && like '; drafting is off: cannot open .*/none: '; result "kl: a draft that is not there is named" $?
run parity "$T"; [ $rc = 2 ] && grep -qE '^aerie: cannot read .*: it is a folder$' "$T/err"; result "a folder is no file of prompts" $?
for fault in 26513 9279; do
    run kl local -n 6 --check off --bug $fault --json
    [ $rc = 1 ] && like '"verdict":"too large"' && awk -v k="$(numbers k3_mean)" 'BEGIN { exit !(k > 0.002) }'
    result "kl: fault $fault is not zero" $?
done
run kl local -n 6 --check off --bug 39287 -p draft.topk=2 -p draft.nodes=6; [ $rc = 1 ] && like '^  window 64 not yet full +[0-9]+ +0 +0$' && like '^  past the window 64 +[0-9]+ +[1-9][^ ]* +(0\.0*)?[1-9]'
result "kl: fault 39287 shows past the window only" $?
run kl nowhere; [ $rc != 0 ] && [ "$(wc -l <"$T/err")" = 1 ]; result "kl: no such server" $?
plan
