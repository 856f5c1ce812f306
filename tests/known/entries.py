"""Entries of wisdoms, made without a run."""

from __future__ import annotations

from typing import Any

from mltune.device.known import H200
from mltune.known.entry import Entry, Failure, Gpu
from mltune.problem.gemm import parse_problem

PROBLEM = parse_problem("sgemm", trans="NT", size=4096)
SOURCE = "ab" * 32


def failure(tile: int = 64, **facts: Any) -> Failure:
    """Return a configuration that has failed."""
    return Failure.model_validate(_facts(tile) | {"failed": "wrong_result: 7 elements differ"} | facts)


def entry(tile: int = 64, median_s: float = 2e-3, half: float = 0.01, **facts: Any) -> Entry:
    """Return an entry whose interval is as wide as a share of its median, on either side."""
    document = _facts(tile) | {
        "median_s": median_s,
        "low_s": median_s * (1 - half),
        "high_s": median_s * (1 + half),
        "verified": True,
        "trials": 100,
    }
    return Entry.model_validate(document | facts)


def _facts(tile: int) -> dict[str, Any]:
    return {
        "kernel": "toy",
        "source_hash": SOURCE,
        "problem": PROBLEM.to_json(),
        "device": Gpu.of(H200).model_dump(),
        "driver": "13.0",
        "configuration": {"TILE": tile, "MODE": "row"},
        "measured_at": "2026-11-22T01:00:00Z",
    }
