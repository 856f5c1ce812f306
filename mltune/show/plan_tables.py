"""Table of a plan: its problems, their shares of the budget, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mltune.results.wording import UNKNOWN, spaced_duration
from mltune.show.tables import table

if TYPE_CHECKING:
    from rich.console import RenderableType


def forecast(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the parts of the output of ``mltune plan``."""
    unit, problems = document["unit"], document["problems"]
    yield f"{document['title']}: {len(problems)} problems, {amount(document['budget'], unit)}, on {_devices(document)}"
    if document["obstacle"]:
        replayed = sum(problem["recorded"] is not None for problem in problems)
        yield f"It cannot run here: {document['obstacle']}"
        yield f"Timings of {replayed} of {len(problems)} problems are recorded. The table below is for one GPU."
    yield ""
    yield table(
        ["problem", ">priority", ">minimum", ">even share", ">trials at most", ">operands", "recorded timings"],
        [
            [
                problem["slug"],
                f"{problem['priority']:g}",
                amount(problem["minimum"], unit),
                amount(problem["share"], unit),
                "unknown" if problem["trials"] is None else str(problem["trials"]),
                UNKNOWN if problem["operand_bytes"] is None else _bytes(problem["operand_bytes"]),
                problem["recorded"] or UNKNOWN,
            ]
            for problem in problems
        ],
    )
    yield ""
    yield (
        f"Every problem has its minimum after {amount(document['first_round'], unit)}; the rest of "
        f"{amount(document['budget'], unit)} goes to the problems with the largest expected gain."
    )
    sources = sorted({problem["rate_from"] for problem in problems if problem["rate_from"]})
    if sources:
        yield (
            f"Trials are upper bounds for {document['cores']} cores, from the time per trial in the recordings "
            f"{', '.join(sources)}."
        )
    yield f"Written to the run directory: {', '.join(document['writes'])}"


def amount(value: float, unit: str) -> str:
    """Write an amount of a budget: ``"8 h 30 min"``, ``"300 trials"``."""
    return f"{value:.0f} trials" if unit == "trials" else spaced_duration(value)


def _devices(document: Mapping[str, Any]) -> str:
    """Write the devices of a plan."""
    if document["obstacle"]:
        return "a GPU"
    if document["devices"][0]["spec"] == "replay":
        return "recorded timings"
    return ", ".join(f"{device['spec']} ({device['name']})" for device in document["devices"])


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
