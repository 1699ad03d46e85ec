#!/bin/bash
# test_tui.sh over a backend without pages, trees, plans or a checker (tests/mock_aerie.c): the same
# screen, and greyed panes that say why they are empty.
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-$(dirname "$(readlink -f build/aerie)")}
MOCK=1 AERIE=$BUILD/tests/mock_aerie exec tests/e2e/test_tui.sh
