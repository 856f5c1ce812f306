"""The runner on a GPU: correct kernels pass, and known durations are measured."""

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Rig

from mltune.device.peaks import peak_flops
from mltune.device.query import available_devices
from mltune.kernel.bundle import variables_of
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.libraries import bind_reference
from mltune.measure.pipeline import SamplingRule
from mltune.measure.runner import GpuRunner
from mltune.measure.worker import Worker
from mltune.problem.gemm import parse_problem
from mltune.process.child import Child
from mltune.records.trial import TrialState

pytestmark = pytest.mark.gpu

MEASURED = (TrialState.OK, TrialState.UNSTABLE)


def make():
    """Make the function that times a kernel of known duration as a worker does (in a child)."""
    stopwatch = Worker(0, parse_problem("sgemm", trans="NT", m=64, n=64, k=64)).stopwatch
    return lambda duration_s: stopwatch.take(lambda: stopwatch.spin(duration_s), 7)


@pytest.fixture(scope="module")
def spinning():
    served = Child(f"{__name__}:make")
    yield served
    served.kill()


def test_device_facts_are_in_range(device):
    assert device in available_devices()
    assert 1e8 < device.clock_hz < 1e10, device
    assert 1e10 < device.memory_bytes_per_s < 1e14, device
    assert device.shared_bytes_per_block + device.reserved_shared_bytes <= device.shared_bytes_per_sm, device
    assert device.max_threads_per_sm % device.warp_size == 0, device
    assert peak_flops(device, "fp32") > 1e11, device


@pytest.mark.parametrize(("duration_s", "tolerance"), [(2e-3, 0.02), (2e-2, 0.02), (2e-4, 0.05)])
def test_known_durations_are_measured(spinning, duration_s, tolerance):
    ratio = statistics.median(spinning.call(duration_s, 60)) / duration_s

    assert abs(ratio - 1) <= tolerance, f"a kernel that runs for {duration_s} s was measured as {ratio} times that"


def test_four_times_the_work_takes_longer_and_needs_no_other_build(hostile):
    build = hostile.build(MISDEED=0, REPEAT=1)
    once, four_times = (hostile.runner.submit({"MISDEED": 0, "REPEAT": repeat}, build).result() for repeat in (1, 4))

    assert once.state in MEASURED, once
    assert four_times.state in MEASURED, four_times
    ratio = four_times.median_s / once.median_s
    assert 2.5 < ratio < 4.5, f"four times the work took {ratio} times as long: {once}, {four_times}"


def test_a_slow_kernel_is_not_sampled_further(hostile):
    measured = hostile.measure(best_s=1e-6, MISDEED=0, REPEAT=1)

    assert measured.state is TrialState.OK, measured
    assert measured.stopped_early, measured
    assert len(measured.samples_s) == 1, measured


def test_state_of_the_gpu_is_recorded(hostile):
    pytest.importorskip("pynvml", reason="the state of a GPU is read through nvidia-ml-py")
    measured = hostile.measure(MISDEED=0, REPEAT=1)

    assert 1e8 < measured.sm_clock_hz < 1e10, measured
    assert 0 < measured.temperature_c < 120, measured
    assert measured.power_w > 0, measured


def test_samples_are_kept_and_the_median_is_theirs(hostile):
    measured = hostile.measure(MISDEED=0, REPEAT=1)  # four times the work would be too slow: the runner knows the best

    assert len(measured.samples_s) >= 3, measured
    assert measured.median_s == pytest.approx(statistics.median(measured.samples_s)), measured
    assert measured.noise < 0.05, measured


