"""Value of the physical prior before the first measurement, on every recorded space of a bundle.

For each dataset: the share of its fastest configuration that the first choices of the prior reach, in its own order and
as an initial design (the first three, then configurations spread out over those within 5 % of the highest prior),
beside the exact expectation of as many random configurations. Configurations that failed count as 0. Also Spearman's
rank correlation among those that ran, and the milliseconds that features and prior take for 20,000 configurations.

    python benchmarks/prior.py [--folder datasets] [--output prior.json]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from harness import parser_of, provenance, write

from mltune.comparison.scores import expected_minimum
from mltune.cost.features import Features
from mltune.dataset.dataset import Dataset, list_datasets, load_dataset
from mltune.kernel.coding import Columns
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.search.proposers import maximin_subset

CHOICES = (1, 5, 10, 25)
RANDOM = (10, 25, 100)
NEAR = 0.95
TAKEN = 3


def opening(prior: np.ndarray, columns: Columns, count: int) -> np.ndarray:
    """Return the first rows of the prior's order, then rows spread out over those whose prior is near the highest."""
    order = np.argsort(-prior, kind="stable")
    near = order[: max(count, int(np.count_nonzero(prior >= NEAR * prior.max())))]
    points = np.column_stack([np.log2(1.0 + column[near]) for column in columns.values()])
    return near[maximin_subset(points, count, fixed=TAKEN)]


def row_of(dataset: Dataset) -> dict[str, Any]:
    """Return what the prior is worth on one dataset."""
    manifest = dataset.manifest
    features = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device))
    speed = np.nan_to_num(np.where(dataset.states == "ok", 1.0 / dataset.numbers("median_s"), 0.0))
    share = speed / speed.max()
    prior = features.prior(dataset.columns)
    order = np.argsort(-prior, kind="stable")
    spread = opening(prior, dataset.columns, max(CHOICES))
    ran = share > 0
    best_of = -expected_minimum(-share, max(RANDOM))
    some = {name: np.resize(column, 20_000) for name, column in dataset.columns.items()}
    return {
        "dataset": manifest.name,
        "rows": len(dataset),
        **{f"first {count}": float(share[order[:count]].max()) for count in CHOICES},
        **{f"opening {count}": float(share[spread[:count]].max()) for count in CHOICES[1:]},
        **{f"random {count}": float(best_of[count - 1]) for count in RANDOM},
        "spearman": float(scipy.stats.spearmanr(prior[ran], share[ran]).statistic),
        "features_ms": milliseconds(lambda: features.before(some)),
        "prior_ms": milliseconds(lambda: features.prior(some)),
    }


def milliseconds(call: Any, repeats: int = 3) -> float:
    """Return the least wall time of a call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table with their means."""
    names = [name for name in rows[0] if not name.endswith("_ms")]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in names[2:]}
    for row in [*rows, {"dataset": "mean", "rows": "", **mean}]:
        cells = [f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name]) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="datasets, by default those that mltune brings")
    arguments = parser.parse_args()
    known = [one for one in list_datasets(arguments.folder) if is_bundle(one.kernel)]
    rows = [row_of(load_dataset(manifest.name)) for manifest in known]
    print(markdown(rows))
    met = sum(row["first 10"] >= row["random 100"] for row in rows)
    lost = [row["dataset"] for row in rows if row["first 10"] < row["random 10"]]
    print(f"first 10 at least random's best of 100: {met} of {len(rows)}; below random's best of 10: {lost or 'none'}")
    write(arguments.output, provenance("numpy") | {"rows": rows})


if __name__ == "__main__":
    main()
