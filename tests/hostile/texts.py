"""Hostile plans, bundles and sources."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.hostile.base import BUNDLE, GPU_PLAN, PLAN, SOURCE
from tests.hostile.cases import Place, add, corpus
from tests.hostile.values import ESCAPE, TEXTS, XSS, Raw, change, damaged, encoded, to_toml

Document = dict[str, Any]


def random_plan(place: Place) -> None:
    """Change the meaning of a plan, or its bytes."""
    rng = place.rng
    text = rng.choice((PLAN, GPU_PLAN))
    if rng.random() < 0.25:
        place.write("plan.toml", damaged(text.encode(), rng))
    else:
        place.write("plan.toml", to_toml(change(tomllib.loads(text), rng)))


def random_bundle(place: Place) -> None:
    """Change the meaning of a bundle, its expressions, or its bytes."""
    rng = place.rng
    base = rng.choice(("bundle", "bundle", "convolution"))
    path = place.copy(base, "bundle") / "kernel.toml"
    how = rng.choice(("bytes", "meaning", "meaning", "expression", "expression"))
    if how == "bytes":
        path.write_bytes(damaged(path.read_bytes(), rng))
    else:
        document = tomllib.loads(path.read_text())
        document = with_expression(document, rng) if how == "expression" else change(document, rng)
        path.write_bytes(encoded(to_toml(document) if isinstance(document, dict) else "x = 1"))


def with_expression(document: Document, rng: Random) -> Document:
    """Put random expressions into a bundle."""
    names = [*document["parameters"], *document.get("derived", {}), "m", "warp_size"]
    for _ in range(rng.choice((1, 2, 5))):
        text = expression(rng, names, rng.choice((1, 3, 6)))
        table = rng.choice(("derived", "restrictions", "resources"))
        if table == "restrictions":
            document.setdefault(table, {})[text] = rng.choice(("a reason", ESCAPE, XSS))
        else:
            document.setdefault(table, {})[rng.choice(("extra", "threads", "fma", *document.get(table, {})))] = text
    return document


def expression(rng: Random, names: list[str], depth: int) -> str:
    """Return an expression of the language, mostly."""
    if depth == 0 or rng.random() < 0.15:
        leaves = (
            rng.choice(names),
            rng.choice(("0", "1", "-1", "2", "1e308", "9007199254740991", "1e-320", "0.5", "x", "1j")),
        )
        return rng.choice(leaves)
    one, other, third = (expression(rng, names, depth - 1) for _ in range(3))
    forms = (
        f"({one}) {rng.choice(('+', '-', '*', '/', '//', '%', '**', '<', '==', 'and', 'or'))} ({other})",
        f"-({one})", f"not ({one})", f"min({one}, {other})", f"ceil_div({one}, {other})", f"log2({one})",
        f"is_pow2({one})", f"abs({one})", f"ceil({one})", f"({one}) if ({other}) else ({third})",
        f"({one}) < ({other}) <= ({third})", f"max({one})", rng.choice(TEXTS), f"({one})[0]", f"({one}).real",
    )  # fmt: skip
    return rng.choice(forms)


def _plan(
    name: str, *lines: str, text: str = PLAN, edit: Callable[[str], str] = str, commands: tuple[str, ...] = ()
) -> None:
    def build(place: Place) -> None:
        place.write("plan.toml", edit(text) + "\n".join(lines))

    add("plan", name, build, *commands)


_plan("keys-of-20000-dots", "a" + ".a" * 20_000 + " = 1")
_plan("keys-of-500000-dots", "a" + ".a" * 500_000 + " = 1")
_plan("a-table-of-20000-dots", "[a" + ".a" * 20_000 + "]")
_plan("quoted-keys-of-20000-dots", '"a"' + '."a"' * 20_000 + " = 1")
_plan("keys-with-spaces-around-20000-dots", "a" + " . a" * 20_000 + " = 1")
_plan("an-inline-table-with-20000-dots", "x = {" + "a." * 20_000 + "a = 1}")
_plan(
    "500-tables-of-500-dots",
    edit=lambda text: text + "".join(f"[{'.'.join([f'k{number}'] * 500)}]\n" for number in range(500)),
)
_plan(
    "many-keys-of-31-dots", edit=lambda text: text + "".join(f"k{number}{'.a' * 31} = 1\n" for number in range(20_000))
)
_plan("the-same-table-20000-times", *("[[x.y.z]]" for _ in range(20_000)))
_plan("brackets-of-100000", "x = " + "[" * 100_000 + "]" * 100_000)
_plan("brackets-of-400", "x = " + "[" * 400 + "]" * 400)
_plan("brackets-without-end", "x = " + "[" * 1_000_000)
_plan("inline-tables-of-5000", "x = " + "{a=" * 5_000 + "1" + "}" * 5_000)
_plan("an-integer-of-5000-digits", edit=lambda text: text.replace("[plan]", "[plan]\nseed = " + "9" * 5_000))
_plan("an-integer-of-4000-digits", edit=lambda text: text.replace("[plan]", "[plan]\nseed = " + "9" * 4_000))
_plan(
    "a-hexadecimal-of-a-million-digits", edit=lambda text: text.replace("[plan]", "[plan]\nseed = 0x" + "f" * 1_000_000)
)
_plan("an-integer-of-a-million-digits", edit=lambda text: text.replace("[plan]", "[plan]\nseed = " + "9" * 1_000_000))
_plan("a-float-of-a-million-digits", edit=lambda text: text.replace("[plan]", "[plan]\nseed = 0." + "9" * 1_000_000))
_plan("underscores-of-a-million", edit=lambda text: text.replace("[plan]", "[plan]\nseed = 1" + "_1" * 500_000))
_plan("a-year-of-0000", "[problems.x]\nx = 0000-00-00")
_plan("dates", edit=lambda text: text.replace('"Two problems"', "1979-05-27T00:32:00.999999-07:00"))
_plan("a-string-of-10-megabytes", edit=lambda text: text.replace("Two problems", "x" * 10_000_000))
_plan("comments-of-30-megabytes", edit=lambda text: text + "#" + "x" * 30_000_000)
_plan("empty-lines-of-30-megabytes", edit=lambda text: text + "\n" * 30_000_000)
_plan("a-float-with-an-exponent-of-20-digits", "[x]\nx = 1e99999999999999999999")
_plan("a-character-beyond-unicode", '[x]\nx = "\\U00110000"')
_plan("a-surrogate-escaped", '[x]\nx = "\\ud800"')
_plan("a-key-of-10-megabytes", edit=lambda text: text + "x" * 10_000_000 + " = 1")
_plan("an-open-string-of-10-megabytes", edit=lambda text: text + '"""' + "x" * 10_000_000)
_plan("200000-keys", edit=lambda text: text + "".join(f"k{number} = 1\n" for number in range(200_000)))
_plan("200000-tables", edit=lambda text: text + "".join(f"[t{number}]\n" for number in range(200_000)))
_plan("a-table-in-the-place-of-a-list", "[problems.x]")
_plan("a-list-of-300000-lists", "x = [" + "[]," * 300_000 + "]")
_plan("carriage-returns", edit=lambda text: text.replace("\n", "\r"))
_plan("a-byte-order-mark", edit=lambda text: "\ufeff" + text)
_plan("nul", edit=lambda text: text + "\0")
_plan("empty", edit=lambda text: "")
_plan("only-a-bracket", edit=lambda text: "[")
_plan("a-list-where-a-table-belongs", edit=lambda text: "plan = [1]\nproblems = 3\n")
_plan("the-same-key-twice", edit=lambda text: text.replace("budget", 'budget = "1h"\nbudget', 1))
_plan("escapes-in-the-title", edit=lambda text: text.replace("Two problems", r"a\u001b[2J\u009b31m\u0007"))
_plan("escapes-in-a-key", edit=lambda text: text.replace("[plan]", '[plan]\n"\\u001b[2J\\u009b31m" = 1'))
_plan("escapes-in-a-value", edit=lambda text: text.replace('"32 trials"', '"\\u001b[2J"'))
_plan("escapes-in-the-name-of-a-dataset", edit=lambda text: text.replace("xgemm_titan_rtx", "\\u001b[2J\\u009b31m"))
_plan(
    "escapes-in-the-name-of-a-kernel", edit=lambda text: text.replace("datasets =", 'kernel = "\\u001b[2J"\ndatasets =')
)
_plan("escapes-in-the-path-of-a-dataset", edit=lambda text: text.replace("xgemm_titan_rtx", "\\u001b[2J/x.json"))
_plan(
    "escapes-in-a-key-of-a-problem", edit=lambda text: text.replace("size =", '"\\u001b[2J" = 1\nsize ='), text=GPU_PLAN
)
_plan("escapes-in-a-precision", edit=lambda text: text.replace('"s", "d"', '"\\u001b[2J"'), text=GPU_PLAN)
_plan("a-nul-in-the-path-of-a-dataset", edit=lambda text: text.replace("xgemm_titan_rtx", "a\\u0000b/x.json"))
_plan("a-nul-in-the-path-of-a-kernel", edit=lambda text: text.replace("datasets =", 'kernel = "a\\u0000b"\ndatasets ='))
_plan("a-path-of-900-letters", edit=lambda text: text.replace("xgemm_titan_rtx", "x/" * 450))
_plan("a-name-of-900-letters", edit=lambda text: text.replace("xgemm_titan_rtx", "x" * 900))
_plan("a-kernel-of-900-letters", edit=lambda text: text.replace("datasets =", f'kernel = "{"x" * 900}"\ndatasets ='))
_plan("a-dataset-that-is-a-device", edit=lambda text: text.replace("xgemm_titan_rtx", "/dev/zero"))
_plan(
    "a-dataset-that-is-a-device-with-its-suffix",
    edit=lambda text: text.replace("xgemm_titan_rtx", "/proc/self/fd/0/x.json"),
)
_plan(
    "a-dataset-1000-times", edit=lambda text: text.replace('"xgemm_titan_rtx"', ", ".join(['"xgemm_titan_rtx"'] * 999))
)
_plan("a-budget-of-400-nines", edit=lambda text: text.replace("32 trials", "9" * 30 + " trials"))
_plan("a-budget-in-arabic-digits", edit=lambda text: text.replace("32 trials", "٣٢ trials"))
_plan("a-budget-of-1e300-hours", edit=lambda text: text.replace("32 trials", "9" * 38 + "h"))
_plan("a-budget-of-nothing", edit=lambda text: text.replace("32 trials", "0.0000000000000000000000000001s"))
_plan("a-size-of-2-to-the-62", edit=lambda text: text.replace("[512, 1024]", str(2**62)), text=GPU_PLAN)
_plan("a-size-of-nan", edit=lambda text: text.replace("[512, 1024]", "nan"), text=GPU_PLAN)
_plan("a-size-of-a-text", edit=lambda text: text.replace("[512, 1024]", '"big"'), text=GPU_PLAN)
_plan("sizes-below-0", edit=lambda text: text.replace("[512, 1024]", "[-1, 0]"), text=GPU_PLAN)
_plan("a-million-problems", edit=lambda text: text.replace("[512, 1024]", str(list(range(1, 1001)))).replace(
    '"NN", "NT"', '"NN", "NT", "TN", "TT"'), text=GPU_PLAN)  # fmt: skip
