#!/bin/bash
# Ctrl-C and SIGTERM win whatever runs: a query inside one step of SQLite, a file that never ends, a pipe
# that nobody reads, a chat that waits for a line. Waits on conditions; a hang is killed after 20 s and fails.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }
echo 'device = cpu' >"$XDG_CONFIG_HOME/aerie/config" # weights that are mapped need fewer descriptors
# Each step of SQLite's instr() takes seconds: no time limit of its own ends it.
stuck="/sql select instr(hex(zeroblob(2900000)), hex(zeroblob(1450000))||'1'), instr(hex(zeroblob(2900000)), hex(zeroblob(1450000))||'1')"
slow="/sql with recursive c(i) as (select 1 union all select i+1 from c) select count(*) from c"
exec 8<>/dev/null
# A chat with lines on its standard input, which stays open; $p is its process.
start() {
    : >"$T/out"; : >"$T/err" # what the last one said must not count: the signal would meet a shell that has not run aerie yet
    rm -f "$T/in"; mkfifo "$T/in"; exec 9<>"$T/in"; printf '%s\n' "$@" >&9
    "$AERIE" --plain <"$T/in" >"$T/out" 2>"$T/err" 8<&- 9>&- & p=$!
}
gone() { ! kill -0 "$p" 2>/dev/null || grep -q '^State:.Z' "/proc/$p/status" 2>/dev/null; }
ends() { # STATUS: the chat ends by itself, with it
    if ! until_ok gone; then kill -KILL "$p"; wait "$p" 2>/dev/null; exec 9>&-; return 1; fi
    wait "$p"; local rc=$?; exec 9>&-; [ $rc = "$1" ]
}
said() { grep -q "$1" "$T/out" "$T/err"; }
# The query's process is a child of the monitor, which is a child of the program; $m remembers the monitor.
child() { m=$(pgrep -P "$p" -x aerie-monitor) && pgrep -P "$m" -x aerie-query >/dev/null; }
nobody() { ! pgrep -P "$m" >/dev/null && ! kill -0 "$m" 2>/dev/null; }

start hello "/set verbose"; until_ok said 'verbose = on'; kill -TERM $p; ends 143; result "SIGTERM ends a chat that waits for a line" $?
start hello "/set verbose"; until_ok said 'verbose = on'; kill -HUP $p; ends 129; result "and SIGHUP, with its own status" $?
start hello "/set verbose" "$stuck"; until_ok said 'verbose = on'; until_ok child; kill -TERM $p
ends 143; result "SIGTERM ends a query inside one step of SQLite" $?
until_ok nobody; result "and leaves no process behind" $?
start hello "/set verbose" "$stuck"; until_ok said 'verbose = on'; until_ok child; kill -INT $p
ends 130; result "Ctrl-C ends such a query, and the script with it" $?
grep -q 'the query was interrupted' "$T/err"; result "with a word about it" $?
start hello "/set verbose" "$slow" hello; until_ok said 'verbose = on'; kill -INT $p
ends 130; result "a Ctrl-C between two lines of a script is not lost" $?
start "$stuck" "/set verbose"; until_ok said 'verbose = on'; said 'took longer than 2 s'
result "a query that nobody stops is stopped, and the chat goes on" $?
kill -TERM $p; ends 143 || true

# ---- a slow disk: its syncs take longer than the program waits in silence ----
slow_disk() { HOOKED=${BUILD:-$PWD/build/release-cpu}/tests/hooked_aerie; SYNC_MS=700 AERIE=$HOOKED start hello; }
stored() { sqlite3 "$T/data/aerie/sessions.db" "select count(*) from turn where role='reply' and stop<>''"; }
before=$(stored); slow_disk; until_ok said 'small task'; kill -TERM $p; ends 143
result "SIGTERM ends a chat whose disk is slow" $?
said 'still being stored' && ! said 'lost' && [ "$(stored)" = $((before + 1)) ]
result "it says that the reply is still being stored, and never that it is lost" $?

mkfifo "$T/fifo"
printf '%s\n' "/read $T/fifo" "/read /dev/zero" "/read $T" hello | timeout -s KILL 20 "$AERIE" --plain >"$T/out" 2>"$T/err"
[ $? = 2 ] && [ "$(grep -c 'expected a regular file\|is a folder' "$T/err")" = 3 ] && [ "$(wc -l <"$T/out")" = 1 ]
result "/read refuses a FIFO, a device and a folder without waiting" $?
timeout -s KILL 20 "$AERIE" run -f /dev/zero hello >"$T/out" 2>"$T/err"; [ $? = 2 ] && said 'expected a regular file or a pipe'
result "run -f refuses a device" $?
timeout -s KILL 20 "$AERIE" run -n -f <(echo hello) >"$T/out" 2>"$T/err"; [ $? = 0 ] && [ -s "$T/out" ]
result "run -f reads a pipe" $?
timeout -s KILL 20 "$AERIE" -n --script <(echo hello) >"$T/out" 2>"$T/err"; [ $? = 0 ] && [ -s "$T/out" ]
result "--script reads a pipe" $?
timeout -s KILL 20 "$AERIE" -n --script "$T" >"$T/out" 2>"$T/err"; [ $? = 2 ] && said 'cannot read the script'
result "--script refuses a folder" $?
"$AERIE" -n --script "$T/fifo" >"$T/out" 2>"$T/err" 9>&- & p=$!; sleep 0.3; kill -TERM $p
ends 143; result "SIGTERM ends the wait for a script's writer" $?
"$AERIE" run -n -f "$T/fifo" hello >"$T/out" 2>"$T/err" 9>&- & p=$!
until_ok eval "ls -l /proc/$p/fd 2>/dev/null | grep -q fifo"; kill -TERM $p
ends 143; result "SIGTERM ends the wait for a prompt's file" $?

