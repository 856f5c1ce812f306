"""Seconds to 95 and 99 % of the optimum on four complete spaces, by the clock of ``mltune compare``.

``mltune`` as shipped (batches follow from cores and recorded seconds), the same by batches of 16, up to three in
flight, and by batches of 4, one in flight, Optuna's TPE and random search one by one, and random search that keeps all
cores busy, since it needs no result. One GPU, and 1 or 16 compile cores. Six minutes on one core.

    OMP_NUM_THREADS=1 python benchmarks/search_seconds.py [--seeds 5] [--output benchmarks/results/search_seconds.json]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write

import mltune
from mltune.comparison.simulation import Simulation

SPACES = (
    "h200-sgemm-nt-4096-complete",
    "h200-cgemm-nn-4096-complete",
    "convolution_mi250x_gcd",
    "xgemm_titan_rtx",
)
STRATEGIES = ("mltune", "mltune:batch=16", "mltune:batch=4:in_flight=1", "tpe", "random")


class RandomAhead:
    """Random search that waits for no result."""

    name = "random, all cores"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Propose everything at once; see :class:`mltune.comparison.simulation.Strategy`."""
        order = np.random.default_rng(seed).permutation(simulation.space.count).tolist()
        simulation.known = 0
        simulation.begin()
        for index in order:
            simulation.evaluate(index)


def table(document: Mapping[str, Any]) -> str:
    """Return the seconds of each space as Markdown."""
    lines = [
        f"Median seconds of {document['seeds']} seeds until 95 % and 99 % of the optimum, and the share of runs that",
        f"got to 99 % in {document['evaluations']} evaluations (others count with all they took). The score is that",
        "over time.",
        "",
        f"| strategy | cores | {' | '.join(document['datasets'])} | score |",
        "| --- | ---: |" + " ---: |" * (len(document["datasets"]) + 1),
    ]
    for name, found in document["strategies"].items():
        for cores, figures in found["over_time"].items():
            each = [one["to"] for one in figures["datasets"].values()]
            cells = [
                f"{to['0.95']['seconds']:.1f}, {to['0.99']['seconds']:.1f} ({to['0.99']['reached']:.0%})" for to in each
            ]
            lines.append(f"| {name} | {cores} | {' | '.join(cells)} | {figures['score']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Play the strategies, and write the figures over time."""
    parser = parser_of(__doc__, RESULTS / "search_seconds.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=250)
    parser.add_argument("--work", type=Path, default=Path("runs") / "search_seconds")
    arguments = parser.parse_args()
    compared = mltune.compare(
        (*STRATEGIES, RandomAhead()),
        SPACES,
        compile_cores=(1, 16),
        evaluations=arguments.evaluations,
        seeds=arguments.seeds,
        jobs=1,
        out=arguments.work,
    )
    summary = compared.to_json()
    figures: dict[str, Any] = {
        name: {key: found[key] for key in ("score", "to", "over_time")} for name, found in summary["strategies"].items()
    }
    document = {
        **provenance(*SEARCHING, of="one core; thinking is its processor time"),
        "seeds": arguments.seeds,
        "evaluations": arguments.evaluations,
        "datasets": summary["datasets"],
        "strategies": figures,
    }
    write(arguments.output, document, table(document))


if __name__ == "__main__":
    main()
