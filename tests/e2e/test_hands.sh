#!/bin/bash
# What hands do in a chat: copying to the terminal's clipboard (here tmux's buffer), an earlier message back in the input,
# Enter for the last stepping command, names that fingers know; another drafter or model between two turns.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }

# ---- in lines: the text is the answer ----
lines "My dog is called Rex." "/copy" "/copy message 1" "/copy code" "/copy message 7" "/edit" "/q" | feed --plain -q
[ $rc = 2 ] && [ "$(grep -c "^I will remember Rex the dog" "$T/out")" = 2 ] && grep -qx 'My dog is called Rex.' "$T/out"
result "/copy without a screen prints a reply, a message" $?
grep -q 'reply 1 has no code block' "$T/err" && grep -q 'no turn 7' "$T/err" && grep -q '/edit needs the full screen' "$T/err"
result "what there is not is said in a line" $?
lines /private "Hello!" "/copy" | feed --plain -q; [ $rc = 0 ] && [ "$(sed -n 2p "$T/out")" = "$(sed -n 3p "$T/out")" ]; result "of the newest turn without a log, too" $?
lines "Hello!" "/copy" "/exit" | feed --json -q; grep -q '^{"command":"copy","result":{"text":"' "$T/out"; result "and in JSON" $?
printf 'Say:\n```\none\n```\nand\n~~~ c\ntwo\n  three\n~~~\n' >"$T/blocks"
lines "Hello!" /bye | feed --plain -q; sql "update turn set text=readfile('$T/blocks') where role='reply' and id=(select max(id) from turn where role='reply')" 2>/dev/null
lines "/resume last" "/copy code" "/copy code 1" "/copy code 3" | feed --plain -q
[ "$(tail -n 3 "$T/out")" = $'two\n  three\none' ] && grep -q 'no code block 3' "$T/err"; result "/copy code takes the last block, or one by number" $?

# ---- another drafter ----
story=("My dog is called Rex." "Count to nine." "What is my dog called?")
lines "${story[@]}" /bye | feed --plain -q; cp "$T/out" "$T/plain"
lines "${story[0]}" "/draft ngram" "${story[1]}" "/draft $T" "/draft none" "${story[2]}" "/draft draft" "Hello!" /draft /bye | feed --plain -q
[ $rc = 3 ] && diff <(grep -vE '^(draft:|no draft|Hello|DRAFT|rate|[* ] )' "$T/out") "$T/plain" >/dev/null; result "/draft: replies do not depend on the drafter" $?
[ "$(wc -l <"$T/err")" = 1 ] && grep -q "^aerie: $T" "$T/err"; result "a folder without a draft is refused in a line, and the chat goes on" $?
grep -qE '^\* draft +eagle3 +0\.[0-9]+ +[1-6]\.[0-9]+ ' "$T/out" && grep -qE '^  ngram +ngram' "$T/out" && grep -qE '^  none +- +- +- +[0-9]+ ' "$T/out"
result "/draft lists the drafters with what each did, and marks the one in use" $?
[ "$(sql "select group_concat(coalesce(m.dir,'none'), ' ') from run left join model m on m.id=draft_id where session_id=(select max(id) from session)" | sed 's|[^ ]*/||g')" = "draft ngram none draft" ]
result "the log has a run of each drafter" $?
run show last; [ "$(grep -E '^(turn|draft:) ' "$T/out" | sed 's|[^ ]*/||' | tr '\n' ';')" = "turn 1;turn 2;draft: ngram;turn 3;draft: none;turn 4;draft: draft;" ]; result "show names the drafter where it changes" $?
run replay last --check; [ $rc = 0 ] && grep -qx 'equal: 4 turns, [0-9]* steps' "$T/out"; result "replay --check over three switches" $?
run replay last --with draft=ngram; [ $rc = 0 ]; result "and with one drafter instead" $?
run diff last "$(sql "select number from session order by number desc limit 1 offset 1")"; grep -q '^a .* 4 turns' "$T/out" && grep -q '3 turns' "$T/out" && ! grep -q 'a bug' "$T/out"
result "diff with the session without switches finds no difference but its end" $?
lines "/resume last" "/accept drafter" "/stats" "/draft" | feed --json -q
grep -q '^{"command":"accept","result":\[{"drafter":"[^"]*/draft","cycles":[0-9]*,.*{"drafter":"ngram","cycles":' "$T/out" && grep '^{"command":"draft"' "$T/out" | grep -q '"name":"none","path":"none","in_use":false,"steps":[0-9]*,"tokens":[0-9]*,'
result "/accept drafter counts each, also from the log of another process" $?
lines "/set draft.topk 4" "${story[1]}" "/draft ngram" "/set draft.topk" "/set draft.shape 3-2-7" "Hello!" /stats "/draft draft" "/set draft.nodes" /bye | feed --plain -q
[ "$(grep -oE '^draft.(topk|nodes) +[0-9]+' "$T/out" | tr -s ' ' | tr '\n' ';')" = "draft.topk 4;draft.nodes 7;" ]; result "/draft keeps the shape of the trees" $?
grep -qE 'reused 0 of [0-9]+ prompt tokens: .* draft switched$' "$T/out"; result "/stats says why the conversation was computed again" $?
[ "$(sql "select group_concat(value, ' ') from (select value from v_settings where session=(select max(id) from session) and name like 'draft.%' and name<>'draft.window' order by turn, name)")" = "6 5-4-6 5 4 7 3-2-7 3 2" ]
result "the log's shape and its parts agree" $?
lines "${story[0]}" "/draft ngram" "${story[2]}" /bye | feed --plain -q -n; [ $rc = 0 ] && [ "$(sed -n '$p' "$T/out")" = "$(sed -n '$p' "$T/plain")" ]
result "without a log the conversation goes on, too" $?

