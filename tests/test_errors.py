"""Messages may quote files of strangers: whatever a message is made of, it can be printed."""

import pickle
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mltune import errors
from mltune.errors import LONGEST_MESSAGE, MltuneError, MltuneWarning

CLASSES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, Exception)]


@given(st.sampled_from(CLASSES), st.text())
@example(MltuneError, "\x1e\r")
def test_a_message_has_no_control_characters(kind: type[Exception], text: str) -> None:
    error = kind(f"a kernel is called \x1b[2J{text}")
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


@pytest.mark.parametrize("kind", CLASSES)
def test_a_message_is_short_enough_to_be_read(kind: type[Exception]) -> None:
    assert len(str(kind("x" * 10**6))) == LONGEST_MESSAGE


def test_a_warning_is_printable_too() -> None:
    with pytest.warns(MltuneWarning) as caught:
        warnings.warn("replaying GPU\x1b]0;mine\x07", MltuneWarning, stacklevel=1)
    assert str(caught[0].message) == "replaying GPU ]0;mine "


def test_the_base_of_all_errors_keeps_lines() -> None:
    assert str(MltuneError("the compiler says:\n  a\n  b")) == "the compiler says:\n  a\n  b"