_plan("a-grid-of-a-billion-problems", edit=lambda text: text.replace("size = [512, 1024]", "\n".join(
    f"{name} = {list(range(1, 1001))}" for name in "mnk")), text=GPU_PLAN)  # fmt: skip
_plan("a-thousand-tables", *("[[problems]]\ndatasets = ['xgemm_titan_rtx']" for _ in range(1000)))
_plan("a-hundred-thousand-tables", *("[[problems]]\ndatasets = ['xgemm_titan_rtx']" for _ in range(100_000)))
_plan("a-thousand-kernels", *(f"[[problems]]\nkernel = 'k{number}'" for number in range(1000)), text=GPU_PLAN)
_plan("a-priority-of-nan", edit=lambda text: text + "priority = nan\n")
_plan("a-priority-of-true", edit=lambda text: text + "priority = true\n")
_plan("a-title-of-spaces", edit=lambda text: text.replace("Two problems", "   "))
_plan("a-title-from-right-to-left", edit=lambda text: text.replace("Two problems", "\u202eevil"))
_plan(
    "shapes-of-a-million", edit=lambda text: text.replace("[512, 1024]", "[" + "1, " * 1_000_000 + "1]"), text=GPU_PLAN
)


@corpus("plan")
def _a_folder(place: Place) -> None:
    (place.named / "plan.toml").mkdir()


