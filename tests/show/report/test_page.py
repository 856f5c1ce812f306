"""The page, the Markdown and winners.json agree; text from third parties stays text."""

import json
import re
from html.parser import HTMLParser

import pytest
from campaigns import REPLAYED, replayed

from mltune.dataset.dataset import load_manifest
from mltune.device.known import UNKNOWN as UNKNOWN_DEVICE
from mltune.files.owned import COMMENT
from mltune.results.wording import UNKNOWN, percent, spaced_duration, tflops
from mltune.show.report.evidence import read_input
from mltune.show.report.sections import sections
from mltune.show.report.writing import hardware, markdown, write_report


class Page(HTMLParser):
    """The elements of a page, and the cells of its table of winners."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.events, self.addresses = [], [], [], []
        self.winners, self._row, self._in_row = {}, None, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.tags.append(tag)
        self.ids += [known["id"]] if "id" in known else []
        self.events += [name for name in known if name.startswith("on")]
        self.addresses += [known[name] for name in ("src", "href", "action") if name in known]
        if tag == "tr":
            self._row, self._in_row = None, True
        address = known.get("href") or ""
        if tag == "a" and self._in_row and address.startswith("#p-"):
            slug = address.removeprefix("#p-")
            self._row = None if slug in self.winners else self.winners.setdefault(slug, [])  # of the first table
        if tag == "td" and self._row is not None:
            self._row.append(known.get("data-sort"))

    def handle_endtag(self, tag):
        self._in_row &= tag != "tr"


@pytest.fixture(scope="module")
def page(report):
    return Page(report.html.read_text())


@pytest.fixture(scope="module")
def headings(report):
    """Return the headings of the table of winners, that of the problem first."""
    found = sections(read_input(report.html.parent), report.document, quick=True)
    return [column.heading for column in found["winners"].columns]


def test_the_table_holds_the_figures_of_the_json(report, page, headings):
    entries = json.loads(report.winners.read_text())["winners"]
    assert list(page.winners) == [entry["slug"] for entry in entries]
    for entry in entries:
        cells = dict(zip(headings[1:], page.winners[entry["slug"]], strict=True))
        expected = {
            "TFLOPS": entry["tflops"],
            "of cuBLAS": entry["reference"]["share"] if entry["reference"] else None,
            "of peak": entry["share_of_peak"],
            "of optimum": entry["optimum"]["share"] if entry["optimum"] else None,
            "ties": len(entry["ties"]),
            "trials": entry["trials"],
        }
        assert {name: float(cells[name]) if cells[name] else None for name in expected} == expected


def test_the_page_and_the_markdown_show_the_figures_of_the_json(report):
    shown, written = report.html.read_text(), report.markdown.read_text()
    table = written.partition("## Winners")[2].partition("##")[0]
    first, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    )
    rows = {cells[0]: dict(zip(first, cells, strict=True)) for cells in lines}
    for entry in report.document["winners"]:
        if entry["tflops"] is None:
            continue
        share = percent(entry["reference"]["share"]) if entry["reference"] else UNKNOWN
        cells = {
            name: cell.partition("(")[0].strip() for name, cell in rows[entry["label"].replace("_", "\\_")].items()
        }
        figures = [cells[name] for name in ("TFLOPS", "of cuBLAS", "of peak")]
        assert figures == [tflops(entry["tflops"]), share, percent(entry["share_of_peak"])]
        assert (int(cells["ties"]), int(cells["trials"])) == (len(entry["ties"]), entry["trials"])
        for figure in figures:
            assert re.search(rf">{re.escape(figure)} ?<", shown)


def test_a_column_is_declared_once_for_the_page_and_the_markdown(report):
    found = sections(read_input(report.html.parent), report.document, quick=True)
    shown, written = report.html.read_text(), report.markdown.read_text()
    for table in (found[name] for name in ("winners", "predictions", "times", "deviations")):
        for column in table.columns:
            assert f">{column.heading}<" in shown
            assert (f"| {column.heading} |" in written) == (column.look != "folded")


def test_text_from_third_parties_is_no_element(report, page):
    text = report.html.read_text()
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.events == []
    assert all(address.startswith(("#", "data:,", "winners/")) for address in page.addresses)
    assert text.count("alert(&#39;x&#39;)") > 10  # shown as text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_ids_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_links_lead_somewhere(report, page):
    for address in page.addresses:
        if address.startswith("#"):
            assert address[1:] in page.ids


def test_text_from_third_parties_is_no_markdown(report):
    text = report.markdown.read_text().removeprefix(COMMENT)
    outside_code = re.sub(r"`[^`\n]*`", "", text.replace("\\`", ""))
    assert not re.search(r"(?<!\\)<", outside_code)


def test_what_the_winners_are_compared_with_is_named(report):
    found = report.document["against_reference"]
    compared = ", ".join(
        f"{found[verdict]} {verdict} than cuBLAS" for verdict in ("faster", "slower") if verdict in found
    )
    for path in (report.html, report.markdown):
        assert f": {compared}, 2 not compared" in path.read_text()


def test_a_replay_does_not_claim_that_the_reference_was_timed_in_the_run(report, tmp_path):
    in_turns, recorded = "was timed in turns with the finalists", "was timed when the timings were recorded"
    replayed(tmp_path, REPLAYED[0], trials=16)
    assert in_turns in report.html.read_text()
    page = write_report(tmp_path).html.read_text()
    assert recorded in page
    assert in_turns not in page


def test_a_device_without_cuda_has_no_compute_capability():
    facts = load_manifest("convolution_mi250x_gcd").device.to_json()
    assert hardware(facts).startswith(
        "AMD Instinct MI250X (one GCD), gfx90a: 110 compute units at 1700 MHz, 64 GiB at "
    )
    assert hardware(UNKNOWN_DEVICE.to_json()) == "unknown: its facts are not on record"


def test_a_plan_is_kept_as_text_on_the_page(report):
    assert "title = &#34;A failed campaign&#34;" in report.html.read_text()


def test_the_markdown_is_written_from_a_failed_campaign(report):
    source = read_input(report.html.parent)
    text = markdown(report.document, sections(source, report.document, quick=True))
    assert text.startswith(f"{COMMENT}\n# A failed campaign")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0005, "0.00 s"), (59, "59.0 s"), (61, "1 min 01 s"), (3599.7, "1 h 00 min"), (28_680, "7 h 58 min")],
)
def test_durations(seconds, text):
    assert spaced_duration(seconds) == text
