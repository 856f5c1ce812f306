"""Facts of devices as they are stored."""

import json
import math
from dataclasses import asdict, replace

import pytest

from mltune.dataset.dataset import load_manifest
from mltune.device.facts import Device, Measured, Mix
from mltune.device.known import H200, known_devices

AMD = replace(H200, name="AMD", compute_capability=None, warp_size=64, fma_per_clock=(64.0, 64.0))


MEASURED = replace(H200, measured={"fp32_flops": Measured(6.1e13, 0.002), "launch_s": Measured(1.1e-6, 0.05)})


MIX = Mix("fp64", 16, 4.0, 512, True, 79.5)


def test_mixes_survive_json_and_make_no_other_device():
    mixed = replace(H200, mixes=(MIX,))
    assert Device.from_json(json.loads(json.dumps(mixed.to_json()))).mixes == (MIX,)
    assert mixed == H200
    assert "mixes" not in H200.to_json()


@pytest.mark.parametrize(
    "mixes",
    [
        *(None, 3, {}, ["fp64"], [{"arithmetic": "fp64"}], [asdict(MIX) | {"speed": 3}]),
        *([asdict(MIX) | {"arithmetic": name}] for name in ("fp8", 3, None)),
        *([asdict(MIX) | {"load_bytes": count}] for count in (0, 5, "16")),
        *([asdict(MIX) | {"per_clock": rate}] for rate in (0, -1.0, math.nan, math.inf, "4", [4])),
    ],
)
def test_impossible_mixes_are_refused(mixes):
    with pytest.raises(ValueError, match="mix"):
        Device.from_json(H200.to_json() | {"mixes": mixes})


def test_what_was_measured_survives_json_and_makes_no_other_device():
    again = Device.from_json(json.loads(json.dumps(MEASURED.to_json())))
    assert again.measured == MEASURED.measured
    assert again == H200
    assert hash(again) == hash(H200)
    assert "measured" not in H200.to_json()


@pytest.mark.parametrize(
    "measured",
    [
        7,
        [],
        {"fp32_flops": 6e13},
        {"fp32_flops": {"median": 6e13}},
        {"fp32_flops": {"median": "fast", "spread": 0.1}},
        {"fp32_flops": {"median": True, "spread": 0.1}},
        {"fp32_flops": {"median": 6e13, "spread": 0.1, "more": 1}},
        {"fp32_flops": {"median": 0, "spread": 0.1}},
        {"fp32_flops": {"median": 6e13, "spread": -0.1}},
        {"fp32_flops": {"median": float("nan"), "spread": 0.1}},
        {"fp32_flops": {"median": 6e13, "spread": float("inf")}},
        {"fp32_flops": {"median": 10**400, "spread": 0.1}},
        {"warp_speed": {"median": 6e13, "spread": 0.1}},
    ],
)
def test_what_cannot_be_measured_is_refused(measured):
    with pytest.raises(ValueError, match="measured"):
        Device.from_json(H200.to_json() | {"measured": measured})


def test_facts_survive_json():
    for device in (H200, AMD):
        assert Device.from_json(json.loads(json.dumps(device.to_json()))) == device


def test_a_device_without_cuda_has_no_compute_capability():
    assert AMD.to_json()["compute_capability"] is None
    assert AMD.architecture == "other"
    assert load_manifest("convolution_mi250x_gcd").device.compute_capability is None


def test_the_zeros_of_older_records_mean_none():
    assert Device.from_json(AMD.to_json() | {"compute_capability": [0, 0]}) == AMD


def test_cards_of_one_generation_are_alike():
    known = known_devices()
    families = {name: known[name].family for name in ("w7900", "w7800", "rx_7900_xtx", "rx_6800_xt", "w6600")}
    assert families == dict.fromkeys(("w7900", "w7800", "rx_7900_xtx"), "gfx110x") | dict.fromkeys(
        ("rx_6800_xt", "w6600"), "gfx103x"
    )
    of_cdna = {known[name].family for name in ("mi50", "mi100", "mi210", "mi250x_gcd", "mi300x", "mi325x")}
    assert of_cdna == {"gfx906", "gfx908", "gfx90a", "gfx942"}
    assert known["h100"].family == "sm_90"
    assert replace(known["mi210"], name="A card").family == "A card"


@pytest.mark.parametrize(
    ("document", "law"),
    [
        ("GPU", "device cannot be 'GPU': it must be a table"),
        (None, "device cannot be None: it must be a table"),
        (["name"], "device cannot be .*: it must be a table"),
        (H200.to_json() | {"warp_size": 48}, "warp_size cannot be 48: it is one of"),
    ],
)
def test_what_is_no_device_is_refused(document, law):
    with pytest.raises(ValueError, match=law):
        Device.from_json(document)
