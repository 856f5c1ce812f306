"""Tuned functions on a GPU: arrays of CuPy and PyTorch, first and later calls, other processes, streams and graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mltune
from mltune.errors import MltuneError
from tests.environment import importing

pytestmark = pytest.mark.gpu

SOURCE = """
extern "C" __constant__ float shift[1];
template <class T> __global__ void add(T* c, const T* a, const T* b, T factor, int n) {
  for (int i = (blockIdx.x * block_size_x + threadIdx.x) * per_thread, k = 0; k < per_thread; ++k, ++i)
    if (i < n) c[i] = a[i] + factor * b[i] + shift[0];
}
"""
PARAMETERS = {"block_size_x": [32, 64, 128, 256, 512], "per_thread": [1, 2, 4]}
N = 1_000_003


def right(c: Any, a: Any, b: Any, factor: Any, n: Any) -> list[Any]:
    return [a + b * factor + 0.5, None, None, None, None]


def make(file: Path, **options: Any) -> Any:
    """Return a tuned function that adds arrays, and verifies that."""

    @mltune.tuned(
        "add<float>",
        SOURCE,
        PARAMETERS,
        grid_div_x=["block_size_x", "per_thread"],
        cmem_args={"shift": np.array([0.5], np.float32)},
        file=file,
        progress=None,
        **{"effort": "quick", "answer": right, **options},
    )
    def add(c: Any, a: Any, b: Any, factor: Any, n: Any) -> int:
        return int(n)

    return add


def arrays(n: int = N) -> tuple[Any, ...]:
    import cupy

    a, b = (cupy.random.default_rng(seed).random(n, dtype=cupy.float32) for seed in (1, 2))
    return cupy.full(n, cupy.nan, cupy.float32), a, b, np.float32(3), np.int32(n)


def is_right(c: Any, a: Any, b: Any, *scalars: Any) -> bool:
    return bool(abs(c - (a + 3 * b + 0.5)).max() < 1e-5)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that knows N, and has no other size."""
    path = tmp_path_factory.mktemp("tuned") / "add.json"
    add, given = make(path), arrays()
    add(*given)
    assert is_right(*given)
    assert add.chosen(*given).origin == "tuned"
    assert add.chosen(*given).median_s < 1e-3
    return path


def test_later_calls_and_further_functions_do_not_tune(file: Path) -> None:
    before = file.read_bytes()
    add = make(file)
    for _ in range(3):
        given = arrays()
        add(*given)
        assert is_right(*given)
    choice = add.chosen(*arrays())
    assert (choice.origin, choice.calls) == ("file", 3)
    assert choice.first_s < 5
    assert file.read_bytes() == before


def test_what_arguments_hold_does_not_matter(file: Path) -> None:
    add, (c, a, b, _, n) = make(file, effort="none"), arrays()
    for factor in (1.0, -7.0):
        add(c, a + 1, b, np.float32(factor), n)
        assert float(abs(c - (a + 1 + factor * b + 0.5)).max()) < 1e-4
    assert add.chosen(c, a, b, np.float32(0), n).origin == "file"


def test_tensors_of_pytorch_on_their_stream(file: Path) -> None:
    torch = pytest.importorskip("torch")
    add = make(file)
    with torch.cuda.stream(torch.cuda.Stream()):
        a, b = (torch.rand(N, device="cuda") for _ in "ab")
        c = torch.full((N,), float("nan"), device="cuda")
        add(c, a, b, np.float32(3), np.int32(N))
        assert is_right(c, a, b)
    assert add.chosen(c, a, b, np.float32(3), np.int32(N)).origin == "file"
    weights = torch.rand(N, device="cuda", requires_grad=True)
    add(c, weights, b, np.float32(3), np.int32(N))
    assert is_right(c, weights.detach(), b)


def test_tensors_of_pytorch_are_tuned(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.rand(5000, device="cuda") for _ in "ab")
    c = torch.zeros_like(a)
    add = make(tmp_path / "add.json")
    add(c, a, b, np.float32(3), np.int32(5000))
    assert is_right(c, a, b)
    assert add.chosen(c, a, b, np.float32(3), np.int32(5000)).origin == "tuned"


def test_arrays_of_other_packages(file: Path) -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.array = array

        @property
        def __cuda_array_interface__(self) -> Any:
            return self.array.__cuda_array_interface__

    add, (c, a, b, factor, n) = make(file), arrays()
    add(Foreign(c), Foreign(a), Foreign(b), factor, n)
    assert is_right(c, a, b)


def test_without_effort_the_nearest_is_taken(file: Path) -> None:
    before, given = file.read_bytes(), arrays(12_345)
    add = make(file, effort="none")
    add(*given)
    assert is_right(*given)
    assert add.chosen(*given).origin == "nearest"
    assert file.read_bytes() == before


def test_a_call_is_captured_in_a_graph(file: Path) -> None:
    import cupy

    add, given = make(file), arrays()
    add.prepare(*given)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        add(*given)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert is_right(*given)


def test_a_wrong_answer_is_found_and_nothing_is_kept(tmp_path: Path) -> None:
    add = make(tmp_path / "add.json", answer=lambda c, a, b, factor, n: [a, None, None, None, None])
    with pytest.raises(MltuneError, match="must give the right answer"):
        add(*arrays())
    assert not (tmp_path / "add.json").exists()


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    import cupy

    c, a, b, factor, _ = arrays(64)
    add = make(tmp_path / "add.json")
    with pytest.raises(MltuneError, match="parameter 5 of add"):
        add(c, a, b, factor, np.int64(64))
    with pytest.raises(MltuneError, match=r"stored by rows,? without gaps"):
        add(c, cupy.zeros(128, cupy.float32)[::2], b, factor, np.int32(64))


def begin(file: Path, effort: str) -> subprocess.Popen[str]:
    """Begin a process that calls the function, and prints where its choice comes from, and which it is."""
    program = (
        "from pathlib import Path\n"
        "from test_tuned_on_this_gpu import arrays, is_right, make\n"
        f"add, given = make(Path({str(file)!r}), effort={effort!r}), arrays()\n"
        "add(*given)\n"
        "choice = add.chosen(*given)\n"
        "print(is_right(*given), choice.origin, sorted(choice.configuration.items()), sep='; ')\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=importing(Path(__file__).parent),
    )


def printed(one: subprocess.Popen[str]) -> list[str]:
    out, error = one.communicate(timeout=240)
    assert one.returncode == 0, error
    return out.strip().split("; ")


def test_a_new_process_finds_it_without_tuning(file: Path) -> None:
    right, origin, chosen = printed(begin(file, "quick"))
    assert (right, origin) == ("True", "file")
    assert chosen == str(sorted(make(file).chosen(*arrays()).configuration.items()))


def test_of_two_processes_at_once_one_tunes(tmp_path: Path) -> None:
    both = [begin(tmp_path / "add.json", "quick") for _ in range(2)]
    (right, origin, chosen), (other_right, other_origin, other) = map(printed, both)
    assert (right, other_right) == ("True", "True")
    assert sorted((origin, other_origin)) == ["file", "tuned"]
    assert chosen == other
