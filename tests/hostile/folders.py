"""Hostile folders: links, FIFOs, devices and folders in place of the files of runs, campaigns, comparisons and caches."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import socket
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.hostile.base import PLAN
from tests.hostile.cases import Place, add, corpus
from tests.hostile.stores import random_store
from tests.hostile.values import ESCAPE, XSS, change, damaged, encoded, to_json

Make = Callable[[Place, Path], None]


def _socket(place: Place, path: Path) -> None:
    """Leave a socket; its path may be too long to bind from elsewhere."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name[:100])
    finally:
        os.chdir(here)


OBSTACLES: dict[str, Make] = {
    "a-canary": lambda place, path: path.symlink_to(place.canary / "secret.txt"),
    "a-new-file-elsewhere": lambda place, path: path.symlink_to(place.canary / "new.txt"),
    "a-folder-elsewhere": lambda place, path: path.symlink_to(place.canary / "kept"),
    "the-folder-of-the-canaries": lambda place, path: path.symlink_to(os.path.relpath(place.canary, path.parent)),
    "a-hard-link-to-a-canary": lambda place, path: os.link(place.canary / "secret.txt", path),
    "the-parent": lambda place, path: path.symlink_to(".."),
    "itself": lambda place, path: path.symlink_to(path.name),
    "a-fifo": lambda place, path: os.mkfifo(path),
    "a-folder": lambda place, path: (path / "inner").mkdir(parents=True),
    "a-device-without-end": lambda place, path: path.symlink_to("/dev/zero"),
    "a-full-device": lambda place, path: path.symlink_to("/dev/full"),
    "a-terminal": lambda place, path: path.symlink_to("/dev/tty"),
    "a-socket": _socket,
    "10-gigabytes-of-nothing": lambda place, path: os.truncate(_made(path), 10 * 2**30),
    "garbage": lambda place, path: _made(path, place.rng.randbytes(5000)),
}
"""What may lie in place of a file or folder."""

RUN_FILES = (
    "run.sqlite", "run.sqlite-wal", "run.sqlite-journal", "run.sqlite-shm", "run.lock", "run.new", "run.new-journal", "events.jsonl",
    "winner", ".winner.new", ".winner.old", "winners.json", "report.html", "report.md", "optuna.journal",
    ".report.html.new", "winners", "plan.toml", "problems", "optuna.journal.lock",
)  # fmt: skip
"""Names of files and folders in the directory of a run."""

CAMPAIGN_FILES = (
    "plan.toml", "run.lock", "events.jsonl", "winners", "winners.json", "report.html", "report.md", "optuna.journal", "problems",
    "problems/convolution-w6600", "problems/convolution-w6600/run.sqlite", "problems/convolution-w6600/run.lock",
    "problems/convolution-w6600/winner", "problems/convolution-w6600/run.sqlite-wal", "problems/convolution-w6600/run.sqlite-journal",
    "winners/convolution-w6600", "winners/.convolution-w6600.new", "winners/.convolution-w6600.old", ".winners.new", ".winners.old",
    "datasets", "run.sqlite", "problems/a-third",
)  # fmt: skip
"""Names of files and folders in the directory of a campaign."""


def _made(path: Path, content: bytes = b"") -> Path:
    path.write_bytes(content)
    return path


def is_small(path: Path) -> bool:
    """Return whether a path is a file that a generator may read: an obstacle may be there since."""
    return path.is_file() and path.stat().st_size < 1 << 26


def obstruct(place: Place, path: Path, obstacle: str) -> None:
    """Put something in place of a file or folder, or of one that is not there yet."""
    if path.is_dir() and not path.is_symlink():
        os.rename(path, place.folder / f"moved-{len(os.listdir(place.folder))}")
    try:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        OBSTACLES[obstacle](place, path)
    except OSError as error:  # an obstacle stands in the place of its folder
        if error.errno not in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP):
            raise


def random_run_folder(place: Place) -> None:
    """Put obstacles into the directory of a run, or change its event log."""
    rng = place.rng
    run = place.copy("store", "run")
    if rng.random() < 0.4:
        change_events(place, place.base / "golden-run" / "events.jsonl", run / "events.jsonl")
    for name in rng.sample(RUN_FILES, rng.choice((1, 1, 2, 3))):
        obstruct(place, run / name, rng.choice(list(OBSTACLES)))


