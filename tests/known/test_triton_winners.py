"""Winners of Triton's kernels in a folder: one file for each GPU, merged, and nothing else taken."""

import json
import os
from itertools import chain

import pytest
from entries import entry

from mltune.device.known import H200
from mltune.errors import MltuneError
from mltune.known.entry import Gpu
from mltune.known.triton_winners import export_winners, import_winners
from mltune.known.wisdom import Wisdom

PROBLEM = {"kind": "recorded", "name": "triton-softmax", "flops": 1, "arithmetic": "fp32", "values": {}, "size": "[1]"}
FILE = "NVIDIA_H200_sm_90_132.json"


OTHER = "NVIDIA_H100_sm_90_114.json"


def winner(tile=64, median_s=2e-3, size="[1]", **device):
    gpu = {**Gpu.of(H200).model_dump(), **device}
    return entry(tile, median_s, problem={**PROBLEM, "size": size}, device=gpu, versions={"triton": "3.6.0"})


@pytest.fixture
def wisdom(tmp_path):
    """Return the path of a wisdom with a kernel at two sizes, a slower configuration, another GPU, and a GEMM."""
    entries = winner(), winner(32, 3e-3), winner(size="[2]"), winner(name="NVIDIA H100", sm_count=114), entry()
    Wisdom(entries).add_to(path := tmp_path / "wisdom.json")
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "winners"


def test_what_is_exported_is_what_is_imported(wisdom, folder, tmp_path):
    assert export_winners(wisdom, folder) == {OTHER: 1, FILE: 2}
    assert sorted(path.name for path in folder.iterdir()) == [OTHER, FILE]
    assert import_winners(folder, tmp_path / "other.json") == {OTHER: 1, FILE: 2}
    best = [known for known in Wisdom.load(wisdom).best if known.problem.get("kind") == "recorded"]
    assert Wisdom.load(tmp_path / "other.json") == Wisdom(best)


def test_a_file_is_a_wisdom_that_a_program_can_be_given(wisdom, folder):
    export_winners(wisdom, folder, "NVIDIA H200")
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert len(Wisdom.load(folder / FILE)) == 2
    first = (folder / FILE).read_bytes()
    export_winners(wisdom, folder, "NVIDIA H200")
    assert (folder / FILE).read_bytes() == first


def test_winners_of_others_stay_and_of_one_key_the_better_stays(wisdom, folder, tmp_path):
    Wisdom([winner(16, 1e-3), winner(8, 1e-3, size="[3]")]).add_to(tmp_path / "theirs.json")
    export_winners(tmp_path / "theirs.json", folder)
    assert export_winners(wisdom, folder, "NVIDIA H200") == {FILE: 3}
    assert [known.configuration["TILE"] for known in Wisdom.load(folder / FILE)] == [16, 64, 8]


def test_importing_keeps_what_is_known(wisdom, folder, tmp_path):
    export_winners(wisdom, folder)
    Wisdom([entry(128), winner(16, 1e-3)]).add_to(mine := tmp_path / "mine.json")
    import_winners(folder, mine)
    entries = Wisdom.load(mine)
    assert len(entries) == 5
    assert {known.configuration["TILE"] for known in entries.best if known.problem.get("kind") != "recorded"} == {128}


@pytest.mark.parametrize(
    ("gpu", "fact"),
    [(None, "no winners of Triton's kernels; tune a program first."), ("NVIDIA H20", "did you mean 'NVIDIA H200'?")],
)
def test_nothing_to_export(gpu, fact, wisdom, folder, tmp_path):
    if gpu is None:
        Wisdom([entry()]).add_to(wisdom := tmp_path / "of_gemm.json")
    with pytest.raises(MltuneError) as refused:
        export_winners(wisdom, folder, gpu)
    assert str(refused.value).endswith(fact)
    assert not folder.exists()


def _not_json(path):
    path.write_text("{")


def _of_a_gemm(path):
    document = json.loads(path.read_text())
    document["entries"].append(entry().to_json())
    path.write_text(json.dumps(document))


def _a_link(path):
    path.rename(path.with_suffix(".kept"))
    path.symlink_to(path.with_suffix(".kept"))


def _a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (_not_json, "is no wisdom of mltune:"),
        (_of_a_gemm, "entry 3 of .* is of toy, not of a kernel of Triton; `mltune wisdom merge`"),
        (_a_link, "link"),
        (_a_pipe, "is no wisdom of mltune: .* is a FIFO, and only regular files are opened"),
    ],
)
def test_a_folder_with_anything_else_is_refused_as_a_whole(damage, fact, wisdom, folder, tmp_path):
    export_winners(wisdom, folder)
    damage(folder / FILE)
    before = os.lstat(folder / FILE)
    for call in (lambda: import_winners(folder, tmp_path / "new.json"), lambda: export_winners(wisdom, folder)):
        with pytest.raises(MltuneError, match=fact) as refused:
            call()
        assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "new.json").exists()
    assert os.lstat(folder / FILE) == before


def test_a_folder_that_is_none(wisdom, folder, tmp_path):
    folder.mkdir()
    (file := tmp_path / "file").touch()
    calls = [
        (lambda: import_winners(tmp_path / "missing", wisdom), "there is no such file or folder"),
        (lambda: import_winners(file, wisdom), "there is a file where a folder must be"),
        (lambda: export_winners(wisdom, file), "there is a file where a folder must be"),
        (lambda: import_winners(folder, wisdom), r"has no files of winners: it is a folder of 1 to 1000 files"),
    ]
    for call, fact in calls:
        with pytest.raises(MltuneError, match=fact):
            call()


def test_files_without_end(folder, wisdom):
    folder.mkdir()
    for number in range(1001):
        (folder / f"{number}.json").touch()
    with pytest.raises(MltuneError, match="has too many files"):
        import_winners(folder, wisdom)


@pytest.mark.nightly
def test_two_processes_export_into_one_folder(folder, tmp_path):
    import multiprocessing

    paths = []
    for process in range(4):
        sizes = [f"[{process}, {size}]" for size in range(20)]
        Wisdom(winner(size=size) for size in sizes).add_to(path := tmp_path / f"{process}.json")
        paths.append(path)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=export_winners, args=(path, folder)) for path in paths]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    assert Wisdom.load(folder / FILE) == Wisdom(chain.from_iterable(map(Wisdom.load, paths)))
    assert [path.name for path in folder.iterdir()] == [FILE]
