#!/bin/bash
# 20 tasks of a newcomer and 20 of an engineer, done with keys in a terminal of 80x24 and of 120x40 cells: prints how many
# keys each took, beside the keys of the whole command typed letter by letter. `make tasks` runs it; it is no part of
# `make test`. Each task waits for what it should have shown; one that does not show it is marked, and the exit code is 1.
#   tests/tasks.sh [FOLDER]     FOLDER: the screens after each task, as text
. "$(dirname "$0")/e2e/kit.sh"
clean() { M kill-server; }
export TEST_WAIT=${TEST_WAIT:-20}
shots=${1:+$(realpath -m "$1")}
[ -z "$shots" ] || mkdir -p "$shots" || exit 2
echo "My dog is called Rex." >"$T/notes.txt"

# task NAME TYPED SHOWN KEYS...: a key is tmux's name of it, or =TEXT, which is typed. TYPED: the command in full; "": the
# task had no other way before. SHOWN: an extended regular expression.
shows_re() { screen | grep -qE -- "$1"; }
declare -A keys typed
names=()
task() {
    local name=$1 full=$2 shown=$3 k n=0; shift 3
    for k in "$@"; do
        case $k in
        =*) text "${k#=}"; n=$((n + ${#k} - 1)) ;;
        *) key "$k"; n=$((n + 1)) ;;
        esac
        sleep 0.12 # as the screen shows it
    done
    until_ok shows_re "$shown" || { n="$n FAILED"; bad=1; }
    [ -z "$shots" ] || screen >"$shots/$at-$(printf '%02d' $((${#typed[@]} + 1)))-${name//[ \/]/_}.txt"
    [ -n "${typed[$name]+set}" ] || names+=("$name")
    typed[$name]=${full:+$((${#full} + 1))}; keys[$at,$name]=$n
}
calm() { # what is open is closed, and the input is empty
    local i
    until_ok eval '! screen | tail -n 1 | grep -q "reading "'
    for i in 1 2 3; do key Escape; sleep 0.08; done
    key C-u; sleep 0.08
}

newcomer() {
    task "ask a question" "" 'step 1\.[1-9]' "=My dog is called Rex." Enter
    task "see the keys" "/help keys" '^ HELP' F1; calm
    task "find a command by its meaning" "/memory" 'weights' C-p =bytes Enter; calm
    task "a message of two lines" "" '^. second' =first C-j =second; calm
    task "the message before, again" "" '^› My dog' Up Up; calm
    task "another reply to the same question" "/regen" 'remember Rex' C-p =reg Enter; calm
    task "copy the reply" "/copy" 'for the terminal' C-x y; calm
    task "find a word in the conversation" "" 'find: rex  [0-9]+ of' C-f =rex Enter; calm
    task "change the randomness" "/set temperature 0" 'temperature = 0' C-p =temp Enter =0 Enter; calm
    task "give the conversation a name" "/title Dogs" 'title: Dogs' C-p =titl Enter =Dogs Enter; calm
    task "read a file into the message" "/read $T/notes.txt" 'notes.txt 22 B' =/rea Tab "=$T/no" Tab Enter; calm
    task "leave the file out again" "/drop notes.txt" 'message, or' C-x d; calm
    task "tell it how to answer" "/system Be brief." 'system prompt set' C-p =sys Enter "=Be brief." Enter; calm
    task "save it as Markdown" "/export md $T/$at.md" "wrote .*md" =/exp Tab =m Tab "=$T/$at.md" Enter; calm
    task "ask what a word means" "/help swa" 'window' "=/h swa" Enter; calm
    task "a new conversation" "/clear" 'ctx 0/' C-p =clea Enter; calm
    task "search all conversations" "/search Rex" 'Rex' =/sea Tab =Rex Enter; calm
    task "list the conversations" "/sessions" 'SESSIONS' F8; calm
    task "go on with one, by a word of its title" "/resume 1" 'My dog is called Rex' C-p =dogs Enter; calm
    task "ask the question differently" "/edit 1" '^› My dog is called Rex' C-p =edi Enter =1 Enter; calm
}

engineer() {
    task "the page map" "/pages" '^(.*│ )?PAGES' F2; key F2; calm
    task "the draft tree" "/tree" 'TREE' F3; key F3; calm
    task "the pools" "/pool" 'POOL ' F5; key F5; calm
    task "one step back, in all views" "" 'AT [0-9.]+' C-x [; key C-x; key .; calm
    task "to a step by its number" "/at 1.2" 'AT 1\.2' C-p =1.2 Enter; key C-x; key .; calm
    task "why a draft was rejected" "/why" 'WHY|why' F7; key F7; calm
    task "the tokens of a word" "/tokens" 'WORD' C-x t F6; key F6; calm
    task "the keys of a pane" "" 'KEYS OF POOL' F5 Escape ?; key Escape; sleep 0.1; key F5; calm
    task "find a text in a pane" "" 'find: swa.*1 of' F5 Escape / =swa Enter; calm; key F5; calm
    task "pause where a turn begins" "/phase" 'pauses where it begins' C-p =phase Enter; calm
    text "Count to nine."; key Enter; wait_for 'PAUSED'; calm
    task "show a value at each pause" "/display node.q" 'node\.q = ' C-p =disp Enter =node.q Enter; calm
    task "go on by a step" "/step" 'PAUSED 2\.1' C-p =step Enter; calm
    task "and by another" "/step" 'PAUSED 2\.2' Enter; calm
    task "a step with another draft" "/what-if draft.topk=8" 'topk' C-p =wif Enter =draft.topk=8 Enter; calm
    task "stop where nothing is accepted" "/break accept==0" 'breakpoint [0-9]+: accept==0' C-p =break Enter =accept==0 Enter; calm
    task "to the end of the turn" "/finish" 'REC|LIVE' C-p =fin Enter; until_ok hides PAUSED; calm
    task "acceptance by kind" "/accept kind" 'kind' =/acc Tab =k Tab Enter; calm
    task "the plan of the last pass" "/plan" 'plan|verify' C-p =plan Enter Enter; calm
    task "check pools and sequences" "/check" 'checked' C-p =check Enter; calm
    task "a picture of the tree" "/screenshot tree $T/$at.svg" 'wrote .*svg' =/scr Tab =tr Tab "=$T/$at.svg" Enter; calm
}

for wh in "80 24" "120 40"; do
    set -- $wh; at=$1x$2
    rm -rf "$XDG_DATA_HOME" "$XDG_STATE_HOME"
    open_screen $wh -p max_tokens=40; M set-option -s set-clipboard on
    newcomer
    rm -rf "$XDG_DATA_HOME" "$XDG_STATE_HOME"
    open_screen $wh -p max_tokens=40
    text "My dog is called Rex."; key Enter; until_ok eval 'screen | tail -n 1 | grep -q "step 1\.[1-9]"'; calm
    engineer
done

printf '%-42s %7s %7s %14s\n' task 80x24 120x40 'typed in full'
i=0
for name in "${names[@]}"; do
    [ $i = 20 ] && echo
    i=$((i + 1))
    printf '%-42s %7s %7s %14s\n' "$name" "${keys[80x24,$name]}" "${keys[120x40,$name]}" "${typed[$name]:--}"
    a=$((a + ${keys[80x24,$name]%% *})); b=$((b + ${keys[120x40,$name]%% *}))
    [ -z "${typed[$name]}" ] || { c=$((c + typed[$name])); d=$((d + ${keys[80x24,$name]%% *})); }
done
printf '%-42s %7s %7s\n' sum "$a" "$b"
echo "those with a command: $d keys; typed in full $c"
exit "$bad"
