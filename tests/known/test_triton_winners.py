"""Winners of Triton's kernels in a folder, and calls of programs: merged, and nothing else taken."""

import json
import multiprocessing
import os
import pickle
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from entries import entry

from mltune.device.known import H200
from mltune.errors import MltuneError, WisdomError
from mltune.known.entry import Gpu
from mltune.known.triton_calls import MAX_BYTES, read_programs, record_of, write_program, write_record
from mltune.known.triton_winners import RECORD, export_winners, import_winners
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import locked

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
    assert export_winners(wisdom, folder) == ({OTHER: 1, FILE: 2}, 0)
    assert sorted(path.name for path in folder.iterdir()) == [OTHER, FILE]
    assert import_winners(folder, tmp_path / "other.json") == ({OTHER: 1, FILE: 2}, 0)
    assert not list(tmp_path.glob("*.calls"))
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
    assert export_winners(wisdom, folder, "NVIDIA H200") == ({FILE: 3}, 0)
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
    paths = []
    for process in range(4):
        sizes = [f"[{process}, {size}]" for size in range(20)]
        Wisdom(winner(size=size) for size in sizes).add_to(path := tmp_path / f"{process}.json")
        write_program(path, program(f"{process}"))
        paths.append(path)
    together(export_winners, [(path, folder) for path in paths])
    assert Wisdom.load(folder / FILE) == Wisdom(chain.from_iterable(map(Wisdom.load, paths)))
    assert sorted(path.name for path in folder.iterdir()) == [FILE, RECORD]
    assert import_winners(folder, tmp_path / "all.json")[1] == 4


