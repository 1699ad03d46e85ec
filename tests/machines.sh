#!/bin/bash
# Builds and tries aerie with other compilers, processors, locales, C libraries and page sizes, in bare Debian systems. Prints
# a table of seconds and results; status 1 if a check failed, 2 if the script cannot run here. Needs root (debootstrap, chroot).
#   tests/machines.sh [OPTION...] [NAME...]
#   NAME: a compiler (gcc-12 to gcc-16, clang-14 to clang-23), headers, locales, pages, no-avx2, aarch64 or musl; without a name: all
#         A compiler must build the program without a warning and read the sources of the tests without one. The program must
#         replay a session of this machine's program with the same tokens, pages and logits, and pass the tests that decide:
#         those of kernels, goldens, tokenizers, page caches, checker and replay compare with references, bit by bit.
#   --quick             compilers read the sources of program and tests only
#   --tests "NAME..."   tests to run (those that decide; aarch64: fewer, see below)
#   --mirror NAME=URL   where a release's packages are (the mirror of this machine's own apt sources)
#   --cache DIR         keeps downloaded packages and bare systems between runs (~/.cache/aerie-fresh)
#   --keep              keeps the systems and their logs and says where they are
# What is built is HEAD of this checkout: changes that are not committed are not tested.
cd "$(dirname "$0")/.." || exit 2
stop() { echo "machines: $1" >&2; exit 2; }

decide='test_kernels$ test_kernels_attn$ test_kernels_sample$ test_fp8$ test_kv_fp8$ test_tree_ops$ test_sheet$ test_golden$ test_vectors$
    test_tokenizer$ test_patterns$ test_chat$ test_models$ test_kvcache$ test_check$ test_rings$ test_cycle$ test_back$ test_poison$ test_bugs$
    test_verdict$ test_lanes$ test_history$ test_history_evidence$ test_replay.sh test_plain.sh test_demo.sh'
names=() quick=0 keep=0 cuda='' tests=$decide
cache=${XDG_CACHE_HOME:-$HOME/.cache}/aerie-fresh
declare -A mirrors ready
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --tests) tests=$2; shift ;;
    --mirror) [[ $2 == ?*=?* ]] || stop "--mirror $2: expected NAME=URL"; mirrors[${2%%=*}]=${2#*=}; shift ;;
    --cache) cache=$2; shift ;;
    --keep) keep=1 ;;
    gcc-1[2-6] | clang-1[4-9] | clang-2[0-3] | headers | locales | pages | no-avx2 | aarch64 | musl) names+=("$1") ;;
    *) sed -n '2,14p' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ ${#names[@]} -gt 0 ] || names=(gcc-{12..16} clang-{14..19} clang-23 headers locales pages no-avx2 aarch64 musl)
[ "$(id -u)" = 0 ] || stop "needs root, to make bare systems and to enter them (sudo tests/machines.sh)"
mkdir -p "$cache/downloads" && cache=$(realpath "$cache") && work=$(mktemp -d "$cache/run.XXXXXX") || exit 2
tidy() { [ $keep = 1 ] || rm -rf --one-file-system "$work"; }
trap tidy EXIT
trap 'exit 130' INT TERM
. tests/roots.sh

row() { printf '%-10s %-10s %-24s %7s  %s\n' "$@"; }

release_of() { # of the system in which a check runs
    case $1 in
    gcc-1[34] | clang-1[78]) echo trixie ;;
    gcc-1[56] | clang-19 | clang-2?) echo sid ;;
    *) echo bookworm ;;
    esac
}

# A session of this machine's program, which the others replay: two drafted turns, one of them sampled.
record() {
    [ -n "${ready[session]}" ] && return
    make -s CUDA=0 TOLD=1 all >/dev/null && mkdir -p "$work/session" || return 1
    printf '%s\n' 'My dog is called Rex.' '/set temperature 0.8' 'Tell me a story about a fox.' |
        XDG_DATA_HOME=$work/session XDG_STATE_HOME=$work/session XDG_CONFIG_HOME=$work/session \
        build/release-cpu/aerie --plain -q --device cpu -p max_tokens=12 -p seed=7 >"$work/session.log" 2>&1
    ready[session]=$?
    return "${ready[session]}"
}

