#!/bin/bash
# Which drafter is best for this text? One chat asks with the EAGLE3 head, with n-grams and without a draft, and compares
# them; the model stays loaded. Then the log is run again, each turn with the drafter that it had.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
ask=('Tell me a story about a fox.' '/draft ngram' 'Tell me a story about a fox.' '/draft none' 'Tell me a story about a fox.'
     '/accept drafter')
{ echo '$ aerie'
  printf '> %s\n' "${ask[@]}"
  printf '%s\n' "${ask[@]}" | chat | cut -c1-110
  shown replay last --check
} | told switch
