#!/bin/bash
# The generated parts of the documents are what `make docs` makes of them now.
. "$(dirname "$0")/kit.sh"
parts=0
for file in README.md repl/README.md history/README.md engine/README.md tests/README.md tests/bench/*.md repl/share/aerie.1; do
    here=$(grep -cE '^(<!--|\.\\") make docs: ' "$file")
    [ "$here" -gt 0 ] || continue
    parts=$((parts + here))
    tests/docs.sh "$file" >"$T/new" 2>"$T/err"
    [ $? = 0 ] && diff "$file" "$T/new" >"$T/diff"
    ok=$?
    [ $ok = 0 ] || head -n 8 "$T/err" "$T/diff" | sed 's/^/# /'
    result "$file is as 'make docs' writes it ($here parts)" $ok
done
[ $parts -ge 2 ] && grep -q '^\.\\" make docs: aerie help commands' repl/share/aerie.1 && grep -q '^<!-- make docs: aerie help commands' repl/README.md
result "README and manual have the program's command table ($parts generated parts)" $?
# The page of formats has a row for each checkpoint, type and format that the tests go through.
rows() { # as many lines of the page as the test has cases
    sed -nE '/^\} cases\[\]/,/^\};/s/^    \{"([a-z0-9-]+)", .*/\1/p' tests/unit/test_gguf_models.c
    cut -d' ' -f1 tests/golden/packed.txt
    sed -nE '/^\} formats\[\]/,/^\};/s/^    \{"([^"]+)",.*/\1/p' tests/unit/test_coded.c
}
while read -r row; do grep -q "^| ${row}[ ,]" tests/FORMATS.md || echo "$row"; done < <(rows) >"$T/out"
[ "$(rows | wc -l)" -gt 40 ] && [ ! -s "$T/out" ]; result "tests/FORMATS.md has a row for each format and family that the tests know" $?
# Figures say of which weights they are: the head of each table, and the first line of text about another engine.
figures() { sed -n '/^## Figures/,$p' "$1"; }
unnamed() { # FILE: the first lines of tables and of comparisons below "Figures" that name no weights
    figures "$1" | awk '/^\|/ { if (!table && !/weights/) print; table = 1; next } { table = 0 }
        /^Beside / && !/weights/' ; }
[ "$(figures tests/README.md | grep -c '^|---')" -ge 3 ] && figures tests/README.md | sed -n 3p | grep -q '^Weights:' && unnamed tests/README.md >"$T/out" && [ ! -s "$T/out" ]
result "every table of figures says of which weights it is" $?
sed 's/weights/values/' tests/README.md >"$T/old"; [ "$(unnamed "$T/old" | wc -l)" -ge 4 ]
result "a table that does not say it is noticed" $?
# history/README.md tells in words what its stories print: margin and band of one, lengths of the prompts of another.
tr '\n' ' ' <history/README.md >"$T/page"
awk '$1 == "margin" { m = $2 } match($0, /band is [0-9.]+/) { b = substr($0, RSTART + 8, RLENGTH - 8) }
    END { printf "log probabilities were %.3f apart.\nthis model: %.1f, which is %.0f0 times as much\n", m, b, b / m / 10 }' tests/demo/close_call.txt >"$T/says"
awk '/^ +[12]\. a prompt of/ { n[$1] = $5 } END { printf "a prompt of %d tokens whose first %d are cached\n", n["2."], n["1."] }' tests/demo/wrong_token.txt >>"$T/says"
while read -r words; do grep -qF "$words" "$T/page" || echo "# not in history/README.md: $words"; done <"$T/says" >"$T/out"
cat "$T/out"; [ "$(wc -l <"$T/says")" = 3 ] && [ ! -s "$T/out" ]; result "history/README.md tells the numbers that its stories print" $?
# The first page is short, and its links and those of the pages beside the folders lead to files.
lines=$(wc -l <README.md); [ "$lines" -le 200 ]; result "README.md has at most 200 lines ($lines)" $?
links() { grep -oE '\]\([^)#]+' "$1" | sed 's/^](//' | grep -v '^http' | sort -u; }
links=0
for page in README.md */README.md; do
    while read -r to; do links=$((links + 1)); [ -e "$(dirname "$page")/$to" ] || echo "# $page: $to"; done < <(links "$page")
done >"$T/out"
cat "$T/out"; [ $links -ge 15 ] && [ ! -s "$T/out" ]; result "every link of the pages leads to a file ($links)" $?
printf 'a\n<!-- make docs: aerie help commands -->\nstale line\n<!-- end -->\nb\n' >"$T/old"
tests/docs.sh "$T/old" >"$T/new"; ! grep -q stale "$T/new" && [ "$(sed -n '1p;$p' "$T/new" | tr '\n' ' ')" = "a b " ] &&
    grep -q '^| `/help' "$T/new"
result "a stale part is made new, the rest is kept" $?
printf '<!-- make docs: sh -c x -->\n<!-- end -->\n' >"$T/old"
tests/docs.sh "$T/old" >"$T/new" 2>"$T/err"; [ $? = 2 ] && grep -q 'expected aerie or a script' "$T/err"
result "no other command is run" $?
printf '<!-- make docs: aerie help commands -->\nlost\n' >"$T/old"
tests/docs.sh "$T/old" >"$T/new" 2>"$T/err"; [ $? = 2 ] && grep -q 'no <!-- end -->' "$T/err"
result "a part without an end is refused" $?
plan
