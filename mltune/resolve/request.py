"""Tuning requests: kernel, problem, device and budget, resolved from the options of a command or an API call."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import BundleError, DatasetError, ProblemError, UsageError
from mltune.files.text import did_you_mean, printable
from mltune.problem.problem import GEMM_PRECISIONS, Problem
from mltune.resolve.device import choose, parse_device
from mltune.resolve.kernels import DEFAULT_KERNEL, candidates, check_accuracies, kernels_for

if TYPE_CHECKING:
    from mltune.cost.pretrained import Sweep
    from mltune.kernel.arrays import ArraysDefinition
    from mltune.kernel.bundle import Kernel
    from mltune.known.entry import Entry

REPLAY_TRIALS = 300
"""Trials of a run in replay without a budget."""

GPU_TIME_S = 60.0
"""Seconds of a run on a GPU without a budget."""

LARGEST_SEED = 2**31 - 1
"""Largest seed: that of all random generators in use."""

LONGEST_S = 366 * 86_400.0
"""Longest time of a run, seconds."""

_LONGEST_VALUE = 60

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")

Shape = Mapping[str, Any]
"""The options ``trans``, ``size``, ``m``, ``n``, ``k`` and ``batch`` of a problem; None where one is not given."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The input of a tuning run.

    Attributes
    ----------
    problem : Problem
    kernel : str or Kernel
        Name or folder of the bundle, or a kernel.
    device : str
        ``"auto"``, ``"cuda:N"`` or ``"replay:NAME"``.
    trials : int or None
        Most trials, skipped ones included; 0 only declares the winner of a run on record.
    time_s : float or None
        Most seconds, those of earlier runs in the same directory included.
    seed : int
    search : str
        One of :data:`mltune.search.search.SEARCHES`; the others than ``"model"`` are for comparison.
    skip : bool
        Whether gates skip configurations that are predicted to be slow.
    stop : bool
        Whether the run ends by itself once nothing untried can be expected to be faster.
    enough : float or None
        The run ends once the best reaches this share of the upper bound (:mod:`mltune.cost.bound`); None never.
    run : pathlib.Path or None
        Directory of the run; None makes a new one under ``runs/``.
    store : str
        URL of the PostgreSQL database for the records of a new run; empty for a file in its directory.
    compilers : int or None
        Compile processes; None is one per core.
    compile_on : str
        Cluster whose compile workers help (:func:`mltune.measure.cluster_connection.connect`); empty for none.
    prior : str
        The pretrained model that the search starts from (:func:`mltune.cost.model_choice.choose_model`).
    wisdom : str, pathlib.Path or None
        File of the best known configurations, which are measured first and to which the winner is added; ``"none"``
        for none. None is the user's file on a GPU (:func:`mltune.known.wisdom_file.default_file`), and none in replay.
    siblings : tuple of Entry
        What the other problems of a campaign have found so far: measured first as well.
    sweeps : tuple of Sweep
        What the most similar of them have measured so far: a model that is trained on it takes the place of `prior`.
    choice : str
        Name of the choice among kernels that the run belongs to; empty if there is none.
    """

    problem: Problem
    kernel: str | Kernel = DEFAULT_KERNEL
    device: str = "auto"
    trials: int | None = None
    time_s: float | None = None
    seed: int = 0
    search: str = "model"
    skip: bool = True
    stop: bool = True
    enough: float | None = None
    run: Path | None = None
    store: str = ""
    compilers: int | None = None
    compile_on: str = ""
    prior: str = "auto"
    wisdom: str | Path | None = None
    siblings: tuple[Entry, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    choice: str = ""

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0, LARGEST_SEED)
        for name, value, least in (("trials", self.trials, 0), ("compilers", self.compilers, 1)):
            if value is not None:
                whole_number(name, value, least)
        if self.enough is not None and not 0 < self.enough <= 1:
            raise UsageError(f"enough is a share of the upper bound, above 0 and at most 1, got {self.enough:g}.")
        if self.time_s is not None and not 0 <= self.time_s <= LONGEST_S:
            raise UsageError(f"the time of a run is at most 366 days, got {self.time_s:g} s.")
        if self.search != "model":
            from mltune.search.search import SEARCHES  # slow to import

            if self.search not in SEARCHES:
                hint = did_you_mean(str(self.search), SEARCHES) or "."
                raise UsageError(f"search is one of {', '.join(SEARCHES)}, got {self.search!r}{hint}")


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return the value of an option that is a whole number.

    Raises
    ------
    UsageError
        It is none, or not from ``least`` to ``most``.

    Examples
    --------
    >>> whole_number("trials", 300, 1)
    300
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        law = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is a whole number {law}, got {printable(repr(value), _LONGEST_VALUE)}.")
    return number


def tune_request(
    problem: str | Problem | None,
    shape: Shape,
    *,
    kernel: str | Path | None = None,
    accuracy: str | None = None,
    device: str = "auto",
    trials: int | None = None,
    time: str | float | None = None,
    **options: Any,
) -> tuple[TuneRequest, tuple[str, ...]]:
    """Resolve the options of ``mltune tune``.

    In replay, kernel and problem are the recorded ones by default; given ones must be the same.

    Parameters
    ----------
    problem : str, Problem or None
        Its name, or the problem itself.
    shape : mapping
        See :data:`Shape`. ``size`` may map names to sizes.
    kernel, device, trials
        See :class:`TuneRequest`.
    accuracy : str, optional
        The accuracy class of the kernel (:func:`named_problem`).
    time : str, float or None
        A duration, or seconds.
    **options
        Further fields of :class:`TuneRequest`.

    Returns
    -------
    TuneRequest
        With a device and a budget.
    tuple of str
        Notices for the user: about the device that was chosen, and about a dataset of another source.

    Raises
    ------
    UsageError
        The request cannot be met.
    """
    from mltune.dataset.dataset import load_manifest
    from mltune.dataset.recorded_kernel import recorded_kernel
    from mltune.kernel.reader import is_bundle, load_kernel

    time_s = time if time is None else parse_duration(str(time))
    if trials is not None:
        whole_number("trials", trials, 1)
    shape = {name: value for name, value in shape.items() if value is not None}
    target = parse_device(device)
    without_bundle, notice = None, ""
    if target is not None and target.dataset is not None:
        recorded = load_manifest(target.dataset)
        if kernel is None and not is_bundle(recorded.kernel):
            without_bundle, notice = recorded_kernel(recorded)
        kernel = recorded.kernel if kernel is None else kernel
        found = _recorded(problem, shape, recorded.problem, device)
    else:
        found, kernel = named_problem(problem, shape, kernel, device, accuracy)
    if target is None:
        any_shape = not shape and isinstance(problem, str)
        target = choose(load_kernel(kernel).name, found, any_shape=any_shape)
        if target.dataset is not None and any_shape:
            found = load_manifest(target.dataset).problem
    if trials is None and time_s is None:
        trials, time_s = (None, GPU_TIME_S) if target.dataset is None else (REPLAY_TRIALS, None)
    request = TuneRequest(found, without_bundle or str(kernel), str(target), trials=trials, time_s=time_s, **options)
    notices = [target.notice, notice]
    if target.dataset is not None:
        bundle = without_bundle or load_kernel(kernel)
        check_accuracies([bundle], accuracy)
        notices.append(load_manifest(target.dataset).check_kernel(bundle))
        bundle.check_problem(found)
    return request, tuple(filter(None, notices))


def space_problem(kernel: Kernel, precision: str | None, shape: Shape) -> Problem:
    """Return the problem for which ``mltune space`` describes the search space of a kernel.

    Raises
    ------
    UsageError
        The kernel can only be replayed, and no timings of it are recorded here, or a shape is given.
    """
    from mltune.dataset.dataset import list_datasets
    from mltune.problem.kinds import KINDS

    parse = KINDS[kernel.problem].parse
    shape = {name: value for name, value in shape.items() if value is not None}
    if parse is not None:
        return parse(f"{precision or kernel.precisions[0]}gemm", **shape)
    if kernel.arrays is not None and precision is None:
        return _of_arrays(kernel.arrays, shape)
    recorded = [manifest.problem for manifest in list_datasets() if manifest.kernel == kernel.name]
    if not recorded or any(value is not None for value in (precision, *shape.values())):
        raise UsageError(
            f"the space of a kernel that is only replayed is that of its recorded problem, but for {kernel.name} "
            f"{'there is none' if not recorded else 'another one was requested'}; see `mltune datasets`."
        )
    return recorded[0]


def parse_duration(text: str) -> float:
    """Read a duration, such as ``90``, ``20s``, ``30m`` or ``1h30m``, in seconds.

    Raises
    ------
    UsageError
        The text is no duration, or not a positive one.

    Examples
    --------
    >>> parse_duration("1h30m")
    5400.0
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(
            f"a time is a positive number of hours, minutes and seconds, got {text!r}; write 20s, 30m or 1h30m."
        )
    return total


