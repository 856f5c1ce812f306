"""The builder, with the real NVRTC and real compile processes."""

import contextlib
import os
import signal
import tempfile
import threading
import time
from concurrent.futures import wait
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.errors import BundleError, DeviceError, SpaceError, WorkerError
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder, compile_options, default_cache, definitions, nvrtc_version
from mltune.measure.compiler import CudaSource, code_bytes, parse_ptxas_log, supported_architectures
from mltune.measure.cubin_cache import CubinCache, cache_key
from mltune.problem.gemm import parse_problem
from mltune.process.child import Child, ChildPool
from mltune.records.trial import Build, TrialState
from mltune.testing import BuilderContract

pytestmark = pytest.mark.system

SOURCE = """
__device__ __noinline__ float other(float x) { return x + PRECISION; }
extern "C" __global__ void entry(float* out, int n) {
  __shared__ float tile[WIDTH];
  for (int i = threadIdx.x; i < WIDTH; i += blockDim.x) tile[i] = out[i] * SCALE;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = other(tile[(i * 7) % WIDTH]);
}
extern "C" __global__ void entry_too(float* out) { out[0] = 1; }
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) entry(float* out, int n) {
  float x[WIDTH];
  #pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] = out[i * n + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < WIDTH; i++) out[i * n + n * n + threadIdx.x] = x[WIDTH - 1 - i] * x[(i * 5 + 3) % WIDTH];
}
"""
ENDLESS = """
template <int DEPTH, unsigned long long PATH> struct Tree {
  static constexpr int sum = Tree<DEPTH - 1, 2 * PATH>::sum + Tree<DEPTH - 1, 2 * PATH + 1>::sum;
};
template <unsigned long long PATH> struct Tree<0, PATH> { static constexpr int sum = PATH % 3; };
extern "C" __global__ void entry(int* out) { out[0] = Tree<WIDTH, 1>::sum; }
"""
CONFIGURATION = {"WIDTH": 512, "SCALE": 3, "LAUNCHED": 1}
PROBLEM = parse_problem("sgemm", trans="NT", m=64, n=64, k=64)
BUNDLE = """
[kernel]
name = "small"
source = "small.cu"
entry = "entry"
problem = "gemm"
precisions = ["s"]
[parameters]
WIDTH = [128, 256, 512]
SCALE = [1, 2, 3]
[launch.parameters]
LAUNCHED = [1, 2, 9]
[launch]
block = [32]
grid = [1]
arguments = ["LAUNCHED"]
"""


@cache
def small():
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.toml").write_text(BUNDLE)
        (Path(folder) / "small.cu").write_text(SOURCE)
        return load_kernel(Path(folder))


def bundle(source=SOURCE, **changes):
    kernel = small()
    return replace(kernel, source=replace(kernel.source, text=source, **changes))


def with_parameters(kernel, parameters):
    return replace(kernel, space=replace(kernel.space, parameters=parameters))


def builder(source=SOURCE, architecture="sm_90", **settings):
    return NvrtcBuilder(bundle(source), PROBLEM, architecture, **({"workers": 1} | settings))


POOL = ChildPool()
"""Compilers that serve one test after the other, while the source is the same."""


@pytest.fixture(scope="module", autouse=True)
def closed_pool():
    yield
    POOL.close()


def build(source=SOURCE, configuration=CONFIGURATION, **settings):
    with builder(source, pool=POOL, **settings) as compilers:
        return compilers.submit(configuration).result(timeout=300)


class TestNvrtcBuilder(BuilderContract):
    def make(self):
        return builder()

    def sound(self):
        return [CONFIGURATION, CONFIGURATION | {"SCALE": 2}]

    def broken(self):
        return [CONFIGURATION | {"WIDTH": 10**6}]


@pytest.mark.parametrize(("source", "shared"), [(SOURCE, True), (f"#define PASTE(a, b) a##b\n{SOURCE}", False)])
def test_a_macro_that_nothing_mentions_makes_no_build_of_its_own(source, shared):
    kernel = with_parameters(bundle(source), {**small().space.parameters, "IDLE": (1, 2)})
    with NvrtcBuilder(kernel, PROBLEM, "sm_90", workers=1, pool=POOL) as pool:
        builds = [pool.submit(CONFIGURATION | {"IDLE": value}) for value in (1, 2)]
        assert [build.result(300).cached for build in builds] == [False, shared]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_90a", "sm_100"])
