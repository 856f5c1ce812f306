"""The search, with an ask-and-tell interface: everything that decides which configurations are measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from mltune.cost.encoding import Source, physical
from mltune.cost.features import Features
from mltune.cost.pretrained import PretrainedModel
from mltune.cost.regressors import log_share
from mltune.device.peaks import peak_flops
from mltune.errors import DeviceError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import row
from mltune.kernel.space import SearchSpace, find, find_near
from mltune.records.distinct import DistinctCount
from mltune.records.facts import Plan, Stopping, Whole
from mltune.records.trial import BATCH, SEARCHES, Build, Candidate, TrialRecord
from mltune.records.trials import Trials
from mltune.search.astra import AstraThresholds
from mltune.search.flow import Flow
from mltune.search.gates import EXPLORING, MINIMUM, Gates
from mltune.search.history import History, Results
from mltune.search.planning import BatchPlanner, Proposal
from mltune.search.proposers import Proposer, RandomProposer
from mltune.search.stopping import ENOUGH, little_gained
from mltune.search.whole import LARGEST, WholeSpace

SOME = 1000
"""Random configurations: physics predicts shares of the speed of the fastest among them."""

BEGUN, UNDECIDED = Stopping(), Whole()
"""The state of the stopping rule, and the decision whether everything is measured, at the beginning of a search."""

ALONE = 3
"""Batches that are planned with one in flight, then with two, and so on: see :func:`gradually`."""


def gradually(most: int) -> Callable[[int], int]:
    """Return a rule for the batches in flight: one at first, so that early results are used at once, later more.

    Examples
    --------
    >>> [gradually(3)(number) for number in range(10)]
    [1, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    """
    return lambda number: min(most, 1 + number // ALONE)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Candidates that were planned together, and the gate that decides after compiling, if one does."""

    plan: Plan
    candidates: Sequence[Candidate]
    gates: Gates | None


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How a :class:`KernelSearch` goes.

    Attributes
    ----------
    search : str
        One of :data:`mltune.records.trial.SEARCHES`.
    seed : int
    batch : int
        Proposals of a batch.
    adapts : bool
        Whether the sizes of batches, and how many are in flight, follow from the seconds of the trials so far:
        :class:`mltune.search.flow.Flow`. At most ``batch`` are proposed before any result.
    in_flight : callable
        Where it does not adapt, most batches in flight once a batch is planned, itself among them, by the number of
        that batch; such as :func:`gradually`. The caller asks only while not :attr:`KernelSearch.waits`.
    skip : bool
        Whether the gates skip: most proposals before they are compiled, and what is predicted to be slow after it.
    stop : bool
        Whether a search by ``"model"`` ends when it has gained little for long
        (:func:`mltune.search.stopping.little_gained`).
    enough : float
        The search ends once the best reaches this log share of the device's peak.
    compilers : float
        Number of parallel builds. The gate after compiling is used only while builds wait for the runner.
    trials : int, optional
        Most trials of the run.
    time_s : float, optional
        Seconds of the run, by which a whole space must be measured if it is to be.
    """

    search: str = "model"
    seed: int = 0
    batch: int = BATCH
    adapts: bool = False
    in_flight: Callable[[int], int] = lambda number: 1
    skip: bool = True
    stop: bool = True
    enough: float = math.inf
    compilers: float = math.inf
    trials: int | None = None
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What a :class:`KernelSearch` knows before anything is measured.

    Attributes
    ----------
    default : mapping of str to int, optional
        A configuration that is proposed early, and that no gate skips, if the space contains it.
    fast : sequence of mapping of str to int
        Configurations that are known to be fast, such as those of a wisdom, the best first: one is proposed before the
        default, the others after it; no gate skips them.
    pretrained : PretrainedModel, optional
        A model of the kernel, trained on recorded sweeps.
    """

    default: Mapping[str, int] | None = None
    fast: Sequence[Mapping[str, int]] = ()
    pretrained: PretrainedModel | None = None


@dataclass(eq=False)
class KernelSearch:
    """Propose configurations, decide which to skip, and learn from the results.

    A batch is planned from all results reported before, and from the configurations under way, which are assumed to
    turn out as predicted; several batches may be in flight. Proposals depend only on the constructor's arguments, on
    the results, and on their order.

    Parameters
    ----------
    space : SearchSpace
    features : Features
        Features of the kernel, the problem and the device.
    settings : SearchSettings
    start : Start
    scored, skipped : DistinctCount, optional
        Count the configurations whose speed is predicted to choose what is proposed, and those that are proposed and
        not compiled.

    Raises
    ------
    ValueError
        There is no such search.
    BundleError
        ``search`` is ``"astra"`` and the kernel's bundle lacks the resources that its thresholds need.

    Examples
    --------
    >>> from mltune.dataset.dataset import load_dataset
    >>> from mltune.kernel.placed import PlacedKernel
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.kernel.space import TableSpace
    >>> from mltune.cost.features import Features
    >>> from mltune.records.trial import Measurement, TrialState
    >>> data = load_dataset("convolution_rtx_a4000")
    >>> placed = PlacedKernel(load_kernel("convolution"), data.manifest.problem, data.manifest.device)
    >>> search = KernelSearch(TableSpace(data.columns), Features(placed), SearchSettings(batch=4))
    >>> for _ in range(3):
    ...     candidates = search.ask()
    ...     times_s = [data.numbers("median_s")[candidate.index] for candidate in candidates]
    ...     measured = [Measurement(TrialState.OK, median_s=time_s) for time_s in times_s]
    ...     pairs = zip(candidates, measured)
    ...     search.tell([candidate.record(TrialState.OK, measurement=result) for candidate, result in pairs])
    >>> [candidate.proposed_by for candidate in candidates]
    ['model', 'model', 'model', 'model']
    >>> search.verdict
    ''
    """

    space: SearchSpace
    features: Features
    settings: SearchSettings = SearchSettings()
    start: Start = Start()
    _: KW_ONLY
    scored: DistinctCount | None = None
    skipped: DistinctCount | None = None

    def __post_init__(self) -> None:
        space, features, settings, start = self.space, self.features, self.settings, self.start
        self._stops = settings.stop and settings.search == "model"  # the promise of the rule was measured with this one
        kernel, proposer = features.placed.kernel, _proposer(settings.search, space, features)
        model = start.pretrained if proposer is None else None
        near = [
            find_near(space, kernel.compiler.completed(configuration))
            for configuration in (model.elsewhere if model and not start.fast else ())
        ]
        self._planner = BatchPlanner(
            space,
            _sources(space, features, start.pretrained),
            seed=settings.seed,
            proposer=proposer,
            first=_first(kernel, space, start, model.first if model else ()),
            elsewhere=[index for index in near if index >= 0],
            varied={name: kernel.compiler.parameters[name] for name in kernel.compiler.varied},
            scored=self.scored or DistinctCount(),
            skipped=self.skipped or DistinctCount(),
        )
        self._peak_flops = _peak_flops(features)
        self.stopping = BEGUN
        self.whole = UNDECIDED
        self._whole_space: WholeSpace | None = None
        if self._stops and settings.adapts and math.isfinite(settings.compilers) and space.count <= LARGEST:
            self._whole_space = WholeSpace(space, kernel, settings.compilers, settings.trials, settings.time_s)
        self._results = Results()
        self._gates = Gates(features, self._results, space, settings.seed)
        self._open: dict[int, _Batch] = {}
        self._running: dict[int, Candidate] = {}
        design = self._planner.options.start_trials
        self._flow = Flow(settings.adapts, settings.batch, settings.in_flight, settings.compilers, design)
        self._next = 0
        self._planned = 0
        self._taken: set[int] = set()

    @property
    def waits(self) -> bool:
        """Whether the next batch must be planned from more results than are reported."""
        running, results = len(self._running), self._results
        return running >= self._flow.next(self._next, running, results.told, results.pace, self.whole)[1]

    @property
    def fits_trees(self) -> bool:
        """Whether the gates may be fitted for the next batch, so that their modules are needed."""
        return self.settings.skip and self._results.told + len(self._running) >= MINIMUM

    @property
    def fits_processes(self) -> bool:
        """Whether a Gaussian process may be fitted for the next batch, so that its modules are needed."""
        return self._results.told >= self._planner.options.start_trials

    @property
    def plans(self) -> list[Plan]:
        """The plans of the batches in flight."""
        return [batch.plan for batch in self._open.values()]

    def resume(
        self, trials: Trials, plans: Sequence[Plan] = (), stopping: Stopping = BEGUN, whole: Whole = UNDECIDED
    ) -> list[Candidate]:
        """Continue a run from its trials, before the first :meth:`ask`.

        What was under way is planned again, from the same results as before. Without a plan on record, as in runs of
        earlier versions, later batches fill the gaps.

        Parameters
        ----------
        trials : Trials
            In the order in which they ended.
        plans : sequence of Plan
            Those on record, at least of the batches in flight.
        stopping : Stopping
            State of the stopping rule on record: the attribute ``stopping``.
        whole : Whole
            What is on record of measuring everything: the attribute ``whole``.

        Returns
        -------
        list of Candidate
            Those that were under way.
        """
        if self.settings.stop and stopping.reason != ENOUGH:  # there may be another goal now
            self.stopping = stopping
        self.whole = whole
        numbers, indices = trials.column("number"), trials.column("index")
        taken, tried, told = {*numbers.tolist()}, {*indices.tolist()}, 0
        for plan in {plan.batch: plan for plan in plans}.values():
            missing = [number for number in plan.numbers if number not in taken]
            if not missing:
                continue
            self._learn(trials[told : plan.known])
            told = max(told, plan.known)
            later = told + np.flatnonzero(numbers[told:] < plan.first)  # under way then
            running = [*zip(numbers[later].tolist(), indices[later].tolist(), strict=True)]
            running += [(number, candidate.index) for number, candidate in self._running.items()]
            _, gates, proposals = self._plan(plan.batch, [index for _, index in sorted(running)])
            self._begin(plan, missing, [proposal for proposal in proposals if proposal.index not in tried], gates)
        self._learn(trials[told:])
        self._next = len({*trials.column("batch").tolist()} | {plan.batch for plan in plans})
        taken |= {*self._running}
        self._planned = next(number for number in itertools.count() if number not in taken)
        self._taken = {number for number in taken if number > self._planned}
        return [*self._running.values()]

    def ask(self, count: int | None = None) -> list[Candidate]:
        """Plan the next batch: what is compiled of the proposals.

        Parameters
        ----------
        count : int, optional
            Most candidates; by default those of a whole batch. A shorter batch must be the last one.

        Returns
        -------
        list of Candidate
            Empty when the search has ended: :meth:`verdict` says why.
        """
        if self.verdict:
            return []
        self._consider_everything()
        batch, everything = self._next, self.whole.covers(self._next)
        history, gates, proposals = self._plan(batch, self._under_way)
        if reason := self._reason_to_end(history, everything):
            return self._ended(reason)
        if not proposals:
            if everything and self._whole_space is not None:
                return self._ended(f"all {self._whole_space.count:,} configurations were measured")
            remaining = self.space.count - len(history.tried)
            fact = f"all {self.space.count:,} configurations are on record"
            if remaining:
                fact = (
                    f"{remaining:,} configurations are not on record, with other compiler parameters than the fastest"
                )
            return self._ended(f"nothing is left to try: {fact}")
        free = (number for number in itertools.count(self._planned) if number not in self._taken)
        numbers = list(itertools.islice(free, len(proposals)))
        plan = Plan(batch=batch, known=self._results.told, first=numbers[0], size=len(numbers))
        self._next, self._planned = batch + 1, numbers[-1] + 1
        return self._begin(plan, numbers[:count], proposals, gates)

    def _consider_everything(self) -> None:
        """Decide whether the next batch is one of those that measure everything."""
        if self._whole_space is not None and self._next:
            history = self._results.history(self._under_way)
            self.whole = self._whole_space.decide(self.whole, self._next, history, self._results)

    def _ended(self, reason: str) -> list[Candidate]:
        self.stopping = Stopping(reason=reason, batch=self._next - 1)
        return []

    def _plan(self, batch: int, running: Sequence[int]) -> tuple[History, Gates, list[Proposal]]:
        """Return what is known, the gates that follow from it, and the proposals of a batch."""
        size, _ = self._flow.next(batch, len(running), self._results.told, self._results.pace, self.whole)
        history = self._results.history(running)
        skips = self.settings.skip and not self.whole.covers(batch)
        gates = self._gates = self._gates.following(history if skips else None)
        return history, gates, self._planner.plan(history, batch, size, gates)

    def _begin(
        self, plan: Plan, numbers: Sequence[int], proposals: Sequence[Proposal], gates: Gates
    ) -> list[Candidate]:
        """Return the candidates of a batch, which are under way from now on."""
        columns = self.space.rows(np.array([proposal.index for proposal in proposals], dtype=np.int64))
        candidates = [
            Candidate(
                number,
                plan.batch,
                proposal.index,
                row(columns, at),
                proposal.proposed_by,
                proposal.predicted,
                proposal.audited,
                proposal.audited is not None,
            )
            for at, (number, proposal) in enumerate(zip(numbers, proposals, strict=False))
        ]
        used = self.settings.skip and self._results.is_bound_by_runner(self.settings.compilers)
        self._open[plan.batch] = _Batch(plan, candidates, gates if used else None)
        self._running |= {candidate.number: candidate for candidate in candidates}
        return candidates

    def decide(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Return candidates of batches in flight, each with a build in state ``OK``, with the decisions of the gate."""
        decided: dict[int, Candidate] = {}
        for number in dict.fromkeys(candidate.batch for candidate, _ in built):
            gates = self._open[number].gates
            if gates is None:
                continue
            candidates, builds = zip(*(pair for pair in built if pair[0].batch == number), strict=True)
            columns = self.space.rows(np.array([candidate.index for candidate in candidates]))
            exempt = np.array([candidate.audited or candidate.proposed_by in EXPLORING for candidate in candidates])
            decisions = gates.decide(columns, [candidate.number for candidate in candidates], exempt, builds)
            decided |= {
                candidate.number: replace(candidate, skip=skip, audited=bool(drawn))
                for candidate, skip, drawn in zip(candidates, *decisions, strict=True)
                if skip is not None
            }
        return [decided.get(candidate.number, candidate) for candidate, _ in built]

    def tell(self, records: Iterable[TrialRecord]) -> None:
        """Report the results of candidates, in the order in which they ended."""
        trials = Trials.from_records(records, self.space.names)
        self._learn(trials)
        for number in trials.column("number").tolist():
            del self._running[number]
        self._open = {
            number: batch
            for number, batch in self._open.items()
            if any(candidate.number in self._running for candidate in batch.candidates)
        }

    @property
    def verdict(self) -> str:
        """Why no further batch is planned; an empty string while the search continues."""
        return self.stopping.reason if self._next > self.stopping.batch else ""

    def _learn(self, trials: Trials) -> None:
        """Learn the log shares of the device's peak of trials, NaN where no valid time was measured."""
        flops = self.features.placed.problem.flops
        times_s = np.where(trials.timed, trials.column("median_s"), math.nan)
        scores = [log_share(flops, time_s, self._peak_flops) for time_s in times_s.tolist()]
        self._results.learn(trials, np.array(scores, dtype=np.float64))

    @property
    def _under_way(self) -> list[int]:
        return [candidate.index for candidate in self._running.values()]

    def _reason_to_end(self, history: History, everything: bool) -> str:
        if self._results.best >= self.settings.enough:
            return ENOUGH
        ends = self._stops and not everything
        return little_gained(history.scores, self.space.count, self._planner.hopes) if ends else ""


def _sources(space: SearchSpace, features: Features, pretrained: PretrainedModel | None) -> list[Source]:
    """Return the sources of knowledge before anything is measured."""
    sources = []
    if features.has_prior and features.placed.kernel.resources.guides:
        sample = space.sample(SOME, np.random.default_rng(0))
        sources.append(physical(features.prior, space.rows(sample)))
    if pretrained is not None:
        source, kernel = pretrained.source, features.placed.kernel
        sources.append(
            replace(source, expected=lambda columns: source.expected(kernel.compiler.with_defaults(columns)))
        )
    return sources


def _proposer(search: str, space: SearchSpace, features: Features) -> Proposer | None:
    """Return the proposer of a search; None for the default of the sampler."""
    if search == "model":
        return None
    if search == "tpe":
        from mltune.search.tpe import TpeProposer  # Optuna is imported where it is used

        return TpeProposer(space)
    if search == "random":
        return RandomProposer(space)
    if search == "astra":
        return RandomProposer(space, AstraThresholds(features).keeps)
    raise ValueError(f"{search!r} is no search: it is one of {', '.join(SEARCHES)}")


def _first(
    kernel: Kernel,
    space: SearchSpace,
    start: Start,
    remembered: Sequence[Mapping[str, int]],
) -> dict[int, str]:
    """Return the indices of the configurations that are proposed first, and their sources.

    The best of the wisdom comes before the default: where measurements take long, there may be time for one only. Those
    of a pretrained model come last, fewer where a wisdom has some. They may be of another problem: near ones replace
    those that are not valid for this one.
    """
    best, following, unplaced = start.fast[:1], start.fast[1:], remembered[len(start.fast) :]
    first: dict[int, str] = {}
    groups = (("wisdom", best), ("default", [start.default]), ("wisdom", following), ("start", unplaced))
    for source, configurations in groups:
        for configuration in filter(None, configurations):
            search = find_near if source == "start" else find
            first.setdefault(search(space, kernel.compiler.completed(configuration)), source)
    first.pop(-1, None)  # outside the space
    return first


def _peak_flops(features: Features) -> float:
    """Return the peak of the device; if it is unknown, a value with which scores are logarithms of 1 / time."""
    try:
        return peak_flops(features.placed.device, features.placed.problem.arithmetic)
    except DeviceError:
        return float(max(features.placed.problem.flops, 1))
