#!/usr/bin/env bash
# Containers without Docker, as root: a folder in namespaces of its own, with a /dev of its own. What runs in one ends
# with it, and nothing stays mounted.
#   container.sh install
#   container.sh base FOLDER             like python:3.11-slim-bookworm: Debian with Python in /usr/local
#   container.sh in FOLDER WORD...       as root, and what it writes stays
#   container.sh run FOLDER WORD...      as $USER_ID:$GROUP_ID without capabilities, and what it writes goes
# MOUNTS: lines of SOURCE:TARGET, read-only with :ro at the end; tmpfs is memory. HOST: its host name.
set -euo pipefail
case ${1:-} in
install)
    command -v debootstrap >/dev/null && command -v ip >/dev/null && exit
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends debootstrap iproute2
    ;;
base)
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
    debootstrap --variant=minbase --include=ca-certificates bookworm "$2" ${mirror:+"$mirror"}
    rm -r "$2"/dev/*
    "$0" in "$2" apt-get install --yes --no-install-recommends python3.11-venv
    "$0" in "$2" python3.11 -m venv /usr/local
    ;;
in | run)
    exec unshare --mount --propagation private --uts --ipc --pid --fork --kill-child "$0" "inside-$1" "${@:2}"
    ;;
inside-*)
    root=$2
    user=()
    if [ "$1" = inside-run ]; then
        mount -t tmpfs none "$root/mnt"
        mkdir "$root"/mnt/{written,work,root}
        mount -t overlay -o "lowerdir=$root,upperdir=$root/mnt/written,workdir=$root/mnt/work" none "$root/mnt/root"
        root=$root/mnt/root
        # Who it becomes would forget that it ends with unshare.
        user=(setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups --no-new-privs --bounding-set=-all --pdeathsig KILL)
    fi
    hostname "${HOST:=container}"
    echo "127.0.0.1 localhost $HOST" >"$root/etc/hosts"
    mount -t proc none "$root/proc"
    mount -t sysfs -o ro none "$root/sys"
    mount -t tmpfs -o mode=755 none "$root/dev"
    mkdir "$root"/dev/{pts,shm}
    while read -r name major minor; do
        mknod -m 666 "$root/dev/$name" c "$major" "$minor"
    done <<<$'null 1 3\nzero 1 5\nfull 1 7\nrandom 1 8\nurandom 1 9\ntty 5 0'
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t devpts -o newinstance,ptmxmode=666 none "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs -o size=64m,mode=1777 none "$root/dev/shm" # Docker's and Kubernetes' size
    while IFS=: read -r source target readonly; do
        [ -n "$source" ] || continue
        if [ "$source" = tmpfs ]; then
            mount -t tmpfs -o mode=1777 none "$root$target"
            continue
        fi
        if [ -d "$source" ]; then mkdir -p "$root$target"; else mkdir -p "$root${target%/*}" && touch -a "$root$target"; fi
        mount --rbind "$source" "$root$target"
        [ -z "$readonly" ] || mount -o remount,bind,ro "$root$target"
    done <<<"${MOUNTS:-}"
    exec chroot "$root" "${user[@]}" "${@:3}"
    ;;
*)
    echo "usage: container.sh install | base FOLDER | in FOLDER WORD... | run FOLDER WORD..." >&2
    exit 2
    ;;
esac