def test_a_build_is_a_cubin_with_its_resources(architecture):
    made = build(architecture=architecture)
    assert made.state is TrialState.OK
    assert made.detail == ""
    assert made.cubin.startswith(b"\x7fELF")
    assert 8 <= made.registers <= 64
    assert made.shared_bytes == 512 * 4
    assert made.spill_bytes == 0
    assert 0 < made.code_bytes < len(made.cubin)
    assert 0 < made.compile_s < 60
    assert not made.cached


def test_macros_reach_the_source():
    with builder() as pool:
        sizes = [pool.submit(CONFIGURATION | {"WIDTH": width}).result(300).shared_bytes for width in (128, 256)]
    assert sizes == [512, 1024]


def test_spills_are_counted():
    made = build(SPILLING, {"WIDTH": 120, "SCALE": 1})
    assert made.state is TrialState.OK
    assert made.registers == 32
    assert made.spill_bytes > 100
    assert made.stack_bytes > 100


def test_negative_values_are_macros_too():
    source = 'extern "C" __global__ void entry(int* out) { static_assert(WIDTH == -3, ""); out[0] = 1-WIDTH; }'
    assert build(source, {"WIDTH": -3, "SCALE": 1}).state is TrialState.OK


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('extern "C" __global__ void entry() { undeclared = 1; }', "undeclared"),
        ("#error not this one", "not this one"),
        ("__global__ void other() {}", "the source does not define the kernel"),
        ('extern "C" __global__ void other() {}', "does not contain the kernel 'entry'"),
        ("", "the source does not define the kernel"),
        (
            'extern "C" __global__ void entry(int* o) { __shared__ int s[20000]; s[o[0]] = 1; o[1] = s[o[2]]; }',
            "shared",
        ),
    ],
)
def test_a_refused_source_is_a_compile_error_that_says_why(source, words):
    made = build(source)
    assert made.state is TrialState.COMPILE_ERROR
    assert words in made.detail
    assert len(made.detail) < 700
    assert made.cubin == b""


def test_a_late_compile_is_killed_and_the_next_one_works(started, monkeypatch):
    stop_first(1, started, monkeypatch)  # a busy machine may take seconds for the next one
    with builder(ENDLESS, timeout_s=10) as pool:
        late = pool.submit({"WIDTH": 60, "SCALE": 1, "LAUNCHED": 1})
        next_one = pool.submit({"WIDTH": 3, "SCALE": 1, "LAUNCHED": 1})
        assert late.result(300).state is TrialState.TIMEOUT
        assert late.result().compile_s > 9.9
        assert next_one.result(300).state is TrialState.OK
        again = pool.submit({"WIDTH": 60, "SCALE": 1, "LAUNCHED": 2})
        assert again.done(), "what was late once is not tried again with other launch parameters"
        assert again.result().state is TrialState.TIMEOUT


@pytest.fixture
def started(monkeypatch):
    """Return the process ids of the compilers that have started, as a list that grows."""
    pids, own, make, start = [], [], Child.__init__, Child.start

    def made(child, *arguments, **options):
        make(child, *arguments, **options)
        own.append(child)  # a thread of an earlier test may still start one

    def noted(child):
        start(child)
        if child in own:
            pids.append(child.pid)

    monkeypatch.setattr(Child, "__init__", made)
    monkeypatch.setattr(Child, "start", noted)
    return pids


def stop_first(count, started, monkeypatch):
    """Stop the first compilers before they take a build: however busy the machine is, it does not end by itself."""
    start = Child.start

    def stopped(child):
        start(child)
        if child.pid in started and len({*started}) <= count:
            os.kill(child.pid, signal.SIGSTOP)

    monkeypatch.setattr(Child, "start", stopped)


