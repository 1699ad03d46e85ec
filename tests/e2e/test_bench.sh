#!/bin/bash
# aerie bench: every line has its figures, the ratio is what it says, and what cannot be measured is
# refused in one line. Nothing here asks for a speed. AERIE_TEST_LONG=1 runs every line of the short form.
. "$(dirname "$0")/kit.sh"
bench() { timeout "${TEST_LIMIT:-250}" "$AERIE" bench --device cpu "$@" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
field() { sed -n "s/.*\"$1\":\(\"[^\"]*\"\|[^,}]*\).*/\1/p"; } # of JSON lines
refuse() { # STATUS ERROR-PATTERN ARGS...
    local want=$1 pattern=$2 ok=0; shift 2
    bench "$@"
    [ $rc = "$want" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -qE -- "^aerie: .*$pattern" "$T/err" || ok=1
    [ $ok = 0 ] || { echo "# status $rc"; head -n 3 "$T/err" | sed 's/^/# /'; }
    result "refused: aerie bench $*" $ok
}

# ---- JSON: the short form on the bundled model; usually one line of each kind, and each kind's further forms seldom ----
long=; [ "${AERIE_TEST_LONG:-0}" = 0 ] || long=1
promised='mem.read mem.copy phase.eager gemv.qkv.T1 gemv.glu.T4 gemv.q4_k.T1 gemm.peak moe.e32.T1 attn.full.d64.4k.T1
    attn.swa.d256.4k.T8 sample.argmax.201088.T1 sample.topk_p.201088.T8 step.nestling.512 verify.nestling.T4 draft.step.nestling
    draft.step.nestling.512.w64 cycle.nestling.plain cycle.nestling.3-1-4 prefill.nestling.512 chat.nestling.spec
    repl.itl.nestling.spec repl.lines.nestling.spec repl.tui.nestling.spec'
seldom='gemv.qkv.T4 gemv.o.T1 gemv.head.T1 moe.e32.T16 attn.swa.d64.4k.T8 attn.full.d256.4k.T1 verify.nestling.T16
    draft.step.nestling.512 chat.nestling.plain chat.nestling.ngram again.nestling.plain again.nestling.spec again.nestling.ngram
    repl.itl.nestling.plain repl.lines.nestling.plain repl.tui.nestling.plain'
# shellcheck disable=SC2206 # names without blanks
lines=($promised)
[ -z "$long" ] || lines=()
bench --short --json "${lines[@]}"
[ $rc = 0 ] && [ ! -s "$T/err" ]; result "the short form runs" $?
head -n 1 "$T/out" | grep -qE '^\{"device":"[^"]+","version":"[0-9.]+"\}$'
result "the first object says where" $?
object='^\{"name":"[^"]+","ms":[-0-9.e]+,"spread":[0-9.e-]+,"runs":[0-9]+,"bytes":([0-9.e+]+|null),"experts":([0-9.e+]+|null),"ratio":([0-9.e-]+|null),"value":([-0-9.e+]+|null),"unit":("[^"]+"|null),"shape":"[^"]+"\}$'
[ "$(tail -n +2 "$T/out" | grep -cvE "$object")" = 0 ] && [ "$(wc -l <"$T/out")" -gt 20 ]; result "every other one has the promised keys" $?
missing=
for name in $promised ${long:+$seldom}; do
    grep -qF "\"name\":\"$name\"" "$T/out" || missing+=" $name"
done
[ -z "$missing" ]; result "every promised line is there$missing" $?
read -r read_bytes read_ms < <(grep '"name":"mem.read"' "$T/out" | sed 's/.*"ms":\([^,]*\),.*"bytes":\([^,]*\),.*/\2 \1/')
read -r cache_bytes cache_ms cache_most < <(grep '"name":"mem.cache"' "$T/out" | sed 's/.*"ms":\([^,]*\),.*"bytes":\([^,]*\),.* to \([0-9]*\) MB.*/\2 \1 \3/')
awk -v b="$read_bytes" -v ms="$read_ms" -v cb="${cache_bytes:-0}" -v cms="${cache_ms:-1}" -v most="${cache_most:-0}" '
    function of(key) { return match($0, "\"" key "\":[^,]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "null" }
    /"name"/ && !/"name":"(prefill|repl)/ && of("ratio") != "null" {
        rate = cb && of("bytes") + 0 <= most * 1e6 ? cb / cms : b / ms
        want = of("bytes") / rate / of("ms"); got = of("ratio"); seen++
        if (got < want * 0.999 || got > want * 1.001) { print "# " $0; bad = 1 }
    }
    END { exit bad || seen < 15 }' "$T/out"
result "the ratio is the time of the bytes at mem.read, or at mem.cache, over the time" $?
moe=$(grep '"name":"moe.e32.T1"' "$T/out" | field value)
[ "$moe" = 4 ] || [ "$moe" = 4.0 ]; result "one row chooses four experts ($moe)" $?
awk -v long="$long" '
    function of(key) { return match($0, "\"" key "\":[^,]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "null" }
    /"name":"(chat|repl)/ { match($0, /"name":"[^"]*"/); split(substr($0, RSTART + 8, RLENGTH - 9), n, "."); ms[n[1] == "chat" ? "chat" : n[2], n[length(n)]] = of("ms"); ratio[n[2], n[length(n)]] = of("ratio") }
    END { for (how = long ? 0 : 1; how < 2; how++) { h = how ? "spec" : "plain"
        bad += off(ms["chat", h] / ms["itl", h], ratio["itl", h]) + off(ms["chat", h] / ms["lines", h], ratio["lines", h]) + off(ms["lines", h] / ms["tui", h], ratio["tui", h]) }
        exit bad > 0 }
    function off(want, got) { return got < want * 0.999 || got > want * 1.001 }' "$T/out"
result "the program around a cycle is held against the cycle" $?
drafted=$(grep '"name":"cycle.nestling.3-1-4"' "$T/out" | field shape)
[[ $drafted == *" 2.35 tokens a cycle"* ]]; result "acceptance follows its script ($drafted)" $?

# ---- a killed benchmark leaves no process and no folder ----
mkdir "$T/tmp"
TMPDIR=$T/tmp "$AERIE" bench --device cpu --short 'repl.lines.*' >"$T/out" 2>"$T/err" </dev/null & pid=$!
until ls "$T"/tmp/aerie-bench-*/log.db >"$T/made" 2>&1 || ! kill -0 $pid 2>"$T/err"; do sleep 0.05; done
kill -9 $pid; wait $pid 2>"$T/err"
for _ in $(seq 600); do [ -n "$(ls "$T/tmp")" ] || break; sleep 0.1; done
grep -q log.db "$T/made" && [ -z "$(ls "$T/tmp")" ]; result "kill -9 leaves no folder behind" $?

# ---- text, and the choice of lines ----
bench --short gemv.o 'sample.*.T1'
awk 'NR > 2 { print $1 }' "$T/out" | grep -vx mem.cache | tr '\n' ' ' | grep -qx 'mem.read gemv.o.T1 gemv.o.T4 sample.argmax.201088.T1 sample.topk_p.201088.T1 '
result "names and patterns choose lines" $?
[ "$(grep -vc '^mem.cache' "$T/out")" = 7 ] && [ "$(awk 'NR > 2 && (NF < 6 || $2 !~ /^[0-9.]+$/ || $3 !~ /^[0-9.]+$/ || $4 !~ /^[0-9.]+$/ || $5 !~ /^[0-9.]+$/)' "$T/out" | wc -l)" = 0 ]
result "milliseconds, spread, megabytes and R stand in each" $?

# ---- made-up weights ----
bench --short --json --synthetic small-moe-32 step verify.m32
own=$(grep '"name":"verify.m32.T4"' "$T/out" | field experts) text=$(grep '"name":"verify.m32.text.T4"' "$T/out" | field experts)
[ $rc = 0 ] && awk -v own="$own" -v text="$text" 'BEGIN { exit !(text >= 4 && text < own && own <= 16) }'
result "rows of a text hit fewer experts than independent ones ($text, $own)" $?
# 24 layers: attention 4.7 MB, four experts 2.5, keys and values of 512 cells in one half of the layers 6.3, of 128 in the
# other 1.6; the head 0.5
bytes=$(grep '"name":"step.m32.512"' "$T/out" | field bytes) && [ "${bytes%.*}" -gt 15500000 ] && [ "${bytes%.*}" -lt 16400000 ]
result "a synthetic step reads what the model's floor counts ($bytes)" $?
if [ -n "$long" ]; then
    bench --short --json --synthetic gemma-3-270m step cycle.g270m
    [ $rc = 0 ] && bytes=$(grep '"name":"step.g270m.512"' "$T/out" | field bytes) && [ "${bytes%.*}" -gt 536000000 ] && [ "${bytes%.*}" -lt 570000000 ]
    result "so does one of a dense model of 550 MB ($bytes)" $?
    grep -q '"name":"cycle.g270m.3-1-4"' "$T/out"; result "its head drafts" $?
fi

# ---- which tool finds which historical fault: a row of `make bugs` ----
TOOLS='checker case' tests/bench/bugs.sh "$T/bugs" 26512=counted-twice >"$T/out" 2>"$T/err"
[ $? = 0 ] && [ "$(cut -f 2,3,5 "$T/bugs" | tr '\t\n' ' ,')" = 'checker found I9 in a chat,case found I9 at step 1.1,' ] &&
    tests/bench/bugs.sh --table "$T/bugs" | grep -qE '^\| 26512=counted-twice \| I9 in a chat, [0-9.]+ s \|  \|  \|  \|  \| I9 at step 1.1, '
result "the checker and a case of its step name a fault's rule" $?

# ---- what is refused ----
refuse 2 'no line that begins with or matches "cublas"' --short cublas
refuse 2 'no synthetic model "gpt-9".*gpt-oss-20b, .*gemma-4-E4B' --short mem step --synthetic gpt-9
refuse 2 'no line that begins with or matches "memory"' --short mem memory
refuse 2 'no line that begins with or matches "verify.nestling.text"' --short verify.nestling.text
refuse 2 'two models' --synthetic gemma-3-1b -m models/nestling/target
refuse 3 '.' --short step -m "$T/none"
if [ "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" -lt 60000000 ]; then
    refuse 3 '120b needs [0-9.]+ GiB, this machine has [0-9.]+ GiB' --short step --synthetic gpt-oss-120b
else
    echo "ok $((++n)) - refused: more than the machine has # SKIP this machine has room for 63 GB"
fi

plan
