#!/usr/bin/env bash
# MooseFS over the hosts of hosts.sh, as root: master and one chunk server on the first, a mount on every host.
#   sharedfs.sh install | up FOLDER N | down FOLDER N | kill FOLDER | revive FOLDER | cap HOST RATE | uncap HOST
# Every host sees its own mount at FOLDER/data: the agent binds it there, in a mount namespace of its own.
set -euo pipefail
lab=${FEEDRATE_LAB:-frh}
run=/run/$lab
case ${1:-} in
install)
    command -v mfsmaster >/dev/null && command -v mfschunkserver >/dev/null && command -v mfsmount >/dev/null && exit
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -yq moosefs-master moosefs-chunkserver moosefs-client
    ;;
up)
    folder=$2
    mkdir -p "$folder"/{meta,chunks,var,data}
    printf 'MFSM NEW' >"$folder/meta/metadata.mfs"
    printf '* / rw,alldirs,admin,maproot=0:0\n' >"$folder/exports.cfg"
    : >"$folder/topology.cfg"
    echo "$folder/chunks" >"$folder/hdd.cfg"
    cat >"$folder/master.cfg" <<CONF
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $folder/meta
EXPORTS_FILENAME = $folder/exports.cfg
TOPOLOGY_FILENAME = $folder/topology.cfg
MATOML_LISTEN_HOST = 10.78.0.1
MATOCS_LISTEN_HOST = 10.78.0.1
MATOCL_LISTEN_HOST = 10.78.0.1
CONF
    cat >"$folder/chunk.cfg" <<CONF
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $folder/var
HDD_CONF_FILENAME = $folder/hdd.cfg
HDD_LEAVE_SPACE_DEFAULT = 1GiB
MASTER_HOST = 10.78.0.1
BIND_HOST = 10.78.0.1
CSSERV_LISTEN_HOST = 10.78.0.1
CSSERV_LISTEN_PORT = 9431
CONF
    nsenter --net=/run/netns/${lab}1 mfsmaster -c "$folder/master.cfg" -a start >/dev/null
    nsenter --net=/run/netns/${lab}1 mfschunkserver -c "$folder/chunk.cfg" start >/dev/null
    for i in $(seq "$3"); do
        mkdir -p "$folder/mnt-$lab$i"
        nsenter --net=/run/netns/$lab$i mfsmount "$folder/mnt-$lab$i" -H 10.78.0.1 -o mfscachemode=DIRECT >/dev/null
        mountpoint -q "$folder/mnt-$lab$i"
    done
    for _ in $(seq 100); do # until the chunk server has told the master what it has
        [ "$(stat -f -c %a "$folder/mnt-${lab}1")" = 0 ] || break
        sleep 0.2
    done
    cat >$run/agent <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec ip netns exec "\$host" nsenter --uts=$run/uts-"\$host" /bin/bash -c "mount --bind $folder/mnt-\$host $folder/data && \$*"
AGENT
    ;;
down)
    for i in $(seq "$3"); do umount "$2/mnt-$lab$i" 2>/dev/null || true; done
    nsenter --net=/run/netns/${lab}1 mfschunkserver -c "$2/chunk.cfg" stop >/dev/null || true
    nsenter --net=/run/netns/${lab}1 mfsmaster -c "$2/master.cfg" stop >/dev/null || true
    ;;
kill)
    kill -9 "$(cat "$2/var/.mfschunkserver.lock")"
    ;;
revive)
    nsenter --net=/run/netns/${lab}1 mfschunkserver -c "$2/chunk.cfg" start >/dev/null
    ;;
cap)
    # What the bridge sends to the host is what the host receives.
    ip netns exec ${lab}sw tc qdisc replace dev "p${2#$lab}" root tbf rate "$3" burst 256kb latency 50ms
    ;;
uncap)
    ip netns exec ${lab}sw tc qdisc del dev "p${2#$lab}" root
    ;;
*)
    echo "usage: sharedfs.sh install | up FOLDER N | down FOLDER N | kill FOLDER | revive FOLDER | cap HOST RATE | uncap HOST" >&2
    exit 2
    ;;
esac
