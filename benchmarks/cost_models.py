"""Quality and cost of cost models: ranking of unseen configurations, coverage of the interval, CPU seconds.

On every recorded space a model is fitted to random configurations and evaluated on others of the same space.

- rank: Spearman's correlation of prediction and speed.
- regret: how much slower than the best held-out configuration the best of the ten highest predictions is.
- fast: share of the fastest 1 % among the 5 % with the highest predictions.
- coverage: share of the held-out below the one-sided conformal end at 95 %.
- fit, predict: CPU seconds of one core; predictions are of 10,000 configurations.

    OMP_NUM_THREADS=1 python benchmarks/cost_models.py [--seeds 2] [--spaces NAME,NAME] [--output cost_models.json]

docs/explanation/features.md holds the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from mltune.cost.features import Features, build_columns
from mltune.cost.regressors import CostModel, ExtraTreesModel
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.records.trial import TrialState
from mltune.search.gates import Gate
from models import BoostingModel, FailureModel, GaussianProcessModel, RandomForestModel

SIZES = (50, 200, 1000)
HELD_OUT = 2000
PREDICTED = 10_000

MODELS: dict[str, Callable[[int], CostModel]] = {
    "extra trees": lambda seed: ExtraTreesModel(random_state=seed),
    "random forest": lambda seed: RandomForestModel(random_state=seed),
    "boosting": lambda seed: BoostingModel(random_state=seed),
    "Gaussian process": lambda _: GaussianProcessModel(),
}


@dataclass(frozen=True)
class Space:
    """A recorded space: features before and after compiling, and log speeds (NaN: failed)."""

    name: str
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    speed: NDArray[np.float64]

    @classmethod
    def load(cls, name: str) -> Space:
        """Read a dataset and compute its features."""
        dataset = load_dataset(name)
        manifest = dataset.manifest
        features = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device))
        speed = np.where(dataset.states == TrialState.OK, -np.log(dataset.numbers("median_s")), np.nan)
        after = features.after(dataset.columns, build_columns(dataset.builds()))
        return cls(name, features.before(dataset.columns), after, speed)

    def part(self, rows: int) -> Space:
        """Return a random part of the space, of at most so many configurations."""
        some = np.random.default_rng(0).permutation(len(self.speed))[:rows]
        return Space(self.name, self.before[some], self.after[some], self.speed[some])

    def split(self, size: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return random rows to learn from, at most half of all, and others that ran, to evaluate on."""
        order = np.random.default_rng(seed).permutation(len(self.speed))
        half = len(order) // 2
        held_out = order[half:]
        return order[: min(size, half)], held_out[np.isfinite(self.speed[held_out])][:HELD_OUT]


def spaces(names: str) -> Iterator[Space]:
    """Yield the named spaces, or all that were not recorded by a search."""
    found = [manifest.name for manifest in list_datasets() if manifest.kind != "search"]
    yield from map(Space.load, names.split(",") if names else found)


def judge(model: CostModel, space: Space, size: int, seed: int) -> dict[str, float]:
    """Fit one model to some rows of a space, and return its figures."""
    X, y = space.before, space.speed
    known, held_out = space.split(size, seed)
    started = time.process_time()
    model.fit(X[known], y[known])
    gate = Gate("before_compile")
    gate.calibrate(y[known], *model.unseen())
    fitted = time.process_time()
    model.predict(np.resize(X, (PREDICTED, X.shape[1])))
    predicted = time.process_time()
    mean, spread = model.predict(X[held_out])
    truth = y[held_out]
    liked = np.argsort(-mean, kind="stable")
    fastest = truth >= np.quantile(truth, 0.99)
    return {
        "rank": float(spearmanr(mean, truth).statistic),
        "regret": float(-np.expm1(truth[liked[:10]].max() - truth.max())),
        "fast": float(fastest[liked[: len(truth) // 20]].sum() / fastest.sum()),
        "coverage": float((truth <= gate.interval.end(mean, spread)).mean()),
        "fit_s": fitted - started,
        "predict_s": predicted - fitted,
    }


def judge_failures(space: Space, size: int, seed: int) -> dict[str, float]:
    """Return the quality of predicted failures: areas under the ROC curve, Brier score over that of the rate alone."""
    failed = ~np.isfinite(space.speed)
    order = np.random.default_rng(seed).permutation(len(failed))
    known, held_out = order[:size], order[len(order) // 2 :]
    X, truth = space.before[held_out], failed[held_out]
    chances = FailureModel(random_state=seed).fit(space.before[known], space.speed[known]).probability(X)
    speed, _ = ExtraTreesModel(random_state=seed).fit(space.before[known], space.speed[known]).predict(X)
    return {
        "auc": float(roc_auc_score(truth, chances)),
        "auc_by_speed": float(roc_auc_score(truth, -speed)),
        "brier": float(np.mean(np.square(chances - truth)) / (truth.mean() * (1 - truth.mean()))),
    }


def failures_table(results: list[dict[str, Any]]) -> str:
    """Return the means over seeds as Markdown: one line a space and size."""
    lines = ["| space | rows | area under ROC | of predicted speed alone | Brier score over that of the rate |"]
    lines.append("|---|---|---|---|---|")
    for name, size in dict.fromkeys((one["space"], one["rows"]) for one in results):
        some = [one for one in results if (one["space"], one["rows"]) == (name, size)]
        auc, by_speed, brier = (np.mean([one[key] for one in some]) for key in ("auc", "auc_by_speed", "brier"))
        lines.append(f"| {name} | {size} | {auc:.3f} | {by_speed:.3f} | {brier:.2f} |")
    return "\n".join(lines)


def table(results: list[dict[str, Any]]) -> str:
    """Return the means over spaces and seeds as Markdown; of coverage also the range over spaces."""
    lines = [
        "| model | rows | rank | regret of 10 | fast found | coverage (spaces from, to) | fit, s | predict 10,000, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        for model in dict.fromkeys(one["model"] for one in results):
            some = [one for one in results if one["model"] == model and one["rows"] == size]
            mean = {key: np.mean([one[key] for one in some]) for key in some[0] if key not in ("space", "model")}
            names = sorted({one["space"] for one in some})
            by_space = [np.mean([one["coverage"] for one in some if one["space"] == name]) for name in names]
            lines.append(
                f"| {model} | {size} | {mean['rank']:.3f} | {mean['regret']:.3f} | {mean['fast']:.2f} | "
                f"{mean['coverage']:.3f} ({min(by_space):.3f}, {max(by_space):.3f}) | {mean['fit_s']:.3f} | "
                f"{mean['predict_s']:.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write the JSON."""
    parser = parser_of(__doc__, Path("cost_models.json"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--spaces", default="")
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    results = [
        {"space": space.name, "model": name, "rows": size, "seed": seed, **judge(make(seed), space, size, seed)}
        for space in spaces(arguments.spaces)
        for size in SIZES
        for seed in range(arguments.seeds)
        for name, make in MODELS.items()
        if name in arguments.models.split(",")
    ]
    failures = [
        {"space": space.name, "rows": size, "seed": seed, **judge_failures(space, size, seed)}
        for space in spaces(arguments.spaces)
        if np.mean(np.isnan(space.speed)) > 0.01
        for size in SIZES
        for seed in range(5)
    ]
    write(arguments.output, provenance(*SEARCHING) | {"results": {"models": results, "failures": failures}})
    print(table(results), failures_table(failures), sep="\n\n")


if __name__ == "__main__":
    main()
