"""Hostile versions for a gate: bundles in git, whose repositories are written object by object, sources and folders."""

from __future__ import annotations

import hashlib
import tomllib
import zlib
from pathlib import Path
from typing import Any

from tests.hostile.cases import Place, add
from tests.hostile.folders import OBSTACLES, obstruct
from tests.hostile.values import ESCAPE, TEXTS, change, damaged, encoded, to_toml

CONFIG = {
    "fsmonitor": "[core]\n\tfsmonitor = RUN\n",
    "a-filter": '[filter "x"]\n\tsmudge = RUN\n\tclean = RUN\n\tprocess = RUN\n\trequired = true\n',
    "a-textconv": '[diff "x"]\n\ttextconv = RUN\n\tcommand = RUN\n[diff]\n\texternal = RUN\n',
    "hooks": "[core]\n\thooksPath = FOLDER\n",
    "programs": "[core]\n\tpager = RUN\n\teditor = RUN\n\tsshCommand = RUN\n\tgitProxy = RUN\n\taskPass = RUN\n[gpg]\n\tprogram = RUN\n",
    "pagers": "[pager]\n\tls-tree = RUN\n\tcat-file = RUN\n\trev-parse = RUN\n\tarchive = RUN\n\tshow = RUN\n",
    "aliases": '[alias]\n\tcat-file = "!RUN"\n\tls-tree = "!RUN"\n\tarchive = "!RUN"\n\trev-parse = "!RUN"\n',
    "an-archiver": '[tar "zip"]\n\tcommand = RUN\n[tar "tar.gz"]\n\tcommand = RUN\n[uploadpack]\n\tpackObjectsHook = RUN\n',
    "a-partial-clone": '[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n[remote "origin"]\n'
                       '\turl = ext::RUN %S\n\tpromisor = true\n\tpartialclonefilter = blob:none\n[protocol "ext"]\n\tallow = always\n',
    "what-is-broken": "[core\n\x1b[2J = \0\n",
}  # fmt: skip
"""Configurations of a repository that name a program; ``RUN`` writes into the canary."""

ATTRIBUTES = b"* filter=x diff=x export-subst working-tree-encoding=UTF-16\n"
FILES = ("kernel.toml", "scale.cu", "values.npy", "answer.npy")


def git_object(repository: Path, kind: str, content: bytes, claims: int | None = None) -> str:
    """Write an object, which may claim another size, and return its name."""
    data = f"{kind} {len(content) if claims is None else claims}\0".encode() + content
    name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    path = repository / ".git/objects" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zlib.compress(data, 1))
    return name


def tree(repository: Path, entries: list[tuple[str, str, str]]) -> str:
    """Write a tree of entries: mode, name, object."""
    rows = (f"{mode} {name}\0".encode("utf-8", "surrogatepass") + bytes.fromhex(one) for mode, name, one in entries)
    return git_object(repository, "tree", b"".join(rows))


