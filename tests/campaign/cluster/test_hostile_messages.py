"""A worker of a cluster may send anything: its problem is set aside, and the campaign goes on."""

from dataclasses import replace

import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.cluster.remote_process import RemoteProcess
from mltune.dataset.dataset import load_manifest
from tests.campaign.conftest import Here, events_of, placed, records_of
from tests.conftest import HEADER
from tests.hostile.messages import cluster_that_sends, named_messages

BAD = "h200-sgemm-nt-4096-random"
ASKED = load_manifest(BAD)
MESSAGES = named_messages(replace(HEADER, kernel=ASKED.kernel, problem=ASKED.problem.to_json()))


class Worker(Here):
    """Runs time slices here, but for those of one problem, which a hostile worker of a cluster gets."""

    message = None

    def call(self, request, timeout_s, on_message):
        if request.request.slug != BAD or request.repair:
            return super().call(request, timeout_s, on_message)
        return RemoteProcess(cluster_that_sends(self.message), "worker", "").call(request, timeout_s, on_message)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.sampled(1, nightly=99)
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
