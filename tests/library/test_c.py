"""The source of a library, compiled, against what mltune computes in Python. The driver only records launches."""

import ctypes
import functools
import math
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from c_library import build_driver, call, content_of, fake_map

from mltune.device.known import H200
from mltune.errors import ExpressionError, UsageError
from mltune.kernel.expressions import parse
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import find
from mltune.library.c_expressions import to_c
from mltune.library.content import (
    Configuration,
    Content,
    Parameter,
    configuration_of,
    is_valid_at_all_sizes,
    parameters_of,
    tiles_at,
)
from mltune.library.dispatcher import Dispatcher
from mltune.library.document import NAME, ConfigurationOfLibrary
from mltune.library.folder import compiled, read_document, write_library
from mltune.library.machine_code import choice
from mltune.library.source import COUNTERS, c_files, check_name
from mltune.problem.gemm import parse_problem
from mltune.records.trial import Build, TrialState

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

EXPRESSIONS = (
    "a + b * 3 - 7", "a // b", "(a - 50) // 7", "(a - 50) % 7", "a % b", "ceil_div(a - 60, b)", "ceil_div(a, 8) * 2**b",
    "min(a, b, 9)", "max(a - b, b - a)", "abs(a - 40)", "a / b * 3", "floor(a / 7)", "ceil((a - 50) / 7)",
    "log2(a - 9) + 1", "is_pow2(a)", "a if b > 3 else b", "a / 2 if b > 3 else b", "1 < a <= 30 < 2 * b",
    "a > 3 and b // (a - 4) > 0",
    "a == 4 or b // (a - 4) > 0", "not a % 2", "-a + 200", "+a", "1.5 * a", "a ** (b % 4)", "(a / 4) ** 2",
    "3.0 // (b - 2)",
    "(a / 2) % 3", "(a > 10) + 2 * (b > 10)", "max(a, 2.5)", "1000000 * a * 1000000 * b",
)  # fmt: skip
ARRAY = Parameter("out", "float32", "out")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a function that compiles a library without a warning, each source once, and returns its shared object."""

    @functools.cache
    def compile_files(content_name, files):
        folder = tmp_path_factory.mktemp("library")
        for name, data in files:
            (folder / name).write_bytes(data)
        strict = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-std=c99", "-shared", "-fPIC", f"{content_name}.c"]
        subprocess.run([*strict, "-o", f"lib{content_name}.so", "-ldl", "-lm"], cwd=folder, check=True)
        return folder / f"lib{content_name}.so"

    return lambda content: compile_files(content.name, tuple(c_files(content).items()))


def toy_document(blocks, condition):
    """Return a configuration with one dimension of blocks, on one condition."""
    launch = {"grid": [blocks, "1", "1"], "block": ["32", "1", "1"], "shared_bytes": "0", "workspace_bytes": None}
    launch |= {"zeros": None, "tiles": "1", "of_tile": "0", "launched": []}
    names = {"kernel": "toy", "configuration": {}, "entry": "toy", "sizes_must_satisfy": {condition: ""}}
    return ConfigurationOfLibrary.model_validate(names | {"launch": launch, "most_shared_bytes": 0, "cubin": 0})


def with_document(configuration, launch=None, **change):
    """Return a configuration with another document."""
    document = configuration.document
    launch = document.launch.model_copy(update=launch or {})
    return replace(configuration, document=document.model_copy(update={"launch": launch, **change}))


def of_expressions(expressions):
    """Return a library of which configuration i is valid where `which` is i, with an expression as its grid."""
    cubin = b"\x7fELF" + bytes([1, 8])
    configurations = tuple(
        Configuration(toy_document(f"floor(16 * ({expression})) + 100000", f"which == {number}"), cubin)
        for number, expression in enumerate(expressions)
    )
    dispatcher = Dispatcher(((1.0, *[0.0] * 11),) * len(expressions), 132)
    device = {"name": "toy", "compute_capability": (9, 0), "sm_count": 132}
    sizes = ("a", "b", "which")
    return Content("toy", {}, "toy", sizes, ("a",), (ARRAY,), 16, device, configurations, dispatcher, {}, {})


def test_expressions_have_the_values_that_they_have_in_python(driver, built):
    pairs = [(a, b) for a in (1, 2, 4, 5, 9, 10, 17, 31, 32, 63, 64, 100) for b in (0, 1, 2, 3, 5, 40)]
    calls = [(which, a, b) for which in range(len(EXPRESSIONS)) for a, b in pairs]
    shared = built(of_expressions(EXPRESSIONS))
    given = [{"arguments": [a, b, which, 4096], "workspace": 0, "bytes": 0} for which, a, b in calls]
    answer = call(driver, shared, "toy", ["int64", "int64", "int64", "pointer"], given)
    undefined = 0
    for (which, a, b), (status, shape, *_) in zip(calls, answer["found"], strict=True):
        try:
            value = np.asarray(parse(f"floor(16 * ({EXPRESSIONS[which]})) + 100000").evaluate({"a": a, "b": b})).item()
        except ExpressionError:
            value, undefined = None, undefined + 1
        expected = (-5, None) if value is None or not 0 <= value < 2**31 else (0, value)
        assert (status, shape and shape[0]) == expected, (EXPRESSIONS[which], a, b)
    assert undefined > 50


def test_the_dispatcher_counts_tiles_of_which_there_are_none_where_they_are_undefined(driver, built):
    content = of_expressions(("1", "2"))
    configurations = tuple(
        with_document(configuration, {"tiles": "1000 // b", "of_tile": "3 // b"}, sizes_must_satisfy={})
        for configuration in content.configurations
    )
    waves = ((0.0, 0.0, 1.0, *[0.0] * 9), (2.5, *[0.0] * 11))  # of 132 tiles, and a constant
    dispatcher = Dispatcher(waves, 132)
    shared = built(replace(content, configurations=configurations, dispatcher=dispatcher))
    given = [{"arguments": [1, b, 0, 4096], "workspace": 0, "bytes": 0} for b in (0, 1, 5)]
    found = call(driver, shared, "toy", ["int64", "int64", "int64", "pointer"], given)["found"]
    assert [(status, shape[0]) for status, shape, *_ in found] == [(0, 100016), (0, 100032), (0, 100016)]
    assert [dispatcher.order((1,), [[tiles, 3.0]] * 2)[0] for tiles in (0.0, 1000.0, 200.0)] == [0, 1, 0]


def test_tiles_are_what_blocks_take_one_after_the_other():
    kernel, problem = load_kernel("gemm_wgmma"), parse_problem("hgemm", size=4096)
    one = {**kernel.compiler.completed(kernel.space.default), "BLK_M": 128, "BLK_N": 128, "SPLIT_K": 1}
    made = configuration_of(PlacedKernel(kernel, problem, H200), one, Build(TrialState.OK)).document.launch
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    assert (
        tiles_at(PlacedKernel(kernel, problem, H200), [one]).tolist()
        == [[1024, 0]]
        == [[parse(made.tiles).evaluate(sizes), 0]]
    )
    assert made.of_tile == "0"
    assert math.prod(parse(axis).evaluate(sizes) for axis in made.grid) == 132


HOSTILE_NAMES = (
    "INFINITY", "NAN", "NULL", "EOF", "I", "M_PI", "memory", "restrict", "typeof", "exit", "malloc", "read", "s", "x",
    "bad", "one", "undefined", "launch",
)  # fmt: skip


@pytest.mark.parametrize(
    "compiler", [["gcc", "-std=c99"], ["gcc", "-std=gnu2x"], ["g++", "-x", "c++", "-fsyntax-only"]]
)
def test_sizes_and_arguments_may_have_any_name(tmp_path, compiler):
    """Names of macros, words of C and names of the templates do not disturb the source, nor the header in C++."""
    roles = ["out", "scalar"] * len(HOSTILE_NAMES)
    parameters = tuple(Parameter(name, "float32", role) for name, role in zip(HOSTILE_NAMES, roles, strict=False))
    content = replace(of_expressions(("a",)), parameters=parameters)
    for name, data in c_files(content).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "use.cpp").write_text(
        '#include <cmath>\n#include <cstdio>\n#include <unistd.h>\n#include <complex.h>\n#include "toy.h"\n'
    )
    source = "use.cpp" if "c++" in compiler else "toy.c"
    output = [] if "c++" in compiler else ["-c", "-o", "toy.o"]
    subprocess.run([*compiler, "-Wall", "-Werror", *output, source], cwd=tmp_path, check=True)


def test_a_library_exports_names_that_begin_with_its_own(built):
    shared = built(of_expressions(("a",)))
    listed = subprocess.check_output(["nm", "-D", "--defined-only", shared], text=True).split("\n")
    names = {line.split()[-1] for line in listed if line}
    assert names == {
        f"toy{end}" for end in ("", "_create", "_destroy", "_choice", "_configuration", "_error", "_packed")
    }


@pytest.mark.system
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_library_of_a_name_in_the_templates_is_refused_or_compiles(tmp_path, step):
    content = of_expressions(("a ** 2", "log2(a / b)"))
    source = c_files(content)["toy.c"].decode()
    names = {name for name in re.findall(r"[a-z_][a-z0-9_]*", source) if "toy" not in name and re.fullmatch(NAME, name)}
    compiled_ones = 0
    for name in sorted(names)[::step]:
        try:
            check_name(name)
        except UsageError:
            continue
        for file, data in c_files(replace(content, name=name)).items():
            (tmp_path / file).write_bytes(data)
        subprocess.run(["gcc", "-fsyntax-only", f"{name}.c"], cwd=tmp_path, check=True)
        compiled_ones += 1
    assert 50 < compiled_ones * step < len(names)


@pytest.mark.parametrize("text", ["'wide' == 'wide'", "other + 1", "m.real", "[m][0]", "open(m)"])
def test_what_has_no_counterpart_in_c_is_refused(text):
    with pytest.raises(ExpressionError, match=r"counterpart"):
        to_c(text, {"m": "m"})


DEEP = {"m": 300, "n": 300, "k": 4096}
CASES = {
    "sgemm_nn": ("gemm_simt", parse_problem("sgemm", trans="NN", **DEEP), ("m", "n", "k")),
    "sgemm_tt": ("gemm_simt", parse_problem("sgemm", trans="TT", **DEEP), ("m", "n", "k")),
    "dgemm_tt": ("gemm_simt", parse_problem("dgemm", trans="TT", **DEEP), ("m", "n", "k")),
    "sgemm_nt": (
        "gemm_simt",
        parse_problem("sgemm", trans="NT", m=100, n=100, k=4096, batch=7),
        ("m", "n", "k", "batch"),
    ),
    "hgemm_tn": ("gemm_wgmma", parse_problem("hgemm", trans="TN", **DEEP), ("m", "n", "k")),
    "hgemm_nn": ("gemm_wgmma", parse_problem("hgemm", trans="NN", m=299, n=299, k=4096), ("m", "n", "k")),
    "sgemm_tn": ("gemm_split", parse_problem("sgemm", trans="TN", size=1024), ("m", "n", "k")),
    "reduction": ("reduction", load_kernel("reduction").arrays.problem(), ("n",)),
    "softmax": ("softmax", load_kernel("softmax").arrays.problem(), ("rows", "columns")),
}


# Types of sgemm_tt are those of sgemm_nn, and its launches those of dgemm_tt; hgemm_nn is much like hgemm_tn,
# and a reduction like softmax.
NIGHTLY = {"sgemm_tt", "hgemm_nn", "reduction"}


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.nightly] * (one in NIGHTLY)) for one in CASES])
def test_every_launch_is_the_one_that_mltune_computes(driver, built, name):
    """The configuration, grid, block, shared memory, workspace and all arguments at many sizes."""
    kernel_name, problem, extents = CASES[name]
    content = content_of(kernel_name, problem, extents)
    signature, rng = content.signature(), np.random.default_rng(1)
    calls, sizes_of = [], []
    for number in range(100):
        sizes = {one: int(2 ** rng.uniform(0, 12)) for one in content.sizes}
        values = {
            **sizes,
            **{one.name: 256 * (1 + place) for place, one in enumerate(signature) if one.name not in sizes},
        }
        workspace = 2**20 if number % 3 else 0
        calls.append({"arguments": [values[one.name] for one in signature], "workspace": workspace, "bytes": 2**40})
        sizes_of.append(sizes)
    types = ["int64" if one.role == "size" else one.dtype if one.role == "scalar" else "pointer" for one in signature]
    answer = call(driver, built(content), name, types, calls)
    assert (answer["status"], answer["left"]) == (0, 0)
    kernel, used, stay, mapped = load_kernel(kernel_name), set(), set(), set()
    for sizes, made, (status, shape, arguments, zeroed) in zip(sizes_of, calls, answer["found"], strict=True):
        one, launch = expected(kernel, content, problem, sizes, bool(made["workspace"]))
        if one is None:
            assert status == -5
            continue
        used.add(one)
        if content.configurations[one].document.configuration.get("SPLIT_K") == 0:
            stay.add(launch.grid)
        assert status == 0
        assert shape == [*launch.grid, *launch.block, launch.shared_bytes]
        needed, zeros, is_cleared = place_of(content.configurations[one].document.launch, launch, sizes)
        assert zeroed == (launch.workspace_bytes if is_cleared else 0)
        after = len(content.parameters)
        assert arguments[after : after + len(launch.arguments)] == list(launch.arguments)
        for place, parameter in enumerate(content.parameters):
            if parameter.role == "computed":
                assert arguments[place] == parse(parameter.value).evaluate(sizes)
            elif parameter.role != "scalar":
                assert arguments[place] == made["arguments"][signature.index(parameter)]
        if kernel.launch_rule.workspace is not None:
            assert arguments[after + len(launch.arguments)] == (made["workspace"] + COUNTERS - zeros if needed else 0)
        after += len(launch.arguments) + (kernel.launch_rule.workspace is not None)
        maps = [fake_map(matrix, arguments[matrix.place]) for matrix in launch.tensor_maps]
        assert arguments[after : after + len(maps)] == maps
        mapped.update(map(bool, maps))
    assert len(used) > 1
    assert mapped == ({False, True} if kernel.launch_rule.tensor_maps else set())  # of lines that begin anywhere none
    if name == "hgemm_nn":  # rows that begin anywhere
        assert {content.configurations[one].document.configuration["PACK"] for one in used} == {0, 1}
    elif kernel_name in ("gemm_simt", "gemm_wgmma"):  # parts or blocks that follow from the sizes; a batch has none
        assert len(stay) >= 2 or "batch" in extents


@pytest.mark.parametrize(
    "name", ["sgemm_nt", "hgemm_tn", "softmax", pytest.param("hgemm_nn", marks=pytest.mark.nightly)]
)
def test_python_chooses_from_the_document_what_the_library_chooses(tmp_path, built, name):
    """The gate asks the document alone; a workspace is as large as it needs to be."""
    kernel_name, problem, extents = CASES[name]
    content = content_of(kernel_name, problem, extents)
    write_library(tmp_path / "lib", content)
    document, rng = read_document(tmp_path / "lib"), np.random.default_rng(2)
    choose = getattr(ctypes.CDLL(built(content)), f"{content.name}_choice")
    choose.argtypes = [*[ctypes.c_int64] * len(content.sizes), ctypes.c_size_t, ctypes.c_void_p]
    chosen, exact = set(), content.dispatcher.exact
    for number in range(75):
        sizes = {size: int(2 ** rng.uniform(0, 14)) * (number % 50 > 0) for size in content.sizes}
        sizes |= {content.sizes[0]: 2**31} if number == 1 else {}
        if number % 3 == 0:  # listed, with leading dimensions that are as small as can be, or any
            sizes |= dict(zip(extents, exact[number % len(exact)], strict=False))
        of_c, of_python = choose(*sizes.values(), 2**62, None), choice(document, sizes)
        assert of_python == (None if of_c < 0 else of_c), sizes
        chosen.add(of_python)
    assert len(chosen) > 3
    assert None in chosen


def place_of(formulas, launch, sizes):
    """Return the bytes of a workspace with the counters before it, those that are zero, and whether it is cleared."""
    size = launch.workspace_bytes or 0
    zeros = size if formulas.zeros is None else int(parse(formulas.zeros).evaluate(sizes))
    is_cleared = size > 0 and (zeros >= size or zeros > COUNTERS)
    zeros = 0 if is_cleared else zeros
    return COUNTERS + size - zeros if size else 0, zeros, is_cleared


def expected(kernel, content, problem, sizes, has_workspace):
    """Return the configuration and its launch by the bundle's own expressions."""
    from mltune.kernel.bundle import device_variables

    variables = {**problem.variables, **device_variables(H200), **sizes}
    texts = np.array([[one.document.launch.tiles, one.document.launch.of_tile] for one in content.configurations])
    found = [parse(text).evaluate_partial(sizes) for text in texts.flat]
    known = np.array([float(one.value) if one.defined else 0.0 for one in found]).reshape(texts.shape)
    for number in content.dispatcher.order([sizes[one] for one in content.extents], known):
        labels = content.configurations[number].document.configuration
        configuration = {
            name: kernel.space.labels[name].index(v) if name in kernel.space.labels else v for name, v in labels.items()
        }
        scope = kernel.space.scope({**variables, **configuration})
        if not all(one.expression.evaluate_partial(scope).truth() for one in kernel.space.needed):
            continue
        launch = kernel.launch(configuration, variables)
        if launch.grid[1] > 65535 or launch.grid[2] > 65535 or (launch.workspace_bytes and not has_workspace):
            continue
        return number, launch
    return None, None


