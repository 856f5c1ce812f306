"""The asset folders in a checkout, a source distribution and a wheel."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from mltune.files import folders

ROOT = Path(__file__).resolve().parents[2]


def tracked(folder):
    """Return the files of one folder that git knows."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--", folder], capture_output=True, text=True, check=True
    ).stdout
    return set(filter(None, listing.split("\0")))


@pytest.mark.parametrize("name", folders.FOLDERS)
def test_a_folder_of_the_checkout_is_found_where_it_stands(name):
    assert folders.assets(name) == ROOT / name
    assert (ROOT / name / "README.md").is_file()


@pytest.mark.parametrize(
    "name", ["reference/plans.md", "reference/kernel-toml.md", "reference/library.md", "how-to/carry-wisdom.md"]
)
def test_a_page_that_a_message_names_is_there_from_everywhere(name, tmp_path, monkeypatch):
    assert Path(folders.page(name)).is_file()
    monkeypatch.chdir(tmp_path)
    assert Path(folders.page(name)).is_file()


def test_an_unknown_folder_is_refused():
    with pytest.raises(ValueError, match="is no asset folder"):
        folders.assets("../mltune")


@pytest.mark.parametrize("name", folders.FOLDERS)
def test_no_python_stands_in_the_asset_folders(name):
    assert not [path for path in tracked(name) if path.endswith(".py")]


@pytest.mark.wheel
@pytest.mark.parametrize("name", folders.FOLDERS)
def test_the_wheel_holds_every_tracked_file(distributions, name):
    with zipfile.ZipFile(distributions[1]) as wheel:
        held = set(wheel.namelist())
    wanted = {f"mltune/_data/{path}" for path in tracked(name)}
    wanted |= {f"mltune/_data/{path}" for path in tracked("docs") if path.endswith(".md")}
    assert wanted
    assert wanted <= held


@pytest.mark.wheel
@pytest.mark.parametrize("name", folders.FOLDERS)
def test_the_sdist_holds_every_tracked_file(distributions, name):
    with tarfile.open(distributions[0]) as sdist:
        held = {member.partition("/")[2] for member in sdist.getnames()}
    assert tracked(name) <= held


@pytest.mark.wheel
def test_the_wheel_holds_the_code_the_licence_and_nothing_else(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        held = wheel.namelist()
    assert {"mltune/cli/__init__.py", "mltune/py.typed"} <= set(held)
    assert any(path.endswith("licenses/LICENSE") for path in held)
    assert all(path.startswith(("mltune/", "mltune_gpu-")) for path in held)
    assert not [path for path in held if "__pycache__" in path or path.endswith(".whl")]
