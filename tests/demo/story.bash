# story.bash - what the stories of this folder share; sourced, not run: . "$here/story.bash"
# A story prints one screen: commands after "$ ", what they print below. Its text is kept in a file beside it, and differs
# from it only where the program does something else: ids of sessions are written as ID, the model computes the same bits
# on every CPU. With UPDATE=1 the file is written.
aerie=$(realpath "${1:-${AERIE:-$here/../../build/aerie}}")
box=$(mktemp -d) || exit 2
trap 'rm -rf "$box"' EXIT
export XDG_CONFIG_HOME=$box XDG_DATA_HOME=$box XDG_STATE_HOME=$box HOME=$box TERM=dumb LC_ALL=C.UTF-8 NO_COLOR=1
mkdir -p "$box/aerie"; printf "device = cpu\nload = map\nthreads = 1\n" >"$box/aerie/config"
clean() { sed -E 's/\b[0-9A-HJKMNP-TV-Z]{26}\b/ID/g; s/ +$//'; }
chat() { "$aerie" --plain -q "$@" 2>&1; }
shown() { printf '$ aerie'; printf ' %s' "$@"; echo; "$aerie" "$@" 2>&1; }
# told NAME: compares standard input with NAME.txt and prints it; status 1 where it differs
told() {
    clean >"$box/said"; cat "$box/said"
    [ -z "${UPDATE:-}" ] || cp "$box/said" "$here/$1.txt"
    diff "$here/$1.txt" "$box/said" >"$box/diff" && return 0
    echo "!! not as in tests/demo/$1.txt:"; cat "$box/diff"; return 1
}
