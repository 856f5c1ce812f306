"""Pydantic's errors in the words of the file: the key as written, the law, the value."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from mltune.files.text import did_you_mean, printable

if TYPE_CHECKING:
    from pydantic import AfterValidator, BaseModel, ValidationError

    Key = tuple[str | int, ...]

Kind = TypeVar("Kind")

_MOST_PROBLEMS = 3
_MOST_EXAMINED = 300  # of a hundred thousand errors
_LONGEST_KEY, _LONGEST_VALUE = 60, 60
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WRONG_KINDS = {
    "be a whole number": ("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
    "be a number": ("float_type", "float_parsing"),
    "be text": ("string_type", "string_sub_type", "string_unicode"),
    "be true or false": ("bool_type", "bool_parsing"),
    "be a list": ("list_type", "tuple_type"),
    "be a table": ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
    "be {expected}": ("literal_error",),
    "be JSON": ("json_type", "json_invalid"),
}
_LAWS = {kind: law for law, kinds in _WRONG_KINDS.items() for kind in kinds} | {
    "finite_number": "be finite",
    "greater_than": "be more than {gt}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "string_pattern_mismatch": "match {pattern}",
    "string_too_long": "have at most {max_length} characters",
    "string_too_short": "have at least {min_length} characters",
    "too_long": "have at most {max_length} items",
    "too_short": "have at least {min_length} items",
}


@functools.cache
def adapter(kind: Any) -> Any:
    """Return pydantic's validator of a type; a late import, which would delay every command."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def validated(kind: type[Kind], document: Any, *, within: Key = (), as_json: bool = False) -> Kind:
    """Read a document, with the rules of JSON where asked; one ValueError says what is wrong (:func:`problems_of`)."""
    from pydantic import BaseModel, ValidationError

    reader = adapter(kind)  # type: ignore[arg-type]
    try:
        read: Kind = reader.validate_json(json.dumps(document)) if as_json else reader.validate_python(document)
        return read
    except ValidationError as error:
        model = kind if issubclass(kind, BaseModel) else None
        raise ValueError(problems_of(error, document, model=model, within=within)) from None


def matching(pattern: str, law: str) -> AfterValidator:
    """Return a validator of text that matches a pattern; ``law`` describes it in words, ``"be ..."``."""
    from pydantic import AfterValidator

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must {law}")
        return text

    return AfterValidator(check)


def distinct(values: Collection[Any]) -> Collection[Any]:
    """Check that no value of a list is there twice."""
    if len(set(map(str, values))) != len(values):
        raise ValueError("must be distinct")
    return values


def one_line(text: str) -> str:
    """Check that a text is one line that can be printed."""
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def problems_of(
    error: ValidationError, document: Any, *, model: type[BaseModel] | None = None, within: Key = ()
) -> str:
    """Return what is wrong with a document that does not fit a schema, in one line.

    The keys of the document tell the parts of an error's location from the names of union branches; the ``model`` has
    the known keys to propose; ``within`` is the key of the document in its file.
    """
    by_key: dict[Key, list[Any]] = {}
    for fault in error.errors(include_url=False)[:_MOST_EXAMINED]:
        by_key.setdefault(_written(fault, document), []).append(fault)
    deepest = [key for key in by_key if not any(other != key and other[: len(key)] == key for other in by_key)]
    problems = [_problem(by_key[key], key, model, within) for key in deepest]
    unlisted = len(problems) - _MOST_PROBLEMS + max(error.error_count() - _MOST_EXAMINED, 0)
    return "; ".join([*problems[:_MOST_PROBLEMS], *([f"and {unlisted} more"] if unlisted > 0 else [])])


def _written(fault: Mapping[str, Any], document: Any) -> Key:
    """Return the key of an error as the document has it, without the names of union branches."""
    parts: list[str | int] = []
    value = document
    for part in fault["loc"]:
        if isinstance(value, Mapping):
            there = part in value
        else:
            there = isinstance(part, int) and isinstance(value, list | tuple) and part < len(value)
        if there:
            value = value[part]
        if there or (fault["type"].startswith("missing") and part == fault["loc"][-1]):
            parts.append(part)
    return tuple(parts)


def _problem(errors: Sequence[Mapping[str, Any]], key: Key, model: type[BaseModel] | None, within: Key) -> str:
    """Return the problem of the value of one key; for a value of a right kind only the laws of this kind."""
    name = _name((*within, *key))
    kinds = {fault["type"] for fault in errors}
    if any(kind.startswith("missing") for kind in kinds):
        return f"{name} is missing"
    if kinds & {"extra_forbidden", "unexpected_keyword_argument"}:
        hint = did_you_mean(str(key[-1]), _known(model, key[:-1])).removeprefix("; ")
        return f"{name} is not a known key{hint and f' ({hint})'}"
    wrong_kinds = {kind for group in _WRONG_KINDS.values() for kind in group}
    right = [fault for fault in errors if fault["type"] not in wrong_kinds] or errors
    value = printable(repr(right[0]["input"]), _LONGEST_VALUE)
    law = law_of(right)
    if law.startswith("must "):
        return f"{name} cannot be {value}: it {law}"
    return f"{name}: {law}"


def law_of(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return the law that a value breaks, by pydantic's errors about it: ``"must be ..."``, with all alternatives."""
    laws: list[str] = []
    for fault in errors:
        if fault["type"] == "value_error":  # from a validator of ours, or from a dataclass
            return str(fault["ctx"]["error"]).rstrip(".")
        if fault["type"] not in _LAWS:
            return str(fault["msg"])
        facts = fault.get("ctx", {})
        law = "not be empty" if facts.get("min_length") == 1 else _LAWS[fault["type"]].format(**facts)
        laws.append(law.removeprefix("be ") if laws and laws[0].startswith("be ") else law)
    return f"must {' or '.join(dict.fromkeys(laws))}"


def _name(key: Key) -> str:
    """Return a key as in TOML; positions in a list are counted from 1."""
    text = ""
    for part, after in itertools.zip_longest(key, key[1:]):
        if isinstance(part, int):
            text += f" {part + 1}" if isinstance(after, str) else f" item {part + 1}"
        else:
            bare = part if _BARE_KEY.fullmatch(part) else f'"{part}"'
            text += f".{printable(bare, _LONGEST_KEY)}"
    return text.removeprefix(".") or "the document"


def _known(model: type[BaseModel] | None, key: Key) -> Iterable[str]:
    """Return the known keys of the table at a position in a document."""
    for part in key:
        field = None if model is None or not isinstance(part, str) else model.model_fields.get(part)
        model = _model_in(field.annotation) if field is not None else model
    return () if model is None else model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the schema within an annotation such as ``list[Table]``."""
    if hasattr(annotation, "model_fields"):
        model: type[BaseModel] = annotation
        return model
    return next(filter(None, map(_model_in, get_args(annotation))), None)
