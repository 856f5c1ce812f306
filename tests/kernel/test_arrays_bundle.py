"""Bundles of kind arrays: the meaning of their kernel.toml, labels, and the errors of malformed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.errors import BundleError, ExpressionError, ProblemError, UsageError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.launch import Launch
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.arrays import Argument, default_tolerance
from mltune.problem.gemm import parse_problem

DOCUMENT = """
[kernel]
name = "scale"
problem = "arrays"
source = "scale.cu"
entry = "scale<THREADS, TYPE>"

[sizes]
rows = 100
columns = 70

[arguments]
output = { dtype = "float32", shape = ["rows", "columns"], role = "out" }
input = { dtype = "float32", shape = ["rows", "columns"], initial = "normal" }
table = { dtype = "float32", shape = [4], initial = "table.npy", role = "constant" }
sums = { dtype = "float64", shape = ["rows"], role = "inout", initial = 0, tolerance = 1e-3 }
rows = { dtype = "int32", value = "rows" }
factor = { dtype = "float32", value = 0.5 }

[macros]
HALF = "rows // 2"

[work]
flops = "2 * rows * columns"
bytes = "8 * rows * columns"

[parameters]
THREADS = [64, 128, 256]
TYPE = ["float", "float2", "float4"]
SHARE = [0.5, 0.25, 1]
FAST = [false, true]

[launch.parameters]
GROUP = [1, 2]

[default]
THREADS = 128
TYPE = "float2"
SHARE = 1
FAST = true
GROUP = 2

[derived]
WIDTH = "(1 if TYPE == 'float' else 2 if TYPE == 'float2' else 4)"
PART = "SHARE * THREADS"

[restrictions]
"TYPE != 'float4' or THREADS > 64" = "wide vectors need threads"
"SHARE < 1 or FAST" = "a whole share is fast"
"PART >= 32" = "whole warps"

[resources]
shared_bytes = "4 * THREADS * WIDTH"

[launch]
block = ["THREADS"]
grid = ["ceil_div(columns, THREADS * WIDTH)", "rows"]
arguments = ["GROUP"]

[reference]
entry = "simple"
block = [32]
grid = ["ceil_div(columns, 32)", "rows"]

[[verify]]
rows = 3
[[verify]]
rows = 5
columns = 1
"""
DEVICE = device_variables(H200)


def bundle(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write a bundle with some of its text replaced."""
    document = DOCUMENT
    for old, new in changes:
        assert old in document
        document = document.replace(old, new, 1)
    folder.mkdir(exist_ok=True)
    (folder / "kernel.toml").write_text(document)
    (folder / "scale.cu").write_text("template <int N, typename T> __global__ void scale() {}\n")
    np.save(folder / "table.npy", np.ones(4, dtype=np.float32))
    return folder


def loaded(folder: Path, *changes: tuple[str, str]) -> Kernel:
    return load_kernel(bundle(folder, *changes))


def configuration(**changes: int) -> dict[str, int]:
    return {"THREADS": 128, "TYPE": 1, "SHARE": 2, "FAST": 1, "GROUP": 2} | changes


def test_a_bundle_of_arrays_is_read(tmp_path: Path) -> None:
    kernel = loaded(tmp_path)

    definition = kernel.arrays
    assert definition is not None
    assert (kernel.problem, kernel.source.entry, kernel.precisions) == ("arrays", "scale<THREADS, TYPE>", ())
    assert kernel.space.variables == {"rows", "columns"}
    assert kernel.space.labels == {"TYPE": ("float", "float2", "float4"), "SHARE": (0.5, 0.25, 1.0)}
    assert kernel.space.parameters == {"THREADS": (64, 128, 256), "TYPE": (0, 1, 2), "SHARE": (0, 1, 2), "FAST": (0, 1)}
    assert kernel.space.default == configuration()
    assert definition.sizes == {"rows": 100, "columns": 70}
    assert definition.arithmetic == "fp64"
    assert definition.reference is not None
    assert definition.reference.entry == "simple"


