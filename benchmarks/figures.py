"""Compare the figures of the pages with the files of results that they come from: scripts/figures [--write].

A figure in a page has its source behind it, in a comment that no reader sees::

    1.03<!-- gemm_4096.json#means/sgemm 4096/geometric_mean -->
    | 0.971 | 0.989<!-- scoreboard/summary.json#strategies/mltune/at/{25 50} --> |

The file lies in benchmarks/results. Behind `#` is the path of the value, whose parts are keys or positions; `*` stands
for all of them, `{A,B}` for some. `{A B}` are the sources of several numbers before the comment, the last of them last.
`|min`, `|max`, `|mean`, `|count` or `|distinct` makes one value of many. A figure has the digits that the page gives
it; before `%`, `ms`, `us`, `MB` and `TFLOPS` it is in that unit.

A picture in docs/images has an entry in SOURCES: the files that it was drawn from. docs/images/sources.json has their
hash when it was drawn. `--write` corrects the figures, and `python benchmarks/pictures.py` draws the pictures.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/*.md", "docs/how-to/*.md", "docs/reference/**/*.md", "docs/explanation/*.md")
RESULTS = "benchmarks/results"
IMAGES = "docs/images"

COMMENT = re.compile(r"<!-- ([\w/.-]+\.json)#(.+?) -->", re.DOTALL)
SEVERAL = re.compile(r"\{([^{},]+)\}")
NUMBER = re.compile(r"(?:(?<![\w.)])-|(?<![\w.]))(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:e\d+)?(?![\w])")
UNITS = {"%": 100.0, "ms": 1e3, "us": 1e6, "MB": 1e-6, "TFLOPS": 1e-12}
REDUCTIONS: dict[str, Callable[[Sequence[Any]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "count": len,
    "distinct": lambda values: len(set(values)),
}
REPORT = "mltune/show/report"
SOURCES = {
    "gemm_4096.svg": ["benchmarks/pictures.py", f"{RESULTS}/gemm_4096.json"],
    "libraries.svg": [
        "benchmarks/pictures.py",
        *(f"{RESULTS}/library/{case}_compare.json" for case in ("sgemm_nn", "hgemm_tn", "dgemm_nt")),
    ],
    "report.png": ["benchmarks/pictures.py", f"{REPORT}/templates/*", f"{REPORT}/*.py", "search/rehearsal.toml"],
    "search_efficiency.svg": ["benchmarks/pictures.py", f"{RESULTS}/scoreboard/summary.json"],
    "seeds.svg": [f"{RESULTS}/seeds/seeds.json"],
}
"""The files that each picture was drawn from; seeds.svg is of a finished study."""


def values_at(document: Any, path: str) -> list[Any]:
    """Return the values at a path; `*` and `{A,B}` in it make several."""
    values = [document]
    for part in path.split("/"):
        values = [child for value in values for child in _children(value, part)]
    return values


def _children(value: Any, part: str) -> list[Any]:
    table = dict(enumerate(value)) if isinstance(value, list) else value
    if part == "*":
        return [*table.values()]
    names = part.strip("{}").split(",") if part.startswith("{") else [part]
    return [table[int(name) if isinstance(value, list) else name] for name in names]


def value_of(document: Any, path: str) -> float:
    """Return the number at a path, or what a reduction makes of the values there."""
    path, _, reduction = path.partition("|")
    values = values_at(document, path)
    if reduction:
        return REDUCTIONS[reduction](values)
    (value,) = values
    return float(value)


def as_written(value: float, figure: str, unit: str) -> str:
    """Return a value with the digits and in the unit that a page gives a figure."""
    value *= UNITS.get(unit, 1.0)
    if "e" in figure:
        digits = len(figure.partition("e")[0].partition(".")[2])
        return re.sub(r"e\+0*", "e", f"{value:.{digits}e}")
    return f"{value:,.{len(figure.partition('.')[2])}f}"


def corrected(text: str, read: Callable[[str], Any]) -> Iterator[tuple[int, str, str, str]]:
    """Yield where each figure of a page with a source begins, the figure, what it has to be, and the source."""
    for comment in COMMENT.finditer(text):
        file, path = comment.groups()
        several = SEVERAL.search(path)
        paths = [path.replace(several[0], part) for part in several[1].split()] if several else [path]
        numbers = [*NUMBER.finditer(text[: comment.start()])][-len(paths) :]
        for number, path in zip(numbers, paths, strict=True):
            following = COMMENT.sub("", text[number.end() : comment.end() + 20])
            unit = re.match(r"\s?([%\w]*)", following)[1]  # type: ignore[index]
            yield number.start(), number[0], as_written(value_of(read(file), path), number[0], unit), f"{file}#{path}"


def with_figures(text: str, read: Callable[[str], Any]) -> tuple[str, list[str]]:
    """Return a page with the figures of its sources, and what differed."""
    wrong = [(at, figure, value, source) for at, figure, value, source in corrected(text, read) if figure != value]
    for at, figure, value, _ in reversed(wrong):
        text = text[:at] + value + text[at + len(figure) :]
    return text, [f"{figure} must be {value}, as in {source}" for _, figure, value, source in wrong]


def hash_of(root: Path, picture: str) -> str:
    """Return the hash of the files that a picture is drawn from."""
    files = sorted(file for pattern in SOURCES[picture] for file in root.glob(pattern) if file.is_file())
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return content.hexdigest()


def keep_hashes(root: Path, pictures: Sequence[str]) -> None:
    """Keep the hashes of the files that pictures were drawn from."""
    path = root / IMAGES / "sources.json"
    hashes = json.loads(path.read_text()) if path.exists() else {}
    hashes |= {picture: hash_of(root, picture) for picture in pictures}
    path.write_text(json.dumps(dict(sorted(hashes.items())), indent=1) + "\n")


def outdated(root: Path) -> list[str]:
    """Return what is wrong with pictures."""
    images = {path.name for path in (root / IMAGES).iterdir()} - {"sources.json"}
    hashes: Mapping[str, str] = json.loads((root / IMAGES / "sources.json").read_text())
    unknown = [f"{IMAGES}/{picture}: no source in benchmarks/figures.py" for picture in sorted(images - SOURCES.keys())]
    changed = [
        f"{IMAGES}/{picture}: its sources have changed; draw it: python benchmarks/pictures.py {picture}"
        for picture in sorted(images & SOURCES.keys())
        if hashes.get(picture) != hash_of(root, picture)
    ]
    return unknown + changed


def check(root: Path, write: bool) -> list[str]:
    """Return what is wrong with the figures and pictures of the pages; correct the figures where asked."""

    @cache
    def read(file: str) -> Any:
        return json.loads((root / RESULTS / file).read_text())

    wrong = []
    for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        text = page.read_text()
        right, differences = with_figures(text, read)
        if write and differences:
            page.write_text(right)
        else:
            wrong += [f"{page.relative_to(root)}: {difference}" for difference in differences]
    return wrong + outdated(root)


def main() -> None:
    """Print what is wrong, and exit with 1 then."""
    wrong = check(ROOT, "--write" in sys.argv[1:])
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
