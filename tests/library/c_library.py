"""A library of some configurations of a kernel, and calls of it with a driver that records launches."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.launch import TensorMap
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, row
from mltune.library.content import Content, alignment_of, configuration_of, kernel_parameters, name_of
from mltune.library.dispatcher import learn
from mltune.library.document import hash_of
from mltune.records.trial import Build, TrialState

BYTES = {"int32": 4, "int64": 8, "float32": 4, "float64": 8}


def fake_cubin(parameters: Sequence[Any], further: Sequence[int], mark: int) -> bytes:
    """Return what the driver of fake_cuda.c takes for machine code: the bytes of all arguments."""
    sizes = [8 if one.role in ("in", "out", "inout", "size") else BYTES[one.dtype] for one in parameters]
    return b"\x7fELF" + bytes([len(sizes) + len(further), *sizes, *further, mark, mark])


def fake_map(matrix: TensorMap, address: int) -> int:
    """Return the first word of a tensor map of the driver of fake_cuda.c; 0 where it makes none."""
    _, size, inner, lines, stride, box = matrix
    if address % 16 or stride * size % 16 or not inner or not lines:
        return 0
    told = [{1: 0, 2: 1}[size], 2, address, inner, lines, stride * size, 128 // size, box, 1, 1, 0, 3, 2, 0]
    word = functools.reduce(lambda word, value: (word * 1000003 + value) % 2**64, told, 0)
    return word - 2**64 * (word >= 2**63)


@functools.cache
def space_of(kernel_name: str, problem: Any) -> ConstrainedSpace:
    """Return the configurations of a kernel, of few parts of k."""
    kernel = load_kernel(kernel_name)
    few = kernel.with_values({"SPLIT_K": (0, 1, 4)}) if kernel_name in ("gemm_simt", "gemm_wgmma") else kernel
    return ConstrainedSpace(few, variables_of(problem, H200))


@functools.cache
def content_of(kernel_name: str, problem: Any, extents: Sequence[str], count: int = 10, seed: int = 0) -> Content:
    """Return a library of random configurations of a kernel with a dispatcher that has learned where each is fast."""
    kernel, rng = load_kernel(kernel_name), np.random.default_rng(seed)
    space = space_of(kernel_name, problem)
    columns = space.rows(space.sample(count, rng))
    parameters = kernel_parameters(kernel, problem)
    configurations = []
    parts = {0: 1} if "batch" in extents else {0: 1, 1: 0}  # of k: valid for all sizes, and as many as follow from them
    for number in range(count):
        one = row(columns, number)
        if number in parts and "SPLIT_K" in one:
            one = {**one, "SPLIT_K": parts[number]}
        rule = kernel.launch_rule
        further = [4] * len(rule.arguments) + [8] * ((rule.workspace is not None) + len(rule.tensor_maps))
        build = Build(TrialState.OK, cubin=fake_cubin(parameters, further, number), registers=32, spill_bytes=0)
        configurations.append(configuration_of(PlacedKernel(kernel, problem, H200), one, build))
    sizes = np.unique((2 ** rng.uniform(4, 12, (40, len(extents)))).astype(np.int64), axis=0)
    times_s = 1.0 + np.abs(np.log2(sizes).mean(axis=1)[:, None] - rng.uniform(4, 12, count))  # each is fast somewhere
    tiles = np.ceil(2 ** rng.uniform(2, 12, times_s.shape))
    of_tile = np.where(rng.random(times_s.shape) < 0.5, 0.0, 2 ** rng.uniform(8, 20, times_s.shape))
    dispatcher = learn(sizes, times_s, np.ones(len(sizes)), np.stack([tiles, of_tile], axis=-1), 132)
    exact = [[*size.tolist(), number % count] for number, size in enumerate(sizes[::3])]  # as many as are listed
    return Content(
        name_of(problem),
        {"kind": problem.kind, **problem.to_json()},
        problem.formula,
        problem.size_names,
        tuple(extents),
        parameters,
        alignment_of(kernel),
        {"name": H200.name, "compute_capability": (9, 0), "sm_count": H200.sm_count},
        tuple(configurations),
        replace(dispatcher, exact=exact),
        {},
        {},
    )


def rewrite(folder: Path, change: Callable[[Any], object], *files: str) -> None:
    """Change the document of a library as somebody does who knows mltune: with hashes that match."""
    document = json.loads((folder / "library.json").read_text())
    document["sha256"] |= {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    change(document)
    document["document_sha256"] = hash_of(document)
    (folder / "library.json").write_text(json.dumps(document))


CALLER = """
import ctypes, json, sys
job = json.load(sys.stdin)
driver, library = ctypes.CDLL(job["driver"], ctypes.RTLD_GLOBAL), ctypes.CDLL(job["library"])
name, calls = job["name"], job["calls"]
handle = ctypes.c_void_p()
status = getattr(library, name + "_create")(ctypes.byref(handle), job["abi"])
text = getattr(library, name + "_error"); text.restype = ctypes.c_char_p
types = {"int64": ctypes.c_int64, "pointer": ctypes.c_void_p, "float32": ctypes.c_float, "float64": ctypes.c_double}
call, found = getattr(library, name), []
class Launch(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_int64 * 7), ("arguments", ctypes.c_int64 * 20)]
last = Launch.in_dll(driver, "fake_last")
counter, zeroed = ctypes.c_int64.in_dll(driver, "fake_count"), ctypes.c_int64.in_dll(driver, "fake_set_bytes")
if not status:
    for values in calls:
        before, set_before = counter.value, zeroed.value
        arguments = [types[t](v) for t, v in zip(job["types"], values["arguments"])]
        done = call(handle, *arguments, ctypes.c_void_p(values["workspace"]), ctypes.c_size_t(values["bytes"]), None)
        launched = counter.value > before
        found.append([done, list(last.shape) if launched else None, list(last.arguments), zeroed.value - set_before])
    getattr(library, name + "_destroy")(handle)
print(json.dumps({"status": status, "text": text(status).decode(), "found": found,
                  "left": ctypes.c_int64.in_dll(driver, "fake_loaded").value}))
"""


def build_driver(folder: Path) -> Path:
    """Compile the recording driver."""
    made = folder / "libcuda.so.1"
    command = [
        "gcc",
        "-O1",
        "-w",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        str(Path(__file__).with_name("fake_cuda.c")),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True)
    return made


def call(
    driver: Path,
    shared: Path,
    name: str,
    types: Sequence[str],
    calls: Sequence[Mapping[str, Any]],
    abi: int = 1,
    **environment: str,
) -> dict[str, Any]:
    """Make a library and call it in a process whose driver is the recording one."""
    job = {"driver": str(driver), "library": str(shared), "name": name, "types": types, "calls": calls, "abi": abi}
    done = subprocess.run(
        [sys.executable, "-c", CALLER],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=True,
    )
    return json.loads(done.stdout)
