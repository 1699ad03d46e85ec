#!/bin/bash
# The command line: what --help promises, what is refused and how, and what each subcommand prints.
. "$(dirname "$0")/kit.sh"
# expect NAME STATUS OUT-PATTERN ARGS...: status, and a pattern in the output ("" = none printed)
expect() {
    local name=$1 want=$2 pattern=$3 ok=0; shift 3
    run "$@"
    [ $rc = "$want" ] || { echo "# status $rc, expected $want"; ok=1; }
    if [ -n "$pattern" ]; then grep -qE -- "$pattern" "$T/out" || { echo "# no $pattern"; ok=1; }
    else [ ! -s "$T/out" ] || { echo "# something was printed"; ok=1; }; fi
    [ $ok = 0 ] || head -n 5 "$T/out" "$T/err" | cat -v | sed 's/^/# /'
    result "$name" $ok
}
# refuse STATUS ERROR-PATTERN ARGS...: nothing on stdout, one line on stderr that says why
refuse() {
    local want=$1 pattern=$2 ok=0; shift 2
    run "$@"
    [ $rc = "$want" ] && [ ! -s "$T/out" ] && [ "$(wc -l <"$T/err")" = 1 ] &&
        grep -q '^aerie: ' "$T/err" && grep -qE -- "$pattern" "$T/err" || ok=1
    [ $ok = 0 ] || { echo "# status $rc"; cat -v "$T/err" | head -n 4 | sed 's/^/# /'; }
    result "refused: aerie $(printf '%q ' "$@" | cut -c1-50)" $ok
}

# ---- one flag name, two commands ----
expect "--check of the chat, before any command" 0 'Hello' --check off run -n "Hello!"
expect "--check of the chat, behind it" 0 'Hello' run -n --check strict "Hello!"

# ---- help ----
expect "version" 0 '^aerie [0-9.]+$' --version
expect "version wins behind a command" 0 '^aerie [0-9.]+$' logs -V
expect "help" 0 '^usage: aerie' --help
cp "$T/out" "$T/help"
run help; cmp -s "$T/out" "$T/help"; result "help and --help are the same" $?
[ "$(awk 'length > 80' "$T/help" | wc -l)" = 0 ]; result "help fits in 80 columns" $?
run help commands; sed -n '/^| command/,/^$/p' repl/README.md | sed '/^$/d' | cmp -s - "$T/out"
result "the page's command table is the program's" $?
commands=$(sed -n '/^usage/,/^Commands/s/^  \([a-z]*\) .*/\1/p' "$T/help")
flags=$(grep -oE -- '^  (-.,|   ) --[a-z-]+' "$T/help" | grep -oE -- '--[a-z-]+' | sort -u)
settings=$(sed -n '/^Settings/,/^Files/s/^  \([a-z_.]*\) .*/\1/p' "$T/help")
[ "$(wc -w <<<"$commands")" -ge 10 ] && [ "$(wc -w <<<"$flags")" -ge 35 ] && [ "$(wc -w <<<"$settings")" -ge 19 ]
result "help lists commands, flags and settings" $?
missing=
for c in $commands; do run help "$c"; [ $rc = 0 ] && grep -q "^usage: aerie $c" "$T/out" || missing+=" $c"; done
[ -z "$missing" ]; result "every command has its help$missing" $?
run help pack; grep -q '^  *--issue ENGINE' "$T/out" && grep -qx 'For example:' "$T/out" && grep -qx 'session-sglang.md: the report' "$T/out"
result "and what is to know about it, with an example" $?
missing=
for c in $commands; do grep -q "aerie $c\b" repl/share/topics.txt || missing+=" $c"; done
for c in $("$AERIE" help commands | sed -n 's/^| `\(\/[a-z-]*\).*/\1/p'); do grep -qE -- "$c\b" repl/share/topics.txt || missing+=" $c"; done
[ -z "$missing" ]; result "a topic has each subcommand and each command of the chat$missing" $?
run help why are my drafts rejected; [ $rc = 0 ] && sed -n 1p "$T/out" | grep -qE '^(acceptance|drafts|/why|/triage) '
result "help searches for words" $?
run help no-sandbox; sed -n 1p "$T/out" | grep -qxE ' +--no-sandbox +may write anywhere, .*' && run help limit && [ "$(grep -c '^  -n, --limit N ' "$T/out")" = 2 ] && run help seed && sed -n 1p "$T/out" | grep -qx seed
result "help on a flag's name begins with the flag, unless it is a setting's, too" $?
run help xyzzy plugh; [ $rc = 1 ] && grep -q 'there is no help on "xyzzy plugh"' "$T/err"; result "words of which nothing is known" $?
# words that commands take: help lists those that the program acts on; so does the manual
run db nosuch; actions=$(sed 's/.*expected //; s/,//g; s/ or / /' "$T/err")
run help bench; names=$(sed -n '/lines begin with:$/,/^$/s/^  \([a-z]*\) .*/\1/p' "$T/out")
[ "$(wc -w <<<"$actions")" -gt 8 ] && [ "$(wc -w <<<"$names")" -gt 15 ]; result "the actions of db and the names of bench are listed" $?
missing=; run help db
for w in $actions; do
    grep -qE "^  $w( |\$)" "$T/out" && sed -n '/^  db /,/^  tokenize/p' "$T/help" | grep -qw "$w" || missing+=" help:$w"
    sed 's/\\-/-/g; s/\\f[A-Z]//g' repl/share/aerie.1 | grep -q "db $w" || missing+=" man:$w"
