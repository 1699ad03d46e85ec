#!/bin/bash
# Session logs that an earlier aerie wrote: migrated after a backup, then read, searched, shown, exported and replayed like any
# other. tests/logs holds one database of each earlier schema.
. "$(dirname "$0")/kit.sh"

DB=$T/old.db; install -m 600 tests/logs/version-2.db "$DB"
run logs --db "$DB"; [ $rc = 4 ] && grep -q 'has schema version 2, older than 6: start aerie once' "$T/err"
result "a reader leaves an older database alone, and says what to do" $?
run doctor --device cpu --db "$DB"; [ $rc = 0 ] && grep -qE '^warn +database .* is of an earlier version of aerie$' "$T/out"
result "doctor says that it is older, not that it fails" $?
cmp -s "$DB" tests/logs/version-2.db; result "not a byte of it is changed" $?
run run --db "$DB" hello; [ $rc = 0 ] && [ "$("$AERIE" logs --db "$DB" --json | wc -l)" = 3 ]
result "the next start migrates it" $?
[ "$(ls "$DB".v2-* | wc -l)" = 1 ]; result "and keeps a backup beside it" $?
run db check --db "$DB"; result "the migrated database is whole" $rc
CHILD=$("$AERIE" logs --db "$DB" --json | sed -n 's/.*"id":"\([^"]*\)".*"parent":"\([^"]\{26\}\)".*/\1/p')
PARENT=$("$AERIE" logs --db "$DB" --json | sed -n 's/.*"id":"[^"]*".*"parent":"\([^"]\{26\}\)".*/\1/p')
run logs -q falcon --db "$DB"; [ $rc = 0 ] && grep -q 'version 2' "$T/out"; result "its sessions are found by their words" $?
run show "$CHILD" --db "$DB"; [ $rc = 0 ] && grep -q 'Your dog is called Rex' "$T/out" && grep -q 'The sky is blue' "$T/out"
result "a fork is shown with the turns that it began with" $?
run export "$PARENT" --db "$DB" --format jsonl; [ $rc = 0 ] && [ "$(grep -c '"q"' "$T/out")" -gt 3 ]; result "its trees are exported" $?
for s in $PARENT $CHILD; do
    run replay "$s" --check --db "$DB"
    if [ $rc != 0 ] && grep -q 'another model\|weights' "$T/err"; then echo "ok $((n += 1)) - replay # SKIP the bundled model has changed since"; else
        [ $rc = 0 ] && grep -q equal "$T/out"; result "session ${s: -4} replays bit for bit" $?; fi
done
[ "$(ls "$DB".v2-* | wc -l)" = 1 ]; result "one backup was made, not one a start" $?
awk '/^\.SH/ { on = /THE DATABASE/ } on && /^SELECT/ { q = "" } on && (/^SELECT/ || /^  [A-Z]/) { q = q " " $0 } on && q && /;$/ { print "/sql" q; q = "" }' \
    repl/share/aerie.1 >"$T/queries"
run --script "$T/queries" --db "$DB"
[ $rc = 0 ] && [ "$(wc -l <"$T/queries")" = 6 ] && [ "$(grep -c '^-----' "$T/out")" -ge 3 ] && ! grep -q SQL "$T/err"; result "the manual's queries work" $?

# A log of version 3: rows of page events, no facts, no reasons, no numbers. What it lacks is shown as not recorded.
DB=$T/three.db; install -m 600 tests/logs/version-3.db "$DB"
sql() { run db sql "$1" --db "$DB" --json; }
run run --db "$DB" 'say hello'; [ $rc = 0 ] && [ "$(ls "$DB".v3-* | wc -l)" = 1 ]; result "a log of version 3 is migrated after a backup" $?
run db check --db "$DB"; result "it is whole" $rc
sql "SELECT group_concat(number) AS n FROM (SELECT number FROM session ORDER BY created_ms)"; grep -q '"n":"1,2,3,4"' "$T/out"
result "its sessions have numbers in the order of their beginnings" $?
run show 1 --db "$DB"; [ $rc = 0 ] && grep -q 'My dog is called Rex' "$T/out" && run show '#2' --db "$DB" && grep -q 'of .* after turn 5' "$T/out"
result "a number names a session" $?
run show 9 --db "$DB"; [ $rc = 1 ] && grep -q 'no session 9' "$T/err"; result "an unknown number is refused" $?
for s in 1 2 3; do run replay $s --check --db "$DB"
    if [ $rc != 0 ] && grep -q 'another model\|weights' "$T/err"; then echo "ok $((n += 1)) - replay # SKIP the bundled model has changed since"; else
        [ $rc = 0 ] && grep -q equal "$T/out"; result "its session $s replays bit for bit" $?; fi
done
sql "SELECT count(*) AS n, count(DISTINCT op) AS ops, count(holder) AS h FROM v_page v JOIN session s ON s.id=v.session WHERE s.number<4"
grep -q '"n":2[0-9][0-9],"ops":[3-9],"h":0' "$T/out"; result "its page events are read from their rows" $?
sql "SELECT count(*) AS n, count(logp) AS l, count(text) AS texts FROM v_token v JOIN session s ON s.id=v.session WHERE s.number<4"
grep -q '"n":[0-9]*,"l":0,' "$T/out"; result "its tokens have no facts" $?
sql "SELECT count(*) AS n, count(margin) + count(forced) + count(length) AS new FROM v_step v JOIN session s ON s.id=v.session WHERE s.number<4"
grep -q '"n":[1-9][0-9],"new":0' "$T/out"; result "its steps have no margins" $?
sql "SELECT count(*) AS n, count(change) AS c FROM v_turn WHERE number<4"; grep -q '"n":7,"c":0' "$T/out"; result "its turns have no reasons" $?
sql "SELECT count(*)=count(logp) AND count(*)=count(text) AND count(*)>3 AS ok FROM v_token v JOIN session s ON s.id=v.session WHERE s.number=4"
grep -q '"ok":1' "$T/out"; result "a new session in the same log has all of them" $?
sql "SELECT change, limited FROM v_turn WHERE number=4"; grep -q '"change":"first","limited":null' "$T/out"; result "and a reason" $?