@corpus("plan")
def _a_fifo(place: Place) -> None:
    os.mkfifo(place.named / "plan.toml")


@corpus("plan")
def _a_device_without_end(place: Place) -> None:
    (place.named / "plan.toml").symlink_to("/dev/zero")


@corpus("plan")
def _a_link_to_itself(place: Place) -> None:
    (place.named / "plan.toml").symlink_to("plan.toml")


@corpus("plan")
def _a_sparse_file_of_10_gigabytes(place: Place) -> None:
    os.truncate(place.write("plan.toml", PLAN), 10 * 2**30)


@corpus("plan")
def _not_utf_8(place: Place) -> None:
    place.write("plan.toml", PLAN.encode().replace(b"Two", b"\xff\xfe"))


@corpus("plan")
def _in_utf_16(place: Place) -> None:
    place.write("plan.toml", PLAN.encode("utf-16"))


@corpus("plan")
def _with_a_dataset_that_is_a_secret(place: Place) -> None:
    place.write("plan.toml", PLAN.replace("xgemm_titan_rtx", str(place.folder / "elsewhere" / "secret.json")))


def _bundle(name: str, edit: Callable[[str], str], *commands: str, source: str | None = None) -> None:
    def build(place: Place) -> None:
        place.write("bundle/kernel.toml", edit(BUNDLE))
        if source is not None:
            place.write("bundle/small.cu", source)

    source = SOURCE if source is None else source
    add("bundle", name, build, *commands)


