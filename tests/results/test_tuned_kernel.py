"""A winner's folder is loaded as a function only if it describes a launch that can be."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import build_driver, fake_map

from mltune.errors import DeviceError, RunDirectoryError
from mltune.kernel.launch import TensorMap
from mltune.results.tuned_kernel import load_winner

LAUNCH = {"grid": [4, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "launched": [3]}


def folder(path: Path, launch: Any = LAUNCH, **facts: Any) -> Path:
    document = {"kernel": {"function": "add"}, "launch": launch, "lacks_code": "", **facts}
    (path / "winner.json").write_text(json.dumps(document))
    (path / "kernel.cubin").write_bytes(b"\x7fELF, not a cubin")
    return path


def test_an_honest_description_is_taken(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):  # for want of CuPy, a GPU, or a real cubin
        load_winner(folder(tmp_path))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"launch": LAUNCH | {"grid": [1, 1]}}, "launch.grid"),
        ({"launch": LAUNCH | {"grid": ["1", 1, 1]}}, "launch.grid"),
        ({"launch": LAUNCH | {"block": [2**40, 1, 1]}}, "launch.block"),
        ({"launch": LAUNCH | {"shared_bytes": None}}, "launch.shared_bytes"),
        ({"launch": LAUNCH | {"launched": {"a": 1}}}, "launch.launched"),
        ({"launch": {}}, "launch.grid"),
        ({"kernel": {"function": 3}}, "kernel.function"),
        ({"kernel": []}, "kernel"),
        ({"launch": None, "lacks_code": "replayed"}, "it has no machine code"),
    ],
)
def test_a_description_without_a_launch_is_refused(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with pytest.raises(RunDirectoryError, match=words):
        load_winner(folder(tmp_path, **facts))


@pytest.mark.parametrize("name", ["winner.json", "kernel.cubin"])
def test_a_file_that_is_missing_or_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunDirectoryError, match="there is no such file"):
        load_winner(tmp_path)
    (tmp_path / name).symlink_to("/etc/hostname")
    with pytest.raises(RunDirectoryError, match="no link is followed"):
        load_winner(tmp_path)


CALLER = """
import ctypes, json, threading, types
import cupy, numpy as np
from mltune.results.tuned_kernel import TunedKernel

class Launch(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_int64 * 7), ("arguments", ctypes.c_int64 * 20)]

driver = ctypes.CDLL("libcuda.so.1")
last, stream = Launch.in_dll(driver, "fake_last"), ctypes.c_int64.in_dll(driver, "fake_stream")
cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=77)
code = ctypes.create_string_buffer(b"\\x7fELF" + bytes([7, 8, 4, 4, 8, 8, 4, 8]))
by_cupy = []
class Function:  # of CuPy, which makes the launches that are not prepared
    kernel = types.SimpleNamespace(ptr=ctypes.addressof(code))
    def __call__(self, grid, block, arguments, shared_mem):
        by_cupy.append([type(one).__name__ for one in arguments])

def array(address):
    memory = cupy.cuda.UnownedMemory(address, 64, None, device_id=0)
    return cupy.ndarray((4, 4), dtype="f4", memptr=cupy.cuda.MemoryPointer(memory, 0))

kernel = TunedKernel(Function(), None, (4, 1, 1), (32, 2, 1), 96, (3, -5)[:1], array(2**40))
arguments = (array(4096), np.int32(-7), np.float32(1.5), 12, np.complex64(1 + 2j))
def launched():
    return [list(last.shape), list(last.arguments)[:7], stream.value]
kernel(*arguments)
found = [launched()]
kernel(*arguments, grid=(9,), workspace=array(512))
found.append(launched())

wrong = []
def work(number):  # each thread has a launch of its own
    for value in range(number, 100_000, 100):
        kernel(array(value), np.int32(value), np.float32(0), value, np.complex64(0))
        if [driver.fake_argument(place) for place in (0, 1, 3)] != [value] * 3:
            wrong.append(value)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
[one.start() for one in threads], [one.join() for one in threads]
found += [wrong, [*by_cupy]]
kernel(None, *arguments[1:])
kernel(arguments[0], 2**70, *arguments[2:])
found.append(by_cupy[len(found[3]):])
code = ctypes.create_string_buffer(b"\\x7fELF" + bytes([4, 8, 4, 8, 8]))
Function.kernel = types.SimpleNamespace(ptr=ctypes.addressof(code))
rows = ((0, "2", "n", "k + 1", "n", "8"), (0, "2", "n", "k", "n + 1", "8"))
mapped = TunedKernel(Function(), None, (4, 1, 1), (32, 2, 1), 96, (), None, rows, ("A", "n", "k"))
for n in (64, 128):
    mapped(array(4096), np.int32(n), np.int64(7))
    found.append(list(last.arguments)[:4])
print(json.dumps(found))
"""


def test_a_launch_passes_what_cupy_would_pass(tmp_path: Path) -> None:
    """On the current stream of CuPy, which makes those launches that are of other types, or that the driver refuses."""
    pytest.importorskip("cupy")
    build_driver(tmp_path)

    def run(**environment: str) -> Any:
        environment |= {"LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", CALLER], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    one, two = (int(np.float32(value).view("i4")) for value in (1, 2))
    first, second, wrong, by_cupy, others, *mapped = run()
    values = [4096, 2**32 - 7, int(np.float32(1.5).view("i4")), 12, one | two << 32, 3]
    assert first == [[4, 1, 1, 32, 2, 1, 96], [*values, 2**40], 77]
    assert second == [[9, 1, 1, 32, 2, 1, 96], [*values, 512], 77]
    assert (wrong, by_cupy) == ([], [])
    for n, arguments in zip((64, 128), mapped, strict=True):  # made anew for another size; not of lines of 130 bytes
        assert arguments == [4096, n, 7, fake_map(TensorMap(0, 2, n, 8, n, 8), 4096)]
    assert [kinds[:2] for kinds in others] == [["NoneType", "int32"], ["ndarray", "int"]]
    assert run(FAKE_REFUSES="1")[3][0] == ["ndarray", "int32", "float32", "int", "complex64", "int64", "ndarray"]


ENCODE = """
import json, sys
from mltune.kernel.launch import TensorMap
found = []
for matrix, address in json.loads(sys.argv[1]):
    content = TensorMap(*matrix).encoded(address)
    assert len(content) == 128
    found.append(int.from_bytes(content[:8], "little", signed=True))
print(json.dumps(found))
"""


def test_the_driver_encodes_a_tensor_map_where_the_copy_engine_can_copy(tmp_path: Path) -> None:
    build_driver(tmp_path)
    matrices = [
        (TensorMap(4, 2, 100, 7, 104, 64), 4096),
        (TensorMap(4, 1, 100, 7, 112, 256), 4112),
        (TensorMap(4, 2, 100, 7, 100, 64), 4096),  # lines begin at other multiples than of 16 bytes
        (TensorMap(4, 2, 104, 7, 104, 64), 4098),
        (TensorMap(4, 2, 0, 7, 104, 64), 4096),
    ]
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, json.dumps(matrices)],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = [fake_map(matrix, address) for matrix, address in matrices]
    assert json.loads(done.stdout) == words
    assert [bool(word) for word in words] == [True, True, False, False, False]
    assert TensorMap(4, 3, 8, 8, 16, 8).encoded(4096) == bytes(128)  # no elements of three bytes, whatever the driver
