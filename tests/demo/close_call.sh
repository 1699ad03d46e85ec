#!/bin/bash
# The same question, two replies: the second run has its matrices in 8 bits. Fault or not? The comparison finds where the
# replies part, measures how far roundings of that size move such a margin, and judges by it.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
printf '%s\n' 'Tell me a story about a fox.' 'What is speculative decoding?' | chat -p max_tokens=120 >/dev/null
{ shown diff last --with weights=fp8
  shown diff last --with page_size=4
} | told close_call
