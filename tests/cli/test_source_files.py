"""What somebody with a ``.cu`` file types first: each command makes a bundle of it, or says which command does."""

import json

import pytest

from tests import needs
from tests.cli.program import answer, assert_refused, command
from tests.kernel.test_draft import PRODUCT

SCALE = """#define BLOCK 128
extern "C" __global__ void scale(float* out, const float* in, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) out[i] = 2 * in[i];
}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    (tmp_path / "my product.cu").write_text(PRODUCT.replace("int M,", "int flags, int M,"))
    return tmp_path


@needs.nvrtc
def test_a_kernel_that_is_plain_can_be_checked_at_once(folder):
    document = answer("init", "--from", "scale.cu", "scale", cwd=folder)
    assert (document["kernel"], document["notes"]) == ("scale", [])
    checked = command(*document["next"][0].split()[1:], "--time", "5m", "--json", cwd=folder)
    assert (checked.returncode, json.loads(checked.stdout)["passed"]) == (0, True), checked.stdout


def test_what_is_to_be_filled_in_is_said_by_init_and_by_check(folder):
    said = command("init", "--from", "my product.cu", "product", cwd=folder)
    line = 'product/kernel.toml is to be filled in at 1 line: line 18: flags = { dtype = "int32", value = "FILL IN" }'
    assert said.returncode == 0
    assert line in said.stdout
    assert_refused(command("check", "product", cwd=folder), line)


@pytest.mark.parametrize(
    "words", [("tune",), ("check",), ("space",), ("tune", "sgemm", "--kernel"), ("gate", "scale.cu")], ids=" ".join
)
def test_a_source_is_answered_with_the_command_that_makes_a_bundle(words, folder):
    assert_refused(command(*words, "scale.cu", cwd=folder), "mltune init --from scale.cu scale")


def test_the_command_quotes_the_name_of_a_file(folder):
    assert_refused(command("tune", "my product.cu", cwd=folder), "mltune init --from 'my product.cu' 'my product'")


@pytest.mark.parametrize("words", [("tune",), ("check",), ("gate", "scale.cu")], ids=" ".join)
def test_a_source_that_is_not_there_is_said(words, folder):
    assert_refused(command(*words, "scael.cu", cwd=folder), "scael.cu" if words[0] != "gate" else "scale.cu")


def test_the_source_of_a_bundle_is_answered_with_its_folder(folder):
    answer("init", "blur", cwd=folder)
    assert_refused(command("tune", "blur/kernel.cu", cwd=folder), "name its folder, blur")


def test_a_problem_where_a_kernel_is_asked_for_is_answered_with_kernels():
    assert_refused(command("space", "sgemm"), "sgemm is a problem, not a kernel", "gemm_simt")
    assert_refused(command("check", "hgemm"), "hgemm is a problem, not a kernel", "gemm_wgmma")


def test_extents_of_a_gemm_by_name_are_answered_with_their_options():
    assert_refused(command("tune", "sgemm", "--size", "M=512"), "size cannot be {'M': 512}", "--m 512")


def test_a_kernel_of_recordings_alone_is_answered_with_its_replay():
    assert_refused(command("tune", "triton_fp8_matmul"), "can only be replayed", "--device replay:h100-fp8-matmul")


def test_a_prediction_fits_a_narrow_terminal():
    said = command("predict", "sgemm", "--gpu", "h200", "--top", "2", COLUMNS="80")
    assert "BLK_M=" in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_the_gate_takes_the_launch_of_the_first_source(folder):
    answer("init", "--from", "scale.cu", "scale", cwd=folder)
    (folder / "new.cu").write_text(SCALE.replace("2 * in[i]", "in[i] + in[i]"))
    for words in (("gate", "scale/kernel.cu", "new.cu"), ("gate", "scale.cu", "new.cu", "--kernel", "scale")):
        assert "init --from" not in command(*words, "--device", "cuda:63", cwd=folder).stderr


def test_a_spent_budget_is_said(folder):
    words = ("tune", "--device", "replay:h200-sgemm-nt-4096-random", "--search", "random", "--no-skip", "--run", "run")
    for _ in range(2):
        said = command(*words, "--trials", "16", cwd=folder)
        assert "the budget is spent; the same command with --run run and more --trials or --time goes on" in said.stderr
