"""Kernels given in Python: launches, restrictions, labels, macros, arguments, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.errors import BundleError, ExpressionError, SpaceError, UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.kernel_tuner_call import CallOptions, check_call, read_sources
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.python_kernel import RESERVED, KernelCall, make_kernel, with_sizes
from mltune.measure.build import NvrtcBuilder, definitions
from mltune.problem.array_values import initial_array
from mltune.problem.kinds import problem_from_json
from mltune.records.trial import TrialState
from mltune.results.winner_texts import header_files
from tests import needs

SOURCE = "__global__ void add(float* out, const float* in, int n) { out[0] = in[n]; }"
PARAMETERS = {"block_size_x": [32, 64, 128], "TILE": [1, 2, 4]}
N = np.int32(1000)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Return a function that makes a kernel of a call."""

    def make(problem_size: Any = 1000, parameters: Any = PARAMETERS, arguments: Any = (), **options: Any) -> Any:
        given = arguments or [np.zeros(1000, np.float32), np.ones((10, 100), np.float32), N]
        name = options.pop("name", "add")
        source = options.pop("source", SOURCE)
        return make_kernel(KernelCall(name, source, problem_size, given, parameters, **options), tmp_path)

    return make


def configuration(block: int = 64, tile: int = 2) -> dict[str, int]:
    return {"block_size_x": block, "TILE": tile}


@pytest.mark.parametrize(
    ("size", "divisors", "grid"),
    [
        (1000, (None, None, None), (16, 1, 1)),
        ((1000,), (["block_size_x", "TILE"], None, None), (8, 1, 1)),
        ((1000, 7), (["block_size_x * TILE"], ["TILE"], None), (8, 4, 1)),
        ((1000, 7, 3), (None, [], [2]), (16, 7, 2)),
        ((np.int64(1000), np.int32(5)), (None, None, None), (16, 5, 1)),
        (np.array([1000, 5]), ([], [], None), (1000, 5, 1)),
        ("block_size_x * 10", (None, None, None), (10, 1, 1)),
        (("TILE * 100", 3), ([10], None, None), (20, 3, 1)),
        (lambda p: 10 * p["TILE"], ([], None, None), (20, 1, 1)),
        (lambda p: (p["TILE"] * 64, 3), (None, None, None), (2, 3, 1)),
        (1000, (lambda p: p["TILE"] * 100, None, None), (5, 1, 1)),
        ((1000, 7), ("block_size_x * TILE", 2, None), (8, 4, 1)),
        ((1000, 7), (("block_size_x", np.int32(2)), [lambda p: p["TILE"]], None), (8, 4, 1)),
        (1000.0, ("TILE", None, None), (500, 1, 1)),
        ((1000, lambda p: p["TILE"]), ([], None, None), (1000, 2, 1)),
    ],
)
def test_grids_follow_from_sizes_and_divisors(made: Any, size: Any, divisors: Any, grid: tuple[int, ...]) -> None:
    launch = made(size, grid_divisors=divisors).launch(configuration(), {})
    assert (launch.grid, launch.block, launch.shared_bytes, launch.arguments) == (grid, (64, 1, 1), 0, ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem_size": lambda p: 1 // (p["TILE"] - 2)}, "problem_size raised ZeroDivisionError.*'TILE': 2"),
        ({"problem_size": lambda p: p["TILE"] / 4}, "problem_size cannot be 0.5 for .*'TILE': 2.*an integer >= 1"),
        ({"problem_size": "TILE - 2"}, "problem_size cannot be 0 for .*an integer >= 1"),
        ({"grid_divisors": (["TILE - 2"], None, None)}, "grid_div_x is 0 for .*'TILE': 2"),
        ({"grid_divisors": (None, lambda p: p["NONE"], None)}, "grid_div_y raised KeyError: 'NONE'.*'TILE': 2"),
        ({"shared": lambda p: -p["TILE"]}, "smem_args: size cannot be -2 for .*'TILE': 2.*an integer >= 0"),
        ({"shared": lambda p: p["NONE"]}, "smem_args raised KeyError: 'NONE'.*'TILE': 2"),
        ({"defines": {"W": lambda p: p["NONE"]}}, "the function of the macro W raised KeyError.*'TILE': 2"),
    ],
)
def test_the_error_of_a_launch_names_what_is_wrong_and_the_configuration(made: Any, options: Any, message: str) -> None:
    kernel = made(**options)
    step = kernel.macros if "defines" in options else lambda values: kernel.launch(values, {})
    with pytest.raises(UsageError, match=message):
        step(configuration())


