"""Triton's kernels tuned on a GPU: speed, facts of the compiler, faults, and what later processes find."""

import itertools
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.environment import importing

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        total = tl.dot(left, tl.load(b + (k + inner)[:, None] * N + columns[None, :]), total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr, FAR: tl.constexpr, WRONG: tl.constexpr):
    tl.static_assert(BLOCK != 64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at + FAR * (1 << 40), (2 + WRONG) * tl.load(x + at, at < n), at < n)


@triton.jit
def double_into(x, described, n, BLOCK: tl.constexpr, WRONG: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    described.store([start], (2 + WRONG) * tl.load(x + start + tl.arange(0, BLOCK)))
"""

ILLEGAL = """
import torch, triton
from kernels import double
from mltune.integrations.triton import autotune

configs = [triton.Config({"BLOCK": block, "FAR": int(block == 256), "WRONG": 0}) for block in (128, 256, 512)]
x = torch.ones(1 << 20, device="cuda")
tuned = autotune(configs, ["n"], compilers=2, wisdom="wisdom.json")(double)
y = torch.zeros_like(x)
tuned[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, y, len(x))
assert (y == 2).all()

"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kernels.py").write_text(KERNELS)
    import importlib

    sys.modules.pop("kernels", None)
    importlib.invalidate_caches()
    return importlib.import_module("kernels")


@pytest.fixture
def tune(kernels, tmp_path):
    from mltune.integrations.triton import autotune

    def tuned(kernel, configs, grid, *arguments, **options):
        options = {"wisdom": tmp_path / "wisdom.json", **options}
        made = autotune(configs, [kernel.arg_names[-4]], **options)(kernel)
        made[grid](*arguments)
        return made

    return tuned


SIZE = 2048
TILES = [*itertools.product((64, 128), (64, 128), (32, 64), (4, 8), (3,))]


