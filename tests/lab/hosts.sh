#!/usr/bin/env bash
# Three "hosts" on one machine, as root: network namespaces on a bridge, each with a host name of its own.
#   hosts.sh up N | down N | install
# Host i is frh<i> at 10.78.0.<i>. An agent stands in for ssh: /run/feedrate-hosts/agent HOST COMMAND...
set -euo pipefail
run=/run/feedrate-hosts
case ${1:-} in
install)
    command -v ip >/dev/null || { apt-get update -q; apt-get install -yq iproute2; }
    ;;
up)
    mkdir -p $run
    mountpoint -q $run || { mount -t tmpfs none $run; mount --make-private $run; }
    ip netns add frsw
    ip -n frsw link set lo up
    ip -n frsw link add br0 type bridge
    ip -n frsw link set br0 up
    for i in $(seq "$2"); do
        host=frh$i
        ip netns add $host
        ip -n $host link set lo up
        ip -n $host link add eth0 type veth peer name p$i netns frsw
        ip -n frsw link set p$i master br0 up
        ip -n $host addr add 10.78.0.$i/24 dev eth0
        ip -n $host link set eth0 up
        touch $run/uts-$host
        unshare --uts=$run/uts-$host hostname $host
        mkdir -p /etc/netns/$host
        { echo 127.0.0.1 localhost; for j in $(seq "$2"); do echo 10.78.0.$j frh$j; done; } >/etc/netns/$host/hosts
    done
    cat >$run/agent <<'AGENT'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "$host" nsenter --uts=/run/feedrate-hosts/uts-"$host" /bin/bash -c "$*"
AGENT
    chmod +x $run/agent
    ;;
down)
    for i in $(seq "$2"); do
        umount $run/uts-frh$i 2>/dev/null || true
        ip netns del frh$i 2>/dev/null || true
        rm -rf /etc/netns/frh$i
    done
    ip netns del frsw 2>/dev/null || true
    umount $run 2>/dev/null || true
    rmdir $run /etc/netns 2>/dev/null || true
    ;;
*)
    echo "usage: hosts.sh up N | down N | install" >&2
    exit 2
    ;;
esac
