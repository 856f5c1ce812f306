"""A Triton kernel tuned at many shapes, with times that are made up, on a GPU that is not there."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mltune
from mltune.errors import UsageError
from mltune.integrations.triton.shapes import SHAPE_S
from mltune.known.serving import FORMATS
from mltune.process.child import Child
from tests.cli import program
from tests.triton_file import triton_file

pytestmark = pytest.mark.system


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Return a function that tunes at rows of a CSV file, with so few trials that no model is needed."""
    monkeypatch.chdir(tmp_path)
    file = triton_file(tmp_path, "SERVING = {'block_shape': (128, 64)}\n")

    def tuned(csv, kernel="tuned", **options):
        (tmp_path / "shapes.csv").write_text(csv)
        return mltune.tune_shapes(f"{file}:{kernel}", "shapes.csv", **{"trials": 5, **options})

    return tuned


def test_each_shape_has_a_winner_and_the_most_used_is_tuned_first(tune):
    seen = []
    found = tune("M,E,count\n16,4,1\n64,4,5\n", trials=20, progress=seen.append)
    assert [row["shape"]["M"] for row in found["shapes"]] == [64, 16]
    assert seen == found["shapes"]
    for row in found["shapes"]:
        assert row["configuration"]["BLOCK_SIZE_M"] == row["shape"]["M"]
        assert row["configuration"]["num_warps"] == 4
        assert row["measured"] == 20
        assert row["first_s"] is None  # the first configuration fails
        assert row["median_s"] == pytest.approx(1.02e-3)


def test_of_several_launches_the_sum_of_the_times_decides(tune):
    (row,) = tune("M,E\n32,8\n", trials=20)["shapes"]
    assert row["configuration"]["num_stages"] == 2
    assert row["median_s"] == pytest.approx(2.04e-3)


def test_only_so_many_are_measured_and_a_shape_that_fails_costs_that_shape_alone(tune):
    found = tune("M\n13\n14\n15\n16\n")
    assert [row.get("error") for row in found["shapes"]] == [
        "ValueError: an unlucky shape",
        "the worker process died: exit status 3",
        "ZeroDivisionError: division by zero",
        None,
    ]
    assert found["shapes"][-1]["measured"] == 5


def test_a_shape_that_never_ends_is_stopped(tune, monkeypatch):
    call = Child.call

    def called(child, shape, limit_s):
        assert limit_s == SHAPE_S
        return call(child, shape, 2.0 if shape == {"M": 14} else limit_s)  # a busy machine takes long for the other

    monkeypatch.setattr(Child, "call", called)
    path = Path("kernels.py")
    path.write_text(path.read_text().replace("os._exit(3)", "import time; time.sleep(600)"))
    found = tune("M\n14\n16\n")
    assert ["error" in row for row in found["shapes"]] == [True, False]
    assert "no answer" in found["shapes"][0]["error"]


LOSES = """
from mltune.errors import DeviceLostError
quick = arguments
def arguments(M):
    with open("tries", "a") as file:
        file.write("x")
    if os.path.getsize("tries") <= M:
        raise DeviceLostError("an illegal access")
    return quick(M)
"""


@pytest.mark.parametrize(
    ("losses", "is_tuned"), [pytest.param(1, True, marks=pytest.mark.nightly), (3, True), (9, False)]
)
def test_a_shape_is_tried_again_without_a_configuration_that_lost_the_gpu(tune, tmp_path, losses, is_tuned):
    with (tmp_path / "kernels.py").open("a") as file:
        file.write(LOSES)
    (row,) = tune(f"M\n{losses}\n")["shapes"]
    assert row.get("error") == (None if is_tuned else "an illegal access")
    assert (tmp_path / "tries").stat().st_size == min(losses, 3) + 1
    assert "is_known" not in row


def test_a_run_goes_on_with_what_it_lacks(tune):
    first = tune("M\n16\n13\n")
    again = tune("M\n16\n13\n32\n")
    assert again["shapes"][0] == first["shapes"][0]  # with its seconds
    assert "error" in again["shapes"][1]
    assert "configuration" in again["shapes"][2]
    others = tune("M\n16\n", trials=7)
    assert others["shapes"][0]["measured"] == 7  # with other options it is another search


def test_a_kernel_that_changed_is_tuned_anew(tune, tmp_path):
    first = tune("M\n16\n")
    with (tmp_path / "kernels.py").open("a") as file:
        file.write("# changed\n")
    assert tune("M\n16\n")["shapes"][0]["seconds"] != first["shapes"][0]["seconds"]


def test_configurations_are_written_for_vllm_and_sglang(tune, tmp_path):
    found = tune("M,E,N\n1,8,14336\n16,8,14336\n", export={"vllm-moe": "out", "sglang-moe": "out"})
    name = "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3,block_shape=[128,{}64].json"
    folder = f"configs/triton_{found['triton'].replace('.', '_')}"
    assert found["written"] == [f"out/{name.format('')}", f"out/{folder}/{name.format(' ')}"]
    for path in found["written"]:
        written = {int(key): value for key, value in json.loads((tmp_path / path).read_text()).items()}
        winners = {row["shape"]["M"]: row["configuration"] for row in found["shapes"]}
        assert written == {m: {k: v for k, v in one.items() if k != "num_ctas"} for m, one in winners.items()}


