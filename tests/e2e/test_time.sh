#!/bin/bash
# The time axis of the full screen: stepping through the past in all panes, the cursor on words, the
# timeline, layouts and the mouse; at 80x24 and 200x60. Waits on conditions, never on time.
. "$(dirname "$0")/kit.sh"
if ! command -v tmux >/dev/null; then echo "ok 1 - the time axis # SKIP tmux is not installed"; exit 0; fi
clean() { M kill-server; }
term=screen-256color; infocmp tmux-256color >/dev/null 2>&1 && term=tmux-256color
reports() { [ "$(M display -p '#{mouse_any_flag}')" = "$1" ]; }
prompt() { until_ok eval 'screen | grep -v "^$" | tail -n 1 | grep -qx "[$]"'; } # of the shell: tmux cuts its blank off
open_at() { # width height flags
    M kill-server; until_ok no_server
    M new-session -d -x "$1" -y "$2" "exec env TERM=$term PS1='\$ ' bash --norc --noprofile"; prompt
    text "cd $PWD; clear; $AERIE $3"; key Enter; wait_for 'ctx '
}
say() { # message turn words: until the reply has ended; while it runs, the input line says when a message is sent
    text "$1"; key Enter
    until_ok eval "screen | grep -qE 'step $2\.[0-9]+.*REC' && shows '$3' && shows '› message, or /help'"
}
mouse() { # act x y, cells from 1: press, release, drag, up, down
    local b=0 f=4d
    case $1 in release) f=6d ;; drag) b=32 ;; up) b=64 ;; down) b=65 ;; esac
    # shellcheck disable=SC2046
    M send-keys -H 1b 5b 3c $(printf '%s;%s;%s' "$b" "$2" "$3" | od -An -tx1) $f
}
at() { screen | tail -n 1 | grep -oE 'AT [0-9]+\.[0-9]+' | cut -d' ' -f2; }
is_at() { [ "$(at)" = "$1" ]; }
wait_at() { until_ok is_at "$1"; }
live() { until_ok eval '[ -z "$(at)" ]'; }
third() { # the third word of the reply, its column and its row, from 1
    screen | awk '/^› Tell/ { reply = 1; next } reply && $1 != "" && $1 != "│" { print $3, index($0, " " $3 " ") + 1, NR; exit }'
}