# standard output is a pipe that nobody reads
rm -f "$T/full"; mkfifo "$T/full"; exec 7<>"$T/full"; : >"$T/out"
yes /help | "$AERIE" --plain -n >"$T/full" 2>"$T/err" 7<&- & p=$!
asleep() { grep -q pipe_w "/proc/$p/wchan" 2>/dev/null || grep -q '^State:.S' "/proc/$p/status"; }
until_ok asleep; sleep 0.5; until_ok asleep; kill -TERM $p
ends 143; result "SIGTERM ends a chat whose output nobody reads" $?
exec 7<&-

# ---- standard output that nobody reads any more: quiet, as other tools ----
yes '{"text":"a"}' | timeout -s KILL 20 "$AERIE" tokenize --jsonl 2>"$T/err" | head -n 1 >"$T/out"; rc=${PIPESTATUS[1]}
[ "$rc" = 141 ] && [ ! -s "$T/err" ] && [ -s "$T/out" ]; result "a command that only prints ends with its reader ($rc)" $?
yes hello | timeout -s KILL 20 "$AERIE" --plain -n 2>"$T/err" | head -n 1 >"$T/out"; rc=${PIPESTATUS[1]}
[ "$rc" = 2 ] && [ ! -s "$T/err" ] && [ -s "$T/out" ]; result "so does a chat, which closes its log first ($rc)" $?

# ---- no descriptors left: one line about what cannot be had, no abort ----
echo hello >"$T/hello"; few=0
for files in 7 8 9 10 11 12 13; do
    (ulimit -c 0 -n $files; exec timeout -s KILL 20 "$AERIE" --plain <"$T/hello" >"$T/out" 2>"$T/err" 8<&- 9<&-); rc=$?
    [ $rc = 0 ] && continue
    few=$((few + 1))
    { [ $rc -lt 5 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "^aerie: " "$T/err"; } || break
done
[ $files = 13 ] && [ $few -gt 2 ]; result "with 7 to 13 descriptors the program runs, or says in one line what it cannot have ($files: $rc)" $?

# ---- a container without a terminal ----
bare() { env -i XDG_DATA_HOME="$T/data" XDG_CONFIG_HOME="$T/config" XDG_STATE_HOME="$T/state" setsid -w timeout -s KILL 20 "$AERIE" "$@" 8<&-; }
bare </dev/null >"$T/out" 2>"$T/err"; [ $? = 0 ] && [ ! -s "$T/out" ] && [ ! -s "$T/err" ]
result "no terminal, no environment, an empty standard input: nothing happens, with status 0" $?
bare <&- >"$T/out" 2>"$T/err"; [ $? = 0 ] && [ ! -s "$T/err" ]; result "the same with a closed standard input" $?
echo hello | bare >"$T/out" 2>"$T/err"; [ $? = 0 ] && [ "$(wc -l <"$T/out")" = 1 ] && [ ! -s "$T/err" ]; result "a line on standard input is answered" $?
echo hello | bare 2>&- >"$T/out"; [ $? = 0 ] && [ "$(wc -l <"$T/out")" = 1 ]; result "also with a closed standard error" $?
turns() { sqlite3 "$T/data/aerie/sessions.db" "select count(*) from turn where role='reply' and stop<>''"; }
before=$(turns); echo hello | bare >&- 2>"$T/err"; [ $? = 0 ] && [ "$(turns)" = $((before + 1)) ]
result "with a closed standard output the turn is stored, and nothing else gets the output" $?
echo hello | bare >/dev/full 2>"$T/err"; rc=$?; [ $rc = 2 ] && grep -q '^aerie: cannot write to standard output: No space' "$T/err" && [ "$(turns)" = $((before + 2)) ]
result "a full disk behind standard output is one line, and what was said is stored ($rc)" $?

# ---- the full screen ----
if command -v tmux >/dev/null; then
    in_screen() { # starts aerie in one
        M kill-server; until_ok no_server
        M new-session -d -x 100 -y 30 "$AERIE; echo left \$?; sleep 30"; wait_for 'ctx '
        p=$(pgrep -P "$(M display -p '#{pane_pid}')" -x aerie)
    }
    in_screen
    text "$stuck"; key Enter; until_ok child; key C-c
    wait_for 'the query was interrupted'; result "Ctrl-C ends a query on the full screen" $?
    text "/set verbose on"; key Enter; wait_for 'verbose = on'; result "and the chat goes on" $?
    text "$stuck"; key Enter; until_ok child; kill -TERM "$p"
    wait_for 'left 143'; result "SIGTERM during a query leaves the full screen" $?
    # tests/mock_aerie.c: Ctrl-C comes when another draft is open, before the conversation goes on with it
    before=$(turns); AERIE="env MOCK_MODEL=$T ${BUILD:-$PWD/build/release-cpu}/tests/mock_aerie" in_screen
    for line in hello "/draft ngram" again; do text "$line"; key Enter; wait_for "$line"; sleep 0.3; done
    wait_for 'with it there are 3 messages'; result "a Ctrl-C that is too late to stop /draft loses nothing of the conversation" $?
    text /bye; key Enter; wait_for 'left 0'; [ "$(turns)" = $((before + 2)) ]
    result "and the turns after it are in the log" $?
else
    echo "ok $((n += 1)) - signals on the full screen # SKIP tmux is not installed"
fi
plan
