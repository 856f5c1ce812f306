"""A small recording with failures and known costs."""

import itertools

import numpy as np
import pytest

from mltune.comparison.recording import Recording
from mltune.device.known import H200
from mltune.kernel.bundle import Kernel
from mltune.kernel.space import TableSpace
from mltune.problem.recorded import RecordedProblem

VALUES = {"P": (1, 2, 4, 8, 16), "Q": (1, 2, 4, 8), "R": tuple(range(6)), "S": (0, 1), "T": (0, 1, 2, 3, 4)}


def make_recording(*, failures: bool = True, order: list[tuple[int, ...]] | None = None) -> Recording:
    """Return a landscape of 1,200 configurations with one hill, in the order of the product or another."""
    rows = np.array(order or list(itertools.product(*VALUES.values())), dtype=np.int64)
    columns = dict(zip(VALUES, rows.T, strict=True))
    space = TableSpace(columns)
    p, q, r, s, t = (column.astype(float) for column in columns.values())
    noise = np.sin(1e3 * (p + 3 * q + 7 * r + 11 * s + 13 * t)) / 100
    hill = np.square(np.log2(p) - 3) + np.square(np.log2(q) + r - 5) / 2 + 0.3 * np.abs(t - 2 * s)
    median_s = 1e-3 * np.exp(0.15 * hill + noise)
    if failures:
        median_s[p * q > 64] = np.nan
    size = len(rows)
    return Recording(
        name="hill",
        kernel=Kernel(name="hill", problem=RecordedProblem.kind, parameters=VALUES),
        problem=RecordedProblem("hill"),
        device=H200,
        space=space,
        median_s=median_s,
        compile_s=np.full(size, 2.0),
        run_s=np.full(size, 0.5),
    )


@pytest.fixture(scope="session")
def hill():
    """Return the function that makes recordings of the landscape."""
    return make_recording


@pytest.fixture(scope="session")
def recording() -> Recording:
    return make_recording()
