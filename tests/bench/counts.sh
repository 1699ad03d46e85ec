#!/bin/sh
# Prints the structure figures of a checkout: how large its folders, files and functions are, includes against the arrows,
# circles between files (of a build in BUILD or build/release-cpu), and in how many places each rule is written down.
#   tests/bench/counts.sh [CHECKOUT [MOVES]]
# MOVES: lines "old<TAB>new" for a checkout from before files were moved: its includes are judged as if it had the present
# layout. For the commit before the sources were sorted into folders:
#   git diff -M --diff-filter=R --name-status COMMIT^ COMMIT | cut -f2-
here=$(cd "$(dirname "$0")/../.." && pwd)
moves=${2:+$(cd "$(dirname "$2")" && pwd)/$(basename "$2")}
cd "${1:-.}" || exit 2
list=$(mktemp -d) || exit 2
trap 'rm -rf "$list"' EXIT
find kernels models engine history repl -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort >"$list/product"
find tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.sh' \) | sort >"$list/tests"

echo "== files and lines per folder (product)"
xargs wc -l <"$list/product" | awk '$2 != "total" { d = $2; sub(/\/[^\/]*$/, "", d); f[d]++; n[d] += $1; if ($1 > most[d]) most[d] = $1 }
    END { for (d in f) { printf "%-26s %3d files %6d lines, longest file %4d\n", d, f[d], n[d], most[d]; files += f[d]; lines += n[d] }
          printf "%-26s %3d files %6d lines\n", "~ all", files, lines }' | sort
xargs wc -l <"$list/tests" | awk '$2 != "total" { f++; n += $1; if ($1 > most) most = $1 } END { printf "%-26s %3d files %6d lines, longest file %4d\n", "tests", f, n, most }'

