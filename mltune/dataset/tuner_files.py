"""Readers of the JSON files of other tuners: Kernel Tuner, T4, KTT, CLBlast and CLTune.

T4 is the exchange format of the autotuning community: ``metadata.timeunit`` is the unit of all times, unless a
measurement has its own. KTT writes T4 and a format of its own. CLBlast's formats are those that
``PrintTimingsToFileAsJSON`` of its tuners writes, and ``compress_database`` of its database scripts; both hold only
configurations that ran and were right, and CLTune writes the former, too. They and Kernel Tuner's caches name no unit:
their times are milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.dataset.cells import Layout, is_failure_time, state_of, typed
from mltune.dataset.units import is_time_name, no_time, quantity_of, required_seconds, seconds_of
from mltune.errors import DatasetError
from mltune.files.reading import parse_json
from mltune.files.text import printable

Outcome = tuple[object, str, object, object]
"""Time, state, compile time and benchmark time of a configuration, milliseconds; None where unknown."""

ABSENT = "absent"
"""Value of a parameter that a configuration does not have."""

_PRECISION = "PRECISION"
_MOST_SHOWN = 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


@dataclass(frozen=True, eq=False)
class Results:
    """The parameters, configurations and outcomes of a file, and notices about how it was read."""

    parameters: Sequence[str]
    configurations: Sequence[Mapping[str, Any]]
    outcomes: Sequence[Outcome]
    notices: tuple[str, ...] = ()


class _Clock:
    """The units of one file: its own, or that of the user, or that of the format's rule."""

    def __init__(self, unit: object, layout: Layout, rule: str) -> None:
        self.file_s = None if unit in (None, "") else required_seconds(unit, "the file")
        self.user_s = None if layout.time_unit is None else required_seconds(layout.time_unit, "--time-unit")
        self.rule, self.rows, self.silent_row = rule, set[float](), 0

    def ms(self, unit: object = None, row: int = 0) -> float:
        """Return the length of the unit of a time in milliseconds; None is that of the file."""
        if unit in (None, ""):
            self.silent_row = self.silent_row or row
            return 1e3 * (self.file_s or self.user_s or 1e-3)
        length_s = required_seconds(unit, f"result {row}")
        self.rows.add(length_s)
        return 1e3 * length_s

    def other_ms(self) -> float:
        """Return the unit of times that have none next to them: that of the file, or of its measurements."""
        return 1e3 * next(iter(self.rows)) if len(self.rows) == 1 and self.file_s is None else self.ms()

    def notices(self) -> list[str]:
        """Return what the user should know of the units; units that contradict each other are refused."""
        named = {self.file_s} if self.file_s else self.rows
        if self.user_s and named - {self.user_s}:
            raise DatasetError("--time-unit is another than the unit that this file names; leave it out")
        if self.silent_row and self.rows and not (self.file_s or self.user_s):
            raise DatasetError(f"the time of result {self.silent_row} has no unit, but others have; give --time-unit")
        if named or self.user_s:
            return []
        return [f"the file names no unit of its times: {self.rule} has milliseconds, time_unit names another"]


def read_results(data: bytes, layout: Layout) -> Results:
    """Read the JSON file of a tuner."""
    document, notices = _document(data, layout.partial)
    if layout.section and "sections" not in document:
        raise DatasetError("sections were named, but this is no database of CLBlast, which alone has some")
    if "cache" in document:
        results = _kernel_tuner(document, layout)
    elif "sections" in document:
        results = _database(document, layout)
    elif "Results" in document:
        results = _ktt(document, layout)
    elif "results" in document:
        results = _clblast(document, layout) if _is_clblast(document["results"]) else _t4(document, layout)
    elif {"ConfigurationSpace", "KernelSpecification"} & document.keys():
        raise DatasetError("T1 describes a tuning problem and has no field 'results'; import its results, in T4")
    elif any(key.isdecimal() for key in document):
        raise DatasetError("it has no times, but choices by numbers of rows: a configuration file of vLLM or SGLang")
    else:
        raise DatasetError(
            f"no tuner is known that writes the fields {printable(', '.join(document), 300) or '(none)'}; a file has "
            "'cache' (Kernel Tuner), 'results' (T4, CLBlast, CLTune), 'Results' (KTT) or 'sections' (CLBlast)"
        )
    return Results(results.parameters, results.configurations, results.outcomes, (*notices, *results.notices))


