"""A library on a GPU: built there, right at sizes that it has not seen, from C++, CuPy and PyTorch."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from winners import cuda_include

import mltune
from mltune.device.facts import Device

pytestmark = pytest.mark.gpu

SIZES = [(64, 64, 64), (1, 1, 1), (100, 3, 5000), (513, 1025, 77), (64, 64, 8192), (2000, 1000, 1500), (7, 4096, 300)]
ASKED = {"operation": "sgemm", "trans": "NN", "kernel": ["gemm_simt"], "trials": 120, "tuned": 4, "timed": 10}
RANGES = {name: [64, 2048] for name in "mnk"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Path:
    """Build a library in a minute."""
    place = tmp_path_factory.mktemp("library")
    spec = {"library": ASKED, "sizes": {"ranges": RANGES}}
    document = mltune.build_library(spec, place / "sgemm_nn", run=place / "run", wisdom="none", progress=None)
    assert document["report"]["portfolio"]["least"] > 0.6
    return place / "sgemm_nn"


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return mltune.load_library(folder)


def matrices(xp: Any, m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = xp.random.default_rng(seed)
    a, b = (rng.random(shape, dtype="float32") - 0.5 for shape in ((m, k), (k, n)))
    return a, b, xp.full((m, n), xp.nan, dtype="float32")


def error(a: Any, b: Any, c: Any) -> float:
    """Return the largest error as a share of its bound."""
    a, b = a.astype("float64"), b.astype("float64")
    bound = (a.shape[1] + 3) * 2.0**-24 * (abs(a) @ abs(b))
    return float((abs(c - a @ b) / bound).max())


def test_products_are_right_at_sizes_that_it_has_not_seen_one_after_the_other(library: Any) -> None:
    """The workspace of all is the same, and holds what the one before has left."""
    import cupy

    for repeat in range(3):
        for m, n, k in SIZES:
            a, b, c = matrices(cupy, m, n, k, repeat)
            library.sgemm(a, b, out=c)
            assert error(a, b, c) <= 1, (m, n, k)
            by_columns = cupy.full_like(c, cupy.nan, order="F")
            library.sgemm(cupy.asfortranarray(a), cupy.asfortranarray(b), out=by_columns, alpha=2.0)
            assert error(a, b, by_columns / 2) <= 1, (m, n, k)


def test_every_configuration_is_right(library: Any) -> None:
    """Wherever one runs: sizes are drawn until no further configuration was seen for long."""
    import cupy

    seen, rng = set(), np.random.default_rng(1)
    for _ in range(60):
        m, n, k = (int(size) for size in 2 ** rng.uniform(5, 11.5, 3))
        a, b, c = matrices(cupy, m, n, k)
        library.sgemm(a, b, out=c)
        assert error(a, b, c) <= 1, (m, n, k)
        chosen = library.choice(m=n, n=m, k=k, lda=n, ldb=k, ldc=n)
        seen.add(str(chosen))
    assert len(seen) >= min(2, len(library.document["configurations"]))


def test_streams_and_threads_do_not_disturb_each_other(library: Any) -> None:
    import cupy

    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
                for m, n, k in SIZES * 5:
                    a, b, c = matrices(cupy, m, n, k, seed)
                    library.sgemm(a, b, out=c)
                    stream.synchronize()
                    if not error(a, b, c) <= 1:
                        failures.append((seed, m, n, k))
        except Exception as error_of_thread:
            failures.append(error_of_thread)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []


def test_calls_are_captured_in_a_graph(library: Any) -> None:
    import cupy

    a, b, c = matrices(cupy, 100, 64, 5000)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        library.sgemm(a, b, out=c)
        stream.begin_capture()
        library.sgemm(a, b, out=c)
        graph = stream.end_capture()
        for seed in range(3):
            a[:], b[:], _ = matrices(cupy, 100, 64, 5000, seed)
            c.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            assert error(a, b, c) <= 1


def test_tensors_of_pytorch_are_multiplied_on_their_stream(library: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.rand(shape, device="cuda") - 0.5 for shape in ((300, 4000), (4000, 200)))
    with torch.cuda.stream(torch.cuda.Stream()):
        out = torch.full((300, 200), float("nan"), device="cuda")
        library.sgemm(a, b, out=out)
        wanted = a.double() @ b.double()
        torch.cuda.synchronize()
    assert float((out - wanted).abs().max()) < 1e-3


PROGRAM = r"""
#include <cuda.h>
#include <cstdio>
#include <cstdint>
#include <cmath>
#include <vector>
#include "sgemm_nn.h"
int main() {
  CUdevice device; CUcontext context; CUdeviceptr a, b, c, workspace;
  sgemm_nn_library* library;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) return 2;
  if (cuCtxSetCurrent(context)) return 2;
  if (int status = sgemm_nn_create(&library, SGEMM_NN_ABI)) { std::puts(sgemm_nn_error(status)); return 3; }
  const int m = 65, n = 130, k = 3000;
  std::vector<float> A(m * k), B(k * n), C(m * n);
  for (size_t i = 0; i < A.size(); i++) A[i] = int(i * 7 % 13) - 6;
  for (size_t i = 0; i < B.size(); i++) B[i] = int(i * 5 % 11) - 5;
  size_t bytes = 0;
  if (sgemm_nn_choice(m, n, k, m, k, m, SIZE_MAX, &bytes) < 0) return 4;
  if (cuMemAlloc(&a, 4 * A.size()) || cuMemAlloc(&b, 4 * B.size()) || cuMemAlloc(&c, 4 * C.size())) return 4;
  if (cuMemAlloc(&workspace, bytes + 1) || cuMemsetD8(workspace, 0, bytes + 1)) return 4;
  if (cuMemcpyHtoD(a, A.data(), 4 * A.size()) || cuMemcpyHtoD(b, B.data(), 4 * B.size())) return 4;
  for (int with = 0; with < 2; with++) {
    cuMemsetD8(c, 0xff, 4 * C.size());
    void* const memory = with ? (void*)workspace : nullptr;
    int status = sgemm_nn(library, m, n, k, 1, (float*)a, m, (float*)b, k, 0, (float*)c, m, memory, bytes, nullptr);
    if (status) { std::puts(sgemm_nn_error(status)); return 5; }
    if (cuMemcpyDtoH(C.data(), c, 4 * C.size())) return 6;
    for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
      double sum = 0;
      for (int l = 0; l < k; l++) sum += double(A[i + l * m]) * B[l + j * k];
      if (C[i + j * m] != float(sum)) return 7;
    }
  }
  sgemm_nn_destroy(library);
  std::puts("right");
}
"""


def test_a_program_in_cpp_needs_the_folder_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(PROGRAM)
    folders = [f"-I{folder}", f"-I{cuda_include()}", f"-L{folder}"]
    command = ["g++", "main.cpp", *folders, "-lsgemm_nn", "-l:libcuda.so.1", "-o", "it"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./it"], cwd=tmp_path, env={"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "right\n")