@pytest.mark.parametrize(
    ("name", "trans", "alpha", "beta"),
    [("dgemm", "TN", 1.0, 0.5), ("cgemm", "CN", 1.0, 0.0), ("zgemm", "NC", 0.5 - 1j, 0.25j)],
)
def test_every_precision_is_verified_timed_and_checked_at_other_sizes(hostile_kernel, device, name, trans, alpha, beta):
    problem = parse_problem(name, trans=trans, m=700, n=600, k=500, alpha=alpha, beta=beta)
    right, wrong = {"MISDEED": 0, "REPEAT": 1}, {"MISDEED": 5, "REPEAT": 1}
    with NvrtcBuilder(hostile_kernel, problem, device.architecture, cache=None, workers=2) as builder:
        builds = [builder.submit(configuration).result() for configuration in (right, wrong)]
    with GpuRunner(PlacedKernel(hostile_kernel, problem, device), 0) as runner:
        measured = runner.submit(right, builds[0]).result()
        refused = runner.submit(wrong, builds[1]).result()
        checks = runner.verify_winner(right, builds[0])
        small = replace(problem, m=65, n=65, k=65, lda=0, ldb=0, ldc=0)
        caught = runner.verify_winner(wrong, builds[1], problems_besides=[small])
        reference = runner.time_reference(SamplingRule())

    assert measured.state in MEASURED, measured
    assert measured.error < 1, measured
    assert refused.state is TrialState.WRONG_RESULT, refused
    assert all(check.state is TrialState.OK for check in checks.values()), checks
    assert all(check.state is TrialState.WRONG_RESULT for check in caught.values()), caught
    assert len(checks) == 7, checks
    assert reference.state in MEASURED, reference
    assert 0 < problem.flops / reference.median_s < 20 * peak_flops(device, problem.arithmetic), reference


SPLIT_K = load_kernel(Path(__file__).parent.parent / "kernels" / "split_k")


@pytest.mark.parametrize(("misdeed", "state"), [(0, None), (1, TrialState.WRONG_RESULT), (3, TrialState.LAUNCH_ERROR)])
def test_a_workspace_is_zero_and_kept_from_launch_to_launch(device, misdeed, state):
    problem = parse_problem("dgemm", trans="TN", m=300, n=200, k=100)
    configuration = {"MISDEED": misdeed, "PARTS": 3, "UNUSED": 1}
    with Rig(SPLIT_K, problem, device) as rig:
        measured = [rig.measure(**configuration) for _ in range(2)]
        checks = rig.runner.verify_winner(configuration, rig.build(**configuration))

    assert all(one.state in (MEASURED if state is None else (state,)) for one in measured), measured
    if state is None:
        assert all(check.state is TrialState.OK for check in checks.values()), checks
    if state is TrialState.LAUNCH_ERROR:
        assert "a workspace of 1125899906842624 bytes does not fit into the free memory" in measured[0].detail


@pytest.mark.parametrize("name", ["hgemm", "bgemm", "hsgemm", "bsgemm"])
def test_half_precision_is_verified_timed_and_compared_with_cublas(device, name):
    problem = parse_problem(name, trans="TN", m=700, n=600, k=500, alpha=1.5, beta=0.5)
    right = {"MISDEED": 0, "PARTS": 3, "UNUSED": 1}
    with Rig(SPLIT_K, problem, device) as rig:
        measured = rig.measure(**right)
        large = replace(problem, m=2000, n=1500, k=3000, lda=0, ldb=0, ldc=0)  # compared on the GPU
        checks = rig.runner.verify_winner(right, rig.build(**right), [*problem.winner_problems(), large])
        reference = rig.runner.time_reference(SamplingRule())

    assert measured.state in MEASURED, measured
    assert measured.error < 1, measured
    assert all(check.state is TrialState.OK for check in checks.values()), checks
    assert reference.state in MEASURED, reference


@pytest.mark.parametrize("name", ["hgemm", "bgemm", "hsgemm", "bsgemm"])
def test_cublas_stays_within_the_bound_of_half_precision(device, name):
    import cupy

    problem = parse_problem(name, trans="NT", m=1000, n=900, k=4000, alpha=1.5, beta=0.5)
    before = problem.operands(cupy, 1)
    after = {**before, "C": before["C"].copy()}
    bind_reference(problem, {one: array.data.ptr for one, array in after.items()})()

    assert 0 < problem.device_error(before, after, None) < 1


