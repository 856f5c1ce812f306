"""Replay returns what the GPU returned when the dataset was recorded."""

import pytest

from mltune.dataset.dataset import Dataset, dataset_from_records, load_dataset, write_dataset
from mltune.dataset.replay import ReplayBuilder, ReplayRunner
from mltune.device.facts import Device
from mltune.errors import DatasetError
from mltune.measure.pipeline import Builder, Runner
from mltune.problem.gemm import parse_problem
from mltune.records.header import RunHeader
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.testing import BuilderContract, RunnerContract
from tests.effort import at_most_cpu_s

HEADER = RunHeader(
    kernel="toy",
    source_hash="",
    parameters={"BLK_M": (16, 32, 64), "UNROLL": tuple(range(1000))},
    problem=parse_problem("dgemm", trans="TN", m=64, n=64, k=64).to_json(),
    device=Device("GPU", (9, 0), 132, 2e9, 1, 1.0, 1, 1, 1, 1, 1, 255, 2048, 1024, 32).to_json(),
    seed=0,
)
FASTEST = {"BLK_M": 16, "UNROLL": 1}
LATE_BUILD = {"BLK_M": 32, "UNROLL": 0}
LATE_RUN = {"BLK_M": 32, "UNROLL": 1}
WRONG = {"BLK_M": 64, "UNROLL": 1}


def ok(unroll: int) -> tuple[dict[str, int], Build, Measurement | None]:
    build = Build(TrialState.OK, registers=40, spill_bytes=8, compile_s=0.5)
    return {"BLK_M": 16, "UNROLL": unroll}, build, Measurement(TrialState.OK, "", (0.25, 0.5), 0.25 * unroll, 0.125)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    good = Build(TrialState.OK, registers=64)
    rows = [
        *(ok(unroll) for unroll in range(1, 1000)),
        (LATE_BUILD, Build(TrialState.TIMEOUT, "the compiler was late", compile_s=60.0), None),
        (LATE_RUN, good, Measurement(TrialState.TIMEOUT, "the kernel was late")),
        (WRONG, good, Measurement(TrialState.WRONG_RESULT, "far off", error=float("inf"), verify_s=0.5)),
    ]
    records = [
        TrialRecord(
            number, 0, number, configuration, (measurement or build).state, build=build, measurement=measurement
        )
        for number, (configuration, build, measurement) in enumerate(rows)
    ]
    folder = tmp_path_factory.mktemp("datasets")
    write_dataset(dataset_from_records(records, HEADER, name="recorded", kind="random"), folder)
    return load_dataset(folder / "recorded.json")


def test_what_was_recorded_is_answered_at_once(dataset):
    with ReplayBuilder(dataset) as builder, ReplayRunner(dataset) as runner:
        future = builder.submit(FASTEST)
        assert future.done()
        build = future.result()
        assert build == Build(TrialState.OK, registers=40, spill_bytes=8, compile_s=0.5)
        measured = runner.submit(FASTEST, build, best_s=1e-9)
        assert measured.done()
        assert measured.result() == Measurement(TrialState.OK, "", (0.25, 0.5), 0.25, 0.125)


def test_the_order_of_the_parameters_does_not_matter(dataset):
    assert ReplayBuilder(dataset).submit(dict(reversed(FASTEST.items()))).result().state == TrialState.OK


def test_failures_are_replayed_where_they_happened(dataset):
    builder, runner = ReplayBuilder(dataset), ReplayRunner(dataset)
    late = builder.submit(LATE_BUILD).result()
    assert (late.state, late.detail, late.compile_s) == (TrialState.TIMEOUT, "the compiler was late", 60.0)
    with pytest.raises(DatasetError, match="has no build in state ok"):
        runner.submit(LATE_BUILD, late)
    build = builder.submit(LATE_RUN).result()
    assert (build.state, build.detail) == (TrialState.OK, "")
    assert runner.submit(LATE_RUN, build).result() == Measurement(TrialState.TIMEOUT, "the kernel was late")
    wrong = runner.submit(WRONG, builder.submit(WRONG).result()).result()
    assert wrong == Measurement(TrialState.WRONG_RESULT, "far off", error=float("inf"), verify_s=0.5)


def test_what_was_not_recorded_cannot_be_had(dataset):
    for configuration in ({"BLK_M": 48, "UNROLL": 1}, {"BLK_M": 16}, {}):
        with pytest.raises(DatasetError, match="is not recorded in dataset recorded"):
            ReplayBuilder(dataset).submit(configuration)
        with pytest.raises(DatasetError, match="is not recorded in dataset recorded"):
            ReplayRunner(dataset).submit(configuration, Build(TrialState.OK))


def test_replay_satisfies_the_protocols(dataset):
    builder: Builder = ReplayBuilder(dataset)
    runner: Runner = ReplayRunner(dataset)
    with builder as entered, runner as running:
        assert entered is builder
        assert running is runner


def test_an_answer_takes_microseconds(dataset):
    builder, runner = ReplayBuilder(dataset), ReplayRunner(dataset)
    configurations = [{"BLK_M": 16, "UNROLL": unroll} for unroll in range(1, 1000)]
    with at_most_cpu_s(len(configurations) * 5e-3):
        for configuration in configurations:
            runner.submit(configuration, builder.submit(configuration).result()).result()


class TestReplayBuilder(BuilderContract):
    @pytest.fixture(autouse=True)
    def of_dataset(self, dataset):
        self.dataset = dataset

    def make(self):
        return ReplayBuilder(self.dataset)

    def sound(self):
        return [FASTEST, LATE_RUN, WRONG]

    def broken(self):
        return [LATE_BUILD]


class TestReplayRunner(RunnerContract):
    @pytest.fixture(autouse=True)
    def of_dataset(self, dataset):
        self.dataset = dataset

    def make(self):
        return ReplayRunner(self.dataset)

    def builds(self):
        return [({"BLK_M": 16, "UNROLL": unroll}, Build(TrialState.OK)) for unroll in range(1, 4)]

    def failing(self):
        return [(LATE_RUN, Build(TrialState.OK)), (WRONG, Build(TrialState.OK))]
