#!/usr/bin/env bash
# Build and compare libraries, one on each GPU of a machine, each with its share of the cores.
#
#     benchmarks/libraries.sh build FOLDER 420s "sgemm NN" "hgemm TN" "dgemm NT"
#     benchmarks/libraries.sh compare FOLDER 10 "sgemm NN" "hgemm TN" "dgemm NT"      # tunes of 10 s at 30 shapes
#
# A case is one of library.py: a product, or reduction, softmax or the folder of a bundle, such as
# benchmarks/library_kernels/matmul. Of more cases than GPUs the later ones follow on the GPU that has worked for least cases.
# FOLDER receives CASE (the library), CASE_run, CASE_build.json, CASE_compare.json and CASE.log. A build that was cut off goes on.
set -euo pipefail

what=$1 folder=$2 seconds=$3
shift 3
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
cores=$(($(nproc) / gpus))
mkdir -p "$folder"

one() { # GPU, CASE
    local name
    name=$(basename "$2" | tr ' A-Z' '_a-z')
    local at=$folder/$name first=$(($1 * cores))
    local command=(python3 "$(dirname "$0")/library.py" "$what" "$2" --library "$at" --output "${at}_$what.json")
    if [ "$what" = build ]; then
        command+=(--time "$seconds" --run "${at}_run")
    else
        command+=(--shapes 200 --tuned 30 --tune-time "$seconds")
    fi
    echo "$(date +%T) GPU $1: ${command[*]}"
    [ -n "${DRY:-}" ] || CUDA_VISIBLE_DEVICES=$1 taskset -c "$first-$((first + cores - 1))" "${command[@]}" >>"$at.log" 2>&1 ||
        echo "$2 failed: $(tail -1 "$at.log")"
}

of_gpu() { # GPU, then all cases
    local gpu=$1 number=0 case
    shift
    for case in "$@"; do
        [ $((number++ % gpus)) -ne "$gpu" ] || one "$gpu" "$case"
    done
}

for ((gpu = 0; gpu < gpus; gpu++)); do
    of_gpu "$gpu" "$@" &
done
wait
