"""The choice of configurations without a measurement: what a search would measure first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mltune.cost.model_choice import AUTO, choose_model, shipped_card
from mltune.device.known import UNKNOWN
from mltune.errors import UsageError, WisdomError
from mltune.files.text import printable
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.tuning.wisdom import load_wisdom

if TYPE_CHECKING:
    from mltune.cost.model_file import Card
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

KNOWN, EXPECTED = "known", "expected"
"""Where a choice comes from: it was the fastest of a run, or a model or physics expects it to be fast."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that is expected to be fast.

    Attributes
    ----------
    source : str
        :data:`KNOWN` or :data:`EXPECTED`.
    configuration : mapping
    """

    source: str
    configuration: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the best of the first choices reached on recorded spaces, as shares of the optimum.

    Attributes
    ----------
    source : {"model", "physics"}
        What chose: the model on spaces that it had not seen, or physics alone.
    choices : int
        How many, of those judged the most that are not more than were asked for.
    share, least, most : float
        Mean, lowest and highest.
    held_out : int
        Number of spaces.
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
    choices : tuple of Choice
    expected : Expected or None
        Of the model, or where none is used of physics; None where that was not judged.
    notices : tuple of str
        In what the problem and the device differ from all that the model was trained on.
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

    Parameters
    ----------
    problem : Problem
    kernel : Kernel
    device : Device
        Facts of a GPU, which need not be here.
    top : int
        Number of choices, at most 8.
    prior : str
        See :func:`mltune.cost.model_choice.choose_model`.
    wisdom : path-like
        Best known configurations; ``"none"`` uses none, ``"auto"`` the user's.
    driver : str, optional
        Version of the driver; None where it does not matter.

    Raises
    ------
    UsageError
        ``top`` is not from 1 to 8, the device is unknown, or the space is empty.
    ModelError
        The model cannot be used.
    WisdomError
        The wisdom that is named cannot be read, or does not exist; that of the user is left out with a warning.

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
    from mltune.cost.features import Features
    from mltune.kernel.bundle import device_variables
    from mltune.search.sampling import SamplerOptions
    from mltune.search.search import Search
    from mltune.tuning.session import make_space

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
    search = Search(
        space,
        Features(kernel, problem, device),
        batch=top,
        known=known,
        pretrained=pretrained,
    )
    candidates = search.ask().candidates
    card = shipped_card(kernel) if model is None else model.card
    return Prediction(
        tuple(
            Choice(KNOWN if one.proposed_by == "wisdom" else EXPECTED, kernel.labelled(one.configuration))
            for one in candidates
        ),
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