def test_empty_results_are_no_launch_and_impossible_sizes_an_error(driver, built):
    content = content_of(*CASES["sgemm_nn"])
    types = [
        "int64",
        "int64",
        "int64",
        "float32",
        "pointer",
        "int64",
        "pointer",
        "int64",
        "float32",
        "pointer",
        "int64",
    ]
    sizes = [(0, 5, 5), (5, 0, 5), (5, 5, 0), (-1, 5, 5), (2**31, 5, 5)]
    calls = [{"arguments": [*size, 1.0, 256, 8, 256, 8, 0.0, 256, 8], "workspace": 0, "bytes": 0} for size in sizes]
    found = call(driver, built(content), "sgemm_nn", types, calls)["found"]
    assert [(status, shape is not None) for status, shape, *_ in found] == [
        (0, False), (0, False), (0, True), (-5, False), (-5, False),
    ]  # fmt: skip


def test_arrays_of_a_kernel_that_was_verified_aligned_must_be_aligned(driver, built):
    content = content_of("reduction", CASES["reduction"][1], ("n",))
    calls = [{"workspace": 0, "bytes": 0} for _ in range(2)]
    types = ["pointer" if one.role in ("in", "inout") else "int64" for one in content.signature()]
    order = [one.name for one in content.signature()]
    for one, address in zip(calls, (256, 260), strict=True):
        one["arguments"] = [{"n": 1000, "sum": 256, "input": address}[name] for name in order]
    assert [status for status, *_ in call(driver, built(content), "reduction", types, calls)["found"]] == [0, -7]