done
for w in $names; do
    sed -n '/^  bench /,/^  bugs/p' "$T/help" | grep -qw "$w" || missing+=" help:$w"
    sed -n '/^\.B bench$/,/^\.B bugs$/p' repl/share/aerie.1 | grep -qw "$w" || missing+=" man:$w"
done
[ -z "$missing" ]; result "help and manual name each of them$missing" $?
bash -n repl/share/aerie.bash; result "the bash completion is bash" $?
missing=
for w in $commands $flags; do sed 's/\\-/-/g; s/\\f[A-Z]//g' repl/share/aerie.1 | grep -qE -- "(^|[^a-z-])$w([^a-z-]|\$)" || missing+=" $w"; done
[ -z "$missing" ]; result "the manual knows every name$missing" $?
synopsis=$(sed -n '/^\.SH SYNOPSIS/,/^\.SH DESCRIPTION/p' repl/share/aerie.1); missing= # chat is "aerie [chat]" there
for w in $commands; do grep -qE "^\.B aerie $w( |\$)" <<<"$synopsis" || [ "$w" = chat ] || missing+=" $w"; done
[ -z "$missing" ]; result "and its synopsis every command$missing" $?
extra=$(sed 's/\\-/-/g; s/\\f[A-Z]//g' repl/share/aerie.1 | grep -oE -- '--[a-z-]+' | sort -u | comm -23 - <(echo "$flags") | tr '\n' ' ')
[ -z "$extra" ]; result "the manual knows no other flags $extra" $?

# ---- before anything is saved ----
expect "no sessions yet" 0 '' logs
expect "the database's path" 0 "^$T/data/aerie/sessions.db\$" db path
refuse 4 'does not exist' db check
run show last; [ $rc = 1 ] && [ "$(wc -l <"$T/err")" = 1 ]; result "show without a log: status 1" $?
[ ! -e "$T/data" ]; result "looking creates no database" $?

# ---- names with escapes ----
harmless() { ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]' "$T/out" "$T/err"; }
evil=$'\e]0;title\a\e[31m\xc2\x9b5n\xe2\x80\xaex'; mkdir -p "$T/$evil"
XDG_DATA_HOME=$T/$evil run db path; [ $rc = 0 ] && harmless && grep -qF '<U+001B>]0;title<U+0007><U+001B>[31m<U+009B>5n<U+202E>x' "$T/out"
result "db path shows the escapes of XDG_DATA_HOME" $?
XDG_DATA_HOME=$T/$evil run db path --json; [ $rc = 0 ] && harmless && grep -qF '\u001b]0;title\u0007' "$T/out"; result "and --json has them exactly" $?
all=0
while IFS= read -r line; do
    words=(); eval "words=($line)"
    XDG_DATA_HOME=$T/$evil XDG_CONFIG_HOME=$T/$evil XDG_STATE_HOME=$T/$evil run "${words[@]}"
    harmless || { all=1; echo "# escapes: $line"; }
done <<'END'
logs
doctor
run hello
logs
db check
db backup "$T/$evil/a.db"
db backup "$T/$evil/a.db"
db repair "$T/$evil/none/a.db"
db "$evil"
db sql "select '$evil'"
db sql "$evil"
export last -o "$T/$evil/x"
export last -o "$T/$evil/x"
export "$evil"
show "$evil"
show "$T/$evil/x.pack"
replay "$T/$evil/x.pack"
pack last -o "$T/$evil/p"
pack last -o "$T/$evil/p"
run -m "$T/$evil" hello
run --draft "$T/$evil" hello
run --seal "$T/$evil" hello
run --db "$T/$evil" hello
run -f "$T/$evil" hello
run --batch "$T/$evil/none"
run -p "$evil=1" hello
run -p "temperature=$evil" hello
run --remote "$evil" hello
run "--$evil" hello
--script "$T/$evil/none"
"$evil"
help "$evil"
import "$T/$evil/none"
tokenize -f "$T/$evil/none"
diff "$evil" last
parity "$T/$evil/none"
serve --key-file "$T/$evil/none"
golden "$T/$evil/none"
bench "$evil"
bugs --try "$evil"
END
echo "$evil = 1" >"$T/$evil/config"; mkdir -p "$T/$evil/aerie"; mv "$T/$evil/config" "$T/$evil/aerie/config"
XDG_CONFIG_HOME=$T/$evil run doctor; harmless || { all=1; echo "# escapes: the config file"; }
result "no command prints the escapes of a name" $all
rm -rf "${T:?}/$evil"

