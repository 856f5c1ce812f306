"""The libraries that this environment takes, whatever they are."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.errors import DeviceError
from mltune.measure.compiler import check_fits_driver, loaded_library, nvrtc_version
from mltune.measure.libraries import find_libraries
from tests.environment import ROOT, importing

pytestmark = pytest.mark.system


def test_nvrtc_is_told_with_the_file_that_was_loaded():
    libraries, problems = find_libraries()
    assert [library.name for library in libraries[:3]] == ["NVIDIA driver", "NVRTC", "cuBLAS"]
    nvrtc = libraries[1]
    assert nvrtc.version == nvrtc_version()
    assert Path(nvrtc.path).name.startswith("libnvrtc.so.")
    assert Path(nvrtc.path).is_file()
    bindings = next(library for library in libraries if library.name == "cuda-bindings")
    assert bindings.version
    assert Path(bindings.path).is_file()
    assert problems == []


def test_a_library_that_is_not_loaded_has_no_path():
    assert loaded_library("nosuchlibrary") == ""


def test_a_driver_loads_machine_code_of_its_own_and_of_older_major_versions():
    major = int(nvrtc_version().partition(".")[0])
    check_fits_driver(f"{major}.0")
    check_fits_driver(f"{major + 1}.4")
    with pytest.raises(
        DeviceError, match=rf"NVRTC {nvrtc_version()} .*libnvrtc.* than CUDA {major - 1}.9 of the driver"
    ):
        check_fits_driver(f"{major - 1}.9")


def test_the_command_tells_two_cupys_and_that_they_cannot_be_imported(tmp_path):
    for name in ("cupy-cuda12x", "cupy-cuda13x"):
        information = tmp_path / f"{name}-14.2.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n")
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy/__init__.py").write_text("raise ImportError('these are\\n\\nmixed files')")
    done = subprocess.run(
        [sys.executable, "-m", "mltune", "device"],
        cwd=ROOT,
        env=importing(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "problem: cupy-cuda12x and cupy-cuda13x are in one" in done.stdout
    assert "run `pip uninstall cupy-cuda12x cupy-cuda13x`" in done.stdout
    assert "problem: cuBLAS cannot be loaded (these are mixed files)" in done.stdout