def _in(table: str, *lines: str) -> Callable[[str], str]:
    """Return an edit that puts lines into a table of a bundle."""
    return lambda text: text.replace(f"[{table}]\n", f"[{table}]\n" + "\n".join(lines) + "\n")


def _fibonacci(count: int, operator: str) -> list[str]:
    return ['f0 = "TILE"', 'f1 = "WIDE"', *(f'f{n} = "f{n - 1} {operator} f{n - 2}"' for n in range(2, count))]


def _chain(count: int, text: str = "c{before} + 1") -> list[str]:
    return ['c0 = "TILE"', *(f'c{n} = "{text.format(before=n - 1)}"' for n in range(1, count))]


_bundle("fibonacci-names-of-30", _in("derived", *_fibonacci(30, "+")))
_bundle("fibonacci-names-of-1000", _in("derived", *_fibonacci(1000, "+")))
_bundle("fibonacci-products-of-60", _in("derived", *_fibonacci(60, "*")))
_bundle("fibonacci-names-in-a-restriction", lambda text: _in("restrictions", '"f59 > 0" = "deep"')(
    _in("derived", *_fibonacci(60, "+"))(text)))  # fmt: skip
_bundle("a-chain-of-300", _in("derived", *_chain(300)))
_bundle("a-chain-of-300-in-a-restriction", lambda text: _in("restrictions", '"c299 > 0" = "deep"')(
    _in("derived", *_chain(300))(text)))  # fmt: skip
_bundle("a-chain-of-3000-in-a-restriction", lambda text: _in("restrictions", '"c2999 > 0" = "deep"')(
    _in("derived", *_chain(3000))(text)))  # fmt: skip
_bundle("a-chain-of-15000", lambda text: _in("derived", *_chain(15_000))(text))
_bundle("a-chain-of-15000-backwards", lambda text: _in("derived", *reversed(_chain(15_000)))(text))
_bundle("a-chain-of-15000-in-a-restriction", lambda text: _in("restrictions", '"c14999 > 0" = "deep"')(
    _in("derived", *_chain(15_000))(text)))  # fmt: skip
_bundle("a-chain-of-squares", _in("derived", *_chain(200, "c{before} * c{before}")))
_bundle("a-chain-of-sums-of-itself", _in("derived", *_chain(200, "c{before} + c{before}")))
_bundle("a-circle", _in("derived", 'a = "b"', 'b = "c"', 'c = "a"'))
_bundle("a-circle-of-3000", _in("derived", *(f'r{n} = "r{(n + 1) % 3000}"' for n in range(3000))))
_bundle("one-that-uses-5000", _in("derived", *(f'u{n} = "TILE + {n}"' for n in range(5000)),
        'all = "' + " + ".join(f"u{n}" for n in range(120)) + '"'))  # fmt: skip
