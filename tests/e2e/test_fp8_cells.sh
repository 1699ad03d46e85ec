#!/bin/bash
# --kv fp8: the log says so and a replay has it; shapes and pages change nothing; where it cannot be had, one line says why.
. "$(dirname "$0")/kit.sh"
chat() { timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" --plain --quiet --device cpu --threads 2 -p max_tokens=24 "$@" >"$T/out" 2>"$T/err"; }
equal() { timeout -k 2 "${TEST_LIMIT:-250}" "$AERIE" replay last --check "$@" >"$T/r" 2>&1; local rc=$?; [ $rc = 0 ] || sed 's/^/# /' "$T/r"; return $rc; }
lines() { printf "%s\n" "What is a page table?" "/regen"; }

lines | chat --kv fp8 -p spec=off; rc=$?; cp "$T/out" "$T/plain"; [ $rc = 0 ] && [ -s "$T/plain" ]; result "a chat with cells in FP8" $?
lines | chat --kv fp8 -p draft.shape=5-4-16 --page-size 4; cmp -s "$T/out" "$T/plain"; result "the same with trees and other pages" $?
lines | chat --kv fp8 -p draft.shape=auto -p chunk=7; cmp -s "$T/out" "$T/plain"; result "the same with auto and other chunks" $?
equal; result "a replay has the log's cells" $?
[ "$(sqlite3 "$DB" "select count(*) from run where config like '%kv=fp8%'")" = 3 ]; result "the log says kv=fp8" $?
"$AERIE" show last 2>&1 | grep -q 'fp8 cells'; result "show says it" $?
"$AERIE" diff last --with page_size=1 >"$T/out" 2>&1 && grep -q 'verdict *equal' "$T/out"; result "diff: other pages" $?
"$AERIE" diff last --with kv=auto >"$T/out" 2>&1; grep -qE 'verdict +(rounding|equal)' "$T/out" || { sed 's/^/# /' "$T/out"; false; }; result "diff with cells in float32: rounding" $?
"$AERIE" golden tests/golden/gptoss-a --kv fp8 >"$T/out" 2>&1; rc=$?
[ $rc = 0 ] && grep -q 'bits as in one chunk' "$T/out" && ! grep -qi 'other bits' "$T/out"; result "golden: near, and every chunk and page has the same bits" $?
"$AERIE" run -n --kv int4 x >"$T/out" 2>"$T/err"; [ $? = 2 ] && grep -q -- '--kv cannot be "int4"; expected auto or fp8' "$T/err"; result "another type is refused" $?
"$AERIE" diff last --with kv=int4 >"$T/out" 2>&1; [ $? = 2 ]; result "as a change, too" $?
plan
