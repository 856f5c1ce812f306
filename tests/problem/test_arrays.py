"""Problems of arrays: JSON documents, initial values of every type, and files of arrays."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import ProblemError
from mltune.problem.array_values import DTYPES, INITIAL, STORAGE, initial_array, scalar, to_bfloat16
from mltune.problem.arrays import Argument, ArraysProblem, default_tolerance
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import RunnableProblem

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
SMALL = ArraysProblem("scale", (("n", 7),), (Argument("x", "float32", (7,)),))
PROBLEM = ArraysProblem(
    "scale",
    (("n", 1000), ("m", 3)),
    (
        Argument("out", "float32", (3, 1000), role="out", tolerance=1e-4, absolute=1e-6),
        Argument("x", "bfloat16", (1000,), initial="normal"),
        Argument("sums", "float64", (3,), role="inout", initial=1.5),
        Argument("filter", "complex64", (5,), role="constant"),
        Argument("n", "int32", value=1000),
        Argument("factor", "float32", value=0.5),
    ),
    (("HALF", 500),),
    flops=6000,
    bytes=12_000,
    arithmetic="fp64",
    checks=(SMALL,),
)
DOCUMENT = {
    "kind": "arrays",
    "name": "scale",
    "sizes": {"n": 8},
    "arguments": [{"name": "x", "dtype": "float32", "shape": [8], "role": "out"}],
}


def numbers(dtype: str, stored: np.ndarray) -> np.ndarray:
    """Return stored elements as numbers."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else stored


def make(dtype: str, initial: str | float, shape: tuple[int, ...] = (50, 40), seed: int = 1) -> np.ndarray:
    return initial_array(np, np.random.default_rng(seed), dtype, shape, initial)


def test_a_problem_survives_json() -> None:
    again = problem_from_json(json.loads(json.dumps(PROBLEM.to_json())))

    assert isinstance(again, ArraysProblem)
    assert isinstance(again, RunnableProblem)
    assert again.to_json() == PROBLEM.to_json()
    assert (again.label, again.arguments, again.definitions) == (PROBLEM.label, PROBLEM.arguments, PROBLEM.definitions)
    assert (again.flops, again.bytes, again.arithmetic) == (6000, 12_000, "fp64")
    assert [one.sizes for one in again.checks] == [SMALL.sizes]
    assert hash(again) == hash(problem_from_json(PROBLEM.to_json()))


def test_a_problem_knows_its_arrays_and_scalars() -> None:
    assert PROBLEM.label == "scale 1000x3"
    assert PROBLEM.formula == "scale(out, x, sums, n, factor)"
    assert [one.name for one in PROBLEM.arrays] == ["out", "x", "sums", "filter"]
    assert [(one.name, one.role, one.dtype) for one in PROBLEM.buffers] == [
        ("out", "out", "float32"),
        ("x", "in", "bfloat16"),
        ("sums", "inout", "float64"),
        ("filter", "in", "complex64"),
    ]
    assert PROBLEM.operand_bytes == 4 * 3000 + 2 * 1000 + 8 * 3 + 8 * 5
    assert PROBLEM.variables == {"n": 1000, "m": 3}
    assert PROBLEM.macros() == {"HALF": 500}
    assert PROBLEM.size_names == ()
    assert SMALL.size_names == ("n",)
    assert SMALL.is_empty
    assert not PROBLEM.is_empty
    assert [case.problem for case in PROBLEM.verification_cases()] == [SMALL, PROBLEM]
    assert [case.is_timed for case in PROBLEM.own_cases()] == [False, True]
    assert PROBLEM.verification_document()["sizes"] == [{"n": 7}, {"n": 1000, "m": 3}]