# ---- 80 x 24 ----
open_at 80 24 ""
check "no timeline before the first step" hides "◷"
say "What is a page table?" 1 "order."
say "What is a draft model?" 2 "check."
last=$(screen | tail -n 1 | grep -oE 'step 2\.[0-9]+' | cut -d' ' -f2); newest=${last#2.}
check "a timeline stands above the input, a cell a step" until_ok eval 'screen | grep -qE "◷ │.*│.* [0-9]+ steps"'
key C-x; key '['; check "Ctrl-X [ stops at the newest step" wait_at "$last"
check "the status line names both" wait_for "LIVE $last"
check "the timeline has the keys" shows "the timeline has the keys"
key '['; check "[ goes a step back" wait_at "2.$((newest - 1))"
key '{'; wait_at 2.1; key '{'; check "{ goes to the turn before" wait_at 1.1
# the status line's facts of a step, from the log
facts() { printf '/at %s\n/stats\n' "$1" | "$AERIE" replay last --plain 2>/dev/null | sed -n '/^status/{s/.*\(ctx .* MAL [^ ]*\).*/\1/; s/ ·//g; p;}'; }
facts=$(facts 1.1); [[ $facts == "ctx "*"full "*"MAL -"* ]]; check "a recording tells context, pools and MAL of a step" test $? = 0
check "so does the status line, of the step that is shown" until_ok eval 'screen | tail -n 1 | sed "s/ ·//g" | grep -qF -- "$facts "'
check "what comes after is dimmed" until_ok eval 'screen -e | tr "\n" " " | grep -qP "38;5;247m(\x1b\[49m)?[^\x1b]* page table lists"'
key '}'; check "} goes to the next turn" wait_at 2.1
key End; check "End goes to the last step" wait_at "$last"
key Home; check "Home goes to the first step" wait_at 1.1
key Right; check "arrows step, too" wait_at 1.2
check "the words of the step are underlined" until_ok eval 'screen -e | grep -qP "\x1b\[[0-9;]*\b4m *(The|page|table|lists)"'
key .; check "the dot goes back to now" live
key '['; key ']'; check "and so does ] behind the newest step" live
key Escape; wait_for "message, or /help"
key C-x; key t; check "Ctrl-X t puts a cursor on the last word" wait_for "the words have the keys"
check "and the address goes to its step" until_ok eval '[ -n "$(at)" ]'
key Enter; check "Enter shows the word's facts below the text" eval 'wait_for "WORD " && wait_for "position " && shows "What is a draft model?"'
key Home; check "Home goes to the first word" wait_for 'WORD   "The"'
check "which the prompt's pass made" wait_for "the prompt's pass"
key Right; check "an arrow goes to the next word" wait_for 'WORD   "page"'
check "which was drafted" wait_for "accepted at depth 1, rank 1"
check "its step is shown" is_at 1.2
key Down; check "Down goes to a word of the row below" until_ok eval 'shows "WORD   \"" && ! shows "WORD   \"page\""'
key Home; wait_for 'WORD   "The"'; key Right; wait_for 'WORD   "page"'; wait_at 1.2
key ']'; check "] goes to the next step" wait_at 1.3
key '['; check "[ goes back" wait_at 1.2
text "my token"; check "a message that is typed here reaches the input whole" eval 'wait_for "› my token" && hides "the words have the keys"'
key C-u; text "/tree"; key Enter; check "/tree shows the word's step" wait_for "TREE   step 1.2"
text "/at"; key Enter; check "/at tells the step" wait_for "at 1.2; the newest step is $last"
text "/at 2.1"; key Enter; check "/at T.S goes there" wait_at 2.1
text "/at 9.9"; key Enter; check "a step that does not exist is one line" wait_for "there is no step 9.9 yet"
text "/at live"; key Enter; check "/at live returns" live
key C-x; key '['; key '['; wait_for "the timeline has the keys"; key Escape; wait_for "message, or /help"
say "What is a slot?" 3 "REC"; check "a message is about now" live
key F3; key F4; check "two panes stand one above the other" eval 'wait_for "TREE" && wait_for "STEPS"'
check "the Steps pane marks the step that is shown" until_ok eval 'screen | grep -qE "▶3\.[0-9]+ "'
key Escape; wait_for "has the keys"; key Up; key Up; check "and moves along it" until_ok eval '[ -n "$(at)" ] && screen | grep -qF "▶$(at) "'
key F4; wait_gone "STEPS"; key F3; wait_gone "TREE"; key Escape; check "with no pane open, Esc moves nothing" shows "› message, or /help"
key F1; wait_for HELP; key C-f; text 'a bar: a turn begins'; check "F1 explains the keys of time" wait_for 'find: a bar: a turn begins▏  1 of 1'
key Escape; wait_gone 'find:'; key Escape; wait_gone HELP
text "/bye"; key Enter; prompt; text clear; key Enter; text "$AERIE -c"; key Enter
check "a resumed session shows its newest step, and says where it stands" wait_at "$(printf '/at\n' | "$AERIE" replay last --plain 2>/dev/null | grep -oE '3\.[0-9]+')"
facts=$(facts "$(at)"); check "with the context, pools and MAL of that step" until_ok eval 'screen | tail -n 1 | sed "s/ ·//g" | grep -qF -- "$facts "'
check "and its timeline" until_ok eval 'screen | grep -qE "◷ │.*│.*│.* [0-9]+ steps"'
key F2; check "its map" eval 'wait_for "PAGES 3." && wait_for "read" && ! shows "the context is empty"'; key F2; wait_gone "PAGES"
key C-x; key t; key Home; wait_at 1.1; key Enter; check "and the tokens behind its words" eval 'wait_for "WORD " && wait_for "position " && ! shows "no step of this process"'
key F6; wait_gone "WORD "; text "/at live"; key Enter; live
text "/set timeline off"; key Enter; key C-l; wait_for "timeline = off"; text "/at live"; key Enter
check "/set timeline off hides it" wait_gone "◷"
text "/bye"; key Enter; prompt

# ---- 200 x 60, mouse, layouts ----
open_at 200 60 ""
say "Tell me a story about a fox." 1 "REC"; until_ok eval 'screen | grep -qE "[0-9]+ steps"'
text "/layout wide"; key Enter
check "/layout wide: pages over tree over steps" eval 'wait_for "STEPS" && shows "PAGES" && shows "TREE"'
check "the layout is kept in a private file" eval 'grep -qx "layout wide" "$T/state/aerie/layout" && [ "$(stat -c %a "$T/state/aerie/layout")" = 600 ]'
row=$(screen | grep -n "◷" | cut -d: -f1)
mouse press 5 "$row"; mouse release 5 "$row"; check "a click on the timeline goes to that step" wait_at 1.3
mouse press 4 "$row"; mouse drag 6 "$row"; check "a drag scrubs" wait_at 1.4
mouse drag 8 "$row"; check "further" wait_at 1.6; mouse release 8 "$row"
check "the panes show that step" eval 'wait_for "PAGES 1.6" && wait_for "TREE   step 1.6" && wait_for "▶1.6"'
node=$(($(screen | grep -n "TREE   step 1.6" | cut -d: -f1) + 4)); mouse press 150 "$node"
check "a click on a node of the tree explains it" wait_for "WHY  step 1.6  node 3"; mouse release 150 "$node"
mouse down 8 "$row"; check "the wheel on it steps" wait_at 1.7
# shellcheck disable=SC2046 # two words
set -- $(third); mouse press "$2" "$3"; mouse release "$2" "$3"; key Enter
check "a click selects a word" wait_for "WORD   \"$1\""
key Enter; wait_gone "WORD "
text "type"; check "and does not keep what is typed then" eval 'wait_for "› type" && hides "the words have the keys"'
key C-u
# shellcheck disable=SC2046 # two words
set -- $(screen | awk '{ i = index($0, "1.2  "); if (i) { print 150, NR; exit } }')
mouse press "$1" "$2"; check "a click selects a step in the Steps pane" wait_at 1.2; mouse release "$1" "$2"
# The rows move with each letter: only the list of both letters has three commands with a t behind the slash.
key C-p; wait_for "FIND A COMMAND"; text ti; until_ok eval 'shows "› ti▏" && [ "$(screen | grep -c "command  /t")" = 3 ]'
found=$(screen | grep -n "command  /timing" | cut -d: -f1); mouse press 10 "$found"; mouse release 10 "$found"; key Enter
check "a click chooses a row of the palette" wait_for "TIMING"
mouse up 20 10; mouse down 20 10
side() { screen | grep -m 1 PAGES | sed 's/│.*//' | awk '{ print length($0) }'; }
mouse press 150 1; mouse release 150 1; wait_for "has the keys"
# shellcheck disable=SC2034 # for eval
before=$(side)
key '<'; key '<'
check "< makes the panes wider" until_ok eval '[ "$(side)" -lt "$before" ]'
key '+'; check "and the file knows it" until_ok grep -qE "^rows pages" "$T/state/aerie/layout"
key Escape; wait_gone "has the keys"; text "/at live"; key Enter; live
text "/layout chat"; key Enter; check "/layout chat: the conversation and its timeline" eval 'wait_gone "PAGES" && shows "◷"'
text "/layo"; key Tab; text "de"; key Tab; key Enter; check "/layout debug, completed" eval 'wait_for "TREE" && wait_for "WORD"'
text "/layout x"; key Enter; check "an unknown layout names those there are" wait_for "chat, pages, debug or wide"
key C-x; key c; check "Ctrl-X c tints words by acceptance" until_ok eval 'screen -e | grep -qP "\x1b\[[0-9;]*38;5;(151|114|78|222)m"'
text "/set mouse off"; key Enter; wait_for "mouse = off"
check "/set mouse off: the terminal reports nothing" until_ok reports 0
text "/bye"; key Enter; prompt
text clear; key Enter; wait_gone "ctx"; text "$AERIE"; key Enter; wait_for "ctx "
text "What is a slot?"; key Enter
check "the layout chosen last opens again" eval 'wait_for "TREE" && wait_for "STEPS"'
until_ok eval 'screen | grep -qE "step 1\.[0-9]+.*REC"'
check "the mouse is on" until_ok reports 1
kill -SEGV "$(pgrep -P "$(M display -p '#{pane_pid}')" -x "$(basename "$AERIE")")"
check "and off after a crash" until_ok reports 0
text clear; key Enter; text "$AERIE --no-mouse -n"; key Enter; wait_for "ctx "
check "--no-mouse leaves it off" reports 0
key C-d; prompt
plan