# ---- another model ----
cp -r models/nestling "$T/second"
lines "${story[0]}" "/model $T/second" "${story[2]}" "/model $T" "/model nestling" "Hello!" /model /bye | feed --plain -q
[ $rc = 3 ] && [ "$(grep -c '^the session before is saved' "$T/out")" = 2 ] && grep -qxF "$(sed -n '$p' "$T/plain")" "$T/out"
result "/model: a new session goes on with the conversation" $?
[ "$(wc -l <"$T/err")" = 1 ] && grep -q '^\* nestling' "$T/out"; result "what is no model is refused in a line; /model marks the one in use" $?
[ "$(sql "select count(*) from session where parent is not null")" = 2 ]; result "each switch begins a session with a parent" $?
run replay last --check; [ $rc = 0 ] && grep -qx 'equal: 3 turns, [0-9]* steps' "$T/out"; result "replay --check opens each model in turn" $?
echo >>"$T/second/target/tokenizer.json" # another vocabulary, as far as digests say
lines "${story[0]}" "/model $T/second" "/tree 1.2" "/at 1.2" "${story[2]}" "/accept turn" "/draft ngram" "Hello!" /bye | feed --plain -q; [ $rc = 1 ] && [ "$(grep -c 'turn 1 has the tokens of another model' "$T/err")" = 2 ] &&
    [ "$(grep -cE '^ +[12] +[0-9]+ +[0-9]+' "$T/out")" = 1 ]; result "steps of another vocabulary are not shown as this model's" $?
run replay last --check; [ $rc = 0 ] && grep -qx 'equal: 3 turns, [0-9]* steps' "$T/out"; result "and their replies are given as text, also in a replay" $?

# ---- sets of settings ----
lines "/preset warm" "/set temperature 0.7" "/set top_p 0.9" "/preset save warm" "/set temperature 0" "/set top_p 1" "/preset save exact" "/preset save exact" "/preset warm" "Hello!" \
    "/preset exact" "Hello!" /preset "/preset save ../x" "/preset delete exact" /preset /bye | feed --plain -q