# Events that a process of version 3 could not store lie in a file beside its log, in the form of that version.
DB=$T/left.db; install -m 600 tests/logs/version-3.db "$DB"; for f in tests/logs/version-3.db.unsaved-*; do install -m 600 "$f" "$DB.unsaved-${f##*-}"; done
run run --db "$DB" hello; [ $rc = 0 ] && ! ls "$DB".unsaved-* 2>/dev/null && run db check --db "$DB" && [ $rc = 0 ]
result "a file of unsaved events of version 3 is stored" $?
run show 4 --db "$DB"; [ $rc = 0 ] && grep -q '^Say hello.$' "$T/out" && grep -q '^Hello!' "$T/out"; result "its turn is there, under a number" $?
sql "SELECT count(*) > 5 AND count(holder) = count(*) AS pages FROM v_page v JOIN session s ON s.id=v.session WHERE s.number=4"
grep -q '"pages":1' "$T/out"; result "with its page events" $?
run replay 4 --check --db "$DB"
if [ $rc != 0 ] && grep -q 'another model\|weights' "$T/err"; then echo "ok $((n += 1)) - replay # SKIP the bundled model has changed since"; else
    [ $rc = 0 ] && grep -q equal "$T/out"; result "and it replays bit for bit" $?; fi

# A log of version 4: a session here and one with a server, without what the server reported.
DB=$T/four.db; install -m 600 tests/logs/version-4.db "$DB"
run logs --db "$DB"; [ $rc = 4 ] && grep -q 'has schema version 4, older than 6: start aerie once' "$T/err"; result "a reader leaves a log of version 4 alone" $?
run run --db "$DB" 'say hello'; [ $rc = 0 ] && [ "$(ls "$DB".v4-* | wc -l)" = 1 ]; result "a log of version 4 is migrated after a backup" $?
run db check --db "$DB"; result "it is whole" $rc
run show 1 --db "$DB"; [ $rc = 0 ] && grep -q 'Your dog is called Rex' "$T/out"; result "its session of this machine is shown" $?
run show 2 --db "$DB"; [ $rc = 0 ] && grep -q 'vLLM 0.26.0' "$T/out" && grep -q 'The KV cache stores' "$T/out"; result "so is the one with a server" $?
sql "SELECT count(*) AS n, count(server) + count(server_prompt) + count(finish) AS new FROM v_turn WHERE number<3"; grep -q '"n":3,"new":0' "$T/out"
result "its turns hold nothing that a server reported" $?
sql "SELECT group_concat(DISTINCT source) AS s, count(us_arrived) AS a FROM v_step"; grep -q '"s":"computed","a":0' "$T/out"; result "its steps have no arrival" $?
sql "SELECT (SELECT count(*) FROM v_top)+(SELECT count(*) FROM v_metric)+(SELECT count(*) FROM v_launch) AS n"; grep -q '"n":0' "$T/out"
result "no metrics, no best tokens" $?
run replay 1 --check --db "$DB"
if [ $rc != 0 ] && grep -q 'another model\|weights' "$T/err"; then echo "ok $((n += 1)) - replay # SKIP the bundled model has changed since"; else
    [ $rc = 0 ] && grep -q equal "$T/out"; result "its session replays bit for bit" $?; fi
echo /stats | feed replay 2 --plain --db "$DB"; [ $rc = 0 ] && grep -q '21 tokens generated' "$T/out"; result "the one with a server is played" $?
run pack 2 -o "$T/four.aerie" --db "$DB"; [ $rc = 0 ] && ! grep -qa '127.0.0.1' "$T/four.aerie"; result "its pack does not hold the server's address" $?

# A log of version 5: a session with an undone turn and a title, a fork of it, and one with a server; no heads.
DB=$T/five.db; install -m 600 tests/logs/version-5.db "$DB"
run logs --db "$DB"; [ $rc = 4 ] && grep -q 'has schema version 5, older than 6: start aerie once' "$T/err"; result "a reader leaves a log of version 5 alone" $?
run run --db "$DB" 'say hello'; [ $rc = 0 ] && [ "$(ls "$DB".v5-* | wc -l)" = 1 ]; result "a log of version 5 is migrated after a backup" $?
run db check --db "$DB"; [ $rc = 0 ] && grep -qE '^head [1-9][0-9]+:[0-9a-f]+$' "$T/out"; result "it is whole, and has heads" $?
run show 3 --db "$DB"; [ $rc = 0 ] && grep -q 'vLLM 0.26.0' "$T/out"; result "its session with a server is shown" $?
for s in 1 2; do run replay $s --check --db "$DB"
    if [ $rc != 0 ] && grep -q 'another model\|weights' "$T/err"; then echo "ok $((n += 1)) - replay # SKIP the bundled model has changed since"; else
        [ $rc = 0 ] && grep -q equal "$T/out"; result "its session $s replays bit for bit" $?; fi
done
install -m 600 tests/logs/version-5.db "$DB"; sqlite3 "$DB" "PRAGMA foreign_keys=ON; DELETE FROM session WHERE number=3; INSERT INTO turn_fts(turn_fts) VALUES('rebuild')"
run run --db "$DB" 'say hello'; run db check --db "$DB"; [ $rc = 4 ] && grep -q 'some were deleted or added' "$T/out"; result "what was missing before the migration is missing after it" $?
plan
