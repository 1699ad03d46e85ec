#!/bin/bash
# One pass over a GPU: the tests that use it, compute-sanitizer on all of them, the benchmarks.
#   tests/bench/gpu.sh BUILD LOGS [STAGE...]      stages: tests check stress bench (all but stress)
# Needs only what is built: BUILD/aerie and the test programs named below. A folder BUILD/lib with shared
# libraries is used if it is there. A log a program below LOGS, a line each on standard output, and
# status 1 if anything failed. GPUS: numbers of those to use (all; tests and benchmarks take the first).
#   check   TOOLS (all four) over every program, JOBS processes at a time: one a GPU, for processes that share
#           one wait for each other at every call (ten times as long, with eight). AERIE_FEW=1 thins the tests'
#           cases (tests/few.h). ONLY: a pattern of lines "TOOL PROGRAM ARGUMENTS"; LIMIT: seconds each.
#           EXCLUDE=none: racecheck leaves out no kernel.
#   stress  BUILD of STRESS=1, which delays warps at random: the same passes again and again must give the bits of PLAIN, an
#           ordinary build (BUILD without -stress), and each kernel that racecheck leaves out must have run LAUNCHES times
#           (100000). Counts of all kernels as LOGS/launches. PASSES: as test_cuda_stress (2100); LIMIT: seconds a program.
#   bench   lines for the bundled model and those of MODELS, as LOGS/bench.jsonl (see table.sh; as
#           tests/bench/h200.jsonl it gives the README its figures). ONLY: names of lines; CUBLAS: a cuBLASLt.
cd "$(dirname "$0")/../.." || exit 2
[ $# -ge 2 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
build=$1 logs=$2; shift 2
[ $# -gt 0 ] || set -- tests check bench
[ -d "$build/lib" ] && export LD_LIBRARY_PATH=$PWD/$build/lib:$LD_LIBRARY_PATH
export CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C.UTF-8
mkdir -p "$logs"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
ldd "$build/tests/test_cuda" | grep 'not found'

# what uses a GPU, the longest first: a program and which of its tests
parts='test_cuda engine
test_cuda_back
test_cuda_jobs
test_cuda_behind
test_cuda_stress 2
test_cuda_kv
test_cuda_wait
test_cuda_share *gpu*
test_cuda_debug
test_probe
test_fused *gpu*
test_cuda_full
test_poison *gpu
test_cuda kernels
test_cuda_moe
test_cuda_attn
test_cuda_tile
test_cuda_packed
test_tree_ops
test_synthetic *gpu*
test_fp8 *gpu'
gpus=${GPUS:-$(nvidia-smi -L | sed -E 's/GPU ([0-9]+):.*/\1/' | xargs)}
export build logs gpus CUDA_VISIBLE_DEVICES=${gpus%% *}

# the same on GPUs of other classes, as this one can be used (AERIE_GPU_AS in aerie.1)
classes='test_cuda_full@8.6 test_cuda_full@8.0 test_cuda_moe@8.6 test_cuda_attn@8.6 test_cuda_attn@8.0 test_cuda_attn@12.0 test_fused@8.9 test_cuda@12.0'

run_test() { # program, or program@class of GPUs
    local log=$logs/$1.log start=$SECONDS status as=
    [[ $1 != *@* ]] || as=${1#*@}
    AERIE_GPU_AS=$as timeout "${LIMIT:-200}" "$build/tests/${1%@*}" >"$log" 2>&1
    status=$?
    echo "$1: status $status, $(grep -c '^ok' "$log") ok, $(grep '^not ok' "$log" | grep -vc SKIP) not ok," \
         "$((SECONDS - start)) s"
    grep -A6 '^not ok' "$log" | grep -v SKIP | cut -c1-300 | head -40
    [ $status = 0 ]
}

# Cores first .. last of lane SLOT of `jobs`.
lane() { local n; n=$(nproc); echo "$((SLOT * n / jobs))-$(((SLOT + 1) * n / jobs - 1))"; }

# Kernels in which racecheck reports races that are none. Attention over heads of 256 on GPUs without wgmma: four pairs
# of warps have named barriers of their own, and the tool then loses the block's barrier (two __syncthreads() in a
# row between reading and writing do not satisfy it; the other configurations are clean). Kernels with rings: lane 0
# arrives at an mbarrier for its warp after __syncwarp(), and the tool does not count the other lanes (a kernel
# of two warps that does nothing else shows it). A build with STRESS=1 arrives with all lanes: there these
# kernels are checked, too.
false_races="--kernel-name-exclude kns=tile_configILi256ELi1ELi4ELi2ELi2 --kernel-name-exclude kns=tile_configILi256ELi1ELi4ELi2ELi3"
case $build in
*-stress) ;;
*) false_races="$false_races --kernel-name-exclude kns=prefill_kernel --kernel-name-exclude kns=prefill_experts_kernel
             --kernel-name-exclude kns=decode_kernel --kernel-name-exclude kns=expert_kernel
             --kernel-name-exclude kns=tiled_product_kernel" ;;
esac
[ "$EXCLUDE" != none ] || false_races=

# synccheck is told how many barriers in memory a block may have: left to find out, it asks for more memory
# than there is and checks nothing of a kernel with a ring. A ring has at most 33.
sanitize() { # tool program arguments
    local tool=$1 program=$2 log status=0 start=$SECONDS errors verdict of; shift 2
    read -ra of <<<"$gpus"
    log=$logs/$tool-$program$(tr -dc 'a-z_' <<<"$*").log
    # shellcheck disable=SC2046
    CUDA_VISIBLE_DEVICES=${of[SLOT % ${#of[@]}]} timeout "${LIMIT:-280}" taskset -c "$(lane)" stdbuf -oL \
        compute-sanitizer --tool "$tool" $([ "$tool" = racecheck ] && echo "$false_races") \
        $([ "$tool" = memcheck ] && echo --report-api-errors no) \
        $([ "$tool" = synccheck ] && echo --num-cuda-barriers 64) \
        --log-file "$log.tool" "$build/tests/$program" "$@" >"$log" 2>&1 || status=$?
    errors=$(sed -nE 's/.*ERROR SUMMARY: ([0-9]+) error.*/\1/p; s/.*SUMMARY: [0-9]+ hazards? displayed \(([0-9]+) errors?.*/\1/p' "$log.tool" | head -1)
    verdict=${errors:+$errors errors}
    [ $status = 124 ] && verdict="not done"
    printf '%-9s %-24s %-10s %3d ok %2d not ok %4d s, status %d\n' "$tool" "$program $*" "${verdict:-no summary}" \
        "$(grep -c '^ok' "$log")" "$(grep '^not ok' "$log" | grep -vc SKIP)" $((SECONDS - start)) $status
    grep -E '^=+ (Error|Warning|Invalid|Uninit|Barrier|Race)' "$log.tool" | cut -c1-200 | sort | uniq -c | sort -rn | head -5
    [ $status = 0 ] && [ "$errors" = 0 ]
}
# Whole models run the kernels of the other programs a thousand times; racecheck needs minutes for each. A GPU that
# does not finish in time (test_cuda_wait) is nothing for these tools.
too_slow='test_cuda_wait|^racecheck (test_cuda engine|test_cuda_jobs|test_cuda_behind|test_cuda_full|test_cuda_share|test_poison)'
export -f run_test sanitize lane
export false_races

check() {
    local tool
    export jobs=${JOBS:-$(wc -w <<<"$gpus")} AERIE_FEW=1
    for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
        tac <<<"$parts" | sed "s/^/$tool /" # the quick ones first
    done | grep -vE "$too_slow" | grep -e "${ONLY:-.}" | xargs --process-slot-var=SLOT -P "$jobs" -I{} bash -c 'set -f; sanitize {}'
}

# The kernels that racecheck leaves out, and verify_kernel, which has a ring, too.
left_out='decode_kernel< verify_kernel< prefill_kernel< expert_kernel< few_expert_kernel< prefill_experts_kernel< tiled_product_kernel< tile_kernel<tile_config<256,1,4,2,'
digest() { sed -nE 's/^# cuda: digest ([0-9a-f]+),.*/\1/p' "$1"; }

twice() { # ordinary build, program, its amount, its tests, maybe with @ and a class of GPUs: the same digest from both builds?
    local program=$2 amount=$3 tests=${4%@*} log start=$SECONDS bad=0
    local -x AERIE_GPU_AS=
    [[ $4 != *@* ]] || AERIE_GPU_AS=${4#*@}
    log=$logs/$2$(tr -dc 'a-zA-Z0-9' <<<"$4")
    timeout "${LIMIT:-500}" "$1/tests/$program" 1 ${tests:+"$tests"} >"$log-plain.log" 2>&1 || bad=1
    AERIE_LAUNCHES=$logs/launches.each timeout "${LIMIT:-500}" "$build/tests/$program" "$amount" ${tests:+"$tests"} >"$log-stress.log" 2>&1 || bad=1
    echo "$program $4: $(digest "$log-plain.log") in an ordinary build, $(digest "$log-stress.log") in one of STRESS=1," \
         "$(cat "$log"-*.log | grep -c '^not ok') not ok, $((SECONDS - start)) s"
    grep -hA4 '^not ok' "$log"-*.log | cut -c1-300 | head -20
    [ $bad = 0 ] && [ -n "$(digest "$log-plain.log")" ] && [ "$(digest "$log-plain.log")" = "$(digest "$log-stress.log")" ]
}

stress() {
    local plain=${PLAIN:-${build%-stress}} bad=0 kind name
    [ "$plain" != "$build" ] || { echo "stress needs a build of STRESS=1 and an ordinary one" >&2; return 1; }
    rm -f "$logs/launches.each"
    for kind in 'heads*bf16' 'heads*FP8' 'heads*f32' 'experts*bf16' 'experts*FP8' 'experts*f32' 'heads*bf16@8.0' 'heads*FP8@8.0'; do
        twice "$plain" test_cuda_stress "${PASSES:-2100}" "$kind" || bad=1
    done
    twice "$plain" test_cuda_share 10 || bad=1
    awk '{ n = $1; sub(/^[0-9]+ /, ""); gsub(/ /, ""); sum[$0] += n } END { for (k in sum) print sum[k], k }' \
        "$logs/launches.each" | sort -rn >"$logs/launches"
    awk '{ sub(/<.*/, "", $2); sum[$2] += $1; all += $1 } END { for (k in sum) print sum[k], k; print all, "launches" }' \
        "$logs/launches" | sort -rn
    for name in $left_out; do
        awk -v least="${LAUNCHES:-100000}" -v name="$name" 'index($2, name) == 1 { n += $1 }
            END { printf "%s...: %d launches\n", name, n; exit n < least }' "$logs/launches" || bad=1
    done
    return $bad
}

bench() { # aerie bench's arguments
    timeout "${LIMIT:-120}" "$build/aerie" bench --device cuda --json ${CUBLAS:+--cublas "$CUBLAS"} "$@" >>"$logs/bench.jsonl" 2>>"$logs/bench.log"
    local status=$?
    echo "bench $*: status $status"
    return $status
}

failed=0
for stage; do
    start=$SECONDS
    case $stage in
    tests)
        { cut -d' ' -f1 <<<"$parts" | sort -u; tr ' ' '\n' <<<"$classes"; } | xargs -P 2 -I{} bash -c 'run_test {}' || failed=1 ;;
    check)
        echo "racecheck leaves out the kernels $(grep -o 'kns=[A-Za-z0-9_]*' <<<"$false_races" | cut -c5- | tr '\n' ' ')" \
             "and the programs $(tr -dc 'a-z_ |' <<<"${too_slow#*(}" | tr '|' ',')"
        check || failed=1 ;;
    stress)
        stress || failed=1 ;;
    bench)
        rm -f "$logs/bench.jsonl" "$logs/bench.log"
        models='step. verify. draft. cycle. cublas. product. prefill.'
        bench -m models/nestling/target --draft models/nestling/draft ${ONLY:-} || failed=1
        for m in ${MODELS:-gpt-oss-20b gpt-oss-120b gemma-3-4b gemma-3-27b}; do
            bench --synthetic "$m" ${ONLY:-$models} || failed=1
        done
        tests/bench/table.sh lines "$logs/bench.jsonl" ;;
    *)
        echo "no stage $stage; expected tests, check, stress or bench" >&2; exit 2 ;;
    esac
    echo "-- $stage took $((SECONDS - start)) s"
done
exit $failed
