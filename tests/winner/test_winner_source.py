"""kernel.cu compiles to the machine code that was timed, and its head comment describes it."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from winners import PROBLEMS, SMALL, a_winner, built_winner

from mltune.measure.compiler import Source
from mltune.process.child import Child
from mltune.records.trial import TrialState
from mltune.winner.document import describe
from mltune.winner.source import kernel_source, nvcc

DATE = "2025-01-01T00:00:00+00:00"


@pytest.mark.parametrize("precision", PROBLEMS)
def test_nvrtc_makes_the_very_same_build_of_it_without_any_macro_option(precision):
    winner = built_winner(PROBLEMS[precision])
    options = tuple(describe(winner, {}, DATE)["build"]["options"])
    assert not [option for option in options if option.startswith(("-D", "--define-macro"))]

    source = Source(kernel_source(winner, DATE), "gemm", options)
    compiler = Child("mltune.measure.compiler:make_compiler", (source, 4 << 30))
    try:
        again = compiler.call("", 120)
    finally:
        compiler.kill()

    assert again.state is TrialState.OK, again.detail
    assert replace(again, compile_s=0.0) == replace(winner.build, compile_s=0.0)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("precision", PROBLEMS)
def test_nvcc_compiles_it_by_the_command_that_stands_in_it(tmp_path, precision):
    winner = a_winner(PROBLEMS[precision])
    (tmp_path / "kernel.cu").write_text(kernel_source(winner, DATE))
    assert f"`{nvcc(winner)}`" in (tmp_path / "kernel.cu").read_text()
    done = subprocess.run(nvcc(winner).split(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_it_sets_every_macro_before_the_source_which_it_leaves_alone():
    winner = a_winner(PROBLEMS["z"])
    head, _, body = kernel_source(winner, DATE).partition(winner.kernel.source)
    assert body == ""
    macros = {name: int(value) for name, value in re.findall(r"^#define (\w+) (-?\d+)$", head, re.MULTILINE)}
    compiled = {name: SMALL[name] for name in winner.kernel.parameters}
    assert macros == compiled | PROBLEMS["z"].macros()
    for words in ("zgemm CN 64x33x31", "C = alpha A^H B + beta C", "NVIDIA H200 (sm_90)", DATE, "RASTER_GROUP = 2"):
        assert words in head


def test_the_licence_is_told_of_our_own_kernels_only(tmp_path):
    winner = a_winner()
    assert "SPDX-License-Identifier: Apache-2.0" in kernel_source(winner, DATE)
    foreign = replace(winner, kernel=replace(winner.kernel, folder=tmp_path))
    assert "Apache" not in kernel_source(foreign, DATE)
    assert str(tmp_path) not in kernel_source(foreign, DATE)


@pytest.mark.parametrize("name", ["a card\n#error", "a card\\", "a card\u2028#error"])
def test_no_name_leads_out_of_its_comment(name):
    winner = a_winner()
    source = kernel_source(replace(winner, device=replace(winner.device, name=name)), DATE)
    head = source.partition(winner.kernel.source)[0]
    assert all(line.startswith(("//", "#define ")) for line in head.splitlines() if line)
    assert not [line for line in head.splitlines() if line.endswith("\\")]
