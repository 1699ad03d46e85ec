#!/bin/bash
# The full screen as its user meets it: the real program in tmux, keys in, the screen out. Waits on
# conditions, never on time. Needs $AERIE and tmux; files go to a private folder.
. "$(dirname "$0")/kit.sh"
if ! command -v tmux >/dev/null; then echo "ok 1 - the full screen # SKIP tmux is not installed"; exit 0; fi
clean() { M kill-server; }

mock() { [ -n "$MOCK" ]; } # over a backend without optional views: test_tui_mock.sh
resize() { M resize-window -x "$1" -y "$2"; }
pid() { pgrep -P "$(M display -p '#{pane_pid}')" -x "$(basename "$AERIE")"; }

term=screen-256color; infocmp tmux-256color >/dev/null 2>&1 && term=tmux-256color
shell() { # width height: a fresh shell in a fresh pane
    M kill-server; until_ok no_server
    M new-session -d -x "$1" -y "$2" "exec env TERM=$term PS1='\$ ' bash --norc --noprofile"
    wait_for '$'
    text "cd $PWD; clear"; key Enter
}
run() { # flags: starts the program in the shell and waits for its status line
    text "stty -a >$T/before; ${env:-} $AERIE $1; echo \"left \$?\"; stty -a >$T/after"; key Enter
    wait_for 'ctx '
}
left() { until_ok eval "screen | grep -q '^left ${1:-[0-9]}'"; }
restored() { # the terminal is as it was: modes, main screen, cursor
    until_ok test -s "$T/after" && cmp -s "$T/before" "$T/after" &&
        [ "$(M display -p '#{alternate_on}#{cursor_flag}')" = 01 ]
    local ok=$?; rm -f "$T/after"; return $ok
}
paste_file() { M load-buffer "$1"; M paste-buffer -p; }

