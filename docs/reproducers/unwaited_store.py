"""Compile unwaited_store.cu with some controls, and count the wrong elements of its results on the GPU.

The operands are small integers, so a right product is exact. Needs cuda-bindings, NVRTC, NumPy and CuPy, and a GPU of
compute capability 9.0; ``--save FOLDER`` writes the cubins, and needs no GPU.

    python docs/reproducers/unwaited_store.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import nvrtc

SOURCE = Path(__file__).with_suffix(".cu").read_text()
CONTROLS = {
    "default (-O3)": (),
    "-Xptxas -O2": ("--ptxas-options=-O2",),
    "-Xptxas -O1": ("--ptxas-options=-O1",),
    "entry wrong_cutlass": ("-Dwrong=wrong_cutlass",),
    "register usage level 0": ("--ptxas-options=--register-usage-level=0",),
    "register usage level 8": ("--ptxas-options=--register-usage-level=8",),
}
M, N, K = 2048, 2048, 512
BLK_M, BLK_N, THREADS, SHARED_BYTES = 64, 32, 128, 2 * (64 * 24 + 32 * 16) * 8


def text(size: Callable[[Any], Any], get: Callable[[Any, bytes], Any], program: Any) -> bytes:
    """Read something of a program of NVRTC."""
    buffer = bytes(size(program)[1])
    get(program, buffer)
    return buffer


def compiled(options: tuple[str, ...]) -> bytes:
    """Return the cubin."""
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"unwaited_store.cu", 0, [], [])
    asked = [option.encode() for option in ("--gpu-architecture=sm_90", "--std=c++17", "-default-device", *options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(asked), asked)
    if int(status):
        raise SystemExit(text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode())
    return text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)


def main() -> None:
    """Compile, run, and print a row for each control."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--save", type=Path, help="folder for the cubins; nothing is run")
    options = parser.parse_args()
    cubins = {name: compiled(asked) for name, asked in CONTROLS.items()}
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        for number, cubin in enumerate(cubins.values()):
            (options.save / f"{number}.cubin").write_bytes(cubin)
        return

    import cupy

    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, (K, extent)).astype(float) for extent in (M, N))
    on_a, on_b, right = (cupy.asarray(matrix.ravel(order="F")) for matrix in (a, b, a.T @ b))
    print("NVRTC", *nvrtc.nvrtcVersion()[1:], cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    for name, cubin in cubins.items():
        module = cupy.cuda.function.Module()
        module.load(cubin)
        kernel = module.get_function("wrong_cutlass" if "cutlass" in name else "wrong")
        counts, places = [], set[tuple[int, int]]()
        for _ in range(options.launches):
            c = cupy.full(M * N, np.nan)
            arguments = (np.int64(K), on_a, np.int64(K), on_b, np.int64(K), c, np.int64(M))
            kernel((M // BLK_M, N // BLK_N), (THREADS,), arguments, shared_mem=SHARED_BYTES)
            found = cupy.flatnonzero(c != right).get()
            counts.append(len(found))
            places |= {*zip((found % M % 16).tolist(), (found // M % 32).tolist(), strict=True)}
        at = [sorted({place[index] for place in places}) for index in (0, 1)]
        where = f"; rows modulo 16: {at[0]}, columns modulo 32: {at[1]}" if places else ""
        print(f"{name}: {min(counts)} to {max(counts)} of {M * N} elements wrong{where}")


if __name__ == "__main__":
    main()
