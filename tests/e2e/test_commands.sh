#!/bin/bash
# Tests find no command but those of declared packages (tests/run.sh), so that they run on a fresh machine, too.
command -v dpkg-query >/dev/null || { echo "ok 1 - only declared commands # SKIP no dpkg here"; exit 0; }
n=0; bad=0
result() { # text, status
    n=$((n + 1))
    if [ "$2" = 0 ]; then echo "ok $n - $1"; else echo "not ok $n - $1"; bad=1; fi
}
[ "$PATH" = "$BUILD/commands" ]; result "tests have one folder of commands ($PATH)" $?
missing=
for c in awk cat curl grep make pgrep sed sqlite3 tmux xargs; do command -v $c >/dev/null || missing+=" $c"; done
[ -z "$missing" ]; result "the folder has what tests need$missing" $?
extra=
for c in busybox cmake debootstrap gawk gdb git jq nvcc python3 rsync strace vim wget; do
    command -v $c >/dev/null && extra+=" $c"
done
[ -z "$extra" ]; result "the folder has nothing of other packages$extra" $?
no_such_command 2>&1 | grep -q 'that the Makefile declares'; result "a command that is not there is named" $?
echo "1..$n"
exit $bad