def test_two_timings_of_the_reference_agree(hostile):
    first, second = (hostile.runner.time_reference(SamplingRule()) for _ in range(2))

    assert first.state in MEASURED, first
    assert first.median_s == pytest.approx(second.median_s, rel=0.1), (first, second)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("gemm_simt", "s"),
        *(("gemm_mma64", precision) for precision in "dz"),
        ("gemm_split", "s"),
        *(("gemm_tf32", precision) for precision in "sc"),
        *(("gemm_wgmma", precision) for precision in ("h", "b", "hs", "bs")),
    ],
)
def test_random_configurations_are_right_and_quickly_verified(device, name, precision):
    from mltune.kernel.space import ConstrainedSpace
    from mltune.resolve.device import fits

    kernel = load_kernel(name)
    if not fits(kernel, device):
        pytest.skip(f"{device.name} has no {kernel.resources.unit}")
    problem = parse_problem(f"{precision}gemm", trans="NT", m=2048, n=2048, k=2048)
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(24, np.random.default_rng(1)))
    configurations = [{name: int(column[row]) for name, column in columns.items()} for row in range(24)]
    with (
        NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=None) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        builds = [future.result() for future in [builder.submit(configuration) for configuration in configurations]]
        measured = [
            runner.submit(configuration, build).result()
            for configuration, build in zip(configurations, builds, strict=True)
            if build.state is TrialState.OK
        ]

    assert len(measured) > 12, [build.detail for build in builds]
    spilled = [build.spill_bytes > 200 for build in builds if build.state is TrialState.OK]  # ptxas may be wrong there
    wrong = [found for found, many in zip(measured, spilled, strict=True) if found.state not in MEASURED and not many]
    assert not wrong, wrong
    verify_s = statistics.median(found.verify_s for found in measured)
    assert verify_s < 4e-3, f"verification must take less than 4 ms, took {1e3 * verify_s:.2f} ms (median)"


@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("pack", [0, 1])
def test_rows_without_alignment_are_copied_right_by_gemm_wgmma(device, trans, pack):
    """Tiles of all shapes, clusters and parts of k at extents of several remainders by 8: rows begin at all of them."""
    from mltune.kernel.space import ConstrainedSpace
    from mltune.resolve.device import fits

    kernel = load_kernel("gemm_wgmma").with_values({"PACK": (pack,)})
    if not fits(kernel, device):
        pytest.skip(f"{device.name} has no {kernel.resources.unit}")
    problem = parse_problem("hgemm", trans=trans, m=697, n=593, k=4097, beta=0.5)
    sizes = [(698, 594, 4098), (700, 596, 4100), (703, 597, 4093), (61, 70, 9), (1, 3, 300)]
    others = [replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0) for m, n, k in sizes]
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(12, np.random.default_rng(1)))
    configurations = [{one: int(column[at]) for one, column in columns.items()} for at in range(12)]
    with Rig(kernel, problem, device) as rig:
        builds = [(one, rig.builder.submit(one).result()) for one in configurations]
        sound = [(one, build) for one, build in builds if build.state is TrialState.OK and build.spill_bytes <= 200]
        measured = [rig.runner.submit(*one).result() for one in sound]
        checks = [check for one in sound for check in rig.runner.verify_winner(*one, problems_besides=others).values()]

    assert {one["CLUSTER"] * one["CLUSTER_N"] for one, _ in sound} == {1, 2}
    assert {one["PACK"] for one, _ in sound} == {pack}
    assert all(one.state in MEASURED for one in measured), [*zip([one for one, _ in sound], measured, strict=True)]
    assert all(check.state is TrialState.OK for check in checks), checks