def test_operands_are_flat_and_repeatable_and_outputs_zero() -> None:
    first, second, other = (PROBLEM.operands(np, seed) for seed in (1, 1, 2))

    assert {name: array.shape for name, array in first.items()} == {
        "out": (3000,),
        "x": (1000,),
        "sums": (3,),
        "filter": (5,),
    }
    assert (first["out"] == 0).all()
    assert (first["sums"] == 1.5).all()
    assert (first["x"] == second["x"]).all()
    assert (first["x"] != other["x"]).any()
    arguments = PROBLEM.kernel_arguments(first)
    assert list(arguments) == ["out", "x", "sums", "n", "factor"]
    assert (arguments["n"].dtype, arguments["factor"].dtype) == (np.int32, np.float32)
    assert (arguments["n"], arguments["factor"]) == (1000, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("initial", [*INITIAL, 1, 0, 2.0])
def test_every_type_has_every_initial_value(dtype: str, initial: str | float) -> None:
    found = make(dtype, initial)

    assert (found.dtype, found.shape) == (STORAGE[dtype], (2000,))
    values = numbers(dtype, found)
    assert np.isfinite(values).all()
    if not isinstance(initial, str):
        assert (values == (bool(initial) if dtype == "bool" else initial)).all()
    elif initial != "arange":
        assert len(np.unique(values)) >= (2 if dtype == "bool" else 4)
        assert (found == make(dtype, initial)).all()
        assert (found != make(dtype, initial, seed=2)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_range_of_values_is_as_described(dtype: str) -> None:
    uniform, integers = numbers(dtype, make(dtype, "uniform")), numbers(dtype, make(dtype, "integers"))
    counted = numbers(dtype, make(dtype, "arange", (2, 60)))

    signed = not dtype.startswith("u")
    if dtype in FLOATS:
        parts = [part(uniform) for part in (np.real, np.imag)][: 2 if dtype.startswith("complex") else 1]
        assert all(-1 <= part.min() < -0.9 and 0.9 < part.max() <= 1 for part in parts)
    elif dtype in ("int8", "uint8"):
        assert (uniform.min(), uniform.max()) == (np.iinfo(dtype).min, np.iinfo(dtype).max)
    elif dtype != "bool":
        assert (-1000 if signed else 0) <= uniform.min() <= uniform.max() <= 1000
    if dtype != "bool":
        assert set(np.unique(integers.real)) == set(range(-3 if signed else 0, 4))
        assert counted.real.tolist() == list(range(120))
    else:
        assert counted.tolist() == [False, *[True] * 119]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_bfloat16_is_the_nearest_and_of_two_the_even_one(given_values: list[float]) -> None:
    values = np.array(given_values, dtype=np.float32)

    bits = to_bfloat16(values)

    for value, found in zip(values.tolist(), bits.tolist(), strict=True):
        below = int(np.float32(value).view(np.uint32)) >> 16
        candidates = [below, below + 1]
        wide = [float(np.array([bit << 16], dtype=np.uint32).view(np.float32)[0]) for bit in candidates]
        if not all(map(math.isfinite, wide)):
            assert found in candidates
            continue
        errors = [abs(value - one) for one in wide]
        nearest = candidates[errors[1] < errors[0]]
        assert found == (nearest if errors[0] != errors[1] else next(bit for bit in candidates if bit % 2 == 0))


def test_bfloat16_keeps_what_is_no_number() -> None:
    special = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000], dtype=np.uint32)
    values = (to_bfloat16(special.view(np.float32)).astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(values[:3]).all()
    assert values[3:].tolist() == [math.inf, -math.inf]


def test_scalars_have_the_type_of_the_parameter() -> None:
    assert (scalar("uint64", 2**64 - 1), scalar("int64", -(2**63))) == (2**64 - 1, -(2**63))
    assert scalar("int32", 2**31) == -(2**31)
    assert scalar("float16", 1e9) == math.inf
    assert scalar("bfloat16", 1.0) == 0x3F80
    assert scalar("bool", 3)
    assert scalar("complex64", 2) == 2 + 0j


@pytest.mark.parametrize("dtype", DTYPES)
def test_tolerances_are_exact_for_integers(dtype: str) -> None:
    assert (default_tolerance(dtype) > 0) is (dtype in FLOATS)


def test_arrays_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))

    assert make("float32", str(path), (2, 3)).tolist() == [0, 1, 2, 3, 4, 5]
    assert make("float32", str(path), (6,)).tolist() == [0, 1, 2, 3, 4, 5]
    argument = Argument("x", "float32", (6,), initial=str(path))
    assert ArraysProblem("one", (), (argument,)).to_json()["arguments"][0]["initial"] == "x.npy"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.arange(6, dtype=np.float64), "holds 6 elements of float64; the array has 6 of float32"),
        (np.arange(7, dtype=np.float32), "holds 7 elements of float32; the array has 6"),
        (np.array([{}] * 6, dtype=object), "readable .npy file"),
        (b"", "readable .npy file"),
        (b"\x93NUMPY\x01\x00", "readable .npy file"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4' ", "readable .npy file"),
        (b"PK\x03\x04 no archive", "readable .npy file"),
        (b"(lp0\n.", "readable .npy file"),
        (None, "readable .npy file"),
    ],
)
def test_a_file_that_does_not_hold_the_array_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "x.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ProblemError, match=message):
        make("float32", str(path), (6,))


