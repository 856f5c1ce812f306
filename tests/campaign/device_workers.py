"""Device workers with injected faults, to test what a campaign survives.

The environment variable ``FAULTS`` holds a list of faults as JSON. Each happens once, in order, in the worker process
that has measured ``at`` configurations since its start. Files in the folder ``FAULTS_DONE`` record which have happened.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltune.campaign.device_worker import Outcome, SliceRequest, SliceResult, make_device_worker
from mltune.errors import DeviceLostError
from mltune.measure.pipeline import Runner
from mltune.records import database
from mltune.records.trial import Build, Measurement
from mltune.results.run import TuneResult
from mltune.tuning import tuner
from mltune.tuning.session import Session

TIMES = {"nan": math.nan, "zero": 0.0, "negative": -1e-3, "infinite": math.inf, "faster than light": 1e-9}

UNRESPONSIVE = "unresponsive"


def unresponsive_worker() -> Callable[[SliceRequest], SliceResult]:
    """Return a worker that ignores signals and never ends; a file beside the events says that it does."""

    def serve(request: SliceRequest) -> SliceResult:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (request.log / UNRESPONSIVE).touch()
        time.sleep(3600)
        return SliceResult(Outcome.DONE)

    return serve


def idle_worker() -> Callable[[SliceRequest], SliceResult]:
    """Return a worker whose time slices end at once, without a trial and without a reason."""
    return lambda request: SliceResult(Outcome.DONE)


def faulty_worker() -> Callable[[SliceRequest], SliceResult]:
    """Return a worker that replays as usual, except for its faults."""
    faults = Faults()
    open_session = tuner.open_session

    def open_faulty_session(*arguments: Any, **options: Any) -> Session:
        session = open_session(*arguments, **options)
        session.runner = FaultyRunner(session.runner, faults)
        return session

    def tune(*arguments: Any, **options: Any) -> TuneResult:
        faults.begin_slice()
        return tuner.tune(*arguments, **options)

    tuner.open_session = open_faulty_session
    return make_device_worker(tune=tune)


def impatient_worker() -> Callable[[SliceRequest], SliceResult]:
    """Return a faulty worker that gives a database up at once."""
    database.PATIENCE_S = 0.2
    return faulty_worker()


class Faults:
    """The faults that have not happened yet."""

    def __init__(self) -> None:
        self._faults = json.loads(os.environ["FAULTS"])
        self._done = Path(os.environ["FAULTS_DONE"])
        self._measured = 0
        self._file_size = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin_slice(self) -> None:
        """Make room on the disk again, if that fault is over."""
        fault = self._next()
        if fault is not None and fault["fault"] == "fill disk" and self._begun(fault) and self._over(fault):
            resource.setrlimit(resource.RLIMIT_FSIZE, self._file_size)

    def apply(self, measurement: Measurement) -> Measurement:
        """Cause the fault that is due at this measurement; return the measurement, possibly a wrong one."""
        self._measured += 1
        fault = self._next()
        if fault is None or (self._measured < fault["at"] and not self._begun(fault)):
            return measurement
        return self._cause(fault, measurement)

    def _cause(self, fault: Mapping[str, Any], measurement: Measurement) -> Measurement:
        name = fault["fault"]
        if "for_s" in fault:
            if not self._begun(fault):
                self._mark(fault, "begun")
            if self._over(fault):
                self._mark(fault, "done")
                return measurement
        else:
            self._mark(fault, "done")
        if name == "die":
            os.kill(os.getpid(), fault["signal"])
        elif name == "be slow":
            time.sleep(fault["by_s"])
        elif name == "hang":
            time.sleep(3600)
        elif name == "raise":
            raise ArithmeticError("an unexpected exception")
        elif name == "lose GPU":
            raise DeviceLostError("the GPU has fallen off the bus.")
        elif name == "fill disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, self._file_size[1]))
        elif name == "set clock":
            clock = time.time
            time.time = lambda: clock() + fault["by_s"]
        elif name == "wrong time":
            median_s = TIMES[fault["time"]]
            return replace(measurement, samples_s=(median_s,) * 3, median_s=median_s, noise=0.0)
        return measurement

    def _next(self) -> Mapping[str, Any] | None:
        """Return the first fault that is not done."""
        left = (fault for fault in enumerate(self._faults) if not (self._done / f"{fault[0]}.done").exists())
        number, fault = next(left, (-1, None))
        return None if fault is None else {**fault, "number": number}

    def _mark(self, fault: Mapping[str, Any], what: str) -> None:
        os.close(os.open(self._done / f"{fault['number']}.{what}", os.O_CREAT | os.O_WRONLY))

    def _begun(self, fault: Mapping[str, Any]) -> bool:
        return (self._done / f"{fault['number']}.begun").exists()

    def _over(self, fault: Mapping[str, Any]) -> bool:
        return time.time() - (self._done / f"{fault['number']}.begun").stat().st_mtime > fault["for_s"]


class FaultyRunner:
    """A runner with injected faults. Satisfies the Runner protocol."""

    def __init__(self, runner: Runner, faults: Faults) -> None:
        self._runner = runner
        self._faults = faults

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Measure, and apply the faults."""
        future: Future[Measurement] = Future()
        try:
            future.set_result(self._faults.apply(self._runner.submit(configuration, build, best_s=best_s).result()))
        except DeviceLostError as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> FaultyRunner:
        return self

    def __exit__(self, *failure: object) -> None:
        """There is nothing to release."""
