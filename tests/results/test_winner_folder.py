"""A winner's folder contains the timed kernel, is replaced as a whole, and survives kills and full disks."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from winners import PROBLEMS, SMALL, a_winner, placed_with

import mltune
from mltune.device.facts import Device
from mltune.files.owned import WINNER, foreign_in
from mltune.problem.kinds import problem_from_json
from mltune.records.trial import Build, TrialState
from mltune.results import winner_texts
from mltune.results.winner_folder import winner_files, write_folder, write_winner
from tests.environment import importing
from tests.owned_folders import described

DATE = "2025-01-01T00:00:00+00:00"
FILES = {"kernel.cu", "kernel.cubin", "winner.json", "example.py", "example.cpp", "README.txt"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_holds_what_was_timed_and_says_how_to_launch_it(tmp_path):
    winner = a_winner(PROBLEMS["z"])
    write_winner(tmp_path / "run" / "winner", winner)

    held = contents(tmp_path / "run" / "winner")
    document = json.loads(held["winner.json"])
    assert held.keys() == FILES
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["winner"]
    assert held["kernel.cubin"] == winner.build.cubin
    assert document["sha256"] == {
        name: hashlib.sha256(content).hexdigest() for name, content in held.items() if name != "winner.json"
    }
    assert foreign_in(tmp_path / "run" / "winner", WINNER) == ""
    assert document["configuration"] == SMALL
    assert problem_from_json(document["problem"]) == PROBLEMS["z"]
    assert Device.from_json(document["device"]) == winner.placed.device
    launch = document["launch"]
    assert (launch["grid"], launch["block"], launch["shared_bytes"]) == ([4, 1, 1], [64, 1, 1], 3 * 8 * 66 * 16)
    assert [(one["name"], one["type"], one.get("value")) for one in launch["arguments"]] == [
        *(("m", "int64", 64), ("n", "int64", 33), ("k", "int64", 31)),
        ("alpha", "complex128", [0.0, -1.0]),
        *(("A", "pointer to complex128", None), ("lda", "int64", 31)),
        *(("B", "pointer to complex128", None), ("ldb", "int64", 31)),
        ("beta", "complex128", [-0.75, 0.25]),
        *(("C", "pointer to complex128", None), ("ldc", "int64", 80)),
        ("RASTER_GROUP", "int32", 2),
        ("workspace", "pointer to uint8", None),
    ]


def test_the_times_are_those_declared():
    document = json.loads(winner_files(a_winner(), DATE)["winner.json"])

    timing = document["timing"]
    assert (timing["trial"], timing["median_s"], timing["interval_s"]) == (17, 2e-6, [1.9e-6, 2.1e-6])
    assert timing["tflops"] == pytest.approx(2 * 70 * 45 * 37 / 2e-6 / 1e12)
    assert (timing["share_of_reference"], timing["share_of_reference_interval"]) == (1.1, [1.08, 1.12])
    assert timing["ties"] == [{"trial": 12, "ratio": 1.005, "interval": [0.99, 1.02]}]


def test_the_text_says_what_was_measured_and_what_was_not_verified():
    winner = a_winner()
    text = winner_files(winner, DATE)["README.txt"].decode()
    for words in ("sgemm NT 70x45x37 on NVIDIA H200", "median 0.002 ms", "1.100 (1.080 to 1.120)", "trials 12", DATE):
        assert words in text
    assert "NOT" not in text

    alone = replace(winner.declaration, reference=None, finalists=winner.declaration.finalists[:1], verified=False)
    text = winner_files(replace(winner, declaration=alone), DATE)["README.txt"].decode()
    for words in ("cuBLAS was not timed", "nothing else was as fast", "NOT at its full size"):
        assert words in text


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Build(TrialState.OK), "replayed from recorded times: nothing was compiled or verified"),
        (Build(TrialState.TIMEOUT, "the compile did not end within 60 s"), "the compile did not end within 60 s"),
    ],
)
def test_without_machine_code_there_is_the_document_alone_and_it_says_why(tmp_path, build, reason):
    write_winner(tmp_path / "winner", replace(a_winner(), build=build))

    held = contents(tmp_path / "winner")
    document = json.loads(held["winner.json"])
    assert held.keys() == {"winner.json"}
    assert reason in document["lacks_code"]
    assert (document["build"], document["launch"], document["verified"], document["sha256"]) == (None, None, None, {})
    assert document["configuration"] == SMALL
    assert document["timing"]["median_s"] == 2e-6


def test_headers_lie_beside_the_source_that_includes_them():
    winner = a_winner()
    kernel = winner.placed.kernel
    source = replace(kernel.source, headers={"tile.cuh": "// a tile\n"})
    winner = placed_with(winner, kernel=replace(kernel, source=source))
    files = winner_files(winner, DATE)
    assert files["tile.cuh"] == b"// a tile\n"
    assert json.loads(files["winner.json"])["sha256"]["tile.cuh"] == hashlib.sha256(b"// a tile\n").hexdigest()
    assert b" -I. -cubin kernel.cu`" in files["kernel.cu"]


def test_headers_of_folders_lie_in_folders(tmp_path):
    kernel = a_winner().placed.kernel
    source = replace(
        kernel.source,
        headers={"sub/tile.cuh": "// a tile\n", "tile.cuh": '#include "sub/tile.cuh"\n'},
        header_paths={"sub/tile.cuh": "include/sub/tile.cuh", "tile.cuh": "include/sub/tile.cuh"},
        include=("include",),
    )
    write_winner(tmp_path / "winner", placed_with(a_winner(), kernel=replace(kernel, source=source)))
    document = json.loads((tmp_path / "winner" / "winner.json").read_text())
    assert (tmp_path / "winner" / "include" / "sub" / "tile.cuh").read_text() == "// a tile\n"
    assert document["sha256"]["include/sub/tile.cuh"] == hashlib.sha256(b"// a tile\n").hexdigest()
    assert document["build"]["headers"] == source.header_paths
    assert " -I. -Iinclude -cubin kernel.cu" in (tmp_path / "winner" / "README.txt").read_text()


def test_templates_are_in_the_package():
    templates = Path(mltune.__file__).parent / "results" / "templates"
    names = {path.name.removesuffix(".txt") for path in templates.rglob("*") if path.is_file()}
    included = {"usage", "tensor_map.py", "tensor_map.hpp"}
    assert names == {"README.txt", "example.py", "example.cpp", *included}
    assert names - included < FILES


def test_a_kind_without_examples_has_everything_else(monkeypatch, tmp_path):
    (tmp_path / "README.txt.txt").write_text((winner_texts.TEMPLATES / "README.txt.txt").read_text())
    monkeypatch.setattr(winner_texts, "TEMPLATES", tmp_path)
    files = winner_files(a_winner(), DATE)
    assert files.keys() == FILES - {"example.py", "example.cpp"}
    assert "python example.py" not in files["README.txt"].decode()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_folder_of_an_earlier_version_is_recognised(tmp_path, problem):
    """Its list had no texts and examples; one that somebody else wrote is none of them."""
    write_winner(tmp_path, a_winner(PROBLEMS[problem]))
    document = json.loads((tmp_path / "winner.json").read_text())
    for name in ("README.txt", "example.py", "example.cpp"):
        del document["sha256"][name]
    (tmp_path / "winner.json").write_text(json.dumps(document))
    assert foreign_in(tmp_path, WINNER) == ""
    for name in ("README.txt", "example.py", "example.cpp"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text("# mine")
        assert foreign_in(tmp_path, WINNER) == f"{tmp_path / name} is not in the list of winner.json"
        (tmp_path / name).write_bytes(before)


def test_what_a_folder_held_before_is_gone(tmp_path):
    folder = tmp_path / "winner"
    write_folder(folder, described({"one": b"1", "two": b"2"}))
    write_folder(folder, described({"two": b"3"}))
    assert contents(folder) == described({"two": b"3"})
    assert os.listdir(tmp_path) == ["winner"]


def test_a_system_that_cannot_exchange_folders_renames_them(tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # a C library without renameat2
    test_what_a_folder_held_before_is_gone(tmp_path)


WRITER = """
import itertools, sys
from pathlib import Path
from mltune.results.winner_folder import write_folder
from tests.owned_folders import described
for number in itertools.count():
    write_folder(Path(sys.argv[1]), described({name: bytes([number % 256]) * 50_000 for name in "abcdef"}))
    if number == 0:
        print("written", flush=True)
