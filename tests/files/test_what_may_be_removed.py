"""Every place of the package that writes, replaces or removes files, with what it may touch.

A place that is not in the list fails: whoever adds it says in one sentence what it touches, and limits it to that.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mltune
import mltune.cli
from mltune.cli.application import app

PACKAGE = Path(mltune.__file__).parent

CALLS = {
    *("rmtree", "unlink", "rmdir", "removedirs", "renames", "write_text", "write_bytes", "touch", "truncate"),
    *("ftruncate", "pwrite", "copyfile", "copytree", "copy2", "move", "symlink_to", "hardlink_to", "extractall"),
    *("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "JournalFileBackend", "savefig", "tofile"),
    *("replace_folder_atomically", "write_file_atomically", "write_described", "write_product", "append_line"),
}
"""Functions that write, replace or remove files, or make those that are removed; our own ones included."""

OF_MODULES = {"os": {"remove", "link", "symlink", "open", "write"}, "np": {"save", "savez", "savetxt"}}

ATOMIC = "a file with a random name that it has just made, which gets the name that the caller answers for"
NEW = "a temporary file or folder with a random name, which it removes itself"
OWN_RUN = "a file of mltune in a run directory that is locked, after records/directory.py has looked at it"
PRODUCT = "a file that its content says mltune wrote, or with --overwrite any"
WINNER = "the folder of a winner, if mltune wrote every file in it"
NOTE = "a lock file, which is empty or says which process holds it"
CACHE = "a file of the private cache, under a name that is a hash"

PLACES = {
    "api/datasets.py export_dataset write_file_atomically": "a new file, or with --overwrite any",
    "api/gating.py gate write_product": PRODUCT,
    "api/inventory.py devices write_product": PRODUCT,
    "tuning/revisions.py _copy open": "a new file in the temporary folder of two_versions",
    "tuning/versions.py two_versions TemporaryDirectory": NEW,
    "campaign/cluster/gpu_workers.py named_cluster TemporaryDirectory": NEW,
    "campaign/cluster/remote_slice.py put_files write_file_atomically": OWN_RUN,
    "campaign/cluster/remote_slice.py put_files replace_folder_atomically": WINNER,
    "campaign/cluster/remote_slice.py _scratch TemporaryDirectory": NEW,
    "campaign/products.py claim_directory write_file_atomically": "plan.toml and plan.json of this plan",
    "cli/streams.py prepare open": "/dev/null",
    "cli/streams.py prepare os.open": "/dev/null",
    "comparison/figures.py draw savefig": "memory",
    "comparison/journal.py Journal._append append_line": "the journal of a comparison, which has been read as one",
    "comparison/peers.py _quiet open": "/dev/null",
    "comparison/results.py write_results write_product": PRODUCT,
    "cost/model_file.py save_model np.save": "memory",
    "cost/model_file.py save_model write_described": "the model of a run, or a new one, or with --overwrite any",
    "dataset/dataset.py write_dataset write_described": "a dataset that is new, of this sweep, or with --overwrite any",
    "files/atomic.py write_file_atomically replace": ATOMIC,
    "files/atomic.py write_file_atomically unlink": "the file with a random name that it has made, after an error",
    "files/atomic.py write_product write_file_atomically": PRODUCT,
    "files/atomic.py write_described write_file_atomically": "the description, and a file named by its hash",
    "files/atomic.py write_described replace": "the file that the description is of; the caller answers for both",
    "files/atomic.py append_line os.write": "the end of a file that the caller answers for",
    "files/atomic.py _put rename": "a folder that it has made, and the old one, which gets a random name",
    "files/atomic.py _put rmtree": "the folder with a random name that it has made, after an error",
    "files/atomic.py _kept rename": "the old folder, which gets a name that is seen",
    "files/atomic.py _make_folder rmtree": "the folder with a random name that it has made, after an error",
    "files/atomic.py _write fdopen": "a file that did not exist",
    "files/atomic.py _write os.open": "a file that did not exist",
    "files/atomic.py _remove unlink": "files that the list of an old folder has, with their hashes",
    "files/atomic.py _remove rmdir": "the empty folders of an old folder",
    "files/locks.py note_holder ftruncate": NOTE,
    "files/locks.py note_holder pwrite": NOTE,
    "files/locks.py locked_file truncate": NOTE,
    "files/locks.py locked_file unlink": NOTE,
    "files/reading.py open_regular os.open": "a regular file that is opened, or made to be locked or appended to",
    "integrations/triton/compilers.py prepare TemporaryDirectory": NEW,
    "kernel/kernel_tuner_call.py kernel_of_call TemporaryDirectory": NEW,
    "kernel/python_kernel.py _kept np.save": "a file with a random name in a temporary folder",
    "kernel/python_kernel.py _kept replace": "a file in a temporary folder, under the hash of its content",
    "kernel/reader.py new_bundle write_file_atomically": "a folder that is empty",
    "kernel/reader.py new_bundle replace_folder_atomically": "a folder that does not exist",
    "known/triton_calls.py write_record write_file_atomically": "calls, which only save time, or which were read",
    "known/serving.py Export.write write_file_atomically": "a file of configurations, with what it had for other rows",
    "known/serving.py add_winner append_line": "the winners of shapes in a run directory",
    "known/wisdom_file.py write write_file_atomically": "a wisdom that was read under its lock, with all entries",
    "library/building.py Building._save write_file_atomically": "cross.json of a run directory, which has been read",
    "library/folder.py write_library replace_folder_atomically": "a library, if mltune wrote every file in it; another "
    "folder gets another name with --overwrite",
    "library/folder.py compiled TemporaryDirectory": NEW,
    "library/folder.py compiled write_bytes": "the temporary folder",
    "library/loaded.py _loaded open": "memory",
    "measure/assembler.py in_memory fdopen": "memory",
    "measure/compiler.py make_compiler open": "/proc/self/oom_score_adj",
    "measure/compiler.py _open_no_more_files os.open": "/dev/null",
    "measure/cubin_cache.py CubinCache.get unlink": CACHE,
    "measure/cubin_cache.py CubinCache.put write_file_atomically": CACHE,
    "measure/cubin_cache.py CubinCache._make_room unlink": "files of the private cache with names that the cache gives",
    "measure/machine_code.py disassemble NamedTemporaryFile": NEW,
    "measure/turns.py turn os.open": "the lock of a GPU in the cache, whose content is not changed",
    "process/signals.py Interrupt._give_up os.write": "standard error",
    "records/database.py remember append_line": "the list of databases in the user's folder of data",
    "records/database.py Pointer.write write_file_atomically": OWN_RUN,
    "records/events.py EventLog.write append_line": OWN_RUN,
    "records/file_tables.py _create write_file_atomically": "the store of a run that has none",
    "records/file_tables.py _connected_for_reading TemporaryDirectory": NEW,
    "records/file_tables.py _connected_for_reading copyfile": "the temporary folder",
    "results/tuned_kernel.py load_code NamedTemporaryFile": NEW,
    "results/winner_folder.py write_folder replace_folder_atomically": WINNER,
    "show/report/svg.py finish savefig": "memory",
    "show/report/writing.py copy_winner replace_folder_atomically": WINNER,
    "show/report/writing.py _write write_product": PRODUCT,
    "show/study.py Studies.__init__ TemporaryDirectory": NEW,
    "show/study.py Studies.__init__ touch": "the temporary folder",
    "show/study.py Studies.__init__ JournalFileBackend": "the temporary folder, and the study that it has written",
    "show/study.py Studies.__init__ replace": "optuna.journal, if its content says that mltune wrote it",
    "show/study.py Studies.__init__ unlink": "a link in the place of Optuna's lock",
    "tuning/training.py datasets_of_runs TemporaryDirectory": NEW,
    "tuning/tuned_function.py _runs mkdtemp": "a new folder with a random name, for a user without a folder for caches",
    "tuning/tuned_function.py TunedFunction._tune TemporaryDirectory": NEW,
    "tuning/tuned_function.py TunedFunction._tune rmtree": "a run directory in the cache, named by a hash",
}


def test_every_place_that_writes_or_removes_says_what_it_touches() -> None:
    found = set(places(PACKAGE))
    assert found - PLACES.keys() == set(), "say in PLACES what these may touch, and hold them to it"
    assert PLACES.keys() - found == set(), "these are gone"


def places(package: Path) -> Iterator[str]:
    """Yield the places of a package: file, function and call; the contract suites write for tests alone."""
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] != "testing":
            for function, call in calls(ast.parse(path.read_text())):
                yield f"{path.relative_to(package)} {function} {call}"


def calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{function}.{node.name}".lstrip(".") if is_named else function
        if isinstance(node, ast.Call) and (call := writes(node)):
            yield function or "<module>", call
        yield from calls(node, inner)


def writes(call: ast.Call) -> str:
    """Return the name of a call that may write or remove a file; empty for others."""
    of = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if of in OF_MODULES and name in OF_MODULES[of]:
        return f"{of}.{name}"
    is_of_path = bool(of) and len(call.args) == 1 and not call.keywords  # replace of texts and data classes is not
    if name in CALLS or (name in ("replace", "rename") and is_of_path):
        return name
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    is_for_writing = any(re.fullmatch(r"[rwaxbt+]{1,4}", mode) and set(mode) & set("wax+") for mode in modes)
    return name if name in ("open", "fdopen") and is_for_writing else ""


def test_places_are_seen() -> None:
    code = """
