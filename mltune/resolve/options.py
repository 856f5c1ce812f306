"""The options of a run, declared once: functions, commands, plan files, requests and the documentation follow."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.text import did_you_mean, printable
from mltune.records.trial import SEARCHES

_LONGEST_VALUE = 60

DEFAULT_KERNEL = "gemm_simt"
"""The kernel of commands that work on a single one, where it solves the problem."""

LARGEST_SEED = 2**31 - 1
"""Largest seed: that of all random generators in use."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its type and its default.

    `meaning` is its line in the help of commands, and `metavar` how its value is called there. A number is at least
    `least` and at most `most`, a text one of `choices`. A share is from 0 to 1, and a percentage in a command.
    """

    meaning: str
    metavar: str = ""
    choices: Sequence[str] = ()
    least: int | None = None
    most: int | None = None
    is_share: bool = False
    in_commands: bool = True

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError where a value breaks the law of the option."""
        if self.choices:
            check_choice(name, value, self.choices)
        if self.least is not None and value is not None:
            whole_number(name, value, self.least, self.most)
        if self.is_share and value is not None and not (isinstance(value, int | float) and 0 < value <= 1):
            raise _refusal(name, value, "a share of the upper bound, above 0 and at most 1")


def _option(default: Any, meaning: str, metavar: str = "", **law: Any) -> Any:
    return field(default=default, metadata={"option": Option(meaning, metavar, **law)})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run: of :func:`mltune.tune`, of ``mltune tune``, and of ``[options]`` in a plan.

    A new option is a field here, and a parameter of :func:`mltune.tune`, where its docstring says more; a test compares
    them.
    """

    search: str = _option("model", "The search strategy; the others than model are for comparison.", choices=SEARCHES)
    skip: bool = _option(True, "Skip configurations that are predicted to be slow.")
    stop: bool = _option(True, "End the run when half of the measurements, at least 100 to 250, gained less than 1 %.")
    variants: bool = _option(True, "Try the fastest configurations with other compiler parameters too.")
    enough: float | None = _option(
        None, "End the run when the best reaches this share of the upper bound (mltune bound).", is_share=True
    )
    compilers: int | None = _option(
        None, "Number of compile processes. The default is one per core.", least=1, in_commands=False
    )
    prior: str = _option(
        "auto",
        "The pretrained model to start from. auto is the kernel's model, unless the physical model was better on "
        "held-out data. In replay auto is none.",
        "auto|none|NAME|FILE",
    )
    wisdom: str = _option(
        "auto",
        "The file of the best known configurations. They are measured first, and the winner is added. auto is the "
        "user's file on a GPU and none in replay.",
        "auto|none|FILE",
    )

    @property
    def fits_models(self) -> bool:
        """Whether the search fits models: to propose, or to skip."""
        return self.search == "model" or self.skip


@dataclass(frozen=True, kw_only=True)
class Limits:
    """On what, for how long and with which seed is tuned, as it is named: see :func:`mltune.tune`."""

    device: str = _option("auto", "auto, cuda:N or replay:DATASET.", "DEVICE")
    trials: int | None = _option(None, "The largest number of configurations to compile.", least=1)
    time: str | float | None = _option(None, "The time limit of the whole run, such as 20s, 30m or 1h30m.", "TIME")
    seed: int = _option(0, "The same seed proposes the same trials from the same results.", least=0, most=LARGEST_SEED)

    def __post_init__(self) -> None:
        check_options(self)


def options_of(declaration: type[RunOptions] | type[Limits]) -> dict[str, tuple[str, Option]]:
    """Return options by name: the type as it is written, and what is known of it."""
    return {field.name: (str(field.type), field.metadata["option"]) for field in fields(declaration)}


def check_options(options: RunOptions | Limits) -> None:
    """Raise UsageError where a value breaks the law of its option."""
    for declared in fields(options):
        if (option := declared.metadata.get("option")) is not None:
            value = getattr(options, declared.name)
            option.check(declared.name, value)
            if declared.type == "bool" and not isinstance(value, bool):
                raise _refusal(declared.name, value, "True or False")


def check_names(subject: str, arguments: Iterable[str], names: Collection[str]) -> None:
    """Raise UsageError where an argument has none of some names."""
    for name in arguments:
        if name not in names:
            raise UsageError(f"{subject} has no argument {name!r}{did_you_mean(name, names) or '.'}")


def directory_of(run: str | Path | None) -> Path | None:
    """Return the directory of a run, as it is named."""
    return None if run is None else Path(run)


def kernels_of(kernel: str | Path | Sequence[str | Path] | None) -> list[str | Path]:
    """Return the kernels that are named: none, one or several."""
    return [] if kernel is None else [kernel] if isinstance(kernel, str | Path) else [*kernel]


def _refusal(name: str, value: object, law: str) -> UsageError:
    return UsageError(f"{name} cannot be {printable(repr(value), _LONGEST_VALUE)}: it is {law}.")


DECLARED: Mapping[str, tuple[str, Option]] = options_of(RunOptions)
"""The options of every run by name: the type as it is written, and what is known of it."""

USUAL: Mapping[str, Any] = {field.name: field.default for field in fields(RunOptions)}
"""The defaults of :class:`RunOptions`."""


def unusual(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults.

    >>> unusual({"search": "model", "skip": False})
    {'skip': False}
    """
    return {name: value for name, value in options.items() if value != USUAL[name]}


def run_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run among the arguments of a function; paths become texts."""
    return {name: str(value) if isinstance(value := arguments[name], Path) else value for name in USUAL}


def check_choice(name: str, value: object, choices: Sequence[str]) -> object:
    """Return the value of an option that is one of some texts."""
    if value not in choices:
        hint = did_you_mean(str(value), choices) or "."
        wrong = printable(repr(value), _LONGEST_VALUE)
        raise UsageError(f"{name} cannot be {wrong}{hint} It is one of {', '.join(choices)}.")
    return value


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return the value of an option that is a whole number from `least` to `most`.

    >>> whole_number("trials", 300, 1)
    300
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        law = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise _refusal(name, value, f"a whole number {law}")
    return number
