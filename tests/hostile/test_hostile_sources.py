"""CUDA sources of strangers, from which ``mltune init --from`` makes a bundle: quickly, or refused in one line."""

import os
from random import Random

import pytest

from mltune.errors import BundleError, UsageError
from mltune.kernel.draft import MAX_DRAFT_BYTES
from mltune.kernel.reader import load_kernel, new_bundle
from tests.effort import at_most_cpu_s

HONEST = """#define BLOCK 128
extern "C" __global__ void scale(float* out, const float* in, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) out[i] = 2 * in[i];
}
"""
MOST_CPU_S = 20.0
_MANY = MAX_DRAFT_BYTES // 4


def _filled(text: str) -> str:
    return text * (_MANY * 3 // len(text))


REFUSED = {
    "100-megabytes": b"//" + b"x" * 100_000_000,
    "a-binary": bytes(range(256)) * 100,
    "a-zero-byte": HONEST.encode() + b"\0",
    "utf-16": HONEST.encode("utf-16"),
    "nothing": b"",
    "a-comment-that-never-ends": f"/* {HONEST}".encode(),
    "a-text-that-never-ends": f'const char* text = R"({HONEST}'.encode(),
    "only-a-declaration": b"#define N 4\n__global__ void f(int n);",
    "a-kernel-without-an-end": b"#define N 4\n__global__ void f(int n",
    "a-kernel-made-by-a-macro": b"#define KERNEL(name) __global__ void name(int n) {}\n#define N 8\nKERNEL(f)",
    "several-kernels": (HONEST + HONEST.replace("scale", "other")).encode(),
    "no-parameters": HONEST.replace("#define BLOCK 128", "").replace("BLOCK", "64").encode(),
    "a-macro-with-side-effects": HONEST.replace("128", "(counter++)").encode(),
    "macros-that-name-each-other": f"#define A B\n#define B A\n{HONEST.replace('128', '(A)')}".encode(),
    "a-macro-with-two-values": f"#ifdef X\n#define BLOCK 32\n#else\n{HONEST.replace(chr(10), chr(10) + '#endif' + chr(10), 1)}".encode(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_without_a_readable_kernel_is_refused_in_one_line(name, tmp_path):
    source, folder = tmp_path / "kernel.cu", tmp_path / "new"
    source.write_bytes(REFUSED[name])
    with at_most_cpu_s(MOST_CPU_S), pytest.raises(UsageError) as refusal:
        new_bundle(folder, source)
    assert str(refusal.value).isprintable()
    assert not folder.exists()


DRAFTED = {
    "nested-comments": f"/* /* // */ {HONEST} // */",
    "a-kernel-in-a-text": f'const char* text = "__global__ void no(int n) {{}} /*";\n{HONEST}',
    "a-commented-kernel": f"// __global__ void no(int n) {{\n/* __global__ void no(int n) {{ */\n{HONEST}",
    "an-absolute-include": f'#include "/etc/passwd"\n#include </etc/shadow>\n{HONEST}',
    "an-include-of-a-parent": f'#include "../../secret.h"\n{HONEST}',
    "recursive-macros": f"#define A (A + B)\n#define B (A * A)\n{HONEST.replace('* BLOCK', '* A * BLOCK')}",
    "macros-that-double": "".join(f"#define M{at} (M{at + 1} * M{at + 1})\n" for at in range(90))
    + HONEST.replace("* BLOCK", "* M0 * BLOCK"),
    "deep-brackets": HONEST.replace("blockIdx.x * BLOCK", f"{'(' * 5000}blockIdx.x * BLOCK{')' * 5000}"),
    "a-deep-sum": HONEST.replace("+ threadIdx.x", f"{'+ 1' * 90} + threadIdx.x"),
    "a-variable-of-itself": HONEST.replace("if (i", "j = j * n + j; if (i").replace("in[i]", "in[j]"),
    "a-template": HONEST.replace('extern "C"', "template <typename T, int WIDTH = 4>"),
    "a-template-that-never-ends": _filled("template <") + HONEST,
    "an-escape-sequence": HONEST.replace("const float*", "const float\x1b[2J*"),
    "a-name-of-markup": HONEST.replace("const float*", "const <b>\"]\n'*"),
    "a-name-of-toml": HONEST.replace("float* out", 'float* out"]\n[kernel]\nname = "x'),
    "a-very-long-name": HONEST.replace("scale", "s" * 9000),
    "no-names": HONEST.replace("float* out, const float* in, int n", "float*, const float*, int"),
    "very-many-arguments": HONEST.replace("int n", ", ".join(f"int n{at}" for at in range(2000))),
    "very-many-macros": "".join(f"#define P{at} 4\n" for at in range(3000))
    + f"int x = {' + '.join(f'P{at}' for at in range(3000))};\n{HONEST}",
    "many-open-brackets": HONEST + _filled("{"),
    "many-open-namespaces": _filled("namespace a {") + HONEST,
    "many-qualifiers": HONEST + _filled("__global__ "),
    "many-spaces": HONEST.replace("if", _filled(" ") + "if"),
    "many-typedefs": _filled("typedef ") + HONEST,
    "a-typedef-of-spaces": f"typedef a{_filled(' ')};{HONEST}",
    "many-conditions": _filled("#if 1\n") + "#endif\n" * (_MANY // 2) + HONEST,
    "many-raw-texts": HONEST + _filled('R"('),
    "many-quotes": HONEST + _filled("\"'"),
    "one-line-of-backslashes": HONEST + "#define X " + _filled("\\\n"),
}


@pytest.mark.parametrize("name", DRAFTED)
def test_a_hostile_source_gives_a_bundle_or_a_refusal_in_time(name, tmp_path):
    _draft(DRAFTED[name], tmp_path)


def test_mutilated_sources(tmp_path):
    rng = Random(20_260)
    pieces = [
        "#define ",
        "#ifndef BLOCK\n",
        "\\\n",
        "/*",
        "*/",
        '"',
        "'",
        "(",
        ")",
        "{",
        "}",
        "<",
        ">",
        "__global__ ",
        "\n",
        ",",
    ]
    for place in range(150):
        text = HONEST
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(pieces) + text[at + rng.choice((0, 0, 1, 9)) :]
        folder = tmp_path / str(place)
        folder.mkdir()
        _draft(text, folder)


def test_links_and_devices(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "kernel.cu").write_text(HONEST.replace("#define", '#include "secret.h"\n#define', 1))
    (tmp_path / "secret.h").write_text("#error secret\n")
    (tmp_path / "real" / "secret.h").symlink_to("../secret.h")
    (tmp_path / "link.cu").symlink_to("real/kernel.cu")
    os.mkfifo(tmp_path / "fifo.cu")
    new_bundle(tmp_path / "of-a-link", tmp_path / "link.cu")  # the user made this link
    with pytest.raises(UsageError, match="link"):
        new_bundle(tmp_path / "leads-out", tmp_path / "real" / "kernel.cu")
    for name in ("fifo.cu", "real", "nowhere.cu"):
        with pytest.raises(UsageError, match="cannot be read"):
            new_bundle(tmp_path / "new", tmp_path / name)


def _draft(text: str, folder) -> None:
    """Make a bundle: what was written is refused with a reason, or loads, and holds no file of other folders."""
    (folder / "kernel.cu").write_text(text)
    refusals = list[UsageError]()
    with at_most_cpu_s(MOST_CPU_S):
        try:
            new_bundle(folder / "new", folder / "kernel.cu")
            load_kernel(folder / "new")
        except UsageError as error:
            refusals.append(error)
    for refusal in refusals:
        assert isinstance(refusal, BundleError) or not (folder / "new").exists()
        assert str(refusal).isprintable()
    written = [path.name for path in (folder / "new").iterdir()] if (folder / "new").exists() else []
    assert sorted(written) in ([], ["kernel.cu", "kernel.toml"])
