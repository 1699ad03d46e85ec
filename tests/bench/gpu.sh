#!/bin/bash
# One pass over a GPU: the tests that use it, compute-sanitizer on a part of them, the benchmarks.
#   tests/bench/gpu.sh BUILD LOGS [STAGE...]      stages: tests check bench (all)
# Needs only what is built: BUILD/aerie and the test programs named below. A folder BUILD/lib with shared
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

programs='test_cuda test_cuda_attn test_cuda_moe test_cuda_tile test_cuda_full test_fused test_tree_ops
          test_poison test_synthetic'

run_test() { # program
    local log=$logs/$1.log start=$SECONDS
    timeout "${LIMIT:-200}" "$build/tests/$1" >"$log" 2>&1
    echo "$1: status $?, $(grep -c '^ok' "$log") ok, $(grep '^not ok' "$log" | grep -vc SKIP) not ok," \
         "$((SECONDS - start)) s"
    grep -A6 '^not ok' "$log" | grep -v SKIP | cut -c1-300 | head -40
}

sanitize() { # tool, program, its arguments
    local tool=$1 program=$2 log; shift 2
    log=$logs/$tool-$program-$(tr -dc 'a-z_' <<<"$*").log
    timeout "${LIMIT:-100}" compute-sanitizer --tool "$tool" "$build/tests/$program" "$@" >"$log" 2>&1
    echo "$tool $program $*: status $?, $(grep -cE '^ok' "$log") ok," \
         "$(grep -E '^=+ .*SUMMARY' "$log" | sed 's/=* *//' | head -2)"
}
export -f run_test sanitize
export build logs programs

bench() { # aerie bench's arguments
    timeout "${LIMIT:-120}" "$build/aerie" bench --device cuda "$@" >>"$logs/bench.log" 2>&1
    echo "bench $*: status $?"
}

for stage; do
    start=$SECONDS
    case $stage in
    tests)
        xargs -n 1 -P 4 bash -c 'run_test "$0"' <<<"$programs" ;;
    check)
        xargs -P 6 -I{} bash -c 'sanitize {}' <<'EOF' ;;
memcheck test_cuda short
synccheck test_cuda short
memcheck test_tree_ops
memcheck test_cuda_tile
initcheck test_cuda short test_glu*
initcheck test_cuda short test_qkv*
racecheck test_cuda short test_glu*
racecheck test_cuda short test_qkv*
racecheck test_cuda short test_merge*
racecheck test_cuda short test_topk*
racecheck test_cuda short test_moe*
racecheck test_tree_ops test_shapes*
racecheck test_cuda_moe test_scales*
EOF
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