@needs.nvrtc
def test_a_configuration_without_a_grid_fails_alone(made: Any) -> None:
    kernel = made(grid_divisors=("block_size_x - 32", None, None))
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        builds = [builder.submit(configuration(block)).result() for block in (32, 64)]
    assert [build.state for build in builds] == ["compile_error", "ok"]
    assert "it must be positive" in builds[0].detail


def test_blocks_have_their_own_names(made: Any) -> None:
    parameters = {"BX": [16, 32], "BY": [2, 4]}
    kernel = made((100, 100), parameters, block_names=["BX", "BY", "BZ"])
    launch = kernel.launch({"BX": 16, "BY": 4}, {})
    assert (launch.grid, launch.block) == ((7, 25, 1), (16, 4, 1))
    unnamed = made((100, 100), parameters).launch({"BX": 16, "BY": 4}, {})
    assert (unnamed.grid, unnamed.block) == ((100, 100, 1), (256, 1, 1))


@pytest.mark.parametrize("shared", [256, lambda p: 2 * p["TILE"] * p["block_size_x"]])
def test_shared_memory_may_follow_from_the_configuration(made: Any, shared: Any) -> None:
    assert made(shared=shared).launch(configuration(), {}).shared_bytes == 256


def test_macros_are_those_of_kernel_tuner(made: Any) -> None:
    kernel = made((1000, 6), {**PARAMETERS, "T": ["float", "half"], "F": [0.5, 1], "B": [True, False]})
    assert kernel.macros({**configuration(), "T": 1, "F": 1, "B": 1}) == {
        "grid_size_x": 16,
        "grid_size_y": 6,
        "grid_size_z": 1,
        "block_size_x": 64,
        "block_size_y": 1,
        "block_size_z": 1,
        "TILE": 2,
        "T": "half",
        "F": 1.0,
        "B": 1,
        "kernel_tuner": 1,
    }


def test_macros_may_be_defined_besides(made: Any) -> None:
    given = {"T": "float", "N": np.int64(3), "SHARE": np.float32(0.5), "W": lambda p: p["TILE"] * 4}
    macros = made(defines=given).macros(configuration())
    assert {name: macros[name] for name in given} == {"T": "float", "N": 3, "SHARE": 0.5, "W": 8}
    assert definitions(macros).endswith("#define W 8\n#define kernel_tuner 1\n")


def placed(kernel: Kernel) -> PlacedKernel:
    return PlacedKernel(kernel, kernel.arrays.problem(), H200)


def valid(kernel: Kernel) -> set[tuple[Any, ...]]:
    space = placed(kernel).space
    columns = space.rows(np.arange(space.count))
    return {
        tuple(kernel.space.labelled({name: int(column[row]) for name, column in columns.items()}).values())
        for row in range(space.count)
    }


@pytest.mark.parametrize(
    "restrictions",
    [
        "block_size_x * TILE <= 128",
        ["block_size_x * TILE <= 128"],
        lambda p: p["block_size_x"] * p["TILE"] <= 128,
        lambda block_size_x, TILE: block_size_x * TILE <= 128,
        ["block_size_x * TILE <= 256", lambda p: p["block_size_x"] * p["TILE"] <= 128],
        [lambda TILE: TILE < 9, lambda p: p["block_size_x"] * p["TILE"] <= 128],
    ],
)
def test_restrictions_are_texts_and_functions(made: Any, restrictions: Any) -> None:
    expected = {(block, tile) for block in (32, 64, 128) for tile in (1, 2, 4) if block * tile <= 128}
    assert valid(made(restrictions=restrictions)) == expected


def test_values_of_any_type_are_restricted_as_they_are(made: Any) -> None:
    parameters = {"T": ["float", "half"], "F": [0.5, 0.25, 1], "B": [True, False]}
    law = "T == 'half' or F < 1"
    expected = {(t, f, b) for t in ("float", "half") for f in (0.5, 0.25, 1.0) for b in (1, 0) if t == "half" or f < 1}
    assert valid(made(parameters=parameters, restrictions=law)) == expected
    assert valid(made(parameters=parameters, restrictions=lambda p: p["T"] == "half" or p["F"] < 1)) == expected
    with pytest.raises(ExpressionError, match="text"):
        valid(made(parameters=parameters, restrictions="T + 1 > 2"))


