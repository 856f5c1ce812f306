"""The report in a browser: layout, sorting, accessibility; no request and no error."""

import re
import shutil
from itertools import pairwise

import pytest

playwright = pytest.importorskip("playwright.sync_api")

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    installed = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as driver:
        try:
            found = driver.chromium.launch(executable_path=installed, args=["--no-sandbox", "--disable-dev-shm-usage"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {error}")
        with found:
            yield found


@pytest.fixture
def open_page(browser, report):
    """Return a function that opens the report; fail on messages of the page and on requests for anything else."""
    contexts, complaints = [], []

    def open_it(viewport=DESK, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        address = report.html.resolve().as_uri()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def column(page, number):
    """Return what the winners' table is sorted by, as numbers, from top to bottom; None where there is none."""
    cells = page.locator(f"#winners tbody tr > *:nth-child({number})")
    texts = cells.evaluate_all("cells => cells.map(cell => cell.dataset.sort ?? cell.textContent)")
    return [float(text) if text else None for text in texts]


def is_sorted(values, *, descending):
    known = [value for value in values if value is not None]
    assert len(known) > 1
    assert values[: len(known)] == known, "what is not known comes last"
    return known == sorted(known, reverse=descending)


def test_the_table_sorts_by_click(open_page):
    page = open_page()
    head = page.locator("#winners thead th").nth(1)
    head.get_by_role("button").click()
    assert is_sorted(column(page, 2), descending=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").click()
    assert is_sorted(column(page, 2), descending=False)
    page.locator("#winners thead th").nth(2).get_by_role("button").click()
    assert is_sorted(column(page, 3), descending=True)
    assert head.get_attribute("aria-sort") is None


def test_the_table_sorts_by_keyboard(open_page):
    page = open_page()
    page.locator("#winners thead button").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert is_sorted(column(page, 2), descending=True)
    page.keyboard.press("Space")
    assert is_sorted(column(page, 2), descending=False)


def test_names_sort_as_text(open_page):
    page = open_page()
    page.locator("#winners thead button").first.click()
    names = page.locator("#winners tbody th").all_inner_texts()
    assert all(one.lower() <= other.lower() for one, other in pairwise(names))


def test_every_figure_has_a_text_alternative(open_page):
    page = open_page()
    figures = page.locator("figure")
    assert figures.count() > 8
    for heat in page.locator("figure.heat").all():
        rows, columns = heat.locator("tbody th").count(), heat.locator("thead th").count()
        assert heat.locator("tbody td").count() == rows * columns > 0
        assert heat.locator("figcaption").text_content().strip()
    for figure in page.locator("figure:not(.heat)").all():
        drawn = figure.locator("svg")
        assert drawn.get_attribute("role") == "img"
        for part in drawn.get_attribute("aria-labelledby").split():
            assert figure.locator(f"#{part}").text_content().strip()
        assert figure.locator("figcaption").text_content().strip()


def test_every_control_has_a_name_and_every_section_a_heading(open_page):
    page = open_page()
    for button in page.locator("button").all():
        assert button.text_content().strip()
    levels = [int(name[1]) for name in page.locator("h1, h2, h3").evaluate_all("all => all.map(one => one.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("viewport", [PHONE, {"width": 320, "height": 568}, DESK], ids=["phone", "small phone", "desk"])
def test_the_page_is_not_wider_than_the_screen(open_page, viewport):
    page = open_page(viewport)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_the_winners_are_not_cut_on_a_small_screen(open_page):
    page = open_page({"width": 800, "height": 600})
    fits = "all => all.map(one => one.scrollWidth <= one.clientWidth)"
    assert page.locator("#winners .scroll, #skips .scroll").evaluate_all(fits) == [True] * 3


def test_no_table_is_cut_on_a_phone_and_every_cell_has_its_heading(open_page):
    page = open_page({"width": 400, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    fits = "all => all.map(one => one.scrollWidth <= one.clientWidth)"
    tables = page.locator(".cards").evaluate_all(fits)
    assert tables == [True] * len(tables)
    assert len(tables) > 5
    heading = page.locator("#winners tbody td").first.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert heading == '"TFLOPS"'
    page.locator("#winners thead button").first.click()
    names = page.locator("#winners tbody th").all_inner_texts()
    assert all(one.lower() <= other.lower() for one, other in pairwise(names))


CUT_OFF = """figures => figures.flatMap(figure => {
  const frame = figure.getBoundingClientRect();
  const inside = part => {
    const box = part.getBoundingClientRect();
    return box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.top >= frame.top - 1
      && box.bottom <= frame.bottom + 1;
  };
  return [...figure.querySelectorAll("text, path:not([clip-path]):not(defs *)")].filter(part => !inside(part))
    .map(part => part.textContent || part.getAttribute("d").slice(0, 40));
})"""


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_of_a_figure_is_cut_off(open_page, viewport):
    page = open_page(viewport)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    figures = page.locator("figure svg")
    assert figures.count() > 6
    assert figures.evaluate_all(CUT_OFF) == []


def test_headers_take_few_lines_on_a_phone(open_page):
    page = open_page({"width": 400, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    page.add_style_tag(content=".heat .scroll { width: 6rem }")  # as narrow as many columns make it
    lines = "cells => cells.map(cell => cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight))"
    assert max(page.locator("thead th, thead td").evaluate_all(lines)) < 4  # three lines, and the padding


def test_bars_are_printed_and_no_heading_is_left_alone(open_page):
    page = open_page()
    page.emulate_media(media="print")
    style = "(all, name) => [...new Set(all.map(one => getComputedStyle(one)[name]))]"
    assert page.locator(".bar i").evaluate_all(style, "printColorAdjust") == ["exact"]
    assert page.locator("h2, h3, caption, thead, summary").evaluate_all(style, "breakAfter") == ["avoid"]
    assert page.locator("tfoot").evaluate_all(style, "display") == ["table-row-group"]  # not on every sheet


LUMINANCE = """element => {
  const style = getComputedStyle(element);
  return [style.color, style.fill].map(text => (text.match(/[\\d.]+/g) || []).map(Number));
}"""


def contrast(one, other):
    """Return the contrast of two colours, given as sRGB (WCAG 2.2)."""

    def luminance(colour):
        parts = [part / 255 for part in colour[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_suffices_in_light_and_dark(open_page, scheme):
    page = open_page(color_scheme=scheme)
    ground = [
        int(part) for part in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    ]
    assert (sum(ground) > 600) == (scheme == "light")
    for selector in ("body", "a", ".quiet", "figcaption", "small", "td .slower, td .faster, td .level"):
        text, _ = page.locator(selector).first.evaluate(LUMINANCE)
        assert contrast(text, ground) >= 4.5, selector
    _, axis = page.locator("#curves svg text").first.evaluate(LUMINANCE)
    assert contrast(axis, ground) >= 4.5
    strokes = page.locator("#curves svg path[style*='--series-1']").first.evaluate(
        "path => getComputedStyle(path).stroke"
    )
    assert contrast([int(part) for part in re.findall(r"\d+", strokes)], ground) >= 3.0


def test_a_link_to_a_problem_opens_its_details(open_page):
    page = open_page()
    details = page.locator("details.problem").first
    assert not details.evaluate("details => details.open")
    page.locator("#winners tbody a").first.click()
    target = page.locator(page.locator("#winners tbody a").first.get_attribute("href"))
    target.wait_for(state="visible")


def test_all_of_it_is_printed(open_page):
    page = open_page()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_it_reads_without_scripts(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("#winners tbody tr").count() == 8
