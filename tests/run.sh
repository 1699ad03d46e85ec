#!/bin/bash
# Runs every test of a build folder, JOBS at a time (six for two cores), and ends with "N passed, N failed".
#   tests/run.sh BUILD [NAME...]     NAME: run only tests whose name contains it; test_x$: only test_x
# A test is a cmocka program BUILD/tests/test_* or a script tests/e2e/test_*.sh. Both print TAP:
# "ok", "not ok", "ok ... # SKIP reason" (cmocka's skip() says "not ok ... # SKIP"). One that dies, prints no result or
# leaves a file in its TMPDIR has failed. AERIE_TEST_LONG=1 runs more cases of many tests (tests/few.h). A test has TEST_TIMEOUT
# seconds (600), a program that it starts five twelfths of them, a wait for a screen a tenth.
cd "$(dirname "$0")/.." || exit 2
build=$1; shift
logs=$build/test-logs
rm -rf "$logs"; mkdir -p "$logs"
TEST_TIMEOUT=${TEST_TIMEOUT:-$((${AERIE_TEST_LONG:-0} ? 3600 : 600))}
export TEST_TIMEOUT TEST_LIMIT=$((TEST_TIMEOUT * 5 / 12)) TEST_WAIT=$((TEST_TIMEOUT / 10))
export AERIE=$PWD/$build/aerie BUILD=$PWD/$build CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C.UTF-8 SHELL=$BASH # with which tmux runs commands
unset XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME NO_COLOR

# Tests find the commands of the Makefile's packages and of every bare Debian system in a folder of links, and no others:
# a command that only this machine has fails here, not on somebody's fresh machine. Elsewhere than on Debian they find all.
link_commands() { # folder
    local declared files
    declared="make $(env -u MAKEFLAGS -u MFLAGS make -s packages)" && mkdir "$1" || return 1
    # shellcheck disable=SC2046,SC2086
    files=$(dpkg-query -L $(dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' | awk '$1 == "yes" || $2 == "required" { print $NF }') \
        $declared 2>/dev/null | grep -E '^(/usr)?/s?bin/.') || return 1
    xargs -r ln -sf -t "$1" <<<"$files"
    [ -e "$1/awk" ] || ln -s mawk "$1/awk" # an alternative, not a file of the package
}
if command -v dpkg-query >/dev/null; then
    rm -rf "$build/commands"; link_commands "$build/commands" || exit 2
    export PATH=$PWD/$build/commands
fi
command_not_found_handle() { echo "$1: not found; tests have the commands of the packages that the Makefile declares" >&2; return 127; }
export -f command_not_found_handle

one() { # path of a test, log folder: one file with its output, one with its verdicts
    local name=${1##*/}; local log=$2/$name.log start=$SECONDS
    local ok bad skip rc used TIMEFORMAT='%U %S'
    local tmp left; tmp=$(mktemp -d "${TMPDIR:-/tmp}/aerie-XXXXXX")
    [ -z "$COVER" ] || { export GCOV_PREFIX=$COVER/$name; mkdir "$GCOV_PREFIX"; } # tests/covers.sh
    { time TMPDIR=$tmp timeout "$TEST_TIMEOUT" "$1" >"$log" 2>&1; rc=$?; } 2>"$2/$name.time"
    left=$(cd "$tmp" && echo *) ; rm -rf "$tmp"
    used=$(awk '/^[0-9.]+ [0-9.]+$/ { printf "%.1f", $1 + $2 }' "$2/$name.time") # bash names a signal there too
    # a reason in brackets at the end of a skipped test's name, else that there is no GPU
    sed -i -E 's/^not ok ([0-9]+) # SKIP (.*) \((.*)\)$/ok \1 - \2 # SKIP \3/; s/^not ok ([0-9]+) # SKIP (.*)/ok \1 - \2 # SKIP no GPU/' "$log"
    ok=$(grep -c '^ok ' "$log"); bad=$(grep -c '^not ok ' "$log"); skip=$(grep -ciE '^ok .*# *skip' "$log")
    if [ $rc != 0 ] && [ "$bad" = 0 ]; then bad=1; echo "not ok - $name ended with status $rc" >>"$log"; fi
    if [ "$left" != '*' ]; then bad=$((bad + 1)); echo "not ok - $name left files in TMPDIR: $left" >>"$log"; fi
    if [ $((ok + bad)) = 0 ]; then bad=1; echo "not ok - $name printed no result" >>"$log"; fi
    echo "$((ok - skip)) $bad $skip" >"$2/$name.count"
    printf '%-28s %4d passed %3d failed %3d skipped  %3ds %6.1fs of processor time\n' "$name" $((ok - skip)) "$bad" "$skip" $((SECONDS - start)) "$used"
    [ "$bad" = 0 ] || grep -B4 -A3 '^not ok ' "$log" | head -n 40 | sed 's/^/    /'
}
export -f one

find "$build/tests" -maxdepth 1 -name 'test_*' -type f -executable ! -name '*.o' ! -name '*.d' >"$logs/list"
find tests/e2e -maxdepth 1 -name 'test_*.sh' -type f >>"$logs/list"
if [ $# -gt 0 ]; then
    for n; do
        case $n in *\$) grep -E -- "/${n%?}(\.sh)?\$" "$logs/list" ;; *) grep -F -- "$n" "$logs/list" ;; esac
    done >"$logs/some"; mv "$logs/some" "$logs/list"
fi
# six for two cores, because programs compute with one thread (tests/few.h) and many tests wait for a screen or a lock; the longest first, so that none runs alone at the end
first='demo.sh verdict diff.sh parity.sh golden jobs bench.sh replay.sh probe.sh every_call back signal_states pack.sh
    time.sh log.sh kill.sh families speculation triage bugs lanes cli.sh serve history_evidence kernels_attn accepted.sh batch.sh
    tokenizer ngram engine fused memory shape.sh serve_http.sh signal_loops bench_routing serve_front mapped.sh probe_serve
    history_side_file tui.sh tui_mock.sh signals.sh plain.sh hands.sh history_care history_disk'
{ for t in $first; do grep "/test_$t\$" "$logs/list"; done; sort "$logs/list"; } | awk '!seen[$0]++' |
    xargs -r -P "${JOBS:-$(($(nproc) * 3))}" -I{} bash -c 'one "$1" "$2"' _ {} "$logs"
grep -h -iE '^ok .*# *skip' "$logs"/*.log 2>/dev/null | sed 's/.*# *[Ss][Kk][Ii][Pp] *//' | sort | uniq -c | sed 's/^ */skipped: /'
cat "$logs"/*.count 2>/dev/null | awk '{p += $1; f += $2; s += $3}
    END {printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 || p == 0}'