def _document(data: bytes, partial: bool) -> tuple[dict[str, Any], list[str]]:
    """Parse JSON, and return notices; Kernel Tuner writes the closing braces of a cache only at its end."""
    notices = []
    try:
        document = parse_json(data, _object)
    except json.JSONDecodeError as error:
        document = _unfinished(data)
        if document is None:
            whole, closing = _whole(data)
            if not closing:
                raise error from None
            if not partial or not whole:
                raise DatasetError(
                    f"the file is cut off within an entry, at its end of {len(data):,} bytes; --partial imports the "
                    "entries that are whole"
                    if whole
                    else f"the file is cut off at its end of {len(data):,} bytes, before its first whole entry"
                ) from None
            document = parse_json(data[:whole] + closing, _object)
            notices = [f"the file is cut off: its last {len(data) - whole:,} bytes were left out"]
    if not isinstance(document, dict):
        raise TypeError(f"it is a {type(document).__name__}, not a JSON object")
    return document, notices


def _unfinished(data: bytes) -> Any:
    """Return a cache of Kernel Tuner without its closing braces, None if the text is something else."""
    with contextlib.suppress(json.JSONDecodeError):
        document = parse_json(data.rstrip().rstrip(b",") + b"}}", _object)
        if isinstance(document, dict) and "cache" in document:
            return document
    return None


def _whole(data: bytes) -> tuple[int, bytes]:
    """Return where the last whole entry of a file that was cut off ends, 0 if there is none, and what closes it.

    Entries are at the third level, such as those of ``results``. Nothing closes a file that is not cut off.
    """
    closers = {b"{": b"}", b"[": b"]"}
    stack: list[bytes] = []
    whole, closing = 0, b""
    for token in _TOKEN.finditer(data):
        text = token[0]
        if text in closers:
            stack.append(closers[text])
        elif stack and text == stack[-1]:
            stack.pop()
            if len(stack) == 2:
                whole, closing = token.end(), b"".join(reversed(stack))
        elif text in (b"}", b"]"):
            return 0, b""
    return whole, closing or b"".join(reversed(stack)) if stack else b""


