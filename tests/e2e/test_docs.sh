#!/bin/bash
# The generated parts of the documents are what `make docs` makes of them now.
. "$(dirname "$0")/kit.sh"
parts=0
for file in README.md tests/bench/*.md repl/share/aerie.1; do
    here=$(grep -cE '^(<!--|\.\\") make docs: ' "$file")
    [ "$here" -gt 0 ] || continue
    parts=$((parts + here))
    tests/docs.sh "$file" >"$T/new" 2>"$T/err"
    [ $? = 0 ] && diff "$file" "$T/new" >"$T/diff"
    ok=$?
    [ $ok = 0 ] || head -n 8 "$T/err" "$T/diff" | sed 's/^/# /'
    result "$file is as 'make docs' writes it ($here parts)" $ok
done
[ $parts -ge 2 ] && grep -q '^\.\\" make docs: aerie help commands' repl/share/aerie.1 && grep -q '^<!-- make docs: aerie help commands' README.md
result "README and manual have the program's command table ($parts generated parts)" $?
# Figures say of which weights they are: the head of each table, and the first line of text about another engine.
figures() { sed -n '/^## Figures/,/^## Safety/p' "$1"; }
unnamed() { # FILE: the first lines of tables and of comparisons below "Figures" that name no weights
    figures "$1" | awk '/^\|/ { if (!table && !/weights/) print; table = 1; next } { table = 0 }
        /^Beside / && !/weights/' ; }
[ "$(figures README.md | grep -c '^|---')" -ge 3 ] && figures README.md | sed -n 3p | grep -q '^Weights:' && unnamed README.md >"$T/out" && [ ! -s "$T/out" ]
result "every table of figures in the README says of which weights it is" $?
sed 's/weights/values/' README.md >"$T/old"; [ "$(unnamed "$T/old" | wc -l)" -ge 4 ]
result "a table that does not say it is noticed" $?
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
