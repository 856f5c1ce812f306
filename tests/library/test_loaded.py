"""A library in Python: what is passed for arrays of several orders, and folders that are refused."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from time import process_time

import numpy as np
import pytest
from c_library import build_driver, content_of, rewrite

from mltune.device import gpu_arrays
from mltune.device.gpu_arrays import Array
from mltune.errors import DeviceError, LibraryError
from mltune.kernel.reader import load_kernel
from mltune.library import folder as folders
from mltune.library import loaded
from mltune.library.folder import read_library, write_library
from mltune.library.loaded import load_library
from mltune.problem.gemm import parse_problem

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

CALLER = """
import ctypes, json, os, sys
import numpy as np
from mltune.errors import MltuneError
from mltune.library.loaded import load_library

class Launch(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_int64 * 7), ("arguments", ctypes.c_int64 * 20)]

class Array:
    def __init__(self, address, like):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": like.shape, "typestr": like.dtype.str, "version": 3,
            "strides": None if like.flags.c_contiguous else like.strides,
        }

driver = ctypes.CDLL("libcuda.so.1")
last, zeroed = Launch.in_dll(driver, "fake_last"), ctypes.c_int64.in_dll(driver, "fake_set_bytes")
lib = load_library(sys.argv[1])
def launched(work):
    try:
        work()
    except MltuneError as error:
        return f"{type(error).__name__}: {error}"
    return list(last.arguments)[:11]
exec(sys.stdin.read())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the folder of a library, that of the driver beside it."""
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", m=300, n=300, k=4096), ("m", "n", "k"), seed=5)
    parts = {configuration.document.configuration["SPLIT_K"] for configuration in content.configurations}
    assert {1, 0} <= parts, "some need a workspace, some never"
    folder = tmp_path_factory.mktemp("built")
    build_driver(folder)
    write_library(folder / "sgemm_nt", content)
    return folder / "sgemm_nt"


def run(library, code, **environment):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(library)],
        input=code,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_bias_lies_along_the_index_of_the_epilogue(tmp_path):
    """By rows, where all is transposed, m counts the columns of a product."""
    problem = parse_problem("hgemm", trans="TN", m=299, n=299, k=4096, epilogue="bias_m+gelu")
    build_driver(tmp_path)
    write_library(tmp_path / "lib", content_of("gemm_wgmma", problem, ("m", "n", "k"), count=3))
    found = run(
        tmp_path / "lib",
        """
x, w = np.zeros((30, 72), "f2"), np.zeros((72, 48), "f2", order="F")
by_columns, by_rows = np.zeros((30, 48), "f2", order="F"), np.zeros((30, 48), "f2")
space = Array(2**20, np.zeros(2**22, "u1"))
def call(a, b, out, bias, **options):
    arrays = [Array(256 * place, array) for place, array in enumerate((a, b, out), 1)]
    bias = None if bias is None else Array(4096, bias)
    def work():
        lib.hgemm(arrays[0], arrays[1], out=arrays[2], bias=bias, workspace=space, **options)
        found.append(list(last.arguments)[:12])
    try:
        work()
    except MltuneError as error:
        found.append(str(error))
found = [list(lib.parameters), lib.name]
call(x, w, by_rows, np.zeros(48, "f2"))
call(x, w, by_columns, np.zeros(30, "f2"))
call(x, w, by_rows, None)
call(x, w, by_rows, np.zeros(31, "f2"))
call(x, w, by_rows, np.zeros(48, "f4"))
call(x, w, by_rows.astype("f4"), np.zeros(48, "f2"))
""",
    )
    assert found[0][-2:] == ["ldc", "bias"]
    assert found[1] == "hgemm_tn_bias_m_gelu"
    unit = int(np.float32(1).view("i4"))
    assert found[2] == [48, 30, 72, unit, 512, 72, 256, 72, 0, 768, 48, 4096]
    assert found[3] == [30, 48, 72, unit, 256, 72, 512, 72, 0, 768, 30, 4096]
    assert found[4] == "a product of hgemm_tn_bias_m_gelu takes a, b, out, bias; its formula says what they are."
    assert found[5] == "bias has the shape (31,); it must have (30,), or (48,) for C stored by rows."
    assert found[6] == "bias has elements of <f4; they must be of float16."
    assert found[7] == "C has elements of <f4; they must be of float16."


def test_scales_of_fp8_lie_along_the_matrices_by_columns(tmp_path):
    problem = parse_problem("ebgemm", trans="TN", m=299, n=299, k=4096, epilogue="scales+bias_m")
    build_driver(tmp_path)
    write_library(tmp_path / "lib", content_of("gemm_wgmma", problem, ("m", "n", "k"), count=3))
    found = run(
        tmp_path / "lib",
        """
