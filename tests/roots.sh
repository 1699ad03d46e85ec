# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that read this file, and for them
# roots.sh - bare Debian and Ubuntu systems, and commands in them; sourced by fresh.sh and machines.sh, as root. They set
#   $cache  where downloaded packages and bare systems are kept   $work     a folder of this run
#   $cuda   a CUDA toolkit that systems see, or nothing           $mirrors  releases to URLs, where given
# and define row(), which prints its arguments: release, label, title, seconds, result.
for tool in debootstrap unshare chroot git; do
    command -v $tool >/dev/null || stop "needs $tool (packages: debootstrap util-linux git)"
done

distribution() { # of a release
    case $1 in noble | jammy | questing | plucky | oracular) echo Ubuntu ;; *) echo Debian ;; esac
}

# The mirror of a release: the one given, else the first of the same distribution in this machine's apt sources.
mirror_of() {
    echo "${mirrors[$1]:-$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
        awk -v who="$(distribution "$1")" '$1 == who && $3 !~ /-/ { print $2; exit }')}"
}

# Makes the bare system of a release, once: minbase with make and git, and nothing else.
bare_system() { # release, mirror
    local tree=$work/$1.bare components=main script=
    [ -s "$cache/$1.tar" ] && return
    [ "$(distribution "$1")" = Ubuntu ] && components=main,universe
    [ -e "/usr/share/debootstrap/scripts/$1" ] || script=$([ $components = main ] && echo sid || echo gutsy)
    debootstrap --variant=minbase --include=make,git --components=$components --cache-dir="$cache/downloads" \
        "$1" "$tree" "$2" ${script:+"$script"} >"$work/$1.debootstrap" 2>&1 || { tail -n 3 "$work/$1.debootstrap"; return 1; }
    rm -f "$tree"/var/cache/apt/archives/*.deb
    tar -C "$tree" -cf "$cache/$1.tar.part" . && mv "$cache/$1.tar.part" "$cache/$1.tar"
    rm -rf --one-file-system "$tree"
}

# Unpacks a bare system. Its apt uses this machine's proxy.
unpack_system() { # release, folder
    mkdir "$2" && tar -C "$2" -xf "$cache/$1.tar" || return 1
    proxy=$(apt-config dump 2>/dev/null | grep -iE '^Acquire::https?::Proxy ')
    [ -z "$proxy" ] || echo "$proxy" >"$2/etc/apt/apt.conf.d/01proxy"
}

# Runs a command line in a system, as a user of the system, in the user's home, with an environment of its own. Mounts
# and processes end with the command.
inside() { # release, tree, user, command line
    local home=/home/$3 kept=$cache/$1.packages toolkit=$cuda
    [ "$3" = root ] && home=/root
    mkdir -p "$kept"
    case $2 in *-clean) toolkit='' ;; esac
    [ -z "$toolkit" ] || mkdir -p "$2/usr/local/cuda"
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        mount -t proc proc "$1/proc" && mount -t sysfs -o ro sysfs "$1/sys" && mount -t tmpfs tmpfs "$1/dev/shm" &&
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$1/dev/pts" &&
        mount --bind "$2" "$1/var/cache/apt/archives" && { [ -z "$6" ] || mount -o bind,ro "$6" "$1/usr/local/cuda"; } && cp -L /etc/resolv.conf "$1/etc/resolv.conf" &&
        exec chroot --userspec="$3" "$1" env -i HOME="$4" USER="$3" LOGNAME="$3" TERM=dumb \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "cd; $5"' \
        _ "$2" "$kept" "$3" "$home" "$4" "$toolkit"
}

failed=0
# A row of the table: runs a command line, expects status 0 and a pattern in the output.
step() { # release, tree, label, user, title, pattern, command line
    local log=$work/$1-$3.log begin=$EPOCHREALTIME status seconds result=ok
    inside "$1" "$2" "$4" "$7" >"$log.now" 2>&1 </dev/null
    status=$?
    seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    { echo "== $5 (as $4)"; cat "$log.now"; } >>"$log"
    if [ $status != 0 ] || ! grep -qE -- "$6" "$log.now"; then
        failed=1
        result="FAILED: status $status, expected 0 and a line that matches $6"
    fi
    case $5 in *test*) result="$result, $(tail -n 1 "$log.now")" ;; esac
    row "$1" "$3" "$5" "$seconds" "$result"
    [[ $result == ok* ]] || { grep -E '^    |^make.*Error|: error' "$log.now" | tail -n 30; tail -n 12 "$log.now" | sed 's/^/    /'; }
    [[ $result == ok* ]]
}
