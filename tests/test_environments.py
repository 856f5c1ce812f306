"""Beside PyTorch and CuPy: installing replaces nothing that is there, and mltune says which libraries it takes.

``pytest -m environments --environments-output FILE`` downloads several gigabytes, and writes what
docs/reference/environments.md shows.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.environments, pytest.mark.slow]


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder):
        self.folder = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
        self.pip("install", "--upgrade", "pip")

    def run(self, program, *arguments):
        """Run a program of the environment in an empty folder, and return what it printed."""
        (self.folder / "empty").mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder / "empty",
            env=environment | {"PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pip(self, *arguments):
        return self.run("pip", *arguments)

    def plan(self, *requirements):
        """Return the metadata of the distributions that pip would install."""
        printed = self.pip("install", "--dry-run", "--quiet", "--report", "-", *requirements)
        return [entry["metadata"] for entry in json.loads(printed)["install"]]

    def pretend(self, metadata):
        """Let pip believe that a distribution is installed."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        information = packages / f"{metadata['name'].replace('-', '_')}-{metadata['version']}.dist-info"
        information.mkdir()
        lines = [f"Name: {metadata['name']}", f"Version: {metadata['version']}"]
        lines += [f"Provides-Extra: {extra}" for extra in metadata.get("provides_extra", ())]
        lines += [f"Requires-Dist: {requirement}" for requirement in metadata.get("requires_dist", ())]
        (information / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))

    def versions(self):
        """Return the versions of the installed distributions by name."""
        return {entry["name"]: entry["version"] for entry in json.loads(self.pip("list", "--format", "json"))}


@pytest.fixture
def environment(tmp_path):
    yield Environment(tmp_path)
    shutil.rmtree(tmp_path)  # gigabytes


@pytest.fixture
def note(request):
    """Return a function that appends a paragraph to the file of results."""
    file = request.config.getoption("--environments-output")

    def write(*lines):
        if file:
            with open(file, "a") as results:
                results.write("\n".join((*lines, "", "")))

    return write


@pytest.mark.parametrize(
    ("there", "extra"),
    [
        ((), "cuda13"),
        (("torch",), "cuda13"),
        (("cupy-cuda12x",), "cuda12"),
        (("torch==2.10.0", "cupy-cuda12x"), "cuda12"),
    ],
    ids=["nothing", "torch", "cupy-cuda12x", "torch 2.10 and cupy-cuda12x"],
)
def test_installing_replaces_nothing_and_the_libraries_are_found(environment, wheel, there, extra, note):
    if there:
        environment.pip("install", *there)
    before = environment.versions()
    environment.pip("install", f"{wheel}[{extra}]")
    after = environment.versions()
    assert before.items() <= after.items()
    assert environment.pip("check").strip() == "No broken requirements found."
    assert len([name for name in after if name.startswith("cupy")]) == 1

    document = json.loads(environment.run("mltune", "device", "--json"))
    assert document["problems"] == []
    libraries = {library["name"]: library for library in document["libraries"]}
    for name in ("NVRTC", "cuBLAS"):
        assert libraries[name]["version"].startswith(f"{extra.removeprefix('cuda')}.")
        assert libraries[name]["path"].startswith(str(environment.folder))
    added = sorted(f"{name} {version}" for name, version in after.items() if name not in before)
    note(
        f"{' '.join(there) or 'nothing'}, then [{extra}]",
        f"added: {', '.join(added)}",
        environment.run("mltune", "device"),
    )


@pytest.mark.parametrize(
    ("there", "extra"),
    [
        *((f"torch=={version}", "cuda12") for version in ("2.9.1", "2.10.0")),
        *((f"torch=={version}", "cuda13") for version in ("2.11.0", "2.12.1", "2.14.1", "2.15.0")),
        *((f"jax[cuda{major}]", f"cuda{major}") for major in (12, 13)),
        *((f"cupy-cuda{major}x[ctk]", f"cuda{major}") for major in (12, 13)),
        ("cupy-cuda12x==13.3.0", "cuda12"),
    ],
)
def test_pip_plans_to_replace_nothing(environment, wheel, there, extra, note):
    """Pip sees only metadata here, which suffices for its plans."""
    found = environment.plan(there)
    for metadata in found:
        environment.pretend(metadata)
    planned = environment.plan(f"{wheel}[{extra}]")
    assert not {metadata["name"] for metadata in found} & {metadata["name"] for metadata in planned}
    assert "mltune-gpu" in {metadata["name"] for metadata in planned}
    added = sorted(f"{metadata['name']} {metadata['version']}" for metadata in planned)
    note(f"plan: {there}, then [{extra}]: {', '.join(name for name in added if name.startswith(('cu', 'nvidia')))}")


def test_two_cupys_are_told_until_one_is_left(environment, wheel, note):
    environment.pip("install", str(wheel), "cupy-cuda12x")
    environment.pip("install", "cupy-cuda13x")
    assert environment.pip("check").strip() == "No broken requirements found."
    told = environment.run("mltune", "device")
    assert "cupy-cuda12x and cupy-cuda13x are in one folder" in told
    environment.pip("uninstall", "--yes", "cupy-cuda12x")
    assert "those of cupy-cuda13x are gone" in environment.run("mltune", "device")
    environment.pip("uninstall", "--yes", "cupy-cuda13x")
    environment.pip("install", "cupy-cuda13x")
    assert "are in one folder" not in environment.run("mltune", "device")
    note("cupy-cuda12x, then cupy-cuda13x", told)


def test_a_cupy_and_a_cublas_for_different_versions_of_cuda_are_told(environment, wheel):
    environment.pip("install", str(wheel), "cupy-cuda12x", "nvidia-cublas")
    told = environment.run("mltune", "device")
    assert "cupy-cuda12x cannot use" in told
    assert "run `pip uninstall cupy-cuda12x`, then `pip install 'mltune-gpu[cuda13]'`" in told


def test_a_cupy_that_finds_no_packages_of_nvidia_is_to_be_upgraded(environment, wheel):
    environment.pip("install", "cupy-cuda13x<14")
    environment.pip("install", f"{wheel}[cuda13]")
    told = environment.run("mltune", "device")
    assert "run `pip install --upgrade cupy-cuda13x 'mltune-gpu[cuda13]'`" in told
    environment.pip("install", "--upgrade", "cupy-cuda13x", "mltune-gpu[cuda13]")
    assert json.loads(environment.run("mltune", "device", "--json"))["problems"] == []


def test_another_project_called_mltune_is_told(environment, wheel):
    environment.pip("install", "--no-deps", "mltune")
    environment.pip("install", str(wheel))
    assert "run `pip uninstall mltune mltune-gpu`" in environment.run("mltune", "device")
