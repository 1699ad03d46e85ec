#!/bin/bash
# Runs the README's commands on bare systems: `make run` and `make test` on a clean clone, as root and as a user with
# sudo, then `make install` and the installed program as another user. Prints a table of seconds and results; status 1
# if a command failed, 2 if the script cannot run here. Needs root (debootstrap, chroot).
#   tests/fresh.sh [OPTION...]
#   --suite NAME        a Debian or Ubuntu release; may be repeated (bookworm, trixie and noble)
#   --as root|sudo      who runs the commands; may be repeated (both)
#   --mirror NAME=URL   where a release's packages are (the mirror of this machine's own apt sources)
#   --zmq               with the optional library libzmq, too (make ZMQ=1)
#   --only COMMAND      run, test, install or dist; may be repeated (run, test and install). dist: `make dist` twice, in two folders,
#                       compared; its package is installed in another bare system, upgraded to that of a later commit, and
#                       purged; its tar.zst is unpacked there
#   --cuda DIR          the CUDA toolkit in DIR, for the system that builds: packages with code for GPUs
#   --cache DIR         keeps downloaded packages and bare systems between runs (~/.cache/aerie-fresh)
#   --keep              keeps the systems and their logs and says where they are
# What is cloned is HEAD of this checkout: changes that are not committed are not tested.
cd "$(dirname "$0")/.." || exit 2
stop() { echo "fresh: $1" >&2; exit 2; }

suites=() users=() only=() keep=0 make=make cuda='' cache=${XDG_CACHE_HOME:-$HOME/.cache}/aerie-fresh
declare -A mirrors
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suites+=("$2"); shift ;;
    --as) case $2 in root | sudo) users+=("$2") ;; *) stop "--as $2: expected root or sudo" ;; esac; shift ;;
    --mirror) [[ $2 == ?*=?* ]] || stop "--mirror $2: expected NAME=URL"; mirrors[${2%%=*}]=${2#*=}; shift ;;
    --only) case $2 in run | test | install | dist) only+=("$2") ;; *) stop "--only $2: expected run, test, install or dist" ;; esac; shift ;;
    --cache) cache=$2; shift ;;
    --keep) keep=1 ;;
    --cuda) [ -x "$2/bin/nvcc" ] || stop "--cuda $2: no bin/nvcc there"; cuda=$(realpath "$2"); shift ;;
    --zmq) make='make ZMQ=1' ;;
    *) sed -n '2,18p' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie noble)