# ---- what is refused ----
refuse 2 'no command "nonsense".*help' nonsense
refuse 2 'unknown flag "--nonsense"' --nonsense
refuse 2 'unknown flag "--modle"; did you mean --model\? aerie help' --modle x
refuse 2 'no command "tirage"; did you mean aerie triage\?' tirage
refuse 3 'gpt-oss-20b: there is no such file or folder; aerie pull ORG/NAME' -m gpt-oss-20b run hello
refuse 2 'unknown flag "-Z"' -Z
refuse 2 'unknown flag "-Z"' logs -Z
refuse 2 '--seed needs an argument' run --seed
refuse 2 'seed cannot be "x"; expected 0 \.\.' run --seed x hello
refuse 2 '--plain takes no argument' --plain=yes
refuse 2 'expected NAME=VALUE' run -p temperature hi
refuse 2 'no setting is called "heat"; there are temperature' run -p heat=1 hi
refuse 2 '^aerie: --weights cannot be "fp4"; expected stored or fp8' run --weights fp4 hi
refuse 2 '^aerie: --draft-weights cannot be "FP8"; expected stored or fp8' run --draft-weights FP8 hi
refuse 2 '^aerie: --db cannot be empty; expected PATH' run --db '' hi
refuse 2 '^aerie: -m cannot be empty; expected PATH' run -m '' hi
refuse 2 'temperature cannot be "hot"; expected 0' run -p temperature=hot hi
refuse 2 'draft.nodes cannot be "1"; expected 2 \.\. 64' run -p draft.nodes=1 hi
refuse 2 '^aerie: logit_bias: 4096 is no token: the vocabulary has 4096 tokens, 0 to 4095$' run -n -p logit_bias=5:1,4096:1 hi
refuse 2 'power of two from 1 to 64' run --page-size 3 hi
refuse 2 'number from' run --context -5 hi
refuse 2 'the message needs [0-9]+ tokens with its surroundings, the context holds 16$' run -n --context 16 hello there my friend
refuse 2 '^aerie: -n cannot be "0"; expected a number from' logs -n 0
refuse 2 '^aerie: --limit cannot be "0"; expected a number from' logs --limit=0
refuse 2 '^aerie: --param "x": expected NAME=VALUE' run --param x hi
refuse 2 '^aerie: aerie db does not take -v \(--verbose\); ' db -v info
refuse 2 'expected auto, cpu or cuda' run --device gpu hi
refuse 2 'expected off\|text' run --log-level all hi
refuse 2 'expected auto\|always\|never' logs --color=yes
refuse 2 'does not take --temperature|unknown flag "--temperature"' logs --temperature 1
refuse 2 'aerie logs does not take --page-size' logs --page-size 4
refuse 2 'aerie logs does not take --page-size' --page-size 4 logs
refuse 2 'too many words' logs something
refuse 2 'something is missing' show
refuse 2 'too many words' show a b
refuse 2 'names no place' show last:0
refuse 2 'names no place' show last:1.
refuse 2 'names no place' show last:x.1
refuse 2 'expected jsonl or md' export last --format xml
refuse 2 'expected path, check, repair, backup, sql, prune, remove, vacuum, pin or unpin' --db "$T/help" db mend
refuse 2 'db check takes nothing' db check it
refuse 2 'sessions.db is a session log or a pack, expected attention steps in JSON' check "$DB"
refuse 2 '--tui cannot go with --plain' --tui --plain
refuse 2 'not a terminal' --tui
refuse 2 'message is empty' run
refuse 2 'message is empty' run ""
refuse 2 "cannot open .*$T/none" run -f "$T/none"
refuse 3 "$T/none" run -m "$T/none" hi
refuse 3 "$T/none" tokenize -m "$T/none"
refuse 1 'no help on "help-me"' help help-me
# files of holes that claim a terabyte: refused by their size, before anything of them is read
for f in config generation_config tokenizer tokenizer_config chat_template; do
    rm -rf "$T/m"; mkdir "$T/m"; ln -s "$PWD"/models/nestling/target/* "$T/m"
    [ $f != chat_template ] || rm -f "$T/m/tokenizer_config.json" "$T/m/chat_template.jinja"
    rm -f "$T/m/$f.json"; truncate -s 1T "$T/m/$f.json"
    refuse 3 "/m/$f.json has 1099511627776 bytes: expected at most [0-9]*$" run -m "$T/m" hi
done
truncate -s 1T "$T/holes"
refuse 2 'holes has 1099511627776 bytes' run -f "$T/holes"
refuse 2 'the text has 1099511627776 bytes' tokenize "$T/holes"
refuse 2 'holes line 1: .*longer than 16 MiB' run --batch "$T/holes"
refuse 2 'holes line 1: longer than 16 MiB' parity "$T/holes"
refuse 2 'the key: .*holes has 1099511627776 bytes' run --remote http://127.0.0.1:1 --api-key-file "$T/holes" hi
run import "$T/holes"; [ $rc = 2 ] && grep -q 'holes line 1 has a NUL byte; expected lines of JSON' "$T/err"; result "refused: import of holes" $?
rm -rf "$T/holes" "$T/m"
# page counts whose cells no int counts
refuse 2 'the full pool would have 33554432 pages of 64 tokens: expected at most 2147483647' run --full-pages 33554432 --page-size 64 hi
refuse 2 'the swa pool would have 268435456 pages of 16 tokens' run --swa-pages 268435456 hi
run $'no\e]0;title\a\r\xe2\x80\xaesuch'
[ $rc = 2 ] && ! LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f]' "$T/err" && ! grep -q $'\xe2\x80\xae' "$T/err"
result "an error shows control characters as text" $?

# ---- the config file ----
mkdir -p "$T/config/aerie"
config() { printf '%b' "$1" >"$T/config/aerie/config"; }
config 'seed = 4\n\n# a comment\nheat = 3\n'; refuse 2 "^aerie: $T/config/aerie/config:4: \"heat\" is neither" logs
config 'top_p = 2\n'; refuse 2 'config:1: top_p cannot be "2"' run hi
config 'just words\n'; refuse 2 'config:1: expected name = value' run hi
config 'seed = 4\n\0top_p = 2\n'; refuse 2 'config has a NUL byte' logs
config 'ascii = perhaps\n'; refuse 2 'config:1: .*expected on or off' logs
config 'page-size = 5\n'; refuse 2 'config:1: page-size cannot be "5"' logs
expect "doctor tells of a bad config file" 2 'fail +config +.*config:1: page-size cannot' doctor
config 'no-sandbox = on\n'; expect "doctor warns of a config file that turns the isolation off" 0 'warn +isolation +off: ' doctor
config 'bug = 24617\nspec = off\ncheck = off\n'
expect "a fault of the config file stays out of golden" 0 ' 0 failed' golden --device cpu tests/golden/llama-b
expect "and out of bugs" 0 'swa-untranslated' bugs
config 'bug = nonsense\n'; refuse 2 'config:1: .*nonsense' golden tests/golden/llama-b
config 'bug = 26512=third\n'; refuse 2 "bug 26512: expected on, off, prefix-only or counted-twice, not 'third'" run hi
config 'bug = 24617=third\n'; refuse 2 "bug 24617: expected on or off, not 'third'" run hi
config 'draft = ngram\n'; expect "the config file names a drafter" 0 'draft +ngram: a drafter without weights' doctor
config 'draft = off\n'; printf '/stats\n' >"$T/script"
expect "draft = off is the setting" 0 'spec +off: switched off' chat -n --script "$T/script"
config 'readonly = on\n'; printf '/title x\n' >"$T/script"
run chat --db "$T/ro.db" --script "$T/script"; grep -q 'which --readonly and a replay forbid' "$T/err" && [ ! -e "$T/ro.db" ]
result "readonly refuses what writes and saves nothing" $?
usual_config

# endless input
if [ -c /dev/zero ]; then
    refuse 2 'line 1: the line is longer than 16 MiB' tokenize --jsonl /dev/zero
    refuse 2 '/dev/zero line 1: the line is longer than 16 MiB' run --batch /dev/zero
fi
config '  max_tokens=3  \r\nplain = on\ncolor = never\nno-log = off\ntemperature = 0\ndevice = cpu\n'
expect "a config file with flags of other commands" 0 '' logs

# ---- tokenize ----
mkdir "$T/tok"; cp models/nestling/target/tokenizer.json "$T/tok/"
printf 'Hello, aerie!' >"$T/text"
expect "tokenize with only a tokenizer.json" 0 '^[0-9]+( [0-9]+)*$' tokenize -m "$T/tok" "$T/text"
ids=$(cat "$T/out")
[ "$("$AERIE" tokenize <"$T/text")" = "$ids" ] && [ "$({ printf '\xEF\xBB\xBF'; cat "$T/text"; } | "$AERIE" tokenize)" = "$ids" ]
result "tokenize reads standard input, without a byte order mark" $?
printf '\xEF\xBB\xBF{"text":"Hello, aerie!"}\n\n{"other":1,"text":""}\n' >"$T/lines"
expect "tokenize --jsonl" 0 '^\{"ids":\[\]\}$' tokenize --jsonl "$T/lines"
[ "$(head -n 1 "$T/out")" = "{\"ids\":[${ids// /,}]}" ]; result "both ways give the same ids" $?
printf '{"text":"a"}\n{"text":7}\n' >"$T/lines"
run tokenize --jsonl "$T/lines"; [ $rc = 2 ] && grep -q 'line 2: expected' "$T/err"
result "a bad line is named" $?
printf '<end_of_turn>' >"$T/text"
run tokenize "$T/text"; plain=$(wc -w <"$T/out"); run tokenize --special "$T/text"
[ "$plain" -gt 1 ] && [ "$(wc -w <"$T/out")" = 1 ]; result "special tokens only with --special" $?

# ---- fit ----
of() { sqlite3 :memory: "SELECT json_extract(readfile('$T/out'), '\$.$1')"; } # a number of the answer
run fit --json; bytes=$(stat -c %s models/nestling/target/model.safetensors) all=$(of all)
[ $rc = 0 ] && [ "$(of fits)" = 1 ] && [ "$(of model) $(of context) $(of longest)" = 'nestling 4096 4096' ] &&
    [ "$(of weights)" -gt $((bytes * 9 / 10)) ] && [ "$(of weights)" -lt $((bytes * 11 / 10)) ] && [ "$(of draft)" -gt 0 ] &&
    [ "$all" = $(($(of weights) + $(of draft) + $(of full) + $(of swa) + $(of draft_kv) + $(of scratch))) ] &&
    [ "$(of kv.f32)" = $((2 * $(of kv.bf16))) ] && [ "$(of total)" -gt "$(of free)" ]
result "fit sums up what the bundled model takes" $?
cp "$T/out" "$T/fit"; printf '/memory\n' >"$T/script"; run -n --json --script "$T/script"
[ "$(of result.all)" = "$all" ] && [ "$(of result.scratch)" -gt 0 ]; result "/memory says the same of the running model" $?
expect "fit for people" 0 '^KV, sliding layers +[0-9.]+ MiB$' fit
expect "a longer context than the model's is said to be none" 0 '^the context is 4096 tokens: the model has no more positions' fit --context 99999
run fit models/nestling/target --json; [ $rc = 0 ] && [ "$(of all)" = "$all" ]; result "a named model with the draft beside it" $?
run fit models/nestling/target --draft none --json; weights=$(of weights); [ $rc = 0 ] && [ "$(of draft)" = 0 ] && [ "$(of all)" -lt "$all" ]
result "and without" $?
run fit models/nestling/target/config.json --json; [ "$(of weights)" = "$weights" ]; result "its config alone says the same" $?
run fit gpt-oss-20b --context 131072 --json; full=$(of full); more=$(of kv.bf16)
[ "$(of kv.bf16)" -gt 3221225472 ] && [ "$(of kv.bf16)" -lt 3435973837 ] && [ "$(of context)" = 131072 ]
result "128k of gpt-oss-20b are 3.1 GiB of keys and values in bf16" $?
run fit gpt-oss-20b --context 65536 --json; [ "$(of full)" -lt $((full * 51 / 100)) ]; result "half the context, half the pool" $?
run fit gpt-oss-120b --context 131072 --lanes 32 --json; [ "$(of all)" -gt $((32 * more)) ] && [ "$rc" = $((1 - $(of fits))) ]
result "the status says whether it fits" $?
cp -r models/nestling/target "$T/holes"; truncate -s 0 "$T/holes/tokenizer.json"
head -c 200000 models/nestling/target/model.safetensors >"$T/holes/model.safetensors"
truncate -s "$bytes" "$T/holes/model.safetensors"; run fit "$T/holes" --json; [ "$(of weights)" = "$weights" ]
result "only the headers are read" $?
refuse 3 'fit/x: there is no such file or folder' fit fit/x
echo '{"model_type":"llama"}' >"$T/bad.json"; refuse 3 "bad.json: .*hidden_size" fit "$T/bad.json"

# ---- run ----
long=$("$AERIE" run -n -p max_tokens=20 "What are you?" 2>/dev/null | wc -c)
short=$("$AERIE" run -n "What are you?" 2>/dev/null | wc -c)
usual_config
[ "$short" -gt 0 ] && [ "$short" -lt "$long" ]; result "max_tokens of the config file; -p wins" $?
expect "run prints the reply" 0 '[A-Za-z]' run --device cpu "What are you?"
[ ! -s "$T/err" ] && [ "$(tail -c 1 "$T/out" | od -An -c | tr -d ' ')" = '\n' ]
result "whole, and nothing on standard error" $?
config '' # no word about the device
run doctor; cuda=$(grep -o ' cuda: .*' "$T/out")
case $cuda in
*"this build has no CUDA"*) said= ;; # nobody could have expected it
*GiB*) said= ;;                      # it works
*) said="computing on the CPU: ${cuda# cuda: }" ;;
esac
has_gpu() { # of NVIDIA's, whether it can be used or not
    local v; [ -e /proc/driver/nvidia/version ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ] && return
    for v in /sys/bus/pci/devices/*/vendor; do grep -qs ^0x10de "$v" && grep -qs ^0x03 "${v%vendor}class" && return; done
    return 1
}
alone=; has_gpu && alone=$said
run run -n hi; [ "$rc" = 0 ] && [ "$(grep -v '^aerie: stopped' "$T/err")" = "${alone:+aerie: $alone}" ] && run run -n -q hi &&
    [ ! -s "$T/err" ] && lines '{"prompt":"hi"}' >"$T/in" && run run --batch "$T/in"
