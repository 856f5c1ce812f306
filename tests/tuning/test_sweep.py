"""Sweeps in replay: the choice of configurations, resumption, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from mltune.errors import UsageError
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer
from mltune.tuning.session import Session, open_session, run_header
from mltune.tuning.sweep import Everything, choose_configurations, measure_all, sweep

DATASET = "h200-sgemm-nt-4096-random"
PROBLEM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


@pytest.fixture
def session() -> Session:
    return open_session(TuneRequest(PROBLEM, load_kernel("gemm_simt"), Target(dataset=DATASET)))


def swept(session: Session, run: Path, indices: np.ndarray) -> list:
    with Store.open(run, run_header(session, 0, {})) as store, session:
        observer = Observer(session.placed.problem, session.placed.device, "gpu", trials_limit=len(indices))
        return measure_all(session, store, Everything(session.placed.space, indices), observer)


def test_random_sweep_is_distinct_and_the_same_for_the_same_seed(session):
    chosen = choose_configurations(session, 200, seed=3)

    assert len(set(chosen.tolist())) == 200
    assert np.array_equal(chosen, choose_configurations(session, 200, seed=3))


def test_complete_sweep_takes_every_configuration_once(session):
    chosen = choose_configurations(session, None, seed=3)

    assert sorted(chosen.tolist()) == list(range(session.placed.space.count))


def test_every_configuration_gets_a_record_and_a_resumed_sweep_measures_the_rest(session, tmp_path):
    chosen = choose_configurations(session, 60, seed=1)
    first = swept(session, tmp_path / "run", chosen[:25])

    records = swept(session, tmp_path / "run", chosen)

    assert [record.number for record in records] == list(range(60))
    assert records[:25] == first
    assert [record.index for record in records] == chosen.tolist()


def test_replay_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be swept"):
        sweep(TuneRequest(PROBLEM, load_kernel("gemm_simt"), Target(dataset=DATASET), run=tmp_path / "run"), 10)