# A function begins where "{" stands alone in column 1 and ends at "}" in column 1; its signature counts.
echo "== functions (product): lines, signature included; functions of one line are not counted"
xargs awk 'FNR == 1 { sig = ""; at = 0; inside = 0 }
    inside { if (/^}/) { print FNR - at + 1, name, FILENAME; inside = 0; sig = "" } next }
    /^\{$/ { name = sig; gsub(/__[a-z_]+__ *(\([^()]*(\([^()]*\))*[^()]*\))?/, "", name)
             if (match(name, /[A-Za-z_][A-Za-z_0-9]* *\(/)) { name = substr(name, RSTART, RLENGTH); sub(/ *\($/, "", name); inside = 1 } next }
    /^[A-Za-z_]/ && !/;$/ && !/^(struct|union|enum|extern)[^(]*\{?$/ { if (sig == "" || /^(static|V_FN|[a-z_]+ [*]*[a-z_0-9]+\()/) { sig = $0; at = FNR } else sig = sig " " $0; next }
    /^ / && sig != "" { sig = sig " " $0; next }
    { sig = "" }' <"$list/product" | sort -n >"$list/functions"
awk '{ n[NR] = $1; name[NR] = $2 " in " $3 } END { printf "%d functions: median %d, 90th percentile %d, longest %d (%s)\n", NR, n[int((NR + 1) / 2)], n[int(NR * 0.9 + 0.5)], n[NR], name[NR] }' "$list/functions"
awk '$1 > 60 { n++ } END { printf "%d functions are longer than 60 lines\n", n }' "$list/functions"

# A function that writes JSON (jput_*) and text (say_*, sheet_*, out_printf) states its facts twice; so do two functions of which a
# third one calls the one for JSON (*_json) or the one for text (*_text, view_*). print.c is the printer of both. Not counted:
# a drawing of a struct that JSON lists (view_tree: the branches of a draft tree; view_pages: the page map), and a sentence that
# JSON carries as a string, too (may_text, reuse_text).
echo "== facts stated twice (product)"
grep -E "^repl/(app|cmd|cli|compare)/.*\\.c$" "$list/product" | xargs awk 'FNR == 1 { inside = 0; sig = "" }
    inside { if (/^}/) { if (j && t) print "both", FILENAME ": " sig; else if (jc && (t || tc) || j && tc) print "choose", FILENAME ": " sig
                         inside = 0; sig = ""; next }
             if (/jput_[a-z]+\(|JPUT_K?IN\(/) j = 1
             if (/[a-z]_json\(/ && !/cli_json\(|fault_json\(/) jc = 1
             if (/(say_line|say_text|sheet_(add|addn|printf|quote|line|lines)|out_printf)\(/) t = 1
             if (/[a-z]_text\(|view_(pool|stats|accept|gauges|blocks|why)\(/ && !/(say|print|sqlite3_column|attached|may|reuse)_text\(/) tc = 1
             next }
    /^\{$/ { inside = 1; j = jc = t = tc = 0; next }
    /^[A-Za-z_]/ && !/;$/ { sig = $0 }' >"$list/twice"
printf '%d functions print both text and JSON, %d choose between a function for text and one for JSON\n' \
    "$(grep -c '^both' "$list/twice")" "$(grep -c '^choose' "$list/twice")"
[ -z "$VERBOSE" ] || sed 's/^/    /' "$list/twice" | cut -c1-150
grep -hA400 '^typedef bool cmd_fn(\|^    bool (\*run)(struct app' repl/cmd/commands.h repl/cmd/cmd.h 2>/dev/null | sed '/;/q' | tr -d '\n' |
    awk '{ n = gsub(/,/, ","); printf "%d parameters in cmd_fn\n", n + 1 }'

echo "== includes against the arrows (tests/e2e/test_layers.sh of the checkout that this script is in)"
mkdir "$list/tree" "$list/tree/tests" "$list/tree/tests/e2e"
tar cf - kernels models engine history repl | tar xf - -C "$list/tree"
cp "$here/tests/e2e/test_layers.sh" "$list/tree/tests/e2e/"
if [ -n "$moves" ]; then
    awk -F '\t' '/\.(h|cuh)\t/ { print "s|\"" $1 "\"|\"" $2 "\"|" }' "$moves" >"$list/sed"
    while IFS="$(printf '\t')" read -r old new; do
        [ -f "$list/tree/$old" ] && mkdir -p "$list/tree/$(dirname "$new")" && mv "$list/tree/$old" "$list/tree/$new"
    done <"$moves"
    find "$list/tree" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -exec sed -i -f "$list/sed" {} +
fi
BUILD=none "$list/tree/tests/e2e/test_layers.sh" | grep -E '^[a-z_/0-9.]+:[0-9]+:.*#' >"$list/against"
printf '%d includes\n' "$(wc -l <"$list/against")"; sed 's/^/    /' "$list/against" | head -n 20

build=${BUILD:-build/release-cpu}
if [ -d "$build/kernels" ]; then
    echo "== circles between files (tests/circles.sh, in $build)"
    "$here/tests/circles.sh" "$build" >"$list/circles"
    printf '%d circles\n' "$(wc -l <"$list/circles")"; awk '{ printf "    %d files: %s\n", NF, substr($0, 1, 110) }' "$list/circles"
fi

# One line a rule: NAME | folders | what counts as one place (extended regular expression on one line of code) | files that
# are left out, with the reason in the last column. A place is one matching line; lines of comments do not count. The checker
# (check.c) is a second implementation on purpose and is left out.
echo "== places where a rule is written down"
count() { # name, folders, pattern, left out, what a place is
    # shellcheck disable=SC2086
    grep -rnE --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' -- "$3" $2 | grep -vE '^[^:]+:[0-9]+: *(/?\*|//)' |
        grep -vE "^($4):" >"$list/places"
    files=$(cut -d: -f1 "$list/places" | sort -u | wc -l)
    printf '%-20s %2d places in %2d files  %s\n' "$1" "$(wc -l <"$list/places")" "$files" "$5"
    [ -z "$VERBOSE" ] || sed -E 's/^([^:]*:[0-9]*): */      \1: /' "$list/places" | cut -c1-150
}
w='[A-Za-z_.>-]*window'
count 'window visibility' 'kernels engine' "(- ?$w \\+ 1|>= ?$w ?\\?|$w - 1\\b|- [a-z>.-]*reach\\b.*window)" '.*/?(check|bugs_try|faults)\.c' 'first visible key, or keys before a query, computed from W'
count 'tree extents' 'kernels engine' 'first - prefix|first > prefix' '.*/?(check|faults)\.c' 'expanded columns that the window hides, computed'
count 'candidate index' 'kernels engine' '(level - 2|steps - 1).*topk ?\* ?topk' '-' 'index or number of candidates, computed from level, topk'
count 'acceptance walk' 'kernels engine' 'parent(\[[a-z]+\])? == (node|at)\b.*token|\bwalk\(const struct k_accept|void.* accept_kernel\(|tree_accept\(&|tree_accept\(t, choice' '.*/?check\.c' 'walks (host, CPU operation, device) and calls of the host'"'"'s walk'
count 'commit tail' 'engine' '\bkv_commit\(&' '.*/?(golden|redraft|bench_model)\.c' 'calls of kv_commit() from cycles'
count 'record filling' 'engine' '\brec(->|\.)page_digest = ' '-' 'assignments to a record'\''s page_digest'
count 'router' 'kernels' '^(void|__global__|static void)[^;]*\b(cuda_route|cuda_tile_route|cuda_prefill_route|route_many|route)\([^;]*$' '-' 'functions that choose experts (CPU: 1)'
count 'activation packer' 'kernels' '^(__global__|__device__|static|template)?.*\bpack_[a-z]+\((const |struct |float )[^;]*$' '.*/?(cpu|vec|linear|math)[a-z_]*\.[ch]' 'functions that store packed activation rows'
count 'barrier wrapper' 'kernels' 'mbarrier\.init' '-' 'wrappers of mbarrier.init'
count 'JSON writer' 'kernels models engine history repl' '\\\\u%04x", ?(\(unsigned\))?c\)|(buf_[a-z]+\(|\?) ?.*"[^ ]*\\"[a-z_%]+\\":' '.*/?synthetic\.c' 'escapes of strings, and keys formatted by hand'
count 'UTF-8 decoder' 'kernels models engine history repl' 'utf8proc_iterate\(|c < 0xC2 \? 0|s\[0\] >> 5 == 6|p\[0\] & 15u\) << 12' '-' 'functions that decode bytes to code points'
count 'hex printer' 'kernels models engine history repl' '"%02x"|digit\[.*>> ?4\]' '-' 'places that print bytes as hexadecimal digits'
count 'SHA-256' 'kernels models engine history repl' '0x428a2f98' '-' 'implementations, by their first constant'
