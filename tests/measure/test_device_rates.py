"""The micro-kernels compile and do the work that is counted; a GPU is measured with a simulated worker."""

import math
import os
import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from cuda.bindings import nvrtc

from mltune.device.facts import QUANTITIES
from mltune.device.known import H200, known_devices
from mltune.errors import DeviceError
from mltune.measure import device_rates
from mltune.measure import micro_kernel as micro
from mltune.measure.build import nvrtc_version
from mltune.measure.compiler import CudaSource, _program, _text, supported_architectures
from mltune.measure.device_rates import RUN_S, compile_micro_kernels, enough_rounds, measure_device
from mltune.measure.machine_code import disassemble, main_loop
from mltune.measure.micro_kernel import (
    BLOCKS,
    BLOCKS_PER_SM,
    ENTRY,
    MICRO_KERNELS,
    MIX_KERNELS,
    READ_BYTES,
    ROUNDS,
    THREADS,
    MicroKernel,
    MixKernel,
)
from mltune.records.trial import TrialState
from mltune.show.inventory import NAMES

pytestmark = pytest.mark.system

A100, B200 = known_devices()["a100"], known_devices()["b200"]
INSTRUCTION_BYTES = 16  # since compute capability 7.0
INSTRUCTIONS = {
    ("fma.cu", "FP16"): "fma.rn.f16x2",
    ("fma.cu", "FP32"): "fma.rn.f32",
    ("fma.cu", "FP64"): "fma.rn.f64",
    ("fma.cu", "INT32"): "mad.lo.u32",
    ("mma.cu", "FP16"): "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    ("mma.cu", "BF16"): "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    ("mma.cu", "TF32"): "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    ("mma.cu", "FP64"): "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
    ("mma.cu", "FP64_LARGE"): "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64",
    ("shared.cu", ""): "ld.shared.v4",
    ("global.cu", ""): "ld.global.cg.v4",
}
WORKING = [one for one in MICRO_KERNELS if one.work]


def of(quantity, macro=None):
    return next(one for one in MICRO_KERNELS if one.quantity == quantity and macro in (None, one.macro))


def name_of(micro_kernel):
    return f"{micro_kernel.quantity}-{micro_kernel.macro}"


@cache
def ptx(micro_kernel, architecture):
    with _program(nvrtc, micro_kernel.source.encode()) as program:
        options = [f"--gpu-architecture=compute_{architecture}".encode(), b"--std=c++17", b"-default-device"]
        assert not int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
        return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)


@pytest.mark.parametrize(
    "device",
    [pytest.param(A100, marks=pytest.mark.nightly), H200, pytest.param(B200, marks=pytest.mark.nightly)],
    ids=["sm_80", "sm_90", "sm_100"],
)
def test_all_compile_and_keep_their_work(device):
    capability = device.compute_capability
    if 10 * capability[0] + capability[1] not in supported_architectures():
        pytest.skip(f"NVRTC {nvrtc_version()} does not compile for {device.architecture}")
    usable = [one for one in MICRO_KERNELS if one.since <= capability]
    assert {one.quantity for one in usable} == set(QUANTITIES)

    for micro_kernel, build in compile_micro_kernels(usable, device.architecture):
        assert (build.state, build.detail) == (TrialState.OK, ""), name_of(micro_kernel)
        assert build.spill_bytes == 0
        assert build.registers * THREADS * BLOCKS_PER_SM <= device.registers_per_sm, "both blocks must be resident"
        assert build.shared_bytes * BLOCKS_PER_SM <= device.shared_bytes_per_sm
        if micro_kernel.work:
            assert build.code_bytes > INSTRUCTION_BYTES * micro_kernel.steps * micro_kernel.chains


@pytest.mark.parametrize("micro_kernel", WORKING, ids=name_of)
def test_a_round_has_as_many_instructions_as_are_counted(micro_kernel):
    instruction = INSTRUCTIONS[micro_kernel.file, micro_kernel.macro]
    found = re.findall(rf"^\s*{re.escape(instruction)}\b", ptx(micro_kernel, 90), re.MULTILINE)
    assert len(found) == micro_kernel.steps * micro_kernel.chains


