#!/bin/bash
# The completions of bash, zsh and fish against the program's own help: for each command the same flags, and for each flag
# with a choice of values the same values. zsh and fish are asked where they are installed.
. "$(dirname "$0")/kit.sh"
ln -s "$AERIE" "$T/aerie"; export PATH=$T:$PATH
run --help
commands=$(sed -n '/^usage/,/^Commands/s/^  \([a-z]*\) .*/\1/p' "$T/out")
run -n run "Hello!"; [ $rc = 0 ]; result "a reply that is not saved" $?
run run "Hello!"; [ $rc = 0 ]; result "a session to complete" $?

# What help lists: "COMMAND --flag", and "COMMAND --flag value" for a choice such as auto|cpu|cuda.
for c in $commands; do
    run help "$c"
    sed -nE 's/^  (-.,|   ) (--[a-z-]+) ?(([a-z0-9]+\|)*[a-z0-9]*).*/\2 \3/p' "$T/out" | while read -r flag values; do
        echo "$c $flag"
        [[ $values != *\|* ]] || for v in ${values//|/ }; do echo "$c $flag $v"; done
    done
done | sort -u >"$T/help"
[ "$(wc -l <"$T/help")" -gt 300 ] && grep -qx 'run --device cuda' "$T/help" && grep -qx 'export --format md' "$T/help"
ok=$? many=$(wc -l <"$T/help"); result "help lists flags and their values ($many)" $ok
awk 'NF == 3 { print $1, $2 }' "$T/help" | sort -u >"$T/choices"

same() { # shell; reads lines as in help. Values of flags for which help lists none (sizes, models) may be anything.
    awk 'NR == FNR { choice[$0] = 1; next } NF < 3 || choice[$1 " " $2]' "$T/choices" - | sort -u >"$T/$1"
    diff "$T/help" "$T/$1" >"$T/out"; local ok=$?
    : >"$T/err"
    result "$1: the flags and values of help, command by command" $ok
}

# ---- bash ----
. repl/share/aerie.bash; result "bash loads the completion" $?
complete_bash() { # word...: the last one is completed
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _aerie
    printf '%s\n' "${COMPREPLY[@]}"
}
{
    for c in $commands; do complete_bash aerie "$c" -- | sed "s/^/$c /"; done
    while read -r c flag; do complete_bash aerie "$c" "$flag" '' | sed "s/^/$c $flag /"; done <"$T/choices"
} | same bash
# a flag that takes a value: no command, flag or session is offered as its value (asked as the function asks); usually
# behind the first two commands that have the flag, which is one row of the table of options
declare -A asked
for c in $commands; do
    run help "$c"
    sed -nE 's/^  (-.,|   ) (--[a-z-]+) [^ ].*/\2/p; s/^  (-[a-zA-Z]), --[a-z-]+ [^ ].*/\1/p' "$T/out" | grep -vx -- --session | while read -r flag; do
        [ "${AERIE_TEST_LONG:-0}" != 0 ] || [ "${asked[$flag]:-0}" -lt 2 ] || continue
        asked[$flag]=$((${asked[$flag]:-0} + 1))
        echo "@ $c $flag"; "$AERIE" --complete "$c" "$flag" ''; [ "$c" != chat ] || "$AERIE" --complete "$flag" ''
    done
done | awk '$1 == "@" { at = $2 " " $3; next } { print at, $1 }' >"$T/values"
awk -v all="$commands last" 'BEGIN { split(all, c); for (i in c) never[c[i]] = 1 } $3 in never || $3 ~ /^(-|:sessions)/' "$T/values" >"$T/out"
[ ! -s "$T/out" ] && [ "$(wc -l <"$T/values")" -gt 100 ]; result "bash: the value of a flag is no command, flag or session" $?
run help run; cp "$T/out" "$T/out2"
sed -nE '/^Settings/,$s/^  ([a-z.]+) (([a-z]+ \| )+[a-z]+)( [^|].*|$)/\1 \2/p' "$T/out" | tr -d '|' | while read -r name values; do
    for v in $values; do echo "$name $v"; done
    complete_bash aerie run -p "$name" = | sed "s/^/@$name /"
    complete_bash aerie run -p "$name" = '' | sed "s/^/%$name /"
done >"$T/settings"
for mark in @ %; do diff <(grep -v '^[@%]' "$T/settings") <(grep "^$mark" "$T/settings" | cut -c2-) || echo "differs: $mark"; done >"$T/out"
[ ! -s "$T/out" ] && grep -qx 'forget oldest' "$T/settings"; result "bash: the values of a setting are those of help" $?
complete_bash aerie run -p '' | sort >"$T/values"; sed -nE '/^Settings/,$s/^  ([a-z][a-z_.]*) .*/\1=/p' "$T/out2" | sort | cmp -s - "$T/values"
result "bash: the names of the settings are those of help" $?
complete_bash aerie diff 1 --with '' | grep -q '^page_size=$'; result "bash: what --with changes" $?
offers() { # title, expected, words
    local title=$1 expected=$2; shift 2
    complete_bash "$@" | tr '\n' ' ' >"$T/out"
    [ "$(cat "$T/out")" = "$expected " ]; result "bash: $title" $?
}
offers "the beginning of a command" "replay" aerie re
offers "a session" "last 1" aerie show ''
offers "the second session of two" "last 1" aerie diff 1 ''
offers "a session behind a flag" "last" aerie replay --check l
offers "an action on the database" "path prune pin" aerie db p
offers "a value behind =" "cuda" aerie run --device = cu
offers "all values behind =" "auto cpu cuda" aerie run --device =
offers "a setting" "top_k= top_p=" aerie run -p top
offers "a command behind a value that is one" "run" aerie --system chat ru
offers "nothing for a path behind =" "" aerie run --db = ''

# ---- zsh, with stubs in place of the functions that show what they are given ----
tool() { PATH=$PATH:/usr/local/bin:/usr/bin:/bin command -v "$1"; }
if zsh=$(tool zsh); then
    cat >"$T/ask.zsh" <<'ZSH'
emulate -L zsh
_describe() { print -rl -- ${(P)4} }
compadd() { shift ${@[(i)--]}; print -rl -- "$@" }
_files() { : }
ask() { words=(aerie "$@") CURRENT=$(($# + 1)); source repl/share/aerie.zsh }
for c in ${=COMMANDS}; do for l in ${(f)"$(ask $c --)"}; do print -r -- $c $l; done; done
while read -r c flag; do for l in ${(f)"$(ask $c $flag '')"}; do print -r -- $c $flag $l; done; done <$T/choices
for l in ${(f)"$(ask show l)"}; do print -r -- SESSION $l; done
for l in ${(f)"$(ask run -p check=)"}; do print -r -- SETTING $l; done
ZSH
    # shellcheck disable=SC2097,SC2098 # T for the program is the script's
    COMMANDS=$commands T=$T "$zsh" -f "$T/ask.zsh" >"$T/zsh.all" 2>"$T/err"
    grep -v '^[A-Z]' "$T/zsh.all" | same zsh
    [ "$(grep '^[A-Z]' "$T/zsh.all" | tr '\n' ' ')" = "SESSION last SESSION 1 SETTING check=off SETTING check=on SETTING check=strict " ]
    result "zsh: a session, the value of a setting" $?
    # compinit takes the file by its first line
    "$zsh" -f -c "mkdir $T/f && cp repl/share/aerie.zsh $T/f/_aerie && fpath=($T/f \$fpath) && autoload -U compinit && compinit -u -d $T/dump &&
        print \$_comps[aerie]" >"$T/out" 2>"$T/err" && [ "$(cat "$T/out")" = _aerie ]
    result "zsh: compinit finds the completion" $?
else
    result "zsh # SKIP not installed" 0
fi

# ---- fish ----
if fish=$(tool fish); then
    cat >"$T/ask.fish" <<'FISH'
source repl/share/aerie.fish
for c in (string split ' ' -- $COMMANDS)
    for l in (complete -C "aerie $c --")
        echo $c (string replace -r '[=\t].*' '' -- $l)
    end
end
while read -l c flag
    for l in (complete -C "aerie $c $flag ")
        echo $c $flag (string replace -r '\t.*' '' -- $l)
    end
end <$T/choices
for l in (complete -C "aerie show l"); echo SESSION (string replace -r '\t.*' '' -- $l); end
for l in (complete -C "aerie db pr"); echo ACTION (string replace -r '\t.*' '' -- $l); end
FISH
    # shellcheck disable=SC2097,SC2098 # T for the program is the script's
    COMMANDS=$(echo $commands) T=$T PATH=$PATH:/usr/bin:/bin "$fish" -N "$T/ask.fish" >"$T/fish.all" 2>"$T/err"
    grep -v '^[A-Z]' "$T/fish.all" | same fish
    grep '^[A-Z]' "$T/fish.all" >"$T/out"; [ "$(tr '\n' ' ' <"$T/out")" = "SESSION last ACTION prune " ]
    result "fish: a session, an action on the database" $?
else
    result "fish # SKIP not installed" 0
fi
plan
