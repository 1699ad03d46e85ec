#!/bin/sh
# Prints the circles between the C files of the product in the current folder, one a line: files that all reach each other
# by the symbols that one defines and another uses. BUILD is a build folder; an object whose source is gone does not count.
#   tests/circles.sh BUILD
build=${1%/}
find kernels models engine history repl -name '*.c' | sort | while IFS= read -r c; do
    [ ! -f "$build/${c%c}o" ] || echo "$build/${c%c}o"
done | { xargs nm || echo failed; } | awk -v build="$build/" '
    /^failed$/ { failed = 1 }
    /:$/ { file = substr($0, length(build) + 1, length($0) - length(build) - 2) "c"; all[file] }
    NF == 3 && $2 ~ /^[BCDRTVW]$/ { home[$3] = file }
    NF == 2 && $1 == "U" { name[++n] = $2; user[n] = file }
    # Marks in `seen` the files that v reaches along the edges `way`.
    function reach(v, way, seen,    next_of, k) {
        seen[v]
        split(way[v], next_of, " ")
        for (k in next_of) if (next_of[k] in all && !(next_of[k] in seen)) reach(next_of[k], way, seen)
    }
    function remain(list,    x, k) {
        split(list, x, " ")
        for (k in x) if (x[k] in all) return 1
        return 0
    }
    END {
        for (i = 1; i <= n; i++) {
            from = user[i]; to = home[name[i]]
            if (to == "" || to == from || (from, to) in edge) continue
            edge[from, to]; uses[from] = uses[from] " " to; used[to] = used[to] " " from
        }
        do { # a file of a circle uses a file that remains, and such a file uses it
            removed = 0
            for (f in all) if (!remain(uses[f]) || !remain(used[f])) { delete all[f]; removed = 1 }
        } while (removed)
        for (f in all) if (!(f in told)) {
            split("", down); split("", up); line = ""
            reach(f, uses, down); reach(f, used, up)
            for (g in down) if (g in up) { told[g]; line = line " " g }
            if (line != " " f) print substr(line, 2)
        }
        exit failed
    }'
