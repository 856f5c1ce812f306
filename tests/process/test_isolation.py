"""Processes run nothing that lies in the working directory."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mltune.measure.compiler import Source
from mltune.process.child import Child
from tests.environment import importing

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "open({marker!r}, 'a').write(__name__ + '\\n')\n"
MODULES = ("ctypes.py", "json.py", "numpy.py", "socket.py", "multiprocessing/__init__.py", "sklearn/__init__.py")
COMPARE = (
    "compare --datasets h200-dgemm-nt-4096-random --strategies random --evaluations 10 --seeds 1 --jobs 1 "
    "--output ../out"
)
SOURCE = Source('extern "C" __global__ void entry() {}', "entry", ("--gpu-architecture=sm_90", "--ptxas-options=-v"))
TARGETS = {
    "compiler": ("mltune.measure.compiler:make_compiler", (SOURCE, 4 << 30)),
    "own": ("tests.process.deeds:make_length", ()),
}


@pytest.fixture
def hostile(tmp_path):
    """Return a folder of modules that leave their names in the file ``executed`` beside it."""
    folder = tmp_path / "hostile"
    for module in (*MODULES, "mltune/__init__.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(HOSTILE.format(marker=str(tmp_path / "executed")))
    return folder


def executed(hostile):
    marker = hostile.with_name("executed")
    return marker.read_text().split() if marker.exists() else []


@pytest.mark.parametrize(("target", "entry"), [("compiler", ""), ("own", ""), ("own", "."), ("own", None)], ids=str)
def test_a_child_imports_nothing_from_the_working_directory(hostile, monkeypatch, target, entry):
    monkeypatch.chdir(hostile)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if entry is not None:
        monkeypatch.syspath_prepend(entry)
    child = Child(*TARGETS[target])
    assert child.call("", 60) == 0 if target == "own" else child.call("", 60).registers > 0
    child.kill()
    assert executed(hostile) == []


def test_a_child_imports_the_package_of_its_parent_and_what_its_program_names(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    (hostile / "named.py").write_text("def make():\n    import mltune\n    return lambda request: mltune.__file__\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(hostile)])  # the user's own program trusts the folder
    child = Child("named:make")
    assert child.call("where", 20) == str(ROOT / "mltune" / "__init__.py")
    child.kill()


@pytest.mark.parametrize(
    ("start", "command"),
    [(["-P", "-c", "from mltune.cli import main; main()"], COMPARE), (["-m", "mltune"], "datasets")],
    ids=["program", "module"],
)
def test_a_command_runs_nothing_from_the_working_directory(hostile, start, command):
    if "-m" in start:
        shutil.rmtree(hostile / "mltune")  # Python itself looks there for what follows -m
    done = subprocess.run(
        [sys.executable, *start, *command.split()],
        cwd=hostile,
        env=importing(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert executed(hostile) == []
