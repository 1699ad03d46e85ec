#!/bin/bash
# Two processes with two engines each on one GPU, at the same time: every reply has the bits of a run alone, and nothing
# hangs, although kernels wait for each other's blocks (kernels/cuda/stream.cu).
#   tests/bench/two.sh BUILD [SECONDS]     SECONDS: how long both run beside each other (600)
# Prints a line a process with its digest and replies; status 1 if a digest differs, a reply differs or a process hangs.
# BUILD of STRESS=1 delays warps at random; its digests are those of an ordinary build.
cd "$(dirname "$0")/../.." || exit 2
[ $# -ge 1 ] || { sed -n '4,5p' "$0" >&2; exit 2; }
program=$1/tests/test_cuda_share seconds=${2:-600}
[ -d "$1/lib" ] && export LD_LIBRARY_PATH=$PWD/$1/lib:$LD_LIBRARY_PATH
logs=$(mktemp -d) && trap 'rm -rf "$logs"' EXIT
export CMOCKA_MESSAGE_OUTPUT=TAP

run() { # name, seconds: a line with the digest
    timeout $(($2 + 120)) "$program" "$2" >"$logs/$1" 2>&1
    local status=$?
    echo "$1: status $status, $(sed -n 's/^# cuda: //p' "$logs/$1")"
    grep -A4 '^not ok' "$logs/$1"
    return $status
}

failed=0
run alone 1 || failed=1
run first "$seconds" & first=$!
run second "$seconds" || failed=1
wait $first || failed=1
[ "$(sed -nE 's/.*digest ([0-9a-f]+),.*/\1/p' "$logs"/* | sort | uniq -c | awk '{print $1}')" = 3 ] || failed=1
[ $failed = 0 ] && echo "all digests are equal"
exit $failed
