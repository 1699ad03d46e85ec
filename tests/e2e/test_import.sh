#!/bin/bash
# aerie import: requests of servers and their replies become sessions that can be shown, searched, compared and given to
# the local engine; SGLang's dumps through the script that converts them without running what they hold.
. "$(dirname "$0")/kit.sh"
python=$(for p in /usr/bin/python3 /usr/local/bin/python3; do [ -x $p ] && echo $p; done | head -n 1)
ids='[2,4,516,267,204,371,291,263,1163,1066,36,5,204,4,2895,333,204]'
request() { # NAME TEXT
    echo "{\"custom_id\":\"$1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"nestling\",\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"$2\"}]}}"
}
reply() { # NAME TEXT FIELDS OF THE CHOICE
    echo "{\"custom_id\":\"$1\",\"error\":null,\"response\":{\"status_code\":200,\"body\":{\"model\":\"nestling\",\"system_fingerprint\":\"vllm-0.26.0\",\"prompt_token_ids\":$ids,\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"$2\"},\"finish_reason\":\"length\"${3:+,$3}}],\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":4}}}}"
}
tokens='"token_ids":[324,1163,1066,2275],"logprobs":{"content":[{"token":"token_id:324","logprob":-0.0001,"top_logprobs":[{"token":"token_id:324","logprob":-0.0001},{"token":"token_id:38","logprob":-9.8}]},{"token":"token_id:1163","logprob":-0.0001,"top_logprobs":[]},{"token":"token_id:1066","logprob":0,"top_logprobs":[]},{"token":"token_id:2275","logprob":0,"top_logprobs":[]}]}'
session() { sql "SELECT id FROM session WHERE number=$1"; }

# ---- a batch: requests in one file, replies in another, in another order ----
{ printf '\xEF\xBB\xBF'; request a "What is a KV cache?"; request b "Who are you?"; request c "Never answered"; } >"$T/requests.jsonl"
{ reply b "The fox said: nothing."; reply a "The KV cache stores" "$tokens"; } >"$T/results.jsonl"
run import "$T/requests.jsonl" "$T/results.jsonl"
[ $rc = 0 ] && like '^3 sessions imported, 1 without a reply$' && [ ! -s "$T/err" ]; result "requests and replies are joined by their ids" $?
run show 2; like 'What is a KV cache\?' && like '^The KV cache stores' && like 'results.jsonl, imported, line 2 \(vllm-0\.26\.0\)' && [ "$(sql 'SELECT count(*) FROM server')" = 2 ] && like '^settings: temperature 0'
result "show says where the session came from" $?
run show 2:1; like '^ *1\.1 +piece +at ' && ! grep -q ' ms' "$T/out" && run show 2 && ! grep -q ' ms' "$T/out"; result "and no times, which the file does not have" $?
run logs -q fox; like 'Who are you'; result "search finds the reply" $?
run show 2 --json; like '"tokens":\[324,1163,1066,2275\]' && like '"tokens":\[2,4,516,267'; result "the ids are those of the file" $?
[ "$(sql "SELECT count(*) FROM v_token WHERE session='$(session 2)' AND logp IS NOT NULL")" = 4 ] &&
    [ "$(sql "SELECT rival FROM v_token WHERE session='$(session 2)' AND rival NOT NULL")" = 38 ]; result "so are the log probabilities" $?
