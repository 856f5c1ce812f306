"""The pretrained models that strategies start from, and whether they were trained on the recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.simulation import Recording, Strategy
from mltune.cost.model_file import NONE
from mltune.files.text import printable

_LONGEST = 4000
"""Most characters of a notice: a card may name any number of datasets."""


def start_models(strategies: Mapping[str, Strategy], recording: Recording) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each strategy with a model option, the model's SHA-256 or ``""``, and its training data."""
    for name, strategy in strategies.items():
        if not isinstance(strategy, ShippedSearch) or strategy.prior == NONE:
            continue
        chosen = strategy.model(recording)
        if chosen is None:
            yield name, "", f"there is no model, and {name} searches without one"
            continue
        training = chosen.card.training
        here = recording.device.name, recording.problem.label
        alike = [dataset for dataset, of in training.items() if (of.device, of.problem) == here]
        if recording.name in training:
            said = "has learned from this dataset, which says nothing of its worth elsewhere"
        elif alike:
            said = f"has learned from the same problem on the same GPU, {', '.join(alike)}"
        else:
            said = "has not seen this problem on this GPU"
        listed = ", ".join(training) or "unknown datasets"
        notice = f"{name} starts from the model {chosen.name}, which {said}; trained on {listed}"
        yield name, chosen.card.sha256, printable(notice, _LONGEST)
