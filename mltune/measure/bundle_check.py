"""The check of a kernel bundle: the expressions of many configurations, and builds of some."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mltune.device.facts import Device
from mltune.errors import BundleError, DeviceError
from mltune.files.folders import page
from mltune.files.text import html_table, many
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, columns_of, length, row
from mltune.kernel.faults import BundleFault, find_faults, find_file_faults
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import ConstrainedSpace
from mltune.measure.source_check import entry_probes, macro_probes, missing_constants, unused_at_launch, with_probe
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.trial import Build, TrialState

SAMPLE = 1000
"""Number of configurations whose launch and resources are computed."""

BUILDS = 5
"""Number of configurations that are compiled."""

BUILD_S = 8.0
"""Seconds that all builds may take together, by default: a bundle may come from a stranger."""

_BUILDERS, _BUILD_BYTES = 2, 600 << 20  # processes at a time, and memory of each


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """The result of :func:`check_bundle`; `not_built` is the reason why no configuration was compiled."""

    valid: int
    sampled: int
    faults: tuple[BundleFault, ...]
    builds: tuple[tuple[Mapping[str, int], Build], ...]
    not_built: str
    is_replayed: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked is wrong, and something was compiled; late builds do not count."""
        return not self.faults and not self.errors and (self.is_replayed or self.compiled > 0)

    @property
    def compiled(self) -> int:
        """The number of builds that succeeded."""
        return sum(build.state is TrialState.OK for _, build in self.builds)

    @property
    def errors(self) -> list[str]:
        """The errors of builds that failed, each once."""
        failed = [build for _, build in self.builds if build.state not in (TrialState.OK, TrialState.TIMEOUT)]
        return [*dict.fromkeys(build.detail for build in failed)]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        facts = ("detail", "registers", "spill_bytes", "shared_bytes", "compile_s")
        return {
            "passed": self.passed,
            "valid": self.valid,
            "sampled": self.sampled,
            "faults": [fault.reason for fault in self.faults],
            "not_built": self.not_built or None,
            "builds": [
                {"configuration": dict(configuration), "state": build.state.value}
                | {name: getattr(build, name) for name in facts}
                for configuration, build in self.builds
            ],
        }


def check_sample(placed: PlacedKernel, columns: Columns, table: str = "launch") -> list[BundleFault]:
    """Return the faults of configurations on the problem, or else on the first of its verification problems."""
    for case in (placed, *(case for case in placed.verified if not case.runnable.is_empty)):
        if faults := find_faults(case.kernel, columns, case.variables, table):
            return [fault._replace(reason=f"{fault.reason} ({case.problem.label})") for fault in faults]
    return []


def check_bundle(placed: PlacedKernel, build_s: float = BUILD_S) -> BundleCheck:
    """Check a bundle's files, reference, arguments and launches, and compile some, within seconds, without a GPU."""
    kernel, problem = placed.kernel, placed.problem
    space = ConstrainedSpace(kernel, placed.variables)
    columns, default = draw_sample(space), replace(placed, chosen=space).default
    faults = [*check_sample(placed, columns), *find_file_faults(problem)]
    if kernel.reference_kernel is not None:
        faults += check_sample(replace(placed, kernel=kernel.reference_kernel), columns_of(default), "reference")
    if kernel.source.text is None or not isinstance(problem, RunnableProblem):
        reason = "the bundle has no source: it is only replayed"
        return BundleCheck(space.count, length(columns), tuple(faults), (), reason, is_replayed=True)
    sample = [row(columns, at) for at in range(min(BUILDS, length(columns)))]
    chosen = ([default] if default else []) + [configuration for configuration in sample if configuration != default]
    variants = [
        {**chosen[0], name: value} for name, values in kernel.compiler.parameters.items() for value in values[1:]
    ]
    chosen = [*chosen[: max(1, BUILDS - len(variants))], *variants]
    reasons, builds, not_built = _build(placed, chosen, build_s)
    faults += [BundleFault(reason, 1.0) for reason in (*unused_at_launch(kernel), *reasons)]
    return BundleCheck(space.count, length(columns), tuple(faults), builds, not_built)


