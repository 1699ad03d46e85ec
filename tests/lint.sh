#!/bin/bash
# Static analysis of the product's C files and of all scripts: tests/lint.sh FLAGS... (`make lint` gives the compiler's).
# Fails on every finding; the answer to a finding is in the code. A tool that is not there is skipped. The findings of
# versions other than those below have not been looked at: they are printed, and do not count.
#   headers     each alone, as C11 with -pedantic; not kernels/cpu/math.h, unpack.h and wide.h, which are parts of a file
#   gcc         -fanalyzer at -O1, which follows values into functions; not the vector code (kernels/cpu/avx2.c, avx512.c
#               and scalar.c, one source): gcc loses what loops over 16 lanes have written
#   clang-tidy  the checks of .clang-tidy, without clang's analyzer
#   clang       its analyzer, which takes longer than all the rest: with AERIE_TEST_LONG=1 only
#   cppcheck    warnings and portability, but for invalidPointerCast: kernels read bytes as floats
#   columns     lines of C and CUDA over 100 columns; in tests, lines with a string may be longer
#   scripts     shellcheck at level warning (.shellcheckrc)
cd "$(dirname "$0")/.." || exit 2
flags=()
for f in "$@"; do case $f in -O? | -W*) ;; *) flags+=("$f") ;; esac; done
files() { git ls-files "$@" | grep -v '^kernels/cuda/'; }
mapfile -t headers < <(files {kernels,models,engine,history,repl}/'*.h' | grep -vE '^kernels/cpu/(math|unpack|wide)\.h$')
mapfile -t sources < <(files {kernels,models,engine,history,repl}/'*.c' | grep -vE '^kernels/cpu/(avx2|avx512|scalar)\.c$')
pkg-config --exists libzmq || mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '/kv_socket\.c$')
mapfile -t scripts < <(files '*.sh' '*.bash' .ci/run | grep -v '^repl/share/')
[ ${#sources[@]} -gt 0 ] || { echo "lint: git does not list the files of this folder" >&2; exit 2; }

each() { # a command with {} for the file; the files are in standard input
    xargs -d '\n' -P "$(nproc)" -I '{}' "$@"
}
alone() { printf '%s\n' "${headers[@]}" | each gcc "${flags[@]}" -pedantic -Wall -Wextra -fsyntax-only -x c -include '{}' "$declared"; }
follow() { printf '%s\n' "${sources[@]}" | each gcc "${flags[@]}" -O1 -fanalyzer -S -o /dev/null '{}'; }
tidy() { printf '%s\n' "${sources[@]}" | each clang-tidy --quiet '{}' -- "${flags[@]}" 2>/dev/null; }
analyze() {
    local told=(clang --analyze --analyzer-output text "${flags[@]}")
    "${told[@]}" kernels/base.c
    printf '%s\n' "${sources[@]}" | grep -vx kernels/base.c | each "${told[@]}" -include tests/analyze.h '{}'
}
check() {
    local f defines=()
    for f in "${flags[@]}"; do case $f in -DHAVE_*) defines+=("$f") ;; esac; done
    cppcheck -q -j "$(nproc)" --enable=warning,portability --std=c11 -I. --inline-suppr --suppress=invalidPointerCast \
        -D__GNUC__ -D__x86_64__ "${defines[@]}" "${sources[@]}"
}
columns() {
    git ls-files '*.c' '*.h' '*.cu' '*.cuh' | LC_ALL=C.UTF-8 xargs -d '\n' grep -HnE '^.{101}' |
        grep -v '^tests/[^:]*:[0-9]*:.*"' | sed -E 's/^([^:]*:[0-9]*:).*/\1 warning: more than 100 columns/'
}
scripts() { shellcheck -S warning -f gcc "${scripts[@]}"; }

found=$(mktemp) && declared=$(mktemp --suffix=.c) || exit 2
trap 'rm -f "$found" "$declared"' EXIT
echo 'extern int declared;' >"$declared" # a file with nothing is no C, and some headers have macros only
bad=0
look() { # NAME COMMAND VERSION FUNCTION: what it finds counts if the command has that version
    local name=$1 version n start=$SECONDS
    if ! command -v "$2" >/dev/null; then echo "lint: $name skipped: there is no $2"; return; fi
    version=$("$2" --version | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1)
    "$4" >"$found" 2>&1
    n=$(grep -cE '(error|warning|portability|style|performance): ' "$found")
    case $version in
        $3*) [ "$n" = 0 ] || bad=1 ;;
        *) name="$name, not looked at in this version ($3 was)" ;;
    esac
    cat "$found"
    echo "lint: $name: $n findings of $2 $version, $((SECONDS - start)) s"
}
look headers gcc 12 alone
look scripts shellcheck 0.9 scripts
look columns grep 3 columns
look cppcheck cppcheck 2.10 check
look clang-tidy clang-tidy 14 tidy
look "gcc -fanalyzer" gcc 12 follow
[ "${AERIE_TEST_LONG:-0}" = 0 ] || look "clang's analyzer" clang 14 analyze
exit $bad
