#!/bin/bash
# Cycles and joules of a prompt's products, aerie's kernel beside cuBLASLt's and CUTLASS's, as a table (yard.cu says how they
# are measured). Needs a GPU whose energy NVML counts.
#   make yard                                          builds for this machine's GPU, and measures every shape in 4 minutes
#   tests/bench/yard.sh BUILD [OPTION...] [SHAPE...]   with BUILD/tests/bench/yard; --help lists options and shapes. RAW=FILE
#                                                      keeps its lines
#   tests/bench/yard.sh --table FILE...                the table of such lines
#   tests/bench/yard.sh --headers DIR                  the headers of CUTLASS, in a new folder (make does it)
# AERIE_GPU_AS=8.0 measures the tiles of mma.sync beside CUTLASS's kernels for 8.0. A machine without a GPU builds the program
# with `make CUDA=1 build/release-cuda/tests/bench/yard`. us, kcycles and mJ are those of one launch: medians of the windows,
# +- their median absolute deviation if there are several.
set -o pipefail
usage() { sed -n '4,8p' "$0" >&2; exit 2; }

headers() { # DIR
    venv=$(mktemp -d) && trap 'rm -rf "$venv"' EXIT || return
    echo "  FETCH nvidia-cutlass" >&2
    python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check --no-deps nvidia-cutlass==4.2.0.0 &&
        mkdir -p "$1.new" && cp -r "$venv"/lib/python3*/site-packages/cutlass_library/source/{,tools/util/}include/. "$1.new" &&
        mv "$1.new" "$1"
}

table() { # lines of yard.cu; others are printed as they are
    awk -F '\t' "$(cat "$(dirname "$0")/sorted.awk")"'
    function middle(list,    n, v) { n = sorted(list, v); return (v[int((n + 1) / 2)] + v[int((n + 2) / 2)]) / 2 }
    function spread(list, m,    n, v, i, off) {
        n = split(list, v, ";") - 1
        for (i = 1; i <= n; i++) off = off (v[i] > m ? v[i] - m : m - v[i]) ";"
        return middle(off)
    }
    function grouped(v,    s) {
        s = sprintf("%.0f", v)
        return length(s) > 3 ? substr(s, 1, length(s) - 3) "," substr(s, length(s) - 2) : s
    }
    function digits(v) { return v >= 1000 ? grouped(v) : sprintf(v >= 100 ? "%.0f" : "%.1f", v) }
    function both(list,    m) {
        m = middle(list)
        return digits(m) (list ~ /;./ ? sprintf(" +- %.1f %%", 100 * spread(list, m) / m) : "")
    }
    NF != 8 { print; next }
    {
        k = $1 " | " $2 " | " $3 " | " $4
        if (!(k in windows)) order[++n] = k
        windows[k]++
        us[k] = us[k] $5 ";"; mhz[k] = mhz[k] $6 ";"; kcycles[k] = kcycles[k] $5 * $6 / 1000 ";"
        mj[k] = mj[k] $7 ";"; watts[k] = watts[k] $8 ";"
    }
    END {
        if (n) print "| shape | rows | kernel | launches | windows | us | MHz | kcycles | mJ | W |"
        if (n) print "|---|---|---|---|---|---|---|---|---|---|"
        for (i = 1; i <= n; i++) {
            k = order[i]
            printf "| %s | %d | %s | %s | %s | %s | %s |\n", k, windows[k], both(us[k]), grouped(middle(mhz[k])),
                   both(kcycles[k]), both(mj[k]), grouped(middle(watts[k]))
        }
    }' "$@"
}

case $1 in
--headers) [ $# = 2 ] || usage; headers "$2" ;;
--table) [ $# -ge 2 ] || usage; shift; table "$@" ;;
'' | -*) usage ;;
*) program=$1/tests/bench/yard; shift
   [ -x "$program" ] || { echo "there is no $program: make CUDA=1 $program" >&2; exit 2; }
   "$program" "$@" | tee "${RAW:-/dev/null}" | table ;;
esac
