#!/bin/bash
# The check of what the CUDA kernels need (tests/resources.sh): made-up reports, then those of this build if it has any.
. "$(dirname "$0")/kit.sh"
report() { # FILE REGISTERS SPILLED SHARED: ptxas's report of a kernel
    mkdir -p "$T/build/kernels/cuda" "$T/source/kernels/cuda"; : >"$T/source/kernels/cuda/$1.cu"
    printf '%s\n' "compiler 13.0" "ptxas info    : 0 bytes gmem" "ptxas info    : Compiling entry function '_Z6kernel$1v' for 'sm_80'" \
        "ptxas info    : Function properties for _Z6kernel$1v" \
        "    $3 bytes stack frame, $3 bytes spill stores, 0 bytes spill loads" \
        "ptxas info    : Used $2 registers, used 1 barriers, $4 bytes smem, 400 bytes cmem[0]" >"$T/build/kernels/cuda/$1.cu.ptxas"
}
check() { SOURCES=$T/source ALLOWED=$T/allowed tests/resources.sh "$T/build" >"$T/out" 2>"$T/err"; rc=$?; }
measured="measured 13.0 sm_80"; echo "$measured" >"$T/allowed"
check; [ $rc = 0 ] && grep -q 'without CUDA' "$T/out"; result "a build without CUDA has nothing to check" $?
report a 255 0 49152; report b 20 0 16
check; [ $rc = 0 ] && grep -q 'sm_80: 2 kernels, at most 255 registers and 49152 bytes' "$T/out"; result "kernels within the limits" $?
report b 20 8 16
check; [ $rc = 1 ] && grep -q 'sm_80 _Z6kernelbv: spills 8 bytes, allowed 0' "$T/out"; result "a kernel that spills" $?
printf '%s\n' "$measured" 'sm_80 kernelb 8' >"$T/allowed"
check; [ $rc = 0 ] && grep -q '1 that spill' "$T/out"; result "a kernel that spills as much as is allowed" $?
printf '%s\n' "$measured" 'sm_90a kernelb 8' >"$T/allowed"
check; [ $rc = 1 ]; result "what is allowed for another architecture" $?
for other in "12.9 sm_80" "13.0 sm_86"; do
    echo "measured $other" >"$T/allowed"
    check; [ $rc = 0 ] && grep -q 'spills 8 bytes, not measured: nvcc 13.0' "$T/out"; result "spills where only $other was measured" $?
done
report b 20 0 49153
check; [ $rc = 1 ] && grep -q 'b.*: 49153 bytes of static shared memory' "$T/out"; result "too much static shared memory" $?
report b 20 0 16; : >"$T/source/kernels/cuda/c.cu"
check; [ $rc = 1 ] && grep -q 'not compiled.*c.cu' "$T/out"; result "a file without a report" $?
if [ -e "$BUILD/kernels/cuda/cuda.cu.ptxas" ]; then
    tests/resources.sh "$BUILD" >"$T/out" 2>"$T/err"; result "the kernels of this build" $?
else
    n=$((n + 1)); echo "ok $n - the kernels of this build # SKIP built without CUDA"
fi
plan
