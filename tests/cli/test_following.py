"""The line ``next: mltune ...`` at the end of a command: it names one that can be run as it is."""

import shlex

import pytest

from tests import needs
from tests.cli.program import command

TABLE = "block,tile,time_ms\n16,1,2\n16,2,3\n32,1,1\n32,2,4\n"
IMPORT = "datasets import t.csv --kernel t --gpu unknown --parameters block,tile --time-column time_ms --out"
SEARCH = "--trials 3 --search random --no-skip --no-stop"
SMALL = "--kernel gemm_shared"  # whose space is counted at once
COMPARE = "--strategies random --evaluations 3 --seeds 2 --jobs 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a table of timings, and a dataset of it."""
    made = tmp_path_factory.mktemp("following")
    (made / "t.csv").write_text(TABLE)
    following(f"{IMPORT} mine", made)
    return made


def following(words, folder):
    """Run a command, which must succeed; return the words of the one that it names."""
    done = command(*shlex.split(words), cwd=folder, MLTUNE_WISDOM=str(folder / "wisdom.json"))
    assert done.returncode == 0, done.stderr
    assert "next:" not in done.stdout
    *_, last = done.stderr.splitlines()
    return last.removeprefix("next: mltune ")


@pytest.mark.parametrize(
    ("words", "expected", "cheaper"),
    [
        ("space convolution", "check convolution", None),
        ("space stencil --size nx=64", "check stencil --size nx=64", None),
        ("space gemm_simt --trans TN --precision d", "check gemm_simt --trans TN --precision d", None),
        (
            "bound sgemm --gpu t4 --trans TN --m 64 --n 32 --k 16 --config BLK_M=32",
            "predict sgemm --trans TN --m 64 --n 32 --k 16 --gpu t4",
            SMALL,
        ),
        (
            "bound stencil --size nx=64 --size ny=32 --kernel stencil --gpu h200",
            "predict stencil --size nx=64 --size ny=32 --kernel stencil --gpu h200",
            "",
        ),
        ("predict sgemm --gpu t4 --accuracy fp32 --top 3", "tune sgemm --accuracy fp32", SEARCH),
        ("predict sgemm --gpu t4 --prior none --wisdom none", "tune sgemm --prior none --wisdom none", SEARCH),
        ("predict sgemm --gpu t4 --prior gemm_simt", "tune sgemm --kernel gemm_simt --prior gemm_simt", SEARCH),
        ("device", "device --known", ""),
        ("device --known", "bound sgemm --gpu gtx_680", SMALL),
        ("device a100 --out 'my gpu.json'", "bound sgemm --gpu 'my gpu.json'", SMALL),
        ("datasets", "tune --device replay:xgemm_rtx_2080_ti", SEARCH),
        ("datasets verify convolution_w6600", "compare --seeds 10 --datasets convolution_w6600", COMPARE),
        ("datasets export convolution_w6600 t4.json --format t4", "compare --seeds 10 --table t4.json", COMPARE),
        (f"{IMPORT} imported", "tune --device replay:imported/t.parquet", SEARCH),
        (
            f"compare --table t.csv --parameters block,tile --aggregate --time-column time_ms {COMPARE}",
            "datasets import t.csv --kernel t --gpu unknown --out datasets --parameters block,tile "
            "--time-column time_ms --aggregate",
            "",
        ),
        (f"compare --datasets convolution_w6600,mine {COMPARE}", "tune --device replay:convolution_w6600", SEARCH),
        ("wisdom show", "tune sgemm", SEARCH),
    ],
)
@pytest.mark.sampled(3, nightly=21)
def test_the_command_that_follows_can_be_run(words, expected, cheaper, folder):
    assert following(words, folder) == expected
    if cheaper is not None:
        following(f"{expected} {cheaper}", folder)


@needs.nvrtc
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("check stencil --size nx=64", "tune stencil --size nx=64"),
        ("check gemm_simt --precision d --trans TN", "tune dgemm --trans TN --kernel gemm_simt"),
    ],
)
def test_a_kernel_that_passed_can_be_tuned(words, expected, folder):
    assert following(words, folder) == expected


def test_a_kernel_without_source_is_not_tuned():
    assert "next:" not in command("check", "clblast_xgemm").stderr


def test_a_wisdom_leads_from_command_to_command(folder):
    device = "--device replay:convolution_w6600"
    following(f"tune {device} {SEARCH} --wisdom some.json", folder)
    assert following("wisdom show some.json", folder) == "wisdom check some.json"
    exported = following(f"wisdom check some.json {device}", folder)
    assert exported == "wisdom export --kernel convolution --out exported.json --wisdom some.json"
    assert following(exported, folder) == "wisdom show exported.json"
    assert following("wisdom merge some.json exported.json --out both.json", folder) == "wisdom show both.json"


def test_a_comparison_that_is_not_whole_names_no_other_command(folder):
    done = command("compare", "--datasets", "convolution_w6600", *COMPARE.split(), "--share", "1/2", cwd=folder)
    assert (done.returncode, "next:" in done.stderr) == (0, False)


@pytest.mark.parametrize("words", ["space convolution", "device --known", "bound sgemm --gpu t4", "datasets"])
@pytest.mark.sampled(2, nightly=4)
def test_a_document_is_all(words):
    assert "next:" not in command(*words.split(), "--json").stderr