@pytest.mark.parametrize("micro_kernel", WORKING, ids=name_of)
def test_the_work_of_an_instruction_is_that_of_its_shape(micro_kernel):
    instruction = INSTRUCTIONS[micro_kernel.file, micro_kernel.macro]
    if shape := re.search(r"m(\d+)n(\d+)k(\d+)", instruction):
        assert micro_kernel.work * H200.warp_size == 2 * math.prod(map(int, shape.groups()))
    elif instruction.startswith("ld"):
        assert micro_kernel.work == READ_BYTES == 16
    else:
        assert micro_kernel.work == (4 if instruction.endswith("x2") else 2)


def test_the_amount_is_the_product_of_all_loops():
    assert of("fp32_flops").amount(H200, 1000) == 132 * 2 * 512 * 1000 * 32 * 8 * 2
    assert of("tensor_fp16_flops").amount(H200, 10) == 132 * 2 * (512 // 32) * 10 * 8 * 4 * (2 * 16 * 8 * 16)
    assert of("shared_bytes_per_s").amount(A100, 7) == 108 * 2 * 512 * 7 * 4 * 16
    assert of("memory_bytes_per_s").amount(A100, 7) == 108 * 2 * 512 * 7 * 8 * 16


def test_the_work_fills_the_gpu_and_a_launch_is_one_block():
    launch = of("fp32_flops").launch(H200, 5, 1)
    assert (launch.grid, launch.block, launch.arguments[:2]) == ((264, 1, 1), (512, 1, 1), (5, 0))
    assert of("launch_s").launch(H200, 0, 1).grid == (1, 1, 1)


@pytest.mark.parametrize("device", [device for device in known_devices().values() if device.compute_capability])
def test_what_is_read_is_in_the_cache_or_far_larger(device):
    cached, far = (of(name).places(device) * READ_BYTES for name in ("l2_bytes_per_s", "memory_bytes_per_s"))
    assert cached <= device.l2_bytes / 4
    assert far <= device.memory_bytes / 4
    assert far >= 8 * device.l2_bytes
    assert cached.bit_count() == far.bit_count() == 1
    assert of("fp32_flops").places(device) == 1


@given(st.floats(1e-13, 2.0), st.floats(0, 1e-4))
def test_a_run_takes_about_as_long_as_it_is_to(round_s, launch_s):
    rounds = enough_rounds(lambda rounds: launch_s + round_s * rounds)
    time_s = launch_s + round_s * rounds
    assert rounds >= 1
    assert 0.5 * RUN_S <= time_s <= 2 * RUN_S or rounds == 1 or rounds == 2**31 - 1


def test_every_quantity_has_a_name_and_a_micro_kernel():
    assert list(NAMES) == list(QUANTITIES) == list(dict.fromkeys(one.quantity for one in MICRO_KERNELS))


def make_worker(index):
    """Make a worker without a GPU: each run measures a multiple of 1e9; of some quantities none does."""

    def measure(request):
        micro_kernel, build = request
        assert build.cubin.startswith(b"\x7fELF")
        if isinstance(micro_kernel, MixKernel):
            return [1000.0 * (2 - micro_kernel.dependent)] * len(micro_kernel.launches(H200, build.registers))
        if micro_kernel.quantity == "tensor_bf16_flops":
            os.abort()
        if micro_kernel.quantity == "l2_bytes_per_s":
            raise MemoryError("out of memory")
        return [1e9 * run * (2 if micro_kernel.macro == "FP64_LARGE" else 1) for run in (4, 1, 2, 3, 5)]

    return measure


def make_no_worker(index):
    return lambda request: os.abort()


@pytest.fixture
def imaginary(monkeypatch):
    """Let an H200 be there that runs nothing: its worker is simulated."""
    monkeypatch.setattr(device_rates, "query_device", lambda index: H200)
    monkeypatch.setattr(device_rates, "driver_version", lambda: nvrtc_version())
    monkeypatch.setattr(micro, "MIX_KERNELS", MIX_KERNELS[:2])
    return lambda name: measure_device(0, worker=f"{__name__}:{name}")


def test_what_fails_is_left_out_with_its_reason(imaginary):
    device, reasons = imaginary("make_worker")
    assert device == H200
    assert set(device.measured) | set(reasons) == set(QUANTITIES)
    assert {name: reason.split(":")[0] for name, reason in reasons.items()} == {
        "tensor_bf16_flops": "the worker process died",
        "l2_bytes_per_s": "the worker process failed",
    }
    assert (device.measured["fp32_flops"].median, device.measured["fp32_flops"].spread) == (3e9, 1.0)
    assert device.measured["tensor_fp64_flops"].median == 6e9, "the faster of two counts"
    assert list(device.measured) == [name for name in QUANTITIES if name in device.measured]


def test_a_gpu_that_runs_nothing_is_an_error(imaginary, monkeypatch):
    monkeypatch.setattr(micro, "MICRO_KERNELS", MICRO_KERNELS[1:3])
    with pytest.raises(DeviceError, match=r"NVIDIA H200 runs no micro-kernel, .*: the worker process died"):
        imaginary("make_no_worker")


def test_what_does_not_compile_is_left_out(imaginary, monkeypatch):
    broken = MicroKernel("fp16_flops", "fma.cu", 4)  # without a macro, no kind of work is chosen
    monkeypatch.setattr(micro, "MICRO_KERNELS", (broken, of("fp32_flops")))
    device, reasons = imaginary("make_worker")
    assert list(device.measured) == ["fp32_flops"]
    assert reasons["fp16_flops"].startswith("does not compile: ")
    assert reasons["launch_s"] == "not on a GPU of compute capability 9.0"


def test_mixes_are_measured_up_to_the_first_that_cannot_be(imaginary, monkeypatch):
    some = MIX_KERNELS[:3]
    monkeypatch.setattr(micro, "MICRO_KERNELS", (of("fp32_flops"),))
    monkeypatch.setattr(micro, "MIX_KERNELS", (*some, MixKernel("fp16", 4, 1, False), *some))
    device, _ = imaginary("make_worker")
    assert [mix.threads for mix in device.mixes] == [blocks * threads for blocks, threads in BLOCKS] * len(some)
    apart, dependent = device.mixes[0], device.mixes[len(BLOCKS)]
    assert (apart.arithmetic, apart.load_bytes, apart.per_load, apart.dependent) == ("fp32", 4, 1.0, False)
    assert apart.per_clock == 128 * ROUNDS * 128 * 2 / 2000
    assert dependent.per_clock == 2 * apart.per_clock


@pytest.mark.slow
def test_mixes_have_as_many_instructions_as_are_counted_and_do_not_spill():
    opcodes = {"fp32": "FFMA", "fp64": "DFMA", "tensor_fp64": "DMMA"}
    widths = {4: "LDS", 8: "LDS.64", 16: "LDS.128"}
    for mix, build in compile_micro_kernels(MIX_KERNELS[::5], "sm_90"):
        assert (build.state, build.detail, build.spill_bytes) == (TrialState.OK, "", 0)
        assert len(mix.launches(H200, build.registers)) >= 4
        loop = main_loop(disassemble(build.cubin))
        assert loop.counts[widths[mix.load_bytes]] == mix.steps, mix
        assert loop.counts[opcodes.get(mix.arithmetic, "HMMA")] == mix.steps * mix.per_load, mix
        padding = loop.counts.get("UIADD3", 0)  # between instructions of the FP64 tensor cores
        others = loop.total - mix.steps * (1 + mix.per_load) - padding
        assert others < 0.1 * loop.total, (mix, loop.counts)


def test_the_entry_is_found_in_every_source():
    for micro_kernel in (*MICRO_KERNELS, *MIX_KERNELS):
        assert CudaSource("", ENTRY, ()).expression(micro_kernel.source) == ""
