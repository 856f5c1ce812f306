"""The file of a Triton kernel, as the process that tunes it imports it."""

import pytest

from mltune.process.child import Child
from tests.planted import executed, plant
from tests.triton_file import triton_file

READS = """
import neighbour, numpy, pydoc, warnings, wave
assert neighbour.BLOCKS == (1, 1)
SERVING = {"block_shape": neighbour.BLOCKS}
"""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a module for every name that can be imported here, and a neighbour of the kernel's file."""
    made = plant(tmp_path / "beside")
    (made / "neighbour.py").write_text("BLOCKS = (1, 1)\n")
    return made


def facts_of(file, kernel="tuned"):
    child = Child("mltune.integrations.triton.shape_tuner:make_tuner", (str(file), kernel, ("M",), {"trials": 5}))
    try:
        return child.call(None, 60)
    finally:
        child.kill()


def test_modules_beside_the_file_of_a_kernel_are_not_taken_in_place_of_installed_ones(folder):
    facts = facts_of(triton_file(folder, READS))
    assert facts.get("block_shape") == [1, 1], facts
    assert executed(folder) == []


def test_a_kernel_may_replace_tritons_decorator(tmp_path):
    replaces = "import triton, mltune.integrations.triton\ntriton.autotune = mltune.integrations.triton.autotune\n"
    path = triton_file(tmp_path)
    text = (tmp_path / "kernels.py").read_text()
    (tmp_path / "kernels.py").write_text(replaces + text)
    assert facts_of(path).get("kernel") == "tuned"
