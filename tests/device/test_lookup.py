"""The facts of a device, found by name or in a file."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mltune.dataset.dataset import load_manifest, shipped_datasets
from mltune.device.facts import Measured, Mix
from mltune.device.known import H200, UNKNOWN, find_device, known_devices, read_device, unsure_facts
from mltune.device.occupancy import occupancy
from mltune.device.peaks import peak_flops
from mltune.errors import DeviceError

FP32_TFLOPS = {
    "gtx_680": 3.25,
    "k40m": 5.0,
    "k80": 4.37,
    "gtx_980": 4.98,
    "p100": 10.6,
    "v100": 15.7,
    "t4": 8.1,
    "a100": 19.5,
    "a40": 37.4,
    "rtx_3090": 35.6,
    "rtx_4090": 82.6,
    "l40s": 91.6,
    "h100_pcie": 51.2,
    "h100": 66.9,
    "rtx_5090": 104.8,
    "mi100": 23.1,
    "mi210": 22.6,
    "mi300x": 163.4,
    "rx_6900_xt": 23.04,
    "rx_7900_xtx": 61.4,
}
TOML = "\n".join(f"{name} = {json.dumps(value)}" for name, value in H200.to_json().items())


@pytest.mark.parametrize(("key", "tflops"), FP32_TFLOPS.items())
def test_the_peak_of_a_known_gpu_is_that_of_its_data_sheet(key: str, tflops: float) -> None:
    assert peak_flops(known_devices()[key], "fp32") == pytest.approx(1e12 * tflops, rel=0.01)


def test_some_sixty_gpus_are_known_from_kepler_to_blackwell() -> None:
    capabilities = {device.compute_capability for device in known_devices().values()}
    assert len(known_devices()) >= 40
    assert {(3, 0), (5, 2), (6, 1), (7, 5), (8, 9), (9, 0), (12, 0), None} <= capabilities
    assert len({device.name for device in known_devices().values()}) == len(known_devices())


@pytest.mark.parametrize("device", known_devices().values(), ids=known_devices())
def test_every_known_gpu_runs_a_small_kernel_and_no_impossible_one(device) -> None:
    found = occupancy(device, [128, 128, 2048], [32, 1000, 32], [1024, 0, 0])
    assert 0 < found.blocks_per_sm[0] <= device.max_blocks_per_sm
    assert list(found.blocks_per_sm[1:]) == [0, 0]
    assert device.shared_bytes_per_block + device.reserved_shared_bytes <= device.shared_bytes_per_sm


def test_a_gpu_is_found_by_its_name_and_by_its_short_name() -> None:
    for text in ("NVIDIA A100-SXM4-80GB", "nvidia a100-sxm4-80gb", "a100", "A100"):
        device, source = find_device(text)
        assert (device.name, source) == ("NVIDIA A100-SXM4-80GB", "data sheet")
    assert find_device("RTX 4090")[0].sm_count == 128
    assert find_device("h200")[0] == H200
    assert find_device("unknown") == (UNKNOWN, "")


def test_what_is_unsure_is_said() -> None:
    assert find_device("b200")[1] == "data sheet (clock_hz, l2_bytes unsure)"
    assert set(unsure_facts()) <= set(known_devices())


def test_another_name_gets_a_suggestion() -> None:
    with pytest.raises(DeviceError, match="did you mean 'rtx_4090'"):
        find_device("rtx_409")


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_facts_are_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"facts{suffix}"
    path.write_text(json.dumps(H200.to_json()) if suffix == ".json" else TOML)
    assert find_device(str(path)) == (H200, path.name)


def test_what_was_measured_is_read_from_a_file(tmp_path: Path) -> None:
    measured = {"memory_bytes_per_s": {"median": 4.4e12, "spread": 0.001}}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({"devices": [{"spec": "cuda:0", "device": H200.to_json() | {"measured": measured}}]}))
    assert read_device(path).measured == {"memory_bytes_per_s": Measured(4.4e12, 0.001)}
    path.with_suffix(".toml").write_text(f"{TOML}\n[measured]\nlaunch_s = {{ median = 1e-6, spread = 0 }}")
    assert read_device(path.with_suffix(".toml")).measured == {"launch_s": Measured(1e-6, 0.0)}


def test_facts_are_read_from_a_manifest() -> None:
    path = shipped_datasets()["convolution_w6600"]
    assert read_device(path) == load_manifest("convolution_w6600").device


def test_several_equal_gpus_are_one_kind(tmp_path: Path) -> None:
    path = tmp_path / "eight.json"
    entry = {"spec": "cuda:0", "device": H200.to_json()}
    path.write_text(json.dumps({"devices": [entry] * 8}))
    assert read_device(path) == H200
    other = {"device": known_devices()["a100"].to_json()}
    path.write_text(json.dumps({"devices": [entry, other]}))
    with pytest.raises(DeviceError, match="describes 2 kinds of GPU, not one"):
        read_device(path)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"sm_count": 0}, "0 < sm_count"),
        ({"clock_hz": float("nan")}, "clock_hz"),
        ({"warp_size": -32}, "0 < warp_size"),
        ({"sm_count": "many"}, "sm_count"),
        ({"speed": 1}, "device.speed is not a known key.*; `mltune device a100 --json` shows"),
        ({"compute_capability": None}, "fma_per_clock"),
        ({"compute_capability": [-9, 0]}, "compute_capability"),
        ({"compute_capability": [9]}, "compute_capability"),
        ({"name": "\x1b[31mred"}, "printable"),
        ({"fma_per_clock": [0, 1]}, "fma_per_clock"),
        ({"measured": {"warp_speed": {"median": 9.0, "spread": 0.0}}}, "measured"),
        ({"measured": {"fp32_flops": {"median": -1.0, "spread": 0.0}}}, "positive median"),
        ({"measured": {"fp32_flops": {"median": 1.0, "spread": "x"}}}, "measured"),
        ({"measured": {"fp32_flops": 1.0}}, "measured"),
        ({"measured": [1.0]}, "measured"),
        ({"measured": None}, "measured"),
        ({"mixes": 3}, "mixes"),
        ({"mixes": 2001 * [asdict(Mix("fp32", 4, 1.0, 512, True, 64.0))]}, "2001 mixes are too many"),
        ({"mixes": [{"arithmetic": "fp8"}]}, "mixes"),
    ],
)
def test_impossible_facts_are_refused(tmp_path: Path, change: dict, law: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(H200.to_json() | change))
    with pytest.raises(DeviceError, match=law):
        read_device(path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"devices": []}', '{"device": 3}', "[" * 10_000, '{"a": 1e999}'])
def test_files_that_hold_no_facts_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(DeviceError, match=r"facts\.json does not hold the facts"):
        read_device(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="there is no such file"):
        read_device(tmp_path / "facts.toml")
    (tmp_path / "pipe.json").symlink_to("/dev/zero")
    with pytest.raises(DeviceError, match="regular"):
        read_device(tmp_path / "pipe.json")
