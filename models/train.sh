#!/usr/bin/env bash
# Train the models that come with mltune, one for each kernel with recorded timings, from datasets/ alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kernels=$(mltune datasets --json | python3 -c 'import json, sys; print(*sorted({one["kernel"] for one in json.load(sys.stdin)}))')
for kernel in $kernels; do
    names=$(mltune datasets --json | python3 -c 'import json, sys; print(*(one["name"] for one in json.load(sys.stdin) if one["kernel"] == sys.argv[1]))' "$kernel")
    searches=$(find datasets -path "datasets/$kernel/searches/*.parquet" | sort)
    # shellcheck disable=SC2086
    mltune train $names $searches --out "models/$kernel" --overwrite
done