@pytest.fixture
def product(kernels):
    torch.manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))
    configs = [
        triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in TILES
    ]
    grid = lambda meta: (SIZE // meta["BM"], SIZE // meta["BN"])  # noqa: E731
    return kernels.matmul, configs, grid, a, b, torch.empty_like(a), SIZE, SIZE, SIZE


def test_the_winner_is_right_and_among_the_fastest_and_later_processes_take_it(tune, product):
    kernel, configs, grid, *arguments = product
    tuned = tune(*product)
    a, b, c = arguments[:3]
    assert torch.allclose(c, a @ b, atol=0.5, rtol=1e-2)
    short = lambda call, quantiles: triton.testing.do_bench(call, 5, 20, quantiles=quantiles)  # noqa: E731
    exhaustive = triton.autotune(configs, ["M"], do_bench=short)(kernel)
    exhaustive[grid](*arguments)
    times = {}
    for config in (tuned.best_config, exhaustive.best_config):
        call = lambda config=config: kernel[grid](*arguments, **config.all_kwargs())  # noqa: E731
        times[config] = min(triton.testing.do_bench(call, rep=30, return_mode="median") for _ in range(3))
    assert times[exhaustive.best_config] >= 0.93 * times[tuned.best_config]
    again = tune(*product)
    assert again.best_config == tuned.best_config
    assert list(again.configs_timings) == [tuned.best_config]


def test_few_trials(tune, product):
    tuned = tune(*product, trials=10, wisdom="none")
    assert len(tuned.configs_timings) == 10
    assert product[1][0] in tuned.configs_timings


def test_a_model_chooses_something_faster_than_the_first(tune, product):
    tuned = tune(*product, trials=2, wisdom="none")
    assert tuned.started_from == "model"
    first, chosen = tuned.configs_timings
    assert first == product[1][0]
    assert tuned.best_config == chosen
    assert tune(*product, trials=2, wisdom="none", prior="none").started_from == "physics"


def test_an_output_behind_a_descriptor_is_verified_and_restored(kernels, tmp_path):
    from triton.tools.tensor_descriptor import TensorDescriptor

    from mltune.integrations.triton import autotune

    def set_block(arguments):
        arguments["described"].block_shape = [arguments["BLOCK"]]

    configs = [
        triton.Config({"BLOCK": block, "WRONG": wrong}, pre_hook=set_block)
        for wrong, block in itertools.product((0, 1), (64, 128, 256))
    ]
    x = torch.ones(1 << 20, device="cuda")
    y = torch.full_like(x, 7.0)
    tuned = autotune(configs, ["n"], wisdom=tmp_path / "wisdom.json", tolerance=1e-6)(kernels.double_into)
    tuned[lambda meta: (len(x) // meta["BLOCK"],)](x, TensorDescriptor.from_tensor(y, [64]), len(x))
    assert (y == 2).all()
    assert tuned.best_config.kwargs["WRONG"] == 0
    (entry,) = json.loads((tmp_path / "wisdom.json").read_text())["entries"]
    assert entry["verified"]


@pytest.mark.parametrize("wisdom", ["none", "wisdom.json"])
def test_threads_of_a_server_share_a_kernel(kernels, tmp_path, wisdom):
    from mltune.integrations.triton import autotune

    configs = [triton.Config({"BLOCK": block, "FAR": 0, "WRONG": 0}) for block in (128, 256, 512, 1024)]
    path = wisdom if wisdom == "none" else tmp_path / wisdom
    tuned = autotune(configs, ["n"], compilers=2, wisdom=path)(kernels.double)
    one = torch.ones(1, device="cuda")
    kernels.double[(1,)](one, torch.zeros_like(one), 1, BLOCK=128, FAR=0, WRONG=0)
    compiler = kernels.double.compile  # which Triton sets at the first launch

    def answer(request):
        x = torch.full((1 << (14 + request % 4),), float(request), device="cuda")
        y = torch.zeros_like(x)
        tuned[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, y, len(x))
        return bool((y == 2 * request).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(answer, range(400)))
    assert kernels.double.compile is compiler
    assert len(tuned.cache) == 4


def test_registers_are_those_of_the_loaded_kernel(product):
    from mltune.integrations.triton.compilers import Compiled, compilers_of, source_of

    kernel, configs, grid, *arguments = product
    compilers = compilers_of(4)
    for config in (configs[0], configs[-1]):
        meta = config.all_kwargs()
        job = source_of(kernel, *arguments, grid=grid, **meta)
        found = compilers.submit(job).result()
        loaded = kernel.warmup(*arguments, grid=grid, **meta)
        try:
            loaded._init_handles()
        except triton.runtime.errors.OutOfResources:
            continue
        assert (found.state, found.registers) == ("ok", loaded.n_regs)
        assert (found.stack_bytes > 0) == (loaded.n_spills > 0)
        assert found.shared_bytes == loaded.metadata.shared
        assert Compiled.of(loaded).registers == found.registers


def test_what_cannot_be_launched_or_compiled_is_left_out(tune, product, kernels):
    kernel, _, grid, *arguments = product
    configs = [
        triton.Config({"BM": 64, "BN": 64, "BK": 32}),
        triton.Config({"BM": 256, "BN": 256, "BK": 64}, num_stages=7),
    ]
    tuned = tune(kernel, configs, grid, *arguments, compilers=2, wisdom="none")
    assert tuned.best_config == configs[0]
    x = torch.ones(1 << 16, device="cuda")
    configs = [triton.Config({"BLOCK": block, "FAR": 0, "WRONG": 0}) for block in (64, 128, 256)]
    blocks = lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)  # noqa: E731
    tuned = tune(kernels.double, configs, blocks, x, torch.zeros_like(x), len(x), compilers=2)
    assert tuned.best_config.kwargs["BLOCK"] in (128, 256)


def test_wrong_ones_are_found_by_their_outputs(tune, kernels):
    x = torch.rand(1 << 20, device="cuda")
    y = torch.zeros_like(x)
    configs = [triton.Config({"BLOCK": block, "FAR": 0, "WRONG": int(block == 1024)}) for block in (128, 1024, 512)]
    blocks = lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)  # noqa: E731
    tuned = tune(kernels.double, configs, blocks, x, y, len(x), tolerance=1e-3, compilers=2)
    assert torch.equal(y, 2 * x)
    failed = [one.kwargs["BLOCK"] for one, times in tuned.configs_timings.items() if math.isinf(times[0])]
    assert failed == [1024]


def test_an_illegal_access_ends_its_process_and_is_left_out_of_the_next(tune, kernels, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ILLEGAL)
    run = [sys.executable, str(script)]
    first = subprocess.run(run, cwd=tmp_path, env=importing(tmp_path), capture_output=True, text=True, timeout=300)
    assert first.returncode != 0
    assert "DeviceLostError: the CUDA context is not usable" in first.stderr
    (entry,) = json.loads((tmp_path / "wisdom.json").read_text())["entries"]
    assert entry["configuration"]["BLOCK"] == 256
    x = torch.ones(1 << 20, device="cuda")
    configs = [triton.Config({"BLOCK": block, "FAR": int(block == 256), "WRONG": 0}) for block in (128, 256, 512)]
    blocks = lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)  # noqa: E731
    tuned = tune(kernels.double, configs, blocks, x, torch.zeros_like(x), len(x), compilers=2)
    assert [one.kwargs["BLOCK"] for one in tuned.configs_timings] in ([128, 512], [512, 128])
