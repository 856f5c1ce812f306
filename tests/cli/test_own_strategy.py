"""``mltune compare`` with a strategy of one's own, ``MODULE:CLASS``, as a user would run it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import command

STRATEGY = """
class Backwards:
    name = "backwards"

    def __init__(self, step=1):
        self.step = step

    def search(self, simulation, seed):
        simulation.begin()
        for index in reversed(range(0, simulation.space.count, self.step)):
            simulation.evaluate(index)
"""


def compared(folder: Path, strategies: str) -> subprocess.CompletedProcess[str]:
    options = ("--evaluations", 20, "--seeds", 2, "--jobs", 2, "--out", "here", "--json")
    return command("compare", "--strategies", strategies, "--datasets", "convolution_mi250x_gcd", *options, cwd=folder)


def test_it_is_found_in_the_working_directory_and_runs_in_worker_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import pydoc, wave\n" + STRATEGY)
    for name in ("pydoc", "wave"):  # are there, too: Python's come first
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the working directory')\n")
    done = compared(tmp_path, "random,mine:Backwards,mine:Backwards:step=2")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["strategies"]
    assert found.keys() == {"random", "mine:Backwards", "mine:Backwards:step=2"}
    assert all(one["seeds"] == 2 for one in found.values())
    assert "failed" not in done.stderr


@pytest.mark.parametrize(
    ("named", "words"), [("mine:Forwards", "Forwards"), ("absent:Backwards", "absent"), ("mine:LIMIT", "LIMIT")]
)
@pytest.mark.system
def test_what_is_no_strategy_is_refused_by_name(tmp_path: Path, named: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(f"LIMIT = 1\n{STRATEGY}")
    done = compared(tmp_path, named)

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_strategy_that_fails_is_a_warning_and_the_exit_code_is_1(tmp_path: Path) -> None:
    broken = STRATEGY.replace("simulation.begin()", "simulation.begin(); raise ValueError('no seed of mine')")
    (tmp_path / "mine.py").write_text(broken)
    done = compared(tmp_path, "random,mine:Backwards")

    assert done.returncode == 1
    assert json.loads(done.stdout)["strategies"].keys() == {"random"}
    failures = [line for line in done.stderr.splitlines() if "no seed of mine" in line]
    assert failures == ["mine:Backwards failed in 2 runs, which are left out: ValueError: no seed of mine"]
