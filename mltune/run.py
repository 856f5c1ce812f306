"""What a run is asked, what it tells, what it answers: the records at the seam between the loop and its callers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune import __version__
from mltune.audit import audit_skips
from mltune.kernel.problem import Problem
from mltune.records.declaration import Declaration
from mltune.records.header import RunHeader
from mltune.records.trial import TrialRecord
from mltune.summary import counts, declared_rating
from mltune.workbench import Workbench, installed_versions

if TYPE_CHECKING:
    from mltune.device.facts import Device


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, on what, for how long.

    Attributes
    ----------
    problem : Problem
    kernel : str
        Name or folder of the bundle.
    device : str
        ``"auto"``, ``"cuda:N"`` or ``"replay:NAME"``.
    trials : int or None
        Most trials, skipped ones included.
    time_s : float or None
        Most seconds, those of earlier runs in the same directory included.
    seed : int
    search : str
        One of :data:`mltune.learn.search.SEARCHES`: ``"model"`` is ours, the others are there to be compared with.
    skip : bool
        Whether gates skip what is predicted to be slow.
    stop : bool
        Whether the run ends by itself once nothing untried can be expected to be faster.
    run : pathlib.Path or None
        Directory of the run; None makes a new one under ``runs/``.
    compilers : int or None
        Compile processes; None is one per core.
    """

    problem: Problem
    kernel: str = "gemm_simt"
    device: str = "auto"
    trials: int | None = None
    time_s: float | None = None
    seed: int = 0
    search: str = "model"
    skip: bool = True
    stop: bool = True
    run: Path | None = None
    compilers: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Limits that a run does not have are None, and so is what is not known yet.

    Attributes
    ----------
    problem : str
        Its label.
    slug : str
        Its name in the plan; empty outside a plan.
    device : str
        The device specification.
    trials : int
    elapsed_s : float
    counts : mapping of str to int
        Trials by state.
    audited : int
        Trials that a gate would have skipped and the audit had measured.
    best_tflops, best_share_of_cublas, best_share_of_peak : float or None
        Of the fastest trial so far.
    trials_per_min : float or None
        Over the last minute.
    left_s : float or None
        Seconds until the limit.
    trials_limit, time_limit_s
        The limits.
    message : str or None
        Something to tell the user.
    """

    problem: str
    device: str
    trials: int
    elapsed_s: float
    counts: Mapping[str, int]
    slug: str = ""
    audited: int = 0
    best_tflops: float | None = None
    best_share_of_cublas: float | None = None
    best_share_of_peak: float | None = None
    trials_per_min: float | None = None
    left_s: float | None = None
    trials_limit: int | None = None
    time_limit_s: float | None = None
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a run has found.

    Attributes
    ----------
    best : TrialRecord or None
        The winner; None when no trial succeeded.
    cublas_s : float or None
        Median time of cuBLAS for the same problem.
    declaration : Declaration or None
        How sure it is that the winner is the fastest, and faster trials that failed the last verification.
    stopped : str
        Why the run ended by itself before its budget was spent; empty when it did not.
    interrupted : bool
        Whether it was told to end.
    """

    problem: Problem
    device: Device
    kernel: str
    records: Sequence[TrialRecord]
    best: TrialRecord | None
    cublas_s: float | None
    seconds: Mapping[str, float]
    run: Path
    declaration: Declaration | None = None
    stopped: str = ""
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune tune --json`` prints."""
        found = None
        if self.best is not None and self.declaration is not None:
            found = {
                "configuration": dict(self.best.configuration),
                **declared_rating(self.problem, self.device, self.declaration, self.cublas_s),
            }
        return {
            "problem": self.problem.to_json(),
            "device": self.device.to_json(),
            "kernel": self.kernel,
            "trials": len(self.records),
            "counts": counts(record.state for record in self.records),
            "best": found,
            "seconds": dict(self.seconds),
            "run": str(self.run),
            "stopped": self.stopped,
            "skips": audit_skips(self.records, self.seconds.get("search", 0.0)).to_json(),
        }


Report = Callable[[Progress], None]


def new_directory(label: str) -> Path:
    """Return the name of a directory under ``runs/`` that does not exist yet: of a label and the time."""
    name = f"{'-'.join(re.findall(r'[a-z0-9._]+', label.lower()))}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def run_header(bench: Workbench, seed: int, settings: Mapping[str, Any]) -> RunHeader:
    """Return the header of a run on a workbench."""
    return RunHeader(
        kernel=bench.kernel.name,
        source_hash=bench.kernel.source_hash,
        parameters={name: tuple(bench.space.values[name]) for name in bench.space.names},
        problem=bench.problem.to_json(),
        device=bench.device.to_json(),
        seed=seed,
        versions={"mltune": __version__, **installed_versions("numpy", "scikit-learn", "optuna"), **bench.versions},
        settings={"restrictions": bench.kernel.space_hash, **settings},
        created_at=time.time(),
    )
