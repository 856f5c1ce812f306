"""Headers of include folders: what a source includes is found as a compiler finds it, and nothing else is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import BundleError
from mltune.kernel.bundle import Kernel
from mltune.kernel.includes import MAX_HEADERS, walk_includes
from mltune.kernel.reader import load_kernel
from mltune.results.winner_texts import header_files

DOCUMENT = """
[kernel]
name = "a"
problem = "gemm"
precisions = ["s"]
source = "a.cu"
entry = "a"
include = {include}
headers = {headers}
[parameters]
TILE = [1, 2]
[launch]
block = [32]
grid = [1]
"""


def bundle(root: Path, files: Mapping[str, str], include: object = '["include"]', headers: object = "[]") -> Path:
    """Write a bundle with a source and headers."""
    (root / "include").mkdir(parents=True, exist_ok=True)
    for name, text in {"kernel.toml": DOCUMENT.format(include=include, headers=headers), **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def refusal(root: Path) -> str:
    with pytest.raises(BundleError) as caught:
        load_kernel(root)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_headers_are_found_beside_the_file_that_includes_them_and_in_the_folders(tmp_path: Path) -> None:
    kernel = load_kernel(
        bundle(
            tmp_path,
            {
                "a.cu": '#include <deep/one.cuh>\n # include "two.h"\n#include "include/three.hpp"\n#include <no.h>',
                "include/deep/one.cuh": '#include "four.inl"\n#include "../two.h"\n',
                "include/deep/four.inl": "#include <five.h>\n",
                "include/two.h": "2",
                "include/three.hpp": "3",
                "include/unused.h": "never read",
                "further/five.h": "5",
            },
            include='["include", "further"]',
        )
    )
    assert header_files(kernel) == {
        "include/deep/one.cuh": '#include "four.inl"\n#include "../two.h"\n',
        "include/two.h": "2",
        "include/three.hpp": "3",
        "include/deep/four.inl": "#include <five.h>\n",
        "further/five.h": "5",
    }
    assert kernel.source.headers.keys() == {
        "deep/one.cuh", "two.h", "include/three.hpp", "four.inl", "../two.h", "five.h"
    }  # fmt: skip
    assert kernel.source.headers["../two.h"] == '#include "two.h"\n'  # so that #pragma once holds
    assert kernel.source.include == ("include", "further")


def test_the_folder_of_the_bundle_may_be_one(tmp_path: Path) -> None:
    files = {"a.cu": '#include <b/c.h>\n#include "d.h"', "b/c.h": "", "d.h": "", "../e.h": ""}
    kernel = load_kernel(bundle(tmp_path / "bundle", files, include='["."]'))
    assert header_files(kernel) == {"b/c.h": "", "d.h": ""}


def test_a_header_that_changes_changes_the_hash_of_the_source(tmp_path: Path) -> None:
    def hashed(text: str, unused: str = "") -> str:
        files = {"a.cu": "#include <b.h>", "include/b.h": '#include "c.h"', "include/c.h": text, "include/d.h": unused}
        return load_kernel(bundle(tmp_path, files)).source.sha256

    assert hashed("1") == hashed("1", unused="2") != hashed("2")


@pytest.mark.parametrize(
    "include",
    ['["../a"]', '["/usr/include"]', '[""]', '["a/../.."]', '["include", "include"]', '["a/"]', '["./a"]', '["-Ia"]',
     '["a\\u0000"]', "[1]", '"include"', str([f"a{number}" for number in range(9)]), '["missing"]', '["a.cu"]'],
)  # fmt: skip
def test_include_folders_are_folders_of_the_bundle(tmp_path: Path, include: str) -> None:
    assert "kernel.include" in refusal(bundle(tmp_path, {"a.cu": ""}, include=include))


@pytest.mark.parametrize("link", ["include", "include/deep", "include/deep/b.h"])
@pytest.mark.parametrize("target", ["outside", "inside"])
def test_no_link_is_followed(tmp_path: Path, link: str, target: str) -> None:
    elsewhere = tmp_path / ("secret" if target == "outside" else "bundle/other")
    root = bundle(tmp_path / "bundle", {"a.cu": "#include <deep/b.h>", "include/deep/b.h": ""})
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "b.h").write_text("secret")
    (elsewhere / "deep" / "b.h").write_text("secret")
    os.rename(root / link, tmp_path / "moved")
    (root / link).symlink_to(elsewhere / "b.h" if link.endswith(".h") else elsewhere)
    message = refusal(root)
    assert "no link is followed" in message
    assert link in message


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"include/b.h": "", "include/c/b.h": "", "include/c/d.h": '#include "b.h"'}, "'b.h' is include/b.h in a.cu"),
        ({"include/b.h": "\0"}, "has a zero byte"),
        ({"include/b.h": "\udcff"}, "UTF-8"),
        ({"include/b.h": "1" * (17 << 20)}, "bytes, of which"),
        ({"include/b.h/c": ""}, "only regular files are opened"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(tmp_path: Path, files: dict[str, str], words: str) -> None:
    root = bundle(tmp_path, {"a.cu": "#include <b.h>\n#include <c/d.h>"})
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode(errors="surrogateescape"))
    message = refusal(root)
    assert words in message
    assert "include/b.h" in message


def test_the_number_of_headers_is_limited(tmp_path: Path) -> None:
    files = {f"include/{number}.h": "" for number in range(MAX_HEADERS + 1)}
    source = "".join(f"#include <{number}.h>\n" for number in range(MAX_HEADERS + 1))
    assert f"more than {MAX_HEADERS}" in refusal(bundle(tmp_path, {"a.cu": source, **files}))


def test_a_million_names_are_not_looked_for(tmp_path: Path) -> None:
    names = [f"{number}.h" for number in range(1_000_000)]
    asked = []
    assert (
        list(walk_includes({"": "".join(f"#include <{name}>\n" for name in names)}, lambda *a: asked.append(a))) == []
    )
    assert len(asked) == 10_000


def test_headers_that_include_each_other_end(tmp_path: Path) -> None:
    files = {"a.cu": "#include <b.h>", "include/b.h": "#include <c.h>", "include/c.h": "#include <b.h>\n#include <c.h>"}
    assert load_kernel(bundle(tmp_path, files)).source.headers.keys() == {"b.h", "c.h"}


PARTS = ("a.h", "b.h", "secret.h", "include", "more", "..", ".", "", "outside", "bundle", "link", "linked.h")
NAME = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("/".join)
LINE = st.tuples(st.sampled_from(('#include "{}"\n', "#include <{}>\n")), NAME).map(
    lambda pair: pair[0].format(pair[1])
)
TEXT = st.lists(LINE, max_size=8).map("".join)
MARKED = "#error the canary"


@given(
    source=TEXT,
    texts=st.dictionaries(st.sampled_from(("a.h", "b.h", "more/a.h", "more/b.h", "include/a.h")), TEXT),
    links=st.dictionaries(
        st.sampled_from(("link", "linked.h", "more/link", "more/linked.h")),
        st.sampled_from(("..", "../..", "../../outside", "../secret.h", "../../outside/secret.h", "/", "more", "a.h")),
        max_size=2,
    ),
)
def test_nothing_outside_the_folders_is_read(source: str, texts: dict[str, str], links: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = bundle(Path(folder).resolve() / "bundle", {f"include/{name}": text for name, text in texts.items()})
        secrets = [root.parent / "outside" / "secret.h", root / "secret.h", root / "more" / "a.h", root.parent / "a.h"]
        for path in secrets:
            path.parent.mkdir(exist_ok=True)
            path.write_text(MARKED)
        (root / "a.cu").write_text(source)
        for name, target in links.items():
            (root / "include" / name).parent.mkdir(exist_ok=True)
            (root / "include" / name).symlink_to(target)
        opened, kernel = opened_files(root)
        allowed = {root / "kernel.toml", root / "a.cu"}
        assert {path for path in opened if not path.is_relative_to(root / "include")} <= allowed
        assert kernel is None or MARKED not in kernel.source.headers.values()


def opened_files(root: Path) -> tuple[set[Path], Kernel | None]:
    """Load a bundle; return the regular files that are opened for it, and the kernel if it is not refused."""
    opened, usual = set(), os.open

    def watched(*arguments: object, **options: object) -> int:
        descriptor = usual(*arguments, **options)  # type: ignore[arg-type]
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            opened.add(path)
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        try:
            return opened, load_kernel(root)
        except BundleError:
            return opened, None
