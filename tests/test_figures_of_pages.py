"""Figures of the pages are those of the files of results, and pictures are drawn from today's sources."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def script(name):
    specification = importlib.util.spec_from_file_location(f"{name}_of_pages", ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


figures, summaries = script("figures"), script("summaries")

RESULT = {
    "spaces": {"a b": {"share": 0.9713}, "c": {"share": 0.5}},
    "seconds": [0.0012],
    "count": 5320,
    "flops": 5.46e13,
    "change": -3.5,
}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a page, a result and a picture."""
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "docs/images").mkdir(parents=True)
    (tmp_path / "benchmarks/results/r.json").write_text(json.dumps(RESULT))
    (tmp_path / "docs/images/sources.json").write_text("{}")
    return tmp_path


def page(folder, text):
    (folder / "README.md").write_text(text)
    return figures.check(folder, write=False)


@pytest.mark.parametrize(
    "text",
    [
        "reaches 0.971<!-- r.json#spaces/a b/share --> of it",
        "reaches 97.1 %<!-- r.json#spaces/a b/share --> of it",
        "reaches 97<!-- r.json#spaces/a b/share --> % of it",
        "| 0.50 | 0.0012<!-- r.json#{spaces/c/share seconds/0} --> |",
        "takes 1.2 ms<!-- r.json#seconds/0 -->",
        "of 5,320<!-- r.json#count -->",
        "about 5e3<!-- r.json#count -->",
        "54.6 TFLOPS<!-- r.json#flops -->",
        "from 0.5 to 0.971<!-- r.json#spaces/*/share|{min max} -->",
        "of 2<!-- r.json#spaces/*/share|count --> spaces",
        "from -3.5<!-- r.json#change --> to 0.5<!-- r.json#spaces/c/share -->",
        "| -4 (0.5<!-- r.json#{change spaces/c/share} -->) |",
        "h200-4096 and v1.2 are no figures: 5,320<!-- r.json#count -->",
    ],
)
def test_a_figure_may_have_any_digits_and_its_unit(folder, text):
    assert page(folder, text) == []


def test_a_figure_that_was_changed_by_hand_is_told_with_its_source(folder):
    (difference,) = page(folder, "reaches 0.981<!-- r.json#spaces/a b/share -->")
    assert difference == "README.md: 0.981 must be 0.971, as in r.json#spaces/a b/share"


def test_it_is_corrected_where_that_is_asked(folder):
    page(folder, "from 0.4 to 98.1 %<!-- r.json#spaces/*/share|{min max} -->, 5<!-- r.json#count -->")
    assert figures.check(folder, write=True) == []
    assert (folder / "README.md").read_text().startswith("from 0.5 to 97.1 %<!--")
    assert figures.check(folder, write=False) == []


def test_a_source_that_does_not_exist_is_an_error(folder):
    with pytest.raises(KeyError):
        page(folder, "0.971<!-- r.json#spaces/d/share -->")


def test_a_picture_is_outdated_once_one_of_its_sources_has_changed(folder):
    source = folder / "benchmarks/results/seeds/seeds.json"
    source.parent.mkdir()
    source.write_text("1")
    (folder / "docs/images/seeds.svg").write_text("<svg/>")
    figures.keep_hashes(folder, ["seeds.svg"])
    assert page(folder, "") == []
    source.write_text("2")
    (difference,) = page(folder, "")
    assert difference.startswith("docs/images/seeds.svg: its sources have changed")
    (folder / "docs/images/other.svg").write_text("<svg/>")
    assert any("other.svg: no source" in difference for difference in page(folder, ""))


def test_the_figures_and_pictures_of_the_pages_are_right():
    assert figures.check(ROOT, write=False) == []


def test_the_summaries_are_what_the_rows_of_the_results_give():
    written = json.loads(summaries.OUTPUT.read_text())
    assert written == json.loads(json.dumps(summaries.summaries()))


def test_pages_name_their_sources():
    """The pages with many figures have sources, so that the comparison compares something."""
    for path in (
        "README.md",
        "docs/index.md",
        "docs/tutorial.md",
        "docs/your-kernel.md",
        "docs/how-to/build-a-library.md",
        *(f"docs/explanation/{name}.md" for name in ("compiler", "gemm", "older-papers", "pruning", "search", "skip")),
    ):
        assert figures.COMMENT.search((ROOT / path).read_text()), path
