"""An imaginary GPU: the answers, deaths and hangs of its worker process are given by the cubins and by a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from imaginary_worker import FOLDER, NO_REFERENCE, REFERENCE_S

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.process.child import ChildPool
from mltune.records.trial import Build, TrialState

__all__ = [
    "FOLDER",
    "HOSTILE",
    "NO_REFERENCE",
    "PROBLEM",
    "REFERENCE_S",
    "IdleWorkers",
    "ImaginaryBuilder",
    "built",
    "imaginary_runner",
]  # fmt: skip

HOSTILE = Path(__file__).parent / "gpu" / "hostile"
PROBLEM = parse_problem("sgemm", trans="NT", m=512, n=512, k=512)


class IdleWorkers:
    """Workers that wait for the next test, and their folder, which is the same for all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool = folder, ChildPool()

    def clean(self) -> None:
        """Make the GPU usable again; the starts of workers stay on record."""
        for path in self.folder.iterdir():
            if path.name != "starts":
                path.unlink()


def built(**behaviour: Any) -> Future[Build]:
    """Return a build that is made, whose cubin makes the worker behave in some way."""
    future: Future[Build] = Future()
    made = Build(TrialState.OK, cubin=json.dumps(behaviour).encode(), registers=32, spill_bytes=0)
    no_build = behaviour.get("deed") == "no build"
    future.set_result(Build(TrialState.CRASHED, "the compiler died") if no_build else made)
    return future


class ImaginaryBuilder:
    """A builder that takes builds from a table: the cubin of a configuration controls the behaviour of the worker."""

    def __init__(self, behaviours: Mapping[int, Mapping[str, Any]]) -> None:
        self.behaviours = behaviours

    def build(self, misdeed: int) -> Build:
        return self.submit({"MISDEED": misdeed}).result()

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        return built(**{"time_s": 2e-3, "noise": 0.0, **self.behaviours[configuration["MISDEED"]]})

    def foresee(self, configuration: Mapping[str, int]) -> None:
        """Do nothing: a build takes no time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: there is nothing to release."""


def imaginary_runner(
    timeout_s: float = 10.0, kernel: Kernel | None = None, problem: GemmProblem = PROBLEM, **options: Any
) -> GpuRunner:
    """Return a runner with a simulated GPU."""
    worker = "imaginary_worker:make"
    kernel = kernel or load_kernel(HOSTILE)
    return GpuRunner(PlacedKernel(kernel, problem, H200), timeout_s=timeout_s, worker=worker, **options)
