"""Distance of the best trial of a replayed run from the optimum of its dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mltune.dataset.dataset import load_dataset
from mltune.errors import DatasetError
from mltune.records.trial import TrialState
from mltune.results.run import TuneResult

_SHIPPED = re.compile(r"replay:([a-z0-9_-]+)")
"""The target of a run that replays a dataset by its name, not by a path."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The optimum of a dataset, and how near the best trial of a run came to it.

    Attributes
    ----------
    dataset : str
        Name of the dataset.
    median_s : float
        Time of its fastest configuration, seconds.
    share : float
        That time as a share of the time of the best trial: 1 if the trial is the optimum.
    rank : int
        Rank of the best trial among the recorded times; 1 is the fastest.
    configurations : int
        Number of configurations with a recorded time.
    """

    dataset: str
    median_s: float
    share: float
    rank: int
    configurations: int


def optimum(run: TuneResult) -> Optimum | None:
    """Compare the best trial of a run with the whole dataset that it replayed.

    Returns
    -------
    Optimum or None
        None for a run on a GPU, without a best trial, and for a dataset that is not shipped or no longer holds the
        best configuration. A dataset elsewhere is not opened: its path may come from a third party.

    Examples
    --------
    >>> import mltune, tempfile
    >>> dataset, run = "replay:h200-sgemm-nt-4096-random", tempfile.mkdtemp() + "/run"
    >>> found = optimum(mltune.tune(trials=20, device=dataset, run=run, progress=None))
    >>> found.dataset, 0.8 < found.share <= 1.0, found.rank < found.configurations
    ('h200-sgemm-nt-4096-random', True, True)
    """
    target, best = _SHIPPED.fullmatch(str(run.header.settings.get("target"))), run.best_config
    if target is None or best is None:
        return None
    try:
        dataset = load_dataset(target[1])
    except DatasetError:
        return None
    manifest = dataset.manifest
    if (manifest.kernel, manifest.problem, manifest.parameters.keys()) != (run.kernel, run.problem, best.keys()):
        return None
    timed = dataset.states == TrialState.OK.value
    times_s = dataset.numbers("median_s")
    same: Any = np.logical_and.reduce([dataset.columns[parameter] == value for parameter, value in best.items()])
    if not (same & timed).any():
        return None
    ours_s, times_s = float(times_s[same][0]), times_s[timed]
    optimum_s = float(times_s.min())
    return Optimum(target[1], optimum_s, optimum_s / ours_s, 1 + int((times_s < ours_s).sum()), len(times_s))
