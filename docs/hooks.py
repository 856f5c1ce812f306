"""Hook of the site: names of the Python interface, options of the commands, roles of docstrings, the glossary."""

import json
import re
from typing import Any

import typer.main
from mkdocs.structure.pages import Page

import mltune
from mltune.cli import app
from mltune.resolve.options import DECLARED, USUAL

PUBLIC = re.compile(r"^::: mltune\.(\w+)\n(?:    options:\n)?", re.MULTILINE)
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([^<]+)</code>")
GLOSSARY = "reference/glossary.md"
OPTIONS = "<!-- the options of all commands -->"
OPTIONS_OF_A_RUN = "<!-- the options of a run -->"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Show a name of ``mltune`` where it is defined, list options, and link to the glossary."""
    markdown = markdown.replace(OPTIONS_OF_A_RUN, "\n".join(_options_of_a_run()))
    if OPTIONS in markdown:
        markdown = markdown.replace(OPTIONS, "\n".join(_options(typer.main.get_command(app), "mltune")))
    if not page.file.src_uri.endswith(GLOSSARY):
        to_root = "../" * page.file.src_uri.count("/")
        markdown += f"\n\n---\n\nSpecial words are in the [glossary]({to_root}{GLOSSARY}).\n"
    return PUBLIC.sub(_at_its_module, markdown + "\n")


def on_page_content(html: str, **_: object) -> str:
    """Replace ``:class:`X``` by the code X, and a double colon at the end of a paragraph by a single one."""
    return ROLE.sub(r"<code>\1</code>", html).replace("::</p>", ":</p>")


def _at_its_module(found: re.Match[str]) -> str:
    name = found[1]
    public = getattr(mltune, name)
    if not hasattr(public, "__qualname__"):  # a module
        return found[0]
    return f"::: {public.__module__}.{name}\n    options:\n      heading: mltune.{name}\n"


def _options(command: Any, path: str) -> list[str]:
    """Return a heading, a sentence and a table for a command, and for each of those below it."""
    below = getattr(command, "commands", {})
    if below:
        return [line for name, one in below.items() for line in _options(one, f"{path} {name}")]
    context = typer.Context(command, info_name=path)
    records = [record for one in command.params if (record := one.get_help_record(context))]
    rows = [(option, " ".join(meaning.split()).replace("|", "\\|")) for option, meaning in records]
    table = [f"| `{option}` | {meaning} |" for option, meaning in rows if option not in ("--json", "--help")]
    return [f"## {path}", "", command.help.split("\n\n")[0], "", "| option | meaning |", "|---|---|", *table, ""]


def _options_of_a_run() -> list[str]:
    """Return the table of the options of a run: the keys of ``[options]`` in a plan."""
    rows = []
    for name, (kind, option) in DECLARED.items():
        default = "none" if USUAL[name] is None else f"`{json.dumps(USUAL[name])}`"
        rows.append(f"| `{name}` | {kind.partition(' ')[0]} | {default} | {option.meaning} |")
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