@pytest.mark.parametrize(
    ("restrictions", "fact"), [("TILE > 4", "none .* satisfies every restriction"), (lambda p: False, "table is empty")]
)
def test_a_space_without_configurations_is_refused(made: Any, restrictions: Any, fact: str) -> None:
    with pytest.raises(SpaceError, match=fact):
        assert placed(made(restrictions=restrictions)).space.count


def test_a_function_is_not_asked_too_often(made: Any) -> None:
    parameters = {f"P{number}": list(range(100)) for number in range(4)}
    with pytest.raises(UsageError, match="too many for a function, which is asked about each: at most 2,000,000"):
        made(parameters=parameters, restrictions=lambda p: True)


def test_the_default_is_the_first_or_the_given_or_the_nearest(made: Any) -> None:
    for options, expected in (
        ({}, configuration(32, 1)),
        ({"default": {"TILE": 2, "block_size_x": 128}}, configuration(128, 2)),
        ({"restrictions": "TILE > 1"}, configuration(32, 2)),
        ({"restrictions": lambda p: p["TILE"] > 1}, configuration(32, 2)),
    ):
        kernel = made(**options)
        assert placed(kernel).default == expected
    labelled = made(parameters={"T": ["float", "half"], "F": [0.5, 1]}, default={"T": "half", "F": 1})
    assert labelled.space.default == {"T": 1, "F": 1}


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ({"TILE": 2}, "lacks block_size_x"),
        ({"TILE": 3, "block_size_x": 32}, r"TILE cannot be 3: it is one of \[1, 2, 4\]"),
    ],
)
def test_a_default_is_a_configuration(made: Any, default: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(default=default)


def test_arguments_keep_type_shape_and_values(made: Any) -> None:
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    arguments = [x, np.float32(0.5), np.uint64(2**64 - 1), np.bool_(True), np.array(7.0)]

    kernel = made(arguments=arguments, constants={"filter": np.ones(3, np.float64)}, absolute=0.25)

    problem = kernel.arrays.problem()
    assert [(one.name, one.dtype, one.shape, one.role) for one in problem.arguments] == [
        ("argument_0", "int16", (2, 3), "inout"),
        ("argument_1", "float32", None, "in"),
        ("argument_2", "uint64", None, "in"),
        ("argument_3", "bool", None, "in"),
        ("argument_4", "float64", (1,), "inout"),
        ("filter", "float64", (3,), "constant"),
    ]
    operands = problem.operands(np, 0)
    assert operands["argument_0"].tolist() == [0, 1, 2, 3, 4, 5]
    assert problem.kernel_arguments(operands)["argument_2"] == 2**64 - 1
    assert [one.absolute for one in problem.arrays] == [0.25, 0.25, 0]
    assert (problem.arithmetic, kernel.arrays.arithmetic) == ("fp64", "fp64")


def test_answers_are_kept_as_files(made: Any, tmp_path: Path) -> None:
    x, right = np.zeros((2, 3), np.float32), np.arange(6).reshape(2, 3)
    for answer in ([right, None, None], lambda *arguments: [right, None, None]):
        kernel = made(arguments=[x, x, N], answer=answer, flops=10, bytes=20)
        (file,) = kernel.arrays.answer.values()
        assert Path(file).parent == tmp_path
        assert initial_array(np, None, "float32", (2, 3), file).tolist() == [0, 1, 2, 3, 4, 5]
        problem = kernel.arrays.problem()
        assert (problem.flops, problem.bytes) == (10, 20)


def test_a_template_gives_its_kernel_a_plain_name(made: Any) -> None:
    kernel = made(name="space::add<float, TILE>")
    assert (kernel.name, kernel.source.entry) == ("space_add", "space::add<float, TILE>")
    assert kernel.arrays.problem().name == kernel.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": [1.0]}, "a number without a NumPy type"),
        ({"arguments": [3]}, "a number without a NumPy type"),
        ({"arguments": [np.complex64(1)]}, "a scalar argument is a real number"),
        ({"arguments": [np.array(["a"])]}, "an argument is an array or a scalar of"),
        ({"arguments": [np.array([{}])]}, "an argument is an array or a scalar of"),
        ({"arguments": [None]}, "an argument is an array or a scalar of"),
        ({"arguments": [np.zeros(0, np.float32)]}, "an array has at least one element"),
        ({"arguments": [np.float32(math.nan)]}, "a scalar argument is finite"),
        ({"answer": [None]}, "answer has 1 entries for"),
        ({"problem_size": (1, 2, 3, 4)}, "4 sizes were given"),
        ({"problem_size": ()}, "0 sizes were given"),
        ({"restrictions": [3]}, "3 is no restriction"),
        ({"parameters": {"TILE": []}}, "one or more, and distinct"),
        ({"parameters": {"TILE": [1, 1]}}, "one or more, and distinct"),
        ({"parameters": {"TILE": [1, 1.0]}}, "one or more, and distinct"),
        ({"parameters": {"TILE": [[1], [2]]}}, "numbers or texts"),
        ({"parameters": {"TILE": [None, 2]}}, "numbers or texts"),
        ({"parameters": {"TILE": ["a\n#include <x>", "b"]}}, "printable ASCII"),
        ({"parameters": {"TILE": ["", "b"]}}, "printable ASCII"),
        ({"parameters": {"TILE": [0.5, math.nan]}}, "below 2\\*\\*53"),
        ({"parameters": {"TILE": [10**400]}}, "below 2\\*\\*53"),
        ({"parameters": {"TILE": [2**60, 1]}}, "below 2\\*\\*53"),
        ({"parameters": {"int": [1, 2]}}, "not a keyword"),
        ({"parameters": {"a b": [1, 2]}}, "consists of letters"),
        ({"defines": {"float": 1}}, "not a keyword"),
        ({"defines": {"TILE": 1}}, "TILE is both a parameter and in defines"),
        *(
            ({"problem_size": size}, "problem_size cannot be .*: it is an integer >= 1")
            for size in (0, -5, 1000.5, True, None, (8, 0))
        ),
        *(
            ({"parameters": {"block_size_x": [32, size]}}, "block_size_x, the threads of a block")
            for size in (0, -32, 0.5)
        ),
        ({"parameters": {"BX": [0, 1]}, "block_names": ["BX"]}, "BX, the threads of a block"),
        *(
            ({"grid_divisors": (size, None, None)}, "grid_div_x cannot be .*: it has positive")
            for size in (0, [0], -1, math.inf, [None], {})
        ),
        ({"parameters": {"block_size_x": 64}}, "block_size_x=64 is no list of values"),
        ({"parameters": {"LAYOUT": "row"}}, "LAYOUT='row' is no list of values"),
        ({"parameters": [("TILE", [1, 2])]}, "cannot be the parameters, a dict of lists"),
        *(({"parameters": {name: [1, 2]}}, f"{name} cannot name a parameter") for name in RESERVED),
        ({"parameters": {"argument_0": [1, 2]}}, "argument_0 cannot name a parameter"),
        ({"answer": lambda *arrays: 1 / 0}, "answer raised ZeroDivisionError"),
        ({"restrictions": lambda p: p["T"] > 1}, "the restriction <lambda> raised KeyError: 'T', for .*'TILE': 1"),
        ({"source": lambda p: p["T"]}, "kernel_source raised KeyError: 'T', for .*'TILE': 1"),
    ],
)
def test_what_cannot_be_used_is_refused(made: Any, options: Any, message: str) -> None:
    with pytest.raises((UsageError, BundleError), match=message):
        made(**options)


