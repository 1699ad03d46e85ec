#!/bin/bash
# Packs what `make install` installed below ROOT/usr for others to install: a Debian package for the distribution that this
# runs on, a tar.zst for any other with the same libraries, and their SHA-256 sums. Called by `make dist`.
#   package.sh ROOT OUT cuda|cpu
# The same sources, compiler and libraries give the same bytes: times are the last commit's (SOURCE_DATE_EPOCH), owners root,
# names sorted. One package a distribution, because the sonames of libraries differ (libutf8proc.so.2 in Debian 12, .3 in
# Debian 13), and so do the names of packages (libcurl4, libcurl4t64).
set -euo pipefail
{ [ $# = 3 ] && [[ $3 == @(cuda|cpu) ]]; } || { sed -n '2,4p' "$0" >&2; exit 2; }
root=$(realpath "$1") out=$2 kind=$3
here=$(dirname "$0")
export LC_ALL=C
umask 022

# VERSION for the commit with the tag vVERSION; before it VERSION~TIME.COMMIT and after it VERSION+TIME.COMMIT (the time of
# the commit), so that apt takes a later commit's package as an upgrade. Without git: VERSION.
version=$(sed -n 's/^#define AERIE_VERSION "\(.*\)"/\1/p' "$here/../../kernels/base.h")
tag=v$version
if commit=$(git -C "$here" rev-parse HEAD 2>/dev/null); then
    : "${SOURCE_DATE_EPOCH:=$(git -C "$here" log -1 --format=%ct)}"
    if [ "$(git -C "$here" rev-parse -q --verify "$tag^{commit}" || true)" != "$commit" ] || ! git -C "$here" diff --quiet HEAD; then
        after='~'
        ! git -C "$here" merge-base --is-ancestor "$tag" HEAD 2>/dev/null || after=+
        version+=$after$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d.%H%M%S).${commit:0:7}
        git -C "$here" diff --quiet HEAD || version+=.changed
    fi
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
arch=$(dpkg --print-architecture)
distribution=$(. /etc/os-release; echo "$ID$VERSION_ID")

strip --strip-all --remove-section=.comment --remove-section=.note "$root/usr/bin/aerie"
settle() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

mkdir -p "$out"
# ---- any distribution: unpack anywhere; the program finds its model beside itself ------------------
name=aerie-$version-$distribution-$arch
settle "$root/usr"
tar -C "$root" --transform "s,^usr,$name," --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+r,go-w -cf - usr | zstd -q -f -19 -o "$out/$name.tar.zst"

# ---- Debian ------------------------------------------------------------------------------------------
package=$version-1~$distribution
share=$root/usr/share doc=$root/usr/share/doc/aerie
mkdir -p "$doc" "$root/DEBIAN" "$share/zsh/vendor-completions"
mv "$share/zsh/site-functions/_aerie" "$share/zsh/vendor-completions/" # where Debian's zsh looks
rmdir "$share/zsh/site-functions"
gzip -9nf "$share/man/man1/aerie.1"
gzip -9n >"$doc/changelog.Debian.gz" <<END
aerie ($package) unstable; urgency=medium

  * Build from the sources of $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d).

 -- The aerie authors <aerie@users.noreply.github.com>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
cat >"$doc/copyright" <<'END'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: aerie

Files: *
Copyright: 2026 the aerie authors
License: all-rights-reserved
 No licence has been granted yet: all rights are reserved by the authors.
END
# the libraries' packages, as this distribution names them
stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
mkdir "$stub/debian"
printf 'Source: aerie\n\nPackage: aerie\nArchitecture: any\n' >"$stub/debian/control"
# those that the program loads late (kernels/late.h) stand in no header of it: a library that is linked with them needs the
# functions whose names are in the program
strings -a "$root/usr/bin/aerie" | grep -xE '(curl|MHD)_[a-z_]+' | sort -u |
    awk '{ print "extern int " $0 "; int *at_" $0 " = &" $0 ";" }' >"$stub/late.c"
# shellcheck disable=SC2046
cc -shared -fPIC -o "$stub/late.so" "$stub/late.c" $(pkg-config --libs libcurl libmicrohttpd)
depends=$(cd "$stub" && dpkg-shlibdeps -O "$root/usr/bin/aerie" late.so 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "package.sh: dpkg-shlibdeps names no libraries" >&2; exit 1; }
case $kind in
cuda) suggests='Suggests: libcuda1' computes='It computes on the CPU or, with an NVIDIA driver, on the GPU.' ;;
cpu) suggests='' computes='It computes on the CPU; this build has no code for GPUs.' ;;
esac
sed '/^$/d' >"$root/DEBIAN/control" <<END
Package: aerie
Version: $package
Architecture: $arch
Maintainer: The aerie authors <aerie@users.noreply.github.com>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: $depends
$suggests
Section: utils
Priority: optional
Description: terminal chat and debugging REPL for local language models
 aerie runs a hybrid sliding-window language model with EAGLE3 speculative
 drafting. $computes
 Commands and panes show page tables, KV pools and draft acceptance while it
 answers; every session is logged to SQLite and can be searched, replayed and
 compared. It also talks with vLLM, SGLang, llama-server and other servers. A
 small model is included.
END
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
settle "$root"
deb=aerie_${package}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$out/$deb" >/dev/null

(cd "$out" && sha256sum "$deb" "$name.tar.zst" >SHA256SUMS)
du -m "$out/$deb" "$out/$name.tar.zst" | awk '{ print "aerie: " $2 ", " $1 " MiB" }'