[ $rc = 2 ] && grep -qx 'preset warm: temperature 0.7, top_p 0.9' "$T/out" && grep -qx 'preset exact: temperature 0, top_p 1' "$T/out" && grep -qx 'preset exact replaced' "$T/out"; result "/preset takes over what differs" $?
[ "$(grep -c '^  exact  ' "$T/out")" = 1 ] && [ "$(grep -c '^  warm  .*temperature 0.7.*top_p 0.9' "$T/out")" = 2 ]; result "lists and deletes them" $?
[ "$(grep -c . "$T/err")" = 2 ] && grep -q 'no preset warm' "$T/err" && grep -qF '"../x" is no name' "$T/err"; result "refuses what is no name, and one that is not there" $?
run replay last --check; [ $rc = 0 ]; result "a session with presets is replayed" $?
[ "$(stat -c '%a %n' "$XDG_CONFIG_HOME/aerie/presets/"* | cut -c1-4)" = "600 " ] && ! grep -qE '^(chunk|forget)' "$XDG_CONFIG_HOME/aerie/presets/warm"
result "a preset is a private file without what suits the device" $?
lines "/preset warm" "/set top_p" /bye | feed --plain -q; grep -q '^top_p *0.9' "$T/out"; result "another process takes it over" $?
printf 'top_p=0.8\ntemperature=x\n' >"$XDG_CONFIG_HOME/aerie/presets/warm"; lines "/preset warm" "/set top_p" /bye | feed --plain -q
grep -q 'preset warm: line 2: temperature cannot be "x"' "$T/err" && grep -q '^top_p *1 ' "$T/out"; result "a damaged one changes nothing" $?
ln -s nowhere "$XDG_CONFIG_HOME/aerie/presets/lost"; lines "/preset lost" /bye | feed --plain -q
grep -q '^aerie: cannot open .*/presets/lost: No such file' "$T/err"; result "a link that leads nowhere is not called missing beside its own name" $?; rm "$XDG_CONFIG_HOME/aerie/presets/lost"

# ---- on the screen ----
rm -rf "$XDG_STATE_HOME"; open_screen 80 24; check "the first time, the screen names the keys worth knowing" shows 'Ctrl-P finds every command · F1 explains'
text /stats; key Enter; wait_for 'MAL'; open_screen 120 40; check "and never again" hides 'Ctrl-P finds'; M set-option -s set-clipboard on
buffer() { M show-buffer; }
text "My dog is called Rex."; key Enter; until_ok eval 'screen | tail -n 1 | grep -q "step 1\.[1-9]"'
text /copy; key Enter; wait_for 'for the terminal'; check "/copy: the reply is in the clipboard" eval '[[ $(buffer) == "I will remember Rex the dog."* ]]'
key C-x y; check "Ctrl-X y does the same" until_ok eval '[ "$(screen | grep -c "for the terminal")" = 2 ]'
key F5; wait_for 'POOL'; key C-x o; key C-x y; wait_for 'the pane copied'; check "of a pane: its rows" eval 'buffer | head -n 1 | grep -q POOL'
key F5; wait_gone 'POOL '
key C-x t; key C-x y; wait_for 'copied to the'; check "of a word: its token ids" eval '[[ $(buffer) =~ ^[0-9]+(\ [0-9]+)*$ ]]'
key Escape; wait_gone 'the words have'; text "/edit 99"; key Enter; wait_for 'turn 99 is not in the context, which has turn'
text "/edit 1"; key Enter; wait_for 'goes on before turn 1'
check "/edit: the message is in the input, the context is empty" eval 'screen | tail -n 2 | head -n 1 | grep -q "› My dog is called Rex" && screen | tail -n 1 | grep -q "ctx 0/"'
key C-u; text "My cat is called Tom."; key Enter; until_ok eval 'screen | tail -n 1 | grep -q "step 1\.[1-9]"'
check "what is sent is a turn of a copy" eval '[ "$(sql "select count(*) from session where parent is not null")" = 4 ] && shows "› My cat is called Tom."'
text /phase; key Enter; wait_for 'pauses where it begins'; text "Count to nine."; key Enter; wait_for 'PAUSED 2.0'
text "/display drafted*2"; key Enter; check "/display: a value now" wait_for '1: drafted*2 = unknown'
text "/display token"; key Enter; wait_for '2: token = none'
text /step; key Enter; wait_for 'PAUSED 2.1'; check "at each pause" until_ok eval 'screen | tail -n 9 | grep -qE "^  1: drafted\*2 = [0-9]+$" && screen | tail -n 9 | grep -q "^  2: token = \"1\"$"'
text "/undisplay 1"; key Enter; wait_for 'display 1 is gone'; text "/delete 2"; key Enter
check "/delete is for what pauses" wait_for '/undisplay 2 removes it'
text /undisplay; key Enter; wait_for 'nothing is displayed now'; text /display; key Enter; check "/undisplay removes all" wait_for '/display pool.swa.free shows it'
text /step; key Enter; wait_for 'PAUSED 2.2'; key Enter; check "Enter: the next step" until_ok shows 'PAUSED 2.3'
key Enter; check "and again" until_ok shows 'PAUSED 2.4'
text /copy; key Enter; check "/copy in the middle of a reply: what there is of it" wait_for 'reply so far, '
check "is in the clipboard" eval '[[ $(buffer) == [0-9A-Z]* && $(buffer) != "I will"* ]]'
text /continue; key Enter; until_ok hides PAUSED

