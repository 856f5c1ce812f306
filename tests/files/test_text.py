"""No control character of a file reaches the terminal."""

from hypothesis import given
from hypothesis import strategies as st

from mltune.files.text import did_you_mean, printable, printable_lines


@given(st.text())
def test_a_printable_text_is_one_line_of_printable_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert len(printable(text, longest=5)) <= 5


@given(st.text())
def test_lines_are_kept(text: str) -> None:
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))


def test_printable_text_is_unchanged() -> None:
    assert printable("sgemm NT 4096 ✓") == "sgemm NT 4096 ✓"
    assert printable_lines("error: a\n  b\x1b]0;title\x07") == "error: a\n  b ]0;title "


def test_the_nearest_known_name_is_suggested_whatever_its_case() -> None:
    assert did_you_mean("BLK_m", ["BLK_K", "blk_M"]) == "; did you mean 'blk_M'?"
    assert did_you_mean("x" * 100_000, ["random"]) == ""
    assert did_you_mean("", []) == ""