def random_campaign(place: Place) -> None:
    """Damage one part of a campaign: a store, the plan, the event log, or files and folders."""
    rng = place.rng
    base = rng.choice(("campaign", "campaign", "golden-campaign"))
    run = place.copy(base, "run")
    stores = sorted(run.glob("problems/*/run.sqlite"))
    how = rng.choice(("store", "store", "plan", "events", "obstacle", "obstacle"))
    if how == "store":
        random_store(Place(place.folder / "part", place.base, rng)) if (place.folder / "part" / "named").mkdir(
            parents=True
        ) is None else None
        os.replace(place.folder / "part" / "named" / "run" / "run.sqlite", rng.choice(stores))
    elif how == "plan":
        import tomllib

        from tests.hostile.values import to_toml

        text = (run / "plan.toml").read_text()
        changed = change(tomllib.loads(text), rng)
        meaning = encoded(to_toml(changed if isinstance(changed, dict) else {}))
        (run / "plan.toml").write_bytes(rng.choice((meaning, damaged(text.encode(), rng))))
    elif how == "events":
        change_events(place, place.base / "golden-campaign" / "events.jsonl", run / "events.jsonl")
    else:
        for name in rng.sample(CAMPAIGN_FILES, rng.choice((1, 1, 2))):
            obstruct(place, run / name, rng.choice(list(OBSTACLES)))


def change_events(place: Place, honest: Path, path: Path) -> None:
    """Change the meaning of some lines of JSON, such as events, or their bytes."""
    rng = place.rng
    events = [json.loads(line) for line in honest.read_text().splitlines()]
    lines = [to_json(change(event, rng)) if rng.random() < 0.3 else to_json(event) for event in events]
    data = encoded("\n".join(lines) + "\n")
    path.write_bytes(damaged(data, rng) if rng.random() < 0.3 else data)


def random_winner(place: Place) -> None:
    """Change the files of a winner's folder, or put obstacles among and around them."""
    rng = place.rng
    folder = place.copy("campaign", "run") / "problems" / "convolution-w6600" / "winner"
    document = folder / "winner.json"
    for _ in range(rng.choice((1, 2))):
        how = rng.choice(("meaning", "bytes", "inside", "inside", "around"))
        if how == "meaning" and document.is_file():
            with contextlib.suppress(ValueError):  # it was damaged before
                document.write_bytes(encoded(to_json(change(json.loads(document.read_bytes()), rng))))
        elif how == "bytes" and document.is_file():
            document.write_bytes(damaged(document.read_bytes(), rng))
        elif how == "inside" and folder.is_dir():
            name = rng.choice(
                ("winner.json", "kernel.cu", "kernel.cubin", "README.txt", "x" * 250, ESCAPE.replace("/", ""), "-rf")
            )
            obstruct(place, folder / name, rng.choice(list(OBSTACLES)))
        else:
            around = ("winner", ".winner.new", ".winner.old", "../../winners", "../../winners/convolution-w6600")
            obstruct(place, folder.parent / rng.choice(around), rng.choice(list(OBSTACLES)))
            return


def random_comparison(place: Place) -> None:
    """Change the journal of a comparison: bytes, lines, or what lies beside it."""
    rng = place.rng
    path = next(place.copy("comparison", "comparison").glob("runs-*.jsonl"))
    how = rng.choice(("bytes", "lines", "lines", "lines", "obstacle"))
    if how == "bytes":
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif how == "obstacle":
        names = (path.name, "runs-2of2.jsonl", "summary.json", "table.md", "scoreboard.html")
        obstruct(place, path.with_name(rng.choice(names)), rng.choice(list(OBSTACLES)))
    else:
        change_events(place, path, path)


def random_cubins(place: Place) -> None:
    """Change an entry of a cache of cubins; its hash is made right again, as anybody can."""
    rng = place.rng
    path = next(place.copy("cubins", "cubins").glob("??/*"))
    body = path.read_bytes()[32:]
    header, _, code = body.partition(b"\n")
    if rng.random() < 0.5:
        header = encoded(to_json(change(json.loads(header), rng)))
    else:
        code = damaged(code, rng)
    body = header + b"\n" + code
    path.write_bytes(damaged(body, rng) if rng.random() < 0.3 else hashlib.sha256(body).digest() + body)


def random_wisdom(place: Place) -> None:
    """Change the meaning of a wisdom, or its bytes."""
    rng = place.rng
    path = place.copy("wisdom.json", "wisdom.json")
    if rng.random() < 0.2:
        path.write_bytes(damaged(path.read_bytes(), rng))
    else:
        path.write_bytes(encoded(to_json(change(json.loads(path.read_bytes()), rng))))


def random_winners_of_triton(place: Place) -> None:
    """Change a file of carried winners, or a record of calls, or put obstacles into their folder, or into its place."""
    rng = place.rng
    folder = _winners_of_triton(place)
    path = rng.choice((*sorted(folder.iterdir()), place.named / "triton.json.calls"))
    how = rng.choice(("meaning", "meaning", "bytes", "inside", "folder"))
    if how == "meaning":
        path.write_bytes(encoded(to_json(change(json.loads(path.read_bytes()), rng))))
    elif how == "bytes":
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif how == "inside":
        name = rng.choice((path.name, "other.json", f".{path.name}.lock", "x" * 250 + ".json"))
        obstruct(place, folder / name, rng.choice(list(OBSTACLES)))
    else:
        obstruct(place, folder, rng.choice(("a-fifo", "a-folder", "a-socket", "garbage")))  # a link is the user's own


