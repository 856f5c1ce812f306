"""Seconds by which tunes on a GPU exceed their budgets.

Each tune is a process of its own, as a user starts it: `sgemm`, a kernel that is right everywhere, and kernels
of which some configurations never end, crash, or are slow. The result is JSON: for each tune its budget, the seconds on
the wall from the start of the process and from the call, and those of the run with their parts.

    python benchmarks/budgets.py --budgets 5,10,20,30,60 --repeat 2 --output benchmarks/results/budgets.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import harness

N = 1 << 22
COPY = """
extern "C" __global__ void copy(float* out, const float* in, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  %s
  for (int k = 0; k < TURNS; ++k) if (i < n) out[i] = in[i];
}
"""
DEEDS = {
    "right": "",
    "hangs": "if (MODE == 3 && i == 0) while (true) __nanosleep(100);",
    "crashes": "if (MODE == 3) out[i] = *(float*)(8ull * i);",
    "slow": "if (MODE) { long long end = clock64() + 400000000ll * MODE; while (clock64() < end) __nanosleep(1000); }",
}
KINDS = ("sgemm", *DEEDS)


def tune(kind: str, budget_s: float) -> dict[str, object]:
    """Run one tune in this process; return its seconds."""
    import numpy as np

    import mltune

    begun = time.perf_counter()
    if kind == "sgemm":
        result = mltune.tune("sgemm", size=2048, time=budget_s, stop=False, wisdom="none", progress=None)
    else:
        arguments = [np.zeros(N, np.float32), np.ones(N, np.float32), np.int32(N)]
        values = {"block_size_x": [32 * i for i in range(1, 33)], "MODE": list(range(8)), "TURNS": [1, 2, 3, 4]}
        result = mltune.tune_kernel(
            "copy", COPY % DEEDS[kind], N, arguments, values, time=budget_s, stop=False, wisdom="none", progress=None
        )
    call_s = time.perf_counter() - begun
    return {
        "call_s": call_s,
        "trials": len(result.records),
        "states": dict(result.counts),
        "seconds": dict(result.seconds),
    }


def main() -> None:
    """Run all tunes, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--budgets", default="5,10,20,30,60", help="seconds")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "SECONDS"), help="one tune, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(tune(options.one[0], float(options.one[1]))))
        return
    tunes = []
    for budget in options.budgets.split(","):
        for kind in options.kinds.split(","):
            for _ in range(options.repeat):
                begun = time.perf_counter()
                command = [sys.executable, __file__, "--one", kind, budget]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                wall_s = time.perf_counter() - begun
                one = {
                    "kind": kind,
                    "budget_s": float(budget),
                    "wall_s": wall_s,
                    **json.loads(done.stdout.splitlines()[-1]),
                }
                tunes.append(one)
                print(
                    f"{kind} {budget} s: {one['call_s']:.1f} s the call, {wall_s:.1f} s the process, {one['states']}",
                    flush=True,
                )
    over = sorted(one["call_s"] - one["budget_s"] for one in tunes)
    summary = {"tunes": len(tunes), "over_s": {"median": statistics.median(over), "most": over[-1]}}
    harness.write(options.output, {**harness.gpu_provenance(), **summary, "all": tunes})
    print(summary)


if __name__ == "__main__":
    main()