@pytest.mark.parametrize(
    ("environment", "abi", "change", "status", "text"),
    [
        ({}, 1, {}, 0, "success"),
        ({"FAKE_MAJOR": "8"}, 1, {}, -3, "built for NVIDIA H200 .compute capability 9.0.*build it for this GPU"),
        ({"FAKE_SMS": "108"}, 1, {}, -3, "at least 132 multiprocessors"),
        ({"FAKE_CONTEXT": "0"}, 1, {}, -2, "a CUDA context must be current"),
        ({}, 2, {}, -4, "header and library must be of one version"),
        ({}, 1, {"cubin": b"damaged code"}, 200, "the driver failed"),
        ({}, 1, {"entry": "gone"}, 500, "the driver failed"),
    ],
)
def test_what_cannot_run_is_refused_when_the_library_is_made(driver, built, environment, abi, change, status, text):
    content = content_of(*CASES["sgemm_nn"], count=3)
    first = content.configurations[1]
    first = replace(first, **change) if "cubin" in change else with_document(first, **change)
    content = replace(content, configurations=(content.configurations[0], first, content.configurations[2]))
    answer = call(driver, built(content), "sgemm_nn", [], [], abi, **environment)
    assert answer["status"] == status
    assert re.search(text, answer["text"])
    assert answer["left"] == 0


