"""A small search space whose speeds are all known, and small kernel bundles."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from mltune.kernel.space import TableSpace

TILE = """
[kernel]
name = "tile"
problem = "gemm"
precisions = ["s", "d"]

[parameters]
BLK = [32, 64, 128]
DIM = [8, 16]
VEC = [1, 2, 4]
STAGES = [2, 3]
MIN_BLOCKS = [1, 2]

[derived]
THR = "BLK // DIM"
threads = "DIM * DIM"

[resources]
threads = "threads"
registers = "words * THR * THR + 2 * words * (THR + THR) + 32"
register_cap = "min(max_registers_per_thread, registers_per_sm // (threads * MIN_BLOCKS))"
shared_bytes = "STAGES * 16 * 2 * BLK * element_bytes"
tiles = "ceil_div(m, BLK) * ceil_div(n, BLK)"
covered = "ceil_div(m, BLK) * BLK * ceil_div(n, BLK) * BLK / max(m * n, 1)"
fma = "THR * THR * 16"
shared_loads = "(THR // VEC + THR // VEC) * 16"
copies = "2 * BLK * 16 // (VEC * threads)"
bytes_in_flight = "(STAGES - 1) * 16 * 2 * BLK * element_bytes"
"""


class Landscape:
    """A table space of 3,600 configurations whose speeds are known; some fail."""

    def __init__(self) -> None:
        values = {"P": (1, 2, 4, 8, 16), "Q": (1, 2, 4, 8), "R": tuple(range(6)), "S": (0, 1), "T": (0, 1, 2, 3, 4)}
        values["U"] = (0, 1, 2)
        rows = np.array(list(itertools.product(*values.values())), dtype=np.int64)
        self.columns = dict(zip(values, rows.T, strict=True))
        self.space = TableSpace(self.columns)
        p, q, r, s, t, u = (column.astype(float) for column in self.columns.values())
        noise = np.random.default_rng(5).normal(0, 0.01, len(p))
        hill = np.square(np.log2(p) - 3) + np.square(np.log2(q) + r - 5) / 2 + 0.3 * np.abs(t - 2 * s) + 0.1 * u
        self.scores = -0.1 - 0.15 * hill + noise
        self.scores[(p * q > 64) | ((u == 2) & (t == 0))] = np.nan

    def features(self, columns):
        return np.column_stack([np.log2(1.0 + column) for column in columns.values()])

    def prior(self, columns):
        return 1.0 / (1.0 + np.square(np.log2(columns["P"]) - 2))


@pytest.fixture(scope="session")
def landscape() -> Landscape:
    return Landscape()


@pytest.fixture(scope="session")
def tile_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of a tiled GEMM that names every resource which features are computed from."""
    folder = tmp_path_factory.mktemp("bundles") / "tile"
    folder.mkdir()
    (folder / "kernel.toml").write_text(TILE)
    return folder


@pytest.fixture
def bare_bundle(tmp_path: Path) -> Path:
    """Return a bundle that names parameters and no resources."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "kernel.toml").write_text(
        '[kernel]\nname = "bare"\nproblem = "gemm"\nprecisions = ["s"]\n\n[parameters]\nP = [1, 2, 4]\nQ = [0, 1]\n'
    )
    return folder