run show 3; like 'Never answered' && like 'fault'; result "a request without a reply is kept" $?
run export 2 -o "$T/own.jsonl"; run import "$T/own.jsonl"; [ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -q "is an export of aerie's log.*aerie pack ID --with-text" "$T/err"
result "an export of aerie itself is refused in one line, with what to do" $?
run replay 2 --forced; [ $rc = 0 ] && like 'forced +4 tokens given to the local engine, which would choose another at 0' && like 'log p +4 tokens'
result "the tokens are given to the local engine" $?
log_p=$(grep '^log p' "$T/out"); run pack 2 -o "$T/ids.aerie"; run replay "$T/ids.aerie" --forced -m models/nestling/target; [ $rc = 0 ] && grep -qxF -- "$log_p" "$T/out"
result "and of a pack without text: the prompt's ids are given once" $?
run replay 1 --forced; [ $rc = 0 ] && like 'reported no ids of 1 reply' && like 'verdict +open'; result "without ids nothing is claimed" $?
ids=null reply a "The KV cache stores" "$tokens" | sed 's/"prompt_tokens":17/"prompt_tokens":16/' >"$T/short.jsonl"
run import "$T/requests.jsonl" "$T/short.jsonl"; run replay 4 --forced
like 'reported no ids of 1 prompt: rendered by the local chat template' && like 'rendered here has 17 tokens, the server counted 16' && like 'forced +4 tokens'
result "a prompt without ids is rendered here, and its length compared with the server's count" $?
run run -p max_tokens=4 "What is a KV cache?"
run diff last 2 --log-only; [ $rc = 0 ] && like 'nowhere: 1 turn, 4 tokens by position'; result "an imported session is compared with a local one" $?
sed 's/324,1163,1066/324,1163,1067/' "$T/results.jsonl" >"$T/wrong.jsonl"; run import "$T/requests.jsonl" "$T/wrong.jsonl" --json
like '^{"sessions":2,"without_reply":0,"already":1,"bad_lines":0,"first":"01.*","last":"01.*"}$'; result "as JSON; what the log has from this line is not imported again" $?
run diff 6 8 --log-only; [ $rc = 1 ] && like 'first at step 1\.[0-9]+( \| 1\.1)?: logits: token 2 is 1066 in a, 1067 in b'; result "one changed id is found" $?
run export 2 --format md; like 'The KV cache stores'; result "export works" $?
run db check; [ $rc = 0 ]; result "the log is whole" $?

# ---- lines that are no records; limits ----
before=$(sql "SELECT count(*) FROM session")
{ reply x "fine"; echo '{"prompt":[1,-1],"choices":[]}'; echo; echo 'no json'; head -c 17000000 /dev/zero | tr '\0' 'x'; echo; reply y "fine, too"; } >"$T/mixed"
run import "$T/mixed"; [ $rc = 1 ] && like '^2 sessions imported; 3 lines left out$' && [ "$(wc -l <"$T/err")" = 3 ] &&
    grep -q "^aerie: mixed line 2: item 2 of the prompt's ids is no token id" "$T/err" && grep -q '^aerie: mixed line 4: ' "$T/err" &&
    grep -q '^aerie: mixed line 5: longer than 16 MiB' "$T/err"
result "bad lines: one line each, the others are imported" $?
[ "$(sql "SELECT count(*) FROM session")" = $((before + 2)) ]; result "nothing of a bad line is" $?
printf '\357\273\277{"prompt":"a\\u001b[31m","choices":[{"text":"\\u001b]0;x\\u0007"}]}' | feed import -
[ $rc = 0 ] && run show last && ! grep -q $'\e' "$T/out"; result "standard input; controls reach no terminal" $?
for _ in $(seq 40); do echo '{'; done >"$T/bad"; run import "$T/bad"; [ $rc = 2 ] && [ "$(wc -l <"$T/err")" = 21 ] && grep -q '20 more lines' "$T/err"
result "many bad lines are not all printed" $?
run import "$T/nowhere"; [ $rc = 2 ] && grep -q 'cannot open' "$T/err"; result "no such file" $?
run import; [ $rc = 2 ]; result "no file named" $?

# ---- a killed import leaves whole sessions; the same import again adds the others ----
export XDG_DATA_HOME=$T/killed DB=$T/killed/aerie/sessions.db; records=$T/records.jsonl
reply a "The KV cache stores" "$tokens" | awk '{ for (i = 1; i <= 1500; i++) { line = $0; sub(/"a"/, "\"" i "\"", line); print line } }' >"$records"
"$AERIE" import "$records" >"$T/out" 2>"$T/err" & pid=$!
stored() { [ "$(sql "SELECT count(*) FROM turn WHERE role='reply'" 2>"$T/err2" || echo 0)" -ge "$1" ] || ! kill -0 $pid 2>/dev/null; }
until_ok stored 20; kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null; before=$(sql "SELECT count(*) FROM session")
run import "$records"; like "^$((1500 - before)) sessions imported, $before already in the log$" && [ "$before" -ge 20 ]; result "a killed import goes on where it ended" $?
[ "$(sql "SELECT (SELECT count(*) FROM session) || ' ' || (SELECT count(*) FROM turn WHERE stop='length' OR stop='max_tokens') || ' ' || count(*) FROM step")" = "1500 1500 1500" ]
result "every record is there once, and whole" $?
run import "$records"; [ $rc = 0 ] && like '^0 sessions imported, 1500 already in the log$'; result "a third time adds nothing" $?
run db check; [ $rc = 0 ]; result "the log is whole after the kill" $?
export XDG_DATA_HOME=$T/data DB=$T/data/aerie/sessions.db

# ---- a dump of SGLang ----
if [ -n "$python" ]; then
    cat >"$T/make.py" <<'P'
import collections, dataclasses, enum, os, pickle, sys, types
for name in ("sglang", "sglang.srt", "sglang.srt.io"):
    sys.modules[name] = types.ModuleType(name)
m = sys.modules["sglang.srt.io"]
class Mode(enum.Enum):
    A = 1
@dataclasses.dataclass
class Request:
    rid: str
    input_ids: list
    sampling_params: dict
    mode: object = None
@dataclasses.dataclass
class ServerArgs:
    model_path: str
    api_key: str = "sk-secret"
for c in (Mode, Request, ServerArgs):
    c.__module__ = "sglang.srt.io"
    setattr(m, c.__name__, c)
ids = [2,4,516,267,204,371,291,263,1163,1066,36,5,204,4,2895,333,204]
out = {"text": "The KV cache", "output_ids": [324,1163,1066], "meta_info": {"prompt_tokens": 17, "completion_tokens": 3,
       "spec_verify_ct": 1, "nan": float("nan"), "finish_reason": {"type": "length"}}}
rows = collections.deque([(Request("r1", ids, {"temperature": 0.0, "max_new_tokens": 3}, Mode.A), out, 1.7e9, 1.7e9 + 1),
        (Request("r2", ids, {"temperature": 0.0}), {}, 1.7e9, 1.7e9)])
for p in (2, 4, 5):
    pickle.dump({"server_args": ServerArgs("nestling"), "requests": rows, "launch_command": "x --api-key sk-secret"},
                open(f"{sys.argv[1]}/dump{p}.pkl", "wb"), protocol=p)
pickle.dump(list(rows), open(f"{sys.argv[1]}/old.pkl", "wb"))
class Evil:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[1]}/pwned",)
pickle.dump({"requests": [(Evil(), {}, 0, 0), (Request("r3", ids, {}), out, 1.7e9, 1.7e9)]}, open(f"{sys.argv[1]}/evil.pkl", "wb"))
open(f"{sys.argv[1]}/eval.pkl", "wb").write(b"c__builtin__\neval\n(S'open(\"" + sys.argv[1].encode() + b"/pwned\",\"w\")'\ntR.")
open(f"{sys.argv[1]}/cut.pkl", "wb").write(open(f"{sys.argv[1]}/dump4.pkl", "rb").read()[:90])
P
    "$python" "$T/make.py" "$T"
    dump() { "$python" repl/share/sglang_dump.py "$@" 2>"$T/err2"; }
    for p in dump2 dump4 dump5 old; do
        dump "$T/$p.pkl" >"$T/$p.jsonl"; run import "$T/$p.jsonl"
        [ $rc = 0 ] && like '^2 sessions imported, 1 without a reply$'; result "SGLang: $p" $?
    done
    ! grep -q sk-secret "$T/dump4.jsonl"; result "keys of the launch are not taken" $?
    n=$(sql "SELECT max(number) FROM session"); run replay $((n - 1)) --forced
    [ $rc = 0 ] && like 'forced +3 tokens given'; result "its tokens are given to the local engine" $?
    dump "$T/evil.pkl" >"$T/evil.jsonl"; run import "$T/evil.jsonl"; [ ! -e "$T/pwned" ] && like '^1 session imported'; result "what a pickle would call is not called" $?
    dump "$T/eval.pkl" >"$T/x"; [ $? = 2 ] && [ ! -e "$T/pwned" ] && [ ! -s "$T/x" ] && [ "$(wc -l <"$T/err2")" = 1 ]; result "nor what it would evaluate" $?
    dump "$T/cut.pkl" >"$T/x"; [ $? = 2 ] && [ "$(wc -l <"$T/err2")" = 1 ]; result "half a pickle is one line" $?
    run import "$T/dump4.pkl"; [ $rc = 2 ] && grep -q 'is a Python pickle; expected JSON lines: python3 .*/sglang_dump.py' "$T/err"; result "a pickle itself is refused, with the command" $?
fi
# ---- lines of kv_canary: a session whose page map shows the violated cells ----
canary() { # TAG REASON SLOT POSITION
    echo "[2026-01-01 TP0] kv_canary violation: launch_tag=$1 fail_reason=$2 slot_idx=$3 position=$4 stored_token=7 expected_token=-1 stored_chain_hash=0x12 expected_aux=0x2100"
}
{ echo "server is ready"; canary HEAD_K_FULL verify_position 162 42; canary TAIL_K_SWA write_position 53504 50; } >"$T/server.log"
run import "$T/server.log" --page-size 16; [ $rc = 0 ] && like '^1 session imported$'; result "a log with kv_canary lines is a session" $?
lines '/goto 1.1' /pages '/goto 1.2' /pages >"$T/script"
run replay last --plain --ascii --script "$T/script"
like '^full  \.{32}##########!\.*$' && like '^full  \.{32}#{16}\.*$' && like '^swa   -*!$'; result "the violated cells are on the map, in their pool" $?
run db check; [ $rc = 0 ]; result "the log with these pages is whole" $?

plan
