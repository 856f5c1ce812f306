"""Bundles in repositories of strangers: ``REVISION:PATH`` runs nothing that they configure, and unfolds to nothing."""

import hashlib
import os
import subprocess
import zlib

import pytest
from own_bundle import write_bundle

from mltune.device.known import H200
from mltune.errors import UsageError
from mltune.library.machine_code import READERS
from mltune.tuning import revisions
from mltune.tuning.versions import two_versions

SOURCE = 'extern "C" __global__ void entry(float* out) { out[threadIdx.x] = 1.0f; } // $Format:%H$\n'
ATTRIBUTES = "* filter=hostile diff=hostile merge=hostile export-subst ident\nown.cu working-tree-encoding=UTF-16\n"
HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc")
PERSON = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Repository:
    """A repository of git with a bundle in the folder ``own``."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "own").mkdir(parents=True)
        write_bundle(folder / "own", SOURCE, "")
        self.git("init", "-q")
        self.git("add", ".")  # as it is, without the attributes
        (folder / ".gitattributes").write_text(ATTRIBUTES)
        self.git("add", ".gitattributes")
        self.git("commit", "-q", "-m", "first")
        self.source = self.git("rev-parse", "HEAD:own/own.cu")
        self.canary = folder.parent / "canary"
        self.program = folder.parent / "program"
        self.program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{self.canary}'\ncat\n")
        self.program.chmod(0o755)

    def git(self, *words, stdin=b""):
        command = ["git", "-c", "core.fsmonitor=false", *words]
        environment = {**os.environ, **PERSON}
        done = subprocess.run(command, cwd=self.folder, input=stdin, check=True, env=environment, capture_output=True)
        return done.stdout.decode().strip()

    def configure(self, **values):
        with (self.folder / ".git" / "config").open("a") as file:
            for name, value in values.items():
                section, _, key = name.replace("__", ".").rpartition(".")
                head, _, part = section.partition(".")
                file.write(f'[{head} "{part}"]\n' if part else f"[{head}]\n")
                file.write(f'{key} = "{value}"\n')

    def object(self, content):
        """Write an object as it is given, header included; return its name."""
        name = hashlib.sha1(content).hexdigest()  # noqa: S324 - a name, which is not checked
        path = self.folder / ".git" / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(content, 1))
        return name

    def tree(self, *entries):
        """Return the name of a tree of modes, paths and names of objects."""
        content = b"".join(f"{mode} {path}\0".encode() + bytes.fromhex(name) for mode, path, name in entries)
        return self.object(f"tree {len(content)}\0".encode() + content)

    def loaded(self, name):
        """Return the kernel of a version."""
        with two_versions(name, name, None, None, {}, READERS) as makings:
            return makings[0](H200, {}).placed.kernel

    def refusal(self, name):
        """Return why a version is refused."""
        with pytest.raises(UsageError) as refused:
            self.loaded(name)
        assert str(refused.value).isprintable()
        return str(refused.value)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    made = Repository(tmp_path / "repository")
    monkeypatch.chdir(made.folder)
    yield made
    assert not made.canary.exists(), made.canary.read_text()


def test_nothing_that_a_repository_configures_is_run(repository):
    program = repository.program
    for hook in HOOKS:
        (repository.folder / ".git" / "hooks" / hook).write_text(program.read_text())
        (repository.folder / ".git" / "hooks" / hook).chmod(0o755)
    names = ["filter__hostile__smudge", "filter__hostile__clean", "filter__hostile__process", "diff__hostile__textconv"]
    names += ["diff__hostile__command", "merge__hostile__driver", "core__fsmonitor", "core__pager", "core__editor"]
    names += ["pager__ls-tree", "pager__cat-file", "core__sshCommand", "core__askPass", "credential__helper"]
    names += ["gpg__program", "diff__external", "core__alternateRefsCommand"]
    repository.configure(**dict.fromkeys(names, program), filter__hostile__required="true", tar__zip__command=program)
    repository.configure(**{f"alias__{name}": f"!{program}" for name in ("ls-tree", "cat-file", "rev-parse")})
    assert repository.loaded("HEAD:own").source.text == SOURCE


PROMISORS = {
    "upload-pack": {"url": "{folder}/../other", "uploadpack": "{program}"},
    "ssh": {"url": "ssh://localhost/x"},
    "a program": {"url": "ext::{program}"},
    "a helper": {"url": "x", "vcs": "ext"},
}


@pytest.mark.parametrize("remote", PROMISORS.values(), ids=PROMISORS)
def test_what_a_repository_lacks_is_not_fetched(repository, remote):
    facts = {"folder": repository.folder, "program": repository.program}
    values = {name: text.format_map(facts) for name, text in remote.items()}
    repository.git("clone", "-q", "--bare", ".", "../other")
    repository.configure(
        core__repositoryFormatVersion=1,
        core__sshCommand=repository.program,
        extensions__partialClone="origin",
        remote__origin__promisor="true",
        protocol__ext__allow="always",
        protocol__allow="always",
        **{f"remote__origin__{name}": value for name, value in values.items()},
    )
    lacking = repository.source
    (repository.folder / ".git" / "objects" / lacking[:2] / lacking[2:]).unlink()
    assert "HEAD:own" in repository.refusal("HEAD:own")


def test_a_large_file_is_not_unpacked(repository):
    """The size of an object stands at its beginning: this one has three gigabytes, and no content."""
    zeros = repository.object(b"blob 3221225472\0")
    tree = repository.tree(("100644", "own.cu", repository.source), ("100644", "zeros", zeros))
    fact = f"the bundle has 2 files and {3 * 2**30 + len(SOURCE)} bytes in git; it may have 20000 and 268435456"
    assert fact in repository.refusal(f"{tree}:")


def test_a_file_that_is_larger_than_it_says_is_refused(repository):
    tree = repository.tree(("100644", "zeros", repository.object(b"blob 10\0" + bytes(2**26))))
    assert f"{tree}:" in repository.refusal(f"{tree}:")


def test_a_file_that_is_the_difference_from_a_large_one_takes_little_memory(repository, monkeypatch):
    zeros, size = bytes(2**27), 2**27
    header = [0xB0 | size & 15, *(0x80 | size >> shift & 127 for shift in (4, 11, 18)), size >> 25]  # type 3: a blob
    base = bytes(header) + zlib.compress(zeros, 1)
    sizes = bytes([*(0x80 | size >> shift & 127 for shift in (0, 7, 14, 21)), 0, 10])
    delta = bytes([0x70 | 8]) + hashlib.sha1(b"blob %d\0" % size + zeros).digest()  # noqa: S324 - as git does
    delta += zlib.compress(sizes + bytes([0x90, 10]))  # ten bytes of the base
    pack = b"PACK" + (2).to_bytes(4, "big") + (2).to_bytes(4, "big") + base + delta
    repository.git("index-pack", "--stdin", stdin=pack + hashlib.sha1(pack).digest())  # noqa: S324
    name = hashlib.sha1(b"blob 10\0" + bytes(10)).hexdigest()  # noqa: S324
    tree = repository.tree(("100644", "own.cu", name))
    assert "a folder that holds a kernel.toml" in repository.refusal(f"{tree}:")  # it can be read
    monkeypatch.setattr(revisions, "_MEMORY_BYTES", 2**26)
    assert "emory" in repository.refusal(f"{tree}:")


def nested(repository, mode, name, count, depth):
    """Return the name of a tree that has many entries, each of which has as many, and so on."""
    for _ in range(depth):
        name = repository.tree(*((mode, f"{number:03}", name) for number in range(count)))
        mode = "40000"
    return name


def test_trees_that_unfold_are_refused(repository, monkeypatch):
    few = nested(repository, "100644", repository.source, 150, 2)
    assert "has 22500 files" in repository.refusal(f"{few}:")
    monkeypatch.setattr(revisions, "_LISTING_S", 60.0)  # for a busy machine
    many = nested(repository, "100644", repository.source, 40, 6)
    assert "git lists or reads more than" in repository.refusal(f"{many}:")
    monkeypatch.setattr(revisions, "_LISTING_S", 0.5)
    empty = nested(repository, "40000", repository.tree(), 40, 6)
    assert "timed out" in repository.refusal(f"{empty}:")


def test_submodules_are_left_out(repository):
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'ab' * 20},own/module")
    repository.git("commit", "-q", "-m", "second")
    assert repository.loaded("HEAD:own").source.text == SOURCE


@pytest.mark.parametrize("name", ["..", ".", "../outside", "a/../../outside", "/outside"])
def test_a_forged_tree_leads_nowhere(repository, tmp_path, name):
    entry = ("100644", name, repository.source)
    if name in ("..", "."):
        entry = ("40000", name, repository.tree(("100644", "outside", repository.source)))
    with pytest.raises(UsageError, match="outside of the folder of the bundle"):
        revisions.load_revision(f"{repository.tree(entry)}:", tmp_path / "copy")
    assert not list(tmp_path.rglob("outside"))
