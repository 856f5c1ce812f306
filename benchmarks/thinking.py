"""What the search costs for each proposal, against the number of trials that it knows: CPU time of one core.

Two spaces: gemm_simt for S NT 4096 on an H200 (too large to list, with a physical prior), and the recorded space
xgemm_rtx_2080_ti (listed). Scores are the prior, or what was recorded, and noise: it is the cost that is measured, not
what is found. A listed space ends where it ends.

A proposal costs its share of a batch of 16: plan it, ask Optuna for the trials, judge before and after compiling, tell
the results. Now and then a model is fitted anew, on the schedule of ``mltune.learn.history.milestone``: that cost is
divided by the proposals between two fits.

- batch: plan, ask, judge, tell: median of several batches on end, without fits.
- fit: hyperparameters of the Gaussian process.
- gates: the trees of both gates, and looking for what could still be better (``StoppingRule``).
- all: the sum, milliseconds of CPU a proposal.

    OMP_NUM_THREADS=1 python benchmarks/thinking.py [--known 0,100,300] [--output benchmarks/results/thinking.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import optuna

import mltune
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.bundle import device_variables
from mltune.kernel.columns import row
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, SearchSpace, TableSpace
from mltune.learn.features import Features
from mltune.learn.gates import GROWTH, Gate, Gates, spared
from mltune.learn.history import HistoryReader, frozen_trial, milestone, tell
from mltune.learn.sampling import Proposal
from mltune.learn.search import make_sampler
from mltune.problem.gemm import parse_problem
from mltune.records.trial import GATES, Build, Measurement, TrialRecord, TrialState
from mltune.tune.tuner import BATCH, LOOKED_AT

KNOWN = (0, 100, 300, 1000, 3000, 5000, 10_000, 20_000, 50_000)
BATCHES = 5


@dataclass(frozen=True)
class Case:
    """A space, its features, and the score of each configuration: what a GPU would have said."""

    name: str
    space: SearchSpace
    features: Features
    score: Callable[[np.ndarray], np.ndarray]


def gemm() -> Case:
    """Return the space of gemm_simt for S NT 4096 on an H200; scores are the prior and noise."""
    kernel, problem = load_kernel("gemm_simt"), parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)
    features = Features(kernel, problem, H200)
    space = ConstrainedSpace(kernel, problem.variables() | device_variables(H200))

    def score(indices: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(len(indices)).normal(0.0, 0.1, len(indices))
        return np.log(np.maximum(features.prior(space.rows(indices)), 0.01)) + noise

    return Case("gemm_simt S NT 4096, H200", space, features, score)


def listed(name: str) -> Case:
    """Return a recorded space; scores are the logs of recorded speeds."""
    dataset = load_dataset(name)
    manifest = dataset.manifest
    features = Features(load_kernel(manifest.kernel), manifest.problem, manifest.device)
    fastest = np.nanmin(dataset.numbers("median_s"))
    scores = np.log(fastest / dataset.numbers("median_s"))
    return Case(name, TableSpace(dataset.columns), features, lambda indices: scores[indices])


class Simulation:
    """A run that knows a number of trials, most of them from a search's kind of places."""

    def __init__(self, case: Case, known: int) -> None:
        self.case = case
        self.known = known
        self.sampler = make_sampler("model", case.space, case.features, 0)
        self.study = optuna.create_study(direction="maximize", sampler=self.sampler)
        self.builds: dict[int, Build] = {}
        self.judgement: Gates | None = None
        self.batch = known // BATCH
        self._dimensions = self.sampler._encoding.describe(case.space.rows(np.arange(1)))[0].shape[1]
        self._add(case.space.sample(known, np.random.default_rng(0)))

    def _add(self, indices: np.ndarray) -> None:
        columns = self.case.space.rows(indices)
        proposals = [Proposal(index, "model") for index in indices.tolist()]
        for at, (proposal, score) in enumerate(zip(proposals, self._scores(indices), strict=True)):
            record = self._record(at, proposal, row(columns, at), score)
            self.study.add_trial(frozen_trial(record, self.sampler.distributions, score))

    def _scores(self, indices: np.ndarray) -> list[float | None]:
        scores = self.case.score(indices)
        return [float(score) if np.isfinite(score) else None for score in scores]

    def _record(self, number: int, proposal: Proposal, configuration: dict, score: float | None) -> TrialRecord:
        state = TrialState.LAUNCH_ERROR if score is None else TrialState.OK
        build = self.builds[proposal.index] = Build(TrialState.OK, registers=100 + number % 60, code_bytes=9000)
        measured = None if score is None else Measurement(TrialState.OK, median_s=1e-3)
        return TrialRecord(
            number, 0, proposal.index, configuration, state, proposal.proposed_by, build=build, measurement=measured
        )

    def one_batch(self) -> dict[str, float]:
        """Play one batch; return the CPU seconds of its parts."""
        self.fit()
        clock = Clock()
        proposals = self.sampler.plan(self.study, self.batch, BATCH)
        clock.lap("plan")
        self.sampler.enqueue(proposals)
        trials = [self.study.ask(self.sampler.distributions) for _ in proposals]
        clock.lap("ask")
        indices = np.array([proposal.index for proposal in proposals])
        columns = self.case.space.rows(indices)
        numbers = [trial.number for trial in trials]
        kinds = [proposal.proposed_by for proposal in proposals]
        known = self.sampler.history
        self.judgement = Gates(self.case.features, known, self.builds, self.case.space, 0, self.judgement)
        self.judgement.before(columns, numbers, spared(kinds, GATES[0]))
        self.judgement.after(columns, [Build(TrialState.OK)] * len(numbers), numbers, spared(kinds, GATES[1]))
        clock.lap("judge")
        scores = self._scores(indices)
        records = [
            self._record(trial.number, proposal, trial.params, score)
            for trial, proposal, score in zip(trials, proposals, scores, strict=True)
        ]
        clock.skip()
        for trial, record, score in zip(trials, records, scores, strict=True):
            tell(self.study, trial, record, score)
        clock.lap("tell")
        self.batch += 1
        return clock.seconds

    def fit(self) -> dict[str, float]:
        """Fit every model to what is known by now; return the CPU seconds of both fits."""
        history, space = HistoryReader(self.case.space).read(self.study), self.case.space
        process, finished = self.sampler._model, len(history.indices)
        clock = Clock()
        if milestone(finished) not in process._known:
            process._hyperparameters(history, self._dimensions)
        clock.lap("fit")
        self.judgement = Gates(self.case.features, history, self.builds, space, 0, self.judgement)
        if self.judgement.is_fresh:
            self.judgement.optimistic(space.rows(space.sample(LOOKED_AT, np.random.default_rng(0), history.tried)))
            self.judgement.after(space.rows(np.arange(1)), [Build(TrialState.OK)], [0], np.zeros(1, dtype=bool))
        clock.lap("gates")
        return clock.seconds

    def fit_anew(self) -> dict[str, float]:
        """Forget every model, and fit."""
        self.sampler._model._known.clear()
        self.judgement = None
        return self.fit()


