"""A sweep over faulty kernels: each becomes the record of its trial, and the run continues.

The bundle tests/gpu/hostile holds a plain GEMM and sixteen faulty variants of it. The sweep uses builder, runner and
store as every run does. The result has the state and the message of every trial, and the seconds of the whole.

    python benchmarks/faults.py --output benchmarks/results
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from harness import RESULTS, gpu_provenance, parser_of, write

from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.sweep import sweep

HOSTILE = Path(__file__).resolve().parent.parent / "tests" / "gpu" / "hostile"


def run_faults() -> dict[str, Any]:
    """Sweep the hostile kernel and return what was recorded."""
    problem = parse_problem("sgemm", trans="NT", m=512, n=512, k=512)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        started = time.perf_counter()
        sweep(TuneRequest(problem, load_kernel(HOSTILE), Target(cuda=0), run=run), None)
        elapsed_s = time.perf_counter() - started
        with Store.read_only(run) as store:
            records = sorted(store.records(), key=lambda record: tuple(record.configuration.values()))
    return {
        **gpu_provenance(),
        "elapsed_s": elapsed_s,
        "trials": [
            {**record.configuration, "state": str(record.state), "detail": record.detail[:300]} for record in records
        ],
    }


def main() -> None:
    """Run and write JSON."""
    parser = parser_of(__doc__, RESULTS)
    arguments = parser.parse_args()
    result = run_faults()
    write(arguments.output / "faults.json", result)
    for trial in result["trials"]:
        print(f"{trial['MISDEED']:>3} {trial['state']:<14} {trial['detail'][:90]}")
    print(f"{len(result['trials'])} trials in {result['elapsed_s']:.1f} s")


if __name__ == "__main__":
    main()