[ "$rc" = 0 ] && [ "$(cat "$T/err")" = "${said:+aerie: $said}" ]
result "without a GPU the CPU computes; why is said once, to a batch, and by run if there is a GPU ($said)" $?
case $cuda in
*GiB*)
    expect "a GPU that is asked for is used" 0 '[A-Za-z]' run -n --device cuda hi
    CUDA_VISIBLE_DEVICES='' run run -n hi; [ "$rc" = 0 ] && [ "$(grep -c '^aerie: computing on the CPU: no CUDA device' "$T/err")" = 1 ]
    result "why a GPU of the machine is not used is said" $?
    run fit --json --device cuda; all=$(of all) weights=$(of weights); printf '/memory\n' >"$T/script"; run -n --json --device cuda --script "$T/script"
    [ "$(of result.all) $(of result.weights)" = "$all $weights" ] && [ "$weights" -gt 0 ]; result "/memory counts the weights on a GPU" $?
    ;;
*) refuse 3 "^aerie: ${cuda# cuda: }; --device cpu needs none" run -n --device cuda hi ;;
esac
usual_config
a=$("$AERIE" run -n --no-spec -p max_tokens=24 "Tell me a story." 2>/dev/null)
cp -r models/nestling/draft "$T/mute"; at=$(($(stat -c %s "$T/mute/model.safetensors") - 4608)) # of norm.weight
printf '\377\177' | dd of="$T/mute/model.safetensors" bs=1 seek="$at" conv=notrunc status=none
cp -r models/nestling/target "$T/odd"; at=$(($(stat -c %s "$T/odd/model.safetensors") - 512)) # of model.norm.weight
printf '\377\177' | dd of="$T/odd/model.safetensors" bs=1 seek="$at" conv=notrunc status=none
case $cuda in *GiB*) devices="cpu cuda" ;; *) devices=cpu ;; esac
for d in $devices; do
    want=$a; [ "$d" = cpu ] || want=$("$AERIE" run -n --device "$d" --no-spec -p max_tokens=24 "Tell me a story." 2>/dev/null)
    run run -n --device "$d" -m models/nestling/target --draft "$T/mute" -p max_tokens=24 "Tell me a story."
    [ "$rc $(cat "$T/out")" = "0 $want" ] && [ "$(grep -c 'gave no token: its norm.weight has a weight that is not' "$T/err")" = 1 ]
    result "a draft with a weight that is no number changes nothing, and is named, on $d" $?
    run run -n --device "$d" -m "$T/odd" --draft none -p max_tokens=24 "Tell me a story."
    [ "$rc" != 0 ] && grep -q "output is not a number; the turn was stopped: model.norm.weight has a weight that is not a finite number" "$T/err"
    result "so is one of the model, on $d" $?
