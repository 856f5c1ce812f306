"""Bundles from strangers: every one is read or refused in bounded time and memory, with a message that can be shown."""

import os
import random
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.device.known import H200
from mltune.errors import BundleError, ExpressionError, SpaceError, UsageError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.evaluation import FUNCTIONS
from mltune.kernel.expressions import parse
from mltune.kernel.faults import find_faults
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.gemm import parse_problem
from mltune.results.winner import formula

MOST_BYTES = 3 << 29
MOST_CPU_S = 20

HEAD = '[kernel]\nname = "a"\nproblem = "gemm"\nprecisions = ["s"]\nsource = "a.cu"\nentry = "a"\n'
SOURCE = 'extern "C" __global__ void a() {}\n'
VARIABLES = parse_problem("sgemm", size=64).variables | device_variables(H200)


class TookTooLongError(Exception):
    pass


@contextmanager
def bounded():
    """Limit the processor time and the additional memory of the test."""

    def stop(*_):
        raise TookTooLongError(f"more than {MOST_CPU_S} s of processor time")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def write(folder: Path, document: str | bytes, source: str | bytes = SOURCE) -> Path:
    for name, content in (("kernel.toml", document), ("a.cu", source)):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def use(folder: Path) -> Kernel:
    """Do with a bundle what ``mltune space`` does."""
    kernel = load_kernel(folder)
    space = ConstrainedSpace(kernel, VARIABLES)
    find_faults(kernel, space.rows(space.sample(100, np.random.default_rng(0))), VARIABLES)
    space.explain()
    return kernel


def refusal(folder: Path) -> str:
    """Return the message with which a bundle is refused."""
    with bounded(), pytest.raises(UsageError) as caught:
        use(folder)
    message = str(caught.value)
    assert len(message) < 1000
    assert message.isprintable()
    return message


def bundle(parameters=None, derived=None, restrictions=(), resources=None, launch="block = [32]\ngrid = [1]\n") -> str:
    parameters = {"P0": [0, 1], "P1": [0, 1]} if parameters is None else parameters
    tables = {
        "parameters": {name: list(values) for name, values in parameters.items()},
        "derived": {name: f"'{text}'" for name, text in (derived or {}).items()},
        "restrictions": {f"'{text}'": '"a reason"' for text in restrictions},
        "resources": {name: f"'{text}'" for name, text in (resources or {}).items()},
    }
    body = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in table.items()) for name, table in tables.items()
    )
    return f"{HEAD}{body}[launch]\n{launch}"


def binary(count):
    return {f"P{i}": (0, 1) for i in range(count)}


def chain(length, link="f{0}"):
    return {"f0": "P0"} | {f"f{i}": link.format(i - 1) for i in range(1, length)}


def fibonacci(length):
    return {"f0": "P0", "f1": "P1"} | {f"f{i}": f"min(f{i - 1}, f{i - 2})" for i in range(2, length)}


def sums(rng, names, size, count):
    """Return restrictions that each couple some parameters in a random way."""
    return [
        f"({' + '.join(f'{rng.randrange(1, 99)} * {name}' for name in rng.sample(names, size))}) % 101 > {i % 9}"
        for i in range(count)
    ]


RNG = random.Random(0)  # noqa: S311
WIDE = {f"P{i}": range(1000) for i in range(6)}

