"""The gate: two versions of a kernel, verified, then timed in turns until it is certain which is faster.

An observation is the logarithm of the ratio of both times, new over old, of some pairs of runs in random order. The
interval of their median is between order statistics (the inverted sign test). If the times of one version are those of
the other times a constant, random order makes the signs around that constant fair coins, whatever the noise is. There
is a fixed number of looks, each with its share of the error (Bonferroni), so that looking repeatedly does not add to
it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from mltune.device.facts import Device
from mltune.device.occupancy import occupancy
from mltune.errors import BundleError, DeviceError, UsageError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.launch import Launch
from mltune.kernel.parts import KernelSource, KernelSpace, LaunchRule
from mltune.kernel.placed import PlacedKernel
from mltune.measure.baseline import baseline_of
from mltune.measure.pipeline import SamplingRule
from mltune.problem.problem import RunnableProblem
from mltune.process.child import ChildPool
from mltune.records.trial import Build, Measurement, TrialState
from mltune.tuning.finals import Interval, median_interval

WITHIN, CONFIDENCE = 0.01, 0.99
"""Share by which times may differ that are equal, and confidence of a verdict, where none is given."""

LOOKS = 10
"""Most looks at the observations, each at twice as many as the one before."""

FIRST = 32
"""Observations at the first look."""

REQUEST_S, PAIRS = 10.0, 16
"""Most seconds and pairs of a request to the worker, which loads both versions anew, elsewhere in memory."""

MOST_PAIRS = 128
"""Most pairs of an observation."""

Verdict = tuple[str, Interval | None]
"""``"faster"``, ``"equal"``, ``"slower"`` or ``"undecided"``, and the interval of the ratio at the last look."""


def median_of_looks(take: Callable[[int], Sequence[float]], within: float, confidence: float) -> Verdict:
    """Look at the median of observations until it is certain in which region its interval lies.

    The regions are below 1 / (1 + within), above 1 + within, and between; all intervals together hold with the
    confidence. `take` returns one to so many further observations, and none once the time is up.
    """
    logs: list[float] = []
    estimate, edge = None, math.log1p(within)
    for look in range(LOOKS):
        while (lacking := (FIRST << look) - len(logs)) > 0:
            logs_taken = take(lacking)
            if not logs_taken:
                return "undecided", estimate
            logs += logs_taken
        last = median_interval(logs, 1 - (1 - confidence) / LOOKS)
        estimate = last.exp()
        if last.low > edge or last.high < -edge:
            return "slower" if last.low > edge else "faster", estimate
        if -edge <= last.low and last.high <= edge:
            return "equal", estimate
    return "undecided", estimate


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two that are compared: its launch for the variables of a problem, and its build, or configuration."""

    name: str
    problem: RunnableProblem
    launch: Callable[[Mapping[str, int]], Launch]
    build: Build | None = None
    placed: PlacedKernel | None = None
    configuration: Mapping[str, int] | None = None

    def built(self) -> Build:
        """Return its build."""
        from mltune.measure.build import build_one

        if self.placed is None or self.configuration is None:
            return self.build or Build(TrialState.COMPILE_ERROR, "it has no machine code")
        build = build_one(self.placed, self.configuration)
        return replace(build, entry=build.entry or self.placed.kernel.source.entry or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairLaunch(LaunchRule):
    """The launches of both versions, of which a parameter chooses one."""

    versions: tuple[Version, ...]

    def launch(self, space: KernelSpace, configuration: Mapping[str, int], variables: Mapping[str, int]) -> Launch:
        return self.versions[configuration["version"]].launch(variables)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of :func:`mltune.gate`.

    Attributes
    ----------
    verdict : str
        ``"faster"``, ``"equal"``, ``"slower"``, ``"undecided"``; of a new version ``"wrong"`` where its answer is
        wrong, ``"failed"`` where it cannot be compiled or launched, crashes or hangs.
    old, new : str
        As they were named.
    problem, device : str
    within, confidence : float
    detail : str
        Why the new version is wrong or failed; empty otherwise.
    ratio : Interval or None
        Time of the new version over that of the old one, with its interval; None before the first look.
    median_s : tuple of float
        Median times of the old and the new version, seconds; empty where nothing was timed.
    pairs : int
        Pairs of runs.
    seconds : float
        Seconds of the timing.
    facts : tuple of mapping of str to value
        Of the old and the new version, where they were asked for.
    """

    verdict: str
    old: str
    new: str
    problem: str
    device: str
    within: float
    confidence: float
    facts: tuple[Mapping[str, Any], ...] = ()
    detail: str = ""
    ratio: Interval | None = None
    median_s: tuple[float, ...] = ()
    pairs: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the new version is right and not slower."""
        return self.verdict in ("faster", "equal")

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The facts in which the versions differ, of both."""
        old, new = self.facts or ({}, {})
        return {name: (old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.ratio is None:
            return f"{self.verdict}: {self.detail or 'the time was up before the first look'}"
        ratio, within = self.ratio, f" within {100 * self.within:.4g} %" if self.verdict == "equal" else ""
        between = f"{ratio.low:.4f} to {ratio.high:.4f}, {100 * self.confidence:.4g} %"
        return f"{self.verdict}{within}: {ratio.center:.4f} times as long ({between}), {self.pairs} pairs"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune gate --json`` prints."""
        differences = {name: list(values) for name, values in self.differences.items()}
        return asdict(self) | {"passed": self.passed, "summary": self.summary, "differences": differences}

    def to_junit(self) -> bytes:
        """Return the result as a report in JUnit's form, with one test case: a failure, or where undecided an error."""
        kind = "" if self.passed else "error" if self.verdict == "undecided" else "failure"
        case = f"{self.problem} on {self.device}: {self.new} against {self.old}"
        name, summary = (printable(text, 5000) for text in (case, self.summary))
        counts = {"tests": "1", "failures": str(int(kind == "failure")), "errors": str(int(kind == "error"))}
        suite = Element("testsuite", {"name": "mltune gate", **counts})
        element = SubElement(suite, "testcase", classname="mltune.gate", name=name, time=f"{self.seconds:.3f}")
        if kind:
            SubElement(element, kind, type=self.verdict, message=summary)
        report: bytes = tostring(suite, "utf-8", xml_declaration=True)
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """How two versions are compared: see :func:`mltune.gate`; `limit_s` are the most seconds of the timing."""

    limit_s: float
    within: float = WITHIN
    confidence: float = CONFIDENCE
    seed: int = 0
    explain: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.within <= 0.5 <= self.confidence <= 0.9999):
            fact = f"within={self.within} and confidence={self.confidence} cannot be"
            raise UsageError(f"{fact}: 0 < within <= 0.5 <= confidence <= 0.9999 must hold.")


