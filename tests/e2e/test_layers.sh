#!/bin/bash
# Which folder may include which: the arrows of engine/README.md, one line a folder. Also: no files call each other
# in a circle, only repl/tui/term.c includes curses, only history/ includes SQLite, and one file chooses a backend.
cd "$(dirname "$0")/../.." || exit 2
bad=0
result() { # what was found, title
    if [ -n "$1" ]; then echo "$1"; echo "not ok - $2"; bad=1; else echo "ok - $2"; fi
}
# FOLDER: the files directly in it include only headers that match one of the patterns (anchored, from the
# project's root). Its own headers are always allowed.
only() {
    local dir=$1; shift
    local allow="$dir/[a-z0-9_]+\\.cuh?|$dir/[a-z0-9_]+\\.h"; for p; do allow+="|$p"; done
    local files; files=$(find "$dir" -maxdepth 1 -name '*.[ch]' -o -maxdepth 1 -name '*.cu' -o -maxdepth 1 -name '*.cuh')
    [ -n "$files" ] || { result "no file in $dir" "$dir has files"; return; }
    result "$(grep -nE '^ *# *include "' $files /dev/null | grep -vE "\"($allow)\"")" "$dir includes: $* "
}
without() { # title, pattern, exception, folders...
    local title=$1 pattern=$2 except=$3; shift 3
    result "$(grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' -- "$pattern" "$@" | grep -vE "${except:-^$}")" "$title"
}

operations='kernels/(base|idioms|lines|text|sort|when|mapped|sanitizers|kernels|window|fp8|packed|tree_rules)\.h' # what a backend may include
base='kernels/(base|idioms|lines|text|sort|when|fields|json|json_read|utf8|ascii|mapped|late|sanitizers)\.h' table='kernels/(base|idioms|lines|text|sort|when|mapped|late|fields|json|json_read|utf8|ascii|kernels|window|fp8|packed|tree_rules)\.h'
only kernels
only kernels/cpu "$operations" 'kernels/fp8\.h'
only kernels/cuda "$operations" 'kernels/cuda/.*'
only kernels/cuda/base 'kernels/cuda/cuda\.h'
device='kernels/cuda/(cuda|timeline)\.h'
only kernels/cuda/dense "$device" 'kernels/fp8\.h' 'kernels/cuda/base/.*'
only kernels/cuda/moe "$device" 'kernels/cuda/(base|dense)/.*'
only kernels/cuda/attention "$device" 'kernels/fp8\.h' 'kernels/cuda/(base|dense)/.*'
only kernels/cuda/sampling "$device" 'kernels/cuda/base/.*'
only kernels/cuda/tree 'kernels/cuda/(cuda\.h|base/.*)' 'kernels/tree_rules\.h' 'kernels/cuda/sampling/.*'

only models "$base"
only models/checkpoint "$base" 'kernels/(fp8|packed)\.h' 'models/models\.h' 'models/families/families\.h'
only models/families "$base" 'models/models\.h' 'models/checkpoint/.*'
only models/tokenizer "$base" 'models/models\.h' 'models/checkpoint/(json|gguf)\.h'
only models/chat "$base" 'models/models\.h' 'models/tokenizer/tokenizer\.h' 'models/checkpoint/gguf\.h'
only models/grammar "$base" 'models/tokenizer/tokenizer\.h'
only models/draft "$base" 'models/models\.h' 'models/checkpoint/.*' 'models/families/.*'

below="$table|models/.*|engine/(event|served|settings|bugs|fault|probe|what_if|job)\\.h"
only engine "$below" 'engine/(past/reuse|cache/(tree|page_event))\.h'
only engine/past "$below" 'engine/(backend\.h|cache/.*)'
only engine/cache "$below"
only engine/plan "$below" 'engine/cache/.*'
only engine/run "$below" 'engine/(cache|plan)/.*'
only engine/draft "$below" 'engine/(cache|plan|run)/.*'
only engine/cycle "$below" 'engine/(cache|plan|run|draft)/.*'
only engine/thread "$below" 'engine/(engine|backend|opts)\.h' 'engine/(past|cache|plan|run|draft|cycle)/.*'
only engine/tools "$below" 'engine/(engine|backend|opts)\.h' 'engine/(cache|plan|run|draft|cycle|thread)/.*'

only engine/remote "$below" 'engine/(backend|opts|past/(step_ring|room))\.h'

stored='engine/(event|fault)\.h|engine/cache/(tree|page_event)\.h|history/(history|internal|columns|evidence/hazards)\.h'
only history "$base" "$stored"
for part in log evidence recovery pack; do only history/$part "$base" "$stored"; done

