#!/bin/bash
# Checks what the CUDA kernels of a build need, as ptxas reported when they were compiled:
#   tests/resources.sh BUILD       (make resources)
# A kernel may spill no registers unless tests/resources.txt allows it (of compilers and architectures that
# are not measured there, spills are only printed), has at most 48 KiB of static shared memory, and its launch bounds keep its registers within a multiprocessor's 65,536. What it needs of
# dynamic shared memory depends on the GPU: cuda_launch() checks it in every launch of a test under
# AERIE_GPU_AS. Prints a line for each architecture, and those kernels that exceed a limit; then exits 1.
cd "$(dirname "$0")/.." || exit 2
[ $# -eq 1 ] || { sed -n '2,3p' "$0" >&2; exit 2; }
logs=$(find "$1/kernels/cuda" -name '*.ptxas' 2>/dev/null)
[ -n "$logs" ] || { echo "resources: $1 was built without CUDA"; exit 0; }
missing=$(comm -23 <(cd "${SOURCES:-.}/kernels/cuda" && find . -name '*.cu' | sort) <(cd "$1/kernels/cuda" && find . -name '*.cu.ptxas' | sed 's/\.ptxas$//' | sort))
[ -z "$missing" ] || { echo "resources: not compiled by this Makefile yet:" $missing; exit 1; }
awk -v allowed="${ALLOWED:-tests/resources.txt}" -v quote="'" '
    BEGIN {
        while ((getline line < allowed) > 0)
            if (line ~ /^measured /) { split(line, w, " "); measured[w[2], w[3]] = 1 }
            else if (line !~ /^#/ && split(line, w, " ") >= 3) { n++; arch_of[n] = w[1]; name_of[n] = w[2]; most[n] = w[3] + 0 }
    }
    /^compiler / { compiler = $2; next }
    /Compiling entry function/ { gsub(quote, ""); name = $7; arch = $9; spill = 0; next }
    /bytes stack frame/ {
        for (i = 1; i <= NF; i++) if ($i == "spill" && $(i + 1) ~ /^stores/) spill = $(i - 2) + 0
        next
    }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) { if ($i == "Used") registers = $(i + 1) + 0; if ($i ~ /^smem/) shared = $(i - 2) + 0 }
        kernels[arch]++
        if (registers > widest[arch]) widest[arch] = registers
        if (shared > static[arch]) static[arch] = shared
        limit = 0
        for (i = 1; i <= n; i++)
            if (arch ~ "^" arch_of[i] "$" && index(name, name_of[i]) && most[i] > limit) limit = most[i]
        if (spill) spilling[arch]++
        if (spill > limit) {
            known = (compiler, arch) in measured
            print "  " arch, name ": spills", spill, "bytes, " (known ? "allowed " limit : "not measured: nvcc " compiler)
            bad += known
        }
        if (shared > 49152) { print "  " arch, name ": " shared " bytes of static shared memory, allowed 49152"; bad++ }
        shared = 0
    }
    END {
        for (a in kernels)
            printf "resources: %s: %d kernels, at most %d registers and %d bytes of static shared memory, %d that spill\n",
                   a, kernels[a], widest[a], static[a], spilling[a]
        exit bad > 0
    }' $logs
