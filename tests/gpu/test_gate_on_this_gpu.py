"""The gate on a GPU: a kernel against itself and against a slower one, and versions that do not work."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import mltune
from mltune.api.tuning import tune
from mltune.device.facts import Device
from mltune.errors import UsageError

pytestmark = pytest.mark.gpu

SOURCE = """
extern "C" __global__ void chain(float* out, float one, float zero) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  float value = out[at];
#pragma unroll 100
  for (int step = 0; step < LENGTH; step++) value = fmaf(value, one, zero);
  out[at] = value;
}
"""
BUNDLE = """
[kernel]
name = "chain"
problem = "arrays"
source = "chain.cu"
entry = "chain"
[arguments]
out = { dtype = "float32", shape = ["132 * 256"], role = "inout", initial = "uniform" }
one = { dtype = "float32", value = 1.0 }
zero = { dtype = "float32", value = 0.0 }
[parameters]
LENGTH = [100000, 102000, 98000]
[launch]
block = ["256"]
grid = ["132"]
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return the folder of a kernel whose time is that of its length."""
    folder = tmp_path / "chain"
    folder.mkdir()
    (folder / "chain.cu").write_text(SOURCE)
    (folder / "kernel.toml").write_text(BUNDLE)
    return folder


def changed(bundle: Path, old: str, new: str) -> Path:
    file = bundle.parent / "changed.cu"
    file.write_text(SOURCE.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("length", "verdict", "ratio"), [(100000, "equal", 1.0), (102000, "slower", 1.02), (98000, "faster", 0.98)]
)
def test_a_length_that_is_known_has_the_verdict_that_is_known(
    bundle: Path, length: int, verdict: str, ratio: float
) -> None:
    new = changed(bundle, "step < LENGTH", f"step < {length}")
    found = mltune.gate(bundle, new, kernel=bundle, explain=True, time="30s")
    assert found.verdict == verdict, found.summary
    assert found.ratio is not None
    assert found.ratio.low - 0.003 <= ratio <= found.ratio.high + 0.003
    assert found.facts[0]["registers"] > 0
    assert found.pairs >= 32


def test_a_built_in_kernel_equals_itself_five_times() -> None:
    found = [mltune.gate("reduction", "reduction", size={"n": 2**24}, seed=seed, time="20s") for seed in range(5)]
    assert [one.verdict for one in found] == ["equal"] * 5, [one.summary for one in found]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "words"),
    [
        ("out[at] = value;", "out[at] = value + 1;", "wrong", "wrong_result"),
        ("out[at] = value;", "out[at] = value; out[(1LL << 40) + at] = 1;", "failed", "crashed"),
        ("out[at] = value;", "while (one == 1.0f) *(volatile float*)(out + at) = value;", "failed", "timeout"),
        ("float value", "flout value", "failed", "compile_error"),
        ("out[at] = value;", "asm volatile(\"trap;\");", "failed", "crashed"),
    ],
)  # fmt: skip
def test_a_new_version_that_does_not_work(bundle: Path, old: str, new: str, verdict: str, words: str) -> None:
    found = mltune.gate(bundle, changed(bundle, old, new), kernel=bundle)
    assert found.verdict == verdict, found.summary
    assert words in found.detail


def test_an_old_version_that_does_not_work_is_refused(bundle: Path) -> None:
    with pytest.raises(UsageError):
        mltune.gate(changed(bundle, "out[at] = value;", 'asm volatile("trap;");'), bundle, kernel=bundle)


def test_a_winner_is_compared_with_its_bundle_and_with_a_revision(tmp_path: Path, device: Device) -> None:
    run = tmp_path / "run"
    result = tune("sgemm", size=512, kernel="gemm_shared", trials=24, run=run, wisdom="none", progress=None)
    config: Any = result.header.labelled(result.best_record.configuration) if result.best_record else {}
    names = {name: int(value) for name, value in config.items() if isinstance(value, int)}
    own = mltune.gate(run / "winner", run / "winner", time="30s", explain=True)
    assert own.verdict == "equal", own.summary
    assert own.problem == "sgemm NT 512"
    known = mltune.load_kernel("gemm_shared").all_parameters
    given = {name: value for name, value in names.items() if name in known}
    bundled = mltune.gate(run / "winner", "gemm_shared", config=given, within=0.05, time="30s")
    assert bundled.verdict in ("equal", "slower"), bundled.summary  # compiler parameters are those of the winner alone
    default = mltune.gate("gemm_naive", run / "winner", time="30s")
    assert default.verdict == "faster", default.summary


def test_a_winner_of_another_kernel_is_compared_with_the_answer_of_its_bundle(tmp_path: Path, device: Device) -> None:
    size = {"n": 2**24}
    tune("reduction", size=size, trials=24, run=tmp_path / "run", wisdom="none", progress=None)
    winner = tmp_path / "run" / "winner"
    own = mltune.gate(winner, winner, kernel="reduction", time="30s")
    assert (own.verdict, own.problem) == ("equal", f"reduction {size['n']}"), own.summary
    found = mltune.gate("reduction", winner, time="30s")
    assert found.passed, found.summary


def test_the_command_compares_a_revision_in_git(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mltune.cli import main

    top = bundle.parent
    person = ["-c", "user.name=x", "-c", "user.email=x"]
    for command in (["init", "-q"], ["add", "."], [*person, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=top, check=True)
    (bundle / "chain.cu").write_text(SOURCE.replace("step < LENGTH", "step < LENGTH + LENGTH / 20"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        with pytest.raises(SystemExit) as ended:
            main(["gate", "HEAD:chain", "chain", "--junit", "gate.xml"])
    assert ended.value.code == 3, capsys.readouterr()
    assert b"<failure" in (top / "gate.xml").read_bytes()


def test_a_library_is_compared_with_itself(tmp_path: Path, device: Device) -> None:
    asked = {"operation": "sgemm", "trans": "NN", "kernel": ["gemm_simt"], "trials": 60, "tuned": 2, "timed": 4}
    spec = {"library": asked, "sizes": {"ranges": {name: [256, 1024] for name in "mnk"}}}
    folder = tmp_path / "sgemm_nn"
    mltune.build_library(spec, folder, run=tmp_path / "run", wisdom="none", progress=None)
    found = mltune.gate(folder, folder, size=700, time="30s")
    assert found.verdict == "equal", found.summary
    assert found.problem == "sgemm NN 700"
