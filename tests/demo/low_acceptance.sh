#!/bin/bash
# Why is acceptance low? The EAGLE3 head was loaded with wrong boundaries of the layers that it reads. Replies stay right,
# only slower: /accept shows where drafts end, /why one of them, /calibrate which boundaries the head was trained on.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
ask() { printf '%s\n' 'Tell me a story about a fox.' "$@"; }
{ echo '$ aerie --eagle-capture 3,5,6'
  for line in /accept "/why 1.2" /calibrate; do
      echo "> $line"
      ask "$line" | chat -n --eagle-capture 3,5,6 | sed 1d
  done
  echo '$ aerie --eagle-capture 2,4,5'
  echo '> /accept'
  ask /accept | chat -n --eagle-capture 2,4,5 | sed 1d | head -n 2
} | told low_acceptance