import os, shutil
from pathlib import Path
shutil.rmtree("x")
class Writer:
    def write(self, path: Path) -> None:
        path.write_text("a"), open("name", "w"), path.open(mode="ab"), os.remove("x")
        path.replace("y"), path.rename("y")
        "text".replace("a", "b"), dataclasses.replace(self, a=1), open("name"), open("name", "rb"), [1].remove(1)
"""
    names = ["write_text", "open", "open", "os.remove", "replace", "rename"]
    assert [*calls(ast.parse(code))] == [("<module>", "rmtree"), *(("Writer.write", name) for name in names)]


def test_the_threat_model_says_of_every_command_what_it_writes() -> None:
    page = (PACKAGE.parent / "docs/explanation/threat-model.md").read_text()
    rows = re.findall(r"^\| `mltune ([a-z ]+)` \|(.+)\|(.+)\|(.+)\|$", page, re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted([*commands(app), "datasets"])
    assert all(cell.strip() for row in rows for cell in row)


def commands(group: object, before: str = "") -> Iterator[str]:
    for command in group.registered_commands:  # type: ignore[attr-defined]
        yield f"{before} {command.name or command.callback.__name__}".strip()
    for inner in group.registered_groups:  # type: ignore[attr-defined]
        yield from commands(inner.typer_instance, f"{before} {inner.name}".strip())


def test_tests_that_the_threat_model_names_exist() -> None:
    root = PACKAGE.parent
    page = (root / "docs/explanation/threat-model.md").read_text()
    folders = {path.parent for path in (root / "tests").rglob("*.py")}
    for named in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (root / named).exists(), named
    for name in re.findall(r"`(test_\w+\.py)`", page):
        assert any((folder / name).exists() for folder in folders), name
