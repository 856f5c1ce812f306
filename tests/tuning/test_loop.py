"""The loop of a run: results on record are told at once, little is built ahead, and a stop is looked for."""

from concurrent.futures import Future

import numpy as np
import pytest

from mltune.dataset.dataset import load_manifest
from mltune.errors import RunError
from mltune.kernel.reader import load_kernel
from mltune.records.store import Store
from mltune.records.trial import Build, TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer
from mltune.tuning.loop import Loop
from mltune.tuning.session import open_session, run_header
from mltune.tuning.sweep import Everything

DATASET = "convolution_rtx_a4000"


class Failing:
    """A builder whose builds fail, and are counted."""

    built = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, configuration):
        self.built += 1
        future = Future()
        future.set_result(Build(TrialState.COMPILE_ERROR, "as planned"))
        return future


@pytest.fixture
def session():
    found = open_session(
        TuneRequest(load_manifest(DATASET).problem, load_kernel("convolution"), Target(dataset=DATASET))
    )
    found.builder = Failing()
    return found


def loop_of(session, store, indices, **options):
    observer = Observer(session.placed.problem, session.placed.device, "gpu")
    ended = store.records()
    return Loop(
        session, store, Everything(session.placed.space, np.array(indices)), observer, ended, earlier=ended, **options
    )


def test_results_on_record_are_not_measured_again(session, tmp_path):
    with Store.open(tmp_path / "run", run_header(session, 0, {})) as store, session:
        loop_of(session, store, [5, 7, 9]).run()
        again = loop_of(session, store, [5, 7, 9, 11])
        again.run()

        assert session.builder.built == 4
        assert (again.ended, again.measured) == (4, 1)
        assert [record.index for record in store.records()] == [5, 7, 9, 11]


def test_a_record_of_another_choice_is_refused(session, tmp_path):
    with Store.open(tmp_path / "run", run_header(session, 0, {})) as store, session:
        loop_of(session, store, [5]).run()

        with pytest.raises(RunError, match=r"trial 0 .* is configuration 5, not 6, .* makes the same choices"):
            loop_of(session, store, [6]).run()


def test_a_stop_ends_the_loop_and_what_ended_before_is_kept(session, tmp_path):
    with Store.open(tmp_path / "run", run_header(session, 0, {})) as store, session:
        loop = loop_of(session, store, range(40), ahead=2, stop=lambda: len(store) >= 6)
        loop.run()

        assert 6 <= loop.ended == len(store) < 40
        assert session.builder.built <= loop.ended + 2


def test_the_seconds_of_a_killed_run_are_those_until_its_last_record(session, tmp_path):
    with Store.open(tmp_path / "run", run_header(session, 0, {})) as store, session:
        loop_of(session, store, [5, 7]).run()
        last_s = max(record.elapsed_s for record in store.records())
        store.set_seconds({})

        assert loop_of(session, store, [5, 7]).seconds.elapsed >= last_s
