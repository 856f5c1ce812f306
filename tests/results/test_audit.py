"""The audit of skips agrees with counts by hand."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.results.funnel import audit_skips, mean_seconds, pooled

COMPILE_S = 0.5
TIME_S = 0.02


def trial(number, batch, median_s=None, *, gate=None, audited=False, state=None, time_s=TIME_S):
    """Return a trial: measured in ``median_s`` seconds, skipped by a gate, or both if audited."""
    skipped = gate is not None and not audited
    state = state or (TrialState.SKIPPED if skipped else TrialState.OK)
    return TrialRecord(
        number,
        batch,
        number,
        {"P": number},
        state,
        skip=None if gate is None else Skip(gate, -2.0, -1.5),
        audited=audited,
        build=None if skipped and gate == "before_compile" else Build(TrialState.OK, compile_s=COMPILE_S),
        measurement=None if skipped else Measurement(state, median_s=median_s, verify_s=0.01, time_s=time_s),
    )


def audit_of(records, before=0):
    return audit_skips(Trials.from_records(records, ["P"]), before)


def test_a_false_skip_is_faster_than_everything_in_earlier_batches():
    records = [
        trial(0, 0, 1.0),
        trial(1, 1, 0.9, gate="after_compile", audited=True),  # faster than 1.0: false
        trial(2, 1, 0.5),
        trial(3, 1, 0.95, gate="after_compile", audited=True),  # so is this: 0.5 was not known when it was judged
        trial(4, 2, 0.6, gate="before_compile", audited=True),  # slower than 0.5: right
        trial(5, 2, gate="before_compile", audited=True, state=TrialState.CRASHED),  # right
    ]
    audit = audit_of(records)
    assert (audit.audited, audit.false, audit.false_share, audit.skipped) == (4, 2, 0.5, 0)
    assert audit_of(records[::-1]) == audit


def test_a_skipped_configuration_would_have_taken_the_mean_seconds_of_the_audited():
    records = [
        *(trial(number, 0, 1.0, time_s=0.09) for number in range(5)),
        *(trial(number, 1, gate="before_compile") for number in range(5, 9)),
        *(trial(number, 1, gate="after_compile") for number in range(9, 15)),
        trial(15, 1, 2.0, gate="after_compile", audited=True, time_s=0.01),
    ]
    audit = audit_of(records, before=4)
    assert (audit.skipped, audit.before_compile, audit.after_compile) == (10, 4, 6)
    assert mean_seconds(Trials.from_records(records, ["P"])) == pytest.approx((COMPILE_S, 0.02))
    assert mean_seconds(Trials.from_records(records[:-1], ["P"])) == pytest.approx((COMPILE_S, 0.1))
    without = audit_of(records[:-1])
    assert (without.false_share, without.false_share_at_most) == (None, 1.0)


def test_a_run_without_skips_says_so():
    audit = audit_of([trial(0, 0, 1.0)])
    assert (audit.skipped, audit.audited) == (0, 0)
    assert json.loads(json.dumps(audit.to_json()))["false_share"] is None


@settings(deadline=None)  # the first example imports scipy.stats
@given(st.integers(1, 60), st.data())
def test_the_bound_is_the_largest_share_that_the_audit_does_not_rule_out(audited, data):
    false = data.draw(st.integers(0, audited))
    times = [0.5] * false + [2.0] * (audited - false)
    records = [trial(0, 0, 1.0)]
    records += [trial(1 + at, 1, median, gate="after_compile", audited=True) for at, median in enumerate(times)]
    bound = audit_of(records).false_share_at_most
    assert false / audited <= bound <= 1.0
    if false < audited:
        assert binom.cdf(false, audited, bound) == pytest.approx(0.05, abs=1e-6)


def test_the_audits_of_several_runs_are_pooled():
    one = audit_of([trial(0, 0, 1.0), *(trial(at, 1, 2.0, gate="after_compile", audited=True) for at in range(1, 4))])
    other = audit_of(
        [trial(0, 0, 1.0), trial(1, 1, 0.5, gate="after_compile", audited=True), trial(2, 1, gate="before_compile")],
        before=1,
    )
    both = pooled([one, other])
    assert (both.audited, both.false, both.false_share, both.skipped) == (4, 1, 0.25, 1)
    assert binom.cdf(1, 4, both.false_share_at_most) == pytest.approx(0.05)
    assert pooled([]).false_share_at_most == 1.0
