"""Processes run nothing that lies in the working directory."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mltune.measure.compiler import CudaSource
from mltune.process.child import Child
from tests.environment import importing
from tests.planted import executed, plant

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "compare --datasets convolution_w6600 --strategies random --evaluations 10 --seeds 1 --jobs 1 --out ../out/c",
    "tune --device replay:convolution_w6600 --trials 20 --run ../out/new",
    "show ../run",
    "show ../run --dataset ../out/exported",
    "report ../run --out ../out/report",
    "run ../plan.toml --run ../out/campaign",
    "plan ../plan.toml",
    "train h200-transpose-8192x8192-random --out ../out/model",
    "datasets",
    "datasets export convolution_w6600 ../out/cache.json --format kernel-tuner",
    "device h200",
    "space gemm_simt",
    "check transpose --time 5m",
    "bound sgemm --gpu h200 --size 512",
    "predict sgemm --gpu h200 --size 512",
    "wisdom show ../wisdom.json",
    "init ../out/bundle",
    *(f"{name} --help" for name in ("sweep", "dashboard", "cluster check", "wisdom merge", "datasets import")),
)
PLAN = """
[plan]
title = "One problem"
budget = "16 trials"
minimum = "16 trials"

[[problems]]
datasets = ["convolution_w6600"]
"""
SOURCE = CudaSource(
    'extern "C" __global__ void entry() {}', "entry", ("--gpu-architecture=sm_90", "--ptxas-options=-v")
)
TARGETS = {
    "compiler": ("mltune.measure.compiler:make_compiler", (SOURCE, 4 << 30)),
    "own": ("tests.process.deeds:make_length", ()),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a folder with a module for every name that can be imported here."""
    folder = plant(tmp_path_factory.mktemp("planted") / "hostile")
    (folder.parent / "plan.toml").write_text(PLAN)
    (folder.parent / "wisdom.json").write_text('{"format": 1, "entries": []}')
    (folder.parent / "mltune").write_text("from mltune.cli import main\nif __name__ == '__main__':\n    main()\n")
    shutil.copytree(ROOT / "tests" / "golden" / "run-format-3", folder.parent / "run")
    return folder


@pytest.mark.parametrize(("target", "entry"), [("compiler", ""), ("own", ""), ("own", "."), ("own", None)], ids=str)
def test_a_child_imports_nothing_from_the_working_directory(hostile, monkeypatch, target, entry):
    monkeypatch.chdir(hostile)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if entry is not None:
        monkeypatch.syspath_prepend(entry)
    child = Child(*TARGETS[target])
    assert child.call("", 60) == 0 if target == "own" else child.call(("", ()), 60).registers > 0
    child.kill()
    assert executed(hostile) == []


def test_a_child_imports_the_package_of_its_parent_and_what_its_program_names(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    (hostile / "named.py").write_text("def make():\n    import mltune\n    return lambda request: mltune.__file__\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(hostile)])  # the user's own program trusts the folder
    child = Child("named:make")
    assert child.call("where", 20) == str(ROOT / "mltune" / "__init__.py")
    child.kill()


def run(start, command, folder):
    """Run a command in a folder, whose modules it must not execute; return what it printed."""
    environment = importing(OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(folder.parent / "cache"))
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *start, *command.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert executed(folder) == []
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.sampled(1, system=2, nightly=99)
def test_a_command_runs_nothing_from_the_working_directory(hostile, command):
    """Nor does a process that it starts."""
    done = run(["../mltune"], command, hostile)
    assert done.returncode == 0 or (command.startswith("check") and "NVRTC" in done.stderr), done.stderr


PROBE = "import os, sys; open(os.environ['PROBED'], 'w').write(' '.join(sys.modules))\n"


@pytest.mark.parametrize("words", [["-m", "mltune"], ["-Wignore", "-um", "mltune"], ["-mmltune"]], ids=" ".join)
@pytest.mark.sampled(1, nightly=99)
def test_the_module_runs_nothing_from_the_working_directory(tmp_path, words):
    """Python itself looks there for what follows -m, and for some modules that it imports before."""
    (tmp_path / "probe").mkdir()
    for name, text in (("__init__", PROBE), ("__main__", "")):
        (tmp_path / "probe" / f"{name}.py").write_text(text)
    environment = importing(PROBED=str(tmp_path / "probed"))
    environment.pop("PYTHONSAFEPATH", None)
    subprocess.run([sys.executable, "-m", "probe"], cwd=tmp_path, env=environment, check=True)
    early = (tmp_path / "probed").read_text().split()
    assert "warnings" in early
    folder = plant(tmp_path / "hostile")
    for name in {"mltune", *early} & {path.stem for path in folder.iterdir()}:
        (folder / f"{name}.py").unlink()
    assert run(words, "device h200", folder).returncode == 0


def test_the_module_runs_nothing_at_all_from_the_working_directory_with_a_safe_path(hostile):
    assert run(["-P", "-m", "mltune"], "device h200", hostile).returncode == 0


def test_a_module_of_a_user_that_imports_the_package_keeps_its_neighbours(tmp_path):
    (tmp_path / "my_mltune").mkdir()
    for name, text in (("__init__", "import mltune\n"), ("__main__", "import neighbour\n")):
        (tmp_path / "my_mltune" / f"{name}.py").write_text(text)
    (tmp_path / "neighbour.py").write_text("")
    subprocess.run([sys.executable, "-m", "my_mltune"], cwd=tmp_path, env=importing(), check=True)
