"""Triton's tuner called by many threads, and by two processes, on a simulated GPU."""

import itertools
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mltune.integrations.triton import autotune
from mltune.known.wisdom import Wisdom
from tests.environment import importing

THREADS = 16
SOURCE = """
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""
BLOCKS = (128, 256, 512)
BEST = 256


class Server:
    """A program whose threads call one kernel, each with its own arguments.

    ``launches`` has the arguments and the block of each launch; ``wrong`` those with an argument of another call.
    """

    def __init__(self, triton, kernels, gpu):
        self._triton, self.kernel = triton, kernels(SOURCE).kernel
        self.gpu, self.launches, self.wrong, self.refused = gpu, [], [], set()
        self.latest = threading.local()
        gpu.effect = self.launched
        self.restart()

    def restart(self):
        self.kernel = self._triton.jit(self.kernel.fn)  # as in a new process, with a warm cache
        self.compile = self.kernel.device_caches[0] and self.kernel.compile
        self.launches.clear()

    def launched(self, meta, x, n, *_):
        self.launches.append((n, meta["BLOCK"]))
        self.latest.block = meta["BLOCK"]
        if x.n != n:
            self.wrong.append((x.n, n))
        if n in self.refused:
            raise RuntimeError(f"no launch at {n}")

    def tuner(self, **options):
        hook = lambda arguments: arguments["x"].n == arguments["n"] or self.wrong.append("hook")  # noqa: E731
        configs = [self._triton.Config({"BLOCK": block}, pre_hook=hook) for block in BLOCKS]
        return autotune(configs, ["n"], compilers=2, **options)(self.kernel)

    def do_bench(self, call, quantiles):
        """Time one launch, where finals would take too long."""
        call()
        return 1.0 + abs(self.latest.block - BEST)

    def call(self, tuner, n):
        from simulated_gpu import pointer

        x = pointer(self._triton.language.float32)
        x.n = n
        return tuner[lambda meta: (self._triton.cdiv(n, meta["BLOCK"]),)](x, n)

    def serve(self, tuners, sizes):
        """Call tuners from 16 threads that begin together; return what each call returned, or raised."""
        barrier = threading.Barrier(THREADS)

        def request(tuner, n):
            barrier.wait(300)
            try:
                return self.call(tuner, n)
            except BaseException as error:
                return error

        with ThreadPoolExecutor(THREADS) as threads:
            calls = zip(itertools.cycle(tuners), sizes, range(THREADS), strict=False)
            return [future.result() for future in [threads.submit(request, tuner, n) for tuner, n, _ in calls]]

    def check(self, answers):
        """Check that all calls were answered, with their own arguments, and that the kernel is as it was."""
        assert [answer for answer in answers if isinstance(answer, BaseException)] == []
        assert self.wrong == []
        assert self.kernel.compile is self.compile
        assert {block for _, block in self.launches[-THREADS // 4 :]} == {BEST}


@pytest.fixture
def server(triton, kernels, simulated):
    return Server(triton, kernels, simulated(lambda meta: 1.0 + abs(meta["BLOCK"] - BEST) / 256))


@pytest.mark.parametrize("wisdom", ["none", "auto"])
def test_of_threads_that_call_with_one_key_one_tunes(server, wisdom):
    tuner = server.tuner(wisdom=wisdom)
    server.check(server.serve([tuner], [4096] * THREADS))
    assert list(tuner.cache.values()) == [tuner.best_config]
    tuned = max(at for at, (_, block) in enumerate(server.launches) if block != BEST)
    assert len(server.launches) < 1000
    assert len(server.launches) - tuned >= THREADS
    assert len(tuner.configs_timings) == len(BLOCKS)


@pytest.mark.parametrize("wisdom", ["none", "auto"])
def test_threads_with_other_keys_keep_their_arguments(server, wisdom):
    tuner = server.tuner(wisdom=wisdom)
    sizes = [4096 * (1 + number // 4) for number in range(THREADS)]
    server.check(server.serve([tuner], sizes))
    assert len(tuner.cache) == 4
    assert {n for n, _ in server.launches} == set(sizes)


def test_tuners_of_one_kernel_do_not_disturb_each_other(server):
    tuners = [server.tuner(wisdom="none") for _ in range(4)]
    server.check(server.serve(tuners, [4096] * THREADS))
    assert {tuner.best_config.kwargs["BLOCK"] for tuner in tuners} == {BEST}


def test_a_kernel_that_is_launched_itself_meanwhile_runs(server):
    tuner, ended = server.tuner(wisdom="none"), threading.Event()

    def launch():
        from simulated_gpu import pointer
        from triton.language import float32

        count = 0
        while not ended.is_set():
            x = pointer(float32)
            x.n = count = count % 100 + 1
            server.kernel[(1,)](x, count, BLOCK=64)
        return None

    with ThreadPoolExecutor(2) as threads:
        launching = [threads.submit(launch) for _ in range(2)]
        answers = server.serve([tuner], [4096] * THREADS)
        ended.set()
        assert [future.result() for future in launching] == [None] * 2
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    assert server.wrong == []
    assert tuner.best_config.kwargs["BLOCK"] == BEST


def test_an_error_reaches_the_thread_whose_call_it_is(server):
    server.refused = {8192}
    tuner = server.tuner(wisdom="none")
    sizes = [8192 if number % 4 == 0 else 4096 for number in range(THREADS)]
    for n, answer in zip(sizes, server.serve([tuner], sizes), strict=True):
        assert isinstance(answer, BaseException) == (n == 8192), (n, answer)
        assert n == 4096 or str(answer) == "no launch at 8192"
    assert server.wrong == []
    server.refused = set()
    server.check(server.serve([tuner], sizes))


def test_a_forked_process_tunes_while_a_thread_of_its_parent_did(server):
    from multiprocessing import get_context

    tuner, begun, ended = server.tuner(wisdom="none"), threading.Event(), threading.Event()
    server.gpu.effect = lambda *_: begun.set() or ended.wait(600)
    with ThreadPoolExecutor(1) as threads:
        tuning = threads.submit(server.call, tuner, 4096)
        assert begun.wait(300)
        server.gpu.effect = server.launched
        child = get_context("fork").Process(target=server.call, args=(tuner, 4096))
        child.start()
        child.join(300)
        ended.set()
        assert child.exitcode == 0
        tuning.result()


@pytest.mark.parametrize("runs", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_again_and_again_under_load(server, runs, tmp_path):
    ended = threading.Event()

    def busy():
        while not ended.is_set():
            sum(range(1000))
            time.sleep(0)  # another thread may go on

    with ThreadPoolExecutor(2) as load:
        for _ in range(2):
            load.submit(busy)
        try:
            for number in range(runs):
                server.restart()
                wisdom = "none" if number % 2 else tmp_path / f"{number}.json"
                tuner = server.tuner(wisdom=wisdom, trials=len(BLOCKS), do_bench=server.do_bench)
                server.check(server.serve([tuner], itertools.cycle([4096, 4096, 8192, 4111])))
                assert len(tuner.cache) == 3
        finally:
            ended.set()


PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import triton
import triton.language as tl
from simulated_gpu import SimulatedGpu, pointer
from triton.runtime.driver import driver
from mltune.device.known import H200
from mltune.integrations.triton import decorator

decorator.gpu_and_driver = lambda index: (H200, "13.0")
driver._active = gpu = SimulatedGpu(lambda meta: 1.0 + abs(meta["BLOCK"] - {BEST}) / 256)
configs = [triton.Config({{"BLOCK": block}}) for block in {BLOCKS}]

@decorator.autotune(configs, key=["n"], compilers=1)
{SOURCE.strip()}

import threading
import time
named = [("x", pointer(tl.float32)), ("n", 4096)][:: int(sys.argv[1])]
calls = [threading.Thread(target=lambda: kernel[(1,)](**dict(named))) for _ in range(4)]
[call.start() for call in calls], [call.join() for call in calls]
print(len(kernel.configs_timings), kernel.best_config.kwargs["BLOCK"])
"""


def test_of_two_processes_with_threads_one_measures(triton, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "wisdom.json"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    commands = [[sys.executable, str(program), order] for order in ("1", "-1")]
    running = [subprocess.Popen(command, env=importing(), stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate(timeout=240)[0].split() for process in running]
    assert sorted(outputs) == [["1", str(BEST)], [str(len(BLOCKS)), str(BEST)]]
    assert len(Wisdom.load(tmp_path / "wisdom.json")) == 1
