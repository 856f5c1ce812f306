"""The upper bound on every recorded space: that nothing exceeds it, how close the best comes, what its order is worth.

For each dataset: the highest measured speed as a share of the bound of its own configuration; the bound as a multiple
of the fastest, for the fastest configuration itself and for the whole space; what limits the fastest; and what the
first choices in the order of the bound reach of the optimum, beside the expectation of random ones and the physical
prior. Nothing is fitted.

    python benchmarks/bound.py [--output bound.json]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import RESULTS, parser_of, provenance, write

from mltune.comparison.scores import expected_minimum
from mltune.cost.features import BUILD_COLUMNS, NEEDED, Features
from mltune.dataset.dataset import Dataset, list_datasets, load_dataset
from mltune.kernel.reader import load_kernel

CHOICES = (1, 10, 25)


def row_of(dataset: Dataset) -> dict[str, Any]:
    """Return what the bound says of one dataset."""
    manifest = dataset.manifest
    features = Features(load_kernel(manifest.kernel), manifest.problem, manifest.device)
    times_s = np.where(dataset.states == "ok", dataset.numbers("median_s"), np.inf)
    builds = {name: dataset.numbers(name) for name in BUILD_COLUMNS if name in dataset.table}
    before, after = features.bound(dataset.columns), features.bound(dataset.columns, builds)
    fastest = int(np.argmin(times_s))
    speed = times_s[fastest] / times_s
    orders = {"bound": before.time_s, "prior": -features.prior(dataset.columns)}
    found = -expected_minimum(-speed, max(CHOICES))
    ran = speed > 0
    return {
        "dataset": manifest.name,
        "most of bound": float(np.max(after.time_s[ran] / times_s[ran])),
        "bound at best": float(times_s[fastest] / after.time_s[fastest]),
        "bound of space": float(times_s[fastest] / before.time_s.min()),
        "limit": tuple(after.limits)[after.binding[fastest]],
        **{f"{name} {count}": first(speed, order, count) for name, order in orders.items() for count in CHOICES},
        **{f"random {count}": float(found[count - 1]) for count in CHOICES},
    }


def first(speed: np.ndarray, order: np.ndarray, count: int) -> float:
    """Return the expected best of the first choices of an order, of which equal ones are drawn at random."""
    last = np.sort(order)[count - 1]
    sure, equal = order < last, np.flatnonzero(order == last)
    left = count - int(np.count_nonzero(sure))
    best = float(speed[sure].max(initial=0.0))
    raised = np.maximum(speed[equal], best)
    return float(-expected_minimum(-raised, left)[-1])


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table with their means."""
    names = [name for name in rows[0] if name != "limit"]
    mean = {"dataset": "**mean**", "limit": ""} | {
        name: float(np.mean([row[name] for row in rows])) for name in names if name != "dataset"
    }
    lines = [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    for row in [*rows, mean]:
        cells = (value if isinstance(value, str) else f"{value:.3f}" for value in (row[name] for name in rows[0]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and write the results."""
    parser = parser_of(__doc__, RESULTS / "bound.json")
    arguments = parser.parse_args()
    datasets = [load_dataset(manifest.name) for manifest in list_datasets()]
    rows = [row_of(one) for one in datasets if set(NEEDED) <= set(load_kernel(one.manifest.kernel).resources.estimates)]
    write(arguments.output, provenance("numpy") | {"rows": rows})
    print(markdown(rows))


if __name__ == "__main__":
    main()
