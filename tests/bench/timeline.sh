#!/bin/bash
# What the stamps of a program built with `make STAMPS=1` tell (kernels/cuda/timeline.h).
#   STAMP_FILE=FILE build/release-cuda-stamps/aerie bench --device cuda --synthetic gpt-oss-20b step.20b.4k
#   tests/bench/timeline.sh FILE [US]    the last US microseconds (300)
# A line a kernel, named threads/dynamic shared bytes/grid: when its wait returned, and how long after the one
# before. Below it, for each STAMP(what): how many, and the first, the quartiles and the last, in microseconds
# after that (what below 16: before it); of values the least, the middle and the largest.
[ $# -ge 1 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
sort -n "$1" | awk -v span="${2:-300}" "$(cat "$(dirname "$0")/sorted.awk")"'
NR == 1 { zero = $1 }
{ ns[NR] = $1 - zero; kernel[NR] = $2; what[NR] = $3; value[NR] = $5 }
$3 == 251 && (!($2 in now) || ns[NR] - seen[$2] > 1500) { now[$2] = ++count; begin[count] = ns[NR]; name[count] = $2 }
$3 == 251 { seen[$2] = ns[NR] }
{ at[NR] = now[$2] + 0 }
END {
    for (i = NR; i > 0; i--) { # what is before a wait belongs to the next one
        if (what[i] == 251) coming[kernel[i]] = at[i]
        k = what[i] < 16 ? coming[kernel[i]] + 0 : at[i]
        if (what[i] >= 250 || !k) continue
        marks[k, what[i]] = sprintf("%.2f;", (ns[i] - begin[k]) / 1000) marks[k, what[i]]
        values[k, what[i]] = value[i] ";" values[k, what[i]]
    }
    for (k = 1; k <= count; k++) {
        if (begin[k] < ns[NR] - span * 1000) continue
        printf "%10.2f  +%7.2f  %s\n", (begin[k] - ns[NR]) / 1000, (k > 1 ? (begin[k] - begin[k - 1]) / 1000 : 0), name[k]
        for (w = 1; w < 250; w++) {
            if (!((k, w) in marks)) continue
            n = sorted(marks[k, w], v)
            printf "%24d: n %4d  %7.2f %7.2f %7.2f %7.2f %7.2f", w, n, v[1], v[int((n + 3) / 4)], v[int((n + 1) / 2)],
                   v[int((3 * n + 3) / 4)], v[n]
            n = sorted(values[k, w], v)
            print (v[n] > 0 ? sprintf("   value %d %d %d", v[1], v[int((n + 1) / 2)], v[n]) : "")
        }
    }
}'