"""


def test_whenever_its_writer_is_killed_the_folder_is_whole(tmp_path):
    folder, moments = tmp_path / "winner", np.random.default_rng(1)
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=importing()) as writer:
            assert writer.stdout.readline() == b"written\n"
            time.sleep(moments.uniform(0, 0.1))
            writer.send_signal(signal.SIGKILL)
        held = contents(folder)
        assert held == described(dict.fromkeys("abcdef", held["a"]))
        assert len(held["a"]) == 50_000


FULL = """
import resource, sys
from pathlib import Path
from mltune.errors import StoreError
from mltune.results.winner_folder import write_folder
from tests.owned_folders import described
folder = Path(sys.argv[1])
write_folder(folder, described({"one": b"1"}))
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    write_folder(folder, described({"one": b"2", "two": bytes(2_000_000)}))
except StoreError as error:
    print(error)
write_folder(folder, described({"one": (folder / "one").read_bytes(), "three": b"3"}))
"""


def check_full(directory: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(directory / "winner"), kind],
        capture_output=True,
        text=True,
        check=False,
        env=importing(),
    )
    assert done.returncode == 0, done.stderr
    assert "make room on the disk" in done.stdout
    assert "make room on the disk" in done.stdout
    assert contents(directory / "winner") == described({"one": b"1", "three": b"3"})
    assert os.listdir(directory) == ["winner"]


def test_a_file_that_may_not_grow_leaves_the_old_folder(tmp_path):
    check_full(tmp_path, "limit")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_a_full_disk_leaves_the_old_folder(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        check_full(tmp_path, "disk")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
