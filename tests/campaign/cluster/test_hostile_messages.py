"""A worker of a cluster may send anything: its problem is set aside, and the campaign goes on."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.cluster.remote_process import RemoteProcess
from mltune.campaign.cluster.remote_slice import Update
from mltune.campaign.device_worker import Outcome, SliceResult
from mltune.dataset.dataset import load_manifest
from mltune.records.declaration import Reference
from mltune.records.replication import Changes
from mltune.results.progress import Progress
from tests.campaign.conftest import Here, events_of, placed, records_of
from tests.conftest import HEADER

BAD = "h200-sgemm-nt-4096-random"
DONE = SliceResult(Outcome.DONE)
PROGRESS = Progress("p", "cuda:0", 3, 1.0, {"ok": 3})
NOTHING = Update((), {}, None, result=DONE)
ASKED = load_manifest(BAD)
HEADERS = Changes(replace(HEADER, kernel=ASKED.kernel, problem=ASKED.problem.to_json()))

MESSAGES = {
    "a text": "message",
    "a number": 7,
    "an empty object": object(),
    "no events": replace(NOTHING, events=None),
    "an event of nothing": replace(NOTHING, events=[{}]),
    "an event that is a text": replace(NOTHING, events=["event"]),
    "an unknown event": replace(NOTHING, events=[{"event": "nonsense"}]),
    "a field that no event has": replace(NOTHING, events=[{"event": "best", "nonsense": 1}]),
    "files that are a list": replace(NOTHING, files=["winner/kernel.cu"]),
    "a file with a number for its name": replace(NOTHING, files={7: b""}),
    "a file of text": replace(NOTHING, files={"winner/kernel.cu": "text"}),
    "a file that leaves the directory": replace(NOTHING, files={"../../plan.toml": b""}),
    "a path that is too long": replace(NOTHING, files={"winner/" + "x" * 5000: b""}),
    "a path with a zero byte": replace(NOTHING, files={"winner/\0": b""}),
    "changes that are a text": replace(NOTHING, changes="changes"),
    "no header": replace(NOTHING, changes=Changes(None)),
    "a run of another kernel": replace(NOTHING, changes=Changes(replace(HEADERS.header, kernel="gemm_dd"))),
    "a run of another problem": replace(
        NOTHING, changes=Changes(replace(HEADERS.header, problem=replace(ASKED.problem, m=512).to_json()))
    ),
    "trials after a gap": replace(NOTHING, changes=replace(HEADERS, after=10**9)),
    "trials of texts": replace(NOTHING, changes=replace(HEADERS, trials=("trial",))),
    "timings of texts": replace(NOTHING, changes=replace(HEADERS, references=(Reference("a", "b", "c"),))),
    "facts that are no JSON": replace(NOTHING, changes=replace(HEADERS, facts={"limit": {1, 2}})),
    "seconds of texts": replace(NOTHING, changes=replace(HEADERS, seconds={"total": "soon"})),
    "progress of a text": replace(NOTHING, progress="soon"),
    "trials of a text": replace(NOTHING, progress=replace(PROGRESS, trials="three"), result=None),
    "infinite time": replace(NOTHING, progress=replace(PROGRESS, elapsed_s=float("inf")), result=None),
    "counts of texts": replace(NOTHING, progress=replace(PROGRESS, counts="ok"), result=None),
    "a result of a text": replace(NOTHING, result="done"),
    "an unknown outcome": replace(NOTHING, result=SliceResult("nonsense", "")),
    "a reason that is a number": replace(NOTHING, result=SliceResult(Outcome.FAILED, 7)),
}


class Client:
    """A connection to a cluster whose worker answers each question with the same messages."""

    status = "running"

    def __init__(self, message):
        self._message = message

    def nthreads(self, workers):
        return dict.fromkeys(workers, 1)

    def submit(self, *_, **__):
        return SimpleNamespace(status="pending", cancel=lambda: None)

    def run(self, function, *_, workers, **__):
        return {address: [self._message] for address in workers}


class Worker(Here):
    """Runs time slices here, but for those of one problem, which a hostile worker of a cluster gets."""

    message = None

    def call(self, request, timeout_s, on_message):
        if request.slug != BAD or request.repair:
            return super().call(request, timeout_s, on_message)
        cluster = SimpleNamespace(client=lambda: Client(self.message), address_of=lambda name: "tls://elsewhere:1")
        return RemoteProcess(cluster, "worker", "").call(request, timeout_s, on_message)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.sampled(6, system=24)
def test_one_bad_message_sets_its_problem_aside_and_ends_no_campaign(name, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "message", MESSAGES[name])
    shown = []
    result = run_plan(placed(), tmp_path / "run", worker=Worker, progress=shown.append)
    assert not result.interrupted
    assert shown
    set_aside = [event["problem"] for event in events_of(tmp_path / "run") if event["event"] == "set_aside"]
    assert set_aside == ["sgemm NT 4096"]
    assert (tmp_path / "run" / "report.html").exists()
    expected = records_of(uninterrupted.directory, without=BAD)
    found = records_of(tmp_path / "run", without=BAD)
    assert found.keys() == expected.keys()
    assert all(found[slug][: len(records)] == records for slug, records in expected.items())
