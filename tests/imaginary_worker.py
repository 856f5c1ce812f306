"""The worker process of an imaginary GPU. It starts often, so it imports little.

A cubin is JSON here: ``time_s`` of the kernel, its ``noise``, and a ``deed``. Files in a folder control the whole GPU:
``gone`` while it cannot be used, ``absent`` when there is none, ``broken`` when no worker can be started, ``no
reference`` when the problem has no reference implementation. Every start of a worker is noted in ``starts``.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mltune.measure.messages import Answer, Begin, Check, Measure, Prepare, Race, TimeReference, in_turn
from mltune.measure.timing import RaceResult, Series, UsualClock, run_rounds
from mltune.records.trial import Measurement, TrialState

FOLDER = "MLTUNE_IMAGINARY_GPU"
REFERENCE_S = 3e-3
NO_REFERENCE = "no reference"


def make(device_index: int) -> Callable[[Any], Answer]:
    """Make the function that serves the requests (in the child)."""
    folder = Path(os.environ[FOLDER])
    with (folder / "starts").open("a") as starts:
        starts.write("x")
    if (folder / "broken").exists():
        raise ImportError("this worker cannot be started")
    lost = (folder / "gone").exists()
    if lost or (folder / "absent").exists():
        answer = Answer(None, lost="no GPU answers", permanent=not lost)
        return lambda request: answer
    return in_turn(functools.partial(_answer, folder, []))


def _answer(folder: Path, begun: list[Any], request: Any) -> Answer:
    if isinstance(request, Begin):
        if request.baseline is not None and request.baseline.cubin == b"die":
            os.abort()
        begun[:] = [request.problem]
        return Answer(Measurement(TrialState.OK))
    if isinstance(request, TimeReference):
        none = Measurement(TrialState.LAUNCH_ERROR, "no reference implementation is known")
        return Answer(none if (folder / NO_REFERENCE).exists() else _timed(REFERENCE_S))
    if isinstance(request, Race):
        behaviours = [json.loads(cubin) for cubin, *_ in request.entries]
        for behaviour in behaviours:
            if behaviour.get("deed", "").endswith("in a race"):
                _do({"deed": behaviour["deed"].removesuffix(" in a race") + " and die"}, folder)
        alone = request.orders or (folder / NO_REFERENCE).exists()
        reference = [] if alone else [{"time_s": REFERENCE_S, "noise": 0.001}]
        return Answer(_race(behaviours, reference, request.budget_s, request.orders))
    if isinstance(request, Prepare):
        with (folder / "prepared").open("a") as prepared:
            prepared.write(f"{request.problem.label}\n")
        return Answer(Measurement(TrialState.OK))
    assert isinstance(request, Measure | Check)
    behaviour = json.loads(request.cubin)
    if isinstance(request, Check):
        wrong = behaviour.get("deed") == "wrong at full size" and [request.problem] == begun
        return Answer(Measurement(TrialState.WRONG_RESULT if wrong else TrialState.OK, "wrong" if wrong else ""))
    if behaviour.get("deed") == "say the best":
        return Answer(replace(_timed(behaviour["time_s"]), detail=str(request.best_s)))
    return _do(behaviour, folder)


def _do(behaviour: Mapping[str, Any], folder: Path) -> Answer:
    deed = behaviour.get("deed", "")
    if deed.startswith("take the GPU along"):
        (folder / "gone").touch()
    if deed == "be killed, once" and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if deed.endswith("die"):
        os.abort()
    if deed == "be wrong":
        return Answer(Measurement(TrialState.WRONG_RESULT, "all of it"))
    if deed.endswith("hang"):
        time.sleep(100)
    if deed.endswith("retire"):
        return Answer(Measurement(TrialState.CRASHED, "an illegal address"), retire=True)
    if deed.endswith("lose"):
        return Answer(None, lost="an uncorrectable memory error")
    return Answer(_timed(behaviour["time_s"]))


def _timed(time_s: float) -> Measurement:
    return Measurement(TrialState.OK, samples_s=(time_s,) * 3, median_s=time_s, noise=0.0)


def _race(
    behaviours: list[dict[str, Any]], reference: list[dict[str, Any]], budget_s: float, orders: Any = ()
) -> RaceResult:
    rng = np.random.default_rng([1, *np.ravel(orders)])
    runners, entered = [*behaviours, *reference], len(behaviours)

    def take(order: Any) -> Series:
        together = 1 + 0.05 * rng.random()  # what slows a round slows everybody in it
        one = [runners[at]["time_s"] * together * (1 + runners[at]["noise"] * rng.standard_normal()) for at in order]
        return Series(tuple(one))

    raced = run_rounds(len(runners), take, lambda duration_s: None, UsualClock(), budget_s, orders)
    return RaceResult(
        TrialState.OK,
        samples_s=tuple(times_s[:entered] for times_s in raced.samples_s),
        reference_s=tuple(times_s[entered] for times_s in raced.samples_s if reference),
    )
