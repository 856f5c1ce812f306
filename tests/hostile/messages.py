"""Hostile messages of a worker of a cluster: of named kinds, and an honest one with other values in it.

They are written down as the pickles that Dask sends.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from mltune.campaign.cluster.remote_slice import Update
from mltune.campaign.device_worker import Outcome, SliceResult
from mltune.problem.gemm import GemmProblem
from mltune.records.declaration import Reference
from mltune.records.header import RunHeader
from mltune.records.replication import Changes
from mltune.records.store import Store
from mltune.results.progress import Progress
from tests.hostile.cases import Place, add
from tests.hostile.values import SHAPES, TEXTS, Raw, scalar, value

MESSAGE = "message.pickle"

NOTHING = Update((), {}, None, result=SliceResult(Outcome.DONE))
"""The last message of a time slice in which nothing was done."""

PROGRESS = Progress("p", "cuda:0", 3, 1.0, {"ok": 3})

NAMED: Mapping[str, Any] = {
    "a text": "message",
    "a number": 7,
    "an empty object": object(),
    "no events": replace(NOTHING, events=None),
    "an event of nothing": replace(NOTHING, events=[{}]),
    "an event that is a text": replace(NOTHING, events=["event"]),
    "an unknown event": replace(NOTHING, events=[{"event": "nonsense"}]),
    "a field that no event has": replace(NOTHING, events=[{"event": "best", "nonsense": 1}]),
    "files that are a list": replace(NOTHING, files=["winner/kernel.cu"]),
    "a file with a number for its name": replace(NOTHING, files={7: b""}),
    "a file of text": replace(NOTHING, files={"winner/kernel.cu": "text"}),
    "a file that leaves the directory": replace(NOTHING, files={"../../plan.toml": b""}),
    "a path that is too long": replace(NOTHING, files={"winner/" + "x" * 5000: b""}),
    "a path with a zero byte": replace(NOTHING, files={"winner/\0": b""}),
    "changes that are a text": replace(NOTHING, changes="changes"),
    "no header": replace(NOTHING, changes=Changes(None)),
    "progress of a text": replace(NOTHING, progress="soon"),
    "trials of a text": replace(NOTHING, progress=replace(PROGRESS, trials="three"), result=None),
    "infinite time": replace(NOTHING, progress=replace(PROGRESS, elapsed_s=float("inf")), result=None),
    "counts of texts": replace(NOTHING, progress=replace(PROGRESS, counts="ok"), result=None),
    "a result of a text": replace(NOTHING, result="done"),
    "an unknown outcome": replace(NOTHING, result=SliceResult("nonsense", "")),
    "a reason that is a number": replace(NOTHING, result=SliceResult(Outcome.FAILED, 7)),
}
"""Messages that no worker sends."""


OF_HEADER: Mapping[str, Mapping[str, Any]] = {
    "a run of another kernel": {"kernel": "gemm_dd"},
    "a run of another problem": {"problem": GemmProblem("s", "N", "T", 512, 4096, 4096).to_json()},
}
OF_RUN: Mapping[str, Mapping[str, Any]] = {
    "trials after a gap": {"after": 10**9},
    "trials of texts": {"trials": ("trial",)},
    "timings of texts": {"references": (Reference("a", "b", "c"),)},
    "facts that are no JSON": {"facts": {"limit": {1, 2}}},
    "seconds of texts": {"seconds": {"total": "soon"}},
}
"""Fields of the header and of the changes of a run that it cannot have."""


def named_messages(honest: RunHeader) -> dict[str, Any]:
    """Return all messages with a name, of a run with a header."""
    changes = {name: Changes(replace(honest, **facts)) for name, facts in OF_HEADER.items()}
    changes |= {name: Changes(honest, **facts) for name, facts in OF_RUN.items()}
    return {**NAMED, **{name: replace(NOTHING, changes=found) for name, found in changes.items()}}


class Client:
    """A connection to a cluster whose worker sends a message, and then that it is done."""

    status = "running"

    def __init__(self, message: Any) -> None:
        self._message = message

    def nthreads(self, workers: list[str]) -> dict[str, int]:
        return dict.fromkeys(workers, 1)

    def submit(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(status="pending", cancel=lambda: None)

    def run(self, _: object, __: str, received: int, workers: list[str], **___: object) -> dict[str, list[Any]]:
        return {address: [self._message, NOTHING][received:] for address in workers}


def cluster_that_sends(message: Any) -> Any:
    """Return a cluster whose worker sends a message to whoever asks."""
    return SimpleNamespace(client=lambda: Client(message), address_of=lambda name: "tls://elsewhere:1")


def honest_message(run: Path) -> Update:
    """Return a message with some records of a run, events, files, progress and a result."""
    with Store.read_only(run) as store:
        changes = Changes.of(store)
    changes = replace(changes, trials=tuple(changes.trials), references=(Reference(0, 0.5, 1e-3, 0.01),))
    events = (
        {"event": "best", "number": 1, "median_s": 1e-3, "tflops": 1.0},
        {"event": "failure", "number": 2, "state": "crashed", "detail": "it crashed"},
    )
    card = {"kernel": "", "parameters": {}, "members": [], "sha256": ""}
    hashes = {"kernel.cu": hashlib.sha256(b"code").hexdigest()}
    winner = {"format": 1, "label": "", "kernel": {}, "configuration": {}, "sha256": hashes}
    files = {"siblings.json": json.dumps(card).encode(), "siblings.npy": b"\x93NUMPY"}
    files |= {"winner/kernel.cu": b"code", "winner/winner.json": json.dumps(winner).encode()}
    return Update(events, files, changes, PROGRESS, SliceResult(Outcome.DONE))


def random_message(place: Place) -> None:
    """Change an honest message in one to three places."""
    message: Any = honest_message(place.base / "store")
    for _ in range(place.rng.choice((1, 1, 2, 3))):
        message = changed(message, place.rng)
    write(place, message)


def write(place: Place, message: Any) -> None:
    place.write(MESSAGE, pickle.dumps(message))


def changed(one: Any, rng: Random) -> Any:
    """Return a message with another value, name or number of parts somewhere; a worker's objects check nothing."""
    names = _names(one)
    if not names or rng.random() < 0.1:
        return _value(rng)
    name = rng.choice(names)
    if is_dataclass(one):
        found = copy.copy(one)
        object.__setattr__(found, name, changed(getattr(one, name), rng))
        return found
    found = dict(one) if isinstance(one, Mapping) else list(one)
    how = rng.random()
    if how < 0.1:
        del found[name]
    elif how < 0.2 and isinstance(found, dict):
        found[rng.choice((*TEXTS, 7, None, "winner/../x", "winner/a/../../../x"))] = found.pop(name)
    elif how < 0.2:
        found *= min(rng.choice((2, 50, 1000)), 5000 // len(found) + 1)
    else:
        found[name] = changed(found[name], rng)
    return tuple(found) if isinstance(one, tuple) else found


def _names(one: Any) -> list[Any]:
    """Return the names or positions of the parts of a value."""
    if is_dataclass(one):
        return [field.name for field in fields(one)]
    return list(one) if isinstance(one, Mapping) else list(range(len(one))) if isinstance(one, list | tuple) else []


def _value(rng: Random) -> Any:
    """Return what JSON can say, or what only a pickle can."""
    found = rng.choice((value, scalar))(rng) if rng.random() < 0.8 else rng.choice(_ONLY_PICKLED)
    return rng.choice(SHAPES[:7]) if isinstance(found, Raw) else found


_ONLY_PICKLED = (b"", b"\xff" * 5000, {1, 2}, (), ("a",), 1j, range(9), object(), Outcome.DONE, {7: 7}, {(1, 2): 3}, PROGRESS, NOTHING, asdict(PROGRESS), memoryview, len, slice(None))  # fmt: skip


def _add(name: str) -> None:
    def build(place: Place) -> None:
        changes = honest_message(place.base / "store").changes
        assert changes is not None
        write(place, named_messages(changes.header)[name])

    add("cluster messages", name.replace(" ", "-"), build)


for _name in (*NAMED, *OF_HEADER, *OF_RUN):
    _add(_name)
