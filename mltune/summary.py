"""A run in a few figures: how fast its configurations are, how its trials ended, where its seconds went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.audit import audit_skips
from mltune.records.trial import TrialRecord, TrialState

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.problem import Problem
    from mltune.records.declaration import Declaration
    from mltune.records.manifest import Manifest


def rating(problem: Problem, device: Device, median_s: float, cublas_s: float | None) -> dict[str, float | None]:
    """Rate one time.

    Parameters
    ----------
    problem : Problem
        What was computed.
    device : Device
        What it was computed on.
    median_s : float
        Median time of the kernel, seconds.
    cublas_s : float or None
        Median time of cuBLAS for the same problem on the same device, when it is known.

    Returns
    -------
    dict
        ``median_s``; ``tflops``; ``share_of_peak`` of the device's theoretical peak for the problem's arithmetic;
        ``share_of_cublas`` (above 1: faster than cuBLAS), None when the time of cuBLAS is not known.
    """
    from mltune.device.peaks import peak_flops

    rate = problem.flops / median_s
    return {
        "median_s": median_s,
        "tflops": rate / 1e12,
        "share_of_peak": rate / peak_flops(device, problem.arithmetic),
        "share_of_cublas": None if cublas_s is None else cublas_s / median_s,
    }


def declared_rating(problem: Problem, device: Device, declared: Declaration, cublas_s: float | None) -> dict[str, Any]:
    """Rate a winner by the race that it won.

    Parameters
    ----------
    problem : Problem
    device : Device
    declared : Declaration
    cublas_s : float or None
        Median time of cuBLAS outside the race: what counts where it did not take part.

    Returns
    -------
    dict
        What :func:`rating` returns, and ``interval_s`` of the median, ``interval_share_of_cublas`` (None where cuBLAS
        was not in the race), ``ties`` (trial numbers), ``verified``.
    """
    winner, cublas = declared.winner, declared.cublas
    figures: dict[str, Any] = dict(rating(problem, device, winner.median_s, cublas_s))
    if cublas is not None:
        figures["share_of_cublas"] = cublas.ratio
    return figures | {
        "interval_s": [winner.low_s, winner.high_s],
        "interval_share_of_cublas": None if cublas is None else [cublas.ratio_low, cublas.ratio_high],
        "ties": list(declared.ties),
        "verified": declared.verified,
    }


def counts(states: Iterable[TrialState]) -> dict[str, int]:
    """Count trials by state: every state is named, in the order of :class:`TrialState`."""
    found = Counter(states)
    return {str(state): found[state] for state in TrialState}


def best(records: Iterable[TrialRecord], count: int) -> list[TrialRecord]:
    """Return the fastest trials that succeeded, fastest first."""
    measured = [
        (record.median_s, record.number, record)
        for record in records
        if record.state is TrialState.OK and record.median_s is not None
    ]
    return [record for *_, record in sorted(measured, key=lambda entry: entry[:2])[:count]]


def summarise(directory: Path, top: int) -> dict[str, Any]:
    """Summarise a run from its records: what ``mltune show --json`` prints.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    top : int
        How many of the best configurations to list.

    Raises
    ------
    RunDirectoryError
        There is no run.
    """
    from mltune.device.facts import Device
    from mltune.kernel.problem import problem_from_json
    from mltune.records.declaration import FACT, Declaration
    from mltune.records.store import Store

    with Store.read_only(directory) as store:
        header, records, seconds = store.header, store.records(), store.seconds()
        cublas_s, declared = store.fact("cublas_median_s"), store.fact(FACT)
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    return {
        "run": str(directory),
        "kernel": header.kernel,
        "problem": problem.to_json(),
        "device": device.to_json(),
        "trials": len(records),
        "counts": counts(record.state for record in records),
        "declaration": None if declared is None else Declaration.from_json(declared).to_json(),
        "best": [_entry(record, problem, device, cublas_s) for record in best(records, top)],
        "seconds": seconds,
        "skips": audit_skips(records, seconds.get("search", 0.0)).to_json(),
    }


def _entry(record: TrialRecord, problem: Problem, device: Device, cublas_s: float | None) -> dict[str, Any]:
    """Describe one trial that succeeded."""
    measurement, build = record.measurement, record.build
    if measurement is None or measurement.median_s is None:
        raise ValueError(f"trial {record.number} has no time")
    return {
        "trial": record.number,
        "configuration": dict(record.configuration),
        **rating(problem, device, measurement.median_s, cublas_s),
        "noise": measurement.noise,
        "samples": len(measurement.samples_s),
        "registers": None if build is None else build.registers,
        "spill_bytes": None if build is None else build.spill_bytes,
    }


def describe_dataset(manifest: Manifest) -> dict[str, Any]:
    """Describe a dataset: an entry of what ``mltune datasets --json`` prints."""
    figures: dict[str, float | None] = {"tflops": None, "share_of_peak": None, "share_of_cublas": None}
    if manifest.best is not None:
        figures = rating(manifest.problem, manifest.device, manifest.best.median_s, manifest.cublas_median_s)
    return {
        "name": manifest.name,
        "kind": manifest.kind,
        "kernel": manifest.kernel,
        "label": manifest.problem.label,
        "problem": manifest.problem.to_json(),
        "device": manifest.device.name,
        "rows": manifest.rows,
        "counts": dict(manifest.counts),
        "best_tflops": figures["tflops"],
        "best_share_of_peak": figures["share_of_peak"],
        "best_share_of_cublas": figures["share_of_cublas"],
        "created": manifest.created,
        "source": manifest.source,
        "licence": manifest.licence,
    }
