#!/bin/bash
# aerie db and the flags that care for the session log, as a user gives them: backup, repair, prune, pins, vacuum, keys, limits.
. "$(dirname "$0")/kit.sh"
fails() { grep -qE -- "$1" "$T/err"; }
for m in "My dog is called Rex." "What colour is the sky?" hello; do run run "$m"; done

run db pin 1; [ $rc = 0 ] && [ "$(sql 'SELECT count(pinned) FROM session')" = 1 ]; result "a session is pinned" $?
run db pin 99; [ $rc = 1 ] && fails 'no session 99'; result "an unknown session is not" $?
run db prune; [ $rc = 2 ] && fails 'expected --older-than DAYS, --keep N or --to-size MB'; result "prune needs to know what" $?
run db prune --keep 0 --dry-run; [ $rc = 0 ] && like '^ +2 .*What colour' && like '^2 sessions would be removed$' && [ "$(sql 'SELECT count(*) FROM session')" = 3 ]
result "a dry run names them and removes none" $?
run db prune --keep 2; [ $rc = 0 ] && like '^1 session removed$' && [ "$(sql 'SELECT group_concat(number) FROM session')" = 1,3 ]; result "the pinned one stays" $?
run db prune --keep 0 --dry-run --json; like '"sessions":1,"turns":1,"bytes":[0-9]*,"removed":false'; result "prune --json" $?
run run "A xylophone of quartz."; held() { grep -qa xylophone "$XDG_DATA_HOME"/aerie/sessions.db*; }
run db remove 4 --dry-run; [ $rc = 0 ] && like '^ +4 .*xylophone' && like '^1 session would be removed$' && held; result "db remove --dry-run removes nothing" $?
run db remove; [ $rc = 2 ] && fails 'expected the ID of a session' && run db remove 99 && [ $rc = 1 ] && run db remove 1 && [ $rc = 2 ] && fails '^aerie: session #1 is pinned; aerie db unpin 1 comes first$'
result "what is not there, and what is pinned, is not removed" $?
run db remove last; [ $rc = 0 ] && like '^1 session removed$' && ! held && [ "$(sql 'SELECT group_concat(number) FROM session')" = 1,3 ]; result "db remove leaves none of a session's words in the file" $?
run db vacuum; [ $rc = 0 ] && like '^[0-9.]+ MB, was [0-9.]+ MB$'; result "vacuum" $?
run db check; [ $rc = 0 ] && like '^head [0-9]+:[0-9a-f]{64}$'; result "the log is whole" $?
head=$(sed -n 's/^head //p' "$T/out")

run db backup; [ $rc = 2 ] && fails 'expected the name of a new FILE'; result "backup needs a name" $?
mkdir "$T/safe"; run db backup "$T/safe/copy.db"; [ $rc = 0 ] && run db check --db "$T/safe/copy.db" && [ $rc = 0 ]; result "a backup in another folder is whole" $?
[ "$(ls "$T/safe" | grep -vc live)" = 1 ]; result "and one file" $?
run run "What is an owl?"; run db check --head "$head"; [ $rc = 0 ] && like "^the log's past is still the one of head"; result "a noted head is found again" $?
cp "$T/safe/copy.db" "$T/old.db"; newer=$("$AERIE" db check | sed -n 's/^head //p')
run db check --head "$newer" --db "$T/old.db"; [ $rc = 4 ] && like "^the log's past is not the one of head"; result "an older copy has not the newer head" $?
run db check --head nonsense; [ $rc = 2 ] && fails 'is no head'; result "what is no head is refused" $?