def commit(repository: Path, entries: list[tuple[str, str, str]], config: str = "") -> None:
    """Write a repository whose bundle has some entries; with a configuration also attributes, which ask for it."""
    attributes = ATTRIBUTES if config else b""
    blob = git_object(repository, "blob", attributes)
    top = tree(repository, [("100644", ".gitattributes", blob), ("40000", "bundle", tree(repository, entries))])
    who = "a <a@a> 1700000000 +0000"
    head = git_object(repository, "commit", f"tree {top}\nauthor {who}\ncommitter {who}\n\nx\n".encode())
    git = repository / ".git"
    for name, text in {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{head}\n"}.items():
        (git / name).parent.mkdir(parents=True, exist_ok=True)
        (git / name).write_text(text)
    (git / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n{config}")
    (git / "info").mkdir(exist_ok=True)
    (git / "info/attributes").write_bytes(attributes)
    (repository / ".gitattributes").write_bytes(attributes)


def _config(place: Place, name: str) -> str:
    """Return a configuration whose program is a script beside the repository, which is a hook, too."""
    for hook in ("run", "post-checkout", "post-index-change", "pre-auto-gc", "reference-transaction"):
        place.write(f"hooks/{hook}", f"#!/bin/sh\ntouch '{place.canary}/new.txt'\ncat\n").chmod(0o755)
    return CONFIG[name].replace("RUN", str(place.named / "hooks/run")).replace("FOLDER", str(place.named / "hooks"))


def _honest(place: Place) -> tuple[Path, list[tuple[str, str, str]]]:
    """Copy an honest bundle into a repository, and return the entries of its tree."""
    repository = place.copy("arrays", "repository/bundle").parent
    blobs = {name: (repository / "bundle" / name).read_bytes() for name in sorted(FILES)}
    return repository, [("100644", name, git_object(repository, "blob", data)) for name, data in blobs.items()]


def honest_repository(place: Place) -> None:
    """Write a repository with an honest bundle."""
    commit(*_honest(place))


def random_versions(place: Place) -> None:
    """Change files of a bundle in git and beside it, entries of its tree, objects, and the configuration."""
    rng = place.rng
    repository, entries = _honest(place)
    for how in rng.choices(("bundle", "entry", "entry", "folder", "object"), k=rng.choice((1, 2))):
        at = rng.randrange(len(entries))
        mode, name, _ = entries[at]
        if how == "bundle":
            text = (place.base / "arrays/kernel.toml").read_text()
            document = change(tomllib.loads(text), rng)
            data = encoded(to_toml(document)) if isinstance(document, dict) else damaged(text.encode(), rng)
            entries[at] = mode, rng.choice((name, "kernel.toml")), git_object(repository, "blob", data)
        elif how == "entry":
            target = rng.choice(
                (str(place.canary / "secret.toml"), "../../canary/secret.toml", "kernel.toml", "/dev/zero")
            )
            one = git_object(repository, "blob", target.encode()) if rng.random() < 0.5 else entries[at][2]
            names = (name, "..", ".git", "../x", "/x", "", "a/../../x", ESCAPE, "x" * 300, *TEXTS)
            entries[at] = rng.choice(("120000", "160000", "40000", "100755", "777777", mode)), rng.choice(names), one
        elif how == "folder":
            obstruct(place, repository / "bundle" / rng.choice(FILES), rng.choice(list(OBSTACLES)))
        else:
            path = rng.choice(sorted((repository / ".git/objects").rglob("??/*")))
            path.write_bytes(damaged(path.read_bytes(), rng)) if rng.random() < 0.7 else path.unlink()
    entries = [(mode, name.replace("\0", ""), one) for mode, name, one in entries]
    commit(repository, entries, _config(place, rng.choice(list(CONFIG))) if rng.random() < 0.7 else "")
    if rng.random() < 0.2:
        name = rng.choice(
            ("HEAD", "refs", "objects", "config", "index", "packed-refs", "info", "objects/pack", "shallow")
        )
        obstruct(place, repository / ".git" / name, rng.choice(("a-fifo", "a-folder", "itself", "garbage")))


for _name in CONFIG:

    def _configured(place: Place, name: str = _name, lacks: bool = False) -> None:
        repository, entries = _honest(place)
        commit(repository, entries, _config(place, name))

    add("versions", f"a-repository-with-{_name}", _configured, "gate_revision", "gate_bundle")


def _entries(name: str, *more: tuple[str, str, Any]) -> None:
    """Add a repository with further entries in its tree; content that is a number is of so many zeros."""

    def build(place: Place) -> None:
        repository, entries = _honest(place)
        for mode, path, content in more:
            data = bytes(content) if isinstance(content, int) else content.replace(b"CANARY", bytes(place.canary))
            kept = [one for one in entries if one[1] != path]
            entries = [*kept, (mode, path, git_object(repository, "blob", data))]
        commit(repository, entries)

    add("versions", name, build, "gate_revision")


_entries("a-link-to-a-canary", ("120000", "kernel.toml", b"CANARY/secret.toml"))
_entries("a-source-that-is-a-link", ("120000", "scale.cu", b"CANARY/secret.txt"))
_entries("steps-upwards", ("100644", "../../new.txt", b"x"), ("100644", "..", b"x"))
_entries("a-link-and-a-file-behind-it", ("120000", "a", b"CANARY"), ("100644", "a/new.txt", b"x"))
_entries("a-file-of-300-megabytes-of-zeros", ("100644", "big.bin", 300 << 20))
_entries("a-document-of-300-megabytes-of-zeros", ("100644", "kernel.toml", 300 << 20))
_entries("20001-files", *(("100644", f"f{number}", b"x") for number in range(20_001)))


@lambda build: add("versions", "a-file-that-claims-10-gigabytes", build, "gate_revision")
def _claims(place: Place) -> None:
    repository, entries = _honest(place)
    commit(repository, [*entries, ("100644", "z", git_object(repository, "blob", b"x", claims=10**10))])


@lambda build: add("versions", "a-partial-clone-that-lacks-a-file", build, "gate_revision")
def _lacks(place: Place) -> None:
    repository, entries = _honest(place)
    commit(repository, [*entries, ("100644", "z", "0" * 39 + "1")], _config(place, "a-partial-clone"))