def test_problems_follow_from_sizes(tmp_path: Path) -> None:
    definition = loaded(tmp_path).arrays
    assert definition is not None

    problem, other = definition.problem(), definition.problem({"columns": 9})

    assert problem.label == "scale 100x70"
    assert (problem.flops, problem.bytes, problem.definitions) == (14_000, 56_000, (("HALF", 50),))
    assert problem.arguments == (
        Argument("output", "float32", (100, 70), "out", tolerance=default_tolerance("float32")),
        Argument("input", "float32", (100, 70), "in", "normal", tolerance=default_tolerance("float32")),
        Argument("table", "float32", (4,), "constant", str(tmp_path / "table.npy"), 0, default_tolerance("float32")),
        Argument("sums", "float64", (100,), "inout", 0, 0, 1e-3),
        Argument("rows", "int32", value=100, tolerance=0.0),
        Argument("factor", "float32", value=0.5, tolerance=default_tolerance("float32")),
    )
    assert [dict(check.sizes) for check in problem.checks] == [{"rows": 3, "columns": 70}, {"rows": 5, "columns": 1}]
    assert [dict(check.sizes) for check in other.checks] == [{"rows": 3, "columns": 9}, {"rows": 5, "columns": 1}]
    assert other.arguments[0].shape == (100, 9)


def test_sizes_that_do_not_exist_or_are_impossible_are_refused(tmp_path: Path) -> None:
    definition = loaded(tmp_path).arrays
    assert definition is not None
    with pytest.raises(UsageError, match=r"'row' is no size of scale; did you mean"):
        definition.problem({"row": 3})
    with pytest.raises(
        ProblemError, match=r"scale at rows=0 columns=70: .* cannot be 0: it is a whole number of at least 1"
    ):
        definition.problem({"rows": 0})
    with pytest.raises(ProblemError, match=r"at most 2\*\*40"):
        definition.problem({"rows": 10**7, "columns": 10**6})


def test_only_its_own_problems_are_solved(tmp_path: Path) -> None:
    kernel, other = loaded(tmp_path / "a"), loaded(tmp_path / "b", ('name = "scale"', 'name = "other"'))
    assert kernel.arrays is not None
    kernel.check_problem(kernel.arrays.problem())
    with pytest.raises(UsageError, match="does not solve sgemm NT 1: it is of kind arrays"):
        kernel.check_problem(parse_problem("sgemm", trans="NT", m=1, n=1, k=1))
    with pytest.raises(UsageError, match="a problem of another kernel"):
        other.check_problem(kernel.arrays.problem())


def test_labels_stand_for_their_values(tmp_path: Path) -> None:
    kernel = loaded(tmp_path)

    scope = kernel.space.scope({**DEVICE, "rows": 100, "columns": 70, **configuration(SHARE=1)})

    assert (str(scope["TYPE"]), scope["SHARE"], scope["THREADS"]) == ("float2", 0.25, 128)
    assert kernel.space.derived["WIDTH"].evaluate(scope) == 2
    assert kernel.space.derived["PART"].evaluate(scope) == 32
    assert kernel.space.labelled(configuration()) == {
        "THREADS": 128,
        "TYPE": "float2",
        "SHARE": 1.0,
        "FAST": 1,
        "GROUP": 2,
    }
    assert kernel.macros(configuration()) == {"THREADS": 128, "TYPE": "float2", "SHARE": 1.0, "FAST": 1}


def test_restrictions_compare_labels(tmp_path: Path) -> None:
    kernel = loaded(tmp_path)
    space = ConstrainedSpace(kernel, {**DEVICE, "rows": 100, "columns": 70})

    columns = space.rows(np.arange(space.count))

    found = {
        tuple(kernel.space.labelled({name: int(column[row]) for name, column in columns.items()}).values())
        for row in range(space.count)
    }
    assert found == {
        (threads, kind, share, fast, group)
        for threads in (64, 128, 256)
        for kind in ("float", "float2", "float4")
        for share in (0.5, 0.25, 1.0)
        for fast in (0, 1)
        for group in (1, 2)
        if (kind != "float4" or threads > 64) and (share < 1 or fast) and share * threads >= 32
    }


def test_launches_follow_from_sizes_and_labels(tmp_path: Path) -> None:
    kernel = loaded(tmp_path)
    variables = {**DEVICE, "rows": 10, "columns": 1000}

    assert kernel.launch(configuration(), variables) == Launch((4, 10, 1), (128, 1, 1), 1024, (2,))
    assert kernel.launch(configuration(TYPE=2, GROUP=1), variables) == Launch((2, 10, 1), (128, 1, 1), 2048, (1,))
    assert kernel.reference_kernel.launch(configuration(), variables) == Launch((32, 10, 1), (32, 1, 1), 0, ())


