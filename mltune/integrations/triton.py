"""mltune's search inside the autotuner of Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mltune.errors import UsageError
from mltune.kernel.configurations import ConfigurationTable
from mltune.search.plain_search import PlainSearch


def autotune(
    configs: Sequence[Any], key: Sequence[str], *arguments: Any, trials: int = 25, seed: int = 0, **options: Any
) -> Callable[[Any], Any]:
    """Return a decorator like ``triton.autotune`` that measures at most ``trials`` configurations for each key.

    mltune's search chooses them after the results of those before; the first one of ``configs`` is always measured.
    Parameters are the meta-parameters of the configurations, ``num_warps``, ``num_stages``, ``num_ctas``, ``maxnreg``
    and whatever else distinguishes them. The rest is Triton's: ``prune_configs_by`` comes first, a configuration
    without enough resources has failed, and the best one is kept.

    Parameters
    ----------
    configs : sequence of triton.Config
    key : sequence of str
        Arguments of the kernel: other values of these are tuned anew.
    *arguments, **options
        Further arguments of ``triton.autotune``.
    trials : int
        If there are not more configurations than these, all are measured, as without mltune.
    seed : int

    Returns
    -------
    callable
        From a kernel to a ``triton.runtime.autotuner.Autotuner``.

    Raises
    ------
    UsageError
        Triton is not installed, or ``trials`` is below 1.

    Examples
    --------
    >>> @autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["n"], trials=2)
    ... @triton.jit
    ... def kernel(x, n, BLOCK: tl.constexpr): ...  # doctest: +SKIP
    """
    if trials < 1:
        raise UsageError(f"a tuner measures at least one configuration, got trials={trials}.")
    try:
        import triton
    except ImportError as error:
        raise UsageError(f"autotune needs Triton, but it cannot be imported ({error}): pip install triton.") from error

    def decorate(fn: Any) -> Any:
        tuner = triton.autotune(configs, key, *arguments, **options)(fn)
        adapter = _Adapter(tuner, trials, seed)
        tuner.prune_configs, tuner._bench = adapter.prune_configs, adapter.bench
        if hasattr(tuner, "check_disk_cache"):
            tuner.check_disk_cache = adapter.check_disk_cache
        return tuner

    return decorate


class _Adapter:
    """Replacements for three methods of an ``Autotuner``.

    An autotuner measures the configurations that ``prune_configs`` returns, in a loop over them. They are returned as
    :class:`_Proposals`, which choose the next configuration when the loop asks for it.
    """

    def __init__(self, tuner: Any, trials: int, seed: int) -> None:
        self._prune, self._bench = tuner.prune_configs, tuner._bench
        self._check_disk_cache: Any = getattr(tuner, "check_disk_cache", None)
        self._trials = trials
        self._seed = seed
        self._proposals: _Proposals | None = None

    def prune_configs(self, kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the configurations that Triton leaves, as proposals if there are more than trials."""
        left: Sequence[Any] = self._prune(kwargs)
        proposals = _Proposals(left, self._trials, self._seed)
        self._proposals = proposals if len(proposals) > self._trials else None
        return left if self._proposals is None else self._proposals

    def bench(self, *args: Any, config: Any, **meta: Any) -> Any:
        """Measure a configuration, and keep its time for the search."""
        result = self._bench(*args, config=config, **meta)
        if self._proposals is not None:
            self._proposals.times[config] = result[0] if isinstance(result, Sequence) else result
        return result

    def check_disk_cache(self, tuning_key: Any, configs: Sequence[Any], bench_fn: Callable[[], None]) -> Any:
        """Look for results on disk, under another key than those of a tuner that measures everything."""
        if self._proposals is not None:
            settings = type(self._proposals[0])({"mltune_trials": self._trials, "mltune_seed": self._seed})
            configs = [*self._proposals.configs, settings]
        return self._check_disk_cache(tuning_key, configs, bench_fn)


class _Proposals(Sequence[Any]):
    """The distinct configurations of an autotuner. A loop over them goes over those that the search proposes.

    Attributes
    ----------
    times : dict
        The time of each configuration that was measured, infinite if it failed.
    """

    def __init__(self, configs: Sequence[Any], trials: int, seed: int) -> None:
        every = [config.all_kwargs() | {"pre_hook": config.pre_hook} for config in configs]
        names = dict.fromkeys(name for one in every for name in one)
        rows = [tuple(one.get(name) for name in names) for one in every]
        distinct = dict(zip(reversed(rows), reversed(configs), strict=True))  # the first one of equal ones
        self._rows = list(dict.fromkeys(rows))
        self._values = {name: list(dict.fromkeys(row[at] for row in self._rows)) for at, name in enumerate(names)}
        self.configs = [distinct[row] for row in self._rows]
        self.times: dict[Any, float] = {}
        self._trials = trials
        self._seed = seed

    def __len__(self) -> int:
        return len(self.configs)

    def __getitem__(self, at: Any) -> Any:
        return self.configs[at]

    def __iter__(self) -> Iterator[Any]:
        search = PlainSearch(ConfigurationTable.from_rows(self._values, self._rows), seed=self._seed)
        proposed = 0
        for _ in range(self._trials - 1):
            yield self.configs[proposed]
            search.tell(proposed, self.times.get(self.configs[proposed]))
            (proposed,) = search.ask()
        yield self.configs[proposed]
