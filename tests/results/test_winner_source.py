"""kernel.cu compiles to the machine code that was timed, and its head comment describes it."""

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from winners import PROBLEMS, SMALL, a_winner, built_winner, placed_with

from mltune.kernel.parts import CompilerSpace
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.compiler import CudaSource
from mltune.process.child import Child
from mltune.records.trial import TrialState
from mltune.results.winner_folder import describe, write_winner
from mltune.results.winner_texts import kernel_source, nvcc

DATE = "2025-01-01T00:00:00+00:00"


def compiled(source):
    """Compile a source without any macro option."""
    compiler = Child("mltune.measure.compiler:make_compiler", (source, 4 << 30))
    try:
        return compiler.call(("", ()), 120)
    finally:
        compiler.kill()


@pytest.mark.parametrize("precision", PROBLEMS)
@pytest.mark.sampled(1, nightly=99)
def test_nvrtc_makes_the_very_same_build_of_it_without_any_macro_option(precision):
    winner = built_winner(PROBLEMS[precision])
    options = tuple(describe(winner, {}, DATE)["build"]["options"])
    assert not [option for option in options if option.startswith(("-D", "--define-macro"))]

    again = compiled(CudaSource(kernel_source(winner, DATE), "gemm", options))

    assert again.state is TrialState.OK, again.detail
    assert replace(again, compile_s=0.0) == replace(winner.build, compile_s=0.0)


def test_the_source_of_a_variant_has_its_name_and_its_options():
    winner = built_winner(PROBLEMS["s"], entry_name=1, register_usage_level=8)
    assert winner.build.entry == "gemm_cutlass"
    document, text = describe(winner, {}, DATE), kernel_source(winner, DATE)
    assert document["kernel"]["function"] == "gemm_cutlass"
    assert document["configuration"]["entry_name"] == "cutlass"
    assert "#define gemm gemm_cutlass\n" in text
    assert "--ptxas-options=--register-usage-level=8" in nvcc(winner)

    again = compiled(CudaSource(text, "gemm_cutlass", tuple(document["build"]["options"])))

    assert again.state is TrialState.OK, again.detail
    assert again.cubin == winner.build.cubin


def test_a_file_of_controls_lies_beside_the_source(tmp_path):
    winner = a_winner()
    compiler = CompilerSpace(
        parameters={"apply_controls": (0, 1)},
        labels={"apply_controls": ("", "fast.acf")},
        controls={"fast.acf": b"\x00fast", "other.acf": b"other"},
    )
    kernel = replace(winner.placed.kernel, compiler=compiler).with_variants()
    versions = {"nvrtc": "13.5.37", "nvjitlink": "13.5.38"}
    record = replace(winner.record, configuration=winner.record.configuration | {"apply_controls": 1})
    write_winner(tmp_path / "winner", replace(placed_with(winner, kernel=kernel), record=record, versions=versions))
    document = json.loads((tmp_path / "winner" / "winner.json").read_text())
    assert (tmp_path / "winner" / "fast.acf").read_bytes() == b"\x00fast"
    assert document["sha256"]["fast.acf"] == hashlib.sha256(b"\x00fast").hexdigest()
    assert "other.acf" not in document["sha256"]
    assert document["configuration"]["apply_controls"] == "fast.acf"
    assert document["build"]["compiler"] == "NVRTC 13.5.37 (to PTX), nvJitLink 13.5.38"
    assert document["build"]["options"][-1] == "--ptxas-options=--apply-controls=fast.acf"
    text = (tmp_path / "winner" / "kernel.cu").read_text()
    assert " --ptxas-options=--apply-controls=fast.acf -cubin kernel.cu`; NVRTC 13.5.37 (to PTX), nvJitLink" in text
    assert "--apply-controls=fast.acf" in (tmp_path / "winner" / "README.txt").read_text()

    plain = replace(record, configuration=record.configuration | {"apply_controls": 0})
    write_winner(tmp_path / "winner", replace(placed_with(winner, kernel=kernel), record=plain))
    assert not (tmp_path / "winner" / "fast.acf").exists()