def test_its_problem_is_on_record_and_read_again(tmp_path: Path) -> None:
    arrays = [np.arange(count, dtype=np.float32) for count in range(1, 40)]  # names of files are hashes of all kinds
    kernel = make_kernel(KernelCall("add", SOURCE, 10, [*arrays, np.int32(3)], {"block_size_x": [32, 64]}), tmp_path)
    assert kernel.arrays is not None
    document = kernel.arrays.problem().to_json()

    assert problem_from_json(json.loads(json.dumps(document))).to_json() == document


@pytest.mark.parametrize("metric", ["work / time", lambda entry: entry["work"]])
def test_the_error_of_a_metric_names_it_and_the_result(metric: Any) -> None:
    metrics = check_call({"metrics": {"rate": metric}}, None).metrics
    with pytest.raises(UsageError, match=r"the metric rate raised KeyError: 'work', for .*'TILE': 2"):
        metrics["rate"]({"TILE": 2, "time": 1.5})


def test_limits_are_among_the_options_of_a_strategy() -> None:
    assert check_call({"lang": "cupy", "strategy": "mls", "objective": "time", "parallel": 4}, None) == CallOptions()
    assert check_call({"compiler_options": ["-O3", "-std=c++17"]}, {"max_fevals": 30}) == CallOptions(30)
    assert check_call({"smem_args": {"size": 100}}, {"time_limit": 2.5}) == CallOptions(None, 2.5)
    options = ["-arch=sm_52", "--dopt=on", "--use_fast_math", "-DWIDTH=512", "-DFAST"]
    assert check_call({"compiler_options": options, "parallel": True}, None) == CallOptions(
        None, None, ("--use_fast_math",), {"WIDTH": "512", "FAST": "1"}
    )


