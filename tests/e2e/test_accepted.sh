#!/bin/bash
# One definition of "accepted": 88 replies in eight sessions (200 with AERIE_TEST_LONG=1), 24 more over `aerie serve`. Every command, view, file, pane and
# metric must count the same drafted tokens as accepted; a drafted token that ends a reply counts, and has no bonus behind it.
. "$(dirname "$0")/kit.sh"
server=''
clean() { [ -z "$server" ] || kill "$server" 2>/dev/null; M kill-server; }
prompts() { awk -F'\t' '$1 == "skill" {print $2}' tests/prompts.txt; } # 60, with short replies

# ---- replies in every way of drafting ----
each=11; [ "${AERIE_TEST_LONG:-0}" = 0 ] || each=25 # replies a session
ways=("" "/set draft.topk 4;/set draft.nodes 12;/set draft.steps 3" "/set temperature 0.9" "/set temperature 0;/set max_tokens 7"
    "/set max_tokens 48;/set draft.steps 2" "/set draft.topk 2;/set draft.steps 6;/set draft.nodes 10" "/set spec off"
    "/set spec on;/set draft.topk 1;/set draft.nodes 6;/set draft.steps 5")
asks=(/accept "/accept turn" "/accept kind" "/accept window" "/accept page" "/accept context" /stats)
for k in 1 2 3 4; do prompts; done | { # /tree after each reply, the sums at the end of each session, before /clear begins the next one
    for ((s = 0; s < 8; s++)); do
        [ $s = 0 ] || echo /clear
        tr ';' '\n' <<<"${ways[s]}" | grep .
        for ((k = 0; k < each; k++)); do read -r line; lines "$line" /tree; done
        lines "${asks[@]}"
    done
} >"$T/script"
feed --json -q --script "$T/script"; cp "$T/out" "$T/live"
[ $rc = 0 ] && [ "$(grep -c '^{"session"' "$T/live")" = $((8 * each)) ] && ! grep -q '"error"' "$T/live"; result "$((8 * each)) replies in 8 sessions" $?
: >"$T/show"; : >"$T/recorded"; : >"$T/export"
for id in 1 2 3 4 5 6 7 8; do
    "$AERIE" show $id --json >>"$T/show"
    lines "${asks[@]}" | "$AERIE" replay $id --json 2>"$T/err" >>"$T/recorded"
    "$AERIE" export $id --format md | sed -n "s/.* \([0-9]*\) of \([0-9]*\) drafted tokens accepted\*.*/$id|\1|\2/p" >>"$T/export"
done

# ---- all of it in one database ----
# live and recorded: a row a line of JSON; `said` is the number of the session that the line is about.
sqlite3 "$DB" "pragma wal_checkpoint(truncate)" >/dev/null; cp "$DB" "$T/all.db"
{
    for table in live show recorded; do lines "CREATE TABLE $table(j);" ".mode ascii" '.separator "\001" "\n"' ".import $T/$table $table"; done
    lines "CREATE TABLE export(session INT, accepted INT, drafted INT);" ".mode list" ".import $T/export export"
    cat <<'SQL'
-- what the log has of each step
CREATE TABLE s AS SELECT e.number AS session, turn, step, kind, drafted, accepted, bonus, new_tokens AS tokens
  FROM v_step JOIN session e ON e.id=session;
CREATE TABLE sums AS SELECT session, sum(drafted>0) AS cycles, sum(drafted) AS drafted, sum(accepted) AS accepted,
  sum(bonus IS NOT NULL) AS bonus, sum(tokens) AS tokens FROM s GROUP BY 1;
CREATE TABLE turns AS SELECT session, turn, sum(drafted>0) AS cycles, sum(drafted) AS drafted, sum(accepted) AS accepted FROM s GROUP BY 1, 2;
-- the commands' answers, live and from the recordings: of which session, what
CREATE TABLE answer AS SELECT 'live' AS face, (SELECT e.number FROM live x JOIN session e ON e.id=json_extract(x.j,'$.session')
    WHERE x.rowid<live.rowid AND json_extract(x.j,'$.session') IS NOT NULL ORDER BY x.rowid DESC LIMIT 1) AS session,
  json_extract(j,'$.command') AS command, json_extract(j,'$.result') AS r FROM live WHERE json_extract(j,'$.command') IN('tree','accept','stats');
INSERT INTO answer SELECT 'recorded', 1+(rowid-1)/7, json_extract(j,'$.command'), json_extract(j,'$.result') FROM recorded;
SQL
} | sqlite3 "$T/all.db" >"$T/out" 2>"$T/err" && [ ! -s "$T/err" ]; result "the answers are read" $?
same() { # TITLE SQL: the query must give n|0, n the number of compared things (not 0), 0 of which differ
    sqlite3 "$T/all.db" "$2" >"$T/out" 2>"$T/err"; local got; got=$(cat "$T/out" "$T/err")
    [[ $got =~ ^[1-9][0-9]*\|0$ ]]; result "$1 ($got)" $?
}
same "drafted tokens end many replies" "SELECT count(*), count(*)<2*$each FROM s WHERE accepted>0 AND bonus IS NULL"
same "a step's tokens are its accepted ones and the bonus" "SELECT count(*), sum(tokens<>accepted+(bonus IS NOT NULL)) FROM s"
same "v_token" "SELECT count(*), sum(n<>accepted) FROM (SELECT s.accepted, sum(t.drafted) AS n FROM s JOIN session e ON e.number=s.session
    JOIN v_token t ON t.session=e.id AND t.turn=s.turn AND t.step=s.step GROUP BY s.rowid)"
