"""Units of time as people write them, and what other units say of a value that is no time."""

from __future__ import annotations

import re

from mltune.errors import DatasetError
from mltune.files.text import printable

# "miliseconds" is in T4 files of public hubs
_PREFIXES = {"": 1.0, "milli": 1e-3, "mili": 1e-3, "micro": 1e-6, "nano": 1e-9, "pico": 1e-12, "kilo": 1e3}
_SYMBOLS = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}
_SECONDS = {
    **{f"{prefix}{word}": scale for prefix, scale in _PREFIXES.items() for word in ("second", "seconds")},
    **{f"{prefix}{word}": scale for prefix, scale in _SYMBOLS.items() for word in ("s", "sec", "secs")},
    **dict.fromkeys(("minute", "minutes"), 60.0),
    **dict.fromkeys(("hour", "hours"), 3600.0),
}
_NO_TIMES = (
    (r"[kmgtp]?i?(flops?|ops?|b|bytes?|bits?|elements?|iterations?|[xyz]?cells?)(/s|ps|_per_s|/sec(ond)?)", "a rate"),
    (r"[kmgtp]?flops?|flop_s|throughput|bandwidth|performance|speed_?up|fps|[kmgt]?hz", "a rate"),
    (r"[munpk]?(j|joules?|ws|wh)|energy|watt_?(seconds?|hours?)", "an energy"),
    (r"[munpk]?(w|watts?)|power", "a power"),
    (r"cycles?|ticks?|clocks?", "a count of cycles"),
)
"""Patterns of units and names of quantities, in lower case. More of a rate is better, less of the others."""

_TIME_WORDS = re.compile(r"(?:^|[^a-z])(time|duration|runtime|latency|elapsed)(?:[^a-z]|$)")


def seconds_of(unit: object) -> float | None:
    """Return the length of a unit of time in seconds, None if it is none.

    Examples
    --------
    >>> seconds_of("Microseconds"), seconds_of("µs"), seconds_of(" MSEC "), seconds_of("GFLOP/s")
    (1e-06, 1e-06, 0.001, None)
    """
    return _SECONDS.get(unit.strip().strip("[]()").strip().lower()) if isinstance(unit, str) else None


def required_seconds(unit: object, place: str) -> float:
    """Return the length of a unit; what is no unit of time is refused by its name."""
    length_s = seconds_of(unit)
    if length_s is not None:
        return length_s
    if not isinstance(unit, str):
        raise DatasetError(f"the unit of {place} is a {type(unit).__name__}, not a text")
    quantity = quantity_of(unit)
    if quantity:
        raise no_time(unit, quantity, place)
    raise DatasetError(
        f"{place} has the unit {printable(unit, 60)!r}; a time has a unit such as s, ms, us, ns or microseconds"
    )


def quantity_of(text: str) -> str:
    """Return the quantity that is no time of which a text is a unit or the name, empty if none is known."""
    word = text.strip().strip("[]()").strip().lower().replace(" ", "")
    return next((quantity for pattern, quantity in _NO_TIMES if re.fullmatch(pattern, word)), "")


def no_time(name: str, quantity: str, place: str) -> DatasetError:
    """Return the refusal of values that are no times; it says which direction is better."""
    better = "more is better" if quantity == "a rate" else "less is better"
    kind = f"{quantity} ({better})" if quantity else "which is no time"
    return DatasetError(
        f"{place} has {printable(name, 60)!r}, {kind}; a dataset holds times: import those that belong to it"
    )


def is_time_name(name: str) -> bool:
    """Return whether the words of an objective's name tell of a time: ``TotalDuration``, ``kernel_time``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    return bool(_TIME_WORDS.search(words.replace("_", " ")))


def seconds_of_column(name: str) -> float:
    """Return the unit at the end of a column's name: ``time_ms``, ``time (us)``, ``Duration [Microseconds]``."""
    parts = re.split(r"[_\s.()\[\]-]+", name.strip(" _.()[]-"))
    length_s = seconds_of(parts[-1])
    if length_s is not None:
        return length_s
    for tail in (parts[-1], "_".join(parts[-2:]), name):
        if quantity := quantity_of(tail):
            raise no_time(name, quantity, "the column of the times")
    raise DatasetError(
        f"the name of the column {printable(name)!r} does not end in a unit (s, ms, us, ns); rename it, for instance "
        f"to {printable(name)}_ms, or give the unit with --time-unit"
    )
