#!/bin/bash
# test_plain.sh over a backend without pages, trees, plans or a checker (tests/mock_aerie.c): the same
# chat, log and settings, and one line with the reason where a view is lacking.
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-$(dirname "$(readlink -f build/aerie)")}
MOCK=1 AERIE=$BUILD/tests/mock_aerie exec tests/e2e/test_plain.sh
