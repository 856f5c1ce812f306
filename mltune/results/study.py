"""A run as an Optuna study, for ``optuna.visualization``, optuna-dashboard and whatever else reads studies."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from mltune.device.facts import Device
from mltune.problem.problem import Problem
from mltune.records.events import LONGEST_TEXT
from mltune.records.header import RunHeader
from mltune.records.trial import GATES, TrialRecord, TrialState
from mltune.results.rating import rate_of


@dataclass
class StudyMirror:
    """A run as an Optuna study: the same trials, with their states, values and facts.

    Trials that succeeded are complete, with their rate or time as value (:func:`mltune.results.rating.rate_of`);
    skipped trials are pruned, with the predicted value; all others failed. Further facts of a trial are user
    attributes.
    """

    header: RunHeader
    problem: Problem
    device: Device
    reference_s: float | None
    predicted_s: Callable[[Any], Any]

    def __post_init__(self) -> None:
        self._rate = rate_of(self.problem, self.device)
        labels, parameters = self.header.labels, self.header.parameters
        self._distributions = {
            name: CategoricalDistribution(labels.get(name, values)) for name, values in parameters.items()
        }

    def study(self, records: Iterable[TrialRecord], storage: BaseStorage | str | None, name: str) -> Study:
        """Return the study of the run in a storage or in memory, with the trials that it did not have yet."""
        with _quiet():
            names = optuna.get_all_study_names(storage) if storage is not None else []
            study = (
                optuna.load_study(study_name=name, storage=storage) if name in names else self.new_study(storage, name)
            )
        present = {trial.user_attrs.get("trial") for trial in study.get_trials(deepcopy=False)}
        study.add_trials([self.trial(record) for record in records if record.number not in present])
        return study

    def new_study(self, storage: BaseStorage | str | None, name: str) -> Study:
        """Return a study without trials, with what it says of the run."""
        rate = self._rate
        direction = "maximize" if rate.unit.higher_is_better else "minimize"
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([rate.unit.name])
        attributes = {
            "kernel": self.header.kernel,
            "problem": self.problem.label,
            "device": self.device.name,
            f"peak_{rate.unit.key}": None if rate.peak is None else rate.peak / rate.unit.size,
            f"reference_{rate.unit.key}": rate.of(self.reference_s) if self.reference_s else None,
        }
        for attribute, value in _known(attributes).items():
            study.set_user_attr(attribute, value)
        return study

    def trial(self, record: TrialRecord) -> FrozenTrial:
        """Translate one trial."""
        skip, measured = record.skip, record.measurement
        ok = record.state is TrialState.OK and record.median_s is not None
        pruned = record.state is TrialState.SKIPPED
        trial = create_trial(
            state=OptunaState.COMPLETE if ok else OptunaState.PRUNED if pruned else OptunaState.FAIL,
            value=self._rate.of(record.median_s) if ok else None,
            params=self.header.labelled(record.configuration),
            distributions=self._distributions,
            user_attrs=self._attributes(record),
            intermediate_values={GATES.index(skip.gate): self._predicted(skip.predicted)} if skip and pruned else None,
        )
        # By the clock of the run: that of the host may have been set in between.
        ended = self.header.created_at + record.elapsed_s
        took = record.build.compile_s if record.build else 0.0
        took += measured.verify_s + measured.time_s if measured else 0.0
        zone = trial.datetime_start.tzinfo if trial.datetime_start else None
        trial.datetime_start = datetime.fromtimestamp(ended - took, zone)
        trial.datetime_complete = datetime.fromtimestamp(ended, zone)
        return trial

    def _predicted(self, log_share: float) -> Any:
        """Return the objective that a predicted log share of the peak corresponds to."""
        return self._rate.of(self.predicted_s(log_share))

    def _attributes(self, record: TrialRecord) -> dict[str, Any]:
        build, measured, skip = record.build, record.measurement, record.skip
        unit = self._rate.unit.key
        attributes: dict[str, Any] = {
            "trial": record.number,
            "state": str(record.state),
            "detail": record.detail[:LONGEST_TEXT] or None,
            "proposed_by": record.proposed_by or None,
            f"predicted_{unit}": None if record.predicted is None else self._predicted(record.predicted),
        }
        if skip is not None:
            predicted = self._predicted(skip.predicted)
            attributes |= {"gate": skip.gate, f"gate_{unit}": predicted, "audited": record.audited}
        if build is not None:
            attributes |= {"registers": build.registers, "spill_bytes": build.spill_bytes, "compile_s": build.compile_s}
        if measured is not None and measured.median_s is not None:
            attributes |= {
                "median_ms": 1e3 * measured.median_s,
                "share_of_peak": self._rate.share_of_peak(measured.median_s),
                "noise": measured.noise,
                "sm_clock_mhz": None if measured.sm_clock_hz is None else measured.sm_clock_hz / 1e6,
                "temperature_c": measured.temperature_c,
                "power_w": measured.power_w,
            }
        return _known(attributes)


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are known and that JSON can hold."""
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
