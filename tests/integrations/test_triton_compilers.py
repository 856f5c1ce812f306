"""Compile processes for Triton, without a GPU: what they are given, what they leave in its cache, and how they fail."""

import itertools
import math
import os
import time
import warnings

import pytest

from mltune.integrations.triton import autotune
from mltune.integrations.triton import compilers as triton_compilers

MATMUL = """
STEP = tl.constexpr(32)
rows = (one for one in ())  # cannot be carried, and has the name of a local variable


@triton.constexpr_function
def twice(value):
    return 2 * value


@triton.jit
def product(a, b, total):
    return tl.dot(a, b, total)


@triton.jit
def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner: tl.constexpr = STEP
    width = tl.arange(0, twice(inner))
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, twice(inner)):
        left = tl.load(a + rows[:, None] * K + (k + width)[None, :])
        total = product(left, tl.load(b + (k + width)[:, None] * N + columns[None, :]), total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))
"""

FAULTS = """
import os


@triton.constexpr_function
def fault(block, number):
    return 0


def real_fault(block, number):
    if block == number == 64:
        import time
        time.sleep(600)
    if block == number == 128:
        os.abort()
    if block == number == 256:
        raise ValueError("no such block")
    return 0


fault.fn = real_fault  # Triton does not allow that the function calls others

@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, NUMBER: tl.constexpr):
    tl.static_assert(BLOCK != 1024)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + fault(BLOCK, NUMBER)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""


def launched(kernel, arguments, **meta):
    return triton_compilers.source_of(kernel, *arguments, grid=(1,), **meta)


@pytest.fixture
def arguments(simulated):
    from simulated_gpu import pointer
    from triton.language import float16

    simulated(lambda meta: 1.0)
    return [pointer(float16) for _ in range(3)], 4096, 4096, 4096


@pytest.fixture
def matmul(kernels, arguments):
    module, (pointers, *sizes) = kernels(MATMUL), arguments
    return module.kernel, [*pointers, *sizes]


def compiled(*jobs, count=2):
    compilers = triton_compilers.compilers_of(count)
    return [future.result() for future in [compilers.submit(job, 600.0) for job in jobs]]


def limit_endless(monkeypatch):
    """Give seconds to compiles that do not end; a busy machine may need more for the others."""
    from simulated_gpu import submit_with_limit

    limited = submit_with_limit(lambda source: 64 in source.constants.values())
    monkeypatch.setattr(triton_compilers.Compilers, "submit", limited)


def test_a_kernel_with_its_globals_is_compiled_elsewhere_and_a_launch_here_finds_it(matmul, triton):
    kernel, arguments = matmul
    options = [{"BM": m, "BN": 64, "num_warps": warps} for m, warps in itertools.product((32, 64), (4, 8))]
    results = compiled(*(launched(kernel, arguments, **meta) for meta in options))
    assert [one.state for one in results] == ["ok"] * 4, [one.reason for one in results]
    hits = []
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = lambda cache_hit, **_: hits.append(cache_hit)
        kernels = [kernel.warmup(*arguments, grid=(1,), **meta) for meta in options]
    assert hits == [True] * 4
    for result, found in zip(results, kernels, strict=True):
        assert (result.threads, result.shared_bytes) == (32 * found.metadata.num_warps, found.metadata.shared)
        assert 16 <= result.registers <= 255
        assert result.stack_bytes == 0
        assert result.code_bytes == len(found.asm["cubin"])


def test_what_is_compiled_already_is_not_compiled_again(matmul):
    kernel, arguments = matmul
    kernel.warmup(*arguments, grid=(1,), BM=32, BN=32)
    found = launched(kernel, arguments, BM=32, BN=32)
    assert found.state == "ok"
    assert math.isfinite(found.registers)


def test_spills_are_seen(matmul):
    kernel, arguments = matmul
    (found,) = compiled(launched(kernel, arguments, BM=256, BN=256, num_warps=4))
    assert found.registers == 255
    assert found.stack_bytes > 0


def test_what_the_compiler_is_given_is_what_a_launch_compiles_with(matmul):
    kernel, arguments = matmul
    compiler = kernel.device_caches[0] and kernel.compile
    jobs = {launched(kernel, arguments, BM=32, BN=32, num_warps=warps) for warps in (4, 8)}
    odd = launched(kernel, [*arguments[:3], 4095, 4096, 4096], BM=32, BN=32, num_warps=8)
    assert len({*jobs, odd}) == 3
    assert kernel.compile is compiler


def test_faults_of_compilers_are_of_one_job_alone(kernels, arguments, monkeypatch):
    limit_endless(monkeypatch)
    kernel = kernels(FAULTS).kernel
    pointers = [arguments[0][0], 4096]
    blocks = [512, 64, 128, 256, 1024, 2048]
    results = compiled(*(launched(kernel, pointers, BLOCK=one, NUMBER=one) for one in blocks))
    assert [one.state for one in results] == ["ok", "killed", "killed", "refused", "refused", "ok"]
    assert "no answer within 2 s" in results[1].reason
    assert "SIGABRT" in results[2].reason
    (again,) = compiled(launched(kernel, pointers, BLOCK=64, NUMBER=64))
    assert (again.state, again.reason) == ("killed", "it was killed before")


def test_a_compiler_that_takes_all_memory_is_of_one_job_alone(kernels, arguments, monkeypatch, fresh):
    monkeypatch.setattr(triton_compilers, "MEMORY_BYTES", 1 << 30)
    source = FAULTS.replace("os.abort()", "bytearray(1 << 31)")
    kernel = kernels(source).kernel
    pointers = [arguments[0][0], 4096]
    compilers = fresh(1)
    jobs = [launched(kernel, pointers, BLOCK=one, NUMBER=one) for one in (512, 128, 2048)]
    results = [compilers.submit(job).result() for job in jobs]
    assert results[0].state == results[2].state == "ok"
    assert results[1].state == "killed"


def test_a_kernel_that_cannot_be_carried_is_tuned_all_the_same(simulated, kernels, triton, monkeypatch):
    gpu = simulated(lambda meta: meta["BLOCK"] / 512)
    from simulated_gpu import pointer

    kernel = kernels(
        "@triton.jit\ndef kernel(x, n, BLOCK: tl.constexpr):\n    tl.store(x + tl.arange(0, BLOCK), 1.0)\n"
    ).kernel
    monkeypatch.setattr(
        triton_compilers, "_parts", lambda kernel: time.sleep and iter(())
    )  # iterators are not picklable
    configs = [triton.Config({"BLOCK": one}) for one in (512, 128, 256, 1024)]
    tuned = autotune(configs, ["n"], compilers=2)(kernel)
    tuned[lambda meta: (8,)](pointer(triton.language.float32), 4096)
    assert tuned.best_config.kwargs == {"BLOCK": 128}
    assert len(tuned.configs_timings) == 4
    assert gpu.launches


def test_tuning_goes_on_without_configurations_whose_compiler_fails(simulated, kernels, triton, monkeypatch):
    limit_endless(monkeypatch)
    gpu = simulated(lambda meta: 1.0 + meta["BLOCK"] / 1024)
    from simulated_gpu import pointer

    kernel = kernels(FAULTS).kernel
    configs = [triton.Config({"BLOCK": one, "NUMBER": one}) for one in (64, 4096, 128, 256, 512, 1024, 2048)]
    tuned = autotune(configs, ["n"], compilers=2)(kernel)  # the first hangs, which is not tried in this process
    tuned[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](pointer(triton.language.float32), 4096)
    assert tuned.best_config.kwargs["BLOCK"] == 512
    assert {one.kwargs["BLOCK"] for one in tuned.configs_timings} == {512, 2048, 4096}
    assert {meta["BLOCK"] for meta in gpu.launches} == {512, 2048, 4096}


@pytest.fixture
def fresh(monkeypatch):
    """Return a function that makes compilers; their processes end with the test."""
    made = []

    def compilers(count):
        made.append(triton_compilers.Compilers(count))
        return made[-1]

    yield compilers
    for one in made:
        one._threads.shutdown()
        one.predictor._served.thread.submit(one.predictor._served.child.kill).result()
        for child in one._children.values():
            child.kill()
        one._template.thread.submit(one._template.child.kill).result()


def test_a_compile_that_nobody_needs_ends_and_its_process_is_free(kernels, arguments, fresh):
    kernel, compilers = kernels(FAULTS).kernel, fresh(1)
    jobs = [launched(kernel, [arguments[0][0], 4096], BLOCK=block, NUMBER=block) for block in (64, 512)]
    endless, waiting = compilers.submit(jobs[0], 600.0), compilers.submit(jobs[1], 600.0)
    while not compilers._running.get(endless):
        time.sleep(0.01)
    time.sleep(0.2)
    compilers.stop(endless)
    assert waiting.result().state == "ok"  # it would wait for ten minutes
    assert endless.result().state == "killed"
    assert jobs[0] not in compilers._killers  # another call may need it
    last = compilers.submit(jobs[1], 600.0)
    compilers.stop(waiting)  # which is done
    assert last.result().state == "ok"


def test_processes_end_when_they_are_not_used_and_start_again(monkeypatch, matmul, fresh):
    kernel, arguments = matmul
    monkeypatch.setattr(triton_compilers, "IDLE_S", 3.0)
    compilers = fresh(1)
    assert compilers.submit(launched(kernel, arguments, BM=32, BN=32)).result().state == "ok"
    (child,) = compilers._children.values()
    first = child.pid
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, first) == min(19, own + triton_compilers.POLITE)
    assert child._process.wait(300) == 0
    assert compilers.submit(launched(kernel, arguments, BM=32, BN=64)).result().state == "ok"
    assert child.pid != first


def test_a_forked_process_has_compilers_of_its_own(matmul):
    kernel, arguments = matmul
    assert compiled(launched(kernel, arguments, BM=32, BN=32))[0].state == "ok"
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads
        pid = os.fork()
    if not pid:
        os.write(writer, compiled(launched(kernel, arguments, BM=64, BN=32))[0].state.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"ok"
    os.close(reader)
    os.close(writer)
