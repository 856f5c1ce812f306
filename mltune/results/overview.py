"""A plan in a few figures: how far each of its problems is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mltune.errors import RunDirectoryError
from mltune.records.declaration import FACT, Declaration
from mltune.records.directory import in_use, runs_in
from mltune.records.events import FILE, planned, read_events
from mltune.records.store import Store
from mltune.results.rating import declared_rating, rating
from mltune.results.summary import best, counts


def overview(directory: Path) -> dict[str, Any]:
    """Summarise the directory of a plan from its stores: what ``mltune show --json`` prints of one.

    Parameters
    ----------
    directory : pathlib.Path

    Returns
    -------
    dict
        ``plan``, the directory; ``running``; ``problems``, in the order of the plan where its diary tells it, each with

        - ``slug``, and ``state``: ``waiting`` (not begun), ``running``, ``begun`` (interrupted before a winner was
          declared), ``declared``, ``finished`` (declared, and nothing better is expected) or ``failed`` (no trial
          succeeded),
        - ``problem``, ``kernel``, ``device``, None while waiting,
        - ``trials``, ``counts``, ``seconds``,
        - ``best``: what :func:`mltune.results.rating.rating` or, once a winner is declared,
          :func:`mltune.results.rating.declared_rating` returns; None where there is none.

    Raises
    ------
    RunDirectoryError
        There is no plan, or one of its stores cannot be read.
    """
    folders = {folder.name: folder for folder in runs_in(directory)}
    events, _ = read_events(directory / FILE)
    slugs = dict.fromkeys([*planned(events), *folders])
    return {
        "plan": str(directory),
        "running": in_use(directory),
        "problems": [_waiting(slug) if slug not in folders else _standing(folders[slug]) for slug in slugs],
    }


def _waiting(slug: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"problem": None, "kernel": None, "device": None, "best": None}
    return {"slug": slug, "state": "waiting", **nothing, "trials": 0, "counts": counts([]), "seconds": {}}


def _state(folder: Path, trials: int, succeeded: bool, declared: Any, stopping: Any) -> str:
    if in_use(folder):
        return "running"
    if trials and not succeeded:
        return "failed"
    if not declared or declared["as_of"] != trials:
        return "begun"
    return "finished" if (stopping or {}).get("reason") else "declared"


def _standing(folder: Path) -> dict[str, Any]:
    """Return how far a problem is.

    Raises
    ------
    RunDirectoryError
        Its store holds what no run has written.
    """
    try:
        return _described(folder)
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
        raise RunDirectoryError(
            f"a store holds the records of a run, but that in {folder} does not: {error!r}."
        ) from error


def _described(folder: Path) -> dict[str, Any]:
    from mltune.device.facts import Device
    from mltune.problem.kinds import problem_from_json

    with Store.read_only(folder) as store:
        header, records, seconds = store.header, store.records(), store.seconds()
        reference_s, declared, stopping = (store.fact(name) for name in ("reference_median_s", FACT, "stopping"))
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    figures: dict[str, Any] | None = None
    if declared:
        figures = declared_rating(problem, device, Declaration.from_json(declared), reference_s)
    else:
        for record in best(records, 1):
            if record.median_s is not None:
                figures = dict(rating(problem, device, record.median_s, reference_s))
    return {
        "slug": folder.name,
        "state": _state(folder, len(records), figures is not None, declared, stopping),
        "problem": problem.to_json(),
        "kernel": header.kernel,
        "device": device.to_json(),
        "best": figures,
        "trials": len(records),
        "counts": counts(record.state for record in records),
        "seconds": seconds,
    }