done
b=$("$AERIE" run -n -p max_tokens=24 -p draft.topk=4 -p draft.nodes=16 Tell me a story. 2>/dev/null)
[ -n "$a" ] && [ "$a" = "$b" ]; result "drafting changes nothing, and words are joined" $?
printf 'Tell me a story.\n' >"$T/prompt"
[ "$("$AERIE" run -n -p max_tokens=24 -f "$T/prompt" 2>/dev/null)" = "$a" ] &&
    [ "$("$AERIE" run -n -p max_tokens=24 <"$T/prompt" 2>/dev/null)" = "$a" ]
result "a prompt from a file and from standard input" $?
"$AERIE" run -n -p max_tokens=2 hi >/dev/full 2>"$T/err"; [ $? = 2 ] && grep -q 'standard output' "$T/err"
result "a full disk under standard output is an error" $?

# ---- logs, show, export, db ----
[ "$("$AERIE" logs --json | wc -l)" = 1 ]; result "-n saves nothing" $?
expect "logs" 0 '^    1  20' logs
id=$("$AERIE" logs --json | sed 's/.*"id":"\([^"]*\)".*/\1/')
expect "logs --json" 0 "^\\{\"id\":\"$id\",\"number\":1,.*\"turns\":1,.*\\}\$" logs --json
expect "logs -q finds" 0 "^    1  20" logs -q what
expect "logs -q finds nothing: status 1" 1 '' logs -q xyzzyplugh
expect "logs -m finds" 0 "^    1  20" logs -m nestling
expect "logs -m finds nothing: status 1" 1 '' logs -m other-model
expect "a letter before the command means what it means everywhere" 0 "^    1  20" -q logs
expect "show" 0 'What are you' show last
expect "show of a turn lists its steps" 0 '^ +1\.1 +prefill' show "$id:1"
expect "show by number" 0 '^ +1\.1 +prefill' show "#1:1"
expect "show says why a prompt was computed" 0 "first turn" show 1
expect "show of a step says what each token beat" 0 'log p .*rival "' show 1:1.2
expect "show of a step" 0 'digests .*pages [0-9a-f]{16}' show "${id:0:20}:1.2"
expect "show --json" 0 '^\{"id":.*"steps":\[\{"step":1,"kind":"prefill"' --json show "$id"
refuse 1 'has no turn 7' show last:7
refuse 1 'turn 1 of session .* has no step 999; its newest is step' show last:1.999
refuse 1 'no session' show ZZZZ
refuse 1 'expected a number or an id that aerie logs or /sessions lists' show -- '?'
refuse 2 '^aerie: search is a command of the chat, /search; .* aerie logs -q WORDS$' search page
refuse 2 '^aerie: sessions is a command of the chat' sessions
run logs --help; grep -q '^  -q, --query' "$T/out" && grep -q '^      --quiet' "$T/out"; result "a letter is one flag in a command's help" $?
grep -qE '^  -n, --limit N  +at most N sessions \(20\)$' "$T/out" && grep -qE -- '--json  +JSON for machines$' "$T/out" && run probe --help &&
    grep -qE '^  -n, --limit N  +cases, requests$' "$T/out" && run chat --help && grep -qE -- '--json  +JSON for machines; implies --plain$' "$T/out"
