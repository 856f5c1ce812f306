"""Documents of strangers are bounded before anything looks at them."""

import pytest

from mltune.files.reading import DEEPEST, parse_json, parse_toml
from tests.effort import at_most_cpu_s


def test_plain_documents_are_parsed() -> None:
    assert parse_toml('a.b = [1, {c = "x"}]\n[t]\nn = 2.5') == {"a": {"b": [1, {"c": "x"}]}, "t": {"n": 2.5}}
    assert parse_json(b'{"a": [1, null, true]}') == {"a": [1, None, True]}


def test_depth_is_allowed_up_to_the_limit() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    assert parse_toml("a" + ".a" * (DEEPEST - 1) + " = 1")


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 20_000 + " = 1",
        "a" + ".a" * DEEPEST + " = 1",
        "[" + ".".join(["'a'"] * 50_000) + "]",
        "a" + ' . "a b"' * 50_000 + " = 1",
        "'a'" + '."\\""' * 50_000 + " = 1",
        "a" * 300 + ("." + "a" * 300) * 3_000 + " = 1",
        "a = " + "[" * 100_000,
        "a = " + "{a = " * 40 + "1" + "}" * 40,
        "a = " + "[" * 40 + "]" * 40,
    ],
    ids=lambda text: text[:12],
)
def test_deep_toml_is_refused_at_once(text: str) -> None:
    with at_most_cpu_s(10.0), pytest.raises(ValueError, match="more than 32 levels"):
        parse_toml(text)


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 100_000, "[" * 33 + "]" * 33], ids=["open", "keys", "33"])
def test_deep_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="more than 32 levels"):
        parse_json(text)


@pytest.mark.parametrize("digits", [20, 4_000, 5_000])
def test_huge_integers_are_refused(digits: int) -> None:
    with pytest.raises(ValueError, match=r"64 bits|integer string"):
        parse_json("9" * digits)
    with pytest.raises(ValueError, match=r"64 bits|integer string"):
        parse_toml("a = " + "9" * digits)


def test_the_check_of_long_keys_takes_linear_time() -> None:
    with at_most_cpu_s(10.0):
        parse_toml("a = '''" + "a.a. ." * 150_000 + "'''")
        parse_toml('# "' + "'x\"y." * 200_000)
        parse_toml("# " + "a" * 1_000_000)
        parse_toml("# " + ('"' + "a" * 199) * 5_000)
