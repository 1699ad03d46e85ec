#!/bin/bash
# A low acceptance explained. The EAGLE3 head was loaded with wrong boundaries of the layers that it reads: the reply is
# right, and came slowly. aerie triage runs the head again over the reply's tokens, with one thing changed at a time.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
"$aerie" run -q --eagle-capture 3,4,5 'Tell me a story about a turtle.' >"$box/reply" 2>&1
{ echo '$ aerie triage last'
  "$aerie" triage last -q 2>&1
  shown replay last --with eagle_capture=2,4,5
} | told explained
