"""A file with a Triton kernel that makes times up, on a GPU that is not there."""

from pathlib import Path

import pytest

FILE = '''
import os, math
import triton
from triton.runtime.driver import driver

class Gpu:
    """What is asked of a GPU."""

    get_device_interface = get_benchmarker = get_current_target = lambda self: self
    get_current_device = get_current_stream = lambda self, device=0: 0
    get_device_name = lambda self: "NVIDIA H100 80GB HBM3"

driver.set_active(Gpu())
calls = []

class Kernel:
    """What an autotuner calls of a kernel."""

    arg_names = ("x", "M")

    @staticmethod
    def fn(x, M): ...

    def run(self, x, M, grid, warmup, **meta):
        calls.append((x, M, grid(meta) if callable(grid) else grid, meta))

def bench(call, quantiles):
    call()
    x, M, (blocks,), meta = calls[-1]
    if meta["BLOCK_SIZE_M"] > 128:
        if calls.count(calls[-1]) > 1:
            raise RuntimeError("what has failed is not tried again")
        return [math.inf] * 3
    miss = abs(math.log2(meta["BLOCK_SIZE_M"] / min(128, max(16, M)))) if x == "first" else meta["num_stages"] - 2
    return [1.0 + miss + 0.1 * (meta["num_warps"] == 8) + 0.01 * meta["num_stages"]] * 3

CONFIGS = [
    triton.Config(dict(BLOCK_SIZE_M=m, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=1), num_warps=w, num_stages=s)
    for m in (256, 16, 32, 64, 128) for w in (8, 4) for s in (2, 3)
]
tuned = triton.autotune(configs=CONFIGS, key=["M"], do_bench=bench)(Kernel())
plain = Kernel()

def arguments(M, E=8, N=14336):
    if M == 13:
        raise ValueError("an unlucky shape")
    if M == 14:
        os._exit(3)
    if M == 15:
        return (lambda meta: 1 / 0), "first", M
    launches = [((M,), "first", M), ((M,), "second", M)]
    return launches if E == 8 else launches[0]
'''


def triton_file(folder: Path, text: str = "") -> str:
    """Write the file, with more text at its end; return its path. Without Triton the test is skipped."""
    pytest.importorskip("triton")
    path = folder / "kernels.py"
    path.write_text(FILE + text)
    return str(path)
