"""Hostile surroundings of a user's own program: a Triton file with its shapes, and the file of a tuned function."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.hostile.cases import Place, add
from tests.hostile.folders import OBSTACLES, is_small, obstruct
from tests.hostile.values import ESCAPE, NUMBERS, TEXTS, XSS, change, damaged, encoded, to_json
from tests.triton_file import FILE

NO_LINKS = ("a-fifo", "a-folder", "a-socket", "10-gigabytes-of-nothing", "garbage")
"""What may lie in place of what the user names: a link there is followed, since the user made it."""

FACTS = {"kernel": "tuned", "device": "NVIDIA H100 80GB HBM3", "triton": "3.6.0", "dtype": None, "block_shape": []}
BEST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
WINNER = {"configuration": BEST, "median_s": 1e-3, "first_s": None, "measured": 25, "seconds": 3.5}
SHAPES = "M,E,N,count\n16,9,14336,3\n32,9,14336,1\n"
CELLS = ("=1+1", '"', "", " ", "1e400", "nan", "٣", "1_000", "-5", "9" * 400, "0x10", "\r", "1;2", "16", "2147483647", "count", "M", *TEXTS)  # fmt: skip
MODULES = [name for name in ("json", "numpy", "typing", "dataclasses", "enum", "mltune", "triton", "torch", "pandas",
           "cloudpickle", "sitecustomize", "usercustomize", "encodings", "scipy", "ast", "inspect") if find_spec(name)
           or name.endswith("customize")]  # fmt: skip
"""Modules that are there, so that one of the name beside the user's file is never needed."""


def shapes(place: Place, text: str = SHAPES) -> None:
    """Write the file of the kernel, its shapes, and the winner of one of them."""
    place.write("kernels.py", FILE)
    place.write("shapes.csv", text)
    line = {"facts": FACTS, "shape": {"M": 16, "E": 9, "N": 14336}, "found": WINNER}
    place.write("run/winners.jsonl", json.dumps(line) + "\n")


def neighbour(place: Place, name: str, *, package: bool = False) -> None:
    """Write a module beside the user's file that writes into the canary."""
    code = f"open({str(place.canary / 'new.txt')!r}, 'w')\n"
    place.write(f"{name}/__init__.py" if package else f"{name}.py", code)


def random_shapes(place: Place) -> None:
    """Change the shapes, the winners, or what lies beside them; put modules beside the user's file."""
    rng = place.rng
    shapes(place)
    for how in sorted(
        rng.choices(("cells", "bytes", "module", "obstacle", "winners"), k=rng.choice((1, 2))), key="obstacle".__eq__
    ):
        path = place.named / rng.choice(("shapes.csv", "run/winners.jsonl"))
        if how == "cells":
            rows = [[rng.choice(("M", "E", "N", "count", *CELLS)) for _ in range(4)], *([16, 9, 14336, 3] for _ in range(2))]  # fmt: skip
            rows[rng.randrange(3)][rng.randrange(4)] = rng.choice(CELLS)
            place.write("shapes.csv", rng.choice("\n,\r").join(",".join(map(str, row)) for row in rows))
        elif how == "bytes" and is_small(path):
            path.write_bytes(damaged(path.read_bytes(), rng))
        elif how == "winners" and path.parent.is_dir() and not (place.named / "run").is_symlink():
            line = {"facts": FACTS, "shape": {"M": rng.choice((16, *NUMBERS)), "E": 9, "N": 14336}, "found": WINNER}
            place.write("run/winners.jsonl", "".join(to_json(change(line, rng)) + "\n" for _ in range(3)))
        elif how == "obstacle":
            name = rng.choice(("run", "run/winners.jsonl", "shapes.csv"))
            obstruct(place, place.named / name, rng.choice(list(OBSTACLES) if "/" in name else NO_LINKS))
        else:
            neighbour(place, rng.choice(MODULES), package=rng.random() < 0.3)


def _shapes(name: str, build: Callable[[Place], object] = id, *, text: Callable[[], str] = lambda: SHAPES) -> None:
    def make(place: Place) -> None:
        shapes(place, text())
        build(place)

    add("shapes", name, make)


_shapes("winners-that-are-a-link", lambda place: obstruct(place, place.named / "run/winners.jsonl", "a-canary"))
_shapes("a-million-shapes", text=lambda: "M\n" + "".join(f"{number}\n" for number in range(1_000_000)))
_shapes("a-row-of-10-megabytes", text=lambda: "M\n" + "1" * 10_000_000)
_shapes("columns-of-escapes", text=lambda: f"M,{ESCAPE},{XSS}\n1,2,3\n")
for _name in ("numpy", "json", "triton", "sitecustomize"):
    if _name in MODULES:
        _shapes(f"a-module-of-the-name-{_name}", lambda place, name=_name: neighbour(place, name))


TUNED = "tuned/add.json"


def random_tuned_function(place: Place) -> None:
    """Change the file of a tuned function, or what lies in its place, in that of its lock, or of its folder."""
    rng = place.rng
    path = place.copy("tuned", "tuned") / "add.json"
    if (how := rng.random()) < 0.4:
        path.write_bytes(encoded(to_json(change(json.loads(path.read_bytes()), rng))))
    elif how < 0.6:
        path.write_bytes(damaged(path.read_bytes(), rng))
    else:
        name = rng.choice(("add.json", ".add.json.lock", "add.json.lock", ".add.json.new", ""))
        obstruct(place, path.parent / name, rng.choice(NO_LINKS if name in ("", "add.json") else list(OBSTACLES)))


def _tuned(name: str, build: Callable[[Path], object], *commands: str) -> None:
    add("tuned function", name, lambda place: build(place.copy("tuned", "tuned")) and None, *commands)


def _replace(folder: Path, target: str) -> None:
    os.rename(folder, folder.with_name("moved"))
    folder.symlink_to(target)


_tuned(
    "a-process-that-stopped-while-it-tunes", lambda folder: (folder / "add.json").unlink(), "call_beside_a_stopped_one"
)
_tuned("a-folder-that-is-in-no-file-system", lambda folder: _replace(folder, "/sys/devices"))
_tuned("a-folder-of-processes", lambda folder: _replace(folder, "/proc/self"))
_tuned("a-folder-that-is-read-only", lambda folder: folder.chmod(0o555))
_tuned("a-file-that-is-read-only", lambda folder: (folder / "add.json").chmod(0o444))
