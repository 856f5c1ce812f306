"""Habits of the house: tools agree on versions, tests lie where the modules lie, and names say what a value is."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

NO_NOUNS = {"one", "found", "given", "known", "asked", "some", "made", "wanted", "others", "each", "left", "more"}
NO_NOUNS |= {"ours", "theirs", "mine"}
"""Names that say nothing about a value."""

MOST_IN_1000_LINES = 5
"""Most uses of such names in 1,000 lines of code."""

OF_NO_ROOM = {"golden", "gpu", "hostile", "kernels"}
"""Folders of tests that mirror no room: recorded output, tests on a GPU, hostile input, and the shipped kernels."""

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def test_pre_commit_has_a_ruff_that_the_project_takes():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    version = re.search(r"ruff-pre-commit\s+rev: v(\S+)", text)[1]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (ruff,) = {name for group in groups.values() for name in group if Requirement(name).name == "ruff"}
    assert version in Requirement(ruff).specifier


def test_folders_of_tests_mirror_the_rooms():
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert folders - OF_NO_ROOM <= {path.parent.name for path in ROOT.glob("mltune/*/__init__.py")}


def lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that hold code, without comments and docstrings."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def names_that_say_nothing(text: str) -> Iterator[str]:
    """Yield line and name of each variable or argument, bound or read, that has such a name."""
    for node in ast.walk(ast.parse(text)):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
        if name in NO_NOUNS:
            yield f"{node.lineno}: {name}"


def test_names_are_counted_and_code_as_well():
    text = '"""Docstring."""\n\n\ndef size(given):  # comment\n    """Docstring."""\n    one = given\n    return one\n'
    assert lines_of_code(text) == {4, 6, 7}
    assert sorted(names_that_say_nothing(text)) == ["4: given", "6: given", "6: one", "7: one"]


def test_names_say_what_a_value_is():
    texts = {path: path.read_text() for path in sorted((ROOT / "mltune").rglob("*.py"))}
    names = [f"{path}:{name}" for path, text in texts.items() for name in names_that_say_nothing(text)]
    lines = sum(len(lines_of_code(text)) for text in texts.values())
    assert len(names) <= MOST_IN_1000_LINES * lines / 1000, "\n".join(names)