@pytest.mark.parametrize("cluster", [1, 2])
def test_lines_are_packed_right_while_other_launches_hold_multiprocessors(device, cluster, tmp_path):
    """Launches of four streams at once, each with a workspace: no launch has all its blocks at a time."""
    import cupy

    from mltune.resolve.device import fits

    kernel = load_kernel("gemm_wgmma")
    if not fits(kernel, device):
        pytest.skip(f"{device.name} has no {kernel.resources.unit}")
    configuration = {**kernel.space.default, "STAGES": 3, "BLK_N": 128, "CLUSTER": cluster, "PACK": 1}
    problem = parse_problem("hgemm", trans="TN", m=1111, n=1333, k=2047, beta=0.0)
    with Rig(kernel, problem, device) as rig:
        build = rig.build(**configuration)
    path = tmp_path / "packed.cubin"
    path.write_bytes(build.cubin)
    function = cupy.RawModule(path=str(path)).get_function(build.entry or "gemm")
    launch = kernel.launch(configuration, variables_of(problem, device))
    function.max_dynamic_shared_size_bytes = launch.shared_bytes
    calls = []
    for early in range(4):
        operands = problem.operands(cupy, early)
        placed = {one: cupy.empty(len(array) + early, dtype=array.dtype)[early:] for one, array in operands.items()}
        for one, array in operands.items():
            placed[one][:] = array
        addresses = {one: np.uint64(array.data.ptr) for one, array in placed.items()}
        workspace = cupy.zeros(launch.workspace_bytes, dtype="uint8")
        arguments = (*problem.kernel_arguments(addresses).values(), *map(np.int32, launch.arguments), workspace)
        maps = [matrix.encoded(int(arguments[matrix.place])) for matrix in launch.tensor_maps]
        arguments += tuple(np.frombuffer(content, "V128") for content in maps)
        calls.append((cupy.cuda.Stream(non_blocking=True), placed, workspace, arguments))
    cupy.cuda.Device().synchronize()
    for _ in range(20):
        for stream, _, _, arguments in calls:
            with stream:
                function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)
    cupy.cuda.Device().synchronize()
    for _, placed, workspace, _ in calls:
        answer, bound = problem.answer(placed), problem.error_bound(placed)
        assert float(problem.worst_error(problem.result(placed["C"]), answer, bound)) <= 1
        assert not workspace[:256].any(), "the counters are set back"


@pytest.mark.parametrize(
    ("name", "case", "trans"),
    [
        ("gemm_simt", "sgemm", "NN"),
        ("gemm_simt", "zgemm", "TC"),
        ("gemm_mma64", "dgemm", "NT"),
        ("gemm_mma64", "zgemm", "CN"),
        ("gemm_wgmma", "hgemm", "TN"),
        ("gemm_wgmma", "bgemm", "NT"),
    ],
)
def test_many_parts_of_few_tiles_meet(device, name, case, trans):
    """Any number of parts, where BLK_K does not divide k, each verified twice."""
    from mltune.kernel.space import ConstrainedSpace
    from mltune.resolve.device import fits

    few = {"gemm_simt": {"BLK_K": (8, 16)}, "gemm_mma64": {"BLK_K": (8, 16), "STREAM_K": (1,)}}.get(name, {})
    kernel = load_kernel(name).with_values(few)
    if not fits(kernel, device):
        pytest.skip(f"{device.name} has no {kernel.resources.unit}")
    problem = parse_problem(case, trans=trans, m=72, n=75, k=6136 if name == "gemm_wgmma" else 6142, beta=0.5)
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(8, np.random.default_rng(1)))
    configurations = [{one: int(column[at]) for one, column in columns.items()} for at in range(8)]
    with Rig(kernel, problem, device) as rig:
        sound = [one for one in configurations if not rig.build(**one).spill_bytes][:3]
        numbers = {"gemm_simt": (0, 1, 2, 3, 5, 8, 13, 32), "gemm_wgmma": (0, 1, 2, 3, 8, 12)}.get(name, ())
        launched = [one | {"SPLIT_K": parts} for one in sound for parts in numbers] or sound
        measured = [rig.measure(**one) for one in launched]
        checks = rig.runner.verify_winner(launched[0], rig.build(**launched[0]))

    assert all(one.state in MEASURED for one in measured), list(zip(launched, measured, strict=True))
    assert all(check.state is TrialState.OK for check in checks.values()), checks