public="$base|kernels/window\\.h|history/(history|evidence/hazards)\\.h|engine/(backend|opts|event|settings|bugs|fault|probe|what_if|job)\\.h|engine/cache/(tree|page_event)\\.h|models/models\\.h"
public+='|engine/past/page_history\.h|engine/tools/noise_backend\.h|engine/remote/(upkeep|by_ids|records|pull)\.h'
public+='|models/checkpoint/hub\.h|models/draft/pair\.h|models/tokenizer/tokenizer\.h|models/chat/chat\.h|models/grammar/grammar\.h|engine/thread/(breaks|calibrate|contexts|load|redraft)\.h|engine/tools/(bench|bugs_try|canary|case|dump|flashinfer|golden|synthetic)\.h'
only repl/text "$base"
only repl/process "$public" 'engine/(engine|remote/remote)\.h' # open.c
only repl/compare "$public" 'repl/process/(open|interrupt)\.h' 'repl/text/(sheet|print)\.h'
only repl/recorded "$public" 'repl/(compare/(facts|script)|text/sheet)\.h'
only repl/http "$public" 'repl/(compare/facts|process/open)\.h'
app='repl/repl\.h|repl/(app|process|compare|recorded|text)/[a-z_]+\.h'
only repl/app "$public" "$app"
only repl/cmd "$public" "$app"
only repl/cli "$public" "$app" 'repl/(cmd/(cmd|commands|sql)|http/serve|tui/(recall|term))\.h'
only repl/tui "$public" "$app" 'repl/cmd/(commands|views)\.h'
only repl "$public" "$app" 'repl/cli/cli\.h'

without "only repl/tui/term.c includes curses" '#include <(ncurses|curses)' '^repl/tui/term\.c:' repl engine history models kernels
without "only engine/remote/http.c includes curl" '#include <curl' '^engine/remote/http\.c:' repl engine history models kernels
without "only repl/http/front.c includes microhttpd" '#include <microhttpd' '^repl/http/front\.c:' repl engine history models kernels
without "only engine/remote/kv_socket.c includes ZeroMQ" '#include <zmq' '^engine/remote/kv_socket\.c:' repl engine history models kernels
without "only kernels/json_read.c has Jansson parse a text" '\bjson_load' '^kernels/json_read\.[ch]:' repl engine history models kernels
# but for a config made from a GGUF file, whose hash is stored in logs
without "only kernels/json_read.c has Jansson write one" '\bjson_dump' '^(kernels/json_read\.[ch]|models/checkpoint/gguf_config\.c):' repl engine history models kernels
without "only these know standard output and error, and what they print is fit for a terminal" \
    "\\b(stdout|stderr)\\b|\\bwrite(_fully)?\\(STD(OUT|ERR)_FILENO|[^a-z_'](printf|puts|putchar|perror)\\([^']" \
    '^(kernels/base\.c:.*write\(STDERR|repl/cli/plain\.c:.*write_fully\(STDERR_FILENO, clean|repl/cmd/sql\.c:.*write_fully\(STDOUT|repl/cli/out\.c:.*write_fully\(STDERR_FILENO, line|repl/tui/term\.c:.*(newterm|write\(STDOUT)|repl/process/isolate\.c:.*"/dev/stdout|kernels/cuda/timeline\.cu:)' \
    kernels models engine history repl
without "only history/log/file.c opens files beside the log" '\b(file_open(_regular)?|open|fopen|buf_read_file)\(' \
    '^history/(log/file\.c|log/vfs\.c|evidence/seal\.c|pack/pack_file\.c|log/live\.c:.*boot_id|history\.h|internal\.h)' history
columns=$(sed -n '/^#define STEP_COLUMNS/,/^$/s/^    X(\([a-z0-9_]*\),.*/\1/p' history/columns.h)
fields=$(sed -n '/^struct step_rec {/,/^}/p' engine/event.h | tr '\n' ' ' | sed 's|/\*[^*]*\*/||g; s/[;,]/\n/g' | grep -oE '[a-z0-9_]+$')
result "$(diff <(printf '%s\n' "$fields" facts tokens | sort) <(sort <<<"$columns") | grep '^[<>]')" "each field of struct step_rec has a row in history/columns.h, and each row a field"
own=$(grep -vxE 'kind|rows|drafted|accepted|tokens|facts|source' <<<"$columns" | paste -sd '|') # that no other table has
without "only history/columns.h lists the columns of a step" "\"[^\"]*\\b($own)\\b" \
    '^history/(columns\.h|log/write\.c:.*(total\(us|max\(draws)|log/views\.c:.*(pos0|forced)|pack/pack\.c:.*"bonus")' history
