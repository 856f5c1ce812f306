"""The process that fits the models of searches over Triton's configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from mltune.errors import WorkerError
from mltune.process.child import ChildDiedError, ChildTimeoutError, ThreadedChild
from mltune.search.launch_search import Prediction, predict

ANSWER_S = 30.0
"""Seconds allowed for a prediction."""


def make_predictor() -> Callable[[tuple[Any, ...]], Prediction | None]:
    """Import what the models need, and return :func:`mltune.search.launch_search.predict`; the factory of the child."""
    predict(0, np.eye(6), np.arange(6.0), np.eye(6))  # the first fit takes longer
    ThreadpoolController().limit(limits=1)
    return lambda request: predict(*request) if request else None


class Predictor:
    """A process for :func:`mltune.search.launch_search.predict`; if it dies, this process predicts.

    It starts in the background. A thread that imports would take the interpreter's lock from the one that measures.
    """

    def __init__(self, idle_s: float = 60.0) -> None:
        self._served = ThreadedChild(f"{__name__}:make_predictor", (), idle_s=idle_s)

    def begin(self) -> Self:
        """Start the process if it does not run."""
        self._begun = self._served.submit((), ANSWER_S)
        return self

    def predict(self, *request: Any) -> Prediction:
        """Return what :func:`mltune.search.launch_search.predict` returns."""
        try:
            prediction: Prediction = self._served.submit(request, ANSWER_S).result()
            return prediction
        except (WorkerError, ChildDiedError, ChildTimeoutError):
            return predict(*request)

    def predict_if_started(self, *request: Any) -> Prediction | None:
        """Return what :meth:`predict` does; None while the process starts."""
        return self.predict(*request) if self._begun.done() else None