def _winners_of_triton(place: Place) -> Path:
    """Copy a wisdom and its record of calls, and the folder in which they are carried; return the folder."""
    for name in ("triton.json", "triton.json.calls"):
        place.copy(name, name)
    return place.copy("winners", "winners")


@corpus("winners of Triton")
def more_files_than_a_folder_has(place: Place) -> None:
    folder = _winners_of_triton(place)
    for number in range(2000):
        (folder / f"{number}.json").write_text('{"format": 1, "entries": []}')


@corpus("winners of Triton")
def winners_that_are_a_wisdom_of_other_kernels(place: Place) -> None:
    (path,) = _winners_of_triton(place).glob("*.json")
    path.write_bytes((place.base / "wisdom.json").read_bytes())


for _obstacle in OBSTACLES:

    @corpus("winners of Triton", name=f"{_obstacle}-for-the-file-of-a-gpu")
    def _(place: Place, obstacle: str = _obstacle) -> None:
        (path,) = _winners_of_triton(place).glob("*.json")
        obstruct(place, path, obstacle)

    @corpus("winners of Triton", name=f"{_obstacle}-for-the-record-of-calls")
    def _(place: Place, obstacle: str = _obstacle) -> None:
        obstruct(place, _winners_of_triton(place) / "programs.calls", obstacle)

    @corpus("winners of Triton", name=f"{_obstacle}-for-the-lock-of-the-record-of-calls")
    def _(place: Place, obstacle: str = _obstacle) -> None:
        obstruct(place, _winners_of_triton(place) / ".programs.calls.lock", obstacle)


_CALL = ["library:softmax", {"rows": 4096}]
_RECORDS: dict[str, bytes] = {
    "a-pickle": pickle.dumps({"format": 1, "programs": [[_CALL]]}),
    "a-newer-format": json.dumps({"format": 10**9, "programs": [[_CALL]]}).encode(),
    "as-many-programs-as-fit": json.dumps({"format": 1, "programs": [[_CALL]] * 25_000}).encode(),
    "as-many-calls-as-fit": json.dumps({"format": 1, "programs": [[_CALL] * 25_000]}).encode(),
    "as-many-arguments-as-fit": json.dumps(
        {"format": 1, "programs": [[["library:softmax", {f"{number}": number for number in range(60_000)}]]]}
    ).encode(),
    "as-many-faults-as-fit": json.dumps({"format": 1, "programs": [[3] * 60] * 8}).encode(),
    "escapes-in-its-texts": json.dumps(
        {"format": 1, "programs": [[["\x1b[31m:\ud800", {"\x9b\u202e": "\x07"}, 3]]], "\x1b]0;\x07": 1}
    ).encode(),
    "escapes-in-good-calls": json.dumps({"format": 1, "programs": [[["\x1b[31m:\ud800", {"\x9b": "\x07"}]]]}).encode(),
    "values-that-are-no-numbers": b'{"format": 1, "programs": [[["a:b", {"n": NaN, "m": Infinity, "k": -1e999}]]]}',
    "text-that-grows-when-it-is-written": (
        '{"format": 1, "programs": [[["a:b", {"t": "' + "\xe9" * 500_000 + '"}]]]}'
    ).encode(),
    "spaces-without-end": b" " * 2_000_000,
}
for _name, _content in _RECORDS.items():

    @corpus("winners of Triton", name=f"record-of-calls-{_name}")
    def _(place: Place, content: bytes = _content) -> None:
        (_winners_of_triton(place) / "programs.calls").write_bytes(content)

    @corpus("winners of Triton", name=f"record-of-calls-of-the-wisdom-{_name}")
    def _(place: Place, content: bytes = _content) -> None:
        _winners_of_triton(place)
        (place.named / "triton.json.calls").write_bytes(content)


def random_model(place: Place) -> None:
    """Change the meaning of the card of a model, or its bytes, or those of the regressors."""
    rng = place.rng
    card, regressors = place.copy("model.json", "model.json"), place.copy("model.npy", "model.npy")
    kind = rng.random()
    if kind < 0.5:
        card.write_bytes(encoded(to_json(change(json.loads(card.read_bytes()), rng))))
    elif kind < 0.7:
        card.write_bytes(damaged(card.read_bytes(), rng))
    else:
        _belonging(card, regressors, damaged(regressors.read_bytes(), rng))


def _belonging(card: Path, regressors: Path, content: bytes) -> None:
    """Replace the regressors of a model, and their hash in its card, as anybody can."""
    regressors.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    card.write_text(json.dumps(json.loads(card.read_bytes()) | {"sha256": sha256}))


def _regressors(name: str, make: Callable[[Any], Any], members: int = 0) -> None:
    """Add the model whose rows, or whose file, a function makes of the rows of an honest one."""

    def build(place: Place) -> None:
        import numpy as np

        card, regressors = place.copy("model.json", "model.json"), place.copy("model.npy", "model.npy")
        made = make(np.load(regressors))
        if members:
            document = json.loads(card.read_bytes())
            card.write_text(json.dumps(document | {"members": document["members"][:1] * members}))
        _belonging(card, regressors, made if isinstance(made, bytes) else _npy(made))

    add("model", f"regressors-{name}", build)


