"""The table of the upper bound on a problem."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mltune.results.rating import MS, Rate
from mltune.results.wording import configuration, milliseconds, percent
from mltune.show.table import Column, Table, number

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_OPCODES = 6
"""Opcodes of a main loop that are named."""


def bounded(document: Mapping[str, Any], rate: Rate) -> list[RenderableType]:
    """Show the result of ``mltune bound``."""
    hardware, best, given = document["hardware"], document["best"], document["given"]
    columns = {f"any kernel, {document['unit']}": hardware, f"{document['kernel']}, best": best["limits"]}
    columns |= {f"{one['kernel']}, best": one["best"]["limits"] for one in document["rivals"]}
    if given is not None:
        columns["with these values"] = given["limits"]
    table = Table(
        list(best["limits"]),
        [
            Column("limited by", str),
            *(number(heading, partial(_limit, limits, rate)) for heading, limits in columns.items()),
        ],
    )
    count, examined = document["configurations"], document["examined"]
    found = f"all {count:,} configurations" if examined == count else f"{examined:,} of {count:,} configurations"
    fastest = max(hardware.values()) / best["time_s"]
    lines = [
        "",
        f"* what limits most. The best of {found} of {document['kernel']} can take {milliseconds(best['time_s'])} at "
        f"least, {percent(fastest)} of the speed that the unit allows:",
        configuration(best["configuration"]),
    ]
    if given is not None:
        share = percent(best["time_s"] / given["time_s"])
        lines += [
            f"with these values {milliseconds(given['time_s'])}, {share} of that speed:",
            configuration(given["configuration"]),
        ]
    if document["code"] is not None:
        lines.append(_code(document["code"], rate))
    if not document["mixes"]:
        lines.append("rates of issue are those of a data sheet; `mltune device --measure` measures them")
    return [f"{document['problem']} on {document['device']}, at most", "", table, *lines]


def _limit(limits: Mapping[str, float], rate: Rate, name: str) -> str | None:
    """Write a limit, with a star at the one that limits most; None where it does not limit."""
    if not limits.get(name):
        return None
    return f"{_speed(limits[name], rate)}{' *' if limits[name] == max(limits.values()) else ''}"


def _code(code: Mapping[str, Any], rate: Rate) -> str:
    """Write what the main loop is made of: its opcodes, the most frequent first."""
    often = sorted(code["counts"].items(), key=lambda one: -one[1])
    parts = ", ".join(f"{count:,} {name}" for name, count in often[:MOST_OPCODES])
    return (
        f"main loop: {code['instructions']:,} instructions, {percent(code['multiply_adds'] / code['instructions'])} "
        f"multiply-adds ({parts}{', ...' if often[MOST_OPCODES:] else ''}); issuing all of them allows "
        f"{_speed(code['issue_s'], rate)}; {code['bank_conflicts']:,} have operands in one bank of registers"
    )


def _speed(time_s: float, rate: Rate) -> str:
    return milliseconds(time_s) if rate.unit is MS else f"{rate.unit.write(rate.of(time_s))} {rate.unit.name}"