printf 'word %.0s' {1..40000} >"$T/long"; M load-buffer "$T/long"; M paste-buffer -p; wait_for 'word word'; key Enter
check "a message is refused" wait_for 'tokens holds at most'
key Up; check "and Up brings it back, though it is too long for the history" until_ok eval 'screen | tail -n 3 | grep -q "word word"'
key C-c; until_ok hides 'word word'

# ---- the palette ----
key C-p; check "Ctrl-P: everything that has a name" wait_for 'FIND A COMMAND'
row() { screen | sed -n "$((2 + $1))p" | sed 's/  *$//'; }
check "what was typed last is first" eval '[[ $(row 1) == *"command  /continue "* && $(row 2) == *"command  /copy "* ]]'
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
# ---- pictures ----
text "/screenshot $T/all.svg"; key Enter; wait_for 'wrote'; text "/screenshot pool $T/pool.txt"; key Enter; wait_for 'pool.screen.txt'
! grep -qvE '^<[^<>]+>([^<>]*</text>)?$' "$T/all.svg" && ! grep -qE '&[^agl]' "$T/all.svg" && [ "$(tail -n 1 "$T/all.svg")" = '</svg>' ]
result "/screenshot FILE.svg is well-formed" $?
grep -q '>there are no breakpoints' "$T/all.svg" && ! grep -q '/screenshot' "$T/all.svg"; result "with what the screen showed, without the command" $?
grep -q '^POOL   step' "$T/pool.screen.txt" && grep -q '^draft ' "$T/pool.screen.txt" && [ "$(stat -c %a "$T/pool.screen.txt")" = 600 ]
result "/screenshot PANE FILE.txt: all rows of a pane that is not open" $?
text "/screenshot $T/all.svg"; key Enter; check "no file is replaced" wait_for 'exists already'
text "/screenshot $T/all.png"; key Enter; until_ok test -s "$T/all.png"
number() { tail -c +$(($1 + 1)) "$T/all.png" | head -c 4 | od -An -tu4 --endian=big | tr -d ' '; } # at this byte
wide=$((120 * 12 + 40)) high=$((40 * 24 + 40)) chunks=0 at=8; while [ $at -lt "$(stat -c %s "$T/all.png")" ]; do
    bytes=$(number $at); tail -c +$((at + 5)) "$T/all.png" | head -c $((4 + bytes)) >"$T/chunk"; at=$((at + 12 + bytes))
    [ "$(gzip <"$T/chunk" | tail -c 8 | od -An -N4 -tu4 | tr -d ' ')" = "$(number $((at - 4)))" ] && chunks=$((chunks + 1))
    [ "$(head -c 4 "$T/chunk")" != IDAT ] || { printf '\x1f\x8b\x08\0\0\0\0\0\0\3'; tail -c +7 "$T/chunk"; printf '\0\0\0\0'; } | gzip -dc >"$T/pixels" 2>"$T/err"
done
[ "$chunks $(number 16) $(number 20) $(stat -c %s "$T/pixels")" = "4 $wide $high $((high * (wide + 1)))" ]
result "/screenshot FILE.png: gzip finds the CRC-32 of each chunk, and all pixels" $?
pixels() { od -An -v -tu1 -w12 -j $((($1 * 24 + 20 + $2) * (wide + 1) + 21)) -N 12 "$T/pixels" | tr -d ' '; } # LINE ROW, of its first cell
paper=000000000000 rule=$(pixels 36 11)
[ "$(pixels 0 0) $(pixels 36 10) $(pixels 36 12) $(pixels 36 13)" = "$paper $paper $rule $paper" ] && [ "$rule" != $paper ]
result "the line above the input is one in the picture" $?
text "/screenshot x.gif"; key Enter; check "there are three formats" wait_for 'ends in .svg, .png or .txt'

