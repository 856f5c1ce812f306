"""The pipeline: which candidates are measured, and what is on record of the others."""

from concurrent.futures import Future

import pytest

from mltune.measure.pipeline import EQUAL_CODE, Pipeline
from mltune.records.trial import Build, Candidate, Measurement, TrialState


class Answers:
    """A builder and a runner that answer at once: machine code by the remainder of the index, times by the turn."""

    def __init__(self, state):
        self.state = state
        self.measured = 0

    def submit(self, configuration, build=None, *, best_s=None):
        future = Future()
        if build is None:
            future.set_result(Build(TrialState.OK, cubin=bytes([configuration["N"] % 3])))
        else:
            self.measured += 1
            ok = self.state is TrialState.OK
            future.set_result(
                Measurement(self.state, "" if ok else "so", median_s=1e-3 * self.measured if ok else None)
            )
        return future


@pytest.mark.parametrize(
    ("state", "times"),
    [(TrialState.OK, 3), (TrialState.WRONG_RESULT, 3), (TrialState.UNSTABLE, 7), (TrialState.CRASHED, 7)],
)
def test_equal_machine_code_is_measured_once_where_a_second_time_would_end_so_again(state, times):
    answers = Answers(state)
    pipeline = Pipeline(answers, answers, identify=lambda candidate, build: build.cubin)
    records = []
    for number in range(7):
        pipeline.submit(Candidate(number, 0, number, {"N": number}, "random"))
        records += pipeline.advance()
    assert answers.measured == times
    assert [record.state for record in records] == [state] * 7
    if times == 3:
        assert [record.median_s for record in records] == [record.median_s for record in records[:3]] * 2 + [
            records[0].median_s
        ]
        assert all(record.detail.endswith(f"{EQUAL_CODE} {record.number % 3}") for record in records[3:])
        assert records[6].measurement.verify_s == 0.0
