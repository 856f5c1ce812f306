"""A bundle as a library: its launches in C beside those that Python computes, with a driver that records them."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

WIDTHS = {"int32": 4, "int64": 8, "float32": 4, "float64": 8}
VALUES = (1, 2, 7, 64, 1000)


def compare_with_python(bundle: Path, out: Path, driver: Path) -> None:
    """Write a bundle as a library of its default configuration; every launch is the one of Python, or there is none."""
    from mltune.device.known import H200
    from mltune.kernel.expressions import parse
    from mltune.kernel.placed import PlacedKernel
    from mltune.kernel.reader import load_kernel
    from mltune.library.content import Content, alignment_of, configuration_of, kernel_parameters, name_of
    from mltune.library.dispatcher import Dispatcher
    from mltune.library.folder import write_library
    from mltune.library.source import check_name
    from mltune.records.trial import Build, TrialState
    from mltune.results.winner import formula, known_values

    kernel = load_kernel(bundle)
    if kernel.arrays is None:
        return
    problem = kernel.arrays.problem()
    parameters = kernel_parameters(kernel, problem)
    widths = [8 if one.role in ("in", "out", "inout", "size") else WIDTHS[one.dtype] for one in parameters]
    build = Build(TrialState.OK, cubin=b"\x7fELF" + bytes([len(widths), *widths]), registers=32, spill_bytes=0)
    configuration = dict(kernel.compiler.completed(kernel.space.default))
    name, device = name_of(problem), {"name": H200.name, "compute_capability": (9, 0), "sm_count": H200.sm_count}
    values = known_values(PlacedKernel(kernel, problem, H200), configuration)
    fixed = [parse(formula(one.expression, values, kernel.space.derived)) for one in kernel.space.needed]
    if not all(one.holds({}) for one in fixed if not one.names):
        return  # it is in no search space
    check_name(name)
    content = Content(
        name, {"kind": problem.kind, **problem.to_json()}, problem.formula, problem.size_names, problem.size_names[:1],
        parameters, alignment_of(kernel), device, (configuration_of(PlacedKernel(kernel, problem, H200), configuration, build),),
        Dispatcher(((1.0, *[0.0] * 11),), 132), {}, {},
    )  # fmt: skip
    document = write_library(out, content)
    if document["shared_object"] is None:
        return
    recorder = ctypes.CDLL(str(driver), mode=ctypes.RTLD_GLOBAL)
    library, handle = ctypes.CDLL(str(out / document["shared_object"])), ctypes.c_void_p()
    assert getattr(library, f"{name}_create")(ctypes.byref(handle), document["abi"]) == 0
    shape, count = (ctypes.c_int64 * 7).in_dll(recorder, "fake_last"), ctypes.c_int64.in_dll(recorder, "fake_count")
    for values in itertools.islice(itertools.product(VALUES, repeat=len(content.sizes)), 200):
        sizes, before = dict(zip(content.sizes, values, strict=True)), count.value
        arguments = [_argument(one, sizes) for one in content.signature()]
        status = getattr(library, name)(handle, *arguments, None, ctypes.c_size_t(0), None)
        in_c = None if status else list(shape) if count.value > before else "nothing to do"
        in_python = _launch(kernel, configuration, sizes)
        assert in_c == in_python, (sizes, status, in_c, in_python)


def _argument(parameter: Any, sizes: dict[str, int]) -> Any:
    """Return the argument of a call: a size, an address, or a number."""
    if parameter.role == "size":
        return ctypes.c_int64(sizes[parameter.name])
    kinds = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double}
    return kinds[parameter.dtype](1) if parameter.role == "scalar" else ctypes.c_void_p(4096)


def _launch(kernel: Any, configuration: dict[str, int], sizes: dict[str, int]) -> list[int] | str | None:
    """Return grid, block and shared memory of a launch; None where the sizes allow none."""
    from mltune.device.known import H200
    from mltune.errors import MltuneError
    from mltune.kernel.bundle import variables_of

    try:
        variables = variables_of(kernel.arrays.problem(sizes), H200)
        scope = kernel.space.scope({**variables, **configuration})
        if not all(one.expression.evaluate_partial(scope).truth() for one in kernel.space.needed):
            return None
        launch = kernel.launch(configuration, variables)
    except (MltuneError, ValueError):
        return None
    most = (2**31 - 1, 65535, 65535, 1024, 1024, 1024)
    fits = all(0 <= one <= limit for one, limit in zip((*launch.grid, *launch.block), most, strict=True))
    if not fits or 0 in launch.block or not 0 <= launch.shared_bytes <= H200.shared_bytes_per_block:
        return None
    return "nothing to do" if 0 in launch.grid else [*launch.grid, *launch.block, launch.shared_bytes]
