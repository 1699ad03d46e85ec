# shellcheck shell=bash disable=SC2034 # $rc is for the scripts
# kit.sh - what most scripts of this folder begin with:
#   . "$(dirname "$0")/kit.sh"
# It changes to the project's root, makes a scratch folder $T, in which all files of the program lie, and defines the
# functions below. A script that has more to clean up than $T defines clean(). The last line of a script is: plan
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
export AERIE=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d "${TMPDIR:-/tmp}/aerie-test-XXXXXX") || exit 2
trap 'clean; for _ in {1..100}; do ours || break; sleep 0.05; done; rm -rf "$T"' EXIT
clean() { :; }
ours() { # an aerie of this script still runs: one that was told to end may write to $T until it has
    local p name
    for p in /proc/[0-9]*; do
        { read -r name <"$p/comm"; } 2>/dev/null && [ "$name" = aerie ] && grep -qsaF -- "$T/" "$p/environ" && return
    done
    return 1
}
export XDG_DATA_HOME=$T/data XDG_CONFIG_HOME=$T/config XDG_STATE_HOME=$T/state HOME=$T TERM=dumb LC_ALL=C.UTF-8
unset NO_COLOR VISUAL EDITOR TMUX
DB=$XDG_DATA_HOME/aerie/sessions.db
mkdir -p "$XDG_CONFIG_HOME/aerie" # no word about the device; starts take half the time
# one thread, as in tests/few.h
usual_config() {
    { printf 'device = cpu\nload = map\n'; [ "${AERIE_FEW:-}" ] || [ "${AERIE_TEST_LONG:-0}" != 0 ] || echo 'threads = 1'; } >"$XDG_CONFIG_HOME/aerie/config"
}
usual_config
: >"$T/out"; : >"$T/err"
shopt -s lastpipe # so that `lines ... | run` leaves its status in $rc

n=0; bad=0
result() { # NAME STATUS: one line of TAP; what was printed last explains a failure
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; return; fi
    echo "not ok $n - $1"; bad=1
    { head -n 20 "$T/out"; head -n 8 "$T/err"; } | cat -v | cut -c1-150 | sed 's/^/# /'
}
plan() {
    if [ -s "$T/late" ]; then cp "$T/late" "$T/out"; : >"$T/err"; result "no wait ended at its limit" 1; fi
    echo "1..$n"; exit $bad
}

# Runs aerie; leaves $rc, $T/out and $T/err. feed: with standard input.
run() { timeout "${TEST_LIMIT:-250}" "$AERIE" "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
feed() { timeout "${TEST_LIMIT:-250}" "$AERIE" "$@" >"$T/out" 2>"$T/err"; rc=$?; }
has() { grep -qF -- "$1" "$T/${2:-out}"; }  # TEXT [err]: it was printed
like() { grep -qE -- "$1" "$T/${2:-out}"; } # the same of a pattern
lines() { printf '%s\n' "$@"; }
sql() { sqlite3 "$DB" "$1"; }
mkfifo "$T/never" && exec {never}<>"$T/never" # nothing is ever written there
pause() { read -rt "$1" -u "$never" || :; } # sleeps without a process
until_ok() { # tries a command for a minute (TEST_WAIT seconds); a wait that ends there is a failure, whoever asked for it
    local end=$((SECONDS + ${TEST_WAIT:-60}))
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "waited ${TEST_WAIT:-60} s, at line ${BASH_LINENO[-2]}, for: $*" >>"$T/late"; return 1; }
        pause 0.03
    done
}
catches() { # PID: the process is aerie and has a handler for SIGINT
    local line
    [ "$(cat "/proc/$1/comm")" = aerie ] || return
    while read -r line; do case $line in SigCgt:*[2367abef]) return 0;; esac; done <"/proc/$1/status"
    return 1
}
caught() { until_ok catches "$1"; } # waits until it does
wrote() { grep -qs -- "${3:-.}" "$1" || ! kill -0 "${2:?}" 2>/dev/null; } # FILE PID [TEXT]: the process has written it there, or ended

# ---- the full screen, in tmux ----
socket=aerie-${0##*/}-$$
screen() { M capture-pane -p "$@"; }
shows() { [[ $(screen) == *"$1"* ]]; }
hides() { ! shows "$1"; }
wait_for() { until_ok shows "$1"; }
wait_gone() { until_ok hides "$1"; }
M() { tmux -L "$socket" -f /dev/null "$@" 2>/dev/null; }
key() { M send-keys "$@"; }
text() { M send-keys -l -- "$1"; }
no_server() { ! M list-sessions >/dev/null; }
# check TITLE COMMAND...: one line of TAP, with the screen where the command fails. The screen may be half drawn and the status
# line one frame behind, so the command is tried again for ten seconds.
check() {
    local title=$1 end=$((SECONDS + ${TEST_WAIT:-60} / 6)); shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { screen >"$T/out"; : >"$T/err"; result "$title" 1; return; }
        pause 0.03
    done
    result "$title" 0
}
# tmux tells a program about the second of two quick resizes only a quarter of a second later
told() { [ "$(stty size <"$(M display -p '#{pane_tty}')")" = "$2 $1" ]; }
size() { M resize-window -x "$1" -y "$2"; until_ok told "$1" "$2"; sleep 0.1; }
open_screen() { # WIDTH HEIGHT FLAGS...: the program in a fresh terminal
    M kill-server; until_ok no_server
    local w=$1 h=$2; shift 2
    M new-session -d -x "$w" -y "$h" "env TERM=screen-256color $AERIE $*"
    wait_for 'ctx '
}
