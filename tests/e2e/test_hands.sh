#!/bin/bash
# What hands do in a chat: copying to the terminal's clipboard (here tmux's buffer), an earlier message back in the input,
# Enter for the last stepping command, names that fingers know.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }

# ---- in lines: the text is the answer ----
lines "My dog is called Rex." "/copy" "/copy message 1" "/copy code" "/copy message 7" "/edit" "/q" | feed --plain -q
[ $rc = 2 ] && [ "$(grep -c "^A dog named Rex" "$T/out")" = 2 ] && grep -qx 'My dog is called Rex.' "$T/out"
result "/copy without a screen prints a reply, a message" $?
grep -q 'reply 1 has no code block' "$T/err" && grep -q 'no turn 7' "$T/err" && grep -q '/edit needs the full screen' "$T/err"
result "what there is not is said in a line" $?
lines "Hello!" "/copy" "/exit" | feed --json -q; grep -q '^{"command":"copy","result":{"text":"' "$T/out"; result "and in JSON" $?
printf 'Say:\n```\none\n```\nand\n~~~ c\ntwo\n  three\n~~~\n' >"$T/blocks"
lines "Hello!" /bye | feed --plain -q; sql "update turn set text=readfile('$T/blocks') where role='reply' and id=(select max(id) from turn where role='reply')" 2>/dev/null
lines "/resume last" "/copy code" "/copy code 1" "/copy code 3" | feed --plain -q
[ "$(tail -n 3 "$T/out")" = $'two\n  three\none' ] && grep -q 'no code block 3' "$T/err"; result "/copy code takes the last block, or one by number" $?

# ---- on the screen ----
open_screen 120 40; M set-option -s set-clipboard on
buffer() { M show-buffer; }
text "My dog is called Rex."; key Enter; until_ok eval 'screen | tail -n 1 | grep -q "step 1\.[1-9]"'
text /copy; key Enter; wait_for 'for the terminal'; check "/copy: the reply is in the clipboard" eval '[[ $(buffer) == "A dog named Rex"* ]]'
key C-x y; check "Ctrl-X y does the same" until_ok eval '[ "$(screen | grep -c "for the terminal")" = 2 ]'
key F5; wait_for 'POOL'; key C-x o; key C-x y; wait_for 'the pane copied'; check "of a pane: its rows" eval 'buffer | head -n 1 | grep -q POOL'
key F5; wait_gone 'POOL '
key C-x t; key C-x y; wait_for 'copied to the'; check "of a word: its token ids" eval '[[ $(buffer) =~ ^[0-9]+(\ [0-9]+)*$ ]]'
key Escape; wait_gone 'the words have'; text "/edit 1"; key Enter; wait_for 'goes on before turn 1'
check "/edit: the message is in the input, the context is empty" eval 'screen | tail -n 2 | head -n 1 | grep -q "› My dog is called Rex" && screen | tail -n 1 | grep -q "ctx 0/"'
key C-u; text "My cat is called Tom."; key Enter; until_ok eval 'screen | tail -n 1 | grep -q "step 1\.[1-9]"'
check "what is sent is a turn of a copy" eval '[ "$(sql "select count(*) from session where parent is not null")" = 1 ] && shows "› My cat is called Tom."'
text /phase; key Enter; wait_for 'pauses where it begins'; text "Count to nine."; key Enter; wait_for 'PAUSED 2.0'
text /step; key Enter; wait_for 'PAUSED 2.1'; key Enter; check "Enter: the next step" until_ok shows 'PAUSED 2.2'
key Enter; check "and again" until_ok shows 'PAUSED 2.3'
text /continue; key Enter; until_ok hides PAUSED

# ---- the palette ----
key C-p; check "Ctrl-P: everything that has a name" wait_for 'FIND A COMMAND'
row() { screen | sed -n "$((2 + $1))p" | sed 's/  *$//'; }
check "what was typed last is first" eval '[[ $(row 1) == *"command  /continue "* && $(row 2) == *"command  /step "* ]]'
text wif; check "three letters find a command" until_ok eval '[[ $(row 1) == *"command  /what-if NAME=VALUE... "* ]]'
key C-u; text tmprt; check "a setting" until_ok eval '[[ $(row 1) == *"setting  temperature "* ]]'
key C-u; text safety; check "a topic of the help" until_ok eval '[[ $(row 1) == *"help     safety "* ]]'
key C-u; text rex; check "a session, by its title" until_ok eval '[[ $(row 1) == *"session  #"*"My dog is called Rex."* ]]'
key C-u; text 1.2; check "a step" until_ok eval '[[ $(row 1) == *"step     1.2 "*" accepted"* ]]'
key C-u; text qqqq; check "and says when there is none" wait_for 'nothing has these letters'
key Escape; wait_gone 'FIND A'; text "half a mess"; key C-p; wait_for 'FIND A'; text tree; wait_for '/tree'; key Escape
check "Esc leaves everything as it was" until_ok shows '› half a mess'
key C-p; wait_for 'FIND A'; text temp; until_ok eval '[[ $(row 1) == *temperature* ]]'; key Enter
check "Enter puts a line that takes more into the input" until_ok shows '› /set temperature'
key C-u; key Up; check "what stood there is the line before" until_ok shows '› half a mess'
key C-u; key C-p; wait_for 'FIND A'; text brks; until_ok eval '[[ $(row 1) == *"/breaks"* ]]'; key Enter
check "and runs one that is complete" wait_for 'there are no breakpoints'
key Up; check "Up brings it back" until_ok shows '› /breaks'; key C-u
text /wif; key Tab; check "Tab knows letters, too" until_ok shows '› /what-if'; key C-u
text /q; key Enter; check "/q leaves" until_ok no_server
plan
