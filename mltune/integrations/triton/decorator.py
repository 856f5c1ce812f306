"""The decorator in place of `triton.autotune`, and the methods of an autotuner that it replaces."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import os
import threading
import time as clock
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mltune.errors import UsageError
from mltune.integrations.host import QUICK, check_least, require
from mltune.integrations.triton.calls import arguments_of, calls_beside
from mltune.integrations.triton.compilers import Compiled, Compilers, compilers_of
from mltune.integrations.triton.keys import Keys, innermost, own_autotuner, own_run, plain
from mltune.integrations.triton.outputs import BITS
from mltune.integrations.triton.runner import FAILED, Runner, Stopwatch
from mltune.integrations.triton.session import TritonTuning
from mltune.integrations.triton.winners import Winners
from mltune.known.effort import effort
from mltune.known.entry import canonical
from mltune.known.wisdom_file import AUTO, file_of_run
from mltune.process.child import available_cores
from mltune.search.launch_search import gpu_and_driver

_OUTCOME = ("best_config", "configs_timings", "bench_time", "started_from")

_AFTER_KEY = (
    "prune_configs_by reset_to_zero restore_value pre_hook post_hook warmup rep use_cuda_graph do_bench cache_results"
)
_POSITIONAL = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in _AFTER_KEY.split()]
)


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *arguments: Any,
    trials: int | None = None,
    time: float | None = None,
    seed: int = 0,
    compilers: int | None = None,
    wisdom: str | Path = AUTO,
    tolerance: float | Literal["bits"] | None = None,
    prior: str | Path = AUTO,
    overlap: bool = False,
    **options: Any,
) -> Callable[[Any], Any]:
    """Return a decorator like ``triton.autotune`` that compiles in parallel and measures what is promising.

    For each new key the configurations are compiled ahead in processes of their own, which fill Triton's cache, and
    measured briefly in the order of their promise: the registers, the shared memory and the spills of each, and the
    blocks of its grid, say which cannot be launched and what to expect of the others. The fastest, and the first one of
    ``configs``, are measured again in turns; the best of these is taken. A configuration that does not compile, or
    whose compiler crashes, hangs or exhausts the memory, has failed, and no other. A launch that does not end within a
    minute is named in a warning and put on record: the process has to be killed, and the next one leaves it out.

    The winner is kept in the wisdom: another process, or another rank, takes the same one without measuring. Its key is
    the source of the kernel, ``configs``, the values of ``key``, of constants and options, how Triton compiles for the
    other arguments, the GPU, its driver and Triton's version. Threads may call one kernel: of those that need a winner
    one tunes.

    The environment variable ``MLTUNE_EFFORT`` is ``none`` (what is known, or the first of ``configs``, without
    measuring), ``quick`` (at most 25 are measured) or ``full`` (all are); the latter two if ``trials`` is not given.

    Parameters
    ----------
    configs : sequence of triton.Config
    key : sequence of str
        Arguments of the kernel: other values of these are tuned anew.
    *arguments, **options
        Further arguments of ``triton.autotune``; ``prune_configs_by`` comes first. With ``do_bench`` every
        configuration is measured once, by that function.
    trials : int, optional
        Most configurations that are measured, the first one of ``configs`` always among them. By default four for each
        compiler, at least 25.
    time : float, optional
        Seconds for each key; what is then being compiled or measured is finished.
    seed : int
    compilers : int, optional
        Compile processes; by default one for each core. All kernels share them.
    wisdom : str or pathlib.Path
        A file, ``"auto"`` for the user's, or ``"none"``.
    tolerance : float or "bits", optional
        If given, each configuration is launched once on copies of the same arguments, and one whose outputs differ from
        those of the first by more than this times their largest magnitude is wrong: it is not taken. Outputs are all
        tensors that can be reached through an argument. With ``"bits"`` outputs must have the same bits, also where
        the floating-point tensors hold integers, and where they hold numbers that are rounded.
    prior : str or pathlib.Path
        A model that says what is compiled and measured first: ``"auto"`` for the one that comes with mltune, learned
        from other kernels on an H200, ``"none"``, or a file. Where it does not know such a list of configurations,
        or cannot be read, the search starts without it. After a search the attribute ``started_from`` of the result is
        ``"model"`` or ``"physics"``.
    overlap : bool, optional
        If true, the first call for a key launches the first of ``configs`` while the others are being compiled, and the
        second call measures them. So kernels of one step are compiled at the same time. A kernel that is called once is
        not tuned.

    Returns
    -------
    callable
        From a kernel to a ``triton.runtime.autotuner.Autotuner``.

    Raises
    ------
    UsageError
        Triton is not installed, or a number is below its least. While tuning: with ``tolerance`` nothing can be
        compared.
    DeviceLostError
        While tuning: a launch has ended the CUDA context, such as by an illegal access. The configuration is put on
        record, and left out when the program is started again.

    Examples
    --------
    >>> @autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["n"], trials=2)
    ... @triton.jit
    ... def kernel(x, n, BLOCK: tl.constexpr): ...  # doctest: +SKIP
    """
    settings = Settings(trials, time, seed, compilers, wisdom, tolerance, prior, overlap)
    require("triton", "triton>=3.3", "3.")
    named = dict(**_POSITIONAL.bind_partial(*arguments).arguments, **options)  # a TypeError if one is given twice
    named = {"reset_to_zero": None, "restore_value": None} | named

    def decorate(fn: Any) -> Any:
        tuner = own_autotuner()(fn, fn.arg_names, configs, key, **named)
        adapter = Adapter(tuner, settings)
        tuner.run, tuner.warmup = adapter.run, adapter.warmup
        tuner.started_from = ""
        return tuner

    return decorate


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the search; :func:`autotune` describes them."""

    trials: int | None = None
    time: float | None = None
    seed: int = 0
    compilers: int | None = None
    wisdom: str | Path = AUTO
    tolerance: float | Literal["bits"] | None = None
    prior: str | Path = AUTO
    overlap: bool = False

    def __post_init__(self) -> None:
        tolerance = 0 if self.tolerance == BITS else self.tolerance
        if isinstance(tolerance, str):
            raise UsageError(f'tolerance cannot be {tolerance!r:.100}: it is a number or "{BITS}".')
        check_least(trials=(self.trials, 1), time=(self.time, 0), compilers=(self.compilers, 1))
        check_least(tolerance=(tolerance, 0))

    def shared_compilers(self) -> Compilers:
        """Return the compile processes, which start if they do not run."""
        return compilers_of(self.compilers or available_cores())

    def start_compilers(self) -> None:
        """Start the compile processes if no winner can be known: they are ready when they are needed."""
        path = file_of_run(self.wisdom, replayed=False)
        if effort() != "none" and not (path and path.exists()):
            self.shared_compilers()