# The system of a release, with a clone, the session and the Makefile's packages: sets $tree.
enter() { # release
    tree=$work/$1
    [ -n "${ready[$1]}" ] && return "${ready[$1]}"
    ready[$1]=1
    local mirror; mirror=$(mirror_of "$1")
    [ -n "$mirror" ] || { row "$1" - - - "skipped: apt here has no Debian mirror (--mirror $1=URL)"; return 1; }
    bare_system "$1" "$mirror" && unpack_system "$1" "$tree" && git clone -q --no-local . "$tree/root/aerie" || return 1
    # a mirror may be older than the period for which the list of an unstable release is valid
    echo 'Acquire::Check-Valid-Until "false";' >"$tree/etc/apt/apt.conf.d/02old"
    add "$1" "$(make -s packages) $(make -s optional-packages)" || return 1
    [ $quick = 1 ] || { record && cp -a "$work/session" "$tree/session"; } || return 1
    ready[$1]=0
}

add() { # release, packages
    inside "$1" "$work/$1" root "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2" \
        >"$work/$1-install.log" 2>&1 || { row "$1" - "installing $2" - FAILED; tail -n 3 "$work/$1-install.log"; failed=1; return 1; }
}

# All sources of program and tests, without code: warnings of the front end.
read_sources='
    read_all() { # compiler, file with the flags of a make
        local flags; flags=$(sed "s/^[^ ]* //" "$2")
        { ls kernels/*.c models/*/*.c engine/*.c engine/*/*.c history/*.c repl/*.c repl/*/*.c tests/*/*.c tests/*.c; ls kernels/cpu/*.c | grep -v avx; } |
            grep -v tests/cuda | eval "xargs -P $(nproc) -n 8 $1 $flags -DFUZZ_LIST=\\\"/dev/null\\\" -DAERIE_SHARE=\\\"\\\" -DAERIE_SOURCE=\\\"\\\" -fsyntax-only" && echo all sources read
    }'

session="XDG_DATA_HOME=/session XDG_STATE_HOME=/session XDG_CONFIG_HOME=/session LC_ALL=C.UTF-8"
same_bits() { # release, label, how the program is started
    step "$1" "$tree" "$2" root "same bits" '^equal: 2 turns' "cd aerie && $session $3 replay last --check"
}
some_tests() { # release, label, build folder
    [ -z "$tests" ] || step "$1" "$tree" "$2" root "tests" '^[0-9]+ passed, 0 failed' "cd aerie && TEST_TIMEOUT=3600 tests/run.sh $3 $(printf "'%s' " $tests)"
}
# The programs of $tests that are not scripts.
programs() { # build folder
    local t; for t in $tests; do [ ! -e "tests/unit/${t%$}.c" ] || printf '%s/tests/%s ' "$1" "${t%$}"; done
}

prove_compiler() { # compiler
    local release; release=$(release_of "$1")
    enter "$release" && add "$release" "$1" || return 1
    local b=build/release-cpu-$1
    if [ $quick = 0 ]; then
        step "$release" "$tree" "$1" root "make" 'LINK .*/aerie$' "cd aerie && make CUDA=0 CC=$1 all" || return 1
    else
        inside "$release" "$tree" root "cd aerie && make -s CUDA=0 CC=$1 TOLD=1 $b/c.flags" || return 1
    fi
    step "$release" "$tree" "$1" root "sources of the tests" '^all sources read' "cd aerie; $read_sources; read_all $1 $b/c.flags"
    [ $quick = 0 ] || return 0
    same_bits "$release" "$1" "$b/aerie"
    [ -z "$tests" ] || { inside "$release" "$tree" root "cd aerie && make -s CUDA=0 CC=$1 TOLD=1 $(programs "$b")" >/dev/null && some_tests "$release" "$1" "$b"; }
}

# Each header alone. Those of kernels/cpu that are compiled once for each instruction set get its parameters.
prove_headers() {
    enter bookworm && add bookworm clang-14 || return 1
    local cc
    for cc in gcc clang-14; do
        step bookworm "$tree" headers root "-pedantic, $cc" '^[1-9][0-9]* headers$' 'cd aerie && n=0 && for h in $(git ls-files | grep "\.h$" | grep -v cuda); do
            n=$((n + 1)); echo "#include \"$h\"" | '$cc' -std=c11 -pedantic -Wall -Wextra -Wshadow -Wstrict-prototypes -Wno-unused-function -Werror -D_GNU_SOURCE -I. \
                -DCPU_ISA=0 -DCPU_TABLE=cpu_isa_scalar -DCPU_NAME=\"\" -DCPU_TITLE=\"\" -fsyntax-only -x c - || exit; done; echo $n headers'
    done
}

prove_locales() {
    enter bookworm && add bookworm locales || return 1
    step bookworm "$tree" locales root "tests in 5 locales" '^[0-9]+ passed, 0 failed' 'for l in de_DE.UTF-8 tr_TR.UTF-8 de_DE.ISO-8859-1 tr_TR.ISO-8859-9 ja_JP.EUC-JP; do
        localedef -i ${l%%.*} -f ${l#*.} $l; done; cd aerie && make -s CUDA=0 all && tests/run.sh build/release-cpu test_surroundings && grep -q "in locale ja_JP" build/release-cpu/test-logs/test_surroundings.log'
}

# A kernel with pages of 64 KiB is feigned: sysconf() says so to the program and its libraries. Huge pages are switched off
# for a process.
prove_pages() {
    enter bookworm || return 1
    inside bookworm "$tree" root 'cat >pages.c <<"END"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/prctl.h>
#include <unistd.h>
long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? 65536 : next(name);
}
int getpagesize(void) { return 65536; }
END
echo "#include <sys/prctl.h>
#include <unistd.h>
int main(int n, char **v) { return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) || (n && execv(v[1], v + 1)); }" >small.c
gcc -shared -fPIC -o /pages.so pages.c && gcc -o /small small.c && cd aerie && make -s CUDA=0 TOLD=1 all build/release-cpu/tests/test_load build/release-cpu/tests/test_keep build/release-cpu/tests/test_mapped' || return 1
    same_bits bookworm "64 KiB" "env LD_PRELOAD=/pages.so build/release-cpu/aerie"
    step bookworm "$tree" "64 KiB" root "tests" '^[0-9]+ passed, 0 failed' 'cd aerie && LD_PRELOAD=/pages.so tests/run.sh build/release-cpu test_load test_keep test_mapped\$'
    same_bits bookworm "not huge" "/small build/release-cpu/aerie"
}