HOSTILE = {
    "brackets": ("a = " + "[" * 100_000, "kernel.toml"),
    "tables in tables": (HEAD + "[parameters]\nA = " + "{a = " * 500 + "1" + "}" * 500, "kernel.toml"),
    "digits": (HEAD + f"[parameters]\nA = [{'9' * 5000}]", "kernel.toml"),
    "large integer": (HEAD + "[parameters]\nA = [1e400]", "parameters.A"),
    "dots": ("a" + ".a" * 20_000 + " = 1", "32 levels"),
    "headers of dots": ("[a" + ".a" * 20_000 + "]", "32 levels"),
    "a million values": (HEAD + f"[parameters]\nA = [{'1,' * 1_000_000}]", "kernel.toml"),
    "ten thousand values": (HEAD + f"[parameters]\nA = {list(range(10_000))}", "parameters.A"),
    "a megabyte of text": (HEAD + '[derived]\nA = "' + "a" * 1_000_000 + '"\n[parameters]\nB = [1]', "derived.A"),
    "a megabyte of a key": (HEAD + "[parameters]\n" + "a" * 1_000_000 + " = [1]", "parameters"),
    "many parameters": (bundle(binary(1000)), "parameters"),
    "many parameters at launch": (
        bundle(binary(60), launch="block = [1]\ngrid = [1]\n[launch.parameters]\nB = [1]"),
        "a kernel has at most 60",
    ),
    "many configurations": (bundle({f"P{i}": range(1000) for i in range(60)}), "2**200"),
    "more than 62 bits of configurations": (bundle({f"P{i}": range(1000) for i in range(20)}), "2**62"),
    "a chain of 15,000": (bundle(derived=chain(15_000), restrictions=["f14999 < 3"]), "derived"),
    "a chain of 150": (bundle(derived=chain(150), restrictions=["f149 < 3"]), "nested"),
    "a chain of deep links": (bundle(derived=chain(50, "-" * 80 + "f{0}"), restrictions=["f49 < 3"]), "nested"),
    "Fibonacci numbers": (bundle(derived=fibonacci(100), restrictions=["f99 < 3"]), "written out"),
    "doubled names": (bundle(derived=chain(60, "f{0} + f{0}"), restrictions=["f59 < 3"]), "written out"),
    "a circle of 200": (bundle(derived=chain(200) | {"f0": "f199"}), "circle"),
    "2,000 restrictions": (bundle(restrictions=[f"P0 != {i}" for i in range(2000)]), "restrictions"),
    "many parts": (bundle(restrictions=[f"P0 != {i}" + " + P1" * 130 for i in range(99)]), "nested"),
    "many wide parts": (bundle(restrictions=[f"min({'P0, ' * 180}{i}) == 0" for i in range(99)]), "at most 10000"),
    "parentheses": (bundle(restrictions=["(" * 400 + "1" + ")" * 400]), "restrictions"),
    "signs": (bundle(restrictions=["-" * 900 + "1"]), "restrictions"),
    "negations": (bundle(restrictions=["not " * 200 + "1"]), "restrictions"),
    "a tower of powers": (bundle(restrictions=["9 ** 9 ** 9 ** 9 ** 9 == 1"]), "exponent"),
    "a huge power": (bundle(restrictions=["2 ** 64 ** 2 == 1"]), "restrictions"),
    "a huge product": (bundle(restrictions=["2 ** 50 * 2 ** 50 == P0"]), "2**53"),
    "a huge float": (bundle(restrictions=["(2.0 ** 64) ** 64 == P0"]), "restrictions"),
    "a shift": (bundle(restrictions=["1 << 10 ** 9 == 0"]), "restrictions"),
    "text in an expression": (bundle(restrictions=['"a" * 10 ** 9 == P0']), "restrictions"),
    "a comprehension": (bundle(restrictions=["[x for x in range(10 ** 9)] == P0"]), "restrictions"),
    "a number that overflows": (bundle(launch='block = [32]\ngrid = ["2.0 ** 64 * 2.0 ** 64"]\n'), None),
    "infinity": (HEAD + "[parameters]\nA = [1]\n[launch]\nblock = [inf]\ngrid = [nan]", "launch.block"),
    "a restriction of 2**40 combinations": (
        bundle(binary(40), restrictions=[" + ".join(f"P{i}" for i in range(40)) + " < 9"]),
        "split it",
    ),
    "restrictions of 2**24 combinations": (
        bundle(binary(40), restrictions=sums(RNG, [*binary(40)], 24, 4)),
        "split it",
    ),
    "coupled values": (
        bundle(WIDE, restrictions=[f"(P{i} * 7919 + P{(i + 1) % 4} * 104729) % 1000003 < 300000" for i in range(4)]),
        "couple",
    ),
    "coupled by wide rules": (bundle(binary(30), restrictions=sums(RNG, [*binary(30)], 14, 25)), "couple"),
    "coupled pairs": (
        bundle(
            {f"P{i}": range(8) for i in range(50)},
            restrictions={f"P{a} + P{b} != 3" for a, b in (RNG.sample(range(50), 2) for _ in range(180))},
        ),
        "couple",
    ),
    "escape sequences": (bundle(restrictions=["P0 < 3 # \\u001b[2J"]).replace("'", '"'), "printable"),
    "escape sequences in keys": (HEAD + '[parameters]\n"\\u001b[2J\\n" = [1]', "parameters"),
    "precisions": (HEAD.replace('["s"]', f"{['x' * 1000] * 16}"), "distinct"),
    "not a document": (b"\xff\xfe\x00", "UTF-8"),
    "zero bytes": (HEAD + "\0", "zero byte"),
}
"""Documents, and a word of the message with which each is refused; None for those that are read."""


