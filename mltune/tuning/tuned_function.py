"""A function that launches a kernel in the configuration that is known, or is tuned, for the sizes of each call."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.device.gpu_arrays import cupy_array, is_of_cupy, layout_of, on_host, stand_in
from mltune.errors import MltuneWarning, RunDirectoryError, RunError, UsageError, WisdomError
from mltune.files.folders import cache_folder
from mltune.files.locks import HeldError
from mltune.files.text import printable
from mltune.kernel.kernel_tuner_call import make_of_call
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.python_kernel import KernelCall, with_arguments, with_sizes
from mltune.known.effort import effort
from mltune.known.entry import Entry, Failure, canonical
from mltune.known.wisdom import Match, Wisdom, WisdomFile
from mltune.known.wisdom_file import AUTO, NONE, file_of_run, locked_key
from mltune.measure.baseline import check_source
from mltune.records.directory import in_use, is_begun
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.wording import configuration, spaced_duration
from mltune.tuning.session import build_once
from mltune.tuning.wisdom import Siblings, load_wisdom, outcomes

if TYPE_CHECKING:
    import pandas as pd

    from mltune.kernel.bundle import Kernel
    from mltune.results.progress import Report

TIME_S = {"none": 0.0, "quick": 5.0, "full": 120.0}
"""Most seconds that a size is tuned, by effort."""

START_S = 25.0
"""Seconds, besides those of tuning, that a process waits for another one to start, compile and tune the same sizes."""

EFFORT = "effort"
"""Key among the versions of an entry: the effort with which it was found."""


@dataclass(slots=True)
class Choice:
    """The configuration that calls with certain sizes run.

    Attributes
    ----------
    label : str
        The kernel, its problem size, and the elements of its arrays.
    configuration : mapping of str to int, float or str
    origin : {"tuned", "file", "nearest", "gpu", "default"}
        ``"tuned"``: this process has tuned it; ``"file"``: the file knew it; ``"nearest"``: the file knows the nearest
        sizes; ``"gpu"``: it knows these sizes on another GPU of the architecture; ``"default"``: it knows nothing.
    detail : str
        The origin in words.
    effort : str
        With which it was found; empty for a default.
    median_s, default_s : float or None
        Time of the configuration and of the default one where they were measured, seconds.
    first_s : float
        Seconds that the first call took to choose, tune, compile and load.
    calls : int
        Calls so far in this process.
    """

    label: str
    configuration: Mapping[str, int | float | str]
    origin: str
    detail: str
    effort: str = ""
    median_s: float | None = None
    default_s: float | None = None
    first_s: float = 0.0
    calls: int = 0

    def __str__(self) -> str:
        """Return what runs, why, and what it gains."""
        times_s = [("", self.median_s), ("the default ", self.default_s)]
        times = ", ".join(f"{whose}{1e6 * time_s:.4g} us" for whose, time_s in times_s if time_s is not None)
        first = f"; the first of {self.calls} calls took {spaced_duration(self.first_s)} more" if self.calls else ""
        measured = f"; measured there: {times}" if times else ""
        return f"{self.label}: {configuration(self.configuration)}: {self.detail}{measured}{first}"


@dataclass(frozen=True, slots=True)
class _Case:
    """A kernel for the sizes of a call, without its arrays, on a GPU: `stated` as in the call, `placed` in variants."""

    stated: Kernel
    placed: PlacedKernel
    index: int
    driver: str


@dataclass(frozen=True)
class TunedKernel:
    """The kernel of a tuned function, as a call without its arguments, and how it is tuned."""

    call: KernelCall
    effort: str
    seed: int
    shown: Callable[[], AbstractContextManager[Report | None]]


@dataclass(eq=False, repr=False)
class TunedFunction:
    """A kernel in the best known configuration for the sizes of each call; made by :func:`mltune.tuned_kernel`.

    Attributes
    ----------
    file : pathlib.Path or None
        The wisdom in which choices are kept; None where the user's is switched off.
    """

    _kernel: TunedKernel
    file: Path | None
    _choices: dict[Any, tuple[Choice, Callable[..., None]]] = field(default_factory=dict)
    _wisdom: WisdomFile = field(init=False)

    def __post_init__(self) -> None:
        """Begin without having read the file."""
        self._wisdom = WisdomFile(self.file)

    def __call__(self, *arguments: Any) -> None:
        """Launch the kernel on its arguments, on the current stream; the first call with new sizes may tune.

        Parameters
        ----------
        *arguments
            Those of the kernel, in order: arrays of CuPy, PyTorch or anything with ``__cuda_array_interface__``, on the
            current GPU and stored by rows without gaps; and NumPy scalars.
        """
        key = self._key(arguments)
        choice, launch = self._choices.get(key) or self._first(key, arguments)
        choice.calls += 1
        launch(*arguments)

    def prepare(self, *arguments: Any) -> Choice:
        """Do what the first call with these sizes does, but for the launch: choose, perhaps tune, compile and load.

        Raises
        ------
        UsageError
            An argument cannot be one of the kernel, or the effort is none that there is.
        WisdomError
            The file is damaged, or it must be written and cannot be.
        RunError
            No configuration works.
        """
        key = self._key(arguments)
        return (self._choices.get(key) or self._first(key, arguments))[0]

    def chosen(self, *arguments: Any) -> Choice:
        """Return the choice of earlier calls with these sizes, else what would be taken with effort ``"none"``."""
        return (self._choices.get(self._key(arguments)) or self._choose(self._case(arguments), arguments, "none"))[0]

    def explain(self, *arguments: Any) -> str:
        """Return :meth:`chosen` in words: the configuration, where it comes from, and its times."""
        return str(self.chosen(*arguments))

    def to_dataframe(self) -> pd.DataFrame:
        """Return the choices of this process: a row for each, with the fields of :class:`Choice` and the parameters."""
        import pandas as pd

        rows = [{**asdict(choice), **choice.configuration} for choice, _ in self._choices.values()]
        return pd.DataFrame(rows).drop(columns="configuration", errors="ignore")

    def _key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        size = self._kernel.call.problem_size
        size = size(*arguments) if callable(size) else size
        layouts = [layout_of(type(argument))(argument) for argument in arguments]  # type: ignore[arg-type]
        return size if type(size) in (int, tuple, str) else _sizes(size), *layouts

    def _first(self, key: Any, arguments: Sequence[Any]) -> tuple[Choice, Callable[..., None]]:
        """Choose, compile what is chosen, which the cache of cubins mostly has, and load it."""
        from mltune.results.tuned_kernel import load_code

        begun, case = time.perf_counter(), self._case(arguments)
        choice, codes = self._choose(case, arguments, effort(self._kernel.effort) or "quick")
        if choice.origin == "default":  # no run has checked the source
            check_source(case.placed)
        build, launch = build_once(case.placed, codes), case.placed.launch(codes)
        constants = {name: np.asarray(on_host(value)) for name, value in self._kernel.call.constants.items()}
        loaded = load_code(build.cubin, build.entry or case.stated.source.entry or "", launch, constants)
        is_plain = all(issubclass(kind, np.generic) or is_of_cupy(kind) for kind in map(type, arguments))
        self._choices[key] = choice, loaded if is_plain else loaded.launch
        choice.first_s = time.perf_counter() - begun
        return self._choices[key]

    def _choose(self, case: _Case, arguments: Sequence[Any], level: str) -> tuple[Choice, Mapping[str, int]]:
        wisdom, is_tuned = self._wisdom.read(), False
        match = _look_up(wisdom, case)
        if not _suffices(match, level):
            with ExitStack() as stack:  # one process tunes these sizes, others wait and read
                is_alone = self._is_alone(stack, case, level)
                wisdom = self._wisdom.read()
                match = _look_up(wisdom, case)
                if is_tuned := is_alone and not _suffices(match, level):
                    wisdom = self._tune(case, arguments, level, wisdom)
                    match = _look_up(wisdom, case)
        return self._choice(case, match, wisdom, is_tuned=is_tuned)

    def _is_alone(self, stack: ExitStack, case: _Case, level: str) -> bool:
        """Take the lock of the kernel, the GPU and these sizes; return False where another process keeps it."""
        kernel, problem, label = case.placed.kernel, case.placed.problem, case.placed.problem.label
        key = [case.placed.device.name, kernel.name, kernel.source.sha256, kernel.space.sha256, problem.to_json()]
        try:
            if self.file is None:
                raise WisdomError("the user's wisdom is switched off; give `file`.")
            stack.enter_context(locked_key(self.file, canonical(key), TIME_S[level] + START_S))
        except HeldError as error:
            law = "one process at a time tunes the same sizes"
            detail = f"this process has waited for {error.waited_s:.0f} s, and runs the best known configuration now"
            warnings.warn(f"{label}: {detail}; {law}, and the lock is held by {error}.", MltuneWarning, stacklevel=6)
            return False
        except WisdomError as error:
            hint = "MLTUNE_EFFORT=none takes what is known"
            raise WisdomError(f"{error} A tuned function writes there; {hint}.") from error
        return True

    def _case(self, arguments: Sequence[Any]) -> _Case:
        from mltune.device.query import driver_version, query_device
        from mltune.measure.build import with_known_options

        stand_ins = [stand_in(position, argument) for position, argument in enumerate(arguments)]
        devices = [getattr(argument, "device", None) for argument in arguments]
        numbers = [getattr(device, "id", getattr(device, "index", None)) for device in devices]  # of CuPy, of PyTorch
        index = next((number for number in numbers if isinstance(number, int)), 0)
        device, driver = query_device(index), driver_version()
        call = self._call_of(arguments, stand_ins)
        stated = make_of_call(replace(call, answer=None, verify=None))
        sized, problem = with_sizes(stated)
        kernel, _ = with_known_options(sized.with_variants(), sized.architecture_on(device.architecture))
        return _Case(stated, PlacedKernel(kernel, problem, device), index, driver)

    def _call_of(self, arguments: Sequence[Any], passed: Sequence[Any]) -> KernelCall:
        """Return the call for the size of some arguments, with others in their place."""
        return replace(self._kernel.call, problem_size=_sizes(self._key(arguments)[0]), arguments=passed)

    def _tune(self, case: _Case, arguments: Sequence[Any], level: str, wisdom: Wisdom) -> Wisdom:
        """Tune, add the outcome to the file, and return what is then known; a run that was killed goes on."""
        from mltune.tuning import tuner

        placed, label = case.placed, case.placed.problem.label
        check_source(placed)
        copied = [
            argument if hasattr(argument, "get") or hasattr(argument, "detach") else cupy_array(argument)
            for argument in arguments
        ]
        users, file = file_of_run(AUTO, replayed=False), self.file
        assert file is not None  # noqa: S101 - it is locked
        merged = wisdom.merge(load_wisdom(users, required=False)) if users and users != file else wisdom
        siblings = Siblings(tuple(entry for entry in merged if isinstance(entry, Entry)))
        call = self._call_of(arguments, copied)
        with tempfile.TemporaryDirectory(prefix="mltune-") as folder, self._kernel.shown() as report:
            kernel, problem = with_sizes(with_arguments(case.stated, call, Path(folder)))
            place = [os.uname().nodename, str(file), placed.device.name, case.driver]
            identity = [*place, kernel.source.sha256, kernel.space.sha256, problem.to_json(), level, self._kernel.seed]
            run = _runs() / hashlib.sha256(canonical(identity).encode()).hexdigest()[:32]
            options: dict[str, Any] = {"time_s": TIME_S[level], "seed": self._kernel.seed, "run": run, "wisdom": NONE}
            request = TuneRequest(problem, kernel, Target(cuda=case.index), **options)
            space = None if is_begun(run) else placed.space  # an earlier run may vary fewer options of the compiler
            try:
                result = tuner.tune(request, progress=report, siblings=siblings, space=space)
            except RunDirectoryError:  # what is left of an earlier run is damaged, or of other versions
                if in_use(run):
                    raise
                shutil.rmtree(run, ignore_errors=True)
                result = tuner.tune(request, progress=report, siblings=siblings, space=placed.space)
        if result.interrupted:
            raise KeyboardInterrupt
        if result.best is None or not result.settled:
            shutil.rmtree(run, ignore_errors=True)
            why = "; ".join({f"{record.state} {record.detail}": None for record in result.records})
            raise RunError(f"no configuration of {label} works: {printable(why, 600)}.")
        versions = {**result.header.versions, EFFORT: level}
        result = replace(result, problem=placed.problem, header=replace(result.header, versions=versions))
        outcome = outcomes(result, case.driver)
        try:
            wisdom = self._wisdom.add(outcome)
        except WisdomError as error:
            if not isinstance(error.__cause__, HeldError):
                raise
            detail = (
                f"the next process that calls for these sizes writes the outcome of the run, which is kept in {run}"
            )
            warnings.warn(f"{label}: {error} This process runs it; {detail}.", MltuneWarning, stacklevel=6)
            return wisdom.merge(outcome)
        shutil.rmtree(run, ignore_errors=True)
        return wisdom

    def _choice(
        self, case: _Case, match: Match | None, wisdom: Wisdom, *, is_tuned: bool
    ) -> tuple[Choice, Mapping[str, int]]:
        placed = case.placed
        label, kernel = placed.problem.label, placed.kernel
        codes = None if match is None else match.entry.codes(kernel)
        if match is None or codes is None:
            detail = f"the default, because {self.file} knows nothing of it on {placed.device.name}"
            if len(wisdom.of_kernel(kernel.name)):
                detail += ": it knows another source, launch, GPU or types, or configurations outside the search space"
                warnings.warn(f"{label}: {detail}.", MltuneWarning, stacklevel=5)
            return Choice(label, kernel.space.labelled(placed.default), "default", detail), placed.default
        entry, origins = match.entry, {"problem": "tuned" if is_tuned else "file", "gpu": "gpu"}
        detail = "tuned by this process" if is_tuned else f"{self.file}: {match}"
        if match.relation == "gpu":
            warnings.warn(f"{label}: {detail}; MLTUNE_EFFORT=quick tunes it here.", MltuneWarning, stacklevel=5)
        origin, level = origins.get(match.relation, "nearest"), entry.versions.get(EFFORT, "")
        return Choice(label, entry.configuration, origin, detail, level, entry.median_s, entry.default_s), codes


def _look_up(wisdom: Wisdom, case: _Case) -> Match | None:
    """Return what a wisdom knows: these sizes, the nearest, or these on another GPU of the architecture."""
    placed, types = case.placed, _types(case.placed.problem.to_json())
    same = (entry for entry in wisdom if _types(entry.problem) == types)
    of_types = Wisdom(entry for entry in same if isinstance(entry, Failure) or getattr(entry, "verified", False))
    matches = of_types.lookup(placed.kernel, placed.problem, placed.device, case.driver, space=placed.space)
    return next(iter(matches), None)


def _runs() -> Path:
    """Return the folder of runs that may be killed and go on; a new one for a user without a folder for caches."""
    try:
        return cache_folder() / "tuned"
    except OSError:
        return Path(tempfile.mkdtemp(prefix="mltune-"))


def _suffices(match: Match | None, level: str) -> bool:
    """Return whether what is known needs no tuning: it was found for these sizes, with at least as much effort."""
    if match is None or match.relation != "problem":
        return level == "none"
    return TIME_S.get(match.entry.versions.get(EFFORT, ""), math.inf) >= TIME_S[level]


def _types(problem: Mapping[str, Any]) -> list[tuple[Any, int]]:
    return [(argument.get("dtype"), len(argument.get("shape", ()))) for argument in problem.get("arguments", ())]


def _sizes(value: Any) -> tuple[Any, ...]:
    """Return the problem size of a call as a tuple."""
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    sizes = tuple(value) if several else (value,)
    if all(isinstance(size, str) or (isinstance(size, int | float | np.integer) and size > 0) for size in sizes):
        return sizes
    raise UsageError(
        f"{printable(repr(value), 100)} is no problem size, which is a positive number, a tuple or a text."
    )