prove_processors() { # without AVX, and without AVX-512: qemu's processors
    enter bookworm && add bookworm qemu-user || return 1
    local cpu
    for cpu in Nehalem Haswell; do
        inside bookworm "$tree" root 'cd aerie && make -s CUDA=0 TOLD=1 all' || return 1
        step bookworm "$tree" $cpu root "which code" "$([ $cpu = Nehalem ] && echo 'plain C' || echo AVX2)" "cd aerie && qemu-x86_64 -cpu $cpu build/release-cpu/aerie doctor | grep 'device .*cpu:'"
        same_bits bookworm $cpu "qemu-x86_64 -cpu $cpu build/release-cpu/aerie"
    done
}

prove_aarch64() {
    local cc=aarch64-linux-gnu-gcc here b dev
    # what qemu does in ten minutes
    [ "$tests" != "$decide" ] || local tests='test_kernels$ test_kernels_sample$ test_tree_ops$ test_tokenizer$ test_models$ test_kvcache$ test_history$ test_demo.sh'
    enter bookworm || return 1
    dev=$(make -s packages optional-packages | tr ' ' '\n' | grep -E '^lib.*-dev' | sed 's/$/:arm64/' | tr '\n' ' ')
    inside bookworm "$tree" root 'dpkg --add-architecture arm64' && add bookworm "gcc-aarch64-linux-gnu qemu-user $dev" || return 1
    b=build/release-cpu-$cc here="cd aerie && export PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig"
    step bookworm "$tree" aarch64 root "make" 'LINK .*/aerie$' "$here && make CUDA=0 CC=$cc all" || return 1
    same_bits bookworm aarch64 "qemu-aarch64 $b/aerie"
    # a session of its own, which the program for x86-64 replays
    step bookworm "$tree" aarch64 root "same bits, other way" '^equal: 1 turn' "cd aerie && make -s CUDA=0 TOLD=1 all && cp -a /session /other && export ${session//\/session/\/other} &&
        qemu-aarch64 $b/aerie run -q -p max_tokens=12 -p temperature=0.8 -p seed=3 'Tell me a story about a fox.' && build/release-cpu/aerie replay last --check"
    [ -n "$tests" ] || return 0
    # folders of programs that start qemu, for tests/run.sh
    inside bookworm "$tree" root "$here && make -s CUDA=0 CC=$cc TOLD=1 $(programs $b) && mkdir -p build/aarch64/tests && for p in aerie $(programs tests | sed 's|tests/tests|tests|g'); do
        printf '#!/bin/sh\nexec /usr/bin/qemu-aarch64 %s \"\$@\"\n' \$PWD/$b/\$p >build/aarch64/\$p; chmod +x build/aarch64/\$p; done" >/dev/null || return 1
    some_tests bookworm aarch64 build/aarch64
}

