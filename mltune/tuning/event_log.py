"""Event log of a single run: its start, its progress and its end."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from mltune.errors import MltuneWarning
from mltune.records.events import EventLog, EventWriter
from mltune.records.store import Store
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Progress, Report
from mltune.results.run import TuneResult


class RunEventLog:
    """Writer of ``events.jsonl`` in the directory of a run, which also passes each progress to ``report``."""

    def __init__(self, directory: Path, report: Report | None = None) -> None:
        self._log = EventLog(directory)
        self._report = report
        self.write: EventWriter = self._log.write

    def begin(self, store: Store, request: TuneRequest) -> None:
        """Write that a run starts, or resumes."""
        if store.notice:
            warnings.warn(store.notice, MltuneWarning, stacklevel=3)
        if len(store):
            self.write("resumed", trials=len(store), pid=os.getpid())
            return
        self.write(
            "run_started",
            problem=request.problem.label,
            kernel=store.header.kernel,
            seed=request.seed,
            trials=request.trials,
            time_s=request.time_s,
            versions=store.header.versions,
            pid=os.getpid(),
        )

    def tell(self, progress: Progress) -> None:
        """Write the progress, unless that was just done, and pass it on."""
        left_s, elapsed_s = progress.left_s, progress.elapsed_s
        self._log.snapshot([progress.to_json()], done=0, problems=1, left_s=left_s, elapsed_s=elapsed_s)
        if self._report is not None:
            self._report(progress)

    def end(self, result: TuneResult) -> None:
        """Write how the run ended."""
        self.write(
            "run_ended",
            outcome="interrupted" if result.interrupted else "ended",
            detail=result.stopped,
            trials=len(result.records),
            best_s=None if result.best is None else result.best.median_s,
            seconds=result.seconds,
            elapsed_s=result.seconds["total"],
        )