@pytest.mark.parametrize(
    "options", [["-I{0}"], ["-I", "{0}"], ["-I {0}"], ["--include-path={0}"], ["--include-path", "{0}"]]
)
def test_folders_of_headers_are_among_the_options_of_the_compiler(tmp_path: Path, options: list[str]) -> None:
    given = ["-O3", *(option.format(tmp_path) for option in options), "--use_fast_math"]
    found = check_call({"compiler_options": given}, None)
    assert (found.include, found.options) == ((tmp_path,), ("--use_fast_math",))


@needs.nvrtc
def test_a_kernel_with_headers_of_a_folder_compiles(made: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.h").write_text('#pragma once\n#include "two"\n#include "../sub/two"\n')
    (tmp_path / "sub" / "two").write_text("#pragma once\n__device__ int two() { return 2 * TILE; }\n")
    kernel = made(source=f"#include <sub/one.h>\n{SOURCE.replace('in[n]', 'two()')}", include=(tmp_path,))
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        build = builder.submit(configuration()).result(300)
    assert build.state is TrialState.OK, build.detail


def test_headers_are_read_from_the_folders_of_a_call(made: Any, tmp_path: Path) -> None:
    for name, text in {
        "a/sub/one.cuh": '#include "../two"\n',
        "a/two": "int two;",
        "b/two": "",
        "b/three.h": "3",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "b" / "linked.h").symlink_to(tmp_path / "b" / "three.h")  # the caller's own folder
    source = f"#include <sub/one.cuh>\n#include <two>\n#include <linked.h>\n#include <../b/three.h>\n{SOURCE}"

    kernel = made(source=source, include=(tmp_path / "a", tmp_path / "b"))

    assert kernel.source.headers == {
        "sub/one.cuh": '#include "../two"\n', "two": "int two;", "linked.h": "3", "../two": '#include "two"\n',
    }  # fmt: skip
    assert header_files(kernel) == {
        "include/sub/one.cuh": '#include "../two"\n', "include/two": "int two;", "include1/linked.h": "3",
    }  # fmt: skip
    assert kernel.source.sha256 != made(source=source, include=(tmp_path / "b",)).source.sha256


def test_headers_of_a_list_of_sources_are_in_the_folder_of_the_winner(made: Any, tmp_path: Path) -> None:
    (tmp_path / "two.h").write_text("2")
    headers = {"/some/where/one.h": "#include <two.h>", "sub/three.h": "3"}
    kernel = made(source=f"#include </some/where/one.h>\n{SOURCE}", headers=headers, include=(tmp_path,))
    assert kernel.source.headers == {**headers, "two.h": "2"}
    assert header_files(kernel) == {"one.h": "#include <two.h>", "sub/three.h": "3", "include/two.h": "2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lang": "OpenCL"}, "lang cannot be 'OpenCL'"),
        ({"objective": "GFLOP/s"}, "minimises the time"),
        ({"objectives": {"time": True}}, "minimises the time"),
        ({"metrics": {"rate": 7}}, "is no metric, which is a function of a result, or an expression"),
        ({"metrics": {"rate": "__import__('os')"}}, "is no part of an expression"),
        ({"texmem_args": {"a": 1}}, "textures"),
        ({"observers": [1]}, "observers"),
        ({"simulation_mode": True}, "recorded timings"),
        ({"compiler_options": ["-include", "a.h"]}, "an option of the compiler"),
        ({"compiler_options": ["-I/no/such/folder"]}, "'/no/such/folder' is no folder, and -I names one"),
        ({"compiler_options": "-O3 -w"}, r"'-O3 -w': it is a list of texts, such as \['-O3', '-w'\]"),
        ({"metrics": {"time": "1"}}, "time cannot name a metric"),
        ({"compiler_options": ["-I"]}, "'' is no folder, and -I names one"),
        ({"smem_args": {"bytes": 3}}, "its key is size"),
        ({"iteration": 7}, "no argument 'iteration'; did you mean"),
    ],
)
def test_what_mltune_does_not_do_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_call(arguments, None)