def test_a_header_is_one_of_c_and_of_cpp(tmp_path):
    files = c_files(content_of(*CASES["sgemm_nn"]))
    (tmp_path / "sgemm_nn.h").write_bytes(files["sgemm_nn.h"])
    (tmp_path / "use.cpp").write_text('#include "sgemm_nn.h"\nint main() { return sgemm_nn_error(0) == nullptr; }\n')
    subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", "-c", "use.cpp"], cwd=tmp_path, check=True)


def test_a_header_says_of_what_type_and_where_arguments_are():
    content = of_expressions(("a",))
    typed = c_files(content)["toy.h"].decode()
    assert "in the memory of the GPU, at multiples of 16 bytes; a stream that is NULL is the default one." in typed
    assert "void * points" not in typed
    strange = (replace(ARRAY, dtype="float16"), Parameter("alpha", "complex64", "scalar"))
    header = c_files(replace(content, parameters=strange, alignment=1))["toy.h"].decode()
    assert "void * points to: out_ float16, alpha_ complex64; scalars lie in the memory of the host." in header
    assert "multiples" not in header


@pytest.mark.parametrize("name", ["sgemm_nn", "hgemm_tn", "softmax"])
def test_a_source_is_compiled_by_a_compiler_of_cpp_too(tmp_path, name):
    """As by `g++ program.cpp sgemm_nn.c`, which takes both for C++."""
    for file, data in c_files(content_of(*CASES[name], count=3)).items():
        (tmp_path / file).write_bytes(data)
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-c", f"{name}.c"], cwd=tmp_path, check=True)


