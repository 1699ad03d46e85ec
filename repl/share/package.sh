#!/bin/bash
# Packs what `make install` installed below ROOT/usr for others to install: a Debian package for the distribution that this
# runs on, a tar.zst for any other with the same libraries, and their SHA-256 sums. Called by `make dist`.
#   package.sh ROOT OUT
# The same sources, compiler and libraries give the same bytes: times are the last commit's (SOURCE_DATE_EPOCH), owners root,
# names sorted.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
root=$(realpath "$1") out=$2
here=$(dirname "$0")
version=$(sed -n 's/^#define AERIE_VERSION "\(.*\)"/\1/p' "$here/../../kernels/base.h")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 1700000000)} LC_ALL=C
arch=$(dpkg --print-architecture)
distribution=$(. /etc/os-release; echo "$ID$VERSION_ID")
umask 022

strip --strip-all "$root/usr/bin/aerie"
settle() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

mkdir -p "$out"
# ---- any distribution: unpack anywhere; the program finds its model beside itself ------------------
name=aerie-$version-$distribution-$arch
settle "$root/usr"
tar -C "$root" --transform "s,^usr,$name," --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+r,go-w -cf - usr | zstd -q -f -19 -o "$out/$name.tar.zst"

# ---- Debian ------------------------------------------------------------------------------------------
doc=$root/usr/share/doc/aerie
mkdir -p "$doc" "$root/DEBIAN"
gzip -9nf "$root/usr/share/man/man1/aerie.1"
gzip -9n >"$doc/changelog.Debian.gz" <<EOF
aerie ($version-1) unstable; urgency=medium

  * Build from the sources of $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d).

 -- The aerie authors <aerie@users.noreply.github.com>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF
cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: aerie

Files: *
Copyright: 2026 the aerie authors
License: none-yet
 The authors have not chosen a licence yet; all rights are theirs.
EOF
# the libraries' packages, as this distribution names them
stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
mkdir "$stub/debian"
printf 'Source: aerie\n\nPackage: aerie\nArchitecture: any\n' >"$stub/debian/control"
depends=$(cd "$stub" && dpkg-shlibdeps -O "$root/usr/bin/aerie" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "package.sh: dpkg-shlibdeps names no libraries" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<EOF
Package: aerie
Version: $version-1
Architecture: $arch
Maintainer: The aerie authors <aerie@users.noreply.github.com>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: $depends
Suggests: libcuda1
Section: utils
Priority: optional
Description: terminal chat and debugging REPL for local language models
 aerie runs a hybrid sliding-window language model on the CPU or, with an
 NVIDIA driver, on the GPU, with EAGLE3 speculative drafting. Commands and
 panes show page tables, KV pools and draft acceptance while it answers; every
 session is logged to SQLite and can be searched, replayed and compared. It
 also talks with vLLM, SGLang, llama-server and other servers. A small model
 is included.
EOF
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
settle "$root"
deb=aerie_$version-1~${distribution}_$arch.deb
sed -i "s/^Version: .*/Version: $version-1~$distribution/" "$root/DEBIAN/control"
touch -d "@$SOURCE_DATE_EPOCH" "$root/DEBIAN/control"
dpkg-deb --root-owner-group -Zxz --build "$root" "$out/$deb" >/dev/null

(cd "$out" && sha256sum "$deb" "$name.tar.zst" >SHA256SUMS)
du -m "$out/$deb" "$out/$name.tar.zst" | awk '{ print "aerie: " $2 ", " $1 " MiB" }'
