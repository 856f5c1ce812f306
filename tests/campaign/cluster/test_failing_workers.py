"""A worker of a cluster that fails while it sends: tried a few times, then its problem is set aside."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed", reason="needs distributed")

from distributed import KilledWorker

from mltune.campaign.campaign import run_plan
from mltune.campaign.cluster.remote_process import RemoteProcess, _Receiver
from mltune.campaign.device_worker import Outcome, SliceResult, call
from mltune.campaign.scheduler import MAX_FAILURES
from mltune.errors import DiskFullError, MltuneWarning
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import locked
from tests.campaign.conftest import Here, events_of, placed
from tests.hostile.messages import NOTHING

BAD = "h200-sgemm-nt-4096-random"


class Client:
    """A connection to a cluster on which a task has failed."""

    status = "running"

    def __init__(self, error):
        self._task = SimpleNamespace(status="error", exception=lambda timeout: error, cancel=lambda: None)

    def nthreads(self, workers):
        return dict.fromkeys(workers, 1)

    def submit(self, *_, **__):
        Worker.begun += 1
        return self._task

    def run(self, *_, workers, **__):
        return dict.fromkeys(workers)


class Worker(Here):
    """Runs time slices here, but for those of one problem, which the cluster gets."""

    error = None
    begun = 0

    def call(self, request, timeout_s, on_message):
        if request.request.slug != BAD or request.repair:
            return super().call(request, timeout_s, on_message)
        return remote(self.error).call(request, timeout_s, on_message)


def remote(error):
    client = Client(error)
    return RemoteProcess(SimpleNamespace(client=lambda: client, address_of=lambda name: "tls://elsewhere:1"), "w", "")


@pytest.fixture(autouse=True)
def no_task_before(monkeypatch):
    monkeypatch.setattr(Worker, "begun", 0)


def test_what_cannot_be_sent_sets_its_problem_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "error", TypeError("cannot pickle 'lock' objects"))
    result = run_plan(placed(), tmp_path / "run", worker=Worker)
    assert not result.interrupted
    (event,) = [event for event in events_of(tmp_path / "run") if event["event"] == "set_aside"]
    assert event["problem"] == "sgemm NT 4096"
    assert "the worker w has failed: TypeError(\"cannot pickle 'lock' objects\")" in event["detail"]
    assert Worker.begun == MAX_FAILURES


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError(28, "No space left on device"), Outcome.DIED),
        (DiskFullError("the disk is full"), Outcome.DISK_FULL),
        (KilledWorker("task", SimpleNamespace(address="tls://elsewhere:1"), 1), Outcome.GPU_LOST),
    ],
)
def test_the_outcome_is_that_of_the_failure(error, outcome, tmp_path):
    """Only a worker that is gone is waited for."""
    request = request_of(tmp_path)
    assert call(remote(error), request, 10.0, print).outcome is outcome


def request_of(folder):
    """Return a time slice whose run is in a folder."""
    seen = []

    class Noted(Here):
        def call(self, request, timeout_s, on_message):
            seen.append(request)
            return SliceResult(Outcome.FAILED, "noted")

    run_plan(placed(), folder / "campaign", worker=Noted)
    return replace(seen[0], request=replace(seen[0].request, run=folder / "run"), log=folder)


def test_a_wisdom_whose_lock_is_held_does_not_fail_the_problem(tmp_path, monkeypatch):
    file = tmp_path / "wisdom.json"
    monkeypatch.setattr(locked.__wrapped__, "__defaults__", (0.05,))
    request = request_of(tmp_path)
    receiver = _Receiver(replace(request, request=replace(request.request, wisdom=str(file))), print)
    known = Wisdom.load(make_wisdom(tmp_path))
    with locked(file, 1.0), pytest.warns(MltuneWarning, match="the winner was not added to the wisdom: .*held"):
        assert receiver.receive(replace(NOTHING, wisdom=known))
    assert receiver.result.outcome is Outcome.DONE
    assert not file.exists()


def make_wisdom(folder):
    """Return a file with some entries."""
    import mltune

    path = folder / "other.json"
    options = {"device": f"replay:{BAD}", "trials": 5, "search": "random", "run": folder / "tuned", "wisdom": path}
    mltune.tune(**options, progress=None)
    return path
