"""The choice of configurations without a measurement: those that a search would measure first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mltune.cost.features import Features
from mltune.cost.model_choice import AUTO, choose_model, shipped_card
from mltune.cost.model_file import Card
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN
from mltune.errors import UsageError, WisdomError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, device_variables
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.problem.problem import Problem
from mltune.tuning.session import make_space
from mltune.tuning.wisdom import load_wisdom

KNOWN, EXPECTED = "known", "expected"
"""Where a choice comes from: it was the fastest of a run, or a model or physics expects it to be fast."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that is expected to be fast, from the source :data:`KNOWN` or :data:`EXPECTED`."""

    source: str
    configuration: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Expected:
    """Shares of the optimum that the best of the first choices reached on recorded spaces.

    Attributes
    ----------
    source : {"model", "physics"}
        The model chose on spaces that it had not seen, or physics alone chose.
    choices : int
        Number of first choices: the most that was judged, and not more than was asked for.
    share, least, most : float
        Mean, lowest and highest share of the ``held_out`` spaces.
    """

    source: Literal["model", "physics"]
    choices: int
    share: float
    least: float
    most: float
    held_out: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Configurations that are expected to be fast, the best first.

    Attributes
    ----------
    expected : Expected or None
        That of the model, or where none is used that of physics; None where it was not judged.
    notices : tuple of str
        Differences of the problem and the device from all training data of the model.
    """

    choices: tuple[Choice, ...]
    expected: Expected | None
    notices: tuple[str, ...]


def predict(
    problem: Problem,
    kernel: Kernel,
    device: Device,
    *,
    top: int = 1,
    prior: str = AUTO,
    wisdom: str | Path = AUTO,
    driver: str | None = None,
) -> Prediction:
    """Choose configurations without measuring any: the known ones first, then those that a search would measure first.

    The best known configurations are those of a wisdom for any driver, or for the version of one. A wisdom of the user
    that cannot be read is left out with a warning.

    Examples
    --------
    >>> from mltune.device.lookup import find_device
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> device, _ = find_device("a100")
    >>> kernel = load_kernel("gemm_simt")
    >>> found = predict(problem_from_name("sgemm", trans="NN", size=2048), kernel, device, top=2, wisdom="none")
    >>> [choice.source for choice in found.choices]
    ['expected', 'expected']
    """
    from mltune.search.sampling import SamplerOptions
    from mltune.search.search import Search

    most = SamplerOptions().start_trials
    if not 1 <= top <= most:
        raise UsageError(f"1 to {most} configurations are chosen without a measurement, got {top}.")
    if device == UNKNOWN:
        raise UsageError(
            "a choice without a measurement follows from the facts of a device, but those of `unknown` are not known; "
            "name a GPU (`mltune device --known`), or a file with its facts."
        )
    kernel.check_problem(problem)
    space = make_space(kernel, {**problem.variables(), **device_variables(device)})
    model = choose_model(prior, kernel)
    file = file_of_run(wisdom, replayed=False)
    if wisdom != AUTO and file is not None and not file.exists():
        raise WisdomError(f"a wisdom is a file, but there is no {printable(file, 300)}.")
    loaded = Wisdom() if file is None else load_wisdom(file, required=wisdom != AUTO)
    matches = loaded.lookup(kernel, problem, device, driver, most=top)
    known = [codes for match in matches if (codes := match.entry.codes(kernel.labels)) is not None]
    pretrained = None if model is None else model.load(problem, device)
    features = Features(kernel, problem, device)
    candidates = Search(space, features, batch=top, known=known, pretrained=pretrained).ask().candidates
    card = shipped_card(kernel) if model is None else model.card
    sources = (KNOWN if one.proposed_by == "wisdom" else EXPECTED for one in candidates)
    labelled = (kernel.labelled(one.configuration) for one in candidates)
    return Prediction(
        tuple(map(Choice, sources, labelled)),
        None if card is None else _expected(card, "physics" if pretrained is None else "model", top),
        () if model is None else model.notices(problem, device),
    )


def _expected(card: Card, source: Literal["model", "physics"], top: int) -> Expected | None:
    shares = card.shares(source)
    counts = [count for count in shares if count <= top]
    if not counts:
        return None
    found = shares[max(counts)]
    return Expected(source, max(counts), sum(found) / len(found), min(found), max(found), len(found))