x, w, out = np.zeros((30, 72), "u1"), np.zeros((72, 48), "u1", order="F"), np.zeros((30, 48), "u2")
space = Array(2**20, np.zeros(2**22, "u1"))
def call(a, *scales):
    arrays = [Array(256 * place, array) for place, array in enumerate((a, w, out, *scales, np.zeros(48, "u2")), 1)]
    try:
        lib.ebgemm(*arrays[:2], *arrays[3:-1], out=arrays[2], bias=arrays[-1], workspace=space)
        found.append(list(last.arguments)[:14])
    except MltuneError as error:
        found.append(str(error))
found = [list(lib.parameters)]
call(x, np.zeros(48, "f4"), np.zeros(30, "f4"))
call(x, np.zeros(30, "f4"), np.zeros(48, "f4"))
call(x, np.zeros(48, "f4"))
call(x, np.zeros(48, "f4"), np.zeros(30, "f8"))
call(x, np.zeros(48, "f4"), np.zeros((30, 1), "f4"))
call(x.astype("f2"), np.zeros(48, "f4"), np.zeros(30, "f4"))
""",
    )
    assert found[0][-3:] == ["scale_m", "scale_n", "bias"]
    unit = int(np.float32(1).view("i4"))
    assert found[1] == [48, 30, 72, unit, 512, 72, 256, 72, 0, 768, 48, 1024, 1280, 1536]
    assert "stored by columns" in found[2]
    assert found[3].endswith("takes a, b, out, scale_m, scale_n, bias; its formula says what they are.")
    assert found[4] == "scale_n has elements of <f8; they must be of float32."
    assert found[5] == "scale_n has the shape (30, 1); it must have (48,), or (30,) for C stored by rows."
    assert found[6] == "A has elements of <f2; they must be of float8_e4m3fn."


def test_a_type_of_fp8_is_not_read_as_the_other(monkeypatch):
    array = Array(256, (2,), (1,))
    monkeypatch.setattr(loaded, "read_array", lambda dtype, _: (array, gpu_arrays._dtype_of_torch(dtype)))
    parameter = {"name": "A", "dtype": "float8_e5m2"}
    for dtype in ("torch.float8_e5m2", "torch.uint8"):  # also its bits, as CuPy has them
        assert loaded._read(dtype, parameter, 0) is array
    for dtype, name in {"float8_e4m3fn": "float8_e4m3fn", "float16": "<f2", "float8_e8m0fnu": "|V0"}.items():
        with pytest.raises(LibraryError, match=re.escape(f"A has elements of {name}; they must be of float8_e5m2.")):
            loaded._read(f"torch.{dtype}", parameter, 0)


def test_factors_of_blocks_lie_as_a_checkpoint_has_them(tmp_path):
    problem = parse_problem("ebgemm", trans="TN", m=299, n=299, k=4096, epilogue="block_scales")
    build_driver(tmp_path)
    write_library(tmp_path / "lib", content_of("gemm_wgmma", problem, ("m", "n", "k"), count=3))
    found = run(
        tmp_path / "lib",
        """
x, w, out = np.zeros((30, 304), "u1"), np.zeros((304, 200), "u1", order="F"), np.zeros((30, 200), "u2")
space = Array(2**20, np.zeros(2**22, "u1"))
def call(*scales):
    arrays = [Array(256 * place, array) for place, array in enumerate((x, w, out, *scales), 1)]
    try:
        lib.ebgemm(*arrays[:2], *arrays[3:], out=arrays[2], workspace=space)
        found.append(list(last.arguments)[:13])
    except MltuneError as error:
        found.append(str(error))