[ ${#users[@]} -gt 0 ] || users=(root sudo)
[ ${#only[@]} -gt 0 ] || only=(run test install)
[ "$(id -u)" = 0 ] || stop "needs root, to make bare systems and to enter them (sudo tests/fresh.sh)"
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "fresh: uncommitted changes are not tested"

mkdir -p "$cache/downloads" && cache=$(realpath "$cache") && work=$(mktemp -d "$cache/run.XXXXXX") || exit 2
tidy() { [ $keep = 1 ] || rm -rf --one-file-system "$work"; }
trap tidy EXIT
trap 'exit 130' INT TERM

. tests/roots.sh

row() { printf '%-10s %-5s %-28s %7s  %s\n' "$@"; }
wants() { [[ " ${only[*]} " == *" $1 "* ]]; }

# Builds the packages in two folders, compares them, and tries them in a system that has seen no compiler.
prove_packages() { # release, tree, as, user, home
    local clean=$work/$1-$3-clean
    cp -a "$5/aerie" "$5/again"
    step "$1" "$2" "$3" "$4" "make dist" '^aerie: build/dist/aerie_.*MiB$' 'cd aerie && make dist'
    step "$1" "$2" "$3" "$4" "make dist, another folder" OK 'cd again && make dist >/dev/null && cd build/dist && sha256sum -c ../../../aerie/build/dist/SHA256SUMS'
    unpack_system "$1" "$clean" && mkdir "$clean/dist" && cp "$5"/aerie/build/dist/* "$clean/dist/" || return 1
    inside "$1" "$clean" root 'useradd -m guest' || return 1
    step "$1" "$clean" "$3" root "apt-get install .deb" 'Setting up aerie' 'apt-get update -qq && apt-get install -y --no-install-recommends /dist/*.deb zstd'
    step "$1" "$clean" "$3" guest "aerie run, from the .deb" '^[A-Z].*[.!?]$' 'aerie run "Hello!"'
    step "$1" "$clean" "$3" guest "aerie run, from the tar.zst" '^[A-Z].*[.!?]$' 'tar -xf /dist/*.tar.zst && aerie-*/bin/aerie run "Hello!" && cd aerie-*/bin && ./aerie doctor | grep "bundled.*aerie-"'
    # what each shell and man find by themselves
    step "$1" "$clean" "$3" root "man-db, bash, zsh, fish" 'Setting up fish' 'apt-get install -y --no-install-recommends man-db bash-completion zsh fish'
    step "$1" "$clean" "$3" guest "manual" 'aerie.1.gz' 'man -w aerie'
    step "$1" "$clean" "$3" guest "completion of bash" '_aerie aerie$' '. /usr/share/bash-completion/bash_completion; _completion_loader aerie; complete -p aerie'
    step "$1" "$clean" "$3" guest "completion of zsh" '^_aerie$' "zsh -fc 'autoload -U compinit; compinit; print \$_comps[aerie]'"
    step "$1" "$clean" "$3" guest "completion of fish" '^replay' "fish -c 'complete -C \"aerie re\"'"
    step "$1" "$clean" "$3" root "lintian" 'no errors' 'apt-get install -y -qq lintian >/dev/null 2>&1 && lintian --fail-on error /dist/*.deb && echo no errors'
    step "$1" "$2" "$3" "$4" "make dist, a later commit" '^aerie: build/dist/aerie_.*MiB$' 'cd again && git -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m later && make dist'
    mkdir "$clean/later" && cp "$5"/again/build/dist/*.deb "$clean/later/" || return 1
    step "$1" "$clean" "$3" root "upgrade" 'Unpacking aerie .* over ' 'apt-get install -y --no-install-recommends /later/*.deb'
    step "$1" "$clean" "$3" guest "the session from before" '1 turn' 'aerie db check && aerie logs'
    step "$1" "$clean" "$3" root "apt-get purge" 'Removing aerie' 'apt-get purge -y aerie && ! command -v aerie && [ -e ~guest/.local/share/aerie/sessions.db ] &&
        ! find / -xdev \( -path /home -o -path /dist -o -path /later -o -path /var/cache/apt \) -prune -o -name "*aerie*" -print | grep .'
    [ $keep = 1 ] || rm -rf --one-file-system "$clean"
}

prove() { # release, root or sudo: every command in a system of its own
    local tree=$work/$1-$2 user=root sudo='' home
    unpack_system "$1" "$tree" || return 1
    inside "$1" "$tree" root 'useradd -m guest' || return 1
    if [ "$2" = sudo ]; then
        user=dev sudo='sudo '
        inside "$1" "$tree" root 'apt-get update -qq && apt-get install -y -qq --no-install-recommends sudo >/dev/null &&
            useradd -m dev && echo "dev ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/dev' >"$work/$1-sudo.log" 2>&1 || return 1
        rm -rf "$tree"/var/lib/apt/lists/*
    fi
    home=$tree/home/$user
    [ $user = root ] && home=$tree/root
    git clone -q --no-local . "$home/aerie" && inside "$1" "$tree" root "chown -R $user: ~$user/aerie" || return 1

    ! wants run || step "$1" "$tree" "$2" $user "make run" '^[A-Z].*[.!?]$' 'cd aerie && printf "Hello!\n/bye\n" | '"$make run"
    ! wants test || step "$1" "$tree" "$2" $user "make test" '^[0-9]+ passed, 0 failed' "cd aerie && $make test"
    ! wants dist || prove_packages "$1" "$tree" "$2" $user "$home" || failed=1
    if wants install; then
        step "$1" "$tree" "$2" $user "make install" '/bin/aerie$' "cd aerie && ${sudo}$make install"
        mv "$home/aerie" "$home/aerie.away" && chmod 700 "$home/aerie.away"
        step "$1" "$tree" "$2" guest "aerie run, installed" '^[A-Z].*[.!?]$' 'aerie run "Hello!"'
        step "$1" "$tree" "$2" guest "aerie doctor, installed" 'nestling' 'aerie doctor'
    fi
    [ $keep = 1 ] || rm -rf --one-file-system "$tree"
}

echo "commit $(git rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
row system as command seconds result
proved=0
for suite in "${suites[@]}"; do
    mirror=$(mirror_of "$suite")
    if [ -z "$mirror" ]; then
        row "$suite" - - - "skipped: apt here has no $(distribution "$suite") mirror (--mirror $suite=URL)"
        continue
    fi
    begin=$SECONDS
    bare_system "$suite" "$mirror" || { row "$suite" - debootstrap $((SECONDS - begin)) FAILED; failed=1; continue; }
    for as in "${users[@]}"; do
        prove "$suite" "$as" || { row "$suite" "$as" "(set-up)" - FAILED; failed=1; tail -n 3 "$work/$suite-$as.log" 2>/dev/null; }
        proved=$((proved + 1))
    done
done
[ $keep = 0 ] || echo "kept: $work"
[ $proved -gt 0 ] || stop "no system was proved"
exit $failed