@pytest.mark.parametrize(
    "change",
    [
        {"problem_size": 2000},
        {"grid_divisors": (["TILE"], None, None)},
        {"block_names": ["TILE"]},
        {"shared": 64},
        {"defines": {"LIMIT": 8}},
        {"options": ("--use_fast_math",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_covers_launch_macros_and_options(made: Any, change: dict[str, Any]) -> None:
    """A run of another launch of the same source is not resumed, and its winner is not taken."""
    assert made().source.sha256 == made().source.sha256 != made(**change).source.sha256
    has_size = "problem_size" in change  # which is one of the problem's, where it has sizes
    assert (with_sizes(made())[0].source.sha256 == with_sizes(made(**change))[0].source.sha256) == has_size


def test_a_source_is_a_text_or_a_file_and_may_include_others(tmp_path: Path) -> None:
    file = tmp_path / "add.cu"
    file.write_text(SOURCE)
    assert read_sources(SOURCE) == (SOURCE, {}, ())
    assert read_sources(file) == read_sources(str(file)) == (SOURCE, {}, (tmp_path,))
    assert read_sources([SOURCE, str(file)]) == (SOURCE, {str(file): SOURCE}, ())
    for wrong in (tmp_path / "none.cu", 7, None, []):
        with pytest.raises(
            UsageError, match=r"neither CUDA text nor a readable file|kernel_source cannot be|at least one"
        ):
            read_sources(wrong)


def test_a_function_makes_the_source_of_each_configuration(made: Any) -> None:
    kernel = made(source=lambda values: f"// {values['block_size_x']}\n{SOURCE}")
    assert kernel.source_of(configuration(64)).startswith("// 64\n")
    assert kernel.source.sha256 != made().source.sha256
    with pytest.raises(UsageError, match="returned 7, not CUDA text"):
        made(source=lambda values: 7)


@needs.nvrtc
def test_a_generated_source_is_compiled_for_each_configuration(made: Any) -> None:
    kernel = made(source=lambda values: SOURCE if values["block_size_x"] == 32 else "#error none")
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        states = [builder.submit(configuration(block)).result().state for block in (32, 64)]
    assert states == ["ok", "compile_error"]


def test_blocks_have_no_more_threads_than_cuda_allows(made: Any) -> None:
    kernel = made(parameters={"block_size_x": [32, 512, 2048], "block_size_y": [1, 4]})
    assert valid(kernel) == {(32, 1), (32, 4), (512, 1)}


def test_a_function_decides_in_place_of_a_comparison(made: Any) -> None:
    unit = 3.0

    def verify(answer: Any, outputs: Any, atol: float) -> bool:
        return abs(answer[0] - sum(outputs[0])) < unit * atol

    kernel = made(answer=[12.5, None, None], verify=verify, absolute=0.5)
    function, answer, atol = pickle.loads(kernel.verify)  # noqa: S301 - made above
    assert function(answer, [[5.0, 6.5]], atol=atol)
    assert not function(answer, [[5.0, 5.5]], atol=atol)
    assert not kernel.arrays.answer
    assert pickle.loads(made(answer=lambda *of: [len(of), None, None], verify=verify).verify)[1][0] == 3  # noqa: S301
    with pytest.raises(UsageError, match="entries for 3 arguments"):
        made(answer=[1], verify=verify)
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the process of the kernel"):
        made(verify=lambda *_, **__: lock.locked())
