"""Around a measurement: readings of the GPU's state, checksums, races, finals, and a GPU whose memory others use."""

import statistics
import time

import pytest

from mltune.errors import DeviceLostError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace
from mltune.measure import runner as runner_module
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import parse_problem
from mltune.process.child import Child
from mltune.records.trial import Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.tuning.finals import Finals
from mltune.tuning.session import Session

pytestmark = pytest.mark.gpu

MEASURED = (TrialState.OK, TrialState.UNSTABLE)


def make():
    """Make the function that a child of these tests serves: the tests themselves do not use the GPU."""
    return lambda request: globals()[f"_{request[0]}"](*request[1:])


def _checksums():
    import cupy

    from mltune.measure.verification import OperandChecksums

    numbers, unread = cupy.arange(2**25, dtype="float32"), cupy.full(1001, complex("nan+nanj"), dtype="complex128")
    checksums = OperandChecksums([("the numbers", numbers), ("what is not read", unread), ("the numbers", numbers[:2])])
    found = {"before": checksums.changed()}
    numbers[12345] += 1
    found["one number"] = checksums.changed()
    numbers[12345] -= 1
    found["put right"] = checksums.changed()
    numbers[[100, 200]] = numbers[[200, 100]]
    found["two exchanged"] = checksums.changed()
    numbers[[100, 200]] = numbers[[200, 100]]
    unread[1000] = 0
    found["the last"] = checksums.changed()
    started = time.perf_counter()
    for _ in range(20):
        checksums.changed()
    return found, (time.perf_counter() - started) / 20


def _series():
    from mltune.measure.stopwatch import SeriesStopwatch

    stopwatch = SeriesStopwatch(50_000_000)
    stopwatch.take(lambda: stopwatch.spin(1e-6), 1)
    looked = []
    times_s = [1e-3, 4e-3, 2e-3]
    launches = [lambda time_s=time_s: stopwatch.spin(time_s) for time_s in times_s]
    return times_s, stopwatch.take_each(launches, lambda: looked.append(time.perf_counter())), len(looked)


def _readings():
    from mltune.device.query import Nvml, pci_bus_id

    nvml = Nvml(pci_bus_id(0))
    spent_s = []
    for _ in range(20):
        started = time.perf_counter()
        state = nvml.read_clock()
        spent_s.append(time.perf_counter() - started)
    return state, statistics.median(spent_s)


def _take_all_but(left_bytes):
    import cupy

    free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    taken_bytes = free_bytes - left_bytes
    cupy.cuda.runtime.malloc(taken_bytes)
    return taken_bytes


@pytest.fixture(scope="module")
def child():
    served = Child(f"{__name__}:make")
    yield served
    served.kill()


def test_checksums_detect_every_change_in_less_than_a_millisecond(child):
    found, spent_s = child.call(("checksums",), 60)

    assert found == {
        "before": (),
        "one number": ("the numbers",),
        "put right": (),
        "two exchanged": ("the numbers",),
        "the last": ("what is not read",),
    }
    assert spent_s < 1e-3, f"128 MiB must be read in less than 1 ms, took {1e3 * spent_s:.2f} ms"


def test_different_kernels_of_one_series_are_timed_each_for_itself(child):
    known_s, measured_s, looked = child.call(("series",), 60)

    assert measured_s == pytest.approx(known_s, rel=0.05, abs=5e-6)
    assert 1 <= looked <= len(known_s), "the host looks on while the GPU is busy"


def test_a_reading_of_the_clock_takes_no_time(child):
    pytest.importorskip("pynvml", reason="the state of a GPU is read through nvidia-ml-py")
    state, spent_s = child.call(("readings",), 60)

    assert state.sm_clock_hz > 1e8
    assert spent_s < 2e-3, f"a reading must take less than 2 ms, took {1e3 * spent_s:.2f} ms"


