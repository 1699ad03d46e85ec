#!/bin/bash
# A resumed session has its own settings, or the screen says which are not and why; what decides the bits
# is logged, and a replay uses it or refuses by name.
. "$(dirname "$0")/kit.sh"; rm "$XDG_CONFIG_HOME/aerie/config" # the session's device counts
chat() { timeout "${TEST_LIMIT:-250}" "$AERIE" --plain "$@" >"$T/out" 2>"$T/err"; }
replay() { timeout "${TEST_LIMIT:-250}" "$AERIE" replay "$@" >"$T/out" 2>"$T/err"; rc=$?; }
err() { grep -qE -- "$1" "$T/err"; }

# ---- settings ----
lines "/set temperature 0.7" "/set seed 5" "/set check off" "/bug 24617 on" hello | chat -p max_tokens=9 --page-size 4
lines hello "/set" | chat -c -p max_tokens=12
like '^temperature +0\.7 ' && like '^seed  *5 '; result "--continue goes on with the session's temperature and seed" $?
err '^aerie: settings of the session: temperature 0.7, seed 5$'; result "and says so" $?
like '^max_tokens  *12 ' && err 'max_tokens 12 \(as the command line says; the session had 9\)'
result "the command line wins, and is named" $?
like '^check  *on ' && err 'check on \(the session had off; /set check off\)'; result "a log does not take the checker away" $?
err 'fault 24617 off \(the session had it on; /bug 24617 on\)'; result "nor switch a fault on" $?
err '^aerie: not as in the session, fixed since aerie started: page_size 4, here 16$'; result "what cannot change is named" $?
id=$("$AERIE" logs -n 1 --json | cut -c8-33)
[ "$(sql "select text like '%temperature=0.7%' and text like '%seed=5%' from event where op='resume' and session_id='$id'")" = 1 ]
result "the log holds the settings that were taken over" $?
replay --check "$id"; [ $rc = 0 ]; result "the whole replays equal" $?
lines "/set temperature 0.2" "/resume $id" "/set" | chat; like '^temperature +0\.7 ' && err 'settings of the session: .*temperature 0.7'
result "/resume does the same" $?
timeout "${TEST_LIMIT:-250}" "$AERIE" run --session "$id" -p max_tokens=3 hi >"$T/out" 2>"$T/err"; err 'settings of the session: temperature 0.7'
result "and run --session" $?
lines "/set draft.shape 4-2-8" hello | chat -p max_tokens=3; lines "/set draft.topk" "/set draft.nodes" | chat -c -p draft.topk=3; like '^draft.topk +3 ' && like '^draft.nodes +8 ' && err 'settings of the session: .*draft.steps 4, draft.nodes 8$' && err 'draft.topk 3 \(as the command line says; the session had 2\)'
result "the command line wins over a part of the shape alone" $?
lines "/set draft.shape" | chat -c -p draft.shape=1-1-2; like '^draft.shape +1-1-2 ' && err 'draft.topk 1 \(as the command line says; the session had 3\)'; result "and over the whole shape" $?
lines hello | chat -c -q; [ ! -s "$T/err" ]; result "--quiet says nothing" $?
lines hello | chat -p max_tokens=5; lines "/set" | chat -c; ! err 'not as in|not of the session' ; result "nothing is said where nothing differs" $?
lines hello | chat --draft ngram -p max_tokens=5; said=
for draft in models/nestling/draft none ngram; do lines /at | chat -c -n --draft $draft; said+="$(grep -oE 'started: another draft model.*' "$T/err");"; done
[[ $said =~ ^"started: another draft model (ngram, here "[0-9a-f]{12}");started: another draft model (ngram, here none);;"$ ]]
result "a drafter without weights is a draft like others" $?
lines "/set forget never" hello | chat -p max_tokens=5; lines "/set" | chat -c; like '^forget  *never ' && err 'settings of the session: .*forget never'
result "a session that lets no turn leave keeps to that" $?
lines "/set forget ask" hello | chat -p max_tokens=5; lines "/set" | chat -c; ! like '^forget  *ask '
result "a script is not asked because a session once was" $?
lines hello | chat -n; ! err 'computing on the CPU'; result "a script is not told that there is no GPU" $?

