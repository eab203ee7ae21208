#!/usr/bin/env bash
# A Ceph of its own, as root, without systemd: one monitor, one manager, two OSDs in memory, radosgw. It is on
# loopback, or at FEEDRATE_ADDRESS.
#   ceph.sh install | bind SITE | up FOLDER PORT | down FOLDER
# `bind` lets the Python of SITE (its site-packages) see Ceph's binding; it must be of the system's version.
# `up` leaves FOLDER/ceph.conf with FOLDER/keyring, a pool `bench`, client.weak that may only look at the cluster,
# and radosgw on 127.0.0.1:PORT with a bucket `bucket` whose owner's keys are AKLAB and SKLAB. What it starts has
# its pid in FOLDER/*.pid; `down` ends those.
set -euo pipefail
export LC_ALL=C
address=${FEEDRATE_ADDRESS:-127.0.0.1}

configuration() {
    cat <<CONF
[global]
fsid = $2
mon host = [v2:$address:13310,v1:$address:16799]
public addr = $address
cluster addr = $address
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = true
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
run dir = $1
admin socket = $1/\$name.asok
pid file = $1/\$name.pid
log file = $1/\$name.log
keyring = $1/keyring
mon data = $1/mon
mgr data = $1/mgr
osd data = $1/osd.\$id
crash dir = $1/crash
mon data avail warn = 1
mon data avail crit = 1
[osd]
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
osd class load list = *
osd class default list = *
CONF
}

keys() {
    ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *' >/dev/null
    ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    ceph-authtool keyring --gen-key -n client.weak --cap mon 'allow r' >/dev/null
    ceph-authtool keyring --gen-key -n mgr.x --cap mon 'allow *' --cap osd 'allow *' >/dev/null
    ceph-authtool keyring --gen-key -n client.rgw.a --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    for i in 0 1; do
        ceph-authtool keyring --gen-key -n osd.$i --cap mon 'allow profile osd' --cap osd 'allow *' \
            --cap mgr 'allow profile osd' >/dev/null
    done
}

case ${1:-} in
install)
    command -v curl >/dev/null && command -v ceph-mon >/dev/null && command -v ceph-osd >/dev/null && command -v radosgw >/dev/null &&
        command -v rados >/dev/null && exit
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends \
        ceph-mon ceph-mgr ceph-osd ceph-common radosgw python3-rados curl
    ;;
bind)
    ln -sf /usr/lib/python3/dist-packages/rados.*.so "$2"/
    ;;
up)
    folder=$2 port=$3 id=$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "$folder"/{mon,mgr,crash,rgw,osd.0,osd.1}
    cd "$folder"
    configuration "$folder" "$id" >ceph.conf
    conf=(-c "$folder/ceph.conf")
    keys
    monmaptool --create --addv a "[v2:$address:13310,v1:$address:16799]" --fsid "$id" monmap >/dev/null
    ceph-mon "${conf[@]}" --mkfs -i a --monmap monmap --keyring keyring
    ceph-mon "${conf[@]}" -i a
    ceph-mgr "${conf[@]}" -i x
    for i in 0 1; do
        osd=$(cat /proc/sys/kernel/random/uuid)
        ceph "${conf[@]}" osd new "$osd" >/dev/null
        ceph-osd "${conf[@]}" -i $i --mkfs --osd-uuid "$osd" >/dev/null 2>&1
        ceph-osd "${conf[@]}" -i $i >/dev/null
    done
    for _ in $(seq 150); do
        ceph "${conf[@]}" osd stat 2>/dev/null | grep -q '2 up' && break
        sleep 0.2
    done
    ceph "${conf[@]}" osd pool create bench 16 16 >/dev/null 2>&1
    radosgw "${conf[@]}" -n client.rgw.a --keyring="$folder/keyring" --rgw-data="$folder/rgw" \
        --rgw-frontends="beast endpoint=127.0.0.1:$port" --rgw-dns-name=localhost
    for _ in $(seq 300); do
        (echo >/dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
        sleep 0.2
    done
    radosgw-admin "${conf[@]}" user create --uid=lab --display-name=lab --access-key=AKLAB --secret-key=SKLAB \
        >/dev/null 2>&1
    curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user AKLAB:SKLAB -X PUT "http://127.0.0.1:$port/bucket" \
        -H "x-amz-content-sha256: $(sha256sum </dev/null | cut -d' ' -f1)"
    ;;
down)
    for file in "$2"/*.pid; do kill "$(cat "$file")" 2>/dev/null || true; done
    sleep 1
    for file in "$2"/*.pid; do kill -9 "$(cat "$file")" 2>/dev/null || true; done
    ;;
*)
    echo "usage: ceph.sh install | bind SITE | up FOLDER PORT | down FOLDER" >&2
    exit 2
    ;;
esac
