#!/usr/bin/env bash
# Record the datasets of datasets/gemm_simt and datasets/gemm_mma64, on a machine with an H200.
#
#     benchmarks/record_datasets.sh FOLDER s    # FOLDER receives the datasets; then with dcz, tensor and c
set -euo pipefail

folder=$1
part=$2
runs=$(mktemp -d)

sweep() { # NAME OF RUN, then options
    local run=$runs/$1
    shift
    echo "$(date +%T) sweep $*"
    python3 -m mltune sweep "$@" --run "$run" >/dev/null
    cp "$run"/*.parquet "$run"/*.json "$folder"
}

complete() { # NAME OF RUN, PROBLEM, TRANS, then NAME=VALUES
    local run=$1 problem=$2 trans=$3
    shift 3
    sweep "$run" "$problem" --trans "$trans" --complete $(printf -- '--only %s ' "$@")
}

if [ "$part" = s ]; then
    sweep s-nt-4096 sgemm --trans NT --count 5000
    sweep s-nn-4096 sgemm --trans NN --count 1500
    sweep s-nt-1024 sgemm --trans NT --size 1024 --count 1500
    complete s-complete sgemm NT BLK_M=64,128,256 BLK_N=64,128,256 BLK_K=8,16,32 DIM_X=8,16,32 DIM_Y=8,16,32 LANE_X=4,8 LANE_ORDER=0 \
        DIM_XA=32 DIM_XB=32 VEC_A=4 VEC_B=4 VEC_M=4 VEC_N=2,4 PAD_A=0 PAD_B=0 STORE_A=1 STORE_B=1 ASYNC_A=1 ASYNC_B=1 STAGES=2,3 \
        FRAGMENTS=1,2 UNROLL_K=8,16 ORDER=1,2 READ=1 MIN_BLOCKS=1,2 RASTER_GROUP=8
elif [ "$part" = dcz ]; then
    sweep d-nt-4096 dgemm --trans NT --count 1500
    sweep c-nn-4096 cgemm --trans NN --count 1500
    sweep z-nn-4096 zgemm --trans NN --count 1500
elif [ "$part" = tensor ]; then
    sweep dt-tn-4096 dgemm --trans TN --kernel gemm_mma64 --count 1000
    sweep zt-nc-4096 zgemm --trans NC --kernel gemm_mma64 --count 700
elif [ "$part" = c ]; then
    complete c-complete cgemm NN BLK_M=32,64,128,192,256 BLK_N=32,64,128 BLK_K=8,16 DIM_X=8,16 DIM_Y=8,16 LANE_X=4,8 LANE_ORDER=0 \
        DIM_XA=16 DIM_XB=8 VEC_A=2 VEC_B=1 VEC_M=2 VEC_N=2 PAD_A=0 PAD_B=2 STORE_A=1 STORE_B=1 ASYNC_A=1 ASYNC_B=1 STAGES=2,3 \
        FRAGMENTS=1,2 UNROLL_K=4,8 ORDER=1,2 READ=1 MIN_BLOCKS=1,2 RASTER_GROUP=8
fi
