#!/usr/bin/env bash
# Train the models that come with mltune, one for each kernel with recorded timings, from datasets/ alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for folder in datasets/*/; do
    mltune train "$folder" --out "models/$(basename "$folder")" --overwrite
done
