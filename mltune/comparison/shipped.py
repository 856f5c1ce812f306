"""The search of ``mltune tune`` as a strategy, with a simulated builder and runner."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mltune.records.candidate import Candidate
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState

if TYPE_CHECKING:
    from mltune.comparison.simulation import Simulation
    from mltune.cost.features import Features
    from mltune.cost.pretrained import PretrainedModel
    from mltune.search.search import Batch, Search


@dataclass(frozen=True, slots=True)
class ShippedSearch:
    """:class:`mltune.search.search.Search`, by default with the batches of a run on a GPU.

    Attributes
    ----------
    batch : int
        Proposals of a batch.
    in_flight : int
        Most batches in flight (:func:`mltune.search.search.gradually`): the search learns the results of a batch only
        when so many have been planned.
    proposer : str
        One of :data:`mltune.records.candidate.SEARCHES`.
    skip : bool
        Whether gates skip.
    build : bool
        Whether the compiler's reports are used. Without them there is no gate after compiling.
    resources : bool
        Whether features are derived from the bundle's resources and accesses; otherwise they are the raw parameters.
    pretrained : PretrainedModel or None
        A model that has not seen the recording.
    """

    name: str = "mltune"
    batch: int = 16
    in_flight: int = 3
    proposer: str = "model"
    skip: bool = True
    build: bool = True
    resources: bool = True
    pretrained: PretrainedModel | None = None

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search as the tuner does; see :class:`mltune.comparison.simulation.Strategy`."""
        from mltune.search.search import Search, gradually

        search = Search(
            simulation.space,
            self._features(simulation),
            search=self.proposer,
            seed=seed,
            pretrained=self.pretrained,
            batch=self.batch,
            in_flight=gradually(self.in_flight),
            skip=self.skip,
            stop=False,
        )
        measuring = _Measuring(simulation, search, after_compile=self.build)
        in_flight: deque[tuple[Batch, list[TrialRecord]]] = deque()
        simulation.begin()
        while True:
            while not search.waits and (batch := search.ask()).candidates:
                in_flight.append((batch, measuring.results(batch.candidates)))
            if not in_flight:
                return
            search.tell(*in_flight.popleft())

    def _features(self, simulation: Simulation) -> Features:
        from mltune.cost.features import Features

        recording = simulation.recording
        kernel = recording.kernel if self.resources else replace(recording.kernel, resources={}, accesses={})
        return Features(kernel, recording.problem, recording.device)


class _Measuring:
    """The simulated builder and runner: results of candidates from a recording."""

    def __init__(self, simulation: Simulation, search: Search, *, after_compile: bool) -> None:
        self._simulation = simulation
        self._search = search
        self._reports = {name: column.tolist() for name, column in simulation.recording.builds.items()}
        self._after_compile = after_compile and bool(self._reports)

    def results(self, candidates: Sequence[Candidate]) -> list[TrialRecord]:
        """Build and measure candidates, except those that a gate skips."""
        if self._after_compile:
            built = [(one, self._build(one.index)) for one in candidates if not one.is_skipped]
            decided = {one.number: one for one in self._search.decide(built)} if built else {}
            candidates = [decided.get(one.number, one) for one in candidates]
        return [self._result(one) for one in candidates]

    def _result(self, candidate: Candidate) -> TrialRecord:
        simulation, index = self._simulation, candidate.index
        if candidate.is_skipped:
            assert candidate.skip is not None  # noqa: S101 - that is why it is skipped
            simulation.skip(index, after_compile=candidate.skip.gate == "after_compile")
            return candidate.record(TrialState.SKIPPED)
        median_s = simulation.evaluate(index)
        state = TrialState.LAUNCH_ERROR if median_s is None else TrialState.OK
        measurement = Measurement(state, median_s=median_s, time_s=float(simulation.recording.run_s[index]))
        return candidate.record(state, build=self._build(index), measurement=measurement)

    def _build(self, index: int) -> Build:
        values = {name: column[index] for name, column in self._reports.items()}
        known: dict[str, Any] = {name: None if math.isnan(value) else int(value) for name, value in values.items()}
        return Build(TrialState.OK, compile_s=float(self._simulation.recording.compile_s[index]), **known)
