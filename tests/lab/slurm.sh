#!/usr/bin/env bash
# A Slurm of its own, as root: munged, slurmctld and N slurmd of 4 CPUs each; on loopback, or on the hosts of
# hosts.sh where FEEDRATE_LAB names these.
#   slurm.sh up DIR N | down DIR | install
set -euo pipefail
case ${1:-} in
install)
    command -v slurmctld >/dev/null && command -v munged >/dev/null && ldconfig -p | grep -q 'libpmix.so ' &&
        test -e /usr/lib/x86_64-linux-gnu/libmpi.so.40 && exit
    apt-get update -q
    # --mpi=pmix opens what libpmix-dev has; libopenmpi3 is Debian's Open MPI, without its mpirun.
    DEBIAN_FRONTEND=noninteractive apt-get install -yq slurm-wlm munge libpmix-dev libopenmpi3
    ;;
up)
    dir=$2 nodes=$3 host=$(hostname) address=127.0.0.1 name=n addresses=127.0.0.1 ports="[27101-$((27100 + $3))]"
    # A host name of its own: PMIx finds out by it who is on the same node.
    on() { unshare --uts bash -c "hostname $1 && exec $2"; }
    if [ -n "${FEEDRATE_LAB:-}" ]; then
        name=$FEEDRATE_LAB host=${FEEDRATE_LAB}1 address=10.78.0.1 addresses="10.78.0.[1-$3]" ports=27101
        # Not by the agent: its /sys has no cgroups.
        on() { nsenter --net="/run/netns/$1" --uts="/run/$FEEDRATE_LAB/uts-$1" $2; }
    fi
    mkdir -p "$dir"/{spool,state,log,tmp}
    chmod 755 "$dir"
    dd if=/dev/urandom of="$dir/munge.key" bs=1 count=1024 status=none
    chmod 600 "$dir/munge.key"
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.sock" --pid-file="$dir/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/munged.seed"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=feedrate
SlurmctldHost=$host($address)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock
CredType=cred/munge
SlurmctldPort=26917
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
StateSaveLocation=$dir/state
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=${name}[1-$nodes] NodeAddr=$addresses Port=$ports CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$dir/slurm.conf
    # TmpFS: of a step --mpi=pmix makes the same folder on each node; in one /tmp all nodes but one would fail.
    for i in $(seq "$nodes"); do mkdir -p "$dir"/{spool,tmp}/"$name$i"; done
    on "$host" slurmctld
    for i in $(seq "$nodes"); do on "$name$i" "slurmd -N $name$i"; done
    for _ in $(seq 100); do
        on "$host" "sinfo -h -o %t" 2>/dev/null | grep -qx idle && exit
        sleep 0.2
    done
    echo "no node of this Slurm became idle; see $dir/log" >&2
    exit 1
    ;;
down)
    for file in "$2"/*.pid; do kill "$(cat "$file")" 2>/dev/null || true; done
    ;;
*)
    echo "usage: slurm.sh up DIR N | down DIR | install" >&2
    exit 2
    ;;
esac
