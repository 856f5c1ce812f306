"""``mltune triton export`` and ``import`` as separate processes."""

import json

import pytest

from mltune.device.known import H200
from mltune.known.entry import Entry, Gpu
from mltune.known.triton_calls import read_programs, write_program
from mltune.known.wisdom import Wisdom
from tests.cli.program import answer, command

WINNER = Entry(
    kernel="library.softmax",
    source_hash="ab" * 32,
    problem={"kind": "recorded", "name": "triton-softmax", "flops": 1, "arithmetic": "fp32", "values": {}, "size": "1"},
    device=Gpu.of(H200),
    driver="13.0",
    configuration={"BLOCK": 128, "num_warps": 4},
    measured_at="2026-11-22T01:00:00Z",
    median_s=2e-3,
    low_s=1.9e-3,
    high_s=2.1e-3,
    versions={"triton": "3.6.0"},
)


@pytest.fixture
def wisdom(tmp_path):
    Wisdom([WINNER]).add_to(path := tmp_path / "wisdom.json")
    for kernel in ("softmax", "layer_norm"):
        write_program(path, [(f"library:{kernel}", {"x": {"dtype": "torch.float32"}, "n": 4096})])
    return str(path)


def test_winners_and_calls_of_programs_are_carried(wisdom, tmp_path):
    folder, other = tmp_path / "winners", tmp_path / "other.json"
    exported = command("triton", "export", folder, MLTUNE_WISDOM=wisdom)
    file = folder / "NVIDIA_H200_sm_90_132.json"
    assert (exported.stdout, exported.returncode) == (f"written: {file} (1 winner)\ncalls of 2 programs\n", 0)
    assert exported.stderr == f"next: mltune triton import {folder}\n"
    imported = command("triton", "import", folder, MLTUNE_WISDOM=str(other))
    assert imported.stdout == f"{file}: 1 winner\ncalls of 2 programs\nwritten: {other}\n"
    assert read_programs(other) == read_programs(tmp_path / "wisdom.json") != []
    assert answer("wisdom", "show", other)["best"] == answer("wisdom", "show", wisdom)["best"]
    document = answer("triton", "import", folder, "--wisdom", tmp_path / "third.json")
    assert document == {"wisdom": str(tmp_path / "third.json"), "winners": {file.name: 1}, "programs": 2}
    of_a_known_gpu = answer("triton", "export", folder, "--gpu", "h200", MLTUNE_WISDOM=wisdom)
    assert (
        of_a_known_gpu
        == answer("triton", "export", folder, "--gpu", "NVIDIA H200", MLTUNE_WISDOM=wisdom)
        == {
            "folder": str(folder),
            "winners": {file.name: 1},
            "programs": 2,
        }
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("export", "winners", "--gpu", "NVIDIA H201"), "did you mean 'NVIDIA H200'?"),
        (("import", "missing"), "no winners can be read from missing: there is no such file or folder."),
        (("import", "."), "is no wisdom of mltune"),
        (("import", "damaged"), "damaged/programs.calls is no record of calls of triton's kernels: format cannot be 0"),
        (("import",), "a folder that `mltune triton export` wrote"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, part, wisdom, tmp_path):
    (tmp_path / "other.json").write_text(json.dumps([]))
    Wisdom([WINNER]).add_to(tmp_path / "damaged" / "winners.json")
    (tmp_path / "damaged" / "programs.calls").write_text(json.dumps({"format": 0, "programs": []}))
    result = command("triton", *arguments, cwd=tmp_path, MLTUNE_WISDOM=wisdom)
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert part.lower() in result.stderr.lower()
    assert len(result.stderr.splitlines()) == 1
