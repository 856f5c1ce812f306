#!/usr/bin/env bash
# Train the models that come with mltune, one for each kernel with recorded timings, from datasets/ alone.
# That of Triton's kernels needs PyTorch and Triton.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python benchmarks/triton_model.py --train models/triton  # one for all kernels of Triton
for folder in datasets/*/; do
    [[ $folder == */triton_* ]] || mltune train "$folder" --out "models/$(basename "$folder")" --overwrite
done
