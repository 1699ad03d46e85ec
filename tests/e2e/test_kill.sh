#!/bin/bash
# kill -9, and what the next start finds. Two ways to choose the moment:
#   - before the n-th change of a file (or write to a pipe) of a scripted run, n spread over the run: KILLS (20,
#     60 with AERIE_TEST_LONG=1) of them, 1000 with `make crash`. A new chat, a chat that continues what the one before it left, and one whose
#     log is locked, so that its turns go to a side file. tests/hooked_aerie.c counts and kills.
#   - at random times within long replies: RANDOM_KILLS (6, 16 with AERIE_TEST_LONG=1). Two processes share the log.
# In plain mode under --json a turn is printed once the log has acknowledged it: every printed turn must be there
# afterwards, each next start must be clean, and what was cut short must replay as far as it came.
. "$(dirname "$0")/kit.sh"
HOOKED=${BUILD:-$PWD/build/release-cpu}/tests/hooked_aerie
if [ "${AERIE_TEST_LONG:-0}" = 0 ]; then usual=20 random=6 replays=3; else usual=60 random=16 replays=8; fi
KILLS=${KILLS:-$usual} RANDOM_KILLS=${RANDOM_KILLS:-$random} LEAST=4 SECONDS_MOST=${SECONDS_MOST:-25}

# ---- before changes of files ----
printf '%s\n' "What are you?" "/set temperature 0.8" "Say hello to Ada." "/regen" "/fork 1" "Tell me a story." "/title moments" >"$T/new.txt"
printf '%s\n' "Say hello to Bo." "/undo" "What are you?" >"$T/more.txt"
fresh() { exec "$HOOKED" --plain --json --quiet --threads 1 -p max_tokens=24 --script "$T/new.txt"; }
more() { exec "$HOOKED" --plain --json --quiet --threads 1 -p max_tokens=24 --session "$id" --script "$T/more.txt"; }
locked() { exec "$HOOKED" run --quiet --threads 1 -p max_tokens=8 "hello"; }
lock() { # for two seconds, or until unlock
    { printf '.timeout 2000\nbegin immediate;\n'; exec sleep 2; } | sqlite3 "$DB" 2>/dev/null & locker=$!
    sleep 0.1
}
unlock() { kill $locker 2>/dev/null; wait $locker 2>/dev/null; }
changes() { # RUN: how many there are
    ("$1") >>"$T/out.whole" 2>"$T/err.$1.whole" 3>"$T/n" && cat "$T/n"
}
in_fresh=$(changes fresh)
id=$(sed -n 's/^{"session":"\([^"]*\)".*/\1/p' "$T/out.whole" | tail -n 1)
in_more=$(changes more)
lock; in_locked=$(changes locked); unlock
echo "# $in_fresh, $in_more and $in_locked changes of files"
[ "${in_fresh:-0}" -gt 150 ] && [ "${in_more:-0}" -gt 80 ] && [ "${in_locked:-0}" -gt 60 ]; result "runs that nobody kills" $?

n_locked=$(((KILLS + 29) / 30)) kills=0 left=0 tries=0
n_more=$(((KILLS - n_locked) * 4 / 10)); n_fresh=$((KILLS - n_locked - n_more))
kill_one() { # RUN I N: before the change that is I / N of the way through
    local all=in_$1 found
    tries=$((tries + 1))
    [ "$1" != locked ] || lock
    (export KILL_AT=$((1 + $2 * ${!all} / $3)); "$1") >"$T/out.$1.$tries" 2>"$T/err.$1.$tries" 3>"$T/n"
    case $? in
        137) kills=$((kills + 1)) ;;
        0) printf -v "$all" '%s' "$(cat "$T/n")" ;; # more events shared a transaction than before
    esac
    [ "$1" != locked ] || unlock
    [ "$1" != locked ] || ! ls "$DB".unsaved-* >/dev/null 2>&1 || left=$((left + 1))
    found=$(sed -n 's/^{"session":"\([^"]*\)".*/\1/p' "$T/out.$1.$tries" | tail -n 1)
    [ "$1" != fresh ] || id=${found:-$id}
}
for ((i = 0; i < n_fresh; i++)); do
    kill_one fresh $i $n_fresh
    [ $i -ge $n_more ] || kill_one more $i $n_more
    [ $i -ge $n_locked ] || kill_one locked $i $n_locked
    if [ $((i % 100)) = 99 ]; then
        wait; "$AERIE" db check >"$T/report" 2>&1 || { tail -n 3 "$T/report" | sed "s/^/# after $kills kills: /"; break; }
    fi
done 2>/dev/null
while [ $kills -lt "$KILLS" ] && [ $tries -lt $((KILLS * 2)) ]; do kill_one fresh $((RANDOM % 100)) 100; done 2>/dev/null
wait
echo "# $kills kills before changes of files; $left left a side file, or a part of one"
[ "$kills" = "$KILLS" ] && { [ "$KILLS" -lt 500 ] || [ "$left" -gt 2 ]; }; result "$kills kills before changes of files" $?
# a run with the log locked waits for the log, and says so, if it comes that far
cat "$T"/err.locked.* | grep -v 'database is locked; waiting up to' >"$T/errors"
cat "$T"/err.fresh.* "$T"/err.more.* >>"$T/errors"; head -n 3 "$T/errors" | sed 's/^/# /'
[ ! -s "$T/errors" ]; result "no start after such a kill complained" $?
moments=$kills