without "and their names in JSON" "\\{($own)[}:?]|\"($own)\"" '' repl/cli/show*.c
without "only history includes sqlite" '#include <sqlite3' '^history/' repl engine models kernels history
# a resolver of target_clones runs in the loader, before a sanitizer is initialised: such a program ends at its start
without "no code is chosen in the loader" 'target_clones\(|__attribute__\(\(ifunc' '' repl engine history models kernels
without "a view reads no state of the engine's thread" '(->|\.)own\b' '' engine/thread/view.c
without "only engine/thread/load.c opens models" '\b(model_load|draft(er)?_load|device_choose|chat_open|chat_stops|runtime_mask)\(' '^(engine/thread/load\.c:|repl/compare/rerun\.c:.*chat_stops)' engine/thread engine/tools repl
without "only repl/process/open.c knows which engines there are" 'include "engine/(engine|remote/remote)\.h"' '^repl/process/open\.c:' repl
without "only kernels/window.h and the checker compute windows" '\bwindow *[-+] *1\b| - ([a-z0-9_]+(->|\.))*window\b' '^(kernels/window\.h|engine/plan/check(_rows)?\.c):' kernels models engine repl history
without "only pass_plan() makes plans that kernels run, so each of them is checked" '\b(plan_build|check_plan)\(' '^(engine/plan/|engine/run/pass\.c:)' kernels models engine repl history
without "no kernel table is named above kernels" 'kernels_(cpu|cuda)|HAVE_CUDA' '^engine/run/device\.c:' models engine history repl
without "characters are classified and compared by kernels/ascii.h, not by the locale" 'include <(ctype|strings|wctype)\.h>|\b(str(n?case(cmp|str)|coll|xfrm))\(' '' kernels models engine history repl
without "the locale decides about the terminal's characters, and about nothing else" 'setlocale\(' '^repl/main\.c:.*LC_CTYPE' kernels models engine history repl
# Text that the program wrote for people is no data: a message's fields, or a text with several words, are not searched,
# compared with a literal or skipped in part. Excepted: whether a message is the one that was shown last; the words of file
# formats and of models' templates; and fit.c, which tells cells from other buffers by what a driver's message would say.
reads='\b(str(n?cmp|str|n?casecmp|r?chr|c?spn|pbrk|tok_r)|memcmp|memmem|sscanf)'
message='(msg|why|error|limit|trouble|draft_off|warning|faults|notices|lacks|hint)'
inside='[^;()"]*(\([^()]*\)[^;()"]*)*'
prose='"[^"]*[A-Za-z%][:,;]? [A-Za-z%][^"]*"'
without "no message for people is searched or compared" "$reads\($inside\b$message\b" \
    '^(repl/(app/app|cli/serve|tui/tui)\.c:.*strcmp\(now\.error,|history/log/waiting\.c:.*strcmp\(was|engine/remote/remote\.c:.*strcmp\(why, remote->unreachable)' \
    repl history engine models
without "no message for people is skipped in part" "(->|\\.|\\b)$message *\\+ *(strlen|sizeof|[0-9(])" '^engine/thread/load\.c:.*sizeof' repl history engine models
without "no text of several words is compared with" "$reads\($inside$prose" \
    '"SQLite format 3"|^models/chat/formats\.c:|^engine/cycle/fit\.c:.*"KV cells"' repl history engine models
result "$(find repl history engine models -name '*.c' | while read -r f; do
    names=$(grep -oE "static const char [a-z_]+\[\] *= *$prose" "$f" | sed -E 's/.*char ([a-z_]+)\[.*/\1/' | paste -sd'|')
    [ -z "$names" ] || grep -HnE "$reads\($inside\b($names)\b" "$f"
done | grep -v '^history/recovery/side_file\.c:.*magic')" "nor with one that has a name"
# Files of one folder may call each other, but not in circles. These folders still have one (repl/tui: a key in a pane opens
# other panes); a folder without one is taken off the list.
circular='repl/tui'
build=${BUILD:-build/release-cpu}
if [ -d "$build/kernels" ]; then
    circles=$(tests/circles.sh "$build") || circles+=" (nm failed)"
    result "$(grep -vxE "(($circular)/[a-z_0-9]+\\.c ?)+" <<<"$circles")" "no circle between files outside of $circular"
    result "$(for d in ${circular//|/ }; do grep -q "^$d/" <<<"$circles" || echo "$d has no circle"; done)" "$circular has its circle"
else
    echo "ok - no circle between files # SKIP no build in $build"
fi
# The libraries of TLS, and what speaks HTTP, would make each start three times as long (kernels/late.h).
if [ -x "${AERIE:-}" ]; then
    result "$(readelf -d "$AERIE" | grep -E 'NEEDED.*lib(curl|microhttpd|ssl|crypto|gnutls)')" "the program starts without the libraries of HTTP"
fi
# A command substitution in the title of result sets the status that stands behind the title: such a test cannot fail.
result "$(grep -nE 'result "[^;]*\$\([^(][^;]*" \$\?' tests/e2e/*.sh)" "no title sets the status that stands behind it"
exit $bad