# a copy of the bundled model that never ends a reply, for everything that happens meanwhile
mkdir -p "$T/endless"
for f in "$PWD"/models/nestling/target/*; do ln -s "$f" "$T/endless/"; done
for f in config generation_config; do
    rm "$T/endless/$f.json"
    tr -d '\n' <"models/nestling/target/$f.json" |
        sed 's/"eos_token_id": *\(\[[^]]*\]\|[0-9]*\)/"eos_token_id": 3/' >"$T/endless/$f.json"
done
endless="-m $T/endless --draft models/nestling/draft --raw -p temperature=1 -p seed=5"
counted='step 1\.[1-9]' many='step 1\.[0-9]{2,}' # in the status line: a reply has begun, and goes on
# shellcheck disable=SC2034 # for eval
mock && counted='turn 1 ' many='more more more more'

# ---- chat, panes, commands ----
shell 120 30
M pipe-pane -o "cat >$T/bytes"
run ""
check "starts with a greeting" shows "Ctrl-P finds every command"
text "What is a page table?"; key Enter
check "the message is marked" wait_for "› What is a page table?"
check "a reply arrives and the step is counted" until_ok eval 'screen | grep -qE "$counted"'
check "the session is recorded" shows "REC"
text "/qqzz"; key Tab; check "where no command has the letters, that is said" wait_for "nothing to complete"
key C-u; text "/sta"; key Tab; wait_for "/stats"; key Enter
check "Tab completes a command, and it runs" wait_for "STATS"
text "/p"; key Tab
check "completion tells what each command does" eval 'wait_for "draws the page map of a pool" && shows "╭──"'
key Escape; wait_gone "╭──"; key C-u
echo "words of a file" >"$T/note.txt"; text "/read $T/note.txt"; key Enter
check "an attached file stands above the message" wait_for "note.txt 16 B  Ctrl-X d drops"
key C-x; key d; check "Ctrl-X d drops it" wait_gone "Ctrl-X d drops"
text "/set theme light"; key Enter
check "/set theme changes the colours" until_ok eval 'screen -e | grep -q "$(printf "\033")\[[0-9;]*38;5;25m"'
text "/set theme dark"; key Enter; wait_for "theme = dark"
text "/po"; key Tab Enter
if mock; then check "a command says why it cannot" wait_for "/pool: this backend does not tell how full its pools are"
else check "a second command" wait_for "POOL"; fi
text "/nosuch"; key Enter
check "an unknown command is one line" wait_for "nosuch"
before() { screen -e | grep -oP "\x1b\[[0-9;]*m(?=$1)" | tail -n 1; } # the colours of a text
if mock; then
    key F2; check "F2 opens a pane that says why it is empty" wait_for "this backend does not tell which pages hold"
    check "which is greyed, its title too" eval '[ -n "$(before PAGES)" ] && [ "$(before PAGES)" = "$(before "│")" ] &&
        [ "$(before PAGES)" = "$(before "this backend does not tell which")" ]'
    key Escape; wait_for "Esc or typing"; key Down; key Right; key Home
    check "its keys do nothing" shows "this backend does not tell which pages hold"
else
    key F2; check "F2 opens the pages beside the chat" wait_for "logical"
    check "the map shows both pools" eval 'shows "full  " && shows "swa   "'
    key Escape; wait_for "Esc or typing"; key Home
    check "the pane's cursor moves" wait_for "pos 0 "
fi
check "the title says where the keys go" shows "has the keys"
text "hjkl gG"; check "a letter is never a key of a pane: it leaves the pane and is typed" eval 'wait_for "› hjkl gG" && wait_gone "has the keys"'
key C-u; wait_for "› message, or /help"
key Escape; wait_for "has the keys"; key Escape; check "Esc goes there and back" eval 'wait_gone "has the keys" && shows "› message, or /help"'
key F3; check "F3 opens the tree below them" wait_for "TREE"
mock && check "with its reason" wait_for "this backend does not tell its draft trees"
key F5; check "F5 opens the pools" wait_for "$(mock && echo "this backend does not tell how full" || echo "sum ")"
check "panes stand one above the other" eval 'wait_for PAGES && wait_for TREE && wait_for POOL'
key F2; key F3; wait_gone TREE
size 80 24; check "at 80x24 the pane takes the chat's place" wait_gone "What is a page table?"
key F5; check "its key closes it" wait_for "› /"
size 200 50; key F2; key F3; check "two panes on a wide screen" eval 'wait_for TREE && wait_for PAGES'
key F2; key F3; size 120 30
key F1; check "F1 shows help" wait_for "keys of the full screen"
key Escape; check "and goes away" wait_gone "keys of the full screen"
key F1; wait_for "keys of the full screen"; text "/pool"; check "also when one types, and nothing typed is lost" eval 'wait_gone "keys of the full screen" && wait_for "› /pool"'
key C-u
key C-c; check "Ctrl-C while idle says how to leave" wait_for "Ctrl-D or /bye quits"

# ---- what is typed ----
text "one"; key C-j; text "two"; key M-Enter; text "three"
check "Ctrl-J and Alt-Enter begin lines" eval 'wait_for "· three" && shows "› one" && shows "· two"'
key C-c; check "Ctrl-C clears the input" wait_gone "· three"
key Up; check "Up brings it back" wait_for "· three"
key C-c; key C-r; text "page tab"
check "Ctrl-R finds an earlier message" eval 'wait_for "search: page tab" && wait_for "› What is a page table?"'
key C-g
printf 'line %s\n' $(seq 34) >"$T/long"; paste_file "$T/long"
check "a long paste says how long it is, and sends nothing" wait_for "[pasted 34 lines]"
key C-c
head -c 1000000 /dev/zero | tr '\0' 'a' | fold -w 80 >"$T/big"
paste_file "$T/big"; text "END"
check "a paste of 1 MB goes in" wait_for "END"
key C-c; wait_gone "END"
printf '#!/bin/sh\nprintf "written elsewhere" >"$1"; ls -l "$1" >%s/mode\n' "$T" >"$T/editor"; chmod +x "$T/editor"

# ---- hostile text ----
paste_file tests/corpus/osc52-clipboard; key Enter
check "pasted control characters are shown, not obeyed" wait_for "copy <U+001B>]52;c;"
paste_file tests/corpus/bidi-override; key Enter
check "bidi controls are shown" wait_for "<U+202E><U+2066>"
paste_file tests/corpus/paste-breakout; wait_for "rm -rf"
check "a paste cannot end itself" eval 'hides "left " && shows "rm -rf ~"'
key C-c
text "/set temperature hot"; key Enter
check "an error stays one line" wait_for "temperature"
allowed() { # the terminal got text and terminfo's sequences, nothing else
    LC_ALL=C sed -E 's/\x1b\]11;\?\x1b\\//; s/\x1b\[[0-9;?]*[A-Za-z@]//g; s/\x1b[()][0AB]//g; s/\x1b[=>78MH]//g' "$T/bytes" |
        LC_ALL=C tr -d '\r\n\t\b\016\017' >"$T/rest"
    ! LC_ALL=C grep -qP '[\x00-\x1f\x7f]|\xe2\x80[\xaa-\xae\x8b\x8e\x8f]|\xe2\x81[\xa0\xa6-\xa9]|\xf3\xa0|\xc2[\x80-\x9f]' "$T/rest"
}
text "/bye"; key Enter; left 0
check "the bytes sent to the terminal are harmless" allowed
check "/bye restores the terminal" restored
check "bracketed paste is switched off again" eval 'tail -c 400 "$T/bytes" | grep -qF "[?2004l"'
check "the history file is private" test "$(stat -c %a "$T/state/aerie/history")" = 600

# ---- what waits while a command shows its progress ----
waits_once() { shows "; Ctrl-C stops" && [ "$(screen | grep -c "queued  and after")" = 1 ]; }
if ! mock; then
    shell 100 30
    run "$endless -p max_tokens=9"
    text "/phase"; key Enter; text "again"; key Enter; wait_for "paused"
    text "/triage"; key Enter; text "and after"; key Enter; wait_for "2 queued"; text "/continue"; key Enter
    check "while a queued command runs, the screen has what still waits" until_ok waits_once
fi

# ---- while a reply runs ----
shell 100 30
env="VISUAL=$T/editor" run "--system $'evil\033]0;owned\007\u202Etxet' $endless"
text "/system"; key Enter
check "a hostile system prompt is shown as escapes" wait_for "evil<U+001B>]0;owned<U+0007><U+202E>txet"
key C-g; check "Ctrl-G edits in \$VISUAL" wait_for "› written elsewhere"
check "the editor's file is private" grep -q '^-rw-------' "$T/mode"
key Enter
streaming() { screen | grep -qE "$many"; }
check "a reply streams" until_ok streaming
text "next please"; key Enter; check "a message is queued meanwhile" wait_for "1 queued"
key Up; check "Up takes it back" eval 'wait_for "› next please" && wait_gone "1 queued"'
key C-u; text "/read $T/note.txt"; key Enter; wait_for "Ctrl-X d drops"; text "about it"; key Enter
check "a file waits with the message it was read for" eval 'wait_for "1 queued" && wait_gone "Ctrl-X d drops"'
key Up; check "and comes back with it" eval 'wait_for "› about it" && wait_for "Ctrl-X d drops"'
key C-u; text "/forget 1"; key Enter; wait_for "1 queued"; key Up; wait_gone "1 queued"
check "a queued command that comes back leaves the file in the message" eval 'wait_for "› /forget 1" && ! shows "attached in another session" && shows "Ctrl-X d drops"'
key C-x; key d; wait_gone "Ctrl-X d drops"
key C-u; text "/stats"; key Enter; check "commands that only look run at once" wait_for "tokens generated"
key PPage; key PPage
check "scrolling leaves the tail" wait_for "lines below"
key End; check "End returns to it" wait_gone "lines below"
for _ in $(seq 60); do resize $((1 + RANDOM % 160)) $((1 + RANDOM % 50)); done
size 1 1; size 39 9; check "a tiny terminal says so" wait_for "terminal too small"
size 1 1; size 100 30
check "and back it is whole again" wait_for "F1 help"
check "the reply still streams" until_ok eval 'a=$(screen | tail -1); sleep 0.3; [ "$a" != "$(screen | tail -1)" ]'
text "and then"; key Enter; wait_for "1 queued"; text "more"
key C-c; check "Ctrl-C stops it" wait_for "stopped; what is written is kept"
check "and a queued message is not sent, but typed again" eval 'wait_for "› and then" && wait_for " more" && wait_gone "1 queued"'
key C-u; key C-u
check "the hint to press it again ends with the reply" wait_gone "Ctrl-C again quits"
key C-t; wait_for "thinking is"; text "a"; check "and any hint ends with the next key" wait_gone "thinking is"
key C-u
text "/help"; key Enter; check "an answer taller than the screen says how to come to its beginning" wait_for "PgUp scrolls back"
same_after_redraw() { screen >"$T/a"; key C-l; sleep 0.2; screen >"$T/b"; cmp -s "$T/a" "$T/b"; }
check "the screen is what a fresh drawing shows" until_ok same_after_redraw
p=$(pid); ticks() { awk '{print $14 + $15}' "/proc/$p/stat"; }
quiet() { local a; a=$(ticks); sleep 0.5; [ $(($(ticks) - a)) -le 1 ]; }
check "an idle screen uses no time" until_ok quiet
text "/clear"; key Enter; wait_for "new session"
on_screen() { [ "$(M display -p '#{alternate_on}')" = "$1" ]; }
key C-r; wait_for "search:"; key C-z; check "Ctrl-Z suspends a search of earlier lines" until_ok on_screen 0
text "fg"; key Enter; check "and fg goes on with it" until_ok eval 'on_screen 1 && shows "search:"'; key Escape; wait_gone "search:"
text "again"; key Enter; until_ok streaming
key C-z; check "Ctrl-Z gives the shell back" wait_for "Stopped"
check "with its screen" test "$(M display -p '#{alternate_on}')" = 0
text "fg"; key Enter; check "fg brings the screen back" until_ok eval 'test "$(M display -p "#{alternate_on}")" = 1 && shows "ctx "'
until_ok streaming; key C-c; key C-c; until_ok eval 'test "$(M display -p "#{alternate_on}")" = 0'
text 'echo "left $?"; stty -a >'"$T/after"; key Enter
check "Ctrl-C twice leaves" left 130
check "and restores the terminal" restored

# ---- keys typed before the screen is there ----
text clear; key Enter; wait_gone left
text "sleep 0.5; $AERIE -n; echo \"left \$?\""; key Enter; text "typed ahead"; key PgUp; wait_for 'ctx '
check "keys that were typed before the screen was there do no harm" wait_for "› typed ahead"
key C-c; key C-d; check "and the program goes on until it is left" left 0

# ---- every other way out ----
way_out() { # signal, status
    rm -f "$T/after"; text clear; key Enter; wait_gone left; run "-n"; kill "-$1" "$(pid)"; left "$2" && restored
}
check "SIGTERM restores the terminal" way_out TERM 143
check "SIGSEGV restores the terminal" way_out SEGV "" # a sanitizer ends it with a status of its own
check "SIGABRT restores the terminal" way_out ABRT 134
echo milk >"$T/notes.txt"; text clear; key Enter; wait_gone left; run "--db $T/notes.txt"
check "a log that is not used is said in a line of its own" wait_for "  NOT SAVED: "; key C-d; left 4
check "what was not saved is said where it stays on the screen, with status 4" shows "aerie: NOT SAVED: $T/notes.txt is no session log"
text clear; key Enter; wait_gone left; run "-n"; key C-d
check "Ctrl-D on an empty line leaves" left 0
check "and restores the terminal too" restored
text clear; key Enter; wait_gone left
run ""; text "remember me"; key Enter; until_ok eval 'screen | grep -qE "$counted"'; p=$(pid); M kill-server
check "it ends when its terminal goes away" until_ok eval "! kill -0 $p 2>/dev/null"

# ---- colours and characters ----
shell 100 30; run "-n"
check "colours are used" eval 'screen -e | grep -qE "$(printf "\033")\[[0-9;]*38;5"'
key C-d; left 0
text clear; key Enter; wait_gone left; env=NO_COLOR=1 run "-n"
check "NO_COLOR: none" eval '! screen -e | grep -qE "$(printf "\033")\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[;m]"'
key C-d; left 0
text clear; key Enter; wait_gone left; run "-n --ascii"; key F2; wait_for PAGES
check "--ascii: only ASCII" eval '! screen | LC_ALL=C grep -q "[^ -~]"'
key C-d; left 0
text clear; key Enter; wait_gone left; env="LC_ALL=C TERM=vt100" run "-n"; text "/stats"; key Enter; wait_for "STATS"
check "a locale without UTF-8: only ASCII" eval '! screen | LC_ALL=C grep -q "[^ -~]"'
key C-d; check "a terminal without a second screen: the shell gets an empty row" until_ok eval 'screen | grep -q "^left 0$"'
text clear; key Enter; wait_gone left; env="COLORFGBG='0;15'" run "-n"
check "a light background by COLORFGBG" until_ok eval 'screen -e | grep -q "$(printf "\033")\[[0-9;]*38;5;25m"'
key C-d; left 0
# a terminal that answers: the colour is taken, and not typed
text clear; key Enter; wait_gone left; env="" run "-n"
M send-keys -l "$(printf '\033]11;rgb:ffff/ffff/f0f0\033\\')"
check "a light background by the terminal's answer" until_ok eval 'screen -e | grep -q "$(printf "\033")\[[0-9;]*38;5;25m"'
check "which is not typed" shows "› message, or /help"
key C-d; left 0
plan