_bundle(
    "a-restriction-of-nested-lists",
    _in(
        "restrictions",
        '"any(any(any(TILE + a + b + c for a in range(300)) for b in range(300)) for c in range(300))" = "deep"',
    ),
)
_bundle("a-restriction-of-a-long-range", _in("restrictions", '"sum(TILE * n for n in range(10**18)) > 0" = "deep"'))
_bundle("2000-restrictions", _in("restrictions", *(f'"TILE + {n} > {n}" = "r"' for n in range(2000))))
_bundle("2000-restrictions-of-many-names", _in("restrictions", *(
    f'"TILE * WIDE * GROUP * threads * rows * m + {n} > 0" = "r"' for n in range(2000))))  # fmt: skip
_bundle(
    "2000-distinct", lambda text: text + "[distinct]\n" + "\n".join(f'"TILE + {n} > {n}" = "r"' for n in range(2000))
)
_bundle("fibonacci-names-in-what-is-distinct", lambda text: _in("derived", *_fibonacci(60, "+"))(text)
        + '[distinct]\n"f59 > 0" = "deep"\n')  # fmt: skip
_bundle("an-empty-space-of-what-is-distinct", lambda text: text + '[distinct]\n"TILE < 0" = "never"\n')
_bundle("20000-restrictions", _in("restrictions", *(f'"TILE + {n} > {n}" = "r"' for n in range(20_000))))
_bundle("20000-resources", _in("resources", *(f'r{n} = "TILE + {n}"' for n in range(20_000))))
_bundle("1000-parameters", _in("parameters", *(f"P{n} = [1, 2]" for n in range(1000))))
_bundle("64-parameters-of-1000-values", _in("parameters", *(f"P{n} = {list(range(1000))}" for n in range(64))))
_bundle("a-space-of-1000-to-the-6th", lambda text: _in("parameters", *(f"P{n} = {list(range(1, 1001))}" for n in range(6)))(
    _in("restrictions", '"P0 * P1 * P2 == P3 * P4 * P5 + 1" = "hard"')(text)))  # fmt: skip
_bundle("a-space-of-1000-to-the-4th-with-one-restriction", lambda text: _in(
    "parameters", *(f"P{n} = {list(range(1, 1001))}" for n in range(4)))(
    _in("restrictions", '"(P0 * 7 + P1 * 11 + P2 * 13 + P3) % 9973 == 3" = "hard"')(text)))  # fmt: skip
