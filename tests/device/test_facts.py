"""Facts of devices as they are stored."""

import json
from dataclasses import replace

from mltune.dataset.dataset import load_manifest
from mltune.device.facts import Device
from mltune.device.known import H200

AMD = replace(H200, name="AMD", compute_capability=None, warp_size=64, fma_per_clock=(64.0, 64.0))


def test_facts_survive_json():
    for device in (H200, AMD):
        assert Device.from_json(json.loads(json.dumps(device.to_json()))) == device


def test_a_device_without_cuda_has_no_compute_capability():
    assert AMD.to_json()["compute_capability"] is None
    assert AMD.architecture == "other"
    assert load_manifest("convolution_mi250x_gcd").device.compute_capability is None


def test_the_zeros_of_older_records_mean_none():
    assert Device.from_json(AMD.to_json() | {"compute_capability": [0, 0]}) == AMD
