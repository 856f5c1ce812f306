"""The command-line application: commands from functions of the Python interface, and the output of documents."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer
from typer.core import TyperCommand

from mltune.cli.options import OPTIONS, Convert
from mltune.problem.problem import SHAPE
from mltune.records.versions import __version__
from mltune.show import table

if TYPE_CHECKING:
    from rich.console import RenderableType

Given: TypeAlias = dict[str, Any]
"""The arguments of a function of the Python interface, from a command's options."""

app = typer.Typer(
    name="mltune",
    help="Find the fastest version of a parametrised GPU kernel while measuring few of its versions.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def command(
    function: Callable[..., Any] | None,
    name: str | None = None,
    /,
    *,
    group: typer.Typer = app,
    defaults: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose options are the parameters of a function of the Python interface.

    ``defaults`` are those of its further keywords. The spelling and meaning of an option are in
    :data:`mltune.cli.options.OPTIONS`, or in ``options`` where a command differs; other parameters are not offered. The
    command gets the arguments for the function, if there is one, then its own options, such as ``--json``.
    """

    def register(body: Callable[..., None]) -> Callable[..., None]:
        of_body = list(inspect.signature(body).parameters.values())[function is not None :]
        own = [_offered(parameter.name, parameter.default, options) for parameter in of_body]
        names = {parameter.name for parameter in of_body}
        of_function = () if function is None else _parameters(function, options, defaults or {})
        offered = [parameter for parameter in of_function if parameter.name not in names]
        converters = {
            parameter.name: functions[-1] for parameter in offered if (functions := _converters(parameter.annotation))
        }

        def run(**values: Any) -> None:
            options = {parameter.name: values.pop(parameter.name) for parameter in offered}
            for parameter, convert in converters.items():
                options[parameter] = convert(options[parameter])
            body(*[options][: function is not None], **values)

        functools.update_wrapper(run, body)
        run.__annotations__ = {}
        run.__signature__ = inspect.Signature([*offered, *own])  # type: ignore[attr-defined]
        group.command(name or body.__name__, cls=_Command)(run)
        return body

    return register


RENAMED = {"--device": "--gpu", "--output": "--out", "--export": "--dataset", "--time": "--time-column"}
"""Options of 0.2 that have other names since: taken in 0.3, with a notice, where a command has the new one alone."""


class _Command(TyperCommand):
    """A command that takes the options of the version before under their names of today."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name for parameter in self.params for name in parameter.opts}
        for position, word in enumerate(args):
            old, equals, value = word.partition("=")
            new = RENAMED.get(old)
            if new in names and old not in names:
                table.write(f"{old} is called {new} now; the old name is taken until 0.4", stderr=True)
                args[position] = f"{new}{equals}{value}"
        return super().parse_args(ctx, args)


def _parameters(
    function: Callable[..., Any], options: Mapping[str, Any], usual: Mapping[str, Any]
) -> Iterable[inspect.Parameter]:
    """Yield the parameters of a function that are offered as options; those of a shape and further ones one by one."""
    parameters = sorted(inspect.signature(function).parameters.values(), key=_place)
    own = {parameter.name: parameter.default for parameter in parameters}
    defaults, further = {**usual, **own}, [name for name in options if name not in own]
    for parameter in parameters:
        for name in {"shape": SHAPE, "options": further}.get(parameter.name, (parameter.name,)):
            if options.get(name, OPTIONS.get(name)) is not None:
                yield _offered(name, defaults.get(name), options)


SPELLED = {"as_json": "--json", "at_end": "--on-end", "from_source": "--from"}
"""The options that are not spelled as their parameters."""


def _offered(name: str, default: Any, options: Mapping[str, Any]) -> inspect.Parameter:
    annotation = options.get(name, OPTIONS.get(name))(SPELLED.get(name, f"--{name.replace('_', '-')}"))
    default = ",".join(default) if isinstance(default, tuple) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _place(parameter: inspect.Parameter) -> int:
    """Return where a parameter is offered: the arguments first, then the shape of the problem."""
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        return 2
    return {"shape": 1, "options": 3}.get(parameter.name, 0)


def _converters(annotation: Any) -> list[Callable[[Any], Any]]:
    return [mark.function for mark in get_args(annotation) if isinstance(mark, Convert)]


def command_group(name: str, summary: str) -> typer.Typer:
    """Return a group of commands, such as ``mltune wisdom``, which shows its help without a command."""
    group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

    @group.callback(help=summary)
    def _help(context: typer.Context) -> None:
        _help_alone(context)

    app.add_typer(group, name=name)
    return group


def _help_alone(context: typer.Context) -> None:
    """Show the help if no command is named."""
    if context.invoked_subcommand is None:
        table.write(context.get_help(), stderr=True)
        raise typer.Exit(2)


def _print_version(context: typer.Context, is_set: bool) -> None:
    if is_set and not context.resilient_parsing:  # what a shell completes is only read
        table.write(f"mltune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    _help_alone(context)


def answer(
    document: Any, as_json: bool, renderables: Callable[[], Iterable[RenderableType]], *following: object
) -> None:
    """Print a document as JSON or as tables, and on stderr the words of the following command."""
    if as_json:
        table.write(json.dumps(document, indent=2, allow_nan=False))
        return
    table.show(renderables())
    if following:
        table.write(f"next: mltune {shlex.join(map(str, following))}", stderr=True)


def again(options: Given, *names: str) -> Iterator[object]:
    """Yield the words of options with their values in a call, for the following command."""
    for name in names:
        value = options[name]
        for text in [f"{key}={item}" for key, item in value.items()] if isinstance(value, dict) else [value]:
            if text not in (None, False, "auto"):
                option = f"--{name.replace('_', '-')}"
                yield from (option,) if text is True else (option, text)


def say_resumed_by(*words: object) -> None:
    """Say on stderr that a run was interrupted, and the words of the command to resume it."""
    table.write(f"interrupted; resume with: mltune {shlex.join(map(str, words))}", stderr=True)


INTERRUPTED = 130
"""Exit code of every command that Ctrl-C or SIGTERM has ended, whatever it found before."""


def fail_if(failed: object, interrupted: object = False) -> None:
    """End the command with exit code 1 if its task has failed, or with another one if a signal has ended it."""
    if interrupted or failed:
        raise typer.Exit(INTERRUPTED if interrupted else 1)
