"""The Triton kernels of the benchmarks in Triton's interpreter, and the recorder of their sweeps with made-up times."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mltune.dataset.dataset import load_dataset
from mltune.device.known import find_device

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
KERNELS = "matmul", "flash_attention", "layer_norm", "softmax", "grouped_gemm", "fused_moe", "fp8_matmul"

pytestmark = pytest.mark.system

ERRORS = """
import json, random, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import torch
import record_triton as recorder
found = {}
for kernel in sys.argv[2:]:
    module = recorder.module_of(kernel)
    tuned = getattr(module, kernel)
    for size in module.SMALL:
        torch.manual_seed(0)
        launches = recorder.launches_of(module.arguments(**size))
        expected = [module.reference(*arguments) for _, *arguments in launches]
        for config in random.Random(0).sample(tuned.configs, 4):
            for grid, *arguments in launches:
                for output in module.outputs(*arguments):
                    output.fill_(float("nan"))
                tuned.fn[grid](*arguments, **config.kwargs)
            found[f"{kernel} {size} {config}"] = recorder.error_of(module, launches, expected)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def errors():
    """Return the error of each kernel, size and configuration, as a share of what rounding explains."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    command = [sys.executable, "-c", ERRORS, str(BENCHMARKS), *KERNELS]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_computes_what_pytorch_does(errors, kernel):
    mine = {name: error for name, error in errors.items() if name.startswith(f"{kernel} ")}
    assert len(mine) >= 8
    assert {name: error for name, error in mine.items() if not error <= 1} == {}


@pytest.fixture
def recorder(monkeypatch):
    """Return the recorder with a GPU that is not here."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import record_triton

    device, _ = find_device("h100")
    monkeypatch.setattr(record_triton, "query_device", lambda _: device)
    monkeypatch.setattr(record_triton, "driver_version", lambda: "13.0")
    return record_triton


@pytest.mark.parametrize("kernel", KERNELS)
def test_lists_have_50_to_150_distinct_configurations_and_two_sizes(recorder, kernel):
    module = recorder.module_of(kernel)
    case = recorder.Case(kernel, module.SIZES[0], Path())
    assert 50 <= len(case.configs) <= 150
    assert len({*map(case.values, case.configs)}) == len(case.configs)
    assert len(module.SIZES) == 2
    assert all(module.operations(**size) > 1e6 for size in module.SIZES)


@pytest.fixture
def record(recorder, monkeypatch, tmp_path):
    """Return a function that records softmax with made-up times of a second each, and the configurations it timed."""
    measured = []

    def measure(case, launches, expected, config, rep):
        measured.append(config)
        row = dict.fromkeys(recorder.schema(tuple(case.parameters)).names)
        row |= dict(zip(case.parameters, case.values(config), strict=True))
        row |= {"state": "ok", "build_state": "ok", "detail": "", "registers": 64, "hashes": ["one"], "compile_s": 0.1}
        row |= {"samples_s": [2e-3], "median_s": 1e-3 / config.num_warps}
        return row | {"stopped_early": False, "verify_s": 0.0, "time_s": 0.1}

    def recorded(time_s):
        case = recorder.Case("softmax", recorder.module_of("softmax").SMALL[0], tmp_path)
        case.load()
        recorder.record(case, {"one": 1.5}, time_s, rep=1)
        return load_dataset(tmp_path / f"{case.name}.json")

    monkeypatch.setattr(recorder, "measure", measure)
    monkeypatch.setattr(recorder.time, "perf_counter", lambda: float(len(measured)))
    return recorded, measured


def test_a_sweep_that_was_stopped_goes_on(recorder, record):
    recorded, measured = record
    some = recorded(time_s=9.5)
    assert (some.manifest.kind, len(some), some.manifest.name) == ("random", 10, "h100-softmax-7-300")
    every = recorded(time_s=1e9)
    assert every.manifest.kind == "complete"
    assert len(measured) == len(every) == len(set(measured)) == len(recorder.module_of("softmax").CONFIGS)
    assert every.table.slice(0, 10).equals(some.table)
    assert set(every.numbers("compile_s")) == {1.5}
    assert every.manifest.best.configuration["num_warps"] == 16
    recorded(time_s=1e9)
    assert len(measured) == len(every)


def test_the_sweep_of_another_version_of_a_kernel_is_kept(recorder, record, monkeypatch):
    record[0](time_s=9.5)
    monkeypatch.setattr(recorder.Case, "source_hash", "another")
    with pytest.raises(SystemExit, match="another version of the kernel"):
        record[0](time_s=9.5)


def test_arguments_that_triton_does_not_tell_apart_are_compiled_once(recorder):
    fn = recorder.module_of("fp8_matmul").fp8_matmul.fn
    first, same, other = (
        recorder.alike(fn, (*["fp8"] * 5, m, n, k, block))
        for m, n, k, block in ((4096, 4096, 7168, 128), (64, 7168, 2048, 128), (64, 7168, 2048, 64))
    )
    assert first == same != other
    assert recorder.alike(fn, (*["fp8"] * 5, 1, 4096, 7168, 128)) != first


TILES = {
    "matmul": ["BLOCK_M", "BLOCK_N"],
    "flash_attention": ["BLOCK_M"],
    "layer_norm": ["ROWS"],
    "softmax": ["ROWS"],
    "grouped_gemm": [],
    "fused_moe": ["BLOCK_SIZE_M", "BLOCK_SIZE_N"],
    "fp8_matmul": ["BLOCK_SIZE_M", "BLOCK_SIZE_N"],
}


def test_a_model_trained_on_other_kernels_chooses_better_than_chance(monkeypatch):
    """What the benchmark judges, from grids of the kernels themselves."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import triton_model

    sweeps = triton_model.sweeps("H200")
    assert {one.kernel: one.tiles for one in sweeps} == TILES
    chosen, chance = [], []
    for left_out in ("matmul", "softmax"):
        model = triton_model.fit([one for one in sweeps if one.kernel != left_out])
        assert left_out not in {one.sweep.removeprefix("without ") for one in model.members}
        mine = [one for one in sweeps if one.kernel == left_out]
        chosen += [one.curve(one.order(model, False, 0, 1))[0] for one in mine]
        chance += [one.shares.mean() for one in mine]
    assert sum(chosen) / 4 > sum(chance) / 4 + 0.15


def test_a_replayed_tune_ends_near_the_best_and_waits_for_the_process_of_models_without_a_model_alone(monkeypatch):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import triton_replay

    ((sweep, grid),) = triton_replay.sweeps_and_grids("h200-layer-norm-16384-4096")
    late_s = 30.0
    for prior, waits in (("auto", False), ("none", True)):
        given = SimpleNamespace(trials=None, ready=late_s, compilers=16)
        found = triton_replay.tune(sweep, grid, prior, True, given, 0)
        assert found["share"] >= 0.98
        assert (found["seconds"] > late_s) is waits
        assert found["measured"] < len(sweep.shares)