_bundle("an-empty-space", _in("restrictions", '"TILE < 0" = "never"'))
_bundle("a-restriction-that-divides-by-0", _in("restrictions", '"1 // (TILE - TILE) > 0" = "never"'))
_bundle("a-grid-that-divides-by-0", lambda text: text.replace('"rows", ', '"1/0", '))
_bundle("a-negative-grid", lambda text: text.replace('"rows", ', '"-5", '))
_bundle("a-grid-of-1e308", lambda text: text.replace('"rows", ', '"1e15 * 1e15", '))
_bundle("a-block-of-nothing", lambda text: text.replace('block = ["threads"]', 'block = ["0"]'))
_bundle("powers-of-powers", _in("derived", 'p = "9 ** 9 ** 9 ** 9"'))
_bundle("a-power-of-a-name", _in("restrictions", '"TILE ** TILE ** TILE > 0" = "huge"'))
_bundle("a-negative-power", _in("restrictions", '"TILE ** (0 - TILE) > 0" = "small"'))
_bundle("brackets-of-490", _in("derived", 'p = "' + "(" * 490 + "1" + ")" * 490 + '"'))
_bundle("brackets-of-200", _in("derived", 'p = "' + "(" * 200 + "1" + ")" * 200 + '"'))
_bundle("minus-900-times", _in("derived", 'p = "' + "-" * 900 + '1"'))
_bundle("not-240-times", _in("derived", 'p = "' + "not " * 240 + '1"'))
_bundle("a-sum-of-450", _in("derived", 'p = "' + "+".join(["1"] * 450) + '"'))
_bundle("ifs-of-90", _in("derived", 'p = "' + "1 if 0 else " * 80 + '1"'))
_bundle("an-integer-of-900-digits", _in("derived", f'p = "{"9" * 900}"'))
_bundle("an-integer-of-5000-digits", _in("parameters", f"P = [{'9' * 5000}]"))
_bundle("an-expression-of-5000-digits-without-quotes", _in("derived", f"p = {'9' * 5000}"))
_bundle("a-hexadecimal-of-5000-digits", _in("derived", f"p = 0x{'f' * 5000}"))
_bundle("an-expression-of-a-megabyte", _in("derived", f'p = "{"1 + " * 250_000}1"'))
_bundle("an-expression-with-a-nul", _in("derived", 'p = "1\\u0000"'))
_bundle("an-expression-with-an-escape", _in("derived", 'p = "\\u001b[2J"'))
_bundle("an-expression-with-a-line-break", _in("derived", 'p = "1 +\\n 1"'))
_bundle("an-expression-of-octal", _in("derived", 'p = "010"'))
_bundle("an-expression-with-a-warning", _in("derived", 'p = "1if 1else 2"'))
_bundle("an-expression-with-a-call-of-an-integer", _in("derived", 'p = "1(2)"'))
_bundle("an-expression-of-a-comparison-of-literals", _in("restrictions", '"1 is 1" = "x"'))
_bundle("an-expression-that-would-import", _in("derived", "p = \"__import__('os').system('id')\""))
_bundle("a-key-with-an-escape", _in("parameters", '"\\u001b[2J" = [1]'))
_bundle("a-name-with-an-escape", lambda text: text.replace('"small"', '"\\u001b[2J"', 1))
_bundle("a-reason-with-an-escape", _in("restrictions", '"TILE > 0" = "\\u001b[2J\\u009b31m\\u0007"'))
_bundle("a-restriction-with-an-escape", _in("restrictions", '"TILE > \\u001b" = "x"'))
_bundle("a-problem-with-an-escape", lambda text: text.replace('"gemm"', '"\\u001b[2J"'))
_bundle("an-unknown-table-with-an-escape", lambda text: text + '["\\u001b[2J"]\nx = 1\n')
_bundle("toml-that-is-broken-by-an-escape", lambda text: text + "\x1b[2J = 1\n")
_bundle("lanes-of-infinity", lambda text: text.replace('["warp_size", "4"]', '["1e308 * 10", "4"]'))
_bundle("lanes-of-nothing", lambda text: text.replace('["warp_size", "4"]', '["0", "0"]'))
_bundle(
    "lanes-of-2-to-the-50", lambda text: text.replace('["warp_size", "4"]', '["1125899906842624", "1125899906842624"]')
)
_bundle("an-access-of-2-to-the-50", lambda text: text.replace('count = "TILE"', 'count = "1125899906842624 * TILE"'))
_bundle("an-entry-that-is-missing", lambda text: text.replace('"k"', '"missing"'))
_bundle("brackets-of-100000", lambda text: text + "x = " + "[" * 100_000 + "]" * 100_000)
_bundle("brackets-of-900000", lambda text: text + "x = " + "[" * 450_000 + "]" * 450_000)
_bundle("keys-of-20000-dots", lambda text: text + "a" + ".a" * 20_000 + " = 1\n")
_bundle("keys-of-500000-dots", lambda text: text + "a" + ".a" * 500_000 + " = 1\n")
_bundle("a-source-elsewhere", lambda text: text.replace('"small.cu"', '"../../canary/secret.txt"'))
_bundle("a-source-that-is-missing", lambda text: text.replace('"small.cu"', '"missing.cu"'))
_bundle("a-source-that-is-the-folder", lambda text: text.replace('"small.cu"', '"."'))
_bundle(
    "variables-of-functions", lambda text: text.replace('problem = "gemm"', 'problem = "recorded"\nvariables = ["min"]')
)
_bundle("lower-case-parameters", lambda text: text.replace("TILE", "tile"))
_bundle("parameters-of-one-letter", _in("parameters", *(f"{letter} = [1]" for letter in "ABCDEFGHIJ")))
_bundle("parameters-that-differ-in-case", _in("parameters", "Tile = [1]"))
_bundle("parameters-of-true", _in("parameters", "P = [true, false]"))
_bundle("parameters-of-floats", _in("parameters", "P = [1.0, nan, inf]"))
_bundle("parameters-with-the-name-of-a-column", _in("parameters", "state = [1]", "number = [1]"))
_bundle("no-parameters", lambda text: text.replace("TILE = [8, 16, 32]\nWIDE = [1, 2]\n", ""))


