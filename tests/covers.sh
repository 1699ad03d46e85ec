#!/bin/bash
# Which tests cover which product file: builds with gcc's coverage, runs the tests, and writes a table with, for each file, how
# many of its lines they ran, and the tests that ran most of them; then the files of which no test ran a line.
#   tests/covers.sh [NAME...]     build/cover-cpu/covers.md, of all tests (about half an hour on 2 cores) or those of these names,
#                                 as for tests/run.sh
# The table is no file of the repository: nothing would keep it true.
# A process that is killed or leaves by _exit() reports no lines, and files of kernels/cuda are not in the build.
cd "$(dirname "$0")/.." || exit 2
build=build/cover-cpu data=$PWD/build/cover-cpu/cover-data
product='^(kernels|models|engine|history|repl)/'
table=$build/covers.md
make -s MODE=cover CUDA=0 tests || exit 2
rm -rf "$data" && mkdir "$data" && find "$build" -name '*.gcda' -delete || exit 2
COVER=$data tests/run.sh "$build" "$@" | grep -E ' failed |passed,'

# Lines "FILE <tab> line numbers" of the product files: those with code, and, of the counts in a folder, those that ran.
lines_of() { # pattern of a count; gcov's arguments
    local count=$1; shift
    gcov -t "$@" 2>/dev/null | awk -F : -v count="$count" -v product="$product" '
        $2 + 0 == 0 && $3 == "Source" { file = $4 ~ product ? $4 : ""; next }
        file != "" && $1 ~ count && !seen[file, $2 + 0]++ { at[file] = at[file] "," ($2 + 0) }
        END { for (f in at) print f "\t" substr(at[f], 2) }'
}
mapfile -t notes < <(find "$build" -path "$data" -prune -o -name '*.gcno' -print)
lines_of '[0-9#=]' "${notes[@]}" | awk -F '\t' '{ print $1 "\t\t" $2 }' >"$data/all"
for test in "$data"/*/; do
    root=$test$PWD/$build
    [ -d "$root" ] || continue
    mapfile -t counts < <(cd "$root" && find . -name '*.gcda')
    for f in "${counts[@]}"; do ln -sf "$PWD/$build/${f%.gcda}.gcno" "$root/${f%.gcda}.gcno"; done
    lines_of '[0-9]' "${counts[@]/#./$root}" | awk -F '\t' -v test="$(basename "$test")" '{ print $1 "\t" test "\t" $2 }'
done >>"$data/all"

# The first test named is the one that ran most lines of the file (of equal ones the test that ran fewest lines elsewhere), each
# next one adds most to them; at least a twentieth of the file's lines.
{
    echo "# Which test covers which file"
    echo
    echo "Written by \`tests/covers.sh\`: the lines with code of each file, how many of them the tests ran, and up to three tests with"
    echo "the share that each adds. Files of which less than 60 % ran are in bold type."
    echo
    echo "| file | lines | ran | tests |"
    echo "|---|---:|---:|---|"
    sort -t "$(printf '\t')" -k 1,1 -k 2,2 "$data/all" | awk -F '\t' -v rest="$data/all" '
        BEGIN { while ((getline line <rest) > 0) { split(line, part, "\t"); total[part[2]] += split(part[3], n, ",") } }
        function best(   t, k, n, i, most, which) {
            for (t in lines) {
                k = split(lines[t], i, ","); n = 0
                for (; k > 0; k--) n += !((i[k]) in had)
                if (n > most || n == most && which != "" && total[t] < total[which]) { most = n; which = t }
            }
            gain = most + 0
            return which
        }
        function row(   k, i, t, n, named, all) {
            if (file == "" || code == 0) return
            for (t in lines) { k = split(lines[t], i, ","); for (; k > 0; k--) if (!((i[k]) in ran)) { ran[i[k]]; all++ } }
            for (n = 0; n < 3; n++) {
                t = best()
                if (gain == 0 || n > 0 && gain * 20 < code) break
                k = split(lines[t], i, ","); for (; k > 0; k--) had[i[k]]
                named = named (n ? ", +" : "") int(100 * gain / code + 0.5) " % " t
            }
            k = all < 0.6 * code ? "**" : ""
            printf "| %s%s%s | %d | %d %% | %s |\n", k, file, k, code, int(100 * all / code + 0.5), named
        }
        $1 != file { row(); split("", lines); split("", had); split("", ran); file = $1; code = 0 }
        $2 == "" { code = split($3, n, ","); next }
        { lines[$2] = $3 }
        END { row() }'
} >"$table"
none=$(sed -n 's/^| [*]*\([a-z][^ *]*\)[*]* | [0-9]* | 0 % | *|$/\1/p' "$table" | xargs)
printf '\nNo test ran a line of: %s\n' "${none:-none}" | tee -a "$table" | tail -n 1
echo "$table: $(grep -c '^| [*a-z]*/' "$table") files, $(grep -c '^| [*]' "$table") of them below 60 %"
