"""A GPU that is the host: the part of CuPy that a worker uses, over NumPy, with raw kernels compiled by g++.

A block has 32 threads, which run at the same time; blocks run one after the other. Kernels loop over their elements, so
that grids may be smaller than those that are asked for.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

_BLOCKS = 2
_HEADER = r"""
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <utility>
#define __global__
#define __device__
#define __shared__ static
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx, blockIdx;
static Index blockDim = {32, 1, 1}, gridDim;
static pthread_barrier_t together;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static unsigned char exchanged[32][16];
inline void __syncthreads() { pthread_barrier_wait(&together); }
template <class T> T __shfl_down_sync(unsigned, T value, int lanes) {
  memcpy(exchanged[threadIdx.x], &value, sizeof(T));
  __syncthreads();
  if (threadIdx.x + lanes < 32) memcpy(&value, exchanged[threadIdx.x + lanes], sizeof(T));
  __syncthreads();
  return value;
}
template <class T, class F> void locked(T* place, F change) {
  pthread_mutex_lock(&one_at_a_time);
  *place = change(*place);
  pthread_mutex_unlock(&one_at_a_time);
}
template <class T> void atomicAdd(T* place, T one) { locked(place, [=](T old) { return old + one; }); }
template <class T> void atomicMax(T* place, T one) { locked(place, [=](T old) { return old > one ? old : one; }); }
template <class T> void atomicMin(T* place, T one) { locked(place, [=](T old) { return old < one ? old : one; }); }
template <class To, class From> To same_bits(From from) { To to; memcpy(&to, &from, sizeof(To)); return to; }
inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
struct Thread { void (*call)(void**); void** arguments; unsigned thread, block, row; };
static void* run_thread(void* given) {
  Thread* thread = (Thread*)given;
  threadIdx = {thread->thread, 0, 0};
  blockIdx = {thread->block, thread->row, 0};
  thread->call(thread->arguments);
  return 0;
}
template <class... Arguments, std::size_t... At>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<At...>) {
  kernel(*(Arguments*)arguments[At]...);
}
template <class... Arguments> void call(void (*kernel)(Arguments...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<Arguments...>{});
}
static void run(void (*call)(void**), void** arguments, unsigned blocks, unsigned rows) {
  gridDim = {blocks, rows, 1};
  pthread_barrier_init(&together, 0, 32);
  for (unsigned row = 0; row < rows; row++)
    for (unsigned block = 0; block < blocks; block++) {
      pthread_t threads[32];
      Thread given[32];
      for (unsigned one = 0; one < 32; one++) {
        given[one] = {call, arguments, one, block, row};
        pthread_create(&threads[one], 0, run_thread, &given[one]);
      }
      for (unsigned one = 0; one < 32; one++) pthread_join(threads[one], 0);
    }
  pthread_barrier_destroy(&together);
}
"""
_HALF = r'asm\("cvt.f32.f16[^;]*;"[^;]*;'
_TIMER = r'asm volatile\("mov.u64 %0, %globaltimer;"[^;]*;'


class Pointer:
    """Memory of an array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @property
    def ptr(self) -> int:
        return int(self._array.ctypes.data)

    def memset_async(self, value: int, size: int) -> None:
        ctypes.memset(self.ptr, value, size)

    def copy_from_device_async(self, other: Pointer, size: int) -> None:
        ctypes.memmove(self.ptr, other.ptr, size)


class Array:
    """An array of CuPy; NumPy does not take it for one of its own."""

    __array_priority__ = 1
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.host = array
        self.data = Pointer(array)
        self.nbytes, self.dtype, self.shape, self.size = array.nbytes, array.dtype, array.shape, array.size

    def __getitem__(self, key: Any) -> Array:
        return Array(self.host[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value

    def __len__(self) -> int:
        return len(self.host)

    def __eq__(self, other: object) -> Any:
        return self.host == other.host if isinstance(other, Array) else NotImplemented

    def copy(self) -> Array:
        return Array(self.host.copy())

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    def set(self, values: np.ndarray[Any, Any]) -> None:
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        self.host[...] = values


class RawKernel:
    """A kernel that is compiled for the host at its first launch."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:
        self._given = code, name, options

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        values = [np.array(one.data.ptr, np.uint64) if isinstance(one, Array) else np.array(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        code, name, options = self._given
        function = getattr(_compiled(code, options), f"run_{name}")
        function(pointers, min(grid[0], _BLOCKS), grid[1] if len(grid) > 1 else 1)


@functools.cache
def _compiled(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    host = re.sub(_TIMER, "", re.sub(_HALF, "wide = (float)same_bits<_Float16>(word.bits);", code))
    entries = "".join(
        f"static void call_{name}(void** arguments) {{ call(&{name}, arguments); }}\n"
        f'extern "C" void run_{name}(void** arguments, unsigned blocks, unsigned rows) '
        f"{{ run(call_{name}, arguments, blocks, rows); }}\n"
        for name in re.findall(r'extern "C" __global__ void (\w+)', code)
    )
    macros = [option for option in options if option.startswith("-D")]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text(f"{_HEADER}{host}{entries}")
        command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-pthread", *macros, source, "-o", library]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(library))


class Event:
    """An event of CUDA; everything that is queued is done at once."""

    done = True

    def record(self) -> None:
        self.time_s = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: it has happened."""


class HostKernel:
    """A function on the arguments of a problem, and the constants, in place of a loaded kernel."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def bind(self, launch: object, arguments: Any, constants: Any = ()) -> Callable[[], None]:
        values = [value.item() for value in arguments]
        return lambda: self._function(*values, *constants)

    def __enter__(self) -> HostKernel:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to release."""


def memory(address: int, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """Return an array at an address."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def cupy() -> types.ModuleType:
    """Return a module that stands for CuPy."""
    module = types.ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    module.uint8, module.uint64, module.float64 = np.uint8, np.uint64, np.float64
    module.ndarray, module.RawKernel = Array, RawKernel
    module.asarray = lambda array: array if isinstance(array, Array) else Array(np.array(array))
    module.empty = lambda shape, dtype: Array(np.full(shape, 77, dtype))
    module.zeros = lambda shape, dtype: Array(np.zeros(shape, dtype))
    module.empty_like = lambda array: Array(np.empty_like(array.host))
    pool = types.SimpleNamespace(free_all_blocks=lambda: None, total_bytes=lambda: 0)
    module.get_default_memory_pool = module.get_default_pinned_memory_pool = lambda: pool
    module.cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(deviceSynchronize=lambda: None, memGetInfo=lambda: (2**30, 2**30)),
        Device=lambda index: types.SimpleNamespace(use=lambda: None),
        Event=Event,
        get_elapsed_time=lambda start, stop: 1e3 * (stop.time_s - start.time_s),
    )
    return module


def install(monkeypatch: Any) -> None:
    """Let ``import cupy`` return it; there is no cuBLAS."""
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