# ---- the finder ----
key C-f; text "TOM"; check "Ctrl-F: the newest match and how many there are" until_ok eval 'screen | grep -qE "find: TOM▏  ([0-9]+) of \1  "'
key Enter; wait_for 'n next'; key n; check "n goes to the next, behind the last to the first" wait_for 'find: TOM  1 of'
key N N; check "N goes back" until_ok eval '[[ $(screen) =~ "find: TOM  "([0-9]+)" of "([0-9]+) ]] && [ ${BASH_REMATCH[1]} = $((BASH_REMATCH[2] - 1)) ]'
key /; text x; check "/ types on" wait_for 'find: TOMx▏  not there'
key Escape; wait_gone 'find:'; text nothing; check "Esc ends it; then n is a letter" until_ok shows '› nothing'
key C-u C-f; text cat; wait_for "find: cat▏"; key Enter; wait_for 'n next'; text hello
check "so does any other key, which is typed" until_ok eval 'shows "› hello" && hides find:'
key C-u F5; wait_for 'POOL '; key Escape; wait_for '? keys'; key '?'; check "? in a pane: its keys" wait_for 'KEYS OF POOL'
key Escape; wait_gone 'KEYS OF'; key /; text swa; check "/ finds in the pane" wait_for 'find: swa▏  1 of '
key Escape; wait_gone 'find:'; key Escape; wait_gone 'has the keys'; key F5; wait_gone 'POOL '
key F1; wait_for HELP; key C-f; text 'checkpoints gave'; check "and in the help" wait_for 'find: checkpoints gave▏  1 of 1'
key Escape; wait_gone 'find:'; key Escape; wait_gone 'HELP'
# ---- tables beside a pane ----
beside() { screen | sed -n 's/│.*//; \|^› '"$1"'|,$p'; } # what the command printed
key F4; wait_for 'STEPS   '
text "/tokens 0 9"; key Enter; check "/tokens has as many columns as there is room for" wait_for 'left out for want of room: id, p, rival'
check "in a line a token" eval '[ "$(beside /tokens | grep -cE "^ +[0-9] \".*\" +prompt +[0-9]+ +[0-9]+ +[0-9]+ *$")" = 10 ]'
text /draft; key Enter; wait_for 'ngram or none switches'
check "/draft: a line a drafter" eval '[ "$(beside /draft | grep -cE "^  (  block  dflash|  ngram  ngram|  none|\* draft  eagle3 .* [0-9]+) *$")" = 4 ]'
text "/top 1.2.0"; key Enter; wait_for 'p: of the target'; check "/top: a line a token" eval '[ "$(beside /top | grep -cE "^ +1 \".*\" +[01]\.[0-9]+ +\".*\" +[01]\.[0-9]+  (accepted|rejected) *$")" = 1 ]'
text "/steps 3"; key Enter; wait_for 'STEPS  the latest 3 of'
check "/steps: a line a step, with the tokens that fit" eval '[ "$(beside /steps | grep -cE "^ +2\.[0-9]+  spec +[0-9]+ +[0-9]+/5 +[0-9.]+ \"[^│]*\" *$")" = 3 ]'
key F4; wait_gone 'STEPS   '

text /wif; key Tab; check "Tab knows letters, too" until_ok shows '› /what-if'; key C-u
text "/draft n"; key Tab; check "and drafters" until_ok eval 'shows "from the context; no weights" && shows "a token a step"'; key Escape C-u
text "/break draf"; key Tab; check "and what a condition names" until_ok shows '› /break drafted'; key Escape C-u
several() { screen | sed -n 's/^ *\(reply [1-3] of 3\) *$/\1/p; s/^ *\([0-9][0-9]* tokens, [a-z_]*\) *$/\1/p' | tr '\n' ' '; }
text "/n 3 What is my dog called?"; key Enter; check "/n: the replies one below the other" until_ok eval '[[ "$(several)" =~ ^"reply 1 of 3 "([0-9]+" tokens, end ")"reply 2 of 3 "([0-9]+" tokens, end ")"reply 3 of 3 "([0-9]+" tokens, end ")$ ]]'
text "/draft ngram"; key Enter; check "/draft on the screen" until_ok shows 'draft: ngram'
text "/model $T/second"; key Enter; check "/model on the screen" until_ok shows 'the session before is saved'
text "/model "; key Tab; check "Tab lists models" until_ok eval 'shows "in use" && shows "the bundled one"'; key Escape C-u
text "Hello!"; key Enter; check "and the chat goes on" until_ok eval 'screen | tail -n 1 | grep -q "step 3\.[1-9]"'
text /q; key Enter; check "/q leaves" until_ok no_server
plan