found = []
call(np.zeros((2, 3), "f4"), np.zeros((3, 30), "f4"))
call(np.zeros((3, 2), "f4"), np.zeros((3, 30), "f4"))
call(np.zeros((2, 3), "f4", order="F"), np.zeros((3, 30), "f4"))
call(np.zeros(6, "f4"), np.zeros(90, "f4"))
""",
    )
    unit = int(np.float32(1).view("i4"))
    assert found[0] == [200, 30, 304, unit, 512, 304, 256, 304, 0, 768, 200, 1024, 1280]
    law = "; it must have (1, 3), or (2, 3) for C stored by rows."
    packed = "scale_m has the strides (1, 2); its elements must lie side by side, by rows."
    assert found[1:] == ["scale_m has the shape (3, 2)" + law, packed, "scale_m has the shape (6,)" + law]


def test_products_of_matrices_are_passed_as_the_case_has_them(library):
    """N T: `a` is stored by columns, `b` by rows. Of an `out` by rows all is transposed: `b` is first."""
    found = run(
        library,
        """
a, b = np.zeros((30, 70), "f4", order="F"), np.zeros((70, 50), "f4")
by_columns, by_rows = np.zeros((30, 50), "f4", order="F"), np.zeros((30, 50), "f4")
wide = np.zeros((64, 70), "f4", order="F")[:30]
found = [
    launched(lambda: lib.sgemm(Array(256, a), Array(512, b), out=Array(1024, by_columns))),
    launched(lambda: lib.sgemm(Array(256, wide), Array(512, b), out=Array(1024, by_columns), alpha=2.0)),
    launched(lambda: lib.sgemm(Array(256, a), Array(512, b), out=Array(1024, by_rows))),
    launched(lambda: lib.sgemm(Array(256, np.zeros((30, 70), "f4")), Array(512, b), out=Array(1024, by_rows))),
    launched(lambda: lib.sgemm_nt(Array(256, a), Array(512, b[:, :1]), out=Array(1024, by_rows))),
    launched(lambda: lib.sgemm(Array(256, a.astype("f8")), Array(512, b), out=Array(1024, by_rows))),
    launched(lambda: lib.sgemm(a, Array(512, b), out=Array(1024, by_rows))),
]
""",
    )
    one, two = int(np.float32(1).view("i4")), int(np.float32(2).view("i4"))
    assert found[0] == [30, 50, 70, one, 256, 30, 512, 50, 0, 1024, 30]
    assert found[1] == [30, 50, 70, two, 256, 64, 512, 50, 0, 1024, 30]
    assert found[2] == [50, 30, 70, one, 512, 50, 256, 30, 0, 1024, 50]
    assert "the strides of a, b and out are" in found[3]
    assert "(70, 1), (50, 1) and (50, 1) elements, but" in found[3]
    assert "do not fit a product" in found[4]
    assert found[5] == "LibraryError: A has elements of <f8; they must be of float32."
    assert found[6] == "LibraryError: A is a ndarray; it must be an array on a GPU."


@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.sampled(1, nightly=5)
def test_the_matrices_that_a_case_names_have_the_product(trans, tmp_path):
    """The arguments of a launch are read as the BLAS reads them, from the memory of the host."""
    build_driver(tmp_path)
    problem = parse_problem("dgemm", trans=trans, size=1000)
    write_library(tmp_path / "lib", content_of("gemm_simt", problem, ("m", "n", "k"), count=3))
    found = run(
        tmp_path / "lib",
        f"""
trans, rng, found = {trans!r}, np.random.default_rng(0), []
def stored(address, rows, columns, leading):
    flat = np.ctypeslib.as_array((ctypes.c_double * (leading * (columns - 1) + rows)).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (8, 8 * leading))
