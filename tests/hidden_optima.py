"""Search spaces whose fast configurations are hard to meet: mirrored, isolated, on a narrow ridge, or in a small group.

Each is a table of tile sizes and switches with known log speeds. All of it follows from the family and a number.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from mltune.cost.features import Features
from mltune.device.known import UNKNOWN
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, Floats
from mltune.kernel.parts import KernelSpace
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace
from mltune.problem.kinds import timed_problem
from mltune.records.trial import Measurement, TrialState
from mltune.search.search import KernelSearch, SearchSettings

SIZES = {"M": (16, 32, 64, 128), "N": (16, 32, 64, 128), "K": (8, 16, 32), "VM": (1, 2, 4), "VN": (1, 2, 4)}
SWITCHES = ("SA", "SB", "PAD", "CACHE", "LATE")


@dataclass(frozen=True)
class Hidden:
    """A search space: its parameters, features and log speeds."""

    columns: Columns
    X: Floats
    speed: Floats


def hidden(family: str, number: int) -> Hidden:
    """Return a space of a family, about 5,000 configurations."""
    rng = np.random.default_rng((sorted(FAMILIES).index(family), number))
    rows = np.array(list(itertools.product(*SIZES.values(), *[(0, 1)] * len(SWITCHES))), dtype=np.int64)
    rows = rows[(rows[:, 0] * rows[:, 1] >= 512) & (rng.random(len(rows)) < 0.4)]
    columns = dict(zip((*SIZES, *SWITCHES), rows.T, strict=True))
    size = {name: np.log2(columns[name]) for name in SIZES}
    switch = {name: columns[name] == 1 for name in SWITCHES}
    speed = FAMILIES[family](size, switch, rng) + rng.normal(0.0, 0.004, len(rows))
    return Hidden(columns, np.column_stack([np.log2(1.0 + column) for column in columns.values()]), speed)


def mirrored(size, switch, rng):
    """Two groups, alike but for a pair of switches and for the sides of a tile; one is at most 0.5 % faster."""
    m, n = rng.choice([5, 6, 7], 2)
    hill = _hill(size, rng, K=rng.choice([3, 4, 5]), VM=1, VN=1)
    one = np.where(switch["SA"] & ~switch["SB"], _hill(size, rng, M=m, N=n), -np.inf)
    other = np.where(~switch["SA"] & switch["SB"], _hill(size, rng, M=n, N=m) - rng.uniform(0.0, 0.005), -np.inf)
    rest = _hill(size, rng, M=rng.choice([5, 6, 7]), N=rng.choice([5, 6, 7])) - rng.uniform(0.1, 0.4)
    return hill + np.maximum(np.maximum(one, other), rest - 0.03 * switch["PAD"])


def isolated(size, switch, rng):
    """One group under a combination of three or four switches; all else is a fifth to a half slower."""
    used = rng.permutation(SWITCHES)[: rng.choice([3, 4])]
    together = np.logical_and.reduce([switch[name] == (rng.random() < 0.5) for name in used])
    group = 2.0 * _hill(size, rng, M=rng.choice([5, 6, 7]), N=rng.choice([5, 6, 7]), K=rng.choice([3, 4, 5]))
    rest = _hill(size, rng, M=rng.choice([5, 6, 7]), N=rng.choice([5, 6, 7]), K=4) - rng.uniform(0.2, 0.5)
    alone = sum(rng.normal(0.0, 0.04) * switch[name] for name in SWITCHES)
    return np.maximum(np.where(together, group, -np.inf), rest + alone) + _hill(size, rng, VM=1, VN=1)


def narrow(size, switch, rng):
    """One ridge, where the tile fits K and VM; beside it all is half as fast, along it the speed varies slowly."""
    off = np.abs(size["M"] + size["N"] - size["K"] + size["VM"] - rng.choice([7, 8, 9]))
    along = 0.6 * _hill(size, rng, M=rng.uniform(5, 7), VM=rng.uniform(0, 2), VN=rng.uniform(0, 2))
    alone = sum(rng.normal(0.0, 0.02) * switch[name] for name in SWITCHES)
    return along + alone - np.minimum(0.4 * off, 0.7) - 0.05 * off


def small(size, switch, rng):
    """One broad group that is met at once, and 5 to 30 configurations elsewhere that are 2 % to 10 % faster."""
    broad = 0.3 * _hill(size, rng, M=rng.choice([5, 6, 7]), N=rng.choice([5, 6, 7]), K=4, VM=1, VN=1)
    alone = sum(rng.normal(0.0, 0.02) * switch[name] for name in SWITCHES)
    used = rng.permutation(SWITCHES)[: rng.choice([1, 2])]
    apart = np.logical_and.reduce([switch[name] == (rng.random() < 0.5) for name in used])
    for name in rng.permutation(list(SIZES)):
        values = np.unique(size[name][apart])
        if apart.sum() > 30 and (narrower := apart & (size[name] == rng.choice(values))).sum() >= 5:
            apart = narrower
    gain = rng.uniform(0.02, 0.1) + np.max(broad + alone)
    return np.where(apart, gain + 0.03 * _hill(size, rng, M=5, N=5, K=4, VM=1, VN=1), broad + alone)


FAMILIES = {"mirrored": mirrored, "isolated": isolated, "narrow": narrow, "small": small}


def search_of(space, **options):
    """Return a search of a space that knows its parameters alone."""
    table, problem = TableSpace(space.columns), timed_problem("hidden")
    kernel = Kernel(name="hidden", problem=problem.kind, space=KernelSpace(parameters=table.values))
    return KernelSearch(table, Features(PlacedKernel(kernel, problem, UNKNOWN)), SearchSettings(adapts=True, **options))


def play(search, times_s, most):
    """Measure what a search proposes, until it ends or has so many; return the configurations in order."""
    order = []
    while len(order) < most and (batch := search.ask()):
        order += [one.index for one in batch]
        told = []
        for one in batch:
            failed = np.isnan(times_s[one.index])
            state, median_s = (TrialState.CRASHED, None) if failed else (TrialState.OK, float(times_s[one.index]))
            told.append(one.record(state, measurement=Measurement(state, median_s=median_s)))
        search.tell(told)
    return np.array(order)


def _hill(size, rng, **centres):
    """Return the log speed of a hill with given centres, relative to its top."""
    return -sum(rng.uniform(0.1, 0.4) * np.square(size[name] - centre) for name, centre in centres.items())