_ahead = dict[tuple[int, Any, Any], dict[Any, Future[Compiled]]]()
"""What is compiled ahead of a call: by processes, kernels and keys, and for each of these by configurations."""


class _UntunedError(Exception):
    """Nothing is known of a call, and nothing is measured: what it launches instead, and whether the next ones do."""


class Adapter:
    """Replacements for methods of an ``Autotuner``, which may be called by several threads.

    Arguments and times of a tuning are those of a copy of the tuner. Of the threads that call it one at a time tunes:
    two would disturb each other's times.
    """

    def __init__(self, tuner: Any, settings: Settings) -> None:
        self._tuner, self._settings = tuner, settings
        self._stopwatch = Stopwatch() if getattr(tuner, "_do_bench", None) is None else None
        self._keys = Keys(tuner)
        self._locks = dict[int, Any]()  # by processes: a forked one has none of the threads

    def is_of(self, tuner: Any) -> bool:
        """Whether it replaces the methods of this tuner."""
        return self._tuner is tuner

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel in the best configuration for the key of a call, which is tuned if it is new."""
        tuner = self._tuner
        if len(tuner.configs) == 1:
            return self._launch(tuner.configs[0], args, kwargs)
        if not tuner.cache:
            self._settings.start_compilers()  # before the first key, for which Triton's driver starts
        key = self._keys.of(args, kwargs)
        # what Triton has tuned before, or the library has put there, has Triton's key
        config = tuner.cache.get(key) or tuner.cache.get(self._keys.own_of(args, kwargs))
        if config is None:
            with self._locks.setdefault(os.getpid(), threading.RLock()):
                if (config := tuner.cache.get(key)) is None:
                    return self._search_for(key, args, kwargs)
        return self._launch(config, args, kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Compile all configurations, as Triton does: nothing is measured."""
        return type(self._tuner).warmup(copy.copy(self._tuner), *args, **kwargs)

    def _launch(self, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tuner = self._tuner
        tuner.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())

    def _search_for(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tune for a new key, and launch, by Triton's own loop over what ``prune_configs`` returns.

        With its first benchmark a session measures; in the loop the times are looked up. So Triton reads and writes the
        results on disk by itself, where the kernel has ``cache_results``.
        """
        times, call = dict[Any, list[float]](), copy.copy(self._tuner)
        prune, bench, call.cache = call.prune_configs, call._bench, {}
        candidates = list[Any]()
        if self._stopwatch is not None:
            call.do_bench = self._stopwatch

        def pruned(kwargs: dict[str, Any]) -> list[Any]:
            candidates[:] = prune(kwargs)
            return candidates

        def measured(*_: Any, config: Any, **__: Any) -> list[float]:
            if not times:
                times.update(self._tuned(call, bench, list(dict.fromkeys(candidates)), key, kwargs))
            return times.get(config, FAILED)

        call.prune_configs, call._bench = pruned, measured
        try:
            return own_run()(call, *args, **kwargs)
        except _UntunedError as untuned:
            config, stays = untuned.args
            if stays:
                call.cache[key] = config
            return self._launch(config, args, kwargs)
        finally:
            if times:
                call.configs_timings = times
            vars(self._tuner).update((name, value) for name, value in vars(call).items() if name in _OUTCOME)
            self._tuner.cache.update((key, config) for config in call.cache.values())

    def _tuned(self, call: Any, bench: Any, configs: list[Any], key: Any, kwargs: dict[str, Any]) -> dict[Any, Any]:
        """Return the milliseconds of what was measured, or of the known winner alone."""
        winners, session_of = self._prepared(call, key, configs)
        if winner := winners.best(configs):
            return winner
        if effort() == "none" or len(configs) == 1:
            raise _UntunedError(configs[0], True)
        place, settings = self._place(key), self._settings
        calls = calls_beside(winners.path).after(self._tuner, {**call.nargs, **kwargs}) if winners.path else []
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"  # one rank of a machine compiles for all
        if settings.overlap and place not in _ahead:
            session = session_of(bench, kwargs, None)
            _ahead[place] = session.compile_ahead(None if is_first else 1)
            if session.can_launch_first():
                raise _UntunedError(session.configs[0], False)
        elif calls and is_first and place not in _ahead:
            _ahead[place], expected = {}, {place}
            for tuner, other_call in calls:
                with contextlib.suppress(Exception):  # of the user's functions, which get no tensors
                    expected.add(Adapter(tuner, settings).compile_ahead(arguments_of(other_call)))
            for future in itertools.chain(*(_ahead.pop(other).values() for other in _ahead.keys() - expected)):
                future.cancel()
        ahead = _ahead.pop(place, None)
        with winners.locked():
            if winner := winners.best(configs):  # another process has tuned meanwhile
                return winner
            session = session_of(bench, kwargs, settings.tolerance)
            times = session.run(ahead)
            call.started_from = session.started_from
            winners.keep(times, is_verified=session.is_verified)
            return times

    def compile_ahead(self, named: dict[str, Any]) -> Any:
        """Begin to compile for a call that is expected, if its winner is not known; return the place of what is."""
        call, key = copy.copy(self._tuner), self._keys.of((), named)
        call.nargs = named
        configs = list(dict.fromkeys(call.prune_configs(named)))
        call.nargs = {}
        winners, session_of = self._prepared(call, key, configs)
        if (place := self._place(key)) not in _ahead and len(configs) > 1 and not winners.best(configs):
            _ahead[place] = session_of(None, {**named, "grid": (1,)}, None).compile_ahead()
        return place

    def _place(self, key: Any) -> tuple[int, Any, Any]:
        return os.getpid(), getattr(innermost(self._tuner), "cache_key", self), key

    def _prepared(self, call: Any, key: Any, configs: list[Any]) -> tuple[Winners, Callable[..., TritonTuning]]:
        """Return the winners of a call, and a function that makes its tuning."""
        settings = self._settings
        gpu, driver = gpu_and_driver(_current_gpu())
        checked = BITS if settings.tolerance == BITS else ""
        text = canonical(plain(key[1:]))
        winners = Winners.of(settings.wisdom, innermost(call), text, configs, gpu, driver, checked)

        def session_of(bench: Any, kwargs: dict[str, Any], tolerance: float | str | None) -> TritonTuning:
            candidates = winners.allowed(configs)
            return TritonTuning(
                candidates,
                Runner(call, bench, kwargs, winners, self._stopwatch, tolerance),
                settings.shared_compilers(),
                gpu,
                trials=settings.trials or {"quick": QUICK, "full": len(candidates)}.get(effort()),
                end=math.inf if settings.time is None else clock.monotonic() + settings.time,
                seed=settings.seed,
                prior=str(settings.prior),
            )

        return winners, session_of


def _current_gpu() -> int:
    """Return the number of the current GPU; -1 without one."""
    try:
        from triton.runtime.driver import driver

        return int(driver.active.get_current_device())
    except Exception:
        return -1