# ---- at random times ----
# counting goes on for long: steps are saved about ten times a second, and kills shall hit replies of
# which some are saved
printf '%s\n' "Tell me a story." "What are you?" "/set temperature 0.8" "Count to two hundred." \
    "/regen" "Say hello to Ada." "Count to two hundred." "Tell me a story." >"$T/script"
chat() { exec "$AERIE" --plain --json --quiet --threads 1 --no-spec -p max_tokens=200 --script "$T/script"; }

# how long an uninterrupted chat takes here and now, in milliseconds
start=$(date +%s%N)
(chat) >"$T/whole" 2>&1; rc=$?
span=$((($(date +%s%N) - start) / 1000000))
[ $rc = 0 ] && [ "$(grep -c '"turn":' "$T/whole")" = 7 ]; result "a chat that nobody kills ($span ms)" $?

SECONDS=0
victims() { # WORKER: kills until its share, or its time, is done
    local kills=0 tries=0 ms
    while [ $kills -lt $((RANDOM_KILLS / 2)) ] && [ $tries -lt $((RANDOM_KILLS * 2)) ] &&
        { [ $SECONDS -lt "$SECONDS_MOST" ] || [ $kills -lt $((LEAST / 2)) ]; }; do
        tries=$((tries + 1))
        (chat) >"$T/out.$1.$tries" 2>"$T/err.$1.$tries" &
        ms=$((RANDOM * 32768 + RANDOM)); ms=$((ms % (span + span / 8)))
        sleep "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"
        kill -9 $! 2>/dev/null
        wait $!
        [ $? = 137 ] && kills=$((kills + 1))
    done
    echo "$kills" >"$T/kills.$1"
}
RANDOM=1; victims a 2>/dev/null &
RANDOM=2; victims b 2>/dev/null &
wait
kills=$(($(cat "$T/kills.a") + $(cat "$T/kills.b")))
[ "$kills" -ge $((RANDOM_KILLS / 2 * 2)) ] || { [ $SECONDS -ge "$SECONDS_MOST" ] && [ "$kills" -ge $LEAST ]; }
result "$kills kills at random times" $?
cat "$T"/err.[ab].* >"$T/errors"; head -n 3 "$T/errors" | sed 's/^/# /'
[ ! -s "$T/errors" ]; result "no start after a kill complained" $?

# ---- the next start ----
reply=$("$AERIE" run --quiet -p max_tokens=8 "What are you?" 2>"$T/err")
[ $? = 0 ] && [ -n "$reply" ] && [ ! -s "$T/err" ]; result "the next start is clean" $?
"$AERIE" db check >"$T/report" 2>&1; rc=$?
[ $rc = 0 ] || tail -n 3 "$T/report" | sed 's/^/# /'
result "aerie db check" $rc

# ---- what was acknowledged ----
grep -ah '^{.*"turn":.*}$' "$T"/out.* "$T/whole" >"$T/acked"
{
    echo "create temp table acked(line);"
    sed "s/'/''/g; s/.*/insert into acked values('&');/" "$T/acked"
    echo "delete from acked where not json_valid(line);" # half of a line, when its process was killed
    echo "select count(*) from acked where not exists(select 1 from turn where role = 'reply'
        and session_id = json_extract(line, '\$.session') and n = json_extract(line, '\$.turn')
        and text = json_extract(line, '\$.text') and stop = json_extract(line, '\$.stop'));"
} >"$T/sql"
lost=$(sqlite3 "$DB" <"$T/sql")
acked=$(wc -l <"$T/acked"); crashed=$(sql "select count(*) from turn where stop = 'crashed'")
echo "# $acked turns acknowledged, $crashed cut short, $(sql "select count(*) from turn where role = 'reply'") in the log"
[ "$acked" -ge $((kills + moments)) ] && [ "$crashed" -ge $((kills / 10)) ]
result "kills hit streaming replies" $?
[ "$lost" = 0 ]; result "no acknowledged turn is lost ($lost of $acked)" $?
[ "$(sql "select count(*) from turn where stop = ''")" = 0 ]; result "no turn is left open" $?
[ "$(sql "select count(*) from run where ended = 0")" = 0 ]; result "no run is left open" $?
[ "$(sql "select count(*) from held")" = 0 ]; result "no session is left locked" $?
[ "$(cd "$XDG_DATA_HOME/aerie" && echo *)" = "sessions.db sessions.db.live" ]; rc=$?
[ $rc = 0 ] || (cd "$XDG_DATA_HOME/aerie" && echo "#" *)
result "no other file is left beside the log" $rc
[ "$(sql "select count(*) from step s join turn t on t.id = s.turn_id where t.role != 'reply'")" = 0 ] &&
    [ "$(sql "select count(*) from (select turn_id from step group by 1 having max(n) != count(*))")" = 0 ]
result "steps of a turn have no gaps" $?

# ---- what was cut short ----
fail=0
for id in $(sql "select session_id from turn where stop = 'crashed' and n_steps > 3 group by 1 limit $replays"); do
    "$AERIE" replay --check "$id" >"$T/replay" 2>&1 || { fail=1; tail -n 1 "$T/replay" | sed "s/^/# $id: /"; }
done
[ -n "$id" ]; result "there are turns cut short in the middle" $?
result "they replay equal as far as they came" $fail
"$AERIE" run --quiet --session "$id" -p max_tokens=8 "Say hello." >"$T/reply" 2>&1 && [ -s "$T/reply" ] &&
    "$AERIE" replay --check "$id" >"$T/replay" 2>&1
rc=$?; [ $rc = 0 ] || cat "$T/reply" "$T/replay" | head -n 4 | sed 's/^/# /'
result "such a session is taken up again, and replays" $rc
plan
