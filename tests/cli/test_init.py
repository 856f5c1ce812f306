"""The command ``init``: a new bundle that is complete, checked as a user checks it."""

import json

import pytest

from mltune.errors import UsageError
from mltune.kernel.reader import load_kernel, new_bundle
from tests import needs
from tests.cli.program import answer, assert_refused, command


def test_the_new_bundle_loads(tmp_path):
    document = answer("init", "My-Kernel", cwd=tmp_path)

    kernel = load_kernel(tmp_path / "My-Kernel")
    assert document["kernel"] == kernel.name == "my_kernel"
    assert document["next"] == ["mltune check My-Kernel", "mltune tune My-Kernel"]
    assert list(kernel.space.parameters) == ["block_size", "elements"]
    problem = kernel.arrays.problem({"n": 1000})
    assert [one.name for one in problem.arguments] == ["out", "x", "y", "scale", "n"]
    assert problem.bytes == 12_000
    assert [check.variables["n"] for check in problem.checks] == [1, 100_003]


@needs.nvrtc
def test_the_commands_that_it_prints_find_nothing_wrong(tmp_path):
    lines = command("init", "transpose", cwd=tmp_path).stdout.splitlines()
    assert lines[1:] == ["then:", "mltune check ./transpose", "mltune tune ./transpose"]

    checked = command(*lines[2].split()[1:], "--time", "5m", "--json", cwd=tmp_path)

    document = json.loads(checked.stdout)
    assert (checked.returncode, document["passed"], document["valid"]) == (0, True, 20), checked.stdout
    assert {build["state"] for build in document["builds"]} == {"ok"}


def test_a_folder_with_files_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    assert_refused(command("init", "mine", cwd=tmp_path), "mine holds files", "another name")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_file_and_a_link_to_nowhere_are_refused(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="is something else"):
            new_bundle(tmp_path / name)
    assert (tmp_path / "file").read_text() == "kept"


def test_an_empty_folder_and_the_working_directory_are_filled(tmp_path):
    assert answer("init", ".", cwd=tmp_path)["files"] == ["kernel.cu", "kernel.toml"]
    load_kernel(tmp_path)


@pytest.mark.parametrize(
    ("folder", "name"), [("x", "x"), ("Größe", "gr_e"), ("3d", "kernel_3d"), ("a" * 90, "a" * 64), ("_a", "a")]
)
def test_the_name_is_made_from_that_of_the_folder(folder, name, tmp_path):
    assert new_bundle(tmp_path / folder) == name
    assert load_kernel(tmp_path / folder).name == name


@pytest.mark.parametrize("arguments", [("init",), ("init", ""), ("init", "a", "b")])
def test_misuse_is_one_line(arguments):
    assert_refused(command(*arguments))
