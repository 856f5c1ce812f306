"""What is put around a public function: the types of its arguments, and the words of its errors."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TypedDict, Unpack

import numpy as np
import pytest

import mltune
from mltune.errors import RunError, UsageError
from mltune.files.arguments import checked


class Further(TypedDict, total=False):
    """Keywords of a function."""

    out: str | Path | None
    size: int | Mapping[str, int] | None


def function(
    folder: str | Path,
    names: Sequence[str] = ("a",),
    count: int | None = None,
    share: float = 0.5,
    force: bool = False,
    result: str | Path | PurePath2 = "",
    call: Callable[[], bool] | None = None,
    **options: Unpack[Further],
):
    """Return a path."""
    return Path(folder)


class PurePath2:
    """A class that an annotation names."""


class Folder:
    """A path of another package."""

    def __fspath__(self):
        return "there"


class Unprintable:
    """An object without a representation."""

    def __repr__(self):
        raise RuntimeError("no")


call = checked(function, UsageError)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"folder": Path("a")},
        {"folder": Folder()},
        {"folder": np.str_("a")},
        {"names": ["a"]},
        {"names": range(3)},
        {"count": np.int32(3)},
        {"count": None},
        {"share": 1},
        {"share": np.float32(1)},
        {"force": np.True_},
        {"result": PurePath2()},
        {"call": 5},  # what it is cannot be told from its name
        {"out": None, "size": {"n": 4}},
    ],
)
def test_what_fits_an_annotation_is_passed_on(options):
    assert call(**{"folder": "a", **options}) == Path(os.fspath(options.get("folder", "a")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": 5}, "folder cannot be 5: it is a text or a path; see help(mltune.function)."),
        ({"folder": b"a"}, "folder cannot be b'a'"),
        ({"folder": None}, "folder cannot be None"),
        ({"folder": Unprintable()}, "folder cannot be <Unprintable instance at "),
        ({"folder": "\x1b[2J" and ["\x1b[2J"]}, "folder cannot be ['\\x1b[2J']"),
        ({"names": "abc"}, "names cannot be 'abc': it is a list;"),
        ({"names": []}, "names cannot be []: it has at least one entry;"),
        ({"count": 1.5}, "count cannot be 1.5: it is a whole number;"),
        ({"share": "half"}, "share cannot be 'half': it is a number;"),
        ({"force": "no"}, "force cannot be 'no': it is True or False;"),
        ({"result": 5}, "result cannot be 5: it is a text or a path or a PurePath2;"),
        ({"out": 5}, "out cannot be 5: it is a text or a path;"),
        ({"size": "4"}, "size cannot be '4': it is a whole number or a dict;"),
    ],
)
def test_anything_else_is_refused_by_its_name(options, words):
    with pytest.raises(UsageError) as error:
        call(**{"folder": "a", **options})
    assert words in str(error.value)


def test_a_long_value_is_not_written_out():
    begun = perf_counter()
    with pytest.raises(UsageError) as error:
        call([0] * 10_000_000)
    assert len(str(error.value)) < 200
    assert perf_counter() - begun < 10  # its whole text is 30 MB


def test_missing_and_unknown_arguments_are_errors_of_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'folder'"):
        call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'name'"):
        mltune.load_run("a", name=3)


def test_a_class_and_a_constant_stay_what_they_are():
    assert checked(PurePath2, UsageError) is PurePath2
    assert mltune.Search is mltune.api.Search


def test_a_public_function_has_its_signature_and_can_be_sent_to_another_process():
    assert inspect.signature(mltune.load_run) == inspect.signature(mltune.api.load_run)
    assert pickle.loads(pickle.dumps(mltune.load_run)) is mltune.load_run  # noqa: S301


@pytest.mark.parametrize("kind", [UsageError, RunError])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("write --size n=64.", "write size={'n': 64}."),
        ("write --size 64.", "write size=64."),
        ("name another (--out).", "name another (out)."),
        ("goes on with --out runs/a.b, later", "goes on with out='runs/a.b', later"),
        ("was given without --force; write --force", "was given without force=True; write force=True"),
        ("`mltune tune --out x` and --other y", "`mltune tune --out x` and --other y"),
        ("a--size and ---", "a--size and ---"),
        ("--out_of and --size=3 of a compiler", "--out_of and --size=3 of a compiler"),
    ],
)
def test_its_errors_name_arguments_in_place_of_options(kind, written, read):
    def fail(out: str | Path, size: int | Mapping[str, int] = 0, force: bool = False):
        raise kind(written)

    with pytest.raises(kind) as error:
        checked(fail, UsageError)("a")
    assert str(error.value) == read


def test_other_errors_stay_as_they_are():
    def fail(out: str):
        raise KeyError("--out")

    with pytest.raises(KeyError, match="--out"):
        checked(fail, UsageError)("a")
