"""Classification of CUDA errors."""

import pytest

from mltune.measure.gpu import Fault, Memory, classify

pytest.importorskip("cuda.bindings", reason="needs the Python bindings of CUDA")
from cuda.bindings import driver, runtime

pytestmark = pytest.mark.system

GIB = 2**30
GPU_UNAVAILABLE = [
    "DEVICE_UNAVAILABLE",
    "NO_DEVICE",
    "INVALID_DEVICE",
    "ECC_UNCORRECTABLE",
    "SYSTEM_NOT_READY",
    "SYSTEM_DRIVER_MISMATCH",
    "MPS_CONNECTION_FAILED",
    "MPS_CLIENT_TERMINATED",
    "DEINITIALIZED",
]
CONTEXT_LOST = ["ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION", "ASSERT", "UNKNOWN"]
REJECTED = ["INVALID_VALUE", "NO_BINARY_FOR_GPU", "LAUNCH_OUT_OF_RESOURCES", "NOT_FOUND", "INVALID_IMAGE"]


FAILURES = {
    Fault.GPU_UNAVAILABLE: GPU_UNAVAILABLE,
    Fault.CONTEXT_LOST: CONTEXT_LOST,
    Fault.REJECTED: REJECTED,
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for fault, names in FAILURES.items() for name in names])
def test_every_error_has_a_class(name, fault):
    assert classify(int(getattr(driver.CUresult, f"CUDA_ERROR_{name}"))) is fault


def test_errors_of_the_gpu_have_the_same_numbers_in_runtime_and_driver():
    for name in ("MemoryAllocation", "DevicesUnavailable", "NoDevice", "ECCUncorrectable", "SystemNotReady"):
        code = int(getattr(runtime.cudaError_t, f"cudaError{name}"))
        assert classify(code, Memory(140 * GIB, GIB, 0)) is Fault.GPU_UNAVAILABLE


@pytest.mark.parametrize(
    ("free", "own", "taken"),
    [
        (100, 2, False),  # others hold less than is free
        (100, 39, False),
        (10, 2, True),
        (1, 138, False),  # it is ours that fill it
        (1, 100, True),
        (0, 0, True),
    ],
)
def test_out_of_memory_is_the_kernels_fault_unless_others_use_the_memory(free, own, taken):
    memory = Memory(140 * GIB, free * GIB, own * GIB)

    assert memory.used_by_others == taken
    assert classify(2, memory) is (Fault.GPU_UNAVAILABLE if taken else Fault.REJECTED)


def test_out_of_memory_is_the_kernels_fault_where_the_use_is_unknown():
    assert classify(2) is Fault.REJECTED
