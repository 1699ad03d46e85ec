#!/bin/bash
# A saved session runs again with things changed: what must stay equal does, and what differs is named.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
export XDG_DATA_HOME=$T XDG_CONFIG_HOME=$T XDG_STATE_HOME=$T HOME=$T TERM=dumb
n=0; bad=0
result() { n=$((n + 1)); [ "$2" = 0 ] && echo "ok $n - $1" || { echo "not ok $n - $1"; bad=1; }; }
session() { # FLAGS: questions on standard input
    "$AERIE" --plain --quiet --log-level tree --check off -p max_tokens=90 "$@" --script /dev/stdin >/dev/null 2>"$T/err" </dev/stdin
}
# TITLE STATUS PATTERN ARGUMENTS...: the status and a line of the output
says() {
    local title=$1 want=$2 pattern=$3; shift 3
    timeout 60 "$AERIE" "$@" >"$T/out" 2>&1
    local rc=$?
    [ $rc = "$want" ] && grep -qE -- "$pattern" "$T/out"
    local ok=$?
    [ $ok = 0 ] || { echo "# status $rc, expected $want, and /$pattern/ in:"; sed 's/^/# /' "$T/out" | head -n 12; }
    result "$title" $ok
}
printf '%s\n' 'Tell me a short story.' 'What are you?' 'Explain speculative decoding in detail.' \
    'Tell me a story about Clara the owl.' | session -p draft.topk=4 -p draft.nodes=16
result "a session without the checker" $?

# ---- replay --with: what may not change ----
with() { # TITLE STATUS PATTERN CHANGE...
    local title=$1 status=$2 pattern=$3; shift 3
    says "replay: $title" "$status" "$pattern" replay last --with "$@"
}
equal='^equal: 4 turns, [0-9]+ tokens'
with "the checker, after the fact" 0 "$equal, step by step" check=strict
grep -qE '^checker: [0-9]+ plans checked, no rule violated' "$T/out"; result "plans were checked" $?
with "another page size" 0 "$equal, step by step" page_size=4
grep -q '^changed: page_size 16 | 4' "$T/out"; result "the change is named" $?
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
rule 24617 1.15 I4
rule 27360 1.2 I7
rule 26513 2.1 I12
rule 26512 1.1 I9
rule 9279 2.1 I12
rule 16267 1.1 I4
rule 27789 1.2 I3
rule 17630 1.1 I14
rule 39287 1.10 I12
with "a fault without the checker differs" 1 '^differs at step 1\.10: page table' bug.tree-window-by-index=on
with "no number" 1 '^differs at step 1\.15: logits: the model.s output is not a number' bug.24617=on

# ---- what cannot be ----
with "an unknown name" 2 '"page_siz" cannot be changed; expected' page_siz=4
with "a wrong value" 2 'page_size cannot be "3"' page_size=3
says "replay: a second word" 2 'replay takes one session' replay last another
"$AERIE" replay last --with bug.24617=on check=strict --json >"$T/out"
grep -q '"violation":{"rule":"I4","turn":1,"step":15,' "$T/out"; result "a violation as JSON" $?
grep -q '{"name":"bug.24617","log":"off","now":"on","may_change":"anything"}' "$T/out"; result "changes as JSON" $?
echo "1..$n"
exit $bad
