"""A run in a few figures: how fast its configurations are, how its trials ended, where its seconds went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.records.trial import TrialRecord, TrialState
from mltune.results.audit import audit_skips
from mltune.results.rating import rating

if TYPE_CHECKING:
    from mltune.dataset.manifest import Manifest
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem


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
    from mltune.problem.kinds import problem_from_json
    from mltune.records.declaration import FACT, Declaration
    from mltune.records.store import Store

    with Store.read_only(directory) as store:
        header, records, seconds = store.header, store.records(), store.seconds()
        reference_s, declared = store.fact("reference_median_s"), store.fact(FACT)
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    return {
        "run": str(directory),
        "kernel": header.kernel,
        "problem": problem.to_json(),
        "device": device.to_json(),
        "trials": len(records),
        "counts": counts(record.state for record in records),
        "declaration": None if declared is None else Declaration.from_json(declared).to_json(),
        "best": [_entry(record, problem, device, reference_s) for record in best(records, top)],
        "seconds": seconds,
        "skips": audit_skips(records, seconds.get("search", 0.0)).to_json(),
    }


def _entry(record: TrialRecord, problem: Problem, device: Device, reference_s: float | None) -> dict[str, Any]:
    """Describe one trial that succeeded."""
    measurement, build = record.measurement, record.build
    if measurement is None or measurement.median_s is None:
        raise ValueError(f"trial {record.number} has no time")
    return {
        "trial": record.number,
        "configuration": dict(record.configuration),
        **rating(problem, device, measurement.median_s, reference_s),
        "noise": measurement.noise,
        "samples": len(measurement.samples_s),
        "registers": None if build is None else build.registers,
        "spill_bytes": None if build is None else build.spill_bytes,
    }


def describe_dataset(manifest: Manifest) -> dict[str, Any]:
    """Describe a dataset: an entry of what ``mltune datasets --json`` prints."""
    figures: dict[str, float | None] = {"tflops": None, "share_of_peak": None, "share_of_reference": None}
    if manifest.best is not None:
        figures = rating(manifest.problem, manifest.device, manifest.best.median_s, manifest.reference_median_s)
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
        "best_share_of_reference": figures["share_of_reference"],
        "created": manifest.created,
        "source": manifest.source,
        "licence": manifest.licence,
    }