def together(function, calls):
    """Call a function in processes that begin at the same time."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=function, args=arguments) for arguments in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0


def program(*kernels, n=4096, **arguments):
    """Return the calls of a program."""
    return [(f"library:{kernel}", {"x": {"dtype": "torch.bfloat16"}, "n": n, **arguments}) for kernel in kernels]


class TestPrograms:
    """The calls of programs, which are carried with the winners."""

    @pytest.fixture
    def mine(self, tmp_path):
        """Return the path of another wisdom, which does not exist."""
        return tmp_path / "mine" / "wisdom.json"

    def test_what_is_exported_is_what_is_imported(self, wisdom, folder, mine):
        programs = [program("first", "second"), program("third")]
        for calls in programs:
            write_program(wisdom, calls)
        for _ in range(2):
            assert export_winners(wisdom, folder) == ({OTHER: 1, FILE: 2}, 2)
            assert import_winners(folder, mine) == ({OTHER: 1, FILE: 2}, 2)
            assert sorted(path.name for path in folder.iterdir()) == [OTHER, FILE, RECORD]
            assert read_programs(mine) == read_programs(wisdom) == programs
            files = [(folder / RECORD).read_bytes(), *(path.read_bytes() for path in mine.parent.iterdir())]
        export_winners(mine, folder)
        assert files == [(folder / RECORD).read_bytes(), *(path.read_bytes() for path in mine.parent.iterdir())]

    def test_those_of_one_gpu_take_all_programs_along(self, wisdom, folder):
        write_program(wisdom, program("first"))
        assert export_winners(wisdom, folder, "NVIDIA H200") == ({FILE: 2}, 1)

    def test_programs_of_the_wisdom_stay_in_both_directions(self, wisdom, folder, mine):
        theirs = program("first", "second"), program("third"), program("fourth", "fifth")
        for calls in theirs:
            write_program(wisdom, calls)
        export_winners(wisdom, folder)
        own = program("first", n=1), program("third", n=1), program("sixth", n=1)
        for calls in own:
            write_program(mine, calls)
        assert import_winners(folder, mine)[1] == 3
        assert read_programs(mine) == [theirs[0], theirs[2], *own]
        Wisdom([winner()]).add_to(mine)
        assert export_winners(mine, folder) == ({FILE: 2, OTHER: 1}, 5)
        assert read_programs(folder / RECORD.removesuffix(".calls")) == [theirs[0], theirs[2], *own]

    def test_where_there_is_no_room_own_programs_stay_and_the_others_are_not_counted(self, wisdom, folder, mine):
        for number in range(5):
            write_program(wisdom, program(f"theirs_{number}"))
        export_winners(wisdom, folder)
        for number in range(7):
            write_program(mine, program(f"own_{number}"))
        own = read_programs(mine)
        for _ in range(2):
            assert import_winners(folder, mine)[1] == 1
            assert read_programs(mine) == [program("theirs_4"), *own]

    def test_a_record_of_the_largest_size_leaves_own_programs(self, wisdom, folder, mine):
        write_program(wisdom, program("theirs", text="x" * (MAX_BYTES - 200)))
        export_winners(wisdom, folder)
        for number in range(2):
            write_program(mine, program(f"own_{number}", text="é" * 100))
        own = read_programs(mine)
        assert import_winners(folder, mine)[1] == 0
        assert read_programs(mine) == own
        assert len(own) == 2

    def test_processes_that_import_at_the_same_time_lose_nothing(self, tmp_path, mine):
        folders = [tmp_path / f"folder_{number}" for number in range(2)]
        for number, folder in enumerate(folders):
            path = tmp_path / f"{number}.json"
            Wisdom([winner(size=f"[{number}]")]).add_to(path)
            for part in range(3):
                write_program(path, program(f"kernel_{number}_{part}"))
            export_winners(path, folder)
        write_program(mine, program("own"))
        together(import_winners, [(folder, mine) for folder in folders])
        assert len(Wisdom.load(mine)) == 2
        kernels = [dict(calls).keys() for calls in read_programs(mine)]
        assert len(kernels) == 7
        assert kernels[-1] == {"library:own"}

    @pytest.mark.parametrize(
        ("put", "fact"),
        [
            (lambda path: path.write_text("{"), "Expecting property name"),
            (lambda path: path.write_bytes(pickle.dumps({"format": 1, "programs": []})), "codec can't decode"),
            (
                lambda path: path.write_bytes(bytes(MAX_BYTES + 1)),
                "has 1048577 bytes, of which at most 1048576 are read",
            ),
            (lambda path: path.write_text("[" * 100_000), "more than 32 levels"),
            (lambda path: path.write_text("[]"), "the document"),
            (lambda path: path.write_text('{"programs": []}'), "format is missing"),
            (lambda path: path.write_text('{"format": 1}'), "programs is missing"),
            (lambda path: path.write_text('{"format": 2, "programs": []}'), "only 1 is known here: update mltune"),
            (lambda path: path.write_text('{"format": 1, "programs": 3}'), "must be a list"),
            (lambda path: path.write_text('{"format": 1, "programs": [[]]}'), "must not be empty"),
            (lambda path: path.write_text('{"format": 1, "programs": [["ab"]]}'), "must be a list"),
            (lambda path: path.write_text('{"format": 1, "programs": [[[3, {}]]]}'), "cannot be 3: it must be text"),
            (lambda path: path.write_text('{"format": 1, "programs": [[["a", []]]]}'), "must be a table"),
            (lambda path: write(path, [program("a")] * 9), "must have at most 8 items"),
            (lambda path: write(path, [program("a") * 65]), "must have at most 64 items"),
            (lambda path: write(path, [[("a", dict.fromkeys(map(str, range(257))))]]), "must have at most 256 items"),
            (lambda path: write(path, [program("a", n=2**64)]), "it may have 64 bits"),
            (lambda path: write(path, [[["a" * 99, 3]] * 9] * 8), "; and "),
            (Path.mkdir, "a directory, and only regular files are opened"),
            (os.mkfifo, "a FIFO, and only regular files are opened"),
        ],
    )
    @pytest.mark.parametrize("of", ["folder", "wisdom"])
    def test_a_damaged_record_is_refused_before_anything_is_written(self, put, fact, of, wisdom, folder, mine):
        write_program(wisdom, program("first"))
        export_winners(wisdom, folder)
        import_winners(folder, mine)
        write_program(mine, program("own"))
        damaged = {"folder": folder / RECORD, "wisdom": mine.with_name("wisdom.json.calls")}[of]
        damaged.unlink()
        put(damaged)
        Wisdom([winner(16, size="[9]")]).add_to(mine)
        before = state(folder, mine.parent)
        for call in (lambda: import_winners(folder, mine), lambda: export_winners(mine, folder)):
            with pytest.raises(WisdomError, match="is no record of calls of Triton's kernels: ") as refused:
                call()
            assert fact in str(refused.value)
            assert str(damaged) in str(refused.value)
            assert len(str(refused.value)) < 1500
            assert str(refused.value).isprintable()
        assert state(folder, mine.parent) == before

    @pytest.mark.parametrize("content", ['{"format": 1, "programs": []}', "secret"])
    def test_nothing_behind_a_link_is_read_or_written(self, content, wisdom, folder, mine, tmp_path):
        write_program(wisdom, program("first"))
        export_winners(wisdom, folder)
        (elsewhere := tmp_path / "elsewhere").mkdir()
        (elsewhere / "file").write_text(content)
        (folder / RECORD).unlink()
        (folder / RECORD).symlink_to(elsewhere / "file")
        before = state(folder, elsewhere)
        for call in (lambda: import_winners(folder, mine), lambda: export_winners(wisdom, folder)):
            with pytest.raises(WisdomError, match=r"programs.calls is a link to .*, and no link is followed there"):
                call()
        assert state(folder, elsewhere) == before
        assert not mine.exists()

    def test_a_record_with_damaged_winners_beside_it_is_not_taken(self, wisdom, folder, mine):
        write_program(wisdom, program("first"))
        export_winners(wisdom, folder)
        (folder / FILE).write_text("{")
        with pytest.raises(WisdomError, match="is no wisdom of mltune"):
            import_winners(folder, mine)
        assert not mine.parent.exists()

    def test_a_damaged_wisdom_gets_no_record(self, wisdom, folder, mine):
        write_program(wisdom, program("first"))
        export_winners(wisdom, folder)
        mine.parent.mkdir()
        mine.write_text("{")
        with pytest.raises(WisdomError, match="is no wisdom of mltune"):
            import_winners(folder, mine)
        assert not read_programs(mine)
        assert mine.read_text() == "{"

    def test_a_full_disk_leaves_what_was_there(self, wisdom, folder, mine):
        write_program(wisdom, program("first", text="x" * 50_000))
        export_winners(wisdom, folder)
        write_program(mine, program("own"))
        write_program(wisdom, program("first", text="y" * 50_000))
        own, there = read_programs(mine), (folder / RECORD).read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        try:
            for call in (lambda: import_winners(folder, mine), lambda: export_winners(wisdom, folder)):
                with pytest.raises(WisdomError, match=r"\.calls cannot be written: file too large"):
                    call()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (read_programs(mine), (folder / RECORD).read_bytes()) == (own, there)
        assert sorted(path.name for path in folder.iterdir()) == [OTHER, FILE, RECORD]

    def test_a_program_waits_for_an_import_but_not_for_long(self, mine):
        with locked(mine):
            write_program(mine, program("first"))  # which goes on after a second
        assert not read_programs(mine)
        with ThreadPoolExecutor() as pool:
            with locked(mine):
                writing = pool.submit(write_program, mine, program("second"))
                time.sleep(0.2)
                write_record(record_of(mine), [program("imported")], [])
            writing.result()
        assert read_programs(mine) == [program("imported"), program("second")]


def write(path, programs):
    path.write_text(json.dumps({"format": 1, "programs": programs}))


def state(*folders):
    """Return what is in folders, but locks: kinds, and contents of files."""
    paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix != ".lock"]
    return [(path, path.lstat().st_mode, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths]
