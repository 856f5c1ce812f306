"""mltune's search as the autotuner of Helion's kernels."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mltune.integrations.host import check_least, leaves, require, table_of
from mltune.known.effort import effort
from mltune.process.child import available_cores
from mltune.search.plain_search import PlainSearch

TESTED = "1.5."
"""Versions of Helion whose class of searches is known: it is not public, and may change in another."""

TRIALS = {"quick": 64, "full": 256}
"""Most configurations that are measured, by the effort."""

LEAST, MOST = 8, 16
"""Limits of a batch by default: each is planned anew, and all in it without the results of the others."""

DRAWN, NEAR = 1000, 1000
"""Random configurations that may be chosen, and most others near the fastest, the latest first."""

PARENTS, VARIED = 6, 80
"""The fastest whose neighbours join the pool once they are measured, and how many of each differ in several values."""

Members = dict[tuple[tuple[str, Hashable], ...], Any]


def autotuner(
    *, trials: int | None = None, time: float | None = None, seed: int | None = None, batch: int | None = None
) -> Callable[..., Any]:
    """Return mltune's search as an argument ``autotuner_fn`` of ``helion.kernel``.

    Helion makes configurations, compiles them in parallel, compares outputs, measures, measures the fastest and its own
    default again, and keeps the winner in its cache, all as its settings say. The search chooses what is measured:
    first Helion's default and the configurations that Helion would try first, then what the results promise, of random
    ones and of those near the fastest. A configuration that does not compile, fails, is late or wrong has failed, and
    no other.

    The environment variable ``MLTUNE_EFFORT`` takes the place of ``autotune_effort``: ``none`` (what is in Helion's
    cache, or its default, without measuring), ``quick`` or ``full``.

    Parameters
    ----------
    trials : int, optional
        Most configurations that are measured before the fastest are measured again; by default 64 with the effort
        ``quick``, otherwise 256.
    time : float, optional
        Seconds for all of it, in place of ``autotune_budget_seconds``; the first batch is finished in any case.
    seed : int, optional
        In place of ``autotune_random_seed``.
    batch : int, optional
        Configurations that Helion compiles together; by default one for each of its compile jobs, 8 to 16.

    Returns
    -------
    callable
        From a bound kernel and its arguments to an autotuner.

    Raises
    ------
    UsageError
        Helion is not installed, or is not version 1.5, or a number is below its least.

    Examples
    --------
    >>> @helion.kernel(autotuner_fn=autotuner(trials=100, seed=1))
    ... def double(x: torch.Tensor) -> torch.Tensor: ...  # doctest: +SKIP
    """
    check_least(trials=(trials, 1), time=(time, 0), batch=(batch, 1))
    require("helion", "helion==1.5.*", TESTED)

    def build(kernel: Any, args: Sequence[Any]) -> Any:
        from helion.autotuner import cache_classes

        effort_of_user, settings = effort(), kernel.settings
        for name, value in (("effort", effort_of_user), ("budget_seconds", time), ("random_seed", seed)):
            if value not in (None, "", "none"):
                setattr(settings, f"autotune_{name}", value)
        make = functools.partial(_search_class(), kernel, args, 0 if effort_of_user == "none" else trials, batch)
        return cache_classes[settings.autotune_cache](make(), autotuner_factory=make)

    return build


@functools.cache
def _search_class() -> Any:
    """Return the search as one of Helion's, which is imported only now."""
    from helion._dist_utils import sync_object
    from helion.autotuner.base_search import PopulationBasedSearch
    from helion.exc import NoConfigFound

    class MltuneSearch(PopulationBasedSearch):  # type: ignore[misc]
        """Measures batches that mltune proposes from a pool, which grows around the fastest."""

        def __init__(self, kernel: Any, args: Sequence[Any], trials: int | None, batch: int | None) -> None:
            super().__init__(kernel, args)
            self._trials = TRIALS.get(self.settings.autotune_effort, 0) if trials is None else trials
            self._batch = batch or min(max(self.settings.autotune_precompile_jobs or available_cores(), LEAST), MOST)

        def autotune(self, *, skip_cache: bool = False) -> Any:
            """Return the best configuration; without measuring Helion's default, which its cache must not keep."""
            if self._trials == 0:
                self._search_policy_cacheable = False
                return self.config_spec.default_config()
            return super().autotune(skip_cache=skip_cache)

        def _autotune(self) -> Any:
            """Measure batches; Helion calls this between preparing and cleaning up."""
            is_late = lambda: bool(self.population) and self._autotune_budget_exceeded()  # noqa: E731
            self.benchmark_provider.set_budget_exceeded_fn(is_late)
            self._seed = sync_object(self.settings.autotune_random_seed, self.kernel.env.process_group_name)
            rng = np.random.default_rng(self._seed)
            first = self._members([self.config_gen.default_flat(), *self._generate_best_available_population_flat()])
            drawn = first | self._members(self.config_gen.random_population_flat(DRAWN))
            measured, near = Members(), Members()
            chosen = self._chosen(measured, drawn, len(first))[: self._trials]
            while chosen:
                members = [member for _, member in chosen]
                self.set_generation(self._autotune_metrics.num_generations + 1)
                self.benchmark_population(members, desc="Batch", raise_if_no_viable_config=False)
                self.population += members
                self.log(f"{len(self.population)} of {self._trials}:", self.statistics)
                measured |= chosen
                near = dict(itertools.islice((self._members(self._children(members, rng)) | near).items(), NEAR))
                late = self._autotune_budget_exceeded_across_ranks()
                chosen = [] if late else self._chosen(measured, drawn | near)
            if not any(math.isfinite(member.perf) for member in self.population):
                raise self.benchmark_provider.take_no_viable_config_error() or NoConfigFound
            return self._finalize()

        def _members(self, flats: Iterable[list[Any]]) -> Members:
            """Return members of a population, without results, of the configurations that are valid."""
            members = (member for flat in flats if (member := self.make_unbenchmarked(flat)) is not None)
            return {tuple(sorted(leaves(member.config.config).items())): member for member in members}

        def _chosen(self, measured: Members, pool: Members, first: int = 0) -> list[tuple[Any, Any]]:
            """Return what to measure next: the `first` ones in any case, then what the search asks for."""
            every, count = list((measured | pool).items()), min(self._batch, self._trials - len(measured))
            search = PlainSearch(table_of([dict(parameters) for parameters, _ in every]), seed=self._seed)
            search.resume({row: member.perf for row, member in enumerate(measured.values())}, range(first))
            return [every[row] for row in [*range(first), *search.ask(count - first)]]

        def _children(self, new: Sequence[Any], rng: np.random.Generator) -> Iterator[list[Any]]:
            """Yield new ones of the fastest with one value exchanged for each that is next to it, or with several."""
            spec = self.config_gen.flat_spec
            fast = heapq.nsmallest(PARENTS, self.population, key=lambda member: member.perf)
            for flat in (parent.flat_values for parent in new if any(parent is other for other in fast)):
                moves = [
                    (at, value) for at, fragment in enumerate(spec) for value in fragment.pattern_neighbors(flat[at])
                ]
                several = (rng.choice(len(moves), rng.integers(2, 5)) for _ in range(VARIED))
                for changes in (*([move] for move in moves), *([moves[at] for at in chosen] for chosen in several)):
                    yield [dict(changes).get(at, value) for at, value in enumerate(flat)]

    return MltuneSearch
