#!/bin/bash
# The demonstrations under tests/demo/ do what they say.
cd "$(dirname "$0")/../.." || exit 2
AERIE=${AERIE:-$PWD/build/aerie}
n=0
for demo in tests/demo/*.sh; do
    n=$((n + 1))
    if out=$("$demo" "$AERIE" 2>&1); then echo "ok $n - $demo"; else
        echo "$out"; echo "not ok $n - $demo"; fi
done
echo "1..$n"
