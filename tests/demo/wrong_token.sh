#!/bin/bash
# A wrong token of a server, found without its weights. The server has 9279 (swa-mask-offset) on and no checker: a prompt
# whose beginning is in the prefix cache reads keys before its window. aerie probe sends the same request alone and between
# others, makes the case smaller, and writes a script of curl calls.
here=$(cd "$(dirname "$0")" && pwd); . "$here/story.bash"
server=
serve() { # FLAGS...
    [ -z "$server" ] || kill "$server"
    : >"$box/server"
    "$aerie" serve --port "${at##*:}" --no-log --lanes 2 --context 512 "$@" >"$box/server" 2>&1 &
    server=$!
    until grep -q 'http://' "$box/server"; do sleep 0.02; kill -0 "$server" 2>/dev/null || break; done
    at=$(grep -o 'http://[0-9.:]*' "$box/server" | head -n 1)
}
at=:0
{ trap '[ -z "$server" ] || kill "$server"' EXIT # of this subshell, which has the server
  echo '$ aerie serve --check off --bug 9279 &'
  serve --check off --bug 9279
  echo '$ aerie probe http://127.0.0.1:8080 -n 1 -o issue.md'
  "$aerie" probe "$at" -n 1 --no-log -o "$box/issue.md" 2>&1 | fold -s -w 100
  sed -n '/^```sh$/,/^```$/p' "$box/issue.md" | sed '/^```/d' >"$box/issue.sh"
  echo '$ bash issue.sh                         # the script in issue.md, against this server'
  bash "$box/issue.sh"
  echo '$ bash issue.sh                         # against the same server without the fault'
  serve
  bash "$box/issue.sh" "$at"
} | sed -E 's/, [0-9]+ s( |;|$)/, N s\1/' | told wrong_token