result "and a flag's text says what it does there" $?
if command -v script >/dev/null; then
    script -qec "stty cols 60; NO_COLOR=1 '$AERIE' show last" /dev/null </dev/null | tr -d '\r' >"$T/out"
    grep -q '^computed   cpu' "$T/out" && grep -q '^           [^ ]' "$T/out" && [ "$(wc -L <"$T/out")" -le 60 ]
    result "show is wrapped to the terminal" $?
    script -qec "stty cols 60; NO_COLOR=1 '$AERIE' help swa; echo /help swa | NO_COLOR=1 '$AERIE' --plain -q -n" /dev/null </dev/null | tr -d '\r' >"$T/out"
    [ "$(wc -L <"$T/out")" -le 60 ] && [ "$(grep -c '^/map POS       which slot and page of each pool hold a$' "$T/out")" = 2 ]
    result "a paragraph of help is wrapped to the terminal once, by the shell's command and by a chat of plain lines" $?
    script -qec "stty cols 50; NO_COLOR=1 '$AERIE' stats" /dev/null </dev/null | tr -d '\r' >"$T/out"
    [ "$(wc -L <"$T/out")" -le 50 ] && grep -q '^number .*…$' "$T/out"; result "rows of stats are cut at the terminal's width" $?
    script -qec "stty cols 60; NO_COLOR=1 '$AERIE' show last:1" /dev/null </dev/null | tr -d '\r' >"$T/out"
    sed -n '/^    1\.1 /,$p' "$T/out" >"$T/steps"; [ "$(wc -L <"$T/steps")" -le 60 ] && grep -q '^           "' "$T/steps" && [ -z "$(awk 'gsub(/"/, "") % 2' "$T/steps")" ]
    result "the rows of steps end between two tokens" $?
