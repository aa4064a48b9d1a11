#!/usr/bin/env bash
# README's lines, the tests or the image on a Debian that has nothing of this machine.
#
#   benchmarks/other_debian.sh DIR SUITE [demo|test|ci|image]     # as root; bookworm, trixie, sid ...
#
# debootstrap makes a small Debian of the SUITE in DIR, with its own Python and no caches; kept for a
# second run. demo: README's first line, and `abag demo`. test: README's line of tests. ci: the tests
# that CI runs besides. image: buildah builds the Dockerfile on this Debian in the place of the
# official image of Python, and runs `abag demo` and `abag doctor` in it as another user.
set -euo pipefail
dir=$1 suite=$2 what=${3:-demo}
here=$(cd "$(dirname "$0")/.." && pwd)
certificates=/usr/local/share/ca-certificates # of a proxy, if there is one
if [ ! -x "$dir/usr/bin/python3" ]; then
    debootstrap --variant=minbase \
        --include=python3,python3-venv,python3-pip,ca-certificates,gcc,libc6-dev,git "$suite" "$dir"
    cp /etc/resolv.conf /etc/hosts "$dir/etc/"
    find $certificates -name '*.crt' -exec cp {} "$dir$certificates/" \;
    chroot "$dir" update-ca-certificates
fi

in_chroot() { # COMMAND...
    chroot "$dir" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

if [ "$what" = image ]; then
    context=$(mktemp -d)
    trap 'rm -rf "$context"' EXIT
    git clone -q "$here" "$context/abag"
    rm -f "$dir"/usr/lib/python3*/EXTERNALLY-MANAGED # as in the official image
    ln -sf python3 "$dir/usr/bin/python"
    base=$(buildah from --isolation chroot scratch)
    buildah add -q "$base" "$dir" /
    buildah config --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$base"
    buildah commit -q --rm "$base" docker.io/library/python:3.11-slim
    buildah bud -q --isolation chroot --pull-never -t abag "$context/abag"
    built=$(buildah from --isolation chroot --pull-never localhost/abag)
    buildah run --isolation chroot --user 1234 "$built" -- sh -c 'cd /data && abag demo'
    buildah run --isolation chroot --user 1234 "$built" -- abag doctor || true # it has no weights
    exit
fi

# mounts that end with this process: what is mounted in DIR cannot be lost with it
[ -n "${IN_OWN_MOUNTS:-}" ] || IN_OWN_MOUNTS=1 exec unshare --mount "$0" "$@"
mount -t proc proc "$dir/proc"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$dir/dev/pts"
mount -t tmpfs tmpfs "$dir/dev/shm"
ln -sfn pts/ptmx "$dir/dev/ptmx"
rm -rf "$dir/srv/abag"
git clone -q "$here" "$dir/srv/abag"
in_chroot git config --global --add safe.directory '*'
line=$(grep -E '^python3 -m venv .*(abag demo|pytest -q)$' "$here/README.md")
case $what in
demo) in_chroot bash -c "cd /srv/abag && $(head -1 <<<"$line")" ;;
test) in_chroot bash -c "cd /srv/abag && $(tail -1 <<<"$line")" ;;
ci)
    in_chroot CI=true bash -c "cd /srv/abag && ${line##*$'\n'} --version && .venv/bin/pytest -q \
        -o addopts='--import-mode=importlib --strict-markers -n 2' -m 'ci and not slow and not gpu'"
    ;;
esac
