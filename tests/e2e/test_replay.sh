#!/bin/bash
# 18 short sessions (100 with AERIE_TEST_LONG=1) of every kind are saved, then replayed: each must be equal, step by step.
# Then single facts of the log are falsified: the replay must name what differs, and where.
. "$(dirname "$0")/kit.sh"
export T
if [ "${AERIE_TEST_LONG:-0}" = 0 ]; then want=18 RANDOM=9; else want=100 RANDOM=27360; fi # the same sessions every time
picked=
pick() { eval "picked=\${$((1 + RANDOM % $#))}"; }

# ---- sessions ----
message() {
    pick "What are you?" "Tell me a short story." "What is 7 plus 5?" "Say hello." \
        "My name is Ada. Remember it." "What is my name?" "How do I see the page table?" \
        "List three colours and say which one you like best, and why that is so, in a few words."
    echo "$picked"
}
operation() {
    pick "/set temperature 0.9" "/set temperature 0" "/set top_k 20" "/set draft.steps 3" \
        "/set draft.topk 4" "/set draft.nodes 16" "/set spec off" "/set spec on" "/set chunk 7" \
        "/set seed 5" "/set max_tokens 9" "/system Answer briefly." "/undo" "/undo" "/regen" "/regen" \
        "/fork" "/fork" "/clear"
    echo "$picked"
}
script() { # acts
    echo "/set max_tokens $((6 + RANDOM % 20))"
    message
    for ((k = 0; k < $1; k++)); do
        if [ $((RANDOM % 2)) = 0 ]; then message; else operation; fi
    done
    echo "/set draft.window $((runs % 4 * 12))" # 0: all that the window before has released is computed again
    message
}
sessions() { "$AERIE" logs -n 1000 --json 2>/dev/null | wc -l; }
runs=0; failed=0
while [ $runs -lt 200 ] && { [ $((runs % 10)) != 0 ] || [ "$(sessions)" -lt $want ]; }; do
    runs=$((runs + 1))
    script $((RANDOM % 5)) >"$T/script"
    pick 1 2 4 16 64; flags="--page-size $picked"
    pick "1 5 6" "1 3 4" "4 5 16" "8 6 60" "2 1 3"; set -- $picked
    flags+=" -p draft.topk=$1 -p draft.steps=$2 -p draft.nodes=$3 -p draft.window=$((runs % 3 * 20))"
    pick steps steps tree; flags+=" --log-level $picked"
    pick "" "" "--no-spec" "--context 160" "--full-pages 80 --swa-pages 60 --context 300" "--seed 9" \
        "--draft-weights fp8" "--weights fp8" "--draft ngram" "--draft ngram"; flags+=" $picked"
    pick "" "" "-c" "-p temperature=0.7"; flags+=" $picked"
    [ $runs = 1 ] && flags=${flags%-c} # there is nothing to take up yet
    # an /undo or /regen too many is an error, and a small pool may be full: no more than that
    timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" --plain --quiet $flags --script "$T/script" >"$T/out" 2>&1 </dev/null ||
        grep -qE '^aerie: (there is no|stopped: kv_full)' "$T/out" ||
        { failed=1; echo "# failed: $flags"; tail -n 3 "$T/out" | sed 's/^/# /'; }
done
sql() { sqlite3 "$DB" "$1"; }
echo "# $runs runs, $(sessions) sessions, $(sql "select count(*) from turn where role='user'") turns, $(sql 'select count(*) from step') steps"
[ "$(sessions)" -ge $want ]; result "$want sessions were saved" $?
result "each run ended well" $failed
missing=
for op in open set system undo resume fork; do
    [ "$(sql "select count(*) from event where op='$op'")" -gt 2 ] || missing+=" $op"
done
[ "$(sql "select count(*) from turn where regen")" -gt 2 ] || missing+=" regen"
[ "$(sql "select count(distinct substr(config, 1, 13)) from run")" -ge 5 ] || missing+=" page sizes"
[ "$(sql "select count(*) from step s join turn t on t.id = s.turn_id join run r on r.id = t.run_id
    join model m on m.id = r.draft_id where m.dir = 'ngram' and s.accepted > 0")" -gt 5 ] || missing+=" n-gram drafts"
[ "$(sql "select count(*) from step where accepted > 2")" -gt 50 ] || missing+=" long acceptances"
[ "$(sql "select count(*) from step where kind='decode'")" -gt 50 ] || missing+=" plain decoding"
[ "$(sql "select max(draws) from step")" -gt 20 ] || missing+=" sampling"
[ -z "$missing" ]; result "they hold every kind of act:$missing" $?

# ---- every one is equal ----
check() {
    timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" replay --check "$1" >"$T/r-$1" 2>&1
    rc=$?
    [ $rc = 0 ] || echo "# $1: status $rc: $(tail -n 1 "$T/r-$1")"
}
export -f check
before=$(sql 'select count(*) from session' ; sql 'select count(*) from turn'; sql 'select count(*) from run')
"$AERIE" logs -n 1000 --json | sed 's/^{"id":"\([^"]*\)".*/\1/' >"$T/ids"
xargs -P 2 -I{} bash -c 'check {}' <"$T/ids" >"$T/differ"
cat "$T/differ"
ids=$(wc -l <"$T/ids"); [ ! -s "$T/differ" ]; result "$ids sessions replay equal" $?
after=$(sql 'select count(*) from session' ; sql 'select count(*) from turn'; sql 'select count(*) from run')
[ "$before" = "$after" ]; result "nothing of a replay is saved" $?
total=$(cat "$T"/r-* | sed -n 's/^equal: [0-9]* turns\{0,1\}, \([0-9]*\) .*/\1/p' | awk '{s += $1} END {print s}')
[ "$total" -ge "$(sql 'select count(*) from step')" ]; result "every step was compared ($total)" $?