def wait_for(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_a_compiler_that_dies_is_one_crashed_build(started, monkeypatch):
    stop_first(1, started, monkeypatch)
    with builder(ENDLESS) as pool:
        future = pool.submit({"WIDTH": 60, "SCALE": 1})
        wait_for(lambda: started)
        os.kill(started[0], signal.SIGSEGV)
        os.kill(started[0], signal.SIGCONT)
        crashed = future.result(300)
        assert crashed.state is TrialState.CRASHED
        assert "SIGSEGV" in crashed.detail
        assert pool.submit({"WIDTH": 3, "SCALE": 1}).result(300).state is TrialState.OK


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_compiler_that_is_killed_from_outside_is_replaced(number, tmp_path):
    """The kernel is not the cause, so that its build is that of an undisturbed compiler."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, and compilers inherit what it ignores")
    heavy = {"WIDTH": 10, "SCALE": 1}
    undisturbed = build(ENDLESS, heavy)
    with builder(ENDLESS, cache=tmp_path) as pool:
        pool.submit({"WIDTH": 3, "SCALE": 1}).result(300)
        first = pool._compilers[0].child.pid
        os.kill(first, signal.SIGSTOP)  # however busy the machine is, it does not end before the other signal
        future = pool.submit(heavy)
        time.sleep(0.05)
        os.kill(first, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGCONT)
        made = future.result(300)
        assert made.state is TrialState.OK
        assert made.cubin == undisturbed.cubin
        assert pool._compilers[0].child.pid != first
    assert build(ENDLESS, heavy, cache=tmp_path).cached


def test_a_configuration_with_which_two_compilers_are_killed_has_crashed(started, monkeypatch):
    stop_first(2, started, monkeypatch)
    with builder(ENDLESS) as pool:
        future = pool.submit({"WIDTH": 60, "SCALE": 1})
        for count in (1, 2):
            wait_for(lambda least=count: len({*started}) >= least)
            os.kill(started[-1], signal.SIGKILL)
        assert future.result(300).state is TrialState.CRASHED
        assert "SIGKILL" in future.result(0).detail
        assert pool.submit({"WIDTH": 3, "SCALE": 1}).result(300).state is TrialState.OK


def test_a_compiler_that_runs_out_of_memory_is_one_crashed_build():
    with builder(ENDLESS, timeout_s=60, memory_bytes=400 << 20) as pool:
        crashed = pool.submit({"WIDTH": 60, "SCALE": 1})
        next_one = pool.submit({"WIDTH": 3, "SCALE": 1})
        assert crashed.result(300).state is TrialState.CRASHED
        assert "out of memory" in crashed.result().detail
        assert next_one.result(300).state is TrialState.OK


def test_launch_parameters_share_a_build_under_way():
    with builder() as pool:
        first, second = (pool.submit(CONFIGURATION | {"LAUNCHED": value}) for value in (1, 2))
        assert first.result(300).cubin == second.result(300).cubin
        assert [first.result().cached, second.result().cached] == [False, True]


def test_a_foreseen_build_is_made_at_once_and_belongs_to_the_first_that_submits_it(tmp_path):
    with builder(cache=tmp_path / "cubins") as pool:
        pool.foresee(CONFIGURATION)
        wait_for(lambda: any((tmp_path / "cubins").glob("??/[0-9a-f]*")))
        answers = [pool.submit(CONFIGURATION).result(300) for _ in range(2)]
    assert [answer.state for answer in answers] == [TrialState.OK] * 2
    assert [answer.cached for answer in answers] == [False, True]


def test_a_foreseen_build_under_way_is_shared():
    with builder() as pool:
        pool.foresee(CONFIGURATION)
        first, second = pool.submit(CONFIGURATION), pool.submit(CONFIGURATION)
        assert [first.result(300).cached, second.result(300).cached] == [False, True]


def test_one_of_two_that_share_a_build_may_cancel():
    with builder() as pool:
        first, second = pool.submit(CONFIGURATION), pool.submit(CONFIGURATION)
        assert first.cancel()
        assert second.result(300).state is TrialState.OK


def test_leaving_cancels_at_once_what_is_not_done():
    with builder(ENDLESS) as pool:
        futures = [pool.submit({"WIDTH": 60 + n, "SCALE": 1}) for n in range(5)]
        wait_for(lambda: all(one.child.pid for one in pool._compilers))
        time.sleep(1.0)
        pids = [one.child.pid for one in pool._compilers]
    done, waiting = wait(futures, timeout=300)
    assert not waiting
    assert all(future.cancelled() for future in done)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(WorkerError, match="with"):
        pool.submit(CONFIGURATION)


def test_compilers_in_a_pool_serve_the_next_builder():
    pool, pids = ChildPool(), []
    for problem in (PROBLEM, parse_problem("sgemm", trans="NT", size=64)):
        with NvrtcBuilder(bundle(), problem, "sm_90", workers=2, pool=pool) as compilers:
            assert compilers.submit(CONFIGURATION).result(300).state is TrialState.OK
            pids.append({one.child.pid for one in compilers._compilers})
    pool.close()

    assert pids[0] == pids[1]
    for pid in pids[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_pool_keeps_the_compilers_of_two_sources_that_take_turns():
    pool, pids = ChildPool(), []
    for source in (SOURCE, f"// changed\n{SOURCE}", SOURCE, f"// a third\n{SOURCE}"):
        with builder(source, pool=pool) as compilers:
            assert compilers.submit(CONFIGURATION).result(300).state is TrialState.OK
            pids.append(compilers._compilers[0].child.pid)
    first, second, again, third = pids
    assert first == again
    assert len({first, second, third}) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    os.kill(first, 0)
    pool.close()

    for pid in (first, third):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_build_under_way_is_finished_for_the_cache_by_a_compiler_that_is_kept(tmp_path):
    pool, slow = ChildPool(), {"WIDTH": 12, "SCALE": 1}
    with builder(ENDLESS, pool=pool, cache=tmp_path / "cubins") as first:
        first.submit({"WIDTH": 3, "SCALE": 1}).result(300)
        given_up = first.submit(slow)
        wait_for(first._queue.empty)
        time.sleep(0.2)
        pid = first._compilers[0].child.pid
        os.kill(pid, signal.SIGSTOP)  # leaving does not wait for its end, which would not come
    assert given_up.cancelled()
    with builder(ENDLESS, pool=pool, cache=tmp_path / "cubins") as second:
        waiting = second.submit(slow)
        assert not waiting.done()
        os.kill(pid, signal.SIGCONT)
        build = waiting.result(300)
        assert (build.state, build.cached) == (TrialState.OK, True)
        assert second._compilers[0].child.pid == pid
    pool.close()


def test_a_pool_ends_a_compiler_that_is_still_at_work():
    pool = ChildPool()
    with builder(ENDLESS, pool=pool, timeout_s=600) as first:
        endless = first.submit({"WIDTH": 60, "SCALE": 1})
        wait_for(lambda: first._queue.empty() and first._compilers[0].child.pid)
        time.sleep(0.2)
        pid = first._compilers[0].child.pid
    begun = time.monotonic()
    pool.close()

    assert time.monotonic() - begun < 300  # WIDTH 60 does not end
    assert endless.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cache_answers_in_another_builder(tmp_path):
    cold = build(cache=tmp_path / "cubins")
    with builder(cache=tmp_path / "cubins") as pool:
        future = pool.submit(CONFIGURATION | {"LAUNCHED": 9})
        assert future.done()
        warm = future.result()
    assert warm.cached
    assert not cold.cached
    assert {name: getattr(warm, name) for name in Build.__slots__ if name != "cached"} == {
        name: getattr(cold, name) for name in Build.__slots__ if name != "cached"
    }


def test_a_configuration_is_compiled_once_for_all_sizes_of_a_problem(tmp_path):
    cold = build(cache=tmp_path)
    with NvrtcBuilder(bundle(), parse_problem("sgemm", trans="NT", size=8192), "sm_90", cache=tmp_path) as pool:
        warm = pool.submit(CONFIGURATION).result(timeout=300)
    assert warm.cached
    assert warm.cubin == cold.cubin


@pytest.mark.parametrize(
    ("name", "sizes", "compiled_in"),
    [
        ("transpose", {"rows": 512, "columns": 100}, set()),
        ("reduction", {"n": 512}, set()),
        ("softmax", {"rows": 512, "columns": 100}, set()),
        ("stencil", {"nx": 512, "ny": 100}, set()),
        ("stencil", {"steps": 2}, {"STEPS"}),
        ("convolution_cuda", {"width": 512, "height": 100}, set()),
        ("convolution_cuda", {"filter_width": 5}, {"FILTER_WIDTH"}),
    ],
)
def test_of_the_sizes_of_other_kernels_those_that_are_macros_are_compiled_in(name, sizes, compiled_in):
    kernel = load_kernel(name).arrays
    one, other = kernel.problem().macros(), kernel.problem(sizes).macros()
    assert {macro for macro in one if one[macro] != other[macro]} == compiled_in


def test_cache_keeps_the_refusals_of_the_compiler(tmp_path):
    source = "#error no"
    assert not build(source, cache=tmp_path).cached
    warm = build(source, cache=tmp_path)
    assert warm.cached
    assert warm.state is TrialState.COMPILE_ERROR


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:-9] + b"X" + c[-8:], lambda c: b""])
def test_a_corrupt_cache_file_counts_as_absent(tmp_path, damage):
    first = build(cache=tmp_path)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(damage(file.read_bytes()))
    second = build(cache=tmp_path)
    assert not second.cached
    assert second.cubin == first.cubin
    assert build(cache=tmp_path).cached


def test_cache_that_cannot_be_written_does_not_fail_a_build(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert build(cache=tmp_path / "file" / "cubins").state is TrialState.OK
    assert "must be a folder that its user alone can write" in caplog.text


def test_cache_forgets_what_was_not_used_for_longest(tmp_path):
    cache = CubinCache(tmp_path, max_bytes=60_000)
    keys = [cache_key(CudaSource(SOURCE, "entry", ()), str(n), "13") for n in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, Build(TrialState.OK, cubin=os.urandom(10_000)))
        path = tmp_path / key[:2] / key
        if path.exists():
            os.utime(path, (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is None
    assert cache.get(keys[-1]) is not None
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 60_000


def test_cache_survives_many_writers(tmp_path):
    build = Build(TrialState.OK, cubin=os.urandom(50_000), registers=7)
    key = cache_key(CudaSource(SOURCE, "entry", ()), "", "13")
    wrong = []

    def hammer():
        cache = CubinCache(tmp_path)
        for _ in range(50):
            cache.put(key, build)
            found = cache.get(key)
            if found is None or found.cubin != build.cubin:
                wrong.append(found)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_everything_that_the_compiler_sees_is_in_the_key():
    source = CudaSource("a", "entry", ("-std=c++17",), {"a.h": "1"})
    sources = [
        source,
        replace(source, text="b"),
        replace(source, entry="other"),
        replace(source, options=()),
        replace(source, headers={}),
        replace(source, headers={"a.h": "2"}),
        replace(source, headers={"b.h": "1"}),
        replace(source, controls={"a.acf": b"\xff1"}),
        replace(source, controls={"a.acf": b"\xff2"}),
        replace(source, controls={"b.acf": b"\xff1"}),
    ]
    keys = {
        cache_key(one, macros, version, options)
        for one in sources
        for macros in ("", "#define X 1\n")
        for version in "12"
        for options in ((), ("--fmad=false",))
    }
    assert len(keys) == 8 * len(sources)


def test_default_cache_obeys_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "mltune" / "cubins"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_cache().is_absolute()


@pytest.mark.parametrize(
    "name",
    [
        "A B",
        "A=1",
        "A\n",
        "-I",
        "__CUDA_ARCH__",
        "A;B",
        "1A",
        "",
        "A --time=/tmp/x",
        "Ä",
        "A(x)",
        "int",
        "_A",
        "defined",
    ],
)
def test_names_that_are_no_macros_are_refused(name):
    with pytest.raises(BundleError, match="becomes a macro"):
        NvrtcBuilder(with_parameters(small(), {name: (1,)}), PROBLEM, "sm_90")
    with pytest.raises(BundleError, match="becomes a macro"):
        definitions({name: 1})


def test_lower_case_names_are_macros_also_where_nvrtc_uses_them_itself():
    names = ("block_size_x", "width", "size", "value", "T")
    source = 'extern "C" __global__ void entry(int* out) { static_assert(%s == 15, ""); out[0] = width; }'
    kernel = with_parameters(bundle(source % " + ".join(names)), dict.fromkeys(names, (1,)))
    with NvrtcBuilder(kernel, PROBLEM, "sm_90", workers=1) as pool:
        made = pool.submit(dict(zip(names, range(1, 6), strict=True))).result(300)
    assert made.state is TrialState.OK, made.detail


def test_errors_name_the_line_of_the_source():
    assert "kernel.cu(3)" in build("\n\n#error here").detail


@pytest.mark.parametrize("value", ["1\n#include <x>", "1\\", "1\u2028", None, b"1", [1]])
def test_values_that_are_no_numbers_or_lines_of_text_are_refused(value):
    with builder() as pool, pytest.raises(SpaceError, match="WIDTH"):
        pool.submit(CONFIGURATION | {"WIDTH": value})


def test_a_missing_parameter_is_refused():
    with builder() as pool, pytest.raises(SpaceError, match="SCALE"):
        pool.submit({"WIDTH": 1})


@pytest.mark.parametrize("architecture", ["sm_90 --time=/tmp/x", "compute_90", "sm_", "90", "", "sm_90\n", "sm_20"])
def test_architectures_that_do_not_exist_are_refused(architecture):
    with pytest.raises(DeviceError):
        builder(architecture=architecture)


def test_a_bundle_that_cannot_be_built_is_refused():
    with pytest.raises(BundleError, match="replay"):
        builder(None)


CANARY = "CANARY_c0ffee"
FILE = "canary.h"
"""Stands for the path of a file that no kernel may read, its content :data:`CANARY`."""

INCLUDES = {
    "quoted": '#include "canary.h"',
    "angled": "#include <canary.h>",
    "spaced": '  #  include "canary.h"',
    "digraph": '%:include "canary.h"',
    "comments": '#/**/include/**/"canary.h"',
    "comment of two lines": '/*\n*/ # /*\n*/ include "canary.h"',
    "continued directive": '#inc\\\nlude "canary.h"',
    "continued path": '#include "canary.h\\\n"',
    "macro": '#define NAME "canary.h"\n#include NAME',
    "angled macro": "#define NAME <canary.h>\n#include NAME",
    "made string": "#define TEXT(x) #x\n#define MADE(x) TEXT(x)\n#include MADE(canary.h)",
    "next": '#include_next "canary.h"',
    "next angled": "#include_next <canary.h>",
    "name of the file": '#line 1 "canary.h"\n#include __FILE__',
    "behind a raw string": 'const char* text = R"(\n)";\n#include "canary.h"',
    "trigraph": '??=include "canary.h"',
    "import": '#import "canary.h"',
    "embed": 'int data[] = {\n#embed "canary.h"\n};',
    "module": 'import "canary.h";',
    "universal character": '#\\u0069nclude "canary.h"',
    "alias": '#pragma include_alias("a.h", "canary.h")\n#include "a.h"',
    "slashes": '#include "/.//canary.h"',
    "current directory": '#include "/proc/self/cwd/canary.h"',
    "error at a line of it": '#line 1 "canary.h"\nundeclared;',
    "assembly": 'extern "C" __global__ void more() { asm(".include \\"canary.h\\""); }',
    "assembly of a file": 'extern "C" __global__ void more() { asm(".incbin \\"canary.h\\""); }',
    "line of assembly": 'extern "C" __global__ void more() { asm("\\n# 1 \\"canary.h\\"\\nbad;"); }',
    "pipe": '#include "/dev/stdin"',
    "endless": '#include "/dev/zero"',
}


MACROS = "#define WIDTH 512\n#define SCALE 3\n#define PRECISION 0\n"


@pytest.fixture(scope="module")
def canary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("near") / "outside"
    folder.mkdir()
    path = folder / FILE
    path.write_text(f"{CANARY} {CANARY}\n")
    return path


@pytest.fixture(scope="module")
def compiler(canary):
    """Start a compile process in the folder of the canary; text before the source can be given to it."""
    source = CudaSource(SOURCE, "entry", compile_options("sm_90"))
    child = Child("mltune.measure.compiler:make_compiler", (source, 4 << 30))
    with contextlib.chdir(canary.parent):
        child.start()
    yield child
    child.kill()


@pytest.mark.parametrize("trick", INCLUDES)
def test_no_source_reads_a_file(canary, compiler, trick):
    made = compiler.call((f"{MACROS}{INCLUDES[trick].replace(FILE, str(canary))}\n", ()), 60)
    assert made.state is TrialState.COMPILE_ERROR
    assert CANARY not in made.detail
    assert "error" in made.detail or "fatal" in made.detail
    assert len(made.detail) < 700


@pytest.mark.parametrize("name", [f'"{FILE}"', f"<{FILE}>", f'"./{FILE}"', f'"../outside/{FILE}"'])
def test_no_source_reads_a_file_near_the_process(canary, compiler, name):
    made = compiler.call((f"{MACROS}#include {name}\n", ()), 60)
    assert made.state is TrialState.COMPILE_ERROR
    assert "open source file" in made.detail
    assert CANARY not in made.detail


@pytest.mark.parametrize("question", ['__has_include("canary.h")', "__has_include(<canary.h>)", "__has_include(<a.h>)"])
def test_no_source_can_ask_whether_a_file_exists(canary, question):
    question = question.replace(FILE, str(canary))
    asked = f"#if {question}\n#error there is one\n#endif\n"
    assert build(asked + SOURCE).state is TrialState.OK


def test_a_refused_include_says_which_files_are_found(canary):
    detail = build(f'#include "{canary}"\n').detail
    assert f'cannot open source file "{canary}"' in detail
    assert "headers" in detail
    assert "Too many open files" not in detail
    assert "no directories" not in detail


def test_a_header_that_changes_is_another_build(tmp_path):
    source = '#include "scale.h"\nextern "C" __global__ void entry(int* out) { out[0] = scale(); }'
    kernels = [bundle(source, headers={"scale.h": f"__device__ int scale() {{ return {value}; }}"}) for value in (3, 4)]
    builds = []
    for kernel in (*kernels, kernels[0]):
        with NvrtcBuilder(kernel, PROBLEM, "sm_90", workers=1, cache=tmp_path) as pool:
            builds.append(pool.submit(CONFIGURATION).result(300))
    three, four, again = builds
    assert three.state is TrialState.OK, three.detail
    assert three.cubin != four.cubin
    assert (three.cached, four.cached, again.cached) == (False, False, True)
    assert again.cubin == three.cubin


def test_headers_include_each_other_and_see_the_macros():
    headers = {
        "a.cuh": '#include <b.cuh>\n#include "b.cuh"',
        "b.cuh": "#pragma once\n__device__ int b() { return WIDTH; }",
    }
    source = '#include <a.cuh>\nextern "C" __global__ void entry(int* out) { out[0] = b(); }'
    with NvrtcBuilder(bundle(source, headers=headers), PROBLEM, "sm_90", workers=1) as pool:
        made = pool.submit(CONFIGURATION).result(300)
    assert made.state is TrialState.OK, made.detail


def test_escape_sequences_of_a_source_do_not_reach_a_message():
    assert build("#error \x1b[2J gone").detail.isprintable()


def test_version_names_the_patch_release():
    assert len(nvrtc_version().split(".")) == 3
    assert {80, 90, 100} <= set(supported_architectures())


def test_log_of_several_kernels_is_read_for_the_right_one():
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm_too' for 'sm_80'
ptxas info    : Function properties for gemm_too
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers, 352 bytes cmem[0]
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for helper
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for gemm
ptxas         .     3144 bytes stack frame, 5480 bytes spill stores, 5484 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 3144 bytes cumulative stack size, 2052 bytes smem, 364 bytes cmem[0]
"""
    resources = {"registers": 32, "stack_bytes": 3144, "spill_bytes": 10964, "shared_bytes": 2052}
    assert parse_ptxas_log(log, "gemm") == resources
    assert parse_ptxas_log(log, "gem") is None
    assert parse_ptxas_log("", "gemm") is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02" + b"\xff" * 200, b"not an ELF at all" * 10])
def test_what_is_no_cubin_has_no_code(content):
    assert code_bytes(content, "gemm") is None
