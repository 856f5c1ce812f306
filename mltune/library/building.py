"""The building of a library from tunes: candidates, their times at sizes within a time, and the choice among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mltune.errors import BundleError, DeviceError, RunError
from mltune.files.atomic import write_file_atomically
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, Floats, columns_of, row
from mltune.kernel.placed import PlacedKernel
from mltune.library.candidate import LibraryCandidate, with_own_code
from mltune.library.content import (
    Configuration,
    Content,
    alignment_of,
    configuration_of,
    is_valid_at_all_sizes,
    kernel_parameters,
    name_of,
    tiles_at,
)
from mltune.library.dispatcher import expected
from mltune.library.measured import Chosen, Measured, choose
from mltune.library.portfolio import MOST_THAT_PAY, choose_portfolio, shares
from mltune.library.spec import Spec, representatives
from mltune.library.times import CROSS, coded, read_times
from mltune.problem.problem import RunnableProblem
from mltune.records.trial import Build, TrialState
from mltune.records.versions import __version__
from mltune.results.run import TuneResult

FEW, MANY = 3, 5
"""Candidates from each tuned size: without a limit of time, and the most where the time decides."""

_MOST_LOOKED_AT = 1000

# A size costs as much as 10 timings for each kernel, for operands, reference and opponent, and one for each candidate.
# What a timing takes is measured (5.6 to 9 ms on an H200); until then, and for the plan, 6 ms, with 140 at a size.
# The time is shared out by what the dispatcher needs: the portfolio at every size. What is promising at each size makes
# room for that, but it has at least half of what the first times leave.
_OF_SIZE, _AT_SIZE, _EACH_S = 10, 140, 6e-3
_BUILT_UNTIL, _FIRST_UNTIL, _LEARNT_UNTIL, _ADDED_UNTIL, _CROSSED_SHARE, _CHOSEN_UNTIL = 0.3, 0.4, 0.6, 0.7, 0.5, 0.92
_LAST_SHARE, _LAST_S = 0.05, 5.0  # kept for the choice and the compiler of C
_LEAST_S = 5.0  # so long candidates are timed, however long the tunes took
_FEWEST = 20  # candidates; rather are some sizes left out
_SAVE_EVERY_S = 2.0
_FAR = 2.5  # times longer than expected from other sizes
_NEARLY, _FINAL_TIMINGS = 1.03, 3  # times the fastest of a portfolio, and further timings of what is as fast
_FORESEEN_AT, _FORESEEN = 160, 2  # sizes for which a model of the tunes proposes candidates, and how many for each

# A candidate is not timed where the model expects it to take so many times what the best one is expected to take. With
# 605 configurations of gemm_wgmma at 134 shapes a fifth remained, with .999 of the best, on the mean. Where the model
# knew other sizes only, the best one of 16 had .999, of 8 .994 and of one .973 of the best of some hundred.
_HOPELESS, _FIRST, _PROMISING, _ROUNDS, _PROMISING_BY_WAVES = 1.3, 48, 16, 2, 40


def crossing_s(sizes: int, kernels: int) -> float:
    """Return the seconds that it takes to time candidates at sizes, as far as it is known before."""
    return sizes * (kernels * _OF_SIZE + _AT_SIZE) * _EACH_S


class Tune(NamedTuple):
    """The run of a kernel at a tuned size."""

    problem: RunnableProblem
    kernel: Kernel
    run: TuneResult


class Foresight(Protocol):
    """What configurations of a kernel are expected to take at sizes that were not tuned."""

    def improved(self, problems: Sequence[RunnableProblem], columns: Columns) -> Columns:
        """Return a table of configurations near given ones that may be the fastest at each problem."""

    def times_s(self, problems: Sequence[RunnableProblem], columns: Columns) -> Floats:
        """Return their seconds, of shape (n_problems, n_configurations), infinite where one does not run."""


@dataclass
class Building:
    """A library that is being built from tunes.

    `problems` are those of the sizes of the description, `tunes` of its tuned sizes, with trials. `time` takes a
    kernel, a problem, configurations and `until`, a time of the clock of perf_counter, and returns seconds: None
    where one fails, fewer where the time is over; several threads call it. `build` takes a placed kernel,
    configurations and `until`, and returns their builds, None where the time is over. `foresee` takes a kernel, a
    device, and problems with configurations and their seconds, and returns a :class:`Foresight`, or None where nothing
    can be expected. The dispatcher learns what is expected `around` the sizes. A building that was interrupted in
    `directory` goes on. `left_s` are seconds for timing and choosing, those of an interrupted building included. In
    replay times that are not on record are no failures. `stop` is asked after each size. Candidates are timed at
    `at_once` sizes at the same time: the GPU does one thing after the other, but the host has more to do.
    """

    spec: Spec
    problems: Sequence[RunnableProblem]
    tunes: Sequence[Tune]
    time: Callable[..., Sequence[float | None]]
    build: Callable[..., Sequence[Build | None]]
    foresee: Callable[..., Foresight | None]
    directory: Path
    around: Sequence[RunnableProblem] = ()
    left_s: float = math.inf
    replayed: bool = False
    stop: Callable[[], bool] = bool
    at_once: int = 1

    def __post_init__(self) -> None:
        self.device = self.tunes[0].run.device
        self._begun = self._saved = perf_counter()
        self._known = read_times(self.directory / CROSS)
        self._before_s = self._known.seconds
        self._room_s = max(self.left_s - min(_LAST_SHARE * self.left_s, _LAST_S) - self._before_s, _LEAST_S)
        self._rates: list[tuple[int, float]] = []  # the costs of some sizes, in timings, and their seconds
        self._lock = Lock()
        self._failed: dict[int, str] = {}
        self._is_fallback = cache(
            lambda candidate: is_valid_at_all_sizes(self._placed(candidate), candidate.configuration)
        )
        self._foresights = self._foresee()
        self.candidates = self._found()
        self._tiles = self._tiles_of(self.candidates, self.problems)
        self._expected_s = self._expectations(self.candidates, self.problems)
        self._foreseen_s = perf_counter() - self._begun
        self._opponent = "" if self.problems[0].needs_baseline else self.problems[0].reference
        self._times: NDArray[Any] = self._recorded(self.candidates)
        recorded = (self._known.times.get(problem.label, {}) for problem in self.problems)
        self._opponent_s = np.array([of_size.get(self._opponent) or np.nan for of_size in recorded])

    def content(self) -> Content:
        """Time candidates, choose, compile the choice, and return the content, or raise a RunError where that fails."""
        measured = self.measured()
        spec, problem, run = self.spec, self.problems[0], self.tunes[0].run
        settings, around = spec.library, self._around if self.around and any(self._foresights.values()) else None
        chosen = choose(measured, most=settings.most, floor=settings.floor, are_listed=spec.are_listed, around=around)
        timed_sizes = {*map(tuple, measured.sizes[measured.timed].tolist())}
        used = [self.candidates[number] for number in chosen.chosen]
        return Content(
            spec.library.name or name_of(problem),
            {"kind": problem.kind, **problem.to_json()},
            problem.formula,
            problem.size_names,
            spec.extents,
            kernel_parameters(used[0].kernel, problem),
            max(alignment_of(candidate.kernel) for candidate in used),
            {
                "name": run.device.name,
                "compute_capability": list(run.device.compute_capability or (0, 0)),
                "sm_count": run.device.sm_count,
            },
            self._configurations(used),
            chosen.dispatcher,
            {"mltune": __version__, **run.header.versions},
            {
                **chosen.report(measured, self._opponent_s),
                "opponent": self._against(chosen, measured),
                "tuned": len({tune.problem for tune in self.tunes}),
                "not_timed": [size for size in spec.sizes if tuple(size.values()) not in timed_sizes],
                "failed": [
                    {"size": spec.sizes[place], "error": error} for place, error in sorted(self._failed.items())
                ],
            },
        )

    def _against(self, chosen: Chosen, measured: Measured) -> dict[str, Any] | None:
        """Return the speed of what is dispatched, that of the vendor's library being 1; None where there is none."""
        groups = chosen.against(measured, self._opponent_s)
        if not groups:
            return None
        (result,) = {buffer.dtype for buffer in self.problems[0].buffers if buffer.role != "in"}
        return {"name": self._opponent, "result": result, **groups}

    def measured(self) -> Measured:
        """Time the candidates and return what is known.

        As many as the time allows are timed at the tuned sizes, in two rounds, the second with what the times of the
        first promise; at each size those that are expected to be the fastest there; the portfolio at all sizes; and
        again what is nearly the fastest of it.
        """
        settings, places = self.spec.library, self._order()
        try:
            self._build_ahead()
            self._add_first_times()
            few, rounds = (_PROMISING, _ROUNDS) if any(self._foresights.values()) else (_PROMISING_BY_WAVES, 1)
            for at in [self.spec.tuned] * (rounds - 1) + [places]:
                if perf_counter() + self._foreseen_s < self._at(_LEARNT_UNTIL):  # it takes no longer than before
                    self._foresights = self._foresee(timed=True)
                    self._add_improved()
                    self._expected_s = self._expectations(self.candidates, self.problems)
                promising = _ranks(-self._table().speed()) < few
                self._add_times(at, promising, self._crossed_until())
            self._time_again(promising)
            decides = self._table(promising)
            chosen = decides.portfolio(most=settings.most, floor=settings.floor)
            portfolio = np.isin(np.arange(len(self.candidates)), chosen)
            in_portfolio = np.broadcast_to(portfolio, promising.shape)
            self._add_times(places, in_portfolio, self._at(_CHOSEN_UNTIL))
            self._time_again(in_portfolio)
            self._time_finalists(in_portfolio)
        finally:
            self._save()
        seen_s = np.where(self._has_failed, np.nan, decides.seen_s)
        return replace(self._table(promising, portfolio), crossed=decides.crossed, seen_s=seen_s)

    def _order(self) -> list[int]:
        """Return the places of the sizes: the tuned ones first, and else by chance, often used ones rather earlier.

        The sizes of a description may lie side by side, such as those of a layer: where the time ends, all kinds are
        known. Each order has the chance of sampling without replacement by weight (Efraimidis and Spirakis, 2006).
        """
        late = np.random.default_rng(0).exponential(size=len(self.problems)) / np.array(self.spec.weights)
        late[[*self.spec.tuned]] -= late.max() + 1
        return np.argsort(late).tolist()  # type: ignore[no-any-return]

    def _at(self, share: float) -> float:
        """Return when a share of the time is over."""
        return self._begun + share * self._room_s

    @property
    def _timing_s(self) -> float:
        """The seconds of a timing, by what was timed after the first sizes, which have the start of the worker."""
        costs, seconds = map(sum, zip(*(self._rates[1:] or [(1, _EACH_S)]), strict=True))
        return max(seconds / costs, 1e-9)

    def _sources(self, numbers: Sequence[int]) -> int:
        return len({self.candidates[number].source for number in numbers})

    def _crossed_until(self) -> float:
        """Return when what is promising has had its time, so that the portfolio can be timed at all sizes."""
        if math.isinf(self._room_s):
            return math.inf
        sources, most = self._sources(range(len(self.candidates))), self.spec.library.most or MOST_THAT_PAY[-1]
        of_portfolio = len(self.problems) * (_OF_SIZE * sources + most * float(self._may_be_fast.mean()))
        now = perf_counter()
        timings = (self._at(_CHOSEN_UNTIL) - now) / self._timing_s
        return now + self._timing_s * max(timings - of_portfolio, _CROSSED_SHARE * timings)

    def _build_ahead(self) -> None:
        """Build the candidates on all cores, in the order of promise, and go on with those that are built in time.

        Those of the tunes are in the cache of cubins; the others would be built at one size after the other.
        """
        if self.replayed:
            return
        self._keep(self._built(self.candidates, max(self._at(_BUILT_UNTIL), perf_counter() + _LEAST_S)))

    def _add_first_times(self) -> None:
        """Time the candidates at the tuned sizes: what is fast at few sizes is seen only if they are among these."""
        tuned = self.spec.tuned
        for begin in range(0, len(tuned), self.at_once):
            self._keep_affordable(len(tuned) - begin)
            self._add_times(tuned[begin : begin + self.at_once], self._comes_first, self._at(_FIRST_UNTIL))

    def _add_improved(self) -> None:
        """Add what a model that knows times of candidates expects to be faster than these, if it is built in time."""
        known = {candidate.key for candidate in self.candidates}
        foreseen = (candidate for kernel in self._kernels for candidate in self._foreseen(kernel, self.candidates))
        improved = [candidate for candidate in foreseen if candidate.key not in known]
        added = [improved[number] for number in self._built(improved, self._at(_ADDED_UNTIL))]
        for candidate in added:
            candidate.found_at.update(self.spec.tuned)
        self._tiles = np.concatenate([self._tiles, self._tiles_of(added, self.problems)], axis=1)
        self._times = np.concatenate([self._times, self._recorded(added)], axis=1)
        self.candidates += added

    def _recorded(self, candidates: Sequence[LibraryCandidate]) -> Floats:
        """Return the seconds that an interrupted building had, of shape (n_problems, n_candidates)."""
        recorded = (self._known.times.get(problem.label, {}) for problem in self.problems)
        return np.array([[coded(of_size.get(each.key, np.nan)) for each in candidates] for of_size in recorded])

    @property
    def _kernels(self) -> list[Kernel]:
        """The kernels of the tunes that have a default."""
        kernels = [kernel.recorded_with(run.header.parameters) for _, kernel, run in self.tunes if kernel.space.default]
        return [*{kernel.label: kernel for kernel in kernels}.values()]

    def _found(self) -> list[LibraryCandidate]:
        """Return the candidates, the most promising first.

        They are the fastest one of each tuned size; the default of each kernel; the fastest ones of the tuned sizes
        that are valid at every size; what a model of the tunes chooses for all sizes; the next two of each tuned size
        with other machine code; the first ones with other launches, which gain little and are many; and the next ones.
        """
        by_key: dict[str, LibraryCandidate] = {}
        ranked = [
            (at, [by_key.setdefault(candidate.key, candidate) for candidate in self._ranked(at)])
            for at in self.spec.tuned
        ]
        promising = [(at, of_size[:1]) for at, of_size in ranked]
        kernels = self._kernels
        of_each = [LibraryCandidate(kernel, kernel.compiler.completed(kernel.space.default)) for kernel in kernels]
        promising += [(at, of_each) for at, _ in ranked]
        promising += [(at, [*itertools.islice(filter(self._is_fallback, of_size), 1)]) for at, of_size in ranked]
        fastest = [candidate for _, of_size in ranked for candidate in of_size[:MANY]]
        foreseen = [candidate for kernel in kernels for candidate in self._foreseen(kernel, fastest)]
        promising += [(at, foreseen) for at, _ in ranked]
        launches = [(at, candidate.launches()) for at, of_size in ranked for candidate in of_size[:1]]
        compiled = [(at, with_own_code(of_size)) for at, of_size in ranked]
        for rank in range(1, FEW if math.isinf(self.left_s) else MANY):
            promising += [(at, of_size[rank : rank + 1]) for at, of_size in compiled]
            promising += launches if rank == FEW - 1 else []
        chosen: dict[str, LibraryCandidate] = {}
        for at, candidates in promising:
            for candidate in candidates:
                chosen.setdefault(candidate.key, by_key.get(candidate.key, candidate)).found_at.add(at)
        return [*chosen.values()]

    def _foresee(self, *, timed: bool = False) -> dict[str, Foresight | None]:
        """Return models of the tunes by kernel, also of the candidates' times if these are known."""
        observations: dict[str, list[tuple[RunnableProblem, Columns, Floats]]] = {}
        for problem, kernel, run in () if self.replayed else self.tunes:
            trials, names = run.records.take(run.records.timed), kernel.recorded_with(()).all_parameters
            columns = {name: trials.parameter(name).astype(np.int64) for name in names}
            observations.setdefault(kernel.label, []).append((problem, columns, trials.column("median_s")))
        for place, problem in enumerate(self.problems) if timed else ():
            at = np.flatnonzero(np.isfinite(self._times[place])).tolist()
            for label, times in observations.items():
                if numbers := [number for number in at if self.candidates[number].kernel.label == label]:
                    at_size = columns_of(*(self.candidates[number].configuration for number in numbers))
                    times.append((problem, at_size, self._times[place, numbers]))
        kernels = {tune.kernel.label: tune.kernel for tune in self.tunes}
        useful = {label: [entry for entry in times if len(entry[2])] for label, times in observations.items()}
        return {label: self.foresee(kernels[label], self.device, times) for label, times in useful.items()}

    def _foreseen(self, kernel: Kernel, candidates: Iterable[LibraryCandidate]) -> list[LibraryCandidate]:
        """Return candidates near those of a kernel that are expected to be faster.

        They are a portfolio by the model of its times, and then those expected to be the fastest at each size.
        """
        foresight = self._foresights.get(kernel.label)
        near = [candidate.configuration for candidate in candidates if candidate.kernel.label == kernel.label]
        if foresight is None or not near:
            return []
        places = [*representatives(self.spec.sizes, self.spec.weights, _FORESEEN_AT)]
        problems, weights = [self.problems[place] for place in places], np.array(self.spec.weights)[places]
        columns = foresight.improved(problems, columns_of(*near))
        times_s = foresight.times_s(problems, columns)
        chosen = choose_portfolio(
            shares(times_s), weights, np.zeros(times_s.shape[1], dtype=np.bool_), most=MOST_THAT_PAY[-1]
        )
        chosen += np.argsort(times_s, axis=1)[:, :_FORESEEN].T.ravel().tolist()
        distinct = dict.fromkeys(chosen)
        return [LibraryCandidate(kernel, kernel.compiler.completed(row(columns, number))) for number in distinct]

    def _expectations(self, candidates: Sequence[LibraryCandidate], problems: Sequence[RunnableProblem]) -> Floats:
        """Return what candidates are expected to take, of shape (n_problems, n_candidates); NaN without a model."""
        expected_s = np.full((len(problems), len(candidates)), np.nan)
        for label, foresight in self._foresights.items():
            numbers = [number for number, candidate in enumerate(candidates) if candidate.kernel.label == label]
            if foresight is not None and numbers:
                columns = columns_of(*(candidates[number].configuration for number in numbers))
                expected_s[:, numbers] = foresight.times_s(problems, columns)
        return expected_s

    def _around(self, chosen: Sequence[int]) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Return sizes around those of the description, and what is expected of candidates there, with their tiles."""
        candidates = [self.candidates[number] for number in chosen]
        sizes = [[getattr(problem, extent) for extent in self.spec.extents] for problem in self.around]
        expected_s, tiles = self._expectations(candidates, self.around), self._tiles_of(candidates, self.around)
        return np.array(sizes), np.where(np.isfinite(tiles[..., 0]), expected_s, np.nan), tiles

    def _ranked(self, place: int) -> list[LibraryCandidate]:
        """Return the configurations that ran at a tuned size, the fastest first."""
        runs = [
            (run, kernel.recorded_with(run.header.parameters))
            for problem, kernel, run in self.tunes
            if problem == self.problems[place] and run.best_record is not None
        ]
        runs.sort(key=lambda pair: pair[0].best_time_s or math.inf)
        timed = [(record, kernel) for run, kernel in runs for record in run.records.fastest(_MOST_LOOKED_AT)]
        timed.sort(key=lambda pair: pair[0].median_s or math.inf)
        won = [(run.best_record, kernel) for run, kernel in runs[:1]]
        ran = [(record, kernel) for record, kernel in (*won, *timed) if record is not None]
        return [LibraryCandidate(kernel, record.configuration) for record, kernel in ran]

    def _placed(self, candidate: LibraryCandidate) -> PlacedKernel:
        return PlacedKernel(candidate.kernel, self.problems[0], self.device)

    def _builds(self, candidates: Sequence[LibraryCandidate], until: float = math.inf) -> list[Build | None]:
        """Return builds, which are the same at all sizes; None where the time is over."""
        builds: dict[LibraryCandidate, Build | None] = {}
        for source in dict.fromkeys(candidate.source for candidate in candidates):
            of_source = [candidate for candidate in candidates if candidate.source == source]
            configurations = [candidate.configuration for candidate in of_source]
            builds |= zip(of_source, self.build(self._placed(of_source[0]), configurations, until=until), strict=True)
        return [builds[candidate] for candidate in candidates]

    def _built(self, candidates: Sequence[LibraryCandidate], until: float) -> list[int]:
        """Return the numbers of those candidates that are built in time."""
        builds = self._builds(candidates, until)
        return [number for number, build in enumerate(builds) if build and build.state is TrialState.OK]

    def _configurations(self, candidates: Sequence[LibraryCandidate]) -> tuple[Configuration, ...]:
        """Return candidates with their machine code, or raise a RunError where one cannot be built."""
        configurations = []
        for candidate, build in zip(candidates, self._builds(candidates), strict=True):
            if build is None or build.state is not TrialState.OK:
                reason = f"{build.state}: {build.detail}" if build else "no build"
                raise RunError(f"{candidate.key}, a configuration of the library, ends with {reason}.")
            configurations.append(configuration_of(self._placed(candidate), candidate.configuration, build))
        return tuple(configurations)

    def _keep(self, numbers: Sequence[int]) -> None:
        """Go on with these candidates alone."""
        self.candidates = [self.candidates[number] for number in numbers]
        self._tiles, self._times = self._tiles[:, numbers], self._times[:, numbers]
        self._expected_s = self._expected_s[:, numbers]

    @property
    def _valid(self) -> NDArray[np.bool_]:
        """Whether candidates are valid at sizes, of shape (n_sizes, n_candidates)."""
        return np.isfinite(self._tiles[..., 0])

    @property
    def _has_failed(self) -> NDArray[np.bool_]:
        """Whether candidates failed at a size on a GPU, so that they are not used at any, of shape (n_candidates,)."""
        return np.isinf(self._times).any(axis=0) & (not self.replayed)  # type: ignore[no-any-return]

    @property
    def _comes_first(self) -> NDArray[np.bool_]:
        """Whether candidates are timed at sizes before their times are learnt: the fastest by a model of the tunes."""
        return self._valid & (np.isnan(self._expected_s) | (_ranks(self._expected_s) < _FIRST))

    @property
    def _may_be_fast(self) -> NDArray[np.bool_]:
        """Whether candidates are timed at sizes: where they are valid, and not expected to be far behind."""
        best_s = np.fmin.reduce(np.where(self._valid, self._expected_s, np.nan), axis=1, keepdims=True)
        return self._valid & ~(self._expected_s > _HOPELESS * best_s)

    def _tiles_of(self, candidates: Sequence[LibraryCandidate], problems: Sequence[RunnableProblem]) -> Floats:
        """Return tiles and work of launches, of shape (n_problems, n_candidates, 2); NaN where one is not valid."""
        tiles = np.full((len(problems), len(candidates), 2), np.nan)
        for source in {candidate.source for candidate in candidates}:
            columns = [number for number, candidate in enumerate(candidates) if candidate.source == source]
            placed = self._placed(candidates[columns[0]])
            configurations = [candidates[number].configuration for number in columns]
            for place, problem in enumerate(problems):
                tiles[place, columns] = tiles_at(placed.at(problem), configurations)
        return tiles

    def _add_times(self, places: Sequence[int], selection: NDArray[np.bool_], until: float, repeats: int = 1) -> None:
        """Time the selected candidates, (n_sizes, n_candidates), where they have no times, before a time."""
        begun = perf_counter()
        until, selection = until if self._rates else max(until, begun + _LEAST_S), selection & self._may_be_fast
        with ThreadPoolExecutor(self.at_once) as threads:
            costs = [*threads.map(lambda place: self._add_times_at(place, selection[place], until, repeats), places)]
        if any(costs):
            self._rates.append((sum(costs), perf_counter() - begun))
        if self.stop():
            raise RunError(f"the times of candidates are incomplete; it goes on with --run {self.directory}.")

    def _time_again(self, selection: NDArray[np.bool_]) -> None:
        """Time candidates again that were far slower than elsewhere: another process may have had the GPU."""
        table = self._table()
        times_s = np.where(np.isfinite(self._times), self._times, np.nan)
        of_waves_s = expected((table.sizes, times_s, table.tiles), table.sizes, table.tiles, table.processors)
        far = selection & (times_s > _FAR * of_waves_s)
        self._replace(far, np.fmin(self._times, self._timed_again(far)))

    def _time_finalists(self, selection: NDArray[np.bool_]) -> None:
        """Time what is nearly the fastest at a size some more: the fastest of many timings is one that was lucky."""
        times_s = np.where(selection & np.isfinite(self._times), self._times, np.inf)
        near = np.isfinite(times_s) & (times_s <= _NEARLY * times_s.min(axis=1, keepdims=True))
        finalists = near & (near.sum(axis=1, keepdims=True) > 1)
        self._replace(finalists, self._timed_again(finalists, _FINAL_TIMINGS))

    def _timed_again(self, selection: NDArray[np.bool_], repeats: int = 1) -> Floats:
        """Return the mean seconds of further timings of candidates, NaN of others and without time."""
        before, self._times = self._times, np.where(selection, np.nan, self._times)
        try:
            places = [place for place in self._order() if selection[place].any()]
            self._add_times(places, selection, self._at(1.0), repeats)
            return np.where(selection, self._times, np.nan)
        finally:
            self._times = before

    def _replace(self, selection: NDArray[np.bool_], times_s: Floats) -> None:
        """Put other seconds in the place of those of candidates, where they are known."""
        for place, number in np.argwhere(selection & ~np.isnan(times_s)):
            self._note(place, number, float(times_s[place, number]))

    def _note(self, place: int, number: int, time_s: float) -> None:
        """Keep the seconds of a candidate at a size, infinite where it failed."""
        self._times[place, number] = time_s
        times = self._known.times.setdefault(self.problems[place].label, {})
        times[self.candidates[number].key] = time_s if math.isfinite(time_s) else None

    def _add_times_at(self, place: int, selection: NDArray[np.bool_], until: float, repeats: int) -> int:
        """Time candidates at a size where they have no times; return what that costs, in timings.

        Of several timings the mean is taken. A size at which the default configuration is wrong, or whose arrays do not
        fit into the GPU, is left out.
        """
        problem = self.problems[place]
        lacking = np.flatnonzero(selection & np.isnan(self._times[place])).tolist()
        if not lacking or place in self._failed or perf_counter() >= until or self.stop():
            return 0
        timed: list[int] = []
        for source in dict.fromkeys(self.candidates[number].source for number in lacking):
            of_source = [number for number in lacking if self.candidates[number].source == source] * repeats
            candidates = [self.candidates[number] for number in of_source]
            unknown = self._opponent and np.isnan(self._opponent_s[place])
            tell = partial(self._keep_opponent, place) if unknown else None
            try:
                configurations = [candidate.configuration for candidate in candidates]
                times_s = self.time(candidates[0].kernel, problem, configurations, until=until, tell_reference=tell)
            except (BundleError, DeviceError) as error:
                self._failed[place] = str(error)
                return 0
            timed += of_source[: len(times_s)]
            seconds: dict[int, list[float]] = {}
            for number, time_s in zip(of_source, times_s, strict=False):
                seconds.setdefault(number, []).append(coded(time_s))
            with self._lock:
                for number, of_candidate in seconds.items():
                    self._note(place, number, fmean(of_candidate))
                if perf_counter() > self._saved + _SAVE_EVERY_S:
                    self._save()
        return _OF_SIZE * self._sources(timed) + len(timed)

    def _keep_opponent(self, place: int, time_s: float) -> None:
        with self._lock:
            self._opponent_s[place] = time_s
            self._known.times.setdefault(self.problems[place].label, {})[self._opponent] = time_s

    def _keep_affordable(self, sizes: int) -> None:
        """Keep as many candidates as can be timed at the first remaining sizes, one of them valid at every size."""
        if math.isinf(self._room_s):
            return
        of_size = max(self._at(_FIRST_UNTIL) - perf_counter(), 0.0) / sizes / self._timing_s
        timings = of_size - _OF_SIZE * self._sources(range(len(self.candidates)))
        timed = (self._may_be_fast & self._comes_first)[[*self.spec.tuned]].mean(axis=0).cumsum()
        count = max(int(np.searchsorted(timed, timings)), _FEWEST)
        everywhere = np.flatnonzero(self._valid.all(axis=0)).tolist()
        general = (number for number in everywhere if self._is_fallback(self.candidates[number]))
        self._keep(sorted({*range(min(count, len(self.candidates))), *itertools.islice(general, 1)}))

    def _save(self) -> None:
        self._saved = perf_counter()
        self._known.seconds = self._before_s + self._saved - self._begun
        write_file_atomically(self.directory / CROSS, self._known.model_dump_json().encode(), inside=self.directory)

    def _table(self, selection: Any = True, portfolio: Any = False) -> Measured:
        """Return what is known of all candidates where the selected ones were timed, and of a portfolio elsewhere.

        Of a size without the times of all of them nothing counts, unless all sizes are like that. One that is not timed
        has what is expected, as seen from those that are timed at that size, but is never the fastest.
        """
        times_s, lacking = self._times.copy(), self._may_be_fast & np.isnan(self._times)
        times_s[:, self._has_failed] = np.nan
        times_s[np.isinf(times_s)] = np.nan
        timed = np.isfinite(times_s).any(axis=1)
        crossed = timed & ~(lacking & selection).any(axis=1)
        crossed = crossed if crossed.any() else timed
        if not crossed.any():
            reasons = "".join(f" {error}" for error in [*self._failed.values()][:1])
            raise RunError(f"no candidate of the library could be timed at any size.{reasons}")
        ratios = np.ma.masked_invalid(times_s / self._expected_s)
        longer = np.ma.median(ratios, axis=1, keepdims=True).filled(1.0)  # type: ignore[no-untyped-call]
        best_s = np.fmin.reduce(times_s, axis=1, keepdims=True)
        expected_s = np.fmax(longer * self._expected_s, best_s)
        seen_s = np.where(
            self._valid & np.isnan(times_s) & ~self._has_failed & np.isfinite(self._expected_s), expected_s, times_s
        )
        counts = crossed[:, None] | (portfolio & ~(lacking & portfolio).any(axis=1, keepdims=True))
        columns = zip(self.candidates, self._valid.T, strict=True)
        return Measured(
            np.array([list(size.values()) for size in self.spec.sizes], dtype=np.int64),
            np.where(counts & timed[:, None], seen_s, np.nan),
            np.array(self.spec.weights),
            np.array([valid.all() and self._is_fallback(candidate) for candidate, valid in columns]),
            tuple(frozenset(candidate.found_at) for candidate in self.candidates),
            self._tiles,
            self.device.sm_count,
            crossed,
            seen_s,
        )


def _ranks(values: Floats) -> NDArray[np.intp]:
    """Return the places of values in the ascending order of their row."""
    return np.argsort(np.argsort(values, axis=1), axis=1)
