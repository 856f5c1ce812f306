"""The page and the Markdown of a comparison show its figures, who had seen what, and the names of strangers as text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import mltune
from mltune.comparison.simulation import RecordingSource, Simulation
from mltune.files.folders import assets
from mltune.files.owned import COMMENT
from mltune.show.scoreboard import html, markdown
from tests.hostile.values import TEXTS, XSS

SPACES = ("convolution_w6600", "h200-transpose-8192x8192-random")


class Backwards:
    """A strategy of a stranger, whose name is markup."""

    name = XSS + "\n|<script>alert(7)</script>`[x](javascript:alert(7))"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate the configurations from the last on."""
        simulation.begin()
        for index in reversed(range(simulation.space.count)):
            simulation.evaluate(index)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> mltune.Comparison:
    """Return a scoreboard with its pages."""
    output = tmp_path_factory.mktemp("scoreboard")
    options = {"evaluations": 30, "seeds": 2, "jobs": 1, "compile_cores": 4, "progress": None}
    with pytest.warns(mltune.MltuneWarning):
        return mltune.scoreboard(["random", "mltune:prior=auto", Backwards()], SPACES, out=output, **options)


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the tables of a scoreboard in Markdown, by heading, without their headers."""
    found = {}
    for part in text.split("\n## ")[1:]:
        heading, *lines = part.splitlines()
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line[:1] == "|"][2:]
        found[heading] = [[cell.strip() for cell in row] for row in rows]
    return found


class Page(HTMLParser):
    """The elements of a page, their addresses and events, and its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str | None] = []
        self.events: list[str] = []
        self._in_cell = False
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "xlink:href")]
        self.events += [name for name, _ in attrs if name.startswith("on")]
        self._in_cell = tag in ("td", "th")
        self.cells += [""] if self._in_cell else []

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data


def test_the_page_and_the_markdown_have_the_figures_of_the_summary(board: mltune.Comparison) -> None:
    found, written = board.summary, (board.directory / "table.md").read_text()
    page = board.directory / "scoreboard.html"
    assert page.stat().st_size < 100_000
    shown = Page(page.read_text()).cells
    strategies, rows = found["strategies"], tables(written)
    assert [row[1] for row in rows["Strategies"]] == [f"{one['score']:.3f}" for one in strategies.values()]
    assert [row[:2] for row in rows["In seconds"] if row[0] == "random"] == [["random", "4"]]
    picks = {(row[0], row[1]): row[2:] for row in rows["Picks for each GPU"]}
    amd = "AMD Radeon PRO W6600, gfx1032"
    for gpu, spaces in {"all GPUs": SPACES, amd: SPACES[:1], "NVIDIA H200": SPACES[1:]}.items():
        each = [strategies["random"]["datasets"][space]["at"] for space in spaces]
        expected = [f"{np.mean([at[str(pick)] for at in each]):.3f}" for pick in (1, 2, 3, 5, 10, 25)]
        assert picks[gpu, "random"] == expected
        place = next(at for at, cell in enumerate(shown) if (cell, shown[at + 1]) == (gpu, "random"))
        assert shown[place + 2 : place + 8] == expected
    assert rows["Spaces"][0][-1] == "MIT, MIT\\_benchmark\\_hub.txt"
    assert rows["Spaces"][1][-3:] == ["space", "mltune", "Apache-2.0"]
    assert ["python", found["versions"]["python"]] in rows["How this was made"]


def test_what_was_seen_and_left_out_is_said(board: mltune.Comparison) -> None:
    text = (board.directory / "table.md").read_text().replace("\\", "")
    assert "come with mltune: 2 of 2 here" in text
    assert "mltune:prior=auto starts from the model transpose, which has learned from this dataset" in text
    assert f"The optimum is that of a sample in 1 space: {SPACES[1]}." in text
    lost = [{"strategy": "tpe", "dataset": SPACES[0], "seed": seed, "error": "no memory"} for seed in (0, 1)]
    more = markdown({**board.summary, "errors": lost, "missing": 3}).replace("\\", "")
    assert f"2 runs of tpe failed, on {SPACES[0]}: no memory" in more
    assert "3 runs missing" in more


def test_names_of_strangers_are_text_and_nothing_is_loaded_or_run(board: mltune.Comparison) -> None:
    summary = json.loads(json.dumps(board.summary))
    for number, space in enumerate(SPACES):
        for field, text in zip(("kernel", "problem", "device", "source", "licence"), TEXTS[number::2], strict=False):
            summary["datasets"][space][field] = f"{XSS}{text}"
        summary["datasets"][space]["notices"] = list(TEXTS)
    summary["command"] = XSS
    for found in (board.summary, summary):
        page = Page(html(found))
        assert not page.tags & {"script", "img", "iframe", "object", "form", "base"}
        assert page.events == []
        assert [address for address in page.addresses if not (address or "").startswith(("#", "data:,"))] == []
        assert "default-src 'none'" in html(found)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html(found))
        rows = tables(markdown(found))
        assert len({len(row) for row in rows["Strategies"]}) == 1
        assert len(rows["Strategies"]) == 3
        assert not re.search(r"(?<!\\)[<`]", markdown(found).removeprefix(COMMENT))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("BLK_M,BLK_N", ""),
        ("block_size_x,block_size_y,tile_size_x,tile_size_y,read_only,use_padding,use_shmem,use_cmem,z", "kernel"),
    ],
)
def test_a_table_of_a_known_kernel_was_in_view(tmp_path: Path, columns: str, expected: str) -> None:
    rows = [",".join([str(row)] * (columns.count(",") + 1) + [str(1.0 + row)]) for row in range(4)]
    (tmp_path / "t.csv").write_text("\n".join([f"{columns},time_ms", *rows]))
    found = RecordingSource("t", tmp_path / "t.csv", tuple(columns.split(",")), "time_ms").load()
    assert (found.origin["in_view"], found.origin["source"]) == (expected, "t.csv")


def test_every_dataset_with_a_licence_is_on_the_board_and_the_same_call_goes_on(tmp_path: Path, monkeypatch) -> None:
    """Of third parties those that name one; the others are mltune's own, but for those that hold its searches."""
    monkeypatch.chdir(tmp_path)
    datasets, done = len([path for path in assets("datasets").glob("*/*.json") if path.parent.name != "rehearsal"]), []
    for ended in (2, 3):
        with pytest.raises(mltune.RunError, match="the same command goes on"):
            mltune.scoreboard(
                "random",
                evaluations=2,
                seeds=1,
                jobs=1,
                progress=done.append,
                interrupt=lambda limit=ended: done[-1].done >= limit,
            )
        assert (done[-1].done, done[-1].jobs) == (ended, datasets)
    assert sum(bool(one.last) for one in done) == 3
    assert all(one.licence for one in mltune.list_datasets() if one.source)
