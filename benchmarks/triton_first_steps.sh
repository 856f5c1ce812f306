#!/usr/bin/env bash
# First steps of Triton libraries in whole fresh processes with empty caches, and in the next process: triton_libraries.py
# for each operation, on one GPU and 16 cores. The libraries have to be importable, and mltune installed.
#
#     benchmarks/triton_first_steps.sh GPU OUTPUT SECONDS OPERATION...        mltune without a record, then the next process
#     benchmarks/triton_first_steps.sh GPU OUTPUT SECONDS --stock OPERATION... Triton's own tuning, which may not end in time
set -uo pipefail
gpu=$1 output=$2 end=$((SECONDS + $3)) arm=mltune
shift 3
[[ ${1:-} == --stock ]] && arm=triton && shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
caches=$(mktemp -d)
trap 'rm -rf "$caches"' EXIT
export CUDA_VISIBLE_DEVICES=$gpu TRITON_CACHE_AUTOTUNING=1
cores=$((16 * gpu))-$((16 * gpu + 15))
((16 * gpu + 15 < $(nproc --all))) || cores=0-15

step() { # OPERATION, then further arguments
    local left=$((end - SECONDS))
    ((left > 8)) || return 0
    TRITON_CACHE_DIR=$caches/$1 MLTUNE_WISDOM=$caches/$1.json taskset -c "$cores" timeout $((left + 5)) \
        python3 benchmarks/triton_libraries.py "$arm" "$1" --sizes 0 --seconds "$left" --output "$output" "${@:2}"
}

for operation in "$@"; do
    if [[ $arm == triton ]]; then
        step "$operation"
    else
        step "$operation" --timeline
        step "$operation" --label again
    fi
done