for order in range(8):
    shapes, orders = ((3, 7), (7, 5), (3, 5)), ["CF"[order >> place & 1] for place in range(3)]
    a, b, c = (np.array(rng.normal(size=shape), order=by) for shape, by in zip(shapes, orders))
    on = [Array(one.ctypes.data, one) for one in (a, b, c)]
    arguments = launched(lambda: lib.dgemm(on[0], on[1], out=on[2]))
    if isinstance(arguments, str):
        found.append("strides" in arguments)
        continue
    m, n, k, _, A, lda, B, ldb, _, C, ldc = arguments
    op_a = stored(A, m, k, lda) if trans[0] == "N" else stored(A, k, m, lda).T
    op_b = stored(B, k, n, ldb) if trans[1] == "N" else stored(B, n, k, ldb).T
    stored(C, m, n, ldc)[:] = op_a @ op_b
    found.append(float(abs(c - a @ b).max()))
""",
    )
    assert len([one for one in found if one is not True]) == 2, "for each order of the result there is one of a and b"
    assert all(one is True or one < 1e-12 for one in found)


def test_a_call_takes_the_parameters_of_c_and_a_workspace(library):
    found = run(
        library,
        """
x = Array(256, np.zeros(4, "f4"))
arguments = (100, 90, 4096, 1.0, x, 100, x, 90, 0.0, x, 100)
found = [lib.parameters, launched(lambda: lib(*arguments)), launched(lambda: lib(1, 2))]
sizes = dict(m=100, n=90, k=4096, lda=100, ldb=90, ldc=100)
found += [lib.choice(**sizes, workspace_bytes=0)["SPLIT_K"], lib.choice(**sizes)["kernel"]]
before = zeroed.value
lib(*arguments, workspace=Array(2**20, np.broadcast_to(np.zeros(1, "u1"), 2**40)))
found += [zeroed.value - before, len(lib._handles)]
""",
    )
    assert found[0] == ["m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc"]
    assert found[1][:3] == [100, 90, 4096]
    assert "takes m, n, k, alpha" in found[2]
    assert found[3:5] == [1, "gemm_simt"]
    assert found[5] >= 0
    assert found[6] == 1


OF_CUPY = """
import contextlib, threading, types, cupy
stream, on = ctypes.c_int64.in_dll(driver, "fake_stream"), {"ptr": 77}
cupy.cuda.get_current_stream = lambda device: types.SimpleNamespace(**on)
cupy.cuda.Device = contextlib.nullcontext
made = []
def of_cupy(address, shape, dtype="f4", order="C"):
    memory = cupy.cuda.UnownedMemory(address, 2**40, None, device_id=0)
    return cupy.ndarray(shape, dtype=dtype, memptr=cupy.cuda.MemoryPointer(memory, 0), order=order)
def zeros(count, dtype):
    made.append(count)
    return of_cupy(2**30 * len(made), count, dtype)
cupy.zeros = zeros
"""


def test_arrays_of_cupy_are_passed_as_all_others_and_checked_at_every_call(library):
    """A call that repeats the types, shapes and strides of another has its plan; one of which any differs does not."""
    pytest.importorskip("cupy")
    found = run(
        library,
        OF_CUPY
        + """
a, b, c = of_cupy(256, (30, 70), order="F"), of_cupy(512, (70, 50)), of_cupy(1024, (30, 50), order="F")
product = lambda *arrays, **options: launched(lambda: lib.sgemm(arrays[0], arrays[1], out=arrays[2], **options))
found = [product(a, b, c), product(a, b, of_cupy(4096, (30, 50), order="F")), product(a, b, c, alpha=2.0)]
found += [product(a, b, of_cupy(2048, (30, 50))), product(a, b, of_cupy(2048, (30, 50))), len(lib._plans)]
found += [product(a, b, of_cupy(1024, (30, 50), "f8", order="F")), product(a, b, of_cupy(1024, (50, 30)))]
found += [product(a, np.zeros((70, 50), "f4"), c), product(a, b, c, alpha=np.array(1.0))[3]]
call = lambda *arguments: launched(lambda: lib(*arguments))
for size in (30, np.int64(31), 32.0, 2**70):
    found.append(call(30, 50, 70, 1, a, size, b, 50, np.float32(0), c, 30))