def named_problem(
    problem: str | Problem | None,
    shape: Shape,
    kernel: str | Path | None = None,
    device: str = "auto",
    accuracy: str | None = None,
) -> tuple[Problem, str]:
    """Return the problem to measure, and the name or folder of its kernel: the first candidate where none is named.

    Parameters
    ----------
    problem : str, Problem or None
        The name of a GEMM problem; the name or folder of a kernel of kind arrays; or None for the problem of `kernel`.
    shape : mapping
        See :data:`Shape`. ``size`` may map names to sizes.
    kernel : str, pathlib.Path or None
    device : str
        For messages.
    accuracy : str, optional
        The accuracy class of the kernel; without it that of a named kernel does not matter, and another one is of the
        strictest.

    Raises
    ------
    UsageError
        There is no such problem, it has no such shape, or the kernel is not of the class.
    """
    from mltune.kernel.reader import load_kernel
    from mltune.problem.kinds import problem_from_name

    shape = {name: value for name, value in shape.items() if value is not None}
    bundle = None if kernel is None else load_kernel(kernel)
    if bundle is None and isinstance(problem, str) and not is_gemm(problem):
        with contextlib.suppress(BundleError) if not _is_folder(problem) else contextlib.nullcontext():
            found = load_kernel(problem)
            if found.arrays is not None:
                bundle, kernel, problem = found, problem, None
            elif found.source is None:
                raise UsageError(
                    f"a problem can be run, but the kernel {found.name} is only replayed; name recorded timings with "
                    "--device replay:NAME (see `mltune datasets`)."
                )
    check_accuracies([] if bundle is None else [bundle], accuracy)
    if bundle is not None and bundle.arrays is not None and problem in (None, bundle.name):
        return _of_arrays(bundle.arrays, shape), str(kernel)
    if isinstance(problem, str):
        if isinstance(shape.get("size"), Mapping):
            raise UsageError(f"--size of a GEMM is a number, got {printable(shape['size'], _LONGEST_VALUE)}.")
        try:
            gemm = problem_from_name(problem, **shape)
        except ProblemError as error:
            if is_gemm(problem):
                raise
            raise ProblemError(
                f"{error} It may also be a kernel with sizes of its own, or the folder of one."
            ) from error
        return gemm, candidates(gemm, accuracy)[0] if kernel is None else str(kernel)
    if problem is None:
        raise UsageError(
            f"a problem must be named to be measured, such as sgemm, but there is none and the device is {device}; "
            "only a replay has a problem of its own (device replay:DATASET)."
        )
    if shape:
        raise UsageError(f"a problem has its own shape, but {problem.label} was given with {', '.join(shape)}.")
    return problem, candidates(problem, accuracy)[0] if kernel is None else str(kernel)