def test_names_of_arguments_that_c_has_taken_are_others_there(tmp_path):
    content = of_expressions(("a",))
    content = replace(content, parameters=(replace(ARRAY, name="stream"), Parameter("int", "float64", "scalar")))
    assert compiled("toy", c_files(content))


def test_an_array_in_constant_memory_is_refused():
    with pytest.raises(UsageError, match="filter lies in constant memory"):
        parameters_of([{"name": "filter", "type": "pointer to float32", "role": "constant"}], {}, (), {})


@pytest.mark.parametrize(("split", "in_search"), [(1, [False, True]), (0, [False, False])])
def test_what_does_the_same_as_another_configuration_runs_in_a_library_but_is_in_no_search(split, in_search):
    """Rows of 1000 need no packing; 64 tiles of 16 steps are not divided."""
    kernel = load_kernel("gemm_wgmma")
    configuration = {**kernel.space.default, "BLK_M": 64, "BLK_N": 64, "CLUSTER": 1, "PACK": 1, "SPLIT_K": split}
    for k, wanted in zip((1000, 1001), in_search, strict=True):
        problem = parse_problem("hgemm", trans="TN", m=500, n=500, k=k)
        assert (find(PlacedKernel(kernel, problem, H200).space, configuration) >= 0) == wanted
        assert np.isfinite(tiles_at(PlacedKernel(kernel, problem, H200), [configuration])).all()
        assert is_valid_at_all_sizes(PlacedKernel(kernel, problem, H200), configuration)
