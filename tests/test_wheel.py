"""The wheel, installed into a fresh environment outside the checkout, runs the first command of README."""

import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.slow]


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    """Return the folder of the commands of an environment that holds mltune and what it needs, no more."""
    work = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    subprocess.run([work / "venv/bin/pip", "install", "--quiet", wheel], check=True)
    return work / "venv/bin"


def run(installed, cwd, *arguments, program="mltune"):
    """Run an installed program in an empty folder, without a GPU."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [installed / program, *arguments],
        cwd=cwd,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_is_installed_under_its_own_name(installed, tmp_path):
    code = "import mltune, importlib.metadata as m; print(m.version('mltune-gpu') == mltune.__version__)"
    assert run(installed, tmp_path, "-c", code, program="python").stdout == "True\n"
    shown = run(installed, tmp_path, "device")
    assert shown.returncode == 0, shown.stderr
    assert "no GPU found" in shown.stdout
    assert "NVRTC          not found" in shown.stdout
    assert "problem" not in shown.stdout


def test_its_description_has_no_dead_links(wheel):
    """A package index shows the description without the pages and pictures of the repository."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith("METADATA")]
        text = files.read(name).decode()
    assert "mltune finds the fastest version" in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []
    assert "<!--" not in text


def test_the_first_command_replays(installed, tmp_path):
    result = run(installed, tmp_path, "tune", "sgemm", "--trials", "60", "--json")
    assert result.returncode == 0, result.stderr
    assert "replaying timings of sgemm NT 4096 recorded on NVIDIA H200" in result.stderr
    document = json.loads(result.stdout)
    assert document["trials"] == 60
    assert document["best"]["tflops"] > 0


def test_the_folders_are_found_in_the_wheel(installed, tmp_path):
    listed = run(installed, tmp_path, "datasets", "--json")
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)
    counted = run(installed, tmp_path, "space", "gemm_simt", "--json")
    assert counted.returncode == 0, counted.stderr
    assert json.loads(counted.stdout)["valid"] > 1_000_000


def test_the_python_interface_is_typed_and_tunes(installed, tmp_path):
    code = (
        "import mltune, pathlib\n"
        "assert pathlib.Path(mltune.__file__).with_name('py.typed').exists()\n"
        "print(len(mltune.tune(trials=20, device='replay:h200-sgemm-nt-4096-random').records))"
    )
    done = run(installed, tmp_path, "-c", code, program="python")
    assert (done.returncode, done.stdout.strip()) == (0, "20"), done.stderr