def _npy(array: Any) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _with(rows: Any, field: str, value: object, *, inner: bool = True) -> Any:
    """Give all inner nodes, or all nodes, another value."""
    rows[field][rows["left"] > 0 if inner else slice(None)] = value
    return rows


def _headed(rows: Any, shape: str, descr: str = "") -> bytes:
    """Return the file of some rows with another header."""
    header = f"{{'descr': {descr or rows.dtype.descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + rows.tobytes()


def _deepest(rows: Any) -> Any:
    """Return large trees in which both children of a node are the next one: 2 to the 254 paths."""
    import numpy as np

    tree = np.zeros(255, rows.dtype)
    tree["left"][:-1], tree["right"][:-1] = np.arange(1, 255), np.arange(1, 255)
    return _forest(tree, members=4, trees=75)


def _largest(rows: Any) -> Any:
    """Return the most trees that are allowed: whoever goes to the right meets every second node."""
    import numpy as np

    tree = np.zeros(9, rows.dtype)
    tree["left"][:-1:2], tree["right"][:-1:2] = np.arange(1, 9, 2), np.arange(2, 10, 2)
    tree["num_threshold"] = -1.0
    return _forest(tree, members=200, trees=100)


def _forest(tree: Any, members: int, trees: int) -> Any:
    import numpy as np

    member = np.concatenate([np.zeros(1, tree.dtype), np.tile(tree, trees)])
    member["tree"][1:] = np.repeat(np.arange(1, trees + 1), len(tree))
    made = np.tile(member, members)
    made["member"] = np.repeat(np.arange(members), len(member))
    return made


def _times(name: str, value: object) -> None:
    """Add the model whose card has other times of first choices, measured over those of physics."""

    def build(place: Place) -> None:
        path = place.copy("model.json", "model.json")
        place.copy("model.npy", "model.npy")
        card = json.loads(path.read_bytes())
        for member in card["members"]:
            member["over_physics"] = value
        path.write_text(json.dumps(card))

    add("model", f"times-{name}", build)


_times("of-nan", {"model": float("nan"), "physics": float("nan")})
_times("of-infinity", {"model": float("inf")})
_times("of-nothing", {"physics": 0})
_times("of-1e308", {"physics": 1e308})
_times("below-nothing", {"model": -1})
_times("of-text", {"model": ESCAPE})
_times("of-digits", {"model": "9" * 9000})
_times("of-lists", [[1.0]])
_times("of-50000-sources", {str(number): 1.0 for number in range(50_000)})
_regressors("of-nothing", lambda rows: rows[:0])
_regressors("of-no-bytes", lambda rows: b"")
_regressors("cut-off", lambda rows: _npy(rows)[:-1])
_regressors("of-objects", lambda rows: rows.astype(object))
_regressors("of-floats", lambda rows: rows["value"])
_regressors("of-another-order", lambda rows: rows[::-1])
_regressors("of-one-member-only", lambda rows: rows[rows["member"] == 0])
_regressors("of-one-tree", lambda rows: _with(rows, "tree", 1, inner=False))
_regressors("of-starts-that-branch", lambda rows: _with(rows, "left", 1, inner=False))
_regressors("with-children-at-the-root", lambda rows: _with(rows, "left", 0))
_regressors("with-children-beyond-the-tree", lambda rows: _with(rows, "right", 255))
_regressors("with-one-child-for-all", lambda rows: _with(rows, "left", 1))
_regressors("with-features-beyond-the-table", lambda rows: _with(rows, "feature_idx", 255))
_regressors("with-thresholds-of-nan", lambda rows: _with(rows, "num_threshold", float("nan")))
_regressors("with-thresholds-of-infinity", lambda rows: _with(rows, "num_threshold", float("-inf")))
_regressors("with-values-of-nan", lambda rows: _with(rows, "value", float("nan"), inner=False))
_regressors("with-values-of-1e308", lambda rows: _with(rows, "value", 1e308, inner=False))
_regressors("of-the-deepest-trees", _deepest)
_regressors("of-the-most-trees", _largest, members=200)
_regressors("that-declare-a-terabyte", lambda rows: _headed(rows, "(50000000000,)"))
_regressors("that-declare-a-negative-shape", lambda rows: _headed(rows, "(-1,)"))
_regressors("that-declare-a-row-of-gigabytes", lambda rows: _headed(rows, "(1,)", "[('member', 'u1', (2000000000,))]"))
_regressors("that-declare-brackets", lambda rows: _headed(rows, "(" * 9000))
_regressors("that-declare-digits", lambda rows: _headed(rows, "(" + "9" * 9000 + ",)"))
_regressors("that-declare-escapes", lambda rows: _headed(rows, "(1,)", repr(ESCAPE)))
_regressors("that-are-an-archive", lambda rows: b"PK\x05\x06" + bytes(18))
_regressors("of-100-megabytes", lambda rows: _npy(rows) + bytes(100_000_000))
for _obstacle in ("a-fifo", "a-folder", "a-device-without-end", "10-gigabytes-of-nothing"):

    def _instead(place: Place, obstacle: str = _obstacle) -> None:
        place.copy("model.json", "model.json")
        obstruct(place, place.copy("model.npy", "model.npy"), obstacle)

    add("model", f"regressors-are-{_obstacle}", _instead)


