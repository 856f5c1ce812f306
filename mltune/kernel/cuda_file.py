"""A CUDA source that is no bundle yet: its ``__global__`` functions, their parameters, and its numbers by ``#define``.

The text is read as it stands, without a compiler: what is found is a draft, which ``mltune check`` compiles and
compares with the compiler's view. Sources may come from strangers: every scan is linear, and every expansion limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_NOT_CODE = re.compile(
    r"//(?:[^\\\n]|\\[\s\S])*|/\*[\s\S]*?(?:\*/|\Z)|\bR\"([^()\\\s]{0,16})\([\s\S]*?(?:\)\1\"|\Z)"
    r"|\"(?:\\[\s\S]|[^\"\\\n])*\"?|(?<!\w)'(?:\\.|[^'\\\n])+'"
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*((?:[^\\\n]|\\[\s\S])*)$", re.MULTILINE)
_GLOBAL = re.compile(r"\b__global__\b")
_TOKEN = re.compile(r"\s*(\w+|.)", re.DOTALL)
_TEMPLATE = re.compile(r"\btemplate\s*<([^;{}]*)>[\w\s]*\Z")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|restrict|__restrict__|__restrict|__grid_constant__|register|struct)\b")
_WITH_BRACKETS = ("__launch_bounds__", "__attribute__", "__cluster_dims__", "__block_size__", "__maxnreg__", "alignas")
_ALIAS = re.compile(
    r"\btypedef\s{1,9}(\w[\w ]{0,60}?)\s{1,9}(\w{1,64})\s?;|\busing\s{1,9}(\w{1,64})\s?=\s?(\w[\w ]{0,60}?)\s?;"
)
_NUMBER = re.compile(r"\(?[ \t]*([0-9]{1,10}|0[xX][0-9a-fA-F]{1,8}|true|false)[uUlL]{0,3}[ \t]*\)?")

MOST_FUNCTIONS = 50
"""Most ``__global__`` functions of a source that are read."""

_MOST_SIGNATURE, _MOST_BODY, _MOST_TEMPLATE = 10_000, 100_000, 400  # characters


class Argument(NamedTuple):
    """A parameter of a function: its type without qualifiers, and how many pointers lead to it."""

    name: str
    type: str
    pointers: int
    is_const: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A ``__global__`` function: its name with namespaces, template parameters, arguments, launch bound and body."""

    name: str
    template: tuple[str, ...]
    arguments: tuple[Argument, ...]
    launch_bound: str
    body: str


class Macro(NamedTuple):
    """A macro without arguments: its value, its place in the text, and whether ``#ifndef`` guards it."""

    value: str
    start: int
    end: int
    is_guarded: bool

    @property
    def number(self) -> int | None:
        """Its value, if that is a whole number or a boolean."""
        match = _NUMBER.fullmatch(self.value)
        if match is None:
            return None
        text = match[1]
        return int(text == "true") if text in ("true", "false") else int(text, 16 if text[1:2] in ("x", "X") else 10)


@dataclass(frozen=True, slots=True)
class CudaFile:
    """The text of a source, its code without comments and texts in quotes, and what is read from it."""

    text: str
    code: str
    functions: tuple[Function, ...]
    macros: dict[str, Macro]
    types: dict[str, str]

    def line(self, name: str) -> int:
        """Return the line of a macro."""
        return self.text.count("\n", 0, self.macros[name].start) + 1

    def with_guards(self, names: set[str]) -> str:
        """Return the text with ``#ifndef`` around each of these macros, so that a build can give another value."""
        parts, at = list[str](), 0
        for name, macro in sorted(self.macros.items(), key=lambda item: item[1].start):
            if name in names and not macro.is_guarded:
                line = self.text[macro.start : macro.end]
                parts += [self.text[at : macro.start], f"#ifndef {name}\n{line}\n#endif"]
                at = macro.end
        return "".join([*parts, self.text[at:]])


def read_cuda(text: str) -> CudaFile:
    """Read a CUDA source."""
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    macros = _macros(code)
    aliases = {match[2] or match[3]: match[1] or match[4] for match in _ALIAS.finditer(code)}
    plain = _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), code)
    functions = {function.name: function for function in reversed([*_functions(plain)])}
    types = {name: macro.value for name, macro in macros.items()} | aliases
    return CudaFile(text, code, tuple(reversed(functions.values())), macros, types)


