#!/bin/bash
# Where the time of a step goes, kernel by kernel: from the stamps of a program built with `make STAMPS=1`
# (kernels/cuda/timeline.h).
#   STAMP_FILE=FILE build/release-cuda-stamps/aerie bench --device cuda --synthetic gemma-3-1b step.g1b.4k
#   tests/bench/account.sh FILE [TB/S [US]]   of the last US microseconds (4000); TB/S: the run's mem.read (4.46)
# A kernel's time begins where its wait returns and ends where the next kernel's wait returns. Its parts:
#   stream  its bytes of weights at TB/S
#   ramp    until its last byte has arrived, less stream; below 0: bytes that arrived before its wait returned,
#           all of them if ramp is - stream
#   drain   from then until the last block has stored its results
#   wait    from then until the next kernel's wait returns
# Experts and attention say when their last byte was used, not which bytes: their stream counts as ramp. Kernels
# without stamps of blocks (other) have only a time. Lines: kernels of one shape and size with the number seen,
# medians in microseconds, and the sums; the last line adds up all kernels.
[ $# -ge 1 ] || { sed -n '2,14p' "$0" >&2; exit 2; }
sort -n "$1" | awk -v tbs="${2:-4.46}" -v span="${3:-4000}" "$(cat "$(dirname "$0")/sorted.awk")"'
function median(list,    n, v) { n = sorted(list, v); return v[int((n + 1) / 2)] }
BEGIN { split("product pair heads attention router experts", kinds, " ") }
NR == 1 { zero = $1 }
{
    t = $1 - zero; sig = $2; what = $3; block = $4; last_ns = t
    k = open[sig]
    # the next launch; a stamp may be lost, but no block begins long after the first one has gone on
    if (what == 240 && (!k || ((k, block) in has) || (went[k] && t - went[k] > 2000))) k = ""
    if (what == 251 && k && went[k] && t - went[k] > 1500) k = ""
    if (!k && what != 240 && what != 251) next
    if (!k) { k = ++n; open[sig] = n; name[n] = sig }
    if (what == 240) { has[k, block] = 1; kind[k] = kinds[$5] }
    if (what == 251 && !went[k]) went[k] = t
    if (what == 242) { last[k] = t > last[k] ? t : last[k]; bytes[k] += $5 }
    if (what == 243) ends[k] = t > ends[k] ? t : ends[k]
}
END {
    for (k = 1; k <= n; k++) if (went[k]) started = started went[k] " " k ";"
    m = sorted(started, order) # a kernel may begin before the one in front of it
    for (i = 1; i <= m; i++) sub(/.* /, "", order[i])
    for (i = 1; i < m; i++) {
        k = order[i]; next_went = went[order[i + 1]]
        if (went[k] < last_ns - span * 1000) continue
        time = next_went - went[k]
        if (time > 400000) continue # between two steps that the host launches
        what = (kind[k] ? kind[k] : "other") " " name[k]
        if (bytes[k]) what = what sprintf(" %.1f MB", bytes[k] / 1e6)
        stream = bytes[k] / (tbs * 1000)
        there = last[k] > went[k] ? last[k] : went[k] # when the last byte had arrived, at the earliest from here
        drain = ends[k] ? ends[k] - (last[k] ? there : ends[k]) : 0
        wait = ends[k] ? next_went - ends[k] : 0
        if (!(what in seen)) first[++kindsn] = what
        seen[what]++
        part["time", what] = part["time", what] time ";"
        part["stream", what] = part["stream", what] stream ";"
        part["ramp", what] = part["ramp", what] (time - stream - drain - wait) ";"
        part["drain", what] = part["drain", what] drain ";"
        part["wait", what] = part["wait", what] wait ";"
        mb[what] += bytes[k] / 1e6
        sum["time", what] += time; sum["stream", what] += stream; sum["drain", what] += drain
        sum["wait", what] += wait; sum["ramp", what] += time - stream - drain - wait
    }
    split("time stream ramp drain wait", parts, " ")
    printf "%-58s %5s", "kernel: threads/shared bytes/grid", "n"
    for (p = 1; p <= 5; p++) printf " %8s", parts[p]
    printf "  | sums:"
    for (p = 1; p <= 5; p++) printf " %8s", parts[p]
    print ""
    for (i = 1; i <= kindsn; i++) {
        w = first[i]
        printf "%-58s %5d", w, seen[w]
        for (p = 1; p <= 5; p++) printf " %8.2f", median(part[parts[p], w]) / 1000
        printf "  |      "
        for (p = 1; p <= 5; p++) { printf " %8.1f", sum[parts[p], w] / 1000; all[p] += sum[parts[p], w] / 1000 }
        print ""
        count += seen[w]
    }
    printf "%-58s %5d %44s  |      ", "all", count, ""
    for (p = 1; p <= 5; p++) printf " %8.1f", all[p]
    print ""
}'