fi
expect "export as JSON lines" 0 '^\{.*\}$' export last
LC_ALL=C grep -qv '^{[ -~]*}$' "$T/out"; [ $? = 1 ]; result "each record is a line of ASCII" $?
expect "export as Markdown" 0 'What are you' export last --format md
expect "export to a file" 0 '' export last -o "$T/new.jsonl"
[ "$(stat -c %a "$T/new.jsonl")" = 600 ]; result "which is private" $?
expect "export to a hidden file, which only a chat refuses" 0 '' export last -o "$T/.hidden.jsonl"
run export last -o "$T/new.jsonl"; [ $rc != 0 ] && [ -s "$T/new.jsonl" ]; result "and never overwritten" $?
run export last -o "$T/new.md"; grep -q '^## ' "$T/new.md"; result "a file that ends in .md gets Markdown" $?
[ "$(stat -c %a "$T/data/aerie" "$T/data/aerie/sessions.db" | tr '\n' ' ')" = "700 600 " ]
result "the database is private" $?
run db check; [ $rc = 0 ]; result "db check" $?
expect "db backup" 0 '' db backup "$T/copy.db"
expect "the backup holds the session" 0 "^    1  20" --db "$T/copy.db" logs
refuse 2 'expected --older-than' db prune
expect "db prune keeps what is new" 0 '^0 sessions removed' db prune --older-than 1
expect "db prune" 0 '^1 session removed' --db "$T/copy.db" db prune --older-than 0
cp "$T/prompt" "$T/broken.db"; run --db "$T/broken.db" logs; [ $rc = 4 ]; result "a file that is no database: status 4" $?

