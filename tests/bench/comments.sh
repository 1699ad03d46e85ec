#!/bin/sh
# comments.sh [FOLDER [SEED]] - prints ten comments of each source folder, chosen at random, for reading.
#
# FOLDER is a checkout (default: this one), SEED a positive integer (default 1). The same folder and seed give the same
# comments with every awk: the generator is Park and Miller's. A comment is a block comment or a run of // lines in a
# .c, .h, .cu or .cuh file; headings ("---- like this ----") are left out. Each is printed as FILE:LINE: TEXT, with the
# code before it on its line, or the first line of code after it.
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "${1:-$here}" || exit 2
files=$(find . -name build -prune -o -name .git -prune -o \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
    -type f -print | sed 's,^\./,,' | LC_ALL=C sort)
[ -n "$files" ] || { echo "comments.sh: no source files in $PWD" >&2; exit 2; }
# shellcheck disable=SC2086  # no source file has a space in its name
LC_ALL=C awk -v seed="${2:-1}" '
function trim(s) { gsub(/[ \t]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }
# the text of a line with string and character literals blanked, so that /* in a literal is no comment
function bare(s,    out, c, q, i) {
    out = ""; q = ""
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        if (q != "" && c == "\\") { out = out "__"; i++; continue }
        if (q != "") { out = out "_"; if (c == q) q = ""; continue }
        if (c == "/" && substr(s, i + 1, 1) ~ /[*\/]/) return out substr(s, i)
        if (c == "\"" || c == "\047") { q = c; c = "_" }
        out = out c
    }
    return out
}
function keep() {
    if (text ~ /----|====/ || length(text) < 12) return
    n[dir]++
    item[dir, n[dir]] = place ": " (code != "" ? code " " : "") text
    after = code == "" ? dir SUBSEP n[dir] : ""
}
FNR == 1 { inside = 0; lines = 0; after = ""; dir = FILENAME; if (!sub(/\/[^\/]*$/, "", dir)) dir = "."
           if (!(dir in n)) { order[++dirs] = dir; n[dir] = 0 } }
{
    s = $0
    if (inside) {
        e = index(s, "*/")
        part = trim(e ? substr(s, 1, e + 1) : s)
        if (part != "*/") sub(/^\* ?/, "", part)
        text = text " " part
        if (e) { inside = 0; keep() }
        next
    }
    t = bare(s)
    b = index(t, "/*"); l = index(t, "//")
    if (l && (!b || l < b)) {
        own = trim(substr(s, 1, l - 1)) == ""
        if (own && lines) { item[dir, n[dir]] = item[dir, n[dir]] " " trim(substr(s, l + 2)); next }
        place = FILENAME ":" FNR; code = trim(substr(s, 1, l - 1)); text = trim(substr(s, l)); keep()
        lines = own && text !~ /----|====/ && length(text) >= 12
        next
    }
    lines = 0
    if (b) {
        place = FILENAME ":" FNR; code = trim(substr(s, 1, b - 1)); text = trim(substr(s, b))
        if (index(substr(t, b), "*/")) keep()
        else inside = 1
        next
    }
    if (after != "" && trim(s) != "") { item[after] = item[after] " | " trim(s); after = "" }
}
function draw(m) { state = state * 16807 % 2147483647; return 1 + state % m }
END {
    for (d = 1; d <= dirs; d++) {
        dir = order[d]
        state = seed * 7919 % 2147483646 + 1
        for (i = 1; i <= length(dir); i++) state = (state * 31 + index("abcdefghijklmnopqrstuvwxyz/_.", substr(dir, i, 1))) % 2147483646 + 1
        if (n[dir] == 0) continue
        printf "== %s (%d of %d)\n", dir, n[dir] < 10 ? n[dir] : 10, n[dir]
        for (i = 1; i <= n[dir]; i++) at[i] = i
        for (i = 1; i <= 10 && i <= n[dir]; i++) {
            j = i - 1 + draw(n[dir] - i + 1)
            k = at[i]; at[i] = at[j]; at[j] = k
            print item[dir, at[i]]
        }
        print ""
    }
}' $files