found += [call(30, 50, 70, "x", a, 30, b, 50, 0, c, 30), call(30, 50, 70, 1, a.view("i4"), 30, b, 50, 0, c, 30)]
found += [call(30, 50, 70, 1, a, 30, b, 50, 0, of_cupy(8, 9, "f8"), 30), call(1, 2, 3), stream.value]
on["ptr"] = 78
lib(30, 50, 70, 1, a, 30, b, 50, 0, c, 30)
found.append(stream.value)
""",
    )
    one, two = int(np.float32(1).view("i4")), int(np.float32(2).view("i4"))
    assert found[0] == [30, 50, 70, one, 256, 30, 512, 50, 0, 1024, 30]
    assert found[1] == [30, 50, 70, one, 256, 30, 512, 50, 0, 4096, 30]
    assert found[2] == [30, 50, 70, two, 256, 30, 512, 50, 0, 1024, 30]
    assert found[3] == found[4] == [50, 30, 70, one, 512, 50, 256, 30, 0, 2048, 50]
    assert found[5] == 3
    assert found[6] == "LibraryError: C has elements of <f8; they must be of float32."
    assert "do not fit a product" in found[7]
    assert found[8] == "LibraryError: B is a ndarray; it must be an array on a GPU."
    assert found[9] == one
    assert [launch[5] for launch in found[10:12]] == [30, 31]
    assert found[12] == "LibraryError: lda is passed as int64, got 32.0."
    assert found[13].startswith("LibraryError: lda is passed as int64, got 11805916207174113034")
    assert found[14] == "LibraryError: alpha is passed as float32, got 'x'."
    assert found[15] == "LibraryError: A has elements of <i4; they must be of float32."
    assert found[16] == "LibraryError: C has elements of <f8; they must be of float32."
    assert "takes m, n, k, alpha" in found[17]
    assert found[18:] == [77, 78]


def test_workspaces_grow_with_the_sizes_of_a_stream_and_what_a_graph_may_use_stays(tmp_path):
    pytest.importorskip("cupy")
    build_driver(tmp_path)
    problem = parse_problem("sgemm", trans="NT", size=1000)
    write_library(tmp_path / "lib", content_of("gemm_simt", problem, ("m", "n", "k"), count=20))
    found = run(
        tmp_path / "lib",
        OF_CUPY
        + """
rng, asked, found = np.random.default_rng(0), [], []
for _ in range(60):
    m, n, k = (int(size) for size in 2 ** rng.uniform(5, 12, 3))
    needed = ctypes.c_size_t()
    lib._functions.choice(m, n, k, m, n, m, 2**62, ctypes.byref(needed))
    asked.append(needed.value)
    lib.sgemm(of_cupy(256, (m, k), order="F"), of_cupy(512, (k, n)), out=of_cupy(1024, (m, n), order="F"))
    found.append(lib._workspaces.get((0, 77), (0, 0))[1])
_, _, kept = lib._workspaces[0, 77]
chain = []
while kept:
    chain.append(kept[0].nbytes)
    kept = kept[1] and kept[1][2]
found = [asked, found, made, chain]
""",
    )
    asked, sizes, made, chain = found
    assert sizes == np.maximum.accumulate(asked).tolist()
    assert made == chain[::-1] == sorted({*sizes} - {0})
    assert len(made) > 1


def test_threads_that_call_at_once_pass_their_own_arguments(library):
    pytest.importorskip("cupy")
    found = run(
        library,
        OF_CUPY
        + """
found = []
def work(number):
    for value in range(number, 40_000, 100):
        a, b, c = of_cupy(256 * value, (64, 32), order="F"), of_cupy(512, (32, 64)), of_cupy(1024, (64, 64), order="F")
        lib.sgemm(a, b, out=c)
        if driver.fake_argument(4) != 256 * value:
            found.append(value)
        lib(64, 64, 32, value % 7, a, 64, b, 64, 0, c, 64)
        if np.int32(driver.fake_argument(3)).view("f4") != value % 7:
            found.append(value)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
