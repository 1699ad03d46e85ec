#!/bin/bash
# The session browser: F8 on the full screen, narrow and wide, with thousands of sessions; and its twin, /sessions WORDS.
. "$(dirname "$0")/kit.sh"
clean() { M kill-server; }

for talk in "Hello!" "Tell me a story about a fox." "What is a page table?" "What is 7 plus 5?"; do
    lines "$talk" "Say hello to Ada." "/title About ${talk%% *} ${talk##* }" | feed --plain -q -p max_tokens=24
done
lines "What is a window?" | feed --plain -q --no-spec -p max_tokens=9

# ---- /sessions WORDS ----
list() { lines "/sessions $1" | feed --json -n; found=$(grep -o '"id":"[^"]*"' "$T/out" | wc -l); }
list ""; [ "$found" = 5 ]; result "/sessions lists all" $?
list 2; [ "$found" = 2 ]; result "/sessions N lists the latest" $?
list story; [ "$found" = 1 ]; result "a word of a message" $?
list tab; [ "$found" = 1 ]; result "the beginning of a word" $?
list "ABOUT table"; [ "$found" = 1 ]; result "words of a title, whatever their case" $?
list nestling; [ "$found" = 5 ]; result "a part of the model's folder" $?
list "ada hello"; [ "$found" = 4 ]; result "several words of one turn" $?
list "fox window"; [ "$found" = 0 ] && [ "$(tail -n 1 "$T/out")" = '{"command":"sessions","result":[]}' ]; result "not words of different sessions" $?
list "zebra OR hello"; [ $rc = 0 ] && [ "$found" = 0 ]; result "no word is an operator" $?
lines "/sessions nothing-like-it" | feed --plain -n; grep -q 'no session fits' "$T/out"; result "none is said in a line" $?
id=$(sql "select session_id from turn where role='user' and text like '%story%'")
list "${id,,}"; [ "$found" = 1 ]; result "an id" $?
list "#2"; [ "$found" = 1 ] && grep -q "$id" "$T/out"; result "a number after #" $?

for more in "What is a page?" "Count to nine."; do lines "Hello! Hello!" "$more" | feed --plain -q --no-spec -p max_tokens=2; done
list ""; grep -q '"title":"Hello! Hello!"' "$T/out" && lines "/sessions 2" | feed --plain -q -n && grep -q 'Hello! Hello! - What is a page?' "$T/out" && grep -q 'Hello! Hello! - Count to nine.' "$T/out"
result "titles that are equal are told apart by what was said next" $?
sql "delete from session where title = 'Hello! Hello!'"; sql "delete from turn where session_id not in (select id from session)"

# ---- the browser ----
sql "create temp table num as with recursive c(i) as (select 1 union all select i+1 from c where i < 2000) select i from c;
    create temp table src as select * from session where id = '$id';
    insert into session select $(sql "select group_concat(case name when 'id' then 'printf(''01%08dABCDEFGHJKMNPQRS'', i)'
        when 'number' then '1000+i' when 'parent' then 'null' when 'fork_turn' then '0' when 'title' then '''Copy ''||i'
        when 'created_ms' then 'created_ms - i*1000' when 'updated_ms' then 'updated_ms - i*1000' else 'src.'||name end, ', ')
        from pragma_table_info('session')") from num, src;
    create temp table old as select turn.* from turn, src where session_id = src.id;
    update old set id = null; update old set text = text||' zebra';
    insert into turn select -8 * i + old.rowid, printf('01%08dABCDEFGHJKMNPQRS', i)$(sql "select group_concat(', old.'||name, '') from pragma_table_info('turn') where cid > 1") from num, old;
    insert into turn_fts(rowid, text) select id, text from turn where session_id glob '01*ABCDEFGHJKMNPQRS'"
for wh in "80 24" "200 60"; do
    set -- $wh; at="$1x$2"
    open_screen $wh --no-log --db "$DB"
    key F8; wait_for 'SESSIONS  2005 of 2005'; check "$at: F8 shows the sessions" shows 'type to filter'
    check "$at: with when, turns, tokens and acceptance" eval 'screen | grep -qE "20[0-9-]{8} [0-9:]{5} +[12] +[1-9][0-9]* +(-|[0-9]+ %)  About What 5\?"'
    check "$at: a session without drafts has no acceptance" eval 'screen | grep -qE " 1 +[1-9][0-9]* +-  What is a window\?"'
    check "$at: and a preview of the newest" shows ', 9 tokens in'
    [ "$at" = 200x60 ] || check "$at: a whole line stands between list and preview" eval 'screen | grep -qE "^ ─{78}$"'
    text fox; wait_for 'SESSIONS  2001 of 2005'; check "$at: typing filters" eval 'screen | grep -q "filter fox"'
    text " zebra"; wait_for 'SESSIONS  2000 of 2005'; check "$at: a second word narrows" shows 'Copy 1'
    check "$at: the preview begins where the words are" shows 'Tell me a story about a fox. zebra'
    key C-u; wait_for 'of 2005'; text "about table"; wait_for 'SESSIONS  1 of 2005'
    check "$at: the preview follows" wait_for 'What is a page table?'
    key Escape; wait_for 'SESSIONS  2005 of 2005'; check "$at: Esc empties the filter first" shows 'type to filter'
    text "no such words at all"; wait_for 'SESSIONS  0 of 2005'; check "$at: none fits" shows 'no session fits the filter'
    key Enter; check "$at: then Enter does nothing" wait_for 'no session is selected'
    key Escape; wait_for 'SESSIONS  2005'; text copy; wait_for 'SESSIONS  2000'
    key End; check "$at: End goes to the last" wait_for 'Copy 2000'
    key Home; wait_for 'Copy 1'; key Down; check "$at: in the list letters act" wait_for 'f forks'
    key c; check "$at: c marks" wait_for 'marked; c on another'
    key c; check "$at: and unmarks" wait_for 'not marked any more'
    key x; check "$at: another letter goes on with the filter" wait_for 'filter copyx'
    key BSpace; wait_for 'SESSIONS  2000'; key Down; wait_for 'f forks'; key /; wait_for 'type to filter'; key BSpace; check "$at: / goes back to the filter" wait_for 'filter cop'
    [ "$at" = 80x24 ] && size 200 50 && check "a resize while it is open" wait_for '│ Copy' && size 40 10 &&
        check "40 columns: titles in the place of counts" until_ok eval 'screen | grep -q "last used  *title" && screen | grep -q " Copy"' && size 80 24
    key C-u; text "#2"; wait_for 'SESSIONS  1 of'; key Enter
    check "$at: Enter resumes" wait_for "session #2 resumed"
    check "$at: its turns are shown" wait_for 'Say hello to Ada.'
    key F8; wait_for SESSIONS; key F8; check "$at: F8 closes it again" wait_gone SESSIONS
    M kill-server
done
open_screen 100 30 --db "$DB"
key F8; wait_for SESSIONS; text "#2"; wait_for 'SESSIONS  1 of'; key Down f
check "f forks" wait_for "goes on from turn 2 of #"
key F8; check "the copy is in the log" wait_for 'SESSIONS  2006 of 2006'
text "fox"; wait_for 'About Tell'; key Home c Down c
check "c on a second session compares the two" wait_gone 'SESSIONS  '
check "by their numbers" wait_for 'diff 3001 2'
open_screen 100 30 --no-log --db "$T/none.db"
key F8; check "without a log it says so" wait_for 'no session log'
open_screen 80 24 --no-log --ascii --db "$DB"
key F8; wait_for SESSIONS; check "ASCII only" eval '! screen | LC_ALL=C grep -q "[^ -~]"'
plan