def _run(name: str, file: str, obstacle: str, *commands: str, kind: str = "run folder") -> None:
    def build(place: Place) -> None:
        obstruct(place, place.copy("campaign" if kind == "campaign" else "store", "run") / file, obstacle)

    add(kind, name, build, *commands)


def _slug(file: str) -> str:
    return file.strip(".").replace("/.", "-").replace("/", "-").replace(".", "-")


for _file, _commands in {
    "run.sqlite": ("show", "resume", "report"), "run.sqlite-wal": ("show", "resume"), "run.sqlite-journal": ("show", "resume"),
    "run.sqlite-shm": ("show", "resume"), "run.lock": ("follow", "resume"), "events.jsonl": ("follow", "resume", "report"),
    "winner": ("resume", "report"), "winners": ("report",), "report.html": ("report",), "winners.json": ("report",),
    "optuna.journal": ("dashboard",),
}.items():  # fmt: skip
    for _obstacle in (
        "a-canary",
        "a-folder-elsewhere",
        "the-parent",
        "a-hard-link-to-a-canary",
        "a-fifo",
        "a-device-without-end",
        "a-folder",
    ):
        _run(f"{_slug(_file)}-is-{_obstacle}", _file, _obstacle, *_commands)
for _file in ("run.new", ".winner.new", ".winner.old", "run.sqlite.new", f".winners.json.{1}", "plan.toml"):
    for _obstacle in ("a-canary", "a-folder-elsewhere", "a-fifo"):
        _run(f"{_slug(_file)}-is-{_obstacle}", _file, _obstacle, "show", "resume", "report")
for _file, _commands in {
    "winners": ("report", "resume_campaign"), "problems": ("show", "report", "resume_campaign"), "plan.toml": ("show", "resume_campaign"),
    "problems/convolution-w6600": ("show", "report", "resume_campaign"), "problems/convolution-w6600/run.sqlite": ("show", "report"),
    "winners/convolution-w6600": ("report",), "winners/.convolution-w6600.new": ("report",), "winners/.convolution-w6600.old": ("report",),
    ".winners.new": ("report",), "events.jsonl": ("follow", "report"), "run.lock": ("resume_campaign",), "problems/a-third": ("show", "report"),
}.items():  # fmt: skip
    for _obstacle in ("a-canary", "a-folder-elsewhere", "the-parent", "a-fifo", "a-folder"):
        _run(f"{_slug(_file)}-is-{_obstacle}", _file, _obstacle, *_commands, kind="campaign")


for _file in ("kernel.cu", "winner.json"):
    for _obstacle in OBSTACLES:

        def _in_winner(place: Place, file: str = _file, obstacle: str = _obstacle) -> None:
            winner = place.copy("campaign", "run") / "problems" / "convolution-w6600" / "winner"
            obstruct(place, winner / file, obstacle)

        add("winner folder", f"{_slug(_file)}-is-{_obstacle}", _in_winner, "report", "report_elsewhere")


@corpus("winner folder", "report", "report_elsewhere")
def _a_hundred_thousand_files(place: Place) -> None:
    winner = place.copy("campaign", "run") / "problems" / "convolution-w6600" / "winner"
    for number in range(100_000):
        (winner / f"{number}").touch()


@corpus("winner folder", "report", "report_elsewhere")
def _files_of_a_gigabyte_each(place: Place) -> None:
    winner = place.copy("campaign", "run") / "problems" / "convolution-w6600" / "winner"
    for number in range(3):
        os.truncate(_made(winner / f"kernel-{number}.cu"), 2**30)


@corpus("winner folder", "report", "report_elsewhere")
def _folders_in_it(place: Place) -> None:
    winner = place.copy("campaign", "run") / "problems" / "convolution-w6600" / "winner"
    (winner / "/".join(["a"] * 200)).mkdir(parents=True)
    (winner / "loop").symlink_to(".")


@corpus("run folder", "show", "report", "resume", "follow", "dashboard")
def _nothing(place: Place) -> None:
    (place.named / "run").mkdir()


@corpus("run folder", "show", "report", "resume", "follow", "dashboard")
def _a_file(place: Place) -> None:
    place.write("run", "x")


@corpus("run folder", "show", "report", "resume", "follow", "dashboard")
def _a_link_to_itself(place: Place) -> None:
    (place.named / "run").symlink_to("run")


