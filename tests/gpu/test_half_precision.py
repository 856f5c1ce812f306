"""Half precision and FP8 on a GPU: transpositions, odd sizes, scalars, epilogues, and the operator of PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mltune
from mltune.device.facts import Device
from mltune.kernel.bundle import variables_of
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.measure.build import NvrtcBuilder
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState
from mltune.resolve.device import fits

pytestmark = pytest.mark.gpu

MEASURED = (TrialState.OK, TrialState.UNSTABLE)
EPILOGUES = ("", "bias_m+gelu", "bias_n+relu", "bias_m+gelu_tanh", "bias_n+silu", "bias_n", "bias_m", "gelu")
SIZES = [(698, 594, 498), (700, 596, 500), (703, 597, 493), (61, 70, 9), (1, 3, 300), (256, 1, 64), (5, 4, 0)]


@pytest.fixture(autouse=True)
def needs_wgmma(device: Device) -> None:
    if not fits(load_kernel("gemm_wgmma"), device):
        pytest.skip(f"{device.name} has no {load_kernel('gemm_wgmma').resources.unit}")


CASES = [(precision, trans) for precision in ("h", "b", "hs") for trans in ("NN", "NT", "TN", "TT")]
CASES += [(precision, "TN") for precision in ("eb", "eh", "es", "ebf", "e45b", "e54s")]


@pytest.mark.parametrize(("precision", "trans"), CASES)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.25, -0.75)])
def test_random_configurations_are_right(device: Device, trans: str, precision: str, alpha: float, beta: float) -> None:
    kernel, number = load_kernel("gemm_wgmma"), ["NN", "NT", "TN", "TT"].index(trans) + 4 * (beta != 0)
    epilogue = EPILOGUES[(number + 3 * len(precision)) % len(EPILOGUES)]
    scales = "block_scales" if beta and precision in ("eb", "eh", "es") else "scales" * precision.startswith("e")
    epilogue = "+".join(filter(None, (scales, epilogue)))
    options = {"trans": trans, "m": 697, "n": 593, "k": 1097, "alpha": alpha, "beta": beta, "epilogue": epilogue}
    problem = parse_problem(f"{precision}gemm", **options)
    besides = [replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0) for m, n, k in SIZES]
    besides.append(replace(problem, m=4096, n=2048, k=1024, lda=0, ldb=0, ldc=0))  # compared on the GPU
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(8, np.random.default_rng(number)))
    configurations = [{name: int(column[at]) for name, column in columns.items()} for at in range(8)]
    with (
        NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=None) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        builds = [future.result() for future in [builder.submit(configuration) for configuration in configurations]]
        pairs = [*zip(configurations, builds, strict=True)]
        sound = [pair for pair in pairs if pair[1].state is TrialState.OK and pair[1].spill_bytes <= 200]
        assert len(sound) >= 2, builds
        for configuration, build in sound:
            measured = runner.submit(configuration, build).result()
            assert measured.state in MEASURED, (configuration, measured)
            checks = runner.verify_winner(configuration, build, problems_besides=besides)
            assert all(check.state is TrialState.OK for check in checks.values()), (configuration, checks)


WAYS = [
    {"BLK_N": 8, "SPLIT_K": 4, "CLUSTER": 1},
    {"BLK_N": 16, "SPLIT_K": 0, "STAGES": 8, "TEAMS": 2},
    {"BLK_N": 40, "CLUSTER": 1, "CLUSTER_N": 2},
    {"BLK_N": 72, "SWAP": 1, "CLUSTER": 1, "CLUSTER_N": 2},
    {"BLK_N": 112, "SWAP": 1, "SPLIT_K": 2},
    {"BLK_N": 88, "SWAP": 1, "PACK": 1, "CLUSTER": 1},
    {"BLK_N": 256, "CLUSTER": 2, "CLUSTER_N": 2},
    {"BLK_M": 64, "BLK_N": 80, "TEAMS": 3, "STAGES": 3, "SPLIT_K": 3, "CLUSTER": 2, "CLUSTER_N": 2, "SWAP": 1},
    {"BLK_N": 80, "CLUSTER": 1, "CLUSTER_N": 2, "PACK": 1},
]
"""Narrow tiles, tiles of the transposed product, and clusters of several blocks, beside other parameters."""


@pytest.mark.parametrize("trans", ["NN", "TN", "NT"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_is_right(device: Device, trans: str, way: dict[str, int]) -> None:
    """At sizes and leading dimensions that allow the copy engine, or forbid it; with one workspace for all."""
    kernel = load_kernel("gemm_wgmma")
    number = WAYS.index(way)
    options = {
        "m": 1160,
        "n": 616,
        "k": 1608,
        "beta": 0.5 * (number % 2),
        "epilogue": EPILOGUES[number % len(EPILOGUES)],
    }
    problem = parse_problem("hb"[number % 2] + "gemm", trans=trans, **options)
    besides = [
        replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0) for m, n, k in [*SIZES, (3584, 64, 4096), (64, 8, 8192)]
    ]
    besides += [replace(besides[-2], beta=0.0), replace(problem, beta=0.0)]
    configuration = {**kernel.space.default, **way}
    with (
        NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=1) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        build = builder.submit(configuration).result()
        assert runner.submit(configuration, build).result().state in MEASURED, build
        checks = runner.verify_winner(configuration, build, problems_besides=besides)
    assert all(check.state is TrialState.OK for check in checks.values()), checks


@pytest.mark.parametrize("batch", [5])
@pytest.mark.parametrize("epilogue", ["", "bias_n+gelu"])
def test_a_batch_is_right(device: Device, batch: int, epilogue: str) -> None:
    kernel = load_kernel("gemm_wgmma")
    problem = parse_problem("bgemm", trans="NT", m=301, n=203, k=150, batch=batch, beta=0.5, epilogue=epilogue)
    configuration = {**kernel.space.default, "BLK_N": 128}
    with (
        NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=1) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        build = builder.submit(configuration).result()
        measured = runner.submit(configuration, build).result()
        checks = runner.verify_winner(configuration, build)
    assert measured.state in MEASURED, measured
    assert all(check.state is TrialState.OK for check in checks.values()), checks


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Any:
    if not fits(load_kernel("gemm_wgmma"), device):
        pytest.skip(f"{device.name} has no {load_kernel('gemm_wgmma').resources.unit}")
    place: Path = tmp_path_factory.mktemp("library")
    asked = {"operation": "bgemm", "trans": "TN", "epilogue": "bias_m+gelu_tanh", "trials": 40, "tuned": 2, "timed": 4}
    spec = {"library": asked, "sizes": {"ranges": {name: [64, 2048] for name in "mnk"}}}
    mltune.build_library(spec, place / "linear", run=place / "run", wisdom="none", progress=None)
    return mltune.load_library(place / "linear")


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(16, 512, 768), (1, 256, 1024), (300, 1000, 200)])
def test_a_linear_layer_with_gelu_is_that_of_pytorch(library: Any, tokens: int, inputs: int, outputs: int) -> None:
    """Values and all gradients; the function of PyTorch in double precision is right."""
    torch = pytest.importorskip("torch")
    operator = library.to_torch_operator()

    def drawn(*shape: int) -> Any:
        values = torch.randn(shape, device="cuda", dtype=torch.float32) / shape[-1] ** 0.5
        return values.to(torch.bfloat16).requires_grad_()

    x, weight, bias = drawn(tokens, inputs), drawn(outputs, inputs), drawn(outputs)
    result = operator(x, weight.T, bias)
    result.float().square().sum().backward()
    exact = [operand.detach().double().requires_grad_() for operand in (x, weight, bias)]
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(*exact), approximate="tanh")
    expected.square().sum().backward()
    result, expected = result.detach(), expected.detach()
    assert result.dtype is torch.bfloat16
    assert float((result.double() - expected).abs().max()) <= 2.0**-8 * float(expected.abs().max())
    for operand, right in zip((x, weight, bias), exact, strict=True):
        assert float((operand.grad.double() - right.grad).norm()) <= 0.02 * float(right.grad.norm())
