"""Files: found, locked, and refused with a clear error where they are damaged."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from entries import entry, failure

from mltune.errors import WisdomError
from mltune.known import wisdom_file as files
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import default_file, file_of_run
from tests.environment import ROOT, importing


@pytest.fixture
def path(tmp_path):
    return tmp_path / "wisdom.json"


class TestPlace:
    def test_these_tests_use_no_file_of_the_user(self):
        assert default_file() is None

    def test_it_is_in_the_users_data(self, monkeypatch, tmp_path):
        monkeypatch.delenv("MLTUNE_WISDOM")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        assert default_file() == tmp_path / "mltune" / "wisdom.json"
        monkeypatch.setenv("XDG_DATA_HOME", "relative")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_file() == tmp_path / ".local" / "share" / "mltune" / "wisdom.json"

    def test_the_environment_names_it_or_switches_it_off(self, monkeypatch):
        monkeypatch.setenv("MLTUNE_WISDOM", "/my/wisdom.json")
        assert default_file() == Path("/my/wisdom.json")
        monkeypatch.setenv("MLTUNE_WISDOM", "none")
        assert default_file() is None
        assert len(Wisdom.load()) == 0

    def test_a_replay_uses_one_only_when_it_is_named(self, monkeypatch):
        monkeypatch.setenv("MLTUNE_WISDOM", "/my/wisdom.json")
        assert file_of_run("auto", replayed=True) is None
        assert file_of_run("auto", replayed=False) == Path("/my/wisdom.json")
        assert file_of_run("named.json", replayed=True) == Path("named.json")
        assert file_of_run("none", replayed=False) is None


class TestWriting:
    def test_what_is_written_is_read(self, path):
        written = Wisdom([entry(), failure(32)])
        written.save(path)
        assert Wisdom.load(path) == written

    def test_a_missing_file_is_empty(self, path):
        assert len(Wisdom.load(path)) == 0

    def test_a_link_of_the_user_is_followed(self, tmp_path, path):
        real = tmp_path / "dotfiles" / "wisdom.json"
        real.parent.mkdir()
        path.symlink_to(real)
        Wisdom([entry()]).add_to(path)
        assert path.is_symlink()
        assert Wisdom.load(real) == Wisdom([entry()])

    @pytest.mark.parametrize(
        "write", ["one.add_to(path)", "one.save(own, overwrite=True); Wisdom.merge_files([own, path], path)"]
    )
    @pytest.mark.sampled(1, nightly=99)
    def test_concurrent_additions_lose_nothing(self, path, write):
        Wisdom().save(path)
        code = (
            "import sys\n"
            "from entries import entry\n"
            "from mltune.known.wisdom import Wisdom\n"
            "path, own = sys.argv[1], sys.argv[1] + sys.argv[2]\n"
            "for tile in range(10):\n"
            "    one = Wisdom([entry(10 * int(sys.argv[2]) + tile)])\n"
            f"    {write}\n"
        )
        environment = importing(ROOT / "tests/known")
        started = [
            subprocess.Popen([sys.executable, "-c", code, str(path), str(number)], env=environment)
            for number in range(3)
        ]
        assert [process.wait(timeout=300) for process in started] == [0] * 3
        assert len(Wisdom.load(path)) == 30

    def test_a_file_that_another_process_holds_is_not_waited_for_endlessly(self, path, monkeypatch):
        monkeypatch.setattr(files.locked.__wrapped__, "__defaults__", (0.05,))
        for write in (Wisdom([entry()]).add_to, Wisdom([entry()]).save, lambda out: Wisdom.merge_files([], out)):
            with files.locked(path), pytest.raises(WisdomError, match=r"has held .* for [\d.]+ s, .*: process \d+ \("):
                write(path)

    @pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MAX_BYTES"])
    def test_what_could_not_be_read_again_is_not_written(self, path, monkeypatch, limit):
        Wisdom([entry()]).save(path)
        monkeypatch.setattr(files, limit, 1 if limit == "MOST_ENTRIES" else path.stat().st_size)
        with pytest.raises(WisdomError, match="a wisdom has at most"):
            Wisdom([entry(32)]).add_to(path)
        assert Wisdom.load(path) == Wisdom([entry()])

    def test_a_folder_that_cannot_be_written_is_told(self, tmp_path):
        (tmp_path / "file").write_text("")
        for write in (Wisdom([entry()]).save, Wisdom([entry()]).add_to):
            with pytest.raises(WisdomError, match="cannot be written"):
                write(tmp_path / "file" / "wisdom.json")


def mutated(edit):
    document = {"format": 1, "entries": [entry().to_json(), entry(32).to_json()]}
    changed = edit(document)
    return json.dumps(document if changed is None else changed).encode()


def change(*keys, to):
    """Return an edit that replaces the value at some keys of the first entry."""

    def edit(document):
        table = document["entries"][0]
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = copy.deepcopy(to)

    return edit


def remove(*keys):
    def edit(document):
        table = document["entries"][0]
        for key in keys[:-1]:
            table = table[key]
        del table[keys[-1]]

    return edit


GEMM = entry().problem
EDITS = {
    "a list": lambda document: [],
    "a text": lambda document: "wisdom",
    "null": lambda document: [None],
    "no format": lambda document: {"entries": []},
    "an older format": lambda document: {"format": 0, "entries": []},
    "a newer format": lambda document: {"format": 2, "entries": [], "more": 1},
    "a format that is text": lambda document: {"format": "1", "entries": []},
    "no entries": lambda document: {"format": 1},
    "entries that are a table": lambda document: {"format": 1, "entries": {}},
    "an entry that is text": lambda document: {"format": 1, "entries": ["x"]},
    "an unknown key": lambda document: {**document, "code": "import os"},
    "an unknown key of an entry": change("__class__", to="os.system"),
    "a kernel that is a number": change("kernel", to=7),
    "a kernel with an escape sequence": change("kernel", to="\x1b[2Jtoy"),
    "a kernel that is endless": change("kernel", to="x" * 10_000),
    "a kernel of half a character": change("kernel", to="\ud800"),
    "no kernel": remove("kernel"),
    "a hash that is none": change("source_hash", to="../../etc"),
    "a problem that is text": change("problem", to="sgemm"),
    "an unknown kind of problem": change("problem", to={"kind": "os"}),
    "a kind that is a list": change("problem", to={"kind": []}),
    "a problem of nothing": change("problem", to={}),
    "a problem with a negative size": change("problem", "m", to=-4),
    "a problem with a size that is text": change("problem", "m", to="4096"),
    "a problem with an unknown key": change("problem", to={**GEMM, "x": 1}),
    "a problem with an infinite factor": change("problem", "alpha", to=float("inf")),
    "a recorded problem of no name": change("problem", to={"kind": "recorded", "name": "../x"}),
    "an arrays problem of too much memory": change(
        "problem",
        to={
            "kind": "arrays",
            "name": "big",
            "sizes": {},
            "arguments": [{"name": "a", "dtype": "float64", "shape": [2**40, 2**40]}],
        },
    ),
    "a device that is text": change("device", to="H200"),
    "a device without a name": remove("device", "name"),
    "a device with more": change("device", "path", to="/dev/nvidia0"),
    "a negative number of multiprocessors": change("device", "sm_count", to=-1),
    "a driver that is a number": change("driver", to=13.0),
    "no configuration": change("configuration", to={}),
    "a configuration that is a list": change("configuration", to=[1, 2]),
    "a parameter that is a list": change("configuration", "TILE", to=[64]),
    "a parameter that is true": change("configuration", "TILE", to=True),
    "a parameter that is null": change("configuration", "TILE", to=None),
    "a parameter that is huge": change("configuration", "TILE", to=2**60),
    "a parameter that is larger": change("configuration", "TILE", to=10**30),
    "a parameter that is not finite": change("configuration", "TILE", to=float("nan")),
    "a parameter of a strange name": change("configuration", "TILE; rm -rf /", to=1),
    "too many parameters": change("configuration", to={f"P{number}": 1 for number in range(201)}),
    "a time that is text": change("median_s", to="soon"),
    "a time of zero": change("median_s", to=0.0),
    "a negative time": change("median_s", to=-1.0),
    "an infinite time": change("median_s", to=float("inf")),
    "a time that is no number": change("median_s", to=float("nan")),
    "a time outside its interval": change("low_s", to=1.0),
    "an interval that is reversed": change("high_s", to=1e-9),
    "no interval": remove("low_s"),
    "a default that is text": change("default_s", to="fast"),
    "verified that is a number": change("verified", to=1),
    "trials that are negative": change("trials", to=-1),
    "trials that are broken": change("trials", to=1.5),
    "a date that is none": change("measured_at", to="yesterday"),
    "a month that is none": change("measured_at", to="2026-13-01T00:00:00Z"),
    "a failure that has a time": change("failed", to="wrong"),
    "a failure without a reason": lambda document: document["entries"].append(failure().to_json() | {"failed": ""}),
    "versions that are a list": change("versions", to=[]),
    "a version that is a number": change("versions", to={"numpy": 2}),
}
EDITS |= {
    "a hundred thousand bad parameters": change("configuration", to={str(number): [] for number in range(100_000)}),
    "a hundred thousand unknown keys": lambda document: document["entries"][0].update(
        dict.fromkeys(map(str, range(100_000)))
    ),
    "a hundred thousand unknown keys of the file": lambda document: dict.fromkeys(map(str, range(100_000))),
    "a hundred thousand bad entries": lambda document: {"format": 1, "entries": [0] * 100_000},
}
VALID = mutated(lambda document: None)
BYTES = {
    "an empty file": b"",
    "zeros": bytes(1000),
    "half a file": VALID[: len(VALID) // 2],
    "no UTF-8": VALID.replace(b"toy", b"\xff\xfe\xfd"),
    "a deep document": b"[" * 100_000,
    "a deep problem": VALID.replace(b'"alpha": 1.0', b'"alpha": ' + b"[" * 40 + b"]" * 40),
    "a key twice": VALID.replace(b'"kernel"', b'"kernel": "a", "kernel"'),
    "a pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "an endless number": VALID.replace(b"4096", b"9" * 10_000),
    "text after the end": VALID + b"x",
}


@pytest.mark.parametrize("name", [*EDITS, *BYTES])
def test_a_damaged_file_is_refused_in_one_clear_line(name, path):
    path.write_bytes(BYTES[name] if name in BYTES else mutated(EDITS[name]))
    before = path.read_bytes()

    with pytest.raises(WisdomError) as error:
        Wisdom.load(path)
    with pytest.raises(WisdomError):
        Wisdom([entry()]).add_to(path)

    assert str(path) in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1500
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused(path, make):
    make(path)
    with pytest.raises(WisdomError):
        Wisdom.load(path)


def test_an_enormous_file_is_not_read(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(WisdomError, match="bytes, of which"):
        Wisdom.load(path)


def test_the_message_names_the_entry_and_the_law(path):
    path.write_bytes(mutated(change("median_s", to=-1.0)))
    with pytest.raises(WisdomError, match=r"entries 1\.median_s cannot be -1\.0: it must be at least 1e-15"):
        Wisdom.load(path)
