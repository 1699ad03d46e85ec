#!/bin/bash
# Session logs that an earlier aerie wrote: migrated after a backup, then read, searched, shown, exported and replayed like any
# other. tests/logs holds one database of each earlier schema.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
export XDG_DATA_HOME=$T/data XDG_CONFIG_HOME=$T/config XDG_STATE_HOME=$T/state HOME=$T TERM=dumb LC_ALL=C.UTF-8
mkdir -p "$T/config/aerie"; echo "device = cpu" >"$T/config/aerie/config"
n=0; bad=0
result() { # NAME STATUS
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; else
        echo "not ok $n - $1"; bad=1; { head -n 8 "$T/out"; head -n 8 "$T/err"; } | cat -v | cut -c1-150 | sed 's/^/# /'; fi
}
run() { timeout 60 "$AERIE" "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }

DB=$T/old.db; install -m 600 tests/logs/version-2.db "$DB"
run logs --db "$DB"; [ $rc = 4 ] && grep -q 'has schema version 2, older than 3: start aerie once' "$T/err"
result "a reader leaves an older database alone, and says what to do" $?
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
[ $rc = 0 ] && [ "$(wc -l <"$T/queries")" = 4 ] && [ "$(grep -c '^-----' "$T/out")" -ge 3 ] && ! grep -q SQL "$T/err"; result "the manual's queries work" $?
echo "1..$n"
exit $bad
