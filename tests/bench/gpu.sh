#!/bin/bash
# One pass over a GPU: the CUDA tests, the memory checker on a part of them, the benchmarks.
#   tests/bench/gpu.sh BUILD LOGS [STAGE...]      stages: tests check bench (all)
# Needs only what is built: BUILD/tests/test_cuda, BUILD/aerie. A folder BUILD/lib with shared
# libraries is used if it is there. Each stage has its own log below LOGS. ONLY: names of lines;
# MODELS: for whose shapes.
cd "$(dirname "$0")/../.." || exit 2
build=$1 logs=$2; shift 2
[ $# -gt 0 ] || set -- tests check bench
[ -d "$build/lib" ] && export LD_LIBRARY_PATH=$PWD/$build/lib
export CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C.UTF-8
mkdir -p "$logs"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
ldd "$build/tests/test_cuda" | grep 'not found'

sanitize() { # tool, test_cuda's arguments
    local tool=$1 log=$logs/$1.log; shift
    timeout "${LIMIT:-60}" compute-sanitizer --tool "$tool" "$build/tests/test_cuda" "$@" >>"$log" 2>&1
    echo "$tool $*: status $? ($(grep -c '^ok' "$log") ok)"; grep -E '^=+ .*(Error|Invalid|Race|Uninit|SUMMARY)' "$log" | sort | uniq -c | head -8
}

bench() { # aerie bench's arguments
    timeout "${LIMIT:-120}" "$build/aerie" bench --device cuda "$@" >>"$logs/bench.log" 2>&1
    echo "bench $*: status $?"
}

for stage; do
    start=$SECONDS
    case $stage in
    tests)
        timeout "${LIMIT:-200}" "$build/tests/test_cuda" >"$logs/tests.log" 2>&1
        echo "tests: status $?, $(grep -c '^ok' "$logs/tests.log") ok, $(grep -c '^not ok' "$logs/tests.log") not ok"
        grep '^# ' "$logs/tests.log" | head -30
        grep -A6 '^not ok' "$logs/tests.log" | cut -c1-300 | head -60 ;;
    check)
        sanitize memcheck short
        sanitize initcheck short 'test_glu*'
        sanitize synccheck short
        for t in 'test_glu*' 'test_qkv*' 'test_merge*' 'test_topk*' 'test_moe*'; do
            sanitize racecheck short "$t"
        done ;;
    bench)
        models='step. verify. draft. cycle. prefill.'
        bench -m models/nestling/target --draft models/nestling/draft ${ONLY:-}
        for m in ${MODELS:-gpt-oss-20b gpt-oss-120b gemma-3-4b}; do
            bench --synthetic "$m" ${ONLY:-$models}
        done
        cat "$logs/bench.log" ;;
    esac
    echo "-- $stage took $((SECONDS - start)) s"
done
