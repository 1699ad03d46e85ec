#!/bin/bash
# /calibrate and aerie doctor --draft say on which of the target's states the bundled head was trained.
. "$(dirname "$0")/kit.sh"
says() { # name, text, command...
    local name=$1 text=$2
    shift 2
    "$@" >"$T/out" 2>&1 && grep -qF -- "$text" "$T/out"
    result "$name" $?
}
calibrate() { printf '/calibrate\n' | "$AERIE" --plain --device cpu "$@"; }

says "/calibrate confirms the configured captures" \
    "the head was trained for boundaries 2,4,5, as configured" calibrate
says "/calibrate finds captures that are one layer off" \
    "not 3,5,6: use --eagle-capture 2,4,5" calibrate --eagle-capture 3,5,6
# 3,5,6 gain too little in this session alone: triage has to measure more
printf '%s\n' 'Tell me a story about a turtle.' /triage | "$AERIE" --plain --device cpu --eagle-capture 3,5,6 >"$T/out" 2>&1
grep -qF "verdict  the head reads other layers than it was trained on" "$T/out" &&
    grep -qF "confirm aerie replay 1 --with eagle_capture=2,4,5" "$T/out"
result "/triage names them from the session, and how to confirm it" $?
"$AERIE" triage last --device cpu --draft "$T/none" >"$T/out" 2>&1; grep -q '^not measured again: cannot open .*/none: ' "$T/out"
result "triage says why a draft cannot be measured" $?
printf '%s\n' "$(seq -s ' ' 300)" /triage | "$AERIE" --plain --device cpu -p temperature=0.7 -p max_tokens=9 >"$T/out" 2>&1 &&
    grep -q '^verdict' "$T/out"
result "a message that takes several passes does not end the program in /triage" $?
says "doctor --draft calibrates the head" \
    "ok   captures   the head was trained for boundaries 2,4,5, as configured" \
    "$AERIE" doctor --device cpu --draft models/nestling/draft
"$AERIE" doctor >"$T/out" 2>&1; ! grep -q captures "$T/out"
result "doctor alone does not" $?
says "/calibrate scores a head that guesses blocks" \
    "the head was trained for boundaries 2,4,5,8, as configured" calibrate --no-log --draft models/nestling/block
calibrate --draft tests/golden/eagle3-gptoss-a >"$T/out" 2>&1
grep -qF "there is nothing to calibrate: " "$T/out"
result "/calibrate without a head that fits says why" $?
calibrate --draft ngram >"$T/out" 2>&1
grep -qF "there is nothing to calibrate: ngram" "$T/out"
result "/calibrate with a drafter that captures nothing says so" $?
says "doctor knows a drafter without weights" "draft      ngram: a drafter without weights" \
    "$AERIE" doctor --device cpu --draft ngram
mkdir "$T/model"; ln -s "$PWD"/models/nestling/target/* "$T/model"; rm "$T/model/generation_config.json"
echo '{"do_sample": true, "temperature": 0.7, "top_k": -1, "top_p": 0.9, "suppress_tokens": [3]}' >"$T/model/generation_config.json"
says "doctor says how the publisher samples" "generation_config.json samples with -p temperature=0.7 -p top_p=0.9" \
    "$AERIE" doctor --device cpu -m "$T/model"
grep -q 'warn .*replies may have the 1 token of suppress_tokens' "$T/out"
result "and which tokens it lets a reply not have" $?
plan
