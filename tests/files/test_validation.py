"""What is wrong with a document is said in the words of the document, not in pydantic's."""

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from mltune.files.validation import matching, problems_of


class Table(BaseModel, extra="forbid"):
    name: Annotated[StrictStr, matching("[a-z]+", "be lower-case letters")] = "a"
    share: Annotated[StrictFloat | StrictInt, Field(ge=0.5, le=1)] = 1.0
    kinds: Annotated[list[Literal["s", "d"]], Field(min_length=1)] | Literal["all"] = "all"
    sizes: list[Annotated[StrictInt, Field(ge=1)] | Annotated[list[StrictInt], Field(min_length=3)]] = []
    tables: "list[Table]" = []
    values: dict[Annotated[str, matching("[a-z]+", "be a word")], int] = {}


class Document(Table):
    needed: StrictInt


def told(document: dict[str, Any], **options: Any) -> str:
    try:
        Document.model_validate({"needed": 1} | document)
    except ValidationError as error:
        return problems_of(error, document, model=Document, **options)
    raise AssertionError("the document is valid")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"needed": "1"}, "needed cannot be '1': it must be a whole number"),
        ({"name": "A B"}, "name cannot be 'A B': it must be lower-case letters"),
        ({"share": 3}, "share cannot be 3: it must be at most 1"),
        ({"share": "much"}, "share cannot be 'much': it must be a number or a whole number"),
        ({"kinds": "s"}, "kinds cannot be 's': it must be a list or 'all'"),
        ({"kinds": ["s", "x"]}, "kinds item 2 cannot be 'x': it must be 's' or 'd'"),
        ({"kinds": []}, "kinds cannot be []: it must not be empty"),
        ({"sizes": [-4]}, "sizes item 1 cannot be -4: it must be at least 1"),
        ({"sizes": [4, [1, 2]]}, "sizes item 2 cannot be [1, 2]: it must have at least 3 items"),
        ({"sizes": [[1, 2, "3"]]}, "sizes item 1 item 3 cannot be '3': it must be a whole number"),
        ({"size": [4]}, "size is not a known key (did you mean 'sizes'?)"),
        ({"tables": [{"siezs": [4]}]}, "tables 1.siezs is not a known key (did you mean 'sizes'?)"),
        ({"values": {"a b": 1}}, 'values."a b" cannot be \'a b\': it must be a word'),
        ({"xyz": 1, "uvw": 1, "rst": 1, "opq": 1, "lmn": 1}, "xyz is not a known key; uvw is not a known key; "
         "rst is not a known key; and 2 more"),
    ],
)  # fmt: skip
def test_the_key_the_law_and_the_value_are_named(document: dict[str, Any], text: str) -> None:
    assert told(document) == text


def test_a_missing_key_is_named_with_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate({})
    assert problems_of(caught.value, {}, within=("problems", 0)) == "problems 1.needed is missing"


def test_a_document_that_is_no_table_is_said_to_be_none() -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate([])
    assert problems_of(caught.value, []) == "the document cannot be []: it must be a table"


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Document.model_fields, "int", "[key]", "\x1b[2J"]), documents))
def test_whatever_the_document_holds_it_is_one_short_printable_line_in_plain_words(document: dict[str, Any]) -> None:
    try:
        Document.model_validate(document)
    except ValidationError as error:
        text = problems_of(error, document, model=Document)
        assert text.isprintable()
        assert len(text) < 1000
        for internal in ("constrained", "literal[", "Input should", "function-", "[key]"):
            assert internal not in text or internal in "".join(document)
