#!/bin/bash
# The session log under the real program: two processes and one session, turns that cannot be stored
# at the end, databases that are not ours.
. "$(dirname "$0")/kit.sh"
clean() { exec 7>&- 8>&-; }
until_there() { until_ok grep -qs "$2" "$1"; } # FILE TEXT
sessions() { "$AERIE" logs --json | sed 's/.*"id":"\([^"]*\).*/\1/'; }

# ---- two processes, one session ----
run run "My dog is called Rex."; ID=$(sessions)
mkfifo "$T/in"; "$AERIE" --plain -c <"$T/in" >"$T/first" 2>&1 & first=$!
exec 7>"$T/in"; echo hello >&7; until_there "$T/first" Hello
run run -c "second"; [ $rc = 4 ] && grep -q "^aerie: session #1 is open in another aerie (pid $first, since [0-9:]*); add --fork to go on in a copy$" "$T/err"
result "a second process is told who has the session open, and since when" $?
[ ! -s "$T/out" ]; result "and answers nothing" $?
run run --session "$ID" "second"; [ $rc = 4 ]; result "--session is refused as -c is" $?
run run --fork hello; [ $rc = 2 ] && grep -q 'expected --session ID or -c' "$T/err"; result "--fork needs a session" $?
printf '/resume last\n/fork %s\nWhat is my dog called?\n' "$ID" >"$T/script"
run --script "$T/script"; [ $rc = 4 ] && grep -q "is open in another aerie (pid $first, .*; /fork 1 goes on in a copy" "$T/err" && grep -q Rex "$T/out" && [ "$(grep -c . "$T/err")" = 1 ]
result "/resume is refused, /fork ID goes on in a copy" $?
run run -c --fork "What is my dog called?"; [ $rc = 0 ] && grep -q Rex "$T/out"; result "-c --fork goes on in a copy" $?
echo "What is my dog called?" >&7; until_there "$T/first" Rex; exec 7>&-; wait $first
all=0; for s in $(sessions); do run replay "$s" --check; [ $rc = 0 ] || all=1; done
[ "$(sessions | wc -l)" = 3 ] && [ $all = 0 ]; result "every session replays, the copies too" $?
run db check; result "and the log is whole" $rc
run stats --json -n 2
want=$(sql "select count(*)||','||sum(drafted)||','||sum(accepted) from v_step where drafted > 0")
[ "$(grep -o '"models": *{.*"sessions"' "$T/out" | grep -oE '"(cycles|drafted|accepted)": *[0-9]+' | grep -oE '[0-9]+' | paste -sd,)" = "$want" ] && [ "$(grep -o '"number"' "$T/out" | wc -l)" = 2 ] && [ "$(grep -oE '"(rate|MAL)": *[0-9.]+[,}]' "$T/out" | wc -l)" = 6 ]
result "aerie stats: acceptance across sessions" $?
run run -c --fork hello; run run --session "$ID" hello; [ $rc = 0 ]; result "the lock ends with its process" $?
mkfifo "$T/in2"; "$AERIE" --plain --session "$ID" <"$T/in2" >"$T/second" 2>&1 & second=$!
exec 8>"$T/in2"; echo hello >&8; until_there "$T/second" Hello
run run --session "$ID" hello; [ $rc = 4 ]; result "the session is locked again" $?
kill -9 $second; wait $second 2>/dev/null; exec 8>&-
run run --session "$ID" hello; [ $rc = 0 ]; result "the lock of a killed process is stale" $?
run db check; result "and the log is whole" $rc

# ---- turns that cannot be stored at the end ----
hold_lock() { # until $T/free is there
    { echo "BEGIN IMMEDIATE; SELECT 'held';"; until [ -e "$T/free" ] || [ ! -d "$T" ]; do sleep 0.05; done; } |
        sqlite3 "$T/data/aerie/sessions.db" >"$T/held" & holder=$!
    until_there "$T/held" held
}
drop_lock() { touch "$T/free"; wait $holder 2>/dev/null; rm -f "$T/free" "$T/held"; }
hold_lock
"$AERIE" run -q "My cat is called Tom." >"$T/tom" 2>"$T/tom.err" </dev/null & tom=$! # waits for ten seconds, beside the next one
printf 'hello\nhello again\n' >"$T/script"
"$AERIE" --json --script "$T/script" >"$T/out" 2>"$T/err" & p=$!
until_there "$T/err" "Ctrl-C leaves"; kill -INT $p; wait $p; rc=$?
[ $rc = 4 ] && grep -q "^aerie: 2 turns are not saved: .*waiting up to" "$T/err" && grep -q "^aerie: 2 turns are not saved: .*kept in" "$T/err" && [ "$(wc -l <"$T/out")" = 2 ]
result "the wait for the lock ends with Ctrl-C" $?
wait $tom; [ $? = 4 ] && grep -q "^aerie: 1 turn is not saved: database is locked; kept in .*unsaved-.*, the next start stores it$" "$T/tom.err" && grep -q . "$T/tom"
result "run -q says what is not stored, and ends with 4" $?
[ "$(stat -c %a "$T"/data/aerie/sessions.db.unsaved-* | sort -u)" = 600 ]; result "the side files are private" $?
drop_lock
run run hello; run logs; [ "$(grep -c "Tom\|  2 turns  hello" "$T/out")" = 2 ] && ! ls "$T"/data/aerie/*unsaved* 2>/dev/null
result "the next start stores them and removes the files" $?
run db check; result "and the log is whole" $rc
hold_lock; "$AERIE" run "My bird is called Kim." >"$T/out" 2>"$T/err" & p=$!
until_there "$T/err" "Ctrl-C leaves"; drop_lock; wait $p; [ $? = 0 ]; result "a lock that ends in time costs nothing" $?
run logs -q Kim; [ $rc = 0 ]; result "and the turn is there" $?

# ---- databases that are not ours ----
echo "remember the milk" >"$T/notes.txt"; chmod 644 "$T/notes.txt"
run run -q --db "$T/notes.txt" hello; [ $rc = 4 ] && [ -s "$T/out" ] && grep -q "NOT SAVED: .*notes.txt is no session log, so it was left as it is" "$T/err" &&
    [ "$(cat "$T/notes.txt")" = "remember the milk" ] && [ "$(stat -c %a "$T/notes.txt")" = 644 ] && [ "$(ls "$T" | grep -c notes)" = 1 ]
result "a text file as --db is left as it is, the reply comes, and the status is 4, also when quiet" $?
run run -n --db "$T/notes.txt" hello; [ $rc = 0 ] && [ -s "$T/out" ] && [ ! -s "$T/err" ]; result "with -n no log is missed" $?
mkfifo "$T/fifo"; run logs --db "$T/fifo"; [ $rc = 4 ] && grep -q "it is a FIFO" "$T/err"; result "a FIFO as --db is refused at once" $?
run db check --db "$T/notes.txt"; [ $rc = 4 ]; result "db check refuses it, too" $?

plan
