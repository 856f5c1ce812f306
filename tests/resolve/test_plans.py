"""The shipped plans, and the command ``mltune plan`` in its own process."""

import json
import re
from pathlib import Path

import pytest

from mltune.campaign.forecast import forecast
from mltune.device.known import H200
from mltune.files import folders
from mltune.problem.gemm import CASES
from mltune.resolve.placement import place
from mltune.resolve.plan_file import load_plan
from tests.cli.program import command

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(folders.assets("search").glob("*.toml"))


def plan(*arguments, cwd=None):
    """Run ``mltune plan``."""
    return command("plan", *arguments, cwd=cwd)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.sampled(1, system=6)
def test_every_plan_of_ours_can_be_carried_out_on_an_h200(path):
    document = forecast(load_plan(path), [H200], "", 16)
    assert document["obstacle"] is None
    assert (document["trials"] is None) == (path.stem == "seeds")  # its kernels have no recorded timings


def test_blas_cases_are_all_of_them_and_four_rectangular_sizes():
    found = place(load_plan("blas_cases"), [H200])
    square = {(task.problem.precision, task.problem.trans_a, task.problem.trans_b) for task in found.tasks[:26]}
    assert square == set(CASES)
    assert len(found.tasks) == 30
    assert found.capacity == 500


def test_the_rehearsal_needs_no_gpu():
    assert place(load_plan("rehearsal"), [], "none").replayed


def test_every_plan_of_ours_is_described():
    text = (folders.assets("search") / "README.md").read_text()
    assert all(path.name in text for path in FILES)


def test_the_example_in_the_documents_is_a_plan(tmp_path):
    example, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/reference/plans.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    assert len(load_plan(tmp_path / "mine.toml").tasks) > 1


class TestCommand:
    @pytest.mark.system
    def test_prints_what_a_person_reads(self):
        result = plan(ROOT / "search/overnight.toml")
        assert result.returncode == 0, result.stderr
        for part in ("12 h 00 min", "on a GPU", "It cannot run here", "sgemm-nt-4096", "zgemm-nn-8192", "problems/"):
            assert part in result.stdout

    def test_prints_one_document(self, tmp_path):
        result = plan("rehearsal", "--json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["name"] == "rehearsal"
        assert list(tmp_path.iterdir()) == []

    def test_a_malformed_plan_is_one_line_and_exit_code_2(self, tmp_path):
        (tmp_path / "bad.toml").write_text('[plan]\ntitle = "x"\nbudget = "1h"\nminimum = "1m"\nhours = 3\n')
        for name in ("bad.toml", "missing.toml"):
            result = plan(name, cwd=tmp_path)
            assert result.returncode == 2
            assert result.stderr.startswith("mltune: ")
            assert len(result.stderr.splitlines()) == 1
            assert result.stdout == ""
