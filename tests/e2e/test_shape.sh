#!/bin/bash
# draft.shape = auto: replies do not depend on it, greedy or sampled; the log keeps the shapes, and a replay,
# however slow, has the same ones; turns that are stepped, taken back and forked too.
. "$(dirname "$0")/kit.sh"
chat() { timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" --plain --quiet "$@" >"$T/out" 2>"$T/err"; }
equal() { timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" replay last --check "$@" >"$T/r" 2>&1; local rc=$?; [ $rc = 0 ] || sed 's/^/# /' "$T/r"; return $rc; }
fox="Tell me a story about a fox."

# ---- replies ----
for how in "temperature=0" "temperature=0.9"; do
    printf '%s\n' "$fox" "What is a page table?" "/regen" "$fox" >"$T/script"
    chat -p "$how" -p seed=7 -p spec=off <"$T/script"; cp "$T/out" "$T/plain"
    chat -p "$how" -p seed=7 -p draft.shape=auto <"$T/script"; rc=$?
    [ $rc = 0 ] && cmp -s "$T/out" "$T/plain"; result "auto changes no reply ($how)" $?
    [ "$(sql "select count(*) from event where op='shape' and session_id=(select id from session order by number desc limit 1)")" -ge 4 ]
    result "the log has a shape of each turn ($how)" $?
    equal; result "a replay has them ($how)" $?
    [ "$how" = temperature=0 ] || continue
    equal -m models/nestling/target --draft models/nestling/draft; result "with the models named again ($how)" $?
    ("$AERIE" bench --device cpu --short mem.read >/dev/null 2>&1 & "$AERIE" bench --device cpu --short mem.read >/dev/null 2>&1 &
     equal --threads 1; rc=$?; wait; exit $rc); result "on a busy machine, too ($how)" $?
done
[ "$(sql "select count(*)>=8 and sum(text glob '[0-9]* [0-9]*-[0-9]*-[0-9]*')=count(*) from event where op='shape'")" = 1 ]; result "as step and shape" $?
[ -z "$(sql "select s.drafted from step s join turn t on t.id=s.turn_id join event e on e.session_id=t.session_id and e.turn=t.n
    and e.op='shape' and cast(e.text as integer)=s.n where t.role='reply' and e.text like '% 0-0-1' and s.drafted")" ]; result "a plain step drafts nothing" $?

# ---- views ----
printf '%s\n' "$fox" /stats | chat -p draft.shape=auto
grep -q '^spec .*: shape auto$' "$T/out" && grep -qE '^auto +[0-9p].*changes?$' "$T/out" && grep -qE ' auto ([0-9]+-[0-9]+-[0-9]+|plain) ' "$T/out"
result "/stats says what was chosen" $?
printf '%s\n' "$fox" /stats | chat -p draft.shape=auto --json; grep -q '"auto":{"shape":"' "$T/out"; result "and in JSON" $?
printf '%s\n' "/set draft.shape auto" "/set draft.topk 4" "/set draft.shape" "/set draft.shape 2-x-3" | chat; grep -q '5-4-6' "$T/out" "$T/err"
[ $? = 0 ] && grep -q 'draft.shape cannot be "2-x-3"; expected auto' "$T/err" "$T/out"; result "a part of the shape ends auto" $?

# ---- time ----
printf '%s\n' "$fox" "/break step>=4" "$fox" "/delete" "/step 6" "/rstep 5" "/what-if draft.shape=2-1-3" "/what-if draft.topk=8" "/step 2" \
    "/goto 2.3" "/phase" "/phase" "/phase" "/step 3" "/continue" "/fork" "What is a page table?" "/undo" "Say hello." | chat -p draft.shape=auto
rc=$?; [ $rc = 0 ] && ! grep -q 'differs from its first run\|rule violated' "$T/out" "$T/err"; result "a turn that goes back has its shapes again" $?
equal; result "its fork replays" $?
printf '%s\n' "Say hello." "$fox" | chat -c; equal; result "a resumed session replays" $?
"$AERIE" diff last --with page_size=4 >"$T/out" 2>&1 && grep -q 'verdict *equal' "$T/out"; result "other pages: equal" $?
"$AERIE" diff last --with draft.topk=4 >"$T/out" 2>&1; grep -q 'verdict *equal' "$T/out"; result "another shape: equal by position" $?
printf '%s\n' "$fox" | chat -p draft.shape=auto --draft ngram; equal; result "the n-gram drafter" $?

# ---- a log that lies ----
for text in "2 99-1-6" "2 auto" "x" "0 5-1-6" "-1 3-1-4" "2 0-0-0"; do
    cp "$DB" "$T/forged.db"; rm -f "$T"/forged.db-*
    sqlite3 "$DB" 'pragma wal_checkpoint(truncate)' >/dev/null; cp "$DB" "$T/forged.db"
    sqlite3 "$T/forged.db" "update event set text='$text' where op='shape'"
    timeout "${TEST_LIMIT:-250}" "$AERIE" --db "$T/forged.db" replay last --check >"$T/out" 2>&1; rc=$?
    [ $rc -gt 0 ] && [ $rc -lt 5 ] && [ "$(wc -l <"$T/out")" -le 3 ]; result "refused: shape \"$text\"" $?
done
plan
