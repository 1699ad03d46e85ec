#!/bin/bash
# Runs every benchmark of a build folder, and the program's own in its short form; figures go to standard output.
cd "$(dirname "$0")/../.." || exit 2
build=$1
echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%Y-%m-%d)"
for b in "$build"/tests/bench/bench_*; do
    case $b in *.o | *.d) continue ;; esac
    echo; echo "== $(basename "$b")"
    "$b" "$PWD/$build/aerie"
done
echo; echo "== aerie bench --short"
"$build/aerie" bench --short
