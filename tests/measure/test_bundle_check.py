"""The check of a bundle, with the real NVRTC where it is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mltune
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.bundle_check import BUILDS, BundleCheck, check_bundle
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState
from tests import needs
from tests.cli import program
from tests.environment import ROOT, importing
from tests.hostile.base import ARRAYS_BUNDLE, ARRAYS_SOURCE
from tests.hostile.kernels import BROKEN, ONES, REFERENCE, Changes, break_bundle, npy

DOCUMENT = """
[kernel]
name = "small"
source = "small.cu"
entry = "small"
headers = ["tile.cuh"]
problem = "gemm"
precisions = ["d"]
[parameters]
block_size_x = [32, 64, 128]
width = [1, 2, 4]
[resources]
threads = "block_size_x"
shared_bytes = "8 * width"
[launch]
block = ["block_size_x"]
grid = ["ceil_div(m, block_size_x)"]
"""
ACCESS = """[access.loads]
memory = "global"
count = 1
bytes = "12 * width - 8"
lanes = [["warp_size", 4]]
[launch]"""
HEADER = "__device__ int tile() { return width; }\n"
SOURCE = """#include "tile.cuh"
extern "C" __global__ void small(long long m, long long n, long long k, double alpha, const double* A, long long lda,
    const double* B, long long ldb, double beta, double* out, long long) { out[threadIdx.x] = tile() + block_size_x; }
