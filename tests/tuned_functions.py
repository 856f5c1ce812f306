"""Tuned functions on an imaginary GPU: times by block size, launches that are noted, and arrays without memory.

Run as a program, it calls one in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from imaginary_gpu import ImaginaryBuilder, built, imaginary_runner

import mltune
from mltune.cost.regressors import Preloading
from mltune.device import query
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.known.wisdom import WisdomFile
from mltune.measure import build as build_module
from mltune.measure import runner as runner_module
from mltune.records.trial import Build
from mltune.results import tuned_kernel
from mltune.tuning import session, tuned_function, tuner

SOURCE = """
__global__ void add(float *c, const float *a, float factor, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) c[i] = factor * a[i];
}"""
TIMES_S = {64: 3e-3, 128: 2e-3, 256: 1e-3, 512: 4e-3}
PARAMETERS = {"block_size_x": list(TIMES_S)}


class Array:
    """An array of CuPy on the imaginary GPU."""

    __module__ = "cupy"
    device, data = SimpleNamespace(id=0), SimpleNamespace(device_id=0)

    def __init__(self, *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> None:
        host = np.zeros(shape, dtype)
        self.shape, self.dtype, self.strides, self.size = shape, host.dtype, strides or host.strides, host.size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "strides": self.strides, "data": (0, False)}

    def get(self) -> np.ndarray[Any, Any]:
        return np.zeros(self.shape, self.dtype)


class Builder(ImaginaryBuilder):
    """A builder whose kernels take the times of their block sizes."""

    def submit(self, configuration: Any) -> Future[Build]:
        return built(noise=0.002, **{"time_s": TIMES_S[configuration["block_size_x"]], **self.behaviours})


class World:
    """What happened on the imaginary GPU.

    Attributes
    ----------
    tunings : pathlib.Path
        A file with a letter for every run that was begun, in all processes.
    launches : list of (str, tuple)
        The grid and the arguments of every launch of this process.
    behaviours : dict
        Of all kernels; see ``imaginary_worker``.
    """

    def __init__(self, monkeypatch: Any, folder: Path, pool: Any = None, *, compiles: bool = False) -> None:
        self.tunings, self.launches, self.behaviours = folder / "tunings", [], {}
        self.device = H200

        def open_session(request: Any, **options: Any) -> session.Session:
            with self.tunings.open("a") as file:
                file.write("x")
            placed = PlacedKernel(request.kernel, request.problem, self.device, options.get("space"))
            runner = imaginary_runner(kernel=request.kernel, problem=request.problem, pool=pool)
            parts = Builder(self.behaviours), runner, {"driver": "13.0"}
            return session.Session(placed, *parts, gpu=runner, default=placed.default)

        def load(code: bytes, name: str, launch: Any, constants: Any = None) -> Any:
            return lambda *arguments: self.launches.append((launch.grid, arguments))

        if not compiles:
            monkeypatch.setattr(tuned_function, "check_source", lambda *arguments: None)
            monkeypatch.setattr(tuned_function, "build_once", lambda *arguments: built().result())
            monkeypatch.setattr(build_module, "with_known_options", lambda kernel, architecture: (kernel, []))
        # All configurations are measured, however busy the machine is.
        monkeypatch.setattr(tuned_function, "TIME_S", {"none": 0.0, "quick": 300.0, "full": 600.0})
        monkeypatch.setattr(query, "query_device", lambda index: self.device)
        monkeypatch.setattr(query, "driver_version", lambda: "13.0")
        monkeypatch.setattr(query, "_driver", query._driver.__wrapped__)  # it would keep the bindings for later tests
        monkeypatch.setattr(tuner, "open_session", open_session)
        monkeypatch.setattr(tuner, "start_worker", lambda *arguments: None, raising=False)
        monkeypatch.setattr(tuner.Tuner, "_write_winner", lambda *arguments: None)
        monkeypatch.setattr(runner_module, "_PAUSES_S", ())
        monkeypatch.setattr(runner_module, "start_worker", lambda *arguments: None)
        monkeypatch.setattr(tuned_kernel, "load_code", load)

    @property
    def tuned(self) -> int:
        """The number of runs that were begun."""
        return len(self.tunings.read_text()) if self.tunings.exists() else 0


def function(file: Path, source: str = SOURCE, **options: Any) -> Any:
    """Return a tuned function whose problem size is that of its first argument."""
    return mltune.tuned_kernel(
        "add", source, lambda c, *others: c.size, PARAMETERS, file=file, progress=None, **options
    )


def arguments(n: int = 1000) -> tuple[Any, ...]:
    return Array(n), Array(n), np.float32(2), np.int32(n)


def _hang(note: Path) -> None:
    note.touch()
    time.sleep(100)


def main(file: str, n: str, deed: str) -> None:
    """Call for a size in this process, which perhaps waits for a file, hangs, or is killed before it writes."""
    from _pytest.monkeypatch import MonkeyPatch

    monkeypatch = MonkeyPatch()
    World(monkeypatch, Path(file).parent)
    # Four configurations are all measured: no model is fitted, and importing what fits models takes 1.5 s.
    monkeypatch.setattr(tuner, "Preloading", lambda **_: Preloading(fits_models=False))
    if deed == "die":
        monkeypatch.setattr(WisdomFile, "add", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    elif deed == "hang":
        monkeypatch.setattr(tuner, "tune", lambda *arguments, **options: _hang(Path(file).with_name("hangs")))
    elif deed:
        while not Path(deed).exists():
            time.sleep(0.01)
    tuned = function(Path(file))
    tuned(*arguments(int(n)))
    sys.stdout.write(f"{tuned.chosen(*arguments(int(n))).configuration['block_size_x']}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
