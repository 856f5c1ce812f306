"""Tables of search spaces, upper bounds, checked kernel bundles, devices and clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mltune.files.text import many, printable
from mltune.results.rating import MS, Rate
from mltune.results.wording import configuration, gb_per_s, milliseconds, percent, tflops
from mltune.show.table import Column, JsonObject, Table, facts, number

if TYPE_CHECKING:
    from rich.console import RenderableType


NAMES = {
    "fp16_flops": "FP16, two at a time",
    "fp32_flops": "FP32",
    "fp64_flops": "FP64",
    "int32_ops": "INT32",
    "tensor_fp16_flops": "tensor cores, FP16",
    "tensor_bf16_flops": "tensor cores, BF16",
    "tensor_tf32_flops": "tensor cores, TF32",
    "tensor_fp64_flops": "tensor cores, FP64",
    "shared_bytes_per_s": "shared memory",
    "l2_bytes_per_s": "L2 cache",
    "memory_bytes_per_s": "memory",
    "launch_s": "a launch",
}
"""The words for the quantities of :data:`mltune.device.facts.Quantity`."""


def space(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune space``."""
    shown = facts(
        [
            ("kernel", f"{document['kernel']} for {document['label']} on {document['device']['name']}"),
            ("source", "in the bundle" if document["has_source"] else "none: it can be replayed, but not built"),
            ("combinations", f"{document['combinations']:,}"),
            ("valid", f"{document['valid']:,}"),
        ]
    )
    parameters = [
        Column("parameter", (0,)),
        number("values", lambda row: len(row[1])),
        Column("", lambda row: " ".join(map(str, row[1])), wraps=True),
    ]
    restrictions = [
        number("removes", "removes", percent),
        number("only this", "removes_alone", percent, spare=1),
        Column("restriction", "restriction", wraps=True),
        Column("reason", "reason", wraps=True),
    ]
    faults = [f"wrong: {fault}" for fault in document["faults"]]
    values = Table([*document["parameters"].items()], parameters)
    return [shown, *faults, "", values, "", Table(document["restrictions"], restrictions)]