def test_the_reference_takes_as_long_as_before(hostile):
    first, second = hostile.runner.time_reference(), hostile.runner.time_reference()

    assert first.state in MEASURED, first
    assert first.median_s == pytest.approx(second.median_s, rel=0.05), (first, second)
    assert first.time_s < 0.5, first


def test_kernels_are_raced_with_the_reference(hostile):
    build = hostile.build(MISDEED=0, REPEAT=1)
    entries = [({"MISDEED": 0, "REPEAT": repeat}, build) for repeat in (4, 1)]
    started = time.perf_counter()
    result = hostile.runner.race(entries)

    assert time.perf_counter() - started < 10
    assert result.state in MEASURED, result
    assert result.rounds == len(result.reference_s) >= 7, result
    ratio = statistics.median(four_times / once for four_times, once in result.samples_s)
    assert 2.5 < ratio < 4.5, f"four times the work took {ratio} times as long"


@pytest.mark.parametrize(
    ("misdeed", "state", "words"),
    [(2, TrialState.CRASHED, "illegal"), (16, TrialState.WRONG_RESULT, "one of the kernels wrote into A")],
)
def test_a_race_with_a_misdeed_has_no_times_and_leaves_no_harm(hostile, misdeed, state, words):
    entries = [({"MISDEED": number, "REPEAT": 1}, hostile.build(MISDEED=number, REPEAT=1)) for number in (0, misdeed)]
    result = hostile.runner.race(entries)

    assert result.state is state, result
    assert words.lower() in result.detail.lower(), result
    assert result.rounds == 0
    assert hostile.measure(MISDEED=0, REPEAT=1).state in MEASURED


def test_who_wins_the_finals_is_right_and_fastest(hostile, hostile_kernel, device):
    """The kernel that omits the last step of k may be as fast as the correct one; then it must be rejected."""
    configurations = [{"MISDEED": misdeed, "REPEAT": repeat} for misdeed, repeat in ((0, 4), (0, 1), (5, 1))]
    records = [
        TrialRecord(number, 0, number, configuration, TrialState.OK, measurement=measured)
        for number, configuration in enumerate(configurations)
        for measured in [Measurement(TrialState.OK, samples_s=(1e-3,), median_s=1e-3)]
    ]
    space = TableSpace({"MISDEED": [0], "REPEAT": [1]})
    session = Session(
        PlacedKernel(hostile_kernel, hostile.problem, device, space),
        hostile.builder,
        hostile.runner,
        {},
        gpu=hostile.runner,
    )
    trials = Trials.from_records(records, space.names)
    started = time.perf_counter()
    found = Finals(session, trials).declare()

    assert time.perf_counter() - started < 20
    assert found.number == 1, found
    assert found.verified, found
    assert set(found.rejected) <= {2}, found
    assert found.ties == (), found
    assert next(one for one in found.finalists if one.number == 0).ratio_low > 2, found
    assert found.reference.ratio_low < found.reference.ratio < found.reference.ratio_high, found
    assert Finals(session, trials, stop=lambda: True).declare().rounds == 0


def test_a_gpu_whose_memory_others_took_is_lost_until_they_leave(hostile_kernel, hostile, device, monkeypatch):
    problem = parse_problem("sgemm", trans="NT", m=14_000, n=14_000, k=14_000)
    build = hostile.builder.submit({"MISDEED": 0, "REPEAT": 1}).result()
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    others = Child(f"{__name__}:make")
    try:
        assert others.call(("take_all_but", 3 * 2**29), 60) > device.memory_bytes / 2
        with GpuRunner(PlacedKernel(hostile_kernel, problem, device), 0, timeout_s=60) as runner:
            asked = runner.submit({"MISDEED": 0, "REPEAT": 1}, build, best_s=1e-6)
            with pytest.raises(DeviceLostError):
                asked.result()
            others.kill()
            monkeypatch.setattr(runner_module, "_PAUSES_S", (1.0, 2.0))
            measured = runner.submit({"MISDEED": 0, "REPEAT": 1}, build, best_s=1e-6).result()
    finally:
        others.kill()

    assert measured.state in MEASURED, measured