lines hello | chat -p max_tokens=5; id=$("$AERIE" logs -n 1 --json | cut -c8-33)
sql "update turn set n = 0 where session_id = '$id' and role = 'user'"
lines "/resume $id" "/sql select count(*) as locks from held where session_id = '$id'" | chat
err "^aerie: .*: session $id: turn 0 has a number that is out of range" && like '^ *0$'; result "a session that cannot be read is refused, and not kept locked" $?
sql "delete from session where id = '$id'; delete from turn where session_id = '$id'"

# ---- what decides the bits ----
config() { sql "select config from run order by id desc limit 1"; }
lines hello | chat --draft-weights fp8
missing=
case $(config) in
*backend=cuda*) of='backend=cuda precision=bf16 kv=bf16 rows=2048' ;;
*) of='backend=cpu precision=f32 kv=f32 rows=512' ;;
esac
for f in $of capture=2,4,5 weights=stored draft_weights=fp8 page_size=16; do
    config | grep -q "^$f" || missing+=" $f"
done
[ -z "$missing" ]; result "backend, precision, cells, rows, capture, weights are logged$missing" $?
sql "select flags from build order by id desc limit 1" | grep -qE '(gcc|clang) .*build [0-9a-f]{12}'; result "and the build" $?
lines "/set chunk 4096" "/clear" "$(printf 'word %.0s' {1..900})" | chat -p max_tokens=3
replay --check last; [ $rc = 0 ]; result "a chunk longer than a pass replays equal" $?
lines "Tell me a short story." | chat -p max_tokens=40 -p draft.topk=4 -p draft.nodes=16 --threads 2
for t in 1 3 5; do replay --check last --threads $t; [ $rc = 0 ] || break; done; [ $rc = 0 ]; result "the number of threads changes no bit" $?
cp -r models/nestling/target "$T/moved"; printf '\001' | dd of="$T/moved/model.safetensors" bs=1 seek=16000000 conv=notrunc 2>"$T/err" # other weights
lines hello | chat -m "$T/moved" -p max_tokens=5; rm -r "$T/moved"
replay --check last; [ $rc = 3 ] && [ "$(wc -l <"$T/err")" = 1 ] && err "^aerie: the session's model is not where it was; -m DIR names its folder: $T/moved: No such file or directory"
result "a replay whose model was moved says so" $?
mkdir "$T/moved"; ln -s "$PWD"/models/nestling/target/* "$T/moved"; lines hello | chat -m "$T/moved" --draft "$PWD/models/nestling/draft" -p max_tokens=5; rm -r "$T/moved"
replay --check last; [ $rc = 0 ]; result "unless it was the bundled one, which has not moved" $?
replay --check last -m models/nestling/target; [ $rc = 0 ]; result "and takes -m" $?
lines hello | chat -p max_tokens=5
replay --check last --weights fp8; [ $rc = 2 ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] &&
    err '^aerie: cannot check: the session was made with weights stored, here fp8$'; result "--check with other weights is refused by name" $?
replay --check -v last --weights fp8; [ $rc -le 1 ] && err 'its digests may differ'; result "with -v it is a warning" $?
if timeout "${TEST_LIMIT:-250}" "$AERIE" doctor | grep -q 'cuda: .*GiB'; then
    echo "ok $((n += 1)) - a session of another backend # SKIP there is a GPU"
else
    sql "update run set config = replace(replace(config, 'backend=cpu', 'backend=cuda'), 'f32', 'bf16')
        where id = (select max(id) from run)"
    replay --check last; [ $rc = 3 ] && [ "$(wc -l <"$T/err")" = 1 ] && err '^aerie: cannot check: the session was computed on cuda: '
    result "--check of a session of another backend is refused in one line" $?
fi

# ---- tokens that no step accounts for ----
lines hello | chat -p max_tokens=9
replay --check last; [ $rc = 0 ]; result "an honest log" $?
sql "update turn set tokens = tokens || x'07000000' where role='reply' and id=(select max(id) from turn)
    "; sql "update step set tokens = tokens || x'07000000' where id = (select max(id) from step)"
sql "delete from step where id = (select max(id) from step)"
replay --check last; [ $rc = 1 ]; result "a log whose steps do not yield its reply is found" $?
# ---- the past of a session: the same views at the same step, whoever has it ----
export XDG_DATA_HOME=$T/past; past() { sqlite3 "$T/past/aerie/sessions.db" "$1"; }
seen="/pages /page_2 /page_2_swa /page_4 /map_20 /pool /accept /accept_turn /accept_kind /timing /tokens_10_24 /why_1.2 /tree /stats"
commands() { echo "/at $1"; for c in $seen; do echo "/sql select '== $c'"; echo "${c//_/ }"; done; echo "/sql select 'the end'"; }
# without what is not of the step: names of the model and of the draft, who has the step, and what only an engine has
shown() {
    sed -n "/^'*== /,/the end/p" "$T/out" | grep -vE "^(status|model|spec|STATS|capture) |^'*==|the end|^-+$|^[0-9]+ rows?$" | sed 's/ of this session, from the log$/ of this session/'
}
talk=("My dog is called Rex." "What is my dog called?" "Tell me a story about a fox." "/at live")
{ lines "${talk[@]}"; commands 1.2; } | chat -p max_tokens=60; shown >"$T/live"
[ "$(grep -c '' "$T/live")" -gt 80 ] && grep -q '^ *[12]\.[0-9]* *take' "$T/live" && ! grep -qE '^ +(2|3|now)(\.[0-9]+)? +(take|share|free|window|drop)' "$T/live"
result "at a step, /page lists what had happened to the page by then" $?
commands 1.2 | chat -c; shown >"$T/resumed"
commands 1.2 | chat -c -n; shown >"$T/resumed-n"
commands 1.2 | { timeout "${TEST_LIMIT:-250}" "$AERIE" replay last --plain >"$T/out" 2>"$T/err"; }; shown >"$T/recording"
for who in resumed resumed-n recording; do
    diff "$T/live" "$T/$who" >"$T/out" 2>"$T/err"; result "at a step, a session that is $who shows what the live one did" $?
done
# without a log, memory has the step; times and numbers of one run are not those of another
times() { grep -vE '^(speed|time) |^ +(draft|verify|commit|check) +[0-9]+ '; }
{ lines "${talk[@]}"; commands 1.2; } | chat -p max_tokens=60 -n; shown | times >"$T/memory"; times <"$T/live" | sed '/the latest: reused/d' >"$T/a"
diff "$T/a" "$T/memory" >"$T/out"; result "and one that nothing is logged of" $?
commands 1.2 | sed 1d | { timeout "${TEST_LIMIT:-250}" "$AERIE" replay last --goto 1.2 --plain >"$T/out" 2>"$T/err"; }
shown | times | sed '/the latest: reused/d; /^plans/d; s/, of this session/, up to step 1.2 of this session/' >"$T/goto"
diff "$T/a" "$T/goto" >"$T/out"; result "and one that was run again to this step" $?
# before its first message a resumed session shows its newest step
newest=$(past "select max(step) from v_step where turn = 3")
lines /at /map\ 20 /stats | chat -c
like "^at 3\.$newest, from the log" && like '^POSITION 20' && like "^status .*ctx [1-9][0-9]*/.* AT 3\.$newest · REC" && ! has LIVE
result "a resumed session shows its newest step before its first message" $?
lines "Is Rex a dog?" /at /accept "/page 4" | chat -c
like '^live: at the newest step, 4\.' && like "^ACCEPT  cycles $(past "select count(*) from v_step where drafted > 0") "
result "a message goes on from there, and the counters of the session with it" $?
plan
