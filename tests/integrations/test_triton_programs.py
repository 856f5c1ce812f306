"""Triton's tuner in a notebook and in the processes of torchrun, without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RANKS = 2

GPU = f"""
import json, os, sys
sys.path.insert(0, {str(HERE)!r})
import triton
import triton.language as tl
from simulated_gpu import SimulatedGpu, pointer
from triton.runtime.driver import driver
from mltune.device.known import H200
from mltune.integrations.triton import decorator

rank = int(os.environ.get("RANK", 0))  # each has another fastest configuration
decorator.gpu_and_driver = lambda index: (H200, "13.0")
driver._active = SimulatedGpu(lambda meta: 1.0 + abs(meta["BLOCK"] - 128 * 2**rank))
"""

KERNEL = """
@decorator.autotune([triton.Config({"BLOCK": 2**one}) for one in range(5, 12)], key=["n"], compilers=2)
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""

CALL = """
kernel[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](pointer(tl.float32), 4096)
outcome = json.dumps([kernel.best_config.kwargs["BLOCK"], len(kernel.configs_timings)])
"""


@pytest.fixture
def environment(triton, monkeypatch, tmp_path):
    """Give programs an empty cache of kernels and a wisdom of their own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "wisdom.json"))
    monkeypatch.delenv("MLTUNE_EFFORT", raising=False)


def test_in_a_notebook_a_kernel_of_a_cell_is_compiled_in_other_processes(environment):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    check = """
from mltune.integrations.triton.compilers import compilers_of
built = [child.pid for child in compilers_of(2)._children.values()]
print(outcome, len(built), os.getpid() in built)
"""
    cells = [nbformat.v4.new_code_cell(text) for text in (GPU, KERNEL, CALL, check)]
    ran = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=300).execute()
    assert ran.cells[-1].outputs[0].text.strip() == "[128, 7] 2 False"


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("others", marks=pytest.mark.system)])
def test_all_ranks_take_the_choice_of_the_one_that_tuned(environment, tmp_path, launcher):
    program = tmp_path / "program.py"
    keep = 'open(os.environ["OUTCOMES"] + f"/{rank}.json", "w").write(outcome)\n'
    program.write_text(GPU + KERNEL.replace("compilers=2", "compilers=1") + CALL + keep)
    command, given = [sys.executable, str(program)], os.environ | {"OUTCOMES": str(tmp_path)}
    if launcher == "torchrun":
        pytest.importorskip("torch")
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        subprocess.run(command, check=True, timeout=240, capture_output=True, env=given)
    else:
        ranks = [subprocess.Popen(command, env=given | {"RANK": str(rank)}) for rank in range(RANKS)]
        assert [one.wait(240) for one in ranks] == [0] * RANKS
    outcomes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert sorted(measured for _, measured in outcomes) == [1, 7]
    tuned = next(rank for rank, (_, measured) in enumerate(outcomes) if measured == 7)
    assert {block for block, _ in outcomes} == {128 * 2**tuned}
