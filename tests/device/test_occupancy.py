"""Occupancy agrees with NVIDIA's calculator on every architecture."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.device.occupancy import NO_LIMIT, occupancy
from mltune.errors import DeviceError

RECORDED = json.loads((Path(__file__).parent / "occupancy_cases.json").read_text())


@pytest.mark.parametrize("facts", RECORDED["devices"], ids=lambda facts: "sm_{}{}".format(*facts["compute_capability"]))
def test_agrees_with_nvidias_calculator(facts):
    limits = {name: value for name, value in facts.items() if name != "cases"}
    device = replace(H200, **limits | {"compute_capability": tuple(facts["compute_capability"])})
    threads, registers, shared_bytes, blocks = np.array(facts["cases"]).T
    found = occupancy(device, threads, registers, shared_bytes)
    np.testing.assert_array_equal(found.blocks_per_sm, blocks)
    np.testing.assert_array_equal(found.warps_per_sm, blocks * -(-threads // 32))


def test_names_what_limits():
    found = occupancy(H200, [256, 256, 1024], [255, 32, 32], [0, 100_000, 0])
    np.testing.assert_array_equal(found.blocks_by_registers, [1, 8, 2])
    np.testing.assert_array_equal(found.blocks_by_shared, [228, 2, 228])
    np.testing.assert_array_equal(found.blocks_by_warps, [8, 8, 2])
    np.testing.assert_array_equal(found.blocks_per_sm, [1, 2, 2])


def test_nothing_used_limits_nothing():
    device = replace(H200, reserved_shared_bytes=0)
    found = occupancy(device, [32], [0], [0])
    assert found.blocks_by_registers[0] == NO_LIMIT
    assert found.blocks_by_shared[0] == NO_LIMIT
    assert found.blocks_per_sm[0] == H200.max_blocks_per_sm


def test_what_cannot_launch_has_no_blocks():
    too_much_shared = H200.shared_bytes_per_block + 1
    found = occupancy(H200, [1025, 1024, 32, 0], [32, 128, 32, 32], [0, 0, too_much_shared, 0])
    np.testing.assert_array_equal(found.blocks_per_sm, 0)


def test_broadcasts_scalars():
    found = occupancy(H200, [64, 128], 64, 1024)
    assert found.blocks_per_sm.shape == (2,)


def test_unknown_architecture_is_refused():
    with pytest.raises(DeviceError, match=r"capability is 2\.1"):
        occupancy(replace(H200, compute_capability=(2, 1)), 32, 32, 0)


def test_waves_of_64_fill_a_compute_unit():
    unit = replace(
        H200,
        compute_capability=None,
        warp_size=64,
        registers_per_sm=131_072,
        max_registers_per_thread=512,
        max_threads_per_sm=2048,
        shared_bytes_per_sm=65_536,
        shared_bytes_per_block=65_536,
        reserved_shared_bytes=0,
    )
    found = occupancy(unit, [256, 256, 256, 96], [32, 128, 32, 32], [0, 0, 32_768, 0])
    np.testing.assert_array_equal(found.blocks_per_sm, [8, 4, 2, 16])
    np.testing.assert_array_equal(found.warps_per_sm, [32, 16, 8, 32])