def test_the_hash_of_a_space_knows_its_labels(tmp_path: Path) -> None:
    texts = [(), ((", 0.25", ", 0.125"),), (('"float4"]', '"float8"]'),)]
    kernels = [loaded(tmp_path / str(number), *changes) for number, changes in enumerate(texts)]
    assert len({kernel.space.sha256 for kernel in kernels}) == 3


@pytest.mark.parametrize(
    "text", ["TYPE + 1 > 2", "max(TYPE, 1) > 2", "TYPE < 'float'", "TYPE", "not TYPE", "-TYPE > 0"]
)
def test_texts_are_only_compared(tmp_path: Path, text: str) -> None:
    kernel = loaded(tmp_path, ("PART >= 32", text))
    with pytest.raises(ExpressionError, match="text"):
        assert ConstrainedSpace(kernel, {**DEVICE, "rows": 100, "columns": 70}).count


def test_a_text_is_no_shape_of_a_launch(tmp_path: Path) -> None:
    kernel = loaded(tmp_path, ('block = ["THREADS"]', 'block = ["TYPE"]'))
    with pytest.raises(ExpressionError, match="sizes of a launch"):
        kernel.launch(configuration(), {**DEVICE, "rows": 10, "columns": 1000})


def test_files_with_the_answer_belong_to_outputs(tmp_path: Path) -> None:
    files = '[reference]\nanswer = { output = "table.npy" }\n'
    kernel = loaded(tmp_path, (DOCUMENT[DOCUMENT.index("[reference]") : DOCUMENT.index("[[verify]]")], files))
    assert kernel.arrays is not None
    assert kernel.arrays.reference is None
    assert kernel.arrays.answer == {"output": str(tmp_path / "table.npy")}


REFERENCE = 'entry = "simple"\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('problem = "arrays"', 'problem = "arrays"\nprecisions = ["s"]'), "has no `precisions`"),
        (
            ('problem = "arrays"', 'problem = "arrays"\nvariables = ["k"]'),
            "variables of problem 'arrays' are its sizes",
        ),
        (('problem = "arrays"', 'problem = "gemm"\nprecisions = ["s"]'), "has no such table"),
        (('source = "scale.cu"\nentry = "scale<THREADS, TYPE>"\n', ""), "it is missing, but 'arrays' needs a source"),
        (('entry = "scale<THREADS, TYPE>"', 'entry = "scale(); evil"'), "the name of a kernel, or of a template"),
        (("rows = 100", "sm_count = 100"), "'sm_count' is a keyword, or the name of a function"),
        (("rows = 100", "max = 100"), "'max' is a keyword, or the name of a function"),
        (("rows = 100", "lambda = 100"), "'lambda' is a keyword, or the name of a function"),
        (("rows = 100", "rows = -1"), "sizes.rows"),
        (('role = "out"', 'role = "in"'), ""),
        (
            ('shape = ["rows", "columns"], role = "out"', 'value = 1, shape = [1], role = "out"'),
            "both a shape",
        ),
        (('{ dtype = "int32", value = "rows" }', '{ dtype = "int32" }'), "a scalar a value"),
        (('"int32", value', '"int128", value'), "arguments.rows.dtype"),
        (('value = "rows"', 'value = "row"'), "uses row"),
        (('shape = ["rows"]', 'shape = ["THREADS"]'), "uses THREADS"),
        (('initial = "normal"', 'initial = "norml"'), "'norml' is no kind of initial values; did you mean"),
        (('initial = "table.npy"', 'initial = "none.npy"'), "there is no file 'none.npy'"),
        (('initial = "table.npy"', 'initial = "../table.npy"'), "in the folder of the bundle"),
        (('initial = "table.npy"', 'initial = "/etc/passwd.npy"'), "in the folder of the bundle"),
        (("initial = 0,", "initial = nan,"), "arguments.sums.initial"),
        (("initial = 0,", "initial = true,"), "arguments.sums.initial"),
        (("tolerance = 1e-3", "tolerance = -1"), "tolerance"),
        (("tolerance = 1e-3", 'absolute = "1e-3 * THREADS"'), "uses THREADS"),
        (("HALF =", "THREADS ="), "the name is that of a parameter; rename the macro"),
        (("HALF =", "GROUP ="), "the name is that of a parameter; rename the macro"),
        (("HALF =", "int ="), "not a keyword of C"),
        (('HALF = "rows // 2"', 'HALF = "THREADS // 2"'), "uses THREADS"),
        (('flops = "2 * rows', 'flops = "2 * THREADS'), "work.flops"),
        (("[work]", '[work]\narithmetic = "fp16"'), "work.arithmetic"),
        (("[[verify]]\nrows = 3", "[[verify]]\nrow = 3"), "'row' is no size; did you mean"),
        ((REFERENCE, REFERENCE + 'answer = { output = "table.npy" }\n'), "both an entry and files"),
        ((REFERENCE, 'answer = { input = "table.npy" }\n'), "is no output, of which alone an answer is given"),
        ((REFERENCE, 'answer = { output = "none.npy" }\n'), "there is no file 'none.npy'"),
        ((REFERENCE, 'entry = "a b"\n'), "reference.entry"),
        (('grid = ["ceil_div(columns, 32)"', 'grid = ["ceil_div(colums, 32)"'), "uses colums, but"),
        (("[default]\nTHREADS = 128\n", "[default]\n"), "lacks THREADS"),
        (("[default]\n", "[default]\nMORE = 1\n"), "has MORE"),
        (('TYPE = "float2"', 'TYPE = "double"'), "TYPE cannot be 'double': it is one of ['float', 'float2', 'float4']"),
        (("GROUP = 2", "GROUP = 3"), "GROUP cannot be 3: it is one of [1, 2]"),
        (("SHARE = [0.5, 0.25, 1]", "SHARE = [0.5, 0.25, nan]"), "parameters.SHARE"),
        (("SHARE = [0.5, 0.25, 1]", "SHARE = [0.5, 0.5]"), "one or more, and distinct"),
        (('"float4"]', '"float\\n4"]'), "printable ASCII"),
        (("GROUP = [1, 2]", "GROUP = [1, 2.5]"), "has others than integers"),
        (("GROUP = [1, 2]", 'GROUP = ["a", "b"]'), "has others than integers"),
    ],
)
def test_a_malformed_bundle_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    if change[1] == 'role = "in"':
        bundle(tmp_path, change, ('role = "inout", initial = 0', "initial = 0"))
        message = 'at least one must be an array of role "out" or "inout"'
    else:
        bundle(tmp_path, change)
    with pytest.raises(BundleError) as error:
        load_kernel(tmp_path)
    assert message in str(error.value)
    assert str(tmp_path / "kernel.toml") in str(error.value)


