"""Sweep: time many configurations of a kernel on a GPU and write them as a dataset, failures included."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mltune.dataset.dataset import dataset_from_records, write_dataset
from mltune.errors import UsageError
from mltune.kernel.columns import row
from mltune.measure.pipeline import Pipeline
from mltune.records.candidate import Candidate
from mltune.records.directory import check_no_plan, new_directory
from mltune.records.seconds import Seconds
from mltune.records.store import Store
from mltune.results.progress import Observer, Report
from mltune.tuning.request import TuneRequest
from mltune.tuning.session import open_session, run_header
from mltune.tuning.target import Target, find_gpus, parse_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mltune.records.trial import TrialRecord
    from mltune.tuning.session import Session

MOST_ROWS = 200_000
"""Largest space for a complete sweep: a larger one takes hours."""


def sweep(
    request: TuneRequest,
    count: int | None,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> Path:
    """Time configurations and write a dataset into the directory of the run.

    Parameters
    ----------
    request : TuneRequest
        Kernel, problem, device, seed and run directory; an existing run is resumed.
    count : int or None
        Size of a uniform random sample of the space; None takes every configuration.
    values : mapping of str to sequence of int, optional
        Values of some parameters: a sub-space.
    progress : callable, optional

    Returns
    -------
    pathlib.Path
        The Parquet file; its manifest is in the same directory.

    Raises
    ------
    UsageError
        The request cannot be met.
    """
    if request.run is not None:
        check_no_plan(request.run)
    target = parse_device(request.device)
    if target is None:
        gpus, reason = find_gpus()
        if not gpus:
            raise UsageError(f"a sweep times kernels on a GPU, but none was found: {reason}.")
        target = Target(cuda=0)
    if target.dataset is not None:
        raise UsageError(f"a sweep times kernels on a GPU and cannot replay, got {target}; give cuda:N or auto.")
    session = open_session(request.kernel, request.problem, target, values=values)
    if count is None and session.space.count > MOST_ROWS:
        raise UsageError(
            f"a complete sweep has at most {MOST_ROWS} configurations, but the sub-space has {session.space.count}; "
            "fix more parameters with --only NAME=VALUE,..."
        )
    directory = request.run or new_directory(request.problem.label)
    kind: Literal["complete", "random"] = "complete" if count is None else "random"
    header = run_header(session, request.seed, {"sweep": kind, "count": count})
    with Store.open(directory, header) as store, session:
        indices = choose_configurations(session, count, request.seed)
        records = measure_all(session, store, indices, progress)
        dataset = dataset_from_records(
            records,
            header,
            name=_dataset_name(session, kind),
            kind=kind,
            reference_median_s=store.fact("reference_median_s"),
        )
        write_dataset(dataset, directory, overwrite=True)
        return directory / f"{dataset.manifest.name}.parquet"


def choose_configurations(session: Session, count: int | None, seed: int) -> NDArray[np.int64]:
    """Return the indices of the configurations, in random order.

    In this order a fast configuration is found early, and the timing of slower ones is then cut short.
    """
    rng = np.random.default_rng(seed)
    if count is None:
        return rng.permutation(session.space.count)
    return session.space.sample(count, rng)


def _dataset_name(session: Session, kind: str) -> str:
    gpu = session.device.name.lower().replace("nvidia", "").split()
    return "-".join([*gpu, *session.problem.label.lower().replace("_", "-").split(), kind])


def measure_all(
    session: Session, store: Store, indices: NDArray[np.int64], progress: Report | None
) -> list[TrialRecord]:
    """Measure the configurations that are not in the store; return all records by number."""
    records = {record.number: record for record in store.records()}
    observer = Observer(session.problem, session.device, "gpu", trials_limit=len(indices), report=progress)
    observer.recall(store.records())
    observer.reference_s = store.fact("reference_median_s")
    columns = session.space.rows(indices)
    todo = deque(number for number in range(len(indices)) if number not in records)
    pipeline = Pipeline(session.builder, session.runner)
    ahead = 4 * (os.cpu_count() or 1)
    seconds = Seconds({"total": max((record.elapsed_s for record in records.values()), default=0.0)})
    reference_known = observer.reference_s is not None
    while todo or len(pipeline):
        while todo and len(pipeline) < ahead:
            number = todo.popleft()
            pipeline.submit(Candidate(number, 0, int(indices[number]), row(columns, number), "random"))
        if not reference_known:  # once, during the first builds
            reference, reference_known = session.reference(), True
            observer.reference_s = None if reference is None else reference.median_s
            store.set_fact("reference_median_s", observer.reference_s)
        ended = [replace(record, elapsed_s=seconds.elapsed) for record in pipeline.advance()]
        store.append(*ended)
        observer.see(ended)
        records |= {record.number: record for record in ended}
        observer.tell(seconds.elapsed, at_once=not todo)
    return [records[number] for number in sorted(records)]
