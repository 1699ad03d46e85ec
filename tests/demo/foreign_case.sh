#!/bin/bash
# A unit test of another engine fails. Its step, written as a case by tests/peers/emit, is judged by the rules, and shrunk
# to six numbers: one cached cell, one new row, the two slots that hold them, and the two that the kernel was given.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
cp "$here/foreign_case.json" "$box/verify.json"; cd "$box" || exit 2
{ shown check verify.json -o small.json
  echo '$ cat small.json'; cat small.json
} | told foreign_case
