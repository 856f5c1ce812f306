"""Whatever a campaign leaves in its directory may be replaced by a link: what lies behind is not touched or shown."""

import shutil
from pathlib import Path

import pytest

from mltune.errors import MltuneError, MltuneWarning
from mltune.records.directory import runs_in
from mltune.resolve.request import TuneRequest
from mltune.results.progress import CampaignProgress
from mltune.show.report.writing import write_report
from mltune.tuning.tuner import tune
from tests.campaign.conftest import SIMPLE, carry_out, placed
from tests.owned_folders import write_winner

ONE = "h200-sgemm-nt-4096-random"
PLAN = f"""
[plan]
title = "One problem"
budget = "32 trials"
minimum = "16 trials"
produce = ["report", "winners", "datasets"]

[[problems]]
datasets = ["{ONE}"]
{SIMPLE}"""
REPLACED = (f"winners/{ONE}", f"datasets/{ONE}.json", f"datasets/{ONE}.parquet")
"""Here the link itself is replaced by a file or folder."""
WRITTEN = ("plan.toml", "run.lock", "events.jsonl", "report.html", "report.md", "winners.json", "datasets", "problems")
WRITTEN += ("winners", *REPLACED, f"problems/{ONE}")
WRITTEN += tuple(f"problems/{ONE}/{name}" for name in ("run.sqlite", "run.lock", "winner"))
CANARY = "canary-9f3a"
WINNER = ("kernel.cu", "winner.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a campaign that has ended, with the folder of a winner, which replay does not write."""
    directory = tmp_path_factory.mktemp("finished") / "campaign"
    carry_out(PLAN, directory)
    write_winner(directory / "problems" / ONE / "winner", kernel="code")
    write_report(directory, quick=True)
    return directory


def test_these_are_all_files_of_a_campaign(finished: Path) -> None:
    found = {str(path.relative_to(finished)) for path in finished.rglob("*")}
    beside = {f"problems/{ONE}/run.sqlite-wal", f"problems/{ONE}/run.sqlite-shm"}
    beside |= {f"{folder}/{name}" for folder in (f"problems/{ONE}/winner", f"winners/{ONE}") for name in WINNER}
    assert found - beside - {"plan.json"} == set(WRITTEN)


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, "what was there") for name in WRITTEN] + [(name, "a folder") for name in WRITTEN if name not in REPLACED],
)
@pytest.mark.sampled(6)
def test_a_link_in_place_of_a_file_or_folder_is_not_followed(
    finished: Path, tmp_path: Path, name: str, target: str
) -> None:
    directory = Path(shutil.copytree(finished, tmp_path / "campaign"))
    (tmp_path / "outside" / "folder" / ONE).mkdir(parents=True)
    (tmp_path / "outside" / "folder" / ONE / "kernel.cu").write_text(CANARY)
    (directory / name).rename(tmp_path / "outside" / "what was there")
    if (tmp_path / "outside" / "what was there").is_file():
        (tmp_path / "outside" / "what was there").write_text(CANARY)
    (directory / name).symlink_to(tmp_path / "outside" / target.removeprefix("a "))
    before = state(tmp_path / "outside")

    said: list[str] = []
    for use in (report, resume, tune_problem):
        try:
            said += use(directory)
        except (MltuneError, MltuneWarning) as error:
            said.append(str(error))

    assert state(tmp_path / "outside") == before
    assert not any(CANARY in text for text in said)
    assert not any(CANARY.encode() in path.read_bytes() for path in files(directory))
    assert name in REPLACED or any(f"{name} is a link to {tmp_path}/outside" in text for text in said)


def report(directory: Path) -> list[str]:
    paths = write_report(directory, quick=True)
    return [note for entry in paths.document["winners"] for note in entry["notes"]]


def resume(directory: Path) -> list[str]:
    said: list[str] = []

    def listen(progress: CampaignProgress) -> None:
        said.append(progress.message or "")

    plan = PLAN.replace("32 trials", "48 trials").replace('"report", ', "")
    result = carry_out(plan, directory, progress=listen)
    return [*said, *(standing.failed for standing in result.standings.values())]


def tune_problem(directory: Path) -> list[str]:
    runs_in(directory)
    run = directory / "problems" / ONE
    task = placed(PLAN).tasks[0]
    options = {"search": "random", "skip": False, "stop": False}
    tune(TuneRequest(task.problem, task.kernel, task.target, trials=48, run=run, **options))
    return []


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]


def state(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }
