"""Files of shapes, winners and kernels as strangers may give them, and two runs in one directory."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import mltune
from mltune.errors import UsageError
from mltune.files.reading import RefusedFileError
from mltune.files.sizes import distinct, sizes_of_csv
from mltune.known.serving import configuration_files, read_winners
from tests.hostile.values import damaged
from tests.triton_file import triton_file

FACTS = {"kernel": "k", "device": "NVIDIA H100 80GB HBM3", "triton": "3.6.0", "dtype": None, "block_shape": []}
BEST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
WINNER = {"configuration": BEST, "median_s": 1e-3, "first_s": None, "measured": 25, "seconds": 3.5}
CELLS = (
    "=1+1",
    "@SUM(A1)",
    '"',
    "",
    " ",
    "1e400",
    "nan",
    "٣",
    "1_000",
    "-5",
    "9" * 400,
    "\x1b[2J",
    "\r",
    "\ud800",
    "0x10",
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1, nightly=99)
def test_hostile_shapes_are_read_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    rng, refused = Random(seed), 0
    for _ in range(300):
        rows = [[rng.choice(("m", "n", "count", "k,k", *CELLS)) for _ in range(3)], *([1, 2, 3] for _ in range(3))]
        rows[rng.randrange(4)][rng.randrange(3)] = rng.choice(CELLS)
        text = "\n".join(",".join(map(str, row)) for row in rows)
        try:
            found = distinct(sizes_of_csv(text, least=0))
            assert all(0 <= value < 2**31 for one in found for _, value in one)
        except ValueError:
            refused += 1
    assert refused > 100
    (tmp_path / "k.py").write_text("")
    for text in (b"\xff\xfe", b"m\n" + b"1" * 200_000, b"m\n\x00\n", b"\x1b[2J\n1\n", b"m;n\n1;2\n"):
        (tmp_path / "shapes.csv").write_bytes(text)
        with pytest.raises(UsageError) as raised:
            mltune.tune_shapes(f"{tmp_path / 'k.py'}:k", tmp_path / "shapes.csv", run=tmp_path / "run")
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 1500


@pytest.mark.parametrize("seed", range(3))
def test_damaged_winners_are_skipped_and_what_remains_can_be_written(seed: int, tmp_path: Path) -> None:
    rng, path, kept = Random(seed), tmp_path / "winners.jsonl", 0
    lines = [json.dumps({"facts": FACTS, "shape": {"M": m, "E": 8, "N": 64}, "found": WINNER}) for m in (1, 2, 4)]
    for _ in range(300):
        path.write_bytes(damaged("\n".join(lines).encode(), rng))
        found = {}
        with contextlib.suppress(RefusedFileError):  # it is not UTF-8
            found = read_winners(tmp_path, FACTS)
        kept += len(found)
        for shape, one in found.items():
            assert 0 < one["median_s"] < 1e300
            with contextlib.suppress(UsageError):
                configuration_files("vllm-moe", [{"shape": dict(shape), **one}], FACTS)
    assert 100 < kept < 900


def test_a_link_in_place_of_the_winners_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "winners.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="no link is followed"):
        read_winners(tmp_path, FACTS)


@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os.kill(os.getpid(), 11)", "signal SIGSEGV"),
        ("import os; os._exit(0)", "exit status 0"),
        ("raise ValueError('\\x1b[2J' * 10**6)", "ValueError"),
        ("def broken(:", "SyntaxError"),
        ("del tuned, arguments", "tuned is not decorated"),
        ("arguments = 5", "is not a callable object"),
        ("SERVING = {'block_shape': 'ab'}", "invalid literal for int()"),
        ("SERVING = 5", "no attribute 'get'"),
        ("driver.set_active(None)", "0 active drivers"),
    ],
)
@pytest.mark.sampled(0, system=4, nightly=99)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(text: str, fact: str, tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("M\n16\n")
    file = triton_file(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        mltune.tune_shapes(f"{file}:tuned", tmp_path / "shapes.csv", run=tmp_path / "run")
    assert fact in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 11_000
    assert not (tmp_path / "run/winners.jsonl").exists()


@pytest.mark.system
def test_two_runs_at_once_leave_whole_lines_and_a_whole_file(tmp_path: Path) -> None:
    file = triton_file(tmp_path)
    (tmp_path / "shapes.csv").write_text("M,E,N\n" + "".join(f"{2**power},8,14336\n" for power in range(13)))
    words = ["tune", f"{file}:tuned", "--shapes", "shapes.csv", "--run", "run", "--export", "vllm-moe=out"]
    both = [
        subprocess.Popen([sys.executable, "-m", "mltune", *words], cwd=tmp_path, stdout=-3, stderr=-3) for _ in range(2)
    ]
    assert [one.wait(300) for one in both] == [0, 0]
    lines = [json.loads(line) for line in (tmp_path / "run/winners.jsonl").read_text().splitlines()]
    assert {line["shape"]["M"] for line in lines} == {2**power for power in range(13)}
    (written,) = (tmp_path / "out").iterdir()
    winners = {line["shape"]["M"]: line["found"]["configuration"] for line in lines}
    assert {int(m): one["BLOCK_SIZE_M"] for m, one in json.loads(written.read_text()).items()} == {
        m: one["BLOCK_SIZE_M"] for m, one in winners.items()
    }


@pytest.mark.system
def test_after_a_kill_the_same_command_goes_on(tmp_path: Path) -> None:
    slow = "quick = arguments\ndef arguments(M, E, N):\n    import time; time.sleep(0.3)\n    return quick(M, E, N)\n"
    file = triton_file(tmp_path, slow)
    (tmp_path / "shapes.csv").write_text("M,E,N\n" + "".join(f"{2**power},8,14336\n" for power in range(8)))
    words = [sys.executable, "-m", "mltune", "tune", f"{file}:tuned", "--shapes", "shapes.csv", "--run", "run"]
    words += ["--export", "vllm-moe=out"]
    winners = tmp_path / "run/winners.jsonl"
    for count in (2, 5):
        running = subprocess.Popen(words, cwd=tmp_path, stdout=-3, stderr=-3)
        while not winners.exists() or winners.read_text().count("\n") < count:
            assert running.poll() is None
            time.sleep(0.02)
        running.kill()
        running.wait()
        (written,) = (tmp_path / "out").glob("E=*.json")
        assert json.loads(written.read_text())  # whole at any time
    kept = winners.read_text()
    with winners.open("a") as file_of_winners:
        file_of_winners.write('{"kernel": "tuned", "sha')  # what a full disk leaves
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    lines = winners.read_text()
    assert lines.startswith(kept)
    found = [json.loads(line)["shape"]["M"] for line in lines.splitlines() if line.endswith("}")]
    assert found == [2**power for power in range(8)]
    assert [*json.loads(written.read_text())] == [str(2**power) for power in range(8)]