class Clock:
    """CPU seconds of this process, lap by lap."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.process_time()

    def lap(self, name: str) -> float:
        """Keep and return the seconds since the last lap."""
        self.seconds[name] = time.process_time() - self._at
        self.skip()
        return self.seconds[name]

    def skip(self) -> None:
        """Begin a lap here."""
        self._at = time.process_time()


def row_of(case: Case, known: int) -> dict[str, Any]:
    """Measure one line of the table, milliseconds a proposal."""
    game = Simulation(case, known)
    game.one_batch()  # what is computed once for a run, or read back once in a resumed one
    batches = [game.one_batch() for _ in range(BATCHES)]
    parts = {name: 1e3 / BATCH * statistics.median(seconds[name] for seconds in batches) for name in batches[0]}
    fits = {name: 1e3 * seconds for name, seconds in game.fit_anew().items()}
    finished = len(game.sampler.history.indices)
    amortised = {
        "fit": fits["fit"] / between(finished),
        "gates": fits["gates"] / between(finished, first=Gate(GATES[0]).minimum, growth=GROWTH),
    }
    total = sum(parts.values())
    return {
        "space": case.name,
        "known": known,
        **parts,
        "batch": total,
        **amortised,
        "all": total + sum(amortised.values()),
    }


def between(count: int, **schedule: Any) -> int:
    """Return the number of trials between the fit that holds at a count and the next."""
    at = milestone(count, **schedule)
    after = count
    while milestone(after, **schedule) == at:
        after += 1
    return after - at


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for line in rows:
        cells = [f"{value:.2f}" if isinstance(value, float) else f"{value}" for value in line.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", default=",".join(map(str, KNOWN)))
    parser.add_argument("--spaces", default="gemm,xgemm_rtx_2080_ti")
    parser.add_argument("--output", type=Path, default=None)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows = []
    for name in asked.spaces.split(","):
        case = gemm() if name == "gemm" else listed(name)
        for known in map(int, asked.known.split(",")):
            if known + (BATCHES + 1) * BATCH <= case.space.count:
                rows.append(row_of(case, known))
                print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr)
    print(markdown(rows))
    if asked.output is not None:
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "command": "OMP_NUM_THREADS=1 python benchmarks/thinking.py",
            "machine": f"one core of {os.cpu_count()} ({platform.machine()}), shared; CPU time, not wall time",
            "versions": {
                "mltune": mltune.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "scipy", "scikit-learn", "optuna")},
            },
            "batch": BATCH,
            "rows": rows,
        }
        asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
