"""Parameters whose names the headers of the toolkit use: defined behind the headers, or named in the error."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.kernel.includes import macro_places, with_macros
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.python_kernel import KernelCall, make_kernel
from mltune.measure.build import build_one
from mltune.records.trial import Build, TrialState
from tests import needs

HEADERS = (
    "cuda_fp16.h",
    "cuda_bf16.h",
    "mma.h",
    "cooperative_groups.h",
    "cub/cub.cuh",
    "cuComplex.h",
    "cuda/std/array",
)
NAMES = (
    "N",
    "M",
    "K",
    "T",
    "size",
    "type",
    "index",
    "width",
    "height",
    "value",
    "count",
    "stride",
    "offset",
    "data",
    "rank",
)
KERNEL = "__global__ void fill(float *a) { a[threadIdx.x] = NAME; }\n"


def build(tmp_path: Path, source: str, parameters: Any, **options: Any) -> Build:
    call = KernelCall("fill", source, 32, [np.zeros(32, np.float32)], parameters, **options)
    kernel = make_kernel(call, tmp_path)
    first = {name: values[0] for name, values in kernel.space.parameters.items()}
    assert kernel.arrays is not None
    return build_one(PlacedKernel(kernel, kernel.arrays.problem(), H200), first)


@needs.nvrtc
@pytest.mark.sampled(0, system=3)
@pytest.mark.parametrize("header", HEADERS)
def test_parameters_are_defined_behind_headers_that_use_their_names(tmp_path: Path, header: str) -> None:
    total = " + ".join(NAMES)
    source = f"#include <{header}>\n{KERNEL.replace('NAME', total)}"
    parameters = {name: [number + 1, 99] for number, name in enumerate(NAMES)}
    built = build(tmp_path, source, parameters)
    assert (built.state, built.detail) == (TrialState.OK, "")
    literal = str(sum(range(1, len(NAMES) + 1)))
    plain = build(tmp_path, f"#include <{header}>\n{KERNEL.replace('NAME', literal)}", {"A": [1, 2]})
    assert built.code_bytes == plain.code_bytes
    assert built.cubin == plain.cubin


@needs.nvrtc
def test_so_are_those_of_a_generated_source(tmp_path: Path) -> None:
    def source(values: Any) -> str:
        return f"#include <cuda_fp16.h>\n// {values['N']}\n{KERNEL.replace('NAME', 'N')}"

    assert build(tmp_path, source, {"N": [4, 8]}).state is TrialState.OK


@needs.nvrtc
@pytest.mark.parametrize(
    "before",
    [
        "#if width > 2\n#include <cuda_fp16.h>\n#endif\n",
        "__constant__ int first[width];\n#include <cuda_fp16.h>\n",
        "#ifndef GUARD\n#define GUARD\n#include <cuda_fp16.h>\n",
        'static const char text[] = R"(a)";\n#include <cuda_fp16.h>\n',
    ],
    ids=["condition", "use", "guard", "raw-text"],
)
def test_the_error_of_a_header_names_the_parameter(tmp_path: Path, before: str) -> None:
    end = "#endif\n" if "GUARD" in before else ""
    built = build(tmp_path, before + KERNEL.replace("NAME", "width") + end, {"width": [4, 8]})
    assert built.state is TrialState.COMPILE_ERROR
    assert "a header uses a name that is a macro here, so rename the parameter width: " in built.detail


@needs.nvrtc
def test_an_error_in_the_source_keeps_its_line_and_names_no_parameter(tmp_path: Path) -> None:
    built = build(tmp_path, f"#include <cuda_fp16.h>\n\n{KERNEL.replace('NAME', 'N +')}", {"N": [4, 8]})
    assert built.detail.startswith("kernel.cu(3): error")


@needs.nvrtc
def test_own_headers_see_the_parameters(tmp_path: Path) -> None:
    own = "#include <cuda_fp16.h>\n#if SHARE > 1\n#define WHOLE SHARE\n#endif\n"
    source = f'#include "own.h"\n#include <mma.h>\n{KERNEL.replace("NAME", "WHOLE + size")}'
    built = build(tmp_path, source, {"SHARE": [4, 8], "size": [1, 2]}, headers={"own.h": own})
    assert (built.state, built.detail) == (TrialState.OK, "")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("int a;\n", {}),
        ("#include <a.h>\nint N;", {"N": 15, "M": 15}),
        ("#include <a.h>\nint N;\n#include <b.h>\n", {"N": 15, "M": 37}),
        ("/* N\n#include <a.h>\n*/\n#include <b.h> // N\nN", {"N": 43, "M": 43}),
        ("#ifdef X\n#include <a.h>\n#endif\nN", {"N": 31, "M": 31}),
        ("#ifdef N\n#include <a.h>\n#endif\nN", {"M": 31}),
        ("#ifdef X\n#include <a.h>\nN\n#endif\n", {"M": 33}),
        ('#include "own.h"\n#include <a.h>\n', {"M": 32}),
        ("#include <a.h>", {"N": 14, "M": 14}),
        ("#define A N\n#include <a.h>\n", {"M": 27}),
        ("#include <a.h>\n# define TWO \\\n  N\n#include <b.h>\n", {"N": 15, "M": 49}),
        ('#include <a.h>\nauto t = R"(\n#include <b.h>\n)";', {}),
    ],
)
def test_places_of_macros(text: str, places: dict[str, int]) -> None:
    assert macro_places(text, {"own.h": "N"}, ["N", "M", "NDEBUG", "CUB_SIZE"]) == places


def test_macros_at_their_places_keep_the_numbers_of_lines() -> None:
    text, definitions = "#include <a.h>\n\nint x;", "#define M 1\n#define N 2\n"
    expected = """\
        #define M 1
        #line 1
        #include <a.h>
        #define N 2
        #line 2

        int x;"""
    assert with_macros(text, definitions, {"N": 15}) == textwrap.dedent(expected)
    assert with_macros(text, definitions, {}) == f"{definitions}#line 1\n{text}"
    assert (
        with_macros("#include <a.h>", "#define N 2\n", {"N": 14}) == "#line 1\n#include <a.h>\n#define N 2\n#line 1\n"
    )
