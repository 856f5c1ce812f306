"""Whole spaces in runs: the result, the document and the command line say so, also of a run that was interrupted."""

import pytest
from rich.console import Console

from mltune.dataset.dataset import load_manifest
from mltune.kernel.reader import load_kernel
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer
from mltune.results.reader import read_run
from mltune.show.tables import tuned
from mltune.tuning.session import open_session, run_header
from mltune.tuning.tuner import Tuner

DATASET = "h200-transpose-8192x8192-random"
VERDICT = "all 400 configurations were measured"


def run(folder, most=None, **options):
    """Tune in replay as if 16 compilers had made the builds, until so many trials are on record."""
    request = TuneRequest(load_manifest(DATASET).problem, load_kernel("transpose"), Target(dataset=DATASET), **options)
    session = open_session(request)
    session.compilers = 16.0
    with Store.open(folder, run_header(session, 0, {})) as store, session:
        observer = Observer(session.placed.problem, session.placed.device, "gpu")
        return Tuner(session, store, request, observer, lambda: most is not None and len(store) >= most).run()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "run")


def text_of(result):
    console = Console(width=200, record=True, quiet=True)
    document = result.to_json() | {"optimum": None, "why": ""}
    with console.capture() as capture:
        console.quiet = False
        console.print(*tuned(document))
    return capture.get()


def test_the_result_the_document_and_the_command_line_say_that_everything_was_measured(undisturbed):
    assert undisturbed.stopped == undisturbed.to_json()["stopped"] == read_run(undisturbed.directory).stopped == VERDICT
    assert sorted(record.index for record in undisturbed.records) == list(range(400))
    assert undisturbed.whole.startswith("all 400 configurations would take ")
    assert VERDICT in text_of(undisturbed)


def test_an_interrupted_run_makes_the_same_choices(undisturbed, tmp_path):
    for most in (20, 90):
        assert run(tmp_path / "run", most).interrupted
    resumed = run(tmp_path / "run", time_s=1e6)
    assert [record.index for record in resumed.records] == [record.index for record in undisturbed.records]
    assert (resumed.stopped, resumed.whole) == (VERDICT, undisturbed.whole)


def test_a_budget_that_is_too_short_says_so(tmp_path):
    result = run(tmp_path / "run", trials=60)
    assert result.stopped == ""
    law = "not everything is measured: there are 400 configurations, and trials=60"
    assert result.whole == result.to_json()["whole"] == law
    assert law in text_of(result)