[one.start() for one in threads], [one.join() for one in threads]
""",
    )
    assert found == []


def test_an_operation_of_one_size_and_arrays_alone_is_called(tmp_path):
    pytest.importorskip("cupy")
    build_driver(tmp_path)
    problem = load_kernel("reduction").arrays.problem()
    write_library(tmp_path / "lib", content_of("reduction", problem, ("n",)))
    found = run(
        tmp_path / "lib",
        OF_CUPY
        + """
total, values = of_cupy(256, 1), of_cupy(4096, 5000)
found = [launched(lambda: lib.reduction(n, total, values))[:3] for n in (5000, 4000, np.int32(3000))]
found += [launched(lambda: lib(4000, total)), hasattr(lib, "reduce")]
""",
    )
    assert all({256, 4096, n} <= {*launch} for launch, n in zip(found[:3], (5000, 4000, 3000), strict=True))
    assert "takes n, sum, input, got 2 arguments" in found[3]
    assert found[4] is False


@pytest.mark.parametrize("name", ["choice", "name", "is_product"])
@pytest.mark.sampled(1, nightly=99)
def test_a_library_may_have_the_name_of_something_else(name, tmp_path):
    build_driver(tmp_path)
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), count=2)
    write_library(tmp_path / "lib", replace(content, name=name))
    found = run(
        tmp_path / "lib",
        """
a = Array(256, np.zeros((64, 64), "f4", order="F"))
b, sizes = Array(512, np.zeros((64, 64), "f4")), dict(m=64, n=64, k=64, lda=64, ldb=64, ldc=64)
found = [lib.name, lib.is_product, lib.choice(**sizes)["kernel"], launched(lambda: lib.sgemm(a, b, out=a))[:3]]
""",
    )
    assert found == [name, True, "gemm_simt", [64, 64, 64]]


def test_a_library_that_is_loaded_after_another_answers_with_its_own_configurations(library, tmp_path):
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), seed=1)
    write_library(tmp_path / "other", content)
    found = run(
        library,
        f"""
sizes = dict(m=700, n=700, k=700, lda=700, ldb=700, ldc=700)
known = [one["configuration"] for one in load_library({str(tmp_path / "other")!r}).document["configurations"]]
other = load_library({str(tmp_path / "other")!r}).choice(**sizes)
other.pop("kernel")
found = [other in known, lib.choice(**sizes) == load_library(sys.argv[1]).choice(**sizes)]
""",
    )
    assert found == [True, True]


def test_tensors_of_the_host_and_those_that_require_gradients_are_refused(library):
    pytest.importorskip("torch")
    found = run(
        library,
        """
import torch
x = torch.zeros(4, 4)
found = [launched(lambda: lib.sgemm(x, x, out=x))]
x.requires_grad = True
found.append(launched(lambda: lib.sgemm(x, x, out=x)))
""",
    )
    assert found[0] == "LibraryError: A is a Tensor; it must be an array on a GPU."
    assert "a tensor requires a gradient" in found[1]


def test_an_array_of_dlpack_is_read_where_it_is(library):
    """A capsule is made as a package of arrays makes it."""
    found = run(
        library,
        """
from mltune.device.gpu_arrays import _Tensor
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
class Exchanged:
    def __init__(self, address, shape, strides, code=2, bits=32, device=2):
        self.device, self.streams = device, []
        self.shape, self.strides = (ctypes.c_int64 * 2)(*shape), strides and (ctypes.c_int64 * 2)(*strides)
        self.tensor = _Tensor(address, (device, 0), 2, code, bits, 1, self.shape, self.strides, 8)
    def __dlpack_device__(self):
        return self.device, 0
    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
a, b, c = Exchanged(248, (30, 70), (1, 30)), Exchanged(504, (70, 50), None), Exchanged(1016, (30, 50), (1, 30))
found = [launched(lambda: lib.sgemm(a, b, out=c)), launched(lambda: lib.sgemm(a, b, out=c, stream=77)), [*a.streams]]
for other in ({"bits": 64}, {"device": 1}, {"code": 9}):
    found.append(launched(lambda: lib.sgemm(a, Exchanged(0, (70, 50), None, **other), out=c)))
