#!/bin/bash
# A wrong answer is in the log, and nothing else: the session was recorded with 24617 (swa-untranslated) on and the checker
# off. A replay with the checker names rule and step; a comparison with the fault off names layer, row and position.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
{ printf '/set %s\n' 'temperature 0' 'draft.topk 4' 'draft.nodes 16' 'max_tokens 40' 'chunk 512'
  cat "$here/before.txt"
  printf '%s\n' /undo '/set chunk 32' '/set check off' '/bug 24617 on'
  cat "$here/question.txt"; } | chat >"$box/session"
{ echo 'The question says "The secret code is 66878." and ends with "What is it?". The log has the reply:'
  tail -n 1 "$box/session" | cut -c1-60
  shown replay last --with check=strict
  shown diff last --with bug.24617=off
} | told from_a_log