# Debian has musl, but no libraries for it. Six small ones are built from Debian's sources; of curses, curl and microhttpd there are
# the headers only, and a program without their functions: it has no full screen, no --remote and no serve.
build_libraries='set -e; mkdir -p /musl/lib/pkgconfig /musl/include /musl/o; cd /musl; ls *.orig.tar.* | grep -v asc | xargs -n 1 tar -xf; cc="musl-gcc -O1 -Iinclude"
    cp /usr/include/{curses,ncurses,ncurses_dll,unctrl,term,md4c,utf8proc,jansson,cmocka,cmocka_pbc}.h include; cp $(dpkg -L libmicrohttpd-dev | grep "microhttpd.h$") $(dpkg -L libjansson-dev | grep "jansson_config.h$") include
    cp -r $(dpkg -L libcurl4-openssl-dev | grep "include.*/curl$") include; ln -s /usr/include/linux /usr/include/asm-generic /usr/include/x86_64-linux-gnu/asm include
    touch jansson-*/src/jansson_private_config.h; mv pcre2-*/src/pcre2.h.generic include/pcre2.h; mv pcre2-*/src/config.h.generic include/config.h; mv pcre2-*/src/pcre2_chartables.c.dist pcre2-*/src/pcre2_chartables.c
    $cc -c utf8proc-*/utf8proc.c -o o/utf8proc.o; $cc -c md4c-*/src/md4c.c -o o/md4c.o
    $cc -Icmocka/include -DHAVE_STRUCT_TIMESPEC -DHAVE_CLOCK_GETTIME -DHAVE_CLOCK_REALTIME -DHAVE_SIGNAL_H -DHAVE_STRSIGNAL -DHAVE_MALLOC_H -DHAVE_UNISTD_H -DHAVE_INTTYPES_H -DHAVE_STDINT_H -include setjmp.h -c cmocka-*/src/cmocka.c -o o/cmocka.o
    for f in jansson-*/src/*.c; do $cc -Ijansson-2.14/src -DHAVE_CONFIG_H -DHAVE_STDINT_H -DHAVE_UNISTD_H -DHAVE_FCNTL_H -DHAVE_SYS_TYPES_H -DHAVE_SYS_TIME_H -DHAVE_SYS_STAT_H -DHAVE_GETTIMEOFDAY -DHAVE_STRTOLL -DUSE_URANDOM=1 -DINITIAL_HASHTABLE_ORDER=3 -c $f -o o/jansson_${f##*/}.o; done
    for f in $(ls pcre2-*/src/pcre2_*.c | grep -vE "jit_(match|misc|neon|simd|test)|dftables|printint|ucptables|fuzz"); do $cc -DHAVE_CONFIG_H -DSUPPORT_UNICODE -DSUPPORT_JIT -DPCRE2_CODE_UNIT_WIDTH=8 -c $f -o o/pcre2-8_${f##*/}.o; done
    cd sqlite3-*; ./configure --disable-tcl >/dev/null; make -s sqlite3.c >/dev/null; cp sqlite3.h ../include; cd ..; $cc -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_DBSTAT_VTAB -DSQLITE_ENABLE_COLUMN_METADATA -DSQLITE_SECURE_DELETE -c sqlite3-*/sqlite3.c -o o/sqlite3.o
    about() { printf "Name: %s\nDescription: %s\nVersion: 1\nCflags: -D_DEFAULT_SOURCE -D_XOPEN_SOURCE=600 -isystem /musl/include\nLibs: %s\n" $1 $1 "$2" >lib/pkgconfig/$1.pc; }
    for l in utf8proc md4c cmocka jansson pcre2-8 sqlite3; do ar rcs lib/lib$l.a o/$l[._]*o; case $l in utf8proc | pcre2-8) about lib$l "-L/musl/lib -l$l" ;; *) about $l "-L/musl/lib -l$l" ;; esac; done
    for l in ncursesw libcurl libmicrohttpd; do about $l "-static -Wl,--unresolved-symbols=ignore-all"; done; echo libraries built'

