#!/bin/bash
# engine/WORKING.md: the files, functions and structs that it names exist. In backquotes, a name with a slash or the ending
# of a source file is a path; NAME() is a function and "struct NAME" a struct, defined in one of the C files that the same
# item or paragraph names, or, where it names none, in any.
cd "$(dirname "$0")/../.." || exit 2
T=$(mktemp -d) || exit 2
trap 'rm -rf "$T"' EXIT
n=0; bad=0
result() { # text, status
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; else echo "not ok $n - $1"; bad=1; fi
}
page=engine/WORKING.md
find README.md .clang-format kernels models engine history repl tests >"$T/files"
grep -E '\.(c|h|cu|cuh)$' "$T/files" >"$T/sources"

# What the sources define, as "FILE NAME()" and "FILE struct NAME": a function begins in column 1 and has a "{" before a ";".
xargs awk '
    FNR == 1 { open = 0 }
    /^[ \t]*struct [a-z_0-9]+ \{/ { print FILENAME, "struct " $2 }
    /^[A-Za-z_]/ { open = !/^(typedef|return|else|case|default)/; text = "" }
    /^[^A-Za-z_ \t{]/ { open = 0 }
    open { text = text " " $0 }
    open && match(text, /[;{]/) {
        if (substr(text, RSTART, 1) == "{" && match(text, /[A-Za-z_0-9]+\(/))
            print FILENAME, substr(text, RSTART, RLENGTH) ")"
        open = 0
    }' <"$T/sources" >"$T/defined"

# Prints each name of a page that does not exist, and counts the names of each kind in FILE.
wrong() { # PAGE FILE
    awk -v page="$1" -v counts="$2" '
        FILENAME ~ /files$/ { exists[$0]; next }
        FILENAME ~ /defined$/ { file = $1; sub(/^[^ ]* /, ""); defined[file, $0]; any[$0]; next }
        function flush(    i, k, found) {
            for (i = 1; i <= n; i++) {
                found = c_files == 0 && name[i] in any
                for (k = 1; k <= c_files; k++) found = found || (c_file[k], name[i]) in defined
                if (!found) print "line " line[i] ": " name[i] " is not defined in " (c_files ? "a file named beside it" : "any file")
            }
            n = c_files = 0
        }
        /^$/ || /^[-*#] / || /^[0-9]+[.] / { flush() }
        {
            rest = $0
            while (match(rest, /`[^`]+`/)) {
                s = substr(rest, RSTART + 1, RLENGTH - 2); rest = substr(rest, RSTART + RLENGTH)
                if (s ~ /[A-Z]/ && s !~ /README|WORKING/ || s ~ /^(make|build\/)/) continue # a pattern such as NAME.c
                if (s ~ /^[a-z_0-9]+\(\)$/ || s ~ /^struct [a-z_0-9]+$/) { name[++n] = s; line[n] = FNR; functions++ }
                else if (s !~ / / && (s ~ /\// || s ~ /\.(c|h|cu|cuh|sh|md)$/)) {
                    paths++
                    if (s ~ /\.(c|h|cu|cuh)$/) c_file[++c_files] = s
                    if (!(s in exists)) print "line " FNR ": " s " does not exist"
                }
            }
        }
        END { flush(); print paths + 0, functions + 0 >counts }' "$T/files" "$T/defined" "$1"
}

wrong "$page" "$T/counts" >"$T/wrong"; sed 's/^/# /' "$T/wrong"
read -r paths functions <"$T/counts"
[ ! -s "$T/wrong" ]; result "what $page names exists: $paths paths, $functions functions and structs" $?
[ "$paths" -ge 40 ] && [ "$functions" -ge 30 ]; result "these are enough to be worth a test" $?

# Misspelled, every one of them is noticed.
sed -E 's/`(struct )?([a-z_0-9]+)(\(\))?`/`\1\2x\3`/g' "$page" >"$T/page.md"; wrong "$T/page.md" "$T/counts" >"$T/wrong"
[ "$(grep -c ' is not defined' "$T/wrong")" = "$functions" ]; result "every misspelled function or struct is noticed" $?
sed -E 's/`([^` ]*)(\/|\.(c|h|cu|cuh|sh|md)`)/`\1x\2/g' "$page" >"$T/page.md"; wrong "$T/page.md" "$T/counts" >"$T/wrong"
[ "$(grep -c ' does not exist' "$T/wrong")" = "$(cut -d ' ' -f 1 "$T/counts")" ]; result "every misspelled path is noticed" $?
printf '1. `kernels/base.c`: `plan_build()`\n\n2. `kernels/base.c`: `xmalloc()`, `buf_add()`, `struct shown`\n3. `plan_build()`\n' >"$T/page.md"
wrong "$T/page.md" "$T/counts" >"$T/wrong"
[ "$(cut -d : -f 1,2 "$T/wrong" | tr '\n' ' ')" = "line 1: plan_build() is not defined in a file named beside it line 3: struct shown is not defined in a file named beside it " ]
result "a function of another file is noticed" $?
grep -qF "($page)" README.md; result "the README points to the page" $?
echo "1..$n"
exit $bad
