#!/bin/bash
# How long a newcomer waits on this machine, whose packages are installed already: the median of RUNS (3) clean clones of HEAD.
#   tests/bench/first_minute.sh [STAGE...]     prompt: clone, `make run`, one reply · green: clone, `make test`
#                                              cuda: clone, `make CUDA=1`, size of the program (needs nvcc)
# Measure on an idle machine: the load before each run is printed. Status 1 if a command failed.
cd "$(dirname "$0")/../.." || exit 2
[ $# -gt 0 ] || set -- prompt green cuda
runs=${RUNS:-3} here=$PWD failed=0
T=$(mktemp -d) || exit 2
trap 'rm -rf "$T"' EXIT
export XDG_CONFIG_HOME=$T/config XDG_DATA_HOME=$T/data XDG_STATE_HOME=$T/state

prompt() { printf 'Hello!\n/bye\n' | make run; }
green() { make test; }
cuda() { make CUDA=1; }

measure() { # STAGE: a line a run, and their median
    local i begin seconds load status
    for ((i = 1; i <= runs; i++)); do
        rm -rf "$T/clone"; read -r load _ </proc/loadavg
        begin=$EPOCHREALTIME
        (git clone -q --no-local "$here" "$T/clone" && cd "$T/clone" && "$1") >"$T/log" 2>&1
        status=$?
        seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
        [ $status = 0 ] || { failed=1; tail -n 5 "$T/log" | sed 's/^/    /'; }
        echo "$seconds" >>"$T/$1"
        printf '%-7s run %d  %7.1f s  load before %s  %s\n' "$1" "$i" "$seconds" "$load" \
            "$(case $1 in prompt) grep -m 1 '^[A-Z]' "$T/log" ;; green) tail -n 1 "$T/log" ;; cuda) grep MiB "$T/log" ;; esac)"
    done
    sort -n "$T/$1" | awk -v what="$1" '{ v[NR] = $1 } END { printf "%-7s median %5.1f s\n", what, v[int((NR + 1) / 2)] }'
}

echo "commit $(git rev-parse --short HEAD), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
for stage; do
    case $stage in prompt | green | cuda) measure "$stage" ;; *) sed -n '2,5p' "$0" >&2; exit 2 ;; esac
done
exit $failed