@corpus("bundle")
def _a_kernel_toml_that_is_a_fifo(place: Place) -> None:
    (place.named / "bundle").mkdir()
    os.mkfifo(place.named / "bundle" / "kernel.toml")


@corpus("bundle")
def _a_kernel_toml_that_is_a_folder(place: Place) -> None:
    (place.named / "bundle" / "kernel.toml").mkdir(parents=True)


@corpus("bundle")
def _a_kernel_toml_that_is_a_device(place: Place) -> None:
    (place.named / "bundle").mkdir()
    (place.named / "bundle" / "kernel.toml").symlink_to("/dev/zero")


@corpus("bundle")
def _a_kernel_toml_that_is_a_canary(place: Place) -> None:
    (place.named / "bundle").mkdir()
    (place.named / "bundle" / "kernel.toml").symlink_to(place.canary / "secret.toml")


@corpus("bundle")
def _a_source_that_is_a_canary(place: Place) -> None:
    (place.copy("bundle", "bundle") / "small.cu").unlink()
    (place.named / "bundle" / "small.cu").symlink_to(place.canary / "secret.txt")


@corpus("bundle")
def _a_source_that_is_a_fifo(place: Place) -> None:
    (place.copy("bundle", "bundle") / "small.cu").unlink()
    os.mkfifo(place.named / "bundle" / "small.cu")


@corpus("bundle")
def _a_source_that_is_a_device(place: Place) -> None:
    (place.copy("bundle", "bundle") / "small.cu").unlink()
    (place.named / "bundle" / "small.cu").symlink_to("/dev/zero")


@corpus("bundle")
def _a_source_that_is_a_folder(place: Place) -> None:
    (place.copy("bundle", "bundle") / "small.cu").unlink()
    (place.named / "bundle" / "small.cu").mkdir()


@corpus("bundle")
def _a_source_of_10_gigabytes(place: Place) -> None:
    os.truncate(place.copy("bundle", "bundle") / "small.cu", 10 * 2**30)


@corpus("bundle", "tune_bundle")
def _an_access_of_25_bytes_a_lane(place: Place) -> None:
    path = place.copy("convolution", "bundle") / "kernel.toml"
    path.write_text(path.read_text().replace('bytes = "element_bytes"', 'bytes = "24 + tile_size_x"'))


@corpus("bundle")
def _a_source_that_is_not_utf_8(place: Place) -> None:
    place.copy("bundle", "bundle")
    place.write("bundle/small.cu", SOURCE.encode() + b"// \xff\xfe")


@corpus("bundle")
def _a_kernel_toml_that_is_not_utf_8(place: Place) -> None:
    place.copy("bundle", "bundle")
    place.write("bundle/kernel.toml", BUNDLE.encode() + b"# \xff\xfe")


@corpus("bundle")
def _a_kernel_toml_of_10_gigabytes(place: Place) -> None:
    os.truncate(place.copy("bundle", "bundle") / "kernel.toml", 10 * 2**30)


@corpus("bundle")
def _a_folder_that_links_to_itself(place: Place) -> None:
    (place.named / "bundle").symlink_to("bundle")


@corpus("bundle")
def _a_file(place: Place) -> None:
    place.write("bundle", BUNDLE)


def _source(name: str, text: str | Callable[[], str], *beside: tuple[str, str]) -> None:
    """Add a source, or what a function returns; ``SECRET`` in it stands for the path of a header outside of the bundle."""

    def build(place: Place) -> None:
        place.copy("bundle", "bundle")
        header = str(place.canary / "secret.h")
        relative = os.path.relpath(header, place.named / "bundle")
        content = text() if callable(text) else text
        place.write("bundle/small.cu", content.replace("SECRET", header).replace("NEAR", relative) + SOURCE)
        for file, content in beside:
            place.write(f"bundle/{file}", content.replace("SECRET", header).replace("NEAR", relative))

    add("source", name, build)