def test_a_scalar_has_no_role_of_an_array(tmp_path: Path) -> None:
    bundle(tmp_path, ('"int32", value = "rows"', '"int32", value = "rows", role = "out"'))
    with pytest.raises(BundleError, match=r"arguments.rows: role cannot be 'out': a scalar is read"):
        load_kernel(tmp_path)


def test_a_file_outside_is_not_reached_by_a_link(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.ones(4, dtype=np.float32))
    folder = bundle(tmp_path / "bundle")
    (folder / "table.npy").unlink()
    (folder / "table.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(BundleError, match="in the folder of the bundle"):
        load_kernel(folder)


def test_an_absolute_error_follows_from_the_sizes(tmp_path: Path) -> None:
    folder = bundle(tmp_path, ("tolerance = 1e-3", 'absolute = "0.5 * (rows - 3)"'))
    arrays = load_kernel(folder).arrays
    assert arrays is not None
    assert {one.name: one.absolute for one in arrays.problem({"rows": 16}).arguments}["sums"] == 6.5
    with pytest.raises(ProblemError, match=r"rows=2 .* cannot be -0\.5: it is an error that is allowed, at least 0"):
        arrays.problem({"rows": 2})


def test_a_sum_of_any_size_may_be_near_zero_and_lacks_no_element() -> None:
    """One that rounds for every 32 elements is right, wherever it ends; one without an element, of few, is not."""
    arrays = load_kernel("reduction").arrays
    assert arrays is not None
    for n in (262147, 2**20, 2**24):
        sums = np.random.default_rng(n).uniform(-1, 1, n)[: n // 32 * 32].astype(np.float32).reshape(-1, 32).sum(axis=1)
        error = abs(float(np.cumsum(sums, dtype=np.float32)[-1]) - float(sums.sum(dtype=np.float64)))
        assert error < arrays.problem({"n": n}).arguments[0].absolute / 2
    assert arrays.problem({"n": 262147}).arguments[0].absolute < 0.04
