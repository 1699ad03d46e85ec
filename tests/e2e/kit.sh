# kit.sh - what every script of this folder begins with:
#   . "$(dirname "$0")/kit.sh"
# It changes to the project's root, makes a scratch folder $T, in which all files of the program lie, and defines the
# functions below. A script that has more to clean up than $T defines clean(). The last line of a script is: plan
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
export AERIE=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d "${TMPDIR:-/tmp}/aerie-test-XXXXXX") || exit 2
trap 'clean; rm -rf "$T"' EXIT
clean() { :; }
export XDG_DATA_HOME=$T/data XDG_CONFIG_HOME=$T/config XDG_STATE_HOME=$T/state HOME=$T TERM=dumb LC_ALL=C.UTF-8
unset NO_COLOR VISUAL EDITOR TMUX
DB=$XDG_DATA_HOME/aerie/sessions.db
mkdir -p "$XDG_CONFIG_HOME/aerie"; echo "device = cpu" >"$XDG_CONFIG_HOME/aerie/config" # no word about the device
: >"$T/out"; : >"$T/err"
shopt -s lastpipe # so that `lines ... | run` leaves its status in $rc

n=0; bad=0
result() { # NAME STATUS: one line of TAP; what was printed last explains a failure
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; return; fi
    echo "not ok $n - $1"; bad=1
    { head -n 20 "$T/out"; head -n 8 "$T/err"; } | cat -v | cut -c1-150 | sed 's/^/# /'
}
plan() { echo "1..$n"; exit $bad; }

# Runs aerie; leaves $rc, $T/out and $T/err. feed: with standard input.
run() { timeout 60 "$AERIE" "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
feed() { timeout 120 "$AERIE" "$@" >"$T/out" 2>"$T/err"; rc=$?; }
lines() { printf '%s\n' "$@"; }
sql() { sqlite3 "$DB" "$1"; }
caught() { # PID: waits until the process is aerie and has a handler for SIGINT
    local line seen=
    until [ "$seen" ]; do
        sleep 0.005
        [ "$(cat "/proc/$1/comm")" = aerie ] || continue
        while read -r line; do case $line in SigCgt:*[2367abef]) seen=1;; esac; done <"/proc/$1/status"
    done
}