class _FailedError(Exception):
    """A version that fails: its place, the state, and the detail."""


def compare_versions(
    old: Version,
    new: Version,
    bundle: Version | None = None,
    *,
    device: Device,
    index: int,
    rule: GateRule,
    pool: ChildPool | None = None,
) -> GateResult:
    """Compare two versions on a GPU (:func:`mltune.gate`); the first one that is compiled here gives the answer."""
    from mltune.measure.runner import GpuRunner

    versions, problem, rng = (old, new), old.problem, np.random.default_rng(rule.seed)
    builds = [version.built() for version in versions]
    facts = tuple(map(partial(_facts, device), versions, builds)) if rule.explain else ()
    result = partial(GateResult, old=old.name, new=new.name, problem=problem.label, device=device.name, facts=facts)
    result = partial(result, within=rule.within, confidence=rule.confidence)
    source, launches = KernelSource(entry="of each build"), _PairLaunch(versions=versions)
    pair = Kernel(name=problem.name, problem=problem.kind, source=source, launch_rule=launches)
    right = next(
        (version for version in (old, new, bundle) if version is not None and version.placed is not None), None
    )
    times_s: list[Sequence[float]] = []
    try:
        for place, build in enumerate(builds):
            _check(place, build)
        baseline = partial(_baseline, right) if problem.needs_baseline and right is not None else None
        with GpuRunner(PlacedKernel(pair, problem, device), index, baseline=baseline, pool=pool) as runner:
            shorter_s = min(_verify(runner, place, build) for place, build in enumerate(builds))
            size = max(1, min(MOST_PAIRS, math.ceil(SamplingRule().resolution_s / (rule.within * shorter_s))))
            started = time.perf_counter()

            def take(count: int) -> list[float]:
                left_s = started + rule.limit_s - time.perf_counter()
                if left_s <= 0:
                    return []
                places = rng.permutation(2)
                pairs = min(count, max(1, PAIRS // size)) * size
                orders = [(first, 1 - first) for first in rng.integers(2, size=pairs).tolist()]
                entries = [({"version": int(place)}, builds[place]) for place in places]
                raced = runner.race(entries, min(left_s, REQUEST_S), orders)
                if not raced.rounds:
                    raise _FailedError(1, raced.state, raced.detail)
                samples_s = np.array(raced.samples_s)[:, np.argsort(places)]
                times_s.extend(samples_s.tolist())
                sums = samples_s[: len(samples_s) // size * size].reshape(-1, size, 2).sum(axis=1)
                logs: list[float] = np.log(sums[:, 1] / sums[:, 0]).tolist()
                return logs

            verdict, ratio = median_of_looks(take, rule.within, rule.confidence)
    except _FailedError as error:
        place, state, detail = error.args
        if place == 0:
            fact = f"{printable(old.name, 300)} ends with {state}: {detail}"
            raise UsageError(f"{fact}; a new version is compared with one that works.") from None
        return result("wrong" if state is TrialState.WRONG_RESULT else "failed", detail=f"{state}: {detail}")
    except BundleError as error:
        if right is not new:
            raise
        return result("failed", detail=str(error))
    medians = tuple(map(statistics.median, zip(*times_s, strict=True)))
    seconds = time.perf_counter() - started
    return result(verdict, ratio=ratio, median_s=medians, pairs=len(times_s), seconds=seconds)


def _check(place: int, outcome: Build | Measurement) -> None:
    if outcome.state not in (TrialState.OK, TrialState.UNSTABLE):
        raise _FailedError(place, outcome.state, outcome.detail)


def _verify(runner: Any, place: int, build: Build) -> float:
    """Verify a version, on the problem itself too; return its time."""
    measured: Measurement = runner.submit({"version": place}, build).result()
    _check(place, measured)
    for checked in runner.verify_winner({"version": place}, build, ()).values():
        _check(place, checked)
    return measured.median_s or math.inf


def _baseline(version: Version) -> Any:
    build = version.built()
    if build.state is not TrialState.OK or version.placed is None or version.configuration is None:
        raise BundleError(f"{printable(version.name, 300)}, whose answer is the right one, ends with {build.state}.")
    return baseline_of(version.placed, version.configuration, build)


def _facts(device: Device, version: Version, build: Build) -> dict[str, Any]:
    """Return what is known of a version: of its build, its launch, and the main loop of its machine code."""
    from mltune.measure.machine_code import disassemble, main_loop

    launch = version.launch(variables_of(version.problem, device))
    threads, shared_bytes = math.prod(launch.block), launch.shared_bytes + (build.shared_bytes or 0)
    facts = {name: getattr(build, name) for name in ("registers", "spill_bytes", "stack_bytes", "code_bytes")}
    facts |= {"shared_bytes": shared_bytes, "threads": threads, "blocks": math.prod(launch.grid)}
    if build.registers is not None:
        warps = occupancy(device, threads, build.registers, shared_bytes).warps_per_sm[0]
        facts["occupancy"] = float(warps) * device.warp_size / device.max_threads_per_sm
    try:
        loop = main_loop(disassemble(build.cubin)) if build.cubin else None
    except DeviceError:  # there is no disassembler
        loop = None
    if loop is not None:
        facts |= {f"{name} in the main loop": count for name, count in sorted(loop.counts.items())}
        facts["register bank conflicts"] = loop.conflicts
    return {name: value for name, value in facts.items() if value is not None}
