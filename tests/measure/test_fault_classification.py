"""Whose fault a failure of the driver is."""

import pytest
from cuda.bindings import driver, runtime

from mltune.measure.fault_classification import Fault, Memory, classify

GIB = 2**30
GPU = [
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
CRASHED = ["ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION", "ASSERT", "UNKNOWN"]
REFUSED = ["INVALID_VALUE", "NO_BINARY_FOR_GPU", "LAUNCH_OUT_OF_RESOURCES", "NOT_FOUND", "INVALID_IMAGE"]


FAILURES = {Fault.GPU: GPU, Fault.CRASHED: CRASHED, Fault.REFUSED: REFUSED}


@pytest.mark.parametrize(("name", "at_fault"), [(name, whose) for whose, names in FAILURES.items() for name in names])
def test_every_failure_has_somebody_to_blame(name, at_fault):
    assert classify(int(getattr(driver.CUresult, f"CUDA_ERROR_{name}"))) is at_fault


def test_the_runtime_numbers_what_is_nobodys_kernel_as_the_driver_does():
    for name in ("MemoryAllocation", "DevicesUnavailable", "NoDevice", "ECCUncorrectable", "SystemNotReady"):
        code = int(getattr(runtime.cudaError_t, f"cudaError{name}"))
        assert classify(code, Memory(140 * GIB, GIB, 0)) is Fault.GPU


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
def test_memory_is_short_because_of_whoever_holds_it(free, own, taken):
    memory = Memory(140 * GIB, free * GIB, own * GIB)

    assert memory.taken == taken
    assert classify(2, memory) is (Fault.GPU if taken else Fault.REFUSED)


def test_where_nobody_can_ask_who_holds_the_memory_the_kernel_asked_for_too_much():
    assert classify(2) is Fault.REFUSED
