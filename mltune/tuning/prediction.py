"""Choices of configurations without a measurement, and the time that is expected of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mltune.cost.features import Features
from mltune.cost.model_file import AUTO, TOLERATED_LOSS, Card, choose_model, shipped_card
from mltune.cost.pretrained import are_near
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN
from mltune.errors import UsageError, WisdomError
from mltune.files.text import many, printable
from mltune.kernel.coding import Floats, columns_of
from mltune.kernel.placed import PlacedKernel
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.problem.problem import Problem
from mltune.tuning.wisdom import load_wisdom

KNOWN, EXPECTED = "known", "expected"
"""Where a choice comes from: it was the fastest of a run, or a model or physics expects it to be fast."""


@dataclass(frozen=True, slots=True)
class PredictedChoice:
    """A configuration that is expected to be fast, from the source :data:`KNOWN` or :data:`EXPECTED`."""

    source: str
    configuration: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class ExpectedShare:
    """Shares of the optimum that the best of the first choices reached on recorded spaces: mean, lowest and highest.

    `source` is what ranks the choices, ``"model"`` (with physics) or ``"physics"``, and `by_model` the mean share of a
    model that was left out, because physics alone has more.
    """

    source: Literal["model", "physics"]
    learned_from: str
    choices: int
    share: float
    least: float
    most: float
    held_out: int
    by_model: float | None = None


CONFIDENCE = 0.9
"""Probability that the time of the first choice is promised to lie in its interval."""

FEWEST_SWEEPS = 5
"""Fewest recorded sweeps that a time follows from: five of five inside intervals that hold half is luck in 3 %."""


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The time of the first choice, with an interval.

    Measured time over that of physics is log-normal among recorded sweeps of similar problems on the architecture: the
    interval is that of Student's t for one sweep more.

    Attributes
    ----------
    time_s, least_s, most_s : float
        The time, and the ends of the interval, seconds.
    confidence : float
        Probability that the interval promises: :data:`CONFIDENCE`.
    sweeps, inside : int
        Recorded sweeps, and those of which the first choice lay in the interval from the others.
    """

    time_s: float
    least_s: float
    most_s: float
    confidence: float
    sweeps: int
    inside: int


@dataclass(frozen=True)
class Predicted:
    """Configurations that are expected to be fast: the result of :func:`mltune.predict`.

    Attributes
    ----------
    problem : Problem
    device : Device
    kernel : str
    choices : tuple of PredictedChoice
        The configurations, the best first, each with its source: ``"known"`` or ``"expected"``.
    expected : ExpectedShare or None
        What the best of the first choices reached on recorded spaces: those of the model, or where none is used those
        of physics; None where it was not judged.
    time : ExpectedTime or None
        The time of the first choice with its interval, seconds.
    no_time : str
        Why there is none.
    notices : tuple of str
        Differences of the problem and the device from all training data of the model.
    """

    problem: Problem
    device: Device
    kernel: str
    choices: tuple[PredictedChoice, ...]
    expected: ExpectedShare | None
    time: ExpectedTime | None
    no_time: str
    notices: tuple[str, ...]

    def __repr__(self) -> str:
        choices = many(len(self.choices), "configuration")
        return f"Predicted({choices} of {self.kernel} for {self.problem.label} on {self.device.name})"

    def to_json(self) -> dict[str, Any]:
        """Return the choices as plain JSON values: what ``mltune predict --json`` prints."""
        return {
            "problem": self.problem.label,
            "device": self.device.name,
            "kernel": self.kernel,
            "choices": tuple(map(asdict, self.choices)),
            "expected": None if self.expected is None else asdict(self.expected),
            "time": None if self.time is None else asdict(self.time),
            "no_time": self.no_time,
            "notices": self.notices,
        }


