#!/bin/bash
# Locales, stack limits and homes: the reply is the same everywhere, and what cannot be had is said in one line.
# tests/machines.sh runs this script where more locales are installed.
. "$(dirname "$0")/kit.sh"
said() { cmp -s "$T/out" "$T/reply"; }
one_error() { [ "$(wc -l <"$T/err")" = 1 ] && grep -qE -- "$1" "$T/err"; }

# ---- locales: they decide about the terminal's characters only ----
story=("My dog is called Rex." "/set temperature 0.5" "/stats")
tell() { lines "${story[@]}" | feed --plain -p temperature=0.25; sed -i '/^STATS/,$w '"$T/stats" "$T/out"; sed -i '/^STATS/,$d' "$T/out"; }
run run hello; cp "$T/out" "$T/reply"
tell; mv "$T/out" "$T/story"; grep -q 'temperature = 0\.5' "$T/story" && grep -qE '[0-9]\.[0-9]' "$T/stats"
result "the session to compare with" $?
same_in() { # LOCALE
    LC_ALL=$1 run run hello; said || return 1
    LC_ALL=$1 tell; cmp -s "$T/out" "$T/story" && grep -qE '[0-9]\.[0-9]' "$T/stats" && ! grep -qE '[0-9],[0-9]' "$T/stats"
} 2>/dev/null # bash complains of a locale that does not exist
same_in C; result "in locale C: the same replies, numbers and settings" $?
same_in xx_XX.UTF-8; result "in a locale that does not exist, too" $?
for locale in de_DE.UTF-8 tr_TR.UTF-8 de_DE.ISO-8859-1 tr_TR.ISO-8859-9 ja_JP.EUC-JP; do
    [ "$(LC_ALL=$locale locale charmap 2>/dev/null)" = "${locale#*.}" ] || continue # it is not installed
    same_in "$locale"; result "in locale $locale" $?
done

# ---- stacks ----
limited() { (ulimit "$1" "$2" && exec timeout 60 "$AERIE" "${@:3}") >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
for limit in "-Ss 128" "-s 1024" "-s 32768" "-s unlimited"; do
    # shellcheck disable=SC2086
    limited $limit run hello; [ $rc = 0 ] && said; result "a chat with ulimit $limit" $?
    # shellcheck disable=SC2086
    limited $limit bugs --try 24617; [ $rc = 0 ]; result "the deepest frames with ulimit $limit" $?
done
limited -s 256 run hello; [ $rc = 2 ] && [ ! -s "$T/out" ] && one_error 'stack is limited to 256 KiB; expected at least 1024'
result "a hard limit that is too small is named" $?

# ---- homes ----
unset XDG_DATA_HOME XDG_CONFIG_HOME XDG_STATE_HOME
HOME=$T/not/yet/there run run hello; [ $rc = 0 ] && said && [ -s "$T/not/yet/there/.local/share/aerie/sessions.db" ]
result "a home that does not exist is made" $?
: >"$T/file"
HOME=$T/file run run hello; [ $rc = 4 ] && said && one_error 'NOT SAVED: .*Not a directory'
result "a home that is a file: the reply, and one line" $?
HOME=$T/file run doctor; [ $rc = 4 ] && grep -q 'sessions cannot be saved' "$T/out"; result "doctor says so" $?

# a file system that is read-only, or where that cannot be made, a folder without the right to write
mkdir "$T/home"; HOME=$T/home run run hello; cp -a "$T/home" "$T/bare"; rm -r "$T/bare/.local"
if unshare --mount true 2>/dev/null; then
    # shellcheck disable=SC2016
    in_home() { unshare --mount bash -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && HOME=$1 exec timeout 60 "${@:2}"' \
        _ "$1" "$AERIE" "${@:2}" >"$T/out" 2>"$T/err" </dev/null; rc=$?; }
else
    in_home() { chmod -R a-w "$1"; HOME=$1 run "${@:2}"; chmod -R u+w "$1"; }
fi
if [ "$(id -u)" != 0 ] || unshare --mount true 2>/dev/null; then
    in_home "$T/bare" run hello; [ $rc = 4 ] && said && one_error 'NOT SAVED: cannot create the folder .*(Read-only|denied)'
    result "a read-only home: the reply, and one line" $?
    in_home "$T/bare" doctor; [ $rc = 4 ] && grep -qE 'cannot be made: (Read-only|Permission)' "$T/out"; result "doctor says why" $?
    in_home "$T/home" run hello; [ $rc = 4 ] && said && one_error 'NOT SAVED: '
    result "a read-only home with a log: the reply, and one line" $?
    in_home "$T/home" replay last --check; [ $rc = 0 ] && grep -q '^equal' "$T/out"; result "its log can be replayed" $?
    in_home "$T/home" db check; [ $rc = 0 ] && grep -q '^1 turn checked, 0 records' "$T/out"; result "and checked" $?
fi
plan