WITH_HEADERS = {
    "kernel.toml": """
[kernel]
name = "small"
problem = "gemm"
precisions = ["s"]
source = "small.cu"
entry = "small"
include = ["include"]
options = ["--use_fast_math"]
[parameters]
TILE = [2, 4]
[launch]
block = [32]
grid = [1]
""",
    "small.cu": """#include <deep/one.cuh>
#include "include/two.h"
extern "C" __global__ void small(float* out) { out[0] = one() + two(); }
""",
    "include/deep/one.cuh": '#pragma once\n#include "../two.h"\n__device__ float one() { return __sinf(two()); }\n',
    "include/two.h": "#pragma once\n__device__ float two() { return TILE; }\n",
}


def test_nvrtc_and_nvcc_compile_it_with_headers_in_folders(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")
    for name, text in WITH_HEADERS.items():
        (tmp_path / "bundle" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bundle" / name).write_text(text)
    kernel, winner = load_kernel(tmp_path / "bundle"), a_winner()
    with NvrtcBuilder(kernel, winner.placed.runnable, "sm_90", workers=1) as builder:
        build = builder.submit({"TILE": 4}).result(300)
    assert build.state is TrialState.OK, build.detail
    record = replace(winner.record, configuration={"TILE": 4})
    winner = replace(placed_with(winner, kernel=kernel), build=build, record=record)
    write_winner(tmp_path / "winner", winner)

    document = json.loads((tmp_path / "winner" / "winner.json").read_text())["build"]
    first = {path: name for name, path in reversed(document["headers"].items())}
    headers = {
        name: (tmp_path / "winner" / path).read_text() if first[path] == name else f'#include "{first[path]}"\n'
        for name, path in document["headers"].items()
    }
    source = CudaSource((tmp_path / "winner" / "kernel.cu").read_text(), "small", tuple(document["options"]), headers)
    again = compiled(source)
    assert again.state is TrialState.OK, again.detail
    assert again.cubin == build.cubin
    if shutil.which("nvcc"):
        command = nvcc(winner).split()
        done = subprocess.run(command, cwd=tmp_path / "winner", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_command_of_nvcc_has_the_options_of_the_kernel():
    winner = a_winner()
    kernel = winner.placed.kernel
    fast = placed_with(winner, kernel=replace(kernel, source=replace(kernel.source, options=("--use_fast_math",))))
    assert "--use_fast_math" in nvcc(fast).split()
    assert "--use_fast_math" not in nvcc(winner).split()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("precision", PROBLEMS)
@pytest.mark.sampled(1, nightly=2)
def test_nvcc_compiles_it_by_the_command_that_stands_in_it(tmp_path, precision):
    winner = a_winner(PROBLEMS[precision])
    (tmp_path / "kernel.cu").write_text(kernel_source(winner, DATE))
    assert f"`{nvcc(winner)}`" in (tmp_path / "kernel.cu").read_text()
    done = subprocess.run(nvcc(winner).split(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_it_sets_every_macro_before_the_source_which_it_leaves_alone():
    winner = a_winner(PROBLEMS["z"])
    head, _, body = kernel_source(winner, DATE).partition(winner.placed.kernel.source.text)
    assert body == ""
    macros = {name: int(value) for name, value in re.findall(r"^#define (\w+) (-?\d+)$", head, re.MULTILINE)}
    compiled = {name: SMALL[name] for name in winner.placed.kernel.space.parameters}
    assert macros == compiled | PROBLEMS["z"].macros()
    for words in ("zgemm CN 64x33x31", "C = alpha A^H B + beta C", "NVIDIA H200 (sm_90)", DATE, "RASTER_GROUP = 2"):
        assert words in head


def test_the_licence_is_told_of_our_own_kernels_only(tmp_path):
    winner = a_winner()
    assert "SPDX-License-Identifier: Apache-2.0" in kernel_source(winner, DATE)
    foreign = placed_with(winner, kernel=replace(winner.placed.kernel, folder=tmp_path))
    assert "Apache" not in kernel_source(foreign, DATE)
    assert str(tmp_path) not in kernel_source(foreign, DATE)


@pytest.mark.parametrize("name", ["a card\n#error", "a card\\", "a card\u2028#error"])
def test_no_name_leads_out_of_its_comment(name):
    winner = a_winner()
    source = kernel_source(placed_with(winner, device=replace(winner.placed.device, name=name)), DATE)
    head = source.partition(winner.placed.kernel.source.text)[0]
    assert all(line.startswith(("//", "#define ")) for line in head.splitlines() if line)
    assert not [line for line in head.splitlines() if line.endswith("\\")]
