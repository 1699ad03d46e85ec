#!/bin/bash
# Runs targets of fuzzing, built by `make fuzz`, one after the other, and ends with a line for each.
#   tests/fuzz/run.sh BUILD SECONDS [NAME...]     SECONDS of each target; with RUNS=N: N inputs of each
# What a run finds stays in BUILD/fuzz/findings/; inputs that reach new code stay in BUILD/fuzz/found/NAME and are
# used by the next run. Exit 1 if anything was found.
cd "$(dirname "$0")/../.." || exit 2
build=$1 seconds=$2; shift 2
names=("$@")
if [ ${#names[@]} = 0 ]; then for f in tests/fuzz/fuzz_*.c; do f=${f##*/fuzz_}; names+=("${f%.c}"); done; fi
findings=$build/fuzz/findings
mkdir -p "$findings"
export ASAN_OPTIONS=abort_on_error=0:detect_leaks=1:allocator_may_return_null=1:quarantine_size_mb=8:malloc_context_size=4 UBSAN_OPTIONS=print_stacktrace=1 LC_ALL=C.UTF-8

seeds() { # NAME: the folder with what corpus/NAME.paths lists, linked
    local folder=$build/fuzz/paths/$1 path
    rm -rf "$folder"; mkdir -p "$folder"
    while read -r path; do ln -s "$PWD/$path" "$folder/${path//\//_}"; done <"tests/fuzz/corpus/$1.paths"
    echo "$folder"
}

bad=0
for name in "${names[@]}"; do
    found=$build/fuzz/found/$name log=$build/fuzz/$name.log
    mkdir -p "$found"
    folders=("$found")
    for f in "tests/fuzz/corpus/$name" "tests/fuzz/regressions/$name"; do [ -d "$f" ] && folders+=("$f"); done
    [ -f "tests/fuzz/corpus/$name.paths" ] && folders+=("$(seeds "$name")")
    options=(-print_final_stats=1 -timeout=20 -rss_limit_mb=3000 "-artifact_prefix=$findings/$name-")
    case $name in gguf) longest=8192 ;; safetensors | dump | config | tokenizer | answer | record) longest=4096 ;; *) longest=1024 ;; esac
    options+=("-max_len=$longest" -close_fd_mask=3)
    [ -f "tests/fuzz/dictionaries/$name" ] && options+=("-dict=tests/fuzz/dictionaries/$name")
    if [ -n "${RUNS:-}" ]; then options+=("-runs=$RUNS"); else options+=("-max_total_time=$seconds"); fi
    start=$SECONDS
    "$build/fuzz/$name" "${options[@]}" "${folders[@]}" >"$log" 2>&1; rc=$?
    inputs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
    [ $rc = 0 ] || bad=1
    printf '%-14s %10s inputs %5d s  %s\n' "$name" "${inputs:-?}" $((SECONDS - start)) \
        "$([ $rc = 0 ] && echo "nothing found" || grep -m 1 -E 'ERROR: |runtime error|check failed|SUMMARY' "$log")"
done
exit $bad