# ---- what is false is found ----
# of those with three turns and a drafted tree the one of fewest steps
id=$(sql "select session_id from turn t where role='user' and not exists(select 1 from session s
    where s.id = t.session_id and s.parent not null) group by 1 having count(*) >= 3
    and exists(select 1 from step s join tree x on x.step_id = s.id join turn u on u.id = s.turn_id
    where u.session_id = t.session_id and s.accepted > 0)
    order by (select sum(s.rows) from step s join turn u on u.id = s.turn_id where u.session_id = t.session_id) limit 1")
read -r turn step row < <(sql "select t.n, s.n, s.id from step s join turn t on t.id = s.turn_id
    join tree x on x.step_id = s.id where t.session_id='$id' and s.accepted > 0
    order by s.n = (select max(m.n) from step m where m.turn_id = t.id) desc, t.n desc, s.n desc limit 1" | tr '|' ' ')
[ -n "$row" ]; result "a session with trees to falsify" $?
forge() { # NAME SQL STATUS PATTERN
    cp "$DB" "$T/forged.db"; rm -f "$T"/forged.db-*
    sqlite3 "$T/forged.db" "$2"
    timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" --db "$T/forged.db" replay --check "$id" >"$T/out" 2>&1
    rc=$?
    [ $rc = "$3" ] && grep -qE -- "$4" "$T/out"
    local ok=$?
    [ $ok = 0 ] || echo "# status $rc: $(tail -n 1 "$T/out")"
    result "found: $1" $ok
}
sql 'pragma wal_checkpoint(truncate)' >/dev/null
at="differs at step $turn\\.$step"
forge "another page table" "update step set page_digest = page_digest + 1 where id=$row" 1 "$at: page table"
forge "another draft" "update step set draft_digest = draft_digest + 1 where id=$row" 1 "$at: draft: digest"
forge "other logits" "update step set logit_digest = logit_digest + 1 where id=$row" 1 "$at: logits"
forge "page table before logits" "update step set logit_digest = 1, page_digest = 1 where id=$row" 1 "$at: page table"
forge "another acceptance" "update step set accepted = accepted - 1 where id=$row" 1 "$at: tokens: accepted"
forge "another token" "update step set tokens = x'07000000' || substr(tokens, 5) where id=$row" 1 "$at: tokens: token 0 is 7"
forge "another number of draws" "update step set draws = draws + 1 where id=$row" 1 "$at: tokens: random"
forge "another tree" "update tree set nodes = substr(nodes, 1, 20) || x'07000000' || substr(nodes, 25) where step_id=$row" 1 "$at: draft: token of a node"
forge "another fate" "update tree set nodes = substr(nodes, 1, 25) || x'02' || substr(nodes, 27) where step_id=$row" 1 "$at: tokens: digest"
forge "a step too many" "insert into step(id, turn_id, n, kind, pos0, rows, drafted, accepted, bonus, draws, page_digest, draft_digest, logit_digest, us_draft, us_verify, us_commit, us_check, tokens) select 9999999, turn_id, 9999, kind, pos0, rows, drafted, accepted, bonus, draws, page_digest, draft_digest, logit_digest, 0, 0, 0, 0, tokens from step where id=$row" 1 "differs at step $turn\\.9999: reply: there is no such step now"
forge "a step too few" "delete from step where id=$row" 1 "$at: reply: there is no such step in the log"
forge "another reply" "update turn set tokens = x'07000000' || substr(tokens, 5) where role='reply' and n=$turn and session_id='$id'" 1 "differs in turn $turn: reply"
forge "another text of a reply" "update turn set text = text || '.' where role='reply' and n=$turn and session_id='$id'" 1 "turn $turn: .*the text in the log is not that"
forge "another message" "update turn set text = 'What is that?' where role='user' and not regen and session_id='$id' and n=(select min(n) from turn where session_id='$id')" 1 "differs in turn 1: prompt"
forge "another model" "update model set weights_sha = 'ab' || substr(weights_sha, 3) where role='target'" 2 'made with another model'
forge "another tokenizer" "update model set tokenizer_sha = '' where role='target'" 2 'made with another tokenizer'
forge "no steps: replies only" "delete from step" 0 '^equal: .* 0 steps \(where the log has no steps'
forge "no steps, another reply" "delete from step; update turn set tokens = x'07000000' || substr(tokens, 5) where role='reply' and n=$turn and session_id='$id'" 1 "differs in turn $turn: reply"
"$AERIE" --db "$T/forged.db" replay "$id" --check --json >"$T/out"
grep -q "^{\"equal\":false,.*\"turn\":$turn,.*\"what\":\"reply\"" "$T/out"; result "the verdict as JSON" $?
"$AERIE" replay --check -v "$id" >"$T/out"; [ $? = 0 ] && grep -q '^turn 1' "$T/out" && grep -q 'steps: equal' "$T/out"
result "with -v the session is printed" $?
IFS='|' read -r id turn < <(sql "select session_id, turn from event where op='fork' and ' ' || text like '% ' || turn limit 1")
forge "a lost reply in the turns of a fork" "update turn set shared=0, tokens=x'' where n>$turn; delete from turn where role='reply' and n=$turn" 4 "the log has no reply of turn $turn, so what follows it"
plan
