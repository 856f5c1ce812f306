"""A GPU for Triton that compiles kernels as for an H200, and whose launches take the time that a function says."""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor

from mltune.integrations.triton import builder
from mltune.integrations.triton.compilers import Compilers

builder.TIMEOUT_S = builder.LEAST_S = builder.PATIENT_S = 600.0
"""A busy machine may compile one configuration for much longer than others."""


def submit_with_limit(is_endless, limit_s=2.0):
    """Return a method to submit compiles: those of which the source is endless get so many seconds."""
    submit = Compilers.submit

    def submitted(compilers, job, timeout_s=600.0, turn=0):
        pickled, *_, is_launcher = pickle.loads(job) if job else (None, True)  # noqa: S301 - from this process
        is_limited = not is_launcher and is_endless(pickle.loads(pickled)[0])  # noqa: S301
        return submit(compilers, job, limit_s if is_limited else timeout_s, turn)

    return submitted


class SimulatedGpu:
    """Satisfies Triton's interface of a driver. Launches advance clocks and call a function instead of running.

    ``now_ms`` is when the GPU has done what is queued, and ``host_ms`` the clock of the process that queues, of which a
    launch takes ``launch_ms``. What is queued begins when both have come to it.

    ``time_ms`` is called with the constants of a launch by name, ``num_warps`` and ``num_stages``, and ``effect`` with
    these and the arguments. Both may raise.
    """

    def __init__(self, time_ms):
        self.time_ms = time_ms
        self.effect = lambda meta, *arguments: None
        self.now_ms = self.host_ms = self.launch_ms = 0.0
        self.launches = []
        self.dead = False
        self.numbers = itertools.count()
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232_448},
            load_binary=lambda name, kernel, shared, device: (next(self.numbers), 0, 100, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return "cpu"

    def get_empty_cache_for_benchmark(self):
        return None

    def clear_cache(self, cache):
        self.queue(0.1)

    def queue(self, time_ms):
        self.now_ms = max(self.now_ms, self.host_ms) + time_ms

    def launch(self, meta, *arguments):
        self.launches.append(meta)
        self.effect(meta, *arguments)
        self.host_ms += self.launch_ms
        self.queue(self.time_ms(meta))

    def launcher_cls(self, source, metadata):
        names = {name for name, of in source.signature.items() if of == "constexpr"}
        constants = {source.fn.arg_names[path[0]]: value for path, value in source.constants.items()}
        meta = {name: value for name, value in constants.items() if name in names}
        meta |= {"num_warps": metadata.num_warps, "num_stages": metadata.num_stages}

        return lambda *arguments: self.launch(meta, *arguments[9:])

    def get_device_interface(self):
        return SimpleNamespace(Event=lambda enable_timing: _Event(self), synchronize=self.synchronize)

    def synchronize(self):
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.host_ms = max(self.host_ms, self.now_ms)


class _Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.gpu.queue(0.0)
        self.at_ms = self.gpu.now_ms

    def query(self):
        return self.at_ms <= self.gpu.host_ms

    def elapsed_time(self, end):
        return round(end.at_ms - self.at_ms, 6)


def pointer(dtype):
    """Return an argument that is specialised as an aligned pointer."""
    return MockTensor(dtype)


class _Float32:
    itemsize, is_floating_point = 4, True

    def __str__(self):
        return "torch.float32"


class HostTensor:
    """What the tuner and Triton use of a tensor of PyTorch, on the host."""

    dtype = _Float32()

    def __init__(self, values, address=0):
        self.values, self.address = np.asarray(values, np.float32), address

    shape = property(lambda self: list(self.values.shape))
    data_ptr = lambda self: self.address  # noqa: E731
    numel = lambda self: self.values.size  # noqa: E731
    is_floating_point = lambda self: True  # noqa: E731
    float = lambda self: HostTensor(self.values.copy())  # noqa: E731
    all = lambda self: self.values.all()  # noqa: E731
    max = lambda self: self.values.max()  # noqa: E731
    abs = lambda self: HostTensor(abs(self.values))  # noqa: E731
    clone = lambda self: HostTensor(self.values.copy())  # noqa: E731

    def stride(self):
        return [stride // 4 for stride in self.values.strides]

    def copy_(self, source):
        self.values[...] = source.values

    def fill_(self, value):
        self.values[...] = value
        return self

    def flatten(self):
        return HostTensor(self.values.flatten())

    def reshape(self, shape):
        return HostTensor(self.values.reshape(shape))

    def cumsum(self, axis):
        return HostTensor(self.values.cumsum(axis))

    def remainder(self, divisor):
        return HostTensor(self.values % np.float32(divisor))

    def sin(self):
        return HostTensor(np.sin(self.values))

    def __mul__(self, factor):
        return HostTensor(self.values * np.float32(factor))

    def __sub__(self, other):
        return HostTensor(self.values - np.float32(other))

    def __getitem__(self, part):
        return HostTensor(self.values[part])

    def element_size(self):
        return self.values.itemsize

    def int(self):
        return self.values.astype(np.int32)

    def view(self, dtype):
        return self.values.view(dtype)

    def nan_to_num(self, *values):
        return HostTensor(np.nan_to_num(self.values, *values))

    def isclose(self, expected, rtol, atol, equal_nan):
        return HostTensor(np.isclose(self.values, expected.values, rtol, atol, equal_nan))