@corpus("run folder", "show", "report", "follow", "dashboard")
def _a_fifo(place: Place) -> None:
    os.mkfifo(place.named / "run")


@corpus("run folder", "show", "report")
def _a_link_to_an_honest_run(place: Place) -> None:
    place.copy("store", "other")
    (place.named / "run").symlink_to("other")


@corpus("run folder", "resume", "report", "show")
def _temporary_names_of_all_processes(place: Place) -> None:
    """The names that a writer with a predictable name would use, for the next thousand processes."""
    run = place.copy("store", "run")
    for pid in range(os.getpid(), os.getpid() + 1000):
        for name in (f".winners.json.{pid}", f".report.html.{pid}", f".report.md.{pid}"):
            (run / name).symlink_to(place.canary / "secret.txt")


def _events(name: str, text: Callable[[], str | bytes] | str, kind: str = "run folder") -> None:
    def build(place: Place) -> None:
        place.copy("campaign" if kind == "campaign" else "store", "run")
        place.write("run/events.jsonl", text() if callable(text) else text)

    add(kind, f"events-{name}", build, "follow", "report")


def _event(name: str, **facts: object) -> str:
    return to_json({"at": "2026-01-01T00:00:00.000+00:00", "event": name, **facts}) + "\n"


for _kind in ("run folder", "campaign"):
    _events("of-one-line-of-100-megabytes", lambda: b"x" * 100_000_000, _kind)
    _events("of-a-million-lines", lambda: _event("best", number=1) * 1_000_000, _kind)
    _events("of-a-million-broken-lines", lambda: "{}\n" * 1_000_000, _kind)
    _events("nested-deeply", ("[" * 30_000 + "]" * 30_000 + "\n") * 10, _kind)
    _events(
        "of-5000-digits", _event("progress") + '{"at": "x", "event": "best", "number": ' + "9" * 5000 + "}\n", _kind
    )
    _events("of-escapes", lambda: "".join(
        _event(name, slug=ESCAPE, device=ESCAPE, detail=ESCAPE + XSS, problem=ESCAPE, message=ESCAPE, plan=ESCAPE, outcome=ESCAPE,
               problems=[ESCAPE, XSS], devices=[ESCAPE], versions={ESCAPE: ESCAPE}, path=ESCAPE, kernel=ESCAPE, limit=ESCAPE)
        for name in ("run_started", "plan_started", "failure", "worker_died", "gpu_lost", "disk_full", "slice_ended", "report_written",
                     "resumed", "interrupted", "declared", "best", "reference", "drift", "throttled", "plan_ended", ESCAPE)), _kind)  # fmt: skip
    _events("of-other-types", lambda: "".join(
        _event(name, slug=value, device=value, detail=value, number=value, tflops=value, share_of_reference=value, trials=value,
               seconds=value, best_s=value, problems=value, runs=value, elapsed_s=value, at=value, left_s=value, lost_s=value,
               median_s=value, ratio=value, ties=value, rejected=value, discarded=value, signal=value, limit=value, done=value)
        for name in ("plan_started", "run_started", "progress", "best", "failure", "reference", "drift", "throttled", "declared",
                     "gpu_back", "slice_ended", "run_ended", "plan_ended", "interrupted", "resumed")
        for value in (None, [], {}, "x", -1, 1e308, float("nan"), float("inf"), 2**70, True, [[1]], {"a": 1})), _kind)  # fmt: skip
    _events(
        "with-problems-that-are-paths",
        _event("plan_started", problems=["../../canary", "/etc", "..", ".", "", "a/b", ESCAPE]),
        _kind,
    )
    _events("that-are-not-utf-8", b"\xff\xfe\n" * 100, _kind)
    _events("of-surrogates", _event("failure", detail="\ud800", slug="\udfff"), _kind)
    _events("of-nul", lambda: "\0" * 10_000_000, _kind)


@corpus("campaign", "show", "report", "follow", "dashboard", "resume_campaign")
def _ten_thousand_folders(place: Place) -> None:
    run = place.copy("campaign", "run")
    for number in range(10_000):
        (run / "problems" / f"p{number}").mkdir()


@corpus("campaign", "show", "report", "follow", "dashboard", "resume_campaign")
def _honest_problems_100(place: Place) -> None:
    run = place.copy("campaign", "run")
    data = (place.base / "store" / "run.sqlite").read_bytes()
    for number in range(100):
        (run / "problems" / f"p{number}").mkdir()
        (run / "problems" / f"p{number}" / "run.sqlite").write_bytes(data)


