#!/bin/bash
# aerie serve against the engine in the same program: every id and every log probability must be equal, with drafting
# and without, whatever the server's page size and its other clients.
. "$(dirname "$0")/kit.sh"
servers='' drafting='' plain='' faulty='' biased='' # serve sets the addresses
clean() { [ -z "$servers" ] || kill $servers 2>/dev/null; }
serve() { # NAME FLAGS...: sets the variable NAME to the address
    local name=$1 file=$T/$1.log; shift
    "$AERIE" serve --port 0 "$@" >"$file" 2>&1 &
    servers="$servers $!"
    until_ok wrote "$file" $! http://
    declare -g "$name=$(grep -o 'http://[0-9.:]*' "$file" | head -n 1)"
}
id_of() { "$AERIE" logs --json | head -n 1 | sed 's/^{"id":"\([^"]*\)".*/\1/'; }
grep -v '^#' tests/prompts.txt | cut -f2 | head -n 10 >"$T/prompts"
lines '{"question": "What is 7 plus 5?", "answer": "#### 12"}' \
    '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."}, {"role": "user", "content": "What is my name?"}]}' >"$T/talks"
serve drafting --lanes 4 --no-log
serve plain --lanes 2 --no-log --no-spec --page-size 4
parity() { run parity "$@" -p max_tokens=40 --lanes 4; }
equal() { # TITLE PROMPTS
    [ $rc = 0 ] && like "^equal: $2 of $2 prompts compared, 0 differ" && like '^log probabilities of [1-9][0-9]* equal tokens: equal$' &&
        ! like 'by text|were not compared' && [ ! -s "$T/err" ]
    result "$1" $?
}
parity "$T/prompts" --a "remote:$drafting" --b local; equal "a server that drafts and the local engine" 10
like '^a  remote:.*\(aerie .*\): .* [1-9][0-9]* of [1-9][0-9]* drafted tokens accepted' && like 'prefix cache emptied before each part'; result "it drafted, and its cache is emptied" $?
parity "$T/prompts" --a "remote:$drafting" --b "remote:$plain" --control; equal "drafting on and off, on two servers" 10
[ "$(grep -c 'control: 10 replies computed twice, 0 differ' "$T/out")" = 2 ]; result "each gives the same twice" $?
parity "$T/talks" --kl --arm local --arm "remote:$plain" --arm "remote:$drafting"; equal "conversations on three sides" 2
[ "$(grep -cE '^   kl of replies read as prompts: [1-9][0-9]* tokens with equal log probabilities$' "$T/out")" = 3 ] &&
    [ "$(grep -cE '^[abc]( +[0-9-]+)+$' "$T/out")" = 3 ]
result "each reads its replies as prompts, with equal log probabilities" $?
like '^answers: [01] of 1 right with a, [01] with b, [01] with c; 0 differ$'; result "answers are graded alike" $?
parity "$T/prompts" --a "remote:$plain" --b local --b spec=off -p temperature=0.9 -p seed=5; equal "sampled replies" 10

for url in "$drafting" "$plain"; do
    run kl "$url" -n 5 -p max_tokens=32; [ $rc = 0 ] && like '^5 replies, 160 tokens: 160 with equal log probabilities$' && like '^zero: ' && [ ! -s "$T/err" ]
    result "kl: log probabilities of a reply and of a prompt are equal" $?
done
serve faulty --lanes 2 --no-log --check off --bug 9279
run kl "$faulty" -n 6 --json; [ $rc = 1 ] && like '"row":"window 64 not yet full","tokens":[0-9]*,"k3_mean":0,' && like '"verdict":"too large"'; result "kl: a server's fault is found past the window" $?

lines 'Tell me a short story.' 'What are you?' >"$T/talk"
feed --plain --quiet -p max_tokens=30 --remote "$drafting" <"$T/talk"; there=$(id_of)
feed --plain --quiet -p max_tokens=30 <"$T/talk"; here=$(id_of)
run diff "$there" "$here" --log-only; [ $rc = 0 ] && like 'nowhere: 2 turns, 60 tokens by position' && like 'log p +60 tokens: equal' && like 'verdict +equal$'
result "diff of two conversations" $?
run replay "$there" --forced; [ $rc = 0 ] && like 'forced +60 tokens .* another at 0' && like 'log p +60 tokens: equal' && like 'verdict +equal$'
result "the server's tokens in the local engine" $?
run diff "$there" --forced; [ $rc = 0 ] && like 'the same build of aerie .*: the band is 0' && like 'verdict +equal$'; result "the same build has no band" $?
lines 'Write a poem.' | feed --plain --quiet -p max_tokens=20 --remote "$drafting"; lines 'Hello.' | feed --plain --quiet -c -p max_tokens=20
run replay last --forced; [ $rc = 0 ] && like 'log p +[1-9][0-9]* tokens: equal' && like 'verdict +equal$'; result "a server's chat that went on here" $?
first=$(sql "SELECT token FROM v_token WHERE session='$here' LIMIT 1")
serve biased --lanes 1 --no-log -p "logit_bias=$first:-100" -p presence_penalty=1 -p repetition_penalty=1.3
feed --plain --quiet -p max_tokens=30 --remote "$biased" <"$T/talk"
run diff last "$here" --log-only; [ $rc = 0 ] && like 'nowhere: 2 turns, 60 tokens by position' && like 'verdict +equal$'
result "a client's settings hold, not the server's defaults" $?
feed --plain --quiet -p max_tokens=30 -p "logit_bias=$first:-50" --remote "$biased" <"$T/talk"
run diff last --forced; [ $rc = 0 ] && like 'another at 0$' && like 'biases changed the logits of 2 replies' && like 'verdict +equal$'
result "a bias takes the place of the server's, and is no difference" $?
feed --plain --quiet -p max_tokens=30 -p temperature=1.5 --remote "$plain" <"$T/talk"; there=$(id_of)
run replay "$there" --forced --json; [ $rc = 0 ] && like '"chosen_otherwise":[1-9]' && like '"log_probability_differs_by":0,' && like '"sampled":true'
result "sampled: the local engine would choose others, its numbers are equal" $?
lines 'Hello.' '/set repetition_penalty 1.3' 'Hello.' | feed --plain --quiet -p max_tokens=20 --remote "$plain"
lines '/force #100' 'Hello.' | feed --plain --quiet -c -p max_tokens=5 -p repetition_penalty=1
run replay last --forced; [ $rc = 0 ] && like 'forced +45 tokens .* another at 0' && like 'verdict +equal$' &&
    like 'penalties or biases changed the logits of 1 reply: only log probabilities were compared there'
result "penalties, and a token by hand: other tokens than the best are no difference" $?
plan