""",
    )
    one = int(np.float32(1).view("i4"))
    assert found[0] == found[1] == [30, 50, 70, one, 256, 30, 512, 50, 0, 1024, 30]
    assert found[2] == [1, 77]
    assert found[3] == "LibraryError: B has elements of <f8; they must be of float32."
    assert found[4] == "LibraryError: B is a Exchanged; it must be an array on a GPU."
    assert "they must be of float32" in found[5]


def test_another_gpu_is_a_clear_error(library):
    code = 'x = Array(256, np.zeros(4, "f4"))\nfound = launched(lambda: lib(9, 9, 9, 1.0, x, 9, x, 9, 0.0, x, 9))'
    assert "built for NVIDIA H200" in run(library, code, FAKE_MAJOR="8")
    assert "a CUDA context must be current" in run(library, code, FAKE_CONTEXT="0", FAKE_PRIMARY="0")
    assert run(library, code, FAKE_CONTEXT="0")[:3] == [9, 9, 9], "of a thread that has not used the GPU"


SIZE = {"name": "m", "dtype": "int64", "role": "size"}


def change(folder, **values):
    rewrite(folder, lambda document: document.update(values))


def damage_document(folder):
    text = (folder / "library.json").read_text()
    (folder / "library.json").write_text(text.replace('"alignment": 1', '"alignment": 2'))


def change_parameter(folder, name, **values):
    def replace_values(document):
        next(parameter for parameter in document["parameters"] if parameter["name"] == name).update(values)

    rewrite(folder, replace_values)


def add_conditions(folder):
    """Add formulas whose evaluation would take a minute."""
    rewrite(
        folder,
        lambda document: (
            document["configurations"][0].update(
                sizes_must_satisfy={f"{number:05} < {'m + ' * 450}m": "" for number in range(50)}
            )
            or document["configurations"].extend([document["configurations"][0]] * 5)
        ),
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "libsgemm_nt.so").write_bytes(b"x" * 99), "nt.so: it is damaged: its SHA-256"),
        (lambda folder: (folder / "sgemm_nt.h").write_text("//"), "sgemm_nt.h: it is damaged"),
        (lambda folder: (folder / "libsgemm_nt.so").unlink(), "libsgemm_nt.so: there is no such file"),
        (lambda folder: (folder / "library.json").unlink(), "library.json: there is no such file"),
        (lambda folder: change(folder, format=1), "it has format 1 and ABI 1, and this mltune reads format 3"),
        (lambda folder: change(folder, abi=7), "it has format 3 and ABI 7"),
        (lambda folder: change(folder, name="../x"), "name cannot be '../x': it must be a name of small letters"),
        (lambda folder: change(folder, sha256={"../../etc/passwd": "0" * 64}), "the name of a file in the folder"),
        (lambda folder: change(folder, shared_object=None), "it has no shared object"),
        (lambda folder: change(folder, problem={"precision": 5}), "the precision of its problem is no text"),
        (lambda folder: change(folder, problem={"precision": None}), "the precision of its problem is no text"),
        (lambda folder: change(folder, problem={"precision": ["s"]}), "the precision of its problem is no text"),
        (lambda folder: change(folder, problem=None), "problem cannot be None: it must be a table"),
        (lambda folder: change(folder, sizes=["m"], extents=["m"], parameters=[SIZE]), "no parameter is an array"),
        (add_conditions, "its formulas have more than 262144 characters together"),
        (lambda folder: change_parameter(folder, "m", role="in"), "the size m is no integer that is passed"),
        (lambda folder: change_parameter(folder, "n", dtype="float32"), "is no integer that is passed"),
        (lambda folder: change(folder, further=1), "further is not a known key"),
        (damage_document, "library.json: it is damaged: its SHA-256 is not its document_sha256"),
        (lambda folder: (folder / "library.json").write_text("[" * 9000), "more than 32 levels"),
        (lambda folder: (folder / "library.json").write_text("[]"), "must be a table"),
        (lambda folder: (folder / "library.json").write_text(""), "library.json: Expecting value"),
    ],
)
def test_a_folder_that_is_not_what_was_written_is_refused(library, tmp_path, damage, message):
    folder = tmp_path / "copy"
    shutil.copytree(library, folder)
    damage(folder)
    with pytest.raises(LibraryError, match=message):
        read_library(folder)


def test_a_library_has_a_bounded_size(library, tmp_path):
    """Files and documents of any size are refused before they are read: they cost no time and no memory."""
    folder = tmp_path / "copy"
    shutil.copytree(library, folder)
    for name in ("sgemm_nt.c", "libsgemm_nt.so"):
        with open(folder / name, "r+b") as file:
            file.truncate(1 << 40)
    begun = process_time()
    tracemalloc.start()
    with pytest.raises(LibraryError, match=r"files have [0-9]+ bytes in sum; they may have 268435456"):
        read_library(folder)
    rewrite(folder, lambda document: document["sha256"].update({f"file{number}": "0" * 64 for number in range(100)}))
    with pytest.raises(LibraryError, match=r"sha256 cannot be .*: it must have at most 16 items"):
        read_library(folder)
    os.truncate(folder / "library.json", 1 << 40)
    with pytest.raises(LibraryError, match="at most 4194304 are read"):
        read_library(folder)
    assert process_time() - begun < 10
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_a_link_in_a_folder_is_not_followed(library, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(library, folder)
    (folder / "sgemm_nt.h").unlink()
    (folder / "sgemm_nt.h").symlink_to(library / "sgemm_nt.h")
    with pytest.raises(LibraryError, match="link"):
        read_library(folder)


def test_a_document_names_everything_that_was_written(library):
    document, shared = read_library(library)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in library.iterdir()}
    assert {**document.sha256, "library.json": files["library.json"]} == files
    assert shared.startswith(b"\x7fELF")


def test_what_is_no_library_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), count=2)
    with pytest.raises(LibraryError, match="only a library that mltune wrote is replaced"):
        write_library(tmp_path, content)
    assert (tmp_path / "thesis.tex").exists()


def test_without_a_compiler_the_source_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_COMPILERS", ("no-such-compiler",))
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), count=2)
    document = write_library(tmp_path / "lib", content)
    assert document["shared_object"] is None
    assert (tmp_path / "lib" / "sgemm_nt.c").exists()
    with pytest.raises(LibraryError, match="there was no C compiler; compile it, as the first lines"):
        read_library(tmp_path / "lib")


def test_python_chooses_from_the_document_as_the_library_does(library):
    """The gate asks the document alone."""
    found = run(
        library,
        """
from pathlib import Path
from mltune.library.machine_code import choice
from mltune.library.folder import read_document
document, rng, found = read_document(Path(sys.argv[1])), np.random.default_rng(0), []
names = [{"kernel": one.kernel, **one.configuration} for one in document.configurations]
for shape in [(0, 5, 7), *(2 ** rng.uniform(0, 14, (200, 3))).astype(int).tolist()]:
    sizes = {**dict.fromkeys(document.sizes, 16384), **dict(zip("mnk", shape))}
    found.append([choice(document, sizes), names.index(lib.choice(**sizes))])
""",
    )
    assert [ours for ours, _ in found] == [of_c for _, of_c in found]
    assert len({ours for ours, _ in found}) > 2


def test_a_library_is_loaded_only_with_a_driver(library, monkeypatch):
    monkeypatch.setattr("mltune.library.loaded._DRIVER", "libno_such_driver.so.1")
    with pytest.raises(DeviceError, match="the NVIDIA driver cannot be loaded, which a library needs"):
        load_library(library)


def test_a_host_that_refuses_the_source_says_so(tmp_path, monkeypatch):
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), count=2)
    with pytest.raises(LibraryError, match="cannot compile the library"):
        write_library(tmp_path / "lib", replace(content, name="int"))
