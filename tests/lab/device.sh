#!/usr/bin/env bash
# A block device with a known bandwidth, as root: an ext4 on a loop device, capped by cgroup v1 blkio, which counts
# reads and writes apart; `shared`: one bandwidth for both (medium.py), the cgroup caps nothing. LATENCY: each request
# takes so many seconds, +- JITTER of it; IOPS: so many of them a second. A bandwidth, or IOPS, of 0 is no limit.
#   device.sh up FOLDER SIZE BYTES_PER_SECOND [shared [LATENCY [JITTER [IOPS]]]]   mounts FOLDER/mnt, makes the cgroup; prints it
#   device.sh again FOLDER BYTES_PER_SECOND [LATENCY [JITTER [IOPS]]]   the same data of a `shared` one with other limits
#   device.sh in CGROUP COMMAND...                       runs a command under the cap
#   device.sh down FOLDER
set -euo pipefail
group_of() { echo "/sys/fs/cgroup/blkio/feedrate-$(basename "$1")"; }
medium() { "${PYTHON:-python3}" "$(dirname "$0")/medium.py" "$1/backing" "$1/image" "${@:2}"; } # FOLDER BYTES_PER_SECOND ...
attach() {
    loop=$(losetup -f --show --direct-io=on "$1/image")
    echo 128 >"/sys/block/${loop#/dev/}/queue/read_ahead_kb" # Linux's default; the backing device's may be 20 times that
}
release() {
    loop=$(findmnt -no SOURCE "$1/mnt")
    umount "$1/mnt"
    losetup -d "$loop"
    while findmnt "$1/image" >/dev/null; do # the loop device lets go of it in its own time
        umount "$1/image" 2>/dev/null || sleep 0.1
    done
}
case ${1:-} in
up)
    folder=$2
    mkdir -p "$folder/mnt"
    truncate -s "$3" "$folder/image"
    if [ "${5:-}" = shared ]; then
        mv "$folder/image" "$folder/backing"
        touch "$folder/image"
        medium "$folder" "$4" "${@:6}"
    fi
    attach "$folder"
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$loop" # or the kernel writes to it for minutes
    mount -o noatime "$loop" "$folder/mnt"
    mountpoint -q "$folder/mnt"
    group=$(group_of "$folder")
    mkdir -p "$group"
    for kind in read write; do
        [ "${5:-}" != shared ] || continue
        echo "$(cat "/sys/block/${loop#/dev/}/dev") $4" >"$group/blkio.throttle.${kind}_bps_device"
    done
    echo "$group"
    ;;
again)
    release "$2"
    medium "${@:2}"
    attach "$2"
    mount -o noatime "$loop" "$2/mnt"
    ;;
in)
    echo $BASHPID >"$2/cgroup.procs"
    shift 2
    exec "$@"
    ;;
down)
    release "$2"
    rm -f "$2/image" "$2/backing"
    rmdir "$(group_of "$2")"
    ;;
*)
    echo "usage: device.sh up FOLDER SIZE BYTES_PER_SECOND [shared] | again FOLDER ... | in CGROUP COMMAND... | down FOLDER" >&2
    exit 2
    ;;
esac
