"""SIGKILLs between any two changes of a run's files: nothing lost, nothing different, nothing unreadable, nothing given up."""

import json
import os
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from mltune.dataset.dataset import load_dataset
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.problem.gemm import GemmProblem
from mltune.process.child import Child
from mltune.records.trial import TrialState
from tests.conftest import origin
from tests.hostile.kills import Campaigns, Programs, Tally, Victims, build_switch, spread
from tests.hostile.sandbox import Sandbox

STATES = ("new", "closed", "killed")
FEW, COMPILERS, CAMPAIGNS, LIBRARIES, TUNED_FUNCTIONS = 18, 3, 2, 2, 3
WORKER_CHANGES, CAMPAIGN_CHANGES = 100, 60
"""Changes of files that a device worker and a campaign make at least, about."""


class Counts(NamedTuple):
    """How many processes of each kind are killed."""

    runs: int
    campaigns: int
    compilers: int
    libraries: int
    tuned_functions: int


@pytest.fixture(scope="module")
def switch(tmp_path_factory):
    """Return the library that kills."""
    return build_switch(tmp_path_factory.mktemp("switch"))


@pytest.fixture(scope="module")
def victims(switch):
    """Return a sandbox whose runs can be killed anywhere."""
    with Sandbox(switch) as one:
        yield one


@pytest.fixture
def counts(request):
    """Return how many processes of each kind are killed, of ``--kills``: few by default."""
    kills = request.config.getoption("--kills")
    if kills < 100:
        return Counts(FEW, CAMPAIGNS, COMPILERS, LIBRARIES, TUNED_FUNCTIONS)
    fifth, tenth = kills // 5, kills // 10
    return Counts(kills - 2 * fifth - 2 * tenth, fifth, tenth, tenth, fifth)


@pytest.fixture
def output(request):
    """Return a function that appends a tally to the file of ``--faults-output``."""

    def write(name: str, tally: dict) -> None:
        path = request.config.getoption("--faults-output")
        if path:
            header = origin(f"pytest tests/hostile/test_kills.py --kills {request.config.getoption('--kills')}")
            with Path(path).open("a") as file:
                file.write(json.dumps({name: header | tally}) + "\n")

    return write


@pytest.mark.parametrize("search", [pytest.param("random", marks=pytest.mark.slow), "model"])
@pytest.mark.slow
def test_a_run_that_is_killed_while_its_store_is_opened_or_closed(search, victims, sandbox, tmp_path, counts, output):
    """Each run is killed, read in every way, resumed, and compared with one that was left alone."""
    runs, tally = Victims(victims, sandbox, tmp_path, search), Tally()
    aimed = {}
    for state in STATES:
        expected, first, last, calls = runs.undisturbed(state)
        opening, closing = list(range(1, first + 1)), list(range(last + 1, calls + 1))
        between = list(range(first + 1, last + 1))
        share = max(1, counts.runs // (2 * len(STATES)))
        chosen = spread(opening, (share + 1) // 2) + spread(closing, share // 2)
        chosen += spread(between, share - len(chosen)) if share > len(chosen) else []
        tally.opening += len(set(chosen) & set(opening))
        tally.closing += len(set(chosen) & set(closing))
        aimed[state] = (expected, chosen)
    for state, (expected, chosen) in aimed.items():
        for at in chosen:
            runs.kill(state, at, expected / "named" / "run", tally)

    output(f"runs, search {search}", asdict(tally))
    assert tally.failures == []
    assert tally.opening
    assert tally.closing


@pytest.mark.slow
def test_a_device_worker_that_is_killed_while_its_store_is_opened_or_closed(victims, sandbox, tmp_path, counts, output):
    """Its campaign goes on by itself, or is resumed; readers look at it all the while."""
    campaigns, tally = Campaigns(victims, sandbox, tmp_path), Tally()
    rng = np.random.default_rng(7)
    expected = campaigns.undisturbed()
    for number in range(counts.campaigns):
        of_worker = rng.random() < 0.7
        at = int(rng.integers(1, WORKER_CHANGES if of_worker else CAMPAIGN_CHANGES))
        campaigns.kill(f"{number}-{at}", at, expected, tally, of_worker=of_worker)

    output("campaigns", asdict(tally))
    assert tally.failures == []
    assert tally.kills >= 0.8 * counts.campaigns


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_library_that_is_killed_while_it_is_built(switch, tmp_path, counts, output):
    """A library stays whole or becomes the new one, no recorded trial is lost, and the next build ends."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")
    programs, tally, rng = Programs(tmp_path, switch), Tally(), Random(13)
    built = programs.library()
    for number in range(counts.libraries):
        programs.kill_library(number, built, rng, tally)
    output("libraries", asdict(tally))
    assert tally.failures == []
    assert tally.kills >= 0.6 * counts.libraries


@pytest.mark.slow
def test_a_tuned_function_that_is_killed_at_a_random_moment(switch, tmp_path, counts, output):
    """Its file is valid, no recorded trial is lost, and neither the process beside it nor the next one is blocked."""
    programs, tally, rng = Programs(tmp_path, switch), Tally(), Random(17)
    whole_s = programs.tuned_s()
    for number in range(counts.tuned_functions):
        programs.kill_tuned(number, whole_s, rng, tally)
    output("tuned functions", asdict(tally))
    assert tally.failures == []
    assert tally.kills >= 0.6 * counts.tuned_functions


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_import_of_winners_that_is_killed_between_any_two_changes(switch, tmp_path, output):
    """Of what was known nothing is lost, and the next import ends with what one without a kill has."""
    programs, tally = Programs(tmp_path, switch), Tally()
    expected, at = programs.imported(), 0
    while tally.kills == at:  # until one has ended before its last change
        at += 1
        programs.kill_import(at, expected, tally)
    output("imports of winners", asdict(tally))
    assert tally.failures == []
    assert tally.kills > 12


@pytest.mark.system
def test_a_compiler_that_is_killed_does_not_blame_its_kernel(tmp_path, counts, output):
    """Builds whose compiler was killed from outside are made again."""
    kernel, problem = load_kernel("gemm_simt"), GemmProblem("s", "N", "T", 512, 512, 512)
    columns = load_dataset("h200-sgemm-nt-4096-random").columns
    rng = np.random.default_rng(11)
    kills = 0
    while kills < counts.compilers:
        rows = rng.integers(0, len(columns["BLK_M"]), 3)
        configurations = [{name: int(column[row]) for name, column in columns.items()} for row in rows]
        with NvrtcBuilder(kernel, problem, "sm_90", workers=1) as builder:
            pending = [builder.submit(one) for one in configurations]
            (child,) = (one.child for one in builder._compilers)
            builds = []
            for future in pending:  # one kill for each build: two would blame its kernel
                kills += _killed(child, future, rng.uniform(0.0, 0.3))
                builds.append(future.result(timeout=300))
        assert [build.state for build in builds] == [TrialState.OK] * 3
    output("compilers", {"kills": kills})


def _killed(child: Child, future, after_s: float) -> bool:
    """Kill a compiler while a build waits for it; return whether that was in time."""
    deadline = time.monotonic() + 300
    while child.pid is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(after_s)  # any moment will do
    pid = child.pid
    if future.done() or pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True
