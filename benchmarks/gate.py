"""Verdicts of ``mltune gate``: a kernel against itself again and again, and against one that is 2 % slower.

The kernels are the built-in reduction, which waits for memory, and a chain of multiply-adds, whose time is that of its
length: of one that is 2 % longer it is known how much slower it is. Each result is one comparison, in turns over the
cases until all are made or the time is up. Every twenty have a new process on the GPU.

    python benchmarks/gate.py --runs 200 --time 540 --output benchmarks/results/gate.json
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import gpu_provenance, parser_of, write

from mltune.device.query import query_device
from mltune.library.machine_code import READERS
from mltune.process.child import ChildPool
from mltune.tuning.gate import CONFIDENCE, WITHIN, GateRule, compare_versions
from mltune.tuning.versions import two_versions

LENGTH, LONGER = 100_000, 102_000
SOURCE = """
extern "C" __global__ void chain(float* out, float one, float zero) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  float value = out[at];
#pragma unroll 100
  for (int step = 0; step < LENGTH; step++) value = fmaf(value, one, zero);
  out[at] = value;
}
"""
BUNDLE = """
[kernel]
name = "chain"
problem = "arrays"
source = "chain.cu"
entry = "chain"
[arguments]
out = {{ dtype = "float32", shape = ["132 * 256"], role = "inout", initial = "uniform" }}
one = {{ dtype = "float32", value = 1.0 }}
zero = {{ dtype = "float32", value = 0.0 }}
[parameters]
LENGTH = [{length}]
[launch]
block = ["256"]
grid = ["132"]
"""
RESTART = 20


def chain(folder: Path, length: int) -> str:
    """Write the bundle of a chain, and return its folder."""
    folder.mkdir()
    (folder / "chain.cu").write_text(SOURCE)
    (folder / "kernel.toml").write_text(BUNDLE.format(length=length))
    return str(folder)


def summarised(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the verdicts of each case, and the pairs and seconds that they took."""
    found = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        pairs, seconds = (sorted(row[name] for row in own) for name in ("pairs", "seconds"))
        found[case] = {
            "runs": len(own),
            "verdicts": dict(Counter(row["verdict"] for row in own)),
            "pairs": {"median": pairs[len(own) // 2], "most": pairs[-1]},
            "seconds": {"median": seconds[len(own) // 2], "most": seconds[-1]},
        }
    return found


def main() -> None:
    """Compare the cases in turns, and write what was found after every twenty."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each case")
    parser.add_argument("--time", type=float, default=540.0, help="most seconds of all")
    parser.add_argument("--limit", type=float, default=10.0, help="most seconds of the timing of one")
    options = parser.parse_args()
    head, device, rows = gpu_provenance(), query_device(0), []
    until = time.perf_counter() + options.time
    with tempfile.TemporaryDirectory() as scratch:
        base, longer = (chain(Path(scratch) / str(length), length) for length in (LENGTH, LONGER))
        sizes = {"size": {"n": 2**26}}
        cases = {
            "chain, itself": (base, base, {}),
            "chain, 2 % longer": (base, longer, {}),
            "reduction, itself": ("reduction", "reduction", sizes),
        }
        for first in range(0, options.runs, RESTART):
            with closing(ChildPool()) as pool:
                for run in range(first, min(first + RESTART, options.runs)):
                    for case, (old, new, shape) in cases.items():
                        if time.perf_counter() > until:
                            continue
                        with two_versions(old, new, None, None, shape, READERS) as made:
                            found = compare_versions(
                                *(one(device, {}) for one in made),
                                device=device,
                                index=0,
                                rule=GateRule(limit_s=options.limit, within=WITHIN, confidence=CONFIDENCE, seed=run),
                                pool=pool,
                            )
                        kept = ("verdict", "detail", "ratio", "median_s", "pairs", "seconds")
                        rows.append({"case": case, "run": run, **{name: found.to_json()[name] for name in kept}})
            write(options.output, {**head, "within": WITHIN, "cases": summarised(rows), "all": rows})
            print(first + RESTART, {case: one["verdicts"] for case, one in summarised(rows).items()}, flush=True)


if __name__ == "__main__":
    main()
