#!/usr/bin/env bash
# "Hosts" on one machine, as root: network namespaces on a bridge, each with a host name of its own.
#   hosts.sh up N | down | install
# Host i is $FEEDRATE_LAB<i> at 10.78.0.<i>, the bridge is in ${FEEDRATE_LAB}sw, and an agent stands in for ssh:
# /run/$FEEDRATE_LAB/agent HOST COMMAND... A lab is called fr<process that it is for>h, or frh; those of processes
# that were killed go when the next one comes.
set -euo pipefail
lab=${FEEDRATE_LAB:-frh}
run=/run/$lab
down() {
    for host in $(ip netns list | grep -oE "^$1([0-9]+|sw)\b"); do
        ip netns pids "$host" | xargs -r kill -9 2>/dev/null || true
        umount "/run/$1/uts-$host" 2>/dev/null || true
        ip netns del "$host"
        rm -rf "/etc/netns/$host"
    done
    umount -l "/run/$1" 2>/dev/null || true # what has just been killed may still be in it
    rmdir "/run/$1" /etc/netns 2>/dev/null || true
}
case ${1:-} in
install)
    command -v ip >/dev/null || { apt-get update -q; apt-get install -yq iproute2; }
    ;;
up)
    for pid in $(ip netns list | grep -oP '^fr\K[0-9]+(?=hsw)'); do
        test -d "/proc/$pid" || down "fr${pid}h"
    done
    mkdir -p $run
    mountpoint -q $run || { mount -t tmpfs none $run; mount --make-private $run; }
    ip netns add ${lab}sw
    ip -n ${lab}sw link set lo up
    ip -n ${lab}sw link add br0 type bridge
    ip -n ${lab}sw link set br0 up
    for i in $(seq "$2"); do
        host=$lab$i
        ip netns add $host
        ip -n $host link set lo up
        ip -n $host link add eth0 type veth peer name p$i netns ${lab}sw
        ip -n ${lab}sw link set p$i master br0 up
        ip -n $host addr add 10.78.0.$i/24 dev eth0
        ip -n $host link set eth0 up
        touch $run/uts-$host
        unshare --uts=$run/uts-$host hostname $host
        mkdir -p /etc/netns/$host
        { echo 127.0.0.1 localhost; for j in $(seq "$2"); do echo 10.78.0.$j $lab$j; done; } >/etc/netns/$host/hosts
    done
    cat >$run/agent <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec ip netns exec "\$host" nsenter --uts=$run/uts-"\$host" /bin/bash -c "\$*"
AGENT
    chmod +x $run/agent
    ;;
down)
    down $lab
    ;;
*)
    echo "usage: hosts.sh up N | down | install" >&2
    exit 2
    ;;
esac
