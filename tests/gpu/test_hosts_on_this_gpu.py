"""Helion's and cuTile's kernels tuned on a GPU, with nothing made up."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def matmul(tmp_path, monkeypatch):
    """Return a function that makes Helion's kernel with some settings, and Helion."""
    helion = pytest.importorskip("helion")
    for name in ("HELION_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.syspath_prepend(BENCHMARKS)
    import helion_kernels

    def made(settings=None, **options):
        from mltune.integrations.helion import autotuner

        return helion.kernel(helion_kernels.matmul, autotuner_fn=autotuner(**options), **settings or {})

    return made


@pytest.fixture
def operands():
    torch.manual_seed(0)
    return tuple(torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))


def test_a_kernel_of_helion_is_tuned_right_and_not_slower_than_its_default(matmul, operands):
    from triton.testing import do_bench

    bound = matmul(trials=48, seed=1).bind(operands)
    bound.autotune(operands)
    torch.testing.assert_close(bound(*operands), operands[0] @ operands[1], atol=0.1, rtol=0.01)
    default = bound.compile_config(bound.config_spec.default_config(), allow_print=False)
    tuned_ms, default_ms = (
        do_bench(lambda call=call: call(*operands), return_mode="median") for call in (bound, default)
    )
    assert tuned_ms < 1.05 * default_ms


def test_helions_cache_has_the_winner_for_the_next_process(matmul, operands, monkeypatch):
    from helion.autotuner.benchmark_provider import LocalBenchmarkProvider

    won = matmul(trials=8, seed=1).bind(operands)
    won.settings.autotuner_fn(won, operands).autotune()
    monkeypatch.setattr(LocalBenchmarkProvider, "benchmark", lambda *_, **__: pytest.fail("nothing is measured"))
    again = matmul(trials=8, seed=2).bind(operands)
    assert again.settings.autotuner_fn(again, operands).autotune()


def test_seconds_end_the_search(matmul, operands):
    import time

    begun = time.monotonic()
    matmul({"autotune_effort": "quick"}, trials=100_000, time=20).bind(operands).autotune(operands)
    assert time.monotonic() - begun < 60  # the batch under way ends, and compiling may take long


def test_a_kernel_of_cutile_is_tuned():
    tile = pytest.importorskip("cuda.tile")
    from mltune.integrations.cutile import search

    path = Path(__file__).with_name("cutile_kernels.py")
    specification = importlib.util.spec_from_file_location("cutile_kernels", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    x, y = torch.randn(1 << 22, device="cuda"), torch.zeros(1 << 22, device="cuda")
    grid = lambda one: (tile.cdiv(len(x), one["tile"]),)  # noqa: E731
    space = [{"tile": 2**power, "occupancy": most} for power in range(5, 14) for most in (1, 2, 4, 8)]
    hints = lambda one: {"occupancy": one["occupancy"]}  # noqa: E731
    stream = torch.cuda.current_stream()
    try:
        found = search(space, stream, grid, module.double, lambda one: (x, y, one["tile"]), hints, trials=12)
    except ValueError as error:
        if "tileiras" in str(error):
            pytest.skip("the compiler of cuTile is not installed")
        raise
    assert len(found.successes) + len(found.failures) == 12
    torch.testing.assert_close(y, 2 * x)