"""


def bundle(folder: Path, *changes: tuple[str, str]) -> Path:
    files = {"kernel.toml": DOCUMENT, "small.cu": SOURCE, "tile.cuh": HEADER}
    for old, new in changes:
        assert any(old in text for text in files.values())
        files = {name: text.replace(old, new) for name, text in files.items()}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def checked(folder: Path) -> BundleCheck:
    return check_bundle(PlacedKernel(load_kernel(folder), parse_problem("dgemm", size=512), H200), build_s=300.0)


def command(*arguments: object, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mltune", *map(str, arguments)],
        env=importing(path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@needs.nvrtc
def test_a_sound_bundle_passes(tmp_path: Path) -> None:
    check = checked(bundle(tmp_path))
    assert check.passed
    assert (check.valid, check.sampled, check.faults, check.not_built) == (9, 9, (), "")
    assert len({tuple(configuration.items()) for configuration, _ in check.builds}) == BUILDS
    assert all(build.registers > 0 for _, build in check.builds)
    assert not any(build.cached for _, build in check.builds)


@needs.nvrtc
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("return width", "return breadth"), "tile.cuh(1)"),
        (("tile() +", "tile() ++;"), "kernel.cu(3)"),
        (('entry = "small"', 'entry = "smell"'), "'smell'"),
        (('headers = ["tile.cuh"]', ""), "headers"),
        (('#include "tile.cuh"', '#include "tile.cuh"\n#include <missing.h>'), 'open source file "missing.h"'),
        (("out[threadIdx.x]", "__shared__ int s[20000]; s[m] = 1; out[s[n]]"), "shared"),
    ],
)
@pytest.mark.sampled(0, system=3, nightly=99)
def test_a_bundle_that_cannot_be_compiled_fails(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    check = checked(bundle(tmp_path, change))
    assert not check.passed
    assert not check.faults
    assert {build.state for _, build in check.builds} == {TrialState.COMPILE_ERROR}
    assert words in check.builds[0][1].detail


@pytest.mark.parametrize(
    ("change", "words", "share"),
    [
        (('"ceil_div(m, block_size_x)"', '"1/0"'), "`1/0` is undefined", 1),
        (('"ceil_div(m, block_size_x)"', '"-m"'), "a grid has from 1 to 2147483647 blocks along x", 1),
        (('"ceil_div(m, block_size_x)"', '"m / 3"'), "`m / 3` is", 1),
        (('"ceil_div(m, block_size_x)"', '"1", "65536"'), "from 1 to 65535 blocks along y", 1),
        (
            ('["block_size_x"]', '["block_size_x * 32"]'),
            "a block has from 1 to 1024 threads along x",
            2 / 3,
        ),
        (
            ('["block_size_x"]', '["block_size_x", 32]'),
            "launch.block: `block_size_x` * `32` * `1` is",
            2 / 3,
        ),
        (('["block_size_x"]', '["1", "1", "block_size_x"]'), "from 1 to 64 threads along z", 1 / 3),
        (('"8 * width"', '"90000 * width"'), "a block has from 0 to 232448 bytes", 1 / 3),
        (('"8 * width"', '"-1"'), "resources.shared_bytes", 1),
        (('threads = "block_size_x"', 'threads = "1 // (width - 1)"'), "resources.threads", 1 / 3),
        (('threads = "block_size_x"', 'threads = "2 ** m"'), "exponent", 1),
        (("[launch]", ACCESS), "a lane accesses one of (1, 2, 4, 8, 16, 32, 64, 128) bytes", 1 / 3),
    ],
)
def test_what_is_wrong_with_a_sample_is_a_fault(
    tmp_path: Path, change: tuple[str, str], words: str, share: float
) -> None:
    check = checked(bundle(tmp_path, change, ('source = "small.cu"\nentry = "small"\nheaders = ["tile.cuh"]\n', "")))
    assert not check.passed
    assert words in check.faults[0].reason
    assert check.faults[0].share == pytest.approx(share)
    assert len(check.faults[0].reason) < 700


def test_the_problems_of_the_verification_count_too(tmp_path: Path) -> None:
    check = checked(
        bundle(
            tmp_path,
            ('"ceil_div(m, block_size_x)"', '"m // 512"'),
            ('source = "small.cu"\nentry = "small"\nheaders = ["tile.cuh"]\n', ""),
        )
    )
    assert "`m // 512` is 0" in check.faults[0].reason
    assert "dgemm NT" in check.faults[0].reason


@needs.nvrtc
def test_the_command_prints_the_first_error_and_exits_with_1(tmp_path: Path) -> None:
    sound = program.command("check", "--time", "5m", bundle(tmp_path))
    assert sound.returncode == 0, sound.stderr
    assert "builds: 5 of 5 compiled" in sound.stdout
    broken = program.command("check", bundle(tmp_path, ("return width", "return breadth")))
    assert broken.returncode == 1
    assert 'tile.cuh(1): error: identifier "breadth" is undefined' in broken.stdout
    assert broken.stdout.count("block_size_x=") == 1, "one configuration of each error"
    document = json.loads(program.command("check", "--time", "5m", bundle(tmp_path), "--json").stdout)
    assert document["passed"]
    assert [build["state"] for build in document["builds"]] == ["ok"] * 5


def test_without_nvrtc_the_command_says_that_nothing_was_compiled(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "cuda"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    done = command("check", bundle(tmp_path), path=hidden.parent)
    assert done.returncode == 1, done.stderr
    assert "builds: none: NVRTC, which compiles, cannot be loaded" in done.stdout


def test_the_space_of_a_bundle_that_cannot_be_launched_is_refused(tmp_path: Path) -> None:
    refused = command("space", bundle(tmp_path, ('"ceil_div(m, block_size_x)"', '"1/0"')))
    assert refused.returncode == 2
    assert "kernel.toml: launch.grid" in refused.stderr
    shown = command("space", bundle(tmp_path, ('["block_size_x"]', '["block_size_x * 32"]')))
    assert shown.returncode == 0, shown.stderr
    assert "wrong: launch.block" in shown.stdout


@needs.nvrtc
def test_builds_that_take_too_long_are_left_out_and_one_must_end():

    checked = check_bundle(PlacedKernel(load_kernel("gemm_simt"), parse_problem("sgemm"), H200), 0.01)

    assert {build.state for _, build in checked.builds} == {TrialState.TIMEOUT}
    assert not checked.passed
    assert not checked.faults


def arrays_bundle(folder: Path, changes: Changes = (), files: dict[str, bytes] | None = None) -> Path:
    """Return a bundle with arguments of any kind, a reference and a file of initial values."""
    for name, text in {"kernel.toml": ARRAYS_BUNDLE, "scale.cu": ARRAYS_SOURCE}.items():
        (folder / name).write_text(text)
    break_bundle(folder, changes, {"values": npy(ONES), "answer": npy(ONES)} | (files or {}))
    return folder


FOUND_WITHOUT_COMPILER = ("reference.grid", "reference.answer", "arguments.in.initial", "launch.parameters")


@pytest.mark.parametrize("name", [name for name, (key, *_) in BROKEN.items() if key.startswith(FOUND_WITHOUT_COMPILER)])
def test_what_no_compiler_is_needed_for_is_found(tmp_path: Path, name: str) -> None:
    key, changes, files = BROKEN[name]

    found = mltune.check(arrays_bundle(tmp_path, changes, files), time=0.01)

    assert any(fault.reason.startswith(key) for fault in found.checked.faults)


@needs.nvrtc
@pytest.mark.sampled(0, system=3, nightly=23)
@pytest.mark.parametrize("name", BROKEN)
def test_a_bundle_that_compiles_but_cannot_be_tuned_fails(tmp_path: Path, name: str) -> None:
    key, changes, files = BROKEN[name]

    found = mltune.check(arrays_bundle(tmp_path, changes, files), time=300.0)

    assert not found.passed
    assert {build.state for _, build in found.checked.builds} == {TrialState.OK}
    assert any(fault.reason.startswith(key) for fault in found.checked.faults)


GUARD = ("out[threadIdx.x] =", "#ifndef TILE\n#define TILE 4\n#endif\nout[threadIdx.x] =")
VECTORS = (
    ("(float *out, const float *in, int n)", "(void *__restrict__ o, const float4 *const x, unsigned n)"),
    ("in[n - 1] * WIDTH", "x[0].x * WIDTH"),
    ("out[threadIdx.x] =", "((float *)o)[threadIdx.x] ="),
    ("out[0] = in[n - 1]", ""),
)
COMPLEX = (
    ("{ dtype = \"float32\", shape = ['n'], role", "{ dtype = \"complex64\", shape = ['n'], role"),
    ('answer = { out = "answer.npy" }', ""),
    ("scale(float *out", "scale(float2 *out"),
    ("out[threadIdx.x] =", "out[threadIdx.x].x ="),
)


@needs.nvrtc
@pytest.mark.parametrize("changes", [(), (REFERENCE,), (GUARD,), VECTORS, COMPLEX])
@pytest.mark.sampled(0, system=2, nightly=99)
def test_what_a_source_may_do_passes(tmp_path: Path, changes: Changes) -> None:
    found = mltune.check(arrays_bundle(tmp_path, changes), time=300.0)

    assert found.passed, found.to_json()


@needs.nvrtc
def test_the_facts_of_a_mistake_are_told(tmp_path: Path) -> None:
    wider = mltune.check(arrays_bundle(tmp_path, BROKEN["a-wider-argument"][1]), time=300.0).checked.faults
    defined = mltune.check(arrays_bundle(tmp_path, BROKEN["a-parameter-that-is-defined"][1]), time=300.0).checked.faults

    told = "is an integer of 32 bits, not int64, as the argument n"
    assert [fault.reason for fault in wider] == [f"arguments.n: parameter 3 of scale {told}"]
    assert "kernel.cu(1) defines" in defined[0].reason


@needs.nvrtc
def test_a_bundle_is_checked_for_the_device_that_is_named(tmp_path: Path) -> None:
    folder = bundle(tmp_path, ('"8 * width"', '"50000 * width"'))

    assert [fault.share for fault in mltune.check(folder).checked.faults] == []
    found = mltune.check(folder, gpu="t4", time=300.0)

    assert found.device.architecture == "sm_75"
    assert "from 0 to 65536 bytes" in found.checked.faults[0].reason
    assert {build.state for _, build in found.checked.builds} == {TrialState.OK}
    assert not mltune.check(folder, gpu="mi250x_gcd").passed
