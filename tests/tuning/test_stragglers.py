"""Trials that end in another order than they began: nothing waits for a late one, and a resumed run knows the order."""

import heapq
import shutil
from concurrent.futures import Future
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from mltune.dataset.dataset import load_manifest
from mltune.dataset.replay import ReplayBuilder
from mltune.kernel.reader import load_kernel
from mltune.measure.pipeline import Pipeline
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer
from mltune.results.reader import read_run
from mltune.tuning.session import open_session, run_header
from mltune.tuning.tuner import Tuner

DATASET = "convolution_rtx_a4000"


class Compilers(ReplayBuilder):
    """Sixteen compilers that take the recorded seconds, on a clock that goes while the run waits; some builds hang."""

    def __init__(self, dataset, hung=()):
        super().__init__(dataset)
        self.submitted, self.hung, self.now_s = 0, {*hung}, 0.0
        self.free_s, self.building = [0.0] * 16, []

    def submit(self, configuration):
        number, self.submitted = self.submitted, self.submitted + 1
        built, future = super().submit(configuration).result(), Future()
        if number not in self.hung:
            end_s = max(self.now_s, self.free_s[0]) + built.compile_s
            heapq.heapreplace(self.free_s, end_s)
            heapq.heappush(self.building, (end_s, number, future, built))
        return future

    def wait(self, futures, timeout, return_when):
        """Let the next build end, in place of :func:`concurrent.futures.wait`."""
        if timeout and self.building:
            self.now_s, _, future, built = heapq.heappop(self.building)
            future.set_running_or_notify_cancel()
            future.set_result(built)


@pytest.fixture
def submitted(monkeypatch):
    """Return what is submitted to compilers, by number."""
    candidates, submit = {}, Pipeline.submit

    def noted(pipeline, candidate):
        candidates[candidate.number] = candidate
        submit(pipeline, candidate)

    monkeypatch.setattr(Pipeline, "submit", noted)
    return candidates


def run(folder, most=None, hung=(), **options):
    """Tune until so many trials are on record."""
    problem, kernel = load_manifest(DATASET).problem, load_kernel("convolution")
    request = TuneRequest(problem, kernel, Target(dataset=DATASET), **options)
    session = open_session(request)
    session.compilers, session.builder = 16.0, Compilers(session.recorded, hung)
    waits = mock.patch("mltune.measure.pipeline.wait", session.builder.wait)
    with Store.open(folder, run_header(session, 0, {})) as store, session, waits:
        observer = Observer(session.placed.problem, session.placed.device, "gpu")
        return Tuner(session, store, request, observer, lambda: most is not None and len(store) >= most).run()


def in_order_of_ends(folder):
    with Store.read_only(folder) as store:
        return [replace(record, finished_at=0.0) for record in store.records()]


@pytest.mark.parametrize("most", [23, 5, 40])
@pytest.mark.sampled(1, nightly=3)
def test_a_resumed_run_begins_with_what_was_under_way(tmp_path, submitted, most):
    assert run(tmp_path / "run", most, trials=60).interrupted
    first = in_order_of_ends(tmp_path / "run")
    under_way = {number: candidate for number, candidate in submitted.items() if number not in {*numbers_of(first)}}
    assert under_way
    submitted.clear()

    result = run(tmp_path / "run", trials=60)

    assert {**submitted, **under_way} == submitted
    assert [*submitted][: len(under_way)] == [*under_way]
    assert in_order_of_ends(tmp_path / "run")[: len(first)] == first
    assert sorted(numbers_of(result.records)) == list(range(60))
    assert len({record.index for record in result.records}) == 60
    assert numbers_of(in_order_of_ends(tmp_path / "run")) != list(range(60))


def test_a_limit_that_cuts_what_was_under_way_keeps_the_rest_for_later(tmp_path, submitted):
    run(tmp_path / "run", 23, trials=60)
    first = {*numbers_of(in_order_of_ends(tmp_path / "run"))}
    under_way = {number: candidate for number, candidate in submitted.items() if number not in first}
    for trials in (len(first) + 1, len(first) + 3):
        submitted.clear()
        assert len(run(tmp_path / "run", trials=trials).records) == trials
        assert submitted.items() <= under_way.items()
    assert sorted(numbers_of(run(tmp_path / "run", trials=60).records)) == list(range(60))


@pytest.mark.parametrize("hung", [(3, 9, 20), (0,)])
@pytest.mark.sampled(1, nightly=2)
def test_a_build_that_hangs_does_not_stop_planning_and_is_made_by_the_next_run(tmp_path, submitted, hung):
    result = run(tmp_path / "run", 60, hung, trials=200)
    assert len(result.records) >= 60
    assert not {*hung} & {*numbers_of(result.records)}
    plans = read_plans(tmp_path / "run")
    assert [plan.known for plan in plans] == sorted(plan.known for plan in plans)
    assert plans[-1].known >= 60 - 16
    assert plans[0].first == 0
    under_way = [number for number in submitted if number not in {*numbers_of(result.records)}]
    assert len(under_way) <= 2 * 16, "the queue is bounded"
    again = run(tmp_path / "run", 60 + len(under_way), trials=200)
    assert {*hung} <= {*numbers_of(again.records)}


def test_a_run_of_an_earlier_version_goes_on_and_fills_its_gaps(tmp_path, submitted):
    run(tmp_path / "run", 30, trials=60)
    with Store.open(tmp_path / "run") as store:
        store.set_fact("plans", None)
    result = run(tmp_path / "run", trials=60)
    assert sorted(numbers_of(result.records)) == list(range(60))
    assert len({record.index for record in result.records}) == 60


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the directory of a run that ended after 30 of 60 trials."""
    directory = tmp_path_factory.mktemp("begun") / "run"
    run(directory, 30, trials=60)
    return directory


@pytest.mark.parametrize(
    "plans",
    [
        [{"batch": 2**53, "known": 2**53, "first": 2**53, "size": 4096}],
        [{"batch": 0, "known": 0, "first": 0, "size": 4096}],
        [{"batch": 1, "known": 30, "first": 4, "size": 60}, {"batch": 1, "known": 2, "first": 3, "size": 60}],
        [{"batch": batch, "known": 0, "first": 10**6 * batch, "size": 1} for batch in range(50)],
    ],
)
@pytest.mark.sampled(2, nightly=99)
def test_plans_that_no_run_writes_do_no_harm(begun, tmp_path, plans):
    shutil.copytree(begun, tmp_path / "run")
    with Store.open(tmp_path / "run") as store:
        store.set_fact("plans", plans)
    first = in_order_of_ends(tmp_path / "run")
    result = run(tmp_path / "run", trials=60)
    assert len(result.records) == len({record.index for record in result.records}) == 60
    assert in_order_of_ends(tmp_path / "run")[: len(first)] == first
    assert read_run(tmp_path / "run").records == result.records


def test_the_model_learns_what_ended_and_not_what_is_late(tmp_path, submitted):
    """The fastest of the run is found although the first build of all never ends."""
    result = run(tmp_path / "run", 80, (0,), trials=200)
    best = np.sort([record.median_s for record in result.records if record.state is TrialState.OK])[0]
    assert {record.proposed_by for record in result.records} >= {"start", "model"}
    assert best <= np.nanquantile(load_times(), 0.01)


def numbers_of(records):
    return [record.number for record in records]


def read_plans(folder):
    with Store.read_only(folder) as store:
        return store.facts().plans


def load_times():
    from mltune.dataset.dataset import load_dataset

    return load_dataset(DATASET).numbers("median_s")