def is_gemm(name: str) -> bool:
    """Return whether a name is that of a GEMM problem."""
    return name.lower() in {f"{precision}gemm" for precision in GEMM_PRECISIONS}


def named_kernels(
    problem: str | Problem | None, shape: Shape, kernels: Sequence[str | Path] = (), accuracy: str | None = None
) -> tuple[Problem, list[str]]:
    """Return the problem, and the kernels among which its is chosen: those that are named, or all candidates.

    Parameters and errors are those of :func:`named_problem`.
    """
    from mltune.problem.kinds import KINDS

    found, own = named_problem(problem, shape, kernels[0] if kernels else None, accuracy=accuracy)
    chosen = kernels or KINDS[found.kind].parse is not None
    return found, kernels_for(found, kernels, accuracy) if chosen else [own]


def _is_folder(name: str) -> bool:
    return (Path(name) / "kernel.toml").is_file()


def _of_arrays(definition: ArraysDefinition, shape: Shape) -> Problem:
    """Return the problem of a kernel of any kind at the sizes of a shape."""
    sizes = shape.get("size", {})
    others = shape.keys() - {"size"}
    if others or not isinstance(sizes, Mapping):
        raise UsageError(
            f"the sizes of {definition.name} are {', '.join(definition.sizes) or 'none'}: give them by name, such as "
            f"--size {next(iter(definition.sizes), 'n')}=1024, got {', '.join(sorted(others)) or sizes}."
        )
    return definition.problem(sizes)


def _recorded(problem: str | Problem | None, shape: Shape, recorded: Problem, device: str) -> Problem:
    """Return the recorded problem, if it is the requested one."""
    from mltune.kernel.reader import load_kernel
    from mltune.problem.kinds import KINDS

    parse = KINDS[recorded.kind].parse
    if isinstance(problem, str | None) and parse is not None:
        problem, shape = parse(problem or recorded.name, default=recorded, **shape), {}
    if isinstance(problem, str) and _is_folder(problem):
        problem = load_kernel(problem).name
    sizes = shape.get("size")
    if isinstance(sizes, Mapping) and sizes.items() <= recorded.variables().items():
        shape = {name: value for name, value in shape.items() if name != "size"}
    if problem in (None, recorded.name, recorded) and not shape:
        return recorded
    if not isinstance(problem, str | None):
        text = named_problem(problem, shape, device=device)[0].label
    else:
        text = f"another size of {recorded.name}" if problem in (None, recorded.name) else str(problem)
    raise DatasetError(
        f"a replay needs the problem that was recorded, but {device} holds {recorded.label}, and {text} was requested; "
        "see `mltune datasets`."
    )
