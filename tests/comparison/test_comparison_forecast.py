"""The forecast of a comparison: from a table first, then from runs."""

import numpy as np
import pytest

from mltune.comparison.jobs import OWN_S, UNKNOWN_S, Forecast
from mltune.comparison.journal import Job, Outcome
from mltune.comparison.simulation import BUILD, Trace
from mltune.comparison.strategies import OURS, PEERS


def ended(job: Job, own_s: float) -> Outcome:
    return Outcome(job, Trace(np.array([(0, True, 0, own_s / 2, 1.0), (1, True, 1, own_s / 2, 1.0)], BUILD)))


def test_runs_replace_the_table_and_runs_on_the_same_dataset_those_on_others() -> None:
    jobs = [Job("tpe", "a", 0), Job("tpe", "b", 0), Job("kernel_tuner:pso", "a", 0)]
    unknown = 100 * UNKNOWN_S
    assert Forecast(100, 2, jobs).left_s == pytest.approx((2 * 100 * OWN_S["tpe"] + unknown) / 2)
    known = [ended(Job("tpe", "a", 1), 10.0), ended(Job("tpe", "b", 1), 20.0)]
    forecast = Forecast(100, 2, jobs, known)
    assert forecast.left_s == pytest.approx((10 + 20 + unknown) / 2)
    assert Forecast(100, 2, [Job("tpe", "c", 0)], known).left_s == pytest.approx(15 / 2)
    forecast.ended(ended(Job("tpe", "a", 0), 14.0))
    assert forecast.left_s == pytest.approx((20 + unknown) / 2)


def test_the_table_names_strategies() -> None:
    assert OWN_S.keys() <= OURS.keys() | PEERS.keys()
    assert OWN_S.keys() >= OURS.keys()
