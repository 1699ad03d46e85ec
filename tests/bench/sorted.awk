# For account.sh, timeline.sh and yard.sh: splits a list at ";" into v[1] to v[n], sorted by the number that each element begins with.
# Returns n.
function sorted(list, v,    n, i, j, t) {
    n = split(list, v, ";")
    if (n && v[n] == "") n--
    for (i = 2; i <= n; i++) {
        t = v[i]
        for (j = i - 1; j > 0 && v[j] + 0 > t + 0; j--) v[j + 1] = v[j]
        v[j + 1] = t
    }
    return n
}
