#!/usr/bin/env bash
# A sweep on this machine. Usage: launch/local.sh DIR [RANKS] [options of feedrate sweep]
#   launch/local.sh /mnt/data 8 --workload unet3d-a100 --counts 1,2,4,8
set -euo pipefail
dataset=${1:?usage: launch/local.sh DIR [RANKS] [options of feedrate sweep]}
case $dataset in -*) dataset=./$dataset ;; esac  # not an option
ranks=8
shift
case ${1:-} in [0-9]*) ranks=$1; shift ;; esac
options=("$@")
[ ${#options[@]} -gt 0 ] || options=(--workload unet3d-a100)  # finds the knee, up to RANKS

exec feedrate sweep "$dataset" -n "$ranks" "${options[@]}"