def describe_space(placed: PlacedKernel) -> dict[str, Any]:
    """Describe the search space of a kernel; see :func:`mltune.space`."""
    kernel, space = placed.kernel, ConstrainedSpace(placed.kernel, placed.variables)
    faults = check_sample(placed, draw_sample(space))
    for fault in faults:
        if fault.share == 1:
            see = page("reference/kernel-toml.md")
            raise BundleError(f"{kernel.described_in}: {fault.reason}. See {see}.")
    return {
        "kernel": kernel.name,
        "has_source": kernel.source.text is not None,
        "problem": placed.problem.to_json(),
        "label": placed.problem.label,
        "device": placed.device.to_json(),
        "combinations": math.prod(len(values) for values in kernel.all_parameters.values()),
        "valid": space.count,
        "parameters": {name: list(values) for name, values in kernel.all_parameters.items()},
        "restrictions": [
            {"restriction": text, "reason": reason, "removes": removes, "removes_alone": alone}
            for text, reason, removes, alone in space.explain()
        ],
        "faults": [fault.reason for fault in faults],
    }


def draw_sample(space: ConstrainedSpace) -> Columns:
    """Return the configurations whose launch is computed: a uniform sample of a space, always the same."""
    return space.rows(space.sample(SAMPLE, np.random.default_rng(0)))


def _build(
    placed: PlacedKernel, configurations: list[Mapping[str, int]], limit_s: float
) -> tuple[list[str], tuple[tuple[Mapping[str, int], Build], ...], str]:
    """Compile configurations; return the faults of the source, the builds, and the reason why none was compiled."""
    from mltune.measure.build import NvrtcBuilder, available_cores

    kernel, problem = placed.kernel, placed.runnable
    try:
        limits = {"workers": min(_BUILDERS, available_cores()), "timeout_s": limit_s, "memory_bytes": _BUILD_BYTES}
        builder = NvrtcBuilder(with_probe(kernel), problem, placed.device.architecture, **limits)
    except DeviceError as error:
        return [], (), str(error)
    late = Build(TrialState.TIMEOUT, f"not ended within {limit_s:g} s, the time limit of all builds")
    with builder:
        definitions = [builder.definitions(configuration) for configuration in configurations]
        probes = [(0, probe) for probe in entry_probes(kernel, problem, definitions[0])]
        probes += [(at, probe) for at, text in enumerate(definitions) for probe in macro_probes(kernel, text)]
        futures = [builder.build(text) for _, (text, _) in probes]
        futures += map(builder.build, definitions, map(builder.options, configurations))
        ended, _ = wait(futures, timeout=limit_s)
        outcomes = [future.result() if future in ended else late for future in futures]
    probed, builds = outcomes[: len(probes)], outcomes[len(probes) :]
    answers = zip(probes, probed, strict=True)
    faults = [fault for (at, (_, read)), build in answers for fault in read(build, builds[at])]
    faults += missing_constants(kernel, builds[0])
    return [*dict.fromkeys(faults)], tuple(zip(configurations, builds, strict=True)), ""


@dataclass(frozen=True)
class KernelCheck:
    """The result of :func:`mltune.check`.

    Attributes
    ----------
    kernel : Kernel
    problem : Problem
        The problem that it was checked for.
    device : Device
    checked : BundleCheck
        What was found.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    checked: BundleCheck

    def __repr__(self) -> str:
        return f"KernelCheck({self.problem.label}: {'; '.join([self._built, *self._wrong])})"

    def _repr_html_(self) -> str:
        facts = {"kernel": self.kernel.name, "problem": self.problem.label, "device": self.device.name}
        wrong = "; ".join(self._wrong) or "nothing"
        return html_table({**facts, "passed": self.passed, "builds": self._built, "wrong": wrong})

    @property
    def _built(self) -> str:
        return f"{self.checked.compiled} of {many(len(self.checked.builds), 'build')} compiled"

    @property
    def _wrong(self) -> list[str]:
        return [fault.reason for fault in self.checked.faults] + self.checked.errors

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked is wrong, and something was compiled; see :func:`mltune.check`."""
        return self.checked.passed

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune check --json`` prints."""
        return {
            "kernel": self.kernel.name,
            "problem": self.problem.to_json(),
            "label": self.problem.label,
            "device": self.device.to_json(),
            **self.checked.to_json(),
        }