SLOW = {"coupled by wide rules": pytest.mark.nightly, "coupled pairs": pytest.mark.system}
"""What is refused after seconds."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=SLOW.get(name, ())) for name, (_, word) in HOSTILE.items() if word],
)
def test_a_hostile_document_is_refused_in_bounded_time_and_memory(tmp_path: Path, case: str) -> None:
    document, word = HOSTILE[case]
    message = refusal(write(tmp_path, document))
    assert word in message
    assert "kernel.toml" in message


HARMLESS = {
    "deep": bundle(derived=chain(95), restrictions=["f94 < 3"]),
    "deep sums": bundle(derived=chain(45, "f{0} + 1"), restrictions=["f44 < 300"]),
    "written out": bundle(derived=fibonacci(13), restrictions=["f12 < 3"]),
    "many restrictions": bundle({f"P{i}": range(9) for i in range(60)}, restrictions=[f"P{i} < 2" for i in range(60)]),
    "many pairs": bundle(binary(60), restrictions=[f"P{i} + P{i + 1} < 2" for i in range(59)]),
    "a wide restriction": bundle({f"P{i}": range(24) for i in range(8)}, restrictions=["P0 * P1 + P2 < P3 + P4"]),
    "1e12 configurations": bundle({f"P{i}": range(100) for i in range(6)}, restrictions=["P0 % 2 == P1 % 2"]),
    "lines": bundle(restrictions=["(P0\n+ P1) < 2"]).replace("'(P0\n+ P1) < 2'", '"(P0\\n+ P1) < 2"'),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_stays_within_the_limits_is_read(tmp_path: Path, case: str) -> None:
    with bounded():
        use(write(tmp_path, HARMLESS[case]))


def test_formulas_of_a_winner_stay_short(tmp_path: Path) -> None:
    grow = {"f0": "m", "f1": "n"} | {f"f{i}": f"min(f{i - 1}, f{i - 2})" for i in range(2, 13)}
    kernel = load_kernel(write(tmp_path, bundle(derived=grow, launch='block = [32]\ngrid = ["f12"]\n')))
    with bounded():
        assert len(formula(kernel.launch_rule.grid[0], {}, kernel.space.derived)) < 10_000


@pytest.mark.parametrize("name", ["kernel.toml", "a.cu", "a.cuh"])
@pytest.mark.parametrize("kind", ["FIFO", "device", "directory", "sparse", "link", "loop", "missing", "zero", "UTF-8"])
def test_only_regular_files_of_the_folder_are_read(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    write(folder, bundle().replace("entry =", 'headers = ["a.cuh"]\nentry ='))
    (folder / "a.cuh").write_text("")
    (tmp_path / "secret").write_text("secret = 1")
    path = folder / name
    path.unlink()
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "sparse":
            path.touch()
            os.truncate(path, 10 << 30)
        case "link":
            path.symlink_to("../secret")
        case "loop":
            path.symlink_to(name)
        case "zero":
            path.write_bytes(b"a = 1 \0")
        case "UTF-8":
            path.write_bytes(b"\xff\xff\xff")
    message = refusal(folder)
    assert name in message
    assert "secret = 1" not in message


@pytest.mark.parametrize(
    "names",
    [
        '["../a.cuh"]',
        '["/etc/passwd"]',
        '["a.cuh\\u0000"]',
        '["a.cuh\\n"]',
        '["a.cuh", "a.cuh"]',
        '["a b.cuh"]',
        '["a.cu"]',
        '["winner.json"]',
        '[".h"]',
        '"a.cuh"',
        '["--pre-include=a.h"]',
        str([f"a{i}.cuh" for i in range(61)]),
    ],
)
def test_headers_are_plain_names_of_headers(tmp_path: Path, names: str) -> None:
    (tmp_path / "a.cuh").write_text("")
    document = bundle().replace("entry =", f"headers = {names}\nentry =")
    assert "kernel.headers" in refusal(write(tmp_path, document))


@pytest.mark.parametrize("source", ["../a.cu", "/etc/passwd", "a.cu\\n", "a\\u0000.cu", ".a.cu", "a/../a.cu", ""])
def test_a_source_is_a_plain_name(tmp_path: Path, source: str) -> None:
    assert "kernel.source" in refusal(write(tmp_path, bundle().replace('"a.cu"', f'"{source}"')))


@pytest.mark.parametrize("entry", ["a b", "a\\n", "a;", "-DX", "--time=/tmp/x", "a(int)", "", "\\u001b"])
def test_an_entry_is_an_identifier(tmp_path: Path, entry: str) -> None:
    assert "kernel.entry" in refusal(write(tmp_path, bundle().replace('entry = "a"', f'entry = "{entry}"')))


def test_a_bundle_gives_no_options_of_the_compiler(tmp_path: Path) -> None:
    for key in ("options", "include", "flags"):
        document = bundle().replace("entry =", f'{key} = ["--time=/tmp/x"]\nentry =')
        assert f"kernel.{key}" in refusal(write(tmp_path, document))


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "\x1b[2J", "\udcff"])
def test_names_of_folders_that_cannot_be(path: str) -> None:
    with pytest.raises(BundleError) as caught:
        load_kernel(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_headers_are_read_and_hashed(tmp_path: Path) -> None:
    with_headers = bundle().replace("entry =", 'headers = ["a.cuh", "b.h"]\nentry =')
    plain = load_kernel(write(tmp_path, bundle()))
    hashes = {plain.source.sha256}
    for text in ("first", "second"):
        (tmp_path / "a.cuh").write_text(f"\ufeff// {text}")
        (tmp_path / "b.h").write_text("")
        kernel = load_kernel(write(tmp_path, with_headers))
        assert kernel.source.headers == {"a.cuh": f"// {text}", "b.h": ""}
        assert kernel.space.sha256 == plain.space.sha256
        hashes.add(kernel.source.sha256)
    assert len(hashes) == 3


def test_headers_and_source_share_one_limit(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_bytes(b" " * (9 << 20))
    (tmp_path / "b.cuh").write_bytes(b" " * (9 << 20))
    document = bundle().replace("entry =", 'headers = ["a.cuh", "b.cuh"]\nentry =')
    assert "b.cuh" in refusal(write(tmp_path, document))


NAMES = ("P0", "P1", "n", *FUNCTIONS, "for", "lambda", "__import__", "1", "0", "2.5", "1e300", "9" * 30, "", "'a'")
TOKENS = st.sampled_from(
    [*NAMES, *"+-*/%()[]{},:.<>=!~^&|@", "**", "//", "<=", "==", " and ", " or ", " not ", " if ", " else "]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TOKENS, max_size=40).map("".join))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    columns = {"P0": np.array([-3, 0, 7]), "P1": np.array([1, 2, 2**31 - 1]), "n": 4096}
    message = ""
    try:
        expression = parse(text)
        expression.evaluate_partial(columns)
        expression.holds({"P0": 0, "P1": -1, "n": 2**40})
    except ExpressionError as error:
        message = str(error)
    assert len(message) < 1000
    assert message.isprintable()


def test_a_space_error_names_its_bundle(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"kernel\.toml"):
        use(write(tmp_path, bundle(restrictions=["P0 > 1"])))