cp "$DB" "$T/bad.db"; sqlite3 "$T/bad.db" "UPDATE turn SET text='forged' WHERE id=(SELECT max(id) FROM turn); UPDATE session SET title='x' WHERE number=1"
was=$(sha256sum <"$T/bad.db")
run db repair "$T/good.db" --db "$T/bad.db"; [ $rc = 0 ] && like 'the reply of turn 1 is not what was written, and left out' && like 'records kept, 0 of them without a comparison; 1 lost or left out'
result "repair names what is not sound" $?
[ "$(sha256sum <"$T/bad.db")" = "$was" ]; result "the damaged log is as it was" $?
run db check --db "$T/good.db"; [ $rc = 0 ]; result "the new one is whole" $?
run show 1 --db "$T/good.db"; [ $rc = 0 ] && has Rex; result "what is sound can be read" $?
run replay 1 --check --db "$T/good.db"; [ $rc = 0 ]; result "and replayed" $?
run db repair "$T/good.db" --db "$T/bad.db"; [ $rc = 4 ] && fails 'exists; expected the name of a new file'; result "repair overwrites nothing" $?
[ -z "$(ls "$T" | grep examined)" ]; result "and leaves nothing beside" $?

# ---- keys ----
head -c 32 /dev/urandom >"$T/key"; chmod 644 "$T/key"
run run --seal "$T/key" hello; [ $rc = 2 ] && fails 'can be read by others \(mode 644\)'; result "a key that others can read is refused" $?
chmod 600 "$T/key"; echo "seal = $T/key" >>"$T/config/aerie/config"
run run hello; run db check; [ $rc = 0 ] && like 'heads are sealed$'; result "a key in the config file seals what is recorded" $?
sed -i /seal/d "$T/config/aerie/config"
run db check; [ $rc = 0 ] && like 'the seals were not checked: --seal KEYFILE checks them'; result "without the key a check says what it leaves out" $?
run run hello; fails 'this log is sealed, and --seal KEYFILE is missing'; result "writing without it says so" $?
run db check --seal "$T/key"; [ $rc = 4 ] && like 'were written without the key'; result "and is found" $?
head -c 32 /dev/urandom >"$T/other"; chmod 600 "$T/other"; run run --seal "$T/other" hello; [ $rc = 4 ] && fails 'sealed with another key'; result "another key is refused" $?

# ---- retention and limits ----
DB=$T/limit.db
for _ in 1 2 3; do run run --db "$DB" hello; done
run run --db "$DB" --keep-sessions 1 hello; fails '2 old sessions removed from the log' && [ "$(sql 'SELECT count(*) FROM session')" = 2 ]; result "a start keeps the sessions used last, and adds its own" $?
used() { sql 'SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size'; }
fill() { # with imported sessions of long messages, until so many bytes are used; free pages are room
    local missing i # a number in each text: a line that the log has is not imported again
    for ((i = 0, missing = $1 - $(used); missing > 0; i++, missing = $1 - $(used))); do
        printf '{"request":{"model":"m","messages":[{"role":"user","content":"%s"}]},"response":{"choices":[{"message":%s}]}}\n' \
            "$i $(yes "word and word" | head -c $((missing / 3 + 2000)) | tr '\n' ' ')" '{"role":"assistant","content":"ok"},"finish_reason":"stop"' >"$T/long"
        "$AERIE" import "$T/long" --db "$DB" >/dev/null 2>&1 || break
    done
}
fill 920000; run run --db "$DB" --max-size 1 hello; [ $rc = 0 ] && fails 'the log is (full|9[0-9]% full): '; result "a log that fills up says so" $?
fill 1050000; run run --db "$DB" --max-size 1 --at-limit stop -q hello
[ $rc = 4 ] && has Hello && fails '^aerie: 1 turn is not saved: the log is full: 1.[0-9] of 1.0 MB'; result "at the limit nothing is lost in silence" $?
lines hello hello hello | feed --plain --db "$DB" --max-size 1; [ $rc = 0 ] && [ "$(grep -c 'the log is full' "$T/err")" = 1 ]; result "a chat says so once" $?
run run --db "$DB" --max-size 1 hello; [ $rc = 0 ] && fails 'saving goes on'; result "by default saving goes on" $?
run db check --db "$DB"; [ $rc = 0 ]; result "and the log is whole" $?
plan
