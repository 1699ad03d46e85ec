#!/bin/sh
# tests/fence.sh FILE: the file as a block of a Markdown document, for `make docs`.
echo '```'; cat "$1"; echo '```'