# ---- doctor ----
expect "doctor" 0 '^ok +database .*1 session, checksums of 1 turns? ok' doctor
grep -qE '^ok +bundled .*gemma' "$T/out" && grep -qE '^ok +draft ' "$T/out"; result "doctor loads the bundled pair" $?
expect "doctor --json" 0 '^\[\{"check":"aerie","status":"ok"' doctor --json
mkdir "$T/full"; ln -s "$PWD"/models/nestling/target/* "$T/full"; rm "$T/full/config.json" # all layers full
sed 's/sliding_attention/full_attention/' models/nestling/target/config.json >"$T/full/config.json"
expect "doctor knows a model without a window" 0 '^ok +model .* MiB, no window, 4096 tokens' doctor -m "$T/full"
"$AERIE" -n --plain -m "$T/full" <<<'/stats' >"$T/out" 2>&1; grep -q '8 layers, no window, pages' "$T/out"
result "so does /stats" $?
echo '{"weight_map": {"a": "other.safetensors"}}' >"$T/full/model.safetensors.index.json"
both='has model.safetensors and model.safetensors.index.json: the weights are those of model.safetensors$'
expect "doctor says which of two files has the weights" 0 "^warn +model .*$both" doctor -m "$T/full"
run run -n -m "$T/full" -p max_tokens=1 hello; [ $rc = 0 ] && grep -q "$both" "$T/err"
result "so does a run" $?
expect "doctor names a model that does not load" 3 "^fail +model .*$T/tok" doctor -m "$T/tok"

# ---- golden ----
expect "golden" 0 '0 failed' golden tests/golden/gemma3-a
expect "golden --json" 0 '^\{"checks":\[.*\}$' --json golden tests/golden/gemma3-a
refuse 3 "$T/none" golden "$T/none"
canary='kv_canary violation: launch_tag=TAIL_K_SWA fail_reason=write_position slot_idx=53504 position=512 stored_token=1299 expected_token=1299 stored_chain_hash=0x12 expected_aux=0x2100'
printf '%s\n' "[2026-01-01 TP0] Receive: text='My name is Bartholomew'" "[2026-01-01 TP0] 'Bartholomew' $canary" >"$T/server.log"
expect "dump: a line of kv_canary, its page and both readings" 1 '^TAIL_K_SWA write_position: slot 53504, page 3344 cell 0; writes position 512, token 1299, expected position 8448,' dump "$T/server.log" --page-size 16
! grep -qi bartholomew "$T/out"; result "and no text of the log around it" $?
expect "dump --json" 1 '^\{"violations":1,.*"pool":"swa","slot":53504,"page":53504,.*"expected_position":8448,' dump "$T/server.log" --json
refuse 2 'cannot open .*none' dump "$T/none"
refuse 2 'no file step=' dump tests/golden/gemma3-a
mkdir "$T/golden"; cp tests/golden/gemma3-a/* "$T/golden/"
size=$(stat -c %s "$T/golden/model.safetensors") # one weight becomes another
printf '\x40' | dd of="$T/golden/model.safetensors" bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
run golden "$T/golden"; [ $rc = 1 ] && grep -q '[1-9][0-9]* failed' "$T/out"; result "golden finds one wrong weight: status 1" $?

# ---- make install ----
if [ -n "$BUILD" ] && [ "$(basename "$AERIE")" = aerie ]; then
    P=$T/root/usr
    mkdir -p "$P/bin" "$P/share/aerie/models"
    cp "$AERIE" "$P/bin/"
    make -n install DESTDIR="$T/root" PREFIX=/usr MODE=release >"$T/plan" 2>&1
    missing=
    for f in bin/aerie man/man1/aerie.1 completions/aerie site-functions/_aerie aerie.fish nestling/target nestling/draft; do
        grep -q -- "$T/root/usr.*$f" "$T/plan" || missing+=" $f"
    done; [ -z "$missing" ]; result "make install puts everything below DESTDIR$missing" $?
    # install's last words are targets; uninstall removes the same files
    grep '^install ' "$T/plan" | grep -o '[^ ]*$' | sort >"$T/put"
    make -n uninstall DESTDIR="$T/root" PREFIX=/usr MODE=release 2>&1 | grep '^rm ' | tr ' ' '\n' | grep ^/ | sort >"$T/taken"
    [ "$(wc -l <"$T/put")" -ge 10 ] && cmp -s "$T/put" "$T/taken"; result "make uninstall removes what make install puts there" $?
    # what `make` builds for where there is a GPU: nvidia-smi prints compute capabilities, or a sentence; nvcc its release
    mkdir "$T/tools"; printf '#!/bin/sh\ncat "%s/gpus"\n' "$T" >"$T/tools/nvidia-smi"
    printf '#!/bin/sh\n[ "$1" = --list-gpu-code ] && echo sm_80 sm_86 sm_90 || echo "tools, release $(cat "%s/nvcc"), V1"\n' "$T" >"$T/tools/nvcc"
    for f in cc pkg-config; do printf '#!/bin/sh\n' >"$T/tools/$f"; done # tests have no compiler
    chmod +x "$T/tools"/*
    builds() { # NAME STATUS PATTERN GPUS NVCC [ARGUMENT...]
        printf '%b\n' "$4" >"$T/gpus"; echo "$5" >"$T/nvcc"
        env -u GPUS -u ARCH -u TOLD -u MAKEFLAGS -u MAKEOVERRIDES PATH="$T/tools:$PATH" make -s check-deps NVCC="$T/tools/nvcc" ZMQ=0 MODE=release CUDA=auto "${@:6}" >"$T/out" 2>&1; rc=$?
        [ $rc = "$2" ] && grep -qE -- "$3" "$T/out"; result "$1" $?
    }
    builds "GPUs of 7.5, 8.6 and 9.0" 0 'for the CPU and for GPUs: 86 90a;' '9.0\n7.5\n8.6\n9.0' 13.0
    builds "a GPU that nvcc does not know" 0 'for GPUs: 90\+ptx;' 12.1 12.4
    builds "a GPU of 7.5 alone" 0 'for the CPU \(no NVIDIA GPU' 7.5 13.0
    builds "no GPU, which nvidia-smi says in words" 0 'for the CPU \(no NVIDIA GPU' 'No devices were found' 13.0
    builds "an nvcc that is too old" 0 'for the CPU \(the CUDA toolkit here is 11.8; .* 12.0 or newer\)' 9.0 11.8
    builds "the same with CUDA=1" 2 'CUDA=1 needs the CUDA toolkit 12.0 or newer: .*nvcc is 11.8' 9.0 11.8 CUDA=1
    # a program in PREFIX/bin has PREFIX's model, one in SOURCE/build/CONFIG has SOURCE's
    for place in inst/bin:inst/share/aerie src/build/x:src; do
        at=$T/${place%%:*} models=$T/${place##*:}/models
        mkdir -p "$at" "$models"; cp "$AERIE" "$at/aerie"; cp -r models/nestling "$models/"
        "$at/aerie" doctor --json 2>/dev/null | grep -q "$models/nestling"
        result "${place%%:*}/aerie takes the model of ${place##*:}" $?
    done
fi
plan