_source("an-include-by-path", '#include "SECRET"\n')
_source("an-include-in-angles", "#include <SECRET>\n")
_source("an-include-by-digraph", '%:include "SECRET"\n')
_source("an-include-by-trigraph", '??=include "SECRET"\n')
_source("an-include-by-a-macro", '#define PATH "SECRET"\n#include PATH\n')
_source("an-include-by-a-macro-of-a-macro", "#define S(x) #x\n#define T(x) S(x)\n#include T(SECRET)\n")
_source("an-include-after-a-comment", '/* */ # /* */ include /* */ "SECRET"\n')
_source("an-include-across-lines", '#inc\\\nlude "SECRET"\n')
_source("an-include-after-a-form-feed", '\f#\vinclude "SECRET"\n')
_source("an-include-next", '#include_next "SECRET"\n')
_source("an-include-next-in-angles", "#include_next <SECRET>\n")
_source("an-import", '#import "SECRET"\n')
_source("has-include", '#if __has_include("SECRET")\n#error it is there\n#endif\n')
_source("has-include-next", '#if __has_include_next("SECRET")\n#error it is there\n#endif\n')
_source("an-include-of-a-file-of-the-system", "#include </etc/hostname>\n")
_source("an-include-of-passwd-by-a-macro", "#define P </etc/passwd>\n#include P\n")
_source("an-include-by-steps-upwards", '#include "NEAR"\n')
_source("an-include-by-steps-upwards-from-the-working-directory", '#include "../canary/secret.h"\n')
_source("an-include-of-a-header-that-includes", '#include "near.h"\n', ("near.h", '#include "SECRET"\n'))
_source("an-embed", '#embed "SECRET"\n')
_source("a-binary-of-the-assembler", 'asm(".incbin \\"SECRET\\"");\n')
_source("an-include-of-the-assembler", 'asm(".include \\"SECRET\\"");\n')
_source("a-file-of-the-assembler", 'asm(".file 1 \\"SECRET\\"");\n')
_source("a-line-of-another-file", '#line 1 "SECRET"\n#error here\n')
_source("a-pragma-of-a-dependency", '#pragma GCC dependency "SECRET"\n')
_source(
    "a-pragma-of-a-system-header",
    '#pragma GCC system_header\n_Pragma("include_alias(\\"a\\", \\"SECRET\\")")\n#include "a"\n',
)
_source("an-include-of-itself", '#include "kernel.cu"\n')
_source("an-include-of-standard-input", '#include "/dev/stdin"\n')
_source("an-include-of-a-device", '#include "/dev/zero"\n')
_source("escapes-in-an-error", f"#error {ESCAPE}{XSS}\n")
_source("an-error-of-a-megabyte", "#error " + "x" * 1_000_000 + "\n")
_source("templates-without-end", "template<int N> struct F { static const int v = F<N + 1>::v; };\nint x = F<0>::v;\n")
_source("macros-that-unfold-without-end", "#define A0 x;\n" + "".join(
    f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 12)
) + "int f() { int x; A11 return x; }\n")  # fmt: skip
_source("templates-that-grow-like-fibonacci-numbers", "template<int N, int M> struct F { static const long v = F<N-1, 2*M>::v + F<N-2, 2*M+1>::v; };\n"
        "template<int M> struct F<0, M> { static const long v = M; };\ntemplate<int M> struct F<1, M> { static const long v = M; };\n"
        "long x = F<40, 1>::v;\n")  # fmt: skip
_source("a-loop-at-compile-time", "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i; return s; }\n"
        "static_assert(f(100000000000L) != 1);\n")  # fmt: skip
_source("an-array-of-16-gigabytes", "__device__ char big[1L << 34] = {1};\n")
_source("an-array-of-1-gigabyte", "__device__ char big[1L << 30] = {1};\n")
_source("space-of-the-assembler", 'asm(".global .align 1 .b8 big[4000000000];");\n')
_source("a-loop-unrolled-a-million-times", "__global__ void g(float *a) {\n#pragma unroll 1000000\nfor (int i = 0; i < 1000000; i++) "
        "a[i] = a[i] * 1.5f + i;\n}\n")  # fmt: skip
_source("ten-thousand-kernels", "".join(f"__global__ void g{n}(float *a) {{ a[0] = {n}; }}\n" for n in range(10_000)))
_source("a-line-of-16-megabytes", lambda: "// " + "x" * 16_000_000 + "\n")
_source("15-megabytes-of-code", lambda: "".join(f"int v{n};\n" for n in range(1_000_000)))
_source("brackets-of-20000", "int x = " + "(" * 20_000 + "1" + ")" * 20_000 + ";\n")
_source("nul", "\0\0\0\n")
_source("nothing-but-garbage", "\x01\x02 \\u{1b} " * 1000 + "\n")
assert Raw
