"""Share of a short tune in which compilers are busy, on a GPU: seconds of builds between the first and the last trial.

Each tune is a process of its own with an empty cache of cubins. ``--package FOLDER`` takes another version of the
package, in turns with this one. A build that had not ended when the search did is not counted. Lines of JSON follow
each other as they are measured.

    python benchmarks/busy_compilers.py [--package FOLDER] [--seeds 0,1] [--time 10] [--output FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import harness
import numpy as np
import unknown_kernels

CASES = ("sgemm TN", "cgemm TN", "zgemm TT", "bilateral")
SIZE = 4096


def measure(case: str, seed: int, budget_s: float) -> dict[str, Any]:
    """Tune in this process."""
    import mltune
    from mltune.measure.pipeline import Pipeline
    from mltune.tuning.loop import Loop

    begun: dict[str, float] = {}
    seen: dict[str, Any] = {}
    submit, run = Pipeline.submit, Loop.run

    def submitted(pipeline: Pipeline, candidate: Any) -> None:
        begun.setdefault("first build", time.perf_counter())
        submit(pipeline, candidate)

    def looped(loop: Loop) -> None:
        seen["compilers"] = loop.session.compilers
        try:
            run(loop)
        finally:
            begun["end"] = time.perf_counter()

    Pipeline.submit, Loop.run = submitted, looped  # type: ignore[method-assign]
    called, options = time.perf_counter(), {"time": budget_s, "seed": seed, "wisdom": "none", "progress": None}
    with tempfile.TemporaryDirectory() as folder:
        options["run"] = f"{folder}/run"
        if " " in case:
            name, trans = case.split()
            result = mltune.tune(name, trans=trans, m=SIZE, n=SIZE, k=SIZE, **options)
        else:
            call = unknown_kernels.CASES[case](np.random.default_rng(0))
            result = mltune.tune_kernel(
                kernel_source=unknown_kernels.SOURCES / f"{case}.cu", stop=False, **options, **call
            )
        ended = time.perf_counter()
        numbers = [
            record.number for record in sorted(result.records, key=lambda record: (record.elapsed_s, record.number))
        ]
        builds = [record.build for record in result.records if record.build is not None and not record.build.cached]
        search_s = begun["end"] - begun["first build"]
        busy_s = sum(build.compile_s for build in builds)
        leader = result.leader
        return {
            "case": case,
            "seed": seed,
            "configurations": len(result.records),
            "overtaken": sum(latest > number for latest, number in zip(accumulate(numbers, max), numbers, strict=True)),
            "busy": round(busy_s / (seen["compilers"] * search_s), 3),
            "first_build_s": round(begun["first build"] - called, 2),
            "search_s": round(search_s, 2),
            "call_s": round(ended - called, 2),
            "slowest_build_s": round(max((build.compile_s for build in builds), default=0.0), 2),
            "us": None if leader is None else round(leader.median_s * 1e6, 2),
            "share": round(leader.reference_s / leader.median_s, 4) if leader and leader.reference_s else None,
        }


def main() -> None:
    """Tune all cases by both versions in turns."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--time", type=float, default=10.0, help="seconds")
    parser.add_argument("--package", type=Path, help="folder of another version of the package")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SEED"), help="one of them, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.time)))
        return
    packages = {"this": Path(__file__).parents[1]} | ({"other": options.package} if options.package else {})
    rows = []
    for seed in options.seeds.split(","):
        for case in options.cases.split(","):
            for version, package in packages.items():
                with tempfile.TemporaryDirectory() as cache:
                    paths = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
                    environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": paths}
                    command = [sys.executable, __file__, "--one", case, seed, "--time", str(options.time)]
                    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
                if done.returncode == 0:
                    rows.append({"version": version, **json.loads(done.stdout.splitlines()[-1])})
                    print(json.dumps(rows[-1]), flush=True)
                else:
                    print(json.dumps({"version": version, "case": case, "seed": seed, "exit": done.returncode}))
    if options.output:
        harness.write(options.output, {**harness.gpu_provenance(), "rows": rows}, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each tune as Markdown."""
    names = list(rows[0]) if rows else []
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row.values()))} |" for row in rows)])


if __name__ == "__main__":
    main()