same "v_node: the accepted nodes hold the step's tokens" "SELECT count(*), sum(n<>accepted OR held<>accepted) FROM (SELECT s.accepted,
    sum(o.fate='accepted' AND o.node>0) AS n, sum(o.fate='accepted' AND o.node>0 AND o.token=(SELECT t.token FROM v_token t WHERE
    t.session=o.session AND t.turn=o.turn AND t.step=o.step AND t.k=o.depth-1)) AS held FROM s JOIN session e ON e.number=s.session
    JOIN v_node o ON o.session=e.id AND o.turn=s.turn AND o.step=s.step WHERE s.session IN(1,2,3,4) GROUP BY s.rowid)"
same "v_turn" "SELECT count(*), sum(v.accepted<>t.accepted OR v.drafted<>t.drafted) FROM v_turn v JOIN turns t ON t.session=v.number AND t.turn=v.turn"
same "the chat's lines" "SELECT count(*), sum(json_extract(j,'\$.accepted')<>accepted OR json_extract(j,'\$.drafted')<>drafted) FROM live
    JOIN session e ON e.id=json_extract(j,'\$.session') JOIN turns t ON t.session=e.number AND t.turn=json_extract(j,'\$.turn')"
shown="json_extract(x.value,'\$.accepted')"
same "show: steps" "SELECT count(*), sum($shown<>accepted OR json_extract(x.value,'\$.bonus') IS NOT bonus) FROM show, json_each(j,'\$.steps') x
    JOIN s ON s.session=json_extract(j,'\$.number') AND s.turn=json_extract(x.value,'\$.turn') AND s.step=json_extract(x.value,'\$.step')"
same "show: replies" "SELECT count(*), sum($shown<>accepted) FROM show, json_each(j,'\$.turns') x
    JOIN turns t ON t.session=json_extract(j,'\$.number') AND t.turn=json_extract(x.value,'\$.turn') WHERE json_extract(x.value,'\$.role')='reply'"
same "export" "SELECT count(*), sum(NOT EXISTS(SELECT 1 FROM turns t WHERE t.session=x.session AND t.accepted=x.accepted AND t.drafted=x.drafted)) FROM export x"
same "/tree" "SELECT count(*), sum(n<>accepted OR b IS NOT bonus) FROM (SELECT json_extract(r,'\$.bonus') AS b, s.bonus, s.accepted, (SELECT count(*)
    FROM json_each(r,'\$.nodes') x WHERE json_extract(x.value,'\$.fate')='accepted' AND json_extract(x.value,'\$.node')>0) AS n
    FROM answer a JOIN s ON s.session=a.session AND s.turn=json_extract(r,'\$.turn') AND s.step=json_extract(r,'\$.step') WHERE command='tree')"
by="FROM answer a JOIN sums USING(session) WHERE command"
same "/stats" "SELECT count(*), sum(json_extract(r,'\$.accepted')<>accepted OR json_extract(r,'\$.cycles')<>cycles OR json_extract(r,'\$.drafted')<>drafted OR
    abs(json_extract(r,'\$.session_mal')-iif(cycles,1+1.0*accepted/cycles,0))>1e-6) $by='stats'"
same "/stats: the last turn's MAL" "SELECT count(*), sum(abs(json_extract(r,'\$.turn_mal')-iif(t.cycles,1+1.0*t.accepted/t.cycles,0))>1e-6)
    FROM answer a JOIN turns t USING(session) WHERE command='stats' AND t.turn=$each"
for key in depth turn kind from; do # window, page and context have "from"
    same "/accept by $key" "SELECT count(*), sum(n<>accepted) FROM (SELECT (SELECT sum($shown) FROM json_each(r) x) AS n, accepted
        $by='accept' AND json_type(r,'\$[0].$key') IS NOT NULL)"
done
same "/accept turn: cycles and MAL" "SELECT count(*), sum(json_extract(x.value,'\$.cycles')<>t.cycles OR abs(json_extract(x.value,'\$.mal')-1-1.0*t.accepted/t.cycles)>1e-6)
    FROM answer a, json_each(r) x JOIN turns t ON t.session=a.session AND t.turn=json_extract(x.value,'\$.turn') WHERE command='accept'"
