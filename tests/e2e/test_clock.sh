#!/bin/bash
# The wall clock jumps while sessions run, stands at 0 and in the year 2100; a process is stopped and goes on, as
# after a suspend. tests/hooked_aerie.c makes the clock. Order is that of use, durations are those of the monotonic
# clock, and the log stays whole.
. "$(dirname "$0")/kit.sh"
HOOKED=${BUILD:-$PWD/build/release-cpu}/tests/hooked_aerie
export TZ=UTC
at() { # JUMPS ARGUMENTS...: the program under that clock
    CLOCK_JUMPS=$1 "$HOOKED" "${@:2}" 3>&- >"$T/out" 2>"$T/err"
}
titles() { "$AERIE" logs --json | grep -o '"title":"[^"]*"' | sed 's/"title":"\(.*\)"/\1/' | tr '\n' ' '; }
say() { # JUMPS TITLE FLAGS...
    printf '%s\n' "What are you?" "/title $2" "Tell me a story." >"$T/script"
    at "$1" --plain --quiet --threads 1 -p max_tokens=40 --script "$T/script" "${@:3}" && [ ! -s "$T/err" ]
}

# ---- sessions under clocks of their own ----
year=31536000
say "0:0" first && say "0:0" now; result "sessions under the true clock" $?
say "0:=0" zero; result "a session at the time 0" $?
say "0:=4102444800" later; result "a session in the year 2100" $?
say "0:-$((20 * year))" before; result "a session twenty years ago" $?
jumps="0:0 60:-7200 120:$((30 * year)) 180:=0 240:-60 300:3600 360:-$year 420:86400 500:0"
say "$jumps" jumping; result "a clock that jumps within the session" $?
[ "$(titles)" = "jumping before later zero now first " ]; result "sessions are listed in the order of their use" $?
at "0:0" run --quiet -c -p max_tokens=8 "Say hello." && [ "$(sql "select title from session s join turn t on t.session_id = s.id
    group by s.id having count(*) = 6")" = jumping ]; result "the session used last is continued" $?
at "0:=0" run --quiet --session 2 -p max_tokens=8 "Say hello." && [ "$(titles)" = "now jumping before later zero first " ]
result "an old session that is continued is the newest, whatever the clock says" $?
"$AERIE" db check >"$T/out" 2>&1; result "aerie db check" $?
for i in 1 2 3 4 5 6; do "$AERIE" replay --check "$i" >"$T/out" 2>&1 || break; done; result "they replay equal" $?
for i in 1 2 3 4 5 6; do "$AERIE" show "$i" >/dev/null && "$AERIE" show --json "$i" >"$T/json" && "$AERIE" export "$i" --format md >"$T/md" || break
    grep -q '"[a-z_]*\(us\|ms\)[a-z_]*":-' "$T/json" && break; done
[ $? = 1 ]; result "they are shown and exported, without a negative time" $?
[ "$(sql "select count(*) from turn where created_ms < 0 or us_prefill < 0 or us_decode < 0 or us_prefill + us_decode > 600000000")" = 0 ] &&
    [ "$(sql "select count(*) from step where us_draft < 0 or us_verify < 0 or us_commit < 0 or us_check < 0 or
        us_draft + us_verify + us_commit + us_check > 600000000")" = 0 ] &&
    [ "$(sql "select count(*) from session where created_ms < 0 or updated_ms < 0")" = 0 ]
result "durations are those of the monotonic clock" $?
[ "$(sql "select count(*) from turn a join turn b on a.session_id = b.session_id and a.n < b.n and a.id > b.id")" = 0 ]
result "turns are in order" $?

# ---- a locked session, a backup, a damaged log ----
printf '%s\n' "What are you?" "Count to two hundred." >"$T/script"
mkfifo "$T/pipe"
CLOCK_JUMPS="0:=0 50:$((90 * year))" "$HOOKED" --plain --quiet --threads 1 --session 3 <"$T/pipe" >"$T/out" 2>&1 3>&- & pid=$!
exec 5>"$T/pipe"
echo "What are you?" >&5
for ((i = 0; i < 200; i++)); do [ "$(sql "select count(*) from held" 2>/dev/null)" = 1 ] && break; sleep 0.05; done
at "0:-3600" run --quiet --session 3 "Say hello."
[ $? = 4 ] && grep -q "session .* is open in another aerie" "$T/err"; result "a session is locked whatever the clocks say" $?
# ---- stopped, and going on ----
echo "Count to two hundred." >&5
sleep 0.2; kill -STOP $pid; sleep 1; kill -CONT $pid
exec 5>&-; wait $pid; result "a process that was stopped within a reply goes on" $?
at "0:=0" db backup "$T/copy.db" && "$AERIE" db check --db "$T/copy.db" >/dev/null; result "a backup at the time 0" $?
"$AERIE" db check >"$T/out" 2>&1; result "the log is whole" $?
cp "$DB" "$T/kept.db"

# ---- removal by age ----
count() { sql "select count(*) from session"; }
at "0:$((80 * year))" run --keep-days 30 -p max_tokens=4 hello
[ "$(count)" = 7 ] && grep -q "the clock is over a year past the newest session" "$T/err"
result "a clock far ahead removes no session at the start" $?
cp "$T/kept.db" "$DB"
at "0:=0" run --quiet --keep-days 30 -p max_tokens=4 hello; at "0:-$((3 * year))" run --quiet --keep-days 30 -p max_tokens=4 hello
[ "$(count)" = 8 ]; result "neither does a clock that is behind" $?
at "0:0" run --quiet --keep-days 30 -p max_tokens=4 hello
[ "$(count)" = 9 ]; result "sessions under a wrong clock are as old as those around them" $?
at "0:$((60 * 86400))" run --quiet --keep-days 30 -p max_tokens=4 hello
[ "$(count)" = 1 ]; result "sixty days later they are removed" $?
"$AERIE" db check >"$T/out" 2>&1; result "the log is whole then" $?
plan