@corpus("campaign", "show", "report", "dashboard")
def _a_thousand_broken_stores(place: Place) -> None:
    run = place.copy("campaign", "run")
    for number in range(1_000):
        (run / "problems" / f"p{number}").mkdir()
        (run / "problems" / f"p{number}" / "run.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))


@corpus("campaign", "show", "show_json", "report", "follow", "dashboard")
def _folders_with_names_of_escapes(place: Place) -> None:
    run = place.copy("campaign", "run")
    for name in (ESCAPE, XSS, "\n", " ", "-rf", "é" * 100, "[bold]x", "..."):
        os.rename(place.copy("store", "other"), run / "problems" / name)
    for name in (b"\xff\xfe", b"\xed\xa0\x80"):
        os.rename(place.copy("store", "other"), os.path.join(os.fsencode(run / "problems"), name))


@corpus("campaign", "show", "report", "dashboard")
def _problems_that_link_to_each_other(place: Place) -> None:
    problems = place.copy("campaign", "run") / "problems"
    (problems / "one").symlink_to("two")
    (problems / "two").symlink_to("one")
    (problems / "three").symlink_to("convolution-w6600")
    (problems / "four").symlink_to("../problems")


def _plan_of_campaign(name: str, text: Callable[[], str] | str | bytes) -> None:
    def build(place: Place) -> None:
        place.copy("campaign", "run")
        place.write("run/plan.toml", text() if callable(text) else text)

    add("campaign", f"plan-{name}", build, "show", "report", "resume_campaign")


_plan_of_campaign("of-20000-dots", "a" + ".a" * 20_000 + " = 1\n" + PLAN)
_plan_of_campaign("of-brackets", "x = " + "[" * 100_000 + "]" * 100_000)
_plan_of_campaign("of-5000-digits", "x = " + "9" * 5000 + PLAN)
_plan_of_campaign("empty", "")
_plan_of_campaign("not-utf-8", b"\xff\xfe")
_plan_of_campaign("of-200-kilobytes-of-dots", "a" + ".a" * 100_000 + " = 1")
_plan_of_campaign("with-a-title-of-escapes", PLAN.replace("Two problems", "\\u001b[2J\\u009b31m" + XSS))
_plan_of_campaign("with-a-title-of-another-type", PLAN.replace('"Two problems"', "[1, {a = 2}]"))
_plan_of_campaign("with-another-seed", PLAN.replace('minimum = "16 trials"', 'minimum = "16 trials"\nseed = 9'))
_plan_of_campaign("with-another-problem", PLAN.replace("xgemm_titan_rtx", "xgemm_rtx_a4000"))
_plan_of_campaign("with-more-problems", PLAN.replace('"xgemm_titan_rtx"', '"xgemm_titan_rtx", "xgemm_rtx_a4000"'))
_plan_of_campaign("of-30-megabytes", lambda: PLAN + "#" + "x" * 30_000_000)


def _journal(name: str, change_lines: Callable[[dict[str, Any], dict[str, Any]], Iterable[Any]]) -> None:
    """Add the journal whose lines a function makes of the facts and the run of an honest one."""

    def build(place: Place) -> None:
        path = next(place.copy("comparison", "comparison").glob("runs-*.jsonl"))
        facts, run = map(json.loads, path.read_text().splitlines())
        with path.open("wb") as file:
            for line in change_lines(facts, run):
                file.write(line if isinstance(line, bytes) else encoded(to_json(line)) + b"\n")

    add("comparison", name, build)


_journal("honest", lambda facts, run: [facts, run])
_journal("facts-of-50-megabytes", lambda facts, run: [facts] * 200_000 + [run])
_journal("runs-of-50-megabytes", lambda facts, run: [facts] + [run] * 100_000)
_journal("a-line-of-50-megabytes", lambda facts, run: [facts] + [b"[" * 1_000_000] * 50)
_journal("lines-of-nothing", lambda facts, run: [facts, b"\n" * 10_000_000])
_journal("nested-deeply", lambda facts, run: [facts, b"[" * 1_000_000, b'\n{"a":' * 1_000_000])
_journal("no-facts", lambda facts, run: [run])
_journal("no-runs", lambda facts, run: [facts])
_journal("a-million-facts", lambda facts, run: [{"facts": {str(number): number for number in range(1_000_000)}}, run])
_journal("facts-of-lists", lambda facts, run: [{"facts": [facts]}, run])
_journal("facts-twice", lambda facts, run: [facts, {"facts": {**facts["facts"], "evaluations": 9}}, run])
_journal("facts-of-escapes", lambda facts, run: [{"facts": dict.fromkeys(facts["facts"], ESCAPE)}, run])
_journal("facts-of-infinity", lambda facts, run: [{"facts": dict.fromkeys(facts["facts"], float("inf"))}, run])
_journal("an-array", lambda facts, run: [[facts, run]])
_journal("a-field-more", lambda facts, run: [facts, {**run, "more": 1}])
_journal("errors-of-escapes", lambda facts, run: [facts, {**run, "builds": None, "error": ESCAPE}])
_journal("errors-of-3-megabytes", lambda facts, run: [facts, {**run, "builds": None, "error": "x" * 3_000_000}])
_journal("seeds-of-2-to-the-62", lambda facts, run: [facts, {**run, "seed": 1 << 62}])
_journal(
    "seeds-of-a-million-digits",
    lambda facts, run: [facts, encoded(to_json(run)).replace(b": 0", b": " + b"9" * 1_000_000)],
)
_journal("strategies-of-escapes", lambda facts, run: [facts, {**run, "strategy": ESCAPE}])
for _name, _builds in {
    "of-a-text": "0",
    "of-texts": ["0", "0", "0"],
    "of-pairs": [[0, 0.0]],
    "beyond-the-space": [[(1 << 31) - 1, True, 0, 0.0, 0.0]],
    "below-the-space": [[-1, True, 0, 0.0, 0.0]],
    "of-nothing": [],
    "of-one-configuration": [[0, True, 0, 0.0, 0.0]] * 10,
    "of-skips-alone": [[0, False, 0, 0.0, 0.0]] * 10,
    "from-results-to-come": [[0, True, 1, 0.0, 0.0], [1, True, 9, 0.0, 0.0]],
    "of-nan": [[0, True, 0, float("nan"), 0.0]],
    "of-1e300-seconds": [[0, True, 0, 1e300, 0.0]],
}.items():
    _journal(f"traces-{_name}", lambda facts, run, new=_builds: [facts, {**run, "builds": new}])
_journal(
    "traces-of-many-evaluations",
    lambda facts, run: [facts, {**run, "builds": [[number, True, 0, 0.0, 0.0] for number in range(150_000)]}],
)
_journal("counts-of-null", lambda facts, run: [facts, {**run, "repeats": None}])
for _obstacle in ("a-canary", "a-fifo", "a-folder", "a-device-without-end", "garbage", "10-gigabytes-of-nothing"):
    for _file in ("runs-1of1.jsonl", "runs-2of2.jsonl"):

        def _build(place: Place, file: str = _file, obstacle: str = _obstacle) -> None:
            obstruct(place, place.copy("comparison", "comparison") / file, obstacle)

        add("comparison", f"{_slug(_file)}-is-{_obstacle}", _build)
for _file in ("comparison.json", "summary.json", "scoreboard.html", "figures", "table.csv"):

    def _build_output(place: Place, file: str = _file) -> None:
        obstruct(place, place.copy("comparison", "comparison") / file, "a-canary")

    add("comparison", f"{_slug(_file)}-is-a-canary", _build_output)


@corpus("comparison")
def _every_file_is_a_link(place: Place) -> None:
    """The files that an honest comparison has written, as links."""
    folder = place.copy("comparison", "comparison")
    for path in sorted(folder.iterdir()):
        if path.suffix != ".jsonl":
            obstruct(place, path, "a-canary")


def _cubin(name: str, make: Callable[[bytes, bytes], bytes], *, sealed: bool = True) -> None:
    """Add an entry with another header or code, and with its right hash."""

    def build(place: Place) -> None:
        path = next(place.copy("cubins", "cubins").glob("??/*"))
        header, _, code = path.read_bytes()[32:].partition(b"\n")
        body = make(header, code)
        path.write_bytes(hashlib.sha256(body).digest() + body if sealed else body)

    add("cubin cache", name, build)


_cubin("honest", lambda header, code: header + b"\n" + code)
_cubin("that-unfolds-to-1500-megabytes", lambda header, code: header + b"\n" + _zeros(1_600))
_cubin("of-a-header-nested-deeply", lambda header, code: b"[" * 100_000 + b"]" * 100_000 + b"\n" + code)
_cubin("of-5000-digits", lambda header, code: b'{"state": "ok", "registers": ' + b"9" * 5000 + b"}\n" + code)
_cubin("of-another-state", lambda header, code: header.replace(b'"ok"', b'"skipped"') + b"\n" + code)
_cubin("of-unknown-fields", lambda header, code: header.replace(b"{", b'{"x": 1, ', 1) + b"\n" + code)
_cubin("of-a-list", lambda header, code: b"[1]\n" + code)
_cubin("of-other-types", lambda header, code: b'{"state": "ok", "registers": "x", "detail": []}\n' + code)
_cubin(
    "of-details-of-escapes",
    lambda header, code: to_json({"state": "compile_error", "detail": ESCAPE}).encode() + b"\n" + code,
)
_cubin("empty", lambda header, code: b"", sealed=False)
_cubin("of-32-bytes", lambda header, code: bytes(32), sealed=False)


def _zeros(megabytes: int) -> bytes:
    """Return a zlib stream of zeros: one block, repeated, which ends on a whole byte."""
    packer = zlib.compressobj(9)
    head = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = 1
    for _ in range(megabytes):
        checksum = zlib.adler32(bytes(1 << 20), checksum)
    return head + block * (megabytes - 1) + packer.flush()[:-4] + checksum.to_bytes(4)


for _obstacle in ("a-canary", "a-fifo", "a-folder", "a-device-without-end", "10-gigabytes-of-nothing"):

    def _entry(place: Place, obstacle: str = _obstacle) -> None:
        obstruct(place, next(place.copy("cubins", "cubins").glob("??/*")), obstacle)

    add("cubin cache", f"entry-is-{_obstacle}", _entry)
