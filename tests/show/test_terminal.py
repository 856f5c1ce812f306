"""All output goes through one module, and whatever a text holds, it reaches terminals and notebooks as plain text."""

import ast
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table as RichTable
from rich.text import Text

import mltune
from mltune.show import table
from mltune.show.table import Column, Table

HOSTILE = "GPU\x1b[2J\x1b]0;title\x07\x9b31m [bold]x[/bold] [link=https://example.org]y[/link] <script>x</script>"
CLEAN = "GPU [2J ]0;title  31m [bold]x[/bold] [link=https://example.org]y[/link] <script>x</script>"

PACKAGE = Path(mltune.__file__).parent
PRINTERS = {"print", "echo", "secho", "Console", "get_console"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def outputs_of(path: Path) -> set[str]:
    """Return the calls and the streams through which a module could print."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    streams = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute) and node.attr in STREAMS}
    return {name for name in calls if name.rpartition(".")[2] in PRINTERS} | streams


def test_there_is_one_way_out() -> None:
    """Other modules ask whether a stream is a terminal, and print on consoles that were made in this one."""
    found = {str(path.relative_to(PACKAGE)): outputs_of(path) for path in PACKAGE.rglob("*.py")}
    del found["show/table.py"]
    assert {name: outputs for name, outputs in found.items() if outputs} == {
        "show/live.py": {"self._console.print", "sys.stdout", "sys.stderr"},
        "cli/streams.py": {"sys.stdout", "sys.stderr"},
        "api/display.py": {"sys.stderr"},
    }


def test_lines_are_written_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table.write(f"{HOSTILE}\nnext")
    table.write(HOSTILE, stderr=True)
    assert capsys.readouterr() == (f"{CLEAN}\nnext\n", f"{CLEAN}\n")


def pictures(text: str) -> list[object]:
    grid = RichTable.grid()
    grid.add_row(text, text)
    return [text, Text(text), grid, Table([text], [Column("name", str), Column(text, lambda row: "x")])]


def without_spaces(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("picture", pictures(HOSTILE))
def test_a_picture_on_a_terminal_is_plain_text(picture: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = table.console()
    out.file, out.width = io.StringIO(), 500
    out.print(picture)
    assert without_spaces(CLEAN) in without_spaces(out.file.getvalue())
    assert all(line.isprintable() for line in out.file.getvalue().splitlines())


@given(st.text())
def test_no_text_draws_on_the_terminal(text: str) -> None:
    out = table.console()
    out.file, out.width, out.no_color = io.StringIO(), 500, True
    for picture in pictures(text):
        out.print(picture)
    assert all(line.isprintable() for line in out.file.getvalue().split("\n"))


@pytest.mark.parametrize("picture", pictures(HOSTILE))
def test_a_picture_in_a_notebook_is_text_too(picture: object) -> None:
    shown = table.for_notebook(picture)
    assert "<script" not in shown["text/html"]
    assert "<a " not in shown["text/html"]
    assert "[link=https://example.org]" in shown["text/html"]
    assert "\x1b" not in shown["text/html"] + shown["text/plain"]


class TestWidth:
    table = Table(["word " * 60], [Column("name", lambda row: "a" * 30), Column("text", str, wraps=True)])

    def test_piped_tables_are_neither_wrapped_nor_padded(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        table.show([self.table, "", "words " * 100])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 4
        assert all(line == line.rstrip() for line in lines)

    def test_a_given_width_is_kept(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        table.show([self.table])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(line == line.rstrip() for line in lines)