def test_an_archive_of_arrays_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros(6, dtype=np.float32))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(ProblemError, match="is no readable"):
        make("float32", str(tmp_path / "x.npy"), (6,))


def test_arrays_are_of_limited_size() -> None:
    with pytest.raises(ProblemError, match=r"x of big 1 has .* bytes; an array has at most 2\*\*40"):
        ArraysProblem("big", (("n", 1),), (Argument("x", "float64", (2**20, 2**18)),))


def test_names_of_arguments_are_distinct() -> None:
    with pytest.raises(ProblemError, match="the argument x of twice"):
        ArraysProblem("twice", (), (Argument("x", "float64", (2,)), Argument("x", "int32")))


ARGUMENT = DOCUMENT["arguments"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": 3},
        {"name": "x" * 65},
        {"sizes": []},
        {"sizes": {"n": 2**60}},
        {"sizes": {"n": 1.5}},
        {"sizes": {"n": True}},
        {"sizes": {"a b": 1}},
        {"sizes": {f"n{number}": 1 for number in range(61)}},
        {"arguments": {}},
        {"arguments": [ARGUMENT] * 101},
        {"arguments": [ARGUMENT, ARGUMENT]},
        {"arguments": [ARGUMENT | {"dtype": "float128"}]},
        {"arguments": [ARGUMENT | {"dtype": "object"}]},
        {"arguments": [ARGUMENT | {"shape": [0]}]},
        {"arguments": [ARGUMENT | {"shape": [-1]}]},
        {"arguments": [ARGUMENT | {"shape": [2**30, 2**30]}]},
        {"arguments": [ARGUMENT | {"shape": [1] * 9}]},
        {"arguments": [ARGUMENT | {"role": "secret"}]},
        {"arguments": [ARGUMENT | {"initial": "x" * 5000}]},
        {"arguments": [ARGUMENT | {"initial": "nonsense"}]},
        {"arguments": [ARGUMENT | {"initial": math.nan}]},
        {"arguments": [ARGUMENT | {"initial": 10**400}]},
        {"arguments": [ARGUMENT | {"initial": None}]},
        {"arguments": [{"name": "n", "dtype": "int32", "value": math.inf}]},
        {"arguments": [{"name": "n", "dtype": "int32", "value": -(10**400)}]},
        {"arguments": [{"name": "n", "dtype": "int32", "value": "3"}]},
        {"arguments": [ARGUMENT | {"tolerance": -1.0}]},
        {"arguments": [ARGUMENT | {"tolerance": math.nan}]},
        {"arguments": [ARGUMENT | {"absolute": math.inf}]},
        {"arguments": [ARGUMENT | {"more": 1}]},
        {"definitions": {"M": 1.5}},
        {"flops": -1},
        {"flops": 2**90},
        {"bytes": "many"},
        {"arithmetic": "fp8"},
        {"checked": [{"n": "one"}]},
        {"checked": [{}] * 21},
        {"more": 1},
    ],
)
def test_a_hostile_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProblemError):
        problem_from_json(DOCUMENT | change)


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), 1e300, True])
def test_extreme_scalars_are_kept(value: float) -> None:
    argument = {"name": "n", "dtype": "float64", "value": value}
    (found,) = ArraysProblem.from_json(DOCUMENT | {"arguments": [argument]}).arguments
    assert found.value == value
    assert scalar("uint64" if value == 2**64 - 1 else "float64", found.value) == value