def check(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune check``: faults, and every build with its resources or the compiler's first error."""
    builds = [{"number": number, **build} for number, build in enumerate(document["builds"], 1)]
    yield f"{document['kernel']}, {document['label']} on {document['device']['name']}"
    yield f"sample: launch and resources of {document['sampled']} of {document['valid']:,} valid configurations"
    yield from (f"wrong: {fault}" for fault in document["faults"])
    if document["not_built"]:
        yield f"builds: none: {document['not_built']}"
        return
    failed = [build for build in builds if build["state"] not in ("ok", "timeout")]
    firsts = {build["detail"]: build for build in reversed(failed)}  # the first build of each error
    compiled = sum(build["state"] == "ok" for build in builds)
    late = sum(build["state"] == "timeout" for build in builds)
    yield f"builds: {compiled} of {len(builds)} compiled{f', {late} not in time' if late else ''}"
    columns = [
        number("build", "number"),
        Column("state", "state"),
        number("registers", "registers", spare=3),
        number("spilled", "spill_bytes", spare=2),
        number("seconds", "compile_s", "{:.2f}".format, spare=1),
        Column("error", lambda build: _error(build, firsts.get(build["detail"]) or build), wraps=True),
    ]
    yield Table(builds, columns)
    for build in sorted(firsts.values(), key=lambda build: build["number"]):
        yield f"build {build['number']}: {configuration(build['configuration'])}"


def _error(build: JsonObject, first: JsonObject) -> str:
    """Write the error of a build: the compiler's first one, or the number of the build that had it before."""
    return build["detail"].partition("; ")[0] if build is first else f"as build {first['number']}"


def devices(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune device``."""
    columns = [
        Column("device", "spec"),
        Column("name", ("device", "name")),
        Column("architecture", "architecture", spare=3),
        number("SMs", ("device", "sm_count"), spare=2),
        number("clock", ("device", "clock_hz"), lambda clock_hz: f"{clock_hz / 1e6:.0f} MHz", spare=1),
        number("memory", ("device", "memory_bytes"), lambda count: f"{count / 2**30:.0f} GiB", spare=5),
        number("FP32 TFLOPS", ("peak_flops", "fp32"), lambda flops: f"{flops / 1e12:.1f}"),
        number("FP64 TFLOPS", ("peak_flops", "fp64"), lambda flops: f"{flops / 1e12:.1f}", spare=4),
    ]
    listed = document["devices"]
    yield Table(listed, columns) if listed else f"no GPU found: {document['reason']}"
    for entry in listed:
        if entry["device"].get("measured"):
            yield ""
            yield from _measured(entry, document.get("unmeasured", {}))
    if not document["libraries"]:
        return
    libraries = [
        Column("library", "name"),
        Column("version", lambda entry: entry["version"] or "not found"),
        Column("path", lambda entry: entry["path"] or None, wraps=True),
    ]
    yield ""
    yield Table(document["libraries"], libraries)
    problems = [problem for problem in document["problems"] if problem != document["reason"]]
    yield from ["", *(f"problem: {problem}" for problem in problems)] if problems else ()


def _measured(entry: JsonObject, unmeasured: Mapping[str, str]) -> Iterator[RenderableType]:
    """Show the measured rates of a device, and why others were not measured, by quantity."""
    shares = entry["share_of_data_sheet"]
    columns = [
        Column(f"measured on {printable(entry['device']['name'])}", lambda row: NAMES[row[0]]),
        number("median", lambda row: _amount(row[0], row[1]["median"])),
        number("spread", (1, "spread"), percent, spare=1),
        number("of the data sheet", lambda row: shares[row[0]], percent),
    ]
    yield Table([*entry["device"]["measured"].items()], columns)
    mixes = len(entry["device"].get("mixes", ()))
    if mixes:
        yield f"and the rates of {mixes} mixes of arithmetic and loads, from which `mltune bound` computes"
    for name, reason in unmeasured.items():
        yield f"not measured: {NAMES[name]}: {printable(reason)}"


def _amount(name: str, value: float) -> str:
    if name == "launch_s":
        return f"{1e6 * value:.2f} µs"
    if name.endswith("_bytes_per_s"):
        return f"{gb_per_s(1e-9 * value)} GB/s"
    return f"{tflops(1e-12 * value)} {'TOPS' if name.endswith('_ops') else 'TFLOPS'}"


def cluster(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune cluster check``."""
    workers, rate = document["workers"], document["compile"]
    columns = [
        Column("worker", "name"),
        Column("address", "address", wraps=True),
        Column("resources", lambda row: ", ".join(f"{name} {count:g}" for name, count in row["resources"].items())),
        Column("versions", lambda row: ", ".join(" ".join(pair) for pair in row["versions"].items()), wraps=True),
        Column("as here", lambda row: "yes" if row["fits"] else "no"),
        Column("device", lambda row: row["device"] or ""),
    ]
    yield f"scheduler {printable(document['scheduler'])}, {many(len(workers), 'worker')} with a GPU or that compile"
    if document["latency_s"] is not None:
        yield f"latency {document['latency_s'] * 1e3:.1f} ms"
    if workers:
        yield Table(workers, columns)
    if rate is None:
        yield "no worker compiles with the versions of this host"
    else:
        yield (
            f"{rate['per_second']:.1f} configurations/s on {many(rate['cores'], 'core')} "
            f"({rate['builds']} builds of gemm_simt in {rate['seconds']:.1f} s)"
        )


MOST_OPCODES = 6
"""Most opcodes of a main loop in the output."""


def bounded(document: Mapping[str, Any], rate: Rate) -> list[RenderableType]:
    """Show the result of ``mltune bound``."""
    hardware, best, own_limits = document["hardware"], document["best"], document["given"]
    columns = {f"any kernel, {document['unit']}": hardware, f"{document['kernel']}, best": best["limits"]}
    columns |= {f"{rival['kernel']}, best": rival["best"]["limits"] for rival in document["rivals"]}
    if own_limits is not None:
        columns["with these values"] = own_limits["limits"]
    figures = (number(heading, partial(_limit, limits, rate)) for heading, limits in columns.items())
    table = Table(list(best["limits"]), [Column("limited by", str), *figures])
    count, examined = document["configurations"], document["examined"]
    coverage = f"all {count:,} configurations" if examined == count else f"{examined:,} of {count:,} configurations"
    fastest = max(hardware.values()) / best["time_s"]
    lines = [
        "",
        f"* what limits most. The best of {coverage} of {document['kernel']} can take "
        f"{milliseconds(best['time_s'])} at least, {percent(fastest)} of the speed that the unit allows:",
        configuration(best["configuration"]),
    ]
    if own_limits is not None:
        share = percent(best["time_s"] / own_limits["time_s"])
        lines += [
            f"with these values {milliseconds(own_limits['time_s'])}, {share} of that speed:",
            configuration(own_limits["configuration"]),
        ]
    if document["code"] is not None:
        lines.append(_code(document["code"], rate))
    if not document["mixes"]:
        lines.append("rates of issue are those of a data sheet; `mltune device --measure` measures them")
    return [f"{document['problem']} on {document['device']}, at most", "", table, *lines]


def _limit(limits: Mapping[str, float], rate: Rate, name: str) -> str | None:
    """Write a limit, with a star at the one that binds; None where it is no limit."""
    if not limits.get(name):
        return None
    return f"{_speed(limits[name], rate)}{' *' if limits[name] == max(limits.values()) else ''}"


def _code(code: Mapping[str, Any], rate: Rate) -> str:
    """Write the opcodes of the main loop, the most frequent first."""
    often = sorted(code["counts"].items(), key=lambda entry: -entry[1])
    parts = ", ".join(f"{count:,} {name}" for name, count in often[:MOST_OPCODES])
    return (
        f"main loop: {code['instructions']:,} instructions, {percent(code['multiply_adds'] / code['instructions'])} "
        f"multiply-adds ({parts}{', ...' if often[MOST_OPCODES:] else ''}); issuing all of them allows "
        f"{_speed(code['issue_s'], rate)}; {code['bank_conflicts']:,} have operands in one bank of registers"
    )


def _speed(time_s: float, rate: Rate) -> str:
    return milliseconds(time_s) if rate.unit is MS else f"{rate.unit.write(rate.of(time_s))} {rate.unit.name}"