def _macros(code: str) -> dict[str, Macro]:
    """Return the macros that have one definition, in no condition but their own ``#ifndef``."""
    macros: dict[str, Macro] = {}
    refused: set[str] = set()
    conditions: list[str] = []
    for match in _DIRECTIVE.finditer(code):
        word, rest = match[1], match[2].strip()
        if word in ("if", "ifdef", "ifndef"):
            conditions.append(rest if word == "ifndef" else "")
        elif word in ("elif", "else", "elifdef", "elifndef") and conditions:
            conditions[-1] = ""
        elif word == "endif" and conditions:
            conditions.pop()
        name = re.match(r"\w+", rest)
        if word not in ("define", "undef") or name is None:
            continue
        value = rest[name.end() :]
        if word == "define" and not value and conditions[-1:] == [name[0]]:
            conditions[-1] = "once"  # the guard of the whole file
            continue
        outer = [condition for condition in conditions if condition != "once"]
        if word == "undef" or name[0] in macros or value[:1] == "(" or outer not in ([], [name[0]]):
            refused.add(name[0])
        macros[name[0]] = Macro(" ".join(value.split()), match.start(), match.end(), bool(outer))
    return {name: macro for name, macro in macros.items() if name not in refused}


def _functions(code: str) -> Iterator[Function]:
    names = [*_namespaces(code)]
    for count, match in enumerate(_GLOBAL.finditer(code)):
        if count == MOST_FUNCTIONS:
            return
        name, bound, opening = _head(code, match.end())
        closing = _closing(code, opening, _MOST_SIGNATURE)
        body = re.compile(r"\s*\{").match(code, closing + 1) if name and closing > 0 else None
        if body is None:  # a declaration, or what only looks like a function
            continue
        space = "".join(f"{label}::" for label, start, end in reversed(names) if start < match.start() < end)
        template = _TEMPLATE.search(code, max(0, match.start() - _MOST_TEMPLATE), match.start())
        arguments = _split(code[opening + 1 : closing])
        yield Function(
            f"{space}{name}",
            tuple(_split(template[1])) if template else (),
            tuple(map(_argument, arguments)) if arguments not in ([""], ["void"]) else (),
            bound,
            code[body.end() : _closing(code, body.end() - 1, _MOST_BODY)],
        )


def _namespaces(code: str) -> Iterator[tuple[str, int, int]]:
    """Yield the names of namespaces with their extents, inner ones first."""
    open_places: list[tuple[str | None, int]] = []
    for match in re.finditer(r"\bnamespace\s+([\w:]+)\s*\{|[{}]", code):
        if match[0] != "}":
            open_places.append((match[1], match.end()))
        elif open_places:
            label, start = open_places.pop()
            if label is not None:
                yield label, start, match.start()


def _head(code: str, at: int) -> tuple[str, str, int]:
    """Return the name of a function, its launch bound, and the place of the bracket before its arguments."""
    name = bound = ""
    for _ in range(30):
        token = _TOKEN.match(code, at)
        if token is None or not re.fullmatch(r"\w+|[(]", token[1]):
            break
        if token[1] != "(":
            name, at = token[1], token.end()
            continue
        if name not in _WITH_BRACKETS:
            return name, bound, token.start(1)
        closing = _closing(code, token.start(1), _MOST_SIGNATURE)
        if name == "__launch_bounds__":
            bound = _split(code[token.end() : closing])[0] if closing > 0 else ""
        at = max(closing, token.start(1)) + 1
    return "", bound, at


def _closing(code: str, opening: int, most: int) -> int:
    """Return the place of the bracket that closes another one; -1 where there is none in the next `most` letters."""
    depth = 0
    for match in re.compile(r"[(){}\[\]]").finditer(code, opening, min(len(code), opening + most)):
        depth += 1 if match[0] in "({[" else -1
        if depth == 0:
            return match.start()
    return -1


def _split(text: str) -> list[str]:
    """Split a text at its commas outside of brackets."""
    parts, depth = [""], 0
    for part in re.split(r"([(){}\[\]<>,])", text):
        depth += (part in ("(", "{", "[", "<")) - (part in (")", "}", "]", ">"))
        if part == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += part
    return [" ".join(part.split()) for part in parts]


def _argument(text: str) -> Argument:
    declared = text.partition("=")[0]
    words = re.findall(r"[\w:<>]+|\[", _QUALIFIERS.sub(" ", declared).replace("*", " "))
    pointers = declared.count("*") + ("[" in words)
    words = words[: words.index("[")] if "[" in words else words
    kind = " ".join(words[:-1]) + ("&" if "&" in declared else "")
    return Argument(words[-1] if words else "", kind, pointers, bool(re.search(r"\bconst\b", declared.split("*")[0])))
