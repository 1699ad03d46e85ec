#!/bin/bash
# Draws the README's picture from a real run: a chat in a terminal of 162x27, with the panes of pages and draft tree.
#   tests/demo/screen.sh [AERIE] > tests/demo/screen.svg
# The program runs in tmux with folders of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
aerie=$(realpath "${1:-$here/../../build/aerie}")
box=$(mktemp -d); tmux="tmux -L aerie-screen-$$"
trap '$tmux kill-server 2>/dev/null || true; rm -rf "$box"' EXIT
export XDG_CONFIG_HOME=$box XDG_DATA_HOME=$box XDG_STATE_HOME=$box LC_ALL=C.UTF-8
unset NO_COLOR
cols=162 rows=27
$tmux -f /dev/null new-session -d -x $cols -y $rows "TERM=tmux-256color COLORFGBG='15;0' exec '$aerie'"
screen() { $tmux capture-pane -p "$@"; }
wait_for() { for _ in $(seq 300); do screen | grep -qF -- "$1" && return; sleep 0.1; done; echo "screen.sh: no '$1'" >&2; screen >&2; exit 1; }
say() { $tmux send-keys -l "$1"; $tmux send-keys Enter; }
wait_for "message, or /help"
say "My dog is called Rex."; wait_for "step 1."
say "Tell me a story about a fox."; wait_for "step 2."
say "What is my dog called?"; wait_for "is called Rex."
sleep 1
$tmux send-keys F2; wait_for "PAGES"
$tmux send-keys F3; wait_for "TREE"
sleep 1
say "/screenshot $box/screen.svg"; wait_for "wrote "
cat "$box/screen.svg"
