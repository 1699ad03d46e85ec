#!/bin/bash
# aerie probe against aerie serve: nothing is found where nothing is wrong, and a historical fault that changes numbers is
# found, made smaller, and shown by a script of curl calls.
. "$(dirname "$0")/kit.sh"
key=() servers='' right='' masked='' faulty='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME FLAGS...: sets the variable NAME to the address
    local name=$1 file=$T/$1.log; shift
    rm -f "$file"; : >"$file"
    "$AERIE" serve --port 0 --no-log --lanes 2 --context 224 "$@" >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $! http://
    declare -g "$name=$(grep -o 'http://[0-9.:]*' "$file" | head -n 1)"
}
probe() { run probe "$@"; }
script() { sed -n '/^```sh$/,/^```$/p' "$1" | sed '1d;/^```$/,$d' >"$T/script"; }

serve right
probe "$right" -n 10
[ $rc = 0 ] && like '^aerie [0-9.]*, nestling: 10 cases, [0-9]* requests' && like '^no difference found$' && [ "$(wc -l <"$T/out")" = 2 ] && [ ! -s "$T/err" ]
result "a round of all kinds finds nothing where nothing is wrong" $?
[ "$(sql "select count(*) from session")" = 10 ] && [ "$(sql "select count(*) from turn")" -gt 50 ] && [ "$(sql "select count(*) from step")" -gt 50 ]
result "each case is a session of the log, each request a turn" $?
run show 1; like '; [0-9.]* ms in all\]$' && ! grep -q 'first token' "$T/out"; result "a reply that came at once has no time to the first token" $?
probe "$right" -n 2 --shape page=4 --shape seed=7 --no-log --json; [ $rc = 0 ] && like '"page":4,.*"exact":true,"compared":[1-9][0-9]*,"without_logprobs":0,"verdict":"no difference found","n_found":0,"found":\[\]'
result "another shape and seed, as JSON" $?
run triage "$right" -n 1; [ $rc = 0 ] && like '^drafts of chats that triage sent' && like '^verdict  healthy: position 1 is accepted in 9'
result "triage judges chats that it sends, not the texts that probe asked for" $?

serve masked --check off --bug 9279
probe "$masked" -n 1 -o "$T/report" --state "$T/state"
[ $rc = 1 ] && like '^1\. A-B-A: token 1 \(position 82\) is [0-9]+ instead of [0-9]+; margin of the control there [0-9.]+$' && like 'seen in 3 of 3 runs of the case; the control.s 3 runs are equal' &&
    like '4 requests made 2;' && like '^     1\. a prompt of 69 tokens .*, reply of 1$' && like '^     2\. a prompt of 82 tokens .*, reply of 1  <- judged$' && like '^different: 1 case in which'
result "fault 9279: a wrong id by two requests, the first longer than the window" $?
grep -q '^### Your current environment' "$T/report" && grep -q '^shape     page 16, window 64' "$T/report" && [ "$(grep -c '"prompt":\[' "$T/report")" = 3 ]
result "its report has the form of an issue, and the requests" $?
script "$T/report"
bash "$T/script" >"$T/out" 2>"$T/err"; [ $? = 1 ] && like '^different$' && [ ! -s "$T/err" ]; result "its script shows the difference" $?
bash "$T/script" "$right" >"$T/out" 2>"$T/err"; [ $? = 0 ] && like '^equal$'; result "and none on the server without the fault" $?
[ "$(wc -l <"$T/state")" = 2 ] && probe "$masked" -n 1 --state "$T/state" && [ $rc = 0 ] && like 'before: 1 case, [0-9]* requests, 1 found' && like '^nothing was run$'
result "a later call goes on behind it" $?
echo '{"case":-1}' >>"$T/state"; probe "$masked" -n 3 --state "$T/state"; [ $rc = 2 ] && grep -q 'state: line 3: expected {"case":N' "$T/err"; result "a line that is none is refused" $?
probe "$right" -n 1 --state "$T/state"; [ $rc = 2 ] && grep -q 'is not of this server' "$T/err"; result "a file of another server is refused" $?

# found FAULT CASES PATTERN FLAGS...: a server with the fault, and what is found in the first cases
found() {
    local fault=$1 cases=$2 pattern=$3; shift 3
    serve faulty --check off --bug "$fault" "${key[@]}" "$@"
    probe "$faulty" -n "$cases" $shape -o "$T/report" --no-log "${key[@]}" --header 'X-Team: walrus'
    [ $rc = 1 ] && like "$pattern"; result "fault $fault is found" $?
    for form in $forms; do probe "$faulty" -n 1 --no-log --issue "$form" -o "$T/$form" "${key[@]}"; done
    kill "${servers##* }"; servers=${servers% *}
}
forms='sglang vllm llama.cpp' shape=''
echo sk-bartholomew >"$T/key"; chmod 600 "$T/key"; key=(--api-key-file "$T/key")
found 16267 1 '^1\. A-B-A: the request fails: alone, too: the server answers 500: .*not a number'
[ $rc = 1 ] && grep -q '^### Reproduction' "$T/sglang" && grep -q '^### First Bad Commit' "$T/llama.cpp" && grep -q 'collect_env.py' "$T/vllm"; result "the forms of three engines" $?
# of the requests reports have ids, and nothing of whom they came from: no word of a text, no key, no header, no folder
! grep -qiE "sk-bartholomew|walrus|$T" "$T/report" "$T/sglang" "$T/vllm" "$T/llama.cpp" && [ "$(grep -c '"prompt":\[[0-9,]*\]' "$T/report")" -ge 2 ]
result "a report has no key, no header and no folder" $?
forms='' key=() shape='--shape seed=0' # whose lengths reach the fault in two cases
tree='-p draft.topk=2 -p draft.nodes=6'
found 39287 2 '^[0-9]\. decode and prompt: its log probabilities at decode and as a prompt differ by' $tree
if [ "${AERIE_TEST_LONG:-0}" != 0 ]; then
    found 26513 1 '^1\. A-B-A: .*differ'
    found 24617 2 '^1\. A-B-A: .*differ' $tree
fi
probe "$right" --shape depth=3; [ $rc = 2 ] && grep -q 'expected page, window' "$T/err"; result "an unknown part of the shape is refused" $?
probe http://127.0.0.1:1; [ $rc = 3 ] && [ "$(wc -l <"$T/err")" = 1 ]; result "no server: one line" $?
plan