same "/accept kind: each token is accepted or a bonus" "SELECT count(*), sum(e<>tokens OR b<>bonus) FROM (SELECT tokens, bonus,
    (SELECT sum(json_extract(x.value,'\$.emitted')) FROM json_each(r) x) AS e, (SELECT sum(json_extract(x.value,'\$.bonus')) FROM json_each(r) x) AS b
    $by='accept' AND json_type(r,'\$[0].kind') IS NOT NULL)"
"$AERIE" pack 2 --issue vllm -o "$T/x.aerie" >/dev/null 2>&1; cp "$T/x-vllm.md" "$T/out"
[ "$(sed -n 's/^Mean acceptance length .*: \([0-9]*\) of \([0-9]*\) drafted tokens in \([0-9]*\) .*/\1|\2|\3/p' "$T/out")" = \
    "$(sqlite3 "$T/all.db" "SELECT accepted, drafted, cycles FROM sums WHERE session=2")" ]; result "the report of a pack" $?

# ---- on the screen: the last step of a reply that ends with a drafted token ----
M kill-server; open_screen 160 40 "-n -q"
text "What is a KV cache?"; key Enter; wait_for "step 1.5"
key F3; wait_for "step 1.5   drafted 5   accepted 2"; check "the tree pane: no bonus" hides "bonus"
check "its words for what comes after" shows "reply ended above"
key F3; key F4; wait_for "1.5     spec     2/5"; check "the steps pane" shows "1.5     spec     2/5"
check "the status line: 1 + 17/4" shows "MAL 5.2"
text "/bye"; key Enter; until_ok no_server

# ---- serve: its answers, its metrics and log, the client's log, and parity with the local engine ----
prompts | head -n 24 >"$T/prompts"
"$AERIE" serve --port 0 --lanes 4 --db "$T/server.db" -p draft.topk=3 -p draft.nodes=8 >"$T/serve.log" 2>&1 & server=$!
until_ok wrote "$T/serve.log" $server http://
at=$(grep -o 'http://[0-9.:]*' "$T/serve.log" | head -n 1)
lines "$(cat "$T/prompts")" "/accept turn" /stats | feed --json -q --db "$T/client.db" --remote "$at"; cp "$T/out" "$T/remote"
metric() { sed -n "s/^vllm:spec_decode_num_$1_total{[^}]*} //p" "$T/metrics" | awk '{s += $1} END {print s + 0}'; }
curl -s "$at/metrics" >"$T/metrics"
sum="SELECT sum(drafted>0), sum(drafted), sum(accepted), sum(length(s.tokens)/4-accepted) FROM step s"
all=$(sqlite3 "$T/server.db" "SELECT count(*) FROM step" "$sum"); all=${all%|*} mine=${all#*$'\n'}
[ "$(metric drafts)|$(metric draft_tokens)|$(metric accepted_tokens)" = "$mine" ] && [ "$(metric accepted_tokens_per_pos)" = "$(metric accepted_tokens)" ]
result "/metrics count as the server's log: $mine" $?
[ "$(sqlite3 "$T/client.db" "$sum WHERE source='server'")" = "$mine|$(sqlite3 "$T/client.db" "SELECT count(*) FROM step WHERE source='server' AND bonus>=0")" ]
result "the client's log, too" $?
[ "$(sqlite3 "$T/client.db" "SELECT sum(verifies), sum(drafted), sum(accepted) FROM served")" = "$mine" ]; result "and the replies" $?
grep -o '"command":"stats".*' "$T/remote" | grep -o '"cycles":[0-9]*,"drafted":[0-9]*,"accepted":[0-9]*' | tr -dc '0-9,\n' | tr , '|' >"$T/out"
[ "$(cat "$T/out")" = "$mine" ]; result "/stats over the server" $?
run parity "$T/prompts" --json --lanes 4 --a "remote:$at" --b local -p draft.topk=3 -p draft.nodes=8
cp "$T/out" "$T/parity"; a='.*"drafting_steps":\([0-9]*\),"drafted":\([0-9]*\),"accepted":\([0-9]*\).*'
sed -n "s/$a$a/\1|\2|\3 \4|\5|\6/p" "$T/parity" >"$T/out" # of both sides: 24 prompts, and the sums
[ "$(wc -l <"$T/out")" = 25 ] && awk '$1 != $2 {exit 1}' "$T/out" && grep -q '"metrics":{"drafts":[0-9]*,"drafted":[0-9]*,"accepted":'"$(sed -n '$s/.*|//p' "$T/out")}" "$T/parity"
result "parity: both sides of 24 prompts, and the metrics between" $?
plan
