"""Device workers that misbehave, to test what a campaign survives.

A script of deeds stands in the environment variable ``DEEDS`` as JSON: each is done once, in order, by whatever worker
process has measured ``at`` configurations since it was started. A file in the folder ``DEEDS_DONE`` remembers it.
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

from mltune.errors import DeviceLostError
from mltune.measure.protocols import Runner
from mltune.plan.device_worker import Answer, Order, Outcome, make_device_worker
from mltune.records.trial import Build, Measurement
from mltune.results.run import TuneResult
from mltune.tune import tuner
from mltune.tune.session import Session

LIES = {"nan": math.nan, "zero": 0.0, "negative": -1e-3, "infinite": math.inf, "faster than light": 1e-9}


def deaf() -> Callable[[Order], Answer]:
    """Return a worker that hears no signal, and never ends."""

    def serve(order: Order) -> Answer:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
        return Answer(Outcome.DONE)

    return serve


def spoiled() -> Callable[[Order], Answer]:
    """Return a worker that replays as usual, but for its deeds."""
    script = Script()
    opened = tuner.open_session

    def open_spoiled(*arguments: Any, **options: Any) -> Session:
        session = opened(*arguments, **options)
        session.runner = SpoiledRunner(session.runner, script)
        return session

    def tune(*arguments: Any, **options: Any) -> TuneResult:
        script.begin()
        return tuner.tune(*arguments, **options)

    tuner.open_session = open_spoiled
    return make_device_worker(tune)


class Script:
    """The deeds that are left to do."""

    def __init__(self) -> None:
        self._deeds = json.loads(os.environ["DEEDS"])
        self._done = Path(os.environ["DEEDS_DONE"])
        self._measured = 0
        self._files = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin(self) -> None:
        """Make room on the disk again, if that is over."""
        deed = self._deed()
        if deed is not None and deed["deed"] == "fill disk" and self._begun(deed) and self._over(deed):
            resource.setrlimit(resource.RLIMIT_FSIZE, self._files)

    def measured(self, honest: Measurement) -> Measurement:
        """Do what is to be done at this measurement; return what is answered."""
        self._measured += 1
        deed = self._deed()
        if deed is None or (self._measured < deed["at"] and not self._begun(deed)):
            return honest
        return self._do(deed, honest)

    def _do(self, deed: Mapping[str, Any], honest: Measurement) -> Measurement:
        name = deed["deed"]
        if "for_s" in deed:
            if not self._begun(deed):
                self._mark(deed, "begun")
            if self._over(deed):
                self._mark(deed, "done")
                return honest
        else:
            self._mark(deed, "done")
        if name == "die":
            os.kill(os.getpid(), deed["signal"])
        elif name == "hang":
            time.sleep(3600)
        elif name == "fail":
            raise ArithmeticError("nobody foresaw this")
        elif name == "lose GPU":
            raise DeviceLostError("the GPU has fallen off the bus, it is said.")
        elif name == "fill disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, self._files[1]))
        elif name == "set clock":
            honest_time = time.time
            time.time = lambda: honest_time() + deed["by_s"]
        elif name == "lie":
            median_s = LIES[deed["lie"]]
            return replace(honest, samples_s=(median_s,) * 3, median_s=median_s, noise=0.0)
        return honest

    def _deed(self) -> Mapping[str, Any] | None:
        """Return the first deed that is not done."""
        left = (deed for deed in enumerate(self._deeds) if not (self._done / f"{deed[0]}.done").exists())
        number, deed = next(left, (-1, None))
        return None if deed is None else {**deed, "number": number}

    def _mark(self, deed: Mapping[str, Any], what: str) -> None:
        os.close(os.open(self._done / f"{deed['number']}.{what}", os.O_CREAT | os.O_WRONLY))

    def _begun(self, deed: Mapping[str, Any]) -> bool:
        return (self._done / f"{deed['number']}.begun").exists()

    def _over(self, deed: Mapping[str, Any]) -> bool:
        return time.time() - (self._done / f"{deed['number']}.begun").stat().st_mtime > deed["for_s"]


class SpoiledRunner:
    """Answers as another runner does, unless there is a deed to do. Satisfies the Runner protocol."""

    def __init__(self, runner: Runner, script: Script) -> None:
        self._runner = runner
        self._script = script

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Answer."""
        future: Future[Measurement] = Future()
        try:
            future.set_result(self._script.measured(self._runner.submit(configuration, build, best_s=best_s).result()))
        except DeviceLostError as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> SpoiledRunner:
        return self

    def __exit__(self, *failure: object) -> None:
        """There is nothing to release."""