def test_what_vllm_does_where_a_shape_failed_is_said(tune):
    shapes = "M,E,N\n1,8,14336\n8,8,14336\n13,8,14336\n"
    failed = tune(shapes, export={"vllm-moe": "out"})
    (notice,) = failed["notices"]
    assert notice.startswith("vllm-moe: M=13 failed, and vLLM takes the configuration of M=8, the nearest in the file")
    time_ms = 1e3 * failed["shapes"][1]["median_s"] * 13 / 8
    assert f"at the rate of M=8 that takes {time_ms:.3g} ms, which is not measured" in notice
    assert tune(shapes)["notices"] == []


def test_the_first_configuration_is_kept_where_a_shape_failed(tune, tmp_path):
    shapes = "M,E,N\n1,8,14336\n13,8,14336\n"
    kept = tune(shapes, export={"vllm-moe": "out", "sglang-moe": "out"}, keep_default=True)
    assert kept["notices"] == []
    for path in kept["written"]:
        rows = json.loads((tmp_path / path).read_text())
        assert [*rows] == ["1", "13"]
        assert (rows["13"]["BLOCK_SIZE_M"], rows["13"]["num_warps"]) == (256, 8)


@pytest.mark.parametrize(
    ("csv", "options", "message"),
    [
        ("M,E\n", {}, "there is no size"),
        ("M,Q\n1,2\n", {}, "cannot be tuned at sizes M, Q: TypeError: got an unexpected keyword argument 'Q'"),
        ("M\n=1+1\n", {}, "in line 2 of a CSV file"),
        ("M\n1\n", {"kernel": "plain"}, "plain is not decorated with autotune"),
        ("M\n1\n", {"kernel": "nothing"}, "nothing is not decorated with autotune"),
        ("M\n1\n", {"trials": 0}, "trials cannot be 0"),
        ("M\n1\n", {"export": {"vllm": "out"}}, f"it is one of {', '.join(FORMATS)}"),
        ("M,E\n1,8\n", {"export": {"vllm-moe": "out"}}, "M, E and N"),
    ],
)
@pytest.mark.sampled(0, system=3, nightly=99)
def test_what_cannot_be_tuned_is_said(tune, csv, options, message):
    with pytest.raises(UsageError) as raised:
        tune(csv, **options)
    assert message in str(raised.value)


def test_a_kernel_is_named_by_its_file(tune):
    for name in ("kernels:tuned", "nothing.py:tuned", "sgemm", "kernels.py", ""):
        with pytest.raises(UsageError, match=r"FILE\.py:KERNEL"):
            mltune.tune_shapes(name, "shapes.csv")


def test_the_command_shows_a_table_and_says_what_failed(tune, tmp_path):
    (tmp_path / "shapes.csv").write_text("M,count\n16,2\n13,1\n")
    words = ["tune", "kernels.py:tuned", "--shapes", "shapes.csv", "--run", "here", "--trials", "5"]
    done = program.command(*words, "--export", "vllm-moe=out", cwd=tmp_path)
    assert done.returncode == 2
    assert "M, E and N" in done.stderr
    done = program.command(*words, "--json", cwd=tmp_path)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert [("error" in row, row["count"]) for row in document["shapes"]] == [(False, 2), (True, 1)]
    assert (tmp_path / "here/winners.jsonl").exists()
    done = program.command(*words, cwd=tmp_path)
    assert "1 of 2 shapes tuned on NVIDIA H100 80GB HBM3" in done.stdout
    assert "ValueError: an unlucky shape" in done.stdout
    assert "BLOCK_SIZE_M=16" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shapes", "shapes.csv", "--no-skip"), "--skip was given beside --shapes"),
        (("--shapes", "shapes.csv", "--m", "5"), "--m was given beside --shapes"),
        (("--export", "vllm-moe=out"), "--export was given without --shapes"),
        (("--keep-default",), "--keep-default was given without --shapes"),
        (("--shapes", "shapes.csv", "--export", "vllm-moe"), "--export vllm-moe= is empty, but it is a path"),
        (("--shapes", ""), "--shapes is empty, but it is a path"),
        ((), "`mltune tune FILE.py:KERNEL --shapes CSV`"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, message, mltune):
    code, _, err = mltune("tune", "kernels.py:tuned", *words)
    assert code == 2
    assert message in err


def test_ctrl_c_ends_the_command_and_says_how_it_goes_on(tune, tmp_path):
    with (tmp_path / "kernels.py").open("a") as file:
        file.write("\ndef arguments(M):\n    import time; time.sleep(0.3)\n    return (M,), 'first', M\n")
    (tmp_path / "shapes.csv").write_text("M\n" + "".join(f"{2**power}\n" for power in range(20)))
    words = ["kernels.py:tuned", "--shapes", "shapes.csv", "--run", "here"]
    running = subprocess.Popen([sys.executable, "-m", "mltune", "tune", *words], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "here/winners.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said.splitlines()[-1] == f"interrupted; resume with: mltune tune {' '.join(words)}"
