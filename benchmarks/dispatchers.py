"""Ways of learning a library's dispatcher, judged at sizes that are left out.

``results/library/times.json`` has the times of the portfolios of seven libraries at their sizes, as their builds
measured them on H200s and H100s (hsgemm TN, reduction, softmax), and the tiles of the launches; of hsgemm, whose blocks
take several tiles one after the other, also the blocks, and of reduction and softmax the bytes of a tile. Each fifth of
the sizes is left out once, in three random orders; a dispatcher that has learned from the others chooses there. The
figures are geometric means of the speed of what it chooses as a share of the best of the portfolio, and the least. With
``--sizes`` it learns from so many of the others only. The portfolio is the same everywhere, so what its own choice
loses is not in them.

    python benchmarks/dispatchers.py [--sizes 40 80 160] [--output FILE]
"""

from __future__ import annotations

import json
import os
from typing import Any
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from harness import RESULTS, parser_of, provenance, write

from mltune.library import dispatcher
from mltune.library.portfolio import geometric_mean, shares

FOLDS, ORDERS = 5, 3
CHANGES = {
    "equal weights": {"_LEAST_WEIGHT": 1.0, "_PRIOR": 1e-9},  # slow configurations matter as much as fast ones
    "without trees": {"_TREES": 0},
}


def judged(
    case: dict[str, Any], count: int | None = None, of: str = "tiles", of_tile: str = "of_tile"
) -> dict[str, float]:
    """Return what a dispatcher reaches at sizes left out, having learned from at most a number of the others."""
    sizes, rng, found = np.array(case["sizes"]), np.random.default_rng(0), list[float]()
    times, tiles = (np.array(case.get(name, case["tiles"]), dtype=float) for name in ("times_us", of))  # None is NaN
    tiles = np.stack([tiles, np.array(case.get(of_tile, np.zeros_like(tiles)), dtype=float)], axis=-1)
    speed = shares(times)
    for _ in range(ORDERS):
        order = rng.permutation(len(sizes))
        for part in np.array_split(order, FOLDS):
            seen = np.setdiff1d(order, part)
            seen = rng.permutation(seen)[:count]
            ones = np.ones(len(seen))
            made = dispatcher.learn(sizes[seen], times[seen], ones, tiles[seen], case["processors"])
            for at in part:
                valid = (one for one in made.order(sizes[at].tolist(), tiles[at]) if speed[at, one])
                found.append(speed[at, next(valid)])
    return {"mean": round(geometric_mean(found), 4), "least": round(float(min(found)), 3)}


def main() -> None:
    """Judge all of them, and write what they reach."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[40, 80, 160])
    given = parser.parse_args()
    cases = json.loads((RESULTS / "library" / "times.json").read_text())
    reached: dict[str, Any] = {name: {} for name in cases}
    for name, case in cases.items():
        reached[name] = {"as it is": judged(case)}
        reached[name]["without bytes"] = judged(case, of_tile="none")
        for label, change in CHANGES.items():
            with mock.patch.multiple(dispatcher, **change):
                reached[name][label] = judged(case)
        with mock.patch.multiple(dispatcher, **CHANGES["equal weights"]):
            reached[name]["equal weights, of blocks"] = judged(case, of="blocks")
        for count in given.sizes:
            reached[name][f"{count} sizes"] = judged(case, count)
        print(name, len(case["sizes"]), reached[name], flush=True)
    write(given.output or RESULTS / "library" / "dispatchers.json", {**provenance(of="replay"), "cases": reached})


if __name__ == "__main__":
    main()
