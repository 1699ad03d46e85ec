#!/bin/bash
# Prints a document with its generated parts made new: what stands between a line "<!-- make docs: COMMAND -->" and the
# next "<!-- end -->" becomes COMMAND's output. In a manual page the lines are '.\" make docs: COMMAND' and '.\" end', and
# a Markdown table becomes paragraphs. `make docs` writes the files, tests/e2e/test_docs.sh compares them.
#   tests/docs.sh FILE      AERIE: the program whose output counts (build/aerie)
cd "$(dirname "$0")/.." || exit 2
aerie=${AERIE:-$PWD/build/aerie}
T=$(mktemp -d) || exit 2
trap 'rm -rf "$T"' EXIT
export XDG_CONFIG_HOME=$T XDG_DATA_HOME=$T XDG_STATE_HOME=$T # a user's settings say nothing here

first='<!-- make docs: ' behind=' -->' last='<!-- end -->' roff=
case $1 in *.[1-9]) first='.\" make docs: ' behind='' last='.\" end' roff=1 ;; esac

# Rows of a Markdown table as tagged paragraphs.
to_roff() {
    awk -F ' [|] ' 'NR > 2 {
        name = $1; text = $2
        gsub(/^[|] `|`$/, "", name); gsub(/`/, "", text)
        gsub(/\\[|]/, "|", name); gsub(/\\[|]/, "|", text)
        gsub(/\\/, "\\e", name); gsub(/\\/, "\\e", text); gsub(/-/, "\\-", name); gsub(/"/, "\\(dq", name)
        if (text ~ /^[.]/) text = "\\&" text
        print ".TP\n.B " name "\n" text
    }'
}
part() { # COMMAND WORD...
    if [ -n "$roff" ]; then "$@" | to_roff; else echo; "$@"; echo; fi
}

inside=
while IFS= read -r line || [ -n "$line" ]; do
    [ "$line" = "$last" ] && inside=
    [ -n "$inside" ] || printf '%s\n' "$line"
    [[ $line == "$first"*"$behind" ]] || continue
    command=${line#"$first"}
    read -ra words <<<"${command%"$behind"}"
    case ${words[0]} in
    aerie) words[0]=$aerie ;;
    tests/*) ;;
    *) echo "docs: $1: ${words[0]}: expected aerie or a script below tests/" >&2; exit 2 ;;
    esac
    part "${words[@]}" || exit 1
    inside=$line
done <"$1"
[ -z "$inside" ] || { echo "docs: $1: no $last after $inside" >&2; exit 2; }