def _object(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """Return an object. A key of a cache that occurs twice is a repeated measurement: keys become numbers."""
    document = dict(pairs)
    if len(document) == len(pairs):
        return document
    if all(isinstance(value, dict) and "time" in value for _, value in pairs):
        return dict(enumerate(value for _, value in pairs))
    raise ValueError("a key of an object occurs twice; keys differ")


def _each(rows: object, read: Callable[[Any, int], Any], name: str = "results", kind: type = dict) -> list[Any]:
    """Return what is read of each row; a row that lacks a field is named."""
    if not isinstance(rows, list):
        raise DatasetError(f"the field {name!r} is a {type(rows).__name__}, not a list")
    values = []
    for number, entry in enumerate(rows, 1):
        if not isinstance(entry, kind):
            raise DatasetError(f"result {number} is a {type(entry).__name__}, not a {kind.__name__}")
        try:
            values.append(read(entry, number))
        except KeyError as error:
            raise DatasetError(f"result {number} has no field {printable(error.args[0], 60)!r}") from error
        except (TypeError, AttributeError, ValueError) as error:
            raise DatasetError(f"result {number} is malformed: {printable(error, 200)}") from error
    return values


def _union(rows: Sequence[tuple[Any, Outcome]], notices: Iterable[str]) -> Results:
    """Return results with all parameters that a configuration has; others have the value ``absent`` for it."""
    configurations = [configuration for configuration, _ in rows]
    for number, configuration in enumerate(configurations, 1):
        if not isinstance(configuration, dict):
            raise DatasetError(f"the configuration of result {number} is no object")
    names = list(dict.fromkeys(name for configuration in configurations for name in configuration))
    lacking = [name for name in names if any(name not in configuration for configuration in configurations)]
    if lacking:
        if any(configuration.get(name) == ABSENT for configuration in configurations for name in lacking):
            raise DatasetError(f"some configurations lack a parameter that has the value {ABSENT!r} in another one")
        configurations = [{name: configuration.get(name, ABSENT) for name in names} for configuration in configurations]
        shown = printable(", ".join(map(str, lacking[:_MOST_SHOWN])), 300)
        notices = [*notices, f"not all configurations have {shown}: where it is missing, its value is {ABSENT!r}"]
    return Results(names, configurations, [outcome for _, outcome in rows], tuple(notices))


def _kernel_tuner(document: Mapping[str, Any], layout: Layout) -> Results:
    """Return a cache of Kernel Tuner; a failure has the name of an error, or 1e20, in place of its time."""
    clock = _Clock(None, layout, "a cache of Kernel Tuner")
    if "tune_params_keys" not in document:
        raise DatasetError("the field 'tune_params_keys' is missing, which a cache of Kernel Tuner has")
    names = [str(name) for name in document["tune_params_keys"]]
    entries = [*document["cache"].values()] if isinstance(document["cache"], dict) else document["cache"]
    unit_ms = clock.ms()

    def outcome(entry: Mapping[str, Any], _: int) -> Outcome:
        for name in names:
            entry[name]  # a row that lacks a parameter is named
        if "__error__" in entry:
            error = str(entry["__error__"])
            time: object = error if _failed(error) else None
        else:
            time = _scaled(entry["time"], unit_ms)
        return time, "ok", _number(entry.get("compile_time"), unit_ms), _number(entry.get("benchmark_time"), unit_ms)

    outcomes = _each(entries, outcome, "cache")
    objective = document.get("objective", "time")
    notices = clock.notices() if objective == "time" else [*clock.notices(), _other_objective([objective])]
    return Results(names, entries, outcomes, tuple(notices))


def _t4(document: Mapping[str, Any], layout: Layout) -> Results:
    """Return results in T4."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    clock = _Clock(metadata.get("timeunit"), layout, "T4 of Kernel Tuner")
    objectives: set[str] = set()
    read = _each(document["results"], lambda result, row: _t4_result(result, row, clock, objectives))
    notices = clock.notices()
    if objectives:
        notices.append(_other_objective(sorted(objectives)))
    other_ms = clock.other_ms()
    rows = [
        (configuration, (time, state, _number(compile_time, other_ms), _number(benchmark_time, other_ms)))
        for configuration, (time, state, compile_time, benchmark_time) in read
    ]
    results = _union(rows, notices)
    return _with_numbers(results) if metadata.get("autotuner") == "KTT" else results


def _other_objective(names: Sequence[object]) -> str:
    """Return the notice of an objective that is no time."""
    shown = printable(", ".join(map(str, names[:_MOST_SHOWN])), 200)
    return f"the objective of the file is {shown}, and the dataset holds the times"


def _t4_result(
    result: Mapping[str, Any], row: int, clock: _Clock, objectives: set[str]
) -> tuple[Any, tuple[object, str, object, object]]:
    """Return the configuration and the outcome of a T4 result; compile and benchmark times have the file's unit."""
    times = result.get("times") or {}
    state, correctness = _text(result.get("invalidity", "correct"), "invalidity", row), result.get("correctness")
    if not isinstance(correctness, int | float | None) or correctness not in (0, 1, None):
        raise DatasetError(f"the correctness of result {row} is neither 0 nor 1")
    if correctness == 0 and state_of(state) in (None, "ok"):
        state = "correctness"
    time = None if _failed(state) else _t4_time(result, row, clock, objectives)
    spent = times.get("compilation", times.get("compilation_time")), times.get("benchmark")
    return result["configuration"], (time, state, *spent)


def _text(value: object, name: str, row: int) -> str:
    """Return a field that is a text."""
    if not isinstance(value, str):
        raise DatasetError(f"the field {name!r} of result {row} is a {type(value).__name__}, not a text")
    return value


def _failed(state: str) -> bool:
    return state_of(state) not in (None, "ok")


def _t4_time(result: Mapping[str, Any], row: int, clock: _Clock, objectives: set[str]) -> object:
    """Return the time of a T4 result, milliseconds: that of a measurement, or else the median of its runs."""
    measured = {str(measurement["name"]): measurement for measurement in result.get("measurements") or ()}
    objective = str((result.get("objectives") or ["time"])[0])
    runtimes = (result.get("times") or {}).get("runtimes")
    if not _is_time(objective, measured.get(objective)):
        objectives.add(objective)
    for name in ("time", objective):
        if name in measured and _is_time(name, measured[name]):
            return _scaled(measured[name].get("value"), clock.ms(measured[name].get("unit"), row))
    if runtimes:
        if not isinstance(runtimes, list):
            raise DatasetError(f"the runtimes of result {row} are no list of numbers")
        values = [_scaled(value, clock.ms(row=row)) for value in runtimes]
        numbers = [value for value in values if isinstance(value, int | float)]
        return statistics.median(numbers) if len(numbers) == len(values) else values[0]
    place = f"result {row}"
    if objective not in measured:
        raise DatasetError(f"{place} has neither the measurement 'time' nor 'times.runtimes'")
    measurement = measured[objective]
    unit = measurement.get("unit")
    name = str(unit) if isinstance(unit, str) and quantity_of(unit) else objective
    raise no_time(name, quantity_of(name), place)


def _is_time(name: str, measurement: Mapping[str, Any] | None) -> bool:
    """Return whether a measurement is a time: by its unit, or by its name if it has none."""
    unit = (measurement or {}).get("unit")
    if name == "time" or (unit and not isinstance(unit, str)):
        return True  # a unit that is wrong is refused when it is read
    return seconds_of(unit) is not None if unit else is_time_name(name)


def _ktt(document: Mapping[str, Any], layout: Layout) -> Results:
    """Return results in KTT's own format."""
    metadata = document.get("Metadata")
    clock = _Clock(metadata.get("TimeUnit") if isinstance(metadata, dict) else None, layout, "KTT")
    unit_ms = clock.ms()

    def result(entry: Mapping[str, Any], row: int) -> tuple[dict[str, Any], Outcome]:
        configuration = {str(pair["Name"]): pair["Value"] for pair in entry["Configuration"]}
        state = _text(entry["Status"], "Status", row)
        time = None if _failed(state) else _scaled(entry["TotalDuration"], unit_ms)
        return configuration, (time, state, _number(entry.get("CompilationOverhead"), unit_ms), None)

    return _union(_each(document["Results"], result, "Results"), clock.notices())


def _is_clblast(results: object) -> bool:
    return isinstance(results, list) and bool(results) and isinstance(results[0], dict) and "parameters" in results[0]


def _clblast(document: Mapping[str, Any], layout: Layout) -> Results:
    """Return the output of a tuner of CLBlast; the parameter PRECISION, which is the same in all rows, is left out."""
    clock = _Clock(None, layout, "a tuner of CLBlast")
    unit_ms = clock.ms()

    def result(entry: Mapping[str, Any], _: int) -> tuple[dict[str, Any], Outcome]:
        configuration = {name: value for name, value in entry["parameters"].items() if name != _PRECISION}
        return configuration, (_scaled(entry["time"], unit_ms), "ok", None, None)

    return _union(_each(document["results"], result), clock.notices())


def _database(document: Mapping[str, Any], layout: Layout) -> Results:
    """Return one section of CLBlast's database."""
    clock = _Clock(None, layout, "CLBlast's database")
    unit_ms = clock.ms()
    section = _chosen(document["sections"], layout.section)
    names = [str(name) for name in section["parameter_names"]]

    def result(entry: Sequence[Any], _: int) -> tuple[dict[str, str], Outcome]:
        values, time = entry
        texts = str(values).split(",")
        if len(texts) != len(names):
            raise ValueError(f"it has {len(texts)} values of {len(names)} parameters")
        return dict(zip(names, texts, strict=True)), (_scaled(time, unit_ms), "ok", None, None)

    return _with_numbers(_union(_each(section["results"], result, kind=list), clock.notices()))


def _with_numbers(results: Results) -> Results:
    """Return results with the numbers that stand as texts in their configurations."""
    columns = []
    for name in results.parameters:
        values = [configuration[name] for configuration in results.configurations]
        texts = [value for value in values if value != ABSENT]
        numbers = iter(typed(texts) if all(isinstance(text, str) for text in texts) else texts)
        columns.append([value if value == ABSENT else next(numbers) for value in values])
    rows = [dict(zip(results.parameters, values, strict=True)) for values in zip(*columns, strict=True)]
    return Results(results.parameters, rows, results.outcomes, results.notices)


def _chosen(sections: list[dict[str, Any]], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the one section that has some fields."""
    fitting = [
        section for section in sections if all(str(section.get(name)) == value for name, value in fields.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    among = fitting or sections
    texts = [name for name in among[0] if name not in ("results", "parameter_names")] if among else []
    values = {name: sorted({str(section.get(name)) for section in among}) for name in texts}
    differing = "; ".join(
        f"{name}: {', '.join(printable(value, 60) for value in texts_of_name[:_MOST_SHOWN])}"
        for name, texts_of_name in values.items()
        if len(texts_of_name) > 1 or not fitting
    )
    choice = ", ".join(f"{name}={value}" for name, value in fields.items())
    count = f"{len(sections)} sections"
    facts = f"{len(fitting)} of {count} have {printable(choice, 300)}" if fields else f"the database has {count}"
    raise DatasetError(
        f"{facts}, but one section is imported; choose it with --section NAME=VALUE: "
        f"{printable(differing, longest=2000)}"
    )


def _scaled(value: object, scale: float) -> object:
    """Return a time in milliseconds; a number that stands for a failure is none, other values are left as they are."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if is_failure_time(value):
        return None
    return value if scale == 1 else value * scale


def _number(value: object, scale: float) -> float | None:
    """Return a number of a JSON document, None for other values."""
    return value * scale if isinstance(value, int | float) and not isinstance(value, bool) else None