@pytest.mark.parametrize(("case", "trans"), [("sgemm", "NN"), ("sgemm", "TT"), ("dgemm", "NT"), ("cgemm", "TN")])
def test_blocks_that_divide_the_last_waves_give_the_same_bits_in_every_run(device, case, trans, tmp_path):
    """Tiles that overlap, blocks that end within tiles, and two streams at once, of each of which fewer blocks run."""
    import cupy

    from mltune.kernel.space import ConstrainedSpace

    kernel = load_kernel("gemm_simt").with_values({"SPLIT_K": (0,)})
    problem = parse_problem(case, trans=trans, m=1815, n=1091, k=989)
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(12, np.random.default_rng(1)))
    configurations = [{one: int(column[at]) for one, column in columns.items()} for at in range(12)]
    with NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=None) as builder:
        builds = [building.result() for building in [builder.submit(one) for one in configurations]]
    sound = [
        (one, build)
        for one, build in zip(configurations, builds, strict=True)
        if build.state is TrialState.OK and build.spill_bytes == 0
    ][:4]
    operands = problem.operands(cupy, 1)

    def run_reference(computed):
        bind_reference(problem, {one: array.data.ptr for one, array in computed.items()})()

    assert len(sound) == 4, builds
    for number, (configuration, build) in enumerate(sound):
        launch = kernel.launch(configuration, variables_of(problem, device))
        path = tmp_path / f"{number}.cubin"  # CuPy keeps modules by their path
        path.write_bytes(build.cubin)
        gemm = cupy.RawModule(path=str(path)).get_function(build.entry or kernel.source.entry)
        gemm.max_dynamic_shared_size_bytes = launch.shared_bytes
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        results = [[cupy.full_like(operands["C"], np.nan) for _ in range(12)] for _ in streams]
        workspaces = [cupy.zeros(launch.workspace_bytes, dtype="uint8") for _ in streams]
        cupy.cuda.Device().synchronize()
        for run in range(12):
            for stream, made, workspace in zip(streams, results, workspaces, strict=True):
                arguments = problem.kernel_arguments({**operands, "C": made[run]}).values()
                further = (*map(np.int32, launch.arguments), workspace)
                with stream:
                    gemm(launch.grid, launch.block, (*arguments, *further), shared_mem=launch.shared_bytes)
        cupy.cuda.Device().synchronize()
        first, *others = [one for made in results for one in made]
        assert problem.device_error(operands, {**operands, "C": first}, run_reference) <= 1, configuration
        assert all(bool((problem.result(one) == problem.result(first)).all()) for one in others), configuration
        flags = 256 * -(-4 * launch.grid[0] // 256)
        assert not any(bool(workspace[:flags].any()) for workspace in workspaces), configuration


@pytest.mark.parametrize(
    ("name", "precision"), [("gemm_simt", "c"), ("gemm_mma64", "d"), ("gemm_wgmma", "h"), ("gemm_tf32", "s")]
)
def test_a_batch_is_verified_timed_and_compared_with_cublas(device, name, precision):
    from mltune.kernel.space import ConstrainedSpace
    from mltune.resolve.device import fits

    kernel = load_kernel(name)
    if not fits(kernel, device):
        pytest.skip(f"{device.name} has no {kernel.resources.unit}")
    problem = parse_problem(f"{precision}gemm", trans="TN", m=200, n=90, k=70, beta=0.5, batch=60)
    space = ConstrainedSpace(kernel, variables_of(problem, device))
    columns = space.rows(space.sample(6, np.random.default_rng(1)))
    configurations = [{one: int(column[at]) for one, column in columns.items()} for at in range(6)]
    with Rig(kernel, problem, device) as rig:
        sound = [one for one in configurations if not rig.build(**one).spill_bytes]  # ptxas may be wrong about others
        measured = [rig.measure(**configuration) for configuration in sound]
        checks = rig.runner.verify_winner(sound[0], rig.build(**sound[0]))
        reference = rig.runner.time_reference(SamplingRule())

    assert all(one.state in MEASURED for one in measured), list(zip(sound, measured, strict=True))
    assert all(check.state is TrialState.OK for check in checks.values()), checks
    assert reference.state in MEASURED, reference
