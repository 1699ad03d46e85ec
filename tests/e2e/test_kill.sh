#!/bin/bash
# kill -9 at KILLS (100) random moments of streaming chats that share one log (on a machine so slow or busy that
# this takes more than SECONDS_MOST: fewer, but at least 40). In plain mode under --json a turn is
# printed once the log has acknowledged it: every printed turn must be there afterwards, the next start
# must be clean, and what was cut short must replay as far as it came.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
KILLS=${KILLS:-100} LEAST=40 SECONDS_MOST=${SECONDS_MOST:-60}
T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
export XDG_DATA_HOME=$T XDG_CONFIG_HOME=$T XDG_STATE_HOME=$T HOME=$T TERM=dumb
DB=$T/aerie/sessions.db
n=0; bad=0
result() { n=$((n + 1)); [ "$2" = 0 ] && echo "ok $n - $1" || { echo "not ok $n - $1"; bad=1; }; }
sql() { sqlite3 "$DB" "$1"; }

# counting goes on for long: steps are saved about ten times a second, and kills shall hit replies of
# which some are saved
printf '%s\n' "Tell me a story." "What are you?" "/set temperature 0.8" "Count to two hundred." \
    "/regen" "Say hello to Ada." "Count to two hundred." "Tell me a story." >"$T/script"
chat() { exec "$AERIE" --plain --json --quiet --threads 1 --no-spec -p max_tokens=600 --script "$T/script"; }

# how long an uninterrupted chat takes here and now, in milliseconds
start=$(date +%s%N)
(chat) >"$T/whole" 2>&1; rc=$?
span=$((($(date +%s%N) - start) / 1000000))
[ $rc = 0 ] && [ "$(grep -c '"turn":' "$T/whole")" = 7 ]; result "a chat that nobody kills ($span ms)" $?

victims() { # WORKER: kills until its share, or its time, is done
    local kills=0 tries=0 ms
    while [ $kills -lt $((KILLS / 2)) ] && [ $tries -lt $((KILLS * 2)) ] &&
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
[ "$kills" = "$KILLS" ] || { [ $SECONDS -ge "$SECONDS_MOST" ] && [ "$kills" -ge $LEAST ]; }
result "$kills kills" $?
cat "$T"/err.* >"$T/errors"; head -n 3 "$T/errors" | sed 's/^/# /'
[ ! -s "$T/errors" ]; result "no start after a kill complained" $?

# ---- the next start ----
reply=$("$AERIE" run --quiet -p max_tokens=8 "What are you?" 2>"$T/err")
[ $? = 0 ] && [ -n "$reply" ] && [ ! -s "$T/err" ]; result "the next start is clean" $?
"$AERIE" db check >"$T/report" 2>&1; rc=$?
[ $rc = 0 ] || tail -n 3 "$T/report" | sed 's/^/# /'
result "aerie db check" $rc

# ---- what was acknowledged ----
cat "$T"/out.* "$T/whole" | grep -a '^{.*"turn":.*}$' >"$T/acked"
{
    echo "create temp table acked(line);"
    sed "s/'/''/g; s/.*/insert into acked values('&');/" "$T/acked"
    echo "select count(*) from acked where not exists(select 1 from turn where role = 'reply'
        and session_id = json_extract(line, '\$.session') and n = json_extract(line, '\$.turn')
        and text = json_extract(line, '\$.text') and stop = json_extract(line, '\$.stop'));"
} >"$T/sql"
lost=$(sqlite3 "$DB" <"$T/sql")
acked=$(wc -l <"$T/acked"); crashed=$(sql "select count(*) from turn where stop = 'crashed'")
echo "# $acked turns acknowledged, $crashed cut short, $(sql "select count(*) from turn where role = 'reply'") in the log"
[ "$acked" -ge "$kills" ] && [ "$crashed" -ge $((kills / 10)) ]
result "kills hit streaming replies" $?
[ "$lost" = 0 ]; result "no acknowledged turn is lost ($lost of $acked)" $?
[ "$(sql "select count(*) from turn where stop = ''")" = 0 ]; result "no turn is left open" $?
[ "$(sql "select count(*) from run where ended = 0")" = 0 ]; result "no run is left open" $?
[ "$(sql "select count(*) from step s join turn t on t.id = s.turn_id where t.role != 'reply'")" = 0 ] &&
    [ "$(sql "select count(*) from (select turn_id from step group by 1 having max(n) != count(*))")" = 0 ]
result "steps of a turn have no gaps" $?

# ---- what was cut short ----
fail=0
for id in $(sql "select session_id from turn where stop = 'crashed' and n_steps > 3 group by 1 limit 8"); do
    "$AERIE" replay --check "$id" >"$T/replay" 2>&1 || { fail=1; tail -n 1 "$T/replay" | sed "s/^/# $id: /"; }
done
[ -n "$id" ]; result "there are turns cut short in the middle" $?
result "they replay equal as far as they came" $fail
"$AERIE" run --quiet --session "$id" -p max_tokens=8 "Say hello." >"$T/reply" 2>&1 && [ -s "$T/reply" ] &&
    "$AERIE" replay --check "$id" >"$T/replay" 2>&1
rc=$?; [ $rc = 0 ] || cat "$T/reply" "$T/replay" | head -n 4 | sed 's/^/# /'
result "such a session is taken up again, and replays" $rc
echo "1..$n"
exit $bad
