"""A library in Python: what is passed for arrays of several orders, and folders that are refused."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from c_library import build_driver, content_of

from mltune.errors import DeviceError, LibraryError
from mltune.library import folder as folders
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
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"))
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
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    assert "stored by columns, or all of it transposed, but the strides of a, b and out are" in found[3]
    assert "(70, 1), (50, 1) and (50, 1) elements; build a library of their case" in found[3]
    assert "the shapes of a product must fit" in found[4]
    assert found[5] == "LibraryError: A must have elements of float32, got <f8."
    assert found[6] == "LibraryError: A must be an array on a GPU, got ndarray."


@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
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


def test_another_gpu_is_a_clear_error(library):
    code = 'x = Array(256, np.zeros(4, "f4"))\nfound = launched(lambda: lib(9, 9, 9, 1.0, x, 9, x, 9, 0.0, x, 9))'
    assert "built for NVIDIA H200" in run(library, code, FAKE_MAJOR="8")
    assert "a CUDA context must be current" in run(library, code, FAKE_CONTEXT="0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "libsgemm_nt.so").write_bytes(b"x" * 99), "libsgemm_nt.so is damaged: its SHA-256"),
        (lambda folder: (folder / "sgemm_nt.h").write_text("//"), "sgemm_nt.h is damaged"),
        (lambda folder: (folder / "libsgemm_nt.so").unlink(), "there is no such file"),
        (lambda folder: (folder / "library.json").unlink(), "there is no such file"),
        (lambda folder: change(folder, format=2), "it has format 2 and ABI 1, and this mltune reads format 1"),
        (lambda folder: change(folder, abi=7), "it has format 1 and ABI 7"),
        (lambda folder: change(folder, name="../x"), "name must be a name of small letters"),
        (lambda folder: change(folder, sha256={"../../etc/passwd": "0" * 64}), "the name of a file in the folder"),
        (lambda folder: change(folder, shared_object=None), "it has no shared object"),
        (lambda folder: (folder / "library.json").write_text("[" * 9000), "but"),
        (lambda folder: (folder / "library.json").write_text("[]"), "but"),
    ],
)
def test_a_folder_that_is_not_what_was_written_is_refused(library, tmp_path, damage, message):
    folder = tmp_path / "copy"
    shutil.copytree(library, folder)
    damage(folder)
    with pytest.raises(LibraryError, match=message):
        read_library(folder)


def change(folder, **values):
    document = json.loads((folder / "library.json").read_text()) | values
    (folder / "library.json").write_text(json.dumps(document))


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
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"))
    with pytest.raises(LibraryError, match="holds something else"):
        write_library(tmp_path, content)
    assert (tmp_path / "thesis.tex").exists()


def test_without_a_compiler_the_source_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_COMPILERS", ("no-such-compiler",))
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"))
    document = write_library(tmp_path / "lib", content)
    assert document["shared_object"] is None
    assert (tmp_path / "lib" / "sgemm_nt.c").exists()
    with pytest.raises(LibraryError, match="there was no C compiler; compile it, as the first lines"):
        read_library(tmp_path / "lib")


def test_a_library_is_loaded_only_with_a_driver(library, monkeypatch):
    monkeypatch.setattr("mltune.library.loaded._DRIVER", "libno_such_driver.so.1")
    with pytest.raises(DeviceError, match="a library needs the NVIDIA driver"):
        load_library(library)


def test_a_host_that_refuses_the_source_says_so(tmp_path, monkeypatch):
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"))
    with pytest.raises(LibraryError, match="that fails"):
        write_library(tmp_path / "lib", replace(content, name="int"))