prove_musl() {
    enter bookworm && add bookworm "musl-tools tcl xz-utils" || return 1
    inside bookworm "$tree" root 'sed "s/^deb /deb-src /" /etc/apt/sources.list >/etc/apt/sources.list.d/sources.list && apt-get update -qq && mkdir -p /musl && cd /musl &&
        apt-get source --download-only -qq sqlite3 pcre2 jansson utf8proc cmocka; apt-get source --download-only --tar-only -qq md4c' >"$work/musl-sources.log" 2>&1 || return 1
    step bookworm "$tree" musl root "6 libraries" '^libraries built' "$build_libraries" || return 1
    local b=build/release-cpu-musl-gcc make="cd aerie && PKG_CONFIG_LIBDIR=/musl/lib/pkgconfig make CUDA=0 ZMQ=0 CC=musl-gcc"
    step bookworm "$tree" musl root "make" 'LINK .*/aerie$' "$make all" || return 1
    same_bits bookworm musl "$b/aerie"
    step bookworm "$tree" musl root "tests" '^[0-9]+ passed, 0 failed' "$make -s TOLD=1 $b/tests/test_models $b/tests/test_history $b/tests/test_utf8 >/dev/null && tests/run.sh $b test_models 'test_history\$' test_utf8"
}

echo "commit $(git rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(grep -qw avx512f /proc/cpuinfo && echo AVX-512 || echo no AVX-512)"
row system machine check seconds result
for name in "${names[@]}"; do
    case $name in
    gcc-* | clang-*) prove_compiler "$name" ;;
    headers) prove_headers ;;
    locales) prove_locales ;;
    pages) prove_pages ;;
    no-avx2) prove_processors ;;
    aarch64) prove_aarch64 ;;
    musl) prove_musl ;;
    esac || { row "$(release_of "$name")" "$name" "(set-up)" - FAILED; failed=1; }
done
[ $keep = 0 ] || echo "kept: $work"
exit $failed
