#!/bin/bash
# Runs the tests in which threads meet, in a build with MODE=tsan, and fails if ThreadSanitizer reports anything.
#   tests/tsan.sh BUILD          --programs: print the test programs that it needs
# Threads of the program, and the test that has them run at the same time as the threads they share memory with:
#   engine's thread beside views and requests       test_serve, test_plain
#   queues of events                                test_event, test_serve, test_plain
#   the log's writer beside engine and readers      test_history, test_plain
#   the CPU backend's pool                          test_kernels (on scalar.o too, whose inner loops are instrumented)
#   threads that read a checkpoint                  test_models
#   jobs of clients beside the engine's thread      test_jobs
#   a server's backend beside its caller            test_remote
#   a paused engine beside its debugger             test_debug
#   signal handlers                                 test_interrupt, test_plain
programs='test_debug test_event test_history test_interrupt test_jobs test_kernels test_models test_remote test_serve' scripts='test_plain'
if [ "$1" = --programs ]; then echo "$programs"; exit; fi
cd "$(dirname "$0")/.." || exit 2
build=$1 reports=$PWD/$1/tsan-reports
rm -rf "$reports"; mkdir -p "$reports"

# Where the kernel randomises more address bits than ThreadSanitizer expects, its programs end at once.
runs() { "$@" "$build/aerie" --version >/dev/null 2>"$reports/start"; }
fixed=
if ! runs; then
    fixed='setarch -R'
    if ! runs $fixed; then echo "skipped: $(grep -m 1 Sanitizer "$reports/start" || echo "ThreadSanitizer does not run here")"; exit 0; fi
fi
rm -f "$reports/start"

export TSAN_OPTIONS="log_path=$reports/report history_size=4"
[ "${AERIE_TEST_LONG:-0}" != 0 ] || export AERIE_FEW=1 # whether threads race does not depend on how many numbers are compared
# shellcheck disable=SC2046
$fixed tests/run.sh "$build" $(printf '%s$ ' $programs $scripts); rc=$?
if ls "$reports"/report* >/dev/null 2>&1; then cat "$reports"/report* | head -n 200; echo "not ok - ThreadSanitizer reports the above"; exit 1; fi
exit $rc
