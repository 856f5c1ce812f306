"""What is installed: distributions as pip leaves them, in folders from which Python imports."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mltune
from mltune.device.packages import DISTRIBUTION, extra

ROOT = Path(mltune.__file__).resolve().parent.parent


def install(folder, name, version, *modules):
    """Write what pip writes of a distribution: its metadata, and its modules."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for module in modules:
        (folder / module).mkdir(parents=True, exist_ok=True)
        (folder / module / "__init__.py").touch()


def found(*folders, cuda=None):
    """Return CuPy's distributions, the CUDA that it is for, and the problems, where Python imports from these folders.

    A process of its own: which packages this one has imported is of no importance.
    """
    script = (
        "import json, sys\n"
        "from mltune.device.packages import cuda_of_cupy, cupy_packages, package_problems\n"
        "print(json.dumps([cupy_packages(), cuda_of_cupy(), list(package_problems(*json.loads(sys.argv[1])))]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, json.dumps([cuda])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT)))},
        cwd=folders[0],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bindings(folder, version):
    install(folder, "cuda-bindings", version, "cuda/bindings")


def test_no_metadata_but_cupys_is_read(tmp_path):
    """A folder may hold hundreds of distributions."""
    install(tmp_path, "cupy-cuda13x", "14.2.0", "cupy")
    (tmp_path / "other-1.0.dist-info" / "METADATA").mkdir(parents=True)
    assert found(tmp_path)[0] == {"cupy-cuda13x": "14.2.0"}


def test_one_cupy_that_fits_the_driver_is_no_problem(tmp_path):
    install(tmp_path, "cupy-cuda13x", "14.2.0", "cupy")
    install(tmp_path, "cupy-xarray", "0.1.4", "cupy_xarray")
    bindings(tmp_path, "13.5.0")
    for cuda in ("13.0", None):
        assert found(tmp_path, cuda=cuda) == [{"cupy-cuda13x": "14.2.0"}, 13, []]


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_two_cupys_in_one_folder_are_a_problem_that_says_what_to_do(tmp_path, cuda):
    install(tmp_path, "cupy-cuda12x", "14.2.0", "cupy")
    install(tmp_path, "cupy-cuda13x", "14.2.0", "cupy")
    bindings(tmp_path, "13.5.0")
    _, _, (problem,) = found(tmp_path, cuda=cuda)
    assert "are in one folder" in problem
    assert problem.endswith("run `pip uninstall cupy-cuda12x cupy-cuda13x`, then `pip install 'mltune-gpu[cuda13]'`")


def test_a_cupy_that_another_folder_hides_does_no_harm(tmp_path):
    install(tmp_path / "first", "cupy-cuda13x", "14.2.0", "cupy")
    bindings(tmp_path / "first", "13.5.0")
    install(tmp_path / "second", "cupy-cuda12x", "13.3.0", "cupy")
    cupys, _, problems = found(tmp_path / "first", tmp_path / "second", cuda="13.0")
    assert (cupys, problems) == ({"cupy-cuda13x": "14.2.0"}, [])


def test_files_that_uninstalling_another_cupy_took_are_missed(tmp_path):
    install(tmp_path, "cupy-cuda13x", "14.2.0")
    _, _, (problem,) = found(tmp_path)
    assert "the files of cupy-cuda13x are gone" in problem
    assert "`pip uninstall cupy-cuda13x`" in problem


def test_packages_for_a_newer_cuda_than_the_drivers_are_problems(tmp_path):
    install(tmp_path, "cupy-cuda13x", "14.2.0", "cupy")
    bindings(tmp_path, "13.0.3")
    _, _, problems = found(tmp_path, cuda="12.8")
    assert [problem.partition(", newer")[0] for problem in problems] == [
        "cupy-cuda13x is for CUDA 13",
        "cuda-bindings is for CUDA 13",
    ]
    assert all("newer than 12.8 of the driver" in text and text.endswith("[cuda12]'`") for text in problems)


def test_packages_for_an_older_cuda_than_the_drivers_are_none(tmp_path):
    install(tmp_path, "cupy-cuda12x", "13.6.0", "cupy")
    bindings(tmp_path, "12.9.4")
    assert found(tmp_path, cuda="13.2")[2] == []


def test_a_missing_package_is_a_problem_only_with_a_driver(tmp_path):
    assert found(tmp_path) == [{}, None, []]
    _, _, (problem,) = found(tmp_path, cuda="12.4")
    assert "not installed: CuPy, cuda-bindings" in problem
    assert "run `pip install 'mltune-gpu[cuda12]'`" in problem


def test_the_extras_are_those_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    for cuda in (None, 12, 13):
        name, _, option = extra(cuda).strip("'").partition("[")
        assert (name, option.removesuffix("]") in project["optional-dependencies"]) == (DISTRIBUTION, True)


def test_another_distribution_called_mltune_in_the_same_folder_is_told(tmp_path):
    """Of a copy of the package, as it lies in an environment; and without it there is no word, nor any metadata."""
    shutil.copytree(ROOT / "mltune", tmp_path / "mltune", ignore=shutil.ignore_patterns("__pycache__"))
    script = "from mltune.device.packages import mixed_installation; print(mixed_installation())"

    def said():
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    assert said() == ""
    install(tmp_path, "mltune", "0.2.1")
    assert "run `pip uninstall mltune mltune-gpu`" in said()


def test_versions_are_told_without_metadata_of_mltune(tmp_path):
    """Mltune runs from a folder that was never installed."""
    script = (
        "import importlib.metadata as m\n"
        "from mltune.records.versions import __version__, installed_versions\n"
        "assert not [d for d in m.distributions() if d.name.startswith('mltune')]\n"
        "assert installed_versions() == {'mltune': __version__}"
    )
    packages = [str(Path(path).resolve()) for path in sys.path if path and "site-packages" not in path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert importlib.metadata.version("numpy"), "the metadata of others are there"