def predict(
    placed: PlacedKernel,
    *,
    top: int = 1,
    prior: str = AUTO,
    wisdom: str | Path = AUTO,
) -> Predicted:
    """Choose configurations without measuring any: the known ones of a wisdom, then those a search would measure first.

    Physics alone ranks where the model of ``"auto"`` lost more than :data:`~mltune.cost.model_file.TOLERATED_LOSS`
    against it on what it had not seen, unless the model remembers what was the fastest for similar problems. A wisdom
    of the user that cannot be read is left out with a warning.
    """
    from mltune.search.planning import PlannerOptions
    from mltune.search.search import KernelSearch, SearchSettings, Start

    kernel, problem, device = placed.kernel, placed.problem, placed.device
    most = PlannerOptions().start_trials
    if not 1 <= top <= most:
        raise UsageError(f"{top} configurations cannot be chosen without a measurement: it is 1 to {most}.")
    if device == UNKNOWN:
        raise UsageError(
            "the facts of `unknown` are not known, and a choice without a measurement needs those of a device; name a "
            "GPU (`mltune device --known`), or a file with its facts."
        )
    kernel.check_problem(problem)
    model = choose_model(prior, kernel)
    file = file_of_run(wisdom, replayed=False)
    if wisdom != AUTO and file is not None and not file.exists():
        raise WisdomError(f"there is no wisdom {printable(file, 300)}: it is a file.")
    loaded = Wisdom() if file is None else load_wisdom(file, required=wisdom != AUTO)
    matches = loaded.lookup(kernel, problem, device, most=top)
    kernel = kernel.recorded_with({name for match in matches for name in match.entry.configuration})
    placed = replace(placed, kernel=kernel)
    configurations = [codes for match in matches if (codes := match.entry.codes(kernel)) is not None]
    pretrained = None if model is None else model.load(problem, device)
    card = shipped_card(kernel) if model is None else model.card
    by_model, by_physics = (_expected_share(card, "model", top), _expected_share(card, "physics", top))
    expected = by_physics if pretrained is None else by_model
    may_fall_back = pretrained is not None and prior == AUTO and not pretrained.first
    if may_fall_back and by_model and by_physics and by_physics.share > by_model.share + TOLERATED_LOSS:
        pretrained, expected = None, replace(by_physics, by_model=by_model.share)
    features = Features(placed)
    start = Start(fast=configurations, pretrained=pretrained)
    candidates = KernelSearch(placed.space, features, SearchSettings(batch=top), start).ask()
    sources = (KNOWN if candidate.proposed_by == "wisdom" else EXPECTED for candidate in candidates)
    labelled = (kernel.space.labelled(candidate.configuration) for candidate in candidates)
    choices = tuple(map(PredictedChoice, sources, labelled))
    time, no_time = None, "the first choice is known: the wisdom has its time"
    if choices[0].source == EXPECTED:
        ranked_by = "physics" if pretrained is None else "model"
        time, no_time = _expected_time(card, ranked_by, features, candidates[0].configuration)
    notices = () if model is None else model.notices(problem, device)
    return Predicted(problem, device, kernel.label, choices, expected, time, no_time, notices)


def _expected_share(card: Card | None, source: Literal["model", "physics"], top: int) -> ExpectedShare | None:
    shares = {} if card is None else card.shares(source)
    counts = [count for count in shares if count <= top]
    if card is None or not counts:
        return None
    judged, learned_from = shares[max(counts)], card.learned_from if source == "model" else ""
    mean = sum(judged) / len(judged)
    return ExpectedShare(source, learned_from, max(counts), mean, min(judged), max(judged), len(judged))


def _expected_time(
    card: Card | None, source: str, features: Features, first: Mapping[str, int]
) -> tuple[ExpectedTime | None, str]:
    """Return the time of a first choice, or why there is none."""
    members = card.members if card and features.has_prior else []
    if not all("over_physics" in member.model_fields_set for member in members):
        return None, "the card of the model has no times of first choices; train the model again"
    architecture, flops = features.placed.device.architecture, float(features.placed.problem.flops)
    similar = (member for member in members if member.flops == flops or are_near(member.flops, flops))
    near = [member for member in similar if member.architecture == architecture]
    ratios = np.array([member.over_physics[source] for member in near if source in member.over_physics])
    if len(ratios) < FEWEST_SWEEPS:
        sweeps = f"{FEWEST_SWEEPS} recorded sweeps of similar size on {architecture}, each judged by others"
        return None, f"that takes {sweeps}; known: {len(near) if len(near) < FEWEST_SWEEPS else len(ratios)}"
    physical_s = features.physical_s(columns_of(first))
    left_out = [interval(np.delete(ratios, at)) for at in range(len(ratios))]
    inside = sum(least <= ratio <= most for ratio, (least, _, most) in zip(ratios, left_out, strict=True))
    least_s, time_s, most_s = (physical_s * interval(ratios)).tolist()
    return ExpectedTime(time_s, least_s, most_s, CONFIDENCE, len(ratios), int(inside)), ""


def interval(ratios: Floats) -> Floats:
    """Return the interval of one more of some log-normal numbers: its lower end, its middle and its upper end."""
    from scipy.special import stdtrit

    logs = np.log(ratios)
    half = stdtrit(len(logs) - 1, (1.0 + CONFIDENCE) / 2.0) * logs.std(ddof=1) * np.sqrt(1.0 + 1.0 / len(logs))
    ends: Floats = np.exp(logs.mean() + half * np.array([-1.0, 0.0, 1.0]))
    return ends
